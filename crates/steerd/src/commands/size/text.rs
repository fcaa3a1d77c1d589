//! `size --format text`: tables of the workers of each group, its largest flows, and what is recommended for
//! it.

use std::fmt::Write as _;

use super::balance::MAX_WORKERS;
use super::{Answer, GroupAnswer, Recommended};
use crate::terminal::numbers::{bytes, counted, number, percent, rate, shares};
use crate::terminal::style::{Layout, Style};
use crate::terminal::table::Grid;

pub(super) fn of(answer: &Answer, layout: Layout) -> String {
    let seconds = answer.seconds.map_or_else(String::new, |seconds| format!(" in {seconds:.3} s"));
    let title = format!(
        "{}: {}, {}{seconds}; {} for {}",
        answer.traffic,
        counted(answer.packets, "packet", "packets"),
        bytes(answer.bytes),
        answer.policy,
        answer.profile
    );
    let mut out = format!("{}\n", layout.text(Style::Heading, &title));
    let rates = [
        answer.rate.map(|received| format!("{} packets/s received", rate(received))),
        answer.worker_capacity.map(|capacity| format!("{} packets/s for each worker", rate(capacity))),
    ];
    let rates: Vec<String> = rates.into_iter().flatten().collect();
    if !rates.is_empty() {
        let _ = writeln!(out, "{}", rates.join(", "));
    }
    for group in &answer.groups {
        out.push_str(&group_text(group, answer, layout));
    }
    out.push_str(&workers(answer, layout));
    out
}

fn group_text(group: &GroupAnswer, answer: &Answer, layout: Layout) -> String {
    let title = format!(
        "group {}: {} of {}, table of {}",
        group.group,
        counted(group.all.packets, "packet", "packets"),
        counted(group.flows as u64, "flow", "flows"),
        counted(group.table_size as u64, "entry", "entries")
    );
    let mut out = format!("\n{}\n", layout.text(Style::Heading, &title));
    let (Some(even), Some(least), Some(recommended)) =
        (group.largest_to_mean, group.least_possible, &group.recommended)
    else {
        out.push_str("no packet of the capture reaches it\n");
        return out;
    };
    let mut grid = Grid::new(&["worker", "packets", "bytes", "share"]);
    let parts: Vec<f64> = group.workers.iter().map(|share| share.share).collect();
    for (share, percent) in group.workers.iter().zip(shares(&parts, parts.iter().sum(), 1)) {
        grid.row(vec![
            share.worker.0.to_string(),
            number(share.amount.packets),
            bytes(share.amount.bytes),
            percent,
        ]);
    }
    out.push_str(&grid.text());
    let _ = writeln!(
        out,
        "balance {even:.2}: the busiest worker has so many times the mean; {least:.2} is the least that the largest flow allows"
    );
    if group.untracked_packets > 0 {
        let packets = counted(group.untracked_packets, "packet", "packets");
        let _ = writeln!(out, "{packets} of more flows than are tracked are not in what follows");
    }
    out.push_str(&flows(group));
    out.push_str(&advice(recommended, even, answer));
    out
}

fn flows(group: &GroupAnswer) -> String {
    let mut grid = Grid::new(&["largest flows", "share", "of a worker's share", "first packet"]);
    for flow in &group.largest_flows {
        let mut packet = flow.packet.clone();
        if flow.unhashed {
            packet.push_str(" (all packets without hashed fields)");
        }
        grid.row(vec![number(flow.packets), percent(flow.share), percent(flow.of_worker_share), packet]);
    }
    grid.text()
}

/// The keys of the group in the policy's language.
fn advice(recommended: &Recommended, even: f64, answer: &Answer) -> String {
    let mut out = String::new();
    let compared = counted(recommended.keys_compared as u64, "key", "keys");
    let _ = match &recommended.key {
        Some(key) => {
            writeln!(
                out,
                "key = \"{key}\"  # balance {:.2}, the best of {compared}",
                recommended.largest_to_mean
            )
        }
        None => writeln!(out, "the group's key is the best of {compared}"),
    };
    if let (Some(weights), Some(weighted)) = (&recommended.weights, recommended.weighted_largest_to_mean) {
        let list: Vec<String> =
            weights.iter().map(|weight| format!("{} = {}", weight.worker, weight.weight)).collect();
        let _ = writeln!(out, "weights = {{ {} }}  # balance {weighted:.2}", list.join(", "));
    } else if recommended.key.is_none() && even > 1.0 {
        out.push_str("no weights are better than the group's\n");
    }
    let most = answer.max_load_percent;
    match recommended.workers {
        Some(workers) => {
            let _ = writeln!(out, "workers = {workers}  # the fewest whose load is at most {most}%");
        }
        None if recommended.too_much_for_any => {
            let _ = writeln!(
                out,
                "no number of workers up to {MAX_WORKERS} keeps the load of the busiest at {most}% or less"
            );
        }
        None => {}
    }
    out
}

fn workers(answer: &Answer, layout: Layout) -> String {
    let mut grid = Grid::new(&["worker", "packets", "packets/s", "load", "expected loss"]);
    let known = |share: Option<f64>| share.map_or_else(|| "-".to_owned(), percent);
    for worker in &answer.workers {
        grid.row(vec![
            worker.worker.0.to_string(),
            number(worker.packets),
            worker.rate.map_or_else(|| "-".to_owned(), rate),
            known(worker.load),
            known(worker.expected_loss),
        ]);
    }
    let mut out = format!("\n{}\n{}", layout.text(Style::Heading, "workers, for all groups"), grid.text());
    if let Some(loss) = answer.expected_loss {
        let interval = answer.interval_ms;
        let _ = writeln!(
            out,
            "expected loss: {} of what workers receive, by intervals of {interval} ms",
            percent(loss)
        );
    }
    out
}

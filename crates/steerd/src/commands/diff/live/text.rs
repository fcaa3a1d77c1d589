//! The text of `diff --live`: the packets of each change, what is not among them, and the loads of workers.

use std::fmt::Write as _;

use super::super::{after, effect};
use super::estimate::Estimate;
use super::report::{LiveChange, LiveReport, NotCompared, Unseen};
use crate::terminal::numbers::{bytes, counted, number, percent, rate};
use crate::terminal::table::Grid;

/// The changes that are shown without `--all`.
const SHOWN_CHANGES: usize = 40;

/// The text, with all changes if `all` is set.
pub(in crate::commands::diff) fn of(live: &LiveReport, all: bool) -> String {
    let seconds = format!("{:.1} s", live.seconds);
    let mut out = format!(
        "\nlive traffic: {} in {seconds}, {} under generation {}, about {} packets/s\n",
        counted(live.compared.packets, "packet", "packets"),
        if live.one_in == 1 { "all".to_owned() } else { format!("one in {}", live.one_in) },
        live.generation,
        rate(live.packets_per_second)
    );
    if let Some(share) = live.moved_share {
        let amount = counted(live.moved.packets, "of them changes", "of them change");
        let _ = writeln!(out, "{amount}, {}: {}", bytes(live.moved.bytes), share_text(share));
    }
    let shown = if all { live.changes.len() } else { SHOWN_CHANGES };
    let heads = ["before", "after", "packets", "bytes", "share (95%)", "packets/s (95%)", "other worker", ""];
    let mut grid = Grid::new(&heads);
    live.changes.iter().take(shown).for_each(|change| grid.row(row(change, &seconds)));
    out.push_str(&grid.text());
    let more = live.changes.len().saturating_sub(shown);
    if more > 0 {
        let _ =
            writeln!(out, "and {}; --all shows them", counted(more as u64, "more change", "more changes"));
    }
    for note in notes(live) {
        let _ = writeln!(out, "{note}");
    }
    out.push_str(&workers(live));
    out.push_str("nothing was installed\n");
    out
}

fn row(change: &LiveChange, seconds: &str) -> Vec<String> {
    let is_met = change.amount.packets > 0;
    let if_met = |text: String| if is_met { text } else { "-".to_owned() };
    let share = match (change.not_seen, change.fewer_than, change.share) {
        (Some(unseen), _, _) if is_met => format!("at least, as some are {}", unseen_text(unseen)),
        (Some(unseen), _, _) => unseen_text(unseen).to_owned(),
        (None, Some(most), _) => format!("fewer than {} in {seconds}", number(most)),
        (None, None, share) => share.map_or_else(|| "-".to_owned(), share_text),
    };
    let per_second = change.packets_per_second.filter(|_| is_met);
    let per_second =
        per_second.map(|found| format!("{} ({}-{})", rate(found.value), rate(found.low), rate(found.high)));
    vec![
        effect(&change.before),
        after(&change.before, &change.after),
        if_met(number(change.amount.packets)),
        if_met(bytes(change.amount.bytes)),
        share,
        per_second.unwrap_or_else(|| "-".to_owned()),
        if_met(number(change.other_worker)),
        change.example.as_ref().map_or_else(String::new, |packet| format!("e.g. {packet}")),
    ]
}

fn unseen_text(unseen: Unseen) -> &'static str {
    match unseen {
        Unseen::Sent => "not seen: the host sends them",
        Unseen::Kernel => "not seen: they stay in the kernel",
        Unseen::Dropped => "not seen: the device drops them",
        Unseen::Copies => "not seen: no worker receives the packet itself",
    }
}

fn share_text(share: Estimate) -> String {
    format!("{} ({}-{})", small(share.value), small(share.low), small(share.high))
}

/// A share with three decimals below a percent, where one would make all alike.
fn small(share: f64) -> String {
    if share < 0.01 { format!("{:.3}%", 100.0 * share) } else { percent(share) }
}

/// The packets that are not compared, and why.
fn notes(live: &LiveReport) -> Vec<String> {
    let mut notes = Vec::new();
    let mut note = |packets: u64, why: &str| {
        if packets > 0 {
            notes.push(format!("{} {why}", counted(packets, "packet", "packets")));
        }
    };
    let NotCompared { other_generations, copies, at_run_time, unreadable, differing } = live.not_compared;
    note(
        other_generations,
        "not compared: another policy came into force during the sample (hint: run the command again)",
    );
    note(
        live.left_out,
        "left out at most: they came faster than the daemon writes (hint: a larger --one-in)",
    );
    note(copies, "not compared: copies of others");
    note(at_run_time, "not compared: rules at run time decide them");
    note(unreadable, "not compared: the trace has not all of their headers");
    note(
        differing,
        "not compared: the daemon decided them by other rules than the policy in force has; please report it",
    );
    if live.ended_early {
        notes.push(
            "the daemon ended the sample early (hint: `steerd status` shows whether it runs)".to_owned(),
        );
    }
    if live.compared.packets == 0 && other_generations == 0 {
        notes.push("no packet was compared (hint: `steerd top` shows whether ports receive any)".to_owned());
    }
    if live.changes.iter().any(|change| change.not_seen.is_some()) {
        let why = "packets that are not seen are in no figure, nor in the loads of workers";
        notes.push(why.to_owned());
    }
    notes
}

fn workers(live: &LiveReport) -> String {
    let mut grid = Grid::new(&["worker", "packets/s before", "after", "load before", "after"]);
    for worker in &live.workers {
        grid.row(vec![
            worker.worker.0.to_string(),
            rate(worker.before.packets_per_second),
            rate(worker.after.packets_per_second),
            small(worker.before.load),
            small(worker.after.load),
        ]);
    }
    let mut out = String::new();
    if !live.workers.is_empty() {
        let _ = writeln!(
            out,
            "\n{}loads are by steerd's model of costs: compare them with one another",
            grid.text()
        );
    }
    if let Some(shares) = live.compared_by_workers {
        let (before, after) = (percent(shares.before), percent(shares.after));
        let _ = writeln!(out, "workers compare {before} of the packets with rules before, {after} after");
    }
    out
}

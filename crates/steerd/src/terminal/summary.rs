//! The summary that is printed on stdout at the end: rules, workers, losses and the packet accounting.
//!
//! It is made after the last worker has been joined, so its figures are final and the accounting must match
//! to the packet.

use std::time::Duration;

use serde::Serialize;

use crate::cli::Format;
use crate::rates::PerSecond;
use crate::state::{RuleState, State};
use crate::terminal::numbers::{bytes, counted, duration, known, number, shares};
use crate::terminal::output::{self, OutputError};
use crate::terminal::table::{Chosen, Grid, dropped_log_lines, losses, rules_table, sinks, workers_table};

/// The flows of a sink that are listed.
const TOP_FLOWS_SHOWN: usize = 10;

/// Printed with `--format json`: the last state, in the format of /api/v1/state.
#[derive(Serialize)]
struct Summary<'s> {
    ran_for_seconds: f64,
    #[serde(flatten)]
    state: &'s State,
}

pub(crate) fn print(format: Format, state: &State, ran_for: Duration) -> Result<(), OutputError> {
    match format {
        Format::Text => output::print(&text(state, ran_for)),
        Format::Json => output::print_json(&Summary { ran_for_seconds: ran_for.as_secs_f64(), state }),
    }
}

/// `ran_for`: from the start of the workers to the removal of the flows; rates are means over it.
fn text(state: &State, ran_for: Duration) -> String {
    let rates = PerSecond::means(state, ran_for);
    let mut out = format!(
        "steerd {} ran for {} on {} with {} (generation {}, {}, {} failed)\n\n",
        state.version,
        duration(ran_for),
        state.device.name,
        state.policy.source,
        state.policy.generation,
        counted(state.policy.reloads_succeeded, "reload", "reloads"),
        state.policy.reloads_failed,
    );
    let rules: Vec<&RuleState> = state.rules.iter().collect();
    out.push_str(&rules_table(&Chosen::all(&rules), &rates));
    out.push('\n');
    out.push_str(&workers_table(&Chosen::all(&state.workers), &state.workers, &rates, false));
    out.push_str(&sinks(&state.sinks));
    out.push_str(&top_flows(state));
    out.push_str(&profile(state));
    out.push_str(&format!("\nlost: {}\n", losses(state)));
    if let Some(degraded) = &state.degraded {
        out.push_str(&format!("{degraded}\n"));
    }
    out.push_str(&dropped_log_lines(state));
    out.push_str(&accounting(state));
    out
}

/// The time of the threads, by stage.
fn profile(state: &State) -> String {
    let mut out = String::new();
    for thread in state.profile.iter().flatten() {
        let mut grid = Grid::new(&[&format!("time of {}", thread.thread), "share", "ns/packet"]);
        let parts: Vec<f64> = thread.stages.iter().map(|stage| stage.share).collect();
        for (stage, share) in thread.stages.iter().zip(shares(&parts, parts.iter().sum(), 1)) {
            let each = stage.ns_per_packet.map_or_else(|| "-".into(), |ns| format!("{ns:.1}"));
            grid.row(vec![stage.stage.clone(), share, each]);
        }
        out.push_str(&format!("\n{}", grid.text()));
    }
    out
}

/// The flows with most packets of each sink that counts them.
fn top_flows(state: &State) -> String {
    let mut out = String::new();
    for sink in &state.sinks {
        let Some(flows) = sink.top_flows.as_ref().filter(|flows| !flows.is_empty()) else { continue };
        let mut grid = Grid::new(&[&format!("top flows of {}", sink.name), "packets", "error", "bytes"]);
        for flow in flows.iter().take(TOP_FLOWS_SHOWN) {
            let counts = [number(flow.packets), number(flow.error), bytes(flow.bytes)];
            grid.row([flow.flow.clone()].into_iter().chain(counts).collect());
        }
        out.push_str(&format!("\n{}", grid.text()));
    }
    out
}

fn accounting(state: &State) -> String {
    let accounting = &state.accounting;
    let mut sum = Grid::new(&["packet accounting", "packets"]);
    if let Some(received) = accounting.received {
        sum.row(vec!["received by ports".into(), number(received)]);
        if accounting.wire_lost > 0 {
            sum.row(vec!["+ lost on the wire before".into(), number(accounting.wire_lost)]);
        }
        if let Some(copies) = accounting.replicated.filter(|copies| *copies > 0) {
            sum.row(vec!["+ copied by ports".into(), number(copies)]);
        }
    }
    let mut sign = if accounting.received.is_some() { "= " } else { "" };
    for (row, packets) in accounting.outcomes.iter() {
        let Some(total) = &row.total else { continue };
        if total.is_always_shown || packets.is_some_and(|packets| packets > 0) {
            sum.row(vec![format!("{sign}{}", total.text), known(*packets)]);
            sign = "+ ";
        }
    }
    sum.row(vec!["+ lost".into(), number(accounting.lost)]);
    format!("\n{}\n{}\n{}", sum.text(), accounting.verdict(), passed_before(state))
}

/// The packets that ports have not received, because an XDP program left them to the kernel.
fn passed_before(state: &State) -> String {
    let counters = state.ports.iter().filter_map(|port| port.counters.as_ref());
    match counters.map(|counters| counters.passed_packets).sum() {
        0 => String::new(),
        packets => {
            format!("besides, the XDP program left {} to the kernel\n", counted(packets, "packet", "packets"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::{Count, PacketOutcome};
    use crate::port_counters::PortCounters;
    use crate::state::{PortState, StageTime, ThreadProfile, WorkerState};
    use crate::telemetry::accounting::{InFlight, check};

    fn scene() -> State {
        let mut state = State { version: "0", ..State::default() };
        state.ports = vec![PortState {
            port: 1,
            counters: Some(PortCounters {
                received_packets: 1500,
                delivered_packets: 1000,
                rule_dropped_packets: 300,
                kernel_packets: 200,
                ..PortCounters::default()
            }),
            ..PortState::default()
        }];
        state.rules = vec![
            RuleState {
                name: "web".into(),
                action: "deliver to web".into(),
                placement: "hardware",
                current: true,
                outcomes: [(PacketOutcome::Delivered, Count::of(1000, 64_000))].into(),
                ..RuleState::default()
            },
            RuleState {
                name: "scan".into(),
                action: "drop".into(),
                outcomes: [(PacketOutcome::Dropped, Count::of(300, 0))].into(),
                ..RuleState::default()
            },
        ];
        state.workers = vec![WorkerState {
            received_packets: 1000,
            received_bytes: 64_000,
            outcomes: [(PacketOutcome::Delivered, 1000)].into(),
            ..WorkerState::default()
        }];
        state.accounting = check(&state.ports, &state.rules, &state.workers, &InFlight::default());
        state
    }

    #[test]
    fn matching_accounting_is_reported() {
        let text = text(&scene(), Duration::from_secs(2));
        for part in [
            "received by ports",
            "1500",
            "scan (earlier)",
            "lost: none",
            "\npacket accounting matches\n",
            "500",
        ] {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
    }

    #[test]
    fn packets_that_the_xdp_program_passed_are_mentioned() {
        let mut state = scene();
        assert!(!text(&state, Duration::from_secs(2)).contains("XDP"));
        state.ports[0].counters.as_mut().expect("counted").passed_packets = 1234;
        let text = text(&state, Duration::from_secs(2));
        assert!(
            text.ends_with("matches\nbesides, the XDP program left 1234 packets to the kernel\n"),
            "{text}"
        );
    }

    #[test]
    fn the_time_of_threads_is_listed_by_stage() {
        let mut state = scene();
        assert!(!text(&state, Duration::from_secs(2)).contains("ns/packet"), "not measured");
        let stage = |stage: &str, share, ns_per_packet| StageTime {
            stage: stage.into(),
            share,
            ns_per_packet,
            ..StageTime::default()
        };
        let stages = vec![stage("poll", 0.25, Some(4.26)), stage("idle", 0.75, None)];
        state.profile =
            Some(vec![ThreadProfile { thread: "worker 0".into(), stages, ..ThreadProfile::default() }]);
        let text = text(&state, Duration::from_secs(2));
        for part in ["time of worker 0", "25.0%", "4.3", "75.0%"] {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
    }

    #[test]
    fn a_missing_packet_is_named() {
        let mut state = scene();
        state.ports[0].counters.as_mut().expect("counted").received_packets += 1;
        state.accounting = check(&state.ports, &state.rules, &state.workers, &InFlight::default());
        let text = text(&state, Duration::from_secs(2));
        assert!(text.contains("packet accounting mismatch: port 1: received"), "{text}");
        assert!(text.contains("1501 against 1500, off by 1"), "{text}");
    }
}

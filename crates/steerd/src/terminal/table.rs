//! The live table: a `State` as text, with rates since the last update.
//!
//! The daemon makes it every second for the `Screen`; commands and the summary use the same [`Grid`]. Pure
//! text: nothing is written here.

use std::time::Duration;

use worker::{Regime, SinkDrop};

use crate::outcome::PacketOutcome;
use crate::port_counters::PortCounters;
use crate::rates::{self, PerSecond, WorkerTime};
use crate::state::{Reasons, RuleState, SinkState, State, WorkerState};
use crate::terminal::numbers::{bytes, duration, known, number, rate, scaled, shares};

/// The number of dropped log lines, if there are any.
pub(crate) fn dropped_log_lines(state: &State) -> String {
    match state.log_lines_dropped {
        0 => String::new(),
        lines => format!("dropped log lines: {}\n", number(lines)),
    }
}

/// The least number of lines for rules, and for workers, if there are so many.
const LEAST_LINES: usize = 3;

/// The table in at most `rows` rows if possible. If rows are missing, rules are left out first, then workers:
/// the busiest are shown and the others summed. Sinks, ports, losses and the accounting are always shown.
pub(crate) fn live(state: &State, rates: &PerSecond, rows: usize) -> String {
    let ports = sinks(&state.sinks) + &ports(state, rates) + &sending_ports(state, rates);
    let mut end = format!("\nlost: {}\n{}\n", losses(state), state.accounting.verdict());
    if let Some(degraded) = &state.degraded {
        end.push_str(&format!("{degraded}\n"));
    }
    end.push_str(&dropped_log_lines(state));
    if let Some(error) = &state.policy.last_error {
        end.push_str(&format!("last reload failed: {error}\n"));
    }
    // Title, blank line and head of the rules; blank line and head of the workers.
    let others = 3 + 2 + ports.lines().count() + end.lines().count();
    let rules: Vec<&RuleState> = state.rules.iter().filter(|rule| rule.current).collect();
    let left = rows.saturating_sub(others);
    let for_workers = left.saturating_sub(rules.len().min(LEAST_LINES)).max(LEAST_LINES);
    let (workers, worker_lines) =
        busiest(&state.workers, for_workers, |worker| (worker_rate(rates, worker), worker.received_packets));
    let for_rules = left.saturating_sub(worker_lines).max(LEAST_LINES);
    let (rules, _) = busiest(&rules, for_rules, |rule| (rule_rate(rates, rule), rule.packets()));
    let mut out = format!(
        "steerd {}  {}  {}  generation {}  up {}\n\n",
        state.version,
        state.device.name,
        state.policy.source,
        state.policy.generation,
        duration(Duration::from_secs_f64(state.uptime_seconds.max(0.0))),
    );
    out.push_str(&rules_table(&rules, rates));
    out.push('\n');
    out.push_str(&workers_table(&workers, &state.workers, rates, true));
    out + &ports + &end
}

/// The shown ones in their order, and those that are summed in one line.
pub(crate) struct Chosen<'s, T> {
    shown: Vec<&'s T>,
    others: Vec<&'s T>,
}

impl<'s, T> Chosen<'s, T> {
    pub(crate) fn all(all: &'s [T]) -> Self {
        Self { shown: all.iter().collect(), others: Vec::new() }
    }
}

/// Chooses as many as fit into this many lines, the busiest by rate and then by count; returns the number of
/// lines, too.
fn busiest<'s, T>(all: &'s [T], lines: usize, load: impl Fn(&T) -> (f64, u64)) -> (Chosen<'s, T>, usize) {
    if all.len() <= lines {
        return (Chosen::all(all), all.len());
    }
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by(|a, b| {
        let (a, b) = (load(&all[*a]), load(&all[*b]));
        b.0.total_cmp(&a.0).then(b.1.cmp(&a.1))
    });
    let (shown, others) = order.split_at_mut(lines.saturating_sub(1));
    shown.sort_unstable();
    let of = |indices: &[usize]| indices.iter().map(|index| &all[*index]).collect();
    (Chosen { shown: of(shown), others: of(others) }, lines)
}

/// The head of the column for the time in which a worker waited for a core.
pub(crate) const NO_CORE: &str = "no core";

/// The parts of the workers' time in percent, by regime, and if `has_waits` the time of waiting for a core;
/// dashes if no time is known.
fn time_shares(time: &WorkerTime, has_waits: bool) -> Vec<String> {
    let mut parts = time.regimes.to_vec();
    parts.extend(has_waits.then(|| time.waiting.unwrap_or(0.0)));
    shares(&parts, time.whole(), 0)
}

/// The median and the 99th percentile of a worker's latency: `1.2 us, 8.1 us`.
fn latency(worker: &WorkerState) -> String {
    let known = worker.latency.as_ref().and_then(|latency| Some((latency.p50_ns?, latency.p99_ns?)));
    #[allow(clippy::cast_precision_loss)]
    let text = |ns: u64| scaled(ns as f64, 1000.0, &["ns", "us", "ms", "s"]);
    known.map_or_else(|| "-".into(), |(p50, p99)| format!("{}, {}", text(p50), text(p99)))
}

fn has_latency(workers: &[WorkerState]) -> bool {
    workers.iter().any(|worker| worker.latency.is_some())
}

fn rule_rate(rates: &PerSecond, rule: &RuleState) -> f64 {
    rates.of(&rates::rule_packets(&rule.name))
}

fn worker_rate(rates: &PerSecond, worker: &WorkerState) -> f64 {
    rates.of(&rates::worker_packets(worker.worker))
}

/// The rules with the packets that `limit` and `sample` have dropped, if there are any.
pub(crate) fn rules_table(rules: &Chosen<'_, &RuleState>, rates: &PerSecond) -> String {
    let is_policed = rules.shown.iter().chain(&rules.others).any(|rule| rule.policed_packets() > 0);
    let mut heads = vec!["rule", "action", "in", "packets", "bytes", "packets/s"];
    heads.extend(is_policed.then_some("policed"));
    let mut grid = Grid::new(&heads);
    for rule in &rules.shown {
        let by_name = rule.current || rule.name == program::RETIRED_RULES;
        let mut row = vec![
            if by_name { rule.name.clone() } else { format!("{} (earlier)", rule.name) },
            rule.action.clone(),
            rule.decided_in(),
            rule_packets(rule),
            rule_bytes(rule),
            if rule.uncounted { "-".into() } else { rate(rule_rate(rates, rule)) },
        ];
        row.extend(is_policed.then(|| number(rule.policed_packets())));
        grid.row(row);
    }
    if !rules.others.is_empty() {
        let sum = |of: fn(&RuleState) -> u64| rules.others.iter().map(|rule| of(rule)).sum();
        let mut row = vec![
            format!("and {} more rules", number(rules.others.len() as u64)),
            String::new(),
            String::new(),
            number(sum(RuleState::packets)),
            if rules.others.iter().any(|rule| bytes_are_unknown(rule)) {
                "-".into()
            } else {
                bytes(sum(RuleState::bytes))
            },
            rate(rules.others.iter().map(|rule| rule_rate(rates, rule)).sum()),
        ];
        row.extend(is_policed.then(|| number(sum(RuleState::policed_packets))));
        grid.row(row);
    }
    grid.text()
}

/// The workers with their latencies, if there are any of `all`; `is_live`: also the column "no buffer" and
/// the marks "(stalled)" and "(queue failed)", which matter only while the workers run.
pub(crate) fn workers_table(
    workers: &Chosen<'_, WorkerState>,
    all: &[WorkerState],
    rates: &PerSecond,
    is_live: bool,
) -> String {
    let mut heads = vec!["worker", "core", "packets", "bytes", "packets/s"];
    heads.extend(is_live.then_some("no buffer"));
    heads.extend(Regime::ALL.map(Regime::name));
    let has_waits = all.iter().any(|worker| worker.thread.is_some());
    heads.extend(has_waits.then_some(NO_CORE));
    heads.extend(has_latency(all).then_some("wait p50, p99"));
    let mut grid = Grid::new(&heads);
    for worker in &workers.shown {
        let stalled = if is_live && worker.stalled { " (stalled)" } else { "" };
        let failed = if is_live && worker.failed { " (queue failed)" } else { "" };
        let mut row = vec![
            format!("{}{stalled}{failed}", worker.worker),
            worker.place.core.map_or_else(|| "any".into(), |core| core.to_string()),
            number(worker.received_packets),
            bytes(worker.received_bytes),
            rate(worker_rate(rates, worker)),
        ];
        row.extend(is_live.then(|| known(worker.out_of_buffer_packets)));
        row.extend(time_shares(&rates.worker_time(worker), has_waits));
        row.extend(has_latency(all).then(|| latency(worker)));
        grid.row(row);
    }
    if !workers.others.is_empty() {
        let sum = |of: fn(&WorkerState) -> u64| workers.others.iter().map(|worker| of(worker)).sum();
        let mut row = vec![
            format!("and {} more", workers.others.len()),
            String::new(),
            number(sum(|worker| worker.received_packets)),
            bytes(sum(|worker| worker.received_bytes)),
            rate(workers.others.iter().map(|worker| worker_rate(rates, worker)).sum()),
        ];
        let out_of_buffer = || workers.others.iter().map(|worker| worker.out_of_buffer_packets).sum();
        row.extend(is_live.then(|| known(out_of_buffer())));
        let mut time = WorkerTime::default();
        workers.others.iter().for_each(|worker| time.add(&rates.worker_time(worker)));
        row.extend(time_shares(&time, has_waits));
        grid.row(row);
    }
    grid.text()
}

/// The sinks with a blank line before them; nothing if there are none.
pub(crate) fn sinks(sinks: &[SinkState]) -> String {
    if sinks.is_empty() {
        return String::new();
    }
    let is_sending = sinks.iter().any(|sink| !sink.transmit.is_empty());
    let mut heads = vec!["sink", "kind", "offered", "delivered", "dropped", "in flight"];
    heads.extend(is_sending.then_some("sent"));
    heads.push("dropped because");
    let mut grid = Grid::new(&heads);
    for sink in sinks {
        let losing = if sink.losing.is_some() { " (loses all)" } else { "" };
        let dropped = sink.dropped();
        let in_flight: i64 = sink.workers.iter().map(|traffic| traffic.in_flight_packets).sum();
        let mut row = vec![
            format!("{}{losing}", sink.name),
            sink.kind.to_owned(),
            number(sink.sum(|traffic| traffic.offered_packets)),
            number(sink.sum(|traffic| traffic.delivered_packets)),
            number(dropped.values().sum()),
            number(u64::try_from(in_flight).unwrap_or(0)),
        ];
        let sent = || sink.transmit.iter().map(|sent| sent.delivered_packets).sum();
        row.extend(is_sending.then(|| known((!sink.transmit.is_empty()).then(sent))));
        row.push(listed(&dropped));
        grid.row(row);
    }
    format!("\n{}", grid.text())
}

/// The ports with a blank line before them; nothing if there is no port.
fn ports(state: &State, rates: &PerSecond) -> String {
    if state.ports.is_empty() {
        return String::new();
    }
    let mut ports = Grid::new(&["port", "received", "to workers", "dropped", "kernel", "lost", "packets/s"]);
    for port in &state.ports {
        let down = if port.up == Some(false) { " (down)" } else { "" };
        let counted = |of: fn(&PortCounters) -> u64| {
            port.counters.as_ref().map_or_else(|| "-".into(), |counters| number(of(counters)))
        };
        ports.row(vec![
            format!("{}{down} {}", port.port, port.wire),
            counted(|port| port.received_packets),
            counted(|port| port.delivered_packets),
            counted(|port| port.rule_dropped_packets),
            counted(|port| port.kernel_packets),
            number(port.lost_packets.values().sum()),
            rate(rates.of(&rates::port_packets(port.port))),
        ]);
    }
    format!("\n{}", ports.text())
}

/// The ports of soft NICs that only send, with a blank line before them; nothing if there are none.
fn sending_ports(state: &State, rates: &PerSecond) -> String {
    if state.other_devices.is_empty() {
        return String::new();
    }
    let mut grid = Grid::new(&["sending port", "sent", "bytes", "errors", "packets/s"]);
    for device in &state.other_devices {
        let stalled = if device.engine_stalled { " (stalled)" } else { "" };
        for port in &device.ports {
            let name = rates::sending_port(device, port);
            let down = if port.up == Some(false) { " (down)" } else { "" };
            let counters = port.counters.clone().unwrap_or_default();
            grid.row(vec![
                format!("{name}{stalled}{down} {}", port.wire),
                number(counters.sent_packets),
                bytes(counters.sent_bytes),
                number(counters.send_errors),
                rate(rates.of(&name)),
            ]);
        }
    }
    format!("\n{}", grid.text())
}

/// One line for the log.
pub(crate) fn line(state: &State, rates: &PerSecond) -> String {
    let to_workers = state.workers.iter().map(|worker| worker_rate(rates, worker)).sum();
    let policed = match state.accounting.policed() {
        0 => String::new(),
        packets => format!(", {} policed", number(packets)),
    };
    let outcomes = &state.accounting.outcomes;
    format!(
        "{} packets to workers ({}/s), {} dropped by rule{policed}, {} left to the kernel, lost: {}",
        known(outcomes[PacketOutcome::Delivered]),
        rate(to_workers),
        known(outcomes[PacketOutcome::Dropped]),
        known(outcomes[PacketOutcome::Kernel]),
        losses(state),
    )
}

/// All losses, without drops by rules, by reason: "none", or "out_of_buffer 12, sink files: disk_full 7".
pub(crate) fn losses(state: &State) -> String {
    let mut sums = Reasons::new();
    let ports = state.ports.iter().flat_map(|port| &port.lost_packets);
    let workers = state.workers.iter().flat_map(|worker| &worker.lost_packets);
    for (reason, packets) in ports.chain(workers) {
        *sums.entry(reason).or_default() += packets;
    }
    sums.extend(
        state.accounting.outcomes[PacketOutcome::LostException]
            .filter(|lost| *lost > 0)
            .map(|lost| ("lost_exception", lost)),
    );
    let mut list = vec![listed(&sums)];
    for sink in &state.sinks {
        let mut dropped = sink.dropped();
        SinkDrop::ALL.iter().filter(|reason| reason.is_intended()).for_each(|reason| {
            dropped.remove(reason.name());
        });
        let reasons = listed(&dropped);
        list.extend((!reasons.is_empty()).then(|| format!("sink {}: {reasons}", sink.name)));
    }
    list.retain(|reasons| !reasons.is_empty());
    if list.is_empty() { "none".into() } else { list.join(", ") }
}

/// The reasons that occurred: "disk_full 7, ring_full 12".
fn listed(reasons: &Reasons) -> String {
    let occurred = reasons.iter().filter(|(_, packets)| **packets > 0);
    let list: Vec<String> =
        occurred.map(|(reason, packets)| format!("{reason} {}", number(*packets))).collect();
    list.join(", ")
}

/// A table with columns as wide as their widest cell; numbers are right-aligned.
#[derive(Debug)]
pub(crate) struct Grid {
    rows: Vec<Vec<String>>,
}

impl Grid {
    pub(crate) fn new(heads: &[&str]) -> Self {
        Self { rows: vec![heads.iter().map(|head| (*head).to_owned()).collect()] }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    pub(crate) fn text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let cell = |row: &Vec<String>, column: usize| row.get(column).map_or(0, |cell| cell.chars().count());
        let widths: Vec<usize> = (0..columns)
            .map(|column| self.rows.iter().map(|row| cell(row, column)).max().unwrap_or(0))
            .collect();
        // A column is numeric if all cells below its head begin like a number.
        let numeric: Vec<bool> = (0..columns)
            .map(|column| {
                column > 0
                    && self.rows.iter().skip(1).filter_map(|row| row.get(column)).all(|cell| {
                        cell.is_empty() || cell.starts_with(|c: char| c.is_ascii_digit() || c == '-')
                    })
            })
            .collect();
        let mut out = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let width = widths[column];
                if column > 0 {
                    line.push_str("  ");
                }
                if numeric[column] {
                    line.push_str(&format!("{cell:>width$}"));
                } else {
                    line.push_str(&format!("{cell:<width$}"));
                }
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }
}

/// A dash if the device does not count them.
fn rule_packets(rule: &RuleState) -> String {
    if rule.uncounted { "-".into() } else { number(rule.packets()) }
}

/// A dash if unknown: the device does not count the bytes of unmatched packets.
fn rule_bytes(rule: &RuleState) -> String {
    if bytes_are_unknown(rule) { "-".into() } else { bytes(rule.bytes()) }
}

/// Whether some of the rule's bytes are not counted: those of unmatched packets.
pub(crate) fn bytes_are_unknown(rule: &RuleState) -> bool {
    let kernel = &rule.outcomes[PacketOutcome::Kernel];
    rule.uncounted || kernel.packets != Some(0) && kernel.bytes.is_none()
}

#[cfg(test)]
mod tests {
    use program::{Decider, HostReception, RuleDeciders};

    use super::*;
    use crate::outcome::Count;
    use crate::rates::Rates;
    use crate::state::{LatencyState, SinkTrafficState};
    use crate::state::{OtherDeviceState, PortState, WorkerThreadState};

    #[test]
    fn the_table_shows_rules_in_force_and_losses() {
        let mut state = State { version: "0", ..State::default() };
        let rule = |name: &str, current| RuleState {
            name: name.into(),
            action: "drop".into(),
            current,
            outcomes: [(PacketOutcome::Dropped, Count::of(1234, 0))].into(),
            ..RuleState::default()
        };
        state.rules = vec![rule("now", true), rule("then", false)];
        state.workers = vec![WorkerState {
            lost_packets: [("unknown_tag", 2), ("bad_frame", 0)].into(),
            ..WorkerState::default()
        }];
        let text = live(&state, &PerSecond::default(), 24);
        assert!(text.contains("1234"), "{text}");
        assert!(!text.contains("then"), "{text}");
        assert!(text.contains("lost: unknown_tag 2\n"), "{text}");
    }

    /// On a network interface nothing is hardware but the filters of the NIC.
    #[test]
    fn rules_of_an_interface_show_their_deciders() {
        let decided_by = [Decider::XdpProgram, Decider::Engine].into();
        let rule = RuleState {
            name: "web".into(),
            placement: "hardware",
            current: true,
            deciders: Some(RuleDeciders { decided_by, host: HostReception::No }),
            ..RuleState::default()
        };
        let state = State { rules: vec![rule], ..State::default() };
        let text = live(&state, &PerSecond::default(), 24);
        assert!(text.contains("XDP program, engine") && !text.contains("hardware"), "{text}");
    }

    /// Packets that a sink or a policer has dropped are shown wherever packets are.
    #[test]
    fn the_table_shows_what_sinks_and_policers_have_dropped() {
        let traffic = SinkTrafficState {
            offered_packets: 12_007,
            delivered_packets: 3,
            dropped_packets: [("disk_full", 12_000), ("sampled", 4)].into(),
            ..SinkTrafficState::default()
        };
        let sink = SinkState {
            name: "files".into(),
            kind: "capture",
            workers: vec![traffic],
            losing: Some("disk_full"),
            ..SinkState::default()
        };
        let rule = RuleState {
            name: "web".into(),
            current: true,
            outcomes: [
                (PacketOutcome::Delivered, Count::of(552, 0)),
                (PacketOutcome::RateLimited, Count::of(1_268, 0)),
            ]
            .into(),
            ..RuleState::default()
        };
        let degraded = Some("degraded: sink `files` loses all its packets (disk_full)".to_owned());
        let state = State { sinks: vec![sink], rules: vec![rule], degraded, ..State::default() };
        let text = live(&state, &PerSecond::default(), 24);
        let row = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap_or("").to_owned();
        assert!(row("rule").ends_with("policed") && row("web").ends_with(" 1268"), "{text}");
        assert!(row("web").contains(" 1820 "), "{text}");
        assert!(row("files (loses all)").ends_with("disk_full 12000, sampled 4"), "{text}");
        assert!(text.contains("lost: sink files: disk_full 12000\n"), "{text}");
        assert!(text.contains("\ndegraded: sink `files`"), "{text}");
    }

    #[test]
    fn the_time_of_a_worker_is_split_since_the_last_update() {
        let mut rates = Rates::default();
        let mut state = State { uptime_seconds: 1.0, ..State::default() };
        let times = |idle, poll, classify, sink| {
            [("idle", idle), ("poll", poll), ("classify", classify), ("sink", sink)].into()
        };
        state.workers =
            vec![WorkerState { regimes_ns: times(1_000_000_000, 0, 0, 0), ..WorkerState::default() }];
        let first = rates.update(&state);
        state.uptime_seconds = 2.0;
        state.workers[0].regimes_ns = times(1_250_000_000, 300_000_000, 50_000_000, 400_000_000);
        let text = live(&state, &rates.update(&state), 24);
        assert!(text.contains("25%   30%        5%   40%"), "{text}");
        assert!(live(&state, &first, 24).contains("100%    0%"), "{text}");
        assert!(!text.contains("p99") && !text.contains("no core"), "{text}");
        // A fifth of the second it waited for a core, which the loop takes for idle.
        let thread = WorkerThreadState { cpu_wait_ns: 200_000_000, ..WorkerThreadState::default() };
        state.workers[0].thread = Some(thread);
        state.uptime_seconds = 3.0;
        state.workers[0].regimes_ns = times(1_500_000_000, 600_000_000, 100_000_000, 800_000_000);
        let text = live(&state, &rates.update(&state), 24);
        assert!(text.contains("5%   30%        5%   40%      20%"), "{text}");
        let measured = LatencyState { p50_ns: Some(1216), p99_ns: Some(8_191), ..LatencyState::default() };
        state.workers[0].latency = Some(measured);
        assert!(live(&state, &PerSecond::default(), 24).contains("1.22us, 8.19us"), "{text}");
    }

    #[test]
    fn ports_of_soft_nics_that_only_send_are_shown() {
        let mut state = State { version: "0", uptime_seconds: 2.0, ..State::default() };
        let counters = PortCounters { sent_packets: 1234, ..PortCounters::default() };
        let port = PortState {
            port: 1,
            wire: "null".into(),
            up: Some(false),
            counters: Some(counters),
            ..PortState::default()
        };
        let name = "softnic1".to_owned();
        state.other_devices = vec![OtherDeviceState { name, engine_stalled: true, ports: vec![port] }];
        let rates = Rates::default().update(&state);
        let text = live(&state, &rates, 24);
        let row = text.lines().find(|line| line.starts_with("softnic1 port 1")).expect("its row");
        let words: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(words[3..], ["(stalled)", "(down)", "null", "1234", "0B", "0", "617"], "{text}");
    }

    /// Rules and workers that do not fit are summed; losses are always shown.
    #[test]
    fn rules_are_left_out_first_then_workers() {
        let mut state = State { version: "0", ..State::default() };
        state.accounting.matches = Some(true);
        let rule = |n: u64| RuleState {
            name: format!("rule-{n}"),
            current: true,
            outcomes: [(PacketOutcome::Delivered, Count::of(10_000 + n, 0))].into(),
            ..RuleState::default()
        };
        let worker = |worker| WorkerState { worker, received_packets: 5, ..WorkerState::default() };
        state.rules = (0..40).map(rule).collect();
        state.ports = vec![PortState { port: 1, wire: "wire".into(), ..PortState::default() }];
        state.workers = (0..2).map(worker).collect();
        state.rules[7].outcomes[PacketOutcome::Delivered].packets = Some(9_957);
        let mut rates = Rates::default();
        rates.update(&state);
        state.rules[7].outcomes[PacketOutcome::Delivered].packets = Some(10_007);
        state.uptime_seconds = 1.0;
        let rates = rates.update(&state);
        let text = live(&state, &rates, 24);
        assert_eq!(text.lines().count(), 24, "{text}");
        for part in [
            "and 30 more rules",
            "rule-7 ",
            "rule-39",
            "0       any",
            "1       any",
            "1 wire",
            "lost: ",
            "packet accounting m",
        ] {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
        assert!(text.find("rule-7 ") < text.find("rule-39"), "in the order of the policy: {text}");
        state.workers = (0..100).map(worker).collect();
        let text = live(&state, &rates, 24);
        assert_eq!(text.lines().count(), 24, "{text}");
        for part in ["and 38 more rules", "and 91 more", "1 wire", "lost: ", "packet accounting m"] {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
        let text = live(&state, &rates, 1000);
        assert!(!text.contains(" more"), "{text}");
    }

    #[test]
    fn a_table_that_is_not_live_has_no_missing_buffers() {
        let worker =
            WorkerState { received_packets: 5, out_of_buffer_packets: Some(7), ..WorkerState::default() };
        let workers = vec![worker; 3];
        let summed = Chosen { shown: Vec::new(), others: workers.iter().collect() };
        for is_live in [true, false] {
            let text = workers_table(&summed, &workers, &PerSecond::default(), is_live);
            assert!(text.contains("15"), "{text}");
            assert_eq!(text.contains("21"), is_live, "{text}");
            assert_eq!(text.contains("no buffer"), is_live, "{text}");
        }
    }

    #[test]
    fn numbers_are_right_aligned() {
        let mut grid = Grid::new(&["rule", "packets"]);
        grid.row(vec!["a".into(), "1".into()]);
        grid.row(vec!["longer".into(), "1000000".into()]);
        assert_eq!(grid.text(), "rule    packets\na             1\nlonger  1000000\n");
    }
}

//! Rates of the counts in a `State`: averages between two states, or over a run. The live table of `run`, its
//! summary and the API's `top` use them.

use std::collections::HashMap;
use std::time::Duration;

use serde::Serialize;
use worker::Regime;

use crate::outcome::PacketOutcome;
use crate::state::{
    OtherDeviceState, PortState, Reasons, SinkState, SinkTrafficState, State, TopFlowState, WorkerState,
};

/// The counts of the last update.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    last: HashMap<String, u64>,
    uptime_seconds: f64,
}

/// Rates by what is counted.
#[derive(Debug, Default)]
pub(crate) struct PerSecond {
    /// Since the last update, or since the start.
    pub(crate) interval_seconds: f64,
    rates: HashMap<String, Rate>,
}

#[derive(Clone, Copy, Debug)]
struct Rate {
    per_second: f64,
    /// It was not counted at the last update, though others were.
    is_new: bool,
}

impl Rates {
    pub(crate) fn update(&mut self, state: &State) -> PerSecond {
        self.update_with(state, counts(state).collect())
    }

    /// The rates of workers alone.
    pub(crate) fn update_workers(&mut self, state: &State) -> PerSecond {
        self.update_with(state, worker_counts(state).collect())
    }

    fn update_with(&mut self, state: &State, now: HashMap<String, u64>) -> PerSecond {
        let interval_seconds = state.uptime_seconds - self.uptime_seconds;
        self.uptime_seconds = state.uptime_seconds;
        let rates = PerSecond::between(&self.last, &now, interval_seconds);
        self.last = now;
        rates
    }
}

impl PerSecond {
    /// The means of a run that took this long.
    pub(crate) fn means(state: &State, ran_for: Duration) -> Self {
        Self::between(&HashMap::new(), &counts(state).collect(), ran_for.as_secs_f64())
    }

    fn between(last: &HashMap<String, u64>, now: &HashMap<String, u64>, interval_seconds: f64) -> Self {
        #[allow(clippy::cast_precision_loss)]
        let rate = |(key, count): (&String, &u64)| {
            let before = last.get(key).copied();
            let more = count.saturating_sub(before.unwrap_or(0));
            // Everything has happened since the start.
            let is_new = before.is_none() && !last.is_empty();
            (key.clone(), Rate { per_second: more as f64 / interval_seconds.max(1e-9), is_new })
        };
        Self { interval_seconds, rates: now.iter().map(rate).collect() }
    }

    /// The rate; 0 if it is not counted.
    pub(crate) fn of(&self, key: &str) -> f64 {
        self.rates.get(key).map_or(0.0, |rate| rate.per_second)
    }

    /// The rate; `None`: it was not counted before, so it is not known when it came.
    pub(crate) fn if_known(&self, key: &str) -> Option<f64> {
        self.rates.get(key).filter(|rate| !rate.is_new).map(|rate| rate.per_second)
    }
}

/// Nanoseconds in a second: all of the time.
const SECOND_NS: f64 = 1e9;

/// How a worker spent the time, in nanoseconds per second. The parts add up to the time that is known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct WorkerTime {
    /// In the order of [`Regime::ALL`], without the time of waiting for a core.
    pub(crate) regimes: [f64; Regime::ALL.len()],
    /// Ready to run, and waiting for a core; `None`: the kernel does not show it.
    pub(crate) waiting: Option<f64>,
}

/// The parts of a worker's time, from 0 to 1. They add up to 1, or to 0 while its loop makes no progress.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct TimeShares {
    /// The part in which it had nothing to do.
    pub(crate) idle: f64,
    /// The part in which it took, classified and handed on packets.
    pub(crate) busy: f64,
    /// The part in which it was ready to run and another program had its core; `None`: the kernel does not
    /// show it.
    pub(crate) waiting: Option<f64>,
}

impl WorkerTime {
    /// The time with nothing to do.
    pub(crate) fn idle(&self) -> f64 {
        self.regimes[Regime::Idle as usize]
    }

    /// The time of all regimes but idle.
    pub(crate) fn busy(&self) -> f64 {
        self.regimes.iter().sum::<f64>() - self.idle()
    }

    /// The parts of the whole time.
    pub(crate) fn shares(&self) -> TimeShares {
        let whole = self.whole();
        let part = |ns: f64| if whole > 0.0 { (ns / whole).clamp(0.0, 1.0) } else { 0.0 };
        TimeShares { idle: part(self.idle()), busy: part(self.busy()), waiting: self.waiting.map(part) }
    }

    /// The sum of all parts; 0: nothing is known, because the loop makes no progress.
    pub(crate) fn whole(&self) -> f64 {
        self.regimes.iter().sum::<f64>() + self.waiting.unwrap_or(0.0)
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.regimes.iter_mut().zip(other.regimes).for_each(|(sum, part)| *sum += part);
        self.waiting = match (self.waiting, other.waiting) {
            (None, None) => None,
            (one, other) => Some(one.unwrap_or(0.0) + other.unwrap_or(0.0)),
        };
    }

    /// Takes the time of waiting out of the regimes, of which the loop counts it as a part. It is taken from
    /// idle first: a worker that sleeps waits when it is woken, and one that polls in vain loses nothing. So
    /// idle is what is certainly left, and busy is never less than it was.
    fn divided(regimes: [f64; Regime::ALL.len()], waiting: Option<f64>) -> Self {
        let counted: f64 = regimes.iter().sum();
        let waiting = waiting.map(|ns| ns.clamp(0.0, SECOND_NS));
        // The loop counts a long wait when it is over, which can be more than the time since the last sample.
        let whole = counted.min(SECOND_NS).max(waiting.unwrap_or(0.0));
        let left = whole - waiting.unwrap_or(0.0);
        let busy = counted - regimes[Regime::Idle as usize];
        let kept = if busy > 0.0 { (left / busy).min(1.0) } else { 0.0 };
        let mut divided = regimes.map(|ns| ns * kept);
        divided[Regime::Idle as usize] = (left - busy * kept).max(0.0);
        Self { regimes: divided, waiting }
    }
}

impl PerSecond {
    /// How the worker spent the time.
    pub(crate) fn worker_time(&self, worker: &WorkerState) -> WorkerTime {
        let number = worker.worker;
        let regimes = Regime::ALL.map(|regime| self.of(&worker_ns(number, regime.name())));
        let counted: f64 = regimes.iter().sum();
        let waiting = worker.thread.map(|thread| {
            // The kernel counts a wait when it is over. A thread that is ready and had no core is waiting.
            let ran = counted + self.of(&worker_cpu_ns(number));
            let is_starved = self.interval_seconds > 0.0 && ran <= 0.0 && thread.is_runnable;
            if is_starved { SECOND_NS } else { self.of(&worker_cpu_wait_ns(number)) }
        });
        WorkerTime::divided(regimes, waiting)
    }
}

/// Packets that were lost, or dropped otherwise than by the action of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DroppedPackets {
    /// `port 1`, `worker 0`, `sink files`, `sink files, sending`, `rule web`.
    pub(crate) place: String,
    /// The label `reason` of the metrics; of a rule, the label `action`.
    pub(crate) reason: &'static str,
    pub(crate) packets: u64,
}

impl DroppedPackets {
    /// The key of its rate.
    pub(crate) fn key(&self) -> String {
        format!("{} of {}", self.reason, self.place)
    }
}

/// All packets that were lost, or dropped by a limit, a sample or a sink, by place and reason; only reasons
/// that occurred. Several workers of a sink are one place.
pub(crate) fn dropped(state: &State) -> Vec<DroppedPackets> {
    let mut list = Vec::new();
    let mut add = |place: &str, reason: &'static str, packets: u64| {
        if packets > 0 {
            list.push(DroppedPackets { place: place.to_owned(), reason, packets });
        }
    };
    for port in &state.ports {
        let place = format!("port {}", port.port);
        port.lost_packets.iter().for_each(|(reason, packets)| add(&place, reason, *packets));
    }
    for worker in &state.workers {
        let place = format!("worker {}", worker.worker);
        worker.lost_packets.iter().for_each(|(reason, packets)| add(&place, reason, *packets));
        add(&place, "lost_exception", worker.outcomes[PacketOutcome::LostException]);
    }
    for sink in &state.sinks {
        let place = format!("sink {}", sink.name);
        sink.dropped().into_iter().for_each(|(reason, packets)| add(&place, reason, packets));
        let place = format!("sink {}, sending", sink.name);
        sum_by_reason(&sink.transmit).into_iter().for_each(|(reason, packets)| add(&place, reason, packets));
    }
    for rule in state.rules.iter().filter(|rule| rule.current) {
        let place = format!("rule {}", rule.name);
        let is_policed = |outcome| matches!(outcome, PacketOutcome::RateLimited | PacketOutcome::NotSampled);
        for (row, count) in rule.outcomes.iter().filter(|(row, _)| is_policed(row.outcome)) {
            add(&place, row.action.unwrap_or_default(), count.packets.unwrap_or(0));
        }
    }
    list
}

fn sum_by_reason(traffic: &[SinkTrafficState]) -> Reasons {
    let mut sums = Reasons::new();
    for (reason, packets) in traffic.iter().flat_map(|traffic| &traffic.dropped_packets) {
        *sums.entry(reason).or_default() += packets;
    }
    sums
}

fn counts(state: &State) -> impl Iterator<Item = (String, u64)> {
    let rules = state.rules.iter().flat_map(|rule| {
        [(rule_packets(&rule.name), rule.packets()), (rule_bytes(&rule.name), rule.bytes())]
    });
    let dropped = dropped(state).into_iter().map(|dropped| (dropped.key(), dropped.packets));
    let ports = state
        .ports
        .iter()
        .filter_map(|port| Some((port_packets(port.port), port.counters.as_ref()?.received_packets)));
    let sending = state.other_devices.iter().flat_map(|device| {
        let sent = |port: &PortState| port.counters.as_ref().map_or(0, |counters| counters.sent_packets);
        device.ports.iter().map(move |port| (sending_port(device, port), sent(port)))
    });
    let sinks = state
        .sinks
        .iter()
        .map(|sink| (sink_packets(&sink.name), sink.sum(|traffic| traffic.offered_packets)));
    let flows = state.sinks.iter().flat_map(|sink| {
        // Without those that may be of another flow, which the flow got when it took the place of that one.
        let packets = |flow: &TopFlowState| flow.packets.saturating_sub(flow.error);
        let flows = sink.top_flows.iter().flatten();
        flows.map(move |flow| (flow_packets(sink, flow), packets(flow)))
    });
    rules.chain(worker_counts(state)).chain(ports).chain(sending).chain(sinks).chain(flows).chain(dropped)
}

fn worker_counts(state: &State) -> impl Iterator<Item = (String, u64)> {
    let workers = state.workers.iter().flat_map(|worker| {
        let (packets, bytes) = (worker.received_packets, worker.received_bytes);
        [(worker_packets(worker.worker), packets), (worker_bytes(worker.worker), bytes)]
    });
    let times = state.workers.iter().flat_map(|worker| {
        worker.regimes_ns.iter().map(|(regime, ns)| (worker_ns(worker.worker, regime), *ns))
    });
    let threads = state.workers.iter().flat_map(|worker| {
        let of = worker.thread.map(|thread| {
            let (cpu, wait) = (worker_cpu_ns(worker.worker), worker_cpu_wait_ns(worker.worker));
            [(cpu, thread.cpu_ns), (wait, thread.cpu_wait_ns)]
        });
        of.into_iter().flatten()
    });
    workers.chain(times).chain(threads)
}

/// The key of a rule's packets. A key is a name of what is counted.
pub(crate) fn rule_packets(rule: &str) -> String {
    format!("packets of rule {rule}")
}

pub(crate) fn rule_bytes(rule: &str) -> String {
    format!("bytes of rule {rule}")
}

pub(crate) fn worker_packets(worker: u32) -> String {
    format!("packets of worker {worker}")
}

pub(crate) fn worker_bytes(worker: u32) -> String {
    format!("bytes of worker {worker}")
}

/// The key of a regime's time.
pub(crate) fn worker_ns(worker: u32, regime: &str) -> String {
    format!("{regime} of worker {worker}")
}

/// The key of the time for which a worker's thread was on a core.
pub(crate) fn worker_cpu_ns(worker: u32) -> String {
    format!("core of worker {worker}")
}

/// The key of the time for which a worker's thread waited for a core.
pub(crate) fn worker_cpu_wait_ns(worker: u32) -> String {
    format!("wait for a core of worker {worker}")
}

pub(crate) fn port_packets(port: u8) -> String {
    format!("packets of port {port}")
}

/// The key of a port's sent packets, which is also the port's name.
pub(crate) fn sending_port(device: &OtherDeviceState, port: &PortState) -> String {
    format!("{} port {}", device.name, port.port)
}

pub(crate) fn sink_packets(sink: &str) -> String {
    format!("packets of sink {sink}")
}

pub(crate) fn flow_packets(sink: &SinkState, flow: &TopFlowState) -> String {
    format!("flow {} of {}", flow.flow, sink.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Count;
    use crate::state::{RuleState, WorkerThreadState};

    #[test]
    fn rates_are_since_the_last_update() {
        let mut rates = Rates::default();
        let mut state = State { uptime_seconds: 1.0, ..State::default() };
        let mut rate = |state: &State| rates.update(state).of(&worker_packets(0));
        state.workers.push(WorkerState { received_packets: 100, ..WorkerState::default() });
        assert!((rate(&state) - 100.0).abs() < 1e-9);
        state.uptime_seconds = 3.0;
        state.workers[0].received_packets = 300;
        assert!((rate(&state) - 100.0).abs() < 1e-9);
        state.workers[0].received_packets = 300;
        state.uptime_seconds = 4.0;
        assert!(rate(&state).abs() < 1e-9);
    }

    /// Times of a worker in milliseconds: idle, poll, classify, sink; on a core, waiting for one.
    fn worker(regimes_ms: [u64; 4], cpu_ms: u64, wait_ms: u64) -> WorkerState {
        let ns = |ms: u64| ms * 1_000_000;
        let regimes = Regime::ALL.iter().zip(regimes_ms).map(|(regime, ms)| (regime.name(), ns(ms)));
        let thread = WorkerThreadState { cpu_ns: ns(cpu_ms), cpu_wait_ns: ns(wait_ms), is_runnable: true };
        WorkerState { regimes_ns: regimes.collect(), thread: Some(thread), ..WorkerState::default() }
    }

    /// The percent of idle, busy and waiting of the second after `before`.
    fn percent(before: WorkerState, after: WorkerState) -> [f64; 3] {
        let mut rates = Rates::default();
        let mut state = State { uptime_seconds: 10.0, workers: vec![before], ..State::default() };
        rates.update(&state);
        (state.uptime_seconds, state.workers) = (11.0, vec![after]);
        let time = rates.update(&state).worker_time(&state.workers[0]);
        assert!((time.whole() - time.idle() - time.busy() - time.waiting.unwrap_or(0.0)).abs() < 1.0);
        [time.idle(), time.busy(), time.waiting.unwrap_or(-1e7)].map(|ns| (ns / 1e7).round())
    }

    #[test]
    fn waiting_for_a_core_is_not_idle() {
        let at_first = || worker([5_000, 1_000, 1_000, 1_000], 6_000, 100);
        // It polls in vain, and another program has its core for three quarters of the time.
        assert_eq!(percent(at_first(), worker([6_000, 1_000, 1_000, 1_000], 6_250, 850)), [25.0, 0.0, 75.0]);
        // It is never without work, and has its core for half of the time.
        assert_eq!(percent(at_first(), worker([5_000, 1_600, 1_200, 1_200], 6_500, 600)), [0.0, 50.0, 50.0]);
        // Waits are taken from idle first.
        assert_eq!(percent(at_first(), worker([5_700, 1_100, 1_100, 1_100], 6_400, 300)), [50.0, 30.0, 20.0]);
        let unknown = WorkerState { thread: None, ..worker([5_900, 1_100, 1_000, 1_000], 0, 0) };
        assert_eq!(percent(at_first(), unknown), [90.0, 10.0, -1.0]);
    }

    #[test]
    fn a_worker_without_a_core_waits() {
        let at_first = || worker([5_000, 1_000, 0, 0], 6_000, 100);
        // The kernel counts the wait when it is over, and so does the loop.
        assert_eq!(percent(at_first(), at_first()), [0.0, 0.0, 100.0]);
        let late = worker([8_100, 1_100, 0, 0], 6_150, 3_150);
        assert_eq!(percent(at_first(), late), [0.0, 0.0, 100.0], "it waited for more than the second");
        // Without progress on a core, nothing is known, and nothing is called idle.
        assert_eq!(percent(at_first(), worker([5_000, 1_000, 0, 0], 7_000, 100)), [0.0, 0.0, 0.0]);
        // The same state twice shows no time.
        let state = State { uptime_seconds: 10.0, workers: vec![at_first()], ..State::default() };
        let mut rates = Rates::default();
        rates.update_workers(&state);
        assert_eq!(rates.update_workers(&state).worker_time(&state.workers[0]).whole(), 0.0);
    }

    #[test]
    fn the_times_of_workers_are_added() {
        let mut sum = WorkerTime::default();
        sum.add(&WorkerTime { regimes: [1.0, 2.0, 3.0, 4.0], waiting: None });
        assert_eq!(sum.waiting, None);
        sum.add(&WorkerTime { regimes: [1.0; 4], waiting: Some(5.0) });
        assert_eq!((sum.idle(), sum.busy(), sum.whole()), (2.0, 12.0, 19.0));
    }

    #[test]
    fn drops_are_listed_by_place_and_reason() {
        let traffic = |worker, reason, packets| SinkTrafficState {
            worker,
            dropped_packets: [(reason, packets)].into(),
            ..SinkTrafficState::default()
        };
        let sink = SinkState {
            name: "files".into(),
            workers: vec![traffic(0, "disk_full", 3), traffic(1, "disk_full", 4)],
            transmit: vec![traffic(0, "too_long", 5)],
            ..SinkState::default()
        };
        let port =
            PortState { port: 2, lost_packets: [("runt", 0), ("wire", 7)].into(), ..PortState::default() };
        let rule = |name: &str, current| RuleState {
            name: name.into(),
            current,
            outcomes: [
                (PacketOutcome::Delivered, Count::of(1, 1)),
                (PacketOutcome::RateLimited, Count::of(8, 0)),
                (PacketOutcome::NotSampled, Count::of(9, 0)),
            ]
            .into(),
            ..RuleState::default()
        };
        let worker = WorkerState {
            worker: 1,
            lost_packets: [("unknown_tag", 6)].into(),
            outcomes: [(PacketOutcome::LostException, 2)].into(),
            ..WorkerState::default()
        };
        let (rules, sinks) = (vec![rule("web", true), rule("earlier", false)], vec![sink]);
        let state = State { rules, sinks, ports: vec![port], workers: vec![worker], ..State::default() };
        let list: Vec<String> =
            dropped(&state).into_iter().map(|one| format!("{}: {}", one.key(), one.packets)).collect();
        let expected = [
            "wire of port 2: 7",
            "unknown_tag of worker 1: 6",
            "lost_exception of worker 1: 2",
            "disk_full of sink files: 7",
            "too_long of sink files, sending: 5",
            "rate_limited of rule web: 8",
            "not_sampled of rule web: 9",
        ];
        assert_eq!(list, expected);
    }
}

//! What `steerd top` shows: the counts of rules, workers, sinks and ports with their rates.
//!
//! Rates are averages between two samples of the state. A sample is taken when somebody asks, at most once a
//! second: the interval is in the answer.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::rates::{self, DroppedPackets, PerSecond, Rates, TimeShares};
use crate::state::{
    DeviceCondition, PortState, RuleState, SinkState, State, TOP_FLOWS_MAX, TopFlowState, WorkerState,
};

/// Described in docs/reference/api.md.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Top {
    pub(crate) version: String,
    pub(crate) uptime_seconds: f64,
    /// The time that the rates are averages of. It is the time since the start in the first answer.
    pub(crate) interval_seconds: f64,
    pub(crate) ready: bool,
    /// Why it is not ready, as /readyz answers; `null`: it is.
    #[serde(default)]
    pub(crate) problem: Option<String>,
    /// The fault, although packets are steered; `null`: none.
    #[serde(default)]
    pub(crate) degraded: Option<String>,
    pub(crate) device: String,
    /// Whether the device works, as far as its events show it.
    #[serde(default)]
    pub(crate) device_condition: DeviceCondition,
    pub(crate) policy: String,
    pub(crate) generation: u64,
    /// The result of the packet accounting.
    pub(crate) accounting: String,
    /// All losses by reason, in one line.
    pub(crate) lost: String,
    pub(crate) rules: Vec<Rule>,
    pub(crate) workers: Vec<Worker>,
    pub(crate) sinks: Vec<Sink>,
    pub(crate) ports: Vec<Port>,
    /// The flows with most packets of those that sinks count, at most [`TOP_FLOWS_MAX`].
    pub(crate) flows: Vec<FlowRate>,
    /// Packets that were lost, or dropped by a limit, a sample or a sink, by place and reason.
    #[serde(default)]
    pub(crate) drops: Vec<DropRate>,
}

/// Packets that were dropped at one place for one reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct DropRate {
    /// `port 1`, `worker 0`, `sink files`, `sink files, sending`, `rule web`.
    pub(crate) place: String,
    /// The reason as a label of the metrics.
    pub(crate) reason: String,
    pub(crate) packets: u64,
    pub(crate) packets_per_second: f64,
}

/// The sums over all workers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sink {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) offered: u64,
    pub(crate) delivered: u64,
    pub(crate) dropped: u64,
    /// The part of these for each reason that occurred.
    #[serde(default)]
    pub(crate) dropped_by_reason: BTreeMap<String, u64>,
    /// The reason why it has been losing all its packets; `null`: it passes packets on, or has had none.
    #[serde(default)]
    pub(crate) losing: Option<String>,
    /// The packets sent by a port, for clients or the host. `null`: the sink does not send.
    pub(crate) sent: Option<u64>,
    /// Offered.
    pub(crate) packets_per_second: f64,
}

/// Packets of one connection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct FlowRate {
    /// Addresses, ports and protocol.
    pub(crate) flow: String,
    /// The sink that counts it.
    pub(crate) sink: String,
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    /// `null`: the flow was not among those with most packets before, so it is not known when its packets
    /// came.
    pub(crate) packets_per_second: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Rule {
    pub(crate) name: String,
    pub(crate) action: String,
    /// The parts that decide it, in words.
    pub(crate) placement: String,
    /// The device does not count all packets of this rule.
    pub(crate) uncounted: bool,
    /// All packets of the rule, with any outcome.
    pub(crate) packets: u64,
    /// The part of them that workers dropped because of `limit` or `sample`.
    #[serde(default)]
    pub(crate) policed: u64,
    /// `null`: not counted.
    pub(crate) bytes: Option<u64>,
    pub(crate) packets_per_second: f64,
    pub(crate) bytes_per_second: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Worker {
    pub(crate) worker: u32,
    /// `null`: any.
    pub(crate) core: Option<usize>,
    pub(crate) stalled: bool,
    /// The worker's receive queue is in its error state.
    #[serde(default)]
    pub(crate) failed: bool,
    /// How often it has recovered its receive queue.
    #[serde(default)]
    pub(crate) queue_recoveries: u64,
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) packets_per_second: f64,
    pub(crate) bytes_per_second: f64,
    /// Received and lost, not dropped by a rule.
    pub(crate) lost: u64,
    /// The part of its time in which it had nothing to do, from 0 to 1. With `busy` and `waiting` it adds up
    /// to 1, or to 0 while its loop makes no progress.
    pub(crate) idle: f64,
    /// The part in which it took, classified and handed on packets.
    #[serde(default)]
    pub(crate) busy: f64,
    /// The part in which it was ready to run and another program had its core; `null`: the kernel does not
    /// show it.
    #[serde(default)]
    pub(crate) waiting: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Port {
    pub(crate) port: u8,
    pub(crate) wire: String,
    /// `null`: unknown.
    pub(crate) up: Option<bool>,
    /// Why it is not up, or why that is unknown; `null`: it is up.
    #[serde(default)]
    pub(crate) problem: Option<String>,
    /// `null`: the device does not count them.
    pub(crate) received: Option<u64>,
    pub(crate) kernel: Option<u64>,
    pub(crate) lost: u64,
    pub(crate) packets_per_second: Option<f64>,
}

/// Keeps the counts of the last sample.
#[derive(Debug, Default)]
pub(crate) struct Sampler(Rates);

impl Sampler {
    /// The counts of `state` and their rates since the last call, or since the start.
    pub(crate) fn top(&mut self, state: &State) -> Top {
        let rates = &self.0.update(state);
        Top {
            version: state.version.to_owned(),
            uptime_seconds: state.uptime_seconds,
            interval_seconds: rates.interval_seconds,
            ready: state.ready,
            problem: state.problem.clone(),
            degraded: state.degraded.clone(),
            device: state.device.name.clone(),
            device_condition: state.device.condition,
            policy: state.policy.source.clone(),
            generation: state.policy.generation,
            accounting: state.accounting.verdict(),
            lost: crate::terminal::table::losses(state),
            rules: state.rules.iter().filter(|rule| rule.current).map(|one| rule(one, rates)).collect(),
            workers: state.workers.iter().map(|one| worker(one, rates)).collect(),
            sinks: state.sinks.iter().map(|one| sink(one, rates)).collect(),
            flows: flows(&state.sinks, rates),
            ports: state.ports.iter().map(|one| port(one, rates)).collect(),
            drops: rates::dropped(state).iter().map(|one| dropped(one, rates)).collect(),
        }
    }
}

fn rule(rule: &RuleState, rates: &PerSecond) -> Rule {
    let bytes = (!crate::terminal::table::bytes_are_unknown(rule)).then(|| rule.bytes());
    Rule {
        name: rule.name.clone(),
        action: rule.action.clone(),
        placement: rule.decided_in(),
        uncounted: rule.uncounted,
        packets: rule.packets(),
        policed: rule.policed_packets(),
        bytes,
        packets_per_second: rates.of(&rates::rule_packets(&rule.name)),
        bytes_per_second: bytes.map(|_| rates.of(&rates::rule_bytes(&rule.name))),
    }
}

fn worker(worker: &WorkerState, rates: &PerSecond) -> Worker {
    let number = worker.worker;
    let TimeShares { idle, busy, waiting } = rates.worker_time(worker).shares();
    Worker {
        worker: number,
        core: worker.place.core,
        stalled: worker.stalled,
        failed: worker.failed,
        queue_recoveries: worker.queue_recoveries,
        packets: worker.received_packets,
        bytes: worker.received_bytes,
        packets_per_second: rates.of(&rates::worker_packets(number)),
        bytes_per_second: rates.of(&rates::worker_bytes(number)),
        lost: worker.lost_packets.values().sum(),
        idle,
        busy,
        waiting,
    }
}

fn sink(sink: &SinkState, rates: &PerSecond) -> Sink {
    Sink {
        name: sink.name.clone(),
        kind: sink.kind.to_owned(),
        offered: sink.sum(|traffic| traffic.offered_packets),
        delivered: sink.sum(|traffic| traffic.delivered_packets),
        dropped: sink.sum(|traffic| traffic.dropped_packets.values().sum()),
        dropped_by_reason: dropped_by_reason(sink),
        losing: sink.losing.map(str::to_owned),
        sent: (!sink.transmit.is_empty())
            .then(|| sink.transmit.iter().map(|sent| sent.delivered_packets).sum()),
        packets_per_second: rates.of(&rates::sink_packets(&sink.name)),
    }
}

fn dropped_by_reason(sink: &SinkState) -> BTreeMap<String, u64> {
    let occurred = sink.dropped().into_iter().filter(|(_, packets)| *packets > 0);
    occurred.map(|(reason, packets)| (reason.to_owned(), packets)).collect()
}

fn dropped(dropped: &DroppedPackets, rates: &PerSecond) -> DropRate {
    DropRate {
        place: dropped.place.clone(),
        reason: dropped.reason.to_owned(),
        packets: dropped.packets,
        packets_per_second: rates.of(&dropped.key()),
    }
}

fn flows(sinks: &[SinkState], rates: &PerSecond) -> Vec<FlowRate> {
    let counted = sinks.iter().flat_map(|sink| sink.top_flows.iter().flatten().map(move |flow| (sink, flow)));
    let rate = |(sink, flow): (&SinkState, &TopFlowState)| FlowRate {
        flow: flow.flow.clone(),
        sink: sink.name.clone(),
        packets: flow.packets,
        bytes: flow.bytes,
        packets_per_second: rates.if_known(&rates::flow_packets(sink, flow)),
    };
    let mut flows: Vec<FlowRate> = counted.map(rate).collect();
    flows.sort_by_key(|flow| std::cmp::Reverse(flow.packets));
    flows.truncate(TOP_FLOWS_MAX);
    flows
}

fn port(port: &PortState, rates: &PerSecond) -> Port {
    let received = port.counters.as_ref().map(|counters| counters.received_packets);
    Port {
        port: port.port,
        wire: port.wire.clone(),
        up: port.up,
        problem: port.problem.clone(),
        received,
        kernel: port.counters.as_ref().map(|counters| counters.kernel_packets),
        lost: port.lost_packets.values().sum(),
        packets_per_second: received.map(|_| rates.of(&rates::port_packets(port.port))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::{Count, PacketOutcome};
    use crate::state::{SinkTrafficState, WorkerThreadState};

    #[test]
    fn rates_are_averages_since_the_last_sample() {
        let mut sampler = Sampler::default();
        let rule = |packets| RuleState {
            name: "dns".into(),
            current: true,
            outcomes: [(PacketOutcome::Delivered, Count::of(packets, 100 * packets))].into(),
            ..RuleState::default()
        };
        let mut state = State { uptime_seconds: 10.0, rules: vec![rule(1000)], ..State::default() };
        let first = sampler.top(&state);
        assert_eq!((first.interval_seconds, first.rules[0].packets_per_second), (10.0, 100.0));
        state = State { uptime_seconds: 12.0, rules: vec![rule(1500)], ..State::default() };
        let second = sampler.top(&state);
        assert_eq!((second.interval_seconds, second.rules[0].packets_per_second), (2.0, 250.0));
        assert_eq!(second.rules[0].bytes_per_second, Some(25_000.0));
    }

    #[test]
    fn policed_packets_are_shown_beside_all_of_a_rule() {
        let rule = RuleState {
            current: true,
            outcomes: [
                (PacketOutcome::Delivered, Count::of(552, 0)),
                (PacketOutcome::RateLimited, Count::of(1_200, 0)),
                (PacketOutcome::NotSampled, Count::of(68, 0)),
            ]
            .into(),
            ..RuleState::default()
        };
        let top = Sampler::default().top(&State { rules: vec![rule], ..State::default() });
        assert_eq!((top.rules[0].packets, top.rules[0].policed), (1_820, 1_268));
    }

    #[test]
    fn a_worker_is_idle_by_time_and_not_by_polls() {
        let mut sampler = Sampler::default();
        let worker = |idle, sink, polls| WorkerState {
            regimes_ns: [("idle", idle), ("sink", sink)].into(),
            polls,
            empty_polls: polls,
            ..WorkerState::default()
        };
        let mut idle = |uptime_seconds, worker| {
            let state = State { uptime_seconds, workers: vec![worker], ..State::default() };
            sampler.top(&state).workers[0].idle
        };
        assert_eq!(idle(1.0, worker(1_000, 0, 10)), 1.0);
        // No packets were received, but the sinks had work for three quarters of the time.
        assert_eq!(idle(2.0, worker(1_250, 750, 20)), 0.25);
    }

    #[test]
    fn the_parts_of_a_workers_time_add_up() {
        let mut sampler = Sampler::default();
        let mut worker = |uptime_seconds, idle, sink, cpu_wait_ns| {
            let thread = WorkerThreadState { cpu_wait_ns, ..WorkerThreadState::default() };
            let worker = WorkerState {
                regimes_ns: [("idle", idle), ("sink", sink)].into(),
                thread: Some(thread),
                ..WorkerState::default()
            };
            let state = State { uptime_seconds, workers: vec![worker], ..State::default() };
            let worker = sampler.top(&state).workers.remove(0);
            (worker.idle, worker.busy, worker.waiting)
        };
        worker(1.0, 1_000_000_000, 0, 0);
        let starved = worker(2.0, 1_750_000_000, 250_000_000, 500_000_000);
        assert_eq!(starved, (0.25, 0.25, Some(0.5)), "the loop alone is idle for three quarters");
        assert_eq!(
            worker(3.0, 1_750_000_000, 250_000_000, 500_000_000),
            (0.0, 0.0, Some(0.0)),
            "no progress"
        );
    }

    #[test]
    fn drops_have_reasons_and_rates() {
        let mut sampler = Sampler::default();
        let state = |uptime_seconds, packets| {
            let traffic = SinkTrafficState {
                dropped_packets: [("disk_full", packets), ("ring_full", 0)].into(),
                ..SinkTrafficState::default()
            };
            let sink = SinkState { name: "files".into(), workers: vec![traffic], ..SinkState::default() };
            let problem = Some("not ready: port 1 is down".to_owned());
            let port = PortState { problem: Some("pull".into()), ..PortState::default() };
            State { uptime_seconds, problem, sinks: vec![sink], ports: vec![port], ..State::default() }
        };
        assert_eq!(sampler.top(&state(1.0, 0)).drops, []);
        let top = sampler.top(&state(3.0, 30));
        let expected = DropRate {
            place: "sink files".into(),
            reason: "disk_full".into(),
            packets: 30,
            packets_per_second: 15.0,
        };
        assert_eq!(top.drops, [expected]);
        assert_eq!(top.sinks[0].dropped_by_reason, [("disk_full".to_owned(), 30)].into());
        assert_eq!(top.problem.as_deref(), Some("not ready: port 1 is down"));
        assert_eq!(top.ports[0].problem.as_deref(), Some("pull"));
    }

    /// A rule that counts again from zero has no negative rate, and one that is not in force is left out.
    #[test]
    fn only_rules_in_force_are_listed_and_no_rate_is_negative() {
        let mut sampler = Sampler::default();
        let rule = |name: &str, current, packets| RuleState {
            name: name.into(),
            current,
            outcomes: [(PacketOutcome::Dropped, Count::of(packets, 0))].into(),
            ..RuleState::default()
        };
        let mut state = State { uptime_seconds: 1.0, ..State::default() };
        state.rules = vec![rule("a", true, 50), rule("b", false, 7)];
        assert_eq!(sampler.top(&state).rules.len(), 1);
        state.uptime_seconds = 2.0;
        state.rules = vec![rule("a", true, 5)];
        assert_eq!(sampler.top(&state).rules[0].packets_per_second, 0.0);
    }

    fn flow(flow: &str, packets: u64, error: u64) -> TopFlowState {
        TopFlowState { flow: flow.into(), packets, error, bytes: 100 * packets }
    }

    fn flows_of(name: &str, flows: Vec<TopFlowState>) -> SinkState {
        SinkState { name: name.into(), kind: "count", top_flows: Some(flows), ..SinkState::default() }
    }

    #[test]
    fn flows_of_all_sinks_have_rates() {
        let mut sampler = Sampler::default();
        let mut state = State { uptime_seconds: 10.0, ..State::default() };
        state.sinks = vec![
            flows_of("all", vec![flow("a", 1000, 0), flow("b", 500, 0)]),
            flows_of("web", vec![flow("a", 700, 0)]),
            SinkState::default(),
        ];
        let first = sampler.top(&state);
        let names: Vec<_> =
            first.flows.iter().map(|flow| (flow.flow.as_str(), flow.sink.as_str(), flow.packets)).collect();
        assert_eq!(names, [("a", "all", 1000), ("a", "web", 700), ("b", "all", 500)]);
        assert_eq!(first.flows[0].packets_per_second, Some(100.0));
        state.uptime_seconds = 12.0;
        // `c` has the place of another flow, with its 300 packets; `d` has none, but was not listed before.
        state.sinks[0] = flows_of("all", vec![flow("a", 1600, 0), flow("c", 600, 300), flow("d", 450, 0)]);
        let second = sampler.top(&state);
        let rate = |name: &str| {
            let of = second.flows.iter().find(|flow| flow.flow == name && flow.sink == "all");
            of.map(|flow| flow.packets_per_second)
        };
        assert_eq!((rate("a"), rate("c"), rate("d")), (Some(Some(300.0)), Some(None), Some(None)));
        state.uptime_seconds = 13.0;
        state.sinks[0] = flows_of("all", vec![flow("a", 1600, 0), flow("c", 650, 300), flow("d", 440, 440)]);
        let third = sampler.top(&state);
        let rates: Vec<_> = third.flows.iter().map(|flow| flow.packets_per_second).collect();
        assert_eq!(rates, [Some(0.0), Some(0.0), Some(50.0), Some(0.0)], "{:?}", third.flows);
    }

    #[test]
    fn the_list_of_flows_is_limited() {
        let many = |sink: u64| (0..100).map(|n| flow(&format!("{n}"), 1000 * sink + n, 0)).collect();
        let sinks = vec![flows_of("a", many(1)), flows_of("b", many(2))];
        let top = Sampler::default().top(&State { uptime_seconds: 1.0, sinks, ..State::default() });
        assert_eq!((top.flows.len(), top.flows[0].packets), (TOP_FLOWS_MAX, 2099));
        assert!(top.flows.iter().all(|flow| flow.sink == "b"));
    }
}

//! Rates of the counts in a `State`: averages between two states, or over a run. The live table of `run`, its
//! summary and the API's `top` use them.

use std::collections::HashMap;
use std::time::Duration;

use crate::state::{OtherDeviceState, PortState, SinkState, State, TopFlowState};

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
        let interval_seconds = state.uptime_seconds - self.uptime_seconds;
        self.uptime_seconds = state.uptime_seconds;
        let now = counts(state).collect();
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

fn counts(state: &State) -> impl Iterator<Item = (String, u64)> {
    let rules = state.rules.iter().flat_map(|rule| {
        [(rule_packets(&rule.name), rule.packets()), (rule_bytes(&rule.name), rule.bytes())]
    });
    let workers = state.workers.iter().flat_map(|worker| {
        let (packets, bytes) = (worker.received_packets, worker.received_bytes);
        [(worker_packets(worker.worker), packets), (worker_bytes(worker.worker), bytes)]
    });
    let times = state.workers.iter().flat_map(|worker| {
        worker.regimes_ns.iter().map(|(regime, ns)| (worker_ns(worker.worker, regime), *ns))
    });
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
    rules.chain(workers).chain(times).chain(ports).chain(sending).chain(sinks).chain(flows)
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
    use crate::state::WorkerState;

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
}

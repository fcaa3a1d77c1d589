//! The state that the page at `/` gets each second, as a server-sent event: without what a page need not have
//! each second, so that a policy of ten thousand rules stays below a megabyte. docs/reference/page.md
//! describes the keys.

use serde::Serialize;
use worker::sinks::SinkStatus;

use crate::rates::{PerSecond, TimeShares};
use crate::state::{
    Accounting, DeviceState, OtherDeviceState, PolicyState, PortState, Reasons, RuleState, SinkState,
    SinkTrafficState, State, WorkerState,
};
use crate::terminal::output::Versioned;

/// Keys that the state has, too, have the same meaning there.
#[derive(Serialize)]
struct Live<'s> {
    version: &'s str,
    started_at_seconds: f64,
    uptime_seconds: f64,
    ready: bool,
    degraded: Option<&'s str>,
    device: &'s DeviceState,
    other_devices: &'s [OtherDeviceState],
    policy: &'s PolicyState,
    log_lines_dropped: u64,
    rules: Vec<LiveRule<'s>>,
    workers: Vec<LiveWorker<'s>>,
    sinks: Vec<LiveSink<'s>>,
    ports: &'s [PortState],
    accounting: &'s Accounting,
}

/// The name of a rule in force, its packets, its bytes (`null`: not counted), and whether the device does not
/// count all of its packets: a list, which is half as long as an object.
#[derive(Serialize)]
struct LiveRule<'s>(&'s str, u64, Option<u64>, bool);

#[derive(Serialize)]
struct LiveWorker<'s> {
    worker: u32,
    core: Option<usize>,
    received_packets: u64,
    received_bytes: u64,
    lost_packets: &'s Reasons,
    out_of_buffer_packets: Option<u64>,
    failed: bool,
    stalled: bool,
    queue_recoveries: u64,
    /// The parts of its time since the event before, or since the start.
    #[serde(flatten)]
    time: TimeShares,
    warnings: &'s [String],
}

/// The sums over all workers.
#[derive(Serialize)]
struct LiveSink<'s> {
    name: &'s str,
    kind: &'s str,
    attached_to: Option<&'s str>,
    losing: Option<&'s str>,
    offered_packets: u64,
    delivered_packets: u64,
    delivered_bytes: u64,
    dropped_packets: Reasons,
    sent_packets: Option<u64>,
    status: &'s SinkStatus,
}

/// The event of a state. `rates`: those of the workers since the event before.
pub(super) fn event(state: &State, rates: &PerSecond) -> Result<Vec<u8>, serde_json::Error> {
    let live = Live {
        version: state.version,
        started_at_seconds: state.started_at_seconds,
        uptime_seconds: state.uptime_seconds,
        ready: state.ready,
        degraded: state.degraded.as_deref(),
        device: &state.device,
        other_devices: &state.other_devices,
        policy: &state.policy,
        log_lines_dropped: state.log_lines_dropped,
        rules: state.rules.iter().filter(|rule| rule.current).map(rule).collect(),
        workers: state.workers.iter().map(|one| worker(one, rates)).collect(),
        sinks: state.sinks.iter().map(sink).collect(),
        ports: &state.ports,
        accounting: &state.accounting,
    };
    let mut event = b"data: ".to_vec();
    // JSON without blanks has no line breaks, which would end the event.
    serde_json::to_writer(&mut event, &Versioned::new(&live))?;
    event.extend_from_slice(b"\n\n");
    Ok(event)
}

fn rule(rule: &RuleState) -> LiveRule<'_> {
    let bytes = (!crate::terminal::table::bytes_are_unknown(rule)).then(|| rule.bytes());
    LiveRule(&rule.name, rule.packets(), bytes, rule.uncounted)
}

fn worker<'s>(worker: &'s WorkerState, rates: &PerSecond) -> LiveWorker<'s> {
    LiveWorker {
        worker: worker.worker,
        core: worker.place.core,
        received_packets: worker.received_packets,
        received_bytes: worker.received_bytes,
        lost_packets: &worker.lost_packets,
        out_of_buffer_packets: worker.out_of_buffer_packets,
        failed: worker.failed,
        stalled: worker.stalled,
        queue_recoveries: worker.queue_recoveries,
        time: rates.worker_time(worker).shares(),
        warnings: &worker.warnings,
    }
}

fn sink(sink: &SinkState) -> LiveSink<'_> {
    let sent = |traffic: &SinkTrafficState| traffic.delivered_packets;
    LiveSink {
        name: &sink.name,
        kind: sink.kind,
        attached_to: sink.attached_to.as_deref(),
        losing: sink.losing,
        offered_packets: sink.sum(|traffic| traffic.offered_packets),
        delivered_packets: sink.sum(|traffic| traffic.delivered_packets),
        delivered_bytes: sink.sum(|traffic| traffic.delivered_bytes),
        dropped_packets: sink.dropped(),
        sent_packets: (!sink.transmit.is_empty()).then(|| sink.transmit.iter().map(sent).sum()),
        status: &sink.status,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::{Count, PacketOutcome};
    use crate::rates::Rates;
    use crate::state::{DeviceCondition, WorkerThreadState};

    fn state(rules: usize) -> State {
        let rule = |number| RuleState {
            name: format!("rule-{number:010}"),
            current: true,
            outcomes: [(PacketOutcome::Dropped, Count::of(1 << 40, 1 << 46))].into(),
            ..RuleState::default()
        };
        let earlier = RuleState { name: "earlier".into(), ..RuleState::default() };
        State { rules: (0..rules).map(rule).chain([earlier]).collect(), ..State::default() }
    }

    fn event_of(state: &State) -> Vec<u8> {
        event(state, &Rates::default().update_workers(state)).expect("an event")
    }

    #[test]
    fn an_event_is_one_line_whatever_names_contain() {
        let thread = WorkerThreadState { cpu_wait_ns: 500_000_000, ..WorkerThreadState::default() };
        let worker = WorkerState {
            regimes_ns: [("idle", 750_000_000), ("sink", 250_000_000)].into(),
            thread: Some(thread),
            ..WorkerState::default()
        };
        let mut state = State { uptime_seconds: 1.0, workers: vec![worker], ..state(1) };
        state.rules[0].name = "a\n\ndata: b\r\n".into();
        state.device.condition = DeviceCondition::Failed;
        let event = String::from_utf8(event_of(&state)).expect("text");
        let json = event.strip_prefix("data: ").and_then(|rest| rest.strip_suffix("\n\n")).expect("an event");
        assert!(!json.contains(['\n', '\r']), "{json}");
        let live: serde_json::Value = serde_json::from_str(json).expect("JSON");
        let worker = &live["workers"][0];
        assert_eq!([&worker["idle"], &worker["busy"], &worker["waiting"]], [0.25, 0.25, 0.5]);
        assert_eq!(live["rules"], serde_json::json!([["a\n\ndata: b\r\n", 1u64 << 40, 1u64 << 46, false]]));
        assert_eq!(live["device"]["condition"], "failed");
    }

    #[test]
    fn ten_thousand_rules_are_less_than_a_megabyte() {
        let event = event_of(&state(10_000));
        assert!((100_000..1_000_000).contains(&event.len()), "{} bytes", event.len());
    }
}

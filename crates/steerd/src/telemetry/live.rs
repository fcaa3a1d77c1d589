//! The state that the page at `/` gets each second, as a server-sent event: without what a page need not have
//! each second, so that a policy of ten thousand rules stays below a megabyte. docs/reference/page.md
//! describes the keys.

use std::collections::BTreeMap;

use serde::Serialize;
use worker::sinks::SinkStatus;

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
    regimes_ns: &'s BTreeMap<&'static str, u64>,
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

/// The event of a state.
pub(super) fn event(state: &State) -> Result<Vec<u8>, serde_json::Error> {
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
        workers: state.workers.iter().map(worker).collect(),
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

fn worker(worker: &WorkerState) -> LiveWorker<'_> {
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
        regimes_ns: &worker.regimes_ns,
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
    use crate::state::DeviceCondition;

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

    #[test]
    fn an_event_is_one_line_whatever_names_contain() {
        let mut state = state(1);
        state.rules[0].name = "a\n\ndata: b\r\n".into();
        state.device.condition = DeviceCondition::Failed;
        let event = String::from_utf8(event(&state).expect("an event")).expect("text");
        let json = event.strip_prefix("data: ").and_then(|rest| rest.strip_suffix("\n\n")).expect("an event");
        assert!(!json.contains(['\n', '\r']), "{json}");
        let live: serde_json::Value = serde_json::from_str(json).expect("JSON");
        assert_eq!(live["rules"], serde_json::json!([["a\n\ndata: b\r\n", 1u64 << 40, 1u64 << 46, false]]));
        assert_eq!(live["device"]["condition"], "failed");
    }

    #[test]
    fn ten_thousand_rules_are_less_than_a_megabyte() {
        let event = event(&state(10_000)).expect("an event");
        assert!((100_000..1_000_000).contains(&event.len()), "{} bytes", event.len());
    }
}

//! The metrics in Prometheus' text format and in that of OpenMetrics, made from a `State`.
//!
//! [`metrics`] declares each metric once: name, help text, type, labels, and the function that reads its
//! series. `http` calls `render` or `render_open` when its page is outdated; the packet path never touches a
//! metric. Base units, `_total` on counters and HELP on every family, as promtool requires.

#[cfg(test)]
mod dashboard;
pub(super) mod open_metrics;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fs;

use program::{Decider, RuleDeciders};
use prometheus::TextEncoder;
use prometheus::proto::{self, Bucket, Histogram, LabelPair, MetricFamily, MetricType};

use crate::effects::Effect;
use crate::outcome::{Count, PacketOutcome};
use crate::port_counters::{self, PortCounters, PortMetric};
use crate::state::{
    Accounting, Buckets, DeviceCondition, DeviceState, ExportState, OtherDeviceState, PortClaims,
    PortFilters, PortState, Reasons, RuleState, SinkState, SinkTrafficState, State, WorkerState,
};

/// All metrics of a state in Prometheus' text format.
pub(crate) fn render(state: &State) -> Result<String, prometheus::Error> {
    TextEncoder::new().encode_to_string(&families(state))
}

/// All metrics of a state in the text format of OpenMetrics.
pub(crate) fn render_open(state: &State) -> String {
    open_metrics::encode(&families(state))
}

fn families(state: &State) -> Vec<MetricFamily> {
    let sources = Sources { state, rules: exported(&state.rules), process: ProcessUsage::read() };
    metrics().filter_map(|metric| metric.family(metric.series(&sources))).collect()
}

/// The sources of the metrics.
struct Sources<'s> {
    state: &'s State,
    rules: Vec<Cow<'s, RuleState>>,
    /// `None` where /proc is hidden.
    process: Option<ProcessUsage>,
}

impl Sources<'_> {
    /// `None` if the device does not count what its ports receive.
    fn accounting(&self) -> Option<&Accounting> {
        Some(&self.state.accounting).filter(|accounting| accounting.ports_counted)
    }
}

/// The values of the labels, in the order of their names, and the value of one series.
type Series<'s> = (Vec<Cow<'s, str>>, Value<'s>);

enum Value<'s> {
    Number(f64),
    /// With the number of the buckets' units in one unit of the metric.
    Buckets(&'s Buckets, f64),
}

#[derive(Clone, Copy)]
struct Metric {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    /// The names of the labels.
    labels: &'static [&'static str],
    source: Source,
}

#[derive(Clone, Copy)]
enum Source {
    State(ReadSeries),
    /// A counter of the ports whose device counts what they receive.
    Ports(fn(&PortCounters) -> u64),
}

/// Returns nothing if the value is not known.
type ReadSeries = for<'s> fn(&'s Sources<'s>) -> Vec<Series<'s>>;

const fn gauge(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
    series: ReadSeries,
) -> Metric {
    Metric { name, help, kind: MetricType::GAUGE, labels, source: Source::State(series) }
}

const fn counter(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
    series: ReadSeries,
) -> Metric {
    Metric { kind: MetricType::COUNTER, ..gauge(name, labels, help, series) }
}

const fn histogram(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
    series: ReadSeries,
) -> Metric {
    Metric { kind: MetricType::HISTOGRAM, ..gauge(name, labels, help, series) }
}

/// A row for each metric. docs/reference/monitoring.md lists the same rows. There are three tables because
/// the two groups of port counters, which [`port_counters`] declares, stand between them.
fn metrics() -> impl Iterator<Item = Metric> {
    let ports = |rows: &'static [PortMetric]| rows.iter().map(Metric::of_ports);
    let received = BEFORE_PORT_COUNTERS.iter().copied().chain(ports(port_counters::RECEIVED));
    let others = CLAIMS_AND_FILTERS.iter().copied().chain(ports(port_counters::SPLIT_AND_SENT));
    received.chain(others).chain(AFTER_PORT_COUNTERS.iter().copied())
}

#[rustfmt::skip]
static BEFORE_PORT_COUNTERS: &[Metric] = &[
    gauge("steerd_build_info", &["version"], "The version of this binary; always 1.",
        |s| vec![(vec![s.state.version.into()], Value::Number(1.0))]),
    gauge("steerd_start_time_seconds", &[], "When the daemon started, in Unix time.",
        |s| one(s.state.started_at_seconds)),
    gauge("steerd_ready", &[],
        "1 while the policy is installed, all workers and engines make progress and all ports are up.",
        |s| one(flag(s.state.ready))),
    counter("steerd_log_lines_dropped_total", &[],
        "Log lines dropped because the log could not be written in time.",
        |s| one(count(s.state.log_lines_dropped))),
    counter("steerd_traced_packets_total", &[], "Packets that traces have shown.",
        |s| one(count(s.state.traced_packets))),
    counter("steerd_trace_differences_total", &[],
        "Packets that traces have shown, and that took another way than is computed for them.",
        |s| one(count(s.state.trace_differences))),
    counter("steerd_recorder_records_total", &["result"],
        "Records that triggers of the recorder and SIGUSR1 asked for, by result: written, suppressed (within a minute after \
         the last), failed.",
        records),
    gauge("steerd_device_info", &["device", "kind"], "The device in use; always 1.",
        device_info),
    gauge("steerd_device_state", &["device", "state"],
        "1 for the condition of the device, 0 for the others: working, failed (a fatal error), gone (removed, or its driver \
         was reset).",
        device_states),
    counter("steerd_device_events_total", &["device", "event"],
        "Asynchronous events of the device: device_failed, port_down, port_up, receive_queue_failed, queue_pair_failed, \
         completion_queue_overrun, other. Absent before the first one.",
        device_events),
    gauge("steerd_engine_stalled", &["device"], "1 while an engine thread of this soft NIC makes no progress.",
        engines_stalled),
    gauge("steerd_accounting_matches", &[],
        "1 while every received packet is in exactly one counter or in flight, else 0; absent while the counters of \
         drop rules cannot be read.",
        |s| some(s.accounting().and_then(|accounting| accounting.matches).map(flag))),
    gauge("steerd_in_flight_packets", &[],
        "Packets received and not yet counted by outcome: waiting in a receive queue, waiting in a worker \
         to be classified, or dropped since the counters of drop rules were read.",
        |s| some(s.accounting().map(|accounting| signed(accounting.in_flight.unwrap_or(0))))),
    gauge("steerd_policy_generation", &[], "The number of programs that were installed on the device so far.",
        |s| one(count(s.state.policy.generation))),
    gauge("steerd_policy_rules", &[], "Rules of the policy in force.",
        |s| one(count(s.state.policy.rules as u64))),
    gauge("steerd_policy_flows", &[], "Flows that the policy in force has on each port.",
        |s| one(count(s.state.policy.flows as u64))),
    gauge("steerd_policy_warnings", &[], "Warnings about the policy in force; /api/v1/state lists them.",
        |s| one(count(s.state.policy.warning_count as u64))),
    gauge("steerd_last_reload_successful", &[],
        "1 if the last reload of the policy succeeded, 0 if it was refused.",
        |s| one(flag(s.state.policy.last_reload_successful))),
    gauge("steerd_last_reload_success_timestamp_seconds", &[],
        "When the policy in force was loaded: the last successful reload or the start, in Unix time.",
        |s| one(s.state.policy.loaded_at_seconds)),
    counter("steerd_policy_reloads_total", &["result"], "Reloads of the policy by result.",
        reloads),
    counter("steerd_rule_packets_total", &["rule", "action"], "Packets of each rule by action.",
        |s| by_action(s, |count| Some(count.packets.unwrap_or(0)))),
    counter("steerd_rule_bytes_total", &["rule", "action"], "Bytes of each rule by action.",
        |s| by_action(s, |count| count.bytes)),
    counter("steerd_rule_filtered_copies_total", &["rule"],
        "Copies that workers received for a rule and discarded because the rule does not match them: the \
         device copies more packets than the rule matches.",
        filtered_copies),
    gauge("steerd_rule_decided_by", &["rule", "decider", "host"],
        "1 for each part of the system that decides packets of a rule on a network interface: nic, xdp_program, \
         engine, worker. The label host is whether the host receives the packets.",
        deciders),
    gauge("steerd_rule_placement", &["rule", "placement"],
        "1 for each rule in force that decides received packets, by where: hardware (the device alone) or hybrid (a worker \
         completes the decision).",
        placements),
];

/// The metrics of claims and NIC filters, listed between the two groups of port counters.
#[rustfmt::skip]
static CLAIMS_AND_FILTERS: &[Metric] = &[
    gauge("steerd_port_claims", &["port"], "Different claims of the flows of a port with the wire af_xdp, those that drop and others.",
        |s| claims(s, |c| c.count)),
    gauge("steerd_port_claims_widened_places", &["port"],
        "Places of the claims' trees where the wire af_xdp takes more packets than are claimed.",
        |s| claims(s, |c| c.widened_places)),
    gauge("steerd_port_claims_dropping", &["port"],
        "Claims whose packets the XDP program of the wire af_xdp drops itself, unless an earlier one matches.",
        |s| claims(s, |c| c.dropping)),
    gauge("steerd_port_nic_filters", &["port"],
        "Filters of the NIC that drop packets of drop rules before the XDP program of the wire af_xdp; the NIC does not \
         count the packets.",
        |s| filters(s, |f| f.filters)),
    gauge("steerd_port_nic_filters_missing", &["port"],
        "Filters that the NIC should have, and that it has not taken or has lost: the XDP program drops their packets.",
        |s| filters(s, |f| f.missing)),
    gauge("steerd_port_nic_filters_unwanted", &["port"],
        "Filters that could not be removed, and may drop packets of other rules; /readyz names it as degraded.",
        |s| filters(s, |f| f.unwanted)),
    counter("steerd_port_nic_filters_restored_total", &["port"],
        "Filters that were gone, as after the reset of a driver, and were inserted again.",
        |s| filters(s, |f| f.restored)),
];

#[rustfmt::skip]
static AFTER_PORT_COUNTERS: &[Metric] = &[
    gauge("steerd_port_up", &["port"], "1 while the port has a link, else 0.",
        |s| ports(s, |port| port.up.map(flag).map(Value::Number))),
    gauge("steerd_other_port_up", &["device", "port"], "1 while the port of a soft NIC that only sends has a link, else 0.",
        |s| other_ports(s, |port| port.up.map(flag))),
    counter("steerd_other_port_sent_packets_total", &["device", "port"], "Packets sent by the port of a soft NIC that only sends.",
        |s| other_ports(s, |port| Some(count(port.counters.as_ref()?.sent_packets)))),
    counter("steerd_other_port_sent_bytes_total", &["device", "port"], "Bytes sent by that port.",
        |s| other_ports(s, |port| Some(count(port.counters.as_ref()?.sent_bytes)))),
    counter("steerd_other_port_send_errors_total", &["device", "port"], "Sends by that port that failed.",
        |s| other_ports(s, |port| Some(count(port.counters.as_ref()?.send_errors)))),
    counter("steerd_port_dropped_packets_total", &["port", "reason"],
        "Packets lost, not dropped by a rule, by reason: \"wire\" before the port received them, all \
         others in the device.",
        |s| reasons(s.state.ports.iter().map(|p| (p.port.into(), &p.lost_packets)))),
    counter("steerd_worker_received_packets_total", &["worker"], "Packets received by the worker.",
        |s| workers(s, |w| Some(Value::Number(count(w.received_packets))))),
    counter("steerd_worker_received_bytes_total", &["worker"], "Bytes received by the worker.",
        |s| workers(s, |w| Some(Value::Number(count(w.received_bytes))))),
    counter("steerd_worker_lost_exception_packets_total", &["worker"],
        "Packets that the policy leaves to the kernel but a worker received: the host never sees them.",
        |s| workers(s, |w| Some(Value::Number(count(w.outcomes[PacketOutcome::LostException]))))),
    counter("steerd_worker_returned_packets_total", &["worker"],
        "Packets that the policy leaves to the kernel, received by the worker and handed to the kernel sink.",
        |s| workers(s, |w| Some(Value::Number(count(w.outcomes[PacketOutcome::Returned]))))),
    counter("steerd_sink_offered_packets_total", &["sink", "kind", "worker"], "Packets that a worker had for the sink.",
        |s| sinks(s, Direction::In, |t| t.offered_packets)),
    counter("steerd_sink_delivered_packets_total", &["sink", "kind", "worker"], "Packets that the sink passed on.",
        |s| sinks(s, Direction::In, |t| t.delivered_packets)),
    counter("steerd_sink_delivered_bytes_total", &["sink", "kind", "worker"], "Bytes of the packets that the sink passed on.",
        |s| sinks(s, Direction::In, |t| t.delivered_bytes)),
    counter("steerd_sink_dropped_packets_total", &["sink", "kind", "worker", "reason"],
        "Packets that the sink did not pass on, by reason.",
        |s| sink_drops(s, Direction::In)),
    counter("steerd_sink_transmit_offered_packets_total", &["sink", "kind", "worker"],
        "Packets of the host (kind kernel) or of clients (kind app) that the sink took to send them by a port.",
        |s| sinks(s, Direction::Out, |t| t.offered_packets)),
    counter("steerd_sink_transmit_sent_packets_total", &["sink", "kind", "worker"], "Those that the port has sent.",
        |s| sinks(s, Direction::Out, |t| t.delivered_packets)),
    counter("steerd_sink_transmit_sent_bytes_total", &["sink", "kind", "worker"], "Bytes of those that the port has sent.",
        |s| sinks(s, Direction::Out, |t| t.delivered_bytes)),
    counter("steerd_sink_transmit_dropped_packets_total", &["sink", "kind", "worker", "reason"],
        "Those that were not sent, by reason.",
        |s| sink_drops(s, Direction::Out)),
    gauge("steerd_sink_losing", &["sink", "kind"],
        "1 while the sink loses all its packets, else 0; /readyz names it as degraded.",
        |s| policy_sinks(s, |sink| Some(Value::Number(flag(sink.losing.is_some()))))),
    counter("steerd_sink_deleted_files_total", &["sink", "kind"],
        "Files of a sink of kind capture that were deleted to make room for others.",
        |s| policy_sinks(s, |sink| sink.deleted_files.map(count).map(Value::Number))),
    gauge("steerd_sink_export_connected", &["sink", "kind"],
        "1 while flows of a sink of kind count can be sent to its collector, else 0.",
        |s| exports(s, |export| flag(export.connected))),
    counter("steerd_sink_export_flows_total", &["sink", "kind"], "Flows that were sent to the collector.",
        |s| exports(s, |export| count(export.flows))),
    counter("steerd_sink_export_lost_flows_total", &["sink", "kind"],
        "Flows that were not sent: they came faster than they are sent, or the collector could not be reached.",
        |s| exports(s, |export| count(export.lost_flows))),
    counter("steerd_sink_export_lost_packets_total", &["sink", "kind"], "Packets of the flows that were not sent.",
        |s| exports(s, |export| count(export.lost_packets))),
    counter("steerd_sink_export_messages_total", &["sink", "kind"], "Messages that were sent to the collector.",
        |s| exports(s, |export| count(export.messages))),
    counter("steerd_sink_export_errors_total", &["sink", "kind"], "Connections to the collector and messages that failed.",
        |s| exports(s, |export| count(export.errors))),
    histogram("steerd_sink_packet_size_bytes", &["sink", "kind"],
        "Packets by size with the frame check sequence, in the classes of RFC 2819, of sinks of kind count.",
        |s| policy_sinks(s, |sink| Some(Value::Buckets(sink.packet_sizes.as_ref()?, 1.0)))),
    counter("steerd_worker_polls_total", &["worker"], "Iterations of the worker's loop.",
        |s| workers(s, |w| Some(Value::Number(count(w.polls))))),
    counter("steerd_worker_empty_polls_total", &["worker"],
        "Iterations of the worker's loop that received nothing.",
        |s| workers(s, |w| Some(Value::Number(count(w.empty_polls))))),
    counter("steerd_worker_poll_errors_total", &["worker"],
        "Iterations in which polling the completion queue failed.",
        |s| workers(s, |w| Some(Value::Number(count(w.poll_errors))))),
    gauge("steerd_worker_queue_failed", &["worker"],
        "1 while the worker's receive queue is in its error state: packets for it are lost until it is recovered.",
        |s| workers(s, |w| Some(Value::Number(flag(w.failed))))),
    counter("steerd_worker_queue_recoveries_total", &["worker"],
        "Recoveries of the worker's receive queue after a failure.",
        |s| workers(s, |w| Some(Value::Number(count(w.queue_recoveries))))),
    gauge("steerd_worker_stalled", &["worker"], "1 while the worker's loop makes no progress.",
        |s| workers(s, |w| Some(Value::Number(flag(w.stalled))))),
    counter("steerd_worker_dropped_packets_total", &["worker", "reason"],
        "Packets that a worker received and lost, not dropped by a rule, by reason.",
        |s| reasons(s.state.workers.iter().map(|w| (w.worker, &w.lost_packets)))),
    counter("steerd_worker_out_of_buffer_packets_total", &["worker"],
        "Packets and copies for the worker that found no receive buffer; the ports' losses contain them.",
        |s| workers(s, |w| w.out_of_buffer_packets.map(count).map(Value::Number))),
    counter("steerd_worker_failed_receives_total", &["worker", "reason"],
        "Receives that failed, by reason; packets that a port lost by them are among its own losses.",
        |s| reasons(s.state.workers.iter().map(|w| (w.worker, &w.failed_receives)))),
    counter("steerd_worker_anomalous_packets_total", &["worker", "anomaly"],
        "Malformed packets that a worker parsed, by anomaly; their outcome is counted by rule.",
        |s| reasons(s.state.workers.iter().map(|w| (w.worker, &w.anomalies)))),
    histogram("steerd_worker_batch_packets", &["worker"], "Packets per iteration of the worker's loop.",
        |s| workers(s, |w| Some(Value::Buckets(&w.batches, 1.0)))),
    histogram("steerd_worker_turn_seconds", &["worker"],
        "Durations of iterations of the worker's loop that received packets; a sample, one in 64.",
        |s| workers(s, |w| Some(Value::Buckets(&w.turn_ns, 1e9)))),
    counter("steerd_worker_time_seconds_total", &["worker", "regime"],
        "What the worker's loop spent its time on: idle, poll, classify, sink. They add up to the time it has run.",
        regimes),
    counter("steerd_worker_cpu_seconds_total", &["worker"],
        "Time for which the worker's thread was on a core, by the kernel's account.",
        |s| workers(s, |w| Some(Value::Number(count(w.thread?.cpu_ns) / 1e9)))),
    counter("steerd_worker_cpu_wait_seconds_total", &["worker"],
        "Time for which the worker's thread was ready to run and waited for a core (run-queue delay); the kernel counts a \
         wait when it is over. steerd_worker_time_seconds_total contains it, mostly as idle.",
        |s| workers(s, |w| Some(Value::Number(count(w.thread?.cpu_wait_ns) / 1e9)))),
    histogram("steerd_worker_latency_seconds", &["worker"],
        "From the device's timestamp of a packet until the worker takes it: the packets of one batch in 16. Absent \
         without workers.timestamps.",
        |s| workers(s, |w| Some(Value::Buckets(&w.latency.as_ref()?.ns, 1e9)))),
    counter("steerd_worker_negative_latencies_total", &["worker"],
        "Packets of that sample whose timestamp was later than the time at which the worker took them.",
        |s| workers(s, |w| Some(Value::Number(count(w.latency.as_ref()?.negative))))),
    counter("process_cpu_seconds_total", &[], "Processor time spent, user and system.",
        |s| some(s.process.as_ref().map(|usage| usage.cpu_seconds))),
    gauge("process_resident_memory_bytes", &[], "Resident memory.",
        |s| some(s.process.as_ref().map(|usage| count(usage.resident_bytes)))),
    gauge("process_open_fds", &[], "Open file descriptors.",
        |s| some(s.process.as_ref().map(|usage| count(usage.open_files)))),
];

fn one<'s>(value: f64) -> Vec<Series<'s>> {
    vec![(Vec::new(), Value::Number(value))]
}

fn some<'s>(value: Option<f64>) -> Vec<Series<'s>> {
    value.map(one).unwrap_or_default()
}

fn device_info<'s>(s: &'s Sources<'s>) -> Vec<Series<'s>> {
    let device = &s.state.device;
    let kind = if device.soft { "softnic" } else { "rdma" };
    vec![(vec![device.name.as_str().into(), kind.into()], Value::Number(1.0))]
}

fn device_states<'s>(s: &'s Sources<'s>) -> Vec<Series<'s>> {
    let DeviceState { name, condition, .. } = &s.state.device;
    let series = |state: DeviceCondition| {
        (vec![name.as_str().into(), state.name().into()], Value::Number(flag(state == *condition)))
    };
    DeviceCondition::ALL.map(series).into()
}

fn device_events<'s>(s: &'s Sources<'s>) -> Vec<Series<'s>> {
    let DeviceState { name, events, .. } = &s.state.device;
    let series = |(event, total): (&'s String, &u64)| {
        (vec![name.as_str().into(), event.as_str().into()], Value::Number(count(*total)))
    };
    events.iter().map(series).collect()
}

fn reloads<'s>(s: &Sources<'s>) -> Vec<Series<'s>> {
    let policy = &s.state.policy;
    let results = [("success", policy.reloads_succeeded), ("failure", policy.reloads_failed)];
    results.map(|(result, reloads)| (vec![result.into()], Value::Number(count(reloads)))).into()
}

fn records<'s>(s: &Sources<'s>) -> Vec<Series<'s>> {
    let records = &s.state.records;
    let results =
        [("written", records.written), ("suppressed", records.suppressed), ("failed", records.failed)];
    results.map(|(result, records)| (vec![result.into()], Value::Number(count(records)))).into()
}

/// A series for each port whose value is known.
fn ports<'s>(s: &'s Sources<'s>, value: impl Fn(&'s PortState) -> Option<Value<'s>>) -> Vec<Series<'s>> {
    let series = |port: &'s PortState| Some((vec![port.port.to_string().into()], value(port)?));
    s.state.ports.iter().filter_map(series).collect()
}

fn claims<'s>(s: &'s Sources<'s>, value: fn(&PortClaims) -> u64) -> Vec<Series<'s>> {
    ports(s, |port| port.claims.as_ref().map(value).map(count).map(Value::Number))
}

fn filters<'s>(s: &'s Sources<'s>, value: fn(&PortFilters) -> u64) -> Vec<Series<'s>> {
    ports(s, |port| port.nic_filters.as_ref().map(value).map(count).map(Value::Number))
}

/// The ports of soft NICs that only send.
fn other_ports<'s>(s: &Sources<'s>, value: fn(&PortState) -> Option<f64>) -> Vec<Series<'s>> {
    let all =
        s.state.other_devices.iter().flat_map(|device| device.ports.iter().map(move |port| (device, port)));
    let series = |(device, port): (&'s OtherDeviceState, &'s PortState)| {
        let labels = vec![device.name.as_str().into(), port.port.to_string().into()];
        Some((labels, Value::Number(value(port)?)))
    };
    all.filter_map(series).collect()
}

fn engines_stalled<'s>(s: &Sources<'s>) -> Vec<Series<'s>> {
    let DeviceState { name, engine_stalled, .. } = &s.state.device;
    let own = engine_stalled.map(|stalled| (name, stalled));
    let others = s.state.other_devices.iter().map(|device| (&device.name, device.engine_stalled));
    let series =
        |(name, stalled): (&'s String, bool)| (vec![name.as_str().into()], Value::Number(flag(stalled)));
    own.into_iter().chain(others).map(series).collect()
}

fn regimes<'s>(s: &'s Sources<'s>) -> Vec<Series<'s>> {
    let of = |worker: &'s WorkerState| {
        let labels = |regime: &'static str| vec![worker.worker.to_string().into(), regime.into()];
        worker.regimes_ns.iter().map(move |(regime, ns)| (labels(regime), Value::Number(count(*ns) / 1e9)))
    };
    s.state.workers.iter().flat_map(of).collect()
}

/// A series for each sink of the policy whose value is known.
fn policy_sinks<'s>(s: &'s Sources<'s>, value: fn(&'s SinkState) -> Option<Value<'s>>) -> Vec<Series<'s>> {
    let series = |sink: &'s SinkState| Some((vec![Cow::from(&sink.name), sink.kind.into()], value(sink)?));
    s.state.sinks.iter().filter(|sink| sink.attached_to.is_none()).filter_map(series).collect()
}

/// A series for each sink that exports flows.
fn exports<'s>(s: &'s Sources<'s>, value: fn(&ExportState) -> f64) -> Vec<Series<'s>> {
    let sinks = s.state.sinks.iter().filter(|sink| sink.attached_to.is_none());
    let series = |sink: &'s SinkState| {
        let export = sink.export.as_ref()?;
        Some((vec![Cow::from(&sink.name), sink.kind.into()], Value::Number(value(export))))
    };
    sinks.filter_map(series).collect()
}

/// A series for each worker whose value is known.
fn workers<'s>(s: &'s Sources<'s>, value: fn(&'s WorkerState) -> Option<Value<'s>>) -> Vec<Series<'s>> {
    let series = |worker: &'s WorkerState| Some((vec![worker.worker.to_string().into()], value(worker)?));
    s.state.workers.iter().filter_map(series).collect()
}

/// A series for each port or worker and reason.
fn reasons<'s>(all: impl Iterator<Item = (u32, &'s Reasons)>) -> Vec<Series<'s>> {
    let of = |(id, reasons): (u32, &'s Reasons)| {
        let labels = move |reason: &&'static str| vec![id.to_string().into(), (*reason).into()];
        reasons.iter().map(move |(reason, packets)| (labels(reason), Value::Number(count(*packets))))
    };
    all.flat_map(of).collect()
}

/// A series for each rule and each of its actions.
fn by_action<'s>(s: &'s Sources<'s>, value: fn(Count) -> Option<u64>) -> Vec<Series<'s>> {
    let of = |rule: &'s Cow<'s, RuleState>| {
        rule_actions(rule).filter_map(move |(action, counted)| {
            let labels = vec![rule.name.as_str().into(), action.into()];
            Some((labels, Value::Number(count(value(counted)?))))
        })
    };
    s.rules.iter().flat_map(of).collect()
}

fn filtered_copies<'s>(s: &'s Sources<'s>) -> Vec<Series<'s>> {
    let rules = s.rules.iter().filter(|rule| is_filtered(rule));
    rules.map(|rule| (vec![rule.name.as_str().into()], Value::Number(count(filtered(rule))))).collect()
}

/// A series for each rule on a network interface and each of those that decide its packets.
fn deciders<'s>(s: &'s Sources<'s>) -> Vec<Series<'s>> {
    let of = |rule: &'s Cow<'s, RuleState>| {
        let of_rule = |deciders: &'s RuleDeciders| {
            let labels = |decider: &Decider| {
                vec![rule.name.as_str().into(), decider.name().into(), deciders.host.name().into()]
            };
            deciders.decided_by.iter().map(move |decider| (labels(decider), Value::Number(1.0)))
        };
        rule.deciders.iter().flat_map(of_rule)
    };
    s.rules.iter().flat_map(of).collect()
}

/// A series for each rule in force whose packets are not copies, and not sent by the host.
fn placements<'s>(s: &'s Sources<'s>) -> Vec<Series<'s>> {
    let decides = |rule: &&'s Cow<'s, RuleState>| {
        let decides = matches!(rule.effect, Effect::Deliver | Effect::Drop | Effect::Kernel);
        rule.current && decides && !rule.placement.is_empty()
    };
    let series = |rule: &'s Cow<'s, RuleState>| {
        (vec![rule.name.as_str().into(), rule.placement.into()], Value::Number(1.0))
    };
    s.rules.iter().filter(decides).map(series).collect()
}

/// The rules with `count = false` are summed under this name, so that sums over all rules stay complete. No
/// rule can have it.
const UNEXPORTED: &str = "(not exported)";

/// The rules that have series, followed by the sum of the others.
fn exported(rules: &[RuleState]) -> Vec<Cow<'_, RuleState>> {
    let mut shown: Vec<_> = rules.iter().filter(|rule| !rule.unexported).map(Cow::Borrowed).collect();
    // The sum has only the actions under which packets were counted.
    let mut sum = RuleState { name: UNEXPORTED.to_owned(), ..RuleState::default() };
    rules
        .iter()
        .filter(|rule| rule.unexported && !rule.uncounted)
        .for_each(|rule| sum.outcomes.add(&rule.outcomes));
    if sum.packets() + filtered(&sum) > 0 {
        shown.push(Cow::Owned(sum));
    }
    shown
}

/// Whether the device makes or made copies for the rule that a worker filters out.
fn is_filtered(rule: &RuleState) -> bool {
    let may_be_filtered = matches!(rule.effect, Effect::Copy | Effect::Sniff) && rule.placement == "hybrid";
    filtered(rule) > 0 || rule.current && may_be_filtered
}

fn filtered(rule: &RuleState) -> u64 {
    rule.outcomes[PacketOutcome::Filtered].packets.unwrap_or(0)
}

/// Packets that a sink gets from workers, and those that it sends by a port.
#[derive(Clone, Copy)]
enum Direction {
    In,
    Out,
}

/// The sinks of the policy by worker; those attached while the daemon runs are in the state only.
fn sink_traffic<'s>(
    sources: &'s Sources<'s>,
    direction: Direction,
) -> impl Iterator<Item = (Vec<Cow<'s, str>>, &'s SinkTrafficState)> {
    let sinks = sources.state.sinks.iter().filter(|sink| sink.attached_to.is_none());
    sinks.flat_map(move |sink| {
        let labels = |traffic: &SinkTrafficState| {
            vec![Cow::from(&sink.name), sink.kind.into(), traffic.worker.to_string().into()]
        };
        let traffic = match direction {
            Direction::In => &sink.workers,
            Direction::Out => &sink.transmit,
        };
        traffic.iter().map(move |traffic| (labels(traffic), traffic))
    })
}

fn sinks<'s>(
    sources: &'s Sources<'s>,
    direction: Direction,
    value: fn(&SinkTrafficState) -> u64,
) -> Vec<Series<'s>> {
    let series = sink_traffic(sources, direction);
    series.map(|(labels, traffic)| (labels, Value::Number(count(value(traffic))))).collect()
}

fn sink_drops<'s>(sources: &'s Sources<'s>, direction: Direction) -> Vec<Series<'s>> {
    let series = sink_traffic(sources, direction).flat_map(|(labels, traffic)| {
        traffic.dropped_packets.iter().map(move |(reason, packets)| {
            let mut labels = labels.clone();
            labels.push((*reason).into());
            (labels, Value::Number(count(*packets)))
        })
    });
    series.collect()
}

/// The actions under which a rule has counted packets and bytes. A rule without packets keeps its own action
/// at zero; what the device does not count is absent.
fn rule_actions(rule: &RuleState) -> impl Iterator<Item = (&'static str, Count)> + use<'_> {
    let own = match rule.effect {
        // A rule of an earlier policy has only the actions that it has counted.
        _ if !rule.current => None,
        Effect::Drop => Some(PacketOutcome::Dropped),
        Effect::Kernel => Some(PacketOutcome::Kernel),
        Effect::DropSent => Some(PacketOutcome::SentDropped),
        Effect::PassSent => Some(PacketOutcome::SentPassed),
        Effect::Deliver | Effect::Copy | Effect::Sniff => Some(PacketOutcome::Delivered),
    };
    let is_shown = move |outcome, count: &Count| match own == Some(outcome) {
        true => !rule.uncounted,
        false => count.packets.is_some_and(|packets| packets > 0),
    };
    let shown = rule.outcomes.iter().filter(move |(row, count)| is_shown(row.outcome, count));
    shown.filter_map(|(row, count)| Some((row.action?, *count)))
}

/// Prometheus' values are doubles: exact up to 2^53.
#[allow(clippy::cast_precision_loss)]
fn count(value: u64) -> f64 {
    value as f64
}

#[allow(clippy::cast_precision_loss)]
fn signed(value: i64) -> f64 {
    value as f64
}

fn flag(value: bool) -> f64 {
    f64::from(u8::from(value))
}

impl Metric {
    fn of_ports(row: &PortMetric) -> Self {
        let PortMetric { name, help, read } = *row;
        Self { name, help, kind: MetricType::COUNTER, labels: &["port"], source: Source::Ports(read) }
    }

    fn series<'s>(&self, sources: &'s Sources<'s>) -> Vec<Series<'s>> {
        match self.source {
            Source::State(read) => read(sources),
            Source::Ports(read) => {
                ports(sources, |port| Some(Value::Number(count(read(port.counters.as_ref()?)))))
            }
        }
    }

    /// `None` without series, as a HELP line alone would say nothing.
    fn family(&self, series: Vec<Series<'_>>) -> Option<MetricFamily> {
        let mut family = MetricFamily::default();
        family.set_name(self.name.to_owned());
        family.set_help(self.help.to_owned());
        family.set_field_type(self.kind);
        *family.mut_metric() = series.into_iter().map(|series| self.metric(series)).collect();
        Some(family).filter(|family| !family.get_metric().is_empty())
    }

    fn metric(&self, (values, value): Series<'_>) -> proto::Metric {
        let pair = |(name, value): (&&str, Cow<'_, str>)| {
            let mut pair = LabelPair::default();
            pair.set_name((*name).to_owned());
            pair.set_value(value.into_owned());
            pair
        };
        let mut metric = proto::Metric::from_label(self.labels.iter().zip(values).map(pair).collect());
        match value {
            Value::Number(value) if self.kind == MetricType::COUNTER => {
                let mut counter = proto::Counter::default();
                counter.set_value(value);
                metric.set_counter(counter);
            }
            Value::Number(value) => {
                let mut gauge = proto::Gauge::default();
                gauge.set_value(value);
                metric.set_gauge(gauge);
            }
            Value::Buckets(buckets, per_unit) => metric.set_histogram(distribution(buckets, per_unit)),
        }
        metric
    }
}

fn distribution(buckets: &Buckets, per_unit: f64) -> Histogram {
    let bucket = |(bound, at_most): &(u64, u64)| {
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(count(*bound) / per_unit);
        bucket.set_cumulative_count(*at_most);
        bucket
    };
    let mut histogram = Histogram::default();
    histogram.set_bucket(buckets.at_most.iter().map(bucket).collect());
    histogram.set_sample_count(buckets.count);
    histogram.set_sample_sum(count(buckets.sum) / per_unit);
    histogram
}

#[derive(Debug, PartialEq)]
struct ProcessUsage {
    cpu_seconds: f64,
    resident_bytes: u64,
    open_files: u64,
}

impl ProcessUsage {
    /// `None` where /proc is hidden.
    fn read() -> Option<Self> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        let (ticks, pages) = parse_stat(&stat)?;
        let ticks_per_second = rustix::param::clock_ticks_per_second();
        let page_bytes = rustix::param::page_size() as u64;
        #[allow(clippy::cast_precision_loss)]
        let cpu_seconds = ticks as f64 / ticks_per_second as f64;
        let open_files = fs::read_dir("/proc/self/fd").ok()?.count() as u64;
        Some(Self { cpu_seconds, resident_bytes: pages * page_bytes, open_files })
    }
}

/// utime + stime and rss, counted after the name, which may itself hold blanks and brackets.
fn parse_stat(stat: &str) -> Option<(u64, u64)> {
    let after_name = &stat[stat.rfind(')')? + 1..];
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    // Field 3 (state) is the first here: utime is field 14, stime 15, rss 24.
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some((field(14)? + field(15)?, field(24)?))
}

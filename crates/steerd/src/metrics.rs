//! The metrics in Prometheus' text format: a `State` turned into families.
//!
//! `http` calls `render` when a page is out of date; nothing is counted twice and no metric is ever touched
//! on the packet path. Base units, `_total` on counters, HELP on everything: promtool's rules.

use std::borrow::Cow;

use prometheus::TextEncoder;
use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType};

use crate::deeds::Deed;
use crate::process;
use crate::state::{Buckets, PortCounters, PortState, Reasons, RuleState, State, WorkerState};

/// All metrics of a state.
pub(crate) fn render(state: &State) -> Result<String, prometheus::Error> {
    let mut families = Families::default();
    daemon(&mut families, state);
    policy(&mut families, state);
    rules(&mut families, &state.rules);
    ports(&mut families, &state.ports);
    workers(&mut families, &state.workers);
    process_itself(&mut families);
    TextEncoder::new().encode_to_string(&families.done())
}

fn daemon(families: &mut Families, state: &State) {
    families
        .gauge("steerd_build_info", "The version that runs; always 1.")
        .value(&[("version", state.version)], 1.0);
    families
        .gauge("steerd_start_time_seconds", "When the daemon started, in Unix time.")
        .value(&[], state.started_at_seconds);
    families
        .gauge(
            "steerd_ready",
            "1 while the policy is on the device, every worker and the engine make progress and all ports are up.",
        )
        .value(&[], if state.ready { 1.0 } else { 0.0 });
    families
        .counter(
            "steerd_log_lines_dropped_total",
            "Log lines lost because those before them were not taken in time.",
        )
        .value(&[], count(state.log_lines_dropped));
    let device = state.device.name.as_str();
    let kind = if state.device.soft { "softnic" } else { "rdma" };
    families
        .gauge("steerd_device_info", "The device that is steered on; always 1.")
        .value(&[("device", device), ("kind", kind)], 1.0);
    if let Some(stalled) = state.device.engine_stalled {
        families
            .gauge("steerd_engine_stalled", "1 while the soft NIC's engine makes no progress.")
            .value(&[], if stalled { 1.0 } else { 0.0 });
    }
    // Where ports do not count there is nothing to balance: absent, and neither 1 nor 0.
    if state.books.ports_counted {
        families
            .gauge(
                "steerd_books_balanced",
                "1 while every received packet is in exactly one counter or on its way, else 0.",
            )
            .value(&[], if state.books.balanced { 1.0 } else { 0.0 });
        families
            .gauge(
                "steerd_books_in_flight_packets",
                "Packets received and not yet in the counter of what became of them: not yet taken by a worker, \
                 not yet judged by it, or dropped since the drop rules were read.",
            )
            .value(&[], signed(state.books.in_flight.unwrap_or(0)));
    }
}

fn policy(families: &mut Families, state: &State) {
    let policy = &state.policy;
    families
        .gauge("steerd_policy_generation", "Counts the programs that were put on the device.")
        .value(&[], count(policy.generation));
    families
        .gauge("steerd_policy_rules", "Rules of the policy in force.")
        .value(&[], count(policy.rules as u64));
    families
        .gauge("steerd_policy_flows", "Flows that the policy in force has on each port.")
        .value(&[], count(policy.flows as u64));
    families
        .gauge("steerd_policy_warnings", "Warnings about the policy in force; /api/v1/state lists them.")
        .value(&[], count(policy.warning_count as u64));
    families
        .gauge(
            "steerd_last_reload_successful",
            "1 if the last reload of the policy succeeded, 0 if it was refused.",
        )
        .value(&[], if policy.last_reload_successful { 1.0 } else { 0.0 });
    families
        .gauge(
            "steerd_last_reload_success_timestamp_seconds",
            "When the policy in force was loaded: the last successful reload or the start, in Unix time.",
        )
        .value(&[], policy.loaded_at_seconds);
    families
        .counter("steerd_policy_reloads_total", "Reloads of the policy by result.")
        .value(&[("result", "success")], count(policy.reloads_succeeded))
        .value(&[("result", "failure")], count(policy.reloads_failed));
}

/// What the rules with `count = false` have counted stands under this name, so that sums over all rules stay
/// complete. No rule can have it.
const UNEXPORTED: &str = "(not exported)";

/// The rules that have series, the sum of the others behind them.
fn exported(rules: &[RuleState]) -> Vec<Cow<'_, RuleState>> {
    let mut shown: Vec<_> = rules.iter().filter(|rule| !rule.unexported).map(Cow::Borrowed).collect();
    // Not of the policy itself: it has only actions under which something was counted.
    let mut sum = RuleState { name: UNEXPORTED.to_owned(), ..RuleState::default() };
    rules.iter().filter(|rule| rule.unexported && !rule.uncounted).for_each(|rule| sum.add(rule));
    if sum.packets() + sum.filtered_packets > 0 {
        shown.push(Cow::Owned(sum));
    }
    shown
}

fn rules(families: &mut Families, rules: &[RuleState]) {
    let rules = &exported(rules);
    let help = "Packets of each rule by what became of them.";
    let mut packets = families.counter("steerd_rule_packets_total", help);
    for rule in rules {
        for (action, packets_of, _) in rule_actions(rule) {
            packets = packets.value(&[("rule", &rule.name), ("action", action)], count(packets_of));
        }
    }
    let help = "Bytes of each rule by what became of them.";
    let mut bytes = families.counter("steerd_rule_bytes_total", help);
    for rule in rules {
        for (action, _, bytes_of) in rule_actions(rule) {
            let Some(bytes_of) = bytes_of else { continue };
            bytes = bytes.value(&[("rule", &rule.name), ("action", action)], count(bytes_of));
        }
    }
    let help = "Copies that workers received for a rule and discarded, because it does not match their packets: \
                the device copies more than the rule asks for.";
    let mut filtered = families.counter("steerd_rule_filtered_copies_total", help);
    for rule in rules.iter().filter(|rule| makes_excess(rule)) {
        filtered = filtered.value(&[("rule", &rule.name)], count(rule.filtered_packets));
    }
}

/// Whether the device makes copies for the rule that a worker has to sort out, or made some.
fn makes_excess(rule: &RuleState) -> bool {
    let sorts_out = matches!(rule.deed, Deed::Copy | Deed::Sniff) && rule.placement == "hybrid";
    rule.filtered_packets > 0 || rule.current && sorts_out
}

/// The actions a rule has counted under, packets and bytes; one that has counted nothing yet keeps its own at
/// zero. What the device does not count is absent.
fn rule_actions(rule: &RuleState) -> impl Iterator<Item = (&'static str, u64, Option<u64>)> {
    let own = match rule.deed {
        // A rule of an earlier policy: it has what it has counted, and nothing else.
        _ if !rule.current => "",
        Deed::Drop => "drop",
        Deed::Kernel => "kernel",
        Deed::DropSent => "drop_sent",
        Deed::PassSent => "pass_sent",
        Deed::Deliver | Deed::Copy | Deed::Sniff => "deliver",
    };
    [
        ("deliver", rule.delivered_packets, Some(rule.delivered_bytes)),
        ("drop", rule.dropped_packets, Some(rule.dropped_bytes)),
        ("kernel", rule.kernel_packets, rule.kernel_bytes),
        ("lost_exception", rule.lost_exception_packets, Some(rule.lost_exception_bytes)),
        ("drop_sent", rule.sent_dropped_packets, Some(rule.sent_dropped_bytes)),
        ("pass_sent", rule.sent_passed_packets, Some(rule.sent_passed_bytes)),
    ]
    .into_iter()
    .filter(move |(action, packets, _)| if *action == own { !rule.uncounted } else { *packets > 0 })
}

fn ports(families: &mut Families, ports: &[PortState]) {
    type Column = (&'static str, &'static str, fn(&PortCounters) -> u64);
    let columns: [Column; 11] = [
        ("steerd_port_received_packets_total", "Packets received from the wire.", |p| p.received_packets),
        ("steerd_port_received_bytes_total", "Bytes received from the wire.", |p| p.received_bytes),
        ("steerd_port_delivered_packets_total", "Packets handed to workers.", |p| p.delivered_packets),
        (
            "steerd_port_replicated_packets_total",
            "Copies handed to workers beside what became of the packets.",
            |p| p.replicated_packets,
        ),
        ("steerd_port_rule_dropped_packets_total", "Packets dropped by rules in the device.", |p| {
            p.rule_dropped_packets
        }),
        (
            "steerd_port_kernel_packets_total",
            "Packets no rule claimed, left to the kernel, copied or not.",
            |p| p.kernel_packets,
        ),
        ("steerd_port_sent_packets_total", "Packets sent.", |p| p.sent_packets),
        ("steerd_port_sent_bytes_total", "Bytes sent.", |p| p.sent_bytes),
        ("steerd_port_send_errors_total", "Sends that failed.", |p| p.send_errors),
        ("steerd_port_sent_dropped_packets_total", "Sent packets that rules kept from the wire.", |p| {
            p.sent_dropped_packets
        }),
        (
            "steerd_port_lost_copies_total",
            "Copies that found no room; what became of their packets is counted all the same.",
            |p| p.lost_copies,
        ),
    ];
    for (name, help, value) in columns {
        let mut family = families.counter(name, help);
        for port in ports {
            let Some(counters) = &port.counters else { continue };
            family = family.value(&[("port", &port.port.to_string())], count(value(counters)));
        }
    }
    let mut family =
        families.gauge("steerd_port_up", "1 while packets can be steered on the port, 0 without a link.");
    for port in ports {
        let Some(up) = port.up else { continue };
        family = family.value(&[("port", &port.port.to_string())], if up { 1.0 } else { 0.0 });
    }
    let help = "Packets lost for another reason than a rule: \"wire\" before the port received them, all others \
                in the device.";
    let mut family = families.counter("steerd_port_dropped_packets_total", help);
    for port in ports {
        family = family.reasons("port", &port.port.to_string(), "reason", &port.lost_packets);
    }
}

fn workers(families: &mut Families, workers: &[WorkerState]) {
    type Column = (&'static str, &'static str, fn(&WorkerState) -> u64);
    let columns: [Column; 6] = [
        ("steerd_worker_received_packets_total", "Packets taken by the worker.", |w| w.received_packets),
        ("steerd_worker_received_bytes_total", "Bytes taken by the worker.", |w| w.received_bytes),
        (
            "steerd_worker_lost_exception_packets_total",
            "Packets that the policy leaves to the kernel and that the worker received: the host never sees them.",
            |w| w.lost_exception_packets,
        ),
        ("steerd_worker_polls_total", "Turns of the worker's loop.", |w| w.polls),
        ("steerd_worker_empty_polls_total", "Turns of the worker's loop that found nothing.", |w| {
            w.empty_polls
        }),
        ("steerd_worker_poll_errors_total", "Turns in which the device refused to be polled.", |w| {
            w.poll_errors
        }),
    ];
    for (name, help, value) in columns {
        let mut family = families.counter(name, help);
        for worker in workers {
            family = family.value(&[("worker", &worker.worker.to_string())], count(value(worker)));
        }
    }
    let mut family = families.gauge("steerd_worker_stalled", "1 while the worker's loop makes no progress.");
    for worker in workers {
        let stalled = if worker.stalled { 1.0 } else { 0.0 };
        family = family.value(&[("worker", &worker.worker.to_string())], stalled);
    }
    let help = "Packets that a worker received and lost for another reason than a rule.";
    let mut family = families.counter("steerd_worker_dropped_packets_total", help);
    for worker in workers {
        family = family.reasons("worker", &worker.worker.to_string(), "reason", &worker.lost_packets);
    }
    let help = "Receives that failed, by how; what a port lost by them is among its own losses.";
    let mut family = families.counter("steerd_worker_failed_receives_total", help);
    for worker in workers {
        family = family.reasons("worker", &worker.worker.to_string(), "reason", &worker.failed_receives);
    }
    let help = "Malformed packets that a worker looked into; a note, not a verdict.";
    let mut family = families.counter("steerd_worker_anomalous_packets_total", help);
    for worker in workers {
        family = family.reasons("worker", &worker.worker.to_string(), "anomaly", &worker.anomalies);
    }
    let mut family =
        families.histogram("steerd_worker_batch_packets", "Packets per turn of the worker's loop.");
    for worker in workers {
        family = family.buckets(&[("worker", &worker.worker.to_string())], &worker.batches, 1.0);
    }
    let help = "How long turns of the worker's loop took that found packets; a sample, one turn in 64.";
    let mut family = families.histogram("steerd_worker_turn_seconds", help);
    for worker in workers {
        family = family.buckets(&[("worker", &worker.worker.to_string())], &worker.turn_ns, 1e9);
    }
}

fn process_itself(families: &mut Families) {
    let Some(usage) = process::usage() else { return };
    families
        .counter("process_cpu_seconds_total", "Processor time spent, user and system.")
        .value(&[], usage.cpu_seconds);
    families
        .gauge("process_resident_memory_bytes", "Resident memory.")
        .value(&[], count(usage.resident_bytes));
    families.gauge("process_open_fds", "Open file descriptors.").value(&[], count(usage.open_files));
}

/// Prometheus' numbers are doubles: exact up to 2^53.
#[allow(clippy::cast_precision_loss)]
fn count(value: u64) -> f64 {
    value as f64
}

#[allow(clippy::cast_precision_loss)]
fn signed(value: i64) -> f64 {
    value as f64
}

#[derive(Default)]
struct Families(Vec<MetricFamily>);

impl Families {
    fn counter(&mut self, name: &str, help: &str) -> Family<'_> {
        self.family(name, help, MetricType::COUNTER)
    }

    fn gauge(&mut self, name: &str, help: &str) -> Family<'_> {
        self.family(name, help, MetricType::GAUGE)
    }

    fn histogram(&mut self, name: &str, help: &str) -> Family<'_> {
        self.family(name, help, MetricType::HISTOGRAM)
    }

    fn family(&mut self, name: &str, help: &str, kind: MetricType) -> Family<'_> {
        let mut family = MetricFamily::default();
        family.set_name(name.to_owned());
        family.set_help(help.to_owned());
        family.set_field_type(kind);
        self.0.push(family);
        let last = self.0.len() - 1;
        Family { family: &mut self.0[last], kind }
    }

    /// A family without a single series would be a HELP line about nothing.
    fn done(mut self) -> Vec<MetricFamily> {
        self.0.retain(|family| !family.get_metric().is_empty());
        self.0
    }
}

struct Family<'f> {
    family: &'f mut MetricFamily,
    kind: MetricType,
}

impl Family<'_> {
    fn value(self, labels: &[(&str, &str)], value: f64) -> Self {
        let mut metric = Metric::from_label(pairs(labels));
        if self.kind == MetricType::COUNTER {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        } else {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        self.family.mut_metric().push(metric);
        self
    }

    fn reasons(mut self, of: &str, id: &str, label: &str, reasons: &Reasons) -> Self {
        for (reason, packets) in reasons {
            self = self.value(&[(of, id), (label, reason)], count(*packets));
        }
        self
    }

    /// `per_unit`: how many of the buckets' units make one of the metric's.
    fn buckets(self, labels: &[(&str, &str)], buckets: &Buckets, per_unit: f64) -> Self {
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
        let mut metric = Metric::from_label(pairs(labels));
        metric.set_histogram(histogram);
        self.family.mut_metric().push(metric);
        self
    }
}

fn pairs(labels: &[(&str, &str)]) -> Vec<LabelPair> {
    let pair = |(name, value): &(&str, &str)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    };
    labels.iter().map(pair).collect()
}

#[cfg(test)]
mod tests;

//! The daemon's state at one moment, as plain data.
//!
//! `Observer::state` makes it; /api/v1/state serialises it; metrics, the live table, the summary and the
//! accounting read it. It holds no handles.

use std::collections::BTreeMap;
use std::fmt;

use program::{DescriptionText, RuleDeciders};
use serde::{Deserialize, Serialize};
use softnic::ClaimReport;
use worker::sinks::SinkStatus;

use crate::effects::Effect;
use crate::outcome::{PacketOutcome, RuleOutcomes, Totals, WorkerOutcomes};
use crate::port_counters::PortCounters;

/// Counters by a named reason; only reasons that occurred or can occur are listed.
pub(crate) type Reasons = BTreeMap<&'static str, u64>;

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct State {
    pub(crate) version: &'static str,
    pub(crate) started_at_seconds: f64,
    pub(crate) uptime_seconds: f64,
    pub(crate) ready: bool,
    /// Why it is not ready, as /readyz answers; `None`: it is.
    pub(crate) problem: Option<String>,
    /// The fault, although packets are steered: sinks that lose all their packets.
    pub(crate) degraded: Option<String>,
    pub(crate) device: DeviceState,
    /// The soft NICs that only send.
    pub(crate) other_devices: Vec<OtherDeviceState>,
    pub(crate) policy: PolicyState,
    /// Log lines that were dropped because the log could not be written in time.
    pub(crate) log_lines_dropped: u64,
    /// The packets that traces have shown, and those of them that took another way than `explain` computes.
    pub(crate) traced_packets: u64,
    pub(crate) trace_differences: u64,
    /// The records that the daemon has written by itself.
    pub(crate) records: RecordsState,
    pub(crate) rules: Vec<RuleState>,
    pub(crate) workers: Vec<WorkerState>,
    pub(crate) sinks: Vec<SinkState>,
    pub(crate) ports: Vec<PortState>,
    pub(crate) accounting: Accounting,
    /// The engine and the workers; `None` without `--stage-times`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) profile: Option<Vec<ThreadProfile>>,
}

/// Records of the recorder that triggers and signals asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct RecordsState {
    pub(crate) written: u64,
    /// How often a condition began within a minute after a record.
    pub(crate) suppressed: u64,
    pub(crate) failed: u64,
    /// `None`: none was written yet.
    pub(crate) last_file: Option<String>,
}

/// The time of a thread, by stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct ThreadProfile {
    /// `engine`, `worker 0`, ...
    pub(crate) thread: String,
    /// The packets that it had.
    pub(crate) packets: u64,
    /// The batches that were timed; the times of all are inferred from them.
    pub(crate) timed: u64,
    /// The stages that there were, `idle` last.
    pub(crate) stages: Vec<StageTime>,
}

/// The time of a stage since the start.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct StageTime {
    pub(crate) stage: String,
    pub(crate) ns: u64,
    /// The share of the thread's time, from 0 to 1.
    pub(crate) share: f64,
    /// `None`: idle, or there was no packet.
    pub(crate) ns_per_packet: Option<f64>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct DeviceState {
    pub(crate) name: String,
    pub(crate) soft: bool,
    /// Whether it works, as far as its events show it.
    #[serde(default)]
    pub(crate) condition: DeviceCondition,
    /// The asynchronous events that it has reported, by kind.
    #[serde(default)]
    pub(crate) events: BTreeMap<String, u64>,
    /// Whether the soft NIC's engine makes no progress; `None`: a real device.
    pub(crate) engine_stalled: Option<bool>,
    /// The device model whose limits apply.
    pub(crate) profile: String,
    pub(crate) ports: Vec<u8>,
}

/// The condition of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DeviceCondition {
    #[default]
    Working,
    /// It has reported a fatal error.
    Failed,
    /// It was removed, or its driver was reset.
    Gone,
}

impl DeviceCondition {
    pub(crate) const ALL: [Self; 3] = [Self::Working, Self::Failed, Self::Gone];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::Failed => "failed",
            Self::Gone => "gone",
        }
    }

    /// The condition as a reason not to be ready.
    pub(crate) fn fault(self) -> Option<&'static str> {
        match self {
            Self::Working => None,
            Self::Failed => Some("the device has failed"),
            Self::Gone => Some("the device is gone"),
        }
    }
}

/// A soft NIC of `[[softnic.others]]`. What it counts is no part of the accounting of received packets.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct OtherDeviceState {
    pub(crate) name: String,
    /// Whether its engine makes no progress.
    pub(crate) engine_stalled: bool,
    pub(crate) ports: Vec<PortState>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PolicyState {
    pub(crate) source: String,
    /// The SHA-256 of the text, the files and the variables.
    pub(crate) sha256: String,
    pub(crate) generation: u64,
    /// The number in the history of the policy that came back; `None`: it was read from its source.
    #[serde(default)]
    pub(crate) past: Option<u64>,
    /// Unix time of the last successful reload, or of the start.
    pub(crate) loaded_at_seconds: f64,
    pub(crate) rules: usize,
    pub(crate) flows: usize,
    pub(crate) reloads_succeeded: u64,
    pub(crate) reloads_failed: u64,
    /// How many warnings there are about it.
    pub(crate) warning_count: usize,
    /// The first of them: about the policy, then about features that the device lacks or emulates.
    pub(crate) warnings: Vec<String>,
    /// The first line of the last reload's error, until a reload succeeds.
    pub(crate) last_error: Option<String>,
    /// Whether the last reload succeeded; `true` before the first one.
    pub(crate) last_reload_successful: bool,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct RuleState {
    pub(crate) name: String,
    /// The text of the policy for people; `None`: there is none, or the rule is of an earlier policy.
    pub(crate) description: Option<DescriptionText>,
    pub(crate) action: String,
    /// The effect as one word.
    pub(crate) effect: Effect,
    pub(crate) placement: &'static str,
    /// 0 for the default and for rules of an earlier policy.
    pub(crate) line: u32,
    /// Whether the policy in force has it; the counts of earlier rules stay in the accounting.
    pub(crate) current: bool,
    /// `count = false`: counted here, but without series of its own in the metrics.
    pub(crate) unexported: bool,
    /// The device does not count all packets of this rule, or its counter has not been read yet: the counts
    /// here are incomplete.
    pub(crate) uncounted: bool,
    /// Who decides its packets, and whether the host receives them; `None`: the device is no network
    /// interface, or the policy in force does not have the rule.
    #[serde(flatten)]
    pub(crate) deciders: Option<RuleDeciders>,
    #[serde(flatten, serialize_with = "RuleOutcomes::serialize_for_rule")]
    pub(crate) outcomes: RuleOutcomes,
}

impl RuleState {
    /// Dropped by workers because of `limit` or `sample`; part of [`RuleState::packets`].
    pub(crate) fn policed_packets(&self) -> u64 {
        PacketOutcome::POLICED.into_iter().filter_map(|outcome| self.outcomes[outcome].packets).sum()
    }

    /// Where it is decided, in words: on a network interface, by which parts, of which none may be hardware.
    pub(crate) fn decided_in(&self) -> String {
        match &self.deciders {
            Some(RuleDeciders { decided_by, .. }) if !decided_by.is_empty() => {
                decided_by.iter().map(|decider| decider.words()).collect::<Vec<_>>().join(", ")
            }
            _ => self.placement.to_owned(),
        }
    }

    pub(crate) fn packets(&self) -> u64 {
        self.outcomes.packets()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.outcomes.bytes()
    }
}

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct WorkerState {
    pub(crate) worker: u32,
    #[serde(flatten)]
    pub(crate) place: WorkerPlace,
    /// How it receives: "verbs" or "direct".
    pub(crate) receive: &'static str,
    /// Requested resources that it could not get, with remedies.
    pub(crate) warnings: Vec<String>,
    pub(crate) received_packets: u64,
    pub(crate) received_bytes: u64,
    /// Sums over all rules.
    #[serde(flatten, serialize_with = "WorkerOutcomes::serialize_for_worker")]
    pub(crate) outcomes: WorkerOutcomes,
    /// Received but lost, not dropped by a rule.
    pub(crate) lost_packets: Reasons,
    /// Packets and copies for this worker that met no posted buffer. Not received, and not in the accounting,
    /// which has them among the losses of the ports. `None`: the device does not count them by queue.
    pub(crate) out_of_buffer_packets: Option<u64>,
    /// Not in the accounting: packets that a port lost by them are among its own losses.
    pub(crate) failed_receives: Reasons,
    /// The receive queue is in its error state: it receives nothing until the worker has recovered it.
    pub(crate) failed: bool,
    /// How often the worker has recovered it.
    pub(crate) queue_recoveries: u64,
    /// The loop makes no progress.
    pub(crate) stalled: bool,
    /// Failed polls.
    pub(crate) poll_errors: u64,
    pub(crate) anomalies: Reasons,
    pub(crate) polls: u64,
    pub(crate) empty_polls: u64,
    /// Completions per iteration of the loop.
    pub(crate) batches: Buckets,
    /// Durations of iterations that received packets; a sample.
    pub(crate) turn_ns: Buckets,
    /// The time of the loop since the start: idle, poll, classify, sink. They add up to the time it has run.
    pub(crate) regimes_ns: BTreeMap<&'static str, u64>,
    /// What the kernel accounts to its thread; `None`: the kernel does not show it.
    pub(crate) thread: Option<WorkerThreadState>,
    /// How long packets waited for it; `None` without timestamps.
    pub(crate) latency: Option<LatencyState>,
}

/// Where a worker is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WorkerPlace {
    /// It waits until it is added: no group's table has an entry for it.
    pub(crate) spare: bool,
    /// The core that it is pinned to.
    pub(crate) core: Option<usize>,
}

impl fmt::Display for WorkerPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.core {
            _ if self.spare => f.write_str("is spare"),
            Some(core) => write!(f, "serves on core {core}"),
            None => f.write_str("serves without a core of its own"),
        }
    }
}

/// The thread of a worker, by the kernel's files `schedstat` and `stat` of it
/// (Documentation/scheduler/sched-stats.rst, proc_pid_stat(5)). Waits are part of the regimes' time, because
/// the loop cannot see them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct WorkerThreadState {
    /// The time on a core.
    pub(crate) cpu_ns: u64,
    /// The time for which it was ready to run and waited for a core. A wait is counted when it is over.
    pub(crate) cpu_wait_ns: u64,
    /// Whether it is on a core or waits for one now; otherwise it sleeps, or has ended.
    pub(crate) is_runnable: bool,
}

/// From the device's timestamp of a packet to the worker; a sample of one batch in 16.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct LatencyState {
    pub(crate) ns: Buckets,
    /// `None`: no packet yet.
    pub(crate) p50_ns: Option<u64>,
    pub(crate) p99_ns: Option<u64>,
    pub(crate) max_ns: Option<u64>,
    /// Packets whose timestamp was later than the time at which the worker took them: an error of the
    /// conversion.
    pub(crate) negative: u64,
}

/// A sink and its packets.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct SinkState {
    pub(crate) name: String,
    pub(crate) kind: &'static str,
    /// The rule that it was attached to while the daemon runs; `None`: the policy names it.
    pub(crate) attached_to: Option<String>,
    /// The rules whose packets it gets.
    pub(crate) rules: Vec<String>,
    pub(crate) workers: Vec<SinkTrafficState>,
    /// The packets that the sink sends by a port for others: frames of clients (kind `app`, by worker), or of
    /// the host (kind `kernel`, by queue of the interface). Delivered means sent. Empty if it does not send.
    pub(crate) transmit: Vec<SinkTrafficState>,
    /// The reason why it has been losing all its packets; `None`: it passes packets on, or has had none.
    pub(crate) losing: Option<&'static str>,
    /// The state of the sink: files, clients, errors.
    pub(crate) status: SinkStatus,
    /// How many of its files were deleted to stay within `disk_mb`; `None`: it writes none.
    pub(crate) deleted_files: Option<u64>,
    /// The export of its flows; `None`: they are not exported.
    pub(crate) export: Option<ExportState>,
    /// The packets by size in bytes, with the frame check sequence; `None`: not counted.
    pub(crate) packet_sizes: Option<Buckets>,
    /// The flows with most packets since it was opened, at most [`TOP_FLOWS_MAX`], those with most first;
    /// `None`: not counted.
    pub(crate) top_flows: Option<Vec<TopFlowState>>,
}

impl SinkState {
    /// The sum over all workers.
    pub(crate) fn sum(&self, of: fn(&SinkTrafficState) -> u64) -> u64 {
        self.workers.iter().map(of).sum()
    }

    /// The packets of all workers that it did not pass on, by reason.
    pub(crate) fn dropped(&self) -> Reasons {
        let mut sums = Reasons::new();
        for (reason, packets) in self.workers.iter().flat_map(|traffic| &traffic.dropped_packets) {
            *sums.entry(reason).or_default() += packets;
        }
        sums
    }
}

/// The export of the flows of a sink to a collector.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct ExportState {
    /// Whether messages can be sent to the collector now.
    pub(crate) connected: bool,
    /// The messages that were sent, and the flows in them.
    pub(crate) messages: u64,
    pub(crate) flows: u64,
    /// The flows that were not sent, and their packets.
    pub(crate) lost_flows: u64,
    pub(crate) lost_packets: u64,
    /// Connections and messages that failed.
    pub(crate) errors: u64,
}

/// The most flows of a sink that the state lists.
pub(crate) const TOP_FLOWS_MAX: usize = 100;

/// A flow of a sink.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct TopFlowState {
    /// The flow in the short notation of packets: `192.0.2.1:53 > 198.51.100.7:4242 udp`.
    pub(crate) flow: String,
    /// The packets of the flow, or up to `error` more.
    pub(crate) packets: u64,
    pub(crate) error: u64,
    /// The bytes of the flow, or less.
    pub(crate) bytes: u64,
}

/// The packets that one worker had for a sink.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct SinkTrafficState {
    pub(crate) worker: u32,
    pub(crate) offered_packets: u64,
    pub(crate) offered_bytes: u64,
    pub(crate) delivered_packets: u64,
    pub(crate) delivered_bytes: u64,
    /// Not passed on.
    pub(crate) dropped_packets: Reasons,
    /// Neither delivered nor dropped yet.
    pub(crate) in_flight_packets: i64,
}

/// A distribution in cumulative buckets.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Buckets {
    /// An upper bound and the number of values up to it.
    pub(crate) at_most: Vec<(u64, u64)>,
    pub(crate) count: u64,
    pub(crate) sum: u64,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct PortState {
    pub(crate) port: u8,
    /// The wire of a soft NIC's port.
    pub(crate) wire: String,
    /// Whether the port has a link; `None`: unknown.
    pub(crate) up: Option<bool>,
    /// Why it is not up, or why that is unknown, with the remedy; `None`: it is up.
    pub(crate) problem: Option<String>,
    /// `None`: the device does not count what its ports receive; unknown is not zero.
    #[serde(flatten)]
    pub(crate) counters: Option<PortCounters>,
    /// `None`: the wire takes no packets away from the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) claims: Option<PortClaims>,
    /// `None`: the NIC has no filters of the daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) nic_filters: Option<PortFilters>,
    /// Lost, not dropped by a rule, as far as the device counts it. [`LOST_ON_WIRE`]: lost before the port
    /// received it; all other reasons are part of what it received.
    pub(crate) lost_packets: Reasons,
}

/// The filters of a NIC that drop packets of drop rules, as they were after the last change or comparison.
/// The NIC counts no packets of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct PortFilters {
    pub(crate) filter_model: String,
    /// Filters that are there, in all and by rule.
    pub(crate) filters: u64,
    pub(crate) rules: BTreeMap<String, usize>,
    /// Filters that the NIC has not taken, or that are gone.
    pub(crate) missing: u64,
    /// Filters that could not be removed.
    pub(crate) unwanted: u64,
    /// Filters of other programs.
    pub(crate) foreign: u64,
    /// Filters that were gone and were inserted again.
    pub(crate) restored: u64,
    /// Why filters are missing or unwanted.
    pub(crate) problem: Option<String>,
}

/// The packets that the flows of a port claim of its interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct PortClaims {
    /// Different claims.
    pub(crate) count: u64,
    /// Places of the claims' trees where more packets are taken than are claimed.
    pub(crate) widened_places: u64,
    /// Claims whose packets the XDP program drops itself, unless an earlier one matches.
    pub(crate) dropping: u64,
}

impl PortClaims {
    pub(crate) fn of(ClaimReport { claims, dropping, widened }: ClaimReport) -> Self {
        Self { count: claims as u64, widened_places: widened as u64, dropping: dropping as u64 }
    }
}

/// The name among a port's losses of frames that were lost on the wire before the port received them.
pub(crate) const LOST_ON_WIRE: &str = "wire";

/// The packet accounting, made by [`accounting::check`](crate::telemetry::accounting::check).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Accounting {
    pub(crate) equations: Vec<Equation>,
    /// Received by ports. `None`, here and below: the device does not count it.
    pub(crate) received: Option<u64>,
    /// Lost on the wire before that; also part of `lost`.
    pub(crate) wire_lost: u64,
    /// The outcomes of received packets. `None`: the device does not count them, or the counters of drop
    /// rules have not been read yet.
    #[serde(flatten, serialize_with = "Totals::serialize_totals")]
    pub(crate) outcomes: Totals,
    pub(crate) lost: u64,
    /// Copies that ports handed over in addition to the packets.
    pub(crate) replicated: Option<u64>,
    /// Received and not yet in the counter of an outcome: `received + wire_lost + replicated` minus all of
    /// the above. Such packets wait in a queue, wait in a worker to be classified, or were dropped by a port
    /// after the counters of drop rules had been read.
    pub(crate) in_flight: Option<i64>,
    /// Whether all equations hold; `None`: those that could be checked do, but the counters of drop rules
    /// could not be read.
    pub(crate) matches: Option<bool>,
    /// The most packets that no counter of a drop rule has, because it could not be read after the removal of
    /// its flows.
    pub(crate) uncounted_drops_limit: u64,
    /// Whether the device counts what its ports receive; otherwise only the workers' counters are checked.
    pub(crate) ports_counted: bool,
}

/// One equation between counters. It holds if `difference` is zero, or positive and at most
/// `in_flight_limit`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Equation {
    pub(crate) name: String,
    pub(crate) left: u64,
    pub(crate) right: u64,
    /// `left - right`.
    pub(crate) difference: i64,
    /// How many packets may have been counted on the left and not yet on the right.
    pub(crate) in_flight_limit: u64,
    pub(crate) holds: bool,
}

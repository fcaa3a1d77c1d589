//! What the daemon knows about itself at one moment, as plain data.
//!
//! `Plant::state` fills it; /api/v1/state serialises it; metrics, the live table, the summary and
//! the books read it and nothing else. It holds no handles and computes nothing.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::books::Books;
use crate::deeds::Deed;

/// Counters by a named reason; only reasons that occurred or can occur are listed.
pub(crate) type Reasons = BTreeMap<&'static str, u64>;

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct State {
    pub(crate) version: &'static str,
    pub(crate) started_at_seconds: f64,
    pub(crate) uptime_seconds: f64,
    pub(crate) ready: bool,
    pub(crate) device: DeviceState,
    pub(crate) policy: PolicyState,
    /// Log lines that were not written because nobody took those before them.
    pub(crate) log_lines_dropped: u64,
    pub(crate) rules: Vec<RuleState>,
    pub(crate) workers: Vec<WorkerState>,
    pub(crate) ports: Vec<PortState>,
    pub(crate) books: Books,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct DeviceState {
    pub(crate) name: String,
    pub(crate) soft: bool,
    /// Whether the soft NIC's engine makes no progress; `None`: a real device has no engine of ours.
    pub(crate) engine_stalled: Option<bool>,
    /// Whose limits it has, as far as they are known beforehand.
    pub(crate) profile: String,
    pub(crate) ports: Vec<u8>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct PolicyState {
    pub(crate) source: String,
    pub(crate) generation: u64,
    /// Unix time of the last successful reload, or of the start.
    pub(crate) loaded_at_seconds: f64,
    pub(crate) rules: usize,
    pub(crate) flows: usize,
    pub(crate) reloads_succeeded: u64,
    pub(crate) reloads_failed: u64,
    /// How many warnings there are about it.
    pub(crate) warning_count: usize,
    /// The first of them: what is doubtful in it, then what the device does without or otherwise.
    pub(crate) warnings: Vec<String>,
    /// The first line of what was wrong with the last reload, until one succeeds.
    pub(crate) last_error: Option<String>,
    /// Whether the last reload, or the start if there was none, put its policy in force.
    pub(crate) last_reload_successful: bool,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct RuleState {
    pub(crate) name: String,
    pub(crate) action: String,
    /// The same in one word.
    pub(crate) deed: Deed,
    pub(crate) placement: &'static str,
    /// 0 for the default and for rules of an earlier policy.
    pub(crate) line: u32,
    /// Whether the policy in force has it; counts of earlier rules stay in the books.
    pub(crate) current: bool,
    /// `count = false`: it is counted here, but has no series of its own in the metrics.
    pub(crate) unexported: bool,
    pub(crate) delivered_packets: u64,
    pub(crate) delivered_bytes: u64,
    pub(crate) dropped_packets: u64,
    pub(crate) dropped_bytes: u64,
    /// The device does something to this rule's packets that it does not count: what stands here is
    /// not all there is.
    pub(crate) uncounted: bool,
    /// Left to the kernel by the device.
    pub(crate) kernel_packets: u64,
    /// `None`: the device does not count the bytes of what it leaves to the kernel.
    pub(crate) kernel_bytes: Option<u64>,
    /// The kernel's by the policy, but received by a worker, which cannot give them back.
    pub(crate) lost_exception_packets: u64,
    pub(crate) lost_exception_bytes: u64,
    /// Copies of packets that the rule does not match, discarded by workers: no packets of the rule's.
    pub(crate) filtered_packets: u64,
    pub(crate) filtered_bytes: u64,
    /// Of what the host sends: dropped, or let out by an exception.
    pub(crate) sent_dropped_packets: u64,
    pub(crate) sent_dropped_bytes: u64,
    pub(crate) sent_passed_packets: u64,
    pub(crate) sent_passed_bytes: u64,
}

impl Default for RuleState {
    fn default() -> Self {
        Self {
            name: String::new(),
            action: String::new(),
            deed: Deed::default(),
            placement: "",
            line: 0,
            current: false,
            unexported: false,
            delivered_packets: 0,
            delivered_bytes: 0,
            dropped_packets: 0,
            dropped_bytes: 0,
            uncounted: false,
            kernel_packets: 0,
            kernel_bytes: Some(0),
            lost_exception_packets: 0,
            lost_exception_bytes: 0,
            filtered_packets: 0,
            filtered_bytes: 0,
            sent_dropped_packets: 0,
            sent_dropped_bytes: 0,
            sent_passed_packets: 0,
            sent_passed_bytes: 0,
        }
    }
}

impl RuleState {
    /// Adds the counts of another rule.
    pub(crate) fn add(&mut self, other: &Self) {
        self.delivered_packets += other.delivered_packets;
        self.delivered_bytes += other.delivered_bytes;
        self.dropped_packets += other.dropped_packets;
        self.dropped_bytes += other.dropped_bytes;
        self.kernel_packets += other.kernel_packets;
        self.kernel_bytes = self.kernel_bytes.zip(other.kernel_bytes).map(|(sum, more)| sum + more);
        self.lost_exception_packets += other.lost_exception_packets;
        self.lost_exception_bytes += other.lost_exception_bytes;
        self.filtered_packets += other.filtered_packets;
        self.filtered_bytes += other.filtered_bytes;
        self.sent_dropped_packets += other.sent_dropped_packets;
        self.sent_dropped_bytes += other.sent_dropped_bytes;
        self.sent_passed_packets += other.sent_passed_packets;
        self.sent_passed_bytes += other.sent_passed_bytes;
    }

    pub(crate) fn packets(&self) -> u64 {
        self.delivered_packets
            + self.dropped_packets
            + self.kernel_packets
            + self.lost_exception_packets
            + self.sent_dropped_packets
            + self.sent_passed_packets
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.delivered_bytes
            + self.dropped_bytes
            + self.kernel_bytes.unwrap_or(0)
            + self.lost_exception_bytes
            + self.sent_dropped_bytes
            + self.sent_passed_bytes
    }
}

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct WorkerState {
    pub(crate) worker: u32,
    pub(crate) core: Option<usize>,
    /// What it could not have as asked for, with the remedies.
    pub(crate) warnings: Vec<String>,
    pub(crate) received_packets: u64,
    pub(crate) received_bytes: u64,
    /// Sums of what the rules said about them.
    pub(crate) delivered_packets: u64,
    pub(crate) dropped_packets: u64,
    /// The kernel's by the policy: the worker cannot give them back.
    pub(crate) lost_exception_packets: u64,
    /// Copies that no rule asked for, discarded.
    pub(crate) filtered_packets: u64,
    /// Received, but lost for another reason than a rule.
    pub(crate) lost_packets: Reasons,
    /// Not in the books: what a port could not deliver is among its own losses.
    pub(crate) failed_receives: Reasons,
    /// The receive queue is in its error state: nothing arrives any more.
    pub(crate) failed: bool,
    /// Its loop makes no progress.
    pub(crate) stalled: bool,
    /// Polls that the device refused.
    pub(crate) poll_errors: u64,
    pub(crate) anomalies: Reasons,
    pub(crate) polls: u64,
    pub(crate) empty_polls: u64,
    /// Completions per turn of the loop.
    pub(crate) batches: Buckets,
    /// How long turns took that found something, of a sample of them.
    pub(crate) turn_ns: Buckets,
}

/// A distribution in cumulative buckets.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Buckets {
    /// A bound, and how many values are no larger.
    pub(crate) at_most: Vec<(u64, u64)>,
    pub(crate) count: u64,
    pub(crate) sum: u64,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct PortState {
    pub(crate) port: u8,
    /// What a soft NIC's port is connected to.
    pub(crate) wire: String,
    /// Whether packets can be steered on it now; `None`: the device does not tell.
    pub(crate) up: Option<bool>,
    /// `None`: the device does not count what its ports receive. Unknown is not zero.
    #[serde(flatten)]
    pub(crate) counters: Option<PortCounters>,
    /// Lost for another reason than a rule, as far as the device counts that. "wire": lost before the
    /// port received it, all others are part of what it received.
    pub(crate) lost_packets: Reasons,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct PortCounters {
    pub(crate) received_packets: u64,
    pub(crate) received_bytes: u64,
    pub(crate) delivered_packets: u64,
    /// Copies handed to workers beside what became of the packets themselves.
    pub(crate) replicated_packets: u64,
    /// Dropped by a rule, in the device.
    pub(crate) rule_dropped_packets: u64,
    pub(crate) kernel_packets: u64,
    pub(crate) sent_packets: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) send_errors: u64,
    /// Kept from the wire by an egress rule.
    pub(crate) sent_dropped_packets: u64,
    /// Copies that found no room; what became of the packets themselves is counted all the same.
    pub(crate) lost_copies: u64,
}

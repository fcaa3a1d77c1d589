//! The flight recorder of a policy, as plain data: the packets that workers keep in memory, and the
//! conditions under which the daemon writes them to a file by itself.

use std::ops::RangeInclusive;

use serde::Serialize;

use crate::sink::CaptureSink;

/// The most rules that a recorder can name.
pub const RECORDER_RULES_MAX: usize = 1024;
/// The most triggers of one policy.
pub const RECORDER_TRIGGERS_MAX: usize = 64;

/// The recorder of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RecorderSpec {
    /// The memory and the form of a kept packet.
    #[serde(flatten)]
    pub ring: RecorderRing,
    /// The names of the rules whose packets are kept; `None`: all packets that workers decide.
    pub rules: Option<Vec<String>>,
    /// The conditions under which a record is written.
    pub triggers: Vec<RecorderTrigger>,
}

/// The memory of a recorder. Where it changes, rings begin anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RecorderRing {
    /// The memory of all workers together.
    pub memory_bytes: u64,
    /// The most octets of a packet that are kept.
    pub snap_bytes: u32,
}

impl RecorderRing {
    /// The memory of a recorder: from a few thousand packets to the largest arena.
    pub const MEMORY_BYTES: RangeInclusive<u64> = 1 << 20..=1 << 40;
    /// The octets of a packet: from an Ethernet header to the longest frame.
    pub const SNAP_BYTES: RangeInclusive<u32> = 14..=CaptureSink::SNAP_BYTES_MAX;
    /// The octets of a packet that are kept if the policy does not say how many.
    pub const SNAP_BYTES_DEFAULT: u32 = 128;
}

/// A condition under which a record is written.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum RecorderTrigger {
    /// A sink drops at least so many packets per second, without those that its options leave out.
    SinkDrops {
        /// The name of the sink.
        sink: String,
        /// The rate.
        per_second: u32,
    },
    /// A rule decides at least so many packets per second.
    RulePackets {
        /// The name of the rule.
        rule: String,
        /// The rate.
        per_second: u32,
    },
    /// A worker makes no progress.
    WorkerStalls,
}

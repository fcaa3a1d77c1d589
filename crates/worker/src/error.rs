//! Errors of building and stopping a worker, one variant per operation. The packet path returns none: there a
//! bad packet is a counted drop.

use program::WorkerId;

/// Errors of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting outside its range.
    #[error("worker setting `{setting}` is {value}, but must be within {least}..={most}")]
    Setting {
        /// The name of the setting in [`crate::WorkerConfig`].
        setting: &'static str,
        /// The value that was asked for.
        value: u64,
        /// The least allowed.
        least: u64,
        /// The most allowed.
        most: u64,
    },
    /// A receive queue of the device cannot hold all frames.
    #[error(
        "worker {}: {frames} frames are more than the {limit} receives that a queue of the device holds (max_qp_wr); \
         lower `frames`",
        worker.0
    )]
    ReceiveLimit {
        /// Which worker.
        worker: WorkerId,
        /// Frames, each of which needs a receive.
        frames: u32,
        /// Receives that a queue holds.
        limit: u32,
    },
    /// The device cannot hold as many completions as the worker may have outstanding.
    #[error(
        "worker {}: {wanted} completion queue entries, one for each frame, are more than the device's {limit}; \
         lower `frames`",
        worker.0
    )]
    CompletionLimit {
        /// Which worker.
        worker: WorkerId,
        /// Entries it would need.
        wanted: u32,
        /// Entries that the device offers.
        limit: u32,
    },
    /// The arena could not be mapped.
    #[error("worker {}: no memory of {bytes} bytes for its arena", worker.0)]
    Arena {
        /// Which worker.
        worker: WorkerId,
        /// Bytes asked for.
        bytes: usize,
        /// Why.
        #[source]
        source: hugemem::HugememError,
    },
    /// The tables of sources and flows have no memory.
    #[error(
        "the tables of sources and flows need {} MiB on all workers together: lower `sources` of limits or `flows` of \
         exports in the policy",
        bytes.div_ceil(1 << 20)
    )]
    Tables {
        /// Bytes of all tables.
        bytes: u64,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The frames do not fit in the arena.
    #[error("worker {}: the arena has no room for {bytes} bytes of frames: lower `frames` or `frame_bytes`", worker.0)]
    FrameMemory {
        /// Which worker.
        worker: WorkerId,
        /// Bytes of all frames.
        bytes: usize,
    },
    /// A verb was refused; the message is the verb's own, remedy included.
    #[error("worker {}: {source}", worker.0)]
    Verb {
        /// Which worker.
        worker: WorkerId,
        /// The object that was being made.
        object: Object,
        /// The refusal.
        #[source]
        source: Box<verbs::VerbsError>,
    },
    /// The receive queue took fewer frames than it was made for.
    #[error("worker {}: the receive queue took {posted} of {frames} frames: lower `frames` to that", worker.0)]
    FirstFill {
        /// Which worker.
        worker: WorkerId,
        /// Frames it took.
        posted: usize,
        /// Frames of the pool.
        frames: usize,
    },
    /// The thread could not be started.
    #[error("worker {}: its thread could not be started", worker.0)]
    Spawn {
        /// Which worker.
        worker: WorkerId,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The thread panicked: a bug.
    #[error("worker {}: its thread panicked: {message}", worker.0)]
    Panicked {
        /// Which worker.
        worker: WorkerId,
        /// The panic message.
        message: String,
    },
    /// The thread was asked to stop and did not end in time. It keeps all that it owns.
    #[error("worker {}: its thread does not end", worker.0)]
    StillRunning {
        /// Which worker.
        worker: WorkerId,
    },
}

/// The object of a verb that a worker calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Object {
    /// The device's limits.
    Attributes,
    /// The attributes of a port.
    Port,
    /// The protection domain.
    ProtectionDomain,
    /// The thread domain.
    ThreadDomain,
    /// The parent domain.
    ParentDomain,
    /// The completion queue.
    CompletionQueue,
    /// The receive work queue.
    WorkQueue,
    /// Moving the receive work queue to ready.
    ReadyWorkQueue,
    /// The memory region of its frames.
    MemoryRegion,
    /// The division of that region into frames.
    FramePool,
}

/// Where a worker differs from its configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// A warning of the arena; the text names the remedy.
    Memory(String),
    /// A queue's memory came from the driver because the arena was full.
    OutsideArena {
        /// Bytes the driver asked for.
        bytes: usize,
    },
    /// The thread runs unpinned.
    NotPinned {
        /// The core asked for.
        core: usize,
    },
    /// A port can receive packets that no frame holds.
    ShortFrames {
        /// The port, from 1.
        port: u8,
        /// Bytes per frame.
        frame_bytes: u32,
        /// Bytes of the port's largest packet. If the MTU of its interface is not known, it may be longer.
        packet_bytes: u32,
    },
    /// The device has no thread domains, so its driver locks the queues and allocates their memory.
    NoThreadDomain {
        /// The reason of the refusal.
        reason: String,
    },
    /// The device cannot report completions to a worker that sleeps.
    NoEvents {
        /// The reason of the refusal.
        reason: String,
    },
    /// The worker receives by verbs, although it was to receive directly.
    NotDirect {
        /// The reason of the refusal.
        reason: String,
    },
    /// The device's clock cannot be read or has no rate, so its timestamps cannot be converted.
    NoDeviceClock {
        /// The reason of the refusal.
        reason: String,
    },
}

impl std::fmt::Display for Warning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Memory(text) => f.write_str(text),
            Self::OutsideArena { bytes } => {
                write!(
                    f,
                    "the arena is full: {bytes} bytes of a queue are the driver's own memory, perhaps on another NUMA node"
                )
            }
            Self::NotPinned { core } => {
                write!(
                    f,
                    "cannot pin the thread to core {core}: choose one of the cores this process may use (taskset -p, AllowedCPUs=)"
                )
            }
            Self::ShortFrames { port, frame_bytes, packet_bytes } => {
                write!(
                    f,
                    "port {port} receives packets of {packet_bytes} bytes, which do not fit in frames of {frame_bytes} and will be lost: raise frame_bytes or lower the MTU"
                )
            }
            Self::NoThreadDomain { reason } => {
                write!(f, "the device has no thread domains, its driver locks this worker's queues: {reason}")
            }
            Self::NoEvents { reason } => {
                write!(
                    f,
                    "an idle worker sleeps for at most 4 ms at a time, because there is no completion channel: {reason}"
                )
            }
            Self::NotDirect { reason } => {
                write!(f, "it receives by verbs, not directly: {reason} (hint: device.receive = \"verbs\")")
            }
            Self::NoDeviceClock { reason } => {
                write!(
                    f,
                    "the device's clock cannot be read, so there is no latency of packets: {reason} (hint: timestamps = false)"
                )
            }
        }
    }
}

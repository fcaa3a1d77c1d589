//! What became of every frame of a port. Written by the engine only, read by anyone at any time.

/// The books of one port. `rx_frames` is always the sum of the dispositions ([`PortStats::dispositions`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Frames taken from the wire.
    pub rx_frames: u64,
    /// Bytes of those frames.
    pub rx_bytes: u64,
    /// Frames delivered to at least one receive queue.
    pub delivered: u64,
    /// Frames a flow with a DROP action took.
    pub flow_dropped: u64,
    /// Frames no flow wanted: left to the kernel.
    pub unmatched: u64,
    /// Frames that met a receive queue without posted buffers.
    pub out_of_buffer: u64,
    /// Frames that met a full completion queue.
    pub cq_overrun: u64,
    /// Frames longer than their buffer or than the port's MTU.
    pub oversize: u64,
    /// Frames shorter than an Ethernet header.
    pub runt: u64,
    /// Frames for a queue that was not in a receiving state.
    pub queue_not_ready: u64,
    /// Frames whose posted buffer failed the memory key, bounds or domain check.
    pub memory_fault: u64,
    /// Further copies of delivered frames (sniffer, replication). Not a disposition.
    pub replicated: u64,
    /// Frames sent.
    pub tx_frames: u64,
    /// Bytes of the frames sent.
    pub tx_bytes: u64,
    /// Sends that failed.
    pub tx_errors: u64,
}

impl PortStats {
    /// The sum of what can become of a received frame.
    #[must_use]
    pub fn dispositions(&self) -> u64 {
        self.delivered
            + self.flow_dropped
            + self.unmatched
            + self.out_of_buffer
            + self.cq_overrun
            + self.oversize
            + self.runt
            + self.queue_not_ready
            + self.memory_fault
    }
}

//! The packets of one iteration of the worker's loop: the receiver fills the batch, the classifier gives each packet
//! its outcome, sinks read them or take their frames, and the refill posts the frames again. All memory is allocated when
//! the worker is built.

use program::Outcome;
use verbs::{FlowTag, Frame, FramePool};

/// One received packet.
#[derive(Debug)]
pub(crate) struct Packet {
    /// `None` once a sink has taken it.
    pub(crate) frame: Option<Frame>,
    /// Its length; never more than the frame's.
    pub(crate) bytes: u32,
    pub(crate) tag: Option<FlowTag>,
    pub(crate) timestamp: Option<u64>,
    /// The outcome by its class; `None` before classification and for packets dropped without a rule.
    pub(crate) outcome: Option<Outcome>,
    /// The bits of the sinks that get it.
    pub(crate) sinks: u64,
    /// The generation of the program that decided it.
    pub(crate) generation: u64,
}

/// The packets of one iteration and the frames to be posted at its end.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Frames that are not posted and hold no packet. Those that the queue did not take in the last refill come first.
    pub(crate) frames: Vec<Frame>,
    /// At most the configured batch.
    pub(crate) packets: Vec<Packet>,
    /// The bits of the sinks that get a packet of it.
    pub(crate) sinks: u64,
    /// Completions taken this iteration, failed ones included.
    pub(crate) completions: usize,
    /// The queue was seen empty this iteration.
    pub(crate) drained: bool,
    /// A sink had work this iteration ([`crate::Sink::poll`]).
    pub(crate) sinks_worked: bool,
    /// How many iterations in a row, this one included, have taken no completion.
    pub(crate) empty_iterations: u32,
}

impl Batch {
    pub(crate) fn new(frame_count: usize, limit: usize) -> Self {
        Self {
            frames: Vec::with_capacity(frame_count),
            packets: Vec::with_capacity(limit),
            sinks: 0,
            completions: 0,
            drained: false,
            sinks_worked: false,
            empty_iterations: 0,
        }
    }

    pub(crate) fn clear(&mut self) {
        debug_assert!(self.packets.is_empty(), "their frames were taken back");
        self.sinks = 0;
        self.completions = 0;
        self.drained = false;
        self.sinks_worked = false;
    }

    /// Whether the iteration has moved anything.
    #[inline]
    pub(crate) fn worked(&self) -> bool {
        self.completions > 0 || self.sinks_worked
    }

    /// The iteration found no completion.
    #[inline]
    pub(crate) fn found_nothing(&mut self) {
        self.drained = true;
        self.empty_iterations = self.empty_iterations.saturating_add(1);
    }

    /// The packets have been used: their frames can be posted again, except those that sinks have taken.
    #[inline]
    pub(crate) fn take_frames_back(&mut self) {
        // Never grows: its capacity is the number of the pool's frames.
        self.frames.extend(self.packets.drain(..).filter_map(|packet| packet.frame));
    }
}

impl Packet {
    /// Its bytes; none once a sink has taken the frame.
    #[inline]
    pub(crate) fn data<'b>(&'b self, pool: &'b FramePool) -> &'b [u8] {
        let whole = self.frame.as_ref().map_or(&[][..], |frame| pool.bytes(frame));
        whole.get(..self.bytes as usize).unwrap_or(whole)
    }
}

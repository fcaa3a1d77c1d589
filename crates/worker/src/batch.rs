//! One turn's packets: filled by the receiver, judged by the classifier, read by a sink, emptied by
//! the refill. All its memory is taken when the worker is built.

use program::Outcome;
use verbs::{FlowTag, Frame, FramePool};

/// One received packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    /// Its frame's place in [`Batch::frames`].
    pub(crate) frame: usize,
    /// Its length; never more than the frame's.
    pub(crate) bytes: u32,
    pub(crate) tag: Option<FlowTag>,
    pub(crate) timestamp: Option<u64>,
    /// What its class says; `None` before classification and for packets dropped for a reason.
    pub(crate) outcome: Option<Outcome>,
}

/// The packets of one turn and the frames to be posted at its end.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Frames in the worker's hands. Those that the queue did not take back last turn come first.
    pub(crate) frames: Vec<Frame>,
    /// At most the configured batch.
    pub(crate) packets: Vec<Packet>,
    /// Completions taken this turn, whatever became of them.
    pub(crate) completions: usize,
    /// The queue was seen empty this turn.
    pub(crate) drained: bool,
    /// How many turns running have found nothing at all, this one included.
    pub(crate) empty_turns: u32,
}

impl Batch {
    pub(crate) fn new(frame_count: usize, limit: usize) -> Self {
        Self {
            frames: Vec::with_capacity(frame_count),
            packets: Vec::with_capacity(limit),
            completions: 0,
            drained: false,
            empty_turns: 0,
        }
    }

    pub(crate) fn clear(&mut self) {
        self.packets.clear();
        self.completions = 0;
        self.drained = false;
    }

    /// The turn found no completion.
    #[inline]
    pub(crate) fn found_nothing(&mut self) {
        self.drained = true;
        self.empty_turns = self.empty_turns.saturating_add(1);
    }

    /// The bytes of a packet of this batch.
    #[inline]
    pub(crate) fn bytes<'b>(&'b self, pool: &'b FramePool, packet: &Packet) -> &'b [u8] {
        bytes(&self.frames, pool, packet)
    }
}

/// Beside [`Batch::bytes`] for when the packets are borrowed mutably.
#[inline]
pub(crate) fn bytes<'b>(frames: &'b [Frame], pool: &'b FramePool, packet: &Packet) -> &'b [u8] {
    let whole = frames.get(packet.frame).map_or(&[][..], |frame| pool.bytes(frame));
    whole.get(..packet.bytes as usize).unwrap_or(whole)
}

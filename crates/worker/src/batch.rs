//! The packets of one iteration of the worker's loop: the receiver fills the batch, the classifier gives each packet
//! its outcome, a [`Sink`] reads them, and the refill posts their frames again. All memory is allocated when the worker
//! is built. A sink runs on the worker's thread, a batch at a time, under the same rules as the loop: no lock,
//! allocation, system call or log line per packet. A worker without a sink only counts.

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
    /// The outcome by its class; `None` before classification and for packets dropped without a rule.
    pub(crate) outcome: Option<Outcome>,
}

/// The packets of one iteration and the frames to be posted at its end.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Frames that are not posted. Those that the queue did not take in the last refill come first.
    pub(crate) frames: Vec<Frame>,
    /// At most the configured batch.
    pub(crate) packets: Vec<Packet>,
    /// Completions taken this iteration, failed ones included.
    pub(crate) completions: usize,
    /// The queue was seen empty this iteration.
    pub(crate) drained: bool,
    /// How many iterations in a row, this one included, have taken no completion.
    pub(crate) empty_iterations: u32,
}

impl Batch {
    pub(crate) fn new(frame_count: usize, limit: usize) -> Self {
        Self {
            frames: Vec::with_capacity(frame_count),
            packets: Vec::with_capacity(limit),
            completions: 0,
            drained: false,
            empty_iterations: 0,
        }
    }

    pub(crate) fn clear(&mut self) {
        self.packets.clear();
        self.completions = 0;
        self.drained = false;
    }

    /// The iteration found no completion.
    #[inline]
    pub(crate) fn found_nothing(&mut self) {
        self.drained = true;
        self.empty_iterations = self.empty_iterations.saturating_add(1);
    }

    /// The bytes of a packet of this batch.
    #[inline]
    pub(crate) fn bytes<'b>(&'b self, pool: &'b FramePool, packet: &Packet) -> &'b [u8] {
        bytes(&self.frames, pool, packet)
    }
}

/// As [`Batch::bytes`], while the packets are borrowed mutably.
#[inline]
pub(crate) fn bytes<'b>(frames: &'b [Frame], pool: &'b FramePool, packet: &Packet) -> &'b [u8] {
    let whole = frames.get(packet.frame).map_or(&[][..], |frame| pool.bytes(frame));
    whole.get(..packet.bytes as usize).unwrap_or(whole)
}

/// Takes a worker's packets.
pub trait Sink: Send {
    /// Called once per iteration that received packets, with those that a rule has decided.
    fn run(&mut self, deliveries: Deliveries<'_>);
}

/// One decided packet.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'b> {
    /// The rule and its verdict.
    pub outcome: Outcome,
    /// The tag of its flow; 0 if the flow has none or the device has no tags.
    pub tag: FlowTag,
    /// The packet; its buffer is posted again when the sink returns.
    pub bytes: &'b [u8],
    /// The device's clock at reception, where timestamps were asked for.
    pub timestamp: Option<u64>,
}

/// The decided packets of one iteration.
#[derive(Clone, Copy)]
pub struct Deliveries<'b> {
    pub(crate) batch: &'b Batch,
    pub(crate) pool: &'b FramePool,
}

impl<'b> Deliveries<'b> {
    /// In order of reception.
    pub fn iter(&self) -> impl Iterator<Item = Delivery<'b>> + use<'b> {
        let Self { batch, pool } = *self;
        batch.packets.iter().filter_map(move |packet| {
            Some(Delivery {
                outcome: packet.outcome?,
                tag: packet.tag.unwrap_or(FlowTag(0)),
                bytes: batch.bytes(pool, packet),
                timestamp: packet.timestamp,
            })
        })
    }
}

//! The packets of one iteration of the worker's loop: the receiver fills the batch, the classifier gives each
//! packet its outcome, sinks read them or take their frames, and the refill posts the frames again. All
//! memory is allocated when the worker is built.

use std::vec::Drain;

use program::Outcome;
use verbs::{Frame, FramePool};

use crate::counter::Traffic;
use crate::runtime_rules::RuntimeLookups;

/// One received packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    /// The length in bytes; never more than its frame's.
    pub(crate) bytes: u32,
    /// The tag of its flow, 0 for none.
    pub(crate) tag: u32,
    /// The index of its frame in [`Batch::frames`].
    frame: u32,
}

/// How a packet was decided. Packets that no sink gets have none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decision {
    /// The index of the packet.
    pub(crate) packet: u32,
    /// The outcome by its class.
    pub(crate) outcome: Outcome,
    /// The bits of the sinks that get it.
    pub(crate) sinks: u64,
    /// The generation of the program that decided it.
    pub(crate) generation: u64,
}

/// The packets of one iteration and the frames to be posted at its end.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Frames to be posted at the end of the iteration: those that the queue did not take in the last refill,
    /// and those of completions, with packets and without.
    pub(crate) frames: Vec<Frame>,
    /// While several sinks run that take frames: the frames from [`Batch::first_detached`] on, `None` where
    /// one was taken.
    detached: Vec<Option<Frame>>,
    first_detached: usize,
    /// For [`Batch::take_runs`].
    returned: Vec<Frame>,
    /// At most the configured batch.
    pub(crate) packets: Vec<Packet>,
    /// The device's timestamps of the packets; empty where none were asked for.
    pub(crate) timestamps: Vec<u64>,
    /// In the order of the packets, at most one each.
    pub(crate) decisions: Vec<Decision>,
    /// For rules at run time.
    pub(crate) lookups: RuntimeLookups,
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
            detached: Vec::with_capacity(frame_count),
            first_detached: 0,
            returned: Vec::with_capacity(limit),
            packets: Vec::with_capacity(limit),
            timestamps: Vec::with_capacity(limit),
            decisions: Vec::with_capacity(limit),
            lookups: RuntimeLookups::new(),
            sinks: 0,
            completions: 0,
            drained: false,
            sinks_worked: false,
            empty_iterations: 0,
        }
    }

    pub(crate) fn clear(&mut self) {
        debug_assert!(self.packets.is_empty() && self.detached.is_empty(), "the iteration before has ended");
        self.timestamps.clear();
        self.decisions.clear();
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

    /// Adds a packet.
    #[inline]
    pub(crate) fn receive(&mut self, frame: Frame, bytes: u32, tag: u32) {
        // There are fewer than 2^32 frames.
        self.packets.push(Packet { bytes, tag, frame: self.frames.len() as u32 });
        // Never grows: its capacity is the number of the pool's frames.
        self.frames.push(frame);
    }

    /// How many packets there are, and their bytes.
    pub(crate) fn received(&self) -> Traffic {
        let bytes = self.packets.iter().map(|packet| u64::from(packet.bytes)).sum();
        Traffic { packets: self.packets.len() as u64, bytes }
    }

    /// The frame of a packet; `None` once a sink has taken it.
    #[inline]
    pub(crate) fn frame(&self, packet: &Packet) -> Option<&Frame> {
        let index = packet.frame as usize;
        match self.frames.get(index) {
            Some(frame) => Some(frame),
            None => self.detached.get(index - self.first_detached)?.as_ref(),
        }
    }

    /// The index of the first packet's frame.
    #[inline]
    fn first_of_packets(&self) -> usize {
        self.packets.first().map_or(self.frames.len(), |packet| packet.frame as usize)
    }

    /// Before several sinks run that take frames.
    pub(crate) fn detach_frames(&mut self) {
        self.first_detached = self.first_of_packets();
        self.detached.extend(self.frames.drain(self.first_detached..).map(Some));
    }

    /// Passes the packets of the decisions that `is_for` chooses to `take`, in order of reception, in one or
    /// more runs. Without [`Batch::detach_frames`] before, for the last sink only.
    #[inline]
    pub(crate) fn take_runs(&mut self, is_for: impl Fn(&Decision) -> bool, mut take: impl FnMut(Run<'_>)) {
        let is_detached = !self.detached.is_empty();
        let (first, count) = (self.first_of_packets(), self.packets.len());
        let has_all = !is_detached
            && self.decisions.len() == count
            && self.frames.len() - first == count
            && self.decisions.iter().all(&is_for);
        if !has_all && !is_detached {
            self.detach_frames();
        }
        let Self { decisions, packets, timestamps, detached, first_detached, frames, returned, .. } = self;
        if has_all {
            // Decisions, packets and frames have the same order and number, so they belong together.
            take(Run { decisions, packets, timestamps, frames: frames.drain(first..), returned });
            frames.append(returned);
            return;
        }
        for decision in decisions.iter().filter(|decision| is_for(decision)) {
            let index = decision.packet as usize;
            if let Some(packet) = packets.get(index)
                && let Some(place) = detached.get_mut(packet.frame as usize - *first_detached)
                && let Some(frame) = place.take()
            {
                frames.push(frame);
                let (decisions, packets) = (std::slice::from_ref(decision), std::slice::from_ref(packet));
                let timestamps = timestamps.get(index..).unwrap_or_default();
                let frames = frames.drain(frames.len() - 1..);
                take(Run { decisions, packets, timestamps, frames, returned });
                *place = returned.pop();
            }
        }
        if !is_detached {
            self.reattach_frames();
        }
    }

    /// Ends [`Batch::detach_frames`].
    pub(crate) fn reattach_frames(&mut self) {
        self.frames.extend(self.detached.drain(..).flatten());
    }

    /// The packets have been used: their frames can be posted again, except those that sinks have taken.
    #[inline]
    pub(crate) fn end_packets(&mut self) {
        self.packets.clear();
    }

    /// The bytes of a packet; none once a sink has taken its frame.
    #[inline]
    pub(crate) fn data<'b>(&'b self, packet: &Packet, pool: &'b FramePool) -> &'b [u8] {
        let whole = self.frame(packet).map_or(&[][..], |frame| pool.bytes(frame));
        whole.get(..packet.bytes as usize).unwrap_or(whole)
    }
}

/// Packets whose frames are taken, in order of reception.
pub(crate) struct Run<'b> {
    /// The decisions on the packets, one for each.
    decisions: &'b [Decision],
    packets: &'b [Packet],
    frames: Drain<'b, Frame>,
    /// The timestamps of these packets, and perhaps of others behind them; or none.
    timestamps: &'b [u64],
    /// Never grows: a batch has at most as many packets.
    returned: &'b mut Vec<Frame>,
}

impl Run<'_> {
    /// Passes each packet with its decision, its timestamp and its frame to `take`. What that returns stays
    /// in the batch.
    #[inline]
    pub(crate) fn take_each(
        self,
        mut take: impl FnMut(&Decision, &Packet, Option<u64>, Frame) -> Option<Frame>,
    ) {
        let Self { decisions, packets, frames, timestamps, returned } = self;
        for (index, ((decision, packet), frame)) in decisions.iter().zip(packets).zip(frames).enumerate() {
            if let Some(frame) = take(decision, packet, timestamps.get(index).copied(), frame) {
                returned.push(frame);
            }
        }
    }
}

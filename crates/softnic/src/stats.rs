//! The outcome of every frame of a port. Only the engine writes, once per burst; anyone reads at any time.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use wire::GivenBack;

/// The counters of one port. `rx_frames` is always the sum of the dispositions ([`PortStats::dispositions`]).
///
/// In C's layout, for another copy of this crate ([`crate::preload::host`]): numbers are only added, at the
/// end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PortStats {
    /// Frames taken from the wire.
    pub rx_frames: u64,
    /// Bytes of those frames.
    pub rx_bytes: u64,
    /// Frames that a trapping flow delivered to at least one receive queue.
    pub delivered: u64,
    /// Frames a flow with a DROP action took.
    pub flow_dropped: u64,
    /// Frames that no flow trapped: left to the kernel, whatever copies were made of them. Of a wire that
    /// takes frames away from the kernel ([`wire::Wire::takes_away`]), those that it gave back.
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
    /// Copies that were delivered beside what became of the frame: for DONT_TRAP flows, for sniffers, and for
    /// all queues but the first that one match leads to. Not a disposition.
    pub replicated: u64,
    /// Such copies that were not delivered. Not a disposition.
    pub copies_lost: u64,
    /// Frames that the wire lost before the engine had them; not in `rx_frames`.
    pub wire_lost: u64,
    /// Merged frames that the wire split; not in `rx_frames`.
    pub split_frames: u64,
    /// The frames that it made of them, which are in `rx_frames`.
    pub split_segments: u64,
    /// Frames handed to the wire, without those that it lost, which `tx_errors` counts. A loss that the wire
    /// reports late is subtracted from the frames of the next bursts, so that the number never decreases.
    pub tx_frames: u64,
    /// Bytes of the frames handed to the wire, including those that it lost: it does not report which.
    pub tx_bytes: u64,
    /// Sends that were refused, by the device or by the wire.
    pub tx_errors: u64,
    /// Frames that an EGRESS flow with a DROP action kept from the wire.
    pub tx_flow_dropped: u64,
    /// Datagrams that no queue pair of the device took. They are no frames, and in no other number.
    pub datagrams_lost: u64,
    /// Frames that no flow trapped, lost because with XDP in generic mode the kernel does not pass them on.
    pub unreturned_generic: u64,
    /// Frames that no flow trapped, lost because they are longer than the kernel accepts back.
    pub unreturned_long: u64,
    /// Frames that no flow trapped, lost because the kernel refused to take them back.
    pub unreturned_refused: u64,
    /// Frames that the wire had taken from the kernel and gave back to it; among `unmatched`.
    pub given_back: u64,
    /// Frames that the wire took from the kernel although it is not known whether a flow claims them. Most
    /// are in `rx_frames`, those that it lost then in `wire_lost`.
    pub beyond_claims: u64,
    /// Frames that the wire left to the kernel without taking them; not among `rx_frames`.
    pub passed: u64,
    /// Frames that the wire dropped for flows without handing them over; among `rx_frames` and
    /// `flow_dropped`.
    pub dropped_by_wire: u64,
}

/// How many numbers [`PortStats`] holds.
const FIELDS: usize = 28;

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
            + self.unreturned_generic
            + self.unreturned_long
            + self.unreturned_refused
    }

    /// Moves the frames that a wire could not give back to the kernel from those that were left to it to
    /// those that are lost. They are among the unmatched frames of the same burst.
    pub(crate) fn note_given_back(&mut self, given: GivenBack) {
        self.unmatched = self.unmatched.saturating_sub(given.lost());
        self.given_back += given.frames;
        self.unreturned_generic += given.lost_generic;
        self.unreturned_long += given.lost_long;
        self.unreturned_refused += given.lost_refused;
    }

    /// Counts `frames` that came to the same end.
    pub(crate) fn dispose(&mut self, end: FrameEnd, frames: u64) {
        *match end {
            FrameEnd::Unmatched => &mut self.unmatched,
            FrameEnd::FlowDropped => &mut self.flow_dropped,
            FrameEnd::Runt => &mut self.runt,
            FrameEnd::Oversize => &mut self.oversize,
            FrameEnd::QueueNotReady => &mut self.queue_not_ready,
            FrameEnd::OutOfBuffer => &mut self.out_of_buffer,
            FrameEnd::CqOverrun => &mut self.cq_overrun,
            FrameEnd::MemoryFault => &mut self.memory_fault,
            FrameEnd::Delivered => &mut self.delivered,
        } += frames;
    }

    /// Settles one delivery of a frame whose end was `so_far`. A copy is never the frame's end, and a frame
    /// that a DROP flow took stays dropped. Otherwise the frame is delivered if any delivery succeeds,
    /// whichever comes first. Each delivery is in exactly one of the frame's end, `replicated` and
    /// `copies_lost`.
    #[inline]
    pub(crate) fn settle(&mut self, so_far: &mut FrameEnd, delivery: FrameEnd, is_copy: bool) {
        // By far the most frequent case.
        if *so_far == FrameEnd::Unmatched && delivery == FrameEnd::Delivered && !is_copy {
            *so_far = FrameEnd::Delivered;
        } else {
            self.settle_other(so_far, delivery, is_copy);
        }
    }

    #[cold]
    fn settle_other(&mut self, so_far: &mut FrameEnd, delivery: FrameEnd, is_copy: bool) {
        use FrameEnd::{Delivered, FlowDropped, Unmatched};
        match (*so_far, delivery) {
            (_, Delivered) if is_copy => self.replicated += 1,
            (Delivered | FlowDropped, Delivered) => self.replicated += 1,
            // What failed before was the frame's end so far, and now is a copy that was lost.
            (_, Delivered) => {
                self.copies_lost += 1;
                *so_far = Delivered;
            }
            (Unmatched, _) if !is_copy => *so_far = delivery,
            // The frame has its end already; the copy that failed is counted beside it.
            _ => self.copies_lost += 1,
        }
    }

    /// Every number, in the order in which [`PortCounters`] keeps them.
    fn fields_mut(&mut self) -> [&mut u64; FIELDS] {
        [
            &mut self.rx_frames,
            &mut self.rx_bytes,
            &mut self.delivered,
            &mut self.flow_dropped,
            &mut self.unmatched,
            &mut self.out_of_buffer,
            &mut self.cq_overrun,
            &mut self.oversize,
            &mut self.runt,
            &mut self.queue_not_ready,
            &mut self.memory_fault,
            &mut self.replicated,
            &mut self.copies_lost,
            &mut self.wire_lost,
            &mut self.split_frames,
            &mut self.split_segments,
            &mut self.tx_frames,
            &mut self.tx_bytes,
            &mut self.tx_errors,
            &mut self.tx_flow_dropped,
            &mut self.datagrams_lost,
            &mut self.unreturned_generic,
            &mut self.unreturned_long,
            &mut self.unreturned_refused,
            &mut self.given_back,
            &mut self.beyond_claims,
            &mut self.passed,
            &mut self.dropped_by_wire,
        ]
    }

    fn to_array(mut self) -> [u64; FIELDS] {
        self.fields_mut().map(|field| *field)
    }

    fn from_array(values: [u64; FIELDS]) -> Self {
        let mut stats = Self::default();
        for (field, value) in stats.fields_mut().into_iter().zip(values) {
            *field = value;
        }
        stats
    }
}

/// The outcome of one received frame, as [`PortStats`] counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameEnd {
    /// No flow trapped it: it is left to the kernel.
    Unmatched,
    /// A flow with a DROP action took it.
    FlowDropped,
    /// It is shorter than an Ethernet header.
    Runt,
    /// It is longer than its buffer or than the port's MTU.
    Oversize,
    /// The queue was not in a receiving state.
    QueueNotReady,
    /// The receive queue had no posted buffer.
    OutOfBuffer,
    /// The completion queue was full.
    CqOverrun,
    /// The posted buffer failed the memory key, bounds or domain check.
    MemoryFault,
    /// A receive queue got it.
    Delivered,
}

impl FrameEnd {
    /// The name in counters.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Unmatched => "unmatched",
            Self::FlowDropped => "flow_dropped",
            Self::Runt => "runt",
            Self::Oversize => "oversize",
            Self::QueueNotReady => "queue_not_ready",
            Self::OutOfBuffer => "out_of_buffer",
            Self::CqOverrun => "cq_overrun",
            Self::MemoryFault => "memory_fault",
            Self::Delivered => "delivered",
        }
    }

    pub(crate) const ALL: [Self; 9] = [
        Self::Unmatched,
        Self::FlowDropped,
        Self::Runt,
        Self::Oversize,
        Self::QueueNotReady,
        Self::OutOfBuffer,
        Self::CqOverrun,
        Self::MemoryFault,
        Self::Delivered,
    ];
}

/// The counters as the engine writes them: a sequence lock around single-writer counters, so that readers see
/// consistent counters and the engine never waits.
#[derive(Default)]
pub(crate) struct PortCounters {
    sequence: AtomicU64,
    values: [AtomicU64; FIELDS],
}

impl PortCounters {
    /// Adds a burst. Only one thread at a time calls this: the holder of the engine.
    pub(crate) fn add(&self, burst: &PortStats) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        for (value, added) in self.values.iter().zip(burst.to_array()) {
            if added != 0 {
                value.store(value.load(Ordering::Relaxed).wrapping_add(added), Ordering::Relaxed);
            }
        }
        self.sequence.store(sequence.wrapping_add(2), Ordering::Release);
    }

    /// The counters after some whole number of bursts.
    pub(crate) fn read(&self) -> PortStats {
        loop {
            let before = self.sequence.load(Ordering::Acquire);
            if before & 1 == 0 {
                let values = std::array::from_fn(|index| self.values[index].load(Ordering::Relaxed));
                fence(Ordering::Acquire);
                if self.sequence.load(Ordering::Relaxed) == before {
                    return PortStats::from_array(values);
                }
            }
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_disposition_is_in_the_sum() {
        let mut stats = PortStats::default();
        for (count, end) in (1u64..).zip(FrameEnd::ALL) {
            stats.dispose(end, count);
        }
        assert_eq!(stats.dispositions(), 45);
        assert_eq!(stats.delivered, 9);
        stats.copies_lost = 10;
        stats.wire_lost = 11;
        assert_eq!(PortStats::from_array(stats.to_array()), stats);
    }

    #[test]
    fn a_frame_that_cannot_be_given_back_is_lost_and_not_left_to_the_kernel() {
        let mut stats = PortStats { rx_frames: 10, unmatched: 10, ..PortStats::default() };
        stats.note_given_back(GivenBack { frames: 4, lost_generic: 1, lost_long: 2, lost_refused: 3 });
        assert_eq!((stats.unmatched, stats.given_back, stats.dispositions()), (4, 4, 10));
        let lost = (stats.unreturned_generic, stats.unreturned_long, stats.unreturned_refused);
        assert_eq!(lost, (1, 2, 3));
        assert_eq!(PortStats::from_array(stats.to_array()), stats);
    }

    #[test]
    fn every_copy_is_counted_once_whichever_fails() {
        use FrameEnd::{Delivered, FlowDropped, OutOfBuffer, QueueNotReady, Unmatched};
        // The end before any delivery, the deliveries and whether they are copies, and: the end, replicated,
        // lost.
        for (start, copies, expected) in [
            (Unmatched, vec![(Delivered, false), (OutOfBuffer, false)], (Delivered, 0, 1)),
            (Unmatched, vec![(OutOfBuffer, false), (Delivered, false)], (Delivered, 0, 1)),
            (Unmatched, vec![(OutOfBuffer, false), (QueueNotReady, false)], (OutOfBuffer, 0, 1)),
            (Unmatched, vec![(Delivered, false), (Delivered, false), (Delivered, true)], (Delivered, 2, 0)),
            (Unmatched, vec![(Delivered, true)], (Unmatched, 1, 0)),
            (Unmatched, vec![(OutOfBuffer, true)], (Unmatched, 0, 1)),
            (OutOfBuffer, vec![(Delivered, true)], (OutOfBuffer, 1, 0)),
            (Unmatched, vec![(OutOfBuffer, true), (Delivered, false)], (Delivered, 0, 1)),
            (Unmatched, vec![(Delivered, true), (OutOfBuffer, false)], (OutOfBuffer, 1, 0)),
            (FlowDropped, vec![(Delivered, true)], (FlowDropped, 1, 0)),
            (FlowDropped, vec![(OutOfBuffer, true)], (FlowDropped, 0, 1)),
            (FlowDropped, vec![(Delivered, false)], (FlowDropped, 1, 0)),
        ] {
            let (mut stats, mut end) = (PortStats::default(), start);
            for (delivery, is_copy) in &copies {
                stats.settle(&mut end, *delivery, *is_copy);
            }
            assert_eq!((end, stats.replicated, stats.copies_lost), expected, "{start:?}, {copies:?}");
        }
    }

    #[test]
    fn readers_always_see_consistent_counters() {
        let counters = PortCounters::default();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for turn in 0..100_000u64 {
                    let mut burst = PortStats { rx_frames: 3, ..PortStats::default() };
                    burst.dispose(FrameEnd::ALL[(turn % 9) as usize], 1);
                    burst.dispose(FrameEnd::Delivered, 2);
                    counters.add(&burst);
                }
            });
            while !writer.is_finished() {
                let seen = counters.read();
                assert_eq!(seen.rx_frames, seen.dispositions());
            }
        });
        assert_eq!(counters.read().rx_frames, 300_000);
    }
}

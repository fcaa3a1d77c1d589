//! The outcome of every frame of a port. Only the engine writes, once per burst; anyone reads at any time.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use wire::GivenBack;

/// The part that a number has in the sum of received frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Frames that came to this end, and are not lost.
    Disposition,
    /// Frames that were lost for this reason.
    Loss,
    /// No end of received frames.
    Other,
}

/// Makes [`PortStats`] of rows: each is a number and its [`Role`].
macro_rules! port_stats {
    ($($(#[$doc:meta])* $field:ident: $role:ident;)*) => {
        /// The counters of one port. `rx_frames` is always the sum of the dispositions
        /// ([`PortStats::dispositions`]).
        ///
        /// In C's layout, for another copy of this crate (`host` of softnic-verbs): numbers are only added,
        /// at the end.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[repr(C)]
        pub struct PortStats {
            $($(#[$doc])* pub $field: u64,)*
        }

        /// The name and the role of each number, in the order of the fields.
        const ROWS: &[(&str, Role)] = &[$((stringify!($field), Role::$role),)*];

        impl PortStats {
            fn to_array(self) -> [u64; ROWS.len()] {
                [$(self.$field,)*]
            }

            fn from_array([$($field,)*]: [u64; ROWS.len()]) -> Self {
                Self { $($field,)* }
            }
        }
    };
}

port_stats! {
    /// Frames taken from the wire.
    rx_frames: Other;
    /// Bytes of those frames.
    rx_bytes: Other;
    /// Frames that a trapping flow delivered to at least one receive queue.
    delivered: Disposition;
    /// Frames a flow with a DROP action took.
    flow_dropped: Disposition;
    /// Frames that no flow trapped: left to the kernel, whatever copies were made of them. Of a wire that
    /// takes frames away from the kernel ([`wire::Wire::takes_away`]), those that it gave back.
    unmatched: Disposition;
    /// Frames that met a receive queue without posted buffers.
    out_of_buffer: Loss;
    /// Frames that met a full completion queue.
    cq_overrun: Loss;
    /// Frames longer than their buffer or than the port's MTU.
    oversize: Loss;
    /// Frames shorter than an Ethernet header.
    runt: Loss;
    /// Frames for a queue that was not in a receiving state.
    queue_not_ready: Loss;
    /// Frames whose posted buffer failed the memory key, bounds or domain check.
    memory_fault: Loss;
    /// Copies that were delivered beside what became of the frame: for DONT_TRAP flows, for sniffers, and for
    /// all queues but the first that one match leads to.
    replicated: Other;
    /// Such copies that were not delivered.
    copies_lost: Other;
    /// Frames that the wire lost before the engine had them; not in `rx_frames`.
    wire_lost: Other;
    /// Merged frames that the wire split; not in `rx_frames`.
    split_frames: Other;
    /// The frames that it made of them, which are in `rx_frames`.
    split_segments: Other;
    /// Frames handed to the wire, without those that it lost, which `tx_errors` counts. A loss that the wire
    /// reports late is subtracted from the frames of the next bursts, so that the number never decreases.
    tx_frames: Other;
    /// Bytes of the frames handed to the wire, including those that it lost: it does not report which.
    tx_bytes: Other;
    /// Sends that were refused, by the device or by the wire.
    tx_errors: Other;
    /// Frames that an EGRESS flow with a DROP action kept from the wire.
    tx_flow_dropped: Other;
    /// Datagrams that no queue pair of the device took. They are no frames, and in no other number.
    datagrams_lost: Other;
    /// Frames that no flow trapped, lost because with XDP in generic mode the kernel does not pass them on.
    not_given_back_generic: Loss;
    /// Frames that no flow trapped, lost because they are longer than the kernel accepts back.
    not_given_back_too_long: Loss;
    /// Frames that no flow trapped, lost because the kernel refused to take them back.
    not_given_back_refused: Loss;
    /// Frames that the wire had taken from the kernel and gave back to it; among `unmatched`.
    given_back: Other;
    /// Frames that the wire took from the kernel although it is not known whether a flow claims them. Most
    /// are in `rx_frames`, those that it lost then in `wire_lost`.
    beyond_claims: Other;
    /// Frames that the wire left to the kernel without taking them; not among `rx_frames`.
    passed: Other;
    /// Frames that the wire dropped for flows without handing them over; among `rx_frames` and
    /// `flow_dropped`.
    dropped_by_wire: Other;
}

impl PortStats {
    /// The sum of what can become of a received frame.
    #[must_use]
    pub fn dispositions(&self) -> u64 {
        self.of_roles(|role| role != Role::Other).map(|(_, frames)| frames).sum()
    }

    /// The received frames that were lost, by reason.
    pub fn losses(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        self.of_roles(|role| role == Role::Loss)
    }

    fn of_roles(&self, is_counted: fn(Role) -> bool) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        let rows = ROWS.iter().zip(self.to_array());
        rows.filter(move |((_, role), _)| is_counted(*role)).map(|((name, _), frames)| (*name, frames))
    }

    /// Moves the frames that a wire could not give back to the kernel from those that were left to it to
    /// those that are lost. They are among the unmatched frames of the same burst.
    pub(crate) fn note_given_back(&mut self, given: GivenBack) {
        self.unmatched = self.unmatched.saturating_sub(given.lost());
        self.given_back += given.frames;
        self.not_given_back_generic += given.lost_generic;
        self.not_given_back_too_long += given.lost_long;
        self.not_given_back_refused += given.lost_refused;
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
}

/// Makes [`FrameEnd`] of rows: each is an end and the number of [`PortStats`] that counts it.
macro_rules! frame_ends {
    ($($(#[$doc:meta])* $end:ident => $field:ident;)*) => {
        /// The outcome of one received frame, as [`PortStats`] counts it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum FrameEnd {
            $($(#[$doc])* $end,)*
        }

        impl FrameEnd {
            pub(crate) const ALL: [Self; [$(stringify!($end),)*].len()] = [$(Self::$end,)*];

            /// The name in counters.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$end => stringify!($field),)*
                }
            }
        }

        impl PortStats {
            /// Counts `frames` that came to the same end.
            pub(crate) fn dispose(&mut self, end: FrameEnd, frames: u64) {
                *match end {
                    $(FrameEnd::$end => &mut self.$field,)*
                } += frames;
            }
        }
    };
}

frame_ends! {
    /// No flow trapped it: it is left to the kernel.
    Unmatched => unmatched;
    /// A flow with a DROP action took it.
    FlowDropped => flow_dropped;
    /// It is shorter than an Ethernet header.
    Runt => runt;
    /// It is longer than its buffer or than the port's MTU.
    Oversize => oversize;
    /// The queue was not in a receiving state.
    QueueNotReady => queue_not_ready;
    /// The receive queue had no posted buffer.
    OutOfBuffer => out_of_buffer;
    /// The completion queue was full.
    CqOverrun => cq_overrun;
    /// The posted buffer failed the memory key, bounds or domain check.
    MemoryFault => memory_fault;
    /// A receive queue got it.
    Delivered => delivered;
}

/// The counters as the engine writes them: a sequence lock around single-writer counters, so that readers see
/// consistent counters and the engine never waits.
#[derive(Default)]
pub(crate) struct PortCounters {
    sequence: AtomicU64,
    values: [AtomicU64; ROWS.len()],
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
    fn each_end_is_counted_once() {
        for end in FrameEnd::ALL {
            let mut stats = PortStats::default();
            stats.dispose(end, 1);
            assert_eq!(stats.dispositions(), 1, "{end:?}");
        }
    }

    #[test]
    fn a_frame_that_cannot_be_given_back_is_lost_and_not_left_to_the_kernel() {
        let mut stats = PortStats { rx_frames: 10, unmatched: 10, ..PortStats::default() };
        stats.note_given_back(GivenBack { frames: 4, lost_generic: 1, lost_long: 2, lost_refused: 3 });
        assert_eq!((stats.unmatched, stats.given_back, stats.dispositions()), (4, 4, 10));
        let lost =
            (stats.not_given_back_generic, stats.not_given_back_too_long, stats.not_given_back_refused);
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

//! The sends of frames that a queue pair has in flight, oldest first.
//!
//! The requests of a send queue complete in the order of their posting, and one that fails completes whether
//! it is signalled or not (InfiniBand Architecture Specification, volume 1, chapter 10). So a completion
//! reports its own send and those before it that are not signalled, which have succeeded.
//!
//! Invariant: each frame that was sent without a signal has exactly one entry, in the queue pair that sends
//! it, until that entry is taken, and nothing else gives it back: a completion of its own, which a failed
//! send has, names it with [`UNSIGNALLED`], and pools refuse that. Entries of signalled sends can be stale,
//! because [`FramePool::reclaim`](crate::FramePool::reclaim) gives their frames back, too; but not before the
//! send has completed, and with it all sends before it.

use std::num::NonZeroU32;

use super::MAX_SENDS;
use super::post::{Pieces, QueuedSend};
use crate::frame::{Ledger, UNSIGNALLED};
use crate::{Frame, FramePool};

/// One send.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// The index of the frame in its pool, with [`UNSIGNALLED`] if there is no signal.
    frame: u32,
    /// The length of the packet.
    bytes: u32,
}

impl Entry {
    #[inline]
    fn index(self) -> u32 {
        self.frame & !UNSIGNALLED
    }

    #[inline]
    fn is_signalled(self) -> bool {
        self.frame & UNSIGNALLED == 0
    }
}

/// All sends of one queue pair that were not taken back. Never grows.
pub(super) struct InFlight {
    /// A ring of a power of two, twice as long as the send queue: of a full one at least half is not in the
    /// queue any more.
    entries: Box<[Entry]>,
    /// The length of the send queue.
    sends: u32,
    /// Counted without end; they wrap at 2^32.
    first: u32,
    next: u32,
    /// The pool of the frames of all entries.
    pool: Option<NonZeroU32>,
}

impl InFlight {
    /// For a send queue of this length.
    pub(super) fn new(sends: u32) -> Self {
        let sends = sends.clamp(1, MAX_SENDS);
        let capacity = 2 * sends.next_power_of_two() as usize;
        Self { entries: vec![Entry::default(); capacity].into(), sends, first: 0, next: 0, pool: None }
    }

    /// The number of sends.
    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.next.wrapping_sub(self.first)
    }

    #[inline]
    fn at(&self, position: u32) -> Entry {
        self.entries[position as usize & (self.entries.len() - 1)]
    }

    /// The next sends are of frames of this pool; those of another one are forgotten, and come back by their
    /// pool. False: unsignalled sends of another one are in flight.
    #[inline]
    pub(super) fn use_pool(&mut self, pool: &Ledger) -> bool {
        self.pool == Some(pool.id()) || self.change_to(pool)
    }

    #[cold]
    fn change_to(&mut self, pool: &Ledger) -> bool {
        if (0..self.len()).any(|nth| !self.at(self.first.wrapping_add(nth)).is_signalled()) {
            return false;
        }
        (self.first, self.pool) = (self.next, Some(pool.id()));
        true
    }

    /// Whether there is room for one more. The sends that were not posted yet begin at `batch`; the queue has
    /// no room for more of them than its length. In a full ring the oldest entry is of a send that has
    /// completed, and is dropped if its frame can come back without it.
    #[inline]
    pub(super) fn has_room(&mut self, batch: u32) -> bool {
        if self.next.wrapping_sub(batch) >= self.sends {
            return false;
        }
        if (self.len() as usize) < self.entries.len() {
            return true;
        }
        let is_dropped = self.at(self.first).is_signalled();
        self.first = self.first.wrapping_add(u32::from(is_dropped));
        is_dropped
    }

    /// Adds a send of a frame of `pool`, after [`InFlight::use_pool`] and [`InFlight::has_room`]. The caller
    /// gives up the frame.
    #[inline]
    pub(super) fn push(&mut self, pool: &mut Ledger, frame: &Frame, bytes: u32, is_signalled: bool) {
        if let Some(index) = pool.sent(frame, is_signalled) {
            let signal = if is_signalled { 0 } else { UNSIGNALLED };
            let place = self.next as usize & (self.entries.len() - 1);
            self.entries[place] = Entry { frame: index | signal, bytes };
            self.next = self.next.wrapping_add(1);
        }
    }

    /// How many more sends there is room for, at most `wanted`; none of them was posted yet. As in
    /// [`InFlight::has_room`], old entries are dropped if that is needed: the ring is twice as long as the
    /// queue, so they are of sends that have completed.
    #[inline]
    fn room(&mut self, wanted: usize) -> usize {
        let wanted = wanted.min(self.sends as usize);
        while self.entries.len() - (self.len() as usize) < wanted && self.at(self.first).is_signalled() {
            self.first = self.first.wrapping_add(1);
        }
        wanted.min(self.entries.len() - self.len() as usize)
    }

    /// Adds the first of `packets` as sends without a signal, after [`InFlight::use_pool`]: as many as there
    /// is room for before the end of the ring, and none from the first on that is not in a frame of `pool` or
    /// has pieces outside its frame. Passes to `each` the id of the request, the address of the frame, and
    /// the pieces. Returns how many; the caller gives up these frames.
    #[inline]
    pub(super) fn push_each(
        &mut self,
        pool: &mut FramePool,
        packets: &[QueuedSend],
        mut each: impl FnMut(u64, u64, Pieces),
    ) -> usize {
        let room = self.room(packets.len());
        let (frame_bytes, place) = (pool.frame_bytes(), self.next as usize & (self.entries.len() - 1));
        let mut lender = pool.lender();
        let mut added = 0;
        for (packet, entry) in packets[..room].iter().zip(&mut self.entries[place..]) {
            let &QueuedSend { ref frame, pieces } = packet;
            if !pieces.are_within(frame_bytes) {
                break;
            }
            let Some(slot) = lender.send(frame) else { break };
            let named = slot.wr_id | u64::from(UNSIGNALLED);
            // The index is the lower half.
            *entry = Entry { frame: named as u32, bytes: pieces.bytes() as u32 };
            added += 1;
            each(named, slot.address, pieces);
        }
        self.next = self.next.wrapping_add(added);
        added as usize
    }

    /// Whether the newest send has no signal, because the device has taken a chain in part: then no
    /// completion is to come for it.
    #[inline]
    pub(super) fn ends_unsignalled(&self) -> bool {
        self.len() > 0 && !self.at(self.next.wrapping_sub(1)).is_signalled()
    }

    /// Gives the newest send a signal; there is one. Returns the id of its request.
    #[inline]
    pub(super) fn signal_last(&mut self, pool: &mut Ledger) -> u64 {
        let place = self.next.wrapping_sub(1) as usize & (self.entries.len() - 1);
        let entry = &mut self.entries[place];
        entry.frame &= !UNSIGNALLED;
        pool.signalled(entry.frame)
    }

    /// Removes the sends since `position`, which the device never had; their frames are held again.
    #[cold]
    pub(super) fn refused(&mut self, pool: &mut Ledger, position: u32) {
        while self.next != position {
            self.next = self.next.wrapping_sub(1);
            pool.refused(self.at(self.next).index());
        }
    }

    /// How many sends are older than the one of the frame that `wr_id` names; `None` if there is none.
    #[inline]
    pub(super) fn find(&self, pool: &Ledger, wr_id: u64) -> Option<u32> {
        let frame = pool.named(wr_id).filter(|_| self.pool == Some(pool.id()))?;
        let (before_wrap, after_wrap) = self.slices();
        let place = |entries: &[Entry]| entries.iter().position(|entry| entry.frame == frame);
        let place = place(before_wrap).or_else(|| Some(before_wrap.len() + place(after_wrap)?))?;
        Some(place as u32)
    }

    /// All entries, oldest first: those up to the end of the ring, and those from its start on.
    #[inline]
    fn slices(&self) -> (&[Entry], &[Entry]) {
        let (start, count) = (self.first as usize & (self.entries.len() - 1), self.len() as usize);
        let before_wrap = count.min(self.entries.len() - start);
        (&self.entries[start..start + before_wrap], &self.entries[..count - before_wrap])
    }

    /// Takes the `count` oldest sends back, which have completed and are not named by the completion: passes
    /// the frames of those without a signal to `each`, with the lengths of their packets. The others came or
    /// come back by completions of their own.
    #[inline]
    pub(super) fn take_unnamed(&mut self, pool: &mut Ledger, count: u32, mut each: impl FnMut(Frame, u32)) {
        let (mask, mut taker) = (self.entries.len() - 1, pool.taker());
        for nth in 0..count {
            let entry = self.entries[self.first.wrapping_add(nth) as usize & mask];
            if !entry.is_signalled()
                && let Some(frame) = taker.take_back(entry.index(), false)
            {
                each(frame, entry.bytes);
            }
        }
        self.first = self.first.wrapping_add(count);
    }

    /// Takes the oldest send back, which the completion names. `None`: its frame came back by its pool.
    #[inline]
    pub(super) fn take_named(&mut self, pool: &mut Ledger) -> Option<(Frame, u32)> {
        let entry = self.at(self.first);
        self.first = self.first.wrapping_add(1);
        let frame = pool.taker().take_back(entry.index(), entry.is_signalled());
        Some((frame?, entry.bytes))
    }

    /// Where the next send will be, for [`InFlight::withdraw`].
    #[inline]
    pub(super) fn position(&self) -> u32 {
        self.next
    }

    /// Removes the sends since `position`, which the device never had; their frames are free.
    pub(super) fn withdraw(&mut self, pool: &mut Ledger, position: u32) {
        while self.next != position {
            self.next = self.next.wrapping_sub(1);
            pool.withdrawn(self.at(self.next).index());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENDS: u32 = 4;

    fn ledger(id: u32) -> Ledger {
        Ledger::new(NonZeroU32::new(id).expect("not 0"), 64)
    }

    /// In flight, from a position on that may be about to wrap.
    fn at(first: u32, pool: &Ledger) -> InFlight {
        let mut sends = InFlight { first, next: first, ..InFlight::new(SENDS) };
        assert!(sends.use_pool(pool));
        sends
    }

    /// Sends a frame whose packet has this length; returns the id that its completion would have.
    fn send(sends: &mut InFlight, pool: &mut Ledger, bytes: u32, is_signalled: bool) -> u64 {
        let frame = pool.take().expect("free");
        let signal = if is_signalled { 0 } else { u64::from(UNSIGNALLED) };
        let wr_id = frame.wr_id() | signal;
        assert!(sends.has_room(sends.position()));
        sends.push(pool, &frame, bytes, is_signalled);
        wr_id
    }

    /// The lengths that a completion reports; their frames are free again.
    fn complete(sends: &mut InFlight, pool: &mut Ledger, wr_id: u64) -> Option<Vec<u32>> {
        let older = sends.find(pool, wr_id)?;
        let mut taken = Vec::new();
        sends.take_unnamed(pool, older, |frame, bytes| taken.push((frame, bytes)));
        taken.extend(sends.take_named(pool));
        let lengths = taken.into_iter().map(|(frame, bytes)| {
            assert!(pool.release(&frame));
            bytes
        });
        Some(lengths.collect())
    }

    #[test]
    fn a_completion_gives_the_unsignalled_sends_before_it_also_where_positions_wrap() {
        for first in [0, u32::MAX - 9, u32::MAX - 1, u32::MAX] {
            let mut pool = ledger(7);
            let mut sends = at(first, &pool);
            // More than the ring has entries, so that it wraps as well.
            for round in 0..10 {
                let lengths = [10 * round + 1, 10 * round + 2, 10 * round + 3];
                send(&mut sends, &mut pool, lengths[0], false);
                send(&mut sends, &mut pool, lengths[1], false);
                let last = send(&mut sends, &mut pool, lengths[2], true);
                assert_eq!(sends.len(), 3);
                assert_eq!(complete(&mut sends, &mut pool, last), Some(lengths.to_vec()), "from {first}");
                assert_eq!(complete(&mut sends, &mut pool, last), None, "once");
                assert_eq!((sends.len(), pool.free_count()), (0, 64));
            }
        }
    }

    #[test]
    fn a_failed_unsignalled_send_is_found_by_its_own_completion() {
        let mut pool = ledger(7);
        let mut sends = at(u32::MAX, &pool);
        let first = send(&mut sends, &mut pool, 1, false);
        let second = send(&mut sends, &mut pool, 2, true);
        assert_eq!(complete(&mut sends, &mut pool, first), Some(vec![1]));
        assert_eq!(complete(&mut sends, &mut pool, second), Some(vec![2]));
    }

    #[test]
    fn a_full_ring_drops_the_oldest_send_only_if_its_frame_comes_back_without_it() {
        for first in [0, u32::MAX - 3] {
            let mut pool = ledger(7);
            let mut sends = at(first, &pool);
            // Signalled, and given back by the pool: the entries are stale.
            for _ in 0..2 * SENDS {
                send(&mut sends, &mut pool, 1, true);
            }
            assert!(sends.has_room(sends.position()));
            assert_eq!(sends.len(), 2 * SENDS - 1, "one was dropped");

            let mut sends = at(first, &pool);
            for _ in 0..2 * SENDS {
                send(&mut sends, &mut pool, 1, false);
            }
            assert!(!sends.has_room(sends.position()));
            assert_eq!(sends.len(), 2 * SENDS, "none was dropped");
        }
    }

    #[test]
    fn a_batch_has_room_for_as_many_sends_as_the_queue() {
        let mut pool = ledger(7);
        let mut sends = at(u32::MAX - 1, &pool);
        let batch = sends.position();
        for _ in 0..SENDS {
            assert!(sends.has_room(batch));
            let frame = pool.take().expect("free");
            sends.push(&mut pool, &frame, 1, false);
        }
        assert!(!sends.has_room(batch));
        sends.withdraw(&mut pool, batch);
        assert_eq!((sends.len(), sends.position(), pool.free_count()), (0, batch, 64));
    }

    #[test]
    fn another_pool_waits_for_unsignalled_sends() {
        let (mut one, other) = (ledger(7), ledger(8));
        let mut sends = at(u32::MAX, &one);
        let signalled = send(&mut sends, &mut one, 1, true);
        assert!(sends.use_pool(&other), "what is signalled comes back by its pool");
        assert_eq!(sends.len(), 0);
        assert!(sends.use_pool(&one) && sends.find(&one, signalled).is_none());
        let wr_id = send(&mut sends, &mut one, 1, false);
        assert!(!sends.use_pool(&other));
        assert_eq!(sends.find(&other, wr_id), None);
        assert_eq!(complete(&mut sends, &mut one, wr_id), Some(vec![1]));
        assert!(sends.use_pool(&other));
    }
}

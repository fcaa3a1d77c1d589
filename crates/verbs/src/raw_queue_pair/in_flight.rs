//! The sends of frames that a queue pair has in flight, oldest first.
//!
//! The requests of a send queue complete in the order of their posting, and one that fails completes whether it is signalled or
//! not (InfiniBand Architecture Specification, volume 1, chapter 10). So a completion reports its own send and those before it
//! that are not signalled, which have succeeded.
//!
//! Invariant: each frame that was sent without a signal has exactly one entry, in the queue pair that sends it, until that
//! entry is taken, and nothing else gives it back: a completion of its own, which a failed send has, names it with
//! [`UNSIGNALLED`], and pools refuse that. Entries of signalled sends can be stale, because [`FramePool::reclaim`] gives their
//! frames back, too; but not before the send has completed, and with it all sends before it.

use std::num::NonZeroU32;

use super::MAX_SENDS;
use crate::frame::UNSIGNALLED;
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
    /// A ring of a power of two, twice as long as the send queue: of a full one at least half is not in the queue any more.
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

    /// The next sends are of frames of this pool; those of another one are forgotten, and come back by their pool. False:
    /// unsignalled sends of another one are in flight.
    #[inline]
    pub(super) fn use_pool(&mut self, pool: &FramePool) -> bool {
        self.pool == Some(pool.id()) || self.change_to(pool)
    }

    #[cold]
    fn change_to(&mut self, pool: &FramePool) -> bool {
        if (0..self.len()).any(|nth| !self.at(self.first.wrapping_add(nth)).is_signalled()) {
            return false;
        }
        (self.first, self.pool) = (self.next, Some(pool.id()));
        true
    }

    /// Whether there is room for one more. The sends that were not posted yet begin at `batch`; the queue has no room for more of
    /// them than its length. In a full ring the oldest entry is of a send that has completed, and is dropped if its frame can
    /// come back without it.
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

    /// Adds a send of a frame of `pool`, after [`InFlight::use_pool`] and [`InFlight::has_room`]. The caller gives up the frame.
    #[inline]
    pub(super) fn push(&mut self, pool: &mut FramePool, frame: &Frame, bytes: u32, is_signalled: bool) {
        if let Some(index) = pool.sent(frame, is_signalled) {
            let signal = if is_signalled { 0 } else { UNSIGNALLED };
            let place = self.next as usize & (self.entries.len() - 1);
            self.entries[place] = Entry { frame: index | signal, bytes };
            self.next = self.next.wrapping_add(1);
        }
    }

    /// How many sends are older than the one of the frame that `wr_id` names; `None` if there is none.
    #[inline]
    pub(super) fn find(&self, pool: &FramePool, wr_id: u64) -> Option<u32> {
        let frame = pool.named(wr_id).filter(|_| self.pool == Some(pool.id()))?;
        (0..self.len()).find(|nth| self.at(self.first.wrapping_add(*nth)).frame == frame)
    }

    /// Takes the oldest send back, which has completed. `None`: `is_named` is false, and its frame came or comes back by a
    /// completion of its own.
    #[inline]
    pub(super) fn take(&mut self, pool: &mut FramePool, is_named: bool) -> Option<(Frame, u32)> {
        let entry = self.at(self.first);
        self.first = self.first.wrapping_add(1);
        let is_due = is_named || !entry.is_signalled();
        let frame = if is_due { pool.take_back(entry.index(), entry.is_signalled()) } else { None };
        Some((frame?, entry.bytes))
    }

    /// Where the next send will be, for [`InFlight::withdraw`].
    #[inline]
    pub(super) fn position(&self) -> u32 {
        self.next
    }

    /// Removes the sends since `position`, which the device never had; their frames are free.
    pub(super) fn withdraw(&mut self, pool: &mut FramePool, position: u32) {
        while self.next != position {
            self.next = self.next.wrapping_sub(1);
            pool.withdrawn(self.at(self.next).index());
        }
    }
}

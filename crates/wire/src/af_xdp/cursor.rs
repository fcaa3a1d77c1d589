//! The index protocol below the four rings of an AF_XDP socket: which places the two sides may use.
//!
//! A ring has a power of two of places and two indices, which count places without end and wrap at 2^32. The
//! producer writes places and then stores its index with release order; the consumer loads it with acquire
//! order, reads the places and then stores its own index the same way. So a place is read only after it was
//! written and written again only after it was read. Each side has a cursor with its position, and looks at
//! the other's index only if what it knows of it does not suffice.
//!
//! The other side is the kernel, which is trusted, but an index that makes no sense is not followed: the
//! result would be places outside of the ring's content.
//!
//! `model` checks the protocol with loom: `RUSTFLAGS="--cfg loom" cargo test -p wire --lib cursor::
//! --release`.

#[cfg(all(test, loom))]
pub(super) use loom::sync::atomic::AtomicU32;
#[cfg(not(all(test, loom)))]
pub(super) use std::sync::atomic::AtomicU32;

use std::sync::atomic::Ordering;

/// The places of a ring, by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RingSize {
    places: u32,
}

impl RingSize {
    /// # Panics
    /// If it is no power of two.
    fn of(places: u32) -> Self {
        assert!(places.is_power_of_two(), "the kernel makes rings of a power of two");
        Self { places }
    }

    #[inline]
    fn place(self, index: u32) -> u32 {
        index & (self.places - 1)
    }
}

/// The side that writes places.
#[derive(Debug)]
pub(super) struct ProducerCursor {
    size: RingSize,
    /// The index of the next place.
    next: u32,
    consumed_seen: u32,
}

impl ProducerCursor {
    /// At the start of an empty ring.
    pub(super) fn new(places: u32) -> Self {
        Self { size: RingSize::of(places), next: 0, consumed_seen: 0 }
    }

    /// Returns whether a place can be written.
    #[inline]
    pub(super) fn has_room(&mut self, consumed: &AtomicU32) -> bool {
        if self.in_use() == self.size.places {
            let consumed = consumed.load(Ordering::Acquire);
            if self.next.wrapping_sub(consumed) <= self.size.places {
                self.consumed_seen = consumed;
            }
        }
        self.in_use() < self.size.places
    }

    /// The place to write next; [`has_room`](Self::has_room) must have returned true.
    #[inline]
    pub(super) fn place(&self) -> u32 {
        self.size.place(self.next)
    }

    /// Counts the place as written; the consumer sees it after [`publish`](Self::publish).
    #[inline]
    pub(super) fn advance(&mut self) {
        self.next = self.next.wrapping_add(1);
    }

    /// Shows all written places to the consumer.
    #[inline]
    pub(super) fn publish(&self, produced: &AtomicU32) {
        produced.store(self.next, Ordering::Release);
    }

    /// Returns whether the consumer has taken all published places.
    #[inline]
    pub(super) fn is_drained(&self, consumed: &AtomicU32) -> bool {
        consumed.load(Ordering::Acquire) == self.next
    }

    fn in_use(&self) -> u32 {
        self.next.wrapping_sub(self.consumed_seen)
    }
}

/// The side that reads places.
#[derive(Debug)]
pub(super) struct ConsumerCursor {
    size: RingSize,
    /// The index of the next place.
    next: u32,
    produced_seen: u32,
}

impl ConsumerCursor {
    /// At the start of an empty ring.
    pub(super) fn new(places: u32) -> Self {
        Self { size: RingSize::of(places), next: 0, produced_seen: 0 }
    }

    /// Returns whether there is a place to read.
    #[inline]
    pub(super) fn has_next(&mut self, produced: &AtomicU32) -> bool {
        if self.produced_seen == self.next {
            let produced = produced.load(Ordering::Acquire);
            if produced.wrapping_sub(self.next) <= self.size.places {
                self.produced_seen = produced;
            }
        }
        self.produced_seen != self.next
    }

    /// The place to read next; [`has_next`](Self::has_next) must have returned true.
    #[inline]
    pub(super) fn place(&self) -> u32 {
        self.size.place(self.next)
    }

    /// Counts the place as read; the producer may write it after [`publish`](Self::publish).
    #[inline]
    pub(super) fn advance(&mut self) {
        self.next = self.next.wrapping_add(1);
    }

    /// Gives all read places back to the producer.
    #[inline]
    pub(super) fn publish(&self, consumed: &AtomicU32) {
        consumed.store(self.next, Ordering::Release);
    }
}

#[cfg(test)]
#[cfg(loom)]
mod model;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

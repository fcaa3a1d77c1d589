//! The index protocol below rings with one producer and one consumer: which places the two sides may use.
//!
//! A ring has a power of two of places and two indices, which count places without end and wrap at 2^32. The
//! producer writes places and then stores its index with release order; the consumer loads it with acquire
//! order, reads the places and then stores its own index the same way. So a place is read only after it was
//! written and written again only after it was read. Each side has a cursor with its position, and looks at
//! the other's index only if what it knows of it does not suffice.
//!
//! The indices are in memory that the other side writes to: a kernel, an application, another process. An
//! index that would lead outside of the ring's content is never followed. Most users keep what they knew; a
//! session with a peer ends with it ([`OutsideRing`]).
//!
//! `model` checks the protocol with loom: `RUSTFLAGS="--cfg loom" cargo test -p ring-cursor --lib model::
//! --release`.
//!
//! ```
//! use std::sync::atomic::AtomicU32;
//!
//! use ring_cursor::{ConsumerCursor, ProducerCursor};
//!
//! let (produced, consumed) = (AtomicU32::new(0), AtomicU32::new(0));
//! let (mut producer, mut consumer) = (ProducerCursor::new(4), ConsumerCursor::new(4));
//! assert!(producer.has_room(1, &consumed));
//! assert_eq!(producer.place(), 0);
//! producer.advance_by(1);
//! assert!(!consumer.has_next(&produced), "it was not published");
//! producer.publish(&produced);
//! assert!(consumer.has_next(&produced));
//! ```
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};

/// An index of a ring, which one side writes and the other reads: an atomic, or a model of one. The cursors
/// name the orders, so a model runs those of the program.
pub trait SharedIndex {
    /// Loads the index.
    fn load(&self, order: Ordering) -> u32;

    /// Stores the index.
    fn store(&self, index: u32, order: Ordering);
}

impl SharedIndex for AtomicU32 {
    #[inline]
    fn load(&self, order: Ordering) -> u32 {
        self.load(order)
    }

    #[inline]
    fn store(&self, index: u32, order: Ordering) {
        self.store(index, order);
    }
}

/// The other side's index is outside of what the ring can contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutsideRing;

/// The number of places, which is a power of two.
///
/// # Panics
/// If it is no power of two.
fn checked(places: u32) -> u32 {
    assert!(places.is_power_of_two(), "a ring has a power of two of places");
    places
}

/// The side that writes places.
#[derive(Debug)]
pub struct ProducerCursor {
    places: u32,
    /// How many places may be in use at once.
    limit: u32,
    /// The index of the next place.
    next: u32,
    consumed_seen: u32,
}

impl ProducerCursor {
    /// At the start of an empty ring.
    ///
    /// # Panics
    /// If the number of places is no power of two.
    #[must_use]
    pub fn new(places: u32) -> Self {
        Self::with_limit(places, places)
    }

    /// At the start of an empty ring of which `limit` places may be in use at once.
    ///
    /// # Panics
    /// If the number of places is no power of two, or less than the limit.
    #[must_use]
    pub fn with_limit(places: u32, limit: u32) -> Self {
        assert!(limit <= places, "no more places than there are can be in use");
        Self { places: checked(places), limit, next: 0, consumed_seen: 0 }
    }

    /// How many places can be written, by the last look at the consumer.
    #[inline]
    #[must_use]
    pub fn room(&self) -> u32 {
        self.limit.saturating_sub(self.in_use())
    }

    /// How many places can be written; looks at the consumer only if they are fewer than `wanted`.
    #[inline]
    pub fn room_for(&mut self, wanted: u32, consumed: &impl SharedIndex) -> u32 {
        if self.room() < wanted {
            // On a violation the cursor keeps the index it knew.
            let _ = self.look(consumed);
        }
        self.room()
    }

    /// Returns whether `wanted` places can be written.
    #[inline]
    pub fn has_room(&mut self, wanted: u32, consumed: &impl SharedIndex) -> bool {
        self.room_for(wanted, consumed) >= wanted
    }

    /// Looks at the consumer's index.
    ///
    /// # Errors
    /// The index is none that the consumer can have come to since the last look.
    #[inline]
    pub fn look(&mut self, consumed: &impl SharedIndex) -> Result<(), OutsideRing> {
        let consumed = consumed.load(Ordering::Acquire);
        if self.next.wrapping_sub(consumed) > self.in_use() {
            return Err(OutsideRing);
        }
        self.consumed_seen = consumed;
        Ok(())
    }

    /// The index of the next place.
    #[inline]
    #[must_use]
    pub fn position(&self) -> u32 {
        self.next
    }

    /// The place to write next; there must be [`room`](Self::room).
    #[inline]
    #[must_use]
    pub fn place(&self) -> u32 {
        self.next & (self.places - 1)
    }

    /// The most places that may be in use at once.
    #[inline]
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Counts places as written; the consumer sees them after [`publish`](Self::publish).
    #[inline]
    pub fn advance_by(&mut self, places: u32) {
        self.next = self.next.wrapping_add(places);
    }

    /// Takes back every place written since `position`, none of which was published.
    #[inline]
    pub fn rewind(&mut self, position: u32) {
        if self.in_use() < self.next.wrapping_sub(position) {
            // The consumer claimed to have read some of them. An index beyond the new position would make
            // `in_use` wrap, and no later index would be a violation.
            self.consumed_seen = position;
        }
        self.next = position;
    }

    /// Shows all written places to the consumer.
    #[inline]
    pub fn publish(&self, produced: &impl SharedIndex) {
        produced.store(self.next, Ordering::Release);
    }

    /// Returns whether the consumer has taken all published places.
    #[inline]
    pub fn is_drained(&self, consumed: &impl SharedIndex) -> bool {
        consumed.load(Ordering::Acquire) == self.next
    }

    #[inline]
    fn in_use(&self) -> u32 {
        self.next.wrapping_sub(self.consumed_seen)
    }
}

/// The side that reads places.
#[derive(Debug)]
pub struct ConsumerCursor {
    places: u32,
    /// The index of the next place.
    next: u32,
    produced_seen: u32,
}

impl ConsumerCursor {
    /// At the start of an empty ring.
    ///
    /// # Panics
    /// If the number of places is no power of two.
    #[must_use]
    pub fn new(places: u32) -> Self {
        Self { places: checked(places), next: 0, produced_seen: 0 }
    }

    /// How many places can be read, by the last look at the producer.
    #[inline]
    #[must_use]
    pub fn published(&self) -> u32 {
        self.produced_seen.wrapping_sub(self.next)
    }

    /// Looks at the producer unless `wanted` places are known to be there.
    #[inline]
    pub fn refresh(&mut self, wanted: u32, produced: &impl SharedIndex) {
        if self.published() < wanted {
            // On a violation the cursor keeps the index it knew.
            let _ = self.look(produced);
        }
    }

    /// Returns whether there is a place to read.
    #[inline]
    pub fn has_next(&mut self, produced: &impl SharedIndex) -> bool {
        self.refresh(1, produced);
        self.produced_seen != self.next
    }

    /// Looks at the producer's index.
    ///
    /// # Errors
    /// The index is further ahead than the ring is long, or behind what was published at the last look.
    #[inline]
    pub fn look(&mut self, produced: &impl SharedIndex) -> Result<(), OutsideRing> {
        let produced = produced.load(Ordering::Acquire);
        let ahead = produced.wrapping_sub(self.next);
        if ahead > self.places || ahead < self.published() {
            return Err(OutsideRing);
        }
        self.produced_seen = produced;
        Ok(())
    }

    /// The index of the next place.
    #[inline]
    #[must_use]
    pub fn position(&self) -> u32 {
        self.next
    }

    /// The place to read next; there must be a [`published`](Self::published) one.
    #[inline]
    #[must_use]
    pub fn place(&self) -> u32 {
        self.next & (self.places - 1)
    }

    /// How many places from the next one on there are up to the end of the ring, where it starts again.
    #[inline]
    #[must_use]
    pub fn to_end(&self) -> u32 {
        self.places - self.place()
    }

    /// Counts places as read; the producer may write them after [`publish`](Self::publish).
    #[inline]
    pub fn advance_by(&mut self, places: u32) {
        self.next = self.next.wrapping_add(places);
    }

    /// Counts the places that are known to be published as read.
    #[inline]
    pub fn skip_published(&mut self) {
        self.next = self.produced_seen;
    }

    /// Gives all read places back to the producer.
    #[inline]
    pub fn publish(&self, consumed: &impl SharedIndex) {
        consumed.store(self.next, Ordering::Release);
    }
}

#[cfg(test)]
#[cfg(loom)]
mod model;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

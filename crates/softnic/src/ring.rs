//! Single-producer single-consumer rings on memory that may belong to the application.
//!
//! Receive, send and completion queues are all [`Ring`]s of fixed-size slots: one side lives in the object
//! that the application holds, the other in the engine. Each side caches the other's index and publishes its
//! own once per batch, so the index lines change cores once per batch and not once per packet. Nothing here
//! locks or allocates after the ring is made.
//!
//! [`ring_cursor`] has the protocol of the indices, and why the two sides never use one slot at the same time.
//!
//! What `model` checks with loom, in every order of the two sides' steps that the memory model allows: a slot
//! is read only after it was filled, and filled again only after it was read and given back; nothing is lost,
//! doubled or out of order; a batch is seen whole or not at all. Run with `RUSTFLAGS="--cfg loom" cargo test
//! -p softnic --lib ring:: --release`.

mod indices;

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hugemem::prefetch_read;
pub(crate) use indices::DOORBELL_BYTES;
use indices::Indices;
use ring_cursor::{ConsumerCursor, ProducerCursor, SharedIndex};

use crate::errno::{EINVAL, ENOMEM, Verb, VerbErrno};
pub use crate::queue_memory::Allocator;
use crate::queue_memory::QueueMemory;

/// The most slots a ring can have.
pub(crate) const MAX_SLOTS: u32 = 1 << 22;

/// The alignment of doorbell records and slots.
pub(crate) const RING_ALIGN: usize = 128;

/// The shared part of a ring. Indices count slots without end and wrap at 2^32.
pub struct Ring {
    /// Kept for the ends, which know where the slots in it are.
    _slots: QueueMemory,
    indices: Indices,
}

// SAFETY: the memory is owned by the ring until it is dropped; slots are handed from side to side by the
// indices' release and acquire, and `RingProducer` and `RingConsumer` see to it that each side exists once.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

/// Where the memory of a ring comes from.
#[derive(Clone, Copy)]
pub struct RingMemory<'a> {
    /// The allocator of the client's parent domain; without one the memory is the device's own.
    pub allocator: Option<&'a Allocator>,
    /// The purpose of the slots, which the allocator receives.
    pub resource: u64,
    /// The purpose of the indices.
    pub doorbell: u64,
    /// The errno for an allocator that gives no memory.
    pub refusal: VerbErrno,
}

impl RingMemory<'_> {
    fn allocate(&self, bytes: usize, resource: u64) -> Verb<QueueMemory> {
        match self.allocator {
            Some(allocator) => allocator.allocate(bytes, RING_ALIGN, resource).ok_or(self.refusal),
            None => QueueMemory::own(bytes, RING_ALIGN).ok_or(ENOMEM),
        }
    }
}

impl Ring {
    /// Makes the two ends of a ring in which `entries` slots can be filled. Not to be called with the state
    /// locked: the allocator is the application's code. A queue of [`crate::objects`] takes only an end whose
    /// slots have the bytes of its entries.
    ///
    /// # Errors
    /// EINVAL beyond `MAX_SLOTS`, ENOMEM if there is no memory, and the refusal of `memory`.
    pub fn make(
        entries: u32,
        slot_bytes: usize,
        memory: RingMemory<'_>,
    ) -> Verb<(RingProducer, RingConsumer)> {
        let (bytes, capacity) = Self::shape(entries, slot_bytes).ok_or(EINVAL)?;
        let slots = memory.allocate(bytes, memory.resource)?;
        let doorbell = memory.allocate(DOORBELL_BYTES, memory.doorbell)?;
        Ok(Self::ends(slots, doorbell, slot_bytes, capacity, entries))
    }

    /// The bytes of slots that a ring of `entries` takes, and its capacity; `None` beyond [`MAX_SLOTS`].
    pub(crate) fn shape(entries: u32, slot_bytes: usize) -> Option<(usize, u32)> {
        let capacity =
            entries.max(2).checked_next_power_of_two().filter(|&capacity| capacity <= MAX_SLOTS)?;
        Some(((capacity as usize).checked_mul(slot_bytes)?, capacity))
    }

    /// Makes the two ends of a ring in which `limit` slots can be filled. `slots` must hold the bytes and
    /// `capacity` be the one of [`Ring::shape`], `doorbell` hold [`DOORBELL_BYTES`].
    pub(crate) fn ends(
        slots: QueueMemory,
        doorbell: QueueMemory,
        slot_bytes: usize,
        capacity: u32,
        limit: u32,
    ) -> (RingProducer, RingConsumer) {
        assert!(capacity.is_power_of_two() && slots.bytes() >= capacity as usize * slot_bytes);
        assert!(limit <= capacity);
        let layout = Layout { address: slots.address(), slot_bytes, mask: capacity - 1 };
        let ring = Arc::new(Self { _slots: slots, indices: Indices::new(doorbell) });
        let producer = RingProducer {
            ring: Arc::clone(&ring),
            layout,
            cursor: ProducerCursor::with_limit(capacity, limit),
        };
        (producer, RingConsumer { ring, layout, cursor: ConsumerCursor::new(capacity) })
    }
}

/// Where the slots of a ring are. Each end has a copy, so that it reaches a slot without a look at the ring.
#[derive(Clone, Copy)]
struct Layout {
    address: NonNull<u8>,
    slot_bytes: usize,
    mask: u32,
}

// SAFETY: an address that only the ends of its ring follow, which keep the ring's memory.
unsafe impl Send for Layout {}
// SAFETY: as above.
unsafe impl Sync for Layout {}

impl Layout {
    /// Refuses slots of other bytes than the entries of a queue.
    fn check_slots(self, entry_bytes: usize) -> Verb<()> {
        if self.slot_bytes == entry_bytes { Ok(()) } else { Err(EINVAL) }
    }

    #[inline]
    fn slot(self, index: u32) -> NonNull<u8> {
        let offset = (index & self.mask) as usize * self.slot_bytes;
        // SAFETY: the masked index is below `capacity`, and `ends` checked that the slots hold `capacity`
        // slots.
        unsafe { self.address.add(offset) }
    }
}

/// The slots of a ring from one on: for loops over many.
#[derive(Clone, Copy)]
pub struct Slots<'r> {
    layout: Layout,
    first: u32,
    _ring: PhantomData<&'r Ring>,
}

impl Slots<'_> {
    /// The slot `nth` behind the first.
    #[inline]
    pub fn at(&self, nth: u32) -> NonNull<u8> {
        self.layout.slot(self.first.wrapping_add(nth))
    }

    /// How many slots from the `nth` on follow each other in memory: the ring starts again behind them.
    #[inline]
    pub fn run(&self, nth: u32) -> u32 {
        let Layout { mask, .. } = self.layout;
        (mask - (self.first.wrapping_add(nth) & mask)) + 1
    }

    /// Bytes from a slot to the next one of a run.
    #[inline]
    pub fn stride(&self) -> usize {
        self.layout.slot_bytes
    }
}

/// The end that fills slots.
pub struct RingProducer {
    ring: Arc<Ring>,
    layout: Layout,
    cursor: ProducerCursor,
}

impl RingProducer {
    /// Refuses a ring whose slots have other bytes than the entries of a queue.
    pub(crate) fn check_slots(&self, entry_bytes: usize) -> Verb<()> {
        self.layout.check_slots(entry_bytes)
    }

    /// Whether `wanted` slots can be filled.
    #[inline]
    pub fn has_room(&mut self, wanted: u32) -> bool {
        self.room_for(wanted) >= wanted
    }

    /// How many slots can be filled; looks at the consumer only if they are fewer than `wanted`.
    #[inline]
    pub fn room_for(&mut self, wanted: u32) -> u32 {
        self.cursor.room_for(wanted, self.ring.indices.consumed())
    }

    /// The next slot to fill; [`RingProducer::has_room`] must have returned true.
    #[inline]
    #[must_use]
    pub fn slot(&self) -> NonNull<u8> {
        self.layout.slot(self.cursor.position())
    }

    /// The slots from the next one on, of which as many can be filled as there is room for.
    #[inline]
    #[must_use]
    pub fn slots(&self) -> Slots<'_> {
        Slots { layout: self.layout, first: self.cursor.position(), _ring: PhantomData }
    }

    /// Counts the slot as filled; the consumer sees it after [`RingProducer::publish`].
    #[inline]
    pub fn advance(&mut self) {
        self.advance_by(1);
    }

    /// Advances as [`RingProducer::advance`] does, by several slots.
    #[inline]
    pub fn advance_by(&mut self, slots: u32) {
        self.cursor.advance_by(slots);
    }

    /// The index of the next slot, for [`RingProducer::rewind`].
    #[inline]
    #[must_use]
    pub fn position(&self) -> u32 {
        self.cursor.position()
    }

    /// Takes back every slot filled since `position`, none of which was published.
    #[inline]
    pub fn rewind(&mut self, position: u32) {
        self.cursor.rewind(position);
    }

    /// Shows every filled slot to the consumer.
    #[inline]
    pub fn publish(&self) {
        self.cursor.publish(self.ring.indices.produced());
    }

    /// The slot at `index`: to be read if it was filled, and not yet a ring ago.
    #[inline]
    pub(crate) fn peek(&self, index: u32) -> NonNull<u8> {
        self.layout.slot(index)
    }

    /// Where the consumer stands. The index may be anything if the application wrote to it.
    pub(crate) fn consumed(&self) -> u32 {
        SharedIndex::load(self.ring.indices.consumed(), Ordering::Acquire)
    }

    /// How many slots can be filled at once.
    #[inline]
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.cursor.limit()
    }
}

/// The end that empties slots.
pub struct RingConsumer {
    ring: Arc<Ring>,
    layout: Layout,
    cursor: ConsumerCursor,
}

impl RingConsumer {
    /// Refuses a ring whose slots have other bytes than the entries of a queue.
    pub(crate) fn check_slots(&self, entry_bytes: usize) -> Verb<()> {
        self.layout.check_slots(entry_bytes)
    }

    /// Whether there is a slot to read.
    #[inline]
    pub fn has_next(&mut self) -> bool {
        self.cursor.has_next(self.ring.indices.produced())
    }

    /// Looks at the producer's index, unless `wanted` slots are known to be there.
    #[inline]
    pub(crate) fn refresh(&mut self, wanted: u32) {
        self.cursor.refresh(wanted, self.ring.indices.produced());
    }

    /// How many slots there are to read, by the last look at the producer.
    #[inline]
    pub(crate) fn published(&self) -> u32 {
        self.cursor.published()
    }

    /// The slots from `position` on: to be read up to the next one, if they were not given back.
    pub(crate) fn slots_from(&self, position: u32) -> Slots<'_> {
        Slots { layout: self.layout, first: position, _ring: PhantomData }
    }

    /// The slots from the next one on, of which the published ones are to be read.
    #[inline]
    #[must_use]
    pub fn slots(&self) -> Slots<'_> {
        Slots { layout: self.layout, first: self.cursor.position(), _ring: PhantomData }
    }

    /// How many slots there are to read.
    pub(crate) fn available(&mut self) -> u32 {
        self.refresh(u32::MAX);
        self.published()
    }

    /// The next slot, and how many slots from it on are to be read and next to each other in memory. Looks at
    /// the producer only if none is known.
    #[inline]
    pub fn run(&mut self) -> (NonNull<u8>, u32) {
        self.refresh(1);
        (self.slot(), self.published().min(self.cursor.to_end()))
    }

    /// Fetches the slot `ahead` of the next one, if it is known to be there.
    #[inline]
    pub fn prefetch(&self, ahead: u32) {
        if ahead < self.published() {
            prefetch_read(self.layout.slot(self.cursor.position().wrapping_add(ahead)).as_ptr());
        }
    }

    /// The index of the next slot.
    #[inline]
    #[must_use]
    pub fn position(&self) -> u32 {
        self.cursor.position()
    }

    /// The next slot; [`RingConsumer::has_next`] must have returned true.
    #[inline]
    #[must_use]
    pub fn slot(&self) -> NonNull<u8> {
        self.layout.slot(self.cursor.position())
    }

    /// Counts the slot as read; the producer may fill it after [`RingConsumer::publish`].
    #[inline]
    pub fn advance(&mut self) {
        self.advance_by(1);
    }

    /// Advances as [`RingConsumer::advance`] does, by several slots.
    #[inline]
    pub fn advance_by(&mut self, slots: u32) {
        self.cursor.advance_by(slots);
    }

    /// Gives every read slot back to the producer.
    #[inline]
    pub fn publish(&self) {
        self.cursor.publish(self.ring.indices.consumed());
    }

    /// Gives back everything that was published, unread.
    pub(crate) fn discard(&mut self) {
        while self.has_next() {
            self.cursor.skip_published();
        }
        self.publish();
    }
}

#[cfg(test)]
#[cfg(loom)]
mod model;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

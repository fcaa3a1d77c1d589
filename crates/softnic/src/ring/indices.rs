//! The two indices of a ring: in its doorbell record, or, where loom explores what two threads can see of
//! them, among loom's own atomics, which cannot be placed in given memory.

pub(super) use kind::Indices;

/// Bytes of the doorbell record: two indices, each alone in the pair of lines that x86 prefetches together.
pub(crate) const DOORBELL_BYTES: usize = 256;

#[cfg(not(all(test, loom)))]
mod kind {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::DOORBELL_BYTES;
    use crate::queue_memory::QueueMemory;

    const PRODUCED_OFFSET: usize = 0;
    const CONSUMED_OFFSET: usize = DOORBELL_BYTES / 2;

    /// The indices, in memory that may belong to the application.
    pub(in crate::ring) struct Indices {
        doorbell: QueueMemory,
    }

    impl Indices {
        /// Both 0. The record must have [`DOORBELL_BYTES`].
        pub(in crate::ring) fn new(doorbell: QueueMemory) -> Self {
            assert!(doorbell.bytes() >= DOORBELL_BYTES);
            let indices = Self { doorbell };
            indices.produced().store(0, Ordering::Relaxed);
            indices.consumed().store(0, Ordering::Relaxed);
            indices
        }

        #[inline]
        pub(in crate::ring) fn produced(&self) -> &AtomicU32 {
            self.index(PRODUCED_OFFSET)
        }

        #[inline]
        pub(in crate::ring) fn consumed(&self) -> &AtomicU32 {
            self.index(CONSUMED_OFFSET)
        }

        #[inline]
        fn index(&self, offset: usize) -> &AtomicU32 {
            // SAFETY: the record has `DOORBELL_BYTES` (checked in `new`) and both offsets lie inside it.
            let address = unsafe { self.doorbell.address().add(offset) };
            // SAFETY: in bounds, aligned (records are aligned to `RING_ALIGN`), and only ever used as an
            // atomic.
            unsafe { AtomicU32::from_ptr(address.cast::<u32>().as_ptr()) }
        }
    }
}

#[cfg(all(test, loom))]
mod kind {
    use std::sync::atomic::Ordering;

    use loom::sync::atomic::AtomicU32;
    use ring_cursor::SharedIndex;

    use crate::queue_memory::QueueMemory;

    /// An index, as loom follows it.
    pub(in crate::ring) struct ModelledIndex(AtomicU32);

    impl SharedIndex for ModelledIndex {
        fn load(&self, order: Ordering) -> u32 {
            self.0.load(order)
        }

        fn store(&self, index: u32, order: Ordering) {
            self.0.store(index, order);
        }
    }

    /// The indices, as loom follows them.
    pub(in crate::ring) struct Indices {
        produced: ModelledIndex,
        consumed: ModelledIndex,
    }

    impl Indices {
        pub(in crate::ring) fn new(_: QueueMemory) -> Self {
            let index = || ModelledIndex(AtomicU32::new(0));
            Self { produced: index(), consumed: index() }
        }

        pub(in crate::ring) fn produced(&self) -> &ModelledIndex {
            &self.produced
        }

        pub(in crate::ring) fn consumed(&self) -> &ModelledIndex {
            &self.consumed
        }
    }
}

//! Memory that a device and this process use at the same time.
//!
//! Queues in such memory are written against [`DeviceMemory`], so that tests run them over a memory whose
//! reads return what a processor and a bus may reorder (`simulated`). [`MappedMemory`] is the real one.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A kind of memory shared with a device.
pub(crate) trait DeviceMemory {
    /// Entries of `ENTRY` bytes, a power of two of them.
    type Ring<const ENTRY: usize>: DeviceRing;
}

/// A cyclic array of entries in memory shared with a device. Indices count on beyond its length. Words are in
/// network byte order in memory, and lie at multiples of their size.
///
/// Accesses may be seen, and may see the other side's, in any order, but for the two barriers. These order
/// accesses to all rings.
pub(crate) trait DeviceRing {
    /// The word of 8 bytes at byte `AT` of an entry.
    fn load_u64<const AT: usize>(&self, index: u32) -> u64;

    /// The word of 4 bytes at byte `AT` of an entry.
    fn load_u32<const AT: usize>(&self, index: u32) -> u32;

    /// Writes the word of 8 bytes at byte `AT` of an entry.
    fn store_u64<const AT: usize>(&self, index: u32, value: u64);

    /// Writes the word of 4 bytes at byte `AT` of an entry.
    fn store_u32<const AT: usize>(&self, index: u32, value: u32);

    /// Begins to fetch an entry, which will be read.
    fn prefetch(&self, index: u32);

    /// Loads after this see all that the device wrote before a word which was loaded before this
    /// (`udma_from_device_barrier`, rdma-core util/udma_barrier.h). Stores after it come after loads before
    /// it.
    fn acquire_from_device(&self);

    /// A device that sees a word stored after this also sees those stored before it
    /// (`udma_to_device_barrier`).
    fn release_to_device(&self);

    /// Has a store to a register of the device, or to a record that it reads next, leave the processor before
    /// anything after it: registers may be mapped as write-combining (`mmio_wc_start`, `mmio_flush_writes`).
    fn flush_to_device(&self);
}

/// Memory of this process that a device reads and writes.
pub(crate) enum MappedMemory {}

impl DeviceMemory for MappedMemory {
    type Ring<const ENTRY: usize> = MappedRing<ENTRY>;
}

/// A ring in [`MappedMemory`].
pub(crate) struct MappedRing<const ENTRY: usize> {
    start: NonNull<u8>,
    /// The number of entries less one.
    mask: u32,
}

// SAFETY: an address, of memory that any thread may use; all accesses are atomic.
unsafe impl<const ENTRY: usize> Send for MappedRing<ENTRY> {}

impl<const ENTRY: usize> MappedRing<ENTRY> {
    /// A ring at `start`; `None` if the number of entries is no power of two, or the memory not aligned to 8
    /// bytes.
    ///
    /// # Safety
    /// The memory, `entries` times `ENTRY` bytes, is mapped as long as the ring exists, and is accessed by
    /// nobody in this process otherwise than by atomics.
    pub(crate) unsafe fn new(start: *mut u8, entries: u32) -> Option<Self> {
        let start = NonNull::new(start)?;
        let is_aligned = start.addr().get().is_multiple_of(size_of::<u64>());
        let mask = entries.checked_sub(1)?;
        (is_aligned && entries.is_power_of_two()).then_some(Self { start, mask })
    }

    /// The address of a word of `T` at byte `AT` of an entry: within the memory and aligned.
    #[inline]
    fn place<T, const AT: usize>(&self, index: u32) -> *mut T {
        const { assert!(AT + size_of::<T>() <= ENTRY && AT.is_multiple_of(size_of::<T>())) };
        const { assert!(ENTRY.is_power_of_two() && ENTRY >= size_of::<u64>()) };
        let offset = (index & self.mask) as usize * ENTRY + AT;
        self.start.as_ptr().wrapping_add(offset).cast()
    }

    #[inline]
    fn word_u64<const AT: usize>(&self, index: u32) -> &AtomicU64 {
        // SAFETY: within memory that the caller of `new` keeps mapped, and aligned (`place`); accessed by
        // atomics only.
        unsafe { AtomicU64::from_ptr(self.place::<u64, AT>(index)) }
    }

    #[inline]
    fn word_u32<const AT: usize>(&self, index: u32) -> &AtomicU32 {
        // SAFETY: within memory that the caller of `new` keeps mapped, and aligned (`place`); accessed by
        // atomics only.
        unsafe { AtomicU32::from_ptr(self.place::<u32, AT>(index)) }
    }
}

impl<const ENTRY: usize> DeviceRing for MappedRing<ENTRY> {
    #[inline]
    fn load_u64<const AT: usize>(&self, index: u32) -> u64 {
        u64::from_be(self.word_u64::<AT>(index).load(Ordering::Relaxed))
    }

    #[inline]
    fn load_u32<const AT: usize>(&self, index: u32) -> u32 {
        u32::from_be(self.word_u32::<AT>(index).load(Ordering::Relaxed))
    }

    #[inline]
    fn store_u64<const AT: usize>(&self, index: u32, value: u64) {
        self.word_u64::<AT>(index).store(value.to_be(), Ordering::Relaxed);
    }

    #[inline]
    fn store_u32<const AT: usize>(&self, index: u32, value: u32) {
        self.word_u32::<AT>(index).store(value.to_be(), Ordering::Relaxed);
    }

    #[inline]
    fn prefetch(&self, index: u32) {
        let place = self.place::<u64, 0>(index);
        // SAFETY: a prefetch faults nowhere.
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(place.cast());
        }
        // SAFETY: a prefetch faults nowhere.
        #[cfg(all(target_arch = "aarch64", not(miri)))]
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{}]", in(reg) place, options(nostack, readonly));
        }
        #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
        let _ = place;
    }

    #[inline]
    fn acquire_from_device(&self) {
        order(Direction::FromDevice);
    }

    #[inline]
    fn release_to_device(&self) {
        order(Direction::ToDevice);
    }

    fn flush_to_device(&self) {
        order(Direction::ToDevice);
        // SAFETY: a barrier changes nothing but the order of accesses.
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        unsafe {
            std::arch::x86_64::_mm_sfence();
        }
        // SAFETY: a barrier changes nothing but the order of accesses.
        #[cfg(all(target_arch = "aarch64", not(miri)))]
        unsafe {
            std::arch::asm!("dsb st", options(nostack));
        }
    }
}

/// The two barriers.
#[derive(Clone, Copy)]
enum Direction {
    FromDevice,
    ToDevice,
}

/// A processor of the x86 family reorders neither loads with loads, nor stores with stores, nor stores with
/// loads before them; so only the compiler is to be held back. (libmlx5 executes LFENCE here.)
#[cfg(any(miri, target_arch = "x86_64"))]
#[inline]
fn order(direction: Direction) {
    use std::sync::atomic::compiler_fence;
    match direction {
        Direction::FromDevice => compiler_fence(Ordering::Acquire),
        Direction::ToDevice => compiler_fence(Ordering::Release),
    }
}

/// Devices are in the outer shareable domain, and a fence of the language orders only the inner one.
#[cfg(all(target_arch = "aarch64", not(miri)))]
#[inline]
fn order(direction: Direction) {
    // SAFETY: a barrier changes nothing but the order of accesses.
    unsafe {
        match direction {
            Direction::FromDevice => std::arch::asm!("dmb oshld", options(nostack)),
            Direction::ToDevice => std::arch::asm!("dmb oshst", options(nostack)),
        }
    }
}

/// The full fence of a processor for which this file has no other.
#[cfg(not(any(miri, target_arch = "x86_64", target_arch = "aarch64")))]
#[inline]
fn order(_direction: Direction) {
    std::sync::atomic::fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_in_network_order() {
        let mut memory = [0_u64; 4];
        // SAFETY: the array outlives the ring and is not used beside it.
        let ring = unsafe { MappedRing::<16>::new(memory.as_mut_ptr().cast(), 2) }.expect("aligned");
        ring.store_u64::<0>(0, 0x0102_0304_0506_0708);
        ring.store_u32::<12>(3, 0x0a0b_0c0d);
        ring.prefetch(1);
        assert_eq!((ring.load_u32::<4>(2), ring.load_u64::<8>(1)), (0x0506_0708, 0x0a0b_0c0d));
        ring.release_to_device();
        ring.acquire_from_device();
        assert_eq!(memory[0].to_ne_bytes(), [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn odd_sizes_and_addresses_are_refused() {
        let mut memory = [0_u64; 4];
        let start: *mut u8 = memory.as_mut_ptr().cast();
        for (start, entries) in
            [(start, 0), (start, 3), (start.wrapping_add(4), 1), (std::ptr::null_mut(), 1)]
        {
            // SAFETY: within the array, or refused without an access.
            assert!(unsafe { MappedRing::<8>::new(start, entries) }.is_none(), "{start:?} {entries}");
        }
    }
}

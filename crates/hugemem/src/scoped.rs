//! Heaps for pieces of work whose blocks are allocated and freed together.
//!
//! A heap returns only pages on which nothing is in use. If the small blocks that a compiler works with are side by side
//! with those of its result, or the blocks of one result with those of the next, pages stay for a block each. With
//! [`ScopedHeap`] as the process's allocator the small blocks that a thread allocates within [`in_scope`] come from memory
//! that no other scope uses. When most of them have been freed, [`crate::release_free_heap`] returns their memory.
//!
//! There is one range of addresses for all scopes, in [`PARCELS`] parcels. A scope allocates from the start to the end of one
//! parcel, and takes another one then. Blocks of its current parcel that it frees are kept in lists by size, to be allocated
//! again. `LIVE` counts the blocks of each parcel that are in use or in such a list, and one more while a scope allocates from
//! it; the parcel is free when the count gets to 0, whatever thread frees the last block.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The bytes of the range. If all are in use, the usual heap is used.
const RANGE_BYTES: usize = 1 << 30;
const PARCEL_BYTES: usize = 64 << 10;
const PARCELS: usize = RANGE_BYTES / PARCEL_BYTES;
/// Blocks have multiples of this size, and are aligned to it.
const UNIT_BYTES: usize = 16;
/// Longer blocks, and those with a larger alignment, are in the usual heap.
const BLOCK_BYTES_MAX: usize = 16 << 10;
const LISTS: usize = BLOCK_BYTES_MAX / UNIT_BYTES + 1;

/// The allocator of a process with scopes (`#[global_allocator]`). Outside of them it is [`System`].
#[derive(Clone, Copy, Debug, Default)]
pub struct ScopedHeap;

/// The start of the range; null before it is first used.
static RANGE: AtomicPtr<u8> = AtomicPtr::new(null_mut());
/// By parcel.
static LIVE: [AtomicU32; PARCELS] = [const { AtomicU32::new(0) }; PARCELS];
static FREE: Mutex<FreeParcels> = Mutex::new(FreeParcels { touched: 0, first: None, next: [None; PARCELS] });

thread_local! {
    static CURRENT: Scope = const {
        Scope {
            is_open: Cell::new(false),
            next: Cell::new(0),
            end: Cell::new(0),
            lists: [const { Cell::new(null_mut()) }; LISTS],
        }
    };
}

/// Parcels without blocks in use.
struct FreeParcels {
    /// Parcels that were ever used: the first so many.
    touched: u32,
    /// A list of those that are free again.
    first: Option<u32>,
    next: [Option<u32>; PARCELS],
}

/// The scope that a thread is in.
struct Scope {
    /// Whether it is in one.
    is_open: Cell<bool>,
    /// Where it allocates next: offsets in the range, of one parcel. Both are 0 before the first block.
    next: Cell<usize>,
    end: Cell<usize>,
    /// Blocks of this parcel that were freed, by size in units; each begins with the address of the next one.
    lists: [Cell<*mut u8>; LISTS],
}

impl FreeParcels {
    fn lock() -> MutexGuard<'static, Self> {
        FREE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&mut self) -> Option<usize> {
        let number = match self.first {
            Some(number) => {
                self.first = self.next[number as usize];
                number
            }
            None if (self.touched as usize) < PARCELS => {
                self.touched += 1;
                self.touched - 1
            }
            None => return None,
        };
        Some(number as usize)
    }

    fn give_back(&mut self, parcel: usize) {
        self.next[parcel] = self.first.replace(parcel as u32);
    }
}

/// Runs `work`. The small blocks that this thread allocates meanwhile are apart from all others, if the process's allocator is
/// [`ScopedHeap`]; they may be used for as long as any others. Within a scope there is no other one.
pub fn in_scope<T>(work: impl FnOnce() -> T) -> T {
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            CURRENT.with(Scope::end);
        }
    }
    if CURRENT.with(|scope| scope.is_open.get()) || !reserve() {
        return work();
    }
    CURRENT.with(|scope| scope.is_open.set(true));
    let _end = End;
    work()
}

/// Maps the range, once. `false`: the kernel refuses.
fn reserve() -> bool {
    // Held, so that one thread maps it.
    let _free = FreeParcels::lock();
    if !RANGE.load(Ordering::Relaxed).is_null() {
        return true;
    }
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing of ours.
    let range = unsafe { libc::mmap(null_mut(), RANGE_BYTES, protection, flags, -1, 0) };
    if range == libc::MAP_FAILED {
        return false;
    }
    RANGE.store(range.cast(), Ordering::Relaxed);
    true
}

/// Returns the memory of free parcels to the kernel.
pub(crate) fn release() {
    let range = RANGE.load(Ordering::Relaxed);
    if range.is_null() {
        return;
    }
    // Held, so that no parcel is taken meanwhile.
    let free = FreeParcels::lock();
    let touched = &LIVE[..free.touched as usize];
    let is_free = |live: &AtomicU32| live.load(Ordering::Acquire) == 0;
    let mut parcel = 0;
    for run in touched.chunk_by(|one, other| is_free(one) == is_free(other)) {
        if is_free(&run[0]) {
            // SAFETY: the parcel is one of the range, which has `PARCELS`.
            let start = unsafe { range.add(parcel * PARCEL_BYTES) };
            // SAFETY: no block of these parcels is in use (`LIVE`), none is taken while the list is locked, and they are
            // within the mapping that `reserve` made for good.
            unsafe { libc::madvise(start.cast(), run.len() * PARCEL_BYTES, libc::MADV_DONTNEED) };
        }
        parcel += run.len();
    }
}

impl Scope {
    /// A new block; `None`: not in a scope, too large, or no parcel is left.
    #[inline]
    fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        let list = list_of(layout).filter(|_| self.is_open.get())?;
        if let Some(block) = NonNull::new(self.lists[list].get()) {
            // SAFETY: blocks in a list are in use by it alone, and have the address of the next one at their start
            // (`keep`), where they are aligned to `UNIT_BYTES`.
            self.lists[list].set(unsafe { block.cast::<*mut u8>().read() });
            return Some(block);
        }
        let mut at = self.next.get();
        if at + list * UNIT_BYTES > self.end.get() {
            at = self.next_parcel()?;
        }
        self.next.set(at + list * UNIT_BYTES);
        LIVE[at / PARCEL_BYTES].fetch_add(1, Ordering::Relaxed);
        let range = RANGE.load(Ordering::Relaxed);
        // SAFETY: the offset is within the range, which was mapped before the scope began.
        NonNull::new(unsafe { range.add(at) })
    }

    fn next_parcel(&self) -> Option<usize> {
        self.leave_parcel();
        let parcel = FreeParcels::lock().take()?;
        LIVE[parcel].store(1, Ordering::Relaxed);
        self.next.set(parcel * PARCEL_BYTES);
        self.end.set((parcel + 1) * PARCEL_BYTES);
        Some(self.next.get())
    }

    /// Nothing more is allocated from its parcel.
    fn leave_parcel(&self) {
        let Some(parcel) = self.parcel() else { return };
        for list in &self.lists {
            let mut block = list.replace(null_mut());
            while !block.is_null() {
                // SAFETY: as in `allocate`; the block is freed only below.
                block = unsafe { block.cast::<*mut u8>().read() };
                free_one(parcel);
            }
        }
        self.next.set(0);
        self.end.set(0);
        free_one(parcel);
    }

    fn parcel(&self) -> Option<usize> {
        (self.end.get() / PARCEL_BYTES).checked_sub(1)
    }

    /// Keeps a freed block to allocate it again, if it is one of the parcel. `false`: it is to be freed.
    #[inline]
    fn keep(&self, parcel: usize, block: *mut u8, layout: Layout) -> bool {
        let Some(list) = list_of(layout).filter(|_| self.parcel() == Some(parcel)) else { return false };
        let next = self.lists[list].replace(block);
        // SAFETY: the block is not in use any more, has at least `UNIT_BYTES`, and is aligned to that.
        unsafe { block.cast::<*mut u8>().write(next) };
        true
    }

    fn end(&self) {
        self.is_open.set(false);
        self.leave_parcel();
    }
}

/// The list of blocks with this layout, which is their size in units; `None`: they are in the usual heap.
#[inline]
fn list_of(layout: Layout) -> Option<usize> {
    let is_small = layout.size() <= BLOCK_BYTES_MAX && layout.align() <= UNIT_BYTES;
    is_small.then(|| layout.size().div_ceil(UNIT_BYTES))
}

/// One use of a parcel less.
#[inline]
fn free_one(parcel: usize) {
    if LIVE[parcel].fetch_sub(1, Ordering::Release) == 1 {
        // Everything that was done with its blocks is done before another thread gets them.
        fence(Ordering::Acquire);
        FreeParcels::lock().give_back(parcel);
    }
}

/// The parcel that a block is in; `None`: it is not one of a scope.
#[inline]
fn parcel_of(block: *mut u8) -> Option<usize> {
    let range = RANGE.load(Ordering::Relaxed);
    let offset = block.addr().wrapping_sub(range.addr());
    (!range.is_null() && offset < RANGE_BYTES).then_some(offset / PARCEL_BYTES)
}

/// A new block of the scope that this thread is in.
#[inline]
fn scoped(layout: Layout) -> Option<NonNull<u8>> {
    CURRENT.with(|scope| scope.allocate(layout))
}

/// Frees a block of a scope.
#[inline]
fn free(parcel: usize, block: *mut u8, layout: Layout) {
    if !CURRENT.with(|scope| scope.keep(parcel, block, layout)) {
        free_one(parcel);
    }
}

// SAFETY: a block of a scope is part of one parcel. It is behind all blocks that were allocated in the parcel since that was
// last free, or it was in the scope's list of freed blocks of its size, of which it is taken out; and a parcel is free only
// when all of its blocks were freed and are in no list. So blocks in use do not overlap. They are aligned, because parcels and
// sizes are multiples of `UNIT_BYTES`. All other blocks are those of `System`, which gets
// them back; addresses tell the two apart, because `System` never has memory in the range. Nothing here panics or allocates:
// thread-local and static values are made at compile time, and the mutex is a futex.
unsafe impl GlobalAlloc for ScopedHeap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match scoped(layout) {
            Some(block) => block.as_ptr(),
            // SAFETY: the caller keeps the contract of this function, which is the same.
            None => unsafe { System.alloc(layout) },
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match scoped(layout) {
            Some(block) => {
                // SAFETY: the block was just allocated with that size, and nothing else refers to it.
                unsafe { block.write_bytes(0, layout.size()) };
                block.as_ptr()
            }
            // SAFETY: the caller keeps the contract of this function, which is the same.
            None => unsafe { System.alloc_zeroed(layout) },
        }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match parcel_of(block) {
            Some(parcel) => free(parcel, block, layout),
            // SAFETY: a block outside of the range came from `System`, with this layout.
            None => unsafe { System.dealloc(block, layout) },
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        let Some(parcel) = parcel_of(block) else {
            // SAFETY: a block outside of the range came from `System`, with this layout.
            return unsafe { System.realloc(block, layout, bytes) };
        };
        // SAFETY: the caller promises that `bytes`, rounded up to the alignment, does not overflow.
        let wanted = unsafe { Layout::from_size_align_unchecked(bytes, layout.align()) };
        // SAFETY: the caller promises that `bytes` is not 0.
        let other = unsafe { self.alloc(wanted) };
        if !other.is_null() {
            // SAFETY: both blocks have so many bytes, and the new one overlaps no block in use.
            unsafe { std::ptr::copy_nonoverlapping(block, other, layout.size().min(bytes)) };
            free(parcel, block, layout);
        }
        other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[global_allocator]
    static HEAP: ScopedHeap = ScopedHeap;

    fn is_scoped<T>(block: &T) -> bool {
        parcel_of(std::ptr::from_ref(block).cast_mut().cast()).is_some()
    }

    #[test]
    fn small_blocks_of_a_scope_are_apart_and_outlive_it() {
        let outside = Box::new(1_u64);
        let (small, large, grown) = in_scope(|| {
            let mut grown = vec![1_u8; 8];
            grown.extend(vec![2; 600]);
            grown.extend(vec![3; 60_000]);
            (Box::new([2_u64; 8]), vec![3_u8; 20_000], grown)
        });
        assert!(is_scoped(&*small) && *small == [2; 8]);
        assert!(!is_scoped(&*outside) && !is_scoped(&large[0]) && !is_scoped(&grown[0]));
        assert_eq!((grown[7], grown[8], grown[607], grown[608], grown.len()), (1, 2, 2, 3, 60_608));
        assert!(!is_scoped(&*Box::new(4_u64)), "the scope has ended");
        assert!(
            std::thread::spawn(move || is_scoped(&*small)).join().expect("no panic"),
            "freed by another thread"
        );
    }

    #[test]
    fn a_freed_block_is_allocated_again_by_its_own_scope_and_by_no_other_while_its_parcel_is_in_use() {
        let address = |block: &u64| std::ptr::from_ref(block).addr();
        let kept = in_scope(|| {
            let first = Box::new(0_u64);
            let place = address(&first);
            drop(first);
            let second = Box::new(1_u64);
            assert_eq!(address(&second), place);
            [second, Box::new(2)]
        });
        let [first, _second] = kept;
        let place = address(&first);
        in_scope(|| {
            drop(first);
            let places: Vec<Box<u64>> = (0..10_000).map(Box::new).collect();
            assert!(places.iter().all(|block| address(block) != place));
        });
    }

    #[test]
    fn a_scope_ends_with_a_panic_and_has_none_within() {
        let caught = std::panic::catch_unwind(|| in_scope(|| in_scope(|| panic!("a test"))));
        assert!(caught.is_err());
        assert!(!is_scoped(&*Box::new(0_u64)));
    }

    /// Blocks of all sizes, freed in another order, some by other threads and in other scopes: none overlaps another.
    #[test]
    fn blocks_in_use_never_overlap() {
        let work = |seed: usize| {
            let mut held: Vec<Vec<u8>> = Vec::new();
            for turn in 0..10_000_usize {
                let number = seed.wrapping_add(turn).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
                held.push(vec![turn as u8; number % 20_000 + 1]);
                if held.len() > 300 {
                    let block = held.swap_remove(number % 300);
                    assert!(block.iter().all(|byte| *byte == block[0]));
                }
            }
            held
        };
        let threads: Vec<_> =
            (0..4).map(|seed| std::thread::spawn(move || in_scope(|| work(seed)))).collect();
        for thread in threads {
            let held = thread.join().expect("no panic");
            in_scope(|| assert!(held.iter().all(|block| block.iter().all(|byte| *byte == block[0]))));
            in_scope(|| drop(held));
            crate::release_free_heap();
        }
    }
}

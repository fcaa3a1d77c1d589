//! Which bytes of an arena are free: offsets only, no memory.
//!
//! The arena holds one behind its mutex. First fit over a sorted list is enough: blocks are few, large, and
//! taken while setting up.

use std::ops::Range;

/// Blocks begin and end on cache lines, so that two of them never share one.
pub(crate) const BLOCK_GRANULE_BYTES: usize = 64;

/// The most blocks of an arena at a time, which bounds the list of free ranges too.
pub(crate) const MAX_BLOCKS: usize = 1 << 16;

/// The free ranges of `0..bytes`.
#[derive(Debug)]
pub(crate) struct FreeList {
    // Invariant: sorted, not empty, neither overlapping nor touching, and disjoint from every taken range.
    free: Vec<Range<usize>>,
    taken: usize,
}

impl FreeList {
    pub(crate) fn new(bytes: usize) -> Self {
        Self { free: std::iter::once(0..bytes).collect(), taken: 0 }
    }

    /// Takes the first free range of at least `bytes`, rounded up to the granule, at which `base` plus its
    /// start is a multiple of `align`. `None` when there is none, `bytes` is 0 or `align` is not a power of
    /// two.
    pub(crate) fn take(&mut self, bytes: usize, align: usize, base: usize) -> Option<Range<usize>> {
        if bytes == 0 || !align.is_power_of_two() || self.taken == MAX_BLOCKS {
            return None;
        }
        let bytes = bytes.checked_next_multiple_of(BLOCK_GRANULE_BYTES)?;
        let align = align.max(BLOCK_GRANULE_BYTES);
        let fit = |free: &Range<usize>| {
            let start = base.checked_add(free.start)?.checked_next_multiple_of(align)? - base;
            let end = start.checked_add(bytes)?;
            (end <= free.end).then_some(start..end)
        };
        let (index, range) = self.free.iter().enumerate().find_map(|(i, free)| Some((i, fit(free)?)))?;
        let (before, after) = (self.free[index].start..range.start, range.end..self.free[index].end);
        let left_over = [before, after].into_iter().filter(|rest| !rest.is_empty());
        self.free.splice(index..=index, left_over);
        self.taken += 1;
        Some(range)
    }

    /// Gives back a range that [`FreeList::take`] returned, joining it with its free neighbours.
    pub(crate) fn give_back(&mut self, range: Range<usize>) {
        let next = self.free.partition_point(|free| free.start < range.start);
        let joins_previous = next > 0 && self.free[next - 1].end == range.start;
        let joins_next = self.free.get(next).is_some_and(|free| free.start == range.end);
        match (joins_previous, joins_next) {
            (true, true) => {
                self.free[next - 1].end = self.free[next].end;
                self.free.remove(next);
            }
            (true, false) => self.free[next - 1].end = range.end,
            (false, true) => self.free[next].start = range.start,
            (false, false) => self.free.insert(next, range),
        }
        self.taken -= 1;
    }

    pub(crate) fn free_bytes(&self) -> usize {
        self.free.iter().map(ExactSizeIterator::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BYTES: usize = 64 << 10;

    #[test]
    fn alignment_counts_from_the_address_not_the_offset() {
        let mut list = FreeList::new(BYTES);
        let range = list.take(100, 4096, 0x7000_0040).unwrap();
        assert_eq!((0x7000_0040 + range.start) % 4096, 0);
        assert_eq!(range.len(), 128);
        // The gap in front stays usable.
        assert_eq!(list.take(64, 64, 0x7000_0040), Some(0..64));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let mut list = FreeList::new(BYTES);
        for (bytes, align) in [(0, 64), (64, 0), (64, 48), (BYTES + 1, 1), (usize::MAX, 1), (64, 1 << 63)] {
            assert_eq!(list.take(bytes, align, 0x7000_0040), None, "{bytes} at {align}");
        }
        assert_eq!(list.take(BYTES, 1, 0), Some(0..BYTES));
        assert_eq!(list.take(1, 1, 0), None);
    }

    #[test]
    fn the_number_of_blocks_is_limited() {
        let mut list = FreeList::new((MAX_BLOCKS + 1) * BLOCK_GRANULE_BYTES);
        for _ in 0..MAX_BLOCKS {
            assert!(list.take(1, 1, 0).is_some());
        }
        assert_eq!(list.take(1, 1, 0), None);
        list.give_back(0..64);
        assert_eq!(list.take(1, 1, 0), Some(0..64));
    }

    proptest! {
        #[test]
        fn taken_and_free_ranges_tile_the_arena(steps in proptest::collection::vec((any::<bool>(), 1..9000_usize, 0..14_u32, any::<prop::sample::Index>()), 1..80)) {
            let mut list = FreeList::new(BYTES);
            let mut taken: Vec<Range<usize>> = Vec::new();
            for (give_back, bytes, align_log2, which) in steps {
                if give_back && !taken.is_empty() {
                    list.give_back(taken.swap_remove(which.index(taken.len())));
                } else if let Some(range) = list.take(bytes, 1 << align_log2, 0) {
                    prop_assert_eq!(range.len(), bytes.next_multiple_of(BLOCK_GRANULE_BYTES));
                    prop_assert!(range.start.is_multiple_of(1 << align_log2));
                    taken.push(range);
                }
                prop_assert!(list.free.len() <= taken.len() + 1, "more pieces than blocks can make");
                let mut all: Vec<Range<usize>> = list.free.iter().chain(&taken).cloned().collect();
                all.sort_by_key(|range| range.start);
                let mut end = 0;
                for range in all {
                    prop_assert_eq!(range.start, end);
                    prop_assert!(!range.is_empty());
                    end = range.end;
                }
                prop_assert_eq!(end, BYTES);
                prop_assert!(list.free.windows(2).all(|pair| pair[0].end < pair[1].start), "neighbours did not join");
                prop_assert_eq!(list.free_bytes() + taken.iter().map(ExactSizeIterator::len).sum::<usize>(), BYTES);
            }
            for range in taken {
                list.give_back(range);
            }
            prop_assert_eq!(list.free.as_slice(), std::slice::from_ref(&(0..BYTES)));
        }
    }
}

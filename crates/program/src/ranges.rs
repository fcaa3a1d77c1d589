//! Sets of numbers (ports, VLAN ids, protocols, addresses) as sorted, merged, inclusive ranges, and their
//! covers by prefixes, which is what devices match. Equal sets are equal values however they were written, so
//! that equal policies give equal programs.

use std::fmt;

/// A number that ranges are made of.
pub trait Word: Copy + Ord + fmt::Debug {
    /// The width of a word in bits.
    const BITS: u32;
    /// Returns the number as 128 bits.
    fn wide(self) -> u128;
    /// Returns the number from 128 bits; the callers' values fit.
    fn narrow(wide: u128) -> Self;
}

macro_rules! words {
    ($($word:ty),*) => {$(
        impl Word for $word {
            const BITS: u32 = <$word>::BITS;
            fn wide(self) -> u128 {
                u128::from(self)
            }
            fn narrow(wide: u128) -> Self {
                Self::try_from(wide).unwrap_or(Self::MAX)
            }
        }
    )*};
}
words!(u8, u16, u32, u128);

/// A set of numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RangeSet<T> {
    /// Sorted, neither overlapping nor touching.
    ranges: Box<[(T, T)]>,
}

impl<T> Default for RangeSet<T> {
    fn default() -> Self {
        Self { ranges: Box::default() }
    }
}

impl<T: Word> RangeSet<T> {
    /// The union of inclusive ranges; a range whose first number is above its last is empty.
    #[must_use]
    pub fn of(mut ranges: Vec<(T, T)>) -> Self {
        ranges.retain(|(low, high)| low <= high);
        // In rising order of `low`, a range overlaps or touches the union of those before it exactly if it
        // overlaps or touches the last merged range, which has the highest end of all.
        ranges.sort_unstable();
        let mut merged: Vec<(T, T)> = Vec::with_capacity(ranges.len());
        for (low, high) in ranges {
            match merged.last_mut() {
                Some(last) if low.wide() <= last.1.wide().saturating_add(1) => last.1 = last.1.max(high),
                _ => merged.push((low, high)),
            }
        }
        Self { ranges: merged.into() }
    }

    /// These numbers.
    #[must_use]
    pub fn each(values: impl IntoIterator<Item = T>) -> Self {
        Self::of(values.into_iter().map(|value| (value, value)).collect())
    }

    /// One number.
    #[must_use]
    pub fn single(value: T) -> Self {
        Self { ranges: Box::new([(value, value)]) }
    }

    /// The numbers from 0 to `most` that are not in the set.
    #[must_use]
    pub fn complement(&self, most: T) -> Self {
        let most = most.wide();
        let mut gaps = Vec::with_capacity(self.ranges.len() + 1);
        let mut next = Some(0u128);
        for (low, high) in &*self.ranges {
            let Some(start) = next.filter(|start| *start <= most) else { break };
            if start < low.wide() {
                gaps.push((T::narrow(start), T::narrow((low.wide() - 1).min(most))));
            }
            next = high.wide().checked_add(1);
        }
        if let Some(start) = next.filter(|start| *start <= most) {
            gaps.push((T::narrow(start), T::narrow(most)));
        }
        Self { ranges: gaps.into() }
    }

    /// The numbers in both.
    #[must_use]
    pub fn intersect(&self, other: &Self) -> Self {
        let (mut left, mut right) = (self.ranges.iter().peekable(), other.ranges.iter().peekable());
        let mut common = Vec::new();
        while let (Some((a, b)), Some((c, d))) = (left.peek(), right.peek()) {
            let (low, high) = (*a.max(c), *b.min(d));
            if low <= high {
                common.push((low, high));
            }
            // The range that ends first meets no later range of the other set, since those begin after its
            // end.
            if b < d {
                left.next()
            } else {
                right.next()
            };
        }
        Self { ranges: common.into() }
    }

    /// Whether the number is in the set.
    #[must_use]
    #[inline]
    pub fn contains(&self, value: T) -> bool {
        match &*self.ranges {
            [] => false,
            [(low, high)] => *low <= value && value <= *high,
            ranges => {
                let after = ranges.partition_point(|(low, _)| *low <= value);
                after > 0 && value <= ranges[after - 1].1
            }
        }
    }

    /// The ranges in rising order; they neither overlap nor touch.
    #[must_use]
    pub fn ranges(&self) -> &[(T, T)] {
        &self.ranges
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The number, if there is exactly one.
    #[must_use]
    pub fn only(&self) -> Option<T> {
        match &*self.ranges {
            [(low, high)] if low == high => Some(*low),
            _ => None,
        }
    }

    /// The fewest prefixes, as (value, mask) over the low `bits` bits, that cover the set exactly, in rising
    /// order.
    ///
    /// The fewest, because ranges do not touch: no prefix covers numbers of two of them, so each range is
    /// covered for itself.
    #[must_use]
    pub fn prefixes(&self, bits: u32) -> Vec<(T, T)> {
        let mut cover = Vec::new();
        for (low, high) in &*self.ranges {
            split(low.wide(), high.wide(), bits, &mut |value, mask| {
                cover.push((T::narrow(value), T::narrow(mask)));
            });
        }
        cover
    }
}

/// Splits `low..=high` into aligned blocks whose sizes are powers of two, from below, each as large as
/// possible.
///
/// No cover has fewer blocks: in any cover the block with `low` begins at `low`, and the block taken here is
/// the largest of those, so it contains that one. Blocks are nested or disjoint, so the others of that cover
/// that are not inside it cover exactly what is left of the range, to which the argument applies again.
fn split(low: u128, high: u128, bits: u32, emit: &mut dyn FnMut(u128, u128)) {
    // All ones below the given bit; 128 ones for bit 128.
    let ones = |bit: u32| u128::MAX.checked_shr(u128::BITS - bit).unwrap_or(0);
    let mut next = low;
    loop {
        let aligned = next.trailing_zeros().min(bits);
        let fits = |bit: &u32| next.checked_add(ones(*bit)).is_some_and(|last| last <= high);
        let block = ones((0..=aligned).rev().find(fits).unwrap_or(0));
        emit(next, ones(bits) & !block);
        match next.checked_add(block).and_then(|last| last.checked_add(1)) {
            Some(following) if following <= high => next = following,
            _ => return,
        }
    }
}

/// The text form of the language: `7,10-20`.
impl<T: Word + fmt::Display> fmt::Display for RangeSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (low, high)) in self.ranges.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            if low == high {
                write!(f, "{comma}{low}")?;
            } else {
                write!(f, "{comma}{low}-{high}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn whole_words_are_one_prefix() {
        assert_eq!(RangeSet::of(vec![(0u128, u128::MAX)]).prefixes(128), [(0, 0)]);
        assert_eq!(RangeSet::of(vec![(0u16, u16::MAX)]).prefixes(16), [(0, 0)]);
        assert_eq!(RangeSet::of(vec![(0u16, 4095)]).prefixes(12), [(0, 0)]);
        assert_eq!(RangeSet::of(vec![(u128::MAX, u128::MAX)]).prefixes(128), [(u128::MAX, u128::MAX)]);
    }

    #[test]
    fn unprivileged_ports_take_six_prefixes() {
        let cover = RangeSet::of(vec![(1024u16, 65535)]).prefixes(16);
        let masks: Vec<u16> = cover.iter().map(|(_, mask)| *mask).collect();
        assert_eq!(masks, [0xfc00, 0xf800, 0xf000, 0xe000, 0xc000, 0x8000]);
    }

    #[test]
    fn touching_and_overlapping_ranges_merge() {
        let set = RangeSet::of(vec![(5u8, 9), (1, 4), (8, 20), (30, 30), (40, 35)]);
        assert_eq!(set.ranges(), [(1, 20), (30, 30)]);
        assert_eq!(set.to_string(), "1-20,30");
    }

    /// The fewest prefixes below one of `depth` bits: one if it is full, else those of its halves.
    fn fewest(set: u16, prefix: u32, depth: u32) -> usize {
        let width = 16 >> depth;
        let full = if width == 16 { u16::MAX } else { (1 << width) - 1 };
        match set >> (prefix * width) & full {
            0 => 0,
            part if part == full => 1,
            _ => fewest(set, 2 * prefix, depth + 1) + fewest(set, 2 * prefix + 1, depth + 1),
        }
    }

    #[test]
    fn no_cover_by_prefixes_is_smaller() {
        // Every set of numbers of four bits.
        for set in 0..=u16::MAX {
            let numbers = (0..16u8).filter(|number| set >> number & 1 == 1);
            let ranges = RangeSet::of(numbers.map(|number| (number, number)).collect());
            assert_eq!(ranges.prefixes(4).len(), fewest(set, 0, 0), "{ranges}");
        }
    }

    proptest! {
        #[test]
        fn sets_compose(
            one in prop::collection::vec((any::<u8>(), any::<u8>()), 0..6),
            two in prop::collection::vec((any::<u8>(), any::<u8>()), 0..6),
            most in any::<u8>(),
        ) {
            let (one, two) = (RangeSet::of(one), RangeSet::of(two));
            let (both, rest) = (one.intersect(&two), one.complement(most));
            for value in 0..=u8::MAX {
                prop_assert_eq!(both.contains(value), one.contains(value) && two.contains(value));
                prop_assert_eq!(rest.contains(value), value <= most && !one.contains(value));
            }
            prop_assert_eq!(&RangeSet::of(rest.ranges().to_vec()), &rest);
            prop_assert_eq!(&RangeSet::of(both.ranges().to_vec()), &both);
        }

        #[test]
        fn a_cover_is_exact_and_disjoint(ranges in prop::collection::vec((any::<u8>(), any::<u8>()), 0..6)) {
            let set = RangeSet::of(ranges.clone());
            let cover = set.prefixes(8);
            for value in 0..=u8::MAX {
                let wanted = ranges.iter().any(|(low, high)| (*low..=*high).contains(&value));
                prop_assert_eq!(set.contains(value), wanted);
                let hits = cover.iter().filter(|(v, m)| value & m == *v).count();
                prop_assert_eq!(hits, usize::from(wanted));
            }
        }
    }
}

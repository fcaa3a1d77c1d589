//! Sets of values of fields that have at most eight bits, above all those whose bits have meanings of their
//! own: types of service with their DSCP and ECN, TCP flags, IPv4 flags, GRE flags. A bitmap: equal sets are
//! equal values, and a membership test takes the same time whatever the set. Devices match it as masked
//! values ([`ByteSet::patterns`]).

use std::fmt;

use crate::ranges::RangeSet;

/// A set of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSet {
    /// Bit `n % 64` of word `n / 64` is value `n`.
    words: [u64; 4],
}

impl ByteSet {
    /// The empty set.
    pub const EMPTY: Self = Self { words: [0; 4] };
    /// Every byte.
    pub const ALL: Self = Self { words: [u64::MAX; 4] };

    /// The bytes that equal `value` in the bits of `mask`.
    #[must_use]
    pub fn pattern(value: u8, mask: u8) -> Self {
        (0..=u8::MAX).filter(|byte| (byte ^ value) & mask == 0).collect()
    }

    /// The bytes from `low` to `high`.
    #[must_use]
    pub fn range(low: u8, high: u8) -> Self {
        (low..=high).collect()
    }

    /// Whether the byte is in the set.
    #[must_use]
    #[inline]
    pub const fn contains(&self, byte: u8) -> bool {
        self.words[(byte >> 6) as usize] >> (byte & 63) & 1 == 1
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::EMPTY
    }

    /// The bytes in either set.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self { words: std::array::from_fn(|i| self.words[i] | other.words[i]) }
    }

    /// The bytes in both sets.
    #[must_use]
    pub fn intersect(&self, other: &Self) -> Self {
        Self { words: std::array::from_fn(|i| self.words[i] & other.words[i]) }
    }

    /// The bytes that are not in the set.
    #[must_use]
    pub fn complement(&self) -> Self {
        Self { words: std::array::from_fn(|i| !self.words[i]) }
    }

    /// The numbers of a set that are below 256.
    #[must_use]
    pub fn of(set: &RangeSet<u32>) -> Self {
        let most = u32::from(u8::MAX);
        let bytes = set.ranges().iter().flat_map(|(low, high)| *low..=*high.min(&most));
        bytes.filter_map(|byte| u8::try_from(byte).ok()).collect()
    }

    /// Returns the set as ranges.
    #[must_use]
    pub fn ranges(&self) -> RangeSet<u32> {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for byte in (0..=u8::MAX).filter(|byte| self.contains(*byte)).map(u32::from) {
            match ranges.last_mut() {
                Some((_, high)) if *high + 1 == byte => *high = byte,
                _ => ranges.push((byte, byte)),
            }
        }
        RangeSet::of(ranges)
    }

    /// Disjoint (value, mask) pairs over the low `bits` bits that cover the set exactly; no byte may have
    /// higher bits.
    ///
    /// The pairs are the leaves of a binary decision tree over the bits, highest first. It splits on a bit
    /// only where the set differs between its two values, so a set that is one pattern gives that pattern.
    /// For other sets the number of pairs is small but not always the least.
    #[must_use]
    pub fn patterns(&self, bits: u32) -> Vec<(u8, u8)> {
        let mut found = Vec::new();
        self.split(0, 0, bits.min(u8::BITS), &mut found);
        found
    }

    /// Covers the bytes of the set that equal `value` in the bits of `mask`. Of the lowest `open` bits none
    /// is in the mask yet; of the bits above, those that are not make no difference.
    fn split(&self, value: u8, mask: u8, open: u32, found: &mut Vec<(u8, u8)>) {
        let inside = self.intersect(&Self::pattern(value, mask));
        if inside.is_empty() {
            return;
        }
        let Some(bit) = open.checked_sub(1).map(|below| 1u8 << below) else {
            found.push((value, mask));
            return;
        };
        let makes_no_difference = (0..=u8::MAX)
            .filter(|byte| (byte ^ value) & mask == 0 && byte & bit == 0)
            .all(|byte| self.contains(byte) == self.contains(byte | bit));
        if makes_no_difference {
            self.split(value, mask, open - 1, found);
        } else {
            self.split(value, mask | bit, open - 1, found);
            self.split(value | bit, mask | bit, open - 1, found);
        }
    }
}

impl FromIterator<u8> for ByteSet {
    fn from_iter<I: IntoIterator<Item = u8>>(bytes: I) -> Self {
        let mut set = Self::EMPTY;
        for byte in bytes {
            set.words[usize::from(byte >> 6)] |= 1 << (byte & 63);
        }
        set
    }
}

/// Ranges, or patterns `&mask=value` if these are fewer.
impl fmt::Display for ByteSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ranges, patterns) = (self.ranges(), self.patterns(u8::BITS));
        if ranges.ranges().len() <= patterns.len() {
            return write!(f, "{ranges}");
        }
        let patterns: Vec<String> =
            patterns.iter().map(|(value, mask)| format!("&{mask:#04x}={value:#04x}")).collect();
        f.write_str(&patterns.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_pattern_comes_back_as_itself() {
        for (value, mask) in [(0x02, 0x12), (0, 0), (0xb8, 0xfc), (3, 3), (0xff, 0xff), (0x80, 0x80)] {
            assert_eq!(ByteSet::pattern(value, mask).patterns(8), [(value, mask)]);
        }
        assert_eq!(ByteSet::EMPTY.patterns(8), []);
        // Don't fragment, of three bits.
        let df: ByteSet = (0..8).filter(|flags| flags & 2 == 2).collect();
        assert_eq!(df.patterns(3), [(2, 2)]);
    }

    #[test]
    fn the_shorter_form_is_shown() {
        assert_eq!(ByteSet::pattern(0xb8, 0xfc).to_string(), "184-187");
        assert_eq!(ByteSet::pattern(0x02, 0x12).to_string(), "&0x12=0x02");
    }

    proptest! {
        #[test]
        fn covers_are_exact_and_disjoint(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let set: ByteSet = bytes.iter().copied().collect();
            let cover = set.patterns(8);
            for byte in 0..=u8::MAX {
                prop_assert_eq!(set.contains(byte), bytes.contains(&byte));
                prop_assert_eq!(set.complement().contains(byte), !bytes.contains(&byte));
                prop_assert_eq!(set.ranges().contains(byte.into()), bytes.contains(&byte));
                let hits = cover.iter().filter(|(value, mask)| byte & mask == *value).count();
                prop_assert_eq!(hits, usize::from(bytes.contains(&byte)));
            }
        }
    }
}

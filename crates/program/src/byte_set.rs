//! Sets of bytes whose bits are asked about one by one: types of service with their DSCP and ECN, TCP flags,
//! IPv4 flags, GRE flags. A bitmap, so that the same set is always the same value; a device gets it as masked
//! values. Used wherever a match is; never allocates but in `patterns` and `ranges`.

use std::fmt;

use crate::ranges::RangeSet;

/// A set of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSet {
    /// Bit `n % 64` of word `n / 64` is value `n`.
    words: [u64; 4],
}

impl ByteSet {
    /// No byte.
    pub const EMPTY: Self = Self { words: [0; 4] };
    /// Every byte.
    pub const ALL: Self = Self { words: [u64::MAX; 4] };

    /// The bytes that agree with `value` under `mask`.
    #[must_use]
    pub fn pattern(value: u8, mask: u8) -> Self {
        (0..=u8::MAX).filter(|byte| (byte ^ value) & mask == 0).collect()
    }

    /// The bytes from `low` to `high`.
    #[must_use]
    pub fn range(low: u8, high: u8) -> Self {
        (low..=high).collect()
    }

    /// Whether the byte is in it.
    #[must_use]
    #[inline]
    pub const fn contains(&self, byte: u8) -> bool {
        self.words[(byte >> 6) as usize] >> (byte & 63) & 1 == 1
    }

    /// Whether nothing is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::EMPTY
    }

    /// The bytes in either.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self { words: std::array::from_fn(|i| self.words[i] | other.words[i]) }
    }

    /// The bytes in both.
    #[must_use]
    pub fn intersect(&self, other: &Self) -> Self {
        Self { words: std::array::from_fn(|i| self.words[i] & other.words[i]) }
    }

    /// The bytes that are not in it.
    #[must_use]
    pub fn complement(&self) -> Self {
        Self { words: std::array::from_fn(|i| !self.words[i]) }
    }

    /// Its bytes as ranges.
    #[must_use]
    pub fn ranges(&self) -> RangeSet<u8> {
        RangeSet::of((0..=u8::MAX).filter(|byte| self.contains(*byte)).map(|byte| (byte, byte)).collect())
    }

    /// Disjoint (value, mask) pairs over the low `bits` bits that cover it exactly; higher bits must be clear.
    ///
    /// Bits that make no difference are masked out, so a single pattern comes back as itself.
    #[must_use]
    pub fn patterns(&self, bits: u32) -> Vec<(u8, u8)> {
        let mut found = Vec::new();
        self.split(0, 0, bits.min(u8::BITS), &mut found);
        found
    }

    /// Covers what agrees with `value` under `mask`; the lowest `open` bits are not decided yet.
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

/// Ranges, or `&mask=value` where that is shorter.
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
    fn the_shorter_way_is_shown() {
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
                prop_assert_eq!(set.ranges().contains(byte), bytes.contains(&byte));
                let hits = cover.iter().filter(|(value, mask)| byte & mask == *value).count();
                prop_assert_eq!(hits, usize::from(bytes.contains(&byte)));
            }
        }
    }
}

//! Sets of header stacks and of outer tag counts. Within one stack each number is independent of the others,
//! so that a set of packets is a product of sets of values; what one header implies about another is in the
//! domains of the numbers. The tags of the outer frame are independent of all the rest and have alternatives
//! of their own.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use packet::stack::{Coordinate, HeaderStack, Level, ValueRanges};
use packet::{FIELDS, Header};

const WORDS: usize = 12;
/// The first of the three alternatives for the number of outer tags: none, one, two.
pub(super) const TAGS: usize = 64 * WORDS - 3;
const TAG_BITS: u64 = 0b111 << 61;

/// A set of header stacks and a set of tag counts, as bits; it contains the packets that have one of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct StackSet {
    words: [u64; WORDS],
}

impl StackSet {
    pub(super) const NONE: Self = Self { words: [0; WORDS] };

    /// The stacks for which `holds`, with any outer tags.
    pub(super) fn of_stacks(holds: impl Fn(&HeaderStack) -> bool) -> Self {
        let mut stacks = Self::NONE;
        for (index, stack) in STACKS.iter().enumerate() {
            if holds(stack) {
                stacks.words[index / 64] |= 1 << (index % 64);
            }
        }
        stacks.words[WORDS - 1] |= TAG_BITS;
        stacks
    }

    /// The packets with such a number of tags at a level.
    pub(super) fn tags(level: Level, holds: impl Fn(u8) -> bool) -> Self {
        if level == Level::Inner {
            return Self::of_stacks(|stack| stack.inner.and_then(|inner| inner.tags).is_some_and(&holds));
        }
        let mut stacks = *ANY;
        stacks.words[WORDS - 1] &= !TAG_BITS;
        for tags in (0..3).filter(|tags| holds(*tags)) {
            stacks.words[WORDS - 1] |= 1 << (61 + tags);
        }
        stacks
    }

    #[inline]
    pub(super) fn and(&self, other: &Self) -> Self {
        Self { words: std::array::from_fn(|i| self.words[i] & other.words[i]) }
    }

    pub(super) fn or(&self, other: &Self) -> Self {
        Self { words: std::array::from_fn(|i| self.words[i] | other.words[i]) }
    }

    /// Without the alternatives of `other`, stacks and tag counts alike. Not a set difference of packets.
    #[inline]
    pub(super) fn without(&self, other: &Self) -> Self {
        Self { words: std::array::from_fn(|i| self.words[i] & !other.words[i]) }
    }

    /// The number of combinations of a stack and a tag count in it.
    pub(super) fn len(&self) -> u32 {
        let last = self.words[WORDS - 1];
        let kinds = self.words[..WORDS - 1]
            .iter()
            .fold((last & !TAG_BITS).count_ones(), |all, word| all + word.count_ones());
        kinds * (last & TAG_BITS).count_ones()
    }

    /// Whether no packet is in it.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        let last = self.words[WORDS - 1];
        let kinds = self.words[..WORDS - 1].iter().fold(last & !TAG_BITS, |all, word| all | word);
        kinds == 0 || last & TAG_BITS == 0
    }

    /// Whether some packet is in both.
    #[inline]
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        !self.and(other).is_empty()
    }

    /// Whether some alternative is in both.
    #[inline]
    pub(super) fn meets(&self, other: &Self) -> bool {
        (0..WORDS).any(|i| self.words[i] & other.words[i] != 0)
    }

    /// Whether every alternative of `other` is in `self`.
    #[inline]
    pub(super) fn contains(&self, other: &Self) -> bool {
        (0..WORDS).all(|i| other.words[i] & !self.words[i] == 0)
    }

    /// The packets in `self` that are not in `other`, as disjoint parts: other stacks, and the same stacks
    /// with other tag counts.
    pub(super) fn minus(&self, other: &Self) -> impl Iterator<Item = Self> + use<> {
        let mut other_kinds = self.without(other);
        other_kinds.words[WORDS - 1] |= self.words[WORDS - 1] & TAG_BITS;
        let mut other_tags = self.and(other);
        other_tags.words[WORDS - 1] &= !TAG_BITS;
        other_tags.words[WORDS - 1] |= self.words[WORDS - 1] & !other.words[WORDS - 1] & TAG_BITS;
        [other_kinds, other_tags].into_iter().filter(|part| !part.is_empty())
    }

    /// The alternatives in it, the plainest stacks first, then the tag counts.
    pub(super) fn alternatives(&self) -> impl Iterator<Item = usize> + use<> {
        let stacks = *self;
        (0..STACKS.len()).chain(TAGS..TAGS + 3).filter(move |index| stacks.has(*index))
    }

    /// Whether the alternative is in it.
    #[inline]
    pub(super) const fn has(&self, alternative: usize) -> bool {
        self.words[alternative / 64] >> (alternative % 64) & 1 == 1
    }

    /// Only its plainest stack, with its fewest tags.
    pub(super) fn plainest(&self) -> Self {
        let mut one = Self::NONE;
        let kind = (0..STACKS.len()).find(|index| self.has(*index));
        let tags = (TAGS..TAGS + 3).find(|index| self.has(*index));
        for index in kind.into_iter().chain(tags) {
            one.words[index / 64] |= 1 << (index % 64);
        }
        one
    }

    /// The plainest stack of the set and its fewest tags.
    pub(super) fn first(&self) -> Option<(&'static HeaderStack, u8)> {
        let kind = (0..STACKS.len()).find(|index| self.has(*index)).and_then(|index| STACKS.get(index))?;
        let tags = (0..3u8).find(|tags| self.has(TAGS + usize::from(*tags)))?;
        Some((kind, tags))
    }
}

/// The alternatives for which `holds`; a set of bits rather than of packets, since no tag count is implied.
pub(super) fn alternatives(holds: impl Fn(usize) -> bool) -> StackSet {
    let mut stacks = StackSet::NONE;
    for index in (0..STACKS.len()).chain(TAGS..TAGS + 3).filter(|index| holds(*index)) {
        stacks.words[index / 64] |= 1 << (index % 64);
    }
    stacks
}

/// Every packet.
pub(super) static ANY: LazyLock<StackSet> = LazyLock::new(|| StackSet::of_stacks(|_| true));

/// All stacks, plain ones first, so that the first of a set makes the plainest packet.
static STACKS: LazyLock<&[HeaderStack]> = LazyLock::new(|| {
    let stacks = HeaderStack::all();
    assert!(stacks.len() <= TAGS, "there is room for all stacks");
    stacks
});

/// The values that the number can have in an alternative, or `None` if it has no such number.
pub(super) fn domain(alternative: usize, coordinate: Coordinate) -> Option<ValueRanges> {
    let is_of_tags = alternative >= TAGS;
    if is_of_tags != coordinate.is_in_outer_tag() {
        return None;
    }
    let (stack, tags) = if is_of_tags { (0, alternative - TAGS) } else { (alternative, 0) };
    STACKS.get(stack)?.domain(tags as u8, coordinate)
}

/// For each number the packets that have it.
static PRESENT: LazyLock<BTreeMap<Coordinate, StackSet>> = LazyLock::new(|| {
    let present = |coordinate: Coordinate| {
        let mut has = alternatives(|alternative| domain(alternative, coordinate).is_some());
        // Whether a stack has a number does not depend on tags, nor the other way round.
        if coordinate.is_in_outer_tag() {
            has = has.or(&alternatives(|alternative| alternative < TAGS));
        } else {
            has.words[WORDS - 1] |= TAG_BITS;
        }
        (coordinate, has)
    };
    Coordinate::all().into_iter().map(present).collect()
});

/// The packets that have the number.
pub(super) fn present(coordinate: Coordinate) -> StackSet {
    PRESENT.get(&coordinate).copied().unwrap_or(StackSet::NONE)
}

/// The packets that have the header.
pub(super) fn with_header(header: Header, level: Level) -> StackSet {
    let first = FIELDS.iter().find(|row| row.header == header);
    first.map_or(StackSet::NONE, |row| present(Coordinate::Field(row.field, level)))
}

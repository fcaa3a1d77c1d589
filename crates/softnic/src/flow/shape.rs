//! One shape of the tuple space: all groups of rules that share a mask, in one hash map.
//!
//! [`super::port::PortTable`] owns the shapes of a port, those of rules about tunnels apart, and asks each, best precedence first, for the group that an image
//! belongs to. A shape never looks at a rule, only at masked images and precedences.

use std::collections::{BTreeSet, HashMap};
use std::hash::BuildHasherDefault;

use super::FlowKind;
use super::key::{DigestHasher, Image};

/// The place of a rule among all rules of its port: kind, then priority, then age. Smaller comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Precedence(u64);

/// Bits for the age: at a million flows a second they last for two years.
const ORDER_BITS: u32 = 46;

impl Precedence {
    pub(super) fn new(kind: FlowKind, priority: u16, order: u64) -> Self {
        let kind = match kind {
            FlowKind::Normal => 0,
            FlowKind::MulticastDefault => 1,
            FlowKind::AllDefault => 2,
            FlowKind::Sniffer => 3,
        };
        let order = order.min((1 << ORDER_BITS) - 1);
        Self(kind << (ORDER_BITS + 16) | u64::from(priority) << ORDER_BITS | order)
    }

    /// Kind and priority alone.
    pub(super) fn level(self) -> u64 {
        self.0 >> ORDER_BITS
    }
}

/// A group of rules by its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ranked {
    pub(super) precedence: Precedence,
    pub(super) group: u32,
}

impl Ranked {
    /// Precedence and group, as a block of the tree has them.
    pub(super) fn to_words(self) -> (u64, u64) {
        (self.precedence.0, self.group.into())
    }

    /// The inverse; `None` for the precedence that loses to all, which no rule has.
    #[inline(always)]
    pub(super) fn from_words(precedence: u64, group: u64) -> Option<Self> {
        (precedence != u64::MAX).then_some(Self { precedence: Precedence(precedence), group: group as u32 })
    }
}

/// The groups with the same values, which differ in kind or priority. Nearly always one, which allocates nothing.
#[derive(Debug)]
pub(super) struct Bucket {
    best: Ranked,
    /// Best first.
    others: Vec<Ranked>,
}

impl Bucket {
    pub(super) fn new(ranked: Ranked) -> Self {
        Self { best: ranked, others: Vec::new() }
    }

    /// The one that comes first.
    pub(super) fn best(&self) -> Ranked {
        self.best
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Ranked> {
        std::iter::once(&self.best).chain(&self.others)
    }

    pub(super) fn add(&mut self, ranked: Ranked) {
        let later = if ranked < self.best { std::mem::replace(&mut self.best, ranked) } else { ranked };
        let place = self.others.partition_point(|other| *other < later);
        self.others.insert(place, later);
    }

    /// Returns whether none is left.
    pub(super) fn remove(&mut self, ranked: Ranked) -> bool {
        if self.best != ranked {
            self.others.retain(|other| *other != ranked);
            return false;
        }
        if self.others.is_empty() {
            return true;
        }
        self.best = self.others.remove(0);
        false
    }
}

type Buckets<I> = HashMap<I, Bucket, BuildHasherDefault<DigestHasher>>;

/// Maps that a shape's groups are spread over.
const PARTS: usize = 64;
/// Which bits of a digest name the part: a map looks at the lowest and at the highest ones.
const PART_SHIFT: u32 = 40;
const _: () = assert!(PARTS.is_power_of_two(), "a part is chosen by masking");

fn part_of(value: &impl Image) -> usize {
    (value.digest() >> PART_SHIFT) as usize & (PARTS - 1)
}

/// The groups that share one mask.
#[derive(Debug)]
pub(super) struct Shape<I> {
    /// The layers that the mask asks for, which cost less to look at than the rest.
    layers: u64,
    mask: I,
    /// The groups by value. In parts, because a map that grows moves all that it holds, and the engine waits meanwhile.
    parts: Box<[Buckets<I>; PARTS]>,
    /// Every group of the shape, so that the best is known after any removal.
    ranks: BTreeSet<Ranked>,
    /// The first of `ranks`, kept beside the mask for the lookup.
    best: Option<Precedence>,
}

impl<I: Image> Shape<I> {
    pub(super) fn new(mask: I) -> Self {
        let parts = Box::new(std::array::from_fn(|_| HashMap::default()));
        Self { layers: mask.layers(), mask, parts, ranks: BTreeSet::new(), best: None }
    }

    pub(super) fn mask(&self) -> &I {
        &self.mask
    }

    /// The best place that any group of this shape has; `None` when it is empty.
    #[inline]
    pub(super) fn best(&self) -> Option<Precedence> {
        self.best
    }

    /// Whether an image has all layers that the mask asks for: a rule can ask for a layer, never for its absence.
    #[inline]
    pub(super) fn is_possible(&self, image: &I) -> bool {
        image.layers() & self.layers == self.layers
    }

    /// The best group that an image belongs to.
    #[inline]
    pub(super) fn find(&self, image: &I) -> Option<Ranked> {
        let value = image.masked(&self.mask);
        self.parts[part_of(&value)].get(&value).map(|bucket| bucket.best)
    }

    /// The group with these values at this kind and priority.
    pub(super) fn group_at(&self, value: &I, level: u64) -> Option<Ranked> {
        let bucket = self.parts[part_of(value)].get(value)?;
        bucket.iter().find(|ranked| ranked.precedence.level() == level).copied()
    }

    pub(super) fn add(&mut self, value: &I, ranked: Ranked) {
        self.parts[part_of(value)]
            .entry(*value)
            .and_modify(|bucket| bucket.add(ranked))
            .or_insert_with(|| Bucket::new(ranked));
        self.ranks.insert(ranked);
        self.update_best();
    }

    pub(super) fn remove(&mut self, value: &I, ranked: Ranked) {
        let buckets = &mut self.parts[part_of(value)];
        if buckets.get_mut(value).is_some_and(|bucket| bucket.remove(ranked)) {
            buckets.remove(value);
        }
        self.ranks.remove(&ranked);
        self.update_best();
    }

    fn update_best(&mut self) {
        self.best = self.ranks.first().map(|ranked| ranked.precedence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::MatchKey;

    /// What one insert may have to move is a part, so the parts have to be of about one size.
    #[test]
    fn groups_spread_over_the_parts() {
        const GROUPS: u32 = 64 * 1024;
        let mut shape = Shape::new(MatchKey::default());
        for group in 0..GROUPS {
            let mut value = MatchKey::default();
            value.0[2] = u64::from(group) << 32;
            let precedence = Precedence::new(FlowKind::Normal, 0, group.into());
            shape.add(&value, Ranked { precedence, group });
        }
        let sizes = shape.parts.iter().map(HashMap::len);
        assert_eq!(sizes.clone().sum::<usize>(), GROUPS as usize);
        let even = GROUPS as usize / PARTS;
        assert!(
            sizes.clone().all(|size| (even / 2..even * 2).contains(&size)),
            "{:?}",
            sizes.collect::<Vec<_>>()
        );
    }
}

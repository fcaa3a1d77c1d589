//! One shape of the tuple space: all groups of rules that share a mask, in one hash map.
//!
//! [`super::port::PortTable`] owns the shapes of a port, those of rules about tunnels apart, and asks each,
//! best precedence first, for the group that an image belongs to. A shape never looks at a rule, only at
//! masked images and precedences.

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

/// The groups with the same values, which differ in kind or priority. Nearly always one, which allocates
/// nothing.
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

/// The groups that share one mask.
#[derive(Debug)]
pub(super) struct Shape<I> {
    /// The layers that the mask asks for, which cost less to look at than the rest.
    layers: u64,
    mask: I,
    /// The groups by value.
    buckets: Buckets<I>,
    /// Every group of the shape, so that the best is known after any removal.
    ranks: BTreeSet<Ranked>,
    /// The first of `ranks`, kept beside the mask for the lookup.
    best: Option<Precedence>,
}

impl<I: Image> Shape<I> {
    pub(super) fn new(mask: I) -> Self {
        Self { layers: mask.layers(), mask, buckets: HashMap::default(), ranks: BTreeSet::new(), best: None }
    }

    pub(super) fn mask(&self) -> &I {
        &self.mask
    }

    /// The best place that any group of this shape has; `None` when it is empty.
    #[inline]
    pub(super) fn best(&self) -> Option<Precedence> {
        self.best
    }

    /// Whether an image has all layers that the mask asks for: a rule can ask for a layer, never for its
    /// absence.
    #[inline]
    pub(super) fn is_possible(&self, image: &I) -> bool {
        image.layers() & self.layers == self.layers
    }

    /// The best group that an image belongs to.
    #[inline]
    pub(super) fn find(&self, image: &I) -> Option<Ranked> {
        self.buckets.get(&image.masked(&self.mask)).map(|bucket| bucket.best)
    }

    /// The group with these values at this kind and priority.
    pub(super) fn group_at(&self, value: &I, level: u64) -> Option<Ranked> {
        self.buckets.get(value)?.iter().find(|ranked| ranked.precedence.level() == level).copied()
    }

    pub(super) fn add(&mut self, value: &I, ranked: Ranked) {
        self.buckets
            .entry(*value)
            .and_modify(|bucket| bucket.add(ranked))
            .or_insert_with(|| Bucket::new(ranked));
        self.ranks.insert(ranked);
        self.update_best();
    }

    pub(super) fn remove(&mut self, value: &I, ranked: Ranked) {
        if self.buckets.get_mut(value).is_some_and(|bucket| bucket.remove(ranked)) {
            self.buckets.remove(value);
        }
        self.ranks.remove(&ranked);
        self.update_best();
    }

    fn update_best(&mut self) {
        self.best = self.ranks.first().map(|ranked| ranked.precedence);
    }
}

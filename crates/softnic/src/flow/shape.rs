//! One shape of the tuple space: all groups of rules that share a mask, in one hash map.
//!
//! [`super::port::PortTable`] owns the shapes of a port and asks each, best precedence first, for the group that an image
//! belongs to. A shape never looks at a rule, only at masked images and precedences.

use std::collections::{BTreeSet, HashMap};
use std::hash::BuildHasherDefault;

use super::FlowKind;
use super::key::{DigestHasher, MatchKey};

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

/// The groups that share one mask.
#[derive(Debug)]
pub(super) struct Shape {
    mask: MatchKey,
    /// The groups with the same values differ in kind or priority; best first, never empty.
    buckets: HashMap<MatchKey, Vec<Ranked>, BuildHasherDefault<DigestHasher>>,
    /// Every group of the shape, so that the best is known after any removal.
    ranks: BTreeSet<Ranked>,
    /// The first of `ranks`, kept beside the mask for the lookup.
    best: Option<Precedence>,
}

impl Shape {
    pub(super) fn new(mask: MatchKey) -> Self {
        Self { mask, buckets: HashMap::default(), ranks: BTreeSet::new(), best: None }
    }

    pub(super) fn mask(&self) -> &MatchKey {
        &self.mask
    }

    /// The best place that any group of this shape has; `None` when it is empty.
    #[inline]
    pub(super) fn best(&self) -> Option<Precedence> {
        self.best
    }

    /// The best group that an image belongs to.
    #[inline]
    pub(super) fn find(&self, image: &MatchKey) -> Option<Ranked> {
        self.buckets.get(&image.masked(&self.mask))?.first().copied()
    }

    /// The group with these values at this kind and priority.
    pub(super) fn group_at(&self, value: &MatchKey, level: u64) -> Option<Ranked> {
        let bucket = self.buckets.get(value)?;
        bucket.iter().find(|ranked| ranked.precedence.level() == level).copied()
    }

    pub(super) fn add(&mut self, value: &MatchKey, ranked: Ranked) {
        let bucket = self.buckets.entry(*value).or_default();
        let place = bucket.partition_point(|other| *other < ranked);
        bucket.insert(place, ranked);
        self.ranks.insert(ranked);
        self.update_best();
    }

    pub(super) fn remove(&mut self, value: &MatchKey, ranked: Ranked) {
        if let Some(bucket) = self.buckets.get_mut(value) {
            bucket.retain(|other| *other != ranked);
            if bucket.is_empty() {
                self.buckets.remove(value);
            }
        }
        self.ranks.remove(&ranked);
        self.update_best();
    }

    fn update_best(&mut self) {
        self.best = self.ranks.first().map(|ranked| ranked.precedence);
    }
}

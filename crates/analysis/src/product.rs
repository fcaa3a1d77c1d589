//! Sets of packets that are products: some header stacks, and a set of values on each dimension. A dimension
//! restricts only packets whose stack has its field. All operations are exact, except on products that are
//! marked as rough; only the interval sets allocate.

use packet::stack::{Coordinate, pick};
use policy::Witness;

use crate::dimensions::{Dimension, Dimensions};
use crate::interval_set::IntervalSet;
use crate::stack_set::StackSet;

/// A product of sets. Invariant, kept by [`Product::close`]: it has no stack without packets and no value
/// without a stack, so it is empty exactly if its set of stacks is, and equal sets of packets are equal
/// values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Product {
    pub(super) stacks: StackSet,
    /// The sets by dimension; the whole dimension where no stack of the product has its field.
    pub(super) sets: Box<[IntervalSet]>,
    /// Whether it may contain packets that its match does not: the match would need too many products.
    pub(super) is_rough: bool,
    /// The length of its lists: intervals beyond the first on each dimension.
    pub(super) intervals: u64,
}

/// The number of intervals that can be visited in the time of one comparison of products.
const INTERVALS_PER_COMPARISON: u64 = 4;

impl Product {
    /// The cost of visiting this product, in comparisons: more for long lists.
    pub(super) fn weight(&self) -> u64 {
        1 + self.intervals / INTERVALS_PER_COMPARISON
    }

    /// The cost of comparing it with another product, in comparisons: more where both have long lists of
    /// nearby values.
    pub(super) fn effort(&self, other: &Self) -> u64 {
        if self.intervals + other.intervals < INTERVALS_PER_COMPARISON {
            return 1;
        }
        let pairs = self.sets.iter().zip(&other.sets);
        1 + pairs.map(|(ours, theirs)| ours.effort(theirs)).sum::<u64>() / INTERVALS_PER_COMPARISON
    }

    /// Returns the packets that have one of these stacks.
    pub(super) fn within(&self, stacks: StackSet, dimensions: &Dimensions) -> Self {
        let mut part = Self { stacks, ..self.clone() };
        part.close(dimensions);
        part
    }

    pub(super) fn is_empty(&self) -> bool {
        self.stacks.is_empty()
    }

    /// Whether some packet is in both.
    #[inline]
    pub(super) fn overlaps(&self, other: &Self, dimensions: &Dimensions) -> bool {
        let mut stacks = self.stacks.and(&other.stacks);
        if stacks.is_empty() {
            return false;
        }
        for (dimension, (ours, theirs)) in dimensions.list.iter().zip(self.sets.iter().zip(&other.sets)) {
            if !ours.overlaps(theirs) {
                stacks = stacks.without(&dimension.having);
                if stacks.is_empty() {
                    return false;
                }
            }
        }
        // The sets overlap; now whether they do within the domains of the stacks.
        for (dimension, (ours, theirs)) in dimensions.list.iter().zip(self.sets.iter().zip(&other.sets)) {
            if !dimension.is_free && stacks.overlaps(&dimension.present) {
                dimension.close(&mut stacks, &ours.and(theirs));
            }
        }
        !stacks.is_empty()
    }

    /// The smallest product that contains some products, none of them empty.
    pub(super) fn around(products: &[&Self], dimensions: &Dimensions) -> Self {
        let stacks = products.iter().fold(StackSet::NONE, |all, product| all.or(&product.stacks));
        let set = |(index, dimension): (usize, &Dimension)| {
            let having = products.iter().filter(|product| product.stacks.overlaps(&dimension.present));
            having.fold(IntervalSet::of([]), |all, product| all.or(&product.sets[index]))
        };
        let sets = dimensions.list.iter().enumerate().map(set).collect();
        let is_rough = products.iter().any(|product| product.is_rough);
        let mut around = Self { stacks, sets, is_rough, intervals: 0 };
        around.close(dimensions);
        around
    }

    /// The union, if it is a product.
    pub(super) fn joined(&self, other: &Self, dimensions: &Dimensions) -> Option<Self> {
        let both = Self::around(&[self, other], dimensions);
        let is_no_more = both.stacks.minus(&self.stacks).all(|rest| other.stacks.contains(&rest))
            && both.within(self.stacks, dimensions) == *self
            && both.within(other.stacks, dimensions) == *other;
        is_no_more.then_some(both)
    }

    /// The intersection.
    pub(super) fn and(&self, other: &Self, dimensions: &Dimensions) -> Self {
        let mut both = Self {
            stacks: self.stacks.and(&other.stacks),
            sets: self.sets.iter().zip(&other.sets).map(|(ours, theirs)| ours.and(theirs)).collect(),
            is_rough: self.is_rough || other.is_rough,
            intervals: 0,
        };
        both.close(dimensions);
        both
    }

    /// Whether every packet of `other`, which is not empty, is in `self`.
    #[inline]
    pub(super) fn contains(&self, other: &Self, dimensions: &Dimensions) -> bool {
        !self.is_rough
            && self.stacks.contains(&other.stacks)
            && dimensions.list.iter().zip(self.sets.iter().zip(&other.sets)).all(
                |(dimension, (ours, theirs))| {
                    ours.contains(theirs)
                        || !other.stacks.overlaps(&dimension.present)
                        || dimension.contains_within(&other.stacks, ours, theirs)
                },
            )
    }

    /// The packets of `self` that are not in `other`, as disjoint products.
    ///
    /// First the packets with other stacks. Then, dimension by dimension, the packets whose value `other`
    /// lacks become a part, and `rest` keeps those whose value it has or that lack the field. A packet
    /// outside `other` differs from it in a first dimension, so it is in exactly one part; what remains in
    /// `rest` at the end is in `other`.
    pub(super) fn minus(&self, other: &Self, dimensions: &Dimensions) -> Vec<Self> {
        let other_structures = self.stacks.minus(&other.stacks);
        let mut parts: Vec<Self> = other_structures.map(|stacks| self.within(stacks, dimensions)).collect();
        let mut rest = Self { stacks: self.stacks.and(&other.stacks), ..self.clone() };
        for (index, dimension) in dimensions.list.iter().enumerate() {
            let (ours, theirs) = (&rest.sets[index], &other.sets[index]);
            if theirs.contains(ours) || !rest.stacks.overlaps(&dimension.present) {
                continue;
            }
            let mut part = rest.clone();
            part.stacks = rest.stacks.and(&dimension.present);
            part.sets[index] = ours.minus(theirs);
            rest.sets[index] = ours.and(theirs);
            if rest.sets[index].is_empty() {
                rest.stacks = rest.stacks.without(&dimension.having);
            }
            part.close(dimensions);
            parts.push(part);
            if rest.stacks.is_empty() {
                break;
            }
        }
        parts.retain(|part| !part.is_empty());
        parts
    }

    /// Returns the packets with the first of its stacks and the fewest tags.
    pub(super) fn plainest(&self, dimensions: &Dimensions) -> Self {
        self.within(self.stacks.plainest(), dimensions)
    }

    /// A packet of it, unless it is empty: each number has its usual value where the product has it, else the
    /// least.
    pub(super) fn witness(&self, dimensions: &Dimensions) -> Option<Witness> {
        let (stack, tags) = self.stacks.first()?;
        let value = |coordinate: Coordinate| {
            let domain = stack.domain(tags, coordinate).unwrap_or_default();
            let usual = coordinate.usual();
            let Some(dimension) = dimensions.position(coordinate, 0) else {
                return pick(&domain, &[(0, coordinate.max())], usual);
            };
            let values = |dimension: usize| dimensions.list[dimension].values(&self.sets[dimension]);
            let Some(layout) = dimensions.layout(coordinate) else {
                return pick(&domain, &values(dimension), usual);
            };
            let part = |part| {
                let usual = layout.gather(part, usual as u64);
                layout.scatter(part, pick(&[(0, u128::MAX)], &values(dimension + part), usual.into()) as u64)
            };
            (0..layout.parts.len()).map(part).fold(0, |address, bits| address | bits).into()
        };
        Some(Witness { frame: stack.frame(tags, value) })
    }

    /// Removes the stacks that have no packet left, then the values that no remaining stack can have, and
    /// counts the intervals. One round is enough: a stack that remains has a value on each of its dimensions,
    /// and those values stay.
    pub(super) fn close(&mut self, dimensions: &Dimensions) {
        for (dimension, set) in dimensions.list.iter().zip(&self.sets) {
            dimension.close(&mut self.stacks, set);
        }
        for (dimension, set) in dimensions.list.iter().zip(&mut self.sets) {
            if !self.stacks.overlaps(&dimension.present) {
                *set = dimension.all.clone();
            } else if !dimension.is_free {
                *set = dimension.admitted(&self.stacks, set);
            }
        }
        self.intervals = self.sets.iter().map(|set| set.intervals().len().saturating_sub(1) as u64).sum();
    }

    /// The number of segments of each of its sets.
    pub(super) fn sizes(&self) -> Vec<u64> {
        self.sets.iter().map(IntervalSet::len).collect()
    }

    /// A rough estimate of the part of `self`, whose sets have `sizes` segments, that is in `other`. It
    /// guides choices that affect speed, never a result.
    pub(super) fn share(&self, sizes: &[u64], other: &Self) -> f64 {
        let part = |((ours, theirs), size): ((&IntervalSet, &IntervalSet), &u64)| match theirs.contains(ours)
        {
            true => 1.0,
            false => ours.shared_len(theirs) as f64 / (*size).max(1) as f64,
        };
        self.sets.iter().zip(&other.sets).zip(sizes).map(part).product()
    }
}

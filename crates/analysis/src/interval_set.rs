//! Sets of segments of one dimension, as sorted inclusive intervals: nearly always one, sometimes 10^5.

use std::sync::Arc;

pub(super) type Interval = (u32, u32);

/// A set of segments. Equal sets are equal values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum IntervalSet {
    One(Interval),
    /// No interval, or at least two, sorted, neither overlapping nor adjacent.
    Many(Arc<[Interval]>),
}

impl IntervalSet {
    /// The union of intervals that are sorted by their starts.
    pub(super) fn of(intervals: impl IntoIterator<Item = Interval>) -> Self {
        let mut merged: Vec<Interval> = Vec::new();
        for (low, high) in intervals {
            match merged.last_mut() {
                Some(last) if low <= last.1.saturating_add(1) => last.1 = last.1.max(high),
                _ => merged.push((low, high)),
            }
        }
        match merged[..] {
            [one] => Self::One(one),
            _ => Self::Many(merged.into()),
        }
    }

    #[inline]
    pub(super) fn intervals(&self) -> &[Interval] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Self::Many(many) if many.is_empty())
    }

    /// The first and the last segment in it; `(1, 0)` for the empty set.
    pub(super) fn hull(&self) -> Interval {
        match self.intervals() {
            [] => (1, 0),
            all => (all[0].0, all[all.len() - 1].1),
        }
    }

    /// The number of segments in it.
    pub(super) fn len(&self) -> u64 {
        self.intervals().iter().copied().map(length).sum()
    }

    pub(super) fn has(&self, segment: u32) -> bool {
        self.overlaps(&Self::One((segment, segment)))
    }

    #[inline]
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        if let (Self::One(a), Self::One(b)) = (self, other) {
            return a.0 <= b.1 && b.0 <= a.1;
        }
        let (few, many) = self.near(other);
        let mut many = Walk { rest: many };
        few.iter().any(|(low, high)| many.reaching(*low).first().is_some_and(|next| next.0 <= *high))
    }

    /// Whether all of `other` is in `self`.
    #[inline]
    pub(super) fn contains(&self, other: &Self) -> bool {
        if let (Self::One(a), Self::One(b)) = (self, other) {
            return a.0 <= b.0 && b.1 <= a.1;
        }
        let (ours, theirs) = (self.hull(), other.hull());
        let is_around = ours.0 <= theirs.0 && theirs.1 <= ours.1;
        if !is_around || matches!(self, Self::One(_)) {
            return is_around || other.is_empty();
        }
        let mut ours = Walk { rest: self.intervals() };
        let holds = |(low, high): &Interval| {
            ours.reaching(*low).first().is_some_and(|next| next.0 <= *low && *high <= next.1)
        };
        other.intervals().iter().all(holds)
    }

    #[inline]
    pub(super) fn and(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::One(a), Self::One(b)) => {
                let both = (a.0.max(b.0), a.1.min(b.1));
                if both.0 <= both.1 { Self::One(both) } else { Self::of([]) }
            }
            // A list within one interval need not be visited.
            (Self::One(_), part) if self.contains(part) => part.clone(),
            (part, Self::One(_)) if other.contains(part) => part.clone(),
            _ => Self::of(self.common(other)),
        }
    }

    /// The number of segments in both.
    pub(super) fn shared_len(&self, other: &Self) -> u64 {
        self.common(other).map(length).sum()
    }

    /// The intersection as intervals.
    fn common<'s>(&'s self, other: &'s Self) -> impl Iterator<Item = Interval> + 's {
        let (few, many) = self.near(other);
        let mut many = Walk { rest: many };
        few.iter().flat_map(move |(low, high)| {
            let reaching = many.reaching(*low).iter();
            reaching.take_while(|next| next.0 <= *high).map(|next| (next.0.max(*low), next.1.min(*high)))
        })
    }

    /// The number of intervals, beyond one of each, that a comparison of two sets visits.
    #[inline]
    pub(super) fn effort(&self, other: &Self) -> u64 {
        if let (Self::One(_), Self::One(_)) = (self, other) {
            return 0;
        }
        let (few, many) = self.near(other);
        (few.len().saturating_sub(1) + many.len().saturating_sub(1)) as u64
    }

    pub(super) fn or(&self, other: &Self) -> Self {
        let mut all: Vec<Interval> = self.intervals().iter().chain(other.intervals()).copied().collect();
        // The stable sort merges two sorted runs in linear time.
        all.sort();
        Self::of(all)
    }

    pub(super) fn minus(&self, other: &Self) -> Self {
        let mut theirs = Walk { rest: other.intervals() };
        let mut left = Vec::new();
        for (low, high) in self.intervals() {
            let mut next = *low;
            let mut rest = true;
            for taken in theirs.reaching(*low).iter().take_while(|taken| taken.0 <= *high) {
                if next < taken.0 {
                    left.push((next, taken.0 - 1));
                }
                rest = taken.1 < *high;
                next = taken.1.saturating_add(1);
            }
            if rest {
                left.push((next, *high));
            }
        }
        Self::of(left)
    }

    /// The intervals of each that overlap the hull of the other, the shorter list first.
    #[inline]
    fn near<'s>(&'s self, other: &'s Self) -> (&'s [Interval], &'s [Interval]) {
        let (ours, theirs) = (self.reaching_into(other.hull()), other.reaching_into(self.hull()));
        if ours.len() <= theirs.len() { (ours, theirs) } else { (theirs, ours) }
    }

    /// The intervals that overlap this one.
    pub(super) fn reaching_into(&self, (low, high): Interval) -> &[Interval] {
        let all = self.intervals();
        let to = all.partition_point(|interval| interval.0 <= high);
        let from = all[..to].partition_point(|interval| interval.1 < low);
        &all[from..to]
    }
}

/// The number of segments in an interval.
fn length((low, high): Interval) -> u64 {
    u64::from(high - low) + 1
}

/// Galloping search in sorted intervals (Bentley and Yao, 1976).
struct Walk<'s> {
    rest: &'s [Interval],
}

impl<'s> Walk<'s> {
    /// The intervals from the first that ends at `low` or later; `low` must not decrease between calls. The
    /// cost is logarithmic in the number of intervals passed, so walking through two lists costs at most
    /// their lengths.
    #[inline]
    fn reaching(&mut self, low: u32) -> &'s [Interval] {
        let is_passed = |interval: &Interval| interval.1 < low;
        let mut step = 1;
        while self.rest.get(step - 1).is_some_and(is_passed) {
            self.rest = &self.rest[step..];
            step = (2 * step).min(self.rest.len().max(1));
        }
        let near = &self.rest[..self.rest.len().min(step)];
        self.rest = &self.rest[near.partition_point(is_passed)..];
        self.rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn members(set: &IntervalSet) -> Vec<u32> {
        (0..70).filter(|segment| set.has(*segment)).collect()
    }

    fn set() -> impl Strategy<Value = IntervalSet> {
        prop::collection::btree_set(0u32..64, 0..40)
            .prop_map(|all| IntervalSet::of(all.into_iter().map(|one| (one, one))))
    }

    proptest! {
        #[test]
        fn sets_are_sets(a in set(), b in set()) {
            let (ours, theirs) = (members(&a), members(&b));
            let both: Vec<u32> = ours.iter().copied().filter(|one| theirs.contains(one)).collect();
            let rest: Vec<u32> = ours.iter().copied().filter(|one| !theirs.contains(one)).collect();
            prop_assert_eq!(members(&a.and(&b)), both.clone());
            prop_assert_eq!(members(&a.minus(&b)), rest.clone());
            prop_assert_eq!(a.overlaps(&b), !both.is_empty());
            prop_assert_eq!(a.contains(&b), both.len() == theirs.len());
            prop_assert_eq!(a.len(), ours.len() as u64);
            prop_assert_eq!(a.and(&b).is_empty(), both.is_empty());
            prop_assert_eq!(a.shared_len(&b), both.len() as u64);
            prop_assert!(a.effort(&b) <= (a.intervals().len() + b.intervals().len()) as u64);
            // Equal sets are equal values.
            prop_assert_eq!(&a.minus(&b).or(&a.and(&b)), &a);
        }
    }
}

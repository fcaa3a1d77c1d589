//! Cells: products of sets over the axes of a space, within some kinds of packets. An axis means something for
//! the kinds that have its field, and nothing for the others. All is exact, but for cells that say they are not;
//! none of it allocates but the sets.

use super::axes::{Axes, Axis};
use super::kind::Structure;
use super::set::Set;

/// A product of sets; closed, so that it is empty exactly if its structure is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Cell {
    pub(super) structure: Structure,
    /// By axis; all of the axis where no kind of the cell has its field.
    pub(super) sets: Box<[Set]>,
    /// Whether some of its packets may not be meant: it stands for a match that falls into too many cells.
    pub(super) is_rough: bool,
    /// How long its lists are: intervals beyond one on each axis.
    pub(super) intervals: u64,
}

/// As many intervals of sets are gone through in the time that one comparison of cells takes.
const INTERVALS_PER_COMPARISON: u64 = 4;

impl Cell {
    /// As many comparisons as it takes to go through this cell: more for long lists.
    pub(super) fn weight(&self) -> u64 {
        1 + self.intervals / INTERVALS_PER_COMPARISON
    }

    /// As many comparisons as one with another cell takes: more where both have much in one place.
    pub(super) fn effort(&self, other: &Self) -> u64 {
        if self.intervals + other.intervals < INTERVALS_PER_COMPARISON {
            return 1;
        }
        let pairs = self.sets.iter().zip(&other.sets);
        1 + pairs.map(|(ours, theirs)| ours.effort(theirs)).sum::<u64>() / INTERVALS_PER_COMPARISON
    }

    /// The packets of those kinds among its own.
    pub(super) fn within(&self, structure: Structure, axes: &Axes) -> Self {
        let mut part = Self { structure, ..self.clone() };
        part.close(axes);
        part
    }

    pub(super) fn is_empty(&self) -> bool {
        self.structure.is_empty()
    }

    /// Whether some packet is in both.
    #[inline]
    pub(super) fn overlaps(&self, other: &Self, axes: &Axes) -> bool {
        let mut structure = self.structure.and(&other.structure);
        if structure.is_empty() {
            return false;
        }
        for (axis, (ours, theirs)) in axes.list.iter().zip(self.sets.iter().zip(&other.sets)) {
            if !ours.overlaps(theirs) {
                structure = structure.without(&axis.having);
                if structure.is_empty() {
                    return false;
                }
            }
        }
        // The sets meet; what is left is whether they do where the kinds have their values.
        for (axis, (ours, theirs)) in axes.list.iter().zip(self.sets.iter().zip(&other.sets)) {
            if !axis.is_free && structure.overlaps(&axis.present) {
                axis.close(&mut structure, &ours.and(theirs));
            }
        }
        !structure.is_empty()
    }

    /// The smallest cell around some that are not empty.
    pub(super) fn around(cells: &[&Self], axes: &Axes) -> Self {
        let structure = cells.iter().fold(Structure::NONE, |all, cell| all.or(&cell.structure));
        let set = |(index, axis): (usize, &Axis)| {
            let having = cells.iter().filter(|cell| cell.structure.overlaps(&axis.present));
            having.fold(Set::of([]), |all, cell| all.or(&cell.sets[index]))
        };
        let sets = axes.list.iter().enumerate().map(set).collect();
        let is_rough = cells.iter().any(|cell| cell.is_rough);
        let mut around = Self { structure, sets, is_rough, intervals: 0 };
        around.close(axes);
        around
    }

    /// Both as one cell, if that is no more than both.
    pub(super) fn joined(&self, other: &Self, axes: &Axes) -> Option<Self> {
        let both = Self::around(&[self, other], axes);
        let is_no_more = both.structure.minus(&self.structure).all(|rest| other.structure.contains(&rest))
            && both.within(self.structure, axes) == *self
            && both.within(other.structure, axes) == *other;
        is_no_more.then_some(both)
    }

    /// The packets in both; empty if there are none.
    pub(super) fn and(&self, other: &Self, axes: &Axes) -> Self {
        let mut both = Self {
            structure: self.structure.and(&other.structure),
            sets: self.sets.iter().zip(&other.sets).map(|(ours, theirs)| ours.and(theirs)).collect(),
            is_rough: self.is_rough || other.is_rough,
            intervals: 0,
        };
        both.close(axes);
        both
    }

    /// Whether every packet of `other`, which is not empty, is in `self`.
    #[inline]
    pub(super) fn contains(&self, other: &Self, axes: &Axes) -> bool {
        !self.is_rough
            && self.structure.contains(&other.structure)
            && axes.list.iter().zip(self.sets.iter().zip(&other.sets)).all(|(axis, (ours, theirs))| {
                ours.contains(theirs)
                    || !other.structure.overlaps(&axis.present)
                    || axis.contains_within(&other.structure, ours, theirs)
            })
    }

    /// The packets of `self` that are not in `other`, as disjoint cells.
    pub(super) fn minus(&self, other: &Self, axes: &Axes) -> Vec<Self> {
        let other_structures = self.structure.minus(&other.structure);
        let mut parts: Vec<Self> = other_structures.map(|structure| self.within(structure, axes)).collect();
        let mut rest = Self { structure: self.structure.and(&other.structure), ..self.clone() };
        for (index, axis) in axes.list.iter().enumerate() {
            let (ours, theirs) = (&rest.sets[index], &other.sets[index]);
            if theirs.contains(ours) || !rest.structure.overlaps(&axis.present) {
                continue;
            }
            let mut part = rest.clone();
            part.structure = rest.structure.and(&axis.present);
            part.sets[index] = ours.minus(theirs);
            rest.sets[index] = ours.and(theirs);
            if rest.sets[index].is_empty() {
                rest.structure = rest.structure.without(&axis.having);
            }
            part.close(axes);
            parts.push(part);
            if rest.structure.is_empty() {
                break;
            }
        }
        parts.retain(|part| !part.is_empty());
        parts
    }

    /// The packets of the plainest kind in it, with the fewest tags.
    pub(super) fn plainest(&self, axes: &Axes) -> Self {
        self.within(self.structure.plainest(), axes)
    }

    /// Drops the kinds that the sets leave no packet of, and the values that no kind has; counts what is left.
    pub(super) fn close(&mut self, axes: &Axes) {
        for (axis, set) in axes.list.iter().zip(&self.sets) {
            axis.close(&mut self.structure, set);
        }
        for (axis, set) in axes.list.iter().zip(&mut self.sets) {
            if !self.structure.overlaps(&axis.present) {
                *set = axis.all.clone();
            } else if !axis.is_free {
                *set = axis.admitted(&self.structure, set);
            }
        }
        self.intervals = self.sets.iter().map(|set| set.intervals().len().saturating_sub(1) as u64).sum();
    }

    /// How many segments each of its sets has.
    pub(super) fn sizes(&self) -> Vec<u64> {
        self.sets.iter().map(Set::len).collect()
    }

    /// Which part of `self`, whose sets have so many segments, is in `other`, roughly: for choosing, not for
    /// deciding.
    pub(super) fn share(&self, sizes: &[u64], other: &Self) -> f64 {
        let part = |((ours, theirs), size): ((&Set, &Set), &u64)| match theirs.contains(ours) {
            true => 1.0,
            false => ours.shared_len(theirs) as f64 / (*size).max(1) as f64,
        };
        self.sets.iter().zip(&other.sets).zip(sizes).map(part).product()
    }
}

//! The one question that everything here comes down to: is there a packet in a cell that none of these other
//! cells has? Decided exactly, by cutting the cell along the others until a piece is free or all is taken.
//! The question is hard in general (it contains satisfiability), so there is a limit to the work of one and to
//! that of all that `analyse` or `diff` asks; beyond it the answer is that it was not decided, never a guess.

use std::cell::Cell as Counter;
use std::collections::BTreeSet;
use std::fmt;

use policy::Policy;

use super::axes::{Axes, MAX_CELLS};
use super::cell::Cell;
use super::diff::MAX_PAIRS;
use super::set::Set;

/// How many comparisons of cells one question may take: a few seconds.
pub const MAX_COMPARISONS: u64 = 20_000_000;
/// How many all the questions of one analysis, or of one diff, may take together: ten seconds or so.
pub const MAX_COMPARISONS_IN_ALL: u64 = 400_000_000;
/// Looking for a likely place sorts the covers' ends: so many times a comparison.
const PROBE_WEIGHT: u64 = 8;

/// What packets are compared in: the axes that some policies need, and how much may still be asked of them.
pub(super) struct Space {
    pub(super) axes: Axes,
    left: Counter<u64>,
}

/// A cell that takes packets, and whose it is.
#[derive(Clone, Copy)]
pub(super) struct Cover<'c> {
    pub(super) rule: u32,
    pub(super) cell: &'c Cell,
}

/// The answer.
#[derive(Debug)]
pub(super) enum Free {
    /// Nothing of this cell, which is not empty, is taken.
    Cell(Cell),
    /// All is taken.
    None,
    /// A limit was reached.
    NotDecided(Undecided),
}

/// Why a question has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Undecided {
    /// It takes more than [`MAX_COMPARISONS`].
    OneQuestion,
    /// It and those before it take more than [`MAX_COMPARISONS_IN_ALL`].
    AllQuestions,
    /// The MAC addresses of one match fall into more than [`MAX_CELLS`] parts.
    CrossedMasks,
    /// Packets change hands between more than [`MAX_PAIRS`] pairs of rules.
    Pairs,
}

impl fmt::Display for Undecided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OneQuestion => {
                write!(f, "it takes more than {MAX_COMPARISONS} comparisons of header regions")
            }
            Self::AllQuestions => write!(
                f,
                "all questions together take more than {MAX_COMPARISONS_IN_ALL} comparisons of header regions"
            ),
            Self::Pairs => write!(f, "more than {MAX_PAIRS} pairs of rules differ"),
            Self::CrossedMasks => {
                write!(f, "the masks of MAC addresses cross in more than {MAX_CELLS} ways")
            }
        }
    }
}

impl Space {
    /// The space of some policies together.
    pub(super) fn of(policies: &[&Policy]) -> Self {
        let matches = policies.iter().flat_map(|policy| &policy.rules).map(|rule| &rule.matches);
        Self { axes: Axes::of(matches), left: Counter::new(MAX_COMPARISONS_IN_ALL) }
    }

    /// Which part of all that may be asked is left.
    pub(super) fn share_left(&self) -> f64 {
        self.left.get() as f64 / MAX_COMPARISONS_IN_ALL as f64
    }

    pub(super) fn is_spent(&self) -> bool {
        self.left.get() == 0
    }

    /// Counts comparisons that were made beside the questions.
    pub(super) fn spend(&self, comparisons: u64) {
        self.left.set(self.left.get().saturating_sub(comparisons));
    }

    /// Whether two cells overlap, which is counted.
    pub(super) fn overlaps(&self, one: &Cell, other: &Cell) -> bool {
        self.spend(one.effort(other));
        one.overlaps(other, &self.axes)
    }

    /// What is in both cells, which is counted.
    pub(super) fn both(&self, one: &Cell, other: &Cell) -> Cell {
        self.spend(one.effort(other));
        one.and(other, &self.axes)
    }

    /// Finds packets of `cell` that are in no cover; `takers` is told a set of covers that are enough.
    pub(super) fn free_of(&self, cell: &Cell, covers: &[Cover<'_>], takers: &mut BTreeSet<u32>) -> Free {
        if cell.is_empty() {
            return Free::None;
        }
        let overlapping = covers.iter().filter(|cover| self.overlaps(cell, cover.cell)).copied();
        let (rough, exact): (Vec<_>, Vec<_>) = overlapping.partition(|cover| cover.cell.is_rough);
        match self.cut(cell, &exact, takers) {
            Free::Cell(_) if cell.is_rough => Free::NotDecided(Undecided::CrossedMasks),
            Free::Cell(_) if !rough.is_empty() => {
                // What is free even of all that those might have is free.
                let all: Vec<Cover<'_>> = exact.into_iter().chain(rough).collect();
                match self.cut(cell, &all, &mut BTreeSet::new()) {
                    Free::None => Free::NotDecided(Undecided::CrossedMasks),
                    found => found,
                }
            }
            found => found,
        }
    }

    /// The same with covers that all overlap the cell, and are taken for what they seem.
    fn cut(&self, cell: &Cell, covers: &[Cover<'_>], takers: &mut BTreeSet<u32>) -> Free {
        if let Some(whole) = covers.iter().find(|cover| cover.cell.contains(cell, &self.axes)) {
            takers.insert(whole.rule);
            return Free::None;
        }
        let most = self.left.get().min(MAX_COMPARISONS);
        let mut search = Search { axes: &self.axes, covers, left: most };
        let found = search.all(cell, takers);
        self.spend(most - search.left);
        match found {
            Free::NotDecided(_) if self.is_spent() => Free::NotDecided(Undecided::AllQuestions),
            found => found,
        }
    }
}

/// With fewer covers than this, cutting is as fast as looking for a likely place first.
const PROBED: usize = 4;

struct Search<'s, 'c> {
    axes: &'s Axes,
    covers: &'s [Cover<'c>],
    left: u64,
}

impl Search<'_, '_> {
    fn all(&mut self, cell: &Cell, takers: &mut BTreeSet<u32>) -> Free {
        if self.covers.len() > PROBED {
            let effort: u64 = self.covers.iter().map(|cover| cell.effort(cover.cell)).sum();
            self.left = self.left.saturating_sub(PROBE_WEIGHT * effort);
            let (narrow, some) = self.least_covered(cell);
            if let Free::Cell(found) = self.run(narrow, some, &mut BTreeSet::new()) {
                return Free::Cell(found);
            }
        }
        self.run(cell.clone(), (0..self.covers.len() as u32).collect(), takers)
    }

    fn run(&mut self, cell: Cell, covers: Vec<u32>, takers: &mut BTreeSet<u32>) -> Free {
        let mut open = vec![(cell, covers)];
        while let Some((cell, mut covers)) = open.pop() {
            let effort: u64 = covers.iter().map(|index| cell.effort(self.cover(*index).cell)).sum();
            self.left = self.left.saturating_sub(2 * effort + cell.weight());
            if self.left == 0 {
                return Free::NotDecided(Undecided::OneQuestion);
            }
            covers.retain(|index| self.cover(*index).cell.overlaps(&cell, self.axes));
            let sizes = cell.sizes();
            let mut best: Option<(f64, u32)> = None;
            let mut is_taken = false;
            for index in &covers {
                let cover = self.cover(*index);
                if cover.cell.contains(&cell, self.axes) {
                    takers.insert(cover.rule);
                    is_taken = true;
                    break;
                }
                let share = cell.share(&sizes, cover.cell);
                if best.is_none_or(|(most, _)| share > most) {
                    best = Some((share, *index));
                }
            }
            if is_taken {
                continue;
            }
            let Some((_, largest)) = best else { return Free::Cell(cell) };
            let cover = self.cover(largest);
            takers.insert(cover.rule);
            covers.retain(|index| *index != largest);
            open.extend(cell.minus(cover.cell, self.axes).into_iter().map(|part| (part, covers.clone())));
        }
        Free::None
    }

    fn cover(&self, index: u32) -> Cover<'_> {
        self.covers[index as usize]
    }

    /// A part of the cell that few covers reach: on one axis after the other the segment with the fewest.
    fn least_covered(&self, cell: &Cell) -> (Cell, Vec<u32>) {
        let mut cell = cell.clone();
        let mut near: Vec<u32> = (0..self.covers.len() as u32).collect();
        for axis in 0..self.axes.list.len() {
            let covers = near.iter().map(|index| &self.cover(*index).cell.sets[axis]);
            let Some(segment) = least_covered(&cell.sets[axis], covers) else { continue };
            let mut narrow = cell.clone();
            narrow.sets[axis] = Set::One((segment, segment));
            narrow.structure = narrow.structure.and(&self.axes.list[axis].present);
            narrow.close(self.axes);
            if !narrow.is_empty() {
                cell = narrow;
                near.retain(|index| self.cover(*index).cell.overlaps(&cell, self.axes));
            }
            if near.is_empty() {
                break;
            }
        }
        (cell, near)
    }
}

/// The first of the segments of `set` that the fewest covers have.
fn least_covered<'c>(set: &Set, covers: impl Iterator<Item = &'c Set>) -> Option<u32> {
    let hull = set.hull();
    let mut changes: Vec<(u32, i32)> = Vec::new();
    for (low, high) in covers.flat_map(|cover| cover.reaching_into(hull)) {
        changes.push((*low, 1));
        changes.push((high.saturating_add(1), -1));
    }
    // Where a run of the set begins the count may be what it was before.
    changes.extend(set.intervals().iter().map(|(low, _)| (*low, 0)));
    // The sets are sorted, so this merges them.
    changes.sort_by_key(|(place, _)| *place);
    let mut count = 0;
    let mut best: Option<(i32, u32)> = None;
    for same in changes.chunk_by(|a, b| a.0 == b.0) {
        count += same.iter().map(|(_, change)| change).sum::<i32>();
        let place = same[0].0;
        if best.is_none_or(|(least, _)| count < least) && set.has(place) {
            best = Some((count, place));
        }
    }
    best.map(|(_, place)| place)
}

#[cfg(test)]
mod tests {
    use program::{Match, RangeSet};

    use super::*;

    #[test]
    fn a_spent_space_decides_nothing_more() {
        let port = |port| Match { dst_port: Some(RangeSet::single(port)), ..Match::default() };
        let matches = [port(80), port(443)];
        let space = Space { axes: Axes::of(matches.iter()), left: Counter::new(3) };
        let all = space.axes.everything();
        let cells: Vec<Cell> = matches.iter().flat_map(|matches| space.axes.cells(matches)).collect();
        let covers: Vec<Cover<'_>> = (0..).zip(&cells).map(|(rule, cell)| Cover { rule, cell }).collect();
        let found = space.free_of(&all, &covers, &mut BTreeSet::new());
        assert!(matches!(found, Free::NotDecided(Undecided::AllQuestions)), "{found:?}");
        assert!(space.is_spent());
        // What one cover takes whole needs no search.
        assert!(matches!(space.free_of(&cells[0], &covers, &mut BTreeSet::new()), Free::None));
    }

    /// How many comparisons it takes to find out that three lists of ports and a port alone have nothing in
    /// common, asked of the first or of the last of them.
    fn comparisons(length: u16, of_last: bool) -> u64 {
        let ports = |ports: RangeSet<u16>| Match { dst_port: Some(ports), ..Match::default() };
        let every_fifth =
            |from: u16| RangeSet::of((0..length).map(|index| 5 * index + from).map(|at| (at, at)).collect());
        let matches = [every_fifth(0), every_fifth(1), every_fifth(2), RangeSet::single(8)].map(ports);
        let space = Space { axes: Axes::of(matches.iter()), left: Counter::new(MAX_COMPARISONS_IN_ALL) };
        let mut cells: Vec<Cell> = matches.iter().flat_map(|matches| space.axes.cells(matches)).collect();
        let target = cells.remove(if of_last { 3 } else { 0 });
        let covers: Vec<Cover<'_>> = (0..).zip(&cells).map(|(rule, cell)| Cover { rule, cell }).collect();
        assert!(matches!(space.free_of(&target, &covers, &mut BTreeSet::new()), Free::Cell(_)));
        MAX_COMPARISONS_IN_ALL - space.left.get()
    }

    #[test]
    fn what_long_lists_take_is_counted_where_they_are_gone_through() {
        // Lists that meet nowhere are read to their ends to find that out.
        let (short, long) = (comparisons(1_000, false), comparisons(10_000, false));
        assert!(short >= 2 * 2 * 1_000 / 8, "{short}");
        assert!((9 * short..11 * short).contains(&long), "{short} for 1,000 values, {long} for 10,000");
        // Of a list only the part that another one reaches.
        let (short, long) = (comparisons(1_000, true), comparisons(10_000, true));
        assert!(short == long && long < 10, "{short} for 1,000 values, {long} for 10,000");
    }
}

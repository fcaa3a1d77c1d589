//! The one question that everything here comes down to: is there a packet in a cell that none of these other
//! cells has? Decided exactly, by cutting the cell along the others until a piece is free or all is taken.
//! The question is hard in general (it contains satisfiability), so there is a limit to the work; beyond it the
//! answer is that it was not decided, never a guess.

use std::collections::BTreeSet;

use super::axes::Axes;
use super::cell::Cell;
use super::set::Set;

/// How many comparisons of cells one question may take: a second or so.
pub const MAX_COMPARISONS: u64 = 20_000_000;

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
    /// The limit was reached.
    NotDecided,
}

/// Finds packets of `cell` that are in no cover; `takers` is told a set of covers that are enough.
pub(super) fn free_of(axes: &Axes, cell: &Cell, covers: &[Cover<'_>], takers: &mut BTreeSet<u32>) -> Free {
    if cell.is_empty() {
        return Free::None;
    }
    let near: Vec<Cover<'_>> =
        covers.iter().filter(|cover| cover.cell.overlaps(cell, axes)).copied().collect();
    if let Some(whole) = near.iter().find(|cover| cover.cell.contains(cell, axes)) {
        takers.insert(whole.rule);
        return Free::None;
    }
    let mut search = Search { axes, covers: &near, left: MAX_COMPARISONS };
    if near.len() > PROBED {
        let (narrow, some) = search.least_covered(cell);
        if let Free::Cell(found) = search.run(narrow, some, &mut BTreeSet::new()) {
            return Free::Cell(found);
        }
    }
    search.run(cell.clone(), (0..near.len() as u32).collect(), takers)
}

/// With fewer covers than this, cutting is as fast as looking for a likely place first.
const PROBED: usize = 4;

struct Search<'s, 'c> {
    axes: &'s Axes,
    covers: &'s [Cover<'c>],
    left: u64,
}

impl Search<'_, '_> {
    fn run(&mut self, cell: Cell, covers: Vec<u32>, takers: &mut BTreeSet<u32>) -> Free {
        let mut open = vec![(cell, covers)];
        while let Some((cell, mut covers)) = open.pop() {
            self.left = self.left.saturating_sub(2 * covers.len() as u64 + 1);
            if self.left == 0 {
                return Free::NotDecided;
            }
            covers.retain(|index| self.cover(*index).cell.overlaps(&cell, self.axes));
            let mut best: Option<(f64, u32)> = None;
            let mut is_taken = false;
            for index in &covers {
                let cover = self.cover(*index);
                if cover.cell.contains(&cell, self.axes) {
                    takers.insert(cover.rule);
                    is_taken = true;
                    break;
                }
                let share = cell.share(cover.cell);
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
    let mut changes: Vec<(u32, i64)> = Vec::new();
    for (low, high) in covers.flat_map(Set::intervals) {
        changes.push((*low, 1));
        changes.push((high.saturating_add(1), -1));
    }
    // Where a run of the set begins the count may be what it was before.
    changes.extend(set.intervals().iter().map(|(low, _)| (*low, 0)));
    changes.sort_unstable();
    let mut count = 0;
    let mut best: Option<(i64, u32)> = None;
    for same in changes.chunk_by(|a, b| a.0 == b.0) {
        count += same.iter().map(|(_, change)| change).sum::<i64>();
        let place = same[0].0;
        if best.is_none_or(|(least, _)| count < least) && set.has(place) {
            best = Some((count, place));
        }
    }
    best.map(|(_, place)| place)
}

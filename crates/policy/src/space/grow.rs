//! Few and large cells for what is left of a cell: around each free packet the cell is taken as wide as its
//! surroundings allow, so that a hole becomes one "not", and not the many slivers around it.

use std::collections::BTreeSet;

use super::axes::Axes;
use super::cell::Cell;
use super::kind::Structure;
use super::region;
use super::search::{Cover, Free, free_of};

/// What is left of a cell.
#[derive(Clone, Debug, Default)]
pub(super) struct Grown {
    /// Cells, which may overlap; if not all of one is meant, some of the packets that are.
    pub(super) cells: Vec<(Cell, Option<Cell>)>,
    /// Whether it was not decided if there is more.
    pub(super) is_open: bool,
}

impl Grown {
    pub(super) fn add(&mut self, other: Self) {
        self.cells.extend(other.cells);
        self.is_open |= other.is_open;
    }
}

/// The packets of `target` that no cover has, as at most `most` cells.
pub(super) fn regions_of(axes: &Axes, target: &Cell, covers: &[Cover<'_>], most: usize) -> Grown {
    let near: Vec<Cover<'_>> =
        covers.iter().filter(|cover| cover.cell.overlaps(target, axes)).copied().collect();
    let mut grown = Grown::default();
    loop {
        let mut taken = near.clone();
        taken.extend(grown.cells.iter().map(|(cell, _)| Cover { rule: u32::MAX, cell }));
        match free_of(axes, target, &taken, &mut BTreeSet::new()) {
            Free::None => return grown,
            Free::NotDecided => {
                grown.is_open = true;
                return grown;
            }
            Free::Cell(free) => {
                if most <= 1 {
                    grown.cells.push((target.clone(), Some(free)));
                    return grown;
                }
                if grown.cells.len() + 1 >= most {
                    let rest = parts_with_more(axes, target, &taken, &mut grown.is_open);
                    grown.cells.extend(rest);
                    return grown;
                }
                grown.cells.push((around(axes, target, &near, &free), None));
            }
        }
    }
}

/// The parts of a cell that are matches of their own and have free packets, with some of those.
fn parts_with_more(
    axes: &Axes,
    target: &Cell,
    taken: &[Cover<'_>],
    is_open: &mut bool,
) -> Vec<(Cell, Option<Cell>)> {
    let mut parts = Vec::new();
    for (_, part) in region::of(axes, target) {
        match free_of(axes, &part, taken, &mut BTreeSet::new()) {
            Free::Cell(free) => parts.push((part, Some(free))),
            Free::NotDecided => *is_open = true,
            Free::None => {}
        }
    }
    parts
}

/// A large part of `target` that has a free packet and nothing of the covers.
fn around(axes: &Axes, target: &Cell, covers: &[Cover<'_>], free: &Cell) -> Cell {
    // One kind of packet: then what is not in a cover is so by one field, or by its kind.
    let free = free.plainest(axes);
    let mut wide = target.clone();
    for cover in covers {
        if cover.cell.overlaps(&wide, axes) {
            keep_out(axes, &mut wide, &free, cover.cell);
        }
    }
    wide
}

/// Takes out of `wide` the cover, which has nothing of `free`, by the one condition that costs least.
fn keep_out(axes: &Axes, wide: &mut Cell, free: &Cell, cover: &Cell) {
    let mut best: Option<(f64, Cell)> = None;
    for (index, axis) in axes.list.iter().enumerate() {
        if !axis.present.contains(&free.structure) || cover.sets[index].overlaps(&free.sets[index]) {
            continue;
        }
        let mut part = wide.clone();
        part.sets[index] = wide.sets[index].minus(&cover.sets[index]);
        let share = part.sets[index].len() as f64 / wide.sets[index].len().max(1) as f64;
        // What has no such field is not kept out by it.
        let lacking = cover.structure.without(&axis.present);
        part.structure = wide.structure.and(&region::of_key(axis.field)).without(&lacking);
        part.close(axes);
        if !part.is_empty() && best.as_ref().is_none_or(|(most, _)| share > *most) {
            best = Some((share, part));
        }
    }
    let others = || wide.structure.minus(&cover.structure).filter(|part| part.contains(&free.structure));
    let by_kind = |structure: Structure| {
        let mut part = Cell { structure, sets: wide.sets.clone() };
        part.close(axes);
        part
    };
    let part = best.map(|(_, part)| part).or_else(|| others().next().map(by_kind));
    *wide = part.unwrap_or_else(|| free.clone());
}

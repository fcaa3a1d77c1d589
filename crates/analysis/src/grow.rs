//! Few and large cells for what is left of a cell: around each free packet the cell is taken as wide as its
//! surroundings allow, so that a hole becomes one "not", and not the many slivers around it. `diff` asks; whether
//! anything is left at all it has found out before.

use std::collections::{BTreeSet, HashSet};

use super::axes::Axes;
use super::cell::Cell;
use super::field::Field;
use super::region;
use super::search::{Cover, Free, Space};

/// With more cells than this it is not looked for those that others make needless.
const MAX_WEEDED: usize = 32;

/// To join two cells takes as long as so many comparisons.
const JOIN_WEIGHT: u64 = 8;

/// How many cells are wanted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// So many are told, the last of which may stand for all others.
    pub(super) told: usize,
    /// Up to so many are counted.
    pub(super) counted: usize,
}

/// What is left of a cell.
#[derive(Clone, Debug, Default)]
pub(super) struct Grown {
    /// Cells of one match each, which may overlap; if not all of one is meant, some of the packets that are.
    pub(super) cells: Vec<(Cell, Option<Cell>)>,
    /// How many are not among them.
    pub(super) more: usize,
    /// Whether there may be even more.
    pub(super) is_open: bool,
}

impl Grown {
    pub(super) fn add(&mut self, other: Self) {
        self.cells.extend(other.cells);
        self.more += other.more;
        self.is_open |= other.is_open;
    }
}

/// The packets of `target` that no cover has, of which `first` are some.
pub(super) fn regions_of(
    space: &Space,
    target: &Cell,
    covers: &[Cover<'_>],
    first: Cell,
    wanted: Wanted,
) -> Grown {
    let near: Vec<Cover<'_>> =
        covers.iter().filter(|cover| cover.cell.overlaps(target, &space.axes)).copied().collect();
    let mut grown = Grown::default();
    let mut cells: Vec<Cell> = Vec::new();
    let mut next = Free::Cell(first);
    while let Free::Cell(free) = &next {
        if cells.len() >= wanted.counted {
            grown.is_open = true;
            break;
        }
        cells.push(around(&space.axes, target, &near, free));
        next = space.free_of(target, &with(&near, &cells), &mut BTreeSet::new());
    }
    grown.is_open |= matches!(next, Free::NotDecided(_));
    let mut cells = matches_of(&space.axes, &cells);
    weed(space, &mut cells);
    join(space, &mut cells);
    let sizes = target.sizes();
    cells.sort_by(|one, other| target.share(&sizes, other).total_cmp(&target.share(&sizes, one)));
    if cells.len() > wanted.told || grown.is_open {
        let shown = wanted.told.saturating_sub(1).min(cells.len());
        grown.more = cells.len() - shown;
        cells.truncate(shown);
        let rest = parts_with_more(space, target, &with(&near, &cells));
        grown.cells.extend(cells.into_iter().map(|cell| (cell, None)));
        grown.cells.extend(rest.into_iter().map(|(part, some)| (part, Some(some))));
    } else {
        grown.cells.extend(cells.into_iter().map(|cell| (cell, None)));
    }
    grown
}

fn with<'c>(covers: &[Cover<'c>], cells: &'c [Cell]) -> Vec<Cover<'c>> {
    covers.iter().copied().chain(cells.iter().map(|cell| Cover { rule: u32::MAX, cell })).collect()
}

/// The parts of some cells that are one match each, once each.
fn matches_of(axes: &Axes, cells: &[Cell]) -> Vec<Cell> {
    let mut seen = HashSet::new();
    let parts = cells.iter().flat_map(|cell| region::parts(axes, cell));
    parts.filter(|part| seen.insert(part.clone())).collect()
}

/// Joins those that are told no worse together.
fn join(space: &Space, cells: &mut Vec<Cell>) {
    if cells.len() > MAX_WEEDED {
        return;
    }
    let mut place = 0;
    while let Some(one) = cells.get(place) {
        let mut others = (place + 1..cells.len()).rev();
        let joined = others.find_map(|other| {
            space.spend(JOIN_WEIGHT * (one.weight() + cells[other].weight()));
            let both = (!space.is_spent()).then(|| region::joined(&space.axes, one, &cells[other]));
            Some((other, both.flatten()?))
        });
        match joined {
            Some((other, both)) => {
                cells[place] = both;
                cells.remove(other);
            }
            None => place += 1,
        }
    }
}

/// Leaves out cells that the others make needless.
fn weed(space: &Space, cells: &mut Vec<Cell>) {
    if cells.len() > MAX_WEEDED {
        return;
    }
    for place in (0..cells.len()).rev() {
        let cell = cells.remove(place);
        let others = with(&[], cells);
        let is_needless = matches!(space.free_of(&cell, &others, &mut BTreeSet::new()), Free::None);
        if !is_needless {
            cells.insert(place, cell);
        }
    }
}

/// The parts of a cell that are matches of their own and have free packets, with some of those.
fn parts_with_more(space: &Space, target: &Cell, taken: &[Cover<'_>]) -> Vec<(Cell, Cell)> {
    let parts = region::parts(&space.axes, target).into_iter();
    let free = parts.filter_map(|part| match space.free_of(&part, taken, &mut BTreeSet::new()) {
        Free::Cell(free) => Some((part, free)),
        Free::NotDecided(_) | Free::None => None,
    });
    free.collect()
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
        // What has no such field is not kept out by it.
        let mut lacking = cover.structure.without(&axis.present);
        if let Some(other) = other_version(axis.field).and_then(|field| axes.position(field, 0)) {
            lacking = lacking.without(&axes.list[other].present);
            if cover.structure.overlaps(&axes.list[other].present) {
                part.sets[other] = wide.sets[other].minus(&cover.sets[other]);
            }
        }
        part.structure = wide.structure.and(&region::of_key(axis.field)).without(&lacking);
        part.close(axes);
        let share = part.sets[index].len() as f64 / wide.sets[index].len().max(1) as f64;
        let share = share * f64::from(part.structure.len()) / f64::from(wide.structure.len().max(1));
        if !part.is_empty() && best.as_ref().is_none_or(|(most, _)| share > *most) {
            best = Some((share, part));
        }
    }
    let part = best.map(|(_, part)| part).or_else(|| other_kinds(axes, wide, free, cover));
    *wide = part.unwrap_or_else(|| free.clone());
}

/// What of `wide` is of other kinds than a cover, and some of it free: preferably of kinds that have a name.
fn other_kinds(axes: &Axes, wide: &Cell, free: &Cell, cover: &Cell) -> Option<Cell> {
    let named = region::named(&free.structure, &cover.structure).map(|(_, kinds)| kinds.and(&wide.structure));
    let others = wide.structure.minus(&cover.structure).find(|part| part.contains(&free.structure));
    named.or(others).map(|part| wide.within(part, axes))
}

/// The same address of the other IP version: both are one key.
const fn other_version(field: Field) -> Option<Field> {
    match field {
        Field::Src4(level) => Some(Field::Src6(level)),
        Field::Src6(level) => Some(Field::Src4(level)),
        Field::Dst4(level) => Some(Field::Dst6(level)),
        Field::Dst6(level) => Some(Field::Dst4(level)),
        _ => None,
    }
}

//! The axes of a space: the fields that some match constrains, each cut into segments at every value where
//! some match begins or ends. Made once from all matches that are to be compared; turns each into cells.

use std::collections::{BTreeMap, BTreeSet};

use program::{Macs, MaskedMac, Match};

use super::cell::Cell;
use super::domain::domain;
use super::field::Field;
use super::kind::{self, Structure, alternatives, present};
use super::mac::{self, Layout};
use super::set::{Interval, Set};
use super::terms::{Ranges, Term, terms};

/// Into no more cells than this one match is taken apart, which takes lists of MAC addresses with masks that
/// cross. Beyond it a single rough cell stands for it, and questions about it may not be decided.
pub const MAX_CELLS: usize = 512;
/// The longest list of such addresses that is tried.
const MAX_CROSSED_MACS: usize = 8192;

/// One axis.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    pub(super) field: Field,
    /// Which bits of a MAC address; 0 for other fields.
    pub(super) part: usize,
    /// The first value of each segment; each ends before the next.
    pub(super) starts: Vec<u128>,
    /// The last value of the last segment.
    pub(super) most: u128,
    /// All segments.
    pub(super) all: Set,
    /// The packets that have the field.
    pub(super) present: Structure,
    /// The same as bits to clear.
    pub(super) having: Structure,
    /// The kinds that have it by the values they can have.
    pub(super) classes: Vec<(Structure, Set)>,
    /// Whether all that have it can have all values.
    pub(super) is_free: bool,
}

/// All axes.
#[derive(Clone, Debug)]
pub(super) struct Axes {
    pub(super) list: Vec<Axis>,
    layouts: BTreeMap<Field, Layout>,
}

impl Axes {
    /// The axes that these matches need.
    pub(super) fn of<'m>(matches: impl Iterator<Item = &'m Match>) -> Self {
        let mut cuts: BTreeMap<Field, BTreeSet<u128>> = BTreeMap::new();
        let mut macs: BTreeMap<Field, BTreeSet<MaskedMac>> = BTreeMap::new();
        for matches in matches {
            for term in terms(matches) {
                match term {
                    Term::Only(_) => {}
                    Term::Ranges(field, ranges) => {
                        cut(&mut cuts, field, &ranges);
                        // TCP and UDP are told apart by their number before anything else.
                        if let Field::SrcPort(level) | Field::DstPort(level) | Field::TcpFlags(level) = field
                        {
                            cuts.entry(Field::Protocol(level)).or_default();
                        }
                    }
                    Term::Macs(field, of) => {
                        let all = macs.entry(field).or_default();
                        all.extend(of.any_of.iter().chain(&of.none_of).filter(|mac| **mac != MaskedMac::ANY));
                    }
                }
            }
        }
        let mut list: Vec<Axis> = cuts.into_iter().map(|(field, cuts)| Axis::of(field, cuts)).collect();
        let mut layouts = BTreeMap::new();
        for (field, macs) in macs.into_iter().filter(|(_, macs)| !macs.is_empty()) {
            let layout = Layout::of(macs.iter().map(|mac| mac::number(mac.mask)).collect());
            let mut cuts = vec![BTreeSet::new(); layout.parts.len()];
            for mac in &macs {
                for (cuts, (low, high)) in cuts.iter_mut().zip(layout.intervals(mac)) {
                    cuts.extend([low.into(), u128::from(high) + 1]);
                }
            }
            for (part, cuts) in cuts.into_iter().enumerate() {
                list.push(Axis::new(field, part, layout.most(part).into(), cuts));
            }
            layouts.insert(field, layout);
        }
        list.sort_by_key(|axis| (axis.field, axis.part));
        Self { list, layouts }
    }

    /// The axis of a field that is not a MAC.
    pub(super) fn position(&self, field: Field, part: usize) -> Option<usize> {
        self.list.binary_search_by_key(&(field, part), |axis| (axis.field, axis.part)).ok()
    }

    pub(super) fn layout(&self, field: Field) -> Option<&Layout> {
        self.layouts.get(&field)
    }

    /// Every packet.
    pub(super) fn everything(&self) -> Cell {
        let mut cell = Cell {
            structure: *kind::ANY,
            sets: self.list.iter().map(|axis| axis.all.clone()).collect(),
            is_rough: false,
            intervals: 0,
        };
        cell.close(self);
        cell
    }

    /// The packets of a match, as disjoint cells: one, but for lists of MACs whose masks cross; or one rough cell.
    pub(super) fn cells(&self, matches: &Match) -> Vec<Cell> {
        let mut cell = self.everything();
        let mut lists = Vec::new();
        for term in terms(matches) {
            match term {
                Term::Only(structure) => cell.structure = cell.structure.and(&structure),
                Term::Ranges(field, ranges) => {
                    let Some(index) = self.position(field, 0) else { continue };
                    cell.sets[index] = cell.sets[index].and(&self.list[index].set(&ranges));
                }
                Term::Macs(field, macs) => lists.push((field, macs)),
            }
        }
        cell.close(self);
        let mut cells = vec![cell.clone()];
        for (field, macs) in lists {
            match self.with_macs(&cells, field, macs) {
                Some(parts) => cells = parts,
                None => cells = vec![Cell { is_rough: true, ..cell.clone() }],
            }
        }
        cells.retain(|cell| !cell.is_empty());
        cells
    }

    /// The parts of some cells with these addresses; `None` if they are too many.
    fn with_macs(&self, cells: &[Cell], field: Field, macs: &Macs) -> Option<Vec<Cell>> {
        let (Some(layout), Some(first)) = (self.layout(field), self.position(field, 0)) else {
            // Nobody asks for any but all addresses.
            let is_any = !macs.any_of.is_empty() && macs.none_of.is_empty();
            return Some(if is_any { cells.to_vec() } else { Vec::new() });
        };
        let axes = first..first + layout.parts.len();
        if axes.len() > 1 && macs.any_of.len() + macs.none_of.len() > MAX_CROSSED_MACS {
            return None;
        }
        let of = |mac: &MaskedMac| -> Vec<Set> {
            let intervals = layout.intervals(mac);
            let set = |(axis, (low, high)): (usize, &(u64, u64))| {
                self.list[axis].set(&[(u128::from(*low), u128::from(*high))])
            };
            axes.clone().zip(&intervals).map(set).collect()
        };
        let products = |macs: &[MaskedMac]| {
            let mut products: Vec<Vec<Set>> = macs.iter().map(of).collect();
            merge(&mut products, axes.len());
            products
        };
        let put = |cell: &Cell, sets: &[Set]| {
            let mut cell = cell.clone();
            for (axis, set) in axes.clone().zip(sets) {
                cell.sets[axis] = cell.sets[axis].and(set);
            }
            cell.close(self);
            cell
        };
        let mut wanted: Vec<Cell> = Vec::new();
        for sets in products(&macs.any_of) {
            let mut parts: Vec<Cell> = cells.iter().map(|cell| put(cell, &sets)).collect();
            // A mask may include another's addresses: each packet is to be in one cell.
            for earlier in &wanted {
                parts = self.without(&parts, earlier)?;
            }
            wanted.extend(parts.into_iter().filter(|part| !part.is_empty()));
            if wanted.len() > MAX_CELLS {
                return None;
            }
        }
        for sets in products(&macs.none_of) {
            wanted = self.without(&wanted, &put(&self.everything(), &sets))?;
        }
        Some(wanted)
    }

    /// What is left of some cells without another; `None` if it is too many.
    fn without(&self, cells: &[Cell], hole: &Cell) -> Option<Vec<Cell>> {
        let mut left = Vec::new();
        for cell in cells {
            left.extend(cell.minus(hole, self));
            if left.len() > MAX_CELLS {
                return None;
            }
        }
        Some(left)
    }
}

/// Joins products that differ in one axis only, last axis first, until none is left; what lists of addresses
/// with the same mask become is then one product.
fn merge(products: &mut Vec<Vec<Set>>, axes: usize) {
    for axis in (0..axes).rev() {
        let mut joined: BTreeMap<Vec<Vec<Interval>>, Vec<Interval>> = BTreeMap::new();
        for product in products.iter() {
            let others = product.iter().enumerate().filter(|(index, _)| *index != axis);
            let key = others.map(|(_, set)| set.intervals().to_vec()).collect();
            joined.entry(key).or_default().extend(product[axis].intervals());
        }
        let rebuilt = joined.into_iter().map(|(others, mut own)| {
            own.sort_unstable();
            let mut sets: Vec<Set> = others.into_iter().map(Set::of).collect();
            sets.insert(axis, Set::of(own));
            sets
        });
        *products = rebuilt.collect();
    }
}

fn cut(cuts: &mut BTreeMap<Field, BTreeSet<u128>>, field: Field, ranges: &Ranges) {
    if ranges[..] == [(0, field.most())] {
        return;
    }
    let cuts = cuts.entry(field).or_default();
    for (low, high) in ranges {
        cuts.insert(*low);
        cuts.extend(high.checked_add(1));
    }
}

impl Axis {
    fn of(field: Field, cuts: BTreeSet<u128>) -> Self {
        Self::new(field, 0, field.most(), cuts)
    }

    fn new(field: Field, part: usize, most: u128, mut cuts: BTreeSet<u128>) -> Self {
        let having = alternatives(|alternative| domain(alternative, field).is_some());
        let mut domains: BTreeMap<Ranges, Vec<usize>> = BTreeMap::new();
        for alternative in kind::ANY.alternatives() {
            if let Some(values) = domain(alternative, field) {
                let values =
                    if part > 0 || values[..] == [(0, field.most())] { vec![(0, most)] } else { values };
                domains.entry(values).or_default().push(alternative);
            }
        }
        for (low, high) in domains.keys().flatten() {
            cuts.insert(*low);
            cuts.extend(high.checked_add(1));
        }
        cuts.insert(0);
        let starts: Vec<u128> = cuts.into_iter().filter(|start| *start <= most).collect();
        let all = Set::One((0, starts.len().saturating_sub(1) as u32));
        let present = present(field);
        let mut axis =
            Self { field, part, starts, most, all, present, having, classes: Vec::new(), is_free: false };
        let class = |(values, of): (Ranges, Vec<usize>)| {
            (alternatives(|alternative| of.contains(&alternative)), axis.set(&values))
        };
        axis.classes = domains.into_iter().map(class).collect();
        axis.is_free = matches!(&axis.classes[..], [(_, values)] if *values == axis.all);
        axis
    }

    /// The segments of these values, which begin and end where segments do.
    pub(super) fn set(&self, ranges: &[(u128, u128)]) -> Set {
        let last = |high: u128| self.starts.partition_point(|start| *start <= high).saturating_sub(1) as u32;
        let within = ranges.iter().filter(|(low, _)| *low <= self.most);
        Set::of(
            within.map(|(low, high)| (self.starts.partition_point(|start| start < low) as u32, last(*high))),
        )
    }

    /// The values of a set of segments.
    pub(super) fn values(&self, set: &Set) -> Vec<(u128, u128)> {
        let ends = |(low, high): &(u32, u32)| (self.starts[*low as usize], self.last_value(*high));
        set.intervals().iter().map(ends).collect()
    }

    fn last_value(&self, segment: u32) -> u128 {
        self.starts.get(segment as usize + 1).map_or(self.most, |next| next - 1)
    }

    /// Drops the kinds whose values are not in the set.
    #[inline]
    pub(super) fn close(&self, structure: &mut Structure, set: &Set) {
        for (kinds, values) in &self.classes {
            if !values.overlaps(set) {
                *structure = structure.without(kinds);
            }
        }
    }

    /// The part of the set that some kind can have.
    pub(super) fn admitted(&self, structure: &Structure, set: &Set) -> Set {
        let mut admitted = Set::of([]);
        for (kinds, values) in &self.classes {
            if structure.meets(kinds) {
                if values.contains(set) {
                    return set.clone();
                }
                admitted = admitted.or(&values.and(set));
            }
        }
        admitted
    }

    /// Whether `ours` has what `theirs` has, as far as kinds of the structure can.
    pub(super) fn contains_within(&self, structure: &Structure, ours: &Set, theirs: &Set) -> bool {
        self.classes
            .iter()
            .all(|(kinds, values)| !structure.meets(kinds) || ours.contains(&values.and(theirs)))
    }
}

//! The dimensions of a packet space: the fields that some match constrains. Each is cut into segments at
//! every value where a condition or a domain begins or ends, so that two values of one segment are in the
//! same conditions and sets of segments are exact. Made once from all matches that are to be compared; turns
//! each match into products.

use std::collections::{BTreeMap, BTreeSet};

use packet::stack::{Coordinate, Domain, LabelPart, Level};
use packet::{FIELDS, Field, mac_number};
use program::{Macs, MaskedMac, Match};

use crate::conditions::{Condition, conditions};
use crate::interval_set::{Interval, IntervalSet};
use crate::mac_layout::Layout;
use crate::product::Product;
use crate::stack_set::{self, StackSet, alternatives, domain, present};

/// The most products for one match; lists of MAC addresses whose masks neither include nor exclude each other
/// may need more. Such a match is then a single rough product, and questions about it may remain undecided.
pub const MAX_PRODUCTS: usize = 512;
/// The longest list of such addresses that is attempted.
const MAX_CROSSED_MACS: usize = 8192;

/// A dimension: a field, or some bits of a MAC address.
#[derive(Clone, Debug)]
pub(super) struct Dimension {
    pub(super) field: Coordinate,
    /// The place among the dimensions.
    rank: u32,
    /// Which bits of a MAC address; 0 for other fields.
    pub(super) part: usize,
    /// The first value of each segment; each ends before the next.
    pub(super) starts: Vec<u128>,
    /// The last value of the last segment.
    pub(super) most: u128,
    /// All segments.
    pub(super) all: IntervalSet,
    /// The packets that have the field.
    pub(super) present: StackSet,
    /// The alternatives that have the field, of stacks or of tag counts, as bits to clear.
    pub(super) having: StackSet,
    /// The alternatives that have the field, grouped by the values they can have.
    pub(super) classes: Vec<(StackSet, IntervalSet)>,
    /// Whether every alternative that has the field can have all values.
    pub(super) is_free: bool,
}

/// All dimensions.
#[derive(Clone, Debug)]
pub(super) struct Dimensions {
    pub(super) list: Vec<Dimension>,
    layouts: BTreeMap<Coordinate, Layout>,
}

impl Dimensions {
    /// The dimensions that these matches need.
    pub(super) fn of<'m>(matches: impl Iterator<Item = &'m Match>) -> Self {
        Self::with_ranges(matches, &[])
    }

    /// The dimensions of the matches and of some ranges of values, so that their products are exact.
    pub(super) fn with_ranges<'m>(
        matches: impl Iterator<Item = &'m Match>,
        ranges: &[(Coordinate, Domain)],
    ) -> Self {
        let mut cuts: BTreeMap<Coordinate, BTreeSet<u128>> = BTreeMap::new();
        for (field, ranges) in ranges {
            cut(&mut cuts, *field, ranges);
        }
        let mut macs: BTreeMap<Coordinate, BTreeSet<MaskedMac>> = BTreeMap::new();
        for matches in matches {
            for condition in conditions(matches) {
                match condition {
                    Condition::Only(_) => {}
                    Condition::Ranges(field, ranges) => {
                        cut(&mut cuts, field, &ranges);
                        // Regions distinguish TCP from UDP by the protocol number.
                        if let Coordinate::Field(of, level) = field {
                            let of = of
                                .without_extension_headers()
                                .map_or((of, Field::Protocol), |of| (of, Field::ExtProtocol));
                            if of.0.row().header.is_transport() {
                                cuts.entry(Coordinate::Field(of.1, level)).or_default();
                            }
                        }
                    }
                    Condition::Macs(field, of) => {
                        let all = macs.entry(field).or_default();
                        all.extend(of.any_of.iter().chain(&of.none_of).filter(|mac| **mac != MaskedMac::ANY));
                    }
                }
            }
        }
        let mut list: Vec<Dimension> =
            cuts.into_iter().map(|(field, cuts)| Dimension::of(field, cuts)).collect();
        let mut layouts = BTreeMap::new();
        for (field, macs) in macs.into_iter().filter(|(_, macs)| !macs.is_empty()) {
            let layout = Layout::of(macs.iter().map(|mac| mac_number(mac.mask) as u64).collect());
            let mut cuts = vec![BTreeSet::new(); layout.parts.len()];
            for mac in &macs {
                for (cuts, (low, high)) in cuts.iter_mut().zip(layout.intervals(mac)) {
                    cuts.extend([low.into(), u128::from(high) + 1]);
                }
            }
            for (part, cuts) in cuts.into_iter().enumerate() {
                list.push(Dimension::new(field, part, layout.most(part).into(), cuts));
            }
            layouts.insert(field, layout);
        }
        list.sort_by_key(|dimension| (dimension.rank, dimension.part));
        Self { list, layouts }
    }

    /// The index of a part of a field; part 0 unless it is a MAC address.
    pub(super) fn position(&self, field: Coordinate, part: usize) -> Option<usize> {
        self.list
            .binary_search_by_key(&(rank(field), part), |dimension| (dimension.rank, dimension.part))
            .ok()
    }

    pub(super) fn layout(&self, field: Coordinate) -> Option<&Layout> {
        self.layouts.get(&field)
    }

    /// Every packet.
    pub(super) fn everything(&self) -> Product {
        let mut product = Product {
            stacks: *stack_set::ANY,
            sets: self.list.iter().map(|dimension| dimension.all.clone()).collect(),
            is_rough: false,
            intervals: 0,
        };
        product.close(self);
        product
    }

    /// The packets of a match, as disjoint products: one, unless MAC addresses need several; or one rough
    /// product.
    pub(super) fn products(&self, matches: &Match) -> Vec<Product> {
        let mut product = self.everything();
        let mut lists = Vec::new();
        for condition in conditions(matches) {
            match condition {
                Condition::Only(stacks) => product.stacks = product.stacks.and(&stacks),
                Condition::Ranges(field, ranges) => {
                    let Some(index) = self.position(field, 0) else { continue };
                    product.sets[index] = product.sets[index].and(&self.list[index].set(&ranges));
                }
                Condition::Macs(field, macs) => lists.push((field, macs)),
            }
        }
        product.close(self);
        let mut products = vec![product.clone()];
        for (field, macs) in lists {
            match self.with_macs(&products, field, macs) {
                Some(parts) => products = parts,
                None => products = vec![Product { is_rough: true, ..product.clone() }],
            }
        }
        products.retain(|product| !product.is_empty());
        products
    }

    /// The parts of some products with these addresses; `None` if there are too many.
    fn with_macs(&self, products: &[Product], field: Coordinate, macs: &Macs) -> Option<Vec<Product>> {
        let (Some(layout), Some(first)) = (self.layout(field), self.position(field, 0)) else {
            // Every list contains all addresses or none.
            let is_any = !macs.any_of.is_empty() && macs.none_of.is_empty();
            return Some(if is_any { products.to_vec() } else { Vec::new() });
        };
        let dimensions = first..first + layout.parts.len();
        if dimensions.len() > 1 && macs.any_of.len() + macs.none_of.len() > MAX_CROSSED_MACS {
            return None;
        }
        let of = |mac: &MaskedMac| -> Vec<IntervalSet> {
            let intervals = layout.intervals(mac);
            let set = |(dimension, (low, high)): (usize, &(u64, u64))| {
                self.list[dimension].set(&[(u128::from(*low), u128::from(*high))])
            };
            dimensions.clone().zip(&intervals).map(set).collect()
        };
        let boxes = |macs: &[MaskedMac]| {
            let mut boxes: Vec<Vec<IntervalSet>> = macs.iter().map(of).collect();
            merge(&mut boxes, dimensions.len());
            boxes
        };
        let put = |product: &Product, sets: &[IntervalSet]| {
            let mut product = product.clone();
            for (dimension, set) in dimensions.clone().zip(sets) {
                product.sets[dimension] = product.sets[dimension].and(set);
            }
            product.close(self);
            product
        };
        let mut wanted: Vec<Product> = Vec::new();
        for sets in boxes(&macs.any_of) {
            let mut parts: Vec<Product> = products.iter().map(|product| put(product, &sets)).collect();
            // Masks may overlap; the products must not.
            for earlier in &wanted {
                parts = self.without(&parts, earlier)?;
            }
            wanted.extend(parts.into_iter().filter(|part| !part.is_empty()));
            if wanted.len() > MAX_PRODUCTS {
                return None;
            }
        }
        for sets in boxes(&macs.none_of) {
            wanted = self.without(&wanted, &put(&self.everything(), &sets))?;
        }
        Some(wanted)
    }

    /// Returns the products without another; `None` if there are too many.
    fn without(&self, products: &[Product], hole: &Product) -> Option<Vec<Product>> {
        let mut left = Vec::new();
        for product in products {
            left.extend(product.minus(hole, self));
            if left.len() > MAX_PRODUCTS {
                return None;
            }
        }
        Some(left)
    }
}

/// The fields by which most rules differ come first, so that most comparisons of products end early.
const FIRST: [Field; 10] = [
    Field::DstV4,
    Field::SrcV4,
    Field::DstPort,
    Field::SrcPort,
    Field::Protocol,
    Field::DstV6,
    Field::SrcV6,
    Field::DstMac,
    Field::SrcMac,
    Field::EtherType,
];

/// The places of the fields: first those of [`FIRST`], then the others in the order of the table.
const PLACES: [u8; FIELDS.len()] = {
    let mut places = [0; FIELDS.len()];
    let mut index = 0;
    while index < FIELDS.len() {
        places[index] = (FIRST.len() + index) as u8;
        index += 1;
    }
    let mut place = 0;
    while place < FIRST.len() {
        places[FIRST[place] as usize] = place as u8;
        place += 1;
    }
    places
};

/// The place of a number among the dimensions. Numbers that are not in the table of fields follow a field of
/// the same header.
const fn rank(coordinate: Coordinate) -> u32 {
    let (field, sub, level, entry) = match coordinate {
        Coordinate::Field(field, level) => (field, 0, level, 0),
        Coordinate::FlagsAndFragment(level) => (Field::IpFlags, 0, level, 0),
        Coordinate::Fragment6(level) => (Field::IpFlags, 1, level, 0),
        Coordinate::Options(level) => (Field::IpFlags, 2, level, 0),
        Coordinate::Label(LabelPart::Label, level, entry) => (Field::TcpFlags, 1, level, entry),
        Coordinate::Label(LabelPart::Class, level, entry) => (Field::TcpFlags, 2, level, entry),
        Coordinate::Label(LabelPart::Ttl, level, entry) => (Field::TcpFlags, 3, level, entry),
    };
    let is_inner = matches!(level, Level::Inner) as u32;
    (PLACES[field as usize] as u32) << 16 | sub << 8 | is_inner << 4 | entry as u32
}

/// Joins boxes that differ in one dimension only, last dimension first, until none is left; what lists of
/// addresses with the same mask become is then one part_sets.
fn merge(boxes: &mut Vec<Vec<IntervalSet>>, dimensions: usize) {
    for dimension in (0..dimensions).rev() {
        let mut joined: BTreeMap<Vec<Vec<Interval>>, Vec<Interval>> = BTreeMap::new();
        for part_sets in boxes.iter() {
            let others = part_sets.iter().enumerate().filter(|(index, _)| *index != dimension);
            let key = others.map(|(_, set)| set.intervals().to_vec()).collect();
            joined.entry(key).or_default().extend(part_sets[dimension].intervals());
        }
        let rebuilt = joined.into_iter().map(|(others, mut own)| {
            own.sort_unstable();
            let mut sets: Vec<IntervalSet> = others.into_iter().map(IntervalSet::of).collect();
            sets.insert(dimension, IntervalSet::of(own));
            sets
        });
        *boxes = rebuilt.collect();
    }
}

fn cut(cuts: &mut BTreeMap<Coordinate, BTreeSet<u128>>, field: Coordinate, ranges: &Domain) {
    if ranges[..] == [(0, field.max())] {
        return;
    }
    let cuts = cuts.entry(field).or_default();
    for (low, high) in ranges {
        cuts.insert(*low);
        cuts.extend(high.checked_add(1));
    }
}

impl Dimension {
    fn of(field: Coordinate, cuts: BTreeSet<u128>) -> Self {
        Self::new(field, 0, field.max(), cuts)
    }

    fn new(field: Coordinate, part: usize, most: u128, mut cuts: BTreeSet<u128>) -> Self {
        let having = alternatives(|alternative| domain(alternative, field).is_some());
        let mut domains: BTreeMap<Domain, Vec<usize>> = BTreeMap::new();
        for alternative in stack_set::ANY.alternatives() {
            if let Some(values) = domain(alternative, field) {
                let values =
                    if part > 0 || values[..] == [(0, field.max())] { vec![(0, most)] } else { values };
                domains.entry(values).or_default().push(alternative);
            }
        }
        for (low, high) in domains.keys().flatten() {
            cuts.insert(*low);
            cuts.extend(high.checked_add(1));
        }
        cuts.insert(0);
        let starts: Vec<u128> = cuts.into_iter().filter(|start| *start <= most).collect();
        let all = IntervalSet::One((0, starts.len().saturating_sub(1) as u32));
        let present = present(field);
        let mut dimension = Self {
            field,
            rank: rank(field),
            part,
            starts,
            most,
            all,
            present,
            having,
            classes: Vec::new(),
            is_free: false,
        };
        let class = |(values, of): (Domain, Vec<usize>)| {
            (alternatives(|alternative| of.contains(&alternative)), dimension.set(&values))
        };
        dimension.classes = domains.into_iter().map(class).collect();
        dimension.is_free = matches!(&dimension.classes[..], [(_, values)] if *values == dimension.all);
        dimension
    }

    /// The segments of these ranges, which start and end at segment boundaries.
    pub(super) fn set(&self, ranges: &[(u128, u128)]) -> IntervalSet {
        let last = |high: u128| self.starts.partition_point(|start| *start <= high).saturating_sub(1) as u32;
        let within = ranges.iter().filter(|(low, _)| *low <= self.most);
        IntervalSet::of(
            within.map(|(low, high)| (self.starts.partition_point(|start| start < low) as u32, last(*high))),
        )
    }

    /// The values of a set of segments.
    pub(super) fn values(&self, set: &IntervalSet) -> Vec<(u128, u128)> {
        let ends = |(low, high): &(u32, u32)| (self.starts[*low as usize], self.last_value(*high));
        set.intervals().iter().map(ends).collect()
    }

    fn last_value(&self, segment: u32) -> u128 {
        self.starts.get(segment as usize + 1).map_or(self.most, |next| next - 1)
    }

    /// Removes the stacks of whose domain nothing is in the set.
    #[inline]
    pub(super) fn close(&self, stacks: &mut StackSet, set: &IntervalSet) {
        for (kinds, values) in &self.classes {
            if !values.overlaps(set) {
                *stacks = stacks.without(kinds);
            }
        }
    }

    /// The part of the set that some stack can have.
    pub(super) fn admitted(&self, stacks: &StackSet, set: &IntervalSet) -> IntervalSet {
        let mut admitted = IntervalSet::of([]);
        for (kinds, values) in &self.classes {
            if stacks.meets(kinds) {
                if values.contains(set) {
                    return set.clone();
                }
                admitted = admitted.or(&values.and(set));
            }
        }
        admitted
    }

    /// Whether `ours` contains what the stacks can have of `theirs`.
    pub(super) fn contains_within(
        &self,
        stacks: &StackSet,
        ours: &IntervalSet,
        theirs: &IntervalSet,
    ) -> bool {
        self.classes.iter().all(|(kinds, values)| !stacks.meets(kinds) || ours.contains(&values.and(theirs)))
    }
}

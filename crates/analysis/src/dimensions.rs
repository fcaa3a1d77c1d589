//! The dimensions of a packet space: the fields that some match constrains. Each is cut into segments at
//! every value where a condition or a domain begins or ends, so that two values of one segment are in the
//! same conditions and sets of segments are exact. Made once from all matches that are to be compared.

use std::collections::{BTreeMap, BTreeSet};

use packet::stack::{Coordinate, LabelPart, Level, ValueRanges};
use packet::{FIELDS, Field, mac_number};
use program::{MaskedMac, Match};

use crate::conditions::{Condition, conditions};
use crate::interval_set::IntervalSet;
use crate::mac_layout::Layout;
use crate::stack_set::{self, StackSet, alternatives, domain, present};

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
        ranges: &[(Coordinate, ValueRanges)],
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

fn cut(cuts: &mut BTreeMap<Coordinate, BTreeSet<u128>>, field: Coordinate, ranges: &ValueRanges) {
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
        let mut domains: BTreeMap<ValueRanges, Vec<usize>> = BTreeMap::new();
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
        let class = |(values, of): (ValueRanges, Vec<usize>)| {
            (alternatives(|alternative| of.contains(&alternative)), dimension.set(&values))
        };
        dimension.classes = domains.into_iter().map(class).collect();
        dimension.is_free = matches!(&dimension.classes[..], [(_, values)] if *values == dimension.all);
        dimension
    }

    /// The segments with values of these ranges.
    pub(super) fn set(&self, ranges: &[(u128, u128)]) -> IntervalSet {
        let of = |value: u128| self.starts.partition_point(|start| *start <= value).saturating_sub(1) as u32;
        let within = ranges.iter().filter(|(low, _)| *low <= self.most);
        IntervalSet::of(within.map(|(low, high)| (of(*low), of(*high))))
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

//! Cells as matches of the language. Nearly every cell is exactly some match; what the language has no word for
//! (a TCP header that is cut off, say) is told beside the smallest match around it.

use std::fmt;

use packet::{IpProtocol, MAX_MPLS_LABELS};
use serde::ser::{Serialize, SerializeStruct, Serializer};

use crate::byte_set::ByteSet;
use crate::policy::{Addresses, Family, Fragments, Macs, MaskedMac, Match, MplsEntry, VlanMatch};
use crate::ranges::{RangeSet, Word};

use super::axes::Axes;
use super::cell::Cell;
use super::field::{FRAGMENT_CODES, Field, Level};
use super::kind::{Structure, present};
use super::mac;
use super::set::Set;
use super::text::match_text;
use super::witness;

/// A set of packets in the language.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// All of them meet this.
    pub matches: Match,
    /// Which of the packets that meet it are meant; `None`: all.
    pub only: Option<String>,
}

/// The match as the inline table that the language reads, with what it cannot say as a comment behind.
impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&match_text(&self.matches))?;
        match &self.only {
            Some(only) => write!(f, " # {only}"),
            None => Ok(()),
        }
    }
}

impl Serialize for Region {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut region = serializer.serialize_struct("Region", 2)?;
        region.serialize_field("match", &match_text(&self.matches))?;
        region.serialize_field("only", &self.only)?;
        region.end()
    }
}

/// A cell as regions, each with the part of the cell that it is.
pub(super) fn of(axes: &Axes, cell: &Cell) -> Vec<(Region, Cell)> {
    let mut open = vec![cell.clone()];
    let mut regions = Vec::new();
    while let Some(cell) = open.pop().filter(|cell| !cell.is_empty()) {
        if let Some(parts) = splits(axes, &cell) {
            open.extend(parts.into_iter().filter(|part| !part.is_empty()));
            continue;
        }
        let matches = nearest(axes, &cell);
        let surplus =
            axes.cells(&matches).iter().find_map(|around| around.minus(&cell, axes).into_iter().next());
        let only = surplus.map(|surplus| match witness::of(axes, &surplus) {
            Some(other) => format!("only part of it; not of it is, say, {}", other.fields()),
            None => "only part of it".to_owned(),
        });
        regions.push((Region { matches, only }, cell));
    }
    regions
}

const LEVELS: [Level; 2] = [Level::Outer, Level::Inner];

/// The packets that a condition on the field is about: it leaves the others of them alone. Addresses of both
/// versions are one key.
pub(super) fn of_key(field: Field) -> Structure {
    match field {
        Field::Src4(level) | Field::Src6(level) | Field::Dst4(level) | Field::Dst6(level) => {
            present(Field::Tos(level))
        }
        _ => present(field),
    }
}

/// The same cell in parts, if no one match can be it: some packets lack a field that others are told by, or
/// fragments and flags go together in a way that takes several.
fn splits(axes: &Axes, cell: &Cell) -> Option<Vec<Cell>> {
    let with = |structure: Structure| {
        let mut part = Cell { structure, sets: cell.sets.clone() };
        part.close(axes);
        part
    };
    for (index, axis) in axes.list.iter().enumerate() {
        let (set, of_key) = (&cell.sets[index], of_key(axis.field));
        if *set == axis.admitted(&cell.structure, &axis.all) || !cell.structure.overlaps(&axis.present) {
            continue;
        }
        if !of_key.contains(&cell.structure) {
            let parts = cell.structure.minus(&of_key).chain([cell.structure.and(&of_key)]);
            return Some(parts.map(with).collect());
        }
    }
    for level in LEVELS {
        let Some(index) = axes.position(Field::FlagsAndFragment(level), 0) else { continue };
        let v4 = present(Field::Src4(level));
        if !cell.structure.overlaps(&v4) {
            continue;
        }
        let classes: Vec<Cell> = FRAGMENT_CODES
            .iter()
            .map(|code| {
                let mut part = with(cell.structure);
                let codes = axes.list[index].set(&[((*code).into(), u128::from(*code) + 7)]);
                part.sets[index] = part.sets[index].and(&codes);
                part.close(axes);
                part
            })
            .filter(|part| !part.is_empty())
            .collect();
        let is_one = classes.len() < 2 || nearest_is_exact(axes, cell);
        if !is_one {
            return Some(classes);
        }
    }
    None
}

fn nearest_is_exact(axes: &Axes, cell: &Cell) -> bool {
    matches!(&axes.cells(&nearest(axes, cell))[..], [one] if one == cell)
}

/// The smallest match around a cell: its fields' values, and then what else narrows it down.
fn nearest(axes: &Axes, cell: &Cell) -> Match {
    let mut matches = of_values(axes, cell);
    let mut around = axes.cells(&matches);
    for narrower in narrowings(axes, cell) {
        if matches!(&around[..], [one] if one == cell) {
            break;
        }
        let mut tried = matches.clone();
        narrower(&mut tried);
        let cells = axes.cells(&tried);
        let still_around = matches!(&cells[..], [one] if one.contains(cell, axes));
        if still_around && cells != around {
            (matches, around) = (tried, cells);
        }
    }
    matches
}

type Narrowing = Box<dyn Fn(&mut Match)>;

/// What a match can ask beyond values: which headers there are.
fn narrowings(axes: &Axes, cell: &Cell) -> Vec<Narrowing> {
    let mut all: Vec<Narrowing> = Vec::new();
    for level in LEVELS {
        let mut add = |change: fn(&mut Match)| {
            all.push(Box::new(move |matches: &mut Match| match level {
                Level::Outer => change(matches),
                Level::Inner => change(matches.inner.get_or_insert_default()),
            }));
        };
        add(|matches| matches.family = Some(Family::V4));
        add(|matches| matches.family = Some(Family::V6));
        // A value counts only where there is an axis for it.
        if axes.position(Field::Protocol(level), 0).is_some() {
            add(|matches| matches.protocol = Some(RangeSet::single(IpProtocol::TCP.0)));
            add(|matches| matches.protocol = Some(RangeSet::single(IpProtocol::UDP.0)));
        }
        add(|matches| {
            let all = || RangeSet::of(vec![(0, u16::MAX)]);
            matches.src_port = Some(matches.src_port.clone().unwrap_or_else(all));
        });
        add(|matches| {
            let all = || RangeSet::of(vec![(0, u8::MAX)]);
            matches.protocol = Some(matches.protocol.clone().unwrap_or_else(all));
        });
        add(|matches| {
            let all = || RangeSet::of(vec![(0, u16::MAX)]);
            matches.ethertype = Some(matches.ethertype.clone().unwrap_or_else(all));
        });
        add(|matches| matches.tcp_flags = Some(matches.tcp_flags.unwrap_or(ByteSet::ALL)));
        add(|matches| matches.vlan = Some(matches.vlan.clone().unwrap_or(VlanMatch::None)));
        add(|matches| matches.vlan = Some(matches.vlan.clone().unwrap_or(VlanMatch::Any)));
        add(|matches| matches.inner_vlan = Some(matches.inner_vlan.clone().unwrap_or(VlanMatch::None)));
        add(|matches| matches.inner_vlan = Some(matches.inner_vlan.clone().unwrap_or(VlanMatch::Any)));
        let has_flags = axes.position(Field::FlagsAndFragment(level), 0).is_some();
        if has_flags || !cell.structure.overlaps(&present(Field::Src4(level))) {
            add(|matches| matches.fragment = Some(Fragments::WHOLE));
            add(|matches| matches.fragment = Some(Fragments::FIRST));
            add(|matches| matches.fragment = Some(Fragments::LATER));
            add(|matches| matches.fragment = Some(Fragments::PIECES));
            add(|matches| matches.fragment = Some(Fragments::WHOLE | Fragments::FIRST));
            add(|matches| matches.fragment = Some(Fragments::WHOLE | Fragments::LATER));
        }
        if let Some(flags) = ip_flags(axes, cell, level) {
            all.push(Box::new(move |matches| level_of(matches, level).ip_flags = Some(flags)));
        }
    }
    all.extend(tunnels());
    all
}

fn tunnels() -> Vec<Narrowing> {
    let mut all: Vec<Narrowing> = Vec::new();
    let words = || RangeSet::of(vec![(0, u32::MAX)]);
    let types = || RangeSet::of(vec![(0, u16::MAX)]);
    all.push(Box::new(move |matches| matches.esp_spi = Some(matches.esp_spi.clone().unwrap_or_else(words))));
    let identifiers = || RangeSet::of(vec![(0, 0xff_ffff)]);
    all.push(Box::new(move |matches| {
        matches.vxlan_vni = Some(matches.vxlan_vni.clone().unwrap_or_else(identifiers));
    }));
    all.push(Box::new(move |matches| {
        matches.gre_protocol = Some(matches.gre_protocol.clone().unwrap_or_else(types));
    }));
    all.push(Box::new(move |matches| matches.gre_key = Some(matches.gre_key.clone().unwrap_or_else(words))));
    for depth in 0..=MAX_MPLS_LABELS {
        all.push(Box::new(move |matches| {
            let stack = matches.mpls.get_or_insert_default();
            stack.resize(stack.len().max(depth), MplsEntry::default());
        }));
    }
    for (place, bottom) in (0..MAX_MPLS_LABELS).flat_map(|place| [(place, true), (place, false)]) {
        all.push(Box::new(move |matches| {
            if let Some(entry) = matches.mpls.as_mut().and_then(|stack| stack.get_mut(place)) {
                entry.bottom = Some(bottom);
            }
        }));
    }
    all.push(Box::new(|matches| {
        matches.inner.get_or_insert_default().mpls.get_or_insert_default();
    }));
    for bottom in [true, false] {
        all.push(Box::new(move |matches| {
            let stack = matches.inner.get_or_insert_default().mpls.get_or_insert_default();
            stack.resize(1, MplsEntry::default());
            stack[0].bottom = Some(bottom);
        }));
    }
    all
}

/// The flags that the cell's IPv4 packets have, whatever fragments they are.
fn ip_flags(axes: &Axes, cell: &Cell, level: Level) -> Option<ByteSet> {
    let index = axes.position(Field::FlagsAndFragment(level), 0)?;
    let codes = axes.list[index].values(&cell.sets[index]);
    Some(codes.into_iter().flat_map(|(low, high)| low..=high).map(|code| (code % 8) as u8).collect())
}

fn level_of(matches: &mut Match, level: Level) -> &mut Match {
    match level {
        Level::Outer => matches,
        Level::Inner => matches.inner.get_or_insert_default(),
    }
}

/// The match that asks for the cell's values, field by field.
fn of_values(axes: &Axes, cell: &Cell) -> Match {
    let mut matches = Match::default();
    for (index, axis) in axes.list.iter().enumerate() {
        let set = &cell.sets[index];
        let is_told = *set != axis.admitted(&cell.structure, &axis.all);
        if is_told && cell.structure.overlaps(&axis.present) {
            put(axes, cell, index, &mut matches);
        }
    }
    // An id or a priority means an 802.1Q tag, unless the match says otherwise.
    for level in LEVELS {
        if level == Level::Inner && matches.inner.is_none() {
            continue;
        }
        let matches = level_of(&mut matches, level);
        let any = || Some(RangeSet::of(vec![(0, u16::MAX)]));
        if matches.vlan_tpid.is_none() && matches.outer_tpid().is_some() {
            matches.vlan_tpid = any();
        }
        if matches.inner_vlan_tpid.is_none() && matches.inner_tpid().is_some() {
            matches.inner_vlan_tpid = any();
        }
    }
    matches
}

/// Puts the values of one axis into a match.
fn put(axes: &Axes, cell: &Cell, index: usize, matches: &mut Match) {
    let axis = &axes.list[index];
    let values = axis.values(&cell.sets[index]);
    match axis.field {
        Field::Label(level, place) => label(matches, level, place).label = ranges(&values),
        Field::LabelClass(level, place) => label(matches, level, place).tc = ranges(&values),
        Field::LabelTtl(level, place) => label(matches, level, place).ttl = ranges(&values),
        Field::EspSpi => matches.esp_spi = ranges(&values),
        Field::EspSeq => matches.esp_seq = ranges(&values),
        Field::Vni => matches.vxlan_vni = ranges(&values),
        Field::GreProtocol => matches.gre_protocol = ranges(&values),
        Field::GreKey => matches.gre_key = ranges(&values),
        Field::GreFlags => {
            // The routing bit is never set; a flag that nobody asks about is not to be told.
            let set = bytes(&values);
            matches.gre_flags = Some((0..=u8::MAX).filter(|byte| set.contains(byte & !0x40)).collect());
        }
        field => put_in_packet(axes, cell, field, &values, matches),
    }
}

fn put_in_packet(axes: &Axes, cell: &Cell, field: Field, values: &[(u128, u128)], matches: &mut Match) {
    match field {
        Field::DstMac(level) => level_of(matches, level).dst_mac = macs(axes, cell, field),
        Field::SrcMac(level) => level_of(matches, level).src_mac = macs(axes, cell, field),
        Field::EtherType(level) => level_of(matches, level).ethertype = ranges(values),
        Field::VlanId(level) => level_of(matches, level).vlan = ranges(values).map(VlanMatch::Ids),
        Field::VlanPriority(level) => level_of(matches, level).vlan_priority = ranges(values),
        Field::VlanTpid(level) => level_of(matches, level).vlan_tpid = ranges(values),
        Field::SecondId(level) => level_of(matches, level).inner_vlan = ranges(values).map(VlanMatch::Ids),
        Field::SecondTpid(level) => level_of(matches, level).inner_vlan_tpid = ranges(values),
        Field::Src4(level) | Field::Src6(level) => {
            let set = addresses(axes, cell, Field::Src4(level), Field::Src6(level));
            level_of(matches, level).src = Some(set);
        }
        Field::Dst4(level) | Field::Dst6(level) => {
            let set = addresses(axes, cell, Field::Dst4(level), Field::Dst6(level));
            level_of(matches, level).dst = Some(set);
        }
        Field::Protocol(level) => level_of(matches, level).protocol = ranges(values),
        Field::Tos(level) => level_of(matches, level).tos = Some(bytes(values)),
        Field::Ttl(level) => level_of(matches, level).ttl = ranges(values),
        Field::FlowLabel(level) => level_of(matches, level).flow_label = ranges(values),
        Field::Options(level) => level_of(matches, level).ip_options = Some(values == [(1, 1)]),
        Field::SrcPort(level) => level_of(matches, level).src_port = ranges(values),
        Field::DstPort(level) => level_of(matches, level).dst_port = ranges(values),
        Field::TcpFlags(level) => level_of(matches, level).tcp_flags = Some(bytes(values)),
        // Fragments and flags are found by narrowing.
        _ => {}
    }
}

fn label(matches: &mut Match, level: Level, place: u8) -> &mut MplsEntry {
    let stack = level_of(matches, level).mpls.get_or_insert_default();
    let place = usize::from(place);
    stack.resize(stack.len().max(place + 1), MplsEntry::default());
    &mut stack[place]
}

fn ranges<T: Word>(values: &[(u128, u128)]) -> Option<RangeSet<T>> {
    Some(RangeSet::of(values.iter().map(|(low, high)| (T::narrow(*low), T::narrow(*high))).collect()))
}

fn bytes(values: &[(u128, u128)]) -> ByteSet {
    values.iter().flat_map(|(low, high)| *low..=*high).filter_map(|value| u8::try_from(value).ok()).collect()
}

/// The addresses of both versions, of those that the cell has packets of.
fn addresses(axes: &Axes, cell: &Cell, v4: Field, v6: Field) -> Addresses {
    let values = |field: Field| match axes.position(field, 0) {
        _ if !cell.structure.overlaps(&present(field)) => Vec::new(),
        Some(index) => axes.list[index].values(&cell.sets[index]),
        None => vec![(0, field.most())],
    };
    Addresses { v4: ranges(&values(v4)).unwrap_or_default(), v6: ranges(&values(v6)).unwrap_or_default() }
}

/// The addresses of a field that may take several axes: on each those wanted, or those not, whichever are
/// fewer prefixes; a product of those.
fn macs(axes: &Axes, cell: &Cell, field: Field) -> Option<Macs> {
    let layout = axes.layout(field)?;
    let first = axes.position(field, 0)?;
    let mut wanted = vec![MaskedMac::ANY];
    let mut unwanted = Vec::new();
    for part in 0..layout.parts.len() {
        let axis = &axes.list[first + part];
        let (set, bits) = (&cell.sets[first + part], layout.parts[part].len() as u32);
        let prefixes = |set: &Set| -> Vec<MaskedMac> {
            let ranges: RangeSet<u128> = RangeSet::of(axis.values(set));
            let masked = |(value, mask): (u128, u128)| MaskedMac {
                value: mac::address(layout.scatter(part, value as u64)),
                mask: mac::address(layout.scatter(part, mask as u64)),
            };
            ranges.prefixes(bits).into_iter().map(masked).collect()
        };
        let (inside, outside) = (prefixes(set), prefixes(&axis.all.minus(set)));
        if outside.len() < inside.len() {
            unwanted.extend(outside);
        } else {
            wanted = wanted.iter().flat_map(|one| inside.iter().map(|other| both(one, other))).collect();
        }
    }
    let mut macs = Macs::of(wanted);
    macs.none_of = Macs::of(unwanted).any_of;
    Some(macs)
}

/// Masked addresses that ask about different bits, as one.
fn both(one: &MaskedMac, other: &MaskedMac) -> MaskedMac {
    let or = |a, b| mac::address(mac::number(a) | mac::number(b));
    MaskedMac { value: or(one.value, other.value), mask: or(one.mask, other.mask) }
}

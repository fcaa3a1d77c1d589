//! The values of a cell as keys of a match, field by field; what more narrows it down is `region`'s to find.

use program::{Addresses, ByteSet, Macs, MaskedMac, Match, MplsEntry, RangeSet, VlanMatch, Word};

use crate::axes::Axes;
use crate::cell::Cell;
use crate::field::{Field, Level};
use crate::kind::present;
use crate::mac;
use crate::set::Set;

use super::LEVELS;

/// The match that asks for the cell's values, field by field.
pub(super) fn of_values(axes: &Axes, cell: &Cell) -> Match {
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

/// The match of the packet itself, or of the packet inside.
pub(super) fn level_of(matches: &mut Match, level: Level) -> &mut Match {
    match level {
        Level::Outer => matches,
        Level::Inner => matches.inner.get_or_insert_default(),
    }
}

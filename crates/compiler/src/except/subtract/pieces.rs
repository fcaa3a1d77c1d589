//! One cube without another: what is left of a flow when an exception is subtracted from it, as disjoint
//! pieces that flows can match.

use std::cmp::Reverse;
use std::collections::HashSet;

use device_model::DeviceModel;
use packet::{FIELDS, Field, Header, Row};
use program::{Feature, Inseparable, UndecidedReason};

use crate::cover::legalize::{comes_last, refusal};
use crate::cube::{
    Cube, DST_PORT, GRE_FLAGS, GRE_KEY, HAS_IPV4, HAS_IPV6, HAS_TCP, HAS_UDP, LAYERS, MPLS_TOP, SRC_PORT,
    Slot, VLAN_TCI,
};

/// How many exceptions are read to find by which fields to split first.
const MAX_COUNTED: usize = 1 << 12;

/// All fields in the order in which cubes are split by them: those first that most exceptions match, with the
/// fewest values. The pieces around one exception then overlap few others.
pub(super) fn fields<'c>(holes: impl Iterator<Item = &'c Cube>) -> Vec<Slot> {
    let all = all_fields();
    let mut found: Vec<(usize, HashSet<(u64, u64)>)> = vec![(0, HashSet::new()); all.len()];
    for hole in holes.take(MAX_COUNTED) {
        for (field, (open, values)) in all.iter().zip(&mut found) {
            let (value, mask) = (hole.value_of(*field), hole.mask_of(*field));
            *open += usize::from(mask == 0);
            values.insert((value, mask));
        }
    }
    let mut counted: Vec<_> = found.iter().map(|(open, values)| (*open, values.len())).zip(all).collect();
    // The flag of a GRE key stays before the key, which implies it.
    counted[1..].sort_by_key(|(counts, _)| *counts);
    counted.into_iter().map(|(_, field)| field).collect()
}

/// Every slot with values, the widest of each packet first. IPv4 addresses are parts of others, and so are
/// the fields of a VLAN tag.
fn all_fields() -> Vec<Slot> {
    let is_part =
        |row: &&Row| matches!(row.header, Header::Vlan) || matches!(row.field, Field::SrcV4 | Field::DstV4);
    let rows = FIELDS.iter().filter(|row| !is_part(row));
    let mut fields: Vec<Slot> = rows.flat_map(|row| row.slots).copied().chain([VLAN_TCI, MPLS_TOP]).collect();
    fields.sort_by_key(|field| (*field != GRE_FLAGS, Reverse(field.bits())));
    let inside: Vec<Slot> =
        fields.iter().filter(|field| field.is_outer()).map(|field| field.inside()).collect();
    [fields, inside].concat()
}

/// Whether packets of the cube surely have all headers which the hole matches: the absence of a header cannot
/// be matched.
pub(super) fn missing_header(cube: &Cube, hole: &Cube) -> Result<(), Inseparable> {
    let lacks = |layers: &[Slot]| layers.iter().any(|layer| hole.has(*layer) && !cube.has(*layer));
    let (ip, ports) = (lacks(&[HAS_IPV4, HAS_IPV6]), lacks(&[HAS_TCP, HAS_UDP]));
    if ip || ports {
        return Err(Inseparable::Header { ip, ports });
    }
    // Without the flag, only a mask on the key implies one.
    let key = |cube: &Cube| cube.mask_of(GRE_KEY) != 0;
    let key_is_implied = key(hole) && !key(cube) && hole.mask_of(GRE_FLAGS) == 0;
    if lacks(&LAYERS) || key_is_implied {
        return Err(Inseparable::Tunnel);
    }
    if hole.mask_of(VLAN_TCI) != 0 && cube.mask_of(VLAN_TCI) == 0 {
        return Err(Inseparable::Tag);
    }
    Ok(())
}

/// The most pieces that [`around`] makes.
pub(super) fn bits_beyond(hole: &Cube, cube: &Cube) -> usize {
    let mask = hole.matchable_mask();
    let bits: usize =
        mask.iter().zip(&cube.mask).map(|(hole, cube)| (hole & !cube).count_ones() as usize).sum();
    bits + PORT_HALVES * absent(hole, cube).count()
}

/// The transport headers that the packets of the hole lack and those of the cube may have.
fn absent(hole: &Cube, cube: &Cube) -> impl Iterator<Item = Slot> {
    [HAS_TCP, HAS_UDP].into_iter().filter(|layer| hole.lacks(*layer) && cube.mask_of(*layer) == 0)
}

/// A device may check for a TCP or UDP header only where a bit of a port is matched: all packets with one are
/// two pieces, by the first bit of a port.
const PORT_HALVES: usize = 2;
const FIRST_BIT: u64 = 1 << 15;

/// The cube without the hole, which it overlaps, as disjoint pieces: one for each bit that the hole's mask
/// has beyond the cube's, and those with the headers that the hole's packets lack.
///
/// A piece differs from the hole in its bit and agrees in all bits before it. So each packet of the cube is
/// in exactly one piece, that of the first bit in which it differs from the hole, or it differs in none and
/// is in the hole.
pub(super) fn around(cube: &Cube, hole: &Cube, fields: &[Slot]) -> Vec<Cube> {
    let mut inside = *cube;
    let mut pieces = Vec::new();
    for field in fields {
        let extra = hole.mask_of(*field) & !cube.mask_of(*field);
        for bit in (0..u64::BITS).rev().map(|bit| 1 << bit).filter(|bit| extra & bit != 0) {
            let value = hole.value_of(*field) & bit;
            pieces.extend(inside.with(*field, value ^ bit, bit).and_then(Cube::closed));
            // The bit is not masked yet.
            inside = inside.with(*field, value, bit).unwrap_or(inside);
        }
    }
    let with = |layer| inside.layer(layer, true).and_then(Cube::closed);
    pieces.extend(absent(hole, cube).filter_map(with).flat_map(|cube| port_halves(&cube, fields)));
    pieces
}

/// A cube with a TCP or UDP header as two, each of which matches a bit of a port.
pub(super) fn port_halves(cube: &Cube, fields: &[Slot]) -> Vec<Cube> {
    // Of the two, exceptions match rather the one by which cubes are split first.
    let port = fields.iter().copied().find(|field| [SRC_PORT, DST_PORT].contains(field)).unwrap_or(DST_PORT);
    [0, FIRST_BIT].into_iter().filter_map(|value| cube.with(port, value, FIRST_BIT)).collect()
}

/// The packets that a device cannot distinguish from the hole's if it does not check for a header when any
/// port matches: those with the header that the hole's packets lack. `None`: it checks, or the hole's packets
/// lack none.
pub(super) fn indistinguishable(hole: &Cube, profile: &DeviceModel) -> Option<Vec<Cube>> {
    if profile.allows(Feature::AnyPorts) || !hole.has_unmatchable_absence() {
        return None;
    }
    let open = hole.without(HAS_TCP).without(HAS_UDP);
    let with = |layer| open.layer(layer, true).and_then(Cube::closed);
    Some([HAS_TCP, HAS_UDP].into_iter().filter_map(with).collect())
}

/// Whether a cube matches a TCP or UDP header with any ports.
pub(super) fn has_any_ports(cube: &Cube) -> bool {
    (cube.has(HAS_TCP) || cube.has(HAS_UDP)) && cube.mask_of(SRC_PORT) | cube.mask_of(DST_PORT) == 0
}

/// Whether a flow can match a piece of a cube exactly, and keeps its order.
pub(super) fn can_be_matched(piece: &Cube, cube: &Cube, profile: &DeviceModel) -> Result<(), Inseparable> {
    if comes_last(piece, profile) && !comes_last(cube, profile) {
        return Err(Inseparable::Multicast);
    }
    if piece.without_absences().closed().as_ref() != Some(piece) {
        return Err(Inseparable::NoSpec);
    }
    match refusal(piece, profile) {
        None => Ok(()),
        Some(UndecidedReason::Refused { feature, errno }) => Err(Inseparable::Refused { feature, errno }),
        Some(_) => Err(Inseparable::NoSpec),
    }
}

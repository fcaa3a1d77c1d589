//! One cube around another: what is left of a flow when the packets of an exception are taken out of it, as
//! pieces that a flow can be told. Called by `exceptions`; counts and places nothing.

use std::collections::HashSet;

use device_model::DeviceProfile;
use program::{Feature, Untold, Why};

use super::super::cube::{
    Cube, DST_HIGH, DST_LOW, DST_MAC, DST_PORT, ESP_SEQ, ESP_SPI, ETHER_TYPE, FLOW_LABEL, Field, GRE_FLAGS,
    GRE_KEY, GRE_PROTOCOL, HAS_IPV4, HAS_IPV6, HAS_TCP, HAS_UDP, IP_FLAGS, LAYERS, MPLS_TOP, PROTOCOL,
    SRC_HIGH, SRC_LOW, SRC_MAC, SRC_PORT, TOS, TTL, VLAN_TCI, VXLAN_VNI,
};
use super::super::fit::{comes_last, refusal};

/// The fields of one packet that have values, those that tell most first. IPv4 addresses lie in the others.
const PACKET_FIELDS: [Field; 13] = [
    DST_HIGH, SRC_HIGH, DST_LOW, SRC_LOW, DST_MAC, SRC_MAC, PROTOCOL, TOS, TTL, IP_FLAGS, FLOW_LABEL,
    SRC_PORT, DST_PORT,
];
/// Those of the outer packet or its tunnel alone.
const OTHER_FIELDS: [Field; 9] =
    [GRE_FLAGS, ETHER_TYPE, VLAN_TCI, ESP_SPI, ESP_SEQ, VXLAN_VNI, GRE_PROTOCOL, GRE_KEY, MPLS_TOP];

/// So many exceptions are looked at to find by which fields to cut first.
const MAX_COUNTED: usize = 1 << 12;

/// All fields in the order in which cubes are cut by them: those first that most exceptions ask for, with the
/// fewest values. The pieces around one exception then lie beside the others, not across them.
pub(super) fn fields<'c>(holes: impl Iterator<Item = &'c Cube>) -> Vec<Field> {
    let inside = PACKET_FIELDS.iter().map(|field| field.inside());
    let all: Vec<Field> = OTHER_FIELDS.into_iter().chain(PACKET_FIELDS).chain(inside).collect();
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

/// Whether the cube leaves open that its packets have all headers which the hole asks for: that a header is
/// not there is nothing that a flow can be told.
pub(super) fn missing_header(cube: &Cube, hole: &Cube) -> Result<(), Untold> {
    let lacks = |layers: &[Field]| layers.iter().any(|layer| hole.has(*layer) && !cube.has(*layer));
    let (ip, ports) = (lacks(&[HAS_IPV4, HAS_IPV6]), lacks(&[HAS_TCP, HAS_UDP]));
    if ip || ports {
        return Err(Untold::Header { ip, ports });
    }
    // Without the flag, only a mask on the key says that there is one.
    let key = |cube: &Cube| cube.mask_of(GRE_KEY) != 0;
    let key_is_implied = key(hole) && !key(cube) && hole.mask_of(GRE_FLAGS) == 0;
    if lacks(&LAYERS) || key_is_implied {
        return Err(Untold::Tunnel);
    }
    if hole.mask_of(VLAN_TCI) != 0 && cube.mask_of(VLAN_TCI) == 0 {
        return Err(Untold::Tag);
    }
    Ok(())
}

/// At most into so many pieces [`around`] cuts the cube.
pub(super) fn bits_beyond(hole: &Cube, cube: &Cube) -> usize {
    let told = hole.told().mask;
    let bits: usize =
        told.iter().zip(&cube.mask).map(|(hole, cube)| (hole & !cube).count_ones() as usize).sum();
    bits + PORT_HALVES * absent(hole, cube).count()
}

/// The transport headers that the packets of the hole lack and those of the cube may have.
fn absent(hole: &Cube, cube: &Cube) -> impl Iterator<Item = Field> {
    [HAS_TCP, HAS_UDP].into_iter().filter(|layer| hole.lacks(*layer) && cube.mask_of(*layer) == 0)
}

/// A device may look for a TCP or UDP header only where a bit of a port is asked for: whatever has one is told as
/// two pieces, by the first bit of a port.
const PORT_HALVES: usize = 2;
const FIRST_BIT: u64 = 1 << 15;

/// The cube without the hole, which it meets: disjoint pieces, one for each bit that the hole asks beyond it, and
/// those with the headers that the hole's packets lack.
pub(super) fn around(cube: &Cube, hole: &Cube, fields: &[Field]) -> Vec<Cube> {
    let mut inside = *cube;
    let mut pieces = Vec::new();
    for field in fields {
        let asked = hole.mask_of(*field) & !cube.mask_of(*field);
        for bit in (0..u64::BITS).rev().map(|bit| 1 << bit).filter(|bit| asked & bit != 0) {
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

/// A cube with a TCP or UDP header as two, each of which asks for a bit of a port.
pub(super) fn port_halves(cube: &Cube, fields: &[Field]) -> Vec<Cube> {
    // Of the two, exceptions ask rather for the one by which cubes are cut first.
    let port = fields.iter().copied().find(|field| [SRC_PORT, DST_PORT].contains(field)).unwrap_or(DST_PORT);
    [0, FIRST_BIT].into_iter().filter_map(|value| cube.with(port, value, FIRST_BIT)).collect()
}

/// The packets that a device also takes for the hole's if it does not look for a header of any ports: those with the
/// header that the hole's packets lack. `None`: it does look, or the hole's packets lack none.
pub(super) fn twins(hole: &Cube, profile: &DeviceProfile) -> Option<Vec<Cube>> {
    if profile.allows(Feature::AnyPorts) || !hole.has_untold_absence() {
        return None;
    }
    let told = hole.without(HAS_TCP).without(HAS_UDP);
    let with = |layer| told.layer(layer, true).and_then(Cube::closed);
    Some([HAS_TCP, HAS_UDP].into_iter().filter_map(with).collect())
}

/// Whether a cube asks for a TCP or UDP header of any ports.
pub(super) fn has_any_ports(cube: &Cube) -> bool {
    (cube.has(HAS_TCP) || cube.has(HAS_UDP)) && cube.mask_of(SRC_PORT) | cube.mask_of(DST_PORT) == 0
}

/// Whether a flow can be told a piece of a cube, and keeps its place.
pub(super) fn can_be_told(piece: &Cube, cube: &Cube, profile: &DeviceProfile) -> Result<(), Untold> {
    if comes_last(piece, profile) && !comes_last(cube, profile) {
        return Err(Untold::Multicast);
    }
    if piece.told().closed().as_ref() != Some(piece) {
        return Err(Untold::NoWords);
    }
    match refusal(piece, profile) {
        None => Ok(()),
        Some(Why::Refused { feature, errno }) => Err(Untold::Refused { feature, errno }),
        Some(_) => Err(Untold::NoWords),
    }
}

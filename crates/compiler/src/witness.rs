//! A packet that two flows share, as a frame: what both ask for, and the usual in between. Called by `draft`
//! where the order of flows takes more priorities than there are. Never shows a frame that one of them does not
//! take.

use std::net::{Ipv4Addr, Ipv6Addr};

use packet::build::FrameBuilder;
use packet::{EtherType, IpProtocol, MacAddr};
use policy::Witness;

use super::cube::{
    Cube, DST_HIGH, DST_IPV4, DST_LOW, DST_MAC, DST_PORT, ESP_SEQ, ESP_SPI, ETHER_TYPE, FLOW_LABEL, Field,
    GRE_FLAGS, GRE_KEY, GRE_PROTOCOL, HAS_ESP, HAS_GRE, HAS_INNER, HAS_IPV4, HAS_IPV6, HAS_MPLS, HAS_TCP,
    HAS_UDP, HAS_VXLAN, IP_FLAGS, MPLS_TOP, PROTOCOL, SRC_HIGH, SRC_IPV4, SRC_LOW, SRC_MAC, SRC_PORT, TOS,
    TTL, VLAN_TCI, VXLAN_VNI,
};
use super::emit;
use super::tunnel::GRE_HAS_KEY;

/// What fields have that the flows do not ask for: documentation addresses (RFC 5737, RFC 3849), a type for
/// experiments (IEEE 802 local).
const USUAL: [(Field, u64); 12] = [
    (DST_MAC, 0x0200_0000_0002),
    (SRC_MAC, 0x0200_0000_0001),
    (ETHER_TYPE, 0x88b5),
    (SRC_IPV4, 0xc000_0201),
    (DST_IPV4, 0xc633_6401),
    (SRC_HIGH, 0x2001_0db8 << 32),
    (SRC_LOW, 1),
    (DST_HIGH, 0x2001_0db8 << 32),
    (DST_LOW, 2),
    (TTL, 64),
    (SRC_PORT, 49_152),
    (DST_PORT, 9),
];
const ACK: u8 = 0x10;
/// The flag that makes a VXLAN network identifier valid (RFC 7348, 5).
const VNI_VALID: u8 = 0x08;
/// The last entry of a label stack (RFC 3032, 2.1), with a TTL of 64.
const LAST_LABEL: u32 = 1 << 8 | 64;
/// Optional fields of a GRE header by their flags: checksum, key, sequence number (RFC 2890).
const GRE_OPTIONS: [u64; 3] = [0x80, 0x20, 0x10];

/// A packet that meets both cubes.
pub(super) fn shared(one: &Cube, other: &Cube) -> Option<Witness> {
    let witness = Witness { frame: frame(&one.and(other)?) };
    let key = witness.key();
    let takes = |cube: &Cube| {
        let chain = emit::chain(cube, emit::Reading::default());
        let mut specs = chain.specs.iter().enumerate();
        specs.all(|(place, spec)| spec.matches_deep(&key, place >= chain.inner_from))
    };
    (takes(one) && takes(other)).then_some(witness)
}

/// One packet of the cube, if its fields can be had together.
pub(super) fn frame(cube: &Cube) -> Vec<u8> {
    let outer = headers(cube, &|field| field);
    let word = |field| value(cube, field, field) as u32;
    let inner = headers(cube, &Field::inside);
    let inside = if cube.has(HAS_INNER) { inner.build_packet() } else { Vec::new() };
    let label = word(MPLS_TOP) | LAST_LABEL & !(cube.mask_of(MPLS_TOP) as u32);
    let stack = [&label.to_be_bytes()[..], &inside].concat();
    let is_bridged = [DST_MAC, SRC_MAC].into_iter().any(|field| cube.mask_of(field.inside()) != 0);
    let built = if cube.has(HAS_ESP) {
        outer.esp(word(ESP_SPI), word(ESP_SEQ), &[])
    } else if cube.has(HAS_VXLAN) {
        let network = (word(VXLAN_VNI) << 8).to_be_bytes();
        outer.payload(&[&[VNI_VALID, 0, 0, 0][..], &network, &inner.build()].concat())
    } else if cube.has(HAS_GRE) {
        outer.payload(&[gre(cube), if cube.has(HAS_MPLS) { stack } else { inside }].concat())
    } else if cube.has(HAS_MPLS) {
        outer.payload(&stack)
    } else if cube.has(HAS_INNER) && is_bridged {
        outer.vxlan(0, &inner.build())
    } else if cube.has(HAS_INNER) {
        outer.ip_in_ip(&inside)
    } else {
        outer
    };
    built.build()
}

/// The headers of the outer packet, or of the one inside.
pub(super) fn headers(cube: &Cube, at: &dyn Fn(Field) -> Field) -> FrameBuilder {
    let value = |field| value(cube, field, at(field));
    let has = |layer| cube.has(at(layer));
    let mac = |field| {
        let [_, _, octets @ ..] = value(field).to_be_bytes();
        MacAddr(octets)
    };
    let mut builder = FrameBuilder::new().ethernet(mac(DST_MAC), mac(SRC_MAC));
    if cube.mask_of(at(VLAN_TCI)) != 0 {
        builder = builder.vlan(EtherType::VLAN, value(VLAN_TCI) as u16);
    }
    // What carries a packet that is asked for has an IP header, whether that is asked for or not.
    let carries = cube.has(HAS_INNER) && cube.mask_of(ETHER_TYPE) == 0;
    if has(HAS_IPV6) {
        let address = |high, low| Ipv6Addr::from(u128::from(value(high)) << 64 | u128::from(value(low)));
        builder = builder.ipv6(address(SRC_HIGH, SRC_LOW), address(DST_HIGH, DST_LOW));
        builder = builder.flow_label(value(FLOW_LABEL) as u32);
    } else if has(HAS_IPV4) || carries {
        let address = |field| Ipv4Addr::from(value(field) as u32);
        builder = builder.ipv4(address(SRC_IPV4), address(DST_IPV4)).ip_flags(value(IP_FLAGS) as u8);
    } else {
        return builder.ether_type(EtherType(value(ETHER_TYPE) as u16));
    }
    builder = builder.tos(value(TOS) as u8).ttl(value(TTL) as u8);
    let (src_port, dst_port) = (value(SRC_PORT) as u16, value(DST_PORT) as u16);
    match (has(HAS_TCP), has(HAS_UDP)) {
        (true, _) => builder.tcp(src_port, dst_port, ACK),
        (_, true) => builder.udp(src_port, dst_port),
        // What a tunnel takes, or none that anybody reads.
        _ if cube.mask_of(at(PROTOCOL)) == 0 => builder,
        _ => builder.protocol(IpProtocol(value(PROTOCOL) as u8)),
    }
}

/// A GRE header with the optional fields that its flags announce.
fn gre(cube: &Cube) -> Vec<u8> {
    let has_key = if cube.mask_of(GRE_KEY) == 0 { 0 } else { GRE_HAS_KEY };
    let flags = cube.value_of(GRE_FLAGS) | has_key;
    let mut header = vec![flags as u8, 0];
    header.extend((value(cube, GRE_PROTOCOL, GRE_PROTOCOL) as u16).to_be_bytes());
    for option in GRE_OPTIONS.into_iter().filter(|option| flags & option != 0) {
        let field = if option == GRE_HAS_KEY { cube.value_of(GRE_KEY) as u32 } else { 0 };
        header.extend(field.to_be_bytes());
    }
    header
}

/// What the cube says of a field at its place, and the usual for the rest of it.
pub(super) fn value(cube: &Cube, field: Field, place: Field) -> u64 {
    let usual = USUAL.iter().find(|(known, _)| *known == field).map_or(0, |(_, usual)| *usual);
    cube.value_of(place) | usual & !cube.mask_of(place) & place.ones()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cube(fields: &[(Field, u64)]) -> Cube {
        let fill = |cube: Cube, (field, value): &(Field, u64)| cube.with(*field, *value, field.ones());
        fields.iter().try_fold(Cube::ANY, fill).and_then(Cube::closed).expect("some packet")
    }

    #[test]
    fn what_two_flows_share_is_shown_whatever_they_ask_for() {
        let any = Cube::ANY;
        let inner = HAS_IPV4.inside();
        for cube in [
            cube(&[(HAS_IPV4, 1), (HAS_TCP, 1), (DST_PORT, 22), (TOS, 4), (TTL, 1)]),
            cube(&[(HAS_IPV6, 1), (SRC_HIGH, 5), (FLOW_LABEL, 9), (HAS_UDP, 1), (SRC_PORT, 53)]),
            cube(&[(VLAN_TCI, 0x2007), (ETHER_TYPE, 0x0806), (DST_MAC, 0xffff_ffff_ffff)]),
            cube(&[(HAS_IPV4, 1), (IP_FLAGS, 2), (PROTOCOL, 47)]),
            cube(&[(HAS_IPV4, 1), (HAS_ESP, 1), (ESP_SPI, 7)]),
            cube(&[(HAS_IPV4, 1), (HAS_VXLAN, 1), (VXLAN_VNI, 5), (HAS_INNER, 1), (inner, 1)]),
            cube(&[
                (HAS_IPV6, 1),
                (HAS_GRE, 1),
                (GRE_KEY, 0),
                (GRE_PROTOCOL, 0x0800),
                (HAS_INNER, 1),
                (inner, 1),
            ]),
            cube(&[(ETHER_TYPE, 0x8847), (HAS_MPLS, 1), (MPLS_TOP, 0x0001_0040)]),
            cube(&[(HAS_IPV4, 1), (HAS_UDP, 1), (DST_PORT, 6635), (HAS_MPLS, 1), (HAS_INNER, 1), (inner, 1)]),
            cube(&[(HAS_INNER, 1), (HAS_IPV6.inside(), 1), (HAS_TCP.inside(), 1), (DST_PORT.inside(), 80)]),
            cube(&[(HAS_INNER, 1), (SRC_MAC.inside(), 3)]),
        ] {
            let witness = shared(&cube, &any).unwrap_or_else(|| panic!("{cube:?}"));
            assert!(shared(&any, &cube) == Some(witness));
        }
        let (arp, ipv4) = (cube(&[(ETHER_TYPE, 0x0806)]), cube(&[(HAS_IPV4, 1)]));
        assert_eq!(shared(&arp, &ipv4), None);
    }
}

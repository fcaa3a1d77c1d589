//! The packets of a flow as a [`Cube`], for `control`, which asks which flows share packets, and those that
//! it claims of a network interface.

use flow_spec::{FlowSpec, SpecKind};
use packet::IpProtocol;
use packet::cube::{
    Cube, HAS_ESP, HAS_GRE, HAS_INNER, HAS_IPV4, HAS_IPV6, HAS_MPLS, HAS_TCP, HAS_UDP, HAS_VXLAN, PROTOCOL,
    Slot,
};

/// The packets that match all specs.
pub(crate) fn cube_of(specs: &[FlowSpec], inner_from: usize) -> Option<Cube> {
    let mut specs = specs.iter().enumerate();
    specs.try_fold(Cube::ANY, |cube, (index, spec)| restricted(cube, spec, index >= inner_from))?.closed()
}

/// The packets that the outer specs match, with nothing implied but the protocol; `None` if there are none.
pub(crate) fn claim_of(specs: &[FlowSpec], inner_from: usize) -> Option<Cube> {
    let mut outer = specs.iter().take(inner_from);
    outer.try_fold(Cube::ANY, |cube, spec| {
        let protocol = match spec.kind() {
            SpecKind::Tcp => Some(IpProtocol::TCP),
            SpecKind::Udp => Some(IpProtocol::UDP),
            SpecKind::Gre => Some(IpProtocol::GRE),
            _ => None,
        };
        let cube = if spec.kind().is_tunnel() { cube } else { restricted(cube, spec, false)? };
        let with = |protocol: IpProtocol| cube.with(PROTOCOL, protocol.0.into(), u8::MAX.into());
        protocol.map_or(Some(cube), with)
    })
}

/// The part of a cube that a spec matches.
fn restricted(cube: Cube, spec: &FlowSpec, inside: bool) -> Option<Cube> {
    let (layer, is_of_tunnel) = match spec.kind() {
        SpecKind::Ethernet => (None, false),
        SpecKind::Ipv4 | SpecKind::Ipv4Ext => (Some(HAS_IPV4), false),
        SpecKind::Ipv6 => (Some(HAS_IPV6), false),
        SpecKind::Tcp => (Some(HAS_TCP), false),
        SpecKind::Udp => (Some(HAS_UDP), false),
        SpecKind::Esp => (Some(HAS_ESP), true),
        SpecKind::VxlanTunnel => (Some(HAS_VXLAN), true),
        SpecKind::Gre => (Some(HAS_GRE), true),
        SpecKind::Mpls => (Some(HAS_MPLS), true),
    };
    let is_inner = inside && !is_of_tunnel;
    let at = |slot: Slot| if is_inner { slot.inside() } else { slot };
    let mut cube = if is_inner { cube.layer(HAS_INNER, true)? } else { cube };
    if let Some(layer) = layer {
        cube = cube.layer(at(layer), true)?;
    }
    for field in spec.masked_fields() {
        // The slots hold the upper bits of the field, the first the uppermost.
        let mut left = field.bits;
        for slot in field.slots {
            left = left.saturating_sub(slot.bits());
            // Bits beyond the slot are cut off by its width.
            let part = |bits: u128| (bits >> left) as u64 & (u64::MAX >> (u64::BITS - slot.bits()));
            cube = cube.with(at(*slot), part(field.value), part(field.mask))?;
        }
    }
    Some(cube)
}

#[cfg(test)]
mod tests {
    use flow_spec::{EthernetMatch, Ipv4Match, Ipv6Match, PortMatch};
    use packet::cube::{DST_IPV4, DST_PORT, SRC_MAC};

    use super::*;
    use crate::spec_chain::SpecChain;

    fn flow(specs: Vec<FlowSpec>, inner_from: usize) -> SpecChain {
        SpecChain::new(specs, inner_from)
    }

    fn ipv4(dst: u32, mask: u32) -> FlowSpec {
        FlowSpec::Ipv4 { value: Ipv4Match { src: 0, dst }, mask: Ipv4Match { src: 0, dst: mask } }
    }

    fn udp(port: u16) -> FlowSpec {
        let ports = |dst_port| PortMatch { src_port: 0, dst_port };
        FlowSpec::Udp { value: ports(port), mask: ports(u16::MAX) }
    }

    #[test]
    fn a_cube_has_the_fields_of_the_specs_and_the_layers_they_imply() {
        let mac = EthernetMatch { src_mac: [2, 0, 0, 0, 0, 9], ..EthernetMatch::default() };
        let mask = EthernetMatch { src_mac: [0xff; 6], ..EthernetMatch::default() };
        let ethernet = FlowSpec::Ethernet { value: mac, mask };
        let cube =
            *flow(vec![ethernet, ipv4(0xc000_0200, 0xffff_ff00), udp(53)], 3).cube().expect("a packet");
        assert_eq!((cube.value_of(SRC_MAC), cube.mask_of(SRC_MAC)), (0x0200_0000_0009, 0xffff_ffff_ffff));
        assert_eq!((cube.value_of(DST_IPV4), cube.mask_of(DST_IPV4)), (0xc000_0200, 0xffff_ff00));
        assert_eq!((cube.value_of(DST_PORT), cube.mask_of(DST_PORT)), (53, 0xffff));
        assert!(cube.has(HAS_IPV4) && cube.has(HAS_UDP) && cube.lacks(HAS_IPV6) && cube.lacks(HAS_TCP));
    }

    #[test]
    fn cubes_overlap_where_packets_are_shared() {
        let of = |specs: Vec<FlowSpec>| {
            let all = specs.len();
            *flow(specs, all).cube().expect("a packet")
        };
        let v6 = FlowSpec::Ipv6 { value: Ipv6Match::default(), mask: Ipv6Match::default() };
        let net = of(vec![ipv4(0x0a00_0000, 0xff00_0000)]);
        assert!(net.overlaps(&of(vec![udp(53)])) && net.contains(&of(vec![ipv4(0x0a01_0000, 0xffff_0000)])));
        assert!(!net.overlaps(&of(vec![ipv4(0x0b00_0000, 0xff00_0000)])) && !net.overlaps(&of(vec![v6])));
        assert!(!of(vec![udp(53)]).overlaps(&of(vec![udp(54)])));
        let apart = |one: Vec<FlowSpec>, other: Vec<FlowSpec>| {
            let (of_one, of_other) = (one.len(), other.len());
            flow(one, of_one).front().is_apart(&flow(other, of_other).front())
        };
        assert!(apart(vec![udp(53)], vec![udp(54)]) && !apart(vec![udp(53)], vec![udp(53)]));
        let (host, other) = (ipv4(0x0a00_0001, u32::MAX), ipv4(0x0a00_0002, u32::MAX));
        assert!(apart(vec![host, udp(53)], vec![other]) && !apart(vec![host, udp(53)], vec![host]));
        assert!(
            !apart(vec![host], vec![v6])
                && !flow(vec![host], 0).front().is_apart(&flow(vec![other], 0).front())
        );
    }

    #[test]
    fn specs_behind_a_tunnel_are_of_the_packet_inside() {
        let vxlan = FlowSpec::any(SpecKind::VxlanTunnel);
        let tunnel = *flow(vec![vxlan, ipv4(0x0a00_0001, u32::MAX)], 1).cube().expect("a packet");
        assert_eq!(tunnel.value_of(DST_IPV4.inside()), 0x0a00_0001);
        assert!(tunnel.has(HAS_VXLAN) && tunnel.has(HAS_INNER) && tunnel.mask_of(DST_IPV4) == 0);
    }
}

//! Cubes to specs: the last step, where the compiler's image becomes what a device is asked. Fields that a
//! layer implies (the ethertype of an IP header, the protocol of a transport header) are not repeated:
//! devices refuse some of those combinations and match none of them faster.

use std::net::{Ipv4Addr, Ipv6Addr};

use packet::MacAddr;

use crate::spec::{EthernetMatch, Ipv4Match, Ipv6Match, PortMatch, Spec};

use super::cube::{
    Cube, DST_HIGH, DST_IPV4, DST_LOW, DST_MAC, DST_PORT, ETHER_TYPE, Field, HAS_IPV4, HAS_IPV6, HAS_TCP,
    HAS_UDP, PROTOCOL, SRC_HIGH, SRC_IPV4, SRC_LOW, SRC_MAC, SRC_PORT, TOS, VLAN_TCI,
};

/// One half of a cube, values or masks: both are cut into fields alike.
struct Half<'c>(&'c dyn Fn(Field) -> u64);

/// The specs of a cube, outer layers first; never none.
pub(super) fn specs(cube: &Cube) -> Vec<Spec> {
    let value = Half(&|field| cube.value_of(field));
    let mask = Half(&|field| cube.mask_of(field));
    let v4 = cube.has(HAS_IPV4);
    let v6 = cube.has(HAS_IPV6);
    let transport = has_transport(cube);
    let mut specs = Vec::with_capacity(spec_count(cube) as usize);
    if needs_ethernet(cube) {
        specs.push(Spec::Ethernet { value: value.ethernet(!v4 && !v6), mask: mask.ethernet(!v4 && !v6) });
    }
    if v4 {
        specs.push(Spec::Ipv4 { value: value.ipv4(!transport), mask: mask.ipv4(!transport) });
    } else if v6 {
        specs.push(Spec::Ipv6 { value: value.ipv6(!transport), mask: mask.ipv6(!transport) });
    }
    if cube.has(HAS_TCP) {
        specs.push(Spec::Tcp { value: value.ports(), mask: mask.ports() });
    } else if cube.has(HAS_UDP) {
        specs.push(Spec::Udp { value: value.ports(), mask: mask.ports() });
    }
    specs
}

/// How many specs [`specs`] gives.
pub(super) fn spec_count(cube: &Cube) -> u32 {
    let ip = cube.has(HAS_IPV4) || cube.has(HAS_IPV6);
    u32::from(needs_ethernet(cube)) + u32::from(ip) + u32::from(has_transport(cube))
}

fn has_transport(cube: &Cube) -> bool {
    cube.has(HAS_TCP) || cube.has(HAS_UDP)
}

/// Whether the Ethernet spec says something that the IP spec does not, or is the only one.
fn needs_ethernet(cube: &Cube) -> bool {
    let ip = cube.has(HAS_IPV4) || cube.has(HAS_IPV6);
    !ip || [DST_MAC, SRC_MAC, VLAN_TCI].into_iter().any(|field| cube.mask_of(field) != 0)
}

// Every field is narrowed to its own width.
impl Half<'_> {
    fn ethernet(&self, with_type: bool) -> EthernetMatch {
        EthernetMatch {
            dst_mac: self.mac(DST_MAC),
            src_mac: self.mac(SRC_MAC),
            ether_type: if with_type { (self.0)(ETHER_TYPE) as u16 } else { 0 },
            vlan_tag: (self.0)(VLAN_TCI) as u16,
        }
    }

    fn ipv4(&self, with_protocol: bool) -> Ipv4Match {
        Ipv4Match {
            src: Ipv4Addr::from((self.0)(SRC_IPV4) as u32),
            dst: Ipv4Addr::from((self.0)(DST_IPV4) as u32),
            proto: if with_protocol { (self.0)(PROTOCOL) as u8 } else { 0 },
            tos: (self.0)(TOS) as u8,
            ..Ipv4Match::ZERO
        }
    }

    fn ipv6(&self, with_protocol: bool) -> Ipv6Match {
        let address = |high, low| u128::from((self.0)(high)) << 64 | u128::from((self.0)(low));
        Ipv6Match {
            src: Ipv6Addr::from(address(SRC_HIGH, SRC_LOW)),
            dst: Ipv6Addr::from(address(DST_HIGH, DST_LOW)),
            next_hdr: if with_protocol { (self.0)(PROTOCOL) as u8 } else { 0 },
            traffic_class: (self.0)(TOS) as u8,
            ..Ipv6Match::ZERO
        }
    }

    fn ports(&self) -> PortMatch {
        PortMatch { src_port: (self.0)(SRC_PORT) as u16, dst_port: (self.0)(DST_PORT) as u16 }
    }

    fn mac(&self, field: Field) -> MacAddr {
        let [_, _, octets @ ..] = (self.0)(field).to_be_bytes();
        MacAddr(octets)
    }
}

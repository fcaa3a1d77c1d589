//! Cubes to specs: the last step, where the compiler's image becomes what a device is asked. Fields that a
//! layer implies (the ethertype of an IP header, the protocol of a transport header) are not repeated:
//! devices refuse some of those combinations and match none of them faster.

use std::net::{Ipv4Addr, Ipv6Addr};

use device_model::DeviceProfile;
use packet::MacAddr;
use program::{
    EspMatch, EthernetMatch, Feature, GreMatch, Ipv4Match, Ipv6Match, MplsMatch, PortMatch, Spec, VxlanMatch,
};

use super::cube::{
    Cube, DST_HIGH, DST_IPV4, DST_LOW, DST_MAC, DST_PORT, ESP_SEQ, ESP_SPI, ETHER_TYPE, FLOW_LABEL, Field,
    GRE_FLAGS, GRE_KEY, GRE_PROTOCOL, HAS_ESP, HAS_GRE, HAS_INNER, HAS_IPV4, HAS_IPV6, HAS_MPLS, HAS_TCP,
    HAS_UDP, HAS_VXLAN, IP_FLAGS, MPLS_TOP, PROTOCOL, SRC_HIGH, SRC_IPV4, SRC_LOW, SRC_MAC, SRC_PORT, TOS,
    TTL, VLAN_TCI, VXLAN_VNI,
};

/// The specs of a flow.
pub(super) struct Chain {
    /// Outer layers first; never none.
    pub(super) specs: Vec<Spec>,
    /// From here on they are about the packet inside.
    pub(super) inner_from: usize,
}

/// How a device reads specs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reading {
    /// It looks for multicast at the first spec only, and is to find one there that is not about it.
    ethernet_first: bool,
    /// A TCP or UDP spec without ports asks it for the protocol only: that is what it is told then, so that the
    /// program says what the device does.
    ports_by_mask: bool,
}

impl Reading {
    pub(super) fn of(profile: &DeviceProfile) -> Self {
        Self {
            ethernet_first: profile.multicast_ignores_priority,
            ports_by_mask: !profile.allows(Feature::AnyPorts),
        }
    }

    /// Whether two cubes may come to the same specs.
    pub(super) fn is_ambiguous(self) -> bool {
        self.ports_by_mask
    }

    /// Whether there is a TCP or UDP spec of the outer packet, or of the one inside.
    fn tells_transport(self, cube: &Cube, at: &dyn Fn(Field) -> Field) -> bool {
        let has = |field| cube.has(at(field));
        let is_open = [SRC_PORT, DST_PORT].into_iter().all(|port| cube.mask_of(at(port)) == 0);
        let as_protocol = self.ports_by_mask && is_open && (has(HAS_IPV4) || has(HAS_IPV6));
        (has(HAS_TCP) || has(HAS_UDP)) && !as_protocol
    }
}

/// One half of a cube, values or masks, of the outer or the inner packet: all are cut into fields alike.
struct Half<'c>(&'c dyn Fn(Field) -> u64);

/// The specs of a cube.
pub(super) fn chain(cube: &Cube, reading: Reading) -> Chain {
    let mut specs = Vec::with_capacity(spec_count(cube, reading) as usize);
    let (outer, inside) = (|field| field, Field::inside);
    let ethernet = needs_ethernet(cube, reading.ethernet_first);
    level(cube, &outer, (ethernet, reading.tells_transport(cube, &outer)), &mut specs);
    tunnel(cube, &mut specs);
    let inner_from = specs.len();
    if cube.has(HAS_INNER) {
        let told = (inner_ethernet(cube), reading.tells_transport(cube, &inside));
        level(cube, &inside, told, &mut specs);
    }
    Chain { specs, inner_from }
}

/// The specs of the outer packet, or of the one inside; whether there is one of Ethernet, and of a transport header.
fn level(
    cube: &Cube,
    at: &dyn Fn(Field) -> Field,
    (ethernet, transport): (bool, bool),
    specs: &mut Vec<Spec>,
) {
    let value = Half(&|field| cube.value_of(at(field)));
    let mask = Half(&|field| cube.mask_of(at(field)));
    let has = |layer| cube.has(at(layer));
    let (v4, v6) = (has(HAS_IPV4), has(HAS_IPV6));
    // These layers say the protocol by themselves.
    let is_outer = at(HAS_IPV4).is_outer();
    let implied = transport || (is_outer && cube.has(HAS_GRE));
    if ethernet {
        let with_type = is_outer && !v4 && !v6;
        specs.push(Spec::Ethernet { value: value.ethernet(with_type), mask: mask.ethernet(with_type) });
    }
    if v4 {
        specs.push(Spec::Ipv4 { value: value.ipv4(!implied), mask: mask.ipv4(!implied) });
    } else if v6 {
        specs.push(Spec::Ipv6 { value: value.ipv6(!implied), mask: mask.ipv6(!implied) });
    }
    match transport {
        true if has(HAS_TCP) => specs.push(Spec::Tcp { value: value.ports(), mask: mask.ports() }),
        true => specs.push(Spec::Udp { value: value.ports(), mask: mask.ports() }),
        false => {}
    }
}

fn tunnel(cube: &Cube, specs: &mut Vec<Spec>) {
    let value = |field| cube.value_of(field) as u32;
    let mask = |field| cube.mask_of(field) as u32;
    if cube.has(HAS_ESP) {
        let part = |of: &dyn Fn(Field) -> u32| EspMatch { spi: of(ESP_SPI), seq: of(ESP_SEQ) };
        specs.push(Spec::Esp { value: part(&value), mask: part(&mask) });
    }
    if cube.has(HAS_VXLAN) {
        let part = |of: &dyn Fn(Field) -> u32| VxlanMatch { vni: of(VXLAN_VNI) };
        specs.push(Spec::Vxlan { value: part(&value), mask: part(&mask) });
    }
    if cube.has(HAS_GRE) {
        let part = |of: &dyn Fn(Field) -> u32| GreMatch {
            c_ks_res0_ver: (of(GRE_FLAGS) as u16) << 8,
            protocol: of(GRE_PROTOCOL) as u16,
            key: of(GRE_KEY),
        };
        specs.push(Spec::Gre { value: part(&value), mask: part(&mask) });
    }
    if cube.has(HAS_MPLS) {
        let part = |of: &dyn Fn(Field) -> u32| MplsMatch { label: of(MPLS_TOP) };
        specs.push(Spec::Mpls { value: part(&value), mask: part(&mask) });
    }
}

/// How many specs [`chain`] gives.
pub(super) fn spec_count(cube: &Cube, reading: Reading) -> u32 {
    let level = |at: &dyn Fn(Field) -> Field| {
        let has_ip = cube.has(at(HAS_IPV4)) || cube.has(at(HAS_IPV6));
        u32::from(has_ip) + u32::from(reading.tells_transport(cube, at))
    };
    let tunnel = [HAS_ESP, HAS_VXLAN, HAS_GRE, HAS_MPLS].into_iter().filter(|layer| cube.has(*layer)).count();
    let inner = match cube.has(HAS_INNER) {
        true => level(&Field::inside) + u32::from(inner_ethernet(cube)),
        false => 0,
    };
    u32::from(needs_ethernet(cube, reading.ethernet_first)) + level(&|field| field) + tunnel as u32 + inner
}

/// Whether the Ethernet spec says something that no other spec does, or keeps multicast from the front.
fn needs_ethernet(cube: &Cube, ethernet_first: bool) -> bool {
    let ip = cube.has(HAS_IPV4) || cube.has(HAS_IPV6);
    let tells = [DST_MAC, SRC_MAC, VLAN_TCI].into_iter().any(|field| cube.mask_of(field) != 0);
    let multicast = ethernet_first && cube.has(HAS_IPV4) && cube.value_of(DST_IPV4) >> 28 == 0xe;
    let alone = !ip && (cube.mask_of(ETHER_TYPE) != 0 || !cube.has(HAS_INNER) || cube.has(HAS_MPLS));
    tells || multicast || alone
}

fn inner_ethernet(cube: &Cube) -> bool {
    [DST_MAC, SRC_MAC].into_iter().any(|field| cube.mask_of(field.inside()) != 0)
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
            ttl: (self.0)(TTL) as u8,
            flags: (self.0)(IP_FLAGS) as u8,
        }
    }

    fn ipv6(&self, with_protocol: bool) -> Ipv6Match {
        let address = |high, low| u128::from((self.0)(high)) << 64 | u128::from((self.0)(low));
        Ipv6Match {
            src: Ipv6Addr::from(address(SRC_HIGH, SRC_LOW)),
            dst: Ipv6Addr::from(address(DST_HIGH, DST_LOW)),
            next_hdr: if with_protocol { (self.0)(PROTOCOL) as u8 } else { 0 },
            traffic_class: (self.0)(TOS) as u8,
            flow_label: (self.0)(FLOW_LABEL) as u32,
            hop_limit: (self.0)(TTL) as u8,
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

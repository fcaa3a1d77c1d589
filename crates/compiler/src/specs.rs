//! Cubes to flow specs. Fields that a layer implies (the ethertype of an IP header, the protocol of a
//! transport header) are not repeated: devices refuse some of those combinations, and none makes a match
//! faster.

use device_model::DeviceModel;
use flow_spec::{FlowSpec, SpecKind};
use program::{Feature, SpecChain};

use crate::cube::{
    Cube, DST_IPV4, DST_MAC, DST_PORT, ETHER_TYPE, HAS_ESP, HAS_GRE, HAS_INNER, HAS_IPV4, HAS_IPV6, HAS_MPLS,
    HAS_TCP, HAS_UDP, HAS_VXLAN, PROTOCOL, SRC_MAC, SRC_PORT, Slot, VLAN_TCI,
};

/// Specs beside which a flow carries two actions: the tag or drop, and a counter.
pub(super) const ACTION_SPECS: u32 = 2;

/// How a device interprets specs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reading {
    /// The device detects multicast in the first spec only; an Ethernet spec before an IPv4 multicast address
    /// prevents that.
    ethernet_first: bool,
    /// The device reads a TCP or UDP spec without ports as a condition on the protocol. Such a cube becomes
    /// that condition, so that the program describes what the device does.
    ports_by_mask: bool,
}

impl Reading {
    pub(super) fn of(profile: &DeviceModel) -> Self {
        Self {
            ethernet_first: profile.multicast_ignores_priority,
            ports_by_mask: !profile.allows(Feature::AnyPorts),
        }
    }

    /// Whether flows for IPv4 multicast addresses have an Ethernet spec, whatever else they match.
    pub(super) fn marks_multicast(self) -> bool {
        self.ethernet_first
    }

    /// Whether a flow has an Ethernet spec because its IPv4 address is multicast.
    pub(super) fn has_multicast_spec(self, cube: &Cube) -> bool {
        self.marks_multicast() && cube.has(HAS_IPV4) && cube.value_of(DST_IPV4) >> 28 == 0xe
    }

    /// Whether two cubes may have the same specs.
    pub(super) fn is_ambiguous(self) -> bool {
        self.ports_by_mask
    }

    /// Returns what a device matches by the specs of a cube: cubes with equal specs have the same. Conditions
    /// that no spec has are left out.
    pub(super) fn as_matched(self, cube: &Cube) -> Cube {
        let levels: [&dyn Fn(Slot) -> Slot; 2] = [&|field| field, &Slot::inside];
        levels.into_iter().fold(cube.without_absences(), |matched, at| {
            match self.has_transport_spec(cube, at) {
                true => matched,
                false => matched.without(at(HAS_TCP)).without(at(HAS_UDP)),
            }
        })
    }

    /// Whether there is a TCP or UDP spec of the outer packet, or of the one inside.
    fn has_transport_spec(self, cube: &Cube, at: &dyn Fn(Slot) -> Slot) -> bool {
        let has = |field| cube.has(at(field));
        let is_open = [SRC_PORT, DST_PORT].into_iter().all(|port| cube.mask_of(at(port)) == 0);
        let as_protocol = self.ports_by_mask && is_open && (has(HAS_IPV4) || has(HAS_IPV6));
        (has(HAS_TCP) || has(HAS_UDP)) && !as_protocol
    }
}

/// The specs of a cube; never none.
pub(super) fn chain(cube: &Cube, reading: Reading) -> SpecChain {
    let mut specs = Vec::with_capacity(spec_count(cube, reading) as usize);
    let (outer, inside) = (|field| field, Slot::inside);
    let ethernet = needs_ethernet(cube, reading);
    level(cube, &outer, ethernet, reading.has_transport_spec(cube, &outer), &mut specs);
    tunnel(cube, &mut specs);
    let inner_from = specs.len();
    if cube.has(HAS_INNER) {
        let transport = reading.has_transport_spec(cube, &inside);
        level(cube, &inside, inner_ethernet(cube), transport, &mut specs);
    }
    SpecChain::new(specs, inner_from)
}

/// Adds the specs of the outer packet, or of the one inside: with one of Ethernet if
/// `has_ethernet`, and with one of a transport header if `has_transport`.
fn level(
    cube: &Cube,
    at: &dyn Fn(Slot) -> Slot,
    has_ethernet: bool,
    has_transport: bool,
    specs: &mut Vec<FlowSpec>,
) {
    let has = |layer| cube.has(at(layer));
    let (v4, v6) = (has(HAS_IPV4), has(HAS_IPV6));
    let is_outer = at(HAS_IPV4).is_outer();
    // A header further in implies the protocol, and an IP header the type.
    let with_protocol = !(has_transport || (is_outer && cube.has(HAS_GRE)));
    let with_type = is_outer && !v4 && !v6;
    let spec = |kind| {
        FlowSpec::from_image(kind, |slot| match slot {
            PROTOCOL if !with_protocol => (0, 0),
            ETHER_TYPE if !with_type => (0, 0),
            slot => (cube.value_of(at(slot)), cube.mask_of(at(slot))),
        })
    };
    let network = if v4 { Some(SpecKind::Ipv4Ext) } else { v6.then_some(SpecKind::Ipv6) };
    let transport = has_transport.then(|| if has(HAS_TCP) { SpecKind::Tcp } else { SpecKind::Udp });
    let ethernet = has_ethernet.then_some(SpecKind::Ethernet);
    specs.extend([ethernet, network, transport].into_iter().flatten().map(spec));
}

/// The tunnel headers that a device matches, in the order of their specs.
const TUNNEL_HEADERS: [(Slot, SpecKind); 4] = [
    (HAS_ESP, SpecKind::Esp),
    (HAS_VXLAN, SpecKind::VxlanTunnel),
    (HAS_GRE, SpecKind::Gre),
    (HAS_MPLS, SpecKind::Mpls),
];

fn tunnel(cube: &Cube, specs: &mut Vec<FlowSpec>) {
    let present = TUNNEL_HEADERS.into_iter().filter(|(layer, _)| cube.has(*layer));
    specs.extend(
        present.map(|(_, kind)| FlowSpec::from_image(kind, |slot| (cube.value_of(slot), cube.mask_of(slot)))),
    );
}

/// How many specs [`chain`] gives.
pub(super) fn spec_count(cube: &Cube, reading: Reading) -> u32 {
    let level = |at: &dyn Fn(Slot) -> Slot| {
        let has_ip = cube.has(at(HAS_IPV4)) || cube.has(at(HAS_IPV6));
        u32::from(has_ip) + u32::from(reading.has_transport_spec(cube, at))
    };
    let tunnel = TUNNEL_HEADERS.into_iter().filter(|(layer, _)| cube.has(*layer)).count();
    let inner = match cube.has(HAS_INNER) {
        true => level(&Slot::inside) + u32::from(inner_ethernet(cube)),
        false => 0,
    };
    u32::from(needs_ethernet(cube, reading)) + level(&|field| field) + tunnel as u32 + inner
}

/// Whether the Ethernet spec has a condition that no other spec implies, or must precede a multicast address.
fn needs_ethernet(cube: &Cube, reading: Reading) -> bool {
    let ip = cube.has(HAS_IPV4) || cube.has(HAS_IPV6);
    let is_matched = [DST_MAC, SRC_MAC, VLAN_TCI].into_iter().any(|field| cube.mask_of(field) != 0);
    let alone = !ip && (cube.mask_of(ETHER_TYPE) != 0 || !cube.has(HAS_INNER) || cube.has(HAS_MPLS));
    is_matched || alone || reading.has_multicast_spec(cube)
}

fn inner_ethernet(cube: &Cube) -> bool {
    [DST_MAC, SRC_MAC].into_iter().any(|field| cube.mask_of(field.inside()) != 0)
}

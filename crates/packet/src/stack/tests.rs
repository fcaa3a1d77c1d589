//! Every stack has a frame, and every frame has a stack that admits its values.

use std::net::Ipv6Addr;

use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::*;
use crate::build::{FrameBuilder, label_stack, mpls_label};
use crate::cube::{self, Cube, Slot};
use crate::{DeepKey, FIELDS, Layers, TunnelLayers};

/// The layers that the parser has to find in a packet.
fn layers(headers: PacketHeaders, tags: u8) -> Layers {
    let mut layers = match headers.network {
        Network::None => Layers::empty(),
        Network::V4 => Layers::IPV4,
        Network::V6 => Layers::IPV6,
        Network::V6Fragment => Layers::IPV6 | Layers::FRAGMENT,
    };
    layers |= match headers.transport {
        Transport::None => Layers::empty(),
        Transport::Tcp => Layers::TCP,
        Transport::Udp => Layers::UDP,
        Transport::Sctp => Layers::SCTP,
        Transport::Icmp if headers.network == Network::V4 => Layers::ICMP,
        Transport::Icmp => Layers::ICMPV6,
    };
    layers |= match headers.extended {
        None | Some(Transport::None | Transport::Sctp) => Layers::empty(),
        Some(Transport::Tcp) => Layers::EXTENDED_TCP,
        Some(Transport::Udp) => Layers::EXTENDED_UDP,
        Some(Transport::Icmp) => Layers::EXTENDED_ICMPV6,
    };
    layers.set(Layers::VLAN, tags > 0);
    layers.set(Layers::INNER_VLAN, tags > 1);
    layers
}

/// The layers that the parser has to find in a tunnel.
fn tunnel_layers(stack: &HeaderStack) -> TunnelLayers {
    let mut layers = match stack.tunnel {
        Tunnel::None => TunnelLayers::empty(),
        Tunnel::Esp => TunnelLayers::ESP,
        Tunnel::Gre { key: false } => TunnelLayers::GRE,
        Tunnel::Gre { key: true } => TunnelLayers::GRE | TunnelLayers::GRE_KEY,
        Tunnel::Vxlan => TunnelLayers::VXLAN,
        Tunnel::IpInIp => TunnelLayers::IP_IN_IP,
    };
    layers.set(TunnelLayers::MPLS, stack.labels.is_some());
    layers.set(TunnelLayers::INNER, stack.inner.is_some());
    layers.set(TunnelLayers::INNER_ETHERNET, stack.inner.is_some_and(|inner| inner.tags.is_some()));
    layers
}

fn inner_label(entry: u32) -> Option<InnerLabel> {
    match entry {
        0 => None,
        _ if entry & 0x100 != 0 => Some(InnerLabel::Bottom),
        _ if entry & 0xff != 0 => Some(InnerLabel::Ttl),
        _ if entry >> 12 != 0 => Some(InnerLabel::Label),
        _ => Some(InnerLabel::Class),
    }
}

#[test]
fn every_stack_has_a_frame() {
    for stack in HeaderStack::all() {
        for tags in 0..=MAX_TAGS {
            let key = DeepKey::of(&stack.frame(tags, |coordinate| stack.usual(tags, coordinate)));
            assert_eq!(key.outer.layers, layers(stack.outer, tags), "{stack:?}");
            assert_eq!(key.tunnel.layers, tunnel_layers(stack), "{stack:?}");
            let inside: Option<(Layers, Option<InnerLabel>)> =
                stack.inner.map(|inner| (layers(inner.headers, inner.tags.unwrap_or(0)), inner.label));
            let found = key.tunnel.layers.contains(TunnelLayers::INNER);
            let found = found.then(|| (key.tunnel.inner.layers, inner_label(key.tunnel.inner_mpls)));
            assert_eq!(found, inside, "{stack:?}");
            assert_eq!(labels(&key), stack.labels, "{stack:?}");
            for coordinate in Coordinate::all() {
                if stack.domain(tags, coordinate).is_some() {
                    let usual = stack.usual(tags, coordinate);
                    assert_eq!(value_of(&key, coordinate), usual, "{coordinate:?} of {stack:?}");
                }
            }
        }
    }
    assert!(HeaderStack::all().len() > 500);
}

fn labels(key: &DeepKey) -> Option<LabelStack> {
    let depth = usize::from(key.tunnel.mpls_depth);
    let bottom = depth > 0 && key.tunnel.mpls[depth - 1] & 0x100 != 0;
    (depth > 0).then_some(LabelStack { depth: depth as u8, bottom })
}

/// The stack and the number of tags that a packet should be of.
fn stack_of(key: &DeepKey) -> Option<(HeaderStack, u8)> {
    let tags_of =
        |found: Layers| u8::from(found.contains(Layers::VLAN)) + u8::from(found.contains(Layers::INNER_VLAN));
    // Options and later fragments are values, not headers.
    let plain = |found: Layers| {
        let mut plain = found - Layers::IP_OPTIONS - Layers::LATER_FRAGMENT;
        plain.set(Layers::FRAGMENT, found.contains(Layers::IPV6 | Layers::FRAGMENT));
        plain
    };
    let tunnel = &key.tunnel;
    let tags = tags_of(key.outer.layers);
    let is_it = |stack: &&HeaderStack| {
        let inside = tunnel.layers.contains(TunnelLayers::INNER).then_some(tunnel.inner.layers);
        layers(stack.outer, tags) == plain(key.outer.layers)
            && stack.outer.extended.is_some() == key.outer.has_extension_headers()
            && tunnel_layers(stack) == tunnel.layers
            && stack.labels == labels(key)
            && stack.inner.map(|of| (layers(of.headers, of.tags.unwrap_or(0)), of.label))
                == inside.map(|found| (plain(found), inner_label(tunnel.inner_mpls)))
    };
    HeaderStack::all().iter().find(is_it).map(|stack| (*stack, tags))
}

fn value_of(key: &DeepKey, coordinate: Coordinate) -> u128 {
    let packet_of = |level| match level {
        Level::Outer => &key.outer,
        Level::Inner => &key.tunnel.inner,
    };
    let has = |level, layer| packet_of(level).layers.contains(layer);
    match coordinate {
        Coordinate::Field(field, _) if field.row().header.is_tunnel() => field.in_tunnel(&key.tunnel),
        Coordinate::Field(field, level) => field.in_packet(packet_of(level)),
        Coordinate::Options(level) => has(level, Layers::IP_OPTIONS).into(),
        Coordinate::Fragment6(level) => has(level, Layers::LATER_FRAGMENT).into(),
        Coordinate::FlagsAndFragment(level) => {
            let pieces = [Layers::FRAGMENT, Layers::LATER_FRAGMENT];
            let class = pieces.into_iter().filter(|layer| has(level, *layer)).count();
            (8 * class as u8 + packet_of(level).ip_flags).into()
        }
        Coordinate::Label(part, level, place) => {
            let entry = match level {
                Level::Outer => key.tunnel.mpls[usize::from(place)],
                Level::Inner => key.tunnel.inner_mpls,
            };
            match part {
                LabelPart::Label => (entry >> 12).into(),
                LabelPart::Class => (entry >> 9 & 7).into(),
                LabelPart::Ttl => (entry & 0xff).into(),
            }
        }
    }
}

/// Frames that lead into every part of the parser.
fn samples() -> Vec<Vec<u8>> {
    let v4 = || FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    let v6 = || FrameBuilder::new().ipv6(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST);
    let labels = [mpls_label(16, 1), mpls_label(0, 0)];
    let tagged = || FrameBuilder::new().vlan(EtherType::SVLAN, 1).vlan(EtherType::VLAN, 2);
    let insides = [v4().tcp(1, 2, 2), v6().udp(1, 2), v6().fragment(0, true), v4().fragment(1, false)];
    let mut all = vec![v4().udp(1, 2), v6().tcp(3, 4, 2), v4().ip_options(&[1; 4]).udp(5, 6), tagged()];
    for header in IpProtocol::EXTENSION_HEADERS {
        let extended = v6().extension(header).extension(IpProtocol::DESTINATION_OPTIONS);
        all.extend([
            extended.clone().tcp(1, 2, 2),
            extended.clone().udp(3, 4),
            extended.clone().icmp(128, 0),
        ]);
        all.extend([extended.clone().fragment(0, true).udp(5, 6), extended.fragment(1, false).tcp(7, 8, 2)]);
    }
    for inside in insides {
        let (frame, packet) = (inside.clone().build(), inside.clone().build_packet());
        let stack = label_stack(&labels, &packet);
        for outer in [v4(), v6()] {
            let labelled = tagged().mpls(&labels, &packet).build();
            all.extend([outer.clone().vxlan(7, &frame), outer.clone().vxlan(7, &labelled)]);
            all.extend([outer.clone().gre(EtherType(0x6558), Some(1), &frame)]);
            all.extend([
                outer.clone().gre(EtherType::MPLS, None, &stack),
                outer.clone().mpls(&labels, &packet),
            ]);
            all.extend([outer.clone().gre(EtherType::IPV4, None, &packet), outer.clone().ip_in_ip(&packet)]);
            all.extend([outer.clone().gre(EtherType::IPV6, None, &packet), outer.esp(1, 2, &[])]);
        }
        all.extend([tagged().mpls(&labels, &packet), inside]);
    }
    all.into_iter().map(|builder| builder.build()).collect()
}

#[test]
fn a_frame_of_a_cube_has_the_values_of_the_cube() {
    let cube_of = |fields: &[(Slot, u64)]| {
        let fill = |cube: Cube, (slot, value): &(Slot, u64)| cube.with(*slot, *value, slot.ones());
        fields.iter().try_fold(Cube::ANY, fill).and_then(Cube::closed).expect("some packet")
    };
    let inner = cube::HAS_IPV4.inside();
    for cube in [
        cube_of(&[(cube::HAS_IPV4, 1), (cube::HAS_TCP, 1), (cube::DST_PORT, 22), (cube::TOS, 4)]),
        cube_of(&[(cube::HAS_IPV6, 1), (cube::SRC_HIGH, 5), (cube::FLOW_LABEL, 9), (cube::HAS_UDP, 1)]),
        cube_of(&[(cube::VLAN_TCI, 0x2007), (cube::ETHER_TYPE, 0x0806), (cube::DST_MAC, 0xffff_ffff_ffff)]),
        cube_of(&[(cube::HAS_IPV4, 1), (cube::IP_FLAGS, 2), (cube::PROTOCOL, 47)]),
        cube_of(&[(cube::HAS_IPV6, 1), (cube::TOS, 4), (cube::PROTOCOL, 43)]),
        cube_of(&[(cube::HAS_IPV4, 1), (cube::HAS_ESP, 1), (cube::ESP_SPI, 7)]),
        cube_of(&[
            (cube::HAS_IPV4, 1),
            (cube::HAS_VXLAN, 1),
            (cube::VXLAN_VNI, 5),
            (cube::HAS_INNER, 1),
            (inner, 1),
        ]),
        cube_of(&[
            (cube::HAS_IPV6, 1),
            (cube::HAS_GRE, 1),
            (cube::GRE_KEY, 0),
            (cube::HAS_INNER, 1),
            (inner, 1),
        ]),
        cube_of(&[(cube::ETHER_TYPE, 0x8847), (cube::HAS_MPLS, 1), (cube::MPLS_TOP, 0x0001_0040)]),
        cube_of(&[
            (cube::HAS_IPV4, 1),
            (cube::HAS_UDP, 1),
            (cube::DST_PORT, 6635),
            (cube::HAS_MPLS, 1),
            (cube::HAS_INNER, 1),
            (inner, 1),
        ]),
        cube_of(&[
            (cube::HAS_INNER, 1),
            (cube::HAS_IPV6.inside(), 1),
            (cube::HAS_TCP.inside(), 1),
            (cube::DST_PORT.inside(), 80),
        ]),
        cube_of(&[(cube::HAS_INNER, 1), (cube::SRC_MAC.inside(), 3)]),
    ] {
        let key = DeepKey::of(&cube.frame());
        assert_eq!(key.tunnel.layers.contains(TunnelLayers::INNER), cube.has(cube::HAS_INNER), "{cube:?}");
        assert_eq!(key.tunnel.layers.contains(TunnelLayers::MPLS), cube.has(cube::HAS_MPLS), "{cube:?}");
        let entry = u64::from(key.tunnel.mpls[0]);
        assert_eq!((entry ^ cube.value_of(cube::MPLS_TOP)) & cube.mask_of(cube::MPLS_TOP), 0, "{cube:?}");
        for (row, level) in FIELDS.iter().flat_map(|row| Level::ALL.map(|level| (row, level))) {
            let value = value_of(&key, Coordinate::Field(row.field, level));
            let mut left: u32 = row.slots.iter().map(|slot| slot.bits()).sum();
            for slot in row.slots.iter().filter(|_| level == Level::Outer || !row.header.is_tunnel()) {
                left -= slot.bits();
                let place = if level == Level::Inner { slot.inside() } else { *slot };
                let has_value = ((value >> left) as u64 ^ cube.value_of(place)) & cube.mask_of(place) == 0;
                let is_there =
                    cube.mask_of(place) == 0 || has_value || is_of_other_version(&key, row.field, level);
                assert!(is_there, "{level:?} {row:?} {cube:?} {key:?}");
            }
        }
    }
}

/// IPv4 and IPv6 addresses share a place in a cube.
fn is_of_other_version(key: &DeepKey, field: Field, level: Level) -> bool {
    let layers = if level == Level::Outer { key.outer.layers } else { key.tunnel.inner.layers };
    field.row().form == crate::Form::Address && !layers.contains(field.row().header.layers())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    /// The analysis would overlook a packet that no stack admits.
    #[test]
    fn every_frame_has_a_stack_that_admits_its_values(
        frame in select(samples()),
        changes in prop::collection::vec((any::<Index>(), select(vec![0u8, 1, 4, 5, 6, 17, 0x20, 0x45, 0x4f, 0x60, 0x81, 0x88, 0xff])), 0..6),
        length in prop::option::weighted(0.3, any::<Index>()),
    ) {
        let mut frame = frame;
        for (at, byte) in changes {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        frame.truncate(length.map_or(frame.len(), |length| length.index(frame.len())));
        let key = DeepKey::of(&frame);
        let Some((stack, tags)) = stack_of(&key) else { return Err(TestCaseError::fail(format!("{key:?}"))) };
        for coordinate in Coordinate::all() {
            let Some(domain) = stack.domain(tags, coordinate) else { continue };
            let value = value_of(&key, coordinate);
            prop_assert!(domain.iter().any(|(low, high)| (*low..=*high).contains(&value)), "{coordinate:?} {value:#x} {stack:?} {key:?}");
        }
    }
}

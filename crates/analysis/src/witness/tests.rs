//! Every kind of packet as a frame, and read back; every frame, and found among the kinds.

use std::cell::Cell as Counter;
use std::net::IpAddr;

use packet::build::{label_stack, mpls_label};
use packet::{DeepKey, FlowKey, Layers, TunnelKey, TunnelLayers};
use program::Match;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::*;
use crate::domain::domain_of;
use crate::kind::{Inside, KINDS, Stack, Structure, TopLabel};

/// The layers that `packet` has to find in a packet.
fn layers(packet: Packet, tags: u8) -> Layers {
    let mut layers = match packet.network {
        Network::None => Layers::empty(),
        Network::V4 => Layers::IPV4,
        Network::V6 => Layers::IPV6,
        Network::V6Fragment => Layers::IPV6 | Layers::FRAGMENT,
    };
    layers |= match packet.transport {
        Transport::None => Layers::empty(),
        Transport::Tcp => Layers::TCP,
        Transport::Udp => Layers::UDP,
    };
    layers.set(Layers::VLAN, tags > 0);
    layers.set(Layers::INNER_VLAN, tags > 1);
    layers
}

/// What `packet` has to find in a tunnel.
fn tunnel_layers(kind: &Kind) -> TunnelLayers {
    let mut layers = match kind.tunnel {
        Tunnel::None => TunnelLayers::empty(),
        Tunnel::Esp => TunnelLayers::ESP,
        Tunnel::Gre { key: false } => TunnelLayers::GRE,
        Tunnel::Gre { key: true } => TunnelLayers::GRE | TunnelLayers::GRE_KEY,
        Tunnel::Vxlan => TunnelLayers::VXLAN,
        Tunnel::IpInIp => TunnelLayers::IP_IN_IP,
    };
    layers.set(TunnelLayers::MPLS, kind.stack.is_some());
    layers.set(TunnelLayers::INNER, kind.inside.is_some());
    layers.set(TunnelLayers::INNER_ETHERNET, kind.inside.is_some_and(|inside| inside.tags.is_some()));
    layers
}

fn top_label(entry: u32) -> Option<TopLabel> {
    match entry {
        0 => None,
        _ if entry & 0x100 != 0 => Some(TopLabel::Bottom),
        _ if entry & 0xff != 0 => Some(TopLabel::Ttl),
        _ if entry >> 12 != 0 => Some(TopLabel::Label),
        _ => Some(TopLabel::Class),
    }
}

#[test]
fn every_kind_makes_a_frame_of_that_kind() {
    let axes = Axes::of(std::iter::once(&Match::default()));
    let everything = axes.everything();
    let mut seen = 0;
    // One kind after the other, picked by its place in the list.
    loop {
        let place = Counter::new(0usize);
        let one = Structure::kinds(|_| place.replace(place.get() + 1) == seen);
        let cell = Cell { structure: everything.structure.and(&one), ..everything.clone() };
        if cell.is_empty() {
            break;
        }
        seen += 1;
        for tags in 0..3 {
            let only = Structure::tags(Level::Outer, |count| count == tags);
            let cell = Cell { structure: cell.structure.and(&only), ..cell.clone() };
            let (kind, _) = cell.structure.first().expect("one kind is left");
            let key = of(&axes, &cell).expect("there is a packet").key();
            assert_eq!(key.outer.layers, layers(kind.packet, tags), "{kind:?}");
            assert_eq!(key.tunnel.layers, tunnel_layers(&kind), "{kind:?}");
            let inside: Option<(Layers, Option<TopLabel>)> =
                kind.inside.map(|Inside { tags, packet, label }| (layers(packet, tags.unwrap_or(0)), label));
            let found = key.tunnel.layers.contains(TunnelLayers::INNER);
            let found = found.then(|| (key.tunnel.inner.layers, top_label(key.tunnel.inner_mpls)));
            assert_eq!(found, inside, "{kind:?}");
            let depth = usize::from(key.tunnel.mpls_depth);
            let bottom = depth > 0 && key.tunnel.mpls[depth - 1] & 0x100 != 0;
            let stack = (depth > 0).then_some(Stack { depth: depth as u8, bottom });
            assert_eq!(stack, kind.stack, "{kind:?}");
        }
    }
    assert!(seen > 500, "{seen} kinds");
}

/// The kind and the number of tags that a packet should be of.
fn kind_of(key: &DeepKey) -> Option<(Kind, u8)> {
    let tags_of =
        |found: Layers| u8::from(found.contains(Layers::VLAN)) + u8::from(found.contains(Layers::INNER_VLAN));
    // Options and later fragments are values, not kinds.
    let plain = |found: Layers| {
        let mut plain = found - Layers::IP_OPTIONS - Layers::LATER_FRAGMENT;
        plain.set(Layers::FRAGMENT, found.contains(Layers::IPV6 | Layers::FRAGMENT));
        plain
    };
    let tunnel = &key.tunnel;
    let tags = tags_of(key.outer.layers);
    let is_it = |kind: &&Kind| {
        let depth = usize::from(tunnel.mpls_depth);
        let bottom = depth > 0 && tunnel.mpls[depth - 1] & 0x100 != 0;
        let inside = tunnel.layers.contains(TunnelLayers::INNER).then_some(tunnel.inner.layers);
        layers(kind.packet, tags) == plain(key.outer.layers)
            && tunnel_layers(kind) == tunnel.layers
            && kind.stack == (depth > 0).then_some(Stack { depth: depth as u8, bottom })
            && kind.inside.map(|of| (layers(of.packet, of.tags.unwrap_or(0)), of.label))
                == inside.map(|found| (plain(found), top_label(tunnel.inner_mpls)))
    };
    KINDS.iter().find(is_it).map(|kind| (*kind, tags))
}

/// What a packet has in a field.
fn value_of(key: &DeepKey, field: Field) -> u128 {
    let TunnelKey { esp_spi, esp_seq, vxlan_vni, gre_key, gre_protocol, gre_flags, .. } = key.tunnel;
    let entry = |level, place| match level {
        Level::Outer => u128::from(key.tunnel.mpls[usize::from(place)]),
        Level::Inner => key.tunnel.inner_mpls.into(),
    };
    match field {
        Field::EspSpi => esp_spi.into(),
        Field::EspSeq => esp_seq.into(),
        Field::Vni => vxlan_vni.into(),
        Field::GreKey => gre_key.into(),
        Field::GreProtocol => gre_protocol.into(),
        Field::GreFlags => (gre_flags >> 8).into(),
        Field::Label(level, place) => entry(level, place) >> 12,
        Field::LabelClass(level, place) => entry(level, place) >> 9 & 7,
        Field::LabelTtl(level, place) => entry(level, place) & 0xff,
        Field::Dst4(level) | Field::Dst6(level) => number(packet_of(key, level).dst_addr()),
        Field::Src4(level) | Field::Src6(level) => number(packet_of(key, level).src_addr()),
        Field::DstPort(level) => packet_of(key, level).dst_port.into(),
        Field::SrcPort(level) => packet_of(key, level).src_port.into(),
        Field::Protocol(level) => packet_of(key, level).protocol.into(),
        Field::DstMac(level) => mac::number(packet_of(key, level).dst_mac).into(),
        Field::SrcMac(level) => mac::number(packet_of(key, level).src_mac).into(),
        Field::EtherType(level) => packet_of(key, level).ether_type.into(),
        Field::VlanId(level) => u128::from(packet_of(key, level).vlan_tci & 0xfff),
        Field::VlanPriority(level) => u128::from(packet_of(key, level).vlan_tci >> 13),
        Field::VlanTpid(level) => packet_of(key, level).vlan_tpid.into(),
        Field::SecondId(level) => u128::from(packet_of(key, level).inner_vlan_tci & 0xfff),
        Field::SecondTpid(level) => packet_of(key, level).inner_vlan_tpid.into(),
        Field::Tos(level) => packet_of(key, level).tos.into(),
        Field::Ttl(level) => packet_of(key, level).ttl.into(),
        Field::FlowLabel(level) => packet_of(key, level).flow_label.into(),
        Field::TcpFlags(level) => packet_of(key, level).tcp_flags.into(),
        Field::Options(level) => packet_of(key, level).layers.contains(Layers::IP_OPTIONS).into(),
        Field::Fragment6(level) => packet_of(key, level).layers.contains(Layers::LATER_FRAGMENT).into(),
        Field::FlagsAndFragment(level) => {
            let packet = packet_of(key, level);
            let pieces = [Layers::FRAGMENT, Layers::LATER_FRAGMENT];
            let class = pieces.iter().filter(|layer| packet.layers.contains(**layer)).count();
            (8 * class as u8 + packet.ip_flags).into()
        }
    }
}

fn packet_of(key: &DeepKey, level: Level) -> &FlowKey {
    match level {
        Level::Outer => &key.outer,
        Level::Inner => &key.tunnel.inner,
    }
}

fn number(address: Option<IpAddr>) -> u128 {
    match address {
        Some(IpAddr::V4(v4)) => u32::from(v4).into(),
        Some(IpAddr::V6(v6)) => v6.into(),
        None => 0,
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    /// What the algebra leaves out would be found neither shadowed nor different.
    #[test]
    fn every_frame_is_of_a_kind_that_admits_its_values(
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
        let Some((kind, tags)) = kind_of(&key) else { return Err(TestCaseError::fail(format!("{key:?}"))) };
        for field in Field::all() {
            let Some(domain) = domain_of(&kind, tags, field) else { continue };
            let value = value_of(&key, field);
            prop_assert!(domain.iter().any(|(low, high)| (*low..=*high).contains(&value)), "{field:?} {value:#x} {kind:?} {key:?}");
        }
    }
}

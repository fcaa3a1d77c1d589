//! Every kind of packet as a frame, and read back.

use std::cell::Cell as Counter;

use super::*;
use crate::policy::Match;
use crate::space::kind::{Inside, Stack, Structure, TopLabel};

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

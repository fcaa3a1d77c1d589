//! Packets at the boundaries of the random clauses: real frames through the real parser, some of them cut
//! short or damaged, so that the compiler's assumptions about headers are compared with the parser.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use packet::build::FrameBuilder;
use packet::{DeepKey, EtherType, IpProtocol, MacAddr};
use proptest::prelude::*;
use proptest::sample::select;

use super::tunnels::wrapping;

fn mac() -> impl Strategy<Value = MacAddr> {
    let own = (0u8..6).prop_map(|last| MacAddr([2, 0, 0, 0, 0, last]));
    prop_oneof![4 => own, 1 => Just(MacAddr::BROADCAST), 1 => Just(MacAddr([1, 0, 0x5e, 0, 0, 1]))]
}

fn tags() -> impl Strategy<Value = Vec<(EtherType, u16)>> {
    let tpid = select(vec![EtherType::VLAN, EtherType::VLAN, EtherType::SVLAN]);
    let tci = (select(vec![0u16, 4, 5, 6, 7, 8, 4095]), select(vec![0u16, 2, 3, 6, 7]), 0u16..2)
        .prop_map(|(id, priority, dei)| id | priority << 13 | dei << 12);
    prop_oneof![3 => Just(Vec::new()), 2 => prop::collection::vec((tpid, tci), 1..4)]
}

fn v4() -> impl Strategy<Value = IpAddr> {
    let last = (0u8..9).prop_map(|last| Ipv4Addr::new(10, 0, 0, last));
    let other = select(vec![
        Ipv4Addr::new(9, 255, 255, 255),
        Ipv4Addr::new(11, 0, 0, 0),
        Ipv4Addr::new(32, 1, 13, 184),
    ]);
    prop_oneof![4 => last, 1 => other].prop_map(IpAddr::V4)
}

fn v6() -> impl Strategy<Value = IpAddr> {
    let near = (0u16..6).prop_map(|last| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last));
    let other = select(vec![
        Ipv6Addr::new(0x2001, 0xdb9, 0, 0, 0, 0, 0, 1),
        Ipv6Addr::new(0x0a00, 4, 0, 0, 0, 0, 0, 0),
    ]);
    prop_oneof![3 => near, 1 => other].prop_map(IpAddr::V6)
}

fn addresses() -> impl Strategy<Value = (IpAddr, IpAddr)> {
    prop_oneof![(v4(), v4()), (v6(), v6())]
}

fn port() -> impl Strategy<Value = u16> {
    prop_oneof![4 => 48u16..62, 1 => 0u16..6, 1 => 65528u16..]
}

#[derive(Clone, Debug)]
enum Body {
    Raw(EtherType),
    Tcp(u16, u16, u8),
    Udp(u16, u16),
    Icmp(u8, u8),
    Protocol(u8),
}

fn body() -> impl Strategy<Value = Body> {
    let raw = select(vec![
        0u16, 0x100, 1500, 1501, 0x0600, 0x06ff, 0x07ff, 0x0800, 0x0806, 0x08ff, 0x0900, 0x86dd, 0x8100,
    ]);
    let flags = select(vec![0u8, 0x01, 0x02, 0x12, 0x10, 0x13]);
    prop_oneof![
        2 => raw.prop_map(|number| Body::Raw(EtherType(number))),
        4 => (port(), port(), flags).prop_map(|(src, dst, flags)| Body::Tcp(src, dst, flags)),
        4 => (port(), port()).prop_map(|(src, dst)| Body::Udp(src, dst)),
        1 => (select(vec![8u8, 0, 128, 3]), 0u8..3).prop_map(|(icmp_type, code)| Body::Icmp(icmp_type, code)),
        1 => select(vec![0u8, 1, 6, 16, 17, 44, 47]).prop_map(Body::Protocol),
    ]
}

/// The headers of one packet.
fn headers() -> impl Strategy<Value = FrameBuilder> {
    let fragment = prop::option::weighted(0.25, (select(vec![0u16, 0, 1, 185]), any::<bool>()));
    let network =
        (addresses(), select(vec![0u8, 1, 0x28, 0xb8, 0xbb, 0xbc]), fragment, prop::bool::weighted(0.15));
    (mac(), mac(), tags(), network, body())
        .prop_map(|(dst, src, tags, network, body)| builder(dst, src, &tags, network, &body))
}

/// The key of a random frame, with a tunnel or without.
pub(crate) fn packet_key() -> impl Strategy<Value = DeepKey> {
    let tunnel = prop::option::weighted(0.35, (wrapping(), headers()));
    let cut = prop::option::weighted(0.1, 0usize..140);
    let damage = prop::option::weighted(0.1, (12usize..90, any::<u8>()));
    (headers(), tunnel, cut, damage).prop_map(|(outer, tunnel, cut, damage)| {
        let frame = match tunnel {
            Some((wrapping, inner)) => wrapping.wrap(outer, &inner),
            None => outer,
        };
        let mut frame = frame.build();
        if let Some((at, byte)) = damage
            && let Some(place) = frame.get_mut(at)
        {
            *place = byte;
        }
        frame.truncate(cut.unwrap_or(frame.len()));
        DeepKey::of(&frame)
    })
}

type Network = ((IpAddr, IpAddr), u8, Option<(u16, bool)>, bool);

fn builder(
    dst: MacAddr,
    src: MacAddr,
    tags: &[(EtherType, u16)],
    network: Network,
    body: &Body,
) -> FrameBuilder {
    let ((src_ip, dst_ip), tos, fragment, options) = network;
    let mut frame = FrameBuilder::new().ethernet(dst, src).payload(&[0; 24]);
    for (tpid, tci) in tags {
        frame = frame.vlan(*tpid, *tci);
    }
    if let Body::Raw(ether_type) = body {
        return frame.ether_type(*ether_type);
    }
    frame = frame.ip(src_ip, dst_ip).tos(tos);
    if let Some((offset, more)) = fragment {
        frame = frame.fragment(offset, more);
    }
    if options {
        frame = frame.ip_options(&[1, 1, 1, 0]);
    }
    match body {
        Body::Raw(_) => frame,
        Body::Icmp(icmp_type, code) => frame.icmp(*icmp_type, *code),
        Body::Tcp(src, dst, flags) => frame.tcp(*src, *dst, *flags),
        Body::Udp(src, dst) => frame.udp(*src, *dst),
        Body::Protocol(protocol) => frame.protocol(IpProtocol(*protocol)),
    }
}

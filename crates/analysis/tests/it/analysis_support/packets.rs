//! Frames at the edges of the random matches, well-formed and cut, with tunnels.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use packet::build::{FrameBuilder, label_stack, mpls_label};
use packet::{EtherType, IpProtocol, MacAddr};
use proptest::prelude::*;
use proptest::sample::select;

use crate::DRAWS_SCTP;

/// IPv6 extension headers; the header of a fragment is one of a whole packet.
const EXTENSIONS: [IpProtocol; 5] = IpProtocol::EXTENSION_HEADERS;

/// The headers of one packet, with nothing behind them.
fn headers() -> impl Strategy<Value = FrameBuilder> {
    let mac = || {
        select(vec![
            [2u8, 0, 0, 0, 0, 1],
            [2, 0, 0, 0, 0, 2],
            [2, 0, 0, 1, 0, 6],
            [1, 0, 0, 0, 0, 2],
            [255; 6],
        ])
    };
    let tag = (select(vec![0x8100u16, 0x88a8, 0x9100]), select(vec![0u16, 1, 99, 200, 0xa001]));
    let tags = prop_oneof![4 => Just(Vec::new()), 1 => prop::collection::vec(tag, 1..3)];
    let v4 = |d: [u8; 4]| IpAddr::V4(Ipv4Addr::from(d));
    let v6 = |low: u128| IpAddr::V6(Ipv6Addr::from(0x2001_0db8u128 << 96 | low));
    let pool4 = vec![
        v4([10, 0, 0, 1]),
        v4([10, 0, 0, 255]),
        v4([10, 0, 1, 5]),
        v4([10, 9, 9, 9]),
        v4([192, 0, 2, 1]),
    ];
    let pool6 = vec![v6(1), v6(2), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    let pair = |pool: Vec<IpAddr>| (select(pool.clone()), select(pool));
    let network =
        prop_oneof![5 => pair(pool4).prop_map(Some), 3 => pair(pool6).prop_map(Some), 1 => Just(None)];
    let ports = || select(vec![0u16, 53, 80, 1023, 1024, 4789, 6635]);
    let mut protocols = vec![1u8, 6, 17, 47, 50, 4, 41, 44];
    protocols.extend(DRAWS_SCTP.then_some(132));
    let transport = (
        0u8..if DRAWS_SCTP { 6 } else { 5 },
        ports(),
        ports(),
        select(vec![2u8, 0x12, 4, 0x10]),
        select(protocols),
    );
    let odd = (
        select(vec![0u8, 0xb8, 9]),
        select(vec![0u8, 1, 64]),
        select(vec![0u8, 0, 2, 1]),
        select(vec![0u32, 7, 8]),
    );
    let fragment = prop::option::weighted(0.15, (0u16..2, any::<bool>()));
    let extensions =
        prop_oneof![2 => Just(Vec::new()), 1 => prop::collection::vec(select(EXTENSIONS.to_vec()), 1..11)];
    let ty = select(vec![0x0800u16, 0x0806, 0x8847, 100, 0x86dd]);
    (mac(), mac(), tags, network, transport, odd, (extensions, fragment), any::<bool>(), ty).prop_map(
        |(
            dst,
            src,
            tags,
            network,
            (which, src_port, dst_port, flags, protocol),
            odd,
            (extensions, fragment),
            options,
            ty,
        )| {
            let mut frame = FrameBuilder::new().ethernet(MacAddr(dst), MacAddr(src));
            for (tpid, control) in tags {
                frame = frame.vlan(EtherType(tpid), control);
            }
            let Some((from, to)) = network else { return frame.ether_type(EtherType(ty)) };
            let (tos, ttl, ip_flags, label) = odd;
            frame = frame.ip(from, to).tos(tos).ttl(ttl).ip_flags(ip_flags).flow_label(label);
            frame = extensions.into_iter().fold(frame, FrameBuilder::extension);
            if let Some((offset, more)) = fragment {
                frame = frame.fragment(offset, more);
            }
            if options && flags == 2 {
                frame = frame.ip_options(&[1, 1, 1, 0]);
            }
            match which {
                2 => frame.icmp(flags, u8::try_from(src_port % 3).unwrap_or(0)),
                0 => frame.tcp(src_port, dst_port, flags),
                1 => frame.udp(src_port, dst_port),
                3 if DRAWS_SCTP => frame.sctp(src_port, dst_port),
                _ => frame.protocol(IpProtocol(protocol)),
            }
        },
    )
}

/// Any frame.
pub(crate) fn frame() -> impl Strategy<Value = Vec<u8>> {
    let number = || select(vec![0u32, 1, 7, 8, 100]);
    let labels = prop::collection::vec((select(vec![0u32, 15, 16]), 0u8..6), 1..6);
    let cut = prop::option::weighted(0.15, 0usize..120);
    (headers(), headers(), 0u8..12, (number(), number(), labels), cut).prop_map(
        |(outer, inner, tunnel, values, cut)| {
            let (one, two, labels) = values;
            let stack: Vec<u32> = labels.into_iter().map(|(label, class)| mpls_label(label, class)).collect();
            let key = (two > 1).then_some(two);
            let mut frame = match tunnel {
                0 => outer.vxlan(one, &inner.build()),
                1 => outer.gre(EtherType(0x6558), key, &inner.build()),
                2 => outer.gre(EtherType::IPV4, key, &inner.build_packet()),
                3 => outer.gre(EtherType::MPLS, key, &label_stack(&stack, &inner.build_packet())),
                4 => outer.mpls(&stack, &inner.build_packet()),
                5 => outer.esp(one, two, &[]),
                6 => outer.ip_in_ip(&inner.build_packet()),
                7 => {
                    let labelled = FrameBuilder::new().mpls(&stack, &[]).build();
                    outer.vxlan(one, &labelled)
                }
                _ => outer,
            }
            .build();
            frame.truncate(cut.unwrap_or(frame.len()));
            frame
        },
    )
}

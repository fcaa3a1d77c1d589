//! One test per anomaly, the layers' meaning, and arbitrary bytes.

use proptest::prelude::*;

use super::*;
use crate::build::FrameBuilder;

const V4: usize = ETHERNET_BYTES;
const V4_L4: usize = V4 + IPV4_BYTES;
const V6_L4: usize = ETHERNET_BYTES + IPV6_BYTES;

fn v4() -> FrameBuilder {
    FrameBuilder::new().ipv4([10, 1, 2, 3].into(), [192, 0, 2, 10].into())
}

fn v6() -> FrameBuilder {
    FrameBuilder::new().ipv6([0xfe80, 0, 0, 0, 0, 0, 0, 1].into(), [0xff02, 0, 0, 0, 0, 0, 0, 1].into())
}

/// Parses `frame` after setting the byte at each place.
fn damaged(builder: &FrameBuilder, changes: &[(usize, u8)]) -> Parsed {
    let mut frame = builder.build();
    for (at, value) in changes {
        frame[*at] = *value;
    }
    parse(&frame)
}

fn cut(builder: &FrameBuilder, length: usize) -> Parsed {
    parse(&builder.build()[..length])
}

/// Asserts the anomaly and the layers that survive it.
#[track_caller]
fn assert_odd(parsed: &Parsed, anomaly: Anomaly, layers: Layers) {
    assert_eq!((parsed.anomaly, parsed.key.layers), (Some(anomaly), layers));
    assert_eq!(parsed.l4_offset != 0, layers.intersects(Layers::TCP | Layers::UDP));
}

#[test]
fn ethernet_truncated() {
    for length in 0..ETHERNET_BYTES {
        let parsed = cut(&v4().udp(1, 2), length);
        assert_odd(&parsed, Anomaly::EthernetTruncated, Layers::empty());
        assert_eq!((parsed.key, parsed.l3_offset), (FlowKey::default(), 0));
    }
}

#[test]
fn vlan_truncated() {
    let tagged = v4().vlan(EtherType::SVLAN, 7).vlan(EtherType::VLAN, 9).udp(1, 2);
    for length in 14..18 {
        let parsed = cut(&tagged, length);
        assert_odd(&parsed, Anomaly::VlanTruncated, Layers::empty());
        assert_eq!((parsed.key.ether_type, parsed.key.vlan_tpid, parsed.l3_offset), (0x88a8, 0, 14));
    }
    for length in 18..22 {
        let parsed = cut(&tagged, length);
        assert_odd(&parsed, Anomaly::VlanTruncated, Layers::VLAN);
        assert_eq!((parsed.key.ether_type, parsed.key.vlan_tci, parsed.l3_offset), (0x8100, 7, 18));
    }
}

#[test]
fn ipv4_truncated() {
    for length in V4..V4_L4 {
        assert_odd(&cut(&v4().udp(1, 2), length), Anomaly::Ipv4Truncated, Layers::empty());
    }
    // The fixed header is whole, so that it can match; its options are not.
    let parsed = cut(&v4().ip_options(&[1; 8]).udp(1, 2), V4_L4 + 4);
    assert_odd(&parsed, Anomaly::Ipv4Truncated, Layers::IPV4 | Layers::IP_OPTIONS);
    assert_eq!(parsed.key.protocol, 17);
}

#[test]
fn ipv4_version() {
    let parsed = damaged(&v4().udp(1, 2), &[(V4, 0x65)]);
    assert_odd(&parsed, Anomaly::Ipv4Version, Layers::empty());
    assert_eq!((parsed.key.ether_type, parsed.key.src_ip), (0x0800, [0; 16]));
}

#[test]
fn ipv4_header_length() {
    for words in 0..5 {
        let parsed = damaged(&v4().udp(1, 2), &[(V4, 0x40 | words)]);
        assert_odd(&parsed, Anomaly::Ipv4HeaderLength, Layers::empty());
        assert_eq!(parsed.key.protocol, 0);
    }
}

#[test]
fn ipv4_total_length() {
    // Shorter than the header: it is none, and nothing of it can match.
    for total in 1..20 {
        let parsed = damaged(&v4().udp(1, 2), &[(V4 + 2, 0), (V4 + 3, total)]);
        assert_odd(&parsed, Anomaly::Ipv4TotalLength, Layers::empty());
        assert_eq!((parsed.key.protocol, parsed.key.dst_ip), (0, [0; 16]));
    }
    // Shorter than this header, though not than the fixed one.
    for total in 20..24 {
        let parsed = damaged(&v4().ip_options(&[1; 4]).udp(1, 2), &[(V4 + 2, 0), (V4 + 3, total)]);
        assert_odd(&parsed, Anomaly::Ipv4TotalLength, Layers::empty());
    }
    // Longer than the frame: what is there is read.
    let parsed = damaged(&v4().udp(1, 2), &[(V4 + 2, 4), (V4 + 3, 0)]);
    assert_odd(&parsed, Anomaly::Ipv4TotalLength, Layers::IPV4 | Layers::UDP);
    assert_eq!(parsed.key.dst_port, 2);
}

#[test]
fn ipv6_truncated() {
    for length in ETHERNET_BYTES..V6_L4 {
        assert_odd(&cut(&v6().udp(1, 2), length), Anomaly::Ipv6Truncated, Layers::empty());
    }
    // A fragment header that the packet has no room for, in a frame that is long enough.
    let parsed = damaged(&v6().fragment(0, true).udp(1, 2), &[(18, 0), (19, 7)]);
    assert_odd(&parsed, Anomaly::Ipv6Truncated, Layers::IPV6);
}

#[test]
fn ipv6_version() {
    let parsed = damaged(&v6().udp(1, 2), &[(ETHERNET_BYTES, 0x45)]);
    assert_odd(&parsed, Anomaly::Ipv6Version, Layers::empty());
    assert_eq!(parsed.key.dst_ip, [0; 16]);
}

#[test]
fn ipv6_payload_length() {
    let parsed = damaged(&v6().udp(1, 2), &[(19, 200)]);
    assert_odd(&parsed, Anomaly::Ipv6PayloadLength, Layers::IPV6 | Layers::UDP);
}

#[test]
fn tcp_truncated() {
    // By the packet's own length, though the frame goes on.
    let parsed = damaged(&v4().tcp(1, 2, 2).frame_bytes(64), &[(V4 + 3, 39)]);
    assert_odd(&parsed, Anomaly::TcpTruncated, Layers::IPV4);
    let parsed = damaged(&v6().tcp(1, 2, 2).frame_bytes(90), &[(19, 19)]);
    assert_odd(&parsed, Anomaly::TcpTruncated, Layers::IPV6);
    assert_eq!((parsed.key.src_port, parsed.key.tcp_flags), (0, 0));
}

#[test]
fn tcp_data_offset() {
    for offset in [4, 6] {
        let parsed = damaged(&v4().tcp(1, 2, 2), &[(V4_L4 + 12, offset << 4)]);
        assert_odd(&parsed, Anomaly::TcpDataOffset, Layers::IPV4 | Layers::TCP);
        assert_eq!(parsed.key.tcp_flags, 2);
    }
}

#[test]
fn udp_truncated() {
    let parsed = damaged(&v4().udp(1, 2).frame_bytes(64), &[(V4 + 3, 27)]);
    assert_odd(&parsed, Anomaly::UdpTruncated, Layers::IPV4);
    assert_eq!(parsed.key.dst_port, 0);
}

#[test]
fn udp_length() {
    for length in [0, 7, 9] {
        let parsed = damaged(&v6().udp(1, 2), &[(V6_L4 + 5, length)]);
        assert_odd(&parsed, Anomaly::UdpLength, Layers::IPV6 | Layers::UDP);
        assert_eq!(parsed.key.dst_port, 2);
    }
}

#[test]
fn sctp_has_ports_behind_either_header() {
    // Written by hand (RFC 9260, 3.1): ports 2905 and 36412, tag, checksum, and the start of an INIT chunk.
    let packet = [0x0b, 0x59, 0x8e, 0x3c, 0, 0, 0, 0, 9, 9, 9, 9, 1, 0, 0, 20];
    for (builder, at, version) in [(v4(), V4_L4, Layers::IPV4), (v6(), V6_L4, Layers::IPV6)] {
        let builder = builder.protocol(IpProtocol(132)).payload(&packet);
        for length in at..=at + packet.len() {
            let Parsed { key, anomaly, l4_offset, .. } = cut(&builder, length);
            let (layers, ports) = match length < at + 12 {
                true => (version, (0, 0)),
                false => (version | Layers::SCTP, (2905, 36412)),
            };
            assert_eq!((key.layers, (key.src_port, key.dst_port), l4_offset), (layers, ports, 0), "{length}");
            let is_cut = length < at + packet.len();
            assert_eq!(anomaly.is_some(), is_cut, "the length of the IP packet alone is wrong");
        }
        let first = builder.clone().fragment(0, true);
        let later = builder.fragment(1, false);
        let has_sctp = |builder: &FrameBuilder| parse(&builder.build()).key.layers.contains(Layers::SCTP);
        assert_eq!((has_sctp(&first), has_sctp(&later)), (version == Layers::IPV4, false));
    }
}

#[test]
fn the_outermost_anomaly_is_kept() {
    let parsed = damaged(&v4().udp(1, 2), &[(V4 + 2, 4), (V4_L4 + 5, 0)]);
    assert_eq!(parsed.anomaly, Some(Anomaly::Ipv4TotalLength));
}

#[test]
fn tags_beyond_the_second_stay() {
    let frame =
        v4().vlan(EtherType::SVLAN, 1).vlan(EtherType::QINQ, 2).vlan(EtherType::VLAN, 3).udp(1, 2).build();
    let parsed = parse(&frame);
    assert_eq!(parsed.key.layers, Layers::VLAN | Layers::INNER_VLAN);
    assert_eq!((parsed.key.inner_vlan_tpid, parsed.key.ether_type, parsed.l3_offset), (0x9100, 0x8100, 22));
}

#[test]
fn an_8023_length_is_no_network_layer() {
    let frame = FrameBuilder::new().ether_type(EtherType(38)).payload(&[0x42; 38]).build();
    assert_eq!(parse(&frame).key.ether_type, 38);
    assert_eq!(parse(&frame).key.layers, Layers::empty());
}

#[test]
fn first_fragments_have_ports_and_later_ones_none() {
    let first = parse(&v4().fragment(0, true).udp(5, 6).payload(&[0; 8]).build());
    assert_eq!(first.key.layers, Layers::IPV4 | Layers::FRAGMENT | Layers::UDP);
    assert_eq!((first.key.src_port, first.key.dst_port, first.key.ip_flags), (5, 6, 1));
    let last = parse(&v4().fragment(1, false).udp(5, 6).payload(&[0; 8]).build());
    assert_eq!(last.key.layers, Layers::IPV4 | Layers::FRAGMENT | Layers::LATER_FRAGMENT);
    assert_eq!((last.key.src_port, last.key.protocol, last.l4_offset), (0, 17, 0));
}

#[test]
fn first_fragments_may_speak_of_a_longer_datagram() {
    let parsed = damaged(&v4().fragment(0, true).udp(5, 6).payload(&[0; 8]), &[(V4_L4 + 4, 8)]);
    assert_eq!(parsed.anomaly, None);
}

#[test]
fn ipv6_ports_stand_only_behind_the_first_header() {
    let fragment = parse(&v6().fragment(0, true).udp(5, 6).build());
    assert_eq!(fragment.key.layers, Layers::IPV6 | Layers::FRAGMENT | Layers::EXTENDED_UDP);
    assert_eq!((fragment.key.protocol, fragment.key.src_port, fragment.anomaly), (44, 0, None));
    let atomic = parse(&v6().fragment(0, false).udp(5, 6).build());
    assert_eq!(atomic.key.layers, Layers::IPV6 | Layers::EXTENDED_UDP);
    // Between offset and flag stand two reserved bits (RFC 8200, 4.5).
    let reserved = damaged(&v6().fragment(0, false).udp(5, 6), &[(V6_L4 + 3, 0x06)]);
    assert_eq!(reserved.key.layers, Layers::IPV6 | Layers::EXTENDED_UDP);
    let hop_by_hop =
        parse(&v6().protocol(IpProtocol::HOP_BY_HOP).payload(&[17, 0, 1, 4, 0, 0, 0, 0]).build());
    assert_eq!((hop_by_hop.key.layers, hop_by_hop.key.protocol), (Layers::IPV6, 0));
}

#[test]
fn a_length_of_zero_is_the_rest_of_the_frame() {
    let parsed = damaged(&v4().tcp(5, 6, 16), &[(V4 + 2, 0), (V4 + 3, 0)]);
    assert_eq!((parsed.anomaly, parsed.key.dst_port), (None, 6));
    let parsed = damaged(&v6().tcp(5, 6, 16), &[(18, 0), (19, 0)]);
    assert_eq!((parsed.anomaly, parsed.key.dst_port), (None, 6));
}

#[test]
fn plain_frames_are_read_at_once() {
    for builder in [v4().udp(1, 2), v4().tcp(3, 4, 0x12)] {
        for frame_bytes in [60, 61, 200] {
            let frame = builder.clone().frame_bytes(frame_bytes).build();
            assert_eq!(plain(&frame), Some(layers(&frame)));
        }
    }
}

proptest! {
    /// Frames that are nearly plain, cut and with some bytes changed.
    #[test]
    fn plain_frames_have_the_key_that_their_layers_give(
        is_tcp in any::<bool>(),
        cut in 40..100_usize,
        changes in proptest::collection::vec((12..60_usize, prop_oneof![Just(0_u8), Just(8), Just(20), any::<u8>()]), 0..3),
    ) {
        let builder = if is_tcp { v4().tcp(1, 2, 0x10) } else { v4().udp(1, 2) };
        let mut frame = builder.frame_bytes(90).build();
        for (at, value) in changes {
            frame[at] = value;
        }
        frame.truncate(cut);
        prop_assert_eq!(plain(&frame).unwrap_or_else(|| layers(&frame)), layers(&frame));
    }

    /// Arbitrary bytes behind headers that lead deep into the parser.
    #[test]
    fn any_bytes_have_a_consistent_key(mut frame in proptest::collection::vec(any::<u8>(), 0..160), shape in 0..6_usize, first in any::<u8>()) {
        let prefix: &[u8] = [&[0x08, 0, 0x45][..], &[0x08, 0, 0x47], &[0x86, 0xdd, 0x60], &[0x81, 0], &[0x88, 0xa8, 0, 1, 0x81, 0], &[]][shape];
        if let Some(room) = frame.get_mut(12..12 + prefix.len()) {
            room.copy_from_slice(prefix);
        }
        // Protocols that matter, more often than by chance.
        for at in [V4 + 9, ETHERNET_BYTES + 6] {
            if let Some(byte) = frame.get_mut(at) {
                *byte = [6, 17, 44, 132, *byte][usize::from(first) % 5];
            }
        }
        let parsed = parse(&frame);
        let layers = parsed.key.layers;
        prop_assert!(usize::from(parsed.l3_offset) <= frame.len());
        prop_assert!(usize::from(parsed.l4_offset) <= frame.len());
        prop_assert!(!layers.contains(Layers::IPV4 | Layers::IPV6));
        let transports = layers & (Layers::TCP | Layers::UDP | Layers::SCTP);
        prop_assert!(transports.iter().count() <= 1);
        prop_assert!(!transports.is_empty() || (parsed.key.src_port, parsed.key.dst_port) == (0, 0));
        prop_assert!(!layers.intersects(Layers::TCP | Layers::UDP) || layers.intersects(Layers::IPV4 | Layers::IPV6));
        prop_assert!(!layers.contains(Layers::LATER_FRAGMENT) || layers.contains(Layers::FRAGMENT));
        prop_assert_eq!(layers.intersects(Layers::TCP | Layers::UDP), parsed.l4_offset != 0);
        prop_assert_eq!(layers.contains(Layers::INNER_VLAN), parsed.key.inner_vlan_tpid != 0);
        prop_assert_eq!(FlowKey::of(&frame), parsed.key);
    }
}

/// An IPv6 packet of these extension headers, each with its number and its octets from the second on, and of
/// a last header with a number.
fn chain(headers: &[(u8, &[u8])], (last, segment): (u8, &[u8])) -> Parsed {
    let numbers: Vec<u8> = headers.iter().map(|(number, _)| *number).chain([last]).collect();
    let mut payload = Vec::new();
    for ((_, octets), next) in headers.iter().zip(&numbers[1..]) {
        payload.push(*next);
        payload.extend(*octets);
    }
    payload.extend(segment);
    parse(&v6().protocol(IpProtocol(numbers[0])).payload(&payload).build())
}

const EMPTY: &[u8] = &[0; 7];
const SYN: &[u8] = &[0x12, 0x34, 0, 22, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x02, 1, 1, 0, 0, 0, 0];
const PORTS: ExtendedKey =
    ExtendedKey { protocol: 6, src_port: 0x1234, dst_port: 22, tcp_flags: 2, icmp_type: 0, icmp_code: 0 };

/// A key that has only a protocol.
fn only(protocol: u8) -> ExtendedKey {
    ExtendedKey { protocol, ..ExtendedKey::default() }
}

#[test]
fn extension_headers_are_skipped_by_their_lengths() {
    // Authentication headers count words of four octets, without two of them; fragment headers have no
    // length.
    let (long, ah, atomic) = ([1; 15], [&[4][..], &[9; 22]].concat(), [255, 0, 0, 0, 0, 0, 7]);
    let parsed = chain(&[(0, EMPTY), (60, &long), (43, EMPTY), (51, &ah), (44, &atomic)], (6, SYN));
    assert_eq!((parsed.key.extended, parsed.key.protocol, parsed.anomaly), (PORTS, 0, None));
    assert_eq!(parsed.key.layers, Layers::IPV6 | Layers::EXTENDED_TCP);
    assert_eq!((parsed.key.src_port, parsed.key.tcp_flags, parsed.l4_offset), (0, 0, 0));
    let parsed = chain(&[(60, EMPTY)], (58, &[128, 3, 0, 0]));
    assert_eq!(parsed.key.extended, ExtendedKey { icmp_type: 128, icmp_code: 3, ..only(58) });
    assert_eq!(parsed.key.layers, Layers::IPV6 | Layers::EXTENDED_ICMPV6);
}

#[test]
fn other_headers_end_the_chain() {
    for last in [50, 59, 132, 135, 139, 140, 4, 41, 47, 1] {
        let parsed = chain(&[(0, EMPTY)], (last, SYN));
        assert_eq!((parsed.key.extended, parsed.key.layers), (only(last), Layers::IPV6));
        assert!(!chain(&[], (last, SYN)).key.has_extension_headers());
    }
    assert_eq!(chain(&[], (6, SYN)).key.extended, ExtendedKey::default());
}

#[test]
fn eight_extension_headers_are_read_and_no_more() {
    let headers = [(60, EMPTY); MAX_EXTENSION_HEADERS + 1];
    assert_eq!(chain(&headers[1..], (6, SYN)).key.extended, PORTS);
    let parsed = chain(&headers, (6, SYN));
    assert_eq!((parsed.key.extended, parsed.key.layers), (only(60), Layers::IPV6));
}

#[test]
fn truncated_extension_headers_are_the_protocol() {
    let frame = v6().extension(IpProtocol::HOP_BY_HOP).extension(IpProtocol::AH).tcp(1, 22, 2).build();
    for length in V6_L4..frame.len() {
        let key = parse(&frame[..length]).key;
        let protocol = if length < V6_L4 + 8 {
            0
        } else if length < V6_L4 + 16 {
            51
        } else {
            6
        };
        assert_eq!((key.extended, key.layers), (only(protocol), Layers::IPV6), "{length}");
    }
    // A header that is longer than the packet, and one that is longer than the payload but not than the
    // frame.
    for length in [4, 255] {
        assert_eq!(chain(&[(43, &[length, 0, 0, 0, 0, 0, 0])], (6, SYN)).key.extended, only(43));
    }
    let key = damaged(&v6().extension(IpProtocol::ROUTING).tcp(1, 22, 2), &[(18, 0), (19, 27)]).key;
    assert_eq!((key.extended, key.layers), (only(6), Layers::IPV6));
}

#[test]
fn first_fragments_have_ports_behind_their_header_and_later_ones_a_protocol() {
    let (first, later) = ([0, 0, 1, 0, 0, 0, 7], [0, 0, 8, 0, 0, 0, 7]);
    assert_eq!(chain(&[(60, EMPTY), (44, &first), (60, EMPTY)], (6, SYN)).key.extended, PORTS);
    assert_eq!(chain(&[(60, EMPTY), (44, &later)], (6, SYN)).key.extended, only(6));
    // What a later fragment begins with is not the header that its number announces.
    assert_eq!(chain(&[(44, &later), (60, EMPTY)], (6, SYN)).key.extended, only(60));
    // A datagram may be longer than its first fragment.
    let key = damaged(&v6().fragment(0, true).udp(1, 53), &[(V6_L4 + 12, 9)]).key;
    assert_eq!(
        (key.extended.dst_port, key.layers),
        (53, Layers::IPV6 | Layers::FRAGMENT | Layers::EXTENDED_UDP)
    );
}

#[test]
fn extension_headers_inside_tunnels_are_not_skipped() {
    let inside = v6().extension(IpProtocol::HOP_BY_HOP).tcp(1, 22, 2);
    for outer in [v4().vxlan(7, &inside.build()), v4().ip_in_ip(&inside.build_packet())] {
        let key = crate::DeepKey::of(&outer.build());
        let inner = key.tunnel.inner;
        assert_eq!((inner.layers, inner.extended), (Layers::IPV6, ExtendedKey::default()));
        let text = key.describe();
        assert!(text.contains("protocol=hop_by_hop") && !text.contains("ext_"), "{text}");
    }
}

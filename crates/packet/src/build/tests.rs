//! A parsed frame has the fields that the builder was given.

use proptest::prelude::*;

use super::*;
use crate::checksum::ChecksumStatus;
use crate::parse;

fn v4(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, last)
}

fn v6(last: u16) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last)
}

#[test]
fn a_udp_frame_has_these_bytes() {
    let frame = FrameBuilder::new().ipv4(v4(1), v4(2)).udp(0x1122, 53).ip_flags(2).payload(b"hi!").build();
    let expected: &[u8] = &[
        2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00, // Ethernet
        0x45, 0, 0, 31, 0, 0, 0x40, 0, 64, 17, 0xb6, 0xca, 192, 0, 2, 1, 192, 0, 2, 2, // IPv4
        0x11, 0x22, 0, 53, 0, 11, 0xe1, 0x13, b'h', b'i', b'!', // UDP
    ];
    assert_eq!(frame, expected);
}

#[test]
fn an_arp_request_is_read_as_arp() {
    let frame = FrameBuilder::new().arp_request(v4(1), v4(9)).frame_bytes(60).build();
    assert_eq!(frame.len(), 60);
    assert_eq!(parse(&frame).key.ether_type, EtherType::ARP.0);
    assert_eq!(frame[38..42], [192, 0, 2, 9]);
}

#[test]
fn sizes_lengthen_the_payload_and_never_cut_headers() {
    let udp = FrameBuilder::new().ipv6(v6(1), v6(2)).udp(1, 2);
    assert_eq!(udp.clone().frame_bytes(1518).build().len(), 1518);
    assert_eq!(udp.clone().frame_bytes(10).build().len(), 14 + 40 + 8);
    assert_eq!(udp.clone().frame_bytes(80).payload(&[7; 40]).build().len(), 14 + 40 + 8 + 40);
    let longest = udp.frame_bytes(1 << 20).build();
    assert_eq!(longest.len(), 14 + MAX_PACKET_BYTES);
    assert_eq!(parse(&longest).anomaly, None);
}

#[test]
fn later_fragments_have_no_transport_header() {
    for (frame, ip_bytes) in [
        (FrameBuilder::new().ipv4(v4(1), v4(2)).fragment(3, true).udp(1, 2).payload(&[9; 8]).build(), 20),
        (FrameBuilder::new().ipv6(v6(1), v6(2)).fragment(3, true).udp(1, 2).payload(&[9; 8]).build(), 48),
    ] {
        assert_eq!(frame.len(), 14 + ip_bytes + 8);
        let parsed = parse(&frame);
        assert_eq!(parsed.anomaly, None);
        assert!(parsed.key.layers.contains(Layers::FRAGMENT | Layers::LATER_FRAGMENT));
        assert!(!parsed.key.layers.intersects(Layers::UDP));
    }
}

#[test]
fn echo_requests_carry_their_familys_checksum() {
    let frame = FrameBuilder::new().ipv4(v4(1), v4(2)).icmp_echo(7, 1).payload(b"abc").build();
    assert_eq!(parse(&frame).key.protocol, IpProtocol::ICMP.0);
    assert_eq!(checksum::ipv4_header(&frame[34..]), 0);
    let frame = FrameBuilder::new().ipv6(v6(1), v6(2)).icmp_echo(7, 1).payload(b"abc").build();
    assert_eq!(parse(&frame).key.protocol, IpProtocol::ICMPV6.0);
    assert_eq!(checksum::l4(v6(1).into(), v6(2).into(), IpProtocol::ICMPV6, &frame[54..]), 0);
}

#[test]
fn sctp_packets_have_ports_and_a_checksum() {
    let frame = FrameBuilder::new().ipv4(v4(1), v4(2)).sctp(2905, 36412).payload(b"abcd").build();
    let key = FlowKey::of(&frame);
    assert_eq!((key.layers, key.src_port, key.dst_port), (Layers::IPV4 | Layers::SCTP, 2905, 36412));
    let mut packet = frame[34..].to_vec();
    let sent = [packet[8], packet[9], packet[10], packet[11]];
    packet[8..12].fill(0);
    assert_eq!(sent, crc32c::crc32c(&packet).to_le_bytes());
    let set = FrameBuilder::new().ipv4(v4(1), v4(2)).sctp(0, 0).payload(b"abcd");
    let set = set.set(Field::SctpSrcPort, 2905).set(Field::SctpDstPort, 36412).set(Field::DstPort, 80);
    assert_eq!(set.build(), frame);
}

#[test]
fn checksums_are_right_where_no_parse_finds_them() {
    let tag = |builder: FrameBuilder| builder.vlan(EtherType::VLAN, 1);
    let udp = FrameBuilder::new().ipv4(v4(1), v4(2)).udp(1, 2).payload(b"abc");
    let thrice = tag(tag(tag(udp.clone()))).build();
    assert_eq!(checksum::ipv4_header(&thrice[26..46]), 0);
    assert_eq!(thrice[26..], udp.build()[14..]);
    let first = FrameBuilder::new().ipv6(v6(1), v6(2)).fragment(0, true).tcp(1, 2, 2).build();
    assert_eq!(checksum::l4(v6(1).into(), v6(2).into(), IpProtocol::TCP, &first[62..]), 0);
}

#[test]
fn what_has_no_room_in_its_field_is_cut() {
    let wide = FrameBuilder::new().ipv6(v6(1), v6(2)).tos(0x5a).flow_label(u32::MAX).udp(1, 2);
    assert_eq!(wide.build()[14..18], [0x65, 0xaf, 0xff, 0xff]);
    let flags = FrameBuilder::new().ipv4(v4(1), v4(2)).ip_flags(0xfe).udp(1, 2);
    assert_eq!(flags.build()[20..22], [0xc0, 0x00]);
    let offset = FrameBuilder::new().ipv4(v4(1), v4(2)).fragment(0xffff, false).udp(1, 2);
    assert_eq!(offset.build()[20..22], [0x1f, 0xff]);
    let options = FrameBuilder::new().ipv4(v4(1), v4(2)).ip_options(&[1; 99]).udp(1, 2);
    assert_eq!((options.build()[14], options.build().len()), (0x4f, 14 + 60 + 8));
}

#[test]
fn mixed_families_become_mapped_addresses() {
    let frame = FrameBuilder::new().ip(v4(1).into(), v6(2).into()).udp(1, 2).build();
    let key = parse(&frame).key;
    assert_eq!(key.src_addr(), Some(v4(1).to_ipv6_mapped().into()));
    assert_eq!(key.dst_addr(), Some(v6(2).into()));
}

#[derive(Clone, Debug)]
struct Description {
    tags: Vec<(EtherType, u16)>,
    addresses: (IpAddr, IpAddr),
    tos: u8,
    ttl: u8,
    ip_flags: u8,
    flow_label: u32,
    options: usize,
    tcp_flags: Option<u8>,
    ports: (u16, u16),
    payload: Vec<u8>,
}

fn description() -> impl Strategy<Value = Description> {
    let tpid = prop_oneof![Just(EtherType::VLAN), Just(EtherType::SVLAN), Just(EtherType::QINQ)];
    let addresses = prop_oneof![
        any::<([u8; 4], [u8; 4])>().prop_map(|(src, dst)| (IpAddr::from(src), IpAddr::from(dst))),
        any::<([u8; 16], [u8; 16])>().prop_map(|(src, dst)| (IpAddr::from(src), IpAddr::from(dst))),
    ];
    let network = (addresses, any::<u8>(), any::<u8>(), 0..8_u8, 0..1_u32 << 20, 0..=MAX_IP_OPTION_BYTES);
    let transport =
        (any::<Option<u8>>(), any::<(u16, u16)>(), proptest::collection::vec(any::<u8>(), 0..200));
    (proptest::collection::vec((tpid, any::<u16>()), 0..=2), network, transport).prop_map(
        |(tags, (addresses, tos, ttl, ip_flags, flow_label, options), (tcp_flags, ports, payload))| {
            Description {
                tags,
                addresses,
                tos,
                ttl,
                // More fragments would make this a fragment.
                ip_flags: ip_flags & 6,
                flow_label,
                options,
                tcp_flags,
                ports,
                payload,
            }
        },
    )
}

fn built(described: &Description) -> Vec<u8> {
    let builder = described.tags.iter().fold(FrameBuilder::new(), |builder, tag| builder.vlan(tag.0, tag.1));
    let builder = builder
        .ip(described.addresses.0, described.addresses.1)
        .tos(described.tos)
        .ttl(described.ttl)
        .ip_flags(described.ip_flags)
        .flow_label(described.flow_label)
        .ip_options(&vec![1; described.options])
        .payload(&described.payload);
    let (src, dst) = described.ports;
    match described.tcp_flags {
        Some(flags) => builder.tcp(src, dst, flags).build(),
        None => builder.udp(src, dst).build(),
    }
}

proptest! {
    #[test]
    fn built_frames_parse_to_their_description(described in description()) {
        let frame = built(&described);
        let parsed = parse(&frame);
        let key = parsed.key;
        let is_v4 = described.addresses.0.is_ipv4();
        prop_assert_eq!(parsed.anomaly, None);
        prop_assert_eq!(key.src_mac, MacAddr([2, 0, 0, 0, 0, 1]));
        prop_assert_eq!(key.dst_mac, MacAddr([2, 0, 0, 0, 0, 2]));
        let outer = described.tags.first().copied().unwrap_or_default();
        let inner = described.tags.get(1).copied().unwrap_or_default();
        prop_assert_eq!((EtherType(key.vlan_tpid), key.vlan_tci), outer);
        prop_assert_eq!((EtherType(key.inner_vlan_tpid), key.inner_vlan_tci), inner);
        prop_assert_eq!((key.src_addr(), key.dst_addr()), (Some(described.addresses.0), Some(described.addresses.1)));
        prop_assert_eq!((key.tos, key.ttl), (described.tos, described.ttl));
        prop_assert_eq!(key.ip_flags, if is_v4 { described.ip_flags } else { 0 });
        prop_assert_eq!(key.flow_label, if is_v4 { 0 } else { described.flow_label });
        prop_assert_eq!((key.src_port, key.dst_port), described.ports);
        prop_assert_eq!(key.tcp_flags, described.tcp_flags.unwrap_or(0));
        let mut layers = if is_v4 { Layers::IPV4 } else { Layers::IPV6 };
        layers |= if described.tcp_flags.is_some() { Layers::TCP } else { Layers::UDP };
        layers.set(Layers::VLAN, !described.tags.is_empty());
        layers.set(Layers::INNER_VLAN, described.tags.len() == 2);
        layers.set(Layers::IP_OPTIONS, is_v4 && described.options > 0);
        prop_assert_eq!(key.layers, layers);
        prop_assert_eq!(usize::from(parsed.l3_offset), 14 + 4 * described.tags.len());
        prop_assert_eq!(frame.len() - usize::from(parsed.l4_offset),
            described.payload.len() + if described.tcp_flags.is_some() { 20 } else { 8 });
        prop_assert_eq!(checksum::verify_ip(&frame, &parsed), if is_v4 { ChecksumStatus::Good } else { ChecksumStatus::Absent });
        prop_assert_eq!(checksum::verify_l4(&frame, &parsed), ChecksumStatus::Good);
    }

    /// A truncated frame lacks only the layers that were cut off.
    #[test]
    fn every_truncation_parses_to_no_more_than_the_whole(described in description()) {
        let frame = built(&described);
        let whole = parse(&frame);
        for length in 0..frame.len() {
            let cut = parse(&frame[..length]);
            prop_assert!(cut.anomaly.is_some(), "{} of {} bytes have no anomaly", length, frame.len());
            prop_assert!(whole.key.layers.contains(cut.key.layers));
            prop_assert!(cut.l4_offset == 0 || cut.l4_offset == whole.l4_offset);
            if cut.key.layers == whole.key.layers {
                prop_assert_eq!(cut.key, whole.key);
            }
            let _ = checksum::verify_ip(&frame[..length], &cut);
            prop_assert_ne!(checksum::verify_l4(&frame[..length], &cut), ChecksumStatus::Bad);
        }
    }
}

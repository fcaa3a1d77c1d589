//! Splitting as the opposite of merging: a large packet is built, split, and put together again.

use proptest::prelude::*;

use super::*;
use crate::build::FrameBuilder;
use crate::checksum::{ChecksumStatus, verify_ip, verify_l4};
use crate::{EtherType, FlowKey, parse, parse_tunnel};

/// A frame for segments of up to 1514 bytes: what an interface with an MTU of 1500 receives.
const LONGEST: usize = 1514 + 8;
/// FIN, PSH, ACK and CWR.
const FLAGS: u8 = 0x01 | 0x08 | 0x10 | 0x80;

fn split(frame: &[u8], merged: &Merged) -> Result<Vec<Vec<u8>>, Unsplittable> {
    let split = Split::of(frame, merged, LONGEST)?;
    let mut to = [0; LONGEST];
    let write = |index| {
        let bytes = split.write(frame, index, &mut to);
        to[..bytes].to_vec()
    };
    Ok((0..split.segments()).map(write).collect())
}

fn tcp(segment_bytes: u16) -> Merged {
    Merged { kind: TCP_V4, segment_bytes, stream_at: None }
}

fn udp(segment_bytes: u16) -> Merged {
    Merged { kind: UDP_L4, ..tcp(segment_bytes) }
}

/// A payload without repetition, so that a wrong offset shows.
fn payload(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at.wrapping_mul(0x9e37_79b1) >> 16) as u8).collect()
}

fn v4() -> FrameBuilder {
    FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into())
}

fn v6() -> FrameBuilder {
    let address = |last| std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last);
    FrameBuilder::new().ipv6(address(1), address(2))
}

fn half(frame: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

/// Both checksums, of the outermost packet.
fn checksums(frame: &[u8]) -> (ChecksumStatus, ChecksumStatus) {
    let parsed = parse(frame);
    (verify_ip(frame, &parsed), verify_l4(frame, &parsed))
}

#[test]
fn tcp_over_ipv4_is_split_as_the_sender_would_have() {
    let mut merged = v4().tcp(1, 2, FLAGS).payload(&payload(1000)).build();
    merged[18..20].copy_from_slice(&0xffff_u16.to_be_bytes());
    merged[38..42].copy_from_slice(&(u32::MAX - 299).to_be_bytes());
    let segments = split(&merged, &tcp(300)).unwrap();
    let lengths: Vec<usize> = segments.iter().map(Vec::len).collect();
    assert_eq!(lengths, [354, 354, 354, 154]);
    let ids: Vec<u16> = segments.iter().map(|segment| half(segment, 18)).collect();
    assert_eq!(ids, [0xffff, 0, 1, 2], "wraps");
    let sequence = |segment: &Vec<u8>| u32::from_be_bytes(segment[38..42].try_into().unwrap());
    let sequences: Vec<u32> = segments.iter().map(sequence).collect();
    assert_eq!(sequences, [u32::MAX - 299, 0, 300, 600], "wraps");
    let flags: Vec<u8> = segments.iter().map(|segment| segment[47]).collect();
    assert_eq!(flags, [0x90, 0x10, 0x10, 0x19], "CWR on the first, FIN and PSH on the last");
    for segment in &segments {
        assert_eq!(usize::from(half(segment, 16)), segment.len() - 14);
        assert_eq!(checksums(segment), (ChecksumStatus::Good, ChecksumStatus::Good));
        assert_eq!(FlowKey::of(segment), FlowKey { tcp_flags: segment[47], ..FlowKey::of(&merged) });
    }
}

#[test]
fn udp_is_split_into_datagrams() {
    for (builder, udp_at) in [(v4(), 34), (v6(), 54)] {
        let merged = builder.udp(1, 2).payload(&payload(2500)).build();
        let segments = split(&merged, &udp(1000)).unwrap();
        let lengths: Vec<u16> = segments.iter().map(|segment| half(segment, udp_at + 4)).collect();
        assert_eq!(lengths, [1008, 1008, 508]);
        let together: Vec<u8> = segments.iter().flat_map(|segment| segment[udp_at + 8..].to_vec()).collect();
        assert_eq!(together, payload(2500));
        assert!(segments.iter().all(|segment| checksums(segment).1 == ChecksumStatus::Good));
    }
    let mut unchecked = v4().udp(1, 2).payload(&payload(100)).build();
    unchecked[40..42].fill(0);
    let segments = split(&unchecked, &udp(60)).unwrap();
    assert!(
        segments.iter().all(|segment| half(segment, 40) == 0),
        "a checksum that was not sent is not made"
    );
}

#[test]
fn streams_in_tunnels_are_split_with_their_outer_headers() {
    let inner = v4().tcp(1, 2, FLAGS).payload(&payload(1000));
    let (whole, packet) = (inner.build(), inner.build_packet());
    let tunnels = [
        ("VXLAN", v4().vxlan(7, &whole)),
        ("VXLAN over IPv6", v6().vxlan(7, &whole)),
        ("GRE", v4().gre(EtherType(0x0800), None, &packet)),
        ("GRE with a key, bridged", v6().gre(EtherType(0x6558), Some(9), &whole)),
        ("IP in IP", v4().ip_in_ip(&packet)),
    ];
    for (name, tunnel) in tunnels {
        let merged = tunnel.build();
        let segments = split(&merged, &tcp(300)).expect(name);
        let headers = merged.len() - 1000;
        let together: Vec<u8> = segments.iter().flat_map(|segment| segment[headers..].to_vec()).collect();
        assert_eq!(together, payload(1000), "{name}");
        for segment in &segments {
            let (ip, udp) = checksums(segment);
            assert!(ip != ChecksumStatus::Bad && udp != ChecksumStatus::Bad, "{name}");
            let tunnel = parse_tunnel(segment, &parse(segment));
            assert_eq!(tunnel, {
                let mut whole = parse_tunnel(&merged, &parse(&merged));
                whole.inner.tcp_flags = tunnel.inner.tcp_flags;
                whole
            });
            // The packet inside, as a frame of its own.
            let start = headers - 40;
            let alone = [&whole[..14], &segment[start..]].concat();
            assert_eq!(checksums(&alone), (ChecksumStatus::Good, ChecksumStatus::Good), "{name}");
            assert_eq!(usize::from(half(&alone, 16)), alone.len() - 14, "{name}");
        }
    }
}

/// Where the header of the stream is, if the last `payload_bytes` are what a TCP header of 20 bytes is
/// before.
fn named(merged: &[u8], payload_bytes: usize, segment_bytes: u16) -> Merged {
    Merged { stream_at: Some(merged.len() - payload_bytes - 20), ..tcp(segment_bytes) }
}

/// Every checksum and length from the outside to the inside: `starts` are the offsets of the IP headers.
fn are_right(segment: &[u8], starts: &[usize]) {
    for start in starts {
        let ether_type = if segment[*start] >> 4 == 4 { [0x08, 0x00] } else { [0x86, 0xdd] };
        let alone = [&[2; 12][..], &ether_type, &segment[*start..]].concat();
        let (ip, l4) = checksums(&alone);
        assert!(ip != ChecksumStatus::Bad && l4 != ChecksumStatus::Bad, "at {start}: {ip:?} {l4:?}");
        let covered = if ether_type == [0x08, 0x00] { half(&alone, 16) } else { half(&alone, 18) + 40 };
        assert_eq!(usize::from(covered), alone.len() - 14, "the length at {start}");
    }
}

/// The offload header names the place of the stream, so that the port of the tunnel need not be known.
#[test]
fn tunnels_on_any_port_are_split_where_the_stream_is_named() {
    let inner = v4().tcp(1, 2, FLAGS).payload(&payload(1000));
    let (whole, packet) = (inner.build(), inner.build_packet());
    let mut other_port = v4().vxlan(7, &whole).build();
    other_port[36..38].copy_from_slice(&8472u16.to_be_bytes());
    other_port[40..42].fill(0);
    // Geneve with three words of options on a port of its own, with an outer checksum.
    let geneve = [&[3, 0, 0x65, 0x58, 0, 0, 7, 0][..], &[1; 12], &whole].concat();
    let geneve = v6().udp(5, 1234).payload(&geneve).build();
    // GRE with a checksum, which is that of the whole packet.
    let mut gre = [&[0x80, 0, 0x08, 0, 0, 0, 0, 0][..], &packet].concat();
    let sum = checksum::ipv4_header(&gre);
    gre[4..6].copy_from_slice(&sum.to_be_bytes());
    let gre = v4().protocol(IpProtocol::GRE).payload(&gre).build();
    let nested = v6().ip_in_ip(&v4().vxlan(9, &whole).build_packet()).build();
    // The destination address inside is as the start of an IPv6 header: version and length.
    let mut alike = v4().vxlan(7, &v6().tcp(1, 2, FLAGS).payload(&payload(1000)).build()).build();
    let covered = (alike.len() - 50 - 40) as u16;
    alike[50..54].copy_from_slice(&[0x62, 0, 0, 0]);
    alike[54..56].copy_from_slice(&covered.to_be_bytes());
    for (name, merged, starts) in [
        ("VXLAN with addresses like a header", alike, vec![14, 64]),
        ("VXLAN on 8472", other_port, vec![14, 64]),
        ("Geneve on 1234", geneve, vec![14, 96]),
        ("GRE with a checksum", gre, vec![14, 42]),
        ("VXLAN in IP in IP", nested, vec![14, 54, 104]),
    ] {
        let headers = merged.len() - 1000;
        let segments = split(&merged, &named(&merged, 1000, 300)).expect(name);
        let together: Vec<u8> = segments.iter().flat_map(|segment| segment[headers..].to_vec()).collect();
        assert_eq!(together, payload(1000), "{name}");
        for segment in &segments {
            are_right(segment, &starts);
            if name.starts_with("GRE") {
                assert_eq!(checksum::ipv4_header(&segment[34..]), 0, "{name}");
            }
        }
    }
}

/// The check value of CRC-32C (RFC 3720, B.4, and the catalogue of CRCs) shows which polynomial it is.
#[test]
fn the_checksum_of_sctp_is_completed() {
    assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
    let sctp = [&[0x30, 0x39, 0x00, 0x50, 1, 2, 3, 4, 0, 0, 0, 0][..], &payload(40)].concat();
    let whole = v4().protocol(IpProtocol(132)).payload(&sctp).build();
    let mut frame = whole.clone();
    frame[42..46].fill(0x55);
    let offload = Offload { merged: None, unfinished: Some((34, SCTP_CHECKSUM_AT)) };
    assert!(offload.complete_checksum(&mut frame));
    let mut expected = whole;
    let checksum = crc32c::crc32c(&expected[34..]);
    expected[42..46].copy_from_slice(&checksum.to_le_bytes());
    assert_eq!(frame, expected);
    assert!(!offload.complete_checksum(&mut frame[..45]), "cut in the field");
}

#[test]
fn what_cannot_be_split_is_refused() {
    let merged = v4().tcp(1, 2, FLAGS).payload(&payload(1000)).build();
    let of = |merged_as: &Merged| Split::of(&merged, merged_as, LONGEST).map(|split| split.segments());
    assert_eq!(of(&tcp(300)), Ok(4));
    assert_eq!(of(&Merged { kind: TCP_V4 | ECN, ..tcp(300) }), Ok(4));
    assert_eq!(of(&Merged { stream_at: Some(34), ..tcp(300) }), Ok(4));
    assert_eq!(of(&tcp(0)), Err(Unsplittable::Kind));
    assert_eq!(of(&Merged { kind: 3, ..tcp(300) }), Err(Unsplittable::Kind), "UDP fragments");
    assert_eq!(of(&udp(300)), Err(Unsplittable::Headers));
    assert_eq!(of(&Merged { stream_at: Some(38), ..tcp(300) }), Err(Unsplittable::Headers));
    let long = v4().tcp(1, 2, FLAGS).payload(&payload(2000)).build();
    assert_eq!(Split::of(&long, &tcp(1469), LONGEST).unwrap_err(), Unsplittable::SegmentTooLong);
    assert_eq!(Split::of(&long, &tcp(1468), LONGEST).unwrap().segments(), 2);
    let sequenced =
        v4().gre(EtherType(0x0800), None, &v4().tcp(1, 2, 0).payload(&payload(900)).build_packet());
    let mut sequenced = sequenced.build();
    sequenced[34] |= 0x10;
    assert_eq!(Split::of(&sequenced, &tcp(300), LONGEST).unwrap_err(), Unsplittable::Headers);
    let place = named(&sequenced, 900, 300);
    assert_eq!(Split::of(&sequenced, &place, LONGEST).unwrap_err(), Unsplittable::Headers);
    let inner = v4().tcp(1, 2, 0).payload(&payload(900)).build_packet();
    let deep = (0..4).fold(inner, |packet, _| v4().ip_in_ip(&packet).build_packet());
    let deep = [&merged[..14], &deep].concat();
    let refused = Split::of(&deep, &named(&deep, 900, 300), LONGEST);
    assert_eq!(refused.unwrap_err(), Unsplittable::Headers, "four tunnels");
    let mut unknown = v4().vxlan(7, &merged).build();
    unknown[36..38].copy_from_slice(&8472u16.to_be_bytes());
    assert_eq!(Split::of(&unknown, &tcp(300), LONGEST).unwrap_err(), Unsplittable::Headers, "not named");
}

/// A large packet of a stream and how it was merged.
fn merged() -> impl Strategy<Value = (Vec<u8>, Merged, usize)> {
    let header = (any::<bool>(), any::<bool>(), 0..3usize, 0..=10usize);
    (header, 0..=30_000usize, 1..=1400u16, any::<u16>(), any::<u8>()).prop_map(
        |((is_v4, is_tcp, tags, option_words), bytes, segment_bytes, ports, flags)| {
            let tagged = |builder: FrameBuilder| (0..tags).fold(builder, |b, _| b.vlan(EtherType::VLAN, 5));
            let options = vec![1; option_words * 4];
            let network = if is_v4 { v4().ip_options(&options) } else { v6() };
            let l4 = 14 + 4 * tags + if is_v4 { 20 + options.len() } else { 40 };
            let builder = tagged(network);
            let (builder, kind, header_bytes) = if is_tcp {
                (builder.tcp(ports, !ports, flags), if is_v4 { TCP_V4 } else { TCP_V6 }, 20)
            } else {
                (builder.udp(ports, !ports), UDP_L4, 8)
            };
            let frame = builder.payload(&payload(bytes)).build();
            (frame, Merged { kind, segment_bytes, stream_at: Some(l4) }, l4 + header_bytes)
        },
    )
}

proptest! {
    /// The segments put together are the stream, each has right checksums and the flow of the merged frame,
    /// all but the last have the stated payload, and none is longer than it may be.
    #[test]
    fn segments_together_are_the_stream((frame, merged, headers) in merged()) {
        let segments = split(&frame, &merged).expect("can be split");
        let size = usize::from(merged.segment_bytes);
        prop_assert_eq!(segments.len(), (frame.len() - headers).div_ceil(size).max(1));
        let mut together = Vec::new();
        for (index, segment) in segments.iter().enumerate() {
            let payload = &segment[headers..];
            let last = index + 1 == segments.len();
            prop_assert!(payload.len() == size || last && payload.len() <= size);
            let (ip, l4) = checksums(segment);
            prop_assert!(ip != ChecksumStatus::Bad && l4 == ChecksumStatus::Good, "segment {}: {:?}, {:?}", index, ip, l4);
            let (mut key, whole) = (FlowKey::of(segment), FlowKey::of(&frame));
            key.tcp_flags = whole.tcp_flags;
            prop_assert_eq!(key, whole);
            if merged.kind != UDP_L4 {
                let sequence = |frame: &[u8]| {
                    u32::from_be_bytes(frame[headers - 16..headers - 12].try_into().expect("4 bytes"))
                };
                prop_assert_eq!(sequence(segment), sequence(&frame).wrapping_add(together.len() as u32));
            }
            together.extend_from_slice(payload);
        }
        prop_assert_eq!(&together[..], &frame[headers..]);
    }

    /// Whatever the kernel, or a sender with the capability for it, states about whatever bytes.
    #[test]
    fn any_offload_header_with_any_frame_is_harmless(
        (mut frame, right, _) in merged(),
        spoilt in proptest::collection::vec((0..120usize, any::<u8>()), 0..8),
        kind in prop_oneof![Just(TCP_V4), Just(TCP_V6), Just(UDP_L4), any::<u8>()],
        segment_bytes in any::<u16>(),
        stream_at in proptest::option::of(any::<u16>().prop_map(usize::from)),
        is_right in any::<(bool, bool)>(),
        kept in 0..=30_000usize,
    ) {
        frame.truncate(kept);
        for (at, byte) in spoilt {
            if let Some(place) = frame.get_mut(at) {
                *place = byte;
            }
        }
        let merged = Merged {
            kind: if is_right.0 { right.kind } else { kind },
            segment_bytes: if is_right.0 { right.segment_bytes } else { segment_bytes },
            stream_at: if is_right.1 { right.stream_at } else { stream_at },
        };
        let Ok(split) = Split::of(&frame, &merged, LONGEST) else { return Ok(()) };
        let mut to = [0; LONGEST];
        // The first, some between, the last.
        let step = split.segments().div_ceil(50);
        for index in (0..split.segments()).step_by(step).chain([split.segments() - 1]) {
            let bytes = split.write(&frame, index, &mut to);
            prop_assert!(bytes <= LONGEST);
        }
    }
}

//! Checksums against a plain word-by-word sum, published examples, and damaged frames.

use proptest::prelude::*;

use super::*;
use crate::build::FrameBuilder;
use crate::parse;

/// RFC 1071, section 1, word by word.
fn slow(bytes: &[u8]) -> u16 {
    let mut sum = 0_u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[test]
fn the_example_of_rfc_1071_adds_up() {
    // Section 3: the sum of these bytes is ddf2.
    assert_eq!(ipv4_header(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
    assert_eq!(ipv4_header(&[]), 0xffff);
}

fn udp_frame(payload: &[u8]) -> Vec<u8> {
    FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).udp(7, 9).payload(payload).build()
}

#[test]
fn a_udp_checksum_of_zero_was_not_sent() {
    let mut frame = udp_frame(b"abc");
    frame[40..42].fill(0);
    assert_eq!(verify_l4(&frame, &parse(&frame)), ChecksumStatus::Absent);
}

#[test]
fn a_udp_checksum_that_comes_out_zero_is_sent_as_ones() {
    // Every payload word moves the sum, so that one of them makes it come out as zero.
    let frame = (0..=u16::MAX)
        .map(|word| udp_frame(&word.to_be_bytes()))
        .find(|frame| frame[40..42] == [0xff, 0xff])
        .expect("one payload gives a sum of zero");
    assert_eq!(verify_l4(&frame, &parse(&frame)), ChecksumStatus::Good);
}

#[test]
fn ethernet_padding_is_not_summed() {
    let mut frame = udp_frame(b"abc");
    frame.extend([0xa5; 15]);
    assert_eq!(verify_l4(&frame, &parse(&frame)), ChecksumStatus::Good);
}

#[test]
fn only_the_udp_length_is_summed() {
    let mut frame = udp_frame(b"ab");
    // Two bytes more in the IP packet, but behind the datagram.
    frame.extend([0xa5; 2]);
    frame[17] += 2;
    assert_eq!(verify_l4(&frame, &parse(&frame)), ChecksumStatus::Good);
    let right = frame[40..42].to_vec();
    frame[40..42].fill(0x11);
    let parsed = parse(&frame);
    fill(&mut frame, &parsed);
    assert_eq!(frame[40..42], right);
    assert_eq!(verify_ip(&frame, &parsed), ChecksumStatus::Good);
}

#[test]
fn a_udp_length_that_makes_no_sense_leaves_nothing_to_verify() {
    for length in [0, 1, 7, 12, 255] {
        let mut frame = udp_frame(b"abc");
        frame[39] = length;
        let (parsed, before) = (parse(&frame), frame.clone());
        assert_eq!(verify_l4(&frame, &parsed), ChecksumStatus::Absent, "length {length}");
        fill(&mut frame, &parsed);
        assert_eq!(frame, before);
    }
}

#[test]
fn fragments_are_filled_up_to_their_ip_header() {
    let mut first = FrameBuilder::new()
        .ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into())
        .fragment(0, true)
        .tcp(7, 9, 0x10)
        .payload(&[1; 16])
        .build();
    first[24..26].fill(0);
    first[50..52].fill(0x22);
    let parsed = parse(&first);
    fill(&mut first, &parsed);
    assert_eq!(verify_ip(&first, &parsed), ChecksumStatus::Good);
    assert_eq!(first[50..52], [0x22; 2]);
}

#[test]
fn segmentation_offload_frames_are_summed_to_their_end() {
    let mut frame =
        FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).tcp(7, 9, 0x10).build();
    frame[16..18].fill(0);
    let parsed = parse(&frame);
    assert_eq!(parsed.anomaly, None);
    assert_eq!(verify_l4(&frame, &parsed), ChecksumStatus::Good);
    assert_eq!(verify_ip(&frame, &parsed), ChecksumStatus::Bad);
}

#[test]
fn fragments_and_other_frames_have_nothing_to_verify() {
    let first = FrameBuilder::new()
        .ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into())
        .fragment(0, true)
        .udp(7, 9)
        .payload(&[1; 16])
        .build();
    assert_eq!(verify_ip(&first, &parse(&first)), ChecksumStatus::Good);
    assert_eq!(verify_l4(&first, &parse(&first)), ChecksumStatus::Absent);
    let arp = FrameBuilder::new().arp_request([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).build();
    assert_eq!(verify_ip(&arp, &parse(&arp)), ChecksumStatus::Absent);
    assert_eq!(verify_l4(&arp, &parse(&arp)), ChecksumStatus::Absent);
}

proptest! {
    #[test]
    fn sums_equal_the_word_by_word_sum(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        prop_assert_eq!(ipv4_header(&bytes), slow(&bytes));
    }

    /// A ones' complement sum catches every change of a single byte, except 0x00 for 0xff in company, which
    /// one flipped bit cannot be.
    #[test]
    fn one_flipped_bit_is_caught(payload in proptest::collection::vec(any::<u8>(), 1..64), at in any::<prop::sample::Index>(), bit in 0..8) {
        let mut frame = udp_frame(&payload);
        let at = 42 + at.index(payload.len());
        frame[at] ^= 1_u8 << bit;
        prop_assert_eq!(verify_l4(&frame, &parse(&frame)), ChecksumStatus::Bad);
        prop_assert_eq!(verify_ip(&frame, &parse(&frame)), ChecksumStatus::Good);
    }

    /// Against the plain sum over the pseudo-header and the segment.
    #[test]
    fn filling_replaces_whatever_stands_there(payload in proptest::collection::vec(any::<u8>(), 0..64), tcp in any::<bool>(), v6 in any::<bool>(), tags in 0..3_usize, stale in any::<[u8; 2]>(), padding in 0..9_usize) {
        let builder = (0..tags).fold(FrameBuilder::new(), |builder, _| builder.vlan(crate::EtherType::VLAN, 5));
        let builder = if v6 { builder.ipv6([1; 16].into(), [0xfe; 16].into()) } else { builder.ipv4([10, 0, 0, 1].into(), [10, 9, 8, 7].into()).ip_options(&[1; 4]) };
        let builder = if tcp { builder.tcp(7, 9, 2) } else { builder.udp(7, 9) };
        let mut frame = builder.payload(&payload).build();
        let end = frame.len();
        frame.resize(end + padding, 0xa5);
        let parsed = parse(&frame);
        let (l3, l4) = (usize::from(parsed.l3_offset), usize::from(parsed.l4_offset));
        let field = l4 + if tcp { 16 } else { 6 };
        frame[field..field + 2].copy_from_slice(&stale);
        if !v6 {
            frame[l3 + 10..l3 + 12].copy_from_slice(&stale);
        }
        fill(&mut frame, &parsed);
        let addresses = if v6 { l3 + 8..l3 + 40 } else { l3 + 12..l3 + 20 };
        let mut covered = frame[addresses].to_vec();
        covered.extend([0, if tcp { 6 } else { 17 }]);
        covered.extend(((end - l4) as u16).to_be_bytes());
        covered.extend(&frame[l4..end]);
        prop_assert_eq!(slow(&covered), 0);
        prop_assert!(v6 || slow(&frame[l3..l4]) == 0);
        prop_assert_eq!(verify_l4(&frame, &parsed), ChecksumStatus::Good);
    }

    #[test]
    fn neither_verifying_nor_filling_panics(mut frame in proptest::collection::vec(any::<u8>(), 0..128), v6 in any::<bool>()) {
        if frame.len() >= 15 {
            frame[12..15].copy_from_slice(if v6 { &[0x86, 0xdd, 0x60] } else { &[0x08, 0x00, 0x45] });
        }
        let parsed = parse(&frame);
        let _ = verify_ip(&frame, &parsed);
        let _ = verify_l4(&frame, &parsed);
        let half = frame.len() / 2;
        let _ = verify_l4(&frame[..half], &parsed);
        fill(&mut frame[..half], &parsed);
        fill(&mut frame, &parsed);
    }
}

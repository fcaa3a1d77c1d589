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
    assert_eq!(internet(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
    assert_eq!(internet(&[]), 0xffff);
}

fn udp_frame(payload: &[u8]) -> Vec<u8> {
    FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).udp(7, 9).payload(payload).build()
}

#[test]
fn a_udp_checksum_of_zero_was_not_sent() {
    let mut frame = udp_frame(b"abc");
    frame[40..42].fill(0);
    assert_eq!(verify_l4(&frame, &parse(&frame)), Check::Absent);
}

#[test]
fn a_udp_checksum_that_comes_out_zero_is_sent_as_ones() {
    // Every payload word moves the sum, so that one of them makes it come out as zero.
    let frame = (0..=u16::MAX)
        .map(|word| udp_frame(&word.to_be_bytes()))
        .find(|frame| frame[40..42] == [0xff, 0xff])
        .expect("one payload gives a sum of zero");
    assert_eq!(verify_l4(&frame, &parse(&frame)), Check::Good);
}

#[test]
fn ethernet_padding_is_not_summed() {
    let mut frame = udp_frame(b"abc");
    frame.extend([0xa5; 15]);
    assert_eq!(verify_l4(&frame, &parse(&frame)), Check::Good);
}

#[test]
fn segmentation_offload_frames_are_summed_to_their_end() {
    let mut frame =
        FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).tcp(7, 9, 0x10).build();
    frame[16..18].fill(0);
    let parsed = parse(&frame);
    assert_eq!(parsed.anomaly, None);
    assert_eq!(verify_l4(&frame, &parsed), Check::Good);
    assert_eq!(verify_ip(&frame, &parsed), Check::Bad);
}

#[test]
fn fragments_and_other_frames_have_nothing_to_verify() {
    let first = FrameBuilder::new()
        .ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into())
        .fragment(0, true)
        .udp(7, 9)
        .payload(&[1; 16])
        .build();
    assert_eq!(verify_ip(&first, &parse(&first)), Check::Good);
    assert_eq!(verify_l4(&first, &parse(&first)), Check::Absent);
    let arp = FrameBuilder::new().arp_request([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).build();
    assert_eq!(verify_ip(&arp, &parse(&arp)), Check::Absent);
    assert_eq!(verify_l4(&arp, &parse(&arp)), Check::Absent);
}

proptest! {
    #[test]
    fn sums_equal_the_word_by_word_sum(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        prop_assert_eq!(internet(&bytes), slow(&bytes));
    }

    /// A ones' complement sum catches every change of a single byte, except 0x00 for 0xff in company, which one
    /// flipped bit cannot be.
    #[test]
    fn one_flipped_bit_is_caught(payload in proptest::collection::vec(any::<u8>(), 1..64), at in any::<prop::sample::Index>(), bit in 0..8) {
        let mut frame = udp_frame(&payload);
        let at = 42 + at.index(payload.len());
        frame[at] ^= 1_u8 << bit;
        prop_assert_eq!(verify_l4(&frame, &parse(&frame)), Check::Bad);
        prop_assert_eq!(verify_ip(&frame, &parse(&frame)), Check::Good);
    }

    #[test]
    fn verifying_never_panics(mut frame in proptest::collection::vec(any::<u8>(), 0..128), v6 in any::<bool>()) {
        if frame.len() >= 15 {
            frame[12..15].copy_from_slice(if v6 { &[0x86, 0xdd, 0x60] } else { &[0x08, 0x00, 0x45] });
        }
        let parsed = parse(&frame);
        let _ = verify_ip(&frame, &parsed);
        let _ = verify_l4(&frame, &parsed);
        let _ = verify_l4(&frame[..frame.len() / 2], &parsed);
    }
}

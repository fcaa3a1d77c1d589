//! Each change on frames of all kinds, and on arbitrary bytes.

use std::net::IpAddr;

use proptest::prelude::*;

use super::*;
use crate::build::FrameBuilder;
use crate::checksum::{ChecksumStatus, ipv4_header, l4, verify_ip, verify_l4};
use crate::parse;

fn vlan(frame: &[u8]) -> Option<u16> {
    word(frame, MACS_BYTES + 2).filter(|_| is_tag(frame, MACS_BYTES)).map(|tci| tci & VLAN_ID)
}

/// The frame with a tag pushed, as a device gathers it.
fn push(frame: &[u8], vlan: u16) -> Vec<u8> {
    [&pushed_vlan(frame, vlan).expect("it has addresses")[..], &frame[MACS_BYTES..]].concat()
}

fn pop(mut frame: Vec<u8>) -> Vec<u8> {
    let start = pop_vlan(&mut frame);
    frame.split_off(start)
}

fn builder() -> FrameBuilder {
    FrameBuilder::new().ethernet(MacAddr([2, 0, 0, 0, 0, 2]), MacAddr([2, 0, 0, 0, 0, 1]))
}

fn v4() -> FrameBuilder {
    builder().ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into())
}

fn v6() -> FrameBuilder {
    builder().ipv6("fd00::1".parse().expect("an address"), "fd00::2".parse().expect("an address"))
}

#[test]
fn a_pushed_tag_keeps_the_priority_of_the_outer_one() {
    let plain = v4().udp(1, 2).build();
    let once = push(&plain, 100);
    assert_eq!((word(&once, 12), word(&once, 14)), (Some(0x8100), Some(100)));
    let mut urgent = once.clone();
    urgent[14] |= 0xe0;
    let twice = push(&urgent, 7);
    assert_eq!((word(&twice, 12), word(&twice, 14)), (Some(0x88a8), Some(0xe007)));
    assert_eq!([&plain, &once, &twice].map(|frame| ethernet_bytes(frame)), [14, 18, 22]);
    assert_eq!(pop(pop(twice)), plain);
    assert_eq!(pop(plain.clone()), plain, "there is none to remove");
}

#[test]
fn a_set_identifier_leaves_the_priority() {
    let mut frame = v4().vlan(EtherType::SVLAN, 0xb064).udp(1, 2).build();
    assert!(set_vlan(&mut frame, 4095));
    assert_eq!(word(&frame, 14), Some(0xbfff));
    assert!(!set_vlan(&mut v4().udp(1, 2).build(), 5), "there is no tag");
}

#[test]
fn a_reflected_packet_is_the_answer_with_right_checksums() {
    for frame in [v4().udp(1024, 53).build(), v6().udp(1024, 53).build(), v4().tcp(1024, 53, 2).build()] {
        for mut frame in [frame.clone(), push(&frame, 9)] {
            let before = parse(&frame).key;
            reflect(&mut frame);
            let parsed = parse(&frame);
            assert_eq!((parsed.key.src_mac, parsed.key.dst_mac), (before.dst_mac, before.src_mac));
            assert_eq!((parsed.key.src_ip, parsed.key.dst_ip), (before.dst_ip, before.src_ip));
            assert_eq!((parsed.key.src_port, parsed.key.dst_port), (53, 1024));
            assert_ne!(verify_ip(&frame, &parsed), ChecksumStatus::Bad);
            assert_eq!(verify_l4(&frame, &parsed), ChecksumStatus::Good);
        }
    }
}

#[test]
fn an_echo_request_becomes_the_reply() {
    let mut frame = v4().icmp_echo(7, 9).payload(b"abcdef").build();
    assert_eq!((frame[34], ipv4_header(&frame[34..])), (8, 0), "a right checksum sums up to nothing");
    reflect(&mut frame);
    assert_eq!((frame[34], ipv4_header(&frame[34..])), (0, 0));
    let reply = frame.clone();
    reflect(&mut frame);
    assert_eq!(frame[34], 0, "a reply stays one");
    assert_eq!(&frame[34..], &reply[34..]);

    let (src, dst): (IpAddr, IpAddr) = ("fd00::1".parse().expect("it"), "fd00::2".parse().expect("it"));
    let mut message = [128, 0, 0, 0, 1, 2, 3, 4];
    let checksum = l4(src, dst, IpProtocol::ICMPV6, &message);
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    let mut frame = v6().protocol(IpProtocol::ICMPV6).payload(&message).build();
    frame[54..62].copy_from_slice(&message);
    reflect(&mut frame);
    let answer: &mut [u8] = &mut frame[54..62];
    assert_eq!(answer[0], 129);
    let sent = [answer[2], answer[3]];
    answer[2..4].fill(0);
    assert_eq!(l4(dst, src, IpProtocol::ICMPV6, answer).to_be_bytes(), sent);
}

#[test]
fn ports_of_later_fragments_stay() {
    let mut frame = v4().udp(1, 2).fragment(64, false).payload(&[1, 2, 3, 4]).build();
    let payload = frame[34..].to_vec();
    reflect(&mut frame);
    assert_eq!(frame[34..], payload);
    assert_eq!(frame[26..30], [10, 0, 0, 2]);
}

#[test]
fn a_changed_word_changes_the_checksum_as_a_new_sum_would() {
    for (old, new) in [(0x0800, 0), (0, 0xffff), (0xffff, 0), (0x1234, 0x4321)] {
        let sum = |word: u16| ipv4_header(&[&word.to_be_bytes()[..], &[0x45, 0x01, 0xff, 0xfe]].concat());
        let both = [replace_word(sum(old), old, new), sum(new)];
        // Both forms of zero are one value.
        assert!(both[0] == both[1] || both.iter().all(|sum| [0, 0xffff].contains(sum)), "{both:x?}");
    }
}

fn frames() -> impl Strategy<Value = Vec<u8>> {
    let any_bytes = prop::collection::vec(any::<u8>(), 0..100);
    let addresses = (any::<[u8; 4]>(), any::<[u8; 4]>(), any::<u16>(), any::<u16>());
    let udp = (addresses, prop::collection::vec(any::<u8>(), 0..40), any::<Option<u16>>()).prop_map(
        |((src, dst, from, to), payload, tag)| {
            let frame = builder().ipv4(src.into(), dst.into()).udp(from, to).payload(&payload);
            tag.map_or(frame.clone(), |tci| frame.vlan(EtherType::VLAN, tci)).build()
        },
    );
    prop_oneof![any_bytes, udp]
}

proptest! {
    #[test]
    fn swapped_macs_are_those_of_the_other(frame in prop::collection::vec(any::<u8>(), 0..20)) {
        let mut changed = frame.clone();
        swap_macs(&mut changed);
        if frame.len() < MACS_BYTES {
            prop_assert_eq!(changed, frame);
        } else {
            prop_assert_eq!([&changed[6..12], &changed[..6], &changed[12..]].concat(), frame);
        }
    }

    #[test]
    fn a_pushed_tag_pops_to_the_same_frame(frame in frames(), id in 0u16..4096) {
        if frame.len() >= MACS_BYTES {
            let tagged = push(&frame, id);
            prop_assert_eq!(vlan(&tagged), Some(id));
            prop_assert_eq!(pop(tagged), frame);
        }
    }

    #[test]
    fn rewriting_back_gives_the_original(frame in frames()) {
        let mut changed = frame.clone();
        swap_macs(&mut changed);
        swap_macs(&mut changed);
        prop_assert_eq!(&changed, &frame);
        if let Some(id) = vlan(&frame) {
            set_vlan(&mut changed, id ^ 0x555);
            prop_assert_eq!(vlan(&changed), Some(id ^ 0x555));
            set_vlan(&mut changed, id);
            prop_assert_eq!(&changed, &frame);
        }
        // Only an echo request becomes something else.
        reflect(&mut changed);
        let once = changed.clone();
        reflect(&mut changed);
        reflect(&mut changed);
        prop_assert_eq!(changed, once);
    }

    #[test]
    fn checksums_stay_right(frame in frames()) {
        let checks = |frame: &[u8]| {
            let parsed = parse(frame);
            [verify_ip(frame, &parsed), verify_l4(frame, &parsed)]
        };
        let mut changed = frame.clone();
        let before = checks(&frame);
        reflect(&mut changed);
        if before.iter().all(|check| *check != ChecksumStatus::Bad) {
            prop_assert_eq!(checks(&changed), before);
        }
    }
}

//! What a policy's options ask of the interface. `steerd`'s tests (`kernel_sink.rs`) use real ones.

use packet::build::FrameBuilder;
use packet::checksum::{ChecksumStatus, verify_ip, verify_l4};
use packet::offload::{Merged, Offload, TCP_V4, TCP_V6};
use packet::{MacAddr, parse};

use super::back::{Back, Cutter};
use super::*;
use crate::sinks::outgoing::Filled;

const PORT: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

fn stations(mtu_bytes: Option<u32>) -> [Station; 2] {
    [
        Station { port: 1, mac: None, mtu_bytes: None, interface_index: None },
        Station { port: 2, mac: Some(PORT), mtu_bytes, interface_index: None },
    ]
}

#[test]
fn the_interface_gets_the_address_and_the_mtu_of_its_port() {
    let made = |options: &KernelSink, mtu_bytes| {
        let made = interface(options, 2, &stations(mtu_bytes)).expect("known").wanted();
        (made.mac, made.mtu)
    };
    let options = KernelSink::new("host0");
    assert_eq!(made(&options, Some(9000)), (Some(PORT), Some(9000)));
    assert_eq!(made(&options, None), (Some(PORT), None));
    assert_eq!(made(&options, Some(1 << 20)), (Some(PORT), Some(*KernelSink::MTU.end())));
    let keep = KernelSink { mac: TapMac::Keep, mtu: Some(1400), ..options.clone() };
    assert_eq!(made(&keep, Some(9000)), (None, Some(1400)));
    let other = MacAddr([2, 0, 0, 0, 0, 1]);
    let given = KernelSink { mac: TapMac::Address(other), ..options };
    assert_eq!(made(&given, None).0, Some(other));
}

#[test]
fn an_address_that_is_not_known_is_an_error_with_a_remedy() {
    let error = interface(&KernelSink::new("host0"), 1, &stations(None)).expect_err("no address");
    assert!(matches!(error, TapError::NoStation { port: 1 }), "{error:?}");
    assert!(error.to_string().contains("mac ="), "{error}");
    let keep = KernelSink { mac: TapMac::Keep, ..KernelSink::new("host0") };
    assert!(interface(&keep, 1, &stations(None)).is_ok());
}

/// The frames that the port is given for a frame of the host.
fn cut(cutter: &mut Cutter, offload: Offload, frame: &[u8]) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    let mut frame = Some(frame);
    loop {
        // A frame of the pool: more than the longest packet.
        let mut room = [0xee; 1600];
        let read = |room: &mut [u8], rest: &mut [u8]| {
            let frame = frame.take()?;
            let (first, second) = frame.split_at(room.len().min(frame.len()));
            room[..first.len()].copy_from_slice(first);
            rest[..second.len()].copy_from_slice(second);
            Some((offload, frame.len()))
        };
        match cutter.next(&mut room, read) {
            Filled::Packet(bytes) => packets.push(room[..bytes].to_vec()),
            Filled::Refused(bytes, SinkDrop::TooLong) => packets.push(vec![0; bytes]),
            Filled::Refused(_, reason) => panic!("{reason:?}"),
            Filled::Nothing => return packets,
        }
    }
}

fn is_right(packet: &[u8]) -> bool {
    let parsed = parse(packet);
    verify_l4(packet, &parsed) == ChecksumStatus::Good && verify_ip(packet, &parsed) != ChecksumStatus::Bad
}

#[test]
fn streams_of_the_host_are_cut_into_packets_of_the_mtu() {
    let mut cutter = Cutter::new(1500);
    let payload: Vec<u8> = (0..64_000usize).map(|at| (at * 7 + at / 251) as u8).collect();
    let v6 = |last| std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last);
    let v4 = FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    for (builder, kind, headers) in [(v4, TCP_V4, 54), (FrameBuilder::new().ipv6(v6(1), v6(2)), TCP_V6, 74)] {
        let frame = builder.tcp(1, 2, 0x18).payload(&payload).build();
        let segment_bytes = 1514 - headers as u16;
        let merged = Merged { kind, segment_bytes, stream_at: None };
        let offload = Offload { merged: Some(merged), unfinished: Some((headers - 20, 16)) };
        let packets = cut(&mut cutter, offload, &frame);
        assert_eq!(packets.len(), payload.len().div_ceil(usize::from(segment_bytes)));
        assert!(packets.iter().all(|packet| packet.len() <= 1514 && is_right(packet)));
        assert_eq!(
            packets.iter().flat_map(|packet| &packet[headers..]).copied().collect::<Vec<_>>(),
            payload
        );
        // Segments for a longer MTU than that of the port.
        let longer = Merged { segment_bytes: 9000, ..merged };
        let refused = cut(&mut cutter, Offload { merged: Some(longer), ..offload }, &frame);
        assert_eq!(refused.iter().map(Vec::len).collect::<Vec<_>>(), [frame.len()], "too long");
    }
}

#[test]
fn checksums_of_the_host_are_completed() {
    let mut cutter = Cutter::new(1500);
    let whole = FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).udp(5, 7);
    let whole = whole.payload(&[1, 2, 3, 4, 5]).build();
    // The host leaves the sum of the pseudo-header in the field.
    let mut unfinished = whole.clone();
    let pseudo: u16 = 0x0a00 + 1 + 0x0a00 + 2 + 17 + 13;
    unfinished[40..42].copy_from_slice(&pseudo.to_be_bytes());
    let offload = Offload { merged: None, unfinished: Some((34, 6)) };
    assert_eq!(cut(&mut cutter, offload, &unfinished), std::slice::from_ref(&whole));
    assert_eq!(cut(&mut cutter, Offload::default(), &whole), [whole]);
    let long = vec![0; 1700];
    assert_eq!(cut(&mut cutter, Offload::default(), &long), [long]);
}

/// A frame of 30 000 bytes of payload, as the host passes it.
fn merged_frame() -> (Offload, Vec<u8>) {
    let v4 = FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    let merged = Merged { kind: TCP_V4, segment_bytes: 1448, stream_at: Some(34) };
    let offload = Offload { merged: Some(merged), unfinished: None };
    (offload, v4.tcp(1, 2, 0x18).payload(&[7; 30_000]).build())
}

fn read_one(frame: &[u8], offload: Offload, room: &mut [u8], rest: &mut [u8]) -> Option<(Offload, usize)> {
    let (first, second) = frame.split_at(room.len().min(frame.len()));
    room[..first.len()].copy_from_slice(first);
    rest[..second.len()].copy_from_slice(second);
    Some((offload, frame.len()))
}

#[test]
fn a_merged_frame_that_cannot_be_split_is_malformed() {
    let (offload, frame) = merged_frame();
    let refused = |merged: Merged, frame: &[u8]| {
        let offload = Offload { merged: Some(merged), ..offload };
        let mut cutter = Cutter::new(1500);
        match cutter.next(&mut [0; 1600], |room, rest| read_one(frame, offload, room, rest)) {
            Filled::Refused(bytes, reason) if bytes == frame.len() => Some(reason),
            _ => None,
        }
    };
    let merged = offload.merged.expect("it is");
    assert_eq!(refused(Merged { kind: 3, ..merged }, &frame), Some(SinkDrop::Malformed), "UDP fragments");
    assert_eq!(refused(Merged { segment_bytes: 0, ..merged }, &frame), Some(SinkDrop::Malformed));
    assert_eq!(refused(merged, &[7; 3000]), Some(SinkDrop::Malformed), "no IP header");
    assert_eq!(refused(Merged { segment_bytes: 9000, ..merged }, &frame), Some(SinkDrop::TooLong));
    assert_eq!(refused(merged, &frame), None);
}

/// The sink is closed in the middle of a merged frame: its other segments are counted as well.
#[test]
fn what_is_left_of_a_merged_frame_at_the_end_is_counted() {
    let (nic, context) = crate::receiver::tests::nic("back0", 1500);
    let attributes = context.port(verbs::PortNumber(1)).expect("attributes");
    let mut back = Back::open(&context, 1, &attributes, 1500, "back").expect("it opens");
    let counters = Arc::clone(back.counters());
    let (offload, frame) = merged_frame();
    let Back { outgoing, cutter } = &mut back;
    for _ in 0..2 {
        let queued = outgoing
            .queue(None, |room| cutter.next(room, |room, rest| read_one(&frame, offload, room, rest)));
        assert!(queued.is_some_and(|queued| queued.dropped.is_none()));
    }
    outgoing.flush();
    while counters.read().delivered.packets < 2 {
        nic.pump(8);
        back.outgoing.reap();
    }
    drop(back);
    let traffic = counters.read();
    let segments = 30_000u64.div_ceil(1448);
    assert_eq!(traffic.in_flight(), 0, "{traffic:?}");
    assert_eq!(traffic.offered.packets, segments);
    assert_eq!(traffic.offered.bytes, segments * 54 + 30_000);
    assert_eq!(traffic.dropped[SinkDrop::Closed as usize].1, segments - 2);
}

#[test]
fn cutting_allocates_nothing() {
    let mut cutter = Cutter::new(1500);
    let (offload, frame) = merged_frame();
    let mut room = [0; 1600];
    let counted = allocation_counter::measure(|| {
        let first = cutter.next(&mut room, |room, rest| read_one(&frame, offload, room, rest));
        assert!(matches!(first, Filled::Packet(_)));
        while matches!(cutter.next(&mut room, |_, _| None), Filled::Packet(_)) {}
    });
    assert_eq!(counted.count_total, 0);
}

/// A queue that is seen once is one that this process closes; one that is gone is so at once.
#[test]
fn queues_of_others_are_reported_after_the_second_look() {
    let mut others = OtherQueues::default();
    let found = [1, 0, 2, 2, 1, 0, 0, 3, 3];
    let confirmed = found.map(|found| others.confirmed(|_| found));
    assert_eq!(confirmed, [0, 0, 0, 2, 1, 0, 0, 0, 3]);
}

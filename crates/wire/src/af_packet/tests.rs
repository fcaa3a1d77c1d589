//! Two wires at the two ends of a veth pair, in a network namespace that each test makes for its own thread.
//!
//! Needs CAP_SYS_ADMIN and CAP_NET_ADMIN: without them the tests say so and, in CI, fail.

mod link;

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use packet::FlowKey;
use packet::build::FrameBuilder;
use packet::checksum;
use packet::offload::OFFLOAD_HEADER_BYTES;
use rustix::thread::{
    CapabilitySet, CapabilitySets, UnshareFlags, capabilities, set_capabilities, unshare_unsafe,
};
use test_support::not_run;

use super::*;
use crate::Checksum;

/// How long a frame may take through a veth pair on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);

thread_local! {
    /// How wires of this test get their frames.
    static HAND_OVER: Cell<HandOver> = const { Cell::new(HandOver::Frames) };
}

/// Runs a test with each kind of ring, on a thread with a network namespace of its own, which goes away with
/// the thread.
fn in_namespace(name: &str, test: fn()) {
    for hand_over in [HandOver::Frames, HandOver::Blocks] {
        in_namespace_by(hand_over, name, test);
    }
}

fn in_namespace_by(hand_over: HandOver, name: &str, test: fn()) {
    let thread = std::thread::spawn(move || {
        HAND_OVER.set(hand_over);
        // SAFETY: only the network namespace is left; file descriptors stay shared.
        if let Err(error) = unsafe { unshare_unsafe(UnshareFlags::NEWNET) } {
            return Err(format!("a network namespace cannot be made: {error}"));
        }
        ip("link add left type veth peer name right")?;
        for end in ["left", "right"] {
            // Without an address of its own the kernel sends nothing over the pair.
            ip(&format!("link set {end} addrgenmode none"))?;
            ip(&format!("link set {end} up"))?;
        }
        until_running()?;
        test();
        Ok(())
    });
    match thread.join() {
        Ok(Ok(())) => {}
        Ok(Err(reason)) => {
            not_run(&format!("af_packet {name}"), &format!("it needs root and `ip`: {reason}"));
        }
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// The kernel takes note of a carrier a moment after it is there.
fn until_running() -> Result<(), String> {
    let start = Instant::now();
    while ["left", "right"].iter().any(|end| open(end).is_ok_and(|wire| wire.state() != WireState::Live)) {
        if start.elapsed() > PATIENCE {
            return Err("the veth pair gets no carrier".to_owned());
        }
    }
    Ok(())
}

fn ip(arguments: &str) -> Result<String, String> {
    let _forks = crate::tests::FORKING.read();
    crate::tests::ip(arguments)
}

fn config(interface: &str, merged: MergedFrames) -> AfPacketConfig {
    AfPacketConfig {
        interface: interface.to_owned(),
        promiscuous: true,
        ring_frames: 128,
        merged,
        hand_over: HAND_OVER.get(),
        busy_poll: false,
    }
}

fn open(interface: &str) -> Result<AfPacketWire, WireError> {
    AfPacketWire::open(&config(interface, MergedFrames::Split))
}

fn frame(number: u16, frame_bytes: usize) -> FrameBuilder {
    let builder = FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    builder.udp(number, 9).frame_bytes(frame_bytes)
}

/// The frames of one burst: bytes, length on the wire, time stamp, checksum.
fn burst(wire: &mut AfPacketWire) -> Vec<(Vec<u8>, u32, u64, Checksum)> {
    let mut burst = Burst::new();
    wire.receive(&mut burst);
    burst.iter().map(|f| (f.bytes.to_vec(), f.wire_len, f.timestamp_ns, f.checksum)).collect()
}

/// Bursts until this many frames are there.
fn receive(wire: &mut AfPacketWire, frames: usize) -> Vec<(Vec<u8>, u32, u64, Checksum)> {
    let start = Instant::now();
    let mut received = Vec::new();
    while received.len() < frames {
        received.extend(burst(wire));
        assert!(start.elapsed() < PATIENCE, "{} of {frames} frames", received.len());
    }
    received
}

fn send(wire: &mut AfPacketWire, frames: &[Vec<u8>]) {
    for frame in frames {
        wire.transmit(frame).unwrap();
    }
    wire.flush();
}

#[test]
fn frames_and_their_tags_pass_both_ways_and_own_frames_are_not_seen() {
    in_namespace("frames_and_their_tags", || {
        let (mut left, mut right) = (open("left").unwrap(), open("right").unwrap());
        assert_ne!(left.mac(), right.mac());
        assert_eq!(left.mtu_bytes(), 1500);
        let vlan = packet::EtherType::VLAN;
        // The kernel strips the outer tag of each into its auxiliary data.
        let frames: Vec<Vec<u8>> = vec![
            frame(1, 60).build(),
            frame(2, 1514).build(),
            frame(3, 64).vlan(vlan, 0x2064).build(),
            frame(4, 1518).vlan(vlan, 42).build(),
            frame(5, 64).vlan(packet::EtherType::SVLAN, 7).vlan(vlan, 0).build(),
            frame(6, 64).vlan(vlan, 0).build(),
        ];
        send(&mut left, &frames);
        let received = receive(&mut right, frames.len());
        for (expected, (bytes, wire_len, timestamp_ns, _)) in frames.iter().zip(&received) {
            assert_eq!(bytes, expected);
            assert_eq!(*wire_len as usize, expected.len());
            assert!(*timestamp_ns > 1_500_000_000_000_000_000);
        }
        send(&mut right, &frames[..1]);
        assert_eq!(receive(&mut left, 1)[0].0, frames[0], "the first frame that `left` sees is not its own");
        assert_eq!(
            (left.receive_counters().lost, right.receive_counters().lost, left.transmit_losses()),
            (0, 0, 0)
        );
    });
}

#[test]
fn taps_see_sent_frames() {
    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, eth, recv, socket_with};
    in_namespace("taps_see", || {
        let mut left = open("left").unwrap();
        let tap = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::NONBLOCK, Some(eth::ALL))
            .unwrap();
        let sent = frame(1, 60).build();
        send(&mut left, std::slice::from_ref(&sent));
        // A tap on everything sees the frame on its way out of `left` and on its way into `right`.
        let start = Instant::now();
        let mut seen = 0;
        while seen < 2 {
            let mut bytes = [0; 2048];
            let (len, _) = recv(&tap, &mut bytes[..], RecvFlags::empty()).unwrap_or_default();
            seen += u32::from(bytes[..len] == sent);
            assert!(start.elapsed() < PATIENCE, "seen {seen} times");
        }
    });
}

#[test]
fn the_ring_goes_round_many_times_without_loss_or_mixing() {
    in_namespace("the_ring_goes_round", || {
        let (mut left, mut right) = (open("left").unwrap(), open("right").unwrap());
        // A burst's slots stay taken until the next one, so at least 64 of the 128 are free.
        for round in 0..60u16 {
            let frames: Vec<Vec<u8>> =
                (0..61).map(|n| frame(round * 61 + n, 60 + usize::from(n)).build()).collect();
            send(&mut left, &frames);
            let received = receive(&mut right, frames.len());
            assert!(received.iter().map(|(bytes, ..)| bytes).eq(&frames), "round {round}");
        }
        assert_eq!(right.receive_counters().lost, 0);
    });
}

#[test]
fn frames_that_find_the_ring_full_are_counted_as_losses() {
    in_namespace("the_ring_full", || {
        let (mut left, mut right) = (open("left").unwrap(), open("right").unwrap());
        let frames: Vec<Vec<u8>> = (0..1000).map(|n| frame(n, 60).build()).collect();
        // 128 slots, or 64 blocks of 128 KiB.
        let rounds = if HAND_OVER.get() == HandOver::Frames { 1 } else { 90 };
        (0..rounds).for_each(|_| send(&mut left, &frames));
        let sent = rounds * 1000;
        let start = Instant::now();
        let mut received = 0;
        while received + right.receive_counters().lost < sent {
            received += burst(&mut right).len() as u64;
            assert!(
                start.elapsed() < PATIENCE,
                "{received} received, {} lost",
                right.receive_counters().lost
            );
        }
        assert_eq!(received + right.receive_counters().lost, sent);
        assert!(right.receive_counters().lost > 0, "the ring took {sent} frames");
    });
}

#[test]
fn frames_that_the_medium_refuses_are_sent_by_a_later_flush() {
    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
    // A packet socket that is full cannot be had at will; a pair of another family without space fails in the
    // same way.
    let (near, far) =
        socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::NONBLOCK, None).unwrap();
    let mut sender = Sender::new(1514);
    let mut pushed = 0u16;
    let mut flushed = Flushed::All;
    while flushed == Flushed::All {
        sender.push(&frame(pushed, 1514).build()).unwrap();
        pushed += 1;
        flushed = sender.flush(&near);
    }
    assert_eq!((flushed, sender.losses()), (Flushed::Waiting, 0));
    let mut bytes = [0; 2048];
    let mut next = || recv(&far, &mut bytes[..], RecvFlags::empty()).map(|(len, _)| bytes[..len].to_vec());
    for number in 0..pushed {
        // The first message makes room for the one that waits.
        let message = next().unwrap();
        assert_eq!(sender.flush(&near), Flushed::All);
        assert_eq!(message[..OFFLOAD_HEADER_BYTES], [0; OFFLOAD_HEADER_BYTES]);
        assert_eq!(message[OFFLOAD_HEADER_BYTES..], frame(number, 1514).build());
    }
    assert!(next().is_err());
    sender.push(&[0; 60]).unwrap();
    assert_eq!((sender.abandon(), sender.abandon(), sender.losses()), (1, 0, 1));
}

#[test]
fn closing_sends_queued_frames() {
    in_namespace("closing_sends", || {
        let (mut left, mut right) = (open("left").unwrap(), open("right").unwrap());
        let bytes = frame(1, 60).build();
        left.transmit(&bytes).unwrap();
        assert_eq!(burst(&mut right).len(), 0);
        drop(left);
        assert_eq!(receive(&mut right, 1)[0].0, bytes);
    });
}

#[test]
fn frames_beyond_the_mtu_are_whole() {
    in_namespace("frames_beyond_the_mtu", || {
        let mut right = open("right").unwrap();
        ip("link set left mtu 9000").unwrap();
        ip("link set right mtu 9000").unwrap();
        let mut left = open("left").unwrap();
        let jumbo = frame(1, 4000).build();
        send(&mut left, std::slice::from_ref(&jumbo));
        let (bytes, wire_len, ..) = receive(&mut right, 1).remove(0);
        assert_eq!((bytes, wire_len), (jumbo.clone(), 4000));
        assert!(right.met_long);

        let too_long = frame(1, 9015).build();
        assert_eq!(left.transmit(&too_long), Err(TransmitError::TooLong));
        assert_eq!(left.transmit(&[0; 13]), Err(TransmitError::TooShort));
        let mut jumbo_ready = open("right").unwrap();
        send(&mut left, std::slice::from_ref(&jumbo));
        assert_eq!(receive(&mut jumbo_ready, 1)[0].0, jumbo);
    });
}

/// Sends a frame with what a local sender leaves to offload: flags, kind of merging, header bytes, segment
/// bytes, and where the summed bytes start and where the checksum is (`virtio_net_hdr`).
fn send_offloaded(wire: &AfPacketWire, (flags, merging): (u8, u8), sizes: [u16; 4], frame: &[u8]) {
    let mut message = vec![flags, merging];
    sizes.iter().for_each(|size| message.extend(size.to_ne_bytes()));
    message.extend(frame);
    rustix::net::send(&wire.attached.receivers[FRAMES].socket, &message, rustix::net::SendFlags::empty())
        .unwrap();
}

#[test]
fn checksums_left_to_offload_are_completed() {
    in_namespace("checksums_left_to_offload", || {
        let (left, mut right) = (open("left").unwrap(), open("right").unwrap());
        ip("addr add 10.9.9.1/24 dev left").unwrap();
        ip("neigh add 10.9.9.2 lladdr 02:00:00:00:00:99 dev left").unwrap();
        let socket = UdpSocket::bind("10.9.9.1:0").unwrap();
        for payload in [100, 101] {
            socket.send_to(&[7; 200][..payload], "10.9.9.2:4000").unwrap();
            let (bytes, wire_len, _, state) = loop {
                let frame = receive(&mut right, 1).remove(0);
                if FlowKey::of(&frame.0).dst_port == 4000 {
                    break frame;
                }
            };
            let parsed = packet::parse(&bytes);
            assert_eq!(checksum::verify_l4(&bytes, &parsed), checksum::ChecksumStatus::Good);
            assert_eq!(checksum::verify_ip(&bytes, &parsed), checksum::ChecksumStatus::Good);
            assert_eq!((state, wire_len as usize), (Checksum::Unknown, bytes.len()));
        }
        // The kernel strips the tag, and counts from the start of the frame without it.
        let whole = frame(1, 100).vlan(packet::EtherType::VLAN, 7).build();
        let at = 18 + 20 + 6;
        let pseudo_header: u32 = 0x0a00 + 1 + 0x0a00 + 2 + 17 + (100 - 38);
        let mut unfinished = whole.clone();
        unfinished[at..at + 2].copy_from_slice(&(pseudo_header as u16).to_be_bytes());
        send_offloaded(&left, (1, 0), [0, 0, 38, 6], &unfinished);
        assert_eq!(receive(&mut right, 1)[0].0, whole);
    });
}

#[test]
fn the_checksum_of_sctp_is_completed() {
    in_namespace("the_checksum_of_sctp", || {
        let (left, mut right) = (open("left").unwrap(), open("right").unwrap());
        let addresses = FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let sctp = addresses.protocol(packet::IpProtocol::SCTP).frame_bytes(100).build();
        send_offloaded(&left, (1, 0), [0, 0, 34, 8], &sctp);
        let (bytes, _, _, state) = receive(&mut right, 1).remove(0);
        let mut completed = sctp.clone();
        // The CRC32c of 66 bytes of 0, by another implementation; the lowest byte first.
        completed[42..46].copy_from_slice(&[0x78, 0x9b, 0x29, 0x71]);
        assert_eq!((bytes, state), (completed, Checksum::Unknown));
    });
}

/// A TCP stream of so many bytes, as one frame.
fn stream(bytes: usize) -> Vec<u8> {
    let addresses = FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    let payload: Vec<u8> = (0..bytes).map(|at| (at >> 3) as u8).collect();
    addresses.tcp(1, 2, 0x18).payload(&payload).build()
}

const TCP_V4: u8 = 1;

/// Has a checksum, which is as good as an unfinished one where the bytes are split.
fn send_stream(wire: &AfPacketWire, frame: &[u8], segment_bytes: u16) {
    send_offloaded(wire, (1, TCP_V4), [54, segment_bytes, 34, 16], frame);
}

/// The payload of TCP segments whose checksums have to be right.
fn payload(frames: &[(Vec<u8>, u32, u64, Checksum)]) -> Vec<u8> {
    let mut together = Vec::new();
    for (bytes, wire_len, ..) in frames {
        let parsed = packet::parse(bytes);
        assert_eq!(checksum::verify_l4(bytes, &parsed), checksum::ChecksumStatus::Good);
        assert_eq!(checksum::verify_ip(bytes, &parsed), checksum::ChecksumStatus::Good);
        assert_eq!(*wire_len as usize, bytes.len());
        together.extend_from_slice(&bytes[54..]);
    }
    together
}

#[test]
fn merged_frames_are_split_in_order_with_the_others() {
    in_namespace("merged_frames_are_split", || {
        let (mut left, mut right) = (open("left").unwrap(), open("right").unwrap());
        // Two segments together are shorter than the MTU here: only what offload states tells them from one
        // frame. 450 segments of the last take several bursts, during which its slot is kept.
        let frames = [(stream(1000), 500, 2), (stream(60_000), 1448, 42), (stream(45_000), 100, 450)];
        for (round, (merged, segment_bytes, segments)) in frames.iter().enumerate() {
            send(&mut left, &[frame(1, 60).build()]);
            send_stream(&left, merged, *segment_bytes);
            send(&mut left, &[frame(2, 60).build()]);
            let received = receive(&mut right, segments + 2);
            assert_eq!(received.len(), segments + 2);
            assert_eq!(received[0].0, frame(1, 60).build(), "round {round}: what was sent before");
            assert_eq!(received[segments + 1].0, frame(2, 60).build(), "round {round}: what was sent after");
            assert_eq!(payload(&received[1..=*segments]), merged[54..]);
        }
        assert_eq!(right.splits(), Splits { frames: 3, segments: 2 + 42 + 450 });
        send_stream(&left, &frames[1].0, 1448);
        let SleepHint::Readable { descriptor: fd, .. } = right.sleep_hint() else { panic!("a descriptor") };
        let mut polled = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry; waits for at most a second.
        assert_eq!(unsafe { libc::poll(&raw mut polled, 1, 1000) }, 1, "a merged frame wakes too");
        receive(&mut right, 42);
        assert_eq!(
            (right.receive_counters().lost, right.met_unsplittable, right.met_long),
            (0, false, false)
        );
        let unmerged = stream(1000);
        send(&mut left, std::slice::from_ref(&unmerged));
        assert_eq!(receive(&mut right, 1)[0].0, unmerged, "the same bytes as one frame");
    });
}

/// Has the kernel send 2500 bytes as datagrams of 1000, by one call (udp(7), UDP_SEGMENT).
fn send_datagrams(from: &str, to: &str) {
    let socket = UdpSocket::bind(from).unwrap();
    let bytes: libc::c_int = 1000;
    let len = size_of_val(&bytes) as libc::socklen_t;
    let (fd, value) = (socket.as_raw_fd(), (&raw const bytes).cast());
    // SAFETY: `value` is readable for `len` bytes, an `int` as the option wants it.
    let rc = unsafe { libc::setsockopt(fd, libc::SOL_UDP, libc::UDP_SEGMENT, value, len) };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
    socket.send_to(&[7; 2500], to).unwrap();
}

#[test]
fn datagrams_that_the_kernel_left_uncut_are_split() {
    in_namespace("datagrams_left_uncut", || {
        let mut right = open("right").unwrap();
        ip("addr add 10.9.9.1/24 dev left").unwrap();
        ip("neigh add 10.9.9.2 lladdr 02:00:00:00:00:99 dev left").unwrap();
        let mut datagrams = |headers: usize| {
            let mut received = Vec::new();
            while received.len() < 3 {
                // Without what the interfaces send of their own accord.
                received.extend(receive(&mut right, 1).into_iter().filter(|frame| frame.0.len() > 500));
            }
            let lengths: Vec<usize> = received.iter().map(|frame| frame.0.len() - headers).collect();
            assert_eq!(lengths, [1000, 1000, 500]);
            for (bytes, ..) in &received {
                assert_ne!(checksum::verify_l4(bytes, &packet::parse(bytes)), checksum::ChecksumStatus::Bad);
                let inner = &bytes[headers - 42..];
                let parsed = packet::parse(inner);
                assert_eq!(checksum::verify_l4(inner, &parsed), checksum::ChecksumStatus::Good);
                assert_eq!(checksum::verify_ip(inner, &parsed), checksum::ChecksumStatus::Good);
            }
        };
        send_datagrams("10.9.9.1:0", "10.9.9.2:4000");
        datagrams(42);
        // In a tunnel, whose own datagrams are without or with checksums.
        for checksums in ["noudpcsum", "udpcsum"] {
            let tunnel = "vxlan id 7 local 10.9.9.1 remote 10.9.9.2 dstport 4789 dev left";
            if let Err(reason) = ip(&format!("link add tunnel type {tunnel} {checksums}")) {
                return not_run("merged frames in VXLAN", &format!("it needs a kernel with VXLAN: {reason}"));
            }
            ip("link set tunnel addrgenmode none").unwrap();
            ip("link set tunnel up").unwrap();
            ip("addr add 10.8.8.1/24 dev tunnel").unwrap();
            ip("neigh add 10.8.8.2 lladdr 02:00:00:00:00:98 dev tunnel").unwrap();
            send_datagrams("10.8.8.1:0", "10.8.8.2:4000");
            datagrams(42 + 50);
            ip("link del tunnel").unwrap();
        }
        assert_eq!(right.splits(), Splits { frames: 3, segments: 9 });
    });
}

#[test]
fn the_ring_for_merged_frames_goes_round() {
    in_namespace("the_ring_for_merged_frames", || {
        let (left, mut right) = (open("left").unwrap(), open("right").unwrap());
        let merged = stream(30_000);
        // More than there are slots, over all blocks.
        for _ in 0..30 {
            (0..10).for_each(|_| send_stream(&left, &merged, 15_000));
            (0..10).for_each(|_| send_stream(&left, &merged, 1_400));
            let mut received = receive(&mut right, 64);
            // In the middle of a frame: its rest, and those after it.
            let mut frames = Burst::new();
            let counted = allocation_counter::measure(|| right.receive(&mut frames));
            assert_eq!((counted.count_total, frames.len()), (0, BURST_FRAMES));
            received
                .extend(frames.iter().map(|f| (f.bytes.to_vec(), f.wire_len, f.timestamp_ns, f.checksum)));
            drop(frames);
            received.extend(receive(&mut right, 10 + 10 * 22 - 2 * 64));
            let (refused, split): (Vec<_>, Vec<_>) =
                received.into_iter().partition(|f| f.0.len() == ETHERNET_BYTES);
            assert_eq!(refused.len(), 10, "their segments are longer than the MTU");
            assert!(split.chunks(22).all(|segments| payload(segments) == merged[54..]));
        }
        assert_eq!(right.splits(), Splits { frames: 300, segments: 300 * 22 });
        assert!(right.receive_counters().lost == 0 && right.met_unsplittable);
    });
}

#[test]
fn merged_frames_are_taken_whole_if_asked_to() {
    in_namespace("merged_frames_whole", || {
        let left = open("left").unwrap();
        let mut right = AfPacketWire::open(&config("right", MergedFrames::Whole)).unwrap();
        assert!(right.takes_merged() && !left.takes_merged());
        for bytes in [1000, 60_000] {
            let merged = stream(bytes);
            let mut unfinished = merged.clone();
            let pseudo_header: u32 = 0x0a00 + 1 + 0x0a00 + 2 + 6 + (20 + bytes as u32);
            let folded = (pseudo_header & 0xffff) + (pseudo_header >> 16);
            unfinished[50..52].copy_from_slice(&(folded as u16).to_be_bytes());
            send_stream(&left, &unfinished, 500);
            let received = receive(&mut right, 1);
            assert_eq!(received[0].0, merged, "with its checksum");
            assert_eq!(received[0].1 as usize, merged.len());
        }
        assert_eq!(right.splits(), Splits::default());
    });
}

#[test]
fn errors_of_opening_contain_a_remedy() {
    in_namespace("what_cannot_be_opened", || {
        for name in ["nowhere", "", "a/b", "longer-than-an-interface-name"] {
            let error = open(name).unwrap_err();
            assert!(
                matches!(&error, WireError::UnknownInterface { interface } if interface == name),
                "{error}"
            );
        }
        let config = |ring_frames| AfPacketConfig {
            ring_frames,
            promiscuous: false,
            ..config("left", MergedFrames::Split)
        };
        for ring_frames in [0, 127, 65_537] {
            let error = AfPacketWire::open(&config(ring_frames)).unwrap_err().to_string();
            assert!(error.contains("`left`") && error.contains("128..=65536"), "{error}");
        }
        ip("tuntap add dev tun0 mode tun").map_or_else(
            |reason| {
                not_run("an interface that is not Ethernet", &format!("it needs /dev/net/tun: {reason}"));
            },
            |_| assert!(matches!(open("tun0").unwrap_err(), WireError::NotEthernet { .. })),
        );
        let own = capabilities(None).unwrap();
        let without = |set: CapabilitySet| set.difference(CapabilitySet::NET_RAW);
        let reduced = CapabilitySets { effective: without(own.effective), ..own };
        set_capabilities(None, reduced).unwrap();
        let error = open("left").unwrap_err();
        assert!(matches!(&error, WireError::NotPermitted { .. }), "{error}");
        assert!(error.to_string().contains("`left`") && error.to_string().contains("CAP_NET_RAW"));
    });
}

#[test]
fn an_interface_is_promiscuous_for_as_long_as_that_is_held() {
    in_namespace("promiscuous", || {
        let promiscuity = || {
            let text = ip("-d link show left").expect("ip runs");
            let mut words = text.split_whitespace().skip_while(|word| *word != "promiscuity");
            words.nth(1).map(str::to_owned)
        };
        assert_eq!(promiscuity().as_deref(), Some("0"));
        let (one, other) = (Promiscuous::hold("left").unwrap(), Promiscuous::hold("left").unwrap());
        assert_eq!(promiscuity().as_deref(), Some("2"));
        drop(one);
        assert_eq!(promiscuity().as_deref(), Some("1"), "somebody else still wants it");
        drop(other);
        assert_eq!(promiscuity().as_deref(), Some("0"));
        assert!(matches!(Promiscuous::hold("nowhere"), Err(WireError::UnknownInterface { .. })));
    });
}

#[test]
fn an_mtu_that_no_port_has_is_not_to_be_raised() {
    let reason = NotSplit::Unsplittable(Unsplittable::SegmentTooLong);
    let loopback = advice(reason, "lo", 65_536);
    assert!(loopback.contains("`ip link set dev lo mtu 9216`") && !loopback.contains("raise"), "{loopback}");
    let usual = advice(reason, "eth0", 1500);
    assert!(usual.contains("raise it to that of its neighbours, 9216 at most"), "{usual}");
}

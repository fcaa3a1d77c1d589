//! A wire at one end of a veth pair, in a network namespace that each test makes for its own thread. Packet
//! sockets send to it, and show what the host still receives.
//!
//! Needs CAP_SYS_ADMIN and the capabilities of AF_XDP: without them the tests say so and, in CI, fail.

use std::time::Duration;

use packet::build::FrameBuilder;
use packet::cube::{DST_PORT, HAS_UDP, VLAN_ID};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use test_support::{Patience, not_run};
use xdp::{Claim, ClaimAction};

use super::*;
use crate::tests::{FORKING, ip};
use crate::{AfPacketConfig, AfPacketWire, HandOver, MergedFrames, ZeroCopy};

/// How long a frame may take through a veth pair on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// Frames of a queue in these tests.
const RING_FRAMES: u32 = 128;

/// Runs a test in both modes, on a thread with a network namespace of its own, which goes away with the
/// thread.
fn in_namespace(name: &str, test: fn(XdpMode)) {
    let _alone = FORKING.write();
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let thread = std::thread::spawn(move || {
            // SAFETY: only the network namespace is left; file descriptors stay shared.
            if let Err(error) = unsafe { unshare_unsafe(UnshareFlags::NEWNET) } {
                return Err(format!("a network namespace cannot be made: {error}"));
            }
            add_pair()?;
            match open("right", mode) {
                Ok(_) => {}
                Err(error @ (WireError::XdpNotPermitted { .. } | WireError::NoXdpSockets { .. })) => {
                    return Err(error.to_string());
                }
                Err(WireError::Xdp { source: error @ xdp::XdpError::NotPermitted { .. } }) => {
                    return Err(error.to_string());
                }
                Err(error) => panic!("{error}"),
            }
            test(mode);
            Ok(())
        });
        match thread.join() {
            Ok(Ok(())) => {}
            Ok(Err(reason)) => {
                not_run(&format!("af_xdp {name}"), &format!("it needs root and `ip`: {reason}"));
            }
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// A pair with two queues at each end.
fn add_pair() -> Result<(), String> {
    let queues = "numrxqueues 2 numtxqueues 2";
    ip(&format!("link add left {queues} type veth peer name right {queues}"))?;
    for end in ["left", "right"] {
        // Without an address of its own the kernel sends nothing over the pair.
        ip(&format!("link set {end} addrgenmode none"))?;
        ip(&format!("link set {end} up"))?;
    }
    let mut patience = Patience::new(PATIENCE);
    while ["left", "right"].iter().any(|end| watch(end).state() != WireState::Live) {
        if patience.is_over() {
            return Err("the veth pair gets no carrier".to_owned());
        }
    }
    Ok(())
}

fn config(interface: &str, mode: XdpMode) -> AfXdpConfig {
    AfXdpConfig {
        interface: interface.to_owned(),
        promiscuous: true,
        ring_frames: RING_FRAMES,
        mode,
        zero_copy: ZeroCopy::Auto,
        busy_poll: false,
    }
}

fn open(interface: &str, mode: XdpMode) -> Result<AfXdpWire, WireError> {
    AfXdpWire::open(&config(interface, mode))
}

/// The frames that the host receives at an end, and a way to send from there.
fn watch(interface: &str) -> AfPacketWire {
    AfPacketWire::open(&AfPacketConfig {
        interface: interface.to_owned(),
        promiscuous: true,
        ring_frames: 4096,
        merged: MergedFrames::Split,
        hand_over: HandOver::Frames,
        busy_poll: false,
    })
    .unwrap()
}

/// UDP to a port.
fn frame(number: u16, dst_port: u16, frame_bytes: usize) -> FrameBuilder {
    let builder = FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    builder.udp(number, dst_port).frame_bytes(frame_bytes)
}

/// All UDP packets to a port.
fn port_claim(dst_port: u16) -> Claim {
    let (udp, port) = (1 << HAS_UDP.shift(), u64::from(dst_port) << DST_PORT.shift());
    Claim::new([udp | port, 0, 0, 0, 0, 0, 0, 0], [udp | DST_PORT.ones(), 0, 0, 0, 0, 0, 0, 0])
}

fn burst(wire: &mut dyn Wire) -> Vec<Vec<u8>> {
    let mut burst = Burst::new();
    wire.receive(&mut burst);
    burst.iter().map(|frame| frame.bytes.to_vec()).collect()
}

/// Bursts until this many frames are there.
fn receive(wire: &mut dyn Wire, frames: usize) -> Vec<Vec<u8>> {
    let mut patience = Patience::new(PATIENCE);
    let mut received = Vec::new();
    while received.len() < frames {
        received.extend(burst(wire));
        assert!(!patience.is_over(), "{} of {frames} frames", received.len());
    }
    received
}

fn send(wire: &mut dyn Wire, frames: &[Vec<u8>]) {
    for frame in frames {
        let mut patience = Patience::new(PATIENCE);
        while wire.transmit(frame) == Err(TransmitError::QueueFull) {
            wire.flush();
            assert!(!patience.is_over(), "the queue stays full");
        }
    }
    wire.flush();
}

#[test]
fn claimed_frames_leave_the_kernel_and_others_never_do() {
    in_namespace("claimed_frames", |mode| {
        let mut wire = open("right", mode).unwrap();
        assert_eq!(wire.queues(), 2);
        let mut claims = wire.claims().unwrap();
        assert!(wire.claims().is_none());
        let (mut sender, mut host) = (watch("left"), watch("right"));
        // Frame by frame in turn, tagged ones among them.
        let tagged = |number, port| frame(number, port, 100).vlan(packet::EtherType::VLAN, 42).build();
        let mixed: Vec<Vec<u8>> = (0..60)
            .map(|number| match number % 4 {
                0 => frame(number, 9, 60).build(),
                1 => frame(number, 10, 1514).build(),
                2 => tagged(number, 9),
                _ => frame(number, 7, 60).build(),
            })
            .collect();
        send(&mut sender, &mixed);
        // Queues have no order among each other.
        let sorted = |mut frames: Vec<Vec<u8>>| {
            frames.sort();
            frames
        };
        assert_eq!(sorted(receive(&mut host, 60)), sorted(mixed.clone()), "nothing is claimed");

        claims.add(&port_claim(9), 0, ClaimAction::Redirect).unwrap();
        send(&mut sender, &mixed);
        let to_port_9 = |frame: &Vec<u8>| packet::FlowKey::of(frame).dst_port == 9;
        let (expected, others): (Vec<_>, Vec<_>) = mixed.iter().cloned().partition(to_port_9);
        assert_eq!(sorted(receive(&mut wire, 30)), sorted(expected));
        assert_eq!(sorted(receive(&mut host, 30)), sorted(others));

        // Only the tagged ones.
        claims.remove(&port_claim(9), 0, &ClaimAction::Redirect);
        let tag = 1 << packet::cube::HAS_C_TAG.shift();
        claims
            .add(
                &Claim::new([0, 0, 0, 0, 0, 0, 42, tag], [0, 0, 0, 0, 0, 0, VLAN_ID.ones(), tag]),
                0,
                ClaimAction::Redirect,
            )
            .unwrap();
        send(&mut sender, &mixed);
        assert_eq!(receive(&mut wire, 15).len(), 15);
        assert_eq!(receive(&mut host, 45).len(), 45);
        assert!(burst(&mut wire).is_empty() && burst(&mut host).is_empty());
        let ForwardingCounters { passed, redirected, beyond_bounds, unserved } = wire.counters();
        assert_eq!((passed, redirected, beyond_bounds, unserved), (135, 45, 0, 0));
        assert_eq!(wire.receive_counters().lost, 0);
    });
}

#[test]
fn frames_pass_the_rings_many_times_in_order() {
    in_namespace("many_times", |mode| {
        let mut wire = open("right", mode).unwrap();
        let mut claims = wire.claims().unwrap();
        claims.add(&port_claim(9), 0, ClaimAction::Redirect).unwrap();
        let mut sender = watch("left");
        for round in 0..40u16 {
            // Of one flow, and so of one queue.
            let length = |number: usize| 60 + (usize::from(round) + 7 * number) % 1400;
            let frames: Vec<Vec<u8>> = (0..64).map(|number| frame(1, 9, length(number)).build()).collect();
            send(&mut sender, &frames);
            assert_eq!(receive(&mut wire, 64), frames);
            send(&mut wire, &frames);
            assert_eq!(receive(&mut sender, 64), frames);
        }
        assert_eq!((wire.receive_counters().lost, wire.transmit_losses()), (0, 0));
        assert_eq!(wire.sent(), 40 * 64);
    });
}

#[test]
fn frames_that_the_interface_drops_do_not_count_as_sent() {
    in_namespace("not_sent", |mode| {
        let mut wire = open("right", mode).unwrap();
        let frames: Vec<Vec<u8>> = (0..20).map(|number| frame(number, 9, 60).build()).collect();
        send(&mut wire, &frames[..5]);
        // The carrier goes; the wire has not noticed yet.
        ip("link set left down").unwrap();
        send(&mut wire, &frames[5..]);
        let mut patience = Patience::new(PATIENCE);
        while wire.sent() + wire.transmit_losses() < 20 {
            wire.flush();
            assert!(!patience.is_over(), "{} sent, {} lost", wire.sent(), wire.transmit_losses());
        }
        assert_eq!((wire.sent(), wire.transmit_losses()), (5, 15));
    });
}

#[test]
fn frames_beyond_the_ring_are_counted_as_lost() {
    in_namespace("beyond_the_ring", |mode| {
        let mut wire = open("right", mode).unwrap();
        wire.claims().unwrap().add(&port_claim(9), 0, ClaimAction::Redirect).unwrap();
        let mut sender = watch("left");
        let frames: Vec<Vec<u8>> = (0..1000).map(|number| frame(number, 9, 60).build()).collect();
        send(&mut sender, &frames);
        let mut patience = Patience::new(PATIENCE);
        while wire.counters().redirected + wire.receive_counters().lost < 1000 {
            assert!(!patience.is_over(), "{:?}", wire.counters());
        }
        let mut received = 0;
        loop {
            let frames = burst(&mut wire).len();
            received += frames;
            if frames == 0 {
                break;
            }
        }
        assert!(received >= RING_FRAMES as usize && received < 1000);
        assert_eq!(received as u64 + wire.receive_counters().lost, 1000);
    });
}

#[test]
fn wrong_frames_are_refused() {
    in_namespace("wrong_frames", |mode| {
        let mut wire = open("right", mode).unwrap();
        assert_eq!(wire.transmit(&[0; 13]), Err(TransmitError::TooShort));
        assert_eq!(wire.transmit(&[0; 1515]), Err(TransmitError::TooLong));
        assert_eq!(wire.transmit(&frame(1, 2, 1518).vlan(packet::EtherType::VLAN, 1).build()), Ok(()));
    });
}

/// The offloads of a veth hide nothing, but they can be switched.
#[test]
fn offloads_are_off_while_they_are_held() {
    in_namespace("offloads", |_mode| {
        let questions = question_socket("right").unwrap();
        let active = || offloads::of_features(questions.as_fd(), "right").unwrap();
        let before = active();
        assert!(before.len() >= 2, "{before:?}");
        let interface = |name| Interface::find(name).unwrap();
        let mut disabled = DisabledOffloads::none(question_socket("right").unwrap());
        disabled.disable_these(&interface("right"), &before).unwrap();
        assert_eq!(active(), []);
        // They stay off for the same interface, and are off already.
        disabled.disable_these(&interface("right"), &[]).unwrap();
        let command = disabled.undo_command("right").unwrap();
        disabled.disable_these(&interface("right"), &before).unwrap();
        assert_eq!(disabled.undo_command("right").unwrap(), command, "each is named once");
        assert!(command.starts_with("ethtool -K right rxvlan on"), "{command}");
        ip("link set right down").unwrap();
        ip("link set right name other").unwrap();
        drop(disabled);
        assert_eq!(offloads::of_features(questions.as_fd(), "other").unwrap(), before);
        ip("link set other up").unwrap();
        // Another interface in its place keeps its own.
        let mut disabled = DisabledOffloads::none(question_socket("other").unwrap());
        disabled.disable_these(&interface("other"), &before).unwrap();
        disabled.disable_these(&interface("left"), &[]).unwrap();
        drop(disabled);
        assert_eq!(offloads::of_features(questions.as_fd(), "other").unwrap(), []);
    });
}

/// The loopback interface has no native mode.
#[test]
fn the_mode_is_generic_where_the_driver_has_no_other() {
    in_namespace("auto", |_mode| {
        ip("link set lo up").unwrap();
        // The loopback's MTU of 65536 bytes is more than a frame of AF_XDP.
        ip("link set lo mtu 1500").unwrap();
        let refusal = open("lo", XdpMode::Native).unwrap_err();
        assert!(matches!(&refusal, WireError::Xdp { source: XdpError::Unsupported { .. } }), "{refusal}");
        let lo = AfXdpConfig { promiscuous: false, ..config("lo", XdpMode::Auto) };
        let generic = AfXdpWire::open(&lo).unwrap().describe();
        assert!(generic.contains("generic"), "{generic}");
        let native = open("right", XdpMode::Auto).unwrap().describe();
        assert!(native.contains("native"), "{native}");
    });
}

#[test]
fn an_interface_with_a_program_or_a_large_mtu_is_refused_with_the_remedy() {
    in_namespace("refused", |mode| {
        {
            let options = ProgramOptions { mode: AttachMode::Generic, ..ProgramOptions::default() };
            let (mut other, _claims) = xdp::load(&options).unwrap();
            let index = Interface::find("right").unwrap().index.cast_unsigned();
            let attachment = other.attach("right", index).unwrap();
            assert!(attachment.is_attached());
            let refusal = open("right", XdpMode::Generic).unwrap_err().to_string();
            assert!(refusal.contains("`right` has an XDP program already (program "), "{refusal}");
            assert!(refusal.contains("xdp off"), "{refusal}");
        }
        // It is free again.
        let wire = open("right", mode).unwrap();
        let refusal = open("right", mode).unwrap_err().to_string();
        assert!(refusal.contains("queue 0 has an AF_XDP socket of another process"), "{refusal}");
        drop(wire);
        ip("link set right mtu 9000").unwrap();
        let refusal = open("right", mode).unwrap_err().to_string();
        assert!(refusal.contains("ip link set dev right mtu 3818"), "{refusal}");
        ip("link set right mtu 1500").unwrap();
        let refusal =
            AfXdpWire::open(&AfXdpConfig { ring_frames: 100, ..config("right", mode) }).unwrap_err();
        assert!(refusal.to_string().contains("power of two"), "{refusal}");
        ip("link set right down").unwrap();
        assert!(matches!(open("right", mode), Err(WireError::InterfaceDown { .. })));
        assert!(matches!(open("no-such-interface", mode), Err(WireError::UnknownInterface { .. })));
    });
}

/// Bursts until the wire is in a state.
fn until(wire: &mut AfXdpWire, state: WireState) {
    let mut patience = Patience::new(PATIENCE);
    while wire.state() != state {
        let _ = burst(wire);
        let _ = wire.sleep_hint();
        assert!(!patience.is_over(), "{state:?}");
    }
}

#[test]
fn claims_outlive_an_interface_that_goes_and_comes_back() {
    in_namespace("goes_and_comes_back", |mode| {
        let mut wire = open("right", mode).unwrap();
        let mut claims = wire.claims().unwrap();
        claims.add(&port_claim(9), 0, ClaimAction::Redirect).unwrap();
        let passes = |wire: &mut AfXdpWire| {
            let frames = vec![frame(1, 9, 60).build()];
            send(&mut watch("left"), &frames);
            assert_eq!(receive(wire, 1), frames);
        };
        passes(&mut wire);
        ip("link set right down").unwrap();
        until(&mut wire, WireState::Down);
        assert_eq!(wire.transmit(&[0; 60]), Err(TransmitError::Down));
        ip("link set right name east").unwrap();
        ip("link set east up").unwrap();
        until(&mut wire, WireState::Live);
        assert!(wire.describe().starts_with("east (af_xdp"), "{}", wire.describe());
        passes(&mut wire);
        ip("link del east").unwrap();
        until(&mut wire, WireState::Down);
        assert!(wire.describe().contains("gone"), "{}", wire.describe());
        claims.add(&port_claim(10), 0, ClaimAction::Redirect).unwrap();
        add_pair().unwrap();
        until(&mut wire, WireState::Live);
        passes(&mut wire);
        let mut host = watch("right");
        send(&mut watch("left"), &[frame(2, 10, 60).build(), frame(2, 11, 60).build()]);
        assert_eq!(receive(&mut wire, 1), [frame(2, 10, 60).build()]);
        assert_eq!(receive(&mut host, 1), [frame(2, 11, 60).build()]);
    });
}

#[test]
fn unmatched_frames_are_left_to_the_host_in_order() {
    in_namespace("unmatched", |mode| {
        let mut wire = open("right", mode).unwrap();
        wire.claims().unwrap().add(&port_claim(9), 0, ClaimAction::Redirect).unwrap();
        let (mut sender, mut host) = (watch("left"), watch("right"));
        let frames: Vec<Vec<u8>> = (0..8).map(|number| frame(1, 9, 60 + 100 * number).build()).collect();
        send(&mut sender, &frames);
        let mut patience = Patience::new(PATIENCE);
        let (mut received, mut expected) = (0, Vec::new());
        while received < frames.len() {
            let taken = burst(&mut wire);
            received += taken.len();
            // Every other frame.
            let given = wire.leave_to_host(0x5555_5555_5555_5555);
            let count = taken.len().div_ceil(2) as u64;
            assert_eq!(given, GivenBack { frames: count, ..GivenBack::default() });
            expected.extend(taken.into_iter().step_by(2));
            assert!(!patience.is_over(), "{received} frames");
        }
        assert_eq!(receive(&mut host, expected.len()), expected);
        assert!(burst(&mut wire).is_empty() && burst(&mut host).is_empty());
    });
}

/// With RPS a frame that is given back passes later, on another processor. In generic mode one that others
/// overtake is taken again, and given back again.
#[test]
fn frames_are_given_back_once_where_packets_are_spread_over_processors() {
    in_namespace("given_back_rps", |mode| {
        ip("link del right").unwrap();
        if let Err(error) = std::fs::write("/proc/sys/net/core/rps_default_mask", "3") {
            return not_run("af_xdp with RPS", &error.to_string());
        }
        add_pair().unwrap();
        let mut wire = open("right", mode).unwrap();
        wire.claims().unwrap().add(&port_claim(9), 0, ClaimAction::Redirect).unwrap();
        let (mut sender, mut host) = (watch("left"), watch("right"));
        for round in 0..20 {
            let mut frames: Vec<Vec<u8>> =
                (0..64).map(|number| frame(round * 64 + number, 9, 60).build()).collect();
            send(&mut sender, &frames);
            let mut patience = Patience::new(PATIENCE);
            let mut seen = Vec::new();
            while seen.len() < frames.len() {
                let _ = burst(&mut wire);
                assert_eq!(wire.leave_to_host(u64::MAX).lost(), 0);
                seen.extend(burst(&mut host));
                assert!(!patience.is_over(), "{} frames of round {round}", seen.len());
            }
            seen.sort();
            frames.sort();
            assert_eq!(seen, frames);
        }
        let taken_again = wire.counters().redirected - 20 * 64;
        println!("{mode:?}: {taken_again} of 1280 frames were taken again");
        assert!(burst(&mut wire).is_empty() && burst(&mut host).is_empty());
    });
}

/// Buffers of frames that were given back are used for others, of which none passes.
#[test]
fn claimed_frames_are_taken_among_thousands_that_are_given_back() {
    in_namespace("among_thousands", |mode| {
        let mut wire = open("right", mode).unwrap();
        wire.claims().unwrap().add(&port_claim(9), 0, ClaimAction::Redirect).unwrap();
        let (mut sender, mut host) = (watch("left"), watch("right"));
        for round in 0..60u16 {
            let frames: Vec<Vec<u8>> = (0..64).map(|_| frame(round, 9, 60).build()).collect();
            send(&mut sender, &frames);
            let mut patience = Patience::new(PATIENCE);
            let (mut taken, mut given) = (0, 0);
            while taken < frames.len() {
                taken += burst(&mut wire).len();
                // All of every other round.
                given += wire.leave_to_host(if round % 2 == 0 { u64::MAX } else { 0 }).frames;
                assert!(!patience.is_over(), "{taken} frames of round {round}");
            }
            let expected = if round % 2 == 0 { 64 } else { 0 };
            assert_eq!((given, receive(&mut host, expected).len()), (expected as u64, expected));
        }
        assert!(burst(&mut wire).is_empty() && burst(&mut host).is_empty());
        assert_eq!(wire.counters().redirected, 60 * 64);
    });
}

#[test]
fn a_frame_that_cannot_be_given_back_is_lost_with_its_reason() {
    in_namespace("not_given_back", |mode| {
        // The most that a veth takes with a program in its driver.
        for end in ["left", "right"] {
            ip(&format!("link set {end} mtu 3498")).unwrap();
        }
        let mut wire = open("right", mode).unwrap();
        wire.claims().unwrap().add(&port_claim(9), 0, ClaimAction::Redirect).unwrap();
        let (mut sender, mut host) = (watch("left"), watch("right"));
        let mut give_back = |bytes| {
            send(&mut sender, &[frame(1, 9, bytes).build()]);
            assert_eq!(receive(&mut wire, 1).len(), 1);
            wire.leave_to_host(1)
        };
        for bytes in [60, 3408] {
            assert_eq!(give_back(bytes), GivenBack { frames: 1, ..GivenBack::default() });
            assert_eq!(receive(&mut host, 1), [frame(1, 9, bytes).build()]);
        }
        for bytes in [3409, 3512] {
            assert_eq!(give_back(bytes), GivenBack { lost_long: 1, ..GivenBack::default() });
        }
        send(&mut sender, &[frame(1, 9, 60).build()]);
        assert_eq!(receive(&mut wire, 1).len(), 1);
        ip("link del right").unwrap();
        for _ in 0..1100 {
            assert_eq!(wire.leave_to_host(1), GivenBack { lost_refused: 1, ..GivenBack::default() });
        }
    });
}

#[test]
fn a_program_that_cannot_be_attached_again_is_tried_again() {
    in_namespace("attach_again", |mode| {
        let mut wire = open("right", mode).unwrap();
        wire.claims().unwrap().add(&port_claim(9), 0, ClaimAction::Redirect).unwrap();
        wire.attached.attachment = None;
        let mode_of_other = if mode == XdpMode::Generic { AttachMode::Generic } else { AttachMode::Native };
        let options = ProgramOptions { mode: mode_of_other, ..ProgramOptions::default() };
        let (mut other, _claims) = xdp::load(&options).unwrap();
        let index = wire.attached.interface.index.cast_unsigned();
        let occupied = other.attach("right", index).unwrap();
        wire.attach_again();
        assert_eq!(wire.state(), WireState::Down);
        assert!(wire.obstacle.contains("`right` has an XDP program already"), "{}", wire.obstacle);
        drop(occupied);
        wire.attach_again();
        assert_eq!((wire.state(), &*wire.obstacle), (WireState::Live, ""));
        send(&mut watch("left"), &[frame(1, 9, 60).build()]);
        assert_eq!(receive(&mut wire, 1).len(), 1);
    });
}

#[test]
fn an_interface_on_others_names_them() {
    in_namespace("stacked", |mode| {
        for command in [
            "link add bridge type bridge",
            "link set left master bridge",
            "link set bridge up",
            "link add over link right type macvlan mode bridge",
            "link set over up",
        ] {
            ip(command).unwrap();
        }
        for (interface, below) in [("bridge", "left"), ("over", "right")] {
            let refused = open(interface, mode).unwrap_err().to_string();
            assert!(refused.contains(&format!("attach to `{below}`")), "{refused}");
        }
        // What they stand on is taken.
        open("right", mode).unwrap();
    });
}

#[test]
fn offloads_of_a_veth_are_not_refused() {
    in_namespace("offloads", |_| {
        let socket = question_socket("right").unwrap();
        // A veth reports that it strips tags, and does not.
        let reported = offloads::of_features(socket.as_fd(), "right").unwrap();
        let text = offloads::problem("right", &reported).unwrap();
        assert!(text.contains("ethtool -K right rxvlan off"), "{text}");
        assert_eq!(offloads::active(socket.as_fd(), "right"), []);
    });
}

#[test]
fn an_idle_engine_is_woken_by_a_claimed_frame() {
    in_namespace("woken", |mode| {
        let mut wire = open("right", mode).unwrap();
        wire.claims().unwrap().add(&port_claim(9), 0, ClaimAction::Redirect).unwrap();
        let SleepHint::Readable { descriptor, .. } = wire.sleep_hint() else { panic!("a descriptor") };
        assert!(!is_readable(descriptor, 0));
        send(&mut watch("left"), &[frame(1, 8, 60).build()]);
        assert!(!is_readable(descriptor, 50));
        send(&mut watch("left"), &[frame(1, 9, 60).build()]);
        assert!(is_readable(descriptor, 10_000));
        assert_eq!(receive(&mut wire, 1).len(), 1);
        assert!(!is_readable(descriptor, 0));
    });
}

fn is_readable(descriptor: i32, timeout_ms: i32) -> bool {
    let mut request = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor, which is open, and a request for it.
    unsafe { libc::poll(&raw mut request, 1, timeout_ms) == 1 }
}

//! An interface as the peer: one end of a veth pair, in a network namespace of the test's own.

use std::process::Command;
use std::time::{Duration, Instant};

use conformance::Peer as _;
use conformance::packet_peer::PacketPeer;
use packet::MacAddr;
use packet::build::FrameBuilder;
use wire::{AfPacketConfig, AfPacketWire, Burst, HandOver, MergedFrames, Wire as _};

const NEEDS: &str = "ip link add t0 type veth peer name t1";
const PATIENCE: Duration = Duration::from_secs(5);
/// The addresses of the cases, and one of somebody else.
const CASE: MacAddr = MacAddr([0x02, 0x73, 0x74, 0x65, 0x65, 0x72]);
const SENDER: MacAddr = MacAddr([0x02, 0x73, 0x74, 0x65, 0x65, 0x00]);
const FOREIGN: MacAddr = MacAddr([0x02, 0, 0, 0, 0, 1]);

fn frame(dst: MacAddr, src: MacAddr) -> Vec<u8> {
    FrameBuilder::new()
        .ethernet(dst, src)
        .ipv4([192, 0, 2, 1].into(), [192, 0, 2, 2].into())
        .udp(1, 2)
        .build()
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().expect("ip runs");
    assert!(status.success(), "ip {arguments}");
}

#[test]
fn a_peer_interface_sees_test_frames_only() {
    let name = "packet_peer::a_peer_interface_sees_test_frames_only";
    if !test_support::namespaces::is_isolated(name, NEEDS) {
        return;
    }
    ip("link add device type veth peer name peer");
    ip("link set device up");
    ip("link set peer up");
    let config = AfPacketConfig {
        interface: "device".to_owned(),
        promiscuous: true,
        ring_frames: 256,
        merged: MergedFrames::default(),
        hand_over: HandOver::default(),
        busy_poll: false,
    };
    let mut device = AfPacketWire::open(&config).expect("the interface is up");
    let peer = PacketPeer::open("peer", Some("device")).expect("the interface is up");
    peer.deliver(vec![frame(CASE, SENDER)]);
    let mut received = Vec::new();
    let until = Instant::now() + PATIENCE;
    while received.is_empty() && Instant::now() < until {
        let mut burst = Burst::new();
        device.receive(&mut burst);
        received.extend(
            burst.iter().filter(|frame| frame.bytes.starts_with(&CASE.0)).map(|frame| frame.bytes.to_vec()),
        );
    }
    assert_eq!(received, [frame(CASE, SENDER)]);
    for (dst, src) in [(FOREIGN, FOREIGN), (CASE, SENDER), (FOREIGN, SENDER)] {
        device.transmit(&frame(dst, src)).expect("room");
    }
    device.flush();
    peer.deliver(Vec::new());
    assert_eq!(peer.sent(), Some(vec![frame(CASE, SENDER), frame(FOREIGN, SENDER)]));
    assert_eq!(peer.sent(), Some(Vec::new()), "each is seen once");
    assert!(PacketPeer::open("nosuch", None).is_err());
}

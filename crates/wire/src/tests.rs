//! The settings of every kind of wire, and what opening them gives.

use std::process::Command;
use std::sync::RwLock;

use super::*;

/// Read by tests that start processes beside others. Until a new process runs its program it has copies of
/// all descriptors, so an XDP program or a socket that another test closes meanwhile stays. Tests that look
/// at such things hold the lock for writing.
pub(crate) static FORKING: RwLock<()> = RwLock::new(());

/// Runs ip(8) in the namespace of the thread; returns what it prints.
pub(crate) fn ip(arguments: &str) -> Result<String, String> {
    let output =
        Command::new("ip").args(arguments.split(' ')).output().map_err(|error| format!("ip: {error}"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("ip {arguments}: {stderr}"))
    }
}

fn config(json: &str) -> Result<WireConfig, serde_json::Error> {
    serde_json::from_str(json)
}

#[test]
fn every_kind_is_read_with_its_defaults() {
    assert_eq!(config(r#"{ "kind": "null" }"#).unwrap(), WireConfig::Null {});
    assert_eq!(config(r#"{ "kind": "loopback" }"#).unwrap(), WireConfig::Loopback {});
    let expected = LinkConfig { name: "x".parse().unwrap(), end: LinkEnd::B };
    assert_eq!(config(r#"{ "kind": "link", "name": "x", "end": "b" }"#).unwrap(), WireConfig::Link(expected));
    let expected = AfPacketConfig {
        interface: "eth0".to_owned(),
        promiscuous: false,
        ring_frames: 4096,
        merged: MergedFrames::Split,
        hand_over: HandOver::Frames,
        busy_poll: false,
    };
    assert_eq!(
        config(r#"{ "kind": "af_packet", "interface": "eth0" }"#).unwrap(),
        WireConfig::AfPacket(expected)
    );
    let expected = PcapConfig { path: "x".into(), mode: PcapMode::Paced, speed: 1.0, output: None };
    assert_eq!(
        config(r#"{ "kind": "pcap", "path": "x", "mode": "paced" }"#).unwrap(),
        WireConfig::Pcap(expected)
    );
    let WireConfig::Generator(generator) =
        config(r#"{ "kind": "generator", "rate": 200000, "flows": [{}] }"#).unwrap()
    else {
        panic!("not a generator");
    };
    assert_eq!(generator.rate, Rate::FramesPerSecond(200_000));
    assert_eq!(generator.flows[0].protocol, TrafficProtocol::Udp);
    assert_eq!(generator.flows[0].frame_bytes, FrameSizes::Fixed(64));
}

#[test]
fn unknown_kinds_and_keys_are_refused_by_name() {
    for (json, name) in [
        (r#"{ "kind": "carrier-pigeon" }"#, "carrier-pigeon"),
        (r#"{ "kind": "pcap", "path": "x", "sped": 2 }"#, "sped"),
        (r#"{ "kind": "null", "interface": "eth0" }"#, "interface"),
        (r#"{ "kind": "pcap", "path": "x", "mode": "forever" }"#, "forever"),
        (r#"{ "kind": "af_packet" }"#, "interface"),
        (r#"{ "kind": "link", "name": "x", "end": "c" }"#, "`a` or `b`"),
        (r#"{ "kind": "link", "name": "x/y", "end": "a" }"#, "x/y"),
        (r#"{ "kind": "generator" }"#, "flows"),
    ] {
        let error = config(json).unwrap_err().to_string();
        assert!(error.contains(name), "{json}: {error}");
    }
}

#[test]
fn the_null_wire_brings_nothing_and_takes_frames() {
    let mut wire = WireConfig::Null {}.open().unwrap();
    let mut burst = Burst::new();
    wire.receive(&mut burst);
    assert!(burst.is_empty());
    drop(burst);
    assert_eq!(wire.transmit(&[0; 60]), Ok(()));
    assert_eq!(wire.transmit(&[0; 13]), Err(TransmitError::TooShort));
    assert_eq!((wire.state(), wire.receive_counters().lost), (WireState::Live, 0));
}

#[test]
fn a_burst_takes_its_number_of_frames_and_no_more() {
    let bytes = [0; 60];
    let mut burst = Burst::new();
    for left in (0..BURST_FRAMES).rev() {
        assert!(burst.push(RxFrame::new(&bytes)));
        assert_eq!(burst.capacity_left(), left);
    }
    assert!(!burst.push(RxFrame::new(&bytes)));
    assert_eq!((burst.len(), burst.iter().count()), (BURST_FRAMES, BURST_FRAMES));
    let cut = RxFrame { wire_len: 61, ..RxFrame::new(&bytes) };
    assert!(cut.is_truncated() && !RxFrame::new(&bytes).is_truncated());
}

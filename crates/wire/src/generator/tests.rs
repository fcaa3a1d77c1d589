//! What a description promises of the frames.

use std::collections::{HashMap, HashSet};

use packet::{FlowKey, Layers};

use super::*;
use crate::{FrameSizes, PortRange, TrafficConfig, WireConfig};

fn open(json: &str) -> Result<GeneratorWire, WireError> {
    let config: WireConfig = serde_json::from_str(json).unwrap();
    let WireConfig::Generator(config) = config else { panic!("not a generator") };
    GeneratorWire::open(&config)
}

fn receive_all(wire: &mut GeneratorWire) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while wire.state() == WireState::Live {
        let mut burst = Burst::new();
        wire.receive(&mut burst);
        frames.extend(burst.iter().map(|frame| frame.bytes.to_vec()));
    }
    frames
}

const MIX: &str = r#"{ "kind": "generator", "seed": 5, "total": 8190, "flows": [
    { "name": "dns", "share": 5, "src": "10.1.0.0/16", "dst": "192.0.2.53", "dst_ports": "53", "count": 100 },
    { "name": "web", "share": 3, "protocol": "tcp", "src": "2001:db8::/64", "dst": "2001:db8:1::1", "dst_ports": 443,
      "tcp_flags": "syn,ack", "frame_bytes": "imix", "count": 50, "vlan": 42 },
    { "name": "arp", "share": 1, "protocol": "arp", "src": "10.3.0.0/24", "dst": "10.3.0.1", "count": 8 },
    { "name": "ping", "share": 1, "protocol": "icmp", "src": "10.3.0.0/30", "count": 4, "frame_bytes": 98 }
] }"#;

#[test]
fn the_mix_is_exact_and_as_described() {
    let frames = receive_all(&mut open(MIX).unwrap());
    assert_eq!(frames.len(), 8190);
    let mut kinds: HashMap<&str, Vec<(FlowKey, usize)>> = HashMap::new();
    // The schedule is the smallest multiple of the shares' sum (10) from 4096 on.
    for frame in &frames[..4100] {
        let parsed = packet::parse(frame);
        assert_eq!(parsed.anomaly, None);
        let key = parsed.key;
        let kind = match (key.ether_type, key.protocol) {
            (0x0800, 17) => "dns",
            (0x86dd, 6) => "web",
            (0x0806, _) => "arp",
            (0x0800, 1) => "ping",
            other => panic!("{other:?}"),
        };
        kinds.entry(kind).or_default().push((key, frame.len()));
    }
    let distinct = |kind: &str| {
        let key = |(key, _): &(FlowKey, usize)| (key.src_ip, key.dst_ip, key.src_port, key.dst_port);
        kinds[kind].iter().map(key).collect::<HashSet<_>>().len()
    };
    let counts = ["dns", "web", "arp", "ping"].map(|kind| kinds[kind].len());
    assert_eq!(counts, [2050, 1230, 410, 410]);
    assert_eq!(["dns", "web", "ping"].map(distinct), [100, 50, 4]);
    assert!(kinds["dns"].iter().all(|(key, len)| {
        key.src_ip[..2] == [10, 1] && key.dst_port == 53 && key.src_port >= 1024 && *len == 64
    }));
    assert!(kinds["web"].iter().all(|(key, _)| {
        key.layers.contains(Layers::VLAN | Layers::TCP) && key.vlan_tci == 42 && key.tcp_flags == 0x12
    }));
    // 7 : 4 : 1; a TCP over IPv6 frame with a tag has 78 bytes at least.
    let of_length = |bytes| kinds["web"].iter().filter(|(_, len)| *len == bytes).count();
    let mix = [78, 594, 1518].map(of_length);
    assert_eq!(mix.iter().sum::<usize>(), 1230);
    assert!((660..780).contains(&mix[0]) && (360..460).contains(&mix[1]), "{mix:?}");
    assert!(kinds["arp"].iter().all(|(key, _)| key.dst_mac.is_broadcast()));
    assert!(kinds["ping"].iter().all(|(_, len)| *len == 98));
}

#[test]
fn a_seed_means_the_same_frames_and_another_seed_means_others() {
    let first = receive_all(&mut open(MIX).unwrap());
    assert_eq!(first, receive_all(&mut open(MIX).unwrap()));
    assert_ne!(first, receive_all(&mut open(&MIX.replace("\"seed\": 5", "\"seed\": 6")).unwrap()));
}

#[test]
fn a_range_of_lengths_reaches_both_ends() {
    let json =
        r#"{ "kind": "generator", "total": 4096, "flows": [{ "frame_bytes": "64-1518", "count": 1 }] }"#;
    let lengths: Vec<usize> = receive_all(&mut open(json).unwrap()).iter().map(Vec::len).collect();
    assert_eq!((lengths.iter().min(), lengths.iter().max()), (Some(&64), Some(&1518)));
    let mean = lengths.iter().sum::<usize>() / lengths.len();
    assert!((741..=841).contains(&mean), "{mean}");
}

#[test]
fn multicast_destinations_get_their_group_address() {
    for (dst, src, mac) in [
        ("239.129.2.3", "10.0.0.1", "01:00:5e:01:02:03"),
        ("ff02::1:ff00:7", "2001:db8::1", "33:33:ff:00:00:07"),
        ("10.0.0.2", "10.0.0.1", "02:73:6f:66:74:00"),
    ] {
        let flow = format!(r#"{{ "src": "{src}", "dst": "{dst}" }}"#);
        let mut wire = open(&format!(r#"{{ "kind": "generator", "total": 1, "flows": [{flow}] }}"#)).unwrap();
        assert_eq!(FlowKey::of(&receive_all(&mut wire)[0]).dst_mac.to_string(), mac);
    }
}

#[test]
fn a_paced_generator_holds_back() {
    let json = r#"{ "kind": "generator", "rate": 1000, "flows": [{}] }"#;
    let mut wire = open(json).unwrap();
    let start = Instant::now();
    let mut frames = 0;
    while frames < 100 {
        let mut burst = Burst::new();
        wire.receive(&mut burst);
        frames += burst.len();
        // A machine that stops for a while delays frames, it never brings them early.
        assert!(frames as u128 <= start.elapsed().as_millis() + 1);
        assert!(start.elapsed().as_secs() < 30, "{frames} frames");
    }
}

#[test]
fn errors_name_the_flow_that_cannot_be_built() {
    for (flow, part) in [
        (r#""src": "10.0.0.1", "dst": "2001:db8::1""#, "not of one family"),
        (r#""src": "2001:db8::1", "dst": "2001:db8::1", "protocol": "arp""#, "ARP needs IPv4"),
        (r#""vlan": 4095"#, "1..=4094"),
        (r#""tcp_flags": "syn""#, "protocol"),
        (r#""protocol": "tcp", "tcp_flags": "syn,nak""#, "`nak`"),
        (r#""frame_bytes": 10"#, "42..="),
        (r#""frame_bytes": 20"#, "the headers alone take 42"),
        (r#""frame_bytes": 41"#, "42..="),
        (
            r#""frame_bytes": "63-1518", "protocol": "tcp", "src": "2001:db8::1", "dst": "2001:db8::1""#,
            "74..=",
        ),
        (r#""frame_bytes": [[64, 1], [57, 1]], "protocol": "tcp", "vlan": 7"#, "58..="),
        (r#""count": 5, "protocol": "icmp", "src": "10.0.0.0/30""#, "more than the 4 combinations"),
        (r#""count": 65, "src_ports": "1-64", "src": "10.0.0.1""#, "widen `src`"),
        (r#""frame_bytes": [[64, 0]]"#, "without weight"),
        (r#""share": 0"#, "`share`"),
        (r#""count": 0"#, "`count`"),
        (r#""count": 4000000000"#, "more than 1048576"),
        (r#""count": 1000000, "frame_bytes": 9000"#, "MiB"),
        (r#""dst_mac": "nonsense""#, "`dst_mac`"),
    ] {
        let json = format!(r#"{{ "kind": "generator", "flows": [{{ "name": "it", {flow} }}] }}"#);
        let error = open(&json).unwrap_err().to_string();
        assert!(error.contains("flow `it`") && error.contains(part), "{error}");
    }
    let rare = r#"{ "kind": "generator", "flows": [{ "share": 1, "count": 5000 }, { "share": 999 }] }"#;
    assert!(open(rare).unwrap_err().to_string().contains("number 1"));
}

#[test]
fn the_shortest_length_is_as_short_as_the_headers_allow() {
    for (flow, shortest) in [
        ("", 64),
        (r#""frame_bytes": 42"#, 42),
        (r#""frame_bytes": 64, "vlan": 7, "protocol": "tcp""#, 64),
        (r#""protocol": "tcp", "src": "2001:db8::1", "dst": "2001:db8::1""#, 74),
        (r#""frame_bytes": "64-100", "protocol": "tcp", "src": "2001:db8::1", "dst": "2001:db8::1""#, 74),
    ] {
        let json = format!(r#"{{ "kind": "generator", "total": 4096, "flows": [{{ {flow} }}] }}"#);
        let frames = receive_all(&mut open(&json).unwrap());
        assert_eq!(frames.iter().map(Vec::len).min(), Some(shortest), "{flow}");
    }
}

/// Ranges that the settings file cannot say, but a program can.
#[test]
fn inverted_ranges_are_refused() {
    let json = r#"{ "kind": "generator", "flows": [{ "name": "it" }] }"#;
    let WireConfig::Generator(config) = serde_json::from_str(json).unwrap() else { panic!("a generator") };
    let refused = |change: fn(&mut TrafficConfig)| {
        let mut config = config.clone();
        change(&mut config.flows[0]);
        GeneratorWire::open(&config).unwrap_err().to_string()
    };
    for (error, place) in [
        (refused(|flow| flow.frame_bytes = FrameSizes::Range(100, 99)), "`frame_bytes` = 100-99"),
        (refused(|flow| flow.src_ports = PortRange { first: 9, last: 8 }), "`src_ports` = 9-8"),
        (refused(|flow| flow.dst_ports = PortRange { first: 9, last: 8 }), "`dst_ports` = 9-8"),
    ] {
        assert!(error.contains("flow `it`") && error.contains(place) && error.contains("swap"), "{error}");
    }
}

#[test]
fn the_frames_of_all_flows_together_are_limited() {
    let flow = r#"{ "count": 600000, "frame_bytes": 42 }"#;
    let json = format!(r#"{{ "kind": "generator", "flows": [{flow}, {flow}] }}"#);
    let error = open(&json).unwrap_err().to_string();
    assert!(error.contains("flow `number 2`") && error.contains("more than 1048576"), "{error}");
}

#[test]
fn settings_that_cannot_be_read_are_refused() {
    for flow in [
        r#""src": "10.0.0.0/33""#,
        r#""src": "here""#,
        r#""dst_ports": "9-1""#,
        r#""dst_ports": 70000"#,
        r#""protocol": "tpc""#,
        r#""frame_bytes": "big""#,
        r#""unknown": 1"#,
    ] {
        let json = format!(r#"{{ "kind": "generator", "flows": [{{ {flow} }}] }}"#);
        assert!(serde_json::from_str::<WireConfig>(&json).is_err(), "{flow}");
    }
    for rate in ["0", "\"fast\"", "-5"] {
        let json = format!(r#"{{ "kind": "generator", "rate": {rate}, "flows": [] }}"#);
        assert!(serde_json::from_str::<WireConfig>(&json).is_err(), "{rate}");
    }
}

#[test]
fn the_rate_is_kept_to_the_frame_over_any_polling_pattern() {
    let mut pacer = Pacer::new(Rate::FramesPerSecond(200_001));
    let mut total = 0;
    for us in 0..1_000_000u128 {
        if us % 7 == 0 || us % 11 == 0 {
            total += pacer.grant(us * 1000, BURST_FRAMES);
        }
    }
    total += pacer.grant(NS_PER_S, BURST_FRAMES);
    assert_eq!(total, 200_001);
}

#[test]
fn frames_missed_for_long_are_not_made_up_for() {
    let mut pacer = Pacer::new(Rate::FramesPerSecond(1_000_000));
    let mut total = 0;
    loop {
        match pacer.grant(60 * NS_PER_S, BURST_FRAMES) {
            0 => break,
            frames => total += frames,
        }
    }
    assert_eq!(total, 10_000);
    assert_eq!(Pacer::new(Rate::FlatOut).grant(0, 64), 64);
}

//! `steerd trace`: the ways of packets through the running daemon, beside the computed ones.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use packet::DeepKey;
use pcap_file::pcapng::{Block, PcapNgReader};

use crate::api::{Place, error};
use crate::support::{Daemon, PATIENCE, stderr, stdout};
use serde_json::Value;

/// Decided by flows and by workers, with a copy, a sample, a drop of the device and one of workers.
const POLICY: &str = r#"
version = 1
default = "kernel"
allow_lost_exceptions = true
[sinks.counted]
kind = "count"
[groups.every]
workers = "all"
sinks = ["counted"]
[groups.one]
workers = [1]
hash = "none"
[[rules]]
name = "scan"
match = { src = "198.51.100.0/24" }
action = "drop"
[[rules]]
name = "seen"
match = { dst = "192.0.2.53" }
action = { copy = "one" }
[[rules]]
name = "dns"
match = { protocol = "udp", dst_port = 53 }
action = "steer every"
sample = 2
[[rules]]
name = "syn"
match = { protocol = "tcp", tcp_flags = "syn,!ack" }
action = "drop"
[[rules]]
name = "web"
match = { protocol = "tcp", dst_port = 443 }
action = "steer every"
[[rules]]
name = "vlan"
match = { vlan = 42 }
action = "steer one"
"#;

fn daemon(place: &Place) -> Daemon {
    Daemon::start_command(&mut place.quiet_daemon())
}

/// The lines of a trace.
fn traced(place: &Place, args: &[&str]) -> Vec<Value> {
    let mut command = vec!["trace", "--format", "json"];
    command.extend(args);
    if !args.contains(&"--seconds") {
        command.extend(["--seconds", "20"]);
    }
    let text = place.ok(&command);
    text.lines().map(|line| serde_json::from_str(line).expect("an object")).collect()
}

/// The rules and actions of lines, with how many there are.
fn decisions(lines: &[Value]) -> BTreeMap<(String, String), usize> {
    let mut counts = BTreeMap::new();
    for line in lines {
        let text = |key: &str| line[key].as_str().expect("text").to_owned();
        *counts.entry((text("rule"), text("action"))).or_default() += 1;
    }
    counts
}

#[test]
fn all_packets_take_the_computed_ways() {
    let place = Place::new(POLICY);
    let daemon = daemon(&place);
    let lines = traced(&place, &["-n", "3000"]);
    assert_eq!(lines.len(), 3000);
    for line in &lines {
        assert_eq!(line["differences"], Value::Array(Vec::new()), "{line}");
        assert!(line["head"].as_str().is_some_and(|head| head.len() >= 28), "{line}");
    }
    let decisions = decisions(&lines);
    for (rule, action) in [
        ("scan", "drop"),
        ("seen", "deliver to one"),
        ("dns", "deliver to every"),
        ("dns", "drop"),
        ("syn", "drop"),
        ("web", "deliver to every"),
        ("vlan", "deliver to one"),
        ("default", "kernel"),
    ] {
        assert!(
            decisions.contains_key(&(rule.to_owned(), action.to_owned())),
            "{rule} {action}: {decisions:?}"
        );
    }
    let of = |rule: &str| lines.iter().filter(|line| line["rule"] == rule).collect::<Vec<&Value>>();
    assert!(of("seen").iter().all(|line| line["is_copy"] == true && line["worker"] == 1));
    assert!(of("scan").iter().all(|line| line["worker"].is_null() && line["dropped"] == "flow"));
    assert!(of("web").iter().all(|line| line["compared_rules"].is_u64()), "the worker looks at TCP flags");
    assert!(of("vlan").iter().all(|line| line["compared_rules"].is_null() && line["tag"].is_u64()));
    let sampled = of("dns").iter().filter(|line| line["dropped"] == "policed").count();
    assert!(of("syn").iter().all(|line| line["dropped"] == "worker" && line["worker"].is_u64()));
    assert!(sampled > 0 && of("dns").iter().any(|line| line["sinks"][0] == "counted"));
    assert_eq!(daemon.metric("steerd_trace_differences_total", &[]), 0.0);
    assert!(daemon.metric("steerd_traced_packets_total", &[]) >= 3000.0);
}

#[test]
fn rules_at_run_time_are_no_differences() {
    let policy = "version = 1\ndefault = \"kernel\"\n[groups.every]\nworkers = \"all\"\n\
         [runtime]\nmatches = [\"protocol dst_port\"]\nactions = [\"drop\"]\nbefore = \"ip\"\ndevice_rules = 0\n\
         [[rules]]\nname = \"ip\"\nmatch = { family = [\"ipv4\", \"ipv6\"] }\naction = \"steer every\"\n";
    let place = Place::new(policy);
    let _daemon = daemon(&place);
    place.ok(&["rule", "add", "--action", "drop", "protocol=tcp", "dst_port=443"]);
    let lines = traced(&place, &["-n", "300"]);
    let decisions = decisions(&lines);
    for (rule, action) in [("(rules at run time)", "drop"), ("ip", "deliver to every")] {
        assert!(decisions.contains_key(&(rule.to_owned(), action.to_owned())), "{decisions:?}");
    }
    assert!(lines.iter().all(|line| line["differences"] == Value::Array(Vec::new())));
}

#[test]
fn a_trace_shows_what_is_asked_for() {
    let place = Place::new(POLICY);
    let _daemon = daemon(&place);
    let dns = traced(&place, &["-n", "20", "protocol = 'udp', dst_port = 53"]);
    assert_eq!(dns.len(), 20);
    assert!(dns.iter().all(|line| line["packet"].as_str().is_some_and(|text| text.contains(":53 udp"))));
    let dropped = traced(&place, &["-n", "200", "--dropped"]);
    let why = |reason: &str| dropped.iter().any(|line| line["dropped"] == reason);
    assert!(["flow", "worker", "policed", "lost_exception"].into_iter().all(why), "{dropped:?}");
    assert!(dropped.iter().all(|line| line["dropped"].is_string()), "{dropped:?}");
    let rules: Vec<&str> = dropped.iter().filter_map(|line| line["rule"].as_str()).collect();
    assert!(["scan", "syn", "dns"].iter().all(|rule| rules.contains(rule)), "{rules:?}");
    let (begun, few) = (Instant::now(), traced(&place, &["--one-in", "100", "-n", "4", "dst_port = 53"]));
    // Of 380 such packets a second, on two workers, and copies of most.
    assert_eq!(few.len(), 4);
    assert!(begun.elapsed() > Duration::from_millis(100), "one of a hundred is shown: {few:?}");

    let output = place.run(&["trace", "-n", "2", "vlan = 42"]);
    let text = stdout(&output);
    assert!(
        output.status.success() && stderr(&output).contains("2 packets traced, all as computed"),
        "{text}"
    );
    for part in
        ["vlan 42", "flow ", "worker   1", "rule     vlan (line", "deliver to one, decided by the flow"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let refused = place.run(&["trace", "dst_prot = 53"]);
    assert!(!refused.status.success());
    assert!(stderr(&refused).contains("match: unknown key `dst_prot`"), "{}", stderr(&refused));
    let (status, answer) = place.ask("POST", "/v1/traces", r#"{"match": "any = true } }, { x = 1"}"#);
    assert_eq!(status, 400, "{answer}");
    let (status, answer) = place.ask("POST", "/v1/traces", r#"{"rule": "dns"}"#);
    assert_eq!((status, error(&answer).contains("unknown field")), (400, true), "{answer}");
}

/// A packet of a pcapng file in which each interface is a rule and each packet has a comment.
pub(crate) struct CommentedPacket {
    /// Since 1970.
    pub(crate) time: Duration,
    key: DeepKey,
    /// The length of what is kept of it.
    pub(crate) kept_bytes: usize,
    is_whole: bool,
    pub(crate) rule: String,
    pub(crate) comment: String,
}

/// The packets of a file of `capture --dropped` or `record`.
pub(crate) fn commented_packets(bytes: &[u8]) -> Vec<CommentedPacket> {
    use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
    use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
    let mut reader = PcapNgReader::new(bytes).expect("a section header");
    let (mut packets, mut rules) = (Vec::new(), Vec::new());
    while let Some(block) = reader.next_block() {
        match block.expect("a block") {
            Block::InterfaceDescription(interface) => {
                let name = interface.options.iter().find_map(|option| match option {
                    InterfaceDescriptionOption::IfName(name) => Some(name.to_string()),
                    _ => None,
                });
                rules.push(name.expect("a name"));
            }
            Block::EnhancedPacket(packet) => {
                let comments = packet.options.iter().find_map(|option| match option {
                    EnhancedPacketOption::Comment(comment) => Some(comment.to_string()),
                    _ => None,
                });
                packets.push(CommentedPacket {
                    time: packet.timestamp,
                    key: DeepKey::of(&packet.data),
                    kept_bytes: packet.data.len(),
                    is_whole: packet.data.len() == packet.original_len as usize,
                    rule: rules[packet.interface_id as usize].clone(),
                    comment: comments.expect("a comment"),
                });
            }
            _ => {}
        }
    }
    packets
}

#[test]
fn dropped_packets_are_captured_with_the_reason() {
    let place = Place::new(POLICY);
    let daemon = daemon(&place);
    let output = place.run(&["capture", "--dropped", "-w", "d.pcapng", "--count", "300", "--seconds", "20"]);
    assert!(
        output.status.success() && stderr(&output).contains("300 packets captured"),
        "{}",
        stderr(&output)
    );
    let packets = commented_packets(&std::fs::read(place.path("d.pcapng")).expect("written"));
    assert_eq!(packets.len(), 300);
    let mut reasons = BTreeMap::new();
    for CommentedPacket { key, is_whole, rule, comment, .. } in &packets {
        assert!(is_whole, "{comment}");
        let is_of_rule = match rule.as_str() {
            "scan" => key.outer.src_ip[..3] == [198, 51, 100],
            "dns" => key.outer.dst_port == 53,
            "syn" => key.outer.protocol == 6,
            _ => true,
        };
        assert!(is_of_rule, "{comment}: {key:?}");
        let reason = comment.split_once(" (line ").map_or(comment.as_str(), |(reason, _)| reason);
        *reasons.entry(reason).or_insert(0) += 1;
    }
    for reason in ["flow, rule scan", "policed, rule dns", "worker, rule syn", "lost_exception, rule default"]
    {
        assert!(reasons.contains_key(&*format!("dropped: {reason}")), "{reason}: {reasons:?}");
    }
    assert_eq!(daemon.metric("steerd_trace_differences_total", &[]), 0.0);

    let scans = "src = '198.51.100.0/24'";
    let piped = place.run(&["capture", "--dropped", scans, "-w", "-", "--snap", "40", "--count", "5"]);
    let packets = commented_packets(&piped.stdout);
    assert!(packets.len() == 5 && packets.iter().all(|one| one.rule == "scan" && !one.is_whole));
    let refused = place.run(&["capture", "--dropped", "dst_prot = 53", "-w", "x.pcapng"]);
    assert!(stderr(&refused).contains("match: unknown key `dst_prot`"), "{}", stderr(&refused));
    assert_eq!((refused.status.code(), place.path("x.pcapng").exists()), (Some(8), false));
    assert_eq!(place.run(&["capture", "-w", "x.pcapng"]).status.code(), Some(2));
    for body in [r#"{"rule": "dns", "dropped": true}"#, r#"{"rule": "dns", "match": "any = true"}"#] {
        assert_eq!(place.ask("POST", "/v1/captures", body).0, 400, "{body}");
    }
}

#[test]
fn traces_and_reloads_do_not_disturb_each_other() {
    let place = Place::new(POLICY);
    let _daemon = daemon(&place);
    thread::scope(|scope| {
        let trace = scope.spawn(|| traced(&place, &["-n", "100000", "--seconds", "8"]));
        // Once it has begun, another one cannot see what it sees.
        let deadline = Instant::now() + PATIENCE;
        let refused = loop {
            assert!(Instant::now() < deadline, "the trace does not begin");
            let (status, answer) = place.ask("GET", "/v1/state", "");
            assert_eq!(status, 200);
            let sinks = answer["sinks"].as_array().expect("a list");
            if sinks.iter().any(|sink| sink["attached_to"] == "(all packets)") {
                break place.run(&["trace", "-n", "1"]);
            }
            thread::sleep(Duration::from_millis(20));
        };
        assert!(stderr(&refused).contains("another trace is running"), "{}", stderr(&refused));
        let other =
            POLICY.replace("dst_port = 443", "dst_port = 444").replace("workers = [1]", "workers = [0]");
        for round in 0..20 {
            place.write("p.toml", if round % 2 == 0 { &other } else { POLICY });
            place.ok(&["reload"]);
        }
        let lines = trace.join().expect("no panic");
        let generations: std::collections::BTreeSet<u64> =
            lines.iter().filter_map(|line| line["generation"].as_u64()).collect();
        assert!(generations.len() > 10, "{generations:?}");
        let differing: Vec<&Value> =
            lines.iter().filter(|line| line["differences"] != Value::Array(Vec::new())).collect();
        assert!(differing.is_empty(), "{differing:?}");
    });
}

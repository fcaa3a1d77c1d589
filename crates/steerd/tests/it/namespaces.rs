//! `steerd` on one end of a veth pair by AF_PACKET or AF_XDP, ordinary programs (ping, bash, nc) on the
//! other, in namespaces that the test creates. The counters of rules, workers and kernel must add up to what
//! the kernel's counters report as sent.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use crate::support;
use serde_json::{Value, json};
use test_support::namespaces::Outcome;

/// Runs a script of the folder; `None`, after a notice, where it cannot run.
fn outcome(script: &str, arguments: &[&str]) -> Option<Outcome> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/namespaces").join(script);
    Outcome::of(&path, env!("CARGO_BIN_EXE_steerd"), arguments)
}

fn json(outcome: &Outcome, name: &str) -> Value {
    serde_json::from_str(&outcome.read(name)).expect("the state is JSON")
}

fn number(state: &Value, pointer: &str) -> u64 {
    state.pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("{pointer} in {state:#}"))
}

/// The named rule's packets by disposition: delivered, dropped, left to the kernel.
fn rule(state: &Value, name: &str) -> [u64; 3] {
    let rules = state["rules"].as_array().expect("rules");
    let rule = rules.iter().find(|rule| rule["name"] == name).unwrap_or_else(|| panic!("no rule {name}"));
    ["/delivered_packets", "/dropped_packets", "/kernel_packets"].map(|field| number(rule, field))
}

/// The packets that were sent, the daemon's state after it, and its summary.
type Traffic = (HashMap<String, u64>, Value, String);

/// Runs traffic.sh with these arguments; `None` where it cannot run.
fn traffic(arguments: &[&str]) -> Option<Traffic> {
    let outcome = outcome("traffic.sh", arguments)?;
    Some((outcome.numbers("sent.env"), json(&outcome, "state.json"), outcome.read("summary.txt")))
}

/// `check` has the same claims as the daemon, without the interface, and who decides each rule.
fn check_agrees(check: &Value, state: &Value) {
    assert_eq!(check["interface"]["claims"], state["ports"][0]["claims"], "{check:#}");
    assert_eq!(check["interface"]["ports"][0]["interface"], "steer0");
    let of_rules = |rules: &Value, name: &str| -> Vec<(Value, Value, Value)> {
        let rules = rules.as_array().expect("rules").iter();
        rules.map(|rule| (rule[name].clone(), rule["decided_by"].clone(), rule["host"].clone())).collect()
    };
    let checked = of_rules(&check["interface"]["rules"], "rule");
    assert_eq!(checked, of_rules(&state["rules"], "name"));
    assert_eq!(
        checked.first().map(|(_, by, host)| (by, host)),
        Some((&json!(["xdp_program"]), &json!("no")))
    );
}

#[test]
fn claimed_packets_of_an_enforced_interface_never_reach_the_kernel_and_others_do() {
    for mode in ["native", "generic"] {
        let Some(outcome) = outcome("enforce.sh", &[mode]) else { return };
        let (seen, state) = (outcome.numbers("seen.env"), json(&outcome, "state.json"));
        let log = outcome.read("steerd.log");
        assert_eq!(seen["pings"], 10, "the kernel answers");
        assert_eq!(seen["upload_intact"], 1, "TCP of the kernel works");
        assert_eq!((seen["heard"], seen["udp_in"], seen["udp_no_ports"]), (40, 41, 0), "{mode}: {log}");
        assert_eq!(seen["heard_own"], 1, "the exception of a rule is left to the kernel");
        assert_eq!(seen["heard_claimed"], 0, "listeners on claimed ports hear nothing");
        assert_eq!(rule(&state, "dns"), [30 + 12, 0, 0], "{mode}, both families: {log}");
        assert_eq!(rule(&state, "discard"), [0, 20, 0], "{mode}");
        assert_eq!(rule(&state, "blocked"), [0, 1, 0], "{mode}: before a wider rule");
        assert_eq!(number(&state, "/ports/0/received_packets"), 63 + 15, "only claimed packets are taken");
        // Packets of a copy are taken, and given back.
        let given_back = 15;
        for (counter, packets) in [
            ("kernel_packets", given_back),
            ("given_back_packets", given_back),
            ("lost_packets/not_given_back_generic", 0),
            ("lost_packets/not_given_back_too_long", 0),
            ("lost_packets/not_given_back_refused", 0),
            ("beyond_claims_packets", 0),
            ("claims/widened_places", 0),
            // Of two rules, each for both families.
            ("claims/dropping", 4),
            ("xdp_dropped_packets", 20 + 1),
        ] {
            assert_eq!(number(&state, &format!("/ports/0/{counter}")), packets, "{mode}: {counter}");
        }
        // Pings, an upload, and what its own kernel hears.
        assert!(number(&state, "/ports/0/passed_packets") > 10 + 40, "{state:#}");
        assert!(number(&state, "/ports/0/claims/count") >= 3, "{state:#}");
        let metrics = outcome.read("metrics.txt");
        for line in [
            format!("steerd_port_given_back_packets_total{{port=\"1\"}} {given_back}\n"),
            "steerd_port_claims_widened_places{port=\"1\"} 0\n".to_owned(),
            "steerd_port_xdp_dropped_packets_total{port=\"1\"} 21\n".to_owned(),
        ] {
            assert!(metrics.contains(&line), "{line} in {metrics}");
        }
        check_agrees(&json(&outcome, "check.json"), &state);
        assert_eq!(
            (seen["program_before"], seen["program_after"]),
            (1, 0),
            "the interface is left as it was"
        );
        let summary = outcome.read("summary.txt");
        assert!(summary.contains("\npacket accounting matches\n"), "{summary}");
    }
}

#[test]
fn a_killed_daemon_leaves_the_interface_to_the_kernel_and_starts_again() {
    let Some(outcome) = outcome("killed.sh", &[]) else { return };
    let (seen, log) = (outcome.numbers("seen.env"), outcome.read("steerd.log"));
    assert_eq!((seen["detached"], seen["programs_running"]), (0, 1), "{}", outcome.read("refused"));
    assert_eq!(seen["heard_running"], 0, "the kernel hears nothing");
    assert_eq!((seen["programs_killed"], seen["heard_killed"]), (0, 5), "the kernel hears all");
    assert_eq!((seen["heard_again"], seen["programs_ended"]), (5, 0), "{log}");
    let summary = outcome.read("summary.txt");
    assert!(summary.contains("\npacket accounting matches\n"), "{summary}");
}

#[test]
fn packets_of_ordinary_programs_are_all_accounted_for() {
    let Some((sent, state, summary)) = traffic(&[]) else { return };
    assert_eq!(sent["pings"], 10, "the kernel still answers: af_packet copies");
    assert_eq!(sent["upload_intact"], 1, "TCP still works");
    assert_eq!(rule(&state, "ping"), [10, 0, 0]);
    assert_eq!(rule(&state, "dns"), [20 + 12, 0, 0], "both families");
    assert_eq!(rule(&state, "discard"), [0, 15, 0]);
    assert_eq!(rule(&state, "syn"), [1, 0, 0], "one connection");
    assert_eq!(rule(&state, "web"), [sent["segments"] - 1, 0, 0], "all its other segments");

    let claimed = 10 + 32 + 15 + sent["segments"];
    assert_eq!(number(&state, "/ports/0/received_packets"), sent["frames"], "nothing lost on the cable");
    assert_eq!(number(&state, "/ports/0/kernel_packets"), sent["frames"] - claimed, "the kernel's share");
    let workers = state["workers"].as_array().expect("workers");
    let received: u64 = workers.iter().map(|worker| number(worker, "/received_packets")).sum();
    assert_eq!(received, claimed - 15, "every delivered packet was seen by a worker");
    assert!(summary.contains("\npacket accounting matches\n"), "{summary}");
}

/// The interfaces are as veth interfaces are by default: the cable carries frames of up to 64 KiB with
/// unfinished checksums.
#[test]
fn a_stream_in_merged_frames_arrives_in_segments() {
    const UPLOAD_BYTES: u64 = 6_000_000;
    let arguments = ["on", &UPLOAD_BYTES.to_string()];
    let Some((sent, state, summary)) = traffic(&arguments) else {
        return;
    };
    assert_eq!(sent["upload_intact"], 1, "TCP still works");
    let port = |counter: &str| number(&state, &format!("/ports/0/{counter}"));
    let (merged, segments) = (port("split_packets"), port("split_segments"));
    assert!(merged > 0 && segments > 2 * merged, "{merged} merged frames, {segments} segments");
    assert_eq!(port("lost_packets/oversize"), 0);
    assert_eq!(port("received_packets"), sent["frames"] - merged + segments, "each frame, or its segments");
    assert_eq!(rule(&state, "syn"), [1, 0, 0]);
    assert_eq!(rule(&state, "web"), [sent["segments"] - 1, 0, 0], "the sender's kernel counts segments too");

    let rules = state["rules"].as_array().expect("rules");
    let web = rules.iter().find(|rule| rule["name"] == "web").expect("the rule");
    // Ethernet, IPv4, TCP with time stamps: the same in every segment behind the SYN.
    let headers = (14 + 20 + 32) * number(web, "/delivered_packets");
    let payload = number(web, "/delivered_bytes") - headers;
    match sent["repeated"] {
        0 => assert_eq!(payload, UPLOAD_BYTES),
        _ => assert!(payload > UPLOAD_BYTES, "{payload} bytes with what was sent again"),
    }
    assert!(summary.contains("\npacket accounting matches\n"), "{summary}");
}

#[test]
fn the_mtu_of_the_interface_is_that_of_the_port_and_of_the_frames() {
    let Some(outcome) = outcome("jumbo.sh", &[]) else { return };
    assert_eq!(outcome.read("check.code"), "0\n", "{}", outcome.read("check.txt"));
    let state = json(&outcome, "state.json");
    assert_eq!(rule(&state, "discard"), [4, 0, 0], "up to the MTU");
    assert_eq!(number(&state, "/ports/0/lost_packets/oversize"), 0);
    for (name, parts) in [
        ("short-port", ["port 1: mtu_bytes = 1500", "the MTU of steer0 is 9000", "leave mtu_bytes out"]),
        ("short-frames", ["workers.frame_bytes = 2048", "the MTU of port 1 is 9000", "\"auto\""]),
        ("loopback", ["the MTU of lo is 65536", "9216 at most", "ip link set dev lo mtu 9216"]),
    ] {
        for (kind, code) in [("check", "4\n"), ("run", "69\n")] {
            let text = outcome.read(&format!("{name}-{kind}.txt"));
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(outcome.read(&format!("{name}-{kind}.code")), code, "{name} {kind}: {text}");
            for part in parts {
                assert!(text.contains(part), "{name} {kind}: no {part:?} in {text}");
            }
        }
    }
}

#[test]
fn a_recreated_interface_is_received_from_again() {
    let Some(outcome) = outcome("reattach.sh", &[]) else { return };
    let read = |name: &str| outcome.read(name);
    let log = read("steerd.log");

    assert_eq!(read("healthz.txt"), "ok\n", "to start again would not help");
    let down = json(&outcome, "down.json");
    assert_eq!((&down["ready"], &down["ports"][0]["up"]), (&Value::Bool(false), &Value::Bool(false)));
    for part in [
        "the interface was removed",
        "port 1 (steer0) is down",
        "attached to the interface again",
        "port 1 (steer0) is up again",
        "the device reports: port 1: link active",
    ] {
        assert!(log.contains(part), "no {part:?} in\n{log}");
    }
    let state = json(&outcome, "state.json");
    assert_eq!(outcome.numbers("sent.env")["frames"], 50, "nothing but the queries is on the cable");
    assert_eq!(number(&state, "/ports/0/received_packets"), 50);
    assert_eq!(rule(&state, "dns"), [50, 0, 0]);
    let summary = read("summary.txt");
    assert!(summary.contains("\npacket accounting matches\n") && summary.contains("lost: none"), "{summary}");
}

#[test]
fn forwarded_packets_reach_other_kernels_and_reflected_ones_their_sender() {
    if let Err(error) = Command::new("tcpdump").arg("--version").output() {
        return support::not_run("forwarding between namespaces", &format!("tcpdump: {error}"));
    }
    let policy = support::config().join("examples/reflector.toml").display().to_string();
    let Some(outcome) = outcome("forward.sh", &[&policy]) else { return };
    let read = |name: &str| outcome.read(name);

    let sent = outcome.numbers("sent.env");
    assert_eq!(
        (sent["reflected"], sent["datagram_intact"]),
        (10, 1),
        "ping and UDP are answered by the worker"
    );
    assert_eq!(sent["forwarded"], 10, "the server's kernel answers, through both ports");
    assert_eq!((sent["while_down"], sent["after"]), (0, 5), "the port was down and is up again");

    let seen = read("server.txt");
    let lines = |packet: &str, headers: &str| {
        let of_packet = seen.lines().filter(|line| line.contains(packet));
        assert!(of_packet.clone().all(|line| line.contains(headers)), "{headers} in\n{seen}");
        of_packet.count()
    };
    let headers = "02:00:00:00:88:01 > 02:00:00:00:88:02, ethertype IPv4 (0x0800), length 98:";
    assert_eq!(lines("10.77.0.2 > 10.88.0.2: ICMP echo request", headers), 10);
    let headers = "02:00:00:00:77:01 > 02:00:00:00:88:02, ethertype 802.1Q (0x8100), length 102: vlan 100, p 0, ethertype IPv4";
    assert_eq!(lines("10.77.0.2 > 10.99.0.2: ICMP echo request", headers), 5);

    let state = json(&outcome, "state.json");
    let sinks = state["sinks"].as_array().expect("sinks");
    let delivered = |name: &str| {
        let sink = sinks.iter().find(|sink| sink["name"] == name).unwrap_or_else(|| panic!("{state:#}"));
        number(sink, "/workers/0/delivered_packets")
    };
    assert_eq!(["answers", "to-servers", "to-vlan", "to-clients"].map(delivered), [11, 15, 5, 15]);
    assert_eq!(number(&state, "/ports/1/send_errors"), 4, "an S-VLAN tag beyond the MTU");
    assert_eq!(number(&state, "/ports/0/sent_packets"), 11 + 15);
    assert_eq!(number(&state, "/ports/1/sent_packets"), 15 + 5);
    let out = sinks.iter().find(|sink| sink["name"] == "to-servers").expect("it");
    assert_eq!(number(out, "/workers/0/dropped_packets/down"), 3, "{out:#}");
    assert_eq!(number(out, "/workers/0/dropped_packets/tx_failed"), 4, "what the port refuses: {out:#}");
    let summary = read("summary.txt");
    assert!(summary.contains("\npacket accounting matches\n"), "{summary}");
}

//! The kernel sink with ordinary programs (ping, nc) in namespaces that the test creates: packets that a
//! policy leaves to the host behind a rule that takes them reach it by the TAP interface alone. Every packet
//! is counted once.

use std::collections::HashMap;
use std::path::Path;

use crate::support;
use serde_json::Value;
use test_support::namespaces;

/// The files that a script of the folder has left.
struct Outcome(namespaces::Outcome);

impl Outcome {
    /// Runs a script; `None` after a notice: it cannot run here.
    #[track_caller]
    fn of(script: &str, personality: &str) -> Option<Self> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernel_sink").join(script);
        namespaces::Outcome::of(&path, env!("CARGO_BIN_EXE_steerd"), &[personality]).map(Self)
    }

    fn read(&self, name: &str) -> String {
        self.0.read(name)
    }

    fn json(&self, name: &str) -> Value {
        let text = self.read(name);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}: {text}"))
    }

    fn seen(&self) -> HashMap<String, u64> {
        self.0.numbers("seen.env")
    }

    #[track_caller]
    fn assert_balanced(&self) {
        let summary = self.read("summary.txt");
        assert!(summary.contains("\npacket accounting matches\n"), "{summary}");
        assert!(!summary.contains("lost_exception"), "{summary}");
    }
}

fn number(value: &Value, pointer: &str) -> u64 {
    value.pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("{pointer} in {value:#}"))
}

fn rule(state: &Value, name: &str, field: &str) -> u64 {
    let rules = state["rules"].as_array().expect("rules");
    let rule = rules.iter().find(|rule| rule["name"] == name).unwrap_or_else(|| panic!("no rule {name}"));
    number(rule, &format!("/{field}"))
}

fn sink<'s>(state: &'s Value, name: &str) -> &'s Value {
    let sinks = state["sinks"].as_array().expect("sinks");
    sinks.iter().find(|sink| sink["name"] == name).unwrap_or_else(|| panic!("no sink {name}"))
}

/// The sum of a number over the workers of a sink.
fn sum(sink: &Value, pointer: &str) -> u64 {
    sink["workers"].as_array().expect("workers").iter().map(|worker| number(worker, pointer)).sum()
}

/// Asserts that every offered packet was delivered or dropped, and that none is on its way.
#[track_caller]
fn assert_sink_balanced(sink: &Value) {
    assert_eq!(sink["workers"].as_array().map_or(0, Vec::len), 2, "{sink:#}");
    for worker in sink["workers"].as_array().expect("workers") {
        let dropped: u64 =
            worker["dropped_packets"].as_object().expect("reasons").values().filter_map(Value::as_u64).sum();
        let (offered, delivered) = (number(worker, "/offered_packets"), number(worker, "/delivered_packets"));
        assert_eq!(offered, delivered + dropped, "{sink:#}");
    }
}

fn returned_packets_reach_the_host(personality: &str) {
    let Some(outcome) = Outcome::of("returned.sh", personality) else { return };
    let (seen, state) = (outcome.seen(), outcome.json("state.json"));
    assert_eq!(seen["session"], 3 + 20 + 7, "SSH survives the start: {seen:?}");
    assert_eq!((seen["echoes"], seen["pings"], seen["intact"]), (20, 10, 1), "{seen:?}");

    let returned = ["management", "clock", "ping"].map(|name| rule(&state, name, "returned_packets"));
    assert_eq!((returned[1], returned[2]), (20, 10), "{state:#}");
    assert!(returned[0] > 1000, "the transfer: {returned:?}");
    assert_eq!(rule(&state, "node", "delivered_packets"), 15, "{state:#}");

    let host = sink(&state, "host");
    assert_sink_balanced(host);
    assert_eq!(sum(host, "/delivered_packets"), returned.iter().sum::<u64>(), "{host:#}");
    assert_eq!(seen["taken"], returned.iter().sum::<u64>(), "the kernel's count of the TAP interface");
    assert_eq!(seen["claimed"], returned.iter().sum::<u64>() + 15, "no packet had another way to the host");
    assert_eq!(sum(sink(&state, "watch"), "/delivered_packets"), 15);
    assert_eq!(number(&state, "/accounting/lost_exceptions"), 0);
    assert_eq!(outcome.read("left.txt"), "", "the interface ends with the daemon");
    outcome.assert_balanced();
}

#[test]
fn packets_left_to_the_host_reach_it_behind_a_hybrid_rule() {
    returned_packets_reach_the_host("ideal");
}

#[test]
fn packets_left_to_the_host_reach_it_behind_a_hybrid_rule_on_mlx5() {
    returned_packets_reach_the_host("mlx5");
}

fn all_traffic_of_the_host(personality: &str) {
    let Some(outcome) = Outcome::of("all.sh", personality) else { return };
    let (seen, state) = (outcome.seen(), outcome.json("state.json"));
    assert_eq!((seen["low"], seen["pings"]), (0, 10), "the rule stands before the sink: {seen:?}");
    assert_eq!((seen["echoes"], seen["intact"]), (20, 1), "{seen:?}");
    assert_eq!(rule(&state, "low", "dropped_packets"), 5, "{state:#}");

    let host = sink(&state, "host");
    assert_sink_balanced(host);
    assert_eq!(sum(host, "/delivered_packets"), rule(&state, "default", "delivered_packets"));
    assert_eq!(sum(host, "/delivered_packets"), seen["taken"], "the kernel's count of the TAP interface");
    let sent = |field: &str| -> u64 {
        host["transmit"].as_array().expect("queues").iter().map(|queue| number(queue, field)).sum()
    };
    // The kernel counts a stream of several segments as one packet.
    assert!(sent("/delivered_packets") >= seen["sent_by_tap"], "{host:#}");
    assert_eq!(sent("/offered_packets"), sent("/delivered_packets"), "{host:#}");
    assert_eq!(host["status"]["offloads"], "checksums, segmentation", "{host:#}");
    let least = 4_000_000 / 1460;
    assert!(sent("/delivered_packets") > least, "the transfer to the client, in segments: {host:#}");
    assert!(seen["sent_by_tap"] < sent("/delivered_packets") / 2, "most are cut here: {seen:?}");
    assert_eq!(seen["long"], 0, "no frame on the cable is longer than the MTU");
    assert!(seen["arrived"] > least, "and the cable was looked at: {seen:?}");
    outcome.assert_balanced();
}

#[test]
fn a_host_behind_the_sink_sends_by_the_port() {
    all_traffic_of_the_host("ideal");
}

#[test]
fn a_host_behind_the_sink_sends_by_the_port_on_mlx5() {
    all_traffic_of_the_host("mlx5");
}

#[test]
fn an_interface_in_trouble_costs_counted_packets_only() {
    let Some(outcome) = Outcome::of("trouble.sh", "mlx5") else { return };
    let state = outcome.json("state.json");
    let (host, counted) = (sink(&state, "host"), sink(&state, "counted"));
    for (reason, packets) in [("down", 30), ("too_long", 40), ("closed", 50), ("ring_full", 0)] {
        let workers = host["workers"].as_array().expect("workers").iter();
        let dropped: u64 = workers.filter_map(|worker| worker["dropped_packets"][reason].as_u64()).sum();
        assert_eq!(dropped, packets, "{reason} in {host:#}");
    }
    assert_eq!(sum(host, "/delivered_packets"), 20 + 1 + 25 + 10, "{host:#}");
    assert_sink_balanced(host);
    assert_eq!(
        sum(counted, "/delivered_packets"),
        20 + 30 + 1 + 40 + 50 + 25 + 10,
        "others are not affected"
    );
    assert_eq!(outcome.seen()["mac"], 1, "the interface that was made anew has the port's address");
    assert_eq!(sink(&outcome.json("down.json"), "host")["status"]["state"], "down");
    let log = outcome.read("steerd.log");
    for part in
        ["host0 is down", "the interface was removed", "is not a TAP interface", "host0 is up, MTU 1500"]
    {
        assert!(log.contains(part), "no {part:?} in\n{log}");
    }
    assert_eq!(log.matches("the interface was removed").count(), 1, "reported once:\n{log}");
    outcome.assert_balanced();
}

#[test]
fn an_interface_that_others_have_used_is_set_right_follows_its_port_and_is_claimed() {
    let Some(outcome) = Outcome::of("adopted.sh", "mlx5") else { return };
    let (seen, state) = (outcome.seen(), outcome.json("state.json"));
    assert_eq!((seen["pings"], seen["pings_after"]), (5, 5), "no frame is shifted: {seen:?}");
    assert_eq!((seen["followed"], seen["reloaded"]), (1, 1), "{seen:?}");
    let (code, second) = (outcome.read("second.code"), outcome.read("second.txt").replace('\n', " "));
    assert_ne!(code.trim(), "0", "{second}");
    let second = second.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in ["sink `host`", "the TAP interface `host0` is in use by process ", "(steerd)", "of its own"] {
        assert!(second.contains(part), "no {part:?} in {second}");
    }
    let log = outcome.read("steerd.log");
    for part in
        ["host0 follows its port", "(perl) has attached to host0", "no other process has queues of host0"]
    {
        assert!(log.contains(part), "no {part:?} in\n{log}");
    }
    assert_sink_balanced(sink(&state, "host"));
    outcome.assert_balanced();
}

#[test]
fn an_unprivileged_daemon_uses_the_interface_of_the_administrator() {
    if !rustix::process::geteuid().is_root() {
        return support::not_run("a TAP interface of another user", "it needs root");
    }
    let Some(outcome) = Outcome::of("privilege.sh", "mlx5") else { return };
    for (name, parts) in [
        (
            "none",
            &["sink `host`", "creating the TAP interface `host0`", "ip tuntap add dev host0 mode tap"][..],
        ),
        ("kind", &["sink `host`", "`host0` exists and is not a TAP interface"]),
        (
            "mac",
            &["sink `host`", "the address of the TAP interface `host0`", "ip link set dev host0 address"],
        ),
    ] {
        let text = outcome.read(&format!("{name}.txt")).replace('\n', " ");
        assert_ne!(outcome.read(&format!("{name}.code")).trim(), "0", "{text}");
        for part in parts {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
    }
    let left = outcome.read("left.txt");
    assert!(left.contains("persist on"), "the administrator's interface stays: {left}");
    for (name, queues) in [("multi.json", 2), ("state.json", 1)] {
        let state = outcome.json(name);
        let host = sink(&state, "host");
        assert_eq!(host["status"]["queues"], queues, "{host:#}");
        assert!(sum(host, "/delivered_packets") >= 1000, "{host:#}");
    }
}

//! Several sinks at once, of which some fail: the others go on at their rate, and every packet is counted.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use steerd_client::{Options, PacketBatch, SinkClient};
use test_support::namespaces;

/// The sinks that are not disturbed.
const HEALTHY: [&str; 3] = ["counted", "roomy", "steady"];
const DISTURBED: [&str; 3] = ["small", "host", "flaky"];
/// The least part of its rate that a healthy sink keeps. The generator's rate is limited, so all of it, but
/// for the moments at which the states are made and the generator's pauses on a loaded machine.
const LEAST_RATE: f64 = 0.7;

/// The client of the script, in a process of its own.
#[test]
#[ignore = "a process of another test"]
fn client_process() {
    let Some(socket) = std::env::var_os("TEST_SOCKET") else { return };
    let options = Options { rings: 2, ring_size: 8192, ..Options::default() };
    let mut client = SinkClient::new(Path::new(&socket), options).expect("a connection");
    println!("connected");
    let mut batch = PacketBatch::new(64);
    loop {
        client.receive(&mut batch, Duration::from_secs(1));
        batch.iter().for_each(|packet| {
            client.send(packet);
        });
        client.flush();
    }
}

struct Counts {
    offered: u64,
    delivered: u64,
    dropped: u64,
    in_flight: i64,
}

/// The sums over the workers, or over those that send.
fn counts(state: &Value, sink: &str, list: &str) -> Counts {
    let sinks = state["sinks"].as_array().expect("sinks");
    let sink = sinks.iter().find(|entry| entry["name"] == sink).expect("the sink");
    let workers = sink[list].as_array().expect("workers");
    let sum = |field: &str| workers.iter().map(|worker| worker[field].as_u64().expect("a number")).sum();
    let dropped = |worker: &Value| -> u64 {
        worker["dropped_packets"].as_object().expect("reasons").values().filter_map(Value::as_u64).sum()
    };
    Counts {
        offered: sum("offered_packets"),
        delivered: sum("delivered_packets"),
        dropped: workers.iter().map(dropped).sum(),
        in_flight: workers.iter().map(|worker| worker["in_flight_packets"].as_i64().expect("a number")).sum(),
    }
}

/// Delivered packets per second between two states.
fn rate(from: &Value, to: &Value, sink: &str) -> f64 {
    let delivered = |state| counts(state, sink, "workers").delivered as f64;
    let uptime = |state: &Value| state["uptime_seconds"].as_f64().expect("seconds");
    (delivered(to) - delivered(from)) / (uptime(to) - uptime(from))
}

#[test]
fn sinks_that_fail_cost_other_sinks_nothing() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chaos/faults.sh");
    let client = std::env::current_exe().expect("this binary").display().to_string();
    let Some(outcome) = namespaces::Outcome::of(&script, env!("CARGO_BIN_EXE_steerd"), &[&client]) else {
        return;
    };
    let state = |name: &str| -> Value {
        let text = outcome.read(&format!("{name}.json"));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}: {text}"))
    };
    let states = ["before-0", "before-1", "during-0", "during-1", "after"].map(state);
    for sink in HEALTHY {
        let before = rate(&states[0], &states[1], sink);
        let during = rate(&states[2], &states[3], sink);
        assert!(before > 0.0 && during >= LEAST_RATE * before, "{sink}: {during} of {before} per second");
    }
    // The faults have happened.
    let lost = |state, sink| counts(state, sink, "workers").dropped;
    for sink in DISTURBED {
        let (before, during) = (lost(&states[1], sink), lost(&states[3], sink));
        assert!(during > before, "{sink}: {before} packets dropped before, {during} after");
    }
    let after = &states[4];
    for sink in HEALTHY.iter().chain(&DISTURBED) {
        let Counts { offered, delivered, dropped, in_flight } = counts(after, sink, "workers");
        assert_eq!((offered, in_flight), (80_000, 0), "{sink}: {after:#}");
        assert_eq!(offered, delivered + dropped, "{sink}: {after:#}");
    }
    // From when their clients had connected they lost nothing.
    for sink in HEALTHY {
        assert_eq!(lost(&states[0], sink), lost(after, sink), "{sink}: {after:#}");
    }
    let sent = counts(after, "flaky", "transmit");
    assert!(sent.delivered > 0 && sent.in_flight == 0, "clients have sent: {after:#}");
    assert_eq!(after["ports"][0]["sent_packets"], sent.delivered, "{after:#}");
    let summary = outcome.read("summary.txt");
    assert!(summary.contains("\npacket accounting matches\n"), "{summary}");
}

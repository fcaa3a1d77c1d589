//! `steerd size`: loads of workers, recommendations, losses.

use std::path::Path;
use std::time::Duration;

use packet::RssKey;
use pcap_file::pcap::{PcapPacket, PcapWriter};
use serde_json::Value;
use tempfile::TempDir;

use super::rig::{dns_frame, policies, run_in, write_pcap};
use crate::support::{stderr, stdout};

/// A policy whose only group has these keys.
pub(super) fn policy(group: &str) -> String {
    format!(
        "version = 1\n[groups.main]\n{group}\n[[rules]]\nname = \"udp\"\nmatch = {{ protocol = \"udp\" }}\n\
         action = {{ steer = \"main\" }}\n"
    )
}

/// A number of packets of a flow.
pub(super) fn flow(port: u16, packets: usize) -> Vec<Vec<u8>> {
    vec![dns_frame().udp(port, 53).build(); packets]
}

/// Many small flows.
pub(super) fn mice(count: u16) -> Vec<Vec<u8>> {
    (0..count).flat_map(|port| flow(1000 + port, 1 + usize::from(port % 3))).collect()
}

pub(super) fn folder(group: &str, frames: &[Vec<u8>]) -> TempDir {
    let folder = policies(&[("p.toml", &policy(group))]);
    write_pcap(&folder.path().join("c.pcap"), frames);
    folder
}

fn size(folder: &TempDir, args: &[&str]) -> Value {
    let args = [&["size", "p.toml", "--traffic", "c.pcap", "--format", "json"], args].concat();
    let output = run_in(folder, &args);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

pub(super) fn number(value: &Value, pointer: &str) -> f64 {
    value.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("{pointer} of {value:#}"))
}

fn packets_of_workers(group: &Value) -> Vec<u64> {
    let workers = group["workers"].as_array().expect("workers").iter();
    workers.map(|worker| worker["packets"].as_u64().expect("packets")).collect()
}

#[test]
fn a_flow_that_is_too_large_for_a_worker_is_found() {
    let folder = folder("workers = 4", &[flow(7, 500), mice(250)].concat());
    let answer = size(&folder, &["--rate", "1e6", "--ns-per-packet", "2500"]);
    let group = &answer["groups"][0];
    let largest = &group["largest_flows"][0];
    assert_eq!((&group["flows"], &largest["packets"]), (&251.into(), &500.into()), "{group:#}");
    let share = 500.0 / number(group, "/packets");
    assert!((number(largest, "/of_worker_share") - 4.0 * share).abs() < 1e-9, "{largest:#}");
    assert!(
        largest["packet"].as_str().is_some_and(|text| text.starts_with("10.1.0.1:7 > 192.0.2.53:53 udp"))
    );
    assert!((number(group, "/least_possible") - 4.0 * share).abs() < 1e-9);
    assert!(number(group, "/recommended/largest_to_mean") >= 4.0 * share, "no key splits it");
    // Half of a million packets per second are more than the 400 000 that a worker takes.
    assert_eq!(group["recommended"]["workers"], Value::Null);
    assert_eq!(group["recommended"]["too_much_for_any"], true);
    let text = stdout(&run_in(
        &folder,
        &["size", "p.toml", "--traffic", "c.pcap", "--ns-per-packet", "2500", "--rate", "1e6"],
    ));
    assert!(text.contains("no number of workers up to 64") && text.contains("10.1.0.1:7 > "), "{text}");
}

#[test]
fn a_recommended_key_separates_flows_that_collide() {
    let key = RssKey::SYMMETRIC;
    let worker_of = |port: u16| {
        let folder = folder("workers = 2", &flow(port, 1));
        packets_of_workers(&size(&folder, &["--keys", "0"])["groups"][0])[1]
    };
    let first = worker_of(1);
    let other = (2..64).find(|port| worker_of(*port) == first).expect("a port with the same worker");
    let folder = folder("workers = 2", &[flow(1, 10), flow(other, 10)].concat());
    let before = size(&folder, &["--keys", "0"]);
    assert_eq!(number(&before, "/groups/0/largest_to_mean"), 2.0, "{before:#}");
    assert_eq!(before["groups"][0]["recommended"]["key"], Value::Null, "no other key was tried");
    let found = size(&folder, &["--keys", "64"]);
    assert_eq!(found, size(&folder, &["--keys", "64"]), "deterministic");
    let recommended = &found["groups"][0]["recommended"];
    assert_eq!(number(recommended, "/largest_to_mean"), 1.0, "{recommended:#}");
    let better = recommended["key"].as_str().expect("a key");
    assert_ne!(better, key.to_string());
    // The policy with that key does what was promised, and is as symmetric as before.
    let text = policy(&format!("workers = 2\nsymmetric = true\nkey = \"{better}\""));
    std::fs::write(folder.path().join("p.toml"), text).expect("written");
    let after = size(&folder, &["--keys", "0"]);
    assert_eq!(number(&after, "/groups/0/largest_to_mean"), 1.0, "{after:#}");
}

#[test]
fn recommended_weights_do_what_they_promise() {
    let folder = folder("workers = 2", &[flow(7, 300), mice(300)].concat());
    let found = size(&folder, &["--keys", "0"]);
    let recommended = &found["groups"][0]["recommended"];
    // An mlx4 has no weights.
    let mlx4 = size(&folder, &["--keys", "0", "--model", "mlx4"]);
    assert_eq!(mlx4["groups"][0]["recommended"]["weights"], Value::Null, "{mlx4:#}");
    let promised = number(recommended, "/weighted_largest_to_mean");
    assert!(promised < number(&found, "/groups/0/largest_to_mean") - 0.05, "{recommended:#}");
    let weights: Vec<String> = recommended["weights"]
        .as_array()
        .expect("weights")
        .iter()
        .map(|weight| format!("{} = {}", weight["worker"], weight["weight"]))
        .collect();
    let text = policy(&format!("weights = {{ {} }}", weights.join(", ")));
    std::fs::write(folder.path().join("p.toml"), text).expect("written");
    let after = size(&folder, &["--keys", "0"]);
    assert!((number(&after, "/groups/0/largest_to_mean") - promised).abs() < 1e-9, "{after:#}");
}

/// The soft NIC plays the capture; every worker gets what was computed for it.
#[test]
fn the_workers_of_a_running_soft_nic_receive_what_was_computed() {
    let other = dns_frame().tcp(5, 6, 2).build();
    let folder = folder("weights = { 0 = 3, 1 = 1 }", &[mice(400), vec![other; 9]].concat());
    let settings = "[policy]\nfile = \"p.toml\"\n[workers]\ncores = 2\nframes = 8192\npages = [\"plain\"]\n\
                    [http]\nlisten = \"off\"\n[api]\nenabled = false\n[[softnic.ports]]\n\
                    wire = { kind = \"pcap\", path = \"c.pcap\", mode = \"once\" }\n";
    std::fs::write(folder.path().join("s.toml"), settings).expect("written");
    let output = run_in(&folder, &["run", "--config", "s.toml", "--for", "60s", "--format", "json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let state: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(state["accounting"]["matches"], true, "{state:#}");
    let workers = state["workers"].as_array().expect("workers").iter();
    let received: Vec<u64> =
        workers.map(|worker| worker["received_packets"].as_u64().expect("packets")).collect();
    let computed = packets_of_workers(&size(&folder, &["--workers", "2"])["groups"][0]);
    assert_eq!(computed, received);
    assert!(received[0] > 2 * received[1] && received[1] > 0, "{received:?}");
    assert_eq!(received.iter().sum::<u64>() + 9, state["accounting"]["received"].as_u64().expect("received"));
}

/// A packet of one flow each millisecond.
fn write_paced(path: &Path, packets: u64) {
    let mut writer = PcapWriter::new(std::fs::File::create(path).expect("created")).expect("header");
    let frame = &flow(7, 1)[0];
    for number in 0..packets {
        let length = u32::try_from(frame.len()).expect("length");
        let packet = PcapPacket::new(Duration::from_millis(number), length, frame);
        writer.write_packet(&packet).expect("packet");
    }
}

#[test]
fn what_exceeds_the_capacity_of_a_worker_is_lost() {
    let folder = policies(&[("p.toml", &policy("workers = 2"))]);
    write_paced(&folder.path().join("c.pcap"), 1001);
    let ns = ["--ns-per-packet", "250000"];
    let loss = |args: &[&str]| number(&size(&folder, &[&ns[..], args].concat()), "/expected_loss");
    // 1 000 packets per second, and 4 000 for each worker.
    let answer = size(&folder, &ns);
    assert!((number(&answer, "/rate") - 1001.0).abs() < 1e-6, "{answer:#}");
    assert_eq!(number(&answer, "/worker_capacity"), 4000.0);
    assert_eq!(loss(&[]), 0.0);
    assert_eq!(loss(&["--times", "3.9"]), 0.0);
    assert!((loss(&["--times", "8"]) - 0.5).abs() < 0.01, "{}", loss(&["--times", "8"]));
    assert!((loss(&["--rate", "8000"]) - 0.5).abs() < 0.01);
    let workers = size(&folder, &[&ns[..], &["--times", "8"]].concat());
    let loads: Vec<f64> = (0..2).map(|at| number(&workers, &format!("/workers/{at}/load"))).collect();
    assert!(loads.contains(&0.0) && loads.iter().any(|load| (load - 2.0).abs() < 0.01), "{loads:?}");
    let none = size(&folder, &[]);
    assert_eq!((&none["expected_loss"], &none["worker_capacity"]), (&Value::Null, &Value::Null));
}

#[test]
fn unusable_input_is_refused() {
    let folder = folder("workers = 2", &flow(7, 2));
    let whole = std::fs::read(folder.path().join("c.pcap")).expect("read");
    std::fs::write(folder.path().join("cut.pcap"), &whole[..whole.len() - 3]).expect("written");
    write_pcap(&folder.path().join("empty.pcap"), &[]);
    for (args, code, reason) in [
        (&["--traffic", "cut.pcap"][..], 1, "after packet 1: the file ends in the middle"),
        (&["--traffic", "empty.pcap"], 1, "the capture has no packets"),
        (&["--traffic", "none.pcap"], 1, "cannot read the capture"),
        (&["--traffic", "/dev/null"], 1, "this is a device, not a regular file (hint: "),
        (&[], 2, "--traffic"),
        (&["--traffic", "c.pcap", "--times", "0"], 2, "greater than 0"),
        (&["--traffic", "c.pcap", "--ns-per-packet", "nan"], 2, "greater than 0"),
    ] {
        let output = run_in(&folder, &[&["size", "p.toml"], args].concat());
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(reason), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).matches("hint: ").count() <= 1, "{args:?}: {}", stderr(&output));
    }
}

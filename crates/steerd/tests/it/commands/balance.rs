//! `steerd balance --dry-run`: moves, predicted loads, elephants.

use serde_json::Value;
use tempfile::TempDir;

use super::rig::run_in;
use super::size::{flow, folder, mice, number, policy};
use crate::support::{stderr, stdout};

const ARGS: [&str; 5] = ["balance", "p.toml", "--dry-run", "--traffic", "c.pcap"];

fn groups(folder: &TempDir) -> Vec<Value> {
    let output = run_in(folder, &[&ARGS[..], &["--json"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    answer["groups"].as_array().expect("groups").clone()
}

fn list<'v>(value: &'v Value, key: &str) -> &'v [Value] {
    value[key].as_array().unwrap_or_else(|| panic!("{key} of {value:#}"))
}

/// The loads after are those before, changed by the shares of the moves; each entry moves once and from the
/// worker that the table of the group has there.
#[test]
fn predicted_loads_follow_from_the_moves() {
    let weights = "weights = { 0 = 6, 1 = 1, 2 = 1 }\ntable_size = 128";
    let folder = folder(weights, &mice(3000));
    let group = &groups(&folder)[0];
    let (before, after) = (number(group, "/largest_to_mean_before"), number(group, "/largest_to_mean_after"));
    assert!(before > 1.8 && after < 1.1, "{group:#}");
    let moves = list(group, "moves");
    let mut shares = [0.0, 0.0, 0.0];
    for worker in list(group, "workers") {
        shares[number(worker, "/worker") as usize] = number(worker, "/before");
    }
    for moved in moves {
        shares[number(moved, "/from") as usize] -= number(moved, "/share");
        shares[number(moved, "/to") as usize] += number(moved, "/share");
        assert!(number(moved, "/share") > 0.0, "{moved:#}");
    }
    for worker in list(group, "workers") {
        let after = number(worker, "/after");
        assert!((shares[number(worker, "/worker") as usize] - after).abs() < 1e-6, "{group:#}");
    }
    assert!(moves.len() > 16 && number(group, "/table_changes") >= 2.0, "limited by step: {group:#}");
    let most = moves.iter().filter(|moved| moved["step"] == 1).count();
    assert_eq!(most, 16, "{group:#}");
    assert_eq!(groups(&folder), groups(&folder), "deterministic");
    let text = stdout(&run_in(&folder, &ARGS));
    assert!(text.contains("nothing is moved") && text.contains("balanced: no worker"), "{text}");
}

#[test]
fn a_flow_that_no_table_splits_is_named() {
    let folder = folder("workers = 4", &[flow(7, 900), mice(250)].concat());
    let group = &groups(&folder)[0];
    let elephants = list(group, "elephants");
    assert_eq!((elephants.len(), &group["end"]), (1, &"elephant".into()), "{group:#}");
    assert!(number(&elephants[0], "/of_worker_share") > 1.5, "{group:#}");
    let packet = elephants[0]["packet"].as_str();
    assert!(packet.is_some_and(|text| text.starts_with("10.1.0.1:7 > 192.0.2.53:53 udp")), "{group:#}");
    let moved_elephant = list(group, "moves").iter().any(|moved| moved["entry"] == elephants[0]["entry"]);
    assert!(!moved_elephant, "{group:#}");
    let text = stdout(&run_in(&folder, &ARGS));
    assert!(text.contains("no table splits") && text.contains("10.1.0.1:7 > "), "{text}");
}

#[test]
fn even_traffic_moves_nothing() {
    let even: Vec<Vec<u8>> = (0..4000).flat_map(|port| flow(1000 + port, 1)).collect();
    let folder = folder("workers = 2", &even);
    let group = &groups(&folder)[0];
    assert_eq!((list(group, "moves").len(), &group["end"]), (0, &"balanced".into()), "{group:#}");
    std::fs::write(folder.path().join("p.toml"), policy("workers = 1")).expect("written");
    assert_eq!(groups(&folder)[0]["end"], "one_worker");
}

#[test]
fn moves_without_a_dry_run_are_refused() {
    let folder = folder("workers = 2", &mice(10));
    let output = run_in(&folder, &["balance", "p.toml", "--traffic", "c.pcap"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("moves no entries") && stderr(&output).contains("--dry-run"));
    let output = run_in(&folder, &["balance", "p.toml", "--dry-run", "--traffic", "missing.pcap"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
}

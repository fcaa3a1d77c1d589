//! The flight recorder: `steerd record`, records that the daemon writes by itself, and recorders that cannot
//! be had.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use crate::api::Place;
use crate::support::{Daemon, stderr};
use crate::traces::{CommentedPacket, commented_packets};

/// The device decides `scan` and `dns`; a worker decides `syn`.
const POLICY: &str = r#"
version = 1
default = "kernel"
allow_lost_exceptions = true
[sinks.counted]
kind = "count"
[groups.every]
workers = "all"
sinks = "counted"
[[rules]]
name = "scan"
match = { src = "198.51.100.0/24" }
action = "drop"
[[rules]]
name = "dns"
match = { protocol = "udp", dst_port = 53 }
action = "steer every"
[[rules]]
name = "syn"
match = { protocol = "tcp", tcp_flags = "syn,!ack" }
action = "drop"
[[rules]]
name = "web"
match = { protocol = "tcp", dst_port = 443 }
action = "steer every"
"#;

fn policy(recorder: &str) -> String {
    format!("{POLICY}{recorder}")
}

/// The packets of a record by rule and comment; times must not decrease.
fn packets(bytes: &[u8]) -> BTreeMap<String, u64> {
    let packets = commented_packets(bytes);
    assert!(packets.is_sorted_by_key(|packet| packet.time), "in order");
    let mut counts = BTreeMap::new();
    for CommentedPacket { rule, comment, kept_bytes, .. } in packets {
        assert!(kept_bytes <= 64);
        let (outcome, _worker) = comment.rsplit_once(", worker ").expect("the worker");
        *counts.entry(format!("{rule}: {outcome}")).or_default() += 1;
    }
    counts
}

/// Waits until the recorder has packets.
fn until_recorded(daemon: &Daemon) {
    daemon.until("packets are recorded", |daemon| {
        let sinks = daemon.state()["sinks"].as_array().cloned().unwrap_or_default();
        sinks.iter().any(|sink| sink["kind"] == "recorder" && sink["status"]["packets"].as_u64() > Some(1000))
    });
}

#[test]
fn a_record_has_the_packets_of_all_rules_that_workers_decide() {
    let place = Place::new(&policy("[recorder]\nmemory = \"2 MiB\"\nsnap = 64\n"));
    let daemon = place.start();
    until_recorded(&daemon);
    let record = place.run(&["record", "-w", "all.pcapng"]);
    assert!(record.status.success() && stderr(&record).contains(" packets written"), "{}", stderr(&record));
    let file = place.path("all.pcapng");
    assert_eq!(std::fs::metadata(&file).expect("written").permissions().mode() & 0o777, 0o600);
    let all = packets(&std::fs::read(&file).expect("written"));
    for name in [
        "dns: delivered to every, sinks counted",
        "web: delivered to every, sinks counted",
        "syn: dropped by a worker",
    ] {
        assert!(all.contains_key(name), "{name}: {all:?}");
    }
    assert!(all.keys().all(|name| !name.starts_with("scan")), "the device drops them: {all:?}");
    // To a pipe, by a match.
    let piped = place.run(&["record", "--last", "1h", "protocol = \"tcp\", dst_port = 443", "-w", "-"]);
    let names: Vec<String> = packets(&piped.stdout).into_keys().collect();
    assert!(!names.is_empty() && names.iter().all(|name| !name.starts_with("dns")), "{names:?}");
    let wrong = place.run(&["record", "dst_prot = 53", "-w", "wrong.pcapng"]);
    assert!(stderr(&wrong).contains("unknown key `dst_prot`"), "{}", stderr(&wrong));
    assert!(!place.path("wrong.pcapng").exists());
    let (status, summary, log) = daemon.terminate();
    assert!(status.success() && summary.contains("\npacket accounting matches\n"), "{summary}{log}");
}

#[test]
fn a_reload_changes_the_recorder() {
    let place = Place::new(POLICY);
    let daemon = place.start();
    let refused = place.run(&["record", "-w", "x.pcapng"]);
    assert!(
        !refused.status.success() && stderr(&refused).contains("has no recorder"),
        "{}",
        stderr(&refused)
    );
    assert!(!place.path("x.pcapng").exists());
    let recorders = || {
        let sinks = daemon.state()["sinks"].as_array().cloned().unwrap_or_default();
        sinks.into_iter().filter(|sink| sink["kind"] == "recorder").count()
    };
    assert_eq!(recorders(), 0, "no memory is taken");
    place.write("p.toml", &policy("[recorder]\nmemory = \"2 MiB\"\nsnap = 64\nrules = [\"syn\"]\n"));
    place.ok(&["reload"]);
    daemon.until("a packet of syn", |_| {
        let record = place.run(&["record", "-w", "-"]);
        let found = packets(&record.stdout);
        assert!(found.keys().all(|name| name == "syn: dropped by a worker"), "{found:?}");
        !found.is_empty()
    });
    // More than the host has: the policy in force stays, with its recorder.
    place.write("p.toml", &policy("[recorder]\nmemory = \"1024 GiB\"\n"));
    let reload = place.run(&["reload"]);
    let text = stderr(&reload);
    assert!(!reload.status.success() && text.contains("recorder: its memory cannot be had"), "{text}");
    assert!(place.run(&["record", "-w", "x.pcapng"]).status.success());
    place.write("p.toml", POLICY);
    place.ok(&["reload"]);
    daemon.until("the recorder has gone", |_| recorders() == 0);
    let (status, _, log) = daemon.terminate();
    assert!(status.success(), "{log}");
}

/// The records in the folder of the state.
fn records(state: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(state.join("records")).into_iter().flatten();
    entries.map(|entry| entry.expect("an entry").path()).collect()
}

#[test]
fn triggers_and_a_signal_write_records() {
    let place = Place::new(&policy(
        "[recorder]\nmemory = \"2 MiB\"\nsnap = 64\n[[recorder.triggers]]\nrule = \"dns\"\npackets_per_second = 100\n",
    ));
    let state = place.path("state");
    std::fs::create_dir(&state).expect("a folder");
    let mut command = place.daemon();
    command.env("STEERD_STATE__FOLDER", &state);
    let daemon = Daemon::start_command(&mut command);
    // The rate goes on: it is one record.
    daemon.until("the trigger fires", |_| records(&state).len() == 1);
    let written =
        |result: &str| daemon.metric("steerd_recorder_records_total", &[&format!("result=\"{result}\"")]);
    daemon.until("it is counted", |_| written("written") == 1.0);
    let file = records(&state).remove(0);
    daemon.until("it is whole", |_| std::fs::read(&file).is_ok_and(|bytes| !packets(&bytes).is_empty()));
    daemon.signal(Signal::USR1);
    daemon.until("the signal writes one", |_| written("written") == 2.0 && records(&state).len() == 2);
    assert_eq!(written("failed"), 0.0);
    let last = daemon.state()["records"]["last_file"].as_str().map(PathBuf::from).expect("a file");
    assert!(records(&state).contains(&last), "{}", last.display());
    let (status, _, log) = daemon.terminate();
    assert!(status.success() && log.contains("rule dns decides 100 packets per second or more"), "{log}");
    assert!(log.contains("recorder: SIGUSR1: "), "{log}");
}

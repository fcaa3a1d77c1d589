//! The daemon while its device fails, with both providers of the soft NIC: receive queues fail under traffic
//! and recover, or fail again and again; a link goes down and comes up; the device fails for good, or is
//! removed.

use std::fmt;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::libmlx5;
use crate::support::{Daemon, config, steerd};

/// A provider, and how workers receive by it.
#[derive(Clone, Copy)]
struct ProviderUse {
    provider: &'static str,
    receive: &'static str,
}

impl ProviderUse {
    /// Sets it for a daemon, on a soft NIC with the limits of an mlx5 and these faults.
    fn set(self, command: &mut Command, faults: &str) {
        let Self { provider, receive } = self;
        command.env("STEERD_SOFTNIC__PROVIDER", provider).env("STEERD_SOFTNIC__PERSONALITY", "mlx5");
        command.env("STEERD_SOFTNIC__FAULTS", faults).env("STEERD_DEVICE__RECEIVE", receive);
    }
}

impl fmt::Display for ProviderUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.provider, self.receive)
    }
}

/// The providers that can be used here.
fn providers() -> impl Iterator<Item = ProviderUse> {
    let has_mlx5 = libmlx5::softnic().is_some();
    let all = libmlx5::PROVIDERS.into_iter().filter(move |(provider, _)| has_mlx5 || *provider != "mlx5");
    all.map(|(provider, receive)| ProviderUse { provider, receive })
}

/// `run --demo` on a soft NIC with the limits of an mlx5, with these faults.
fn demonstration(under: ProviderUse, faults: &str) -> Command {
    let mut command = steerd();
    command.args(["run", "--demo", "--format", "json"]);
    under.set(&mut command, faults);
    command
}

fn summary(text: &str) -> serde_json::Value {
    serde_json::from_str(text).expect("JSON")
}

/// The sum over both workers.
fn of_workers(daemon: &Daemon, metric: &str) -> f64 {
    ["worker=\"0\"", "worker=\"1\""].iter().map(|worker| daemon.metric(metric, &[worker])).sum()
}

#[test]
fn failed_queues_recover_under_traffic() {
    for provider in providers() {
        // The second one is reported by an event alone.
        let mut daemon =
            Daemon::start_command(&mut demonstration(provider, "queue@5000,stuck-queue@100000,queue@300000"));
        daemon.until("three recoveries", |daemon| {
            of_workers(daemon, "steerd_worker_queue_recoveries_total") > 2.5
        });
        daemon.wait_for("its receive queue failed", 1);
        let failed = "event=\"receive_queue_failed\"";
        daemon.until("three events", |daemon| daemon.metric("steerd_device_events_total", &[failed]) > 2.5);
        daemon.until_page("/readyz", &(200, "ready\n".into()));
        assert!(of_workers(&daemon, "steerd_worker_queue_failed") < 0.5);
        assert!(daemon.metric("steerd_device_state", &["state=\"working\""]) > 0.5);
        let received = |daemon: &Daemon| of_workers(daemon, "steerd_worker_received_packets_total");
        let before = received(&daemon);
        daemon.until("packets flow again", |daemon| received(daemon) > before + 20_000.0);
        let (status, text, log) = daemon.terminate();
        assert!(status.success(), "{provider}: {log}");
        let summary = summary(&text);
        assert_eq!(summary["accounting"]["matches"], true, "{provider}: {summary:#}");
        let workers = summary["workers"].as_array().expect("workers").iter();
        let recoveries: u64 =
            workers.map(|worker| worker["queue_recoveries"].as_u64().expect("a count")).sum();
        // One event may be taken for a failure of its own, never more.
        assert!((3..=4).contains(&recoveries), "{provider}: {recoveries}, {log}");
    }
}

#[test]
fn repeated_failures_end_the_daemon() {
    for provider in providers() {
        let daemon = Daemon::start_command(&mut demonstration(provider, "queue@2000/2000"));
        let (status, text, log) = daemon.end();
        assert_eq!(status.code(), Some(70), "{provider}: {log}");
        let verdict = "has failed again after 5 recoveries within 60 s (last failed receive: flushed)";
        assert!(log.contains("the receive queue of worker") && log.contains(verdict), "{provider}: {log}");
        assert!(log.contains("journalctl -k"), "{provider}: {log}");
        let summary = summary(&text);
        assert_eq!(summary["accounting"]["matches"], true, "{provider}: {summary:#}");
    }
}

#[test]
fn a_link_that_comes_back_is_ready_again() {
    for provider in providers() {
        let mut daemon = Daemon::start_command(&mut demonstration(provider, "link@20000+3000"));
        daemon.until("not ready", |daemon| daemon.page("/readyz").0 == 503);
        let (_, why) = daemon.page("/readyz");
        assert!(why.starts_with("not ready: port 1 (") && why.ends_with("is down\n"), "{why}");
        daemon.until("the metric", |daemon| daemon.metric("steerd_port_up", &["port=\"1\""]) < 0.5);
        daemon.wait_for("is up again", 1);
        daemon.until_page("/readyz", &(200, "ready\n".into()));
        daemon.until("the metric", |daemon| daemon.metric("steerd_port_up", &["port=\"1\""]) > 0.5);
        for event in ["event=\"port_down\"", "event=\"port_up\""] {
            daemon.until(event, |daemon| daemon.metric("steerd_device_events_total", &[event]) > 0.5);
        }
        let (status, text, log) = daemon.terminate();
        assert!(status.success(), "{provider}: {log}");
        assert_eq!(summary(&text)["accounting"]["matches"], true, "{provider}: {text}");
    }
}

/// The output and the log of a daemon that ends because it has lost its device.
fn end_without_device(daemon: Daemon, provider: ProviderUse) -> (String, String) {
    let begun = Instant::now();
    let (status, text, log) = daemon.end();
    assert_eq!(status.code(), Some(70), "{provider}: {log}");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert!(
        !log.contains("did not end in time") && !log.contains("accounting mismatch"),
        "{provider}: {log}"
    );
    (text, log)
}

#[test]
fn a_device_that_fails_ends_the_daemon_soon() {
    for provider in providers() {
        let mut daemon = Daemon::start_command(&mut demonstration(provider, "device@50000"));
        daemon.wait_for("has failed for good", 1);
        let (text, log) = end_without_device(daemon, provider);
        assert!(log.matches("it is leaked").count() < 10, "{provider}: {log}");
        assert_eq!(summary(&text)["device"]["condition"], "failed", "{provider}: {text}");
    }
}

/// A removal without an event: the events end, and all verbs fail with EIO.
#[test]
fn a_silently_removed_device_is_gone() {
    for provider in providers() {
        let mut daemon = Daemon::start_command(&mut demonstration(provider, "removal@50000"));
        daemon.wait_for("is gone: it was removed", 1);
        let (text, log) = end_without_device(daemon, provider);
        for part in ["a new start succeeds once it is back", "journalctl -k"] {
            assert!(log.contains(part), "{provider}: no {part:?} in {log}");
        }
        let summary = summary(&text);
        assert_eq!(summary["device"]["condition"], "gone", "{provider}: {text}");
        assert_eq!(
            summary["device"]["events"]["device_failed"],
            serde_json::Value::Null,
            "{provider}: {text}"
        );
    }
}

const FORWARD: &str = "version = 1\n[sinks.out]\nkind = \"forward\"\nport = 1\n\
                       [groups.g]\nworkers = \"all\"\nsinks = \"out\"\n\
                       [[rules]]\nname = \"udp\"\nmatch = { protocol = \"udp\" }\naction = { steer = \"g\" }\n";

#[test]
fn a_failed_queue_pair_of_a_sink_is_replaced() {
    let folder = tempfile::tempdir().expect("folder");
    let policy = folder.path().join("p.toml");
    std::fs::write(&policy, FORWARD).expect("written");
    for provider in providers() {
        let mut command = steerd();
        command.args(["run", "--format", "json", "--config"]).arg(config().join("demo.toml"));
        command.arg("--policy").arg(&policy);
        provider.set(&mut command, "send-queue@20000");
        let daemon = Daemon::start_command(&mut command);
        let replaced = |daemon: &Daemon| daemon.state()["sinks"][0]["status"]["queue_pairs_replaced"] == 1;
        daemon.until("another queue pair", replaced);
        let failed = "event=\"queue_pair_failed\"";
        daemon.until("the event", |daemon| daemon.metric("steerd_device_events_total", &[failed]) > 0.5);
        let sent = |daemon: &Daemon| daemon.metric("steerd_port_sent_packets_total", &["port=\"1\""]);
        let before = sent(&daemon);
        daemon.until("packets are sent again", |daemon| sent(daemon) > before + 20_000.0);
        let (status, text, log) = daemon.terminate();
        assert!(status.success(), "{provider}: {log}");
        assert_eq!(summary(&text)["accounting"]["matches"], true, "{provider}: {text}");
    }
}

#[test]
fn wrong_faults_are_refused() {
    let output = demonstration(ProviderUse { provider: "softnic", receive: "verbs" }, "queue@")
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(78));
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains("softnic.faults: `queue@` is no fault"), "{message}");
}

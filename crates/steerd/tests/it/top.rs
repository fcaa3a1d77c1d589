//! `steerd top` where it prints once, and the time that a worker waits for its core.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use core_affinity::CoreId;
use serde_json::Value;

use crate::support::{Daemon, Patience, stderr, stdout, steerd};

/// Long enough for a machine that other tests keep busy.
const PATIENCE: Duration = Duration::from_secs(120);
/// A policy that one worker is enough for.
const ONE_WORKER: &str = r#"version = 1
[groups.everyone]
workers = "all"
[[rules]]
name = "dns"
match = { dst_port = 53, protocol = "udp" }
action = { steer = "everyone" }
"#;
const WAITED: &str = "steerd_worker_cpu_wait_seconds_total";

/// The demonstration with an API.
struct Demo {
    daemon: Daemon,
    folder: tempfile::TempDir,
}

impl Demo {
    /// With this policy, or its own.
    fn start(settings: &[(&str, &str)], policy: Option<&str>) -> Self {
        let folder = tempfile::tempdir().expect("folder");
        let mut command = steerd();
        command.env("STEERD_API__ENABLED", "true").envs(settings.iter().copied());
        command.args(["run", "--demo", "--api-socket"]).arg(Self::socket_in(folder.path()));
        if let Some(policy) = policy {
            let path = folder.path().join("policy.toml");
            std::fs::write(&path, policy).expect("written");
            command.arg("--policy").arg(path);
        }
        Self { daemon: Daemon::start_command(&mut command), folder }
    }

    fn socket_in(folder: &Path) -> PathBuf {
        folder.join("api.sock")
    }

    fn top(&self, args: &[&str]) -> Output {
        let mut command: Command = steerd();
        command.arg("top").args(args).arg("--api-socket").arg(Self::socket_in(self.folder.path()));
        command.stdin(Stdio::null()).output().expect("the binary runs")
    }

    fn json(&self, args: &[&str]) -> Value {
        let output = self.top(args);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", stderr(&output)))
    }
}

#[test]
fn a_page_is_sorted_and_limited_for_pipes() {
    let demo = Demo::start(&[], None);
    let is_busy = |daemon: &Daemon| daemon.metric("steerd_rule_packets_total", &["rule=\"dns\""]) > 100.0;
    demo.daemon.until("packets", is_busy);
    let printed = stdout(&demo.top(&["--page", "rules", "--sort", "rule", "--reverse", "--rows", "2"]));
    let names: Vec<&str> = printed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, ["rule", "web-syn", "web"], "{printed}");
    let printed = stdout(&demo.top(&["--page", "rules", "--filter", "DELIVER TO WEB", "--once"]));
    assert_eq!(printed.lines().count(), 3, "the head and two rules: {printed}");
    let json = demo.json(&["--page", "rules", "--sort", "packets", "--rows", "3", "--json"]);
    let packets: Vec<u64> =
        json["rules"].as_array().expect("rules").iter().filter_map(|rule| rule["packets"].as_u64()).collect();
    assert_eq!(packets.len(), 3, "{json:#}");
    assert!(packets.is_sorted_by(|one, other| one >= other) && packets[0] > 100, "{packets:?}");
    assert_eq!((&json["ports"], &json["workers"]), (&Value::Array(vec![]), &Value::Array(vec![])));
    // All pages in full without options.
    let all = demo.json(&["--json"]);
    let has = |list: &str| all[list].as_array().is_some_and(|list| !list.is_empty());
    assert!(
        has("rules") && has("workers") && has("sinks") && has("ports") && all["drops"].is_array(),
        "{all:#}"
    );
    assert_eq!((&all["ready"], &all["problem"]), (&Value::Bool(true), &Value::Null));
}

#[test]
fn misspelt_pages_and_columns_are_named() {
    let refused = |args: &[&str]| {
        let output = steerd().arg("top").args(args).stdin(Stdio::null()).output().expect("the binary runs");
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        stderr(&output)
    };
    let message = refused(&["--page", "ruls"]);
    for part in ["'ruls'", "rules, workers, sinks, ports, flows, drops", "'rules'"] {
        assert!(message.contains(part), "no {part} in {message}");
    }
    let message = refused(&["--page", "workers", "--sort", "iddle"]);
    let expected = "top: the page `workers` has no column `iddle` (hint: did you mean `idle`? its columns are worker, core, \
                    packets, bytes, packets/s, bits/s, lost, busy, idle, no core)";
    assert!(message.contains(expected), "{message}");
    assert!(refused(&["--sort", "packets"]).contains("--page"), "the columns are those of a page");
    assert!(refused(&["--rows", "0"]).contains("--rows"));
}

/// Threads of this process that take a core from others, at the same priority.
struct BusyCore {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl BusyCore {
    fn start(core: CoreId, threads: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let spin = || {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                assert!(core_affinity::set_for_current(core), "pinned to {core:?}");
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        };
        let threads = (0..threads).map(|_| spin()).collect();
        Self { stop, threads }
    }
}

impl Drop for BusyCore {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// The seconds for which the thread of worker 0 waited for a core, from the kernel.
fn waited_by_kernel(daemon: &Daemon) -> f64 {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).expect("threads").flatten();
    let read = |task: &Path, file: &str| std::fs::read_to_string(task.join(file)).unwrap_or_default();
    let worker = tasks.map(|task| task.path()).find(|task| read(task, "comm").trim() == "worker-0");
    let times = read(&worker.expect("a thread of worker 0"), "schedstat");
    times.split_whitespace().nth(1).and_then(|ns| ns.parse::<f64>().ok()).expect("nanoseconds") / 1e9
}

/// Two programs that never sleep have the core of a worker that never sleeps either: it has a third of it.
#[test]
fn a_starved_worker_is_not_idle() {
    let core = core_affinity::get_core_ids().expect("cores")[0];
    let cores = format!("[{}]", core.id);
    let settings = [("STEERD_WORKERS__CORES", cores.as_str()), ("STEERD_WORKERS__IDLE", "spin")];
    let demo = Demo::start(&settings, Some(ONE_WORKER));
    let daemon = &demo.daemon;
    let before = waited_by_kernel(daemon);
    let busy = BusyCore::start(core, 2);
    let mut patience = Patience::new(PATIENCE);
    while daemon.metric(WAITED, &["worker=\"0\""]) < before + 1.0 {
        assert!(!patience.is_over(), "it never waits: {}", daemon.metrics());
        std::thread::sleep(Duration::from_millis(50));
    }
    // It has about a third of the core, whatever else runs. Other tests can only take more.
    let starved = loop {
        let top = demo.json(&["--page", "workers", "--json"]);
        let part = |key: &str| top["workers"][0][key].as_f64().unwrap_or_else(|| panic!("no {key}: {top:#}"));
        let (idle, busy, waiting) = (part("idle"), part("busy"), part("waiting"));
        assert!((idle + busy + waiting - 1.0).abs() < 0.01, "they are not the whole: {top:#}");
        if waiting > 0.3 {
            break (idle, waiting);
        }
        assert!(!patience.is_over(), "it waits for {waiting} of the time");
    };
    assert!(starved.0 < 0.7, "it is not idle while it waits: {starved:?}");
    let printed = stdout(&demo.top(&["--page", "workers", "--once"]));
    assert!(printed.lines().next().is_some_and(|head| head.ends_with("no core")), "{printed}");
    drop(busy);
    // The metric is what the kernel counts. A page can be a second old.
    let counted = waited_by_kernel(daemon);
    daemon.until("that time", |daemon| daemon.metric(WAITED, &["worker=\"0\""]) >= counted);
    let shown = daemon.metric(WAITED, &["worker=\"0\""]);
    assert!(shown <= waited_by_kernel(daemon) + 1e-6, "{shown}");
}

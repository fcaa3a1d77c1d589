//! The running daemon: the demonstration, its pages, reloads and ways to end, with the real binary.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{self, Daemon, ServiceManager, run, stderr, stdout, steerd, steerd_by};
use rustix::process::Signal;

#[test]
fn the_demonstration_accounts_for_every_packet() {
    let output = run(&["run", "--demo", "--for", "2s"]);
    let (summary, log) = (stdout(&output), stderr(&output));
    assert!(output.status.success(), "{log}");
    assert!(summary.contains("\npacket accounting matches\n"), "{summary}\n{log}");
    for rule in ["dns", "web", "web-syn", "vlan-42", "scanners", "default"] {
        let line = summary.lines().find(|line| line.starts_with(&format!("{rule} "))).expect(rule);
        assert!(!line.contains("  0  "), "no packet for {rule}: {line}");
        // A dash stands for figures that are not counted: here only the bytes left to the kernel.
        assert!(rule == "default" || !line.contains(" - "), "{line}");
    }
    assert!(summary.contains("lost: "), "{summary}");
    assert!(!log.contains("ERROR"), "{log}");
}

#[test]
fn pages_describe_the_running_daemon() {
    let daemon = Daemon::start(&["--demo"]);
    assert_eq!(daemon.page("/healthz"), (200, "ok\n".into()));
    assert_eq!(daemon.page("/readyz"), (200, "ready\n".into()));
    assert_eq!(daemon.page("/nowhere").0, 404);
    daemon.until("packets", |daemon| daemon.metric("steerd_rule_packets_total", &["rule=\"dns\""]) > 1000.0);
    let state = daemon.state();
    assert_eq!(state["device"]["name"], "softnic0");
    assert_eq!(state["workers"].as_array().map(Vec::len), Some(2));
    assert_eq!(state["accounting"]["matches"], true, "{state:#}");
    assert!(daemon.metric("steerd_rule_packets_total", &["rule=\"scanners\"", "action=\"drop\""]) > 0.0);
    assert!(daemon.metric("steerd_port_kernel_packets_total", &["port=\"1\""]) > 0.0);
    assert!(daemon.metric("steerd_worker_received_packets_total", &["worker=\"1\""]) > 0.0);
    assert!((daemon.metric("steerd_port_up", &["port=\"1\""]) - 1.0).abs() < 0.5);
    // A state is reused for a second, because making one queries the device.
    let shared = (0..5).any(|_| daemon.state()["uptime_seconds"] == daemon.state()["uptime_seconds"]);
    assert!(shared, "two looks in a row, five times, and each was made anew");
    let (status, summary, log) = daemon.terminate();
    assert!(status.success(), "{log}");
    assert!(summary.contains("\npacket accounting matches\n"), "{summary}");
}

#[test]
fn metrics_pass_promtool() {
    let daemon = Daemon::start(&["--demo"]);
    daemon.until("packets", |daemon| daemon.metric("steerd_port_received_packets_total", &[]) > 0.0);
    let metrics = daemon.metrics();
    let promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut promtool = match promtool {
        Ok(promtool) => promtool,
        Err(error) => {
            return support::not_run("promtool check metrics", &format!("promtool is missing ({error})"));
        }
    };
    let mut stdin = promtool.stdin.take().expect("piped");
    std::io::Write::write_all(&mut stdin, metrics.as_bytes()).expect("written");
    drop(stdin);
    let output = promtool.wait_with_output().expect("promtool");
    assert!(output.status.success(), "{}{}\n{metrics}", stdout(&output), stderr(&output));
    assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{}{}", stdout(&output), stderr(&output));
}

/// Prometheus' own parser of OpenMetrics reads the metrics: promtool makes blocks of a text with timestamps.
#[test]
fn open_metrics_pass_promtool() {
    let daemon = Daemon::start(&["--demo"]);
    daemon.until("packets", |daemon| daemon.metric("steerd_port_received_packets_total", &[]) > 0.0);
    let (status, metrics) = daemon.page_as("/metrics", "application/openmetrics-text");
    assert!(status == 200 && metrics.ends_with("\n# EOF\n"), "{metrics}");
    let with_time =
        |line: &str| if line.starts_with('#') { format!("{line}\n") } else { format!("{line} 1700000000\n") };
    let folder = tempfile::tempdir().expect("folder");
    let (input, blocks) = (folder.path().join("metrics"), folder.path().join("blocks"));
    write(&input, &metrics.lines().map(with_time).collect::<String>());
    let output = Command::new("promtool")
        .args(["tsdb", "create-blocks-from", "openmetrics"])
        .args([&input, &blocks])
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) => {
            return support::not_run(
                "promtool tsdb create-blocks-from",
                &format!("promtool is missing ({error})"),
            );
        }
    };
    assert!(output.status.success(), "{}{}\n{metrics}", stdout(&output), stderr(&output));
    assert_eq!(std::fs::read_dir(&blocks).expect("blocks").count(), 1, "{}", stderr(&output));
}

const STEER_DNS: &str = "version = 1\n[groups.everyone]\nworkers = \"all\"\n[[rules]]\nname = \"dns\"\nmatch = { protocol = \"udp\", dst_port = 53 }\naction = { steer = \"everyone\" }\n";

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).expect("written");
}

#[test]
fn a_reload_is_all_or_nothing() {
    let folder = tempfile::tempdir().expect("folder");
    let policy = folder.path().join("p.toml");
    write(&policy, STEER_DNS);
    let mut daemon = Daemon::start(&["--demo", "--policy", policy.to_str().expect("path")]);
    let dns = |daemon: &Daemon| daemon.metric("steerd_rule_packets_total", &["rule=\"dns\""]);
    daemon.until("dns packets", |daemon| dns(daemon) > 100.0);

    let gauge = |daemon: &Daemon| daemon.metric("steerd_last_reload_successful", &[]).to_string();
    let loaded = |daemon: &Daemon| daemon.metric("steerd_last_reload_success_timestamp_seconds", &[]);
    assert_eq!(gauge(&daemon), "1", "the start counts");
    let started = loaded(&daemon);

    // A new policy is installed; a rule that both have keeps its total.
    let before = dns(&daemon);
    let more = "[[rules]]\nname = \"scan\"\nmatch = { src = \"198.51.100.0/24\" }\naction = \"drop\"\n";
    write(&policy, &format!("{STEER_DNS}{more}"));
    daemon.signal(Signal::HUP);
    daemon.wait_for("is in force", 1);
    daemon.until("scan packets", |daemon| {
        daemon.metric("steerd_rule_packets_total", &["rule=\"scan\"", "action=\"drop\""]) > 10.0
    });
    assert!(dns(&daemon) >= before, "totals never go backwards");
    assert_eq!(daemon.metric("steerd_policy_reloads_total", &["result=\"success\""]).to_string(), "1");
    assert_eq!(daemon.metric("steerd_policy_generation", &[]).to_string(), "2");
    assert_eq!(gauge(&daemon), "1");
    let reloaded = loaded(&daemon);
    assert!(reloaded > started, "{reloaded} after {started}");

    // A broken policy changes only the log and a counter.
    write(&policy, &format!("{STEER_DNS}{}", more.replace("src", "scr")));
    daemon.signal(Signal::HUP);
    daemon.wait_for("stays in force", 1);
    assert!(daemon.log().contains("p.toml:"), "{}", daemon.log());
    assert!(daemon.log().contains("scr"), "{}", daemon.log());
    assert_eq!(daemon.metric("steerd_policy_reloads_total", &["result=\"failure\""]).to_string(), "1");
    assert_eq!(daemon.metric("steerd_policy_generation", &[]).to_string(), "2");
    assert!(daemon.state()["policy"]["last_error"].is_string());
    assert_eq!(gauge(&daemon), "0");
    assert!((loaded(&daemon) - reloaded).abs() < 1e-6, "the time of the last one that succeeded");
    let scan = daemon.metric("steerd_rule_packets_total", &["rule=\"scan\""]);
    daemon.until("the old rules still drop", |daemon| {
        daemon.metric("steerd_rule_packets_total", &["rule=\"scan\""]) > scan
    });

    // A valid policy clears the error.
    write(&policy, STEER_DNS);
    daemon.signal(Signal::HUP);
    daemon.wait_for("is in force", 2);
    assert!(daemon.state()["policy"]["last_error"].is_null());
    assert_eq!(gauge(&daemon), "1");

    let (status, summary, log) = daemon.terminate();
    assert!(status.success(), "{log}");
    assert!(summary.contains("scan (earlier)"), "{summary}");
    assert!(summary.contains("2 reloads, 1 failed"), "{summary}");
    assert!(summary.contains("\npacket accounting matches\n"), "{summary}");
}

/// The journal of a host must not grow with the size of its policy at each reload.
#[test]
fn a_reload_logs_few_lines_for_any_number_of_diagnostics() {
    const GROUPS: usize = 300;
    let (folder, policy) = policy_folder();
    let unused: String = (0..GROUPS).map(|n| format!("[groups.unused{n}]\nworkers = \"all\"\n")).collect();
    let wrong: String = (0..GROUPS).map(|n| format!("[[rules]]\nname = \"r{n}\"\nmatch = {{}}\n")).collect();
    // Once at the start, then at a reload that succeeds and at one that is refused.
    write(&policy, &format!("{STEER_DNS}{unused}"));
    let mut daemon = Daemon::start(&["--demo", "--policy", policy.to_str().expect("path")]);
    let lines = |daemon: &Daemon| daemon.log().lines().count();
    assert!(lines(&daemon) < 20, "{}", daemon.log());
    let mut before = lines(&daemon);
    daemon.signal(Signal::HUP);
    daemon.wait_for("is in force", 1);
    assert!(lines(&daemon) - before < 10, "{}", daemon.log());
    assert!(daemon.log().contains("and 296 more"), "{}", daemon.log());
    before = lines(&daemon);
    write(&policy, &format!("{STEER_DNS}{wrong}"));
    daemon.signal(Signal::HUP);
    daemon.wait_for("stays in force", 1);
    assert!(lines(&daemon) - before < 12, "{}", daemon.log());
    drop(folder);
}

/// An empty block list is refused; warnings about the policy in force are shown.
#[test]
fn warnings_of_the_policy_in_force_are_in_the_state_and_a_metric() {
    let folder = tempfile::tempdir().expect("folder");
    let (policy, list) = (folder.path().join("p.toml"), folder.path().join("blocked.txt"));
    let text = |set: &str| {
        format!(
            "{STEER_DNS}[[rules]]\nname = \"blocked\"\nmatch = {{ src = \"blocked\" }}\naction = \"drop\"\n\
             [sets]\nblocked = {{ file = \"blocked.txt\"{set} }}\n"
        )
    };
    write(&policy, &text(""));
    write(&list, "198.51.100.0/24\n");
    let mut daemon = Daemon::start(&["--demo", "--policy", policy.to_str().expect("path")]);
    let warnings = |daemon: &Daemon| daemon.metric("steerd_policy_warnings", &[]);
    let before = warnings(&daemon);
    write(&list, "# nothing today\n");
    daemon.signal(Signal::HUP);
    daemon.wait_for("stays in force", 1);
    assert!(daemon.log().contains("the set `blocked` is empty"), "{}", daemon.log());
    assert_eq!(daemon.metric("steerd_policy_generation", &[]).to_string(), "1");
    write(&policy, &text(", allow_empty = true"));
    daemon.signal(Signal::HUP);
    daemon.wait_for("is in force", 1);
    assert!(warnings(&daemon) > before, "{}", daemon.metrics());
    let state = daemon.state();
    assert_eq!(state["format"], 3);
    let listed = state["policy"]["warnings"].as_array().expect("a list");
    assert!(
        listed.iter().any(|one| one.as_str().is_some_and(|one| one.contains("`blocked` is empty"))),
        "{state:#}"
    );
    assert_eq!(state["policy"]["warning_count"], listed.len());
    daemon.terminate();
}

/// Copies, a sniffer, an exception for the kernel, an egress rule and a variable, on a device of each kind
/// that has them; a reload changes the copies and leaves a class number unused.
#[test]
fn copies_are_accounted_for() {
    const TAPPED: &str = r#"
version = 1
[variables]
tapped = 443
[groups.web]
workers = "all"
[groups.tap]
workers = [1]
hash = "none"
[[rules]]
name = "tap"
match = { protocol = "tcp", dst_port = "${tapped}" }
action = { copy = "tap" }
[[rules]]
name = "tap-dns"
match = { protocol = "udp", dst_port = 53 }
action = { copy = "tap" }
[[rules]]
name = "web"
match = { protocol = "tcp", dst_port = 443 }
action = { steer = "web" }
[[rules]]
name = "ssh"
match = { protocol = "tcp", dst_port = 22 }
action = "kernel"
[[rules]]
name = "no-mail"
match = { protocol = "tcp", dst_port = 25 }
action = "drop"
direction = "egress"
"#;
    const HEARD: &str = "[[rules]]\nname = \"hear\"\nmatch = { any = true }\naction = { sniff = \"tap\" }\n";
    for personality in ["ideal", "mlx5"] {
        let folder = tempfile::tempdir().expect("folder");
        let policy = folder.path().join("p.toml");
        write(&policy, TAPPED);
        let mut command = steerd();
        command.env("STEERD_SOFTNIC__PERSONALITY", personality);
        command.args(["run", "--demo", "--policy"]).arg(&policy).args(["--set", "tapped=443"]);
        let mut daemon = Daemon::start_command(&mut command);
        let packets = |daemon: &Daemon, rule: &str| {
            daemon.metric("steerd_rule_packets_total", &[&format!("rule=\"{rule}\"")])
        };
        for rule in ["tap", "tap-dns", "web"] {
            daemon.until(rule, |daemon| packets(daemon, rule) > 1000.0);
        }
        let state = daemon.state();
        assert_eq!(state["accounting"]["matches"], true, "{state:#}");
        assert!(
            state["device"]["profile"].as_str().is_some_and(|name| name.contains(personality)),
            "{state:#}"
        );
        let effect = |name: &str| {
            let rules = state["rules"].as_array().expect("rules");
            rules.iter().find(|rule| rule["name"] == name).expect("the rule")["effect"].clone()
        };
        assert_eq!((effect("tap"), effect("no-mail")), ("copy".into(), "drop_sent".into()));

        // A copy is removed and a sniffer added; the other rules keep their tags.
        let kept = TAPPED.replace("\"tap-dns\"", "\"tap-other\"").replace("dst_port = 53", "dst_port = 54");
        write(&policy, &format!("{kept}{HEARD}"));
        daemon.signal(Signal::HUP);
        daemon.wait_for("is in force", 1);
        daemon.until("heard packets", |daemon| packets(daemon, "hear") > 1000.0);

        let (status, summary, log) = daemon.terminate();
        assert!(status.success(), "{log}");
        assert!(summary.contains("\npacket accounting matches\n"), "{personality}: {summary}");
        assert!(summary.contains("copied by ports") && summary.contains("tap-dns (earlier)"), "{summary}");
        assert!(!summary.contains("unknown_tag") && !summary.contains("unknown_class"), "{summary}");
    }
}

/// Copied packets that are dropped, steered, left to the kernel by a rule and by the default, with room in
/// the workers' queues and without.
#[test]
fn a_copied_packet_has_one_outcome() {
    const POLICY: &str = r#"
version = 1
[groups.web]
workers = [0]
[groups.tap]
workers = [1]
hash = "none"
[[rules]]
name = "tap-udp"
match = { protocol = "udp" }
action = { copy = "tap" }
[[rules]]
name = "tap-tcp"
match = { protocol = "tcp" }
action = { copy = "tap" }
[[rules]]
name = "tap-again"
match = { protocol = "tcp", dst_port = 443 }
action = { copy = "web" }
[[rules]]
name = "sniff-web"
match = { protocol = "tcp", dst_port = 443 }
action = { sniff = "tap" }
[[rules]]
name = "no-dns"
match = { dst = "192.0.2.53" }
action = "drop"
[[rules]]
name = "ssh"
match = { protocol = "tcp", dst_port = 22 }
action = "kernel"
[[rules]]
name = "web"
match = { protocol = "tcp", dst_port = 443 }
action = { steer = "web" }
count = false
"#;
    for (personality, frames) in [("ideal", "8192"), ("mlx5", "8192"), ("ideal", "64"), ("mlx5", "64")] {
        let folder = tempfile::tempdir().expect("folder");
        let policy = folder.path().join("p.toml");
        write(&policy, POLICY);
        let mut command = steerd();
        command.env("STEERD_SOFTNIC__PERSONALITY", personality).env("STEERD_WORKERS__FRAMES", frames);
        command.args(["run", "--demo", "--policy"]).arg(&policy);
        let daemon = Daemon::start_command(&mut command);
        let metric = |name: &str, labels: &[&str]| daemon.metric(name, labels);
        let packets = "steerd_rule_packets_total";
        daemon.until("packets", |daemon| daemon.metric(packets, &["rule=\"no-dns\""]) > 1000.0);
        daemon.until("packets for the kernel", |daemon| {
            daemon.metric("steerd_port_kernel_packets_total", &[]) > 100.0
        });
        daemon.until("copies", |daemon| daemon.metric("steerd_port_replicated_packets_total", &[]) > 1000.0);
        daemon.until("copies that are not wanted", |daemon| {
            daemon.metric("steerd_rule_filtered_copies_total", &["rule=\"sniff-web\""]) > 100.0
        });
        assert!(metric(packets, &["rule=\"(not exported)\"", "action=\"deliver\""]) > 0.0);
        let metrics = daemon.metrics();
        for absent in [
            // `count = false`.
            "rule=\"web\"",
            // Copies that the rule does not match are not counted as its drops.
            "action=\"drop\",rule=\"sniff-web\"",
            // The device does not count these bytes.
            "steerd_rule_bytes_total{action=\"kernel\"",
        ] {
            assert!(!metrics.contains(absent), "{personality}: {absent} in\n{metrics}");
        }
        let (status, summary, log) = daemon.terminate();
        assert!(status.success(), "{personality}, {frames} frames: {summary}\n{log}");
        assert!(
            summary.contains("\npacket accounting matches\n"),
            "{personality}, {frames} frames: {summary}"
        );
    }
}

#[test]
fn every_packet_is_accounted_for_over_reloads_under_load() {
    let mut daemon = Daemon::start(&["--demo"]);
    for reload in 1..=20 {
        daemon.signal(Signal::HUP);
        daemon.wait_for("is in force", reload);
    }
    let (status, summary, log) = daemon.terminate();
    assert!(status.success(), "{log}");
    assert!(summary.contains("20 reloads, 0 failed"), "{summary}");
    assert!(summary.contains("\npacket accounting matches\n"), "{summary}");
    assert!(!summary.contains("unknown_tag"), "{summary}");
}

#[test]
fn sigint_and_sigterm_end_the_daemon_with_the_summary() {
    for signal in [Signal::INT, Signal::TERM] {
        let daemon = Daemon::start(&["--demo"]);
        daemon.signal(signal);
        let (status, summary, log) = daemon.end();
        assert!(status.success(), "{log}");
        assert!(log.contains("draining"), "{log}");
        assert!(summary.contains("\npacket accounting matches\n"), "{summary}");
    }
}

/// Whoever starts the daemon may have blocked or ignored its signals, and one may come before the daemon
/// listens.
#[test]
fn signals_work_whatever_the_starter_did_with_them() {
    let early = ["env", "--block-signal=HUP", "sh", "-c", "kill -HUP $$; exec \"$0\" \"$@\""];
    let blocked: &[&str] = &["env", "--block-signal=HUP,INT,TERM"];
    let ignored: &[&str] = &["env", "--ignore-signal=HUP,INT,TERM"];
    for (starter, signal, reloads) in [
        (blocked, Signal::TERM, 0),
        (blocked, Signal::INT, 0),
        (ignored, Signal::TERM, 0),
        (&early, Signal::TERM, 1),
    ] {
        let mut daemon = Daemon::start_command(steerd_by(starter).args(["run", "--demo"]));
        daemon.wait_for("is in force", reloads);
        daemon.signal(Signal::HUP);
        daemon.wait_for("is in force", reloads + 1);
        daemon.signal(signal);
        let (status, _, log) = daemon.end();
        assert!(status.success(), "{starter:?} {signal:?}: {status}\n{log}");
    }
}

/// SIGTERM ends the daemon although many reloads are pending.
#[test]
fn pending_reloads_do_not_delay_sigterm() {
    let (folder, policy) = policy_folder();
    let mut daemon = Daemon::start(&["--demo", "--policy", policy.to_str().expect("path")]);
    write(&policy, &long_policy());
    for _ in 0..40 {
        daemon.signal(Signal::HUP);
        // One by one: the kernel merges pending signals of the same number.
        std::thread::sleep(Duration::from_millis(5));
    }
    daemon.signal(Signal::TERM);
    let begun = Instant::now();
    while daemon.is_running() {
        assert!(begun.elapsed() < Duration::from_secs(20), "it never ends:\n{}", daemon.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    let (status, summary, log) = daemon.end();
    assert!(status.success(), "{log}");
    assert!(summary.contains("\npacket accounting matches\n"), "{summary}");
    drop(folder);
}

/// Compiling and installing may take longer than the watchdog's interval; the main loop and the pages go on.
#[test]
fn a_long_reload_does_not_starve_the_watchdog() {
    let (folder, policy) = policy_folder();
    let manager = ServiceManager::new(folder.path());
    let mut command = steerd();
    command.args(["run", "--demo", "--policy"]).arg(&policy);
    let mut daemon = Daemon::start_command(manager.watch(&mut command, "60000"));
    manager.until("READY=1");
    write(&policy, &long_policy());
    daemon.signal(Signal::HUP);
    manager.until("RELOADING=1");
    assert_eq!(daemon.page("/readyz").0, 200);
    let messages = manager.until("READY=1");
    assert!(
        messages.iter().any(|message| message.contains("WATCHDOG=1")),
        "the watchdog was not fed meanwhile: {messages:?}"
    );
    daemon.wait_for("is in force", 1);

    // The shutdown does not wait for the compilation either.
    daemon.signal(Signal::HUP);
    manager.until("RELOADING=1");
    let (status, summary, log) = daemon.terminate();
    assert!(status.success(), "{log}");
    assert!(summary.contains("\npacket accounting matches\n"), "{summary}");
}

#[test]
fn a_signal_during_the_start_ends_the_daemon_before_it_steers() {
    let (folder, policy) = policy_folder();
    write(&policy, &long_policy());
    let mut command = steerd();
    command.args(["run", "--demo", "--policy"]).arg(&policy).stdin(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut log = std::io::BufReader::new(child.stderr.take().expect("piped"));
    let mut text = String::new();
    // The daemon listens on its address after it handles signals and before its first slow step.
    while !text.contains("http://") {
        assert!(std::io::BufRead::read_line(&mut log, &mut text).expect("log") > 0, "it ended: {text}");
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, Signal::TERM).expect("signal");
    std::io::Read::read_to_string(&mut log, &mut text).expect("log");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{text}");
    assert!(text.contains("SIGTERM: ending before"), "{text}");
    assert!(output.stdout.is_empty(), "no summary of what never ran: {}", stdout(&output));
    drop(folder);
}

/// A folder with a policy that steers DNS.
fn policy_folder() -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().expect("folder");
    let policy = folder.path().join("p.toml");
    write(&policy, STEER_DNS);
    (folder, policy)
}

/// Thousands of flows: installing it takes a considerable part of a second.
fn long_policy() -> String {
    let rule = |number: usize| {
        let place = if number.is_multiple_of(2) {
            format!("dst_port = {}", number + 1024)
        } else {
            format!("src = \"10.{}.{}.0/24\"", number / 256, number % 256)
        };
        format!(
            "[[rules]]\nname = \"r{number}\"\nmatch = {{ protocol = \"udp\", {place} }}\naction = {{ steer = \"everyone\" }}\n"
        )
    };
    (0..8000).map(rule).fold(STEER_DNS.to_owned(), |policy, rule| policy + &rule)
}

/// If the terminal is closed, SIGHUP ends the daemon instead of reloading.
#[test]
fn a_terminal_hangup_ends_the_daemon() {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
    grantpt(&master).and_then(|()| unlockpt(&master)).expect("unlocked");
    let name = ptsname(&master, Vec::new()).expect("its name").into_string().expect("UTF-8");
    let open = || std::fs::OpenOptions::new().read(true).write(true).open(&name).expect("its other end");
    // SIGHUP is sent only for the controlling terminal of the session.
    let mut command = Command::new("setsid");
    command.args(["--ctty", "--wait", env!("CARGO_BIN_EXE_steerd"), "run", "--demo"]);
    command
        .env("STEERD_HTTP__LISTEN", "off")
        .env("STEERD_API__ENABLED", "false")
        .env("TERM", "dumb")
        .env_remove("NOTIFY_SOCKET");
    command.stdin(open()).stdout(open()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("setsid");
    drop(command);
    let mut log = std::io::BufReader::new(child.stderr.take().expect("piped"));
    let mut text = String::new();
    while !text.contains("steering on") {
        assert!(std::io::BufRead::read_line(&mut log, &mut text).expect("log") > 0, "it ended: {text}");
    }
    drop(master);
    std::io::Read::read_to_string(&mut log, &mut text).expect("log");
    let status = child.wait().expect("end");
    assert!(status.success(), "{status}: {text}");
    assert!(text.contains("the terminal is gone: draining") && !text.contains("panicked"), "{text}");
}

#[test]
fn a_closed_stderr_causes_no_panic() {
    let (reader, writer) = std::io::pipe().expect("pipe");
    drop(reader);
    let output = steerd().args(["run", "--demo", "--for", "300ms"]).stderr(writer).output().expect("it runs");
    assert!(output.status.success(), "{}", output.status);
    let (reader, writer) = std::io::pipe().expect("pipe");
    drop(reader);
    let output = steerd().args(["check", "/nonexistent.toml"]).stderr(writer).output().expect("it runs");
    assert_eq!(output.status.code(), Some(1), "the exit code says what stderr cannot");
}

/// A full stdout pipe blocks the summary: the shutdown hangs until the second Ctrl-C.
#[test]
fn a_second_interrupt_ends_the_daemon_at_once() {
    let (reader, writer) = std::io::pipe().expect("pipe");
    support::fill(&writer);
    let mut command = steerd();
    command.args(["run", "--demo"]).stdout(writer);
    let mut daemon = Daemon::start_with_stdout(&mut command);
    drop(command);
    daemon.signal(Signal::INT);
    daemon.wait_for("draining", 1);
    daemon.until_unreachable();
    assert!(daemon.is_running(), "the summary cannot be written");
    daemon.signal(Signal::INT);
    let (status, _, log) = daemon.end();
    assert_eq!(status.code(), Some(130), "{log}");
    drop(reader);
}

#[test]
fn the_daemon_ends_after_the_given_time() {
    let begun = Instant::now();
    let output = run(&["run", "--demo", "--for", "300ms"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(begun.elapsed() >= Duration::from_millis(300));
    assert!(stdout(&output).contains("\npacket accounting matches\n"), "{}", stdout(&output));
}

/// Settings in the folder whose port plays a capture of so many DNS packets once.
fn capture_settings(folder: &Path, packets: usize) -> std::path::PathBuf {
    let frame = packet::build::FrameBuilder::new()
        .ip("10.0.0.1".parse().expect("address"), "10.0.0.2".parse().expect("address"))
        .udp(1, 53)
        .build();
    let file = std::fs::File::create(folder.join("c.pcap")).expect("created");
    let mut writer = pcap_file::pcap::PcapWriter::new(file).expect("header");
    let length = u32::try_from(frame.len()).expect("length");
    for _ in 0..packets {
        let packet = pcap_file::pcap::PcapPacket::new(Duration::ZERO, length, &frame);
        writer.write_packet(&packet).expect("packet");
    }
    drop(writer);
    write(&folder.join("p.toml"), STEER_DNS);
    let settings = folder.join("s.toml");
    let text = "[policy]\nfile = \"p.toml\"\n[workers]\ncores = 1\nframes = 8192\npages = [\"plain\"]\n\
                [[softnic.ports]]\nwire = { kind = \"pcap\", path = \"c.pcap\" }\n";
    write(&settings, text);
    settings
}

#[test]
fn the_run_ends_after_the_last_packet_of_a_capture() {
    let folder = tempfile::tempdir().expect("folder");
    let settings = capture_settings(folder.path(), 5000);
    let settings = settings.to_str().expect("path");
    // The time limit makes a run fail that does not end without a signal.
    let output = run(&["run", "--config", settings, "--for", "60s", "--format", "json"]);
    let log = stderr(&output);
    assert!(output.status.success(), "{log}");
    assert!(log.contains("no port can receive anything more"), "{log}");
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON and nothing else");
    assert_eq!(summary["format"], 3);
    assert!(summary["ran_for_seconds"].as_f64().is_some_and(|seconds| seconds < 50.0), "{summary:#}");
    assert_eq!(summary["accounting"]["matches"], true, "{summary:#}");
    assert_eq!(summary["accounting"]["received"], 5000);
    assert_eq!(summary["rules"][0]["delivered_packets"], 5000);
}

/// Worker 1 has few buffers and sleeps between two looks; the traffic comes without a pause.
#[test]
fn packets_without_a_buffer_are_counted_for_their_worker() {
    let folder = tempfile::tempdir().expect("folder");
    write(
        &folder.path().join("policy.toml"),
        "version = 1\n[groups.one]\nworkers = [1]\n[[rules]]\nname = \"all\"\nmatch = { protocol = \"udp\" }\n\
         action = { steer = \"one\" }\n",
    );
    let settings = folder.path().join("steerd.toml");
    write(
        &settings,
        "[policy]\nfile = \"policy.toml\"\n[workers]\ncores = 2\nframes = 64\npages = [\"plain\"]\nidle = \"relaxed\"\n\
         [[softnic.ports]]\nwire = { kind = \"generator\", total = 300000, flows = [{}] }\n[http]\nlisten = \"off\"\n",
    );
    let settings = settings.to_str().expect("a path");
    let output = run(&["run", "--config", settings, "--for", "60s", "--format", "json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let state: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    let lost = |worker: usize| state["workers"][worker]["out_of_buffer_packets"].as_u64();
    let lost_by_port = state["ports"][0]["lost_packets"]["out_of_buffer"].as_u64();
    assert!(lost_by_port > Some(0), "{state:#}");
    assert_eq!((lost(0), lost(1)), (Some(0), lost_by_port));
    assert_eq!(state["accounting"]["matches"], true, "{state:#}");
    assert_eq!(state["accounting"]["lost"].as_u64(), lost_by_port, "counted once");
}

#[test]
fn the_summary_has_sizes_flows_latency_and_the_time_of_workers() {
    let folder = tempfile::tempdir().expect("folder");
    let settings = capture_settings(folder.path(), 5000);
    let text = std::fs::read_to_string(&settings).expect("written");
    write(&settings, &text.replace("[workers]\n", "[workers]\ntimestamps = true\n"));
    let policy = "version = 1\n[sinks.sizes]\nkind = \"count\"\ntop_flows = 8\n[groups.dns]\nworkers = \"all\"\n\
                  sinks = \"sizes\"\n[[rules]]\nname = \"dns\"\nmatch = { protocol = \"udp\", dst_port = 53 }\n\
                  action = { steer = \"dns\" }\n";
    write(&folder.path().join("p.toml"), policy);
    let settings = settings.to_str().expect("path");
    let output = run(&["run", "--config", settings, "--for", "60s", "--format", "json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON and nothing else");
    let (sink, worker) = (&summary["sinks"][0], &summary["workers"][0]);
    // A frame of 42 bytes, 46 with the check sequence.
    let sizes = &sink["packet_sizes"];
    assert_eq!((&sizes["at_most"][0][1], &sizes["sum"]), (&5000.into(), &(5000 * 46).into()), "{sizes}");
    let flow = serde_json::json!([{
        "flow": "10.0.0.1:1 > 10.0.0.2:53 udp", "packets": 5000, "error": 0, "bytes": 5000 * 42,
    }]);
    assert_eq!(sink["top_flows"], flow);
    let latency = &worker["latency"];
    assert!(latency["ns"]["count"].as_u64().is_some_and(|packets| packets > 0), "{worker:#}");
    assert!(latency["p50_ns"].as_u64() <= latency["p99_ns"].as_u64(), "{latency}");
    let regimes = worker["regimes_ns"].as_object().expect("a table");
    let seconds = regimes.values().filter_map(serde_json::Value::as_f64).sum::<f64>() / 1e9;
    let ran_for = summary["ran_for_seconds"].as_f64().expect("a number");
    // The worker runs a little longer than the flows are installed.
    assert!(regimes.len() == 4 && seconds > 0.95 * ran_for, "{regimes:?} in {ran_for} s");
    assert!(seconds < ran_for + 10.0, "{regimes:?} in {ran_for} s");
}

#[test]
fn a_profile_divides_the_time_of_each_thread_by_stage() {
    let summary = |arguments: &[&str]| -> serde_json::Value {
        let output = run(&[&["run", "--demo", "--format", "json"], arguments].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_slice(&output.stdout).expect("JSON and nothing else")
    };
    assert!(summary(&["--for", "300ms"]).get("profile").is_none(), "off by default");
    let summary = summary(&["--for", "3s", "--stage-times"]);
    let threads = summary["profile"].as_array().expect("a list");
    let names: Vec<_> = threads.iter().filter_map(|thread| thread["thread"].as_str()).collect();
    assert_eq!(names, ["engine", "worker 0", "worker 1"]);
    let ran_for = summary["ran_for_seconds"].as_f64().expect("a number");
    for (thread, name) in threads.iter().zip(names) {
        assert!(thread["timed"].as_u64() > Some(10), "{thread:#}");
        let stages = thread["stages"].as_array().expect("a list");
        let number = |stage: &serde_json::Value, key: &str| stage[key].as_f64().unwrap_or(0.0);
        let shares: f64 = stages.iter().map(|stage| number(stage, "share")).sum();
        assert!((shares - 1.0).abs() < 1e-6, "{thread:#}");
        // That of the engine is inferred from a sample, in which sleeps and interruptions are few and long.
        let seconds = stages.iter().map(|stage| number(stage, "ns")).sum::<f64>() / 1e9;
        if name != "engine" {
            assert!((0.9..1.5).contains(&(seconds / ran_for)), "{seconds} of {ran_for} s: {thread:#}");
        }
        let with_work: &[&str] = match name {
            "engine" => &["receive", "parse", "lookup", "rss", "deliver"],
            _ => &["poll", "classify", "repost"],
        };
        for wanted in with_work {
            let stage = stages.iter().find(|stage| stage["stage"] == **wanted).expect(wanted);
            assert!(
                number(stage, "ns") > 0.0 && number(stage, "ns_per_packet") > 0.0,
                "{wanted}: {thread:#}"
            );
        }
        let idle = stages.last().expect("idle");
        assert!(idle["stage"] == "idle" && idle["ns_per_packet"].is_null(), "{thread:#}");
    }
}

#[test]
fn keep_running_continues_after_the_capture() {
    let folder = tempfile::tempdir().expect("folder");
    let settings = capture_settings(folder.path(), 10);
    let mut daemon = Daemon::start(&["--config", settings.to_str().expect("path"), "--keep-running"]);
    daemon.until("all packets", |daemon| {
        (daemon.metric("steerd_rule_packets_total", &["rule=\"dns\"", "action=\"deliver\""]) - 10.0).abs()
            < 0.5
    });
    std::thread::sleep(Duration::from_millis(2500));
    assert!(daemon.is_running(), "{}", daemon.log());
    let (status, summary, _) = daemon.terminate();
    assert!(status.success());
    assert!(summary.contains("\npacket accounting matches\n"), "{summary}");
}

#[test]
fn healthcheck_reports_the_health_of_the_daemon() {
    let daemon = Daemon::start(&["--demo"]);
    let address = daemon.address().to_string();
    let check = |listen: &str| run(&["healthcheck", "--listen", listen]);
    let output = check(&address);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(daemon.terminate().0.success());
    let output = check(&address);
    assert_eq!(output.status.code(), Some(1), "nobody answers any more");
    assert!(stderr(&output).contains(&address), "{}", stderr(&output));
    assert_eq!(check("off").status.code(), Some(1));
}

#[test]
fn the_service_manager_is_notified() {
    let folder = tempfile::tempdir().expect("folder");
    let manager = ServiceManager::new(folder.path());
    let mut command = steerd();
    command.args(["run", "--demo"]);
    let daemon = Daemon::start_command(manager.watch(&mut command, "400000"));
    let last = |messages: Vec<String>| messages.into_iter().next_back().expect("a message");
    assert!(last(manager.until("READY=1")).contains("STATUS="));
    manager.until("WATCHDOG=1");
    daemon.signal(Signal::HUP);
    assert!(last(manager.until("RELOADING=1")).contains("MONOTONIC_USEC="));
    manager.until("READY=1");
    daemon.signal(Signal::TERM);
    manager.until("STOPPING=1");
    assert!(daemon.end().0.success());
}

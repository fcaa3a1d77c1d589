//! `[protect]` with the real binary: `check`, start and reload refuse a policy under which a protected packet
//! may miss the host, with the packet; `explain` says what is protected; a policy that drops all by default
//! gets one warning.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::{Daemon, run, stderr, stdout, steerd};
use rustix::process::Signal;
use serde_json::Value;

const SAFE: &str = r#"
version = 1
[protect]
ports = ["22/tcp"]
[sinks.counted]
kind = "count"
[groups.main]
workers = "all"
sinks = ["counted"]
[[rules]]
name = "web"
match = { protocol = "tcp", dst_port = [80, 443] }
action = "steer main"
"#;

/// A range that contains port 22 by mistake.
fn locking_out() -> String {
    SAFE.replace("[80, 443]", "\"1-1023\"")
}

/// The policy leaves SSH to the host, but the flow for later fragments takes all packets to the address.
fn coarse() -> String {
    SAFE.replace("protocol = \"tcp\", dst_port = [80, 443]", "dst = \"192.0.2.1\", fragment = \"later\"")
        .replace("version = 1", "version = 1\nallow_lost_exceptions = true")
}

fn check(path: &Path, text: &str, profile: &str) -> (bool, String, Value) {
    fs::write(path, text).expect("a policy");
    let path = path.to_string_lossy();
    let output = run(&["check", "--model", profile, &path]);
    let json = run(&["check", "--model", profile, "--format", "json", &path]);
    assert_eq!(output.status.success(), json.status.success());
    (output.status.success(), stderr(&output), serde_json::from_str(&stdout(&json)).expect("JSON"))
}

fn reaches(answer: &Value) -> Vec<&str> {
    let protected = answer["protected"].as_array().expect("protected");
    protected.iter().map(|one| one["reach"].as_str().expect("reach")).collect()
}

#[test]
fn check_refuses_a_policy_that_takes_protected_packets() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let policy = folder.path().join("p.toml");
    for profile in ["ideal", "mlx5"] {
        let (ok, errors, answer) = check(&policy, SAFE, profile);
        assert!(ok && reaches(&answer) == ["safe"; 4] && answer["ok"] == true, "{errors}");

        let (ok, errors, answer) = check(&policy, &locking_out(), profile);
        assert!(!ok && reaches(&answer) == ["safe", "safe", "safe", "missed"], "{answer:#}");
        for part in ["`web`", "`ports` (line 4)", "dst_port = 22", "before `web`", "action = \"kernel\""] {
            assert!(errors.contains(part), "no {part} in {errors}");
        }
        let missed = &answer["protected"][3];
        assert_eq!(
            (&missed["name"], &missed["taken_by"], &answer["ok"]),
            (&"ports".into(), &"web".into(), &false.into())
        );
        let frame = missed["witness"]["frame"].as_str().expect("a frame");
        let path = policy.to_string_lossy();
        let explained = stdout(&run(&["explain", "--model", profile, &path, "--hex", frame]));
        assert!(
            explained.contains("rule     web") && explained.contains("does not reach the host"),
            "{explained}"
        );

        // The remedy of the error.
        let kept = "[[rules]]\nname = \"kept\"\nmatch = { protocol = \"tcp\", dst_port = 22 }\naction = \"kernel\"\n[[rules]]";
        let (ok, errors, _) = check(&policy, &locking_out().replacen("[[rules]]", kept, 1), profile);
        assert!(ok, "{errors}");
    }
}

#[test]
fn protected_packets_in_a_coarse_flow_are_refused_even_if_lost_exceptions_are_allowed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let policy = folder.path().join("p.toml");
    let (ok, errors, answer) = check(&policy, &coarse(), "mlx5");
    assert!(!ok && reaches(&answer) == ["safe", "safe", "safe", "missed"], "{answer:#}");
    for part in ["miss it on this device", "fragment", ":22 tcp", "allow_lost_exceptions does not apply"] {
        assert!(errors.contains(part), "no {part} in {errors}");
    }
    // Workers return what is the host's.
    let returning = coarse() + "[sinks.host]\nkind = \"kernel\"\ninterface = \"steer0\"\n";
    let (ok, errors, _) = check(&policy, &returning, "mlx5");
    assert!(ok, "{errors}");
    // Packets to other addresses are in no flow.
    let (ok, errors, _) =
        check(&policy, &coarse().replace("[protect]", "[protect]\naddresses = \"192.0.2.2\""), "mlx5");
    assert!(ok, "{errors}");
}

#[test]
fn explain_names_what_protects_a_packet() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let policy = folder.path().join("p.toml");
    fs::write(&policy, SAFE).expect("a policy");
    let path = policy.to_string_lossy();
    let explain = |packet: &str, format: &str| {
        let output = run(&["explain", "--packet", packet, "--format", format, &path]);
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let ssh = "dst=192.0.2.1,protocol=tcp,dst_port=22";
    assert!(
        explain(ssh, "text").contains("protect  by `ports` (line 4): it reaches the host"),
        "{}",
        explain(ssh, "text")
    );
    let json: Value = serde_json::from_str(&explain(ssh, "json")).expect("JSON");
    assert_eq!(json["protected"], serde_json::json!(["`ports` (line 4)"]));
    let other = explain("dst=192.0.2.1,protocol=tcp,dst_port=80", "text");
    assert!(!other.contains("protect"), "{other}");
}

#[test]
fn a_default_that_takes_all_gets_one_warning_unless_the_policy_protects() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let policy = folder.path().join("p.toml");
    let bare = SAFE.replace("[protect]\nports = [\"22/tcp\"]\n", "");
    let warnings = |text: &str| {
        let (ok, errors, answer) = check(&policy, text, "ideal");
        assert!(ok, "{errors}");
        let list = answer["diagnostics"].as_array().expect("diagnostics").clone();
        list.iter().map(|one| one["message"].as_str().expect("text").to_owned()).collect::<Vec<_>>()
    };
    for default in ["drop", "main"] {
        let found = warnings(&bare.replace("version = 1", &format!("version = 1\ndefault = \"{default}\"")));
        let [warning] = &found[..] else { panic!("{found:?}") };
        let kinds = ["ARP", "neighbour discovery", "router advertisements", "DHCP", "SSH"];
        for part in kinds.into_iter().chain([":22 tcp", "the default takes"]) {
            assert!(warning.contains(part), "no {part} in {warning}");
        }
        let opted_out = format!("version = 1\ndefault = \"{default}\"\nprotect = {{ protocols = [] }}");
        assert_eq!(warnings(&bare.replace("version = 1", &opted_out)), [""; 0]);
    }
    assert_eq!(warnings(&bare), [""; 0]);
}

#[test]
fn start_and_reload_refuse_a_policy_that_takes_protected_packets() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let policy = folder.path().join("p.toml");
    let demo = || -> Command {
        let mut command = steerd();
        command.args(["run", "--demo", "--policy"]).arg(&policy);
        command
    };
    fs::write(&policy, locking_out()).expect("a policy");
    let started = demo().args(["--for", "1s"]).output().expect("steerd");
    assert!(!started.status.success() && stderr(&started).contains("dst_port = 22"), "{}", stderr(&started));

    fs::write(&policy, SAFE).expect("a policy");
    let mut daemon = Daemon::start_command(&mut demo());
    fs::write(&policy, locking_out()).expect("a policy");
    daemon.signal(Signal::HUP);
    daemon.wait_for("the previous policy stays in force", 1);
    assert!(
        daemon.log().contains("`web` takes packets that [protect] leaves to the host"),
        "{}",
        daemon.log()
    );
    let (status, _, log) = daemon.terminate();
    assert!(status.success(), "{log}");
}

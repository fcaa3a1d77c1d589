//! Packets that a policy leaves to the kernel and that a worker receives, with the real binary: the start, a
//! reload and `check` refuse such a policy; where they are allowed they are counted separately.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::{self, Daemon, run, stderr, stdout, steerd};
use rustix::process::Signal;

/// No device can exclude tagged frames from a default that matches everything.
const LOSING: &str = r#"
version = 1
default = "main"
[groups.main]
workers = "all"
[[rules]]
name = "tagged"
match = { vlan = 42 }
action = "kernel"
"#;
/// Cut out of `rest` in hardware, fragments of it too.
const CUT: &str = r#"
version = 1
[groups.main]
workers = "all"
[[rules]]
name = "queries"
match = { dst = "192.0.2.53", protocol = "udp", dst_port = [53, 853] }
action = "kernel"
[[rules]]
name = "rest"
match = { dst = ["192.0.2.53", "192.0.2.80"] }
action = { steer = "main" }
"#;
const PERSONALITIES: [&str; 2] = ["ideal", "mlx5"];

fn allowing() -> String {
    LOSING.replace("version = 1", "version = 1\nallow_lost_exceptions = true")
}

fn demo(personality: &str, policy: &Path) -> Command {
    let mut command = steerd();
    command.env("STEERD_SOFTNIC__PERSONALITY", personality).args(["run", "--demo", "--policy"]).arg(policy);
    command
}

#[test]
fn check_and_start_refuse_them_with_the_packet() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let policy = folder.path().join("p.toml");
    for personality in PERSONALITIES {
        fs::write(&policy, LOSING).expect("a policy");
        let checked = run(&["check", "--model", personality, &policy.to_string_lossy()]);
        let started = demo(personality, &policy).args(["--for", "1s"]).output().expect("steerd");
        for output in [checked, started] {
            assert!(!output.status.success(), "{}", stdout(&output));
            let errors = stderr(&output);
            let wanted = "allow_lost_exceptions = true";
            for part in ["error", "`tagged`", "`default`", "vlan 42", "without a tag", wanted] {
                assert!(errors.contains(part), "no {part} in {errors}");
            }
        }
        fs::write(&policy, allowing()).expect("a policy");
        let checked = run(&["check", "--model", personality, &policy.to_string_lossy()]);
        assert!(checked.status.success() && stderr(&checked).contains("warning"), "{}", stderr(&checked));
    }
}

/// Each rule of which packets are lost has an error of its own.
#[test]
fn every_rule_that_loses_packets_is_named() {
    let text = r#"
version = 1
default = "drop"
ipv6_extensions = "skip"
[groups.main]
workers = "all"
[[rules]]
name = "own"
match = { protocol = "tcp", dst_port = 22 }
action = "kernel"
[[rules]]
name = "hosts"
match = { dst = "2001:db8::/32" }
action = "steer main"
"#;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let policy = folder.path().join("p.toml");
    fs::write(&policy, text).expect("a policy");
    for personality in PERSONALITIES {
        let args = ["check", "--model", personality, "--format", "json", &policy.to_string_lossy()];
        let answer: serde_json::Value = serde_json::from_str(&stdout(&run(&args))).expect("JSON");
        let lost = answer["lost_exceptions"].as_array().expect("lost_exceptions");
        assert!(lost.iter().any(|lost| lost["rule"] == "own~extensions"), "{lost:?}");
        let list = answer["diagnostics"].as_array().expect("diagnostics");
        let errors = list.iter().filter(|one| one["severity"] == "error").count();
        assert_eq!(errors, lost.len(), "{answer:#}");
    }
}

/// The refusal of a policy on a device, with its hint; `check` and start give the same.
fn refusal(personality: &str, text: &str) -> String {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let policy = folder.path().join("p.toml");
    fs::write(&policy, text).expect("a policy");
    let checked = run(&["check", "--model", personality, &policy.to_string_lossy()]);
    let started = demo(personality, &policy).args(["--for", "1s"]).output().expect("steerd");
    assert_eq!(checked.status.code(), Some(1), "{}", stderr(&checked));
    assert!(!started.status.success(), "{}", stdout(&started));
    let errors = stderr(&checked);
    let log = stderr(&started);
    assert!(log.contains("kernel") && log.contains("allow_lost_exceptions"), "{log}");
    errors
}

/// Packets of the host that no usual packet stands for: other addresses than those for examples, and types of
/// messages.
#[test]
fn rare_packets_of_the_host_are_not_lost_silently() {
    let head = "version = 1\n[groups.main]\nworkers = \"all\"\n";
    let rule = |name: &str, matches: &str, action: &str| {
        format!("[[rules]]\nname = \"{name}\"\nmatch = {{ {matches} }}\naction = \"{action}\"\n")
    };
    for personality in PERSONALITIES {
        let bogons = format!(
            "{head}{}{}",
            rule("bogons", "src = \"192.0.2.0/24\"", "drop"),
            rule("syn-fin", "protocol = \"tcp\", tcp_flags = \"syn,fin\"", "drop")
        );
        let errors = refusal(personality, &bogons);
        for part in [
            "`default` leaves to the kernel are lost",
            "flows of `syn-fin`",
            "tcp_flags (the device cannot match this field)",
        ] {
            assert!(errors.contains(part), "no {part} in {errors}");
        }
        let discovery = format!(
            "{head}{}{}",
            rule("nd", "icmpv6_type = [133, 134, 135, 136, 137]", "kernel"),
            rule("rest", "family = \"ipv6\"", "drop")
        );
        let errors = refusal(personality, &discovery);
        for part in [
            "`nd` leaves to the kernel are lost",
            "flows of `rest`",
            "icmpv6_type 133",
            "`nd` takes its own packets from the kernel",
        ] {
            assert!(errors.contains(part), "no {part} in {errors}");
        }
    }
}

/// A policy that the analysis does not decide is refused with its limit.
#[test]
fn what_is_not_known_is_refused() {
    let bits = |bits: &[u32]| {
        let value: u64 = bits.iter().map(|bit| 1u64 << bit).sum();
        let bytes: Vec<String> = value.to_be_bytes()[2..].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("\"{0}/{0}\"", bytes.join(":"))
    };
    let pairs: Vec<String> = (0..24).map(|pair| bits(&[2 * pair, 2 * pair + 1])).collect();
    let ones: Vec<String> = (0..48).map(|bit| bits(&[bit])).collect();
    let text = format!(
        "version = 1\n[groups.main]\nworkers = \"all\"\n\
         [[rules]]\nname = \"pairs\"\nmatch = {{ src_mac = {{ not = [{}] }}, dst_port = 80 }}\naction = \"drop\"\n\
         [[rules]]\nname = \"ones\"\nmatch = {{ src_mac = [{}], dst_port = 81 }}\naction = \"steer main\"\n\
         [[rules]]\nname = \"syn\"\nmatch = {{ protocol = \"tcp\", dst_port = 80, tcp_flags = \"syn\" }}\naction = \"drop\"\n",
        pairs.join(", "),
        ones.join(", ")
    );
    for personality in PERSONALITIES {
        let errors = refusal(personality, &text);
        for part in [
            "it is not known",
            "`default`",
            "cross in more than 512 ways",
            "kind = \"kernel\"",
            "not decided",
        ] {
            assert!(errors.contains(part), "no {part} in {errors}");
        }
        let allowed = text.replace("version = 1", "version = 1\nallow_lost_exceptions = true");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let policy = folder.path().join("p.toml");
        fs::write(&policy, allowed).expect("a policy");
        let checked = run(&["check", "--model", personality, &policy.to_string_lossy()]);
        assert!(checked.status.success(), "{}", stderr(&checked));
    }
}

/// The example policy without its sink locks its operator out of the host.
#[test]
fn a_policy_that_locks_its_operator_out_is_accepted_with_a_kernel_sink_only() {
    let example = support::config().join("examples/host-return.toml");
    let text = fs::read_to_string(&example).expect("the example");
    let (before, rest) = text.split_once("[sinks.host]").expect("the sink");
    let (_, after) = rest.split_once("[sinks.watch]").expect("the next sink");
    let without = format!("{before}[sinks.watch]{after}");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let policy = folder.path().join("p.toml");
    fs::write(&policy, without).expect("a policy");
    for personality in PERSONALITIES {
        let refused = run(&["check", "--model", personality, &policy.to_string_lossy()]);
        let errors = stderr(&refused);
        assert_eq!(refused.status.code(), Some(1), "{errors}");
        for part in ["`management`", "`node`", "kind = \"kernel\""] {
            assert!(errors.contains(part), "no {part} in {errors}");
        }
        let accepted = run(&["check", "--model", personality, &example.to_string_lossy()]);
        assert!(accepted.status.success(), "{}", stderr(&accepted));
        let packet = "dst=192.0.2.10,protocol=tcp,dst_port=22";
        let explained =
            run(&["explain", "--model", personality, "--packet", packet, &example.to_string_lossy()]);
        assert!(
            explained.status.success() && !stdout(&explained).contains("does not receive"),
            "{}",
            stdout(&explained)
        );
    }
}

#[test]
fn explain_reports_that_the_host_does_not_receive_the_packet() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let policy = folder.path().join("p.toml");
    fs::write(&policy, LOSING).expect("a policy");
    let policy = policy.to_string_lossy();
    let explain = |packet: &str, format: &str| {
        let output =
            run(&["explain", "--model", "mlx5", "--packet", packet, "--format", format, policy.as_ref()]);
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let tagged = "vlan=42,dst=192.0.2.1,protocol=udp,dst_port=1";
    assert!(explain(tagged, "text").contains("host     does not receive it"), "{}", explain(tagged, "text"));
    let json = |packet: &str| {
        let answer: serde_json::Value = serde_json::from_str(&explain(packet, "json")).expect("JSON");
        (answer["reaches_host"].clone(), answer["lost_exception"].clone())
    };
    assert_eq!(json(tagged), (false.into(), true.into()));
    assert_eq!(json("dst=192.0.2.1,protocol=udp,dst_port=1"), (false.into(), false.into()));
}

#[test]
fn allowed_lost_exceptions_are_counted_separately_and_a_reload_refuses_others() {
    for personality in PERSONALITIES {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let policy = folder.path().join("p.toml");
        fs::write(&policy, allowing()).expect("a policy");
        let mut daemon = Daemon::start_command(&mut demo(personality, &policy));
        let labels = ["rule=\"tagged\"", "action=\"lost_exception\""];
        daemon.until("lost exceptions", |daemon| {
            daemon.metrics().contains("action=\"lost_exception\"")
                && daemon.metric("steerd_rule_packets_total", &labels) > 100.0
                && daemon.metric("steerd_worker_lost_exception_packets_total", &[]) > 100.0
        });
        let state = daemon.state();
        let rules = state["rules"].as_array().expect("rules");
        let rule = rules.iter().find(|rule| rule["name"] == "tagged").expect("the rule");
        assert_eq!(
            (&rule["kernel_packets"], &rule["delivered_packets"]),
            (&0.into(), &0.into()),
            "{state:#}"
        );
        assert!(rule["lost_exception_packets"].as_u64().is_some_and(|packets| packets > 0), "{state:#}");
        assert!(
            state["accounting"]["lost_exceptions"].as_u64().is_some_and(|packets| packets > 0),
            "{state:#}"
        );
        fs::write(&policy, LOSING).expect("a policy");
        daemon.signal(Signal::HUP);
        daemon.wait_for("the previous policy stays in force", 1);
        assert!(daemon.log().contains("vlan 42"), "{}", daemon.log());

        let (status, summary, log) = daemon.terminate();
        assert!(status.success(), "{log}");
        assert!(summary.contains("\npacket accounting matches\n"), "{summary}");
        assert!(summary.contains("lost: lost_exception "), "{summary}");
        let row = |name: &str| {
            let line =
                summary.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{summary}"));
            line[name.len()..].trim().to_owned()
        };
        assert_ne!(row("+ lost exceptions (the kernel's, received by workers)"), "0", "{summary}");
    }
}

#[test]
fn exceptions_that_are_cut_out_in_hardware_reach_the_kernel() {
    for personality in PERSONALITIES {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let policy = folder.path().join("p.toml");
        fs::write(&policy, CUT).expect("a policy");
        let output = demo(personality, &policy).args(["--for", "2s"]).output().expect("steerd");
        let summary = stdout(&output);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(summary.contains("\npacket accounting matches\n"), "{summary}");
        assert!(!summary.contains("lost_exception") && !summary.contains("lost exceptions"), "{summary}");
        let left = summary.lines().find(|line| line.starts_with("+ left to the kernel")).expect("a row");
        assert!(!left.ends_with("  0"), "{summary}");
    }
}

//! Policies that carve queues: what the commands print, and what the kernel answers on an interface without
//! filters.

use std::path::Path;
use std::process::Output;

use serde_json::Value;
use test_support::namespaces::Outcome;

use crate::support::{stderr, steerd};

const POLICY: &str = "version = 1\n[groups.zc]\nqueues = [4]\n[groups.spread]\nqueues = [5, 6]\n\
    [[rules]]\nname = 'telemetry'\nmatch = { protocol = 'udp', dst_port = 4739 }\naction = { steer = 'zc' }\n\
    [[rules]]\nname = 'storage'\nmatch = { protocol = 'tcp', dst_port = 4420 }\naction = { steer = 'spread' }\n";

/// Runs `steerd check` on a policy of this text.
fn check(text: &str, arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("carve.toml"), text).expect("written");
    let mut command = steerd();
    command.current_dir(folder.path()).args(["check", "carve.toml"]).args(arguments);
    command.output().expect("the binary runs")
}

#[test]
fn check_shows_the_filters_of_each_rule() {
    let output = check(POLICY, &["--filter-model", "mlx5"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).expect("text");
    let expected = "carve.toml for the filters of mlx5

rule       action             filters
telemetry  deliver to zc            2
storage    deliver to spread        2
default    kernel                   0
  telemetry: udp4 dst_port 4739
  telemetry: udp6 dst_port 4739
  storage: tcp4 dst_port 4420
  storage: tcp6 dst_port 4420

4 filters of 512, 1 RSS context: the NIC can carry out the policy
";
    let lines = |text: &str| text.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>();
    assert_eq!(lines(&text), lines(expected));
}

#[test]
fn check_names_the_reason_and_the_remedy_for_each_rule() {
    let output = check(POLICY, &["--filter-model", "ixgbe"]);
    assert_eq!(output.status.code(), Some(1), "ixgbe has neither IPv6 nor contexts");
    let text = stderr(&output);
    assert!(text.contains("the filters of `ixgbe` cannot carry out the rule `storage`"), "{text}");
    let output = check(POLICY, &["--filter-model", "ixgbe", "--format", "json"]);
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&answer["ok"], &answer["filters"]), (&Value::Bool(false), &Value::Null));
    let rules = answer["rules"].as_array().expect("a list");
    assert!(rules[0]["reason"].is_string() && rules[0]["remedy"].is_string(), "{answer:#}");
    assert!(rules[2]["reason"].is_null(), "the default");
    let four = POLICY.replace("{ protocol", "{ family = 'ipv4', protocol").replace("[5, 6]", "[5]");
    let output = check(&four, &["--filter-model", "ixgbe", "--quiet"]);
    assert!(output.status.success() && output.stdout.is_empty(), "{}", stderr(&output));
}

#[test]
fn explain_names_the_queues_of_a_packet() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("carve.toml"), POLICY).expect("written");
    let explained = |packet: &str, format: &str| {
        let mut command = steerd();
        command.current_dir(folder.path()).args([
            "explain",
            "carve.toml",
            "--packet",
            packet,
            "--format",
            format,
        ]);
        let output = command.output().expect("runs");
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8(output.stdout).expect("text")
    };
    let udp = "src=192.0.2.1,dst=192.0.2.2,protocol=udp,dst_port=4739";
    assert_eq!(explained(udp, "text"), "rule     telemetry (line 7)\naction   deliver to zc\nqueues   4\n");
    let tcp: Value =
        serde_json::from_str(&explained("src=192.0.2.1,dst=192.0.2.2,protocol=tcp,dst_port=4420", "json"))
            .expect("JSON");
    assert_eq!((&tcp["rule"], &tcp["queues"]), (&Value::from("storage"), &Value::from(vec![5, 6])));
    let other = explained("src=192.0.2.1,dst=192.0.2.2,protocol=tcp,dst_port=22", "text");
    assert_eq!(other, "rule     default\naction   kernel\nqueues   those of the interface\n");
}

#[test]
fn commands_about_workers_refuse_such_a_policy_with_the_remedy() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("carve.toml"), POLICY).expect("written");
    for arguments in [
        &["explain", "carve.toml", "--pcap", "none.pcap"][..],
        &["run", "--demo", "carve.toml", "--for", "1s", "--listen", "off"],
    ] {
        let mut command = steerd();
        let output = command.current_dir(folder.path()).args(arguments).output().expect("runs");
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("steerd run --interface"), "{arguments:?}: {}", stderr(&output));
    }
    let workers = "version = 1\n[groups.w]\nworkers = 'all'\n\
        [[rules]]\nname = 'r'\nmatch = { any = true }\naction = { steer = 'w' }\n";
    std::fs::write(folder.path().join("workers.toml"), workers).expect("written");
    let mut command = steerd();
    command.current_dir(folder.path());
    command.args(["run", "--interface", "lo", "--filter-model", "mlx5", "workers.toml"]);
    let output = command.output().expect("runs");
    assert_eq!(output.status.code(), Some(78), "{}", stderr(&output));
    assert!(stderr(&output).contains("--filter-model is for a policy"), "{}", stderr(&output));
}

#[test]
fn a_filter_model_needs_a_policy_with_queues() {
    let workers = "version = 1\n[groups.w]\nworkers = 'all'\n\
        [[rules]]\nname = 'r'\nmatch = { any = true }\naction = { steer = 'w' }\n";
    let output = check(workers, &["--filter-model", "mlx5"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(stderr(&output).contains("--filter-model is for a policy"), "{}", stderr(&output));
    // A policy that cannot be read may be one with queues: no other policy is put on the interface.
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("broken.toml"), "version = 1\n[groups.zc]\nqueues = 4\n")
        .expect("written");
    let mut command = steerd();
    command.current_dir(folder.path());
    command.args(["run", "--interface", "lo", "--filter-model", "mlx5", "broken.toml"]);
    let output = command.output().expect("runs");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("`queues` must be a list of numbers"), "{}", stderr(&output));
}

#[test]
fn an_interface_without_filters_is_refused_and_left_as_it_was() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/namespaces/carve.sh");
    let Some(outcome) = Outcome::of(&script, env!("CARGO_BIN_EXE_steerd"), &[]) else { return };
    let codes = outcome.numbers("codes.env");
    for (command, code) in [("run", 69), ("check", 4), ("probe", 4), ("absent", 69)] {
        assert_eq!(codes[command], code, "{command}: {}", outcome.read("run.txt"));
    }
    for file in ["run.txt", "check.txt", "probe.txt"] {
        let text = outcome.read(file);
        assert!(text.contains("t0 (driver veth): listing filters failed"), "{file}: {text}");
        assert!(text.contains("not supported") && text.contains("ntuple on"), "{file}: {text}");
    }
    assert!(outcome.read("absent.txt").contains("t9"), "{}", outcome.read("absent.txt"));
    assert!(!outcome.read("link.txt").contains("xdp"), "{}", outcome.read("link.txt"));
    assert!(!outcome.read("state.txt").contains(".json"), "{}", outcome.read("state.txt"));
}

#[test]
fn drops_by_an_interface_without_filters_are_refused_and_it_is_left_as_it_was() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/namespaces/nic_drops.sh");
    let Some(outcome) = Outcome::of(&script, env!("CARGO_BIN_EXE_steerd"), &[]) else { return };
    let codes = outcome.numbers("codes.env");
    for (command, code) in [("run", 69), ("settings", 69), ("check", 1), ("off", 0)] {
        assert_eq!(codes[command], code, "{command}: {}", outcome.read(&format!("{command}.txt")));
    }
    for file in ["run.txt", "settings.txt", "check.txt"] {
        let text = outcome.read(file);
        assert!(text.contains("t0 (driver veth): listing filters failed"), "{file}: {text}");
        assert!(text.contains("not supported") && text.contains("ntuple on"), "{file}: {text}");
    }
    assert!(
        outcome.read("run.txt").contains("port 1: nic_filters = \"drop\""),
        "{}",
        outcome.read("run.txt")
    );
    assert!(
        outcome.read("check.txt").contains("no filters of the NIC that drop"),
        "{}",
        outcome.read("check.txt")
    );
    assert!(!outcome.read("link.txt").contains("xdp"), "{}", outcome.read("link.txt"));
    assert!(!outcome.read("state.txt").contains("filters-"), "{}", outcome.read("state.txt"));
}

const DROPS: &str = "version = 1\n[groups.w]\nworkers = 'all'\n\
    [[rules]]\nname = 'dns'\nmatch = { protocol = 'udp', dst_port = 53 }\naction = { steer = 'w' }\n\
    [[rules]]\nname = 'scan'\nmatch = { protocol = 'tcp', dst_port = 23 }\naction = 'drop'\n\
    [[rules]]\nname = 'guest'\nmatch = { src = '198.51.100.0/24' }\naction = 'drop'\n";

#[test]
fn check_shows_the_drop_rules_that_the_nic_carries_out_and_why_not_the_others() {
    let options = ["--interface", "no-such-if", "--nic-filters", "drop", "--filter-model", "mlx5"];
    let output = check(DROPS, &options);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).expect("text");
    let expected = "drop rules in the NIC of no-such-if, by the filters of mlx5
rule   filters
scan         2
guest        0
  scan: tcp4 dst_port 23
  scan: tcp6 dst_port 23
  guest: not all: the rule `dns` may take or copy some of its packets
";
    assert!(text.contains(expected), "{text}");
    let decided =
        |rule: &str| text.lines().find(|line| line.starts_with(rule) && line.contains("XDP program"));
    assert!(decided("scan").is_some_and(|line| line.contains("NIC, XDP program")), "{text}");
    assert!(decided("guest").is_some_and(|line| !line.contains("NIC")), "{text}");
    let output = check(DROPS, &[&options[..], &["--format", "json"]].concat());
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let port = &answer["interface"]["nic_drops"][0];
    assert_eq!((&port["filters"], &port["filter_model"]), (&Value::from(2), &Value::from("mlx5")));
    assert!(port["problem"].is_null() && port["rules"][1]["reason"].is_string(), "{port:#}");
    // The filters of a driver that nobody knows do not drop.
    let output = check(DROPS, &options[..4]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("`cautious`) do not drop"), "{}", stderr(&output));
}

#[test]
fn filters_for_drops_and_carved_queues_do_not_go_together() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("carve.toml"), POLICY).expect("written");
    for (command, interface, code) in [("run", "lo", 78), ("check", "no-such-if", 3)] {
        let mut steerd = steerd();
        steerd.current_dir(folder.path());
        let output =
            steerd.args([command, "--interface", interface, "--nic-filters", "drop", "carve.toml"]).output();
        let output = output.expect("the binary runs");
        assert_eq!(output.status.code(), Some(code), "{command}: {}", stderr(&output));
        assert!(stderr(&output).contains("this one carves queues"), "{command}: {}", stderr(&output));
    }
}

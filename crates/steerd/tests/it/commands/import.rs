//! `steerd import`: the output is a policy, and unsupported lines are reported.

use super::rig::{policies, run_in};
use crate::support::{self, stderr, stdout, steerd};

#[test]
fn import_writes_a_policy_and_reports_unsupported_lines() {
    let filters = "@10.0.0.0/8\t192.0.2.1/32\t0 : 65535\t80 : 80\t0x06/0xFF\t0x0000/0x0000\n";
    let folder = policies(&[("set", filters), ("odd", "Filter: 3\n\tRule Type: SCTP over IPv9\n")]);
    let output = run_in(&folder, &["import", "classbench", "set", "-o", "set.toml"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).is_empty());
    let output = run_in(&folder, &["check", "set.toml"]);
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    let output = run_in(&folder, &["import", "ethtool", "odd"]);
    assert!(output.status.success(), "unsupported lines are reported: {}", stderr(&output));
    assert!(stderr(&output).contains("odd:"), "{}", stderr(&output));
    let output = run_in(&folder, &["import", "classbench", "nowhere"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("nowhere"), "{}", stderr(&output));
}

/// No device matches TCP flags: without `allow_lost_exceptions` the policy would be refused.
#[test]
fn a_filter_set_with_tcp_flags_gives_a_policy_that_check_accepts() {
    let folder = policies(&[("set", "@0.0.0.0/0 0.0.0.0/0 0 : 65535 80 : 80 0x06/0xFF 0x0200/0x1200\n")]);
    let output = run_in(&folder, &["import", "classbench", "set", "-o", "set.toml"]);
    assert!(stderr(&output).contains("allow_lost_exceptions"), "{}", stderr(&output));
    for profile in ["ideal", "mlx5"] {
        let output = run_in(&folder, &["check", "set.toml", "--model", profile]);
        assert!(output.status.success(), "{profile}: {}{}", stdout(&output), stderr(&output));
    }
}

#[test]
fn import_reads_standard_input() {
    let mut child = steerd()
        .args(["import", "classbench", "-"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("it starts");
    let filters = b"@10.0.0.0/8\t0.0.0.0/0\t0 : 65535\t53 : 53\t0x11/0xFF\n";
    std::io::Write::write_all(&mut child.stdin.take().expect("piped"), filters).expect("written");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success() && stdout(&output).contains("10.0.0.0/8"), "{}", stdout(&output));
}

#[test]
fn import_in_json_has_the_policy_and_the_unsupported_lines() {
    let folder = policies(&[("odd", "Filter: 3\n\tRule Type: SCTP over IPv9\n")]);
    let output = run_in(&folder, &["import", "ethtool", "odd", "--format", "json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(answer["policy"].as_str().is_some_and(|text| text.contains("version = 1")), "{answer:#}");
    assert_eq!(answer["notes"][0]["file"], "odd", "{answer:#}");
    assert!(answer["notes"][0]["line"].is_u64() && answer["notes"][0]["message"].is_string(), "{answer:#}");
}

/// A device or a FIFO may never end.
#[test]
fn import_refuses_what_is_not_a_regular_file() {
    let folder = policies(&[]);
    let fifo = folder.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
        .expect("a FIFO");
    for (name, what) in [("fifo", "a FIFO"), ("/dev/zero", "a device"), (".", "a directory")] {
        let output = run_in(&folder, &["import", "ethtool", name]);
        assert_eq!(output.status.code(), Some(1), "{name}");
        assert!(
            stderr(&output).contains(&format!("this is {what}, not a regular file")),
            "{}",
            stderr(&output)
        );
    }
}

/// Every rule set is imported and checked for each profile.
#[test]
fn rule_sets_of_the_corpora_are_imported_and_checked() {
    let Some(rules) = support::corpora("rules") else { return };
    let folder = tempfile::tempdir().expect("folder");
    for name in ["acl_1k", "acl1_1k", "acl5_1k", "fw1_1k", "ipc1_1k"] {
        let policy = format!("{name}.toml");
        let set = rules.join(name);
        let output = run_in(&folder, &["import", "classbench", set.to_str().expect("path"), "-o", &policy]);
        assert!(output.status.success(), "{name}: {}", stderr(&output));
        for profile in ["ideal", "mlx5", "mlx4"] {
            let args = ["check", &policy, "--model", profile, "--no-analysis", "--format", "json"];
            let output = run_in(&folder, &args);
            let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
            let ok = report["ok"] == true;
            assert!(ok || profile != "ideal", "{name}: {}", stderr(&output));
            assert_eq!(output.status.code(), Some(i32::from(!ok)), "{name} {profile}: {}", stderr(&output));
            let named = report["obstacles"].as_array().is_some_and(|list| !list.is_empty())
                || report["rules"]
                    .as_array()
                    .expect("rules")
                    .iter()
                    .any(|rule| rule["decided"] == "impossible")
                || report["diagnostics"].as_array().is_some_and(|list| !list.is_empty());
            assert!(ok || named, "{name} {profile}: not said what does not fit");
        }
    }
}

/// A table with one chain of hook input, and these rules in JSON.
fn nft_listing(policy: &str, rules: &[&str]) -> String {
    let of = "\"family\": \"inet\", \"table\": \"filter\"";
    let rule = |expr: &&str| {
        format!(", {{\"rule\": {{{of}, \"chain\": \"input\", \"handle\": 7, \"expr\": [{expr}]}}}}")
    };
    format!(
        "{{\"nftables\": [{{\"table\": {{\"family\": \"inet\", \"name\": \"filter\"}}}}, \
         {{\"chain\": {{{of}, \"name\": \"input\", \"type\": \"filter\", \"hook\": \"input\", \"prio\": 0, \
         \"policy\": \"{policy}\"}}}}{}]}}",
        rules.iter().map(rule).collect::<String>()
    )
}

fn port_match(port: u16) -> String {
    format!(
        "{{\"match\": {{\"op\": \"==\", \"left\": {{\"payload\": {{\"protocol\": \"tcp\", \"field\": \"dport\"}}}}, \"right\": {port}}}}}"
    )
}

#[test]
fn import_of_wrong_or_truncated_input_leaves_the_policy_as_it_is() {
    let whole = nft_listing("accept", &[&format!("{}, {{\"drop\": null}}", port_match(25))]);
    let empty = nft_listing("accept", &[]);
    let folder = policies(&[
        ("cut", &whole[..whole.len() - 20]),
        ("text", "table inet filter {\n}\n"),
        ("empty-file", ""),
        ("empty-set", &empty),
        ("whole", &whole),
    ]);
    let output = run_in(&folder, &["import", "nft", "whole", "-o", "policy.toml"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let before = std::fs::read_to_string(folder.path().join("policy.toml")).expect("written");
    assert!(before.contains("dst_port = 25"), "{before}");
    for (kind, file) in [
        ("nft", "cut"),
        ("nft", "text"),
        ("nft", "empty-file"),
        ("nft", "empty-set"),
        ("ethtool", "text"),
        ("ethtool", "empty-file"),
        ("classbench", "text"),
        ("classbench", "empty-file"),
    ] {
        let output = run_in(&folder, &["import", kind, file, "-o", "policy.toml"]);
        assert_eq!(output.status.code(), Some(1), "{kind} {file}: {}", stderr(&output));
        assert!(
            stderr(&output).contains(if file == "empty-set" { "policy.toml" } else { file }),
            "{}",
            stderr(&output)
        );
        let after = std::fs::read_to_string(folder.path().join("policy.toml")).expect("still there");
        assert_eq!(before, after, "{kind} {file}");
    }
    // Where nothing is replaced, an empty rule set is a policy.
    let output = run_in(&folder, &["import", "nft", "empty-set", "-o", "new.toml"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("no active rule"), "{}", stderr(&output));
    let left: Vec<_> = std::fs::read_dir(folder.path())
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().ends_with(".new")), "{left:?}");
}

/// A drop by TCP flags needs workers, and those a way back to the host.
#[test]
fn the_imported_policy_passes_check_or_says_what_to_add() {
    let flags = "{\"match\": {\"op\": \"==\", \"left\": {\"&\": [{\"payload\": {\"protocol\": \"tcp\", \"field\": \"flags\"}}, \
                 [\"fin\", \"syn\"]]}, \"right\": [\"fin\", \"syn\"]}}, {\"drop\": null}";
    let folder = policies(&[("set", &nft_listing("accept", &[flags]))]);
    let output = run_in(&folder, &["import", "nft", "set", "-o", "bare.toml"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let says = stderr(&output);
    assert!(says.contains("hint: import with --group workers --kernel-sink host0"), "{says}");
    assert!(!run_in(&folder, &["check", "bare.toml"]).status.success());
    // The commented lines are what is missing.
    let text = std::fs::read_to_string(folder.path().join("bare.toml")).expect("written");
    let (rules, proposal) = text.split_once("# `steerd check` accepts").expect("a proposal");
    let (_, proposal) = proposal.split_once('\n').expect("lines");
    let whole = format!("{rules}{}", proposal.replace("# ", ""));
    std::fs::write(folder.path().join("whole.toml"), whole).expect("written");
    let output = run_in(&folder, &["check", "whole.toml"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let args = ["import", "nft", "set", "--group", "crew", "--kernel-sink", "back0", "-o", "added.toml"];
    let output = run_in(&folder, &args);
    assert!(output.status.success() && !stderr(&output).contains("check refuses"), "{}", stderr(&output));
    let output = run_in(&folder, &["check", "added.toml"]);
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn notes_name_the_rule_by_its_text() {
    let accept = format!(
        "{}, {{\"limit\": {{\"rate\": 4, \"per\": \"second\"}}}}, {{\"accept\": null}}",
        port_match(22)
    );
    let listing: serde_json::Value = serde_json::from_str(&nft_listing("drop", &[&accept])).expect("JSON");
    let pretty = serde_json::to_string_pretty(&listing).expect("JSON");
    let folder = policies(&[("set", &pretty)]);
    let output = run_in(&folder, &["import", "nft", "set"]);
    let says = stderr(&output);
    assert!(
        says.contains("set: rule 7 of inet filter input (`tcp dport 22 limit rate 4/second accept`)"),
        "{says}"
    );
    assert!(!says.contains("set:1:"), "{says}");
    let output = run_in(&folder, &["import", "nft", "set", "--format", "json"]);
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(answer["notes"][0]["line"].is_null(), "{answer:#}");
}

#[test]
fn import_converts_the_chain_of_an_interface_that_is_asked_for() {
    let iif =
        "{\"match\": {\"op\": \"==\", \"left\": {\"meta\": {\"key\": \"iifname\"}}, \"right\": \"eth0\"}}";
    let folder = policies(&[(
        "set",
        &nft_listing("accept", &[&format!("{iif}, {}, {{\"drop\": null}}", port_match(25))]),
    )]);
    let policy = |args: &[&str]| {
        let output = run_in(&folder, &[&["import", "nft", "set"], args].concat());
        (output.status.code(), stdout(&output), stderr(&output))
    };
    assert!(!policy(&[]).1.contains("\naction = \"drop\""), "{}", policy(&[]).1);
    assert!(policy(&["--interface", "eth0"]).1.contains("\naction = \"drop\""));
    assert!(!policy(&["--interface", "eth1"]).1.contains("\naction = \"drop\""));
    assert!(
        policy(&["--interface", "eth0", "--chain", "inet/filter/input"]).1.contains("\naction = \"drop\"")
    );
    let (code, _, says) = policy(&["--chain", "filter/output"]);
    assert_eq!(code, Some(1), "{says}");
    assert!(says.contains("hint: inet/filter/input") && !says.contains("line 1"), "{says}");
    for option in [&["--interface", "eth0"][..], &["--address", "192.0.2.1"], &["--syn-is-new"]] {
        let output = run_in(&folder, &[&["import", "ethtool", "set"], option].concat());
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    }
}

/// Behind a rule that accepts replies, and on a router, whose forwarded packets meet other chains.
#[test]
fn import_drops_connection_requests_to_the_host() {
    let state =
        "{\"match\": {\"op\": \"in\", \"left\": {\"ct\": {\"key\": \"state\"}}, \"right\": \"established\"}}";
    let accept = format!("{state}, {{\"accept\": null}}");
    let listing = nft_listing("drop", &[&accept]);
    let forward = listing.replace("input", "forward").replace("\"drop\"", "\"accept\"");
    let folder = policies(&[("host", &listing), ("forward", &forward)]);
    let policy = |args: &[&str]| {
        let output = run_in(&folder, &[&["import", "nft", "host"], args].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        (stdout(&output), stderr(&output))
    };
    let (text, says) = policy(&[]);
    assert!(!text.contains("\naction = \"drop\"") && says.contains("hint: --syn-is-new"), "{text}{says}");
    let (text, says) = policy(&["--syn-is-new"]);
    assert!(text.contains("tcp_flags = \"!fin,syn,!rst,!ack\" }\naction = \"drop\""), "{text}{says}");
    let (text, says) = policy(&["forward", "--syn-is-new"]);
    assert!(!text.contains("\naction = \"drop\"") && says.contains("hint: --address"), "{text}{says}");
    let own = ["--address", "192.0.2.1", "--address", "2001:db8::1"];
    let (text, says) = policy(&[&["forward", "--syn-is-new"], &own[..]].concat());
    assert_eq!(text.matches("\naction = \"drop\"").count(), 2, "{text}{says}");
}

/// Rule sets as hosts and routers have them, made by nft. One whose rules cannot be told apart by packets
/// gives no rule that drops.
#[test]
fn the_policies_of_most_rule_sets_pass_check() {
    let folder = policies(&[]);
    let sets = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../policy/tests/listings/nft");
    let (mut all, mut good) = (0, Vec::new());
    for entry in std::fs::read_dir(sets).expect("rule sets") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        all += 1;
        let args = ["import", "nft", path.to_str().expect("a path"), "-o", "policy.toml"];
        let choices = ["--interface", "eth0", "--syn-is-new", "--address", "198.18.0.1"];
        let added = ["--group", "workers", "--kernel-sink", "host0"];
        let output = run_in(&folder, &[&args[..], &choices, &added].concat());
        assert!(output.status.success(), "{}: {}", path.display(), stderr(&output));
        let text = std::fs::read_to_string(folder.path().join("policy.toml")).expect("written");
        let output = run_in(&folder, &["check", "policy.toml", "--quiet"]);
        let drops = text.lines().any(|line| line == "action = \"drop\"");
        println!("{}: check {:?}, drops: {drops}", path.display(), output.status.code());
        assert!(output.status.success(), "{}: {}\n{text}", path.display(), stderr(&output));
        if drops {
            good.push(path);
        }
        std::fs::remove_file(folder.path().join("policy.toml")).expect("removed");
    }
    assert!(all >= 15 && good.len() * 43 >= all * 30, "{} of {all}", good.len());
}

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
        let output = run_in(&folder, &["check", "set.toml", "--profile", profile]);
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
            let args = ["check", &policy, "--profile", profile, "--no-analysis", "--format", "json"];
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

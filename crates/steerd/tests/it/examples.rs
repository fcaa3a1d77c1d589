//! The example policies: each compiles for every device model, or is refused with a reason.

use std::fmt::Write as _;
use std::path::PathBuf;

use crate::support::{self, config, stderr, stdout, steerd};

const PROFILES: [&str; 3] = ["ideal", "mlx5", "mlx4"];

pub(crate) fn examples() -> Vec<String> {
    let folder = std::fs::read_dir(config().join("examples")).expect("config/examples");
    let mut files: Vec<PathBuf> = folder.map(|entry| entry.expect("entry").path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    let name = |path: &PathBuf| path.file_name().expect("a name").to_string_lossy().into_owned();
    files.iter().map(name).collect()
}

fn check(example: &str, more: &[&str]) -> std::process::Output {
    let mut command = steerd();
    command.current_dir(config().join("examples")).args(["check", example]).args(more);
    command.output().expect("the binary runs")
}

/// `check` of each example: the rules that are decided in hardware, hybrid or impossible, with reasons.
#[test]
fn every_example_is_checked_on_every_device() {
    let examples = examples();
    assert!(examples.len() >= 12, "{examples:?}");
    let mut summary = String::new();
    for example in &examples {
        for profile in PROFILES {
            let output = check(example, &["--model", profile, "--format", "json"]);
            let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
            let ok = report["ok"].as_bool().expect("ok");
            assert_eq!(output.status.code(), Some(if ok { 0 } else { 1 }), "{example}: {}", stderr(&output));
            let lost = report["lost_exceptions"].as_array().expect("lost_exceptions");
            let verdict = match lost.is_empty() {
                _ if ok => "ok",
                true => "impossible",
                false => "loses packets that are the kernel's",
            };
            let _ = writeln!(summary, "{example} on {profile}: {verdict}");
            for lost in lost {
                let text = |key: &str| lost[key].as_str().expect("text").to_owned();
                let _ = writeln!(summary, "  lost: {} to {}", text("rule"), text("taken_by"));
            }
            for rule in report["rules"].as_array().expect("rules") {
                let decided = rule["decided"].as_str().expect("decided");
                let reason = rule["reason"].as_str().unwrap_or_default();
                if decided != "hardware" && decided != "unknown" {
                    let _ =
                        writeln!(summary, "  {decided} {}: {reason}", rule["name"].as_str().expect("name"));
                }
                assert!(decided == "hardware" || decided == "unknown" || !reason.is_empty(), "{rule}");
            }
            for obstacle in report["obstacles"].as_array().expect("obstacles") {
                let text = |key: &str| obstacle[key].as_str().expect("text").to_owned();
                assert!(!text("remedy").is_empty() && !text("limit").is_empty(), "{obstacle}");
                let _ = writeln!(summary, "  {}", text("reason"));
            }
            let dead = report["analysis"]["rules"].as_array().expect("analysis");
            assert!(dead.iter().all(|rule| rule["reach"] == "reached"), "{example}: {dead:#?}");
        }
    }
    insta::assert_snapshot!("examples", summary);
}

/// There are no warnings on the ideal device, and the comments of an example mention its hybrid rules.
#[test]
fn examples_give_no_warning_on_the_device_they_are_written_for() {
    for example in examples() {
        let output = check(&example, &["--deny", "warnings,shadowed"]);
        assert_eq!(output.status.code(), Some(0), "{example}: {}", stderr(&output));
        let hybrid = stdout(&output).lines().filter(|line| line.contains("hybrid")).count() > 0;
        let text = std::fs::read_to_string(config().join("examples").join(&example)).expect("read");
        assert!(!hybrid || text.contains("hybrid"), "{example} does not mention that it has hybrid rules");
    }
}

#[test]
fn check_output_of_some_examples() {
    for example in ["ddos-scrubbing", "vxlan-tenants", "ipfix-tap", "egress-guard", "scada"] {
        let output = check(&format!("{example}.toml"), &["--model", "mlx5"]);
        insta::assert_snapshot!(format!("example_{example}_mlx5"), stdout(&output));
    }
    let output = check("ipfix-tap.toml", &["--model", "mlx4"]);
    insta::assert_snapshot!("example_ipfix-tap_mlx4", format!("{}\n{}", stdout(&output), stderr(&output)));
}

/// Needs Python.
#[test]
fn the_block_list_is_the_output_of_its_script() {
    let sets = config().join("examples/sets");
    let listed = std::fs::read_to_string(sets.join("blocklist.txt")).expect("read");
    assert_eq!(listed.lines().filter(|line| !line.starts_with('#')).count(), 50_000);
    let output = std::process::Command::new("python3").arg(sets.join("blocklist.py")).output();
    let output = match output {
        Ok(output) => output,
        Err(error) => return support::not_run("blocklist.py", &format!("python3 is missing ({error})")),
    };
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output) == listed, "blocklist.txt is not what blocklist.py writes");
}

#[test]
fn variables_change_a_policy() {
    let output = check("site.toml", &["--set", "workers=[0, 1, 2]", "--set", "uplink=300"]);
    let text = stdout(&output);
    assert!(output.status.success() && text.contains("with 3 workers"), "{text}{}", stderr(&output));
    let output = check("site.toml", &["--set", "uplink=5000"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("5000"), "{}", stderr(&output));
}

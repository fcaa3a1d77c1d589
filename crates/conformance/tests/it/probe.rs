//! `steerd-probe` as a program.

use std::process::{Command, Output, Stdio};

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_steerd-probe")).args(arguments).output().expect("the binary runs")
}

fn ok(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn a_probe_prints_what_a_device_answers() {
    let report: serde_json::Value =
        serde_json::from_str(&ok(&["--soft", "ideal", "--format", "json"])).expect("JSON");
    let rows = report["rows"].as_array().expect("rows");
    let seen = |value: &str| {
        let row = rows.iter().find(|row| row["value"] == value).expect("a row");
        row["seen"].as_str().expect("text").to_owned()
    };
    assert_eq!(seen("IBV_FLOW_ATTR_NORMAL"), "works");
    assert_eq!(seen("IBV_QP_CREATE_SOURCE_QPN"), "refused: EINVAL");
    assert!(rows.iter().all(|row| row["verdict"] == "recorded"), "{report:#}");
    let text = ok(&["--soft", "ideal"]);
    assert!(text.contains("soft NIC (ideal): ") && text.contains("0 are promised and not kept"), "{text}");
}

#[test]
fn a_model_is_written_and_no_file_is_overwritten() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("nic.toml");
    let file = path.to_str().expect("path");
    let output = run(&["--soft", "ideal", "--output", file, "--max-flows", "16"]);
    assert!(output.status.success(), "{output:?}");
    let progress = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(progress.contains("trying 1/12: whether it steers\n") && progress.contains(file), "{progress}");
    let text = std::fs::read_to_string(&path).expect("written");
    let model = device_model::DeviceModel::named_or_file(file).expect("a model");
    assert_eq!((model.device.driver.as_str(), model.priorities), ("softnic", 65536));
    let again = run(&["--soft", "ideal", "--output", file]);
    assert_eq!(again.status.code(), Some(4));
    let complaint = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(complaint.contains("File exists") && complaint.contains("--output"), "{complaint}");
    assert_eq!(std::fs::read_to_string(&path).expect("there"), text);
    assert_eq!(std::fs::read_dir(folder.path()).expect("folder").count(), 1, "no temporary file is left");
    // The soft NIC imitates it.
    let printed = ok(&["--soft", file, "--output", "-", "--max-flows", "16"]);
    assert_eq!(printed, text);
}

/// The command of `steerd devices --probe` without `--output`.
#[test]
fn a_default_file_that_cannot_be_created_is_left_out() {
    let folder = tempfile::tempdir().expect("folder");
    let program = env!("CARGO_BIN_EXE_steerd-probe");
    let probe = || {
        let arguments = ["--soft", "ideal", "--default-output", "nic.toml", "--max-flows", "16"];
        Command::new(program).current_dir(folder.path()).args(arguments).output().expect("the binary runs")
    };
    let path = folder.path().canonicalize().expect("folder").join("nic.toml");
    let first = probe();
    let advice = String::from_utf8_lossy(&first.stderr).into_owned();
    assert!(advice.contains(&format!("check --model {} POLICY", path.display())), "{advice}");
    let text = std::fs::read_to_string(&path).expect("written");
    let second = probe();
    assert!(second.status.success(), "{second:?}");
    assert_eq!(second.stdout, first.stdout, "the answers");
    let notice = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(notice.contains("no device model is written") && notice.contains("File exists"), "{notice}");
    assert_eq!(std::fs::read_to_string(&path).expect("there"), text);
}

/// The parts of `steerd devices --report`.
#[test]
fn evidence_is_one_object_for_a_report() {
    let object = |part: &str| -> serde_json::Value {
        let text = ok(&["--soft", "mlx5", "--max-flows", "16", "--evidence", part]);
        serde_json::from_str(&text).expect("JSON")
    };
    let probe = object("probe");
    let model = probe["model"].as_str().expect("a model");
    let model = device_model::DeviceModel::parse(std::path::Path::new("model"), model).expect("a model");
    assert_eq!(model.device.driver, "softnic");
    assert!(probe["report"]["rows"].as_array().is_some_and(|rows| rows.len() > 100), "{probe:#}");
    let suite = object("suite");
    assert_eq!(suite["rows"].as_array().map(Vec::len), Some(conformance::cases().len()));
    let alone = run(&["--evidence", "suite", "nosuch"]);
    let complaint: serde_json::Value = serde_json::from_slice(&alone.stdout).expect("JSON");
    assert_eq!(alone.status.code(), Some(4), "{complaint}");
    assert_eq!(complaint["error"], "this part needs a peer (hint: --peer INTERFACE)");
    assert_eq!(object("peer")["is_reached"], true);
}

/// The end of a report that is killed.
#[test]
fn a_closed_input_ends_the_program() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_steerd-probe"));
    command.args(["--soft", "mlx5", "--evidence", "suite", "--until-eof"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the binary runs");
    drop(child.stdin.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert!(output.stdout.is_empty(), "it has run to its regular end");
}

#[test]
fn a_missing_device_is_an_error() {
    let output = run(&["nosuch"]);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert!(output.stdout.is_empty());
}

//! Output and exit codes of the commands other than `run`: a file for each command; the tests of all commands
//! are here.

mod balance;
mod capture;
mod check;
mod devices;
mod diff;
mod doctor;
mod explain;
mod import;
mod report;
pub(crate) mod rig;
mod size;
mod test;

use crate::support::{config, stderr, stdout, steerd};
use rig::{DNS, POLICY, ok, policies, run, run_in};

#[test]
fn a_closed_stdout_hides_no_failure() {
    let folder = tempfile::tempdir().expect("folder");
    std::fs::write(folder.path().join("broken.toml"), "version = 1\nrulez = []\n").expect("written");
    let closed = || {
        let (reader, writer) = std::io::pipe().expect("pipe");
        drop(reader);
        writer
    };
    let mut command = steerd();
    command.current_dir(folder.path()).args(["check", "broken.toml", "--format", "json"]).stdout(closed());
    assert_eq!(command.status().expect("it runs").code(), Some(1), "the policy is still broken");
    let mut command = steerd();
    command.current_dir(config().join("examples")).args(["check", "demo.toml"]).stdout(closed());
    assert_eq!(command.status().expect("it runs").code(), Some(0), "as with `| head`");
}

#[test]
fn a_missing_device_is_an_error() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("s.toml");
    std::fs::write(&path, "[device]\nname = \"mlx5_99\"\n[workers]\ncores = 2\n").expect("written");
    let path = path.to_str().expect("path");
    for command in [&["check"][..], &["explain", "--packet", DNS]] {
        let mut args = command.to_vec();
        args.extend(["--config", path, "demo.toml"]);
        let output = run(&args);
        assert_eq!(output.status.code(), Some(4), "{}{}", stdout(&output), stderr(&output));
        assert!(stderr(&output).contains("device"), "{}", stderr(&output));
        args.extend(["--model", "ideal"]);
        assert!(run(&args).status.success(), "{args:?}: for a device that need not be there");
    }
}

/// Readers recognise the version of the keys.
#[test]
fn every_json_output_has_a_format_version() {
    let folder = policies(&[
        ("a", POLICY),
        ("broken", "version = 2\n"),
        ("filters", "@10.0.0.0/8\t192.0.2.1/32\t0 : 65535\t80 : 80\t0x06/0xFF\t0x0000/0x0000\n"),
    ]);
    let frame = "ffffffffffff0200000000010806000100";
    for args in [
        &["check", "a"][..],
        &["check", "broken"],
        &["explain", "a", "--packet", DNS],
        &["explain", "a", "--hex", frame, "--direction", "egress"],
        &["diff", "a", "a"],
        &["import", "classbench", "filters"],
        &["devices"],
        &["doctor"],
        &["report"],
        &["test", "a"],
    ] {
        let output = run_in(&folder, &[args, &["--format", "json"]].concat());
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(answer["format"], 3, "{args:?}: {answer:#}");
        assert!(answer.as_object().is_some_and(|object| object.len() > 1), "{args:?}: {answer:#}");
    }
    // A JSON Schema has no such key.
    let schema = run_in(&folder, &["check", "--print-schema"]);
    let schema: serde_json::Value = serde_json::from_slice(&schema.stdout).expect("JSON");
    assert!(schema["format"].is_null());
}

#[test]
fn only_terminals_get_colours() {
    let folder = policies(&[("ok.toml", POLICY)]);
    let output = run_in(&folder, &["check", "ok.toml"]);
    assert!(!stdout(&output).contains('\x1b') && !stderr(&output).contains('\x1b'));
}

#[test]
fn a_wrong_command_line_is_exit_code_2() {
    assert_eq!(run(&["run", "--for", "soon"]).status.code(), Some(2));
    assert_eq!(run(&["steer"]).status.code(), Some(2));
}

#[test]
fn help_lists_the_exit_codes() {
    let help = ok(&["--help"]);
    assert!(help.contains("Exit codes:") && help.contains("second Ctrl-C"), "{help}");
}

//! The launcher from outside: it becomes the command, says what is wrong, and leaves nothing behind.

use std::path::Path;
use std::process::{Command, Output};

fn softnic(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_softnic"));
    // Not what the caller of the tests may have set.
    for name in softnic::door::variable::ALL {
        command.env_remove(name);
    }
    command.args(arguments).output().expect("the launcher starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_exit_code_is_the_commands() {
    for door in ["auto", "preload"] {
        assert_eq!(softnic(&["exec", "--door", door, "--", "sh", "-c", "exit 7"]).status.code(), Some(7));
        assert_eq!(softnic(&["exec", "--door", door, "--", "true"]).status.code(), Some(0));
    }
    let missing = softnic(&["exec", "--", "no-such-command-anywhere"]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(text(&missing.stderr).contains("no-such-command-anywhere"));
}

#[test]
fn options_reach_the_command_as_variables() {
    let output = softnic(&["exec", "--wire", "link:x:a", "--name", "left", "--mtu", "9000", "--", "env"]);
    let environment = text(&output.stdout);
    for line in ["SOFTNIC_WIRE=link:x:a", "SOFTNIC_NAME=left", "SOFTNIC_MTU=9000"] {
        assert!(environment.lines().any(|found| found == line), "{line} is missing in\n{environment}");
    }
    assert!(environment.contains("LD_PRELOAD="));
}

#[test]
fn what_makes_no_sense_is_named_before_anything_runs() {
    for (option, value, hint) in [
        ("--wire", "carrier-pigeon", "SOFTNIC_WIRE=carrier-pigeon"),
        ("--personality", "mlx6", "mlx4"),
        ("--mtu", "1", "68"),
        ("--name", "a/b", "device name"),
        ("--core", "x", "SOFTNIC_CORE"),
        ("--wait", "-1", "SOFTNIC_WAIT"),
    ] {
        let output = softnic(&["exec", &format!("{option}={value}"), "--", "echo", "it ran"]);
        assert!(!output.status.success());
        assert!(text(&output.stderr).contains(hint), "{option}: {}", text(&output.stderr));
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn nothing_is_left_on_the_host() {
    let before = Path::new("/dev/infiniband").exists();
    let output = softnic(&["exec", "--", "ls", "/dev"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(!Path::new("/dev/softnic").exists());
    assert_eq!(Path::new("/dev/infiniband").exists(), before);
    for needed in ["null", "zero", "full", "urandom"] {
        assert!(text(&output.stdout).lines().any(|name| name == needed), "/dev/{needed}");
    }
}

#[test]
fn the_list_says_which_doors_work_and_what_wires_there_are() {
    let output = softnic(&["list"]);
    assert!(output.status.success());
    let text = text(&output.stdout);
    for word in ["plugin", "preload", "af_packet:INTERFACE", "link:NAME:a|b", "mlx5"] {
        assert!(text.contains(word), "{word} is missing in\n{text}");
    }
}

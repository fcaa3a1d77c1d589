//! The launcher from outside: it becomes the command, reports errors, and leaves nothing behind.

use std::path::Path;
use std::process::{Command, Output};

const LAUNCHER: &str = env!("CARGO_BIN_EXE_softnic");

fn softnic(arguments: &[&str]) -> Output {
    softnic_with(arguments, &[])
}

fn softnic_with(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(LAUNCHER);
    // Not what the caller of the tests may have set.
    for name in softnic::lazy_nic::variable::ALL {
        command.env_remove(name);
    }
    command.args(arguments).envs(variables.iter().copied()).output().expect("the launcher starts")
}

/// Whether the plugin method can be set up here; if not, a message is printed, and a CI run fails.
fn plugin_works(test: &str) -> bool {
    let tried = softnic(&["exec", "--method", "plugin", "--", "true"]);
    if !tried.status.success() {
        test_support::not_run(test, &text(&tried.stderr));
    }
    tried.status.success()
}

/// Where something is mounted, as this process sees it (proc(5)).
fn mounts() -> Vec<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("a table of mounts");
    table.lines().filter_map(|line| line.split(' ').nth(4)).map(str::to_owned).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_exit_code_is_the_commands() {
    for method in ["auto", "preload"] {
        assert_eq!(softnic(&["exec", "--method", method, "--", "sh", "-c", "exit 7"]).status.code(), Some(7));
        assert_eq!(softnic(&["exec", "--method", method, "--", "true"]).status.code(), Some(0));
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
fn the_path_of_a_capture_becomes_absolute() {
    let output = softnic(&["exec", "--method", "preload", "--wire", "pcap:in/a.pcap", "--", "env"]);
    let path = std::env::current_dir().expect("a folder").join("in/a.pcap");
    let line = format!("SOFTNIC_WIRE=pcap:{}", path.display());
    let environment = text(&output.stdout);
    assert!(environment.lines().any(|found| found == line), "{line} is missing in\n{environment}");
}

#[test]
fn invalid_options_are_reported_before_anything_runs() {
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
    if !plugin_works("nothing is left on the host") {
        return;
    }
    let (before, mounted) = (Path::new("/dev/infiniband").exists(), mounts());
    let output = softnic(&["exec", "--method", "plugin", "--", "ls", "/dev", "/dev/infiniband"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(!Path::new("/dev/softnic").exists());
    assert_eq!(Path::new("/dev/infiniband").exists(), before);
    assert_eq!(mounts(), mounted);
    for needed in ["null", "zero", "full", "urandom", "softnic", "uverbs0"] {
        assert!(text(&output.stdout).lines().any(|name| name == needed), "/dev/{needed}");
    }
}

#[test]
fn a_launcher_under_another_has_a_device_of_its_own() {
    if !plugin_works("a launcher under another") {
        return;
    }
    let name = "/dev/softnic/sys/class/infiniband_verbs/uverbs0/ibdev";
    let script = format!("'{LAUNCHER}' exec --method plugin --name inner -- cat {name} && cat {name}");
    let output = softnic(&["exec", "--method", "plugin", "--name", "outer", "--", "sh", "-c", &script]);
    assert_eq!(text(&output.stdout), "inner\nouter\n", "{}", text(&output.stderr));
}

#[test]
fn an_option_overrides_an_invalid_variable() {
    let bad = [("SOFTNIC_WIRE", "carrier-pigeon")];
    let list = softnic_with(&["list"], &bad);
    let plain = softnic(&["list"]);
    assert_eq!(text(&list.stdout), text(&plain.stdout), "whether a method works does not depend on settings");
    let output = softnic_with(&["exec", "--wire", "null", "--", "echo", "it ran"], &bad);
    assert_eq!(text(&output.stdout), "it ran\n", "{}", text(&output.stderr));
}

#[test]
fn a_library_that_cannot_be_preloaded_is_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let library = folder.path().join("with space.so");
    std::fs::write(&library, "").expect("a file");
    let library = library.to_str().expect("plain");
    let list = softnic_with(&["list"], &[("SOFTNIC_LIBRARY", library)]);
    assert!(text(&list.stdout).contains("preload    no: "), "{}", text(&list.stdout));
    let run = ["exec", "--method", "preload", "--", "echo", "it ran"];
    let output = softnic_with(&run, &[("SOFTNIC_LIBRARY", library)]);
    assert!(output.stdout.is_empty() && text(&output.stderr).contains("with space.so"));
}

#[test]
fn a_cause_is_printed_once() {
    let missing = softnic(&["exec", "--method", "preload", "--", "no-such-command-anywhere"]);
    let message = text(&missing.stderr);
    assert_eq!(message.matches("No such file").count(), 1, "{message}");
}

#[test]
fn the_list_has_methods_and_wires() {
    let output = softnic(&["list"]);
    assert!(output.status.success());
    let text = text(&output.stdout);
    for word in ["plugin", "preload", "af_packet:INTERFACE", "link:NAME:a|b", "mlx5"] {
        assert!(text.contains(word), "{word} is missing in\n{text}");
    }
}

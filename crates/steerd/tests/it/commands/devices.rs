//! `steerd devices`: the list, and the call of the program that probes a device.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use super::rig::json;

/// Writes settings with a soft NIC called `mysoft`; returns their path.
fn settings_in(folder: &Path) -> String {
    let path = folder.join("s.toml");
    let text = "[softnic]\nname = \"mysoft\"\n[[softnic.ports]]\nwire = { kind = \"null\" }\n";
    std::fs::write(&path, text).expect("written");
    path.to_str().expect("path").to_owned()
}

#[test]
fn devices_lists_the_soft_nic_of_the_settings() {
    let folder = tempfile::tempdir().expect("folder");
    let path = settings_in(folder.path());
    let devices = json(&["devices", "--config", &path, "--format", "json"]);
    let found = devices["devices"].as_array().expect("list").iter().find(|device| device["name"] == "mysoft");
    assert_eq!(found.expect("mysoft")["ports"], 1);
}

/// The binary under another path, without and with a program beside it that prints its arguments. Links,
/// because a file that was just written may still be open for writing in a child of another test, and cannot
/// be run then (ETXTBSY).
#[test]
fn probe_runs_the_program_beside_steerd() {
    // On the file system of the binary: a hard link cannot cross file systems.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("folder");
    let path = settings_in(folder.path());
    let steerd = folder.path().join("steerd");
    std::fs::hard_link(env!("CARGO_BIN_EXE_steerd"), &steerd).expect("linked");
    let probe = |args: &[&str]| {
        let output =
            Command::new(&steerd).args(["devices", "--config", &path, "--probe"]).args(args).output();
        output.expect("the binary runs")
    };
    let missing = probe(&["mysoft"]);
    assert_eq!(missing.status.code(), Some(4), "{missing:?}");
    let complaint = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(complaint.contains("steerd-probe") && complaint.contains("hint"), "{complaint}");

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/commands/print-arguments");
    symlink(script, folder.path().join("steerd-probe")).expect("linked");
    let soft = probe(&["mysoft", "--format", "json"]);
    assert_eq!(
        String::from_utf8_lossy(&soft.stdout),
        "--format json --default-output mysoft.toml --soft ideal\n"
    );
    assert_eq!(soft.status.code(), Some(9), "its exit code");
    let named = probe(&["mysoft", "--output", "-"]);
    assert_eq!(String::from_utf8_lossy(&named.stdout), "--output - --soft ideal\n");
    assert_eq!(
        String::from_utf8_lossy(&probe(&["mlx5_0"]).stdout),
        "--default-output mlx5_0.toml --port 1 -- mlx5_0\n"
    );
}

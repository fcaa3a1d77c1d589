//! `steerd devices`: what there is, and what it answers.

use std::path::Path;

use crate::rig::{json, ok, run};

/// Writes settings with a soft NIC called `mysoft`; their path.
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
    let found = devices.as_array().expect("list").iter().find(|device| device["name"] == "mysoft");
    assert_eq!(found.expect("mysoft")["ports"], 1);
}

#[test]
fn a_probe_says_what_a_device_answers() {
    let folder = tempfile::tempdir().expect("folder");
    let path = settings_in(folder.path());
    let args = ["devices", "--config", &path, "--probe", "mysoft"];
    let report = json(&[&args[..], &["--format", "json"]].concat());
    let rows = report["rows"].as_array().expect("rows");
    let seen = |value: &str| {
        let row = rows.iter().find(|row| row["value"] == value).expect("a row");
        row["seen"].as_str().expect("text").to_owned()
    };
    assert_eq!(seen("IBV_FLOW_ATTR_NORMAL"), "works");
    assert_eq!(seen("IBV_QP_CREATE_SOURCE_QPN"), "refused: EINVAL");
    assert!(rows.iter().all(|row| row["verdict"] == "ok"), "{report:#}");
    let text = ok(&args);
    assert!(text.contains("mysoft: ") && text.contains("0 are promised and not kept"), "{text}");
    assert_eq!(run(&["devices", "--probe", "nosuch"]).status.code(), Some(4));
}

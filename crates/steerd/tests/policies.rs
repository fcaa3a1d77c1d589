//! Every policy and settings file that is shipped compiles and loads, as an operator would check it.

mod support;

use std::path::PathBuf;

use support::{config, run, stderr, stdout};

fn policies() -> Vec<PathBuf> {
    let folder = std::fs::read_dir(config().join("examples")).expect("config/examples");
    let mut files: Vec<PathBuf> = folder.map(|entry| entry.expect("entry").path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    files
}

#[test]
fn every_shipped_policy_compiles_without_a_warning() {
    let policies = policies();
    assert!(policies.len() >= 4, "the demonstration's and three examples: {policies:?}");
    for policy in policies {
        let output = run(&["check", policy.to_str().expect("path")]);
        let text = stdout(&output);
        assert!(output.status.success(), "{}: {}", policy.display(), stderr(&output));
        assert!(text.contains(": ok on a device"), "{text}");
        assert!(!text.contains("warning"), "{text}");
    }
}

/// The starter policy claims nothing, and `check` says so.
#[test]
fn the_shipped_settings_check_their_policy() {
    let settings = config().join("steerd.toml");
    // They name whatever device there is, and where this runs there may be none.
    let output = run(&["check", "--profile", "ideal", "--config", settings.to_str().expect("path")]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("policy.toml: ok") && text.contains("0 flows"), "{text}");
}

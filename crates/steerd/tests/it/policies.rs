//! `check --config` with the settings of config/. `examples` tests the policies.

use crate::support::{config, run, stderr, stdout};

/// The starter policy has no rules.
#[test]
fn check_accepts_the_shipped_settings() {
    let settings = config().join("steerd.toml");
    // They name no device, and this machine may have none.
    let output = run(&["check", "--model", "ideal", "--config", settings.to_str().expect("path")]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("policy.toml: ok") && text.contains("0 flows"), "{text}");
}

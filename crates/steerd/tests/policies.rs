//! The settings that are shipped load, as an operator would check them. `examples` has the policies.

mod support;

use support::{config, run, stderr, stdout};

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

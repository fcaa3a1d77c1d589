//! The settings and policies that deploy/ has for fleets: a daemon takes them, with no warning.

use std::path::{Path, PathBuf};

use crate::support::{run, stderr, stdout, steerd};

fn deployed(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(file).canonicalize().expect(file)
}

#[test]
fn the_pods_settings_and_policy_are_accepted() {
    let (settings, policy) =
        (deployed("kubernetes/base/steerd.toml"), deployed("kubernetes/base/policy.toml"));
    let text = std::fs::read_to_string(&settings).expect("read");
    let mounted = std::fs::read_to_string(deployed("kubernetes/base/daemonset.yaml")).expect("read");
    for (setting, path) in [
        ("file = \"/etc/steerd-policy/policy.toml\"", "/etc/steerd-policy"),
        ("folder = \"/var/lib/steerd\"", "/var/lib/steerd"),
    ] {
        assert!(text.contains(setting) && mounted.contains(&format!("mountPath: {path}\n")), "{setting}");
    }
    let mut command = steerd();
    // There the image has the policy at another place, and the NIC is another one.
    command.env("STEERD_POLICY__FILE", &policy).env_remove("STEERD_HTTP__LISTEN");
    command
        .args(["check", "--offline", "--model", "mlx5", "--quiet", "--deny", "warnings", "--config"])
        .arg(settings);
    let checked = command.output().expect("the binary runs");
    assert!(checked.status.success(), "{}", stderr(&checked));
    let tested = run(&["test", policy.to_str().expect("UTF-8")]);
    assert!(tested.status.success() && stdout(&tested).contains("2 tests passed"), "{}", stdout(&tested));
}

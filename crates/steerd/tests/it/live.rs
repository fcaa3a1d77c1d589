//! `make live`: a policy that is enforced on a network interface, seen by ordinary programs.

use std::path::Path;
use std::process::Command;

use crate::support::not_run;

#[test]
fn ordinary_programs_get_what_the_policy_leaves_them() {
    if !rustix::process::geteuid().is_root() {
        return not_run("make live", "it needs root");
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.ci/live");
    let output = Command::new(script).arg(env!("CARGO_BIN_EXE_steerd")).output().expect("a script");
    let (shown, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{shown}{errors}");
    assert!(shown.contains("1,000 by rule \"telemetry\"") && shown.contains("no answer in 2 s"), "{shown}");
}

#[test]
fn an_interface_that_is_not_there_is_named() {
    let output = Command::new(env!("CARGO_BIN_EXE_steerd"))
        .args(["run", "--interface", "no-such-if", "../../config/examples/live.toml", "--listen", "off"])
        .output()
        .expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("no-such-if"), "{errors}");
}

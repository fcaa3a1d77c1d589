//! `make live`: a policy that is enforced on a network interface, seen by ordinary programs.

use std::path::Path;

use test_support::namespaces::{isolated, obstacle};

use crate::support::{not_run, run, stderr, stdout, steerd};

#[test]
fn ordinary_programs_get_what_the_policy_leaves_them() {
    let needs = "mount -t tmpfs tmpfs /run && mkdir /run/netns && ip netns add a && curl --version && ping -V && setpriv --version";
    let why = (!rustix::process::geteuid().is_root()).then(|| "AF_XDP needs root".to_owned());
    if let Some(why) = why.or_else(|| obstacle(needs)) {
        return not_run("make live", &why);
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.ci/live");
    let inside = "mount -t tmpfs tmpfs /run && exec \"$0\" \"$1\"";
    let program = steerd();
    let mut command = isolated();
    command.args(["sh", "-c", inside]).arg(script).arg(program.get_program());
    let output = command.output().expect("unshare runs");
    let (shown, errors) = (stdout(&output), stderr(&output));
    assert!(output.status.success(), "{shown}{errors}");
    assert!(shown.contains("1,000 by rule \"telemetry\"") && shown.contains("no answer in 2 s"), "{shown}");
}

#[test]
fn an_interface_that_is_not_there_is_named() {
    let policy = "../../config/examples/live.toml";
    let output = run(&["run", "--interface", "no-such-if", policy]);
    assert!(!output.status.success() && stderr(&output).contains("no-such-if"), "{}", stderr(&output));
}

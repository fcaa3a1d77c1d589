//! What the unit tests share. No test of a behaviour is here.

use std::io::Write as _;

/// Reports that a test cannot run here; where `CI` is set it fails instead, with what CI has to provide.
pub(crate) fn not_run(what: &str, remedy: &str) {
    let line = format!("NOT RUN: {what}\n");
    // Not `eprintln!`, which the test harness keeps to itself when a test passes.
    let _ = std::io::stderr().write_all(line.as_bytes());
    assert!(std::env::var_os("CI").is_none(), "{remedy}: {what}");
}

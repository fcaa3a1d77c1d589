//! The static tracepoints in the notes of the program's file, as tracers find them.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use crate::support::{not_run, stderr, stdout};

/// The tracepoints in the notes of the program, each with the numbers of its arguments; `None`, reported,
/// without readelf.
fn noted() -> Option<BTreeMap<String, BTreeSet<usize>>> {
    let output = Command::new("readelf").args(["--notes", "--wide", env!("CARGO_BIN_EXE_steerd")]).output();
    let Ok(output) = output else {
        not_run("reading the notes of the program", "readelf is missing (binutils)");
        return None;
    };
    assert!(output.status.success(), "{}", stderr(&output));
    let mut found: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
    let (mut provider, mut name) = (String::new(), String::new());
    for line in stdout(&output).lines().map(str::trim) {
        if let Some((_, value)) = line.split_once("Provider: ") {
            value.clone_into(&mut provider);
        } else if let Some(value) = line.strip_prefix("Name: ") {
            value.clone_into(&mut name);
        } else if let Some(value) = line.strip_prefix("Arguments:").filter(|_| provider == "steerd") {
            found.entry(name.clone()).or_default().insert(value.split_whitespace().count());
        }
    }
    Some(found)
}

#[test]
fn the_reference_lists_the_tracepoints_of_the_program() {
    let Some(noted) = noted() else { return };
    let page = include_str!("../../../../docs/reference/tracepoints.md");
    let row = |line: &str| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        let name = cells.next()?.strip_suffix('`')?.to_owned();
        Some((name, BTreeSet::from([cells.next()?.split(", ").count()])))
    };
    let listed: BTreeMap<String, BTreeSet<usize>> = page.lines().filter_map(row).collect();
    assert_eq!(noted, listed);
}

//! The suite on the soft NIC's three personalities, and its document.

use std::collections::HashMap;
use std::path::Path;

use conformance::soft::SoftDevice;
use conformance::{ABSENT, Bench, Needs, Report, Verdict, cases, markdown, probe, run};
use softnic::Personality;
use test_support::not_run;
use verbs::PortNumber;

fn report(personality: Personality) -> Report {
    let device = SoftDevice::new(personality).expect("a soft NIC");
    let bench = Bench::new(device.context(), PortNumber(1), Some(&device)).expect("a bench");
    run(&bench, Some(personality), |_| true)
}

fn all_as_expected(personality: Personality) {
    let report = report(personality);
    for row in report.rows.iter().filter(|row| row.verdict == Verdict::NotRun) {
        not_run(&format!("{personality}: {} {} {}", row.verb, row.field, row.value), &row.seen);
    }
    assert_eq!(report.count(Verdict::Mismatch), 0, "{personality}:\n{}", report.text(false));
    assert_eq!(report.rows.len(), cases().len());
}

#[test]
fn the_ideal_device_does_as_expected() {
    all_as_expected(Personality::Ideal);
}

#[test]
fn mlx5_does_as_expected() {
    all_as_expected(Personality::Mlx5);
}

#[test]
fn mlx4_does_as_expected() {
    all_as_expected(Personality::Mlx4);
}

#[test]
fn a_probe_tries_objects_only_and_contradicts_no_promise() {
    let device = SoftDevice::new(Personality::Ideal).expect("a soft NIC");
    let report = probe(device.context(), 1).expect("a device that can be queried");
    let objects = cases().iter().filter(|case| case.needs == Needs::Objects).count();
    assert!(objects > 100, "{objects}");
    assert_eq!(report.rows.len(), objects);
    assert_eq!(report.count(Verdict::Recorded), objects, "{}", report.text(false));
}

#[test]
fn without_a_peer_what_needs_one_is_not_run_and_said_so() {
    let device = SoftDevice::new(Personality::Ideal).expect("a soft NIC");
    let bench = Bench::new(device.context(), PortNumber(1), None).expect("a bench");
    let report = run(&bench, None, |case| matches!(case.needs, Needs::Frames | Needs::Peer));
    assert!(!report.rows.is_empty());
    for row in &report.rows {
        assert_eq!(row.verdict, Verdict::NotRun, "{} {}: {}", row.field, row.value, row.seen);
        assert!(row.seen.starts_with("not run: needs a peer"), "{}", row.seen);
    }
}

#[test]
fn every_refusal_has_its_source_and_every_row_is_its_own() {
    let mut rows = HashMap::new();
    for case in cases() {
        let row = format!("{} {} {}", case.verb, case.field, case.value);
        assert!(!case.expected.any_refusal() || !case.expected.source.is_empty(), "{row}: no source");
        assert!(!case.offered.is_empty() && !case.shows.is_empty(), "{row}: an empty column");
        let again = rows.insert((case.verb, case.field, case.value, case.offered), row.clone());
        assert_eq!(again, None, "{row}: twice");
    }
    assert!(ABSENT.iter().all(|absent| !absent.why.is_empty()));
}

/// Each name of `verbs::A::b` is in the sources of `verbs`.
#[test]
fn what_is_offered_is_there() {
    let sources = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../verbs/src"));
    for case in cases() {
        let path: Vec<&str> = case.offered.split("::").collect();
        assert_eq!(path[0], "verbs", "{}", case.offered);
        for name in &path[1..] {
            assert!(sources.contains(name), "{}: there is no {name}", case.offered);
        }
    }
}

fn sources(folder: &Path) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            text.push_str(&sources(&path));
        } else {
            text.push_str(&std::fs::read_to_string(&path).expect("text"));
        }
    }
    text
}

#[test]
fn the_document_is_what_the_suite_writes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/generated/conformance.md");
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        text == markdown(),
        "docs/generated/conformance.md is stale: cargo run -p conformance -- --write-docs"
    );
}

//! The filter sets of `STEERD_CORPORA`, imported: each compiles for each device, and the soft NIC matches every packet of a
//! trace to the rule that an independent oracle found.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use crate::support;
use crate::trial::rig::Rig;
use compiler::{Decided, Report};
use device_model::DeviceProfile;
use packet::build::FrameBuilder;
use packet::{DeepKey, IpProtocol};
use policy::import::{self, ClassBench};
use policy::{NoFiles, Policy, Source};
use program::Verdict;
use softnic::Personality;

const WORKERS: u32 = 4;
/// Sets of the corpus, with the filters that each has.
const SETS: [(&str, usize); 9] = [
    ("acl1_1k", 942),
    ("acl5_1k", 933),
    ("acl_1k", 1016),
    ("fw1_1k", 857),
    ("ipc1_1k", 974),
    ("dpdk-test-acl/acl1v4_5_rule", 5),
    ("dpdk-test-acl/acl1v6_1_rule", 1),
    ("acl1_10k", 9774),
    ("ipc1_10k", 9518),
];

fn policy(folder: &Path, set: &str, options: ClassBench) -> Policy {
    let text = fs::read_to_string(folder.join(set)).unwrap_or_else(|error| panic!("{set}: {error}"));
    let imported = import::classbench_with(&text, options).expect("a filter set");
    let source = Source::new(format!("{set}.toml"), imported.policy_toml);
    let (policy, _) = policy::parse(&source, &NoFiles).unwrap_or_else(|bad| panic!("{set}: {bad}"));
    policy
}

/// Checks a report. Returns its figures and hybrid rules in one line.
fn summary(place: &str, report: &Report) -> String {
    let problems: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
    let program = report.program.as_ref().unwrap_or_else(|| panic!("{place}: {problems:?}"));
    for rule in report.rules.iter().filter(|rule| rule.decided == Decided::Hybrid) {
        assert!(rule.reason.as_deref().is_some_and(|reason| !reason.is_empty()), "{place}: {rule:?}");
    }
    let is_hybrid = |decided: Decided| matches!(decided, Decided::Hybrid | Decided::PartlyHybrid);
    let hybrid: Vec<&str> =
        report.rules.iter().filter(|rule| is_hybrid(rule.decided)).map(|rule| rule.name.as_str()).collect();
    format!(
        "{} flows, {} priorities, {} rules hybrid ({}{})",
        program.flows.len(),
        program.priorities_used,
        hybrid.len(),
        hybrid.iter().take(5).copied().collect::<Vec<_>>().join(" "),
        if hybrid.len() > 5 { " .." } else { "" }
    )
}

fn every_set_for(device: &str) {
    let Some(folder) = rules() else { return };
    let profile = DeviceProfile::by_name(device).expect("a profile");
    for (set, filters) in SETS {
        let policy = policy(&folder, set, ClassBench::default());
        assert_eq!(policy.rules.len(), filters, "{set}: a rule for each filter");
        let started = Instant::now();
        let report = compiler::report(&policy, &profile, WORKERS as usize, None);
        let took = started.elapsed();
        println!("{device} {set}: {} ({took:?})", summary(&format!("{set} for {device}"), &report));
    }
}

fn rules() -> Option<PathBuf> {
    support::corpora("rules")
}

#[test]
fn every_set_compiles_for_an_ideal_device() {
    every_set_for("ideal");
}

#[test]
fn every_set_compiles_for_an_mlx5() {
    every_set_for("mlx5");
}

#[test]
fn every_set_compiles_for_an_mlx4() {
    every_set_for("mlx4");
}

/// A line of a trace as a frame: addresses, ports and protocol.
fn frame(line: &str) -> Vec<u8> {
    let columns: Vec<u32> =
        line.split_whitespace().take(5).map(|column| column.parse().expect("a number")).collect();
    let [src, dst, src_port, dst_port, protocol] = columns[..] else { panic!("no five-tuple: {line}") };
    let frame = FrameBuilder::new().ipv4(Ipv4Addr::from(src), Ipv4Addr::from(dst)).frame_bytes(60);
    let (src_port, dst_port) = (src_port as u16, dst_port as u16);
    match protocol {
        6 => frame.tcp(src_port, dst_port, 0x10),
        17 => frame.udp(src_port, dst_port),
        other => frame.protocol(IpProtocol(other as u8)),
    }
    .build()
}

/// The oracle ignores TCP flags, so the import does.
#[test]
fn packets_of_a_trace_match_the_rules_that_the_oracle_found() {
    let Some(folder) = rules() else { return };
    let policy = policy(&folder, "acl_1k", ClassBench { tcp_flags: false });
    let program = compiler::compile(&policy, &DeviceProfile::ideal(), WORKERS as usize);
    let program = Arc::new(program.unwrap_or_else(|bad| panic!("{bad}")));
    let mut rig = Rig::new(Personality::Ideal, WORKERS);
    rig.install(&program).expect("it installs");
    let read = |name: &str| fs::read_to_string(folder.join(name)).expect("the corpus is whole");
    let (trace, expected) = (read("acl_1k_trace"), read("acl_1k_expected.tsv"));
    let packets: Vec<&str> = trace.lines().collect();
    let mut met = std::collections::BTreeSet::new();
    for line in expected.lines() {
        let columns: Vec<usize> = line.split('\t').map(|column| column.parse().expect("a number")).collect();
        let (number, first) = (columns[0], format!("r{}", columns[1]));
        let frame = frame(packets[number]);
        let explained = program.explain_deep(&DeepKey::of(&frame));
        let arrival = rig.send(&frame);
        let [seen] = &arrival.seen[..] else { panic!("line {number}: {arrival:?}") };
        assert_eq!(program.rules[explained.outcome.rule.index()].name, first, "line {number}: explain");
        assert_eq!(program.rules[seen.outcome.rule.index()].name, first, "line {number}: the worker's rule");
        assert_eq!((seen.outcome, Some(seen.worker)), (explained.outcome, explained.worker), "line {number}");
        assert!(matches!(seen.outcome.verdict, Verdict::Deliver(_)) && seen.bytes == frame, "line {number}");
        met.insert(seen.outcome.rule);
        let departure = rig.send_out(&frame);
        assert_eq!((departure.counted_by, departure.out), (None, vec![frame]), "line {number}: what is sent");
    }
    assert_eq!(packets.len(), expected.lines().count(), "every line of the trace is expected");
    assert!(met.len() > 100, "only {} rules were met", met.len());
}

//! The filter sets of `STEERD_CORPORA`, imported: each compiles for each device, or is refused with the limit that it
//! exceeds; and the soft NIC matches every packet of a trace to the rule that an independent oracle found.

#[path = "support/notebook.rs"]
mod notebook;
#[path = "trial/rig.rs"]
mod rig;
mod support;

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use compiler::{Decided, Report};
use device_model::DeviceProfile;
use packet::build::FrameBuilder;
use packet::{DeepKey, IpProtocol};
use policy::import::{self, ClassBench};
use policy::{NoFiles, Policy, Source};
use program::Verdict;
use rig::Rig;
use softnic::Personality;

const WORKERS: u32 = 4;
/// Sets of the corpus, with the filters that each has.
const SETS: [(&str, usize); 8] = [
    ("acl1_1k", 942),
    ("acl5_1k", 933),
    ("acl_1k", 1016),
    ("fw1_1k", 857),
    ("ipc1_1k", 974),
    ("dpdk-test-acl/acl1v4_5_rule", 5),
    ("dpdk-test-acl/acl1v6_1_rule", 1),
    ("acl1_10k", 9774),
];

fn policy(folder: &Path, set: &str, options: ClassBench) -> Policy {
    let text = fs::read_to_string(folder.join(set)).unwrap_or_else(|error| panic!("{set}: {error}"));
    let imported = import::classbench_with(&text, options);
    let source = Source::new(format!("{set}.toml"), imported.policy_toml);
    let (policy, _) = policy::parse(&source, &NoFiles).unwrap_or_else(|bad| panic!("{set}: {bad}"));
    policy
}

/// A report in one line: figures and hybrid rules, or the first obstacle.
fn summary(report: &Report) -> String {
    let hybrid: Vec<&str> = report
        .rules
        .iter()
        .filter(|rule| matches!(rule.decided, Decided::Hybrid | Decided::PartlyHybrid))
        .map(|rule| rule.name.as_str())
        .collect();
    match &report.program {
        Some(program) => format!(
            "{} flows, {} priorities, {} rules hybrid ({}{})",
            program.flows.len(),
            program.priorities_used,
            hybrid.len(),
            hybrid.iter().take(5).copied().collect::<Vec<_>>().join(" "),
            if hybrid.len() > 5 { " .." } else { "" }
        ),
        None => {
            let told: Vec<&str> =
                report.problems.iter().take(2).map(|problem| problem.message.as_str()).collect();
            format!("refused: {}", told.join("; "))
        }
    }
}

/// A refusal has the limit, the number needed and a remedy; a hybrid rule has a reason.
fn check_words(place: &str, report: &Report) {
    let has_number = |text: &str| text.contains(|letter: char| letter.is_ascii_digit());
    for rule in report.rules.iter().filter(|rule| rule.decided == Decided::Hybrid) {
        assert!(rule.reason.as_deref().is_some_and(|reason| !reason.is_empty()), "{place}: {rule:?}");
    }
    if report.program.is_some() {
        return;
    }
    assert!(!report.problems.is_empty(), "{place}: refused without a word");
    for problem in &report.problems {
        assert!(has_number(&problem.message), "{place}: no number in: {problem}");
    }
    let impossible = report.rules.iter().filter(|rule| rule.decided == Decided::Impossible);
    let mut limits: Vec<&str> = impossible.filter_map(|rule| rule.limit.as_deref()).collect();
    limits.extend(report.obstacles.iter().map(|obstacle| obstacle.limit.as_str()));
    assert!(!limits.is_empty(), "{place}: no limit is named: {:?}", report.problems);
    assert!(limits.iter().all(|limit| has_number(limit)), "{place}: {limits:?}");
}

fn every_set_for(device: &str) -> Option<Vec<(&'static str, Report)>> {
    let folder = rules()?;
    let profile = DeviceProfile::by_name(device).expect("a profile");
    let reports = SETS.into_iter().map(|(set, filters)| {
        let policy = policy(&folder, set, ClassBench::default());
        assert_eq!(policy.rules.len(), filters, "{set}: a rule for each filter");
        let started = Instant::now();
        let report = compiler::report(&policy, &profile, WORKERS as usize, None);
        println!("{device} {set}: {} ({:?})", summary(&report), started.elapsed());
        check_words(&format!("{set} for {device}"), &report);
        (set, report)
    });
    Some(reports.collect())
}

fn rules() -> Option<PathBuf> {
    support::corpora("rules")
}

#[test]
fn every_set_compiles_for_an_ideal_device() {
    for (set, report) in every_set_for("ideal").unwrap_or_default() {
        let problems: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
        assert!(report.program.is_some(), "{set}: {problems:?}");
    }
}

#[test]
fn an_mlx5_accepts_a_set_or_names_the_limit() {
    every_set_for("mlx5");
}

#[test]
fn an_mlx4_accepts_a_set_or_names_the_limit() {
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

//! The filter sets of `STEERD_CORPORA`, imported: each compiles for each device, and the soft NIC matches
//! every packet of a trace to the rule that an independent oracle found.

use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use crate::examples::examples;
use crate::personalities::started_and_reloaded;
use crate::support::{self, config};
use crate::trial::rig::Rig;
use device_model::DeviceModel;
use packet::build::FrameBuilder;
use packet::{DeepKey, IpProtocol};
use policy::import::{self, ClassBench};
use policy::policy::Workers;
use policy::{NoFiles, Policy, Source};
use program::Verdict;
use reports::{Decided, Report};
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
    let profile = DeviceModel::by_name(device).expect("a profile");
    for (set, filters) in SETS {
        let policy = policy(&folder, set, ClassBench::default());
        assert_eq!(policy.rules.len(), filters, "{set}: a rule for each filter");
        let started = Instant::now();
        let report = reports::report(&policy, &profile, WORKERS as usize, None);
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
    let program = compiler::compile(&policy, &DeviceModel::ideal(), WORKERS as usize);
    let program = Arc::new(program.unwrap_or_else(|bad| panic!("{bad}")));
    let mut rig = Rig::new(Personality::Ideal, WORKERS, 1);
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

/// How many workers a policy names.
fn workers_of(policy: &Policy) -> u32 {
    let highest = policy.groups.iter().flat_map(|group| match &group.workers {
        Workers::All => Vec::new(),
        Workers::Listed(shares) => shares.iter().map(|share| share.worker + 1).collect(),
    });
    highest.max().unwrap_or(1)
}

/// Whatever compiles for the soft NIC starts there, and the unchanged policy reloads. Returns on how many
/// devices it compiles.
fn starts_and_reloads(name: &str, policy: &Policy, ports: &[u8]) -> usize {
    let workers = workers_of(policy);
    let mut accepted = 0;
    for personality in [Personality::Ideal, Personality::Mlx5] {
        for &ports in ports {
            let profile = personality.model().in_software().on_ports(ports.into());
            let Ok(program) = compiler::compile(policy, &profile, workers as usize) else { continue };
            let (place, flows) = (format!("{name} on {personality} with {ports} ports"), program.flows.len());
            let mut rig = Rig::new(personality, workers, ports);
            let reloaded = started_and_reloaded(&mut rig, policy, &profile, program);
            assert_eq!(reloaded.err(), None, "{place}: {flows} flows");
            accepted += 1;
        }
    }
    accepted
}

#[test]
fn every_example_that_compiles_starts_and_reloads() {
    let mut accepted = 0;
    for example in examples() {
        let path = config().join("examples").join(&example);
        let (policy, _) = policy::load(&path).unwrap_or_else(|bad| panic!("{example}: {bad}"));
        accepted += starts_and_reloads(&example, &policy, &[1, 2]);
    }
    assert!(accepted > 60, "only {accepted} of four devices for each");
}

#[test]
fn every_set_that_compiles_starts_and_reloads() {
    let Some(folder) = rules() else { return };
    for (set, filters) in SETS {
        let policy = policy(&folder, set, ClassBench::default());
        let ports: &[u8] = if filters > 5000 { &[2] } else { &[1, 2] };
        assert_eq!(starts_and_reloads(set, &policy, ports), 2 * ports.len(), "{set}");
    }
}

/// The list has as many prefixes as a large list of attackers: each is a flow on each port, and a reload
/// makes them all again.
#[test]
fn a_large_block_list_starts_and_reloads_on_two_ports_or_is_refused() {
    let mut text =
        "version = 1\n[groups.g]\nworkers = 1\n[[rules]]\nname = 'list'\naction = 'drop'\nmatch = { src = ["
            .to_owned();
    for number in 0..60_000u32 {
        let _ = write!(text, "'{}', ", Ipv4Addr::from_bits(0x0a00_0000 + 16 * number));
    }
    text += "] }\n";
    let (policy, _) = policy::parse(&Source::new("list.toml", text.clone()), &NoFiles).expect("a policy");
    assert_eq!(starts_and_reloads("list", &policy, &[2]), 2);
    // Without a group no worker can decide what wider flows match.
    let text = text.replace("[groups.g]\nworkers = 1\n", "");
    let (policy, _) = policy::parse(&Source::new("list.toml", text), &NoFiles).expect("a policy");
    let eight = DeviceModel::ideal().on_ports(8);
    let refused = compiler::compile(&policy, &eight, 1).expect_err("480,000 flows twice").to_string();
    let wanted = "the policy needs 60000 flows on each of 8 ports, `ideal` has 16384 for it (ENOMEM)";
    assert!(refused.contains(wanted) && refused.contains("fewer ports in `device.ports`"), "{refused}");
}

/// Each bit of the addresses is a flow, which a device has as many of as it has flows.
#[test]
fn an_exception_to_a_copy_is_possible_on_the_soft_nic_as_on_the_device() {
    let text = "version = 1\n[groups.g]\nworkers = 1\n\
        [[rules]]\nname = 'backups'\naction = 'kernel'\n\
        match = { src = '192.0.2.7', dst = '198.51.100.9', protocol = 'tcp', dst_port = 873 }\n\
        [[rules]]\nname = 'tap'\naction = { copy = 'g' }\n\
        match = { protocol = 'tcp', src = '0.0.0.0/0', dst_port = '1-65535' }\n";
    let (policy, _) = policy::parse(&Source::new("tap.toml", text), &NoFiles).expect("a policy");
    let program = compiler::compile(&policy, &DeviceModel::mlx5(), 1).unwrap_or_else(|bad| panic!("{bad}"));
    assert!(program.flows.len() > 64, "{program}");
    let soft = compiler::compile(&policy, &DeviceModel::mlx5().in_software(), 1);
    assert_eq!(soft.unwrap_or_else(|bad| panic!("{bad}")).flows, program.flows);
    assert_eq!(starts_and_reloads("tap", &policy, &[1, 2]), 4);
}

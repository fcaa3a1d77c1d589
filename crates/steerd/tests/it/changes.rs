//! How many flows a small change of a large policy changes on a device, from the policy's text on.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use compiler::compile_with;
use control::{FlowChanges, Limits, PlanFault, PlanSummary, plan};
use device_model::DeviceModel;
use policy::import::{self, ClassBench};
use policy::policy::Action;
use policy::{NoFiles, Policy, Source};

use crate::support;

const WORKERS: usize = 4;

/// The flows that the device gets and loses if `after` replaces `before`, and how long planning took.
fn changes(before: &Policy, after: &Policy, profile: &DeviceModel) -> (FlowChanges, f64) {
    let limits = Limits::of_model(profile);
    let old = compile_with(before, profile, WORKERS, None).expect("it compiles");
    let first = plan(None, Arc::new(old), &limits).expect("a good plan");
    let new = compile_with(after, profile, WORKERS, Some(&first.program)).expect("it compiles");
    let begun = Instant::now();
    let change = plan(Some(first.placed()), Arc::new(new), &limits).expect("a good plan");
    (change.plan.plan().changes(), begun.elapsed().as_secs_f64() * 1e3)
}

const SETS: [&str; 4] = ["acl1_1k", "fw1_1k", "acl_1k", "acl1_10k"];

fn policy_of(folder: &Path, set: &str) -> Policy {
    let text = std::fs::read_to_string(folder.join(set)).expect("a set");
    let imported = import::classbench_with(&text, ClassBench { tcp_flags: false }).expect("a filter set");
    let source = Source::new(format!("{set}.toml"), imported.policy_toml);
    policy::parse(&source, &NoFiles).expect("a policy").0
}

#[test]
fn a_changed_rule_of_a_large_set_changes_few_flows() {
    let Some(folder) = support::corpora("rules") else { return };
    for set in SETS {
        let policy = policy_of(&folder, set);
        for device in ["ideal", "mlx5"] {
            let profile = DeviceModel::by_name(device).expect("a model");
            for (what, most, change) in CHANGES {
                let mut changed = policy.clone();
                change(&mut changed);
                let (changes, took) = changes(&policy, &changed, &profile);
                println!("{set} {device}, {what}: {changes:?}, planned and examined in {took:.1} ms");
                assert!(changes.installed + changes.removed <= most, "{set} {device}, {what}: {changes:?}");
            }
        }
    }
}

type Change = fn(&mut Policy);

/// The name of a change, the most flows that it may install and remove, and the change.
const CHANGES: [(&str, usize, Change); 3] = [
    ("nothing", 0, |_policy| {}),
    ("a rule dropped", 10, |policy| {
        let middle = policy.rules.len() / 2;
        policy.rules[middle].action = Action::Drop;
    }),
    ("a rule removed", 10, |policy| {
        let middle = policy.rules.len() / 2;
        policy.rules.remove(middle);
    }),
];

/// Changes that leave no flow as it is: every rule gets another action, or every rule another match. They
/// need levels and room for both programs, and little more than the larger one where the matches are the
/// same. Where an mlx5 has too few priorities for both, a program of half of them comes first.
#[test]
fn a_large_set_can_change_as_a_whole() {
    let Some(folder) = support::corpora("rules") else { return };
    let policies = SETS.map(|set| policy_of(&folder, set));
    for device in ["ideal", "mlx5"] {
        let profile = DeviceModel::by_name(device).expect("a model");
        for (place, old) in policies.iter().enumerate() {
            let mut dropped = old.clone();
            dropped.rules.iter_mut().for_each(|rule| rule.action = Action::Drop);
            let peak = there_and_back([old, &dropped], &profile);
            println!(
                "{} {device}, all dropped: at most {:.1} % more flows",
                SETS[place],
                100.0 * (peak - 1.0)
            );
            let most = if SETS[place].ends_with("10k") { 1.1 } else { 1.25 };
            assert!(peak <= most, "{} {device}: {peak}", SETS[place]);
            there_and_back([old, &policies[(place + 1) % SETS.len()]], &profile);
        }
    }
}

/// How many times the flows of the larger program are on the device at most, from the first policy to the
/// second and back.
fn there_and_back([old, new]: [&Policy; 2], profile: &DeviceModel) -> f64 {
    let limits = Limits::of_model(profile);
    let compiled = |policy: &Policy, profile: &DeviceModel| {
        Arc::new(compile_with(policy, profile, WORKERS, None).expect("it compiles"))
    };
    let mut before = plan(None, compiled(old, profile), &limits).expect("it fits alone");
    let mut peak: f64 = 0.0;
    for policy in [new, old] {
        let program = compiled(policy, profile);
        let change = match plan(Some(before.placed()), Arc::clone(&program), &limits) {
            Err(PlanFault::NoLevels) => {
                println!("in two steps");
                let half = compiled(policy, &profile.with_half_of_the_priorities());
                plan(Some(before.placed()), half, &limits)
            }
            change => change,
        };
        let change = change.unwrap_or_else(|fault| panic!("{fault}"));
        let larger = before.program.flows.len().max(change.program.flows.len());
        let summary = PlanSummary::of(&change, Some(&before.placed()), 1);
        peak = peak.max(summary.peak_flows as f64 / larger as f64);
        before = change;
    }
    peak
}

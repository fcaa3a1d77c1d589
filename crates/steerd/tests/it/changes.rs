//! How many flows a small change of a large policy changes on a device, from the policy's text on.

use std::sync::Arc;
use std::time::Instant;

use compiler::compile_with;
use control::{FlowChanges, Limits, PlacedProgram, plan};
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
    let (old, first) = plan(None, Arc::new(old), &limits).expect("a good plan");
    let first = first.plan();
    let placed = PlacedProgram { program: &old, levels: first.levels(), base: first.base() };
    let new = compile_with(after, profile, WORKERS, Some(&old)).expect("it compiles");
    let begun = Instant::now();
    let (_, change) = plan(Some(placed), Arc::new(new), &limits).expect("a good plan");
    (change.plan().changes(), begun.elapsed().as_secs_f64() * 1e3)
}

#[test]
fn a_changed_rule_of_a_large_set_changes_few_flows() {
    let Some(folder) = support::corpora("rules") else { return };
    for set in ["acl1_1k", "fw1_1k", "acl_1k", "acl1_10k"] {
        let text = std::fs::read_to_string(folder.join(set)).expect("a set");
        let imported = import::classbench_with(&text, ClassBench { tcp_flags: false }).expect("a filter set");
        let source = Source::new(format!("{set}.toml"), imported.policy_toml);
        let (policy, _) = policy::parse(&source, &NoFiles).expect("a policy");
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

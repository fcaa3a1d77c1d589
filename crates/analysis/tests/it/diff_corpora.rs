//! Differences between policies of the size of the corpora's ClassBench sets: what they take, and that they
//! show what was changed. Runs where `STEERD_CORPORA` names the corpora; the times mean something in release
//! builds only.

use std::io::Write as _;
use std::time::Instant;

use analysis::{Diff, diff};
use policy::Policy;
use policy::policy::{Action, Direction};
use program::GroupId;

use crate::analysis_support::classbench::read;
use crate::analysis_support::treatment;

fn timed(what: &str, old: &Policy, new: &Policy) -> Diff {
    let started = Instant::now();
    let mut calls = 0;
    let found = diff(old, new, &mut |_| calls += 1);
    let (regions, pairs, open) = (found.regions.len(), found.pairs.len(), found.not_decided);
    let elapsed = started.elapsed();
    _ = writeln!(
        std::io::stderr(),
        "{what}: {elapsed:?}: {regions} regions of {pairs} pairs, {open} not decided"
    );
    assert!(calls > 0);
    for change in &found.regions {
        let key = change.witness.key();
        let (before, after) =
            (treatment(old, Direction::Ingress, &key, None), treatment(new, Direction::Ingress, &key, None));
        assert_ne!(before, after, "{what}: {}", change.witness);
        if found.regions.len() > 500 {
            break;
        }
    }
    found
}

#[test]
fn large_policies_are_compared() {
    let Some(folder) = test_support::corpora("rules") else { return };
    let old = read(&folder.join("acl1_10k"));
    assert!(timed("acl1_10k with itself", &old, &old).is_empty());

    let mut one = old.clone();
    one.rules[5000].action = match one.rules[5000].action {
        Action::Drop => Action::Kernel,
        _ => Action::Drop,
    };
    let found = timed("acl1_10k with one action changed", &old, &one);
    assert!(!found.is_empty() && found.pairs.iter().all(|pair| pair.before.name == "r5000"));

    let mut moved = old.clone();
    moved.rules.rotate_left(1);
    timed("acl1_10k with the first rule last", &old, &moved);

    let mut groups = old.clone();
    for rule in &mut groups.rules {
        if rule.action == Action::Steer(GroupId(1)) {
            rule.action = Action::Steer(GroupId(2));
        }
    }
    assert!(timed("acl1_10k with a third of its actions changed", &old, &groups).pairs.len() > 1000);

    let mut reversed = old.clone();
    reversed.rules.reverse();
    timed("acl1_10k backwards", &old, &reversed);

    let other = read(&folder.join("fw1_1k"));
    let set = read(&folder.join("acl1_1k"));
    timed("acl1_1k with fw1_1k", &set, &other);
    timed("acl1_10k with fw1_1k", &old, &other);
}

//! The full analysis of the ClassBench sets of the corpora: what it takes, and that nothing is left
//! undecided. Runs where `STEERD_CORPORA` names the corpora; the times mean something in release builds only.

use std::io::Write as _;
use std::time::Instant;

use analysis::{Need, Reach, analyse};
use program::Predicate;

use crate::analysis_support::classbench::read;

const SETS: [&str; 6] = ["acl_1k", "acl1_1k", "acl5_1k", "fw1_1k", "ipc1_1k", "acl1_10k"];

#[test]
fn classbench_sets_are_decided_whole() {
    let Some(folder) = test_support::corpora("rules") else { return };
    for set in SETS {
        let policy = read(&folder.join(set));
        let started = Instant::now();
        let mut calls = 0;
        let analysis = analyse(&policy, &mut |_| calls += 1);
        let elapsed = started.elapsed();
        let dead = analysis.rules.iter().filter(|rule| rule.is_dead()).count();
        let together = analysis
            .rules
            .iter()
            .filter(|rule| matches!(&rule.reach, Reach::Shadowed(takers) if takers.len() > 1))
            .count();
        let redundant =
            analysis.rules.iter().filter(|rule| !rule.is_dead() && rule.need == Need::Redundant).count();
        let conflicts: usize = analysis.rules.iter().map(|rule| rule.conflicts.count).sum();
        let overlaps: usize = analysis.rules.iter().map(|rule| rule.overlaps.count).sum();
        _ = writeln!(
            std::io::stderr(),
            "{set}: {} rules, {elapsed:?}: {dead} dead ({together} by several), {redundant} redundant, {conflicts} conflicts, {overlaps} overlaps, {} not decided",
            policy.rules.len(),
            analysis.not_decided,
        );
        assert_eq!(analysis.not_decided, 0, "{set}");
        assert!(calls > policy.rules.len());
        // A packet that comes to a rule comes to none before it, rule by rule.
        let predicates: Vec<Predicate> =
            policy.rules.iter().map(|rule| Predicate::of(&rule.matches)).collect();
        for (index, rule) in analysis.rules.iter().enumerate() {
            if let Reach::Reached(witness) = &rule.reach {
                let key = witness.key();
                let first = predicates.iter().position(|predicate| predicate.matches_deep(&key));
                assert_eq!(first, Some(index), "{set}: {witness}");
            }
        }
    }
}

//! What the device cannot decide, as questions for the worker: a class that starts with the hybrid rule
//! and goes on through the rest of the policy, as far as its packets can meet it.

use crate::ids::RuleId;
use crate::policy::Action;
use crate::predicate::Predicate;
use crate::program::{Decide, Outcome, Step, Verdict};

use super::cube::Cube;
use super::expand::Expansion;

/// Pairs of cubes beyond this number are not compared: the rule is asked about in any case.
const MAX_COMPARISONS: usize = 1 << 14;

/// The most questions of one class: a worker asks them for every packet of it, one after another.
pub(super) const MAX_STEPS: usize = 1024;

/// A rule as the compiler sees it.
pub(super) struct Expanded {
    pub(super) expansion: Expansion,
    pub(super) predicate: Predicate,
    pub(super) action: Action,
}

impl Expanded {
    pub(super) fn is_hybrid(&self) -> bool {
        !self.expansion.software.is_empty()
    }

    fn outcome(&self, index: usize) -> Outcome {
        Outcome { rule: RuleId::of(index), verdict: verdict(self.action) }
    }

    fn step(&self, index: usize) -> Step {
        Step { rule: RuleId::of(index), predicate: self.predicate.clone(), outcome: self.outcome(index) }
    }
}

/// An action as a verdict.
pub(super) fn verdict(action: Action) -> Verdict {
    match action {
        Action::Steer(group) => Verdict::Deliver(group),
        Action::Drop => Verdict::Drop,
        Action::Kernel | Action::Pass => Verdict::Kernel,
        // Refused by `compile` before anything asks.
        Action::Copy(group) | Action::Sniff(group) => Verdict::Deliver(group),
    }
}

/// How the packets of the flows of rule `index` are decided; `default` is for those that no rule claims.
/// Ends beyond [`MAX_STEPS`], for the caller to refuse.
pub(super) fn decide(rules: &[Expanded], index: usize, default: Outcome) -> Decide {
    let Some(rule) = rules.get(index) else { return Decide::Exact(default) };
    if !rule.is_hybrid() {
        return Decide::Exact(rule.outcome(index));
    }
    let packets = &rule.expansion.cubes;
    let mut steps = vec![rule.step(index)];
    for (later, other) in rules.iter().enumerate().skip(index + 1) {
        let cubes = &other.expansion.cubes;
        let is_large = packets.len().saturating_mul(cubes.len()) > MAX_COMPARISONS;
        if !other.is_hybrid() && !is_large && takes_all(cubes, packets) {
            return Decide::Software(steps, other.outcome(later));
        }
        if !cubes.is_empty() && (is_large || meets(cubes, packets)) {
            steps.push(other.step(later));
        }
        if steps.len() > MAX_STEPS {
            break;
        }
    }
    Decide::Software(steps, default)
}

/// Whether some packet is in both unions.
fn meets(cubes: &[Cube], packets: &[Cube]) -> bool {
    cubes.iter().any(|cube| packets.iter().any(|packet| cube.overlaps(packet)))
}

/// Whether each of `packets` lies in one of `cubes`: enough for the second union to lie in the first.
fn takes_all(cubes: &[Cube], packets: &[Cube]) -> bool {
    packets.iter().all(|packet| cubes.iter().any(|cube| cube.contains(packet)))
}

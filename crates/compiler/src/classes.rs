//! What the device cannot decide, as questions for the worker: a class that starts with the hybrid rule
//! and goes on through the rest of the policy, as far as its packets can meet it.

use policy::policy::{Action, Direction};
use program::{Decide, GroupId, Outcome, Predicate, RuleId, Step, Unfinished, Verdict};

use super::claims::{Behind, Claims, MAX_COMPARISONS, MAX_STEPS_IN_ALL};
use super::cube::{Cube, WORDS};
use super::expand::Expansion;

/// A rule as the compiler sees it.
pub(super) struct Expanded {
    /// What covers it, and what of it the cubes do not say.
    pub(super) expansion: Expansion,
    /// Why a worker must see its packets although the cubes say all.
    pub(super) notes: Vec<Unfinished>,
    pub(super) predicate: Predicate,
    pub(super) action: Action,
    pub(super) direction: Direction,
    /// What all its cubes have in common.
    common: Cube,
}

impl Expanded {
    pub(super) fn new(
        expansion: Expansion,
        predicate: Predicate,
        action: Action,
        direction: Direction,
    ) -> Self {
        let common = common(&expansion.cubes);
        Self { expansion, notes: Vec::new(), predicate, action, direction, common }
    }

    /// Replaces the cubes by wider ones.
    pub(super) fn widen(&mut self, note: Unfinished, widen: impl Fn(&Cube) -> Cube) {
        self.expansion.cubes = self.expansion.cubes.iter().map(widen).collect();
        self.expansion.cubes.dedup();
        self.common = common(&self.expansion.cubes);
        if !self.expansion.software.contains(&note) {
            self.expansion.software.push(note);
        }
    }

    /// Whether the cubes cover more than the match.
    pub(super) fn is_hybrid(&self) -> bool {
        !self.expansion.software.is_empty()
    }

    /// Whether a worker must see the packets, whatever becomes of them.
    pub(super) fn needs_worker(&self) -> bool {
        self.is_hybrid() || !self.notes.is_empty()
    }

    /// Whether a received packet that it matches is its own.
    pub(super) fn claims(&self) -> bool {
        self.direction == Direction::Ingress
            && matches!(self.action, Action::Steer(_) | Action::Drop | Action::Kernel)
    }

    /// Whether it makes copies of received packets.
    pub(super) fn copies(&self) -> bool {
        matches!(self.action, Action::Copy(_))
    }

    /// What all its cubes have in common.
    pub(super) fn common(&self) -> &Cube {
        &self.common
    }

    /// Whether the cubes of both, of which neither has none, agree in what all of either have in common.
    pub(super) fn agrees_with(&self, other: &Self) -> bool {
        self.common.overlaps(&other.common) && self.pairs_with(other) > 0
    }

    /// How many pairs of their cubes there are.
    pub(super) fn pairs_with(&self, other: &Self) -> usize {
        self.expansion.cubes.len().saturating_mul(other.expansion.cubes.len())
    }

    /// Whether some packet may be in the cubes of both.
    pub(super) fn meets(&self, other: &Self) -> bool {
        self.agrees_with(other)
            && (self.pairs_with(other) > MAX_COMPARISONS || self.first_meeting(other).is_some())
    }

    /// The place of the first of its cubes that shares packets with one of the other's.
    pub(super) fn first_meeting(&self, other: &Self) -> Option<usize> {
        let (own, others) = (&self.expansion.cubes, &other.expansion.cubes);
        own.iter().position(|cube| others.iter().any(|other| cube.overlaps(other)))
    }

    fn outcome(&self, index: usize) -> Outcome {
        Outcome { rule: RuleId::of(index), verdict: verdict(self.action) }
    }

    pub(super) fn step(&self, index: usize) -> Step {
        Step { rule: RuleId::of(index), predicate: self.predicate.clone(), outcome: self.outcome(index) }
    }
}

/// The bits on which all cubes agree.
pub(super) fn common(cubes: &[Cube]) -> Cube {
    let Some((first, others)) = cubes.split_first() else { return Cube::ANY };
    let mut common = *first;
    for cube in others {
        for i in 0..WORDS {
            common.mask[i] &= cube.mask[i] & !(common.value[i] ^ cube.value[i]);
            common.value[i] &= common.mask[i];
        }
    }
    common
}

/// An action as a verdict.
pub(super) fn verdict(action: Action) -> Verdict {
    match action {
        Action::Steer(group) | Action::Copy(group) | Action::Sniff(group) => Verdict::Deliver(group),
        Action::Drop => Verdict::Drop,
        Action::Kernel | Action::Pass => Verdict::Kernel,
    }
}

/// How the packets of the flows of rule `index` are decided; `default` is for those that no rule claims.
/// Ends beyond as many questions as there may be, for the caller to refuse.
pub(super) fn decide(rules: &[Expanded], claims: &mut Claims, index: usize, default: Outcome) -> Decide {
    let Some(rule) = rules.get(index) else { return Decide::Exact(default) };
    if !rule.is_hybrid() {
        return Decide::Exact(rule.outcome(index));
    }
    if !rule.claims() {
        let excess = Outcome { rule: RuleId::of(index), verdict: Verdict::Filtered };
        return Decide::Software(vec![rule.step(index)], excess);
    }
    let Behind { rules: later, last } = claims.behind(rules, index);
    let steps = [index].into_iter().chain(later).map(|rule| rules[rule].step(rule)).collect();
    Decide::Software(steps, last.map_or(default, |last| rules[last].outcome(last)))
}

/// The group to which packets of a rule's flows most likely go if it does not match them itself.
pub(super) fn next_group(
    rules: &[Expanded],
    claims: &mut Claims,
    index: usize,
    default: Action,
) -> Option<GroupId> {
    let rule = rules.get(index).filter(|rule| rule.is_hybrid() && rule.claims())?;
    // Any group will do for a policy that is refused for its questions.
    if claims.questions > MAX_STEPS_IN_ALL {
        return None;
    }
    let Behind { rules: later, last } = claims.behind(rules, index);
    let actions = later.iter().chain(&last).map(|rule| rules[*rule].action);
    let default = Some(default).filter(|_| last.is_none());
    [rule.action].into_iter().chain(actions).chain(default).find_map(|action| match verdict(action) {
        Verdict::Deliver(group) => Some(group),
        Verdict::Drop | Verdict::Kernel | Verdict::Filtered => None,
    })
}

/// How packets are decided of which nothing is known: by the whole policy.
pub(super) fn decide_all(rules: &[Expanded], default: Outcome) -> Decide {
    let claiming = rules.iter().enumerate().filter(|(_, rule)| rule.claims());
    let steps: Vec<Step> = claiming.map(|(index, rule)| rule.step(index)).collect();
    if steps.is_empty() { Decide::Exact(default) } else { Decide::Software(steps, default) }
}

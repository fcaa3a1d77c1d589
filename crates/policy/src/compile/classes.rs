//! What the device cannot decide, as questions for the worker: a class that starts with the hybrid rule
//! and goes on through the rest of the policy, as far as its packets can meet it.

use crate::ids::RuleId;
use crate::policy::{Action, Direction};
use crate::predicate::Predicate;
use crate::program::{Decide, Outcome, Step, Unfinished, Verdict};

use super::cube::{Cube, WORDS};
use super::expand::Expansion;

/// Pairs of cubes beyond this number are not compared: the rule is asked about in any case.
const MAX_COMPARISONS: usize = 1 << 14;

/// The most questions of one class: a worker asks them for every packet of it, one after another.
pub(super) const MAX_STEPS: usize = 1024;

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

    /// Whether some packet may be in the cubes of both.
    pub(super) fn meets(&self, other: &Self) -> bool {
        if !self.common.overlaps(&other.common) {
            return false;
        }
        let (own, others) = (&self.expansion.cubes, &other.expansion.cubes);
        let is_large = own.len().saturating_mul(others.len()) > MAX_COMPARISONS;
        !own.is_empty()
            && !others.is_empty()
            && (is_large || own.iter().any(|cube| others.iter().any(|other| cube.overlaps(other))))
    }

    /// Whether each cube of `other` lies in one of these: enough for all its packets to be this rule's.
    fn takes_all_of(&self, other: &Self) -> bool {
        let (own, others) = (&self.expansion.cubes, &other.expansion.cubes);
        own.len().saturating_mul(others.len()) <= MAX_COMPARISONS
            && others.iter().all(|cube| own.iter().any(|taker| taker.contains(cube)))
    }

    fn outcome(&self, index: usize) -> Outcome {
        Outcome { rule: RuleId::of(index), verdict: verdict(self.action) }
    }

    pub(super) fn step(&self, index: usize) -> Step {
        Step { rule: RuleId::of(index), predicate: self.predicate.clone(), outcome: self.outcome(index) }
    }
}

/// What the rules that claim packets have in common, by word: to find those that may share packets with
/// another rule without a look at each.
pub(super) struct Claims {
    rules: Vec<usize>,
    /// For each word the values and masks of all of them.
    columns: [Vec<(u64, u64)>; WORDS],
}

impl Claims {
    pub(super) fn of(rules: &[Expanded]) -> Self {
        let claims: Vec<usize> = (0..rules.len()).filter(|index| rules[*index].claims()).collect();
        let column = |word: usize| {
            claims
                .iter()
                .map(|index| &rules[*index].common)
                .map(|cube| (cube.value[word], cube.mask[word]))
                .collect()
        };
        Self { columns: std::array::from_fn(column), rules: claims }
    }

    /// Those from a rule on that agree with the cube in the word of which it asks most.
    fn that_may_meet<'c>(&'c self, cube: &Cube, from: usize) -> impl Iterator<Item = usize> + 'c {
        let start = self.rules.partition_point(|rule| *rule < from);
        let word = (0..WORDS).max_by_key(|word| cube.mask[*word].count_ones()).unwrap_or(0);
        let (value, mask) = (cube.value[word], cube.mask[word]);
        let agrees = move |(own, own_mask): &(u64, u64)| (own ^ value) & own_mask & mask == 0;
        let rules = self.rules[start..].iter().zip(&self.columns[word][start..]);
        rules.filter(move |(_, own)| agrees(own)).map(|(rule, _)| *rule)
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
/// Ends beyond [`MAX_STEPS`], for the caller to refuse.
pub(super) fn decide(rules: &[Expanded], claims: &Claims, index: usize, default: Outcome) -> Decide {
    let Some(rule) = rules.get(index) else { return Decide::Exact(default) };
    if !rule.is_hybrid() {
        return Decide::Exact(rule.outcome(index));
    }
    let mut steps = vec![rule.step(index)];
    if !rule.claims() {
        // A copy that nobody asked for.
        let excess = Outcome { rule: RuleId::of(index), verdict: Verdict::Drop };
        return Decide::Software(steps, excess);
    }
    for later in claims.that_may_meet(&rule.common, index + 1) {
        let other = &rules[later];
        if !rule.meets(other) {
            continue;
        }
        if !other.is_hybrid() && other.takes_all_of(rule) {
            return Decide::Software(steps, other.outcome(later));
        }
        steps.push(other.step(later));
        if steps.len() > MAX_STEPS {
            break;
        }
    }
    Decide::Software(steps, default)
}

/// How packets are decided of which nothing is known: by the whole policy.
pub(super) fn decide_all(rules: &[Expanded], default: Outcome) -> Decide {
    let claiming = rules.iter().enumerate().filter(|(_, rule)| rule.claims());
    let steps: Vec<Step> = claiming.map(|(index, rule)| rule.step(index)).collect();
    if steps.is_empty() { Decide::Exact(default) } else { Decide::Software(steps, default) }
}

//! The pass that turns each rule of the policy into cubes that cover it and are legal for the device. If the
//! device cannot match a rule exactly, its cubes cover more, and the keys that a worker must test are listed.

pub(crate) mod expand;
pub(crate) mod legalize;

use device_model::DeviceModel;
use policy::Policy;
use policy::policy::{Action, Direction};
use program::{Match, Outcome, Predicate, RuleId, Step, UndecidedKey, UndecidedReason};

use crate::cover::expand::{Explosion, expand};
use crate::cover::legalize::Expansion;
use crate::cube::{Cube, SENT, WORDS};

/// The most flows of one program on any device: with more, installing takes minutes.
pub const MAX_FLOWS: usize = 1 << 18;
/// Two rules with more pairs of cubes than this are not compared, and assumed to overlap.
pub(super) const MAX_PAIRS_OF_CUBES: usize = 1 << 14;

/// A rule and its cubes.
pub(super) struct CoveredRule {
    /// The cubes that cover it, and the keys that they do not match exactly.
    pub(super) expansion: Expansion,
    /// Why a worker must receive its packets although the cubes are exact.
    pub(super) notes: Vec<UndecidedKey>,
    pub(super) predicate: Predicate,
    pub(super) action: Action,
    pub(super) direction: Direction,
    /// The bits that all its cubes have in common.
    common: Cube,
}

/// A rule that has too many cubes.
#[derive(Debug)]
pub(super) enum CoverProblem {
    Combinations(RuleId, Explosion),
    /// The policy exceeds [`MAX_FLOWS`] at the rule.
    Flows(RuleId),
}

/// The cubes that cover a match as exactly as the device can; `None`: there would be more than 2^17
/// (`MAX_CUBES_PER_RULE`), or more than 2^24 combinations of the keys would be tried (`MAX_COMBINATIONS`).
#[must_use]
pub fn cover_match(matches: &Match, direction: Direction, model: &DeviceModel) -> Option<Expansion> {
    expand(matches, direction, model).ok()
}

/// Covers every rule. Stops at the rule with which the cubes exceed [`MAX_FLOWS`]: further cubes would only
/// use memory.
pub(super) fn cover(policy: &Policy, model: &DeviceModel) -> (Vec<CoveredRule>, Vec<CoverProblem>) {
    let (mut rules, mut problems) = (Vec::with_capacity(policy.rules.len()), Vec::new());
    let mut cubes = 0;
    for (index, rule) in policy.rules.iter().enumerate() {
        let id = RuleId::of(index);
        let mut expansion = expand(&rule.matches, rule.direction, model).unwrap_or_else(|explosion| {
            problems.push(CoverProblem::Combinations(id, explosion));
            Expansion::default()
        });
        // A sniffer gets all packets, whatever its rule matches.
        if matches!(rule.action, Action::Sniff(_)) && expansion.cubes.first().copied() != everything() {
            expansion.software = vec![UndecidedKey { key: "match".to_owned(), why: UndecidedReason::NoSpec }];
        }
        cubes += expansion.cubes.len();
        if cubes > MAX_FLOWS {
            problems.push(CoverProblem::Flows(id));
            break;
        }
        rules.push(CoveredRule::new(expansion, Predicate::of(&rule.matches), rule.action, rule.direction));
    }
    (rules, problems)
}

/// All received packets, which the default applies to.
pub(super) fn everything() -> Option<Cube> {
    Cube::ANY.with(SENT, 0, 1)
}

impl CoveredRule {
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
    pub(super) fn widen(&mut self, note: UndecidedKey, widen: impl Fn(&Cube) -> Cube) {
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

    /// Every key that a worker must test.
    pub(super) fn undecided(&self) -> impl Iterator<Item = &UndecidedKey> + Clone {
        self.expansion.software.iter().chain(&self.notes)
    }

    /// Whether a worker must receive the packets to decide them.
    pub(super) fn needs_worker(&self) -> bool {
        self.undecided().next().is_some()
    }

    /// Whether it decides received packets that it matches.
    pub(super) fn decides(&self) -> bool {
        self.action.decides(self.direction)
    }

    /// Whether it copies received packets.
    pub(super) fn copies(&self) -> bool {
        matches!(self.action, Action::Copy(_))
    }

    /// The bits that all its cubes have in common.
    pub(super) fn common(&self) -> &Cube {
        &self.common
    }

    /// Whether the common parts of both overlap. Rules without cubes agree with none.
    pub(super) fn may_overlap_with(&self, other: &Self) -> bool {
        self.common.overlaps(&other.common) && self.pairs_with(other) > 0
    }

    /// How many pairs of their cubes there are.
    pub(super) fn pairs_with(&self, other: &Self) -> usize {
        self.expansion.cubes.len().saturating_mul(other.expansion.cubes.len())
    }

    /// Whether some packet may be in the cubes of both: exact unless there are too many pairs to compare.
    pub(super) fn meets(&self, other: &Self) -> bool {
        self.may_overlap_with(other)
            && (self.pairs_with(other) > MAX_PAIRS_OF_CUBES || self.first_overlap(other).is_some())
    }

    /// The place of the first of its cubes that overlaps one of the other's.
    pub(super) fn first_overlap(&self, other: &Self) -> Option<usize> {
        let (own, others) = (&self.expansion.cubes, &other.expansion.cubes);
        own.iter().position(|cube| others.iter().any(|other| cube.overlaps(other)))
    }

    pub(super) fn outcome(&self, id: RuleId) -> Outcome {
        Outcome { rule: id, verdict: self.action.verdict() }
    }

    pub(super) fn step(&self, id: RuleId) -> Step {
        Step { rule: id, predicate: self.predicate.clone(), outcome: self.outcome(id) }
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

//! The later rules that may decide packets which a hybrid rule does not match.
//!
//! [`Overlaps`] finds these rules. Comparing all pairs of rules would take quadratic time, so large policies
//! use the mask index, and beyond a budget of comparisons a rule is included unless it surely shares no
//! packet: a worker then tests more rules than it must, and decides the same.

use std::cell::Cell as Counter;
use std::collections::BTreeMap;

use policy::policy::Action;
use program::{GroupId, RuleId, Verdict};

use crate::cover::{CoveredRule, MAX_PAIRS_OF_CUBES};
use crate::cube::Cube;
use crate::mask_index::{Front, MaskIndex};

/// The most steps of all classes together. A class has up to four bytes for each.
pub(crate) const MAX_STEPS_IN_ALL: usize = 1 << 24;

/// Workers would test packets for too many rules in all classes together, up to that of this rule.
#[derive(Debug)]
pub(crate) struct TooManySteps(pub(crate) RuleId);

/// The most comparisons of cubes for all classes of a program. Beyond it only what all cubes of each rule
/// have in common is compared.
const MAX_PAIRS_IN_ALL: usize = 1 << 29;
/// With more pairs of cubes, the index is faster than comparing all pairs.
const COMPARED: usize = 1 << 22;

/// For each rule that a worker may have to receive although it steers to no group, the group to which packets
/// of its flows most likely go if it does not match them itself.
pub(crate) fn next_groups(
    rules: &[CoveredRule],
    overlaps: &mut Overlaps,
    default: Action,
) -> BTreeMap<RuleId, GroupId> {
    let mut groups = BTreeMap::new();
    let mut steps = 0;
    for (index, rule) in rules.iter().enumerate() {
        // Beyond that the policy will be refused for its steps, whatever the groups.
        let has_own = matches!(rule.action, Action::Steer(_));
        if has_own || !rule.is_hybrid() || !rule.decides() || steps > MAX_STEPS_IN_ALL {
            continue;
        }
        let Later { rules: later, otherwise } = overlaps.after(rules, RuleId::of(index));
        steps += later.len();
        let actions = later.iter().chain(&otherwise).map(|id| rules[id.index()].action);
        let default = Some(default).filter(|_| otherwise.is_none());
        let group = actions.chain(default).find_map(|action| match action.verdict() {
            Verdict::Deliver(group) => Some(group),
            Verdict::Drop | Verdict::Kernel | Verdict::Filtered => None,
        });
        groups.extend(group.map(|group| (RuleId::of(index), group)));
    }
    groups
}

/// Which rules of a policy may share packets.
pub(crate) struct Overlaps {
    /// The rules that decide packets; none if no rule is hybrid.
    rules: Vec<RuleId>,
    /// The words that differ most between rules, of the bits that all cubes of a rule have in common.
    fronts: Vec<Front>,
    /// All their cubes, each with its rule; empty where there are few.
    index: MaskIndex,
    /// How many cubes each has, most first.
    sizes: Vec<(usize, RuleId)>,
    comparisons_left: Counter<usize>,
}

/// The rules that decide a packet which a hybrid rule does not match.
#[derive(Default)]
pub(crate) struct Later {
    /// Tested in this order.
    pub(crate) rules: Vec<RuleId>,
    /// The rule that decides it if none of these matches; `None`: the default.
    pub(crate) otherwise: Option<RuleId>,
}

impl Overlaps {
    pub(crate) fn of(rules: &[CoveredRule]) -> Self {
        let deciding = rules.iter().enumerate().filter(|(_, rule)| rule.decides());
        let claims: Vec<RuleId> = deciding.map(|(index, _)| RuleId::of(index)).collect();
        let cubes = |of: &dyn Fn(&CoveredRule) -> bool| -> usize {
            let those = claims.iter().map(|id| &rules[id.index()]).filter(|rule| of(rule));
            those.map(|rule| rule.expansion.cubes.len()).sum()
        };
        let pairs = cubes(&CoveredRule::is_hybrid).saturating_mul(cubes(&|_| true));
        let mut all = Self {
            rules: Vec::new(),
            fronts: Vec::new(),
            index: MaskIndex::default(),
            sizes: Vec::new(),
            comparisons_left: Counter::new(MAX_PAIRS_IN_ALL),
        };
        if pairs > 0 {
            all.fronts = claims.iter().map(|id| Front::of(rules[id.index()].common())).collect();
            all.rules = claims;
        }
        if pairs > COMPARED {
            all.build_index(rules);
        }
        all
    }

    fn build_index(&mut self, rules: &[CoveredRule]) {
        for id in &self.rules {
            for cube in &rules[id.index()].expansion.cubes {
                self.index.add(cube, true, id.index(), 0);
            }
        }
        self.sizes = self.rules.iter().map(|id| (rules[id.index()].expansion.cubes.len(), *id)).collect();
        self.sizes.sort_unstable_by(|one, other| other.cmp(one));
    }

    /// The later rules that decide packets of a hybrid rule's flows.
    pub(crate) fn after(&mut self, rules: &[CoveredRule], id: RuleId) -> Later {
        let rule = &rules[id.index()];
        let met = self.overlapping(rules, id);
        let likely = met.is_none().then(|| self.likely(rule.common(), id));
        let mut later = Later::default();
        for id in met.into_iter().flatten().chain(likely.into_iter().flatten()) {
            let other = &rules[id.index()];
            if !self.meet(rule, other) {
                continue;
            }
            if !other.is_hybrid() && self.takes_all(other, rule) {
                later.otherwise = Some(id);
                break;
            }
            later.rules.push(id);
        }
        later
    }

    /// The later rules whose common part may overlap the cube.
    fn likely<'c>(&'c self, cube: &Cube, id: RuleId) -> impl Iterator<Item = RuleId> + 'c {
        let start = self.rules.partition_point(|rule| *rule <= id);
        let front = Front::of(cube);
        let rules = self.rules.iter().zip(&self.fronts).skip(start);
        rules.filter(move |(_, own)| !own.differs(&front)).map(|(rule, _)| *rule)
    }

    /// The later rules that overlap a rule by the index, and those too large to be compared; `None` where
    /// there is no index, or no comparison left.
    fn overlapping(&mut self, rules: &[CoveredRule], id: RuleId) -> Option<Vec<RuleId>> {
        let cubes = &rules[id.index()].expansion.cubes;
        let too_large = MAX_PAIRS_OF_CUBES / cubes.len().max(1);
        let large = self.sizes.iter().take_while(|(size, _)| *size > too_large).map(|(_, rule)| *rule);
        let mut met: Vec<RuleId> = large.filter(|rule| *rule > id).collect();
        let mut found = Vec::new();
        for cube in cubes {
            if self.index.len() == 0 || self.comparisons_left.get() == 0 {
                return None;
            }
            let compared = self.index.overlapping(cube, &mut found);
            self.count(compared);
            met.extend(found.drain(..).map(RuleId::of).filter(|rule| *rule > id));
            if met.len() > 2 * self.rules.len() {
                met.sort_unstable();
                met.dedup();
            }
        }
        met.sort_unstable();
        met.dedup();
        Some(met)
    }

    /// Whether some packet may be in the cubes of both rules.
    fn meet(&self, one: &CoveredRule, other: &CoveredRule) -> bool {
        if !one.may_overlap_with(other) {
            return false;
        }
        if !self.may_compare(one, other) {
            return true;
        }
        let (own, others) = (&one.expansion.cubes, &other.expansion.cubes);
        let met = one.first_overlap(other);
        self.count(met.map_or(own.len(), |place| place + 1) * others.len());
        met.is_some()
    }

    /// Whether each cube of a rule lies in one of the taker's: enough for all its packets to be the taker's.
    fn takes_all(&self, taker: &CoveredRule, rule: &CoveredRule) -> bool {
        if !self.may_compare(taker, rule) {
            return false;
        }
        let (own, others) = (&taker.expansion.cubes, &rule.expansion.cubes);
        let left = others.iter().position(|cube| !own.iter().any(|taker| taker.contains(cube)));
        self.count(left.map_or(others.len(), |place| place + 1) * own.len());
        left.is_none()
    }

    fn may_compare(&self, one: &CoveredRule, other: &CoveredRule) -> bool {
        one.pairs_with(other) <= MAX_PAIRS_OF_CUBES && self.comparisons_left.get() > 0
    }

    fn count(&self, comparisons: usize) {
        self.comparisons_left.set(self.comparisons_left.get().saturating_sub(comparisons));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use policy::policy::Direction;
    use program::{Match, Predicate, UndecidedKey, UndecidedReason};

    use super::*;
    use crate::cover::legalize::Expansion;
    use crate::cube::{DST_IPV4, HAS_IPV4, SRC_IPV4};

    /// A rule on some networks, hybrid or not.
    fn rule(is_hybrid: bool, networks: &[(bool, u64, u64)]) -> CoveredRule {
        let cube = |(is_source, value, mask): &(bool, u64, u64)| {
            let field = if *is_source { SRC_IPV4 } else { DST_IPV4 };
            Cube::ANY.layer(HAS_IPV4, true)?.with(field, *value, *mask)?.closed()
        };
        let software =
            is_hybrid.then(|| UndecidedKey { key: "fragment".to_owned(), why: UndecidedReason::NoSpec });
        let cubes = networks.iter().filter_map(cube).collect();
        let expansion = Expansion { cubes, software: software.into_iter().collect() };
        CoveredRule::new(expansion, Predicate::of(&Match::default()), Action::Drop, Direction::Ingress)
    }

    /// Networks of three lengths at few places, so that some meet.
    pub(crate) fn rules() -> Vec<CoveredRule> {
        let mut seed = 7u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        let mut network = || {
            let mask = [0xffff_ffff, 0xffff_ff00, 0xffff_0000][next(3) as usize];
            (next(4) > 0, next(16) << 16 | next(16) << 8 | next(16), mask)
        };
        (0..200).map(|index| rule(index % 3 > 0, &[network(), network(), network()])).collect()
    }

    #[test]
    fn the_index_finds_what_comparing_all_finds() {
        let rules = rules();
        let (mut compared, mut indexed) = (Overlaps::of(&rules), Overlaps::of(&rules));
        indexed.build_index(&rules);
        let mut some = 0;
        for index in (0..rules.len()).filter(|index| rules[*index].is_hybrid()) {
            let (one, other) =
                (compared.after(&rules, RuleId::of(index)), indexed.after(&rules, RuleId::of(index)));
            assert_eq!((&one.rules, one.otherwise), (&other.rules, other.otherwise), "{index}");
            some += usize::from(!one.rules.is_empty()) + usize::from(one.otherwise.is_some());
        }
        assert!(some > 100, "{some}");
    }

    #[test]
    fn without_comparisons_no_rule_is_missed() {
        let rules = rules();
        let (mut full, mut spent) = (Overlaps::of(&rules), Overlaps::of(&rules));
        spent.comparisons_left.set(0);
        for index in (0..rules.len()).filter(|index| rules[*index].is_hybrid()) {
            let (full, spent) =
                (full.after(&rules, RuleId::of(index)), spent.after(&rules, RuleId::of(index)));
            assert!(
                full.rules.iter().chain(&full.otherwise).all(|rule| spent.rules.contains(rule)),
                "{index}"
            );
        }
    }

    #[test]
    fn many_disjoint_rules_are_not_compared_pair_by_pair() {
        let apart = |index: u64| [(true, index << 8, 0xffff_ffff), (true, 1 << 31 | index << 8, 0xffff_ffff)];
        let spent = |count: u64| {
            let rules: Vec<CoveredRule> = (0..count).map(|index| rule(true, &apart(index))).collect();
            let mut overlaps = Overlaps::of(&rules);
            for index in 0..rules.len() {
                assert!(overlaps.after(&rules, RuleId::of(index)).rules.is_empty());
            }
            MAX_PAIRS_IN_ALL - overlaps.comparisons_left.get()
        };
        let (few, many) = (spent(2_000), spent(20_000));
        assert!(many < 20 * few, "{few} comparisons for 2,000 rules, {many} for 20,000");
    }
}

//! Which rules a worker asks about behind a hybrid one: those that claim packets and may share some with it,
//! found without a look at each pair of rules where there are many. Called by `classes` and `placing`; what
//! the answers are made into is theirs to say.

use std::cell::Cell as Counter;

use super::classes::Expanded;
use super::cube::{Cube, Image};
use super::shape::{ByMask, Front, Shape};

/// The most questions of one class: a worker asks them for every packet of it, one after another.
pub(super) const MAX_STEPS: usize = 1024;
/// The most questions of all classes together: every worker holds them.
pub(super) const MAX_STEPS_IN_ALL: usize = 1 << 20;

/// Pairs of cubes of two rules beyond this number are not compared: the rule is asked about in any case.
pub(super) const MAX_COMPARISONS: usize = 1 << 14;
/// The most comparisons of cubes for all classes of a program. Beyond it a rule is asked about if the two
/// agree in what all cubes of either have in common: workers ask more than they must, and decide alike.
const MAX_COMPARISONS_IN_ALL: usize = 1 << 29;
/// From so many pairs of cubes on an index pays.
const COMPARED: usize = 1 << 22;

/// The rules of a policy that claim packets.
pub(super) struct Claims {
    rules: Vec<usize>,
    /// What tells most of what all cubes of each have in common.
    fronts: Vec<Front>,
    /// Their cubes by mask, the rule with each, where there are many.
    shapes: Vec<Shape>,
    /// How many cubes each has, most first.
    sizes: Vec<(usize, usize)>,
    comparisons_left: Counter<usize>,
    /// How many questions were found so far.
    pub(super) questions: usize,
}

/// What a worker asks about a packet that a hybrid rule does not match.
#[derive(Default)]
pub(super) struct Behind {
    /// Whether it is one of these, in their order.
    pub(super) rules: Vec<usize>,
    /// Whose it is if not: one that matches all that comes here. `None`: the default's.
    pub(super) last: Option<usize>,
}

impl Claims {
    pub(super) fn of(rules: &[Expanded]) -> Self {
        let claims: Vec<usize> = (0..rules.len()).filter(|index| rules[*index].claims()).collect();
        let cubes = |of: &dyn Fn(&Expanded) -> bool| -> usize {
            let those = claims.iter().map(|index| &rules[*index]).filter(|rule| of(rule));
            those.map(|rule| rule.expansion.cubes.len()).sum()
        };
        let pairs = cubes(&Expanded::is_hybrid).saturating_mul(cubes(&|_| true));
        let mut all = Self {
            rules: Vec::new(),
            fronts: Vec::new(),
            shapes: Vec::new(),
            sizes: Vec::new(),
            comparisons_left: Counter::new(MAX_COMPARISONS_IN_ALL),
            questions: 0,
        };
        // Where nothing is left to workers, nobody asks.
        if pairs > 0 {
            all.fronts = claims.iter().map(|index| Front::of(rules[*index].common())).collect();
            all.rules = claims;
        }
        if pairs > COMPARED {
            all.index(rules);
        }
        all
    }

    /// Sorts all cubes by mask.
    fn index(&mut self, rules: &[Expanded]) {
        let mut shape_of: ByMask<Image, usize> = ByMask::default();
        for rule in &self.rules {
            for cube in &rules[*rule].expansion.cubes {
                let shape = *shape_of.entry(cube.mask).or_insert_with(|| {
                    self.shapes.push(Shape::new(cube, true));
                    self.shapes.len() - 1
                });
                self.shapes[shape].add(cube, *rule, 0);
            }
        }
        self.sizes = self.rules.iter().map(|rule| (rules[*rule].expansion.cubes.len(), *rule)).collect();
        self.sizes.sort_unstable_by(|one, other| other.cmp(one));
    }

    /// What is asked behind a hybrid rule that claims packets. Ends with [`MAX_STEPS`], for the caller to refuse.
    pub(super) fn behind(&mut self, rules: &[Expanded], index: usize) -> Behind {
        let rule = &rules[index];
        let met = self.met(rules, index);
        let likely = met.is_none().then(|| self.likely(rule.common(), index + 1));
        let mut behind = Behind::default();
        for later in met.into_iter().flatten().chain(likely.into_iter().flatten()) {
            let other = &rules[later];
            if !self.meet(rule, other) {
                continue;
            }
            if !other.is_hybrid() && self.takes_all(other, rule) {
                behind.last = Some(later);
                break;
            }
            behind.rules.push(later);
            if behind.rules.len() == MAX_STEPS {
                break;
            }
        }
        self.questions += behind.rules.len();
        behind
    }

    /// Those from a rule on that agree with the cube in what tells most.
    fn likely<'c>(&'c self, cube: &Cube, from: usize) -> impl Iterator<Item = usize> + 'c {
        let start = self.rules.partition_point(|rule| *rule < from);
        let front = Front::of(cube);
        let rules = self.rules.iter().zip(&self.fronts).skip(start);
        rules.filter(move |(_, own)| !own.differs(&front)).map(|(rule, _)| *rule)
    }

    /// Those behind a rule that share packets with it by the index, and those too large to be compared; `None`
    /// where there is no index, or no more comparisons.
    fn met(&mut self, rules: &[Expanded], index: usize) -> Option<Vec<usize>> {
        let cubes = &rules[index].expansion.cubes;
        let too_large = MAX_COMPARISONS / cubes.len().max(1);
        let large = self.sizes.iter().take_while(|(size, _)| *size > too_large).map(|(_, rule)| *rule);
        let mut met: Vec<usize> = large.filter(|rule| *rule > index).collect();
        let mut found = Vec::new();
        for cube in cubes {
            if self.shapes.is_empty() || self.comparisons_left.get() == 0 {
                return None;
            }
            let mut compared = self.shapes.len();
            for shape in self.shapes.iter_mut().filter(|shape| shape.may_meet(cube)) {
                compared += shape.entries_that_meet(cube, 0, &mut found);
            }
            self.count(compared);
            met.extend(found.drain(..).map(|(rule, _)| rule).filter(|rule| *rule > index));
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
    fn meet(&self, one: &Expanded, other: &Expanded) -> bool {
        if !one.agrees_with(other) {
            return false;
        }
        if !self.may_compare(one, other) {
            return true;
        }
        let (own, others) = (&one.expansion.cubes, &other.expansion.cubes);
        let met = one.first_meeting(other);
        self.count(met.map_or(own.len(), |place| place + 1) * others.len());
        met.is_some()
    }

    /// Whether each cube of a rule lies in one of the taker's: enough for all its packets to be the taker's.
    fn takes_all(&self, taker: &Expanded, rule: &Expanded) -> bool {
        if !self.may_compare(taker, rule) {
            return false;
        }
        let (own, others) = (&taker.expansion.cubes, &rule.expansion.cubes);
        let left = others.iter().position(|cube| !own.iter().any(|taker| taker.contains(cube)));
        self.count(left.map_or(others.len(), |place| place + 1) * own.len());
        left.is_none()
    }

    fn may_compare(&self, one: &Expanded, other: &Expanded) -> bool {
        one.pairs_with(other) <= MAX_COMPARISONS && self.comparisons_left.get() > 0
    }

    fn count(&self, comparisons: usize) {
        self.comparisons_left.set(self.comparisons_left.get().saturating_sub(comparisons));
    }
}

#[cfg(test)]
mod tests {
    use policy::policy::{Action, Direction};
    use program::{Match, Predicate, Unfinished, Why};

    use super::*;
    use crate::cube::{DST_IPV4, HAS_IPV4, SRC_IPV4};
    use crate::expand::Expansion;

    /// A rule on some networks, hybrid or not.
    fn rule(is_hybrid: bool, networks: &[(bool, u64, u64)]) -> Expanded {
        let cube = |(is_source, value, mask): &(bool, u64, u64)| {
            let field = if *is_source { SRC_IPV4 } else { DST_IPV4 };
            Cube::ANY.layer(HAS_IPV4, true)?.with(field, *value, *mask)?.closed()
        };
        let software = is_hybrid.then(|| Unfinished { key: "fragment".to_owned(), why: Why::NoWords });
        let cubes = networks.iter().filter_map(cube).collect();
        let expansion = Expansion { cubes, software: software.into_iter().collect() };
        Expanded::new(expansion, Predicate::of(&Match::default()), Action::Drop, Direction::Ingress)
    }

    /// Networks of three lengths at few places, so that some meet.
    fn rules() -> Vec<Expanded> {
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
    fn an_index_finds_what_comparing_all_finds() {
        let rules = rules();
        let (mut compared, mut indexed) = (Claims::of(&rules), Claims::of(&rules));
        indexed.index(&rules);
        let mut some = 0;
        for index in (0..rules.len()).filter(|index| rules[*index].is_hybrid()) {
            let (one, other) = (compared.behind(&rules, index), indexed.behind(&rules, index));
            assert_eq!((&one.rules, one.last), (&other.rules, other.last), "{index}");
            some += usize::from(!one.rules.is_empty()) + usize::from(one.last.is_some());
        }
        assert!(some > 100, "{some}");
    }

    #[test]
    fn without_comparisons_more_is_asked_and_nothing_missed() {
        let rules = rules();
        let (mut full, mut spent) = (Claims::of(&rules), Claims::of(&rules));
        spent.comparisons_left.set(0);
        for index in (0..rules.len()).filter(|index| rules[*index].is_hybrid()) {
            let (full, spent) = (full.behind(&rules, index), spent.behind(&rules, index));
            assert!(full.rules.iter().chain(&full.last).all(|rule| spent.rules.contains(rule)), "{index}");
        }
    }

    #[test]
    fn many_rules_apart_cost_no_look_at_each_pair() {
        let apart = |index: u64| [(true, index << 8, 0xffff_ffff), (true, 1 << 31 | index << 8, 0xffff_ffff)];
        let spent = |count: u64| {
            let rules: Vec<Expanded> = (0..count).map(|index| rule(true, &apart(index))).collect();
            let mut claims = Claims::of(&rules);
            for index in 0..rules.len() {
                assert!(claims.behind(&rules, index).rules.is_empty());
            }
            MAX_COMPARISONS_IN_ALL - claims.comparisons_left.get()
        };
        let (few, many) = (spent(2_000), spent(20_000));
        assert!(many < 20 * few, "{few} comparisons for 2,000 rules, {many} for 20,000");
    }
}

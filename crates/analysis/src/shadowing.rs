//! How the rules of a policy affect each other: which are never reached, which are redundant, and which take
//! packets from others, each with an example packet. The result is for operators; nothing else depends on it.

use std::collections::{BTreeMap, BTreeSet};

use policy::policy::{Action, Direction, RuleDefinition};
use policy::{Policy, Witness};
use program::{GroupId, Predicate, RuleId, SinkId};
use serde::Serialize;

use crate::Progress;
use crate::product::Product;
use crate::rule_list::{Entry, RuleList, by_rule, id, is_final, is_within};
use crate::search::{Cover, Free, Space, Undecided};

/// The most conflicts, and the most overlaps, of a rule that are listed with a packet; all are counted.
pub const MAX_LISTED_PAIRS: usize = 8;
/// The most pairs that are tried for that.
const MAX_TRIED_PAIRS: usize = 32;
/// The most rules that together shadow a rule for which a minimal subset is computed.
const MAX_REDUCED_TAKERS: usize = 32;

/// The result for a policy.
#[derive(Clone, Debug, Serialize)]
pub struct Analysis {
    /// The results, by rule.
    pub rules: Vec<RuleAnalysis>,
    /// The number of rules with an undecided question.
    pub not_decided: usize,
}

/// The result for a rule.
#[derive(Clone, Debug, Serialize)]
pub struct RuleAnalysis {
    /// Whether some packet reaches it.
    pub reach: Reach,
    /// Whether it has an effect.
    pub need: Need,
    /// Earlier rules with another action that match some of its packets.
    pub conflicts: Pairs,
    /// Earlier rules with the same action that match some of its packets.
    pub overlaps: Pairs,
}

/// Whether some packet reaches a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Reach {
    /// This packet does.
    Reached(Witness),
    /// No packet matches it.
    Impossible,
    /// Earlier rules match all its packets; these suffice.
    Shadowed(Vec<RuleId>),
    /// Not decided within the limits; the reason.
    NotDecided(String),
}

/// Whether a rule has an effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Need {
    /// Without the rule this packet would be treated differently.
    Needed(Witness),
    /// Without the rule every packet would be treated the same.
    Redundant,
    /// Not decided within the limits; the reason.
    NotDecided(String),
}

/// Earlier rules that share packets with a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pairs {
    /// The number of rules.
    pub count: usize,
    /// The first of them that take packets from the rule.
    pub listed: Vec<Pair>,
    /// Whether some of them were not decided within the limits.
    pub is_open: bool,
}

/// An earlier rule that takes packets of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pair {
    /// The earlier rule.
    pub earlier: RuleId,
    /// How the two matches are related.
    pub relation: Relation,
    /// A packet of both that reaches the earlier one.
    pub witness: Witness,
}

/// How the match of an earlier rule is related to that of a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Relation {
    /// The later one matches all packets of the earlier one, which is an exception to it.
    Exception,
    /// The earlier one matches all packets of the later one.
    Shadow,
    /// Both match the same packets.
    Same,
    /// Each has packets of its own.
    Correlation,
}

/// The groups together with the sinks that rules have instead of the group's: rules that deliver to one group
/// but to other sinks have different actions. A rule that does not let all packets through has an action that
/// no other rule has, because what it lets through depends on all its packets.
struct OwnSinks<'p> {
    policy: &'p Policy,
    list: Vec<(GroupId, &'p [SinkId])>,
    policed: BTreeMap<&'p str, usize>,
}

impl<'p> OwnSinks<'p> {
    fn of(policy: &'p Policy) -> Self {
        let mut list = Vec::new();
        for rule in &policy.rules {
            if let (Action::Steer(group) | Action::Copy(group) | Action::Sniff(group), Some(own)) =
                (rule.action, rule.sinks.as_deref())
                && !list.contains(&(group, own))
            {
                list.push((group, own));
            }
        }
        let rules = policy.rules.iter().enumerate();
        let policed = rules.filter(|(_, rule)| !rule.policing.passes_all());
        Self { policy, list, policed: policed.map(|(index, rule)| (rule.name.as_str(), index)).collect() }
    }

    /// A number beyond the groups for other sinks than the group's, and for each rule that is policed.
    fn group(&self, group: GroupId, rule: Option<&RuleDefinition>) -> GroupId {
        if let Some(index) = rule.and_then(|rule| self.policed.get(rule.name.as_str())) {
            return GroupId::of(self.policy.groups.len() + self.list.len() + index);
        }
        let own = rule.and_then(|rule| rule.sinks.as_deref());
        let of_group = self.policy.groups.get(group.index()).map(|group| group.sinks.as_slice());
        match own {
            Some(own) if of_group != Some(own) => {
                let place = self.list.iter().position(|known| *known == (group, own)).unwrap_or(0);
                GroupId::of(self.policy.groups.len() + place)
            }
            _ => group,
        }
    }
}

/// Analyses every rule of a policy.
pub fn analyse(policy: &Policy, progress: &mut dyn FnMut(Progress)) -> Analysis {
    let space = Space::of(&[policy]);
    let nothing = RuleAnalysis {
        reach: Reach::Impossible,
        need: Need::Redundant,
        conflicts: Pairs::default(),
        overlaps: Pairs::default(),
    };
    let total = policy.rules.len();
    let mut found = vec![nothing; total];
    let predicates: Vec<Predicate> = policy.rules.iter().map(|rule| Predicate::of(&rule.matches)).collect();
    let mut done = 0;
    let sinks = OwnSinks::of(policy);
    for direction in [Direction::Ingress, Direction::Egress] {
        let rules =
            RuleList::of(&space.dimensions, policy, direction, &|group, rule| sinks.group(group, rule));
        let view = View { space: &space, rules: &rules, predicates: &predicates };
        for (rule, parts) in by_rule(&rules.sniffers).into_iter().chain(by_rule(&rules.entries)) {
            let Some(slot) = found.get_mut(rule as usize) else { continue };
            progress(Progress { stage: "rules", done, total });
            done += 1;
            *slot = match parts.first().map(|entry| entry.action) {
                _ if space.is_spent() => RuleAnalysis::not_decided(Undecided::AllQuestions),
                Some(Action::Sniff(_)) => view.sniffer(&parts),
                _ => view.rule(&parts),
            };
        }
    }
    progress(Progress { stage: "rules", done: total, total });
    let not_decided = found.iter().filter(|rule| rule.is_open()).count();
    Analysis { rules: found, not_decided }
}

struct View<'v> {
    space: &'v Space,
    rules: &'v RuleList,
    /// The predicates, by rule.
    predicates: &'v [Predicate],
}

impl View<'_> {
    fn rule(&self, parts: &[&Entry]) -> RuleAnalysis {
        let near: Vec<Vec<&Entry>> =
            parts.iter().map(|part| self.rules.near(self.space, &part.product)).collect();
        let reach = self.reach(parts, &near);
        let need = match &reach {
            Reach::Reached(witness) => self.need(parts, &near, witness),
            Reach::NotDecided(why) => Need::NotDecided(why.clone()),
            Reach::Impossible | Reach::Shadowed(_) => Need::Redundant,
        };
        let conflicts = self.pairs(parts, &near, |ours, theirs| is_final(theirs) && ours != theirs);
        let overlaps = self.pairs(parts, &near, |ours, theirs| ours == theirs);
        RuleAnalysis { reach, need, conflicts, overlaps }
    }

    /// Whether earlier rules leave packets of a rule.
    fn reach(&self, parts: &[&Entry], near: &[Vec<&Entry>]) -> Reach {
        let mut takers = BTreeSet::new();
        let mut open = None;
        for (part, near) in parts.iter().zip(near) {
            let covers = finals(near, |rule| rule < part.rule);
            match self.space.free_of(&part.product, &covers, &mut takers) {
                Free::None => {}
                Free::NotDecided(why) => open = Some(why),
                Free::Product(product) => {
                    if let Some(witness) = product.witness(&self.space.dimensions) {
                        return Reach::Reached(witness);
                    }
                }
            }
        }
        match (open, takers.is_empty()) {
            (Some(why), _) => Reach::NotDecided(why.to_string()),
            (None, true) => Reach::Impossible,
            (None, false) => Reach::Shadowed(self.reduced(parts, near, takers)),
        }
    }

    /// A subset of the takers that suffices and of which none can be removed.
    fn reduced(&self, parts: &[&Entry], near: &[Vec<&Entry>], mut takers: BTreeSet<u32>) -> Vec<RuleId> {
        let suffices = |takers: &BTreeSet<u32>| {
            parts.iter().zip(near).all(|(part, near)| {
                let covers = finals(near, |rule| rule < part.rule && takers.contains(&rule));
                matches!(self.space.free_of(&part.product, &covers, &mut BTreeSet::new()), Free::None)
            })
        };
        if takers.len() <= MAX_REDUCED_TAKERS {
            // Later ones are removed first, since the earliest rules explain most.
            for taker in takers.clone().into_iter().rev() {
                takers.remove(&taker);
                if !suffices(&takers) {
                    takers.insert(taker);
                }
            }
        }
        takers.into_iter().map(id).collect()
    }

    /// Whether a rule that is reached has an effect: whether the rules behind it would treat some of its
    /// packets differently.
    fn need(&self, parts: &[&Entry], near: &[Vec<&Entry>], reached: &Witness) -> Need {
        let Some(action) = parts.first().map(|part| part.action) else { return Need::Redundant };
        if is_final(action) && self.action_without(parts, near, reached).is_some_and(|other| other != action)
        {
            return Need::Needed(reached.clone());
        }
        let mut open = None;
        for (part, near) in parts.iter().zip(near) {
            for later in near.iter().filter(|entry| entry.rule > part.rule && differs(action, entry.action)) {
                if self.space.is_spent() {
                    return Need::NotDecided(Undecided::AllQuestions.to_string());
                }
                // The packets that reach `part`, and would reach `later` without it.
                let target = self.space.both(&part.product, &later.product);
                let mut covers = finals(near, |rule| rule < later.rule && rule != part.rule);
                covers.extend(
                    near.iter().filter(|other| is_copied_anyway(part, later, other)).map(|o| o.cover()),
                );
                match self.space.free_of(&target, &covers, &mut BTreeSet::new()) {
                    Free::None => {}
                    Free::NotDecided(why) => open = Some(why),
                    Free::Product(product) => {
                        if let Some(witness) = product.witness(&self.space.dimensions) {
                            return Need::Needed(witness);
                        }
                    }
                }
            }
        }
        open.map_or(Need::Redundant, |why| Need::NotDecided(why.to_string()))
    }

    /// The action that a packet that reaches a rule would meet without that rule. Testing one packet answers
    /// the question for most rules without a search.
    fn action_without(&self, parts: &[&Entry], near: &[Vec<&Entry>], reached: &Witness) -> Option<Action> {
        let own = parts.first()?.rule;
        let packet = reached.key();
        let holds = |rule: u32| {
            self.predicates.get(rule as usize).is_none_or(|predicate| predicate.matches_deep(&packet))
        };
        let later = near.iter().flatten().filter(|entry| entry.rule > own && is_final(entry.action));
        let first = later.filter(|entry| holds(entry.rule)).min_by_key(|entry| entry.rule)?;
        Some(first.action)
    }

    /// The earlier rules that overlap and whose actions are wanted.
    fn pairs(
        &self,
        parts: &[&Entry],
        near: &[Vec<&Entry>],
        are_wanted: impl Fn(Action, Action) -> bool,
    ) -> Pairs {
        let (mut seen, mut listed) = (BTreeSet::new(), BTreeSet::new());
        let mut pairs = Pairs::default();
        let mut tried = 0;
        for (part, near) in parts.iter().zip(near) {
            let is_earlier =
                |entry: &&&Entry| entry.rule < part.rule && are_wanted(part.action, entry.action);
            for earlier in near.iter().filter(is_earlier) {
                seen.insert(earlier.rule);
                let is_enough = listed.len() >= MAX_LISTED_PAIRS || tried >= MAX_TRIED_PAIRS;
                if is_enough || listed.contains(&earlier.rule) {
                    continue;
                }
                tried += 1;
                let target = self.space.both(&part.product, &earlier.product);
                let covers = finals(near, |rule| rule < earlier.rule);
                match self.space.free_of(&target, &covers, &mut BTreeSet::new()) {
                    Free::None => {}
                    Free::NotDecided(_) => pairs.is_open = true,
                    Free::Product(product) => match self.pair(parts, earlier.rule, &product) {
                        Some(pair) => {
                            listed.insert(earlier.rule);
                            pairs.listed.push(pair);
                        }
                        None => pairs.is_open = true,
                    },
                }
            }
        }
        pairs.count = seen.len();
        pairs
    }

    /// A pair with an earlier rule, of which the product has packets; `None`: not decided.
    fn pair(&self, parts: &[&Entry], earlier: u32, product: &Product) -> Option<Pair> {
        let witness = product.witness(&self.space.dimensions)?;
        Some(Pair { earlier: id(earlier), relation: self.relation(parts, earlier)?, witness })
    }

    fn relation(&self, parts: &[&Entry], earlier: u32) -> Option<Relation> {
        let from = self.rules.entries.partition_point(|entry| entry.rule < earlier);
        let theirs: Vec<&Entry> =
            self.rules.entries[from..].iter().take_while(|entry| entry.rule == earlier).collect();
        let within = |some: &[&Entry], others: &[&Entry]| {
            let mut answers = some.iter().map(|entry| is_within(self.space, &entry.product, others));
            answers.try_fold(true, |all, answer| answer.map(|within| all && within))
        };
        Some(match (within(&theirs, parts)?, within(parts, &theirs)?) {
            (true, true) => Relation::Same,
            (true, false) => Relation::Exception,
            (false, true) => Relation::Shadow,
            (false, false) => Relation::Correlation,
        })
    }

    /// A sniff rule: no rule takes packets from it, and it is redundant if others of its group sniff the same
    /// packets.
    fn sniffer(&self, parts: &[&Entry]) -> RuleAnalysis {
        let others = |part: &Entry| {
            let same = |entry: &&Entry| entry.rule != part.rule && entry.action == part.action;
            self.rules.sniffers.iter().filter(same).map(Entry::cover).collect::<Vec<_>>()
        };
        let reach = self.reach(parts, &vec![Vec::new(); parts.len()]);
        let mut need = Need::Redundant;
        for part in parts {
            match self.space.free_of(&part.product, &others(part), &mut BTreeSet::new()) {
                Free::None => {}
                Free::NotDecided(why) => need = Need::NotDecided(why.to_string()),
                Free::Product(product) => {
                    if let Some(witness) = product.witness(&self.space.dimensions) {
                        need = Need::Needed(witness);
                        break;
                    }
                }
            }
        }
        RuleAnalysis { reach, need, conflicts: Pairs::default(), overlaps: Pairs::default() }
    }
}

/// The final rules among these.
fn finals<'e>(near: &[&'e Entry], is_wanted: impl Fn(u32) -> bool) -> Vec<Cover<'e>> {
    let wanted = near.iter().filter(|entry| is_final(entry.action) && is_wanted(entry.rule));
    wanted.map(|entry| entry.cover()).collect()
}

/// Whether a packet is treated differently if it reaches a rule with the second action instead of the first.
fn differs(ours: Action, later: Action) -> bool {
    match (ours, later) {
        // The packet reaches the same final rule anyway; only the copy is lost.
        (Action::Copy(_), later) => is_final(later),
        (ours, later) => ours != later,
    }
}

/// Whether `other` makes the copy that differs when `part` is removed and the packet reaches `later`.
fn is_copied_anyway(part: &Entry, later: &Entry, other: &Entry) -> bool {
    let asked = match (part.action, later.action) {
        (Action::Copy(group), _) | (_, Action::Copy(group)) => Action::Copy(group),
        _ => return false,
    };
    other.action == asked && other.rule != part.rule && other.rule < later.rule
}

impl RuleAnalysis {
    fn not_decided(why: Undecided) -> Self {
        let why = why.to_string();
        let pairs = Pairs { is_open: true, ..Pairs::default() };
        let (reach, need) = (Reach::NotDecided(why.clone()), Need::NotDecided(why));
        Self { reach, need, conflicts: pairs.clone(), overlaps: pairs }
    }

    /// Whether some question about the rule was not decided.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self.reach, Reach::NotDecided(_))
            || matches!(self.need, Need::NotDecided(_))
            || self.conflicts.is_open
            || self.overlaps.is_open
    }

    /// Whether no packet reaches the rule.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        matches!(self.reach, Reach::Impossible | Reach::Shadowed(_))
    }
}

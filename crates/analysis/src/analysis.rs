//! What rules have to do with each other, found exactly: which are never reached, which could be left out,
//! which take packets from each other, each shown by a packet. `check` tells the operator; nothing is decided
//! by it.

use std::collections::BTreeSet;

use policy::policy::Direction;
use policy::{Policy, Witness};
use program::{Predicate, RuleId};
use serde::Serialize;

use super::Progress;
use super::cell::Cell;
use super::lane::{Entry, Fate, Lane, Role, by_rule, id, is_within};
use super::search::{Cover, Free, Space, Undecided};
use super::witness;

/// Of a rule's conflicts and of its overlaps no more than this are named with a packet; all are counted.
pub const MAX_LISTED_PAIRS: usize = 8;
/// How many pairs are tried for it.
const MAX_TRIED_PAIRS: usize = 32;
/// Up to so many rules that together take a rule's packets are reduced to as few as suffice.
const MAX_REDUCED_TAKERS: usize = 32;

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct Analysis {
    /// By rule.
    pub rules: Vec<RuleAnalysis>,
    /// How many of them have a question that was not decided.
    pub not_decided: usize,
}

/// One rule.
#[derive(Clone, Debug, Serialize)]
pub struct RuleAnalysis {
    /// Whether some packet comes to it.
    pub reach: Reach,
    /// Whether it makes a difference.
    pub need: Need,
    /// Earlier rules that do something else with some packet of it.
    pub conflicts: Pairs,
    /// Earlier rules that do the same with some packet of it.
    pub overlaps: Pairs,
}

/// Whether some packet comes to a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Reach {
    /// This one does.
    Reached(Witness),
    /// Its match holds for no packet at all.
    Impossible,
    /// Earlier rules take all its packets: these are enough for it.
    Shadowed(Vec<RuleId>),
    /// It would take too long to tell.
    NotDecided(String),
}

/// Whether a rule makes a difference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Need {
    /// Without it this packet would be treated otherwise.
    Needed(Witness),
    /// Without it every packet would be treated as with it.
    Redundant,
    /// It would take too long to tell.
    NotDecided(String),
}

/// Earlier rules that share packets with a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pairs {
    /// How many there are.
    pub count: usize,
    /// The first of them that really take packets from the rule.
    pub listed: Vec<Pair>,
    /// Whether it would take too long to tell all of it.
    pub is_open: bool,
}

/// An earlier rule that takes packets of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pair {
    /// The earlier rule.
    pub earlier: RuleId,
    /// How the two lie.
    pub relation: Relation,
    /// A packet of both that comes to the earlier one.
    pub witness: Witness,
}

/// How an earlier rule lies to a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Relation {
    /// All packets of the earlier one are of the later one too: an exception to it.
    Exception,
    /// All packets of the later one are of the earlier one too.
    Shadow,
    /// They match the same packets.
    Same,
    /// Each has packets of its own.
    Correlation,
}

/// Looks at every rule of a policy.
pub fn analyse(policy: &Policy, progress: &mut dyn FnMut(Progress)) -> Analysis {
    let space = Space::of(&[policy]);
    let nothing = RuleAnalysis {
        reach: Reach::Impossible,
        need: Need::Redundant,
        conflicts: Pairs::default(),
        overlaps: Pairs::default(),
    };
    let total = policy.rules.len();
    let mut rules = vec![nothing; total];
    let predicates: Vec<Predicate> = policy.rules.iter().map(|rule| Predicate::of(&rule.matches)).collect();
    let mut done = 0;
    for direction in [Direction::Ingress, Direction::Egress] {
        let lane = Lane::of(&space.axes, policy, direction, &|group| group);
        let view = View { space: &space, lane: &lane, predicates: &predicates };
        for (rule, parts) in by_rule(&lane.sniffers).into_iter().chain(by_rule(&lane.entries)) {
            let Some(slot) = rules.get_mut(rule as usize) else { continue };
            progress(Progress { stage: "rules", done, total });
            done += 1;
            *slot = match parts.first().map(|entry| entry.role) {
                _ if space.is_spent() => RuleAnalysis::not_decided(Undecided::AllQuestions),
                Some(Role::Sniff(_)) => view.sniffer(&parts),
                _ => view.rule(&parts),
            };
        }
    }
    progress(Progress { stage: "rules", done: total, total });
    let not_decided = rules.iter().filter(|rule| rule.is_open()).count();
    Analysis { rules, not_decided }
}

struct View<'v> {
    space: &'v Space,
    lane: &'v Lane,
    /// By rule.
    predicates: &'v [Predicate],
}

impl View<'_> {
    fn rule(&self, parts: &[&Entry]) -> RuleAnalysis {
        let near: Vec<Vec<&Entry>> =
            parts.iter().map(|part| self.lane.near(self.space, &part.cell)).collect();
        let reach = self.reach(parts, &near);
        let need = match &reach {
            Reach::Reached(witness) => self.need(parts, &near, witness),
            Reach::NotDecided(why) => Need::NotDecided(why.clone()),
            Reach::Impossible | Reach::Shadowed(_) => Need::Redundant,
        };
        let conflicts = self.pairs(parts, &near, |ours, theirs| theirs.is_fate() && ours != theirs);
        let overlaps = self.pairs(parts, &near, |ours, theirs| ours == theirs);
        RuleAnalysis { reach, need, conflicts, overlaps }
    }

    /// Whether what earlier rules leave of a rule is empty.
    fn reach(&self, parts: &[&Entry], near: &[Vec<&Entry>]) -> Reach {
        let mut takers = BTreeSet::new();
        let mut open = None;
        for (part, near) in parts.iter().zip(near) {
            let covers = fates(near, |rule| rule < part.rule);
            match self.space.free_of(&part.cell, &covers, &mut takers) {
                Free::None => {}
                Free::NotDecided(why) => open = Some(why),
                Free::Cell(cell) => {
                    if let Some(witness) = witness::of(&self.space.axes, &cell) {
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

    /// Leaves out takers that the others can do without.
    fn reduced(&self, parts: &[&Entry], near: &[Vec<&Entry>], mut takers: BTreeSet<u32>) -> Vec<RuleId> {
        let suffices = |takers: &BTreeSet<u32>| {
            parts.iter().zip(near).all(|(part, near)| {
                let covers = fates(near, |rule| rule < part.rule && takers.contains(&rule));
                matches!(self.space.free_of(&part.cell, &covers, &mut BTreeSet::new()), Free::None)
            })
        };
        if takers.len() <= MAX_REDUCED_TAKERS {
            // The last ones first: who reads wants the earliest that take a packet.
            for taker in takers.clone().into_iter().rev() {
                takers.remove(&taker);
                if !suffices(&takers) {
                    takers.insert(taker);
                }
            }
        }
        takers.into_iter().map(id).collect()
    }

    /// Whether a rule that is reached makes a difference: whether some packet of it would be treated otherwise
    /// by the rules behind it.
    fn need(&self, parts: &[&Entry], near: &[Vec<&Entry>], reached: &Witness) -> Need {
        let Some(role) = parts.first().map(|part| part.role) else { return Need::Redundant };
        if let Role::Fate(fate) = role
            && self.fate_without(parts, near, reached).is_some_and(|other| other != fate)
        {
            return Need::Needed(reached.clone());
        }
        let mut open = None;
        for (part, near) in parts.iter().zip(near) {
            for later in near.iter().filter(|entry| entry.rule > part.rule && differs(role, entry.role)) {
                if self.space.is_spent() {
                    return Need::NotDecided(Undecided::AllQuestions.to_string());
                }
                // What comes to `part`, and without it would come to `later`.
                let target = self.space.both(&part.cell, &later.cell);
                let mut covers = fates(near, |rule| rule < later.rule && rule != part.rule);
                covers.extend(
                    near.iter().filter(|other| is_copied_anyway(part, later, other)).map(|o| o.cover()),
                );
                match self.space.free_of(&target, &covers, &mut BTreeSet::new()) {
                    Free::None => {}
                    Free::NotDecided(why) => open = Some(why),
                    Free::Cell(cell) => {
                        if let Some(witness) = witness::of(&self.space.axes, &cell) {
                            return Need::Needed(witness);
                        }
                    }
                }
            }
        }
        open.map_or(Need::Redundant, |why| Need::NotDecided(why.to_string()))
    }

    /// What the rules behind a rule would do with a packet of it that comes to it; a look at one packet, which
    /// spares most rules the whole question.
    fn fate_without(&self, parts: &[&Entry], near: &[Vec<&Entry>], reached: &Witness) -> Option<Fate> {
        let own = parts.first()?.rule;
        let packet = reached.key();
        let holds = |rule: u32| {
            self.predicates.get(rule as usize).is_none_or(|predicate| predicate.matches_deep(&packet))
        };
        let later = near.iter().flatten().filter(|entry| entry.rule > own && entry.role.is_fate());
        let first = later.filter(|entry| holds(entry.rule)).min_by_key(|entry| entry.rule)?;
        match first.role {
            Role::Fate(fate) => Some(fate),
            Role::Copy(_) | Role::Sniff(_) => None,
        }
    }

    /// The earlier rules that overlap, and for which `are_told` holds of the two roles.
    fn pairs(&self, parts: &[&Entry], near: &[Vec<&Entry>], are_told: impl Fn(Role, Role) -> bool) -> Pairs {
        let (mut seen, mut listed) = (BTreeSet::new(), BTreeSet::new());
        let mut pairs = Pairs::default();
        let mut tried = 0;
        for (part, near) in parts.iter().zip(near) {
            let is_earlier = |entry: &&&Entry| entry.rule < part.rule && are_told(part.role, entry.role);
            for earlier in near.iter().filter(is_earlier) {
                seen.insert(earlier.rule);
                let is_enough = listed.len() >= MAX_LISTED_PAIRS || tried >= MAX_TRIED_PAIRS;
                if is_enough || listed.contains(&earlier.rule) {
                    continue;
                }
                tried += 1;
                let target = self.space.both(&part.cell, &earlier.cell);
                let covers = fates(near, |rule| rule < earlier.rule);
                match self.space.free_of(&target, &covers, &mut BTreeSet::new()) {
                    Free::None => {}
                    Free::NotDecided(_) => pairs.is_open = true,
                    Free::Cell(cell) => match self.pair(parts, earlier.rule, &cell) {
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

    /// What an earlier rule takes of a rule, of which the packets of a cell are some; `None`: not decided.
    fn pair(&self, parts: &[&Entry], earlier: u32, cell: &Cell) -> Option<Pair> {
        let witness = witness::of(&self.space.axes, cell)?;
        Some(Pair { earlier: id(earlier), relation: self.relation(parts, earlier)?, witness })
    }

    fn relation(&self, parts: &[&Entry], earlier: u32) -> Option<Relation> {
        let from = self.lane.entries.partition_point(|entry| entry.rule < earlier);
        let theirs: Vec<&Entry> =
            self.lane.entries[from..].iter().take_while(|entry| entry.rule == earlier).collect();
        let within = |some: &[&Entry], others: &[&Entry]| {
            let mut answers = some.iter().map(|entry| is_within(self.space, &entry.cell, others));
            answers.try_fold(true, |all, answer| answer.map(|within| all && within))
        };
        Some(match (within(&theirs, parts)?, within(parts, &theirs)?) {
            (true, true) => Relation::Same,
            (true, false) => Relation::Exception,
            (false, true) => Relation::Shadow,
            (false, false) => Relation::Correlation,
        })
    }

    /// A rule that sniffs: no rule takes packets from it, and another of the same group may hear the same.
    fn sniffer(&self, parts: &[&Entry]) -> RuleAnalysis {
        let others = |part: &Entry| {
            let same = |entry: &&Entry| entry.rule != part.rule && entry.role == part.role;
            self.lane.sniffers.iter().filter(same).map(Entry::cover).collect::<Vec<_>>()
        };
        let reach = self.reach(parts, &vec![Vec::new(); parts.len()]);
        let mut need = Need::Redundant;
        for part in parts {
            match self.space.free_of(&part.cell, &others(part), &mut BTreeSet::new()) {
                Free::None => {}
                Free::NotDecided(why) => need = Need::NotDecided(why.to_string()),
                Free::Cell(cell) => {
                    if let Some(witness) = witness::of(&self.space.axes, &cell) {
                        need = Need::Needed(witness);
                        break;
                    }
                }
            }
        }
        RuleAnalysis { reach, need, conflicts: Pairs::default(), overlaps: Pairs::default() }
    }
}

/// The rules among these that decide packets' fates.
fn fates<'e>(near: &[&'e Entry], is_wanted: impl Fn(u32) -> bool) -> Vec<Cover<'e>> {
    let wanted = near.iter().filter(|entry| entry.role.is_fate() && is_wanted(entry.rule));
    wanted.map(|entry| entry.cover()).collect()
}

/// Whether it makes a difference that a packet of the first comes to the second instead.
fn differs(ours: Role, later: Role) -> bool {
    match (ours, later) {
        // Without the copy the packet goes on to where it went anyway; what counts is the copy.
        (Role::Copy(_), later) => later.is_fate(),
        (ours, later) => ours != later,
    }
}

/// Whether `other` gives the copy that is in question when `part` is left out and the packet comes to `later`.
fn is_copied_anyway(part: &Entry, later: &Entry, other: &Entry) -> bool {
    let asked = match (part.role, later.role) {
        (Role::Copy(group), _) | (Role::Fate(_), Role::Copy(group)) => Role::Copy(group),
        _ => return false,
    };
    other.role == asked && other.rule != part.rule && other.rule < later.rule
}

impl RuleAnalysis {
    fn not_decided(why: Undecided) -> Self {
        let why = why.to_string();
        let pairs = Pairs { is_open: true, ..Pairs::default() };
        let (reach, need) = (Reach::NotDecided(why.clone()), Need::NotDecided(why));
        Self { reach, need, conflicts: pairs.clone(), overlaps: pairs }
    }

    /// Whether some question about it was not decided.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self.reach, Reach::NotDecided(_))
            || matches!(self.need, Need::NotDecided(_))
            || self.conflicts.is_open
            || self.overlaps.is_open
    }

    /// Whether no packet comes to it.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        matches!(self.reach, Reach::Impossible | Reach::Shadowed(_))
    }
}

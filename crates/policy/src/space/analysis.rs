//! What rules have to do with each other, found exactly: which are never reached, which could be left out,
//! which take packets from each other, each shown by a packet. `check` tells the operator; nothing is decided
//! by it.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::ids::RuleId;
use crate::policy::{Direction, Policy};
use crate::predicate::Predicate;

use super::Progress;
use super::axes::Axes;
use super::lane::{Entry, Fate, Lane, Role, axes_of, by_rule, id, is_within};
use super::search::{Cover, Free, MAX_COMPARISONS, free_of};
use super::witness::{self, Witness};

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
    let axes = axes_of(&[policy]);
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
        let lane = Lane::of(&axes, policy, direction, &|group| group);
        let view = View { axes: &axes, lane: &lane, predicates: &predicates };
        for (rule, parts) in by_rule(&lane.sniffers).into_iter().chain(by_rule(&lane.entries)) {
            let Some(slot) = rules.get_mut(rule as usize) else { continue };
            progress(Progress { stage: "rules", done, total });
            done += 1;
            *slot = match parts.first().map(|entry| entry.role) {
                Some(Role::Sniff(_)) => view.sniffer(&parts),
                _ => view.rule(&parts),
            };
        }
    }
    progress(Progress { stage: "rules", done: total, total });
    let is_open = |rule: &&RuleAnalysis| {
        matches!(rule.reach, Reach::NotDecided(_)) || matches!(rule.need, Need::NotDecided(_))
    };
    let not_decided = rules.iter().filter(is_open).count();
    Analysis { rules, not_decided }
}

/// Why a question has no answer.
pub(super) fn not_decided() -> String {
    format!("it takes more than {MAX_COMPARISONS} comparisons of header regions")
}

struct View<'v> {
    axes: &'v Axes,
    lane: &'v Lane,
    /// By rule.
    predicates: &'v [Predicate],
}

impl View<'_> {
    fn rule(&self, parts: &[&Entry]) -> RuleAnalysis {
        let near: Vec<Vec<&Entry>> = parts.iter().map(|part| self.lane.near(self.axes, &part.cell)).collect();
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
        let mut is_open = false;
        for (part, near) in parts.iter().zip(near) {
            let covers = fates(near, |rule| rule < part.rule);
            match free_of(self.axes, &part.cell, &covers, &mut takers) {
                Free::None => {}
                Free::NotDecided => is_open = true,
                Free::Cell(cell) => {
                    if let Some(witness) = witness::of(self.axes, &cell) {
                        return Reach::Reached(witness);
                    }
                }
            }
        }
        match takers.is_empty() {
            _ if is_open => Reach::NotDecided(not_decided()),
            true => Reach::Impossible,
            false => Reach::Shadowed(self.reduced(parts, near, takers)),
        }
    }

    /// Leaves out takers that the others can do without.
    fn reduced(&self, parts: &[&Entry], near: &[Vec<&Entry>], mut takers: BTreeSet<u32>) -> Vec<RuleId> {
        let suffices = |takers: &BTreeSet<u32>| {
            parts.iter().zip(near).all(|(part, near)| {
                let covers = fates(near, |rule| rule < part.rule && takers.contains(&rule));
                matches!(free_of(self.axes, &part.cell, &covers, &mut BTreeSet::new()), Free::None)
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
        let mut is_open = false;
        for (part, near) in parts.iter().zip(near) {
            for later in near.iter().filter(|entry| entry.rule > part.rule && differs(role, entry.role)) {
                // What comes to `part`, and without it would come to `later`.
                let target = part.cell.and(&later.cell, self.axes);
                let mut covers = fates(near, |rule| rule < later.rule && rule != part.rule);
                covers.extend(
                    near.iter().filter(|other| is_copied_anyway(part, later, other)).map(|o| o.cover()),
                );
                match free_of(self.axes, &target, &covers, &mut BTreeSet::new()) {
                    Free::None => {}
                    Free::NotDecided => is_open = true,
                    Free::Cell(cell) => {
                        if let Some(witness) = witness::of(self.axes, &cell) {
                            return Need::Needed(witness);
                        }
                    }
                }
            }
        }
        if is_open { Need::NotDecided(not_decided()) } else { Need::Redundant }
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
        let mut seen = BTreeSet::new();
        let mut pairs = Pairs::default();
        for (part, near) in parts.iter().zip(near) {
            for earlier in near.iter().filter(|entry| entry.rule < part.rule) {
                if !are_told(part.role, earlier.role) {
                    continue;
                }
                let is_news = seen.insert(earlier.rule);
                if !is_news || pairs.listed.len() >= MAX_LISTED_PAIRS || seen.len() > MAX_TRIED_PAIRS {
                    continue;
                }
                let target = part.cell.and(&earlier.cell, self.axes);
                let covers = fates(near, |rule| rule < earlier.rule);
                if let Free::Cell(cell) = free_of(self.axes, &target, &covers, &mut BTreeSet::new())
                    && let Some(witness) = witness::of(self.axes, &cell)
                {
                    let relation = self.relation(parts, earlier.rule);
                    pairs.listed.push(Pair { earlier: id(earlier.rule), relation, witness });
                }
            }
        }
        pairs.count = seen.len();
        pairs
    }

    fn relation(&self, parts: &[&Entry], earlier: u32) -> Relation {
        let from = self.lane.entries.partition_point(|entry| entry.rule < earlier);
        let theirs: Vec<&Entry> =
            self.lane.entries[from..].iter().take_while(|entry| entry.rule == earlier).collect();
        let within = |some: &[&Entry], others: &[&Entry]| {
            some.iter().all(|entry| is_within(self.axes, &entry.cell, others) == Some(true))
        };
        match (within(&theirs, parts), within(parts, &theirs)) {
            (true, true) => Relation::Same,
            (true, false) => Relation::Exception,
            (false, true) => Relation::Shadow,
            (false, false) => Relation::Correlation,
        }
    }

    /// A rule that sniffs: no rule takes packets from it, and another of the same group may hear the same.
    fn sniffer(&self, parts: &[&Entry]) -> RuleAnalysis {
        let others = |part: &Entry| {
            let same = |entry: &&Entry| entry.rule != part.rule && entry.role == part.role;
            self.lane.sniffers.iter().filter(same).map(Entry::cover).collect::<Vec<_>>()
        };
        let reach = match parts.first().and_then(|part| witness::of(self.axes, &part.cell)) {
            Some(witness) => Reach::Reached(witness),
            None => Reach::Impossible,
        };
        let mut need = Need::Redundant;
        for part in parts {
            match free_of(self.axes, &part.cell, &others(part), &mut BTreeSet::new()) {
                Free::None => {}
                Free::NotDecided => need = Need::NotDecided(not_decided()),
                Free::Cell(cell) => {
                    if let Some(witness) = witness::of(self.axes, &cell) {
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
    /// Whether no packet comes to it.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        matches!(self.reach, Reach::Impossible | Reach::Shadowed(_))
    }
}

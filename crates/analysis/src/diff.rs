//! The packets that two policies treat differently, as regions in the policy language with an example packet
//! each. Texts are not compared: policies that treat every packet alike have no difference, however they are
//! written. A change of a group's workers or hashing is a change of all its traffic; a change of its name is
//! none.
//!
//! `pairs` finds between which rules packets move, `expand` makes regions of them, and `report` adds names
//! and texts. `packet_changes` compares what becomes of one packet.

mod expand;
mod groups;
mod packet_changes;
mod pairs;
mod report;

pub use groups::{GroupChange, KeyChange, ShareChange, changed_groups};
pub use packet_changes::{MetRules, PacketComparison};
pub use pairs::MAX_PAIRS;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use policy::policy::{Direction, RuleDefinition};
use policy::{Policy, Witness};
use program::{GroupId, RuleId};
use serde::Serialize;

use crate::Progress;
use crate::diff::groups::same_groups;
use crate::diff::pairs::{Pairs, changed};
use crate::diff::report::{Report, Side};
use crate::region::Region;
use crate::rule_list::RuleList;
use crate::search::Space;

/// How many differences are reported, and how long may be looked for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Detail {
    /// The most regions of one pair of rules; if there are more, the last stands for all others.
    pub regions_per_pair: usize,
    /// The most regions in total.
    pub regions: usize,
    /// The longest time to look for them; what is not decided by then is reported as not decided. Without
    /// this limit the number of comparisons is limited only, so that the result is the same on each machine.
    pub time: Option<Duration>,
}

impl Detail {
    /// For people.
    pub const SHORT: Self = Self { regions_per_pair: 16, regions: 4096, time: None };
    /// For programs.
    pub const FULL: Self = Self { regions_per_pair: 4096, regions: 65_536, time: None };
}

/// The most regions of a pair that are counted.
pub const MAX_COUNTED_REGIONS: usize = 64;
/// The most list values in all reported regions; one region may contain a whole block list.
pub const MAX_SHOWN_VALUES: u64 = 1 << 21;
/// The most rules with precedence over a pair that are named; all are counted.
pub const MAX_NAMED_RULES: usize = 32;
/// The most undecided pairs that are named; all are counted.
pub const MAX_NAMED_OPEN: usize = 64;

/// The difference of two policies.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Diff {
    /// The regions by direction and pair of rules. Regions of one pair may overlap; together they are all
    /// packets that the pair treats differently, unless its summary counts more.
    pub regions: Vec<Change>,
    /// Every pair of rules between which packets move, by rule of the new policy, then of the old one.
    pub pairs: Vec<PairSummary>,
    /// The number of undecided pairs of rules. Only if it is 0, no pairs means no difference.
    pub not_decided: usize,
    /// The first undecided pairs.
    pub open: Vec<OpenPair>,
    /// Why the comparison ended before all pairs were compared.
    pub stopped: Option<String>,
}

/// A region that the policies treat differently.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// The direction of the packets.
    #[serde(skip)]
    pub direction: Direction,
    /// The packets.
    pub region: Region,
    /// The effect of the old policy on them.
    pub before: Effect,
    /// The effect of the new policy on them.
    pub after: Effect,
    /// One of the packets.
    pub witness: Witness,
}

/// The effect of a policy on the packets of a region.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Effect {
    /// The rule, or the default; `None`: no rule applies.
    pub rule: Option<RuleId>,
    /// The name of the rule.
    pub name: String,
    /// The action of the rule, as text.
    pub action: String,
}

/// The packets that move from one rule to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PairSummary {
    /// The direction of the packets.
    #[serde(skip)]
    pub direction: Direction,
    /// The old policy's rule.
    pub before: Effect,
    /// The new policy's rule.
    pub after: Effect,
    /// The packets that both rules match; those that move are these without what other rules match first.
    /// Empty if no regions are reported.
    pub within: Vec<Region>,
    /// The rules that match some of them first.
    pub but_for: Names,
    /// A packet that moves.
    pub witness: Witness,
    /// The number of its regions among the changes.
    pub regions: usize,
    /// The number of changes that each stand for regions that are not listed.
    pub rest: usize,
    /// The number of regions that are not listed.
    pub more: usize,
    /// Whether there may be more regions.
    pub is_open: bool,
}

/// Names of rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Names {
    /// The number of rules.
    pub count: usize,
    /// The first names.
    pub listed: Vec<String>,
}

/// Two rules for which it was not decided whether packets move between them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OpenPair {
    /// The direction of the packets.
    #[serde(skip)]
    pub direction: Direction,
    /// The old policy's rule.
    pub before: Effect,
    /// The new policy's rule.
    pub after: Effect,
    /// The reason.
    pub why: String,
}

impl Diff {
    /// Whether the policies certainly treat every packet alike.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty() && self.is_whole()
    }

    /// Whether everything was decided.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.not_decided == 0 && self.stopped.is_none()
    }
}

/// The rules that do not let all packets through in one of two policies. No other rule treats packets like
/// such a rule, so each has groups of its own; a change of what it lets through moves no packets.
struct Policed<'p> {
    /// The groups of both policies.
    groups: usize,
    places: BTreeMap<&'p str, usize>,
}

impl<'p> Policed<'p> {
    fn of(old: &'p Policy, new: &'p Policy) -> Self {
        let rules = old.rules.iter().chain(&new.rules).filter(|rule| !rule.policing.passes_all());
        let names: BTreeSet<&str> = rules.map(|rule| rule.name.as_str()).collect();
        Self { groups: old.groups.len() + new.groups.len(), places: names.into_iter().zip(1..).collect() }
    }

    fn group(&self, group: GroupId, rule: Option<&RuleDefinition>) -> GroupId {
        let place = rule.and_then(|rule| self.places.get(rule.name.as_str())).copied().unwrap_or(0);
        GroupId::of(place * self.groups + group.index())
    }
}

/// The groups of two policies by numbers that are equal where packets are treated alike.
struct ComparedGroups<'p> {
    new_groups: Vec<GroupId>,
    policed: Policed<'p>,
}

impl<'p> ComparedGroups<'p> {
    fn of(old: &'p Policy, new: &'p Policy) -> Self {
        Self { new_groups: same_groups(old, new), policed: Policed::of(old, new) }
    }

    /// The number of a group of the old policy, for the packets of a rule.
    fn old_group(&self, group: GroupId, rule: Option<&RuleDefinition>) -> GroupId {
        self.policed.group(group, rule)
    }

    /// The number of a group of the new policy.
    fn new_group(&self, group: GroupId, rule: Option<&RuleDefinition>) -> GroupId {
        self.policed.group(self.new_groups.get(group.index()).copied().unwrap_or(group), rule)
    }
}

/// Compares two policies.
pub fn diff(old: &Policy, new: &Policy, progress: &mut dyn FnMut(Progress)) -> Diff {
    diff_in_detail(old, new, Detail::SHORT, progress)
}

/// Compares two policies with limits on what is reported.
pub fn diff_in_detail(
    old: &Policy,
    new: &Policy,
    detail: Detail,
    progress: &mut dyn FnMut(Progress),
) -> Diff {
    let space = Space::of(&[old, new]).within(detail.time);
    let groups = ComparedGroups::of(old, new);
    let old_group = |group: GroupId, rule: Option<&RuleDefinition>| groups.old_group(group, rule);
    let new_group = |group: GroupId, rule: Option<&RuleDefinition>| groups.new_group(group, rule);
    let mut report = Report::new(&space.dimensions, detail);
    for direction in [Direction::Ingress, Direction::Egress] {
        let before = RuleList::of(&space.dimensions, old, direction, &old_group);
        let after = RuleList::of(&space.dimensions, new, direction, &new_group);
        let changed = changed(old, &before, new, &after);
        let detail = Detail { regions: report.regions_left(), ..detail };
        let pairs = Pairs::of(&space, &before, &after, &changed, detail, progress);
        let sides = [old, new].map(|policy| Side { policy, direction });
        report.add(&sides, pairs);
    }
    report.found
}

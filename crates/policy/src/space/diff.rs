//! What two policies do differently, as regions in the language with a packet for each. Texts are not
//! compared: policies that decide every packet alike have no difference, however they are written. A change
//! of a group's workers or spreading is a change of all its traffic.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::ids::{GroupId, RuleId};
use crate::policy::{Direction, GroupDefinition, Policy};
use crate::program::DEFAULT_RULE;

use super::Progress;
use super::axes::Axes;
use super::cell::Cell;
use super::common::{Changed, changed};
use super::grow::{Grown, regions_of};
use super::lane::{Entry, Fate, Lane, Role, axes_of, id};
use super::region::{self, Region};
use super::search::Cover;
use super::witness::{self, Witness};

/// No more regions than this are told of one pair of rules; the last then says that there are more.
pub const MAX_REGIONS_PER_PAIR: usize = 16;
/// No more changes than this are described as regions; the summary still counts their pairs of rules.
pub const MAX_CHANGES: usize = 4096;

/// What is different.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Diff {
    /// By rule of the new policy, then of the old one. Regions of one pair of rules may overlap; together
    /// they are all that it treats differently.
    pub regions: Vec<Change>,
    /// The same by pair of rules.
    pub pairs: Vec<PairSummary>,
    /// How many pairs of rules were not decided; where there are none, no regions means no difference.
    pub not_decided: usize,
}

/// A region that is treated differently.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// Of which way.
    #[serde(skip)]
    pub direction: Direction,
    /// Which packets.
    pub region: Region,
    /// What the old policy does with them.
    pub before: Effect,
    /// What the new policy does with them.
    pub after: Effect,
    /// One of them.
    pub witness: Witness,
}

/// What a policy does with the packets of a region.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Effect {
    /// The rule, or the default.
    pub rule: RuleId,
    /// Its name.
    pub name: String,
    /// In words.
    pub action: String,
}

/// How much changes from one rule to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PairSummary {
    /// The old policy's rule.
    pub before: Effect,
    /// The new policy's rule.
    pub after: Effect,
    /// Regions among the changes.
    pub regions: usize,
}

impl Diff {
    /// Whether the policies are known to treat every packet alike.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty() && self.not_decided == 0
    }
}

/// Compares two policies.
pub fn diff(old: &Policy, new: &Policy, progress: &mut dyn FnMut(Progress)) -> Diff {
    let axes = axes_of(&[old, new]);
    let groups = same_groups(old, new);
    let new_group = |group: GroupId| groups.get(group.index()).copied().unwrap_or(group);
    let mut found = Diff::default();
    for direction in [Direction::Ingress, Direction::Egress] {
        let before = Side { policy: old, lane: Lane::of(&axes, old, direction, &|group| group) };
        let after = Side { policy: new, lane: Lane::of(&axes, new, direction, &new_group) };
        let changed = changed(&before.lane.entries, &after.lane.entries);
        let mut compared = Compared { axes: &axes, before, after, changed, pairs: BTreeMap::new() };
        compared.all(progress);
        compared.tell(direction, &mut found);
    }
    found
}

/// For each group of the new policy the one of the old policy that is the same in name and content, or else a
/// number of its own.
fn same_groups(old: &Policy, new: &Policy) -> Vec<GroupId> {
    let is_same = |a: &GroupDefinition, b: &GroupDefinition| {
        (&a.name, &a.workers, a.fields, &a.key, a.symmetric, a.table_size)
            == (&b.name, &b.workers, b.fields, &b.key, b.symmetric, b.table_size)
    };
    let number = |(index, group): (usize, &GroupDefinition)| {
        let same = old.groups.iter().position(|other| is_same(other, group));
        GroupId::of(same.unwrap_or(old.groups.len() + index))
    };
    new.groups.iter().enumerate().map(number).collect()
}

struct Side<'p> {
    policy: &'p Policy,
    lane: Lane,
}

/// A difference between two rules: in what, and of which rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    after: u32,
    before: u32,
    what: What,
}

/// What is different about the packets of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Fate,
    /// The old rule's copy is not made any more.
    CopyLost,
    /// The new rule's copy was not made before.
    CopyWon,
    /// What a group hears, whatever the other rules do.
    HearingLost,
    HearingWon,
}

struct Compared<'p> {
    axes: &'p Axes,
    before: Side<'p>,
    after: Side<'p>,
    changed: Changed,
    pairs: BTreeMap<Pair, Grown>,
}

impl Compared<'_> {
    fn all(&mut self, progress: &mut dyn FnMut(Progress)) {
        let total = self.changed.old.len() + self.changed.new.len();
        let (before, after) = (&self.before.lane, &self.after.lane);
        let mut asks = Asks { axes: self.axes, pairs: &mut self.pairs, told: 0 };
        let mut done = 0;
        for (lane, other, changed, is_old) in
            [(before, after, &self.changed.old, true), (after, before, &self.changed.new, false)]
        {
            let mut last = None;
            for part in lane.entries.iter().filter(|entry| changed.contains(&entry.rule)) {
                if last != Some(part.rule) {
                    progress(Progress { stage: "changes", done, total });
                    done += 1;
                    last = Some(part.rule);
                }
                if part.role.is_fate() {
                    // The pairs of two changed rules come up from the old one.
                    let is_asked = |entry: &Entry| is_old || !self.changed.old.contains(&entry.rule);
                    asks.fates(part, lane, other, is_old, is_asked);
                }
            }
            let other_changed = if is_old { &self.changed.new } else { &self.changed.old };
            for part in lane.entries.iter().filter(|entry| matches!(entry.role, Role::Copy(_))) {
                let is_asked =
                    |entry: &Entry| changed.contains(&part.rule) || other_changed.contains(&entry.rule);
                asks.copies(part, lane, other, is_old, is_asked);
            }
            asks.hearings(&lane.sniffers, &other.sniffers, is_old);
        }
        progress(Progress { stage: "changes", done: total, total });
    }

    /// Puts what was found into words.
    fn tell(self, direction: Direction, found: &mut Diff) {
        for (pair, grown) in &self.pairs {
            found.not_decided += usize::from(grown.is_open);
            if grown.cells.is_empty() {
                continue;
            }
            let before = self.before.effect(pair.before, pair.what, true);
            let after = self.after.effect(pair.after, pair.what, false);
            let from = found.regions.len();
            for (cell, some) in &grown.cells {
                if found.regions.len() >= MAX_CHANGES {
                    break;
                }
                for (mut region, part) in region::of(self.axes, cell) {
                    let shown = some.as_ref().map_or(part.clone(), |some| part.and(some, self.axes));
                    let Some(witness) = witness::of(self.axes, &shown) else { continue };
                    let (before, after) = (before.clone(), after.clone());
                    if some.is_some() {
                        region.only = Some("only part of it: there are more regions".to_owned());
                    }
                    found.regions.push(Change { direction, region, before, after, witness });
                }
            }
            found.pairs.push(PairSummary { before, after, regions: found.regions.len() - from });
        }
    }
}

impl Side<'_> {
    fn effect(&self, rule: u32, what: What, is_old: bool) -> Effect {
        let definition = self.policy.rules.get(rule as usize);
        let name = definition.map_or(DEFAULT_RULE, |rule| &rule.name).to_owned();
        let action = match (what, is_old) {
            (What::CopyWon, true) | (What::CopyLost, false) => "no such copy".to_owned(),
            (What::HearingWon, true) | (What::HearingLost, false) => {
                return Effect { rule: id(rule), name: String::new(), action: "not heard".to_owned() };
            }
            _ => {
                let entries = self.lane.entries.iter().chain(&self.lane.sniffers);
                let role = entries.clone().find(|entry| entry.rule == rule).map(|entry| entry.role);
                self.words(definition.map(|rule| Role::of(rule.action)).or(role))
            }
        };
        Effect { rule: id(rule), name, action }
    }

    fn words(&self, role: Option<Role>) -> String {
        let group = |id: GroupId| self.policy.groups.get(id.index()).map_or("?", |group| &group.name);
        match role {
            Some(Role::Fate(Fate::Group(id))) => format!("steer to {}", group(id)),
            Some(Role::Fate(Fate::Drop)) => "drop".to_owned(),
            Some(Role::Fate(Fate::Kernel)) => "kernel".to_owned(),
            Some(Role::Fate(Fate::Pass)) => "pass".to_owned(),
            Some(Role::Copy(id)) => format!("copy to {}", group(id)),
            Some(Role::Sniff(id)) => format!("sniffed by {}", group(id)),
            None => "nothing".to_owned(),
        }
    }
}

/// Asks for the differences of pairs of rules and keeps them.
struct Asks<'a> {
    axes: &'a Axes,
    pairs: &'a mut BTreeMap<Pair, Grown>,
    /// How many cells were found.
    told: usize,
}

impl Asks<'_> {
    /// Packets that come to a rule on one side, and to a rule with another fate on the other.
    fn fates(
        &mut self,
        part: &Entry,
        lane: &Lane,
        other: &Lane,
        is_old: bool,
        is_asked: impl Fn(&Entry) -> bool,
    ) {
        let ours = lane.near(self.axes, &part.cell);
        let covers: Vec<Cover<'_>> = fates(&ours, part.rule).collect();
        let theirs = other.near(self.axes, &part.cell);
        for entry in theirs.iter().filter(|entry| entry.role.is_fate()) {
            if entry.role != part.role && is_asked(entry) {
                let mut covers = covers.clone();
                covers.extend(fates(&theirs, entry.rule));
                let pair = pair(is_old, part.rule, entry.rule, What::Fate);
                self.keep(pair, &part.cell.and(&entry.cell, self.axes), &covers);
            }
            if entry.cell.contains(&part.cell, self.axes) {
                break;
            }
        }
    }

    /// Packets that a rule copies on one side, and that on the other go to their end without that copy.
    fn copies(
        &mut self,
        part: &Entry,
        lane: &Lane,
        other: &Lane,
        is_old: bool,
        is_asked: impl Fn(&Entry) -> bool,
    ) {
        let ours = lane.near(self.axes, &part.cell);
        let covers: Vec<Cover<'_>> = fates(&ours, part.rule).collect();
        let theirs = other.near(self.axes, &part.cell);
        let what = if is_old { What::CopyLost } else { What::CopyWon };
        for entry in theirs.iter().filter(|entry| entry.role.is_fate() && is_asked(entry)) {
            let mut covers = covers.clone();
            covers.extend(fates(&theirs, entry.rule));
            let copies = theirs.iter().filter(|copy| copy.role == part.role && copy.rule < entry.rule);
            covers.extend(copies.map(|copy| copy.cover()));
            let pair = pair(is_old, part.rule, entry.rule, what);
            self.keep(pair, &part.cell.and(&entry.cell, self.axes), &covers);
        }
    }

    /// Packets that a group hears on one side only.
    fn hearings(&mut self, ours: &[Entry], theirs: &[Entry], is_old: bool) {
        let what = if is_old { What::HearingLost } else { What::HearingWon };
        for part in ours {
            let same = theirs.iter().filter(|entry| entry.role == part.role);
            let covers: Vec<Cover<'_>> = same.map(Entry::cover).collect();
            self.keep(pair(is_old, part.rule, part.rule, what), &part.cell, &covers);
        }
    }

    fn keep(&mut self, pair: Pair, target: &Cell, covers: &[Cover<'_>]) {
        // Behind the last change that is told of it is enough to know that there is another.
        let most = if self.told < MAX_CHANGES { MAX_REGIONS_PER_PAIR } else { 1 };
        let grown = regions_of(self.axes, target, covers, most);
        self.told += grown.cells.len();
        if !grown.cells.is_empty() || grown.is_open {
            self.pairs.entry(pair).or_default().add(grown);
        }
    }
}

fn pair(is_old: bool, ours: u32, theirs: u32, what: What) -> Pair {
    let (before, after) = if is_old { (ours, theirs) } else { (theirs, ours) };
    Pair { after, before, what }
}

/// The rules before a rule that decide fates.
fn fates<'e>(near: &[&'e Entry], before: u32) -> impl Iterator<Item = Cover<'e>> {
    let earlier = near.iter().filter(move |entry| entry.role.is_fate() && entry.rule < before);
    earlier.map(|entry| entry.cover())
}

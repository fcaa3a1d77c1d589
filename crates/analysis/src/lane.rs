//! The rules of a policy as cells, apart by direction, with what they do; what analysis and diff look at.

use std::collections::{BTreeMap, BTreeSet};

use policy::Policy;
use policy::policy::{Action, Direction};
use program::{GroupId, RuleId};

use super::axes::Axes;
use super::cell::Cell;
use super::index::Index;
use super::search::{Cover, Free, Space};

/// What a rule does with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Role {
    /// The packet's fate is decided.
    Fate(Fate),
    /// A group gets a copy, and later rules see the packet as well.
    Copy(GroupId),
    /// A group hears it, whatever rules stand before.
    Sniff(GroupId),
}

/// Where a packet goes in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Fate {
    Group(GroupId),
    Drop,
    Kernel,
    Pass,
}

impl Role {
    pub(super) const fn of(action: Action) -> Self {
        match action {
            Action::Steer(group) => Self::Fate(Fate::Group(group)),
            Action::Drop => Self::Fate(Fate::Drop),
            Action::Kernel => Self::Fate(Fate::Kernel),
            Action::Pass => Self::Fate(Fate::Pass),
            Action::Copy(group) => Self::Copy(group),
            Action::Sniff(group) => Self::Sniff(group),
        }
    }

    fn with_group(self, group: &dyn Fn(GroupId) -> GroupId) -> Self {
        match self {
            Self::Fate(Fate::Group(id)) => Self::Fate(Fate::Group(group(id))),
            Self::Copy(id) => Self::Copy(group(id)),
            Self::Sniff(id) => Self::Sniff(group(id)),
            Self::Fate(_) => self,
        }
    }

    pub(super) const fn is_fate(self) -> bool {
        matches!(self, Self::Fate(_))
    }
}

/// Part of a rule.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) rule: u32,
    pub(super) role: Role,
    pub(super) cell: Cell,
}

impl Entry {
    pub(super) fn cover(&self) -> Cover<'_> {
        Cover { rule: self.rule, cell: &self.cell }
    }
}

/// The rules of one direction, in order, the default at the end. Those that sniff, whose order means nothing,
/// are apart.
pub(super) struct Lane {
    pub(super) entries: Vec<Entry>,
    pub(super) sniffers: Vec<Entry>,
    index: Index,
}

impl Lane {
    /// The rules of a direction. Groups go by the numbers that `group` gives them.
    pub(super) fn of(
        axes: &Axes,
        policy: &Policy,
        direction: Direction,
        group: &dyn Fn(GroupId) -> GroupId,
    ) -> Self {
        let mut entries = Vec::new();
        let mut sniffers = Vec::new();
        for (number, rule) in (0u32..).zip(&policy.rules) {
            let role = Role::of(rule.action).with_group(group);
            // What sniffs hears both directions; it is told of with the first.
            let is_here = match role {
                Role::Sniff(_) => direction == Direction::Ingress,
                _ => rule.direction == direction,
            };
            if !is_here {
                continue;
            }
            let list = if matches!(role, Role::Sniff(_)) { &mut sniffers } else { &mut entries };
            list.extend(axes.cells(&rule.matches).into_iter().map(|cell| Entry { rule: number, role, cell }));
        }
        let default = default_of(policy, direction).with_group(group);
        let number = policy.rules.len() as u32;
        entries.push(Entry { rule: number, role: default, cell: axes.everything() });
        let cells: Vec<&Cell> = entries.iter().map(|entry| &entry.cell).collect();
        Self { index: Index::of(axes, &cells), entries, sniffers }
    }

    /// The parts of rules that overlap a cell, in order.
    pub(super) fn near(&self, space: &Space, cell: &Cell) -> Vec<&Entry> {
        let near = self.index.near(&space.axes, cell).into_iter();
        let near = near.filter_map(|number| self.entries.get(number as usize));
        near.filter(|entry| space.overlaps(cell, &entry.cell)).collect()
    }
}

/// What happens to packets that no rule claims. Nothing leaves the host otherwise than it would without us.
pub(super) const fn default_of(policy: &Policy, direction: Direction) -> Role {
    match direction {
        Direction::Ingress => Role::of(policy.default),
        Direction::Egress => Role::Fate(Fate::Pass),
    }
}

/// Whether all of `cell` is in these cells; `None` if that was not decided.
pub(super) fn is_within(space: &Space, cell: &Cell, cells: &[&Entry]) -> Option<bool> {
    let covers: Vec<Cover<'_>> = cells.iter().map(|entry| entry.cover()).collect();
    match space.free_of(cell, &covers, &mut BTreeSet::new()) {
        Free::Cell(_) => Some(false),
        Free::None => Some(true),
        Free::NotDecided(_) => None,
    }
}

/// The entries of each rule.
pub(super) fn by_rule(entries: &[Entry]) -> BTreeMap<u32, Vec<&Entry>> {
    let mut rules: BTreeMap<u32, Vec<&Entry>> = BTreeMap::new();
    for entry in entries {
        rules.entry(entry.rule).or_default().push(entry);
    }
    rules
}

/// The id of a rule by its number.
pub(super) const fn id(rule: u32) -> RuleId {
    RuleId(rule)
}

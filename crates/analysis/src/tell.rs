//! What has changed hands, in words: effects with the names of rules and groups, and cells as regions. Finds
//! nothing itself; `diff` calls it once per direction.

use std::collections::BTreeSet;

use policy::Policy;
use policy::policy::Direction;
use program::{DEFAULT_RULE, GroupId};

use super::axes::Axes;
use super::cell::Cell;
use super::diff::{Change, Detail, Diff, Effect, MAX_NAMED_OPEN, MAX_NAMED_RULES, MAX_TOLD_VALUES};
use super::diff::{Names, OpenPair, PairSummary};
use super::lane::{Fate, Role, default_of, id};
use super::pairs::{Found, Pair, Pairs, What};
use super::region::{self, Region};
use super::witness;

/// One of the two policies, in one direction.
pub(super) struct Side<'p> {
    pub(super) policy: &'p Policy,
    pub(super) direction: Direction,
}

/// What was told so far.
pub(super) struct Telling<'a> {
    axes: &'a Axes,
    detail: Detail,
    pub(super) found: Diff,
    /// Values of lists in all regions.
    values: u64,
}

impl<'a> Telling<'a> {
    pub(super) fn new(axes: &'a Axes, detail: Detail) -> Self {
        Self { axes, detail, found: Diff::default(), values: 0 }
    }

    /// How many regions may still be told.
    pub(super) fn regions_left(&self) -> usize {
        self.detail.regions.saturating_sub(self.found.regions.len())
    }

    /// Puts what was found of one direction into words; the old side is the first.
    pub(super) fn tell(&mut self, sides: &[Side<'_>; 2], pairs: Pairs) {
        let direction = sides[0].direction;
        for (pair, found) in pairs.found {
            self.pair(direction, sides, pair, &found);
        }
        self.found.not_decided += pairs.open.len();
        for (pair, why) in pairs.open {
            if self.found.open.len() < MAX_NAMED_OPEN {
                let [before, after] = effects(sides, pair);
                self.found.open.push(OpenPair { direction, before, after, why: why.to_string() });
            }
        }
        self.found.stopped = self.found.stopped.take().or(pairs.stopped.map(|why| why.to_string()));
    }

    fn pair(&mut self, direction: Direction, sides: &[Side<'_>; 2], pair: Pair, found: &Found) {
        let [before, after] = effects(sides, pair);
        let from = self.found.regions.len();
        let (mut rest, mut more) = (0, found.grown.more);
        for (cell, some) in &found.grown.cells {
            if self.regions_left() == 0 || !self.has_room_for(cell) {
                more += usize::from(some.is_none());
                continue;
            }
            let Some(witness) = witness::of(self.axes, some.as_ref().unwrap_or(cell)) else { continue };
            let mut region = region::of(self.axes, cell);
            if some.is_some() {
                rest += 1;
                region.only = Some("only part of it: there are more regions".to_owned());
            }
            let (before, after) = (before.clone(), after.clone());
            self.found.regions.push(Change { direction, region, before, after, witness });
        }
        let within = self.within(found);
        // The packet of the largest region has more of what is usual.
        let witness = self.found.regions.get(from).map_or(&found.witness, |one| &one.witness).clone();
        self.found.pairs.push(PairSummary {
            direction,
            before,
            after,
            within,
            but_for: names(sides, found),
            witness,
            regions: self.found.regions.len() - from - rest,
            rest,
            more,
            is_open: found.grown.is_open,
        });
    }

    /// What all that changes hands is in: a match for each part of the rules, or one around parts that are many.
    fn within(&mut self, found: &Found) -> Vec<Region> {
        if !found.within.iter().all(|cell| self.has_room_for(cell)) {
            return Vec::new();
        }
        let mut cells: Vec<&Cell> = found.within.iter().collect();
        let is_many = cells.len() > self.detail.regions_per_pair;
        let around = is_many.then(|| Cell::around(&cells, self.axes));
        if let Some(around) = &around {
            cells = vec![around];
        }
        let mut within = Vec::new();
        for part in cells.iter().flat_map(|cell| region::parts(self.axes, cell)) {
            let mut region = region::of(self.axes, &part);
            if is_many && region.only.is_none() {
                region.only = Some("only part of it".to_owned());
            }
            if !within.contains(&region) {
                within.push(region);
            }
        }
        within
    }

    /// Whether a region's lists may be told, which is then counted.
    fn has_room_for(&mut self, cell: &Cell) -> bool {
        let values = self.values + cell.intervals;
        let has_room = values <= MAX_TOLD_VALUES;
        if has_room {
            self.values = values;
        }
        has_room
    }
}

/// The names of the rules that take packets first, those of the old policy first, each once.
fn names(sides: &[Side<'_>; 2], found: &Found) -> Names {
    let mut names: Vec<&str> = Vec::new();
    for (side, is_old) in [(&sides[0], true), (&sides[1], false)] {
        let rules = found.takers.iter().filter(|(of_old, _)| *of_old == is_old);
        names.extend(rules.map(|(_, rule)| side.name(*rule)));
    }
    let mut seen = BTreeSet::new();
    names.retain(|name| seen.insert(*name));
    let listed = names.iter().take(MAX_NAMED_RULES).map(|name| (*name).to_owned());
    Names { count: names.len(), listed: listed.collect() }
}

/// What either policy does with the packets of a pair.
fn effects(sides: &[Side<'_>; 2], pair: Pair) -> [Effect; 2] {
    [sides[0].effect(pair.before, pair.what, true), sides[1].effect(pair.after, pair.what, false)]
}

impl Side<'_> {
    fn name(&self, rule: u32) -> &str {
        self.policy.rules.get(rule as usize).map_or(DEFAULT_RULE, |rule| &rule.name)
    }

    fn effect(&self, rule: u32, what: What, is_old: bool) -> Effect {
        let name = self.name(rule).to_owned();
        let action = match (what, is_old) {
            (What::CopyWon, true) | (What::CopyLost, false) => "no such copy".to_owned(),
            (What::HearingWon, true) | (What::HearingLost, false) => {
                return Effect { rule: None, name: String::new(), action: "not heard".to_owned() };
            }
            _ => self.words(rule),
        };
        Effect { rule: Some(id(rule)), name, action }
    }

    /// What a rule does, or the default.
    fn words(&self, rule: u32) -> String {
        let group = |id: GroupId| self.policy.groups.get(id.index()).map_or("?", |group| &group.name);
        let default = default_of(self.policy, self.direction);
        let role = self.policy.rules.get(rule as usize).map_or(default, |rule| Role::of(rule.action));
        match role {
            Role::Fate(Fate::Group(id)) => format!("steer to {}", group(id)),
            Role::Fate(Fate::Drop) => "drop".to_owned(),
            Role::Fate(Fate::Kernel) => "kernel".to_owned(),
            Role::Fate(Fate::Pass) => "pass".to_owned(),
            Role::Copy(id) => format!("copy to {}", group(id)),
            Role::Sniff(id) => format!("sniffed by {}", group(id)),
        }
    }
}

//! The report of a diff: effects with the names of rules and groups, and products as regions.

use std::collections::BTreeSet;

use policy::Policy;
use policy::policy::{Action, Direction};
use program::{DEFAULT_RULE, GroupId};

use crate::diff::pairs::{Difference, Found, Pair, Pairs};
use crate::diff::{Change, Detail, Diff, Effect, MAX_NAMED_OPEN, MAX_NAMED_RULES, MAX_SHOWN_VALUES};
use crate::diff::{Names, OpenPair, PairSummary};
use crate::dimensions::Dimensions;
use crate::product::Product;
use crate::region::{self, Region};
use crate::rule_list::{default_of, id};

/// One of the two policies, in one direction.
pub(super) struct Side<'p> {
    pub(super) policy: &'p Policy,
    pub(super) direction: Direction,
}

/// The report so far.
pub(super) struct Report<'a> {
    dimensions: &'a Dimensions,
    detail: Detail,
    pub(super) found: Diff,
    /// The number of list values in all regions.
    values: u64,
}

impl<'a> Report<'a> {
    pub(super) fn new(dimensions: &'a Dimensions, detail: Detail) -> Self {
        Self { dimensions, detail, found: Diff::default(), values: 0 }
    }

    /// How many regions may still be listed.
    pub(super) fn regions_left(&self) -> usize {
        self.detail.regions.saturating_sub(self.found.regions.len())
    }

    /// Adds the pairs of one direction; the old side is the first.
    pub(super) fn add(&mut self, sides: &[Side<'_>; 2], pairs: Pairs) {
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
        let (mut rest, mut more) = (0, found.expanded.more);
        for (product, some) in &found.expanded.products {
            if self.regions_left() == 0 || !self.has_room_for(product) {
                more += usize::from(some.is_none());
                continue;
            }
            let Some(witness) = some.as_ref().unwrap_or(product).witness(self.dimensions) else {
                continue;
            };
            let mut region = region::of(self.dimensions, product);
            if some.is_some() {
                rest += 1;
                region.only = Some("only part of it: there are more regions".to_owned());
            }
            let (before, after) = (before.clone(), after.clone());
            self.found.regions.push(Change { direction, region, before, after, witness });
        }
        let within = self.within(found);
        // The packet of the largest region has values that are met more often.
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
            is_open: found.expanded.is_open,
        });
    }

    /// Regions that contain all packets that move: one per part of the rules, or one around all if there are
    /// many.
    fn within(&mut self, found: &Found) -> Vec<Region> {
        if !found.within.iter().all(|product| self.has_room_for(product)) {
            return Vec::new();
        }
        let mut products: Vec<&Product> = found.within.iter().collect();
        let is_many = products.len() > self.detail.regions_per_pair;
        let around = is_many.then(|| Product::around(&products, self.dimensions));
        if let Some(around) = &around {
            products = vec![around];
        }
        let mut within = Vec::new();
        for part in products.iter().flat_map(|product| region::parts(self.dimensions, product)) {
            let mut region = region::of(self.dimensions, &part);
            if is_many && region.only.is_none() {
                region.only = Some("only part of it".to_owned());
            }
            if !within.contains(&region) {
                within.push(region);
            }
        }
        within
    }

    /// Whether a region's lists may be listed; if so, they are counted.
    fn has_room_for(&mut self, product: &Product) -> bool {
        let values = self.values + product.intervals;
        let has_room = values <= MAX_SHOWN_VALUES;
        if has_room {
            self.values = values;
        }
        has_room
    }
}

/// The names of the rules with precedence, those of the old policy first, without duplicates.
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

/// The effects of the old and the new policy on the packets of a pair.
pub(super) fn effects(sides: &[Side<'_>; 2], pair: Pair) -> [Effect; 2] {
    [sides[0].effect(pair.before, pair.what, true), sides[1].effect(pair.after, pair.what, false)]
}

impl Side<'_> {
    fn name(&self, rule: u32) -> &str {
        self.policy.rules.get(rule as usize).map_or(DEFAULT_RULE, |rule| &rule.name)
    }

    fn effect(&self, rule: u32, what: Difference, is_old: bool) -> Effect {
        let name = self.name(rule).to_owned();
        let action = match (what, is_old) {
            (Difference::CopyWon, true) | (Difference::CopyLost, false) => "no such copy".to_owned(),
            (Difference::SniffWon, true) | (Difference::SniffLost, false) => {
                return Effect { rule: None, name: String::new(), action: "not sniffed".to_owned() };
            }
            _ => self.words(rule),
        };
        Effect { rule: Some(id(rule)), name, action }
    }

    /// The effect of a rule or the default, in words.
    fn words(&self, rule: u32) -> String {
        let group = |id: GroupId| self.policy.groups.get(id.index()).map_or("?", |group| &group.name);
        let default = default_of(self.policy, self.direction);
        match self.policy.rules.get(rule as usize).map_or(default, |rule| rule.action) {
            Action::Steer(id) => format!("steer to {}", group(id)),
            Action::Drop => "drop".to_owned(),
            Action::Kernel => "kernel".to_owned(),
            Action::Pass => "pass".to_owned(),
            Action::Copy(id) => format!("copy to {}", group(id)),
            Action::Sniff(id) => format!("sniffed by {}", group(id)),
        }
    }
}

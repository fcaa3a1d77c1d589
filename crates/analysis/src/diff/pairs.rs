//! Between which rules of two policies packets move: for each pair first whether some packet does, then
//! which, as products. The first answer matters most, so the second is left out when comparisons run short.
//!
//! Rules that both policies have in the same order need not be compared: a packet that reaches none of the
//! changed rules is decided by the first common rule that matches it, which is the same on both sides.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use policy::policy::Action;
use policy::{Policy, Witness};

use crate::Progress;
use crate::diff::expand::{Expanded, Wanted, regions_of};
use crate::diff::{Detail, MAX_COUNTED_REGIONS};
use crate::match_text::match_text;
use crate::product::Product;
use crate::region;
use crate::rule_list::{Entry, RuleList, by_rule, is_final};
use crate::search::{Cover, Free, Space, Undecided};

/// The most pairs of rules that are reported. Two policies can have as many as the product of their numbers
/// of rules.
pub const MAX_PAIRS: usize = 65_536;
/// If less than this part of all comparisons is left, no regions are computed.
const LEFT_FOR_REGIONS: f64 = 0.5;
/// If less than this part is left, no more regions are counted than are listed.
const LEFT_FOR_COUNTING: f64 = 0.75;

/// A difference between two rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pair {
    pub(super) after: u32,
    pub(super) before: u32,
    pub(super) what: Difference,
}

/// The difference for the packets of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Difference {
    /// Another rule decides where the packet goes.
    Action,
    /// The old rule's copy is not made any more.
    CopyLost,
    /// The new rule's copy was not made before.
    CopyWon,
    /// A group no longer sniffs them.
    SniffLost,
    /// A group did not sniff them before.
    SniffWon,
}

impl Pair {
    fn of(is_old: bool, ours: u32, theirs: u32, what: Difference) -> Self {
        let (before, after) = if is_old { (ours, theirs) } else { (theirs, ours) };
        Self { after, before, what }
    }
}

/// The packets that move between two rules.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) witness: Witness,
    /// Packets of both rules that contain all that move.
    pub(super) within: Vec<Product>,
    /// The rules that match some of those first: whether of the old policy, and which.
    pub(super) takers: BTreeSet<(bool, u32)>,
    pub(super) expanded: Expanded,
}

/// All pairs of one direction.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    pub(super) found: BTreeMap<Pair, Found>,
    pub(super) open: BTreeMap<Pair, Undecided>,
    /// Why not all pairs were compared.
    pub(super) stopped: Option<Stopped>,
}

/// The limit at which the search for pairs ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stopped {
    /// That of all questions.
    Search(Undecided),
    /// Packets change hands between more than [`MAX_PAIRS`] pairs of rules.
    Pairs,
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Search(why) => why.fmt(f),
            Self::Pairs => write!(f, "more than {MAX_PAIRS} pairs of rules differ"),
        }
    }
}

impl Pairs {
    /// Finds the pairs of which one rule is changed; all others are alike on both sides.
    pub(super) fn of(
        space: &Space,
        old: &RuleList,
        new: &RuleList,
        changed: &Changed,
        detail: Detail,
        progress: &mut dyn FnMut(Progress),
    ) -> Self {
        let mut asks = Asks { space, detail, regions: 0, pairs: Self::default() };
        let total = changed.old.len() + changed.new.len();
        let mut done = 0;
        for (is_old, rules, other, ours, theirs) in
            [(true, old, new, &changed.old, &changed.new), (false, new, old, &changed.new, &changed.old)]
        {
            let mut last = None;
            for part in rules.entries.iter().filter(|entry| ours.contains(&entry.rule)) {
                if last != Some(part.rule) {
                    progress(Progress { stage: "changes", done, total });
                    done += 1;
                    last = Some(part.rule);
                }
                if is_final(part.action) {
                    // Pairs of two changed rules are found from the old one.
                    let is_asked = |entry: &Entry| is_old || !theirs.contains(&entry.rule);
                    let differs = |entry: &Entry| is_asked(entry) && entry.action != part.action;
                    asks.ends(part, rules, other, is_old, |entry| {
                        differs(entry).then_some(Difference::Action)
                    });
                }
            }
            // Packets that are copied on this side only.
            let copied = if is_old { Difference::CopyLost } else { Difference::CopyWon };
            for part in rules.entries.iter().filter(|entry| matches!(entry.action, Action::Copy(_))) {
                let is_asked = |entry: &Entry| ours.contains(&part.rule) || theirs.contains(&entry.rule);
                asks.ends(part, rules, other, is_old, |entry| is_asked(entry).then_some(copied));
            }
            asks.sniffed(&rules.sniffers, &other.sniffers, is_old);
        }
        progress(Progress { stage: "changes", done: total, total });
        asks.pairs
    }
}

/// Products of rules with precedence: those of one side, then those of the other.
#[derive(Clone)]
struct Covers<'c> {
    list: Vec<Cover<'c>>,
    /// How many are of the first side.
    ours: usize,
}

impl<'c> Covers<'c> {
    /// The final rules of the first side before one.
    fn of(near: &[&'c Entry], before: u32) -> Self {
        let list: Vec<Cover<'c>> = finals(near, before).collect();
        Self { ours: list.len(), list }
    }

    fn with(&self, theirs: impl Iterator<Item = Cover<'c>>) -> Self {
        let mut all = self.clone();
        all.list.extend(theirs);
        all
    }
}

/// The final rules before a rule.
fn finals<'e>(near: &[&'e Entry], before: u32) -> impl Iterator<Item = Cover<'e>> {
    let earlier = near.iter().filter(move |entry| is_final(entry.action) && entry.rule < before);
    earlier.map(|entry| entry.cover())
}

/// The search for pairs, with what it found.
struct Asks<'a> {
    space: &'a Space,
    detail: Detail,
    /// The number of regions found so far.
    regions: usize,
    pairs: Pairs,
}

impl Asks<'_> {
    /// Compares the packets that reach a rule on one side with the rules that decide them on the other;
    /// `what` gives the difference, if there is one.
    fn ends(
        &mut self,
        part: &Entry,
        rules: &RuleList,
        other: &RuleList,
        is_old: bool,
        what: impl Fn(&Entry) -> Option<Difference>,
    ) {
        if self.is_stopped() {
            return;
        }
        let ours = Covers::of(&rules.near(self.space, &part.product), part.rule);
        let theirs = other.near(self.space, &part.product);
        for entry in theirs.iter().filter(|entry| is_final(entry.action)) {
            if let Some(what) = what(entry) {
                // Packets that get the same copy there are no change.
                let copies =
                    theirs.iter().filter(|copy| !is_final(copy.action) && copy.action == part.action);
                let copies = copies.filter(|copy| copy.rule < entry.rule).map(|copy| copy.cover());
                let covers = ours.with(finals(&theirs, entry.rule).chain(copies));
                let pair = Pair::of(is_old, part.rule, entry.rule, what);
                self.record(pair, is_old, &self.space.both(&part.product, &entry.product), &covers);
            }
            if self.is_stopped() || entry.product.contains(&part.product, &self.space.dimensions) {
                break;
            }
        }
    }

    /// Packets that a group sniffs on one side only.
    fn sniffed(&mut self, ours: &[Entry], theirs: &[Entry], is_old: bool) {
        let what = if is_old { Difference::SniffLost } else { Difference::SniffWon };
        for part in ours {
            if self.is_stopped() {
                return;
            }
            let same = theirs.iter().filter(|entry| entry.action == part.action);
            let covers = Covers { list: same.map(Entry::cover).collect(), ours: 0 };
            self.record(Pair::of(is_old, part.rule, part.rule, what), is_old, &part.product, &covers);
        }
    }

    fn is_stopped(&mut self) -> bool {
        if self.space.is_spent() {
            self.pairs.stopped = Some(Stopped::Search(self.space.reached()));
        } else if self.pairs.found.len() + self.pairs.open.len() >= MAX_PAIRS {
            self.pairs.stopped = Some(Stopped::Pairs);
        }
        self.pairs.stopped.is_some()
    }

    /// Records the packets of a target that are in no cover.
    fn record(&mut self, pair: Pair, is_old: bool, target: &Product, covers: &Covers<'_>) {
        let free = match self.space.free_of(target, &covers.list, &mut BTreeSet::new()) {
            Free::None => return,
            Free::NotDecided(why) => return self.leave_open(pair, why),
            Free::Product(free) => free,
        };
        let Some(witness) = free.witness(&self.space.dimensions) else { return };
        let was_open = self.pairs.open.remove(&pair).is_some();
        let known = self.pairs.found.get(&pair).map_or(0, |found| found.expanded.products.len());
        let wanted = self.wanted(known);
        let expanded = match wanted {
            Some(wanted) => regions_of(self.space, target, &covers.list, free, wanted),
            None => Expanded { products: Vec::new(), more: 1, is_open: true },
        };
        self.regions += expanded.products.len();
        let within = wanted.map(|_| self.within(target, &expanded));
        let takes_some = |cover: &Cover<'_>| {
            within.as_ref().is_some_and(|within| cover.product.overlaps(within, &self.space.dimensions))
        };
        let taking = covers.list.iter().enumerate().filter(|(_, cover)| takes_some(cover));
        let takers: Vec<(bool, u32)> =
            taking.map(|(place, cover)| ((place < covers.ours) == is_old, cover.rule)).collect();
        let found = self.pairs.found.entry(pair).or_insert_with(|| Found {
            witness,
            within: Vec::new(),
            takers: BTreeSet::new(),
            expanded: Expanded { is_open: was_open, ..Expanded::default() },
        });
        match within {
            Some(within) => found.within.push(within),
            None => found.within.clear(),
        }
        found.takers.extend(takers);
        found.expanded.add(expanded);
    }

    /// A part of a target that contains all packets that move.
    fn within(&self, target: &Product, expanded: &Expanded) -> Product {
        if expanded.is_open {
            return target.clone();
        }
        let products: Vec<&Product> = expanded.products.iter().map(|(product, _)| product).collect();
        region::narrowed(&self.space.dimensions, target, &Product::around(&products, &self.space.dimensions))
    }

    fn leave_open(&mut self, pair: Pair, why: Undecided) {
        match self.pairs.found.get_mut(&pair) {
            Some(found) => found.expanded.is_open = true,
            None => _ = self.pairs.open.insert(pair, why),
        }
    }

    /// The number of regions that are wanted of a pair that has `known` ones; `None`: none.
    fn wanted(&self, known: usize) -> Option<Wanted> {
        let left = self.space.share_left();
        let listed = self.detail.regions_per_pair.saturating_sub(known).max(1);
        let counted = if left < LEFT_FOR_COUNTING { listed } else { listed.max(MAX_COUNTED_REGIONS) };
        let is_wanted = self.regions < self.detail.regions && left >= LEFT_FOR_REGIONS;
        is_wanted.then_some(Wanted { listed, counted })
    }
}

/// The rules on each side that are not common to both in the same order.
pub(super) struct Changed {
    pub(super) old: BTreeSet<u32>,
    pub(super) new: BTreeSet<u32>,
}

/// The products of a rule with its action, and the text of its match if they are rough.
type Meaning<'e> = (Vec<(Action, &'e Product)>, Option<String>);

/// Compares the rules `before` of the old policy and `after` of the new one by their meaning, whatever their
/// text and names.
pub(super) fn changed(old: &Policy, before: &RuleList, new: &Policy, after: &RuleList) -> Changed {
    let (old, new) = (by_meaning(old, &before.entries), by_meaning(new, &after.entries));
    let mut places: HashMap<&Meaning<'_>, Vec<usize>> = HashMap::new();
    for (place, (_, meaning)) in new.iter().enumerate().rev() {
        places.entry(meaning).or_default().push(place);
    }
    // The n-th rule of a meaning is paired with the n-th of the other side.
    let mut matched: Vec<(usize, usize)> = Vec::new();
    for (place, (_, meaning)) in old.iter().enumerate() {
        if let Some(other) = places.get_mut(meaning).and_then(Vec::pop) {
            matched.push((place, other));
        }
    }
    let kept = longest_increasing(&matched);
    let rules = |side: &[(u32, Meaning<'_>)], kept: &BTreeSet<usize>| {
        side.iter()
            .enumerate()
            .filter(|(place, _)| !kept.contains(place))
            .map(|(_, (rule, _))| *rule)
            .collect()
    };
    Changed {
        old: rules(&old, &kept.iter().map(|pair| pair.0).collect()),
        new: rules(&new, &kept.iter().map(|pair| pair.1).collect()),
    }
}

fn by_meaning<'e>(policy: &Policy, entries: &'e [Entry]) -> Vec<(u32, Meaning<'e>)> {
    let meaning = |(rule, parts): (u32, Vec<&'e Entry>)| {
        let is_rough = parts.iter().any(|part| part.product.is_rough);
        let text = policy.rules.get(rule as usize).filter(|_| is_rough).map(|rule| match_text(&rule.matches));
        (rule, (parts.into_iter().map(|part| (part.action, &part.product)).collect(), text))
    };
    by_rule(entries).into_iter().map(meaning).collect()
}

/// The longest subsequence of pairs, sorted by the first side, that is increasing on the second side too
/// (patience sorting: Fredman, 1975).
fn longest_increasing(pairs: &[(usize, usize)]) -> Vec<(usize, usize)> {
    // For each length the pair with the least end of an increasing sequence of that length, and the
    // predecessor of each pair. The ends increase with the length, so a binary search finds the longest one
    // that a pair extends.
    let mut ends: Vec<usize> = Vec::new();
    let mut before: Vec<Option<usize>> = Vec::with_capacity(pairs.len());
    for (index, pair) in pairs.iter().enumerate() {
        let length = ends.partition_point(|end| pairs[*end].1 < pair.1);
        before.push(length.checked_sub(1).map(|shorter| ends[shorter]));
        if length == ends.len() {
            ends.push(index);
        } else {
            ends[length] = index;
        }
    }
    let mut increasing = Vec::new();
    let mut next = ends.last().copied();
    while let Some(index) = next {
        increasing.push(pairs[index]);
        next = before[index];
    }
    increasing.reverse();
    increasing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_increasing_part_is_kept() {
        let pairs: Vec<(usize, usize)> = [3, 0, 1, 4, 2].into_iter().enumerate().collect();
        assert_eq!(longest_increasing(&pairs), [(1, 0), (2, 1), (4, 2)]);
        assert_eq!(longest_increasing(&[]), []);
    }
}

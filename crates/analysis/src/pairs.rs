//! Between which rules of two policies packets change hands: for each pair whether some packet does, and then
//! how many, in cells. `diff` asks and `tell` puts it into words; that some packet does comes first, since it is
//! what must not be missed when it takes too long to tell more.

use std::collections::{BTreeMap, BTreeSet};

use policy::Witness;

use super::Progress;
use super::cell::Cell;
use super::common::Changed;
use super::diff::{Detail, MAX_COUNTED_REGIONS, MAX_PAIRS};
use super::grow::{Grown, Wanted, regions_of};
use super::lane::{Entry, Lane, Role};
use super::region;
use super::search::{Cover, Free, Space, Undecided};
use super::witness;

/// While less than this part of all comparisons is left no regions are looked for.
const LEFT_FOR_REGIONS: f64 = 0.5;
/// While less than this is left, no more are counted than are told.
const LEFT_FOR_COUNTING: f64 = 0.75;

/// A difference between two rules: in what, and of which rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pair {
    pub(super) after: u32,
    pub(super) before: u32,
    pub(super) what: What,
}

/// What is different about the packets of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    Fate,
    /// The old rule's copy is not made any more.
    CopyLost,
    /// The new rule's copy was not made before.
    CopyWon,
    /// What a group hears, whatever the other rules do.
    HearingLost,
    HearingWon,
}

impl Pair {
    fn of(is_old: bool, ours: u32, theirs: u32, what: What) -> Self {
        let (before, after) = if is_old { (ours, theirs) } else { (theirs, ours) };
        Self { after, before, what }
    }
}

/// What changes hands between two rules.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) witness: Witness,
    /// What they share, or the part of it that all that changes hands is in.
    pub(super) within: Vec<Cell>,
    /// The rules that take some of it first: whether of the old policy, and which.
    pub(super) takers: BTreeSet<(bool, u32)>,
    pub(super) grown: Grown,
}

/// All of one direction.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    pub(super) found: BTreeMap<Pair, Found>,
    pub(super) open: BTreeMap<Pair, Undecided>,
    /// Why not all pairs were looked at.
    pub(super) stopped: Option<Undecided>,
}

impl Pairs {
    /// Finds them; what the changed rules have nothing to do with is alike on both sides.
    pub(super) fn of(
        space: &Space,
        old: &Lane,
        new: &Lane,
        changed: &Changed,
        detail: Detail,
        progress: &mut dyn FnMut(Progress),
    ) -> Self {
        let mut asks = Asks { space, detail, told: 0, pairs: Self::default() };
        let total = changed.old.len() + changed.new.len();
        let mut done = 0;
        for (is_old, lane, other, ours, theirs) in
            [(true, old, new, &changed.old, &changed.new), (false, new, old, &changed.new, &changed.old)]
        {
            let mut last = None;
            for part in lane.entries.iter().filter(|entry| ours.contains(&entry.rule)) {
                if last != Some(part.rule) {
                    progress(Progress { stage: "changes", done, total });
                    done += 1;
                    last = Some(part.rule);
                }
                if part.role.is_fate() {
                    // The pairs of two changed rules come up from the old one.
                    let is_asked = |entry: &Entry| is_old || !theirs.contains(&entry.rule);
                    let differs = |entry: &Entry| is_asked(entry) && entry.role != part.role;
                    asks.ends(part, lane, other, is_old, |entry| differs(entry).then_some(What::Fate));
                }
            }
            // What ends there without a copy that is made here.
            let copied = if is_old { What::CopyLost } else { What::CopyWon };
            for part in lane.entries.iter().filter(|entry| matches!(entry.role, Role::Copy(_))) {
                let is_asked = |entry: &Entry| ours.contains(&part.rule) || theirs.contains(&entry.rule);
                asks.ends(part, lane, other, is_old, |entry| is_asked(entry).then_some(copied));
            }
            asks.hearings(&lane.sniffers, &other.sniffers, is_old);
        }
        progress(Progress { stage: "changes", done: total, total });
        asks.pairs
    }
}

/// Cells that take packets first: those of one side, then those of the other.
#[derive(Clone)]
struct Covers<'c> {
    list: Vec<Cover<'c>>,
    /// How many are of the side that is asked from.
    ours: usize,
}

impl<'c> Covers<'c> {
    /// The rules of our side before one.
    fn of(near: &[&'c Entry], before: u32) -> Self {
        let list: Vec<Cover<'c>> = fates(near, before).collect();
        Self { ours: list.len(), list }
    }

    fn with(&self, theirs: impl Iterator<Item = Cover<'c>>) -> Self {
        let mut all = self.clone();
        all.list.extend(theirs);
        all
    }
}

/// The rules before a rule that decide fates.
fn fates<'e>(near: &[&'e Entry], before: u32) -> impl Iterator<Item = Cover<'e>> {
    let earlier = near.iter().filter(move |entry| entry.role.is_fate() && entry.rule < before);
    earlier.map(|entry| entry.cover())
}

/// Asks for the differences of pairs of rules and keeps them.
struct Asks<'a> {
    space: &'a Space,
    detail: Detail,
    /// How many regions were found.
    told: usize,
    pairs: Pairs,
}

impl Asks<'_> {
    /// Packets that come to a rule on one side, by the rules at which they end on the other; `what` says what
    /// that changes, if anything.
    fn ends(
        &mut self,
        part: &Entry,
        lane: &Lane,
        other: &Lane,
        is_old: bool,
        what: impl Fn(&Entry) -> Option<What>,
    ) {
        if self.is_stopped() {
            return;
        }
        let ours = Covers::of(&lane.near(self.space, &part.cell), part.rule);
        let theirs = other.near(self.space, &part.cell);
        for entry in theirs.iter().filter(|entry| entry.role.is_fate()) {
            if let Some(what) = what(entry) {
                // What is copied there alike is no change.
                let copies = theirs.iter().filter(|copy| !copy.role.is_fate() && copy.role == part.role);
                let copies = copies.filter(|copy| copy.rule < entry.rule).map(|copy| copy.cover());
                let covers = ours.with(fates(&theirs, entry.rule).chain(copies));
                let pair = Pair::of(is_old, part.rule, entry.rule, what);
                self.keep(pair, is_old, &self.space.both(&part.cell, &entry.cell), &covers);
            }
            if self.is_stopped() || entry.cell.contains(&part.cell, &self.space.axes) {
                break;
            }
        }
    }

    /// Packets that a group hears on one side only.
    fn hearings(&mut self, ours: &[Entry], theirs: &[Entry], is_old: bool) {
        let what = if is_old { What::HearingLost } else { What::HearingWon };
        for part in ours {
            if self.is_stopped() {
                return;
            }
            let same = theirs.iter().filter(|entry| entry.role == part.role);
            let covers = Covers { list: same.map(Entry::cover).collect(), ours: 0 };
            self.keep(Pair::of(is_old, part.rule, part.rule, what), is_old, &part.cell, &covers);
        }
    }

    fn is_stopped(&mut self) -> bool {
        if self.space.is_spent() {
            self.pairs.stopped = Some(Undecided::AllQuestions);
        } else if self.pairs.found.len() + self.pairs.open.len() >= MAX_PAIRS {
            self.pairs.stopped = Some(Undecided::Pairs);
        }
        self.pairs.stopped.is_some()
    }

    /// Keeps what of a target is in no cover.
    fn keep(&mut self, pair: Pair, is_old: bool, target: &Cell, covers: &Covers<'_>) {
        let free = match self.space.free_of(target, &covers.list, &mut BTreeSet::new()) {
            Free::None => return,
            Free::NotDecided(why) => return self.leave_open(pair, why),
            Free::Cell(free) => free,
        };
        let Some(witness) = witness::of(&self.space.axes, &free) else { return };
        let was_open = self.pairs.open.remove(&pair).is_some();
        let known = self.pairs.found.get(&pair).map_or(0, |found| found.grown.cells.len());
        let wanted = self.wanted(known);
        let grown = match wanted {
            Some(wanted) => regions_of(self.space, target, &covers.list, free, wanted),
            None => Grown { cells: Vec::new(), more: 1, is_open: true },
        };
        self.told += grown.cells.len();
        let within = wanted.map(|_| self.within(target, &grown));
        let takes_some = |cover: &Cover<'_>| {
            within.as_ref().is_some_and(|within| cover.cell.overlaps(within, &self.space.axes))
        };
        let taking = covers.list.iter().enumerate().filter(|(_, cover)| takes_some(cover));
        let takers: Vec<(bool, u32)> =
            taking.map(|(place, cover)| ((place < covers.ours) == is_old, cover.rule)).collect();
        let found = self.pairs.found.entry(pair).or_insert_with(|| Found {
            witness,
            within: Vec::new(),
            takers: BTreeSet::new(),
            grown: Grown { is_open: was_open, ..Grown::default() },
        });
        match within {
            Some(within) => found.within.push(within),
            None => found.within.clear(),
        }
        found.takers.extend(takers);
        found.grown.add(grown);
    }

    /// The part of a target that all of it is in that changes hands.
    fn within(&self, target: &Cell, grown: &Grown) -> Cell {
        if grown.is_open {
            return target.clone();
        }
        let cells: Vec<&Cell> = grown.cells.iter().map(|(cell, _)| cell).collect();
        region::narrowed(&self.space.axes, target, &Cell::around(&cells, &self.space.axes))
    }

    fn leave_open(&mut self, pair: Pair, why: Undecided) {
        match self.pairs.found.get_mut(&pair) {
            Some(found) => found.grown.is_open = true,
            None => _ = self.pairs.open.insert(pair, why),
        }
    }

    /// How many regions are wanted of a pair that has some; `None`: that there are some is enough.
    fn wanted(&self, known: usize) -> Option<Wanted> {
        let left = self.space.share_left();
        let told = self.detail.regions_per_pair.saturating_sub(known).max(1);
        let counted = if left < LEFT_FOR_COUNTING { told } else { told.max(MAX_COUNTED_REGIONS) };
        let is_wanted = self.told < self.detail.regions && left >= LEFT_FOR_REGIONS;
        is_wanted.then_some(Wanted { told, counted })
    }
}

//! Which flows of a program are on the device already, and the device's priorities of all others.
//!
//! A flow stays as it is if the device already has it: the same match at the same priority, with the same
//! action. The compiler gives each flow a priority that is as high as overlap allows, so one rule more can
//! change the numbers of thousands of flows that need no other place. So a priority of the device, called
//! *level* here, is kept for as many flows as possible; only the order of flows that share packets counts.
//!
//! A flow whose action changes must not have the level that it had: a device takes a match once for each
//! priority. So a program leaves one priority of the device free, and the flows from such a flow on move
//! towards it. [`Strategy`] has the ways that are tried.
//!
//! A program without copies that has at most half of the priorities always finds levels, unless the device's
//! tables are full: with [`Strategy::From`] 0, a flow of priority *p* has one of the levels up to 2*p* + 1,
//! since each flow above it has an earlier priority and at most one level is forbidden.

use std::cell::OnceCell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use device_model::TableFill;
use foldhash::{HashMap, HashMapExt as _, HashSet};
use program::{Flow, FlowDigest, FlowFront, FlowKind, Program};

use super::PlacedProgram;
use super::runs::Runs;
use crate::{DigestedProgram, Limits};

/// The most pairs of flows that are compared. Beyond it, the levels are the compiler's priorities. A flow
/// that is placed counts as compared with all others.
const MOST_COMPARED: usize = 1 << 28;

/// The number of matches whose old levels are found by looking at the flows themselves; for more, all are put
/// into a table.
const FEW: usize = 8;

/// The levels of a program.
#[derive(Debug)]
pub(super) struct Levels {
    /// By flow.
    pub(super) levels: Vec<u16>,
    /// By flow, the flow of the old program that it is.
    pub(super) kept: Vec<Option<usize>>,
}

/// A way to find levels. Each is tried if those before it find none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strategy {
    /// Keeps the levels of as many flows as possible.
    Keep,
    /// The compiler's priorities from this level on. Only flows that cannot have theirs move.
    From(u16),
    /// The compiler's priorities in levels that the old program does not use.
    Apart,
}

impl Strategy {
    pub(super) const ALL: [Self; 4] = [Self::Keep, Self::From(0), Self::From(1), Self::Apart];
}

/// Finds the levels of `new` beside what is on the device.
pub(super) fn assign(
    old: Option<&PlacedProgram<'_>>,
    new: &DigestedProgram,
    limits: &Limits,
    strategy: Strategy,
) -> Option<Levels> {
    let Some(old) = old else {
        let base = first_level(new, limits);
        let levels = new.digests().iter().map(|flow| level_of(base, flow)).collect();
        return Some(Levels { levels, kept: vec![None; new.flows.len()] });
    };
    let known = Known::of(old, new, limits);
    Placing::of(&known, &known.initial(strategy))?.finish()
}

/// The level of the flows of highest precedence on an empty device. If rules at run time may come before all
/// others, a level is left free for them, as else their first one moves all flows that share packets with it.
fn first_level(new: &Program, limits: &Limits) -> u16 {
    let may_come = new.runtime.as_ref().is_some_and(|runtime| runtime.device_rules_max > 0);
    let last = new.flows.iter().map(|flow| flow.priority).max().unwrap_or(0);
    u16::from(may_come && last.saturating_add(2) <= limits.last_level())
}

/// A sniffer has no priority.
fn level_of(base: u16, flow: &FlowDigest) -> u16 {
    if flow.kind == FlowKind::Sniffer { 0 } else { base.saturating_add(flow.priority) }
}

/// Whether the device looks at the flow's priority.
pub(super) fn has_order(flow: &FlowDigest, limits: &Limits) -> bool {
    flow.kind != FlowKind::Sniffer && !(limits.multicast_ignores_priority && flow.is_multicast_only)
}

/// The order in which levels are given: the level of a flow depends on those before it only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    /// The priority of the program.
    priority: u16,
    /// Whether the flow takes the packet. Of one priority, copies come first.
    takes: bool,
    /// Whether the flow is for sent packets. It shares no packet with flows for received ones.
    is_sent: bool,
}

impl Rank {
    fn of(flow: &FlowDigest) -> Self {
        let FlowDigest { priority, kind, .. } = *flow;
        Self { priority, takes: kind != FlowKind::Copy, is_sent: kind == FlowKind::Egress }
    }

    /// Returns how many levels a flow of the other rank must be below one of this rank if they share packets.
    /// `None`: this rank sets no bound on the other, because it is not before it or they share no packets.
    fn distance(self, other: Self) -> Option<u16> {
        match (self.takes, other.takes) {
            _ if self.is_sent != other.is_sent || self >= other => None,
            (false, true) => Some(0),
            // A device may make one copy of a packet for each priority.
            _ => (self.priority < other.priority).then_some(1),
        }
    }
}

/// What the old and the new flows have in common.
struct Known<'p> {
    old: &'p PlacedProgram<'p>,
    new: &'p Program,
    digests: &'p [FlowDigest],
    limits: &'p Limits,
    same: SameFlows,
    /// The fronts by new flow, if many are compared: the flows themselves are not in the cache.
    fronts: OnceCell<Vec<FlowFront>>,
}

impl<'p> Known<'p> {
    fn of(old: &'p PlacedProgram<'p>, new: &'p DigestedProgram, limits: &'p Limits) -> Self {
        let digests = new.digests();
        let same = SameFlows::of(old.program.digests(), digests);
        Self { old, new, digests, limits, same, fronts: OnceCell::new() }
    }

    /// Makes the fronts, as many flows are to be compared.
    fn make_fronts(&self) {
        self.fronts.get_or_init(|| self.new.flows.iter().map(Flow::front).collect());
    }

    fn front(&self, index: usize) -> FlowFront {
        self.fronts.get().map_or_else(|| self.new.flows[index].front(), |fronts| fronts[index])
    }

    /// The old flows at a level.
    fn at(&self, level: u16) -> impl Iterator<Item = usize> {
        let levels = self.old.levels.iter().enumerate();
        levels.filter(move |(_, of)| **of == level).map(|(flow, _)| flow)
    }

    /// The matches of the old flows with their levels.
    fn places(&self) -> impl Iterator<Item = (u64, u16)> {
        self.old.program.digests().iter().map(|flow| flow.matches).zip(self.old.levels.iter().copied())
    }

    /// The levels at which the old program has flows of the match of each of these new flows.
    fn levels_of(&self, asked: &[usize]) -> Vec<(usize, Vec<u16>)> {
        let mut found: Vec<(usize, Vec<u16>)> = asked.iter().map(|index| (*index, Vec::new())).collect();
        let keys: Vec<u64> = asked.iter().map(|index| self.digests[*index].matches).collect();
        for (matches, level) in self.places() {
            let same = found.iter_mut().zip(&keys).filter(|(_, key)| **key == matches);
            same.for_each(|((_, levels), _)| levels.push(level));
        }
        found
    }

    /// The levels with which a strategy begins; those without one wait.
    fn initial(&self, strategy: Strategy) -> Vec<Option<u16>> {
        let free: Vec<u16> = match strategy {
            Strategy::Apart => {
                let used: HashSet<u16> = self.old.levels.iter().copied().collect();
                (0..=self.limits.last_level()).filter(|level| !used.contains(level)).collect()
            }
            Strategy::Keep | Strategy::From(_) => Vec::new(),
        };
        let level = |(index, flow): (usize, &FlowDigest)| match (strategy, self.same.get(index)) {
            (Strategy::Keep, Some(old)) => Some(self.old.levels[old]),
            (_, Some(old)) if !has_order(flow, self.limits) => Some(self.old.levels[old]),
            (_, None) if !has_order(flow, self.limits) => Some(level_of(0, flow)),
            (Strategy::Keep, None) => None,
            (Strategy::From(base), _) => Some(level_of(base, flow)),
            (Strategy::Apart, _) => free.get(usize::from(flow.priority)).copied(),
        };
        self.digests.iter().enumerate().map(level).collect()
    }

    /// Whether the flow is on the device, at that level.
    fn is_kept(&self, index: usize, level: u16) -> bool {
        self.same.get(index).is_some_and(|old| self.old.levels[old] == level)
    }
}

/// The old flow of the same match and action for each new flow. Most flows stand between the same two as
/// before: those that begin both programs, and those that end both. For these only the numbers are kept.
struct SameFlows {
    /// How many begin both.
    start: usize,
    /// For each new flow behind these, up to those that end both.
    between: Vec<Option<usize>>,
    /// The numbers of flows of the old and the new program.
    counts: (usize, usize),
}

impl SameFlows {
    fn of(old: &[FlowDigest], new: &[FlowDigest]) -> Self {
        let is_same = |(old, new): &(&FlowDigest, &FlowDigest)| old.is_same_flow(new);
        let counts = (old.len(), new.len());
        let start = old.iter().zip(new).take_while(is_same).count();
        let (old, new) = (&old[start..], &new[start..]);
        let end = old.iter().rev().zip(new.iter().rev()).take_while(is_same).count();
        let (old, new) = (&old[..old.len() - end], &new[..new.len() - end]);
        let mut free: HashMap<(u64, u64), VecDeque<usize>> = HashMap::new();
        for (index, flow) in old.iter().enumerate() {
            free.entry((flow.matches, flow.action)).or_default().push_back(start + index);
        }
        let between = new.iter().map(|flow| free.get_mut(&(flow.matches, flow.action))?.pop_front());
        Self { start, between: between.collect(), counts }
    }

    /// Returns the old flow with the match and the action of a new one.
    fn get(&self, new: usize) -> Option<usize> {
        match new.checked_sub(self.start).map(|place| self.between.get(place)) {
            None => Some(new),
            Some(Some(between)) => *between,
            Some(None) => Some(new + self.counts.0 - self.counts.1),
        }
    }
}

/// The old flows of each level, as a device with small tables holds them, and those that come beside them.
struct Room<'k, 'p> {
    known: &'k Known<'p>,
    tables: HashMap<(FlowKind, u16), TableFill<u64>>,
}

impl<'k, 'p> Room<'k, 'p> {
    fn new(known: &'k Known<'p>) -> Self {
        Self { known, tables: HashMap::new() }
    }

    /// Takes a place in a level; false: there is none.
    fn take(&mut self, index: usize, level: u16) -> bool {
        let Known { old, digests, limits, .. } = *self.known;
        let flow = &digests[index];
        let Some(table) = limits.priority_table.filter(|_| has_order(flow, limits)) else { return true };
        let fill = self.tables.entry((flow.kind, level)).or_insert_with(|| {
            let at_level = self.known.at(level).map(|known| &old.program.digests()[known]);
            let beside = at_level.filter(|known| known.kind == flow.kind && has_order(known, limits));
            TableFill::with(table, beside.map(|known| known.mask))
        });
        fill.add(&flow.mask)
    }
}

/// Flows that have a level, and those that wait for one.
struct Placing<'k, 'p> {
    known: &'k Known<'p>,
    levels: Vec<u16>,
    is_placed: Vec<bool>,
    // The flows that have an order, by rank and by each level that they had.
    groups: Runs<(Rank, u16)>,
    waiting: BinaryHeap<Reverse<(Rank, usize)>>,
    compared: usize,
    /// A few of the flows that wait, with the old levels of their matches.
    asked: Vec<(usize, Vec<u16>)>,
    /// The matches of all old flows with their levels; made when more are asked for.
    places: Option<HashSet<(u64, u16)>>,
    room: Room<'k, 'p>,
}

impl<'k, 'p> Placing<'k, 'p> {
    /// Begins with these levels. Flows wait that cannot have theirs, or have none. `None`: too many do.
    fn of(known: &'k Known<'p>, initial: &[Option<u16>]) -> Option<Self> {
        let flows = known.digests;
        let mut placing = Self {
            known,
            levels: initial.iter().map(|level| level.unwrap_or(0)).collect(),
            is_placed: vec![true; flows.len()],
            groups: Runs::of(std::iter::empty()),
            waiting: BinaryHeap::new(),
            compared: 0,
            asked: Vec::new(),
            places: None,
            room: Room::new(known),
        };
        for (index, level) in initial.iter().enumerate() {
            let level = level.filter(|level| *level <= known.limits.last_level());
            let is_kept = level.is_some_and(|level| known.is_kept(index, level));
            if !is_kept
                && has_order(&flows[index], known.limits)
                && !level.is_some_and(|level| placing.fits(index, level))
            {
                placing.wait(index);
            }
        }
        placing.unsettle()?;
        (placing.waiting.len().saturating_mul(flows.len()) <= MOST_COMPARED).then_some(placing)
    }

    /// Places all flows that wait.
    fn finish(mut self) -> Option<Levels> {
        let waiting: Vec<usize> = self.waiting.iter().map(|Reverse((_, index))| *index).collect();
        if waiting.len() > FEW {
            self.known.make_fronts();
        } else if self.asked.is_empty() {
            self.asked = self.known.levels_of(&waiting);
        }
        while let Some(Reverse((_, index))) = self.waiting.pop() {
            self.place(index)?;
        }
        let there = |(index, level): (usize, &u16)| {
            self.known.same.get(index).filter(|_| self.known.is_kept(index, *level))
        };
        let kept = self.levels.iter().enumerate().map(there).collect();
        Some(Levels { kept, levels: self.levels })
    }

    fn wait(&mut self, index: usize) {
        self.is_placed[index] = false;
        self.waiting.push(Reverse((Rank::of(&self.known.digests[index]), index)));
    }

    /// Has those flows wait whose old levels contradict the new order. Only flows of unlike priorities are
    /// compared whose levels do not have the same order already.
    fn unsettle(&mut self) -> Option<()> {
        let Known { digests, limits, .. } = *self.known;
        let group = |(index, flow): (usize, &FlowDigest)| {
            let is_compared = self.is_placed[index] && has_order(flow, limits);
            is_compared.then(|| (Rank::of(flow), self.levels[index]))
        };
        self.groups = Runs::of(digests.iter().enumerate().map(group));
        let keys = self.groups.keys();
        for (place, above) in keys.iter().enumerate() {
            for below in &keys[place + 1..] {
                if above.0.distance(below.0).is_none_or(|least| below.1 >= above.1 + least) {
                    continue;
                }
                self.compared += self.settled(*above).count() * self.settled(*below).count();
                if self.compared > MOST_COMPARED {
                    return None;
                }
                self.known.make_fronts();
                let contradicts =
                    |second: &usize| self.settled(*above).any(|first| self.overlap(first, *second));
                let unsettled: Vec<usize> = self.settled(*below).filter(contradicts).collect();
                unsettled.into_iter().for_each(|index| self.wait(index));
            }
        }
        Some(())
    }

    /// The flows of a group that are placed, at its level.
    fn settled(&self, group: (Rank, u16)) -> impl Iterator<Item = usize> {
        let is_settled = move |index: &usize| self.is_placed[*index] && self.levels[*index] == group.1;
        self.groups.of_key(group).filter(is_settled)
    }

    fn overlap(&self, one: usize, other: usize) -> bool {
        if self.known.front(one).is_apart(&self.known.front(other)) {
            return false;
        }
        let cube = |flow: usize| self.known.new.flows[flow].cube();
        cube(one).zip(cube(other)).is_some_and(|(one, other)| one.overlaps(other))
    }

    /// Gives a flow the highest level below all those that it must follow, and has those wait that must
    /// follow it and do not.
    fn place(&mut self, index: usize) -> Option<()> {
        self.compared += self.levels.len();
        if self.compared > MOST_COMPARED {
            return None;
        }
        let (own, groups) = (Rank::of(&self.known.digests[index]), self.groups.keys());
        let mut least = 0;
        for &(there, level) in groups.iter().rev() {
            let below = there.distance(own).map_or(0, |distance| level + distance);
            if below > least && self.settled((there, level)).any(|other| self.overlap(other, index)) {
                least = below;
            }
        }
        let level = (least..=self.known.limits.last_level()).find(|level| self.fits(index, *level))?;
        let must_move =
            |(there, at): &&(Rank, u16)| own.distance(*there).is_some_and(|distance| *at < level + distance);
        let behind = groups.iter().filter(must_move).flat_map(|group| self.settled(*group));
        let waiting: Vec<usize> = behind.filter(|other| self.overlap(index, *other)).collect();
        waiting.into_iter().for_each(|other| self.wait(other));
        self.levels[index] = level;
        self.is_placed[index] = true;
        self.groups.add((own, level), index);
        Some(())
    }

    /// Whether the flow can have that level; takes its place there.
    fn fits(&mut self, index: usize, level: u16) -> bool {
        self.known.is_kept(index, level) || (self.is_free(index, level) && self.room.take(index, level))
    }

    /// Whether the old program has no flow of this match at the level.
    fn is_free(&mut self, index: usize, level: u16) -> bool {
        let known = self.known;
        let matches = known.digests[index].matches;
        if let Some((_, levels)) = self.asked.iter().find(|(asked, _)| *asked == index) {
            return !levels.contains(&level);
        }
        if self.asked.len() == FEW {
            return !self.places.get_or_insert_with(|| known.places().collect()).contains(&(matches, level));
        }
        self.asked.extend(known.levels_of(&[index]));
        self.asked.last().is_none_or(|(_, levels)| !levels.contains(&level))
    }
}

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

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use device_model::LazyFill;
use foldhash::{HashMap, HashMapExt as _, HashSet};
use program::{Correspondence, Flow, FlowFront, FlowKind, Program, SpecChain};

use super::PlacedProgram;
use super::runs::Runs;
use crate::Limits;

/// The most pairs of flows that are compared. Beyond it, the levels are the compiler's priorities: each flow
/// that is placed beside others is compared with all of them.
const MOST_COMPARED: usize = 1 << 28;

/// The number of matches whose old levels are found by looking at the flows themselves; for more, all are put
/// into a table.
const FEW: usize = 8;

/// The parts of a flow that a device compares.
pub(super) type MatchKey<'p> = (FlowKind, &'p SpecChain);

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
    new: &Program,
    common: Option<&Correspondence<'_>>,
    limits: &Limits,
    strategy: Strategy,
) -> Option<Levels> {
    let Some((old, common)) = old.zip(common) else {
        let base = first_level(new, limits);
        let levels = new.flows.iter().map(|flow| level_of(base, flow)).collect();
        return Some(Levels { levels, kept: vec![None; new.flows.len()] });
    };
    let known = Known::of(old, new, common, limits);
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
fn level_of(base: u16, flow: &Flow) -> u16 {
    if flow.kind == FlowKind::Sniffer { 0 } else { base.saturating_add(flow.priority) }
}

/// Whether the device looks at the flow's priority.
pub(super) fn has_order(flow: &Flow, limits: &Limits) -> bool {
    flow.kind != FlowKind::Sniffer && !(limits.multicast_ignores_priority && flow.is_multicast_only())
}

/// The part of a flow on which its level depends. Each flow that is placed is compared with all others.
#[derive(Clone, Copy, Default)]
struct Facts {
    front: FlowFront,
    rank: Rank,
    is_ordered: bool,
    is_sent: bool,
}

impl Facts {
    fn of(flow: &Flow, limits: &Limits) -> Self {
        Self {
            front: flow.front(),
            rank: (flow.priority, flow.kind != FlowKind::Copy),
            is_ordered: has_order(flow, limits),
            is_sent: flow.kind == FlowKind::Egress,
        }
    }

    /// Returns how many levels the other flow must be below this one if they share packets; `None`: any
    /// number, above included. This one must not come after the other by its rank.
    fn distance(&self, other: &Self) -> Option<u16> {
        let ((priority, takes), (other_priority, other_takes)) = (self.rank, other.rank);
        match (takes, other_takes) {
            _ if self.is_sent != other.is_sent || self.front.is_apart(&other.front) => None,
            // Of one priority, copies are made first.
            (false, true) => Some(0),
            // A device may make one copy of a packet for each priority.
            _ => (priority < other_priority).then_some(1),
        }
    }
}

/// The priority of the program, and whether the flow takes the packet: the order in which levels are given.
/// The level of a flow depends on those before it only. Of one priority, copies are made first.
type Rank = (u16, bool);

/// What the old and the new flows have in common.
struct Known<'p> {
    old: &'p PlacedProgram<'p>,
    new: &'p Program,
    limits: &'p Limits,
    /// By new flow, the old one of the same match and action.
    same: Vec<Option<usize>>,
    /// The facts by new flow, which are read often; the flows themselves are not in the cache.
    facts: Vec<Facts>,
}

impl<'p> Known<'p> {
    fn of(
        old: &'p PlacedProgram<'p>,
        new: &'p Program,
        common: &Correspondence<'_>,
        limits: &'p Limits,
    ) -> Self {
        let mut same = vec![None; new.flows.len()];
        let mut facts = vec![Facts::default(); new.flows.len()];
        let mut is_used = vec![false; old.program.flows.len()];
        let mut pair = |of_old: usize, of_new: usize| {
            let (before, after) = (&old.program.flows[of_old], &new.flows[of_new]);
            facts[of_new] = Facts::of(after, limits);
            let is_same = before.match_key() == after.match_key() && common.is_same_action(before, after);
            if is_same {
                is_used[of_old] = true;
                same[of_new] = Some(of_old);
            }
            is_same
        };
        // Most flows stand between the same two as before.
        let shorter = old.program.flows.len().min(new.flows.len());
        let from_start = (0..shorter).take_while(|index| pair(*index, *index)).count();
        let (of_old, of_new) = (old.program.flows.len(), new.flows.len());
        let from_end =
            (1..=shorter - from_start).take_while(|back| pair(of_old - back, of_new - back)).count();
        let (olds, news) = (from_start..of_old - from_end, from_start..of_new - from_end);
        let mut by_match: HashMap<MatchKey<'p>, Vec<usize>> = HashMap::new();
        for index in olds {
            by_match.entry(old.program.flows[index].match_key()).or_default().push(index);
        }
        for index in news {
            let candidates = by_match.get(&new.flows[index].match_key()).into_iter().flatten();
            let mut free = candidates.copied().filter(|candidate| !is_used[*candidate]);
            let flow = &new.flows[index];
            facts[index] = Facts::of(flow, limits);
            let found = free.find(|candidate| common.is_same_action(&old.program.flows[*candidate], flow));
            if let Some(found) = found {
                is_used[found] = true;
                same[index] = Some(found);
            }
        }
        Self { old, new, limits, same, facts }
    }

    /// The old flows at a level.
    fn at(&self, level: u16) -> impl Iterator<Item = &'p Flow> {
        let there = self.old.program.flows.iter().zip(self.old.levels);
        there.filter(move |(_, of)| **of == level).map(|(flow, _)| flow)
    }

    /// The levels at which the old program has flows of the match of each of these new flows.
    fn levels_of(&self, asked: &[usize]) -> Vec<(usize, Vec<u16>)> {
        let key = |index: &usize| self.new.flows[*index].match_key();
        let mut found: Vec<(usize, Vec<u16>)> = asked.iter().map(|index| (*index, Vec::new())).collect();
        let keys: Vec<MatchKey<'_>> = asked.iter().map(key).collect();
        for (flow, level) in self.old.program.flows.iter().zip(self.old.levels) {
            let same = found.iter_mut().zip(&keys).filter(|(_, key)| **key == flow.match_key());
            same.for_each(|((_, levels), _)| levels.push(*level));
        }
        found
    }

    /// The matches of the old program with their levels.
    fn places(&self) -> HashSet<(MatchKey<'p>, u16)> {
        let there = self.old.program.flows.iter().zip(self.old.levels);
        there.map(|(flow, level)| (flow.match_key(), *level)).collect()
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
        let level = |(flow, same): (&Flow, &Option<usize>)| match (strategy, same) {
            // Most flows are these: they are not looked at.
            (Strategy::Keep, Some(old)) => Some(self.old.levels[*old]),
            (_, Some(old)) if !has_order(flow, self.limits) => Some(self.old.levels[*old]),
            (_, None) if !has_order(flow, self.limits) => Some(level_of(0, flow)),
            (Strategy::Keep, None) => None,
            (Strategy::From(base), _) => Some(level_of(base, flow)),
            (Strategy::Apart, _) => free.get(usize::from(flow.priority)).copied(),
        };
        self.new.flows.iter().zip(&self.same).map(level).collect()
    }

    /// Whether the flow is on the device, at that level.
    fn is_kept(&self, index: usize, level: u16) -> bool {
        self.same[index].is_some_and(|old| self.old.levels[old] == level)
    }
}

/// The old flows of each level, as a device with small tables holds them, and those that come beside them.
struct Room<'k, 'p> {
    known: &'k Known<'p>,
    tables: HashMap<(FlowKind, u16), LazyFill<&'p Flow, u64>>,
}

impl<'k, 'p> Room<'k, 'p> {
    fn new(known: &'k Known<'p>) -> Self {
        Self { known, tables: HashMap::new() }
    }

    /// Takes a place in a level; false: there is none.
    fn take(&mut self, flow: &'p Flow, level: u16) -> bool {
        let Known { old, limits, .. } = *self.known;
        let Some(table) = limits.priority_table.filter(|_| has_order(flow, limits)) else { return true };
        let at_level = || old.levels.iter().filter(|of| **of == level).count();
        let fill = self.tables.entry((flow.kind, level)).or_insert_with(|| LazyFill::new(table, at_level()));
        let there = self.known.at(level).filter(|known| known.kind == flow.kind && has_order(known, limits));
        fill.add(flow, |flow| flow.specs.mask_digest(), there)
    }
}

/// Flows that have a level, and those that wait for one.
struct Placing<'k, 'p> {
    known: &'k Known<'p>,
    levels: Vec<u16>,
    is_placed: Vec<bool>,
    waiting: BinaryHeap<Reverse<(Rank, usize)>>,
    compared: usize,
    /// A few of the flows that wait, with the old levels of their matches.
    asked: Vec<(usize, Vec<u16>)>,
    places: Option<HashSet<(MatchKey<'p>, u16)>>,
    room: Room<'k, 'p>,
}

impl<'k, 'p> Placing<'k, 'p> {
    /// Begins with these levels. Flows wait that cannot have theirs, or have none. `None`: too many do.
    fn of(known: &'k Known<'p>, initial: &[Option<u16>]) -> Option<Self> {
        let flows = &known.new.flows;
        let mut placing = Self {
            known,
            levels: initial.iter().map(|level| level.unwrap_or(0)).collect(),
            is_placed: vec![true; flows.len()],
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
                && known.facts[index].is_ordered
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
        if self.asked.is_empty() && waiting.len() <= FEW {
            self.asked = self.known.levels_of(&waiting);
        }
        while let Some(Reverse((_, index))) = self.waiting.pop() {
            self.place(index)?;
        }
        let there = |(index, level): (usize, &u16)| {
            self.known.same[index].filter(|_| self.known.is_kept(index, *level))
        };
        let kept = self.levels.iter().enumerate().map(there).collect();
        Some(Levels { kept, levels: self.levels })
    }

    fn wait(&mut self, index: usize) {
        self.is_placed[index] = false;
        self.waiting.push(Reverse((self.known.facts[index].rank, index)));
    }

    /// Has those flows wait whose old levels contradict the new order. Only flows of unlike priorities are
    /// compared whose levels do not have the same order already.
    fn unsettle(&mut self) -> Option<()> {
        let group = |(index, facts): (usize, &Facts)| {
            let is_compared = self.is_placed[index] && facts.is_ordered;
            is_compared.then(|| (facts.rank, facts.is_sent, self.levels[index]))
        };
        let facts = &self.known.facts;
        let groups = Runs::of(facts.iter().enumerate().map(group));
        let keys = groups.keys();
        for (place, above) in keys.iter().enumerate() {
            for below in &keys[place + 1..] {
                let ((above_rank, ..), (below_rank, ..)) = (above, below);
                let is_behind_copy = !above_rank.1 && below_rank.1;
                let least = u16::from(!is_behind_copy && above_rank.0 < below_rank.0);
                if below.2 >= above.2 + least {
                    continue;
                }
                let count = |key| groups.of_key(key).filter(|index| self.is_placed[*index]).count();
                self.compared += count(above) * count(below);
                if self.compared > MOST_COMPARED {
                    return None;
                }
                let placed = |key| groups.of_key(key).filter(|index| self.is_placed[*index]);
                let contradicts = |first: usize, second: usize, of_second: &Facts| {
                    let distance = facts[first].distance(of_second);
                    distance.is_some_and(|least| below.2 < above.2 + least) && self.overlap(first, second)
                };
                let is_unsettled = |second: &usize| {
                    let of_second = &facts[*second];
                    placed(above).any(|first| contradicts(first, *second, of_second))
                };
                let unsettled: Vec<usize> = placed(below).filter(is_unsettled).collect();
                unsettled.into_iter().for_each(|index| self.wait(index));
            }
        }
        Some(())
    }

    fn overlap(&self, one: usize, other: usize) -> bool {
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
        let known = self.known;
        let facts = &known.facts[index];
        let place = (facts.rank, index);
        let mut least = 0;
        let mut later = Vec::new();
        for (other, there) in known.facts.iter().enumerate() {
            if !self.is_placed[other] || !there.is_ordered || other == index {
                continue;
            }
            if (there.rank, other) < place {
                let distance = there.distance(facts).filter(|distance| self.levels[other] + distance > least);
                if let Some(distance) = distance.filter(|_| self.overlap(other, index)) {
                    least = self.levels[other] + distance;
                }
            } else if let Some(distance) = facts.distance(there) {
                later.push((other, distance));
            }
        }
        let level = (least..=self.known.limits.last_level()).find(|level| self.fits(index, *level))?;
        self.levels[index] = level;
        self.is_placed[index] = true;
        for (other, distance) in later {
            if self.levels[other] < level + distance && self.overlap(index, other) {
                self.wait(other);
            }
        }
        Some(())
    }

    /// Whether the flow can have that level; takes its place there.
    fn fits(&mut self, index: usize, level: u16) -> bool {
        let flow = &self.known.new.flows[index];
        self.known.is_kept(index, level) || (self.is_free(index, level) && self.room.take(flow, level))
    }

    /// Whether the old program has no flow of this match at the level.
    fn is_free(&mut self, index: usize, level: u16) -> bool {
        let known = self.known;
        let key = known.new.flows[index].match_key();
        if let Some((_, levels)) = self.asked.iter().find(|(asked, _)| *asked == index) {
            return !levels.contains(&level);
        }
        if self.asked.len() == FEW {
            return !self.places.get_or_insert_with(|| known.places()).contains(&(key, level));
        }
        self.asked.extend(known.levels_of(&[index]));
        self.asked.last().is_none_or(|(_, levels)| !levels.contains(&level))
    }
}

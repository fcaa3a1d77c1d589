//! Rules that leave packets to the kernel. No flow has the action "to the kernel": a packet stays there if it
//! matches no flow at all. So the cubes of such a rule, the *exceptions*, are subtracted from the flows of
//! every later rule, which are split into pieces around them. Where no flow can match a piece, or there are
//! too many, the rule keeps flows of its own for the packets that later flows would match, and a worker
//! receives these packets.
//!
//! Why the result is right: rules are handled last to first, so when a rule subtracts its exceptions, all
//! flows of later rules are there, the flows that later exceptions keep included. Each of these flows that
//! overlaps an exception is either replaced by disjoint pieces that together match the flow without the
//! exception, or stays and the exception is kept as a flow that precedes it. Earlier rules precede the
//! exception and are not touched.

mod pieces;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Index, IndexMut, Range};

use device_model::DeviceModel;
use policy::policy::{Action, Direction};
use program::{Exception, Feature, Inseparable, RuleId, UndecidedKey, UndecidedReason};

use crate::cover::legalize::{is_multicast_only, matchable, no_tags, without_group_bit};
use crate::cover::{CoveredRule, MAX_PAIRS_OF_CUBES, common, everything};
use crate::cube::{Cube, LAYERS, Slot};
use crate::job::Job;
use crate::mask_index::MaskIndex;

use pieces::{
    around, bits_beyond, can_be_matched, fields, has_any_ports, indistinguishable, missing_header,
    port_halves,
};

/// The most flows by which a rule keeps only a part of one of its cubes; with more it keeps the cube whole.
const MAX_PARTS: usize = 8;
/// The most pieces that exceptions may add to one rule.
const MAX_ADDED_TO_RULE: usize = 1 << 12;
/// The most pieces that they may add to a program: each may be a flow for every hash variant.
const MAX_ADDED: usize = 1 << 14;
/// The most pieces around packets without ports. These are subtracted from a flow once, as a dozen pieces,
/// whatever ports exceptions match.
const MAX_NO_PORTS: usize = 1 << 16;
/// The most pieces that are tried for a program, those included that no flow can match.
const MAX_TRIALS: usize = 1 << 18;

/// The packets that are subtracted from flows, and what the flows match then.
#[derive(Default)]
pub(crate) struct Exceptions {
    /// The cubes of flows that are not the cubes of the rule, by rule, the default's at the end. Rules that
    /// leave packets to the kernel have what they keep here.
    cubes: BTreeMap<RuleId, Vec<Cube>>,
    left: BTreeMap<RuleId, LeftOut>,
    /// The rules that keep flows which match more than their packets: a worker decides these.
    coarse: BTreeSet<RuleId>,
    /// Whether some flow is not a cube of its rule.
    pub(crate) has_split: bool,
}

/// The result of subtracting one rule.
#[derive(Default)]
struct LeftOut {
    /// The rules whose flows were split.
    of: BTreeSet<RuleId>,
    /// How many more they have for it.
    pieces: usize,
    /// The first later rule whose flows could not be split, and why.
    kept_for: Option<(RuleId, Inseparable)>,
    /// Whether it keeps flows for all that it covers.
    is_whole: bool,
}

impl Exceptions {
    /// The cubes of a rule's flows; `None`: all that the default is about.
    pub(crate) fn flow_cubes<'c>(&'c self, rules: &'c [CoveredRule], rule: RuleId) -> Option<&'c [Cube]> {
        let own = self.cubes.get(&rule).or_else(|| Some(&rules.get(rule.index())?.expansion.cubes));
        own.map(Vec::as_slice)
    }

    /// The cubes of the flows that a rule has on the device.
    fn cubes_on_device<'c>(&'c self, rules: &'c [CoveredRule], index: usize) -> &'c [Cube] {
        match rules[index].decides() || rules[index].copies() {
            true => self.flow_cubes(rules, RuleId::of(index)).unwrap_or_default(),
            false => &[],
        }
    }

    /// Whether a rule that leaves packets to the kernel needs no flow for it.
    pub(crate) fn needs_no_flow(&self, rule: RuleId) -> bool {
        self.cubes.get(&rule).is_none_or(Vec::is_empty)
    }

    /// Whether the flows that a rule keeps match more than its packets.
    pub(crate) fn is_coarse(&self, rule: RuleId) -> bool {
        self.coarse.contains(&rule)
    }

    /// Why a worker must receive packets of a rule that would leave them to the kernel.
    pub(crate) fn note(&self, rule: RuleId) -> Option<UndecidedKey> {
        let (by, inseparable) = self.left.get(&rule)?.kept_for?;
        let why = UndecidedReason::KernelException { by, inseparable };
        Some(UndecidedKey { key: "kernel".to_owned(), why })
    }

    /// The rules that leave packets to the kernel without a flow, or without one for all that they match.
    pub(crate) fn list(&self, rules: &[CoveredRule]) -> Vec<Exception> {
        let exceptions = self.left.iter().filter(|(_, left)| !left.is_whole).filter_map(|(rule, left)| {
            let step = rules.get(rule.index())?.step(*rule);
            Some(Exception {
                rule: step.rule,
                predicate: step.predicate,
                outcome: step.outcome,
                left_out_of: left.of.iter().copied().collect(),
                // Far fewer than 2^32.
                pieces: left.pieces as u32,
            })
        });
        exceptions.collect()
    }
}

/// Subtracts exceptions from flows, lists what else a worker must receive, and widens flows that the device
/// would apply out of order. `may_split`: whether flows may be split for exceptions.
pub(crate) fn subtract(
    job: &Job<'_>,
    mut rules: Vec<CoveredRule>,
    may_split: bool,
) -> (Vec<CoveredRule>, Exceptions) {
    let profile = job.profile;
    // Wider flows overlap more exceptions. Each round widens at least one rule for good, so this ends.
    let exceptions = loop {
        let exceptions = subtract_exceptions(job, &rules, may_split);
        if !profile.multicast_ignores_priority || !widen_multicast(job, &mut rules, &exceptions) {
            break exceptions;
        }
    };
    for (index, rule) in rules.iter_mut().enumerate().filter(|(_, rule)| rule.decides()) {
        let index = RuleId::of(index);
        let has_flow = rule.action != Action::Kernel || !exceptions.needs_no_flow(index);
        if !profile.has_tags() && has_flow {
            rule.notes.push(no_tags(profile));
        }
        if rule.action == Action::Drop
            && let Some(refusal) = profile.refusal(Feature::Drop).filter(|_| profile.has_tags())
        {
            let why = UndecidedReason::Refused { feature: Feature::Drop, errno: refusal.errno };
            rule.notes.push(UndecidedKey { key: "drop".to_owned(), why });
        }
        match exceptions.note(index) {
            Some(note) if exceptions.is_coarse(index) => rule.widen(note, |cube| matchable(cube, profile)),
            note => rule.notes.extend(note),
        }
    }
    (rules, exceptions)
}

/// Widens flows that match only multicast. Some devices apply such a flow after all others, whatever its
/// priority. Where that would be wrong, the flow is widened to unicast and a worker decides. Returns whether
/// a rule was widened.
fn widen_multicast(job: &Job<'_>, rules: &mut [CoveredRule], exceptions: &Exceptions) -> bool {
    let has_flows: Vec<bool> =
        (0..rules.len()).map(|index| !exceptions.cubes_on_device(rules, index).is_empty()).collect();
    let is_late = |index: &usize| {
        rules[*index].decides() && exceptions.cubes_on_device(rules, *index).iter().any(is_multicast_only)
    };
    let mut late: BTreeSet<usize> = (0..rules.len()).filter(is_late).collect();
    // A rule that keeps wide flows for its packets overtakes by these, even if its own cubes do not overlap.
    let coarse: Vec<usize> = exceptions.coarse.iter().map(|rule| rule.index()).collect();
    let meets_coarse = |rules: &[CoveredRule], index: usize| {
        let own = exceptions.cubes_on_device(rules, index);
        let mut later = coarse
            .iter()
            .filter(|other| **other > index)
            .map(|other| exceptions.cubes_on_device(rules, *other));
        later.any(|wide| {
            // As in `CoveredRule::meets`.
            own.len().saturating_mul(wide.len()) > MAX_PAIRS_OF_CUBES
                || own.iter().any(|cube| wide.iter().any(|wide| cube.overlaps(wide)))
        })
    };
    let mut widened = Vec::new();
    for index in late.clone() {
        let is_overtaken = (0..rules.len()).any(|other| {
            let matters = (other > index && has_flows[other]) || late.contains(&other);
            other != index && matters && rules[other].meets(&rules[index])
        });
        if job.policy.default != Action::Kernel || is_overtaken || meets_coarse(rules, index) {
            late.remove(&index);
            widened.push(index);
            widen(&mut rules[index]);
        }
    }
    let any = !widened.is_empty();
    // A widened flow may overtake an earlier late one in turn.
    while let Some(index) = widened.pop() {
        let meets = |other: &usize| rules[index].meets(&rules[*other]);
        for other in late.range(..index).copied().filter(meets).collect::<Vec<_>>() {
            late.remove(&other);
            widened.push(other);
            widen(&mut rules[other]);
        }
    }
    any
}

fn widen(rule: &mut CoveredRule) {
    rule.widen(
        UndecidedKey { key: "dst_mac".to_owned(), why: UndecidedReason::Multicast },
        without_group_bit,
    );
}

fn subtract_exceptions(job: &Job<'_>, rules: &[CoveredRule], may_split: bool) -> Exceptions {
    let Some(first) = rules.iter().position(leaves_to_kernel) else { return Exceptions::default() };
    let exceptions = rules.iter().filter(|rule| leaves_to_kernel(rule));
    let mut subtraction = Subtraction {
        profile: job.profile,
        may_split,
        fields: fields(exceptions.flat_map(|rule| &rule.expansion.cubes)),
        flows: Flows::default(),
        budget: Budget::new(job.profile, rules),
        made: Exceptions::default(),
        done: Vec::new(),
    };
    if job.policy.default != Action::Kernel {
        everything().into_iter().for_each(|cube| subtraction.flows.add(RuleId::of(rules.len()), cube));
    }
    for (index, rule) in rules.iter().enumerate().skip(first).rev() {
        let id = RuleId::of(index);
        if leaves_to_kernel(rule) {
            subtraction.subtract(id, rule);
        } else if rule.decides() || rule.copies() {
            rule.expansion.cubes.iter().for_each(|cube| subtraction.flows.add(id, *cube));
        }
    }
    subtraction.finish()
}

fn leaves_to_kernel(rule: &CoveredRule) -> bool {
    rule.action == Action::Kernel && rule.direction == Direction::Ingress
}

/// The subtraction for one policy, last rule first: at each rule, the flows are those of the rules after it.
struct Subtraction<'p> {
    profile: &'p DeviceModel,
    may_split: bool,
    /// In the order in which cubes are split by them.
    fields: Vec<Slot>,
    flows: Flows,
    budget: Budget,
    made: Exceptions,
    /// Splits in the order in which they were made.
    done: Vec<Done>,
}

/// A flow's cube without a hole, which is one cube of an exception.
struct Split {
    flow: FlowId,
    cost: Cost,
    pieces: Vec<Cube>,
}

/// One that was made.
struct Done {
    flow: FlowId,
    cost: Cost,
    /// Among the flows.
    pieces: Range<usize>,
}

impl Subtraction<'_> {
    /// Subtracts what one rule matches from all flows so far, or keeps flows for it.
    fn subtract(&mut self, id: RuleId, rule: &CoveredRule) {
        let holes = &rule.expansion.cubes;
        let mut left = LeftOut::default();
        // Packets without ports come first: once they are subtracted from a flow, the rest has the headers
        // that the other cubes match.
        let no_ports = holes.iter().take_while(|hole| hole.has_unmatchable_absence()).count();
        let mut kept: Vec<Vec<Cube>> = Vec::with_capacity(holes.len());
        // Flows that the rule keeps for packets without ports. They match those with ports as well, whose
        // subtraction would be in vain.
        let mut coarse = MaskIndex::default();
        for part in [0..no_ports, no_ports..holes.len()] {
            let (before, mut tried) = (self.done.len(), LeftOut::default());
            for hole in &holes[part.clone()] {
                if coarse.is_contained(hole, usize::MAX, &mut 0) {
                    kept.push(vec![*hole]);
                    continue;
                }
                kept.push(self.subtract_cube(hole, !rule.is_hybrid(), &mut tried));
                if tried.is_over_budget() {
                    // As if none of this part had been tried; the other part is tried all the same.
                    self.undo(before);
                    tried = LeftOut { kept_for: tried.kept_for, ..LeftOut::default() };
                    kept.truncate(part.start);
                    kept.extend(holes[part.clone()].iter().map(|hole| self.whole_if_met(hole)));
                    for (entry, cube) in
                        kept.iter().flatten().filter(|cube| cube.has_unmatchable_absence()).enumerate()
                    {
                        coarse.add(&matchable(cube, self.profile), true, entry, 0);
                    }
                    break;
                }
            }
            left.add(tried);
        }
        left.is_whole = kept.iter().zip(holes).all(|(kept, hole)| *kept == [*hole]);
        let mut kept = kept.concat();
        for cube in kept.iter_mut().filter(|cube| cube.has_unmatchable_absence()) {
            *cube = matchable(cube, self.profile);
            self.made.coarse.insert(id);
        }
        self.made.has_split |= !kept.is_empty() && kept != *holes;
        kept.iter().for_each(|cube| self.flows.add(id, *cube));
        self.made.cubes.insert(id, kept);
        self.made.left.insert(id, left);
    }

    /// Subtracts one cube. Returns what of it must be a flow of its own.
    fn subtract_cube(&mut self, hole: &Cube, is_exact: bool, left: &mut LeftOut) -> Vec<Cube> {
        let met = self.matching_flows(hole);
        let (mut open, mut stay): (Vec<FlowId>, Vec<FlowId>) =
            met.into_iter().partition(|flow| self.is_open(*flow, hole, is_exact, left));
        let mut parts = self.parts(hole, &stay);
        if parts == [*hole] {
            return parts;
        }
        // Those of one rule as they were made.
        open.sort_unstable_by_key(|flow| (self.flows[*flow].rule, *flow));
        let more = open.iter().map(|flow| self.cost(*flow, hole).more).sum();
        if let Some(first) = open.first()
            && let Err(inseparable) = self.budget.holds(Cost { more, ..self.cost(*first, hole) })
        {
            left.keep_for(self.flows[*first].rule, inseparable);
            return vec![*hole];
        }
        let mut splits = Vec::new();
        for flow in open {
            // If one flow makes the rule keep the whole hole, splitting the others gains nothing.
            if parts == [*hole] {
                break;
            }
            match self.split(flow, hole) {
                Ok(split) => splits.push(split),
                Err(inseparable) => {
                    left.keep_for(self.flows[flow].rule, inseparable);
                    stay.push(flow);
                    parts = self.parts(hole, &stay);
                }
            }
        }
        let is_whole = parts == [*hole];
        for split in splits {
            match is_whole {
                true => self.budget.give_back(split.cost),
                false => self.make(split, left),
            }
        }
        parts
    }

    fn whole_if_met(&mut self, hole: &Cube) -> Vec<Cube> {
        let is_met = match indistinguishable(hole, self.profile) {
            None => self.flows.any_overlaps(hole),
            Some(_) => !self.matching_flows(hole).is_empty(),
        };
        if is_met { vec![*hole] } else { Vec::new() }
    }

    /// The flows that match packets of the hole. On a device that does not check for a header when any port
    /// matches, these are more than those whose cubes overlap it.
    fn matching_flows(&mut self, hole: &Cube) -> Vec<FlowId> {
        let mut met = self.flows.overlapping(hole);
        for alike in indistinguishable(hole, self.profile).into_iter().flatten() {
            let others = self.flows.overlapping(&alike);
            met.extend(others.into_iter().filter(|flow| has_any_ports(&self.flows[*flow].cube)));
        }
        met
    }

    /// Whether the hole may be subtracted from the flow, as far as that is known without trying.
    fn is_open(&self, flow: FlowId, hole: &Cube, is_exact: bool, left: &mut LeftOut) -> bool {
        let Flow { rule, cube, .. } = &self.flows[flow];
        let inseparable = match missing_header(cube, hole) {
            _ if !is_exact => Inseparable::Inexact,
            Err(inseparable) => inseparable,
            Ok(()) if !self.may_split => Inseparable::NoCapacity,
            Ok(()) => return true,
        };
        left.keep_for(*rule, inseparable);
        false
    }

    /// The flow's cube without the hole.
    fn split(&mut self, flow: FlowId, hole: &Cube) -> Result<Split, Inseparable> {
        let cube = &self.flows[flow].cube;
        let cost = self.cost(flow, hole);
        self.budget.take(cost)?;
        let pieces = match cube.overlaps(hole) {
            true => around(cube, hole, &self.fields),
            false => port_halves(cube, &self.fields),
        };
        let matchable = pieces.iter().try_for_each(|piece| can_be_matched(piece, cube, self.profile));
        if matchable.is_err() {
            self.budget.give_back(cost);
        }
        matchable.map(|()| Split { flow, cost, pieces })
    }

    /// The cost of subtracting a hole from a flow.
    fn cost(&self, flow: FlowId, hole: &Cube) -> Cost {
        let Flow { rule, cube, .. } = &self.flows[flow];
        let more = match cube.overlaps(hole) {
            true => bits_beyond(hole, cube).saturating_sub(1),
            false => 1,
        };
        Cost { rule: *rule, more, no_ports: hole.has_unmatchable_absence() }
    }

    fn make(&mut self, Split { flow, cost, pieces }: Split, left: &mut LeftOut) {
        let rule = self.flows[flow].rule;
        left.of.insert(rule);
        left.pieces += pieces.len().saturating_sub(1);
        self.flows[flow].lives = false;
        let first = self.flows.list.len();
        pieces.into_iter().for_each(|piece| self.flows.add(rule, piece));
        self.done.push(Done { flow, cost, pieces: first..self.flows.list.len() });
        self.made.cubes.entry(rule).or_default();
        self.made.has_split = true;
    }

    /// Takes back all but the first splits.
    fn undo(&mut self, first: usize) {
        for Done { flow, cost, pieces } in self.done.split_off(first).into_iter().rev() {
            self.flows.list[pieces].iter_mut().for_each(|piece| piece.lives = false);
            self.flows[flow].lives = true;
            self.budget.give_back(cost);
        }
    }

    /// The parts of a hole that unsplit flows match: a few, or the whole.
    fn parts(&self, hole: &Cube, stay: &[FlowId]) -> Vec<Cube> {
        if stay.is_empty() {
            return Vec::new();
        }
        let whole = || vec![*hole];
        let rules = stay.iter().map(|flow| self.flows[*flow].rule);
        if !self.may_split || !are_few(rules.clone()) {
            return whole();
        }
        let mut takers: Vec<Cube> = stay.iter().map(|flow| self.flows[*flow].cube).collect();
        if !takers.iter().all(|taker| taker.overlaps(hole)) {
            return whole();
        }
        if takers.len() > MAX_PARTS {
            // The common bits of the flows of one rule with equal headers contain each flow, and less than
            // the whole.
            let mut alike: BTreeMap<_, Vec<Cube>> = BTreeMap::new();
            for (rule, cube) in rules.zip(takers) {
                alike.entry((rule, LAYERS.map(|layer| cube.has(layer)))).or_default().push(cube);
            }
            takers = alike.values().map(|cubes| common(cubes)).collect();
        }
        if takers.len() > MAX_PARTS {
            return whole();
        }
        let mut parts: Vec<Cube> = Vec::new();
        for part in takers.iter().filter_map(|taker| hole.and(taker)) {
            if can_be_matched(&part, hole, self.profile).is_err() {
                return whole();
            }
            if !parts.iter().any(|other| other.contains(&part)) {
                parts.retain(|other| !part.contains(other));
                parts.push(part);
            }
        }
        parts
    }

    /// Collects what is left of the flows that were split, and what rules keep.
    fn finish(mut self) -> Exceptions {
        self.made.cubes.values_mut().for_each(Vec::clear);
        for flow in self.flows.list.iter().filter(|flow| flow.lives) {
            if let Some(cubes) = self.made.cubes.get_mut(&flow.rule) {
                cubes.push(flow.cube);
            }
        }
        self.made
    }
}

/// Whether these are at most [`MAX_PARTS`] different rules.
fn are_few(rules: impl Iterator<Item = RuleId>) -> bool {
    let mut different = BTreeSet::new();
    rules.into_iter().all(|rule| {
        different.insert(rule);
        different.len() <= MAX_PARTS
    })
}

impl LeftOut {
    fn add(&mut self, other: Self) {
        self.of.extend(other.of);
        self.pieces += other.pieces;
        if let Some((rule, inseparable)) = other.kept_for {
            self.keep_for(rule, inseparable);
        }
    }

    /// Whether the pieces are more than there may be.
    fn is_over_budget(&self) -> bool {
        matches!(self.kept_for, Some((_, Inseparable::TooMany { .. })))
    }

    /// Notes the first rule for which a flow is kept; one whose pieces are too many precedes others.
    fn keep_for(&mut self, rule: RuleId, inseparable: Inseparable) {
        let is_costly = |inseparable: &Inseparable| matches!(inseparable, Inseparable::TooMany { .. });
        let goes_before =
            |(known, other): (RuleId, Inseparable)| match (is_costly(&inseparable), is_costly(&other)) {
                (true, true) | (false, false) => rule < known,
                (is_costly, _) => is_costly,
            };
        if self.kept_for.is_none_or(goes_before) {
            self.kept_for = Some((rule, inseparable));
        }
    }
}

/// The position of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FlowId(u32);

/// All cubes that become flows, those included that have been split.
#[derive(Default)]
struct Flows {
    list: Vec<Flow>,
    index: MaskIndex,
}

struct Flow {
    rule: RuleId,
    cube: Cube,
    /// Not split into pieces.
    lives: bool,
}

impl Index<FlowId> for Flows {
    type Output = Flow;

    fn index(&self, id: FlowId) -> &Flow {
        &self.list[id.0 as usize]
    }
}

impl IndexMut<FlowId> for Flows {
    fn index_mut(&mut self, id: FlowId) -> &mut Flow {
        &mut self.list[id.0 as usize]
    }
}

impl Flows {
    fn add(&mut self, rule: RuleId, cube: Cube) {
        self.index.add(&cube, true, self.list.len(), 0);
        self.list.push(Flow { rule, cube, lives: true });
    }

    /// In an order that depends on nothing but what was added.
    fn overlapping(&mut self, cube: &Cube) -> Vec<FlowId> {
        let mut found = Vec::new();
        self.index.overlapping(cube, &mut found);
        // Flows are far fewer than 2^32.
        found.into_iter().filter(|flow| self.list[*flow].lives).map(|flow| FlowId(flow as u32)).collect()
    }

    fn any_overlaps(&mut self, cube: &Cube) -> bool {
        let list = &self.list;
        self.index.any_overlapping(cube, |flow| list[flow].lives)
    }
}

/// The cost of one split.
#[derive(Clone, Copy)]
struct Cost {
    /// Whose flow is split.
    rule: RuleId,
    /// How many pieces the rule has more.
    more: usize,
    /// Whether the hole is of packets without ports.
    no_ports: bool,
}

/// How many pieces may still be added to flows.
struct Budget {
    /// The pieces that each rule has more, those around packets without ports not counted.
    added: Vec<usize>,
    /// Around packets with all their headers, and around those without ports.
    pieces: [usize; 2],
    /// The rules that copy.
    copies: Vec<bool>,
    /// Flows that copy, as far as there is room for them; `None`: the device has no known limit.
    copies_left: Option<usize>,
    /// Pieces that may still be tried, used or not.
    trials: usize,
}

impl Budget {
    fn new(profile: &DeviceModel, rules: &[CoveredRule]) -> Self {
        let copying = rules.iter().filter(|rule| rule.copies()).map(|rule| rule.expansion.cubes.len()).sum();
        Self {
            added: vec![0; rules.len() + 1],
            pieces: [0; 2],
            copies: rules.iter().map(CoveredRule::copies).chain([false]).collect(),
            copies_left: profile.copies_per_program().map(|most| most.saturating_sub(copying)),
            trials: MAX_TRIALS,
        }
    }

    /// Whether the program may have so many more pieces.
    fn holds(&self, cost: Cost) -> Result<(), Inseparable> {
        let (pieces, most) = self.in_all(cost);
        if pieces > most { Err(Inseparable::TooMany { pieces, most }) } else { Ok(()) }
    }

    fn in_all(&self, cost: Cost) -> (usize, usize) {
        let most = if cost.no_ports { MAX_NO_PORTS } else { MAX_ADDED };
        (self.pieces[usize::from(cost.no_ports)] + cost.more, most)
    }

    fn take(&mut self, cost: Cost) -> Result<(), Inseparable> {
        let Cost { rule, more, no_ports } = cost;
        let copies_left = self.copies_left.filter(|_| self.copies[rule.index()]);
        let of_rule = if no_ports { 0 } else { more };
        let limits = [
            (self.added[rule.index()] + of_rule, MAX_ADDED_TO_RULE),
            self.in_all(cost),
            (more, copies_left.unwrap_or(usize::MAX)),
            (more, self.trials),
        ];
        if let Some((pieces, most)) = limits.into_iter().find(|(pieces, most)| pieces > most) {
            return Err(Inseparable::TooMany { pieces, most });
        }
        self.trials -= more;
        self.added[rule.index()] += of_rule;
        self.pieces[usize::from(no_ports)] += more;
        self.copies_left =
            self.copies_left.map(|left| if self.copies[rule.index()] { left - more } else { left });
        Ok(())
    }

    fn give_back(&mut self, Cost { rule, more, no_ports }: Cost) {
        self.added[rule.index()] -= if no_ports { 0 } else { more };
        self.pieces[usize::from(no_ports)] -= more;
        self.copies_left =
            self.copies_left.map(|left| if self.copies[rule.index()] { left + more } else { left });
    }
}

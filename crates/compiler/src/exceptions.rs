//! Rules that leave packets to the host. No flow says "to the kernel": a packet stays there if it meets no
//! flow at all. So what such a rule matches is left out of the flows of every later rule, which are cut into
//! pieces around it. Where no flow can be told a piece, or the pieces are too many, the rule keeps flows of
//! its own, for what later flows would take, and these packets come to a worker. Called by `placing` before
//! it is known what flows do; what a device refuses is `fit`'s to say.

mod flows;
mod hole;
mod room;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use device_model::DeviceProfile;
use policy::Policy;
use policy::policy::{Action, Direction};
use program::{Exception, RuleId, Unfinished, Untold, Why};

use super::classes::{Expanded, common};
use super::cube::{Cube, Field, LAYERS, SENT};
use super::fit::tellable;

use flows::{Flow, Flows};
use hole::{around, bits_beyond, can_be_told, fields, has_any_ports, missing_header, port_halves, twins};
use room::{Cost, Room};

/// The most flows by which a rule keeps only a part of one of its cubes; with more it keeps the cube whole.
const MAX_PARTS: usize = 8;

/// What flows match, where it is not all that covers their rule.
#[derive(Default)]
pub(super) struct Exceptions {
    /// By rule, the default's at the end. Rules that leave packets to the host have what they keep here.
    cubes: BTreeMap<usize, Vec<Cube>>,
    left: BTreeMap<usize, LeftOut>,
    /// The rules that keep flows which take more than their packets: a worker has to finish these.
    coarse: BTreeSet<usize>,
    /// Whether some flow is not what covers its rule.
    pub(super) has_cut: bool,
}

/// What became of one rule that leaves packets to the host.
#[derive(Clone, Default)]
struct LeftOut {
    /// The rules whose flows were cut.
    of: BTreeSet<usize>,
    /// How many more they have for it.
    pieces: usize,
    /// The first later rule whose flows were not, and why.
    kept_for: Option<(usize, Untold)>,
    /// Whether its flows take all that it covers.
    is_whole: bool,
}

impl Exceptions {
    /// The cubes of a rule's flows, where they are not what covers it; to be asked for once.
    pub(super) fn take_cubes(&mut self, rule: usize) -> Option<Vec<Cube>> {
        self.cubes.remove(&rule)
    }

    /// The cubes of a rule's flows.
    pub(super) fn flow_cubes<'c>(&'c self, rules: &'c [Expanded], rule: usize) -> &'c [Cube] {
        self.cubes
            .get(&rule)
            .or_else(|| Some(&rules.get(rule)?.expansion.cubes))
            .map(Vec::as_slice)
            .unwrap_or_default()
    }

    /// Whether a rule that leaves packets to the host needs no flow for it.
    pub(super) fn keeps_nothing(&self, rule: usize) -> bool {
        self.cubes.get(&rule).is_none_or(Vec::is_empty)
    }

    /// Whether the flows that a rule keeps take more than its packets.
    pub(super) fn is_coarse(&self, rule: usize) -> bool {
        self.coarse.contains(&rule)
    }

    /// Why a worker must see packets of a rule that would leave them to the host.
    pub(super) fn note(&self, rule: usize) -> Option<Unfinished> {
        let (by, untold) = self.left.get(&rule)?.kept_for?;
        let why = Why::KernelException { by: RuleId::of(by), untold };
        Some(Unfinished { key: "kernel".to_owned(), why })
    }

    /// The rules that leave packets to the host without a flow, or without one for all that they match.
    pub(super) fn list(&self, rules: &[Expanded]) -> Vec<Exception> {
        let exceptions = self.left.iter().filter(|(_, left)| !left.is_whole).filter_map(|(index, left)| {
            let step = rules.get(*index)?.step(*index);
            Some(Exception {
                rule: step.rule,
                predicate: step.predicate,
                outcome: step.outcome,
                left_out_of: left.of.iter().map(|rule| RuleId::of(*rule)).collect(),
                // Far fewer than 2^32.
                pieces: left.pieces as u32,
            })
        });
        exceptions.collect()
    }
}

/// Leaves out of later flows what rules leave to the host; `may_cut`: whether flows may be cut for it.
pub(super) fn leave_out(
    policy: &Policy,
    profile: &DeviceProfile,
    rules: &[Expanded],
    may_cut: bool,
) -> Exceptions {
    let Some(first) = rules.iter().position(leaves_to_host) else { return Exceptions::default() };
    let mut cutting = Cutting {
        profile,
        may_cut,
        fields: fields(
            rules.iter().filter(|rule| leaves_to_host(rule)).flat_map(|rule| &rule.expansion.cubes),
        ),
        flows: Flows::default(),
        room: Room::new(profile, rules),
        made: Exceptions::default(),
        done: Vec::new(),
    };
    if policy.default != Action::Kernel {
        everything().into_iter().for_each(|cube| cutting.flows.add(rules.len(), cube));
    }
    for (index, rule) in rules.iter().enumerate().skip(first).rev() {
        if leaves_to_host(rule) {
            cutting.leave(index, rule);
        } else if rule.claims() || rule.copies() {
            rule.expansion.cubes.iter().for_each(|cube| cutting.flows.add(index, *cube));
        }
    }
    cutting.finish()
}

/// All that is received: what the default is about.
pub(super) fn everything() -> Option<Cube> {
    Cube::ANY.with(SENT, 0, 1)
}

fn leaves_to_host(rule: &Expanded) -> bool {
    rule.action == Action::Kernel && rule.direction == Direction::Ingress
}

/// The work on one policy, last rule first: what a rule is left out of are the flows of those after it.
struct Cutting<'p> {
    profile: &'p DeviceProfile,
    may_cut: bool,
    /// In the order in which cubes are cut by them.
    fields: Vec<Field>,
    flows: Flows,
    room: Room,
    made: Exceptions,
    /// Cuts in the order in which they were made.
    done: Vec<Done>,
}

/// A flow's cube around a hole.
struct Cut {
    flow: usize,
    cost: Cost,
    pieces: Vec<Cube>,
}

/// One that was made.
struct Done {
    flow: usize,
    cost: Cost,
    /// Among the flows.
    pieces: Range<usize>,
}

impl Cutting<'_> {
    /// Leaves what one rule matches out of all flows so far, or keeps flows for it.
    fn leave(&mut self, index: usize, rule: &Expanded) {
        let holes = &rule.expansion.cubes;
        let mut left = LeftOut::default();
        // Those without ports come first.
        let no_ports = holes.iter().take_while(|hole| hole.has_untold_absence()).count();
        let mut kept: Vec<Vec<Cube>> = Vec::with_capacity(holes.len());
        for part in [0..no_ports, no_ports..holes.len()] {
            let (before, start) = (self.done.len(), left.clone());
            for hole in &holes[part.clone()] {
                kept.push(self.leave_cube(hole, !rule.is_hybrid(), &mut left));
                if let Some((_, Untold::TooMany { .. })) = left.kept_for {
                    // Too dear: as if none of this part had been tried.
                    self.undo(before);
                    left = LeftOut { kept_for: left.kept_for, ..start };
                    kept.truncate(part.start);
                    kept.extend(holes[part.clone()].iter().map(|hole| self.whole_if_met(hole)));
                    break;
                }
            }
        }
        left.is_whole = kept.iter().zip(holes).all(|(kept, hole)| *kept == [*hole]);
        let mut kept = kept.concat();
        for cube in kept.iter_mut().filter(|cube| cube.has_untold_absence()) {
            *cube = tellable(cube, self.profile);
            self.made.coarse.insert(index);
        }
        self.made.has_cut |= !kept.is_empty() && kept != *holes;
        kept.iter().for_each(|cube| self.flows.add(index, *cube));
        self.made.cubes.insert(index, kept);
        self.made.left.insert(index, left);
    }

    /// What must be a flow of its own.
    fn leave_cube(&mut self, hole: &Cube, is_exact: bool, left: &mut LeftOut) -> Vec<Cube> {
        let met = self.takers(hole);
        let (mut open, mut stay): (Vec<usize>, Vec<usize>) =
            met.into_iter().partition(|flow| self.is_open(*flow, hole, is_exact, left));
        let mut parts = self.parts(hole, &stay);
        if parts == [*hole] {
            return parts;
        }
        // Those of one rule as they were made.
        open.sort_unstable_by_key(|flow| (self.flows.list[*flow].rule, *flow));
        let more = open.iter().map(|flow| self.cost(*flow, hole).more).sum();
        if let Some(first) = open.first()
            && let Err(untold) = self.room.holds(Cost { more, ..self.cost(*first, hole) })
        {
            left.keep_for(self.flows.list[*first].rule, untold);
            return vec![*hole];
        }
        let mut cuts = Vec::new();
        for flow in open {
            // A flow that takes the whole hole anyway spares the others nothing.
            if parts == [*hole] {
                break;
            }
            match self.cut(flow, hole) {
                Ok(cut) => cuts.push(cut),
                Err(untold) => {
                    left.keep_for(self.flows.list[flow].rule, untold);
                    stay.push(flow);
                    parts = self.parts(hole, &stay);
                }
            }
        }
        let is_whole = parts == [*hole];
        for cut in cuts {
            match is_whole {
                true => self.room.give_back(cut.cost),
                false => self.make(cut, left),
            }
        }
        parts
    }

    fn whole_if_met(&mut self, hole: &Cube) -> Vec<Cube> {
        let is_met = match twins(hole, self.profile) {
            None => self.flows.some_meets(hole),
            Some(_) => !self.takers(hole).is_empty(),
        };
        if is_met { vec![*hole] } else { Vec::new() }
    }

    /// The flows that take packets of the hole. Where the device does not look for a header of any ports these are
    /// more than those whose cubes meet it.
    fn takers(&mut self, hole: &Cube) -> Vec<usize> {
        let mut met = self.flows.that_meet(hole);
        for twin in twins(hole, self.profile).into_iter().flatten() {
            let others = self.flows.that_meet(&twin);
            met.extend(others.into_iter().filter(|flow| has_any_ports(&self.flows.list[*flow].cube)));
        }
        met
    }

    /// Whether the hole may be cut out of the flow, as far as that can be seen without trying.
    fn is_open(&self, flow: usize, hole: &Cube, is_exact: bool, left: &mut LeftOut) -> bool {
        let Flow { rule, cube, .. } = &self.flows.list[flow];
        let untold = match missing_header(cube, hole) {
            _ if !is_exact => Untold::Inexact,
            Err(untold) => untold,
            Ok(()) if !self.may_cut => Untold::NoRoom,
            Ok(()) => return true,
        };
        left.keep_for(*rule, untold);
        false
    }

    /// The flow's cube without the hole.
    fn cut(&mut self, flow: usize, hole: &Cube) -> Result<Cut, Untold> {
        let cube = &self.flows.list[flow].cube;
        let cost = self.cost(flow, hole);
        self.room.take(cost)?;
        let pieces = match cube.overlaps(hole) {
            true => around(cube, hole, &self.fields),
            false => port_halves(cube, &self.fields),
        };
        let told = pieces.iter().try_for_each(|piece| can_be_told(piece, cube, self.profile));
        if told.is_err() {
            self.room.give_back(cost);
        }
        told.map(|()| Cut { flow, cost, pieces })
    }

    /// What it takes to cut a hole out of a flow.
    fn cost(&self, flow: usize, hole: &Cube) -> Cost {
        let Flow { rule, cube, .. } = &self.flows.list[flow];
        let more = match cube.overlaps(hole) {
            true => bits_beyond(hole, cube).saturating_sub(1),
            false => 1,
        };
        Cost { rule: *rule, more, no_ports: hole.has_untold_absence() }
    }

    fn make(&mut self, Cut { flow, cost, pieces }: Cut, left: &mut LeftOut) {
        let rule = self.flows.list[flow].rule;
        left.of.insert(rule);
        left.pieces += pieces.len().saturating_sub(1);
        self.flows.list[flow].lives = false;
        let first = self.flows.list.len();
        pieces.into_iter().for_each(|piece| self.flows.add(rule, piece));
        self.done.push(Done { flow, cost, pieces: first..self.flows.list.len() });
        self.made.cubes.entry(rule).or_default();
        self.made.has_cut = true;
    }

    /// Takes back all but the first cuts.
    fn undo(&mut self, first: usize) {
        for Done { flow, cost, pieces } in self.done.split_off(first).into_iter().rev() {
            self.flows.list[pieces].iter_mut().for_each(|piece| piece.lives = false);
            self.flows.list[flow].lives = true;
            self.room.give_back(cost);
        }
    }

    /// What flows that stay as they are take of a hole: a few parts, or the whole.
    fn parts(&self, hole: &Cube, stay: &[usize]) -> Vec<Cube> {
        if stay.is_empty() {
            return Vec::new();
        }
        let whole = || vec![*hole];
        let rules = stay.iter().map(|flow| self.flows.list[*flow].rule);
        if !self.may_cut || !are_few(rules.clone()) {
            return whole();
        }
        let mut takers: Vec<Cube> = stay.iter().map(|flow| self.flows.list[*flow].cube).collect();
        if !takers.iter().all(|taker| taker.overlaps(hole)) {
            return whole();
        }
        if takers.len() > MAX_PARTS {
            // Together what one rule's flows of equal headers take is more, and still less than the whole.
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
            if can_be_told(&part, hole, self.profile).is_err() {
                return whole();
            }
            if !parts.iter().any(|other| other.contains(&part)) {
                parts.retain(|other| !part.contains(other));
                parts.push(part);
            }
        }
        parts
    }

    /// Collects what is left of the flows that were cut, and what rules keep.
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

/// Whether there are no more different ones than parts may be kept for.
fn are_few(rules: impl Iterator<Item = usize>) -> bool {
    let mut different = BTreeSet::new();
    rules.into_iter().all(|rule| {
        different.insert(rule);
        different.len() <= MAX_PARTS
    })
}

impl LeftOut {
    /// Notes the first rule for whose sake a flow is kept; one whose pieces are too many goes before others.
    fn keep_for(&mut self, rule: usize, untold: Untold) {
        let is_dear = |untold: &Untold| matches!(untold, Untold::TooMany { .. });
        let goes_before = |(known, other): (usize, Untold)| match (is_dear(&untold), is_dear(&other)) {
            (true, true) | (false, false) => rule < known,
            (is_dear, _) => is_dear,
        };
        if self.kept_for.is_none_or(goes_before) {
            self.kept_for = Some((rule, untold));
        }
    }
}

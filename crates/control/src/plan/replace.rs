//! Which old flows can go before all new ones are there, so that a change of many flows needs little more
//! room than the larger program.
//!
//! A flow *n* of the new program *covers* an old flow *o* if it matches all packets that *o* does: it has the
//! same match or a wider one. New flows are installed from the highest precedence to the lowest, so once *n*
//! is there, so is everything of the new program that could decide a packet of *o*. Then *o* can go, unless
//! something that shares packets with it and that *o* kept away from them would decide one of them: an old
//! flow between *o* and *n*, or at the level of *n*, that goes as well, or a flow that stays there and whose
//! class means something else until workers enforce the new ones. Such a flow *blocks* *o*.
//!
//! Take a packet, and say that some old flow that matches it has gone. The new program decides it by a flow
//! at or above *n*, and that one is there. An old flow above would have to be one that was above all that
//! have gone: else it would have blocked one of them. So it decides the packet in the old program.

use std::collections::BTreeMap;

use foldhash::{HashMap, HashMapExt as _};
use packet::cube::Cube;
use program::{Correspondence, Flow, FlowAction, FlowFront, FlowKind, Program};

use super::PlacedProgram;
use super::levels::has_order;
use crate::{DigestedProgram, Limits};

/// The most pairs of flows that are compared. Beyond it, old flows go after all new ones are there.
const MOST_COMPARED: usize = 1 << 28;

/// The old flows that can go early, while new ones are installed in order.
pub(super) struct Replacements<'p> {
    old: PlacedProgram<'p>,
    /// The old flows that go once a new flow is there.
    leaving: HashMap<usize, Vec<Leaving>>,
    /// The flows that may block, by level: old ones that go and are still there, and those that stay with
    /// another meaning.
    blocking: BTreeMap<u16, Vec<(usize, FlowFront)>>,
    /// The old flows that wait for a flow that blocks, by that flow.
    waiting: HashMap<usize, Vec<Leaving>>,
    compared: usize,
    /// Whether each old flow has gone.
    is_gone: Vec<bool>,
}

/// An old flow that goes.
#[derive(Clone, Copy)]
struct Leaving {
    old: usize,
    /// The level of the new flow that covers it.
    until: u16,
}

impl<'p> Replacements<'p> {
    /// `kept`: by new flow, the old one that it is; `coming`: the others, in the order of their installation.
    pub(super) fn of(
        old: PlacedProgram<'p>,
        new: &'p DigestedProgram,
        common: &Correspondence<'_>,
        levels: &'p [u16],
        (kept, coming): (&[Option<usize>], &[usize]),
        limits: &Limits,
    ) -> Self {
        let flows = &old.program.flows;
        let mut stays: Vec<Option<usize>> = vec![None; flows.len()];
        for (index, kept) in kept.iter().enumerate() {
            kept.iter().for_each(|kept| stays[*kept] = Some(index));
        }
        let mut blocking: BTreeMap<u16, Vec<(usize, FlowFront)>> = BTreeMap::new();
        let mut by_match: HashMap<u64, usize> = HashMap::new();
        let ordered = flows.iter().zip(old.program.digests()).enumerate();
        for (index, (flow, digest)) in ordered.filter(|(_, (_, digest))| has_order(digest, limits)) {
            let is_same = |after: &Flow| {
                !matches!(flow.action, FlowAction::Steer { .. }) || common.is_same_class_of(flow, after)
            };
            if stays[index].is_some_and(|after| is_same(&new.flows[after])) {
                continue;
            }
            blocking.entry(old.levels[index]).or_default().push((index, flow.front()));
            if stays[index].is_none() && can_go_early(old.program, flow) {
                by_match.entry(digest.matches).or_insert(index);
            }
        }
        let is_cover = |index: &&usize| {
            has_order(&new.digests()[**index], limits) && can_go_early(new, &new.flows[**index])
        };
        let covers: Vec<usize> = coming.iter().filter(is_cover).copied().collect();
        // Of several new flows of one match, the first is the one that decides.
        let mut leaving: HashMap<usize, Vec<Leaving>> = HashMap::new();
        for &index in &covers {
            if let Some(old) = by_match.remove(&new.digests()[index].matches) {
                leaving.entry(index).or_default().push(Leaving { old, until: levels[index] });
            }
        }
        let is_gone = vec![false; flows.len()];
        let mut found = Self { old, leaving, blocking, waiting: HashMap::new(), compared: 0, is_gone };
        if by_match.len() > limits.spare_flows {
            let mut others: Vec<usize> = by_match.into_values().collect();
            others.sort_unstable();
            found.add_covered(&others, new, &covers, levels);
        }
        found
    }

    /// Adds old flows without a new one of their match, each with the first of `covers` that covers it.
    fn add_covered(&mut self, others: &[usize], new: &Program, covers: &[usize], levels: &[u16]) {
        let of = |index: &usize| {
            let flow = &new.flows[*index];
            Some((*index, flow.kind == FlowKind::Egress, flow.front(), flow.cube()?))
        };
        let covers: Vec<(usize, bool, FlowFront, &Cube)> = covers.iter().filter_map(of).collect();
        for &old in others.iter().take(MOST_COMPARED / covers.len().max(1)) {
            let flow = &self.old.program.flows[old];
            let (is_sent, front, Some(cube)) = (flow.kind == FlowKind::Egress, flow.front(), flow.cube())
            else {
                continue;
            };
            let found = covers.iter().find(|(_, of_egress, of_cover, cover)| {
                *of_egress == is_sent && !front.is_apart(of_cover) && cover.contains(cube)
            });
            if let Some((index, ..)) = found {
                self.leaving.entry(*index).or_default().push(Leaving { old, until: levels[*index] });
            }
        }
    }

    /// The old flows that can go once this new one is installed, in their order.
    pub(super) fn after(&mut self, new_flow: usize) -> Vec<usize> {
        let mut gone = Vec::new();
        let mut ready = self.leaving.remove(&new_flow).unwrap_or_default();
        while let Some(leaving) = ready.pop() {
            match self.blocked(leaving) {
                Blocked::Never => {
                    self.is_gone[leaving.old] = true;
                    gone.push(leaving.old);
                    ready.extend(self.waiting.remove(&leaving.old).unwrap_or_default());
                }
                Blocked::By(other) => self.waiting.entry(other).or_default().push(leaving),
                Blocked::Unknown => {}
            }
        }
        gone
    }

    /// Whether a flow blocks the old one.
    fn blocked(&mut self, Leaving { old, until }: Leaving) -> Blocked {
        let flows = &self.old.program.flows;
        let Some(behind) = self.old.levels[old].checked_add(1).filter(|behind| *behind <= until) else {
            return Blocked::Never;
        };
        if self.compared > MOST_COMPARED {
            return Blocked::Unknown;
        }
        let (front, is_sent) = (flows[old].front(), flows[old].kind == FlowKind::Egress);
        for (other, other_front) in self.blocking.range(behind..=until).flat_map(|(_, there)| there) {
            self.compared += 1;
            let is_apart = front.is_apart(other_front);
            if self.is_gone[*other] || is_apart || is_sent != (flows[*other].kind == FlowKind::Egress) {
                continue;
            }
            if flows[old].cube().zip(flows[*other].cube()).is_some_and(|(one, other)| one.overlaps(other)) {
                return Blocked::By(*other);
            }
        }
        Blocked::Never
    }
}

/// Whether an old flow must wait.
enum Blocked {
    Never,
    /// The old flow waits until this flow has gone.
    By(usize),
    /// There are too many flows to tell.
    Unknown,
}

/// Whether a flow can go, or replace one that goes, before workers enforce the new classes. Packets without a
/// tag are decided by the program in force. A copy decides no packet.
fn can_go_early(program: &Program, flow: &Flow) -> bool {
    let is_tagged = match flow.action {
        FlowAction::Steer { .. } => program.tagged_class(flow).is_some(),
        FlowAction::Drop | FlowAction::Pass => true,
    };
    is_tagged && matches!(flow.kind, FlowKind::Normal | FlowKind::Egress)
}

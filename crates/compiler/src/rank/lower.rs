//! Rules to candidates, which become flows once they are ordered: each cube with what its flow does. The
//! cubes of a rule that steers are split by the hash variants of its group, because a queue pair hashes the
//! fields of one variant.

use std::collections::{BTreeMap, BTreeSet};

use device_model::DeviceModel;
use program::{Group, GroupId, HashVariant, QueueId, RssQueue, RuleId};

use crate::cover::legalize::comes_last;
use crate::cover::{MAX_FLOWS, everything};
use crate::cube::{Cube, Image, SENT};
use crate::except::place::{Earlier, Placement, Prepared};
use crate::job::Job;
use crate::mask_index::ByMask;
use crate::rank::variants::{Variant, variants};

/// The most different masks of one program, before any are merged: each is compared with all others.
pub(crate) const MAX_MASKS: usize = 1 << 14;

/// A rule at which a policy exceeds a limit.
#[derive(Debug)]
pub(crate) enum LowerProblem {
    /// The limit is [`MAX_FLOWS`].
    Flows(RuleId),
    /// The limit is [`MAX_MASKS`].
    Masks(RuleId),
}

/// The position of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CandidateId(pub(crate) u32);

/// The position of an action. Equal actions have equal ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ActionId(pub(crate) u32);

/// A flow before it has a priority. The order of candidates is their precedence.
#[derive(Clone, Copy)]
pub(crate) struct Candidate {
    pub(crate) cube: Cube,
    pub(crate) rule: RuleId,
    pub(crate) action: ActionId,
    /// Whether packets go no further; otherwise they are copied.
    pub(crate) traps: bool,
    /// Whether a worker compares its packets with earlier rules, because the device has too few priorities.
    pub(crate) is_compared: bool,
    /// Whether it leads packets of flows that the device has no room for to a worker. Covers have the rule of
    /// the default and come before its flows.
    pub(crate) is_cover: bool,
}

/// The packets that a queue pair of a group receives.
#[derive(Clone)]
pub(crate) struct Steering {
    pub(crate) group: GroupId,
    pub(crate) packets: Cube,
    pub(crate) action: ActionId,
}

/// The action of a candidate, with queues that may yet end without a flow.
#[derive(Clone, Copy)]
pub(crate) enum LoweredAction {
    Drop,
    Pass,
    Steer(QueueId),
}

const DROP: ActionId = ActionId(0);
const PASS: ActionId = ActionId(1);

/// The flows of a policy before they are ordered.
#[derive(Clone)]
pub(crate) struct Lowered {
    pub(crate) candidates: Vec<Candidate>,
    /// The actions, by [`ActionId`].
    pub(crate) actions: Vec<LoweredAction>,
    /// The queue pairs by group, specific variants first.
    pub(crate) steering: Vec<Steering>,
    /// One for every group and hash variant, by group.
    pub(crate) queues: Vec<RssQueue>,
    /// The rule whose flow gets a copy of all packets, and its queue.
    pub(crate) sniffer: Option<(RuleId, QueueId)>,
    /// The rules of which some flow has no room, so that workers decide its packets.
    pub(crate) left: BTreeSet<RuleId>,
    /// The rules whose packets covers match, in ascending order: those, the ones behind the covers, and some
    /// that leave their packets to the kernel.
    pub(crate) covered: Vec<RuleId>,
}

impl ActionId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

impl CandidateId {
    /// Candidates are flows, of which there are far fewer than 2^32.
    pub(crate) fn of(index: usize) -> Self {
        Self(index as u32)
    }

    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

impl Lowered {
    pub(crate) fn candidate(&self, id: CandidateId) -> &Candidate {
        &self.candidates[id.index()]
    }

    /// How general the hash variant of a candidate is: the more general ones of a rule rank below the others.
    pub(crate) fn generality(&self, candidate: &Candidate) -> u32 {
        let LoweredAction::Steer(queue) = self.actions[candidate.action.0 as usize] else { return 0 };
        self.variant_generality(queue)
    }

    /// How general the hash variant of a queue pair is.
    pub(crate) fn variant_generality(&self, queue: QueueId) -> u32 {
        match self.queues[queue.index()].variant {
            HashVariant::V4Tcp | HashVariant::V4Udp | HashVariant::V6Tcp | HashVariant::V6Udp => 0,
            HashVariant::V4 | HashVariant::V6 => 1,
            HashVariant::Other | HashVariant::All => 2,
        }
    }

    /// Adds the rules that packets of covers are compared with, for the class of the default.
    pub(crate) fn compared(&self, mut earlier: Earlier, default: RuleId) -> Earlier {
        if !self.covered.is_empty() {
            let compared = earlier.entry(default).or_default();
            compared.extend(&self.covered);
            compared.sort_unstable();
            compared.dedup();
        }
        earlier
    }

    /// Whether the device drops the packets of a candidate.
    pub(crate) fn is_dropped(&self, id: CandidateId) -> bool {
        matches!(self.action(id), LoweredAction::Drop)
    }

    pub(crate) fn action(&self, id: CandidateId) -> LoweredAction {
        self.actions[self.candidate(id).action.0 as usize]
    }
}

/// Lowers every rule, the default last.
pub(crate) fn lower(
    job: &Job<'_>,
    prepared: &Prepared,
    placements: &[Placement],
) -> Result<Lowered, LowerProblem> {
    let Prepared { groups, rules, exceptions, .. } = prepared;
    let variants: Vec<Vec<Variant>> = groups.iter().map(|group| variants(group, job.profile)).collect();
    let mut lowering = Lowering::new(groups, &variants);
    for (index, placement) in placements.iter().enumerate() {
        let rule = RuleId::of(index);
        // The default has no cubes of its own.
        let everything = everything();
        let cubes = exceptions.flow_cubes(rules, rule).unwrap_or(everything.as_slice());
        lowering.rule(rule, cubes, *placement);
        if lowering.lowered.candidates.len() > MAX_FLOWS {
            return Err(LowerProblem::Flows(rule));
        }
    }
    match rule_beyond_masks(&lowering.lowered.candidates) {
        Some(rule) => Err(LowerProblem::Masks(rule)),
        None => Ok(lowering.lowered),
    }
}

/// The first rule with masks that are too many to be compared with each other.
fn rule_beyond_masks(candidates: &[Candidate]) -> Option<RuleId> {
    let mut masks: ByMask<Image, ()> = ByMask::default();
    let beyond = candidates.iter().find(|candidate| {
        masks.insert(candidate.cube.mask, ());
        masks.len() > MAX_MASKS
    });
    beyond.map(|candidate| candidate.rule)
}

struct Lowering<'v> {
    lowered: Lowered,
    /// The variants of each group.
    variants: &'v [Vec<Variant>],
    action_of: BTreeMap<(GroupId, HashVariant), ActionId>,
}

impl<'v> Lowering<'v> {
    fn new(groups: &[Group], variants: &'v [Vec<Variant>]) -> Self {
        let mut actions = vec![LoweredAction::Drop, LoweredAction::Pass];
        let (mut queues, mut action_of, mut steering) = (Vec::new(), BTreeMap::new(), Vec::new());
        for (index, (group, variants)) in groups.iter().zip(variants).enumerate() {
            let id = GroupId::of(index);
            for Variant { variant, fields, packets } in variants {
                let mut table = group.table.clone();
                if fields.is_empty() {
                    table.truncate(1);
                }
                let action = ActionId(actions.len() as u32);
                action_of.insert((id, *variant), action);
                steering.push(Steering { group: id, packets: *packets, action });
                actions.push(LoweredAction::Steer(QueueId::of(queues.len())));
                queues.push(RssQueue { group: id, variant: *variant, fields: *fields, table });
            }
        }
        let lowered = Lowered {
            candidates: Vec::new(),
            actions,
            steering,
            queues,
            sniffer: None,
            left: BTreeSet::new(),
            covered: Vec::new(),
        };
        Self { lowered, variants, action_of }
    }

    fn rule(&mut self, rule: RuleId, cubes: &[Cube], placement: Placement) {
        let variants = self.variants;
        match placement {
            Placement::Nothing => {}
            Placement::Drop => self.push(cubes.iter().copied(), rule, DROP, true),
            Placement::Pass => self.push(cubes.iter().copied(), rule, PASS, true),
            Placement::Steer(group) => {
                let all = &variants[group.index()];
                for variant in all {
                    let action = self.action(group, variant);
                    self.push(variant_part(cubes, variant, all), rule, action, true);
                }
            }
            Placement::Copy(group) => {
                // A packet must not meet two variants: it would be copied twice.
                let all = &variants[group.index()];
                for cube in cubes {
                    let serves = |variant: &&Variant| variant.packets.contains(cube);
                    if let Some(variant) = all.iter().find(serves) {
                        let action = self.action(group, variant);
                        self.push([*cube].into_iter(), rule, action, false);
                    }
                }
            }
            Placement::Sniff(group) => {
                let last = variants[group.index()].last().map(|variant| self.action(group, variant));
                let action = last.map(|action| self.lowered.actions[action.0 as usize]);
                if let Some(LoweredAction::Steer(queue)) = action {
                    self.lowered.sniffer = Some((rule, queue));
                }
            }
        }
    }

    fn action(&self, group: GroupId, variant: &Variant) -> ActionId {
        self.action_of.get(&(group, variant.variant)).copied().unwrap_or(DROP)
    }

    fn push(&mut self, cubes: impl Iterator<Item = Cube>, rule: RuleId, action: ActionId, traps: bool) {
        let candidates =
            cubes.map(|cube| Candidate { cube, rule, action, traps, is_compared: false, is_cover: false });
        let room = (MAX_FLOWS + 1).saturating_sub(self.lowered.candidates.len());
        self.lowered.candidates.extend(candidates.take(room));
    }
}

impl Candidate {
    /// Whether the device applies its flow after all others, whatever its priority.
    pub(crate) fn comes_last(&self, profile: &DeviceModel) -> bool {
        self.traps && comes_last(&self.cube, profile)
    }

    /// Whether it is about packets that the host sends.
    pub(crate) fn is_sent(&self) -> bool {
        self.cube.value_of(SENT) == 1
    }
}

/// The cubes' packets that a variant serves, without those that a more specific variant serves whole.
fn variant_part<'c>(
    cubes: &'c [Cube],
    variant: &'c Variant,
    all: &'c [Variant],
) -> impl Iterator<Item = Cube> + 'c {
    let more_specific = all.iter().take_while(|other| other.variant != variant.variant);
    cubes.iter().filter_map(move |cube| {
        let served = more_specific.clone().any(|other| other.packets.contains(cube));
        if served { None } else { cube.and(&variant.packets) }
    })
}

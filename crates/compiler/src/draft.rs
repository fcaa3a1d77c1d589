//! The flows of a policy before they are numbered: candidates are collected, checked against the device,
//! and turned into a program once they are ranked. Only what a kept flow uses gets a queue or a class.

mod limits;

use std::collections::{BTreeMap, HashSet};

use device_model::DeviceProfile;
use policy::{Place, Policy};
use program::{
    Class, ClassId, DEFAULT_RULE, Decide, Flow, FlowAction, FlowKind, Group, GroupId, HashVariant, Outcome,
    Program, QueueId, RssQueue, RuleId,
};

use super::claims::{Claims, MAX_STEPS, MAX_STEPS_IN_ALL};
use super::classes::{Expanded, decide, decide_all, verdict};
use super::cube::{Cube, SENT};
use super::emit;
use super::exceptions::{Exceptions, everything};
use super::findings::Findings;
use super::number;
use super::pack::Packed;
use super::placing::{Placing, placements};
use super::priority::Candidate;
use super::tables::{self, Variant};

pub(super) use limits::too_many_flows;
use limits::too_many_steps;

/// The most flows of one program, whatever the device says: beyond it installing takes minutes.
pub(super) const MAX_FLOWS: usize = 1 << 18;
/// Specs beside which a flow carries two actions: the tag or drop, and a counter.
const ACTION_SPECS: u32 = 2;

/// What a candidate does, before queues and classes have their final numbers.
#[derive(Clone, Copy)]
enum DraftAction {
    Drop,
    Pass,
    Steer(QueueId),
}

/// The class of each rule, the default's last, and the classes with their holes.
type Numbered = (Vec<Option<ClassId>>, Vec<Option<Class>>);

/// Everything that a draft is made from.
pub(super) struct Plan<'p> {
    pub(super) policy: &'p Policy,
    pub(super) profile: &'p DeviceProfile,
    pub(super) groups: Vec<Group>,
    pub(super) rules: Vec<Expanded>,
    /// What the device does for each rule, and for the default at the end.
    pub(super) placing: Vec<Placing>,
    /// What is left out of flows, because it is the host's.
    pub(super) exceptions: Exceptions,
    /// Who may share packets with a hybrid rule.
    pub(super) claims: Claims,
    /// The program whose tags are to be kept.
    pub(super) previous: Option<&'p Program>,
}

/// Flows that are not ranked yet.
pub(super) struct Draft<'p> {
    pub(super) plan: Plan<'p>,
    pub(super) candidates: Vec<Candidate>,
    /// What `Candidate::action` stands for.
    actions: Vec<DraftAction>,
    /// As many as the groups have variants; most may end without a flow.
    queues: Vec<RssQueue>,
    /// The flow that hears all, and its queue.
    sniffer: Option<(usize, QueueId)>,
}

impl Plan<'_> {
    pub(super) fn default(&self) -> Outcome {
        Outcome { rule: RuleId::of(self.rules.len()), verdict: verdict(self.policy.default) }
    }

    pub(super) fn place(&self, rule: usize) -> &Place {
        self.policy.rules.get(rule).map_or(&self.policy.default_place, |rule| &rule.place)
    }

    pub(super) fn name(&self, rule: usize) -> &str {
        self.policy.rules.get(rule).map_or(DEFAULT_RULE, |rule| rule.name.as_str())
    }

    pub(super) fn number(&self, rule: usize) -> Option<usize> {
        (rule < self.rules.len()).then_some(rule)
    }
}

impl<'p> Draft<'p> {
    pub(super) fn new(plan: Plan<'p>, problems: &mut Findings) -> Self {
        let mut draft = Self {
            candidates: Vec::new(),
            actions: vec![DraftAction::Drop, DraftAction::Pass],
            queues: Vec::new(),
            sniffer: None,
            plan,
        };
        let variants: Vec<Vec<Variant>> =
            draft.plan.groups.iter().map(|group| tables::variants(group, draft.plan.profile)).collect();
        let queue_of = draft.possible_queues(&variants);
        for index in 0..draft.plan.placing.len() {
            if let Some(cut) = draft.plan.exceptions.take_cubes(index) {
                draft.place_rule(index, &cut, &variants, &queue_of);
            } else if let Some(rule) = draft.plan.rules.get_mut(index) {
                let cubes = std::mem::take(&mut rule.expansion.cubes);
                draft.place_rule(index, &cubes, &variants, &queue_of);
                draft.plan.rules[index].expansion.cubes = cubes;
            } else {
                draft.place_rule(index, everything().as_slice(), &variants, &queue_of);
            }
            if draft.candidates.len() > MAX_FLOWS {
                too_many_flows(draft.plan.policy, index, problems);
                return draft;
            }
        }
        draft.refuse_masks(problems);
        draft
    }

    /// One queue for every group and variant; numbered by group, then variant.
    fn possible_queues(&mut self, variants: &[Vec<Variant>]) -> BTreeMap<(GroupId, HashVariant), u32> {
        let mut queue_of = BTreeMap::new();
        for (index, variants) in variants.iter().enumerate() {
            let group = GroupId::of(index);
            for variant in variants {
                let mut table = self.plan.groups[index].table.clone();
                if variant.fields.is_empty() {
                    table.truncate(1);
                }
                queue_of.insert((group, variant.variant), self.actions.len() as u32);
                self.actions.push(DraftAction::Steer(QueueId::of(self.queues.len())));
                let (variant, fields) = (variant.variant, variant.fields);
                self.queues.push(RssQueue { group, variant, fields, table });
            }
        }
        queue_of
    }

    fn place_rule(
        &mut self,
        index: usize,
        cubes: &[Cube],
        variants: &[Vec<Variant>],
        queue_of: &BTreeMap<(GroupId, HashVariant), u32>,
    ) {
        let action_of = |group: GroupId, variant: &Variant| {
            queue_of.get(&(group, variant.variant)).copied().unwrap_or_default()
        };
        match self.plan.placing[index] {
            Placing::Nothing => {}
            Placing::Drop => self.push(cubes.iter().copied(), index, 0, true),
            Placing::Pass => self.push(cubes.iter().copied(), index, 1, true),
            Placing::Steer(group) => {
                let all = &variants[group.index()];
                for variant in all {
                    self.push(variant_part(cubes, variant, all), index, action_of(group, variant), true);
                }
            }
            Placing::Copy(group) => {
                // A packet must not meet two variants: it would be copied twice.
                let all = &variants[group.index()];
                for cube in cubes {
                    let serves = |variant: &&Variant| variant.packets.contains(cube);
                    if let Some(variant) = all.iter().find(serves) {
                        self.push([*cube].into_iter(), index, action_of(group, variant), false);
                    }
                }
            }
            Placing::Sniff(group) => {
                let last = variants[group.index()].last().map(|variant| action_of(group, variant));
                if let Some(DraftAction::Steer(queue)) = last.map(|action| self.actions[action as usize]) {
                    self.sniffer = Some((index, queue));
                }
            }
        }
    }

    fn push(&mut self, cubes: impl Iterator<Item = Cube>, rule: usize, action: u32, traps: bool) {
        let candidates = cubes.map(|cube| Candidate { cube, rule, action, traps });
        let room = (MAX_FLOWS + 1).saturating_sub(self.candidates.len());
        self.candidates.extend(candidates.take(room));
    }

    /// Numbers what is left, and writes it down.
    pub(super) fn finish(mut self, packed: &Packed, problems: &mut Findings) -> Option<Program> {
        let used = self.used_queues(packed);
        let mut next = 0..;
        let queue_of: Vec<Option<QueueId>> =
            used.iter().map(|used| used.then(|| next.next().map(QueueId)).flatten()).collect();
        let has_tags = self.plan.profile.has_tags();
        let (class_of, classes) = self.classes(packed, has_tags, problems)?;
        let flows = self.flows(packed, &queue_of, &class_of);
        let mut flow_counts = vec![0u32; self.plan.rules.len() + 1];
        flows.iter().for_each(|flow| flow_counts[flow.rule.index()] += 1);
        let untagged = match self.sniffer {
            Some((rule, _)) if has_tags => class_of[rule],
            _ if has_tags => None,
            _ => class_of[self.plan.rules.len()],
        };
        let mut queues = std::mem::take(&mut self.queues);
        let mut used = queue_of.iter().map(Option::is_some);
        queues.retain(|_| used.next() == Some(true));
        Some(Program {
            rules: placements(&self.plan, &flow_counts, &classes),
            exceptions: self.plan.exceptions.list(&self.plan.rules),
            default: self.plan.default().verdict,
            groups: self.plan.groups,
            queues,
            priorities_used: packed.flows.last().map_or(0, |(_, last)| hardware_priority(*last) + 1),
            flows,
            classes,
            untagged,
        })
    }

    /// The packed flows in their order, and the one that hears all. Variants of a rule for which a device has but one
    /// match are one flow, the first: a second would come to nothing, or take each packet once more.
    fn flows(
        &self,
        packed: &Packed,
        queue_of: &[Option<QueueId>],
        class_of: &[Option<ClassId>],
    ) -> Vec<Flow> {
        let reading = emit::Reading::of(self.plan.profile);
        let mut flows = Vec::with_capacity(packed.flows.len() + 1);
        let mut told = HashSet::new();
        flows.extend(packed.flows.iter().filter_map(|(index, priority)| {
            let Candidate { cube, rule, action, traps } = &self.candidates[*index];
            let action = match (self.actions[*action as usize], class_of[*rule]) {
                (DraftAction::Steer(queue), Some(class)) => {
                    FlowAction::Steer { queue: queue_of[queue.index()].unwrap_or(queue), class }
                }
                (DraftAction::Pass, _) => FlowAction::Pass,
                _ => FlowAction::Drop,
            };
            let kind = match (cube.value_of(SENT), traps) {
                (1, _) => FlowKind::Egress,
                (_, true) => FlowKind::Normal,
                (_, false) => FlowKind::Copy,
            };
            let emit::Chain { specs, inner_from } = emit::chain(cube, reading);
            if reading.is_ambiguous() && !told.insert((*rule, kind, specs.clone(), inner_from)) {
                return None;
            }
            let (rule, priority) = (RuleId::of(*rule), hardware_priority(*priority));
            Some(Flow { rule, priority, kind, specs, inner_from, action })
        }));
        if let Some((rule, queue)) = self.sniffer
            && let (Some(queue), Some(class)) = (queue_of[queue.index()], class_of[rule])
        {
            let (rule, action) = (RuleId::of(rule), FlowAction::Steer { queue, class });
            let (kind, specs) = (FlowKind::Sniffer, Vec::new());
            flows.push(Flow { rule, priority: 0, kind, specs, inner_from: 0, action });
        }
        flows
    }

    /// The class of each rule, and the classes: one costs every worker, so only kept flows have any.
    fn classes(&mut self, packed: &Packed, has_tags: bool, problems: &mut Findings) -> Option<Numbered> {
        let default = self.plan.rules.len();
        let mut steers = vec![false; default + 1];
        for (index, _) in &packed.flows {
            let Candidate { rule, action, .. } = &self.candidates[*index];
            steers[*rule] |= matches!(self.actions[*action as usize], DraftAction::Steer(_));
        }
        if let Some((rule, _)) = self.sniffer {
            steers[rule] = true;
        }
        if !has_tags {
            // The one class of all packets is the default's.
            let any = steers.contains(&true);
            steers.fill(false);
            steers[default] = any;
        }
        let decided = self.decided(&steers, has_tags, problems)?;
        let names: Vec<&str> = decided.iter().map(|(index, _)| self.plan.name(*index)).collect();
        let ids = number::stable(&names, self.plan.previous);
        let mut class_of = vec![None; default + 1];
        let length = ids.iter().map(|id| id.index() + 1).max().unwrap_or(0);
        let mut classes: Vec<Option<Class>> = vec![None; length];
        for ((index, decide), id) in decided.into_iter().zip(ids) {
            class_of[index] = Some(id);
            classes[id.index()] = Some(Class { rule: RuleId::of(index), decide });
        }
        if !has_tags && let Some(only) = class_of[default] {
            class_of = vec![Some(only); default + 1];
        }
        Some((class_of, classes))
    }

    /// How packets of the flows of these rules are decided.
    fn decided(
        &mut self,
        steers: &[bool],
        has_tags: bool,
        problems: &mut Findings,
    ) -> Option<Vec<(usize, Decide)>> {
        let default = self.plan.default();
        let mut decided = Vec::new();
        let mut asked = 0;
        for index in (0..steers.len()).filter(|index| steers[*index]) {
            let plan = &mut self.plan;
            let decide = match has_tags {
                true => decide(&plan.rules, &mut plan.claims, index, default),
                false => decide_all(&plan.rules, default),
            };
            let steps = if let Decide::Software(steps, _) = &decide { steps.len() } else { 0 };
            asked += steps;
            if steps > MAX_STEPS || asked > MAX_STEPS_IN_ALL {
                too_many_steps(plan, index, steps, problems);
                return None;
            }
            decided.push((index, decide));
        }
        Some(decided)
    }

    /// Which of the queues some kept flow leads to.
    fn used_queues(&self, packed: &Packed) -> Vec<bool> {
        let mut used = vec![false; self.queues.len()];
        for (index, _) in &packed.flows {
            if let DraftAction::Steer(queue) = self.actions[self.candidates[*index].action as usize] {
                used[queue.index()] = true;
            }
        }
        if let Some((_, queue)) = self.sniffer {
            used[queue.index()] = true;
        }
        used
    }
}

/// `pack` has kept it below the device's priorities, of which a program has no more than 2^15.
fn hardware_priority(priority: u32) -> u16 {
    u16::try_from(priority).unwrap_or(u16::MAX - 1)
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

//! The flows of a policy before they are numbered: candidates are collected, checked against the device,
//! and turned into a program once they are ranked. Only what a kept flow uses gets a queue or a class.

use std::collections::BTreeMap;

use crate::diagnostics::{Diagnostic, Place};
use crate::ids::{ClassId, GroupId, QueueId, RuleId};
use crate::policy::Policy;
use crate::profile::{DeviceProfile, Limit};
use crate::program::{
    Class, DEFAULT_RULE, Decide, Flow, FlowAction, FlowKind, Group, HashVariant, Outcome, Program, RssQueue,
    Step,
};

use super::classes::{Expanded, MAX_STEPS, decide, decide_all, verdict};
use super::cluster::cluster;
use super::cube::{Cube, SENT};
use super::emit;
use super::findings::{Findings, Obstacle};
use super::number;
use super::pack::{Packed, pack};
use super::placing::{Placing, placements};
use super::priority::{Candidate, Ranking};
use super::tables::{self, Variant};

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
    /// The program whose tags are to be kept.
    pub(super) previous: Option<&'p Program>,
}

/// Flows that are not ranked yet.
pub(super) struct Draft<'p> {
    plan: Plan<'p>,
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

    fn place(&self, rule: usize) -> &Place {
        self.policy.rules.get(rule).map_or(&self.policy.default_place, |rule| &rule.place)
    }

    fn name(&self, rule: usize) -> &str {
        self.policy.rules.get(rule).map_or(DEFAULT_RULE, |rule| rule.name.as_str())
    }

    fn number(&self, rule: usize) -> Option<usize> {
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
        let everything: Vec<Cube> = Cube::ANY.with(SENT, 0, 1).into_iter().collect();
        for index in 0..draft.plan.placing.len() {
            let cubes = match draft.plan.rules.get_mut(index) {
                Some(rule) => std::mem::take(&mut rule.expansion.cubes),
                None => everything.clone(),
            };
            draft.place_rule(index, &cubes, &variants, &queue_of);
            if let Some(rule) = draft.plan.rules.get_mut(index) {
                rule.expansion.cubes = cubes;
            }
            if draft.candidates.len() > MAX_FLOWS {
                problems.diagnostics.push(too_many_flows(draft.plan.place(index)));
                break;
            }
        }
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
        self.candidates.extend(candidates.take(MAX_FLOWS + 1));
    }

    /// Spends flows to save masks, where the device has too few of these: first over all priorities, then
    /// within each.
    pub(super) fn save_masks(&mut self, ranking: &mut Ranking) {
        let profile = self.plan.profile;
        let most_flows = profile.max_flows.map_or(MAX_FLOWS, |most| (most as usize / 2).min(MAX_FLOWS));
        let budget = |flows: usize| most_flows.saturating_sub(flows);
        if let Some(most) = profile.max_shapes {
            let flows = ranking.kept.len();
            cluster(&mut self.candidates, &mut ranking.kept, most as usize, budget(flows));
            // Another program, with masks of its own, is to find room beside this one: worth some flows.
            let flows = ranking.kept.len();
            let spare = budget(flows).min(flows / 4);
            cluster(&mut self.candidates, &mut ranking.kept, most as usize / 2, spare);
        }
        let Some(table) = profile.priority_table else { return };
        let ranks = ranking.kept.iter().map(|(_, rank)| rank + 1).max().unwrap_or(0);
        let offered = profile.priorities_per_program();
        if pack(&self.candidates, &ranking.kept, Some(table)).priorities <= offered || ranks > offered {
            return;
        }
        let mut by_rank: Vec<Vec<(usize, u32)>> = vec![Vec::new(); ranks as usize];
        for (index, rank) in &ranking.kept {
            by_rank[*rank as usize].push((*index, *rank));
        }
        for kept in &mut by_rank {
            let flows = kept.len();
            let room = (table.groups * table.group_entries) as usize;
            cluster(&mut self.candidates, kept, table.groups as usize, room.saturating_sub(flows));
        }
        ranking.kept = by_rank.concat();
        ranking.kept.sort_by_key(|(index, _)| (self.candidates[*index].rule, *index));
    }

    /// What of it the device has too little of; gives the flows their priorities.
    pub(super) fn pack(&self, ranking: &Ranking, problems: &mut Findings) -> Packed {
        let (plan, profile) = (&self.plan, self.plan.profile);
        let device = &profile.name;
        let packed = pack(&self.candidates, &ranking.kept, profile.priority_table);
        let priorities = profile.priorities_per_program();
        if packed.priorities > priorities {
            self.too_many_priorities(ranking, &packed, problems);
        }
        let flows = ranking.kept.len();
        let before = plan.previous.map_or(0, |previous| previous.flows.len());
        let most = profile.max_flows.map_or(MAX_FLOWS, |most| (most as usize).saturating_sub(before));
        if let Some((index, _)) = ranking.kept.get(most.min(MAX_FLOWS)) {
            let rule = self.candidates[*index].rule;
            let room =
                if before > 0 { format!(", {before} of them the program before") } else { String::new() };
            let most = profile.max_flows.map_or(MAX_FLOWS, |most| most as usize);
            let obstacle = Obstacle {
                rule: plan.number(rule),
                reason: format!("the policy takes {flows} flows, `{device}` has {most}{room}"),
                limit: format!("{most} flows"),
                errno: Some(profile.errno(Limit::Flows)),
                remedy: "a reload needs the old and the new flows at once; use shorter lists".to_owned(),
            };
            problems.refuse(plan.place(rule), "up to here they fit", obstacle);
        }
        let ethernet_first = profile.multicast_ignores_priority;
        let kept = ranking.kept.iter().map(|(index, _)| &self.candidates[*index]);
        let longest =
            kept.map(|candidate| (emit::spec_count(&candidate.cube, ethernet_first), candidate.rule)).max();
        if let Some((specs, rule)) = longest.filter(|(specs, _)| specs + ACTION_SPECS > profile.max_specs) {
            let obstacle = Obstacle {
                rule: plan.number(rule),
                reason: format!(
                    "a flow of the rule `{}` takes {specs} specs and two actions",
                    plan.name(rule)
                ),
                limit: format!("`{device}` takes {} together", profile.max_specs),
                errno: Some(profile.errno(Limit::Specs)),
                remedy: "match fewer layers in one rule".to_owned(),
            };
            problems.refuse(plan.place(rule), "", obstacle);
        }
        packed
    }

    fn too_many_priorities(&self, ranking: &Ranking, packed: &Packed, problems: &mut Findings) {
        let (plan, profile) = (&self.plan, self.plan.profile);
        let (used, offered, device) = (packed.priorities, profile.priorities_per_program(), &profile.name);
        let chain: Vec<&str> = ranking.longest.iter().map(|rule| plan.name(*rule)).collect();
        let ranks = ranking.kept.iter().map(|(_, rank)| rank + 1).max().unwrap_or(0);
        let (rule, label, remedy, limit) = match &packed.widest {
            Some(widest) if ranks <= offered => {
                let table = profile.priority_table;
                let limit = table.map_or(String::new(), |table| {
                    format!("{} masks of {} flows each in one priority", table.groups, table.group_entries)
                });
                let remedy = format!(
                    "{} masks in one place take {} priorities: use fewer prefix lengths and port ranges",
                    widest.masks, widest.priorities
                );
                (self.candidates[widest.candidate].rule, "one of its masks is the rarest", remedy, limit)
            }
            _ => {
                let last = ranking.longest.last().copied().unwrap_or(0);
                let remedy = match &*chain {
                    [_] => "its hash variants (TCP, UDP, other IP, the rest) take a priority each: hash = \"l3\" \
                            takes fewer, \"none\" one"
                        .to_owned(),
                    _ => format!("these rules overlap one another in turn: {}", shortened_chain(&chain)),
                };
                (last, "the last of the longest chain", remedy, format!("{offered} priorities"))
            }
        };
        let obstacle = Obstacle {
            rule: plan.number(rule),
            reason: format!("the policy needs {used} priorities, `{device}` has {offered} for it"),
            limit,
            errno: Some(profile.errno(Limit::Priorities)),
            remedy,
        };
        problems.refuse(plan.place(rule), label, obstacle);
    }

    /// Numbers what is left, and writes it down.
    pub(super) fn finish(mut self, packed: &Packed, problems: &mut Findings) -> Option<Program> {
        let used = self.used_queues(packed);
        let mut next = 0..;
        let queue_of: Vec<Option<QueueId>> =
            used.iter().map(|used| used.then(|| next.next().map(QueueId)).flatten()).collect();
        let has_tags = self.plan.profile.has_tags();
        let (class_of, classes) = self.classes(packed, has_tags, problems)?;
        let mut flow_counts = vec![0u32; self.plan.rules.len() + 1];
        let ethernet_first = self.plan.profile.multicast_ignores_priority;
        let mut flows = Vec::with_capacity(packed.flows.len() + 1);
        for (index, priority) in &packed.flows {
            let Candidate { cube, rule, action, traps } = &self.candidates[*index];
            flow_counts[*rule] += 1;
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
            // `pack` has kept it below the device's priorities, which are fewer than 2^16.
            let priority = u16::try_from(*priority).unwrap_or(u16::MAX);
            let chain = emit::chain(cube, ethernet_first);
            let (specs, inner_from) = (chain.specs, chain.inner_from);
            flows.push(Flow { rule: RuleId::of(*rule), priority, kind, specs, inner_from, action });
        }
        let priorities_used = flows.last().map_or(0, |flow| flow.priority.saturating_add(1));
        if let Some((rule, queue)) = self.sniffer
            && let (Some(queue), Some(class)) = (queue_of[queue.index()], class_of[rule])
        {
            flow_counts[rule] += 1;
            let (rule, action) = (RuleId::of(rule), FlowAction::Steer { queue, class });
            let (kind, specs) = (FlowKind::Sniffer, Vec::new());
            flows.push(Flow { rule, priority: 0, kind, specs, inner_from: 0, action });
        }
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
            exceptions: self.exceptions(),
            default: self.plan.default().verdict,
            groups: self.plan.groups,
            queues,
            priorities_used,
            flows,
            classes,
            untagged,
        })
    }

    /// The class of each rule, and the classes: one costs every worker, so only kept flows have any.
    fn classes(&self, packed: &Packed, has_tags: bool, problems: &mut Findings) -> Option<Numbered> {
        let plan = &self.plan;
        let default = plan.rules.len();
        let mut steers = vec![false; default + 1];
        for (index, _) in &packed.flows {
            let Candidate { rule, action, .. } = &self.candidates[*index];
            steers[*rule] |= matches!(self.actions[*action as usize], DraftAction::Steer(_));
        }
        if let Some((rule, _)) = self.sniffer {
            steers[rule] = true;
        }
        let mut decided: Vec<(usize, Decide)> = Vec::new();
        if !has_tags {
            if steers.contains(&true) {
                decided.push((default, decide_all(&plan.rules, plan.default())));
            }
        } else {
            for index in (0..=default).filter(|index| steers[*index]) {
                decided.push((index, decide(&plan.rules, index, plan.default())));
            }
        }
        for (index, decide) in &decided {
            if let Decide::Software(steps, _) = decide
                && steps.len() > MAX_STEPS
            {
                too_many_steps(plan, *index, problems);
                return None;
            }
        }
        let names: Vec<&str> = decided.iter().map(|(index, _)| plan.name(*index)).collect();
        let ids = number::stable(&names, plan.previous);
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

    /// Rules that leave packets to the host and need no flow for it.
    fn exceptions(&self) -> Vec<Step> {
        let rules = self.plan.rules.iter().enumerate();
        let left = rules.filter(|(index, rule)| {
            rule.claims()
                && verdict(rule.action) == crate::program::Verdict::Kernel
                && self.plan.placing[*index] == Placing::Nothing
        });
        left.map(|(index, rule)| rule.step(index)).collect()
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

fn too_many_steps(plan: &Plan<'_>, rule: usize, problems: &mut Findings) {
    let (reason, remedy) = match plan.policy.rules.get(rule) {
        Some(rule) => (
            format!("packets of the rule `{}` may belong to more than {MAX_STEPS} rules", rule.name),
            "a worker would try them one by one: add exact keys beside the hybrid ones, so that fewer rules \
             share packets with this one",
        ),
        None => (
            format!("every packet may belong to more than {MAX_STEPS} rules"),
            "the device has no flow tags, so a worker would try them one by one: write fewer rules",
        ),
    };
    let obstacle = Obstacle {
        rule: plan.number(rule),
        reason,
        limit: format!("{MAX_STEPS} questions per packet"),
        errno: None,
        remedy: remedy.to_owned(),
    };
    problems.refuse(plan.place(rule), "decided by the worker", obstacle);
}

/// The policy has reached [`MAX_FLOWS`] at this place.
pub(super) fn too_many_flows(place: &Place) -> Diagnostic {
    let message = format!("the policy takes more than {MAX_FLOWS} flows");
    place.error(message, "up to here").hint("use shorter lists or wider prefixes")
}

fn shortened_chain(chain: &[&str]) -> String {
    const SHOWN: usize = 6;
    match chain.len() {
        length if length > SHOWN => format!("{}, ... {length} rules", chain[..SHOWN].join(", ")),
        _ => chain.join(", "),
    }
}

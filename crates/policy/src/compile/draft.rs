//! The flows of a policy before they are numbered: candidates are collected, checked against the device,
//! and turned into a program once they are ranked. Only what a kept flow uses gets a queue or a class.

use std::collections::BTreeMap;

use crate::diagnostics::{Diagnostic, Diagnostics, Place};
use crate::ids::{ClassId, GroupId, QueueId, RuleId};
use crate::policy::{Action, Policy, RuleDefinition};
use crate::profile::DeviceProfile;
use crate::program::{
    Class, DEFAULT_RULE, Decide, Flow, FlowAction, Group, HashVariant, Outcome, Placement, Program, RssQueue,
    Rule,
};

use super::classes::{Expanded, MAX_STEPS, decide, verdict};
use super::cube::Cube;
use super::emit;
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
    Steer(QueueId),
}

/// The final numbers of queues (by draft) and classes (by rule), and the classes.
type Numbers = (Vec<Option<QueueId>>, Vec<Option<ClassId>>, Vec<Class>);

/// Flows that are not ranked yet.
pub(super) struct Draft {
    pub(super) candidates: Vec<Candidate>,
    /// What `Candidate::action` stands for.
    actions: Vec<DraftAction>,
    /// As many as the cubes need; ranking may leave some without a flow.
    queues: Vec<RssQueue>,
    default: Outcome,
    /// Where the device delivers each rule's packets.
    landing: Vec<Option<GroupId>>,
}

impl Draft {
    pub(super) fn new(
        policy: &Policy,
        profile: &DeviceProfile,
        groups: &[Group],
        rules: &[Expanded],
        landing: &[Option<GroupId>],
        problems: &mut Diagnostics,
    ) -> Self {
        let default = Outcome { rule: RuleId::of(rules.len()), verdict: verdict(policy.default) };
        let mut draft = Self {
            candidates: Vec::new(),
            actions: vec![DraftAction::Drop],
            queues: Vec::new(),
            default,
            landing: landing.to_vec(),
        };
        let variants: Vec<Vec<Variant>> =
            groups.iter().map(|group| tables::variants(group, profile)).collect();
        let queue_of = draft.queues_needed(groups, rules, landing, &variants);
        for (index, group) in landing.iter().enumerate() {
            let cubes: &[Cube] = match rules.get(index) {
                Some(rule) => &rule.expansion.cubes,
                None if policy.default == Action::Kernel => &[],
                None => &[Cube::ANY],
            };
            match group {
                None => draft.push(cubes.iter().copied(), index, 0),
                Some(group) => {
                    for variant in &variants[group.index()] {
                        let action = queue_of.get(&(*group, variant.variant)).copied().unwrap_or(0);
                        draft.push(variant_part(cubes, variant, &variants[group.index()]), index, action);
                    }
                }
            }
            if draft.candidates.len() > MAX_FLOWS {
                let place = policy.rules.get(index).map_or(&policy.default_place, |rule| &rule.place);
                problems.push(too_many_flows(place));
                break;
            }
        }
        draft
    }

    /// One queue for every group and variant that some cube needs; numbered by group, then variant.
    fn queues_needed(
        &mut self,
        groups: &[Group],
        rules: &[Expanded],
        landing: &[Option<GroupId>],
        variants: &[Vec<Variant>],
    ) -> BTreeMap<(GroupId, HashVariant), u32> {
        let mut needed = BTreeMap::new();
        for (index, group) in landing.iter().enumerate() {
            let Some(group) = group else { continue };
            let cubes: &[Cube] = rules.get(index).map_or(&[Cube::ANY], |rule| &rule.expansion.cubes);
            let all = &variants[group.index()];
            for variant in all {
                let key = (*group, variant.variant);
                if !needed.contains_key(&key) && variant_part(cubes, variant, all).next().is_some() {
                    needed.insert(key, 0);
                }
            }
        }
        for ((group, name), action) in &mut needed {
            let Some(variant) = variants[group.index()].iter().find(|variant| variant.variant == *name)
            else {
                continue;
            };
            let mut table = groups[group.index()].table.clone();
            if variant.fields.is_empty() {
                table.truncate(1);
            }
            *action = self.actions.len() as u32;
            self.actions.push(DraftAction::Steer(QueueId::of(self.queues.len())));
            self.queues.push(RssQueue { group: *group, variant: *name, fields: variant.fields, table });
        }
        needed
    }

    fn push(&mut self, cubes: impl Iterator<Item = Cube>, rule: usize, action: u32) {
        self.candidates.extend(cubes.map(|cube| Candidate { cube, rule, action }).take(MAX_FLOWS + 1));
    }

    pub(super) fn check_fits(
        &self,
        policy: &Policy,
        profile: &DeviceProfile,
        ranking: &Ranking,
        problems: &mut Diagnostics,
    ) {
        let place = |rule: usize| policy.rules.get(rule).map_or(&policy.default_place, |rule| &rule.place);
        let name = |rule: usize| policy.rules.get(rule).map_or(DEFAULT_RULE, |rule| rule.name.as_str());
        let device = &profile.name;
        let used = ranking.kept.iter().map(|(_, rank)| rank + 1).max().unwrap_or(0);
        let priorities = profile.priorities_per_program();
        if used > priorities {
            let last = ranking.longest.last().copied().unwrap_or(0);
            let chain: Vec<&str> = ranking.longest.iter().map(|rule| name(*rule)).collect();
            let message = format!("the policy needs {used} priorities, `{device}` has {priorities} for it");
            let hint = match &*chain {
                [_] => {
                    "its hash variants (TCP, UDP, other IP, the rest) take a priority each: hash = \"l3\" \
                        takes fewer, \"none\" one"
                        .to_owned()
                }
                _ => format!("these rules overlap one another in turn: {}", shortened_chain(&chain)),
            };
            problems.push(place(last).error(message, "the last of the longest chain").hint(hint));
        }
        let flows = ranking.kept.len();
        let max_flows = profile.flows_per_program().map_or(MAX_FLOWS, |most| most.min(MAX_FLOWS));
        if let Some((index, _)) = ranking.kept.get(max_flows) {
            let rule = self.candidates[*index].rule;
            let message = format!("the policy takes {flows} flows, `{device}` has {max_flows} for it");
            let error = place(rule).error(message, "up to here they fit");
            problems.push(error.hint("a reload needs the old and the new flows at once; use shorter lists"));
        }
        let queues = self.used_queues(ranking).iter().filter(|used| **used).count();
        if let Some(most) = profile.queues_per_program().filter(|most| queues > *most) {
            let message = format!("the policy takes {queues} queue pairs, `{device}` has {most} for it");
            let error = policy.default_place.error(message, "too many groups or hash variants");
            problems.push(error.hint("hash = \"l3\" takes three queue pairs per group, \"none\" one"));
        }
        let kept = ranking.kept.iter().map(|(index, _)| &self.candidates[*index]);
        let longest = kept.map(|candidate| (emit::spec_count(&candidate.cube), candidate.rule)).max();
        if let Some((specs, rule)) = longest.filter(|(specs, _)| specs + ACTION_SPECS > profile.max_specs) {
            let message = format!("a flow of the rule `{}` takes {specs} specs and two actions", name(rule));
            let label = format!("`{device}` takes {} together", profile.max_specs);
            problems.push(place(rule).error(message, label).hint("match fewer layers in one rule"));
        }
    }

    pub(super) fn finish(
        mut self,
        policy: &Policy,
        groups: Vec<Group>,
        rules: &[Expanded],
        ranking: &Ranking,
    ) -> Result<Program, Diagnostics> {
        let landing = std::mem::take(&mut self.landing);
        let (queue_of, class_of, classes) = self.number(policy, rules, ranking)?;
        let mut flow_counts = vec![0u32; rules.len() + 1];
        let mut kept = ranking.kept.clone();
        // By priority; within one, the policy's order stays.
        kept.sort_by_key(|(index, rank)| (*rank, *index));
        let mut flows = Vec::with_capacity(kept.len());
        for (index, rank) in kept {
            let Candidate { cube, rule, action } = &self.candidates[index];
            flow_counts[*rule] += 1;
            let action = match (self.actions[*action as usize], class_of[*rule]) {
                (DraftAction::Steer(queue), Some(class)) => {
                    FlowAction::Steer { queue: queue_of[queue.index()].unwrap_or(queue), class }
                }
                _ => FlowAction::Drop,
            };
            // `check_fits` has kept the rank below the device's priorities, which are fewer than 2^16.
            let priority = u16::try_from(rank).unwrap_or(u16::MAX);
            flows.push(Flow { rule: RuleId::of(*rule), priority, specs: emit::specs(cube), action });
        }
        let mut queues = std::mem::take(&mut self.queues);
        let mut used = queue_of.iter().map(Option::is_some);
        queues.retain(|_| used.next() == Some(true));
        Ok(Program {
            rules: self.rules(policy, rules, &flow_counts, &classes, &landing),
            groups,
            queues,
            priorities_used: flows.last().map_or(0, |flow| flow.priority.saturating_add(1)),
            flows,
            classes,
            default: self.default.verdict,
        })
    }

    /// Numbers the queues and classes that kept flows use: a queue costs the device, a class every worker.
    fn number(&self, policy: &Policy, rules: &[Expanded], ranking: &Ranking) -> Result<Numbers, Diagnostics> {
        let mut rule_steers = vec![false; rules.len() + 1];
        for (index, _) in &ranking.kept {
            let Candidate { rule, action, .. } = &self.candidates[*index];
            rule_steers[*rule] |= matches!(self.actions[*action as usize], DraftAction::Steer(_));
        }
        let mut queues = 0..;
        let used = self.used_queues(ranking);
        let queue_of = used.iter().map(|used| used.then(|| queues.next().map(QueueId)).flatten()).collect();
        let mut classes = Vec::new();
        let mut class_of = vec![None; rules.len() + 1];
        for index in (0..=rules.len()).filter(|index| rule_steers[*index]) {
            class_of[index] = Some(ClassId::of(classes.len()));
            let decide = decide(rules, index, self.default);
            match (&decide, policy.rules.get(index)) {
                (Decide::Software(steps, _), Some(rule)) if steps.len() > MAX_STEPS => {
                    return Err(vec![too_many_steps(rule)].into());
                }
                _ => classes.push(Class { decide }),
            }
        }
        Ok((queue_of, class_of, classes))
    }

    /// Which of the queues some kept flow leads to.
    fn used_queues(&self, ranking: &Ranking) -> Vec<bool> {
        let mut used = vec![false; self.queues.len()];
        for (index, _) in &ranking.kept {
            if let DraftAction::Steer(queue) = self.actions[self.candidates[*index].action as usize] {
                used[queue.index()] = true;
            }
        }
        used
    }

    fn rules(
        &self,
        policy: &Policy,
        rules: &[Expanded],
        flows: &[u32],
        classes: &[Class],
        landing: &[Option<GroupId>],
    ) -> Vec<Rule> {
        let mut asked = vec![false; rules.len() + 1];
        for class in classes {
            if let Decide::Software(steps, otherwise) = &class.decide {
                steps
                    .iter()
                    .map(|step| step.rule)
                    .chain([otherwise.rule])
                    .for_each(|rule| asked[rule.index()] = true);
            }
        }
        let placement = |index: usize, expanded: &Expanded| match expanded.expansion.software.join(", ") {
            keys if !keys.is_empty() => {
                let lands = landing[index].and_then(|group| policy.groups.get(group.index()));
                let worker = match lands.filter(|_| expanded.action == Action::Drop) {
                    Some(group) => format!("a worker of `{}`", group.name),
                    None => "the worker".to_owned(),
                };
                Placement::Hybrid { reason: format!("{keys}: the device matches more, {worker} decides") }
            }
            _ if flows[index] == 0 && asked[index] => {
                Placement::Hybrid { reason: "earlier hybrid rules take its packets to the worker".to_owned() }
            }
            _ => Placement::Hardware,
        };
        let mut listed: Vec<Rule> = Vec::with_capacity(rules.len() + 1);
        for (index, (rule, expanded)) in policy.rules.iter().zip(rules).enumerate() {
            listed.push(Rule {
                name: rule.name.clone(),
                action: verdict(rule.action),
                line: rule.name_place.line(),
                placement: placement(index, expanded),
                count: rule.count,
                flows: flows[index],
            });
        }
        listed.push(Rule {
            name: DEFAULT_RULE.to_owned(),
            action: self.default.verdict,
            line: if policy.default_given { policy.default_place.line() } else { 0 },
            placement: Placement::Hardware,
            count: true,
            flows: flows[rules.len()],
        });
        listed
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

fn too_many_steps(rule: &RuleDefinition) -> Diagnostic {
    let message = format!("packets of the rule `{}` may belong to more than {MAX_STEPS} rules", rule.name);
    let hint = "a worker would try them one by one: add exact keys beside the hybrid ones, so that fewer \
                rules share packets with this one";
    rule.place.error(message, "decided by the worker").hint(hint)
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

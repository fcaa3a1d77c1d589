//! A [`Policy`] to a [`Program`] for one device. Each rule is covered by cubes (`expand`), those are cut by
//! hash variant (`tables`), ranked (`priority`) and written as specs (`emit`); what the device cannot
//! decide becomes a software class (`classes`). Deterministic: no step depends on a hash map's order.

mod classes;
mod cube;
mod emit;
mod expand;
mod priority;
mod tables;

use std::collections::BTreeMap;

use crate::diagnostics::Diagnostics;
use crate::ids::{ClassId, GroupId, QueueId, RuleId};
use crate::policy::{Action, Policy};
use crate::predicate::Predicate;
use crate::profile::DeviceProfile;
use crate::program::{
    Class, DEFAULT_RULE, Decide, Flow, FlowAction, Group, HashVariant, Outcome, Placement, Program, RssQueue,
    Rule, Verdict,
};

use classes::{Expanded, decide, verdict};
use cube::Cube;
use expand::{Expansion, Explosion, MAX_CUBES_PER_RULE, expand};
use priority::{Candidate, Ranking};
use tables::Variant;

/// The most flows of one program, whatever the device says: beyond it installing takes minutes.
pub(crate) const MAX_FLOWS: usize = 1 << 18;
/// Specs beside which a flow carries two actions: the tag or drop, and a counter.
const ACTION_SPECS: u32 = 2;

/// Compiles a policy for a device and a number of workers.
///
/// # Errors
/// All that does not fit: workers out of range, tables, flows or priorities beyond the device's limits.
pub fn compile(policy: &Policy, profile: &DeviceProfile, workers: usize) -> Result<Program, Diagnostics> {
    let mut problems = Diagnostics::default();
    let groups = tables::groups(policy, profile, workers, &mut problems);
    let rules = expand_rules(policy, &mut problems);
    let landing = landing_groups(policy, &rules, &mut problems);
    if problems.has_errors() {
        problems.sort();
        return Err(problems);
    }
    let draft = Draft::new(policy, profile, &groups, &rules, &landing, &mut problems);
    let ranking = priority::rank(&draft.candidates);
    draft.check_fits(policy, profile, &ranking, &mut problems);
    if problems.has_errors() {
        problems.sort();
        return Err(problems);
    }
    Ok(draft.finish(policy, groups, &rules, &ranking))
}

fn expand_rules(policy: &Policy, problems: &mut Diagnostics) -> Vec<Expanded> {
    let mut rules = Vec::with_capacity(policy.rules.len());
    for rule in &policy.rules {
        let expansion = expand(&rule.matches).unwrap_or_else(|Explosion { combinations, keys }| {
            let keys: Vec<String> =
                keys.iter().take(3).map(|(key, count)| format!("`{key}` ({count})")).collect();
            let message = format!("the rule `{}` takes up to {combinations} combinations", rule.name);
            let label = format!("a rule may take {MAX_CUBES_PER_RULE}");
            let hint =
                format!("most come from {}: use fewer, aligned to powers of two", keys.join(" times "));
            problems.push(rule.place.error(message, label).hint(hint));
            Expansion { cubes: Vec::new(), software: Vec::new() }
        });
        rules.push(Expanded { expansion, predicate: Predicate::of(&rule.matches), action: rule.action });
    }
    rules
}

/// The group to which the device delivers a rule's packets, and the default's last; `None` where it does
/// not deliver.
///
/// A hybrid drop must go to some worker. The best is where its packets go if they are not to be dropped.
fn landing_groups(policy: &Policy, rules: &[Expanded], problems: &mut Diagnostics) -> Vec<Option<GroupId>> {
    let default = Outcome { rule: RuleId::of(rules.len()), verdict: verdict(policy.default) };
    let mut landing = Vec::with_capacity(rules.len() + 1);
    for (index, (rule, definition)) in rules.iter().zip(&policy.rules).enumerate() {
        landing.push(match (rule.action, rule.is_hybrid()) {
            (Action::Steer(group), _) => Some(group),
            (_, false) => None,
            (_, true) => {
                let next = next_group(&decide(rules, index, default));
                let group = next.or_else(|| (!policy.groups.is_empty()).then_some(GroupId(0)));
                if group.is_none() {
                    let keys = rule.expansion.software.join(", ");
                    let message = format!("`{}` drops by {keys}, which takes a worker", definition.name);
                    let error = definition.place.error(message, "the device cannot match this alone");
                    problems.push(error.hint("add a group: its workers look at these packets and drop them"));
                }
                group
            }
        });
    }
    landing.push(match policy.default {
        Action::Steer(group) => Some(group),
        Action::Drop | Action::Kernel => None,
    });
    landing
}

/// The first group that a software class may deliver to.
fn next_group(decide: &Decide) -> Option<GroupId> {
    let Decide::Software(steps, otherwise) = decide else { return None };
    steps.iter().map(|step| step.outcome).chain([*otherwise]).find_map(|outcome| match outcome.verdict {
        Verdict::Deliver(group) => Some(group),
        Verdict::Drop | Verdict::Kernel => None,
    })
}

/// What a candidate does, before queues and classes have their final numbers.
#[derive(Clone, Copy)]
enum DraftAction {
    Drop,
    Steer(QueueId),
}

/// Flows that are not ranked yet.
struct Draft {
    candidates: Vec<Candidate>,
    /// What `Candidate::action` stands for.
    actions: Vec<DraftAction>,
    queues: Vec<RssQueue>,
    classes: Vec<Class>,
    class_of: Vec<Option<ClassId>>,
    default: Outcome,
}

impl Draft {
    fn new(
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
            classes: Vec::new(),
            class_of: vec![None; rules.len() + 1],
            default,
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
                    if !cubes.is_empty() {
                        draft.class_of[index] = Some(ClassId::of(draft.classes.len()));
                        draft.classes.push(Class { decide: decide(rules, index, default) });
                    }
                }
            }
            if draft.candidates.len() > MAX_FLOWS {
                let place = policy.rules.get(index).map_or(&policy.default_place, |rule| &rule.place);
                let message = format!("the policy takes more than {MAX_FLOWS} flows");
                problems.push(place.error(message, "up to here").hint("use shorter lists or wider prefixes"));
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

    fn check_fits(
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
            let hint = format!("these rules overlap one another in turn: {}", shortened_chain(&chain));
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
        if let Some(most) = profile.queues_per_program().filter(|most| self.queues.len() > *most) {
            let message =
                format!("the policy takes {} queue pairs, `{device}` has {most} for it", self.queues.len());
            let error = policy.default_place.error(message, "too many groups or hash variants");
            problems.push(error.hint("hash = \"l3\" takes three queue pairs per group, \"none\" one"));
        }
        let longest =
            self.candidates.iter().map(|candidate| (emit::spec_count(&candidate.cube), candidate.rule)).max();
        if let Some((specs, rule)) = longest.filter(|(specs, _)| specs + ACTION_SPECS > profile.max_specs) {
            let message = format!("a flow of the rule `{}` takes {specs} specs and two actions", name(rule));
            let label = format!("`{device}` takes {} together", profile.max_specs);
            problems.push(place(rule).error(message, label).hint("match fewer layers in one rule"));
        }
    }

    fn finish(self, policy: &Policy, groups: Vec<Group>, rules: &[Expanded], ranking: &Ranking) -> Program {
        let mut flow_counts = vec![0u32; rules.len() + 1];
        let mut kept = ranking.kept.clone();
        // By priority; within one, the policy's order stays.
        kept.sort_by_key(|(index, rank)| (*rank, *index));
        let mut flows = Vec::with_capacity(kept.len());
        for (index, rank) in kept {
            let Candidate { cube, rule, action } = &self.candidates[index];
            flow_counts[*rule] += 1;
            let action = match (self.actions[*action as usize], self.class_of[*rule]) {
                (DraftAction::Steer(queue), Some(class)) => FlowAction::Steer { queue, class },
                _ => FlowAction::Drop,
            };
            // `check_fits` has kept the rank below the device's priorities, which are fewer than 2^16.
            let priority = u16::try_from(rank).unwrap_or(u16::MAX);
            flows.push(Flow { rule: RuleId::of(*rule), priority, specs: emit::specs(cube), action });
        }
        let mut listed: Vec<Rule> = policy
            .rules
            .iter()
            .enumerate()
            .map(|(index, rule)| Rule {
                name: rule.name.clone(),
                action: verdict(rule.action),
                line: rule.name_place.line(),
                placement: self.placement(rules, index, flow_counts[index]),
                count: rule.count,
                flows: flow_counts[index],
            })
            .collect();
        listed.push(Rule {
            name: DEFAULT_RULE.to_owned(),
            action: self.default.verdict,
            line: if policy.default_given { policy.default_place.line() } else { 0 },
            placement: Placement::Hardware,
            count: true,
            flows: flow_counts[rules.len()],
        });
        Program {
            rules: listed,
            groups,
            queues: self.queues,
            priorities_used: flows.last().map_or(0, |flow| flow.priority.saturating_add(1)),
            flows,
            classes: self.classes,
            default: self.default.verdict,
        }
    }

    fn placement(&self, rules: &[Expanded], index: usize, flows: u32) -> Placement {
        let software = rules.get(index).map_or(&[][..], |rule| &rule.expansion.software);
        if !software.is_empty() {
            let keys = software.join(", ");
            return Placement::Hybrid {
                reason: format!("{keys}: the device matches more, the worker decides"),
            };
        }
        let asked = |class: &Class| match &class.decide {
            Decide::Exact(_) => false,
            Decide::Software(steps, otherwise) => {
                let rule = RuleId::of(index);
                otherwise.rule == rule || steps.iter().any(|step| step.rule == rule)
            }
        };
        match flows == 0 && self.classes.iter().any(asked) {
            true => {
                Placement::Hybrid { reason: "earlier hybrid rules take its packets to the worker".to_owned() }
            }
            false => Placement::Hardware,
        }
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

fn shortened_chain(chain: &[&str]) -> String {
    const SHOWN: usize = 6;
    match chain.len() {
        length if length > SHOWN => format!("{}, ... {length} rules", chain[..SHOWN].join(", ")),
        _ => chain.join(", "),
    }
}

/// Why a rule gets no packets.
pub(crate) enum Taken {
    /// No packet meets it.
    Impossible,
    /// These earlier rules take them all.
    By(Vec<usize>),
}

/// Which earlier rules take the packets of a rule that gets none; slow, for diagnostics only.
pub(crate) fn taken_by(policy: &Policy, rule: usize) -> Taken {
    let cover = |index: usize| policy.rules.get(index).and_then(|rule| expand(&rule.matches).ok());
    let mut left = cover(rule).map(|expansion| expansion.cubes).unwrap_or_default();
    if left.is_empty() {
        return Taken::Impossible;
    }
    let mut takers = Vec::new();
    for earlier in 0..rule {
        let Some(expansion) = cover(earlier) else { continue };
        let before = left.len();
        left.retain(|cube| !expansion.cubes.iter().any(|taker| taker.contains(cube)));
        if left.len() < before {
            takers.push(earlier);
        }
    }
    Taken::By(takers)
}

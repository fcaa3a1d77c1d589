//! What `steerd check` tells about a compiled policy: where each rule is decided and what in it is
//! suspicious. `report` calls it; it prints nothing. Which rules several others take together it leaves to
//! `space`.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::compile::{Covers, Taken};
use crate::diagnostics::{Diagnostic, MAX_DIAGNOSTICS};
use crate::ids::{GroupId, RuleId};
use crate::policy::Policy;
use crate::program::{Decide, FlowAction, Placement, Program, Verdict};

/// The findings.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// One line per rule, `default` last.
    pub rules: Vec<RuleCheck>,
    /// What the operator may not have meant, in the order of the policy.
    pub warnings: Vec<Diagnostic>,
}

/// One rule's line.
#[derive(Clone, Debug, Serialize)]
pub struct RuleCheck {
    /// Its name.
    pub name: String,
    /// Its line in the policy.
    pub line: u32,
    /// What it does, in words.
    pub action: String,
    /// Where it is decided.
    pub placement: Placement,
    /// How many flows it takes.
    pub flows: u32,
    /// How many questions a worker asks of one of its packets at most; 0 where the device decides.
    pub steps: u32,
}

/// Looks over a compiled policy; `program` must have been compiled from `policy`.
#[must_use]
pub fn check(policy: &Policy, program: &Program) -> Check {
    let steps = software_steps(program);
    let rules = program
        .rules
        .iter()
        .enumerate()
        .map(|(index, rule)| RuleCheck {
            name: rule.name.clone(),
            line: rule.line,
            action: program.describe(rule.action),
            placement: rule.placement.clone(),
            flows: rule.flows,
            steps: steps.get(&RuleId::of(index)).copied().unwrap_or(0),
        })
        .collect();
    let mut warnings = Vec::new();
    unreachable_rules(policy, program, &mut warnings);
    misplaced_packets(policy, program, &mut warnings);
    taken_from_the_kernel(policy, program, &mut warnings);
    unused_groups(policy, program, &mut warnings);
    warnings.sort_by_key(|warning| (warning.line, warning.column));
    Check { rules, warnings }
}

/// The steps of the class that each rule's flows lead to.
fn software_steps(program: &Program) -> BTreeMap<RuleId, u32> {
    let steps = program.flows.iter().filter_map(|flow| {
        let FlowAction::Steer { class, .. } = flow.action else { return None };
        match &program.class(class)?.decide {
            Decide::Exact(_) => None,
            Decide::Software(steps, _) => Some((flow.rule, u32::try_from(steps.len()).unwrap_or(u32::MAX))),
        }
    });
    steps.collect()
}

/// Rules that neither a flow nor a software class ever comes to. What leaves packets to the kernel, and needs
/// no flow for that, may well be reached.
fn unreachable_rules(policy: &Policy, program: &Program, warnings: &mut Vec<Diagnostic>) {
    let mut reached: BTreeSet<RuleId> = program.flows.iter().map(|flow| flow.rule).collect();
    reached.extend(program.exceptions.iter().map(|step| step.rule));
    for class in program.classes.iter().flatten() {
        match &class.decide {
            Decide::Exact(_) => {}
            Decide::Software(steps, otherwise) => {
                reached.extend(steps.iter().map(|step| step.rule));
                reached.insert(otherwise.rule);
            }
        }
    }
    let dead: Vec<usize> =
        (0..policy.rules.len()).filter(|index| !reached.contains(&RuleId::of(*index))).collect();
    if dead.is_empty() {
        return;
    }
    let covers = Covers::of(policy);
    for (told, index) in dead.iter().enumerate() {
        let Some(rule) = policy.rules.get(*index) else { continue };
        if told == MAX_DIAGNOSTICS {
            let message = format!("{} more rules never match", dead.len() - told);
            warnings.push(rule.name_place.warning(message, "from here on"));
            break;
        }
        let message = format!("the rule `{}` never matches", rule.name);
        let warning = rule.name_place.warning(message, "this rule");
        warnings.push(match covers.taken_by(*index) {
            Taken::Impossible => warning.hint("no packet meets all of its keys together"),
            Taken::By(earlier) if earlier.is_empty() => {
                warning.hint("earlier rules together take all its packets")
            }
            Taken::By(earlier) => {
                let names = earlier.iter().filter_map(|earlier| policy.rules.get(*earlier));
                let names: Vec<String> = names.map(|earlier| earlier.name.clone()).collect();
                warning.hint(format!("all its packets go to {} before it", listed(&names)))
            }
        });
    }
}

/// Hybrid rules some of whose packets turn out to belong to another group, and stay where they are.
fn misplaced_packets(policy: &Policy, program: &Program, warnings: &mut Vec<Diagnostic>) {
    let mut seen = BTreeSet::new();
    for flow in &program.flows {
        let FlowAction::Steer { queue, class } = flow.action else { continue };
        let Some(place) = policy.rules.get(flow.rule.index()).map(|rule| &rule.place) else { continue };
        if !seen.insert(flow.rule) {
            continue;
        }
        let (Some(queue), Some(class)) = (program.queues.get(queue.index()), program.class(class)) else {
            continue;
        };
        let strangers = other_groups(&class.decide, queue.group);
        let rule_name = |rule: RuleId| program.rules.get(rule.index()).map_or("?", |rule| rule.name.as_str());
        if let Some((rule, group)) = strangers.first() {
            let name =
                |group: GroupId| program.groups.get(group.index()).map_or("?", |group| group.name.as_str());
            let message = format!(
                "packets of `{}` that turn out to belong to `{}` stay with the workers of `{}`",
                rule_name(flow.rule),
                rule_name(*rule),
                name(queue.group),
            );
            let hint = format!(
                "the device cannot tell them apart, and `{}` goes to `{}`: give both rules the same group",
                rule_name(*rule),
                name(*group),
            );
            warnings.push(place.warning(message, "decided by the worker").hint(hint));
        }
    }
}

fn other_groups(decide: &Decide, here: GroupId) -> Vec<(RuleId, GroupId)> {
    let Decide::Software(steps, otherwise) = decide else { return Vec::new() };
    let outcomes = steps.iter().map(|step| step.outcome).chain([*otherwise]);
    let elsewhere = outcomes.filter_map(|outcome| match outcome.verdict {
        Verdict::Deliver(group) if group != here => Some((outcome.rule, group)),
        _ => None,
    });
    elsewhere.collect()
}

/// Hybrid rules that bring packets to a worker which belong to the host: those never come back to it.
fn taken_from_the_kernel(policy: &Policy, program: &Program, warnings: &mut Vec<Diagnostic>) {
    let mut traffic: BTreeMap<RuleId, Vec<String>> = BTreeMap::new();
    for flow in &program.flows {
        let FlowAction::Steer { class, .. } = flow.action else { continue };
        if program.class(class).is_some_and(|class| may_end_in_kernel(&class.decide)) {
            traffic.entry(flow.rule).or_default().push(flow.words());
        }
    }
    for (id, flows) in traffic {
        let Some(rule) = policy.rules.get(id.index()) else { continue };
        let notes = program.rules.get(id.index()).map(|rule| &*rule.unfinished).unwrap_or_default();
        if notes.iter().any(|note| note.why.keeps_from_host()) {
            let message =
                format!("packets of `{}` come to a worker, not to the host: {}", rule.name, listed(&flows));
            let hint = "flows of later rules take such packets and cannot leave these out: see there why, and what \
                        to write";
            warnings.push(rule.place.warning(message, "for the host").hint(hint));
            continue;
        }
        let message =
            format!("`{}` takes packets from the kernel that are not its own: {}", rule.name, listed(&flows));
        let hint = "the device sends all of these to a worker, and what no rule claims there is lost to the \
                    host: add exact keys such as `dst` and `dst_port`, or claim the rest by a later rule";
        warnings.push(rule.place.warning(message, "decided by the worker").hint(hint));
    }
}

fn may_end_in_kernel(decide: &Decide) -> bool {
    match decide {
        Decide::Exact(outcome) => outcome.verdict == Verdict::Kernel,
        Decide::Software(steps, otherwise) => {
            let outcomes = steps.iter().map(|step| step.outcome).chain([*otherwise]);
            outcomes.map(|outcome| outcome.verdict).any(|verdict| verdict == Verdict::Kernel)
        }
    }
}

/// The first few of a list, quoted.
fn listed(names: &[String]) -> String {
    const SHOWN: usize = 4;
    let shown: Vec<String> = names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect();
    match names.len() {
        count if count > SHOWN => format!("{} and {} more", shown.join(", "), count - SHOWN),
        _ => shown.join(", "),
    }
}

fn unused_groups(policy: &Policy, program: &Program, warnings: &mut Vec<Diagnostic>) {
    for (index, group) in policy.groups.iter().enumerate() {
        let verdict = Verdict::Deliver(GroupId::of(index));
        // A hybrid drop uses the group whose workers do the dropping.
        let receives = program.queues.iter().any(|queue| queue.group == GroupId::of(index));
        if !receives && !program.rules.iter().any(|rule| rule.action == verdict) {
            let message = format!("the group `{}` is never used", group.name);
            warnings
                .push(group.place.warning(message, "defined here").hint("remove it, or steer a rule to it"));
        }
    }
}

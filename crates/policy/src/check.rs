//! What `steerd check` tells about a compiled policy: where each rule is decided and what in it is
//! suspicious. Pure; prints nothing. Finds rules that single earlier rules take whole, not yet those that
//! only several take together.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::compile::{Taken, taken_by};
use crate::diagnostics::Diagnostic;
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
}

/// Looks over a compiled policy; `program` must have been compiled from `policy`.
#[must_use]
pub fn check(policy: &Policy, program: &Program) -> Check {
    let rules = program
        .rules
        .iter()
        .map(|rule| RuleCheck {
            name: rule.name.clone(),
            line: rule.line,
            action: program.describe(rule.action),
            placement: rule.placement.clone(),
            flows: rule.flows,
        })
        .collect();
    let mut warnings = Vec::new();
    unreachable_rules(policy, program, &mut warnings);
    misplaced_packets(policy, program, &mut warnings);
    unused_groups(policy, program, &mut warnings);
    warnings.sort_by_key(|warning| (warning.line, warning.column));
    Check { rules, warnings }
}

/// Rules that neither a flow nor a software class ever comes to.
fn unreachable_rules(policy: &Policy, program: &Program, warnings: &mut Vec<Diagnostic>) {
    let mut reached: BTreeSet<RuleId> = program.flows.iter().map(|flow| flow.rule).collect();
    for class in &program.classes {
        match &class.decide {
            Decide::Exact(_) => {}
            Decide::Software(steps, otherwise) => {
                reached.extend(steps.iter().map(|step| step.rule));
                reached.insert(otherwise.rule);
            }
        }
    }
    for (index, rule) in policy.rules.iter().enumerate() {
        if reached.contains(&RuleId::of(index)) {
            continue;
        }
        let message = format!("the rule `{}` never matches", rule.name);
        let warning = rule.name_place.warning(message, "this rule");
        warnings.push(match taken_by(policy, index) {
            Taken::Impossible => warning.hint("no packet meets all of its keys together"),
            Taken::By(earlier) => {
                let names = earlier.iter().filter_map(|earlier| policy.rules.get(*earlier));
                let names: Vec<String> = names.map(|earlier| format!("`{}`", earlier.name)).collect();
                warning.hint(format!("all its packets go to {} before it", names.join(", ")))
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
        let (Some(queue), Some(class)) =
            (program.queues.get(queue.index()), program.classes.get(class.index()))
        else {
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

fn unused_groups(policy: &Policy, program: &Program, warnings: &mut Vec<Diagnostic>) {
    for (index, group) in policy.groups.iter().enumerate() {
        let verdict = Verdict::Deliver(GroupId::of(index));
        if !program.rules.iter().any(|rule| rule.action == verdict) {
            let message = format!("the group `{}` is never used", group.name);
            warnings
                .push(group.place.warning(message, "defined here").hint("remove it, or steer a rule to it"));
        }
    }
}

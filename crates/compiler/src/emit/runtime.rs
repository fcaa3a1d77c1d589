//! The rules at run time that a policy allows, for the program: the numbers of their actions, and which rules
//! of the policy they come before.

use policy::policy::Action;
use program::{RuleId, RuntimeAction, RuntimeForm, RuntimeRules};

use crate::job::Job;

/// The rules at run time of the job's policy. Their actions keep the numbers that they have in the program
/// before.
pub(super) fn rules(job: &Job<'_>) -> Option<RuntimeRules> {
    let definition = job.policy.runtime.as_ref()?;
    let before = definition.before.min(job.policy.rules.len());
    let mut rules = RuntimeRules {
        before: RuleId::of(before),
        forms: definition.forms.iter().map(|fields| RuntimeForm::of(*fields)).collect(),
        actions: definition.actions.iter().map(|(text, action)| Some(allowed(job, text, *action))).collect(),
        subject: subject(job, before),
        rules_max: definition.rules_max,
        device_rules_max: definition.device_rules_max,
    };
    if let Some(previous) = job.previous.and_then(|previous| previous.runtime.as_ref()) {
        rules.keep_numbers(previous);
    }
    Some(rules)
}

fn allowed(job: &Job<'_>, text: &str, action: Action) -> RuntimeAction {
    RuntimeAction {
        text: text.to_owned(),
        verdict: action.verdict(),
        sinks: job.policy.sinks_of(action, None).to_vec(),
        // Known only to the analysis of packet sets.
        by_workers: Vec::new(),
    }
}

/// By rule, the default's last: whether its packets meet rules at run time. Those of copies do not: a rule at
/// run time decides about the packet, not about its copies.
fn subject(job: &Job<'_>, before: usize) -> Vec<bool> {
    let rules = job
        .policy
        .rules
        .iter()
        .enumerate()
        .map(|(index, rule)| index >= before && rule.action.decides(rule.direction));
    rules.chain([true]).collect()
}

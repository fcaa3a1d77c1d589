//! Rules at run time that act in the device: they become rules of the policy, in the place that it gives
//! them, and are compiled and installed with it.

use policy::Policy;
use policy::policy::InsertedRule;
use program::{RuntimeMatch, RuntimeRules};

/// A rule at run time that acts in the device.
#[derive(Clone, Debug)]
pub(crate) struct DeviceRule {
    pub(crate) id: String,
    pub(crate) matches: RuntimeMatch,
    pub(crate) both_directions: bool,
    /// The text of the action, as the policy allows it.
    pub(crate) action: String,
}

/// The names in the program of a rule at run time, and of its other direction. No rule of a policy can have
/// them.
pub(crate) fn quoted(id: &str) -> [String; 2] {
    [format!("({id})"), format!("({id}, reverse)")]
}

/// The id of the rule at run time that has this name in a program.
pub(crate) fn id_of(name: &str) -> Option<&str> {
    let quoted = name.strip_prefix('(')?.strip_suffix(')')?;
    Some(quoted.strip_suffix(", reverse").unwrap_or(quoted))
}

/// Whether a rule of a program is one at run time.
pub(crate) fn is_quoted(name: &str) -> bool {
    name.starts_with('(')
}

/// Adds the rules to the policy, which allows their actions and forms.
pub(super) fn insert(policy: &mut Policy, rules: &[DeviceRule]) {
    let Some(runtime) = &policy.runtime else { return };
    let mut added = Vec::new();
    for rule in rules {
        let Some((_, action)) = runtime.actions.iter().find(|(text, _)| *text == rule.action) else {
            continue;
        };
        let reverse = rule.both_directions.then(|| rule.matches.reversed());
        for (name, matches) in quoted(&rule.id).into_iter().zip([Some(rule.matches), reverse]) {
            added.extend(matches.map(|matches| InsertedRule { name, matches, action: *action }));
        }
    }
    policy.insert_at_run_time(added);
}

/// Notes which actions of rules at run time workers can enforce under this policy.
pub(super) fn note_enforced(policy: &Policy, rules: &mut RuntimeRules) {
    let Some(runtime) = &policy.runtime else { return };
    for allowed in rules.actions.iter_mut().flatten() {
        let action = runtime.actions.iter().find(|(text, _)| *text == allowed.text);
        allowed.by_workers =
            action.map(|(_, action)| analysis::forms_of_workers(policy, *action)).unwrap_or_default();
    }
}

//! Rules at run time that act in the device: they become rules of the policy, in the place that it gives
//! them, and are compiled and installed with it.

use policy::Policy;
use policy::policy::{Direction, RuleDefinition};
use program::{Policing, RuntimeMatch, RuntimeRules};

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

/// Whether a rule of a program is one at run time.
pub(crate) fn is_quoted(name: &str) -> bool {
    name.starts_with('(')
}

/// Adds the rules to the policy, which allows their actions and forms.
pub(super) fn insert(policy: &mut Policy, rules: &[DeviceRule]) {
    let Some(runtime) = &mut policy.runtime else { return };
    let before = runtime.before.min(policy.rules.len());
    let neighbour = policy.rules.get(before).or(policy.rules.last());
    let priority = neighbour.map_or(0, |rule| rule.priority);
    let rank = |matches: &RuntimeMatch| {
        let fields = matches.fields().ok();
        runtime.forms.iter().position(|form| Some(*form) == fields)
    };
    let mut added = Vec::new();
    for rule in rules {
        let Some((_, action)) = runtime.actions.iter().find(|(text, _)| *text == rule.action) else {
            continue;
        };
        let reverse = rule.both_directions.then(|| rule.matches.reversed());
        for (name, matches) in quoted(&rule.id).into_iter().zip([Some(rule.matches), reverse]) {
            let Some(matches) = matches else { continue };
            let definition = RuleDefinition {
                name,
                matches: matches.to_match(),
                action: *action,
                direction: Direction::Ingress,
                priority,
                count: false,
                sinks: None,
                policing: Policing::default(),
                multicast_default: false,
                place: runtime.place.clone(),
                name_place: runtime.place.clone(),
            };
            added.push((rank(&matches), definition));
        }
    }
    // In the order of the forms, as workers look them up.
    added.sort_by_key(|(rank, _)| *rank);
    runtime.before = before + added.len();
    policy.rules.splice(before..before, added.into_iter().map(|(_, rule)| rule));
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

//! Actions in words, as the policy text has them.

use policy::Policy;
use policy::policy::{Action, Direction};

/// The action of a rule of the policy text with its limit and sample, or of the default for the index after
/// the last rule: `deliver to web, 1 in 100`.
#[must_use]
pub fn written_action(policy: &Policy, index: usize) -> String {
    let group = |id: program::GroupId| policy.groups.get(id.index()).map_or("?", |group| group.name.as_str());
    let (action, direction) = policy
        .rules
        .get(index)
        .map_or((policy.default, Direction::Ingress), |rule| (rule.action, rule.direction));
    let effect = match (action, direction) {
        (Action::Steer(id), _) => format!("deliver to {}", group(id)),
        (Action::Copy(id), _) => format!("copy to {}", group(id)),
        (Action::Sniff(id), _) => format!("sniff to {}", group(id)),
        (Action::Drop, Direction::Ingress) => "drop".to_owned(),
        (Action::Drop, Direction::Egress) => "drop when sent".to_owned(),
        (Action::Kernel, Direction::Ingress) => "kernel".to_owned(),
        (Action::Pass, _) | (Action::Kernel, Direction::Egress) => "pass when sent".to_owned(),
    };
    policy.rules.get(index).map(|rule| rule.policing.describe(&effect)).unwrap_or(effect)
}

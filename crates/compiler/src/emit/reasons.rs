//! The reasons why a worker decides a rule, in English, for the program's description of its rules.

use policy::Policy;
use policy::policy::Action;
use program::{DEFAULT_RULE, RuleId, UndecidedKey, UndecidedReason};

use crate::cover::CoveredRule;
use crate::except::place::Placement;

/// Why a rule without flows is hybrid.
pub(crate) const BY_EARLIER_RULES: &str =
    "flows of earlier hybrid rules match its packets, and a worker decides";
/// Why a default that drops is hybrid.
pub(crate) const NO_DROP: &str = "the device cannot drop; a worker drops";

/// The pseudo-key for what a worker decides of a rule that overlaps more earlier ones than the device can
/// order.
pub(crate) const ORDER: &str = "order";

/// Why a rule, or the default, is hybrid by its [`ORDER`].
pub(crate) fn order_reason(policy: &Policy, note: &UndecidedKey) -> String {
    let name = |rule: RuleId| policy.rules.get(rule.index()).map_or(DEFAULT_RULE, |rule| rule.name.as_str());
    match note.why {
        UndecidedReason::Order { first, rules: rules @ 1.. } => {
            let more = if rules > 1 { format!(" and {} more", rules - 1) } else { String::new() };
            format!(
                "{} (the device has too few priorities to put `{}`{more} before it)",
                note.key,
                name(first)
            )
        }
        why => format!("{} ({})", note.key, why.words()),
    }
}

/// Why a worker finishes a rule, in a line.
pub(crate) fn hybrid_reason(
    policy: &Policy,
    rule: &CoveredRule,
    placement: Placement,
    undecided: &[UndecidedKey],
) -> String {
    let name = |rule: RuleId| policy.rules.get(rule.index()).map_or(DEFAULT_RULE, |rule| rule.name.as_str());
    let reason = |note: &UndecidedKey| match note.why {
        UndecidedReason::NoSpec => note.key.clone(),
        UndecidedReason::KernelException { by, inseparable } => {
            format!("{} (`{}` {})", note.key, name(by), inseparable.words())
        }
        UndecidedReason::Order { .. } => order_reason(policy, note),
        why => format!("{} ({})", note.key, why.words()),
    };
    let keys: Vec<String> = undecided.iter().map(reason).collect();
    let worker = match placement {
        Placement::Steer(group) if matches!(rule.action, Action::Drop | Action::Kernel) => {
            let name = policy.groups.get(group.index()).map_or("?", |group| group.name.as_str());
            format!("a worker of `{name}`")
        }
        _ => "the worker".to_owned(),
    };
    let does = match rule.action {
        _ if rule.is_hybrid() => format!("the device matches more, {worker} decides"),
        Action::Kernel => format!("{worker} receives its packets"),
        _ => format!("{worker} decides"),
    };
    format!("{}: {does}", keys.join(", "))
}

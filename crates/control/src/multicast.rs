//! Flows that match multicast only, on devices that ignore their priority (facts, mlx5): which rules have
//! them, in words. Called by the controller when a program has come into force; changes nothing.

use std::collections::BTreeSet;

use program::Program;

use crate::plan::rule_name;

/// Rules that are named; the others are counted.
const NAMES_MAX: usize = 3;

/// What such a device makes of `program`; `None` if it has no flow that matches multicast only.
pub(crate) fn remark(program: &Program) -> Option<String> {
    let rules: BTreeSet<_> =
        program.flows.iter().filter(|flow| flow.is_multicast_only()).map(|flow| flow.rule).collect();
    if rules.is_empty() {
        return None;
    }
    let names: Vec<String> =
        rules.iter().take(NAMES_MAX).map(|rule| format!("`{}`", rule_name(program, *rule))).collect();
    let more = match rules.len().saturating_sub(NAMES_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!(
        "rules that match multicast only come after all others on this device, whatever their place, and no \
         reload can keep one that steers (EEXIST): {}{more}",
        names.join(", ")
    ))
}

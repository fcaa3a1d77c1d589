//! Flows that match multicast only, on devices that ignore their priority (facts, mlx5): which rules have
//! them, in words. Called by the controller when a program has come into force; changes nothing.

use std::collections::BTreeSet;

use policy::{Flow, FlowKind, Program, Spec};

use crate::plan::rule_name;

/// Rules that are named; the others are counted.
const NAMES_MAX: usize = 3;

/// What such a device makes of `program`; `None` if it has no flow that matches multicast only.
pub(crate) fn remark(program: &Program) -> Option<String> {
    let rules: BTreeSet<_> =
        program.flows.iter().filter(|flow| only_multicast(flow)).map(|flow| flow.rule).collect();
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
        "rules that match multicast only come after all others on this device, whatever their place, and a \
         reload that changes one may be refused (EEXIST): {}{more}",
        names.join(", ")
    ))
}

/// As the kernel asks (drivers/infiniband/hw/mlx5/fs.c, flow_is_multicast_only): the first spec alone,
/// of an Ethernet address value and mask, of an IPv4 address the value.
fn only_multicast(flow: &Flow) -> bool {
    if flow.kind != FlowKind::Normal {
        return false;
    }
    match flow.specs.first() {
        Some(Spec::Ethernet { value, mask }) => value.dst_mac.is_multicast() && mask.dst_mac.is_multicast(),
        Some(Spec::Ipv4 { value, .. }) => value.dst.is_multicast(),
        _ => false,
    }
}

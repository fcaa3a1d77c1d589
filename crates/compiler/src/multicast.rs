//! Devices that take flows on multicast alone after all others, in one priority: what they cannot do in the
//! policy's order is refused. Called by `compile`; what is received is mended before, by `placing`.

use device_model::{DeviceProfile, Limit, PriorityTable};
use policy::Policy;
use policy::policy::Direction;

use super::classes::Expanded;
use super::draft::Draft;
use super::findings::{Findings, Obstacle};
use super::fit::is_multicast_only;
use super::pack::Packed;

/// Refuses rules on what the host sends to groups, if a rule behind them would get their packets: no worker
/// sees those, so there is nobody to put them right.
pub(super) fn sent_in_order(
    policy: &Policy,
    profile: &DeviceProfile,
    rules: &[Expanded],
    problems: &mut Findings,
) {
    if !profile.multicast_ignores_priority {
        return;
    }
    let is_late = |rule: &Expanded| rule.expansion.cubes.iter().any(is_multicast_only);
    let sent = |rule: &Expanded| rule.direction == Direction::Egress;
    for (index, rule) in rules.iter().enumerate().filter(|(_, rule)| sent(rule) && is_late(rule)) {
        let mut behind = rules.iter().enumerate().skip(index + 1);
        let Some((other, _)) = behind.find(|(_, other)| sent(other) && !is_late(other) && rule.meets(other))
        else {
            continue;
        };
        let (definition, other) = (&policy.rules[index], &policy.rules[other].name);
        let name = &definition.name;
        let obstacle = Obstacle {
            rule: Some(index),
            reason: format!("`{other}` would take packets that are sent by `{name}` before it"),
            limit: format!("`{}` takes flows on multicast alone after all others", profile.name),
            errno: None,
            remedy: format!(
                "leave `dst_mac` out and match groups by `dst`, or move `{name}` behind `{other}`"
            ),
        };
        problems.refuse(&definition.place, "", obstacle);
    }
}

impl Draft<'_> {
    /// Refuses more flows on multicast alone than their one priority has room for.
    pub(super) fn multicast(&self, packed: &Packed, problems: &mut Findings) {
        let (Some(index), Some(table)) = (packed.overflow, self.plan.profile.priority_table) else { return };
        let (plan, rule) = (&self.plan, self.candidates[index].rule);
        let PriorityTable { entries, groups, group_entries } = table;
        let alone = entries.saturating_sub(groups * group_entries);
        let obstacle = Obstacle {
            rule: plan.number(rule),
            reason: format!(
                "`{}` has no room for all flows on multicast alone: they share one priority",
                plan.profile.name
            ),
            limit: format!("{groups} masks of {group_entries} flows each, and {alone} flows beside them"),
            errno: Some(plan.profile.errno(Limit::PriorityTable)),
            remedy: "use fewer ranges in the rules on multicast MAC addresses, or match groups by `dst`"
                .to_owned(),
        };
        problems.refuse(plan.place(rule), "up to here they fit", obstacle);
    }
}

//! The changes for one received packet: the pairs of effects that `diff` finds for all packets, for one
//! whose rules under both policies are known.
//!
//! The effect on a packet depends on its rules alone, not on its other fields. So a packet is in a region of
//! a pair exactly if that pair is among its changes.

use policy::Policy;
use policy::policy::{Action, Direction};
use program::RuleId;

use crate::diff::pairs::{Difference, Pair};
use crate::diff::report::{Side, effects};
use crate::diff::{ComparedGroups, Effect};
use crate::rule_list::with_group;

/// The rules of a policy that a received packet meets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetRules {
    /// The rule that decides it; the index after the last rule is the default.
    pub decides: RuleId,
    /// The rules that copy or sniff it.
    pub copies: Vec<RuleId>,
}

/// Two policies, to compare what they do with single packets.
///
/// ```
/// use analysis::{MetRules, PacketComparison};
/// use policy::{NoFiles, Source};
/// use program::RuleId;
///
/// let policy = |action: &str| {
///     let text = format!("version = 1\n[[rules]]\nname = 'dns'\nmatch = {{ dst_port = 53 }}\naction = '{action}'\n");
///     policy::parse(&Source::new("dns.toml", text), &NoFiles).map(|(policy, _)| policy)
/// };
/// let (old, new) = (policy("drop")?, policy("kernel")?);
/// let met = |rule| MetRules { decides: RuleId::of(rule), copies: Vec::new() };
/// let comparison = PacketComparison::of(&old, &new);
/// let [before, after] = &comparison.changes(&met(0), &met(0))[0];
/// assert_eq!((before.action.as_str(), after.action.as_str()), ("drop", "kernel"));
/// assert!(comparison.changes(&met(1), &met(1)).is_empty(), "the defaults are equal");
/// # Ok::<(), policy::Diagnostics>(())
/// ```
pub struct PacketComparison<'p> {
    sides: [Side<'p>; 2],
    groups: ComparedGroups<'p>,
}

impl<'p> PacketComparison<'p> {
    /// Compares a policy with the one that is to take its place.
    #[must_use]
    pub fn of(old: &'p Policy, new: &'p Policy) -> Self {
        let sides = [old, new].map(|policy| Side { policy, direction: Direction::Ingress });
        Self { sides, groups: ComparedGroups::of(old, new) }
    }

    /// The effects before and after that differ, in the words of [`Diff::pairs`](crate::Diff::pairs); empty
    /// if the packet is treated alike.
    #[must_use]
    pub fn changes(&self, before: &MetRules, after: &MetRules) -> Vec<[Effect; 2]> {
        let mut changes = Vec::new();
        let mut add = |before: RuleId, after: RuleId, what| {
            let (before, after) = (before.index() as u32, after.index() as u32);
            changes.push(effects(&self.sides, Pair { after, before, what }));
        };
        if self.before(before.decides) != self.after(after.decides) {
            add(before.decides, after.decides, Difference::Action);
        }
        for copy in &before.copies {
            let action = self.before(*copy);
            if !after.copies.iter().any(|other| self.after(*other) == action) {
                match action {
                    Action::Sniff(_) => add(*copy, *copy, Difference::SniffLost),
                    _ => add(*copy, after.decides, Difference::CopyLost),
                }
            }
        }
        for copy in &after.copies {
            let action = self.after(*copy);
            if !before.copies.iter().any(|other| self.before(*other) == action) {
                match action {
                    Action::Sniff(_) => add(*copy, *copy, Difference::SniffWon),
                    _ => add(before.decides, *copy, Difference::CopyWon),
                }
            }
        }
        changes
    }

    fn before(&self, rule: RuleId) -> Action {
        let policy = self.sides[0].policy;
        let rule = policy.rules.get(rule.index());
        let action = rule.map_or(policy.default, |rule| rule.action);
        with_group(action, rule, &|group, rule| self.groups.old_group(group, rule))
    }

    fn after(&self, rule: RuleId) -> Action {
        let policy = self.sides[1].policy;
        let rule = policy.rules.get(rule.index());
        let action = rule.map_or(policy.default, |rule| rule.action);
        with_group(action, rule, &|group, rule| self.groups.new_group(group, rule))
    }
}

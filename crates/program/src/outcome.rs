//! The verdict on a packet, the outcome (the verdict and the rule that decides), and the steps that workers
//! compare to find it.

use serde::Serialize;

use crate::ids::{GroupId, RuleId};
use crate::predicate::Predicate;

/// The verdict on one packet. It follows from the action of the rule that decides the packet, or from the
/// policy's default; only [`Verdict::Filtered`] follows from a copy rule that does not match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind", content = "group")]
pub enum Verdict {
    /// Deliver it to a worker of the group.
    Deliver(GroupId),
    /// Drop it, and count it as dropped by its rule.
    Drop,
    /// Leave it to the host's network stack.
    Kernel,
    /// Discard this copy. The device copies more packets than the copy rule matches, and this one does not
    /// match. The packet itself has a verdict of its own.
    Filtered,
}

/// A verdict and the rule that decides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Outcome {
    /// The rule, or the pseudo rule `default`.
    pub rule: RuleId,
    /// The verdict of the rule.
    pub verdict: Verdict,
}

/// One step of a hybrid class: a rule to compare the packet with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The rule.
    pub rule: RuleId,
    /// The whole match of the step.
    pub predicate: Predicate,
    /// The outcome if it matches.
    pub outcome: Outcome,
}

//! The actions of rules as verdicts on packets.

use policy::policy::{Action, Direction};
use program::Verdict;

/// Whether a rule decides received packets that it matches.
pub(super) fn decides(direction: Direction, action: Action) -> bool {
    direction == Direction::Ingress && matches!(action, Action::Steer(_) | Action::Drop | Action::Kernel)
}

/// An action as a verdict.
pub(super) fn verdict(action: Action) -> Verdict {
    match action {
        Action::Steer(group) | Action::Copy(group) | Action::Sniff(group) => Verdict::Deliver(group),
        Action::Drop => Verdict::Drop,
        Action::Kernel | Action::Pass => Verdict::Kernel,
    }
}

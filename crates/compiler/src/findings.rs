//! What the compiler finds wrong, twice: as diagnostics for people, and by rule with limit, errno and remedy
//! for reports. Filled by every step of `compile`; decides nothing.

use policy::{Diagnostics, Place};
use program::Errno;
use serde::Serialize;

/// Why a device cannot run a policy, or one rule of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Obstacle {
    /// The rule's place in the policy; `None`: the default, or the policy as a whole.
    pub rule: Option<usize>,
    /// What is wrong.
    pub reason: String,
    /// What there is at most.
    pub limit: String,
    /// What the device would have answered; `None`: it would not have been asked.
    pub errno: Option<Errno>,
    /// What to do.
    pub remedy: String,
}

/// All that is wrong.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) diagnostics: Diagnostics,
    pub(crate) obstacles: Vec<Obstacle>,
}

impl Findings {
    /// Takes down an obstacle, with the label that its place gets.
    pub(super) fn refuse(&mut self, place: &Place, label: &str, obstacle: Obstacle) {
        let errno = obstacle.errno.map_or(String::new(), |errno| format!(" ({errno})"));
        let label = if label.is_empty() { &obstacle.limit } else { label };
        let error = place.error(format!("{}{errno}", obstacle.reason), label);
        self.diagnostics.push(error.hint(obstacle.remedy.clone()));
        self.obstacles.push(obstacle);
    }

    pub(super) fn has_errors(&self) -> bool {
        self.diagnostics.has_errors()
    }
}

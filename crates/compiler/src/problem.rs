//! The problems that passes find in a policy, together: why it does not compile for a device.

use device_model::Limit;

use crate::capacity::Shortage;
use crate::cover::CoverProblem;
use crate::except::overlaps::TooManySteps;
use crate::except::place::PlaceProblem;
use crate::fit::flow_problems::{FlowProblem, PriorityCause};
use crate::groups::{GroupProblem, RefusedGroup, TableProblem};
use crate::rank::lower::LowerProblem;

/// One reason why a policy does not compile for a device.
#[derive(Debug)]
pub(super) enum Problem {
    /// The device has no flows that match packets.
    NoSteering,
    Group(RefusedGroup),
    Cover(CoverProblem),
    Place(PlaceProblem),
    Lower(LowerProblem),
    Steps(TooManySteps),
    Flows(FlowProblem),
    Shortage(Shortage),
}

/// The problems that the passes have found, in their order: an operator sees as many as possible at once.
#[derive(Debug, Default)]
pub struct Problems(Vec<Problem>);

impl Problem {
    /// Whether it is a matter of the device, not of the policy and the settings alone.
    pub(super) fn is_about_device(&self) -> bool {
        let Self::Group(RefusedGroup { problem, .. }) = self else { return true };
        match problem {
            GroupProblem::HalfHash => true,
            GroupProblem::Table(problem) => {
                matches!(problem, TableProblem::NotConsecutive(_) | TableProblem::TooLarge { .. })
            }
            GroupProblem::UnknownWorker { .. } | GroupProblem::NoWorkers | GroupProblem::OnlyAbsent => false,
        }
    }

    /// Whether it is a limit that wider flows may keep.
    fn is_about_capacity(&self) -> bool {
        match self {
            Self::Shortage(Shortage { row, .. }) => matches!(row.limit, Limit::Shapes | Limit::Flows),
            Self::Flows(FlowProblem::Priorities { cause, .. }) => {
                matches!(cause, PriorityCause::Masks { .. })
            }
            Self::Flows(FlowProblem::DeviceFlows { .. }) | Self::Steps(_) => true,
            _ => false,
        }
    }
}

impl Problems {
    /// Adds the problems of a pass.
    pub(super) fn add<P>(&mut self, found: impl IntoIterator<Item = P>, as_problem: fn(P) -> Problem) {
        self.0.extend(found.into_iter().map(as_problem));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.0.iter()
    }

    /// Whether all are limits that wider flows may keep.
    pub(super) fn are_about_capacity(&self) -> bool {
        !self.is_empty() && self.0.iter().all(Problem::is_about_capacity)
    }
}

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Self(vec![problem])
    }
}

//! The inputs of a compilation.

use device_model::DeviceModel;
use policy::Policy;
use policy::policy::Action;
use program::{Program, SinkKind, WorkerId};

use crate::weights::Weights;

/// The inputs of a compilation.
#[derive(Clone, Copy, Debug)]
pub struct Job<'p> {
    /// The policy that is compiled.
    pub policy: &'p Policy,
    /// The model of the device that the policy is compiled for.
    pub profile: &'p DeviceModel,
    /// The number of workers among which groups choose theirs.
    pub workers: usize,
    /// The workers among these that get no packets now: no table has an entry for them.
    pub absent: &'p [WorkerId],
    /// The program that is on the device; a rule that is in both keeps its flow tag.
    pub previous: Option<&'p Program>,
    /// The number of packets that each rule decides; `None`: all rules count alike.
    pub weights: Option<&'p Weights>,
}

impl<'p> Job<'p> {
    /// A policy for a device and a number of workers.
    #[must_use]
    pub fn new(policy: &'p Policy, profile: &'p DeviceModel, workers: usize) -> Self {
        Self { policy, profile, workers, absent: &[], previous: None, weights: None }
    }

    /// Without these workers, which keep their numbers: the others of their groups have their entries of the
    /// tables.
    #[must_use]
    pub fn without(self, absent: &'p [WorkerId]) -> Self {
        Self { absent, ..self }
    }

    /// For a device with a program: a rule that is in both keeps its class, which is its flow tag, and the
    /// device must have room for both programs at once.
    #[must_use]
    pub fn beside(self, previous: Option<&'p Program>) -> Self {
        Self { previous, ..self }
    }

    /// For traffic of which the rules decide so many packets each; else all rules count alike. Where the
    /// device cannot decide all packets in hardware, the program differs; what becomes of each packet does
    /// not.
    #[must_use]
    pub fn weighted(self, weights: Option<&'p Weights>) -> Self {
        Self { weights, ..self }
    }

    /// Whether workers may receive packets that the policy leaves to the kernel: they give them back, or the
    /// policy allows that they are lost, or it leaves none.
    pub(crate) fn may_take_from_host(&self) -> bool {
        let Policy { rules, sinks, default, allow_lost_exceptions, .. } = self.policy;
        let leaves_none =
            || *default != Action::Kernel && rules.iter().all(|rule| rule.action != Action::Kernel);
        *allow_lost_exceptions
            || sinks.iter().any(|sink| matches!(sink.sink.kind, SinkKind::Kernel(_)))
            || leaves_none()
    }
}

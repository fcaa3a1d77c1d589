//! The inputs of a compilation.

use device_model::DeviceModel;
use policy::Policy;
use program::Program;

use crate::weights::Weights;

/// The inputs of a compilation.
#[derive(Clone, Copy, Debug)]
pub struct Job<'p> {
    /// The policy.
    pub policy: &'p Policy,
    /// The device.
    pub profile: &'p DeviceModel,
    /// The number of workers.
    pub workers: usize,
    /// The program on the device, whose tags are kept.
    pub previous: Option<&'p Program>,
    /// How many packets each rule decides; `None`: all rules count alike.
    pub weights: Option<&'p Weights>,
}

impl<'p> Job<'p> {
    /// A policy for a device and a number of workers.
    #[must_use]
    pub fn new(policy: &'p Policy, profile: &'p DeviceModel, workers: usize) -> Self {
        Self { policy, profile, workers, previous: None, weights: None }
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
}

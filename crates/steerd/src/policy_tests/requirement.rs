//! The setting `policy.require_tests`: a policy is put in force only if it has tests and all of them pass.

use std::sync::Arc;

use compiler::Job;
use device_model::DeviceModel;
use policy::{Diagnostics, Place};

use super::{TestSummary, needs_program};
use crate::policy_file::Read;
use crate::settings::PolicySource;

/// The device that the policy is to run on.
pub(crate) struct TestedDevice<'d> {
    pub(crate) profile: &'d DeviceModel,
    pub(crate) workers: usize,
}

/// Runs the tests of a policy if its settings require them. `device`: `None` where there are no workers.
///
/// # Errors
/// The tests that fail, or that there are none; or the policy does not compile for the device.
pub(crate) fn require(
    source: &PolicySource,
    read: &Read,
    device: Option<TestedDevice<'_>>,
) -> Result<(), Diagnostics> {
    if !source.requires_tests {
        return Ok(());
    }
    let policy = &read.policy;
    if policy.tests.is_empty() {
        let place = Place::new(&Arc::clone(&policy.source), 0..0);
        let error = place.error(
            "the policy has no tests, and the setting policy.require_tests asks for them",
            "this policy",
        );
        let hint = "write [[tests]]; `steerd test --coverage` proposes some";
        return Err(vec![error.hint(hint)].into());
    }
    let program = match device.filter(|_| needs_program(policy)) {
        Some(TestedDevice { profile, workers }) => Some(Job::new(policy, profile, workers).compile()?),
        None => None,
    };
    let summary = TestSummary::of(policy, &source.folder(), program.as_ref());
    match summary.failed {
        0 => Ok(()),
        _ => Err(summary.failures.into()),
    }
}

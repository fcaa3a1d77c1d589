//! A [`Policy`] to a [`Program`] for one device.

use crate::diagnostics::Diagnostics;
use crate::policy::Policy;
use crate::profile::DeviceProfile;
use crate::program::Program;

/// Compiles a policy for a device and a number of workers.
///
/// # Errors
/// All that does not fit: workers out of range, tables, flows or priorities beyond the device's limits.
pub fn compile(policy: &Policy, profile: &DeviceProfile, workers: usize) -> Result<Program, Diagnostics> {
    let _ = (policy, profile, workers);
    todo!()
}

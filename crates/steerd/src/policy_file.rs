//! A policy from where it is to a program: read, parsed and compiled, with all that is wrong with it.
//!
//! Used by `check`, `explain`, the daemon's start and every reload, so that all of them agree on what a
//! policy means. It prints nothing and touches no device.

use std::sync::Arc;

use policy::policy::Workers;
use policy::{DeviceProfile, Diagnostic, Diagnostics, NoFiles, Policy, Program, Source};

use crate::settings::PolicySource;

#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) policy: Policy,
    pub(crate) program: Arc<Program>,
    pub(crate) warnings: Vec<Diagnostic>,
    pub(crate) workers: usize,
}

/// `workers`: how many there are; `None`: as many as the policy names.
pub(crate) fn compile(
    source: &PolicySource,
    profile: &DeviceProfile,
    workers: Option<usize>,
) -> Result<Compiled, Diagnostics> {
    let (policy, mut warnings) = match source {
        PolicySource::File(path) => policy::load(path)?,
        PolicySource::BuiltIn { name, text } => policy::parse(&Source::new(*name, *text), &NoFiles)?,
    };
    let workers = workers.unwrap_or_else(|| workers_named(&policy));
    let program = policy::compile(&policy, profile, workers)?;
    warnings.extend(policy::check(&policy, &program).warnings);
    Ok(Compiled { policy, program: Arc::new(program), warnings, workers })
}

fn workers_named(policy: &Policy) -> usize {
    let highest = |workers: &Workers| match workers {
        Workers::All => 0,
        Workers::Listed(shares) => shares.iter().map(|share| share.worker as usize).max().unwrap_or(0),
    };
    policy.groups.iter().map(|group| highest(&group.workers)).max().unwrap_or(0) + 1
}

/// "1 error", "3 errors".
pub(crate) fn error_count(diagnostics: &Diagnostics) -> String {
    let listed = diagnostics.list.iter().filter(|one| one.severity == policy::Severity::Error).count();
    match listed + diagnostics.omitted {
        1 => "1 error".into(),
        errors => format!("{errors} errors"),
    }
}

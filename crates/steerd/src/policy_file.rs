//! A policy from where it is to a program: read, parsed and compiled, with all that is wrong with it.
//!
//! Used by `check`, `explain`, `diff`, the daemon's start and every reload, so that all of them agree on what
//! a policy means. It prints nothing and touches no device.

use std::path::PathBuf;
use std::sync::Arc;

use device_model::DeviceProfile;
use policy::policy::Workers;
use policy::{Diagnostic, Diagnostics, Folder, LoadOptions, NoFiles, Policy, Severity, Source};
use program::Program;

use crate::settings::{PolicySource, PolicyText};

#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) program: Arc<Program>,
    pub(crate) warnings: Vec<Diagnostic>,
    /// Packets that it leaves to the kernel and that workers would receive: errors, unless the policy allows them.
    lost: Diagnostics,
}

impl Compiled {
    /// For a device: refused if it would lose packets that are the kernel's, and the policy does not allow that.
    pub(crate) fn into_installable(self) -> Result<Self, Diagnostics> {
        if self.lost.has_errors() { Err(self.lost) } else { Ok(self) }
    }
}

/// Reads and parses it, set files and included files as well.
pub(crate) fn load(source: &PolicySource) -> Result<(Policy, Vec<Diagnostic>), Diagnostics> {
    let options = LoadOptions { variables: source.variables.clone() };
    match &source.text {
        PolicyText::File(path) => policy::load_with(path, &options),
        PolicyText::BuiltIn { name, text } => {
            policy::parse_with(&Source::new(*name, *text), &NoFiles, &options)
        }
        PolicyText::Read(source) => policy::parse_with(source, &Folder(PathBuf::new()), &options),
    }
}

/// `workers`: how many there are; `None`: as many as the policy names. A rule that `previous` has too keeps
/// its tag, and the device must have room for both.
pub(crate) fn compile(
    source: &PolicySource,
    profile: &DeviceProfile,
    workers: Option<usize>,
    previous: Option<&Program>,
) -> Result<Compiled, Diagnostics> {
    let (policy, mut warnings) = load(source)?;
    let workers = workers.unwrap_or_else(|| workers_named(&policy));
    let program = compiler::compile_with(&policy, profile, workers, previous)?;
    warnings.extend(compiler::check_for(&policy, profile, workers, &program).warnings);
    let lost = compiler::lost_exceptions(&policy, profile, &program);
    let lost = compiler::refuse_lost_exceptions(&policy, &program, &lost);
    Ok(Compiled { program: Arc::new(program), warnings, lost })
}

/// The most diagnostics of one policy that the daemon logs: enough to begin with, few enough that a large
/// policy does not flood the log at each reload.
const LOGGED_DIAGNOSTICS: usize = 5;

/// Logs the first of what was found and how many more there are; `omitted` were found and not kept.
pub(crate) fn log(found: &[Diagnostic], omitted: usize) {
    for diagnostic in found.iter().take(LOGGED_DIAGNOSTICS) {
        match diagnostic.severity {
            Severity::Error => tracing::error!("{diagnostic}"),
            Severity::Warning => tracing::warn!("{diagnostic}"),
        }
    }
    let more = found.len().saturating_sub(LOGGED_DIAGNOSTICS) + omitted;
    if more > 0 {
        tracing::warn!("and {more} more diagnostics of the policy (hint: `steerd check` prints them)");
    }
}

/// As many workers as the policy's highest number asks for.
pub(crate) fn workers_named(policy: &Policy) -> usize {
    let highest = |workers: &Workers| match workers {
        Workers::All => 0,
        Workers::Listed(shares) => shares.iter().map(|share| share.worker as usize).max().unwrap_or(0),
    };
    policy.groups.iter().map(|group| highest(&group.workers)).max().unwrap_or(0) + 1
}

/// "1 error", "3 errors".
pub(crate) fn error_count(diagnostics: &Diagnostics) -> String {
    let listed = diagnostics.list.iter().filter(|one| one.severity == Severity::Error).count();
    match listed + diagnostics.omitted {
        1 => "1 error".into(),
        errors => format!("{errors} errors"),
    }
}

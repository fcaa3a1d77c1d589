//! From the arguments of a command, or the settings, to a compiled policy with all its diagnostics.
//!
//! `check`, `explain`, `diff`, the start of the daemon and every reload use it, so that they agree on the
//! meaning of a policy.

mod change;
mod counters;
pub(crate) mod descriptions;
mod device_rules;
mod examine;
mod inputs;
mod load;

use std::collections::HashSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use compiler::{Job, Weights};
use device_model::DeviceModel;
use policy::policy::SetSize;
use policy::{Diagnostic, Diagnostics, Place, Policy, Severity, Source};
use program::{Program, WorkerId};
use reports::{Check, DeviceRoom, LostReport, ProtectedNames, ProtectionReport, RuleCounter};

use crate::message::{Hinted, chain};
use crate::settings::{PolicySource, Traffic};
use crate::traffic::{UnreadableCapture, for_each_key};
pub(crate) use change::PolicyChange;
pub(crate) use counters::{Counters, RuleWeights};
pub(crate) use device_rules::{DeviceRule, id_of, is_quoted, quoted};
pub(crate) use examine::{ExaminedPolicy, examine};
#[cfg(test)]
pub(crate) use inputs::InputFile;
pub(crate) use inputs::{Inputs, KEPT_BYTES_MAX};
pub(crate) use load::{load, load_inputs, parse};
pub(crate) use reports::{room_findings, without_workers, workers_named};

/// A policy has errors, which have been printed or logged already.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {errors} in the policy")]
pub(crate) struct PolicyErrors {
    file: String,
    errors: String,
}

#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) program: Arc<Program>,
    /// The policy without rules at run time, if it allows any.
    pub(crate) policy: Option<Arc<Policy>>,
    pub(crate) inputs: Arc<Inputs>,
    /// The number in the history of the policy that comes back; `None`: it was read from its source.
    pub(crate) past: Option<u64>,
    pub(crate) set_sizes: Vec<SetSize>,
    /// Empty if it was compiled without weights.
    pub(crate) weights: RuleWeights,
    pub(crate) warnings: Vec<Diagnostic>,
    /// The protected packets of the policy.
    pub(crate) protected: Arc<ProtectedNames>,
    /// The names of rules at run time that were put into the program without compiling the whole policy.
    pub(crate) extended_by: HashSet<String>,
    /// Why the program may not be installed: packets that the policy leaves to the kernel but workers would
    /// receive, unless the policy allows them, protected packets that may miss the host, and rules at run
    /// time for which the device has no room.
    refused: Diagnostics,
}

impl Compiled {
    /// Notes which policy of the history it is.
    pub(crate) fn of_past(self, past: Option<u64>) -> Self {
        Self { past, ..self }
    }

    /// A program of a policy that is in force, with other rules at run time in the device.
    pub(crate) fn extended(
        program: Program,
        policy: &Arc<Policy>,
        inputs: &Arc<Inputs>,
        extended_by: HashSet<String>,
    ) -> Self {
        Self {
            extended_by,
            program: Arc::new(program),
            policy: Some(Arc::clone(policy)),
            inputs: Arc::clone(inputs),
            past: None,
            set_sizes: policy.set_sizes.clone(),
            weights: RuleWeights::new(),
            warnings: Vec::new(),
            protected: Arc::new(ProtectedNames::of(policy)),
            refused: Diagnostics::default(),
        }
    }

    /// Refused if it would lose packets that the policy leaves to the kernel and does not allow to be lost,
    /// or protected ones, or if the device has no room for its rules at run time.
    pub(crate) fn into_installable(self) -> Result<Self, Diagnostics> {
        if self.refused.has_errors() { Err(self.refused) } else { Ok(self) }
    }
}

/// A policy that was read and parsed.
#[derive(Clone, Debug)]
pub(crate) struct Read {
    pub(crate) policy: Policy,
    pub(crate) warnings: Vec<Diagnostic>,
    pub(crate) inputs: Arc<Inputs>,
}

impl Read {
    /// How many packets each rule decides, of a capture or by these counters. From then on the hash of the
    /// inputs covers the packets of a capture. It does not cover counters, which differ from one moment to
    /// the next.
    pub(crate) fn weights(
        &mut self,
        traffic: Option<&Traffic>,
        counters: Option<&Counters>,
    ) -> Result<Option<Weights>, UnreadableCapture> {
        let path = match traffic {
            None => return Ok(None),
            Some(Traffic::Counters) => {
                return Ok(counters.and_then(|counters| counters.weights(&self.policy)));
            }
            Some(Traffic::Capture(path)) => path,
        };
        let mut counter = RuleCounter::new(&self.policy);
        for_each_key(path, &mut |key, _| counter.add(key))?;
        let weights = counter.weights();
        Arc::make_mut(&mut self.inputs).add_weights(&weights);
        Ok(Some(weights))
    }

    /// `workers`: their number; `None`: as many as the policy names. `device_rules`: the rules at run time
    /// that are to act in the device. `proves_room`: whether it is refused if the device has no room for as
    /// many of them as it allows.
    pub(crate) fn compile(
        self,
        weights: Option<&Weights>,
        profile: &DeviceModel,
        workers: Option<usize>,
        running: Option<&Running<'_>>,
        device_rules: &[DeviceRule],
        proves_room: bool,
    ) -> Result<Compiled, Diagnostics> {
        let previous = running.map(|running| running.program);
        let absent = running.map_or(&[][..], |running| running.absent);
        let Self { mut policy, mut warnings, inputs } = self;
        if let Some(error) = without_workers(&policy) {
            return Err(vec![error].into());
        }
        let mut own = policy.runtime.is_some().then(|| policy.clone());
        device_rules::insert(&mut policy, device_rules);
        let workers = workers.unwrap_or_else(|| workers_named(&policy));
        let job = Job::new(&policy, profile, workers).without(absent).beside(previous).weighted(weights);
        let mut program = job.compile()?;
        if let (Some(own), Some(runtime)) = (&own, &mut program.runtime) {
            device_rules::note_enforced(own, runtime);
        }
        warnings.extend(Check::of(&job, &program).warnings);
        let lost = LostReport::errors(&policy, &program).into_iter();
        let mut refused = lost.chain(ProtectionReport::of(&job, Some(&program)).errors).collect::<Vec<_>>();
        if let Some(own) = own.as_mut().filter(|_| proves_room) {
            let of_own = Job::new(own, profile, workers).without(absent);
            let alone = if device_rules.is_empty() { None } else { Some(of_own.compile()?) };
            let room = DeviceRoom::of(&of_own, alone.as_ref().unwrap_or(&program), false);
            let (errors, of_room) = room_findings(room.as_ref(), own, profile);
            refused.extend(errors);
            warnings.extend(of_room);
            if let (Some(room), Some(runtime)) = (room, &mut program.runtime) {
                runtime.device_rules_max = room.fit;
                own.runtime.iter_mut().for_each(|runtime| runtime.device_rules_max = room.fit);
            }
        }
        let own = own.map(Arc::new);
        let refused = Diagnostics::from(refused);
        warnings.extend(reports::protection_warning(&policy));
        let protected = Arc::new(ProtectedNames::of(&policy));
        let weights = weights.map(|weights| counters::by_name(&policy, weights)).unwrap_or_default();
        let program = Arc::new(program);
        let (past, set_sizes) = (None, policy.set_sizes);
        let extended_by = HashSet::new();
        Ok(Compiled {
            program,
            policy: own,
            inputs,
            past,
            set_sizes,
            weights,
            warnings,
            protected,
            extended_by,
            refused,
        })
    }
}

/// The program on the device when a policy replaces another.
pub(crate) struct Running<'r> {
    /// Rules that it has keep their tags, and the device must have room for both programs.
    pub(crate) program: &'r Program,
    /// The workers that get no packets now.
    pub(crate) absent: &'r [WorkerId],
    /// For [`Traffic::Counters`].
    pub(crate) counters: Option<Counters>,
    /// Chooses the rules at run time that are to act in the device under a policy.
    pub(crate) device_rules: &'r dyn Fn(&Policy) -> Vec<DeviceRule>,
    /// Whether the device must have room for the rules at run time that the policy allows: not where that is
    /// examined otherwise.
    pub(crate) proves_room: bool,
}

/// `workers`: their number; `None`: as many as the policy names.
pub(crate) fn compile(
    source: &PolicySource,
    profile: &DeviceModel,
    workers: Option<usize>,
    running: Option<&Running<'_>>,
) -> Result<Compiled, Diagnostics> {
    compile_read(load(source)?, source.traffic.as_ref(), profile, workers, running)
}

/// Compiles a policy that was read.
pub(crate) fn compile_read(
    mut read: Read,
    traffic: Option<&Traffic>,
    profile: &DeviceModel,
    workers: Option<usize>,
    running: Option<&Running<'_>>,
) -> Result<Compiled, Diagnostics> {
    let counters = running.and_then(|running| running.counters.as_ref());
    let weights = read.weights(traffic, counters).map_err(|error| unreadable_traffic(traffic, &error))?;
    compile_weighted(read, weights.as_ref(), profile, workers, running)
}

/// Compiles a policy that was read, for these packets of its rules.
pub(crate) fn compile_weighted(
    read: Read,
    weights: Option<&Weights>,
    profile: &DeviceModel,
    workers: Option<usize>,
    running: Option<&Running<'_>>,
) -> Result<Compiled, Diagnostics> {
    let device_rules = running.map(|running| (running.device_rules)(&read.policy)).unwrap_or_default();
    let proves_room = running.is_none_or(|running| running.proves_room);
    read.compile(weights, profile, workers, running, &device_rules, proves_room)
}

/// If the capture that the settings name cannot be read.
pub(crate) const TRAFFIC_HINT: &str = "correct the path or leave it empty";

/// The error points at the value of the setting, because no part of the policy names the capture.
pub(crate) fn unreadable_traffic(traffic: Option<&Traffic>, error: &UnreadableCapture) -> Diagnostics {
    let path = match traffic {
        Some(Traffic::Capture(path)) => path.display().to_string(),
        Some(Traffic::Counters) | None => String::new(),
    };
    let span = 0..path.len();
    let place = Place::new(&Arc::new(Source::new("setting policy.traffic", path)), span);
    let Hinted { message, hint } = Hinted::of(&chain(error)).or(TRAFFIC_HINT);
    let error = place.error(message, "this capture");
    Diagnostics::from(vec![hint.into_iter().fold(error, Diagnostic::hint)])
}

/// The most diagnostics of one policy that the daemon logs: a large policy must not flood the log at each
/// reload.
const LOGGED_DIAGNOSTICS: usize = 5;

/// Logs the first diagnostics and the number of the others; `omitted` were not kept in the list.
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

/// "1 error", "3 errors".
pub(crate) fn error_count(diagnostics: &Diagnostics) -> String {
    let listed = diagnostics.list.iter().filter(|one| one.severity == Severity::Error).count();
    match listed + diagnostics.omitted {
        1 => "1 error".into(),
        errors => format!("{errors} errors"),
    }
}

/// The name of standard input in messages.
pub(crate) const STANDARD_INPUT: &str = "(standard input)";

pub(crate) fn is_standard_input(path: &Path) -> bool {
    path == Path::new("-")
}

impl PolicyErrors {
    pub(crate) fn of(file: impl fmt::Display, diagnostics: &Diagnostics) -> Self {
        Self { file: file.to_string(), errors: error_count(diagnostics) }
    }
}

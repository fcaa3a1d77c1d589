//! The policy that a command is about, and the device that it is compiled for.

use std::collections::BTreeMap;
use std::path::Path;

use device_model::DeviceModel;

use super::Error;
use crate::cli::{NicFilterUse, PolicyArgs};
use crate::daemon::cores::{self, HostCores};
use crate::daemon::device::{self, TargetDevice};
use crate::policy_file::{
    Compiled, PolicyErrors, Read, STANDARD_INPUT, compile, compile_read, is_standard_input, load,
};
use crate::settings::{self, Cores, Loaded, PolicySource, PolicyText, Request, Settings, Traffic};
use crate::terminal::output::{self, Priority};

/// A policy, and the device to compile it for.
pub(crate) struct Target {
    pub(crate) source: PolicySource,
    pub(crate) device: TargetDevice,
    /// `None`: as many as the policy names.
    pub(crate) workers: Option<usize>,
    /// The settings that the device is of; `None`: it is a model.
    pub(crate) settings: Option<Box<Settings>>,
}

impl Target {
    pub(crate) fn of(args: &PolicyArgs) -> Result<Self, Error> {
        Self::on(args, None, None)
    }

    /// The target of these arguments; with an interface, the port that `run --interface` makes of it, with
    /// this use of its filters.
    pub(crate) fn on(
        args: &PolicyArgs,
        interface: Option<&str>,
        nic_filters: Option<NicFilterUse>,
    ) -> Result<Self, Error> {
        Self::with(args, settings_of(args, interface, nic_filters)?, false)
    }

    /// The target of these arguments with their settings. `is_offline`: they are of another host, and nothing
    /// of this one is needed.
    pub(crate) fn with(args: &PolicyArgs, loaded: Option<Loaded>, is_offline: bool) -> Result<Self, Error> {
        let mut workers = args.workers.map(|workers| workers as usize);
        let wanted = args.model.clone();
        let Some(loaded) = loaded else {
            let variables = args.variables.set.iter().cloned().collect();
            let source = source(&args.policy.clone().unwrap_or_default(), variables)?;
            let device = TargetDevice::of(wanted.unwrap_or_default());
            return Ok(Self { source, device, workers, settings: None });
        };
        let settings = &loaded.settings;
        if workers.is_none() {
            workers = match (&settings.workers.cores, is_offline) {
                (Cores::Auto, true) => None,
                (Cores::Count(count), true) => Some(*count),
                (Cores::List(cores), true) => Some(cores.len()),
                (_, false) => {
                    let cores = cores::of_workers(settings, &HostCores::of(settings));
                    Some(cores.map_err(Error::Cores)?.len())
                }
            };
        }
        let is_of_settings = wanted.is_none();
        let device = match wanted {
            Some(profile) => TargetDevice::of(profile.on_ports(settings.device.ports.len())),
            None if is_offline => device::profile_elsewhere(settings)?,
            None => device::profile(settings)?,
        };
        settings.workers.check_frames(&device.profile)?;
        if !is_offline {
            settings.check_mtus()?;
        }
        settings.frame_bytes(&device.mtus)?;
        let source = match args.policy.as_deref().filter(|path| is_standard_input(path)) {
            Some(path) => {
                let traffic = loaded.policy.traffic;
                let requires_tests = loaded.policy.requires_tests;
                PolicySource { traffic, requires_tests, ..source(path, loaded.policy.variables)? }
            }
            None => loaded.policy,
        };
        let settings = is_of_settings.then(|| Box::new(loaded.settings));
        Ok(Self { source, device, workers, settings })
    }
}

/// The settings of these arguments; `None`: they name neither a settings file nor an interface.
pub(crate) fn settings_of(
    args: &PolicyArgs,
    interface: Option<&str>,
    nic_filters: Option<NicFilterUse>,
) -> Result<Option<Loaded>, Error> {
    if args.config.is_none() && interface.is_none() {
        return Ok(None);
    }
    let request = Request {
        file: args.config.clone(),
        interface: interface.map(str::to_owned),
        nic_filters,
        policy: args.policy.clone().filter(|path| !is_standard_input(path)),
        variables: args.variables.set.clone(),
        ..Request::default()
    };
    let mut loaded = settings::load(&request)?;
    if let Some(count) = args.workers {
        loaded.settings.workers.cores = Cores::Count(count as usize);
    }
    Ok(Some(loaded))
}

/// The source of a policy: a file, or the text read from standard input.
pub(crate) fn source(path: &Path, variables: BTreeMap<String, String>) -> Result<PolicySource, PolicyErrors> {
    if !is_standard_input(path) {
        return Ok(PolicySource::file(path.to_owned(), variables));
    }
    match policy::read_source(STANDARD_INPUT, std::io::stdin()) {
        Ok(text) => {
            let text = PolicyText::Read(text);
            Ok(PolicySource { text, variables, traffic: None, requires_tests: false })
        }
        Err(diagnostics) => {
            output::print_diagnostics(&diagnostics);
            Err(PolicyErrors::of(STANDARD_INPUT, &diagnostics))
        }
    }
}

/// The device model that an answer is for.
#[derive(Debug)]
pub(crate) struct AnswerModel {
    pub(crate) name: String,
    /// The model of the device, if it cannot run the policy.
    pub(crate) refused_by: Option<String>,
}

pub(super) const COUNTED_ELSEWHERE: &str = "warning: policy.traffic is \"counters\": the running daemon may have compiled another program at a \
                                 reload, with other flows, tags and decisions by workers for the same rules";

/// The policy of these arguments, as `explain` needs it.
pub(crate) enum ExplainedPolicy {
    /// For workers.
    Compiled(Box<Compiled>, AnswerModel),
    /// It carves queues.
    Carving(Box<Read>),
}

/// Compiles the policy of these arguments, unless it carves queues; prints the diagnostics if that fails. If
/// the device cannot run the policy, the result is for one without limits: what the policy means does not
/// depend on the device.
pub(crate) fn explained(args: &PolicyArgs) -> Result<ExplainedPolicy, Error> {
    let Target { source, device, workers, .. } = Target::of(args)?;
    if source.traffic == Some(Traffic::Counters) {
        output::print_message(Priority::Warning, COUNTED_ELSEWHERE);
    }
    let name = device.profile.name.clone();
    let read = match load(&source) {
        Ok(read) if read.policy.carves_queues() => return Ok(ExplainedPolicy::Carving(Box::new(read))),
        read => read,
    };
    let traffic = source.traffic.as_ref();
    match read.and_then(|read| compile_read(read, traffic, &device.profile, workers, None)) {
        Ok(compiled) => {
            Ok(ExplainedPolicy::Compiled(Box::new(compiled), AnswerModel { name, refused_by: None }))
        }
        Err(diagnostics) => {
            output::print_diagnostics(&diagnostics);
            let ideal = DeviceModel::ideal();
            let compiled = compile(&source, &ideal, workers, None);
            let compiled = compiled.map_err(|_| PolicyErrors::of(&source, &diagnostics))?;
            let model = AnswerModel { name: ideal.name, refused_by: Some(name) };
            Ok(ExplainedPolicy::Compiled(Box::new(compiled), model))
        }
    }
}

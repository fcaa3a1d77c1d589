//! What a command is about: which policy, for which device, for how many workers. `check` and `explain` ask
//! here; a real device of the settings is asked for its limits, nothing is put on it.

use std::collections::BTreeMap;
use std::path::Path;

use device_model::DeviceProfile;
use policy::Diagnostics;

use crate::cli::{PolicyArgs, Profile};
use crate::error::Error;
use crate::plant::Compiling;
use crate::policy_file::{self, Compiled, error_count};
use crate::settings::{self, PolicySource, PolicyText, Request};
use crate::{cores, output, plant};

/// What is compiled, and for which device.
pub(crate) struct Target {
    pub(crate) source: PolicySource,
    pub(crate) device: Compiling,
    /// `None`: as many as the policy names.
    pub(crate) workers: Option<usize>,
}

impl Target {
    pub(crate) fn of(args: &PolicyArgs) -> Result<Self, Error> {
        let mut workers = args.workers.map(|workers| workers as usize);
        let wanted = args.profile.map(profile);
        let Some(file) = &args.config else {
            let variables = args.variables.set.iter().cloned().collect();
            let source = source(&args.policy.clone().unwrap_or_default(), variables)?;
            return Ok(Self { source, device: Compiling::of(wanted.unwrap_or_default()), workers });
        };
        let request = Request {
            file: Some(file.clone()),
            policy: args.policy.clone().filter(|path| !is_standard_input(path)),
            variables: args.variables.set.clone(),
            ..Request::default()
        };
        let loaded = settings::load(&request).map_err(Error::Settings)?;
        let settings = &loaded.settings;
        if workers.is_none() {
            let cores = cores::assign(&settings.workers.cores, settings.softnic.core, &cores::available());
            workers = Some(cores.map_err(Error::Cores)?.len());
        }
        let device = wanted.map_or_else(|| plant::profile(settings), |profile| Ok(Compiling::of(profile)))?;
        settings.workers.check_frames(&device.profile)?;
        let source = match args.policy.as_deref().filter(|path| is_standard_input(path)) {
            Some(path) => source(path, loaded.policy.variables)?,
            None => loaded.policy,
        };
        Ok(Self { source, device, workers })
    }
}

/// What messages call it.
pub(crate) const STANDARD_INPUT: &str = "(standard input)";

pub(crate) fn is_standard_input(path: &Path) -> bool {
    path == Path::new("-")
}

/// A policy file, or the policy that is standard input.
pub(crate) fn source(path: &Path, variables: BTreeMap<String, String>) -> Result<PolicySource, Error> {
    if !is_standard_input(path) {
        return Ok(PolicySource::file(path.to_owned(), variables));
    }
    match policy::read_source(STANDARD_INPUT, std::io::stdin()) {
        Ok(text) => Ok(PolicySource { text: PolicyText::Read(text), variables }),
        Err(diagnostics) => {
            output::print_diagnostics(&diagnostics);
            let (file, errors) = (STANDARD_INPUT.to_owned(), error_count(&diagnostics));
            Err(Error::Policy { file, errors })
        }
    }
}

pub(crate) fn profile(name: Profile) -> DeviceProfile {
    match name {
        Profile::Ideal => DeviceProfile::ideal(),
        Profile::Mlx5 => DeviceProfile::mlx5(),
        Profile::Mlx4 => DeviceProfile::mlx4(),
        Profile::Conservative => DeviceProfile::conservative(),
    }
}

/// The program, or the diagnostics on stderr.
pub(crate) fn compile(args: &PolicyArgs) -> Result<Compiled, Error> {
    let Target { source, device, workers } = Target::of(args)?;
    policy_file::compile(&source, &device.profile, workers, None).map_err(|diagnostics| {
        output::print_diagnostics(&diagnostics);
        policy_error(&source, &diagnostics)
    })
}

pub(crate) fn policy_error(source: &PolicySource, diagnostics: &Diagnostics) -> Error {
    Error::Policy { file: source.to_string(), errors: error_count(diagnostics) }
}

//! The checks of a start: what would refuse it, and what it would warn of, found without changing anything
//! on the host.
//!
//! Each check calls the function that its step begins with, or asks the system whether the step would
//! succeed, so that both have the same errors. `run` makes the checks of [`BEFORE_START`] before its first
//! step, and reports all of their problems. `check --config` makes all checks, and then those of the program
//! ([`of_program`]). A check logs its warnings, which [`collected`] collects.
//!
//! A running daemon with the same settings ends before the next start. What it holds is a note, not an error
//! ([`Running`]). Three answers are given only to a start: that of a device to its objects and flows, that of
//! the peer of a link, and that of a driver to AF_XDP sockets.

mod collect;
mod installation;
mod running;

use hugemem::{ArenaForecast, HugememError, HugememWarning};
use nic_filters::FilterModel;
use program::WorkerId;
use worker::WorkerConfig;

use crate::api;
use crate::daemon::cores::{self, HostCores};
use crate::daemon::dataplane::worker_config;
use crate::daemon::history::History;
use crate::daemon::placement::Placement;
use crate::daemon::{Error, device, libmlx5, nic_drops, rules, watch};
use crate::service_unit::ServiceUnit;
use crate::settings::{Listen, Settings};
use crate::telemetry::{http, logging};
use collect::collected;
pub(crate) use installation::{Installation, of_program};
use running::{Held, Running};

/// The result of the checks.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// Why the start would be refused, in the order of its steps.
    pub(crate) errors: Vec<Error>,
    /// How many of the errors are of steps before the policy is read.
    pub(crate) before_policy: usize,
    pub(crate) warnings: Vec<String>,
    /// Sentences about what a running daemon with the same settings holds, and about what is not checked.
    pub(crate) notes: Vec<String>,
}

impl Findings {
    fn add(&mut self, found: Result<(), Error>) {
        self.errors.extend(found.err());
    }

    /// Adds an error, unless it is due to the running daemon.
    fn add_unless_held(&mut self, found: Result<(), Error>, start: &Start<'_>) {
        let Err(error) = found else { return };
        match start.running.as_ref().and_then(|running| running.holds(&error)) {
            Some(Held(sentence)) => self.notes.push(sentence),
            None => self.errors.push(error),
        }
    }

    /// Logs all errors but the first, and returns that one.
    fn into_first_error(self) -> Result<(), Error> {
        let mut errors = self.errors.into_iter();
        let first = errors.next();
        errors.for_each(|error| tracing::error!("{error}"));
        first.map_or(Ok(()), Err)
    }

    /// Adds what was found with the policy.
    pub(crate) fn extend(&mut self, later: Self) {
        self.errors.extend(later.errors);
        self.warnings.extend(later.warnings);
        self.notes.extend(later.notes);
    }
}

/// The start that is examined.
struct Start<'s> {
    settings: &'s Settings,
    /// The filter model of the command line.
    filter_model: Option<&'s FilterModel>,
    /// The daemon that runs with these settings.
    running: Option<Running>,
}

/// A check of one step.
type Check = fn(&Start<'_>, &mut Findings);

/// The checks that `run` makes before its first step; those of `check` as well.
const BEFORE_START: [Check; 3] = [monitoring, worker_cores, lengths];

/// The checks whose steps make them at once when they are carried out, in the order of the steps.
const OF_STEPS: [Check; 11] =
    [preload, log, local_api, state, watched_files, unit, wires, open_device, placement, memory, filters];

/// Makes the checks of `run` before its first step.
///
/// # Errors
/// The first problem; the others are logged.
pub(super) fn before_start(settings: &Settings) -> Result<(), Error> {
    before(settings, &BEFORE_START)
}

/// Makes the checks of a start without workers.
///
/// # Errors
/// The first problem; the others are logged.
pub(super) fn before_carving(settings: &Settings) -> Result<(), Error> {
    before(settings, &[monitoring])
}

fn before(settings: &Settings, checks: &[Check]) -> Result<(), Error> {
    let start = Start { settings, filter_model: None, running: None };
    let mut found = Findings::default();
    checks.iter().for_each(|check| check(&start, &mut found));
    if matches!(found.errors.first(), Some(Error::Http(http::Error::Bind { .. }))) {
        // The socket of a daemon that has the address names its process. The step logs the warnings.
        let (held, _) = collected(|| api::check(&settings.api));
        if let Err(error) = held {
            found.errors.insert(0, error.into());
        }
    }
    found.into_first_error()
}

/// Makes all checks that need no policy.
pub(crate) fn of_settings(settings: &Settings, filter_model: Option<&FilterModel>) -> Findings {
    let running = Running::with(settings);
    let start = Start { settings, filter_model, running };
    let mut found = Findings::default();
    let checks = BEFORE_START.iter().chain(&OF_STEPS);
    let ((), warnings) = collected(|| checks.for_each(|check| check(&start, &mut found)));
    found.warnings = warnings;
    found.before_policy = found.errors.len();
    found
}

/// The token file and the address of the pages for monitoring.
fn monitoring(start: &Start<'_>, found: &mut Findings) {
    let settings = &start.settings.http;
    if let Listen::On(address) = settings.listen {
        http::check(address, settings)
            .into_iter()
            .for_each(|error| found.add_unless_held(Err(error.into()), start));
    }
}

/// The cores of workers and engine threads.
fn worker_cores(start: &Start<'_>, found: &mut Findings) {
    let cores = cores::of_workers(start.settings, &HostCores::of(start.settings));
    found.add(cores.map(drop).map_err(Error::Cores));
}

/// The MTUs of ports on live interfaces.
fn lengths(start: &Start<'_>, found: &mut Findings) {
    found.add(start.settings.check_mtus().map_err(Error::from));
}

/// The library below rdma-core's mlx5 provider.
fn preload(start: &Start<'_>, found: &mut Findings) {
    found.add(libmlx5::check(start.settings).map_err(Error::LibMlx5));
}

/// journald, without which the log goes to stderr.
fn log(start: &Start<'_>, _: &mut Findings) {
    logging::check(&start.settings.log);
}

/// The socket of the local API.
fn local_api(start: &Start<'_>, found: &mut Findings) {
    if let Some(running) = &start.running {
        found.notes.push(running.of_socket());
        return;
    }
    found.add(api::check(&start.settings.api).map_err(Error::from));
}

/// The folder for what survives a restart, and the files in it.
fn state(start: &Start<'_>, found: &mut Findings) {
    let Some(folder) = start.settings.state.folder() else {
        if start.settings.state.is_of_service() {
            let note = "state.folder: the folder of the service is not known here: neither it nor the history of policies \
                        is checked (hint: STATE_DIRECTORY=/var/lib/steerd names it)";
            found.notes.push(note.to_owned());
        }
        return;
    };
    if let Err(error) = regular_file::check_folder(&folder) {
        tracing::warn!(
            "state.folder: {}: {error}: rules at run time and the history of policies do not survive a restart (hint: \
             make the folder, for the user of the daemon)",
            folder.display()
        );
        return;
    }
    History::check(&folder.join("history.json"));
    rules::check_saved(&folder.join("rules.json"));
}

/// The files of the policy, whose changes may not be reported.
fn watched_files(start: &Start<'_>, _: &mut Findings) {
    watch::check(start.settings);
}

/// The unit of the service, whose rights are not those of this process.
fn unit(start: &Start<'_>, found: &mut Findings) {
    if start.settings.xdp_ports().is_empty() {
        return;
    }
    let lacks = ServiceUnit::installed().map(|unit| unit.lacks(&xdp::CAPABILITIES, true)).unwrap_or_default();
    if !lacks.is_empty() {
        found.notes.push(format!(
            "softnic.ports: the unit steerd.service does not permit the wire af_xdp (hint: systemctl edit steerd: \
             [Service] {})",
            lacks.join(" ")
        ));
    }
}

/// The wires of soft NICs.
fn wires(start: &Start<'_>, found: &mut Findings) {
    for error in device::check_wires(start.settings) {
        found.add_unless_held(Err(error), start);
    }
}

/// The device, its ports and its limits.
fn open_device(start: &Start<'_>, found: &mut Findings) {
    let is_running = start.running.is_some();
    found.errors.extend(device::check(start.settings, is_running));
}

/// Threads far from the interface and its interrupts.
fn placement(start: &Start<'_>, _: &mut Findings) {
    let Ok(cores) = cores::of_workers(start.settings, &HostCores::of(start.settings)) else { return };
    if let Some(placement) = Placement::of(start.settings, &cores) {
        placement.warn();
    }
}

/// The memory of the workers. What is missing beside a running daemon may be free after it.
fn memory(start: &Start<'_>, found: &mut Findings) {
    let may_be_freed = |refused: &HugememWarning| start.running.is_some() && refused.is_shortage();
    let mut is_short = false;
    let mut forecast = ArenaForecast::default();
    for config in worker_configs(start.settings) {
        let refused = match worker::forecast_memory(&config, &mut forecast) {
            Ok(refused) => refused,
            Err(worker::Error::Arena { source: HugememError::Map { refused, .. }, .. })
                if refused.iter().any(may_be_freed) =>
            {
                refused
            }
            Err(error) => return found.add(Err(Error::Worker(error))),
        };
        let (short, others): (Vec<_>, Vec<_>) = refused.into_iter().partition(may_be_freed);
        is_short |= !short.is_empty();
        others.iter().for_each(|warning| tracing::warn!("{warning}"));
    }
    if let Some(running) = start.running.as_ref().filter(|_| is_short) {
        found.notes.push(running.of_memory(forecast.asked_bytes()));
    }
}

/// The configurations of all workers; none if their cores or lengths are wrong, which other checks report.
fn worker_configs(settings: &Settings) -> Vec<WorkerConfig> {
    let cores = cores::with_spare(settings, &HostCores::of(settings));
    let frame_bytes = settings.frame_bytes(&device::known_mtus(settings));
    let (Ok(cores), Ok(frame_bytes)) = (cores, frame_bytes) else { return Vec::new() };
    let config = |(index, core)| worker_config(settings, WorkerId::of(index), core);
    let configs = cores.into_iter().enumerate().map(config);
    configs.map(|config| WorkerConfig { frame_bytes, ..config }).collect()
}

/// The filters of NICs that drop packets of drop rules.
fn filters(start: &Start<'_>, found: &mut Findings) {
    for error in nic_drops::check(start.settings, start.filter_model) {
        found.add_unless_held(Err(error), start);
    }
}

//! The checks of a start that need the program of the policy: the device has room for it and for a change of
//! it, and its sinks can be opened.

use std::path::Path;
use std::sync::Arc;

use compiler::reload_conflict;
use control::{ControlError, Limits, PlannedChange, plan};
use device_model::DeviceModel;
use hugemem::{ArenaForecast, ArenaOptions};
use policy::policy::SetSize;
use program::{Program, RecorderSpec, SinkKind};
use shm::ListenError;
use worker::sinks::recorder::{self, RecorderError};
use worker::sinks::{CheckedPlace, SinkError};

use super::collect::collected;
use super::{Findings, Running, Start, worker_configs};
use crate::api;
use crate::daemon::history::History;
use crate::daemon::{Error, changed_set, device, last_good, sinks};
use crate::message::chain;
use crate::policy_file::Inputs;
use crate::settings::Settings;

/// A program that `run` would install.
pub(crate) struct Installation<'p> {
    pub(crate) settings: &'p Settings,
    /// The limits of the device, for all ports in use.
    pub(crate) profile: &'p DeviceModel,
    pub(crate) program: &'p Program,
    pub(crate) inputs: &'p Inputs,
    /// The sets of the policy with `max_change`.
    pub(crate) set_sizes: &'p [SetSize],
    pub(crate) workers: usize,
    /// The program for half of the priorities, which a reload may install first.
    pub(crate) half: &'p dyn Fn() -> Option<Program>,
}

/// Makes the checks of a program.
pub(crate) fn of_program(installation: &Installation<'_>) -> Findings {
    let Installation { settings, program, .. } = installation;
    let start = Start { settings, filter_model: None, running: Running::with(settings) };
    let mut found = Findings::default();
    let ((), warnings) = collected(|| {
        installation.warn_of_history();
        installation.place(&mut found);
        installation.tables(&start, &mut found);
        open_sinks(&start, program, &mut found);
        recorder_memory(&start, program, &mut found);
    });
    found.warnings = warnings;
    found
}

impl Installation<'_> {
    /// Logs a warning if the policy was on trial, or changes a set too much, and which one a start uses.
    fn warn_of_history(&self) {
        let Some(folder) = self.settings.state.folder() else { return };
        let history = History::peek(&folder.join("history.json"));
        if !history.is_unconfirmed(self.inputs) {
            if let Some(why) = changed_set(&history, self.set_sizes) {
                tracing::warn!(
                    "{why}: a start uses the last confirmed policy of the history (hint: if that is right, \
                     `steerd reload --force` puts the policy of the file in force)"
                );
            }
            return;
        }
        let why = "the policy was on trial and nobody confirmed it";
        match last_good(&history, self.profile, self.workers).and_then(|last| last.past) {
            Some(number) => tracing::warn!(
                "{why}: a start uses policy {number} of the history (hint: `steerd reload` puts the policy of the file \
                 in force)"
            ),
            None => tracing::warn!(
                "{why}: a start uses it all the same, as the history has no confirmed policy that can be used"
            ),
        }
    }

    /// Checks the memory of the tables of sources and flows, beside that of the frames. What is missing
    /// beside a running daemon may be free after it.
    fn tables(&self, start: &Start<'_>, found: &mut Findings) {
        let mut forecast = ArenaForecast::default();
        for config in worker_configs(self.settings) {
            // A refusal is found with the settings.
            let _ = worker::forecast_memory(&config, &mut forecast);
        }
        let workers = self.workers + self.settings.workers.spare;
        match (worker::forecast_tables(self.program, workers, &mut forecast), &start.running) {
            (Err(error), Some(running)) => {
                found.notes.push(format!(
                    "{}, as long as {} has memory for its own",
                    chain(&error),
                    running.name()
                ));
            }
            (result, _) => found.add(result.map_err(Error::Worker)),
        }
    }

    /// Plans the installation, and then a reload after which no flow is as before.
    fn place(&self, found: &mut Findings) {
        let limits = Limits::of_model(self.profile);
        let installed = match planned(None, self.program, &limits) {
            Ok(installed) => installed,
            Err(error) => return found.errors.push(Error::Install(error)),
        };
        if let Err(why) = self.reload(&installed, &limits) {
            tracing::warn!("a reload that changes all rules would be refused: {why}");
        }
    }

    /// # Errors
    /// Why a reload that changes all rules is refused, although it needs no more than the policy does.
    fn reload(&self, installed: &PlannedChange, limits: &Limits) -> Result<(), String> {
        let changed = changed(self.program);
        if let Some(obstacle) = reload_conflict(self.program, &changed, self.profile) {
            return Err(format!("{}: {} (hint: {})", obstacle.reason, obstacle.limit, obstacle.remedy));
        }
        match planned(Some(installed), &changed, limits) {
            Err(error @ ControlError::NoRoom { .. }) => {
                // As a reload does: with half of the priorities first.
                let half = (self.half)().ok_or(error);
                let half = half.and_then(|half| planned(Some(installed), &self::changed(&half), limits));
                half.map(drop).map_err(|error| chain(&error))
            }
            planned => planned.map(drop).map_err(|error| chain(&error)),
        }
    }
}

/// The plan from what is installed.
fn planned(
    installed: Option<&PlannedChange>,
    program: &Program,
    limits: &Limits,
) -> Result<PlannedChange, ControlError> {
    let placed = installed.map(PlannedChange::placed);
    plan(placed, Arc::new(program.clone()), limits)
        .map_err(|fault| ControlError::of_plan(fault, &limits.device))
}

/// A program with the same matches, of which no flow has the action that it had.
fn changed(program: &Program) -> Program {
    let mut changed = program.clone();
    for rule in &mut changed.rules {
        rule.name = format!("{} changed", rule.name).into();
    }
    // Other queues, so that flows differ that have no tag.
    for group in &mut changed.groups {
        group.key.0.iter_mut().for_each(|byte| *byte ^= 0x55);
    }
    changed
}

/// The sinks, none of which is opened.
fn open_sinks(start: &Start<'_>, program: &Program, found: &mut Findings) {
    let settings = start.settings;
    let stations = device::known_stations(settings);
    let other = |name: &str| device::check_other(settings, name);
    let name = device::known_name(settings);
    let (ports, state) = (&settings.device.ports, settings.state.folder());
    let (stations, state) = (&stations, state.as_deref());
    let place = CheckedPlace { device: &name, ports, stations, state, other: &other };
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let of_api = api::path_of(&settings.api).map(|(path, _)| absolute(&path));
    for sink in &program.sinks {
        if let SinkKind::App(options) = &sink.kind
            && of_api.as_ref() == Some(&absolute(&options.socket))
        {
            // The API listens there before sinks are opened.
            let source = ListenError::Taken { path: options.socket.clone() };
            let error = SinkError::Listen { sink: sink.name.clone(), source };
            found.errors.push(Error::Sink(sinks::Error::from(error)));
            continue;
        }
        // Its socket is not connected to: a server counts such clients.
        if let (SinkKind::App(options), Some(running)) = (&sink.kind, &start.running)
            && running.has_sink("app", "socket", &options.socket.display().to_string())
        {
            let path = options.socket.display();
            found.notes.push(format!("sink `{}`: {path} is a socket of {}", sink.name, running.name()));
            continue;
        }
        let checked = worker::sinks::check(sink, &place);
        found.add_unless_held(checked.map_err(|error| Error::Sink(sinks::Error::from(error))), start);
    }
}

/// The memory of the recorder beside that of the workers.
fn recorder_memory(start: &Start<'_>, program: &Program, found: &mut Findings) {
    let Some(RecorderSpec { ring, .. }) = &program.recorder else { return };
    let mut forecast = ArenaForecast::default();
    // Spare workers have a share of it, too.
    let arenas: Vec<ArenaOptions> = (worker_configs(start.settings).iter())
        .map(|config| {
            // Its own check reports what it lacks.
            let _ = worker::forecast_memory(config, &mut forecast);
            config.arena(0)
        })
        .collect();
    match (recorder::forecast_memory(*ring, &arenas, &mut forecast), &start.running) {
        (Ok(()), _) => {}
        (Err(RecorderError::Memory(_)), Some(running)) => {
            found.notes.push(running.of_memory(forecast.asked_bytes()));
        }
        (Err(error), _) => found.errors.push(Error::Sink(sinks::Error::from(SinkError::from(error)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_flow_of_a_changed_program_stays_as_it_is() {
        let text = "version = 1\n[groups.g]\nworkers = 'all'\n\
                    [[rules]]\nname = 'scan'\nmatch = { protocol = 'udp', dst_port = 9 }\naction = 'drop'\n\
                    [[rules]]\nname = 'dns'\nmatch = { protocol = 'udp', dst_port = 53 }\naction = { steer = 'g' }\n";
        let (policy, _) =
            policy::parse(&policy::Source::new("p.toml", text), &policy::NoFiles).expect("a policy");
        let model = DeviceModel::named_or_file("mlx5").expect("built in");
        let program = compiler::compile(&policy, &model, 1).expect("a program");
        let limits = Limits::of_model(&model);
        let installed = planned(None, &program, &limits).expect("it fits");
        let change = planned(Some(&installed), &changed(&program), &limits).expect("it fits");
        assert_eq!((change.changes().kept, change.changes().installed), (0, program.flows.len()));
        let same = planned(Some(&installed), &program, &limits).expect("it fits");
        assert_eq!(same.changes().installed, 0);
    }
}

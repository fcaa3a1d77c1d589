//! `steerd run`: start in order, the run loop, then [`shutdown`].
//!
//! Everything that can be refused is tried before a flow is put on a device: settings, signals, the HTTP
//! address and the API socket, the device and its ports, the workers, the policy. If a step fails, `Drop`
//! takes back what was made before it. Packets never pass through this module.

mod board;
pub(crate) mod carving;
pub(crate) mod cores;
mod dataplane;
pub(crate) mod device;
mod device_events;
mod error;
pub(crate) mod health;
mod history;
pub(crate) mod libmlx5;
pub(crate) mod nic_drops;
mod notify;
mod observer;
mod page;
pub(crate) mod placement;
pub(crate) mod preflight;
mod processor;
mod records;
pub(crate) mod reload;
pub(crate) mod rules;
mod servers;
mod service;
pub(crate) mod shutdown;
pub(crate) mod signals;
pub(crate) mod sink_health;
pub(crate) mod sinks;
mod trace;
mod watch;
mod worker_set;
mod worker_settings;
mod workers;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam::channel::{self, Receiver, RecvTimeoutError, Sender};
use device_model::DeviceModel;
use policy::policy::SetSize;
use worker::DeviceClock;
use worker::sinks::Ports;

use crate::api::request::ReloadBody;
use crate::api::{ReloadRequest, Wanted};
use crate::cli::{Format, RunArgs};
use crate::daemon::dataplane::{Builder, Steering};
use crate::daemon::device_events::DeviceWatch;
use crate::daemon::health::{Change, Monitor};
use crate::daemon::history::{History, PastPolicy};
use crate::daemon::nic_drops::NicDrops;
use crate::daemon::observer::{Observer, unix_seconds};
use crate::daemon::records::RecordKeeper;
use crate::daemon::reload::{Parts, Reloader, WAITERS_MAX};
use crate::daemon::rules::LiveRules;
use crate::daemon::servers::Servers;
use crate::daemon::shutdown::{LOG_TIMEOUT, Reporting, stop};
use crate::daemon::signals::{Event, Signals};
use crate::daemon::sink_health::SinkMonitor;
use crate::daemon::watch::{PolicyWatch, WatchedFiles};
use crate::daemon::worker_settings::WorkerSettings;
use crate::daemon::workers::StallWatch;

use crate::message::{NoSignals, NoThread};
use crate::policy_file::{self, Compiled, PolicyErrors};
use crate::policy_tests::RequiredTests;
use crate::rates::Rates;
use crate::settings::{self, Loaded, PolicySource, Request};
use crate::telemetry::logging::{self, Log};
use crate::terminal::output::{self, Progress};
use crate::terminal::screen::Screen;
use crate::terminal::{numbers, table};
pub(crate) use dataplane::worker_config;
pub(crate) use error::Error;

/// How often workers, ports and the device are checked, and the live table is drawn.
const TICK: Duration = Duration::from_secs(1);
/// How often a line is logged where there is no table.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

pub(crate) fn run(args: &RunArgs) -> Result<(), Error> {
    Progress::forbid();
    let loaded = settings::load(&Request::from(args))?;
    if let Some(interface) = carving::interface_of(args, &loaded)? {
        return carve(args, &loaded, interface);
    }
    libmlx5::enter(&loaded.settings).map_err(Error::LibMlx5)?;
    let signals = signals::listen().map_err(NoSignals)?;
    let screen = Screen::new(args.printed.format() == Format::Text);
    let log = logging::start(&loaded.settings.log, &screen).map_err(Error::Log)?;
    let result = steer(args, &loaded, &signals, &screen, &log);
    log.flush(LOG_TIMEOUT);
    result
}

/// Runs a policy that carves queues: without a device and workers.
fn carve(args: &RunArgs, loaded: &Loaded, interface: &str) -> Result<(), Error> {
    let signals = signals::listen().map_err(NoSignals)?;
    let screen = Screen::new(false);
    let log = logging::start(&loaded.settings.log, &screen).map_err(Error::Log)?;
    let result = carving::run(args, loaded, interface, &signals);
    log.flush(LOG_TIMEOUT);
    result
}

fn steer(
    args: &RunArgs,
    loaded: &Loaded,
    signals: &Signals,
    screen: &Screen,
    log: &Log,
) -> Result<(), Error> {
    preflight::before_start(&loaded.settings)?;
    let bound = servers::bind(&loaded.settings)?;
    let state = loaded.settings.state.folder();
    let history = Arc::new(History::open(state.as_ref().map(|folder| folder.join("history.json"))));
    // Before the policy is read: a later change is reported.
    let watched = WatchedFiles::of(&loaded.settings, &loaded.policy)?;
    let Some(steering) = start(args, loaded, signals, log, &history)? else { return Ok(()) };
    let (reloads, asked) = channel::bounded(WAITERS_MAX);
    let observer = &steering.observer;
    let saved_rules = state.as_ref().map(|folder| folder.join("rules.json"));
    let rules = LiveRules::new(Arc::clone(observer), steering.owner.commands.clone(), saved_rules);
    let rules = Arc::new(rules);
    let parts = Parts {
        observer: Arc::clone(observer),
        commands: steering.owner.commands.clone(),
        rules: Arc::clone(&rules),
        history: Arc::clone(&history),
        worker_settings: Arc::new(WorkerSettings::new(args, &loaded.settings.workers)),
    };
    let servers = bound.serve(&parts, reloads)?;
    let rules_clock = {
        let (rules, mut stalls) = (Arc::clone(&rules), StallWatch::new(parts.clone()));
        Background::start("rules", move || {
            // Before the rules, which wait for workers.
            stalls.tick();
            rules.tick();
        })?
    };
    let ports = watch_ports(observer, loaded.settings.workers.timestamps)?;
    let view = start_view(observer, screen)?;
    let records = {
        let mut records = RecordKeeper::new(observer, state);
        Background::start("records", move || records.tick())?
    };
    let watch = watched.map(WatchedFiles::start).transpose()?;
    // Nothing that the daemon needs can be missing from here on.
    observer.health.set_steering(true);
    let status = format!("steering on {} with {}", observer.opened.device.name(), loaded.policy);
    tracing::info!("{status}");
    notify::ready(&status);

    let stall = Duration::from_millis(loaded.settings.health.stall_ms);
    let ended = Daemon {
        steering: &steering,
        servers: &servers,
        asked,
        parts: &parts,
        rules_clock: &rules_clock,
        records: &records,
        ports: &ports,
        view: &view,
        watch: watch.as_ref(),
        signals,
        stall,
    }
    .run(args);
    drop((rules_clock, records, watch));
    rules.save_last();
    let reporting = Reporting { servers, ports, view, screen, log, signals };
    stop(args.printed.format(), steering, reporting, ended)
}

/// Sets up everything that packets need, from the device to the flows. `None`: a signal to end arrived; it is
/// checked between the stages, as each may take long.
fn start(
    args: &RunArgs,
    loaded: &Loaded,
    signals: &Signals,
    log: &Log,
    history: &History,
) -> Result<Option<Steering>, Error> {
    let builder = Builder::new(&loaded.settings, args.stage_times, log, &|| signals.stop().is_some());
    if stopped(signals) {
        return Ok(None);
    }
    let builder = builder?;
    // After the wires: an XDP program may make a driver set up its queues anew.
    let nic_drops = NicDrops::open(&loaded.settings, args.filter_model.as_ref())?;
    let (device, workers) = (&builder.opened().device, builder.serving_count());
    let profile = builder.profile();
    let begun = Instant::now();
    let (compiled, fault) = first_policy(&loaded.policy, history, &profile, workers)?;
    fault.iter().for_each(|fault| tracing::error!("{fault}"));
    if stopped(signals) {
        return Ok(None);
    }
    policy_file::log(&compiled.warnings, 0);
    let about_device = builder.opened().warnings(&compiled.program);
    about_device.iter().for_each(|warning| tracing::warn!("{warning}"));
    tracing::info!(
        "{}: {}, {}, {}",
        device.name(),
        numbers::counted(compiled.program.flows.len() as u64, "flow", "flows"),
        numbers::counted(compiled.program.queues.len() as u64, "queue pair", "queue pairs"),
        numbers::counted(workers as u64, "worker", "workers"),
    );
    for (index, wire) in builder.opened().wires().iter().enumerate() {
        tracing::info!("port {}: {wire}", index + 1);
    }
    let inputs = Arc::clone(&compiled.inputs);
    let weights = compiled.weights.clone();
    let steering = builder.start(loaded.policy.clone(), compiled, nic_drops)?;
    fault.iter().for_each(|fault| steering.observer.board.reload_failed(fault));
    if history.back(0).is_none_or(|last| last.inputs.sha256 != inputs.sha256) {
        history.add(PastPolicy {
            number: 0,
            at_seconds: unix_seconds(),
            by: "start".to_owned(),
            inputs,
            difference: String::new(),
            milliseconds: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
            flows: None,
            is_unconfirmed: false,
            weights,
        });
    } else {
        history.note_weights(weights);
    }
    Ok(Some(steering))
}

/// Compiles the policy to start with. Also returns the fault, if another policy is used or this one was not
/// confirmed.
fn first_policy(
    policy: &PolicySource,
    history: &History,
    profile: &DeviceModel,
    workers: usize,
) -> Result<(Compiled, Option<String>), Error> {
    let last = || last_good(history, profile, workers);
    let used = |why: &str, last: &Compiled, hint: &str| {
        let number = last.past.unwrap_or_default();
        format!(
            "{policy}: {why}: policy {number} of the history, which was in force before, is used instead (hint: {hint})"
        )
    };
    let compiled = policy_file::load(policy).and_then(|read| {
        let tests = RequiredTests::of(policy, &read)?;
        let traffic = policy.traffic.as_ref();
        let compiled = policy_file::compile_read(read, traffic, profile, Some(workers), None)?;
        let compiled = compiled.into_installable()?;
        tests.finish(Some(&compiled.program))?;
        Ok(compiled)
    });
    match compiled {
        Ok(compiled) if history.is_unconfirmed(&compiled.inputs) => {
            let why = "the policy was on trial and nobody confirmed it";
            let Some(last) = last() else {
                let fault = format!(
                    "{policy}: {why}: it is used all the same, as the history has no confirmed policy that can be used"
                );
                return Ok((compiled, Some(fault)));
            };
            let fault = used(why, &last, "`steerd reload` puts the policy of the file in force");
            Ok((last, Some(fault)))
        }
        Ok(compiled) => {
            if let Some(why) = changed_set(history, &compiled.set_sizes)
                && let Some(last) = last()
            {
                let hint = "if that is right, `steerd reload --force` puts the policy of the file in force";
                let fault = used(&why, &last, hint);
                return Ok((last, Some(fault)));
            }
            Ok((compiled, None))
        }
        Err(diagnostics) => {
            output::print_diagnostics(&diagnostics);
            let Some(last) = last() else {
                return Err(match diagnostics.is_unreadable() {
                    true => Error::PolicyUnreadable { file: policy.to_string() },
                    false => PolicyErrors::of(policy, &diagnostics).into(),
                });
            };
            let fault = used("the policy cannot be used", &last, "mend the file and reload");
            Ok((last, Some(fault)))
        }
    }
}

/// The first set with `max_change` that differs by more from the last confirmed policy, in words.
fn changed_set(history: &History, sets: &[SetSize]) -> Option<String> {
    if sets.is_empty() {
        return None;
    }
    let before = policy_file::load_inputs(&history.last_confirmed()?.inputs)?.ok()?;
    reload::changed_too_much(&before.policy.set_sizes, sets)
}

/// The last confirmed policy of the history, compiled. `None`: there is none that can be used.
fn last_good(history: &History, profile: &DeviceModel, workers: usize) -> Option<Compiled> {
    let last = history.last_confirmed()?;
    let read = policy_file::load_inputs(&last.inputs)?.ok()?;
    let compiled = policy_file::compile_read(read, None, profile, Some(workers), None);
    let compiled = compiled.and_then(Compiled::into_installable).ok()?;
    Some(compiled.of_past(Some(last.number)))
}

fn stopped(signals: &Signals) -> bool {
    let requested = signals.stop();
    if let Some(why) = requested {
        tracing::info!("{why}: ending before any flow was installed");
    }
    requested.is_some()
}

/// The run loop and what it watches.
struct Daemon<'d> {
    steering: &'d Steering,
    servers: &'d Servers,
    /// Reloads that clients of the API ask for.
    asked: Receiver<ReloadRequest>,
    parts: &'d Parts,
    rules_clock: &'d Background,
    records: &'d Background,
    ports: &'d Background,
    view: &'d Background,
    /// The changes of the policy's files; `None`: they are not watched, or no longer.
    watch: Option<&'d PolicyWatch>,
    signals: &'d Signals,
    /// A worker or engine that makes no progress for this long is stalled.
    stall: Duration,
}

impl Daemon<'_> {
    /// Runs until a signal, the end of the given time, the last frame of all wires, or the failure of a part.
    fn run(mut self, args: &RunArgs) -> Result<(), Error> {
        let mut watchdog = notify::Watchdog::new();
        let tick = watchdog.interval().map_or(TICK, |interval| TICK.min(interval / 2));
        let ticks = channel::tick(tick);
        let deadline = args.run_for.map_or_else(channel::never, channel::after);
        let observer = &self.steering.observer;
        let mut reloader = Reloader::new(self.parts.clone());
        let mut polls = Polls::default();
        let mut monitor = Monitor::new(self.stall);
        let mut device = DeviceWatch::default();
        loop {
            // Before the wait: a signal may have come, and its wake-up been consumed, before the loop began.
            match self.signals.take() {
                Some(Event::Reload) => {
                    self.watch.iter().for_each(|watch| watch.forget());
                    let wanted = Wanted::Reload(ReloadBody::default());
                    reloader.ask(ReloadRequest { wanted, by: "signal".to_owned(), waiter: None });
                }
                Some(Event::Record) => {
                    observer.records.ask();
                    self.records.wake();
                }
                Some(Event::Stop { why }) => {
                    tracing::info!("{why}: draining (a second Ctrl-C ends at once)");
                    return Ok(());
                }
                None => {}
            }
            let watched = self.watch.filter(|_| reloader.is_free());
            let changes = watched.map_or_else(channel::never, |watched| watched.changes().clone());
            channel::select! {
                recv(self.signals.wake()) -> _ => {}
                recv(changes) -> changed => match changed {
                    Ok(changed) => reloader.changed(changed),
                    Err(_) => {
                        tracing::error!("{}", watch::ENDED);
                        self.watch = None;
                    }
                },
                recv(self.asked) -> request => match request {
                    Ok(request) => {
                        self.watch.iter().for_each(|watch| watch.forget());
                        reloader.ask(request);
                    }
                    // There is no API, or its server has ended, which `check_parts` reports.
                    Err(_) => self.asked = channel::never(),
                },
                recv(reloader.over()) -> done => reloader.ended(done.ok()),
                recv(reloader.trial_over()) -> _ => reloader.go_back(),
                recv(deadline) -> _ => return Ok(()),
                recv(ticks) -> _ => {
                    self.check_parts(&mut polls)?;
                    device.check(observer)?;
                    let progress = observer.progress();
                    monitor.update(Instant::now(), &progress, &observer.health).iter().for_each(Change::log);
                    watchdog.feed(progress);
                    self.ports.wake();
                    self.rules_clock.wake();
                    self.records.wake();
                    self.view.wake();
                    if !args.keep_running && observer.wires_finished() {
                        tracing::info!("no port can receive anything more: ending (--keep-running goes on)");
                        return Ok(());
                    }
                }
            }
        }
    }

    /// # Errors
    /// A part without which the daemon cannot go on has ended.
    fn check_parts(&self, polls: &mut Polls) -> Result<(), Error> {
        let Steering { owner, threads, observer } = self.steering;
        if let Some(worker) = threads.dead() {
            return Err(Error::WorkerDied(worker));
        }
        if owner.has_ended() {
            return Err(Error::DataplaneDied);
        }
        if let Some(nic) = observer.dead_engine() {
            return Err(Error::EngineDied(nic));
        }
        if self.servers.has_ended() {
            return Err(Error::HttpEnded);
        }
        polls.failing(observer.poll_errors()).map_or(Ok(()), |worker| Err(Error::PollFails(worker)))
    }
}

/// Polls that the device refuses. One may be transient; if they continue the completion queue is broken,
/// although the worker's loop still makes progress.
#[derive(Debug, Default)]
struct Polls {
    errors: Vec<u64>,
    grown: Vec<bool>,
}

impl Polls {
    /// The first worker whose errors have grown between the last two calls and again since the last call.
    fn failing(&mut self, errors: Vec<u64>) -> Option<u32> {
        let before = |worker: usize| self.errors.get(worker).copied().unwrap_or(0);
        let grown: Vec<bool> = errors.iter().enumerate().map(|(worker, now)| *now > before(worker)).collect();
        let failing = grown.iter().zip(&self.grown).position(|(now, before)| *now && *before);
        (self.errors, self.grown) = (errors, grown);
        failing.and_then(|worker| u32::try_from(worker).ok())
    }
}

/// A task on a thread of its own, done each time it is woken: it may wait for the device or for the terminal,
/// and the run loop must not.
struct Background {
    wake: Sender<()>,
    /// Disconnected once the thread has ended.
    ended: Receiver<()>,
}

impl Background {
    fn start(name: &str, mut task: impl FnMut() + Send + 'static) -> Result<Self, Error> {
        let (wake, woken) = channel::bounded(1);
        let (alive, ended) = channel::bounded(0);
        let thread = move || {
            let _alive: Sender<()> = alive;
            woken.iter().for_each(|()| task());
        };
        std::thread::Builder::new().name(name.into()).spawn(thread).map_err(NoThread)?;
        Ok(Self { wake, ended })
    }

    /// Does nothing if the task has been woken and has not begun yet.
    fn wake(&self) {
        let _ = self.wake.try_send(());
    }

    /// Returns `false` if the thread did not end within `timeout`.
    fn stop(self, timeout: Duration) -> bool {
        drop(self.wake);
        self.ended.recv_timeout(timeout) == Err(RecvTimeoutError::Disconnected)
    }
}

/// Asks the device which ports are down and what its clock shows, and sinks whether they pass packets on.
/// `timestamps`: completions have them, and workers convert them.
fn watch_ports(observer: &Arc<Observer>, timestamps: bool) -> Result<Background, Error> {
    let observer = Arc::clone(observer);
    let mut sinks = SinkMonitor::default();
    // A worker warns if there is none.
    let mut clock =
        timestamps.then(|| DeviceClock::open(observer.opened.device.context())).and_then(Result::ok);
    Background::start("ports", move || {
        let down = observer.ports_down();
        let numbers: Vec<u8> = down.iter().map(|port| port.port).collect();
        let stations = observer.opened.stations();
        let list = Arc::clone(&observer.board.read().sinks);
        list.tick(&Ports { down: &numbers, stations: &stations });
        observer.health.set_ports_down(down).iter().for_each(Change::log);
        let losing = sinks.update(Instant::now(), list.progress());
        observer.health.set_losing_sinks(losing).iter().for_each(Change::log);
        match clock.as_mut().map(DeviceClock::read) {
            Some(Ok(relation)) => observer.set_clock(relation),
            // Workers stop converting when the last reading is too old.
            Some(Err(error)) => tracing::debug!("the device's clock cannot be read: {error}"),
            None => {}
        }
    })
}

/// Draws the live table; without a terminal, writes a line to the log now and then.
fn start_view(observer: &Arc<Observer>, screen: &Screen) -> Result<Background, Error> {
    let (observer, screen) = (Arc::clone(observer), screen.clone());
    let (mut rates, mut logged) = (Rates::default(), Instant::now());
    Background::start("view", move || {
        if screen.is_terminal() {
            let state = observer.state();
            let rates = rates.update(&state);
            screen.draw(|rows| table::live(&state, &rates, rows));
        } else if logged.elapsed() >= LINE_INTERVAL {
            logged = Instant::now();
            let state = observer.state();
            let line = table::line(&state, &rates.update(&state));
            tracing::info!("{line}");
            // The outcome of a failed reload stays in the status until a reload succeeds.
            let failed = state.policy.last_error.iter().filter(|_| !state.policy.last_reload_successful);
            notify::status(&failed.fold(line, |line, error| format!("{line}; last reload failed: {error}")));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_that_fail_twice_in_a_row_are_a_failure() {
        let mut polls = Polls::default();
        assert_eq!(polls.failing(vec![0, 0]), None);
        assert_eq!(polls.failing(vec![0, 1]), None, "once");
        assert_eq!(polls.failing(vec![0, 1]), None, "and no more");
        assert_eq!(polls.failing(vec![0, 2]), None);
        assert_eq!(polls.failing(vec![0, 9]), Some(1));
    }
}

//! The running parts: device, workers, controller and soft NIC, built in order and torn down in reverse.
//!
//! `daemon` builds and stops them, `reload` installs programs through them, and `http` reads their state from
//! another thread. Nothing here is on the packet path.

mod drops;
mod profile;
mod snapshot;

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use control::{Band, Controller, DropTotals};
use program::{CaptureSink, Program, SinkKind, SinkSpec, Verdict, WorkerId};
use softnic::SoftNic;
use worker::sinks::{Station, capture};
use worker::{DeviceClock, Idle, SinkMap, Slot, Worker, WorkerConfig, WorkerControl, WorkerHandle};

use crate::api::request::{CaptureBody, Refused};
use crate::api::{self, InForce, model};
use crate::daemon::Error;
use crate::daemon::cores;
use crate::daemon::device::{self, OpenDevice, OutOfBuffer, Soft};
use crate::daemon::health::{DownPort, Health, Part, Progress};
use crate::daemon::libmlx5::PreloadedNic;
use crate::daemon::shutdown::within;
use crate::daemon::sinks::Sinks;
use crate::policy_file::{Compiled, Inputs, RuleWeights};
use crate::settings::{IdleMode, PolicySource, Settings, SoftNicMode};
use crate::state::State;
use crate::telemetry::logging::Log;
use crate::telemetry::pages::Source;

/// How long workers may take to acknowledge a program. They check once per iteration, and are woken for it. A
/// wait that is itself starved, on a machine that is busy with other things, is longer
/// ([`worker::WorkerControl::wait`]).
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a state is reused for scrapes: making one queries the firmware of a real NIC.
const STATE_LIFE: Duration = Duration::from_secs(1);

/// How long the shutdown waits for each of its steps. Together with the limits in `shutdown` they stay below
/// TimeoutStopSec= of systemd/steerd.service, so that parts that hang are named before the service is killed.
const CLEAR_TIMEOUT: Duration = Duration::from_secs(7);
const WORKER_TIMEOUT: Duration = Duration::from_secs(5);
const ENGINE_TIMEOUT: Duration = Duration::from_secs(3);
const SINKS_TIMEOUT: Duration = Duration::from_secs(3);
const STATE_TIMEOUT: Duration = Duration::from_secs(3);
/// How long after a reload workers keep the replaced program: a device may still deliver packets by flows
/// that were just removed.
pub(crate) const LATE_PACKET_GRACE: Duration = Duration::from_secs(1);

/// Sleeps almost at once: a moderate rate then leaves most of a shared core to others.
const RELAXED: Idle = Idle::Adaptive { idle_us: 0 };

/// The parts that threads share while the daemon runs.
pub(crate) struct Runtime {
    /// First, so that flows and queue pairs are destroyed before the objects that they refer to.
    controller: Mutex<Controller>,
    /// After the controller, whose tables refer to their queues, and before the device.
    stopped: Mutex<Vec<Worker>>,
    workers: Vec<WorkerEntry>,
    /// Before the device, whose queues they may use.
    pub(crate) sinks: Sinks,
    opened: OpenDevice,
    policy: Mutex<PolicyInForce>,
    pub(crate) reloads_succeeded: AtomicU64,
    pub(crate) reloads_failed: AtomicU64,
    pub(crate) health: Arc<Health>,
    /// Set when the shutdown begins; from then on no program is installed.
    pub(crate) stopping: AtomicBool,
    /// The counters of drop rules at the last time that they could be read; `None`: they were not read yet.
    drops: Mutex<Option<Vec<DropTotals>>>,
    /// The most dropped packets that are in no counter, because counters could not be read after the removal
    /// of their flows.
    uncounted_drops: AtomicU64,
    out_of_buffer: OutOfBuffer,
    /// If completions have timestamps that can be converted.
    clock: Mutex<Option<DeviceClock>>,
    /// The last state that was made, and when.
    recent: Mutex<Option<(Instant, Arc<State>)>>,
    /// Held while the next one is made.
    making: Mutex<()>,
    /// Counts the changes that make earlier states outdated, see `invalidate_state`.
    changes: AtomicU64,
    started: Instant,
    started_at_seconds: f64,
    frames: u64,
    log: Log,
}

struct WorkerEntry {
    control: WorkerControl,
    /// The number of its work queue.
    queue: u32,
    core: Option<usize>,
}

struct PolicyInForce {
    source: PolicySource,
    inputs: Arc<Inputs>,
    program: Arc<Program>,
    weights: RuleWeights,
    /// The names of the previous policy's rules: their counters are still shown by name.
    before: Vec<String>,
    /// The names of rules with `count = false`, of this policy and the one before.
    unexported: HashSet<String>,
    generation: u64,
    loaded_at_seconds: f64,
    warnings: Warnings,
    last_error: Option<String>,
    /// The start counts as a successful reload.
    last_reload_successful: bool,
}

/// Warnings about the policy in force: of its text and program, then of features that the device lacks or
/// emulates. Only the first are kept as text.
#[derive(Clone, Default)]
struct Warnings {
    count: usize,
    listed: Vec<String>,
}

impl Warnings {
    fn of(policy: &[policy::Diagnostic], device: impl Iterator<Item = String>) -> Self {
        let mut warnings = Self::default();
        for warning in policy.iter().map(ToString::to_string).chain(device) {
            warnings.count += 1;
            if warnings.listed.len() < policy::MAX_DIAGNOSTICS {
                warnings.listed.push(warning);
            }
        }
        warnings
    }
}

/// The workers' threads, joined by `stop` or by `Drop` after a failed start.
pub(crate) struct WorkerThreads(Vec<WorkerHandle>);

/// The parts that are built before there is a program.
pub(crate) struct Builder {
    /// Before the device: workers hold objects of it.
    workers: Vec<Worker>,
    opened: OpenDevice,
    cores: Vec<Option<usize>>,
    clock: Option<DeviceClock>,
    frames: u64,
    log: Log,
}

impl Builder {
    /// Opens the device, checks its ports, builds the workers; nothing runs yet. `profile`: what they spend
    /// their time on is measured.
    ///
    /// # Errors
    /// [`Error::Stopping`] if `is_stopping` returns true while the peer of a link is awaited, among others.
    pub(crate) fn new(
        settings: &Settings,
        profile: bool,
        log: &Log,
        is_stopping: &dyn Fn() -> bool,
    ) -> Result<Self, Error> {
        let cores = cores::of_workers(settings, &cores::available()).map_err(Error::Cores)?;
        settings.check_mtus()?;
        let opened = device::open(settings)?;
        opened.wait_for_peers(settings, is_stopping)?;
        for port in &settings.device.ports {
            opened.device.check_port(*port).map_err(Error::Device)?;
        }
        let queues = opened.device.attributes().max_wq_type_rq;
        if queues > 0 && (queues as usize) < cores.len() {
            let device = opened.device.name().to_owned();
            return Err(Error::TooFewQueues { device, queues, workers: cores.len() });
        }
        settings.workers.check_frames(&opened.device.profile(cores.len()))?;
        let frame_bytes = settings.frame_bytes(&opened.mtus())?;
        let workers = cores
            .iter()
            .enumerate()
            .map(|(index, core)| {
                let config = WorkerConfig {
                    profile,
                    frame_bytes,
                    ..worker_config(settings, WorkerId::of(index), *core)
                };
                Worker::new(opened.device.context(), config).map_err(Error::Worker)
            })
            .collect::<Result<Vec<_>, _>>()?;
        if let Some(soft) = opened.soft.as_ref().filter(|_| profile) {
            soft.nic.start_profile();
        }
        let frames = u64::from(settings.workers.frames) * workers.len() as u64;
        // A worker warns if there is none.
        let wanted = settings.workers.timestamps.then(|| DeviceClock::open(opened.device.context()));
        let clock = wanted.and_then(Result::ok);
        Ok(Self { opened, workers, cores, clock, frames, log: log.clone() })
    }

    pub(crate) fn opened(&self) -> &OpenDevice {
        &self.opened
    }

    pub(crate) fn worker_count(&self) -> usize {
        self.workers.len()
    }

    /// Starts the workers, puts the program on the device, and lets packets in.
    pub(crate) fn start(
        self,
        source: PolicySource,
        compiled: Compiled,
    ) -> Result<(Arc<Runtime>, WorkerThreads), Error> {
        let queues = self.workers.iter().map(Worker::work_queue).collect();
        // Declared before the controller, so that it is dropped after it if a step below fails.
        let mut threads = WorkerThreads(Vec::with_capacity(self.workers.len()));
        let controller = Controller::new(&self.opened.device, self.opened.ports.clone(), queues)
            .map_err(Error::Install)?;
        let domains = self.workers.iter().map(Worker::domain).collect();
        let budgets = self.workers.iter().map(Worker::frame_budget).collect();
        let frames = self.workers.iter().map(Worker::frames).collect();
        let entries: Vec<WorkerEntry> = self
            .workers
            .iter()
            .zip(&self.cores)
            .map(|(worker, core)| WorkerEntry {
                control: worker.control(),
                queue: worker.work_queue().number().0,
                core: *core,
            })
            .collect();
        for worker in self.workers {
            threads.0.push(worker.spawn().map_err(Error::Worker)?);
        }
        let (name, ports) = (self.opened.device.name(), &self.opened.ports);
        let out_of_buffer = OutOfBuffer::of(Path::new(device::CLASSES), name, ports);
        let controls = entries.iter().map(|entry| entry.control.clone()).collect();
        let sinks = Sinks::new(controls, domains, budgets, frames, self.opened.ports.clone());
        let runtime = Runtime {
            controller: Mutex::new(controller),
            stopped: Mutex::default(),
            workers: entries,
            sinks,
            opened: self.opened,
            policy: Mutex::new(PolicyInForce {
                source,
                inputs: Arc::clone(&compiled.inputs),
                program: Arc::clone(&compiled.program),
                weights: RuleWeights::new(),
                before: Vec::new(),
                unexported: HashSet::new(),
                generation: 0,
                loaded_at_seconds: 0.0,
                warnings: Warnings::default(),
                last_error: None,
                last_reload_successful: true,
            }),
            reloads_succeeded: AtomicU64::new(0),
            reloads_failed: AtomicU64::new(0),
            health: Arc::default(),
            stopping: AtomicBool::new(false),
            drops: Mutex::default(),
            uncounted_drops: AtomicU64::new(0),
            out_of_buffer,
            clock: Mutex::new(self.clock),
            recent: Mutex::default(),
            making: Mutex::default(),
            changes: AtomicU64::new(0),
            started: Instant::now(),
            started_at_seconds: unix_seconds(),
            frames: self.frames,
            log: self.log,
        };
        runtime.install(compiled)?;
        runtime.opened.open_wires();
        Ok((Arc::new(runtime), threads))
    }
}

impl Runtime {
    /// All or nothing: after an error the device and the workers are as before.
    pub(crate) fn install(&self, compiled: Compiled) -> Result<(), Error> {
        let Compiled { program, inputs, weights, warnings, .. } = compiled;
        let mut controller = self.controller();
        // Checked while the controller is locked: `stop` sets the flag before it locks the controller to
        // clear it.
        if self.stopping.load(Ordering::Acquire) {
            return Err(Error::Stopping);
        }
        let generation = controller.generation().0 + 1;
        let map =
            self.sinks.prepare(&self.opened, &program, generation, &inputs.sha256).map_err(Error::Sink)?;
        let mut publish = |band: Band, program: Arc<Program>| self.publish(band, &program, &map);
        let install = |controller: &mut Controller| controller.install(Arc::clone(&program), &mut publish);
        let outcome = self.change_device(&mut controller, install);
        let installed = match outcome {
            Ok(installed) => installed,
            Err(error) => {
                self.sinks.abandon();
                return Err(Error::Install(error));
            }
        };
        self.sinks.installed(&map);
        let warnings = Warnings::of(&warnings, controller.warnings().map(ToOwned::to_owned));
        drop(controller);
        if let Some(warning) = &installed.warning {
            tracing::warn!("{warning}");
        }
        let mut policy = self.policy();
        if installed.generation.0 > 1 {
            policy.before = policy.program.rules.iter().map(|rule| rule.name.clone()).collect();
        }
        let uncounted = policy.program.rules.iter().chain(&program.rules).filter(|rule| !rule.count);
        let mut unexported: HashSet<String> = uncounted.map(|rule| rule.name.clone()).collect();
        program.rules.iter().filter(|rule| rule.count).for_each(|rule| {
            unexported.remove(&rule.name);
        });
        policy.unexported = unexported;
        policy.program = program;
        policy.weights = weights;
        policy.inputs = inputs;
        policy.generation = installed.generation.0;
        policy.loaded_at_seconds = unix_seconds();
        policy.warnings = warnings;
        policy.last_error = installed.warning.map(|warning| warning.to_string());
        policy.last_reload_successful = true;
        drop(policy);
        self.retire_rules();
        self.invalidate_state();
        Ok(())
    }

    /// The ports in use, as they are now.
    pub(crate) fn stations(&self) -> Vec<Station> {
        self.opened.stations()
    }

    /// Sums the counters of rules that neither the policy in force nor the previous one has under one name.
    /// Otherwise every reload that renames rules would add series that never go away.
    fn retire_rules(&self) {
        let (program, before) = {
            let policy = self.policy();
            (Arc::clone(&policy.program), policy.before.clone())
        };
        let now = program.rules.iter().map(|rule| &rule.name);
        let keep: HashSet<&str> = now.chain(&before).map(String::as_str).collect();
        self.workers.iter().for_each(|entry| entry.control.retire_rules(&keep));
        self.controller().retire_rules(&keep);
    }

    /// Frees what workers kept of the program that a reload has replaced or refused; to be called
    /// `LATE_PACKET_GRACE` after the reload. Does nothing if there was another reload since, or if flows
    /// could not be removed.
    pub(crate) fn free_previous(&self, generation: u64) {
        // Held to the end, so that nothing is published meanwhile.
        let controller = self.controller();
        if controller.generation().0 != generation {
            return;
        }
        if self.clear_previous(&controller) {
            self.sinks.close_unused();
        }
        drop(controller);
        self.retire_rules();
    }

    /// Frees what is not needed any more right after a reload; on a soft device that is all that workers kept
    /// of the other program. Its flows are removed between two bursts, so no packet can arrive by them any
    /// more.
    pub(crate) fn free_unreachable(&self) {
        if self.soft_nic().is_some() {
            let controller = self.controller();
            if self.clear_previous(&controller) {
                self.sinks.release_previous();
            }
            drop(controller);
            self.retire_rules();
        }
    }

    /// Has the workers release the program that is not installed, if there is one. `false`: it may still be
    /// in use.
    fn clear_previous(&self, controller: &Controller) -> bool {
        let Some(band) = controller.installed().map(|(_, band)| band.other()) else { return false };
        if controller.has_leftover() || self.stopping.load(Ordering::Acquire) {
            return false;
        }
        let cleared: Vec<_> = self.workers.iter().map(|entry| (entry, entry.control.clear(band))).collect();
        let late = cleared.iter().find(|(entry, cleared)| !entry.control.wait(*cleared, PUBLISH_TIMEOUT));
        if let Some((entry, _)) = late {
            tracing::warn!("worker {} still keeps the previous program", entry.control.id().0);
        }
        late.is_none()
    }

    pub(crate) fn generation(&self) -> u64 {
        self.policy().generation
    }

    pub(crate) fn reload_succeeded(&self) {
        self.reloads_succeeded.fetch_add(1, Ordering::Relaxed);
        self.invalidate_state();
    }

    /// Kept in the state until a reload succeeds.
    pub(crate) fn reload_failed(&self, error: &str) {
        self.reloads_failed.fetch_add(1, Ordering::Relaxed);
        let mut policy = self.policy();
        policy.last_error = Some(error.lines().next().unwrap_or_default().to_owned());
        policy.last_reload_successful = false;
        drop(policy);
        self.invalidate_state();
    }

    pub(crate) fn opened(&self) -> &OpenDevice {
        &self.opened
    }

    pub(crate) fn worker_count(&self) -> usize {
        self.workers.len()
    }

    /// The program in force. The next one must fit on the device together with it.
    pub(crate) fn program(&self) -> Arc<Program> {
        Arc::clone(&self.policy().program)
    }

    /// The weights for which the program was compiled.
    pub(crate) fn weights(&self) -> RuleWeights {
        self.policy().weights.clone()
    }

    pub(crate) fn policy_source(&self) -> PolicySource {
        self.policy().source.clone()
    }

    /// The policy in force, at one moment.
    pub(crate) fn policy_in_force(&self) -> InForce {
        let policy = self.policy();
        InForce {
            source: policy.source.to_string(),
            generation: policy.generation,
            inputs: Arc::clone(&policy.inputs),
            program: Arc::clone(&policy.program),
        }
    }

    /// The iterations of each worker's loop and of each engine thread's. Never blocks.
    pub(crate) fn progress(&self) -> Vec<Progress> {
        let workers = self
            .workers
            .iter()
            .map(|entry| (Part::Worker(entry.control.id().0), entry.control.progress().iterations));
        let engines = self.opened.soft_nics().flat_map(Soft::progress);
        workers.chain(engines).chain(self.opened.preloaded.as_ref().map(PreloadedNic::progress)).collect()
    }

    /// The ports whose link is down. Queries the device, which may block.
    pub(crate) fn ports_down(&self) -> Vec<DownPort> {
        let is_down = |port: &&u8| {
            matches!(self.opened.device.check_port(**port), Err(control::ControlError::PortDown { .. }))
        };
        let down = self.opened.ports.iter().filter(is_down);
        down.map(|port| DownPort { port: *port, wire: self.opened.wire_name(*port) }).collect()
    }

    /// Reads the device's clock, for workers to convert timestamps. Queries the device, which may block.
    pub(crate) fn read_clock(&self) {
        let mut clock = self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        match clock.as_mut().map(DeviceClock::read) {
            Some(Ok(relation)) => self.workers.iter().for_each(|entry| entry.control.set_clock(relation)),
            // Workers stop converting when the last reading is too old.
            Some(Err(error)) => tracing::debug!("the device's clock cannot be read: {error}"),
            None => {}
        }
    }

    /// The number of failed polls of each worker.
    pub(crate) fn poll_errors(&self) -> Vec<u64> {
        self.workers.iter().map(|entry| entry.control.progress().poll_errors).collect()
    }

    /// Whether every port of the workers' soft NIC has received its last frame and all frames have been
    /// handed over. Other soft NICs only send.
    pub(crate) fn wires_finished(&self) -> bool {
        self.soft_nic().is_some_and(SoftNic::wires_finished)
            || self.opened.preloaded.as_ref().is_some_and(PreloadedNic::is_finished)
    }

    /// The soft NIC whose engine's thread has died.
    pub(crate) fn dead_engine(&self) -> Option<String> {
        let soft = self.opened.soft_nics().find(|soft| soft.nic.engine_died()).map(|soft| &soft.name);
        let preloaded =
            self.opened.preloaded.as_ref().filter(|preloaded| preloaded.has_died()).map(PreloadedNic::name);
        soft.or(preloaded).map(ToString::to_string)
    }

    /// Ends the engines, all at the same time; returns those that are still running after the timeout.
    fn stop_engines(&self) -> Vec<Part> {
        let stop = |soft: &Soft| (!soft.nic.stop_within(ENGINE_TIMEOUT)).then(|| soft.engine());
        std::thread::scope(|scope| {
            let begin = |soft| {
                let thread = std::thread::Builder::new().name("stop".to_owned());
                thread.spawn_scoped(scope, move || stop(soft)).map_err(|_| soft)
            };
            let begun: Vec<_> = self.opened.soft_nics().map(begin).collect();
            // Without a thread: one after the other.
            let ended = begun.into_iter().filter_map(|begun| match begun {
                Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                Err(soft) => stop(soft),
            });
            ended.collect()
        })
    }

    /// Frees the sinks of the workers that have ended. What they have in flight then counts as dropped.
    fn free_endpoints(&self) {
        let mut stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        stopped.iter_mut().for_each(Worker::free_sinks);
    }

    /// The state for HTTP clients. The device is queried at most once per `STATE_LIFE`; while a query is
    /// running, which may take long, other callers get a state that is somewhat older.
    pub(crate) fn recent_state(&self) -> Arc<State> {
        let younger_than = |life: Duration| {
            let recent = self.recent();
            recent.as_ref().filter(|(made, _)| made.elapsed() < life).map(|(_, state)| Arc::clone(state))
        };
        if let Some(state) = younger_than(STATE_LIFE) {
            return state;
        }
        let making = self.making.try_lock();
        if matches!(making, Err(TryLockError::WouldBlock))
            && let Some(state) = younger_than(3 * STATE_LIFE)
        {
            return state;
        }
        let changes = self.changes.load(Ordering::Acquire);
        let state = Arc::new(snapshot::of(self, snapshot::Moment::Running));
        // A state from before a change is returned to this caller, who asked before the change, but not kept
        // for later ones.
        let mut recent = self.recent();
        if self.changes.load(Ordering::Acquire) == changes {
            *recent = Some((Instant::now(), Arc::clone(&state)));
        }
        drop(recent);
        state
    }

    pub(crate) fn state(&self) -> State {
        snapshot::of(self, snapshot::Moment::Running)
    }

    /// Must be called after every change of policy: no earlier state is returned afterwards.
    fn invalidate_state(&self) {
        let mut recent = self.recent();
        *recent = None;
        self.changes.fetch_add(1, Ordering::Release);
    }

    fn recent(&self) -> MutexGuard<'_, Option<(Instant, Arc<State>)>> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(
        &self,
        band: Band,
        program: &Arc<Program>,
        map: &Arc<SinkMap>,
    ) -> Result<(), control::ControlError> {
        let publish = |entry: &WorkerEntry| {
            entry.control.publish_with_sinks(band, Arc::clone(program), Arc::clone(map))
        };
        let published: Vec<_> = self.workers.iter().map(|entry| (entry, publish(entry))).collect();
        let late =
            published.iter().find(|(entry, publication)| !entry.control.wait(*publication, PUBLISH_TIMEOUT));
        match late {
            None => Ok(()),
            Some((entry, _)) => Err(control::ControlError::Workers(format!(
                "worker {} did not acknowledge the program within {} s, or longer on a busy machine",
                entry.control.id().0,
                PUBLISH_TIMEOUT.as_secs()
            ))),
        }
    }

    /// Whether that of the workers' soft NIC is.
    fn is_engine_stalled(&self) -> bool {
        self.opened.engine_stalled(&self.health.stalled()) == Some(true)
    }

    fn controller(&self) -> MutexGuard<'_, Controller> {
        self.controller.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn policy(&self) -> MutexGuard<'_, PolicyInForce> {
        self.policy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn soft_nic(&self) -> Option<&SoftNic> {
        self.opened.soft.as_ref().map(|soft| &soft.nic)
    }
}

impl Source for Runtime {
    fn state(&self) -> Arc<State> {
        self.recent_state()
    }

    fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }
}

impl api::Daemon for Runtime {
    fn status(&self) -> model::Status {
        snapshot::status(self)
    }

    fn in_force(&self) -> InForce {
        self.policy_in_force()
    }

    fn state(&self) -> Arc<State> {
        self.recent_state()
    }

    fn attach(
        &self,
        id: u64,
        asked: &CaptureBody,
        stream: Box<dyn io::Write + Send>,
    ) -> Result<Slot, Refused> {
        let CaptureBody { rule, snap, one_in } = asked;
        self.check_captured(rule)?;
        let options = CaptureSink {
            snap_bytes: snap
                .map_or(CaptureSink::SNAP_BYTES_MAX, |snap| snap.clamp(1, CaptureSink::SNAP_BYTES_MAX)),
            one_in: one_in.map_or(1, |one_in| one_in.max(1)),
            ..CaptureSink::default()
        };
        let unavailable = |error: &dyn std::fmt::Display| Refused::new(503, error.to_string());
        // No sink of a policy has such a name.
        let name = format!("(capture {id})");
        let context = self.opened.device.context();
        let opened = capture::to_writer(stream, &name, rule, &options, context, self.workers.len());
        let opened = opened.map_err(|error| unavailable(&error))?;
        let definition = SinkSpec { name, kind: SinkKind::Capture(options) };
        self.sinks.attach(&definition, rule, opened).map_err(|error| unavailable(&error))
    }

    fn detach(&self, slot: Slot) {
        self.sinks.detach(slot);
    }
}

impl Runtime {
    /// Only packets that a worker delivers can be captured.
    fn check_captured(&self, name: &str) -> Result<(), Refused> {
        let program = self.program();
        match program.rules.iter().find(|rule| rule.name == name) {
            None => Err(Refused::new(404, format!("the policy in force has no rule `{name}`"))),
            Some(rule) if matches!(rule.action, Verdict::Deliver(_)) => Ok(()),
            Some(_) => Err(Refused::new(
                409,
                format!(
                    "no worker delivers packets of the rule `{name}` (hint: capture a copy of them: action = {{ copy = \"GROUP\" }})"
                ),
            )),
        }
    }
}

impl WorkerThreads {
    /// A worker whose thread has exited unexpectedly.
    pub(crate) fn dead(&self) -> Option<u32> {
        self.0.iter().find(|handle| handle.is_finished()).map(|handle| handle.id().0)
    }

    /// Removes the flows, so that no packet arrives any more, lets the workers process what has arrived, and
    /// reads the final counters. Every step is limited in time; parts that hang are named and left to the end
    /// of the process.
    pub(crate) fn stop(mut self, runtime: &Arc<Runtime>) -> Stopped {
        let ran_for = runtime.started.elapsed();
        let (mut errors, mut hung) = (Vec::new(), Vec::new());
        runtime.health.set_steering(false);
        runtime.stopping.store(true, Ordering::Release);
        runtime.opened.close_wires();
        let cleared = Arc::clone(runtime);
        let clear = move || cleared.change_device(&mut cleared.controller(), Controller::clear);
        match within("clear", CLEAR_TIMEOUT, clear) {
            Some(Ok(())) => {}
            Some(Err(error)) => errors.push(Error::Install(error)),
            None => hung.push("the removal of the flows".to_owned()),
        }
        let (stopped, failed) = self.join();
        runtime.stopped.lock().unwrap_or_else(PoisonError::into_inner).extend(stopped);
        let flushed = Arc::clone(runtime);
        let end_sinks = move || {
            flushed.sinks.end();
            // After their hubs, which end the sends in flight.
            flushed.free_endpoints();
        };
        if within("sinks", SINKS_TIMEOUT, end_sinks).is_none() {
            hung.push("the sinks".to_owned());
        }
        for error in failed {
            match error {
                worker::Error::StillRunning { worker } => hung.push(Part::Worker(worker.0).to_string()),
                error => errors.push(Error::Worker(error)),
            }
        }
        hung.extend(runtime.stop_engines().iter().map(Part::to_string));
        let moment = if hung.is_empty() { snapshot::Moment::Ended } else { snapshot::Moment::Running };
        let last = Arc::clone(runtime);
        let state = within("state", STATE_TIMEOUT, move || snapshot::of(&last, moment));
        if state.is_none() {
            hung.push("the final read of the counters".to_owned());
        }
        Stopped { state, ran_for, errors, hung }
    }

    fn join(&mut self) -> (Vec<Worker>, Vec<worker::Error>) {
        self.0.iter().for_each(WorkerHandle::stop);
        let deadline = Instant::now() + WORKER_TIMEOUT;
        let (mut stopped, mut failed) = (Vec::new(), Vec::new());
        for handle in std::mem::take(&mut self.0) {
            match handle.join_by(deadline) {
                Ok(worker) => stopped.push(worker),
                Err(error) => failed.push(error),
            }
        }
        (stopped, failed)
    }
}

impl Drop for WorkerThreads {
    fn drop(&mut self) {
        for error in self.join().1 {
            tracing::error!("{error}");
        }
    }
}

/// The result of a shutdown.
pub(crate) struct Stopped {
    /// The last state, if the device still answered.
    pub(crate) state: Option<State>,
    pub(crate) ran_for: Duration,
    pub(crate) errors: Vec<Error>,
    /// The parts that did not end in time. They still use the device, so the runtime must not be dropped.
    pub(crate) hung: Vec<String>,
}

fn worker_config(settings: &Settings, id: WorkerId, core: Option<usize>) -> WorkerConfig {
    let wanted = &settings.workers;
    WorkerConfig {
        core,
        ports: settings.device.ports.clone(),
        frames: wanted.frames,
        batch: wanted.batch,
        pages: wanted.pages.clone(),
        idle: match wanted.idle {
            IdleMode::Adaptive => Idle::Adaptive { idle_us: wanted.idle_us },
            IdleMode::Relaxed => RELAXED,
            IdleMode::Spin => Idle::Spin,
        },
        timestamps: wanted.timestamps,
        // In this mode nothing moves while nobody polls.
        polls_drive_device: settings.softnic.mode == SoftNicMode::Inline && settings.chooses_soft(),
        ..WorkerConfig::new(id)
    }
}

fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

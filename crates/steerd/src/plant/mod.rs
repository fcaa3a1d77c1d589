//! The running machinery: device, workers, controller, soft NIC; built in order, taken down in reverse.
//!
//! `daemon` builds it and ends it, `reload` installs programs through it, `http` reads its state from
//! another thread. It decides nothing about when; nothing of it is on the packet path.

mod device;
mod hw_counters;
mod netdev;
mod snapshot;

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use control::{Band, Controller, DropTotals, Reading};
use program::{Program, WorkerId};
use softnic::SoftNic;
use worker::{Idle, Worker, WorkerConfig, WorkerControl, WorkerHandle};

use crate::bounded::within;
use crate::cores;
use crate::error::Error;
use crate::health::{DownPort, Health, Part, Progress};
use crate::http::Source;
use crate::logging::Log;
use crate::policy_file::Compiled;
use crate::settings::{IdleMode, PolicySource, Settings};
use crate::state::State;
pub(crate) use device::{Compiling, Opened, list, open, profile};
use hw_counters::OutOfBuffer;

/// How long workers may take to take up a program: they look once per turn, and sleep for microseconds.
const PUBLISH_PATIENCE: Duration = Duration::from_secs(5);

/// How long a state is good enough for scrapes: to make one, a real NIC's firmware is asked.
const STATE_LIFE: Duration = Duration::from_secs(1);

/// How long the end waits for each of its steps. Together with the other waits of `daemon` they stay below
/// TimeoutStopSec= of systemd/steerd.service, so that what hangs is named before the service is killed.
const CLEAR_PATIENCE: Duration = Duration::from_secs(7);
const WORKER_PATIENCE: Duration = Duration::from_secs(5);
const ENGINE_PATIENCE: Duration = Duration::from_secs(3);
const STATE_PATIENCE: Duration = Duration::from_secs(3);
/// How long after a reload the workers keep what they need to judge packets by flows that are gone: a device may
/// still deliver those that it was working on.
pub(crate) const LATE_PACKETS: Duration = Duration::from_secs(1);

/// How many counters are read before whoever waits for the controller may have it.
const COUNTERS_AT_ONCE: usize = 256;

/// Sleeps after a few empty turns: a moderate rate then leaves most of a shared core to others.
const RELAXED: Idle = Idle::Adaptive { spin_polls: 16, yield_polls: 4, sleep_us: 200 };

/// What other threads may look at while it runs.
pub(crate) struct Plant {
    /// First, so that flows and queue pairs go before what they stand on.
    controller: Mutex<Controller>,
    /// After the controller, whose tables refer to their queues, and before the device.
    stopped: Mutex<Vec<Worker>>,
    workers: Vec<WorkerSeat>,
    opened: Opened,
    policy: Mutex<PolicyInForce>,
    pub(crate) reloads_succeeded: AtomicU64,
    pub(crate) reloads_failed: AtomicU64,
    pub(crate) health: Arc<Health>,
    /// From the beginning of the end on no program is installed any more.
    pub(crate) stopping: AtomicBool,
    /// What drop rules had counted when the device could last be asked.
    drops: Mutex<Vec<DropTotals>>,
    out_of_buffer: OutOfBuffer,
    /// The last state that was made, and when.
    recent: Mutex<Option<(Instant, Arc<State>)>>,
    /// Held by whoever makes the next one.
    making: Mutex<()>,
    /// Counts what makes older states wrong, see `forget`.
    changes: AtomicU64,
    started: Instant,
    started_at_seconds: f64,
    frames: u64,
    log: Log,
}

struct WorkerSeat {
    control: WorkerControl,
    core: Option<usize>,
}

struct PolicyInForce {
    source: PolicySource,
    program: Arc<Program>,
    /// The names of the rules of the policy before: their counters are still shown by name.
    before: Vec<String>,
    /// The names of rules with `count = false`, of this policy and the one before.
    unexported: HashSet<String>,
    generation: u64,
    loaded_at_seconds: f64,
    warnings: Warnings,
    last_error: Option<String>,
    /// Until the next reload has an outcome; the start counts as one that succeeded.
    last_reload_successful: bool,
}

/// What is doubtful about the policy in force: of its text and program, then of what the device does without or
/// otherwise. Only the first are kept in words.
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

/// The workers' threads; joined by `stop`, or when a failed start drops them.
pub(crate) struct Threads(Vec<WorkerHandle>);

/// What has been built before there is a program.
pub(crate) struct Builder {
    /// Before the device that they were made on.
    workers: Vec<Worker>,
    opened: Opened,
    cores: Vec<Option<usize>>,
    frames: u64,
    log: Log,
}

impl Builder {
    /// Opens the device, checks its ports, builds the workers; nothing runs yet.
    ///
    /// # Errors
    /// Among others [`Error::Stopping`], if `is_stopping` says so while a peer is waited for.
    pub(crate) fn new(settings: &Settings, log: &Log, is_stopping: &dyn Fn() -> bool) -> Result<Self, Error> {
        let cores = cores::assign(&settings.workers.cores, settings.softnic.core, &cores::available())
            .map_err(Error::Cores)?;
        let opened = open(settings)?;
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
        let workers = cores
            .iter()
            .enumerate()
            .map(|(index, core)| {
                let config = worker_config(settings, WorkerId::of(index), *core);
                Worker::new(opened.device.context(), config).map_err(Error::Worker)
            })
            .collect::<Result<Vec<_>, _>>()?;
        let frames = u64::from(settings.workers.frames) * workers.len() as u64;
        Ok(Self { opened, workers, cores, frames, log: log.clone() })
    }

    pub(crate) fn opened(&self) -> &Opened {
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
    ) -> Result<(Arc<Plant>, Threads), Error> {
        let queues = self.workers.iter().map(Worker::work_queue).collect();
        // Before the controller, so that it goes after it if something fails below.
        let mut threads = Threads(Vec::with_capacity(self.workers.len()));
        let controller = Controller::new(&self.opened.device, self.opened.ports.clone(), queues)
            .map_err(Error::Install)?;
        let seats = self
            .workers
            .iter()
            .zip(&self.cores)
            .map(|(worker, core)| WorkerSeat { control: worker.control(), core: *core })
            .collect();
        for worker in self.workers {
            threads.0.push(worker.spawn().map_err(Error::Worker)?);
        }
        let (device, ports) = (self.opened.device.name(), &self.opened.ports);
        let out_of_buffer = OutOfBuffer::of(Path::new(hw_counters::SYSFS), device, ports);
        let plant = Plant {
            controller: Mutex::new(controller),
            stopped: Mutex::default(),
            workers: seats,
            opened: self.opened,
            policy: Mutex::new(PolicyInForce {
                source,
                program: Arc::clone(&compiled.program),
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
            out_of_buffer,
            recent: Mutex::default(),
            making: Mutex::default(),
            changes: AtomicU64::new(0),
            started: Instant::now(),
            started_at_seconds: unix_seconds(),
            frames: self.frames,
            log: self.log,
        };
        plant.install(compiled)?;
        plant.opened.let_packets_in();
        plant.health.set_steering(true);
        Ok((Arc::new(plant), threads))
    }
}

impl Plant {
    /// All or nothing: on an error the device and the workers are as before.
    pub(crate) fn install(&self, compiled: Compiled) -> Result<(), Error> {
        let Compiled { program, warnings, .. } = compiled;
        let mut publish = |band: Band, program: Arc<Program>| self.publish(band, &program);
        let mut controller = self.controller();
        // Asked with the controller in hand: `stop` clears it after it has said so.
        if self.stopping.load(Ordering::Acquire) {
            return Err(Error::Stopping);
        }
        let installed = controller.install(Arc::clone(&program), &mut publish).map_err(Error::Install)?;
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
        policy.generation = installed.generation.0;
        policy.loaded_at_seconds = unix_seconds();
        policy.warnings = warnings;
        policy.last_error = installed.warning.map(|warning| warning.to_string());
        policy.last_reload_successful = true;
        drop(policy);
        self.retire_rules();
        self.forget();
        Ok(())
    }

    /// Sums up the counters of rules that neither the policy in force nor the one before has, under one name:
    /// otherwise each reload with other names would leave series for ever.
    fn retire_rules(&self) {
        let (program, before) = {
            let policy = self.policy();
            (Arc::clone(&policy.program), policy.before.clone())
        };
        let now = program.rules.iter().map(|rule| &rule.name);
        let keep: HashSet<&str> = now.chain(&before).map(String::as_str).collect();
        self.workers.iter().for_each(|seat| seat.control.retire_rules(&keep));
        self.controller().retire_rules(&keep);
    }

    /// Frees what was kept of the policy that a reload has replaced or refused; to be called `LATE_PACKETS` after
    /// the reload. Does nothing if there was another one meanwhile, or if flows could not be removed.
    pub(crate) fn free_previous(&self, generation: u64) {
        // Held to the end: nothing is published meanwhile.
        let controller = self.controller();
        let Some(band) = controller.installed().map(|(_, band)| band.other()) else { return };
        let other = controller.generation().0 != generation || controller.has_leftover();
        if other || self.stopping.load(Ordering::Acquire) {
            return;
        }
        let cleared: Vec<_> = self.workers.iter().map(|seat| (seat, seat.control.clear(band))).collect();
        let late = cleared.iter().find(|(seat, cleared)| !seat.control.wait(*cleared, PUBLISH_PATIENCE));
        drop(controller);
        if let Some((seat, _)) = late {
            tracing::warn!("worker {} still keeps what it had of the policy before", seat.control.id().0);
        }
        self.retire_rules();
        hugemem::release_free_heap();
    }

    pub(crate) fn generation(&self) -> u64 {
        self.policy().generation
    }

    pub(crate) fn reload_succeeded(&self) {
        self.reloads_succeeded.fetch_add(1, Ordering::Relaxed);
        self.forget();
    }

    /// Remembered until a reload succeeds.
    pub(crate) fn reload_failed(&self, error: &str) {
        self.reloads_failed.fetch_add(1, Ordering::Relaxed);
        let mut policy = self.policy();
        policy.last_error = Some(error.lines().next().unwrap_or_default().to_owned());
        policy.last_reload_successful = false;
        drop(policy);
        self.forget();
    }

    pub(crate) fn opened(&self) -> &Opened {
        &self.opened
    }

    pub(crate) fn worker_count(&self) -> usize {
        self.workers.len()
    }

    /// The program in force, beside which the next one must have room.
    pub(crate) fn program(&self) -> Arc<Program> {
        Arc::clone(&self.policy().program)
    }

    pub(crate) fn policy_source(&self) -> PolicySource {
        self.policy().source.clone()
    }

    /// How often each worker's loop and the engine's have turned. Waits for nobody.
    pub(crate) fn progress(&self) -> Vec<Progress> {
        let workers =
            self.workers.iter().map(|seat| (Part::Worker(seat.control.id().0), seat.control.pulse().turns));
        let engine = self.soft_nic().and_then(SoftNic::engine_passes).map(|passes| (Part::Engine, passes));
        workers.chain(engine).collect()
    }

    /// The ports on which nothing is received now, as far as the device says so.
    pub(crate) fn ports_down(&self) -> Vec<DownPort> {
        let is_down = |port: &&u8| {
            matches!(self.opened.device.check_port(**port), Err(control::Error::PortDown { .. }))
        };
        let down = self.opened.ports.iter().filter(is_down);
        down.map(|port| DownPort { port: *port, wire: self.opened.wire_name(*port) }).collect()
    }

    /// How often the device refused to be polled, by worker.
    pub(crate) fn poll_errors(&self) -> Vec<u64> {
        self.workers.iter().map(|seat| seat.control.pulse().poll_errors).collect()
    }

    /// Whether every port of a soft NIC has received its last frame, and all are handed over.
    pub(crate) fn wires_finished(&self) -> bool {
        self.soft_nic().is_some_and(SoftNic::wires_finished)
    }

    /// Whether nothing moves frames any more, although it should.
    pub(crate) fn engine_died(&self) -> bool {
        self.soft_nic().is_some_and(SoftNic::engine_died)
    }

    /// For whoever asks from outside: at most so often is the device itself asked. While somebody asks it, which
    /// may take long, a state that is somewhat older serves the others.
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
        // A state from before a change is good for whoever asked before it, not for those who come later.
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

    /// What is in force has changed: no old state is shown after that.
    fn forget(&self) {
        let mut recent = self.recent();
        *recent = None;
        self.changes.fetch_add(1, Ordering::Release);
    }

    fn recent(&self) -> MutexGuard<'_, Option<(Instant, Arc<State>)>> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, band: Band, program: &Arc<Program>) -> Result<(), control::Error> {
        let publish = |seat: &WorkerSeat| seat.control.publish(band, Arc::clone(program));
        let published: Vec<_> = self.workers.iter().map(|seat| (seat, publish(seat))).collect();
        let late =
            published.iter().find(|(seat, publication)| !seat.control.wait(*publication, PUBLISH_PATIENCE));
        match late {
            None => Ok(()),
            Some((seat, _)) => Err(control::Error::Workers(format!(
                "worker {} did not take it within {} s",
                seat.control.id().0,
                PUBLISH_PATIENCE.as_secs()
            ))),
        }
    }

    /// What drop rules have counted; `false`: as of an earlier moment, while a program is being installed.
    fn drop_totals(&self, moment: snapshot::Moment) -> (Vec<DropTotals>, bool) {
        let now = match moment {
            snapshot::Moment::Ended => Some(self.controller().drop_counters()),
            // The device answers only between two bursts of its engine: of one that is stalled, never.
            snapshot::Moment::Running if self.health.stalled().contains(&Part::Engine) => None,
            snapshot::Moment::Running => self.read_drops(),
        };
        let fresh = now.is_some();
        // Locked only now, so that nobody waits here for the device.
        let mut last = self.drops.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(now) = now {
            *last = now;
        }
        (last.clone(), fresh)
    }

    /// A few at a time, so that a reload does not wait until thousands are read; `None` if one is running.
    fn read_drops(&self) -> Option<Vec<DropTotals>> {
        let mut reading = Reading::default();
        loop {
            let mut controller = match self.controller.try_lock() {
                Ok(controller) => controller,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return None,
            };
            if !controller.read_counters(&mut reading, COUNTERS_AT_ONCE) {
                return Some(controller.drop_totals());
            }
            drop(controller);
            std::thread::yield_now();
        }
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

impl Source for Plant {
    fn state(&self) -> Arc<State> {
        self.recent_state()
    }

    fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }
}

impl Threads {
    /// A worker whose thread has ended although nobody asked it to.
    pub(crate) fn dead(&self) -> Option<u32> {
        self.0.iter().find(|handle| handle.is_finished()).map(|handle| handle.id().0)
    }

    /// Flows first, so that nothing new arrives; then the workers take what has; then all is counted. No step is
    /// waited for without end: what hangs is named and left to the end of the process.
    pub(crate) fn stop(mut self, plant: &Arc<Plant>) -> Ended {
        let ran_for = plant.started.elapsed();
        let (mut errors, mut hung) = (Vec::new(), Vec::new());
        plant.health.set_steering(false);
        plant.stopping.store(true, Ordering::Release);
        let cleared = Arc::clone(plant);
        match within("clear", CLEAR_PATIENCE, move || cleared.controller().clear()) {
            Some(Ok(())) => {}
            Some(Err(error)) => errors.push(Error::Install(error)),
            None => hung.push("the removal of the flows".to_owned()),
        }
        let (stopped, failed) = self.join();
        plant.stopped.lock().unwrap_or_else(PoisonError::into_inner).extend(stopped);
        for error in failed {
            match error {
                worker::Error::StillRunning { worker } => hung.push(Part::Worker(worker.0).to_string()),
                error => errors.push(Error::Worker(error)),
            }
        }
        if plant.soft_nic().is_some_and(|nic| !nic.stop_within(ENGINE_PATIENCE)) {
            hung.push(Part::Engine.to_string());
        }
        let moment = if hung.is_empty() { snapshot::Moment::Ended } else { snapshot::Moment::Running };
        let last = Arc::clone(plant);
        let state = within("state", STATE_PATIENCE, move || snapshot::of(&last, moment));
        if state.is_none() {
            hung.push("the last look at the counters".to_owned());
        }
        Ended { state, ran_for, errors, hung }
    }

    fn join(&mut self) -> (Vec<Worker>, Vec<worker::Error>) {
        self.0.iter().for_each(WorkerHandle::stop);
        let deadline = Instant::now() + WORKER_PATIENCE;
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

impl Drop for Threads {
    fn drop(&mut self) {
        for error in self.join().1 {
            tracing::error!("{error}");
        }
    }
}

/// What is left when the machinery has been stopped.
pub(crate) struct Ended {
    /// The last state, if the device still answered.
    pub(crate) state: Option<State>,
    pub(crate) ran_for: Duration,
    pub(crate) errors: Vec<Error>,
    /// What did not end in time. It still runs and uses the device: the plant must then not be dropped.
    pub(crate) hung: Vec<String>,
}

fn worker_config(settings: &Settings, id: WorkerId, core: Option<usize>) -> WorkerConfig {
    let wanted = &settings.workers;
    WorkerConfig {
        core,
        ports: settings.device.ports.clone(),
        frames: wanted.frames,
        frame_bytes: wanted.frame_bytes,
        batch: wanted.batch,
        pages: wanted.pages.clone(),
        idle: match wanted.idle {
            IdleMode::Adaptive => Idle::default(),
            IdleMode::Relaxed => RELAXED,
            IdleMode::Spin => Idle::Spin,
        },
        timestamps: wanted.timestamps,
        ..WorkerConfig::new(id)
    }
}

fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

//! The running machinery: device, workers, controller, soft NIC; built in order, taken down in reverse.
//!
//! `daemon` builds it and ends it, `reload` installs programs through it, `http` reads its state from
//! another thread. It decides nothing about when; nothing of it is on the packet path.

mod counted;
mod device;
mod hw_counters;
mod snapshot;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use control::{Band, Controller, DropTotals};
use program::{Program, WorkerId};
use softnic::SoftNic;
use worker::{Idle, Worker, WorkerConfig, WorkerControl, WorkerHandle};

use crate::cores;
use crate::error::Error;
use crate::settings::{IdleMode, PolicySource, Settings};
use crate::state::State;
use counted::Counted;
pub(crate) use device::{Opened, list, open, profile};
use hw_counters::OutOfBuffer;

/// How long workers may take to take up a program: they look once per turn, and sleep for microseconds.
const PUBLISH_PATIENCE: Duration = Duration::from_secs(5);

/// How long a state is good enough for scrapes: to make one, a real NIC's firmware is asked.
const STATE_LIFE: Duration = Duration::from_secs(1);

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
    pub(crate) ready: Arc<AtomicBool>,
    /// From the beginning of the end on no program is installed any more.
    pub(crate) stopping: AtomicBool,
    /// What rules count in the device, by name.
    counted: Mutex<Counted>,
    /// What drop rules had counted when the device could last be asked.
    drops: Mutex<Vec<DropTotals>>,
    out_of_buffer: OutOfBuffer,
    /// The last state that was made, and when.
    recent: Mutex<Option<(Instant, Arc<State>)>>,
    started: Instant,
    started_at_seconds: f64,
    frames: u64,
}

struct WorkerSeat {
    control: WorkerControl,
    core: Option<usize>,
}

struct PolicyInForce {
    source: PolicySource,
    program: Arc<Program>,
    generation: u64,
    loaded_at_seconds: f64,
    /// What the device does without, or otherwise than the program means.
    warnings: Vec<String>,
    last_error: Option<String>,
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
}

impl Builder {
    /// Opens the device, checks its ports, builds the workers; nothing runs yet.
    pub(crate) fn new(settings: &Settings) -> Result<Self, Error> {
        let cores = cores::assign(&settings.workers.cores, settings.softnic.core, &cores::available())
            .map_err(Error::Cores)?;
        let opened = open(settings)?;
        for port in &settings.device.ports {
            opened.device.check_port(*port).map_err(Error::Device)?;
        }
        let queues = opened.device.attributes().max_wq_type_rq;
        if queues > 0 && (queues as usize) < cores.len() {
            let device = opened.device.name().to_owned();
            return Err(Error::TooFewQueues { device, queues, workers: cores.len() });
        }
        let workers = cores
            .iter()
            .enumerate()
            .map(|(index, core)| {
                let config = worker_config(settings, WorkerId::of(index), *core);
                Worker::new(opened.device.context(), config).map_err(Error::Worker)
            })
            .collect::<Result<Vec<_>, _>>()?;
        let frames = u64::from(settings.workers.frames) * workers.len() as u64;
        Ok(Self { opened, workers, cores, frames })
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
        program: Arc<Program>,
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
                program: Arc::clone(&program),
                generation: 0,
                loaded_at_seconds: 0.0,
                warnings: Vec::new(),
                last_error: None,
            }),
            reloads_succeeded: AtomicU64::new(0),
            reloads_failed: AtomicU64::new(0),
            ready: Arc::default(),
            stopping: AtomicBool::new(false),
            counted: Mutex::default(),
            drops: Mutex::default(),
            out_of_buffer,
            recent: Mutex::default(),
            started: Instant::now(),
            started_at_seconds: unix_seconds(),
            frames: self.frames,
        };
        plant.install(program)?;
        plant.opened.let_packets_in();
        plant.ready.store(true, Ordering::Release);
        Ok((Arc::new(plant), threads))
    }
}

impl Plant {
    /// All or nothing: on an error the device and the workers are as before.
    pub(crate) fn install(&self, program: Arc<Program>) -> Result<(), Error> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner).learn(&program);
        let mut publish = |band: Band, program: Arc<Program>| self.publish(band, &program);
        let mut controller = self.controller();
        // Asked with the controller in hand: `stop` clears it after it has said so.
        if self.stopping.load(Ordering::Acquire) {
            return Err(Error::Stopping);
        }
        let installed = controller.install(Arc::clone(&program), &mut publish).map_err(Error::Install)?;
        let warnings = controller.warnings().map(ToOwned::to_owned).collect();
        drop(controller);
        if let Some(warning) = &installed.warning {
            tracing::warn!("{warning}");
        }
        let mut policy = self.policy();
        policy.program = program;
        policy.generation = installed.generation.0;
        policy.loaded_at_seconds = unix_seconds();
        policy.warnings = warnings;
        policy.last_error = installed.warning.map(|warning| warning.to_string());
        drop(policy);
        self.forget();
        Ok(())
    }

    pub(crate) fn reload_succeeded(&self) {
        self.reloads_succeeded.fetch_add(1, Ordering::Relaxed);
        self.forget();
    }

    /// Remembered until a reload succeeds.
    pub(crate) fn reload_failed(&self, error: &str) {
        self.reloads_failed.fetch_add(1, Ordering::Relaxed);
        self.policy().last_error = Some(error.lines().next().unwrap_or_default().to_owned());
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

    /// How often each worker's loop has turned.
    pub(crate) fn turns(&self) -> Vec<u64> {
        self.workers.iter().map(|seat| seat.control.pulse().turns).collect()
    }

    /// How often the device refused to be polled, by worker.
    pub(crate) fn poll_errors(&self) -> Vec<u64> {
        self.workers.iter().map(|seat| seat.control.pulse().poll_errors).collect()
    }

    /// Whether nothing moves frames any more, although it should.
    pub(crate) fn engine_died(&self) -> bool {
        self.soft_nic().is_some_and(SoftNic::engine_died)
    }

    /// For whoever asks from outside: at most so often is the device itself asked.
    pub(crate) fn recent_state(&self) -> Arc<State> {
        let mut recent = self.recent();
        match &*recent {
            Some((made, state)) if made.elapsed() < STATE_LIFE => Arc::clone(state),
            _ => {
                let state = Arc::new(snapshot::of(self, snapshot::Moment::Running));
                *recent = Some((Instant::now(), Arc::clone(&state)));
                state
            }
        }
    }

    pub(crate) fn state(&self) -> State {
        snapshot::of(self, snapshot::Moment::Running)
    }

    /// What is in force has changed: no old state is shown after that.
    fn forget(&self) {
        *self.recent() = None;
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
        let mut last = self.drops.lock().unwrap_or_else(PoisonError::into_inner);
        let free = match moment {
            snapshot::Moment::Ended => Some(self.controller()),
            snapshot::Moment::Running => match self.controller.try_lock() {
                Ok(controller) => Some(controller),
                Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            },
        };
        let now = free.map(|mut controller| controller.drop_counters());
        let fresh = now.is_some();
        if let Some(now) = now {
            *last = now;
        }
        (last.clone(), fresh)
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

impl Threads {
    /// A worker whose thread has ended although nobody asked it to.
    pub(crate) fn dead(&self) -> Option<u32> {
        self.0.iter().find(|handle| handle.is_finished()).map(|handle| handle.id().0)
    }

    /// Flows first, so that nothing new arrives; then the workers take what has; then all is counted.
    pub(crate) fn stop(mut self, plant: &Plant) -> (State, Duration, Vec<Error>) {
        let ran_for = plant.started.elapsed();
        let mut errors = Vec::new();
        plant.ready.store(false, Ordering::Release);
        plant.stopping.store(true, Ordering::Release);
        if let Err(error) = plant.controller().clear() {
            errors.push(Error::Install(error));
        }
        let (stopped, failed) = self.join();
        plant.stopped.lock().unwrap_or_else(PoisonError::into_inner).extend(stopped);
        errors.extend(failed.into_iter().map(Error::Worker));
        if let Some(nic) = plant.soft_nic() {
            nic.stop();
        }
        let state = snapshot::of(plant, snapshot::Moment::Ended);
        (state, ran_for, errors)
    }

    fn join(&mut self) -> (Vec<Worker>, Vec<worker::Error>) {
        self.0.iter().for_each(WorkerHandle::stop);
        let (mut stopped, mut failed) = (Vec::new(), Vec::new());
        for handle in std::mem::take(&mut self.0) {
            match handle.join() {
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

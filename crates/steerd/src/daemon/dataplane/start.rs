//! The start: the device is opened and checked, then workers are built, then the program is installed, then
//! packets are let in. Whatever was made before a step that fails is taken back.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Instant;

use control::{Controller, DigestedProgram};
use device_model::DeviceModel;
use hugemem::ArenaForecast;
use program::WorkerId;
use verbs::SYSFS_CLASSES;
use worker::{Idle, ReceiveKind, ServedPort, Worker, WorkerConfig, WorkerHandle};

use super::{Cause, Commands, Dataplane};
use crate::daemon::Error;
use crate::daemon::board::{Board, PolicyInForce, Warnings};
use crate::daemon::cores::{self, HostCores};
use crate::daemon::device::{self, OpenDevice, OutOfBuffer};
use crate::daemon::device_events::EventCounts;
use crate::daemon::nic_drops::NicDrops;
use crate::daemon::observer::{Observer, WorkerEntry, unix_seconds};
use crate::daemon::placement::{self, Placement};
use crate::daemon::sinks::Sinks;
use crate::daemon::worker_set::WorkerSet;
use crate::message::NoThread;
use crate::policy_file::{Compiled, RuleWeights};
use crate::settings::{IdleMode, PolicySource, ReceiveSetting, Settings, SoftNicMode};
use crate::telemetry::logging::Log;

/// Sleeps almost at once: a moderate rate then leaves most of a shared core to others.
const RELAXED: Idle = Idle::Adaptive { idle_us: 0 };

/// The parts that are built before there is a program.
pub(crate) struct Builder {
    /// Before the device: workers hold objects of it.
    workers: Vec<Worker>,
    opened: OpenDevice,
    cores: Vec<Option<usize>>,
    /// The number of the last workers, which are spare.
    spare: usize,
    frames: u64,
    /// The folder of the daemon's state.
    state: Option<PathBuf>,
    log: Log,
}

/// The running dataplane. Its parts end in the order of the fields.
pub(crate) struct Steering {
    pub(crate) owner: Owner,
    pub(crate) threads: WorkerThreads,
    pub(crate) observer: Arc<Observer>,
}

/// The thread of the dataplane; ended by [`Owner::end`] or by `Drop` after a failed start.
pub(crate) struct Owner {
    pub(crate) commands: Commands,
    pub(super) thread: Option<JoinHandle<Dataplane>>,
}

/// The workers' threads, joined by [`Steering::stop`] or by `Drop` after a failed start.
pub(crate) struct WorkerThreads(pub(super) Vec<WorkerHandle>);

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
        let host = HostCores::of(settings);
        let cores = cores::with_spare(settings, &host).map_err(Error::Cores)?;
        settings.check_mtus()?;
        let opened = device::open(settings)?;
        if let Some(placement) = Placement::of(settings, &cores) {
            placement.log();
        }
        if let Some(warning) = host.remote_warning(opened.device.name(), &cores) {
            tracing::warn!("{warning}");
        }
        opened.wait_for_peers(settings, is_stopping)?;
        for port in &settings.device.ports {
            opened.device.check_port(*port).map_err(Error::Device)?;
        }
        device::check_queues(&opened.device, cores.len())?;
        settings.workers.check_frames(&opened.device.profile(cores.len()))?;
        let mtus = opened.mtus();
        let frame_bytes = settings.frame_bytes(&mtus)?;
        let mtu_of = |number| mtus.iter().find(|known| known.port == number).map(|known| known.mtu_bytes);
        let served = |number: &u8| ServedPort { number: *number, mtu_bytes: mtu_of(*number) };
        let ports: Vec<ServedPort> = settings.device.ports.iter().map(served).collect();
        let context = opened.device.context();
        let vectors = context.completion_vectors();
        let vectors = placement::completion_vectors(Path::new("/"), opened.device.name(), vectors, &cores);
        let workers = cores
            .iter()
            .zip(vectors)
            .enumerate()
            .map(|(index, (core, vector))| {
                let config = WorkerConfig {
                    profile,
                    frame_bytes,
                    completion_vector: Some(vector),
                    ports: ports.clone(),
                    ..worker_config(settings, WorkerId::of(index), *core)
                };
                Worker::new(context, config).map_err(Error::Worker)
            })
            .collect::<Result<Vec<_>, _>>()?;
        if let Some(soft) = opened.soft.as_ref().filter(|_| profile) {
            soft.nic.start_profile();
        }
        let frames = workers.iter().map(Worker::frame_count).sum();
        let spare = settings.workers.spare;
        Ok(Self { opened, workers, cores, spare, frames, state: settings.state.folder(), log: log.clone() })
    }

    pub(crate) fn opened(&self) -> &OpenDevice {
        &self.opened
    }

    /// The limits of the device beside all workers.
    pub(crate) fn profile(&self) -> DeviceModel {
        self.opened.profile(self.workers.len())
    }

    /// The number of the workers that are not spare.
    pub(crate) fn serving_count(&self) -> usize {
        self.workers.len() - self.spare
    }

    /// Starts the workers, puts the program on the device, and lets packets in.
    pub(crate) fn start(
        self,
        source: PolicySource,
        compiled: Compiled,
        nic_drops: NicDrops,
    ) -> Result<Steering, Error> {
        // The workers last, so that they are dropped first if a step below fails.
        let set = WorkerSet::new(&self.cores, self.spare);
        let Self { opened, frames, state, log, workers, .. } = self;
        let queues = workers.iter().map(Worker::work_queue).collect();
        // Declared before the controller, so that it is dropped after it if a step below fails.
        let mut threads = WorkerThreads(Vec::with_capacity(workers.len()));
        let controller =
            Controller::new(&opened.device, opened.ports.clone(), queues).map_err(Error::Install)?;
        let domains = workers.iter().map(Worker::domain).collect();
        let budgets = workers.iter().map(Worker::frame_budget).collect();
        let registered = workers.iter().map(Worker::frames).collect();
        let arenas = workers.iter().map(|worker| worker.config().arena(0)).collect();
        let entry = |worker: &Worker| WorkerEntry {
            control: worker.control(),
            queue: worker.work_queue().number().0,
            receive: worker.receive(),
        };
        let entries: Vec<WorkerEntry> = workers.iter().map(entry).collect();
        for worker in workers {
            threads.0.push(worker.spawn().map_err(Error::Worker)?);
        }
        let (name, ports) = (opened.device.name(), &opened.ports);
        let out_of_buffer = OutOfBuffer::of(Path::new(SYSFS_CLASSES), name, ports);
        let controls = entries.iter().map(|entry| entry.control.clone()).collect();
        let sinks =
            Sinks::new(controls, domains, budgets, registered, ports.clone(), state).with_arenas(arenas);
        let (commands, drops, taken) = Commands::new(Arc::clone(controller.limits()));
        let observer = Arc::new(Observer {
            change: controller.progress(),
            opened,
            workers: entries,
            board: Board::new(none_in_force(source, &compiled), set),
            health: Arc::default(),
            drops,
            out_of_buffer,
            started: Instant::now(),
            started_at_seconds: unix_seconds(),
            frames,
            log,
            traces: Arc::default(),
            records: Arc::default(),
            events: EventCounts::default(),
            left_device: Mutex::default(),
        });
        let mut dataplane = Dataplane {
            nic_drops,
            controller,
            sinks,
            observer: Arc::clone(&observer),
            before: Vec::new(),
            free_at: None,
        };
        worker::forecast_tables(&compiled.program, threads.0.len(), &mut ArenaForecast::default())
            .map_err(Error::Worker)?;
        let digested = DigestedProgram::new(Arc::clone(&compiled.program), dataplane.controller.limits())
            .map_err(|fault| Error::Install(fault.into()))?;
        dataplane.replace(compiled, digested, Cause::Policy)?;
        observer.opened.open_wires();
        let thread = std::thread::Builder::new().name("dataplane".into());
        let thread = thread.spawn(move || dataplane.run(&taken)).map_err(NoThread)?;
        Ok(Steering { owner: Owner { commands, thread: Some(thread) }, threads, observer })
    }
}

/// Returns the policy that is about to be installed, as one that is not in force.
fn none_in_force(source: PolicySource, compiled: &Compiled) -> PolicyInForce {
    PolicyInForce {
        source,
        inputs: Arc::clone(&compiled.inputs),
        program: Arc::clone(&compiled.program),
        policy: None,
        protected: Arc::clone(&compiled.protected),
        past: None,
        set_sizes: Vec::new(),
        weights: RuleWeights::new(),
        extended_by: HashSet::new(),
        unexported: HashSet::new(),
        generation: 0,
        loaded_at_seconds: 0.0,
        warnings: Warnings::default(),
        deciders: OnceLock::new(),
    }
}

/// The configuration of a worker, by the settings.
pub(crate) fn worker_config(settings: &Settings, id: WorkerId, core: Option<usize>) -> WorkerConfig {
    let wanted = &settings.workers;
    WorkerConfig {
        core,
        frames: wanted.frames,
        batch: wanted.batch,
        pages: wanted.pages.clone(),
        idle: match wanted.idle {
            IdleMode::Adaptive => Idle::Adaptive { idle_us: wanted.idle_us },
            IdleMode::Relaxed => RELAXED,
            IdleMode::Spin => Idle::Spin,
        },
        timestamps: wanted.timestamps,
        relaxed_ordering: settings.device.relaxed_ordering.is_on(),
        receive: match settings.device.receive {
            ReceiveSetting::Verbs => ReceiveKind::Verbs,
            ReceiveSetting::Direct => ReceiveKind::Direct,
        },
        // In this mode nothing moves while nobody polls.
        polls_drive_device: settings.softnic.mode == SoftNicMode::Inline && settings.chooses_soft(),
        ..WorkerConfig::new(id)
    }
}

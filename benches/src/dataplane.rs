//! A controller and workers on a device of this process, with the program that they follow: what a daemon has
//! without its settings, its API and its threads.

use std::sync::Arc;

use control::{Controller, Device, DigestedProgram, FlowChanges};
use device_model::DeviceModel;
use policy::{NoFiles, Source};
use program::{ChangeStage, Program, RecorderRing, RecorderSpec, SinkId, SinkKind, WorkerId};
use worker::sinks::{Environment, Opened, SinkError, recorder};
use worker::{Idle, ReceiveKind, SharedStage, SinkMap, Slot, Worker, WorkerConfig};

/// All of the generator's frames are delivered.
const ONE_RULE: &str = "version = 1\n[groups.every]\nworkers = 'all'\n[[rules]]\nname = 'dns'\n\
    match = { protocol = 'udp', dst_port = 53 }\naction = { steer = 'every' }\n";

/// The fields are declared in the order in which they must be dropped.
pub struct Dataplane {
    /// Keeps the flows installed.
    pub controller: Controller,
    /// Not yet running.
    pub workers: Vec<Worker>,
    device: Device,
}

impl Dataplane {
    /// `workers` workers on port 1 of a device, all pinned to `core`, without a policy.
    ///
    /// # Panics
    /// If the device refuses it.
    #[must_use]
    pub fn on(device: Device, workers: u32, core: Option<usize>, receive: ReceiveKind) -> Self {
        let workers: Vec<_> = (0..workers).map(|id| worker(&device, WorkerId(id), core, receive)).collect();
        let queues: Vec<_> = workers.iter().map(Worker::work_queue).collect();
        let controller = Controller::new(&device, vec![1], queues).expect("a controller");
        Self { controller, workers, device }
    }

    /// Delivers every packet, by one rule.
    ///
    /// # Panics
    /// If the device refuses it.
    pub fn install_one_rule(&mut self) {
        self.install_policy(ONE_RULE);
    }

    /// Follows a policy.
    ///
    /// # Panics
    /// If it is not valid, or the device refuses it.
    pub fn install_policy(&mut self, policy: &str) {
        let program = program(policy, self.workers.len());
        self.install(&program);
    }

    /// Replaces the program.
    ///
    /// # Panics
    /// If the device refuses it.
    pub fn install(&mut self, program: &Arc<Program>) -> FlowChanges {
        let map = Arc::new(SinkMap::new(0, program, &[]));
        self.install_with_sinks(program, &map)
    }

    /// Replaces the program by one whose digests were made before, without sinks.
    ///
    /// # Panics
    /// If the device refuses it.
    pub fn install_digested(&mut self, program: DigestedProgram) -> FlowChanges {
        let map = Arc::new(SinkMap::new(0, &program, &[]));
        self.change(program, &map)
    }

    fn install_with_sinks(&mut self, program: &Arc<Program>, map: &Arc<SinkMap>) -> FlowChanges {
        let program = DigestedProgram::new(Arc::clone(program), self.controller.limits());
        self.change(program.expect("a whole program"), map)
    }

    fn change(&mut self, program: DigestedProgram, map: &Arc<SinkMap>) -> FlowChanges {
        let controls: Vec<_> = self.workers.iter().map(Worker::control).collect();
        let mut publish = |stage: &ChangeStage| {
            let stage = SharedStage::new(stage, map);
            for control in &controls {
                control.publish_shared(&stage);
            }
            Ok(())
        };
        self.controller.install_digested(program, &mut publish).expect("it installs").changes
    }

    /// Gives the packets of all rules to a sink, on every worker. What it returns must be dropped before the
    /// rig.
    ///
    /// # Panics
    /// If the sink cannot be opened.
    #[must_use]
    pub fn open_sink(&mut self, kind: SinkKind) -> Opened {
        self.try_open_sink(kind).expect("it opens")
    }

    /// Like [`Dataplane::open_sink`].
    ///
    /// # Errors
    /// The sink cannot be opened.
    ///
    /// # Panics
    /// If the device refuses the program.
    pub fn try_open_sink(&mut self, kind: SinkKind) -> Result<Opened, SinkError> {
        let sink = program::SinkSpec { name: "bench".to_owned(), kind };
        let mut opened = self.open(&sink)?;
        let mut program = (*program(ONE_RULE, self.workers.len())).clone();
        program.sinks.push(sink);
        program.rules.iter_mut().for_each(|rule| rule.sinks = vec![SinkId::of(0)]);
        let program = Arc::new(program);
        let slot = Slot::of(0).expect("the first place");
        let map = Arc::new(SinkMap::new(1, &program, &[slot]));
        opened.hub.announce(&map, &program);
        for (worker, endpoint) in self.workers.iter().zip(opened.endpoints.drain(..)) {
            worker.control().place_sink(slot, Some(endpoint));
        }
        self.install_with_sinks(&program, &map);
        Ok(opened)
    }

    /// Lets the workers record the packets of all rules. What it returns must be dropped before the rig.
    ///
    /// # Panics
    /// If there is no memory, or the device refuses the program.
    #[must_use]
    pub fn record(&mut self, ring: RecorderRing) -> Opened {
        let arenas: Vec<_> = self.workers.iter().map(|worker| worker.config().arena(0)).collect();
        let mut opened = recorder::open(ring, &arenas, self.device.context()).expect("memory");
        let mut program = (*program(ONE_RULE, self.workers.len())).clone();
        program.recorder = Some(RecorderSpec { ring, rules: None, triggers: Vec::new() });
        let program = Arc::new(program);
        let slot = Slot::of(0).expect("the first place");
        let map = Arc::new(SinkMap::new(1, &program, &[]));
        opened.hub.announce(&map, &program);
        for (worker, endpoint) in self.workers.iter().zip(opened.endpoints.drain(..)) {
            worker.control().place_sink(slot, Some(endpoint));
        }
        map.attach_recorder(slot);
        self.install_with_sinks(&program, &map);
        opened
    }

    /// Opens a sink for the workers without giving it packets. What it returns must be dropped before the
    /// rig.
    ///
    /// # Errors
    /// The sink cannot be opened.
    pub fn open(&self, sink: &program::SinkSpec) -> Result<Opened, SinkError> {
        let domains: Vec<_> = self.workers.iter().map(Worker::domain).collect();
        let budgets: Vec<_> = self.workers.iter().map(Worker::frame_budget).collect();
        let context = Arc::clone(self.device.context());
        let environment = Environment {
            context: &context,
            domains: &domains,
            budgets: &budgets,
            ports: &[1],
            stations: &[],
            others: None,
        };
        worker::sinks::open(sink, &environment)
    }
}

fn worker(device: &Device, id: WorkerId, core: Option<usize>, receive: ReceiveKind) -> Worker {
    let mut config = WorkerConfig::new(id);
    config.core = core;
    config.idle = Idle::Spin;
    config.receive = receive;
    Worker::new(device.context(), config).expect("a worker")
}

fn program(policy: &str, workers: usize) -> Arc<Program> {
    let (policy, _) = policy::parse(&Source::new("bench.toml", policy), &NoFiles).expect("a policy");
    Arc::new(compiler::compile(&policy, &DeviceModel::ideal(), workers).expect("a program"))
}

//! A complete dataplane in one process: generator, engine, flows, workers. Driven manually to measure one
//! part at a time, or by its threads to measure the whole.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use control::{Controller, Device, DeviceSelector, DigestedProgram, FlowChanges};
use device_model::DeviceModel;
use policy::{NoFiles, Source};
use program::{ChangeStage, Program, SinkId, SinkKind, WorkerId};
use softnic::{Drive, Personality, PortConfig, PortStats, SoftNic, SoftNicConfig};
use wire::{PcapConfig, PcapMode, Wire, WireConfig};
use worker::sinks::{Environment, Opened, SinkError};
use worker::{Idle, SharedStage, SinkMap, Slot, Worker, WorkerConfig};

/// Flows that the generator cycles through.
const FLOWS: u32 = 1024;
/// Frames of one pass of the engine, which sends as many.
const BURST: usize = 64;
/// Until buffers are posted and caches are warm.
const WARM_UP: Duration = Duration::from_millis(200);
/// All of the generator's frames are delivered.
const ONE_RULE: &str = "version = 1\n[groups.every]\nworkers = 'all'\n[[rules]]\nname = 'dns'\n\
    match = { protocol = 'udp', dst_port = 53 }\naction = { steer = 'every' }\n";

/// Nanoseconds per frame.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    /// In the engine, which also sends what the worker sends.
    pub engine_ns: f64,
    /// In the worker.
    pub worker_ns: f64,
}

/// The fields are declared in the order in which they must be dropped.
pub struct Rig {
    /// Keeps the flows installed.
    pub controller: Controller,
    /// Not yet running.
    pub workers: Vec<Worker>,
    device: Device,
    /// Used by all of the above.
    pub nic: SoftNic,
}

impl Rig {
    /// `workers` workers that receive UDP frames of `frame_bytes` from memory, as fast as they are taken, by
    /// one rule.
    ///
    /// # Panics
    /// If the dataplane cannot be set up.
    #[must_use]
    pub fn new(frame_bytes: u32, workers: u32, drive: Drive, core: Option<usize>) -> Self {
        let mut rig = Self::bare(frame_bytes, workers, drive, core);
        rig.install(&program(ONE_RULE, workers as usize));
        rig
    }

    /// The same without a policy: every frame is left to the kernel, which discards it.
    ///
    /// # Panics
    /// As [`Rig::new`].
    #[must_use]
    pub fn bare(frame_bytes: u32, workers: u32, drive: Drive, core: Option<usize>) -> Self {
        Self::on(generator(frame_bytes), Personality::Ideal, workers, drive, core)
    }

    /// A dataplane without a policy on a model of a device, driven manually.
    ///
    /// # Panics
    /// As [`Rig::new`].
    #[must_use]
    pub fn of(personality: Personality, workers: u32) -> Self {
        Self::on(generator(64), personality, workers, Drive::Manual, None)
    }

    /// The frames of a capture, over and over, with this policy.
    ///
    /// # Panics
    /// If the file is no capture or the policy is not valid.
    #[must_use]
    pub fn replaying(capture: &Path, policy: &str, drive: Drive, core: Option<usize>) -> Self {
        let config = PcapConfig { path: capture.to_owned(), mode: PcapMode::Loop, speed: 1.0, output: None };
        let wire = WireConfig::Pcap(config).open().expect("a capture");
        let mut rig = Self::on(wire, Personality::Ideal, 1, drive, core);
        rig.install(&program(policy, 1));
        rig
    }

    fn on(
        wire: Box<dyn Wire>,
        personality: Personality,
        workers: u32,
        drive: Drive,
        core: Option<usize>,
    ) -> Self {
        let nic = SoftNic::create(SoftNicConfig {
            name: "softnic0".to_owned(),
            personality,
            ports: vec![PortConfig { wire, mtu_bytes: 1500 }],
            drive,
        })
        .expect("a soft NIC");
        let device = Device::open(&DeviceSelector::named("softnic0"), Some(&nic)).expect("it opens");
        let workers: Vec<_> = (0..workers).map(|id| worker(&device, WorkerId(id), core)).collect();
        let queues: Vec<_> = workers.iter().map(Worker::work_queue).collect();
        let controller = Controller::new(&device, vec![1], queues).expect("a controller");
        Self { controller, workers, device, nic }
    }

    /// Lets the engine and the first worker run alternately on this thread for `time`, `pulse` frames at a
    /// time.
    pub fn alternate(&mut self, pulse: u64, time: Duration) -> Parts {
        let (mut engine, mut worker, mut frames) = (Duration::ZERO, Duration::ZERO, 0);
        let end = Instant::now() + time;
        while Instant::now() < end {
            let start = Instant::now();
            let before = self.port().rx_frames;
            while self.port().rx_frames < before + pulse {
                self.nic.pump(BURST);
            }
            let between = Instant::now();
            while self.workers[0].step() > 0 {}
            worker += between.elapsed();
            engine += between - start;
            frames += self.port().rx_frames - before;
        }
        let each = |time: Duration| time.as_nanos() as f64 / frames as f64;
        Parts { engine_ns: each(engine), worker_ns: each(worker) }
    }

    /// The frames per second that the first worker receives over `time`, on its core, while the engine runs
    /// on its own. Ends the dataplane.
    ///
    /// # Panics
    /// If a thread cannot be started.
    #[must_use]
    pub fn rate(mut self, time: Duration) -> f64 {
        let worker = self.workers.remove(0).spawn().expect("a thread");
        std::thread::sleep(WARM_UP);
        let (before, start) = (self.port().delivered, Instant::now());
        std::thread::sleep(time);
        let rate = (self.port().delivered - before) as f64 / start.elapsed().as_secs_f64();
        self.nic.stop();
        let worker = worker.join().expect("the worker ends");
        drop(self.controller);
        drop(worker);
        rate
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

    /// Like [`Rig::open_sink`].
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

    /// The counters of the port.
    #[must_use]
    pub fn port(&self) -> PortStats {
        self.nic.port_stats(1)
    }
}

fn worker(device: &Device, id: WorkerId, core: Option<usize>) -> Worker {
    let mut config = WorkerConfig::new(id);
    config.core = core;
    config.idle = Idle::Spin;
    Worker::new(device.context(), config).expect("a worker")
}

fn generator(frame_bytes: u32) -> Box<dyn Wire> {
    let text = format!(
        "kind = 'generator'\nflows = [{{ src = '10.1.0.0/16', dst = '192.0.2.53', protocol = 'udp', \
         dst_ports = '53', frame_bytes = {frame_bytes}, count = {FLOWS} }}]"
    );
    let config: WireConfig = toml::from_str(&text).expect("a generator");
    config.open().expect("it opens")
}

fn program(policy: &str, workers: usize) -> Arc<Program> {
    let (policy, _) = policy::parse(&Source::new("bench.toml", policy), &NoFiles).expect("a policy");
    Arc::new(compiler::compile(&policy, &DeviceModel::ideal(), workers).expect("a program"))
}

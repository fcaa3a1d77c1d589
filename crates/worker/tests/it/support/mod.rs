//! A soft NIC driven by hand, workers stepped by hand, and the controller between them: everything
//! that `steerd` puts together, but deterministic.
#![allow(unreachable_pub, reason = "a module of tests")]

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use control::{
    ControlError, Controller, Device, DeviceRefusal, DeviceSelector, FlowRequest, Installer, VerbsInstaller,
};
use device_model::DeviceModel;
use hugemem::PageKind;
use packet::MacAddr;
use policy::{NoFiles, Source};
use program::{Program, WorkerId};
use softnic::{Drive, Personality, PortConfig, PortStats, SoftNicConfig};
use softnic_verbs::SoftNic;
use verbs::{CounterValues, HashConfig};
use wire::{Burst, MAX_FRAME_BYTES, RxFrame, SOFT_MAC, TransmitError, Wire, WireState};
use worker::{
    Deliveries, Disposition, Idle, SharedStage, Sink, SinkMap, Worker, WorkerConfig, WorkerSnapshot,
};

/// Frames on their way to a port.
pub type Feed = Arc<Mutex<VecDeque<Vec<u8>>>>;

/// A wire that carries what a test puts on it.
pub struct ScriptWire {
    feed: Feed,
    current: Vec<Vec<u8>>,
    sent: Feed,
}

impl ScriptWire {
    /// A wire that carries what is put into `feed`.
    pub fn of(feed: &Feed) -> Box<dyn Wire> {
        Self::between(feed, &Feed::default())
    }

    /// A wire like that of [`ScriptWire::of`]; sent frames go to `sent`.
    pub fn between(feed: &Feed, sent: &Feed) -> Box<dyn Wire> {
        Box::new(Self { feed: Arc::clone(feed), current: Vec::new(), sent: Arc::clone(sent) })
    }
}

impl Wire for ScriptWire {
    fn receive<'w>(&'w mut self, burst: &mut Burst<'w>) {
        let mut feed = self.feed.lock().expect("feed");
        let count = burst.capacity_left().min(feed.len());
        self.current.clear();
        self.current.extend(feed.drain(..count));
        for frame in &self.current {
            burst.push(RxFrame::new(frame));
        }
    }

    fn transmit(&mut self, frame: &[u8]) -> Result<(), TransmitError> {
        self.sent.lock().expect("sent").push_back(frame.to_vec());
        Ok(())
    }

    fn flush(&mut self) {}

    fn state(&self) -> WireState {
        WireState::Live
    }

    fn describe(&self) -> String {
        "script".to_owned()
    }

    fn mac(&self) -> MacAddr {
        SOFT_MAC
    }

    fn mtu_bytes(&self) -> u32 {
        MAX_FRAME_BYTES as u32
    }
}

/// The packets that a worker's sink saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub worker: WorkerId,
    pub tag: u32,
    /// The program that the outcome is of.
    pub generation: u64,
    pub outcome: program::Outcome,
    pub bytes: Vec<u8>,
}

/// Remembers every delivery while it is switched on.
#[derive(Clone, Default)]
pub struct Witness(pub Arc<Mutex<Vec<Seen>>>);

struct Recorder {
    worker: WorkerId,
    witness: Witness,
}

impl Sink for Recorder {
    fn run(&mut self, deliveries: &mut Deliveries<'_>) {
        let mut seen = self.witness.0.lock().expect("witness");
        seen.extend(deliveries.iter().map(|delivery| Seen {
            worker: self.worker,
            tag: delivery.tag.0,
            generation: delivery.generation,
            outcome: delivery.outcome,
            bytes: delivery.bytes.to_vec(),
        }));
    }
}

/// Installs through the verbs, and lets traffic run before every single call.
pub struct BusyInstaller {
    inner: VerbsInstaller,
    nic: Rc<SoftNic>,
    pub frames_per_call: Rc<Cell<usize>>,
}

impl BusyInstaller {
    fn traffic(&self) {
        if self.frames_per_call.get() > 0 {
            self.nic.pump(self.frames_per_call.get());
        }
    }
}

impl Installer for BusyInstaller {
    type Table = <VerbsInstaller as Installer>::Table;
    type Queue = <VerbsInstaller as Installer>::Queue;
    type Counter = <VerbsInstaller as Installer>::Counter;
    type Flow = <VerbsInstaller as Installer>::Flow;

    fn create_table(&mut self, workers: &[WorkerId]) -> Result<Self::Table, DeviceRefusal> {
        self.traffic();
        self.inner.create_table(workers)
    }

    fn create_queue(&mut self, table: &Self::Table, hash: &HashConfig) -> Result<Self::Queue, DeviceRefusal> {
        self.traffic();
        self.inner.create_queue(table, hash)
    }

    fn create_counter(&mut self) -> Result<Self::Counter, DeviceRefusal> {
        self.inner.create_counter()
    }

    fn read_counter(&mut self, counter: &Self::Counter) -> Result<CounterValues, DeviceRefusal> {
        self.inner.read_counter(counter)
    }

    fn create_flow(
        &mut self,
        request: &FlowRequest<'_>,
        queue: &Self::Queue,
        counter: Option<&Self::Counter>,
    ) -> Result<Self::Flow, DeviceRefusal> {
        self.traffic();
        self.inner.create_flow(request, queue, counter)
    }

    fn destroy_flow(&mut self, flow: Self::Flow) -> Result<(), (Self::Flow, DeviceRefusal)> {
        self.traffic();
        self.inner.destroy_flow(flow)
    }
}

/// The whole product without its threads. The controller goes first, then the workers, then the NIC.
pub struct Rig {
    pub controller: Controller<BusyInstaller>,
    pub workers: Rc<RefCell<Vec<Worker>>>,
    pub device: Device,
    pub nic: Rc<SoftNic>,
    ports: u8,
    pub feeds: Vec<Feed>,
    /// The frames that each port has sent.
    pub sent: Vec<Feed>,
    pub witness: Witness,
    pub frames_per_call: Rc<Cell<usize>>,
}

/// A worker's configuration that needs no hugepages and no privileges.
pub fn small(id: usize) -> WorkerConfig {
    WorkerConfig {
        frames: 1024,
        frame_bytes: 9216,
        batch: 32,
        pages: vec![PageKind::Plain],
        idle: Idle::Spin,
        ..WorkerConfig::new(WorkerId::of(id))
    }
}

/// An ideal soft NIC of as many ports as there are wires.
pub fn nic(name: &str, drive: Drive, wires: Vec<Box<dyn Wire>>) -> SoftNic {
    nic_of(Personality::Ideal, name, drive, wires)
}

/// A soft NIC of a personality.
pub fn nic_of(personality: Personality, name: &str, drive: Drive, wires: Vec<Box<dyn Wire>>) -> SoftNic {
    let ports = wires.into_iter().map(|wire| PortConfig { wire, mtu_bytes: 9000 }).collect();
    SoftNic::create(SoftNicConfig { name: name.to_owned(), personality, ports, drive }).expect("a soft NIC")
}

/// A policy compiled for the ideal device.
pub fn compile(policy: &str, workers: usize) -> Arc<Program> {
    compile_beside(policy, workers, None)
}

/// Compiles beside the program that is on the device.
pub fn compile_beside(policy: &str, workers: usize, installed: Option<&Program>) -> Arc<Program> {
    let (parsed, _) = policy::parse(&Source::new("test.toml", policy), &NoFiles).expect("a right policy");
    let device = DeviceModel::ideal();
    Arc::new(compiler::compile_with(&parsed, &device, workers, installed).expect("a program"))
}

impl Rig {
    /// With a witness on every worker.
    pub fn new(ports: usize, workers: usize) -> Self {
        Self::build(ports, workers, true)
    }

    /// Workers that only count.
    pub fn unwitnessed(ports: usize, workers: usize) -> Self {
        Self::build(ports, workers, false)
    }

    fn build(ports: usize, workers: usize, witnessed: bool) -> Self {
        Self::built_with(ports, workers, witnessed, small)
    }

    /// With workers of another kind.
    pub fn built_with(
        ports: usize,
        workers: usize,
        witnessed: bool,
        config: fn(usize) -> WorkerConfig,
    ) -> Self {
        let feeds: Vec<Feed> = (0..ports).map(|_| Feed::default()).collect();
        let sent: Vec<Feed> = (0..ports).map(|_| Feed::default()).collect();
        let wires = feeds.iter().zip(&sent).map(|(feed, sent)| ScriptWire::between(feed, sent)).collect();
        Self { feeds, sent, ..Self::over(wires, workers, witnessed, config) }
    }

    /// With other wires than those that a test puts frames on.
    pub fn over(
        wires: Vec<Box<dyn Wire>>,
        workers: usize,
        witnessed: bool,
        config: fn(usize) -> WorkerConfig,
    ) -> Self {
        let ports = wires.len();
        let nic = Rc::new(nic("rig0", Drive::Manual, wires));
        let device = Device::open(&DeviceSelector::named("rig0"), Some(&*nic)).expect("the soft NIC opens");
        let witness = Witness::default();
        let workers: Vec<Worker> = (0..workers)
            .map(|id| {
                let worker = Worker::new(device.context(), config(id)).expect("a worker");
                let recorder = Recorder { worker: WorkerId::of(id), witness: witness.clone() };
                if witnessed { worker.with_observer(Box::new(recorder)) } else { worker }
            })
            .collect();
        let queues: Vec<_> = workers.iter().map(Worker::work_queue).collect();
        let count = queues.len();
        let frames_per_call = Rc::new(Cell::new(0));
        let installer = BusyInstaller {
            inner: VerbsInstaller::new(&device, queues).expect("a protection domain"),
            nic: Rc::clone(&nic),
            frames_per_call: Rc::clone(&frames_per_call),
        };
        let port_numbers = (1..=ports as u8).collect();
        let controller =
            Controller::over(installer, device.limits(), port_numbers, count).expect("a controller");
        let workers = Rc::new(RefCell::new(workers));
        let (feeds, sent) = Default::default();
        Self { controller, workers, device, nic, ports: ports as u8, feeds, sent, witness, frames_per_call }
    }

    /// Compiles for this rig's device and installs.
    pub fn install(&mut self, policy: &str) -> Arc<Program> {
        let workers = self.workers.borrow().len();
        let program = compile(policy, workers);
        self.install_program(&program).expect("the soft NIC takes it");
        program
    }

    pub fn install_program(&mut self, program: &Arc<Program>) -> Result<control::Installed, ControlError> {
        let workers = Rc::clone(&self.workers);
        let map = Arc::new(SinkMap::new(self.controller.generation().0 + 1, program, &[]));
        self.controller.install(Arc::clone(program), &mut |stage| {
            for worker in workers.borrow_mut().iter_mut() {
                let publication = worker.control().publish_shared(&SharedStage::new(stage, &map));
                let iterations = (0..10_000).take_while(|_| {
                    worker.step();
                    !worker.control().acknowledged(publication)
                });
                let waited = iterations.count();
                assert!(worker.control().acknowledged(publication), "{waited} iterations");
            }
            Ok(())
        })
    }

    /// Puts frames on a port's wire, counting from 1.
    pub fn send(&self, port: u8, frames: impl IntoIterator<Item = Vec<u8>>) {
        self.feeds[usize::from(port) - 1].lock().expect("feed").extend(frames);
    }

    /// Runs everything until nothing moves.
    pub fn settle(&self) {
        let mut idle = 0;
        while idle < 3 {
            let mut moved = self.nic.pump(64);
            for worker in self.workers.borrow_mut().iter_mut() {
                moved += worker.step();
            }
            idle = if moved == 0 { idle + 1 } else { 0 };
        }
    }

    pub fn snapshots(&self) -> Vec<WorkerSnapshot> {
        self.workers.borrow().iter().map(|worker| worker.control().snapshot()).collect()
    }

    /// Packets of a rule over all workers.
    pub fn ruled(&self, rule: &str, disposition: Disposition) -> u64 {
        self.snapshots().iter().map(|snapshot| snapshot.rule(rule, disposition).packets).sum()
    }

    /// The packets that the witness saw since the last call.
    pub fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut *self.witness.0.lock().expect("witness"))
    }

    pub fn port(&self, port: u8) -> PortStats {
        self.nic.port_stats(port)
    }

    /// Invariant 1: every frame that any port received is in exactly one place.
    pub fn balance(&mut self) {
        let ports: Vec<PortStats> = (1..=self.ports).map(|port| self.nic.port_stats(port)).collect();
        let snapshots = self.snapshots();
        let received: u64 = snapshots.iter().map(|snapshot| snapshot.received.packets).sum();
        let delivered: u64 = ports.iter().map(|port| port.delivered).sum();
        assert_eq!(delivered, received, "what ports delivered is what workers received");
        for port in &ports {
            assert_eq!(port.rx_frames, port.dispositions());
        }
        for snapshot in &snapshots {
            assert_eq!(snapshot.imbalance(), 0, "{snapshot:?}");
            assert_eq!(snapshot.dropped_by_reason(), 0, "{:?}", snapshot.dropped);
        }
        let flow_dropped: u64 = ports.iter().map(|port| port.flow_dropped).sum();
        let counted: u64 = self.controller.drop_counters().iter().map(|totals| totals.packets).sum();
        assert_eq!(flow_dropped, counted, "packets dropped by flows equal the rules' counters");
    }
}

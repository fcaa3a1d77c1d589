//! A worker's thread sleeps while there is no work, and wakes for all that is work.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::{compile, nic, small};
use control::{Device, DeviceSelector};
use parking::{HEARTBEAT, LONGEST_NAP};
use program::ChangeStage;
use softnic::Drive;
use softnic_verbs::SoftNic;
use test_support::Sleeps;
use wire::{Burst, NullWire, RxFrame, TransmitError, Wire};
use worker::{Idle, Worker, WorkerConfig, WorkerHandle};

const PATIENCE: Duration = Duration::from_secs(30);
/// Longer than the longest sleep, so that the worker and the engine are asleep.
const PAUSE: Duration = Duration::from_millis(3 * HEARTBEAT.as_millis() as u64);

const POLICY: &str = "version = 1\ndefault = \"steer every\"\n[groups.every]\nworkers = \"all\"\n";

/// One frame as soon as the test wants it.
struct Bell {
    wanted: Arc<AtomicU64>,
    given: u64,
    frame: Vec<u8>,
}

impl Bell {
    /// With the number of frames that the test wants.
    fn new() -> (Arc<AtomicU64>, Self) {
        let wanted = Arc::new(AtomicU64::new(0));
        let frame =
            packet::build::FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).udp(1, 2);
        (Arc::clone(&wanted), Self { wanted, given: 0, frame: frame.build() })
    }
}

impl Wire for Bell {
    fn receive<'w>(&'w mut self, burst: &mut Burst<'w>) {
        if self.given < self.wanted.load(Ordering::Acquire) {
            self.given += 1;
            burst.push(RxFrame::new(&self.frame));
        }
    }

    fn transmit(&mut self, _: &[u8]) -> Result<(), TransmitError> {
        Ok(())
    }

    fn describe(&self) -> String {
        "bell".to_owned()
    }
}

struct Scene {
    handle: Option<WorkerHandle>,
    controller: control::Controller,
    _device: Device,
    nic: SoftNic,
}

impl Scene {
    fn new(id: usize, wire: Box<dyn Wire>, polls_drive_device: bool) -> Self {
        let name = format!("sleep{id}");
        let nic = nic(&name, Drive::Thread { core: None }, vec![wire]);
        let device = Device::open(&DeviceSelector::named(&name), Some(&nic)).expect("the soft NIC opens");
        let config = WorkerConfig { idle: Idle::default(), polls_drive_device, ..small(id) };
        let worker = Worker::new(device.context(), config).expect("a worker");
        let mut controller =
            control::Controller::new(&device, vec![1], vec![worker.work_queue()]).expect("a controller");
        let handle = worker.spawn().expect("a thread");
        let control = handle.control();
        controller
            .install(compile(POLICY, 1), &mut |stage| {
                let publication = control.publish(stage);
                assert!(control.wait(publication, PATIENCE), "the program is taken");
                Ok(())
            })
            .expect("it installs");
        Self { handle: Some(handle), controller, _device: device, nic }
    }

    fn handle(&self) -> &WorkerHandle {
        self.handle.as_ref().expect("it runs")
    }

    fn end(mut self) {
        self.controller.clear().expect("flows are removed");
        let begun = Instant::now();
        let worker = self.handle.take().expect("it runs").join().expect("no panic");
        assert!(begun.elapsed() < PATIENCE / 2);
        let snapshot = worker.control().snapshot();
        assert_eq!(snapshot.imbalance(), 0);
        assert_eq!(snapshot.received.packets, self.nic.port_stats(1).delivered);
        drop(self.controller);
    }
}

#[test]
fn a_worker_without_work_sleeps_in_almost_every_iteration() {
    for (id, polls_drive_device) in [(10, false), (11, true)] {
        let scene = Scene::new(id, Box::new(NullWire), polls_drive_device);
        std::thread::sleep(PAUSE);
        let (name, control) = (format!("worker-{id}"), scene.handle().control());
        let idle_ns = || control.snapshot().regimes[0].1;
        let (idle_before_ns, mut percent) = (idle_ns(), 0.0);
        // Its progress shows that it is alive.
        let counted = Sleeps::count(
            &name,
            10,
            || control.progress().iterations,
            || {
                percent = test_support::thread_cpu_percent(&name, Duration::from_secs(2));
            },
        );
        let idle = Duration::from_nanos(idle_ns() - idle_before_ns);
        println!("polls drive the device {polls_drive_device}: {percent:.3} % of a core, {counted:?}");
        // A sleep has two iterations: one before it, to see whether anything came, and one after it.
        assert!(counted.sleeps * 4 >= counted.iterations, "{counted:?}");
        let sleep = if polls_drive_device { LONGEST_NAP } else { HEARTBEAT };
        assert!(counted.iterations <= 4 * counted.fitting(sleep), "{counted:?}");
        assert!(idle > counted.time * 3 / 4, "the time of a sleep is counted: {idle:?} of {counted:?}");
        scene.end();
    }
}

#[test]
fn a_packet_wakes_a_worker() {
    let (wanted, bell) = Bell::new();
    let scene = Scene::new(20, Box::new(bell), false);
    let control = scene.handle().control();
    std::thread::sleep(PAUSE);
    let mut times = Vec::new();
    test_support::assert_wakes("worker-20", HEARTBEAT, || {
        let round = wanted.fetch_add(1, Ordering::Release) + 1;
        // Without the time that the engine's nap takes.
        while scene.nic.port_stats(1).delivered < round {
            std::thread::yield_now();
        }
        let begun = Instant::now();
        while control.progress().received_packets < round {
            assert!(begun.elapsed() < PATIENCE, "the worker sleeps on");
            std::thread::yield_now();
        }
        times.push(begun.elapsed());
    });
    times.sort();
    println!("from the port to the worker: median {:?}", times[times.len() / 2]);
    scene.end();
}

/// Where polls drive the device, a worker never sleeps for a heartbeat: nothing else would find the packets.
#[test]
fn a_worker_that_drives_the_device_takes_naps() {
    let (wanted, bell) = Bell::new();
    let scene = Scene::new(21, Box::new(bell), true);
    let control = scene.handle().control();
    // By then the naps are the longest.
    std::thread::sleep(PAUSE * 3);
    let started = Instant::now();
    loop {
        let pause = || std::thread::sleep(HEARTBEAT * 2);
        let counted = Sleeps::count("worker-21", 1, || control.progress().iterations, pause);
        // A busy machine makes naps longer, but nothing makes sleeps of a heartbeat shorter.
        if counted.iterations > 4 * counted.fitting(HEARTBEAT) {
            println!("naps after a pause: {counted:?}");
            break;
        }
        assert!(started.elapsed() < PATIENCE, "no naps: {counted:?}");
    }
    wanted.store(1, Ordering::Release);
    let begun = Instant::now();
    while control.progress().received_packets < 1 {
        assert!(begun.elapsed() < PATIENCE, "the packet is not taken");
        std::thread::yield_now();
    }
    scene.end();
}

#[test]
fn a_program_wakes_a_worker() {
    let scene = Scene::new(30, Box::new(NullWire), false);
    let control = scene.handle().control();
    let program = compile(POLICY, 1);
    std::thread::sleep(PAUSE);
    let mut times = Vec::new();
    test_support::assert_wakes("worker-30", HEARTBEAT, || {
        let begun = Instant::now();
        let publication = control.publish(&ChangeStage::Begin(Arc::clone(&program)));
        while !control.acknowledged(publication) {
            assert!(begun.elapsed() < PATIENCE, "the worker sleeps on");
            std::thread::yield_now();
        }
        times.push(begun.elapsed());
    });
    times.sort();
    println!("from publishing to the acknowledgement: median {:?}", times[times.len() / 2]);
    scene.end();
}

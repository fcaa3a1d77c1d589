//! A worker's thread sleeps while there is no work, and wakes for all that is work.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use control::{Device, DeviceSelector};
use program::Band;
use softnic::wire::{Burst, NullWire, RxFrame, TransmitError, Wire};
use softnic::{Drive, SoftNic};
use support::{compile, nic, small};
use worker::{Idle, Worker, WorkerConfig, WorkerHandle};

const PATIENCE: Duration = Duration::from_secs(30);
/// Longer than the longest sleep, so that the worker and the engine are asleep.
const PAUSE: Duration = Duration::from_millis(60);

const POLICY: &str = "version = 1\ndefault = \"steer every\"\n[groups.every]\nworkers = \"all\"\n";

/// One frame as soon as the test wants it.
struct Bell {
    wanted: Arc<AtomicU64>,
    given: u64,
    frame: Vec<u8>,
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
            .install(compile(POLICY, 1), &mut |band, program| {
                let publication = control.publish(band, program);
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

/// On a busy machine some wake-ups are late; without any they would be anywhere in the 20 ms of a heartbeat.
fn third_least(mut times: Vec<Duration>) -> Duration {
    times.sort();
    println!("{:?} to {:?}, median {:?}", times[0], times[times.len() - 1], times[times.len() / 2]);
    times[2]
}

#[test]
fn an_idle_worker_uses_less_than_one_percent_of_a_core() {
    for (id, polls_drive_device) in [(10, false), (11, true)] {
        let scene = Scene::new(id, Box::new(NullWire), polls_drive_device);
        std::thread::sleep(PAUSE);
        let before = scene.handle().control().pulse().iterations;
        let time = Duration::from_secs(2);
        let percent = test_support::thread_cpu_percent(&format!("worker-{id}"), time);
        let iterations = scene.handle().control().pulse().iterations - before;
        println!(
            "polls drive the device {polls_drive_device}: {percent:.3} % of a core, {iterations} iterations in 2 s"
        );
        assert!(percent < if polls_drive_device { 3.0 } else { 1.0 }, "{percent}");
        assert!(iterations >= 10, "its progress shows that it is alive");
        let idle_ns = scene.handle().control().snapshot().regimes[0].1;
        assert!(idle_ns > 1_500_000_000, "the time of a sleep is counted: {idle_ns}");
        scene.end();
    }
}

#[test]
fn packets_after_a_sleep_are_delivered_soon() {
    for (id, polls_drive_device) in [(20, false), (21, true)] {
        let wanted = Arc::new(AtomicU64::new(0));
        let frame =
            packet::build::FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).udp(1, 2);
        let bell = Bell { wanted: Arc::clone(&wanted), given: 0, frame: frame.build() };
        let scene = Scene::new(id, Box::new(bell), polls_drive_device);
        let control = scene.handle().control();
        let mut times = Vec::new();
        for round in 1..=15 {
            std::thread::sleep(PAUSE);
            wanted.store(round, Ordering::Release);
            // Without the time that the engine's nap takes.
            while scene.nic.port_stats(1).delivered < round {
                std::thread::yield_now();
            }
            let begun = Instant::now();
            while control.pulse().received_packets < round {
                assert!(begun.elapsed() < PATIENCE, "the worker sleeps on");
                std::thread::yield_now();
            }
            times.push(begun.elapsed());
        }
        print!("polls drive the device {polls_drive_device}: from the port to the worker ");
        let limit = Duration::from_millis(if polls_drive_device { 5 } else { 1 });
        assert!(third_least(times) < limit);
        scene.end();
    }
}

#[test]
fn a_program_wakes_a_worker() {
    let scene = Scene::new(30, Box::new(NullWire), true);
    let control = scene.handle().control();
    let program = compile(POLICY, 1);
    let mut times = Vec::new();
    for _ in 0..15 {
        std::thread::sleep(PAUSE);
        let begun = Instant::now();
        let publication = control.publish(Band::A, Arc::clone(&program));
        while !control.acknowledged(publication) {
            assert!(begun.elapsed() < PATIENCE, "the worker sleeps on");
            std::thread::yield_now();
        }
        times.push(begun.elapsed());
    }
    print!("from publishing to the acknowledgement ");
    assert!(third_least(times) < Duration::from_millis(1));
    scene.end();
}

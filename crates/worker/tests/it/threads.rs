//! The real thing: the soft NIC's engine and the workers on threads of their own, a generator flat
//! out, and the controller reloading meanwhile. In any interleaving, all packets are accounted for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::{compile, nic, small};
use control::{ChangeStage, ControlError, Controller, Device, DeviceSelector};
use program::Program;
use softnic::Drive;
use softnic_verbs::SoftNic;
use wire::{FrameSizes, GeneratorConfig, Rate, TrafficConfig, TrafficProtocol, Wire, WireConfig};
use worker::{CORE_MAX, Deliveries, Disposition, Idle, Sink, Warning, Worker, WorkerControl, WorkerHandle};

/// Enough for so many reloads on the way.
const FRAMES: u64 = 2_000_000;
const RELOADS_MIN: usize = 6;
/// Many batches, and all in the worker's frames.
const WAITING: u64 = 1000;
const PATIENCE: Duration = Duration::from_secs(20);

fn generator(rate: Rate, total: u64) -> Box<dyn Wire> {
    let flow = |name: &str, dst_port: u16, share| TrafficConfig {
        name: name.to_owned(),
        share,
        src: "10.0.0.0/16".parse().expect("a range"),
        dst: "192.0.2.1".parse().expect("an address"),
        protocol: TrafficProtocol::Udp,
        src_ports: "1024-65535".parse().expect("a range"),
        dst_ports: dst_port.to_string().parse().expect("a port"),
        vlan: None,
        frame_bytes: FrameSizes::Fixed(64),
        count: Some(64),
        tcp_flags: None,
        dst_mac: None,
    };
    let config = GeneratorConfig {
        seed: 7,
        rate,
        total: Some(total),
        flows: vec![flow("dns", 53, 2), flow("ntp", 123, 1), flow("other", 9, 1)],
    };
    WireConfig::Generator(config).open().expect("a generator")
}

fn policy(dns: &str, ntp: &str) -> Arc<Program> {
    compile(
        &format!(
            "version = 1\ndefault = \"kernel\"\n[groups.every]\nworkers = \"all\"\nhash = \"l3l4\"\n\
             [[rules]]\nname = \"dns\"\nmatch = {{ protocol = \"udp\", dst_port = 53 }}\naction = {dns}\n\
             [[rules]]\nname = \"ntp\"\nmatch = {{ protocol = \"udp\", dst_port = 123 }}\naction = {ntp}\n"
        ),
        2,
    )
}

fn publish(controls: &[WorkerControl], stage: &ChangeStage) -> Result<(), ControlError> {
    let publications: Vec<_> = controls.iter().map(|control| control.publish(stage)).collect();
    let mut published = controls.iter().zip(publications);
    let late = published.find(|(control, publication)| !control.wait(*publication, PATIENCE));
    late.map_or(Ok(()), |(control, _)| {
        Err(ControlError::Workers(format!("worker {} did not answer", control.id())))
    })
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn start(nic: &SoftNic) -> (Device, Controller, Vec<WorkerHandle>) {
    let device = Device::open(&DeviceSelector::default(), Some(nic)).expect("the only device");
    let idle = Idle::Adaptive { idle_us: 20 };
    let workers: Vec<Worker> = (0..2)
        .map(|id| {
            Worker::new(device.context(), worker::WorkerConfig { idle, ..small(id) }).expect("a worker")
        })
        .collect();
    let queues = workers.iter().map(Worker::work_queue).collect();
    let controller = Controller::new(&device, vec![1], queues).expect("a controller");
    let handles = workers.into_iter().map(|worker| worker.spawn().expect("a thread")).collect();
    (device, controller, handles)
}

#[test]
fn reloading_under_full_load_keeps_the_books_balanced() {
    let nic = nic("load0", Drive::Thread { core: None }, vec![generator(Rate::FlatOut, FRAMES)]);
    let (_device, mut controller, handles) = start(&nic);
    let controls: Vec<WorkerControl> = handles.iter().map(WorkerHandle::control).collect();
    let steer = "{ steer = \"every\" }";
    let programs = [policy(steer, "\"drop\""), policy(steer, steer), policy("\"drop\"", steer)];
    let mut reloads = 0;
    while !nic.wires_finished() {
        let program = &programs[reloads % programs.len()];
        controller
            .install(Arc::clone(program), &mut |stage| publish(&controls, stage))
            .expect("the soft NIC takes it");
        reloads += 1;
    }
    assert!(reloads > RELOADS_MIN, "only {reloads} reloads, of which the last may have been too late");
    let delivered = nic.port_stats(1).delivered;
    until("the workers have all of it", || {
        controls.iter().map(|control| control.snapshot().received.packets).sum::<u64>() == delivered
    });
    let drops = controller.drop_counters();
    controller.clear().expect("the soft NIC removes flows");
    assert_eq!(
        controller.drop_counters().iter().map(|d| d.packets).collect::<Vec<_>>(),
        drops.iter().map(|d| d.packets).collect::<Vec<_>>()
    );
    let workers: Vec<Worker> = handles.into_iter().map(|handle| handle.join().expect("no panic")).collect();

    let stats = nic.port_stats(1);
    assert_eq!(stats.rx_frames, FRAMES);
    assert_eq!(stats.rx_frames, stats.dispositions());
    assert_eq!(
        stats.cq_overrun + stats.memory_fault + stats.queue_not_ready + stats.oversize + stats.runt,
        0
    );
    let snapshots: Vec<_> = workers.iter().map(|worker| worker.control().snapshot()).collect();
    for snapshot in &snapshots {
        assert_eq!(snapshot.imbalance(), 0, "{snapshot:?}");
        assert_eq!(snapshot.dropped_by_reason(), 0, "{:?}", snapshot.dropped);
        assert!(snapshot.empty_iterations < snapshot.iterations, "some iterations have found packets");
        let batches = &snapshot.batches;
        assert_eq!(
            (batches.count(), batches.at_most(0)),
            (snapshot.iterations, snapshot.empty_iterations),
            "all are published"
        );
    }
    let ruled = |rule| snapshots.iter().map(|s| s.rule(rule, Disposition::Delivered).packets).sum::<u64>();
    assert_eq!(ruled("dns") + ruled("ntp"), stats.delivered);
    assert_eq!(drops.iter().map(|totals| totals.packets).sum::<u64>(), stats.flow_dropped);
    drop(controller);
    drop(workers);
}

/// Keeps its worker in the first iteration until it is let go.
struct Doorkeeper(std::sync::mpsc::Receiver<()>);

impl Sink for Doorkeeper {
    fn run(&mut self, _: &mut Deliveries<'_>) {
        // Only the first iteration is kept: after that the other end is gone.
        let _ = self.0.recv();
    }
}

/// A stuck worker blocks no caller, and its objects stay with its thread.
#[test]
fn a_worker_that_does_not_end_is_not_waited_for_beyond_the_deadline() {
    let nic = nic("stuck0", Drive::Manual, vec![generator(Rate::FlatOut, WAITING)]);
    let device = Device::open(&DeviceSelector::default(), Some(&nic)).expect("the only device");
    let (open, door) = std::sync::mpsc::channel();
    let worker = Worker::new(device.context(), small(0)).expect("a worker");
    let worker = worker.with_observer(Box::new(Doorkeeper(door)));
    let mut controller = Controller::new(&device, vec![1], vec![worker.work_queue()]).expect("a controller");
    let program = compile(
        "version = 1\ndefault = \"steer every\"\n[groups.every]\nworkers = \"all\"\nhash = \"l3l4\"\n",
        1,
    );
    let control = worker.control();
    let install = controller.install(program, &mut |stage| {
        control.publish(stage);
        Ok(())
    });
    install.expect("the soft NIC takes it");
    while !nic.wires_finished() {
        nic.pump(64);
    }
    let handle = worker.spawn().expect("a thread");
    until("the first iteration is on", || control.progress().received_packets > 0);
    let iterations = control.progress().iterations;
    let error = handle.join_by(Instant::now() + Duration::from_millis(50)).err().expect("it is stuck");
    assert!(matches!(error, worker::Error::StillRunning { .. }), "{error}");
    assert_eq!(control.progress().iterations, iterations, "a stuck worker counts no iteration");
    drop(open);
    until("it goes on, and takes what was waiting", || control.snapshot().received.packets == WAITING);
    controller.clear().expect("the soft NIC removes flows");
}

#[test]
fn a_stopped_worker_has_taken_everything_that_was_waiting() {
    let nic = nic("stop0", Drive::Manual, vec![generator(Rate::FlatOut, WAITING)]);
    let device = Device::open(&DeviceSelector::default(), Some(&nic)).expect("the only device");
    let (open, door) = std::sync::mpsc::channel();
    let worker = Worker::new(device.context(), small(0)).expect("a worker");
    let worker = worker.with_observer(Box::new(Doorkeeper(door)));
    let mut controller = Controller::new(&device, vec![1], vec![worker.work_queue()]).expect("a controller");
    let program = compile(
        "version = 1\ndefault = \"steer every\"\n[groups.every]\nworkers = \"all\"\nhash = \"l3l4\"\n",
        1,
    );
    let control = worker.control();
    let install = controller.install(program, &mut |stage| {
        control.publish(stage);
        Ok(())
    });
    install.expect("the soft NIC takes it");
    while !nic.wires_finished() {
        nic.pump(64);
    }
    let handle = worker.spawn().expect("a thread");
    until("the first iteration is on", || control.progress().received_packets > 0);
    handle.stop();
    drop(open);
    let worker = handle.join().expect("no panic");
    let snapshot = worker.control().snapshot();
    assert_eq!((snapshot.received.packets, nic.port_stats(1).delivered), (WAITING, WAITING));
    assert_eq!(snapshot.imbalance(), 0);
    controller.clear().expect("the soft NIC removes flows");
    drop(controller);
}

#[test]
fn a_worker_that_cannot_be_pinned_runs_all_the_same_and_says_so() {
    let nic = nic("pin0", Drive::Manual, vec![Box::new(wire::NullWire)]);
    let device = Device::open(&DeviceSelector::default(), Some(&nic)).expect("the only device");
    let ours = core_affinity::get_core_ids().expect("this runs on some core")[0].id;
    for (core, expected) in [(CORE_MAX, vec![Warning::NotPinned { core: CORE_MAX }]), (ours, vec![])] {
        let config = worker::WorkerConfig { core: Some(core), ..small(0) };
        let handle = Worker::new(device.context(), config).expect("a worker").spawn().expect("a thread");
        let control = handle.control();
        until("it iterations", || control.progress().iterations > 0);
        handle.join().expect("no panic");
        assert_eq!(control.warnings(), expected, "core {core}");
    }
}

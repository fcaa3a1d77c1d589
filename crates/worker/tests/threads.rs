//! The real thing: the soft NIC's engine and the workers on threads of their own, a generator flat
//! out, and the controller reloading meanwhile. Whatever the interleaving, the books balance.

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use control::{Band, Controller, Device, DeviceSelector, Error};
use policy::Program;
use softnic::wire::{FrameSizes, GeneratorConfig, Rate, TrafficConfig, TrafficProtocol, Wire, WireConfig};
use softnic::{Drive, SoftNic};
use support::{compile, nic, small};
use worker::{CORE_MAX, Disposition, Idle, Warning, Worker, WorkerControl, WorkerHandle};

/// Enough for dozens of reloads on the way.
const FRAMES: u64 = 2_000_000;
/// At this rate they last longer than it takes to start and stop.
const PACED: (Rate, u64) = (Rate::FramesPerSecond(400_000), 200_000);
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

fn publish(controls: &[WorkerControl], band: Band, program: &Arc<Program>) -> Result<(), Error> {
    let publications: Vec<_> =
        controls.iter().map(|control| control.publish(band, Arc::clone(program))).collect();
    let mut published = controls.iter().zip(publications);
    let late = published.find(|(control, publication)| !control.wait(*publication, PATIENCE));
    late.map_or(Ok(()), |(control, _)| Err(Error::Workers(format!("worker {} did not answer", control.id()))))
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
    let idle = Idle::Adaptive { spin_polls: 100, yield_polls: 10, sleep_us: 50 };
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
    while reloads < 6 || !nic.wires_finished() {
        let program = &programs[reloads % programs.len()];
        controller
            .install(Arc::clone(program), &mut |band, program| publish(&controls, band, &program))
            .expect("the soft NIC takes it");
        reloads += 1;
    }
    until("the wire ends", || nic.wires_finished());
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
        assert!(snapshot.empty_polls() < snapshot.polls(), "some turns have found packets");
    }
    let ruled = |rule| snapshots.iter().map(|s| s.rule(rule, Disposition::Delivered).packets).sum::<u64>();
    assert_eq!(ruled("dns") + ruled("ntp"), stats.delivered);
    assert_eq!(drops.iter().map(|totals| totals.packets).sum::<u64>(), stats.flow_dropped);
    drop(controller);
    drop(workers);
}

#[test]
fn a_stopped_worker_has_taken_everything_that_was_waiting() {
    let nic = nic("stop0", Drive::Thread { core: None }, vec![generator(PACED.0, PACED.1)]);
    let (_device, mut controller, handles) = start(&nic);
    let controls: Vec<WorkerControl> = handles.iter().map(WorkerHandle::control).collect();
    let program = policy("{ steer = \"every\" }", "{ steer = \"every\" }");
    controller
        .install(Arc::clone(&program), &mut |band, program| publish(&controls, band, &program))
        .expect("the soft NIC takes it");
    until("packets flow", || controls.iter().any(|control| control.snapshot().received.packets > 0));
    controller.clear().expect("the soft NIC removes flows");
    let workers: Vec<Worker> = handles.into_iter().map(|handle| handle.join().expect("no panic")).collect();
    let received: u64 = workers.iter().map(|worker| worker.control().snapshot().received.packets).sum();
    // The engine publishes its books after the burst, not within.
    until("the port's books agree", || nic.port_stats(1).delivered == received);
    until("the wire ends", || nic.wires_finished());
    let stats = nic.port_stats(1);
    assert_eq!(stats.delivered, received, "nothing was steered any more");
    assert_eq!((stats.rx_frames, stats.dispositions()), (PACED.1, PACED.1));
    assert!(stats.unmatched > 0, "packets went on arriving");
}

#[test]
fn a_worker_that_cannot_be_pinned_runs_all_the_same_and_says_so() {
    let nic = nic("pin0", Drive::Manual, vec![Box::new(softnic::wire::NullWire)]);
    let device = Device::open(&DeviceSelector::default(), Some(&nic)).expect("the only device");
    let ours = core_affinity::get_core_ids().expect("this runs on some core")[0].id;
    for (core, expected) in [(CORE_MAX, vec![Warning::NotPinned { core: CORE_MAX }]), (ours, vec![])] {
        let config = worker::WorkerConfig { core: Some(core), ..small(0) };
        let handle = Worker::new(device.context(), config).expect("a worker").spawn().expect("a thread");
        let control = handle.control();
        until("it turns", || control.pulse().turns > 0);
        handle.join().expect("no panic");
        assert_eq!(control.warnings(), expected, "core {core}");
    }
}

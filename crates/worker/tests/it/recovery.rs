//! Receive queues that fail under traffic: the worker makes them ready anew, packets flow again through the
//! same flows, and every packet and every frame is accounted for.

use crate::support::{Rig, compile, nic, small};
use control::{Controller, Device, DeviceSelector};
use packet::build::FrameBuilder;
use softnic::{Drive, FailedFrames};
use verbs::EventKind;
use wire::{FrameSizes, GeneratorConfig, Rate, TrafficConfig, TrafficProtocol, WireConfig};
use worker::{
    Disposition, Failure, GivenUp, Idle, RECOVERIES_MAX, Worker, WorkerConfig, WorkerControl, WorkerSnapshot,
};

const POLICY: &str = "version = 1\ndefault = \"kernel\"\n[groups.g]\nworkers = \"all\"\nhash = \"l3l4\"\n\
                      [[rules]]\nname = \"udp\"\nmatch = { protocol = \"udp\" }\naction = { steer = \"g\" }\n";

fn udp(port: u16) -> Vec<u8> {
    FrameBuilder::new()
        .ipv4([10, 0, 0, 1].into(), [192, 0, 2, 1].into())
        .udp(port, 53)
        .payload(&[7; 30])
        .build()
}

fn send(rig: &Rig, count: u16) {
    rig.send(1, (0..count).map(udp));
    rig.settle();
}

/// Fails the queue of the first worker.
fn fail(rig: &Rig, frames: FailedFrames) {
    let queue = rig.workers.borrow()[0].work_queue().number();
    assert!(rig.nic.fail_work_queue(queue.0, frames), "it was ready");
}

/// Runs everything until the first worker has recovered so often.
fn until_recovered(rig: &Rig, times: u64) {
    let control = rig.workers.borrow()[0].control();
    for _ in 0..100 {
        rig.settle();
        let health = control.receive_queue();
        if health.recoveries == times && !health.is_failed {
            return;
        }
    }
    panic!("{:?}", control.receive_queue());
}

fn failed_receives(snapshot: &WorkerSnapshot, failure: Failure) -> u64 {
    snapshot.failures.iter().find(|(kind, _)| *kind == failure).map_or(0, |(_, count)| *count)
}

#[test]
fn a_queue_that_fails_between_packets_goes_on() {
    let mut rig = Rig::new(1, 2);
    rig.install(POLICY);
    send(&rig, 200);
    let frames = rig.workers.borrow()[0].frame_count();
    fail(&rig, FailedFrames::Flushed);
    until_recovered(&rig, 1);
    let snapshot = rig.snapshots().remove(0);
    let flushed = failed_receives(&snapshot, Failure::Flushed);
    assert!(flushed > frames / 2, "{flushed} of {frames} frames");
    assert_eq!(snapshot.receive_queue.last_failure, Some(Failure::Flushed));
    send(&rig, 200);
    assert_eq!(rig.ruled("udp", Disposition::Delivered), 400, "none was lost");
    assert_eq!(rig.port(1).queue_not_ready, 0);
    // Each frame was posted at first, again after its packet, and again after the failure, unless fewer than
    // half a batch are held back.
    let snapshot = rig.snapshots().remove(0);
    let used = frames + snapshot.received.packets + flushed;
    assert!(snapshot.posted <= used && snapshot.posted + 16 > used, "{snapshot:?}");
    rig.balance();
}

/// Some devices report a failure by an event alone.
#[test]
fn a_queue_whose_frames_have_no_completions_gets_them_back() {
    let mut rig = Rig::new(1, 1);
    rig.install(POLICY);
    send(&rig, 100);
    fail(&rig, FailedFrames::Kept);
    send(&rig, 10);
    assert_eq!(rig.port(1).queue_not_ready, 10, "nobody has told the worker");
    let event = rig.device.context().async_event().expect("readable").expect("an event");
    assert_eq!(event.kind, EventKind::WorkQueueFatal);
    let control = rig.workers.borrow()[0].control();
    control.report_queue_failure();
    assert!(control.receive_queue().is_failed);
    until_recovered(&rig, 1);
    let frames = rig.workers.borrow()[0].frame_count();
    // More at once than if a frame were missing.
    rig.send(1, (0..frames as u16).map(udp));
    while rig.nic.pump(4096) > 0 {}
    rig.settle();
    assert_eq!(rig.ruled("udp", Disposition::Delivered), 100 + frames);
    assert_eq!(rig.port(1).queue_not_ready, 10);
    assert_eq!(failed_receives(&rig.snapshots()[0], Failure::Flushed), 0);
    rig.balance();
}

#[test]
fn packets_received_before_the_failure_are_not_lost() {
    let mut rig = Rig::new(1, 1);
    rig.install(POLICY);
    // They wait in the completion queue, behind them the flushed frames.
    rig.send(1, (0..500).map(udp));
    while rig.nic.pump(64) > 0 {}
    fail(&rig, FailedFrames::Flushed);
    until_recovered(&rig, 1);
    assert_eq!(rig.ruled("udp", Disposition::Delivered), 500);
    rig.balance();
}

#[test]
fn too_many_failures_are_final() {
    let mut rig = Rig::new(1, 1);
    rig.install(POLICY);
    for nth in 1..=RECOVERIES_MAX as u64 {
        fail(&rig, FailedFrames::Flushed);
        until_recovered(&rig, nth);
        send(&rig, 10);
    }
    fail(&rig, FailedFrames::Flushed);
    send(&rig, 10);
    let health = rig.snapshots()[0].receive_queue;
    assert!(health.is_failed);
    assert_eq!((health.recoveries, health.given_up), (RECOVERIES_MAX as u64, Some(GivenUp::TooOften)));
    assert_eq!(rig.ruled("udp", Disposition::Delivered), 10 * RECOVERIES_MAX as u64);
    assert_eq!(rig.port(1).queue_not_ready, 10);
    rig.balance();
}

#[test]
fn a_device_that_refuses_the_recovery_is_named() {
    let mut rig = Rig::new(1, 1);
    rig.install(POLICY);
    rig.nic.fail_device();
    let control = rig.workers.borrow()[0].control();
    control.report_queue_failure();
    rig.settle();
    let health = control.receive_queue();
    const EIO: i32 = 5;
    assert_eq!((health.is_failed, health.given_up), (true, Some(GivenUp::Refused(EIO))));
}

fn generator(total: u64) -> WireConfig {
    let flow = TrafficConfig {
        name: "udp".to_owned(),
        share: 1,
        src: "10.0.0.0/16".parse().expect("a range"),
        dst: "192.0.2.1".parse().expect("an address"),
        protocol: TrafficProtocol::Udp,
        src_ports: "1024-65535".parse().expect("a range"),
        dst_ports: "53".parse().expect("a port"),
        vlan: None,
        frame_bytes: FrameSizes::Fixed(64),
        count: Some(64),
        tcp_flags: None,
        dst_mac: None,
    };
    WireConfig::Generator(GeneratorConfig {
        seed: 3,
        rate: Rate::FlatOut,
        total: Some(total),
        flows: vec![flow],
    })
}

/// Threads, an engine that never pauses, and failures of both kinds in between.
#[test]
fn queues_killed_under_full_traffic_recover() {
    const TOTAL: u64 = 300_000;
    let wire = generator(TOTAL).open().expect("a generator");
    let nic = nic("killed0", Drive::Thread { core: None }, vec![wire]);
    let device = Device::open(&DeviceSelector::default(), Some(&nic)).expect("the only device");
    let config = |id| WorkerConfig { idle: Idle::Adaptive { idle_us: 20 }, ..small(id) };
    let workers: Vec<Worker> =
        (0..2).map(|id| Worker::new(device.context(), config(id)).expect("a worker")).collect();
    let queues: Vec<_> = workers.iter().map(Worker::work_queue).collect();
    let controls: Vec<WorkerControl> = workers.iter().map(Worker::control).collect();
    let numbers: Vec<u32> = queues.iter().map(|queue| queue.number().0).collect();
    let mut controller = Controller::new(&device, vec![1], queues).expect("a controller");
    let handles: Vec<_> = workers.into_iter().map(|worker| worker.spawn().expect("a thread")).collect();
    let patience = std::time::Duration::from_secs(20);
    let wait = |what: &str, done: &dyn Fn() -> bool| {
        let begun = std::time::Instant::now();
        while !done() {
            assert!(begun.elapsed() < patience, "{what}");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    };
    controller
        .install(compile(POLICY, 2), &mut |stage| {
            for control in &controls {
                let publication = control.publish(stage);
                assert!(control.wait(publication, patience), "acknowledged");
            }
            Ok(())
        })
        .expect("it installs");
    for times in 1..=3 {
        for (number, control) in numbers.iter().zip(&controls) {
            wait("a ready queue", &|| nic.fail_work_queue(*number, FailedFrames::Flushed));
            wait("a recovery", &|| control.receive_queue().recoveries >= times);
        }
    }
    wait("the end of the traffic", &|| nic.wires_finished());
    controller.clear().expect("flows are removed");
    let workers: Vec<Worker> = handles.into_iter().map(|handle| handle.join().expect("it ends")).collect();
    nic.stop();
    let (port, snapshots) = (nic.port_stats(1), controls.iter().map(WorkerControl::snapshot));
    let snapshots: Vec<WorkerSnapshot> = snapshots.collect();
    assert_eq!(port.rx_frames, port.dispositions(), "{port:?}");
    assert_eq!(port.delivered, snapshots.iter().map(|worker| worker.received.packets).sum::<u64>());
    assert!(snapshots.iter().all(|worker| worker.imbalance() == 0 && worker.dropped_by_reason() == 0));
    assert!(snapshots.iter().all(|worker| worker.receive_queue.recoveries == 3), "{snapshots:?}");
    drop((controller, workers));
}

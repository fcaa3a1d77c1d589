//! Workers that run the engine of the soft NIC in their polls: all packets are accounted for, and each queue
//! has its own in the order of their arrival.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::{compile, nic, small};
use control::{Controller, Device, DeviceSelector};
use packet::build::FrameBuilder;
use softnic::Drive;
use wire::{Burst, RxFrame, TransmitError, Wire, WireState};
use worker::{Deliveries, Idle, Sink, Worker, WorkerConfig, WorkerHandle};

const PATIENCE: Duration = Duration::from_secs(60);
const FLOWS: usize = 64;
const FRAMES: u64 = 300_000;
/// Ethernet, IPv4 and UDP headers.
const PAYLOAD_AT: usize = 14 + 20 + 8;

const POLICY: &str =
    "version = 1\ndefault = \"steer every\"\n[groups.every]\nworkers = \"all\"\nhash = \"l3l4\"\n";

/// Frames with numbers, in turn of some flows.
struct Numbered {
    frames: Vec<Vec<u8>>,
    next: u64,
}

impl Numbered {
    fn new() -> Self {
        let flow = |port: usize| {
            FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).udp(port as u16, 53)
        };
        Self { frames: (0..FLOWS).map(|port| flow(port).payload(&[0; 8]).build()).collect(), next: 0 }
    }
}

impl Wire for Numbered {
    fn receive<'w>(&'w mut self, burst: &mut Burst<'w>) {
        let left = usize::try_from(FRAMES - self.next).expect("few");
        let count = burst.capacity_left().min(left).min(FLOWS);
        let first = (self.next % FLOWS as u64) as usize;
        // A burst has a frame of each flow at most, so that its place is free.
        let count = count.min(FLOWS - first);
        for (number, frame) in (self.next..).zip(&mut self.frames[first..first + count]) {
            frame[PAYLOAD_AT..][..8].copy_from_slice(&number.to_be_bytes());
        }
        self.next += count as u64;
        for frame in &self.frames[first..first + count] {
            assert!(burst.push(RxFrame::new(frame)));
        }
    }

    fn transmit(&mut self, _: &[u8]) -> Result<(), TransmitError> {
        Ok(())
    }

    fn state(&self) -> WireState {
        if self.next == FRAMES { WireState::Finished } else { WireState::Live }
    }

    fn describe(&self) -> String {
        "numbered".to_owned()
    }

    fn mtu_bytes(&self) -> u32 {
        1500
    }
}

/// Counts the packets whose number is not above that of the one before of the same flow.
struct Order {
    last: [Option<u64>; FLOWS],
    packets: Arc<AtomicU64>,
    misplaced: Arc<AtomicU64>,
}

impl Sink for Order {
    fn run(&mut self, packets: &mut Deliveries<'_>) {
        for packet in packets.iter() {
            let number = packet.bytes[PAYLOAD_AT..][..8].try_into().expect("eight octets");
            let number = u64::from_be_bytes(number);
            let last = self.last[(number % FLOWS as u64) as usize].replace(number);
            self.packets.fetch_add(1, Ordering::Relaxed);
            self.misplaced.fetch_add(u64::from(last >= Some(number)), Ordering::Relaxed);
        }
    }
}

fn run(workers: usize, idle: Idle) {
    let name = format!("inline{workers}");
    let nic = nic(&name, Drive::Inline, vec![Box::new(Numbered::new())]);
    let device = Device::open(&DeviceSelector::named(&name), Some(&nic)).expect("the soft NIC opens");
    let (packets, misplaced) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let workers: Vec<Worker> = (0..workers)
        .map(|id| {
            let config = WorkerConfig { idle, polls_drive_device: true, ..small(id) };
            let order = Order {
                last: [None; FLOWS],
                packets: Arc::clone(&packets),
                misplaced: Arc::clone(&misplaced),
            };
            Worker::new(device.context(), config).expect("a worker").with_observer(Box::new(order))
        })
        .collect();
    let queues = workers.iter().map(Worker::work_queue).collect();
    let mut controller = Controller::new(&device, vec![1], queues).expect("a controller");
    let count = workers.len();
    let controls: Vec<_> = workers.iter().map(Worker::control).collect();
    controller
        .install(compile(POLICY, count), &mut |stage| {
            for control in &controls {
                control.publish(stage);
            }
            Ok(())
        })
        .expect("it installs");
    assert_eq!(nic.port_stats(1).rx_frames, 0, "nobody polls yet");
    let handles: Vec<WorkerHandle> =
        workers.into_iter().map(|worker| worker.spawn().expect("a thread")).collect();
    let begun = Instant::now();
    let received = || controls.iter().map(|control| control.progress().received_packets).sum::<u64>();
    while !nic.wires_finished() || received() < nic.port_stats(1).delivered {
        assert!(begun.elapsed() < PATIENCE, "{:?}", nic.port_stats(1));
        std::thread::sleep(Duration::from_millis(1));
    }
    controller.clear().expect("flows are removed");
    let workers: Vec<Worker> = handles.into_iter().map(|handle| handle.join().expect("no panic")).collect();
    nic.stop();

    let stats = nic.port_stats(1);
    assert_eq!(stats.rx_frames, FRAMES);
    assert_eq!(stats.rx_frames, stats.dispositions(), "{stats:?}");
    let snapshots: Vec<_> = workers.iter().map(|worker| worker.control().snapshot()).collect();
    for snapshot in &snapshots {
        assert_eq!(snapshot.imbalance(), 0, "{snapshot:?}");
        assert!(snapshot.received.packets > 0, "every worker has its part");
    }
    assert_eq!(snapshots.iter().map(|snapshot| snapshot.received.packets).sum::<u64>(), stats.delivered);
    assert_eq!(packets.load(Ordering::Relaxed), stats.delivered);
    assert_eq!(misplaced.load(Ordering::Relaxed), 0, "packets of a flow that overtook others");
    drop(controller);
}

#[test]
fn one_worker_drives_the_engine() {
    run(1, Idle::Spin);
}

#[test]
fn two_workers_drive_the_engine_by_turns() {
    run(2, Idle::default());
}

/// Without a second worker every frame fits: the engine hands over no more than the poll takes.
#[test]
fn one_worker_loses_nothing() {
    let nic = nic("inline9", Drive::Inline, vec![Box::new(Numbered::new())]);
    let device = Device::open(&DeviceSelector::named("inline9"), Some(&nic)).expect("the soft NIC opens");
    let mut worker = Worker::new(device.context(), small(0)).expect("a worker");
    let mut controller = Controller::new(&device, vec![1], vec![worker.work_queue()]).expect("a controller");
    let control = worker.control();
    controller
        .install(compile(POLICY, 1), &mut |stage| {
            control.publish(stage);
            Ok(())
        })
        .expect("it installs");
    while !nic.wires_finished() {
        worker.step();
    }
    while worker.step() > 0 {}
    let stats = nic.port_stats(1);
    assert_eq!((stats.rx_frames, stats.delivered, stats.out_of_buffer), (FRAMES, FRAMES, 0), "{stats:?}");
    assert_eq!(control.snapshot().received.packets, FRAMES);
    controller.clear().expect("flows are removed");
}

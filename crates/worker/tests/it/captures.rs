//! The sink of kind `capture` behind a worker: the times in its files are those of the device's clock, and
//! its part on the worker's thread does not allocate.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::support::{Feed, ScriptWire, compile, small};
use control::{Controller, Device, DeviceSelector};
use packet::build::FrameBuilder;
use pcap_file::pcapng::{Block, PcapNgReader};
use program::{CaptureSink, SinkKind};
use softnic::{Drive, Personality, PortConfig, SoftNicConfig};
use softnic_verbs::SoftNic;
use worker::sinks::{self, Environment, Opened, Ports};
use worker::{SharedStage, SinkDrop, SinkMap, Slot, Worker, WorkerConfig};

/// 78.125 MHz: a tick is 12.8 ns.
const TICK_KHZ: u64 = 78_125;
const POLICY: &str = "version = 1\ndefault = 'kernel'\n[groups.every]\nworkers = 'all'\nsinks = ['files']\n\
    [sinks.files]\nkind = 'capture'\npath = '/'\n\
    [[rules]]\nname = 'dns'\nmatch = { protocol = 'udp', dst_port = 53 }\naction = { steer = 'every' }\n\
    [[rules]]\nname = 'web'\nmatch = { protocol = 'udp', dst_port = 80 }\naction = { steer = 'every' }\n";

/// One worker with a capture. Dropped in this order.
struct Rig {
    _controller: Controller,
    worker: Worker,
    opened: Opened,
    _device: Device,
    nic: SoftNic,
    feed: Feed,
}

impl Rig {
    fn new(options: CaptureSink, timestamps: bool) -> Self {
        let feed = Feed::default();
        let config = SoftNicConfig {
            name: "rig0".to_owned(),
            personality: Personality::Ideal,
            ports: vec![PortConfig { wire: ScriptWire::of(&feed), mtu_bytes: 1500 }],
            drive: Drive::Manual,
        };
        let nic = SoftNic::create_with_clock(config, TICK_KHZ).expect("a soft NIC");
        let device = Device::open(&DeviceSelector::named("rig0"), Some(&nic)).expect("it opens");
        let config = WorkerConfig { timestamps, ..small(0) };
        let worker = Worker::new(device.context(), config).expect("a worker");
        let mut program = (*compile(POLICY, 1)).clone();
        program.sinks[0].kind = SinkKind::Capture(options);
        let program = Arc::new(program);
        let domains = [worker.domain()];
        let environment = Environment {
            context: device.context(),
            domains: &domains,
            budgets: &[],
            ports: &[1],
            stations: &[],
            others: None,
        };
        let mut opened = sinks::open(&program.sinks[0], &environment).expect("a sink");
        let slot = Slot::of(0).expect("a place");
        worker.control().place_sink(slot, opened.endpoints.pop());
        let map = Arc::new(SinkMap::new(1, &program, &[slot]));
        opened.hub.announce(&map, &program);
        let mut rig = Self {
            _controller: Controller::new(&device, vec![1], vec![worker.work_queue()]).expect("a controller"),
            worker,
            opened,
            _device: device,
            nic,
            feed,
        };
        rig._controller
            .install(program, &mut |stage| {
                rig.worker.control().publish_shared(&SharedStage::new(stage, &map));
                rig.worker.step();
                Ok(())
            })
            .expect("it installs");
        rig
    }

    /// Receives a frame into the worker's queue.
    fn receive(&self, dst_port: u16) {
        let frame = FrameBuilder::new().ipv4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(192, 0, 2, 1));
        let frame = frame.udp(1000, dst_port).payload(&[0; 500]).build();
        self.feed.lock().expect("feed").push_back(frame);
        while self.nic.pump(64) > 0 {}
    }

    /// Handles what was received, and ends the capture.
    fn end(mut self) {
        while self.worker.step() > 0 {}
        drop(self.opened);
    }
}

/// The times in the only file of a folder.
fn times(folder: &Path) -> Vec<Duration> {
    let file = fs::read_dir(folder).expect("a folder").next().expect("a file").expect("an entry");
    let bytes = fs::read(file.path()).expect("readable");
    let mut reader = PcapNgReader::new(bytes.as_slice()).expect("a section");
    let mut times = Vec::new();
    while let Some(block) = reader.next_block() {
        if let Block::EnhancedPacket(packet) = block.expect("a whole block") {
            times.push(packet.timestamp);
        }
    }
    times
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970")
}

#[test]
fn packets_of_one_iteration_have_the_times_of_their_arrival() {
    const PACKETS: usize = 20;
    let folder = tempfile::tempdir().expect("a folder");
    let rig = Rig::new(CaptureSink { path: folder.path().to_owned(), ..CaptureSink::default() }, true);
    let mut arrivals = Vec::new();
    for number in 0..PACKETS as u64 {
        std::thread::sleep(Duration::from_micros(200 * (number % 3 + 1)));
        let before = now();
        rig.receive(53);
        arrivals.push((before, now()));
    }
    rig.end();
    let times = times(folder.path());
    assert_eq!(times.len(), PACKETS);
    // The error of a reading of two clocks on a busy machine; all packets are handled some milliseconds
    // later.
    let error = Duration::from_micros(100);
    for (time, (before, after)) in times.iter().zip(&arrivals) {
        assert!(*time + error >= *before && *time <= *after + error, "{time:?} in {before:?} to {after:?}");
    }
    for (pair, arrival) in times.windows(2).zip(arrivals.windows(2)) {
        let spacing = pair[1].checked_sub(pair[0]).expect("monotonic");
        let (least, most) = (arrival[1].0 - arrival[0].1, arrival[1].1 - arrival[0].0);
        // A tick, and the error of the rate within some milliseconds.
        let error = Duration::from_micros(1);
        assert!(least <= spacing + error && spacing <= most + error, "{spacing:?}: {least:?} to {most:?}");
    }
}

#[test]
fn without_timestamps_packets_have_the_time_of_their_iteration() {
    let folder = tempfile::tempdir().expect("a folder");
    let rig = Rig::new(CaptureSink { path: folder.path().to_owned(), ..CaptureSink::default() }, false);
    for _ in 0..5 {
        rig.receive(53);
        std::thread::sleep(Duration::from_millis(1));
    }
    let before = now();
    rig.end();
    let times = times(folder.path());
    assert_eq!(times.len(), 5);
    assert!(times.iter().all(|time| *time == times[0] && *time >= before), "{times:?} from {before:?}");
}

/// Every packet is chosen or left out, of two rules in turn, and the ring becomes full.
#[test]
fn the_workers_part_does_not_allocate() {
    for (one_in, first_of_flow, timestamps) in [(1, 0, false), (2, 0, true), (1, 100, true)] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().to_owned();
        let ring_bytes = *CaptureSink::RING_BYTES.start();
        let snap_bytes = 1500;
        let options =
            CaptureSink { path, one_in, first_of_flow, ring_bytes, snap_bytes, ..CaptureSink::default() };
        let mut rig = Rig::new(options, timestamps);
        let counters = Arc::clone(&rig.opened.counters[0]);
        let full = || counters.read().dropped[SinkDrop::RingFull as usize].1;
        let (mut rounds, mut offered) = (0, 0);
        // A thread that is quick empties the ring before it is full; then it is offered more.
        while rounds < 10 || one_in == 1 && first_of_flow == 0 && full() == 0 && rounds < 10_000 {
            for number in 0..64 {
                rig.receive(if number % 2 == 0 { 53 } else { 80 });
            }
            offered += 64;
            rig.opened.hub.tick(&Ports::default());
            let counted = allocation_counter::measure(|| while rig.worker.step() > 0 {});
            assert_eq!((counted.count_total, counted.count_current), (0, 0), "round {rounds}");
            rounds += 1;
        }
        rig.end();
        let traffic = counters.read();
        assert_eq!((traffic.offered.packets, traffic.in_flight()), (offered, 0));
        let dropped = |reason: SinkDrop| traffic.dropped[reason as usize].1;
        let left_out = dropped(SinkDrop::Sampled) + dropped(SinkDrop::Limit);
        assert_eq!(left_out > 0, one_in > 1 || first_of_flow > 0);
        assert_eq!(times(folder.path()).len() as u64, traffic.delivered.packets);
    }
}

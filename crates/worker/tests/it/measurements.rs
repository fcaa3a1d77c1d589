//! What a worker measures about itself and its packets: its time by regime, the latency of packets in the
//! device's clock, and the sizes and flows that a sink of kind `count` counts.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::{Feed, ScriptWire, compile, small};
use control::{Controller, Device, DeviceSelector};
use packet::PacketFlow;
use packet::build::FrameBuilder;
use program::Program;
use softnic::{Drive, Personality, PortConfig, SoftNicConfig};
use softnic_verbs::SoftNic;
use worker::sinks::{self, Environment, Opened};
use worker::{
    Deliveries, DeviceClock, Idle, Regime, SharedStage, Sink, SinkMap, Slot, Worker, WorkerConfig,
    WorkerSnapshot,
};

const POLICY: &str = "version = 1\ndefault = 'steer every'\n[sinks.all]\nkind = 'count'\ntop_flows = 16\n\
    [groups.every]\nworkers = 'all'\nsinks = ['all']\n";

/// One worker on a device with a clock of this rate. Dropped in this order.
struct Rig {
    _controller: Controller,
    worker: Worker,
    program: Arc<Program>,
    opened: Opened,
    device: Device,
    nic: SoftNic,
    feed: Feed,
}

impl Rig {
    fn new(clock_khz: u64, timestamps: bool, idle: Idle) -> Self {
        let feed = Feed::default();
        let config = SoftNicConfig {
            name: "rig0".to_owned(),
            personality: Personality::Ideal,
            ports: vec![PortConfig { wire: ScriptWire::of(&feed), mtu_bytes: 9000 }],
            drive: Drive::Manual,
        };
        let nic = SoftNic::create_with_clock(config, clock_khz).expect("a soft NIC");
        let device = Device::open(&DeviceSelector::named("rig0"), Some(&nic)).expect("it opens");
        let config = WorkerConfig { timestamps, idle, ..small(0) };
        let mut worker = Worker::new(device.context(), config).expect("a worker");
        let program = compile(POLICY, 1);
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
        let mut controller =
            Controller::new(&device, vec![1], vec![worker.work_queue()]).expect("a controller");
        controller
            .install(Arc::clone(&program), &mut |stage| {
                worker.control().publish_shared(&SharedStage::new(stage, &map));
                worker.step();
                Ok(())
            })
            .expect("it installs");
        Self { _controller: controller, worker, program, opened, device, nic, feed }
    }

    /// Receives frames into the worker's queue.
    fn receive(&self, frames: impl IntoIterator<Item = Vec<u8>>) {
        self.feed.lock().expect("feed").extend(frames);
        while self.nic.pump(64) > 0 {}
    }

    fn step_all(&mut self) {
        while self.worker.step() > 0 {}
    }

    fn snapshot(&self) -> WorkerSnapshot {
        self.worker.control().snapshot()
    }
}

fn udp(src_port: u16, payload: usize) -> Vec<u8> {
    FrameBuilder::new()
        .ipv4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(192, 0, 2, 1))
        .udp(src_port, 53)
        .payload(&vec![0; payload])
        .build()
}

/// Works for a given time with each batch.
struct Slow(Duration);

impl Sink for Slow {
    fn run(&mut self, _: &mut Deliveries<'_>) {
        let begun = Instant::now();
        while begun.elapsed() < self.0 {
            std::hint::spin_loop();
        }
    }
}

#[test]
fn the_regimes_of_a_running_worker_add_up_to_its_time() {
    for idle in [Idle::Spin, Idle::default()] {
        let made = Instant::now();
        let Rig { _controller, worker, device, nic, feed, .. } = Rig::new(1_000_000, false, idle);
        let control = worker.control();
        let worker = worker.with_observer(Box::new(Slow(Duration::from_micros(300))));
        let begun = control.progress().iterations;
        let handle = worker.spawn().expect("a thread");
        while control.progress().iterations == begun {
            std::thread::yield_now();
        }
        let running = Instant::now();
        for port in 0..150 {
            feed.lock().expect("feed").push_back(udp(port, 10));
            nic.pump(1);
            std::thread::sleep(Duration::from_millis(2));
        }
        let least = running.elapsed();
        let worker = handle.join().expect("it ends");
        let most = made.elapsed();
        let regimes = control.snapshot().regimes;
        let whole = Duration::from_nanos(regimes.iter().map(|(_, ns)| ns).sum());
        // What is before and after is a percent of it, unless the machine is busy.
        assert!(least <= whole && whole <= most, "{least:?} {whole:?} {most:?}: {regimes:?}");
        let ns = |regime: Regime| regimes[regime as usize].1;
        let others = ns(Regime::Poll) + ns(Regime::Classify);
        assert!(ns(Regime::Sink) > others && ns(Regime::Idle) > ns(Regime::Sink), "{regimes:?}");
        assert!(control.snapshot().latency.is_none(), "no timestamps were asked for");
        drop((_controller, worker, device));
    }
}

/// Ticks of 12.8 ns, 2.34 ns and 1 ns: packets that wait 2 ms have a latency of 2 ms.
#[test]
fn latency_is_in_nanoseconds_whatever_the_tick_of_the_device() {
    const WAIT: Duration = Duration::from_millis(2);
    for clock_khz in [78_125, 427_000, 1_000_000] {
        let mut rig = Rig::new(clock_khz, true, Idle::Spin);
        let mut clock = DeviceClock::open(rig.device.context()).expect("a clock");
        rig.worker.control().set_clock(clock.read().expect("it can be read"));
        let mut longest = Duration::ZERO;
        for port in 0..32 {
            let begun = Instant::now();
            rig.receive([udp(port, 10), udp(port, 20)]);
            std::thread::sleep(WAIT);
            rig.step_all();
            longest = longest.max(begun.elapsed());
        }
        rig.worker = rig.worker.spawn().expect("a thread").join().expect("it publishes what it has");
        let latency = rig.snapshot().latency.expect("it has timestamps");
        assert_eq!((latency.ns.count(), latency.negative), (4, 0), "two packets of one batch in 16");
        // To one part in 16; the conversion to one in 1000 and the microseconds of a reading.
        let (least, most) = (latency.ns.quantile(0.0), latency.ns.quantile(1.0));
        assert!(least + least / 10 >= WAIT.as_nanos() as u64, "{least} ns at {clock_khz} kHz");
        let longest = longest.as_nanos() as u64;
        assert!(most <= longest + longest / 10 + 50_000, "{most} > {longest} ns at {clock_khz} kHz");
    }
}

/// With the relation of another device, whose clock ticks at a thousandth of the rate, every timestamp is in
/// the future.
#[test]
fn a_timestamp_in_the_future_is_counted_as_a_latency_of_zero() {
    let mut rig = Rig::new(1_000_000, true, Idle::Spin);
    rig.worker.control().set_clock(Rig::slow_clock());
    for port in 0..16 {
        rig.receive([udp(port, 10)]);
        rig.step_all();
    }
    rig.worker = rig.worker.spawn().expect("a thread").join().expect("it publishes what it has");
    let latency = rig.snapshot().latency.expect("it has timestamps");
    assert_eq!((latency.ns.count(), latency.negative, latency.ns.sum()), (1, 1, 0));
}

impl Rig {
    fn slow_clock() -> worker::ClockRelation {
        let config = SoftNicConfig {
            name: "slow0".to_owned(),
            personality: Personality::Ideal,
            ports: vec![PortConfig { wire: ScriptWire::of(&Feed::default()), mtu_bytes: 1500 }],
            drive: Drive::Manual,
        };
        let nic = SoftNic::create_with_clock(config, 1_000).expect("a soft NIC");
        let device = Device::open(&DeviceSelector::named("slow0"), Some(&nic)).expect("it opens");
        DeviceClock::open(device.context()).and_then(|mut clock| clock.read()).expect("it can be read")
    }
}

#[test]
fn a_rate_of_zero_is_refused() {
    let config = SoftNicConfig {
        name: "zero0".to_owned(),
        personality: Personality::Ideal,
        ports: vec![PortConfig { wire: ScriptWire::of(&Feed::default()), mtu_bytes: 1500 }],
        drive: Drive::Manual,
    };
    let error = SoftNic::create_with_clock(config, 0).err().expect("no clock");
    assert!(error.to_string().contains("0 kHz"), "{error}");
}

#[test]
fn a_count_sink_has_sizes_and_flows() {
    let mut rig = Rig::new(1_000_000, false, Idle::Spin);
    // Frames of 52 and 1514 bytes (56 and 1518 with the check sequence), and one jumbo frame.
    rig.receive((0..100).map(|_| udp(1000, 10)));
    rig.step_all();
    rig.receive((0..30).map(|_| udp(2000, 1472)).chain([udp(3000, 8000)]));
    rig.step_all();
    let sizes = rig.opened.hub.packet_sizes().expect("they are counted");
    let expected = [(64, 100), (127, 0), (255, 0), (511, 0), (1023, 0), (1518, 30), (9018, 1)];
    assert_eq!((sizes.classes, sizes.larger), (expected, 0));
    let traffic = rig.opened.counters[0].read();
    assert_eq!((sizes.packets(), traffic.in_flight()), (131, 0));
    assert_eq!(sizes.bytes, traffic.delivered.bytes + 4 * 131);
    let flows = rig.opened.hub.top_flows().expect("they are counted");
    let found: Vec<(u16, u64, u64, u64)> = flows
        .iter()
        .map(|flow| match flow.flow {
            PacketFlow::Ip { ports: Some((src_port, 53)), protocol: 17, .. } => {
                (src_port, flow.packets, flow.error, flow.bytes)
            }
            ref other => panic!("{other}"),
        })
        .collect();
    let bytes = |port, payload: usize, count: u64| count * udp(port, payload).len() as u64;
    let expected = [
        (1000, 100, 0, bytes(1000, 10, 100)),
        (2000, 30, 0, bytes(2000, 1472, 30)),
        (3000, 1, 0, bytes(3000, 8000, 1)),
    ];
    assert_eq!(found, expected);
    assert_eq!(rig.program.sinks.len(), 1);
}

#[test]
fn a_count_sink_does_not_allocate_for_packets() {
    let mut rig = Rig::new(78_125, true, Idle::Spin);
    for round in 0..20 {
        rig.receive((0..300).map(|port| udp(port * 7, 30)));
        let counted = allocation_counter::measure(|| rig.step_all());
        assert_eq!(counted.count_total, 0, "round {round}");
    }
    let flows = rig.opened.hub.top_flows().expect("they are counted");
    assert_eq!(flows.len(), 16);
}

//! Several engine threads on one device: all frames are accounted for, each queue gets the frames of each
//! port in order, and sends keep their order, while flows and queues come and go.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::verbs_support::{FRAME_BYTES, Received, Receiver, pool, single, v4};
use packet::build::FrameBuilder;
use rustix::thread::{CpuSet, sched_setaffinity};
use softnic::{Drive, Personality, PortConfig, SoftNicConfig, SoftNicError};
use softnic_verbs::{ProviderError, SoftNic};
use verbs::{
    ActionSpec, CompletionQueue, Context, DeviceList, Domain, FlowAttr, FlowHandle, FlowKind, FlowSpec,
    FlowTarget, Ipv4ExtMatch, PortMatch, PortNumber, ProtectionDomain, RawQueuePair, SendFlags,
};
use wire::{
    Burst, GatedWire, GeneratorConfig, GeneratorWire, RxFrame, SleepHint, TransmitError, Wire, WireState,
};

const PATIENCE: Duration = Duration::from_secs(120);
/// The longest sleep of an engine's thread.
const HEARTBEAT: Duration = Duration::from_millis(20);
const BUFFERS: u32 = 128;
/// Ethernet, IPv4 and UDP headers.
const PAYLOAD_AT: usize = 14 + 20 + 8;
/// Source ports are the numbers of the device's ports, destination ports those of the queues of the test.
const SRC_PORT_AT: usize = 14 + 20;
/// The queues: one for each port, one for both, one that is made and destroyed, and nobody.
const QUEUES: u16 = 5;
const BOTH: u16 = 3;
const BRIEF: u16 = 4;

fn frame(port: u8, queue: u16, number: u64) -> Vec<u8> {
    let ipv4 = FrameBuilder::new().ipv4(v4(port), v4(100));
    ipv4.udp(port.into(), queue).payload(&number.to_be_bytes()).build()
}

fn number(frame: &[u8]) -> u64 {
    u64::from_be_bytes(frame[PAYLOAD_AT..][..8].try_into().unwrap())
}

/// A wire that gives numbered frames to each queue in turn, until `ended` is set, and checks the numbers of
/// the frames that are sent by it.
struct Numbered {
    frames: Vec<Vec<u8>>,
    next: u64,
    ended: bool,
    ends: Arc<AtomicBool>,
    sent: u64,
    misplaced: Arc<AtomicU64>,
}

impl Wire for Numbered {
    fn receive<'w>(&'w mut self, burst: &mut Burst<'w>) {
        self.ended = self.ends.load(Ordering::Relaxed);
        if self.ended {
            return;
        }
        for (number, frame) in (self.next..).zip(&mut self.frames) {
            frame[PAYLOAD_AT..][..8].copy_from_slice(&number.to_be_bytes());
        }
        for frame in &self.frames {
            if burst.capacity_left() == 0 {
                break;
            }
            self.next += u64::from(burst.push(RxFrame::new(frame)));
        }
    }

    fn transmit(&mut self, frame: &[u8]) -> Result<(), TransmitError> {
        if number(frame) != self.sent {
            self.misplaced.fetch_add(1, Ordering::Relaxed);
        }
        self.sent += 1;
        Ok(())
    }

    fn state(&self) -> WireState {
        if self.ended { WireState::Finished } else { WireState::Live }
    }

    fn describe(&self) -> String {
        "numbered".to_owned()
    }
}

struct Device {
    nic: SoftNic,
    context: Arc<Context>,
    domain: Domain,
    ends: Arc<AtomicBool>,
    misplaced: Arc<AtomicU64>,
}

fn create(name: &str, wires: Vec<Box<dyn Wire>>, drive: Drive) -> Result<SoftNic, ProviderError> {
    let ports = wires.into_iter().map(|wire| PortConfig { wire, mtu_bytes: 1500 });
    let (name, personality) = (name.to_owned(), Personality::Ideal);
    SoftNic::create(SoftNicConfig { name, personality, ports: ports.collect(), drive })
}

fn two() -> Drive {
    Drive::Threads { cores: vec![None; 2] }
}

impl Device {
    fn new(name: &str, ports: u8, drive: Drive) -> Self {
        let (ends, misplaced) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let wire = |port| -> Box<dyn Wire> {
            Box::new(Numbered {
                frames: (1..=QUEUES).map(|queue| frame(port, queue, 0)).collect(),
                next: 0,
                ended: false,
                ends: Arc::clone(&ends),
                sent: 0,
                misplaced: Arc::clone(&misplaced),
            })
        };
        let nic = create(name, (1..=ports).map(wire).collect(), drive).unwrap();
        let context = DeviceList::of(&nic).unwrap().find(name).unwrap().open().unwrap();
        let domain = Domain::from(&ProtectionDomain::new(&context).unwrap());
        Self { nic, context, domain, ends, misplaced }
    }
}

fn flow(port: u8, queue: u16) -> FlowAttr {
    let (src_port, mask) = (0, PortMatch { src_port: 0, dst_port: u16::MAX });
    let value = PortMatch { src_port, dst_port: queue };
    FlowAttr::new(FlowKind::Normal, PortNumber(port)).spec(FlowSpec::Udp { value, mask })
}

/// The last number of each port that a queue has received.
#[derive(Default)]
struct Order {
    last: [Option<u64>; 3],
    packets: [u64; 3],
}

impl Order {
    fn check(&mut self, packets: &[Received]) {
        for packet in packets {
            let port = usize::from(packet.bytes[SRC_PORT_AT + 1]);
            let number = number(&packet.bytes);
            let last = self.last[port].replace(number);
            assert!(last < Some(number), "port {port}: {number} after {last:?}");
            self.packets[port] += 1;
        }
    }
}

/// Inserts flows and removes them again, also such that the trees of the table are built anew.
fn churn(device: &Device, queue: &Arc<verbs::WorkQueue>) {
    let target = single(&device.domain, queue);
    let (mut kept, begun) = (Vec::new(), Instant::now());
    for turn in 0..10_000u16 {
        let attr = flow(1 + (turn % 2) as u8, 1000 + turn);
        kept.push(FlowHandle::create(&target, &attr).unwrap());
        if kept.len() == 2_000 {
            kept.clear();
        }
    }
    drop(kept);
    println!("10^4 flows inserted and removed in {:?}", begun.elapsed());
}

/// Makes queues that frames of both ports go to, and destroys them under traffic.
fn come_and_go(device: &Device) -> u64 {
    let mut received = 0;
    for _ in 0..100 {
        let mut brief = Receiver::new(&device.domain, 16);
        let target = single(&device.domain, &brief.queue);
        let flows = [1, 2].map(|port| FlowHandle::create(&target, &flow(port, BRIEF)).unwrap());
        received += brief.drain().len() as u64;
        std::thread::sleep(Duration::from_micros(200));
        drop(flows);
        received += brief.drain().len() as u64;
    }
    received
}

/// Sends numbered frames by a queue pair of each port, in turn.
fn send(device: &Device) -> u64 {
    const FRAMES: u64 = 3_000;
    let mut pairs = [1, 2].map(|port| {
        let cq = CompletionQueue::builder(&device.context, 64).build().unwrap();
        let pair = RawQueuePair::builder(&device.domain, &cq.handle(), &cq.handle()).max_sends(32);
        (port, cq, pair.build().unwrap().to_rts(PortNumber(port)).unwrap())
    });
    let mut pool = pool(&device.domain, 32, FRAME_BYTES);
    for number in 0..FRAMES {
        for (port, cq, pair) in &mut pairs {
            let bytes = frame(*port, QUEUES, number);
            let mut buffer = pool.take().unwrap();
            pool.bytes_mut(&mut buffer)[..bytes.len()].copy_from_slice(&bytes);
            assert!(pair.send(&mut pool, buffer, bytes.len(), SendFlags::empty()).is_ok());
            let begun = Instant::now();
            while pool.free_count() < 8 {
                if let Some(mut open) = cq.poll() {
                    while let Some(completion) = open.next() {
                        let buffer = pool.reclaim(completion).ok().unwrap();
                        pool.release(buffer);
                    }
                }
                assert!(begun.elapsed() < PATIENCE, "port {port} does not send");
            }
        }
    }
    let begun = Instant::now();
    while [1, 2].iter().any(|port| device.nic.port_stats(*port).tx_frames < FRAMES) {
        assert!(begun.elapsed() < PATIENCE, "the last frames are not sent");
        std::thread::sleep(Duration::from_millis(1));
    }
    FRAMES
}

fn order_and_accounting_hold(name: &str, drive: Drive) {
    let device = Device::new(name, 2, drive);
    let mut receivers =
        [1, 2, BOTH].map(|queue| (queue, Receiver::new(&device.domain, BUFFERS), Order::default()));
    let mut flows = Vec::new();
    for (queue, receiver, _) in &receivers {
        let target = single(&device.domain, &receiver.queue);
        for port in [1u8, 2].into_iter().filter(|port| *queue == BOTH || u16::from(*port) == *queue) {
            flows.push(FlowHandle::create(&target, &flow(port, *queue)).unwrap());
        }
    }
    let queue = Arc::clone(&receivers[0].1.queue);
    let (mut brief, mut sent) = (0, 0);
    std::thread::scope(|scope| {
        let work = scope.spawn(|| {
            churn(&device, &queue);
            come_and_go(&device)
        });
        let sends = scope.spawn(|| send(&device));
        let begun = Instant::now();
        while !work.is_finished() || !sends.is_finished() {
            for (_, receiver, order) in &mut receivers {
                order.check(&receiver.drain());
            }
            device.nic.pump(256);
            assert!(begun.elapsed() < PATIENCE);
        }
        (brief, sent) = (work.join().unwrap(), sends.join().unwrap());
    });
    device.ends.store(true, Ordering::Relaxed);
    let begun = Instant::now();
    while !device.nic.wires_finished() {
        device.nic.pump(256);
        assert!(begun.elapsed() < PATIENCE);
    }
    drop(flows);
    device.nic.stop();
    for (_, receiver, order) in &mut receivers {
        order.check(&receiver.drain());
    }
    let stats = [1, 2].map(|port| device.nic.port_stats(port));
    for port in &stats {
        assert_eq!(port.rx_frames, port.dispositions(), "{port:?}");
        assert_eq!(
            (port.copies_lost, port.replicated, port.memory_fault, port.cq_overrun),
            (0, 0, 0, 0),
            "{port:?}"
        );
        assert_eq!(port.tx_frames, sent, "{port:?}");
    }
    let received: u64 = receivers.iter().flat_map(|(_, _, order)| order.packets).sum();
    let lost: u64 = stats.iter().map(|port| port.out_of_buffer + port.queue_not_ready).sum();
    let delivered: u64 = stats.iter().map(|port| port.delivered).sum();
    println!("{name}: {received} received, {brief} by brief queues, {lost} lost, {delivered} delivered");
    // What was in a brief queue when it was destroyed was delivered and not polled.
    assert!((received + brief..=received + brief + 100 * 16).contains(&delivered), "{delivered}");
    let both = &receivers[2].2;
    assert!(both.packets[1] > 100 && both.packets[2] > 100, "{:?}", both.packets);
    assert_eq!((receivers[0].2.packets[2], receivers[1].2.packets[1]), (0, 0), "a queue of the other port");
    assert_eq!(device.misplaced.load(Ordering::Relaxed), 0, "sends that overtook others");
}

#[test]
fn two_threads_keep_order_and_accounting() {
    order_and_accounting_hold("threads2", two());
}

#[test]
fn pollers_that_drive_two_ports_keep_order_and_accounting() {
    order_and_accounting_hold("inline2", Drive::Inline);
}

/// A wire that says when its engine has come, and holds it until the other end of the channel is gone.
struct Stuck {
    entered: std::sync::mpsc::Sender<()>,
    held: std::sync::mpsc::Receiver<()>,
}

impl Wire for Stuck {
    fn receive<'w>(&'w mut self, _: &mut Burst<'w>) {
        let _ = self.entered.send(());
        let _ = self.held.recv();
    }

    fn transmit(&mut self, _: &[u8]) -> Result<(), TransmitError> {
        Ok(())
    }

    fn describe(&self) -> String {
        "stuck".to_owned()
    }
}

#[test]
fn a_wire_stuck_in_receive_holds_up_its_own_thread_only() {
    let (entered, comes) = std::sync::mpsc::channel();
    let (release, held) = std::sync::mpsc::channel();
    let wires: Vec<Box<dyn Wire>> = vec![Box::new(Stuck { entered, held }), Box::new(wire::NullWire)];
    let nic = create("stuck2", wires, two()).unwrap();
    // An engine that has not come before the stop ends at once.
    comes.recv_timeout(PATIENCE).expect("the first engine comes");
    let begun = Instant::now();
    while nic.engine_passes()[1] < 10 {
        assert!(begun.elapsed() < PATIENCE, "{:?}", nic.engine_passes());
        std::thread::sleep(HEARTBEAT);
    }
    assert_eq!(nic.engine_passes()[0], 0);
    assert!(!nic.stop_within(HEARTBEAT), "the first is left running");
    assert!(!nic.engine_died());
    drop(release);
}

#[test]
fn each_thread_sleeps_and_a_send_wakes_that_of_its_port() {
    let wires = (0..2).map(|_| -> Box<dyn Wire> { Box::new(wire::NullWire) });
    let nic = create("wake2", wires.collect(), two()).unwrap();
    let context = DeviceList::of(&nic).unwrap().find("wake2").unwrap().open().unwrap();
    let domain = Domain::from(&ProtectionDomain::new(&context).unwrap());
    let mut pool = pool(&domain, 16, FRAME_BYTES);
    for port in [1u8, 2] {
        let mut cq = CompletionQueue::builder(&context, 64).build().unwrap();
        let pair = RawQueuePair::builder(&domain, &cq.handle(), &cq.handle()).max_sends(16);
        let mut pair = pair.build().unwrap().to_rts(PortNumber(port)).unwrap();
        std::thread::sleep(6 * HEARTBEAT);
        let bytes = frame(port, 1, 0);
        test_support::assert_wakes(&format!("wake2/{port}"), HEARTBEAT, || {
            let mut buffer = pool.take().unwrap();
            pool.bytes_mut(&mut buffer)[..bytes.len()].copy_from_slice(&bytes);
            let begun = Instant::now();
            assert!(pair.send(&mut pool, buffer, bytes.len(), SendFlags::empty()).is_ok());
            let buffer = loop {
                if let Some(mut open) = cq.poll()
                    && let Some(completion) = open.next()
                {
                    break pool.reclaim(completion).ok().unwrap();
                }
                assert!(begun.elapsed() < PATIENCE, "the engine sleeps on");
                std::thread::yield_now();
            };
            pool.release(buffer);
        });
    }
    std::thread::sleep(6 * HEARTBEAT);
    let window = Duration::from_secs(1);
    for thread in ["wake2/1", "wake2/2"] {
        println!("{thread}: {:.3} % of a core", test_support::thread_cpu_percent(thread, window));
    }
    let before = nic.engine_passes();
    std::thread::sleep(window);
    let passes = before.iter().zip(nic.engine_passes()).map(|(before, now)| now - before);
    let fitting = window.as_millis() / HEARTBEAT.as_millis();
    for passes in passes {
        assert!((1..=2 * fitting as u64).contains(&passes), "{passes} passes of an idle thread in a second");
    }
}

/// A device with a generator at each of two ports, and flows that drop their frames.
struct Dropping {
    flows: Vec<FlowHandle>,
    target: FlowTarget,
    _receiver: Receiver,
    nic: SoftNic,
    threads: Vec<String>,
}

impl Dropping {
    /// With this many flows of each port.
    fn new(threads: usize, flows: u16) -> Self {
        let config: GeneratorConfig = serde_json::from_value(serde_json::json!({
            "rate": "flat-out",
            "flows": [{ "src": "10.0.0.0/16", "dst_ports": "1-1000", "count": 100_000 }]
        }))
        .unwrap();
        let wire = || -> Box<dyn Wire> { Box::new(GeneratorWire::open(&config).unwrap()) };
        let name = format!("rate{threads}");
        let drive = Drive::Threads { cores: (0..threads).map(Some).collect() };
        let nic = create(&name, vec![wire(), wire()], drive).unwrap();
        let context = DeviceList::of(&nic).unwrap().find(&name).unwrap().open().unwrap();
        let domain = Domain::from(&ProtectionDomain::new(&context).unwrap());
        let receiver = Receiver::new(&domain, 16);
        let target = single(&domain, &receiver.queue);
        let attrs =
            [1, 2].into_iter().flat_map(|port| (0..flows).map(move |number| Self::attr(port, number)));
        let flows = attrs.map(|attr| FlowHandle::create(&target, &attr).unwrap()).collect();
        while nic.engine_passes().contains(&0) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let threads =
            (1..=threads).map(|n| if threads == 1 { name.clone() } else { format!("{name}/{n}") }).collect();
        Self { flows, target, _receiver: receiver, nic, threads }
    }

    /// One of 65,536 flows.
    fn attr(port: u8, number: u16) -> FlowAttr {
        let [high, low] = number.to_be_bytes();
        let src =
            |octets: [u8; 4]| Ipv4ExtMatch { src: u32::from_be_bytes(octets), ..Ipv4ExtMatch::default() };
        let dst_port = |dst_port| PortMatch { src_port: 0, dst_port };
        FlowAttr::new(FlowKind::Normal, PortNumber(port))
            .priority(1 + u16::from(high) % 2)
            .spec(FlowSpec::Ipv4Ext { value: src([10, 0, low, 0]), mask: src([255, 255, 255, 0]) })
            .spec(FlowSpec::Udp { value: dst_port(64 * u16::from(high)), mask: dst_port(0xffc0) })
            .action(ActionSpec::Drop)
    }

    /// Frames per second, and frames per second of processor time.
    fn rate(&self, time: Duration) -> (f64, f64) {
        self.rate_while(|| std::thread::sleep(time))
    }

    fn rate_while(&self, meanwhile: impl FnOnce()) -> (f64, f64) {
        let now = || {
            let frames: u64 = [1, 2].iter().map(|port| self.nic.port_stats(*port).rx_frames).sum();
            let processor: Duration =
                self.threads.iter().map(|name| test_support::thread_cpu_time(name)).sum();
            (frames as f64, processor.as_secs_f64(), Instant::now())
        };
        let before = now();
        meanwhile();
        let after = now();
        let frames = after.0 - before.0;
        (frames / (after.2 - before.2).as_secs_f64(), frames / (after.1 - before.1))
    }
}

fn rate(threads: usize, flows: u16, time: Duration) -> (f64, f64) {
    Dropping::new(threads, flows).rate(time)
}

/// How often flows can be created and destroyed while an engine on the other core looks frames up, and what
/// that costs it.
#[test]
#[ignore = "timing: for an idle machine"]
fn print_the_rate_of_flow_changes() {
    const FLOWS: u16 = 4000;
    const TIME: Duration = Duration::from_secs(2);
    let mut device = Dropping::new(1, FLOWS);
    let alone = device.rate(TIME).0;
    let mut other_core = CpuSet::new();
    other_core.set(1);
    sched_setaffinity(None, &other_core).unwrap();
    let mut flows = VecDeque::from(std::mem::take(&mut device.flows));
    let mut changes = 0u32;
    let beside = device.rate_while(|| {
        let begun = Instant::now();
        while begun.elapsed() < TIME {
            // The oldest comes again.
            drop(flows.pop_front());
            let number = (changes / 2 % u32::from(2 * FLOWS)) as u16;
            let attr = Dropping::attr(1 + u8::from(number >= FLOWS), number % FLOWS);
            flows.push_back(FlowHandle::create(&device.target, &attr).unwrap());
            changes += 2;
        }
    });
    let (changes, beside) = (f64::from(changes) / TIME.as_secs_f64(), beside.0);
    println!(
        "{} flows: {changes:.0} changes per second; the engine {:.2} Mpps, {:.2} of its rate without changes",
        2 * FLOWS,
        beside / 1e6,
        beside / alone
    );
}

/// Prints the gain by a second engine thread, with a port each, on a machine with two cores.
#[test]
#[ignore = "timing: for an idle machine"]
fn print_the_rates_of_one_and_two_threads() {
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    for rules in [0, 4000] {
        let rounds: Vec<_> =
            (0..9).map(|_| [1, 2].map(|threads| rate(threads, rules, Duration::from_millis(400)))).collect();
        let [one, two] = [0, 1].map(|at| {
            let of =
                |part: fn(&(f64, f64)) -> f64| median(rounds.iter().map(|round| part(&round[at])).collect());
            (of(|rate| rate.0) / 1e6, of(|rate| rate.1) / 1e6)
        });
        let ratio = median(rounds.iter().map(|[one, two]| two.0 / one.0).collect());
        println!(
            "{rules} rules: one thread {:.2} Mpps ({:.2} M frames per second of processor time), two {:.2} ({:.2}), \
             median ratio {ratio:.2}",
            one.0, one.1, two.0, two.1
        );
    }
}

#[test]
fn threads_without_ports_are_refused() {
    for threads in [0, 2, 9] {
        let drive = Drive::Threads { cores: vec![None; threads] };
        let error = create("none", vec![Box::new(wire::NullWire)], drive).err().unwrap();
        let is_count = matches!(error, ProviderError::Nic(SoftNicError::ThreadCount { ports: 1, .. }));
        assert!(is_count, "{error}");
    }
}

/// Panics as soon as it is asked.
struct Faulty;

impl Wire for Faulty {
    fn receive<'w>(&'w mut self, burst: &mut Burst<'w>) {
        panic!("a faulty wire, {} frames left", burst.capacity_left());
    }
    fn transmit(&mut self, _: &[u8]) -> Result<(), TransmitError> {
        Ok(())
    }
    fn sleep_hint(&mut self) -> SleepHint {
        SleepHint::NEVER
    }
    fn describe(&self) -> String {
        "faulty".into()
    }
}

/// The engine runs the wire's code, so what is wrong with a wire can end it.
#[test]
fn the_death_of_the_engine_is_seen() {
    let open = Arc::new(AtomicBool::new(false));
    let wire = Box::new(GatedWire::new(Box::new(Faulty), &open));
    let nic = SoftNic::create(SoftNicConfig {
        name: "faulty".into(),
        personality: Personality::Ideal,
        ports: vec![PortConfig { wire, mtu_bytes: 1500 }],
        drive: Drive::Thread { core: None },
    })
    .expect("a soft NIC");
    assert!(!nic.engine_died());
    open.store(true, Ordering::Relaxed);
    let deadline = Instant::now() + Duration::from_secs(10);
    while !nic.engine_died() {
        assert!(Instant::now() < deadline, "engine_died() stayed false");
        std::thread::sleep(Duration::from_millis(1));
    }
    nic.stop();
    assert!(!nic.engine_died(), "an engine that was stopped has not died");
}

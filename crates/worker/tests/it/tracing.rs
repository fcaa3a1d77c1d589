//! Traces of decided packets: which are shown, with what, and that they hold nobody up.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Rig, compile};
use packet::build::FrameBuilder;
use program::{Predicate, Program, SinkId, Verdict, WorkerId};
use worker::sinks::Opened;
use worker::sinks::trace::{self, KnownProgram, TraceOptions, TracedPacket, Tracer};
use worker::{SharedStage, SinkDrop, SinkMap, Slot};

/// Exact and hybrid classes, a sample, an exception that a worker finds, and a sink without an endpoint.
const POLICY: &str = r#"
version = 1
default = "kernel"
allow_lost_exceptions = true
[sinks.counted]
kind = "count"
[groups.main]
workers = "all"
[[rules]]
name = "syn"
match = { protocol = "tcp", tcp_flags = "syn" }
action = "drop"
[[rules]]
name = "fin"
match = { protocol = "tcp", tcp_flags = "fin" }
action = "kernel"
[[rules]]
name = "tcp"
match = { protocol = "tcp" }
action = "steer main"
[[rules]]
name = "some"
match = { protocol = "udp", dst_port = 9 }
action = "steer main"
sample = 2
[[rules]]
name = "udp"
match = { protocol = "udp" }
action = "steer main"
sinks = ["counted"]
"#;

/// More than the head of a frame, and less than the longest frame here.
const KEPT_BYTES: u32 = 200;

/// Passes on what it gets until it has enough, and waits before each packet until the test lets it go on.
struct Collector {
    packets: Sender<TracedPacket>,
    hold: Arc<Mutex<()>>,
    wanted: usize,
    left_out: Arc<AtomicU64>,
}

impl Tracer for Collector {
    fn show(&mut self, packet: &TracedPacket, frame: &[u8], programs: &[KnownProgram]) -> bool {
        let kept = KEPT_BYTES.min(packet.head.frame_bytes) as usize;
        let head = packet.head.bytes();
        assert_eq!((frame.len(), &frame[..head.len().min(kept)]), (kept, &head[..head.len().min(kept)]));
        let [known] = programs else { panic!("there is one program: {programs:?}") };
        assert!(known.map.generation() == packet.generation && known.can_have(packet.decided_at));
        let _released = self.hold.lock();
        self.wanted = self.wanted.saturating_sub(1);
        self.packets.send(*packet).is_ok() && self.wanted > 0
    }

    fn left_out(&mut self, packets: u64) {
        self.left_out.fetch_add(packets, Ordering::Relaxed);
    }
}

struct Scene {
    rig: Rig,
    program: Arc<Program>,
    map: Arc<SinkMap>,
    opened: Opened,
    packets: Receiver<TracedPacket>,
    hold: Arc<Mutex<()>>,
    left_out: Arc<AtomicU64>,
}

const TRACE: usize = 7;
const COUNTED: usize = 3;

fn slot(index: usize) -> Slot {
    Slot::of(index).expect("a place")
}

impl Scene {
    /// Two workers whose packets are traced.
    fn new(options: &TraceOptions) -> Self {
        Self::wanting(options, usize::MAX)
    }

    /// With a tracer that has enough after so many packets.
    fn wanting(options: &TraceOptions, wanted: usize) -> Self {
        let mut rig = Rig::unwitnessed(1, 2);
        let program = compile(POLICY, 2);
        let map = Arc::new(SinkMap::new(1, &program, &[slot(COUNTED)]));
        let workers = std::rc::Rc::clone(&rig.workers);
        let install = rig.controller.install(Arc::clone(&program), &mut |stage| {
            for worker in workers.borrow_mut().iter_mut() {
                let publication = worker.control().publish_shared(&SharedStage::new(stage, &map));
                while !worker.control().acknowledged(publication) {
                    worker.step();
                }
            }
            Ok(())
        });
        install.expect("the soft NIC takes it");
        let ((sender, packets), hold) = (channel(), Arc::<Mutex<()>>::default());
        let left_out = Arc::<AtomicU64>::default();
        let (of_collector, hold_of_collector) = (Arc::clone(&left_out), Arc::clone(&hold));
        let collector =
            Box::new(Collector { packets: sender, hold: hold_of_collector, wanted, left_out: of_collector });
        let mut opened = trace::open(collector, options, rig.device.context(), 2).expect("a thread");
        opened.hub.announce(&map, &program);
        for (worker, endpoint) in rig.workers.borrow().iter().zip(opened.endpoints.drain(..)) {
            worker.control().place_sink(slot(TRACE), Some(endpoint));
        }
        map.attach_to_all(slot(TRACE));
        Self { rig, program, map, opened, packets, hold, left_out }
    }

    fn send(&self, frames: impl IntoIterator<Item = Vec<u8>>) {
        self.rig.send(1, frames);
        self.rig.settle();
    }

    /// Ends the trace; returns the packets that it showed.
    fn end(self) -> Vec<TracedPacket> {
        self.map.detach_from_all(slot(TRACE));
        drop(self.opened);
        self.packets.try_iter().collect()
    }
}

fn ip(host: u8) -> FrameBuilder {
    FrameBuilder::new().ipv4(Ipv4Addr::new(10, 0, 0, host), Ipv4Addr::new(192, 0, 2, 1))
}

fn tcp(host: u8, flags: u8) -> Vec<u8> {
    ip(host).tcp(1000, 80, flags).payload(&[7; 300]).build()
}

fn udp(host: u8, port: u16) -> Vec<u8> {
    ip(host).udp(1000, port).build()
}

const ALL: TraceOptions =
    TraceOptions { matches: None, one_in: 1, only_dropped: false, frame_bytes: KEPT_BYTES };
const FIN: u8 = 1;
const SYN: u8 = 2;
const ACK: u8 = 16;

#[test]
fn each_decided_packet_is_shown_as_explain_has_it() {
    let scene = Scene::new(&ALL);
    let frames: Vec<Vec<u8>> =
        (1..=20).flat_map(|host| [tcp(host, SYN), tcp(host, FIN), tcp(host, ACK), udp(host, 53)]).collect();
    scene.send(frames.clone());
    let (program, map) = (Arc::clone(&scene.program), Arc::clone(&scene.map));
    let mut packets = scene.end();
    assert_eq!(packets.len(), frames.len());
    for frame in &frames {
        let key = packet::DeepKey::of(frame);
        let place = packets.iter().position(|packet| packet.key == key).expect("it is shown");
        let shown = packets.remove(place);
        let explained = program.explain_deep(&key);
        assert_eq!((Some(shown.worker), shown.outcome), (explained.worker, explained.outcome), "{shown:?}");
        assert_eq!(Some(shown.tag.0), explained.class.and_then(program::ClassId::tag), "{shown:?}");
        assert_eq!((shown.head, shown.generation), (packet::FrameHead::of(frame), 1));
        assert!(shown.slots.contains(slot(TRACE)));
        let is_udp = program.rules[shown.outcome.rule.index()].name == "udp";
        let sinks: Vec<SinkId> = map.sinks_in(shown.slots).collect();
        assert_eq!(sinks, if is_udp { vec![SinkId::of(0)] } else { vec![] }, "{shown:?}");
        assert_eq!(shown.received_ns, None, "no timestamps were asked for");
    }
}

#[test]
fn packets_are_chosen_by_match_sample_and_outcome() {
    let to_port_53 = policy::parse_match("match", "dst_port = 53").expect("a match");
    let traced = |options: &TraceOptions| {
        let scene = Scene::new(options);
        scene.send((1..=10).flat_map(|host| [tcp(host, SYN), udp(host, 9), udp(host, 53)]));
        let program = Arc::clone(&scene.program);
        let name = |packet: &TracedPacket| program.rules[packet.outcome.rule.index()].name.clone();
        scene.end().iter().map(|packet| (name(packet), packet.outcome.verdict)).collect::<Vec<_>>()
    };
    let matching = traced(&TraceOptions { matches: Some(Predicate::of(&to_port_53)), ..ALL });
    assert_eq!(matching.len(), 10);
    assert!(matching.iter().all(|(rule, _)| rule == "udp"), "{matching:?}");
    let sampled = traced(&TraceOptions { one_in: 5, ..ALL });
    assert!((6..=8).contains(&sampled.len()), "one in five of 30, on two workers: {sampled:?}");
    let dropped = traced(&TraceOptions { only_dropped: true, ..ALL });
    assert!(dropped.iter().all(|(_, verdict)| *verdict == Verdict::Drop), "{dropped:?}");
    let of = |name: &str| dropped.iter().filter(|(rule, _)| rule == name).count();
    // Each of two workers lets the first of two packets through.
    assert_eq!((of("syn"), of("some")), (10, 10 - sampled_through()), "{dropped:?}");
}

/// How many of the packets to port 9 are let through: each worker takes the first and every second of its
/// own.
fn sampled_through() -> usize {
    let program = compile(POLICY, 2);
    let worker = |host| program.explain_deep(&packet::DeepKey::of(&udp(host, 9))).worker;
    let of = |id| (1..=10).filter(|host| worker(*host) == Some(WorkerId(id))).count();
    of(0).div_ceil(2) + of(1).div_ceil(2)
}

#[test]
fn a_slow_tracer_loses_packets_and_delays_nobody() {
    const SENT: u64 = 2_000;
    let scene = Scene::new(&ALL);
    {
        let _held = scene.hold.lock().expect("not poisoned");
        scene.send((0..SENT).map(|number| udp(number as u8, 53)));
        assert_eq!(scene.rig.ruled("udp", worker::Disposition::Delivered), SENT, "workers do not wait");
    }
    let (counters, left_out) = (scene.opened.counters.clone(), Arc::clone(&scene.left_out));
    let shown = scene.end().len() as u64;
    let dropped = |counters: &Arc<worker::SinkCounters>| {
        let traffic = counters.read();
        let full = traffic.dropped.iter().find(|(reason, _)| *reason == SinkDrop::RingFull);
        (traffic.offered.packets, full.map_or(0, |(_, packets)| *packets), traffic.in_flight())
    };
    let all: Vec<(u64, u64, i128)> = counters.iter().map(dropped).collect();
    assert_eq!(all.iter().map(|(offered, ..)| offered).sum::<u64>(), SENT);
    assert_eq!(all.iter().map(|(_, full, _)| full).sum::<u64>(), SENT - shown, "{all:?}");
    assert_eq!(left_out.load(Ordering::Relaxed), SENT - shown, "the tracer knows it");
    assert!(shown >= 256 && all.iter().all(|(.., in_flight)| *in_flight == 0), "{shown} {all:?}");
}

#[test]
fn a_tracer_that_has_enough_gets_no_more() {
    let scene = Scene::wanting(&ALL, 3);
    scene.send((0..10).map(|host| udp(host, 53)));
    for _ in 0..3 {
        scene.packets.recv_timeout(Duration::from_secs(20)).expect("it is shown");
    }
    assert!(scene.packets.recv_timeout(Duration::from_secs(20)).is_err(), "its thread has ended");
    let offered =
        || scene.opened.counters.iter().map(|counters| counters.read().offered.packets).sum::<u64>();
    let before = offered();
    scene.send([udp(1, 53)]);
    assert_eq!((offered(), scene.rig.ruled("udp", worker::Disposition::Delivered)), (before, 11));
}

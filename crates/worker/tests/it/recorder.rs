//! The flight recorder: exactly the last packets of the chosen rules are kept, in order, with their outcomes.

use std::net::Ipv4Addr;
use std::sync::Arc;

use crate::support::{Rig, compile};
use packet::build::FrameBuilder;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use program::{Predicate, RecorderRing};
use worker::sinks::recorder::{self, RecordFilter, RecorderError};
use worker::sinks::{Opened, RecorderReader};
use worker::{SharedStage, SinkMap, Slot};

/// Packets that a worker delivers, drops, and leaves to the kernel.
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
sinks = "counted"
[[rules]]
name = "udp"
match = { protocol = "udp" }
action = "steer main"
"#;

const SNAP_BYTES: u32 = 64;
const RING: RecorderRing = RecorderRing { memory_bytes: 1 << 20, snap_bytes: SNAP_BYTES };

/// A packet of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kept {
    rule: String,
    outcome: String,
    bytes: Vec<u8>,
    original_bytes: u32,
    time_ns: u64,
}

/// The packets of a record as its pcapng has them.
fn read(recorder: &RecorderReader, filter: &RecordFilter) -> Vec<Kept> {
    let mut section = Vec::new();
    recorder.copy(filter).expect("memory").write("test", &mut section).expect("written");
    let mut reader = PcapNgReader::new(&section[..]).expect("a section header");
    let (mut rules, mut packets) = (Vec::new(), Vec::new());
    while let Some(block) = reader.next_block() {
        match block.expect("a block") {
            Block::InterfaceDescription(interface) => {
                let name = interface.options.iter().find_map(|option| match option {
                    InterfaceDescriptionOption::IfName(name) => Some(name.to_string()),
                    _ => None,
                });
                rules.push(name.expect("a name"));
            }
            Block::EnhancedPacket(packet) => {
                let comment = packet.options.iter().find_map(|option| match option {
                    EnhancedPacketOption::Comment(comment) => Some(comment.to_string()),
                    _ => None,
                });
                packets.push(Kept {
                    rule: rules[packet.interface_id as usize].clone(),
                    outcome: comment.expect("a comment"),
                    bytes: packet.data.to_vec(),
                    original_bytes: packet.original_len,
                    time_ns: packet.timestamp.as_nanos() as u64,
                });
            }
            _ => {}
        }
    }
    packets
}

struct Scene {
    rig: Rig,
    opened: Opened,
}

impl Scene {
    /// Workers whose packets are recorded as the lines of `[recorder]` choose.
    fn new(workers: usize, lines: &str) -> Self {
        let mut rig = Rig::unwitnessed(1, workers);
        let program = compile(&format!("{POLICY}[recorder]\nmemory = \"1 MiB\"\n{lines}"), workers);
        let slots = [0, 5].map(|index| Slot::of(index).expect("a place"));
        let map = Arc::new(SinkMap::new(1, &program, &slots[..1]));
        let arenas: Vec<_> = rig.workers.borrow().iter().map(|worker| worker.config().arena(0)).collect();
        let mut opened = recorder::open(RING, &arenas, rig.device.context()).expect("memory");
        opened.hub.announce(&map, &program);
        for (worker, endpoint) in rig.workers.borrow().iter().zip(opened.endpoints.drain(..)) {
            worker.control().place_sink(slots[1], Some(endpoint));
        }
        map.attach_recorder(slots[1]);
        let control = std::rc::Rc::clone(&rig.workers);
        let install = rig.controller.install(program, &mut |stage| {
            for worker in control.borrow_mut().iter_mut() {
                let publication = worker.control().publish_shared(&SharedStage::new(stage, &map));
                while !worker.control().acknowledged(publication) {
                    worker.step();
                }
            }
            Ok(())
        });
        install.expect("the soft NIC takes it");
        Self { rig, opened }
    }

    fn send(&self, frames: impl IntoIterator<Item = Vec<u8>>) {
        self.rig.send(1, frames);
        self.rig.settle();
    }

    fn recorder(&self) -> RecorderReader {
        self.opened.hub.recorder().expect("it is one")
    }
}

fn ip(number: u16) -> FrameBuilder {
    let [high, low] = number.to_be_bytes();
    FrameBuilder::new().ipv4(Ipv4Addr::new(10, 0, high, low), Ipv4Addr::new(192, 0, 2, 1))
}

fn tcp(number: u16, flags: u8) -> Vec<u8> {
    ip(number).tcp(1000, 80, flags).payload(&[7; 300]).build()
}

fn udp(number: u16) -> Vec<u8> {
    ip(number).udp(1000, 53).build()
}

const FIN: u8 = 1;
const SYN: u8 = 2;
const ACK: u8 = 16;

fn kept(frame: &[u8]) -> Vec<u8> {
    frame[..frame.len().min(SNAP_BYTES as usize)].to_vec()
}

#[test]
fn every_outcome_is_kept_in_order() {
    let scene = Scene::new(1, "");
    let frames: Vec<Vec<u8>> =
        (0..50).flat_map(|n| [tcp(n, SYN), tcp(n, FIN), tcp(n, ACK), udp(n)]).collect();
    scene.send(frames.clone());
    let record = read(&scene.recorder(), &RecordFilter::default());
    assert_eq!(record.len(), frames.len());
    let outcomes = [
        ("syn", "dropped by a worker, worker 0"),
        ("fin", "left to the kernel, lost, worker 0"),
        ("tcp", "delivered to main, sinks counted, worker 0"),
        ("udp", "delivered to main, no sink, worker 0"),
    ];
    for (index, (packet, frame)) in record.iter().zip(&frames).enumerate() {
        assert_eq!((packet.rule.as_str(), packet.outcome.as_str()), outcomes[index % 4], "{index}");
        assert_eq!((packet.original_bytes as usize, &packet.bytes), (frame.len(), &kept(frame)), "{index}");
    }
    assert!(record.is_sorted_by_key(|packet| packet.time_ns));
    let status = scene.opened.hub.status();
    assert_eq!((status.number("packets"), status.number("snap_bytes")), (Some(200), Some(64)));
    let middle = record[100].time_ns;
    let later = read(&scene.recorder(), &RecordFilter { since_ns: middle, matches: None });
    assert_eq!(later, record.iter().filter(|packet| packet.time_ns >= middle).cloned().collect::<Vec<_>>());
    let future = RecordFilter { since_ns: u64::MAX, matches: None };
    assert!(read(&scene.recorder(), &future).is_empty());
}

#[test]
fn only_the_listed_rules_are_kept() {
    let scene = Scene::new(2, "rules = [\"syn\", \"udp\"]\n");
    scene.send((0..50).flat_map(|n| [tcp(n, SYN), tcp(n, FIN), tcp(n, ACK), udp(n)]));
    let record = read(&scene.recorder(), &RecordFilter::default());
    let of = |rule: &str| record.iter().filter(|packet| packet.rule == rule).count();
    assert_eq!((of("syn"), of("udp"), record.len()), (50, 50, 100));
    // By what is kept of a packet, whose length is the real one.
    let matches = policy::parse_match("match", "protocol = \"tcp\", src = \"10.0.0.7\"").expect("a match");
    let filter = RecordFilter { since_ns: 0, matches: Some(Predicate::of(&matches)) };
    let found = read(&scene.recorder(), &filter);
    assert_eq!(found.iter().map(|packet| &packet.bytes).collect::<Vec<_>>(), [&kept(&tcp(7, SYN))]);
}

#[test]
fn the_oldest_packets_are_overwritten() {
    let scene = Scene::new(1, "");
    let slots = scene.opened.hub.status().number("packets_max").expect("a number") as usize;
    let sent = slots + 777;
    for first in (0..sent).step_by(500) {
        scene.send((first..sent.min(first + 500)).map(|number| udp(number as u16)));
    }
    let record = read(&scene.recorder(), &RecordFilter::default());
    assert_eq!(record.len(), slots);
    let expected: Vec<Vec<u8>> = (777..sent).map(|number| kept(&udp(number as u16))).collect();
    assert!(record.iter().map(|packet| &packet.bytes).eq(&expected), "the last of them");
    assert!(scene.opened.hub.status().number("reaches_back_ms").is_some());
}

#[test]
fn recording_allocates_nothing_on_the_worker() {
    let scene = Scene::new(1, "");
    scene.send((0..100).map(udp));
    scene.rig.send(1, (0..500).flat_map(|n| [tcp(n, SYN), udp(n)]));
    while scene.rig.nic.pump(64) > 0 {}
    let worker = &mut scene.rig.workers.borrow_mut()[0];
    let counted = allocation_counter::measure(|| while worker.step() > 0 {});
    assert_eq!(counted.count_total, 0);
    assert_eq!(scene.recorder().copy(&RecordFilter::default()).expect("memory").packets(), 1100);
}

#[test]
fn memory_that_cannot_be_had_is_refused() {
    let rig = Rig::unwitnessed(1, 1);
    let arenas = [rig.workers.borrow()[0].config().arena(0)];
    let open = |memory_bytes, snap_bytes| {
        let ring = RecorderRing { memory_bytes, snap_bytes };
        let opened = recorder::open(ring, &arenas, rig.device.context());
        opened.map(|_| ()).expect_err("refused")
    };
    let huge = open(1 << 40, 128);
    assert!(matches!(huge, RecorderError::Memory(_)), "{huge}");
    let small = open(1 << 20, 1 << 17).to_string();
    assert!(small.contains("too little for 1 workers") && small.contains("\"9 MiB\""), "{small}");
}

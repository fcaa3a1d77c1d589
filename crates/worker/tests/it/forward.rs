//! The sink `forward` on a soft NIC of two ports: what leaves by which port, and where each packet is
//! counted.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::{self, Feed, Rig, ScriptWire, compile};
use packet::build::FrameBuilder;
use packet::{EtherType, MacAddr, parse};
use program::{ForwardMode, ForwardSink, Program, SinkKind, SinkSpec, VlanChange};
use softnic::Drive;
use softnic_verbs::SoftNic;
use verbs::DeviceList;
use wire::{Burst, TransmitError, Wire, WireState};
use worker::sinks::{self, Environment, Failure, Hub, Opened, OtherDevice, Others, Ports, SinkError};
use worker::{SharedStage, SinkCounters, SinkDrop, SinkMap, SinkTraffic, Slot, WorkerConfig};

const POLICY: &str = r#"
version = 1
default = "kernel"
[sinks.out]
kind = "forward"
port = 2
[sinks.all]
kind = "count"
[groups.main]
workers = "all"
sinks = ["out", "all"]
[[rules]]
name = "udp"
match = { protocol = "udp" }
action = "steer main"
"#;

struct Scene {
    rig: Rig,
    hub: Option<Box<dyn Hub>>,
    counters: Vec<Arc<SinkCounters>>,
    other: Other,
}

/// A second soft NIC of one port, on which nobody receives.
struct Other {
    nic: SoftNic,
    sent: Feed,
    is_down: Arc<AtomicBool>,
}

/// A wire that can be cut.
struct Cable {
    wire: Box<dyn Wire>,
    is_down: Arc<AtomicBool>,
}

impl Wire for Cable {
    fn receive<'w>(&'w mut self, burst: &mut Burst<'w>) {
        self.wire.receive(burst);
    }

    fn transmit(&mut self, frame: &[u8]) -> Result<(), TransmitError> {
        self.wire.transmit(frame)
    }

    fn state(&self) -> WireState {
        if self.is_down.load(Ordering::Relaxed) { WireState::Down } else { WireState::Live }
    }

    fn describe(&self) -> String {
        "cable".to_owned()
    }
}

impl Other {
    fn new() -> Self {
        let (sent, is_down) = (Feed::default(), Arc::<AtomicBool>::default());
        let cable =
            Cable { wire: ScriptWire::between(&Feed::default(), &sent), is_down: Arc::clone(&is_down) };
        Self { nic: support::nic("rig1", Drive::Manual, vec![Box::new(cable)]), sent, is_down }
    }

    /// `ens1`: its interface.
    fn open(&self, name: &str) -> Result<OtherDevice, Failure> {
        let list = DeviceList::of(&self.nic)?;
        let (name, port) = if name == "ens1" { ("rig1", Some(1)) } else { (name, None) };
        Ok(OtherDevice { context: list.find(name).ok_or("no such device")?.open()?, port })
    }
}

fn slot(index: usize) -> Slot {
    Slot::of(index).expect("few")
}

/// The sink of these options.
fn opened(rig: &Rig, other: &Other, options: ForwardSink) -> Result<Opened, SinkError> {
    let sink = SinkSpec { name: "out".to_owned(), kind: SinkKind::Forward(options) };
    let workers = rig.workers.borrow();
    let domains: Vec<_> = workers.iter().map(worker::Worker::domain).collect();
    let budgets: Vec<_> = workers.iter().map(worker::Worker::frame_budget).collect();
    let frames: Vec<_> = workers.iter().map(worker::Worker::frames).collect();
    let open = |name: &str| other.open(name);
    let environment = Environment {
        context: rig.device.context(),
        domains: &domains,
        budgets: &budgets,
        ports: &[1, 2],
        stations: &[],
        others: Some(Others { frames: &frames, open: &open }),
    };
    sinks::open(&sink, &environment)
}

impl Scene {
    /// One worker whose packets leave as by `options`.
    fn new(options: ForwardSink) -> Self {
        Self::with(options, support::small)
    }

    fn with(options: ForwardSink, config: fn(usize) -> WorkerConfig) -> Self {
        let rig = Rig::built_with(2, 1, true, config);
        let other = Other::new();
        let opened = opened(&rig, &other, options).expect("it opens");
        for endpoint in opened.endpoints {
            rig.workers.borrow_mut()[0].control().place_sink(slot(0), Some(endpoint));
        }
        let mut scene = Self { rig, hub: Some(opened.hub), counters: opened.counters, other };
        let program: Arc<Program> = compile(POLICY, 1);
        let map = Arc::new(SinkMap::new(1, &program, &[slot(0), slot(1)]));
        let workers = std::rc::Rc::clone(&scene.rig.workers);
        let install = scene.rig.controller.install(program, &mut |stage| {
            let worker = &mut workers.borrow_mut()[0];
            let publication = worker.control().publish_shared(&SharedStage::new(stage, &map));
            while !worker.control().acknowledged(publication) {
                worker.step();
            }
            Ok(())
        });
        install.expect("the soft NIC takes it");
        scene
    }

    fn to_port_2() -> Self {
        Self::new(ForwardSink { port: Some(2), ..ForwardSink::default() })
    }

    fn to_other_device(config: fn(usize) -> WorkerConfig) -> Self {
        Self::with(by_other(1), config)
    }

    /// Runs both devices until nothing moves; returns what the other one has sent.
    fn sent_by_other(&self) -> Vec<Vec<u8>> {
        self.rig.settle();
        while self.other.nic.pump(64) > 0 {
            self.rig.settle();
        }
        self.rig.settle();
        self.other.sent.lock().expect("sent").drain(..).collect()
    }

    fn traffic(&self) -> SinkTraffic {
        self.counters[0].read()
    }

    fn dropped(&self, reason: SinkDrop) -> u64 {
        self.traffic().dropped[reason as usize].1
    }

    fn sent(&self, port: usize) -> Vec<Vec<u8>> {
        self.rig.sent[port - 1].lock().expect("sent").drain(..).collect()
    }

    fn hub(&self) -> &dyn Hub {
        self.hub.as_deref().expect("it is open")
    }

    /// Moves packets from the port to the worker and not back.
    fn receive_only(&self, frames: Vec<Vec<u8>>) {
        self.rig.send(1, frames);
        self.rig.nic.pump(64);
        self.rig.workers.borrow_mut()[0].step();
    }

    /// Every offered packet is in one place, and those delivered were sent by the ports.
    fn balance(&mut self) {
        let traffic = self.traffic();
        assert_eq!(traffic.in_flight(), 0, "{traffic:?}");
        let ports = [self.rig.port(1), self.rig.port(2), self.other.nic.port_stats(1)];
        assert_eq!(traffic.delivered.packets, ports.iter().map(|port| port.tx_frames).sum::<u64>());
        assert_eq!(traffic.delivered.bytes, ports.iter().map(|port| port.tx_bytes).sum::<u64>());
        self.rig.balance();
    }
}

fn by_other(port: u8) -> ForwardSink {
    ForwardSink { device: Some("rig1".to_owned()), port: Some(port), ..ForwardSink::default() }
}

fn udp(number: u16) -> Vec<u8> {
    let macs = [MacAddr([2, 0, 0, 0, 0, 2]), MacAddr([2, 0, 0, 0, 0, 1])];
    let ip = FrameBuilder::new().ethernet(macs[0], macs[1]);
    ip.ipv4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)).udp(number, 7).build()
}

#[test]
fn packets_leave_by_the_other_port_and_other_sinks_see_them_unchanged() {
    let options = ForwardSink {
        port: Some(2),
        swap_macs: true,
        vlan: Some(VlanChange::Push(100)),
        ..ForwardSink::default()
    };
    let mut scene = Scene::new(options);
    let packets: Vec<_> = (0..200).map(udp).collect();
    scene.rig.send(1, packets.clone());
    scene.rig.settle();
    assert!(scene.rig.seen().iter().map(|seen| &seen.bytes).eq(&packets), "before they are changed");
    let sent = scene.sent(2);
    assert_eq!(sent.len(), 200);
    for (sent, packet) in sent.iter().zip(&packets) {
        assert_eq!(sent[..6], packet[6..12]);
        assert_eq!(sent[6..12], packet[..6]);
        assert_eq!(sent[12..16], [0x81, 0, 0, 100]);
        assert_eq!(sent[16..], packet[12..]);
    }
    assert!(scene.sent(1).is_empty());
    assert_eq!(scene.traffic().delivered.packets, 200);
    scene.balance();
}

#[test]
fn a_reflector_answers_on_the_port_that_packets_came_by() {
    let options = ForwardSink { port: Some(1), mode: ForwardMode::Reflect, ..ForwardSink::default() };
    let mut scene = Scene::new(options);
    scene.rig.send(1, (0..50).map(udp));
    scene.rig.settle();
    let sent = scene.sent(1);
    assert_eq!(sent.len(), 50);
    assert_eq!(parse(&sent[3]).key.dst_port, 3);
    scene.balance();
}

#[test]
fn sends_in_flight_take_at_most_half_of_the_workers_frames() {
    let out = ForwardSink { port: Some(2), ..ForwardSink::default() };
    let mut scene = Scene::with(out, |id| WorkerConfig { frames: 64, ..support::small(id) });
    scene.rig.send(1, (0..64).map(udp));
    // The device sends only while it is pumped, so what is posted after this stays in flight.
    scene.rig.nic.pump(64);
    let step = || scene.rig.workers.borrow_mut()[0].step();
    assert_eq!((step(), step(), step()), (32, 32, 0));
    assert_eq!((scene.traffic().in_flight(), scene.dropped(SinkDrop::TxFull)), (32, 32));
    scene.rig.settle();
    assert_eq!(scene.sent(2), (0..32).map(udp).collect::<Vec<_>>());
    assert_eq!(scene.rig.port(1).out_of_buffer, 0, "the worker goes on receiving");
    scene.rig.send(1, (0..10).map(udp));
    scene.rig.settle();
    assert_eq!(scene.sent(2).len(), 10);
    scene.balance();
}

#[test]
fn a_packet_beyond_the_mtu_is_counted_and_the_next_ones_are_sent() {
    let mut scene = Scene::to_port_2();
    let long = FrameBuilder::new()
        .ipv4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2))
        .udp(1, 2)
        .vlan(EtherType::VLAN, 1)
        .frame_bytes(9018);
    scene.rig.send(1, [long.clone().frame_bytes(9019).build(), long.build(), udp(1)]);
    scene.rig.settle();
    assert_eq!(scene.sent(2).len(), 2);
    assert_eq!(scene.dropped(SinkDrop::TooLong), 1);
    scene.balance();
}

#[test]
fn while_the_port_is_down_packets_are_counted() {
    let mut scene = Scene::to_port_2();
    scene.hub().tick(&Ports { down: &[2], stations: &[] });
    scene.rig.send(1, (0..10).map(udp));
    scene.rig.settle();
    assert_eq!((scene.dropped(SinkDrop::Down), scene.sent(2).len()), (10, 0));
    assert_eq!(scene.hub().status().text("state"), Some("down"));
    scene.hub().tick(&Ports { down: &[1], stations: &[] });
    scene.rig.send(1, (0..10).map(udp));
    scene.rig.settle();
    assert_eq!((scene.dropped(SinkDrop::Down), scene.sent(2).len()), (10, 10));
    scene.balance();
}

#[test]
fn a_removed_sink_gives_its_frames_back() {
    let mut scene = Scene::to_port_2();
    scene.receive_only((0..20).map(udp).collect());
    let in_flight = scene.traffic().in_flight();
    assert_eq!(in_flight, 20, "the device has not run since");
    let control = scene.rig.workers.borrow()[0].control();
    let change = control.place_sink(slot(0), None);
    scene.rig.workers.borrow_mut()[0].step();
    assert!(control.wait_for_sink(change, std::time::Duration::ZERO));
    assert!(!control.wait_for_frames(std::time::Duration::ZERO), "they are in flight");
    // The port does not send; closing the sink ends its sends.
    scene.hub = None;
    scene.rig.settle();
    assert!(control.wait_for_frames(std::time::Duration::ZERO));
    control.free_sinks();
    assert_eq!(scene.dropped(SinkDrop::TxFailed), 20);
    scene.balance();
    let posted = scene.rig.snapshots()[0].posted;
    assert_eq!(posted, 1024 + 20, "every frame waits for a packet again");
}

/// The worker ends while the port does not send.
#[test]
fn sends_in_flight_at_the_end_are_counted_as_failed() {
    for (ends_hub, runs) in [(false, false), (true, false), (true, true)] {
        let mut scene = Scene::to_port_2();
        scene.receive_only((0..20).map(udp).collect());
        assert_eq!(scene.traffic().in_flight(), 20);
        scene.hub.take_if(|_| ends_hub);
        if runs {
            scene.rig.nic.pump(64);
        }
        scene.rig.workers.borrow_mut()[0].free_sinks();
        assert_eq!((scene.traffic().in_flight(), scene.dropped(SinkDrop::TxFailed)), (0, 20));
        scene.hub = None;
    }
    let scene = Scene::to_port_2();
    scene.receive_only((0..20).map(udp).collect());
    scene.rig.nic.pump(64);
    scene.rig.workers.borrow_mut()[0].free_sinks();
    assert_eq!(scene.traffic().delivered.packets, 20, "they were sent, and not taken back yet");
    assert_eq!(scene.traffic().in_flight(), 0);
}

#[test]
fn packets_leave_by_another_device_in_the_frames_they_came_in() {
    let mut scene = Scene::to_other_device(support::small);
    scene.receive_only((0..20).map(udp).collect());
    assert_eq!(scene.traffic().in_flight(), 20, "the worker's frames are with the other device");
    assert_eq!(scene.sent_by_other(), (0..20).map(udp).collect::<Vec<_>>());
    let posted = scene.rig.snapshots()[0].posted;
    assert_eq!(posted, 1024 + 20, "every frame waits for a packet again");
    for _ in 0..10 {
        scene.rig.send(1, (0..200).map(udp));
        assert_eq!(scene.sent_by_other(), (0..200).map(udp).collect::<Vec<_>>());
    }
    assert_eq!(scene.traffic().delivered.packets, 2020);
    assert!(scene.sent(1).is_empty() && scene.sent(2).is_empty());
    assert_eq!(scene.hub().status().text("device"), Some("rig1"));
    scene.balance();
}

#[test]
fn a_port_of_another_device_that_is_down_or_full_costs_counted_packets() {
    let mut scene = Scene::to_other_device(|id| WorkerConfig { frames: 64, ..support::small(id) });
    scene.other.is_down.store(true, Ordering::Relaxed);
    scene.other.nic.pump(1);
    scene.hub().tick(&Ports::default());
    scene.rig.send(1, (0..10).map(udp));
    assert_eq!((scene.sent_by_other().len(), scene.dropped(SinkDrop::Down)), (0, 10));
    scene.other.is_down.store(false, Ordering::Relaxed);
    scene.other.nic.pump(1);
    scene.hub().tick(&Ports { down: &[1], stations: &[] });
    scene.receive_only((0..64).map(udp).collect());
    scene.rig.settle();
    assert_eq!((scene.traffic().in_flight(), scene.dropped(SinkDrop::TxFull)), (32, 32));
    assert_eq!(scene.sent_by_other().len(), 32, "the ports of the own device do not matter");
    assert_eq!(scene.rig.port(1).out_of_buffer, 0, "the worker goes on receiving");
    scene.balance();
}

#[test]
fn a_removed_sink_gets_its_frames_back_from_another_device() {
    let mut scene = Scene::to_other_device(support::small);
    scene.receive_only((0..20).map(udp).collect());
    let control = scene.rig.workers.borrow()[0].control();
    control.place_sink(slot(0), None);
    scene.rig.settle();
    assert!(!control.wait_for_frames(std::time::Duration::ZERO), "they are in flight");
    scene.hub = None;
    assert!(scene.sent_by_other().is_empty());
    assert!(control.wait_for_frames(std::time::Duration::ZERO));
    control.free_sinks();
    assert_eq!(scene.dropped(SinkDrop::TxFailed), 20);
    scene.balance();
}

#[test]
fn another_device_or_port_that_does_not_exist_is_named() {
    let (rig, other) = (Rig::new(1, 1), Other::new());
    let refusal = |options| {
        let error = opened(&rig, &other, options).err().expect("it cannot be used");
        let cause = std::error::Error::source(&error).expect("a cause").to_string();
        format!("{error}: {cause}")
    };
    let absent = ForwardSink { device: Some("mlx5_7".to_owned()), ..by_other(1) };
    assert_eq!(refusal(absent), "sink `out`: packets cannot leave by the device `mlx5_7`: no such device");
    assert!(
        refusal(by_other(2)).contains("`rig1`: port 2 is not one of its ports, 1 to 1"),
        "{}",
        refusal(by_other(2))
    );
    let by_interface = |port| ForwardSink { device: Some("ens1".to_owned()), port, ..by_other(1) };
    for port in [None, Some(1)] {
        assert!(opened(&rig, &other, by_interface(port)).is_ok(), "{port:?}");
    }
    let refused = refusal(by_interface(Some(2)));
    assert!(refused.ends_with("`ens1`: it is port 1, and `port` is 2 (hint: leave `port` out)"), "{refused}");
}

//! Which packets the sinks of a worker get, and that places are changed while packets arrive.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use crate::support::{Rig, compile};
use packet::build::FrameBuilder;
use program::Program;
use verbs::Frame;
use worker::{Deliveries, Disposition, FramesBack, SharedStage, Sink, SinkMap, Slot};

const POLICY: &str = r#"
version = 1
default = "kernel"
[sinks.one]
kind = "count"
[sinks.two]
kind = "count"
[sinks.host]
kind = "kernel"
interface = "unused"
[groups.main]
workers = "all"
sinks = ["one", "two"]
[[rules]]
name = "both"
match = { protocol = "udp", dst_port = 1 }
action = "steer main"
[[rules]]
name = "one"
match = { protocol = "udp", dst_port = 2 }
action = "steer main"
sinks = "one"
[[rules]]
name = "none"
match = { protocol = "udp", dst_port = 3 }
action = "steer main"
sinks = []
[[rules]]
name = "syn"
match = { protocol = "tcp", dst_port = 80, tcp_flags = "syn" }
action = "steer main"
"#;

/// The ports of the packets that a sink got.
type Got = Arc<Mutex<Vec<u16>>>;

fn port(frame: &[u8]) -> u16 {
    packet::parse(frame).key.dst_port
}

struct Notes(Got);

impl Sink for Notes {
    fn run(&mut self, packets: &mut Deliveries<'_>) {
        self.0.lock().expect("got").extend(packets.iter().map(|delivery| port(delivery.bytes)));
    }
}

/// Takes frames and gives them back an iteration later.
struct Keeper {
    got: Got,
    kept: Vec<Frame>,
}

impl Sink for Keeper {
    fn run(&mut self, packets: &mut Deliveries<'_>) {
        let Self { got, kept } = self;
        packets.take_runs(|pool, run| {
            run.each(|frame, taken| {
                got.lock().expect("got").push(port(&pool.bytes(&frame)[..taken.bytes as usize]));
                kept.push(frame);
                None
            });
        });
    }

    fn poll(&mut self, frames: &mut FramesBack<'_>) -> bool {
        let worked = !self.kept.is_empty();
        self.kept.drain(..).for_each(|frame| frames.put(frame));
        worked
    }

    fn needs_poll(&self) -> bool {
        true
    }

    fn takes_frames(&self) -> bool {
        true
    }
}

/// A rig with one worker, whose sinks of `POLICY` are in the first places.
struct Scene {
    rig: Rig,
    program: Arc<Program>,
    map: Arc<SinkMap>,
    got: [Got; 3],
}

/// The calls of a sink that has something in flight until it was polled twice after [`Sink::retire`].
#[derive(Default)]
struct Calls {
    retired: AtomicU32,
    polled_since: AtomicU32,
}

struct Busy(Arc<Calls>);

impl Sink for Busy {
    fn run(&mut self, _: &mut Deliveries<'_>) {}

    fn poll(&mut self, _: &mut FramesBack<'_>) -> bool {
        self.0.polled_since.fetch_add(self.0.retired.load(Ordering::Relaxed), Ordering::Relaxed);
        false
    }

    fn needs_poll(&self) -> bool {
        true
    }

    fn holds_frames(&self) -> bool {
        self.0.polled_since.load(Ordering::Relaxed) < 2
    }

    fn retire(&mut self) {
        self.0.retired.fetch_add(1, Ordering::Relaxed);
    }
}

impl Calls {
    /// Places a sink, and returns its calls.
    fn of_new_sink(rig: &Rig) -> Arc<Self> {
        let calls = Arc::<Self>::default();
        place(rig, 9, Some(Box::new(Busy(Arc::clone(&calls)))));
        calls
    }

    fn made(&self) -> (u32, u32) {
        (self.retired.load(Ordering::Relaxed), self.polled_since.load(Ordering::Relaxed))
    }
}

fn slot(index: usize) -> Slot {
    Slot::of(index).expect("few")
}

impl Scene {
    fn new() -> Self {
        let mut rig = Rig::unwitnessed(1, 1);
        let program = compile(POLICY, 1);
        let map = Arc::new(SinkMap::new(7, &program, &[slot(0), slot(1), slot(2)]));
        let got: [Got; 3] = Default::default();
        for (index, got) in got.iter().enumerate() {
            place(&rig, index, Some(Box::new(Notes(Arc::clone(got)))));
        }
        let workers = std::rc::Rc::clone(&rig.workers);
        let published = Arc::clone(&map);
        let install = rig.controller.install(Arc::clone(&program), &mut |stage| {
            let worker = &mut workers.borrow_mut()[0];
            let publication = worker.control().publish_shared(&SharedStage::new(stage, &published));
            while !worker.control().acknowledged(publication) {
                worker.step();
            }
            Ok(())
        });
        install.expect("the soft NIC takes it");
        Self { rig, program, map, got }
    }

    /// One packet to each of these UDP ports.
    fn udp(&mut self, ports: &[u16]) {
        let builder = FrameBuilder::new().ipv4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(192, 0, 2, 1));
        self.rig.send(1, ports.iter().map(|port| builder.clone().udp(9, *port).build()));
        self.rig.settle();
        self.rig.balance();
    }

    fn got(&self, index: usize) -> Vec<u16> {
        std::mem::take(&mut *self.got[index].lock().expect("got"))
    }
}

fn place(rig: &Rig, index: usize, sink: Option<Box<dyn Sink>>) {
    let worker = &mut rig.workers.borrow_mut()[0];
    let change = worker.control().place_sink(slot(index), sink);
    worker.step();
    assert!(worker.control().wait_for_sink(change, std::time::Duration::ZERO));
    worker.control().free_sinks();
}

#[test]
fn each_packet_goes_to_the_sinks_of_its_rule_or_group() {
    let mut scene = Scene::new();
    scene.udp(&[1, 2, 3, 1, 99]);
    assert_eq!((scene.got(0), scene.got(1)), (vec![1, 2, 1], vec![1, 1]));
    assert_eq!(scene.rig.ruled("none", Disposition::Delivered), 1, "counted without a sink");
}

#[test]
fn packets_of_the_kernel_are_returned_by_the_kernel_sink() {
    let mut scene = Scene::new();
    let builder = FrameBuilder::new().ipv4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(192, 0, 2, 1));
    let tcp = |flags| builder.clone().tcp(9, 80, flags).build();
    // The device cannot match flags: the worker gets both and finds that the second is the kernel's.
    scene.rig.send(1, [tcp(0x02), tcp(0x10)]);
    scene.rig.settle();
    scene.rig.balance();
    assert_eq!((scene.got(0), scene.got(2)), (vec![80], vec![80]));
    assert_eq!(scene.rig.ruled("default", Disposition::Returned), 1);
    assert_eq!(scene.rig.ruled("default", Disposition::LostException), 0);
}

#[test]
fn a_sink_is_attached_to_a_rule_and_detached() {
    let mut scene = Scene::new();
    let got = Got::default();
    place(&scene.rig, 9, Some(Box::new(Notes(Arc::clone(&got)))));
    scene.udp(&[3]);
    let rule =
        program::RuleId::of(scene.program.rules.iter().position(|rule| rule.name == "none").expect("it"));
    scene.map.attach(rule, slot(9));
    scene.udp(&[1, 3, 3]);
    scene.map.detach(rule, slot(9));
    scene.udp(&[3]);
    assert_eq!(*got.lock().expect("got"), [3, 3]);
}

#[test]
fn a_removed_sink_is_freed_by_the_handle() {
    let mut scene = Scene::new();
    let watched = Arc::downgrade(&scene.got[0]);
    scene.got[0] = Got::default();
    assert!(watched.upgrade().is_some());
    place(&scene.rig, 0, None);
    assert!(watched.upgrade().is_none(), "freed");
    scene.udp(&[1]);
    assert_eq!(scene.got(1), [1], "the others go on");
}

#[test]
fn a_sink_that_is_removed_is_retired_and_polled_until_it_is_done() {
    let scene = Scene::new();
    let calls = Calls::of_new_sink(&scene.rig);
    scene.rig.settle();
    assert_eq!(calls.made(), (0, 0));
    place(&scene.rig, 9, None);
    let control = scene.rig.workers.borrow()[0].control();
    assert_eq!(calls.made(), (1, 1));
    assert!(!control.wait_for_frames(std::time::Duration::ZERO) && Arc::strong_count(&calls) == 2);
    (0..9).for_each(|_| {
        scene.rig.workers.borrow_mut()[0].step();
    });
    assert_eq!(calls.made(), (1, 2));
    assert!(control.wait_for_frames(std::time::Duration::ZERO));
    control.free_sinks();
    assert_eq!(Arc::strong_count(&calls), 1, "freed");
}

#[test]
fn the_end_of_a_worker_retires_its_sinks_and_polls_them_until_they_are_done() {
    let scene = Scene::new();
    let calls = Calls::of_new_sink(&scene.rig);
    let worker = scene.rig.workers.borrow_mut().remove(0);
    let worker = worker.spawn().expect("a thread").join().expect("no panic");
    assert_eq!(calls.made(), (1, 2));
    scene.rig.workers.borrow_mut().push(worker);
    scene.rig.workers.borrow_mut()[0].free_sinks();
    assert_eq!(Arc::strong_count(&calls), 1, "freed");
}

#[test]
fn frames_that_a_sink_takes_come_back() {
    let mut scene = Scene::new();
    let kept = Got::default();
    place(&scene.rig, 0, Some(Box::new(Keeper { got: Arc::clone(&kept), kept: Vec::new() })));
    // More than the worker has frames, so that they must come back.
    for _ in 0..40 {
        scene.udp(&[1; 64]);
    }
    assert_eq!(kept.lock().expect("got").len(), 40 * 64);
    assert_eq!(scene.got(1).len(), 40 * 64, "the other sink has read them before");
    assert_eq!(scene.rig.port(1).out_of_buffer, 0);
}

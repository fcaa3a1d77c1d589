//! What a sink of kind `count` costs the worker per packet: by size only, and by flow with as many counters
//! as flows, with an eighth of that (almost every packet takes over a counter), and with many more. Medians
//! of interleaved rounds of one run, beside a worker without a sink.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use device_model::DeviceModel;
use policy::{NoFiles, Source};
use softnic::Drive;
use steerd_benches::{Rig, median};
use worker::sinks::{self, Environment, Hub};
use worker::{SharedStage, SinkMap, Slot};

const ROUNDS: usize = 15;
const ROUND: Duration = Duration::from_millis(150);
/// Frames received before the worker polls: fewer than its posted buffers.
const PULSE: usize = 2048;
const FRAME_BYTES: u32 = 64;

/// The generator has 1024 flows.
const VARIANTS: [(&str, Option<u32>); 5] = [
    ("no sink", None),
    ("count", Some(0)),
    ("count, top_flows = 1024", Some(1024)),
    ("count, top_flows = 128", Some(128)),
    ("count, top_flows = 65536", Some(65_536)),
];

/// The hub is kept for as long as the worker has the endpoint.
fn rig(top_flows: Option<u32>) -> (Rig, Option<Box<dyn Hub>>) {
    let mut rig = Rig::bare(FRAME_BYTES, 1, Drive::Manual, None);
    let sink = top_flows
        .map_or_else(String::new, |flows| format!("[sinks.sizes]\nkind = 'count'\ntop_flows = {flows}\n"));
    let names = if top_flows.is_some() { "sinks = ['sizes']\n" } else { "" };
    let text = format!(
        "version = 1\n{sink}[groups.every]\nworkers = 'all'\n{names}[[rules]]\nname = 'dns'\n\
         match = {{ protocol = 'udp', dst_port = 53 }}\naction = {{ steer = 'every' }}\n"
    );
    let (policy, _) = policy::parse(&Source::new("bench.toml", text), &NoFiles).expect("a policy");
    let program = compiler::compile(&policy, &DeviceModel::ideal(), 1).expect("a program");
    let (worker, program) = (&rig.plane.workers[0], Arc::new(program));
    let (control, domain) = (worker.control(), worker.domain());
    let environment = Environment {
        context: domain.context(),
        domains: std::slice::from_ref(&domain),
        budgets: &[],
        ports: &[1],
        stations: &[],
        others: None,
    };
    let slot = Slot::of(0).expect("a place");
    let hub = program.sinks.first().map(|sink| {
        let mut opened = sinks::open(sink, &environment).expect("it opens");
        control.place_sink(slot, opened.endpoints.pop());
        opened.hub
    });
    let map = Arc::new(SinkMap::new(1, &program, &[slot]));
    rig.plane
        .controller
        .install(program, &mut |stage| {
            control.publish_shared(&SharedStage::new(stage, &map));
            Ok(())
        })
        .expect("it installs");
    (rig, hub)
}

/// Nanoseconds per packet in the worker.
fn worker_ns(rig: &mut Rig) -> f64 {
    let (mut worker, mut frames) = (Duration::ZERO, 0_u64);
    let end = Instant::now() + ROUND;
    while Instant::now() < end {
        let mut pumped = 0;
        while pumped < PULSE {
            pumped += rig.nic.pump(PULSE - pumped);
        }
        let between = Instant::now();
        while rig.plane.workers[0].step() > 0 {}
        worker += between.elapsed();
        frames += pumped as u64;
    }
    worker.as_nanos() as f64 / frames as f64
}

fn main() {
    let mut rigs = VARIANTS.map(|(name, top_flows)| (name, rig(top_flows), Vec::new()));
    for _ in 0..ROUNDS {
        for (_, (rig, _), figures) in &mut rigs {
            figures.push(worker_ns(rig));
        }
    }
    println!("worker's cost per packet of {FRAME_BYTES} B, {ROUNDS} rounds");
    let mut plain = None;
    for (name, (rig, hub), figures) in rigs {
        let cost = median(figures);
        let plain = *plain.get_or_insert(cost);
        let flows = hub.and_then(|hub| hub.top_flows()).map_or(0, |flows| flows.len());
        println!("{name:<26} {cost:>7.1} ns  {:>+7.1} ns  {flows:>6} flows", cost - plain);
        let port = rig.port();
        assert_eq!(port.delivered, port.rx_frames, "every frame was delivered: {port:?}");
    }
}

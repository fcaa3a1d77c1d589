//! `make bench`: the cost of a packet by part, and the rate of the whole across two cores, compared with a plain queue that
//! only copies. Every figure is the median of interleaved rounds of one run: compare ratios, not runs.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use program::{CountSink, ForwardMode, ForwardSink, SinkKind, VlanChange};
use softnic::Drive;
use steerd_benches::{Rig, handoff_frames_per_second, median};
use worker::sinks::Opened;

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(1500);
/// Frames received before the worker polls: fewer than its posted buffers.
const PULSE: usize = 2048;
/// Frames received before a worker with a sink polls: fewer than it may have in flight.
const SINK_PULSE: u64 = 512;
/// Frames of one pass of the engine, which sends as many.
const BURST: usize = 64;
const SIZES: [u32; 2] = [64, 1518];

/// Nanoseconds per frame in the engine and in the worker, which run alternately on this thread.
fn parts(rig: &mut Rig, time: Duration) -> (f64, f64) {
    let (mut engine, mut worker, mut frames) = (Duration::ZERO, Duration::ZERO, 0_u64);
    let end = Instant::now() + time;
    while Instant::now() < end {
        let start = Instant::now();
        let mut pumped = 0;
        while pumped < PULSE {
            pumped += rig.nic.pump(PULSE - pumped);
        }
        let between = Instant::now();
        while rig.workers[0].step() > 0 {}
        worker += between.elapsed();
        engine += between - start;
        frames += pumped as u64;
    }
    (engine.as_nanos() as f64 / frames as f64, worker.as_nanos() as f64 / frames as f64)
}

/// Frames per second that the engine processed and that the worker received, on one core each.
fn across_cores(frame_bytes: u32, rules: usize, time: Duration) -> (f64, f64) {
    let mut rig = Rig::new(frame_bytes, rules, 1, Drive::Thread { core: Some(0) }, Some(1));
    let worker = rig.workers.remove(0).spawn().expect("a thread");
    std::thread::sleep(Duration::from_millis(200));
    let (before, start) = (rig.port(), Instant::now());
    std::thread::sleep(time);
    let (after, elapsed) = (rig.port(), start.elapsed().as_secs_f64());
    rig.nic.stop();
    let worker = worker.join().expect("the worker ends");
    drop(rig.controller);
    drop(worker);
    let rate = |count: u64| count as f64 / elapsed;
    (rate(after.rx_frames - before.rx_frames), rate(after.delivered - before.delivered))
}

/// The frequency of the cycle counter, from the kernel.
fn gigahertz() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("cpu MHz"))?;
    Some(line.split(':').nth(1)?.trim().parse::<f64>().ok()? / 1000.0)
}

fn print_parts(rules: usize) {
    let ghz = gigahertz().unwrap_or(f64::NAN);
    println!("cost per packet on one core, {rules} rules, {ROUNDS} rounds (cycles at {ghz:.2} GHz)");
    println!(
        "{:>8} {:>30} {:>34}",
        "frame", "engine: parse match hash copy", "worker: poll class count repost"
    );
    let mut rigs = SIZES.map(|size| Rig::new(size, rules, 1, Drive::Manual, None));
    let mut figures = SIZES.map(|_| (Vec::new(), Vec::new()));
    for _ in 0..ROUNDS {
        for (rig, (engine, worker)) in rigs.iter_mut().zip(&mut figures) {
            let (engine_ns, worker_ns) = parts(rig, ROUND / 3);
            engine.push(engine_ns);
            worker.push(worker_ns);
        }
    }
    for (size, (engine, worker)) in SIZES.iter().zip(figures) {
        let (engine, worker) = (median(engine), median(worker));
        println!(
            "{size:>6} B {engine:>16.1} ns {:>7.0} cy {worker:>20.1} ns {:>7.0} cy",
            engine * ghz,
            worker * ghz
        );
    }
    for rig in &rigs {
        let port = rig.port();
        assert_eq!(port.delivered, port.rx_frames, "every frame was delivered: {port:?}");
    }
}

/// The sinks that are compared, by what they do.
fn sinks() -> [(&'static str, SinkKind); 4] {
    let forward = ForwardSink { port: Some(1), ..ForwardSink::default() };
    let vlan = Some(VlanChange::Push(100));
    [
        ("count", SinkKind::Count(CountSink::default())),
        ("forward, swap MACs", SinkKind::Forward(ForwardSink { swap_macs: true, ..forward.clone() })),
        ("forward, push VLAN", SinkKind::Forward(ForwardSink { vlan, ..forward.clone() })),
        ("reflect", SinkKind::Forward(ForwardSink { mode: ForwardMode::Reflect, ..forward })),
    ]
}

/// Nanoseconds per frame in the worker, whose packets go to a sink, and in the engine, which also sends them.
fn sink_cost(rig: &mut Rig, opened: &Opened, time: Duration) -> (f64, f64) {
    let (mut engine, mut worker, mut frames) = (Duration::ZERO, Duration::ZERO, 0);
    let end = Instant::now() + time;
    while Instant::now() < end {
        let start = Instant::now();
        let before = rig.port().rx_frames;
        while rig.port().rx_frames < before + SINK_PULSE {
            rig.nic.pump(BURST);
        }
        let between = Instant::now();
        while rig.workers[0].step() > 0 {}
        worker += between.elapsed();
        engine += between - start;
        frames += rig.port().rx_frames - before;
    }
    let traffic = opened.counters[0].read();
    let dropped: u64 = traffic.dropped.iter().map(|(_, count)| count).sum();
    assert_eq!(dropped, 0, "{traffic:?}");
    (worker.as_nanos() as f64 / frames as f64, engine.as_nanos() as f64 / frames as f64)
}

fn print_sinks() {
    println!("\ncost per packet of a sink on one core, {ROUNDS} rounds (64 B, 1518 B)");
    println!("{:>20} {:>22} {:>22}", "", "worker and sink, ns", "engine, ns");
    let mut rigs: Vec<_> = sinks()
        .into_iter()
        .map(|(name, kind)| {
            let pair = [64, 1514].map(|size| {
                let mut rig = Rig::bare(size, 1, Drive::Manual, None);
                let opened = rig.open_sink(kind.clone());
                (rig, opened, Vec::new(), Vec::new())
            });
            (name, pair)
        })
        .collect();
    for _ in 0..ROUNDS {
        for (_, pair) in &mut rigs {
            for (rig, opened, worker, engine) in pair {
                let (worker_ns, engine_ns) = sink_cost(rig, opened, ROUND / 5);
                worker.push(worker_ns);
                engine.push(engine_ns);
            }
        }
    }
    for (name, [small, large]) in rigs {
        let [small, large] = [small, large].map(|(rig, opened, worker, engine)| {
            drop(opened);
            drop(rig);
            (median(worker), median(engine))
        });
        println!("{name:>20} {:>10.1} {:>11.1} {:>10.1} {:>11.1}", small.0, large.0, small.1, large.1);
    }
}

fn print_whole(rules: usize) {
    println!("\nacross two cores, {rules} rules, {ROUNDS} rounds (million frames per second)");
    println!(
        "{:>8} {:>14} {:>14} {:>14} {:>8}",
        "frame", "engine takes", "worker gets", "plain queue", "ratio"
    );
    for size in SIZES {
        let (mut taken, mut got, mut plain) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let (engine, worker) = across_cores(size, rules, ROUND);
            taken.push(engine / 1e6);
            got.push(worker / 1e6);
            plain.push(handoff_frames_per_second(size as usize, (0, 1), ROUND) / 1e6);
        }
        let (taken, got, plain) = (median(taken), median(got), median(plain));
        println!("{size:>6} B {taken:>14.2} {got:>14.2} {plain:>14.2} {:>8.2}", got / plain);
    }
}

fn main() {
    // `cargo test --benches` and `cargo bench -- FILTER` both pass arguments; they are ignored.
    print_parts(1);
    print_parts(1000);
    print_sinks();
    print_whole(1);
    println!("\nengine takes: frames the engine handled, those included that met no posted buffer;");
    println!(
        "plain queue: the same frames copied through crossbeam's ArrayQueue, nothing else done to them."
    );
}

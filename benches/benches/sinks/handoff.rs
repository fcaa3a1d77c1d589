//! Packets per second through shared memory from one core to another: from the sink `app` to testpmd, beside
//! two testpmd joined by `net_memif`. The receiver is the same program with the same options.
//!
//! The sink's endpoint is called with the same 32 received packets over and over, as testpmd's txonly sends
//! packets of one content: neither receives. testpmd's `io` receives from `net_null`, which gives empty
//! buffers; its counterpart is the whole worker, whose packets the soft NIC's engine has to copy on the same
//! core.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use program::SinkKind;
use softnic::Drive;
use steerd_benches::Rig;
use steerd_benches::competitors::{Testpmd, TestpmdOptions};
use steerd_benches::table::Row;
use worker::sinks::Opened;
use worker::{Deliveries, Sink, SinkCounters};

use super::{BURST, CORE, OTHER_CORE, SIZES, app, pin};

pub(crate) const OWN: &str = "sink app to testpmd";
pub(crate) const TXONLY: &str = "testpmd txonly to testpmd, net_memif";
pub(crate) const IO: &str = "testpmd io (net_null) to testpmd, net_memif";
const WHOLE: &str = "soft NIC, worker, sink app to testpmd";
const TABLE: &str = "handoff";
const ROUNDS: usize = 3;
const ROUND: Duration = Duration::from_millis(700);
/// Until buffers are posted and caches are warm.
const WARM_UP: Duration = Duration::from_millis(100);
/// As many as testpmd sends at once.
const BATCH: usize = 32;
const PATIENCE: Duration = Duration::from_secs(10);
/// A ring of 4096 descriptors, that of the sink.
const LOG2_RING: u32 = 12;

pub(crate) fn rows(folder: &Path) -> Vec<Row> {
    pin(CORE);
    let mut rows = Vec::new();
    for bytes in SIZES {
        let mut own = [OWN, WHOLE].map(|what| Row::new(TABLE, what, bytes, "Mpps"));
        let mut others = [TXONLY, IO].map(|what| Row::new(TABLE, what, bytes, "Mpps"));
        for round in 0..ROUNDS {
            match from_sink(&folder.join(format!("s{bytes}-{round}")), bytes) {
                Ok(rates) => own.iter_mut().zip(rates).for_each(|(row, rate)| row.add(Ok(rate / 1e6))),
                Err(why) => own.iter_mut().for_each(|row| row.add(Err(why.clone()))),
            }
            for (index, row) in others.iter_mut().enumerate() {
                let socket = folder.join(format!("t{bytes}-{round}-{index}"));
                let sources = if row.what == IO { Some(format!("net_null0,size={bytes}")) } else { None };
                row.add(from_testpmd(&socket, bytes, sources).map(|rate| rate / 1e6));
            }
        }
        rows.extend(own);
        rows.extend(others);
    }
    rows
}

fn memif(role: &str, socket: &Path) -> String {
    format!("net_memif0,role={role},id=0,socket={},socket-abstract=no,rsize={LOG2_RING}", socket.display())
}

fn receiver(socket: &Path) -> Result<Testpmd, String> {
    let devices = [memif("client", socket)];
    let mut receiver = Testpmd::start(&TestpmdOptions::receiver(&devices, (OTHER_CORE, CORE), 64))?;
    receiver.command("start");
    Ok(receiver)
}

/// From one testpmd to another one, as the receiver counts.
fn from_testpmd(socket: &Path, bytes: u32, source: Option<String>) -> Result<f64, String> {
    let mode = if source.is_some() { "io" } else { "txonly" };
    let devices: Vec<String> = [memif("server", socket)].into_iter().chain(source).collect();
    let options = TestpmdOptions {
        devices: &devices,
        mode,
        core: CORE,
        prompt_core: OTHER_CORE,
        packet_bytes: bytes,
        stored_packets: 0,
        queues: 1,
    };
    let mut sender = Testpmd::start(&options)?;
    let mut receiver = receiver(socket)?;
    sender.command("start");
    let deadline = Instant::now() + PATIENCE;
    while receiver.received()? == 0 {
        if Instant::now() > deadline {
            return Err("no packets arrive".to_owned());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(WARM_UP);
    receiver.rate(ROUND)
}

/// From the sink alone, and from a worker with its engine.
fn from_sink(socket: &Path, bytes: u32) -> Result<[f64; 2], String> {
    let (socket, options) = app(socket.parent().unwrap_or(socket), &name(socket));
    let mut rig = Rig::new(bytes, 1, Drive::Manual, None);
    let sink = program::SinkSpec { name: "bench".to_owned(), kind: SinkKind::App(options.clone()) };
    pin(OTHER_CORE);
    let opened = rig.plane.open(&sink);
    pin(CORE);
    let mut opened = opened.map_err(|error| error.to_string())?;
    let receiver_of_sink = receiver(&socket)?;
    wait_for_client(&opened)?;
    let delivered = Arc::new(AtomicU64::new(0));
    let endpoint = opened.endpoints.pop().ok_or("no endpoint")?;
    let counters = Arc::clone(&opened.counters[0]);
    let repeater = Repeater { endpoint, counters, packets_per_second: Arc::clone(&delivered) };
    let worker = rig.plane.workers.remove(0).with_observer(Box::new(repeater));
    rig.plane.workers.push(worker);
    let mut pumped = 0;
    while pumped < BATCH {
        pumped += rig.nic.pump(BATCH - pumped);
    }
    rig.plane.workers[0].step();
    let alone = delivered.load(Ordering::Relaxed) as f64;
    drop((receiver_of_sink, opened, rig));
    Ok([alone, from_worker(&socket.with_extension("whole"), bytes)?])
}

fn from_worker(socket: &Path, bytes: u32) -> Result<f64, String> {
    let (socket, options) = app(socket.parent().unwrap_or(socket), &name(socket));
    let mut rig = Rig::bare(bytes, 1, Drive::Manual, None);
    pin(OTHER_CORE);
    let opened = rig.plane.try_open_sink(SinkKind::App(options));
    pin(CORE);
    let opened = opened.map_err(|error| error.to_string())?;
    let receiver = receiver(&socket)?;
    wait_for_client(&opened)?;
    let mut run = |time: Duration| {
        let begun = Instant::now();
        let before = opened.counters[0].read().delivered.packets;
        while begun.elapsed() < time {
            for _ in 0..16 {
                rig.nic.pump(BURST);
                rig.plane.workers[0].step();
            }
        }
        (opened.counters[0].read().delivered.packets - before) as f64 / begun.elapsed().as_secs_f64()
    };
    run(WARM_UP);
    let rate = run(ROUND);
    drop((receiver, opened));
    Ok(rate)
}

fn name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn wait_for_client(opened: &Opened) -> Result<(), String> {
    let deadline = Instant::now() + PATIENCE;
    while opened.hub.status().number("clients") != Some(1) {
        if Instant::now() > deadline {
            return Err(format!("testpmd does not connect: {:?}", opened.hub.status()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Gives the first batch to the endpoint over and over. Packets that meet a full ring do not count.
struct Repeater {
    endpoint: Box<dyn Sink>,
    counters: Arc<SinkCounters>,
    packets_per_second: Arc<AtomicU64>,
}

impl Repeater {
    fn repeat(&mut self, packets: &mut Deliveries<'_>, time: Duration) -> f64 {
        let (begun, before) = (Instant::now(), self.counters.read().delivered.packets);
        while begun.elapsed() < time {
            for _ in 0..16 {
                self.endpoint.run(packets);
            }
        }
        (self.counters.read().delivered.packets - before) as f64 / begun.elapsed().as_secs_f64()
    }
}

impl Sink for Repeater {
    fn run(&mut self, packets: &mut Deliveries<'_>) {
        self.repeat(packets, WARM_UP);
        let rate = self.repeat(packets, ROUND);
        self.packets_per_second.store(rate as u64, Ordering::Relaxed);
    }
}

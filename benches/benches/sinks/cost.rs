//! The worker's cost per packet with each kind of sink. The engine runs on the same thread between the
//! measurements; the other side of a sink has the other core, and time enough between pulses to take what it
//! got.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use program::{AppMode, CaptureSink, CountSink, ForwardSink, KernelSink, SinkKind, TapMac};
use softnic::Drive;
use steerd_benches::table::Row;
use steerd_benches::{Rig, namespace};
use steerd_client::{Options, PacketBatch, SinkClient};
use worker::sinks::Opened;

use super::{BURST, OTHER_CORE, PULSE, SIZES, app, pin};

const TABLE: &str = "cost";
const ROUND: Duration = Duration::from_millis(250);
/// From one pulse to the next: as long as the slowest sink needs, the kernel's.
const PULSE_TIME: Duration = Duration::from_micros(1500);
/// Files are rotated: the run writes more than memory holds.
const FILE_BYTES: u64 = 128 << 20;

/// What a row measures.
struct Variant {
    what: &'static str,
    kind: Option<SinkKind>,
    /// Clients of the sink.
    clients: usize,
}

impl Variant {
    fn of(what: &'static str, kind: SinkKind) -> Self {
        Self { what, kind: Some(kind), clients: 0 }
    }
}

/// A rig with its sink and the other side of it. The fields are declared in the order in which they must be
/// dropped.
struct Setup {
    clients: Option<Clients>,
    opened: Option<Opened>,
    rig: Rig,
}

pub(crate) struct Table {
    setups: Vec<(Option<Setup>, Row)>,
}

impl Table {
    pub(crate) fn new(folder: &Path, memory: &Result<&Path, String>) -> Self {
        let mut setups = Vec::new();
        for bytes in SIZES {
            for variant in variants(folder, memory, bytes) {
                let (what, setup) = match variant {
                    Ok(variant) => (variant.what, setup(&variant, bytes)),
                    Err((what, why)) => (what, Err(why)),
                };
                let mut row = Row::new(TABLE, what, bytes, "ns");
                let setup = setup.map_err(|why| row.add(Err(why))).ok();
                setups.push((setup, row));
            }
        }
        Self { setups }
    }

    pub(crate) fn round(&mut self) {
        for (setup, row) in &mut self.setups {
            if let Some(setup) = setup {
                row.add(Ok(setup.round()));
            }
        }
    }

    pub(crate) fn rows(self) -> impl Iterator<Item = Row> {
        self.setups.into_iter().map(|(setup, mut row)| {
            if let Some(setup) = setup {
                row.note = setup.losses();
            }
            row
        })
    }
}

type Missing = (&'static str, String);

fn variants(folder: &Path, memory: &Result<&Path, String>, bytes: u32) -> Vec<Result<Variant, Missing>> {
    let client = |what, mode, clients| {
        let (_, mut options) = app(folder, &format!("{bytes}-{mode:?}-{clients}"));
        options.mode = mode;
        Ok(Variant { what, kind: Some(SinkKind::App(options)), clients })
    };
    let kernel = KernelSink {
        mac: TapMac::Keep,
        transmit: false,
        ring_bytes: 4 << 20,
        ..KernelSink::new(format!("steer{bytes}"))
    };
    let capture = memory.as_ref().map_err(|why| ("capture", why.clone())).map(|memory| {
        let path = memory.join(format!("cost-{bytes}-{{time}}.pcapng"));
        let (file_bytes, disk_bytes) = (FILE_BYTES, 3 * FILE_BYTES);
        let options = CaptureSink { path, file_bytes, disk_bytes, ..CaptureSink::default() };
        Variant::of("capture", SinkKind::Capture(options))
    });
    let forward = ForwardSink { port: Some(1), swap_macs: true, ..ForwardSink::default() };
    vec![
        Ok(Variant { what: "no sink", kind: None, clients: 0 }),
        Ok(Variant::of("count", SinkKind::Count(CountSink::default()))),
        Ok(Variant::of(
            "count, top_flows = 1024",
            SinkKind::Count(CountSink { top_flows: 1024, export: None }),
        )),
        capture,
        namespace::entered()
            .map(|()| Variant::of("kernel (TAP)", SinkKind::Kernel(kernel)))
            .map_err(|why| ("kernel (TAP)", why)),
        client("app, one client", AppMode::Copy, 1),
        client("app, a copy for each of two clients", AppMode::Copy, 2),
        client("app, flows shared by two clients", AppMode::Share, 2),
        Ok(Variant::of("forward, swap MACs", SinkKind::Forward(forward))),
    ]
}

fn setup(variant: &Variant, bytes: u32) -> Result<Setup, String> {
    let Some(kind) = &variant.kind else {
        let rig = Rig::new(bytes, 1, Drive::Manual, None);
        return Ok(Setup { clients: None, opened: None, rig });
    };
    let mut rig = Rig::bare(bytes, 1, Drive::Manual, None);
    let opened = rig.plane.try_open_sink(kind.clone()).map_err(|error| whole(&error))?;
    let clients = match kind {
        SinkKind::App(options) => Some(Clients::connect(&options.socket, variant.clients)?),
        _ => None,
    };
    Ok(Setup { clients, opened: Some(opened), rig })
}

/// The message of an error with its causes.
fn whole(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {}", whole(cause)))
}

impl Setup {
    /// Nanoseconds per packet in the worker.
    fn round(&mut self) -> f64 {
        let Self { clients, rig, .. } = self;
        clients.iter().for_each(|clients| clients.receive(true));
        let (mut worker, mut frames) = (Duration::ZERO, 0);
        let end = Instant::now() + ROUND;
        while Instant::now() < end {
            let begun = Instant::now();
            let before = rig.port().rx_frames;
            while rig.port().rx_frames < before + PULSE {
                rig.nic.pump(BURST);
            }
            let between = Instant::now();
            while rig.plane.workers[0].step() > 0 {}
            worker += between.elapsed();
            frames += rig.port().rx_frames - before;
            while begun.elapsed() < PULSE_TIME {
                std::hint::spin_loop();
            }
        }
        clients.iter().for_each(|clients| clients.receive(false));
        worker.as_nanos() as f64 / frames as f64
    }

    /// What was dropped, which costs less than what is delivered.
    fn losses(&self) -> String {
        let port = self.rig.port();
        assert_eq!(port.delivered, port.rx_frames, "every frame was delivered: {port:?}");
        let Some(opened) = &self.opened else { return String::new() };
        let traffic = opened.counters[0].read();
        let dropped: Vec<String> = traffic
            .dropped
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(reason, count)| {
                let share = *count as f64 * 100.0 / traffic.offered.packets as f64;
                format!("{share:.1} % dropped: {}", reason.name())
            })
            .collect();
        dropped.join(", ")
    }
}

/// Clients that receive and forget, on a thread of the other core.
struct Clients {
    receive: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Clients {
    fn connect(socket: &Path, count: usize) -> Result<Self, String> {
        let connect = |_| {
            let options = Options { ring_size: 4096, ..Options::default() };
            SinkClient::new(socket, options).map_err(|error| error.to_string())
        };
        let mut clients = (0..count).map(connect).collect::<Result<Vec<_>, _>>()?;
        let (receive, stop) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (receives, stops) = (Arc::clone(&receive), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            pin(OTHER_CORE);
            let mut batch = PacketBatch::new(64);
            while !stops.load(Ordering::Relaxed) {
                if receives.load(Ordering::Relaxed) {
                    clients.iter_mut().for_each(|client| client.receive(&mut batch, Duration::ZERO));
                } else {
                    std::thread::park_timeout(Duration::from_millis(20));
                }
            }
        });
        // The worker learns of the clients some time after they have connected.
        std::thread::sleep(Duration::from_millis(20));
        Ok(Self { receive, stop, thread: Some(thread) })
    }

    fn receive(&self, on: bool) {
        self.receive.store(on, Ordering::Relaxed);
        self.thread.iter().for_each(|thread| thread.thread().unpark());
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

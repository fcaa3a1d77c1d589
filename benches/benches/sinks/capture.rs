//! The highest rate that is captured to a file in memory without the loss of a packet: by the sink `capture`
//! from the soft NIC, and by other programs from a veth pair. All have the same packets at the same paces,
//! from the soft NIC's generator, a buffer of 4 MiB, and the other core for the thread that writes; the
//! sink's worker and engine are on the core of the generator, as the kernel's receive path is for the others.
//! What was captured is counted in the file.
//!
//! On a busy machine, and where the kernel cannot send more, these rates are limits of the machine. So a
//! second row has the rate at which the thread that writes would use its whole core, by the processor time
//! that a packet took.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use program::{CaptureSink, SinkKind};
use softnic::Drive;
use steerd_benches::competitors::{CaptureTool, packets_in, processor_time};
use steerd_benches::table::Row;
use steerd_benches::{Rig, namespace};
use wire::{AfPacketConfig, AfPacketWire, Burst, HandOver, MergedFrames, Wire, WireConfig};

use super::{CORE, OTHER_CORE, SIZES, pin};

pub(crate) const OWN: &str = "sink capture";
const TABLE: &str = "capture";
const ROUNDS: usize = 3;
/// How long packets are sent in one trial.
const TRIAL: Duration = Duration::from_millis(600);
const SNAP_BYTES: u32 = 1514;
const BUFFER_MIB: u32 = 4;
const SENDER: &str = "benchsend";
const RECEIVER: &str = "benchrecv";
/// How long the thread of the sink may write after the last packet.
const SETTLES: Duration = Duration::from_secs(2);
/// Packets between two looks at the clock.
const PACE: u64 = 32;

/// What came of a trial.
struct Trial {
    /// Packets per second that were sent.
    rate: f64,
    is_lossless: bool,
    /// Nanoseconds of the capturing thread's core per packet.
    processor_ns: Option<f64>,
}

/// What came of a search.
struct Highest {
    rate: f64,
    processor_ns: Option<f64>,
    /// More cannot be sent.
    is_limit: bool,
}

/// A row with its second row, from the time of the processor.
struct Case<'t> {
    row: Row,
    by_time: Row,
    last: Option<f64>,
    limited: usize,
    trial: Try<'t>,
}

type Try<'t> = Box<dyn FnMut(f64) -> Result<Trial, String> + 't>;

pub(crate) fn rows(memory: &Result<&Path, String>) -> Vec<Row> {
    pin(CORE);
    let veth = namespace::make_veth(SENDER, RECEIVER);
    let mut cases = Vec::new();
    for bytes in SIZES {
        let row = |what: &str| Row::new(TABLE, what, bytes, "Mpps");
        let own: Try<'_> = Box::new(move |rate| by_sink(&file(memory, "own")?, bytes, rate));
        cases.push(Case { row: row(OWN), by_time: row(&by_time(OWN)), last: None, limited: 0, trial: own });
        for tool in CaptureTool::ALL {
            let veth = veth.clone();
            let trial: Try<'_> = Box::new(move |rate| {
                veth.clone()?;
                by_tool(tool, &file(memory, tool.name())?, bytes, rate)
            });
            let by_time = row(&by_time(tool.name()));
            cases.push(Case { row: row(tool.name()), by_time, last: None, limited: 0, trial });
        }
    }
    for _ in 0..ROUNDS {
        cases.iter_mut().filter(|case| case.row.figures.is_ok()).for_each(Case::round);
    }
    cases.into_iter().flat_map(|case| [case.row, case.by_time]).collect()
}

/// The name of the row with the rate at which a program, or the thread of the sink, would use its whole core,
/// by the time that a packet took at the highest rate without loss.
pub(crate) fn by_time(tool: &str) -> String {
    format!("{tool}, its core fully used")
}

impl Case<'_> {
    fn round(&mut self) {
        match highest(self.last, &mut self.trial) {
            Ok(Highest { rate, processor_ns, is_limit }) => {
                self.last = Some(rate);
                self.limited += usize::from(is_limit);
                self.row.add(Ok(rate / 1e6));
                if self.limited > 0 {
                    self.row.note = format!("in {} rounds all that can be sent", self.limited);
                }
                self.by_time.add(processor_ns.map(|ns| 1e3 / ns).ok_or("no time in /proc".to_owned()));
            }
            Err(why) => {
                self.by_time.add(Err(why.clone()));
                self.row.add(Err(why));
            }
        }
    }
}

fn file(memory: &Result<&Path, String>, name: &str) -> Result<PathBuf, String> {
    memory.clone().map(|folder| folder.join(name))
}

/// The highest rate without loss, to a few percent.
fn highest(last: Option<f64>, trial: &mut Try<'_>) -> Result<Highest, String> {
    const LIMITED: f64 = 0.97;
    let (step, halvings) = if last.is_some() { (1.25, 2) } else { (2.0, 4) };
    let mut rate = last.unwrap_or(200_000.0);
    let mut good: Option<Trial> = None;
    let mut bad = f64::INFINITY;
    while good.is_none() || bad.is_infinite() {
        let result = trial(rate)?;
        if result.is_lossless {
            if result.rate < rate * LIMITED {
                let Trial { rate, processor_ns, .. } = result;
                return Ok(Highest { rate, processor_ns, is_limit: true });
            }
            rate *= step;
            good = Some(result);
        } else {
            bad = result.rate;
            rate = result.rate.min(rate) / step;
            if rate < 1000.0 {
                return Err("packets are lost at 1000 per second".to_owned());
            }
        }
    }
    let mut good = good.ok_or("no rate without loss")?;
    for _ in 0..halvings {
        let result = trial((good.rate * bad).sqrt())?;
        if result.is_lossless {
            good = result;
        } else {
            bad = result.rate;
        }
    }
    Ok(Highest { rate: good.rate, processor_ns: good.processor_ns, is_limit: false })
}

/// Lets `send` send at a pace; `send` returns how many it sent.
fn paced(rate: f64, mut send: impl FnMut(u64) -> u64) -> f64 {
    let (begun, mut sent) = (Instant::now(), 0);
    loop {
        let elapsed = begun.elapsed();
        if elapsed >= TRIAL {
            return sent as f64 / elapsed.as_secs_f64();
        }
        let due = (elapsed.as_secs_f64() * rate) as u64;
        if due > sent {
            sent += send((due - sent).min(PACE));
        } else {
            std::hint::spin_loop();
        }
    }
}

fn by_sink(file: &Path, bytes: u32, rate: f64) -> Result<Trial, String> {
    let path = file.with_file_name("own-{time}.pcapng");
    let options = CaptureSink {
        path,
        snap_bytes: SNAP_BYTES,
        file_bytes: 20_000_000_000,
        disk_bytes: 40_000_000_000,
        ring_bytes: BUFFER_MIB << 20,
        ..CaptureSink::default()
    };
    let mut rig = Rig::bare(bytes, 1, Drive::Manual, None);
    pin(OTHER_CORE);
    let opened = rig.plane.try_open_sink(SinkKind::Capture(options));
    pin(CORE);
    let opened = opened.map_err(|error| error.to_string())?;
    let status = opened.hub.status();
    let written = status.text("file").map(PathBuf::from);
    let thread = sink_thread();
    let before = thread.as_deref().and_then(processor_time);
    rig.plane.workers[0].step();
    let rate = paced(rate, |count| {
        let pumped = rig.nic.pump(count as usize) as u64;
        rig.plane.workers[0].step();
        pumped
    });
    while rig.plane.workers[0].step() > 0 {}
    let begun = Instant::now();
    while opened.counters[0].read().in_flight() > 0 && begun.elapsed() < SETTLES {
        std::thread::sleep(Duration::from_millis(1));
    }
    let time = thread.as_deref().and_then(processor_time).zip(before);
    let time = time.map(|(after, before)| after.saturating_sub(before));
    // Ends the capture: everything that was passed on is written.
    drop(opened);
    let sent = rig.port().rx_frames;
    let folder = file.parent().unwrap_or(file);
    let written = written.map_or_else(|| newest(folder), Ok)?;
    let captured = packets_in(&written, bytes).map_err(|error| format!("{}: {error}", written.display()));
    let _ = std::fs::remove_file(&written);
    let captured = captured?;
    let processor_ns = time.map(|time| time.as_nanos() as f64 / captured.max(1) as f64);
    Ok(Trial { rate, is_lossless: captured == sent, processor_ns })
}

/// The folder in /proc of the thread of the sink, the only one of this process with its name.
fn sink_thread() -> Option<PathBuf> {
    let threads = std::fs::read_dir("/proc/self/task").ok()?;
    let mut threads = threads.filter_map(|thread| Some(thread.ok()?.path()));
    threads.find(|thread| std::fs::read_to_string(thread.join("comm")).is_ok_and(|name| name == "capture\n"))
}

/// The only file of a capture.
fn newest(folder: &Path) -> Result<PathBuf, String> {
    let entries = std::fs::read_dir(folder).map_err(|error| error.to_string())?;
    let mut files = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let is_own = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "pcapng");
    files.find(is_own).ok_or_else(|| "the capture wrote no file".to_owned())
}

fn by_tool(tool: CaptureTool, file: &Path, bytes: u32, rate: f64) -> Result<Trial, String> {
    let mut wire = AfPacketWire::open(&AfPacketConfig {
        interface: SENDER.to_owned(),
        promiscuous: false,
        ring_frames: 128,
        merged: MergedFrames::Split,
        busy_poll: false,
        hand_over: HandOver::Frames,
    })
    .map_err(|error| error.to_string())?;
    let mut generator = generator(bytes);
    let capture = tool.start(OTHER_CORE, RECEIVER, file, (SNAP_BYTES, BUFFER_MIB))?;
    let before = capture.processor_time();
    let mut sent = 0;
    let rate = paced(rate, |count| {
        let mut burst = Burst::with_limit(count as usize);
        generator.receive(&mut burst);
        let queued = burst.iter().filter(|frame| wire.transmit(frame.bytes).is_ok()).count() as u64;
        wire.flush();
        sent += queued;
        queued
    });
    wire.flush();
    std::thread::sleep(tool.settles());
    let time = capture.processor_time().zip(before).map(|(after, before)| after.saturating_sub(before));
    capture.stop()?;
    let captured = packets_in(file, bytes).map_err(|error| error.to_string());
    let _ = std::fs::remove_file(file);
    let captured = captured?;
    let processor_ns = time.map(|time| time.as_nanos() as f64 / captured.max(1) as f64);
    Ok(Trial { rate, is_lossless: captured == sent - wire.transmit_losses(), processor_ns })
}

fn generator(bytes: u32) -> Box<dyn Wire> {
    let text = format!(
        "kind = 'generator'\nflows = [{{ src = '10.1.0.0/16', dst = '192.0.2.53', protocol = 'udp', \
         dst_ports = '53', frame_bytes = {bytes}, count = 1024 }}]"
    );
    let config: WireConfig = toml::from_str(&text).expect("a generator");
    config.open().expect("it opens")
}

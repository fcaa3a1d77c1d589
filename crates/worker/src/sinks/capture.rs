//! The kind `capture`: packets are written to pcapng files by a thread of its own.
//!
//! Each worker chooses packets (`sampler`), and writes them as finished blocks (`pcapng`) into its `ring` to
//! the thread. The `writer` passes regions of the rings to `files` or to a stream, so a packet is copied once
//! by the worker and once by the kernel. A rule is an interface of the file (`interfaces`), so
//! `frame.interface_name == "dns"` selects its packets in Wireshark.
//!
//! Back-pressure: a packet that does not fit into the ring is dropped as `ring_full`. While the file cannot
//! be written packets are dropped as `disk_full` or `write_failed`, and the thread tries again after 0.1 to
//! 10 s; after the other side of a stream has closed they are dropped as `closed`.
//!
//! Timestamps are nanoseconds of the system's clock (CLOCK_REALTIME), converted from the device's timestamps
//! of completions (`clock`). For packets without one (`workers.timestamps` is off, or the device has no clock
//! that can be read), they are taken once per iteration of a worker's loop, when the packets of the iteration
//! are classified: all packets of an iteration have the same one; it is later than the arrival by the time
//! that the packet waited in the completion queue, typically some microseconds, and at most the duration of
//! two iterations plus that queue's depth. Packets of several workers are merged by time as far as they are
//! in the rings at the same moment, so a file can contain packets that are older than the ones before them.

mod commented;
mod files;
mod interfaces;
mod losses;
mod pcapng;
mod ring;
mod sampler;
mod writer;

use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking::Wakeup;
use program::{CaptureSink, Program};
use verbs::Context;

pub use self::commented::{CommentedPacket, CommentedSection};
use self::files::{CreateError, Files};
use self::interfaces::Names;
use self::pcapng::packet_block_bytes;
use self::ring::{Captured, Consumer, Producer};
use self::sampler::Sampler;
use self::writer::{Output, Settings, Shared, Writer};
use super::clock::{ClockHub, Timestamps, now_ns};
use super::{Hub, Opened, Ports, SinkError, SinkStatus};
use crate::BATCH_MAX;
use crate::sink::{Deliveries, Sink, SinkCounters, SinkDrop, SinkMap};

/// How long the end of a capture waits for a stream whose reader does not read. The thread then ends when the
/// reader reads or closes.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// Which rules' packets a capture gets.
#[derive(Clone, Debug)]
enum Rules {
    /// The captures that name the sink.
    OfSink(String),
    /// The capture of this name, to which the sink is attached.
    One(String),
}

/// The device that packets come from.
pub(super) struct Origin {
    /// For the section header.
    hardware: String,
    clock: ClockHub,
}

impl Origin {
    pub(super) fn new(context: &Arc<Context>) -> Self {
        Self { hardware: format!("RDMA device {}", context.name()), clock: ClockHub::open(context) }
    }
}

/// Makes the folder of a capture if it is below `state`, the folder of the daemon's state: it is the daemon's
/// own, so an operator need not make it. Other folders must exist.
///
/// # Errors
/// The folder cannot be made.
pub fn make_folder(name: &str, options: &CaptureSink, state: &Path) -> Result<(), SinkError> {
    files::make_folder(&options.path, state).map_err(|source| SinkError::Capture {
        sink: name.to_owned(),
        path: options.path.clone(),
        source,
    })
}

/// Opens a capture to files. The first file is created here, so that a folder that cannot be written to is an
/// error of the policy.
pub(super) fn open(
    name: &str,
    options: &CaptureSink,
    origin: Origin,
    workers: usize,
) -> Result<Opened, SinkError> {
    let (mut files, file_bytes) = files_of(name, options)?;
    files.create(file_bytes).map_err(|error| not_created(name, options, error))?;
    let rules = Rules::OfSink(name.to_owned());
    start(name, options, origin, workers, Output::Files(files), rules)
        .map_err(|source| not_created(name, options, source.into()))
}

/// Checks that a file can be begun, and begins none. `state`: the folder of the daemon's state, below which a
/// folder would be made.
pub(super) fn check(name: &str, options: &CaptureSink, state: Option<&Path>) -> Result<(), SinkError> {
    if let Some(checked) = state.and_then(|state| files::check_folder(&options.path, state)) {
        return checked.map_err(|source| not_created(name, options, source.into()));
    }
    let (files, file_bytes) = files_of(name, options)?;
    files.check(file_bytes).map_err(|error| not_created(name, options, error))
}

/// The files, and the most bytes of one.
fn files_of(name: &str, options: &CaptureSink) -> Result<(Files, u64), SinkError> {
    let files = Files::new(&options.path, name, options.disk_bytes);
    let files = files.map_err(|source| not_created(name, options, source.into()))?;
    let limit = files::size_limit();
    if limit < options.file_bytes {
        tracing::warn!(
            "sink `{name}`: its files end at {limit} bytes, the limit of the process, and not at `file_mb` (hint: \
             `ulimit -f`, LimitFSIZE= of the service)"
        );
    }
    Ok((files, options.file_bytes.min(limit)))
}

fn not_created(name: &str, options: &CaptureSink, error: CreateError) -> SinkError {
    let sink = name.to_owned();
    match error {
        CreateError::Io(source) => SinkError::Capture { sink, path: options.path.clone(), source },
        CreateError::Delete { path, source } => SinkError::CaptureRoom { sink, path, source },
    }
}

/// Opens a capture of one rule to a stream, which gets one section: headers at once, packets at the latest
/// 200 ms after they arrived, statistics at the end. An error of the stream ends the capture; packets are
/// then dropped as `closed`, or `write_failed` for other errors than the end of the reader. Path and file
/// limits of the options are not used.
///
/// The stream may block: it has a thread of its own. Its caller attaches the result to the rule, which
/// announces the program; nothing is written before that.
///
/// # Errors
/// There is no descriptor or thread left.
pub fn to_writer(
    stream: Box<dyn Write + Send>,
    name: &str,
    rule: &str,
    options: &CaptureSink,
    context: &Arc<Context>,
    workers: usize,
) -> io::Result<Opened> {
    let rules = Rules::One(rule.to_owned());
    start(name, options, Origin::new(context), workers, Output::Stream(stream), rules)
}

fn start(
    name: &str,
    options: &CaptureSink,
    origin: Origin,
    workers: usize,
    output: Output,
    rules: Rules,
) -> io::Result<Opened> {
    let counters: Vec<Arc<SinkCounters>> = (0..workers).map(|_| Arc::default()).collect();
    let (producers, hub) = spawn(name, options, origin, output, rules, &counters)?;
    let endpoint = |(producer, counters): (Producer, &Arc<SinkCounters>)| {
        Box::new(Endpoint {
            producer,
            counters: Arc::clone(counters),
            sampler: Sampler::new(options),
            timestamps: Timestamps::new(&hub.clock.shared),
            chosen: Vec::with_capacity(BATCH_MAX),
            snap_bytes: snap_bytes(options) as usize,
        }) as Box<dyn Sink>
    };
    let endpoints = producers.into_iter().zip(&counters).map(endpoint).collect();
    Ok(Opened { hub: Box::new(hub), endpoints, counters, transmit: Vec::new() })
}

/// Starts the thread; returns the workers' ends of its rings.
fn spawn(
    name: &str,
    options: &CaptureSink,
    origin: Origin,
    output: Output,
    rules: Rules,
    counters: &[Arc<SinkCounters>],
) -> io::Result<(Vec<Producer>, CaptureHub)> {
    let wakeup = Arc::new(Wakeup::new()?);
    let shared = Arc::new(Shared::default());
    let settings = Settings {
        sink: name.to_owned(),
        snap_bytes: snap_bytes(options),
        file_bytes: options.file_bytes,
        file_time: (options.file_seconds > 0).then(|| Duration::from_secs(options.file_seconds.into())),
        hardware: origin.hardware,
    };
    let (capacity, snap_bytes) = (options.ring_bytes as usize, snap_bytes(options) as usize);
    let ring = |_| ring::ring(capacity, snap_bytes, &wakeup, &shared.numbers);
    let (producers, rings): (Vec<Producer>, Vec<Consumer>) = counters.iter().map(ring).unzip();
    let writer =
        Writer::new(settings, output, Arc::clone(&wakeup), Arc::clone(&shared), counters.to_vec(), rings);
    // The name of a thread has at most 15 octets (pthread_setname_np(3)).
    let thread = thread::Builder::new().name("capture".to_owned()).spawn(move || writer.run())?;
    let thread = Mutex::new(Some(thread));
    let hub = CaptureHub { rules, digest: Mutex::default(), shared, clock: origin.clock, wakeup, thread };
    Ok((producers, hub))
}

fn snap_bytes(options: &CaptureSink) -> u32 {
    options.snap_bytes.clamp(1, CaptureSink::SNAP_BYTES_MAX)
}

/// A worker's end.
struct Endpoint {
    producer: Producer,
    counters: Arc<SinkCounters>,
    sampler: Option<Sampler>,
    timestamps: Timestamps,
    /// The choice for each packet of the iteration: whether it is taken.
    chosen: Vec<bool>,
    snap_bytes: usize,
}

impl Sink for Endpoint {
    fn run(&mut self, packets: &mut Deliveries<'_>) {
        let now_ns = now_ns();
        let (count, room) = self.choose(packets, now_ns);
        if count == 0 {
            return;
        }
        self.timestamps.refresh();
        let mut batch = self.producer.batch(count, room);
        let mut chosen = self.chosen.iter();
        for delivery in packets.iter() {
            if chosen.next().is_some_and(|chosen| !chosen) {
                continue;
            }
            let packet = Captured {
                generation: delivery.generation,
                rule: delivery.outcome.rule.0,
                timestamp_ns: self.timestamps.of(delivery.timestamp, now_ns),
                original_bytes: u32::try_from(delivery.bytes.len()).unwrap_or(u32::MAX),
            };
            batch.push(&packet, delivery.bytes);
        }
        let full = batch.finish();
        if full > 0 {
            self.counters.worker.dropped(SinkDrop::RingFull, full);
        }
    }
}

impl Endpoint {
    /// Counts the packets of an iteration and marks those that are taken; returns how many these are and the
    /// room that they need.
    fn choose(&mut self, packets: &Deliveries<'_>, now_ns: u64) -> (usize, usize) {
        let (mut count, mut bytes, mut taken, mut room) = (0, 0, 0, 0);
        let now_seconds = (now_ns / 1_000_000_000) as u32;
        let is_abandoned = self.producer.is_abandoned();
        self.chosen.clear();
        for delivery in packets.iter() {
            count += 1;
            bytes += delivery.bytes.len() as u64;
            let choice = match &mut self.sampler {
                _ if is_abandoned => Err(SinkDrop::Closed),
                Some(sampler) => sampler.choose(delivery.bytes, now_seconds),
                None => Ok(()),
            };
            // Never grows: an iteration has at most this many packets.
            self.chosen.push(choice.is_ok());
            match choice {
                Ok(()) => {
                    taken += 1;
                    room += packet_block_bytes(delivery.bytes.len().min(self.snap_bytes));
                }
                Err(reason) => {
                    self.counters.worker.dropped(reason, 1);
                    self.producer.skip(delivery.generation, delivery.outcome.rule.0);
                }
            }
        }
        self.counters.offered(count, bytes);
        (taken, room)
    }
}

/// The thread and what it shares with the control side.
struct CaptureHub {
    rules: Rules,
    /// A generation and the digest of its policy.
    digest: Mutex<(u64, String)>,
    shared: Arc<Shared>,
    clock: ClockHub,
    wakeup: Arc<Wakeup>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Hub for CaptureHub {
    fn announce(&self, map: &Arc<SinkMap>, program: &Arc<Program>) {
        let generation = map.generation();
        let is_captured = |rule: &program::Rule| match &self.rules {
            Rules::One(name) => rule.name == *name,
            Rules::OfSink(name) => {
                rule.sinks.iter().any(|id| program.sink(*id).is_some_and(|sink| sink.name == *name))
            }
        };
        let rules = program.rules.iter().map(|rule| (rule.name.to_string(), is_captured(rule)));
        // Packets that rules at run time decide have the number behind the rules of the policy.
        let at_run_time = program
            .runtime
            .iter()
            .map(|_| (program::RUNTIME_RULES.to_owned(), matches!(self.rules, Rules::OfSink(_))));
        let rules = rules.chain(at_run_time).collect();
        let (of, digest) = self.digest.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let policy = if of == generation { digest } else { String::new() };
        self.shared.announce(Names { generation, policy, rules });
        self.wakeup.wake();
    }

    fn digest(&self, generation: u64, sha256: &str) {
        *self.digest.lock().unwrap_or_else(PoisonError::into_inner) = (generation, sha256.to_owned());
    }

    fn tick(&self, _ports: &Ports<'_>) {
        self.clock.read();
    }

    fn deleted_files(&self) -> Option<u64> {
        matches!(self.rules, Rules::OfSink(_)).then(|| self.shared.status().deleted_files)
    }

    fn status(&self) -> SinkStatus {
        let status = self.shared.status().clone();
        let state = match (&status.error, status.ended) {
            (None, false) => "capturing",
            (Some(_), false) => "failed",
            (_, true) => "ended",
        };
        SinkStatus::default()
            .with("state", state)
            .with("files", status.files)
            .with_some("deleted_files", self.deleted_files())
            .with_some("file", status.file)
            .with_some("error", status.error)
    }
}

impl Drop for CaptureHub {
    fn drop(&mut self) {
        self.shared.stop();
        self.wakeup.wake();
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = thread else { return };
        let _ = parking::join_within(thread, END_TIMEOUT);
    }
}

#[cfg(test)]
mod tests;

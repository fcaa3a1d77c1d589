//! The thread of a capture: takes packets out of the workers' rings, in the order of their times, makes blocks of them,
//! and writes those in large pieces, at the latest [`FLUSH_INTERVAL`] after a packet was taken.
//!
//! Every packet that is taken is counted once: as delivered when the write that contains it has succeeded, else as
//! dropped. After an error of a file the thread retries with a growing pause and drops what arrives meanwhile; an error
//! of a stream is final.

use std::io::{self, Write};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::files::Files;
use super::interfaces::{Interfaces, Names};
use super::pcapng::{self, Section};
use crate::sink::{SinkCounters, SinkDrop};
use crate::sinks::handoff::{Consumer, Item, Iter, NO_RULE, Record, Wakeup};
use crate::stats::Traffic;

/// Blocks are collected up to this size. Longer packets than this do not exist (`handoff::PACKET_BYTES_MAX`).
const BUFFER_BYTES: usize = 1 << 20;
/// How much is taken out of the rings before their room is given back.
const PASS_BYTES: usize = 1 << 19;
/// How long a packet stays in the buffer. The promise is 200 ms; this leaves time for the pauses.
pub(super) const FLUSH_INTERVAL: Duration = Duration::from_millis(100);
/// While packets arrive the thread looks for more after this pause, without a wake-up by a worker.
const PAUSE: Duration = Duration::from_millis(1);
/// Passes without a packet after which the thread sleeps until it is woken.
const QUIET_PASSES: u32 = 4;
/// The longest sleep: how late a deleted file is noticed at most.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// The pause after the first error, and the longest.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(10);
/// Passes after the end was asked for, although workers still have their ends of the rings.
const LAST_PASSES: u32 = 64;
/// Room for the description of an interface.
const DESCRIPTION_BYTES: u64 = 512;
/// Programs whose rule names are kept: that in force, the one before it, and one that was not installed.
const NAMES_KEPT: usize = 4;

/// Where blocks go.
pub(super) enum Output {
    /// Files with rotation.
    Files(Files),
    /// One section without end, until the other side closes.
    Stream(Box<dyn Write + Send>),
}

/// What the thread writes by.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// For messages.
    pub(super) sink: String,
    pub(super) snap_bytes: u32,
    pub(super) file_bytes: u64,
    pub(super) file_time: Option<Duration>,
    pub(super) hardware: String,
}

/// What the thread shares with the hub.
#[derive(Debug, Default)]
pub(super) struct Shared {
    stop: AtomicBool,
    names: Mutex<Vec<Arc<Names>>>,
    /// Changes with `names`.
    version: AtomicU64,
    status: Mutex<Status>,
}

/// The state for operators.
#[derive(Clone, Debug, Default)]
pub(super) struct Status {
    pub(super) file: Option<String>,
    pub(super) files: u64,
    /// The error that the thread waits after, or that has ended the capture.
    pub(super) error: Option<String>,
    pub(super) ended: bool,
}

impl Shared {
    /// The rules of a program whose packets may come. One of the same generation, which was not installed, is replaced.
    pub(super) fn announce(&self, names: Names) {
        let mut list = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        list.retain(|known| known.generation != names.generation);
        list.push(Arc::new(names));
        let old = list.len().saturating_sub(NAMES_KEPT);
        list.drain(..old);
        self.version.fetch_add(1, Relaxed);
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Relaxed);
    }

    pub(super) fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
enum State {
    /// Nothing is written yet.
    Starting,
    Writing,
    /// After an error, until the time.
    Failed {
        reason: SinkDrop,
        retry: Instant,
    },
    /// After an error of a stream.
    Ended {
        reason: SinkDrop,
    },
}

pub(super) struct Writer {
    settings: Settings,
    output: Output,
    wakeup: Arc<Wakeup>,
    shared: Arc<Shared>,
    /// By ring.
    counters: Vec<Arc<SinkCounters>>,
    /// By ring: the packets in the buffer.
    pending: Vec<Traffic>,
    buffer: Vec<u8>,
    interfaces: Interfaces,
    names_version: u64,
    state: State,
    retry_pause: Duration,
    flushed: Instant,
    /// Of the current file or stream.
    started: Instant,
    started_ns: u64,
    generation: u64,
    packets: u64,
}

impl Writer {
    pub(super) fn new(
        settings: Settings,
        output: Output,
        wakeup: Arc<Wakeup>,
        shared: Arc<Shared>,
        counters: Vec<Arc<SinkCounters>>,
    ) -> Self {
        Self {
            settings,
            output,
            wakeup,
            shared,
            pending: vec![Traffic::default(); counters.len()],
            counters,
            buffer: Vec::with_capacity(BUFFER_BYTES + (1 << 16)),
            interfaces: Interfaces::default(),
            names_version: 0,
            state: State::Starting,
            retry_pause: RETRY_FIRST,
            flushed: Instant::now(),
            started: Instant::now(),
            started_ns: now_ns(),
            generation: 0,
            packets: 0,
        }
    }

    /// Runs until the workers have dropped their ends of the rings, or the hub asks for the end.
    pub(super) fn run(mut self, mut rings: Vec<Consumer>) {
        let (mut quiet, mut last_passes) = (0, 0);
        loop {
            let stop = self.shared.stop.load(Relaxed);
            let ending = stop || rings.iter().all(Consumer::is_abandoned);
            self.keep_up(Instant::now());
            let taken = self.take(&mut rings);
            last_passes += u32::from(ending);
            if ending && (taken == 0 || last_passes == LAST_PASSES) {
                break;
            }
            quiet = if taken == 0 { quiet + 1 } else { 0 };
            if quiet >= QUIET_PASSES {
                let timeout = if self.buffer.is_empty() { SLEEP_MAX } else { FLUSH_INTERVAL };
                self.wakeup.wait(|| rings.iter().any(|ring| !ring.is_empty()), timeout);
            } else if taken < PASS_BYTES / 2 && !ending {
                thread::sleep(PAUSE);
            }
        }
        self.end();
    }

    /// Everything that was taken is written, with headers even if nothing was. Of a capture that no program ever used
    /// nothing is left.
    fn end(&mut self) {
        if matches!(self.state, State::Starting) {
            match (&mut self.output, self.interfaces.newest()) {
                (Output::Files(files), None) => files.discard(),
                _ => self.start(),
            }
        }
        self.finish_file();
        self.shared.status().ended = true;
    }

    /// Called after the rings were read: the names of a program were announced before its packets came.
    fn learn_names(&mut self) {
        let version = self.shared.version.load(Relaxed);
        if version != self.names_version {
            let names = self.shared.names.lock().unwrap_or_else(PoisonError::into_inner).clone();
            self.interfaces.learn(names);
            self.names_version = version;
        }
    }

    /// What is due by time: the first header, a retry, a flush, the end of a file.
    fn keep_up(&mut self, now: Instant) {
        match self.state {
            State::Starting if self.interfaces.newest().is_some() => self.start(),
            State::Failed { retry, .. } if now >= retry => self.start(),
            State::Writing if now.duration_since(self.flushed) >= FLUSH_INTERVAL => {
                self.flush();
                self.check_file(now);
            }
            _ => {}
        }
    }

    fn check_file(&mut self, now: Instant) {
        let Output::Files(files) = &mut self.output else { return };
        if files.is_deleted() {
            files.close();
            let error = io::Error::new(io::ErrorKind::NotFound, "the file was deleted");
            self.fail(&error);
            self.start();
        } else if self.settings.file_time.is_some_and(|limit| now.duration_since(self.started) >= limit)
            && self.packets > 0
        {
            self.next_file();
        }
    }

    /// Takes what is in the rings, but not much more than [`PASS_BYTES`]; returns how much that was.
    fn take(&mut self, rings: &mut [Consumer]) -> usize {
        let records: Vec<_> = rings.iter_mut().map(Consumer::read).collect();
        self.learn_names();
        let mut heads: Vec<_> = records.iter().map(|records| Head::new(records.iter())).collect();
        let mut taken = 0;
        while taken < PASS_BYTES {
            // The earliest packet of all rings; losses have no time and come at once.
            let earliest =
                heads.iter().enumerate().filter_map(|(ring, head)| Some((head.time()?, ring))).min();
            let Some((_, ring)) = earliest else { break };
            let head = &mut heads[ring];
            let before = head.start;
            match head.item {
                Some(Item::Packet(record, bytes)) => self.packet(ring, &record, bytes),
                Some(Item::Lost { generation, rule, packets, skipped }) => {
                    self.missed((generation, rule), packets, skipped);
                }
                None => {}
            }
            head.advance();
            taken += head.start - before;
        }
        let ends: Vec<usize> = heads.iter().map(|head| head.start).collect();
        records.into_iter().zip(ends).for_each(|(records, end)| records.release_to(end));
        taken
    }

    fn packet(&mut self, ring: usize, record: &Record, bytes: &[u8]) {
        let bytes = bytes.get(..self.settings.snap_bytes as usize).unwrap_or(bytes);
        let is_ready = self.make_ready(record.generation, pcapng::packet_block_bytes(bytes.len()));
        let place = self.interfaces.of((record.generation, record.rule));
        if let Err(reason) = is_ready {
            self.interfaces.missed(place, 1, 0);
            self.counters[ring].thread.dropped(reason, 1);
            return;
        }
        let interface = self.interfaces.number(place, self.settings.snap_bytes, &mut self.buffer);
        let packet = pcapng::Packet {
            interface,
            timestamp_ns: record.timestamp_ns.unwrap_or_else(now_ns),
            original_bytes: record.original_bytes,
            dropped: self.interfaces.buffered(place),
            bytes,
        };
        pcapng::packet(&mut self.buffer, &packet);
        self.pending[ring] += Traffic { packets: 1, bytes: u64::from(record.original_bytes) };
        self.packets += 1;
    }

    /// Packets that are not in the ring, because it was full or because of sampling. The worker has counted them.
    fn missed(&mut self, rule: (u64, u32), full: u32, skipped: u32) {
        if rule.1 == NO_RULE {
            return;
        }
        let is_ready = self.make_ready(rule.0, 0);
        let place = self.interfaces.of(rule);
        self.interfaces.missed(place, u64::from(full), u64::from(skipped));
        if is_ready.is_ok() {
            let _ = self.interfaces.number(place, self.settings.snap_bytes, &mut self.buffer);
        }
    }

    /// Makes sure that a block of this size can go into the buffer, in a file that is not older than the packet's
    /// program; otherwise the reason why it is dropped.
    #[inline]
    fn make_ready(&mut self, generation: u64, block_bytes: usize) -> Result<(), SinkDrop> {
        if matches!(self.state, State::Starting) {
            self.start();
        }
        if let Output::Files(files) = &self.output
            && matches!(self.state, State::Writing)
        {
            let end = files.bytes() + (self.buffer.len() + block_bytes) as u64 + DESCRIPTION_BYTES;
            let is_long = end + self.interfaces.statistics_bytes() > self.settings.file_bytes;
            if generation > self.generation || is_long && self.packets > 0 {
                self.next_file();
            }
        }
        if self.buffer.len() + block_bytes + DESCRIPTION_BYTES as usize > BUFFER_BYTES {
            self.flush();
        }
        match self.state {
            State::Starting | State::Writing => Ok(()),
            State::Failed { reason, .. } | State::Ended { reason } => Err(reason),
        }
    }

    /// Begins a file or the stream: headers, which are written at once.
    fn start(&mut self) {
        let newest = self.interfaces.newest().cloned();
        if let Output::Files(files) = &mut self.output {
            // The first file exists already, since the sink was opened.
            let is_new = files.is_open() && files.bytes() == 0;
            if !is_new && let Err(error) = files.create(self.settings.file_bytes) {
                self.fail(&error);
                return;
            }
        }
        self.generation = newest.as_ref().map_or(0, |names| names.generation);
        self.packets = 0;
        self.started = Instant::now();
        self.started_ns = now_ns();
        self.headers(newest.as_deref());
        self.state = State::Writing;
        self.flush();
        if matches!(self.state, State::Writing) {
            let mut status = self.shared.status();
            status.error = None;
            if let Output::Files(files) = &self.output {
                status.file = files.path().map(|path| path.display().to_string());
                status.files += 1;
            }
        }
    }

    fn headers(&mut self, names: Option<&Names>) {
        let comment = match names {
            Some(Names { generation, policy, .. }) if !policy.is_empty() => {
                format!("policy generation {generation}, SHA-256 of the policy {policy}")
            }
            _ => format!("policy generation {}", self.generation),
        };
        let section = Section {
            hardware: &self.settings.hardware,
            os: &operating_system(),
            application: concat!("steerd ", env!("CARGO_PKG_VERSION")),
            comment: &comment,
        };
        pcapng::section_header(&mut self.buffer, &section);
        for place in self.interfaces.expected() {
            let _ = self.interfaces.number(place, self.settings.snap_bytes, &mut self.buffer);
        }
    }

    /// Writes the buffer.
    fn flush(&mut self) {
        self.flushed = Instant::now();
        if self.buffer.is_empty() {
            return;
        }
        let written = match &mut self.output {
            Output::Files(files) => files.write(&self.buffer),
            Output::Stream(stream) => stream.write_all(&self.buffer).and_then(|()| stream.flush()),
        };
        if let Err(error) = written {
            self.fail(&error);
            return;
        }
        self.buffer.clear();
        self.interfaces.flushed();
        let mut delivered = 0;
        for (pending, counters) in self.pending.iter_mut().zip(&self.counters) {
            let Traffic { packets, bytes } = std::mem::take(pending);
            counters.thread.delivered(packets, bytes);
            delivered += packets;
        }
        // On a disk that is almost full the headers of a file can be written, and its packets cannot.
        if delivered > 0 && self.retry_pause > RETRY_FIRST {
            self.retry_pause = RETRY_FIRST;
            tracing::info!("sink `{}`: capturing again", self.settings.sink);
        }
    }

    fn next_file(&mut self) {
        if self.packets == 0
            && let Output::Files(files) = &mut self.output
        {
            self.buffer.clear();
            files.discard();
            self.interfaces.file_ended();
        } else {
            self.finish_file();
        }
        if matches!(self.state, State::Writing) {
            self.start();
        }
    }

    /// Appends the statistics.
    fn finish_file(&mut self) {
        if !matches!(self.state, State::Writing) {
            return;
        }
        self.flush();
        if !matches!(self.state, State::Writing) {
            return;
        }
        self.interfaces.statistics(self.started_ns, now_ns(), &mut self.buffer);
        self.flush();
        if matches!(self.state, State::Writing) {
            self.interfaces.file_ended();
            if let Output::Files(files) = &mut self.output {
                files.close();
            }
        }
    }

    /// Gives up the current file or the stream with what is in the buffer.
    #[cold]
    fn fail(&mut self, error: &io::Error) {
        let reason = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => SinkDrop::DiskFull,
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => SinkDrop::Closed,
            _ => SinkDrop::WriteFailed,
        };
        self.buffer.clear();
        let mut unwritten = 0;
        for (pending, counters) in self.pending.iter_mut().zip(&self.counters) {
            unwritten += pending.packets;
            counters.thread.dropped(reason, std::mem::take(pending).packets);
        }
        self.interfaces.failed();
        // One line for a series of errors.
        let is_first = self.retry_pause == RETRY_FIRST;
        self.shared.status().error = Some(error.to_string());
        match &mut self.output {
            Output::Files(files) => {
                if self.packets == unwritten {
                    files.discard();
                } else {
                    files.close();
                }
                self.state = State::Failed { reason, retry: Instant::now() + self.retry_pause };
                self.retry_pause = (self.retry_pause * 2).min(RETRY_MAX);
            }
            Output::Stream(_) => {
                self.state = State::Ended { reason };
                self.shared.status().ended = true;
            }
        }
        if is_first {
            let sink = &self.settings.sink;
            tracing::warn!("sink `{sink}`: packets are lost, because writing the capture failed: {error}");
        }
    }
}

/// The next item of a ring.
struct Head<'r> {
    iter: Iter<'r>,
    item: Option<Item<'r>>,
    /// The position before the item.
    start: usize,
}

impl<'r> Head<'r> {
    fn new(iter: Iter<'r>) -> Self {
        let mut head = Self { iter, item: None, start: 0 };
        head.advance();
        head
    }

    fn advance(&mut self) {
        self.start = self.iter.position();
        self.item = self.iter.next();
    }

    fn time(&self) -> Option<u64> {
        Some(match self.item? {
            Item::Packet(record, _) => record.timestamp_ns.unwrap_or(0),
            Item::Lost { .. } => 0,
        })
    }
}

/// Nanoseconds since the epoch.
pub(super) fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

fn operating_system() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("Linux {}", release.trim()).trim_end().to_owned()
}

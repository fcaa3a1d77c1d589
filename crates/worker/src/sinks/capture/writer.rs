//! The thread of a capture: takes blocks out of the workers' rings, in the order of their times, and passes
//! regions of the rings to the kernel in large writes, at the latest [`FLUSH_INTERVAL`] after a packet was
//! taken. It makes the other blocks of the file, and the few of packets before which others were lost.
//!
//! Every packet that is taken is counted once: as delivered when the write that contains it has succeeded,
//! else as dropped. After an error of a file the thread retries with a growing pause and drops what arrives
//! meanwhile; an error of a stream is final.

use std::io::{self, IoSlice, Write};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use parking::Wakeup;

use super::files::{self, Files, write_all};
use super::interfaces::{Interfaces, Names};
use super::losses::NO_RULE;
use super::pcapng::{self, Section};
use super::ring::{Blocks, Consumer, Numbers, Run, Taken};
use crate::counter::Traffic;
use crate::sink::{SinkCounters, SinkDrop};
use crate::sinks::clock::now_ns;

/// The most bytes that are written at once, or [`RING_PART`] of a ring.
const WRITE_BYTES: u64 = 1 << 20;
const RING_PART: usize = 4;
/// How much is taken out of the rings before a look at the clock.
const PASS_BYTES: usize = 1 << 20;
/// How long a packet stays in the ring. The promise is 200 ms; this leaves time for the pauses.
pub(super) const FLUSH_INTERVAL: Duration = Duration::from_millis(100);
/// While packets arrive the thread looks for more after a pause, without a wake-up by a worker. The shorter
/// one follows a pass that took more than [`BUSY_PART`] of a ring.
const PAUSE: Duration = Duration::from_millis(1);
const BUSY_PAUSE: Duration = Duration::from_micros(200);
const BUSY_PART: usize = 64;
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

/// The settings of the thread.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// For messages.
    pub(super) sink: String,
    pub(super) snap_bytes: u32,
    pub(super) file_bytes: u64,
    pub(super) file_time: Option<Duration>,
    pub(super) hardware: String,
}

/// The state that the thread shares with the hub.
#[derive(Debug, Default)]
pub(super) struct Shared {
    stop: AtomicBool,
    names: Mutex<Vec<Arc<Names>>>,
    /// Changes with `names`.
    version: AtomicU64,
    status: Mutex<Status>,
    /// For the workers.
    pub(super) numbers: Arc<Numbers>,
}

/// The state for operators.
#[derive(Clone, Debug, Default)]
pub(super) struct Status {
    pub(super) file: Option<String>,
    pub(super) files: u64,
    /// The number of files that were deleted to make room for others.
    pub(super) deleted_files: u64,
    /// The error that the thread waits after, or that has ended the capture.
    pub(super) error: Option<String>,
    pub(super) ended: bool,
}

impl Shared {
    /// The rules of a program whose packets may come. One of the same generation, which was not installed, is
    /// replaced.
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
    /// The counters, by ring.
    counters: Vec<Arc<SinkCounters>>,
    rings: Vec<Consumer>,
    /// The packets that are not written yet, by ring.
    pending: Vec<Traffic>,
    unwritten: Unwritten,
    interfaces: Interfaces,
    names_version: u64,
    state: State,
    retry_pause: Duration,
    flushed: Instant,
    /// The start of the current file or stream.
    started: Instant,
    started_ns: u64,
    generation: u64,
    packets: u64,
    /// The length at which the current file ends: that of the settings, or the limit of the process if that
    /// is less.
    file_bytes: u64,
}

impl Writer {
    pub(super) fn new(
        settings: Settings,
        output: Output,
        wakeup: Arc<Wakeup>,
        shared: Arc<Shared>,
        counters: Vec<Arc<SinkCounters>>,
        rings: Vec<Consumer>,
    ) -> Self {
        Self {
            settings,
            output,
            wakeup,
            shared,
            pending: vec![Traffic::default(); counters.len()],
            counters,
            rings,
            unwritten: Unwritten::default(),
            interfaces: Interfaces::default(),
            names_version: 0,
            state: State::Starting,
            retry_pause: RETRY_FIRST,
            flushed: Instant::now(),
            started: Instant::now(),
            started_ns: now_ns(),
            generation: 0,
            packets: 0,
            file_bytes: u64::MAX,
        }
    }

    /// Runs until the workers have dropped their ends of the rings, or the hub asks for the end.
    pub(super) fn run(mut self) {
        let capacity = self.rings.iter().map(Consumer::capacity).min().unwrap_or(0);
        let (mut quiet, mut last_passes) = (0, 0);
        loop {
            let stop = self.shared.stop.load(Relaxed);
            let ending = stop || self.rings.iter().all(Consumer::is_abandoned);
            self.keep_up(Instant::now());
            let taken = self.take();
            last_passes += u32::from(ending);
            if ending && (taken == 0 || last_passes == LAST_PASSES) {
                break;
            }
            quiet = if taken == 0 { quiet + 1 } else { 0 };
            if quiet >= QUIET_PASSES {
                let timeout = if self.unwritten.is_empty() { SLEEP_MAX } else { FLUSH_INTERVAL };
                self.wakeup.wait(|| self.rings.iter().any(|ring| !ring.is_empty()), timeout);
            } else if taken < PASS_BYTES.min(capacity / RING_PART) && !ending {
                thread::sleep(if taken > capacity / BUSY_PART { BUSY_PAUSE } else { PAUSE });
            }
        }
        self.end();
    }

    /// Everything that was taken is written, with headers even if nothing was. Of a capture that no program
    /// ever used nothing is left.
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

    /// Called after a look into the rings: the names of a program were announced before its packets came.
    fn learn_names(&mut self) {
        let version = self.shared.version.load(Relaxed);
        if version != self.names_version {
            let names = self.shared.names.lock().unwrap_or_else(PoisonError::into_inner).clone();
            self.interfaces.learn(names);
            self.names_version = version;
        }
    }

    /// Does what is due by time: the first header, a retry, a flush, the end of a file.
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
    fn take(&mut self) -> usize {
        let mut taken = 0;
        while taken < PASS_BYTES {
            let Some((ring, others_ns)) = self.earliest() else { break };
            self.learn_names();
            taken += self.take_from(ring, others_ns);
            let rings_part = self.rings[ring].capacity() / RING_PART;
            if self.unwritten.bytes() >= WRITE_BYTES || self.rings[ring].taken_bytes() >= rings_part {
                self.flush();
            }
        }
        if self.unwritten.is_empty() {
            self.release();
        }
        taken
    }

    /// The ring with the earliest packet, and the time of the earliest packet of the others. Losses have no
    /// time and come at once.
    fn earliest(&mut self) -> Option<(usize, u64)> {
        let mut first: Option<(u64, usize)> = None;
        let mut others_ns = u64::MAX;
        for (ring, consumer) in self.rings.iter_mut().enumerate() {
            let Some(time) = consumer.head().map(|run| run.first_ns) else { continue };
            match first {
                Some((least, _)) if least <= time => others_ns = others_ns.min(time),
                _ => {
                    others_ns = first.map_or(others_ns, |(least, _)| others_ns.min(least));
                    first = Some((time, ring));
                }
            }
        }
        first.map(|(_, ring)| (ring, others_ns))
    }

    /// Takes losses, or the blocks at the head of a ring that are not later than those of the others and fit
    /// into the file; returns how much that was.
    fn take_from(&mut self, ring: usize, others_ns: u64) -> usize {
        let Some(&run) = self.rings[ring].head() else { return 0 };
        self.make_ready(run.generation);
        if run.blocks.packets == 0 {
            self.rings[ring].take(run.blocks);
            self.missed(&run);
            return size_of::<Run>();
        }
        let mut room = self.room();
        let mut part = self.rings[ring].first_blocks(room, others_ns);
        if u64::from(part.bytes) > room && self.packets > 0 {
            self.next_file();
            room = self.room();
            part = self.rings[ring].first_blocks(room, others_ns);
        }
        self.packets(ring, &run, part);
        part.bytes as usize
    }

    fn packets(&mut self, ring: usize, run: &Run, part: Blocks) {
        let place = self.interfaces.of((run.generation, run.rule));
        let packets = u64::from(part.packets);
        if let Some(reason) = self.refusal() {
            self.rings[ring].take(part);
            self.interfaces.missed(place, packets, 0);
            self.counters[ring].thread.dropped(reason, packets);
            return;
        }
        let number = self.interfaces.number(place, self.settings.snap_bytes, &mut self.unwritten.made);
        if number != run.interface {
            self.rings[ring].set_interface(part, number);
            self.shared.numbers.set(run.rule, number);
        }
        let lost = self.interfaces.taken(place, packets);
        let (mut start, end) = {
            let start = self.rings[ring].take(part);
            (start, start + part.bytes as usize)
        };
        if lost > 0 {
            // The first block gets an option, so a longer copy takes its place.
            let taken = self.rings[ring].taken();
            let block = taken.contiguous(start, end);
            let length = pcapng::read_packet(block).map_or(0, |(_, length)| length);
            pcapng::packet_with_drops(&mut self.unwritten.made, &block[..length], lost);
            start += length;
        }
        self.unwritten.add(ring, start, end);
        self.pending[ring] += Traffic { packets, bytes: part.original_bytes };
        self.packets += packets;
    }

    /// Packets that are not in the ring, because it was full or because of sampling. The worker has counted
    /// them.
    fn missed(&mut self, run: &Run) {
        if run.rule == NO_RULE {
            return;
        }
        let place = self.interfaces.of((run.generation, run.rule));
        self.interfaces.missed(place, u64::from(run.full), u64::from(run.skipped));
        if self.refusal().is_none() {
            let _ = self.interfaces.number(place, self.settings.snap_bytes, &mut self.unwritten.made);
        }
    }

    /// Begins a file if there is none, and the next if it is older than a packet's program.
    fn make_ready(&mut self, generation: u64) {
        if matches!(self.state, State::Starting) {
            self.start();
        }
        let is_newer = generation > self.generation && matches!(self.output, Output::Files(_));
        if is_newer && matches!(self.state, State::Writing) {
            self.next_file();
        }
    }

    /// Why packets are dropped.
    fn refusal(&self) -> Option<SinkDrop> {
        match self.state {
            State::Starting | State::Writing => None,
            State::Failed { reason, .. } | State::Ended { reason } => Some(reason),
        }
    }

    /// The octets of packets that the file has room for.
    fn room(&self) -> u64 {
        match &self.output {
            Output::Files(files) if matches!(self.state, State::Writing) => {
                let used = files.bytes() + self.unwritten.bytes() + self.interfaces.statistics_bytes();
                self.file_bytes.saturating_sub(used + DESCRIPTION_BYTES + pcapng::DROPS_BYTES as u64)
            }
            _ => u64::MAX,
        }
    }

    /// Gives the room of what was taken back to the workers.
    fn release(&mut self) {
        self.rings.iter_mut().for_each(Consumer::release);
    }

    /// Begins a file or the stream: headers, which are written at once.
    fn start(&mut self) {
        let newest = self.interfaces.newest().cloned();
        self.file_bytes = self.settings.file_bytes.min(files::size_limit());
        if let Output::Files(files) = &mut self.output {
            // The first file exists already, since the sink was opened.
            let is_new = files.is_open() && files.bytes() == 0;
            let created = if is_new { Ok(()) } else { files.create(self.file_bytes) };
            self.shared.status().deleted_files = files.deleted();
            if let Err(error) = created {
                self.fail(&error.into());
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
        pcapng::section_header(&mut self.unwritten.made, &section);
        for place in self.interfaces.expected() {
            let _ = self.interfaces.number(place, self.settings.snap_bytes, &mut self.unwritten.made);
        }
    }

    /// Writes everything that was taken.
    fn flush(&mut self) {
        self.flushed = Instant::now();
        if self.unwritten.is_empty() {
            return;
        }
        let written = {
            let taken: Vec<_> = self.rings.iter_mut().map(Consumer::taken).collect();
            let mut pieces = self.unwritten.pieces(&taken);
            match &mut self.output {
                Output::Files(files) => files.write(&mut pieces),
                Output::Stream(stream) => write_all(&mut pieces, |pieces| stream.write_vectored(pieces))
                    .and_then(|()| stream.flush()),
            }
        };
        self.unwritten.clear();
        self.release();
        if let Err(error) = written {
            self.fail(&error);
            return;
        }
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
            self.unwritten.clear();
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
        self.interfaces.statistics(self.started_ns, now_ns(), &mut self.unwritten.made);
        self.flush();
        if matches!(self.state, State::Writing) {
            self.interfaces.file_ended();
            if let Output::Files(files) = &mut self.output {
                files.close();
            }
        }
    }

    /// Gives up the current file or the stream with what is not written.
    #[cold]
    fn fail(&mut self, error: &io::Error) {
        let reason = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                SinkDrop::DiskFull
            }
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => SinkDrop::Closed,
            _ => SinkDrop::WriteFailed,
        };
        self.unwritten.clear();
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
        let sink = &self.settings.sink;
        if reason == SinkDrop::Closed {
            // How clients end a capture that they have asked for.
            tracing::debug!("sink `{sink}`: its reader has closed: {error}");
        } else if is_first {
            tracing::warn!("sink `{sink}`: packets are lost, because writing the capture failed: {error}");
        }
    }
}

/// The data to be written next, in order: regions of rings, and blocks that the thread makes.
#[derive(Debug, Default)]
struct Unwritten {
    pieces: Vec<Piece>,
    /// Headers, descriptions, statistics, packets with the number of those lost before. They come after all
    /// pieces that were added before them.
    made: Vec<u8>,
    /// How much of `made` is in `pieces`.
    listed: usize,
    /// Octets of `pieces` that are in rings.
    ring_bytes: usize,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    /// `None`: of `made`.
    ring: Option<usize>,
    start: usize,
    end: usize,
}

impl Unwritten {
    fn is_empty(&self) -> bool {
        self.bytes() == 0
    }

    fn bytes(&self) -> u64 {
        (self.ring_bytes + self.made.len()) as u64
    }

    /// Adds octets of a ring, by their offsets from [`Consumer::take`].
    fn add(&mut self, ring: usize, start: usize, end: usize) {
        self.list_made();
        self.ring_bytes += end - start;
        match self.pieces.last_mut() {
            Some(last) if last.ring == Some(ring) && last.end == start => last.end = end,
            _ => self.pieces.push(Piece { ring: Some(ring), start, end }),
        }
    }

    fn list_made(&mut self) {
        let (start, end) = (self.listed, self.made.len());
        if start < end {
            self.pieces.push(Piece { ring: None, start, end });
            self.listed = end;
        }
    }

    fn pieces<'u>(&'u mut self, rings: &'u [Taken<'_>]) -> Vec<IoSlice<'u>> {
        self.list_made();
        let slices = self.pieces.iter().flat_map(|piece| match piece.ring {
            Some(ring) => rings[ring].slices(piece.start, piece.end),
            None => [&self.made[piece.start..piece.end], &[]],
        });
        slices.filter(|slice| !slice.is_empty()).map(IoSlice::new).collect()
    }

    fn clear(&mut self) {
        self.pieces.clear();
        self.made.clear();
        self.listed = 0;
        self.ring_bytes = 0;
    }
}

pub(super) fn operating_system() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("Linux {}", release.trim()).trim_end().to_owned()
}

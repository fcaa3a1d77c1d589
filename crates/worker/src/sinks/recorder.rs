//! The flight recorder: each worker keeps the last packets that its rules decided, or their first octets, in
//! a ring in memory (`ring`). A [`RecorderReader`] copies them at any time without stopping workers, and
//! writes them as pcapng. It is not a kind of a policy's sinks: [`SinkMap::attach_recorder`] gives it
//! packets, those that workers drop or leave to the kernel among them. Packets that the device drops reach
//! no worker.
//!
//! A packet is copied once, where its outcome is known. Its time is that of captures: the device's timestamp,
//! or else the time of the worker's iteration.
//!
//! [`SinkMap::attach_recorder`]: crate::SinkMap::attach_recorder

mod names;
mod ring;

use std::borrow::Cow;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hugemem::{Arena, ArenaForecast, ArenaOptions, AtomicWords, HugememError};
use packet::DeepKey;
use program::{Predicate, Program, RecorderRing};
use verbs::Context;

use self::names::ProgramNames;
use self::ring::{PacketHead, RingWriter, SlotRing, slot_words};
use super::capture::{CommentedPacket, CommentedSection};
use super::clock::{ClockHub, Timestamps, now_ns};
use super::{Hub, Opened, Ports, SinkStatus};
use crate::sink::{Deliveries, Sink, SinkCounters, SinkMap};

/// The most programs by whose names recorded packets are described; packets of older ones have the number of
/// their rule.
const PROGRAMS_MAX: usize = 16;
/// The fewest packets of a ring.
const SLOTS_MIN: usize = 64;
/// The size at which blocks of a record are passed on.
const CHUNK_BYTES: usize = 1 << 16;

/// Why there is no recorder.
#[derive(Debug, thiserror::Error)]
pub enum RecorderError {
    /// The share of a worker is too small.
    #[error(
        "recorder: {} bytes are too little for {workers} workers: with snap = {} each needs {least} bytes, for {SLOTS_MIN} \
         packets (hint: set `memory` to \"{} MiB\" or more, or a smaller `snap`)",
        ring.memory_bytes, ring.snap_bytes, (*least as u64 * *workers as u64).div_ceil(1 << 20)
    )]
    TooSmall {
        /// The options of the policy.
        ring: RecorderRing,
        /// The number of workers.
        workers: usize,
        /// The bytes that each needs.
        least: usize,
    },
    /// The system does not give the memory.
    #[error("recorder: its memory cannot be had (hint: a smaller `memory` in [recorder])")]
    Memory(#[from] HugememError),
}

/// The memory of each worker, of the kinds of pages and on the nodes of `workers`.
fn arenas(ring: RecorderRing, workers: &[ArenaOptions]) -> Result<Vec<ArenaOptions>, RecorderError> {
    let share = ring.memory_bytes / workers.len().max(1) as u64;
    let least = SLOTS_MIN * slot_words(ring.snap_bytes as usize) * size_of::<u64>();
    if share < least as u64 {
        return Err(RecorderError::TooSmall { ring, workers: workers.len(), least });
    }
    let bytes = usize::try_from(share).unwrap_or(usize::MAX);
    let arena = |worker: &ArenaOptions| ArenaOptions {
        bytes,
        label: format!("recorder of {}", worker.label),
        ..worker.clone()
    };
    Ok(workers.iter().map(arena).collect())
}

/// Adds the memory of a recorder to a forecast. Nothing is mapped. `workers`: the arenas of the workers.
///
/// # Errors
/// The errors of [`open`].
pub fn forecast_memory(
    ring: RecorderRing,
    workers: &[ArenaOptions],
    forecast: &mut ArenaForecast,
) -> Result<(), RecorderError> {
    for options in arenas(ring, workers)? {
        forecast.add(&options)?;
    }
    Ok(())
}

/// Opens a recorder; all memory is taken here. `workers`: the arenas of the workers.
///
/// # Errors
/// There is no such memory, or it is too small.
pub fn open(
    ring: RecorderRing,
    workers: &[ArenaOptions],
    context: &Arc<Context>,
) -> Result<Opened, RecorderError> {
    let clock = ClockHub::open(context);
    let snap_bytes = ring.snap_bytes as usize;
    let mut rings = Vec::new();
    let (mut endpoints, mut counters) = (Vec::<Box<dyn Sink>>::new(), Vec::new());
    for options in arenas(ring, workers)? {
        let arena = Arena::map(&options)?;
        arena.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
        let words = options.bytes / size_of::<u64>();
        let words = arena
            .carve_words(words)
            .ok_or_else(|| HugememError::Size { label: options.label.clone(), bytes: options.bytes })?;
        let ring = SlotRing::new(words, snap_bytes);
        let of_worker = Arc::<SinkCounters>::default();
        endpoints.push(Box::new(Endpoint {
            writer: RingWriter::new(&ring),
            counters: Arc::clone(&of_worker),
            timestamps: Timestamps::new(&clock.shared),
        }));
        rings.push(ring);
        counters.push(of_worker);
    }
    let hardware = format!("RDMA device {}", context.name());
    let shared = Shared { hardware, options: ring, rings, programs: Mutex::default() };
    let hub = RecorderHub { recorder: RecorderReader(Arc::new(shared)), clock };
    Ok(Opened { hub: Box::new(hub), endpoints, counters, transmit: Vec::new() })
}

/// A worker's end.
struct Endpoint {
    writer: RingWriter<AtomicWords>,
    counters: Arc<SinkCounters>,
    timestamps: Timestamps,
}

impl Sink for Endpoint {
    fn run(&mut self, packets: &mut Deliveries<'_>) {
        let (mut count, mut bytes, mut iteration_ns) = (0, 0, None);
        self.timestamps.refresh();
        for delivery in packets.iter() {
            let of_iteration = || *iteration_ns.get_or_insert_with(now_ns);
            let head = PacketHead {
                time_ns: self.timestamps.of_iteration(delivery.timestamp, of_iteration),
                generation: delivery.generation,
                outcome: delivery.outcome,
                sinks: delivery.slots,
                original_bytes: u32::try_from(delivery.bytes.len()).unwrap_or(u32::MAX),
                kept_bytes: 0,
            };
            self.writer.push(head, delivery.bytes);
            count += 1;
            bytes += delivery.bytes.len() as u64;
        }
        self.writer.publish();
        self.counters.offered(count, bytes);
        self.counters.worker.delivered(count, bytes);
    }
}

/// The rings of all workers, for readers. They stay in memory while there is one.
#[derive(Clone, Debug)]
pub struct RecorderReader(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// For the header of records.
    hardware: String,
    options: RecorderRing,
    rings: Vec<Arc<SlotRing<AtomicWords>>>,
    /// The newest last, at most [`PROGRAMS_MAX`].
    programs: Mutex<Vec<Arc<ProgramNames>>>,
}

/// Which packets of a recorder are wanted.
#[derive(Clone, Debug, Default)]
pub struct RecordFilter {
    /// Packets of this time or later, in nanoseconds since 1970.
    pub since_ns: u64,
    /// The packets, by the octets that are kept of them; `None`: all.
    pub matches: Option<Predicate>,
}

/// The time so long ago, for [`RecordFilter::since_ns`].
#[must_use]
pub fn since_ns(last: Duration) -> u64 {
    now_ns().saturating_sub(u64::try_from(last.as_nanos()).unwrap_or(u64::MAX))
}

/// A packet of a record.
#[derive(Clone, Copy, Debug)]
struct CopiedPacket {
    worker: usize,
    head: PacketHead,
    /// The place of its octets.
    start: usize,
}

/// Packets that were copied out of the rings of a recorder.
#[derive(Debug)]
pub struct PacketRecord {
    shared: Arc<Shared>,
    /// By time.
    packets: Vec<CopiedPacket>,
    bytes: Vec<u8>,
    /// By worker, how many packets were overwritten while they were copied.
    overwritten: Vec<u64>,
}

impl RecorderReader {
    /// Copies the packets that are in the rings now, while workers go on: the oldest may be overwritten
    /// meanwhile. Takes as much memory as what is copied.
    ///
    /// # Errors
    /// The host, or a control group, has no memory for the copies.
    pub fn copy(&self, filter: &RecordFilter) -> io::Result<PacketRecord> {
        let Self(shared) = self;
        let (mut packets, mut bytes) = (Vec::new(), Vec::new());
        let (mut kept, mut frame) = (Vec::new(), Vec::new());
        let mut overwritten = Vec::with_capacity(shared.rings.len());
        for (worker, ring) in shared.rings.iter().enumerate() {
            let mut missed = 0;
            for number in ring.kept() {
                let Some(head) = ring.copy(number, &mut kept) else {
                    missed += 1;
                    continue;
                };
                let is_wanted = head.time_ns >= filter.since_ns
                    && filter
                        .matches
                        .as_ref()
                        .is_none_or(|matches| is_match(matches, &head, &kept, &mut frame));
                if is_wanted {
                    reserve(&mut packets, 1)?;
                    reserve(&mut bytes, kept.len())?;
                    packets.push(CopiedPacket { worker, head, start: bytes.len() });
                    bytes.extend_from_slice(&kept);
                }
            }
            overwritten.push(missed);
        }
        // Packets of one worker are in order already, and stay in it where times are equal.
        packets.sort_by_key(|packet| packet.head.time_ns);
        Ok(PacketRecord { shared: Arc::clone(shared), packets, bytes, overwritten })
    }
}

/// Makes room for so many more values. The host is asked first: it would promise memory that it does not
/// have, and end the process that writes to it.
fn reserve<T>(list: &mut Vec<T>, more: usize) -> io::Result<()> {
    if list.capacity() - list.len() < more {
        let grows_by = list.capacity().max(more).saturating_mul(size_of::<T>());
        ArenaForecast::default().add_memory(grows_by as u64)?;
        list.try_reserve(more)?;
    }
    Ok(())
}

/// Whether the packet matches. What is not kept of it counts as zeros, so that its length is the real one.
fn is_match(matches: &Predicate, head: &PacketHead, kept: &[u8], frame: &mut Vec<u8>) -> bool {
    frame.clear();
    frame.extend_from_slice(kept);
    frame.resize(kept.len().max(head.original_bytes as usize), 0);
    matches.matches_deep(&DeepKey::of(frame))
}

impl PacketRecord {
    /// The number of its packets.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.packets.len() as u64
    }

    /// How many packets were overwritten while they were copied; whether they were wanted is not known.
    #[must_use]
    pub fn overwritten(&self) -> u64 {
        self.overwritten.iter().sum()
    }

    /// Writes a pcapng section: each rule is an interface, and each packet has its outcome as a comment. The
    /// first packet of a worker mentions those that were overwritten before it, and the section, with
    /// `comment`, all of them.
    ///
    /// # Errors
    /// The errors of `out`.
    pub fn write(&self, comment: &str, out: &mut dyn Write) -> io::Result<()> {
        let mut blocks = Vec::with_capacity(2 * CHUNK_BYTES);
        let Shared { hardware, options, .. } = &*self.shared;
        let comment = match self.overwritten() {
            0 => Cow::Borrowed(comment),
            packets => format!("{comment}; {packets} packets were overwritten while they were copied").into(),
        };
        let mut section = CommentedSection::begin(hardware, options.snap_bytes, &comment, &mut blocks);
        let programs = self.shared.programs().clone();
        let mut missing = self.overwritten.clone();
        for packet in &self.packets {
            let CopiedPacket { worker, head, start } = packet;
            let names = programs.iter().rev().find(|names| names.generation() == head.generation);
            let (rule, outcome) = ProgramNames::describe(names.map(|names| &**names), head);
            let packet = CommentedPacket {
                rule: &rule,
                timestamp_ns: head.time_ns,
                original_bytes: head.original_bytes,
                bytes: self.bytes.get(*start..start + head.kept_bytes as usize).unwrap_or_default(),
                comment: &format!("{outcome}, worker {worker}"),
                missing: missing.get_mut(*worker).map_or(0, std::mem::take),
            };
            section.packet(&packet, &mut blocks);
            if blocks.len() >= CHUNK_BYTES {
                out.write_all(&blocks)?;
                blocks.clear();
            }
        }
        out.write_all(&blocks)?;
        out.flush()
    }
}

impl Shared {
    fn programs(&self) -> MutexGuard<'_, Vec<Arc<ProgramNames>>> {
        self.programs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The control side.
struct RecorderHub {
    recorder: RecorderReader,
    clock: ClockHub,
}

impl Hub for RecorderHub {
    fn announce(&self, map: &Arc<SinkMap>, program: &Arc<Program>) {
        let names = Arc::new(ProgramNames::of(map, program));
        let RecorderReader(shared) = &self.recorder;
        let mut programs = shared.programs();
        // The number of a program that was not installed is used again.
        programs.retain(|known| known.generation() != names.generation());
        if programs.len() == PROGRAMS_MAX {
            programs.remove(0);
        }
        programs.push(names);
    }

    fn tick(&self, _ports: &Ports<'_>) {
        self.clock.read();
    }

    fn recorder(&self) -> Option<RecorderReader> {
        Some(self.recorder.clone())
    }

    fn status(&self) -> SinkStatus {
        let RecorderReader(shared) = &self.recorder;
        let sum =
            |of: fn(&SlotRing<AtomicWords>) -> u64| shared.rings.iter().map(|ring| of(ring)).sum::<u64>();
        let kept = sum(|ring| {
            let kept = ring.kept();
            kept.end - kept.start
        });
        // What a ring of a busy worker has is the shortest part.
        let now_ns = now_ns();
        let ages = shared.rings.iter().filter(|ring| ring.written() > ring.slots());
        let ages = ages.filter_map(|ring| Some(now_ns.saturating_sub(ring.oldest_ns()?) / 1_000_000));
        SinkStatus::default()
            .with("memory_bytes", shared.options.memory_bytes)
            .with("snap_bytes", shared.options.snap_bytes)
            .with("packets", kept)
            .with("packets_max", sum(SlotRing::slots))
            .with_some("reaches_back_ms", ages.min())
    }
}

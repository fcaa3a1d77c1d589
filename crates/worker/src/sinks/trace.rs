//! Shows decided packets, one by one, to a handler on a thread of its own: the worker, the flow tag, the
//! outcome and the sinks that each packet really had. It is not a kind of a policy: it is attached to all
//! packets of a running program ([`SinkMap::attach_to_all`]) and taken away again.
//!
//! Each worker chooses packets by a predicate, and copies what it knows of them into a ring of whole records.
//! What does not fit is dropped as `ring_full`, so a slow handler holds nobody up.
//!
//! [`SinkMap::attach_to_all`]: crate::SinkMap::attach_to_all

use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use packet::{DeepKey, FrameHead};
use parking::Wakeup;
use program::{Outcome, Predicate, Program, Verdict, WorkerId};
use rtrb::{Consumer, Producer, RingBuffer};
use verbs::{Context, FlowTag};

use super::clock::{ClockHub, Timestamps, now_ns};
use super::{Hub, Opened, Ports};
use crate::policer::OneIn;
use crate::sink::{Deliveries, Sink, SinkCounters, SinkDrop, SinkMap, SlotSet};

/// The most packets of a worker that wait for the handler, and the most bytes of them.
const RING_PACKETS: usize = 256;
const RING_BYTES: usize = 1 << 20;
/// The most programs that packets in the rings can be of; packets of older ones are not compared.
const PROGRAMS_MAX: usize = 8;
/// How long the end waits for a handler that does not return.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// A decided packet, and the worker's way to the decision.
#[derive(Clone, Copy, Debug)]
pub struct TracedPacket {
    /// The worker that received it.
    pub worker: WorkerId,
    /// The program that decided it.
    pub generation: u64,
    /// The tag of its flow; 0 if the flow has none or the device has no tags.
    pub tag: FlowTag,
    /// The rule and its verdict, after the rule's limits.
    pub outcome: Outcome,
    /// The places of the sinks that get it, that of the trace included.
    pub slots: SlotSet,
    /// The time of reception by the device's clock, in nanoseconds since the epoch, where the device has one
    /// that can be read and timestamps were asked for.
    pub received_ns: Option<u64>,
    /// The time of the decision, in nanoseconds since the epoch; the same for all packets of an iteration.
    pub decided_ns: u64,
    /// The time of the decision by a clock that cannot be set.
    pub decided_at: Instant,
    /// The header fields of the whole packet.
    pub key: DeepKey,
    /// The first bytes of the packet.
    pub head: FrameHead,
}

/// A program that packets of a trace can be of.
#[derive(Clone, Debug)]
pub struct KnownProgram {
    /// The places of its sinks.
    pub map: Arc<SinkMap>,
    /// The program as workers have it.
    pub program: Arc<Program>,
    /// The earliest time of a packet of this program.
    pub since: Instant,
    /// The latest time of a packet of it; `None`: it is still in use.
    pub until: Option<Instant>,
}

impl KnownProgram {
    /// Returns whether a packet of this time can be of the program.
    #[must_use]
    pub fn can_have(&self, at: Instant) -> bool {
        self.since <= at && self.until.is_none_or(|until| at <= until)
    }
}

/// Takes the packets of a trace, on the trace's thread. It may block: packets that come meanwhile are
/// dropped when the rings are full.
pub trait Tracer: Send {
    /// Collects packets from elsewhere; called at least every [`parking::HEARTBEAT`]. The programs are read
    /// after this call, so the list given to [`Tracer::show_collected`] contains the program of each.
    fn collect(&mut self) {}

    /// Shows what was collected, by these programs, of which the newest is last. `false`: nobody wants more.
    fn show_collected(&mut self, _programs: &[KnownProgram]) -> bool {
        true
    }

    /// Shows a packet with the first bytes of its frame ([`TraceOptions::frame_bytes`]), in the order of one
    /// worker. `false`: nobody wants more.
    fn show(&mut self, packet: &TracedPacket, frame: &[u8], programs: &[KnownProgram]) -> bool;

    /// Notes that packets were left out since the last call, because the tracer was too slow.
    fn left_out(&mut self, packets: u64);
}

/// Which packets are traced.
#[derive(Clone, Debug)]
pub struct TraceOptions {
    /// The packets; `None`: all.
    pub matches: Option<Predicate>,
    /// One of so many packets that match.
    pub one_in: u32,
    /// Only packets that are dropped, or that a worker does not deliver.
    pub only_dropped: bool,
    /// The most bytes of a frame that the tracer gets.
    pub frame_bytes: u32,
}

impl TraceOptions {
    /// The bytes of a frame that the tracer gets.
    fn kept<'f>(&self, frame: &'f [u8]) -> &'f [u8] {
        frame.get(..self.frame_bytes as usize).unwrap_or(frame)
    }

    /// How many these are, by the length of the frame.
    fn kept_bytes(&self, frame_bytes: u32) -> usize {
        self.frame_bytes.min(frame_bytes) as usize
    }
}

/// Chooses packets by the options of a trace; one for each thread that has packets.
#[derive(Debug)]
pub struct TraceFilter {
    options: TraceOptions,
    sample: OneIn,
}

impl TraceFilter {
    /// A filter that begins with the first packet.
    #[must_use]
    pub fn new(options: &TraceOptions) -> Self {
        Self { options: options.clone(), sample: OneIn::new(options.one_in) }
    }

    /// The header fields of a packet that is chosen. Others are parsed only if a match asks for it.
    pub fn choose(&self, frame: &[u8], is_dropped: bool) -> Option<DeepKey> {
        if self.options.only_dropped && !is_dropped {
            return None;
        }
        match &self.options.matches {
            None => self.sample.take().then(|| DeepKey::of(frame)),
            Some(matches) => {
                let key = DeepKey::of(frame);
                (matches.matches_deep(&key) && self.sample.take()).then_some(key)
            }
        }
    }
}

/// Opens a trace.
///
/// # Errors
/// There is no descriptor or thread left.
pub fn open(
    tracer: Box<dyn Tracer>,
    options: &TraceOptions,
    context: &Arc<Context>,
    workers: usize,
) -> io::Result<Opened> {
    let clock = ClockHub::open(context);
    let wakeup = Arc::new(Wakeup::new()?);
    let shared = Arc::<Shared>::default();
    let counters: Vec<Arc<SinkCounters>> = (0..workers).map(|_| Arc::default()).collect();
    let (mut rings, mut endpoints) = (Vec::new(), Vec::<Box<dyn Sink>>::new());
    for (worker, counters) in counters.iter().enumerate() {
        let (producer, consumer) = RingBuffer::new(RING_PACKETS);
        let (frames, of_reader) = RingBuffer::new(if options.frame_bytes > 0 { RING_BYTES } else { 1 });
        rings.push(Ring { packets: consumer, frames: of_reader });
        endpoints.push(Box::new(Endpoint {
            worker: WorkerId::of(worker),
            filter: TraceFilter::new(options),
            timestamps: Timestamps::new(&clock.shared),
            producer,
            frames,
            counters: Arc::clone(counters),
            wakeup: Arc::clone(&wakeup),
            shared: Arc::clone(&shared),
        }));
    }
    let reader = Reader {
        tracer,
        options: options.clone(),
        frame: Vec::new(),
        rings,
        counters: counters.clone(),
        wakeup: Arc::clone(&wakeup),
        shared: Arc::clone(&shared),
        left_out: 0,
    };
    let thread = thread::Builder::new().name("trace".to_owned()).spawn(move || reader.run())?;
    let hub = TraceHub { shared, clock, wakeup, thread: Mutex::new(Some(thread)) };
    Ok(Opened { hub: Box::new(hub), endpoints, counters, transmit: Vec::new() })
}

/// What the thread shares with workers and control side.
#[derive(Default)]
struct Shared {
    /// The newest last, at most [`PROGRAMS_MAX`].
    programs: Mutex<Vec<KnownProgram>>,
    /// No further packets are wanted.
    is_over: AtomicBool,
}

/// A worker's end.
struct Endpoint {
    worker: WorkerId,
    filter: TraceFilter,
    timestamps: Timestamps,
    producer: Producer<TracedPacket>,
    /// The bytes of the packets' frames, in the same order.
    frames: Producer<u8>,
    counters: Arc<SinkCounters>,
    wakeup: Arc<Wakeup>,
    shared: Arc<Shared>,
}

impl Sink for Endpoint {
    fn run(&mut self, packets: &mut Deliveries<'_>) {
        if self.shared.is_over.load(Relaxed) {
            return;
        }
        let (decided_ns, decided_at) = (now_ns(), Instant::now());
        self.timestamps.refresh();
        let (mut count, mut bytes, mut full) = (0, 0, 0);
        for delivery in packets.iter() {
            // A packet left to the kernel is lost unless the program has a kernel sink.
            let may_be_dropped = matches!(delivery.outcome.verdict, Verdict::Drop | Verdict::Kernel);
            let Some(key) = self.filter.choose(delivery.bytes, may_be_dropped) else { continue };
            (count, bytes) = (count + 1, bytes + delivery.bytes.len() as u64);
            let received = delivery.timestamp.and_then(|at| self.timestamps.exact(at));
            let packet = TracedPacket {
                worker: self.worker,
                generation: delivery.generation,
                tag: delivery.tag,
                outcome: delivery.outcome,
                slots: delivery.slots,
                received_ns: received,
                decided_ns,
                decided_at,
                key,
                head: FrameHead::of(delivery.bytes),
            };
            full += u64::from(!self.push(packet, delivery.bytes));
        }
        self.counters.offered(count, bytes);
        self.counters.worker.dropped(SinkDrop::RingFull, full);
        if count > full {
            self.wakeup.notify();
        }
    }
}

impl Endpoint {
    /// Hands a packet over with the bytes of its frame; `false`: there is no room for both.
    fn push(&mut self, packet: TracedPacket, frame: &[u8]) -> bool {
        let kept = self.filter.options.kept(frame);
        if self.producer.is_full() {
            return false;
        }
        let Ok(mut chunk) = self.frames.write_chunk(kept.len()) else { return false };
        let (first, second) = chunk.as_mut_slices();
        let (start, end) = kept.split_at(first.len());
        first.copy_from_slice(start);
        second.copy_from_slice(end);
        chunk.commit_all();
        self.producer.push(packet).is_ok()
    }
}

/// The thread's end of a worker's rings.
struct Ring {
    packets: Consumer<TracedPacket>,
    frames: Consumer<u8>,
}

impl Ring {
    /// Takes the next packet and puts the bytes of its frame into `frame`.
    fn pop(&mut self, options: &TraceOptions, frame: &mut Vec<u8>) -> Option<TracedPacket> {
        let packet = self.packets.pop().ok()?;
        frame.clear();
        // They were there before the packet.
        if let Ok(chunk) = self.frames.read_chunk(options.kept_bytes(packet.head.frame_bytes)) {
            let (first, second) = chunk.as_slices();
            frame.extend_from_slice(first);
            frame.extend_from_slice(second);
            chunk.commit_all();
        }
        Some(packet)
    }
}

/// The thread of a trace.
struct Reader {
    tracer: Box<dyn Tracer>,
    options: TraceOptions,
    /// The bytes of the packet that is shown.
    frame: Vec<u8>,
    rings: Vec<Ring>,
    counters: Vec<Arc<SinkCounters>>,
    wakeup: Arc<Wakeup>,
    shared: Arc<Shared>,
    /// The packets without room in a ring that the tracer was informed of.
    left_out: u64,
}

impl Reader {
    fn run(mut self) {
        loop {
            // Packets that were in a ring before the end are still shown. The programs are read after the
            // rings, so none is missing.
            let is_over = self.shared.is_over.load(Acquire);
            let begun = Instant::now();
            let waiting: Vec<usize> = self.rings.iter().map(|ring| ring.packets.slots()).collect();
            self.tracer.collect();
            let programs = self.shared.programs().clone();
            self.report_left_out();
            let mut rings = waiting.into_iter().enumerate();
            let wants_more = self.tracer.show_collected(&programs)
                && rings.all(|(ring, waiting)| (0..waiting).all(|_| self.show_next(ring, &programs)));
            if is_over || !wants_more {
                return self.shared.is_over.store(true, Release);
            }
            // What comes from now on is newer.
            self.shared.programs().retain(|known| known.until.is_none_or(|until| until >= begun));
            let has_work = || {
                self.shared.is_over.load(Relaxed) || self.rings.iter().any(|ring| !ring.packets.is_empty())
            };
            self.wakeup.wait(has_work, parking::HEARTBEAT);
        }
    }

    fn report_left_out(&mut self) {
        let full = |counters: &Arc<SinkCounters>| {
            let dropped = counters.read().dropped;
            dropped.iter().filter(|(why, _)| *why == SinkDrop::RingFull).map(|(_, count)| count).sum::<u64>()
        };
        let left_out: u64 = self.counters.iter().map(full).sum();
        let before = std::mem::replace(&mut self.left_out, left_out);
        if left_out > before {
            self.tracer.left_out(left_out - before);
        }
    }

    /// Shows the next packet of a ring; `false`: the tracer wants no other.
    fn show_next(&mut self, ring: usize, programs: &[KnownProgram]) -> bool {
        let Some(packet) = self.rings[ring].pop(&self.options, &mut self.frame) else { return true };
        self.counters[ring].thread.delivered(1, packet.head.frame_bytes.into());
        self.tracer.show(&packet, &self.frame, programs)
    }
}

impl Shared {
    fn programs(&self) -> std::sync::MutexGuard<'_, Vec<KnownProgram>> {
        self.programs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct TraceHub {
    shared: Arc<Shared>,
    clock: ClockHub,
    wakeup: Arc<Wakeup>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Hub for TraceHub {
    fn announce(&self, map: &Arc<SinkMap>, program: &Arc<Program>) {
        let mut programs = self.shared.programs();
        let known = programs.iter().position(|known| Arc::ptr_eq(&known.map, map));
        let since = known.map_or_else(Instant::now, |place| programs.remove(place).since);
        if programs.len() == PROGRAMS_MAX {
            let oldest = programs.iter().position(|known| known.until.is_some()).unwrap_or(0);
            programs.remove(oldest);
        }
        programs.push(KnownProgram {
            map: Arc::clone(map),
            program: Arc::clone(program),
            since,
            until: None,
        });
    }

    fn release_others(&self, map: &Arc<SinkMap>) {
        let now = Instant::now();
        for known in self.shared.programs().iter_mut().filter(|known| !Arc::ptr_eq(&known.map, map)) {
            known.until.get_or_insert(now);
        }
    }

    fn tick(&self, _ports: &Ports<'_>) {
        self.clock.read();
    }
}

impl Drop for TraceHub {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Release);
        self.wakeup.wake();
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // One that does not end yet waits for its handler, and ends when that returns.
        let _ = thread.map(|thread| parking::join_within(thread, END_TIMEOUT));
    }
}

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
use std::time::Duration;

use packet::{DeepKey, FrameHead};
use parking::Wakeup;
use program::{Outcome, Predicate, Program, Verdict, WorkerId};
use rtrb::{Consumer, Producer, RingBuffer};
use verbs::{Context, FlowTag};

use super::clock::{ClockHub, Timestamps, now_ns};
use super::{Hub, Opened, Ports};
use crate::policer::OneIn;
use crate::sink::{Deliveries, Sink, SinkCounters, SinkDrop, SinkMap, SlotSet};

/// The most packets of a worker that wait for the handler.
const RING_PACKETS: usize = 256;
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
    /// The header fields of the whole packet.
    pub key: DeepKey,
    /// The first bytes of the packet.
    pub head: FrameHead,
}

/// Takes the packets of a trace, on the trace's thread. It may block: packets that come meanwhile are
/// dropped when the rings are full.
pub trait Tracer: Send {
    /// Packets of this program may follow, with sinks in the places of this map.
    fn announce(&mut self, map: &Arc<SinkMap>, program: &Arc<Program>);

    /// Takes a packet, in the order of one worker. `false`: no others are wanted.
    fn trace(&mut self, packet: &TracedPacket) -> bool;

    /// Called between packets, at least every [`parking::HEARTBEAT`]. `false`: no others are wanted.
    fn poll(&mut self) -> bool {
        true
    }
}

/// Which packets are traced.
#[derive(Clone, Debug)]
pub struct TraceOptions {
    /// The packets; `None`: all.
    pub matches: Option<Predicate>,
    /// One of so many packets that match.
    pub one_in: u32,
    /// Only packets that workers drop.
    pub only_dropped: bool,
}

impl TraceOptions {
    fn wants(&self, key: &DeepKey, outcome: Outcome) -> bool {
        (!self.only_dropped || outcome.verdict == Verdict::Drop)
            && self.matches.as_ref().is_none_or(|matches| matches.matches_deep(key))
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
        rings.push(consumer);
        endpoints.push(Box::new(Endpoint {
            worker: WorkerId::of(worker),
            options: options.clone(),
            sample: OneIn::new(options.one_in),
            timestamps: Timestamps::new(&clock.shared),
            producer,
            counters: Arc::clone(counters),
            wakeup: Arc::clone(&wakeup),
            shared: Arc::clone(&shared),
        }));
    }
    let reader = Reader {
        tracer,
        rings,
        counters: counters.clone(),
        wakeup: Arc::clone(&wakeup),
        shared: Arc::clone(&shared),
    };
    let thread = thread::Builder::new().name("trace".to_owned()).spawn(move || reader.run())?;
    let hub = TraceHub { shared, clock, wakeup, thread: Mutex::new(Some(thread)) };
    Ok(Opened { hub: Box::new(hub), endpoints, counters, transmit: Vec::new() })
}

/// What the thread shares with workers and control side.
#[derive(Default)]
struct Shared {
    programs: Mutex<Vec<(Arc<SinkMap>, Arc<Program>)>>,
    /// No further packets are wanted.
    is_over: AtomicBool,
}

/// A worker's end.
struct Endpoint {
    worker: WorkerId,
    options: TraceOptions,
    sample: OneIn,
    timestamps: Timestamps,
    producer: Producer<TracedPacket>,
    counters: Arc<SinkCounters>,
    wakeup: Arc<Wakeup>,
    shared: Arc<Shared>,
}

impl Sink for Endpoint {
    fn run(&mut self, packets: &mut Deliveries<'_>) {
        if self.shared.is_over.load(Relaxed) {
            return;
        }
        let decided_ns = now_ns();
        self.timestamps.refresh();
        let (mut count, mut bytes, mut full) = (0, 0, 0);
        for delivery in packets.iter() {
            let key = DeepKey::of(delivery.bytes);
            if !self.options.wants(&key, delivery.outcome) || !self.sample.take() {
                continue;
            }
            (count, bytes) = (count + 1, bytes + delivery.bytes.len() as u64);
            let received = delivery.timestamp.map(|at| self.timestamps.of(Some(at), decided_ns));
            let packet = TracedPacket {
                worker: self.worker,
                generation: delivery.generation,
                tag: delivery.tag,
                outcome: delivery.outcome,
                slots: delivery.slots,
                received_ns: received,
                decided_ns,
                key,
                head: FrameHead::of(delivery.bytes),
            };
            full += u64::from(self.producer.push(packet).is_err());
        }
        self.counters.offered(count, bytes);
        self.counters.worker.dropped(SinkDrop::RingFull, full);
        if count > full {
            self.wakeup.notify();
        }
    }
}

/// The thread.
struct Reader {
    tracer: Box<dyn Tracer>,
    rings: Vec<Consumer<TracedPacket>>,
    counters: Vec<Arc<SinkCounters>>,
    wakeup: Arc<Wakeup>,
    shared: Arc<Shared>,
}

impl Reader {
    fn run(mut self) {
        loop {
            // Packets that are in a ring before the end are handed over, and the programs that were announced
            // before them first.
            let is_over = self.shared.is_over.load(Acquire);
            let waiting: Vec<usize> = self.rings.iter().map(Consumer::slots).collect();
            let programs = std::mem::take(&mut *self.shared.programs());
            programs.iter().for_each(|(map, program)| self.tracer.announce(map, program));
            let mut rings = waiting.into_iter().enumerate();
            let wants_more =
                self.tracer.poll() && rings.all(|(ring, waiting)| (0..waiting).all(|_| self.take(ring)));
            if is_over || !wants_more {
                return self.shared.is_over.store(true, Release);
            }
            let has_work =
                || self.shared.is_over.load(Relaxed) || self.rings.iter().any(|ring| !ring.is_empty());
            self.wakeup.wait(has_work, parking::HEARTBEAT);
        }
    }

    /// Hands the next packet of a ring over; `false`: the tracer wants no other.
    fn take(&mut self, ring: usize) -> bool {
        let Ok(packet) = self.rings[ring].pop() else { return true };
        self.counters[ring].thread.delivered(1, packet.head.frame_bytes.into());
        self.tracer.trace(&packet)
    }
}

impl Shared {
    fn programs(&self) -> std::sync::MutexGuard<'_, Vec<(Arc<SinkMap>, Arc<Program>)>> {
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
        self.shared.programs().push((Arc::clone(map), Arc::clone(program)));
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

//! Where a worker hands its decided packets: the trait [`Sink`], the packets of one iteration that are for
//! one sink ([`Deliveries`]), and the places of a worker's sinks ([`Slots`]).
//!
//! A sink runs on the worker's thread under the same rules as the loop: no lock, allocation, system call or
//! log line per packet, and it never blocks. What it cannot take it counts by reason ([`SinkDrop`]). Sinks
//! are made and freed by other threads: the worker takes and returns them between two iterations.

use std::collections::HashSet;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crossbeam::utils::CachePadded;
use program::{MAX_SINKS, Outcome, Program, RuleId, SinkId, Verdict};
use verbs::{FlowTag, Frame, FramePool};

use crate::batch::{Batch, Decision, Run};
use crate::counter::{Counter, Tally, Traffic};
use crate::labels::labels;
use crate::regime::{KindIndex, Stopwatch};

/// Takes a worker's packets.
pub trait Sink: Send {
    /// Called once per iteration that has packets for it.
    fn run(&mut self, packets: &mut Deliveries<'_>);

    /// Called once per iteration, with packets or without, if [`Sink::needs_poll`] is true: takes back frames
    /// that have been sent, and passes on what was collected. Returns whether there was anything to do: a
    /// worker whose sinks have work is not idle, even if it receives nothing.
    fn poll(&mut self, _frames: &mut FramesBack<'_>) -> bool {
        false
    }

    /// Whether [`Sink::poll`] is to be called; does not change.
    fn needs_poll(&self) -> bool {
        false
    }

    /// How long a worker that has no work may put off [`Sink::poll`]; `None`: for as long as it likes.
    fn poll_interval(&self) -> Option<Duration> {
        self.holds_frames().then_some(POLL_INTERVAL)
    }

    /// Whether it takes the packets' frames, so that it must run after the others; does not change.
    fn takes_frames(&self) -> bool {
        false
    }

    /// Whether it has frames of the worker now, or sends in flight from other memory. A sink that is removed
    /// is polled until it has none.
    fn holds_frames(&self) -> bool {
        false
    }

    /// Called when it is removed, or the worker ends: from now on [`Sink::poll`] only completes what was
    /// begun.
    fn retire(&mut self) {}
}

/// How often an idle worker polls a sink that expects something from others: frames that are being sent, or
/// frames of clients.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// One decided packet.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'b> {
    /// The rule and its verdict.
    pub outcome: Outcome,
    /// The program that the rule is of; 0 for one that was published alone
    /// ([`WorkerControl::publish`](crate::WorkerControl::publish)).
    pub generation: u64,
    /// The tag of its flow; 0 if the flow has none or the device has no tags.
    pub tag: FlowTag,
    /// The places of all sinks that get it.
    pub slots: SlotSet,
    /// The packet; its buffer is posted again when the sink returns.
    pub bytes: &'b [u8],
    /// The device's clock at reception, where timestamps were asked for.
    pub timestamp: Option<u64>,
}

/// The packets of one iteration that are for one sink.
pub struct Deliveries<'b> {
    batch: &'b mut Batch,
    pool: &'b mut FramePool,
    /// The bit of the sink in [`Decision::sinks`], or [`EVERY`].
    bits: u64,
}

impl Deliveries<'_> {
    /// In order of reception.
    pub fn iter(&self) -> impl Iterator<Item = Delivery<'_>> {
        let Self { batch, pool, bits } = self;
        let mine = batch.decisions.iter().filter(|decision| is_for(decision, *bits));
        mine.filter_map(|decision| delivery(decision, batch, pool))
    }

    /// Passes the packets to `take` with their frames, in order of reception, in one or more runs. Frames
    /// that are taken come back by [`Sink::poll`]. To be called at most once, and nothing else after it:
    /// frames that are kept change their places.
    #[inline]
    pub fn take_runs(&mut self, mut take: impl FnMut(&mut FramePool, TakenRun<'_>)) {
        let Self { batch, pool, bits } = self;
        batch.take_runs(|decision| is_for(decision, *bits), |run| take(pool, TakenRun(run)));
    }

    /// A number that is not less than that of the packets.
    #[must_use]
    #[inline]
    pub fn most(&self) -> u32 {
        // A batch has fewer than 2^32.
        self.batch.decisions.len() as u32
    }
}

/// All decided packets, for the observer.
const EVERY: u64 = u64::MAX;

#[inline]
fn is_for(decision: &Decision, bits: u64) -> bool {
    decision.sinks & bits != 0 || bits == EVERY
}

/// Packets whose frames a sink takes.
pub struct TakenRun<'b>(Run<'b>);

impl TakenRun<'_> {
    /// Passes each packet's frame to `take`, with the packet's length and outcome. A frame that `take`
    /// returns stays with the worker.
    #[inline]
    pub fn each(self, mut take: impl FnMut(Frame, &Taken) -> Option<Frame>) {
        self.0.take_each(|decision, packet, timestamp, frame| {
            take(frame, &Taken { bytes: packet.bytes, outcome: decision.outcome, timestamp })
        });
    }
}

/// A packet whose frame a sink takes.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// The packet's length; never more than the frame's.
    pub bytes: u32,
    /// The rule and its verdict.
    pub outcome: Outcome,
    /// The device's clock at reception, where timestamps were asked for.
    pub timestamp: Option<u64>,
}

/// `None` once a sink has taken the frame.
#[inline]
fn delivery<'b>(decision: &Decision, batch: &'b Batch, pool: &'b FramePool) -> Option<Delivery<'b>> {
    let index = decision.packet as usize;
    let packet = batch.packets.get(index)?;
    let whole = pool.bytes(batch.frame(packet)?);
    Some(Delivery {
        outcome: decision.outcome,
        generation: decision.generation,
        tag: FlowTag(packet.tag),
        slots: SlotSet(decision.sinks),
        bytes: whole.get(..packet.bytes as usize).unwrap_or(whole),
        timestamp: batch.timestamps.get(index).copied(),
    })
}

/// Where a sink puts frames that it has taken and no longer needs.
pub struct FramesBack<'b> {
    /// The worker's frames.
    pub pool: &'b mut FramePool,
    pub(crate) frames: &'b mut Vec<Frame>,
}

impl FramesBack<'_> {
    /// The frame is posted again at the end of the iteration.
    #[inline]
    pub fn put(&mut self, frame: Frame) {
        // Never grows: its capacity is the number of the pool's frames.
        self.frames.push(frame);
    }

    /// The worker's frames, and where to push those that are no longer needed, at most as many as were taken.
    #[inline]
    pub fn split(&mut self) -> (&mut FramePool, &mut Vec<Frame>) {
        (self.pool, self.frames)
    }
}

/// How many frames of a worker its sinks may have at once: half of them, so that the worker goes on receiving
/// if they do not come back. Used on the worker's thread only.
#[derive(Debug)]
pub struct FrameBudget {
    left: AtomicU32,
    total: u32,
}

impl FrameBudget {
    pub(crate) fn new(frames: u32) -> Self {
        let total = (frames / 2).max(1);
        Self { left: AtomicU32::new(total), total }
    }

    /// The number of frames for all sinks.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Takes as many frames as the sinks may have besides, at most `wanted`; returns how many.
    #[must_use]
    #[inline]
    pub fn take(&self, wanted: u32) -> u32 {
        let left = self.left.load(Relaxed);
        let taken = left.min(wanted);
        self.left.store(left - taken, Relaxed);
        taken
    }

    /// Returns frames to the worker.
    #[inline]
    pub fn put(&self, frames: u32) {
        self.left.store(self.left.load(Relaxed) + frames, Relaxed);
    }
}

labels! {
    /// Why a sink did not pass on a packet.
    pub enum SinkDrop {
        /// The ring to the sink's thread or to a client is full.
        RingFull = "ring_full",
        /// No client is connected.
        NoClient = "no_client",
        /// The packet is longer than the sink takes.
        TooLong = "too_long",
        /// Another worker used the shared ring.
        Contended = "contended",
        /// The send queue is full.
        TxFull = "tx_full",
        /// The device refused the send, or it failed.
        TxFailed = "tx_failed",
        /// The port or the interface is down.
        Down = "down",
        /// The other side has gone.
        Closed = "closed",
        /// Writing failed.
        WriteFailed = "write_failed",
        /// The disk, or the part of it that the sink may use, is full.
        DiskFull = "disk_full",
        /// Left out by sampling, as configured.
        Sampled = "sampled",
        /// Beyond a configured limit.
        Limit = "limit",
        /// The packet is shorter than an Ethernet header.
        TooShort = "too_short",
        /// The answer to a packet for several stations would have their address as its source.
        NotUnicast = "not_unicast",
        /// A merged frame whose headers do not allow it to be split.
        Malformed = "malformed",
    }
}

impl SinkDrop {
    /// Returns whether packets are dropped for this reason because the options of the sink ask for it.
    #[must_use]
    pub fn is_intended(self) -> bool {
        matches!(self, Self::Sampled | Self::Limit)
    }
}

/// The totals of one side of a sink: counters with one writer.
#[derive(Debug, Default)]
pub struct SinkSide {
    delivered: Tally,
    dropped: [Counter; SinkDrop::ALL.len()],
}

impl SinkSide {
    /// Packets were passed on.
    #[inline]
    pub fn delivered(&self, packets: u64, bytes: u64) {
        self.delivered.add(packets, bytes);
    }

    /// Packets were not passed on.
    #[inline]
    pub fn dropped(&self, reason: SinkDrop, packets: u64) {
        if packets > 0 {
            tracepoints::sink_drop(reason.name(), packets);
        }
        self.dropped[reason as usize].add(packets);
    }

    /// Packets were not passed on; how many, by the index of the reason.
    #[inline]
    pub(crate) fn all_dropped(&self, packets: &[u64; SinkDrop::ALL.len()]) {
        for (reason, packets) in SinkDrop::ALL.into_iter().zip(packets) {
            if *packets > 0 {
                self.dropped(reason, *packets);
            }
        }
    }
}

/// The counters of one sink on one worker. Every packet that the sink was offered is delivered, dropped by a
/// reason, or on its way from the worker's side to the other.
#[derive(Debug, Default)]
pub struct SinkCounters {
    offered: CachePadded<Tally>,
    /// Written by the worker.
    pub worker: CachePadded<SinkSide>,
    /// Written by the sink's own thread, if it has one.
    pub thread: CachePadded<SinkSide>,
}

impl SinkCounters {
    /// The worker has offered packets to the sink; only the worker may call this.
    #[inline]
    pub fn offered(&self, packets: u64, bytes: u64) {
        self.offered.add(packets, bytes);
    }

    /// The counters as read at one moment. Read in the opposite order of a packet's way, so that no packet is
    /// delivered that was not offered.
    #[must_use]
    pub fn read(&self) -> SinkTraffic {
        let sides = [&self.thread, &self.worker];
        let mut delivered = Traffic::default();
        sides.iter().for_each(|side| delivered += side.delivered.read());
        let dropped = std::array::from_fn(|index| {
            (SinkDrop::ALL[index], sides.iter().map(|side| side.dropped[index].read()).sum())
        });
        std::sync::atomic::fence(Acquire);
        SinkTraffic { delivered, dropped, offered: self.offered.read() }
    }
}

/// The totals of a sink over the packets of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SinkTraffic {
    /// Packets that the worker had for it.
    pub offered: Traffic,
    /// The packets that the sink passed on.
    pub delivered: Traffic,
    /// The packets that the sink did not pass on, by reason.
    pub dropped: [(SinkDrop, u64); SinkDrop::ALL.len()],
}

impl std::ops::AddAssign<&Self> for SinkTraffic {
    fn add_assign(&mut self, other: &Self) {
        self.offered += other.offered;
        self.delivered += other.delivered;
        self.dropped.iter_mut().zip(&other.dropped).for_each(|(sum, more)| sum.1 += more.1);
    }
}

impl SinkTraffic {
    /// Packets that are neither delivered nor dropped yet.
    #[must_use]
    pub fn in_flight(&self) -> i128 {
        let dropped: u64 = self.dropped.iter().map(|(_, count)| count).sum();
        i128::from(self.offered.packets) - i128::from(self.delivered.packets) - i128::from(dropped)
    }
}

/// The place of a sink on all workers. A place is used again once no program refers to the sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(u8);

impl Slot {
    /// The number of places: for the sinks of two programs.
    pub const COUNT: usize = 2 * MAX_SINKS;

    /// The place with this index.
    #[must_use]
    pub fn of(index: usize) -> Option<Self> {
        u8::try_from(index).ok().filter(|_| index < Self::COUNT).map(Self)
    }

    fn bit(self) -> u64 {
        1 << self.0
    }
}

const _: () = assert!(Slot::COUNT <= u64::BITS as usize);

/// A set of places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SlotSet(u64);

impl FromIterator<Slot> for SlotSet {
    fn from_iter<S: IntoIterator<Item = Slot>>(slots: S) -> Self {
        Self(slots.into_iter().fold(0, |bits, slot| bits | slot.bit()))
    }
}

impl SlotSet {
    /// Whether a place is in the set.
    #[must_use]
    pub fn contains(self, slot: Slot) -> bool {
        self.0 & slot.bit() != 0
    }

    /// The set as a bit for each place.
    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    pub(crate) fn of_bits(bits: u64) -> Self {
        Self(bits)
    }
}

/// Which sinks get the packets of a program's rules; one for all workers. The sinks of a rule can be changed
/// while workers use it.
#[derive(Debug)]
pub struct SinkMap {
    generation: u64,
    /// The places of the program's sinks.
    slots: Box<[Slot]>,
    /// The bits of sinks: by rule those that get the packets delivered for it; behind them the sink that gets
    /// the packets of the kernel, those that get the packets that workers drop, and none; then those of rules
    /// at run time by action; then, if a recorder chooses rules, those of each rule for the packets that it
    /// leaves to the kernel and for those that it drops.
    bits: Box<[AtomicU64]>,
    /// The number of rules.
    rules: usize,
    /// Where the places of packets begin that are not delivered, if each rule has its own.
    undelivered: Option<usize>,
    recorded: RecordedRules,
    /// The bit of the sink that gets the packets of the kernel.
    kernel: u64,
}

/// The rules whose packets a recorder keeps.
#[derive(Debug)]
enum RecordedRules {
    /// There is no recorder.
    None,
    All,
    Listed(Box<[RuleId]>),
}

impl RecordedRules {
    fn of(program: &Program) -> Self {
        let Some(recorder) = &program.recorder else { return Self::None };
        let Some(names) = &recorder.rules else { return Self::All };
        let names: HashSet<&str> = names.iter().map(String::as_str).collect();
        let rules = program.rules.iter().enumerate();
        let is_listed = rules.filter(|(_, rule)| names.contains(rule.name.as_str()));
        Self::Listed(is_listed.map(|(index, _)| RuleId::of(index)).collect())
    }
}

impl SinkMap {
    /// The map of a program whose sinks are in these places, in the program's order.
    #[must_use]
    pub fn new(generation: u64, program: &Program, slots: &[Slot]) -> Self {
        let bit = |id: &SinkId| slots.get(id.index()).map_or(0, |slot| slot.bit());
        let kernel = program.kernel_sink().as_ref().map_or(0, bit);
        let rules = program.rules.iter().map(|rule| rule.sinks.iter().fold(0, |bits, id| bits | bit(id)));
        let runtime = program.runtime.iter().flat_map(|runtime| &runtime.actions);
        let runtime = runtime
            .map(|action| action.iter().flat_map(|action| &action.sinks).fold(0, |bits, id| bits | bit(id)));
        let dropped = program.sinks_of_dropped().fold(0, |bits, id| bits | bit(&id));
        let mut bits: Vec<u64> = rules.chain([kernel, dropped, 0]).chain(runtime).collect();
        let recorded = RecordedRules::of(program);
        let undelivered = matches!(recorded, RecordedRules::Listed(_)).then_some(bits.len());
        if undelivered.is_some() {
            bits.extend([kernel, dropped].repeat(program.rules.len()));
        }
        let bits = bits.into_iter().map(AtomicU64::new).collect();
        let rules = program.rules.len();
        Self { generation, slots: slots.into(), bits, rules, undelivered, recorded, kernel }
    }

    /// A map without sinks.
    pub(crate) fn none(program: &Program) -> Self {
        Self::new(0, program, &[])
    }

    /// Lets the sink in `slot` get the packets of a rule from now on.
    pub fn attach(&self, rule: RuleId, slot: Slot) {
        if let Some(bits) = self.of_rules().get(rule.index()) {
            bits.fetch_or(slot.bit(), Relaxed);
        }
    }

    /// Ends [`SinkMap::attach`]. A worker may be in an iteration that still has packets for the sink.
    pub fn detach(&self, rule: RuleId, slot: Slot) {
        if let Some(bits) = self.of_rules().get(rule.index()) {
            bits.fetch_and(!slot.bit(), Relaxed);
        }
    }

    /// Lets the sink in `slot` get all decided packets from now on, also those that are dropped, and those
    /// that rules at run time decide.
    pub fn attach_to_all(&self, slot: Slot) {
        self.bits.iter().for_each(|bits| _ = bits.fetch_or(slot.bit(), Relaxed));
    }

    /// Ends [`SinkMap::attach_to_all`], as [`SinkMap::detach`].
    pub fn detach_from_all(&self, slot: Slot) {
        self.bits.iter().for_each(|bits| _ = bits.fetch_and(!slot.bit(), Relaxed));
    }

    /// Lets the recorder in `slot` get the packets that its program chooses from now on. Without a list of
    /// rules these are all but copies that no rule matches.
    pub fn attach_recorder(&self, slot: Slot) {
        let place = |bits: &AtomicU64| _ = bits.fetch_or(slot.bit(), Relaxed);
        match &self.recorded {
            RecordedRules::None => {}
            RecordedRules::All => {
                let copies = self.rules + 2;
                let wanted = self.bits.iter().enumerate().filter(|(index, _)| *index != copies);
                wanted.for_each(|(_, bits)| place(bits));
            }
            RecordedRules::Listed(rules) => {
                for rule in rules {
                    self.attach(*rule, slot);
                    let undelivered = [Verdict::Kernel, Verdict::Drop];
                    let places = undelivered.map(|verdict| self.place(&Outcome { rule: *rule, verdict }));
                    places.into_iter().filter_map(|index| self.bits.get(index)).for_each(place);
                }
            }
        }
    }

    /// The sinks of the program in these places; others can be there that are attached.
    pub fn sinks_in(&self, slots: SlotSet) -> impl Iterator<Item = SinkId> {
        let is_in = move |slot: &Slot| slots.contains(*slot);
        self.slots.iter().enumerate().filter(move |(_, slot)| is_in(slot)).map(|(index, _)| SinkId::of(index))
    }

    fn of_rules(&self) -> &[AtomicU64] {
        &self.bits[..self.rules]
    }

    /// Whether packets that a worker finds to be the kernel's are returned to it.
    #[inline]
    pub(crate) fn returns(&self) -> bool {
        self.kernel != 0
    }

    /// The generation of its program.
    #[must_use]
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The index in [`SinkMap::bits`] of the sinks of packets with this outcome.
    pub(crate) fn place(&self, outcome: &Outcome) -> usize {
        match outcome.verdict {
            Verdict::Deliver(_) if outcome.rule.index() < self.rules => outcome.rule.index(),
            Verdict::Kernel => self.undelivered(outcome.rule, 0),
            Verdict::Drop => self.undelivered(outcome.rule, 1),
            Verdict::Deliver(_) | Verdict::Filtered => self.rules + 2,
        }
    }

    /// The place of packets that a rule does not deliver: the first of the two for those of the kernel, the
    /// second for dropped ones.
    fn undelivered(&self, rule: RuleId, which: usize) -> usize {
        match self.undelivered {
            Some(first) if rule.index() < self.rules => first + 2 * rule.index() + which,
            _ => self.rules + which,
        }
    }

    /// The same for packets that a rule at run time with this action decides.
    pub(crate) fn place_of_action(&self, number: usize, verdict: Verdict) -> usize {
        match verdict {
            Verdict::Deliver(_) => self.rules + 3 + number,
            Verdict::Kernel => self.rules,
            Verdict::Drop => self.rules + 1,
            Verdict::Filtered => self.rules + 2,
        }
    }

    /// The bits of sinks, by [`SinkMap::place`].
    #[inline]
    pub(crate) fn bits(&self) -> &[AtomicU64] {
        &self.bits
    }
}

/// The sinks of one worker by their places.
pub(crate) struct Slots {
    sinks: [Option<Box<dyn Sink>>; Slot::COUNT],
    kinds: [KindIndex; Slot::COUNT],
    /// The places of sinks that take frames, and of those that want to be polled.
    taking: u64,
    polled: u64,
    /// Removed sinks that still have frames. Never grows.
    leaving: Vec<Box<dyn Sink>>,
    /// Gets every decided packet.
    observer: Option<Box<dyn Sink>>,
    /// Every change up to this one is applied.
    seen: u64,
}

impl Default for Slots {
    fn default() -> Self {
        let leaving = Vec::with_capacity(Slot::COUNT);
        Self {
            sinks: [const { None }; Slot::COUNT],
            kinds: [KindIndex::OTHER; Slot::COUNT],
            taking: 0,
            polled: 0,
            leaving,
            observer: None,
            seen: 0,
        }
    }
}

impl Slots {
    pub(crate) fn observe(&mut self, sink: Box<dyn Sink>) {
        self.observer = Some(sink);
    }

    /// Whether every decided packet is shown to an observer.
    #[inline]
    pub(crate) fn is_observed(&self) -> bool {
        self.observer.is_some()
    }

    /// Takes and returns sinks. Costs one atomic read per iteration if there is nothing to do.
    #[inline]
    pub(crate) fn refresh(&mut self, changes: &Changes) {
        if changes.made.load(Acquire) != self.seen {
            self.apply(changes);
        }
        if !self.leaving.is_empty() {
            self.let_go(changes);
        }
    }

    /// Returns the removed sinks that have no more frames.
    #[cold]
    fn let_go(&mut self, changes: &Changes) {
        let Ok(mut queue) = changes.queue.try_lock() else { return };
        let gone = self.leaving.extract_if(.., |sink| !sink.holds_frames());
        // Without the room that is reserved for the sinks of changes that wait.
        let room = (queue.returned.capacity() - queue.returned.len()).saturating_sub(queue.waiting.len());
        queue.returned.extend(gone.take(room));
        drop(queue);
        changes.leaving.store(self.leaving.len(), Release);
    }

    /// How long an idle worker may put off polling its sinks.
    pub(crate) fn poll_interval(&self) -> Option<Duration> {
        let polled = ones(self.polled).filter_map(|slot| self.sinks.get(slot)?.as_deref());
        let leaving = self.leaving.iter().map(|sink| &**sink);
        polled.chain(leaving).filter_map(Sink::poll_interval).min()
    }

    /// Whether there are changes that were not applied.
    pub(crate) fn is_behind(&self, changes: &Changes) -> bool {
        changes.made.load(Acquire) != self.seen
    }

    /// No packets follow.
    pub(crate) fn retire(&mut self) {
        self.sinks.iter_mut().flatten().for_each(|sink| sink.retire());
    }

    /// Whether any sink has frames.
    pub(crate) fn holds_frames(&self) -> bool {
        !self.leaving.is_empty() || self.sinks.iter().flatten().any(|sink| sink.holds_frames())
    }

    /// Frees all sinks. Those with frames in flight first take back what has come back.
    pub(crate) fn free_all(&mut self, frames: &mut Vec<Frame>, pool: &mut FramePool) {
        (self.taking, self.polled) = (0, 0);
        let places = self.sinks.iter_mut().filter_map(Option::take);
        for mut sink in places.chain(self.leaving.drain(..)) {
            if sink.holds_frames() {
                sink.poll(&mut FramesBack { pool, frames });
            }
        }
    }

    #[cold]
    fn apply(&mut self, changes: &Changes) {
        let Ok(mut queue) = changes.queue.try_lock() else { return };
        let Queue { waiting, returned } = &mut *queue;
        for Change { slot, kind, sink } in waiting.drain(..) {
            self.kinds[usize::from(slot.0)] = kind;
            let place = &mut self.sinks[usize::from(slot.0)];
            // The capacity is for every place.
            if let Some(mut old) = std::mem::replace(place, sink) {
                old.retire();
                let stays = old.holds_frames() && self.leaving.len() < self.leaving.capacity();
                if stays { self.leaving.push(old) } else { returned.push(old) }
            }
            let is = |property: fn(&dyn Sink) -> bool| place.as_deref().is_some_and(property);
            let (taking, polled) = (is(|sink| sink.takes_frames()), is(|sink| sink.needs_poll()));
            self.taking = self.taking & !slot.bit() | u64::from(taking) << slot.0;
            self.polled = self.polled & !slot.bit() | u64::from(polled) << slot.0;
        }
        self.seen = changes.made.load(Acquire);
        drop(queue);
        changes.leaving.store(self.leaving.len(), Release);
        changes.applied.store(self.seen, Release);
    }

    /// Hands the batch to its sinks, those that take frames last, and then polls the sinks. Returns whether a
    /// polled sink had work.
    #[inline]
    pub(crate) fn run(&mut self, batch: &mut Batch, pool: &mut FramePool, watch: &mut Stopwatch) -> bool {
        let taking = batch.sinks & self.taking;
        let observer = self.observer.as_mut().filter(|_| !batch.packets.is_empty());
        // One sink takes the frames from the batch itself.
        let detaches = taking.count_ones() > 1 || observer.as_ref().is_some_and(|sink| sink.takes_frames());
        if detaches {
            batch.detach_frames();
        }
        if let Some(observer) = observer {
            observer.run(&mut Deliveries { batch, pool, bits: EVERY });
            watch.sink(KindIndex::OTHER);
        }
        for bits in [batch.sinks & !taking, taking] {
            for slot in ones(bits) {
                if let Some(sink) = self.sinks.get_mut(slot).and_then(Option::as_mut) {
                    sink.run(&mut Deliveries { batch, pool, bits: 1 << slot });
                    watch.sink(self.kinds[slot]);
                }
            }
        }
        if detaches {
            batch.reattach_frames();
        }
        let mut worked = false;
        for slot in ones(self.polled) {
            if let Some(sink) = self.sinks.get_mut(slot).and_then(Option::as_mut) {
                worked |= sink.poll(&mut FramesBack { pool, frames: &mut batch.frames });
                watch.sink(self.kinds[slot]);
            }
        }
        for sink in &mut self.leaving {
            worked |= sink.poll(&mut FramesBack { pool, frames: &mut batch.frames });
        }
        worked
    }
}

/// The places of the bits that are set.
#[inline]
fn ones(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let place = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
        bits &= bits - 1;
        Some(place)
    })
}

/// The sink of a place, or none from now on.
struct Change {
    slot: Slot,
    kind: KindIndex,
    sink: Option<Box<dyn Sink>>,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Change>,
    /// Sinks that the worker no longer uses; freed by other threads.
    returned: Vec<Box<dyn Sink>>,
}

/// Changes of a worker's sinks, from its handles. As for programs, the worker compares one number per
/// iteration, and tries the lock only if it has changed. Only handles allocate.
pub(crate) struct Changes {
    made: CachePadded<AtomicU64>,
    applied: CachePadded<AtomicU64>,
    /// Removed sinks that still have frames.
    leaving: AtomicUsize,
    queue: Mutex<Queue>,
}

impl Default for Changes {
    fn default() -> Self {
        let returned = Vec::with_capacity(Slot::COUNT);
        Self {
            made: CachePadded::default(),
            applied: CachePadded::default(),
            leaving: AtomicUsize::new(0),
            queue: Mutex::new(Queue { waiting: Vec::new(), returned }),
        }
    }
}

impl std::fmt::Debug for Changes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Changes").field("made", &self.made).field("applied", &self.applied).finish()
    }
}

impl Changes {
    /// Queues the new sink of a place; [`Changes::is_applied`] becomes true for the returned number.
    pub(crate) fn push(&self, slot: Slot, kind: KindIndex, sink: Option<Box<dyn Sink>>) -> u64 {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.waiting.push(Change { slot, kind, sink });
        // The worker returns at most one sink for each change, and must not allocate.
        let most = queue.waiting.len();
        queue.returned.reserve(most);
        self.made.fetch_add(1, Release) + 1
    }

    pub(crate) fn is_applied(&self, change: u64) -> bool {
        self.applied.load(Acquire) >= change
    }

    pub(crate) fn leaving(&self) -> usize {
        self.leaving.load(Acquire)
    }

    /// Frees the sinks that the worker has returned.
    pub(crate) fn free_returned(&self) {
        let returned = {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            let room = queue.returned.capacity();
            std::mem::replace(&mut queue.returned, Vec::with_capacity(room))
        };
        drop(returned);
    }
}

//! One burst, from the wire into posted buffers.
//!
//! First the images of all frames are read from their headers, and all are looked up in the flow table. Then
//! the device's state is locked, the verdicts give each receive queue its deliveries, and those of each queue
//! are carried out ([`super::deliver`]). Engines of other ports look up meanwhile. So every stage stays in
//! the caches, and what is the same for all deliveries of a queue is looked up once per burst. A frame is
//! parsed only if its image is not enough: for rules about tunnels, and to be hashed for one of several
//! queues.

use flow_table::{Actions, FlowHit, FlowTable, MatchKey, Matches, PortTable, QpSlot, Verdict};
use packet::DeepKey;
use wire::{BURST_FRAMES, Burst, ETHERNET_BYTES, RxFrame};

use super::EnginePort;
use super::deliver::{Deliveries, Delivery, DeliveryKind, EditedFrame, Planner, Work, approach, serve};
use super::profile::{EngineStage, Probe};
use super::v3::Avx2Movbe;
use crate::clock;
use crate::paths;
use crate::shared::NicShared;
use crate::slab::Slab;
use crate::state::{CounterState, QpKind, QpState, State};
use crate::stats::{FrameEnd, PortStats};

/// Queue pairs of a burst that are not looked at again; a power of two.
const ROUTES: usize = 4;

/// The C-VLAN tag, the only one that a completion can report.
pub(super) const C_VLAN_TPID: u16 = 0x8100;

/// The working memory of a burst; kept from burst to burst so that nothing is allocated.
pub(super) struct Plan {
    /// The headers of each frame, as they are looked up.
    images: Box<[MatchKey; BURST_FRAMES]>,
    /// The outcome of each frame, as far as it is known.
    ends: [FrameEnd; BURST_FRAMES],
    /// The flow table's verdict on each frame.
    verdicts: [Verdict; BURST_FRAMES],
    matches: Matches,
    deliveries: Deliveries,
    edited: Box<EditedFrame>,
    v3: Option<Avx2Movbe>,
    pub(super) probe: Probe,
}

impl Plan {
    pub(super) fn new() -> Self {
        Self {
            images: Box::new([MatchKey::default(); BURST_FRAMES]),
            ends: [FrameEnd::Unmatched; BURST_FRAMES],
            verdicts: [Verdict::NOTHING; BURST_FRAMES],
            matches: Matches::new(),
            deliveries: Deliveries::new(),
            edited: Box::default(),
            v3: Avx2Movbe::detect(),
            probe: Probe::default(),
        }
    }
}

/// Receives and delivers one burst of at most `max_frames`; returns how many frames there were.
pub(super) fn burst(
    nic: &NicShared,
    port: &mut EnginePort,
    plan: &mut Plan,
    max_frames: usize,
    stats: &mut PortStats,
) -> usize {
    let (number, max_frame_bytes) = (port.number, port.max_received_bytes);
    let mut burst = Burst::with_limit(max_frames);
    port.wire.receive(&mut burst);
    let frames = burst.as_slice();
    plan.probe.mark(EngineStage::Receive);
    if frames.is_empty() {
        return 0;
    }
    let now_ns = clock::now_ns();
    stats.rx_frames += frames.len() as u64;
    stats.rx_bytes += plan.read(frames, max_frame_bytes);
    plan.probe.mark(EngineStage::Parse);
    // Of these flows none is removed, with what it names, before they are dropped.
    let mut flows = nic.flows.read();
    plan.look_up(&flows, number, frames);
    if nic.group_pace.is_on() {
        let groups = plan.groups_passed(&flows, number, frames.len());
        // Calls that change flows wait until nobody reads them. Verdicts may be out of date after the time.
        drop(flows);
        nic.group_pace.pass(groups, clock::steady_ns(), &nic.stopping);
        flows = nic.flows.read();
        plan.look_up(&flows, number, frames);
    }
    plan.probe.mark(EngineStage::Lookup);
    let mut state = nic.burst();
    plan.spread(&flows, &mut state, number, frames);
    drop(flows);
    plan.probe.mark(EngineStage::Spread);
    plan.carry_out(&mut state, frames, now_ns, stats);
    state.publish();
    plan.tally(frames.len(), stats);
    let count = frames.len();
    drop(state);
    if let Some(port) = nic.port(number).filter(|port| port.watch.is_on()) {
        port.watch.note(frames, &plan.ends, now_ns);
    }
    drop(burst);
    if port.takes_away {
        let unmatched = plan.unmatched(count);
        if unmatched != 0 {
            stats.note_given_back(port.wire.leave_to_host(unmatched));
        }
    }
    plan.probe.mark(EngineStage::Deliver);
    count
}

impl Plan {
    /// Reads the headers of the frames, and sorts out those that cannot be delivered. Returns the sum of
    /// their bytes.
    fn read(&mut self, frames: &[RxFrame<'_>], max_frame_bytes: usize) -> u64 {
        let (ends, images) = (&mut self.ends[..frames.len()], &mut self.images[..frames.len()]);
        match self.v3 {
            // SAFETY: an `Avx2Movbe` is made only where the processor has what the function asks for.
            #[cfg(target_arch = "x86_64")]
            Some(_) => unsafe { read_v3(frames, max_frame_bytes, ends, images) },
            _ => read(frames, max_frame_bytes, ends, images),
        }
    }

    /// Looks the frames up.
    fn look_up(&mut self, flows: &FlowTable, port: u8, frames: &[RxFrame<'_>]) {
        let (images, verdicts) = (&self.images[..frames.len()], &mut self.verdicts[..frames.len()]);
        flows.classify_burst(port, images, |index| DeepKey::of(frames[index].bytes), verdicts);
    }

    /// The groups of flows that the frames of a burst of so many pass before theirs.
    #[cold]
    fn groups_passed(&self, flows: &FlowTable, port: u8, frames: usize) -> u64 {
        let Some(table) = flows.of_port(port) else { return 0 };
        let looked_up = self.ends[..frames].iter().zip(&self.verdicts);
        let looked_up = looked_up.filter(|(end, _)| **end == FrameEnd::Unmatched);
        looked_up.map(|(_, verdict)| table.groups_passed(*verdict)).sum()
    }

    /// Counts the frames for their flows and plans their deliveries. Afterwards `ends` holds what becomes of
    /// them if no delivery succeeds or fails.
    fn spread(&mut self, flows: &FlowTable, state: &mut State, port: u8, frames: &[RxFrame<'_>]) {
        let Self { images, ends, matches, deliveries, verdicts, .. } = self;
        let (images, verdicts, ends) =
            (&images[..frames.len()], &verdicts[..frames.len()], &mut ends[..frames.len()]);
        let mut planning = Planning::new(state, deliveries);
        let Some(table) = flows.of_port(port) else { return };
        let decides_alone = table.decides_alone();
        let mut at = 0;
        while at < frames.len() {
            if decides_alone {
                at = planning.plan_run(table, at, (images, verdicts, ends));
            }
            // What `plan_run` does not plan.
            if let Some((end, frame)) = ends.get_mut(at).zip(frames.get(at))
                && *end == FrameEnd::Unmatched
            {
                let (verdict, framed) = (verdicts[at], (at, frame.bytes, &images[at]));
                match table.plain(verdict).filter(|_| decides_alone) {
                    Some((target, tag)) => planning.plan_only(target, tag, framed, end),
                    None => planning.decide(table, verdict, framed, matches, end),
                }
            }
            at += 1;
        }
        planning.planner.finish();
    }

    /// Carries out the deliveries, queue by queue; the buffers of the next queue are on their way into the
    /// cache meanwhile.
    fn carry_out(&mut self, state: &mut State, frames: &[RxFrame<'_>], now_ns: u64, stats: &mut PortStats) {
        let Self { ends, deliveries, edited, v3, .. } = self;
        let mut work =
            Work { v3: *v3, deliveries: deliveries.as_slice(), frames, now_ns, edited, ends, stats };
        let mut turn = 0;
        if let Some(first) = state.unpublished_queues.first() {
            approach(state, *first);
        }
        while let Some(&queue) = state.unpublished_queues.get(turn) {
            turn += 1;
            if let Some(next) = state.unpublished_queues.get(turn) {
                approach(state, *next);
            }
            serve(state, queue, &mut work);
        }
    }

    /// The frames of a burst of so many that no flow has decided, by place.
    fn unmatched(&self, frames: usize) -> u64 {
        let bit = |(place, end): (usize, &FrameEnd)| u64::from(*end == FrameEnd::Unmatched) << place;
        self.ends[..frames].iter().enumerate().map(bit).sum()
    }

    /// Adds up what became of the first `frames` frames.
    fn tally(&self, frames: usize, stats: &mut PortStats) {
        const { assert!(BURST_FRAMES <= u8::MAX as usize, "a sum of bytes, of which one instruction adds many") };
        let count = |end| self.ends[..frames].iter().map(|one| u8::from(*one == end)).sum::<u8>();
        let mut left = frames;
        // Delivered first: so are most bursts, as a whole.
        for end in FrameEnd::ALL.into_iter().rev() {
            if left == 0 {
                break;
            }
            let count = count(end);
            stats.dispose(end, count.into());
            left -= usize::from(count);
        }
    }
}

/// [`read`] with the loads of AVX2, and those of MOVBE, which swap bytes.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,movbe")]
fn read_v3(
    frames: &[RxFrame<'_>],
    max_frame_bytes: usize,
    ends: &mut [FrameEnd],
    images: &mut [MatchKey],
) -> u64 {
    read(frames, max_frame_bytes, ends, images)
}

/// [`Plan::read`].
#[inline(always)]
fn read(
    frames: &[RxFrame<'_>],
    max_frame_bytes: usize,
    ends: &mut [FrameEnd],
    images: &mut [MatchKey],
) -> u64 {
    let mut bytes = 0;
    for ((frame, end), image) in frames.iter().zip(ends).zip(images) {
        bytes += frame.bytes.len() as u64;
        *end = admit(frame, max_frame_bytes);
        image.read(frame.bytes);
    }
    bytes
}

/// Whether a frame is looked up at all: `Unmatched` so far, if it is.
#[inline]
fn admit(frame: &RxFrame<'_>, max_frame_bytes: usize) -> FrameEnd {
    let is_valid = frame.bytes.len() <= max_frame_bytes && frame.bytes.len() >= ETHERNET_BYTES;
    if is_valid && !frame.is_truncated() { FrameEnd::Unmatched } else { refuse(frame) }
}

/// The outcome of a frame that is not looked up.
#[cold]
fn refuse(frame: &RxFrame<'_>) -> FrameEnd {
    // A frame that the wire had to cut is as undeliverable as one that is too long.
    if frame.bytes.len() < ETHERNET_BYTES { FrameEnd::Runt } else { FrameEnd::Oversize }
}

/// A frame of a burst: its place, its bytes and its image.
type Framed<'f> = (usize, &'f [u8], &'f MatchKey);

/// The frames of a burst that were looked up: images, verdicts, and what becomes of them.
type Looked<'f> = (&'f [MatchKey], &'f [Verdict], &'f mut [FrameEnd]);

/// The parts that plan the deliveries of a burst.
struct Planning<'p> {
    counters: &'p mut Slab<CounterState>,
    qps: &'p Slab<QpState>,
    planner: Planner<'p>,
    routes: [Route; ROUTES],
}

impl<'p> Planning<'p> {
    fn new(state: &'p mut State, deliveries: &'p mut Deliveries) -> Self {
        let State { counters, qps, queues, unpublished_queues, .. } = state;
        let planner = deliveries.planner(queues, unpublished_queues);
        Self { counters, qps, planner, routes: [Route::NONE; ROUTES] }
    }

    /// Plans deliveries as most are, of the frames from `at` on: the only one of its frame, to a queue pair
    /// of which this burst has found the only queue, which is that of the delivery before. Returns where the
    /// first other frame is.
    #[inline(never)]
    fn plan_run(&mut self, table: &PortTable, at: usize, (images, verdicts, ends): Looked<'_>) -> usize {
        let (queue, places) = self.planner.places();
        let Some(queue) = queue.filter(|_| !paths::are_general()) else { return at };
        let mut planned = 0;
        let (images, verdicts, ends) = (&images[at..], &verdicts[at..], &mut ends[at..]);
        for (((end, image), verdict), place) in ends.iter_mut().zip(images).zip(verdicts).zip(places) {
            let Some((target, tag)) = table.plain(*verdict) else { break };
            let route = self.routes[target.0 as usize % ROUTES];
            if *end != FrameEnd::Unmatched || route.target != target || route.queue != queue {
                break;
            }
            *end = FrameEnd::Delivered;
            *place = Delivery::new(at + planned, image, tag, queue, DeliveryKind::Only);
            planned += 1;
        }
        self.planner.add(planned);
        at + planned
    }

    /// Does what the flows ask for that a verdict on a frame represents.
    #[inline(never)]
    fn decide(
        &mut self,
        table: &PortTable,
        verdict: Verdict,
        frame: Framed<'_>,
        matches: &mut Matches,
        end: &mut FrameEnd,
    ) {
        table.expand(verdict, frame.2, || DeepKey::of(frame.1), matches);
        match matches.as_slice() {
            [hit] if !hit.is_copy && !hit.actions.drop => {
                self.count(hit, frame.1);
                self.plan_only(hit.actions.target, hit.actions.tag.unwrap_or(0), frame, end);
            }
            hits => hits.iter().for_each(|hit| self.take(hit, frame, end)),
        }
    }

    /// Plans the only delivery of a frame, to the queue pair and with the tag of its flow.
    fn plan_only(&mut self, target: QpSlot, tag: u32, (index, bytes, image): Framed<'_>, end: &mut FrameEnd) {
        if let Some(queue) = self.queue_of(target, bytes)
            && self.planner.plan(Delivery::new(index, image, tag, queue, DeliveryKind::Only))
        {
            *end = FrameEnd::Delivered;
        }
    }

    /// Counts a frame for a flow with counters, and drops it or plans the copy for its queue.
    #[inline]
    fn take(&mut self, hit: &FlowHit, frame: Framed<'_>, end: &mut FrameEnd) {
        self.count(hit, frame.1);
        if hit.actions.drop {
            *end = FrameEnd::FlowDropped;
        } else {
            self.plan(hit, frame);
        }
    }

    /// The queue of a frame for a queue pair, unless that is gone.
    #[inline]
    fn queue_of(&mut self, target: QpSlot, frame: &[u8]) -> Option<u32> {
        self.routes[target.0 as usize % ROUTES].queue(self.qps, target, frame)
    }

    /// Counts a frame for a flow with counters.
    #[inline]
    fn count(&mut self, hit: &FlowHit, frame: &[u8]) {
        if let Some(set) = hit.actions.counter.and_then(|counter| self.counters.get_mut(counter.0)) {
            set.packets += 1;
            set.bytes += frame.len() as u64;
        }
    }

    /// Plans the copy of a frame for the queue that a flow leads to, if there is one.
    #[inline]
    fn plan(&mut self, hit: &FlowHit, (index, bytes, image): Framed<'_>) {
        let Actions { target, tag, .. } = hit.actions;
        if let Some(queue) = self.queue_of(target, bytes) {
            let kind = if hit.is_copy { DeliveryKind::Copy } else { DeliveryKind::Shared };
            self.planner.plan(Delivery::new(index, image, tag.unwrap_or(0), queue, kind));
        }
    }
}

impl Delivery {
    #[inline]
    fn new(index: usize, image: &MatchKey, tag: u32, queue: u32, kind: DeliveryKind) -> Self {
        Self { tag, queue, cvlan: image.c_vlan(), frame: index as u8, kind }
    }
}

/// A queue pair of a burst that sends all of its frames to one queue, so that the next frame for it costs no
/// look.
#[derive(Clone, Copy)]
struct Route {
    target: QpSlot,
    queue: u32,
}

impl Route {
    /// No flow names it.
    const NONE: Self = Self { target: QpSlot(u32::MAX), queue: 0 };

    /// The queue of a frame for the queue pair that a flow names, unless that is gone.
    #[inline]
    fn queue(&mut self, qps: &Slab<QpState>, target: QpSlot, frame: &[u8]) -> Option<u32> {
        if target == self.target { Some(self.queue) } else { self.find(qps, target, frame) }
    }

    #[inline(never)]
    fn find(&mut self, qps: &Slab<QpState>, target: QpSlot, frame: &[u8]) -> Option<u32> {
        let queue = match &qps.get(target.0)?.kind {
            QpKind::Raw { queue, .. } => *queue,
            QpKind::Rss { rss, .. } => match rss.only() {
                Some(queue) => queue,
                None => {
                    let parsed = packet::parse(frame);
                    return Some(rss.queue(&parsed.key, || packet::parse_tunnel(frame, &parsed)));
                }
            },
        };
        *self = Self { target, queue };
        Some(queue)
    }
}

/// Gives the sniffers of a port their copies of frames that were sent through it; at most a burst of them.
pub(super) fn copy_sent(
    flows: &FlowTable,
    state: &mut State,
    port: u8,
    plan: &mut Plan,
    frames: &[RxFrame<'_>],
    stats: &mut PortStats,
) {
    let frames = &frames[..frames.len().min(BURST_FRAMES)];
    flows.sniffers(port, &mut plan.matches);
    let mut planning = Planning::new(state, &mut plan.deliveries);
    for (index, (frame, image)) in frames.iter().zip(&mut *plan.images).enumerate() {
        image.read(frame.bytes);
        for hit in plan.matches.as_slice() {
            planning.count(hit, frame.bytes);
            planning.plan(hit, (index, frame.bytes, image));
        }
    }
    planning.planner.finish();
    // Sniffers take copies only, so what becomes of the frames themselves does not change.
    plan.carry_out(state, frames, clock::now_ns(), stats);
    state.publish();
}

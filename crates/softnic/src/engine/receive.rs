//! One burst, from the wire into posted buffers.
//!
//! First the images of all frames are read from their headers, and all are looked up in the flow table. Then the device's
//! state is locked, the verdicts give each receive queue its deliveries, and those of each queue are carried out
//! ([`super::deliver`]). Engines of other ports look up meanwhile. So every stage stays in the caches, and
//! what is the same for all deliveries of a queue is looked up once per burst. A frame is parsed only if its image is not
//! enough: for rules about tunnels, and to be hashed for one of several queues.

use packet::DeepKey;

use super::EnginePort;
use super::deliver::{Deliveries, Delivery, EditedFrame, Planner, Work, approach, serve};
use super::profile::{EngineStage, Probe};
use crate::clock;
use crate::flow::{FlowHit, FlowTable, MatchKey, Matches, PortTable, QpSlot, Verdict};
use crate::limits::ETHERNET_BYTES;
use crate::nic::Nic;
use crate::prefetch::prefetch_read;
use crate::slab::Slab;
use crate::state::{CounterState, QpKind, QpState, State};
use crate::stats::{Disposition, PortStats};
use crate::wire::{BURST_FRAMES, Burst, RxFrame};

/// How many frames ahead their headers are fetched.
const FRAME_LOOKAHEAD: usize = 8;

/// Queue pairs of a burst that are not looked at again; a power of two.
const ROUTES: usize = 4;

/// The C-VLAN tag, the only one that a completion can report.
pub(super) const C_VLAN_TPID: u16 = 0x8100;

/// What a burst works with; kept from burst to burst so that nothing is allocated.
pub(super) struct Plan {
    /// The headers of each frame, as they are looked up.
    images: Box<[MatchKey; BURST_FRAMES]>,
    /// What becomes of each frame, as far as it is known.
    ends: [Disposition; BURST_FRAMES],
    /// What the flow table decides over each frame.
    verdicts: [Verdict; BURST_FRAMES],
    matches: Matches,
    deliveries: Deliveries,
    edited: Box<EditedFrame>,
    pub(super) probe: Probe,
}

impl Plan {
    pub(super) fn new() -> Self {
        Self {
            images: Box::new([MatchKey::default(); BURST_FRAMES]),
            ends: [Disposition::Unmatched; BURST_FRAMES],
            verdicts: [Verdict::NOTHING; BURST_FRAMES],
            matches: Matches::new(),
            deliveries: Deliveries::new(),
            edited: Box::default(),
            probe: Probe::default(),
        }
    }
}

/// Receives and delivers one burst of at most `max_frames`; returns how many frames there were.
pub(super) fn burst(
    nic: &Nic,
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
    let flows = nic.flows.read();
    plan.look_up(&flows, number, frames);
    plan.probe.mark(EngineStage::Lookup);
    let mut state = nic.burst();
    plan.spread(&flows, &mut state, number, frames);
    drop(flows);
    plan.probe.mark(EngineStage::Spread);
    plan.carry_out(&mut state, frames, now_ns, stats);
    state.publish();
    plan.tally(frames.len(), stats);
    plan.probe.mark(EngineStage::Deliver);
    frames.len()
}

impl Plan {
    /// Reads the headers of the frames, and sorts out those that cannot be delivered. Returns the sum of their bytes.
    fn read(&mut self, frames: &[RxFrame<'_>], max_frame_bytes: usize) -> u64 {
        for ahead in frames.iter().take(FRAME_LOOKAHEAD) {
            prefetch_read(ahead.bytes.as_ptr());
        }
        let mut bytes = 0;
        for (index, ((frame, end), image)) in
            frames.iter().zip(&mut self.ends).zip(&mut *self.images).enumerate()
        {
            if let Some(ahead) = frames.get(index + FRAME_LOOKAHEAD) {
                prefetch_read(ahead.bytes.as_ptr());
            }
            bytes += frame.bytes.len() as u64;
            *end = admit(frame, max_frame_bytes);
            image.read(frame.bytes);
        }
        bytes
    }

    /// Looks the frames up.
    fn look_up(&mut self, flows: &FlowTable, port: u8, frames: &[RxFrame<'_>]) {
        let (images, verdicts) = (&self.images[..frames.len()], &mut self.verdicts[..frames.len()]);
        flows.classify_burst(port, images, |index| DeepKey::of(frames[index].bytes), verdicts);
    }

    /// Counts the frames for their flows and plans their deliveries. Afterwards `ends` holds what becomes of them if no
    /// delivery succeeds or fails.
    fn spread(&mut self, flows: &FlowTable, state: &mut State, port: u8, frames: &[RxFrame<'_>]) {
        let Self { images, ends, matches, deliveries, verdicts, .. } = self;
        let (images, verdicts) = (&images[..frames.len()], &verdicts[..frames.len()]);
        let mut planning = Planning::new(state, deliveries);
        let table = flows.of_port(port);
        let decides_alone = table.is_some_and(PortTable::decides_alone);
        for (index, (frame, end)) in frames.iter().zip(ends).enumerate() {
            if *end != Disposition::Unmatched {
                continue;
            }
            let (Some(table), image, verdict) = (table, &images[index], verdicts[index]) else { continue };
            let is_planned = decides_alone
                && table.plain(verdict).is_some_and(|(target, tag)| {
                    planning.plan_known(target, Delivery::new(index, image, tag))
                });
            if !is_planned {
                planning.decide(table, verdict, (index, frame.bytes, image), matches, end);
            }
        }
        planning.planner.finish();
    }

    /// Carries out the deliveries, queue by queue; the buffers of the next queue are on their way into the cache
    /// meanwhile.
    fn carry_out(&mut self, state: &mut State, frames: &[RxFrame<'_>], now_ns: u64, stats: &mut PortStats) {
        let Self { ends, deliveries, edited, .. } = self;
        let mut work = Work { deliveries: deliveries.as_slice(), frames, now_ns, edited, ends, stats };
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

    /// Adds up what became of the first `frames` frames.
    fn tally(&self, frames: usize, stats: &mut PortStats) {
        const { assert!(BURST_FRAMES <= u8::MAX as usize, "a sum of bytes, of which one instruction adds many") };
        let count = |end| self.ends[..frames].iter().map(|one| u8::from(*one == end)).sum::<u8>();
        let mut left = frames;
        // Delivered first: so are most bursts, as a whole.
        for end in Disposition::ALL.into_iter().rev() {
            if left == 0 {
                break;
            }
            let count = count(end);
            stats.dispose(end, count.into());
            left -= usize::from(count);
        }
    }
}

/// Whether a frame is looked up at all: `Unmatched` so far, if it is.
#[inline]
fn admit(frame: &RxFrame<'_>, max_frame_bytes: usize) -> Disposition {
    if frame.bytes.len() < ETHERNET_BYTES {
        return Disposition::Runt;
    }
    // A frame that the wire had to cut is as undeliverable as one that is too long.
    if frame.bytes.len() > max_frame_bytes || frame.is_truncated() {
        return Disposition::Oversize;
    }
    Disposition::Unmatched
}

/// A frame of a burst: its place, its bytes and its image.
type Framed<'f> = (usize, &'f [u8], &'f MatchKey);

/// What the deliveries of a burst are planned with.
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

    /// Plans the delivery to a queue pair, if this burst has found its only queue; returns whether it has.
    #[inline]
    fn plan_known(&mut self, target: QpSlot, delivery: Delivery) -> bool {
        let route = self.routes[target.0 as usize % ROUTES];
        let is_known = route.target == target;
        if is_known {
            self.planner.plan(Delivery { queue: route.queue, ..delivery });
        }
        is_known
    }

    /// Does what the flows ask for that a verdict on a frame represents.
    #[inline(never)]
    fn decide(
        &mut self,
        table: &PortTable,
        verdict: Verdict,
        frame: Framed<'_>,
        matches: &mut Matches,
        end: &mut Disposition,
    ) {
        table.expand(verdict, matches);
        for hit in matches.as_slice() {
            self.take(hit, frame, end);
        }
    }

    /// Counts a frame for a flow with counters, and drops it or plans the copy for its queue.
    #[inline]
    fn take(&mut self, hit: &FlowHit, frame: Framed<'_>, end: &mut Disposition) {
        self.count(hit, frame.1);
        if hit.actions.drop {
            *end = Disposition::FlowDropped;
        } else {
            self.plan(hit, frame);
        }
    }

    /// What may be known of the queue pair that a flow names.
    #[inline]
    fn route(&mut self, hit: &FlowHit) -> &mut Route {
        &mut self.routes[hit.actions.target.0 as usize % ROUTES]
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
        let qps = self.qps;
        if let Some(queue) = self.route(hit).queue(qps, hit.actions.target, bytes) {
            let delivery = Delivery::new(index, image, hit.actions.tag.unwrap_or(0));
            self.planner.plan(Delivery { queue, is_copy: hit.is_copy, ..delivery });
        }
    }
}

impl Delivery {
    /// Of a frame that ends with it, to a queue that is yet to be named.
    #[inline]
    fn new(index: usize, image: &MatchKey, tag: u32) -> Self {
        Self { frame: index as u16, cvlan: image.c_vlan(), tag, queue: 0, is_copy: false }
    }
}

/// A queue pair of a burst that sends all of its frames to one queue, so that the next frame for it costs no look.
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
    (flows, state): (&FlowTable, &mut State),
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

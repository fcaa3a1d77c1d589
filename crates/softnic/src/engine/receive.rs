//! One burst, from the wire into posted buffers.
//!
//! First the headers of all frames are parsed, then all are looked up, which gives each receive queue its list of
//! deliveries, and then each list is carried out ([`super::deliver`]). So every stage stays in the caches, and what is
//! the same for all deliveries of a queue is looked up once per burst.

use packet::{FlowKey, Parsed, TunnelKey};

use super::EnginePort;
use super::deliver::{Delivery, EditedFrame, Work, approach, serve};
use crate::clock;
use crate::flow::{FlowHit, Matches, Verdict};
use crate::limits::ETHERNET_BYTES;
use crate::nic::Nic;
use crate::prefetch::prefetch_read;
use crate::state::{QpKind, State};
use crate::stats::{Disposition, PortStats};
use crate::wire::{BURST_FRAMES, Burst, RxFrame};

/// How many frames ahead their headers are fetched.
const FRAME_LOOKAHEAD: usize = 4;

/// The C-VLAN tag, the only one that a completion can report.
pub(super) const C_VLAN_TPID: u16 = 0x8100;

/// What a burst works with; kept from burst to burst so that nothing is allocated.
pub(super) struct Plan {
    /// The headers of each frame that is looked up.
    parsed: Box<[Parsed; BURST_FRAMES]>,
    /// What becomes of each frame, as far as it is known.
    ends: [Disposition; BURST_FRAMES],
    /// What the flow table decides over each frame.
    verdicts: [Verdict; BURST_FRAMES],
    matches: Matches,
    deliveries: Vec<Delivery>,
    edited: Box<EditedFrame>,
}

/// Room for this many copies per frame on average; further ones would allocate once.
const COPIES_PER_FRAME: usize = crate::flow::MAX_MATCHES;

impl Plan {
    pub(super) fn new() -> Self {
        Self {
            parsed: Box::new([Parsed::default(); BURST_FRAMES]),
            ends: [Disposition::Unmatched; BURST_FRAMES],
            verdicts: [Verdict::NOTHING; BURST_FRAMES],
            matches: Matches::new(),
            deliveries: Vec::with_capacity(BURST_FRAMES * COPIES_PER_FRAME),
            edited: Box::default(),
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
    if frames.is_empty() {
        return 0;
    }
    let now_ns = clock::now_ns();
    stats.rx_frames += frames.len() as u64;
    stats.rx_bytes += plan.parse(frames, max_frame_bytes);
    let mut state = nic.burst();
    plan.look_up(&mut state, number, frames);
    plan.carry_out(&mut state, frames, now_ns, stats);
    state.publish();
    plan.tally(frames.len(), stats);
    frames.len()
}

impl Plan {
    /// Parses the headers of the frames, and sorts out those that cannot be delivered. Returns the sum of their bytes.
    fn parse(&mut self, frames: &[RxFrame<'_>], max_frame_bytes: usize) -> u64 {
        let mut bytes = 0;
        for (index, ((frame, end), parsed)) in
            frames.iter().zip(&mut self.ends).zip(&mut *self.parsed).enumerate()
        {
            if let Some(ahead) = frames.get(index + FRAME_LOOKAHEAD) {
                prefetch_read(ahead.bytes.as_ptr());
            }
            bytes += frame.bytes.len() as u64;
            *end = admit(frame, max_frame_bytes);
            *parsed = packet::parse(frame.bytes);
        }
        bytes
    }

    /// Looks the frames up, counts them for their flows and plans their deliveries. Afterwards `ends` holds what becomes of
    /// them if no delivery succeeds or fails.
    fn look_up(&mut self, state: &mut State, port: u8, frames: &[RxFrame<'_>]) {
        let Self { parsed, ends, matches, deliveries, verdicts, .. } = self;
        let (parsed, verdicts) = (&parsed[..frames.len()], &mut verdicts[..frames.len()]);
        deliveries.clear();
        let keys = parsed.iter().map(|parsed| &parsed.key);
        let tunnel = |index: usize| packet::parse_tunnel(frames[index].bytes, &parsed[index]);
        state.flows.classify_burst(port, keys, tunnel, verdicts);
        for (index, ((frame, end), verdict)) in frames.iter().zip(ends).zip(verdicts).enumerate() {
            if *end != Disposition::Unmatched {
                continue;
            }
            let parsed = &parsed[index];
            state.flows.expand(port, *verdict, matches);
            for hit in matches.as_slice() {
                count(state, hit, frame.bytes.len());
                if hit.actions.drop {
                    *end = Disposition::FlowDropped;
                } else {
                    plan(state, deliveries, hit, index, &parsed.key, || tunnel(index));
                }
            }
        }
    }

    /// Carries out the deliveries, queue by queue; the buffers of the next queue are on their way into the cache
    /// meanwhile.
    fn carry_out(&mut self, state: &mut State, frames: &[RxFrame<'_>], now_ns: u64, stats: &mut PortStats) {
        let Self { ends, deliveries, edited, .. } = self;
        let mut work = Work { deliveries, frames, now_ns, edited, ends, stats };
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
        for end in Disposition::ALL {
            let count: u8 = self.ends[..frames].iter().map(|one| u8::from(*one == end)).sum();
            stats.dispose(end, u64::from(count));
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

/// Counts a frame for a flow with counters.
#[inline]
fn count(state: &mut State, hit: &FlowHit, bytes: usize) {
    if let Some(set) = hit.actions.counter.and_then(|counter| state.counters.get_mut(counter.0)) {
        set.packets += 1;
        set.bytes += bytes as u64;
    }
}

/// Plans a copy for the queue pair that a flow names, unless that is gone.
#[inline]
fn plan(
    state: &mut State,
    deliveries: &mut Vec<Delivery>,
    hit: &FlowHit,
    frame: usize,
    key: &FlowKey,
    tunnel: impl FnOnce() -> TunnelKey,
) {
    let slot = match state.qps.get(hit.actions.target.0).map(|qp| &qp.kind) {
        Some(QpKind::Rss { rss, .. }) => rss.queue(key, tunnel),
        Some(QpKind::Raw { queue, .. }) => *queue,
        None => return,
    };
    let Some(queue) = state.queues.get_mut(slot) else { return };
    if !queue.unpublished {
        queue.unpublished = true;
        state.unpublished_queues.push(slot);
    }
    let cvlan = if key.vlan_tpid == C_VLAN_TPID { key.vlan_tci } else { 0 };
    let tag = hit.actions.tag.unwrap_or(0);
    queue.plan(deliveries, Delivery { frame: frame as u16, cvlan, tag, is_copy: hit.is_copy, next: 0 });
}

/// Gives the sniffers of a port their copies of frames that were sent through it; at most a burst of them.
pub(super) fn copy_sent(
    state: &mut State,
    port: u8,
    plan: &mut Plan,
    frames: &[RxFrame<'_>],
    stats: &mut PortStats,
) {
    let frames = &frames[..frames.len().min(BURST_FRAMES)];
    plan.deliveries.clear();
    state.flows.sniffers(port, &mut plan.matches);
    for (index, frame) in frames.iter().enumerate() {
        let parsed = packet::parse(frame.bytes);
        let tunnel = || packet::parse_tunnel(frame.bytes, &parsed);
        for hit in plan.matches.as_slice() {
            count(state, hit, frame.bytes.len());
            self::plan(state, &mut plan.deliveries, hit, index, &parsed.key, tunnel);
        }
    }
    // Sniffers take copies only, so what becomes of the frames themselves does not change.
    plan.carry_out(state, frames, clock::now_ns(), stats);
    state.publish();
}

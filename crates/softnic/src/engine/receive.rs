//! One burst, from the wire into posted buffers.
//!
//! First every frame is judged: parsed, looked up, hashed; that gives a plan of deliveries. Then the plan is carried
//! out, with the buffers a few deliveries ahead already on their way into the cache.

use arrayvec::ArrayVec;
use packet::{FlowKey, TunnelKey};

use super::EnginePort;
use super::deliver::{EditedFrame, deliver, prefetch_buffer};
use crate::clock;
use crate::flow::{FlowHit, Matches};
use crate::limits::ETHERNET_BYTES;
use crate::nic::Nic;
use crate::prefetch::prefetch_read;
use crate::state::{QpKind, State};
use crate::stats::{Disposition, PortStats};
use crate::wire::{BURST_FRAMES, Burst, RxFrame};

/// How many frames ahead their headers are fetched, and how many deliveries ahead their buffers.
const FRAME_LOOKAHEAD: usize = 4;
const BUFFER_LOOKAHEAD: usize = 6;
/// Deliveries of one queue between two looks at how many buffers the application has posted to it.
const DELIVERIES_PER_LOOK: u32 = BURST_FRAMES as u32;

/// The C-VLAN tag, the only one that a completion can report.
pub(super) const C_VLAN_TPID: u16 = 0x8100;

/// One copy of one frame for one queue.
#[derive(Clone, Copy)]
pub(super) struct Delivery {
    frame: usize,
    pub(super) queue: u32,
    pub(super) tag: u32,
    pub(super) cvlan: u16,
    /// Made by a flow that lets the frame go on: whatever becomes of it, it is not what becomes of the frame.
    is_copy: bool,
    /// The position of its receive request, unless deliveries before it fail.
    pub(super) position: u32,
}

/// What a burst works with; kept from burst to burst so that nothing is allocated.
pub(super) struct Plan {
    matches: Matches,
    deliveries: Vec<Delivery>,
    edited: Box<EditedFrame>,
}

/// Room for this many copies per frame on average; further ones would allocate once.
const COPIES_PER_FRAME: usize = crate::flow::MAX_MATCHES;

impl Plan {
    pub(super) fn new() -> Self {
        Self {
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
    let mut ends = ArrayVec::<Disposition, BURST_FRAMES>::new();
    let mut state = nic.burst();
    let state = &mut *state;
    plan.deliveries.clear();
    for (index, frame) in frames.iter().enumerate() {
        if let Some(ahead) = frames.get(index + FRAME_LOOKAHEAD) {
            prefetch_read(ahead.bytes.as_ptr());
        }
        stats.rx_bytes += frame.bytes.len() as u64;
        ends.push(judge(state, number, max_frame_bytes, (index, frame), plan));
    }
    for index in 0..plan.deliveries.len() {
        if let Some(ahead) = plan.deliveries.get(index + BUFFER_LOOKAHEAD) {
            prefetch_buffer(state, ahead);
        }
        let delivery = plan.deliveries[index];
        let end = deliver(state, &delivery, &frames[delivery.frame], now_ns, &mut plan.edited);
        stats.settle(&mut ends[delivery.frame], end, delivery.is_copy);
    }
    state.publish();
    stats.rx_frames += frames.len() as u64;
    tally(&ends, stats);
    frames.len()
}

/// Adds up what became of the frames.
fn tally(ends: &[Disposition], stats: &mut PortStats) {
    let mut counts = [0u64; Disposition::ALL.len()];
    for end in ends {
        counts[*end as usize] += 1;
    }
    for end in Disposition::ALL {
        stats.dispose(end, counts[end as usize]);
    }
}

/// Decides what is to become of a frame, and plans its deliveries. The answer holds if none of them succeeds or fails.
#[inline]
fn judge(
    state: &mut State,
    port: u8,
    max_frame_bytes: usize,
    (index, frame): (usize, &RxFrame<'_>),
    plan: &mut Plan,
) -> Disposition {
    if frame.bytes.len() < ETHERNET_BYTES {
        return Disposition::Runt;
    }
    // A frame that the wire had to cut is as undeliverable as one that is too long.
    if frame.bytes.len() > max_frame_bytes || frame.is_truncated() {
        return Disposition::Oversize;
    }
    let parsed = packet::parse(frame.bytes);
    let tunnel = || packet::parse_tunnel(frame.bytes, &parsed);
    state.flows.lookup(port, &parsed.key, tunnel, &mut plan.matches);
    let mut end = Disposition::Unmatched;
    for hit in plan.matches.as_slice() {
        let actions = hit.actions;
        if let Some(set) = actions.counter.and_then(|counter| state.counters.get_mut(counter.0)) {
            set.packets += 1;
            set.bytes += frame.bytes.len() as u64;
        }
        if actions.drop {
            end = Disposition::FlowDropped;
            continue;
        }
        if let Some(delivery) = copy(state, hit, index, &parsed.key, tunnel) {
            plan.deliveries.push(delivery);
        }
    }
    end
}

/// Plans a copy for the queue pair that a flow names, unless that is gone.
#[inline]
fn copy(
    state: &mut State,
    hit: &FlowHit,
    frame: usize,
    key: &FlowKey,
    tunnel: impl FnOnce() -> TunnelKey,
) -> Option<Delivery> {
    let queue = match state.qps.get(hit.actions.target.0).map(|qp| &qp.kind)? {
        QpKind::Rss { rss, .. } => rss.queue(key, tunnel),
        QpKind::Raw { queue, .. } => *queue,
    };
    let receiver = state.queues.get_mut(queue)?;
    if !receiver.unpublished {
        receiver.unpublished = true;
        state.unpublished_queues.push(queue);
    }
    // The only looks at the application's index in this burst: a dry queue must not be asked for every delivery.
    if receiver.planned.is_multiple_of(DELIVERIES_PER_LOOK) {
        receiver.consumer.refresh(receiver.planned + DELIVERIES_PER_LOOK);
    }
    let position = receiver.consumer.position().wrapping_add(receiver.planned);
    receiver.consumer.prefetch(receiver.planned);
    receiver.planned += 1;
    let cvlan = if key.vlan_tpid == C_VLAN_TPID { key.vlan_tci } else { 0 };
    let (tag, is_copy) = (hit.actions.tag.unwrap_or(0), hit.is_copy);
    Some(Delivery { frame, queue, tag, cvlan, is_copy, position })
}

/// Gives the sniffers of a port their copies of frames that were sent through it; at most a burst of them.
pub(super) fn copy_sent<'f>(
    state: &mut State,
    port: u8,
    plan: &mut Plan,
    frames: impl Iterator<Item = &'f [u8]>,
    stats: &mut PortStats,
) {
    let now_ns = clock::now_ns();
    let Plan { matches, edited, .. } = plan;
    state.flows.sniffers(port, matches);
    for bytes in frames.take(BURST_FRAMES) {
        let parsed = packet::parse(bytes);
        for hit in matches.as_slice() {
            if let Some(set) = hit.actions.counter.and_then(|counter| state.counters.get_mut(counter.0)) {
                set.packets += 1;
                set.bytes += bytes.len() as u64;
            }
            let tunnel = || packet::parse_tunnel(bytes, &parsed);
            let Some(delivery) = copy(state, hit, 0, &parsed.key, tunnel) else { continue };
            match deliver(state, &delivery, &RxFrame::new(bytes), now_ns, edited) {
                Disposition::Delivered => stats.replicated += 1,
                _ => stats.copies_lost += 1,
            }
        }
    }
    state.publish();
}

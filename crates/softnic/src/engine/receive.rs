//! One burst, from the wire into posted buffers.
//!
//! First every frame is judged: parsed, looked up, hashed; that gives a plan of deliveries. Then the plan is carried
//! out, with the buffers a few deliveries ahead already on their way into the cache.

use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use packet::checksum::{Check, verify_ip, verify_l4};
use packet::{FlowKey, TunnelKey};

use super::EnginePort;
use crate::clock;
use crate::flow::{FlowHit, FlowTable, Matches};
use crate::limits::{ETHERNET_BYTES, MAX_TSO_BYTES};
use crate::memory::MemoryTable;
use crate::nic::Nic;
use crate::prefetch::{prefetch_read, prefetch_write};
use crate::slab::Slab;
use crate::state::{CounterState, FrameEdits, QpKind, QueueState, State};
use crate::stats::{Disposition, PortStats};
use crate::wire::{BURST_FRAMES, Burst, Checksum, MAX_MERGED_BYTES, RxFrame};
use crate::work::{Cqe, Element, Opcode, RECEIVE_HEADER_BYTES, Status};

/// How many frames ahead their headers are fetched, and how many deliveries ahead their buffers.
const FRAME_LOOKAHEAD: usize = 4;
const BUFFER_LOOKAHEAD: usize = 6;
/// Deliveries of one queue between two looks at how many buffers the application has posted to it.
const DELIVERIES_PER_LOOK: u32 = BURST_FRAMES as u32;
/// How many completions ahead their lines are taken over from the application's core: two to a line.
const COMPLETION_LOOKAHEAD: u32 = 8;

/// The C-VLAN tag, the only one that a completion can report.
const C_VLAN_TPID: u16 = 0x8100;

/// One copy of one frame for one queue.
#[derive(Clone, Copy)]
struct Delivery {
    frame: usize,
    queue: u32,
    tag: u32,
    cvlan: u16,
    /// Made by a flow that lets the frame go on: whatever becomes of it, it is not what becomes of the frame.
    is_copy: bool,
    /// The position of its receive request, unless deliveries before it fail.
    position: u32,
}

/// What a burst works with; kept from burst to burst so that nothing is allocated.
pub(super) struct Plan {
    matches: Matches,
    deliveries: Vec<Delivery>,
    edited: Box<EditedFrame>,
}

/// A frame that a queue wants otherwise than it came.
type EditedFrame = ArrayVec<u8, { MAX_MERGED_BYTES + FCS_BYTES }>;

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
        QpKind::Rss { rss, .. } => rss.select(key, tunnel).1,
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

/// Takes over the buffer that a delivery will probably be copied to. The address is not checked yet: a prefetch of a
/// wrong one does nothing.
#[inline]
fn prefetch_buffer(state: &State, delivery: &Delivery) {
    let Some(queue) = state.queues.get(delivery.queue) else { return };
    if queue.consumer.is_published(delivery.position) {
        // SAFETY: the request was published, so its slot is this side's; it holds at least one element.
        let element = unsafe { first_element(queue.consumer.peek(delivery.position)).read() };
        prefetch_write(std::ptr::without_provenance_mut(element.address as usize));
    }
}

/// Carries out one delivery.
#[inline]
fn deliver(
    state: &mut State,
    delivery: &Delivery,
    frame: &RxFrame<'_>,
    now_ns: u64,
    edited: &mut EditedFrame,
) -> Disposition {
    let State { queues, cqs, memory, unpublished_cqs, .. } = state;
    let Some(queue) = queues.get_mut(delivery.queue) else { return Disposition::QueueNotReady };
    if !queue.ready {
        return Disposition::QueueNotReady;
    }
    if !queue.consumer.is_published(queue.consumer.position()) {
        let lost = queue.out_of_buffer.load(Ordering::Relaxed);
        queue.out_of_buffer.store(lost.wrapping_add(1), Ordering::Relaxed);
        return Disposition::OutOfBuffer;
    }
    let Some(cq) = cqs.get_mut(queue.cq) else { return Disposition::CqOverrun };
    // The completion's place comes first: without it the buffer must stay posted.
    if cq.failed || !cq.producer.has_room(1) {
        let slot = queue.cq;
        state.overrun(slot);
        return Disposition::CqOverrun;
    }
    cq.producer.prefetch(COMPLETION_LOOKAHEAD);
    let slot = queue.consumer.slot();
    // SAFETY: the request was published, so its slot is this side's, and slots begin with the id.
    let wr_id = unsafe { slot.cast::<u64>().read() };
    let bytes = if queue.edits == FrameEdits::default() {
        frame.bytes
    } else {
        edit(frame.bytes, queue.edits, edited)
    };
    let (status, end) = scatter(memory, queue, slot, bytes);
    queue.consumer.advance();
    let mut cqe = Cqe::new(wr_id, Opcode::Receive, status, queue.number);
    cqe.timestamp_ns = if frame.timestamp_ns == 0 { now_ns } else { frame.timestamp_ns };
    cqe.byte_len = bytes.len() as u32;
    cqe.flow_tag = delivery.tag;
    cqe.cvlan = delivery.cvlan;
    if cq.wants_checksums.load(Ordering::Relaxed) {
        cqe.set_checksum_ok(checksums_hold(frame));
    }
    // SAFETY: room was found above, so the slot is the producer's; completion slots are aligned `Cqe`s.
    unsafe { cq.producer.slot().cast::<Cqe>().write(cqe) };
    cq.producer.advance();
    if !cq.unpublished {
        cq.unpublished = true;
        unpublished_cqs.push(queue.cq);
    }
    if end == Disposition::MemoryFault {
        state.fail_queue(delivery.queue);
    }
    end
}

/// Makes of a frame what a queue wants. The check sequence is that of the frame on the medium, tag included.
#[cold]
fn edit<'e>(frame: &[u8], edits: FrameEdits, edited: &'e mut EditedFrame) -> &'e [u8] {
    /// Bytes of a tag, and where it is: behind the two addresses.
    const TAG_BYTES: usize = 4;
    const TAG_AT: usize = 12;
    const ETHER_TYPE_BYTES: usize = 2;
    edited.clear();
    let tagged = frame.get(TAG_AT..TAG_AT + 2) == Some(&C_VLAN_TPID.to_be_bytes());
    let (head, rest) = match frame.get(TAG_AT + TAG_BYTES..) {
        // A tag with nothing behind it is none, as `packet::parse` has it: the completion does not tell it.
        Some(rest) if edits.strip_cvlan && tagged && rest.len() >= ETHER_TYPE_BYTES => {
            (&frame[..TAG_AT], rest)
        }
        _ => (frame, &[][..]),
    };
    let fcs = edits.append_fcs.then(|| fcs(frame));
    for part in [head, rest, fcs.as_ref().map_or(&[][..], |fcs| fcs)] {
        // There is room for every frame that a port takes, and its check sequence.
        let taken = edited.try_extend_from_slice(part);
        debug_assert!(taken.is_ok());
    }
    edited
}

/// The first element of a receive request.
fn first_element(slot: NonNull<u8>) -> NonNull<Element> {
    // SAFETY: receive slots hold at least one element behind the id.
    unsafe { slot.add(RECEIVE_HEADER_BYTES) }.cast::<Element>()
}

/// Copies a frame into the buffers of a receive request, after all of them were checked.
#[inline]
pub(super) fn scatter(
    memory: &MemoryTable,
    queue: &QueueState,
    slot: NonNull<u8>,
    frame: &[u8],
) -> (Status, Disposition) {
    let elements = first_element(slot);
    // SAFETY: the request was published, so its slot is this side's; it holds at least one element.
    let first = unsafe { elements.read() };
    if (first.bytes as usize) < frame.len() {
        return scatter_list(memory, queue, elements, frame);
    }
    // By far the most frequent case: one buffer takes it all.
    let Some(address) = memory.resolve(first.key, queue.domain, first.address, first.bytes, true) else {
        return (Status::LocalProtection, Disposition::MemoryFault);
    };
    // SAFETY: `resolve` found the buffer inside a writable region of the queue's domain, which stays registered while the
    // state is locked; it holds the frame, which is in memory of the wire or the engine: the application cannot register that.
    unsafe { address.copy_from_nonoverlapping(frame.as_ptr(), frame.len()) };
    (Status::Success, Disposition::Delivered)
}

/// The general case of [`scatter`].
#[cold]
fn scatter_list(
    memory: &MemoryTable,
    queue: &QueueState,
    elements: NonNull<Element>,
    frame: &[u8],
) -> (Status, Disposition) {
    const FAULT: (Status, Disposition) = (Status::LocalProtection, Disposition::MemoryFault);
    let mut targets = ArrayVec::<(*mut u8, usize), { crate::limits::MAX_SGE as usize }>::new();
    let mut room = 0;
    for index in 0..queue.max_sge as usize {
        // SAFETY: receive slots hold `max_sge` elements.
        let element = unsafe { elements.add(index) };
        // SAFETY: the request was published, so its slot is this side's.
        let element = unsafe { element.read() };
        if element.key == 0 {
            break;
        }
        let Some(address) = memory.resolve(element.key, queue.domain, element.address, element.bytes, true)
        else {
            return FAULT;
        };
        room += element.bytes as usize;
        if targets.try_push((address, element.bytes as usize)).is_err() {
            return FAULT;
        }
        // Elements that the frame does not reach are not looked at, as a device would not.
        if room >= frame.len() {
            break;
        }
    }
    if room < frame.len() {
        return (Status::LocalLength, Disposition::Oversize);
    }
    let mut rest = frame;
    for (address, bytes) in targets {
        let (part, later) = rest.split_at(bytes.min(rest.len()));
        rest = later;
        // SAFETY: as in `scatter`; `part` is no longer than the element.
        unsafe { address.copy_from_nonoverlapping(part.as_ptr(), part.len()) };
    }
    (Status::Success, Disposition::Delivered)
}

/// IBV_WC_IP_CSUM_OK: the IPv4 header's checksum and the TCP or UDP checksum are right (`ibv_poll_cq(3)`).
#[cold]
fn checksums_hold(frame: &RxFrame<'_>) -> bool {
    let parsed = packet::parse(frame.bytes);
    let l4 = match frame.checksum {
        Checksum::Valid => true,
        Checksum::Partial => false,
        Checksum::Unknown => verify_l4(frame.bytes, &parsed) == Check::Good,
    };
    l4 && verify_ip(frame.bytes, &parsed) == Check::Good
}

// The frame check sequence, for queues that want it (`IBV_WQ_FLAGS_SCATTER_FCS`).
//
// The wires carry frames without it, as network interfaces hand them over, so the engine computes what the medium
// would have carried. It is never verified: a medium drops what does not hold before this device could see it.

/// Bytes of a frame check sequence.
pub(super) const FCS_BYTES: usize = 4;

/// The generator polynomial of IEEE 802.3, 3.2.9, lowest bit first.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// The remainder of every byte.
const REMAINDERS: [u32; 256] = remainders();

const fn remainders() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let mut remainder = byte as u32;
        let mut bit = 0;
        while bit < u8::BITS {
            remainder = (remainder >> 1) ^ if remainder & 1 == 0 { 0 } else { POLYNOMIAL };
            bit += 1;
        }
        table[byte] = remainder;
        byte += 1;
    }
    table
}

/// The check sequence of a frame, in the order in which it follows the frame.
pub(super) fn fcs(frame: &[u8]) -> [u8; FCS_BYTES] {
    let remainder = frame
        .iter()
        .fold(u32::MAX, |remainder, byte| (remainder >> 8) ^ REMAINDERS[usize::from(remainder as u8 ^ byte)]);
    (!remainder).to_le_bytes()
}

// The effect of flows on sent frames: EGRESS flows drop or count them, sniffers get copies.
//
// [`super::transmit`] asks before each frame goes to the wire, and only on ports that have such flows. Sniffers cannot be
// served while a request is being carried out, so copies wait here until it is done. Nothing is allocated after the
// engine was made.

/// Bytes of copies that can wait: a whole stream in segments of the usual size, headers included.
const TAP_BYTES: usize = 2 * MAX_TSO_BYTES as usize;
/// Copies that can wait.
const TAP_FRAMES: usize = 1 << 10;

/// The effect of a port's flows on sent frames.
pub(super) struct Tap {
    /// Whether some flow is about them.
    filtered: bool,
    /// How many flows want copies.
    sniffers: u64,
    matches: Matches,
    bytes: Vec<u8>,
    /// Where each copy ends.
    ends: Vec<usize>,
}

/// What an EGRESS flow touches.
pub(super) struct EgressFlows<'s> {
    pub(super) flows: &'s mut FlowTable,
    pub(super) counters: &'s mut Slab<CounterState>,
}

impl Tap {
    pub(super) fn new() -> Self {
        Self {
            filtered: false,
            sniffers: 0,
            matches: Matches::new(),
            bytes: Vec::with_capacity(TAP_BYTES),
            ends: Vec::with_capacity(TAP_FRAMES),
        }
    }

    /// Turns to a port. `sniffs_sent` is the device's rule.
    pub(super) fn turn_to(&mut self, flows: &FlowTable, port: u8, sniffs_sent: bool) {
        self.filtered = flows.has_egress(port);
        self.sniffers = if sniffs_sent { flows.sniffer_count(port) as u64 } else { 0 };
    }

    /// Whether a frame may not be sent; counts it either way.
    #[inline]
    pub(super) fn drops(&mut self, egress: &mut EgressFlows<'_>, port: u8, frame: &[u8]) -> bool {
        self.filtered && self.judge(egress, port, frame)
    }

    #[inline(never)]
    fn judge(&mut self, egress: &mut EgressFlows<'_>, port: u8, frame: &[u8]) -> bool {
        let parsed = packet::parse(frame);
        let tunnel = || packet::parse_tunnel(frame, &parsed);
        egress.flows.lookup_sent(port, &parsed.key, tunnel, &mut self.matches);
        let mut dropped = false;
        for hit in self.matches.as_slice() {
            if let Some(set) = hit.actions.counter.and_then(|counter| egress.counters.get_mut(counter.0)) {
                set.packets += 1;
                set.bytes += frame.len() as u64;
            }
            dropped |= hit.actions.drop;
        }
        dropped
    }

    /// Keeps a copy of a frame that was sent, if a sniffer wants one and there is space.
    #[inline]
    pub(super) fn keep(&mut self, frame: &[u8], stats: &mut PortStats) {
        if self.sniffers == 0 {
            return;
        }
        if self.bytes.len() + frame.len() > TAP_BYTES || self.ends.len() == TAP_FRAMES {
            stats.copies_lost += self.sniffers;
            return;
        }
        self.bytes.extend_from_slice(frame);
        self.ends.push(self.bytes.len());
    }

    /// Hands the copies out.
    pub(super) fn hand_out(&mut self, state: &mut State, port: u8, plan: &mut Plan, stats: &mut PortStats) {
        let Self { bytes, ends, .. } = self;
        for first in (0..ends.len()).step_by(BURST_FRAMES) {
            let frames = (first..ends.len()).map(|at| {
                let start = at.checked_sub(1).map_or(0, |before| ends[before]);
                &bytes[start..ends[at]]
            });
            copy_sent(state, port, plan, frames, stats);
        }
        bytes.clear();
        ends.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::{Actions, FlowId, FlowKind, FlowRule, Matcher, QpSlot};

    #[test]
    fn known_answers_hold() {
        // The check value of CRC-32/ISO-HDLC in the catalogue of parametrised CRC algorithms.
        assert_eq!(fcs(b"123456789"), 0xcbf4_3926_u32.to_le_bytes());
        assert_eq!(fcs(b""), [0; FCS_BYTES]);
    }

    #[test]
    fn a_frame_with_its_check_sequence_leaves_the_magic_remainder() {
        for length in [1, 14, 60, 1514] {
            let mut frame: Vec<u8> = (0..length).map(|index| (index * 31) as u8).collect();
            frame.extend(fcs(&frame));
            // IEEE 802.3, 3.2.9: what a receiver's shift register holds after a frame without errors.
            assert_eq!(fcs(&frame), 0x2144_df1c_u32.to_le_bytes());
            frame[0] ^= 1;
            assert_ne!(fcs(&frame), 0x2144_df1c_u32.to_le_bytes());
        }
    }

    fn sniffer(id: u32) -> FlowRule {
        FlowRule {
            id: FlowId(id),
            kind: FlowKind::Sniffer,
            port: 1,
            egress: false,
            priority: 0,
            dont_trap: false,
            order: id.into(),
            matcher: Matcher::any(),
            tunnel: None,
            actions: Actions { tag: None, drop: false, counter: None, target: QpSlot(id) },
        }
    }

    #[test]
    fn a_frame_without_room_is_lost_to_each_sniffer() {
        let (mut flows, mut tap, mut stats) = (FlowTable::default(), Tap::new(), PortStats::default());
        for id in 0..3 {
            flows.insert(sniffer(id)).unwrap();
        }
        tap.turn_to(&flows, 1, true);
        (0..TAP_FRAMES + 2).for_each(|_| tap.keep(&[0; 60], &mut stats));
        assert_eq!((tap.ends.len(), stats.copies_lost), (TAP_FRAMES, 2 * 3));
        tap.turn_to(&flows, 1, false);
        tap.keep(&[0; 60], &mut stats);
        assert_eq!(stats.copies_lost, 2 * 3, "a device that sniffs only what is received loses nothing");
    }
}

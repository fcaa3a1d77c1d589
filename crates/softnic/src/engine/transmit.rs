//! What was posted to be sent, onto the wire. Requests in foreign formats are sent by `foreign`.
//!
//! A request waits in its queue while the wire has no room, as a NIC whose medium is slower than the
//! application lets it wait. A frame that the wire refuses, because the medium is down or does not take this
//! frame, is no fault of its request: the request completes with IBV_WC_GENERAL_ERR, and its queue goes on
//! with the next one. In a foreign format it completes as sent, as on a ConnectX, and the loss shows in the
//! port's counters alone.
//!
//! The wire may make system calls when it hands its queue to the medium, so that is done without a lock. The
//! completions are written before and published after it; those of frames that the medium has refused are
//! written again in between (`late`). If a control call or another engine publishes them meanwhile, as
//! successes, such a loss shows in the port's counters alone.

mod foreign;
mod late;

use std::ptr::NonNull;

use arrayvec::ArrayVec;
use flow_table::FlowTable;
use hugemem::prefetch_read;
use packet::segment::{Segment, Template};
use wire::{BURST_FRAMES, ETHERNET_BYTES, MAX_FRAME_BYTES};

use super::receive::Plan;
use super::tap::{EgressFlows, Tap};
use super::{EnginePort, datagram, flush_failed};
use crate::clock;
use crate::formats::{Completions, Sends};
use crate::limits::{MAX_SGE, MAX_TSO_BYTES, MAX_TSO_SEGMENTS};
use crate::memory::{MemoryTable, Regions};
use crate::paths;
use crate::shared::NicShared;
use crate::state::{QpKind, QpState, State};
use crate::stats::PortStats;
use crate::work::{
    Cqe, Element, SEND_CHECKSUM, SEND_HEADER_BYTES, SEND_INLINE, SEND_SEGMENTS, SEND_SIGNALED, SendHeader,
    SendShape, Status, WorkOpcode,
};

/// Frames of one queue pair in one pass, so that one cannot keep the others waiting.
pub(super) const FRAMES_PER_PASS: usize = 64;

// A wire takes as many at once, with a bit for each.
const _: () = assert!(FRAMES_PER_PASS <= BURST_FRAMES);

/// How many requests ahead their lines are fetched from the application's core.
const REQUEST_LOOKAHEAD: u32 = 6;

/// The outcome of one request.
enum Outcome {
    /// The ring is empty, or nothing is due yet.
    Nothing,
    /// Done, with so many frames, and whether it is signaled.
    Done(Cqe, Sent, bool),
    /// The queue pair goes into the error state.
    Failed(Cqe),
}

/// The frames and bytes that went to the wire.
#[derive(Clone, Copy, Default)]
struct Sent {
    frames: usize,
    bytes: u64,
    /// The wire has refused the frame, or one of a stream.
    is_refused: bool,
}

/// The buffers of a request, found and allowed: where and how long.
type Parts = ArrayVec<(*const u8, usize), { MAX_SGE as usize }>;

/// The memory regions that the requests of one queue may name: those of its domain.
#[derive(Clone, Copy)]
pub(super) struct SendMemory<'m> {
    pub(super) table: &'m MemoryTable,
    pub(super) domain: u32,
}

impl<'m> SendMemory<'m> {
    /// The regions, to be read.
    #[inline]
    fn regions(self) -> Regions<'m> {
        self.table.of_domain(self.domain, false)
    }
}

/// Where frames are put together, if they have to be, and sent.
struct Way<'a> {
    gather: &'a mut [u8; MAX_FRAME_BYTES],
    exit: Exit<'a>,
}

/// Where frames leave.
struct Exit<'a> {
    port: &'a mut EnginePort,
    tap: &'a mut Tap,
    stats: &'a mut PortStats,
}

/// Sends what was posted for a port; returns the frames handed to the wire.
pub(super) fn drain(
    nic: &NicShared,
    port: &mut EnginePort,
    gather: &mut [u8; MAX_FRAME_BYTES],
    tap: &mut Tap,
    plan: &mut Plan,
    stats: &mut PortStats,
) -> usize {
    let flows = nic.flows.read();
    let mut state = nic.burst();
    tap.turn_to(&flows, port.number, !nic.rules().flow.emulation.sniffs_received_only);
    if !state.failed_queues.is_empty() {
        flush_failed(&mut state);
    }
    if !state.waiting_cqs.is_empty() {
        state.raise_waiting();
    }
    if !state.watched_cqs.is_empty() {
        state.look_for_arms();
    }
    let mut sent = 0;
    let mut index = 0;
    let mut handed = late::HandedList::new();
    let mut way = Way { gather, exit: Exit { port, tap, stats } };
    while let Some(&slot) = state.senders.get(index) {
        match state.qps.get(slot).filter(|qp| qp.port == way.exit.port.number) {
            Some(qp) if qp.is_datagram() => {
                sent += datagram::drain(nic, &mut state, slot, way.gather, way.exit.stats);
            }
            Some(_) => {
                let (frames, requests) = drain_qp(&flows, &mut state, index, slot, &mut way, plan);
                sent += frames;
                if let Some(requests) = requests {
                    // Losses of queue pairs beyond the list's room show in the port's counters alone.
                    let _ = handed.try_push(requests);
                }
            }
            None => {}
        }
        // One that failed is no sender any more, and the next one takes its place.
        index += usize::from(state.senders.get(index) == Some(&slot));
    }
    drop((state, flows));
    // Also when nothing new was sent: what the medium refused for a moment waits in the wire.
    port.wire.flush();
    let lost = port.note_transmit_losses(stats);
    if sent > 0 {
        let mut state = nic.burst();
        if lost > 0 {
            late::fail_last(&mut state, &handed, lost);
        }
        state.publish();
    }
    sent
}

/// Sends the requests posted to the queue pair at this position among the senders. Stops when the queue pair
/// or its completion queue fails. Returns the frames, and which requests they are of.
fn drain_qp(
    flows: &FlowTable,
    state: &mut State,
    index: usize,
    slot: u32,
    way: &mut Way<'_>,
    plan: &mut Plan,
) -> (usize, Option<late::Handed>) {
    let mut handled = 0;
    let mut handed = late::Handed::begin(state, slot);
    while handled < FRAMES_PER_PASS
        && state.senders.get(index) == Some(&slot)
        && way.exit.port.wire.has_room()
    {
        let (settled, refused) = send_plain(state, slot, FRAMES_PER_PASS - handled, &mut way.exit);
        handed.note(settled as u32, refused);
        handled += settled;
        if handled == FRAMES_PER_PASS || !way.exit.port.wire.has_room() {
            break;
        }
        let State { qps, memory, counters, .. } = state;
        let Some(qp) = qps.get_mut(slot) else { break };
        let outcome = send_one(qp, memory, way, &mut EgressFlows { flows, counters });
        let QpKind::Raw { send, queue } = &mut qp.kind else { break };
        let (cq, queue) = (send.cq, *queue);
        match outcome {
            Outcome::Nothing => break,
            Outcome::Done(cqe, sent, signaled) => {
                if send.pace.is_limited() {
                    send.pace.sent(sent.bytes, clock::steady_ns());
                }
                handled += sent.frames;
                handed.note(1, u64::from(sent.is_refused));
                // For a request without a signal the completion queue may not have been made long enough.
                if signaled || (sent.is_refused && state.has_room_for_completion(cq)) {
                    state.complete(cq, &cqe);
                }
                let Exit { port, tap, stats } = &mut way.exit;
                if tap.has_copies() {
                    tap.hand_out(flows, state, port.number, plan, stats);
                }
            }
            Outcome::Failed(cqe) => {
                way.exit.stats.tx_errors += 1;
                state.complete(cq, &cqe);
                state.fail_queue(queue);
                handled += 1;
            }
        }
    }
    if handled == 0 {
        return (0, None);
    }
    state.unpublished_sends.push(slot);
    (handled, handed.end(state))
}

/// Sends up to `limit` of the next requests together: those that are as most are, a frame in one piece, as it
/// is, on a port whose sent frames no flow is about. Stops at the first other one, or where the completion
/// queue has no room. Returns how many it sent, with a bit for each that the wire refused.
// By itself it has enough registers for all that the loop uses.
#[inline(never)]
fn send_plain(state: &mut State, slot: u32, limit: usize, exit: &mut Exit<'_>) -> (usize, u64) {
    let State { qps, cqs, memory, unpublished_cqs, .. } = state;
    let Some(QpState { kind: QpKind::Raw { send, .. }, domain, number, .. }) = qps.get_mut(slot) else {
        return (0, 0);
    };
    let Some(cq) = cqs.get_mut(send.cq).filter(|cq| !cq.failed) else { return (0, 0) };
    let (Sends::Own(requests), Completions::Own(producer)) = (&mut send.consumer, &mut cq.producer) else {
        return (0, 0);
    };
    if send.pace.is_limited() || exit.tap.is_active() || paths::are_general() {
        return (0, 0);
    }
    let limit = limit.min(FRAMES_PER_PASS) as u32;
    requests.refresh(limit);
    let count = limit.min(requests.published());
    let count = count.min(producer.room_for(count));
    let (slots, completions) = (requests.slots(), producer.slots());
    let mut regions = memory.of_domain(*domain, false);
    let mut frames = ArrayVec::<&[u8], FRAMES_PER_PASS>::new();
    let (shape, signal_all, stride) = (send.shape, send.signal_all, slots.stride());
    let (mut completed, mut nth) = (0, 0);
    'requests: while nth < count {
        // Slots that follow each other in memory.
        let mut request = slots.at(nth);
        let run = slots.run(nth).min(count - nth);
        let fetching = nth + run.saturating_sub(REQUEST_LOOKAHEAD);
        for _ in 0..run {
            if nth < fetching {
                prefetch_read(request.as_ptr().wrapping_add(REQUEST_LOOKAHEAD as usize * stride));
            }
            // SAFETY: the request was published, so its slot is this side's, and slots begin with the header.
            let header = unsafe { request.cast::<SendHeader>().read() };
            if header.flags & SEND_SEGMENTS != 0 {
                break 'requests;
            }
            let frame = in_one_piece(shape, request, &header, &mut regions).ok().flatten();
            let Some(frame) = frame.filter(|frame| exit.carries(frame)) else { break 'requests };
            if frames.try_push(frame).is_err() {
                break 'requests;
            }
            if signal_all || header.flags & SEND_SIGNALED != 0 {
                let mut cqe = Cqe::new(header.wr_id, WorkOpcode::Send, Status::Success, *number);
                cqe.byte_len = frame.len() as u32;
                // SAFETY: no more are written than there is room for, so the slot is the producer's; slots
                // are aligned `Cqe`s (`check_slots` in `completion_queues`).
                unsafe { completions.at(completed).cast::<Cqe>().write(cqe) };
                completed += 1;
            }
            nth += 1;
            // SAFETY: within the slots that follow each other, or behind the last one of them.
            request = unsafe { request.add(stride) };
        }
    }
    if frames.is_empty() {
        return (0, 0);
    }
    let (settled, refused) = exit.hand_over(&frames);
    if refused != 0 || settled < frames.len() {
        completed = 0;
        for nth in 0..settled as u32 {
            // SAFETY: the request was published, so its slot is this side's, and slots begin with the header.
            let header = unsafe { slots.at(nth).cast::<SendHeader>().read() };
            let is_refused = refused >> nth & 1 != 0;
            if is_refused || signal_all || header.flags & SEND_SIGNALED != 0 {
                let status = if is_refused { Status::General } else { Status::Success };
                let mut cqe = Cqe::new(header.wr_id, WorkOpcode::Send, status, *number);
                cqe.byte_len = frames[nth as usize].len() as u32;
                // SAFETY: as above: at most one for each of the requests, for which there is room.
                unsafe { completions.at(completed).cast::<Cqe>().write(cqe) };
                completed += 1;
            }
        }
    }
    requests.advance_by(settled as u32);
    if completed > 0 {
        producer.advance_by(completed);
        if !cq.unpublished {
            cq.unpublished = true;
            unpublished_cqs.push(send.cq);
        }
    }
    (settled, refused)
}

fn send_one(
    qp: &mut QpState,
    memory: &MemoryTable,
    way: &mut Way<'_>,
    egress: &mut EgressFlows<'_>,
) -> Outcome {
    let number = qp.number;
    let memory = SendMemory { table: memory, domain: qp.domain };
    let QpKind::Raw { send, .. } = &mut qp.kind else { return Outcome::Nothing };
    if send.pace.is_limited() && !send.pace.is_due(clock::steady_ns()) {
        return Outcome::Nothing;
    }
    if !send.consumer.has_next() {
        return Outcome::Nothing;
    }
    let (shape, signal_all) = (send.shape, send.signal_all);
    let requests = match &mut send.consumer {
        Sends::Own(requests) => requests,
        Sends::Foreign(ring) => return foreign::send(&mut **ring, number, memory, way, egress),
        Sends::None => return Outcome::Nothing,
    };
    let slot = requests.slot();
    // SAFETY: the request was published, so its slot is this side's, and slots begin with the header.
    let header = unsafe { slot.cast::<SendHeader>().read() };
    let segmented = header.flags & SEND_SEGMENTS != 0;
    let sent = if segmented {
        send_segments(shape, slot, &header, memory, way, egress)
    } else {
        send_frame(shape, slot, &header, memory, way, egress)
    };
    requests.advance();
    let opcode = if segmented { WorkOpcode::Segments } else { WorkOpcode::Send };
    match sent {
        Ok(sent) => {
            let status = if sent.is_refused { Status::General } else { Status::Success };
            let mut done = Cqe::new(header.wr_id, opcode, status, number);
            done.byte_len = u32::try_from(sent.bytes).unwrap_or(u32::MAX);
            Outcome::Done(done, sent, signal_all || header.flags & SEND_SIGNALED != 0)
        }
        Err(status) => Outcome::Failed(Cqe::failed(header.wr_id, opcode, status, number)),
    }
}

/// Sends a request that is one frame.
fn send_frame(
    shape: SendShape,
    slot: NonNull<u8>,
    header: &SendHeader,
    memory: SendMemory<'_>,
    way: &mut Way<'_>,
    egress: &mut EgressFlows<'_>,
) -> Result<Sent, Status> {
    let Way { gather: room, exit } = way;
    let frame = match in_one_piece(shape, slot, header, &mut memory.regions())? {
        Some(frame) => frame,
        None => assembled(shape, slot, header, memory, &mut room[..])?,
    };
    if !exit.carries(frame) {
        return Err(Status::LocalLength);
    }
    let is_refused = !exit.transmit(frame, egress);
    Ok(Sent { frames: 1, bytes: frame.len() as u64, is_refused })
}

/// The frame of a request where it is, if it is sent as it is and in one piece: in the request itself or in
/// its only buffer.
#[inline]
fn in_one_piece<'m>(
    shape: SendShape,
    slot: NonNull<u8>,
    header: &SendHeader,
    regions: &mut Regions<'m>,
) -> Result<Option<&'m [u8]>, Status> {
    if header.flags & (SEND_CHECKSUM | SEND_INLINE) != 0 {
        let is_plain = header.flags & SEND_CHECKSUM == 0;
        return Ok(is_plain.then(|| inline(slot, 0, header.inline_bytes.min(shape.max_inline))));
    }
    if shape.max_sge == 0 {
        return Ok(None);
    }
    let first = element(slot, 0);
    let is_only = shape.max_sge == 1 || element(slot, 1).key == 0;
    if first.key == 0 || !is_only {
        return Ok(None);
    }
    let from = regions.resolve(first.key, first.address, first.bytes).and_then(NonNull::new);
    let frame = NonNull::slice_from_raw_parts(from.ok_or(Status::LocalProtection)?, first.bytes as usize);
    // SAFETY: `resolve` found the buffer inside a region of the domain, which stays registered while the
    // state is locked. With the request the application gave it to the device: it stays as it is until the
    // completion (ibv_post_send(3)), which is written after the slice's use.
    Ok(Some(unsafe { frame.as_ref() }))
}

/// The frame of a request put together in `room`, with its checksums if they are asked for.
fn assembled<'r>(
    shape: SendShape,
    slot: NonNull<u8>,
    header: &SendHeader,
    memory: SendMemory<'_>,
    room: &'r mut [u8],
) -> Result<&'r [u8], Status> {
    let bytes = gather(shape, slot, header, memory, room)?;
    let frame = &mut room[..bytes];
    if header.flags & SEND_CHECKSUM != 0 {
        fill_in(frame);
    }
    Ok(frame)
}

/// IBV_SEND_IP_CSUM: the IPv4 header's checksum and that of TCP or UDP.
fn fill_in(frame: &mut [u8]) {
    if frame.len() >= ETHERNET_BYTES {
        let parsed = packet::parse(frame);
        packet::checksum::fill(frame, &parsed);
    }
}

/// Copies what a request is to send to the beginning of `to`; returns its length.
#[inline]
pub(super) fn gather(
    shape: SendShape,
    slot: NonNull<u8>,
    header: &SendHeader,
    memory: SendMemory<'_>,
    to: &mut [u8],
) -> Result<usize, Status> {
    if header.flags & SEND_INLINE == 0 {
        let (parts, bytes) = resolve(shape, slot, memory)?;
        let to = to.get_mut(..bytes).ok_or(Status::LocalLength)?;
        Cursor::new(&parts).copy(to);
        Ok(bytes)
    } else {
        let inline = inline(slot, 0, header.inline_bytes.min(shape.max_inline));
        to.get_mut(..inline.len()).ok_or(Status::LocalLength)?.copy_from_slice(inline);
        Ok(inline.len())
    }
}

/// Sends a request that is a TCP stream.
fn send_segments(
    shape: SendShape,
    slot: NonNull<u8>,
    header: &SendHeader,
    memory: SendMemory<'_>,
    way: &mut Way<'_>,
    egress: &mut EgressFlows<'_>,
) -> Result<Sent, Status> {
    let bytes = header.inline_bytes.min(shape.max_tso_header);
    let headers = inline(slot, shape.elements_bytes(), bytes);
    let (parts, stream_bytes) = resolve(shape, slot, memory)?;
    send_stream(headers, usize::from(header.segment_bytes), &parts, stream_bytes, way, egress)
}

/// Sends a TCP stream in segments behind copies of its headers. Nothing is sent unless all of it can be.
fn send_stream(
    headers: &[u8],
    segment_bytes: usize,
    parts: &[(*const u8, usize)],
    stream_bytes: usize,
    way: &mut Way<'_>,
    egress: &mut EgressFlows<'_>,
) -> Result<Sent, Status> {
    let frame_bytes = headers.len() + segment_bytes;
    let segments = stream_bytes.div_ceil(segment_bytes.max(1));
    let bounded = stream_bytes <= MAX_TSO_BYTES as usize && segments <= MAX_TSO_SEGMENTS as usize;
    if segment_bytes == 0 || frame_bytes > way.exit.port.max_frame_bytes || !bounded {
        return Err(Status::LocalLength);
    }
    // What a device does with a stream of something else is not documented; one that looks at the headers can
    // only refuse the operation.
    let template = Template::of_header(headers).ok_or(Status::LocalOperation)?;
    let mut cursor = Cursor::new(parts);
    let mut sent = Sent::default();
    let mut offset = 0;
    // A stream of nothing is one segment without payload.
    while sent.frames == 0 || offset < stream_bytes {
        let payload = segment_bytes.min(stream_bytes - offset);
        let frame = &mut way.gather[..headers.len() + payload];
        frame[..headers.len()].copy_from_slice(headers);
        cursor.copy(&mut frame[headers.len()..]);
        let last = offset + payload == stream_bytes;
        template.complete(frame, Segment { index: sent.frames as u32, offset: offset as u32, last });
        sent.is_refused |= !way.exit.transmit(frame, egress);
        sent.frames += 1;
        sent.bytes += frame.len() as u64;
        offset += payload;
    }
    Ok(sent)
}

impl Exit<'_> {
    /// Whether the port takes a frame of this length.
    #[inline]
    fn carries(&self, frame: &[u8]) -> bool {
        (ETHERNET_BYTES..=self.port.max_frame_bytes).contains(&frame.len())
    }

    /// Hands frames to the wire. Returns how many of them need not be offered again, and a bit for each that
    /// the wire refuses.
    fn hand_over(&mut self, frames: &[&[u8]]) -> (usize, u64) {
        let taken = self.port.wire.transmit_burst(frames);
        self.stats.tx_frames += taken.frames;
        self.stats.tx_bytes += taken.bytes;
        self.stats.tx_errors += u64::from(taken.refused.count_ones());
        (taken.settled(), taken.refused)
    }

    /// Hands a frame to the wire, unless a flow drops it. `false`: the wire has refused it.
    #[inline]
    fn transmit(&mut self, frame: &[u8], egress: &mut EgressFlows<'_>) -> bool {
        if self.tap.drops(egress, self.port.number, frame) {
            self.stats.tx_flow_dropped += 1;
            return true;
        }
        match self.port.wire.transmit(frame) {
            Ok(()) => {
                self.stats.tx_frames += 1;
                self.stats.tx_bytes += frame.len() as u64;
                self.tap.keep(frame, self.stats);
                true
            }
            Err(_) => {
                self.stats.tx_errors += 1;
                false
            }
        }
    }
}

/// The bytes of a request that are in its slot, `offset` behind the header; `bytes` is within the send ring's
/// shape.
fn inline<'a>(slot: NonNull<u8>, offset: usize, bytes: u32) -> &'a [u8] {
    // SAFETY: the body behind the header holds as much as the shape states, and so `offset + bytes`: making a
    // queue pair checks the slots (`queue_pairs::insert`).
    let start = unsafe { slot.add(SEND_HEADER_BYTES + offset) };
    // SAFETY: as above; published with the request, so the slot is this side's until the request is given
    // back, which is after its use.
    unsafe { NonNull::slice_from_raw_parts(start, bytes as usize).as_ref() }
}

/// The element of a published request at an index below its `max_sge`.
#[inline]
fn element(slot: NonNull<u8>, index: usize) -> Element {
    // SAFETY: send slots have a body behind the header: making a queue pair checks the slots
    // (`queue_pairs::insert`).
    let body = unsafe { slot.add(SEND_HEADER_BYTES) };
    // SAFETY: the body holds `max_sge` elements, by the same check.
    let element = unsafe { body.cast::<Element>().add(index) };
    // SAFETY: the request was published, so its slot is this side's.
    unsafe { element.read() }
}

/// Finds a request's buffers, and adds up their bytes.
fn resolve(shape: SendShape, slot: NonNull<u8>, memory: SendMemory<'_>) -> Result<(Parts, usize), Status> {
    let mut regions = memory.regions();
    let mut parts = Parts::new();
    let mut total = 0usize;
    for index in 0..shape.max_sge as usize {
        let element = element(slot, index);
        if element.key == 0 {
            break;
        }
        let from =
            regions.resolve(element.key, element.address, element.bytes).ok_or(Status::LocalProtection)?;
        parts.try_push((from.cast_const(), element.bytes as usize)).map_err(|_| Status::LocalOperation)?;
        total += element.bytes as usize;
    }
    Ok((parts, total))
}

/// A place in a request's buffers.
struct Cursor<'a> {
    parts: &'a [(*const u8, usize)],
    /// Bytes of the first part that were copied already.
    done: usize,
}

impl<'a> Cursor<'a> {
    fn new(parts: &'a [(*const u8, usize)]) -> Self {
        Self { parts, done: 0 }
    }

    /// Copies the next bytes, of which there are enough.
    fn copy(&mut self, mut to: &mut [u8]) {
        while let Some((&(from, bytes), rest)) = self.parts.split_first() {
            let count = (bytes - self.done).min(to.len());
            let (part, later) = to.split_at_mut(count);
            let from = from.wrapping_add(self.done);
            // SAFETY: `resolve` found the buffer inside a region of the domain, which stays registered while
            // the state is locked, or it is the engine's; `done + count` is within it. What is copied to is
            // the engine's own and overlaps neither.
            unsafe { part.as_mut_ptr().copy_from_nonoverlapping(from, count) };
            to = later;
            self.done += count;
            if self.done < bytes {
                return;
            }
            (self.parts, self.done) = (rest, 0);
        }
    }
}

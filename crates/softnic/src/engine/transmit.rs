//! What was posted to be sent, onto the wire.

use std::ptr::NonNull;

use arrayvec::ArrayVec;

use super::datagram;
use super::receive::Plan;
use super::segment::{Segment, Template};
use super::tap::{Books, Tap};
use super::{EnginePort, flush_failed};
use crate::clock;
use crate::limits::{ETHERNET_BYTES, MAX_SGE, MAX_TSO_BYTES, MAX_TSO_SEGMENTS};
use crate::memory::MemoryTable;
use crate::nic::Nic;
use crate::state::{QpKind, QpState, SendState, State};
use crate::stats::PortStats;
use crate::wire::MAX_FRAME_BYTES;
use crate::work::{
    Cqe, Element, Opcode, SEND_CHECKSUM, SEND_HEADER_BYTES, SEND_INLINE, SEND_SEGMENTS, SEND_SIGNALED,
    SendHeader, Status,
};

/// Frames of one queue pair in one pass, so that one cannot keep the others waiting.
pub(super) const FRAMES_PER_PASS: usize = 64;

/// What came of one request.
enum Outcome {
    /// The ring is empty, or nothing is due yet.
    Nothing,
    /// Done, with so many frames, and whether somebody wants to know.
    Done(Cqe, Sent, bool),
    /// The queue pair goes into the error state.
    Failed(Cqe),
}

/// What went to the wire.
#[derive(Clone, Copy, Default)]
struct Sent {
    frames: usize,
    bytes: u64,
}

/// The buffers of a request, found and allowed: where and how long.
type Parts = ArrayVec<(*const u8, usize), { MAX_SGE as usize }>;

/// Where frames are sent from, and to.
struct Way<'a> {
    port: &'a mut EnginePort,
    gather: &'a mut [u8; MAX_FRAME_BYTES],
    tap: &'a mut Tap,
    stats: &'a mut PortStats,
}

/// Sends what was posted for a port; answers the frames handed to the wire.
pub(super) fn drain(
    nic: &Nic,
    port: &mut EnginePort,
    gather: &mut [u8; MAX_FRAME_BYTES],
    (tap, plan): (&mut Tap, &mut Plan),
    stats: &mut PortStats,
) -> usize {
    let mut state = nic.burst();
    tap.turn_to(&state.flows, port.number, nic.rules().flow.sniffs_sent);
    if !state.failed_queues.is_empty() {
        flush_failed(&mut state);
    }
    if !state.waiting_cqs.is_empty() {
        state.raise_waiting();
    }
    let mut sent = 0;
    let mut index = 0;
    let mut way = Way { port, gather, tap, stats };
    while let Some(&slot) = state.senders.get(index) {
        match state.qps.get(slot).filter(|qp| qp.port == way.port.number) {
            Some(qp) if qp.is_datagram() => {
                sent += datagram::drain(nic, &mut state, slot, way.gather, way.stats);
            }
            Some(_) => sent += drain_qp(&mut state, (index, slot), &mut way, plan),
            None => {}
        }
        // One that failed is no sender any more, and the next one stands in its place.
        index += usize::from(state.senders.get(index) == Some(&slot));
    }
    if sent > 0 {
        state.publish();
    }
    drop(state);
    // Also when nothing new was sent: what the medium refused for a moment waits in the wire.
    port.wire.flush();
    let losses = port.wire.transmit_losses();
    stats.tx_errors += losses.saturating_sub(port.transmit_losses);
    port.transmit_losses = losses;
    sent
}

/// Sends what was posted to the queue pair that stands there among the senders; it stops if that fails, by itself or with
/// its completion queue.
fn drain_qp(state: &mut State, (index, slot): (usize, u32), way: &mut Way<'_>, plan: &mut Plan) -> usize {
    let mut handled = 0;
    while handled < FRAMES_PER_PASS && state.senders.get(index) == Some(&slot) {
        let State { qps, memory, flows, counters, .. } = state;
        let Some(qp) = qps.get_mut(slot) else { break };
        let outcome = send_one(qp, memory, way, &mut Books { flows, counters });
        let QpKind::Raw { send, queue } = &mut qp.kind else { break };
        let (cq, queue) = (send.cq, *queue);
        match outcome {
            Outcome::Nothing => break,
            Outcome::Done(cqe, sent, signaled) => {
                if send.pace.is_limited() {
                    send.pace.sent(sent.bytes, clock::steady_ns());
                }
                handled += sent.frames;
                if signaled {
                    state.complete(cq, &cqe);
                }
                way.tap.hand_out(state, way.port.number, plan, way.stats);
            }
            Outcome::Failed(cqe) => {
                way.stats.tx_errors += 1;
                state.complete(cq, &cqe);
                state.fail_queue(queue);
                handled += 1;
            }
        }
    }
    if let Some(QpState { kind: QpKind::Raw { send, .. }, .. }) = state.qps.get(slot)
        && handled > 0
    {
        send.consumer.publish();
    }
    handled
}

fn send_one(qp: &mut QpState, memory: &MemoryTable, way: &mut Way<'_>, books: &mut Books<'_>) -> Outcome {
    let (domain, number) = (qp.domain, qp.number);
    let QpKind::Raw { send, .. } = &mut qp.kind else { return Outcome::Nothing };
    if send.pace.is_limited() && !send.pace.is_due(clock::steady_ns()) {
        return Outcome::Nothing;
    }
    if !send.consumer.has_next() {
        return Outcome::Nothing;
    }
    let slot = send.consumer.slot();
    // SAFETY: the request was published, so its slot is this side's, and slots begin with the header.
    let header = unsafe { slot.cast::<SendHeader>().read() };
    let segmented = header.flags & SEND_SEGMENTS != 0;
    let sent = if segmented {
        send_segments(send, slot, &header, (memory, domain), (way, books))
    } else {
        send_frame(send, slot, &header, (memory, domain), (way, books))
    };
    send.consumer.advance();
    let opcode = if segmented { Opcode::Segments } else { Opcode::Send };
    match sent {
        Ok(sent) => {
            let mut done = Cqe::new(header.wr_id, opcode, Status::Success, number);
            done.byte_len = u32::try_from(sent.bytes).unwrap_or(u32::MAX);
            Outcome::Done(done, sent, send.signal_all || header.flags & SEND_SIGNALED != 0)
        }
        Err(status) => Outcome::Failed(Cqe::failed(header.wr_id, opcode, status, number)),
    }
}

/// Sends a request that is one frame.
fn send_frame(
    send: &SendState,
    slot: NonNull<u8>,
    header: &SendHeader,
    memory: (&MemoryTable, u32),
    (way, books): (&mut Way<'_>, &mut Books<'_>),
) -> Result<Sent, Status> {
    let bytes = gather(send, slot, header, memory, way.gather)?;
    if !(ETHERNET_BYTES..=way.port.max_frame_bytes).contains(&bytes) {
        return Err(Status::LocalLength);
    }
    let frame = &mut way.gather[..bytes];
    if header.flags & SEND_CHECKSUM != 0 {
        // IBV_SEND_IP_CSUM: the IPv4 header's checksum and that of TCP or UDP.
        let parsed = packet::parse(frame);
        packet::checksum::fill(frame, &parsed);
    }
    way.transmit(bytes, books);
    Ok(Sent { frames: 1, bytes: bytes as u64 })
}

/// Copies what a request is to send to the beginning of `to`; answers its length.
#[inline]
pub(super) fn gather(
    send: &SendState,
    slot: NonNull<u8>,
    header: &SendHeader,
    memory: (&MemoryTable, u32),
    to: &mut [u8],
) -> Result<usize, Status> {
    if header.flags & SEND_INLINE == 0 {
        let (parts, bytes) = resolve(send, slot, memory)?;
        let to = to.get_mut(..bytes).ok_or(Status::LocalLength)?;
        Cursor::new(&parts).copy(to);
        Ok(bytes)
    } else {
        let inline = inline(slot, 0, header.inline_bytes.min(send.shape.max_inline));
        to.get_mut(..inline.len()).ok_or(Status::LocalLength)?.copy_from_slice(inline);
        Ok(inline.len())
    }
}

/// Sends a request that is a TCP stream. Nothing is sent unless all of it can be.
fn send_segments(
    send: &SendState,
    slot: NonNull<u8>,
    header: &SendHeader,
    memory: (&MemoryTable, u32),
    (way, books): (&mut Way<'_>, &mut Books<'_>),
) -> Result<Sent, Status> {
    let bytes = header.inline_bytes.min(send.shape.max_tso_header);
    let headers = inline(slot, send.shape.elements_bytes(), bytes);
    let segment_bytes = usize::from(header.segment_bytes);
    let frame_bytes = headers.len() + segment_bytes;
    let (parts, stream_bytes) = resolve(send, slot, memory)?;
    let segments = stream_bytes.div_ceil(segment_bytes.max(1));
    let bounded = stream_bytes <= MAX_TSO_BYTES as usize && segments <= MAX_TSO_SEGMENTS as usize;
    if segment_bytes == 0 || frame_bytes > way.port.max_frame_bytes || !bounded {
        return Err(Status::LocalLength);
    }
    // What a device does with a stream of something else is not documented; one that looks at the headers can only
    // refuse the operation.
    let template = Template::parse(headers).ok_or(Status::LocalOperation)?;
    let mut cursor = Cursor::new(&parts);
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
        let frame_bytes = frame.len();
        way.transmit(frame_bytes, books);
        sent.frames += 1;
        sent.bytes += frame_bytes as u64;
        offset += payload;
    }
    Ok(sent)
}

impl Way<'_> {
    /// Hands the first bytes of what was gathered to the wire, unless a flow drops them.
    fn transmit(&mut self, bytes: usize, books: &mut Books<'_>) {
        let frame = &self.gather[..bytes];
        if self.tap.drops(books, self.port.number, frame) {
            self.stats.tx_flow_dropped += 1;
            return;
        }
        match self.port.wire.transmit(frame) {
            Ok(()) => {
                self.stats.tx_frames += 1;
                self.stats.tx_bytes += bytes as u64;
                self.tap.keep(frame, self.stats);
            }
            // As on a real wire: the device did its part, and the loss shows in the counters.
            Err(_) => self.stats.tx_errors += 1,
        }
    }
}

/// The bytes of a request that stand in its slot, `offset` behind the header; `bytes` is within the send ring's shape.
fn inline<'a>(slot: NonNull<u8>, offset: usize, bytes: u32) -> &'a [u8] {
    // SAFETY: the body behind the header holds what the shape says, and so `offset + bytes`.
    let start = unsafe { slot.add(SEND_HEADER_BYTES + offset) };
    // SAFETY: as above; published with the request, so the slot is this side's until the request is given back, which
    // is after its use.
    unsafe { NonNull::slice_from_raw_parts(start, bytes as usize).as_ref() }
}

/// Finds a request's buffers, and adds up their bytes.
fn resolve(
    send: &SendState,
    slot: NonNull<u8>,
    (memory, domain): (&MemoryTable, u32),
) -> Result<(Parts, usize), Status> {
    // SAFETY: send slots have a body behind the header.
    let body = unsafe { slot.add(SEND_HEADER_BYTES) };
    let mut parts = Parts::new();
    let mut total = 0usize;
    for index in 0..send.shape.max_sge as usize {
        // SAFETY: the body holds `max_sge` elements.
        let element = unsafe { body.cast::<Element>().add(index) };
        // SAFETY: the request was published, so its slot is this side's.
        let element = unsafe { element.read() };
        if element.key == 0 {
            break;
        }
        let from = memory
            .resolve(element.key, domain, element.address, element.bytes, false)
            .ok_or(Status::LocalProtection)?;
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
            // SAFETY: `resolve` found the buffer inside a region of the domain, which stays registered while the state
            // is locked, and `done + count` is within it; what is copied to is the engine's own and overlaps no region.
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

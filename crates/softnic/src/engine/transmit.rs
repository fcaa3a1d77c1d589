//! What was posted to be sent, onto the wire.

use std::ptr::NonNull;

use super::{EnginePort, flush_failed};
use crate::limits::ETHERNET_BYTES;
use crate::memory::MemoryTable;
use crate::nic::Nic;
use crate::state::{QpKind, QpState, SendState, State};
use crate::stats::PortStats;
use crate::wire::MAX_FRAME_BYTES;
use crate::work::{
    Cqe, Element, Opcode, SEND_CHECKSUM, SEND_HEADER_BYTES, SEND_INLINE, SEND_SIGNALED, SendHeader, Status,
};

/// Sends of one queue pair in one pass, so that one cannot keep the others waiting.
const SENDS_PER_PASS: usize = 64;

/// What came of one request.
enum Outcome {
    /// The ring is empty.
    Empty,
    Done(Cqe, bool),
    /// The queue pair goes into the error state.
    Failed(Cqe),
}

/// Sends what was posted for a port; answers the frames handed to the wire.
pub(super) fn drain(
    nic: &Nic,
    port: &mut EnginePort,
    gather: &mut [u8; MAX_FRAME_BYTES],
    stats: &mut PortStats,
) -> usize {
    let mut state = nic.burst();
    if !state.failed_queues.is_empty() {
        flush_failed(&mut state);
    }
    if !state.waiting_cqs.is_empty() {
        state.raise_waiting();
    }
    let mut sent = 0;
    let mut index = 0;
    while let Some(&slot) = state.senders.get(index) {
        index += 1;
        if state.qps.get(slot).is_some_and(|qp| qp.port == port.number) {
            sent += drain_qp(&mut state, slot, port, gather, stats);
        }
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

fn drain_qp(
    state: &mut State,
    slot: u32,
    port: &mut EnginePort,
    gather: &mut [u8; MAX_FRAME_BYTES],
    stats: &mut PortStats,
) -> usize {
    let mut handled = 0;
    while handled < SENDS_PER_PASS {
        let State { qps, memory, .. } = state;
        let Some(qp) = qps.get_mut(slot) else { break };
        let outcome = send_one(qp, memory, port, gather, stats);
        let QpKind::Raw { send, queue } = &qp.kind else { break };
        let (cq, queue) = (send.cq, *queue);
        match outcome {
            Outcome::Empty => break,
            Outcome::Done(cqe, signaled) => {
                if signaled {
                    state.complete(cq, &cqe);
                }
            }
            Outcome::Failed(cqe) => {
                stats.tx_errors += 1;
                state.complete(cq, &cqe);
                state.fail_queue(queue);
                handled += 1;
                break;
            }
        }
        handled += 1;
    }
    if let Some(QpState { kind: QpKind::Raw { send, .. }, .. }) = state.qps.get(slot)
        && handled > 0
    {
        send.consumer.publish();
    }
    handled
}

fn send_one(
    qp: &mut QpState,
    memory: &MemoryTable,
    port: &mut EnginePort,
    gather: &mut [u8; MAX_FRAME_BYTES],
    stats: &mut PortStats,
) -> Outcome {
    let (domain, number) = (qp.domain, qp.number);
    let QpKind::Raw { send, .. } = &mut qp.kind else { return Outcome::Empty };
    if !send.consumer.has_next() {
        return Outcome::Empty;
    }
    let slot = send.consumer.slot();
    // SAFETY: the request was published, so its slot is this side's, and slots begin with the header.
    let header = unsafe { slot.cast::<SendHeader>().read() };
    let frame = collect(send, slot, &header, memory, domain, gather);
    send.consumer.advance();
    let cqe = |status| Cqe::new(header.wr_id, Opcode::Send, status, number);
    let frame = match frame {
        Ok(bytes) if !(ETHERNET_BYTES..=port.max_frame_bytes).contains(&bytes) => {
            return Outcome::Failed(cqe(Status::LocalLength));
        }
        Ok(bytes) => &mut gather[..bytes],
        Err(status) => return Outcome::Failed(cqe(status)),
    };
    if header.flags & SEND_CHECKSUM != 0 {
        // IBV_SEND_IP_CSUM: the IPv4 header's checksum and that of TCP or UDP.
        let parsed = packet::parse(frame);
        packet::checksum::fill(frame, &parsed);
    }
    match port.wire.transmit(frame) {
        Ok(()) => {
            stats.tx_frames += 1;
            stats.tx_bytes += frame.len() as u64;
        }
        // As on a real wire: the device did its part, and the loss shows in the counters.
        Err(_) => stats.tx_errors += 1,
    }
    let mut done = cqe(Status::Success);
    done.byte_len = frame.len() as u32;
    Outcome::Done(done, send.signal_all || header.flags & SEND_SIGNALED != 0)
}

/// Gathers a request's frame; answers its length.
fn collect(
    send: &SendState,
    slot: NonNull<u8>,
    header: &SendHeader,
    memory: &MemoryTable,
    domain: u32,
    gather: &mut [u8; MAX_FRAME_BYTES],
) -> Result<usize, Status> {
    // SAFETY: send slots have a body behind the header.
    let body = unsafe { slot.add(SEND_HEADER_BYTES) };
    if header.flags & SEND_INLINE != 0 {
        let bytes = header.inline_bytes.min(send.max_inline) as usize;
        // SAFETY: the body holds `max_inline` bytes, published with the request.
        let inline = unsafe { NonNull::slice_from_raw_parts(body, bytes).as_ref() };
        gather.get_mut(..bytes).ok_or(Status::LocalLength)?.copy_from_slice(inline);
        return Ok(bytes);
    }
    let mut total = 0usize;
    for index in 0..send.max_sge as usize {
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
        let end = total + element.bytes as usize;
        let to = gather.get_mut(total..end).ok_or(Status::LocalLength)?;
        // SAFETY: `resolve` found the element inside a region of the domain, which stays registered while the state
        // is locked; the buffer that sends are gathered in is the engine's own and overlaps no region.
        unsafe { to.as_mut_ptr().copy_from_nonoverlapping(from, to.len()) };
        total = end;
    }
    Ok(total)
}

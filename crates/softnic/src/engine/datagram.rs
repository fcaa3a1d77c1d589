//! Datagrams: from the send queue of one queue pair into the receive queue of another one of the same device.
//!
//! Run by `transmit` for the queue pairs that are not for raw packets. Nothing here touches a wire, and
//! nothing of a wire comes here. A datagram without a receiver is lost without an error for its sender, as
//! unreliable datagrams are.

use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use ibverbs_sys::ibv_qp_state::{IBV_QPS_RTR, IBV_QPS_SQE};
use wire::MAX_FRAME_BYTES;

use super::deliver::Buffers;
use super::transmit::{FRAMES_PER_PASS, SendMemory, gather};
use crate::clock;
use crate::formats::{Requests, Sends};
use crate::shared::{NicShared, Port};
use crate::state::{QpKind, QpState, State};
use crate::stats::PortStats;
use crate::work::{
    Cqe, Envelope, FIRST_QP_NUMBER, Route, SEND_IMMEDIATE, SEND_SIGNALED, SEND_SOLICITED, SendHeader, Status,
    WorkOpcode,
};

/// The bytes in front of a datagram in the receiver's buffer (ibv_post_recv(3)): the header of IPv6, which
/// RoCE has in the place of the GRH.
const GRH_BYTES: usize = 40;

/// A request as it is in the ring.
struct Request {
    header: SendHeader,
    envelope: Envelope,
    /// Bytes behind the GRH, or why there are none.
    gathered: Result<usize, Status>,
    /// The queue that fails with it, and where it is completed.
    queue: u32,
    cq: u32,
    signaled: bool,
    /// The number of the sender, and its own Q_Key.
    number: u32,
    key: u32,
}

/// Delivers what was posted to a datagram queue pair; returns how many requests were handled.
pub(super) fn drain(
    nic: &NicShared,
    state: &mut State,
    slot: u32,
    room: &mut [u8; MAX_FRAME_BYTES],
    stats: &mut PortStats,
) -> usize {
    let mut handled = 0;
    // One that failed, by itself or with its completion queue, is no sender any more.
    while handled < FRAMES_PER_PASS && state.senders.contains(&slot) {
        let Some(request) = next(nic, state, slot, &mut room[GRH_BYTES..]) else { break };
        handled += 1;
        let wr_id = request.header.wr_id;
        match request.gathered {
            Ok(bytes) => {
                let whole = &mut room[..GRH_BYTES + bytes];
                write_grh(nic, &request, whole);
                if !deliver(state, slot, &request, whole) {
                    stats.datagrams_lost += 1;
                }
                if request.signaled {
                    let mut done = Cqe::new(wr_id, WorkOpcode::Send, Status::Success, request.number);
                    done.byte_len = bytes as u32;
                    state.complete(request.cq, &done);
                }
            }
            Err(status) => {
                stats.tx_errors += 1;
                state.complete(request.cq, &Cqe::failed(wr_id, WorkOpcode::Send, status, request.number));
                state.fail_queue(request.queue);
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

/// Takes the next request out of the ring, and its data to `room`.
fn next(nic: &NicShared, state: &mut State, slot: u32, room: &mut [u8]) -> Option<Request> {
    let State { qps, memory, .. } = state;
    let qp = qps.get_mut(slot)?;
    let (domain, number, port, key) = (qp.domain, qp.number, qp.port, qp.attributes.qkey);
    let QpKind::Raw { send, queue } = &mut qp.kind else { return None };
    // There are no datagrams in foreign formats.
    let Sends::Own(requests) = &mut send.consumer else { return None };
    if !requests.has_next() {
        return None;
    }
    let place = requests.slot();
    // SAFETY: the request was published, so its slot is this side's, and slots begin with the header.
    let header = unsafe { place.cast::<SendHeader>().read() };
    let envelope = envelope(place, send.shape.envelope_offset());
    let limit = nic.port(port).map_or(0, |port| port.path_mtu_bytes() as usize).min(room.len());
    let gathered = if envelope.route.domain == domain && envelope.route.from_port == port {
        gather(send.shape, place, &header, SendMemory { table: memory, domain }, &mut room[..limit])
    } else {
        // InfiniBand specification, Local QP Operation Error: an address of another domain or port.
        Err(Status::LocalOperation)
    };
    requests.advance();
    let signaled = send.signal_all || header.flags & SEND_SIGNALED != 0;
    Some(Request { header, envelope, gathered, queue: *queue, cq: send.cq, signaled, number, key })
}

/// The envelope of a published request, at its offset in the slot.
fn envelope(slot: NonNull<u8>, offset: usize) -> Envelope {
    // SAFETY: the slots of a datagram queue pair hold an envelope there: making it checks them
    // (`queue_pairs::insert`).
    let place = unsafe { slot.add(offset) };
    // SAFETY: the request was published with it, so it is this side's.
    unsafe { place.cast::<Envelope>().read() }
}

/// Writes the header in front of the datagram that is in `whole`, as the packet would have it.
fn write_grh(nic: &NicShared, request: &Request, whole: &mut [u8]) {
    /// The headers of UDP and of InfiniBand's transport (BTH and DETH) before the data; the immediate data;
    /// and the ICRC behind the padding.
    const HEADERS_BYTES: usize = 8 + 12 + 8;
    const IMMEDIATE_BYTES: usize = 4;
    const ICRC_BYTES: usize = 4;
    const UDP: u8 = 17;
    let Route { grh_flow, traffic_class, hop_limit, from_port, to_port, .. } = request.envelope.route;
    let Some((grh, data)) = whole.split_first_chunk_mut::<GRH_BYTES>() else { return };
    let immediate = if request.header.flags & SEND_IMMEDIATE == 0 { 0 } else { IMMEDIATE_BYTES };
    let bytes = HEADERS_BYTES + immediate + data.len().next_multiple_of(4) + ICRC_BYTES;
    let word = 6 << 28 | u32::from(traffic_class) << 20 | grh_flow;
    grh[..4].copy_from_slice(&word.to_be_bytes());
    grh[4..6].copy_from_slice(&u16::try_from(bytes).unwrap_or(u16::MAX).to_be_bytes());
    grh[6..8].copy_from_slice(&[UDP, hop_limit]);
    for (place, port) in [(8..24, from_port), (24..40, to_port)] {
        let gid = nic.port(port).map(Port::gid).unwrap_or_default();
        grh[place].copy_from_slice(&gid);
    }
}

/// The receive queue that an envelope names, if its queue pair takes the datagram.
fn receiver(state: &State, request: &Request) -> Option<u32> {
    /// "the Q_Key of the sender's own queue pair" (InfiniBand specification, 10.2.5).
    const CONTROLLED: u32 = 1 << 31;
    let Envelope { route, number, key, .. } = request.envelope;
    let key = if key & CONTROLLED == 0 { key } else { request.key };
    let qp = state.qps.get(number.checked_sub(FIRST_QP_NUMBER)?)?;
    let takes =
        qp.is_datagram() && qp.number == number && qp.port == route.to_port && qp.attributes.qkey == key;
    let QpKind::Raw { queue, .. } = qp.kind else { return None };
    let receiving = |state| matches!(state, IBV_QPS_RTR..=IBV_QPS_SQE);
    let ready = receiving(state.queues.get(queue)?.native_state.load(Ordering::Relaxed));
    (takes && ready).then_some(queue)
}

/// Puts a datagram into the receiver's buffer; returns whether a receiver took it.
fn deliver(state: &mut State, from: u32, request: &Request, whole: &[u8]) -> bool {
    let Some(slot) = receiver(state, request) else { return false };
    let State { queues, cqs, memory, unpublished_queues, .. } = state;
    let Some(queue) = queues.get_mut(slot) else { return false };
    // Only queues of this crate's own format take datagrams.
    let Requests::Own(consumer) = &mut queue.consumer else { return false };
    if !consumer.has_next() {
        return false;
    }
    let cq = queue.cq;
    // As with frames: without a place for the completion the buffer must stay posted.
    if !cqs.get_mut(cq).is_some_and(|cq| !cq.failed && cq.producer.has_room(1)) {
        state.overrun(cq);
        return false;
    }
    let place = consumer.slot();
    // SAFETY: the request was published, so its slot is this side's, and slots begin with the id.
    let wr_id = unsafe { place.cast::<u64>().read() };
    let mut buffers = Buffers { regions: memory.of_domain(queue.domain, true), max_sge: queue.max_sge };
    let (status, _) = buffers.scatter(place, whole);
    consumer.advance();
    if !queue.unpublished {
        queue.unpublished = true;
        unpublished_queues.push(slot);
    }
    let mut cqe = Cqe::new(wr_id, WorkOpcode::Receive, status, queue.number);
    cqe.timestamp_ns = clock::now_ns();
    cqe.byte_len = whole.len() as u32;
    let flag = |bit: u16| request.header.flags & bit != 0;
    let immediate = flag(SEND_IMMEDIATE).then_some(request.envelope.immediate);
    cqe.set_datagram(from, immediate, flag(SEND_SOLICITED));
    state.complete(cq, &cqe);
    if status == Status::LocalProtection {
        state.fail_queue(slot);
    }
    status == Status::Success
}

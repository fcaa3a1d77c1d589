//! Raw packet queue pairs with a receive queue of their own, and none to send.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ibverbs_sys::{ibv_qp_attr, ibv_qp_state, ibv_qp_type};

use super::{Call, domains};
use crate::doorbell::SendBell;
use crate::engine::transmit::Pace;
use crate::formats::Requests;
use crate::mlx5::Context;
use crate::mlx5::rings::{ReceiveLayout, ReceiveRing};
use crate::provider::answer::{EINVAL, EOPNOTSUPP, Verb};
use crate::provider::pd::{make_ring, use_domain};
use crate::provider::qp::{self, Kind};
use crate::provider::qp_create::insert_plain;
use crate::state::{FrameEdits, NewQueue, QpKind, QueueState, SendState, State};
use crate::work::{SendShape, qp_number};

const RAW: Kind = Kind { is_rss: false, is_datagram: false };

/// What is asked of a queue pair: fields of `struct ib_uverbs_create_qp` or its extended form, which has them 8 bytes
/// earlier, and of `struct mlx5_ib_create_qp`.
struct Request {
    user_handle: u64,
    domain: u32,
    send_cq: u32,
    receive_cq: u32,
    /// `max_send_wr`, `max_recv_wr`, `max_send_sge`, `max_recv_sge`, `max_inline_data`.
    capacities: [u32; 5],
    layout: ReceiveLayout,
}

/// CREATE_QP.
pub(super) fn create(context: &Context, call: &mut Call<'_>) -> Verb<()> {
    create_at(context, call, 8)
}

/// The extended CREATE_QP without an indirection table.
pub(super) fn create_extended(context: &Context, call: &mut Call<'_>) -> Verb<()> {
    if call.core.u32(52) != 0 {
        // Flags of creation.
        return Err(EOPNOTSUPP);
    }
    create_at(context, call, 0)?;
    call.reply.put_u32(36, call.reply.length(40));
    Ok(())
}

fn create_at(context: &Context, call: &mut Call<'_>, start: usize) -> Verb<()> {
    let owner = context.slot()?;
    let request = read(call, start)?;
    let ring = ReceiveRing::new(&request.layout)?;
    let mut state = context.nic.control();
    let slot = insert(&mut state, owner, &request, ring, context)?;
    let reply = &mut call.reply;
    reply.put_u32(0, slot);
    reply.put_u32(4, qp_number(slot));
    for (index, capacity) in request.capacities.iter().enumerate() {
        reply.put_u32(8 + index * size_of::<u32>(), *capacity);
    }
    Ok(())
}

fn read(call: &Call<'_>, start: usize) -> Verb<Request> {
    /// `MLX5_QP_FLAG_SIGNATURE`: requests with a checksum of their own.
    const SIGNATURE: u32 = 1;
    let (core, driver) = (call.core, call.driver);
    let capacities = [24, 28, 32, 36, 40].map(|at| core.u32(start + at));
    let [sends, receives, ..] = capacities;
    let (kind, has_shared_queue) = (core.u8(start + 45), core.u8(start + 46) != 0);
    if u32::from(kind) != ibv_qp_type::IBV_QPT_RAW_PACKET || has_shared_queue {
        return Err(EOPNOTSUPP);
    }
    if sends != 0 || driver.u32(16) != 0 || driver.u32(28) & SIGNATURE != 0 {
        return Err(EOPNOTSUPP);
    }
    if receives == 0 || receives > driver.u32(20) {
        return Err(EINVAL);
    }
    Ok(Request {
        user_handle: core.u64(start),
        domain: core.u32(start + 8),
        send_cq: core.u32(start + 12),
        receive_cq: core.u32(start + 16),
        capacities,
        layout: ReceiveLayout {
            buffer: driver.u64(0),
            doorbell: driver.u64(8),
            requests: driver.u32(20),
            log_request_bytes: driver.u32(24),
            user_index: driver.u32(32),
        },
    })
}

/// Adds the queue pair and its receive queue, and counts what they use.
fn insert(
    state: &mut State,
    owner: u32,
    request: &Request,
    ring: ReceiveRing,
    context: &Context,
) -> Verb<u32> {
    domains::check(state, owner, request.domain)?;
    for cq in [request.send_cq, request.receive_cq] {
        state.cqs.get(cq).filter(|cq| cq.owner == owner).ok_or(EINVAL)?;
    }
    let receives = NewQueue {
        owner,
        domain: request.domain,
        cq: request.receive_cq,
        max_sge: ring.entries(),
        consumer: Requests::Mlx5(ring),
        edits: FrameEdits::default(),
        native_state: Arc::new(AtomicU32::new(ibv_qp_state::IBV_QPS_RESET)),
        native: request.user_handle,
    };
    let slot = insert_plain(state, receives, empty_send_queue(context, request.send_cq)?)?;
    use_domain(state, request.domain)?;
    Ok(slot)
}

/// A send queue that nothing can be posted to: libmlx5 has none.
fn empty_send_queue(context: &Context, cq: u32) -> Verb<SendState> {
    let shape = SendShape { max_sge: 1, max_inline: 0, max_tso_header: 0, datagram: false };
    let resources = &context.nic.rules().objects.domain.resources;
    let (_, consumer) = make_ring(resources, None, 0, shape.slot_bytes(), resources.queue_pair)?;
    let bell = SendBell::new(&context.nic.doorbells);
    Ok(SendState { consumer, cq, signal_all: false, shape, pace: Pace::default(), bell })
}

/// The receive queue of one of the context's queue pairs; EOPNOTSUPP for one over a table.
fn receive_queue(state: &State, owner: u32, slot: u32) -> Verb<&QueueState> {
    let qp = state.qps.get(slot).filter(|qp| qp.owner == owner).ok_or(EINVAL)?;
    let QpKind::Raw { queue, .. } = qp.kind else { return Err(EOPNOTSUPP) };
    state.queues.get(queue).ok_or(EINVAL)
}

/// MODIFY_QP: `struct ib_uverbs_modify_qp`. What raw packets have no use for is checked by the mask.
pub(super) fn modify(context: &Context, call: &mut Call<'_>) -> Verb<()> {
    let (owner, slot, core) = (context.slot()?, call.core.u32(64), call.core);
    let state = context.nic.quiet_control();
    let native = Arc::clone(&receive_queue(&state, owner, slot)?.native_state);
    drop(state);
    let attr = ibv_qp_attr {
        qkey: core.u32(72),
        sq_psn: core.u32(80),
        pkey_index: core.u16(92),
        qp_state: core.u8(96).into(),
        cur_qp_state: core.u8(97).into(),
        port_num: core.u8(104),
        ..ibv_qp_attr::default()
    };
    qp::modify(&context.nic, slot, RAW, &native, (&attr, core.u32(68)))
}

/// QUERY_QP: `struct ib_uverbs_query_qp_resp`.
pub(super) fn query(context: &Context, call: &mut Call<'_>) -> Verb<()> {
    let (owner, slot) = (context.slot()?, call.core.u32(8));
    let state = context.nic.quiet_control();
    let queue = receive_queue(&state, owner, slot)?;
    let Requests::Mlx5(ring) = &queue.consumer else { return Err(EINVAL) };
    let current = queue.native_state.load(Ordering::Relaxed);
    let port = state.qps.get(slot).map_or(0, |qp| qp.port);
    let reply = &mut call.reply;
    reply.put_u32(68, ring.capacity());
    reply.put_u32(76, ring.entries());
    for at in [108, 109] {
        reply.put_u8(at, current as u8);
    }
    reply.put_u8(116, port);
    Ok(())
}

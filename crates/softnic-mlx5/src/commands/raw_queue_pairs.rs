//! Raw packet queue pairs with queues of their own: one to send, one to receive, or both.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ibverbs_sys::{ibv_qp_attr, ibv_qp_type};
use softnic::errno::{EINVAL, EOPNOTSUPP, Verb, known_bits};
use softnic::formats::{ReceiveFormat, SendFormat};
use softnic::objects::queue_pairs::{self, AttributeChange, ForeignSends, QueuePairKind};
use softnic::objects::work_queues::{ForeignReceives, FrameEdits, NumberedQueue};

use super::queues::check_completions;
use super::{Call, domains};
use crate::context::Context;
use crate::rings::sends::{SendLayout, SendRing};
use crate::rings::{ReceiveLayout, ReceiveRing};

const RAW: QueuePairKind = QueuePairKind { is_rss: false, is_datagram: false };

/// A request for a queue pair: fields of `struct ib_uverbs_create_qp` or its extended form, which has them 8
/// bytes earlier, and of `struct mlx5_ib_create_qp`.
struct Request {
    user_handle: u64,
    domain: u32,
    send_cq: u32,
    receive_cq: u32,
    /// `max_send_wr`, `max_recv_wr`, `max_send_sge`, `max_recv_sge`, `max_inline_data`.
    capacities: [u32; 5],
    signal_all: bool,
    edits: FrameEdits,
    /// A queue without requests is none.
    receives: ReceiveLayout,
    sends: SendLayout,
}

/// CREATE_QP.
pub(super) fn create(context: &Context, call: &mut Call<'_>) -> Verb<()> {
    create_at(context, call, 8, 0)
}

/// The extended CREATE_QP without an indirection table.
pub(super) fn create_extended(context: &Context, call: &mut Call<'_>) -> Verb<()> {
    let flags = call.core.u32(52);
    queue_pairs::check_create_flags(&context.nic, flags)?;
    create_at(context, call, 0, flags)?;
    call.reply.put_u32(36, call.reply.length(40));
    Ok(())
}

fn create_at(context: &Context, call: &mut Call<'_>, start: usize, flags: u32) -> Verb<()> {
    let owner = context.slot()?;
    let request = read(call, start, flags)?;
    let (receives, sends) = queues(owner, &request)?;
    let mut state = context.nic.control();
    domains::check(&state, owner, request.domain)?;
    for cq in [request.send_cq, request.receive_cq] {
        check_completions(&state, owner, cq)?;
    }
    let NumberedQueue { slot, number } =
        queue_pairs::insert_foreign(&context.nic, &mut state, receives, sends)?;
    drop(state);
    let reply = &mut call.reply;
    reply.put_u32(0, slot);
    reply.put_u32(4, number);
    for (index, capacity) in request.capacities.iter().enumerate() {
        reply.put_u32(8 + index * size_of::<u32>(), *capacity);
    }
    Ok(())
}

fn read(call: &Call<'_>, start: usize, flags: u32) -> Verb<Request> {
    /// `MLX5_QP_FLAG_SIGNATURE`: requests with a checksum of their own.
    const SIGNATURE: u32 = 1;
    let (core, driver) = (call.core, call.driver);
    let capacities = [24, 28, 32, 36, 40].map(|at| core.u32(start + at));
    let [sends, receives, ..] = capacities;
    let (kind, has_shared_queue) = (core.u8(start + 45), core.u8(start + 46) != 0);
    if u32::from(kind) != ibv_qp_type::IBV_QPT_RAW_PACKET || has_shared_queue {
        return Err(EOPNOTSUPP);
    }
    if driver.u32(28) & SIGNATURE != 0 {
        return Err(EOPNOTSUPP);
    }
    // hw/mlx5/qp.c, `set_rq_size`: without `max_recv_wr` there is no queue to receive. The other queue is
    // there if it has blocks (`set_user_buf_size`).
    let requests = if receives == 0 { 0 } else { driver.u32(20) };
    if receives > requests || sends > driver.u32(16) {
        return Err(EINVAL);
    }
    let (doorbell, user_index) = (driver.u64(8), driver.u32(32));
    Ok(Request {
        user_handle: core.u64(start),
        domain: core.u32(start + 8),
        send_cq: core.u32(start + 12),
        receive_cq: core.u32(start + 16),
        capacities,
        signal_all: core.u8(start + 44) != 0,
        edits: queue_pairs::edits(flags),
        receives: ReceiveLayout {
            buffer: driver.u64(0),
            doorbell,
            requests,
            log_request_bytes: driver.u32(24),
            user_index,
        },
        sends: SendLayout { buffer: driver.u64(40), doorbell, blocks: driver.u32(16), user_index },
    })
}

/// The queues in the client's memory (hw/mlx5/qp.c, `create_raw_packet_qp`: there is one at least).
fn queues(owner: u32, request: &Request) -> Verb<(ForeignReceives, ForeignSends)> {
    let receives = match request.receives.requests {
        0 => None,
        _ => Some(Box::new(ReceiveRing::new(&request.receives)?)),
    };
    let sends = match request.sends.blocks {
        0 => None,
        _ => Some(Box::new(SendRing::new(&request.sends)?)),
    };
    if receives.is_none() && sends.is_none() {
        return Err(EINVAL);
    }
    let receives = ForeignReceives {
        owner,
        domain: request.domain,
        cq: request.receive_cq,
        max_sge: receives.as_ref().map_or(0, |ring| ring.entries()),
        ring: receives.map(|ring| ring as Box<dyn ReceiveFormat>),
        edits: request.edits,
        native: request.user_handle,
    };
    let sends = ForeignSends {
        cq: request.send_cq,
        ring: sends.map(|ring| ring as Box<dyn SendFormat>),
        // Only to be queried: libmlx5 sets the bit in each request.
        signal_all: request.signal_all,
    };
    Ok((receives, sends))
}

/// How many requests a receive queue takes, and of how many entries.
fn capacity(receives: Option<&dyn ReceiveFormat>) -> (u32, u32) {
    let Some(ring) = receives else { return (0, 0) };
    let ring: &dyn Any = ring;
    ring.downcast_ref().map_or((0, 0), |ring: &ReceiveRing| (ring.capacity(), ring.entries()))
}

/// MODIFY_QP: `struct ib_uverbs_modify_qp`, which has no rate.
pub(super) fn modify(context: &Context, call: &mut Call<'_>) -> Verb<()> {
    known_bits(call.core.u32(MASK), !queue_pairs::RATE_LIMIT, EOPNOTSUPP)?;
    change(context, call, 0, 0)
}

/// The extended MODIFY_QP: the same with a rate, and `struct mlx5_ib_modify_qp` with the bytes of a burst
/// (kernel core/uverbs_cmd.c, `ib_uverbs_ex_modify_qp`; hw/mlx5/qp.c, `mlx5_ib_modify_qp` and
/// `__mlx5_ib_modify_qp`).
pub(super) fn modify_extended(context: &Context, call: &mut Call<'_>) -> Verb<()> {
    /// Bytes of the core's structure, and of the driver's up to the options.
    const CORE_BYTES: usize = 120;
    const DRIVER_BYTES: usize = 16;
    let (core, driver) = (call.core, call.driver);
    core.known(CORE_BYTES)?;
    if core.u32(116) != 0 {
        return Err(EOPNOTSUPP);
    }
    if (1..DRIVER_BYTES).contains(&driver.len()) {
        return Err(EINVAL);
    }
    driver.known(DRIVER_BYTES)?;
    if driver.u32(0) != 0 || driver.u16(10) != 0 {
        return Err(EOPNOTSUPP);
    }
    // The typical size of a packet is a hint for shaping by the packet; here every frame counts with its
    // bytes.
    let (rate_kbps, burst_bytes, packet_bytes) = (core.u32(112), driver.u32(4), driver.u16(8));
    let has_rate = core.u32(MASK) & queue_pairs::RATE_LIMIT != 0;
    if has_rate && rate_kbps == 0 && (burst_bytes != 0 || packet_bytes != 0) {
        return Err(EINVAL);
    }
    change(context, call, rate_kbps, burst_bytes)?;
    call.reply.put_u32(4, call.reply.length(8));
    Ok(())
}

/// Where a request to change a queue pair names what is to be changed.
const MASK: usize = 68;

/// Changes a queue pair. What raw packets have no use for is checked by the mask.
fn change(context: &Context, call: &Call<'_>, rate_limit: u32, burst_bytes: u32) -> Verb<()> {
    let (owner, slot, core) = (context.slot()?, call.core.u32(64), call.core);
    // Held until the change is made: another call could destroy the queue pair and reuse its slot.
    let mut state = context.nic.control();
    let native = Arc::clone(queue_pairs::raw(&state, owner, slot)?.native_state);
    let attr = ibv_qp_attr {
        qkey: core.u32(72),
        sq_psn: core.u32(80),
        pkey_index: core.u16(92),
        qp_state: core.u8(96).into(),
        cur_qp_state: core.u8(97).into(),
        port_num: core.u8(104),
        rate_limit,
        ..ibv_qp_attr::default()
    };
    let change = AttributeChange { attr: &attr, mask: core.u32(MASK), burst_bytes };
    queue_pairs::modify(&context.nic, &mut state, slot, RAW, &native, change)
}

/// QUERY_QP: `struct ib_uverbs_query_qp_resp`.
pub(super) fn query(context: &Context, call: &mut Call<'_>) -> Verb<()> {
    let (owner, slot) = (context.slot()?, call.core.u32(8));
    let state = context.nic.control_without_wakeup();
    let known = queue_pairs::raw(&state, owner, slot)?;
    let (requests, entries) = capacity(known.receives);
    let current = known.native_state.load(Ordering::Relaxed);
    let reply = &mut call.reply;
    reply.put_u32(68, requests);
    reply.put_u32(76, entries);
    for at in [108, 109] {
        reply.put_u8(at, current as u8);
    }
    reply.put_u8(116, known.port);
    reply.put_u8(122, u8::from(known.signal_all));
    Ok(())
}

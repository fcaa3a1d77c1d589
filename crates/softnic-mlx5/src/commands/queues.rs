//! Completion channels, completion queues and work queues.

use std::any::Any;
use std::os::fd::BorrowedFd;

use ibverbs_sys::{IBV_WQT_RQ, ibv_wq_attr};
use rustix::fs::fstat;
use softnic::errno::{EINVAL, EOPNOTSUPP, Verb, known_bits};
use softnic::objects::completion_queues::{self, ForeignCompletionQueue};
use softnic::objects::domains::release_domain;
use softnic::objects::work_queues::{self, ForeignReceives, NumberedQueue};
use softnic::objects::{State, channels};

use super::{Call, ENOENT, domains};
use crate::context::{Channel, Context};
use crate::rings::{
    CompletionBuffer, CompletionLayout, CompletionRing, MAX_COMPLETIONS, ReceiveLayout, ReceiveRing,
};

/// CREATE_COMP_CHANNEL.
pub(super) fn create_channel(context: &Context, call: &mut Call<'_>) -> Verb<()> {
    call.reply.put_u32(0, context.add_channel()?.cast_unsigned());
    Ok(())
}

/// The request of CREATE_CQ and its extended form.
struct CompletionRequest {
    user_handle: u64,
    entries: u32,
    vector: u32,
    channel: i32,
    flags: u32,
}

/// CREATE_CQ: `struct ib_uverbs_create_cq`.
pub(super) fn create_completion_queue(context: &Context, call: &mut Call<'_>) -> Verb<()> {
    let request = CompletionRequest {
        user_handle: call.core.u64(8),
        entries: call.core.u32(16),
        vector: call.core.u32(20),
        channel: call.core.u32(24).cast_signed(),
        flags: 0,
    };
    create_completions(context, call, &request)
}

/// The extended CREATE_CQ: `struct ib_uverbs_ex_create_cq`.
pub(super) fn create_completion_queue_extended(context: &Context, call: &mut Call<'_>) -> Verb<()> {
    if call.core.u32(20) != 0 || call.core.u32(28) != 0 {
        return Err(EINVAL);
    }
    let request = CompletionRequest {
        user_handle: call.core.u64(0),
        entries: call.core.u32(8),
        vector: call.core.u32(12),
        channel: call.core.u32(16).cast_signed(),
        flags: call.core.u32(24),
    };
    create_completions(context, call, &request)?;
    call.reply.put_u32(12, call.reply.length(16));
    Ok(())
}

/// `IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION` and `_IGNORE_OVERRUN`.
const TIMESTAMPS: u32 = 1;
const IGNORE_OVERRUN: u32 = 2;

/// Completions of a queue for which `entries` were asked (kernel hw/mlx5/cq.c, `mlx5_ib_create_cq`).
fn completions(entries: u32) -> Verb<u32> {
    if entries == 0 || entries >= MAX_COMPLETIONS {
        return Err(EINVAL);
    }
    Ok((entries + 1).next_power_of_two())
}

fn create_completions(context: &Context, call: &mut Call<'_>, request: &CompletionRequest) -> Verb<()> {
    /// `MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX` and `_REAL_TIME_TS`; padding of 128 bytes is a capability.
    const FLAGS: u16 = 2 | 4;
    let owner = context.slot()?;
    if request.vector >= context.nic.completion_vectors() {
        return Err(EINVAL);
    }
    known_bits(request.flags, TIMESTAMPS | IGNORE_OVERRUN, EOPNOTSUPP)?;
    let channel = match request.channel {
        ..0 => None,
        descriptor => Some(context.channel(descriptor)?),
    };
    let completions = completions(request.entries)?;
    // kernel hw/mlx5/cq.c, `create_cq_user`.
    let (driver, flags) = (call.driver, call.driver.u16(22));
    if flags & !FLAGS != 0 || driver.u16(26) != 0 || driver.u32(28) != 0 {
        return Err(EINVAL);
    }
    if driver.u8(20) != 0 {
        // Compressed completions are a capability.
        return Err(EOPNOTSUPP);
    }
    let layout = CompletionLayout {
        buffer: driver.u64(0),
        doorbell: driver.u64(8),
        completions,
        completion_bytes: driver.u32(16),
    };
    let ring = CompletionRing::new(&layout, context.nic.clock())?;
    let queue = ForeignCompletionQueue {
        owner,
        ring: Box::new(ring),
        vector: request.vector,
        ignore_overrun: request.flags & IGNORE_OVERRUN != 0,
        channel,
        native: request.user_handle,
    };
    let slot = completion_queues::insert_foreign(&mut context.nic.control(), queue)?;
    call.reply.put_u32(0, slot);
    call.reply.put_u32(4, completions - 1);
    // `cqn`.
    call.driver_reply.put_u32(0, slot);
    Ok(())
}

/// A slot of one of the context's completion queues.
pub(super) fn check_completions(state: &State, owner: u32, slot: u32) -> Verb<()> {
    if completion_queues::is_owned(state, owner, slot) { Ok(()) } else { Err(EINVAL) }
}

/// RESIZE_CQ (kernel hw/mlx5/cq.c, `mlx5_ib_resize_cq`).
pub(super) fn resize_completion_queue(context: &Context, call: &mut Call<'_>) -> Verb<()> {
    let owner = context.slot()?;
    let (slot, completions) = (call.core.u32(8), completions(call.core.u32(12))?);
    let (buffer, completion_bytes) = (call.driver.u64(0), call.driver.u16(8));
    if call.driver.u16(10) != 0 || call.driver.u32(12) != 0 {
        return Err(EINVAL);
    }
    let buffer = CompletionBuffer::pin(buffer, completions, completion_bytes.into())?;
    let mut state = context.nic.control();
    check_completions(&state, owner, slot)?;
    let ring: &mut dyn Any = completion_queues::ring_mut(&mut state, slot).ok_or(EINVAL)?;
    ring.downcast_mut::<CompletionRing>().ok_or(EINVAL)?.resize(buffer)?;
    call.reply.put_u32(0, completions - 1);
    Ok(())
}

/// The extended MODIFY_CQ: `struct ib_uverbs_ex_modify_cq`.
pub(super) fn moderate(context: &Context, call: &mut Call<'_>) -> Verb<()> {
    let owner = context.slot()?;
    let (slot, mask) = (call.core.u32(0), call.core.u32(4));
    let (count, period_us) = (call.core.u16(8), call.core.u16(10));
    completion_queues::check_moderation(&context.nic, mask, count, period_us)?;
    let mut state = context.nic.control();
    check_completions(&state, owner, slot)?;
    completion_queues::moderate(&mut state, slot, count, period_us)
}

/// DESTROY_CQ. The answer counts the events that the client has read: libibverbs waits until it acknowledged
/// as many.
pub(super) fn destroy_completion_queue(context: &Context, call: &mut Call<'_>) -> Verb<()> {
    let (owner, slot) = (context.slot()?, call.core.u32(8));
    let opened = context.opened();
    let mut state = context.nic.control();
    check_completions(&state, owner, slot).map_err(|_| ENOENT)?;
    let removed = completion_queues::remove(&mut state, slot)?;
    let end = opened.channels.iter().find(|(_, channel)| Some(channel.slot) == removed.channel);
    let unread =
        end.map_or(0, |(descriptor, channel)| retract(&state, *descriptor, *channel, removed.native));
    call.reply.put_u32(0, removed.completion_events.saturating_sub(unread));
    call.reply.put_u32(4, removed.events_read);
    Ok(())
}

/// Takes the unread events of a queue back from a channel; returns how many.
fn retract(state: &State, descriptor: i32, channel: Channel, native: u64) -> u32 {
    if channels::is_abandoned(state, channel.slot) {
        return 0;
    }
    // SAFETY: the client's descriptor, which it closes only after its queues are destroyed
    // (ibv_destroy_comp_channel(3)). A client that closes it earlier gets EBADF here, or the file that now
    // has the number is not the channel.
    let end = unsafe { BorrowedFd::borrow_raw(descriptor) };
    match fstat(end) {
        Ok(stat) if stat.st_ino == channel.inode => channels::retract(state, channel.slot, end, native),
        _ => 0,
    }
}

/// A request for a work queue: `struct ib_uverbs_ex_create_wq` and `struct mlx5_ib_create_wq`.
struct WorkQueueRequest {
    user_handle: u64,
    domain: u32,
    completions: u32,
    flags: u32,
    layout: ReceiveLayout,
}

/// The extended CREATE_WQ (kernel core/uverbs_cmd.c, `ib_uverbs_ex_create_wq`; hw/mlx5/qp.c,
/// `mlx5_ib_create_wq`).
pub(super) fn create_work_queue(context: &Context, call: &mut Call<'_>) -> Verb<()> {
    let owner = context.slot()?;
    let request = check_work_queue(context, call)?;
    let ring = ReceiveRing::new(&request.layout)?;
    let queue = ForeignReceives {
        owner,
        domain: request.domain,
        cq: request.completions,
        max_sge: ring.entries(),
        ring: Some(Box::new(ring)),
        edits: work_queues::edits(request.flags),
        native: request.user_handle,
    };
    let mut state = context.nic.control();
    domains::check(&state, owner, request.domain)?;
    check_completions(&state, owner, request.completions)?;
    let NumberedQueue { slot, number } = work_queues::insert_foreign(&context.nic, &mut state, queue)?;
    drop(state);
    let (max_requests, max_entries) = (call.core.u32(24), call.core.u32(28));
    let reply = &mut call.reply;
    reply.put_u32(4, reply.length(24));
    reply.put_u32(8, slot);
    reply.put_u32(12, max_requests);
    reply.put_u32(16, max_entries);
    reply.put_u32(20, number);
    call.driver_reply.put_u32(0, call.driver_reply.length(8));
    Ok(())
}

fn check_work_queue(context: &Context, call: &Call<'_>) -> Verb<WorkQueueRequest> {
    /// Bytes of the core's structure, and the known and the least of the driver's.
    const CORE_BYTES: usize = 40;
    const DRIVER_BYTES: usize = 48;
    const LEAST_DRIVER_BYTES: usize = 40;
    let (core, driver) = (call.core, call.driver);
    core.known(CORE_BYTES)?;
    if core.u32(0) != 0 {
        return Err(EOPNOTSUPP);
    }
    if driver.len() < LEAST_DRIVER_BYTES {
        return Err(EINVAL);
    }
    driver.known(DRIVER_BYTES)?;
    // Striding queues and signatures of requests are capabilities.
    if driver.u32(32) != 0 || driver.u32(28) != 0 || core.u32(4) != IBV_WQT_RQ {
        return Err(EOPNOTSUPP);
    }
    let flags = core.u32(32);
    work_queues::check_flags(&context.nic, flags)?;
    // hw/mlx5/qp.c, `set_user_rq_size`: of what the client asked for only the number of requests is looked
    // at.
    if core.u32(24) > context.nic.max_requests() {
        return Err(EINVAL);
    }
    Ok(WorkQueueRequest {
        user_handle: core.u64(8),
        domain: core.u32(16),
        completions: core.u32(20),
        flags,
        layout: ReceiveLayout {
            buffer: driver.u64(0),
            doorbell: driver.u64(8),
            requests: driver.u32(16),
            log_request_bytes: driver.u32(20),
            user_index: driver.u32(24),
        },
    })
}

/// The slot of one of the context's work queues.
pub(super) fn check_queue(state: &State, owner: u32, slot: u32) -> Verb<()> {
    if work_queues::is_owned(state, owner, slot) { Ok(()) } else { Err(EINVAL) }
}

/// The extended MODIFY_WQ: `struct ib_uverbs_ex_modify_wq`.
pub(super) fn modify_work_queue(context: &Context, call: &mut Call<'_>) -> Verb<()> {
    let (owner, slot) = (context.slot()?, call.core.u32(4));
    let attr = ibv_wq_attr {
        attr_mask: call.core.u32(0),
        wq_state: call.core.u32(8),
        curr_wq_state: call.core.u32(12),
        flags: call.core.u32(16),
        flags_mask: call.core.u32(20),
    };
    // hw/mlx5/qp.c, `mlx5_ib_modify_wq`.
    if call.driver.u32(0) != 0 || call.driver.u32(4) != 0 {
        return Err(EOPNOTSUPP);
    }
    let mut state = context.nic.control();
    check_queue(&state, owner, slot)?;
    work_queues::modify(&context.nic, &mut state, slot, &attr)
}

/// The extended DESTROY_WQ. The answer counts the events that the client has read, as that of DESTROY_CQ.
pub(super) fn destroy_work_queue(context: &Context, call: &mut Call<'_>) -> Verb<()> {
    let (owner, slot) = (context.slot()?, call.core.u32(4));
    if call.core.u32(0) != 0 {
        return Err(EOPNOTSUPP);
    }
    let mut state = context.nic.control();
    check_queue(&state, owner, slot).map_err(|_| ENOENT)?;
    let removed = work_queues::remove(&mut state, slot)?;
    release_domain(&mut state, removed.domain);
    call.reply.put_u32(4, call.reply.length(16));
    call.reply.put_u32(8, removed.events_read);
    Ok(())
}

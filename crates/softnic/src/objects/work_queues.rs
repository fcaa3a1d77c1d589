//! Work queues: where RSS delivers.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ibverbs_sys::{
    IBV_WQ_ATTR_CURR_STATE, IBV_WQ_ATTR_FLAGS, IBV_WQ_ATTR_STATE, IBV_WQ_FLAGS_CVLAN_STRIPPING,
    IBV_WQ_FLAGS_DELAY_DROP, IBV_WQ_FLAGS_SCATTER_FCS, IBV_WQS_ERR, IBV_WQS_RDY, IBV_WQS_RESET, ibv_wq_attr,
    ibv_wq_state,
};
use rustix::thread::CapabilitySet;

use super::domains::use_domain;
use super::has_capability;
use crate::errno::{EBUSY, EINVAL, ENOMEM, EPERM, Verb, known_bits};
use crate::nic::Nic;
use crate::personality::WorkQueueRules;
use crate::state::{FrameEdits, NewQueue, QueueOwner, QueueState, State};

/// Work queues are numbered from here, away from the numbers of queue pairs.
const FIRST_NUMBER: u32 = 0x0080_0001;

/// Refuses flags that the device does not have, or that need a capability.
pub(crate) fn check_flags(flags: u32, rules: &WorkQueueRules) -> Verb<()> {
    if rules.delay_drop_needs_raw_io
        && flags & IBV_WQ_FLAGS_DELAY_DROP != 0
        && !has_capability(CapabilitySet::SYS_RAWIO)
    {
        return Err(EPERM);
    }
    rules.create_flags.check(flags)
}

/// The edits of received frames that flags of a work queue ask for.
pub(crate) fn edits(flags: u32) -> FrameEdits {
    FrameEdits {
        strip_cvlan: flags & IBV_WQ_FLAGS_CVLAN_STRIPPING != 0,
        append_fcs: flags & IBV_WQ_FLAGS_SCATTER_FCS != 0,
    }
}

/// The lowest that is free: work queues that are made one after the other follow each other, whatever queue
/// pairs are made between them, as indirection tables of ConnectX-3 want it (kernel hw/mlx4/qp.c,
/// `mlx4_ib_alloc_wqn`: numbers from a range of their own).
fn free_number(state: &State) -> u32 {
    let taken: HashSet<u32> = state.queues.iter().map(|(_, queue)| queue.number).collect();
    let mut numbers = (0..=u32::MAX).map(|place| State::number(place, FIRST_NUMBER));
    numbers.find(|number| !taken.contains(number)).unwrap_or(FIRST_NUMBER)
}

/// Adds a work queue with a number, and counts what it uses; `domain` is the one that it was made in. Returns
/// its slot and its number.
pub(crate) fn insert_queue(state: &mut State, nic: &Nic, queue: NewQueue, domain: u32) -> Verb<(u32, u32)> {
    let cq = queue.cq;
    if state.cqs.get(cq).is_none() || state.domains.get(domain).is_none() {
        return Err(EINVAL);
    }
    let mut queue = QueueState::new(QueueOwner::WorkQueue, queue);
    let number = free_number(state);
    queue.number = number;
    let losses = Arc::downgrade(&queue.out_of_buffer);
    let slot = state.insert_queue(queue).ok_or(ENOMEM)?;
    if let Some(cq) = state.cqs.get_mut(cq) {
        cq.users += 1;
    }
    use_domain(state, domain)?;
    // While the number cannot go to another queue.
    nic.note_queue(number, losses);
    Ok((slot, number))
}

/// Takes a work queue out that nothing uses; EBUSY for another. Returns it, and how many of its events the
/// application has read. Its domain is still in use.
pub(crate) fn remove_queue(state: &mut State, slot: u32) -> Verb<(QueueState, u32)> {
    if state.queues.get(slot).ok_or(EINVAL)?.users != 0 {
        return Err(EBUSY);
    }
    let removed = state.queues.remove(slot).ok_or(EINVAL)?;
    state.failed_queues.retain(|failed| *failed != slot);
    if let Some(cq) = state.cqs.get_mut(removed.cq) {
        cq.users -= 1;
    }
    let read = state.retract_events(removed.owner, removed.native, removed.events);
    Ok((removed, read))
}

/// Changes a work queue, all of what is asked or nothing.
pub(crate) fn modify(state: &mut State, slot: u32, attr: &ibv_wq_attr, rules: &WorkQueueRules) -> Verb<()> {
    let known = IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE | IBV_WQ_ATTR_FLAGS;
    known_bits(attr.attr_mask, known, EINVAL)?;
    if attr.attr_mask == 0 {
        // kernel uverbs_cmd.c, `ib_uverbs_ex_modify_wq`.
        return Err(EINVAL);
    }
    let flags_mask = if attr.attr_mask & IBV_WQ_ATTR_FLAGS == 0 { 0 } else { attr.flags_mask };
    known_bits(flags_mask, rules.modify_flags.bits, rules.modify_flags.refusal)?;
    if attr.attr_mask & IBV_WQ_ATTR_FLAGS != 0 && rules.modify_flags.bits == 0 {
        return Err(rules.modify_flags.refusal);
    }
    let current = state.queues.get(slot).ok_or(EINVAL)?.native_state.load(Ordering::Relaxed);
    if attr.attr_mask & IBV_WQ_ATTR_CURR_STATE != 0 && attr.curr_wq_state != current {
        return Err(EINVAL);
    }
    if attr.attr_mask & IBV_WQ_ATTR_STATE != 0 {
        transit(state, slot, current, attr.wq_state, rules)?;
    }
    if flags_mask & IBV_WQ_FLAGS_CVLAN_STRIPPING != 0
        && let Some(queue) = state.queues.get_mut(slot)
    {
        queue.edits.strip_cvlan = attr.flags & IBV_WQ_FLAGS_CVLAN_STRIPPING != 0;
    }
    Ok(())
}

fn transit(
    state: &mut State,
    slot: u32,
    from: ibv_wq_state,
    to: ibv_wq_state,
    rules: &WorkQueueRules,
) -> Verb<()> {
    let allowed = match (from, to) {
        (_, IBV_WQS_RESET) => true,
        (_, IBV_WQS_ERR) => from != IBV_WQS_RESET || rules.fails_from_reset,
        (_, IBV_WQS_RDY) => from != IBV_WQS_ERR,
        _ => false,
    };
    if !allowed {
        return Err(EINVAL);
    }
    let queue = state.queues.get_mut(slot).ok_or(EINVAL)?;
    queue.ready = to == IBV_WQS_RDY;
    if [from, to].contains(&IBV_WQS_RESET) {
        queue.consumer.discard();
    }
    queue.native_state.store(to, Ordering::Relaxed);
    state.failed_queues.retain(|failed| *failed != slot);
    if to == IBV_WQS_ERR {
        state.failed_queues.push(slot);
        state.flush_queue(slot);
        state.publish();
    }
    Ok(())
}

//! Work queues: where RSS delivers.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ibverbs_sys::{
    IBV_WQ_ATTR_CURR_STATE, IBV_WQ_ATTR_FLAGS, IBV_WQ_ATTR_STATE, IBV_WQ_FLAGS_CVLAN_STRIPPING,
    IBV_WQ_FLAGS_DELAY_DROP, IBV_WQ_FLAGS_SCATTER_FCS, IBV_WQS_ERR, IBV_WQS_RDY, IBV_WQS_RESET, ibv_qp_state,
    ibv_wq_attr, ibv_wq_state,
};
use rustix::thread::CapabilitySet;

use super::domains::use_domain;
use super::has_capability;
use crate::errno::{EBUSY, EINVAL, ENOMEM, EPERM, Verb, VerbErrno, known_bits};
use crate::formats::{ReceiveFormat, Requests};
use crate::limits::MAX_SGE;
use crate::nic::Nic;
use crate::personality::WorkQueueRules;
use crate::ring::RingConsumer;
pub use crate::state::FrameEdits;
use crate::state::{NewQueue, QueueOwner, QueueState, State};
use crate::work::receive_slot_bytes;

/// Work queues are numbered from here, away from the numbers of queue pairs.
const FIRST_NUMBER: u32 = 0x0080_0001;

/// Refuses flags that the device does not have, or that need a capability.
///
/// # Errors
/// EPERM if the calling thread lacks the capability, or the errno of the device.
pub fn check_flags(nic: &Nic, flags: u32) -> Verb<()> {
    let rules = &nic.rules().objects.work_queue;
    if rules.delay_drop_needs_raw_io
        && flags & IBV_WQ_FLAGS_DELAY_DROP != 0
        && !has_capability(CapabilitySet::SYS_RAWIO)
    {
        return Err(EPERM);
    }
    rules.create_flags.check(flags)
}

/// The edits of received frames that flags of a work queue ask for.
#[must_use]
pub fn edits(flags: u32) -> FrameEdits {
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

/// The receive queue in a foreign format of a work queue or of a queue pair, to be made.
pub struct ForeignReceives {
    /// The context.
    pub owner: u32,
    /// The protection domain.
    pub domain: u32,
    /// The completion queue.
    pub cq: u32,
    /// The queue itself; a queue pair may have none.
    pub ring: Option<Box<dyn ReceiveFormat>>,
    /// The most scatter entries of a request.
    pub max_sge: u32,
    /// The edits of received frames.
    pub edits: FrameEdits,
    /// The client's name of the work queue or queue pair, for events.
    pub native: u64,
}

impl From<ForeignReceives> for NewQueue {
    fn from(queue: ForeignReceives) -> Self {
        /// The number of the state RESET, `IBV_WQS_RESET` of work queues and `IBV_QPS_RESET` of queue pairs.
        const RESET: u32 = IBV_WQS_RESET;
        const _: () = assert!(RESET == ibv_qp_state::IBV_QPS_RESET);
        let ForeignReceives { owner, domain, cq, ring, max_sge, edits, native } = queue;
        Self {
            owner,
            domain,
            cq,
            consumer: ring.map_or(Requests::None, Requests::Foreign),
            // A request is read with so many (`ReceiveRequest`).
            max_sge: max_sge.min(MAX_SGE),
            edits,
            native_state: Arc::new(AtomicU32::new(RESET)),
            native,
        }
    }
}

/// The receive queue of a work queue or of a queue pair on a ring of this crate's, to be made.
pub struct OwnReceives {
    /// The context.
    pub owner: u32,
    /// The protection domain that its buffers must be registered in.
    pub domain: u32,
    /// The completion queue.
    pub cq: u32,
    /// The engine's end of the ring.
    pub consumer: RingConsumer,
    /// The most scatter entries of a request.
    pub max_sge: u32,
    /// The edits of received frames.
    pub edits: FrameEdits,
    /// The state, an `ibv_wq_state` or `ibv_qp_state`, which is shared with who posts.
    pub native_state: Arc<AtomicU32>,
    /// The client's name of the work queue or queue pair, for events.
    pub native: u64,
}

impl TryFrom<OwnReceives> for NewQueue {
    type Error = VerbErrno;

    /// Refuses a ring whose slots are no receive requests of `max_sge` entries, at least one: the engine
    /// reads so many in each slot.
    fn try_from(queue: OwnReceives) -> Verb<Self> {
        let OwnReceives { owner, domain, cq, consumer, max_sge, edits, native_state, native } = queue;
        if max_sge == 0 {
            return Err(EINVAL);
        }
        consumer.check_slots(receive_slot_bytes(max_sge))?;
        let consumer = Requests::Own(consumer);
        Ok(Self { owner, domain, cq, consumer, max_sge, edits, native_state, native })
    }
}

/// A queue with the number by which completions and flows name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberedQueue {
    /// The slot in the state.
    pub slot: u32,
    /// The number.
    pub number: u32,
}

/// Adds a work queue in a foreign format with a number, and counts what it uses.
///
/// # Errors
/// EINVAL if there is no such domain or completion queue, and ENOMEM if the device has no more queues.
pub fn insert_foreign(nic: &Nic, state: &mut State, queue: ForeignReceives) -> Verb<NumberedQueue> {
    let domain = queue.domain;
    add(nic, state, queue.into(), domain)
}

/// Adds a work queue on a ring of this crate's with a number, and counts what it uses; `domain` is the one
/// that it was made in.
///
/// # Errors
/// EINVAL if the ring's slots are no requests of `max_sge` entries or there is no such domain or completion
/// queue, and ENOMEM if the device has no more queues.
pub fn insert(nic: &Nic, state: &mut State, queue: OwnReceives, domain: u32) -> Verb<NumberedQueue> {
    add(nic, state, queue.try_into()?, domain)
}

/// Adds a work queue with a number, and counts what it uses.
fn add(nic: &Nic, state: &mut State, queue: NewQueue, domain: u32) -> Verb<NumberedQueue> {
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
    Ok(NumberedQueue { slot, number })
}

/// Returns whether a slot is that of a work queue of the context.
#[must_use]
pub fn is_owned(state: &State, owner: u32, slot: u32) -> bool {
    let is_own = |queue: &QueueState| queue.owner == owner && queue.kind == QueueOwner::WorkQueue;
    state.queues.get(slot).is_some_and(is_own)
}

/// A work queue that was taken out: its memory may be the application's.
pub struct RemovedWorkQueue {
    /// The protection domain of its buffers.
    pub domain: u32,
    /// The number of its events that the application has read.
    pub events_read: u32,
    _queue: QueueState,
}

/// Takes a work queue out that nothing uses. Its domain is still in use.
///
/// # Errors
/// EINVAL if there is no such queue, and EBUSY if it is in use.
pub fn remove(state: &mut State, slot: u32) -> Verb<RemovedWorkQueue> {
    if state.queues.get(slot).ok_or(EINVAL)?.users != 0 {
        return Err(EBUSY);
    }
    let removed = state.queues.remove(slot).ok_or(EINVAL)?;
    state.failed_queues.retain(|failed| *failed != slot);
    if let Some(cq) = state.cqs.get_mut(removed.cq) {
        cq.users -= 1;
    }
    let read = state.retract_events(removed.owner, removed.native, removed.events);
    Ok(RemovedWorkQueue { domain: removed.domain, events_read: read, _queue: removed })
}

/// Changes a work queue, all of what is asked or nothing.
///
/// # Errors
/// EINVAL if there is no such queue or transition, or the errno of the device.
pub fn modify(nic: &Nic, state: &mut State, slot: u32, attr: &ibv_wq_attr) -> Verb<()> {
    let rules = &nic.rules().objects.work_queue;
    let known = IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE | IBV_WQ_ATTR_FLAGS;
    known_bits(attr.attr_mask, known, EINVAL)?;
    if attr.attr_mask == 0 {
        // kernel uverbs_cmd.c, `ib_uverbs_ex_modify_wq`.
        return Err(EINVAL);
    }
    let flags_mask = if attr.attr_mask & IBV_WQ_ATTR_FLAGS == 0 { 0 } else { attr.flags_mask };
    rules.modify_flags.check(flags_mask)?;
    if attr.attr_mask & IBV_WQ_ATTR_FLAGS != 0 {
        rules.modify_flags.check_any()?;
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

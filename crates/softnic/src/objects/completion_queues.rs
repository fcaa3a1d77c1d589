//! Completion queues.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::errno::{EBUSY, EINVAL, ENOMEM, EOPNOTSUPP, Verb};
use crate::formats::{CompletionFormat, Completions};
use crate::nic::Nic;
use crate::state::State;
use crate::state::completion::{CqState, Notice, Wish};

/// A completion queue in a foreign format, to be made.
pub struct ForeignCompletionQueue {
    /// The context.
    pub owner: u32,
    /// The queue itself.
    pub ring: Box<dyn CompletionFormat>,
    /// The interrupt that its events would come by.
    pub vector: u32,
    /// Whether completions for which there is no room are lost without harm to the queue.
    pub ignore_overrun: bool,
    /// The channel that it reports to.
    pub channel: Option<u32>,
    /// The client's name of it, for events.
    pub native: u64,
}

/// Adds a completion queue in a foreign format, and counts the use of its channel; returns its slot.
///
/// # Errors
/// ENOMEM if the device has no more.
pub fn insert_foreign(state: &mut State, queue: ForeignCompletionQueue) -> Verb<u32> {
    let ForeignCompletionQueue { owner, ring, vector, ignore_overrun, channel, native } = queue;
    let mut notice = Notice::of(Wish::default());
    notice.channel = channel;
    let cq = CqState {
        owner,
        users: 0,
        producer: Completions::Foreign(ring),
        vector,
        ignore_overrun,
        failed: false,
        unpublished: false,
        // The checksums are in every completion.
        wants_checksums: Arc::new(AtomicBool::new(true)),
        // The client ignores them where the device has none.
        checksums_of_work_queues: true,
        native,
        events: 0,
        notice,
    };
    let slot = state.insert_cq(cq).ok_or(ENOMEM)?;
    if let Some(channel) = channel {
        state.watched_cqs.push(slot);
        if let Some(channel) = state.channels.get_mut(channel) {
            channel.users += 1;
        }
    }
    Ok(slot)
}

/// Returns whether a slot is that of a completion queue of the context.
#[must_use]
pub fn is_owned(state: &State, owner: u32, slot: u32) -> bool {
    state.cqs.get(slot).is_some_and(|cq| cq.owner == owner)
}

/// The ring of a completion queue in a foreign format that has not failed.
pub fn ring_mut(state: &mut State, slot: u32) -> Option<&mut dyn CompletionFormat> {
    match &mut state.cqs.get_mut(slot).filter(|cq| !cq.failed)?.producer {
        Completions::Own(_) => None,
        Completions::Foreign(ring) => Some(&mut **ring),
    }
}

/// `IBV_CQ_ATTR_MODERATE`, the only attribute there is.
const ATTR_MODERATE: u32 = 1;

/// Checks a change of moderation.
///
/// # Errors
/// EINVAL if nothing is to be changed or for values out of range, and EOPNOTSUPP for unknown attributes.
pub fn check_moderation(nic: &Nic, mask: u32, count: u16, period_us: u16) -> Verb<()> {
    let rules = &nic.rules().objects.completion;
    // The kernel (ib_uverbs_ex_modify_cq): nothing to do is EINVAL, anything unknown EOPNOTSUPP.
    if mask == 0 {
        return Err(EINVAL);
    }
    if mask != ATTR_MODERATE {
        return Err(EOPNOTSUPP);
    }
    if count > rules.max_moderation_count || period_us > rules.max_moderation_period_us {
        return Err(EINVAL);
    }
    Ok(())
}

/// Changes how many completions raise an event, and how long fewer may wait for one.
///
/// # Errors
/// EINVAL if there is no such queue.
pub fn moderate(state: &mut State, slot: u32, count: u16, period_us: u16) -> Verb<()> {
    state.cqs.get_mut(slot).ok_or(EINVAL)?.notice.moderate(count, period_us);
    // What waits already may be enough now.
    state.raise_waiting();
    Ok(())
}

/// A completion queue that was taken out: its memory may be the application's.
pub struct RemovedCompletionQueue {
    /// The number of its asynchronous events that the application has read.
    pub events_read: u32,
    /// The channel that it reported to.
    pub channel: Option<u32>,
    /// The completion events that were sent to the channel.
    pub completion_events: u32,
    /// The client's name of it.
    pub native: u64,
    _queue: CqState,
}

/// Takes a completion queue out that nothing uses.
///
/// # Errors
/// EINVAL if there is no such queue, and EBUSY if it is in use.
pub fn remove(state: &mut State, slot: u32) -> Verb<RemovedCompletionQueue> {
    if state.cqs.get(slot).ok_or(EINVAL)?.users != 0 {
        return Err(EBUSY);
    }
    let queue = state.remove_cq(slot).ok_or(EINVAL)?;
    Ok(RemovedCompletionQueue {
        events_read: state.retract_events(queue.owner, queue.native, queue.events),
        channel: queue.notice.channel,
        completion_events: queue.notice.events,
        native: queue.native,
        _queue: queue,
    })
}

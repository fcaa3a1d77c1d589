//! Completion queues.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::domains::use_domain;
use crate::errno::{EBUSY, EINVAL, ENOMEM, EOPNOTSUPP, Verb};
use crate::formats::{CompletionFormat, Completions, Cqe};
use crate::nic::Nic;
use crate::ring::{RingConsumer, RingProducer};
use crate::state::State;
pub use crate::state::completion::Wish;
use crate::state::completion::{CqState, Notice};

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
        notice: Notice::of(Wish::default(), channel),
    };
    let slot = add(state, cq)?;
    if channel.is_some() {
        state.watched_cqs.push(slot);
    }
    Ok(slot)
}

/// A completion queue on a ring of this crate's, to be made.
pub struct OwnCompletionQueue {
    /// The context.
    pub owner: u32,
    /// The engine's end of the ring, whose slots are [`Cqe`]s.
    pub producer: RingProducer,
    /// The interrupt that its events would come by.
    pub vector: u32,
    /// Whether completions for which there is no room are lost without harm to the queue.
    pub ignore_overrun: bool,
    /// Set by who polls the queue when it first asks for flags: only then are checksums verified.
    pub wants_checksums: Arc<AtomicBool>,
    /// The other half is the front end's, which arms the queue with it.
    pub wish: Wish,
    /// The channel that it reports to.
    pub channel: Option<u32>,
    /// The domain whose allocator has given the memory. It is in use as long as the queue is.
    pub domain: Option<u32>,
    /// The client's name of it, for events.
    pub native: u64,
}

/// Adds a completion queue on a ring of this crate's, and counts the use of its channel and of its domain;
/// returns its slot.
///
/// # Errors
/// EINVAL if the ring's slots are no [`Cqe`]s or there is no such domain, and ENOMEM if the device has no
/// more.
pub fn insert(nic: &Nic, state: &mut State, queue: OwnCompletionQueue) -> Verb<u32> {
    let OwnCompletionQueue { owner, producer, vector, ignore_overrun, wants_checksums, .. } = queue;
    producer.check_slots(size_of::<Cqe>())?;
    if let Some(domain) = queue.domain {
        // The allocator, which was just called, is the application's code.
        state.domains.get(domain).ok_or(EINVAL)?;
    }
    let cq = CqState {
        owner,
        users: 0,
        producer: Completions::Own(producer),
        vector,
        ignore_overrun,
        failed: false,
        unpublished: false,
        wants_checksums,
        checksums_of_work_queues: nic.rules().objects.completion.checksums_of_work_queues,
        native: queue.native,
        events: 0,
        notice: Notice::of(queue.wish, queue.channel),
    };
    let slot = add(state, cq)?;
    if let Some(domain) = queue.domain {
        use_domain(state, domain)?;
    }
    Ok(slot)
}

/// Adds a completion queue, and counts the use of its channel.
fn add(state: &mut State, cq: CqState) -> Verb<u32> {
    let channel = cq.notice.channel;
    let slot = state.insert_cq(cq).ok_or(ENOMEM)?;
    if let Some(channel) = channel.and_then(|slot| state.channels.get_mut(slot)) {
        channel.users += 1;
    }
    Ok(slot)
}

/// Arms a queue on a ring of this crate's so that the published completions that are not polled count as
/// well, and sends their event.
pub fn arm_from_consumer(state: &mut State, slot: u32, solicited_only: bool) {
    state.arm_from_consumer(slot, solicited_only);
}

/// Moves what is queued into the new ring, and puts it in the old one's place. Neither end is in use: the
/// device's mutex keeps the engine out, the caller those who poll. `old` is the polled end, `None` while a
/// poll is open.
///
/// # Errors
/// EINVAL if the slots of a ring are no [`Cqe`]s, if there is no such queue, if it has failed, or if the new
/// ring has no room for what is queued, and EBUSY while a poll is open.
pub fn exchange(
    state: &mut State,
    slot: u32,
    old: Option<&mut RingConsumer>,
    producer: &mut RingProducer,
    consumer: &mut RingConsumer,
) -> Verb<()> {
    producer.check_slots(size_of::<Cqe>())?;
    consumer.check_slots(size_of::<Cqe>())?;
    let cq = state.cqs.get_mut(slot).ok_or(EINVAL)?;
    if cq.failed {
        return Err(EINVAL);
    }
    let old = old.ok_or(EBUSY)?;
    old.check_slots(size_of::<Cqe>())?;
    // ibv_resize_cq(3): at least the number of unpolled entries.
    if old.available() > producer.limit() {
        return Err(EINVAL);
    }
    while old.has_next() && producer.has_room(1) {
        // SAFETY: the slot was published, so it is the consumer's; `check_slots` found the bytes of a `Cqe`,
        // and so every slot is aligned as the ring is.
        let cqe = unsafe { old.slot().cast::<Cqe>().read() };
        // SAFETY: there is room, so the slot is the producer's; `check_slots` found the bytes of a `Cqe`, and
        // so every slot is aligned as the ring is.
        unsafe { producer.slot().cast::<Cqe>().write(cqe) };
        old.advance();
        producer.advance();
    }
    producer.publish();
    std::mem::swap(old, consumer);
    cq.replace(producer);
    Ok(())
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

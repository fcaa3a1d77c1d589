//! Resizing completion queues, with completions in them.

use std::ffi::c_int;

use ibverbs_sys::ibv_cq;

use super::Object;
use super::answer::{EBUSY, EINVAL, Verb, answer_status};
use super::cq::{self, SoftCq};
use super::cq_poll::Poller;
use super::pd::make_ring;
use crate::device::SoftContext;
use crate::ring::{Consumer, Producer};
use crate::state::State;
use crate::work::Cqe;

/// Moves a queue to a larger or smaller ring. As with any provider not to be called between `ibv_start_poll` and
/// `ibv_end_poll`: a queue with a lock waits for the end of that poll, one without answers EBUSY.
pub(crate) unsafe extern "C" fn resize_cq(cq: *mut ibv_cq, entries: c_int) -> c_int {
    answer_status(|| {
        // SAFETY: NULL or a completion queue of this provider, by the verb's contract.
        let object = unsafe { SoftCq::of(cq.cast()) }?;
        // SAFETY: the queue keeps the context it was made with.
        let soft = unsafe { SoftContext::of(object.context()) }?;
        let rules = soft.nic().rules();
        let wanted = cq::entries(&rules.completion, u32::try_from(entries).map_err(|_| EINVAL)?)?;
        let resources = &rules.domain.resources;
        // What was posted before this call counts. A device has long sent it; the engine may not have had its turn.
        soft.nic().pass(0);
        // The application's allocator is called without a lock, and so is its `free` when the old ring is dropped.
        let mut ring =
            make_ring(resources, object.domain(), wanted, size_of::<Cqe>(), resources.completion_queue)?;
        object.poller.with(|poller| exchange(&mut soft.nic().control(), object.slot, poller, &mut ring))?;
        let place = cq.wrapping_byte_add(std::mem::offset_of!(ibv_cq, cqe)).cast::<c_int>();
        // SAFETY: the application's handle; as with any provider, it must not read the size while it changes it.
        unsafe { place.write(c_int::try_from(wanted).map_err(|_| EINVAL)?) };
        Ok(())
    })
}

/// Moves what is queued into the new ring, and puts it in the old one's place. Both ends stand still: the device's
/// mutex keeps the engine out, the poller's lock the application.
fn exchange(
    state: &mut State,
    slot: u32,
    poller: &mut Poller,
    (producer, consumer): &mut (Producer, Consumer),
) -> Verb<()> {
    let cq = state.cqs.get_mut(slot).ok_or(EINVAL)?;
    if cq.failed {
        return Err(EINVAL);
    }
    let old = poller.between_polls().ok_or(EBUSY)?;
    // ibv_resize_cq(3): at least the number of unpolled entries.
    if old.available() > producer.limit() {
        return Err(EINVAL);
    }
    while old.has_next() && producer.has_room(1) {
        // SAFETY: published, so it is the consumer's; slots are aligned `Cqe`s.
        let cqe = unsafe { old.slot().cast::<Cqe>().read() };
        // SAFETY: there is room, so the slot is the producer's.
        unsafe { producer.slot().cast::<Cqe>().write(cqe) };
        old.advance();
        producer.advance();
    }
    producer.publish();
    std::mem::swap(old, consumer);
    cq.replace(producer);
    Ok(())
}

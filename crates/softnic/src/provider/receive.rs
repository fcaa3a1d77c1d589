//! Posting receives: the application's side of a work queue's or plain queue pair's receive ring.

use std::ffi::c_int;

use ibverbs_sys::{ibv_recv_wr, ibv_sge};

use super::answer::{EINVAL, ENOMEM, Verb};
use super::spin::Spin;
use crate::ring::Producer;
use crate::work::{Element, RECEIVE_HEADER_BYTES};

/// How many requests ahead their lines are taken over from the engine's core.
const LOOKAHEAD: u32 = 8;

/// The application's end of a receive ring.
pub(crate) struct ReceivePoster {
    pub(crate) producer: Producer,
    pub(crate) max_sge: u32,
}

/// Posts a chain of receives, all shown to the device at once. On failure `bad` is the first one not posted.
pub(crate) fn post(
    poster: &Spin<ReceivePoster>,
    mut wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let outcome = poster.with(|poster| {
        let mut outcome = Ok(());
        // SAFETY: NULL or a request of the application's chain.
        while let Some(request) = unsafe { wr.as_ref() } {
            outcome = poster.push(request);
            if outcome.is_err() {
                break;
            }
            wr = request.next;
        }
        poster.producer.publish();
        outcome
    });
    match outcome {
        Ok(()) => 0,
        Err(errno) => {
            refuse(wr, bad);
            errno.0
        }
    }
}

/// Names the first request that was not posted.
pub(crate) fn refuse<T>(wr: *mut T, bad: *mut *mut T) {
    if !bad.is_null() {
        // SAFETY: not NULL, so the application's place for the answer.
        unsafe { bad.write(wr) };
    }
}

impl ReceivePoster {
    #[inline]
    fn push(&mut self, request: &ibv_recv_wr) -> Verb<()> {
        let count = u32::try_from(request.num_sge).map_err(|_| EINVAL)?;
        if count > self.max_sge || (count > 0 && request.sg_list.is_null()) {
            return Err(EINVAL);
        }
        if !self.producer.has_room(1) {
            return Err(ENOMEM);
        }
        self.producer.prefetch(LOOKAHEAD);
        let slot = self.producer.slot();
        // SAFETY: there is room, so the slot is this side's; it begins with the id.
        unsafe { slot.cast::<u64>().write(request.wr_id) };
        // SAFETY: a slot holds `max_sge` elements behind the id.
        let elements = unsafe { slot.add(RECEIVE_HEADER_BYTES) };
        let elements =
            std::ptr::NonNull::slice_from_raw_parts(elements.cast::<Element>(), self.max_sge as usize);
        // SAFETY: as above; every bit pattern is an element, and only this side writes them now.
        write_elements(unsafe { &mut *elements.as_ptr() }, request.sg_list, count);
        self.producer.advance();
        Ok(())
    }
}

/// Copies a scatter/gather list of `count` entries, at most `elements.len()`, and ends it.
#[inline]
pub(crate) fn write_elements(elements: &mut [Element], list: *const ibv_sge, count: u32) {
    for (index, element) in elements.iter_mut().enumerate() {
        if index >= count as usize {
            *element = Element::END;
            break;
        }
        // SAFETY: the application's list has `count` entries.
        let sge = unsafe { list.add(index) };
        // SAFETY: as above.
        *element = Element::of(unsafe { &*sge });
    }
}

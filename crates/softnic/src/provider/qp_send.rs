//! Posting sends to a plain queue pair.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use ibverbs_sys::{ibv_qp, ibv_qp_state, ibv_send_flags, ibv_send_wr, ibv_wr_opcode};

use super::Object;
use super::answer::{EINVAL, ENOMEM, Verb, known_bits};
use super::qp::SoftQp;
use super::receive::{refuse, write_elements};
use crate::ring::Producer;
use crate::work::{Element, SEND_CHECKSUM, SEND_HEADER_BYTES, SEND_INLINE, SEND_SIGNALED, SendHeader};

/// The flags that mean something to a raw packet device, and the two that mean nothing but do no harm.
const KNOWN_FLAGS: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0
    | ibv_send_flags::IBV_SEND_INLINE.0
    | ibv_send_flags::IBV_SEND_IP_CSUM.0
    | ibv_send_flags::IBV_SEND_FENCE.0
    | ibv_send_flags::IBV_SEND_SOLICITED.0;

/// The application's end of a send ring.
pub(crate) struct SendPoster {
    pub(crate) producer: Producer,
    pub(crate) max_sge: u32,
    pub(crate) max_inline: u32,
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    mut request: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: NULL or a queue pair of this provider, by the verb's contract.
    let Ok(qp) = (unsafe { SoftQp::of(qp) }) else { return EINVAL.0 };
    // In ERR what is posted is flushed; below RTS nothing can be sent.
    let state = qp.state.load(Ordering::Relaxed);
    let sending =
        matches!(state, ibv_qp_state::IBV_QPS_RTS | ibv_qp_state::IBV_QPS_SQD | ibv_qp_state::IBV_QPS_ERR);
    let Some(plain) = qp.plain.as_ref().filter(|_| sending) else {
        refuse(request, bad);
        return EINVAL.0;
    };
    let outcome = plain.sends.with(|poster| {
        let mut outcome = Ok(());
        // SAFETY: NULL or a request of the application's chain.
        while let Some(wr) = unsafe { request.as_ref() } {
            outcome = poster.push(wr);
            if outcome.is_err() {
                break;
            }
            request = wr.next;
        }
        poster.producer.publish();
        outcome
    });
    match outcome {
        Ok(()) => 0,
        Err(errno) => {
            refuse(request, bad);
            errno.0
        }
    }
}

impl SendPoster {
    fn push(&mut self, wr: &ibv_send_wr) -> Verb<()> {
        if wr.opcode != ibv_wr_opcode::IBV_WR_SEND {
            return Err(EINVAL);
        }
        known_bits(wr.send_flags, KNOWN_FLAGS, EINVAL)?;
        let count = u32::try_from(wr.num_sge).map_err(|_| EINVAL)?;
        if count > 0 && wr.sg_list.is_null() {
            return Err(EINVAL);
        }
        let wants = |flag: ibv_send_flags, bit: u32| if wr.send_flags & flag.0 == 0 { 0 } else { bit };
        let flags = wants(ibv_send_flags::IBV_SEND_SIGNALED, SEND_SIGNALED)
            | wants(ibv_send_flags::IBV_SEND_IP_CSUM, SEND_CHECKSUM)
            | wants(ibv_send_flags::IBV_SEND_INLINE, SEND_INLINE);
        if !self.producer.has_room(1) {
            return Err(ENOMEM);
        }
        let slot = self.producer.slot();
        // SAFETY: a slot has a header and room behind it.
        let body = unsafe { slot.add(SEND_HEADER_BYTES) };
        let inline_bytes = if flags & SEND_INLINE == 0 {
            if count > self.max_sge {
                return Err(EINVAL);
            }
            let elements = NonNull::slice_from_raw_parts(body.cast::<Element>(), self.max_sge as usize);
            // SAFETY: a slot's body holds `max_sge` elements; only this side writes them now.
            write_elements(unsafe { &mut *elements.as_ptr() }, wr.sg_list, count);
            0
        } else {
            self.copy_inline(wr, count, body)?
        };
        let header = SendHeader { wr_id: wr.wr_id, flags, inline_bytes };
        // SAFETY: there is room, so the slot is this side's; it begins with the header.
        unsafe { slot.cast::<SendHeader>().write(header) };
        self.producer.advance();
        Ok(())
    }

    /// Copies the frame itself into the request. Its elements need no key: the caller's own memory is read now.
    fn copy_inline(&self, wr: &ibv_send_wr, count: u32, body: NonNull<u8>) -> Verb<u32> {
        let mut total = 0u32;
        for index in 0..count as usize {
            // SAFETY: the application's list has `num_sge` entries.
            let sge = unsafe { wr.sg_list.add(index) };
            // SAFETY: as above.
            let sge = unsafe { sge.read() };
            let end = total.checked_add(sge.length).filter(|end| *end <= self.max_inline).ok_or(EINVAL)?;
            let from =
                std::ptr::with_exposed_provenance::<u8>(usize::try_from(sge.addr).map_err(|_| EINVAL)?);
            if from.is_null() && sge.length > 0 {
                return Err(EINVAL);
            }
            // SAFETY: `total` is within `max_inline`, which the body holds.
            let to = unsafe { body.add(total as usize) };
            // SAFETY: the application names readable memory of its own; `end` is within the body.
            unsafe { to.as_ptr().copy_from_nonoverlapping(from, sge.length as usize) };
            total = end;
        }
        Ok(total)
    }
}

//! Completion events: arming a queue, and how many completions make an event.

use std::ffi::c_int;

use ibverbs_sys::{ibv_cq, ibv_modify_cq_attr};

use super::Object;
use super::answer::{EINVAL, EOPNOTSUPP, answer_status};
use super::cq::SoftCq;
use crate::completion::Armed;
use crate::device::SoftContext;

/// `IBV_CQ_ATTR_MODERATE`, the only attribute there is.
const ATTR_MODERATE: u32 = 1;

/// Asks for one event at the next completion, or the next failed one. Completions that are queued already raise none:
/// whoever arms polls once more before it sleeps. A queue without a channel is armed for nothing, as in hardware.
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    answer_status(|| {
        // SAFETY: NULL or a completion queue of this provider, by the verb's contract.
        let object = unsafe { SoftCq::of(cq.cast()) }?;
        // SAFETY: the queue keeps the context it was made with.
        let soft = unsafe { SoftContext::of(object.context()) }?;
        let wish = if solicited_only == 0 { Armed::Any } else { Armed::Solicited };
        soft.nic().control().cqs.get_mut(object.slot).ok_or(EINVAL)?.arm(wish);
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    answer_status(|| {
        // SAFETY: NULL or a completion queue of this provider, by the verb's contract.
        let object = unsafe { SoftCq::of(cq.cast()) }?;
        // SAFETY: NULL or the application's struct.
        let attr = unsafe { attr.as_ref() }.ok_or(EINVAL)?;
        // The kernel (ib_uverbs_ex_modify_cq): nothing to do is EINVAL, anything unknown EOPNOTSUPP.
        if attr.attr_mask == 0 {
            return Err(EINVAL);
        }
        if attr.attr_mask != ATTR_MODERATE {
            return Err(EOPNOTSUPP);
        }
        // SAFETY: the queue keeps the context it was made with.
        let soft = unsafe { SoftContext::of(object.context()) }?;
        let rules = &soft.nic().rules().completion;
        let (count, period_us) = (attr.moderate.cq_count, attr.moderate.cq_period);
        if count > rules.max_moderation_count || period_us > rules.max_moderation_period_us {
            return Err(EINVAL);
        }
        let mut state = soft.nic().control();
        state.cqs.get_mut(object.slot).ok_or(EINVAL)?.notice.moderate(count, period_us);
        // What waits already may be enough now.
        state.raise_waiting();
        Ok(())
    })
}

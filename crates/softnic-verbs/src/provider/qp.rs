//! Queue pairs: what the application holds, receives posted to plain ones, queries, changes, destruction.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ibverbs_sys::{
    ibv_context, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_rate_limit_attr,
    ibv_qp_state, ibv_recv_wr,
};
use softnic::errno::{EINVAL, EOPNOTSUPP, known_bits};
use softnic::objects::domains::release_domain;
use softnic::objects::queue_pairs::{self, AttributeChange, QueuePairKind, modify, remove};

use super::Object;
use super::answer::answer_status;
use super::qp_send::SendPoster;
use super::spin::Spin;
use super::wq::{ReceivePoster, post, refuse};
use crate::acknowledgements::acknowledgements;
use crate::soft_context::SoftContext;

/// Room behind `ibv_qp_ex` for the rest of `verbs_qp`, and for releases with more functions. All zero unless
/// `qp_wr` says that the queue pair is extended.
const SLACK_WORDS: usize = 16;

/// A queue pair.
#[repr(C)]
pub(crate) struct SoftQp {
    /// In a cell: the library writes the state to it.
    pub(crate) qp: UnsafeCell<ibv_qp_ex>,
    pub(crate) slack: [u64; SLACK_WORDS],
    pub(crate) context: *mut ibv_context,
    pub(crate) slot: u32,
    pub(crate) domain: u32,
    /// An `ibv_qp_state`, shared with the engine.
    pub(crate) state: Arc<AtomicU32>,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) signal_all: bool,
    /// The type is UD: it sends datagrams to others of this device.
    pub(crate) datagram: bool,
    /// The part that only plain queue pairs have.
    pub(crate) plain: Option<Plain>,
}

/// Both rings' application side.
pub(crate) struct Plain {
    pub(crate) receives: Spin<ReceivePoster>,
    pub(crate) sends: Spin<SendPoster>,
}

// SAFETY: `repr(C)` with a transparent cell of `ibv_qp_ex` first, which begins with `ibv_qp`; handed out by
// `into_native` only.
unsafe impl Object for SoftQp {
    type Native = ibv_qp;
}

impl SoftQp {
    pub(crate) const NO_SLACK: [u64; SLACK_WORDS] = [0; SLACK_WORDS];

    pub(crate) fn context(&self) -> *mut ibv_context {
        self.context
    }
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    request: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: NULL or a queue pair of this provider, by the verb's contract.
    let Ok(qp) = (unsafe { SoftQp::of(qp) }) else { return EINVAL.number() };
    // RSS queue pairs receive through their work queues; a queue pair in RESET forgets what is posted.
    let Some(plain) =
        qp.plain.as_ref().filter(|_| qp.state.load(Ordering::Relaxed) != ibv_qp_state::IBV_QPS_RESET)
    else {
        refuse(request, bad);
        return EINVAL.number();
    };
    post(&plain.receives, request, bad)
}

pub(crate) unsafe extern "C" fn query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    answer_status(|| {
        // SAFETY: NULL or a queue pair of this provider, by the verb's contract.
        let object = unsafe { SoftQp::of(qp) }?;
        // SAFETY: NULL or the application's struct.
        let attr = unsafe { attr.as_mut() }.ok_or(EINVAL)?;
        // SAFETY: NULL or the application's struct.
        let init = unsafe { init.as_mut() }.ok_or(EINVAL)?;
        if object.plain.is_none() {
            return Err(EOPNOTSUPP);
        }
        // SAFETY: the queue pair keeps the context it was made with.
        let soft = unsafe { SoftContext::of(object.context()) }?;
        let known = queue_pairs::query(&soft.nic().control(), object.slot)?;
        let current = object.state.load(Ordering::Relaxed);
        // SAFETY: the live handle; what is used of it here never changes.
        let native = unsafe { qp.read() };
        *attr = ibv_qp_attr { qp_state: current, cur_qp_state: current, cap: object.cap, ..known };
        *init = ibv_qp_init_attr {
            qp_context: native.qp_context,
            send_cq: native.send_cq,
            recv_cq: native.recv_cq,
            srq: std::ptr::null_mut(),
            cap: object.cap,
            qp_type: native.qp_type,
            sq_sig_all: c_int::from(object.signal_all),
        };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    answer_status(|| {
        // SAFETY: NULL or a queue pair of this provider, by the verb's contract.
        let object = unsafe { SoftQp::of(qp) }?;
        // SAFETY: the queue pair keeps the context it was made with.
        let soft = unsafe { SoftContext::of(object.context()) }?;
        let (slot, domain) = (object.slot, object.domain);
        let mut state = soft.nic().control();
        let removed = remove(&mut state, slot)?;
        let read = removed.events_read;
        // As in `destroy_wq`: the application's allocator is not called under the device's mutex, nor is it
        // waited for.
        drop(state);
        drop(removed);
        // SAFETY: `qp` is the live handle; its mutex and condition are initialised (all zero).
        unsafe { acknowledgements!(qp, ibv_qp, events_completed).wait(read) };
        // SAFETY: the library drops the handle; `object` is not used any more.
        drop(unsafe { SoftQp::take(qp) });
        release_domain(&mut soft.nic().control(), domain);
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    answer_status(|| {
        // SAFETY: NULL or a queue pair of this provider, by the verb's contract.
        let object = unsafe { SoftQp::of(qp) }?;
        // SAFETY: NULL or the application's struct.
        let attr = unsafe { attr.as_ref() }.ok_or(EINVAL)?;
        // SAFETY: the queue pair keeps the context it was made with.
        let soft = unsafe { SoftContext::of(object.context()) }?;
        let kind = QueuePairKind { is_rss: object.plain.is_none(), is_datagram: object.datagram };
        let mut state = soft.nic().control();
        let change = AttributeChange { attr, mask: mask.cast_unsigned(), burst_bytes: 0 };
        modify(soft.nic(), &mut state, object.slot, kind, &object.state, change)
    })
}

pub(crate) unsafe extern "C" fn modify_qp_rate_limit(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_rate_limit_attr,
) -> c_int {
    answer_status(|| {
        // SAFETY: NULL or a queue pair of this provider, by the verb's contract.
        let object = unsafe { SoftQp::of(qp) }?;
        // SAFETY: NULL or the application's struct.
        let attr = unsafe { attr.as_ref() }.ok_or(EINVAL)?;
        // SAFETY: the queue pair keeps the context it was made with.
        let soft = unsafe { SoftContext::of(object.context()) }?;
        known_bits(attr.comp_mask, 0, EINVAL)?;
        if object.plain.is_none() || object.datagram {
            return Err(EOPNOTSUPP);
        }
        // The packet's size is a hint for shaping by the packet; here every frame counts with its bytes.
        queue_pairs::set_rate(soft.nic(), object.slot, &object.state, attr.rate_limit, attr.max_burst_sz)
    })
}

//! The inlines that call an operation of the object itself or of its context, not of the extended one: posting and
//! polling.
//!
//! No ownership, no checks of arguments, errors as the C function gives them, as for the rest of [`super`].

use std::ffi::c_int;

use ibverbs_sys::{ibv_cq, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_wc, ibv_wq};

/// What posting to an object without that operation amounts to: the first request is the bad one.
#[cold]
fn nothing_posted<R>(first: *mut R, bad: &mut *mut R) -> c_int {
    *bad = first;
    libc::EOPNOTSUPP
}

/// `ibv_post_wq_recv`.
///
/// # Safety
/// `wq` is live and in RDY, no other thread posts to it, `wr` heads a NULL-terminated chain whose buffers stay
/// registered and untouched until they complete.
#[inline]
pub(crate) unsafe fn post_wq_recv(
    wq: *mut ibv_wq,
    wr: *mut ibv_recv_wr,
    bad: &mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: live by contract.
    match unsafe { (*wq).post_recv } {
        // SAFETY: forwarded contract.
        Some(call) => unsafe { call(wq, wr, bad) },
        None => nothing_posted(wr, bad),
    }
}

/// `ibv_post_recv`.
///
/// # Safety
/// As [`post_wq_recv`], for a queue pair at least in INIT.
#[inline]
pub(crate) unsafe fn post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: &mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: live by contract.
    let context = unsafe { (*qp).context };
    // SAFETY: the provider sets the queue pair's context, which outlives it.
    match unsafe { (*context).ops.post_recv } {
        // SAFETY: forwarded contract.
        Some(call) => unsafe { call(qp, wr, bad) },
        None => nothing_posted(wr, bad),
    }
}

/// `ibv_post_send`.
///
/// # Safety
/// `qp` is live and in RTS, no other thread posts to it, and the buffers of `wr` stay registered and unchanged
/// until the send completes.
#[inline]
pub(crate) unsafe fn post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: &mut *mut ibv_send_wr) -> c_int {
    // SAFETY: live by contract.
    let context = unsafe { (*qp).context };
    // SAFETY: the provider sets the queue pair's context, which outlives it.
    match unsafe { (*context).ops.post_send } {
        // SAFETY: forwarded contract.
        Some(call) => unsafe { call(qp, wr, bad) },
        None => nothing_posted(wr, bad),
    }
}

/// `ibv_poll_cq`.
///
/// # Safety
/// `cq` is live, no other thread uses it, `wc` has room for `count` completions.
#[inline]
pub(crate) unsafe fn poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: live by contract.
    let context = unsafe { (*cq).context };
    // SAFETY: the library sets the queue's context, which outlives it.
    match unsafe { (*context).ops.poll_cq } {
        // SAFETY: forwarded contract.
        Some(call) => unsafe { call(cq, count, wc) },
        None => -libc::EOPNOTSUPP,
    }
}

/// `ibv_req_notify_cq`.
///
/// # Safety
/// `cq` is live and no other thread uses it.
pub(crate) unsafe fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: live by contract.
    let context = unsafe { (*cq).context };
    // SAFETY: the library sets the queue's context, which outlives it.
    match unsafe { (*context).ops.req_notify_cq } {
        // SAFETY: forwarded contract.
        Some(call) => unsafe { call(cq, solicited_only) },
        None => libc::EOPNOTSUPP,
    }
}

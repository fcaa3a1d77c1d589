//! The provider's ops: what libibverbs calls, one file per family of objects.
//!
//! Every op checks its arguments as the kernel would and answers an errno; none trusts a length, a count or a state.
//! What C cannot let anyone check - that a handle is a live object of this provider - is libibverbs' own contract.
//! Objects that the application holds are boxes that begin with the library's struct and name their slot in `state`.

pub(crate) mod answer;
pub(crate) mod channel;
mod context;
mod counters;
mod cq;
mod cq_notify;
mod cq_poll;
mod cq_resize;
mod flow;
mod flow_attr;
mod mr;
mod pd;
mod qp;
mod qp_create;
mod qp_modify;
mod qp_rss;
mod qp_send;
mod qp_wr;
mod receive;
mod spin;
mod table;
mod wq;

use std::ffi::c_void;

use answer::{EINVAL, Verb};

/// An object that begins with a struct of libibverbs, so that a pointer to one is a pointer to the other.
///
/// # Safety
/// `Self` is `repr(C)`, or transparent, with `Native` (possibly in a cell) as its first member, and is only ever
/// handed out as a leaked `Box<Self>`.
pub(crate) unsafe trait Object: Sized {
    type Native;

    /// The object behind a handle.
    ///
    /// # Safety
    /// `native` is NULL or a live object of this provider of this kind.
    unsafe fn of<'a>(native: *mut Self::Native) -> Verb<&'a Self> {
        // SAFETY: by the contract of this function, and the layout by the contract of the trait.
        unsafe { native.cast::<Self>().as_ref() }.ok_or(EINVAL)
    }

    /// Hands the object to the application.
    fn into_native(self) -> *mut Self::Native {
        Box::into_raw(Box::new(self)).cast()
    }

    /// Takes the object back from the application.
    ///
    /// # Safety
    /// `native` is a live object of this provider of this kind, and is not used after this.
    unsafe fn take(native: *mut Self::Native) -> Box<Self> {
        // SAFETY: by the contract of this function it came from `into_native` and no reference to it is left.
        unsafe { Box::from_raw(native.cast::<Self>()) }
    }
}

/// The op that fills the member `name` of `struct verbs_context_ops`; NULL leaves the library's refusal in place.
pub(crate) fn op(name: &str) -> *const c_void {
    OPS.iter().find(|(known, _)| *known == name).map_or(std::ptr::null(), |(_, op)| op.0)
}

/// An op's address.
struct Op(*const c_void);

// SAFETY: the address of a function.
unsafe impl Sync for Op {}

macro_rules! ops {
    ($($name:literal => $function:path),* $(,)?) => {
        &[$(($name, Op($function as *const c_void))),*]
    };
}

static OPS: &[(&str, Op)] = ops![
    "alloc_parent_domain" => pd::alloc_parent_domain,
    "alloc_pd" => pd::alloc_pd,
    "alloc_td" => pd::alloc_td,
    "attach_counters_point_flow" => counters::attach_counters_point_flow,
    "create_counters" => counters::create_counters,
    "create_cq" => cq::create_cq,
    "create_cq_ex" => cq::create_cq_ex,
    "create_flow" => flow::create_flow,
    "create_qp" => qp_create::create_qp,
    "create_qp_ex" => qp_create::create_qp_ex,
    "create_rwq_ind_table" => table::create_rwq_ind_table,
    "create_wq" => wq::create_wq,
    "dealloc_pd" => pd::dealloc_pd,
    "dealloc_td" => pd::dealloc_td,
    "dereg_mr" => mr::dereg_mr,
    "destroy_counters" => counters::destroy_counters,
    "destroy_cq" => cq::destroy_cq,
    "destroy_flow" => flow::destroy_flow,
    "destroy_qp" => qp::destroy_qp,
    "destroy_rwq_ind_table" => table::destroy_rwq_ind_table,
    "destroy_wq" => wq::destroy_wq,
    "free_context" => crate::device::free_context,
    "modify_cq" => cq_notify::modify_cq,
    "modify_qp" => qp_modify::modify_qp,
    "modify_qp_rate_limit" => qp_modify::modify_qp_rate_limit,
    "modify_wq" => wq::modify_wq,
    "poll_cq" => cq_poll::poll_cq,
    "post_recv" => qp::post_recv,
    "post_send" => qp_send::post_send,
    "query_device_ex" => context::query_device_ex,
    "query_port" => context::query_port,
    "query_qp" => qp::query_qp,
    "query_rt_values" => context::query_rt_values,
    "read_counters" => counters::read_counters,
    "reg_mr" => mr::reg_mr,
    "req_notify_cq" => cq_notify::req_notify_cq,
    "rereg_mr" => mr::rereg_mr,
    "resize_cq" => cq_resize::resize_cq,
];
// Left to the library: `async_event` and `cq_event` do nothing; `query_ece`, `set_ece`, `attach_mcast`, `detach_mcast` and
// all of SRQs, XRC, address handles and memory windows refuse with EOPNOTSUPP, for no raw packet has a use for them;
// `query_qp_data_in_order` answers 0, for a completion is all that this device promises an order with.

#[cfg(test)]
mod tests;

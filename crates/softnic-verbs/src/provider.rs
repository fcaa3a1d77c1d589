//! The provider's ops: what libibverbs calls, one file per family of objects.
//!
//! Every op checks its arguments as the kernel would and returns an errno; none trusts a length, a count or a
//! state. What C cannot let anyone check - that a handle is an object of this provider - is libibverbs' own
//! contract; one that was destroyed is EINVAL (see `held`). Objects that the application holds are boxes that
//! begin with the library's struct and name their slot in `state`.

mod ah;
pub(crate) mod answer;
mod context;
mod counters;
pub(crate) mod cq;
mod flow;
mod held;
mod mr;
mod pd;
mod qp;
mod qp_create;
mod qp_send;
mod spin;
mod wq;

use std::ffi::c_void;
use std::ptr::NonNull;

use softnic::errno::Verb;

use held::Held;

/// An object that begins with a struct of libibverbs, so that a pointer to one is a pointer to the other.
///
/// # Safety
/// `Self` is `repr(C)`, or transparent, with `Native` (possibly in a cell) as its first member, and is only
/// ever handed out as a leaked `Box<Held<Self>>`.
pub(crate) unsafe trait Object: Sized {
    type Native;

    /// The object behind a handle; EINVAL if it was destroyed, see [`held`].
    ///
    /// # Safety
    /// `native` is NULL or an object of this provider of this kind that lives, or was destroyed and is kept.
    #[inline]
    unsafe fn of<'a>(native: *mut Self::Native) -> Verb<&'a Self> {
        // SAFETY: by the contract of this function, and the layout by the contract of the trait.
        unsafe { Held::find(native.cast::<Held<Self>>()) }
    }

    /// Hands the object to the application.
    fn into_native(self) -> *mut Self::Native {
        Box::into_raw(Held::boxed(self)).cast()
    }

    /// Takes the object back from the application: it is destroyed when the answer is dropped.
    ///
    /// # Safety
    /// `native` is a live object of this provider of this kind, and no reference to it is used after this.
    unsafe fn take(native: *mut Self::Native) -> Taken<Self> {
        // SAFETY: handles that live are not NULL.
        Taken(unsafe { NonNull::new_unchecked(native.cast()) })
    }
}

/// An object that the application gave back.
pub(crate) struct Taken<T>(NonNull<Held<T>>);

impl<T> Drop for Taken<T> {
    fn drop(&mut self) {
        // SAFETY: live and no longer referred to, by the contract of [`Object::take`].
        unsafe { Held::destroy(self.0) };
    }
}

/// The op that fills the member `name` of `struct verbs_context_ops`; NULL leaves the library's refusal in
/// place.
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
    "create_ah" => ah::create_ah,
    "create_counters" => counters::create_counters,
    "create_cq" => cq::create_cq,
    "create_cq_ex" => cq::create_cq_ex,
    "create_flow" => flow::create_flow,
    "create_qp" => qp_create::create_qp,
    "create_qp_ex" => qp_create::create_qp_ex,
    "create_rwq_ind_table" => wq::create_rwq_ind_table,
    "create_wq" => wq::create_wq,
    "dealloc_pd" => pd::dealloc_pd,
    "dealloc_td" => pd::dealloc_td,
    "dereg_mr" => mr::dereg_mr,
    "destroy_ah" => ah::destroy_ah,
    "destroy_counters" => counters::destroy_counters,
    "destroy_cq" => cq::destroy_cq,
    "destroy_flow" => flow::destroy_flow,
    "destroy_qp" => qp::destroy_qp,
    "destroy_rwq_ind_table" => wq::destroy_rwq_ind_table,
    "destroy_wq" => wq::destroy_wq,
    "free_context" => context::free_context,
    "modify_cq" => cq::modify_cq,
    "modify_qp" => qp::modify_qp,
    "modify_qp_rate_limit" => qp::modify_qp_rate_limit,
    "modify_wq" => wq::modify_wq,
    "poll_cq" => cq::poll_cq,
    "post_recv" => qp::post_recv,
    "post_send" => qp_send::post_send,
    "query_device_ex" => context::query_device_ex,
    "query_port" => context::query_port,
    "query_qp" => qp::query_qp,
    "query_rt_values" => context::query_rt_values,
    "read_counters" => counters::read_counters,
    "reg_mr" => mr::reg_mr,
    "req_notify_cq" => cq::req_notify_cq,
    "rereg_mr" => mr::rereg_mr,
    "resize_cq" => cq::resize_cq,
];
// Left to the library: `async_event` and `cq_event` do nothing; `query_ece`, `set_ece`, `attach_mcast`,
// `detach_mcast` and all of SRQs, XRC and memory windows refuse with EOPNOTSUPP, for no raw packet has a use
// for them; `query_qp_data_in_order` returns 0, for a completion is all that this device promises an order
// with.

#[cfg(test)]
mod tests;

//! The static inline functions of `infiniband/verbs.h`, which no shared library exports, in Rust.
//!
//! Called by every handle of this crate; never by anything outside it. Each function does what its namesake
//! in the header does and nothing else: no ownership, no checks of arguments, errors as the C function gives
//! them. `verbs_context` is laid out as in rdma-core v44, and later releases only add in front; it is only
//! ever touched behind the `sz` check.

use std::ffi::{c_int, c_void};
use std::mem::{offset_of, size_of};
use std::ptr::{self, NonNull};

use ibverbs_sys::*;

mod poll;
mod post;

pub(crate) use self::poll::{PollFunctions, Read};
pub(crate) use self::post::SendFunctions;

/// The word that `ibv_context.abi_compat` holds when the context is embedded in a `verbs_context`
/// (`__VERBS_ABI_IS_EXTENDED`, verbs.h).
const ABI_IS_EXTENDED: usize = usize::MAX;

/// An operation this crate never calls; it only keeps the others in their places.
type Unused = Option<unsafe extern "C" fn()>;

/// `struct verbs_context`, verbs.h. It grows at its front, so positions count from the end: a running library
/// that is older than this declaration lacks the first fields, a newer one has more before them.
#[repr(C)]
struct VerbsContext {
    query_port: Option<unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int>,
    advise_mr: Unused,
    alloc_null_mr: Unused,
    read_counters: Option<unsafe extern "C" fn(*mut ibv_counters, *mut u64, u32, u32) -> c_int>,
    attach_counters_point_flow:
        Option<unsafe extern "C" fn(*mut ibv_counters, *mut ibv_counter_attach_attr, *mut ibv_flow) -> c_int>,
    create_counters:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_counters_init_attr) -> *mut ibv_counters>,
    destroy_counters: Option<unsafe extern "C" fn(*mut ibv_counters) -> c_int>,
    reg_dm_mr: Unused,
    alloc_dm: Unused,
    free_dm: Unused,
    modify_flow_action_esp: Unused,
    destroy_flow_action: Option<unsafe extern "C" fn(*mut ibv_flow_action) -> c_int>,
    create_flow_action_esp:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_flow_action_esp_attr) -> *mut ibv_flow_action>,
    modify_qp_rate_limit: Unused,
    alloc_parent_domain:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_parent_domain_init_attr) -> *mut ibv_pd>,
    dealloc_td: Option<unsafe extern "C" fn(*mut ibv_td) -> c_int>,
    alloc_td: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_td_init_attr) -> *mut ibv_td>,
    modify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, *mut ibv_modify_cq_attr) -> c_int>,
    post_srq_ops: Unused,
    destroy_rwq_ind_table: Option<unsafe extern "C" fn(*mut ibv_rwq_ind_table) -> c_int>,
    create_rwq_ind_table: Option<
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_rwq_ind_table_init_attr) -> *mut ibv_rwq_ind_table,
    >,
    destroy_wq: Option<unsafe extern "C" fn(*mut ibv_wq) -> c_int>,
    modify_wq: Option<unsafe extern "C" fn(*mut ibv_wq, *mut ibv_wq_attr) -> c_int>,
    create_wq: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_wq_init_attr) -> *mut ibv_wq>,
    query_rt_values: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_values_ex) -> c_int>,
    create_cq_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex>,
    private: *mut c_void,
    query_device_ex: Option<
        unsafe extern "C" fn(
            *mut ibv_context,
            *const ibv_query_device_ex_input,
            *mut ibv_device_attr_ex,
            usize,
        ) -> c_int,
    >,
    destroy_flow: Option<unsafe extern "C" fn(*mut ibv_flow) -> c_int>,
    placeholder_2: Unused,
    create_flow: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_flow_attr) -> *mut ibv_flow>,
    placeholder_1: Unused,
    open_qp: Unused,
    create_qp_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp>,
    get_srq_num: Unused,
    create_srq_ex: Unused,
    open_xrcd: Unused,
    close_xrcd: Unused,
    placeholder_3: u64,
    /// Immediately before `context`: how many bytes of the whole the running library has.
    sz: usize,
    context: ibv_context,
}

// rdma-core v44 to v58 have the context there, by the C compiler; later releases have more fields in front.
const _: () = assert!(offset_of!(VerbsContext, context) == 320);
const _: () = assert!(offset_of!(VerbsContext, sz) + size_of::<usize>() == offset_of!(VerbsContext, context));

/// `verbs_get_ctx`: the extended context around `context`, or `None` for a context of the old ABI.
///
/// # Safety
/// `context` points to a live context from `ibv_open_device`.
unsafe fn extended(context: *mut ibv_context) -> Option<NonNull<VerbsContext>> {
    // SAFETY: live by this function's contract.
    let marker = unsafe { (*context).abi_compat };
    if marker as usize != ABI_IS_EXTENDED {
        return None;
    }
    // Wrapping, because an older library's allocation can begin after our declaration's first field.
    NonNull::new(context.cast::<u8>().wrapping_sub(offset_of!(VerbsContext, context)).cast())
}

/// `verbs_get_ctx_op`: the operation at `offset`, if the running library's structure reaches that far and has
/// one.
///
/// # Safety
/// `context` as for [`extended`]; `F` is the type of the field at `offset` of `VerbsContext`.
unsafe fn operation<F: Copy>(context: *mut ibv_context, offset: usize) -> Option<F> {
    // SAFETY: forwarded contract.
    let whole = unsafe { extended(context) }?.as_ptr();
    // SAFETY: `sz` lies immediately before every extended context, in every release; no reference is formed.
    let size = unsafe { (*whole).sz };
    if size < size_of::<VerbsContext>() - offset {
        return None;
    }
    let field = whole.cast::<u8>().wrapping_add(offset).cast::<Option<F>>();
    // SAFETY: by the check above, the library's structure contains this field; an `Option` of a function
    // pointer is a nullable C function pointer.
    unsafe { field.read() }
}

/// The operation `$name` of `$context`, typed by its field.
macro_rules! operation {
    ($context:expr, $name:ident) => {{
        // Never called: it names the field's function type for `operation`.
        fn typed<F: Copy>(_: fn(&VerbsContext) -> &Option<F>, found: Option<F>) -> Option<F> {
            found
        }
        // SAFETY: every function of this file requires a live context, and `typed` ties `F` to the field.
        let found = unsafe { operation($context, offset_of!(VerbsContext, $name)) };
        typed(|v| &v.$name, found)
    }};
}

fn no_such_operation<T>() -> *mut T {
    // SAFETY: the location of this thread's errno is always valid.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above; the pointer is this thread's own.
    unsafe { errno.write(libc::EOPNOTSUPP) };
    ptr::null_mut()
}

/// `ibv_query_port`.
///
/// # Safety
/// `context` is live, `attr` writable.
pub(crate) unsafe fn query_port(context: *mut ibv_context, port: u8, attr: &mut ibv_port_attr) -> c_int {
    match operation!(context, query_port) {
        // SAFETY: live context; the size given is the size of `attr`.
        Some(call) => unsafe { call(context, port, attr, size_of::<ibv_port_attr>()) },
        None => {
            *attr = ibv_port_attr::default();
            // SAFETY: the exported symbol fills the part of the structure that the first ABI had.
            unsafe { ibv_query_port(context, port, ptr::from_mut(attr).cast()) }
        }
    }
}

/// `ibv_query_device_ex`, including its fall-back to `ibv_query_device`.
///
/// # Safety
/// `context` is live.
pub(crate) unsafe fn query_device_ex(context: *mut ibv_context, attr: &mut ibv_device_attr_ex) -> c_int {
    if let Some(call) = operation!(context, query_device_ex) {
        // SAFETY: live context; a NULL input is allowed by the manual page; the size is that of `attr`.
        let rc = unsafe { call(context, ptr::null(), attr, size_of::<ibv_device_attr_ex>()) };
        if rc != libc::EOPNOTSUPP && rc != libc::ENOSYS {
            return rc;
        }
    }
    *attr = ibv_device_attr_ex::default();
    // SAFETY: live context, writable structure.
    unsafe { ibv_query_device(context, &mut attr.orig_attr) }
}

/// Defines a function that returns an object or NULL with `errno`, as the header's creating inlines do.
macro_rules! creating {
    ($(#[$doc:meta])* $name:ident as $op:ident($context:ident $(, $arg:ident: $ty:ty)*) -> $out:ty) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// The context is live; every pointer inside the attributes is what the manual page asks for.
        pub(crate) unsafe fn $name($context: *mut ibv_context $(, $arg: $ty)*) -> *mut $out {
            match operation!($context, $op) {
                // SAFETY: forwarded contract.
                Some(call) => unsafe { call($context $(, $arg)*) },
                None => no_such_operation(),
            }
        }
    };
}

/// Defines a function that returns 0 or an errno value, as the header's inlines on an object do.
macro_rules! acting {
    ($(#[$doc:meta])* $name:ident as $op:ident($object:ident: $ty:ty $(, $arg:ident: $argty:ty)*)) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// The context is live and the object is one of its own.
        pub(crate) unsafe fn $name(context: *mut ibv_context, $object: $ty $(, $arg: $argty)*) -> c_int {
            match operation!(context, $op) {
                // SAFETY: forwarded contract.
                Some(call) => unsafe { call($object $(, $arg)*) },
                None => libc::EOPNOTSUPP,
            }
        }
    };
}

creating!(/// `ibv_alloc_td`.
    alloc_td as alloc_td(context, attr: *mut ibv_td_init_attr) -> ibv_td);
creating!(/// `ibv_alloc_parent_domain`.
    alloc_parent_domain as alloc_parent_domain(context, attr: *mut ibv_parent_domain_init_attr) -> ibv_pd);
creating!(/// `ibv_create_cq_ex`.
    create_cq_ex as create_cq_ex(context, attr: *mut ibv_cq_init_attr_ex) -> ibv_cq_ex);
creating!(/// `ibv_create_rwq_ind_table`.
    create_rwq_ind_table as create_rwq_ind_table(context, attr: *mut ibv_rwq_ind_table_init_attr)
    -> ibv_rwq_ind_table);
creating!(/// `ibv_create_counters`.
    create_counters as create_counters(context, attr: *mut ibv_counters_init_attr) -> ibv_counters);
creating!(create_qp_beyond as create_qp_ex(context, attr: *mut ibv_qp_init_attr_ex) -> ibv_qp);
creating!(/// `ibv_create_flow_action_esp`.
    create_flow_action_esp as create_flow_action_esp(context, attr: *mut ibv_flow_action_esp_attr)
    -> ibv_flow_action);
creating!(create_wq_only as create_wq(context, attr: *mut ibv_wq_init_attr) -> ibv_wq);

acting!(/// `ibv_dealloc_td`.
    dealloc_td as dealloc_td(td: *mut ibv_td));
acting!(/// `ibv_modify_wq`.
    modify_wq as modify_wq(wq: *mut ibv_wq, attr: *mut ibv_wq_attr));
acting!(/// `ibv_destroy_wq`.
    destroy_wq as destroy_wq(wq: *mut ibv_wq));
acting!(/// `ibv_destroy_rwq_ind_table`.
    destroy_rwq_ind_table as destroy_rwq_ind_table(table: *mut ibv_rwq_ind_table));
acting!(/// `ibv_destroy_flow`.
    destroy_flow as destroy_flow(flow: *mut ibv_flow));
acting!(/// `ibv_destroy_flow_action`.
    destroy_flow_action as destroy_flow_action(action: *mut ibv_flow_action));
acting!(/// `ibv_modify_cq`.
    modify_cq as modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr));
acting!(/// `ibv_destroy_counters`.
    destroy_counters as destroy_counters(counters: *mut ibv_counters));
acting!(/// `ibv_attach_counters_point_flow`.
    attach_counters_point_flow as attach_counters_point_flow(
    counters: *mut ibv_counters, attr: *mut ibv_counter_attach_attr, flow: *mut ibv_flow));
acting!(/// `ibv_read_counters`.
    read_counters as read_counters(counters: *mut ibv_counters, values: *mut u64, count: u32, flags: u32));

/// `ibv_query_rt_values_ex`.
///
/// # Safety
/// `context` is live.
pub(crate) unsafe fn query_rt_values_ex(context: *mut ibv_context, values: &mut ibv_values_ex) -> c_int {
    match operation!(context, query_rt_values) {
        // SAFETY: live context, writable structure.
        Some(call) => unsafe { call(context, values) },
        None => libc::EOPNOTSUPP,
    }
}

/// `ibv_create_wq`, which also initialises what the library keeps in the structure the provider made.
///
/// # Safety
/// As for the creating functions above.
pub(crate) unsafe fn create_wq(context: *mut ibv_context, attr: *mut ibv_wq_init_attr) -> *mut ibv_wq {
    // SAFETY: forwarded contract.
    let wq = unsafe { create_wq_only(context, attr) };
    if wq.is_null() {
        return wq;
    }
    // SAFETY: `attr` is readable by contract.
    let wq_context = unsafe { (*attr).wq_context };
    // SAFETY: `wq` is fresh and not shared yet.
    unsafe { (*wq).wq_context = wq_context };
    // SAFETY: as above.
    unsafe { (*wq).events_completed = 0 };
    // SAFETY: as above; bindgen's mutex and libc's are the same C type.
    let mutex = unsafe { &raw mut (*wq).mutex }.cast();
    // SAFETY: fresh memory of the right type; NULL attributes are the defaults.
    unsafe { libc::pthread_mutex_init(mutex, ptr::null()) };
    // SAFETY: as for the mutex.
    let cond = unsafe { &raw mut (*wq).cond }.cast();
    // SAFETY: as for the mutex.
    unsafe { libc::pthread_cond_init(cond, ptr::null()) };
    wq
}

/// `ibv_create_qp_ex`, which is `ibv_create_qp` if `comp_mask` has the protection domain only.
///
/// # Safety
/// As for the creating functions above.
pub(crate) unsafe fn create_qp_ex(context: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    // SAFETY: `attr` is readable by contract.
    let mask = unsafe { (*attr).comp_mask };
    if mask != IBV_QP_INIT_ATTR_PD {
        // SAFETY: forwarded contract.
        return unsafe { create_qp_beyond(context, attr) };
    }
    // SAFETY: as above.
    let pd = unsafe { (*attr).pd };
    // SAFETY: forwarded contract; both structures begin alike (verbs.h).
    unsafe { ibv_create_qp(pd, attr.cast()) }
}

/// `ibv_create_flow`.
///
/// # Safety
/// `context` is live, `qp` one of its queue pairs, `attr` heads a well-formed block of specs.
pub(crate) unsafe fn create_flow(
    context: *mut ibv_context,
    qp: *mut ibv_qp,
    attr: *mut ibv_flow_attr,
) -> *mut ibv_flow {
    match operation!(context, create_flow) {
        // SAFETY: forwarded contract.
        Some(call) => unsafe { call(qp, attr) },
        None => no_such_operation(),
    }
}

#[cfg(test)]
mod tests;

/// The result of posting to an object without that operation: the first request is the bad one.
#[cold]
fn nothing_posted<R>(first: *mut R, bad: &mut *mut R) -> c_int {
    *bad = first;
    libc::EOPNOTSUPP
}

/// `ibv_post_wq_recv`.
///
/// # Safety
/// `wq` is live and in RDY, no other thread posts to it, `wr` heads a NULL-terminated chain whose buffers
/// stay registered and untouched until they complete.
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
/// `qp` is live and in RTS, no other thread posts to it, and the buffers of `wr` stay registered and
/// unchanged until the send completes.
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
/// `cq` is live, no other thread uses it, `wc` is valid for writes of `count` completions.
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

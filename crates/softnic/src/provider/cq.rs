//! Completion queues: made and destroyed here, polled in `cq_poll`.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ibverbs_sys::{
    IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN, IBV_CREATE_CQ_ATTR_SINGLE_THREADED, IBV_WC_EX_WITH_BYTE_LEN,
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, IBV_WC_EX_WITH_CVLAN,
    IBV_WC_EX_WITH_DLID_PATH_BITS, IBV_WC_EX_WITH_FLOW_TAG, IBV_WC_EX_WITH_IMM, IBV_WC_EX_WITH_QP_NUM,
    IBV_WC_EX_WITH_SL, IBV_WC_EX_WITH_SLID, IBV_WC_EX_WITH_SRC_QP, ibv_comp_channel, ibv_context, ibv_cq,
    ibv_cq_ex, ibv_cq_init_attr_ex,
};

use super::Object;
use super::answer::{EBUSY, EINVAL, ENOMEM, EOPNOTSUPP, Verb, answer_handle, answer_status, known_bits};
use super::cq_poll::{self, Poller};
use super::pd::{SoftPd, make_ring, release_domain, use_domain};
use super::spin::Spin;
use crate::device::SoftContext;
use crate::events::acknowledgements;
use crate::limits::MAX_CQE;
use crate::state::{CqState, State};
use crate::work::Cqe;

/// `IBV_CQ_INIT_ATTR_MASK_FLAGS` and `IBV_CQ_INIT_ATTR_MASK_PD`.
const ATTR_FLAGS: u32 = 1;
const ATTR_PD: u32 = 2;

/// The completion fields that a raw packet device can tell. The InfiniBand ones read as 0.
const FIELDS: u32 = IBV_WC_EX_WITH_BYTE_LEN
    | IBV_WC_EX_WITH_IMM
    | IBV_WC_EX_WITH_QP_NUM
    | IBV_WC_EX_WITH_SRC_QP
    | IBV_WC_EX_WITH_SLID
    | IBV_WC_EX_WITH_SL
    | IBV_WC_EX_WITH_DLID_PATH_BITS
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
    | IBV_WC_EX_WITH_CVLAN
    | IBV_WC_EX_WITH_FLOW_TAG
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

/// A completion queue.
#[repr(C)]
pub(crate) struct SoftCq {
    /// In a cell: the library and the poller write to it through the handle.
    cq: UnsafeCell<ibv_cq_ex>,
    context: *mut ibv_context,
    pub(crate) slot: u32,
    pub(crate) poller: Spin<Poller>,
    /// The parent domain whose allocator gave the memory.
    domain: Option<u32>,
}

// SAFETY: `repr(C)` with a transparent cell of `ibv_cq_ex` first, of which `ibv_cq` is a prefix; handed out by
// `into_native` only.
unsafe impl Object for SoftCq {
    type Native = ibv_cq_ex;
}

impl SoftCq {
    pub(crate) fn context(&self) -> *mut ibv_context {
        self.context
    }

    /// The library's struct.
    #[inline]
    pub(crate) fn native(&self) -> *mut ibv_cq_ex {
        self.cq.get()
    }
}

/// What is asked of a new queue.
struct Request<'a> {
    entries: u32,
    fields: u32,
    ignore_overrun: bool,
    single_threaded: bool,
    domain: Option<&'a SoftPd>,
    /// Plain queues report flags in every completion, so checksums are verified from the start.
    checksums: bool,
}

pub(crate) unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    entries: c_int,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    answer_handle(|| {
        let entries = u32::try_from(entries).map_err(|_| EINVAL)?;
        check_channel(channel, u32::try_from(vector).map_err(|_| EINVAL)?)?;
        let request = Request {
            entries,
            fields: 0,
            ignore_overrun: false,
            single_threaded: false,
            domain: None,
            checksums: true,
        };
        Ok(create(context, &request)?.cast())
    })
}

pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    answer_handle(|| {
        // SAFETY: NULL or the application's struct.
        let attr = unsafe { attr.as_ref() }.ok_or(EINVAL)?;
        known_bits(attr.comp_mask, ATTR_FLAGS | ATTR_PD, EINVAL)?;
        check_channel(attr.channel, attr.comp_vector)?;
        let fields = u32::try_from(attr.wc_flags).map_err(|_| EOPNOTSUPP)?;
        known_bits(fields, FIELDS, EOPNOTSUPP)?;
        let flags = if attr.comp_mask & ATTR_FLAGS == 0 { 0 } else { attr.flags };
        known_bits(flags, IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN, EINVAL)?;
        let domain = if attr.comp_mask & ATTR_PD == 0 {
            None
        } else {
            // SAFETY: NULL or a domain of this provider, by the verb's contract.
            Some(unsafe { SoftPd::of(attr.parent_domain) }?)
        };
        let request = Request {
            entries: attr.cqe,
            fields,
            ignore_overrun: flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN != 0,
            single_threaded: flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0,
            domain,
            checksums: false,
        };
        create(context, &request)
    })
}

/// There are no completion channels (`ibv_create_comp_channel` fails in the library) and one vector.
fn check_channel(channel: *mut ibv_comp_channel, vector: u32) -> Verb<()> {
    if channel.is_null() && vector == 0 { Ok(()) } else { Err(EINVAL) }
}

fn create(context: *mut ibv_context, request: &Request<'_>) -> Verb<*mut ibv_cq_ex> {
    // SAFETY: the library passes a live context of this provider.
    let soft = unsafe { SoftContext::of(context) }?;
    if !(1..=MAX_CQE).contains(&request.entries) {
        return Err(EINVAL);
    }
    if request.domain.is_some_and(|domain| domain.context() != context) {
        return Err(EINVAL);
    }
    let resources = &soft.nic().rules().domain.resources;
    let (producer, consumer) =
        make_ring(resources, request.domain, request.entries, size_of::<Cqe>(), resources.completion_queue)?;
    let wants_checksums = Arc::new(AtomicBool::new(request.checksums));
    let entries = c_int::try_from(producer.limit()).map_err(|_| EINVAL)?;
    let mut native = ibv_cq_ex { context, cqe: entries, ..ibv_cq_ex::default() };
    cq_poll::fill(&mut native, request.fields);
    let cq = Box::new(SoftCq {
        cq: UnsafeCell::new(native),
        context,
        slot: 0,
        poller: Spin::new(Poller::new(consumer, Arc::clone(&wants_checksums)), request.single_threaded),
        domain: request.domain.map(|domain| domain.slot),
    });
    let engine_side = CqState {
        owner: soft.slot,
        users: 0,
        producer,
        ignore_overrun: request.ignore_overrun,
        failed: false,
        unpublished: false,
        wants_checksums,
        native: (&raw const *cq).addr() as u64,
        events: 0,
    };
    register(&mut soft.nic().control(), engine_side, cq)
}

fn register(state: &mut State, engine_side: CqState, mut cq: Box<SoftCq>) -> Verb<*mut ibv_cq_ex> {
    let slot = state.insert_cq(engine_side).ok_or(ENOMEM)?;
    if let Some(domain) = cq.domain {
        use_domain(state, domain)?;
    }
    cq.slot = slot;
    cq.cq.get_mut().handle = slot;
    Ok(Box::into_raw(cq).cast())
}

pub(crate) unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    answer_status(|| {
        // SAFETY: NULL or a completion queue of this provider, by the verb's contract.
        let object = unsafe { SoftCq::of(cq.cast()) }?;
        // SAFETY: the queue keeps the context it was made with.
        let soft = unsafe { SoftContext::of(object.context) }?;
        let (slot, domain) = (object.slot, object.domain);
        let mut state = soft.nic().control();
        if state.cqs.get(slot).ok_or(EINVAL)?.users != 0 {
            return Err(EBUSY);
        }
        let removed = state.cqs.remove(slot).ok_or(EINVAL)?;
        let read = state.retract_events(removed.owner, removed.native, removed.events);
        // As in `destroy_wq`: the application's allocator is not called under the device's mutex, nor is it waited for.
        drop(state);
        drop(removed);
        // SAFETY: `cq` is the live handle, whose mutex and condition the library initialised.
        unsafe { acknowledgements!(cq, ibv_cq, async_events_completed).wait(read) };
        // SAFETY: the library drops the handle; `object` is not used any more.
        drop(unsafe { SoftCq::take(cq.cast()) });
        if let Some(domain) = domain {
            release_domain(&mut soft.nic().control(), domain);
        }
        Ok(())
    })
}

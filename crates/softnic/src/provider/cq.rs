//! Completion queues: made and destroyed here, polled in `cq_poll`, armed in `cq_notify`, resized in `cq_resize`.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ibverbs_sys::{
    IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN, IBV_CREATE_CQ_ATTR_SINGLE_THREADED, ibv_comp_channel, ibv_context,
    ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex,
};

use super::Object;
use super::answer::{EBUSY, EINVAL, ENOMEM, Verb, answer_handle, answer_status};
use super::channel;
use super::cq_poll::{self, Poller};
use super::held::Held;
use super::pd::{SoftPd, make_ring, release_domain, use_domain};
use super::spin::Spin;
use crate::completion::{CqState, Notice};
use crate::device::SoftContext;
use crate::events::acknowledgements;
use crate::personality::CompletionRules;
use crate::state::State;
use crate::work::Cqe;

/// `IBV_CQ_INIT_ATTR_MASK_FLAGS` and `IBV_CQ_INIT_ATTR_MASK_PD`.
const ATTR_FLAGS: u32 = 1;
const ATTR_PD: u32 = 2;

/// A completion queue.
#[repr(C)]
pub(crate) struct SoftCq {
    /// In a cell: the library and the poller write to it through the handle.
    cq: UnsafeCell<ibv_cq_ex>,
    context: *mut ibv_context,
    pub(crate) slot: u32,
    pub(crate) poller: Spin<Poller>,
    /// The parent domain whose allocator gives the memory. It is in use as long as the queue is.
    domain: Option<NonNull<SoftPd>>,
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

    pub(crate) fn domain(&self) -> Option<&SoftPd> {
        // SAFETY: domains in use are not deallocated, and nothing in them changes.
        self.domain.map(|domain| unsafe { domain.as_ref() })
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
    channel: *mut ibv_comp_channel,
    vector: u32,
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
        let request = Request {
            entries: u32::try_from(entries).map_err(|_| EINVAL)?,
            fields: 0,
            ignore_overrun: false,
            single_threaded: false,
            domain: None,
            channel,
            vector: u32::try_from(vector).map_err(|_| EINVAL)?,
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
        // SAFETY: the library passes a live context of this provider.
        let rules = &unsafe { SoftContext::of(context) }?.nic().rules().completion;
        rules.attributes.check(attr.comp_mask)?;
        let flags = if attr.comp_mask & ATTR_FLAGS == 0 { 0 } else { attr.flags };
        rules.flags.check(flags)?;
        let fields = u32::try_from(attr.wc_flags).map_err(|_| rules.fields.refusal)?;
        rules.fields.check(fields)?;
        if rules.exclusive_fields.is_some_and(|(some, others)| fields & some != 0 && fields & others != 0) {
            return Err(rules.fields.refusal);
        }
        let domain = if attr.comp_mask & ATTR_PD == 0 {
            None
        } else {
            // SAFETY: NULL or a domain of this provider, by the verb's contract.
            let domain = unsafe { SoftPd::of(attr.parent_domain) }?;
            if domain.context() != context || !(domain.is_parent() || rules.plain_domain) {
                return Err(EINVAL);
            }
            Some(domain)
        };
        let request = Request {
            entries: attr.cqe,
            fields,
            ignore_overrun: flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN != 0,
            // A thread domain promises one thread as the flag does (ibv_alloc_td(3)).
            single_threaded: flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0
                || domain.is_some_and(SoftPd::single_threaded),
            domain,
            channel: attr.channel,
            vector: attr.comp_vector,
            checksums: false,
        };
        create(context, &request)
    })
}

/// The entries that a queue gets when `asked` are asked for.
pub(super) fn entries(rules: &CompletionRules, asked: u32) -> Verb<u32> {
    if !(1..=rules.max_entries).contains(&asked) {
        return Err(EINVAL);
    }
    Ok(if rules.rounds_up { (asked + 1).next_power_of_two() - 1 } else { asked })
}

fn create(context: *mut ibv_context, request: &Request<'_>) -> Verb<*mut ibv_cq_ex> {
    // SAFETY: the library passes a live context of this provider.
    let soft = unsafe { SoftContext::of(context) }?;
    let rules = soft.nic().rules();
    let wanted = entries(&rules.completion, request.entries)?;
    if request.vector >= rules.completion.vectors {
        return Err(EINVAL);
    }
    // Looked up before memory is asked for, and again, with the queue, when it is registered.
    channel::find(&soft.nic().control(), soft.slot, request.channel)?;
    let resources = &rules.domain.resources;
    let (producer, consumer) =
        make_ring(resources, request.domain, wanted, size_of::<Cqe>(), resources.completion_queue)?;
    let wants_checksums = Arc::new(AtomicBool::new(request.checksums));
    let cqe = c_int::try_from(producer.limit()).map_err(|_| EINVAL)?;
    let mut native = ibv_cq_ex { context, cqe, ..ibv_cq_ex::default() };
    cq_poll::fill(&mut native, request.fields);
    let poller = Poller::new(consumer, Arc::clone(&wants_checksums), &rules.clock);
    let cq = Held::boxed(SoftCq {
        cq: UnsafeCell::new(native),
        context,
        slot: 0,
        poller: Spin::new(poller, request.single_threaded),
        domain: request.domain.map(NonNull::from),
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
        notice: Notice::default(),
    };
    register(&mut soft.nic().control(), engine_side, cq, request.channel)
}

fn register(
    state: &mut State,
    mut engine_side: CqState,
    mut cq: Box<Held<SoftCq>>,
    channel: *mut ibv_comp_channel,
) -> Verb<*mut ibv_cq_ex> {
    let channel = channel::find(state, engine_side.owner, channel)?;
    engine_side.notice = Notice::on(channel);
    if let Some(domain) = cq.domain() {
        // The allocator, which was just called, is the application's code.
        state.domains.get(domain.slot).ok_or(EINVAL)?;
    }
    let slot = state.insert_cq(engine_side).ok_or(ENOMEM)?;
    if let Some(channel) = channel.and_then(|slot| state.channels.get_mut(slot)) {
        channel.users += 1;
    }
    if let Some(domain) = cq.domain() {
        use_domain(state, domain.slot)?;
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
        let (slot, domain) = (object.slot, object.domain().map(|domain| domain.slot));
        let mut state = soft.nic().control();
        if state.cqs.get(slot).ok_or(EINVAL)?.users != 0 {
            return Err(EBUSY);
        }
        let removed = state.remove_cq(slot).ok_or(EINVAL)?;
        let read = state.retract_events(removed.owner, removed.native, removed.events);
        // SAFETY: the live handle; the library set the channel when it was made.
        let channel = unsafe { (*cq).channel };
        // SAFETY: a channel, if there is one, outlives its queues (ibv_destroy_comp_channel(3)).
        let read_completions = unsafe { completion_events_read(&state, &removed, channel) };
        // As in `destroy_wq`: the application's allocator is not called under the device's mutex, nor is it waited for.
        drop(state);
        drop(removed);
        // SAFETY: `cq` is the live handle, whose mutex and condition the library initialised.
        unsafe { acknowledgements!(cq, ibv_cq, async_events_completed).wait(read) };
        // SAFETY: as above.
        unsafe { acknowledgements!(cq, ibv_cq, comp_events_completed).wait(read_completions) };
        // SAFETY: the library drops the handle; `object` is not used any more.
        drop(unsafe { SoftCq::take(cq.cast()) });
        if let Some(domain) = domain {
            release_domain(&mut soft.nic().control(), domain);
        }
        Ok(())
    })
}

/// How many completion events of a queue the application has read; the others are taken back.
///
/// # Safety
/// `channel` is NULL or the live channel of the queue.
unsafe fn completion_events_read(state: &State, cq: &CqState, channel: *const ibv_comp_channel) -> u32 {
    let entry = cq.notice.channel.and_then(|slot| state.channels.get(slot));
    let Some(entry) = entry.filter(|entry| cq.notice.events != 0 && entry.native == channel.addr() as u64)
    else {
        return 0;
    };
    // SAFETY: by the contract of this function.
    cq.notice.events.saturating_sub(unsafe { channel::retract(entry, channel, cq.native) })
}

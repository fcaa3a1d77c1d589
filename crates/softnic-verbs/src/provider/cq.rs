//! Completion queues and their channels: made, armed, resized and destroyed here, polled in `poll`.

mod poll;

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ibverbs_sys::{
    IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN, IBV_CREATE_CQ_ATTR_SINGLE_THREADED, ibv_comp_channel, ibv_context,
    ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_modify_cq_attr,
};
use softnic::Nic;
use softnic::errno::{EINVAL, ENOMEM, Verb};
use softnic::objects::State;
use softnic::objects::channels::{self, CompletionEvents};
use softnic::objects::completion_queues::{self, OwnCompletionQueue, RemovedCompletionQueue, Wish};
use softnic::objects::domains::release_domain;
use softnic::personality::CompletionRules;
use softnic::work::Cqe;

use self::poll::{Cursor, fill};
pub(crate) use self::poll::{Poller, poll_cq};
use super::Object;
use super::answer::{answer_handle, answer_status};
use super::held::Held;
use super::pd::{SoftPd, make_ring};
use super::spin::Spin;
use crate::acknowledgements::acknowledgements;
use crate::soft_context::SoftContext;

/// `IBV_CQ_INIT_ATTR_MASK_FLAGS` and `IBV_CQ_INIT_ATTR_MASK_PD`.
const ATTR_FLAGS: u32 = 1;
const ATTR_PD: u32 = 2;

/// A completion queue.
#[repr(C)]
pub(crate) struct SoftCq {
    /// In a cell: the library and the poller write to it through the handle.
    cq: UnsafeCell<ibv_cq_ex>,
    /// Beside the library's struct, where a poll finds it without looking at anything else.
    cursor: UnsafeCell<Cursor>,
    context: *mut ibv_context,
    pub(crate) slot: u32,
    pub(crate) poller: Spin<Poller>,
    /// Arms it.
    wish: Wish,
    /// The parent domain whose allocator gives the memory. It is in use as long as the queue is.
    domain: Option<NonNull<SoftPd>>,
}

// SAFETY: `repr(C)` with a transparent cell of `ibv_cq_ex` first, of which `ibv_cq` is a prefix; handed out
// by `into_native` only.
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

    /// Has the engine make a pass, if polls drive it; returns whether the queue may have something after it.
    #[inline]
    fn drive_engine(&self) -> bool {
        // SAFETY: the queue keeps the context it was made with.
        unsafe { SoftContext::of(self.context) }.is_ok_and(|soft| soft.nic().pass_inline())
    }

    /// The library's struct.
    #[inline]
    pub(crate) fn native(&self) -> *mut ibv_cq_ex {
        self.cq.get()
    }

    /// The cursor of the queue behind a handle, whose mark is not looked at: a queue that was destroyed and
    /// is kept has a cursor without completions.
    ///
    /// # Safety
    /// `cq` is a queue of this provider that lives, or was destroyed and is kept, and the caller is the one
    /// who polls it.
    #[inline]
    unsafe fn cursor<'a>(cq: *mut ibv_cq_ex) -> &'a mut Cursor {
        let object = cq.cast::<Self>();
        // SAFETY: by the contract, the object is there.
        let cursor = unsafe { &raw const (*object).cursor };
        // SAFETY: as above, and the cursor has no other user.
        unsafe { &mut *UnsafeCell::raw_get(cursor) }
    }
}

/// A request for a new queue.
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
        let rules = &unsafe { SoftContext::of(context) }?.nic().object_rules().completion;
        rules.attributes.check(attr.comp_mask)?;
        let flags = if attr.comp_mask & ATTR_FLAGS == 0 { 0 } else { attr.flags };
        rules.flags.check(flags)?;
        let fields = rules.check_fields(attr.wc_flags)?;
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

/// The completions that a queue of so many entries holds.
fn held(rules: &CompletionRules, entries: u32) -> u32 {
    entries + u32::from(rules.has_one_spare_entry)
}

fn create(context: *mut ibv_context, request: &Request<'_>) -> Verb<*mut ibv_cq_ex> {
    // SAFETY: the library passes a live context of this provider.
    let soft = unsafe { SoftContext::of(context) }?;
    let rules = soft.nic().object_rules();
    let wanted = entries(&rules.completion, request.entries)?;
    if request.vector >= rules.completion.vectors {
        return Err(EINVAL);
    }
    // Looked up before memory is asked for, and again, with the queue, when it is registered.
    find(&soft.nic().control(), soft.slot, request.channel)?;
    let completion = &rules.completion;
    let resources = &rules.domain.resources;
    let refusal = rules.domain.allocator_refusal;
    let held = held(completion, wanted);
    let resource = resources.completion_queue;
    let (producer, consumer) =
        make_ring(resources, request.domain, held, size_of::<Cqe>(), resource, refusal)?;
    let wants_checksums = Arc::new(AtomicBool::new(request.checksums));
    let cqe = c_int::try_from(wanted).map_err(|_| EINVAL)?;
    let mut native = ibv_cq_ex { context, cqe, ..ibv_cq_ex::default() };
    fill(&mut native, request.fields, completion);
    let poller = Poller::new(consumer, Arc::clone(&wants_checksums), soft.nic());
    let wish = Wish::default();
    let cq = Held::boxed(SoftCq {
        cq: UnsafeCell::new(native),
        cursor: UnsafeCell::new(Cursor::NONE),
        context,
        slot: 0,
        poller: Spin::new(poller, request.single_threaded),
        wish: wish.clone(),
        domain: request.domain.map(NonNull::from),
    });
    let queue = OwnCompletionQueue {
        owner: soft.slot,
        producer,
        vector: request.vector,
        ignore_overrun: request.ignore_overrun,
        wants_checksums,
        wish,
        channel: None,
        domain: request.domain.map(|domain| domain.slot),
        native: (&raw const *cq).addr() as u64,
    };
    register(soft.nic(), queue, cq, request.channel)
}

fn register(
    nic: &Nic,
    mut queue: OwnCompletionQueue,
    mut cq: Box<Held<SoftCq>>,
    channel: *mut ibv_comp_channel,
) -> Verb<*mut ibv_cq_ex> {
    let mut state = nic.control();
    queue.channel = find(&state, queue.owner, channel)?;
    let slot = completion_queues::insert(nic, &mut state, queue)?;
    drop(state);
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
        let removed = completion_queues::remove(&mut state, slot)?;
        let read = removed.events_read;
        // SAFETY: the live handle; the library set the channel when it was made.
        let channel = unsafe { (*cq).channel };
        // SAFETY: a channel, if there is one, outlives its queues (ibv_destroy_comp_channel(3)).
        let read_completions = unsafe { completion_events_read(&state, &removed, channel) };
        // As in `destroy_wq`: the application's allocator is not called under the device's mutex, nor is it
        // waited for.
        drop(state);
        drop(removed);
        // SAFETY: `cq` is the live handle, whose mutex and condition the library initialised.
        unsafe { acknowledgements!(cq, ibv_cq, async_events_completed).wait(read) };
        // SAFETY: as above.
        unsafe { acknowledgements!(cq, ibv_cq, comp_events_completed).wait(read_completions) };
        // SAFETY: the live handle; no thread polls a queue that is destroyed, by the verb's contract.
        *unsafe { SoftCq::cursor(cq.cast()) } = Cursor::NONE;
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
unsafe fn completion_events_read(
    state: &State,
    cq: &RemovedCompletionQueue,
    channel: *const ibv_comp_channel,
) -> u32 {
    let is_it = |slot: &u32| channels::is_known_by(state, *slot, channel.addr() as u64);
    let Some(slot) = cq.channel.filter(|_| cq.completion_events != 0).filter(is_it) else { return 0 };
    // SAFETY: by the contract of this function; the descriptor never changes.
    let fd = unsafe { (*channel).fd };
    if fd < 0 {
        return cq.completion_events;
    }
    // SAFETY: the channel keeps its descriptor open until it is destroyed.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    cq.completion_events.saturating_sub(channels::retract(state, slot, fd, cq.native))
}

/// Asks for one event at the next completion, or the next failed one. Completions that are queued already
/// raise none, but on a device that counts from the consumer on: a thread that arms polls once more before it
/// sleeps. A queue without a channel is armed for nothing, as in hardware.
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    answer_status(|| {
        // SAFETY: NULL or a completion queue of this provider, by the verb's contract.
        let object = unsafe { SoftCq::of(cq.cast()) }?;
        // SAFETY: the queue keeps the context it was made with.
        let soft = unsafe { SoftContext::of(object.context) }?;
        if soft.nic().object_rules().completion.arming_counts_unpolled {
            completion_queues::arm_from_consumer(&mut soft.nic().control(), object.slot, solicited_only != 0);
        } else {
            object.wish.arm(solicited_only != 0);
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    answer_status(|| {
        // SAFETY: NULL or a completion queue of this provider, by the verb's contract.
        let object = unsafe { SoftCq::of(cq.cast()) }?;
        // SAFETY: NULL or the application's struct.
        let attr = unsafe { attr.as_ref() }.ok_or(EINVAL)?;
        // SAFETY: the queue keeps the context it was made with.
        let soft = unsafe { SoftContext::of(object.context()) }?;
        let (count, period_us) = (attr.moderate.cq_count, attr.moderate.cq_period);
        completion_queues::check_moderation(soft.nic(), attr.attr_mask, count, period_us)?;
        completion_queues::moderate(&mut soft.nic().control(), object.slot, count, period_us)
    })
}

/// Moves a queue to a larger or smaller ring. As with any provider not to be called between `ibv_start_poll`
/// and `ibv_end_poll`: a queue with a lock waits for the end of that poll, one without a lock returns EBUSY.
pub(crate) unsafe extern "C" fn resize_cq(cq: *mut ibv_cq, entries: c_int) -> c_int {
    answer_status(|| {
        // SAFETY: NULL or a completion queue of this provider, by the verb's contract.
        let object = unsafe { SoftCq::of(cq.cast()) }?;
        // SAFETY: the queue keeps the context it was made with.
        let soft = unsafe { SoftContext::of(object.context()) }?;
        let rules = soft.nic().object_rules();
        let wanted = self::entries(&rules.completion, u32::try_from(entries).map_err(|_| EINVAL)?)?;
        let held = held(&rules.completion, wanted);
        let resources = &rules.domain.resources;
        // What was posted before this call counts. A device has long sent it; the engine may not have had its
        // turn.
        soft.nic().pass(0);
        // The application's allocator is called without a lock, and so is its `free` when the old ring is
        // dropped.
        let (mut producer, mut consumer) = make_ring(
            resources,
            object.domain(),
            held,
            size_of::<Cqe>(),
            resources.completion_queue,
            ENOMEM,
        )?;
        object.poller.with(|poller| {
            let mut state = soft.nic().control();
            completion_queues::exchange(
                &mut state,
                object.slot,
                poller.between_polls(),
                &mut producer,
                &mut consumer,
            )
        })?;
        let place = cq.wrapping_byte_add(std::mem::offset_of!(ibv_cq, cqe)).cast::<c_int>();
        // SAFETY: the application's handle; as with any provider, it must not read the size while it changes
        // it.
        unsafe { place.write(c_int::try_from(wanted).map_err(|_| EINVAL)?) };
        Ok(())
    })
}

// Completion channels. The library's own `ibv_create_comp_channel` asks the kernel, so this takes its place:
// in process as [`ibv_provider::Provider::channel_maker`], elsewhere through `preload`. Everything after it
// is the library's: `ibv_get_cq_event` reads 8-byte records from the channel's descriptor, and
// `ibv_destroy_comp_channel` closes it and frees the struct without telling the provider.

/// Makes a completion channel of a context of this provider.
///
/// # Safety
/// `context` is NULL or a live context of this provider.
pub(crate) unsafe extern "C" fn create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    answer_handle(|| {
        // SAFETY: by the contract of this function.
        let soft = unsafe { SoftContext::of(context) }?;
        let (events, application) = CompletionEvents::new()?;
        // SAFETY: plain malloc; the library frees it.
        let channel = unsafe { libc::malloc(size_of::<ibv_comp_channel>()) }.cast::<ibv_comp_channel>();
        if channel.is_null() {
            return Err(ENOMEM);
        }
        let native = channel.addr() as u64;
        let mut state = soft.nic().control();
        // The library destroys a channel without a call of the provider: it has closed the descriptors of
        // those that are gone, and a channel that was in the place of this one is gone too, though a child
        // process may still hold its descriptor.
        channels::sweep_all(&mut state, native);
        if let Err(errno) = channels::insert(&mut state, soft.slot, native, events) {
            // SAFETY: allocated above and handed to no one.
            unsafe { libc::free(channel.cast()) };
            return Err(errno);
        }
        drop(state);
        // SAFETY: allocated above with the size of the struct.
        unsafe { channel.write(ibv_comp_channel { context, fd: application.into_raw_fd(), refcnt: 0 }) };
        Ok(channel)
    })
}

/// The slot of a channel that a queue of the context `owner` is to report to; `None` for NULL. It must be one
/// of [`create_comp_channel`], of the same context, and not destroyed.
pub(super) fn find(state: &State, owner: u32, channel: *mut ibv_comp_channel) -> Verb<Option<u32>> {
    if channel.is_null() {
        return Ok(None);
    }
    channels::find(state, owner, channel.addr() as u64).map(Some)
}

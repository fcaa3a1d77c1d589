//! Completion queues: made, armed, resized and destroyed here, polled in `cq_poll`.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint};
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ibverbs_sys::{
    IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN, IBV_CREATE_CQ_ATTR_SINGLE_THREADED, IBV_WC_EX_WITH_BYTE_LEN,
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, IBV_WC_EX_WITH_CVLAN,
    IBV_WC_EX_WITH_DLID_PATH_BITS, IBV_WC_EX_WITH_FLOW_TAG, IBV_WC_EX_WITH_IMM, IBV_WC_EX_WITH_QP_NUM,
    IBV_WC_EX_WITH_SL, IBV_WC_EX_WITH_SLID, IBV_WC_EX_WITH_SRC_QP, IBV_WC_EX_WITH_TM_INFO, ibv_comp_channel,
    ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_modify_cq_attr, ibv_poll_cq_attr, ibv_wc,
    ibv_wc_tm_info,
};

use super::Object;
use super::answer::{EBUSY, EINVAL, ENOMEM, EOPNOTSUPP, Verb, answer_handle, answer_status};
use super::held::Held;
use super::pd::{SoftPd, make_ring, release_domain, use_domain};
use super::spin::Spin;
use crate::abi::WorkCompletion;
use crate::completion::{ChannelState, CqState, Notice, Wish};
use crate::device::SoftContext;
use crate::events::{CompletionEvents, acknowledgements};
use crate::formats::Completions;
use crate::nic::Nic;
use crate::personality::{ClockRules, CompletionRules};
use crate::prefetch::prefetch_read;
use crate::ring::{Consumer, Producer};
use crate::state::State;
use crate::work::{Cqe, EMPTY_CQE, Status};

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

    /// The cursor of the queue behind a handle, whose mark is not looked at: a queue that was destroyed and is kept has
    /// a cursor without completions.
    ///
    /// # Safety
    /// `cq` is a queue of this provider that lives, or was destroyed and is kept, and the caller is the one who polls it.
    #[inline]
    unsafe fn cursor<'a>(cq: *mut ibv_cq_ex) -> &'a mut Cursor {
        let object = cq.cast::<Self>();
        // SAFETY: by the contract, the object is there.
        let cursor = unsafe { &raw const (*object).cursor };
        // SAFETY: as above, and the cursor has no other user.
        unsafe { &mut *UnsafeCell::raw_get(cursor) }
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
        let rules = &unsafe { SoftContext::of(context) }?.nic().rules().objects.completion;
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

/// The completions that a queue of so many entries holds.
fn held(rules: &CompletionRules, entries: u32) -> u32 {
    entries + u32::from(rules.has_one_spare_entry)
}

fn create(context: *mut ibv_context, request: &Request<'_>) -> Verb<*mut ibv_cq_ex> {
    // SAFETY: the library passes a live context of this provider.
    let soft = unsafe { SoftContext::of(context) }?;
    let rules = soft.nic().rules();
    let wanted = entries(&rules.objects.completion, request.entries)?;
    if request.vector >= rules.objects.completion.vectors {
        return Err(EINVAL);
    }
    // Looked up before memory is asked for, and again, with the queue, when it is registered.
    find(&soft.nic().control(), soft.slot, request.channel)?;
    let completion = &rules.objects.completion;
    let resources = &rules.objects.domain.resources;
    let kind = (resources.completion_queue, rules.objects.domain.allocator_refusal);
    let held = held(completion, wanted);
    let (producer, consumer) = make_ring(resources, request.domain, held, size_of::<Cqe>(), kind)?;
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
    let engine_side = CqState {
        owner: soft.slot,
        users: 0,
        producer: Completions::Own(producer),
        ignore_overrun: request.ignore_overrun,
        failed: false,
        unpublished: false,
        wants_checksums,
        checksums_of_work_queues: completion.checksums_of_work_queues,
        native: (&raw const *cq).addr() as u64,
        events: 0,
        notice: Notice::of(wish),
    };
    register(&mut soft.nic().control(), engine_side, cq, request.channel)
}

fn register(
    state: &mut State,
    mut engine_side: CqState,
    mut cq: Box<Held<SoftCq>>,
    channel: *mut ibv_comp_channel,
) -> Verb<*mut ibv_cq_ex> {
    let channel = find(state, engine_side.owner, channel)?;
    engine_side.notice.channel = channel;
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
unsafe fn completion_events_read(state: &State, cq: &CqState, channel: *const ibv_comp_channel) -> u32 {
    let entry = cq.notice.channel.and_then(|slot| state.channels.get(slot));
    let Some(entry) = entry.filter(|entry| cq.notice.events != 0 && entry.native == channel.addr() as u64)
    else {
        return 0;
    };
    // SAFETY: by the contract of this function.
    cq.notice.events.saturating_sub(unsafe { retract(entry, channel, cq.native) })
}

/// `IBV_CQ_ATTR_MODERATE`, the only attribute there is.
const ATTR_MODERATE: u32 = 1;

/// Asks for one event at the next completion, or the next failed one. Completions that are queued already raise none, but
/// on a device that counts from the consumer on: a thread that arms polls once more before it sleeps. A queue without a
/// channel is armed for nothing, as in hardware.
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    answer_status(|| {
        // SAFETY: NULL or a completion queue of this provider, by the verb's contract.
        let object = unsafe { SoftCq::of(cq.cast()) }?;
        // SAFETY: the queue keeps the context it was made with.
        let soft = unsafe { SoftContext::of(object.context) }?;
        if soft.nic().rules().objects.completion.arming_counts_unpolled {
            soft.nic().control().arm_from_consumer(object.slot, solicited_only != 0);
        } else {
            object.wish.arm(solicited_only != 0);
        }
        Ok(())
    })
}

/// What of a change of moderation cannot be.
pub(crate) fn check_moderation(
    mask: u32,
    (count, period_us): (u16, u16),
    rules: &CompletionRules,
) -> Verb<()> {
    // The kernel (ib_uverbs_ex_modify_cq): nothing to do is EINVAL, anything unknown EOPNOTSUPP.
    if mask == 0 {
        return Err(EINVAL);
    }
    if mask != ATTR_MODERATE {
        return Err(EOPNOTSUPP);
    }
    if count > rules.max_moderation_count || period_us > rules.max_moderation_period_us {
        return Err(EINVAL);
    }
    Ok(())
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
        check_moderation(attr.attr_mask, (count, period_us), &soft.nic().rules().objects.completion)?;
        let mut state = soft.nic().control();
        state.cqs.get_mut(object.slot).ok_or(EINVAL)?.notice.moderate(count, period_us);
        // What waits already may be enough now.
        state.raise_waiting();
        Ok(())
    })
}

/// Moves a queue to a larger or smaller ring. As with any provider not to be called between `ibv_start_poll` and
/// `ibv_end_poll`: a queue with a lock waits for the end of that poll, one without a lock returns EBUSY.
pub(crate) unsafe extern "C" fn resize_cq(cq: *mut ibv_cq, entries: c_int) -> c_int {
    answer_status(|| {
        // SAFETY: NULL or a completion queue of this provider, by the verb's contract.
        let object = unsafe { SoftCq::of(cq.cast()) }?;
        // SAFETY: the queue keeps the context it was made with.
        let soft = unsafe { SoftContext::of(object.context()) }?;
        let rules = soft.nic().rules();
        let wanted = self::entries(&rules.objects.completion, u32::try_from(entries).map_err(|_| EINVAL)?)?;
        let held = held(&rules.objects.completion, wanted);
        let resources = &rules.objects.domain.resources;
        // What was posted before this call counts. A device has long sent it; the engine may not have had its turn.
        soft.nic().pass(0);
        // The application's allocator is called without a lock, and so is its `free` when the old ring is dropped.
        let mut ring = make_ring(
            resources,
            object.domain(),
            held,
            size_of::<Cqe>(),
            (resources.completion_queue, ENOMEM),
        )?;
        object.poller.with(|poller| exchange(&mut soft.nic().control(), object.slot, poller, &mut ring))?;
        let place = cq.wrapping_byte_add(std::mem::offset_of!(ibv_cq, cqe)).cast::<c_int>();
        // SAFETY: the application's handle; as with any provider, it must not read the size while it changes it.
        unsafe { place.write(c_int::try_from(wanted).map_err(|_| EINVAL)?) };
        Ok(())
    })
}

/// Moves what is queued into the new ring, and puts it in the old one's place. Neither end is in use: the device's
/// mutex keeps the engine out, the poller's lock the application.
fn exchange(
    state: &mut State,
    slot: u32,
    poller: &mut Poller,
    (producer, consumer): &mut (Producer, Consumer),
) -> Verb<()> {
    let cq = state.cqs.get_mut(slot).ok_or(EINVAL)?;
    if cq.failed {
        return Err(EINVAL);
    }
    let old = poller.between_polls().ok_or(EBUSY)?;
    // ibv_resize_cq(3): at least the number of unpolled entries.
    if old.available() > producer.limit() {
        return Err(EINVAL);
    }
    while old.has_next() && producer.has_room(1) {
        // SAFETY: published, so it is the consumer's; slots are aligned `Cqe`s.
        let cqe = unsafe { old.slot().cast::<Cqe>().read() };
        // SAFETY: there is room, so the slot is the producer's.
        unsafe { producer.slot().cast::<Cqe>().write(cqe) };
        old.advance();
        producer.advance();
    }
    producer.publish();
    std::mem::swap(old, consumer);
    cq.replace(producer);
    Ok(())
}

// Polling: `start_poll`, `next_poll`, `end_poll`, the readers of a completion's fields, and the plain `poll_cq`.
//
// A batch looks at the device's index once, reads completions in place, and gives their slots back once, at its end.
// What is called for each completion uses the cursor alone: no lock, no look at the handle's mark or at the ring.

/// How many completions ahead their lines are fetched from the engine's core: two to a line.
const LOOKAHEAD: u32 = 8;

/// Where an open poll is in the ring.
struct Cursor {
    /// The completion that the poll is at: in the ring during a poll, `EMPTY_CQE` outside.
    current: *const Cqe,
    /// The last one from there on that is known to be published, with all between them next to each other in memory.
    last: *const Cqe,
}

impl Cursor {
    const NONE: Self = Self { current: &raw const EMPTY_CQE, last: &raw const EMPTY_CQE };

    /// How many completions are behind the current one.
    fn left(&self) -> u32 {
        // Less than a ring's.
        ((self.last.addr() - self.current.addr()) / size_of::<Cqe>()) as u32
    }

    /// Copies what the library's struct has of the current completion.
    ///
    /// # Safety
    /// A poll of the queue with this handle is open, at the current completion.
    #[inline]
    unsafe fn show(&self, native: *mut ibv_cq_ex) {
        // SAFETY: published, and not given back before `end_poll`, so the device does not write to it.
        let cqe = unsafe { &*self.current };
        // SAFETY: the handle of this queue; the status is the poller's to write.
        unsafe { (*native).status = cqe.status() };
        // SAFETY: as above.
        unsafe { (*native).wr_id = cqe.wr_id };
    }
}

/// The application's end of a completion ring.
pub(crate) struct Poller {
    consumer: Consumer,
    /// Completions from the consumer's next one on that an open poll has in its cursor, the current one included.
    run: u32,
    wants_checksums: Arc<AtomicBool>,
    /// Of raw timestamps.
    clock: ClockRules,
    /// As in the rules.
    shares_words: bool,
    /// A `poll_cq` or `start_poll` is under way.
    polling: bool,
}

impl Poller {
    pub(crate) fn new(consumer: Consumer, wants_checksums: Arc<AtomicBool>, nic: &Nic) -> Self {
        let shares_words = nic.rules().objects.completion.shares_words;
        Self { consumer, run: 0, wants_checksums, clock: nic.clock, shares_words, polling: false }
    }

    /// The ring's end, unless a batch is under way, which reads completions in place.
    pub(crate) fn between_polls(&mut self) -> Option<&mut Consumer> {
        (!self.polling).then_some(&mut self.consumer)
    }

    /// Has the checksums of the frames to come verified.
    #[inline]
    fn want_checksums(&self) {
        if !self.wants_checksums.load(Ordering::Relaxed) {
            self.wants_checksums.store(true, Ordering::Relaxed);
        }
    }

    /// Counts the completions of the cursor up to its current one as read, and moves it to the next one, with those
    /// behind it that are next to it in memory. False: there is none.
    #[inline]
    fn next_run(&mut self, cursor: &mut Cursor) -> bool {
        self.leave_run(cursor);
        let (first, run) = self.consumer.run();
        let Some(left) = run.checked_sub(1) else { return false };
        let current = first.cast::<Cqe>().as_ptr();
        *cursor = Cursor { current, last: current.wrapping_add(left as usize) };
        self.run = run;
        true
    }

    /// Counts the completions of the cursor up to its current one as read.
    #[inline]
    fn leave_run(&mut self, cursor: &mut Cursor) {
        self.consumer.advance_by(self.run.saturating_sub(cursor.left()));
        self.run = 0;
        cursor.last = cursor.current;
    }
}

/// Puts the functions into a new `ibv_cq_ex`: the readers only of fields that were asked for.
pub(crate) fn fill(cq: &mut ibv_cq_ex, fields: u32, rules: &CompletionRules) {
    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(if rules.shares_words { read_vendor_byte } else { read_zero });
    cq.read_wc_flags = Some(read_wc_flags);
    let asked = |field: u32| fields & field != 0;
    cq.read_byte_len = asked(IBV_WC_EX_WITH_BYTE_LEN).then_some(read_byte_len as _);
    cq.read_imm_data = asked(IBV_WC_EX_WITH_IMM).then_some(read_immediate as _);
    let read_qp_num = if rules.shares_words { read_tag_or_number } else { read_qp_num };
    cq.read_qp_num = asked(IBV_WC_EX_WITH_QP_NUM).then_some(read_qp_num as _);
    cq.read_src_qp = asked(IBV_WC_EX_WITH_SRC_QP).then_some(read_source as _);
    cq.read_slid = asked(IBV_WC_EX_WITH_SLID).then_some(read_zero as _);
    cq.read_sl = asked(IBV_WC_EX_WITH_SL).then_some(read_zero_byte as _);
    cq.read_dlid_path_bits = asked(IBV_WC_EX_WITH_DLID_PATH_BITS).then_some(read_zero_byte as _);
    cq.read_completion_ts = asked(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP).then_some(read_ticks as _);
    cq.read_cvlan = asked(IBV_WC_EX_WITH_CVLAN).then_some(read_cvlan as _);
    cq.read_flow_tag = asked(IBV_WC_EX_WITH_FLOW_TAG).then_some(read_flow_tag as _);
    cq.read_tm_info = asked(IBV_WC_EX_WITH_TM_INFO).then_some(read_tag_matching as _);
    cq.read_completion_wallclock_ns =
        asked(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK).then_some(read_wallclock as _);
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: NULL or a completion queue of this provider, by the verb's contract.
    let Ok(cq) = (unsafe { SoftCq::of(cq) }) else { return libc::EINVAL };
    // SAFETY: NULL or the application's struct.
    if unsafe { attr.as_ref() }.is_none_or(|attr| attr.comp_mask != 0) {
        return libc::EINVAL;
    }
    let outcome = begin_poll(cq);
    if outcome == libc::ENOENT && cq.drive_engine() { begin_poll(cq) } else { outcome }
}

#[inline]
fn begin_poll(cq: &SoftCq) -> c_int {
    // SAFETY: locked until `end_poll`, or until this poll finds nothing.
    let poller = unsafe { &mut *cq.poller.lock() };
    // SAFETY: who has the lock polls the queue, and nobody else uses the cursor.
    let cursor = unsafe { &mut *cq.cursor.get() };
    if !poller.next_run(cursor) {
        // An empty poll is not ended (ibv_start_poll(3)).
        cq.poller.unlock();
        return libc::ENOENT;
    }
    poller.polling = true;
    // SAFETY: this poll, which is now open.
    unsafe { cursor.show(cq.native()) };
    0
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: a queue of this provider, as this function is reached through it only; called between `start_poll` and
    // `end_poll`, by the verb's contract.
    let cursor = unsafe { SoftCq::cursor(cq) };
    if cursor.current == cursor.last {
        return next_run(cq);
    }
    cursor.current = cursor.current.wrapping_add(1);
    // Once per line, if the engine no longer writes to the one that is fetched.
    let ahead = cursor.current.wrapping_add(LOOKAHEAD as usize);
    if ahead.addr() & size_of::<Cqe>() == 0 && ahead.addr() <= cursor.last.addr() {
        prefetch_read(ahead.cast());
    }
    // SAFETY: within what `Poller::next_run` found published, so a poll is open.
    unsafe { cursor.show(cq) };
    0
}

/// [`next_poll`] past the completions that were seen, or outside a poll.
#[cold]
fn next_run(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: NULL or a completion queue of this provider, by the verb's contract.
    let Ok(object) = (unsafe { SoftCq::of(cq) }) else { return libc::EINVAL };
    // SAFETY: called between `start_poll` and `end_poll`, by the verb's contract, so the lock is held.
    let poller = unsafe { &mut *object.poller.held() };
    if !poller.polling {
        return libc::EINVAL;
    }
    // SAFETY: a live queue, polled by the caller.
    let cursor = unsafe { SoftCq::cursor(cq) };
    if !poller.next_run(cursor) {
        return libc::ENOENT;
    }
    // SAFETY: a poll is open.
    unsafe { cursor.show(cq) };
    0
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: NULL or a completion queue of this provider, by the verb's contract.
    let Ok(object) = (unsafe { SoftCq::of(cq) }) else { return };
    // SAFETY: called after a successful `start_poll`, by the verb's contract, so the lock is held.
    let poller = unsafe { &mut *object.poller.held() };
    if poller.polling {
        // SAFETY: a live queue, polled by the caller.
        let cursor = unsafe { SoftCq::cursor(cq) };
        poller.polling = false;
        poller.leave_run(cursor);
        *cursor = Cursor::NONE;
        poller.consumer.publish();
        object.poller.unlock();
    }
}

/// The completion that the poll is at.
///
/// # Safety
/// `cq` is a completion queue of this provider that lives or is kept, and the caller is the one who polls it.
#[inline]
unsafe fn current<'a>(cq: *mut ibv_cq_ex) -> &'a Cqe {
    // SAFETY: by the contract of this function.
    let cursor = unsafe { SoftCq::cursor(cq) };
    // SAFETY: in the ring and not given back before `end_poll`, or the constant.
    unsafe { &*cursor.current }
}

macro_rules! readers {
    ($($(#[$doc:meta])* $name:ident -> $type:ty = |$cqe:ident| $value:expr;)*) => {
        $($(#[$doc])* unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
            // SAFETY: readers are called between `start_poll` and `end_poll` on the queue that is polled.
            let $cqe = unsafe { current(cq) };
            $value
        })*
    };
}

readers! {
    read_opcode -> c_uint = |cqe| cqe.opcode();
    read_byte_len -> u32 = |cqe| cqe.byte_len;
    read_qp_num -> u32 = |cqe| cqe.queue_number;
    read_tag_or_number -> u32 = |cqe| cqe.tag_or_number();
    read_cvlan -> u16 = |cqe| cqe.cvlan;
    read_flow_tag -> u32 = |cqe| cqe.flow_tag;
    read_immediate -> u32 = |cqe| cqe.immediate();
    read_source -> u32 = |cqe| cqe.source();
    read_wallclock -> u64 = |cqe| cqe.timestamp_ns;
}

/// The raw clock, as `ibv_query_rt_values_ex` reads it.
unsafe extern "C" fn read_ticks(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: readers are called between `start_poll` and `end_poll` on the queue that is polled.
    let cqe = unsafe { current(cq) };
    // SAFETY: as above.
    let Ok(cq) = (unsafe { SoftCq::of(cq) }) else { return 0 };
    // SAFETY: the caller polls, so it holds the lock.
    let poller = unsafe { &*cq.poller.held() };
    poller.clock.ticks(cqe.timestamp_ns)
}

/// The byte of the raw clock where an error has the vendor's; this device's errors have none.
unsafe extern "C" fn read_vendor_byte(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: readers are called between `start_poll` and `end_poll` on the queue that is polled.
    let failed = unsafe { current(cq) }.status() != u32::from(Status::Success as u8);
    // SAFETY: as above.
    let [_, byte, ..] = unsafe { read_ticks(cq) }.to_le_bytes();
    if failed { 0 } else { byte.into() }
}

/// Results of tag matching; raw packets have none.
unsafe extern "C" fn read_tag_matching(_: *mut ibv_cq_ex, info: *mut ibv_wc_tm_info) {
    // SAFETY: NULL or the application's struct, by the verb's contract.
    if let Some(info) = unsafe { info.as_mut() } {
        *info = ibv_wc_tm_info::default();
    }
}

/// The fields that only InfiniBand has.
unsafe extern "C" fn read_zero(_: *mut ibv_cq_ex) -> u32 {
    0
}

/// The fields that only InfiniBand has.
unsafe extern "C" fn read_zero_byte(_: *mut ibv_cq_ex) -> u8 {
    0
}

/// The flag of raw packets is IP_CSUM_OK. Verifying costs the engine time, so it begins when a queue is first asked; completions
/// from before make no claim.
unsafe extern "C" fn read_wc_flags(cq: *mut ibv_cq_ex) -> c_uint {
    // SAFETY: readers are called between `start_poll` and `end_poll` on the queue that is polled.
    let cqe = unsafe { current(cq) };
    // SAFETY: as above.
    if let Ok(cq) = unsafe { SoftCq::of(cq) } {
        // SAFETY: the caller polls, so it holds the lock.
        let poller = unsafe { &*cq.poller.held() };
        poller.want_checksums();
    }
    cqe.wc_flags()
}

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, completions: *mut ibv_wc) -> c_int {
    // SAFETY: NULL or a completion queue of this provider, by the verb's contract.
    let Ok(cq) = (unsafe { SoftCq::of(cq.cast()) }) else { return -1 };
    let Ok(count) = usize::try_from(count) else { return -1 };
    if completions.is_null() {
        return -1;
    }
    let completions = completions.cast::<WorkCompletion>();
    let polled = poll_once(cq, count, completions);
    if polled == 0 && cq.drive_engine() { poll_once(cq, count, completions) } else { polled }
}

/// `completions` has `count` places.
fn poll_once(cq: &SoftCq, count: usize, completions: *mut WorkCompletion) -> c_int {
    cq.poller.with(|poller| {
        // In the middle of a batch its completions are not to be given back.
        if poller.polling {
            return -1;
        }
        // Flags are part of every `ibv_wc`.
        poller.want_checksums();
        let mut polled = 0;
        while polled < count && poller.consumer.has_next() {
            poller.consumer.prefetch(LOOKAHEAD);
            // SAFETY: published, and given back only below.
            let cqe = unsafe { poller.consumer.slot().cast::<Cqe>().as_ref() };
            let completion = WorkCompletion {
                wr_id: cqe.wr_id,
                status: cqe.status(),
                opcode: cqe.opcode(),
                byte_len: cqe.byte_len,
                imm_data: cqe.immediate(),
                qp_num: if poller.shares_words { cqe.tag_or_number() } else { cqe.queue_number },
                src_qp: cqe.source(),
                wc_flags: cqe.wc_flags(),
                ..WorkCompletion::default()
            };
            // SAFETY: the application's array has `count` places.
            let place = unsafe { completions.add(polled) };
            // SAFETY: as above.
            unsafe { place.write(completion) };
            poller.consumer.advance();
            polled += 1;
        }
        if polled > 0 {
            poller.consumer.publish();
        }
        c_int::try_from(polled).unwrap_or(c_int::MAX)
    })
}

// Completion channels. The library's own `ibv_create_comp_channel` asks the kernel, so this takes its place: in
// process as [`ibv_provider::Provider::channel_maker`], elsewhere through `preload`. Everything after it is the library's:
// `ibv_get_cq_event` reads 8-byte records from the channel's descriptor, and `ibv_destroy_comp_channel` closes it and
// frees the struct without telling the provider.

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
        sweep(&mut state, native);
        let entry = ChannelState { owner: soft.slot, users: 0, native, events };
        if state.channels.insert(entry).is_none() {
            // SAFETY: allocated above and handed to no one.
            unsafe { libc::free(channel.cast()) };
            return Err(ENOMEM);
        }
        drop(state);
        // SAFETY: allocated above with the size of the struct.
        unsafe { channel.write(ibv_comp_channel { context, fd: application.into_raw_fd(), refcnt: 0 }) };
        Ok(channel)
    })
}

/// Forgets the channels that the library has destroyed: it closed their descriptor, or its place in memory is that of a
/// new one (a child process may still hold the descriptor).
fn sweep(state: &mut State, new: u64) {
    let is_gone = |channel: &ChannelState| {
        channel.users == 0 && (channel.native == new || channel.events.is_abandoned())
    };
    let gone: Vec<u32> =
        state.channels.iter().filter(|(_, channel)| is_gone(channel)).map(|(slot, _)| slot).collect();
    for slot in gone {
        state.channels.remove(slot);
    }
}

/// The slot of a channel that a queue of the context `owner` is to report to; `None` for NULL. It must be one of
/// [`create_comp_channel`], of the same context, and not destroyed.
pub(super) fn find(state: &State, owner: u32, channel: *mut ibv_comp_channel) -> Verb<Option<u32>> {
    if channel.is_null() {
        return Ok(None);
    }
    let native = channel.addr() as u64;
    let is_it =
        |known: &ChannelState| known.owner == owner && known.native == native && !known.events.is_abandoned();
    let found = state.channels.iter().find(|(_, known)| is_it(known));
    found.map(|(slot, _)| Some(slot)).ok_or(EINVAL)
}

/// Takes the unread events of a queue back; returns how many there were.
///
/// # Safety
/// `channel` is the live channel of `entry`.
pub(super) unsafe fn retract(entry: &ChannelState, channel: *const ibv_comp_channel, cq: u64) -> u32 {
    // SAFETY: by the contract of this function; the descriptor never changes.
    let fd = unsafe { (*channel).fd };
    if fd < 0 {
        return 0;
    }
    // SAFETY: the channel keeps its descriptor open until it is destroyed.
    entry.events.retract(unsafe { BorrowedFd::borrow_raw(fd) }, cq)
}

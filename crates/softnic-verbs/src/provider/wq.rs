//! Work queues: where RSS delivers, and where the application posts its buffers.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use hugemem::prefetch_write;
use ibverbs_sys::{
    IBV_WQ_ATTR_STATE, IBV_WQ_INIT_ATTR_FLAGS, IBV_WQS_RESET, IBV_WQT_RQ, ibv_context, ibv_recv_wr,
    ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr, ibv_sge, ibv_wq, ibv_wq_attr, ibv_wq_init_attr,
    ibv_wq_state,
};
use softnic::Nic;
use softnic::errno::{EINVAL, ENOMEM, EOPNOTSUPP, Verb, known_bits};
use softnic::limits::MAX_SGE;
use softnic::objects::domains::release_domain;
use softnic::objects::tables;
use softnic::objects::work_queues::{self, NumberedQueue, OwnReceives, check_flags, edits};
use softnic::paths;
use softnic::ring::{RingProducer, Slots};
use softnic::work::{Element, RECEIVE_HEADER_BYTES, receive_slot_bytes};

use super::Object;
use super::answer::{answer_handle, answer_status};
use super::cq::SoftCq;
use super::held::Held;
use super::pd::{SoftPd, make_ring};
use super::spin::Spin;
use crate::acknowledgements::acknowledgements;
use crate::soft_context::SoftContext;

/// A work queue.
#[repr(C)]
pub(crate) struct SoftWq {
    /// In a cell: the library and `modify_wq` write to it through the handle.
    wq: UnsafeCell<ibv_wq>,
    context: *mut ibv_context,
    pub(crate) slot: u32,
    poster: Spin<ReceivePoster>,
    /// An `ibv_wq_state`, shared with the engine.
    state: Arc<AtomicU32>,
    domain: u32,
}

// SAFETY: `repr(C)` with a transparent cell of `ibv_wq` first; handed out by `into_native` only.
unsafe impl Object for SoftWq {
    type Native = ibv_wq;
}

impl SoftWq {
    pub(crate) fn context(&self) -> *mut ibv_context {
        self.context
    }
}

pub(crate) unsafe extern "C" fn create_wq(
    context: *mut ibv_context,
    attr: *mut ibv_wq_init_attr,
) -> *mut ibv_wq {
    answer_handle(|| {
        // SAFETY: the library passes a live context of this provider.
        let soft = unsafe { SoftContext::of(context) }?;
        // SAFETY: NULL or the application's struct.
        let attr = unsafe { attr.as_mut() }.ok_or(EINVAL)?;
        let flags = check(attr, soft.nic())?;
        // SAFETY: NULL or a domain of this provider, by the verb's contract.
        let pd = unsafe { SoftPd::of(attr.pd) }?;
        // SAFETY: NULL or a completion queue of this provider, by the verb's contract.
        let cq = unsafe { SoftCq::of(attr.cq.cast()) }?;
        if pd.context() != context || cq.context() != context {
            return Err(EINVAL);
        }
        let slot_bytes = receive_slot_bytes(attr.max_sge);
        let resources = &soft.nic().object_rules().domain.resources;
        let (producer, consumer) =
            make_ring(resources, Some(pd), attr.max_wr, slot_bytes, resources.work_queue, ENOMEM)?;
        let native_state = Arc::new(AtomicU32::new(IBV_WQS_RESET));
        let queue = OwnReceives {
            owner: soft.slot,
            domain: pd.base,
            cq: cq.slot,
            consumer,
            max_sge: attr.max_sge,
            edits: edits(flags),
            native_state: Arc::clone(&native_state),
            native: 0,
        };
        attr.max_wr = producer.limit();
        let poster = Spin::new(ReceivePoster { producer, max_sge: attr.max_sge }, pd.single_threaded());
        let mut wq = Held::boxed(SoftWq {
            wq: UnsafeCell::new(ibv_wq {
                context,
                wq_context: attr.wq_context,
                pd: attr.pd,
                cq: attr.cq,
                wq_type: IBV_WQT_RQ,
                state: IBV_WQS_RESET,
                post_recv: Some(post_recv),
                ..ibv_wq::default()
            }),
            context,
            slot: 0,
            poster,
            state: native_state,
            domain: pd.slot,
        });
        register(soft.nic(), queue, &mut wq)?;
        Ok(Box::into_raw(wq).cast())
    })
}

/// Refuses what cannot be; returns the flags to make the queue with.
fn check(attr: &ibv_wq_init_attr, nic: &Nic) -> Verb<u32> {
    known_bits(attr.comp_mask, IBV_WQ_INIT_ATTR_FLAGS, EOPNOTSUPP)?;
    let flags = if attr.comp_mask & IBV_WQ_INIT_ATTR_FLAGS == 0 { 0 } else { attr.create_flags };
    check_flags(nic, flags)?;
    let sizes = (1..=nic.max_requests()).contains(&attr.max_wr) && (1..=MAX_SGE).contains(&attr.max_sge);
    if attr.wq_type != IBV_WQT_RQ || !sizes {
        return Err(EINVAL);
    }
    Ok(flags)
}

/// Adds the queue of a handle, and puts its slot and number into the handle.
fn register(nic: &Nic, mut queue: OwnReceives, wq: &mut Box<Held<SoftWq>>) -> Verb<()> {
    queue.native = (&raw const **wq).addr() as u64;
    let NumberedQueue { slot, number } = work_queues::insert(nic, &mut nic.control(), queue, wq.domain)?;
    wq.slot = slot;
    let native = wq.wq.get_mut();
    native.handle = slot;
    native.wq_num = number;
    Ok(())
}

unsafe extern "C" fn post_recv(
    wq: *mut ibv_wq,
    request: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: NULL or a work queue of this provider, by the verb's contract.
    let Ok(wq) = (unsafe { SoftWq::of(wq) }) else { return EINVAL.number() };
    // A queue in RESET forgets what is posted, so nothing may be; one in ERR flushes it.
    if wq.state.load(Ordering::Relaxed) == IBV_WQS_RESET {
        refuse(request, bad);
        return EINVAL.number();
    }
    post(&wq.poster, request, bad)
}

pub(crate) unsafe extern "C" fn modify_wq(wq: *mut ibv_wq, attr: *mut ibv_wq_attr) -> c_int {
    answer_status(|| {
        // SAFETY: NULL or a work queue of this provider, by the verb's contract.
        let object = unsafe { SoftWq::of(wq) }?;
        // SAFETY: NULL or the application's struct.
        let attr = unsafe { attr.as_ref() }.ok_or(EINVAL)?;
        // SAFETY: the queue keeps the context it was made with.
        let soft = unsafe { SoftContext::of(object.context()) }?;
        work_queues::modify(soft.nic(), &mut soft.nic().control(), object.slot, attr)?;
        if attr.attr_mask & IBV_WQ_ATTR_STATE != 0 {
            let place = wq.wrapping_byte_add(offset_of!(ibv_wq, state)).cast::<ibv_wq_state>();
            // SAFETY: the application's handle; as with any provider, it must not read the state while it
            // changes it.
            unsafe { place.write(attr.wq_state) };
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn destroy_wq(wq: *mut ibv_wq) -> c_int {
    answer_status(|| {
        // SAFETY: NULL or a work queue of this provider, by the verb's contract.
        let object = unsafe { SoftWq::of(wq) }?;
        // SAFETY: the queue keeps the context it was made with.
        let soft = unsafe { SoftContext::of(object.context()) }?;
        let (slot, domain) = (object.slot, object.domain);
        let mut state = soft.nic().control();
        let removed = work_queues::remove(&mut state, slot)?;
        let read = removed.events_read;
        // The memory goes back to the application's allocator, which is not called under the device's mutex
        // and must outlive the domain's last user.
        drop(state);
        drop(removed);
        // SAFETY: `wq` is the live handle, whose mutex and condition the library initialised.
        unsafe { acknowledgements!(wq, ibv_wq, events_completed).wait(read) };
        // SAFETY: the library drops the handle; `object` is not used any more.
        drop(unsafe { SoftWq::take(wq) });
        release_domain(&mut soft.nic().control(), domain);
        Ok(())
    })
}

// Indirection tables.

/// An indirection table.
#[repr(C)]
pub(crate) struct SoftTable {
    table: ibv_rwq_ind_table,
    pub(crate) slot: u32,
}

// SAFETY: `repr(C)` with `ibv_rwq_ind_table` first; handed out by `into_native` only.
unsafe impl Object for SoftTable {
    type Native = ibv_rwq_ind_table;
}

impl SoftTable {
    pub(crate) fn context(&self) -> *mut ibv_context {
        self.table.context
    }
}

pub(crate) unsafe extern "C" fn create_rwq_ind_table(
    context: *mut ibv_context,
    attr: *mut ibv_rwq_ind_table_init_attr,
) -> *mut ibv_rwq_ind_table {
    answer_handle(|| {
        // SAFETY: the library passes a live context of this provider.
        let soft = unsafe { SoftContext::of(context) }?;
        // SAFETY: NULL or the application's struct.
        let attr = unsafe { attr.as_ref() }.ok_or(EINVAL)?;
        known_bits(attr.comp_mask, 0, EOPNOTSUPP)?;
        let queues = entries(attr, context, soft.nic().max_table_entries() as usize)?;
        let slot = tables::insert(soft.nic(), &mut soft.nic().control(), soft.slot, &queues)?;
        let handle = c_int::try_from(slot).map_err(|_| ENOMEM)?;
        let table = ibv_rwq_ind_table { context, ind_tbl_handle: handle, ind_tbl_num: handle, comp_mask: 0 };
        Ok(SoftTable { table, slot }.into_native())
    })
}

/// The queues' slots, in order.
fn entries(
    attr: &ibv_rwq_ind_table_init_attr,
    context: *mut ibv_context,
    max_entries: usize,
) -> Verb<Box<[u32]>> {
    let length = 1usize.checked_shl(attr.log_ind_tbl_size).ok_or(EINVAL)?;
    if length > max_entries || attr.ind_tbl.is_null() {
        return Err(EINVAL);
    }
    (0..length)
        .map(|index| {
            // SAFETY: the application's array has 2^log_ind_tbl_size entries, by the verb's contract.
            let entry = unsafe { attr.ind_tbl.add(index) };
            // SAFETY: as above.
            let wq = unsafe { entry.read() };
            // SAFETY: NULL or a work queue of this provider, by the verb's contract.
            let wq = unsafe { SoftWq::of(wq) }?;
            if wq.context() == context { Ok(wq.slot) } else { Err(EINVAL) }
        })
        .collect()
}

pub(crate) unsafe extern "C" fn destroy_rwq_ind_table(table: *mut ibv_rwq_ind_table) -> c_int {
    answer_status(|| {
        // SAFETY: NULL or a table of this provider, by the verb's contract.
        let object = unsafe { SoftTable::of(table) }?;
        // SAFETY: the table keeps the context it was made with.
        let soft = unsafe { SoftContext::of(object.context()) }?;
        tables::remove(&mut soft.nic().control(), object.slot)?;
        // SAFETY: the library drops the handle; `object` is not used any more.
        drop(unsafe { SoftTable::take(table) });
        Ok(())
    })
}

// Posting receives: the application's side of a work queue's or plain queue pair's receive ring.

/// How many requests ahead their lines are taken over from the engine's core.
const LOOKAHEAD: u32 = 8;

/// The application's end of a receive ring.
pub(crate) struct ReceivePoster {
    pub(crate) producer: RingProducer,
    pub(crate) max_sge: u32,
}

/// Posts a chain of receives, all shown to the device at once. On failure `bad` is the first one not posted.
pub(crate) fn post(
    poster: &Spin<ReceivePoster>,
    mut wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let outcome = poster.with(|poster| poster.push_chain(&mut wr));
    match outcome {
        Ok(()) => 0,
        Err(errno) => {
            refuse(wr, bad);
            errno.number()
        }
    }
}

/// Names the first request that was not posted.
pub(crate) fn refuse<T>(wr: *mut T, bad: *mut *mut T) {
    if !bad.is_null() {
        // SAFETY: not NULL, so the application's place for the answer.
        unsafe { bad.write(wr) };
    }
}

impl ReceivePoster {
    /// Fills slots with the requests of a chain and shows them to the device. `wr` ends at the first that was
    /// not taken.
    fn push_chain(&mut self, wr: &mut *mut ibv_recv_wr) -> Verb<()> {
        let mut filled = 0;
        let outcome = loop {
            let room = self.producer.room_for(filled + 1);
            if filled >= room && !wr.is_null() {
                break Err(ENOMEM);
            }
            let outcome = self.fill(wr, &mut filled, room);
            if outcome.is_err() || wr.is_null() {
                break outcome;
            }
        };
        self.producer.advance_by(filled);
        self.producer.publish();
        outcome
    }

    /// Fills slots up to `room`, as far as the chain goes.
    fn fill(&self, wr: &mut *mut ibv_recv_wr, filled: &mut u32, room: u32) -> Verb<()> {
        let slots = self.producer.slots();
        while *filled < room {
            if self.max_sge == 1 && !paths::are_general() {
                fill_single(slots, wr, filled, room);
            }
            // SAFETY: NULL or a request of the application's chain.
            let Some(request) = (unsafe { wr.as_ref() }).filter(|_| *filled < room) else { break };
            self.write(slots.at(*filled), request)?;
            *filled += 1;
            *wr = request.next;
        }
        Ok(())
    }

    /// Writes a request into a slot for which there is room.
    fn write(&self, slot: NonNull<u8>, request: &ibv_recv_wr) -> Verb<()> {
        let count = u32::try_from(request.num_sge).unwrap_or(u32::MAX);
        if count > self.max_sge || (count > 0 && request.sg_list.is_null()) {
            return Err(EINVAL);
        }
        // SAFETY: there is room, so the slot is this side's; it begins with the id.
        unsafe { slot.cast::<u64>().write(request.wr_id) };
        // SAFETY: a slot holds `max_sge` elements behind the id.
        let elements = unsafe { slot.add(RECEIVE_HEADER_BYTES) };
        let elements = NonNull::slice_from_raw_parts(elements.cast::<Element>(), self.max_sge as usize);
        // SAFETY: as above; every bit pattern is an element, and only this side writes them now.
        write_elements(unsafe { &mut *elements.as_ptr() }, request.sg_list, count);
        Ok(())
    }
}

/// A slot of a ring of requests with one element each.
#[repr(C)]
struct Single {
    wr_id: u64,
    element: Element,
}

const _: () = assert!(size_of::<Single>() == receive_slot_bytes(1) && RECEIVE_HEADER_BYTES == 8);

// An entry of the application's list is an element as it stands, but for a key of 0.
const _: () = {
    assert!(size_of::<ibv_sge>() == size_of::<Element>() && align_of::<ibv_sge>() == align_of::<Element>());
    assert!(offset_of!(ibv_sge, addr) == offset_of!(Element, address));
    assert!(offset_of!(ibv_sge, length) == offset_of!(Element, bytes));
    assert!(offset_of!(ibv_sge, lkey) == offset_of!(Element, key));
};

/// Fills slots for one element each up to `room`, or to where the ring starts again, as long as the requests
/// of the chain are as most are: of one element, with a key other than 0.
#[inline]
fn fill_single(slots: Slots<'_>, wr: &mut *mut ibv_recv_wr, filled: &mut u32, room: u32) {
    let run = slots.run(*filled).min(room.saturating_sub(*filled));
    let mut slot = slots.at(*filled).cast::<Single>();
    let (mut request, mut count, fetching) = (*wr, 0, run.saturating_sub(LOOKAHEAD));
    while count < run {
        // SAFETY: NULL or a request of the application's chain.
        let Some(next) = (unsafe { request.as_ref() }) else { break };
        if next.num_sge != 1 {
            break;
        }
        // SAFETY: NULL or the application's list, of one entry.
        let entry = unsafe { next.sg_list.cast::<Element>().as_ref() };
        let Some(entry) = entry.filter(|entry| entry.key != 0) else { break };
        if count < fetching {
            prefetch_write(slot.as_ptr().wrapping_add(LOOKAHEAD as usize).cast());
        }
        // SAFETY: there is room, so the slot is this side's; slots of a ring for one element are of this
        // form.
        unsafe { (*slot.as_ptr()).wr_id = next.wr_id };
        // SAFETY: as above.
        unsafe { (*slot.as_ptr()).element = *entry };
        count += 1;
        // SAFETY: at most the end of the ring's slots, since the run does not reach beyond it.
        slot = unsafe { slot.add(1) };
        request = next.next;
    }
    *filled += count;
    *wr = request;
}

/// Copies a scatter/gather list of `count` entries, at most `elements.len()`, and ends it.
#[inline]
pub(crate) fn write_elements(elements: &mut [Element], list: *const ibv_sge, count: u32) {
    for (index, element) in elements.iter_mut().enumerate() {
        if index >= count as usize {
            *element = Element::END;
            break;
        }
        // SAFETY: the application's list has `count` entries.
        let sge = unsafe { list.add(index) };
        // SAFETY: as above.
        *element = Element::of(unsafe { &*sge });
    }
}

//! Posting sends to a plain queue pair: `ibv_post_send`, and the application's end of a send ring, which
//! `qp_wr` fills too.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hugemem::prefetch_write;
use ibverbs_sys::{
    ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp, ibv_qp_ex, ibv_qp_state, ibv_send_flags,
    ibv_send_wr, ibv_sge, ibv_wr_opcode,
};
use softnic::errno::{EINVAL, ENOMEM, EOPNOTSUPP, Verb, VerbErrno, known_bits};
use softnic::limits::MAX_TSO_SEGMENTS;
use softnic::objects::queue_pairs::SendBell;
use softnic::paths;
use softnic::ring::RingProducer;
use softnic::work::{
    Element, SEND_CHECKSUM, SEND_HEADER_BYTES, SEND_INLINE, SEND_SEGMENTS, SEND_SIGNALED, SEND_SOLICITED,
    SendHeader, SendShape,
};
use wire::ETHERNET_BYTES;

use super::Object;
use super::qp::{Plain, SoftQp};
use super::wq::{refuse, write_elements};
use crate::abi::qp_ex_functions;

/// The flags that mean something to a raw packet device, and the two that mean nothing but do no harm.
const KNOWN_FLAGS: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0
    | ibv_send_flags::IBV_SEND_INLINE.0
    | ibv_send_flags::IBV_SEND_IP_CSUM.0
    | ibv_send_flags::IBV_SEND_FENCE.0
    | ibv_send_flags::IBV_SEND_SOLICITED.0;

/// How many requests ahead their lines are taken over from the engine's core.
const LOOKAHEAD: u32 = 6;
/// The engine's index is looked at only if there is room for fewer requests.
const ROOM_WANTED: u32 = 64;

/// The application's end of a send ring.
pub(crate) struct SendPoster {
    pub(crate) producer: RingProducer,
    pub(crate) shape: SendShape,
    /// Bytes of a stream that one request can have segmented.
    pub(crate) max_tso_bytes: u32,
    pub(crate) batch: Batch,
    pub(crate) bell: Arc<SendBell>,
}

/// The requests that were built since `wr_start`.
#[derive(Default)]
pub(crate) struct Batch {
    /// Between `wr_start` and `wr_complete` or `wr_abort`.
    pub(crate) open: bool,
    /// Where the first request is.
    pub(crate) start: u32,
    /// A request that waits for something.
    pub(crate) begun: Option<Begun>,
    /// The first thing that went wrong.
    pub(crate) error: Option<VerbErrno>,
}

/// A request that was begun, and what it waits for. Setters come in any order.
#[derive(Clone, Copy)]
pub(crate) struct Begun {
    pub(crate) header: SendHeader,
    pub(crate) lacks_data: bool,
    /// The request is a datagram's.
    pub(crate) lacks_address: bool,
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    mut request: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: NULL or a queue pair of this provider, by the verb's contract.
    let Ok(qp) = (unsafe { SoftQp::of(qp) }) else { return EINVAL.number() };
    let plain = match sender(qp) {
        Ok(plain) => plain,
        Err(errno) => {
            refuse(request, bad);
            return errno.number();
        }
    };
    let outcome = plain.sends.with(|poster| {
        // Not between `wr_start` and `wr_complete` (ibv_wr_post(3)); only a queue without a lock comes here
        // then.
        let mut outcome = if poster.batch.open { Err(EINVAL) } else { Ok(()) };
        while outcome.is_ok() {
            poster.push_plain(&mut request);
            // SAFETY: NULL or a request of the application's chain.
            let Some(wr) = (unsafe { request.as_ref() }) else { break };
            outcome = poster.push(wr);
            if outcome.is_ok() {
                request = wr.next;
            }
        }
        if !poster.batch.open {
            poster.publish();
        }
        outcome
    });
    match outcome {
        Ok(()) => 0,
        Err(errno) => {
            refuse(request, bad);
            errno.number()
        }
    }
}

/// The rings of a queue pair that sends can be posted to now.
pub(crate) fn sender(qp: &SoftQp) -> Verb<&Plain> {
    // In ERR what is posted is flushed; below RTS nothing can be sent.
    let state = qp.state.load(Ordering::Relaxed);
    let sending =
        matches!(state, ibv_qp_state::IBV_QPS_RTS | ibv_qp_state::IBV_QPS_SQD | ibv_qp_state::IBV_QPS_ERR);
    qp.plain.as_ref().filter(|_| sending).ok_or(EINVAL)
}

impl SendPoster {
    /// Shows the requests to the engine, and wakes it if it sleeps.
    fn publish(&self) {
        self.producer.publish();
        self.bell.ring();
    }

    /// The flags in the ring of a request; the data's place comes later.
    #[inline]
    pub(crate) fn flags(&self, flags: u32) -> Verb<u16> {
        const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;
        match flags {
            0 => Ok(0),
            SIGNALED => Ok(SEND_SIGNALED),
            _ => self.unusual_flags(flags),
        }
    }

    #[inline(never)]
    fn unusual_flags(&self, flags: u32) -> Verb<u16> {
        // A datagram has no headers that checksums could be filled into.
        let unknown = if self.shape.datagram { ibv_send_flags::IBV_SEND_IP_CSUM.0 } else { 0 };
        known_bits(flags, KNOWN_FLAGS & !unknown, EINVAL)?;
        let wants = |flag: ibv_send_flags, bit: u16| if flags & flag.0 == 0 { 0 } else { bit };
        Ok(wants(ibv_send_flags::IBV_SEND_SIGNALED, SEND_SIGNALED)
            | wants(ibv_send_flags::IBV_SEND_IP_CSUM, SEND_CHECKSUM)
            | wants(ibv_send_flags::IBV_SEND_SOLICITED, SEND_SOLICITED))
    }

    /// Fills slots with the first requests of a chain, those that are as most are: a frame in one piece, as
    /// it is. `request` ends at the first other one, or where there is no room.
    // By itself it has enough registers for all that the loop uses.
    #[inline(never)]
    fn push_plain(&mut self, request: &mut *mut ibv_send_wr) {
        if self.shape.datagram || self.shape.max_sge == 0 || paths::are_general() {
            return;
        }
        let ends_list = self.shape.max_sge > 1;
        let (mut filled, mut next) = (0, *request);
        let room = self.producer.room_for(ROOM_WANTED);
        let slots = self.producer.slots();
        let (stride, ahead) = (slots.stride(), LOOKAHEAD as usize * slots.stride());
        'chain: while filled < room {
            // Slots that follow each other in memory.
            let run = slots.run(filled).min(room - filled);
            let mut slot = slots.at(filled).as_ptr();
            let fetching = filled + run.saturating_sub(LOOKAHEAD);
            for _ in 0..run {
                // SAFETY: NULL or a request of the application's chain.
                let Some(wr) = (unsafe { next.as_ref() }).filter(|wr| is_plain(wr)) else { break 'chain };
                if filled < fetching {
                    prefetch_write(slot.wrapping_add(ahead));
                }
                // SAFETY: one of the run, for each of which there is room, so it is this side's.
                unsafe { write_plain(slot, wr, ends_list) };
                (slot, filled, next) = (slot.wrapping_add(stride), filled + 1, wr.next);
            }
        }
        *request = next;
        self.producer.advance_by(filled);
    }

    fn push(&mut self, wr: &ibv_send_wr) -> Verb<()> {
        let inline = wr.send_flags & ibv_send_flags::IBV_SEND_INLINE.0 != 0;
        let flags = self.flags(wr.send_flags)?;
        let count = u32::try_from(wr.num_sge).map_err(|_| EINVAL)?;
        if count > 0 && wr.sg_list.is_null() {
            return Err(EINVAL);
        }
        match wr.opcode {
            ibv_wr_opcode::IBV_WR_SEND => self.begin(wr.wr_id, flags)?,
            ibv_wr_opcode::IBV_WR_SEND_WITH_IMM if self.shape.datagram => {
                // SAFETY: the opcode determines which member of the union the application has set.
                self.begin_immediate(wr.wr_id, flags, unsafe { wr.__bindgen_anon_1.imm_data })?;
            }
            ibv_wr_opcode::IBV_WR_TSO => {
                // SAFETY: the opcode determines which member of the union the application has set.
                let tso = unsafe { wr.__bindgen_anon_2.tso };
                self.begin_segments(wr.wr_id, flags, tso.hdr, tso.hdr_sz, tso.mss)?;
            }
            _ => return Err(EINVAL),
        }
        let addressed = if self.shape.datagram { self.set_address_of(wr) } else { Ok(()) };
        let outcome = addressed.and_then(|()| self.set_data(wr, count, inline));
        if outcome.is_err() {
            self.batch.begun = None;
        }
        outcome
    }

    fn set_data(&mut self, wr: &ibv_send_wr, count: u32, inline: bool) -> Verb<()> {
        if inline {
            // SAFETY: the application's list has `num_sge` entries.
            let pieces = (0..count as usize).map(|index| unsafe { wr.sg_list.add(index) });
            // SAFETY: as above.
            let pieces = pieces.map(|sge| unsafe { sge.read() });
            let address = |sge: ibv_sge| usize::try_from(sge.addr).map_err(|_| EINVAL);
            self.set_inline(pieces.map(|sge| Ok((address(sge)?, sge.length as usize))))
        } else {
            self.set_list(wr.sg_list, count)
        }
    }

    /// Begins a request for one frame.
    #[inline]
    pub(crate) fn begin(&mut self, wr_id: u64, flags: u16) -> Verb<()> {
        if self.batch.begun.is_some() {
            // The request before this one never got its data.
            return Err(EINVAL);
        }
        if !self.producer.has_room(1) {
            return Err(ENOMEM);
        }
        let header = SendHeader { wr_id, flags, segment_bytes: 0, inline_bytes: 0 };
        // SAFETY: there is room, so the slot is this side's; it begins with the header.
        unsafe { self.producer.slot().cast::<SendHeader>().write(header) };
        self.batch.begun = Some(Begun { header, lacks_data: true, lacks_address: self.shape.datagram });
        Ok(())
    }

    /// Begins a request for a stream to be segmented: its headers are copied now.
    pub(crate) fn begin_segments(
        &mut self,
        wr_id: u64,
        flags: u16,
        headers: *const c_void,
        header_bytes: u16,
        segment_bytes: u16,
    ) -> Verb<()> {
        let bytes = u32::from(header_bytes);
        let sizes = bytes >= ETHERNET_BYTES as u32 && bytes <= self.shape.max_tso_header && segment_bytes > 0;
        if !sizes || headers.is_null() {
            return Err(EINVAL);
        }
        self.begin(wr_id, flags | SEND_SEGMENTS)?;
        // SAFETY: a slot's body has room for the headers behind that for the elements.
        let place = unsafe { self.producer.slot().add(SEND_HEADER_BYTES + self.shape.elements_bytes()) };
        // SAFETY: the application names readable memory of its own; the room is `max_tso_header` bytes.
        unsafe { place.as_ptr().copy_from_nonoverlapping(headers.cast(), usize::from(header_bytes)) };
        if let Some(Begun { header, .. }) = &mut self.batch.begun {
            (header.segment_bytes, header.inline_bytes) = (segment_bytes, bytes);
        }
        Ok(())
    }

    /// Gives the request that was begun its buffers.
    // Not part of `set_one`, which would need more registers.
    #[inline(never)]
    pub(crate) fn set_list(&mut self, list: *const ibv_sge, count: u32) -> Verb<()> {
        let header = self.without_data()?;
        if count > self.shape.max_sge || (count > 0 && list.is_null()) {
            return Err(EINVAL);
        }
        if header.flags & SEND_SEGMENTS != 0 {
            let bytes = stream_bytes(list, count);
            let segments = bytes.div_ceil(u64::from(header.segment_bytes));
            if bytes > u64::from(self.max_tso_bytes) || segments > u64::from(MAX_TSO_SEGMENTS) {
                return Err(EINVAL);
            }
        }
        let elements =
            NonNull::slice_from_raw_parts(self.body().cast::<Element>(), self.shape.max_sge as usize);
        // SAFETY: a slot's body holds `max_sge` elements; only this side writes them now.
        write_elements(unsafe { &mut *elements.as_ptr() }, list, count);
        self.fill(header);
        Ok(())
    }

    /// Gives the request that was begun its only buffer.
    #[inline]
    fn set_one(&mut self, sge: ibv_sge) -> Verb<()> {
        // Only what is needed of it: the header is in its slot, as it is to be.
        let Some(Begun { header: SendHeader { flags, .. }, lacks_data: true, lacks_address: false }) =
            self.batch.begun
        else {
            return self.set_list(&raw const sge, 1);
        };
        if flags & SEND_SEGMENTS != 0 || self.shape.max_sge == 0 {
            return self.set_list(&raw const sge, 1);
        }
        let elements = self.body().cast::<Element>();
        // SAFETY: a slot's body holds `max_sge` elements, at least one; only this side writes them now.
        unsafe { elements.write(Element::of(&sge)) };
        if self.shape.max_sge > 1 {
            // SAFETY: as above, and at least two.
            let second = unsafe { elements.add(1) };
            // SAFETY: as above.
            unsafe { second.write(Element::END) };
        }
        self.close();
        Ok(())
    }

    /// Copies the frame itself into the request that was begun: addresses and lengths. They need no key: the
    /// caller's own memory is read now.
    pub(crate) fn set_inline(&mut self, pieces: impl Iterator<Item = Verb<(usize, usize)>>) -> Verb<()> {
        let mut header = self.without_data()?;
        // "Valid only for SEND and RDMA_WRITE" (ibv_wr_post(3)).
        if header.flags & SEND_SEGMENTS != 0 {
            return Err(EINVAL);
        }
        let (body, room) = (self.body(), self.shape.max_inline as usize);
        let mut total = 0usize;
        for piece in pieces {
            let (address, bytes) = piece?;
            // rdma-core, mlx5 and mlx4 qp.c: more than the queue pair takes along is ENOMEM.
            let end = total.checked_add(bytes).filter(|end| *end <= room).ok_or(ENOMEM)?;
            if bytes == 0 {
                continue;
            }
            let from = std::ptr::with_exposed_provenance::<u8>(address);
            if from.is_null() {
                return Err(EINVAL);
            }
            // SAFETY: `total` is within `max_inline`, which the body holds.
            let to = unsafe { body.add(total) };
            // SAFETY: the application names readable memory of its own; `end` is within the body.
            unsafe { to.as_ptr().copy_from_nonoverlapping(from, bytes) };
            total = end;
        }
        (header.flags, header.inline_bytes) = (header.flags | SEND_INLINE, total as u32);
        self.fill(header);
        Ok(())
    }

    /// The header of the request that waits for its data.
    #[inline]
    fn without_data(&self) -> Verb<SendHeader> {
        self.batch.begun.filter(|begun| begun.lacks_data).map(|begun| begun.header).ok_or(EINVAL)
    }

    /// The request's room behind its header.
    #[inline]
    fn body(&self) -> NonNull<u8> {
        // SAFETY: a slot has a header and room behind it.
        unsafe { self.producer.slot().add(SEND_HEADER_BYTES) }
    }

    /// Notes that the request has its data, and with it all that it needs unless it is a datagram without an
    /// address.
    #[inline]
    fn fill(&mut self, header: SendHeader) {
        match self.batch.begun {
            Some(Begun { lacks_address: true, .. }) => {
                self.batch.begun = Some(Begun { header, lacks_data: false, lacks_address: true });
            }
            _ => self.finish(header),
        }
    }

    /// Counts the request as filled, with a header that may have changed since it was begun.
    #[inline]
    pub(super) fn finish(&mut self, header: SendHeader) {
        // SAFETY: there is room since the request was begun, so the slot is this side's; it begins with the
        // header.
        unsafe { self.producer.slot().cast::<SendHeader>().write(header) };
        self.close();
    }

    #[inline]
    fn close(&mut self) {
        self.producer.advance();
        self.batch.begun = None;
    }
}

/// Whether a request is for a frame in one piece, with no flag but that it is signalled, and by a key that
/// can be one.
#[inline]
fn is_plain(wr: &ibv_send_wr) -> bool {
    let is_plain = wr.opcode == ibv_wr_opcode::IBV_WR_SEND
        && wr.num_sge == 1
        && wr.send_flags & !ibv_send_flags::IBV_SEND_SIGNALED.0 == 0
        && !wr.sg_list.is_null();
    // SAFETY: not NULL, so the application's list has an entry.
    is_plain && unsafe { (*wr.sg_list).lkey } != 0
}

/// Writes a request as in [`is_plain`] into a slot. `ends_list`: the slot holds more than one element.
///
/// # Safety
/// There is room for the request in its ring, and no other thread writes the slot.
#[inline]
unsafe fn write_plain(slot: *mut u8, wr: &ibv_send_wr, ends_list: bool) {
    let flags = if wr.send_flags == 0 { 0 } else { SEND_SIGNALED };
    let header = SendHeader { wr_id: wr.wr_id, flags, segment_bytes: 0, inline_bytes: 0 };
    // SAFETY: slots begin with the header.
    unsafe { slot.cast::<SendHeader>().write(header) };
    // SAFETY: the application's list has an entry.
    let ibv_sge { addr: address, length: bytes, lkey: key } = unsafe { *wr.sg_list };
    let elements = slot.wrapping_add(SEND_HEADER_BYTES).cast::<Element>();
    // SAFETY: a slot's body holds `max_sge` elements, at least one.
    unsafe { elements.write(Element { address, bytes, key }) };
    if ends_list {
        // SAFETY: as above, and at least two.
        unsafe { elements.wrapping_add(1).write(Element::END) };
    }
}

fn stream_bytes(list: *const ibv_sge, count: u32) -> u64 {
    (0..count as usize)
        .map(|index| {
            // SAFETY: the application's list has `count` entries.
            let sge = unsafe { list.add(index) };
            // SAFETY: as above.
            u64::from(unsafe { sge.read() }.length)
        })
        .sum()
}

// `ibv_qp_ex`: posting sends by function calls, between `wr_start` and `wr_complete` or `wr_abort`
// (ibv_wr_post(3)).
//
// Nothing of a batch is shown to the engine before `wr_complete`, and then all of it. The builders and
// setters answer nothing: the first thing that goes wrong is what `wr_complete` returns, and then nothing is
// sent.

/// `VERBS_QP_EX` of `enum verbs_qp_mask` (driver.h): `ibv_qp_to_qp_ex` may be answered.
const VERBS_QP_EX: u32 = 1 << 1;

/// Makes a new queue pair extended, for the library of a release.
pub(crate) fn extend(object: &mut SoftQp, release: u32) {
    let functions = qp_ex_functions(release);
    let qp = object.qp.get_mut();
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
    qp.wr_send = Some(wr_send);
    qp.wr_send_tso = Some(wr_send_tso);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
    qp.wr_set_inline_data = Some(wr_set_inline_data);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    qp.wr_send_imm = Some(wr_send_imm);
    qp.wr_set_ud_addr = Some(wr_set_ud_addr);
    // What there is not: a device leaves these NULL, and a call is a crash; here it is an error.
    qp.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    qp.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    qp.wr_bind_mw = Some(wr_bind_mw);
    qp.wr_local_inv = Some(wr_word);
    qp.wr_rdma_read = Some(wr_rdma);
    qp.wr_rdma_write = Some(wr_rdma);
    qp.wr_rdma_write_imm = Some(wr_rdma_imm);
    qp.wr_send_inv = Some(wr_word);
    qp.wr_set_xrc_srqn = Some(wr_word);
    // The last two came with later releases; where there is none, the library's own field takes its place.
    let last = [offset_of!(ibv_qp_ex, wr_atomic_write), offset_of!(ibv_qp_ex, wr_flush)];
    if last[0] < comp_mask_offset(functions) {
        qp.wr_atomic_write = Some(wr_atomic_write);
    }
    if last[1] < comp_mask_offset(functions) {
        qp.wr_flush = Some(wr_flush);
    }
    let place = (&raw mut *object).wrapping_byte_add(comp_mask_offset(functions)).cast::<u32>();
    // SAFETY: `verbs_qp.comp_mask` is behind the functions that the release has, in the last of those that
    // the newest has or in the slack behind them; all of it is this object's, and so is the reference.
    unsafe { place.write(VERBS_QP_EX) };
}

/// Where `verbs_qp.comp_mask` is: behind the functions of `ibv_qp_ex`.
fn comp_mask_offset(functions: usize) -> usize {
    offset_of!(ibv_qp_ex, wr_atomic_cmp_swp) + functions * size_of::<*const c_void>()
}

/// The id and the flags for the next request.
#[derive(Clone, Copy)]
struct Members {
    wr_id: u64,
    wr_flags: u32,
}

/// Runs `body` on the ring, if a batch is open and nothing went wrong in it so far.
fn in_batch(qp: *mut ibv_qp_ex, body: impl FnOnce(&mut SendPoster, Members) -> Verb<()>) {
    // SAFETY: NULL or a queue pair of this provider, by the verb's contract.
    let Ok(object) = (unsafe { SoftQp::of(qp.cast()) }) else { return };
    let Some(plain) = &object.plain else { return };
    // SAFETY: called between `wr_start` and `wr_complete`, by the verb's contract, so the lock is held.
    let poster = unsafe { &mut *plain.sends.held() };
    if !poster.batch.open || poster.batch.error.is_some() {
        return;
    }
    let native = object.qp.get();
    // SAFETY: the live handle; the application has set both before this call, on this thread.
    let wr_id = unsafe { (*native).wr_id };
    // SAFETY: as above.
    let wr_flags = unsafe { (*native).wr_flags };
    if let Err(errno) = body(poster, Members { wr_id, wr_flags }) {
        poster.batch.error = Some(errno);
    }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: NULL or a queue pair of this provider, by the verb's contract.
    let Ok(object) = (unsafe { SoftQp::of(qp.cast()) }) else { return };
    let Some(plain) = &object.plain else { return };
    // SAFETY: locked until `wr_complete` or `wr_abort`.
    let poster = unsafe { &mut *plain.sends.lock() };
    let start = poster.producer.position();
    // A queue pair that cannot send is an error of the whole batch.
    poster.batch = Batch { open: true, start, begun: None, error: sender(object).err() };
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    end(qp, |poster| {
        let unfinished = poster.batch.begun.map(|_| EINVAL);
        match poster.batch.error.or(unfinished) {
            None => {
                poster.publish();
                Ok(())
            }
            Some(errno) => {
                poster.producer.rewind(poster.batch.start);
                Err(errno)
            }
        }
    })
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    end(qp, |poster| {
        poster.producer.rewind(poster.batch.start);
        Ok(())
    });
}

/// Closes the batch.
fn end(qp: *mut ibv_qp_ex, body: impl FnOnce(&mut SendPoster) -> Verb<()>) -> c_int {
    // SAFETY: NULL or a queue pair of this provider, by the verb's contract.
    let Ok(object) = (unsafe { SoftQp::of(qp.cast()) }) else { return EINVAL.number() };
    let Some(plain) = &object.plain else { return EINVAL.number() };
    // SAFETY: called after `wr_start`, by the verb's contract, so the lock is held.
    let poster = unsafe { &mut *plain.sends.held() };
    if !poster.batch.open {
        return EINVAL.number();
    }
    let outcome = body(poster);
    poster.batch = Batch::default();
    plain.sends.unlock();
    outcome.map_or_else(VerbErrno::number, |()| 0)
}

unsafe extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    in_batch(qp, |poster, members| poster.begin(members.wr_id, poster.flags(members.wr_flags)?));
}

unsafe extern "C" fn wr_send_tso(
    qp: *mut ibv_qp_ex,
    headers: *mut c_void,
    header_bytes: u16,
    segment_bytes: u16,
) {
    in_batch(qp, |poster, members| {
        let flags = poster.flags(members.wr_flags)?;
        poster.begin_segments(members.wr_id, flags, headers, header_bytes, segment_bytes)
    });
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    in_batch(qp, |poster, _| poster.set_one(ibv_sge { addr, length, lkey }));
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    in_batch(qp, |poster, _| poster.set_list(list, u32::try_from(count).map_err(|_| EINVAL)?));
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    in_batch(qp, |poster, _| poster.set_inline(std::iter::once(Ok((addr.expose_provenance(), length)))));
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    in_batch(qp, |poster, _| {
        if count > 0 && list.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: the application's list has `count` entries.
        let pieces = (0..count).map(|index| unsafe { list.add(index) });
        // SAFETY: as above.
        let pieces = pieces.map(|piece| unsafe { piece.read() });
        poster.set_inline(pieces.map(|piece| Ok((piece.addr.expose_provenance(), piece.length))))
    });
}

unsafe extern "C" fn wr_send_imm(qp: *mut ibv_qp_ex, immediate: u32) {
    in_batch(qp, |poster, members| {
        poster.begin_immediate(members.wr_id, poster.flags(members.wr_flags)?, immediate)
    });
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, number: u32, key: u32) {
    in_batch(qp, |poster, _| poster.set_address(ah, number, key));
}

/// Operations that there are not.
fn refuse_operation(qp: *mut ibv_qp_ex) {
    const REFUSAL: VerbErrno = EOPNOTSUPP;
    in_batch(qp, |_, _| Err(REFUSAL));
}

macro_rules! refused {
    ($($name:ident($($argument:ty),*);)*) => {
        $(unsafe extern "C" fn $name(qp: *mut ibv_qp_ex, $(_: $argument),*) {
            refuse_operation(qp);
        })*
    };
}

refused! {
    wr_atomic_cmp_swp(u32, u64, u64, u64);
    wr_atomic_fetch_add(u32, u64, u64);
    wr_bind_mw(*mut ibv_mw, u32, *const ibv_mw_bind_info);
    wr_word(u32);
    wr_rdma(u32, u64);
    wr_rdma_imm(u32, u64, u32);
    wr_atomic_write(u32, u64, *const c_void);
    wr_flush(u32, u64, usize, u8, u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_stands_behind_the_functions_of_each_release() {
        // `sizeof(struct ibv_qp_ex)` of the releases, the union before `verbs_qp.comp_mask`.
        let ends = [37, 43, 44, 45, 56, 64].map(|release| comp_mask_offset(qp_ex_functions(release)));
        let whole = size_of::<ibv_qp_ex>();
        assert_eq!(ends, [whole - 16, whole - 16, whole - 8, whole, whole, whole]);
    }
}

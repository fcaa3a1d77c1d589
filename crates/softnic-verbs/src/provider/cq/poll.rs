//! Polling: `start_poll`, `next_poll`, `end_poll`, the readers of a completion's fields, and the plain
//! `poll_cq`.
//!
//! A batch looks at the device's index once, reads completions in place, and gives their slots back once, at
//! its end. What is called for each completion uses the cursor alone: no lock, no look at the handle's mark
//! or at the ring.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hugemem::prefetch_read;
use ibverbs_sys::{
    IBV_WC_EX_WITH_BYTE_LEN, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, IBV_WC_EX_WITH_CVLAN, IBV_WC_EX_WITH_DLID_PATH_BITS,
    IBV_WC_EX_WITH_FLOW_TAG, IBV_WC_EX_WITH_IMM, IBV_WC_EX_WITH_QP_NUM, IBV_WC_EX_WITH_SL,
    IBV_WC_EX_WITH_SLID, IBV_WC_EX_WITH_SRC_QP, IBV_WC_EX_WITH_TM_INFO, ibv_cq, ibv_cq_ex, ibv_poll_cq_attr,
    ibv_wc, ibv_wc_tm_info,
};
use softnic::Nic;
use softnic::personality::{ClockRules, CompletionRules};
use softnic::ring::RingConsumer;
use softnic::work::{Cqe, EMPTY_CQE, Status};

use super::SoftCq;
use crate::abi::WorkCompletion;
use crate::provider::Object;

/// How many completions ahead their lines are fetched from the engine's core: two to a line.
const LOOKAHEAD: u32 = 8;

/// Where an open poll is in the ring.
pub(super) struct Cursor {
    /// The completion that the poll is at: in the ring during a poll, `EMPTY_CQE` outside.
    current: *const Cqe,
    /// The last one from there on that is known to be published, with all between them next to each other in
    /// memory.
    last: *const Cqe,
}

impl Cursor {
    pub(super) const NONE: Self = Self { current: &raw const EMPTY_CQE, last: &raw const EMPTY_CQE };

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
    consumer: RingConsumer,
    /// Completions from the consumer's next one on that an open poll has in its cursor, the current one
    /// included.
    run: u32,
    wants_checksums: Arc<AtomicBool>,
    /// The clock of raw timestamps.
    clock: ClockRules,
    /// The rule of the same name.
    overlays_fields: bool,
    /// A `poll_cq` or `start_poll` is under way.
    polling: bool,
}

impl Poller {
    pub(crate) fn new(consumer: RingConsumer, wants_checksums: Arc<AtomicBool>, nic: &Nic) -> Self {
        let overlays_fields = nic.object_rules().completion.overlays_fields;
        Self { consumer, run: 0, wants_checksums, clock: nic.clock(), overlays_fields, polling: false }
    }

    /// The ring's end, unless a batch is under way, which reads completions in place.
    pub(crate) fn between_polls(&mut self) -> Option<&mut RingConsumer> {
        (!self.polling).then_some(&mut self.consumer)
    }

    /// Has the checksums of the frames to come verified.
    #[inline]
    fn want_checksums(&self) {
        if !self.wants_checksums.load(Ordering::Relaxed) {
            self.wants_checksums.store(true, Ordering::Relaxed);
        }
    }

    /// Counts the completions of the cursor up to its current one as read, and moves it to the next one, with
    /// those behind it that are next to it in memory. False: there is none.
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
    cq.read_vendor_err = Some(if rules.overlays_fields { read_vendor_byte } else { read_zero });
    cq.read_wc_flags = Some(read_wc_flags);
    let asked = |field: u32| fields & field != 0;
    cq.read_byte_len = asked(IBV_WC_EX_WITH_BYTE_LEN).then_some(read_byte_len as _);
    cq.read_imm_data = asked(IBV_WC_EX_WITH_IMM).then_some(read_immediate as _);
    let read_qp_num = if rules.overlays_fields { read_tag_or_number } else { read_qp_num };
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
    // SAFETY: a queue of this provider, as this function is reached through it only; called between
    // `start_poll` and `end_poll`, by the verb's contract.
    let cursor = unsafe { SoftCq::cursor(cq) };
    if cursor.current == cursor.last {
        return next_run(cq);
    }
    cursor.current = cursor.current.wrapping_add(1);
    // Twice per line: that costs less than to look whether a line begins there.
    let ahead = cursor.current.wrapping_add(LOOKAHEAD as usize);
    if ahead.addr() <= cursor.last.addr() {
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

/// The flag of raw packets is IP_CSUM_OK. Verifying costs the engine time, so it begins when a queue is first
/// asked; completions from before make no claim.
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
                qp_num: if poller.overlays_fields { cqe.tag_or_number() } else { cqe.queue_number },
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

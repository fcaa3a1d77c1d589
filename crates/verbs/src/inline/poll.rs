//! The functions of a completion queue: the rest of the header's inlines, those the packet path calls.
//!
//! Looked up once, when a queue is made: a provider sets them then and leaves them (ibv_create_cq_ex(3)).
//! From then on a poll calls them directly, and a field that was not asked for, whose function may be NULL,
//! has none here.

use ibverbs_sys::{ibv_cq_ex, ibv_poll_cq_attr, ibv_wc_opcode, ibv_wc_tm_info};
use std::ffi::c_int;

use crate::CompletionFields;

/// Reads a field of the current completion.
pub(crate) type Read<T> = unsafe extern "C" fn(*mut ibv_cq_ex) -> T;

/// Reads the tag matching information of the current completion.
pub(crate) type ReadTagMatching = unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_wc_tm_info);

/// The functions that can be called on one completion queue.
#[derive(Clone, Copy)]
pub(crate) struct PollFunctions {
    start_poll: unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> c_int,
    next_poll: unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int,
    end_poll: unsafe extern "C" fn(*mut ibv_cq_ex),
    pub(crate) opcode: Read<ibv_wc_opcode::Type>,
    pub(crate) wc_flags: Read<u32>,
    pub(crate) vendor_err: Read<u32>,
    pub(crate) byte_len: Option<Read<u32>>,
    pub(crate) flow_tag: Option<Read<u32>>,
    pub(crate) timestamp: Option<Read<u64>>,
    pub(crate) wallclock_ns: Option<Read<u64>>,
    pub(crate) cvlan: Option<Read<u16>>,
    pub(crate) qp_num: Option<Read<u32>>,
    pub(crate) imm_data: Option<Read<u32>>,
    pub(crate) src_qp: Option<Read<u32>>,
    pub(crate) slid: Option<Read<u32>>,
    pub(crate) sl: Option<Read<u8>>,
    pub(crate) dlid_path_bits: Option<Read<u8>>,
    pub(crate) tm_info: Option<ReadTagMatching>,
}

impl PollFunctions {
    /// The functions of a queue that was asked for `fields`. `None`: the provider left one out.
    pub(crate) fn of(cq: &ibv_cq_ex, fields: CompletionFields) -> Option<Self> {
        /// `None` for a function that should be there and is not.
        fn asked<F>(asked: bool, read: Option<F>) -> Option<Option<F>> {
            if asked { read.map(Some) } else { Some(None) }
        }
        let has = |field| fields.contains(field);
        Some(Self {
            start_poll: cq.start_poll?,
            next_poll: cq.next_poll?,
            end_poll: cq.end_poll?,
            opcode: cq.read_opcode?,
            wc_flags: cq.read_wc_flags?,
            vendor_err: cq.read_vendor_err?,
            byte_len: asked(has(CompletionFields::BYTE_LEN), cq.read_byte_len)?,
            flow_tag: asked(has(CompletionFields::FLOW_TAG), cq.read_flow_tag)?,
            timestamp: asked(has(CompletionFields::COMPLETION_TIMESTAMP), cq.read_completion_ts)?,
            wallclock_ns: asked(
                has(CompletionFields::COMPLETION_TIMESTAMP_WALLCLOCK),
                cq.read_completion_wallclock_ns,
            )?,
            cvlan: asked(has(CompletionFields::CVLAN), cq.read_cvlan)?,
            qp_num: asked(has(CompletionFields::QP_NUM), cq.read_qp_num)?,
            imm_data: asked(has(CompletionFields::IMM), cq.read_imm_data)?,
            src_qp: asked(has(CompletionFields::SRC_QP), cq.read_src_qp)?,
            slid: asked(has(CompletionFields::SLID), cq.read_slid)?,
            sl: asked(has(CompletionFields::SL), cq.read_sl)?,
            dlid_path_bits: asked(has(CompletionFields::DLID_PATH_BITS), cq.read_dlid_path_bits)?,
            tm_info: asked(has(CompletionFields::TM_INFO), cq.read_tm_info)?,
        })
    }

    /// `ibv_start_poll`. ENOENT: empty, and no poll was opened.
    ///
    /// # Safety
    /// `cq` is the queue these are of and live, no poll is open on it and no other thread uses it.
    #[inline]
    pub(crate) unsafe fn start_poll(&self, cq: *mut ibv_cq_ex) -> c_int {
        let mut attr = ibv_poll_cq_attr { comp_mask: 0 };
        // SAFETY: forwarded contract.
        unsafe { (self.start_poll)(cq, &mut attr) }
    }

    /// `ibv_next_poll`. ENOENT: no more completions; the poll is still open.
    ///
    /// # Safety
    /// `cq` is the queue these are of; a poll is open on it, by this thread.
    #[inline]
    pub(crate) unsafe fn next_poll(&self, cq: *mut ibv_cq_ex) -> c_int {
        // SAFETY: forwarded contract.
        unsafe { (self.next_poll)(cq) }
    }

    /// `ibv_end_poll`.
    ///
    /// # Safety
    /// As for [`PollFunctions::next_poll`]; the poll is closed afterwards.
    #[inline]
    pub(crate) unsafe fn end_poll(&self, cq: *mut ibv_cq_ex) {
        // SAFETY: forwarded contract.
        unsafe { (self.end_poll)(cq) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn start(_: *mut ibv_cq_ex, _: *mut ibv_poll_cq_attr) -> c_int {
        libc::ENOENT
    }

    unsafe extern "C" fn next(_: *mut ibv_cq_ex) -> c_int {
        libc::ENOENT
    }

    unsafe extern "C" fn end(_: *mut ibv_cq_ex) {}

    unsafe extern "C" fn read(_: *mut ibv_cq_ex) -> u32 {
        7
    }

    /// A queue with the functions that every queue has.
    fn bare() -> ibv_cq_ex {
        ibv_cq_ex {
            start_poll: Some(start),
            next_poll: Some(next),
            end_poll: Some(end),
            read_opcode: Some(read),
            read_wc_flags: Some(read),
            read_vendor_err: Some(read),
            ..ibv_cq_ex::default()
        }
    }

    #[test]
    fn a_queue_without_a_needed_function_is_refused() {
        assert!(PollFunctions::of(&bare(), CompletionFields::empty()).is_some());
        let without: [fn(&mut ibv_cq_ex); 6] = [
            |cq| cq.start_poll = None,
            |cq| cq.next_poll = None,
            |cq| cq.end_poll = None,
            |cq| cq.read_opcode = None,
            |cq| cq.read_wc_flags = None,
            |cq| cq.read_vendor_err = None,
        ];
        for remove in without {
            let mut cq = bare();
            remove(&mut cq);
            assert!(PollFunctions::of(&cq, CompletionFields::empty()).is_none());
        }
    }

    #[test]
    fn a_field_has_a_function_only_if_it_was_asked_for() {
        for field in CompletionFields::all().iter() {
            assert!(PollFunctions::of(&bare(), field).is_none(), "{field:?} was asked for and is not there");
        }
        let cq = ibv_cq_ex { read_byte_len: Some(read), read_flow_tag: Some(read), ..bare() };
        let functions = PollFunctions::of(&cq, CompletionFields::BYTE_LEN).expect("complete");
        assert!(functions.byte_len.is_some() && functions.flow_tag.is_none());
    }
}

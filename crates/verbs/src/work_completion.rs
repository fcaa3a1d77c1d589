//! A completion as `ibv_poll_cq` gives it: all fields at once, by value.
//!
//! Made by [`CompletionQueue::poll_classic`](crate::CompletionQueue::poll_classic), for callers that want completions
//! as a list. The packet path reads the current one instead ([`Completion`](crate::Completion)), which costs less.

use ibverbs_sys::{ibv_wc, ibv_wc_opcode, ibv_wc_status};

use crate::completion::token_of;
use crate::{CompletionFlags, Opcode, QueueNumber, Status};

/// `struct ibv_wc`, verbs.h, whose fields the bindings hide.
#[repr(C)]
#[derive(Default)]
pub(crate) struct RawCompletion {
    wr_id: u64,
    status: ibv_wc_status::Type,
    opcode: ibv_wc_opcode::Type,
    vendor_err: u32,
    byte_len: u32,
    imm_data: u32,
    qp_num: u32,
    src_qp: u32,
    wc_flags: u32,
    pkey_index: u16,
    slid: u16,
    sl: u8,
    dlid_path_bits: u8,
}

const _: () = assert!(size_of::<RawCompletion>() == size_of::<ibv_wc>() && size_of::<ibv_wc>() == 48);
const _: () = assert!(align_of::<RawCompletion>() == align_of::<ibv_wc>());

/// A completion. Unless the status is [`Status::Success`], only the work request id, the status, the vendor's code and
/// the queue pair number mean anything (ibv_poll_cq(3)). There is no flow tag, VLAN tag or timestamp here.
///
/// Not `Clone`: a completion gives its frame back once, to
/// [`FramePool::reclaim_classic`](crate::FramePool::reclaim_classic).
#[must_use = "the frame it names is lost to its pool until the completion is given back"]
pub struct WorkCompletion(RawCompletion);

impl WorkCompletion {
    pub(crate) fn new(raw: RawCompletion) -> Self {
        Self(raw)
    }

    /// The id of the work request; [`FramePool::reclaim_classic`](crate::FramePool::reclaim_classic) knows what it means.
    pub fn wr_id(&self) -> u64 {
        self.0.wr_id
    }

    /// As [`Completion::token`](crate::Completion::token).
    pub fn token(&self) -> Option<u32> {
        token_of(self.0.wr_id)
    }

    /// How it ended.
    pub fn status(&self) -> Status {
        Status::from(self.0.status)
    }

    /// What ended.
    pub fn opcode(&self) -> Opcode {
        Opcode::from(self.0.opcode)
    }

    /// The vendor's own code for a failure.
    pub fn vendor_error(&self) -> u32 {
        self.0.vendor_err
    }

    /// Length of a received packet.
    pub fn byte_len(&self) -> u32 {
        self.0.byte_len
    }

    /// The number of the queue pair, or of the work queue if the packet came through RSS.
    pub fn qp_num(&self) -> QueueNumber {
        QueueNumber(self.0.qp_num)
    }

    /// The flags.
    pub fn wc_flags(&self) -> CompletionFlags {
        CompletionFlags::from_bits_retain(self.0.wc_flags)
    }
}

impl std::fmt::Debug for WorkCompletion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (wr_id, status) = (self.wr_id(), self.status());
        f.debug_struct("WorkCompletion").field("wr_id", &wr_id).field("status", &status).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn the_hidden_fields_are_where_the_bindings_have_them() {
        assert_eq!(offset_of!(RawCompletion, imm_data), offset_of!(ibv_wc, imm_data));
        assert_eq!(offset_of!(RawCompletion, wc_flags), offset_of!(ibv_wc, wc_flags));
        assert_eq!(offset_of!(RawCompletion, dlid_path_bits), offset_of!(ibv_wc, dlid_path_bits));
        let raw = RawCompletion { wr_id: 7, byte_len: 60, ..RawCompletion::default() };
        // SAFETY: one size and alignment, and every bit pattern is a value of either.
        let seen: &ibv_wc = unsafe { &*(&raw const raw).cast() };
        assert_eq!((seen.wr_id(), seen.len(), seen.is_valid()), (7, 60, true));
    }
}

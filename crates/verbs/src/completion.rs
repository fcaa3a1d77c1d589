//! Completions, in two forms. [`Completion`] is the current one of an open poll, read between two steps of a
//! [`CompletionBatch`](crate::CompletionBatch): a field that was not asked for is `None`, and its function, which may be NULL, is
//! never called. [`WorkCompletion`] is one as `ibv_poll_cq` returns it, all fields at once, by value, which
//! costs more.

use std::fmt;
use std::marker::PhantomData;

use ibverbs_sys::{self as sys, ibv_cq_ex, ibv_wc, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status};

use crate::inline::Read;
use crate::{CompletionQueueHandle, QueueNumber};

bitflags::bitflags! {
    /// `ibv_wc_flags`. On raw packet queues only the checksum bit means anything.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct CompletionFlags: u32 {
        /// The buffer begins with a global route header.
        const GRH = ibv_wc_flags::IBV_WC_GRH.0;
        /// There is immediate data.
        const WITH_IMM = ibv_wc_flags::IBV_WC_WITH_IMM.0;
        /// The IP header checksum and, where there is one, the L4 checksum were found right.
        const IP_CSUM_OK = ibv_wc_flags::IBV_WC_IP_CSUM_OK.0;
        const _ = !0;
    }
}

/// A flow tag: what a flow's TAG action puts into completions. Below 2^24 on every known device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowTag(pub u32);

/// How a work request ended (`ibv_wc_status`), as far as raw packet queues know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompletionStatus {
    /// The request was carried out.
    Success,
    /// The packet was longer than the buffer.
    LocalLength,
    /// The queue pair found the request itself at fault.
    LocalQueuePairOperation,
    /// The buffer is not registered, or not in the queue's domain.
    LocalProtection,
    /// The queue left RTS or RDY with the request still in it.
    Flushed,
    /// The buffer may not be accessed that way.
    LocalAccess,
    /// The queue is beyond repair.
    Fatal,
    /// Failed, without a more exact status.
    General,
    /// A status this crate has no name for.
    Unknown(u32),
}

impl From<ibv_wc_status::Type> for CompletionStatus {
    #[inline]
    fn from(raw: ibv_wc_status::Type) -> Self {
        match raw {
            ibv_wc_status::IBV_WC_SUCCESS => Self::Success,
            ibv_wc_status::IBV_WC_LOC_LEN_ERR => Self::LocalLength,
            ibv_wc_status::IBV_WC_LOC_QP_OP_ERR => Self::LocalQueuePairOperation,
            ibv_wc_status::IBV_WC_LOC_PROT_ERR => Self::LocalProtection,
            ibv_wc_status::IBV_WC_WR_FLUSH_ERR => Self::Flushed,
            ibv_wc_status::IBV_WC_LOC_ACCESS_ERR => Self::LocalAccess,
            ibv_wc_status::IBV_WC_FATAL_ERR => Self::Fatal,
            ibv_wc_status::IBV_WC_GENERAL_ERR => Self::General,
            other => Self::Unknown(other),
        }
    }
}

impl fmt::Display for CompletionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Success => f.write_str("success"),
            Self::LocalLength => f.write_str("packet longer than its buffer"),
            Self::LocalQueuePairOperation => f.write_str("malformed work request"),
            Self::LocalProtection => f.write_str("buffer not registered in the queue's domain"),
            Self::Flushed => f.write_str("flushed"),
            Self::LocalAccess => f.write_str("buffer may not be accessed that way"),
            Self::Fatal => f.write_str("fatal error of the queue"),
            Self::General => f.write_str("unspecified error of the device"),
            Self::Unknown(raw) => write!(f, "completion status {raw}"),
        }
    }
}

/// The kind of work request that ended (`ibv_wc_opcode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Opcode {
    /// A send.
    Send,
    /// A send that the device cut into segments.
    SegmentedSend,
    /// A receive.
    Receive,
    /// One this crate never posts.
    Unknown(u32),
}

impl From<ibv_wc_opcode::Type> for Opcode {
    #[inline]
    fn from(raw: ibv_wc_opcode::Type) -> Self {
        match raw {
            ibv_wc_opcode::IBV_WC_SEND => Self::Send,
            ibv_wc_opcode::IBV_WC_TSO => Self::SegmentedSend,
            ibv_wc_opcode::IBV_WC_RECV => Self::Receive,
            other => Self::Unknown(other),
        }
    }
}

/// The pool id in the work request ids of sends without a frame; no pool has it ([`crate::FramePool`]).
const NO_POOL: u32 = u32::MAX;

/// The work request id of a send without a frame.
#[inline]
pub(crate) fn wr_id_of(token: u32) -> u64 {
    u64::from(NO_POOL) << 32 | u64::from(token)
}

#[inline]
pub(crate) fn token_of(wr_id: u64) -> Option<u32> {
    ((wr_id >> 32) as u32 == NO_POOL).then_some(wr_id as u32)
}

/// The current completion of a batch. Unless the status is [`CompletionStatus::Success`], only the work
/// request id, the status, the vendor's code and the queue pair number mean anything (ibv_create_cq_ex(3)).
pub struct Completion<'b> {
    queue: &'b CompletionQueueHandle,
    /// Stays on the polling thread.
    _not_send: PhantomData<*const ()>,
}

impl fmt::Debug for Completion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (wr_id, status) = (self.wr_id(), self.status());
        f.debug_struct("Completion").field("wr_id", &wr_id).field("status", &status).finish()
    }
}

/// Defines a reader: `None` unless the field was asked for.
macro_rules! reader {
    ($(#[$doc:meta])* $name:ident -> $out:ty) => {
        $(#[$doc])*
        #[inline]
        pub fn $name(&self) -> Option<$out> {
            self.queue.functions().$name.map(|read| self.read(read))
        }
    };
}

impl<'b> Completion<'b> {
    /// # Safety
    /// The caller has just made a completion of `queue` current, and keeps it so for `'b`.
    #[inline]
    pub(crate) unsafe fn current(queue: &'b CompletionQueueHandle) -> Self {
        Self { queue, _not_send: PhantomData }
    }

    #[inline]
    fn raw(&self) -> *mut ibv_cq_ex {
        self.queue.raw()
    }

    /// Calls one of the queue's own functions.
    #[inline]
    fn read<T>(&self, read: Read<T>) -> T {
        // SAFETY: a completion is current, by the contract of `current`; functions are there only for fields
        // that were asked for.
        unsafe { read(self.raw()) }
    }

    /// The id of the work request; [`FramePool::reclaim`](crate::FramePool::reclaim) maps it to a frame.
    #[inline]
    pub fn wr_id(&self) -> u64 {
        // SAFETY: the queue is live, and only its poller, which is at this completion, writes this.
        unsafe { (*self.raw()).wr_id }
    }

    /// The token of a send whose bytes the queue copied
    /// ([`SendRequest::inline`](crate::SendRequest::inline)); `None` for a frame, which
    /// [`FramePool::reclaim`](crate::FramePool::reclaim) takes.
    #[inline]
    pub fn token(&self) -> Option<u32> {
        token_of(self.wr_id())
    }

    /// How it ended.
    #[inline]
    pub fn status(&self) -> CompletionStatus {
        CompletionStatus::from(self.raw_status())
    }

    /// Whether the status is [`CompletionStatus::Success`].
    #[inline]
    pub fn succeeded(&self) -> bool {
        self.raw_status() == ibv_wc_status::IBV_WC_SUCCESS
    }

    #[inline]
    fn raw_status(&self) -> ibv_wc_status::Type {
        // SAFETY: as for `wr_id`.
        unsafe { (*self.raw()).status }
    }

    /// The kind of work request that ended.
    #[inline]
    pub fn opcode(&self) -> Opcode {
        Opcode::from(self.read(self.queue.functions().opcode))
    }

    /// The vendor's own code for a failure.
    pub fn vendor_error(&self) -> u32 {
        self.read(self.queue.functions().vendor_err)
    }

    /// The flags.
    #[inline]
    pub fn wc_flags(&self) -> CompletionFlags {
        CompletionFlags::from_bits_retain(self.read(self.queue.functions().wc_flags))
    }

    /// Whether the device found the checksums correct; `None` if it does not check them. False means that one
    /// is wrong or that the packet has none.
    #[inline]
    pub fn checksum_ok(&self) -> Option<bool> {
        self.queue.checksums().then(|| self.wc_flags().contains(CompletionFlags::IP_CSUM_OK))
    }

    /// The tag of the flow that steered the packet here; 0 for a flow without one.
    #[inline]
    pub fn flow_tag(&self) -> Option<FlowTag> {
        self.queue.functions().flow_tag.map(|read| FlowTag(self.read(read)))
    }

    /// The number of the queue pair, or of the work queue if the packet came through RSS.
    #[inline]
    pub fn qp_num(&self) -> Option<QueueNumber> {
        self.queue.functions().qp_num.map(|read| QueueNumber(self.read(read)))
    }

    /// Immediate data, in host byte order; of other transports.
    pub fn imm_data(&self) -> Option<u32> {
        self.queue.functions().imm_data.map(|read| u32::from_be(self.read(read)))
    }

    /// The matched tag and the application's data; of other transports.
    pub fn tag_matching(&self) -> Option<(u64, u32)> {
        let read = self.queue.functions().tm_info?;
        let mut info = sys::ibv_wc_tm_info::default();
        // SAFETY: a completion is current and the field was asked for, as in `read`; the structure is
        // writable.
        unsafe { read(self.raw(), &raw mut info) };
        Some((info.tag, info.priv_))
    }

    reader!(/// Number of the sending queue pair; of other transports.
        src_qp -> u32);
    reader!(/// Local identifier of the sender; of other transports.
        slid -> u32);
    reader!(/// Service level; of other transports.
        sl -> u8);
    reader!(/// Path bits of the local identifier the packet was sent to; of other transports.
        dlid_path_bits -> u8);
    reader!(/// Length of the packet.
        byte_len -> u32);
    reader!(/// The device's clock when the packet arrived, in its own ticks.
        timestamp -> u64);
    reader!(/// When the packet arrived, in nanoseconds of the real-time clock.
        wallclock_ns -> u64);
    reader!(/// The tag control information of a VLAN tag that the device took off.
        cvlan -> u16);
}

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

/// A completion. Unless the status is [`CompletionStatus::Success`], only the work request id, the status,
/// the vendor's code and the queue pair number mean anything (ibv_poll_cq(3)). There is no flow tag, VLAN tag
/// or timestamp here.
///
/// Not `Clone`: a completion gives its frame back once, to
/// [`FramePool::reclaim_classic`](crate::FramePool::reclaim_classic).
#[must_use = "the frame it names is lost to its pool until the completion is given back"]
pub struct WorkCompletion(RawCompletion);

impl WorkCompletion {
    pub(crate) fn new(raw: RawCompletion) -> Self {
        Self(raw)
    }

    /// The id of the work request; [`FramePool::reclaim_classic`](crate::FramePool::reclaim_classic) maps it
    /// to a frame.
    pub fn wr_id(&self) -> u64 {
        self.0.wr_id
    }

    /// The token, as in [`Completion::token`](crate::Completion::token).
    pub fn token(&self) -> Option<u32> {
        token_of(self.0.wr_id)
    }

    /// How it ended.
    pub fn status(&self) -> CompletionStatus {
        CompletionStatus::from(self.0.status)
    }

    /// The kind of work request that ended.
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
    fn statuses_and_opcodes_keep_unknown_numbers() {
        assert_eq!(CompletionStatus::from(ibv_wc_status::IBV_WC_WR_FLUSH_ERR), CompletionStatus::Flushed);
        assert_eq!(CompletionStatus::from(14), CompletionStatus::Unknown(14));
        assert_eq!(CompletionStatus::Unknown(14).to_string(), "completion status 14");
        assert_eq!(Opcode::from(ibv_wc_opcode::IBV_WC_RECV), Opcode::Receive);
        assert_eq!(Opcode::from(ibv_wc_opcode::IBV_WC_TSO), Opcode::SegmentedSend);
        assert_eq!(Opcode::from(ibv_wc_opcode::IBV_WC_FLUSH), Opcode::Unknown(8));
    }

    #[test]
    fn flags_of_other_transports_are_kept() {
        let flags = CompletionFlags::from_bits_retain(5);
        assert!(flags.contains(CompletionFlags::IP_CSUM_OK));
        assert_eq!(flags.bits(), 5);
    }

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

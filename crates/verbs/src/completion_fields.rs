//! The fields that completions can be asked for.

use ibverbs_sys as sys;

bitflags::bitflags! {
    /// `ibv_create_cq_wc_flags`: what completions are asked for beyond status, opcode and flags.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct CompletionFields: u64 {
        /// [`Completion::byte_len`](crate::Completion::byte_len).
        const BYTE_LEN = sys::IBV_WC_EX_WITH_BYTE_LEN as u64;
        /// [`Completion::imm_data`](crate::Completion::imm_data); not on raw packet queues.
        const IMM = sys::IBV_WC_EX_WITH_IMM as u64;
        /// [`Completion::qp_num`](crate::Completion::qp_num).
        const QP_NUM = sys::IBV_WC_EX_WITH_QP_NUM as u64;
        /// [`Completion::src_qp`](crate::Completion::src_qp); not on raw packet queues.
        const SRC_QP = sys::IBV_WC_EX_WITH_SRC_QP as u64;
        /// [`Completion::slid`](crate::Completion::slid); not on raw packet queues.
        const SLID = sys::IBV_WC_EX_WITH_SLID as u64;
        /// [`Completion::sl`](crate::Completion::sl); not on raw packet queues.
        const SL = sys::IBV_WC_EX_WITH_SL as u64;
        /// [`Completion::dlid_path_bits`](crate::Completion::dlid_path_bits); not on raw packet queues.
        const DLID_PATH_BITS = sys::IBV_WC_EX_WITH_DLID_PATH_BITS as u64;
        /// [`Completion::timestamp`](crate::Completion::timestamp).
        const COMPLETION_TIMESTAMP = sys::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP as u64;
        /// [`Completion::cvlan`](crate::Completion::cvlan).
        const CVLAN = sys::IBV_WC_EX_WITH_CVLAN as u64;
        /// [`Completion::flow_tag`](crate::Completion::flow_tag).
        const FLOW_TAG = sys::IBV_WC_EX_WITH_FLOW_TAG as u64;
        /// [`Completion::tag_matching`](crate::Completion::tag_matching); not on raw packet queues.
        const TM_INFO = sys::IBV_WC_EX_WITH_TM_INFO as u64;
        /// [`Completion::wallclock_ns`](crate::Completion::wallclock_ns).
        const COMPLETION_TIMESTAMP_WALLCLOCK = sys::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK as u64;
    }
}

impl CompletionFields {
    /// Everything that a raw packet queue can know.
    pub const RAW_PACKET: Self = Self::BYTE_LEN
        .union(Self::QP_NUM)
        .union(Self::COMPLETION_TIMESTAMP)
        .union(Self::CVLAN)
        .union(Self::FLOW_TAG)
        .union(Self::COMPLETION_TIMESTAMP_WALLCLOCK);
}

//! The operations that an extended queue pair can be asked for.

use ibverbs_sys as sys;

bitflags::bitflags! {
    /// `ibv_qp_create_send_ops_flags`: the operations that [`SendBatch`](crate::SendBatch) is to have. Raw
    /// packet queue pairs have sends and segmentation; a device refuses the others, with EINVAL or EOPNOTSUPP
    /// (ibv_wr_post(3)).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SendOperations: u64 {
        /// Writes to the memory of a peer.
        const RDMA_WRITE = sys::IBV_QP_EX_WITH_RDMA_WRITE as u64;
        /// An RDMA write with immediate data.
        const RDMA_WRITE_WITH_IMM = sys::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM as u64;
        /// [`SendBatch::send`](crate::SendBatch::send).
        const SEND = sys::IBV_QP_EX_WITH_SEND as u64;
        /// A message with immediate data.
        const SEND_WITH_IMM = sys::IBV_QP_EX_WITH_SEND_WITH_IMM as u64;
        /// Reads from the memory of a peer.
        const RDMA_READ = sys::IBV_QP_EX_WITH_RDMA_READ as u64;
        /// Compares and swaps.
        const ATOMIC_CMP_AND_SWP = sys::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP as u64;
        /// Fetches and adds.
        const ATOMIC_FETCH_AND_ADD = sys::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD as u64;
        /// Invalidates a memory window.
        const LOCAL_INV = sys::IBV_QP_EX_WITH_LOCAL_INV as u64;
        /// Binds a memory window.
        const BIND_MW = sys::IBV_QP_EX_WITH_BIND_MW as u64;
        /// A message that invalidates a memory window.
        const SEND_WITH_INV = sys::IBV_QP_EX_WITH_SEND_WITH_INV as u64;
        /// [`SendBatch::tso`](crate::SendBatch::tso).
        const TSO = sys::IBV_QP_EX_WITH_TSO as u64;
        /// Waits until written memory is visible or persistent.
        const FLUSH = sys::IBV_QP_EX_WITH_FLUSH as u64;
        /// Writes eight bytes at once.
        const ATOMIC_WRITE = sys::IBV_QP_EX_WITH_ATOMIC_WRITE as u64;
        const _ = !0;
    }
}

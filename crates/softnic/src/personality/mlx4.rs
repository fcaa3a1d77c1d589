//! What ConnectX-3 refuses. "rdma-core" is its providers/mlx4, "kernel" drivers/infiniband/hw/mlx4.

use ibverbs_sys::{
    IBV_CREATE_CQ_ATTR_SINGLE_THREADED, IBV_QP_CREATE_BLOCK_SELF_MCAST_LB, IBV_QP_INIT_ATTR_CREATE_FLAGS,
    IBV_QP_INIT_ATTR_IND_TABLE, IBV_QP_INIT_ATTR_MAX_TSO_HEADER, IBV_QP_INIT_ATTR_PD,
    IBV_QP_INIT_ATTR_RX_HASH, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, IBV_WC_EX_WITH_SL, IBV_WC_EX_WITH_SLID,
    IBV_WQ_FLAGS_SCATTER_FCS,
};

use super::ideal::{CQ_ATTR_FLAGS, STANDARD_FIELDS};
use super::{
    ClockRules, CompletionRules, DomainRules, KnownBits, ObjectRules, QueuePairRules, Resources, RssRules,
    WorkQueueRules,
};
use crate::errno::{EINVAL, ENOMEM, EOPNOTSUPP};
use crate::limits;

/// `RDMA_DRIVER_MLX4` (rdma/ib_user_ioctl_verbs.h) in the upper half of a resource type; never seen, since
/// there are no parent domains.
const DRIVER: u64 = 2 << 32;

pub(super) static OBJECTS: ObjectRules = ObjectRules {
    clock: ClockRules {
        // `hca_core_clock` of ConnectX-3 (427 MHz).
        kilohertz: 427_000,
        // kernel main.c, `mlx4_ib_query_device`: `timestamp_mask`.
        mask: 0xffff_ffff_ffff,
    },
    completion: CompletionRules {
        // rdma-core verbs.c, `mlx4_create_cq_ex`: EINVAL, before `create_cq` would return ENOTSUP.
        attributes: KnownBits { bits: CQ_ATTR_FLAGS, refusal: EINVAL },
        // rdma-core verbs.c, `create_cq`: CREATE_CQ_SUPPORTED_FLAGS, ENOTSUP.
        flags: KnownBits { bits: IBV_CREATE_CQ_ATTR_SINGLE_THREADED, refusal: EOPNOTSUPP },
        // The same: CREATE_CQ_SUPPORTED_WC_FLAGS, ENOTSUP: neither flow tag, nor C-VLAN, nor wall clock.
        fields: KnownBits {
            bits: STANDARD_FIELDS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
            refusal: EOPNOTSUPP,
        },
        // The same: the timestamp uses the place of these two.
        exclusive_fields: Some((
            IBV_WC_EX_WITH_SLID | IBV_WC_EX_WITH_SL,
            IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
        )),
        // The same: "cqe > 0x3fffff" is EINVAL.
        max_entries: limits::MAX_CQE - 1,
        // The same: `roundup_pow_of_two(cqe + 1)`, one less is reported.
        rounds_up: true,
        has_one_spare_entry: false,
        overlays_fields: false,
        checksums_of_work_queues: true,
        arming_counts_unpolled: false,
        plain_domain: false,
        vectors: limits::COMP_VECTORS,
        // kernel include/linux/mlx4/cq.h: MLX4_MAX_CQ_COUNT and MLX4_MAX_CQ_PERIOD.
        max_moderation_count: u16::MAX,
        max_moderation_period_us: u16::MAX,
    },
    domain: DomainRules {
        // rdma-core mlx4.c sets neither `alloc_parent_domain` nor `alloc_td`: the library returns EOPNOTSUPP.
        parent_domains: false,
        thread_domain_refusal: EOPNOTSUPP,
        allocator_refusal: ENOMEM,
        resources: Resources {
            completion_queue: DRIVER | 1,
            work_queue: DRIVER | 2,
            queue_pair: DRIVER | 3,
            doorbell: DRIVER | 4,
        },
    },
    queue_pair: QueuePairRules {
        // rdma-core verbs.c: MLX4_CREATE_QP_SUP_COMP_MASK, ENOTSUP; RSS before it. No sending by `ibv_qp_ex`.
        attributes: KnownBits {
            bits: IBV_QP_INIT_ATTR_PD
                | IBV_QP_INIT_ATTR_CREATE_FLAGS
                | IBV_QP_INIT_ATTR_MAX_TSO_HEADER
                | IBV_QP_INIT_ATTR_IND_TABLE
                | IBV_QP_INIT_ATTR_RX_HASH,
            refusal: EOPNOTSUPP,
        },
        // kernel qp.c, `_mlx4_ib_create_qp`: `sup_u_create_flags`.
        create_flags: KnownBits { bits: IBV_QP_CREATE_BLOCK_SELF_MCAST_LB, refusal: EOPNOTSUPP },
        datagram_flags: KnownBits { bits: IBV_QP_CREATE_BLOCK_SELF_MCAST_LB, refusal: EOPNOTSUPP },
        send_operations: 0,
        datagram_send_operations: 0,
        // kernel main.c, `mlx4_ib_query_device`: `max_gso_sz`.
        max_tso_bytes: limits::MAX_TSO_BYTES,
        // kernel net/ethernet/mellanox/mlx4/qp.c: MLX4_CMD_RTS2SQD_QP.
        drains: true,
        // rdma-core mlx4.c sets no `modify_qp_rate_limit`; kernel qp.c, `__mlx4_ib_modify_qp`: no packet
        // pacing.
        max_rate_kbps: 0,
    },
    work_queue: WorkQueueRules {
        // kernel qp.c, `mlx4_ib_create_wq`.
        create_flags: KnownBits { bits: IBV_WQ_FLAGS_SCATTER_FCS, refusal: EOPNOTSUPP },
        // kernel qp.c, `mlx4_ib_modify_wq`: none.
        modify_flags: KnownBits { bits: 0, refusal: EOPNOTSUPP },
        delay_drop_needs_raw_io: false,
        // The same.
        fails_from_reset: false,
    },
    // kernel qp.c, `set_qp_rss` and `_mlx4_ib_create_qp_rss`, unless noted otherwise.
    rss: RssRules {
        function_refusal: EOPNOTSUPP,
        // rdma-core verbs.c, `mlx4_cmd_create_qp_ex_rss`.
        key_length_refusal: EOPNOTSUPP,
        create_flags_refusal: EOPNOTSUPP,
        send_operations_refusal: EOPNOTSUPP,
        // kernel qp.c, `_mlx4_ib_create_qp_rss`: `send_cq` and `max_send_wr`.
        send_queue_refusal: Some(EOPNOTSUPP),
        numbered: true,
        // kernel qp.c, `_mlx4_ib_modify_qp`: MLX4_IB_MODIFY_QP_RSS_SUP_ATTR_MSK.
        states: true,
    },
};

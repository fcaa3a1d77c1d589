//! What ConnectX-4 and later refuse. "rdma-core" is its providers/mlx5, "kernel" drivers/infiniband/hw/mlx5,
//! and fs_core.c is in drivers/net/ethernet/mellanox/mlx5/core.
//!
//! Some nonsense that the driver takes is refused here with EINVAL, on every personality: a second filter of
//! a header, which would overwrite the first; a second tag; DROP with DONT_TRAP, which drops. And where
//! matches of one priority overlap, a device asks first for the mask that came first, while here the oldest
//! flow decides.

use ibverbs_sys::{
    IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN, IBV_CREATE_CQ_ATTR_SINGLE_THREADED, IBV_QP_CREATE_BLOCK_SELF_MCAST_LB,
    IBV_WQ_FLAGS_PCI_WRITE_END_PADDING,
};

use super::ideal::{
    ALL_FIELDS, ALL_QP_ATTRIBUTES, ALL_RAW_FLAGS, ALL_WQ_FLAGS, CQ_ATTR_FLAGS, CQ_ATTR_PD,
    DATAGRAM_SEND_OPERATIONS, RAW_SEND_OPERATIONS,
};
use super::{
    ClockRules, CompletionRules, DomainRules, KnownBits, ObjectRules, QueuePairRules, Resources, RssRules,
    WorkQueueRules,
};
use crate::errno::{EINVAL, ENOMEM, EOPNOTSUPP};
use crate::limits;

/// `RDMA_DRIVER_MLX5` (rdma/ib_user_ioctl_verbs.h) in the upper half of a resource type.
const DRIVER: u64 = 1 << 32;

pub(super) static OBJECTS: ObjectRules = ObjectRules {
    clock: ClockRules {
        // `device_frequency_khz` of ConnectX-4 (156.25 MHz); later ones differ.
        kilohertz: 156_250,
        // kernel main.c, `mlx5_ib_query_device`: `timestamp_mask`.
        mask: 0x7fff_ffff_ffff_ffff,
    },
    completion: CompletionRules {
        // rdma-core verbs.c, `create_cq`: CREATE_CQ_SUPPORTED_COMP_MASK.
        attributes: KnownBits { bits: CQ_ATTR_FLAGS | CQ_ATTR_PD, refusal: EINVAL },
        // The same: CREATE_CQ_SUPPORTED_FLAGS.
        flags: KnownBits {
            bits: IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN,
            refusal: EINVAL,
        },
        // The same: CREATE_CQ_SUPPORTED_WC_FLAGS, ENOTSUP.
        fields: KnownBits { bits: ALL_FIELDS, refusal: EOPNOTSUPP },
        exclusive_fields: None,
        // `log_max_cq_sz` of 22 less the entry that rounding takes.
        max_entries: limits::MAX_CQE - 1,
        // rdma-core verbs.c, `create_cq`: `align_queue_size(cqe + 1)`, one less is reported.
        rounds_up: true,
        // kernel cq.c, `create_cq_user`: the device's queue has the whole power of two.
        has_one_spare_entry: true,
        // rdma-core cq.c, `mlx5_cq_read_wc_qp_num` and `_flow_tag`: `sop_drop_qpn`; `_vendor_err`: always the
        // byte of `struct mlx5_err_cqe`, which is in the timestamp of a completion without an error.
        overlays_fields: true,
        // rdma-core cq.c, `handle_responder_lazy` and `handle_responder`: of a queue pair alone.
        checksums_of_work_queues: false,
        // rdma-core cq.c, `mlx5_arm_cq`: armed from the consumer's index on.
        arming_counts_unpolled: true,
        // The same: `to_mparent_domain` is NULL for a plain domain, EINVAL.
        plain_domain: false,
        // One vector per event queue; a device makes one per core.
        vectors: limits::COMP_VECTORS,
        // kernel include/linux/mlx5/cq.h: MLX5_MAX_CQ_COUNT and MLX5_MAX_CQ_PERIOD, the widths in `cqc`.
        max_moderation_count: u16::MAX,
        max_moderation_period_us: (1 << 12) - 1,
    },
    domain: DomainRules {
        parent_domains: true,
        // rdma-core verbs.c, `mlx5_alloc_td`.
        thread_domain_refusal: EINVAL,
        // rdma-core verbs.c, `create_cq` and `create_qp`: errno is left as it was.
        allocator_refusal: ENOMEM.without_setting_errno(),
        // rdma-core mlx5dv.h: MLX5DV_RES_TYPE_CQ, _RWQ, _QP, _DBR.
        resources: Resources {
            completion_queue: DRIVER | 5,
            work_queue: DRIVER | 2,
            queue_pair: DRIVER | 1,
            doorbell: DRIVER | 3,
        },
    },
    queue_pair: QueuePairRules {
        // rdma-core verbs.c, `create_qp`: MLX5_CREATE_QP_SUP_COMP_MASK (it leaves errno as it was).
        attributes: KnownBits { bits: ALL_QP_ATTRIBUTES, refusal: EOPNOTSUPP },
        // kernel qp.c, `process_create_flags`: each flag by capability, all of which ConnectX-4 and later
        // have.
        create_flags: KnownBits { bits: ALL_RAW_FLAGS, refusal: EOPNOTSUPP },
        // The same: SOURCE_QPN needs IPoIB, and the others raw packets.
        datagram_flags: KnownBits { bits: IBV_QP_CREATE_BLOCK_SELF_MCAST_LB, refusal: EOPNOTSUPP },
        // rdma-core qp.c: MLX5_SUPPORTED_SEND_OPS_FLAGS_RAW_PACKET.
        send_operations: RAW_SEND_OPERATIONS,
        // The same: MLX5_SUPPORTED_SEND_OPS_FLAGS_UD.
        datagram_send_operations: DATAGRAM_SEND_OPERATIONS,
        // `max_lso_cap` of ConnectX-4 and later: 256 KiB.
        max_tso_bytes: limits::MAX_TSO_BYTES,
        // kernel qp.c, `__mlx5_ib_modify_qp`: its table of transitions has none to SQD.
        drains: false,
        // `packet_pacing_max_rate` is the firmware's; here it is this device's own.
        max_rate_kbps: limits::MAX_RATE_KBPS,
    },
    work_queue: WorkQueueRules {
        // kernel qp.c, `create_rq`: by capability; here as where nothing can delay a drop.
        create_flags: KnownBits { bits: ALL_WQ_FLAGS, refusal: EOPNOTSUPP },
        // kernel qp.c, `mlx5_ib_modify_wq`: PCI_WRITE_END_PADDING is EOPNOTSUPP, CVLAN_STRIPPING is done,
        // other flags are not looked at.
        modify_flags: KnownBits { bits: !IBV_WQ_FLAGS_PCI_WRITE_END_PADDING, refusal: EOPNOTSUPP },
        // kernel qp.c, `mlx5_ib_create_wq`: before any capability of the device.
        delay_drop_needs_raw_io: true,
        fails_from_reset: true,
    },
    // kernel qp.c, `create_rss_raw_qp_tir`, unless noted otherwise.
    rss: RssRules {
        function_refusal: EOPNOTSUPP,
        key_length_refusal: EINVAL,
        create_flags_refusal: EINVAL,
        // rdma-core verbs.c, `create_qp`.
        send_operations_refusal: EINVAL,
        // kernel qp.c, `check_qp_attr`: a queue pair over a table has no `send_cq`.
        send_queue_refusal: Some(EINVAL),
        numbered: false,
        // kernel qp.c, `mlx5_ib_modify_qp`.
        states: false,
    },
};

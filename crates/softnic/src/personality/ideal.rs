//! The personality that supports the whole verbs API, up to the limits of this device.

use ibverbs_sys::{
    IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN, IBV_CREATE_CQ_ATTR_SINGLE_THREADED, IBV_QP_CREATE_BLOCK_SELF_MCAST_LB,
    IBV_QP_CREATE_CVLAN_STRIPPING, IBV_QP_CREATE_PCI_WRITE_END_PADDING, IBV_QP_CREATE_SCATTER_FCS,
    IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_QP_EX_WITH_TSO, IBV_QP_INIT_ATTR_CREATE_FLAGS,
    IBV_QP_INIT_ATTR_IND_TABLE, IBV_QP_INIT_ATTR_MAX_TSO_HEADER, IBV_QP_INIT_ATTR_PD,
    IBV_QP_INIT_ATTR_RX_HASH, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_WC_EX_WITH_BYTE_LEN,
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, IBV_WC_EX_WITH_CVLAN,
    IBV_WC_EX_WITH_DLID_PATH_BITS, IBV_WC_EX_WITH_FLOW_TAG, IBV_WC_EX_WITH_IMM, IBV_WC_EX_WITH_QP_NUM,
    IBV_WC_EX_WITH_SL, IBV_WC_EX_WITH_SLID, IBV_WC_EX_WITH_SRC_QP, IBV_WC_EX_WITH_TM_INFO,
    IBV_WQ_FLAGS_CVLAN_STRIPPING, IBV_WQ_FLAGS_PCI_WRITE_END_PADDING, IBV_WQ_FLAGS_SCATTER_FCS,
};

use super::{
    ClockRules, CompletionRules, DomainRules, KnownBits, ObjectRules, QueuePairRules, Resources, RssRules,
    WorkQueueRules,
};
use crate::errno::{EINVAL, ENOMEM, EOPNOTSUPP};
use crate::limits;
use crate::queue_memory::resource;

/// `IBV_CQ_INIT_ATTR_MASK_FLAGS` and `IBV_CQ_INIT_ATTR_MASK_PD`.
pub(super) const CQ_ATTR_FLAGS: u32 = 1;
pub(super) const CQ_ATTR_PD: u32 = 2;

/// `IBV_WC_STANDARD_FLAGS` of verbs.h.
pub(super) const STANDARD_FIELDS: u32 = IBV_WC_EX_WITH_BYTE_LEN
    | IBV_WC_EX_WITH_IMM
    | IBV_WC_EX_WITH_QP_NUM
    | IBV_WC_EX_WITH_SRC_QP
    | IBV_WC_EX_WITH_SLID
    | IBV_WC_EX_WITH_SL
    | IBV_WC_EX_WITH_DLID_PATH_BITS;

/// Every field; those of InfiniBand and of tag matching read as 0.
pub(super) const ALL_FIELDS: u32 = STANDARD_FIELDS
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
    | IBV_WC_EX_WITH_CVLAN
    | IBV_WC_EX_WITH_FLOW_TAG
    | IBV_WC_EX_WITH_TM_INFO
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

/// Every attribute of `enum ibv_qp_init_attr_mask` but the XRC domain.
pub(super) const ALL_QP_ATTRIBUTES: u32 = IBV_QP_INIT_ATTR_PD
    | IBV_QP_INIT_ATTR_CREATE_FLAGS
    | IBV_QP_INIT_ATTR_MAX_TSO_HEADER
    | IBV_QP_INIT_ATTR_IND_TABLE
    | IBV_QP_INIT_ATTR_RX_HASH
    | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;

/// The flags that a raw packet queue pair can be made with. The device itself brings back nothing that is
/// sent, so there is no multicast loopback to be blocked; and a CPU writes whole cache lines anyway.
pub(super) const ALL_RAW_FLAGS: u32 = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB
    | IBV_QP_CREATE_SCATTER_FCS
    | IBV_QP_CREATE_CVLAN_STRIPPING
    | IBV_QP_CREATE_PCI_WRITE_END_PADDING;

/// The flags that a work queue can be made with.
pub(super) const ALL_WQ_FLAGS: u32 =
    IBV_WQ_FLAGS_CVLAN_STRIPPING | IBV_WQ_FLAGS_SCATTER_FCS | IBV_WQ_FLAGS_PCI_WRITE_END_PADDING;

/// The operations of `ibv_qp_ex` for raw packets.
pub(super) const RAW_SEND_OPERATIONS: u64 = (IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_TSO) as u64;

/// The operations of `ibv_qp_ex` for datagrams. The table has TSO for them too, which is for IPoIB: that is
/// not Ethernet's.
pub(super) const DATAGRAM_SEND_OPERATIONS: u64 = (IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM) as u64;

pub(super) static OBJECTS: ObjectRules = ObjectRules {
    // UTC in nanoseconds, as mlx5's clock in real-time mode: raw and wall clock are the same.
    clock: ClockRules { kilohertz: 1_000_000, mask: u64::MAX },
    completion: CompletionRules {
        attributes: KnownBits { bits: CQ_ATTR_FLAGS | CQ_ATTR_PD, refusal: EINVAL },
        flags: KnownBits {
            bits: IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN,
            refusal: EINVAL,
        },
        fields: KnownBits { bits: ALL_FIELDS, refusal: EOPNOTSUPP },
        exclusive_fields: None,
        max_entries: limits::MAX_CQE,
        rounds_up: false,
        has_one_spare_entry: false,
        overlays_fields: false,
        checksums_of_work_queues: true,
        arming_counts_unpolled: false,
        plain_domain: true,
        vectors: limits::COMP_VECTORS,
        max_moderation_count: u16::MAX,
        max_moderation_period_us: u16::MAX,
    },
    domain: DomainRules {
        parent_domains: true,
        thread_domain_refusal: EOPNOTSUPP,
        allocator_refusal: ENOMEM,
        resources: Resources {
            completion_queue: resource::COMPLETION_QUEUE,
            work_queue: resource::WORK_QUEUE,
            queue_pair: resource::QUEUE_PAIR,
            doorbell: resource::DOORBELL,
        },
    },
    queue_pair: QueuePairRules {
        attributes: KnownBits { bits: ALL_QP_ATTRIBUTES, refusal: EOPNOTSUPP },
        // Only datagram queue pairs have another number to send from (ibv_create_qp_ex(3)).
        create_flags: KnownBits { bits: ALL_RAW_FLAGS, refusal: EOPNOTSUPP },
        datagram_flags: KnownBits { bits: IBV_QP_CREATE_BLOCK_SELF_MCAST_LB, refusal: EOPNOTSUPP },
        // What the table of ibv_wr_post(3) lists for raw packets.
        send_operations: RAW_SEND_OPERATIONS,
        datagram_send_operations: DATAGRAM_SEND_OPERATIONS,
        max_tso_bytes: limits::MAX_TSO_BYTES,
        drains: true,
        max_rate_kbps: limits::MAX_RATE_KBPS,
    },
    work_queue: WorkQueueRules {
        // Nothing here can delay a drop: a frame without a buffer would hold up the wire for all queues.
        create_flags: KnownBits { bits: ALL_WQ_FLAGS, refusal: EOPNOTSUPP },
        modify_flags: KnownBits { bits: IBV_WQ_FLAGS_CVLAN_STRIPPING, refusal: EOPNOTSUPP },
        delay_drop_needs_raw_io: false,
        fails_from_reset: true,
    },
    rss: RssRules {
        function_refusal: EINVAL,
        key_length_refusal: EINVAL,
        // What a queue pair without queues cannot have.
        create_flags_refusal: EINVAL,
        send_operations_refusal: EINVAL,
        send_queue_refusal: None,
        numbered: true,
        states: false,
    },
};

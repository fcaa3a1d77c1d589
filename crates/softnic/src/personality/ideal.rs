//! The personality that takes whatever the verbs API can say, up to the limits of this device.

use ibverbs_sys::{
    IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN, IBV_CREATE_CQ_ATTR_SINGLE_THREADED, IBV_FLOW_ATTR_FLAGS_DONT_TRAP,
    IBV_FLOW_ATTR_FLAGS_EGRESS, IBV_FLOW_SPEC_ACTION_COUNT, IBV_FLOW_SPEC_ACTION_DROP,
    IBV_FLOW_SPEC_ACTION_TAG, IBV_FLOW_SPEC_ESP, IBV_FLOW_SPEC_ETH, IBV_FLOW_SPEC_GRE, IBV_FLOW_SPEC_IPV4,
    IBV_FLOW_SPEC_IPV4_EXT, IBV_FLOW_SPEC_IPV6, IBV_FLOW_SPEC_MPLS, IBV_FLOW_SPEC_TCP, IBV_FLOW_SPEC_UDP,
    IBV_FLOW_SPEC_VXLAN_TUNNEL, IBV_QP_CREATE_BLOCK_SELF_MCAST_LB, IBV_QP_CREATE_CVLAN_STRIPPING,
    IBV_QP_CREATE_PCI_WRITE_END_PADDING, IBV_QP_CREATE_SCATTER_FCS, IBV_QP_EX_WITH_SEND,
    IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_QP_EX_WITH_TSO, IBV_QP_INIT_ATTR_CREATE_FLAGS,
    IBV_QP_INIT_ATTR_IND_TABLE, IBV_QP_INIT_ATTR_MAX_TSO_HEADER, IBV_QP_INIT_ATTR_PD,
    IBV_QP_INIT_ATTR_RX_HASH, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_RX_HASH_INNER, IBV_RX_HASH_IPSEC_SPI,
    IBV_WC_EX_WITH_BYTE_LEN, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, IBV_WC_EX_WITH_CVLAN, IBV_WC_EX_WITH_DLID_PATH_BITS,
    IBV_WC_EX_WITH_FLOW_TAG, IBV_WC_EX_WITH_IMM, IBV_WC_EX_WITH_QP_NUM, IBV_WC_EX_WITH_SL,
    IBV_WC_EX_WITH_SLID, IBV_WC_EX_WITH_SRC_QP, IBV_WC_EX_WITH_TM_INFO, IBV_WQ_FLAGS_CVLAN_STRIPPING,
    IBV_WQ_FLAGS_PCI_WRITE_END_PADDING, IBV_WQ_FLAGS_SCATTER_FCS, ibv_flow_spec_type,
};

use super::{
    ActionRules, ClockRules, CompletionRules, DomainRules, FieldRules, FilterRules, FlowRules,
    HashCombinations, Known, QueuePairRules, Resources, RssRules, Rules, WorkQueueRules,
};
use crate::flow::TableRules;
use crate::limits;
use crate::provider::answer::{EINVAL, EOPNOTSUPP};
use crate::queue_memory::resource;
use crate::rss::MAX_INDIRECTION_ENTRIES;

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

/// What a raw packet queue pair can be made with. The device itself brings back nothing that is sent, so there is no
/// multicast loopback to be blocked; and a CPU writes whole cache lines anyway.
pub(super) const ALL_RAW_FLAGS: u32 = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB
    | IBV_QP_CREATE_SCATTER_FCS
    | IBV_QP_CREATE_CVLAN_STRIPPING
    | IBV_QP_CREATE_PCI_WRITE_END_PADDING;

/// The same for work queues.
pub(super) const ALL_WQ_FLAGS: u32 =
    IBV_WQ_FLAGS_CVLAN_STRIPPING | IBV_WQ_FLAGS_SCATTER_FCS | IBV_WQ_FLAGS_PCI_WRITE_END_PADDING;

/// What can be asked for of `ibv_qp_ex`.
pub(super) const RAW_SEND_OPERATIONS: u64 = (IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_TSO) as u64;

/// The same for datagrams. The table has TSO for them too, which is for IPoIB: that is not Ethernet's.
pub(super) const DATAGRAM_SEND_OPERATIONS: u64 = (IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM) as u64;

/// Every filter of verbs.h.
pub(super) const ALL_FILTERS: &[ibv_flow_spec_type] = &[
    IBV_FLOW_SPEC_ETH,
    IBV_FLOW_SPEC_IPV4,
    IBV_FLOW_SPEC_IPV4_EXT,
    IBV_FLOW_SPEC_IPV6,
    IBV_FLOW_SPEC_ESP,
    IBV_FLOW_SPEC_TCP,
    IBV_FLOW_SPEC_UDP,
    IBV_FLOW_SPEC_VXLAN_TUNNEL,
    IBV_FLOW_SPEC_GRE,
    IBV_FLOW_SPEC_MPLS,
];

/// Every action but HANDLE: no kernel has any for raw packets since ESP offload was taken out of mlx5.
pub(super) const ALL_ACTIONS: &[ibv_flow_spec_type] =
    &[IBV_FLOW_SPEC_ACTION_TAG, IBV_FLOW_SPEC_ACTION_DROP, IBV_FLOW_SPEC_ACTION_COUNT];

pub(super) static RULES: Rules = Rules {
    // UTC in nanoseconds, as mlx5's clock in real-time mode: raw and wall clock are the same.
    clock: ClockRules { kilohertz: 1_000_000, mask: u64::MAX },
    completion: CompletionRules {
        attributes: Known { bits: CQ_ATTR_FLAGS | CQ_ATTR_PD, refusal: EINVAL },
        flags: Known {
            bits: IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN,
            refusal: EINVAL,
        },
        fields: Known { bits: ALL_FIELDS, refusal: EOPNOTSUPP },
        exclusive_fields: None,
        max_entries: limits::MAX_CQE,
        rounds_up: false,
        plain_domain: true,
        vectors: limits::COMP_VECTORS,
        max_moderation_count: u16::MAX,
        max_moderation_period_us: u16::MAX,
    },
    domain: DomainRules {
        parent_domains: true,
        thread_domain_refusal: EOPNOTSUPP,
        resources: Resources {
            completion_queue: resource::COMPLETION_QUEUE,
            work_queue: resource::WORK_QUEUE,
            queue_pair: resource::QUEUE_PAIR,
            doorbell: resource::DOORBELL,
        },
    },
    queue_pair: QueuePairRules {
        max_requests: limits::MAX_WR,
        attributes: Known { bits: ALL_QP_ATTRIBUTES, refusal: EOPNOTSUPP },
        // Only datagram queue pairs have another number to send from (ibv_create_qp_ex(3)).
        create_flags: Known { bits: ALL_RAW_FLAGS, refusal: EOPNOTSUPP },
        datagram_flags: Known { bits: IBV_QP_CREATE_BLOCK_SELF_MCAST_LB, refusal: EOPNOTSUPP },
        // What the table of ibv_wr_post(3) lists for raw packets.
        send_operations: RAW_SEND_OPERATIONS,
        datagram_send_operations: DATAGRAM_SEND_OPERATIONS,
        max_tso_bytes: limits::MAX_TSO_BYTES,
        drains: true,
        max_rate_kbps: limits::MAX_RATE_KBPS,
    },
    work_queue: WorkQueueRules {
        // Nothing here can delay a drop: a frame without a buffer would hold up the wire for all queues.
        create_flags: Known { bits: ALL_WQ_FLAGS, refusal: EOPNOTSUPP },
        modify_flags: Known { bits: IBV_WQ_FLAGS_CVLAN_STRIPPING, refusal: EOPNOTSUPP },
        delay_drop_needs_raw_io: false,
        fails_from_reset: true,
    },
    rss: RssRules {
        fields: 0xff | IBV_RX_HASH_IPSEC_SPI as u64 | IBV_RX_HASH_INNER as u64,
        refused_fields: 0,
        combinations: HashCombinations::Any,
        function_refusal: EINVAL,
        key_length_refusal: EINVAL,
        max_entries: MAX_INDIRECTION_ENTRIES as u32,
        consecutive: false,
        // What a queue pair without queues cannot have.
        create_flags_refusal: EINVAL,
        send_operations_refusal: EINVAL,
        send_queue_refusal: None,
        numbered: true,
        states: false,
    },
    flow: FlowRules {
        // The device is the process's own: nobody else's packets are to be had by it.
        needs_net_raw: false,
        kind_refusal: EINVAL,
        max_priority: (device_model::ideal::PRIORITIES - 1) as u16,
        priority_refusal: EINVAL,
        flags: Known { bits: IBV_FLOW_ATTR_FLAGS_DONT_TRAP | IBV_FLOW_ATTR_FLAGS_EGRESS, refusal: EINVAL },
        // ibv_create_flow(3), note 4: only NORMAL.
        dont_trap_sniffer_refusal: Some(EINVAL),
        dont_trap_egress_refusal: None,
        dont_trap_is_promiscuous: false,
        multicast_comes_last: false,
        forgets_specs_of_defaults: false,
        forgets_priority_of_defaults: false,
        // ibv_create_flow(3): "receive all port traffic".
        sniffs_sent: true,
        filters: FilterRules {
            types: ALL_FILTERS,
            type_refusal: EINVAL,
            inner: true,
            fields: FieldRules::ALL,
            field_refusal: EOPNOTSUPP,
            values_within_masks: false,
            ethernet_is_destination: false,
            whole_ether_type_beside_ip: false,
            whole_protocol_beside_transport: false,
            empty_masks_ask_for_no_header: false,
            max_labels: packet::MAX_MPLS_LABELS,
        },
        actions: ActionRules {
            types: ALL_ACTIONS,
            refusal: EOPNOTSUPP,
            max_tag: u32::MAX,
            reads_idle_counters: true,
        },
        table: TableRules {
            one_tag_per_match: false,
            one_copy_per_priority: false,
            all_default_is_two: false,
            groups: None,
        },
    },
};

//! What ConnectX-4 and later refuse. "rdma-core" is its providers/mlx5, "kernel" drivers/infiniband/hw/mlx5, and fs_core.c
//! is in drivers/net/ethernet/mellanox/mlx5/core.
//!
//! Some nonsense that the driver takes is refused here with EINVAL, on every personality: a second filter of a header, which
//! would overwrite the first; a second tag; DROP with DONT_TRAP, which drops. And where matches of one priority overlap, a
//! device asks first for the mask that came first, while here the oldest flow decides.

use device_model::mlx5::{PRIORITIES, PRIORITY_TABLE, TAG_BITS};
use ibverbs_sys::{
    IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN, IBV_CREATE_CQ_ATTR_SINGLE_THREADED, IBV_FLOW_ATTR_FLAGS_DONT_TRAP,
    IBV_FLOW_ATTR_FLAGS_EGRESS, IBV_QP_CREATE_BLOCK_SELF_MCAST_LB, IBV_RX_HASH_INNER,
    IBV_WQ_FLAGS_PCI_WRITE_END_PADDING,
};

use super::ideal::{
    ALL_ACTIONS, ALL_FIELDS, ALL_FILTERS, ALL_QP_ATTRIBUTES, ALL_RAW_FLAGS, ALL_WQ_FLAGS, CQ_ATTR_FLAGS,
    CQ_ATTR_PD, DATAGRAM_SEND_OPERATIONS, RAW_SEND_OPERATIONS,
};
use super::{
    ActionRules, ClockRules, CompletionRules, DomainRules, FieldRules, FilterRules, FlowRules,
    HashCombinations, Known, QueuePairRules, Resources, RssRules, Rules, WorkQueueRules,
};
use crate::flow::{GroupLimits, TableRules};
use crate::limits;
use crate::provider::answer::{EINVAL, ENOMEM, EOPNOTSUPP};
use crate::rss::MAX_INDIRECTION_ENTRIES;

/// `RDMA_DRIVER_MLX5` (rdma/ib_user_ioctl_verbs.h) in the upper half of a resource type.
const DRIVER: u64 = 1 << 32;

pub(super) static RULES: Rules = Rules {
    clock: ClockRules {
        // `device_frequency_khz` of ConnectX-4 (156.25 MHz); later ones differ.
        kilohertz: 156_250,
        // kernel main.c, `mlx5_ib_query_device`: `timestamp_mask`.
        mask: 0x7fff_ffff_ffff_ffff,
    },
    completion: CompletionRules {
        // rdma-core verbs.c, `create_cq`: CREATE_CQ_SUPPORTED_COMP_MASK.
        attributes: Known { bits: CQ_ATTR_FLAGS | CQ_ATTR_PD, refusal: EINVAL },
        // The same: CREATE_CQ_SUPPORTED_FLAGS.
        flags: Known {
            bits: IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN,
            refusal: EINVAL,
        },
        // The same: CREATE_CQ_SUPPORTED_WC_FLAGS, ENOTSUP.
        fields: Known { bits: ALL_FIELDS, refusal: EOPNOTSUPP },
        exclusive_fields: None,
        // `log_max_cq_sz` of 22 less the entry that rounding takes.
        max_entries: limits::MAX_CQE - 1,
        // rdma-core verbs.c, `create_cq`: `align_queue_size(cqe + 1)`, one less is reported.
        rounds_up: true,
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
        // rdma-core mlx5dv.h: MLX5DV_RES_TYPE_CQ, _RWQ, _QP, _DBR.
        resources: Resources {
            completion_queue: DRIVER | 5,
            work_queue: DRIVER | 2,
            queue_pair: DRIVER | 1,
            doorbell: DRIVER | 3,
        },
    },
    queue_pair: QueuePairRules {
        // kernel main.c, `mlx5_ib_query_device`: `1 << log_max_qp_sz`; qp.c, `set_user_rq_size`: the same of `log_max_wq_sz`,
        // EINVAL beyond. Both are the firmware's, and 15 on ConnectX-4 to -7.
        max_requests: 1 << 15,
        // rdma-core verbs.c, `create_qp`: MLX5_CREATE_QP_SUP_COMP_MASK (it leaves errno as it was).
        attributes: Known { bits: ALL_QP_ATTRIBUTES, refusal: EOPNOTSUPP },
        // kernel qp.c, `process_create_flags`: each flag by capability, all of which ConnectX-4 and later have.
        create_flags: Known { bits: ALL_RAW_FLAGS, refusal: EOPNOTSUPP },
        // The same: SOURCE_QPN needs IPoIB, and the others raw packets.
        datagram_flags: Known { bits: IBV_QP_CREATE_BLOCK_SELF_MCAST_LB, refusal: EOPNOTSUPP },
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
        create_flags: Known { bits: ALL_WQ_FLAGS, refusal: EOPNOTSUPP },
        // kernel qp.c, `mlx5_ib_modify_wq`: PCI_WRITE_END_PADDING is EOPNOTSUPP, CVLAN_STRIPPING is done, other flags are
        // not looked at.
        modify_flags: Known { bits: !IBV_WQ_FLAGS_PCI_WRITE_END_PADDING, refusal: EOPNOTSUPP },
        // kernel qp.c, `mlx5_ib_create_wq`: before any capability of the device.
        delay_drop_needs_raw_io: true,
        fails_from_reset: true,
    },
    // kernel qp.c, `create_rss_raw_qp_tir`, unless something else is said.
    rss: RssRules {
        // kernel main.c, `mlx5_ib_query_device`: the SPI only where the device has IPsec offload. The driver passes it to the
        // firmware without asking (qp.c, `create_rss_raw_qp_tir`); what that answers is not known, so it is refused here.
        fields: 0xff | IBV_RX_HASH_INNER as u64,
        // MLX5_RX_HASH_INNER needs MLX5_QP_FLAG_TUNNEL_OFFLOADS, which only mlx5dv can set.
        refused_fields: IBV_RX_HASH_INNER as u64,
        combinations: HashCombinations::OneOfEach,
        function_refusal: EOPNOTSUPP,
        key_length_refusal: EINVAL,
        // `log_max_rqt_size` is the firmware's; here it is this device's own.
        max_entries: MAX_INDIRECTION_ENTRIES as u32,
        consecutive: false,
        create_flags_refusal: EINVAL,
        // rdma-core verbs.c, `create_qp`.
        send_operations_refusal: EINVAL,
        // kernel qp.c, `check_qp_attr`: a queue pair over a table has no `send_cq`.
        send_queue_refusal: Some(EINVAL),
        numbered: false,
        // kernel qp.c, `mlx5_ib_modify_qp`.
        states: false,
    },
    flow: FlowRules {
        // kernel core/uverbs_cmd.c, `ib_uverbs_ex_create_flow`: `capable(CAP_NET_RAW)`.
        needs_net_raw: true,
        // kernel fs.c, `get_flow_table`: no namespace.
        kind_refusal: EOPNOTSUPP,
        // kernel fs.c, `mlx5_ib_create_flow`: ENOMEM beyond.
        max_priority: (PRIORITIES - 1) as u16,
        priority_refusal: ENOMEM,
        // The same: anything but these two is EINVAL.
        flags: Known { bits: IBV_FLOW_ATTR_FLAGS_DONT_TRAP | IBV_FLOW_ATTR_FLAGS_EGRESS, refusal: EINVAL },
        // The same: not looked at with SNIFFER.
        dont_trap_sniffer_refusal: None,
        // kernel net/ethernet/mellanox/mlx5/core/fs_core.c, `fwd_next_prio_supported`: only of received frames.
        dont_trap_egress_refusal: Some(EOPNOTSUPP),
        dont_trap_is_promiscuous: false,
        // kernel fs.c, `flow_is_multicast_only` and `get_flow_table`: MLX5_IB_FLOW_MCAST_PRIO.
        multicast_comes_last: true,
        // kernel fs.c, `create_leftovers_rule` and `create_sniffer_rule`: specs of their own, not the caller's.
        forgets_specs_of_defaults: true,
        // kernel fs.c, `get_flow_table`: MLX5_IB_FLOW_LEFTOVERS_PRIO.
        forgets_priority_of_defaults: true,
        // kernel fs.c, `create_sniffer_rule`: a rule in SNIFFER_RX and one in SNIFFER_TX.
        sniffs_sent: true,
        filters: FilterRules {
            // kernel fs.c, `parse_flow_attr`: `default` is EINVAL.
            types: ALL_FILTERS,
            type_refusal: EINVAL,
            inner: true,
            // The same: FIELDS_NOT_SUPPORTED beyond LAST_IPV4_FIELD (tos) and LAST_IPV6_FIELD (traffic class),
            // `esp.mask.seq`, `gre.mask.c_ks_res0_ver`.
            fields: FieldRules {
                ipv4_ttl: false,
                ipv4_flags: false,
                ipv4_protocol_and_tos: true,
                ipv6_hop_limit: false,
                esp_sequence: false,
                gre_flags: false,
            },
            field_refusal: EOPNOTSUPP,
            // kernel fs_core.c, `check_valid_spec`.
            values_within_masks: true,
            ethernet_is_destination: false,
            // kernel fs.c, `is_valid_ethertype`.
            whole_ether_type_beside_ip: true,
            // kernel fs.c, `set_proto`: an earlier protocol must be the same, mask and all.
            whole_protocol_beside_transport: true,
            // kernel fs.c, `parse_flow_attr`: ESP, VXLAN, MPLS and Ethernet set nothing but their fields; TCP, UDP and GRE
            // `ip_protocol` besides. (That such a field with a mask matches only packets that have it, and that the protocol
            // is seen in a fragment too, is inferred.)
            empty_masks_ask_for_no_header: true,
            // The same: `outer_first_mpls` and its like; a second filter would overwrite the first.
            max_labels: 1,
        },
        actions: ActionRules {
            // kernel fs.c, `parse_flow_flow_action`: without ESP offload EOPNOTSUPP.
            types: ALL_ACTIONS,
            refusal: EOPNOTSUPP,
            max_tag: (1 << TAG_BITS) - 1,
            // kernel core/uverbs_std_types_counters.c, UVERBS_METHOD_COUNTERS_READ: `usecnt`.
            reads_idle_counters: false,
        },
        table: TableRules {
            // kernel fs_core.c, `check_conflicting_ftes`.
            one_tag_per_match: true,
            // kernel fs_core.c, `find_next_fwd_ft`: what is let go on goes to the table of a later priority. (That a table is
            // left by the first entry that matches is inferred, and which of them is the first is the device's choice.)
            one_copy_per_priority: true,
            // kernel fs.c, `create_leftovers_rule`: LEFTOVERS_MC and LEFTOVERS_UC.
            all_default_is_two: true,
            // ENOSPC when full (kernel fs_core.c, `alloc_auto_flow_group`). Firmware may allow less.
            groups: Some(GroupLimits {
                entries: PRIORITY_TABLE.entries,
                runs: PRIORITY_TABLE.groups as usize,
                run_entries: PRIORITY_TABLE.group_entries,
            }),
        },
    },
};

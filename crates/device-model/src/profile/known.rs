//! The profiles that are known beforehand, a row for each thing that a device limits or refuses, with the
//! errno that it answers and where that is to be read. Called by `DeviceProfile` alone; decides nothing.
//!
//! The rows of mlx5 and mlx4 are read out of the kernel's source and measured on no device; what is concluded rather than
//! read is called inferred. `conformance` has cases that tell a device which refuses or takes something else; it has none
//! for how many flows a table holds.

use std::borrow::Cow;

use crate::limits::{ideal, mlx4, mlx5};

use super::{Dependence, DeviceProfile, Errno, Feature, Limit, LimitRow, Refusal};

/// `drivers/infiniband/hw/mlx5/` of the kernel.
const MLX5_FS: &str = "linux: hw/mlx5/fs.c";
const MLX5_QP: &str = "linux: hw/mlx5/qp.c";
const MLX5_CORE: &str = "linux: mlx5/core/fs_core.c";
const MLX4_MAIN: &str = "linux: hw/mlx4/main.c";
const MLX4_QP: &str = "linux: hw/mlx4/qp.c";
const UVERBS: &str = "linux: core/uverbs_cmd.c";
const SOFTNIC: &str = "softnic: flow table";
const QUERY: &str = "ibv_query_device_ex(3)";

fn rows(rows: &[(Limit, Errno, &'static str)]) -> Vec<LimitRow> {
    rows.iter()
        .map(|&(limit, errno, source)| LimitRow { limit, errno, source: Cow::Borrowed(source) })
        .collect()
}

fn refusals(rows: &[(Feature, Errno, &'static str)]) -> Vec<Refusal> {
    rows.iter()
        .map(|&(feature, errno, source)| Refusal { feature, errno, source: Cow::Borrowed(source) })
        .collect()
}

/// For a device that nobody has described: what every known device can do.
pub(super) fn conservative() -> DeviceProfile {
    strictest("conservative", mlx5(), mlx4())
}

/// What both devices can do. Beyond a limit it answers as the first.
fn strictest(name: &str, a: DeviceProfile, b: DeviceProfile) -> DeviceProfile {
    let least = |a: Option<u32>, b: Option<u32>| a.into_iter().chain(b).min();
    let mut refusals = a.refusals;
    for refusal in b.refusals {
        match refusals.iter_mut().find(|own| own.feature == refusal.feature) {
            Some(own) if refusal.errno == Errno::Silent => *own = refusal,
            Some(_) => {}
            None => refusals.push(refusal),
        }
    }
    DeviceProfile {
        name: name.to_owned(),
        priorities: a.priorities.min(b.priorities),
        max_flows: least(a.max_flows, b.max_flows),
        max_shapes: least(a.max_shapes, b.max_shapes),
        priority_table: a.priority_table.or(b.priority_table),
        max_specs: a.max_specs.min(b.max_specs),
        hash_field_exclusive: a.hash_field_exclusive || b.hash_field_exclusive,
        hash_field_pairs: a.hash_field_pairs || b.hash_field_pairs,
        max_table: a.max_table.min(b.max_table),
        table_consecutive: a.table_consecutive || b.table_consecutive,
        max_queues: least(a.max_queues, b.max_queues),
        max_tables: least(a.max_tables, b.max_tables),
        max_counters: least(a.max_counters, b.max_counters),
        max_copies: least(a.max_copies, b.max_copies),
        max_receives: least(a.max_receives, b.max_receives),
        tag_bits: a.tag_bits.min(b.tag_bits),
        multicast_ignores_priority: a.multicast_ignores_priority || b.multicast_ignores_priority,
        dependences: [a.dependences, b.dependences].concat(),
        refusals,
        limits: a.limits,
    }
}

fn dependences(rows: &[(Feature, &'static str, &'static str)]) -> Vec<Dependence> {
    rows.iter()
        .map(|&(feature, capability, source)| Dependence {
            feature,
            capability: Cow::Borrowed(capability),
            source: Cow::Borrowed(source),
        })
        .collect()
}

pub(super) fn ideal() -> DeviceProfile {
    DeviceProfile {
        name: "ideal".to_owned(),
        priorities: ideal::PRIORITIES,
        max_flows: Some(ideal::MAX_FLOWS),
        max_shapes: Some(ideal::MAX_MASKS),
        priority_table: None,
        max_specs: 10,
        hash_field_exclusive: true,
        hash_field_pairs: false,
        max_table: 4096,
        table_consecutive: false,
        max_queues: None,
        max_tables: None,
        // softnic: limits::MAX_WR.
        max_receives: Some(65_536),
        max_counters: None,
        max_copies: Some(ideal::MAX_COPIES),
        tag_bits: 24,
        multicast_ignores_priority: false,
        refusals: Vec::new(),
        dependences: Vec::new(),
        limits: rows(&[
            (Limit::Priorities, Errno::Einval, "ibv_create_flow(3): a priority has 16 bits"),
            (Limit::Flows, Errno::Enomem, SOFTNIC),
            (Limit::Shapes, Errno::Enomem, SOFTNIC),
            (Limit::PriorityTable, Errno::Enomem, SOFTNIC),
            (Limit::Specs, Errno::Einval, UVERBS),
            (Limit::Queues, Errno::Enomem, QUERY),
            (Limit::Tables, Errno::Einval, QUERY),
            (Limit::Counters, Errno::Enomem, QUERY),
            (Limit::Tags, Errno::Einval, "ibv_create_flow(3): a tag has 24 bits"),
            (Limit::Copies, Errno::Enomem, SOFTNIC),
            (Limit::Sniffers, Errno::Enomem, SOFTNIC),
        ]),
    }
}

pub(super) fn mlx5() -> DeviceProfile {
    DeviceProfile {
        name: "mlx5".to_owned(),
        // Priorities above are answered with ENOMEM.
        priorities: mlx5::PRIORITIES,
        max_flows: None,
        max_shapes: None,
        priority_table: Some(mlx5::PRIORITY_TABLE),
        max_specs: 10,
        hash_field_exclusive: true,
        hash_field_pairs: false,
        // Inferred: log_max_rqt_size differs by device; what a device says itself goes before this.
        max_table: 512,
        table_consecutive: false,
        max_queues: None,
        max_tables: None,
        // 1 << log_max_qp_sz, which differs by firmware; what a device says itself goes before this.
        max_receives: Some(32_768),
        max_counters: None,
        // No number, but only one copy at each priority (inferred from `find_next_fwd_ft` of fs_core.c), and none of what
        // is sent: the compiler gives copies that overlap priorities of their own on every device, and copies nothing
        // that is sent on any.
        max_copies: None,
        tag_bits: mlx5::TAG_BITS,
        multicast_ignores_priority: true,
        refusals: refusals(&[
            (Feature::Ttl, Errno::Eopnotsupp, MLX5_FS),
            (Feature::IpFlags, Errno::Eopnotsupp, MLX5_FS),
            (Feature::HopLimit, Errno::Eopnotsupp, MLX5_FS),
            (Feature::EspSeq, Errno::Eopnotsupp, MLX5_FS),
            (Feature::GreFlags, Errno::Eopnotsupp, MLX5_FS),
            // `parse_flow_attr`: such a spec asks for the protocol at most, which later fragments have, too (inferred).
            (Feature::AnyEsp, Errno::Silent, MLX5_FS),
            (Feature::AnyVxlan, Errno::Silent, MLX5_FS),
            (Feature::AnyGre, Errno::Silent, MLX5_FS),
            (Feature::AnyMpls, Errno::Silent, MLX5_FS),
            (Feature::AnyPorts, Errno::Silent, MLX5_FS),
        ]),
        // EOPNOTSUPP without them.
        dependences: dependences(&[
            // `fwd_next_prio_supported`: asked by `_mlx5_add_flow_rules` for MLX5_FLOW_CONTEXT_ACTION_FWD_NEXT_PRIO.
            (Feature::Copy, "nic_rx_multi_path_tirs", "linux: mlx5/core/fs_core.c, fwd_next_prio_supported"),
            (Feature::Sniffer, "allow_sniffer_and_nic_rx_shared_tir", "linux: hw/mlx5/fs.c, get_flow_table"),
            // `mlx5_get_flow_namespace` answers NULL for MLX5_FLOW_NAMESPACE_EGRESS where no such root was made.
            (
                Feature::Egress,
                "flow_table_properties_nic_transmit.ft_support",
                "linux: mlx5/core/fs_core.c, mlx5_fs_core_init",
            ),
        ]),
        limits: rows(&[
            (Limit::Priorities, Errno::Enomem, MLX5_FS),
            (Limit::Flows, Errno::Enomem, MLX5_CORE),
            (Limit::Shapes, Errno::Enospc, MLX5_CORE),
            (Limit::PriorityTable, Errno::Enospc, MLX5_CORE),
            (Limit::Specs, Errno::Einval, UVERBS),
            (Limit::Queues, Errno::Enomem, MLX5_QP),
            (Limit::Tables, Errno::Einval, MLX5_QP),
            (Limit::Counters, Errno::Enomem, MLX5_CORE),
            (Limit::Tags, Errno::Einval, MLX5_FS),
            (Limit::Copies, Errno::Enospc, MLX5_CORE),
            (Limit::Sniffers, Errno::Enospc, MLX5_FS),
        ]),
    }
}

pub(super) fn mlx4() -> DeviceProfile {
    DeviceProfile {
        name: "mlx4".to_owned(),
        priorities: mlx4::PRIORITIES,
        max_flows: None,
        max_shapes: None,
        priority_table: None,
        max_specs: 10,
        hash_field_exclusive: false,
        hash_field_pairs: true,
        max_table: mlx4::MAX_TABLE,
        table_consecutive: true,
        max_queues: None,
        max_tables: None,
        // max_wqes - MLX4_IB_SQ_MAX_SPARE.
        max_receives: Some(16_351),
        max_counters: Some(0),
        max_copies: Some(0),
        tag_bits: 0,
        multicast_ignores_priority: false,
        refusals: refusals(&[
            // `parse_flow_attr` copies the destination address and the tag of an Ethernet spec, nothing else.
            (Feature::SrcMac, Errno::Silent, MLX4_MAIN),
            (Feature::EtherType, Errno::Silent, MLX4_MAIN),
            (Feature::Ipv6, Errno::Einval, MLX4_MAIN),
            (Feature::Protocol, Errno::Einval, MLX4_MAIN),
            (Feature::Tos, Errno::Einval, MLX4_MAIN),
            (Feature::Ttl, Errno::Einval, MLX4_MAIN),
            (Feature::HopLimit, Errno::Einval, MLX4_MAIN),
            (Feature::IpFlags, Errno::Einval, MLX4_MAIN),
            (Feature::FlowLabel, Errno::Einval, MLX4_MAIN),
            (Feature::Esp, Errno::Einval, MLX4_MAIN),
            (Feature::EspSeq, Errno::Einval, MLX4_MAIN),
            (Feature::Vxlan, Errno::Einval, MLX4_MAIN),
            (Feature::Gre, Errno::Einval, MLX4_MAIN),
            (Feature::GreFlags, Errno::Einval, MLX4_MAIN),
            (Feature::Mpls, Errno::Einval, MLX4_MAIN),
            (Feature::Inner, Errno::Einval, MLX4_MAIN),
            (Feature::Tag, Errno::Einval, MLX4_MAIN),
            (Feature::Drop, Errno::Einval, MLX4_MAIN),
            (Feature::Count, Errno::Einval, MLX4_MAIN),
            // Priority 0 and one Ethernet spec it would take, but without a tag a copy is like any packet.
            (Feature::Copy, Errno::Eopnotsupp, MLX4_MAIN),
            // `mlx4_ib_create_flow` takes a sniffer, but without a tag its copies are like any packet, too.
            (Feature::Sniffer, Errno::Silent, MLX4_MAIN),
            // `mlx4_ib_create_flow`: any flag but DONT_TRAP.
            (Feature::Egress, Errno::Eopnotsupp, MLX4_MAIN),
            (Feature::HashInner, Errno::Eopnotsupp, MLX4_QP),
            (Feature::HashSpi, Errno::Eopnotsupp, MLX4_QP),
        ]),
        dependences: Vec::new(),
        limits: rows(&[
            (Limit::Priorities, Errno::Einval, MLX4_MAIN),
            (Limit::Flows, Errno::Enomem, MLX4_MAIN),
            (Limit::Shapes, Errno::Enomem, MLX4_MAIN),
            (Limit::PriorityTable, Errno::Enomem, MLX4_MAIN),
            (Limit::Specs, Errno::Einval, UVERBS),
            (Limit::Queues, Errno::Enomem, MLX4_QP),
            (Limit::Tables, Errno::Einval, MLX4_QP),
            (Limit::Counters, Errno::Eopnotsupp, MLX4_MAIN),
            (Limit::Tags, Errno::Einval, MLX4_MAIN),
            (Limit::Copies, Errno::Einval, MLX4_MAIN),
            (Limit::Sniffers, Errno::Einval, MLX4_MAIN),
        ]),
    }
}

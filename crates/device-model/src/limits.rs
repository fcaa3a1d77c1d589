//! Limits as constants, where the software NIC keeps to the same number that the compiler's profile has: each number
//! stands here and nowhere else.

/// The software NIC in its own right.
pub mod ideal {
    /// How many flow priorities: `ibv_flow_attr.priority` has 16 bits (ibv_create_flow(3)).
    pub const PRIORITIES: u32 = 1 << 16;
    /// The most flows of its table.
    pub const MAX_FLOWS: u32 = 1 << 17;
    /// The most different masks among the flows of one port.
    pub const MAX_MASKS: u32 = 512;
    /// The most flows of one port that copy (DONT_TRAP).
    pub const MAX_COPIES: u32 = 32;
}

/// ConnectX-4 and later.
pub mod mlx5 {
    use crate::PriorityTable;

    /// How many flow priorities (linux: hw/mlx5/fs.c, `MLX5_IB_FLOW_LAST_PRIO`).
    pub const PRIORITIES: u32 = 16;
    /// The table of one priority (linux: hw/mlx5/fs.c, `MLX5_FS_MAX_ENTRIES` and `MLX5_FS_MAX_TYPES`; mlx5/core/fs_core.c,
    /// `mlx5_create_auto_grouped_flow_table`): entries / (types + 1) for each of the first masks, one entry for each
    /// later one.
    pub const PRIORITY_TABLE: PriorityTable =
        PriorityTable { entries: 1 << 16, groups: 6, group_entries: (1 << 16) / 7 };
    /// How wide a flow tag is (linux: hw/mlx5/fs.c, `parse_flow_attr`: `tag_id >= BIT(24)` is EINVAL).
    pub const TAG_BITS: u32 = 24;
}

/// ConnectX-3.
pub mod mlx4 {
    /// How many flow priorities (linux: hw/mlx4/main.c, `MLX4_IB_FLOW_MAX_PRIO`).
    pub const PRIORITIES: u32 = 0x1000;
    /// The longest indirection table (linux: hw/mlx4/main.c, `max_rss_tbl_sz`: 128 rings, `MAX_RX_RINGS` of mlx4_en.h).
    pub const MAX_TABLE: u32 = 128;
}

//! The passes that make candidates fit on a device with few flows, masks or priorities, and `search`, which
//! chooses their limits.

pub(crate) mod assign_priorities;
pub(crate) mod limit_ranks;
pub(crate) mod mask_key;
pub(crate) mod merge_masks;
pub(crate) mod packing;
pub(crate) mod search;
pub(crate) mod select_flows;
pub(crate) mod spread_ranks;

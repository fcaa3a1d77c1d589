//! The passes that make candidates fit on a device with few flows, masks or priorities, and `search`, which
//! chooses their limits. Two modules are shared by the passes: `mask_key` has the masks of flows, and
//! `packing` packs flows into priorities. `flow_problems` finds the flows that do not fit in the end.

pub(crate) mod assign_priorities;
pub(crate) mod flow_problems;
pub(crate) mod limit_ranks;
pub(crate) mod mask_key;
pub(crate) mod merge_masks;
pub(crate) mod packing;
pub(crate) mod search;
pub(crate) mod select_flows;
pub(crate) mod spread_ranks;

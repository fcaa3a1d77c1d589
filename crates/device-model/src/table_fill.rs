//! How full one priority is of a device that keeps flows of equal masks in groups.

use crate::PriorityTable;

impl PriorityTable {
    /// How many flows have room beside the groups.
    #[must_use]
    pub fn single_entries(&self) -> u32 {
        self.entries.saturating_sub(self.groups.saturating_mul(self.group_entries))
    }
}

/// The flows of one priority, by mask. The first masks get groups, and a flow that fits in no group gets one
/// of the single entries.
#[derive(Clone, Debug)]
pub struct TableFill<M> {
    limits: PriorityTable,
    /// The mask of each group and how many flows it has.
    groups: Vec<(M, u32)>,
    single: u32,
}

impl<M: PartialEq> TableFill<M> {
    /// An empty table.
    #[must_use]
    pub fn new(limits: PriorityTable) -> Self {
        Self { limits, groups: Vec::new(), single: 0 }
    }

    /// Adds a flow of this mask. False: there is no room for it, and nothing has changed.
    pub fn add(&mut self, mask: M) -> bool {
        let has_room = |(known, used): &(M, u32)| *known == mask && *used < self.limits.group_entries;
        match self.groups.iter().position(has_room) {
            Some(group) => self.groups[group].1 += 1,
            None if self.groups.len() < self.limits.groups as usize => self.groups.push((mask, 1)),
            None if self.single < self.limits.single_entries() => self.single += 1,
            None => return false,
        }
        true
    }
}

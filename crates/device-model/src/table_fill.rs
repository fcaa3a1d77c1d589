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
    /// The group of the flow before, or the number of groups if it has none: most flows have the mask of
    /// those beside them.
    last: usize,
    single: u32,
}

impl<M: PartialEq + Clone> TableFill<M> {
    /// An empty table.
    #[must_use]
    pub fn new(limits: PriorityTable) -> Self {
        Self { limits, groups: Vec::new(), last: 0, single: 0 }
    }

    /// A table with flows of these masks, which have room.
    #[must_use]
    pub fn with(limits: PriorityTable, masks: impl IntoIterator<Item = M>) -> Self {
        let mut fill = Self::new(limits);
        masks.into_iter().for_each(|mask| _ = fill.add(&mask));
        fill
    }

    /// Adds a flow of this mask. False: there is no room for it, and nothing has changed.
    pub fn add(&mut self, mask: &M) -> bool {
        self.place(mask).is_some()
    }

    /// Adds a flow of this mask, and returns the place of its group in the table. A single entry is a group
    /// of its own, behind the others. `None`: there is no room for the flow, and nothing has changed.
    pub fn place(&mut self, mask: &M) -> Option<u32> {
        let has_room = |(known, used): &(M, u32)| known == mask && *used < self.limits.group_entries;
        let last = self.groups.get(self.last).is_some_and(has_room).then_some(self.last);
        let group = last.or_else(|| self.groups.iter().position(has_room));
        self.last = group.unwrap_or(self.groups.len());
        match group {
            Some(group) => {
                self.groups[group].1 += 1;
                Some(group as u32)
            }
            None if self.groups.len() < self.limits.groups as usize => {
                self.groups.push((mask.clone(), 1));
                Some(self.last as u32)
            }
            None if self.single < self.limits.single_entries() => {
                self.single += 1;
                Some(self.groups() - 1)
            }
            None => None,
        }
    }

    /// The groups of the table, single entries among them.
    #[must_use]
    pub fn groups(&self) -> u32 {
        self.groups.len() as u32 + self.single
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The place of each flow, by the rule alone: the first group of its mask that is not full, a new group,
    /// a single entry.
    fn expected(masks: &[u32], limits: PriorityTable) -> Vec<Option<u32>> {
        let (mut groups, mut singles): (Vec<Vec<u32>>, u32) = (Vec::new(), 0);
        let add = |mask: &u32| {
            let is_open =
                |group: &&Vec<u32>| group[0] == *mask && group.len() < limits.group_entries as usize;
            if let Some(group) = groups.iter().position(|group| is_open(&group)) {
                groups[group].push(*mask);
                Some(group as u32)
            } else if groups.len() < limits.groups as usize {
                groups.push(vec![*mask]);
                Some(groups.len() as u32 - 1)
            } else {
                singles += 1;
                (singles <= limits.single_entries()).then_some(limits.groups + singles - 1)
            }
        };
        masks.iter().map(add).collect()
    }

    /// All sequences of eight flows out of three masks, in tables of several small sizes.
    #[test]
    fn a_table_has_room_by_the_rule() {
        const FLOWS: u32 = 8;
        for (entries, groups, group_entries) in [(4, 1, 2), (5, 2, 2), (6, 2, 1), (7, 1, 6), (3, 3, 1)] {
            let limits = PriorityTable { entries, groups, group_entries };
            for number in 0..3u32.pow(FLOWS) {
                let masks: Vec<u32> = (0..FLOWS).map(|place| number / 3u32.pow(place) % 3).collect();
                let mut fill: TableFill<u32> = TableFill::new(limits);
                let places: Vec<_> = masks.iter().map(|mask| fill.place(mask)).collect();
                assert_eq!(places, expected(&masks, limits), "{masks:?} in {limits:?}");
            }
        }
    }
}

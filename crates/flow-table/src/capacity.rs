//! How much room a device has for matches that share a mask: the auto-grouped flow tables of mlx5.
//!
//! [`super::port::PortTable`] asks for a place before it makes a group, and gives it back with the group.
//! That the soft NIC itself has room is checked elsewhere: a personality without such tables has no
//! [`PriorityTable`].
//!
//! A table is cut into runs of entries, each for one mask. The first few masks get long runs, and another
//! when one is full, as long as there are any; after that each match takes a run of one entry out of what is
//! left. A run whose last match goes is given back (kernel,
//! drivers/net/ethernet/mellanox/mlx5/core/fs_core.c, `alloc_auto_flow_group` and `del_sw_flow_group`).

use std::collections::HashMap;

use device_model::PriorityTable;

use super::deep::DeepImage;

/// Entries that are not in groups.
fn singles(limits: PriorityTable) -> u32 {
    limits.entries.saturating_sub(limits.groups.saturating_mul(limits.group_entries))
}

/// Where a match is in its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In a long run, by number.
    Run(usize),
    /// In a run of its own.
    Single,
}

#[derive(Debug)]
struct Run {
    mask: DeepImage,
    used: u32,
}

/// One table.
#[derive(Debug, Default)]
struct Table {
    runs: Vec<Option<Run>>,
    singles: u32,
}

/// The tables of one port and direction, by level.
#[derive(Debug, Default)]
pub(super) struct Capacity {
    tables: HashMap<u64, Table>,
}

impl Capacity {
    /// Takes a place for one more match; `None` if the table has none for its mask.
    pub(super) fn take(&mut self, limits: PriorityTable, level: u64, mask: &DeepImage) -> Option<Place> {
        let table = self.tables.entry(level).or_default();
        let has_room = |run: &Run| run.mask == *mask && run.used < limits.group_entries;
        if let Some(at) = table.runs.iter().position(|run| run.as_ref().is_some_and(has_room)) {
            if let Some(run) = &mut table.runs[at] {
                run.used += 1;
            }
            return Some(Place::Run(at));
        }
        let vacant = table.runs.iter().position(Option::is_none);
        let run = Some(Run { mask: *mask, used: 1 });
        if let Some(at) = vacant {
            table.runs[at] = run;
            return Some(Place::Run(at));
        }
        if table.runs.len() < limits.groups as usize {
            table.runs.push(run);
            return Some(Place::Run(table.runs.len() - 1));
        }
        if table.singles < singles(limits) {
            table.singles += 1;
            return Some(Place::Single);
        }
        None
    }

    /// Gives a place back.
    pub(super) fn give_back(&mut self, level: u64, place: Place) {
        let Some(table) = self.tables.get_mut(&level) else { return };
        match place {
            Place::Single => table.singles = table.singles.saturating_sub(1),
            Place::Run(at) => {
                let Some(run) = table.runs.get_mut(at) else { return };
                if let Some(used) = run.as_mut().map(|run| &mut run.used) {
                    *used -= 1;
                }
                if run.as_ref().is_some_and(|run| run.used == 0) {
                    *run = None;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MatchKey;

    const LIMITS: PriorityTable = PriorityTable { entries: 10, groups: 2, group_entries: 3 };

    fn mask(of: u64) -> DeepImage {
        DeepImage::outside(MatchKey([of; 8]))
    }

    #[test]
    fn the_first_masks_have_long_runs_and_later_ones_share_the_rest() {
        let mut capacity = Capacity::default();
        let mut take = |of| capacity.take(LIMITS, 0, &mask(of));
        assert_eq!(
            [take(1), take(2), take(1)],
            [Some(Place::Run(0)), Some(Place::Run(1)), Some(Place::Run(0))]
        );
        assert_eq!(take(3), Some(Place::Single));
        assert_eq!([take(1), take(1)], [Some(Place::Run(0)), Some(Place::Single)], "a full run overflows");
        assert_eq!([take(4), take(5), take(6)], [Some(Place::Single), Some(Place::Single), None]);
        assert_eq!(take(2), Some(Place::Run(1)), "a run that is not full has room");
        assert_eq!(
            capacity.take(LIMITS, 1, &mask(6)),
            Some(Place::Run(0)),
            "another priority, another table"
        );
    }

    #[test]
    fn freed_entries_can_be_used_by_another_mask() {
        let mut capacity = Capacity::default();
        for of in [1, 2, 3, 4, 5, 6] {
            assert!(capacity.take(LIMITS, 0, &mask(of)).is_some());
        }
        assert_eq!(capacity.take(LIMITS, 0, &mask(7)), None);
        capacity.give_back(0, Place::Run(0));
        assert_eq!(capacity.take(LIMITS, 0, &mask(7)), Some(Place::Run(0)));
        capacity.give_back(0, Place::Single);
        assert_eq!(capacity.take(LIMITS, 0, &mask(8)), Some(Place::Single));
    }
}

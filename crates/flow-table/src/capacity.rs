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
//!
//! A frame passes the runs of a table one after the other until one has a match for it, and then those of the
//! next table. The compiler predicts from a program how many it passes (`FlowGroups`); here they are counted,
//! after any number of changes.

use std::collections::BTreeMap;

use device_model::PriorityTable;

use super::deep::DeepImage;

/// The table that a match is in. Frames pass the tables in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TableKey {
    /// The kind and the priority of the match.
    pub(super) level: u64,
    /// Whether frames end here. Matches that copy have a table of their own, before that of the others
    /// (hw/mlx5/fs.c, `ib_prio_to_core_prio`).
    pub(super) traps: bool,
}

/// Where a match is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    table: TableKey,
    run: RunPlace,
}

/// The run of a match in its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunPlace {
    /// A long run, by number.
    Long(usize),
    /// A run of one entry, by number, behind the long ones.
    Single(usize),
}

#[derive(Debug)]
struct Run {
    mask: DeepImage,
    used: u32,
}

/// Runs of one entry, a bit for each number.
#[derive(Debug, Default)]
struct SingleRuns {
    words: Vec<u64>,
    used: u32,
}

impl SingleRuns {
    /// Takes the first free number.
    fn take(&mut self) -> usize {
        let word = self.words.iter().position(|word| *word != u64::MAX).unwrap_or(self.words.len());
        if word == self.words.len() {
            self.words.push(0);
        }
        let bit = self.words[word].trailing_ones() as usize;
        self.words[word] |= 1 << bit;
        self.used += 1;
        word * 64 + bit
    }

    fn give_back(&mut self, number: usize) {
        let Some(word) = self.words.get_mut(number / 64) else { return };
        self.used -= u32::from(*word >> (number % 64) & 1 == 1);
        *word &= !(1 << (number % 64));
    }

    /// How many before this number are in use.
    fn before(&self, number: usize) -> u32 {
        let whole: u32 = self.words.iter().take(number / 64).map(|word| word.count_ones()).sum();
        let rest = self.words.get(number / 64).map_or(0, |word| word & ((1 << (number % 64)) - 1));
        whole + rest.count_ones()
    }
}

/// One table.
#[derive(Debug, Default)]
struct Table {
    runs: Vec<Option<Run>>,
    singles: SingleRuns,
}

impl Table {
    /// How many of the first so many long runs are in use.
    fn long_runs(&self, first: usize) -> u32 {
        self.runs.iter().take(first).flatten().count() as u32
    }

    fn groups(&self) -> u32 {
        self.long_runs(self.runs.len()) + self.singles.used
    }

    /// The runs up to this one.
    fn passed(&self, run: RunPlace) -> u32 {
        match run {
            RunPlace::Long(at) => self.long_runs(at + 1),
            RunPlace::Single(at) => self.long_runs(self.runs.len()) + self.singles.before(at) + 1,
        }
    }

    /// Takes a place for one more match of this mask.
    fn take(&mut self, limits: PriorityTable, mask: &DeepImage) -> Option<RunPlace> {
        let has_room = |run: &Run| run.mask == *mask && run.used < limits.group_entries;
        if let Some(at) = self.runs.iter().position(|run| run.as_ref().is_some_and(has_room)) {
            if let Some(run) = &mut self.runs[at] {
                run.used += 1;
            }
            return Some(RunPlace::Long(at));
        }
        let vacant = self.runs.iter().position(Option::is_none);
        let run = Some(Run { mask: *mask, used: 1 });
        if let Some(at) = vacant {
            self.runs[at] = run;
            return Some(RunPlace::Long(at));
        }
        if self.runs.len() < limits.groups as usize {
            self.runs.push(run);
            return Some(RunPlace::Long(self.runs.len() - 1));
        }
        (self.singles.used < limits.single_entries()).then(|| RunPlace::Single(self.singles.take()))
    }
}

/// The tables of one port and direction.
#[derive(Debug, Default)]
pub(super) struct Capacity {
    tables: BTreeMap<TableKey, Table>,
}

impl Capacity {
    /// Takes a place for one more match; `None` if the table has none for its mask.
    pub(super) fn take(&mut self, limits: PriorityTable, key: TableKey, mask: &DeepImage) -> Option<Place> {
        let run = self.tables.entry(key).or_default().take(limits, mask)?;
        Some(Place { table: key, run })
    }

    /// Gives a place back.
    pub(super) fn give_back(&mut self, Place { table, run }: Place) {
        let Some(table) = self.tables.get_mut(&table) else { return };
        match run {
            RunPlace::Single(at) => table.singles.give_back(at),
            RunPlace::Long(at) => {
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

    /// How many runs a frame passes until it meets the match at this place, the last one that of the match.
    /// An upper bound for frames that are copied as well: it counts all runs of a table of copies.
    pub(super) fn passed(&self, Place { table, run }: Place) -> u64 {
        let earlier: u64 = self.tables.range(..table).map(|(_, table)| u64::from(table.groups())).sum();
        earlier + self.tables.get(&table).map_or(0, |table| u64::from(table.passed(run)))
    }

    /// How many runs a frame passes that meets no match.
    pub(super) fn groups(&self) -> u64 {
        self.tables.values().map(|table| u64::from(table.groups())).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MatchKey;
    use device_model::TableFill;
    use proptest::prelude::*;

    const LIMITS: PriorityTable = PriorityTable { entries: 10, groups: 2, group_entries: 3 };

    fn mask(of: u64) -> DeepImage {
        DeepImage::outside(MatchKey([of; 8]))
    }

    fn table(level: u64) -> TableKey {
        TableKey { level, traps: true }
    }

    fn long(level: u64, at: usize) -> Option<Place> {
        Some(Place { table: table(level), run: RunPlace::Long(at) })
    }

    fn single(at: usize) -> Option<Place> {
        Some(Place { table: table(0), run: RunPlace::Single(at) })
    }

    #[test]
    fn the_first_masks_have_long_runs_and_later_ones_share_the_rest() {
        let mut capacity = Capacity::default();
        let mut take = |of| capacity.take(LIMITS, table(0), &mask(of));
        assert_eq!([take(1), take(2), take(1)], [long(0, 0), long(0, 1), long(0, 0)]);
        assert_eq!(take(3), single(0));
        assert_eq!([take(1), take(1)], [long(0, 0), single(1)], "a full run overflows");
        assert_eq!([take(4), take(5), take(6)], [single(2), single(3), None]);
        assert_eq!(take(2), long(0, 1), "a run that is not full has room");
        let other = capacity.take(LIMITS, table(1), &mask(6));
        assert_eq!(other, long(1, 0), "another priority, another table");
    }

    #[test]
    fn freed_entries_can_be_used_by_another_mask() {
        let mut capacity = Capacity::default();
        for of in [1, 2, 3, 4, 5, 6] {
            assert!(capacity.take(LIMITS, table(0), &mask(of)).is_some());
        }
        assert_eq!(capacity.take(LIMITS, table(0), &mask(7)), None);
        capacity.give_back(long(0, 0).unwrap());
        assert_eq!(capacity.take(LIMITS, table(0), &mask(7)), long(0, 0));
        capacity.give_back(single(1).unwrap());
        assert_eq!(capacity.take(LIMITS, table(0), &mask(8)), single(1));
    }

    #[test]
    fn frames_pass_copying_tables_first() {
        let mut capacity = Capacity::default();
        let copies = TableKey { level: 0, traps: false };
        let [taken, later] = [0, 1].map(|level| capacity.take(LIMITS, table(level), &mask(1)).unwrap());
        let copied = capacity.take(LIMITS, copies, &mask(2)).unwrap();
        assert_eq!([copied, taken, later].map(|place| capacity.passed(place)), [1, 2, 3]);
        assert_eq!(capacity.groups(), 3);
        capacity.give_back(copied);
        assert_eq!([taken, later].map(|place| capacity.passed(place)), [1, 2]);
    }

    proptest! {
        /// The compiler fills tables with [`TableFill`], from which nothing is removed.
        #[test]
        fn runs_are_the_groups_of_the_compiler(masks in prop::collection::vec(0..5u64, 0..200)) {
            let limits = PriorityTable { entries: 120, groups: 2, group_entries: 20 };
            let (mut capacity, mut fill) = (Capacity::default(), TableFill::new(limits));
            for of in masks {
                let place = capacity.take(limits, table(0), &mask(of));
                let passed = place.map(|place| capacity.passed(place));
                prop_assert_eq!(passed, fill.place(&of).map(|group| u64::from(group) + 1));
                prop_assert_eq!(capacity.groups(), u64::from(fill.groups()));
            }
        }

        /// With flows that go: the runs that are left, counted one by one.
        #[test]
        fn passed_runs_are_those_in_use(steps in prop::collection::vec((0..6u64, any::<prop::sample::Index>()), 0..200)) {
            let limits = PriorityTable { entries: 90, groups: 2, group_entries: 3 };
            let (mut capacity, mut places): (Capacity, Vec<Place>) = Default::default();
            for (of, index) in steps {
                if of == 0 && !places.is_empty() {
                    capacity.give_back(places.swap_remove(index.index(places.len())));
                } else {
                    places.extend(capacity.take(limits, table(of % 2), &mask(of)));
                }
                let number = |place: &Place| match place.run {
                    RunPlace::Long(at) => (place.table, false, at),
                    RunPlace::Single(at) => (place.table, true, at),
                };
                let used: std::collections::BTreeSet<_> = places.iter().map(number).collect();
                prop_assert_eq!(capacity.groups(), used.len() as u64);
                for place in &places {
                    prop_assert_eq!(capacity.passed(*place), used.range(..=number(place)).count() as u64);
                }
            }
        }
    }
}

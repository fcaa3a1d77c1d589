//! The measurements of a period, from which a step is decided.

use std::collections::BTreeMap;

use program::WorkerId;

/// The sampled packets of an entry of an indirection table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntrySample {
    /// The time that workers take for the sampled packets, in any unit that is the same for all entries.
    pub cost: u64,
    /// The part of it that is for the largest flow.
    pub largest_flow: u64,
    /// No packet came so lately that it may still wait in the queue of its worker.
    pub is_idle: bool,
}

/// A group in a period.
#[derive(Clone, Copy, Debug)]
pub struct GroupSample<'s> {
    /// The worker of each entry.
    pub table: &'s [WorkerId],
    /// The workers that entries may move to, each once.
    pub workers: &'s [WorkerId],
    /// A sample of each entry of `table`. An entry without one has no load.
    pub entries: &'s [EntrySample],
}

/// All groups in a period. The period begins after the last move is in force; otherwise its busy times are in
/// part those of the table before.
#[derive(Clone, Copy, Debug)]
pub struct PeriodSample<'s> {
    /// The end of the period, by any clock that does not go backwards.
    pub now_ns: u64,
    /// The length of the period.
    pub period_ns: u64,
    /// The time in the period in which each worker was not idle. A worker that is missing was idle.
    pub busy_ns: &'s BTreeMap<WorkerId, u64>,
    /// The groups, always the same ones in the same order.
    pub groups: &'s [GroupSample<'s>],
}

impl PeriodSample<'_> {
    /// The load of each entry of each group: the busy time of its worker, divided in proportion to the costs
    /// of the worker's entries in all groups.
    pub(crate) fn entry_loads(&self) -> Vec<Vec<u64>> {
        let mut costs: BTreeMap<WorkerId, u128> = BTreeMap::new();
        for group in self.groups {
            for (worker, entry) in group.table.iter().zip(group.entries) {
                *costs.entry(*worker).or_default() += u128::from(entry.cost);
            }
        }
        let load = |(worker, entry): (&WorkerId, &EntrySample)| {
            let busy = self.busy_ns.get(worker).copied().unwrap_or(0);
            part_of(busy, u128::from(entry.cost), costs[worker])
        };
        let of_group = |group: &GroupSample<'_>| group.table.iter().zip(group.entries).map(load).collect();
        self.groups.iter().map(of_group).collect()
    }
}

/// The part of `whole` that `part` is of `all`; 0 of nothing, and the largest number if it is larger.
pub(crate) fn part_of(whole: u64, part: u128, all: u128) -> u64 {
    (u128::from(whole) * part).checked_div(all).map_or(0, |share| u64::try_from(share).unwrap_or(u64::MAX))
}

//! The indirection table of a group: each worker has entries in proportion to its weight.

use program::WorkerId;

use crate::policy::{DEFAULT_TABLE_SIZE, GroupDefinition, MAX_TABLE_SIZE, WorkerShare, Workers};

/// The table of a group on a device without limits; `workers` is how many there are in all.
#[must_use]
pub fn table_of(definition: &GroupDefinition, workers: usize) -> Vec<WorkerId> {
    let shares: Vec<(u32, u32)> = match &definition.workers {
        Workers::All => all_workers(workers),
        Workers::Listed(listed) => shares_of(listed),
    };
    let size = definition.table_size.unwrap_or_else(|| DEFAULT_TABLE_SIZE.max(entries_for(shares.len())));
    spread(&shares, size as usize)
}

/// The workers with a share of the table, and their weights.
#[must_use]
pub fn shares_of(listed: &[WorkerShare]) -> Vec<(u32, u32)> {
    listed.iter().map(|share| (share.worker, share.weight)).filter(|(_, weight)| *weight > 0).collect()
}

/// The workers and weights of a group of all workers.
#[must_use]
pub fn all_workers(workers: usize) -> Vec<(u32, u32)> {
    (0..u32::try_from(workers).unwrap_or(u32::MAX).min(MAX_TABLE_SIZE)).map(|worker| (worker, 1)).collect()
}

/// The smallest table with an entry for each worker, in entries.
#[must_use]
pub fn entries_for(workers: usize) -> u32 {
    u32::try_from(workers).unwrap_or(MAX_TABLE_SIZE).min(MAX_TABLE_SIZE).next_power_of_two()
}

/// Fills a table in which every section has the workers in about the proportion of their weights, by smooth
/// weighted round-robin: each step adds to every worker's credit its weight, takes the worker with the most
/// credit, and subtracts the total weight from it. Credits always add up to 0 after a step, so after as many
/// steps as the total weight each worker was taken as often as its weight. Equal weights give 0, 1, 2, ...,
/// 0, 1, 2, ...
#[must_use]
pub fn spread(shares: &[(u32, u32)], size: usize) -> Vec<WorkerId> {
    let total: i64 = shares.iter().map(|(_, weight)| i64::from(*weight)).sum();
    let mut credit = vec![0i64; shares.len()];
    let mut table = Vec::with_capacity(size);
    for _ in 0..size {
        for (credit, (_, weight)) in credit.iter_mut().zip(shares) {
            *credit += i64::from(*weight);
        }
        // The first of those with the most credit.
        let next = (0..shares.len()).rev().max_by_key(|index| credit[*index]);
        let Some(next) = next else { break };
        credit[next] -= total;
        table.push(WorkerId(shares[next].0));
    }
    table
}

/// Gives the entries of some workers to others: the first of them to the worker that [`spread`] over `others`
/// would take first, and so on. All other entries stay as they are, so no flow moves between two workers that
/// keep theirs.
pub fn hand_over(table: &mut [WorkerId], others: &[(u32, u32)], gives: impl Fn(WorkerId) -> bool) {
    let given: Vec<&mut WorkerId> = table.iter_mut().filter(|entry| gives(**entry)).collect();
    let takers = spread(others, given.len());
    given.into_iter().zip(takers).for_each(|(entry, taker)| *entry = taker);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(table: &[WorkerId], worker: u32) -> usize {
        table.iter().filter(|entry| entry.0 == worker).count()
    }

    #[test]
    fn equal_weights_take_turns() {
        let table = spread(&[(0, 1), (1, 1), (2, 1)], 8);
        assert_eq!(table.iter().map(|worker| worker.0).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2, 0, 1]);
    }

    #[test]
    fn only_entries_of_givers_move() {
        let before = spread(&[(0, 1), (1, 1), (2, 2)], 8);
        let mut table = before.clone();
        hand_over(&mut table, &[(0, 1), (1, 1)], |worker| worker == WorkerId(2));
        assert_eq!((counts(&table, 0), counts(&table, 1), counts(&table, 2)), (4, 4, 0));
        assert!(before.iter().zip(&table).all(|(old, new)| old.0 == 2 || old == new));
        hand_over(&mut table, &[], |_worker| true);
        assert_eq!(counts(&table, 0), 4, "nobody takes them");
    }

    #[test]
    fn every_section_has_the_proportions_of_the_weights() {
        let table = spread(&[(4, 3), (7, 1)], 128);
        assert_eq!((counts(&table, 4), counts(&table, 7)), (96, 32));
        assert!(table.chunks(4).all(|chunk| counts(chunk, 7) == 1));
    }
}

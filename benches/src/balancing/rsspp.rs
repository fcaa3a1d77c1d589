//! RSS++ (Barbette, Katsikas, Maguire, Kostic: "RSS++: load and state-aware receive side scaling", CoNEXT
//! 2019), in outline and not by its code, from which details may differ: counters of packets divide the load
//! of a core among its buckets; buckets of overloaded cores, the heaviest first, go to the least loaded core;
//! of several targets that allow more or less deviation the assignment with the least squared imbalance is
//! taken. The number of moves is not limited, and all are made in one change of the table. The scaling of the
//! number of cores and the migration of states have no part here.

use std::collections::BTreeMap;

use program::WorkerId;

use super::{BalanceStrategy, PERIOD_NS, SimulatedPeriod};

/// The part of the mean by which a core may deviate.
const THRESHOLD: f64 = 0.02;
/// The targets that are tried.
const TRIALS: u32 = 10;

/// The balancer of the paper.
pub struct RssPlusPlus;

impl BalanceStrategy for RssPlusPlus {
    fn moves(&mut self, period: &SimulatedPeriod<'_>) -> Vec<(usize, WorkerId)> {
        let loads: BTreeMap<WorkerId, f64> =
            period.busy_ns.iter().map(|(worker, busy)| (*worker, *busy as f64 / PERIOD_NS as f64)).collect();
        let mut packets: BTreeMap<WorkerId, u64> = BTreeMap::new();
        for (worker, count) in period.table.iter().zip(period.packets) {
            *packets.entry(*worker).or_default() += count;
        }
        let bucket_load = |(worker, count): (&WorkerId, &u64)| {
            loads[worker] * *count as f64 / packets[worker].max(1) as f64
        };
        let buckets: Vec<f64> = period.table.iter().zip(period.packets).map(bucket_load).collect();
        let trials = (0..=TRIALS).map(|trial| {
            assignment(period.table, &buckets, loads.clone(), f64::from(trial) / f64::from(TRIALS))
        });
        let none = Assignment { moves: Vec::new(), imbalance: squared_imbalance(&loads) };
        trials.fold(none, |best, trial| if trial.imbalance < best.imbalance { trial } else { best }).moves
    }
}

struct Assignment {
    moves: Vec<(usize, WorkerId)>,
    imbalance: f64,
}

fn mean(loads: &BTreeMap<WorkerId, f64>) -> f64 {
    loads.values().sum::<f64>() / loads.len() as f64
}

fn squared_imbalance(loads: &BTreeMap<WorkerId, f64>) -> f64 {
    let mean = mean(loads);
    loads.values().map(|load| (load - mean).powi(2)).sum()
}

/// The assignment in which a bucket may exceed what its core has too much, and what the other lacks, by a
/// part of itself.
fn assignment(
    table: &[WorkerId],
    buckets: &[f64],
    mut loads: BTreeMap<WorkerId, f64>,
    tolerance: f64,
) -> Assignment {
    let mean = mean(&loads);
    let mut overloaded: Vec<(WorkerId, f64)> = loads
        .iter()
        .map(|(worker, load)| (*worker, *load))
        .filter(|(_, load)| *load > mean * (1.0 + THRESHOLD))
        .collect();
    overloaded.sort_by(|a, b| b.1.total_cmp(&a.1));
    let mut moves = Vec::new();
    for (core, _) in overloaded {
        let mut own: Vec<usize> = (0..table.len()).filter(|entry| table[*entry] == core).collect();
        own.sort_by(|a, b| buckets[*b].total_cmp(&buckets[*a]));
        for entry in own {
            let load = buckets[entry];
            let Some(to) = loads.keys().copied().min_by(|a, b| loads[a].total_cmp(&loads[b])) else { break };
            let (excess, deficit) = (loads[&core] - mean, mean - loads[&to]);
            if excess <= mean * THRESHOLD {
                break;
            }
            let fits = |room: f64| load <= room + load * tolerance;
            if load > 0.0 && to != core && fits(excess) && fits(deficit) {
                *loads.entry(core).or_default() -= load;
                *loads.entry(to).or_default() += load;
                moves.push((entry, to));
            }
        }
    }
    Assignment { imbalance: squared_imbalance(&loads), moves }
}

//! A simulation of workers that share a group: packets of flows are hashed to an indirection table, wait in
//! the finite queue of their worker, and take its time. After each period a strategy may change the table.
//! Time is simulated, so results are the same on every machine; they say nothing about hardware.

mod rsspp;
mod traffic;

use std::collections::{BTreeMap, HashMap, VecDeque};

use balance::{BalanceLimits, Balancer, EntrySample, GroupSample, PeriodSample};
use program::WorkerId;

use crate::dice::Dice;
pub use rsspp::RssPlusPlus;
use traffic::Traffic;
pub use traffic::{Scenario, scenarios};

/// The entries of the table.
pub const ENTRIES: usize = 128;
/// The length of a period.
pub const PERIOD_NS: u64 = 1_000_000_000;
/// The number of periods of a run.
pub const PERIODS: usize = 40;
/// The packets that the queue of a worker holds.
const QUEUE_PACKETS: usize = 1024;
/// One packet of so many is sampled.
const ONE_IN: u64 = 32;
/// An entry is idle if no packet came in the last part of a period of this length.
const IDLE_NS: u64 = 50_000_000;
/// Workers are balanced if the fullest one has so many times the least that entries allow.
pub const BALANCED: f64 = 1.2;

/// The measurements after a period, as a strategy gets them.
pub struct SimulatedPeriod<'p> {
    /// The time of its end, in nanoseconds.
    pub now_ns: u64,
    /// The table.
    pub table: &'p [WorkerId],
    /// All workers.
    pub workers: &'p [WorkerId],
    /// The busy times of workers, in nanoseconds.
    pub busy_ns: &'p BTreeMap<WorkerId, u64>,
    /// A sample of one packet in `ONE_IN`.
    pub entries: &'p [EntrySample],
    /// All packets that were received for each entry.
    pub packets: &'p [u64],
}

/// Changes the table after a period.
pub trait BalanceStrategy {
    /// The entries that move, with their new workers.
    fn moves(&mut self, period: &SimulatedPeriod<'_>) -> Vec<(usize, WorkerId)>;
}

/// The table stays as it is.
pub struct FixedTable;

impl BalanceStrategy for FixedTable {
    fn moves(&mut self, _: &SimulatedPeriod<'_>) -> Vec<(usize, WorkerId)> {
        Vec::new()
    }
}

/// The balancer of steerd with its default limits.
pub struct SteerdBalancer(Balancer);

impl Default for SteerdBalancer {
    fn default() -> Self {
        Self(Balancer::new(BalanceLimits::default()))
    }
}

impl BalanceStrategy for SteerdBalancer {
    fn moves(&mut self, period: &SimulatedPeriod<'_>) -> Vec<(usize, WorkerId)> {
        let group = GroupSample { table: period.table, workers: period.workers, entries: period.entries };
        let sample = PeriodSample {
            now_ns: period.now_ns,
            period_ns: PERIOD_NS,
            busy_ns: period.busy_ns,
            groups: &[group],
        };
        let steps = self.0.step(&sample);
        steps.iter().flat_map(|step| &step.moves).map(|moved| (moved.entry, moved.to)).collect()
    }
}

/// The results of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SimulatedRun {
    /// The load offered to the fullest worker divided by the mean, by period. Unlike the ratio of busy times
    /// it does not end at a full worker.
    pub imbalances: Vec<f64>,
    /// The least ratio that a table allows, by period: an entry is not split.
    pub least: Vec<f64>,
    /// Packets that came.
    pub packets: u64,
    /// Packets that met a full queue.
    pub lost: u64,
    /// Packets that left a worker before an earlier packet of their flow left another.
    pub reordered: u64,
    /// Entries that moved, by period.
    pub moves: Vec<usize>,
}

impl SimulatedRun {
    /// The 95th percentile of the imbalance, without the first period, in which no strategy has acted.
    #[must_use]
    pub fn imbalance_p95(&self) -> f64 {
        let mut sorted = self.imbalances.get(1..).unwrap_or_default().to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted.get((sorted.len() * 95).div_ceil(100).saturating_sub(1)).copied().unwrap_or(f64::NAN)
    }

    /// The mean of the imbalance in the last quarter of the run.
    #[must_use]
    pub fn settled_imbalance(&self) -> f64 {
        let last = &self.imbalances[self.imbalances.len() * 3 / 4..];
        last.iter().sum::<f64>() / last.len() as f64
    }

    /// The steps until workers are [`BALANCED`] for the first time; `None`: never.
    #[must_use]
    pub fn steps_until_balanced(&self) -> Option<usize> {
        self.imbalances.iter().zip(&self.least).position(|(ratio, least)| *ratio <= least * BALANCED)
    }

    /// The changes of the table: one for each period with moves.
    #[must_use]
    pub fn table_changes(&self) -> usize {
        self.moves.iter().filter(|moves| **moves > 0).count()
    }

    /// The part of the packets that was lost.
    #[must_use]
    pub fn loss(&self) -> f64 {
        self.lost as f64 / self.packets.max(1) as f64
    }
}

/// The queue of a worker: first come, first served.
#[derive(Default)]
struct WorkerQueue {
    /// When each waiting packet leaves.
    departures: VecDeque<u64>,
    free_ns: u64,
    /// The time for all packets of the period that were accepted.
    accepted_ns: u64,
    /// The time that waiting packets needed when the period began.
    waiting_ns: u64,
}

impl WorkerQueue {
    /// When a packet leaves that comes now; `None`: the queue is full.
    fn receive(&mut self, now_ns: u64, cost_ns: u64) -> Option<u64> {
        while self.departures.front().is_some_and(|leaves| *leaves <= now_ns) {
            self.departures.pop_front();
        }
        if self.departures.len() >= QUEUE_PACKETS {
            return None;
        }
        self.free_ns = self.free_ns.max(now_ns) + cost_ns;
        self.accepted_ns += cost_ns;
        self.departures.push_back(self.free_ns);
        Some(self.free_ns)
    }

    /// The busy time of the period that ends now: what was there and came, without what still waits.
    fn end_period(&mut self, now_ns: u64) -> u64 {
        let waiting_ns = self.free_ns.saturating_sub(now_ns);
        let busy_ns = self.waiting_ns + self.accepted_ns - waiting_ns;
        (self.waiting_ns, self.accepted_ns) = (waiting_ns, 0);
        busy_ns
    }
}

/// The counts of an entry in a period.
#[derive(Clone, Default)]
struct EntryCounts {
    packets: u64,
    /// The sampled cost of each flow.
    sampled: HashMap<usize, u64>,
    last_ns: u64,
    offered_ns: u64,
}

impl EntryCounts {
    fn sample(&self, now_ns: u64) -> EntrySample {
        EntrySample {
            cost: self.sampled.values().sum(),
            largest_flow: self.sampled.values().copied().max().unwrap_or(0),
            is_idle: self.last_ns + IDLE_NS < now_ns,
        }
    }
}

/// Runs a scenario with a strategy. Equal seeds give the same packets to all strategies.
#[must_use]
pub fn simulate(scenario: &Scenario, strategy: &mut dyn BalanceStrategy, seed: u64) -> SimulatedRun {
    let workers: Vec<WorkerId> = (0..scenario.workers).map(WorkerId).collect();
    let mut table: Vec<WorkerId> = workers.iter().copied().cycle().take(ENTRIES).collect();
    let mut queues: Vec<WorkerQueue> = workers.iter().map(|_| WorkerQueue::default()).collect();
    let mut traffic = Traffic::new(scenario, seed);
    let mut last_departure = vec![0; traffic.flows()];
    // Of its own, so that the choice of samples has no part in the traffic.
    let mut dice = Dice(!seed);
    let mut run = SimulatedRun::default();
    for period in 1..=PERIODS as u64 {
        let end_ns = period * PERIOD_NS;
        let mut entries = vec![EntryCounts::default(); ENTRIES];
        while let Some(packet) = traffic.next_before(end_ns) {
            let entry = &mut entries[packet.entry];
            let queue = &mut queues[table[packet.entry].0 as usize];
            entry.offered_ns += packet.cost_ns;
            entry.last_ns = packet.now_ns;
            run.packets += 1;
            let Some(leaves_ns) = queue.receive(packet.now_ns, packet.cost_ns) else {
                run.lost += 1;
                continue;
            };
            entry.packets += 1;
            if dice.throw().is_multiple_of(ONE_IN) {
                *entry.sampled.entry(packet.flow).or_insert(0) += packet.cost_ns;
            }
            run.reordered += u64::from(leaves_ns < last_departure[packet.flow]);
            last_departure[packet.flow] = leaves_ns.max(last_departure[packet.flow]);
        }
        let busy_ns =
            workers.iter().zip(&mut queues).map(|(id, queue)| (*id, queue.end_period(end_ns))).collect();
        run.add_period(&table, &entries, workers.len());
        let samples: Vec<EntrySample> = entries.iter().map(|entry| entry.sample(end_ns)).collect();
        let packets: Vec<u64> = entries.iter().map(|entry| entry.packets).collect();
        let measured = SimulatedPeriod {
            now_ns: end_ns,
            table: &table,
            workers: &workers,
            busy_ns: &busy_ns,
            entries: &samples,
            packets: &packets,
        };
        let moves = strategy.moves(&measured);
        run.moves.push(moves.len());
        for (entry, to) in moves {
            table[entry] = to;
        }
    }
    run
}

impl SimulatedRun {
    fn add_period(&mut self, table: &[WorkerId], entries: &[EntryCounts], workers: usize) {
        let mut offered: BTreeMap<WorkerId, u64> = BTreeMap::new();
        for (worker, entry) in table.iter().zip(entries) {
            *offered.entry(*worker).or_default() += entry.offered_ns;
        }
        let mean = entries.iter().map(|entry| entry.offered_ns).sum::<u64>() as f64 / workers as f64;
        let ratio = |load: Option<u64>| load.unwrap_or(0) as f64 / mean;
        self.imbalances.push(ratio(offered.into_values().max()));
        self.least.push(ratio(entries.iter().map(|entry| entry.offered_ns).max()).max(1.0));
    }
}

#[cfg(test)]
mod tests;

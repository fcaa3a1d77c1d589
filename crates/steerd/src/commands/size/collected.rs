//! What `size` needs of a capture: for each group its packets by worker and by flow, and for each worker its
//! packets over time. A flow is what a hash distinguishes: packets with the same input of the hash.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use packet::{DeepKey, FlowKey, HASH_INPUT_BYTES};
use program::{Program, QueueId, WorkerId};
use reports::{Amount, Decision, Decisions};

use super::balance::Input;
use crate::commands::Error;
use crate::traffic::{self, Totals};

/// The most flows of a group; the packets of others count for their workers alone.
const MAX_FLOWS: usize = 1 << 19;
/// The most intervals; when there are more, they are made twice as long.
const MAX_INTERVALS: usize = 4096;
const FIRST_INTERVAL_NS: u64 = 100_000_000;

/// The packets of a flow, and the first of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    pub(crate) packets: u64,
    pub(crate) first: FlowKey,
    /// The time that workers take for them, in picoseconds.
    pub(crate) cost_ps: u64,
    /// The time of the last one, after the first packet of the capture.
    pub(crate) last_ns: u64,
}

/// The packets that the queues of a group receive, copies included.
#[derive(Debug, Default)]
pub(crate) struct GroupTraffic {
    pub(crate) all: Amount,
    pub(crate) workers: BTreeMap<WorkerId, Amount>,
    pub(crate) flows: HashMap<Input, Flow>,
    /// The packets of flows beyond [`MAX_FLOWS`].
    pub(crate) other_packets: u64,
}

/// A capture as a program receives it.
#[derive(Debug)]
pub(crate) struct Collected {
    pub(crate) totals: Totals,
    /// In the order of the program's groups.
    pub(crate) groups: Vec<GroupTraffic>,
    pub(crate) intervals: Intervals,
}

impl Collected {
    pub(crate) fn of(program: &Program, path: &Path) -> Result<Self, Error> {
        let mut groups: Vec<GroupTraffic> = program
            .groups
            .iter()
            .map(|group| {
                let workers = group.table.iter().map(|worker| (*worker, Amount::default())).collect();
                GroupTraffic { workers, ..GroupTraffic::default() }
            })
            .collect();
        let mut intervals = Intervals::default();
        let mut decisions = Decisions::new(program);
        let totals = traffic::for_each_key(path, &mut |key, packet| {
            intervals.at(packet.time_ns);
            let Decision { explained, worker_ps, .. } = decisions.of(key);
            let copies = explained
                .copies
                .iter()
                .map(|copied| (Some(copied.queue), copied.worker, Decision::RECEIVE_PS));
            let packets = [(explained.queue, explained.worker, *worker_ps)].into_iter().chain(copies);
            for (queue, worker, cost_ps) in packets {
                let (Some(queue), Some(worker)) = (queue, worker) else { continue };
                intervals.add(worker);
                let (bytes, now_ns) = (packet.wire_bytes, intervals.now_ns);
                receive(program, &mut groups, queue, &Arrival { worker, key, bytes, cost_ps, now_ns });
            }
        })?;
        Ok(Self { totals, groups, intervals })
    }
}

/// A packet or a copy on its way to a worker.
struct Arrival<'k> {
    worker: WorkerId,
    key: &'k DeepKey,
    bytes: u64,
    cost_ps: u64,
    now_ns: u64,
}

/// Adds a packet that a worker receives to the group of its queue.
fn receive(program: &Program, groups: &mut [GroupTraffic], queue: QueueId, arrival: &Arrival<'_>) {
    let Arrival { worker, key, bytes, cost_ps, now_ns } = *arrival;
    let Some(queue) = program.queues.get(queue.index()) else { return };
    let Some(group) = groups.get_mut(queue.group.index()) else { return };
    group.all.add(bytes);
    group.workers.entry(worker).or_default().add(bytes);
    let mut input = [0; HASH_INPUT_BYTES];
    let length = key.hash_input(queue.fields, &mut input);
    let input = Input::new(input, length);
    let is_full = group.flows.len() >= MAX_FLOWS;
    match group.flows.get_mut(&input) {
        Some(flow) => {
            flow.packets += 1;
            flow.cost_ps += cost_ps;
            flow.last_ns = now_ns;
        }
        None if is_full => group.other_packets += 1,
        None => {
            group.flows.insert(input, Flow { packets: 1, first: key.outer, cost_ps, last_ns: now_ns });
        }
    }
}

/// The packets of each worker in intervals of equal length, the last of which may be shorter.
#[derive(Debug)]
pub(crate) struct Intervals {
    pub(super) length_ns: u64,
    counts: Vec<BTreeMap<WorkerId, u64>>,
    first_ns: Option<u64>,
    /// The time of the last packet, and of the packet that is being added, after the first one.
    pub(crate) duration_ns: u64,
    now_ns: u64,
}

impl Default for Intervals {
    fn default() -> Self {
        Self { length_ns: FIRST_INTERVAL_NS, counts: Vec::new(), first_ns: None, duration_ns: 0, now_ns: 0 }
    }
}

impl Intervals {
    /// The time of the next packets; without one, that of the packet before.
    fn at(&mut self, time_ns: Option<u64>) {
        let Some(time_ns) = time_ns else { return };
        self.now_ns = time_ns.saturating_sub(*self.first_ns.get_or_insert(time_ns));
        self.duration_ns = self.duration_ns.max(self.now_ns);
        while (self.now_ns / self.length_ns) as usize >= MAX_INTERVALS {
            self.length_ns *= 2;
            let halves = std::mem::take(&mut self.counts);
            for pair in halves.chunks(2) {
                let mut both = BTreeMap::new();
                for (worker, packets) in pair.iter().flatten() {
                    *both.entry(*worker).or_insert(0) += packets;
                }
                self.counts.push(both);
            }
        }
    }

    fn add(&mut self, worker: WorkerId) {
        let index = (self.now_ns / self.length_ns) as usize;
        if self.counts.len() <= index {
            self.counts.resize_with(index + 1, BTreeMap::new);
        }
        *self.counts[index].entry(worker).or_insert(0) += 1;
    }

    /// The packets of each worker.
    pub(super) fn packets(&self) -> BTreeMap<WorkerId, u64> {
        let mut sums = BTreeMap::new();
        for (worker, packets) in self.counts.iter().flatten() {
            *sums.entry(*worker).or_insert(0) += packets;
        }
        sums
    }

    /// The packets of each worker that exceed `capacity` packets per second, interval by interval, if the
    /// capture takes `seconds`. What a queue holds from one interval to the next is not counted on.
    pub(super) fn excess(&self, capacity: f64, seconds: f64) -> BTreeMap<WorkerId, f64> {
        let length = |index: usize| {
            let start_ns = index as u64 * self.length_ns;
            let length_ns = self.length_ns.min(self.duration_ns.saturating_sub(start_ns));
            // The last packets are at the end of the last interval, which may have just begun.
            let length_ns = length_ns.max(self.length_ns.min(self.duration_ns) / 2);
            if self.duration_ns == 0 { 1.0 } else { length_ns as f64 / self.duration_ns as f64 }
        };
        let mut excess = BTreeMap::new();
        for (index, counts) in self.counts.iter().enumerate() {
            let most = capacity * seconds * length(index);
            for (worker, packets) in counts {
                *excess.entry(*worker).or_insert(0.0) += (*packets as f64 - most).max(0.0);
            }
        }
        excess
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_beyond_the_capacity_of_an_interval_are_lost() {
        let mut intervals = Intervals::default();
        // 100 packets in the first tenth of a second, 10 in each of the other nine.
        for tenth in 0..10 {
            for packet in 0..if tenth == 0 { 100 } else { 10 } {
                intervals.at(Some(7_000 + tenth * 100_000_000 + packet * 1_000_000));
                intervals.add(WorkerId(3));
            }
        }
        intervals.at(Some(7_000 + 1_000_000_000));
        let lost = |capacity, seconds| intervals.excess(capacity, seconds)[&WorkerId(3)];
        assert_eq!(intervals.packets()[&WorkerId(3)], 190);
        assert!((lost(500.0, 1.0) - 50.0).abs() < 1e-6, "{}", lost(500.0, 1.0));
        assert!((lost(1000.0, 1.0)).abs() < 1e-6);
        // At twice the rate each interval has half the time.
        assert!((lost(1000.0, 0.5) - 50.0).abs() < 1e-6);
        assert!((lost(100.0, 0.5) - 95.0 - 9.0 * 5.0).abs() < 1e-6);
    }

    #[test]
    fn intervals_of_long_captures_are_longer() {
        let mut intervals = Intervals::default();
        for second in [0, 1, 2, 100_000] {
            intervals.at(Some(second * 1_000_000_000));
            intervals.add(WorkerId(0));
        }
        assert!(intervals.counts.len() <= MAX_INTERVALS, "{}", intervals.counts.len());
        assert_eq!(intervals.packets()[&WorkerId(0)], 4);
        assert_eq!(intervals.counts[0][&WorkerId(0)], 3);
    }

    #[test]
    fn without_times_all_packets_are_in_one_interval() {
        let mut intervals = Intervals::default();
        for _ in 0..10 {
            intervals.at(None);
            intervals.add(WorkerId(0));
        }
        assert_eq!(intervals.excess(3.0, 2.0)[&WorkerId(0)], 4.0);
    }
}

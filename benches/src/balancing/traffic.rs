//! Packets of flows whose sizes follow Zipf's law, with elephants and hot spots that shift.

use packet::{HASH_INPUT_BYTES, RssKey, Toeplitz};

use super::{ENTRIES, PERIOD_NS};
use crate::dice::Dice;

const FLOWS: usize = 4096;
/// The mean time of a worker for a packet.
const MEAN_COST_NS: u64 = 100_000;
/// The part of the time of all workers that the packets need.
const LOAD_PERCENT: u64 = 70;
/// One flow of so many is decided by a worker, which takes three times as long.
const COSTLY_ONE_IN: usize = 8;

/// A kind of traffic, and how many workers there are for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scenario {
    /// The name in tables.
    pub name: &'static str,
    /// The number of workers.
    pub workers: u32,
    /// The packets of the flow of rank `r` are in proportion to `r^-exponent`.
    pub exponent: f64,
    /// Flows with so many percent of all packets each, beside the others.
    pub elephants: &'static [u32],
    /// The ranks of flows are drawn anew after so many periods.
    pub shifts_every: Option<u64>,
}

/// The scenarios of the bench and of its tests.
#[must_use]
pub fn scenarios() -> Vec<Scenario> {
    let zipf = |name, exponent| Scenario { name, workers: 8, exponent, elephants: &[], shifts_every: None };
    vec![
        Scenario { workers: 2, ..zipf("two workers, even", 0.0) },
        zipf("Zipf 1.1", 1.1),
        zipf("Zipf 1.2", 1.2),
        zipf("Zipf 1.3", 1.3),
        zipf("Zipf 1.4", 1.4),
        Scenario { elephants: &[8, 8, 8], ..zipf("three flows of 8%", 0.9) },
        Scenario { elephants: &[20], ..zipf("one flow of 20%", 0.9) },
        Scenario { shifts_every: Some(10), ..zipf("Zipf 0.9, shifts every 10 s", 0.9) },
        Scenario { shifts_every: Some(2), ..zipf("Zipf 0.9, shifts every 2 s", 0.9) },
    ]
}

/// A packet that arrives.
pub(super) struct SimulatedPacket {
    pub(super) now_ns: u64,
    pub(super) flow: usize,
    pub(super) entry: usize,
    pub(super) cost_ns: u64,
}

/// The packets of a scenario, in the order of their arrival.
pub(super) struct Traffic {
    scenario: Scenario,
    dice: Dice,
    now_ns: u64,
    interval_ns: u64,
    /// The entry of each flow.
    entries: Vec<usize>,
    /// The flow of each rank.
    ranks: Vec<usize>,
    /// The sums of the weights up to each rank.
    sums: Vec<f64>,
    /// When the ranks are drawn next.
    shift_ns: u64,
}

impl Traffic {
    pub(super) fn new(scenario: &Scenario, seed: u64) -> Self {
        let mut dice = Dice(seed);
        let toeplitz = Toeplitz::new(&RssKey::MICROSOFT);
        let mut entry = || {
            // The addresses and ports of an IPv4 packet.
            let mut input = [0; HASH_INPUT_BYTES];
            input[..8].copy_from_slice(&dice.throw().to_be_bytes());
            input[8..12].copy_from_slice(&(dice.throw() as u32).to_be_bytes());
            toeplitz.hash(&input[..12]) as usize & (ENTRIES - 1)
        };
        let elephants = scenario.elephants;
        let count = FLOWS + elephants.len();
        let entries = (0..count).map(|_| entry()).collect();
        let mice: Vec<f64> = (1..=FLOWS).map(|rank| (rank as f64).powf(-scenario.exponent)).collect();
        let share = f64::from(elephants.iter().sum::<u32>()) / 100.0;
        // The mice share what elephants leave.
        let whole = mice.iter().sum::<f64>() / (1.0 - share);
        let large = elephants.iter().map(|percent| f64::from(*percent) / 100.0 * whole);
        let sums = mice.iter().copied().chain(large).scan(0.0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        });
        let mean_ns = MEAN_COST_NS * 100 / LOAD_PERCENT / u64::from(scenario.workers);
        let shift_ns = scenario.shifts_every.map_or(u64::MAX, |periods| periods * PERIOD_NS);
        Self {
            scenario: *scenario,
            dice,
            now_ns: 0,
            interval_ns: mean_ns,
            entries,
            ranks: (0..count).collect(),
            sums: sums.collect(),
            shift_ns,
        }
    }

    pub(super) fn flows(&self) -> usize {
        self.entries.len()
    }

    /// The next packet that comes before that time.
    pub(super) fn next_before(&mut self, end_ns: u64) -> Option<SimulatedPacket> {
        // Between none and two intervals after the packet before.
        let next_ns = self.now_ns + self.dice.throw() % (2 * self.interval_ns);
        if next_ns >= end_ns {
            self.now_ns = end_ns;
            return None;
        }
        self.now_ns = next_ns;
        if next_ns >= self.shift_ns {
            self.shift_ns += self.scenario.shifts_every.unwrap_or(u64::MAX) * PERIOD_NS;
            for rank in (1..self.ranks.len()).rev() {
                self.ranks.swap(rank, self.dice.below(rank as u32 + 1) as usize);
            }
        }
        let whole = self.sums.last().copied().unwrap_or(0.0);
        let at = self.dice.throw() as f64 / u64::MAX as f64 * whole;
        let rank = self.sums.partition_point(|sum| *sum < at).min(self.sums.len() - 1);
        let flow = self.ranks[rank];
        // 3 of 1 in 8 and 1 of the others, over their mean of 1.25.
        let cost_ns = MEAN_COST_NS * 4 / 5 * if flow.is_multiple_of(COSTLY_ONE_IN) { 3 } else { 1 };
        Some(SimulatedPacket { now_ns: next_ns, flow, entry: self.entries[flow], cost_ns })
    }
}

//! The outcomes of packets, in one table: the state, the metrics of rules, the accounting and the tables of
//! the terminal are made of its rows. A new outcome is a row here, beside the place that counts it.

use std::array;
use std::ops::{Index, IndexMut};

use control::Counted;
use serde::Serializer;
use serde::ser::SerializeMap;
use worker::Disposition;

/// The outcome of a packet, by rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PacketOutcome {
    Delivered,
    /// Dropped by a rule, in the device or by a worker.
    Dropped,
    /// Dropped by workers beyond the rule's `limit`.
    RateLimited,
    /// Dropped by workers beyond a limit that sources shared, because the rule's table of sources was full.
    SourceOverflow,
    /// Dropped by workers because of the rule's `sample`.
    NotSampled,
    /// A copy that the rule does not match, discarded by a worker: no packet of the rule.
    Filtered,
    /// Left to the kernel by the device.
    Kernel,
    /// Left to the kernel by the policy, received by a worker, and handed to the kernel sink.
    Returned,
    /// Left to the kernel by the policy, but received by a worker, which cannot give it back.
    LostException,
    /// Sent by the host, and dropped.
    SentDropped,
    /// Sent by the host, and passed by an exception.
    SentPassed,
}

/// Where an outcome is counted and how it is shown.
pub(crate) struct Row {
    pub(crate) outcome: PacketOutcome,
    /// The state has NAME_packets of workers, and NAME_packets and NAME_bytes of rules.
    name: &'static str,
    /// The label `action` of the metrics of rules; `None`: these are no packets of the rule.
    pub(crate) action: Option<&'static str>,
    /// How workers count it, if they do.
    worker: Option<Disposition>,
    /// How the device counts it for each rule, if it does.
    device: Option<Counted>,
    /// The sum in the accounting; `None`: not an outcome of received packets.
    pub(crate) total: Option<Total>,
}

pub(crate) struct Total {
    key: &'static str,
    /// The line of the summary.
    pub(crate) text: &'static str,
    /// Whether the summary has the line if there are none.
    pub(crate) is_always_shown: bool,
}

impl PacketOutcome {
    pub(crate) const COUNT: usize = ROWS.len();

    /// The outcomes of packets that workers drop because of `limit` or `sample`.
    pub(crate) const POLICED: [Self; 3] = [Self::RateLimited, Self::SourceOverflow, Self::NotSampled];

    const fn index(self) -> usize {
        self as usize
    }

    fn found(is_it: impl Fn(&Row) -> bool) -> Self {
        let row = ROWS.iter().find(|row| is_it(row));
        row.expect("each way to count has a row, which a test checks").outcome
    }

    pub(crate) fn of_worker(disposition: Disposition) -> Self {
        Self::found(|row| row.worker == Some(disposition))
    }

    pub(crate) fn of_device(counted: Counted) -> Self {
        Self::found(|row| row.device == Some(counted))
    }
}

const fn total(key: &'static str, text: &'static str) -> Option<Total> {
    Some(Total { key, text, is_always_shown: false })
}

const fn main_total(key: &'static str, text: &'static str) -> Option<Total> {
    Some(Total { key, text, is_always_shown: true })
}

/// In the order of [`PacketOutcome`], which is that of the summary.
#[rustfmt::skip]
pub(crate) static ROWS: [Row; 11] = [
    Row { outcome: PacketOutcome::Delivered, name: "delivered", action: Some("deliver"),
        worker: Some(Disposition::Delivered), device: None,
        total: main_total("delivered", "delivered by rule") },
    Row { outcome: PacketOutcome::Dropped, name: "dropped", action: Some("drop"),
        worker: Some(Disposition::Dropped), device: Some(Counted::Dropped),
        total: main_total("rule_dropped", "dropped by rule") },
    Row { outcome: PacketOutcome::RateLimited, name: "rate_limited", action: Some("rate_limited"),
        worker: Some(Disposition::RateLimited), device: None,
        total: total("rate_limited", "dropped beyond limits of rules") },
    Row { outcome: PacketOutcome::SourceOverflow, name: "source_overflow", action: Some("source_overflow"),
        worker: Some(Disposition::SourceOverflow), device: None,
        total: total("source_overflow", "dropped because tables of sources were full") },
    Row { outcome: PacketOutcome::NotSampled, name: "not_sampled", action: Some("not_sampled"),
        worker: Some(Disposition::NotSampled), device: None,
        total: total("not_sampled", "dropped because of samples") },
    Row { outcome: PacketOutcome::Filtered, name: "filtered", action: None,
        worker: Some(Disposition::Filtered), device: None,
        total: total("filtered", "copies filtered out") },
    Row { outcome: PacketOutcome::Kernel, name: "kernel", action: Some("kernel"),
        worker: None, device: None,
        total: main_total("kernel", "left to the kernel") },
    Row { outcome: PacketOutcome::Returned, name: "returned", action: Some("returned"),
        worker: Some(Disposition::Returned), device: None,
        total: total("returned", "returned to the kernel") },
    Row { outcome: PacketOutcome::LostException, name: "lost_exception", action: Some("lost_exception"),
        worker: Some(Disposition::LostException), device: None,
        total: total("lost_exceptions", "lost exceptions (the kernel's, received by workers)") },
    Row { outcome: PacketOutcome::SentDropped, name: "sent_dropped", action: Some("drop_sent"),
        worker: None, device: Some(Counted::SentDropped), total: None },
    Row { outcome: PacketOutcome::SentPassed, name: "sent_passed", action: Some("pass_sent"),
        worker: None, device: Some(Counted::SentPassed), total: None },
];

/// The outcomes that workers count.
pub(crate) fn of_workers() -> impl Iterator<Item = (PacketOutcome, Disposition)> {
    ROWS.iter().filter_map(|row| Some((row.outcome, row.worker?)))
}

/// The names of these outcomes, as words.
pub(crate) fn worker_names() -> impl Iterator<Item = String> {
    ROWS.iter().filter(|row| row.worker.is_some()).map(|row| row.name.replace('_', " "))
}

/// The outcomes that the device counts for each rule.
pub(crate) fn of_device() -> impl Iterator<Item = PacketOutcome> {
    ROWS.iter().filter(|row| row.device.is_some()).map(|row| row.outcome)
}

/// A value for each outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ByOutcome<T>([T; PacketOutcome::COUNT]);

impl<T: Default> Default for ByOutcome<T> {
    fn default() -> Self {
        Self(array::from_fn(|_| T::default()))
    }
}

impl<T> Index<PacketOutcome> for ByOutcome<T> {
    type Output = T;

    fn index(&self, outcome: PacketOutcome) -> &T {
        &self.0[outcome.index()]
    }
}

impl<T> IndexMut<PacketOutcome> for ByOutcome<T> {
    fn index_mut(&mut self, outcome: PacketOutcome) -> &mut T {
        &mut self.0[outcome.index()]
    }
}

impl<T: Default, const N: usize> From<[(PacketOutcome, T); N]> for ByOutcome<T> {
    /// The others are zero.
    fn from(values: [(PacketOutcome, T); N]) -> Self {
        let mut all = Self::default();
        values.into_iter().for_each(|(outcome, value)| all[outcome] = value);
        all
    }
}

impl<T> ByOutcome<T> {
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static Row, &T)> {
        ROWS.iter().zip(&self.0)
    }
}

/// Packets and bytes of a rule with one outcome. `None`: the device has not counted them, or its counter has
/// not been read yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) packets: Option<u64>,
    pub(crate) bytes: Option<u64>,
}

impl Default for Count {
    fn default() -> Self {
        Self::of(0, 0)
    }
}

impl Count {
    pub(crate) const UNKNOWN: Self = Self { packets: None, bytes: None };

    pub(crate) const fn of(packets: u64, bytes: u64) -> Self {
        Self { packets: Some(packets), bytes: Some(bytes) }
    }

    /// A sum with something unknown stays unknown.
    pub(crate) fn add(&mut self, more: Self) {
        let sum = |sum: Option<u64>, more: Option<u64>| Some(sum? + more?);
        self.packets = sum(self.packets, more.packets);
        self.bytes = sum(self.bytes, more.bytes);
    }
}

/// The outcomes of a rule's packets.
pub(crate) type RuleOutcomes = ByOutcome<Count>;

/// The packets of a worker, over all rules.
pub(crate) type WorkerOutcomes = ByOutcome<u64>;

/// The sums of the accounting. `None`: the device does not count it.
pub(crate) type Totals = ByOutcome<Option<u64>>;

impl RuleOutcomes {
    pub(crate) fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(sum, more)| sum.add(*more));
    }

    /// The known packets of the rule.
    pub(crate) fn packets(&self) -> u64 {
        self.of_rule().filter_map(|count| count.packets).sum()
    }

    /// The known bytes of the rule.
    pub(crate) fn bytes(&self) -> u64 {
        self.of_rule().filter_map(|count| count.bytes).sum()
    }

    fn of_rule(&self) -> impl Iterator<Item = &Count> {
        self.iter().filter(|(row, _)| row.action.is_some()).map(|(_, count)| count)
    }

    pub(crate) fn serialize_for_rule<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (row, count) in self.iter() {
            map.serialize_entry(&format!("{}_packets", row.name), &count.packets)?;
            map.serialize_entry(&format!("{}_bytes", row.name), &count.bytes)?;
        }
        map.end()
    }
}

impl WorkerOutcomes {
    pub(crate) fn sum(&self) -> u64 {
        self.0.iter().sum()
    }

    pub(crate) fn serialize_for_worker<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (row, packets) in self.iter().filter(|(row, _)| row.worker.is_some()) {
            map.serialize_entry(&format!("{}_packets", row.name), packets)?;
        }
        map.end()
    }
}

impl Totals {
    pub(crate) fn serialize_totals<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (row, packets) in self.iter() {
            if let Some(total) = &row.total {
                map.serialize_entry(total.key, packets)?;
            }
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_to_count_has_one_row() {
        for (index, row) in ROWS.iter().enumerate() {
            assert_eq!(row.outcome.index(), index, "{}", row.name);
        }
        for disposition in Disposition::ALL {
            assert_eq!(ROWS.iter().filter(|row| row.worker == Some(disposition)).count(), 1);
        }
        for counted in Counted::ALL {
            assert_eq!(ROWS.iter().filter(|row| row.device == Some(counted)).count(), 1);
        }
    }

    #[test]
    fn a_sum_with_something_unknown_is_unknown() {
        let mut sum = Count::of(1, 100);
        sum.add(Count { packets: Some(2), bytes: None });
        assert_eq!(sum, Count { packets: Some(3), bytes: None });
        sum.add(Count::UNKNOWN);
        assert_eq!(sum, Count::UNKNOWN);
    }
}

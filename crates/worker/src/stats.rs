//! What a worker counts besides its rules: one block of single-writer counters on its own cache
//! lines. The worker writes it, [`crate::WorkerControl::snapshot`] reads it. No clock, no lock here.

use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam::utils::CachePadded;
use packet::Anomaly;
use verbs::Status;

use crate::counter::{Counter, Tally};
use crate::distribution::Published;

/// Why a received packet was dropped without a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// The completion carried no tag, or one of a band without a program.
    UnknownTag,
    /// The tag's class, or the rule it names, is beyond the program.
    UnknownClass,
    /// The device named a frame that it does not own.
    BadFrame,
    /// The completion's length is missing or exceeds the frame.
    BadLength,
}

impl DropReason {
    /// All reasons, in the order of their indices.
    pub const ALL: &[Self] = &[Self::UnknownTag, Self::UnknownClass, Self::BadFrame, Self::BadLength];

    /// The reason as a metric label.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::UnknownTag => "unknown_tag",
            Self::UnknownClass => "unknown_class",
            Self::BadFrame => "bad_frame",
            Self::BadLength => "bad_length",
        }
    }

    /// Its place in [`DropReason::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// How a receive failed. No packet was received by it: the port counts what it lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The packet was longer than its frame.
    Length,
    /// The device found the request malformed.
    Operation,
    /// The frame is not registered in the queue's domain, or may not be written to.
    Protection,
    /// The queue was in its error state with the frame still posted.
    Flushed,
    /// The queue is beyond repair.
    Fatal,
    /// Any other status.
    Other,
}

impl Failure {
    /// All of them, in the order of their indices.
    pub const ALL: &[Self] =
        &[Self::Length, Self::Operation, Self::Protection, Self::Flushed, Self::Fatal, Self::Other];

    /// The failure as a metric label.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Length => "length",
            Self::Operation => "operation",
            Self::Protection => "protection",
            Self::Flushed => "flushed",
            Self::Fatal => "fatal",
            Self::Other => "other",
        }
    }

    /// Its place in [`Failure::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        match status {
            Status::LocalLength => Self::Length,
            Status::LocalQueuePairOperation => Self::Operation,
            Status::LocalProtection | Status::LocalAccess => Self::Protection,
            Status::Flushed => Self::Flushed,
            Status::Fatal => Self::Fatal,
            Status::Success | Status::General | Status::Unknown(_) => Self::Other,
        }
    }
}

/// The counters of one worker.
#[derive(Debug, Default)]
pub(crate) struct Stats(CachePadded<Block>);

impl std::ops::Deref for Stats {
    type Target = Block;
    fn deref(&self) -> &Block {
        &self.0
    }
}

#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) received: Tally,
    reasons: [Counter; DropReason::ALL.len()],
    failures: [Counter; Failure::ALL.len()],
    queue_failed: AtomicBool,
    anomalies: [Counter; Anomaly::ALL.len()],
    pub(crate) poll_errors: Counter,
    pub(crate) posted: Counter,
    /// Turns of the loop, and those of them that found no completion.
    pub(crate) turns: Counter,
    pub(crate) empty_turns: Counter,
    pub(crate) distributions: Published,
}

impl Default for Block {
    fn default() -> Self {
        Self {
            received: Tally::default(),
            reasons: std::array::from_fn(|_| Counter::default()),
            failures: std::array::from_fn(|_| Counter::default()),
            queue_failed: AtomicBool::new(false),
            anomalies: std::array::from_fn(|_| Counter::default()),
            poll_errors: Counter::default(),
            posted: Counter::default(),
            turns: Counter::default(),
            empty_turns: Counter::default(),
            distributions: Published::default(),
        }
    }
}

impl Block {
    pub(crate) fn dropped(&self, reason: DropReason) {
        self.reasons[reason.index()].add(1);
    }

    #[cold]
    pub(crate) fn failed(&self, status: Status) {
        let failure = Failure::from(status);
        self.failures[failure.index()].add(1);
        if matches!(failure, Failure::Flushed | Failure::Fatal) {
            self.queue_failed.store(true, Ordering::Relaxed);
        }
    }

    /// A frame came back flushed: the receive queue is in its error state, and no verb brings it back
    /// to life with the tables that point to it.
    #[inline]
    pub(crate) fn queue_failed(&self) -> bool {
        self.queue_failed.load(Ordering::Relaxed)
    }

    pub(crate) fn anomaly(&self, anomaly: Anomaly) {
        if let Some(counter) = self.anomalies.get(anomaly.index()) {
            counter.add(1);
        }
    }

    pub(crate) fn reasons(&self) -> [(DropReason, u64); DropReason::ALL.len()] {
        std::array::from_fn(|index| (DropReason::ALL[index], self.reasons[index].read()))
    }

    pub(crate) fn failures(&self) -> [(Failure, u64); Failure::ALL.len()] {
        std::array::from_fn(|index| (Failure::ALL[index], self.failures[index].read()))
    }

    pub(crate) fn anomalies(&self) -> [(Anomaly, u64); Anomaly::ALL.len()] {
        std::array::from_fn(|index| (Anomaly::ALL[index], self.anomalies[index].read()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_stands_at_its_index_under_a_name_of_its_own() {
        let mut names = std::collections::HashSet::new();
        for (index, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(reason.index(), index);
            assert!(names.insert(reason.name()));
        }
        let mut names = std::collections::HashSet::new();
        for (index, failure) in Failure::ALL.iter().enumerate() {
            assert_eq!(failure.index(), index);
            assert!(names.insert(failure.name()));
        }
    }
}

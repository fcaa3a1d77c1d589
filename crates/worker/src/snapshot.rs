//! A worker's books as read at one moment: plain data for metrics, the live table and tests.

use packet::Anomaly;
use program::WorkerId;

use crate::counter::Traffic;
use crate::distribution::{Distribution, Distributions};
use crate::stats::Stats;
use crate::{Disposition, DropReason, Failure};

/// What one rule's packets came to on one worker, over all programs that had a rule of this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSnapshot {
    /// The rule's name.
    pub name: String,
    /// What became of these packets.
    pub disposition: Disposition,
    /// How many there were.
    pub traffic: Traffic,
}

/// The books of one worker.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerSnapshot {
    /// Which worker.
    pub id: WorkerId,
    /// Packets that the device has delivered here: receives that succeeded.
    pub received: Traffic,
    /// By rule and disposition, sorted by name.
    pub rules: Vec<RuleSnapshot>,
    /// Packets dropped without a rule, by reason.
    pub dropped: [(DropReason, u64); DropReason::ALL.len()],
    /// Receives that failed, by how. They are no packets of the worker's; ports count them as lost.
    pub failures: [(Failure, u64); Failure::ALL.len()],
    /// Anomalies seen where a packet was parsed anyway, that is in hybrid classes only: exact
    /// classes never look into the packet. A note on a packet, not a disposition of it.
    pub anomalies: [(Anomaly, u64); Anomaly::ALL.len()],
    /// Polls that the device refused: the completion queue is broken if this grows.
    pub poll_errors: u64,
    /// Frames posted, the first filling included.
    pub posted: u64,
    /// Turns of the loop.
    pub turns: u64,
    /// Turns that found no completion.
    pub empty_turns: u64,
    /// Completions per turn, of every turn. Lags behind `turns` by some thousand while the worker runs.
    pub batches: Distribution,
    /// How long turns took that found something, in nanoseconds: a sample of them, lagging behind likewise.
    pub turn_ns: Distribution,
}

impl WorkerSnapshot {
    pub(crate) fn read(id: WorkerId, stats: &Stats, rules: Vec<RuleSnapshot>) -> Self {
        let Distributions { batches, turn_ns } = stats.distributions.read();
        Self {
            id,
            received: stats.received.read(),
            rules,
            dropped: stats.reasons(),
            failures: stats.failures(),
            anomalies: stats.anomalies(),
            poll_errors: stats.poll_errors.read(),
            posted: stats.posted.read(),
            // Never more empty turns than turns.
            empty_turns: stats.empty_turns.read(),
            turns: stats.turns.read(),
            batches,
            turn_ns,
        }
    }

    /// What came of the packets of the rule called `name`.
    #[must_use]
    pub fn rule(&self, name: &str, disposition: Disposition) -> Traffic {
        let mut sum = Traffic::default();
        for rule in self.rules.iter().filter(|rule| rule.name == name && rule.disposition == disposition) {
            sum += rule.traffic;
        }
        sum
    }

    /// Sum over all rules of one disposition.
    #[must_use]
    pub fn total(&self, disposition: Disposition) -> Traffic {
        let mut sum = Traffic::default();
        for rule in self.rules.iter().filter(|rule| rule.disposition == disposition) {
            sum += rule.traffic;
        }
        sum
    }

    /// Packets dropped without a rule, for any reason.
    #[must_use]
    pub fn dropped_by_reason(&self) -> u64 {
        self.dropped.iter().map(|(_, count)| count).sum()
    }

    /// Received packets less all that is accounted for: zero when the worker is idle, or a bug.
    #[must_use]
    pub fn imbalance(&self) -> i128 {
        let ruled: u64 = Disposition::ALL.iter().map(|&disposition| self.total(disposition).packets).sum();
        i128::from(self.received.packets) - i128::from(ruled) - i128::from(self.dropped_by_reason())
    }
}

//! The statistics of a worker: its [`Counter`]s and the plain data that they are read into. No clock and no
//! lock.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicUsize};

use crossbeam::utils::CachePadded;
use packet::Anomaly;
use program::WorkerId;
use verbs::CompletionStatus;

use crate::counter::{Counter, Tally, Traffic};
use crate::disposition::Disposition;
use crate::distribution::{Distribution, Distributions, Published};
use crate::labels::labels;
use crate::regime::{DetailCounters, Regime, RegimeCounters, WorkerProfile};

labels! {
    /// Why a received packet was dropped without a rule.
    pub enum DropReason {
        /// The completion carried no tag, or one that is no class's, or there is no program yet.
        UnknownTag = "unknown_tag",
        /// The tag's class is in no program, or the rule that it names is beyond its program.
        UnknownClass = "unknown_class",
        /// The device named a frame that it does not own.
        BadFrame = "bad_frame",
        /// The completion's length is missing or exceeds the frame.
        BadLength = "bad_length",
    }
}

labels! {
    /// How a receive failed. It received no packet; the port counts the loss.
    pub enum Failure {
        /// The packet was longer than its frame.
        Length = "length",
        /// The device found the request malformed.
        Operation = "operation",
        /// The frame is not registered in the queue's domain, or may not be written to.
        Protection = "protection",
        /// The queue was in its error state with the frame still posted.
        Flushed = "flushed",
        /// A fatal error of the queue.
        Fatal = "fatal",
        /// Any other status.
        Other = "other",
    }
}

impl From<CompletionStatus> for Failure {
    fn from(status: CompletionStatus) -> Self {
        match status {
            CompletionStatus::LocalLength => Self::Length,
            CompletionStatus::LocalQueuePairOperation => Self::Operation,
            CompletionStatus::LocalProtection | CompletionStatus::LocalAccess => Self::Protection,
            CompletionStatus::Flushed => Self::Flushed,
            CompletionStatus::Fatal => Self::Fatal,
            CompletionStatus::Success | CompletionStatus::General | CompletionStatus::Unknown(_) => {
                Self::Other
            }
        }
    }
}

/// The state of a worker's receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveQueueHealth {
    /// It is in its error state: it receives nothing, and packets that RSS sends there are lost.
    pub is_failed: bool,
    /// How often it was made ready anew.
    pub recoveries: u64,
    /// How the receive failed that put it into its error state last; `None`: no receive has failed.
    pub last_failure: Option<Failure>,
    /// Why it is not made ready anew; `None`: it works, or is being recovered.
    pub given_up: Option<GivenUp>,
}

/// Why a receive queue stays in its error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenUp {
    /// It has failed again too soon after [`crate::RECOVERIES_MAX`] recoveries.
    TooOften,
    /// The device refuses to make it ready, with this errno.
    Refused(i32),
}

impl GivenUp {
    const NOT: i64 = -1;
    const TOO_OFTEN: i64 = -2;

    fn of(number: i64) -> Option<Self> {
        match number {
            Self::NOT => None,
            Self::TOO_OFTEN => Some(Self::TooOften),
            errno => Some(Self::Refused(i32::try_from(errno).unwrap_or(0))),
        }
    }

    fn number(self) -> i64 {
        match self {
            Self::TooOften => Self::TOO_OFTEN,
            Self::Refused(errno) => i64::from(errno.max(0)),
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
    /// The index of the failure that put the queue into its error state last, or beyond all indices.
    last_failure: AtomicUsize,
    /// How often the queue was made ready anew.
    pub(crate) recoveries: Counter,
    /// Reports that the queue is in its error state.
    reports: AtomicU32,
    /// A receive that failed otherwise than by a flush was counted since the last recovery.
    is_cause_known: AtomicBool,
    /// Why the queue is not made ready anew: see [`GivenUp::of`].
    given_up: AtomicI64,
    anomalies: [Counter; Anomaly::ALL.len()],
    pub(crate) poll_errors: Counter,
    pub(crate) posted: Counter,
    /// Iterations of the loop, and those of them that found no completion.
    pub(crate) iterations: Counter,
    pub(crate) empty_iterations: Counter,
    /// Nanoseconds.
    pub(crate) regimes: RegimeCounters,
    pub(crate) details: DetailCounters,
    /// Packets whose timestamp is later than the time at which the worker took them.
    pub(crate) negative_latencies: Counter,
    pub(crate) distributions: Published,
}

impl Default for Block {
    fn default() -> Self {
        Self {
            received: Tally::default(),
            reasons: std::array::from_fn(|_| Counter::default()),
            failures: std::array::from_fn(|_| Counter::default()),
            queue_failed: AtomicBool::new(false),
            last_failure: AtomicUsize::new(usize::MAX),
            recoveries: Counter::default(),
            reports: AtomicU32::new(0),
            is_cause_known: AtomicBool::new(false),
            given_up: AtomicI64::new(GivenUp::NOT),
            anomalies: std::array::from_fn(|_| Counter::default()),
            poll_errors: Counter::default(),
            posted: Counter::default(),
            iterations: Counter::default(),
            empty_iterations: Counter::default(),
            regimes: RegimeCounters::default(),
            details: DetailCounters::default(),
            negative_latencies: Counter::default(),
            distributions: Published::default(),
        }
    }
}

impl Block {
    pub(crate) fn dropped(&self, reason: DropReason) {
        tracepoints::worker_drop(reason.name(), 1);
        self.reasons[reason as usize].add(1);
    }

    #[cold]
    pub(crate) fn failed(&self, status: CompletionStatus) {
        let failure = self.count_failure(status);
        if matches!(failure, Failure::Flushed | Failure::Fatal) {
            self.queue_failed.store(true, SeqCst);
        }
    }

    /// Counts a failed receive, whatever it means for the queue.
    #[cold]
    pub(crate) fn count_failure(&self, status: CompletionStatus) -> Failure {
        let failure = Failure::from(status);
        self.failures[failure as usize].add(1);
        // Frames are flushed after the failure that puts the queue into its error state.
        if failure != Failure::Flushed {
            self.is_cause_known.store(true, Relaxed);
            self.last_failure.store(failure as usize, Relaxed);
        } else if !self.is_cause_known.load(Relaxed) {
            self.last_failure.store(failure as usize, Relaxed);
        }
        failure
    }

    /// Notes that the queue is in its error state, which no completion need show.
    pub(crate) fn report_queue_failure(&self) {
        self.reports.fetch_add(1, SeqCst);
        self.queue_failed.store(true, SeqCst);
    }

    /// How often the queue was reported to be in its error state.
    pub(crate) fn reports(&self) -> u32 {
        self.reports.load(SeqCst)
    }

    /// Notes that the queue was recovered. It stays failed if it was reported again since there were so many
    /// `reports`: either the report is counted already when they are compared, or its mark comes after the
    /// mark that is taken away here.
    pub(crate) fn queue_recovered(&self, reports: u32) {
        self.recoveries.add(1);
        self.is_cause_known.store(false, Relaxed);
        self.queue_failed.store(false, SeqCst);
        if self.reports() != reports {
            self.queue_failed.store(true, SeqCst);
        }
    }

    /// Whether the receive queue is in its error state: a frame was flushed, or the device has reported it.
    /// The worker makes it ready anew ([`crate::recovery`]).
    #[inline]
    pub(crate) fn queue_failed(&self) -> bool {
        self.queue_failed.load(Relaxed)
    }

    /// The queue stays in its error state.
    pub(crate) fn queue_given_up(&self, why: GivenUp) {
        self.given_up.store(why.number(), Relaxed);
    }

    pub(crate) fn receive_queue(&self) -> ReceiveQueueHealth {
        ReceiveQueueHealth {
            is_failed: self.queue_failed(),
            recoveries: self.recoveries.read(),
            last_failure: Failure::ALL.get(self.last_failure.load(Relaxed)).copied(),
            given_up: GivenUp::of(self.given_up.load(Relaxed)),
        }
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

/// The packets of one rule on one worker, over all programs that had a rule of this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSnapshot {
    /// The rule's name.
    pub name: String,
    /// How the packets were disposed of.
    pub disposition: Disposition,
    /// How many there were.
    pub traffic: Traffic,
}

/// The counters of one worker, as read at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerSnapshot {
    /// Which worker.
    pub id: WorkerId,
    /// Packets that the device has delivered here: receives that succeeded.
    pub received: Traffic,
    /// The totals by rule and disposition, sorted by name.
    pub rules: Vec<RuleSnapshot>,
    /// Packets dropped without a rule, by reason.
    pub dropped: [(DropReason, u64); DropReason::ALL.len()],
    /// Failed receives by kind. They are not packets of the worker; ports count them as lost.
    pub failures: [(Failure, u64); Failure::ALL.len()],
    /// Anomalies seen where a packet was parsed anyway, that is in hybrid classes only: packets
    /// of exact classes are not parsed. An anomaly is counted beside the packet's disposition.
    pub anomalies: [(Anomaly, u64); Anomaly::ALL.len()],
    /// Polls that the device refused: the completion queue is broken if this grows.
    pub poll_errors: u64,
    /// The state of the receive queue.
    pub receive_queue: ReceiveQueueHealth,
    /// Frames posted, the first filling included.
    pub posted: u64,
    /// Iterations of the loop.
    pub iterations: u64,
    /// Iterations that found no completion.
    pub empty_iterations: u64,
    /// Completions per iteration, of every iteration. Lags behind `iterations` by up to some thousand
    /// iterations while the worker runs.
    pub batches: Distribution,
    /// The duration in nanoseconds of iterations that took completions: a sample, with the same lag.
    pub iteration_ns: Distribution,
    /// Nanoseconds of the loop by regime. They add up to the time since the first iteration, but lag behind
    /// by up to some hundred iterations while the worker runs.
    pub regimes: [(Regime, u64); Regime::ALL.len()],
    /// The regimes in more detail; `None` without [`crate::WorkerConfig::profile`].
    pub profile: Option<WorkerProfile>,
    /// How long packets waited for the worker; `None` without timestamps.
    pub latency: Option<Latency>,
}

/// From the device's timestamps to the worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Latency {
    /// In nanoseconds, of all packets of one batch in 16; with the same lag as other distributions.
    pub ns: Distribution,
    /// How many of them had a timestamp in the future, by an error of the conversion; recorded as 0.
    pub negative: u64,
}

impl WorkerSnapshot {
    pub(crate) fn read(id: WorkerId, stats: &Stats, rules: Vec<RuleSnapshot>, has_timestamps: bool) -> Self {
        let Distributions { batches, iteration_ns, latency_ns } = stats.distributions.read();
        Self {
            id,
            received: stats.received.read(),
            rules,
            dropped: stats.reasons(),
            failures: stats.failures(),
            anomalies: stats.anomalies(),
            poll_errors: stats.poll_errors.read(),
            receive_queue: stats.receive_queue(),
            posted: stats.posted.read(),
            // Never more empty iterations than iterations.
            empty_iterations: stats.empty_iterations.read(),
            iterations: stats.iterations.read(),
            batches,
            iteration_ns,
            regimes: std::array::from_fn(|index| (Regime::ALL[index], stats.regimes[index].read())),
            profile: stats.details.is_on.load(Relaxed).then(|| stats.details.divide(&stats.regimes)),
            latency: has_timestamps
                .then(|| Latency { ns: latency_ns, negative: stats.negative_latencies.read() }),
        }
    }

    /// The packets of the rule called `name` with that disposition.
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

    /// Received packets minus those accounted for. It is zero when the worker is idle; anything else is a
    /// bug.
    #[must_use]
    pub fn imbalance(&self) -> i128 {
        let ruled: u64 = Disposition::ALL.iter().map(|&disposition| self.total(disposition).packets).sum();
        i128::from(self.received.packets) - i128::from(ruled) - i128::from(self.dropped_by_reason())
    }
}

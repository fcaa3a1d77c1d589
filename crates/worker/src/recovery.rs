//! The recovery of a receive queue that has failed: a memory key went away, the device found a malformed
//! request, or its firmware gave up. The queue is made ready anew where it is, so that its indirection
//! tables, flows and classes stay.
//!
//! The worker's own thread does it, in its loop: it alone polls and posts, so nobody else need be kept out.
//! Packets that were received before the failure, and sends of its sinks, wait for each verb meanwhile: for a
//! command of the firmware, and for at most a second if another thread uses the queue's domain. The steps are
//! spread over iterations, in this order:
//!
//! 1. The queue is moved to RESET. From then on the device writes to no frame of it and completes nothing.
//! 2. Iterations go on as always until a poll finds the completion queue empty: packets that were received
//!    before the failure are classified and counted like all others, and flushed frames come back.
//! 3. [`verbs::Receive::restart`] takes back the frames that have no completion, and moves the queue to
//!    RDY. Then all frames are posted.
//!
//! Packets that arrive meanwhile are losses of the port (`out_of_buffer`, of a soft NIC `queue_not_ready`).
//!
//! A queue whose cause of failure persists fails again at once. After [`RECOVERIES_MAX`] recoveries within
//! [`RECOVERY_WINDOW`] the next failure is final, and the owner of the worker sees that
//! ([`crate::ReceiveQueueHealth::given_up`]).

use std::time::{Duration, Instant};

use verbs::{Receive as _, VerbsErrno};

use crate::batch::Batch;
use crate::receiver::Receiver;
use crate::stats::{GivenUp, Stats};

/// The most recoveries of a receive queue within [`RECOVERY_WINDOW`].
pub const RECOVERIES_MAX: usize = 5;
/// The time after which a recovery does not count any more.
pub const RECOVERY_WINDOW: Duration = Duration::from_secs(60);

/// How far the recovery of a queue is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum RecoveryStep {
    #[default]
    None,
    /// The queue is in RESET, and completions may be waiting.
    Stopped,
    /// It stays as it is.
    GivenUp,
}

/// The recoveries of one receive queue.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    step: RecoveryStep,
    limit: RecoveryLimit,
    /// Since when the device or another thread has been busy.
    busy_since: Option<Instant>,
}

impl Recovery {
    /// The next step for a queue that has failed; called at the end of an iteration, when no batch is open.
    #[cold]
    pub(crate) fn advance(&mut self, receiver: &mut Receiver, batch: &mut Batch, stats: &Stats) {
        let result = match self.step {
            RecoveryStep::None if !self.limit.allows(Instant::now()) => {
                self.give_up(GivenUp::TooOften, stats);
                return;
            }
            RecoveryStep::None => receiver.path.stop().map(|()| self.step = RecoveryStep::Stopped),
            RecoveryStep::Stopped if batch.drained => {
                // Before the queue is ready: what is reported after that is another failure.
                let reports = stats.reports();
                receiver.restart(batch, stats).map(|()| {
                    self.step = RecoveryStep::None;
                    self.limit.note(Instant::now());
                    stats.queue_recovered(reports);
                })
            }
            RecoveryStep::Stopped | RecoveryStep::GivenUp => return,
        };
        match result.map_err(|error| error.errno().unwrap_or(0)) {
            Ok(()) => self.busy_since = None,
            // Another thread uses the thread domain, as one that makes a queue for a sink: the next iteration
            // tries again.
            Err(errno) if errno == VerbsErrno::EBUSY.0 && self.may_wait(Instant::now()) => {}
            Err(errno) => self.give_up(GivenUp::Refused(errno), stats),
        }
    }

    /// Whether the device may still be busy.
    fn may_wait(&mut self, now: Instant) -> bool {
        now.saturating_duration_since(*self.busy_since.get_or_insert(now)) < RECOVERY_WINDOW
    }

    fn give_up(&mut self, why: GivenUp, stats: &Stats) {
        self.step = RecoveryStep::GivenUp;
        stats.queue_given_up(why);
    }
}

/// The times of the last recoveries.
#[derive(Debug, Default)]
struct RecoveryLimit {
    times: [Option<Instant>; RECOVERIES_MAX],
    /// The place of the oldest.
    next: usize,
}

impl RecoveryLimit {
    /// Whether the queue may be recovered now: the oldest of the last [`RECOVERIES_MAX`] recoveries is long
    /// ago, or there were fewer.
    fn allows(&self, now: Instant) -> bool {
        self.times[self.next].is_none_or(|oldest| now.saturating_duration_since(oldest) >= RECOVERY_WINDOW)
    }

    fn note(&mut self, now: Instant) {
        self.times[self.next] = Some(now);
        self.next = (self.next + 1) % RECOVERIES_MAX;
    }
}

#[cfg(test)]
mod tests {
    use verbs::CompletionStatus;

    use super::*;
    use crate::stats::Failure;

    #[test]
    fn recoveries_are_limited_within_the_window() {
        let mut limit = RecoveryLimit::default();
        let begun = Instant::now();
        for nth in 0..RECOVERIES_MAX as u32 {
            let now = begun + Duration::from_secs(1) * nth;
            assert!(limit.allows(now));
            limit.note(now);
        }
        let last = begun + RECOVERY_WINDOW;
        assert!(!limit.allows(last - Duration::from_millis(1)));
        assert!(limit.allows(last));
        limit.note(last);
        assert!(!limit.allows(last), "the second of them was a second later");
        assert!(limit.allows(last + Duration::from_secs(1)));
    }

    #[test]
    fn a_busy_device_is_waited_for_within_the_window() {
        let (mut recovery, begun) = (Recovery::default(), Instant::now());
        assert!(recovery.may_wait(begun));
        assert!(recovery.may_wait(begun + RECOVERY_WINDOW - Duration::from_millis(1)));
        assert!(!recovery.may_wait(begun + RECOVERY_WINDOW));
    }

    #[test]
    fn a_report_during_the_recovery_is_another_failure() {
        let stats = Stats::default();
        stats.report_queue_failure();
        let reports = stats.reports();
        stats.report_queue_failure();
        stats.queue_recovered(reports);
        assert!(stats.queue_failed());
        stats.queue_recovered(stats.reports());
        assert_eq!((stats.queue_failed(), stats.recoveries.read()), (false, 2));
    }

    #[test]
    fn the_cause_is_kept_over_flushes() {
        let stats = Stats::default();
        let last = || stats.receive_queue().last_failure;
        stats.failed(CompletionStatus::Flushed);
        assert_eq!(last(), Some(Failure::Flushed));
        stats.failed(CompletionStatus::LocalProtection);
        stats.failed(CompletionStatus::Flushed);
        assert_eq!(last(), Some(Failure::Protection));
        stats.queue_recovered(0);
        stats.failed(CompletionStatus::Flushed);
        assert_eq!(last(), Some(Failure::Flushed));
    }

    #[test]
    fn reasons_to_give_up_are_kept_as_numbers() {
        let stats = Stats::default();
        assert_eq!(stats.receive_queue().given_up, None);
        for why in [GivenUp::TooOften, GivenUp::Refused(VerbsErrno::EBUSY.0), GivenUp::Refused(0)] {
            stats.queue_given_up(why);
            assert_eq!(stats.receive_queue().given_up, Some(why));
        }
    }
}

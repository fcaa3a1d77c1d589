//! The recovery of a receive queue that has failed: a memory key went away, the device found a malformed
//! request, or its firmware gave up. The queue is made ready anew where it is, so that its indirection
//! tables, flows and classes stay.
//!
//! The worker's own thread does it, in its loop: it alone polls and posts, so nobody else need be kept out,
//! and while its queue is in its error state it has no packets that a verb would keep waiting. The steps are
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
                // Before the queue is ready: a failure after that sets it again.
                stats.set_queue_failed(false);
                let restarted = receiver.restart(batch, stats);
                match &restarted {
                    Ok(()) => {
                        self.step = RecoveryStep::None;
                        self.limit.note(Instant::now());
                        stats.recoveries.add(1);
                    }
                    Err(_) => stats.set_queue_failed(true),
                }
                restarted
            }
            RecoveryStep::Stopped | RecoveryStep::GivenUp => return,
        };
        match result.map_err(|error| error.errno().unwrap_or(0)) {
            Ok(()) => {}
            // Another thread uses the thread domain, as one that makes a queue for a sink: the next iteration
            // tries again.
            Err(errno) if errno == VerbsErrno::EBUSY.0 => {}
            Err(errno) => self.give_up(GivenUp::Refused(errno), stats),
        }
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
    use super::*;

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
    fn reasons_to_give_up_are_kept_as_numbers() {
        let stats = Stats::default();
        assert_eq!(stats.receive_queue().given_up, None);
        for why in [GivenUp::TooOften, GivenUp::Refused(VerbsErrno::EBUSY.0), GivenUp::Refused(0)] {
            stats.queue_given_up(why);
            assert_eq!(stats.receive_queue().given_up, Some(why));
        }
    }
}

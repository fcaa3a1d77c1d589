//! The failures that the device reports by asynchronous events (ibv_get_async_event(3)): of receive queues,
//! which workers recover, of ports, and of the device.
//!
//! The run loop calls [`DeviceWatch::check`] at each tick. A queue whose failure shows in its completions is
//! recovered by its worker before the event is read here; a queue whose failure shows in the event alone is
//! recovered because this module tells the worker. So each event is matched with one recovery.
//!
//! A device that has failed for good, or whose events end because it was removed, ends the daemon: all
//! objects on it are lost, and a new process makes them anew. The service manager starts one until the device
//! is back.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use control::EventKind;
use rustix::io::Errno;
use verbs::{AsyncEvent, EventSource, VerbsError};
use worker::{GivenUp, RECOVERIES_MAX, RECOVERY_WINDOW, ReceiveQueueHealth};

use crate::daemon::Error;
use crate::daemon::health::Change;
use crate::daemon::observer::{Observer, WorkerOfQueue};
use crate::message::chain;
use crate::state::DeviceCondition;

/// How many events of each kind the device has reported.
#[derive(Debug, Default)]
pub(crate) struct EventCounts(Mutex<BTreeMap<&'static str, u64>>);

impl EventCounts {
    fn add(&self, kind: EventKind) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(label(kind)).or_default() += 1;
    }

    pub(crate) fn read(&self) -> BTreeMap<String, u64> {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.iter().map(|(label, count)| ((*label).to_owned(), *count)).collect()
    }
}

/// The kind as the label of a metric.
fn label(kind: EventKind) -> &'static str {
    match kind {
        EventKind::DeviceFatal => "device_failed",
        EventKind::PortError => "port_down",
        EventKind::PortActive => "port_up",
        EventKind::WorkQueueFatal => "receive_queue_failed",
        EventKind::QueuePairFatal | EventKind::QueuePairRequestError | EventKind::QueuePairAccessError => {
            "queue_pair_failed"
        }
        EventKind::CompletionQueueError => "completion_queue_overrun",
        _ => "other",
    }
}

/// The device as the run loop watches it.
#[derive(Debug, Default)]
pub(super) struct DeviceWatch {
    /// The receive queues, by worker.
    queues: Vec<WatchedQueue>,
}

impl DeviceWatch {
    /// Reads the events since the last call, and looks at the receive queues.
    ///
    /// # Errors
    /// The device or a queue has failed and cannot be recovered; systemd restarts the daemon.
    pub(super) fn check(&mut self, observer: &Observer) -> Result<(), Error> {
        self.queues.resize(observer.worker_count(), WatchedQueue::default());
        self.take_events(observer)?;
        for (queue, (worker, health)) in self.queues.iter_mut().zip(observer.receive_queues()) {
            queue.tick(worker, health);
        }
        let failed = observer.receive_queues().filter(|(_, health)| health.is_failed);
        let failed: Vec<u32> = failed.map(|(worker, _)| worker).collect();
        observer.health.set_failed_queues(failed).iter().for_each(Change::log);
        let final_failure = observer.receive_queues().find(|(_, health)| health.given_up.is_some());
        final_failure.map_or(Ok(()), |(worker, health)| Err(Error::ReceiveQueue { worker, health }))
    }

    fn take_events(&mut self, observer: &Observer) -> Result<(), Error> {
        let device = &observer.opened.device;
        loop {
            match device.context().async_event() {
                Ok(Some(event)) => {
                    observer.events.add(event.kind);
                    self.take(event, observer)?;
                }
                Ok(None) => return Ok(()),
                Err(error) if is_end(&error) => {
                    observer.health.set_device(DeviceCondition::Gone);
                    return Err(Error::DeviceGone(device.name().to_owned()));
                }
                Err(error) => {
                    tracing::debug!("no device events: {}", chain(&error));
                    return Ok(());
                }
            }
        }
    }

    fn take(&mut self, event: AsyncEvent, observer: &Observer) -> Result<(), Error> {
        match (event.kind, event.source) {
            (EventKind::DeviceFatal, _) => {
                observer.health.set_device(DeviceCondition::Failed);
                return Err(Error::DeviceFailed(observer.opened.device.name().to_owned()));
            }
            (EventKind::CompletionQueueError, _) => return Err(Error::CompletionQueue(event.to_string())),
            (EventKind::WorkQueueFatal, EventSource::WorkQueue { number }) => {
                tracing::warn!("the device reports: {event}");
                if let Some(WorkerOfQueue { index, control }) = observer.worker_of_queue(number.0)
                    && let Some(queue) = self.queues.get_mut(index)
                    && queue.is_unknown_failure(control.receive_queue())
                {
                    control.report_queue_failure();
                }
            }
            // Sinks replace the queue pairs that they send by (`worker::Transmitter::recover`), and the
            // others have no queue of their own that could fail.
            _ => tracing::warn!("the device reports: {event}"),
        }
        Ok(())
    }
}

/// Whether no event can come any more: the kernel has taken the device away from its clients
/// (core/uverbs_main.c, `ib_uverbs_event_read`: EIO), or the descriptor is at its end, which libibverbs
/// reports without an errno.
fn is_end(error: &VerbsError) -> bool {
    let ends = [0, Errno::IO.raw_os_error(), Errno::NODEV.raw_os_error()];
    error.errno().is_some_and(|errno| ends.contains(&errno))
}

/// Matches events of one receive queue with its recoveries.
#[derive(Clone, Debug, Default)]
struct WatchedQueue {
    recoveries: u64,
    /// The number of recoveries that was logged last.
    logged: u64,
    /// Events whose recovery has not been seen yet, of this tick and the two before. A device may report one
    /// failure twice.
    expected: [u64; 3],
    /// Recoveries whose event has not been read yet, of this tick and the two before. An event may be late by
    /// a moment, but not by two ticks: a device need not send one.
    unexplained: [u64; 3],
}

impl WatchedQueue {
    /// Matches new recoveries with the oldest expected ones.
    fn note(&mut self, recoveries: u64) {
        let mut new = recoveries.saturating_sub(self.recoveries);
        self.recoveries = recoveries;
        for expected in self.expected.iter_mut().rev() {
            let explained = new.min(*expected);
            (*expected, new) = (*expected - explained, new - explained);
        }
        self.unexplained[0] += new;
    }

    /// Logs recoveries since the last tick, and forgets what is older than two ticks.
    fn tick(&mut self, worker: u32, health: ReceiveQueueHealth) {
        self.note(health.recoveries);
        if self.recoveries > self.logged {
            self.logged = self.recoveries;
            tracing::warn!(
                "worker {worker}: its receive queue failed{} and works again; recoveries so far: {}",
                cause(health),
                self.recoveries
            );
        }
        for counts in [&mut self.expected, &mut self.unexplained] {
            counts.rotate_right(1);
            counts[0] = 0;
        }
    }

    /// Takes an event of the queue, in this state; returns whether its worker does not know of the failure.
    fn is_unknown_failure(&mut self, health: ReceiveQueueHealth) -> bool {
        self.note(health.recoveries);
        if let Some(recoveries) = self.unexplained.iter_mut().rev().find(|recoveries| **recoveries > 0) {
            *recoveries -= 1;
            return false;
        }
        self.expected[0] += 1;
        !health.is_failed
    }
}

fn cause(health: ReceiveQueueHealth) -> String {
    health
        .last_failure
        .map_or_else(String::new, |failure| format!(" (last failed receive: {})", failure.name()))
}

/// The message about a receive queue that stays in its error state.
pub(super) fn final_failure(worker: u32, health: ReceiveQueueHealth) -> String {
    let cause = cause(health);
    match health.given_up {
        Some(GivenUp::Refused(errno)) => {
            let errno = verbs::VerbsErrno(errno);
            format!("the device refuses to recover the receive queue of worker {worker}: {errno}{cause}")
        }
        _ => format!(
            "the receive queue of worker {worker} has failed again after {RECOVERIES_MAX} recoveries within {} s{cause}",
            RECOVERY_WINDOW.as_secs()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health(recoveries: u64) -> ReceiveQueueHealth {
        ReceiveQueueHealth { is_failed: false, recoveries, last_failure: None, given_up: None }
    }

    fn failed(recoveries: u64) -> ReceiveQueueHealth {
        ReceiveQueueHealth { is_failed: true, ..health(recoveries) }
    }

    #[test]
    fn an_event_of_a_recovered_queue_is_known() {
        let mut queue = WatchedQueue::default();
        assert!(!queue.is_unknown_failure(health(1)), "it was recovered by its completions, just now");
        assert!(queue.is_unknown_failure(health(1)), "that is another failure");
        queue.tick(0, health(2));
        assert!(queue.is_unknown_failure(health(2)), "the recovery was of the second one");
    }

    #[test]
    fn an_event_during_or_after_the_recovery_is_known() {
        let mut queue = WatchedQueue::default();
        assert!(!queue.is_unknown_failure(failed(0)));
        queue.tick(0, health(1));
        assert_eq!(queue.unexplained, [0; 3]);
        queue.tick(0, health(2));
        queue.tick(0, health(2));
        assert!(!queue.is_unknown_failure(health(2)), "it came a tick later");
        (0..4).for_each(|_| queue.tick(0, health(3)));
        assert!(queue.is_unknown_failure(health(3)), "no event is as late as that");
    }

    #[test]
    fn a_second_event_explains_no_later_recovery() {
        let mut queue = WatchedQueue::default();
        assert!(!queue.is_unknown_failure(failed(0)) && !queue.is_unknown_failure(failed(0)));
        (0..4).for_each(|_| queue.tick(0, health(1)));
        queue.tick(0, health(2));
        assert!(!queue.is_unknown_failure(health(2)), "the event of the second recovery");
    }

    #[test]
    fn a_final_failure_names_worker_and_cause() {
        let mut health = health(5);
        health.last_failure = Some(worker::Failure::Protection);
        health.given_up = Some(GivenUp::TooOften);
        let text = final_failure(3, health);
        assert_eq!(
            text,
            "the receive queue of worker 3 has failed again after 5 recoveries within 60 s (last failed receive: protection)"
        );
        health.given_up = Some(GivenUp::Refused(5));
        assert!(
            final_failure(3, health).contains("worker 3: EIO (input/output error)"),
            "{}",
            final_failure(3, health)
        );
    }
}

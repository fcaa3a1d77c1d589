//! What the service manager is told (sd_notify(3)); every call does nothing outside systemd.
//!
//! The daemon calls it at each change of its state. WATCHDOG=1 is withheld unless every worker has
//! made progress since the last one, so that a stuck worker is a failed service.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;

pub(crate) fn ready(status: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Type=notify-reload wants the time with it, and READY=1 once the reload is over.
pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "the monotonic clock cannot be read"),
    }
}

pub(crate) fn stopping() {
    send(&[NotifyState::Stopping, NotifyState::Status("draining")]);
}

pub(crate) fn status(text: &str) {
    send(&[NotifyState::Status(text)]);
}

fn send(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "the service manager cannot be notified");
    }
}

/// Keeps the watchdog fed while the workers' loops turn.
#[derive(Debug)]
pub(crate) struct Watchdog {
    /// Half of what systemd allows, as sd_watchdog_enabled(3) advises; `None`: no watchdog wanted.
    interval: Option<Duration>,
    fed: Instant,
    turns: Vec<u64>,
}

impl Watchdog {
    pub(crate) fn new() -> Self {
        Self {
            interval: sd_notify::watchdog_enabled().map(|allowed| allowed / 2),
            fed: Instant::now(),
            turns: Vec::new(),
        }
    }

    pub(crate) fn interval(&self) -> Option<Duration> {
        self.interval
    }

    /// `turns`: how often each worker's loop has turned (polls).
    pub(crate) fn feed(&mut self, turns: Vec<u64>) {
        let Some(interval) = self.interval else { return };
        if self.fed.elapsed() < interval {
            return;
        }
        if let Some(stuck) = stuck(&self.turns, &turns) {
            tracing::error!(worker = stuck, "a worker makes no progress: the watchdog is not fed");
            return;
        }
        self.turns = turns;
        self.fed = Instant::now();
        send(&[NotifyState::Watchdog]);
    }
}

/// The first worker whose count has not grown.
fn stuck(before: &[u64], now: &[u64]) -> Option<usize> {
    before.iter().zip(now).position(|(before, now)| now <= before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_does_not_turn_is_found() {
        assert_eq!(stuck(&[], &[0, 0]), None, "the first look compares with nothing");
        assert_eq!(stuck(&[1, 1], &[2, 2]), None);
        assert_eq!(stuck(&[1, 5], &[2, 5]), Some(1));
    }

    #[test]
    fn without_a_watchdog_nothing_is_remembered() {
        let mut watchdog = Watchdog { interval: None, fed: Instant::now(), turns: Vec::new() };
        watchdog.feed(vec![1]);
        assert!(watchdog.turns.is_empty());
    }

    #[test]
    fn a_stuck_worker_starves_the_watchdog() {
        let mut watchdog =
            Watchdog { interval: Some(Duration::ZERO), fed: Instant::now(), turns: vec![3, 7] };
        watchdog.feed(vec![4, 7]);
        assert_eq!(watchdog.turns, [3, 7], "not fed");
        watchdog.feed(vec![4, 8]);
        assert_eq!(watchdog.turns, [4, 8], "fed");
    }
}

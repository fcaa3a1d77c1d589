//! What the service manager is told (sd_notify(3)); every call does nothing outside systemd.
//!
//! The daemon calls it at each change of its state. WATCHDOG=1 is withheld unless every worker and the
//! engine have made progress since the last one, so that a stalled one is a failed service.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;

use crate::health::{Part, Progress};

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

/// Keeps the watchdog fed while the loops of workers and engine turn.
#[derive(Debug)]
pub(crate) struct Watchdog {
    /// Half of what systemd allows, as sd_watchdog_enabled(3) advises; `None`: no watchdog wanted.
    interval: Option<Duration>,
    fed: Instant,
    progress: Vec<Progress>,
    /// Who it was last starved for: named once.
    starved_for: Option<Part>,
}

impl Watchdog {
    pub(crate) fn new() -> Self {
        Self {
            interval: sd_notify::watchdog_enabled().map(|allowed| allowed / 2),
            fed: Instant::now(),
            progress: Vec::new(),
            starved_for: None,
        }
    }

    pub(crate) fn interval(&self) -> Option<Duration> {
        self.interval
    }

    pub(crate) fn feed(&mut self, progress: Vec<Progress>) {
        let Some(interval) = self.interval else { return };
        if self.fed.elapsed() < interval {
            return;
        }
        let stuck = stuck(&self.progress, &progress);
        if let Some(part) = stuck.filter(|part| self.starved_for != Some(*part)) {
            tracing::error!("{part} has made no progress for {interval:.1?}: the watchdog is not fed");
        }
        self.starved_for = stuck;
        if stuck.is_none() {
            self.progress = progress;
            self.fed = Instant::now();
            send(&[NotifyState::Watchdog]);
        }
    }
}

/// The first part whose count has not grown.
fn stuck(before: &[Progress], now: &[Progress]) -> Option<Part> {
    let still = |((_, before), (_, now)): &(&Progress, &Progress)| now <= before;
    before.iter().zip(now).find(still).map(|(_, (part, _))| *part)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Part = Part::Worker(0);

    #[test]
    fn a_part_that_does_not_turn_is_found() {
        let at = |worker, engine| [(FIRST, worker), (Part::Engine, engine)];
        assert_eq!(stuck(&[], &at(0, 0)), None, "the first look compares with nothing");
        assert_eq!(stuck(&at(1, 1), &at(2, 2)), None);
        assert_eq!(stuck(&at(1, 5), &at(2, 5)), Some(Part::Engine));
    }

    fn watchdog(interval: Option<Duration>) -> Watchdog {
        Watchdog { interval, fed: Instant::now(), progress: Vec::new(), starved_for: None }
    }

    #[test]
    fn without_a_watchdog_nothing_is_remembered() {
        let mut watchdog = watchdog(None);
        watchdog.feed(vec![(FIRST, 1)]);
        assert!(watchdog.progress.is_empty());
    }

    #[test]
    fn a_stalled_part_starves_the_watchdog() {
        let mut watchdog = watchdog(Some(Duration::ZERO));
        watchdog.feed(vec![(FIRST, 3), (Part::Engine, 7)]);
        watchdog.feed(vec![(FIRST, 4), (Part::Engine, 7)]);
        assert_eq!(watchdog.progress, [(FIRST, 3), (Part::Engine, 7)], "not fed");
        watchdog.feed(vec![(FIRST, 4), (Part::Engine, 8)]);
        assert_eq!(watchdog.progress, [(FIRST, 4), (Part::Engine, 8)], "fed");
    }
}

//! Notifications for the service manager (sd_notify(3)); outside systemd every call does nothing.
//!
//! The daemon calls these functions when its state changes. WATCHDOG=1 is sent only if every worker and the
//! engine have made progress since the last one, so that systemd restarts a daemon with a stalled part.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;

use crate::daemon::health::{Part, Progress};

pub(crate) fn ready(status: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(&one_line(status))]);
}

/// Type=notify-reload requires the time, and READY=1 once the reload is over.
pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now, NotifyState::Status("reloading the policy")]),
        Err(error) => tracing::warn!(%error, "the monotonic clock cannot be read"),
    }
}

/// Feeds the watchdog of a daemon whose one thread this is.
pub(crate) fn alive() {
    if sd_notify::watchdog_enabled().is_some() {
        send(&[NotifyState::Watchdog]);
    }
}

pub(crate) fn stopping() {
    send(&[NotifyState::Stopping, NotifyState::Status("draining")]);
}

pub(crate) fn status(text: &str) {
    send(&[NotifyState::Status(&one_line(text))]);
}

/// A newline would begin another assignment of the notification; names of files and diagnostics may have one.
fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// The end, or a change, takes so much longer than the service manager allows.
pub(crate) fn extend_timeout(time: Duration) {
    let microseconds = u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
    send(&[NotifyState::ExtendTimeoutUsec(microseconds)]);
}

fn send(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "the service manager cannot be notified");
    }
}

/// Feeds the watchdog while the loops of workers and engine make progress.
#[derive(Debug)]
pub(crate) struct Watchdog {
    /// Half of what systemd allows, as sd_watchdog_enabled(3) advises; `None`: systemd has no watchdog on.
    interval: Option<Duration>,
    fed: Instant,
    progress: Vec<Progress>,
    /// The part that stopped the feeding, which is logged once.
    blocked_by: Option<Part>,
}

impl Watchdog {
    pub(crate) fn new() -> Self {
        Self {
            interval: sd_notify::watchdog_enabled().map(|allowed| allowed / 2),
            fed: Instant::now(),
            progress: Vec::new(),
            blocked_by: None,
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
        if let Some(part) = stuck.as_ref().filter(|part| self.blocked_by.as_ref() != Some(*part)) {
            tracing::error!("{part} has made no progress for {interval:.1?}: the watchdog is not fed");
        }
        self.blocked_by = stuck;
        if self.blocked_by.is_none() {
            self.progress = progress;
            self.fed = Instant::now();
            send(&[NotifyState::Watchdog]);
        }
    }
}

/// The first part whose count has not grown.
fn stuck(before: &[Progress], now: &[Progress]) -> Option<Part> {
    let still = |((_, before), (_, now)): &(&Progress, &Progress)| now <= before;
    before.iter().zip(now).find(still).map(|(_, (part, _))| part.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_one_line() {
        assert_eq!(one_line("steering with a\nWATCHDOG=trigger\tb"), "steering with a WATCHDOG=trigger b");
    }

    const FIRST: Part = Part::Worker(0);

    fn engine() -> Part {
        Part::Engine("softnic0".into(), None)
    }

    #[test]
    fn a_part_without_progress_is_found() {
        let at = |worker, passes| [(FIRST, worker), (engine(), passes)];
        assert_eq!(stuck(&[], &at(0, 0)), None, "the first call has nothing to compare with");
        assert_eq!(stuck(&at(1, 1), &at(2, 2)), None);
        assert_eq!(stuck(&at(1, 5), &at(2, 5)), Some(engine()));
    }

    fn watchdog(interval: Option<Duration>) -> Watchdog {
        Watchdog { interval, fed: Instant::now(), progress: Vec::new(), blocked_by: None }
    }

    #[test]
    fn without_a_watchdog_no_progress_is_kept() {
        let mut watchdog = watchdog(None);
        watchdog.feed(vec![(FIRST, 1)]);
        assert!(watchdog.progress.is_empty());
    }

    #[test]
    fn a_stalled_part_stops_the_watchdog() {
        let mut watchdog = watchdog(Some(Duration::ZERO));
        watchdog.feed(vec![(FIRST, 3), (engine(), 7)]);
        watchdog.feed(vec![(FIRST, 4), (engine(), 7)]);
        assert_eq!(watchdog.progress, [(FIRST, 3), (engine(), 7)], "not fed");
        watchdog.feed(vec![(FIRST, 4), (engine(), 8)]);
        assert_eq!(watchdog.progress, [(FIRST, 4), (engine(), 8)], "fed");
    }
}

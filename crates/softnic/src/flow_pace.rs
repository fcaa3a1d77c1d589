//! The time that a flow call takes, so that what depends on it can be tried at the speed of a firmware.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A call that comes late by less than this does not make the next ones later.
const CREDIT: Duration = Duration::from_millis(2);

/// How long creating or destroying a flow takes.
#[derive(Debug, Default)]
pub(crate) struct FlowPace {
    /// 0: no longer than it takes.
    ns_per_flow: AtomicU64,
    /// The end of the last call.
    last: Mutex<Option<Instant>>,
}

impl FlowPace {
    /// So many calls a second; 0: as many as there are.
    pub(crate) fn set(&self, per_second: u32) {
        let ns = 1_000_000_000u64.checked_div(per_second.into()).unwrap_or(0);
        self.ns_per_flow.store(ns, Ordering::Relaxed);
    }

    /// Takes the time of one call.
    pub(crate) fn wait(&self) {
        let time = Duration::from_nanos(self.ns_per_flow.load(Ordering::Relaxed));
        if time.is_zero() {
            return;
        }
        let now = Instant::now();
        let end = {
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            let begin = last.filter(|last| now < *last + CREDIT).unwrap_or(now);
            *last.insert(begin + time)
        };
        std::thread::sleep(end.saturating_duration_since(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_take_their_time() {
        let pace = FlowPace::default();
        let begun = Instant::now();
        (0..1000).for_each(|_| pace.wait());
        assert!(begun.elapsed() < Duration::from_millis(100), "without a rate");
        pace.set(2000);
        let begun = Instant::now();
        (0..100).for_each(|_| pace.wait());
        assert!(begun.elapsed() >= Duration::from_millis(49), "{:?}", begun.elapsed());
    }
}

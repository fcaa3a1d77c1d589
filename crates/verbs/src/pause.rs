//! Keeps the poller of a completion queue and the destroyers of what completes into it apart.
//!
//! Destroying a work queue or queue pair, and moving a work queue to RDY, make a provider remove its completions from
//! the ring (providers/mlx5/cq.c, `__mlx5_cq_clean`). The library's own lock is absent from a SINGLE_THREADED queue and
//! would wait for ever for a batch that is open on the same thread, so this stands in front of both. It costs the
//! poller one uncontended exchange per poll, nothing per completion.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a destroyer waits for an open batch before it gives up: far longer than any batch lasts.
const PAUSE_LIMIT: Duration = Duration::from_secs(1);

/// Invariant: at no time is the gate both entered and paused. Each side raises its own flag before it looks at the
/// other's, with sequential consistency, so they cannot both miss.
#[derive(Default)]
pub(crate) struct Gate {
    polling: AtomicBool,
    wanted: AtomicBool,
    /// Destroyers take turns.
    turn: Mutex<()>,
}

impl Gate {
    /// The poller's side. False: paused, or entered already; try again later.
    #[inline]
    pub(crate) fn enter(&self) -> bool {
        if self.polling.swap(true, Ordering::SeqCst) {
            return false;
        }
        if self.wanted.load(Ordering::SeqCst) {
            self.leave();
            return false;
        }
        true
    }

    #[inline]
    pub(crate) fn leave(&self) {
        self.polling.store(false, Ordering::Release);
    }

    /// The destroyer's side. `None`: the poller did not leave in time.
    #[cold]
    pub(crate) fn pause(&self) -> Option<Paused<'_>> {
        self.pause_for(PAUSE_LIMIT)
    }

    fn pause_for(&self, limit: Duration) -> Option<Paused<'_>> {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let paused = Paused { gate: self, _turn: turn };
        self.wanted.store(true, Ordering::SeqCst);
        let start = Instant::now();
        while self.polling.load(Ordering::SeqCst) {
            if start.elapsed() > limit {
                return None;
            }
            std::thread::yield_now();
        }
        Some(paused)
    }
}

/// While this exists, no batch is open.
pub(crate) struct Paused<'g> {
    gate: &'g Gate,
    _turn: MutexGuard<'g, ()>,
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        self.gate.wanted.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn a_paused_gate_is_not_entered_and_an_entered_one_not_paused() {
        let gate = Gate::default();
        assert!(gate.enter());
        assert!(gate.pause_for(Duration::from_millis(5)).is_none());
        gate.leave();
        let paused = gate.pause_for(Duration::ZERO).expect("nobody polls");
        assert!(!gate.enter());
        drop(paused);
        assert!(gate.enter());
    }

    #[test]
    fn poller_and_destroyers_never_overlap() {
        let gate = Gate::default();
        let (inside, turns) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let paused = gate.pause().expect("the poller leaves soon");
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(paused);
                        turns.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            while turns.load(Ordering::SeqCst) < 400 {
                if gate.enter() {
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    gate.leave();
                }
            }
        });
    }
}

//! How far a change of the device is. A firmware that takes 5,000 flows a second needs seconds for a large
//! policy, so this is shown to other threads and logged.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How often a change that goes on is logged. Shorter ones are not.
const LOGGED_EVERY: Duration = Duration::from_secs(2);

/// A change of the device that goes on, for other threads. A rollback belongs to its change, and so does a
/// first step that only moves flows.
#[derive(Debug, Default)]
pub struct ChangeProgress {
    done: AtomicUsize,
    /// 0: there is no change.
    total: AtomicUsize,
}

/// The flows that a change creates and destroys, on all ports together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangedSoFar {
    /// The flows that are created or destroyed.
    pub done: usize,
    /// All flows of the change.
    pub total: usize,
}

impl ChangeProgress {
    /// Returns how far the change is; `None`: there is none. While one ends and the next begins, the two
    /// figures may be of different changes.
    #[must_use]
    pub fn read(&self) -> Option<ChangedSoFar> {
        let total = self.total.load(Ordering::Relaxed);
        (total > 0).then(|| ChangedSoFar { done: self.done.load(Ordering::Relaxed).min(total), total })
    }
}

/// The controller's side of a [`ChangeProgress`].
pub(crate) struct ChangeMeter {
    shown: Arc<ChangeProgress>,
    logged: Instant,
}

impl ChangeMeter {
    pub(crate) fn new() -> Self {
        Self { shown: Arc::default(), logged: Instant::now() }
    }

    pub(crate) fn shown(&self) -> Arc<ChangeProgress> {
        Arc::clone(&self.shown)
    }

    pub(crate) fn begin(&mut self, total: usize) {
        self.shown.done.store(0, Ordering::Relaxed);
        self.shown.total.store(total, Ordering::Relaxed);
        self.logged = Instant::now();
    }

    /// Adds flows to the change that goes on: those that a rollback brings back or removes.
    pub(crate) fn extend(&mut self, flows: usize) {
        self.shown.total.fetch_add(flows, Ordering::Relaxed);
    }

    /// Notes that a flow was created or destroyed.
    pub(crate) fn count(&mut self) {
        let done = self.shown.done.fetch_add(1, Ordering::Relaxed) + 1;
        let total = self.shown.total.load(Ordering::Relaxed);
        if total > 0 && self.logged.elapsed() >= LOGGED_EVERY {
            self.logged = Instant::now();
            tracing::info!("the device is being changed: {done} of {total} flows");
        }
    }

    pub(crate) fn end(&mut self) {
        self.shown.total.store(0, Ordering::Relaxed);
    }
}

//! The counters of drop rules, which the device keeps: a reload owns the device while it changes it, so a
//! reading can be impossible. It is then the last one, or absent.

use std::sync::atomic::Ordering;
use std::sync::{PoisonError, TryLockError};
use std::time::{Duration, Instant};

use control::{DropTotals, Reading};

use super::{Runtime, snapshot};

/// How long a reader of the counters waits for a change of the device: most take less.
const CONTROLLER_PATIENCE: Duration = Duration::from_millis(200);

/// How many counters are read before the controller is released to other threads.
const COUNTERS_AT_ONCE: usize = 256;

impl Runtime {
    /// Packets that rules of the device have dropped, received or sent; 0 if the ports do not count.
    pub(super) fn dropped_by_ports(&self) -> u64 {
        let stats = snapshot::stats(self);
        snapshot::dropped(stats.as_deref()) + snapshot::sent_dropped(stats.as_deref())
    }

    /// Notes that up to `dropped` packets that were dropped during a reload may be in no rule's counter.
    pub(super) fn note_uncounted_drops(&self, dropped: u64) {
        self.uncounted_drops.fetch_add(dropped, Ordering::Relaxed);
        tracing::warn!(
            "the device did not let the counters of removed drop rules be read after their flows: their last packets may \
             be missing in `{}`, at most {dropped}",
            program::RETIRED_RULES
        );
    }

    /// The counters of drop rules, if they were ever read; `false`: read earlier, as a program is being
    /// installed now.
    pub(super) fn drop_totals(&self, moment: snapshot::Moment) -> (Option<Vec<DropTotals>>, bool) {
        let now = match moment {
            snapshot::Moment::Ended => Some(self.controller().drop_counters()),
            // A soft device answers between two bursts of its engine: if the engine is stalled, never.
            snapshot::Moment::Running if self.is_engine_stalled() => None,
            snapshot::Moment::Running => self.read_drops(),
        };
        let fresh = now.is_some();
        // Locked after the device was read, so that nobody waits for the device at this lock.
        let mut last = self.drops.lock().unwrap_or_else(PoisonError::into_inner);
        if now.is_some() {
            *last = now;
        }
        (last.clone(), fresh)
    }

    /// Reads a few counters at a time, so that a reload does not wait for thousands; `None` if a reload is
    /// running and does not end in [`CONTROLLER_PATIENCE`].
    fn read_drops(&self) -> Option<Vec<DropTotals>> {
        let mut reading = Reading::default();
        let deadline = Instant::now() + CONTROLLER_PATIENCE;
        loop {
            let mut controller = match self.controller.try_lock() {
                Ok(controller) => controller,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                }
                Err(TryLockError::WouldBlock) => return None,
            };
            if !controller.read_counters(&mut reading, COUNTERS_AT_ONCE) {
                return Some(controller.drop_totals());
            }
            drop(controller);
            // A reload that waits for it gets it.
            std::thread::sleep(Duration::from_micros(1));
        }
    }
}

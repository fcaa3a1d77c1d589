//! The counters of drop rules, which the device keeps: a reload owns the device while it changes it, so a
//! reading can be impossible. It is then the last one, or absent.

use std::sync::atomic::Ordering;
use std::sync::{PoisonError, TryLockError};
use std::time::{Duration, Instant};

use control::{Controller, Counted, DropTotals, Reading};
use softnic::PortStats;
use wire::BURST_FRAMES;

use super::{Runtime, snapshot};

/// How long a reader of the counters waits for a change of the device: most take less.
const CONTROLLER_PATIENCE: Duration = Duration::from_millis(200);

/// How many counters are read before the controller is released to other threads.
const COUNTERS_AT_ONCE: usize = 256;

impl Runtime {
    /// Changes what is installed on the device. If counters of removed drop rules could not be read after
    /// their flows, notes how many dropped packets may be in no rule's counter.
    pub(super) fn change_device<T>(
        &self,
        controller: &mut Controller,
        change: impl FnOnce(&mut Controller) -> T,
    ) -> T {
        let early_readings = controller.early_readings();
        let outcome = change(controller);
        if controller.early_readings() > early_readings {
            // The ports are read after the rules: what is dropped in between makes the limit larger.
            let totals = controller.drop_counters();
            let limit = uncounted_limit(snapshot::stats(self).as_deref(), &totals);
            self.uncounted_drops.store(limit, Ordering::Relaxed);
            tracing::warn!(
                "the device did not let the counters of removed drop rules be read after their flows: packets may be \
                 missing in `{}`, since the start at most {limit}",
                program::RETIRED_RULES
            );
        }
        outcome
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

/// The most packets that rules of the device have dropped, received or sent, and that are in none of
/// `totals`. Totals never decrease, so it includes the packets that were missing before.
fn uncounted_limit(ports: Option<&[PortStats]>, totals: &[DropTotals]) -> u64 {
    let dropped = snapshot::dropped(ports) + snapshot::sent_dropped(ports);
    let drops = totals.iter().filter(|total| total.kind != Counted::SentPassed);
    let counted: u64 = drops.map(|total| total.packets).sum();
    // A port counts a burst after it has dropped it.
    let bursts = ports.map_or(0, <[_]>::len) * BURST_FRAMES;
    dropped.saturating_sub(counted) + bursts as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_uncounted_drops_is_what_no_total_has_and_a_burst_of_each_port() {
        let port = |flow_dropped, tx_flow_dropped| PortStats {
            flow_dropped,
            tx_flow_dropped,
            ..PortStats::default()
        };
        let total =
            |kind, packets| DropTotals { rule: "bad".to_owned(), kind, packets, bytes: 0, counted: true };
        let ports = [port(1000, 0), port(500, 30)];
        let totals =
            [total(Counted::Dropped, 1400), total(Counted::SentDropped, 20), total(Counted::SentPassed, 7)];
        let bursts = 2 * BURST_FRAMES as u64;
        assert_eq!(uncounted_limit(Some(&ports), &totals), 110 + bursts);
        // A rule may have counted a burst that the port has not yet.
        assert_eq!(uncounted_limit(Some(&ports), &[total(Counted::Dropped, 1540)]), bursts);
        assert_eq!(uncounted_limit(None, &totals), 0);
    }
}

//! The time that frames take to pass the groups of flows before theirs, so that the cost of groups can be
//! tried.
//!
//! A device model with `ns_per_group` has it. The engine adds up the groups that the frames of a burst pass
//! (`flow_table::PortTable::groups_passed`) and is busy for as long as the device would be.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::clock;

/// How long a frame takes to pass a group of flows.
#[derive(Debug)]
pub(crate) struct GroupPace {
    /// 0: no time, and groups are not counted.
    ns_per_group: u64,
    /// The groups that frames have passed.
    passed: AtomicU64,
}

impl GroupPace {
    pub(crate) fn new(ns_per_group: u32) -> Self {
        Self { ns_per_group: ns_per_group.into(), passed: AtomicU64::new(0) }
    }

    /// Whether groups cost time.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.ns_per_group != 0
    }

    /// The groups that frames have passed.
    pub(crate) fn passed(&self) -> u64 {
        self.passed.load(Ordering::Relaxed)
    }

    /// Takes the time since `begun_ns` that these groups take, or less when the device stops.
    pub(crate) fn pass(&self, groups: u64, begun_ns: u64, stopping: &AtomicBool) {
        self.passed.fetch_add(groups, Ordering::Relaxed);
        let end_ns = begun_ns.saturating_add(groups.saturating_mul(self.ns_per_group));
        while clock::steady_ns() < end_ns && !stopping.load(Ordering::Relaxed) {
            spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_take_their_time() {
        let (pace, stopping) = (GroupPace::new(1_000), AtomicBool::new(false));
        let begun_ns = clock::steady_ns();
        (0..10).for_each(|_| pace.pass(500, clock::steady_ns(), &stopping));
        assert!(clock::steady_ns() - begun_ns >= 5_000_000);
        assert_eq!(pace.passed(), 5_000);
    }

    #[test]
    fn a_device_that_stops_passes_at_once() {
        let (pace, stopping) = (GroupPace::new(u32::MAX), AtomicBool::new(true));
        pace.pass(u64::MAX, clock::steady_ns(), &stopping);
        assert!(pace.is_on() && !GroupPace::new(0).is_on());
    }
}

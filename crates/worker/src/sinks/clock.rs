//! The times of captured packets: the device's timestamps of reception, converted to nanoseconds of the
//! system's clock (CLOCK_REALTIME); for packets without one, the system's time when the worker handled their
//! iteration.
//!
//! The hub reads the device's clock beside the system's when the sink is opened and then about once a second
//! ([`ClockHub`]); workers convert by the last reading ([`Timestamps`]). Between two readings differences of
//! times are those of timestamps, to a nanosecond and the error of the measured rate. At a new reading the
//! times of a worker may be corrected by the error of the readings, typically less than a microsecond. A
//! correction backwards is not visible: packets get the time of the last one until the clock has passed it,
//! unless the system's clock was set back by more than [`STEP_NS`].

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use verbs::Context;

use crate::latency::{ClockRelation, DeviceClock};

/// Larger steps backwards are those of a clock that was set.
const STEP_NS: u64 = 1_000_000;

/// Readings of the two clocks, of which the shortest counts: a thread may lose its core between them.
const READINGS: usize = 5;

/// Nanoseconds since the epoch.
pub(super) fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// The relation of the device's clock to the system's wall clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct WallRelation {
    relation: ClockRelation,
    /// The system's time at the reading of the relation.
    at_ns: u64,
}

impl WallRelation {
    /// `relation` was just read.
    fn new(relation: ClockRelation) -> Self {
        let readings = (0..READINGS).map(|_| (Instant::now(), now_ns(), Instant::now()));
        let shortest = readings.min_by_key(|(before, _, after)| after.duration_since(*before));
        let (before, now_ns, after) = shortest.unwrap_or_else(|| (Instant::now(), now_ns(), Instant::now()));
        let now = before + after.duration_since(before) / 2;
        let since = now.saturating_duration_since(relation.at());
        Self { relation, at_ns: now_ns.saturating_sub(since.as_nanos() as u64) }
    }

    #[cfg(test)]
    pub(super) fn with(relation: ClockRelation, at_ns: u64) -> Self {
        Self { relation, at_ns }
    }

    #[inline]
    fn wall_ns(&self, timestamp: u64) -> Option<u64> {
        self.at_ns.checked_add_signed(self.relation.ns_to(timestamp)?)
    }
}

/// The last reading, for the workers.
#[derive(Debug, Default)]
pub(super) struct SharedRelation {
    version: AtomicU64,
    relation: Mutex<Option<WallRelation>>,
}

impl SharedRelation {
    pub(super) fn set(&self, relation: WallRelation) {
        *self.relation.lock().unwrap_or_else(PoisonError::into_inner) = Some(relation);
        self.version.fetch_add(1, Release);
    }
}

/// Reads the clock of a device, if it has one.
pub(super) struct ClockHub {
    clock: Mutex<Option<DeviceClock>>,
    pub(super) shared: Arc<SharedRelation>,
}

impl ClockHub {
    /// The first reading; none if the device's clock cannot be read.
    pub(super) fn open(context: &Arc<Context>) -> Self {
        let hub = Self { clock: Mutex::new(DeviceClock::open(context).ok()), shared: Arc::default() };
        hub.read();
        hub
    }

    /// Without a clock of a device.
    #[cfg(test)]
    pub(super) fn none() -> Self {
        Self { clock: Mutex::new(None), shared: Arc::default() }
    }

    /// To be called about once a second.
    pub(super) fn read(&self) {
        let mut clock = self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        match clock.as_mut().map(DeviceClock::read) {
            Some(Ok(relation)) => self.shared.set(WallRelation::new(relation)),
            // After some seconds workers use the system's clock.
            Some(Err(error)) => tracing::debug!("the device's clock cannot be read: {error}"),
            None => {}
        }
    }
}

/// A worker's conversion. Never waits.
#[derive(Debug)]
pub(super) struct Timestamps {
    shared: Arc<SharedRelation>,
    seen: u64,
    relation: Option<WallRelation>,
    /// The time of the last packet.
    last_ns: u64,
}

impl Timestamps {
    /// The time of a timestamp of the device, if it can be converted.
    pub(super) fn exact(&self, timestamp: u64) -> Option<u64> {
        self.relation.as_ref()?.wall_ns(timestamp)
    }

    pub(super) fn new(shared: &Arc<SharedRelation>) -> Self {
        Self { shared: Arc::clone(shared), seen: 0, relation: None, last_ns: 0 }
    }

    /// Takes a new reading if there is one.
    #[inline]
    pub(super) fn refresh(&mut self) {
        let version = self.shared.version.load(Acquire);
        if version != self.seen
            && let Ok(relation) = self.shared.relation.try_lock()
        {
            self.relation = *relation;
            self.seen = version;
        }
    }

    /// The time of a packet of the iteration at `now_ns`, by its timestamp if it has one that can be
    /// converted.
    #[inline]
    pub(super) fn of(&mut self, timestamp: Option<u64>, now_ns: u64) -> u64 {
        self.of_iteration(timestamp, || now_ns)
    }

    /// The time as [`Timestamps::of`] finds it; the clock is read only for a packet that needs it.
    #[inline]
    pub(super) fn of_iteration(&mut self, timestamp: Option<u64>, now_ns: impl FnOnce() -> u64) -> u64 {
        let converted = timestamp.and_then(|timestamp| self.exact(timestamp));
        let time = converted.unwrap_or_else(now_ns);
        let is_step = time.saturating_add(STEP_NS) < self.last_ns;
        self.last_ns = if is_step { time } else { time.max(self.last_ns) };
        self.last_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 78.125 MHz: a tick is 12.8 ns.
    const TICK_KHZ: u64 = 78_125;
    const WALL_NS: u64 = 1_700_000_000_000_000_000;

    fn timestamps(raw: u64, at_ns: u64) -> Timestamps {
        let shared = Arc::<SharedRelation>::default();
        let mut timestamps = Timestamps::new(&shared);
        set(&mut timestamps, raw, at_ns);
        timestamps
    }

    fn set(timestamps: &mut Timestamps, raw: u64, at_ns: u64) {
        let relation = ClockRelation::nominal(TICK_KHZ, u64::MAX, raw, Instant::now());
        timestamps.shared.set(WallRelation::with(relation, at_ns));
        timestamps.refresh();
    }

    #[test]
    fn ticks_of_12_8_ns_become_times_of_the_right_spacing() {
        let mut timestamps = timestamps(1_000_000, WALL_NS);
        let times: Vec<u64> = (0..1000).map(|n| timestamps.of(Some(999_000 + 7 * n), 0)).collect();
        assert_eq!(times[0], WALL_NS - 12_800, "before the reading");
        assert_eq!(times[1000 / 7 + 1], WALL_NS + 13, "one tick after it");
        for (n, time) in times.iter().enumerate() {
            let exact = 12.8 * 7.0 * n as f64;
            assert!(((time - times[0]) as f64 - exact).abs() <= 1.0, "{n}: {time}");
        }
    }

    #[test]
    fn a_correction_backwards_is_not_visible_but_a_clock_that_was_set_is() {
        let mut timestamps = timestamps(0, WALL_NS);
        assert_eq!(timestamps.of(Some(1000), 0), WALL_NS + 12_800);
        set(&mut timestamps, 0, WALL_NS - 500);
        assert_eq!(timestamps.of(Some(1010), 0), WALL_NS + 12_800, "128 ns later, by a clock 500 ns earlier");
        assert_eq!(timestamps.of(Some(1100), 0), WALL_NS + 12_800 + 1280 - 500);
        set(&mut timestamps, 0, WALL_NS - 1_000_000_000);
        assert_eq!(timestamps.of(Some(1100), 0), WALL_NS - 1_000_000_000 + 14_080);
    }

    #[test]
    fn without_a_timestamp_or_a_reading_that_holds_the_time_is_that_of_the_iteration() {
        let mut timestamps = timestamps(0, WALL_NS);
        assert_eq!(timestamps.of(None, WALL_NS + 5), WALL_NS + 5);
        let an_hour = 3600 * 1000 * TICK_KHZ;
        assert_eq!(timestamps.of(Some(an_hour), WALL_NS + 6), WALL_NS + 6);
        let mut without = Timestamps::new(&Arc::default());
        without.refresh();
        assert_eq!(without.of(Some(7), WALL_NS), WALL_NS);
    }
}

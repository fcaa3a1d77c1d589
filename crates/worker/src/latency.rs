//! How long packets wait between the device and the worker: from the timestamp of a completion, in ticks of
//! the device's free-running clock, to the moment when the worker takes it.
//!
//! [`DeviceClock`] reads the device's clock beside the system's, outside of workers, about once a second. Its
//! [`ClockRelation`] lets a worker compute the device's time from its own clock without asking the device.
//! The rate is measured between two readings, because the nominal rate (`hca_core_clock`) may be off by 100
//! parts per million, which is 100 us in a second.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use verbs::Context;

use crate::counter::Counter;
use crate::distribution::Distribution;
use crate::regime::ns_between;

/// Readings of which the one that was interrupted least is used.
const READINGS: usize = 8;
/// How long a reading waits for the next step of a clock that advances in steps: one that is read from
/// memory, to which someone writes it.
const STEP_PATIENCE: Duration = Duration::from_millis(8);
/// Two readings this far apart give a rate, if it differs from the nominal one by at most one part in
/// `RATE_TOLERANCE`.
const RATE_INTERVAL: Duration = Duration::from_millis(500);
const RATE_TOLERANCE: u64 = 1000;
/// A relation is not used for longer: clocks drift.
const RELATION_LIFE_NS: u64 = 10_000_000_000;
/// One batch of so many is measured.
const MEASURED_BATCHES: u32 = 16;
/// Binary digits of a rate behind the point.
const RATE_BITS: u32 = 32;

/// Reads the clock of a device.
pub struct DeviceClock {
    context: Arc<Context>,
    /// Ticks per millisecond.
    nominal_khz: u64,
    mask: u64,
    rate: Rate,
    /// The reading that the next rate is measured from.
    base: Option<(u64, Instant)>,
}

/// The relation of a device's clock to the system's at one moment, good for the next seconds.
#[derive(Clone, Copy, Debug)]
pub struct ClockRelation {
    raw: u64,
    at: Instant,
    /// The bits of a timestamp that count; it wraps there.
    mask: u64,
    rate: Rate,
}

impl ClockRelation {
    /// When the device's clock was read.
    pub(crate) fn at(&self) -> Instant {
        self.at
    }

    /// Nanoseconds from the reading to a timestamp, negative if it is earlier; `None` if it is so far away
    /// that the relation does not hold.
    #[inline]
    pub(crate) fn ns_to(&self, timestamp: u64) -> Option<i64> {
        let ahead = timestamp.wrapping_sub(self.raw) & self.mask;
        let behind = self.raw.wrapping_sub(timestamp) & self.mask;
        let ns = times(ahead.min(behind), self.rate.ns_per_tick);
        let ns = i64::try_from(ns).ok().filter(|ns| *ns <= RELATION_LIFE_NS as i64)?;
        Some(if ahead <= behind { ns } else { -ns })
    }

    /// A relation of a clock with this rate, for tests.
    #[cfg(test)]
    pub(crate) fn nominal(khz: u64, mask: u64, raw: u64, at: Instant) -> Self {
        Self { raw, at, mask, rate: Rate::nominal(khz) }
    }
}

/// Fixed-point numbers with [`RATE_BITS`] binary digits behind the point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rate {
    ticks_per_ns: u64,
    ns_per_tick: u64,
}

impl Rate {
    /// `ticks` in `ns`; neither is 0.
    fn of(ticks: u64, ns: u64) -> Self {
        let ratio = |a: u64, b: u64| {
            u64::try_from(((u128::from(a) << RATE_BITS) + u128::from(b / 2)) / u128::from(b))
        };
        let ratio = |a, b| ratio(a, b).unwrap_or(u64::MAX);
        Self { ticks_per_ns: ratio(ticks, ns), ns_per_tick: ratio(ns, ticks) }
    }

    fn nominal(khz: u64) -> Self {
        Self::of(khz, 1_000_000)
    }

    /// The nominal rate if the measured one is implausible: one of the clocks was set, or the machine slept.
    fn measured(ticks: u64, ns: u64, nominal: Self) -> Self {
        if ticks == 0 {
            return nominal;
        }
        let measured = Self::of(ticks, ns);
        let off = measured.ticks_per_ns.abs_diff(nominal.ticks_per_ns);
        if off > nominal.ticks_per_ns / RATE_TOLERANCE { nominal } else { measured }
    }
}

#[inline]
fn times(value: u64, rate: u64) -> u64 {
    // To the nearest; wraps like the clock.
    ((u128::from(value) * u128::from(rate) + (1 << (RATE_BITS - 1))) >> RATE_BITS) as u64
}

impl DeviceClock {
    /// The clock of a device.
    ///
    /// # Errors
    /// The device does not report the rate of its clock, or cannot be asked.
    pub fn open(context: &Arc<Context>) -> Result<Self, verbs::VerbsError> {
        // Checks that the clock can be read and has a rate.
        context.clock()?;
        let attributes = context.attributes()?;
        let (nominal_khz, mask) = (attributes.hca_core_clock_khz, attributes.completion_timestamp_mask);
        let rate = Rate::nominal(nominal_khz);
        Ok(Self { context: Arc::clone(context), nominal_khz, mask, rate, base: None })
    }

    /// Reads the device's clock beside the system's.
    ///
    /// # Errors
    /// As [`Context::raw_clock`].
    pub fn read(&mut self) -> Result<ClockRelation, verbs::VerbsError> {
        let mut best: Option<(Duration, u64, Instant)> = None;
        let (mut last, mut repeats) = (None, false);
        for _ in 0..READINGS {
            let before = Instant::now();
            let raw = self.context.raw_clock()?;
            let took = before.elapsed();
            repeats |= last.replace(raw) == Some(raw);
            if best.is_none_or(|(least, ..)| took < least) {
                best = Some((took, raw, before + took / 2));
            }
        }
        let Some((_, mut raw, mut at)) = best else { unreachable!("there is at least one reading") };
        // A clock that advances in steps also differs between two readings if a step falls between them.
        if repeats && let Some(step) = self.next_step(last.unwrap_or(raw))? {
            (raw, at) = step;
        }
        self.measure_rate(raw, at);
        Ok(ClockRelation { raw, at, mask: self.mask, rate: self.rate })
    }

    /// The first reading after `raw` that differs from it, if one does soon: only then the clock shows the
    /// time.
    fn next_step(&self, raw: u64) -> Result<Option<(u64, Instant)>, verbs::VerbsError> {
        let begin = Instant::now();
        while begin.elapsed() < STEP_PATIENCE {
            let now = self.context.raw_clock()?;
            if now != raw {
                return Ok(Some((now, Instant::now())));
            }
            std::hint::spin_loop();
        }
        Ok(None)
    }

    fn measure_rate(&mut self, raw: u64, at: Instant) {
        let (base_raw, base_at) = *self.base.get_or_insert((raw, at));
        if at.saturating_duration_since(base_at) < RATE_INTERVAL {
            return;
        }
        let (ticks, ns) = (raw.wrapping_sub(base_raw) & self.mask, ns_between(base_at, at));
        self.rate = Rate::measured(ticks, ns, Rate::nominal(self.nominal_khz));
        self.base = Some((raw, at));
    }
}

/// A relation in the worker's time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conversion {
    raw: u64,
    at_ns: u64,
    mask: u64,
    rate: Rate,
}

impl Conversion {
    pub(crate) fn new(relation: ClockRelation, origin: Instant) -> Self {
        let ClockRelation { raw, at, mask, rate } = relation;
        Self { raw, at_ns: ns_between(origin, at), mask, rate }
    }

    /// The device's clock at a time; `None` if the relation is too old.
    #[inline]
    fn device_now(&self, now_ns: u64) -> Option<u64> {
        let since_ns = now_ns.saturating_sub(self.at_ns);
        (since_ns <= RELATION_LIFE_NS)
            .then(|| self.raw.wrapping_add(times(since_ns, self.rate.ticks_per_ns)) & self.mask)
    }

    /// Nanoseconds from a timestamp to the device's `now`; `None` if the timestamp is later.
    #[inline]
    fn since(&self, timestamp: u64, now: u64) -> Option<u64> {
        let ticks = now.wrapping_sub(timestamp) & self.mask;
        (ticks <= self.mask / 2).then(|| times(ticks, self.rate.ns_per_tick))
    }
}

/// Measures some of the batches.
#[derive(Debug, Default)]
pub(crate) struct LatencyMeter {
    conversion: Option<Conversion>,
    /// The relation that it was made from.
    seen: u64,
    busy_iterations: u32,
}

impl LatencyMeter {
    /// Whether a batch that took completions is to be measured.
    #[inline]
    pub(crate) fn is_due(&mut self) -> bool {
        self.busy_iterations = self.busy_iterations.wrapping_add(1);
        self.busy_iterations.is_multiple_of(MEASURED_BATCHES)
    }

    /// Takes a new relation if there is one. Never waits.
    pub(crate) fn refresh(&mut self, clock: &SharedClock) {
        if let Some((conversion, version)) = clock.newer_than(self.seen) {
            self.conversion = Some(conversion);
            self.seen = version;
        }
    }

    /// Records the latencies of packets that were taken at `now_ns`.
    pub(crate) fn record(
        &self,
        timestamps: &[u64],
        now_ns: u64,
        latencies: &mut Distribution,
        negative: &Counter,
    ) {
        let Some(conversion) = &self.conversion else { return };
        let Some(now) = conversion.device_now(now_ns) else { return };
        for timestamp in timestamps {
            let latency = conversion.since(*timestamp, now);
            negative.add(u64::from(latency.is_none()));
            latencies.record(latency.unwrap_or(0));
        }
    }
}

/// The relation for a worker, set by other threads. The worker compares one number, and tries the lock if it
/// has changed.
#[derive(Debug)]
pub(crate) struct SharedClock {
    /// The zero of the worker's time.
    pub(crate) origin: Instant,
    version: AtomicU64,
    relation: Mutex<Option<ClockRelation>>,
}

impl Default for SharedClock {
    fn default() -> Self {
        Self { origin: Instant::now(), version: 0.into(), relation: None.into() }
    }
}

impl SharedClock {
    pub(crate) fn set(&self, relation: ClockRelation) {
        let mut place = self.relation.lock().unwrap_or_else(PoisonError::into_inner);
        *place = Some(relation);
        self.version.fetch_add(1, Release);
    }

    /// Whether there is a relation at all.
    pub(crate) fn is_set(&self) -> bool {
        self.version.load(Acquire) > 0
    }

    fn newer_than(&self, seen: u64) -> Option<(Conversion, u64)> {
        let version = self.version.load(Acquire);
        if version == seen {
            return None;
        }
        let relation = (*self.relation.try_lock().ok()?)?;
        Some((Conversion::new(relation, self.origin), version))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 78.125 MHz: a tick is 12.8 ns.
    const TICK_KHZ: u64 = 78_125;

    fn conversion(khz: u64, mask: u64, raw: u64) -> Conversion {
        Conversion { raw, at_ns: 5_000, mask, rate: Rate::nominal(khz) }
    }

    #[test]
    fn ticks_of_12_8_ns_become_nanoseconds() {
        let conversion = conversion(TICK_KHZ, u64::MAX, 1_000_000);
        let now = conversion.device_now(5_000 + 12_800).expect("a fresh relation");
        assert_eq!(now, 1_001_000);
        assert_eq!(conversion.since(1_000_000, now), Some(12_800));
        assert_eq!(conversion.since(now.wrapping_sub(78_125_000), now), Some(1_000_000_000), "a second");
        assert_eq!(conversion.since(now - 1, now), Some(13), "12.8 ns, to the nearest");
    }

    #[test]
    fn a_clock_that_wraps_is_followed() {
        let mask = 0xffff_ffff;
        let conversion = conversion(1_000_000, mask, mask - 9);
        let now = conversion.device_now(5_000 + 30).expect("a fresh relation");
        assert_eq!(now, 20);
        assert_eq!(conversion.since(mask - 9, now), Some(30));
        assert_eq!(conversion.since(0xabcd_0000_0000, now), Some(20), "bits that do not count");
    }

    #[test]
    fn timestamps_before_and_after_a_reading_have_a_distance_in_nanoseconds() {
        let relation = ClockRelation::nominal(TICK_KHZ, 0xffff_ffff, 10, Instant::now());
        assert_eq!(relation.ns_to(10 + 1000), Some(12_800));
        assert_eq!(relation.ns_to(10_u64.wrapping_sub(1000)), Some(-12_800), "across the wrap");
        let limit = RELATION_LIFE_NS / 1000 * TICK_KHZ / 1000;
        assert_eq!(relation.ns_to(10 + limit), Some(10_000_000_000));
        assert_eq!((relation.ns_to(11 + limit), relation.ns_to(1 << 31)), (None, None), "too far away");
    }

    #[test]
    fn the_measured_rate_is_used_if_it_is_plausible() {
        let nominal = Rate::nominal(TICK_KHZ);
        let fast = Rate::measured(78_132_812, 1_000_000_000, nominal);
        assert_eq!(times(1_000_000_000, fast.ticks_per_ns), 78_132_812, "100 parts per million more");
        for ticks in [0, 78_000_000, 80_000_000, u64::MAX] {
            assert_eq!(Rate::measured(ticks, 1_000_000_000, nominal), nominal, "{ticks}");
        }
    }

    #[test]
    fn a_later_timestamp_and_an_old_relation_are_recognised() {
        let conversion = conversion(TICK_KHZ, u64::MAX >> 1, 1000);
        assert_eq!(conversion.since(1001, 1000), None);
        assert_eq!(conversion.device_now(5_000 + RELATION_LIFE_NS + 1), None);
        assert_eq!(conversion.device_now(0), Some(1000), "before the relation was read");
    }
}

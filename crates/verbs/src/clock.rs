//! From ticks of a device's clock to nanoseconds and to the time of day.
//!
//! Made by [`Context::clock`](crate::Context::clock) from the device's rate and one reading of both clocks. Nothing here
//! asks the device again, so a conversion drifts with the device's oscillator: make a new one now and then.

use std::time::{Duration, SystemTime};

/// How to read the timestamps of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    khz: u64,
    /// The bits of a timestamp that count: the rest of a reading is undefined, and the count wraps there.
    mask: u64,
    /// One reading of the device's clock, and the system's time at that moment.
    reference: (u64, SystemTime),
}

impl Clock {
    /// `None` without a rate or without bits that count.
    pub(crate) fn new(khz: u64, mask: u64, raw: u64, at: SystemTime) -> Option<Self> {
        (khz != 0 && mask != 0).then_some(Self { khz, mask, reference: (raw & mask, at) })
    }

    /// Ticks per millisecond (`hca_core_clock`).
    pub fn khz(&self) -> u64 {
        self.khz
    }

    /// How long so many ticks are, in nanoseconds, rounded down; the largest number if it does not fit.
    pub fn nanos(&self, ticks: u64) -> u64 {
        u64::try_from(u128::from(ticks) * 1_000_000 / u128::from(self.khz)).unwrap_or(u64::MAX)
    }

    /// From the `earlier` timestamp to the `later` one, across at most one turn of the counter.
    pub fn between(&self, earlier: u64, later: u64) -> Duration {
        Duration::from_nanos(self.nanos(later.wrapping_sub(earlier) & self.mask))
    }

    /// The system's time at a timestamp, which is taken to be less than half a turn of the counter away from when this
    /// conversion was made. `None` outside what [`SystemTime`] can say.
    pub fn system_time(&self, timestamp: u64) -> Option<SystemTime> {
        let (raw, at) = self.reference;
        let ahead = timestamp.wrapping_sub(raw) & self.mask;
        let behind = raw.wrapping_sub(timestamp) & self.mask;
        if ahead <= behind {
            at.checked_add(Duration::from_nanos(self.nanos(ahead)))
        } else {
            at.checked_sub(Duration::from_nanos(self.nanos(behind)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: SystemTime = SystemTime::UNIX_EPOCH;

    fn clock(khz: u64, mask: u64, raw: u64) -> Clock {
        Clock::new(khz, mask, raw, AT + Duration::from_secs(1000)).expect("a rate and bits")
    }

    #[test]
    fn ticks_become_nanoseconds_without_overflow() {
        let clock = clock(156_250, u64::MAX, 0);
        assert_eq!(clock.nanos(156_250_000), 1_000_000_000);
        assert_eq!(clock.nanos(1), 6, "6.4 ns, rounded down");
        assert_eq!(self::clock(1, u64::MAX, 0).nanos(u64::MAX), u64::MAX);
    }

    #[test]
    fn a_counter_that_wraps_is_followed() {
        let clock = clock(1_000_000, 0xffff, 0xfff0);
        assert_eq!(clock.between(0xfff0, 0x0010), Duration::from_nanos(0x20));
        let made = AT + Duration::from_secs(1000);
        assert_eq!(clock.system_time(0x0010), Some(made + Duration::from_nanos(0x20)));
        assert_eq!(clock.system_time(0xffe0), Some(made - Duration::from_nanos(0x10)));
        assert_eq!(clock.system_time(0xabcd_fff0), Some(made), "bits that do not count");
    }

    #[test]
    fn a_clock_without_a_rate_is_none() {
        assert!(Clock::new(0, u64::MAX, 5, AT).is_none() && Clock::new(5, 0, 5, AT).is_none());
    }
}

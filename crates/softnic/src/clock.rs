//! The device's clock: UTC in nanoseconds, and the ticks that a personality makes of it. Read once per burst,
//! and by `query_rt_values`.

use std::any::Any;

use rustix::time::{ClockId, clock_gettime};

use crate::SoftNicError;

pub use crate::personality::ClockRules;

/// The place from which clients read the clock of the device without a call: a front end brings it, and the
/// engine writes it after each pass.
pub trait ClockView: Any + Send + Sync {
    /// Shows the time, in nanoseconds since 1970. Called by one thread at a time.
    fn update(&self, now_ns: u64);
}

/// The fastest clock: its ticks are the nanoseconds of the system's.
pub(crate) const MAX_KILOHERTZ: u64 = 1_000_000;

/// Refuses a rate that the clock behind raw timestamps cannot have. [`crate::OwnedNic::create_with_clock`]
/// makes the same check.
///
/// # Errors
/// The rate is 0 or above 1 GHz.
pub fn check_rate(kilohertz: u64) -> Result<(), SoftNicError> {
    if (1..=MAX_KILOHERTZ).contains(&kilohertz) { Ok(()) } else { Err(SoftNicError::Clock { kilohertz }) }
}

/// Now, in nanoseconds since 1970.
#[must_use]
pub fn now_ns() -> u64 {
    read_ns(ClockId::Realtime)
}

/// Now on a clock that cannot be set, for periods.
pub(crate) fn steady_ns() -> u64 {
    read_ns(ClockId::Monotonic)
}

fn read_ns(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.wrapping_mul(1_000_000_000).wrapping_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}

impl ClockRules {
    /// The raw clock at a time: it ticks from 1970, and starts again when it has no more bits.
    #[inline]
    #[must_use]
    pub fn ticks(&self, time_ns: u64) -> u64 {
        if self.kilohertz == MAX_KILOHERTZ {
            return time_ns & self.mask;
        }
        // Seconds apart from the rest, so that neither product leaves 64 bits for some centuries.
        let (seconds, rest_ns) = (time_ns / 1_000_000_000, time_ns % 1_000_000_000);
        let ticks = seconds
            .wrapping_mul(self.kilohertz * 1_000)
            .wrapping_add(rest_ns * self.kilohertz / MAX_KILOHERTZ);
        ticks & self.mask
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_match_the_frequency() {
        let clock = ClockRules { kilohertz: 156_250, mask: u64::MAX };
        assert_eq!(clock.ticks(0), 0);
        assert_eq!(clock.ticks(64), 10);
        assert_eq!(clock.ticks(1_999_999_999), 312_499_999);
        let second = 1_700_000_000_000_000_000;
        assert_eq!(clock.ticks(second + 1_000_000_000) - clock.ticks(second), 156_250_000);
    }

    #[test]
    fn a_narrow_clock_starts_again() {
        let clock = ClockRules { kilohertz: 427_000, mask: 0xffff_ffff_ffff };
        assert!(clock.ticks(u64::MAX) <= clock.mask);
        let around_ns = (clock.mask / 427_000 + 1) * MAX_KILOHERTZ;
        assert!(clock.ticks(around_ns) < 427_000, "{}", clock.ticks(around_ns));
    }

    #[test]
    fn nanoseconds_are_ticks_where_the_clock_counts_them() {
        let clock = ClockRules { kilohertz: 1_000_000, mask: u64::MAX };
        assert_eq!(clock.ticks(u64::MAX), u64::MAX);
    }
}

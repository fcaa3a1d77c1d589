//! The device's clock: UTC in nanoseconds. Read once per burst, and by `query_rt_values`.

use rustix::time::{ClockId, clock_gettime};

/// `hca_core_clock`: a tick is a nanosecond.
pub(crate) const KILOHERTZ: u64 = 1_000_000;

/// Now, in ticks.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.wrapping_mul(1_000_000_000).wrapping_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}

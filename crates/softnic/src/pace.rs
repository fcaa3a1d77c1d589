//! How fast a queue pair may send (`ibv_modify_qp_rate_limit`, IBV_QP_RATE_LIMIT).
//!
//! A leaky bucket in time: every byte moves the moment of the next send on. The engine asks before a request
//! and reports what was sent; a request that is not due stays in its ring. Times are those of a clock that
//! cannot be set: one that was set back would hold a queue pair up for as long.

/// The time whose sends an idle queue pair may have saved up by default: somewhat more than the engine sleeps
/// while sends wait.
const DEFAULT_BURST_NS: u64 = 100_000;

const NS_PER_S: u64 = 1_000_000_000;

/// The rate of one queue pair; none to begin with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    /// 0 is no limit.
    bytes_per_second: u64,
    burst_ns: u64,
    due_ns: u64,
}

impl Pace {
    /// A limit in kilobits per second, 0 for none, and how many bytes may go at once, 0 for the device's
    /// choice.
    pub(crate) fn new(kilobits_per_second: u32, burst_bytes: u32) -> Self {
        let bytes_per_second = u64::from(kilobits_per_second) * 1000 / 8;
        let burst_ns = match burst_bytes {
            0 => DEFAULT_BURST_NS,
            bytes => time_ns(u64::from(bytes), bytes_per_second),
        };
        Self { bytes_per_second, burst_ns, due_ns: 0 }
    }

    /// Whether there is a limit at all: without one the clock is not read.
    #[inline]
    pub(crate) fn is_limited(&self) -> bool {
        self.bytes_per_second != 0
    }

    /// Whether something may be sent now.
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        self.due_ns <= now_ns
    }

    /// Notes what was sent.
    pub(crate) fn sent(&mut self, bytes: u64, now_ns: u64) {
        let from_ns = self.due_ns.max(now_ns.saturating_sub(self.burst_ns));
        self.due_ns = from_ns.saturating_add(time_ns(bytes, self.bytes_per_second));
    }
}

fn time_ns(bytes: u64, bytes_per_second: u64) -> u64 {
    bytes.saturating_mul(NS_PER_S).checked_div(bytes_per_second).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes sent in a second by a sender that always has a kilobyte more.
    fn in_a_second(mut pace: Pace) -> u64 {
        let start_ns = 1_700_000_000 * NS_PER_S;
        let mut sent = 0;
        for step in 0..100_000 {
            let now_ns = start_ns + step * 10_000;
            while pace.is_due(now_ns) {
                pace.sent(1000, now_ns);
                sent += 1000;
            }
        }
        sent
    }

    #[test]
    fn a_rate_is_kept_and_reached() {
        for kilobits in [8_000, 80_000, 800_000] {
            let sent = in_a_second(Pace::new(kilobits, 0));
            let wanted = u64::from(kilobits) * 125;
            assert!((wanted..=wanted + wanted / 100 + 2000).contains(&sent), "{sent} of {wanted}");
        }
    }

    #[test]
    fn a_burst_limits_the_bytes_sent_at_once() {
        let mut pace = Pace::new(8_000, 10_000);
        let mut at_once = 0;
        while pace.is_due(NS_PER_S) {
            pace.sent(1000, NS_PER_S);
            at_once += 1;
        }
        assert_eq!(at_once, 11);
        assert!(pace.is_due(NS_PER_S + 1_000_000), "a kilobyte takes a millisecond");
    }

    #[test]
    fn no_limit_asks_for_nothing() {
        assert!(!Pace::default().is_limited());
        assert!(!Pace::new(0, 5).is_limited());
    }
}

//! How long a test waits for something that must happen.

use std::time::{Duration, Instant};

/// The time that a pause of the whole machine counts for.
const LONGEST_GAP: Duration = Duration::from_secs(1);

/// A limit of time for a test that looks for something again and again. A virtual machine may be stopped for
/// a minute while its clock goes on: then nothing that the test waits for can happen, and a limit by the
/// clock would be over at once. So a longer time between two looks counts as a second.
///
/// ```
/// use std::time::Duration;
///
/// let mut patience = test_support::Patience::new(Duration::from_secs(30));
/// while std::env::args().next().is_none() {
///     assert!(!patience.is_over(), "no arguments");
///     std::thread::sleep(Duration::from_millis(20));
/// }
/// ```
#[derive(Debug)]
pub struct Patience {
    left: Duration,
    looked: Instant,
}

impl Patience {
    /// From now on.
    #[must_use]
    pub fn new(limit: Duration) -> Self {
        Self { left: limit, looked: Instant::now() }
    }

    /// To be called after each look.
    #[must_use]
    pub fn is_over(&mut self) -> bool {
        self.is_over_at(Instant::now())
    }

    fn is_over_at(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(std::mem::replace(&mut self.looked, now));
        self.left = self.left.saturating_sub(passed.min(LONGEST_GAP));
        self.left.is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_of_the_machine_does_not_use_it_up() {
        let mut patience = Patience::new(Duration::from_secs(60));
        let mut now = patience.looked + Duration::from_secs(600);
        assert!(!patience.is_over_at(now));
        let looks = (0..).take_while(|_| {
            now += Duration::from_millis(50);
            !patience.is_over_at(now)
        });
        assert_eq!(looks.count(), 59 * 20 - 1);
    }
}

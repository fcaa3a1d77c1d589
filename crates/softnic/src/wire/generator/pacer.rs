//! A token bucket: how many frames are due by now.
//!
//! The generator asks it once per burst with the time since its first burst. It reads no clock itself.

use crate::wire::{BURST_FRAMES, Rate};

const NS_PER_S: u128 = 1_000_000_000;

/// What an engine that was held up may catch up on: this part of a second, and at least a burst.
const BACKLOG_PER_S: u64 = 100;

/// Frames by rate.
#[derive(Clone, Debug)]
pub(super) struct Pacer {
    rate: Rate,
    /// Frames granted, or given up because the engine did not come for them in time.
    granted: u64,
}

impl Pacer {
    pub(super) fn new(rate: Rate) -> Self {
        Self { rate, granted: 0 }
    }

    pub(super) fn needs_clock(&self) -> bool {
        self.rate != Rate::FlatOut
    }

    /// How many of `wanted` frames may go out `elapsed_ns` after the start.
    pub(super) fn grant(&mut self, elapsed_ns: u128, wanted: usize) -> usize {
        let Rate::FramesPerSecond(rate) = self.rate else { return wanted };
        let due = u64::try_from(elapsed_ns * u128::from(rate) / NS_PER_S).unwrap_or(u64::MAX);
        let backlog = (rate / BACKLOG_PER_S).max(BURST_FRAMES as u64);
        self.granted = self.granted.max(due.saturating_sub(backlog));
        let frames = due.saturating_sub(self.granted).min(wanted as u64);
        self.granted += frames;
        frames as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_kept_to_the_frame_over_any_polling_pattern() {
        let mut pacer = Pacer::new(Rate::FramesPerSecond(200_001));
        let mut total = 0;
        for us in 0..1_000_000u128 {
            if us % 7 == 0 || us % 11 == 0 {
                total += pacer.grant(us * 1000, BURST_FRAMES);
            }
        }
        total += pacer.grant(NS_PER_S, BURST_FRAMES);
        assert_eq!(total, 200_001);
    }

    #[test]
    fn what_was_missed_for_long_is_given_up() {
        let mut pacer = Pacer::new(Rate::FramesPerSecond(1_000_000));
        let mut total = 0;
        loop {
            match pacer.grant(60 * NS_PER_S, BURST_FRAMES) {
                0 => break,
                frames => total += frames,
            }
        }
        assert_eq!(total, 10_000);
        assert_eq!(Pacer::new(Rate::FlatOut).grant(0, 64), 64);
    }
}

//! How many packets of a rule workers let through to its sinks: one in N, and at most so many per second.

use std::fmt;
use std::ops::RangeInclusive;

use serde::Serialize;

/// The part of a rule's packets that is let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Policing {
    /// One of this many packets is let through; 1: all of them.
    pub sample: u32,
    /// The limit on the packets that the sample leaves.
    pub limit: Option<RateLimit>,
}

impl Default for Policing {
    fn default() -> Self {
        Self { sample: 1, limit: None }
    }
}

impl Policing {
    /// Whether every packet is let through.
    #[must_use]
    pub fn passes_all(&self) -> bool {
        self.sample <= 1 && self.limit.is_none()
    }

    /// An action with what is added to it: `deliver to dns, 1 in 100, at most 10k/s`.
    #[must_use]
    pub fn describe(&self, action: &str) -> String {
        if self.passes_all() { action.to_owned() } else { format!("{action}, {self}") }
    }
}

/// `1 in 100, at most 10k/s`
impl fmt::Display for Policing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.sample, self.limit) {
            (0 | 1, None) => f.write_str("all"),
            (0 | 1, Some(limit)) => write!(f, "at most {limit}"),
            (sample, None) => write!(f, "1 in {sample}"),
            (sample, Some(limit)) => write!(f, "1 in {sample}, at most {limit}"),
        }
    }
}

/// The most packets of a rule that pass per second, over all its workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct RateLimit {
    /// On average.
    pub packets_per_second: u32,
    /// How many packets may pass at once after a pause.
    pub burst_packets: u32,
}

impl RateLimit {
    /// The rates and bursts that there are.
    pub const PACKETS: RangeInclusive<u32> = 1..=1_000_000_000;
    /// A burst is at most what the rate lets through in 208 days: workers count time in parts of nanoseconds,
    /// of which `u64` has room for so many.
    pub const LONGEST_BURST_SECONDS: u64 = 208 * 24 * 3600;
    /// The burst of a low rate that has none of its own.
    const LEAST_BURST: u32 = 64;

    /// A limit with the usual burst: the packets of a tenth of a second, but at least 64.
    #[must_use]
    pub fn of(packets_per_second: u32) -> Self {
        let burst_packets = (packets_per_second / 10).max(Self::LEAST_BURST);
        Self { packets_per_second, burst_packets }
    }
}

/// The text form of a policy: `10k/s`.
impl fmt::Display for RateLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.packets_per_second;
        let units = [(1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")];
        match units.into_iter().find(|(unit, _)| rate > 0 && rate.is_multiple_of(*unit)) {
            Some((unit, name)) => write!(f, "{}{name}/s", rate / unit),
            None => write!(f, "{rate}/s"),
        }
    }
}

/// The most packets of a rule that one worker lets through.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LimitPart {
    /// On average; the parts of the rule's workers add up to the limit.
    pub packets_per_second: f64,
    /// How many packets may pass at once after a pause: rounded up to whole packets.
    pub burst_packets: u32,
}

/// `1250/s, burst 125`, or below one packet per second `1 in 8 s, burst 8`
impl fmt::Display for LimitPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { packets_per_second: rate, burst_packets } = *self;
        let decimals = |value: f64| usize::from(value.fract() != 0.0);
        match rate {
            // A part is at most the limit, which is a u32.
            _ if rate >= 1.0 && rate.fract() == 0.0 => {
                write!(f, "{}", RateLimit { packets_per_second: rate as u32, burst_packets })?;
            }
            _ if rate >= 1.0 => write!(f, "{rate:.1}/s")?,
            _ => write!(f, "1 in {:.*} s", decimals(rate.recip()), rate.recip())?,
        }
        write!(f, ", burst {burst_packets}")
    }
}

/// A worker's share of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitShare {
    /// The worker's parts.
    pub parts: u32,
    /// All parts.
    pub of: u32,
}

impl LimitShare {
    /// The worker's part of a limit.
    #[must_use]
    pub fn of_limit(self, limit: RateLimit) -> LimitPart {
        let of = self.of.max(1);
        let burst = (u64::from(limit.burst_packets) * u64::from(self.parts)).div_ceil(of.into());
        LimitPart {
            packets_per_second: f64::from(limit.packets_per_second) * f64::from(self.parts) / f64::from(of),
            burst_packets: u32::try_from(burst).unwrap_or(limit.burst_packets).max(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_written_as_in_a_policy() {
        let text = |rate| RateLimit::of(rate).to_string();
        assert_eq!(
            [1, 1500, 10_000, 3_000_000, 1_000_000_000].map(text),
            ["1/s", "1500/s", "10k/s", "3M/s", "1G/s"]
        );
        let policing = Policing { sample: 100, limit: Some(RateLimit::of(10_000)) };
        assert_eq!(policing.describe("deliver to dns"), "deliver to dns, 1 in 100, at most 10k/s");
        assert_eq!(Policing::default().describe("drop"), "drop");
    }
}

//! The figures of all packets that a sample gives, with their errors.

use serde::Serialize;

/// The distance of the ends of a 95 % interval from its middle, in standard deviations of a normal
/// distribution.
const DEVIATIONS: f64 = 1.959_964;
/// The rule of three: what is met in none of `n` packets has with 95 % a share below `3 / n` (Hanley and
/// Lippman-Hand, "If nothing goes wrong, is everything all right?", 1983).
pub(super) const RULE_OF_THREE: f64 = 3.0;

/// A figure with the ends of its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Estimate {
    pub(super) value: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Estimate {
    /// The share of all packets, from 0 to 1, of which `part` are among the `whole` of a sample. The interval
    /// is the score interval (Wilson, 1927), which is right for small parts, too; without a part it ends by
    /// the rule of three. `None`: the sample is empty.
    pub(super) fn of_share(part: u64, whole: u64) -> Option<Self> {
        if whole == 0 {
            return None;
        }
        let (size, value) = (whole as f64, part as f64 / whole as f64);
        if part == 0 {
            return Some(Self { value, low: 0.0, high: (RULE_OF_THREE / size).min(1.0) });
        }
        let square = DEVIATIONS * DEVIATIONS;
        let middle = (value + square / (2.0 * size)) / (1.0 + square / size);
        let variance = value * (1.0 - value) / size + square / (4.0 * size * size);
        let half = DEVIATIONS * variance.sqrt() / (1.0 + square / size);
        Some(Self { value, low: (middle - half).max(0.0), high: (middle + half).min(1.0) })
    }

    /// The figure for this many packets.
    pub(super) fn times(self, packets: f64) -> Self {
        Self { value: self.value * packets, low: self.low * packets, high: self.high * packets }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_those_of_wilson() {
        let is_near = |found: f64, expected: f64| (found - expected).abs() < 5e-5;
        // Newcombe, "Two-sided confidence intervals for the single proportion", 1998, table I, method 3.
        for (part, whole, low, high) in
            [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (1, 29, 0.0061, 0.1718)]
        {
            let found = Estimate::of_share(part, whole).expect("packets");
            assert!(is_near(found.low, low) && is_near(found.high, high), "{part} of {whole}: {found:?}");
        }
        let all = Estimate::of_share(20, 20).expect("packets");
        assert!(all.high == 1.0 && is_near(all.low, 0.8389), "{all:?}");
    }

    #[test]
    fn nothing_met_is_below_three_packets() {
        assert_eq!(Estimate::of_share(0, 600), Some(Estimate { value: 0.0, low: 0.0, high: 0.005 }));
        assert_eq!(Estimate::of_share(0, 2).map(|share| share.high), Some(1.0));
        assert_eq!(Estimate::of_share(0, 0), None);
        let rate = Estimate { value: 0.5, low: 0.25, high: 0.75 }.times(1000.0);
        assert_eq!(rate, Estimate { value: 500.0, low: 250.0, high: 750.0 });
    }
}

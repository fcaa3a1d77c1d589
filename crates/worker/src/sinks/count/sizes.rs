//! Packets by size, in the classes of RFC 2819 (`etherStatsPkts64Octets` to `etherStatsPkts1024to1518Octets`)
//! and two for jumbo frames. As there, a size includes the four octets of the frame check sequence, which
//! workers do not receive.

use crate::counter::Counter;

/// The frame check sequence.
const FCS_BYTES: usize = 4;
/// The largest size of each class but the last, which has no bound. 9018: an MTU of 9000 bytes.
const BOUNDS: [u64; CLASSES - 1] = [64, 127, 255, 511, 1023, 1518, 9018];
const CLASSES: usize = 8;

/// The number of packets of each size class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketSizes {
    /// The largest size of each class, with the frame check sequence, and its packets.
    pub classes: [(u64, u64); CLASSES - 1],
    /// Larger packets.
    pub larger: u64,
    /// The sum of all sizes.
    pub bytes: u64,
}

/// Counters of one worker.
#[derive(Debug, Default)]
pub(super) struct SizeCounters {
    classes: [Counter; CLASSES],
    bytes: Counter,
}

/// The packets of one batch.
#[derive(Default)]
pub(super) struct BatchSizes {
    classes: [u64; CLASSES],
}

/// The class of a frame of this length.
#[inline]
fn class_of(frame_bytes: usize) -> usize {
    let octets = frame_bytes + FCS_BYTES;
    match octets {
        0..=64 => 0,
        // 65 to 127 is class 1, and so on in powers of two.
        65..=1023 => octets.ilog2() as usize - 5,
        1024..=1518 => 5,
        1519..=9018 => 6,
        _ => 7,
    }
}

impl BatchSizes {
    #[inline]
    pub(super) fn add(&mut self, frame_bytes: usize) {
        self.classes[class_of(frame_bytes)] += 1;
    }
}

impl SizeCounters {
    /// Adds a batch of so many packets and bytes; only the worker may call this.
    #[inline]
    pub(super) fn add(&self, batch: &BatchSizes, packets: u64, bytes: u64) {
        for (counter, count) in self.classes.iter().zip(batch.classes) {
            if count > 0 {
                counter.add(count);
            }
        }
        self.bytes.add(bytes + packets * FCS_BYTES as u64);
    }
}

impl PacketSizes {
    /// The sum over all workers.
    pub(super) fn sum<'c>(workers: impl Iterator<Item = &'c SizeCounters>) -> Self {
        let mut sum = Self { classes: BOUNDS.map(|bound| (bound, 0)), larger: 0, bytes: 0 };
        for counters in workers {
            let counts = sum.classes.iter_mut().map(|(_, count)| count).chain([&mut sum.larger]);
            counts.zip(&counters.classes).for_each(|(sum, counter)| *sum += counter.read());
            sum.bytes += counters.bytes.read();
        }
        sum
    }

    /// All packets.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.classes.iter().map(|(_, count)| count).sum::<u64>() + self.larger
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_is_in_the_class_of_the_first_bound_that_holds_it() {
        for frame_bytes in 0..10_000 {
            let octets = (frame_bytes + FCS_BYTES) as u64;
            let expected = BOUNDS.iter().position(|bound| octets <= *bound).unwrap_or(CLASSES - 1);
            assert_eq!(class_of(frame_bytes), expected, "{frame_bytes}");
        }
    }

    #[test]
    fn classes_of_workers_are_added_up() {
        let counters = [SizeCounters::default(), SizeCounters::default()];
        let mut batch = BatchSizes::default();
        [60, 60, 1514, 9100].into_iter().for_each(|bytes| batch.add(bytes));
        counters.iter().for_each(|counters| counters.add(&batch, 4, 60 + 60 + 1514 + 9100));
        let sum = PacketSizes::sum(counters.iter());
        assert_eq!((sum.classes[0], sum.classes[5], sum.larger), ((64, 4), (1518, 2), 2));
        assert_eq!((sum.packets(), sum.bytes), (8, 2 * (64 + 64 + 1518 + 9104)));
    }
}

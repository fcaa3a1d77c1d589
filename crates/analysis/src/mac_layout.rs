//! MAC addresses as numbers in which masked addresses are intervals. Masks need not be prefixes, so the bits
//! are put in an order in which they are, which is possible if of any two masks one includes the other.
//! Otherwise the bits are split into groups that each mask contains whole or not at all, and each group is a
//! dimension of its own: there a masked address is one value or all. Both ways are exact.

use packet::{MacAddr, mac_number};
use program::MaskedMac;

const BITS: u32 = 48;

/// How the bits of one MAC field are laid out on dimensions.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    /// For each dimension its bits, the most significant first, as bit numbers of the address.
    pub(super) parts: Vec<Vec<u32>>,
}

impl Layout {
    /// For these masks.
    pub(super) fn of(mut masks: Vec<u64>) -> Self {
        masks.push(number(MacAddr::BROADCAST));
        masks.sort_unstable_by_key(|mask| (mask.count_ones(), *mask));
        masks.dedup();
        let is_chain = masks.windows(2).all(|pair| pair[0] & !pair[1] == 0);
        let mut bits: Vec<u32> = (0..BITS).rev().collect();
        if is_chain {
            // The bits of the shortest mask come first.
            bits.sort_by_key(|bit| masks.iter().position(|mask| mask >> bit & 1 == 1));
            return Self { parts: vec![bits] };
        }
        let taken_by = |bit: u32| masks.iter().map(|mask| mask >> bit & 1 == 1).collect::<Vec<_>>();
        let mut parts: Vec<(Vec<bool>, Vec<u32>)> = Vec::new();
        for bit in bits {
            let masks = taken_by(bit);
            match parts.iter_mut().find(|(of, _)| *of == masks) {
                Some((_, bits)) => bits.push(bit),
                None => parts.push((masks, vec![bit])),
            }
        }
        Self { parts: parts.into_iter().map(|(_, bits)| bits).collect() }
    }

    /// The bits of a part, in its order, as a number.
    pub(super) fn gather(&self, part: usize, address: u64) -> u64 {
        let bits = self.parts.get(part).map_or(&[][..], |bits| bits);
        bits.iter().fold(0, |number, bit| number << 1 | address >> bit & 1)
    }

    /// The address with those bits.
    pub(super) fn scatter(&self, part: usize, number: u64) -> u64 {
        let bits = self.parts.get(part).map_or(&[][..], |bits| bits);
        bits.iter().rev().enumerate().fold(0, |address, (place, bit)| address | (number >> place & 1) << bit)
    }

    /// The largest number of a part.
    pub(super) fn most(&self, part: usize) -> u64 {
        self.parts.get(part).map_or(0, |bits| (1 << bits.len()) - 1)
    }

    /// The numbers of each part that a masked address matches.
    pub(super) fn intervals(&self, mac: &MaskedMac) -> Vec<(u64, u64)> {
        let (value, mask) = (number(mac.value) & number(mac.mask), number(mac.mask));
        let interval = |part| {
            let low = self.gather(part, value);
            (low, low | self.most(part) & !self.gather(part, mask))
        };
        (0..self.parts.len()).map(interval).collect()
    }
}

fn number(address: MacAddr) -> u64 {
    mac_number(address) as u64
}

#[cfg(test)]
mod tests {
    use packet::mac_address;

    use super::*;

    fn masked(value: u64, mask: u64) -> MaskedMac {
        MaskedMac { value: mac_address(value), mask: mac_address(mask) }
    }

    #[test]
    fn the_group_bit_and_vendors_are_prefixes_of_one_axis() {
        let layout = Layout::of(vec![1 << 40, 0xffff_ff00_0000]);
        assert_eq!(layout.parts.len(), 1);
        let multicast = layout.intervals(&masked(1 << 40, 1 << 40));
        assert_eq!(multicast, [(1 << 47, (1 << 48) - 1)]);
        for address in [0u64, 1 << 40, 0x0200_5e00_0001, 0xffff_ffff_ffff] {
            let number = layout.gather(0, address);
            assert_eq!(layout.scatter(0, number), address);
            assert_eq!((multicast[0].0..=multicast[0].1).contains(&number), address >> 40 & 1 == 1);
        }
    }

    #[test]
    fn masks_that_cross_fall_apart_into_groups() {
        let layout = Layout::of(vec![0xff00_0000_0000, 0x0000_0000_00ff]);
        assert_eq!(layout.parts.len(), 3);
        let (ends, address) = (masked(0x12, 0xff), 0x0000_0000_0012);
        for (part, (low, high)) in layout.intervals(&ends).into_iter().enumerate() {
            assert!((low..=high).contains(&layout.gather(part, address)));
            assert!(low == high || (low, high) == (0, layout.most(part)), "whole or one value");
        }
        let back: u64 = (0..3).map(|part| layout.scatter(part, layout.gather(part, 0x1234_5678_9abc))).sum();
        assert_eq!(back, 0x1234_5678_9abc);
    }
}

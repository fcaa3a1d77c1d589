//! The masks of flows as a device counts them, and how flows of one mask are split into flows of another one.

use crate::cube::{
    Cube, DST_HIGH, DST_IPV4, DST_LOW, DST_PORT, Image, SRC_HIGH, SRC_LOW, SRC_PORT, TOS, TTL, WORDS,
};
use crate::mask_index::ByMask;
use crate::rank::lower::Candidate;
use crate::specs::Reading;

/// The most bits by which two masks may differ: a flow becomes two to that power.
pub(crate) const MAX_BITS: u32 = 12;

/// The mask of a flow as a device counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct MaskKey {
    /// The bits that the device compares ([`Reading::as_matched`]).
    pub(crate) mask: Image,
    /// Whether the flow matches what the host sends: the device has other tables for these.
    pub(crate) is_sent: bool,
    /// Whether the flow has an Ethernet spec because its address is multicast.
    pub(crate) is_multicast: bool,
}

impl MaskKey {
    pub(crate) fn of(candidate: &Candidate, reading: Reading) -> Self {
        let Candidate { cube, .. } = candidate;
        Self {
            mask: reading.as_matched(cube).mask,
            is_sent: candidate.is_sent(),
            is_multicast: reading.has_multicast_spec(cube),
        }
    }

    /// The number of bits that are compared.
    pub(crate) fn bits(&self) -> u32 {
        self.mask.iter().map(|word| word.count_ones()).sum()
    }

    /// The properties that have to be equal for flows of one mask to be split into those of another one.
    pub(crate) fn family(&self, splittable: &Image, reading: Reading) -> Vec<u64> {
        let fixed = fixed_bits(&self.mask, splittable, reading);
        fixed.into_iter().chain([self.is_sent, self.is_multicast].map(u64::from)).collect()
    }
}

/// The number of flows of each mask.
pub(crate) fn flows_by_mask<'c>(
    flows: impl Iterator<Item = &'c Candidate>,
    reading: Reading,
) -> ByMask<MaskKey, usize> {
    let mut masks = ByMask::default();
    flows.for_each(|flow| *masks.entry(MaskKey::of(flow, reading)).or_default() += 1);
    masks
}

/// The bits that have to be equal for flows of one mask to be split into those of another one. Where
/// multicast addresses have one more spec, an address that may be multicast or not is not split: its parts
/// would have different specs.
fn fixed_bits(mask: &Image, splittable: &Image, reading: Reading) -> Image {
    let address = |mask: u64| Cube::ANY.with(DST_IPV4, 0, mask).map_or([0; WORDS], |cube| cube.mask);
    let (top, all) = (address(0xf << 28), address(DST_IPV4.ones()));
    let is_whole = (0..WORDS).all(|word| top[word] & !mask[word] == 0);
    let kept = if is_whole || !reading.marks_multicast() { [0; WORDS] } else { all };
    std::array::from_fn(|word| mask[word] & (!splittable[word] | kept[word]))
}

/// Bits by which a flow may be split: those of numbers that imply nothing about other fields.
pub(crate) fn splittable() -> Image {
    let fields = [SRC_PORT, DST_PORT, TOS, TTL, DST_HIGH, SRC_HIGH, DST_LOW, SRC_LOW];
    fields
        .into_iter()
        .filter_map(|field| Cube::ANY.with(field, 0, field.ones()))
        .fold([0; WORDS], |all, cube| std::array::from_fn(|i| all[i] | cube.mask[i]))
}

/// The cube split by all bits that the mask has beyond its own.
pub(crate) fn parts(cube: &Cube, mask: &Image) -> Vec<Cube> {
    let mut parts = vec![*cube];
    for (word, mask) in mask.iter().enumerate() {
        let mut extra = mask & !cube.mask[word];
        while extra != 0 {
            let bit = 1u64 << extra.trailing_zeros();
            extra &= !bit;
            for at in 0..parts.len() {
                parts[at].mask[word] |= bit;
                let mut other = parts[at];
                other.value[word] |= bit;
                parts.push(other);
            }
        }
    }
    parts
}

//! Which bytes of the image the rules of a family look at, and the image cut down to those bytes.
//!
//! Rules about IPv4 mask some 14 of the 64 bytes. Two words hold them, so a rule in a leaf takes 32 bytes and
//! not 128, and one window of 64 bits covers most of what can tell rules apart. Nothing is lost: a rule whose
//! mask has a bit outside the view is not put into the tree.

use super::super::key::MatchKey;

/// Words of an image, cut down or not.
pub(super) const WORDS: usize = 8;
/// Bytes of an image.
const BYTES: usize = 8 * WORDS;
/// An image cut down to a view; words beyond those of the view are zero.
pub(super) type Words = [u64; WORDS];

/// The words of the image, addresses first: both IPv4 addresses come to be in one word.
const ORDER: [usize; WORDS] = [1, 2, 3, 4, 0, 5, 6, 7];

/// The bytes that are kept, one bit each: byte `b` of word `w` is bit `8 * w + b`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bytes(u64);

impl Bytes {
    /// The bytes in which a mask has a bit.
    pub(super) fn of(mask: &MatchKey) -> Self {
        let mut bytes = 0;
        for (at, word) in mask.0.iter().enumerate() {
            for (byte, bits) in word.to_le_bytes().into_iter().enumerate() {
                bytes |= u64::from(bits != 0) << (8 * at + byte);
            }
        }
        Self(bytes)
    }

    pub(super) fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) fn contains(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }
}

/// How an image is cut down.
#[derive(Clone, Debug)]
pub(super) struct View {
    bytes: Bytes,
    places: u64,
    /// Which byte of the image comes to be at each place; the first [`kept`](Self::kept) places are in use.
    source: [u8; BYTES],
}

impl Default for View {
    fn default() -> Self {
        Self::new(Bytes::default())
    }
}

impl View {
    pub(super) fn new(bytes: Bytes) -> Self {
        let mut source = [u8::MAX; BYTES];
        let kept = ORDER.into_iter().flat_map(|word| 8 * word..8 * word + 8);
        let kept = kept.filter(|byte| bytes.0 >> byte & 1 != 0);
        for (place, byte) in source.iter_mut().zip(kept) {
            *place = byte as u8;
        }
        Self { bytes, places: u64::MAX.checked_shr(64 - bytes.0.count_ones()).unwrap_or(0), source }
    }

    pub(super) fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// How many bytes are kept.
    #[inline]
    pub(super) fn kept(&self) -> usize {
        self.bytes.0.count_ones() as usize
    }

    /// The words of a cut image that are in use.
    #[inline]
    pub(super) fn words(&self) -> usize {
        self.kept().div_ceil(8)
    }

    /// The places that are in use, one bit each.
    #[inline]
    pub(super) fn places(&self) -> u64 {
        self.places
    }

    /// Pairs of words that are in use.
    #[inline]
    pub(super) fn quarters(&self) -> usize {
        self.words().div_ceil(2)
    }

    /// Which byte of the image comes to be at each place; 255 where none does.
    #[inline]
    pub(super) fn source(&self) -> &[u8; BYTES] {
        &self.source
    }

    /// The image of a frame, the values of a rule or its mask, cut down.
    #[inline(always)]
    pub(super) fn cut(&self, image: &MatchKey) -> Words {
        let mut words = [0u64; WORDS];
        for (place, from) in self.source[..self.kept()].iter().enumerate() {
            let byte = image.0[usize::from(from / 8) % WORDS] >> (from % 8 * 8) & 0xff;
            words[place / 8] |= byte << (place % 8 * 8);
        }
        words
    }

    /// The image that was cut down, whose other bytes were zero.
    pub(super) fn restored(&self, words: &Words) -> MatchKey {
        let mut image = MatchKey::default();
        for (place, to) in self.source[..self.kept()].iter().enumerate() {
            let byte = words[place / 8] >> (place % 8 * 8) & 0xff;
            image.0[usize::from(to / 8) % WORDS] |= byte << (to % 8 * 8);
        }
        image
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kept_byte_is_in_one_place_of_its_own() {
        let patterns =
            [0, u64::MAX, 0xf05a_0000_ff00_810f, 0x0123_4567_89ab_cdef, 1 << 63, 0x00ff_ff00_0ff0_0001];
        for bytes in patterns {
            let view = View::new(Bytes(bytes));
            let mut seen = [0; WORDS];
            for byte in 0..64 {
                let mut image = MatchKey::default();
                image.0[byte / 8] = 0xa5 << (8 * (byte % 8));
                let cut = view.cut(&image);
                let kept = if bytes >> byte & 1 == 1 { image } else { MatchKey::default() };
                assert_eq!(view.restored(&cut), kept, "byte {byte} of {bytes:#x}");
                let bits: u32 = cut.iter().map(|word| word.count_ones()).sum();
                assert_eq!(bits, if bytes >> byte & 1 == 1 { 4 } else { 0 }, "byte {byte} of {bytes:#x}");
                for (seen, word) in seen.iter_mut().zip(cut) {
                    assert_eq!(*seen & word, 0, "byte {byte} of {bytes:#x}");
                    *seen |= word;
                }
            }
            assert_eq!(view.words(), bytes.count_ones().div_ceil(8) as usize);
        }
    }
}

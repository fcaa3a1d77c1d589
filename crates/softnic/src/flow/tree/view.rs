//! Which bytes of the image the rules of a family look at, and the image cut down to those bytes.
//!
//! Rules about IPv4 mask some 14 of the 64 bytes. Two words hold them, so a rule in a leaf takes 32 bytes and not 128, and
//! one window of 64 bits covers most of what can tell rules apart. Nothing is lost: a rule whose mask has a bit outside
//! the view is not put into the tree.

use super::super::key::MatchKey;

/// Words of an image, cut down or not.
pub(super) const WORDS: usize = 8;
/// An image cut down to a view; words beyond those of the view are zero.
pub(super) type Words = [u64; WORDS];

/// The words of the image, addresses first: both IPv4 addresses come to be in one word.
const ORDER: [usize; WORDS] = [1, 2, 3, 4, 0, 5, 6, 7];

/// One piece of a word of the image, in its place in a word of the view.
#[derive(Clone, Copy, Debug)]
struct Piece {
    from: usize,
    rotate: u32,
    mask: u64,
}

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
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    bytes: Bytes,
    pieces: Vec<Piece>,
    /// For each word of the view, how many pieces it and those before it have.
    ends: Vec<usize>,
}

impl View {
    pub(super) fn new(bytes: Bytes) -> Self {
        let mut view = Self { bytes, pieces: Vec::new(), ends: Vec::new() };
        let kept = ORDER.into_iter().flat_map(|word| 8 * word..8 * word + 8);
        let kept = kept.filter(|byte| bytes.0 >> byte & 1 != 0);
        for (place, byte) in kept.enumerate() {
            if place % 8 == 0 {
                view.ends.push(view.pieces.len());
            }
            let (from, rotate) = (byte / 8, (8 * (place % 8 + 8 - byte % 8) % 64) as u32);
            let mask = 0xffu64 << (8 * (place % 8));
            let first = view.ends.iter().rev().nth(1).copied().unwrap_or(0);
            match view.pieces[first..].iter_mut().find(|piece| piece.from == from && piece.rotate == rotate) {
                Some(piece) => piece.mask |= mask,
                None => view.pieces.push(Piece { from, rotate, mask }),
            }
            if let Some(end) = view.ends.last_mut() {
                *end = view.pieces.len();
            }
        }
        view
    }

    pub(super) fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// The words of a cut image that are in use.
    #[inline]
    pub(super) fn words(&self) -> usize {
        self.ends.len()
    }

    /// The image of a frame, the values of a rule or its mask, cut down.
    #[inline(always)]
    pub(super) fn cut(&self, image: &MatchKey) -> Words {
        let mut words = [0; WORDS];
        let mut first = 0;
        for (word, end) in words.iter_mut().zip(&self.ends) {
            for piece in &self.pieces[first..*end] {
                *word |= image.0[piece.from % WORDS].rotate_left(piece.rotate) & piece.mask;
            }
            first = *end;
        }
        words
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

//! The match image: everything of one packet's headers that a flow spec can name, as the eight words of the
//! packed image (`packet::cube`). Tunnels have more words around it ([`super::deep`]).
//!
//! A frame's [`FlowKey`] is turned into a [`MatchKey`] once; after that, matching a rule is eight ANDs and
//! compares, and hashing under a mask touches only words. The provider writes the specs of a flow into a
//! [`Matcher`] of that shape.

use std::hash::{Hash, Hasher};

use packet::cube::{self, LEVEL_WORDS as WORDS, Slot};
use packet::{FlowKey, Layers};

/// The layers that a flow spec can ask for: those of [`LAYERS`] in the first word, and a C-VLAN tag in the
/// last, the only tag that `ibv_flow_eth_filter.vlan_tag` is about (802.1Q 9.6).
const LAYER_BITS: u64 = 0xf << 60;
const C_TAG: u64 = 1 << cube::HAS_C_TAG.shift();
const LAYERS: [(Layers, Slot); 4] = [
    (Layers::IPV4, cube::HAS_IPV4),
    (Layers::IPV6, cube::HAS_IPV6),
    (Layers::TCP, cube::HAS_TCP),
    (Layers::UDP, cube::HAS_UDP),
];

/// Odd constants that keep words apart in [`MatchKey::digest`]: the fractional bits of square roots, as in
/// SHA-512.
pub(super) const LANES: [u64; WORDS] = [
    0x6a09_e667_f3bc_c909,
    0xbb67_ae85_84ca_a73b,
    0x3c6e_f372_fe94_f82b,
    0xa54f_f53a_5f1d_36f1,
    0x510e_527f_ade6_82d1,
    0x9b05_688c_2b3e_6c1f,
    0x1f83_d9ab_fb41_bd6b,
    0x5be0_cd19_137e_2179,
];

/// The operations that a tuple space, its shapes and its cache need of an image of a frame, of a rule's
/// values, or of a rule's mask.
pub(super) trait Image: Copy + Default + Eq + Hash + std::fmt::Debug {
    /// Returns the image under a mask.
    fn masked(&self, mask: &Self) -> Self;
    /// The layers that are present, or that a mask asks for.
    fn layers(&self) -> u64;
    /// Every bit that either image has.
    fn union(&self, other: &Self) -> Self;
    /// A hash of all of it.
    fn digest(&self) -> u64;
}

/// The image of a frame, of a rule's values, or of a rule's mask, tunnels aside.
#[derive(Clone, Copy, Debug, Default)]
pub struct MatchKey(pub(super) [u64; WORDS]);

impl MatchKey {
    /// The image of a frame.
    #[inline]
    #[must_use]
    pub fn of(key: &FlowKey) -> Self {
        Self(key.image())
    }

    /// Becomes the image of a frame, in place: engines make one per frame.
    #[inline(always)]
    pub fn read(&mut self, frame: &[u8]) {
        packet::read_image(frame, &mut self.0);
    }

    /// The words of the packed image.
    #[must_use]
    pub fn words(&self) -> &[u64; WORDS] {
        &self.0
    }

    /// The control information of the outer tag, if that is a C-VLAN tag; 0 otherwise.
    #[inline]
    #[must_use]
    pub fn c_vlan(&self) -> u16 {
        (self.0[cube::VLAN_TCI.word()] & cube::VLAN_TCI.ones()) as u16
    }
}

impl Image for MatchKey {
    #[inline]
    fn masked(&self, mask: &Self) -> Self {
        let mut words = self.0;
        for (word, mask) in words.iter_mut().zip(mask.0) {
            *word &= mask;
        }
        Self(words)
    }

    #[inline]
    fn layers(&self) -> u64 {
        self.0[0] & LAYER_BITS | (self.0[WORDS - 1] & C_TAG) >> 4
    }

    fn union(&self, other: &Self) -> Self {
        let mut words = self.0;
        for (word, other) in words.iter_mut().zip(other.0) {
            *word |= other;
        }
        Self(words)
    }

    /// Four independent folded multiplications, so that their latencies overlap.
    ///
    /// It is not keyed. Frames choose what is looked up but never what is stored in the tuple space, so
    /// crafted collisions cannot lengthen a chain; in the exact-match cache they only displace one another.
    #[inline]
    fn digest(&self) -> u64 {
        let mut digest = 0u64;
        for lane in 0..WORDS / 2 {
            let (a, b) = (2 * lane, 2 * lane + 1);
            digest = folded(digest, self.0[a] ^ LANES[a], self.0[b] ^ LANES[b]);
        }
        digest
    }
}

/// Mixes two words into a digest.
#[inline]
pub(super) fn folded(digest: u64, a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    digest.rotate_left(23) ^ (product as u64) ^ ((product >> 64) as u64)
}

impl PartialEq for MatchKey {
    /// Without a branch or a call to `memcmp`: the caches compare equal images most of the time.
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        let mut difference = 0;
        for (a, b) in self.0.iter().zip(&other.0) {
            difference |= a ^ b;
        }
        difference == 0
    }
}

impl Eq for MatchKey {}

impl Hash for MatchKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.digest());
    }
}

/// Passes a [`MatchKey::digest`] through to a hash map.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DigestHasher(u64);

impl Hasher for DigestHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0.rotate_left(8) ^ u64::from(*byte)).wrapping_mul(LANES[0]);
        }
    }

    fn write_u64(&mut self, digest: u64) {
        self.0 = digest;
    }
}

/// The frames that a rule is about: those whose image, under the mask, equals the values. The default matches
/// all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Matcher {
    value: MatchKey,
    mask: MatchKey,
    contradictory: bool,
}

impl Matcher {
    /// Matches every frame.
    #[must_use]
    pub fn any() -> Self {
        Self::default()
    }

    /// Asks for these layers, out of IPv4, IPv6, TCP and UDP.
    pub fn require(&mut self, layers: Layers) -> &mut Self {
        for (_, slot) in LAYERS.iter().filter(|(layer, _)| layers.contains(*layer)) {
            self.narrow(slot.word(), 1 << slot.shift(), 1 << slot.shift());
        }
        self
    }

    /// Asks for a field's value under a mask. Its place is one or more slots, the most significant first. The
    /// header of the field is asked for separately, except that any mask of the VLAN tag asks for a C-VLAN
    /// tag.
    pub fn field(&mut self, slots: &[Slot], value: u128, mask: u128) -> &mut Self {
        if mask != 0 && slots.first() == Some(&cube::VLAN_TCI) {
            self.narrow(cube::HAS_C_TAG.word(), C_TAG, C_TAG);
        }
        for (word, value, mask) in words(slots, value, mask) {
            self.narrow(word, value, mask);
        }
        self
    }

    /// Whether two calls asked for different values of one bit, so that no frame can match.
    #[must_use]
    pub fn is_contradictory(&self) -> bool {
        self.contradictory
    }

    /// Whether a frame is one of those.
    #[must_use]
    pub fn matches(&self, key: &MatchKey) -> bool {
        key.masked(&self.mask) == self.value && !self.contradictory
    }

    /// The values; no bit is set outside the mask.
    #[must_use]
    pub fn value(&self) -> &MatchKey {
        &self.value
    }

    /// The mask.
    #[must_use]
    pub fn mask(&self) -> &MatchKey {
        &self.mask
    }

    fn narrow(&mut self, word: usize, value: u64, mask: u64) -> &mut Self {
        let both = self.mask.0[word] & mask;
        self.contradictory |= (self.value.0[word] ^ value) & both != 0;
        self.mask.0[word] |= mask;
        self.value.0[word] |= value & mask;
        self
    }
}

/// A number and its mask, cut into the slots of a field: the word of each slot, value and mask in place.
pub(super) fn words(slots: &[Slot], value: u128, mask: u128) -> impl Iterator<Item = (usize, u64, u64)> {
    let mut low = 0;
    slots.iter().rev().map(move |slot| {
        let place = |number: u128| ((number >> low) as u64 & slot.ones()) << slot.shift();
        let word = (slot.word(), place(value), place(mask));
        low += slot.bits();
        word
    })
}

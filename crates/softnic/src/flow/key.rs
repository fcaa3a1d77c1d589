//! The match image: everything that a flow spec can name, as eight words.
//!
//! Tunnels have an image of their own around this one ([`super::deep`]).
//!
//! A frame's [`FlowKey`] is turned into a [`MatchKey`] once; after that, matching a rule is eight ANDs and compares, and
//! hashing under a mask touches only words. [`Matcher`] is how the provider writes the specs of a flow into that shape.
//!
//! | word | bits 63..0 |
//! |---|---|
//! | 0 | destination MAC (48), EtherType after VLAN tags (16) |
//! | 1 | source MAC (48), TCI of the C-VLAN tag (16) |
//! | 2, 3 | source address, IPv4 in the upper half of word 2 |
//! | 4, 5 | destination address |
//! | 6 | source port (16), destination port (16), flow label (32) |
//! | 7 | protocol, tos, ttl, IP flags (8 each), layers present (32) |

use std::hash::{Hash, Hasher};

use packet::{FlowKey, Layers};

/// The words of an image.
pub(super) const WORDS: usize = 8;

/// The TPID of a C-VLAN tag, the only one that `ibv_flow_eth_filter.vlan_tag` speaks of (802.1Q 9.6).
const C_VLAN_TPID: u16 = 0x8100;

/// The layers that a flow spec can ask for; in word 7 they have the bits of [`Layers`].
const NAMED_LAYERS: Layers = Layers::IPV4.union(Layers::IPV6).union(Layers::TCP).union(Layers::UDP);
/// Beside them: an outer tag that is a C-VLAN tag.
const C_VLAN: u64 = 1 << 16;

/// Odd constants that keep words apart in [`MatchKey::digest`]: the fractional bits of square roots, as in SHA-512.
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

/// What a tuple space, its shapes and its cache ask of an image of a frame, of a rule's values, or of a rule's mask.
pub(super) trait Image: Copy + Default + Eq + Hash + std::fmt::Debug {
    /// What is left of the image under a mask.
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
pub(crate) struct MatchKey(pub(super) [u64; WORDS]);

impl MatchKey {
    /// The image of a frame.
    #[inline]
    #[must_use]
    pub(crate) fn of(key: &FlowKey) -> Self {
        let c_vlan = key.layers.contains(Layers::VLAN) && key.vlan_tpid == C_VLAN_TPID;
        let tci = if c_vlan { key.vlan_tci } else { 0 };
        let presence = presence_of(key.layers) | if c_vlan { C_VLAN } else { 0 };
        let (src_high, src_low) = halves(key.src_ip);
        let (dst_high, dst_low) = halves(key.dst_ip);
        Self([
            mac_word(key.dst_mac.0) | u64::from(key.ether_type),
            mac_word(key.src_mac.0) | u64::from(tci),
            src_high,
            src_low,
            dst_high,
            dst_low,
            u64::from(key.src_port) << 48 | u64::from(key.dst_port) << 32 | u64::from(key.flow_label),
            u64::from(key.protocol) << 56
                | u64::from(key.tos) << 48
                | u64::from(key.ttl) << 40
                | u64::from(key.ip_flags) << 32
                | presence,
        ])
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
        self.0[7] & u64::from(u32::MAX)
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
    /// It is not keyed. Frames choose what is looked up but never what is stored in the tuple space, so crafted
    /// collisions cannot lengthen a chain; in the exact-match cache they only displace one another.
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

/// The frames that a rule is about: those whose image, under the mask, equals the values. The default matches all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Matcher {
    value: MatchKey,
    mask: MatchKey,
    contradictory: bool,
}

impl Matcher {
    /// Matches every frame.
    #[must_use]
    pub(crate) fn any() -> Self {
        Self::default()
    }

    /// Asks for these layers, out of IPv4, IPv6, TCP and UDP.
    pub(crate) fn require(&mut self, layers: Layers) -> &mut Self {
        let bits = presence_of(layers);
        self.narrow(7, bits, bits)
    }

    /// The destination MAC address.
    pub(crate) fn dst_mac(&mut self, value: [u8; 6], mask: [u8; 6]) -> &mut Self {
        self.narrow(0, mac_word(value), mac_word(mask))
    }

    /// The source MAC address.
    pub(crate) fn src_mac(&mut self, value: [u8; 6], mask: [u8; 6]) -> &mut Self {
        self.narrow(1, mac_word(value), mac_word(mask))
    }

    /// The EtherType after VLAN tags.
    pub(crate) fn ether_type(&mut self, value: u16, mask: u16) -> &mut Self {
        self.narrow(0, value.into(), mask.into())
    }

    /// The TCI of the outer tag; any mask but 0 asks for a C-VLAN tag to be there.
    pub(crate) fn vlan_tag(&mut self, value: u16, mask: u16) -> &mut Self {
        if mask != 0 {
            self.narrow(7, C_VLAN, C_VLAN);
        }
        self.narrow(1, value.into(), mask.into())
    }

    /// The IPv4 source address; the layer is asked for separately.
    pub(crate) fn src_ipv4(&mut self, value: [u8; 4], mask: [u8; 4]) -> &mut Self {
        self.narrow(2, ipv4_word(value), ipv4_word(mask))
    }

    /// The IPv4 destination address.
    pub(crate) fn dst_ipv4(&mut self, value: [u8; 4], mask: [u8; 4]) -> &mut Self {
        self.narrow(4, ipv4_word(value), ipv4_word(mask))
    }

    /// The IPv6 source address.
    pub(crate) fn src_ipv6(&mut self, value: [u8; 16], mask: [u8; 16]) -> &mut Self {
        let (value, mask) = (halves(value), halves(mask));
        self.narrow(2, value.0, mask.0).narrow(3, value.1, mask.1)
    }

    /// The IPv6 destination address.
    pub(crate) fn dst_ipv6(&mut self, value: [u8; 16], mask: [u8; 16]) -> &mut Self {
        let (value, mask) = (halves(value), halves(mask));
        self.narrow(4, value.0, mask.0).narrow(5, value.1, mask.1)
    }

    /// The IPv4 protocol or the first IPv6 next header.
    pub(crate) fn protocol(&mut self, value: u8, mask: u8) -> &mut Self {
        self.narrow(7, u64::from(value) << 56, u64::from(mask) << 56)
    }

    /// The type of service or traffic class.
    pub(crate) fn tos(&mut self, value: u8, mask: u8) -> &mut Self {
        self.narrow(7, u64::from(value) << 48, u64::from(mask) << 48)
    }

    /// The time to live or hop limit.
    pub(crate) fn ttl(&mut self, value: u8, mask: u8) -> &mut Self {
        self.narrow(7, u64::from(value) << 40, u64::from(mask) << 40)
    }

    /// The three IPv4 flags, as [`FlowKey::ip_flags`] has them.
    pub(crate) fn ip_flags(&mut self, value: u8, mask: u8) -> &mut Self {
        self.narrow(7, u64::from(value) << 32, u64::from(mask) << 32)
    }

    /// The IPv6 flow label.
    pub(crate) fn flow_label(&mut self, value: u32, mask: u32) -> &mut Self {
        self.narrow(6, value.into(), mask.into())
    }

    /// The TCP or UDP source port; the layer is asked for separately.
    pub(crate) fn src_port(&mut self, value: u16, mask: u16) -> &mut Self {
        self.narrow(6, u64::from(value) << 48, u64::from(mask) << 48)
    }

    /// The TCP or UDP destination port.
    pub(crate) fn dst_port(&mut self, value: u16, mask: u16) -> &mut Self {
        self.narrow(6, u64::from(value) << 32, u64::from(mask) << 32)
    }

    /// Whether two calls asked for different values of one bit, so that no frame can match.
    #[must_use]
    pub(crate) fn is_contradictory(&self) -> bool {
        self.contradictory
    }

    /// Whether a frame is one of those.
    #[must_use]
    pub(crate) fn matches(&self, key: &MatchKey) -> bool {
        key.masked(&self.mask) == self.value && !self.contradictory
    }

    /// The values; no bit is set outside the mask.
    #[must_use]
    pub(crate) fn value(&self) -> &MatchKey {
        &self.value
    }

    /// The mask.
    #[must_use]
    pub(crate) fn mask(&self) -> &MatchKey {
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

fn presence_of(layers: Layers) -> u64 {
    layers.intersection(NAMED_LAYERS).bits().into()
}

fn mac_word(mac: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_be_bytes([a, b, c, d, e, f, 0, 0])
}

fn ipv4_word(address: [u8; 4]) -> u64 {
    u64::from(u32::from_be_bytes(address)) << 32
}

fn halves(address: [u8; 16]) -> (u64, u64) {
    let whole = u128::from_be_bytes(address);
    ((whole >> 64) as u64, whole as u64)
}

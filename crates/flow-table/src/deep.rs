//! The image of a frame with a tunnel, and what a rule asks of it.
//!
//! Only rules about tunnels have this image, and only on ports with such a rule is it ever made of a frame:
//! then it is the image of the outer packet, that of the packet inside, and these words:
//!
//! | word | bits 63..0 |
//! |---|---|
//! | 0 to 3 | those of the packed image about the tunnel (`packet::cube`), without its layers |
//! | 2 | second label (32), besides |
//! | 4 | third and fourth label (32 each) |
//! | 5 | label behind the inner Ethernet header (32), presence (32) |

use std::hash::{Hash, Hasher};

use packet::cube::{self, Slot};
use packet::{FlowKey, MAX_MPLS_LABELS, TunnelKey, TunnelLayers};

use super::key::{Image, LANES, MatchKey, Matcher, folded, words};

const WORDS: usize = 6;

bitflags::bitflags! {
    /// The headers whose presence a rule can demand.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Presence: u64 {
        /// An ESP header.
        const ESP = 1;
        /// A GRE header.
        const GRE = 1 << 1;
        /// A VXLAN header.
        const VXLAN = 1 << 2;
        /// MPLS labels right behind Ethernet.
        const MPLS_OVER_ETHERNET = 1 << 3;
        /// MPLS labels behind a GRE header.
        const MPLS_OVER_GRE = 1 << 4;
        /// MPLS labels behind a UDP header.
        const MPLS_OVER_UDP = 1 << 5;
        /// A packet inside.
        const INNER = 1 << 6;
        /// The packet inside begins with an Ethernet header.
        const INNER_ETHERNET = 1 << 7;
        /// An MPLS label behind the Ethernet header of the packet inside.
        const INNER_MPLS = 1 << 8;
        /// A GRE header with a key.
        const GRE_KEY = 1 << 9;
        /// At least two labels.
        const SECOND_LABEL = 1 << 10;
        /// At least three labels.
        const THIRD_LABEL = 1 << 11;
        /// At least four labels.
        const FOURTH_LABEL = 1 << 12;
    }
}

/// Where each label of the stack is: word and lowest bit.
const LABELS: [(usize, u32); MAX_MPLS_LABELS] = [(2, 0), (2, 32), (4, 32), (4, 0)];
/// Where the presence of the packet inside is among all layers; the tunnel's is below.
const INNER_SHIFT: u32 = 16;

/// The image of a frame with a tunnel, of a rule's values, or of a rule's mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeepImage {
    pub(super) outer: MatchKey,
    inner: MatchKey,
    tunnel: [u64; WORDS],
}

impl DeepImage {
    /// The image of a frame, in the fields that rules name: others would only split what shares one verdict.
    /// `None`: the frame has no tunnel.
    pub(super) fn of_tunnel(
        outer: &MatchKey,
        key: &FlowKey,
        tunnel: &TunnelKey,
        relevant: &Self,
    ) -> Option<Self> {
        (!tunnel.layers.is_empty()).then(|| Self::of(*outer, key, tunnel).masked(relevant))
    }

    /// The image of a frame.
    pub(super) fn of(outer: MatchKey, key: &FlowKey, tunnel: &TunnelKey) -> Self {
        let [vxlan, gre, mpls, esp] = tunnel.image();
        let [_, second, third, fourth] = tunnel.mpls.map(u64::from);
        let presence = presence_of(key, tunnel).bits();
        Self {
            outer,
            inner: MatchKey::of(&tunnel.inner),
            tunnel: [
                vxlan,
                gre,
                second << 32 | mpls,
                esp,
                third << 32 | fourth,
                u64::from(tunnel.inner_mpls) << 32 | presence,
            ],
        }
    }

    /// The mask of a rule that looks at the outer packet alone.
    pub(super) fn outside(outer: MatchKey) -> Self {
        Self { outer, ..Self::default() }
    }
}

fn presence_of(outer: &FlowKey, tunnel: &TunnelKey) -> Presence {
    let has = |layer| tunnel.layers.contains(layer);
    let labels_behind = if !has(TunnelLayers::MPLS) {
        Presence::empty()
    } else if has(TunnelLayers::GRE) {
        Presence::MPLS_OVER_GRE
    } else if outer.layers.contains(packet::Layers::UDP) {
        Presence::MPLS_OVER_UDP
    } else {
        Presence::MPLS_OVER_ETHERNET
    };
    let mut presence = labels_behind;
    presence.set(Presence::ESP, has(TunnelLayers::ESP));
    presence.set(Presence::GRE, has(TunnelLayers::GRE));
    presence.set(Presence::GRE_KEY, has(TunnelLayers::GRE_KEY));
    presence.set(Presence::VXLAN, has(TunnelLayers::VXLAN));
    presence.set(Presence::INNER, has(TunnelLayers::INNER));
    presence.set(Presence::INNER_ETHERNET, has(TunnelLayers::INNER_ETHERNET));
    presence.set(Presence::INNER_MPLS, tunnel.inner_mpls != 0);
    presence.set(Presence::SECOND_LABEL, tunnel.mpls_depth > 1);
    presence.set(Presence::THIRD_LABEL, tunnel.mpls_depth > 2);
    presence.set(Presence::FOURTH_LABEL, tunnel.mpls_depth > 3);
    presence
}

impl Image for DeepImage {
    fn masked(&self, mask: &Self) -> Self {
        Self {
            outer: self.outer.masked(&mask.outer),
            inner: self.inner.masked(&mask.inner),
            tunnel: std::array::from_fn(|word| self.tunnel[word] & mask.tunnel[word]),
        }
    }

    fn layers(&self) -> u64 {
        self.outer.layers() | self.inner.layers() >> INNER_SHIFT | self.tunnel[5] & Presence::all().bits()
    }

    fn union(&self, other: &Self) -> Self {
        Self {
            outer: self.outer.union(&other.outer),
            inner: self.inner.union(&other.inner),
            tunnel: std::array::from_fn(|word| self.tunnel[word] | other.tunnel[word]),
        }
    }

    fn digest(&self) -> u64 {
        let mut digest = folded(0, self.outer.digest() ^ LANES[0], self.inner.digest() ^ LANES[1]);
        for word in 0..WORDS / 2 {
            let (a, b) = (2 * word, 2 * word + 1);
            digest = folded(digest, self.tunnel[a] ^ LANES[a], self.tunnel[b] ^ LANES[b]);
        }
        digest
    }
}

impl Hash for DeepImage {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.digest());
    }
}

/// The conditions of a rule on the tunnel. The default has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TunnelMatcher {
    /// The conditions on the packet inside; [`TunnelMatcher::require`] demands that there is one.
    pub inner: Matcher,
    value: [u64; WORDS],
    mask: [u64; WORDS],
    contradictory: bool,
}

impl TunnelMatcher {
    /// Asks for these to be there.
    pub fn require(&mut self, presence: Presence) -> &mut Self {
        self.narrow(5, presence.bits(), presence.bits())
    }

    /// Asks for a field's value under a mask; the header is asked for separately, except that any mask of the
    /// key of GRE asks for a key.
    pub fn field(&mut self, slots: &[Slot], value: u128, mask: u128) -> &mut Self {
        if mask != 0 && slots.first() == Some(&cube::GRE_KEY) {
            self.require(Presence::GRE_KEY);
        }
        for (word, value, mask) in words(slots, value, mask) {
            self.narrow(word - cube::TUNNEL, value, mask);
        }
        self
    }

    /// An entry of the label stack by its place from the top; entries beyond the room of the key match
    /// nothing.
    pub fn label(&mut self, place: usize, value: u32, mask: u32) -> &mut Self {
        match place {
            0 => {}
            1 => _ = self.require(Presence::SECOND_LABEL),
            2 => _ = self.require(Presence::THIRD_LABEL),
            3 => _ = self.require(Presence::FOURTH_LABEL),
            MAX_MPLS_LABELS.. => self.contradictory = true,
        }
        let (word, shift) = LABELS[place.min(MAX_MPLS_LABELS - 1)];
        self.narrow(word, u64::from(value) << shift, u64::from(mask) << shift)
    }

    /// The label behind the inner Ethernet header.
    pub fn inner_label(&mut self, value: u32, mask: u32) -> &mut Self {
        self.narrow(5, u64::from(value) << 32, u64::from(mask) << 32)
    }

    /// Whether it asks for nothing.
    pub fn is_any(&self) -> bool {
        *self == Self::default()
    }

    /// Whether two calls asked for different values of one bit, so that no frame can match.
    pub fn is_contradictory(&self) -> bool {
        self.contradictory || self.inner.is_contradictory()
    }

    /// The values of a rule that also asks something of the outer packet.
    pub(super) fn value(&self, outer: &Matcher) -> DeepImage {
        DeepImage { outer: *outer.value(), inner: *self.inner.value(), tunnel: self.value }
    }

    /// The mask of such a rule.
    pub(super) fn mask(&self, outer: &Matcher) -> DeepImage {
        DeepImage { outer: *outer.mask(), inner: *self.inner.mask(), tunnel: self.mask }
    }

    fn narrow(&mut self, word: usize, value: u64, mask: u64) -> &mut Self {
        let both = self.mask[word] & mask;
        self.contradictory |= (self.value[word] ^ value) & both != 0;
        self.mask[word] |= mask;
        self.value[word] |= value & mask;
        self
    }
}

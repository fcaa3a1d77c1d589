//! The image of a frame with a tunnel, and what a rule asks of it.
//!
//! Only rules about tunnels have this image, and only on ports with such a rule is it ever made of a frame: then it is the
//! image of the outer packet, that of the packet inside, and these words:
//!
//! | word | bits 63..0 |
//! |---|---|
//! | 0 | ESP index (32), ESP sequence number (32) |
//! | 1 | GRE flags (16), protocol (16), key (32) |
//! | 2 | VXLAN network identifier (32), label behind the inner Ethernet header (32) |
//! | 3, 4 | label stack, top first |
//! | 5 | layers present |

use std::hash::{Hash, Hasher};

use packet::{FlowKey, MAX_MPLS_LABELS, TunnelKey, TunnelLayers};

use super::key::{Image, LANES, MatchKey, Matcher, folded};

const WORDS: usize = 6;

bitflags::bitflags! {
    /// What a rule can ask to be there.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Presence: u64 {
        const ESP = 1;
        const GRE = 1 << 1;
        const VXLAN = 1 << 2;
        /// Labels right behind Ethernet.
        const MPLS_OVER_ETHERNET = 1 << 3;
        const MPLS_OVER_GRE = 1 << 4;
        const MPLS_OVER_UDP = 1 << 5;
        /// A packet inside.
        const INNER = 1 << 6;
        /// It begins with an Ethernet header.
        const INNER_ETHERNET = 1 << 7;
        /// Behind which there is a label.
        const INNER_MPLS = 1 << 8;
        const GRE_KEY = 1 << 9;
        /// At least so many labels.
        const SECOND_LABEL = 1 << 10;
        const THIRD_LABEL = 1 << 11;
        const FOURTH_LABEL = 1 << 12;
    }
}

/// Where the presence of the packet inside, and of the tunnel, stand among all layers.
const INNER_SHIFT: u32 = 20;
const TUNNEL_SHIFT: u32 = 40;

/// The image of a frame with a tunnel, of a rule's values, or of a rule's mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeepImage {
    pub(super) outer: MatchKey,
    inner: MatchKey,
    tunnel: [u64; WORDS],
}

impl DeepImage {
    /// The image of a frame.
    pub(super) fn of(outer: MatchKey, key: &FlowKey, tunnel: &TunnelKey) -> Self {
        let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        let gre = u32::from(tunnel.gre_flags) << 16 | u32::from(tunnel.gre_protocol);
        let [first, second, third, fourth] = tunnel.mpls;
        Self {
            outer,
            inner: MatchKey::of(&tunnel.inner),
            tunnel: [
                pair(tunnel.esp_spi, tunnel.esp_seq),
                pair(gre, tunnel.gre_key),
                pair(tunnel.vxlan_vni, tunnel.inner_mpls),
                pair(first, second),
                pair(third, fourth),
                presence_of(key, tunnel).bits(),
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
        self.outer.layers() | self.inner.layers() << INNER_SHIFT | self.tunnel[5] << TUNNEL_SHIFT
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

/// What a rule asks of the tunnel. The default asks for nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TunnelMatcher {
    /// What it asks of the packet inside; [`TunnelMatcher::require`] asks for there to be one.
    pub(crate) inner: Matcher,
    value: [u64; WORDS],
    mask: [u64; WORDS],
    contradictory: bool,
}

impl TunnelMatcher {
    /// Asks for these to be there.
    pub(crate) fn require(&mut self, presence: Presence) -> &mut Self {
        self.narrow(5, presence.bits(), presence.bits())
    }

    /// Index and sequence number of ESP; the layer is asked for separately, here and below.
    pub(crate) fn esp(&mut self, (spi, spi_mask): (u32, u32), (seq, seq_mask): (u32, u32)) -> &mut Self {
        self.narrow(0, u64::from(spi) << 32 | u64::from(seq), u64::from(spi_mask) << 32 | u64::from(seq_mask))
    }

    /// The first word of GRE, as [`TunnelKey::gre_flags`] has it.
    pub(crate) fn gre_flags(&mut self, value: u16, mask: u16) -> &mut Self {
        self.narrow(1, u64::from(value) << 48, u64::from(mask) << 48)
    }

    /// What GRE carries.
    pub(crate) fn gre_protocol(&mut self, value: u16, mask: u16) -> &mut Self {
        self.narrow(1, u64::from(value) << 32, u64::from(mask) << 32)
    }

    /// The key of GRE; any mask but 0 asks for it to be there.
    pub(crate) fn gre_key(&mut self, value: u32, mask: u32) -> &mut Self {
        if mask != 0 {
            self.require(Presence::GRE_KEY);
        }
        self.narrow(1, value.into(), mask.into())
    }

    /// The network identifier of VXLAN.
    pub(crate) fn vxlan_vni(&mut self, value: u32, mask: u32) -> &mut Self {
        self.narrow(2, u64::from(value) << 32, u64::from(mask) << 32)
    }

    /// An entry of the label stack by its place from the top; entries beyond the room of the key match nothing.
    pub(crate) fn label(&mut self, place: usize, value: u32, mask: u32) -> &mut Self {
        match place {
            0 => {}
            1 => _ = self.require(Presence::SECOND_LABEL),
            2 => _ = self.require(Presence::THIRD_LABEL),
            3 => _ = self.require(Presence::FOURTH_LABEL),
            MAX_MPLS_LABELS.. => self.contradictory = true,
        }
        let (word, shift) = if place < 2 { (3, 32 - 32 * place) } else { (4, 32 * (3 - place.min(3))) };
        self.narrow(word, u64::from(value) << shift, u64::from(mask) << shift)
    }

    /// The label behind the inner Ethernet header.
    pub(crate) fn inner_label(&mut self, value: u32, mask: u32) -> &mut Self {
        self.narrow(2, value.into(), mask.into())
    }

    /// Whether it asks for nothing.
    pub(crate) fn is_any(&self) -> bool {
        *self == Self::default()
    }

    /// Whether two calls asked for different values of one bit, so that no frame can match.
    pub(crate) fn is_contradictory(&self) -> bool {
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

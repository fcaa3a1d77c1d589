//! The packed image of everything that a device can match in a packet, and sets of packets as a value and a
//! mask over this image. The compiler turns rules into such sets, and these into flows. Intersection,
//! containment and overlap are a few word operations.
//!
//! What one header implies about others (IPv4 about the EtherType, TCP about the protocol) is filled in by
//! [`Cube::closed`]. It does not fill in which tunnel carries an inner packet, so two such cubes may seem to
//! overlap although no packet is in both: the compiler then orders two flows that need no order.
//!
//! | word | bits 63..0 |
//! |---|---|
//! | 0 | layers present (4), sent (1), IPv4 flags (3), TTL (8), protocol (8), TOS (8), source port (16), destination port (16) |
//! | 1, 3 | destination address; IPv4 in the upper half of word 1 |
//! | 2, 4 | source address; IPv4 in the upper half of word 2 |
//! | 5 | destination MAC (48), EtherType after VLAN tags (16) |
//! | 6 | source MAC (48), TCI of the outer 802.1Q tag (16) |
//! | 7 | an 802.1Q tag is present (1), IPv6 flow label (20) |
//! | 8 to 15 | the same of the packet inside the tunnel |
//! | 16 to 19 | tunnel layers, VNI; GRE key, flags, protocol; top MPLS entry; ESP |

#[cfg(test)]
mod tests;

use crate::{EtherType, Header, IpProtocol, TunnelKey, VXLAN_UDP_PORT};

/// Words of one packet's headers; those of the packet inside a tunnel follow in the same order.
pub const LEVEL_WORDS: usize = 8;
/// Words of the tunnel headers, behind both.
pub const TUNNEL: usize = 2 * LEVEL_WORDS;
pub const WORDS: usize = TUNNEL + 4;
pub type Image = [u64; WORDS];

/// A range of bits in a word of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    word: usize,
    pub(crate) shift: u32,
    bits: u32,
}

const fn slot(word: usize, shift: u32, bits: u32) -> Slot {
    Slot { word, shift, bits }
}

/// One bit per layer: known to be present, known to be absent, or (unmasked) unknown.
pub const HAS_IPV4: Slot = slot(0, 63, 1);
pub const HAS_IPV6: Slot = slot(0, 62, 1);
pub const HAS_TCP: Slot = slot(0, 61, 1);
pub const HAS_UDP: Slot = slot(0, 60, 1);
/// Whether the host sends the packet. Every cube has a value: the two directions never overlap.
pub const SENT: Slot = slot(0, 59, 1);
pub const IP_FLAGS: Slot = slot(0, 56, 3);
/// The highest of them.
pub const RESERVED_FLAG: Slot = slot(0, 58, 1);
/// IPv4 time to live or IPv6 hop limit.
pub const TTL: Slot = slot(0, 48, 8);
/// IPv4 protocol or first IPv6 next header.
pub const PROTOCOL: Slot = slot(0, 40, 8);
pub const TOS: Slot = slot(0, 32, 8);
pub const SRC_PORT: Slot = slot(0, 16, 16);
pub const DST_PORT: Slot = slot(0, 0, 16);
/// The upper half of an IPv6 address.
pub const DST_HIGH: Slot = slot(1, 0, 64);
pub const SRC_HIGH: Slot = slot(2, 0, 64);
pub const DST_LOW: Slot = slot(3, 0, 64);
pub const SRC_LOW: Slot = slot(4, 0, 64);
/// IPv4 addresses share the first word with IPv6: no packet has both.
pub const DST_IPV4: Slot = slot(1, 32, 32);
pub const SRC_IPV4: Slot = slot(2, 32, 32);
pub const DST_MAC: Slot = slot(5, 16, 48);
pub const ETHER_TYPE: Slot = slot(5, 0, 16);
pub const SRC_MAC: Slot = slot(6, 16, 48);
/// The control information of the outermost tag; any mask here means that this is an 802.1Q tag.
pub const VLAN_TCI: Slot = slot(6, 0, 16);
/// The identifier in it.
pub const VLAN_ID: Slot = slot(6, 0, 12);
/// The priority in it.
pub const VLAN_PRIORITY: Slot = slot(6, 13, 3);
pub const FLOW_LABEL: Slot = slot(7, 0, 20);
/// The outer tag is an 802.1Q tag. Only images of packets have this bit: cubes imply it by a mask of
/// [`VLAN_TCI`].
pub const HAS_C_TAG: Slot = slot(7, 63, 1);

/// Layers of the tunnel.
pub const HAS_ESP: Slot = slot(TUNNEL, 63, 1);
pub const HAS_VXLAN: Slot = slot(TUNNEL, 62, 1);
pub const HAS_GRE: Slot = slot(TUNNEL, 61, 1);
pub const HAS_MPLS: Slot = slot(TUNNEL, 60, 1);
/// There is a packet inside.
pub const HAS_INNER: Slot = slot(TUNNEL, 59, 1);
pub const VXLAN_VNI: Slot = slot(TUNNEL, 0, 24);
pub const GRE_KEY: Slot = slot(TUNNEL + 1, 32, 32);
/// The upper byte of the first word of a GRE header.
pub const GRE_FLAGS: Slot = slot(TUNNEL + 1, 16, 8);
/// The lower byte of that word: reserved bits and the version, which no policy matches.
pub const GRE_RESERVED: Slot = slot(TUNNEL + 1, 24, 8);
pub const GRE_PROTOCOL: Slot = slot(TUNNEL + 1, 0, 16);
/// The entry on top of the stack.
pub const MPLS_TOP: Slot = slot(TUNNEL + 2, 0, 32);
pub const ESP_SPI: Slot = slot(TUNNEL + 3, 32, 32);
pub const ESP_SEQ: Slot = slot(TUNNEL + 3, 0, 32);

/// Every layer bit that has a flow spec of its own.
pub const LAYERS: [Slot; 13] = [
    HAS_IPV4,
    HAS_IPV6,
    HAS_TCP,
    HAS_UDP,
    HAS_ESP,
    HAS_VXLAN,
    HAS_GRE,
    HAS_MPLS,
    HAS_INNER,
    HAS_IPV4.inside(),
    HAS_IPV6.inside(),
    HAS_TCP.inside(),
    HAS_UDP.inside(),
];

/// All bits of one packet's headers, layers included, except [`SENT`].
pub const LEVEL_SLOTS: [Slot; LEVEL_WORDS + 1] = [
    slot(0, 60, 4),
    slot(0, 0, 59),
    slot(1, 0, 64),
    slot(2, 0, 64),
    slot(3, 0, 64),
    slot(4, 0, 64),
    slot(5, 0, 64),
    slot(6, 0, 64),
    slot(7, 0, 64),
];

/// All bits of the tunnel headers, layers included.
pub const TUNNEL_SLOTS: [Slot; 4] =
    [slot(TUNNEL, 0, 64), slot(TUNNEL + 1, 0, 64), slot(TUNNEL + 2, 0, 64), slot(TUNNEL + 3, 0, 64)];

/// The bits by which a cube may imply others: layers, types and protocols.
const IMPLYING: [(usize, u64); 4] = [
    (HAS_IPV4.word, IMPLYING_NETWORK),
    (ETHER_TYPE.word, ETHER_TYPE.in_word()),
    (HAS_IPV4.inside().word, IMPLYING_NETWORK),
    (
        TUNNEL,
        HAS_ESP.in_word()
            | HAS_VXLAN.in_word()
            | HAS_GRE.in_word()
            | HAS_MPLS.in_word()
            | HAS_INNER.in_word(),
    ),
];
const IMPLYING_NETWORK: u64 =
    HAS_IPV4.in_word() | HAS_IPV6.in_word() | HAS_TCP.in_word() | HAS_UDP.in_word() | PROTOCOL.in_word();

/// A conjunction of masked fields that at least one packet matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cube {
    /// Zero outside the mask.
    pub value: Image,
    pub mask: Image,
}

impl Cube {
    /// Every packet.
    pub const ANY: Self = Self { value: [0; WORDS], mask: [0; WORDS] };

    /// The part of `self` whose field agrees with the value under the mask; nothing is implied yet.
    pub fn with(mut self, field: Slot, value: u64, mask: u64) -> Option<Self> {
        self.require(field, value, mask)?;
        Some(self)
    }

    /// Reduces it to that part; `None` if there is none.
    fn require(&mut self, field: Slot, value: u64, mask: u64) -> Option<()> {
        let (value, mask) = ((value & mask) << field.shift, mask << field.shift);
        let word = field.word;
        if (self.value[word] ^ value) & self.mask[word] & mask != 0 {
            return None;
        }
        self.value[word] |= value;
        self.mask[word] |= mask;
        Some(())
    }

    /// Reduces it to the part with (or without) a layer.
    fn require_layer(&mut self, layer: Slot, present: bool) -> Option<()> {
        self.require(layer, u64::from(present), 1)
    }

    /// The part of `self` with (or without) a layer.
    pub fn layer(self, layer: Slot, present: bool) -> Option<Self> {
        self.with(layer, u64::from(present), 1)
    }

    /// Packets in both, with everything implied; `None` if there are none.
    pub fn and(&self, other: &Self) -> Option<Self> {
        if !self.overlaps(other) {
            return None;
        }
        let both = Self {
            value: std::array::from_fn(|i| self.value[i] | other.value[i]),
            mask: std::array::from_fn(|i| self.mask[i] | other.mask[i]),
        };
        // Unless a field that implies others has changed, nothing new is implied. Most pairs differ only in
        // addresses and ports.
        if both.implies_as(self) || both.implies_as(other) { Some(both) } else { both.closed() }
    }

    /// Whether all fields that imply something about others are as in a part of this cube.
    fn implies_as(&self, part: &Self) -> bool {
        self.implying() == part.implying()
    }

    /// Whether some packet may be in both closed cubes.
    #[inline]
    pub fn overlaps(&self, other: &Self) -> bool {
        (0..WORDS).all(|i| (self.value[i] ^ other.value[i]) & self.mask[i] & other.mask[i] == 0)
    }

    /// Whether every packet of `other` is in `self`; `other` must be closed.
    pub fn contains(&self, other: &Self) -> bool {
        (0..WORDS).all(|i| {
            self.mask[i] & !other.mask[i] == 0 && (self.value[i] ^ other.value[i]) & self.mask[i] == 0
        })
    }

    /// The value of a field; 0 where it is not masked.
    pub fn value_of(&self, field: Slot) -> u64 {
        self.value[field.word] >> field.shift & field.ones()
    }

    /// The mask of a field.
    pub fn mask_of(&self, field: Slot) -> u64 {
        self.mask[field.word] >> field.shift & field.ones()
    }

    /// Whether the layer is known to be present.
    pub fn has(&self, layer: Slot) -> bool {
        self.value_of(layer) == 1
    }

    /// Whether the layer is known to be absent.
    pub fn lacks(&self, layer: Slot) -> bool {
        self.mask_of(layer) == 1 && self.value_of(layer) == 0
    }

    /// Whether the field may still have that value.
    fn admits(&self, field: Slot, value: u64) -> bool {
        (self.value_of(field) ^ value) & self.mask_of(field) == 0
    }

    /// The cube without its condition on a field; nothing is implied yet.
    pub fn without(mut self, field: Slot) -> Self {
        let bits = field.ones() << field.shift;
        self.value[field.word] &= !bits;
        self.mask[field.word] &= !bits;
        self
    }

    /// The cube as a flow can express it: the absence of a layer cannot be matched.
    pub fn without_absences(mut self) -> Self {
        for layer in LAYERS {
            // Where the layer is absent the value is zero already.
            self.mask[layer.word] &= self.value[layer.word] | !layer.in_word();
        }
        self
    }

    /// Whether it excludes a layer in a way that no flow can express.
    pub fn has_unmatchable_absence(&self) -> bool {
        self.without_absences().closed().as_ref() != Some(self)
    }

    /// Fills in what the fields imply about each other in every packet that `packet::parse` accepts.
    pub fn closed(self) -> Option<Self> {
        let mut cube = self;
        let mut known = Self::ANY.implying();
        // The other fields imply nothing. Each round sets at least one bit of the implying fields, so this
        // ends.
        while cube.implying() != known {
            known = cube.implying();
            cube.close_tunnel()?;
            cube.close_level(&|field| field)?;
            if cube.mask[LEVEL_WORDS] != 0 {
                cube.close_level(&Slot::inside)?;
            }
        }
        Some(cube)
    }

    /// The values and masks of the fields that may imply others.
    fn implying(&self) -> [(u64, u64); IMPLYING.len()] {
        IMPLYING.map(|(word, bits)| (self.value[word] & bits, self.mask[word] & bits))
    }

    /// Adds what the headers of one packet imply about each other.
    fn close_level(&mut self, at: &dyn Fn(Slot) -> Slot) -> Option<()> {
        let [v4, v6, tcp, udp] = [HAS_IPV4, HAS_IPV6, HAS_TCP, HAS_UDP].map(at);
        // A packet inside may have no Ethernet header, and then no type.
        let is_outer = v4.word == HAS_IPV4.word;
        for (layer, other, ether_type) in [(v4, v6, EtherType::IPV4), (v6, v4, EtherType::IPV6)] {
            let ether_type = u64::from(ether_type.0);
            if self.has(layer) {
                self.require_layer(other, false)?;
                if is_outer {
                    self.require(ETHER_TYPE, ether_type, ETHER_TYPE.ones())?;
                }
            } else if is_outer && !self.admits(ETHER_TYPE, ether_type) {
                self.require_layer(layer, false)?;
            }
        }
        let no_ip = self.lacks(v4) && self.lacks(v6);
        for (layer, other, protocol) in [(tcp, udp, IpProtocol::TCP), (udp, tcp, IpProtocol::UDP)] {
            let protocol = u64::from(protocol.0);
            if self.has(layer) {
                self.require_layer(other, false)?;
                self.require(at(PROTOCOL), protocol, PROTOCOL.ones())?;
            } else if no_ip || !self.admits(at(PROTOCOL), protocol) {
                self.require_layer(layer, false)?;
            }
            if self.has(layer) && no_ip {
                return None;
            }
        }
        Some(())
    }

    /// Adds what a tunnel implies about the packet that carries it.
    fn close_tunnel(&mut self) -> Option<()> {
        if self.mask[TUNNEL] >> HAS_INNER.shift == 0 {
            return Some(());
        }
        let no_ip = self.lacks(HAS_IPV4) && self.lacks(HAS_IPV6);
        if self.has(HAS_VXLAN) {
            self.require_layer(HAS_UDP, true)?;
            self.require(DST_PORT, u64::from(VXLAN_UDP_PORT), DST_PORT.ones())?;
        }
        for (layer, protocol) in [(HAS_ESP, IpProtocol::ESP), (HAS_GRE, IpProtocol::GRE)] {
            if self.has(layer) {
                self.require(PROTOCOL, u64::from(protocol.0), PROTOCOL.ones())?;
                if no_ip {
                    return None;
                }
            }
        }
        (!(self.has(HAS_ESP) && self.has(HAS_INNER))).then_some(())
    }
}

impl Header {
    /// The layer of the tunnel that the header belongs to; `None`: it is not a tunnel header.
    pub const fn tunnel_layer(self) -> Option<Slot> {
        match self {
            Self::Esp => Some(HAS_ESP),
            Self::Vxlan => Some(HAS_VXLAN),
            Self::Gre | Self::GreKey => Some(HAS_GRE),
            _ => None,
        }
    }
}

impl TunnelKey {
    /// The words of the packed image from [`TUNNEL`] on, without the layers.
    #[inline]
    pub fn image(&self) -> [u64; WORDS - TUNNEL] {
        let place = |value: u32, slot: Slot| u64::from(value) << slot.shift;
        let [flags, reserved] = self.gre_flags.to_be_bytes();
        [
            place(self.vxlan_vni, VXLAN_VNI),
            place(self.gre_key, GRE_KEY)
                | place(flags.into(), GRE_FLAGS)
                | place(reserved.into(), GRE_RESERVED)
                | place(self.gre_protocol.into(), GRE_PROTOCOL),
            place(self.mpls[0], MPLS_TOP),
            place(self.esp_spi, ESP_SPI) | place(self.esp_seq, ESP_SEQ),
        ]
    }
}

impl Slot {
    /// Whether it belongs to the outer packet.
    pub const fn is_outer(self) -> bool {
        self.word < LEVEL_WORDS
    }

    /// Whether it belongs to the IP or transport header.
    pub const fn is_network(self) -> bool {
        self.word != DST_MAC.word && self.word != SRC_MAC.word
    }

    /// Returns the slot of the same field of the packet inside.
    pub const fn inside(self) -> Self {
        Self { word: self.word + LEVEL_WORDS, ..self }
    }

    /// The index of the slot's word.
    pub const fn word(self) -> usize {
        self.word
    }

    /// The lowest bit of the slot in its word.
    pub const fn shift(self) -> u32 {
        self.shift
    }

    /// How many bits it has.
    pub const fn bits(self) -> u32 {
        self.bits
    }

    /// All bits of the field, where they lie in their word.
    const fn in_word(self) -> u64 {
        self.ones() << self.shift
    }

    /// All bits of the field, from bit 0.
    pub const fn ones(self) -> u64 {
        u64::MAX >> (u64::BITS - self.bits)
    }
}

//! A set of packets as one masked image of everything a device can match: what rules become before they
//! are flows. Intersection, containment and overlap are a few word operations: what one field implies about
//! another (an IPv4 header about the ethertype, a TCP header about the protocol) is filled in when a cube is
//! made; not so the tunnel that a packet inside needs, so such cubes may be said to overlap though no packet
//! is in both: that costs an order, no more. Used by the compiler alone.

#[cfg(test)]
mod tests;

use packet::{EtherType, IpProtocol, VXLAN_UDP_PORT};

/// Words of one packet's headers; those of the packet inside a tunnel follow in the same order.
const LEVEL_WORDS: usize = 8;
/// Words about the tunnel itself, behind both.
const TUNNEL: usize = 2 * LEVEL_WORDS;
pub(super) const WORDS: usize = TUNNEL + 4;
pub(super) type Image = [u64; WORDS];

/// Where a field lies in the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Field {
    word: usize,
    shift: u32,
    bits: u32,
}

const fn field(word: usize, shift: u32, bits: u32) -> Field {
    Field { word, shift, bits }
}

/// One bit per layer: known to be there, known to be absent, or (unmasked) unknown.
pub(super) const HAS_IPV4: Field = field(0, 63, 1);
pub(super) const HAS_IPV6: Field = field(0, 62, 1);
pub(super) const HAS_TCP: Field = field(0, 61, 1);
pub(super) const HAS_UDP: Field = field(0, 60, 1);
/// Whether the host sends the packet. Every cube says so: the two ways never meet.
pub(super) const SENT: Field = field(0, 59, 1);
pub(super) const IP_FLAGS: Field = field(0, 56, 3);
/// The highest of them.
pub(super) const RESERVED_FLAG: Field = field(0, 58, 1);
/// IPv4 time to live or IPv6 hop limit.
pub(super) const TTL: Field = field(0, 48, 8);
/// IPv4 protocol or first IPv6 next header.
pub(super) const PROTOCOL: Field = field(0, 40, 8);
pub(super) const TOS: Field = field(0, 32, 8);
pub(super) const SRC_PORT: Field = field(0, 16, 16);
pub(super) const DST_PORT: Field = field(0, 0, 16);
/// The upper half of an IPv6 address.
pub(super) const DST_HIGH: Field = field(1, 0, 64);
pub(super) const SRC_HIGH: Field = field(2, 0, 64);
pub(super) const DST_LOW: Field = field(3, 0, 64);
pub(super) const SRC_LOW: Field = field(4, 0, 64);
/// IPv4 addresses share the first word with IPv6: no packet has both.
pub(super) const DST_IPV4: Field = field(1, 32, 32);
pub(super) const SRC_IPV4: Field = field(2, 32, 32);
pub(super) const DST_MAC: Field = field(5, 16, 48);
pub(super) const ETHER_TYPE: Field = field(5, 0, 16);
pub(super) const SRC_MAC: Field = field(6, 16, 48);
/// The control information of the outermost tag; any mask here means that this is an 802.1Q tag.
pub(super) const VLAN_TCI: Field = field(6, 0, 16);
pub(super) const FLOW_LABEL: Field = field(7, 0, 20);

/// Layers of the tunnel.
pub(super) const HAS_ESP: Field = field(TUNNEL, 63, 1);
pub(super) const HAS_VXLAN: Field = field(TUNNEL, 62, 1);
pub(super) const HAS_GRE: Field = field(TUNNEL, 61, 1);
pub(super) const HAS_MPLS: Field = field(TUNNEL, 60, 1);
/// There is a packet inside.
pub(super) const HAS_INNER: Field = field(TUNNEL, 59, 1);
pub(super) const VXLAN_VNI: Field = field(TUNNEL, 0, 24);
pub(super) const GRE_KEY: Field = field(TUNNEL + 1, 32, 32);
/// The upper byte of the first word of a GRE header.
pub(super) const GRE_FLAGS: Field = field(TUNNEL + 1, 16, 8);
pub(super) const GRE_PROTOCOL: Field = field(TUNNEL + 1, 0, 16);
/// The entry on top of the stack.
pub(super) const MPLS_TOP: Field = field(TUNNEL + 2, 0, 32);
pub(super) const ESP_SPI: Field = field(TUNNEL + 3, 32, 32);
pub(super) const ESP_SEQ: Field = field(TUNNEL + 3, 0, 32);

/// Every layer bit that a device is told by a spec of its own.
pub(super) const LAYERS: [Field; 13] = [
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

/// Every field of one packet's headers, layers included.
pub(super) const LEVEL_FIELDS: [Field; 17] = [
    HAS_IPV4,
    HAS_IPV6,
    HAS_TCP,
    HAS_UDP,
    IP_FLAGS,
    TTL,
    PROTOCOL,
    TOS,
    SRC_PORT,
    DST_PORT,
    DST_HIGH,
    SRC_HIGH,
    DST_LOW,
    SRC_LOW,
    FLOW_LABEL,
    DST_MAC_TYPE,
    SRC_MAC_TAG,
];
const DST_MAC_TYPE: Field = field(5, 0, 64);
const SRC_MAC_TAG: Field = field(6, 0, 64);

/// Every field of the tunnel, layers included.
pub(super) const TUNNEL_FIELDS: [Field; 4] =
    [field(TUNNEL, 0, 64), field(TUNNEL + 1, 0, 64), field(TUNNEL + 2, 0, 64), field(TUNNEL + 3, 0, 64)];

/// The bits by which a cube may imply others: layers, types and protocols.
const IMPLYING: [(usize, u64); 4] = [
    (HAS_IPV4.word, IMPLYING_NETWORK),
    (ETHER_TYPE.word, ETHER_TYPE.bits()),
    (HAS_IPV4.inside().word, IMPLYING_NETWORK),
    (TUNNEL, HAS_ESP.bits() | HAS_VXLAN.bits() | HAS_GRE.bits() | HAS_MPLS.bits() | HAS_INNER.bits()),
];
const IMPLYING_NETWORK: u64 =
    HAS_IPV4.bits() | HAS_IPV6.bits() | HAS_TCP.bits() | HAS_UDP.bits() | PROTOCOL.bits();

/// A conjunction of masked fields that at least one packet meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cube {
    /// Zero outside the mask.
    pub(super) value: Image,
    pub(super) mask: Image,
}

impl Cube {
    /// Every packet.
    pub(super) const ANY: Self = Self { value: [0; WORDS], mask: [0; WORDS] };

    /// The part of `self` whose field agrees with the value under the mask; nothing is implied yet.
    pub(super) fn with(mut self, field: Field, value: u64, mask: u64) -> Option<Self> {
        self.ask(field, value, mask)?;
        Some(self)
    }

    /// Makes it that part; `None` if there is none.
    fn ask(&mut self, field: Field, value: u64, mask: u64) -> Option<()> {
        let (value, mask) = ((value & mask) << field.shift, mask << field.shift);
        let word = field.word;
        if (self.value[word] ^ value) & self.mask[word] & mask != 0 {
            return None;
        }
        self.value[word] |= value;
        self.mask[word] |= mask;
        Some(())
    }

    /// The same of a layer that is there, or not.
    fn ask_layer(&mut self, layer: Field, present: bool) -> Option<()> {
        self.ask(layer, u64::from(present), 1)
    }

    /// The part of `self` with (or without) a layer.
    pub(super) fn layer(self, layer: Field, present: bool) -> Option<Self> {
        self.with(layer, u64::from(present), 1)
    }

    /// Packets in both, with all that follows from it; `None` if there are none.
    pub(super) fn and(&self, other: &Self) -> Option<Self> {
        if !self.overlaps(other) {
            return None;
        }
        let both = Self {
            value: std::array::from_fn(|i| self.value[i] | other.value[i]),
            mask: std::array::from_fn(|i| self.mask[i] | other.mask[i]),
        };
        // What implies nothing new needs no closing: most pairs differ in addresses and ports only.
        if both.implies_as(self) || both.implies_as(other) { Some(both) } else { both.closed() }
    }

    /// Whether all fields that imply something about others are as in a part of this cube.
    fn implies_as(&self, part: &Self) -> bool {
        self.implying() == part.implying()
    }

    /// Whether some packet may be in both closed cubes.
    #[inline]
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        (0..WORDS).all(|i| (self.value[i] ^ other.value[i]) & self.mask[i] & other.mask[i] == 0)
    }

    /// Whether every packet of `other` is in `self`; `other` must be closed.
    pub(super) fn contains(&self, other: &Self) -> bool {
        (0..WORDS).all(|i| {
            self.mask[i] & !other.mask[i] == 0 && (self.value[i] ^ other.value[i]) & self.mask[i] == 0
        })
    }

    pub(super) fn value_of(&self, field: Field) -> u64 {
        self.value[field.word] >> field.shift & field.ones()
    }

    pub(super) fn mask_of(&self, field: Field) -> u64 {
        self.mask[field.word] >> field.shift & field.ones()
    }

    /// Whether the layer is known to be there.
    pub(super) fn has(&self, layer: Field) -> bool {
        self.value_of(layer) == 1
    }

    /// Whether the layer is known to be absent.
    pub(super) fn lacks(&self, layer: Field) -> bool {
        self.mask_of(layer) == 1 && self.value_of(layer) == 0
    }

    /// Whether the field may still have that value.
    fn admits(&self, field: Field, value: u64) -> bool {
        (self.value_of(field) ^ value) & self.mask_of(field) == 0
    }

    /// The cube without what it says about a field; nothing is implied yet.
    pub(super) fn without(mut self, field: Field) -> Self {
        let bits = field.ones() << field.shift;
        self.value[field.word] &= !bits;
        self.mask[field.word] &= !bits;
        self
    }

    /// The cube as a device is told it: that a layer is absent has no words.
    pub(super) fn told(mut self) -> Self {
        for layer in LAYERS {
            // Where the layer is absent the value is zero already.
            self.mask[layer.word] &= self.value[layer.word] | !layer.bits();
        }
        self
    }

    /// Whether it says of a layer that it is absent where no flow can say so.
    pub(super) fn has_untold_absence(&self) -> bool {
        self.told().closed().as_ref() != Some(self)
    }

    /// Fills in what the fields imply about each other, as `packet::parse` guarantees it.
    pub(super) fn closed(self) -> Option<Self> {
        let mut cube = self;
        let mut known = Self::ANY.implying();
        // Only what implies something can change what follows.
        while cube.implying() != known {
            known = cube.implying();
            cube.close_tunnel()?;
            cube.close_level(&|field| field)?;
            if cube.mask[LEVEL_WORDS] != 0 {
                cube.close_level(&Field::inside)?;
            }
        }
        Some(cube)
    }

    /// All that may imply something about other fields, values and masks.
    fn implying(&self) -> [(u64, u64); IMPLYING.len()] {
        IMPLYING.map(|(word, bits)| (self.value[word] & bits, self.mask[word] & bits))
    }

    /// What an outer or an inner packet's headers say of each other.
    fn close_level(&mut self, at: &dyn Fn(Field) -> Field) -> Option<()> {
        let [v4, v6, tcp, udp] = [HAS_IPV4, HAS_IPV6, HAS_TCP, HAS_UDP].map(at);
        // A packet inside may have no Ethernet header, and then no type.
        let is_outer = v4.word == HAS_IPV4.word;
        for (layer, other, ether_type) in [(v4, v6, EtherType::IPV4), (v6, v4, EtherType::IPV6)] {
            let ether_type = u64::from(ether_type.0);
            if self.has(layer) {
                self.ask_layer(other, false)?;
                if is_outer {
                    self.ask(ETHER_TYPE, ether_type, ETHER_TYPE.ones())?;
                }
            } else if is_outer && !self.admits(ETHER_TYPE, ether_type) {
                self.ask_layer(layer, false)?;
            }
        }
        let no_ip = self.lacks(v4) && self.lacks(v6);
        for (layer, other, protocol) in [(tcp, udp, IpProtocol::TCP), (udp, tcp, IpProtocol::UDP)] {
            let protocol = u64::from(protocol.0);
            if self.has(layer) {
                self.ask_layer(other, false)?;
                self.ask(at(PROTOCOL), protocol, PROTOCOL.ones())?;
            } else if no_ip || !self.admits(at(PROTOCOL), protocol) {
                self.ask_layer(layer, false)?;
            }
            if self.has(layer) && no_ip {
                return None;
            }
        }
        Some(())
    }

    /// What a tunnel says of the packet that carries it.
    fn close_tunnel(&mut self) -> Option<()> {
        if self.mask[TUNNEL] >> HAS_INNER.shift == 0 {
            return Some(());
        }
        let no_ip = self.lacks(HAS_IPV4) && self.lacks(HAS_IPV6);
        if self.has(HAS_VXLAN) {
            self.ask_layer(HAS_UDP, true)?;
            self.ask(DST_PORT, u64::from(VXLAN_UDP_PORT), DST_PORT.ones())?;
        }
        for (layer, protocol) in [(HAS_ESP, IpProtocol::ESP), (HAS_GRE, IpProtocol::GRE)] {
            if self.has(layer) {
                self.ask(PROTOCOL, u64::from(protocol.0), PROTOCOL.ones())?;
                if no_ip {
                    return None;
                }
            }
        }
        (!(self.has(HAS_ESP) && self.has(HAS_INNER))).then_some(())
    }
}

impl Field {
    /// Whether it belongs to the outer packet.
    pub(super) const fn is_outer(self) -> bool {
        self.word < LEVEL_WORDS
    }

    /// Whether it belongs to the IP or transport header.
    pub(super) const fn is_network(self) -> bool {
        self.word != DST_MAC.word && self.word != SRC_MAC.word
    }

    /// The same field of the packet inside.
    pub(super) const fn inside(self) -> Self {
        Self { word: self.word + LEVEL_WORDS, ..self }
    }

    /// All bits of the field, where they lie in their word.
    const fn bits(self) -> u64 {
        self.ones() << self.shift
    }

    /// All bits of the field, from bit 0.
    pub(super) const fn ones(self) -> u64 {
        u64::MAX >> (u64::BITS - self.bits)
    }
}

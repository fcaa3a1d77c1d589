//! The packed image of everything that a device can match in a packet: its words, and the slots in which the
//! fields are.
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

/// Words of one packet's headers; those of the packet inside a tunnel follow in the same order.
pub const LEVEL_WORDS: usize = 8;
/// Words of the tunnel headers, behind both.
pub const TUNNEL: usize = 2 * LEVEL_WORDS;
pub const WORDS: usize = TUNNEL + 4;
pub type Image = [u64; WORDS];

/// A range of bits in a word of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    pub(crate) word: usize,
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
    pub(crate) const fn in_word(self) -> u64 {
        self.ones() << self.shift
    }

    /// All bits of the field, from bit 0.
    pub const fn ones(self) -> u64 {
        u64::MAX >> (u64::BITS - self.bits)
    }
}

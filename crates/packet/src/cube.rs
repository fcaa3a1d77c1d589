//! Sets of packets as a value and a mask over the packed image of everything that a device can match in a
//! packet. The compiler turns rules into such sets, and these into flows. Intersection, containment and
//! overlap are a few word operations.
//!
//! What one header implies about others (IPv4 about the EtherType, TCP about the protocol) is filled in by
//! [`Cube::closed`]. It does not fill in which tunnel carries an inner packet, so two such cubes may seem to
//! overlap although no packet is in both: the compiler then orders two flows that need no order.
//!
//! The fields are [slots](Slot) of the image.

#[cfg(test)]
mod tests;

use crate::{EtherType, IpProtocol, VXLAN_UDP_PORT};

pub use crate::slots::*;

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
    /// The bits that are compared.
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
        self.mask = self.matchable_mask();
        self
    }

    /// The mask without the absence of layers: the bits that a flow can compare.
    #[inline]
    pub fn matchable_mask(&self) -> Image {
        let mut mask = self.mask;
        for layer in LAYERS {
            // Where the layer is absent the value is zero already.
            mask[layer.word] &= self.value[layer.word] | !layer.in_word();
        }
        mask
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

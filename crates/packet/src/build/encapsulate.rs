//! Frames inside frames: what [`FrameBuilder`] writes around a packet that was built before.
//!
//! The packet inside is bytes, so that tunnels nest; it takes the place of the payload. The outer frame's lengths and
//! checksums are right whatever it is, which need not be.

use super::{FrameBuilder, Network};
use crate::{EtherType, IpProtocol, MPLS_UDP_PORT, VXLAN_UDP_PORT};

/// The source port of UDP tunnels, which is free to choose (RFC 7348, 5; RFC 7510, 3).
const ENTROPY_PORT: u16 = 49_152;

/// How many bits of a label stack entry the traffic class, the S bit and the TTL take.
const LABEL_SHIFT: u32 = 12;
/// The last entry of a label stack (RFC 3032, 2.1).
const BOTTOM: u32 = 1 << 8;

/// A label stack entry with TTL 64; [`FrameBuilder::mpls`] marks the bottom.
pub fn mpls_label(label: u32, traffic_class: u8) -> u32 {
    (label & 0x000f_ffff) << LABEL_SHIFT | u32::from(traffic_class & 7) << 9 | 64
}

/// The bytes of a label stack, top first with its last entry marked, before the packet `inner`.
pub fn label_stack(entries: &[u32], inner: &[u8]) -> Vec<u8> {
    let mut stack = Vec::with_capacity(4 * entries.len() + inner.len());
    for (place, entry) in entries.iter().enumerate() {
        let bottom = if place + 1 == entries.len() { BOTTOM } else { 0 };
        stack.extend((entry & !BOTTOM | bottom).to_be_bytes());
    }
    stack.extend(inner);
    stack
}

impl FrameBuilder {
    /// VXLAN: the frame `inner` in a UDP datagram, with a valid network identifier of 24 bits. Wants an IP layer.
    pub fn vxlan(self, vni: u32, inner: &[u8]) -> Self {
        let [_, n0, n1, n2] = vni.to_be_bytes();
        let mut payload = vec![0x08, 0, 0, 0, n0, n1, n2, 0];
        payload.extend(inner);
        self.udp(ENTROPY_PORT, VXLAN_UDP_PORT).payload(&payload)
    }

    /// GRE version 0 with an optional key: `inner` is what `protocol` says. Wants an IP layer.
    pub fn gre(self, protocol: EtherType, key: Option<u32>, inner: &[u8]) -> Self {
        let mut payload = vec![if key.is_some() { 0x20 } else { 0 }, 0];
        payload.extend(protocol.0.to_be_bytes());
        payload.extend(key.map(u32::to_be_bytes).into_iter().flatten());
        payload.extend(inner);
        self.protocol(IpProtocol::GRE).payload(&payload)
    }

    /// A label stack, top first, before the packet `inner`; see [`mpls_label`]. Without an IP layer behind Ethernet, with
    /// one in a UDP datagram. In GRE: give [`label_stack`] to [`FrameBuilder::gre`].
    pub fn mpls(self, entries: &[u32], inner: &[u8]) -> Self {
        let payload = label_stack(entries, inner);
        match self.network {
            Network::None => self.ether_type(EtherType::MPLS).payload(&payload),
            _ => self.udp(ENTROPY_PORT, MPLS_UDP_PORT).payload(&payload),
        }
    }

    /// ESP: index, sequence number, and what is encrypted. Wants an IP layer.
    pub fn esp(self, spi: u32, sequence: u32, encrypted: &[u8]) -> Self {
        let mut payload = spi.to_be_bytes().to_vec();
        payload.extend(sequence.to_be_bytes());
        payload.extend(encrypted);
        self.protocol(IpProtocol::ESP).payload(&payload)
    }

    /// IP in IP: `inner` is the packet inside, of the version that its first nibble says. Wants an IP layer.
    pub fn ip_in_ip(self, inner: &[u8]) -> Self {
        let is_v6 = inner.first().is_some_and(|first| first >> 4 == 6);
        self.protocol(if is_v6 { IpProtocol::IPV6 } else { IpProtocol::IPV4 }).payload(inner)
    }

    /// The frame without its Ethernet header and tags: a packet to put inside another.
    pub fn build_packet(&self) -> Vec<u8> {
        self.build().split_off(14 + 4 * self.tags.len())
    }
}

//! Which fields a receive-side hash covers, and the bytes that it is computed over.
//!
//! softnic's engine hashes every frame that meets an RSS queue pair; policy's `explain` predicts it with the same code
//! path only through [`FlowKey`]. Nothing here looks at a frame.

use crate::{FlowKey, Layers};

/// The longest input: two IPv6 addresses and two ports.
pub const HASH_INPUT_BYTES: usize = 36;

bitflags::bitflags! {
    /// Fields of the hash, with the values of `enum ibv_rx_hash_fields` (infiniband/verbs.h).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct HashFields: u32 {
        /// IPv4 source address.
        const SRC_IPV4 = 1;
        /// IPv4 destination address.
        const DST_IPV4 = 1 << 1;
        /// IPv6 source address.
        const SRC_IPV6 = 1 << 2;
        /// IPv6 destination address.
        const DST_IPV6 = 1 << 3;
        /// TCP source port.
        const SRC_PORT_TCP = 1 << 4;
        /// TCP destination port.
        const DST_PORT_TCP = 1 << 5;
        /// UDP source port.
        const SRC_PORT_UDP = 1 << 6;
        /// UDP destination port.
        const DST_PORT_UDP = 1 << 7;
    }
}

impl HashFields {
    /// Both IPv4 addresses.
    pub const IPV4: Self = Self::SRC_IPV4.union(Self::DST_IPV4);
    /// Both IPv6 addresses.
    pub const IPV6: Self = Self::SRC_IPV6.union(Self::DST_IPV6);
    /// Both TCP ports.
    pub const TCP: Self = Self::SRC_PORT_TCP.union(Self::DST_PORT_TCP);
    /// Both UDP ports.
    pub const UDP: Self = Self::SRC_PORT_UDP.union(Self::DST_PORT_UDP);
    /// Addresses of either family.
    pub const L3: Self = Self::IPV4.union(Self::IPV6);
    /// Addresses of either family and the ports of either transport.
    pub const L3L4: Self = Self::L3.union(Self::TCP).union(Self::UDP);
}

impl FlowKey {
    /// Writes what `fields` selects from this key: source address, destination address, source port, destination port.
    ///
    /// Returns the number of bytes written, 0 when nothing selected is present. Ports of fragments never count: later
    /// fragments have none, and all fragments of a datagram must meet the same queue.
    #[inline]
    pub fn hash_input(&self, fields: HashFields, out: &mut [u8; HASH_INPUT_BYTES]) -> usize {
        let _ = (fields, out);
        todo!()
    }
}

//! Which fields a receive-side hash covers, and the bytes that it is computed over.
//!
//! softnic's engine asks for every frame that meets an RSS queue pair, and policy's `explain` for the packet
//! whose queue it predicts. All is taken from a [`FlowKey`]: nothing here looks at a frame.

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
        /// Security parameters index of ESP; only [`crate::DeepKey::hash_input`] hashes it.
        const IPSEC_SPI = 1 << 8;
        /// The other fields are those of the packet inside a tunnel; only [`crate::DeepKey::hash_input`]
        /// reads them.
        const INNER = 1 << 31;
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
    /// Fields for which the tunnel headers must be parsed.
    pub const DEEP: Self = Self::IPSEC_SPI.union(Self::INNER);
    /// Addresses of either family and the ports of either transport.
    pub const L3L4: Self = Self::L3.union(Self::TCP).union(Self::UDP);
}

impl FlowKey {
    /// Writes what `fields` selects from this key: source address, destination address, source port,
    /// destination port.
    ///
    /// Returns the number of bytes written, 0 when nothing selected is present. Ports count only right behind
    /// a plain IP header: not those of fragments, of which only the first has any and all must meet the same
    /// queue, and not those behind IPv4 options or IPv6 extension headers, which this NIC does not skip when
    /// it hashes. (A NIC may do either: the Windows drivers' NetAdapterReceiveScalingProtocolTypeIPv4Options
    /// and ...IPv6Extensions report which.)
    #[inline]
    pub fn hash_input(&self, fields: HashFields, out: &mut [u8; HASH_INPUT_BYTES]) -> usize {
        let mut input = Input { out, length: 0 };
        if self.layers.contains(Layers::IPV4) {
            if fields.contains(HashFields::SRC_IPV4) {
                input.append(&ipv4_octets(&self.src_ip));
            }
            if fields.contains(HashFields::DST_IPV4) {
                input.append(&ipv4_octets(&self.dst_ip));
            }
        } else if self.layers.contains(Layers::IPV6) {
            if fields.contains(HashFields::SRC_IPV6) {
                input.append(&self.src_ip);
            }
            if fields.contains(HashFields::DST_IPV6) {
                input.append(&self.dst_ip);
            }
        }
        let (src_port, dst_port) = self.port_fields();
        if fields.intersects(src_port) {
            input.append(&self.src_port.to_be_bytes());
        }
        if fields.intersects(dst_port) {
            input.append(&self.dst_port.to_be_bytes());
        }
        input.length
    }

    /// Which fields name the ports of this packet, if it has ports that may be hashed.
    #[inline]
    fn port_fields(&self) -> (HashFields, HashFields) {
        if self.layers.intersects(Layers::FRAGMENT | Layers::IP_OPTIONS) {
            (HashFields::empty(), HashFields::empty())
        } else if self.layers.contains(Layers::TCP) {
            (HashFields::SRC_PORT_TCP, HashFields::DST_PORT_TCP)
        } else if self.layers.contains(Layers::UDP) {
            (HashFields::SRC_PORT_UDP, HashFields::DST_PORT_UDP)
        } else {
            (HashFields::empty(), HashFields::empty())
        }
    }
}

pub(crate) struct Input<'o> {
    pub(crate) out: &'o mut [u8; HASH_INPUT_BYTES],
    pub(crate) length: usize,
}

impl Input<'_> {
    /// Appends in one fixed-size store. It always fits, since 2 * 16 + 2 * 2 is the size of the buffer,
    /// and a packet with an ESP header has no ports.
    #[inline]
    pub(crate) fn append<const N: usize>(&mut self, field: &[u8; N]) {
        if let Some(free) = self.out.get_mut(self.length..).and_then(|rest| rest.first_chunk_mut::<N>()) {
            *free = *field;
            self.length += N;
        }
    }
}

#[inline]
fn ipv4_octets(address: &[u8; 16]) -> [u8; 4] {
    let [a, b, c, d, ..] = *address;
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp_key(family: Layers) -> FlowKey {
        FlowKey {
            layers: family | Layers::TCP,
            src_ip: std::array::from_fn(|i| i as u8),
            dst_ip: std::array::from_fn(|i| 0x80 + i as u8),
            src_port: 0x1122,
            dst_port: 0x3344,
            ..FlowKey::default()
        }
    }

    fn input(key: &FlowKey, fields: HashFields) -> Vec<u8> {
        let mut out = [0xee; HASH_INPUT_BYTES];
        let length = key.hash_input(fields, &mut out);
        assert!(out[length..].iter().all(|byte| *byte == 0xee), "wrote past the length it returned");
        out[..length].to_vec()
    }

    #[test]
    fn fields_stand_in_wire_order() {
        let key = tcp_key(Layers::IPV4);
        assert_eq!(
            input(&key, HashFields::L3L4),
            [0, 1, 2, 3, 0x80, 0x81, 0x82, 0x83, 0x11, 0x22, 0x33, 0x44]
        );
        assert_eq!(input(&key, HashFields::SRC_IPV4 | HashFields::DST_PORT_TCP), [0, 1, 2, 3, 0x33, 0x44]);
        assert_eq!(input(&key, HashFields::DST_IPV4), [0x80, 0x81, 0x82, 0x83]);
        let key = tcp_key(Layers::IPV6);
        let long = input(&key, HashFields::L3L4);
        assert_eq!(long.len(), HASH_INPUT_BYTES);
        assert_eq!(long[..16], key.src_ip);
        assert_eq!(long[16..32], key.dst_ip);
        assert_eq!(long[32..], [0x11, 0x22, 0x33, 0x44]);
        assert_eq!(input(&key, HashFields::SRC_IPV6), key.src_ip);
        assert_eq!(input(&key, HashFields::DST_IPV6), key.dst_ip);
    }

    #[test]
    fn fields_of_absent_layers_are_left_out() {
        let key = tcp_key(Layers::IPV4);
        assert_eq!(input(&key, HashFields::IPV6 | HashFields::UDP), [0_u8; 0]);
        assert_eq!(input(&FlowKey { layers: Layers::VLAN, ..key }, HashFields::all()), [0_u8; 0]);
        let udp = FlowKey { layers: Layers::IPV4 | Layers::UDP, ..key };
        assert_eq!(input(&udp, HashFields::UDP | HashFields::IPV6), [0x11, 0x22, 0x33, 0x44]);
        assert_eq!(input(&udp, HashFields::TCP), [0_u8; 0]);
        assert_eq!(input(&udp, HashFields::SRC_PORT_UDP), [0x11, 0x22]);
        assert_eq!(input(&udp, HashFields::DST_PORT_UDP), [0x33, 0x44]);
    }

    #[test]
    fn ports_count_only_right_behind_a_plain_header() {
        for layer in [Layers::FRAGMENT, Layers::IP_OPTIONS] {
            let mut key = tcp_key(Layers::IPV4);
            key.layers |= layer;
            assert_eq!(input(&key, HashFields::L3L4).len(), 8);
            assert_eq!(input(&key, HashFields::TCP), [0_u8; 0]);
        }
    }

    #[test]
    fn values_are_those_of_the_verbs() {
        assert_eq!(HashFields::L3L4.bits(), 0xff);
        assert_eq!(HashFields::TCP.bits(), 0x30);
        assert_eq!(HashFields::UDP.bits(), 0xc0);
        assert_eq!(HashFields::IPV6.bits(), 0x0c);
        assert_eq!(HashFields::DEEP.bits(), 0x8000_0100);
    }
}

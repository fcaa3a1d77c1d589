//! What the sketch and the export count by: the flow of a packet, packed into a few words.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use packet::{FlowKey, Layers, MacAddr, PacketFlow};

/// Words of a packed flow.
pub(super) const WORDS: usize = 5;

/// A packed flow: two addresses of two words each; ports, protocol or EtherType, and kind in the last one.
pub(super) type Packed = [u64; WORDS];

const KIND_IPV4: u64 = 1;
const KIND_IPV6: u64 = 2;
const KIND_PORTS: u64 = 4;

/// The flow of a packet.
#[inline]
pub(super) fn pack(key: &FlowKey) -> Packed {
    let ip = key.layers & (Layers::IPV4 | Layers::IPV6);
    if ip.is_empty() {
        let mac = |MacAddr([a, b, c, d, e, f]): MacAddr| u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
        return [mac(key.src_mac), 0, mac(key.dst_mac), 0, u64::from(key.ether_type) << 8];
    }
    let kind = if ip.contains(Layers::IPV4) { KIND_IPV4 } else { KIND_IPV6 };
    let has_ports = key.layers.intersects(Layers::TCP | Layers::UDP | Layers::SCTP);
    let [src, dst] = [key.src_ip, key.dst_ip].map(u128::from_be_bytes);
    let ports = u64::from(key.src_port) << 48 | u64::from(key.dst_port) << 32;
    let last = if has_ports { ports | KIND_PORTS } else { 0 } | u64::from(key.protocol) << 8 | kind;
    [(src >> 64) as u64, src as u64, (dst >> 64) as u64, dst as u64, last]
}

/// Folded multiplications by secret keys, so that senders cannot choose flows that collide.
pub(super) struct FlowHasher([u64; WORDS + 1]);

impl FlowHasher {
    /// New keys.
    pub(super) fn new() -> Self {
        let random = RandomState::new();
        Self(std::array::from_fn(|index| {
            let mut hasher = random.build_hasher();
            hasher.write_usize(index);
            hasher.finish()
        }))
    }

    #[inline]
    pub(super) fn hash(&self, flow: &Packed) -> u64 {
        let fold = |a: u64, b: u64| {
            let product = u128::from(a) * u128::from(b);
            product as u64 ^ (product >> 64) as u64
        };
        let [k0, k1, k2, k3, k4, k5] = self.0;
        let [f0, f1, f2, f3, f4] = *flow;
        let addresses = fold(f0 ^ k0, f1 ^ k1) ^ fold(f2 ^ k2, f3 ^ k3).rotate_left(32);
        fold(addresses ^ k4, f4 ^ k5)
    }
}

/// The flow that was packed.
pub(super) fn unpack(packed: Packed) -> PacketFlow {
    let [src_high, src_low, dst_high, dst_low, last] = packed;
    let is_v4 = last & KIND_IPV4 != 0;
    if last & (KIND_IPV4 | KIND_IPV6) == 0 {
        let mac = |word: u64| {
            let [_, _, a, b, c, d, e, f] = word.to_be_bytes();
            MacAddr([a, b, c, d, e, f])
        };
        return PacketFlow::Ethernet {
            src: mac(src_high),
            dst: mac(dst_high),
            ether_type: (last >> 8) as u16,
        };
    }
    let address = |high: u64, low: u64| {
        if is_v4 {
            IpAddr::from(Ipv4Addr::from_bits((high >> 32) as u32))
        } else {
            IpAddr::from(Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low)))
        }
    };
    PacketFlow::Ip {
        src: address(src_high, src_low),
        dst: address(dst_high, dst_low),
        protocol: (last >> 8) as u8,
        ports: (last & KIND_PORTS != 0).then_some(((last >> 48) as u16, (last >> 32) as u16)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(layers: Layers, protocol: u8) -> PacketFlow {
        let mut key = FlowKey { layers, protocol, src_port: 53, dst_port: 4242, ..FlowKey::default() };
        key.ether_type = 0x0806;
        key.src_mac = MacAddr([2, 0, 0, 0, 0, 9]);
        key.src_ip[..4].copy_from_slice(&[192, 0, 2, 1]);
        key.dst_ip[..4].copy_from_slice(&[198, 51, 100, 7]);
        let flow = unpack(pack(&key));
        assert_eq!(flow, PacketFlow::of(&key));
        flow
    }

    #[test]
    fn a_flow_is_the_same_after_packing() {
        let udp = flow(Layers::IPV4 | Layers::UDP, 17);
        assert_eq!(udp.to_string(), "192.0.2.1:53 > 198.51.100.7:4242 udp");
        assert_eq!(flow(Layers::IPV4, 1).to_string(), "192.0.2.1 > 198.51.100.7 icmp");
        let tcp = flow(Layers::IPV6 | Layers::TCP, 6).to_string();
        assert_eq!(tcp, "[c000:201::]:53 > [c633:6407::]:4242 tcp");
        let arp = flow(Layers::empty(), 0).to_string();
        assert_eq!(arp, "02:00:00:00:00:09 > 00:00:00:00:00:00 ethertype arp");
    }
}

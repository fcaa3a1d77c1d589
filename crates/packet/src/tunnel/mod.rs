//! What is inside: the first encapsulation of a frame, as plain values.
//!
//! softnic's engine calls [`parse_tunnel`] for frames of a port that has flows about tunnels, and the worker for classes
//! that ask for such a field; nobody else pays for it. It starts where [`crate::parse`] stopped, reads one tunnel and
//! the packet inside that, and goes no deeper. Like `parse` it is total, never allocates, and is strict: a header that
//! is cut or of another version is no header. One protocol per file; each reads its own header and nothing else.

mod esp;
mod gre;
mod ip_in_ip;
mod mpls;
mod vxlan;

use crate::hash_fields::Input;
use crate::parse::{IPV6_BYTES, UDP_BYTES, parse_packet};
use crate::{EtherType, FlowKey, HASH_INPUT_BYTES, HashFields, IpProtocol, Layers, Parsed, parse};

pub use mpls::{MAX_MPLS_LABELS, MPLS_UDP_PORT};
pub use vxlan::VXLAN_UDP_PORT;

bitflags::bitflags! {
    /// Which tunnel headers a frame has.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct TunnelLayers: u16 {
        /// An ESP header right behind the IP header.
        const ESP = 1;
        /// A GRE header of version 0, whole with its optional fields.
        const GRE = 1 << 1;
        /// That header has a key.
        const GRE_KEY = 1 << 2;
        /// A VXLAN header whose network identifier is valid.
        const VXLAN = 1 << 3;
        /// At least one MPLS label: behind Ethernet, GRE (then with [`GRE`](Self::GRE)) or UDP.
        const MPLS = 1 << 4;
        /// The IP header is followed by another.
        const IP_IN_IP = 1 << 5;
        /// The packet inside begins with an Ethernet header.
        const INNER_ETHERNET = 1 << 6;
        /// There is a packet inside, and [`TunnelKey::inner`] is about it.
        const INNER = 1 << 7;
    }
}

/// The matchable fields of a tunnel, in host byte order; zero where the layer is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct TunnelKey {
    /// Which layers were found; a field means something only if its layer is here.
    pub layers: TunnelLayers,
    /// Security parameters index.
    pub esp_spi: u32,
    /// Sequence number of the ESP packet.
    pub esp_seq: u32,
    /// The first word of the GRE header: which optional fields are there (C, K, S from the top), reserved bits, version.
    pub gre_flags: u16,
    /// The EtherType of what GRE carries.
    pub gre_protocol: u16,
    /// The key, if [`TunnelLayers::GRE_KEY`].
    pub gre_key: u32,
    /// VXLAN network identifier, 24 bits.
    pub vxlan_vni: u32,
    /// The label stack, top first, as far as there is room: label (20 bits), traffic class (3), bottom (1), TTL (8).
    pub mpls: [u32; MAX_MPLS_LABELS],
    /// How many of them there are.
    pub mpls_depth: u8,
    /// The first label behind the inner Ethernet header, if its type is MPLS; never 0 then, by its TTL or its S bit.
    pub inner_mpls: u32,
    /// The packet inside. Without an inner Ethernet header its addresses and `ether_type` are zero.
    pub inner: FlowKey,
}

/// Everything about a frame that can be matched: the outer packet and the tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct DeepKey {
    /// What [`crate::parse`] says.
    pub outer: FlowKey,
    /// What [`parse_tunnel`] says.
    pub tunnel: TunnelKey,
}

impl DeepKey {
    /// The deep key of a frame.
    pub fn of(frame: &[u8]) -> Self {
        let parsed = parse(frame);
        Self { outer: parsed.key, tunnel: parse_tunnel(frame, &parsed) }
    }

    /// As [`FlowKey::hash_input`], with the fields that need a look into tunnels: with [`HashFields::INNER`] it is the
    /// packet inside whose addresses and ports count, and a frame without one has nothing to hash;
    /// [`HashFields::IPSEC_SPI`] appends the index of an outer ESP header.
    pub fn hash_input(&self, fields: HashFields, out: &mut [u8; HASH_INPUT_BYTES]) -> usize {
        let inside = fields.contains(HashFields::INNER);
        let key = if inside { &self.tunnel.inner } else { &self.outer };
        let length = key.hash_input(fields, out);
        let has_index = self.tunnel.layers.contains(TunnelLayers::ESP);
        if !fields.contains(HashFields::IPSEC_SPI) || !has_index || inside {
            return length;
        }
        let mut input = Input { out, length };
        input.append(&self.tunnel.esp_spi.to_be_bytes());
        input.length
    }
}

/// Reads the tunnel of a frame that [`crate::parse`] has read. Total: without a tunnel all is zero.
pub fn parse_tunnel(frame: &[u8], outer: &Parsed) -> TunnelKey {
    let mut key = TunnelKey::default();
    let layers = outer.key.layers;
    if layers.intersects(Layers::IPV4 | Layers::IPV6) {
        if let Some(payload) = ip_payload(frame, outer) {
            in_ip(&mut key, payload, &outer.key);
        }
    } else if is_mpls(outer.key.ether_type)
        && let Some(stack) = frame.get(usize::from(outer.l3_offset)..)
    {
        mpls::read(&mut key, stack);
    }
    key
}

fn is_mpls(ether_type: u16) -> bool {
    matches!(EtherType(ether_type), EtherType::MPLS | EtherType::MPLS_MULTICAST)
}

/// What follows the IP header, as far as the packet says and the frame goes; nothing of later fragments.
fn ip_payload<'f>(frame: &'f [u8], outer: &Parsed) -> Option<&'f [u8]> {
    let packet = frame.get(usize::from(outer.l3_offset)..)?;
    if outer.key.layers.contains(Layers::LATER_FRAGMENT) {
        return None;
    }
    let length =
        |at: usize| packet.get(at..)?.first_chunk::<2>().map(|two| usize::from(u16::from_be_bytes(*two)));
    // 0: a packet that segmentation offload has yet to cut, as in `parse`.
    let (start, said) = if outer.key.layers.contains(Layers::IPV4) {
        (usize::from(packet.first()? & 0x0f) * 4, length(2)?)
    } else {
        (IPV6_BYTES, length(4).map(|bytes| if bytes == 0 { 0 } else { IPV6_BYTES + bytes })?)
    };
    let end = if said == 0 { packet.len() } else { said.min(packet.len()) };
    packet.get(start..end)
}

/// Reads what an IP header announces as its payload.
fn in_ip(key: &mut TunnelKey, payload: &[u8], outer: &FlowKey) {
    match IpProtocol(outer.protocol) {
        IpProtocol::UDP if outer.layers.contains(Layers::UDP) => {
            let Some(datagram) = payload.get(UDP_BYTES..) else { return };
            match outer.dst_port {
                VXLAN_UDP_PORT => vxlan::read(key, datagram),
                MPLS_UDP_PORT => mpls::read(key, datagram),
                _ => {}
            }
        }
        IpProtocol::GRE => gre::read(key, payload),
        IpProtocol::ESP => esp::read(key, payload),
        IpProtocol::IPV4 => ip_in_ip::read(key, payload, Layers::IPV4),
        IpProtocol::IPV6 => ip_in_ip::read(key, payload, Layers::IPV6),
        _ => {}
    }
}

impl TunnelKey {
    /// Takes the packet inside to begin with an Ethernet header, if there is one.
    fn inner_ethernet(&mut self, frame: &[u8]) {
        let parsed = parse(frame);
        // Without a whole Ethernet header there is no layer behind it.
        if parsed.l3_offset == 0 {
            return;
        }
        self.layers |= TunnelLayers::INNER_ETHERNET | TunnelLayers::INNER;
        self.inner = parsed.key;
        if is_mpls(parsed.key.ether_type)
            && let Some(stack) = frame.get(usize::from(parsed.l3_offset)..)
        {
            self.inner_mpls = mpls::top(stack).unwrap_or_default();
        }
    }

    /// Takes the packet inside to be of this IP version, if it is well-formed; answers whether it is.
    fn inner_ip(&mut self, packet: &[u8], version: Layers) -> bool {
        let inner = parse_packet(packet, version);
        let found = inner.layers.contains(version);
        if found {
            self.layers |= TunnelLayers::INNER;
            self.inner = inner;
        }
        found
    }
}

#[cfg(test)]
mod tests;

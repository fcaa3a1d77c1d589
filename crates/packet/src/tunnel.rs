//! The first encapsulation of a frame, as plain values.
//!
//! softnic's engine calls [`parse_tunnel`] for frames of a port that has flows on tunnel headers, and the
//! worker for classes that need such a field; other packets do not pay for it. It starts where
//! [`crate::parse`] stopped, reads one tunnel and the packet inside that, and goes no deeper. Like `parse` it
//! is total, never allocates, and is strict: a header that is truncated or of another version counts as
//! absent.

use crate::hash_fields::Input;
use crate::lengths::{GRE_BYTES, IPV6_BYTES, UDP_BYTES, VXLAN_BYTES};
use crate::parse::parse_packet;
use crate::slots::{self, Slot, TUNNEL, WORDS};
use crate::{
    EtherType, ExtendedKey, FlowKey, HASH_INPUT_BYTES, HashFields, IpProtocol, Layers, Parsed, parse,
};

/// The destination port of VXLAN (IANA).
pub const VXLAN_UDP_PORT: u16 = 4789;
/// The I flag: the identifier is valid; without it a receiver drops the packet (RFC 7348, 5).
pub(crate) const VNI_VALID: u8 = 0x08;
/// The flag of a GRE header with a key, in the upper byte of the first word (RFC 2890).
pub const GRE_HAS_KEY: u8 = 0x20;
/// Bits of the first word of a GRE header.
const GRE_CHECKSUM: u16 = 0x8000;
/// RFC 1701: a source route of any length follows, which no receiver must understand (RFC 2784, 2.3).
const GRE_ROUTING: u16 = 0x4000;
const GRE_KEY: u16 = (GRE_HAS_KEY as u16) << 8;
const GRE_SEQUENCE: u16 = 0x1000;
const GRE_VERSION: u16 = 0x0007;
/// Each optional field of a GRE header: a checksum with reserved bits, the key, the sequence number.
const GRE_FIELD_BYTES: usize = 4;
/// Transparent Ethernet bridging.
pub const BRIDGED_ETHERNET: EtherType = EtherType(0x6558);
/// How many entries of a stack are read; the packet behind a deeper stack is not.
pub const MAX_MPLS_LABELS: usize = 4;
/// The destination port of MPLS in UDP (IANA).
pub const MPLS_UDP_PORT: u16 = 6635;
const LABEL_BYTES: usize = 4;
/// Set in the last entry of a label stack (RFC 3032, 2.1).
pub const BOTTOM_OF_STACK: u32 = 1 << 8;
/// Security parameters index and sequence number.
const ESP_BYTES: usize = 8;

bitflags::bitflags! {
    /// Which tunnel headers a frame has.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct TunnelLayers: u16 {
        /// An ESP header right behind the IP header.
        const ESP = 1;
        /// A GRE header of version 0, whole with its optional fields.
        const GRE = 1 << 1;
        /// The GRE header has a key.
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
    /// The first word of the GRE header: which optional fields are there (C, K, S from the top), reserved
    /// bits, version.
    pub gre_flags: u16,
    /// The EtherType of what GRE carries.
    pub gre_protocol: u16,
    /// The key, if [`TunnelLayers::GRE_KEY`].
    pub gre_key: u32,
    /// VXLAN network identifier, 24 bits.
    pub vxlan_vni: u32,
    /// The label stack, top first, as many entries as fit: label (20 bits), traffic class (3), bottom (1),
    /// TTL (8).
    pub mpls: [u32; MAX_MPLS_LABELS],
    /// How many of them there are.
    pub mpls_depth: u8,
    /// The first label behind the inner Ethernet header, if its type is MPLS; never 0 then, by its TTL or its
    /// S bit.
    pub inner_mpls: u32,
    /// The packet inside. Without an inner Ethernet header its addresses and `ether_type` are zero.
    pub inner: FlowKey,
}

/// Everything about a frame that can be matched: the outer packet and the tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct DeepKey {
    /// The result of [`crate::parse`].
    pub outer: FlowKey,
    /// The result of [`parse_tunnel`].
    pub tunnel: TunnelKey,
}

impl DeepKey {
    /// The deep key of a frame.
    pub fn of(frame: &[u8]) -> Self {
        let parsed = parse(frame);
        Self { outer: parsed.key, tunnel: parse_tunnel(frame, &parsed) }
    }

    /// Writes the hash input as [`FlowKey::hash_input`] does, with the fields that need a look into tunnels:
    /// with [`HashFields::INNER`] it is the packet inside whose addresses and ports count, and a frame
    /// without one has nothing to hash; [`HashFields::IPSEC_SPI`] appends the index of an outer ESP header.
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
        mpls(&mut key, stack);
    }
    key
}

fn is_mpls(ether_type: u16) -> bool {
    matches!(EtherType(ether_type), EtherType::MPLS | EtherType::MPLS_MULTICAST)
}

/// The payload of the IP packet, to the end of the packet or of the frame, whichever is first; none of later
/// fragments.
fn ip_payload<'f>(frame: &'f [u8], outer: &Parsed) -> Option<&'f [u8]> {
    let packet = frame.get(usize::from(outer.l3_offset)..)?;
    if outer.key.layers.contains(Layers::LATER_FRAGMENT) {
        return None;
    }
    let length_at =
        |at: usize| packet.get(at..)?.first_chunk::<2>().map(|two| usize::from(u16::from_be_bytes(*two)));
    // 0: a packet that segmentation offload has yet to cut, as in `parse`.
    let (start, length) = if outer.key.layers.contains(Layers::IPV4) {
        (usize::from(packet.first()? & 0x0f) * 4, length_at(2)?)
    } else {
        (IPV6_BYTES, length_at(4).map(|bytes| if bytes == 0 { 0 } else { IPV6_BYTES + bytes })?)
    };
    let end = if length == 0 { packet.len() } else { length.min(packet.len()) };
    packet.get(start..end)
}

/// Reads the tunnel header that the IP protocol, or the UDP port, announces.
fn in_ip(key: &mut TunnelKey, payload: &[u8], outer: &FlowKey) {
    match IpProtocol(outer.protocol) {
        IpProtocol::UDP if outer.layers.contains(Layers::UDP) => {
            let Some(datagram) = payload.get(UDP_BYTES..) else { return };
            match outer.dst_port {
                VXLAN_UDP_PORT => vxlan(key, datagram),
                MPLS_UDP_PORT => mpls(key, datagram),
                _ => {}
            }
        }
        IpProtocol::GRE => gre(key, payload),
        IpProtocol::ESP => esp(key, payload),
        IpProtocol::IPV4 => ip_in_ip(key, payload, Layers::IPV4),
        IpProtocol::IPV6 => ip_in_ip(key, payload, Layers::IPV6),
        _ => {}
    }
}

/// Virtual eXtensible LAN (RFC 7348): an Ethernet frame in a UDP datagram, with a 24-bit network identifier.
fn vxlan(key: &mut TunnelKey, datagram: &[u8]) {
    let Some((header, frame)) = datagram.split_first_chunk::<VXLAN_BYTES>() else { return };
    let [flags, _, _, _, n0, n1, n2, _] = *header;
    if flags & VNI_VALID == 0 {
        return;
    }
    key.layers |= TunnelLayers::VXLAN;
    key.vxlan_vni = u32::from_be_bytes([0, n0, n1, n2]);
    key.inner_ethernet(frame);
}

/// Generic Routing Encapsulation, version 0 (RFC 2784, with the key and sequence number of RFC 2890).
fn gre(key: &mut TunnelKey, packet: &[u8]) {
    let Some((&[f0, f1, p0, p1], mut rest)) = packet.split_first_chunk::<GRE_BYTES>() else { return };
    let flags = u16::from_be_bytes([f0, f1]);
    let protocol = u16::from_be_bytes([p0, p1]);
    if flags & (GRE_VERSION | GRE_ROUTING) != 0 {
        return;
    }
    let mut found = None;
    for field in [GRE_CHECKSUM, GRE_KEY, GRE_SEQUENCE] {
        if flags & field != 0 {
            let Some((value, after)) = rest.split_first_chunk::<GRE_FIELD_BYTES>() else { return };
            if field == GRE_KEY {
                found = Some(u32::from_be_bytes(*value));
            }
            rest = after;
        }
    }
    key.layers |= TunnelLayers::GRE;
    key.gre_flags = flags;
    key.gre_protocol = protocol;
    if let Some(value) = found {
        key.layers |= TunnelLayers::GRE_KEY;
        key.gre_key = value;
    }
    match EtherType(protocol) {
        BRIDGED_ETHERNET => key.inner_ethernet(rest),
        EtherType::IPV4 => _ = key.inner_ip(rest, Layers::IPV4),
        EtherType::IPV6 => _ = key.inner_ip(rest, Layers::IPV6),
        EtherType::MPLS | EtherType::MPLS_MULTICAST => mpls(key, rest),
        _ => {}
    }
}

/// The first entry of a stack.
fn first_label(stack: &[u8]) -> Option<u32> {
    stack.first_chunk::<LABEL_BYTES>().map(|entry| u32::from_be_bytes(*entry))
}

/// MPLS label stacks (RFC 3032): behind Ethernet, in GRE (RFC 4023), in UDP (RFC 7510).
fn mpls(key: &mut TunnelKey, mut stack: &[u8]) {
    for place in 0..MAX_MPLS_LABELS {
        let Some((entry, rest)) = stack.split_first_chunk::<LABEL_BYTES>() else { return };
        let entry = u32::from_be_bytes(*entry);
        stack = rest;
        key.layers |= TunnelLayers::MPLS;
        key.mpls[place] = entry;
        key.mpls_depth += 1;
        if entry & BOTTOM_OF_STACK != 0 {
            return labelled_payload(key, stack);
        }
    }
}

/// The stack does not name what it carries: routers look at the first nibble (RFC 4928, 2), as this does.
fn labelled_payload(key: &mut TunnelKey, packet: &[u8]) {
    let version = match packet.first().map(|first| first >> 4) {
        Some(4) => Layers::IPV4,
        Some(6) => Layers::IPV6,
        _ => return,
    };
    key.inner_ip(packet, version);
}

/// Encapsulating Security Payload (RFC 4303): the two fields that are not encrypted.
fn esp(key: &mut TunnelKey, packet: &[u8]) {
    let Some(&[i0, i1, i2, i3, s0, s1, s2, s3]) = packet.first_chunk::<ESP_BYTES>() else { return };
    key.layers |= TunnelLayers::ESP;
    key.esp_spi = u32::from_be_bytes([i0, i1, i2, i3]);
    key.esp_seq = u32::from_be_bytes([s0, s1, s2, s3]);
}

/// IP in IP (RFC 2003, RFC 2473, RFC 4213): the packet inside must be of the version that the outer header
/// gives.
fn ip_in_ip(key: &mut TunnelKey, packet: &[u8], version: Layers) {
    if key.inner_ip(packet, version) {
        key.layers |= TunnelLayers::IP_IN_IP;
    }
}

impl TunnelKey {
    /// Reads a packet inside that begins with an Ethernet header, if that is whole.
    fn inner_ethernet(&mut self, frame: &[u8]) {
        let parsed = parse(frame);
        // Without a whole Ethernet header there is no layer behind it.
        if parsed.l3_offset == 0 {
            return;
        }
        self.layers |= TunnelLayers::INNER_ETHERNET | TunnelLayers::INNER;
        // What follows extension headers is read of the outer packet alone.
        let extended = Layers::EXTENDED_TCP | Layers::EXTENDED_UDP | Layers::EXTENDED_ICMPV6;
        self.inner =
            FlowKey { layers: parsed.key.layers - extended, extended: ExtendedKey::default(), ..parsed.key };
        if is_mpls(parsed.key.ether_type)
            && let Some(stack) = frame.get(usize::from(parsed.l3_offset)..)
        {
            self.inner_mpls = first_label(stack).unwrap_or_default();
        }
    }

    /// Reads a packet inside of this IP version; false if it is not well-formed.
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

impl TunnelKey {
    /// The words of the packed image from [`TUNNEL`] on, without the layers.
    #[inline]
    pub fn image(&self) -> [u64; WORDS - TUNNEL] {
        let place = |value: u32, slot: Slot| u64::from(value) << slot.shift;
        let [flags, reserved] = self.gre_flags.to_be_bytes();
        [
            place(self.vxlan_vni, slots::VXLAN_VNI),
            place(self.gre_key, slots::GRE_KEY)
                | place(flags.into(), slots::GRE_FLAGS)
                | place(reserved.into(), slots::GRE_RESERVED)
                | place(self.gre_protocol.into(), slots::GRE_PROTOCOL),
            place(self.mpls[0], slots::MPLS_TOP),
            place(self.esp_spi, slots::ESP_SPI) | place(self.esp_seq, slots::ESP_SEQ),
        ]
    }
}

#[cfg(test)]
mod tests;

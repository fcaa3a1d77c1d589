//! From Ethernet to the ports in one pass. Whatever else reads a frame's headers, as [`crate::checksum`]
//! does, starts from the offsets found here.
//!
//! softnic's engine calls [`parse`] once per frame, the worker once for each packet of a class that needs it.
//! It never panics, allocates or follows a tunnel (that is [`crate::parse_tunnel`]), and it never refuses:
//! what is malformed is read as far as it is well-formed and noted as an [`Anomaly`].
//!
//! Strictness follows tshark where tshark and libpcap differ: a header that gives the wrong version, an
//! impossible header length or a total length below that is no IP header, and only the Ethernet fields of
//! such a frame can match.
//!
//! Every header is taken as a fixed-size array (`first_chunk`), so that one length check covers all of its
//! fields.

use crate::lengths::{ETHERNET_BYTES, IPV4_BYTES, IPV6_BYTES, SCTP_BYTES, TAG_BYTES, TCP_BYTES, UDP_BYTES};
use crate::{Anomaly, EtherType, ExtendedKey, FlowKey, IpProtocol, Layers, MacAddr};

/// The length of a fragment header, and the least of any other extension header.
const IPV6_EXTENSION_BYTES: usize = 8;
/// How many IPv6 extension headers are read; what follows more of them is not.
const MAX_EXTENSION_HEADERS: usize = 8;
const ICMP_BYTES: usize = 4;

/// Where TCP or UDP begins in an untagged frame with an IPv4 header without options, and the end of a TCP
/// header there.
const PLAIN_L4: usize = ETHERNET_BYTES + IPV4_BYTES;
const PLAIN_BYTES: usize = PLAIN_L4 + TCP_BYTES;

/// Bits of the IPv4 flags-and-offset word (RFC 791, 3.1).
const MORE_FRAGMENTS: u16 = 0x2000;
const FRAGMENT_OFFSET: u16 = 0x1fff;

/// The result of [`parse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Parsed {
    /// The matchable fields.
    pub key: FlowKey,
    /// Where what follows the Ethernet header and the peeled tags begins; 0 when there is no Ethernet header.
    pub l3_offset: u16,
    /// Where the TCP or UDP header begins; 0 when there is none.
    pub l4_offset: u16,
    /// The outermost malformation.
    pub anomaly: Option<Anomaly>,
}

impl Parsed {
    /// Keeps the outermost anomaly: what follows a malformed header is often malformed only because of it.
    #[inline]
    fn note(&mut self, anomaly: Anomaly) {
        self.anomaly.get_or_insert(anomaly);
    }
}

/// Reads a frame, from the destination address on and without the frame check sequence. Total: any bytes have
/// a key.
#[inline]
pub fn parse(frame: &[u8]) -> Parsed {
    plain(frame).unwrap_or_else(|| layers(frame))
}

impl FlowKey {
    /// The key of a frame: [`parse`] without its offsets and its anomaly.
    #[inline]
    pub fn of(frame: &[u8]) -> Self {
        parse(frame).key
    }
}

/// Reads a frame of the most frequent kind: untagged IPv4 without options, no fragment, with UDP or TCP and
/// with every length in order, so that one length check covers all headers. `None`: it is another one.
#[inline]
fn plain(frame: &[u8]) -> Option<Parsed> {
    let head = frame.first_chunk::<PLAIN_BYTES>()?;
    let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let ip_bytes = usize::from(word(ETHERNET_BYTES + 2));
    let l4_bytes = ip_bytes.saturating_sub(IPV4_BYTES);
    let is_plain = EtherType(word(ETHERNET_BYTES - 2)) == EtherType::IPV4
        && head[ETHERNET_BYTES] == 0x45
        && word(ETHERNET_BYTES + 6) & (MORE_FRAGMENTS | FRAGMENT_OFFSET) == 0
        && ip_bytes <= frame.len() - ETHERNET_BYTES;
    let (layer, length, shortest, tcp_flags) = match IpProtocol(head[ETHERNET_BYTES + 9]) {
        IpProtocol::UDP => (Layers::UDP, usize::from(word(PLAIN_L4 + 4)), UDP_BYTES, 0),
        IpProtocol::TCP => {
            (Layers::TCP, usize::from(head[PLAIN_L4 + 12] >> 4) * 4, TCP_BYTES, head[PLAIN_L4 + 13])
        }
        _ => return None,
    };
    if !is_plain || length < shortest || length > l4_bytes {
        return None;
    }
    let (ethernet, rest) = head.split_first_chunk()?;
    let key = FlowKey {
        layers: Layers::IPV4.union(layer),
        src_port: word(PLAIN_L4),
        dst_port: word(PLAIN_L4 + 2),
        tcp_flags,
        ..FlowKey::default()
    };
    let key = with_ipv4(with_ethernet(key, ethernet), rest.first_chunk()?);
    Some(Parsed { key, l3_offset: ETHERNET_BYTES as u16, l4_offset: PLAIN_L4 as u16, anomaly: None })
}

/// Reads any frame, layer by layer.
#[cold]
#[inline(never)]
fn layers(frame: &[u8]) -> Parsed {
    let mut parsed = Parsed::default();
    let Some((header, mut rest)) = frame.split_first_chunk::<ETHERNET_BYTES>() else {
        parsed.note(Anomaly::EthernetTruncated);
        return parsed;
    };
    parsed.key = with_ethernet(parsed.key, header);
    parsed.l3_offset = ETHERNET_BYTES as u16;
    if EtherType(parsed.key.ether_type).is_vlan_tag() {
        rest = peel_tags(&mut parsed, rest);
    }
    match EtherType(parsed.key.ether_type) {
        EtherType::IPV4 => ipv4::<false>(&mut parsed, rest),
        EtherType::IPV6 => ipv6::<false>(&mut parsed, rest),
        _ => {}
    }
    parsed
}

/// A key with the fields of an Ethernet header.
#[inline]
fn with_ethernet(key: FlowKey, header: &[u8; ETHERNET_BYTES]) -> FlowKey {
    let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1] = *header;
    FlowKey {
        dst_mac: MacAddr([d0, d1, d2, d3, d4, d5]),
        src_mac: MacAddr([s0, s1, s2, s3, s4, s5]),
        ether_type: u16::from_be_bytes([t0, t1]),
        ..key
    }
}

/// A key with the fields of an IPv4 header; its layers are not changed.
#[inline]
fn with_ipv4(key: FlowKey, header: &[u8; IPV4_BYTES]) -> FlowKey {
    FlowKey {
        tos: header[1],
        ip_flags: header[6] >> 5,
        ttl: header[8],
        protocol: header[9],
        src_ip: widened([header[12], header[13], header[14], header[15]]),
        dst_ip: widened([header[16], header[17], header[18], header[19]]),
        ..key
    }
}

/// Reads a packet without an Ethernet header that should be of this IP version; no layer if it is not.
pub(crate) fn parse_packet(packet: &[u8], version: Layers) -> FlowKey {
    let mut parsed = Parsed::default();
    if version == Layers::IPV4 {
        ipv4::<true>(&mut parsed, packet);
    } else {
        ipv6::<true>(&mut parsed, packet);
    }
    parsed.key
}

/// Peels at most two tags; further ones stay in `ether_type`, and so does a tag that the frame ends in.
fn peel_tags<'f>(parsed: &mut Parsed, rest: &'f [u8]) -> &'f [u8] {
    let key = &mut parsed.key;
    let Some((&[i0, i1, t0, t1], after_outer)) = rest.split_first_chunk::<TAG_BYTES>() else {
        parsed.note(Anomaly::VlanTruncated);
        return rest;
    };
    key.layers = Layers::VLAN;
    key.vlan_tpid = key.ether_type;
    key.vlan_tci = u16::from_be_bytes([i0, i1]);
    key.ether_type = u16::from_be_bytes([t0, t1]);
    parsed.l3_offset += TAG_BYTES as u16;
    if !EtherType(key.ether_type).is_vlan_tag() {
        return after_outer;
    }
    let Some((&[i0, i1, t0, t1], after_inner)) = after_outer.split_first_chunk::<TAG_BYTES>() else {
        parsed.note(Anomaly::VlanTruncated);
        return after_outer;
    };
    key.layers |= Layers::INNER_VLAN;
    key.inner_vlan_tpid = key.ether_type;
    key.inner_vlan_tci = u16::from_be_bytes([i0, i1]);
    key.ether_type = u16::from_be_bytes([t0, t1]);
    parsed.l3_offset += TAG_BYTES as u16;
    after_inner
}

// `INSIDE` only gives what looks into tunnels a body of its own: with one body for both callers `parse` takes
// a tenth longer, with this one forced into each a fifth.
fn ipv4<const INSIDE: bool>(parsed: &mut Parsed, packet: &[u8]) {
    let Some(header) = packet.first_chunk::<IPV4_BYTES>() else {
        return parsed.note(Anomaly::Ipv4Truncated);
    };
    if header[0] >> 4 != 4 {
        return parsed.note(Anomaly::Ipv4Version);
    }
    let header_bytes = usize::from(header[0] & 0x0f) * 4;
    if header_bytes < IPV4_BYTES {
        return parsed.note(Anomaly::Ipv4HeaderLength);
    }
    // Segmentation offload leaves 0 in frames that it is still to cut: then the packet is all that follows.
    // Any other length below the header's is as impossible as a header of four words: tshark ("Bogus IP
    // length") reads nothing behind it, and Linux drops the packet (net/ipv4/ip_input.c, `ip_rcv_core`).
    let total_bytes = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if total_bytes != 0 && total_bytes < header_bytes {
        return parsed.note(Anomaly::Ipv4TotalLength);
    }
    let flags_and_offset = u16::from_be_bytes([header[6], header[7]]);
    let mut layers = parsed.key.layers | Layers::IPV4;
    if header_bytes > IPV4_BYTES {
        layers |= Layers::IP_OPTIONS;
    }
    if flags_and_offset & (MORE_FRAGMENTS | FRAGMENT_OFFSET) != 0 {
        layers |= Layers::FRAGMENT;
    }
    if flags_and_offset & FRAGMENT_OFFSET != 0 {
        layers |= Layers::LATER_FRAGMENT;
    }
    parsed.key.layers = layers;
    parsed.key = with_ipv4(parsed.key, header);

    if header_bytes > packet.len() {
        return parsed.note(Anomaly::Ipv4Truncated);
    }
    let end = match total_bytes {
        0 => packet.len(),
        total if total > packet.len() => {
            parsed.note(Anomaly::Ipv4TotalLength);
            packet.len()
        }
        total => total,
    };
    if layers.contains(Layers::LATER_FRAGMENT) {
        return;
    }
    if let Some(payload) = packet.get(header_bytes..end) {
        let offset = parsed.l3_offset + header_bytes as u16;
        transport(parsed, payload, offset);
    }
}

/// An IPv4 address in the space of an IPv6 address. Written whole: the flow table reads it as two words, and
/// a load that spans a narrower store waits for it.
#[inline]
fn widened([a, b, c, d]: [u8; 4]) -> [u8; 16] {
    [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
}

// `INSIDE` as in `ipv4`.
fn ipv6<const INSIDE: bool>(parsed: &mut Parsed, packet: &[u8]) {
    let Some((header, rest)) = packet.split_first_chunk::<IPV6_BYTES>() else {
        return parsed.note(Anomaly::Ipv6Truncated);
    };
    if header[0] >> 4 != 6 {
        return parsed.note(Anomaly::Ipv6Version);
    }
    let first_word = u32::from_be_bytes([header[0], header[1], header[2], header[3]]);
    let key = &mut parsed.key;
    key.layers |= Layers::IPV6;
    key.tos = (first_word >> 20) as u8;
    key.flow_label = first_word & 0x000f_ffff;
    key.protocol = header[6];
    key.ttl = header[7];
    if let Some(src) = header[8..].first_chunk::<16>() {
        key.src_ip = *src;
    }
    if let Some(dst) = header[24..].first_chunk::<16>() {
        key.dst_ip = *dst;
    }

    // 0 is a jumbogram or segmentation offload, as in IPv4.
    let payload = match usize::from(u16::from_be_bytes([header[4], header[5]])) {
        0 => rest,
        length => rest.get(..length).unwrap_or_else(|| {
            parsed.note(Anomaly::Ipv6PayloadLength);
            rest
        }),
    };
    let protocol = IpProtocol(header[6]);
    if !protocol.is_extension_header() {
        let offset = parsed.l3_offset + IPV6_BYTES as u16;
        return transport(parsed, payload, offset);
    }
    if protocol == IpProtocol::FRAGMENT {
        ipv6_fragment(parsed, payload);
    }
    if !INSIDE {
        extended(parsed, payload);
    }
}

/// Reads what follows the extension headers (RFC 8200, 4). Where one cannot be read, its number is the
/// protocol. The checks of lengths behind them are left to the host: there is no anomaly. Of SCTP there the
/// ports are not read.
#[cold]
fn extended(parsed: &mut Parsed, payload: &[u8]) {
    let (protocol, segment) = upper_layer(IpProtocol(parsed.key.protocol), payload);
    parsed.key.extended.protocol = protocol.0;
    let Some(segment) = segment.filter(|_| protocol != IpProtocol::SCTP) else { return };
    let key = FlowKey { layers: Layers::IPV6, protocol: protocol.0, ..FlowKey::default() };
    let mut upper = Parsed { key, ..Parsed::default() };
    transport(&mut upper, segment, 0);
    let FlowKey { layers, protocol, src_port, dst_port, tcp_flags, icmp_type, icmp_code, .. } = upper.key;
    parsed.key.extended = ExtendedKey { protocol, src_port, dst_port, tcp_flags, icmp_type, icmp_code };
    for (layer, behind) in [
        (Layers::TCP, Layers::EXTENDED_TCP),
        (Layers::UDP, Layers::EXTENDED_UDP),
        (Layers::ICMPV6, Layers::EXTENDED_ICMPV6),
    ] {
        parsed.key.layers.set(behind, layers.contains(layer));
    }
}

/// The header behind a chain of extension headers, and its bytes, which later fragments do not have. If the
/// chain cannot be read to its end, the extension header where that is.
fn upper_layer(first: IpProtocol, payload: &[u8]) -> (IpProtocol, Option<&[u8]>) {
    let (mut protocol, mut rest) = (first, payload);
    for _ in 0..MAX_EXTENSION_HEADERS {
        let Some(header) = rest.first_chunk::<IPV6_EXTENSION_BYTES>() else { return (protocol, None) };
        let length = usize::from(header[1]);
        let bytes = match protocol {
            IpProtocol::FRAGMENT => IPV6_EXTENSION_BYTES,
            // In units of four bytes, two of them not counted (RFC 4302, 2.2).
            IpProtocol::AH => (length + 2) * 4,
            _ => (length + 1) * 8,
        };
        let Some(behind) = rest.get(bytes..) else { return (protocol, None) };
        let is_later = protocol == IpProtocol::FRAGMENT && fragment_offset_and_more(header) & 0xfff8 != 0;
        protocol = IpProtocol(header[0]);
        if is_later {
            return (protocol, None);
        }
        if !protocol.is_extension_header() {
            return (protocol, Some(behind));
        }
        rest = behind;
    }
    (protocol, None)
}

fn fragment_offset_and_more(header: &[u8; IPV6_EXTENSION_BYTES]) -> u16 {
    u16::from_be_bytes([header[2], header[3]])
}

/// Distinguishes real fragments from "atomic" ones (RFC 6946), which are whole packets behind a fragment
/// header.
fn ipv6_fragment(parsed: &mut Parsed, payload: &[u8]) {
    let Some(header) = payload.first_chunk::<IPV6_EXTENSION_BYTES>() else {
        return parsed.note(Anomaly::Ipv6Truncated);
    };
    let offset_and_more = fragment_offset_and_more(header);
    if offset_and_more & 0xfff9 != 0 {
        parsed.key.layers |= Layers::FRAGMENT;
    }
    if offset_and_more & 0xfff8 != 0 {
        parsed.key.layers |= Layers::LATER_FRAGMENT;
    }
}

/// `payload` ends where the IP packet or the frame ends, whichever is first.
#[inline]
fn transport(parsed: &mut Parsed, payload: &[u8], offset: u16) {
    match IpProtocol(parsed.key.protocol) {
        IpProtocol::TCP => tcp(parsed, payload, offset),
        IpProtocol::UDP => udp(parsed, payload, offset),
        IpProtocol::SCTP => sctp(parsed, payload),
        IpProtocol::ICMP if parsed.key.layers.contains(Layers::IPV4) => icmp(parsed, payload, Layers::ICMP),
        IpProtocol::ICMPV6 if parsed.key.layers.contains(Layers::IPV6) => {
            icmp(parsed, payload, Layers::ICMPV6);
        }
        _ => {}
    }
}

#[inline]
fn tcp(parsed: &mut Parsed, segment: &[u8], offset: u16) {
    let Some(header) = segment.first_chunk::<TCP_BYTES>() else {
        return parsed.note(Anomaly::TcpTruncated);
    };
    parsed.l4_offset = offset;
    let key = &mut parsed.key;
    key.layers |= Layers::TCP;
    key.src_port = u16::from_be_bytes([header[0], header[1]]);
    key.dst_port = u16::from_be_bytes([header[2], header[3]]);
    key.tcp_flags = header[13];
    let header_bytes = usize::from(header[12] >> 4) * 4;
    if header_bytes < TCP_BYTES || header_bytes > segment.len() {
        parsed.note(Anomaly::TcpDataOffset);
    }
}

#[inline]
fn udp(parsed: &mut Parsed, datagram: &[u8], offset: u16) {
    let Some(header) = datagram.first_chunk::<UDP_BYTES>() else {
        return parsed.note(Anomaly::UdpTruncated);
    };
    parsed.l4_offset = offset;
    let key = &mut parsed.key;
    key.layers |= Layers::UDP;
    key.src_port = u16::from_be_bytes([header[0], header[1]]);
    key.dst_port = u16::from_be_bytes([header[2], header[3]]);
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    // The length of a fragmented datagram covers all its fragments.
    let too_long = length > datagram.len() && !key.layers.contains(Layers::FRAGMENT);
    if length < UDP_BYTES || too_long {
        parsed.note(Anomaly::UdpLength);
    }
}

/// The ports are where those of TCP and UDP are. A packet without the whole common header has no SCTP layer.
fn sctp(parsed: &mut Parsed, packet: &[u8]) {
    if let Some(&[s0, s1, d0, d1, ..]) = packet.first_chunk::<SCTP_BYTES>() {
        parsed.key.layers |= Layers::SCTP;
        parsed.key.src_port = u16::from_be_bytes([s0, s1]);
        parsed.key.dst_port = u16::from_be_bytes([d0, d1]);
    }
}

/// Type, code and checksum are common to all messages; one without them has no ICMP layer.
fn icmp(parsed: &mut Parsed, message: &[u8], layer: Layers) {
    if let Some(&[icmp_type, icmp_code, _, _]) = message.first_chunk::<ICMP_BYTES>() {
        parsed.key.layers |= layer;
        parsed.key.icmp_type = icmp_type;
        parsed.key.icmp_code = icmp_code;
    }
}

#[cfg(test)]
mod tests;

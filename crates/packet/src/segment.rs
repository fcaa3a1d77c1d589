//! Segmentation: the headers of one large packet, many frames.
//!
//! A [`Template`] is read out of headers: those of an `IBV_WR_TSO` request, or those of a frame that the
//! kernel has merged ([`offload`](crate::offload)). It then completes each frame, a copy of the headers with
//! a part of the payload behind it. What changes from segment to segment is what Linux's `inet_gso_segment`,
//! `ipv6_gso_segment`, `tcp_gso_segment`, `__udp_gso_segment` and `__skb_udp_tunnel_segment` change: lengths,
//! IPv4 identification, TCP sequence number and flags, checksums. The payload is read only for its checksum.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::lengths::{
    ETHERNET_BYTES, GRE_BYTES, IPV4_BYTES, IPV6_BYTES, TAG_BYTES, TCP_BYTES, UDP_BYTES, VXLAN_BYTES,
};
use crate::{IpProtocol, VXLAN_UDP_PORT, checksum};

const ETHER_TYPE_IPV4: u16 = 0x0800;
const ETHER_TYPE_IPV6: u16 = 0x86dd;
/// Transparent Ethernet bridging (RFC 7637, 3.2; RFC 8926, 3.4).
const ETHER_TYPE_BRIDGED: u16 = 0x6558;
/// C-VLAN and S-VLAN tags (IEEE 802.1Q, table 9-1).
const ETHER_TYPES_VLAN: [u16; 2] = [0x8100, 0x88a8];
const MAX_VLANS: usize = 2;

const GENEVE_BYTES: usize = 8;
const GENEVE_UDP_PORT: u16 = 6081;
/// The bits of the checksum and of the key in the first word of GRE (RFC 2890, 2); each announces four bytes,
/// in this order.
const GRE_CHECKSUM: u16 = 0x8000;
const GRE_KEY: u16 = 0x2000;
const GRE_FIELD_BYTES: usize = 4;

/// The most IP headers outside of that of the stream.
const MAX_TUNNELS: usize = 3;
/// An IP header inside a tunnel is looked for so many bytes behind the IP header outside of it: UDP, Geneve
/// with all its options, Ethernet with two tags, MPLS labels.
const MAX_TUNNEL_HEADER_BYTES: usize = 400;

/// IPv6 extension headers that leave the pseudo-header as it is: hop-by-hop and destination options (RFC
/// 8200, 4).
const IPV6_OPTIONS: [u8; 2] = [0, 60];
const MAX_IPV6_OPTIONS: usize = 4;

const TCP_FIN: u8 = 0x01;
const TCP_PSH: u8 = 0x08;
const TCP_CWR: u8 = 0x80;

/// Where the headers are that change from segment to segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Template {
    /// The IP headers of the tunnels, outermost first.
    outer: [Option<Network>; MAX_TUNNELS],
    network: Network,
    /// Bytes of all headers. The payload follows.
    pub header_bytes: usize,
}

/// An IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    at: usize,
    ipv4: bool,
    protocol: IpProtocol,
    /// The end of its options.
    end: usize,
}

/// Which part of the stream a frame carries.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// Counts from 0.
    pub index: u32,
    /// Payload bytes in the segments before it.
    pub offset: u32,
    /// No segment follows.
    pub last: bool,
}

impl Template {
    /// Reads the headers of a TCP stream: Ethernet with up to two VLAN tags, IPv4 or IPv6, TCP, and not a
    /// byte more. `None` for anything else, and for fragments, which have no stream of their own.
    pub fn of_header(header: &[u8]) -> Option<Self> {
        let template = Self::of_frame(header, IpProtocol::TCP, None)?;
        (template.outer == [None; MAX_TUNNELS] && template.header_bytes == header.len()).then_some(template)
    }

    /// Reads the headers of a frame with a stream of this protocol, TCP or UDP: as in
    /// [`of_header`](Self::of_header), or inside tunnels. With `stream_at` the header of the stream is the
    /// one at that place, and there can be `MAX_TUNNELS` tunnels; those of other kinds than IP in IP, GRE,
    /// and VXLAN or Geneve on their own ports are known by IP headers whose lengths cover the frame to its
    /// end. Without, there can be one tunnel, of those kinds. GRE has no sequence number.
    pub fn of_frame(frame: &[u8], protocol: IpProtocol, stream_at: Option<usize>) -> Option<Self> {
        let (l3, ether_type) = ethernet(frame, 0)?;
        let outer = Network::parse(frame, l3, ether_type)?;
        let is_stream =
            |network: &Network| network.protocol == protocol && stream_at.is_none_or(|at| at == network.end);
        let (mut networks, mut network) = ([None; MAX_TUNNELS], outer);
        let mut tunnels = networks.iter_mut();
        while !is_stream(&network) {
            *tunnels.next()? = Some(network);
            let exact =
                tunnelled(frame, &network).and_then(|(l3, ether_type)| Network::parse(frame, l3, ether_type));
            network = match stream_at {
                Some(at) => exact.filter(|inner| inner.end <= at).or_else(|| network.next(frame, at))?,
                None => exact.filter(is_stream)?,
            };
        }
        let stream_bytes = match protocol {
            IpProtocol::TCP => {
                let bytes = usize::from(frame.get(network.end + 12)? >> 4) * 4;
                (bytes >= TCP_BYTES).then_some(bytes)?
            }
            IpProtocol::UDP => UDP_BYTES,
            _ => return None,
        };
        let header_bytes = network.end + stream_bytes;
        (header_bytes <= frame.len()).then_some(Self { outer: networks, network, header_bytes })
    }

    /// Completes a segment: `frame` is a copy of the headers that this was read from, and the payload behind
    /// it. IP headers count at most 65,535 bytes, so a frame must not be longer.
    pub fn complete(&self, frame: &mut [u8], segment: Segment) {
        self.network.complete(frame, segment.index);
        let l4 = self.network.end;
        if self.network.protocol == IpProtocol::TCP {
            let tcp = &mut frame[l4..];
            let sequence = u32::from_be_bytes(octets(tcp, 4)).wrapping_add(segment.offset);
            tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
            // The end of the stream is in the last segment, the word of a reduced window in the first (RFC
            // 3168, 6.1.2).
            if !segment.last {
                tcp[13] &= !(TCP_FIN | TCP_PSH);
            }
            if segment.index > 0 {
                tcp[13] &= !TCP_CWR;
            }
            put_word(tcp, 16, 0);
            let sum = self.network.checksum(frame, l4);
            put_word(frame, l4 + 16, sum);
        } else {
            self.network.complete_udp(frame, l4);
        }
        // From the inside: a checksum outside covers everything inside.
        for tunnel in self.outer.iter().rev().flatten() {
            tunnel.complete(frame, segment.index);
            match tunnel.protocol {
                IpProtocol::UDP => tunnel.complete_udp(frame, tunnel.end),
                IpProtocol::GRE => complete_gre(&mut frame[tunnel.end..]),
                _ => {}
            }
        }
    }
}

impl Network {
    fn parse(frame: &[u8], at: usize, ether_type: u16) -> Option<Self> {
        let (ipv4, (protocol, end)) = match ether_type {
            ETHER_TYPE_IPV4 => (true, ipv4_payload(frame, at)?),
            ETHER_TYPE_IPV6 => (false, ipv6_payload(frame, at)?),
            _ => return None,
        };
        Some(Self { at, ipv4, protocol: IpProtocol(protocol), end })
    }

    /// The first IP header inside of this one's tunnel whose packet reaches to the end of the frame, where
    /// the header of a stream inside is at `stream_at`. Lengths and, for IPv4, the checksum make it unlikely
    /// that other bytes are taken for one.
    fn next(&self, frame: &[u8], stream_at: usize) -> Option<Self> {
        if self.protocol == IpProtocol::GRE {
            gre(frame, self.end)?;
        }
        let ends = (stream_at.checked_sub(IPV4_BYTES)?).min(self.end + MAX_TUNNEL_HEADER_BYTES);
        (self.end..=ends).find_map(|at| Self::whole(frame, at).filter(|network| network.end <= stream_at))
    }

    /// The IP header at `at`, if its packet reaches to the end of the frame.
    fn whole(frame: &[u8], at: usize) -> Option<Self> {
        let rest = frame.len().checked_sub(at)?;
        match frame.get(at)? >> 4 {
            4 if usize::from(word(frame, at + 2)?) == rest => Self::parse(frame, at, ETHER_TYPE_IPV4)
                .filter(|network| frame.get(at..network.end).map(checksum::ipv4_header) == Some(0)),
            6 if usize::from(word(frame, at + 4)?) + IPV6_BYTES == rest => {
                Self::parse(frame, at, ETHER_TYPE_IPV6)
            }
            _ => None,
        }
    }

    /// Writes the length, and for IPv4 the identification and the checksum.
    fn complete(&self, frame: &mut [u8], index: u32) {
        let ip = &mut frame[self.at..];
        let bytes = ip.len();
        if !self.ipv4 {
            put_word(ip, 4, (bytes - IPV6_BYTES) as u16);
            return;
        }
        put_word(ip, 2, bytes as u16);
        let id = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(index as u16);
        put_word(ip, 4, id);
        put_word(ip, 10, 0);
        let sum = checksum::ipv4_header(&ip[..self.end - self.at]);
        put_word(ip, 10, sum);
    }

    /// Writes the length of the UDP header at `udp`, and its checksum if one was sent (0: it was not, RFC
    /// 768).
    fn complete_udp(&self, frame: &mut [u8], udp: usize) {
        let bytes = frame.len() - udp;
        put_word(frame, udp + 4, bytes as u16);
        if frame[udp + 6..udp + 8] != [0, 0] {
            put_word(frame, udp + 6, 0);
            let sum = self.checksum(frame, udp);
            put_word(frame, udp + 6, sum);
        }
    }

    /// The checksum of what is in this packet from `at` on.
    fn checksum(&self, frame: &[u8], at: usize) -> u16 {
        let ip = &frame[self.at..];
        let (src, dst): (IpAddr, IpAddr) = if self.ipv4 {
            (Ipv4Addr::from(octets::<4>(ip, 12)).into(), Ipv4Addr::from(octets::<4>(ip, 16)).into())
        } else {
            (Ipv6Addr::from(octets::<16>(ip, 8)).into(), Ipv6Addr::from(octets::<16>(ip, 24)).into())
        };
        checksum::l4(src, dst, self.protocol, &frame[at..])
    }
}

/// Where the payload of the Ethernet header at `at` is, and its type.
fn ethernet(frame: &[u8], at: usize) -> Option<(usize, u16)> {
    let mut l3 = at + ETHERNET_BYTES;
    let mut ether_type = word(frame, l3 - 2)?;
    for _ in 0..MAX_VLANS {
        if ETHER_TYPES_VLAN.contains(&ether_type) {
            l3 += TAG_BYTES;
            ether_type = word(frame, l3 - 2)?;
        }
    }
    Some((l3, ether_type))
}

/// Where the packet inside is, and its type, of the GRE header at `at`; `None` for one with a sequence number
/// or a route.
fn gre(frame: &[u8], at: usize) -> Option<(usize, u16)> {
    let flags = word(frame, at).filter(|flags| flags & !(GRE_CHECKSUM | GRE_KEY) == 0)?;
    let fields = usize::from(flags & GRE_CHECKSUM != 0) + usize::from(flags & GRE_KEY != 0);
    Some((at + GRE_BYTES + fields * GRE_FIELD_BYTES, word(frame, at + 2)?))
}

/// Writes the checksum of a GRE packet, if it has one: over all of it (RFC 2784, 2.3).
fn complete_gre(packet: &mut [u8]) {
    if packet[0] & (GRE_CHECKSUM >> 8) as u8 != 0 {
        put_word(packet, GRE_BYTES, 0);
        let sum = checksum::ipv4_header(packet);
        put_word(packet, GRE_BYTES, sum);
    }
}

/// Where the packet in the tunnel behind an IP header is, and its type.
fn tunnelled(frame: &[u8], outer: &Network) -> Option<(usize, u16)> {
    let at = outer.end;
    let inside = |at, ether_type| match ether_type {
        ETHER_TYPE_BRIDGED => ethernet(frame, at),
        _ => Some((at, ether_type)),
    };
    match outer.protocol {
        IpProtocol::IPV4 => Some((at, ETHER_TYPE_IPV4)),
        IpProtocol::IPV6 => Some((at, ETHER_TYPE_IPV6)),
        IpProtocol::GRE => {
            let (at, ether_type) = gre(frame, at)?;
            inside(at, ether_type)
        }
        IpProtocol::UDP => {
            let tunnel = at + UDP_BYTES;
            match word(frame, at + 2)? {
                VXLAN_UDP_PORT => ethernet(frame, tunnel + VXLAN_BYTES),
                GENEVE_UDP_PORT => {
                    let options = usize::from(*frame.get(tunnel)? & 0x3f) * 4;
                    inside(tunnel + GENEVE_BYTES + options, word(frame, tunnel + 2)?)
                }
                _ => None,
            }
        }
        _ => None,
    }
}

/// The protocol of an IPv4 packet and where its payload is.
fn ipv4_payload(frame: &[u8], l3: usize) -> Option<(u8, usize)> {
    let first = frame.get(l3)?;
    let bytes = usize::from(first & 0x0f) * 4;
    let fragment = word(frame, l3 + 6)? & 0x3fff;
    let protocol = *frame.get(l3 + 9)?;
    (first >> 4 == 4 && bytes >= IPV4_BYTES && fragment == 0).then_some((protocol, l3 + bytes))
}

/// The protocol of an IPv6 packet behind its options and where its payload is.
fn ipv6_payload(frame: &[u8], l3: usize) -> Option<(u8, usize)> {
    if frame.get(l3)? >> 4 != 6 {
        return None;
    }
    let (mut next, mut at) = (*frame.get(l3 + 6)?, l3 + IPV6_BYTES);
    for _ in 0..MAX_IPV6_OPTIONS {
        if IPV6_OPTIONS.contains(&next) {
            next = *frame.get(at)?;
            at += (usize::from(*frame.get(at + 1)?) + 1) * 8;
        }
    }
    Some((next, at))
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|word| u16::from_be_bytes(*word))
}

fn put_word(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn octets<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|index| bytes[at + index])
}

#[cfg(test)]
mod tests {
    use crate::build::FrameBuilder;

    use super::*;

    fn header() -> Vec<u8> {
        FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).tcp(1, 2, 0x10).build()
    }

    fn tcp(at: usize, end: usize, ipv4: bool) -> Option<Template> {
        let network = Network { at, ipv4, protocol: IpProtocol::TCP, end };
        Some(Template { outer: [None; MAX_TUNNELS], network, header_bytes: end + TCP_BYTES })
    }

    #[test]
    fn headers_are_read_to_the_last_byte() {
        let plain = header();
        assert_eq!(Template::of_header(&plain), tcp(14, 34, true));
        for cut in 0..plain.len() {
            assert_eq!(Template::of_header(&plain[..cut]), None, "{cut} bytes");
        }
        let longer = [plain.clone(), vec![0]].concat();
        assert_eq!(Template::of_header(&longer), None, "a byte of payload");
        assert_eq!(Template::of_frame(&longer, IpProtocol::TCP, None), tcp(14, 34, true));
        assert_eq!(Template::of_frame(&longer, IpProtocol::TCP, Some(34)), tcp(14, 34, true));
        assert_eq!(Template::of_frame(&longer, IpProtocol::TCP, Some(38)), None, "another header is meant");
        let mut tagged = plain.clone();
        tagged.splice(12..12, [0x88, 0xa8, 0, 1, 0x81, 0, 0, 2]);
        assert_eq!(Template::of_header(&tagged), tcp(22, 42, true));
    }

    #[test]
    fn headers_without_a_tcp_stream_are_refused() {
        type Spoil = fn(&mut Vec<u8>);
        let cases: [(&str, Spoil); 6] = [
            ("ARP", |header| header[13] = 6),
            ("IP version 5", |header| header[14] = 0x55),
            ("a header shorter than 20 bytes", |header| header[14] = 0x44),
            ("more fragments", |header| header[20] = 0x20),
            ("UDP", |header| header[23] = 17),
            ("a TCP header shorter than 20 bytes", |header| header[46] = 0x40),
        ];
        for (what, spoil) in cases {
            let mut header = header();
            spoil(&mut header);
            assert_eq!(Template::of_header(&header), None, "{what}");
        }
    }

    #[test]
    fn options_of_ipv6_are_passed_over() {
        let v6 = |last| std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last);
        let plain = FrameBuilder::new().ipv6(v6(1), v6(2)).tcp(1, 2, 0x10).build();
        assert_eq!(Template::of_header(&plain), tcp(14, 54, false));
        let mut options = plain.clone();
        options[20] = 60;
        options.splice(54..54, [6, 0, 1, 4, 0, 0, 0, 0]);
        assert_eq!(Template::of_header(&options), tcp(14, 62, false));
        options[54] = 44;
        assert_eq!(Template::of_header(&options), None, "a fragment");
    }
}

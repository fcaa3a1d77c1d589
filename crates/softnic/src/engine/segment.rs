//! TCP segmentation: one header, many frames.
//!
//! The transmit side reads a [`Template`] out of the header of an `IBV_WR_TSO` request, and has it complete each frame,
//! a copy of the header with a part of the payload behind it. What changes from segment to segment is what Linux's
//! `inet_gso_segment` and `tcp_gso_segment` change: lengths, IPv4 identification, sequence number, flags, checksums. It
//! never looks at the payload but to add it up.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use packet::{IpProtocol, checksum};

use crate::limits::ETHERNET_BYTES;

const ETHER_TYPE_IPV4: u16 = 0x0800;
const ETHER_TYPE_IPV6: u16 = 0x86dd;
/// C-VLAN and S-VLAN tags (IEEE 802.1Q, table 9-1).
const ETHER_TYPES_VLAN: [u16; 2] = [0x8100, 0x88a8];
const VLAN_BYTES: usize = 4;
const MAX_VLANS: usize = 2;

const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const TCP_BYTES: usize = 20;

/// IPv6 extension headers that leave the pseudo-header as it is: hop-by-hop and destination options (RFC 8200, 4).
const IPV6_OPTIONS: [u8; 2] = [0, 60];
const MAX_IPV6_OPTIONS: usize = 4;

const TCP_FIN: u8 = 0x01;
const TCP_PSH: u8 = 0x08;
const TCP_CWR: u8 = 0x80;

/// Where the headers stand that change from segment to segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Template {
    l3: usize,
    l4: usize,
    ipv4: bool,
}

/// Which part of the stream a frame carries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    /// Counts from 0.
    pub(super) index: u32,
    /// Payload bytes in the segments before it.
    pub(super) offset: u32,
    pub(super) last: bool,
}

impl Template {
    /// Reads a header: Ethernet with up to two VLAN tags, IPv4 or IPv6, TCP, and not a byte more. `None` for anything
    /// else, and for fragments, which have no stream of their own.
    pub(super) fn parse(header: &[u8]) -> Option<Self> {
        let mut l3 = ETHERNET_BYTES;
        let mut ether_type = word(header, l3 - 2)?;
        for _ in 0..MAX_VLANS {
            if ETHER_TYPES_VLAN.contains(&ether_type) {
                l3 += VLAN_BYTES;
                ether_type = word(header, l3 - 2)?;
            }
        }
        let (ipv4, l4) = match ether_type {
            ETHER_TYPE_IPV4 => (true, ipv4_payload(header, l3)?),
            ETHER_TYPE_IPV6 => (false, ipv6_payload(header, l3)?),
            _ => return None,
        };
        let tcp_bytes = usize::from(header.get(l4 + 12)? >> 4) * 4;
        (tcp_bytes >= TCP_BYTES && l4 + tcp_bytes == header.len()).then_some(Self { l3, l4, ipv4 })
    }

    /// Completes a segment: `frame` is a copy of the header that this was read from, and the payload behind it.
    pub(super) fn complete(&self, frame: &mut [u8], segment: Segment) {
        let ip_bytes = frame.len() - self.l3;
        let ip = &mut frame[self.l3..];
        let (src, dst): (IpAddr, IpAddr) = if self.ipv4 {
            put_word(ip, 2, ip_bytes as u16);
            let id = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(segment.index as u16);
            put_word(ip, 4, id);
            put_word(ip, 10, 0);
            let sum = checksum::ipv4_header(&ip[..self.l4 - self.l3]);
            put_word(ip, 10, sum);
            (Ipv4Addr::from(octets::<4>(ip, 12)).into(), Ipv4Addr::from(octets::<4>(ip, 16)).into())
        } else {
            put_word(ip, 4, (ip_bytes - IPV6_BYTES) as u16);
            (Ipv6Addr::from(octets::<16>(ip, 8)).into(), Ipv6Addr::from(octets::<16>(ip, 24)).into())
        };
        let tcp = &mut frame[self.l4..];
        let sequence = u32::from_be_bytes(octets(tcp, 4)).wrapping_add(segment.offset);
        tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
        // The end of the stream is in the last segment, the word of a reduced window in the first (RFC 3168, 6.1.2).
        if !segment.last {
            tcp[13] &= !(TCP_FIN | TCP_PSH);
        }
        if segment.index > 0 {
            tcp[13] &= !TCP_CWR;
        }
        put_word(tcp, 16, 0);
        let sum = checksum::l4(src, dst, IpProtocol::TCP, tcp);
        put_word(tcp, 16, sum);
    }
}

/// Where the TCP header behind an IPv4 header stands.
fn ipv4_payload(header: &[u8], l3: usize) -> Option<usize> {
    let first = header.get(l3)?;
    let bytes = usize::from(first & 0x0f) * 4;
    let fragment = word(header, l3 + 6)? & 0x3fff;
    let tcp = *header.get(l3 + 9)? == IpProtocol::TCP.0;
    (first >> 4 == 4 && bytes >= IPV4_BYTES && fragment == 0 && tcp).then_some(l3 + bytes)
}

/// Where the TCP header behind an IPv6 header stands.
fn ipv6_payload(header: &[u8], l3: usize) -> Option<usize> {
    if header.get(l3)? >> 4 != 6 {
        return None;
    }
    let (mut next, mut at) = (*header.get(l3 + 6)?, l3 + IPV6_BYTES);
    for _ in 0..MAX_IPV6_OPTIONS {
        if IPV6_OPTIONS.contains(&next) {
            next = *header.get(at)?;
            at += (usize::from(*header.get(at + 1)?) + 1) * 8;
        }
    }
    (next == IpProtocol::TCP.0).then_some(at)
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
    use packet::build::FrameBuilder;

    use super::*;

    fn header() -> Vec<u8> {
        FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).tcp(1, 2, 0x10).build()
    }

    #[test]
    fn headers_are_read_to_the_last_byte() {
        let plain = header();
        assert_eq!(Template::parse(&plain), Some(Template { l3: 14, l4: 34, ipv4: true }));
        for cut in 0..plain.len() {
            assert_eq!(Template::parse(&plain[..cut]), None, "{cut} bytes");
        }
        assert_eq!(Template::parse(&[plain.clone(), vec![0]].concat()), None, "a byte of payload");
        let mut tagged = plain.clone();
        tagged.splice(12..12, [0x88, 0xa8, 0, 1, 0x81, 0, 0, 2]);
        assert_eq!(Template::parse(&tagged), Some(Template { l3: 22, l4: 42, ipv4: true }));
    }

    #[test]
    fn what_has_no_tcp_stream_is_no_template() {
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
            assert_eq!(Template::parse(&header), None, "{what}");
        }
    }

    #[test]
    fn options_of_ipv6_are_passed_over() {
        let v6 = |last| std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last);
        let plain = FrameBuilder::new().ipv6(v6(1), v6(2)).tcp(1, 2, 0x10).build();
        assert_eq!(Template::parse(&plain), Some(Template { l3: 14, l4: 54, ipv4: false }));
        let mut options = plain.clone();
        options[20] = 60;
        options.splice(54..54, [6, 0, 1, 4, 0, 0, 0, 0]);
        assert_eq!(Template::parse(&options), Some(Template { l3: 14, l4: 62, ipv4: false }));
        options[54] = 44;
        assert_eq!(Template::parse(&options), None, "a fragment");
    }
}

//! Internet checksums (RFC 1071): computed for frames that are built, verified for frames that arrive.
//!
//! softnic's engine reports the verdicts in completions, and [`fill`]s what a sender leaves to the NIC, as
//! [`crate::build`] does for its frames. A wrong checksum of a received frame is never corrected, and never a
//! reason to drop.

use std::net::IpAddr;
use std::ops::Range;

use crate::lengths::UDP_BYTES;
use crate::{FlowKey, IpProtocol, Layers, Parsed};

/// Where the checksum of an IPv4 header is in it (RFC 791, 3.1).
const IPV4_CHECKSUM: Range<usize> = 10..12;
/// Where the checksum of a TCP header is in it (RFC 9293, 3.1).
const TCP_CHECKSUM: Range<usize> = 16..18;
/// Where the checksum of a UDP header is in it (RFC 768).
const UDP_CHECKSUM: Range<usize> = 6..8;

/// The result of a verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumStatus {
    /// Computed and right.
    Good,
    /// Computed and wrong.
    Bad,
    /// Nothing to verify: no such layer, a fragment, a packet that is cut, or no checksum was sent.
    Absent,
}

/// Verifies the checksum of the IPv4 header.
pub fn verify_ip(frame: &[u8], parsed: &Parsed) -> ChecksumStatus {
    let header = header(frame, parsed).and_then(|range| frame.get(range));
    header.map_or(ChecksumStatus::Absent, |header| verdict(sum(header)))
}

/// Verifies the TCP or UDP checksum. A UDP checksum of 0 was not sent (RFC 768; for tunnels over IPv6, RFC
/// 6935).
pub fn verify_l4(frame: &[u8], parsed: &Parsed) -> ChecksumStatus {
    let Some((protocol, field, segment)) = segment(frame, parsed) else { return ChecksumStatus::Absent };
    let Some(segment) = frame.get(segment) else { return ChecksumStatus::Absent };
    if protocol == IpProtocol::UDP && segment.get(field) == Some(&[0, 0]) {
        return ChecksumStatus::Absent;
    }
    verdict(pseudo_header(&parsed.key, segment.len(), protocol) + sum(segment))
}

/// Writes the checksums of the IPv4 header and of TCP or UDP, whatever value is there, also for a UDP
/// datagram that was sent without one.
///
/// `parsed` has the offsets of the headers of `frame`. Two checksums are left as they are: those of truncated
/// packets, whose bytes are not all here, and those of TCP or UDP in fragments, which cover the whole
/// datagram.
pub fn fill(frame: &mut [u8], parsed: &Parsed) {
    if let Some(header) = header(frame, parsed).and_then(|range| frame.get_mut(range)) {
        write(header, IPV4_CHECKSUM, |header| !fold(sum(header)));
    }
    let Some((protocol, field, segment)) = segment(frame, parsed) else { return };
    let Some(segment) = frame.get_mut(segment) else { return };
    write(segment, field, |segment| {
        sent(protocol, pseudo_header(&parsed.key, segment.len(), protocol) + sum(segment))
    });
}

/// Sets a checksum field to what is computed while the field is zero.
fn write(bytes: &mut [u8], field: Range<usize>, compute: impl FnOnce(&[u8]) -> u16) {
    if bytes.len() >= field.end {
        bytes[field.clone()].fill(0);
        let checksum = compute(bytes);
        bytes[field].copy_from_slice(&checksum.to_be_bytes());
    }
}

/// The checksum after a word that it covers has changed (RFC 1624, equation 3).
#[must_use]
pub fn replace_word(checksum: u16, old: u16, new: u16) -> u16 {
    let sum = u32::from(!checksum) + u32::from(!old) + u32::from(new);
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// The checksum of an IPv4 header, or of an ICMP message for IPv4, whose checksum field is zero.
pub fn ipv4_header(header: &[u8]) -> u16 {
    !fold(sum(header))
}

/// The checksum of a TCP segment, UDP datagram or ICMPv6 message whose checksum field is zero, pseudo-header
/// included (RFC 9293 3.1, RFC 768, RFC 8200 8.1). A UDP result of 0 becomes 0xffff, since 0 means "not
/// sent".
pub fn l4(src: IpAddr, dst: IpAddr, protocol: IpProtocol, segment: &[u8]) -> u16 {
    let addresses = address(src) + address(dst);
    sent(protocol, addresses + length_and_protocol(segment.len(), protocol) + sum(segment))
}

/// Where the IPv4 header is, options included; `None` when there is none. It may reach beyond the frame.
fn header(frame: &[u8], parsed: &Parsed) -> Option<Range<usize>> {
    if !parsed.key.layers.contains(Layers::IPV4) {
        return None;
    }
    let start = usize::from(parsed.l3_offset);
    let words = usize::from(frame.get(start)? & 0x0f);
    Some(start..start + words * 4)
}

/// The protocol whose checksum follows the IP header, the range of the checksum field in the bytes that it
/// covers, and the range of those bytes. `None` when there is none, the frame does not hold all of the bytes,
/// or the lengths make no sense.
fn segment(frame: &[u8], parsed: &Parsed) -> Option<(IpProtocol, Range<usize>, Range<usize>)> {
    let layers = parsed.key.layers;
    let (protocol, field) = if layers.contains(Layers::FRAGMENT) {
        return None;
    } else if layers.contains(Layers::TCP) {
        (IpProtocol::TCP, TCP_CHECKSUM)
    } else if layers.contains(Layers::UDP) {
        (IpProtocol::UDP, UDP_CHECKSUM)
    } else {
        return None;
    };
    let (l3, start) = (usize::from(parsed.l3_offset), usize::from(parsed.l4_offset));
    let (length_at, base) = if layers.contains(Layers::IPV4) { (l3 + 2, 0) } else { (l3 + 4, 40) };
    // A length of 0 is segmentation offload: the packet is all that follows.
    let end = match length(frame, length_at)? {
        0 => frame.len(),
        length => l3 + base + length,
    };
    let whole = frame.get(start..end)?;
    if protocol != IpProtocol::UDP {
        return Some((protocol, field, start..end));
    }
    // The shortest datagram is a header alone.
    let datagram = length(whole, 4).filter(|length| (UDP_BYTES..=whole.len()).contains(length))?;
    Some((protocol, field, start..start + datagram))
}

/// The 16-bit length field at this place.
fn length(bytes: &[u8], at: usize) -> Option<usize> {
    let &[high, low] = bytes.get(at..)?.first_chunk::<2>()?;
    Some(usize::from(u16::from_be_bytes([high, low])))
}

fn address(address: IpAddr) -> u64 {
    match address {
        IpAddr::V4(v4) => sum(&v4.octets()),
        IpAddr::V6(v6) => sum(&v6.octets()),
    }
}

fn pseudo_header(key: &FlowKey, length: usize, protocol: IpProtocol) -> u64 {
    // An IPv4 address is followed by zeros, which add nothing.
    sum(&key.src_ip) + sum(&key.dst_ip) + length_and_protocol(length, protocol)
}

/// The rest of the pseudo-header, which adds up alike for both families.
fn length_and_protocol(length: usize, protocol: IpProtocol) -> u64 {
    sum(&(length as u64).to_be_bytes()) + sum(&[0, protocol.0])
}

/// Returns the checksum that is sent for a sum.
fn sent(protocol: IpProtocol, sum: u64) -> u16 {
    match !fold(sum) {
        0 if protocol == IpProtocol::UDP => 0xffff,
        checksum => checksum,
    }
}

fn verdict(sum: u64) -> ChecksumStatus {
    if fold(sum) == 0xffff { ChecksumStatus::Good } else { ChecksumStatus::Bad }
}

/// Adds up 32-bit words in the machine's own byte order, which [`fold`] undoes once (RFC 1071, 2 (B)). 64
/// bits do not overflow before 2^32 words.
fn sum(bytes: &[u8]) -> u64 {
    let (words, tail) = bytes.as_chunks::<4>();
    let mut last = [0; 4];
    last.iter_mut().zip(tail).for_each(|(to, from)| *to = *from);
    words
        .iter()
        .fold(u64::from(u32::from_ne_bytes(last)), |sum, word| sum + u64::from(u32::from_ne_bytes(*word)))
}

/// Ones' complement sum of the 16-bit words of a [`sum`], in network order.
fn fold(sum: u64) -> u16 {
    let mut sum = sum;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::from_be(sum as u16)
}

#[cfg(test)]
mod tests;

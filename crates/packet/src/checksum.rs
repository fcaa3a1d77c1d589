//! Internet checksums (RFC 1071): computed for frames that are built, verified for frames that arrive.
//!
//! softnic's engine reports the verdicts in completions; [`crate::build`] fills the fields in. A wrong checksum is
//! never corrected here, and never a reason to drop.

use std::net::IpAddr;

use crate::{IpProtocol, Layers, Parsed};

/// What a verification found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Computed and right.
    Good,
    /// Computed and wrong.
    Bad,
    /// Nothing to verify: no such layer, a fragment, a packet that is cut, or no checksum was sent.
    Absent,
}

/// Verifies the checksum of the IPv4 header.
pub fn verify_ip(frame: &[u8], parsed: &Parsed) -> Check {
    if !parsed.key.layers.contains(Layers::IPV4) {
        return Check::Absent;
    }
    let header = frame.get(usize::from(parsed.l3_offset)..).and_then(|packet| {
        let words = usize::from(packet.first()? & 0x0f);
        packet.get(..words * 4)
    });
    header.map_or(Check::Absent, |header| verdict(sum(header)))
}

/// Verifies the TCP or UDP checksum. A UDP checksum of 0 was not sent (RFC 768; for tunnels over IPv6, RFC 6935).
pub fn verify_l4(frame: &[u8], parsed: &Parsed) -> Check {
    let layers = parsed.key.layers;
    if !layers.intersects(Layers::TCP | Layers::UDP) || layers.contains(Layers::FRAGMENT) {
        return Check::Absent;
    }
    let Some(segment) = segment(frame, parsed) else {
        return Check::Absent;
    };
    if layers.contains(Layers::UDP) && segment.get(6..8) == Some(&[0, 0]) {
        return Check::Absent;
    }
    let address_bytes = if layers.contains(Layers::IPV4) { 4 } else { 16 };
    let addresses = sum(&parsed.key.src_ip[..address_bytes]) + sum(&parsed.key.dst_ip[..address_bytes]);
    verdict(addresses + length_and_protocol(segment.len(), parsed.key.protocol) + sum(segment))
}

/// The checksum of an IPv4 header whose checksum field is zero.
pub fn ipv4_header(header: &[u8]) -> u16 {
    !fold(sum(header))
}

/// The checksum of a TCP segment, UDP datagram or ICMPv6 message whose checksum field is zero, pseudo-header included
/// (RFC 9293 3.1, RFC 768, RFC 8200 8.1). A UDP result of 0 becomes 0xffff, since 0 says "not sent".
pub fn l4(src: IpAddr, dst: IpAddr, protocol: IpProtocol, segment: &[u8]) -> u16 {
    let addresses = address(src) + address(dst);
    match !fold(addresses + length_and_protocol(segment.len(), protocol.0) + sum(segment)) {
        0 if protocol == IpProtocol::UDP => 0xffff,
        checksum => checksum,
    }
}

/// The plain checksum of some bytes, as ICMP for IPv4 uses it.
pub fn internet(bytes: &[u8]) -> u16 {
    !fold(sum(bytes))
}

/// The bytes that the checksum covers; `None` when the frame does not hold all of them.
fn segment<'f>(frame: &'f [u8], parsed: &Parsed) -> Option<&'f [u8]> {
    let packet = frame.get(usize::from(parsed.l3_offset)..)?;
    let header_bytes = usize::from(parsed.l4_offset.checked_sub(parsed.l3_offset)?);
    let (at, base) = if parsed.key.layers.contains(Layers::IPV4) { (2, 0) } else { (4, 40) };
    let &[high, low] = packet.get(at..)?.first_chunk::<2>()?;
    // A length of 0 is segmentation offload: the packet is all that follows.
    let end = match usize::from(u16::from_be_bytes([high, low])) {
        0 => packet.len(),
        length => base + length,
    };
    let segment = packet.get(header_bytes..end)?;
    if !parsed.key.layers.contains(Layers::UDP) {
        return Some(segment);
    }
    let &[high, low] = segment.get(4..)?.first_chunk::<2>()?;
    segment.get(..usize::from(u16::from_be_bytes([high, low])))
}

fn address(address: IpAddr) -> u64 {
    match address {
        IpAddr::V4(v4) => sum(&v4.octets()),
        IpAddr::V6(v6) => sum(&v6.octets()),
    }
}

/// The rest of the pseudo-header, which adds up alike for both families.
fn length_and_protocol(length: usize, protocol: u8) -> u64 {
    sum(&(length as u64).to_be_bytes()) + sum(&[0, protocol])
}

fn verdict(sum: u64) -> Check {
    if fold(sum) == 0xffff { Check::Good } else { Check::Bad }
}

/// Adds up 32-bit words in the machine's own byte order, which [`fold`] undoes once (RFC 1071, 2 (B)). 64 bits do not
/// overflow before 2^32 words.
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

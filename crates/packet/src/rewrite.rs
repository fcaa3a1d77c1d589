//! Changes of the headers of a frame in place: addresses, VLAN tags, and the answer of a reflector. The
//! payload is not moved, and checksums that were right stay right.
//!
//! Nothing here fails: a header that is not there or is cut is left as it is.

use crate::checksum::replace_word;
use crate::lengths::ETHERNET_BYTES;
pub use crate::lengths::{MACS_BYTES, TAG_BYTES};
use crate::{EtherType, IpProtocol, MacAddr};

/// Tags of one frame that are looked at, as by [`crate::parse`].
const MAX_TAGS: usize = 2;
/// The bits of the VLAN identifier; the others are priority and drop eligibility.
const VLAN_ID: u16 = 0x0fff;

/// Exchanges source and destination address.
#[inline]
pub fn swap_macs(frame: &mut [u8]) {
    if let Some(macs) = frame.first_chunk_mut::<MACS_BYTES>() {
        let [start @ .., a, b, c, d] = *macs;
        // The last two bytes come first: the beginning of the source, and the destination behind it.
        let turned = u64::from_le_bytes(start).rotate_left(16).to_le_bytes();
        macs[4..].copy_from_slice(&turned);
        macs[..2].copy_from_slice(&turned[..2]);
        macs[2..6].copy_from_slice(&[a, b, c, d]);
    }
}

/// Sets the destination address.
#[inline]
pub fn set_destination(frame: &mut [u8], address: MacAddr) {
    if let Some(place) = frame.get_mut(..6) {
        place.copy_from_slice(&address.0);
    }
}

/// Sets the source address.
#[inline]
pub fn set_source(frame: &mut [u8], address: MacAddr) {
    if let Some(place) = frame.get_mut(6..MACS_BYTES) {
        place.copy_from_slice(&address.0);
    }
}

/// Whether the frame is for one station; the address of several cannot become a source (IEEE 802-2014,
/// 8.2.2).
#[must_use]
#[inline]
pub fn is_unicast(frame: &[u8]) -> bool {
    frame.first().is_some_and(|first| first & 1 == 0)
}

/// The length of the Ethernet header with its tags, of which two count.
#[must_use]
#[inline]
pub fn ethernet_bytes(frame: &[u8]) -> usize {
    let tags = (0..MAX_TAGS).take_while(|tag| is_tag(frame, MACS_BYTES + tag * TAG_BYTES)).count();
    ETHERNET_BYTES + tags * TAG_BYTES
}

#[inline]
fn is_tag(frame: &[u8], at: usize) -> bool {
    word(frame, at).is_some_and(|word| EtherType(word).is_vlan_tag())
}

#[inline]
fn word(frame: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?))
}

/// Sets the VLAN identifier of the outer tag; its priority stays. False: the frame has no tag.
#[inline]
pub fn set_vlan(frame: &mut [u8], vlan: u16) -> bool {
    let at = MACS_BYTES + 2;
    let Some(tci) = word(frame, at).filter(|_| is_tag(frame, MACS_BYTES)) else { return false };
    let changed = tci & !VLAN_ID | vlan & VLAN_ID;
    frame[at..at + 2].copy_from_slice(&changed.to_be_bytes());
    true
}

/// Returns the bytes that replace the addresses of a frame so that it has one tag more: the addresses and the
/// tag. It has the priority of the tag that is the outer one now, and is an S-tag in front of that; otherwise
/// a C-tag of priority 0. `None`: the frame has no addresses.
#[must_use]
#[inline]
pub fn pushed_vlan(frame: &[u8], vlan: u16) -> Option<[u8; MACS_BYTES + TAG_BYTES]> {
    let macs = frame.first_chunk::<MACS_BYTES>()?;
    let outer = word(frame, MACS_BYTES + 2).filter(|_| is_tag(frame, MACS_BYTES));
    let (kind, priority) = match outer {
        Some(tci) => (EtherType::SVLAN, tci & !VLAN_ID),
        None => (EtherType::VLAN, 0),
    };
    let mut header = [0; MACS_BYTES + TAG_BYTES];
    header[..MACS_BYTES].copy_from_slice(macs);
    header[MACS_BYTES..MACS_BYTES + 2].copy_from_slice(&kind.0.to_be_bytes());
    header[MACS_BYTES + 2..].copy_from_slice(&(priority | vlan & VLAN_ID).to_be_bytes());
    Some(header)
}

/// Removes the outer tag by moving the addresses over it. Returns where the frame now begins: 0 without a
/// tag.
#[inline]
pub fn pop_vlan(frame: &mut [u8]) -> usize {
    if frame.len() < MACS_BYTES + TAG_BYTES || !is_tag(frame, MACS_BYTES) {
        return 0;
    }
    frame.copy_within(..MACS_BYTES, TAG_BYTES);
    TAG_BYTES
}

/// Makes a frame the answer of a reflector: addresses of Ethernet and IP and the ports of TCP and UDP are
/// exchanged, and an echo request (RFC 792, RFC 4443) becomes the reply. Behind IPv6 extension headers and in
/// later fragments, ports and ICMP messages stay.
///
/// An exchange does not change a checksum, which is a sum over both (RFC 1071).
#[inline]
pub fn reflect(frame: &mut [u8]) {
    swap_macs(frame);
    let l3 = ethernet_bytes(frame);
    let ether_type = word(frame, l3 - 2).map(EtherType);
    let Some(packet) = frame.get_mut(l3..) else { return };
    match ether_type {
        Some(EtherType::IPV4) => reflect_ipv4(packet),
        Some(EtherType::IPV6) => reflect_ipv6(packet),
        _ => {}
    }
}

fn reflect_ipv4(packet: &mut [u8]) {
    let Some(&version) = packet.first().filter(|version| **version >> 4 == 4) else { return };
    if !swap(packet, 12, 4) {
        return;
    }
    let header_bytes = usize::from(version & 0x0f) * 4;
    let is_later_fragment = word(packet, 6).is_some_and(|fragment| fragment & 0x1fff != 0);
    let protocol = IpProtocol(packet[9]);
    if header_bytes >= 20
        && !is_later_fragment
        && let Some(segment) = packet.get_mut(header_bytes..)
    {
        reflect_l4(protocol, segment);
    }
}

fn reflect_ipv6(packet: &mut [u8]) {
    if packet.first().is_some_and(|version| version >> 4 == 6) && swap(packet, 8, 16) {
        let protocol = IpProtocol(packet[6]);
        reflect_l4(protocol, &mut packet[40..]);
    }
}

fn reflect_l4(protocol: IpProtocol, segment: &mut [u8]) {
    /// Type and code of echo messages (RFC 792; RFC 4443, 4.1).
    const REQUEST: u16 = 0x0800;
    const REPLY: u16 = 0x0000;
    const REQUEST_V6: u16 = 0x8000;
    const REPLY_V6: u16 = 0x8100;
    match protocol {
        IpProtocol::TCP | IpProtocol::UDP => {
            swap(segment, 0, 2);
        }
        IpProtocol::ICMP => answer_echo(segment, REQUEST, REPLY),
        IpProtocol::ICMPV6 => answer_echo(segment, REQUEST_V6, REPLY_V6),
        _ => {}
    }
}

fn answer_echo(message: &mut [u8], request: u16, reply: u16) {
    if word(message, 0) == Some(request)
        && let Some(checksum) = word(message, 2)
    {
        message[..2].copy_from_slice(&reply.to_be_bytes());
        message[2..4].copy_from_slice(&replace_word(checksum, request, reply).to_be_bytes());
    }
}

/// Exchanges two neighbours of `bytes` bytes each. False: they are not all there.
fn swap(packet: &mut [u8], at: usize, bytes: usize) -> bool {
    let both = packet.get_mut(at..at + 2 * bytes).and_then(|both| both.split_at_mut_checked(bytes));
    both.map(|(first, second)| first.swap_with_slice(second)).is_some()
}

#[cfg(test)]
mod tests;

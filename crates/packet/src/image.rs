//! The packed image of a frame's outer headers, straight from its bytes: what softnic's engine needs of most
//! frames.
//!
//! It is that of the frame's [`FlowKey`](crate::FlowKey) by definition, and tested against it. Frames of the
//! frequent kinds, which are TCP or UDP in plain IPv4 or IPv6 with at most one VLAN tag, are read word by
//! word; all others are parsed. What [`parse`] only notes as an anomaly changes no image, so it is not looked
//! for.

use crate::lengths::{ETHERNET_BYTES, IPV4_BYTES, IPV6_BYTES, MACS_BYTES, TAG_BYTES, TCP_BYTES, UDP_BYTES};
use crate::slots::{
    FLOW_LABEL, HAS_C_TAG, HAS_IPV4, HAS_IPV6, HAS_TCP, HAS_UDP, IP_FLAGS, LEVEL_WORDS, PROTOCOL, TOS,
};
use crate::{EtherType, IpProtocol, parse};

const TAGGED_BYTES: usize = ETHERNET_BYTES + TAG_BYTES;
/// The fragment offset and the flag for more of them (RFC 791, 3.1).
const FRAGMENT: u16 = 0x3fff;

type Words = [u64; LEVEL_WORDS];

/// Writes the packed image of the outer headers of a frame.
#[inline(always)]
pub fn read_image(frame: &[u8], words: &mut Words) {
    if !read_frequent(frame, words) {
        *words = parsed(frame);
    }
}

#[cold]
#[inline(never)]
fn parsed(frame: &[u8]) -> Words {
    parse(frame).key.image()
}

/// Reads an image as [`read_image`] does, for frames of the frequent kinds; `false` for others, of which
/// nothing is written.
#[inline(always)]
fn read_frequent(frame: &[u8], words: &mut Words) -> bool {
    let Some(ethernet) = frame.first_chunk::<TAGGED_BYTES>() else { return false };
    let outer = EtherType(number16(&ethernet[MACS_BYTES..]));
    match outer {
        EtherType::IPV4 => read_ipv4::<ETHERNET_BYTES>(frame, words),
        EtherType::IPV6 => read_ipv6::<ETHERNET_BYTES>(frame, words),
        _ if outer.is_vlan_tag() => {
            let is_read = match EtherType(number16(&ethernet[TAGGED_BYTES - 2..])) {
                EtherType::IPV4 => read_ipv4::<TAGGED_BYTES>(frame, words),
                EtherType::IPV6 => read_ipv6::<TAGGED_BYTES>(frame, words),
                _ => false,
            };
            if is_read && outer == EtherType::VLAN {
                words[6] |= u64::from(number16(&ethernet[ETHERNET_BYTES..]));
                words[7] |= 1 << HAS_C_TAG.shift();
            }
            is_read
        }
        _ => false,
    }
}

/// An IPv4 header without options at `L3` that is of no fragment, with TCP or UDP behind it.
#[inline]
fn read_ipv4<const L3: usize>(frame: &[u8], words: &mut Words) -> bool {
    // As long as with TCP, also for UDP: the shortest frame of Ethernet is.
    let Some((headers, l4)) = split::<L3, IPV4_BYTES, TCP_BYTES>(frame) else { return false };
    let ip = &headers[L3..];
    let Some((layer, l4_bytes)) = transport(ip[9]) else { return false };
    // Identification, flags and fragment offset, TTL, protocol, checksum.
    let middle = number64(&ip[4..]);
    // A total length beyond the frame's end is an anomaly; one of 0 leaves the end to the frame.
    let is_whole = usize::from(number16(&ip[2..])) >= IPV4_BYTES + l4_bytes;
    if ip[0] != 0x45 || !is_whole || (middle >> 32) as u16 & FRAGMENT != 0 {
        return false;
    }
    let addresses = number64(&ip[12..]);
    words[0] = 1 << HAS_IPV4.shift()
        | layer
        | (middle >> 45 & 0b111) << IP_FLAGS.shift()
        // TTL and protocol.
        | (middle >> 16 & 0xffff) << PROTOCOL.shift()
        | u64::from(ip[1]) << TOS.shift()
        | u64::from(number32(l4));
    words[1] = addresses << 32;
    words[2] = addresses & !0xffff_ffff;
    (words[3], words[4]) = (0, 0);
    read_ethernet(headers, EtherType::IPV4, words);
    words[7] = 0;
    true
}

/// An IPv6 header at `L3` with TCP or UDP right behind it.
#[inline]
fn read_ipv6<const L3: usize>(frame: &[u8], words: &mut Words) -> bool {
    let Some((headers, l4)) = split::<L3, IPV6_BYTES, UDP_BYTES>(frame) else { return false };
    let ip = &headers[L3..];
    let Some((layer, l4_bytes)) = transport(ip[6]) else { return false };
    let payload_bytes = usize::from(number16(&ip[4..])).min(frame.len() - L3 - IPV6_BYTES);
    let first = number32(ip);
    if first >> 28 != 6 || payload_bytes < l4_bytes {
        return false;
    }
    let [protocol, hop_limit] = [ip[6], ip[7]];
    words[0] = 1 << HAS_IPV6.shift()
        | layer
        | u64::from(u16::from_be_bytes([hop_limit, protocol])) << PROTOCOL.shift()
        | u64::from((first >> 20) as u8) << TOS.shift()
        | u64::from(number32(l4));
    (words[1], words[3]) = (number64(&ip[24..]), number64(&ip[32..]));
    (words[2], words[4]) = (number64(&ip[8..]), number64(&ip[16..]));
    read_ethernet(headers, EtherType::IPV6, words);
    words[7] = u64::from(first) & FLOW_LABEL.ones();
    true
}

/// The addresses of the Ethernet header, and the type that follows it and its tag.
#[inline]
fn read_ethernet(headers: &[u8], ether_type: EtherType, words: &mut Words) {
    words[5] = number64(headers) & !0xffff | u64::from(ether_type.0);
    words[6] = number64(&headers[6..]) & !0xffff;
}

/// The headers up to an IP header at `l3`, and `L4` bytes behind it.
#[inline]
fn split<const L3: usize, const IP: usize, const L4: usize>(frame: &[u8]) -> Option<(&[u8], &[u8])> {
    (frame.len() >= L3 + IP + L4).then(|| frame[..L3 + IP + L4].split_at(L3 + IP))
}

/// The bit of a transport's layer, and the bytes of its header.
#[inline]
fn transport(protocol: u8) -> Option<(u64, usize)> {
    match IpProtocol(protocol) {
        IpProtocol::TCP => Some((1 << HAS_TCP.shift(), TCP_BYTES)),
        IpProtocol::UDP => Some((1 << HAS_UDP.shift(), UDP_BYTES)),
        _ => None,
    }
}

#[inline]
fn number16(bytes: &[u8]) -> u16 {
    u16::from_be_bytes(first(bytes))
}

#[inline]
fn number32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(first(bytes))
}

#[inline]
fn number64(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(first(bytes))
}

/// The first octets of so many at least: one load.
#[inline]
fn first<const OCTETS: usize>(bytes: &[u8]) -> [u8; OCTETS] {
    let mut octets = [0; OCTETS];
    octets.copy_from_slice(&bytes[..OCTETS]);
    octets
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::build::FrameBuilder;

    fn check(frame: &[u8]) -> Result<(), TestCaseError> {
        // Whatever was there before.
        let mut words = [u64::MAX; LEVEL_WORDS];
        read_image(frame, &mut words);
        prop_assert_eq!(words, parse(frame).key.image(), "{:02x?}", frame);
        Ok(())
    }

    /// Frames of every frequent kind.
    fn frequent() -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        for tag in [None, Some(EtherType::VLAN), Some(EtherType::SVLAN)] {
            let start = FrameBuilder::new();
            let start = tag.map_or(start.clone(), |tag| start.vlan(tag, 0xa123));
            let v4 = start.clone().ipv4([10, 1, 2, 3].into(), [192, 0, 2, 10].into());
            let v6 =
                start.ipv6([0xfe80, 1, 2, 3, 4, 5, 6, 7].into(), [0xff02, 8, 9, 10, 11, 12, 13, 14].into());
            for ip in [v4, v6] {
                frames.push(ip.clone().tcp(0x1234, 0x5678, 0x12).frame_bytes(100).build());
                frames.push(ip.udp(0x1234, 0x5678).frame_bytes(100).build());
            }
        }
        frames
    }

    #[test]
    fn frequent_frames_are_not_parsed() {
        for frame in frequent() {
            let mut words = [u64::MAX; LEVEL_WORDS];
            assert!(read_frequent(&frame, &mut words), "{frame:02x?}");
            assert_eq!(words, parsed(&frame));
        }
    }

    #[test]
    fn each_octet_of_the_headers_counts_as_for_the_parser() {
        // Miri is slow: it gets four values of each octet.
        let step = if cfg!(miri) { 85 } else { 1 };
        for frame in frequent() {
            for at in 0..frame.len().min(90) {
                for value in (0..=u8::MAX).step_by(step) {
                    let mut changed = frame.clone();
                    changed[at] = value;
                    check(&changed).unwrap();
                }
            }
        }
    }

    #[test]
    fn frames_may_end_anywhere() {
        // SCTP is read by the parser, and its ports are not those that devices match.
        let sctp = FrameBuilder::new().ipv4([10, 1, 2, 3].into(), [192, 0, 2, 10].into()).sctp(1, 2).build();
        assert_eq!(parsed(&sctp)[0] as u32, 0);
        for frame in frequent().into_iter().chain([sctp]) {
            for bytes in 0..frame.len() {
                check(&frame[..bytes]).unwrap();
            }
        }
    }

    proptest! {
        #[test]
        fn damaged_frames_have_the_image_of_their_key(
            which in 0..12usize,
            changes in prop::collection::vec((0..100usize, any::<u8>()), 0..6),
            bytes in 0..=100usize,
        ) {
            let mut frame = frequent()[which].clone();
            for (at, value) in changes {
                frame[at] = value;
            }
            check(&frame[..bytes])?;
        }

        #[test]
        fn any_bytes_have_the_image_of_their_key(bytes in prop::collection::vec(any::<u8>(), 0..130)) {
            check(&bytes)?;
        }
    }
}

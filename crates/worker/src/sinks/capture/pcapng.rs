//! The blocks of a pcapng file (draft-ietf-opsawg-pcapng): section header, interface description, enhanced packet and
//! interface statistics, in this machine's byte order. Each function appends one whole block to a buffer.
//!
//! A block is its type, its length, its body and its length again, all padded to 4 octets. Options are code, length and
//! value, padded likewise; `opt_endofopt` ends them.

/// Block types (section 11.1 of the draft).
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
/// By which a reader finds out the byte order.
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
/// LINKTYPE_ETHERNET.
const ETHERNET: u16 = 1;
/// The unit of timestamps is 10 to the power of minus this.
const NANOSECONDS: u8 = 9;
/// The longest text of an option; longer ones are cut at a character.
const TEXT_BYTES_MAX: usize = 4096;

/// Option codes (sections 3.5 and 4).
mod option {
    pub(super) const END: u16 = 0;
    pub(super) const COMMENT: u16 = 1;
    pub(super) const SECTION_HARDWARE: u16 = 2;
    pub(super) const SECTION_OS: u16 = 3;
    pub(super) const SECTION_APPLICATION: u16 = 4;
    pub(super) const INTERFACE_NAME: u16 = 2;
    pub(super) const INTERFACE_DESCRIPTION: u16 = 3;
    pub(super) const INTERFACE_RESOLUTION: u16 = 9;
    pub(super) const PACKET_DROPS: u16 = 4;
    pub(super) const STATISTICS_START: u16 = 2;
    pub(super) const STATISTICS_END: u16 = 3;
    pub(super) const STATISTICS_RECEIVED: u16 = 4;
    pub(super) const STATISTICS_DROPPED: u16 = 5;
    pub(super) const STATISTICS_ACCEPTED: u16 = 6;
    pub(super) const STATISTICS_WRITTEN: u16 = 8;
}

/// The texts of a section header. Empty ones are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Section<'s> {
    pub(super) hardware: &'s str,
    pub(super) os: &'s str,
    pub(super) application: &'s str,
    pub(super) comment: &'s str,
}

/// A packet of an enhanced packet block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet<'p> {
    /// The number of interface description blocks before that of its interface.
    pub(super) interface: u32,
    pub(super) timestamp_ns: u64,
    pub(super) original_bytes: u32,
    /// Packets of this interface that were lost since the last one that was written.
    pub(super) dropped: u64,
    pub(super) bytes: &'p [u8],
}

/// The counts of an interface statistics block, since the start of the capture file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Statistics {
    pub(super) received: u64,
    pub(super) accepted: u64,
    pub(super) dropped: u64,
    pub(super) written: u64,
}

/// Appends a section header block. The length of the section is left open (-1): it is not known before its end.
pub(super) fn section_header(out: &mut Vec<u8>, section: &Section<'_>) {
    block(out, SECTION_HEADER, |out| {
        out.extend(BYTE_ORDER_MAGIC.to_ne_bytes());
        out.extend(1_u16.to_ne_bytes()); // version 1.0
        out.extend(0_u16.to_ne_bytes());
        out.extend((-1_i64).to_ne_bytes());
        text(out, option::COMMENT, section.comment);
        text(out, option::SECTION_HARDWARE, section.hardware);
        text(out, option::SECTION_OS, section.os);
        text(out, option::SECTION_APPLICATION, section.application);
        end_of_options(out);
    });
}

/// Appends an interface description block.
pub(super) fn interface(out: &mut Vec<u8>, name: &str, description: &str, snap_bytes: u32) {
    block(out, INTERFACE_DESCRIPTION, |out| {
        out.extend(ETHERNET.to_ne_bytes());
        out.extend(0_u16.to_ne_bytes());
        out.extend(snap_bytes.to_ne_bytes());
        text(out, option::INTERFACE_NAME, name);
        text(out, option::INTERFACE_DESCRIPTION, description);
        value(out, option::INTERFACE_RESOLUTION, &[NANOSECONDS]);
        end_of_options(out);
    });
}

/// The size of an enhanced packet block, at most.
#[inline]
pub(super) const fn packet_block_bytes(bytes: usize) -> usize {
    // Type, length, interface, timestamp, lengths; an option of 8 octets and the end; length again.
    8 + 20 + bytes.next_multiple_of(4) + 16 + 4
}

/// Appends an enhanced packet block.
#[inline]
pub(super) fn packet(out: &mut Vec<u8>, packet: &Packet<'_>) {
    block(out, ENHANCED_PACKET, |out| {
        let mut fixed = [0; 20];
        fixed[..4].copy_from_slice(&packet.interface.to_ne_bytes());
        fixed[4..12].copy_from_slice(&timestamp(packet.timestamp_ns));
        let stored = u32::try_from(packet.bytes.len()).unwrap_or(u32::MAX);
        fixed[12..16].copy_from_slice(&stored.to_ne_bytes());
        fixed[16..].copy_from_slice(&packet.original_bytes.to_ne_bytes());
        out.extend_from_slice(&fixed);
        out.extend_from_slice(packet.bytes);
        pad(out, packet.bytes.len());
        if packet.dropped > 0 {
            value(out, option::PACKET_DROPS, &packet.dropped.to_ne_bytes());
            end_of_options(out);
        }
    });
}

/// The size of an interface statistics block.
pub(super) const STATISTICS_BLOCK_BYTES: usize = 8 + 12 + 6 * 12 + 4 + 4;

/// Appends an interface statistics block, with the time of the first and the last moment that it counts.
pub(super) fn statistics(out: &mut Vec<u8>, interface: u32, from_ns: u64, to_ns: u64, counts: &Statistics) {
    block(out, INTERFACE_STATISTICS, |out| {
        out.extend(interface.to_ne_bytes());
        out.extend(timestamp(to_ns));
        value(out, option::STATISTICS_START, &timestamp(from_ns));
        value(out, option::STATISTICS_END, &timestamp(to_ns));
        value(out, option::STATISTICS_RECEIVED, &counts.received.to_ne_bytes());
        value(out, option::STATISTICS_DROPPED, &counts.dropped.to_ne_bytes());
        value(out, option::STATISTICS_ACCEPTED, &counts.accepted.to_ne_bytes());
        value(out, option::STATISTICS_WRITTEN, &counts.written.to_ne_bytes());
        end_of_options(out);
    });
}

#[inline]
fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(&[0; 4]);
    body(out);
    let length = u32::try_from(out.len() - start + 4).unwrap_or(u32::MAX).to_ne_bytes();
    out.extend_from_slice(&length);
    out[start + 4..start + 8].copy_from_slice(&length);
}

/// The upper half comes first, in either byte order.
#[inline]
fn timestamp(ns: u64) -> [u8; 8] {
    let mut halves = [0; 8];
    halves[..4].copy_from_slice(&((ns >> 32) as u32).to_ne_bytes());
    halves[4..].copy_from_slice(&(ns as u32).to_ne_bytes());
    halves
}

fn text(out: &mut Vec<u8>, code: u16, text: &str) {
    if !text.is_empty() {
        let end = (0..=text.len().min(TEXT_BYTES_MAX)).rev().find(|end| text.is_char_boundary(*end));
        value(out, code, &text.as_bytes()[..end.unwrap_or(0)]);
    }
}

fn value(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    out.extend_from_slice(&code.to_ne_bytes());
    out.extend_from_slice(&(value.len() as u16).to_ne_bytes());
    out.extend_from_slice(value);
    pad(out, value.len());
}

fn end_of_options(out: &mut Vec<u8>) {
    value(out, option::END, &[]);
}

#[inline]
fn pad(out: &mut Vec<u8>, bytes: usize) {
    out.extend_from_slice(&[0; 3][..bytes.next_multiple_of(4) - bytes]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expectations are written in the order of a little-endian machine.
    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn a_section_header_is_as_in_the_draft() {
        let mut out = Vec::new();
        let section = Section { hardware: "", os: "Linux", application: "abcd", comment: "é" };
        section_header(&mut out, &section);
        let mut expected = words(&[0x0a0d_0d0a, 60, 0x1a2b_3c4d, 1, u32::MAX, u32::MAX]);
        expected.extend(*b"\x01\0\x02\0\xc3\xa9\0\0"); // opt_comment
        expected.extend(*b"\x03\0\x05\0Linux\0\0\0"); // shb_os
        expected.extend(*b"\x04\0\x04\0abcd"); // shb_userappl
        expected.extend(*b"\0\0\0\0\x3c\0\0\0"); // opt_endofopt, length
        assert_eq!(out, expected);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn an_interface_has_a_name_and_nanoseconds() {
        let mut out = vec![7]; // what is in the buffer stays
        interface(&mut out, "dns", "", 96);
        let mut expected = vec![7];
        expected.extend(words(&[1, 40, 1, 96]));
        expected.extend(*b"\x02\0\x03\0dns\0"); // if_name
        expected.extend(*b"\x09\0\x01\0\x09\0\0\0"); // if_tsresol
        expected.extend(words(&[0, 40]));
        assert_eq!(out, expected);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn a_packet_is_padded_and_has_drops_only_if_there_were_any() {
        let mut out = Vec::new();
        let five = Packet {
            interface: 3,
            timestamp_ns: 0x1122_3344_5566_7788,
            original_bytes: 1500,
            dropped: 0,
            bytes: &[1, 2, 3, 4, 5],
        };
        packet(&mut out, &five);
        let mut expected = words(&[6, 40, 3, 0x1122_3344, 0x5566_7788, 5, 1500]);
        expected.extend([1, 2, 3, 4, 5, 0, 0, 0, 40, 0, 0, 0]);
        assert_eq!(out, expected);

        out.clear();
        packet(&mut out, &Packet { dropped: 9, bytes: &[], ..five });
        assert_eq!(out, words(&[6, 48, 3, 0x1122_3344, 0x5566_7788, 0, 1500, 8 << 16 | 4, 9, 0, 0, 48]));
        assert_eq!(out.len(), packet_block_bytes(0));
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn statistics_are_as_in_the_draft() {
        let mut out = Vec::new();
        let counts = Statistics { received: 4, accepted: 3, dropped: 1, written: 2 };
        statistics(&mut out, 1, 5, 1 << 32, &counts);
        let head = [5, 100, 1, 1, 0];
        let times = [8 << 16 | 2, 0, 5, 8 << 16 | 3, 1, 0];
        let counts = [8 << 16 | 4, 4, 0, 8 << 16 | 5, 1, 0, 8 << 16 | 6, 3, 0, 8 << 16 | 8, 2, 0];
        assert_eq!(out, words(&[&head[..], &times, &counts, &[0, 100]].concat()));
        assert_eq!(out.len(), STATISTICS_BLOCK_BYTES);
    }

    #[test]
    fn a_long_text_is_cut_at_a_character() {
        let mut out = Vec::new();
        let long = "é".repeat(5000);
        interface(&mut out, &long, &format!("x{long}"), 0);
        assert_eq!(out.len() % 4, 0);
        let length = |at: usize| u16::from_ne_bytes([out[at], out[at + 1]]);
        assert_eq!((length(18), length(18 + 2 + 4096 + 2)), (4096, 4095));
    }
}

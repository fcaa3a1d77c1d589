//! The blocks of a pcapng file (draft-ietf-opsawg-pcapng): section header, interface description, enhanced
//! packet and interface statistics, in this machine's byte order. The first of a file and the statistics are
//! appended to a buffer; packets are written in place, by [`write_packet`].
//!
//! A block is its type, its length, its body and its length again, all padded to 4 octets. Options are code,
//! length and value, padded likewise; `opt_endofopt` ends them.

/// Block types (section 11.1 of the draft).
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
/// The number by which a reader finds out the byte order.
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

/// The fields of an enhanced packet block without options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Packet {
    /// The number of interface description blocks before that of its interface.
    pub(super) interface: u32,
    pub(super) timestamp_ns: u64,
    pub(super) original_bytes: u32,
}

/// The counts of an interface statistics block, since the start of the capture file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Statistics {
    pub(super) received: u64,
    pub(super) accepted: u64,
    pub(super) dropped: u64,
    pub(super) written: u64,
}

/// Appends a section header block. The length of the section is left open (-1): it is not known before its
/// end.
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

/// The octets of an enhanced packet block before the bytes of the packet: type, length, interface, timestamp
/// and the two lengths of the packet.
const PACKET_HEADER_BYTES: usize = 28;
/// The last field of a block is its length again.
const LENGTH_BYTES: usize = 4;
/// The octets that [`packet_with_drops`] adds: an option of 8 octets and the end of options.
pub(super) const DROPS_BYTES: usize = 16;

/// The size of an enhanced packet block without options.
#[inline]
pub(super) const fn packet_block_bytes(bytes: usize) -> usize {
    PACKET_HEADER_BYTES + bytes.next_multiple_of(4) + LENGTH_BYTES
}

/// Writes an enhanced packet block without options to `place`, which has the size of [`packet_block_bytes`].
#[inline]
pub(super) fn write_packet(place: &mut [u8], packet: &Packet, bytes: &[u8]) {
    let length = (place.len() as u32).to_ne_bytes();
    let mut header = [0; PACKET_HEADER_BYTES];
    header[..4].copy_from_slice(&ENHANCED_PACKET.to_ne_bytes());
    header[4..8].copy_from_slice(&length);
    header[8..12].copy_from_slice(&packet.interface.to_ne_bytes());
    header[12..20].copy_from_slice(&timestamp(packet.timestamp_ns));
    header[20..24].copy_from_slice(&(bytes.len() as u32).to_ne_bytes());
    header[24..].copy_from_slice(&packet.original_bytes.to_ne_bytes());
    let (start, rest) = place.split_at_mut(PACKET_HEADER_BYTES);
    start.copy_from_slice(&header);
    let (body, end) = rest.split_at_mut(rest.len() - LENGTH_BYTES);
    let (stored, padding) = body.split_at_mut(bytes.len());
    stored.copy_from_slice(bytes);
    padding.fill(0);
    end.copy_from_slice(&length);
}

/// Reads what [`write_packet`] wrote: the fields, and the size of the block. `None` if `blocks` does not
/// begin with such a block.
#[inline]
pub(super) fn read_packet(blocks: &[u8]) -> Option<(Packet, usize)> {
    let header = blocks.first_chunk::<PACKET_HEADER_BYTES>()?;
    let word = |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let timestamp_ns = u64::from(word(12)) << 32 | u64::from(word(16));
    Some((Packet { interface: word(8), timestamp_ns, original_bytes: word(24) }, word(4) as usize))
}

/// Changes the interface of a block of [`write_packet`].
#[inline]
pub(super) fn set_interface(block: &mut [u8], interface: u32) {
    block[8..12].copy_from_slice(&interface.to_ne_bytes());
}

/// Appends a copy of a block of [`write_packet`] with the number of the packets that were lost before it on
/// its interface.
pub(super) fn packet_with_drops(out: &mut Vec<u8>, packet_block: &[u8], dropped: u64) {
    block(out, ENHANCED_PACKET, |out| {
        out.extend_from_slice(&packet_block[8..packet_block.len() - LENGTH_BYTES]);
        value(out, option::PACKET_DROPS, &dropped.to_ne_bytes());
        end_of_options(out);
    });
}

/// Appends an enhanced packet block with a comment, and the number of the packets that were lost before it if
/// there are any.
pub(super) fn packet_with_comment(
    out: &mut Vec<u8>,
    packet: &Packet,
    bytes: &[u8],
    comment: &str,
    dropped: u64,
) {
    let mut plain = vec![0; packet_block_bytes(bytes.len())];
    write_packet(&mut plain, packet, bytes);
    block(out, ENHANCED_PACKET, |out| {
        out.extend_from_slice(&plain[8..plain.len() - LENGTH_BYTES]);
        text(out, option::COMMENT, comment);
        if dropped > 0 {
            value(out, option::PACKET_DROPS, &dropped.to_ne_bytes());
        }
        end_of_options(out);
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
        let five = Packet { interface: 3, timestamp_ns: 0x1122_3344_5566_7788, original_bytes: 1500 };
        let mut block = vec![0xff; packet_block_bytes(5)];
        write_packet(&mut block, &five, &[1, 2, 3, 4, 5]);
        let mut expected = words(&[6, 40, 3, 0x1122_3344, 0x5566_7788, 5, 1500]);
        expected.extend([1, 2, 3, 4, 5, 0, 0, 0, 40, 0, 0, 0]);
        assert_eq!(block, expected);
        assert_eq!(read_packet(&block), Some((five, 40)));
        assert_eq!(read_packet(&block[..27]), None);

        let mut block = vec![0xff; packet_block_bytes(0)];
        write_packet(&mut block, &five, &[]);
        set_interface(&mut block, 4);
        let mut out = vec![7]; // what is in the buffer stays
        packet_with_drops(&mut out, &block, 9);
        let expected = words(&[6, 48, 4, 0x1122_3344, 0x5566_7788, 0, 1500, 8 << 16 | 4, 9, 0, 0, 48]);
        assert_eq!(out[1..], expected);
        assert_eq!(out.len() - 1, block.len() + DROPS_BYTES);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn a_packet_can_have_a_comment() {
        let three = Packet { interface: 2, timestamp_ns: 0x1122_3344_5566_7788, original_bytes: 60 };
        let (mut out, mut lossy) = (Vec::new(), Vec::new());
        packet_with_comment(&mut out, &three, &[1, 2, 3], "flow", 0);
        let mut expected = words(&[6, 48, 2, 0x1122_3344, 0x5566_7788, 3, 60]);
        expected.extend(*b"\x01\x02\x03\0\x01\0\x04\0flow\0\0\0\0\x30\0\0\0");
        assert_eq!(out, expected);
        packet_with_comment(&mut lossy, &three, &[1, 2, 3], "flow", 9);
        assert_eq!(lossy[40..], words(&[8 << 16 | 4, 9, 0, 0, 60]));
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

//! A pcapng section whose packets have comments: for few packets, which are made in memory one by one.

use super::interfaces::description;
use super::pcapng::{self, Packet, Section};
use super::writer::operating_system;

/// Makes the blocks of the section.
#[derive(Debug)]
pub struct CommentedSection {
    snap_bytes: u32,
    /// The rules whose interfaces are described already.
    interfaces: Vec<String>,
}

/// A packet with its comment.
#[derive(Clone, Copy, Debug)]
pub struct CommentedPacket<'p> {
    /// The rule, which is an interface of the section.
    pub rule: &'p str,
    /// Nanoseconds since 1970.
    pub timestamp_ns: u64,
    /// The length of the packet.
    pub original_bytes: u32,
    /// The bytes that are written.
    pub bytes: &'p [u8],
    /// The comment.
    pub comment: &'p str,
    /// The packets that are missing before this one.
    pub missing: u64,
}

impl CommentedSection {
    /// Begins the section of a device. `snap_bytes`: the most bytes of a packet that are written.
    #[must_use]
    pub fn begin(hardware: &str, snap_bytes: u32, comment: &str, out: &mut Vec<u8>) -> Self {
        let application = concat!("steerd ", env!("CARGO_PKG_VERSION"));
        let section = Section { hardware, os: &operating_system(), application, comment };
        pcapng::section_header(out, &section);
        Self { snap_bytes, interfaces: Vec::new() }
    }

    /// Appends a packet, and before the first of a rule the description of its interface.
    pub fn packet(&mut self, packet: &CommentedPacket<'_>, out: &mut Vec<u8>) {
        let known = self.interfaces.iter().position(|rule| rule == packet.rule);
        let place = known.unwrap_or_else(|| {
            pcapng::interface(out, packet.rule, &description(packet.rule), self.snap_bytes);
            self.interfaces.push(packet.rule.to_owned());
            self.interfaces.len() - 1
        });
        let head = Packet {
            interface: place as u32,
            timestamp_ns: packet.timestamp_ns,
            original_bytes: packet.original_bytes,
        };
        pcapng::packet_with_comment(out, &head, packet.bytes, packet.comment, packet.missing);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sinks::capture::pcapng::read_packet;

    #[test]
    fn each_rule_is_described_once_before_its_packets() {
        let mut out = Vec::new();
        let mut section = CommentedSection::begin("", 96, "", &mut out);
        let packet = |rule| CommentedPacket {
            rule,
            timestamp_ns: 7,
            original_bytes: 60,
            bytes: &[1; 5],
            comment: "dropped",
            missing: 0,
        };
        let mut interfaces = Vec::new();
        for rule in ["scan", "dns", "scan"] {
            out.clear();
            section.packet(&packet(rule), &mut out);
            let is_new = out[..4] == 1_u32.to_ne_bytes();
            let at = if is_new { u32::from_ne_bytes([out[4], out[5], out[6], out[7]]) as usize } else { 0 };
            let (head, bytes) = read_packet(&out[at..]).expect("a packet");
            assert_eq!((at + bytes, head.original_bytes), (out.len(), 60));
            interfaces.push((head.interface, is_new));
        }
        assert_eq!(interfaces, [(0, true), (1, true), (0, false)]);
    }
}

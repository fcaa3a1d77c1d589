//! What a capture says about the link layer of its packets: the link type, and how many bytes of frame check sequence
//! (FCS) end each packet. A frame begins at the destination address and ends before its FCS.

use pcap_file::DataLink;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::packet::{PacketBlock, PacketOption};
use pcap_file::pcapng::blocks::simple_packet::SimplePacketBlock;

/// The word at the end of a pcap file's header (pcap-savefile(5)): the link type in the lower half, above it a bit that
/// says whether the FCS length is known, and that length in units of 16 bits. All other bits are to be ignored.
const LINK_TYPE: u32 = 0xffff;
const FCS_LENGTH_PRESENT: u32 = 1 << 26;
const FCS_LENGTH_SHIFT: u32 = 28;
/// The FCS length in a packet's flags, in bytes; 0 where it is not known (draft-ietf-opsawg-pcapng, 4.3.1).
const PACKET_FCS_SHIFT: u32 = 5;
const PACKET_FCS_MASK: u32 = 0xf;
const BITS_PER_BYTE: u8 = 8;

/// The link layer of a pcap file's packets, or of those of one interface of a pcapng file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureLink {
    link: DataLink,
    /// Zero also where it is not known: most captures have none.
    fcs_bytes: u8,
    /// 0: packets are not cut.
    snaplen: u32,
}

impl CaptureLink {
    /// That of a pcap file with this link type in its header.
    #[must_use]
    pub fn of_pcap(link: DataLink) -> Self {
        let word = u32::from(link);
        let words = if word & FCS_LENGTH_PRESENT == 0 { 0 } else { word >> FCS_LENGTH_SHIFT };
        Self { link: DataLink::from(word & LINK_TYPE), fcs_bytes: 2 * words as u8, snaplen: 0 }
    }

    /// That of a pcapng interface.
    #[must_use]
    pub fn of_interface(block: &InterfaceDescriptionBlock<'_>) -> Self {
        let length = block.options.iter().find_map(|option| match option {
            InterfaceDescriptionOption::IfFcsLen(length) => Some(*length),
            _ => None,
        });
        // In bits (draft-ietf-opsawg-pcapng, 4.2); but earlier drafts had 4 as the example, which are bytes.
        let fcs_bytes = match length.unwrap_or(0) {
            bytes @ 0..BITS_PER_BYTE => bytes,
            bits => bits / BITS_PER_BYTE,
        };
        Self { link: block.linktype, fcs_bytes, snaplen: block.snaplen }
    }

    /// The link type, without what stands above it.
    #[must_use]
    pub fn link_type(self) -> DataLink {
        self.link
    }

    /// Whether its packets are Ethernet frames.
    #[must_use]
    pub fn is_ethernet(self) -> bool {
        self.link == DataLink::ETHERNET
    }

    /// The frame in what was captured of a packet that was `original` bytes long. Of a packet that was cut, the FCS is
    /// gone first.
    #[must_use]
    pub fn frame(self, captured: &[u8], original: u32) -> &[u8] {
        // Some writers leave the original length at 0.
        let whole = captured.len().max(original as usize);
        let frame_bytes = whole.saturating_sub(usize::from(self.fcs_bytes));
        captured.get(..frame_bytes).unwrap_or(captured)
    }

    /// The frame of an enhanced packet block.
    #[must_use]
    pub fn enhanced<'p>(self, packet: &'p EnhancedPacketBlock<'_>) -> &'p [u8] {
        let flags = packet.options.iter().find_map(|option| match option {
            EnhancedPacketOption::Flags(flags) => Some(*flags),
            _ => None,
        });
        self.with_flags(flags).frame(&packet.data, packet.original_len)
    }

    /// The frame of a packet block of the obsolete kind.
    #[must_use]
    pub fn obsolete<'p>(self, packet: &'p PacketBlock<'_>) -> &'p [u8] {
        let flags = packet.options.iter().find_map(|option| match option {
            PacketOption::Flags(flags) => Some(*flags),
            _ => None,
        });
        self.with_flags(flags).frame(&packet.data, packet.original_len)
    }

    /// The frame of a simple packet block, which does not say how much was captured: its data may end in padding.
    #[must_use]
    pub fn simple<'p>(self, packet: &'p SimplePacketBlock<'_>) -> &'p [u8] {
        let snaplen = if self.snaplen == 0 { usize::MAX } else { self.snaplen as usize };
        let length = packet.data.len().min(packet.original_len as usize).min(snaplen);
        self.frame(&packet.data[..length], packet.original_len)
    }

    /// A packet's own FCS length counts before that of its interface.
    fn with_flags(self, flags: Option<u32>) -> Self {
        let fcs_bytes = (flags.unwrap_or(0) >> PACKET_FCS_SHIFT & PACKET_FCS_MASK) as u8;
        if fcs_bytes == 0 { self } else { Self { fcs_bytes, ..self } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_link_word_is_a_type_and_a_length_that_counts_only_with_its_bit() {
        for (word, fcs_bytes) in [
            (0x0000_0001, 0),
            (0x4000_0001, 0),
            (0x2400_0001, 4),
            (0x1400_0001, 2),
            (0x0400_0001, 0),
            (0x27ff_0001, 4),
        ] {
            let link = CaptureLink::of_pcap(DataLink::from(word));
            assert!(link.is_ethernet(), "{word:#010x}");
            assert_eq!(link.fcs_bytes, fcs_bytes, "{word:#010x}");
        }
        assert!(!CaptureLink::of_pcap(DataLink::from(0x2400_0071)).is_ethernet());
    }

    #[test]
    fn an_interface_gives_its_length_in_bits_and_a_packet_its_own_in_bytes() {
        for (option, fcs_bytes) in [(None, 0), (Some(0), 0), (Some(16), 2), (Some(32), 4), (Some(4), 4)] {
            let mut block = InterfaceDescriptionBlock::new(DataLink::ETHERNET, 0);
            block.options.extend(option.map(InterfaceDescriptionOption::IfFcsLen));
            assert_eq!(CaptureLink::of_interface(&block).fcs_bytes, fcs_bytes, "{option:?}");
        }
        let link = CaptureLink { link: DataLink::ETHERNET, fcs_bytes: 4, snaplen: 0 };
        assert_eq!(link.with_flags(None), link);
        assert_eq!(link.with_flags(Some(1)), link, "inbound, of unknown length");
        assert_eq!(link.with_flags(Some(2 << PACKET_FCS_SHIFT | 1)).fcs_bytes, 2);
    }

    #[test]
    fn a_frame_ends_before_its_fcs_and_a_cut_packet_where_it_was_cut() {
        let link = CaptureLink { link: DataLink::ETHERNET, fcs_bytes: 4, snaplen: 0 };
        let captured = [7; 64];
        for (captured_bytes, original, frame_bytes) in
            [(64, 64, 60), (64, 0, 60), (62, 64, 60), (60, 64, 60), (40, 64, 40), (3, 3, 0)]
        {
            let frame = link.frame(&captured[..captured_bytes], original);
            assert_eq!(frame.len(), frame_bytes, "{captured_bytes} of {original}");
        }
    }
}

//! The link layer of the packets of a capture: the link type, and how many bytes of frame check sequence
//! (FCS) end each packet. A frame begins at the destination address and ends before its FCS.

use pcap_file::DataLink;

use super::reader::CaptureError;

const NS_PER_S: u128 = 1_000_000_000;

/// The word at the end of a pcap file's header (pcap-savefile(5)): the link type in the lower half, above it
/// a bit that states whether the FCS length is known, and that length in units of 16 bits. All other bits are
/// to be ignored.
const LINK_TYPE: u32 = 0xffff;
const FCS_LENGTH_PRESENT: u32 = 1 << 26;
const FCS_LENGTH_SHIFT: u32 = 28;
/// The FCS length in a packet's flags, in bytes; 0 where it is not known (draft-ietf-opsawg-pcapng, 4.3.1).
const PACKET_FCS_SHIFT: u32 = 5;
const PACKET_FCS_MASK: u32 = 0xf;
const BITS_PER_BYTE: u8 = 8;

/// The link layer of a pcap file's packets, or of those of one interface of a pcapng file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CaptureLink {
    link: DataLink,
    /// Zero also where it is not known: most captures have none.
    fcs_bytes: u8,
    /// 0: packets are not cut.
    snaplen: u32,
    /// `if_tsresol` of pcapng: a negative power of ten, or of two with the upper bit set.
    resolution: u8,
}

/// Microseconds (draft-ietf-opsawg-pcapng, 4.2).
const DEFAULT_RESOLUTION: u8 = 6;

impl CaptureLink {
    /// The link type of a pcap file with this one in its header.
    pub(super) fn of_pcap(link: DataLink) -> Self {
        let word = u32::from(link);
        let words = if word & FCS_LENGTH_PRESENT == 0 { 0 } else { word >> FCS_LENGTH_SHIFT };
        let fcs_bytes = 2 * words as u8;
        Self { link: DataLink::from(word & LINK_TYPE), fcs_bytes, snaplen: 0, resolution: DEFAULT_RESOLUTION }
    }

    /// The link type of a pcapng interface, with the values of its options `if_tsresol` and `if_fcslen`.
    pub(super) fn of_interface(
        link: DataLink,
        snaplen: u32,
        resolution: Option<u8>,
        fcs_length: Option<u8>,
    ) -> Self {
        // In bits (draft-ietf-opsawg-pcapng, 4.2); but earlier drafts had 4 as the example, which are bytes.
        let fcs_bytes = match fcs_length.unwrap_or(0) {
            bytes @ 0..BITS_PER_BYTE => bytes,
            bits => bits / BITS_PER_BYTE,
        };
        Self { link, fcs_bytes, snaplen, resolution: resolution.unwrap_or(DEFAULT_RESOLUTION) }
    }

    /// The time of a packet since 1970; `None` for a resolution that no clock has.
    pub(super) fn time_ns(self, ticks: u64) -> Option<u64> {
        let exponent = u32::from(self.resolution & 0x7f);
        let per_second = if self.resolution & 0x80 == 0 {
            10u128.checked_pow(exponent)
        } else {
            1u128.checked_shl(exponent)
        };
        per_second
            .map(|per_second| u64::try_from(u128::from(ticks) * NS_PER_S / per_second).unwrap_or(u64::MAX))
    }

    /// How long a packet was on the wire, without its frame check sequence.
    pub(super) fn wire_bytes(self, original: u32, frame: &[u8]) -> u64 {
        (frame.len() as u64).max(u64::from(original).saturating_sub(self.fcs_bytes.into()))
    }

    /// Refuses packets that are not Ethernet frames.
    pub(super) fn check(self) -> Result<(), CaptureError> {
        if self.link == DataLink::ETHERNET { Ok(()) } else { Err(CaptureError::LinkType(self.link)) }
    }

    /// The most bytes of a packet that were captured.
    pub(super) fn most_captured(self) -> usize {
        if self.snaplen == 0 { usize::MAX } else { self.snaplen as usize }
    }

    /// The frame in what was captured of a packet that was `original` bytes long. Of a packet that was cut,
    /// the FCS is gone first.
    pub(super) fn frame(self, captured: &[u8], original: u32) -> &[u8] {
        // Some writers leave the original length at 0.
        let whole = captured.len().max(original as usize);
        let frame_bytes = whole.saturating_sub(usize::from(self.fcs_bytes));
        captured.get(..frame_bytes).unwrap_or(captured)
    }

    /// A packet's own FCS length counts before that of its interface.
    pub(super) fn with_flags(self, flags: u32) -> Self {
        let fcs_bytes = (flags >> PACKET_FCS_SHIFT & PACKET_FCS_MASK) as u8;
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
            assert!(link.check().is_ok(), "{word:#010x}");
            assert_eq!(link.fcs_bytes, fcs_bytes, "{word:#010x}");
        }
        assert!(CaptureLink::of_pcap(DataLink::from(0x2400_0071)).check().is_err());
    }

    #[test]
    fn an_interface_gives_its_length_in_bits_and_a_packet_its_own_in_bytes() {
        for (option, fcs_bytes) in [(None, 0), (Some(0), 0), (Some(16), 2), (Some(32), 4), (Some(4), 4)] {
            let link = CaptureLink::of_interface(DataLink::ETHERNET, 0, None, option);
            assert_eq!(link.fcs_bytes, fcs_bytes, "{option:?}");
        }
        let link = CaptureLink::of_pcap(DataLink::from(1 | FCS_LENGTH_PRESENT | 2 << FCS_LENGTH_SHIFT));
        assert_eq!(link.with_flags(0), link);
        assert_eq!(link.with_flags(1), link, "inbound, of unknown length");
        assert_eq!(link.with_flags(2 << PACKET_FCS_SHIFT | 1).fcs_bytes, 2);
    }

    #[test]
    fn a_frame_ends_before_its_fcs_and_a_cut_packet_where_it_was_cut() {
        let link = CaptureLink::of_pcap(DataLink::from(1 | FCS_LENGTH_PRESENT | 2 << FCS_LENGTH_SHIFT));
        let captured = [7; 64];
        for (captured_bytes, original, frame_bytes) in
            [(64, 64, 60), (64, 0, 60), (62, 64, 60), (60, 64, 60), (40, 64, 40), (3, 3, 0)]
        {
            let frame = link.frame(&captured[..captured_bytes], original);
            assert_eq!(frame.len(), frame_bytes, "{captured_bytes} of {original}");
        }
    }
}

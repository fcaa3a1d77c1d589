//! Captures in memory: every packet of a file, or of all files of a folder, in the order of replay.
//!
//! Loaded once when the wire is opened, within named limits; a damaged file fails the whole load, so that a replay is
//! never silently shorter than its files. Nothing here reads a file while packets are replayed.

use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};

use pcap_file::pcap::{PcapReader, RawPcapPacket};
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::packet::{PacketBlock, PacketOption};
use pcap_file::pcapng::blocks::simple_packet::SimplePacketBlock;
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::{DataLink, Endianness, PcapError, TsResolution};

use super::open_capture;
use crate::wire::store::{FrameStore, LINE_BYTES, Place};
use crate::wire::{Burst, WireError};

/// The most bytes of packets that are kept, each on cache lines of its own.
const MAX_BYTES: usize = 1 << 30;
/// The most packets that are kept.
const MAX_PACKETS: usize = 1 << 24;
/// The longest packet that tcpdump and Wireshark write (MAXIMUM_SNAPLEN); more is a damaged length.
const MAX_CAPTURED_BYTES: usize = 262_144;
/// The first block of a pcapng file (draft-ietf-opsawg-pcapng, 4.1), the same in both byte orders.
const PCAPNG_MAGIC: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
/// What a folder's captures are called.
const EXTENSIONS: [&str; 3] = ["pcap", "pcapng", "cap"];
const NS_PER_S: u128 = 1_000_000_000;

#[derive(Clone, Copy, Debug)]
struct Entry {
    place: Place,
    /// Since the first packet of the recording; never less than the packet before.
    due_ns: u64,
}

/// Packets in the order of replay.
#[derive(Debug, Default)]
pub(super) struct Recording {
    store: FrameStore,
    entries: Vec<Entry>,
}

impl Recording {
    /// Loads a file, or the captures of a folder in the order of their names.
    ///
    /// # Errors
    /// The file that cannot be used, the packet in it, and why.
    pub(super) fn load(path: &Path) -> Result<Self, WireError> {
        let mut recording = Self::default();
        for file in captures(path)? {
            let mut loader = Loader { path: &file, packet: 0, recording: &mut recording, timeline: None };
            loader.load()?;
        }
        recording.store.align();
        Ok(recording)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Appends `count` packets from a place on to a burst: their captured bytes. What a snapshot length has cut off is gone; the
    /// rest is replayed as a frame.
    #[inline]
    pub(super) fn fill<'w>(&'w self, place: usize, count: usize, burst: &mut Burst<'w>) {
        let frames = self.store.frames();
        burst.fill(&self.entries[place..place + count], |entry| frames.at(entry.place));
    }

    /// How many packets from a place on are due at `position_ns`, at most `wanted`.
    pub(super) fn due(&self, place: usize, wanted: usize, position_ns: u64) -> usize {
        let entries = &self.entries[place..][..wanted.min(self.entries.len() - place)];
        // The times never decrease, and the last one is due most of the time.
        match entries.last() {
            Some(last) if last.due_ns > position_ns => {
                entries.partition_point(|entry| entry.due_ns <= position_ns)
            }
            _ => entries.len(),
        }
    }

    pub(super) fn due_ns(&self, place: usize) -> u64 {
        self.entries[place].due_ns
    }
}

/// The files to load: the path itself, or what is in it.
fn captures(path: &Path) -> Result<Vec<PathBuf>, WireError> {
    let failed = |source| WireError::ReadCapture { path: path.to_owned(), source };
    if !fs::metadata(path).map_err(failed)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(failed)? {
        let file = entry.map_err(failed)?.path();
        let extension = file.extension().map(|extension| extension.to_string_lossy().to_lowercase());
        if extension.is_some_and(|extension| EXTENSIONS.contains(&extension.as_str())) && file.is_file() {
            files.push(file);
        }
    }
    files.sort();
    if files.is_empty() {
        return Err(WireError::NoCapture { path: path.to_owned() });
    }
    Ok(files)
}

/// Appends one file to a recording.
struct Loader<'l> {
    path: &'l Path,
    /// The number of the packet in hand, counted from 1.
    packet: u64,
    recording: &'l mut Recording,
    /// The time of this file's first packet, and where on the recording that is.
    timeline: Option<(u64, u64)>,
}

impl Loader<'_> {
    fn load(&mut self) -> Result<(), WireError> {
        let mut file = open_capture(self.path).map_err(|source| self.unreadable(source))?;
        let mut magic = Vec::new();
        file.by_ref().take(4).read_to_end(&mut magic).map_err(|source| self.unreadable(source))?;
        file.rewind().map_err(|source| self.unreadable(source))?;
        if magic == PCAPNG_MAGIC { self.load_pcapng(file) } else { self.load_pcap(file) }
    }

    fn load_pcap(&mut self, file: File) -> Result<(), WireError> {
        let mut reader = PcapReader::new(file).map_err(|error| self.not_a_capture(&error))?;
        let header = reader.header();
        let link = CaptureLink::of_pcap(header.datalink);
        self.check_link(link)?;
        let resolution = header.ts_resolution;
        // Raw packets: real files carry snapshot lengths and fractions that the checked reader refuses.
        while let Some(packet) = reader.next_raw_packet() {
            self.packet += 1;
            let packet = packet.map_err(|error| self.damaged_by(error))?;
            let time_ns = raw_time_ns(&packet, resolution);
            self.append(link.frame(&packet.data, packet.orig_len), Some(time_ns))?;
        }
        Ok(())
    }

    fn load_pcapng(&mut self, file: File) -> Result<(), WireError> {
        let mut reader = PcapNgReader::new(file).map_err(|error| self.not_a_capture(&error))?;
        // The blocks borrow the reader, so what describes them is kept here.
        let mut interfaces: Vec<CaptureLink> = Vec::new();
        let mut endianness = reader.section().endianness;
        while let Some(block) = reader.next_block() {
            self.packet += 1;
            match block.map_err(|error| self.damaged_by(error))? {
                Block::EnhancedPacket(packet) => {
                    let interface = self.interface(&interfaces, packet.interface_id)?;
                    self.append(interface.enhanced(&packet), interface.enhanced_time_ns(&packet))?;
                }
                Block::SimplePacket(packet) => {
                    let interface = self.interface(&interfaces, 0)?;
                    self.append(interface.simple(&packet), None)?;
                }
                Block::Packet(packet) => {
                    let interface = self.interface(&interfaces, packet.interface_id.into())?;
                    // Two words, the upper one first; pcap-file reads them as one.
                    let little = endianness == Endianness::Little;
                    let ticks = if little { packet.timestamp.rotate_left(32) } else { packet.timestamp };
                    self.append(interface.obsolete(&packet), interface.time_ns(ticks))?;
                }
                other => {
                    self.packet -= 1;
                    match other {
                        Block::InterfaceDescription(block) => {
                            interfaces.push(CaptureLink::of_interface(&block));
                        }
                        Block::SectionHeader(section) => {
                            interfaces.clear();
                            endianness = section.endianness;
                        }
                        _ => {}
                    }
                }
            }
        }
        Ok(())
    }

    /// The interface of a packet, if it is known and Ethernet.
    fn interface(&self, interfaces: &[CaptureLink], id: u32) -> Result<CaptureLink, WireError> {
        let interface = interfaces.get(id as usize).copied();
        let interface = interface
            .ok_or_else(|| self.damaged(format!("it belongs to interface {id}, which is not described")))?;
        self.check_link(interface)?;
        Ok(interface)
    }

    fn append(&mut self, bytes: &[u8], time_ns: Option<u64>) -> Result<(), WireError> {
        if bytes.len() > MAX_CAPTURED_BYTES {
            return Err(
                self.damaged(format!("its length of {} bytes is beyond {MAX_CAPTURED_BYTES}", bytes.len()))
            );
        }
        if self.recording.entries.len() == MAX_PACKETS {
            return Err(self.limit(&format!("more than {MAX_PACKETS} packets")));
        }
        if self.recording.store.bytes_with(bytes.len()) > MAX_BYTES {
            // Small packets take much more than they have.
            let limit = MAX_BYTES >> 20;
            return Err(self.limit(&format!(
                "packets that take more than {limit} MiB of memory, where each takes a multiple of {LINE_BYTES} bytes"
            )));
        }
        let before = self.recording.entries.last().map_or(0, |entry| entry.due_ns);
        let due_ns = time_ns.map_or(before, |time_ns| {
            // Every file starts where the one before it ended: captures of different days follow on each other.
            let (start_ns, start_due_ns) = *self.timeline.get_or_insert((time_ns, before));
            start_due_ns.saturating_add(time_ns.saturating_sub(start_ns)).max(before)
        });
        let place = self.recording.store.push(bytes);
        self.recording.entries.push(Entry { place, due_ns });
        Ok(())
    }

    fn check_link(&self, link: CaptureLink) -> Result<(), WireError> {
        if link.is_ethernet() {
            return Ok(());
        }
        let link = link.link_type();
        Err(WireError::LinkType {
            path: self.path.to_owned(),
            link_type: format!("{} ({link:?})", u32::from(link)),
        })
    }

    fn unreadable(&self, source: io::Error) -> WireError {
        WireError::ReadCapture { path: self.path.to_owned(), source }
    }

    fn not_a_capture(&self, error: &PcapError) -> WireError {
        WireError::NotACapture { path: self.path.to_owned(), problem: in_words(error) }
    }

    fn damaged(&self, problem: String) -> WireError {
        WireError::DamagedCapture { path: self.path.to_owned(), packet: self.packet, problem }
    }

    fn damaged_by(&self, error: PcapError) -> WireError {
        match error {
            PcapError::IoError(source) if source.kind() != io::ErrorKind::UnexpectedEof => {
                self.unreadable(source)
            }
            error => self.damaged(in_words(&error)),
        }
    }

    fn limit(&self, what: &str) -> WireError {
        let problem =
            format!("the captures up to here hold {what}: replay fewer files, or split with `editcap -c`");
        WireError::CaptureLimit { path: self.path.to_owned(), problem }
    }
}

fn in_words(error: &PcapError) -> String {
    match error {
        PcapError::IoError(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            "the file ends in it".to_owned()
        }
        error => error.to_string(),
    }
}

/// The time of a packet of a pcap file, since 1970.
#[must_use]
pub fn raw_time_ns(packet: &RawPcapPacket<'_>, resolution: TsResolution) -> u64 {
    let fraction_ns = if resolution == TsResolution::NanoSecond { 1 } else { 1000 };
    (u128::from(packet.ts_sec) * NS_PER_S + u128::from(packet.ts_frac) * fraction_ns) as u64
}

// The description of the link layer of its packets: the link type, and how many bytes of frame check sequence
// (FCS) end each packet. A frame begins at the destination address and ends before its FCS.

/// The word at the end of a pcap file's header (pcap-savefile(5)): the link type in the lower half, above it a bit that
/// states whether the FCS length is known, and that length in units of 16 bits. All other bits are to be ignored.
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
    /// `if_tsresol` of pcapng: a negative power of ten, or of two with the upper bit set.
    resolution: u8,
}

/// Microseconds (draft-ietf-opsawg-pcapng, 4.2).
const DEFAULT_RESOLUTION: u8 = 6;

impl CaptureLink {
    /// That of a pcap file with this link type in its header.
    #[must_use]
    pub fn of_pcap(link: DataLink) -> Self {
        let word = u32::from(link);
        let words = if word & FCS_LENGTH_PRESENT == 0 { 0 } else { word >> FCS_LENGTH_SHIFT };
        let fcs_bytes = 2 * words as u8;
        Self { link: DataLink::from(word & LINK_TYPE), fcs_bytes, snaplen: 0, resolution: DEFAULT_RESOLUTION }
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
        let resolution = block.options.iter().find_map(|option| match option {
            InterfaceDescriptionOption::IfTsResol(resolution) => Some(*resolution),
            _ => None,
        });
        let resolution = resolution.unwrap_or(DEFAULT_RESOLUTION);
        Self { link: block.linktype, fcs_bytes, snaplen: block.snaplen, resolution }
    }

    /// The time of an enhanced packet block since 1970; `None` for a resolution that no clock has.
    #[must_use]
    pub fn enhanced_time_ns(self, packet: &EnhancedPacketBlock<'_>) -> Option<u64> {
        // pcap-file takes the ticks for nanoseconds, regardless of the interface.
        self.time_ns(packet.timestamp.as_nanos() as u64)
    }

    fn time_ns(self, ticks: u64) -> Option<u64> {
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
    #[must_use]
    pub fn wire_bytes(self, original: u32, frame: &[u8]) -> u64 {
        (frame.len() as u64).max(u64::from(original).saturating_sub(self.fcs_bytes.into()))
    }

    /// The link type, without the bits above it.
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

    /// The frame of a simple packet block, which does not state the captured length: its data may end in padding.
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
        let link = CaptureLink::of_pcap(DataLink::from(1 | FCS_LENGTH_PRESENT | 2 << FCS_LENGTH_SHIFT));
        assert_eq!(link.with_flags(None), link);
        assert_eq!(link.with_flags(Some(1)), link, "inbound, of unknown length");
        assert_eq!(link.with_flags(Some(2 << PACKET_FCS_SHIFT | 1)).fcs_bytes, 2);
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

//! The packets of a capture, pcap or pcapng, one after the other.
//!
//! The blocks of pcapng (draft-ietf-opsawg-pcapng) are read here: only what a replay needs is looked at, so
//! that a file is not refused for the rest. Options may end with their block instead of an `opt_endofopt`,
//! and their texts may have any encoding; pcap-file 2.0 refuses such files, which tcpdump and tshark read. A
//! damaged block is an error and not skipped.

use std::io::{self, BufRead, BufReader, Cursor, Read};

use pcap_file::pcap::PcapReader;
use pcap_file::{DataLink, PcapError, TsResolution};
use thiserror::Error;

use super::link::CaptureLink;

/// The first block of a pcapng file (4.1), the same in both byte orders.
const SECTION_HEADER: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
/// The word after it that tells the byte order.
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
/// The longest block that libpcap reads (sf-pcapng.c, INITIAL_MAX_BLOCKSIZE); more is a damaged length.
/// Blocks of types that are not read here are passed over whatever their length is.
const MAX_BLOCK_BYTES: u32 = 16 << 20;
/// The types of blocks that are read besides: interfaces (4.2), and obsolete, simple and enhanced packets
/// (11.1, 4.4, 4.3).
const BLOCKS_READ: [u32; 4] = [1, 2, 3, 6];
/// Type and length before the body of a block, and the length after it.
const BLOCK_HEADER_BYTES: u32 = 8;
const BLOCK_TRAILER_BYTES: u32 = 4;
const NS_PER_S: u128 = 1_000_000_000;

/// A packet of a capture.
#[derive(Clone, Copy, Debug)]
pub struct CapturedPacket<'c> {
    /// The bytes that were captured, from the Ethernet header on and without the frame check sequence.
    pub frame: &'c [u8],
    /// The length on the wire, without the frame check sequence.
    pub wire_bytes: u64,
    /// The time since 1970; `None` where the file has none.
    pub time_ns: Option<u64>,
}

/// The reason why a capture, or its next packet, cannot be read.
#[derive(Debug, Error)]
pub enum CaptureError {
    /// The system's answer to a read.
    #[error("cannot read the capture")]
    Io(#[source] io::Error),
    /// The file has not the beginning of a capture.
    #[error("not a pcap or pcapng file: {0}")]
    NotACapture(String),
    /// The file ends within a packet or another block.
    #[error("the file ends in the middle")]
    Truncated,
    /// A packet or another block contradicts itself.
    #[error("{0}")]
    Damaged(String),
    /// The packets are not Ethernet frames.
    #[error("link type {} is not Ethernet (1)", u32::from(*.0))]
    LinkType(DataLink),
}

impl CaptureError {
    /// An error while the blocks of a capture are read.
    fn of_read(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Truncated,
            _ => Self::Io(error),
        }
    }

    fn of_pcap(error: PcapError) -> Self {
        match error {
            PcapError::IoError(error) => Self::of_read(error),
            error => Self::Damaged(error.to_string()),
        }
    }

    /// Returns the error for the start of a file, where it means that the file is no capture.
    fn at_start(self) -> Self {
        match self {
            Self::Truncated => Self::NotACapture("it ends in its header".to_owned()),
            Self::Damaged(problem) => Self::NotACapture(problem),
            error => error,
        }
    }
}

/// A reader of a pcap or pcapng file.
pub struct CaptureReader<R: Read>(Format<R>);

enum Format<R: Read> {
    Pcap { reader: PcapReader<Restarted<R>>, link: CaptureLink, resolution: TsResolution },
    Pcapng(BlockReader<Restarted<R>>),
}

/// A file from its start, of which the first bytes were read before.
type Restarted<R> = io::Chain<Cursor<Vec<u8>>, R>;

impl<R: Read> CaptureReader<R> {
    /// Reads the beginning of a capture.
    ///
    /// # Errors
    /// It is none, or a pcap file of another link type than Ethernet.
    pub fn new(mut file: R) -> Result<Self, CaptureError> {
        let mut first = Vec::new();
        file.by_ref().take(SECTION_HEADER.len() as u64).read_to_end(&mut first).map_err(CaptureError::Io)?;
        let is_pcapng = first == SECTION_HEADER;
        let file = Cursor::new(first).chain(file);
        if is_pcapng {
            let mut blocks = BlockReader::new(file);
            blocks.next_block().map_err(CaptureError::at_start)?;
            return Ok(Self(Format::Pcapng(blocks)));
        }
        let reader = PcapReader::new(file).map_err(|error| CaptureError::of_pcap(error).at_start())?;
        let header = reader.header();
        let link = CaptureLink::of_pcap(header.datalink);
        link.check()?;
        Ok(Self(Format::Pcap { reader, link, resolution: header.ts_resolution }))
    }

    /// Calls `take` with the next packet; `None` at the end of the file.
    ///
    /// # Errors
    /// The next packet cannot be read, or is no Ethernet frame. Nothing can be read after it.
    pub fn next_packet<T>(
        &mut self,
        take: impl FnOnce(CapturedPacket<'_>) -> T,
    ) -> Result<Option<T>, CaptureError> {
        match &mut self.0 {
            Format::Pcap { reader, link, resolution } => {
                // Raw packets: real files carry snapshot lengths and fractions that the checked reader
                // refuses.
                let Some(packet) = reader.next_raw_packet() else { return Ok(None) };
                let packet = packet.map_err(CaptureError::of_pcap)?;
                let fraction_ns = if *resolution == TsResolution::NanoSecond { 1 } else { 1000 };
                let time_ns = u128::from(packet.ts_sec) * NS_PER_S + u128::from(packet.ts_frac) * fraction_ns;
                let frame = link.frame(&packet.data, packet.orig_len);
                let wire_bytes = link.wire_bytes(packet.orig_len, frame);
                Ok(Some(take(CapturedPacket { frame, wire_bytes, time_ns: Some(time_ns as u64) })))
            }
            Format::Pcapng(blocks) => blocks.next_packet(take),
        }
    }
}

/// A reader of the blocks of a pcapng file.
struct BlockReader<R: Read> {
    file: BufReader<R>,
    /// The byte order of the section.
    is_big: bool,
    /// The interfaces of the section.
    interfaces: Vec<CaptureLink>,
    /// The body of the block in hand.
    body: Vec<u8>,
}

impl<R: Read> BlockReader<R> {
    fn new(file: R) -> Self {
        Self { file: BufReader::new(file), is_big: false, interfaces: Vec::new(), body: Vec::new() }
    }

    fn next_packet<T>(
        &mut self,
        take: impl FnOnce(CapturedPacket<'_>) -> T,
    ) -> Result<Option<T>, CaptureError> {
        loop {
            let Some(kind) = self.next_block()? else { return Ok(None) };
            let body = Fields { bytes: &self.body, is_big: self.is_big };
            let packet = match kind {
                // An interface description.
                1 => {
                    self.interfaces.push(body.interface()?);
                    continue;
                }
                2 => body.obsolete_packet(&self.interfaces)?,
                3 => body.simple_packet(&self.interfaces)?,
                6 => body.enhanced_packet(&self.interfaces)?,
                _ => continue,
            };
            return Ok(Some(take(packet)));
        }
    }

    /// Reads a block and returns its type; `None` at the end of the file.
    fn next_block(&mut self) -> Result<Option<u32>, CaptureError> {
        if self.file.fill_buf().map_err(CaptureError::of_read)?.is_empty() {
            return Ok(None);
        }
        let raw_kind = self.raw_word()?;
        let mut length = self.raw_word()?;
        self.body.clear();
        if raw_kind == SECTION_HEADER {
            let order = self.raw_word()?;
            self.is_big = match BYTE_ORDER {
                order_word if order == order_word.to_be_bytes() => true,
                order_word if order == order_word.to_le_bytes() => false,
                _ => return Err(damaged("its section has no byte order")),
            };
            self.interfaces.clear();
            self.body.extend(order);
        }
        if !self.is_big {
            length.reverse();
        }
        let length = u32::from_be_bytes(length);
        let kind = self.word(raw_kind);
        let is_read = raw_kind == SECTION_HEADER || BLOCKS_READ.contains(&kind);
        let least = BLOCK_HEADER_BYTES + self.body.len() as u32 + BLOCK_TRAILER_BYTES;
        let most = if is_read { MAX_BLOCK_BYTES } else { u32::MAX };
        if !(least..=most).contains(&length) || !length.is_multiple_of(4) {
            return Err(damaged(format!("its block has a length of {length} bytes")));
        }
        let rest = u64::from(length - least);
        let mut file = self.file.by_ref().take(rest);
        // As much memory as the file has bytes, whatever the length says.
        let read = match is_read {
            true => file.read_to_end(&mut self.body).map(|read| read as u64),
            false => io::copy(&mut file, &mut io::sink()),
        };
        if read.map_err(CaptureError::of_read)? < rest {
            return Err(CaptureError::Truncated);
        }
        let trailer = self.raw_word()?;
        if self.word(trailer) != length {
            return Err(damaged("the two lengths of its block differ"));
        }
        Ok(Some(kind))
    }

    fn raw_word(&mut self) -> Result<[u8; 4], CaptureError> {
        let mut word = [0; 4];
        self.file.read_exact(&mut word).map_err(CaptureError::of_read)?;
        Ok(word)
    }

    fn word(&self, bytes: [u8; 4]) -> u32 {
        if self.is_big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
    }
}

fn damaged(problem: impl Into<String>) -> CaptureError {
    CaptureError::Damaged(problem.into())
}

/// The rest of a block's body.
#[derive(Clone, Copy)]
struct Fields<'b> {
    bytes: &'b [u8],
    is_big: bool,
}

/// The options that are looked at: two of an interface (4.2), and the flags of a packet (4.3).
const IF_TSRESOL: u16 = 9;
const IF_FCSLEN: u16 = 13;
const PACKET_FLAGS: u16 = 2;

impl<'b> Fields<'b> {
    /// Takes bytes from the front.
    fn take(&mut self, count: usize) -> Result<&'b [u8], CaptureError> {
        let (taken, rest) =
            self.bytes.split_at_checked(count).ok_or_else(|| damaged("its block is too short"))?;
        self.bytes = rest;
        Ok(taken)
    }

    fn u16(&mut self) -> Result<u16, CaptureError> {
        let bytes = <[u8; 2]>::try_from(self.take(2)?).unwrap_or_default();
        Ok(if self.is_big { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
    }

    fn u32(&mut self) -> Result<u32, CaptureError> {
        let bytes = <[u8; 4]>::try_from(self.take(4)?).unwrap_or_default();
        Ok(if self.is_big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    }

    /// The value of an option, if it is among those that the rest consists of.
    fn option(mut self, wanted: u16) -> Result<Option<Self>, CaptureError> {
        while !self.bytes.is_empty() {
            let (code, length) = (self.u16()?, usize::from(self.u16()?));
            if code == 0 {
                break;
            }
            let value = self.take(length.next_multiple_of(4))?;
            if code == wanted {
                return Ok(Some(Self { bytes: &value[..length], is_big: self.is_big }));
            }
        }
        Ok(None)
    }

    fn interface(mut self) -> Result<CaptureLink, CaptureError> {
        let link = DataLink::from(u32::from(self.u16()?));
        self.take(2)?;
        let snaplen = self.u32()?;
        let byte = |value: Option<Self>| value.and_then(|value| value.bytes.first().copied());
        Ok(CaptureLink::of_interface(
            link,
            snaplen,
            byte(self.option(IF_TSRESOL)?),
            byte(self.option(IF_FCSLEN)?),
        ))
    }

    fn enhanced_packet(mut self, interfaces: &[CaptureLink]) -> Result<CapturedPacket<'b>, CaptureError> {
        let link = interface(interfaces, self.u32()?)?;
        self.timed_packet(link)
    }

    /// A packet block of the obsolete kind (11.1), which is an enhanced one with a shorter beginning.
    fn obsolete_packet(mut self, interfaces: &[CaptureLink]) -> Result<CapturedPacket<'b>, CaptureError> {
        let link = interface(interfaces, self.u16()?.into())?;
        self.take(2)?;
        self.timed_packet(link)
    }

    fn timed_packet(mut self, link: CaptureLink) -> Result<CapturedPacket<'b>, CaptureError> {
        let ticks = u64::from(self.u32()?) << 32 | u64::from(self.u32()?);
        let (captured, original) = (self.u32()? as usize, self.u32()?);
        let data = self.take(captured)?;
        // The padding may be missing in the last packet of a block without options.
        let padding = captured.next_multiple_of(4) - captured;
        self.take(padding.min(self.bytes.len()))?;
        let flags = match self.option(PACKET_FLAGS)? {
            Some(mut flags) => flags.u32()?,
            None => 0,
        };
        let frame = link.with_flags(flags).frame(data, original);
        let wire_bytes = link.with_flags(flags).wire_bytes(original, frame);
        Ok(CapturedPacket { frame, wire_bytes, time_ns: link.time_ns(ticks) })
    }

    /// A simple packet block, which does not state the captured length: its data may end in padding.
    fn simple_packet(mut self, interfaces: &[CaptureLink]) -> Result<CapturedPacket<'b>, CaptureError> {
        let link = interface(interfaces, 0)?;
        let original = self.u32()?;
        let captured = self.bytes.len().min(original as usize).min(link.most_captured());
        let frame = link.frame(&self.bytes[..captured], original);
        Ok(CapturedPacket { frame, wire_bytes: link.wire_bytes(original, frame), time_ns: None })
    }
}

/// The interface of a packet, if it is described and Ethernet.
fn interface(interfaces: &[CaptureLink], id: u32) -> Result<CaptureLink, CaptureError> {
    let link = interfaces.get(id as usize).copied();
    let link =
        link.ok_or_else(|| damaged(format!("it belongs to interface {id}, which is not described")))?;
    link.check()?;
    Ok(link)
}

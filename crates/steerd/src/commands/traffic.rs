//! Reads a pcap or pcapng file packet by packet, for `explain`, `check` and `size`. For a broken or truncated file the error gives the last packet that was
//! read; link types other than Ethernet are refused. Frame check sequences are removed.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Seek};
use std::path::Path;
use std::rc::Rc;

use packet::{DeepKey, Layers};
use pcap_file::PcapError;
use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::{Block, PcapNgReader};
use softnic::wire::{CaptureLink, raw_time_ns};

use crate::error::Error;
use crate::terminal::output::Progress;

/// The first word of every pcapng file, the same in both byte orders.
const SECTION_HEADER: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// Shorter frames have no Ethernet header; every port drops them.
pub(super) const ETHERNET_HEADER_BYTES: usize = 14;
/// Packets between two looks at the clock.
const PROGRESS_PACKETS: u64 = 1024;

/// A packet of a capture.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Captured<'c> {
    /// What was captured of it, from its Ethernet header on.
    pub(crate) frame: &'c [u8],
    /// Its length on the wire.
    pub(crate) wire_bytes: u64,
    /// `None`: the file has no times.
    pub(crate) time_ns: Option<u64>,
}

/// The packets of a capture that a program receives.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    /// Frames without an Ethernet header, which every port drops; not in the others.
    pub(crate) runts: u64,
    /// Those with an IPv4 or IPv6 header.
    pub(crate) ip_packets: u64,
}

/// Calls `each` with every packet that has an Ethernet header.
///
/// # Errors
/// The capture cannot be read to its end, or has no IP packets.
pub(crate) fn for_each_key(
    path: &Path,
    each: &mut dyn FnMut(&DeepKey, &Captured<'_>),
) -> Result<Totals, Error> {
    let mut totals = Totals::default();
    let mut count = |packet: &Captured<'_>| {
        if packet.frame.len() < ETHERNET_HEADER_BYTES {
            totals.runts += 1;
            return;
        }
        let key = DeepKey::of(packet.frame);
        totals.packets += 1;
        totals.bytes += packet.wire_bytes;
        totals.ip_packets += u64::from(key.outer.layers.intersects(Layers::IPV4 | Layers::IPV6));
        each(&key, packet);
    };
    let read = open(path).map(|opened| packets(opened, &mut count));
    let refused = match read {
        Err(message) => Some(message),
        Ok(Err(message)) => {
            Some(format!("{message} (hint: `editcap` or `tshark -r` show what can be read of it)"))
        }
        Ok(Ok(0)) => Some("the capture has no packets".to_owned()),
        Ok(Ok(_)) if totals.ip_packets == 0 => Some("the capture has no IP packets".to_owned()),
        Ok(Ok(_)) => None,
    };
    refused.map_or(Ok(totals), |message| Err(Error::Capture { path: path.to_owned(), message }))
}

/// Counts the bytes that are read.
struct Counted {
    file: File,
    done: Rc<Cell<u64>>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.done.set(self.done.get() + read as u64);
        Ok(read)
    }
}

/// Calls `each` with every packet; returns their number. Shows the progress of long captures.
pub(super) fn for_each_packet(path: &Path, each: &mut dyn FnMut(&Captured<'_>)) -> Result<u64, String> {
    packets(open(path)?, each)
}

/// A capture at its start, and its first word.
fn open(path: &Path) -> Result<(File, [u8; 4]), String> {
    let mut file =
        softnic::wire::open_capture(path).map_err(|error| format!("cannot read the capture: {error}"))?;
    let mut magic = [0; 4];
    file.read_exact(&mut magic).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => "not a capture: shorter than a pcap header".to_owned(),
        _ => format!("cannot read the capture: {error}"),
    })?;
    file.rewind().map_err(|error| format!("cannot read the capture: {error}"))?;
    Ok((file, magic))
}

fn packets((file, magic): (File, [u8; 4]), each: &mut dyn FnMut(&Captured<'_>)) -> Result<u64, String> {
    let total = file.metadata().map_or(0, |found| found.len());
    let done = Rc::new(Cell::new(0));
    let file = BufReader::new(Counted { file, done: Rc::clone(&done) });
    let (mut progress, mut packets) = (Progress::new(), 0u64);
    let mut each = |packet: &Captured<'_>| {
        packets += 1;
        if packets.is_multiple_of(PROGRESS_PACKETS) {
            let (done, total) = (done.get() as usize, total as usize);
            progress.show(analysis::Progress { stage: "bytes", done, total });
        }
        each(packet);
    };
    if magic == SECTION_HEADER { pcapng(file, &mut each) } else { pcap(file, &mut each) }
}

fn pcap(file: BufReader<Counted>, each: &mut dyn FnMut(&Captured<'_>)) -> Result<u64, String> {
    let mut reader = PcapReader::new(file).map_err(|error| format!("not a pcap file: {}", words(&error)))?;
    let link = CaptureLink::of_pcap(reader.header().datalink);
    ethernet(link)?;
    let resolution = reader.header().ts_resolution;
    let mut frames = 0;
    // Raw packets: real files have fractions of a second that the checked reader refuses.
    while let Some(packet) = reader.next_raw_packet() {
        let packet = packet.map_err(|error| broken(frames, &error))?;
        let frame = link.frame(&packet.data, packet.orig_len);
        let wire_bytes = link.wire_bytes(packet.orig_len, frame);
        each(&Captured { frame, wire_bytes, time_ns: Some(raw_time_ns(&packet, resolution)) });
        frames += 1;
    }
    Ok(frames)
}

fn pcapng(file: BufReader<Counted>, each: &mut dyn FnMut(&Captured<'_>)) -> Result<u64, String> {
    let mut reader =
        PcapNgReader::new(file).map_err(|error| format!("not a pcapng file: {}", words(&error)))?;
    let mut frames = 0;
    let mut interfaces: Vec<CaptureLink> = Vec::new();
    while let Some(block) = reader.next_block() {
        let block = block.map_err(|error| broken(frames, &error))?;
        let link = |id: u32| {
            let link = interfaces.get(id as usize).copied();
            link.ok_or_else(|| format!("after packet {frames}: interface {id} is not described"))
        };
        let captured = |link: CaptureLink, frame, original, time_ns| Captured {
            frame,
            wire_bytes: link.wire_bytes(original, frame),
            time_ns,
        };
        match &block {
            Block::EnhancedPacket(packet) => {
                let link = link(packet.interface_id)?;
                let time_ns = link.enhanced_time_ns(packet);
                each(&captured(link, link.enhanced(packet), packet.original_len, time_ns));
            }
            Block::SimplePacket(packet) => {
                let link = link(0)?;
                each(&captured(link, link.simple(packet), packet.original_len, None));
            }
            // The times of blocks of the obsolete kind are not read.
            Block::Packet(packet) => {
                let link = link(packet.interface_id.into())?;
                each(&captured(link, link.obsolete(packet), packet.original_len, None));
            }
            other => {
                match other {
                    Block::InterfaceDescription(interface) => {
                        let link = CaptureLink::of_interface(interface);
                        ethernet(link)?;
                        interfaces.push(link);
                    }
                    Block::SectionHeader(_) => interfaces.clear(),
                    _ => {}
                }
                continue;
            }
        }
        frames += 1;
    }
    Ok(frames)
}

fn ethernet(link: CaptureLink) -> Result<(), String> {
    if link.is_ethernet() {
        return Ok(());
    }
    Err(format!("link type {} is not Ethernet (1)", u32::from(link.link_type())))
}

/// The error after this many frames.
fn broken(frames: u64, error: &PcapError) -> String {
    format!("after packet {frames}: {}", words(error))
}

/// The text of an error; the reader leaves I/O errors to their source.
fn words(error: &PcapError) -> String {
    match error {
        PcapError::IoError(source) if source.kind() == ErrorKind::UnexpectedEof => {
            "the file ends in the middle".to_owned()
        }
        PcapError::IoError(source) => source.to_string(),
        other => other.to_string(),
    }
}

//! Reads a pcap or pcapng file frame by frame. For a broken or truncated file the error gives the last packet that was
//! read; link types other than Ethernet are refused. Frame check sequences are removed.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read, Seek};
use std::path::Path;

use pcap_file::PcapError;
use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::{Block, PcapNgReader};
use softnic::wire::CaptureLink;

/// The first word of every pcapng file, the same in both byte orders.
const SECTION_HEADER: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// Calls `each` with every frame; returns the number of frames.
pub(super) fn for_each_frame(path: &Path, each: &mut dyn FnMut(&[u8])) -> Result<u64, String> {
    let mut file =
        softnic::wire::open_capture(path).map_err(|error| format!("cannot read the capture: {error}"))?;
    let mut magic = [0; 4];
    file.read_exact(&mut magic).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => "not a capture: shorter than a pcap header".to_owned(),
        _ => format!("cannot read the capture: {error}"),
    })?;
    file.rewind().map_err(|error| format!("cannot read the capture: {error}"))?;
    let file = BufReader::new(file);
    if magic == SECTION_HEADER { pcapng(file, each) } else { pcap(file, each) }
}

fn pcap(file: BufReader<File>, each: &mut dyn FnMut(&[u8])) -> Result<u64, String> {
    let mut reader = PcapReader::new(file).map_err(|error| format!("not a pcap file: {}", words(&error)))?;
    let link = CaptureLink::of_pcap(reader.header().datalink);
    ethernet(link)?;
    let mut frames = 0;
    // Raw packets: invalid timestamps do not matter here.
    while let Some(packet) = reader.next_raw_packet() {
        let packet = packet.map_err(|error| broken(frames, &error))?;
        each(link.frame(&packet.data, packet.orig_len));
        frames += 1;
    }
    Ok(frames)
}

fn pcapng(file: BufReader<File>, each: &mut dyn FnMut(&[u8])) -> Result<u64, String> {
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
        match &block {
            Block::EnhancedPacket(packet) => each(link(packet.interface_id)?.enhanced(packet)),
            Block::SimplePacket(packet) => each(link(0)?.simple(packet)),
            Block::Packet(packet) => each(link(packet.interface_id.into())?.obsolete(packet)),
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

//! Reads a pcap or pcapng file frame by frame. Only `explain` uses it; a broken or cut file is an error that
//! says after which packet it ends, and other link types than Ethernet are refused.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read, Seek};
use std::path::Path;

use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::{DataLink, PcapError};

/// The first word of every pcapng file, the same in both byte orders.
const SECTION_HEADER: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// Calls `each` with every frame in turn; returns how many there were.
pub(super) fn for_each_frame(path: &Path, each: &mut dyn FnMut(&[u8])) -> Result<u64, String> {
    let mut file = File::open(path).map_err(|error| format!("cannot read the capture: {error}"))?;
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
    ethernet(reader.header().datalink)?;
    let mut frames = 0;
    // Raw: timestamps out of range are none of our business.
    while let Some(packet) = reader.next_raw_packet() {
        let packet = packet.map_err(|error| broken(frames, &error))?;
        each(&packet.data);
        frames += 1;
    }
    Ok(frames)
}

fn pcapng(file: BufReader<File>, each: &mut dyn FnMut(&[u8])) -> Result<u64, String> {
    let mut reader =
        PcapNgReader::new(file).map_err(|error| format!("not a pcapng file: {}", words(&error)))?;
    let mut frames = 0;
    while let Some(block) = reader.next_block() {
        let block = block.map_err(|error| broken(frames, &error))?;
        match block {
            Block::InterfaceDescription(interface) => ethernet(interface.linktype)?,
            Block::EnhancedPacket(packet) => {
                each(&packet.data);
                frames += 1;
            }
            Block::SimplePacket(packet) => {
                each(&packet.data);
                frames += 1;
            }
            _ => {}
        }
    }
    Ok(frames)
}

fn ethernet(link: DataLink) -> Result<(), String> {
    if link == DataLink::ETHERNET {
        return Ok(());
    }
    Err(format!("link type {link:?} is not Ethernet"))
}

/// Where it ends; the frames before that were read.
fn broken(frames: u64, error: &PcapError) -> String {
    format!("after packet {frames}: {}", words(error))
}

/// What the reader of the format leaves to its source.
fn words(error: &PcapError) -> String {
    match error {
        PcapError::IoError(source) if source.kind() == ErrorKind::UnexpectedEof => {
            "the file ends in the middle".to_owned()
        }
        PcapError::IoError(source) => source.to_string(),
        other => other.to_string(),
    }
}

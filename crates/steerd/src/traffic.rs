//! Reads a pcap or pcapng file packet by packet, for `explain`, `check` and `size`. For a broken or truncated
//! file the error gives the last packet that was read; link types other than Ethernet are refused. Frame
//! check sequences are removed.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Instant;

use packet::{DeepKey, Layers};
use reports::ETHERNET_HEADER_BYTES;
use wire::{CaptureError, CaptureReader, CapturedPacket};

use crate::terminal::output::Progress;

/// Packets between two looks at the clock.
const PROGRESS_PACKETS: u64 = 1024;

/// A capture cannot be read to its end, or has no IP packets.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}: {message}", path.display())]
pub(crate) struct UnreadableCapture {
    pub(crate) path: PathBuf,
    pub(crate) message: String,
}

/// The packets of a capture that a program receives.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    /// Frames without an Ethernet header, which every port drops; not in the others.
    pub(crate) runts: u64,
    /// The packets with an IPv4 or IPv6 header.
    pub(crate) ip_packets: u64,
}

/// Calls `each` with every packet that has an Ethernet header.
///
/// # Errors
/// The capture cannot be read to its end, or has no IP packets.
pub(crate) fn for_each_key(
    path: &Path,
    each: &mut dyn FnMut(&DeepKey, &CapturedPacket<'_>),
) -> Result<Totals, UnreadableCapture> {
    for_each_key_until(path, None, each)
}

/// Calls `each` as [`for_each_key`] does.
///
/// # Errors
/// The same, or the capture is not read to its end at the time `end`.
pub(crate) fn for_each_key_until(
    path: &Path,
    end: Option<Instant>,
    each: &mut dyn FnMut(&DeepKey, &CapturedPacket<'_>),
) -> Result<Totals, UnreadableCapture> {
    let mut totals = Totals::default();
    let mut count = |packet: &CapturedPacket<'_>| {
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
    let read = open(path).map(|opened| packets(opened, end, &mut count));
    let refused = match read {
        Err(message) => Some(message),
        Ok(Err(message)) => {
            Some(format!("{message} (hint: `editcap` or `tshark -r` show what can be read of it)"))
        }
        Ok(Ok(0)) => Some("the capture has no packets".to_owned()),
        Ok(Ok(_)) if totals.ip_packets == 0 => Some("the capture has no IP packets".to_owned()),
        Ok(Ok(_)) => None,
    };
    refused.map_or(Ok(totals), |message| Err(UnreadableCapture { path: path.to_owned(), message }))
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
pub(crate) fn for_each_packet(path: &Path, each: &mut dyn FnMut(&CapturedPacket<'_>)) -> Result<u64, String> {
    packets(open(path)?, None, each)
}

fn open(path: &Path) -> Result<File, String> {
    wire::open_capture(path).map_err(|error| problem(0, &CaptureError::Io(error)))
}

fn packets(
    file: File,
    end: Option<Instant>,
    each: &mut dyn FnMut(&CapturedPacket<'_>),
) -> Result<u64, String> {
    let total = file.metadata().map_or(0, |found| found.len());
    let done = Rc::new(Cell::new(0));
    let counted = Counted { file, done: Rc::clone(&done) };
    let (mut progress, mut packets) = (Progress::new(), 0u64);
    let mut reader = CaptureReader::new(counted).map_err(|error| problem(packets, &error))?;
    while reader.next_packet(|packet| each(&packet)).map_err(|error| problem(packets, &error))?.is_some() {
        packets += 1;
        if packets.is_multiple_of(PROGRESS_PACKETS) {
            let (done, total) = (done.get() as usize, total as usize);
            progress.show(analysis::Progress { stage: "bytes", done, total });
            if end.is_some_and(|end| Instant::now() >= end) {
                return Err(format!("after packet {packets}: reading takes too long"));
            }
        }
    }
    Ok(packets)
}

/// The text of an error after this many packets.
fn problem(packets: u64, error: &CaptureError) -> String {
    match error {
        CaptureError::Io(cause) => format!("{error}: {cause}"),
        CaptureError::Truncated => format!("after packet {packets}: {error}"),
        CaptureError::Damaged(_) => format!("packet {}: {error}", packets + 1),
        CaptureError::NotACapture(_) | CaptureError::LinkType(_) => error.to_string(),
    }
}

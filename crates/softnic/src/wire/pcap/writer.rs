//! Sent packets as a pcap file with nanoseconds.
//!
//! Written through a buffer by the engine's thread, one `write` per flush: for tests and for looking at what was sent,
//! not for line rate.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// "pcap with nanoseconds" (pcap-savefile(5)), written in the byte order of the machine.
const MAGIC: u32 = 0xa1b2_3c4d;
const LINK_TYPE_ETHERNET: u32 = 1;
const SNAPLEN: u32 = 262_144;

/// An open pcap file.
#[derive(Debug)]
pub(super) struct Writer {
    file: BufWriter<File>,
    pending: bool,
}

impl Writer {
    /// Makes the file, over one that may be there.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let mut file = BufWriter::with_capacity(1 << 16, File::create(path)?);
        file.write_all(&MAGIC.to_ne_bytes())?;
        // Version 2.4, then time zone and accuracy, which are always 0.
        file.write_all(&2u16.to_ne_bytes())?;
        file.write_all(&4u16.to_ne_bytes())?;
        for field in [0, 0, SNAPLEN, LINK_TYPE_ETHERNET] {
            file.write_all(&field.to_ne_bytes())?;
        }
        file.flush()?;
        Ok(Self { file, pending: false })
    }

    pub(super) fn write(&mut self, frame: &[u8]) -> io::Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let len = frame.len() as u32;
        for field in [now.as_secs() as u32, now.subsec_nanos(), len, len] {
            self.file.write_all(&field.to_ne_bytes())?;
        }
        self.pending = true;
        self.file.write_all(frame)
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        if !self.pending {
            return Ok(());
        }
        self.pending = false;
        self.file.flush()
    }
}

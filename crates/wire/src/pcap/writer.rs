//! Sent packets as a pcap file with nanoseconds.
//!
//! Gathered by the engine's thread and written by one `write` per flush: for tests and for looking at what
//! was sent, not for line rate. The file ends with a whole record whatever fails; frames that could not be
//! written are counted.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use super::with_hint;
use crate::MAX_FRAME_BYTES;

/// "pcap with nanoseconds" (pcap-savefile(5)), written in the byte order of the machine.
const MAGIC: u32 = 0xa1b2_3c4d;
const LINK_TYPE_ETHERNET: u32 = 1;
const SNAPLEN: u32 = 262_144;
/// The bytes that are gathered before they are written without being asked.
const BUFFER_BYTES: usize = 1 << 16;
const RECORD_HEADER_BYTES: usize = 16;
const _: () = assert!(RECORD_HEADER_BYTES + MAX_FRAME_BYTES <= BUFFER_BYTES, "every record fits");

/// The destination of records: a file, but for tests.
pub(super) trait Medium: Write {
    /// Cuts off everything from this place on, and goes on there.
    fn cut(&mut self, at: u64) -> io::Result<()>;
}

impl Medium for File {
    fn cut(&mut self, at: u64) -> io::Result<()> {
        self.set_len(at)?;
        self.seek(SeekFrom::Start(at)).map(|_| ())
    }
}

/// An open pcap file.
#[derive(Debug)]
pub(super) struct Writer<M: Medium = File> {
    medium: M,
    /// The name of the file, for the log.
    name: String,
    /// Where the last whole record ends.
    end: u64,
    /// Whether a failed write may have left something behind `end`.
    torn: bool,
    /// Whole records that are not written yet.
    buffer: Vec<u8>,
    buffered_frames: u64,
    lost_frames: u64,
    /// Those that were lost before the last write that failed after one that did not.
    lost_before: u64,
}

/// Checks that a file can be made, and makes none.
pub(super) fn check(path: &Path) -> io::Result<()> {
    regular_file::check_create(path).map_err(with_hint)
}

impl Writer {
    /// Makes the file, over one that may be there.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        Self::begin(regular_file::create(path).map_err(with_hint)?, path.display().to_string())
    }
}

impl<M: Medium> Writer<M> {
    /// Writes the header of the file.
    fn begin(mut medium: M, name: String) -> io::Result<Self> {
        let mut header = Vec::new();
        header.extend(MAGIC.to_ne_bytes());
        // Version 2.4, then time zone and accuracy, which are always 0.
        header.extend(2u16.to_ne_bytes());
        header.extend(4u16.to_ne_bytes());
        for field in [0, 0, SNAPLEN, LINK_TYPE_ETHERNET] {
            header.extend(field.to_ne_bytes());
        }
        medium.write_all(&header)?;
        Ok(Self {
            medium,
            name,
            end: header.len() as u64,
            torn: false,
            buffer: Vec::with_capacity(BUFFER_BYTES),
            buffered_frames: 0,
            lost_frames: 0,
            lost_before: 0,
        })
    }

    /// Adds a frame of at most [`MAX_FRAME_BYTES`].
    pub(super) fn write(&mut self, frame: &[u8]) {
        if self.buffer.len() + RECORD_HEADER_BYTES + frame.len() > BUFFER_BYTES {
            self.flush();
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let len = frame.len() as u32;
        for field in [now.as_secs() as u32, now.subsec_nanos(), len, len] {
            self.buffer.extend(field.to_ne_bytes());
        }
        self.buffer.extend(frame);
        self.buffered_frames += 1;
    }

    /// Writes what was gathered; if that fails, those frames are lost and counted.
    pub(super) fn flush(&mut self) {
        if self.buffer.is_empty() {
            return;
        }
        match self.write_buffer() {
            Ok(()) => self.end += self.buffer.len() as u64,
            Err(error) => {
                if !self.torn {
                    let frames = self.buffered_frames;
                    tracing::error!(
                        %error,
                        frames,
                        "sent frames cannot be written to {} and are lost (hint: make room, or raise `ulimit -f`)",
                        self.name
                    );
                    self.lost_before = self.lost_frames;
                }
                self.torn = true;
                self.lost_frames += self.buffered_frames;
            }
        }
        self.buffer.clear();
        self.buffered_frames = 0;
    }

    /// Frames that could not be written.
    pub(super) fn lost_frames(&self) -> u64 {
        self.lost_frames
    }

    fn write_buffer(&mut self) -> io::Result<()> {
        if self.torn {
            self.medium.cut(self.end)?;
        }
        self.medium.write_all(&self.buffer)?;
        if self.torn {
            self.torn = false;
            tracing::info!(
                "sent frames are written to {} again, after {} that were lost",
                self.name,
                self.lost_frames - self.lost_before
            );
        }
        Ok(())
    }
}

impl<M: Medium> Drop for Writer<M> {
    /// Writes what was gathered; a record that was torn is cut off.
    fn drop(&mut self) {
        self.flush();
        let cut = if self.torn { self.medium.cut(self.end) } else { Ok(()) };
        if self.lost_frames > 0 || cut.is_err() {
            let frames = self.lost_frames;
            tracing::warn!(frames, torn = cut.is_err(), "sent frames are missing from their capture file");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// A medium of limited size, as a full disk, that is seen from outside.
    #[derive(Clone, Default)]
    struct Disk(Arc<Mutex<(Vec<u8>, usize)>>);

    impl Disk {
        fn resize(&self, bytes: usize) {
            self.0.lock().unwrap().1 = bytes;
        }

        fn content(&self) -> Vec<u8> {
            self.0.lock().unwrap().0.clone()
        }
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let (content, size) = &mut *self.0.lock().unwrap();
            let taken = bytes.len().min(*size - content.len());
            content.extend(&bytes[..taken]);
            if taken == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(taken) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Medium for Disk {
        fn cut(&mut self, at: u64) -> io::Result<()> {
            self.0.lock().unwrap().0.truncate(at as usize);
            Ok(())
        }
    }

    /// The frames of a file without time stamps.
    fn frames(content: &[u8]) -> Vec<Vec<u8>> {
        let mut reader = pcap_file::pcap::PcapReader::new(content).unwrap();
        let mut frames = Vec::new();
        while let Some(packet) = reader.next_packet() {
            frames.push(packet.unwrap().data.into_owned());
        }
        frames
    }

    #[test]
    fn a_full_disk_costs_whole_frames_which_are_counted() {
        let disk = Disk::default();
        disk.resize(24 + 3 * (16 + 60) + 20);
        let mut writer = Writer::begin(disk.clone(), "sent.pcap".to_owned()).unwrap();
        for value in 0..2 {
            writer.write(&[value; 60]);
        }
        writer.flush();
        // One fits, the header of the next one fits, its frame does not.
        for value in 2..5 {
            writer.write(&[value; 60]);
        }
        writer.flush();
        assert_eq!(writer.lost_frames(), 3);
        writer.flush();
        assert_eq!(writer.lost_frames(), 3, "nothing new was lost");
        disk.resize(1000);
        writer.write(&[5; 60]);
        writer.flush();
        assert_eq!(frames(&disk.content()), [[0; 60], [1; 60], [5; 60]]);
        disk.resize(disk.content().len() + 30);
        writer.write(&[6; 60]);
        writer.flush();
        assert_eq!((writer.lost_frames(), writer.lost_before), (4, 3), "one since it was written again");
        drop(writer);
        assert_eq!(frames(&disk.content()), [[0; 60], [1; 60], [5; 60]], "the file ends with a whole record");
    }

    #[test]
    fn more_than_the_buffer_holds_is_written_unasked() {
        let disk = Disk::default();
        disk.resize(usize::MAX);
        let mut writer = Writer::begin(disk.clone(), "sent.pcap".to_owned()).unwrap();
        let long = vec![7; MAX_FRAME_BYTES];
        for _ in 0..20 {
            writer.write(&long);
        }
        assert!(writer.buffer.capacity() == BUFFER_BYTES && disk.content().len() > 10 * MAX_FRAME_BYTES);
        drop(writer);
        assert_eq!(frames(&disk.content()), vec![long; 20]);
    }
}

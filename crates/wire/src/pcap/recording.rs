//! Captures in memory: every packet of a file, or of all files of a folder, in the order of replay.
//!
//! Loaded once when the wire is opened, within named limits; a damaged file fails the whole load, so that a
//! replay is never silently shorter than its files. Nothing here reads a file while packets are replayed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::open_capture;
use super::reader::{CaptureError, CaptureReader};
use crate::store::{FrameStore, LINE_BYTES, Place};
use crate::{Burst, WireError};

/// The most bytes of packets that are kept, each on cache lines of its own.
const MAX_BYTES: usize = 1 << 30;
/// The most packets that are kept.
const MAX_PACKETS: usize = 1 << 24;
/// The longest packet that tcpdump and Wireshark write (MAXIMUM_SNAPLEN); more is a damaged length.
const MAX_CAPTURED_BYTES: usize = 262_144;
/// The extensions of a folder's captures.
const EXTENSIONS: [&str; 3] = ["pcap", "pcapng", "cap"];

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
            loader.load().map_err(|problem| match problem {
                // Its remedy is another one than to repair the file.
                problem @ WireError::CaptureLimit { .. } => problem,
                problem if file == path => problem,
                problem => WireError::InFolder { folder: path.to_owned(), problem: Box::new(problem) },
            })?;
        }
        recording.store.align();
        Ok(recording)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Appends `count` packets from a place on to a burst: their captured bytes. What a snapshot length has
    /// cut off is gone; the rest is replayed as a frame.
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
        let file = open_capture(self.path).map_err(|source| self.unreadable(source))?;
        let mut reader = CaptureReader::new(file).map_err(|error| self.refused(error))?;
        loop {
            self.packet += 1;
            let appended = reader.next_packet(|packet| self.append(packet.frame, packet.time_ns));
            match appended {
                Ok(Some(appended)) => appended?,
                Ok(None) => return Ok(()),
                Err(error) => return Err(self.refused(error)),
            }
        }
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
            // Every file starts where the one before it ended: captures of different days follow on each
            // other.
            let (start_ns, start_due_ns) = *self.timeline.get_or_insert((time_ns, before));
            start_due_ns.saturating_add(time_ns.saturating_sub(start_ns)).max(before)
        });
        let place = self.recording.store.push(bytes);
        self.recording.entries.push(Entry { place, due_ns });
        Ok(())
    }

    fn unreadable(&self, source: io::Error) -> WireError {
        WireError::ReadCapture { path: self.path.to_owned(), source }
    }

    fn damaged(&self, problem: String) -> WireError {
        WireError::DamagedCapture { path: self.path.to_owned(), packet: self.packet, problem }
    }

    fn refused(&self, error: CaptureError) -> WireError {
        let path = self.path.to_owned();
        match error {
            CaptureError::Io(source) => self.unreadable(source),
            CaptureError::NotACapture(problem) => WireError::NotACapture { path, problem },
            // A text that follows the number of the packet.
            CaptureError::Truncated => self.damaged("the file ends in it".to_owned()),
            CaptureError::Damaged(problem) => self.damaged(problem),
            CaptureError::LinkType(link) => {
                WireError::LinkType { path, link_type: format!("{} ({link:?})", u32::from(link)) }
            }
        }
    }

    fn limit(&self, what: &str) -> WireError {
        let problem =
            format!("the captures up to here hold {what}: replay fewer files, or split with `editcap -c`");
        WireError::CaptureLimit { path: self.path.to_owned(), problem }
    }
}

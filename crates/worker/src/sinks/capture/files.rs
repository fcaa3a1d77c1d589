//! The files of a capture: their names, the limit on the room that they use, and writes that leave whole blocks.
//!
//! A file has its final name from the start. Every write appends whole blocks; one that fails is undone by cutting the
//! file back to its previous length, so that it ends with a whole block. Only a process that is killed, or a machine that
//! fails, during a write leaves a part of a block at the end.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What stands for the time in a file name pattern.
pub(super) const TIME: &str = "{time}";
/// Readable for the owner and the group, whatever the process's umask is.
const MODE: u32 = 0o640;
/// The length of [`time_text`].
const TIME_BYTES: usize = "20260102T030405.678Z".len();
/// The most pieces of one write (UIO_MAXIOV).
const PIECES_MAX: usize = 1024;
/// Names that are tried before an existing file is an error.
const NAMES_TRIED: u64 = 100;

/// The file that is written and the place of the others.
#[derive(Debug)]
pub(super) struct Files {
    folder: PathBuf,
    /// The file name before and after the time.
    prefix: String,
    suffix: String,
    /// The most octets that all files together may have.
    disk_bytes: u64,
    /// The time in the last name, in milliseconds; each name has a later one.
    named_ms: u64,
    current: Option<Current>,
}

#[derive(Debug)]
struct Current {
    file: File,
    path: PathBuf,
    bytes: u64,
}

impl Files {
    /// `path` is a folder that exists, and then `name` and the time become the file names, or a pattern whose file name
    /// contains [`TIME`].
    ///
    /// # Errors
    /// There is no such folder, or the pattern lacks the time.
    pub(super) fn new(path: &Path, name: &str, disk_bytes: u64) -> io::Result<Self> {
        let (folder, pattern) = if path.is_dir() {
            (path.to_owned(), format!("{name}_{TIME}.pcapng"))
        } else {
            let pattern = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            (path.parent().unwrap_or(Path::new("")).to_owned(), pattern.to_owned())
        };
        let Some((prefix, suffix)) = pattern.split_once(TIME) else {
            let text = format!("it is not a folder that exists, and no file name with {TIME}");
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        };
        let (prefix, suffix) = (prefix.to_owned(), suffix.to_owned());
        Ok(Self { folder, prefix, suffix, disk_bytes, named_ms: 0, current: None })
    }

    /// Starts a file that may become `room` octets long; deletes the oldest files as far as the limit demands it.
    pub(super) fn create(&mut self, room: u64) -> io::Result<()> {
        self.current = None;
        self.make_room(room)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.named_ms = (now.as_millis() as u64).max(self.named_ms + 1);
        for attempt in 0.. {
            let name = format!("{}{}{}", self.prefix, time_text(self.named_ms), self.suffix);
            let path = self.folder.join(name);
            match OpenOptions::new().write(true).create_new(true).mode(MODE).open(&path) {
                Ok(file) => {
                    // A file system without modes refuses this; the file is as good.
                    let _ = file.set_permissions(fs::Permissions::from_mode(MODE));
                    self.current = Some(Current { file, path, bytes: 0 });
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < NAMES_TRIED => {
                    self.named_ms += 1;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Appends whole blocks, all or none.
    pub(super) fn write(&mut self, blocks: &mut [IoSlice<'_>]) -> io::Result<()> {
        let Some(Current { file, bytes, .. }) = &mut self.current else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let mut end = *bytes;
        let written = write_all(blocks, |pieces| {
            let written = rustix::io::pwritev(&*file, pieces, end)?;
            end += written as u64;
            Ok(written)
        });
        match written {
            Ok(()) => *bytes = end,
            // Making a file shorter needs no room on the disk.
            Err(_) => file.set_len(*bytes)?,
        }
        written
    }

    /// Whether the file was deleted, alone or with its folder.
    pub(super) fn is_deleted(&self) -> bool {
        self.current
            .as_ref()
            .is_some_and(|current| current.file.metadata().is_ok_and(|metadata| metadata.nlink() == 0))
    }

    pub(super) fn close(&mut self) {
        self.current = None;
    }

    /// Removes the file that was started, for one that has no packets.
    pub(super) fn discard(&mut self) {
        if let Some(current) = self.current.take() {
            let _ = fs::remove_file(current.path);
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.current.is_some()
    }

    /// The length of the current file.
    pub(super) fn bytes(&self) -> u64 {
        self.current.as_ref().map_or(0, |current| current.bytes)
    }

    pub(super) fn path(&self) -> Option<&Path> {
        self.current.as_ref().map(|current| current.path.as_path())
    }

    /// Deletes the oldest files until the others and one of `room` octets are within the limit.
    fn make_room(&self, room: u64) -> io::Result<()> {
        let mut files = self.existing()?;
        files.sort();
        let mut sum: u64 = files.iter().map(|(_, bytes)| bytes).sum();
        for (path, bytes) in files {
            if sum.saturating_add(room) <= self.disk_bytes {
                break;
            }
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => sum -= bytes,
            }
        }
        Ok(())
    }

    /// The files whose names this capture could have given, and the room that they take. Names sort by time.
    fn existing(&self) -> io::Result<Vec<(PathBuf, u64)>> {
        let mut files = Vec::new();
        let folder = if self.folder.as_os_str().is_empty() { Path::new(".") } else { &self.folder };
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let is_ours = name.to_str().is_some_and(|name| self.is_name(name));
            if is_ours
                && let Ok(metadata) = entry.metadata()
                && metadata.is_file()
            {
                files.push((entry.path(), metadata.len()));
            }
        }
        Ok(files)
    }

    fn is_name(&self, name: &str) -> bool {
        let middle = name.strip_prefix(&self.prefix).and_then(|rest| rest.strip_suffix(&self.suffix));
        middle.is_some_and(|time| {
            time.len() == TIME_BYTES
                && time.bytes().enumerate().all(|(at, byte)| match at {
                    8 => byte == b'T',
                    15 => byte == b'.',
                    19 => byte == b'Z',
                    _ => byte.is_ascii_digit(),
                })
        })
    }
}

/// Passes all octets to `write`, which returns how many it has taken.
pub(super) fn write_all(
    mut pieces: &mut [IoSlice<'_>],
    mut write: impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>,
) -> io::Result<()> {
    // Without pieces of length 0, so that a write of 0 octets is an error.
    IoSlice::advance_slices(&mut pieces, 0);
    while !pieces.is_empty() {
        match write(&pieces[..pieces.len().min(PIECES_MAX)]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut pieces, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// UTC in the basic format of ISO 8601 with milliseconds, which sorts by time.
fn time_text(ms: u64) -> String {
    let seconds = Duration::from_millis(ms).as_secs();
    let (year, month, day) = civil_date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}.{:03}Z", ms % 1000)
}

/// The date of a day after 1 January 1970, by the lengths of years and months of the Gregorian calendar.
fn civil_date(mut day: u64) -> (u64, usize, u64) {
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while day >= 365 + u64::from(is_leap(year)) {
        day -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 0;
    for days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        month += 1;
        if day < days {
            break;
        }
        day -= days;
    }
    (year, month, day + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).expect("it is readable");
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn times_are_utc_and_sort() {
        assert_eq!(time_text(0), "19700101T000000.000Z");
        assert_eq!(time_text(951_782_400_001), "20000229T000000.001Z");
        assert_eq!(time_text(1_709_251_199_999), "20240229T235959.999Z");
        assert_eq!(time_text(1_709_251_200_000), "20240301T000000.000Z");
        assert_eq!(time_text(4_102_444_800_000), "21000101T000000.000Z");
    }

    #[test]
    fn a_path_is_a_folder_or_a_pattern_with_the_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        Files::new(path, "dns", 0).unwrap().create(0).unwrap();
        Files::new(&path.join("x-{time}.cap"), "dns", 0).unwrap().create(0).unwrap();
        let names = names(path);
        assert!(names[0].starts_with("dns_20") && names[0].ends_with("Z.pcapng"), "{names:?}");
        assert!(names[1].starts_with("x-20") && names[1].ends_with("Z.cap"), "{names:?}");
        let refused = Files::new(&path.join("missing"), "dns", 0).expect_err("no folder");
        assert!(refused.to_string().contains("{time}"), "{refused}");
    }

    #[test]
    fn files_have_mode_0640_and_never_replace_another() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = Files::new(folder.path(), "dns", u64::MAX).unwrap();
        for _ in 0..3 {
            files.create(0).unwrap();
            let mode = fs::metadata(files.path().unwrap()).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o640);
        }
        assert_eq!(names(folder.path()).len(), 3);
    }

    #[test]
    fn the_oldest_files_make_room_and_foreign_ones_stay() {
        let folder = tempfile::tempdir().unwrap();
        let foreign = ["dns_notes.pcapng", "dns_20260102T030405.678Z.txt", "ssh_20260102T030405.678Z.pcapng"];
        for name in foreign {
            fs::write(folder.path().join(name), [0; 1000]).unwrap();
        }
        fs::write(folder.path().join("dns_20200102T030405.678Z.pcapng"), [0; 60]).unwrap();
        let mut files = Files::new(folder.path(), "dns", 300).unwrap();
        let mut created = Vec::new();
        for _ in 0..5 {
            files.create(100).unwrap();
            files.write(&mut [IoSlice::new(&[]), IoSlice::new(&[0; 60]), IoSlice::new(&[0; 40])]).unwrap();
            created.push(files.path().unwrap().file_name().unwrap().to_str().unwrap().to_owned());
        }
        let left: Vec<_> =
            names(folder.path()).into_iter().filter(|name| !foreign.contains(&&**name)).collect();
        assert_eq!(left, created[2..], "three files of 100 octets are within the limit");
        assert_eq!(names(folder.path()).len(), 3 + foreign.len());
    }

    #[test]
    fn a_write_in_parts_is_continued_where_it_stopped() {
        let pieces = (0..3000_u16).map(u16::to_ne_bytes).collect::<Vec<_>>();
        let mut slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        let mut written = Vec::new();
        let result = write_all(&mut slices, |pieces| {
            assert!(pieces.len() <= PIECES_MAX);
            let whole = pieces.iter().flat_map(|piece| piece.iter().copied()).collect::<Vec<_>>();
            let part = &whole[..whole.len().min(777)];
            written.extend_from_slice(part);
            Ok(part.len())
        });
        assert!(result.is_ok() && written == pieces.concat());
        let refused = write_all(&mut [IoSlice::new(&[1])], |_| Ok(0)).expect_err("nothing is taken");
        assert_eq!(refused.kind(), io::ErrorKind::WriteZero);
    }

    #[test]
    fn a_deleted_file_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = Files::new(folder.path(), "dns", u64::MAX).unwrap();
        files.create(0).unwrap();
        assert!(!files.is_deleted());
        fs::remove_file(files.path().unwrap()).unwrap();
        assert!(files.is_deleted());
    }
}

//! The files of a capture: their names, the limit on the room that they use, and writes that leave whole
//! blocks.
//!
//! A name contains the time, and a number by which the files sort in the order in which they were written:
//! each file gets the highest number in the folder and one, also over restarts. The time could not give that
//! order, because clocks are set.
//!
//! A file has its final name from the start. Every write appends whole blocks; one that fails is undone by
//! cutting the file back to its previous length, so that it ends with a whole block. Only a process that is
//! killed, or a machine that fails, during a write leaves a part of a block at the end.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;

/// The marks that stand for the time and the number in a file name pattern.
pub(super) const TIME: &str = "{time}";
/// Readable for the owner and the group, whatever the process's umask is.
const MODE: u32 = 0o640;
/// The mode of a folder that is made.
const FOLDER_MODE: u32 = 0o750;
/// The extensions of captures, and of the files of the daemon's state. A folder with one is not made: its
/// name is that of a file.
const FILE_EXTENSIONS: [&str; 3] = ["pcap", "pcapng", "json"];
/// The length of [`time_text`].
const TIME_BYTES: usize = "20260102T030405.678Z".len();
/// The most pieces of one write (UIO_MAXIOV).
const PIECES_MAX: usize = 1024;
/// The least and the most digits of a number. A name with more is not one of a capture.
const NUMBER_DIGITS: std::ops::RangeInclusive<usize> = 6..=17;
/// The highest number. Files after it have it, too, and sort by time.
const NUMBER_MAX: u64 = 10_u64.pow(*NUMBER_DIGITS.end() as u32) - 1;
/// Names that are tried before an existing file is an error.
const NAMES_TRIED: u64 = 100;

/// Why no file can be begun.
#[derive(Debug, thiserror::Error)]
pub(super) enum CreateError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{} cannot be deleted to make room for the next file: {source}", path.display())]
    Delete { path: PathBuf, source: io::Error },
}

impl From<CreateError> for io::Error {
    fn from(error: CreateError) -> Self {
        match error {
            CreateError::Io(error) => error,
            CreateError::Delete { ref source, .. } => Self::new(source.kind(), error.to_string()),
        }
    }
}

/// The file that is written and the place of the others.
#[derive(Debug)]
pub(super) struct Files {
    folder: PathBuf,
    /// For messages.
    sink: String,
    /// The file name before and after the time and the number.
    prefix: String,
    suffix: String,
    /// The most octets that all files together may have.
    disk_bytes: u64,
    /// The number in the last name.
    number: u64,
    /// Files that were deleted to make room.
    deleted: u64,
    current: Option<Current>,
}

/// A file whose name this capture could have given.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CaptureFile {
    /// First, because files sort by it; 0 in names of earlier versions, which have none and sort by time.
    number: u64,
    path: PathBuf,
    bytes: u64,
}

#[derive(Debug)]
struct Current {
    file: File,
    path: PathBuf,
    bytes: u64,
}

/// The folder of a capture, if it is missing and below the folder of the daemon's state, which is the
/// daemon's own: an operator need not make it. `path`: as in [`Files::new`].
fn folder_to_make<'p>(path: &'p Path, state: &Path) -> Option<&'p Path> {
    let has_pattern = path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.contains(TIME));
    let folder = if has_pattern { path.parent().unwrap_or(path) } else { path };
    let inside = folder.strip_prefix(state).ok()?;
    let is_made = state.is_dir() && inside.components().all(is_folder_name) && !folder.exists();
    is_made.then_some(folder)
}

/// Makes the folder of a capture, if it is to be made.
pub(super) fn make_folder(path: &Path, state: &Path) -> io::Result<()> {
    let Some(folder) = folder_to_make(path, state) else { return Ok(()) };
    let missing: Vec<&Path> = folder.ancestors().take_while(|folder| !folder.exists()).collect();
    for folder in missing.into_iter().rev() {
        fs::DirBuilder::new().mode(FOLDER_MODE).create(folder)?;
        // The process's umask may be stricter. A file system without modes refuses this.
        let _ = fs::set_permissions(folder, fs::Permissions::from_mode(FOLDER_MODE));
    }
    Ok(())
}

/// Whether a folder is made under this name. A mistyped pattern must be an error.
fn is_folder_name(component: Component<'_>) -> bool {
    let Component::Normal(name) = component else { return false };
    let extension = Path::new(name).extension().and_then(|extension| extension.to_str());
    !name.to_string_lossy().contains('{') && !extension.is_some_and(|known| FILE_EXTENSIONS.contains(&known))
}

/// Checks that the folder of a capture could be made. `None`: it is not to be made.
pub(super) fn check_folder(path: &Path, state: &Path) -> Option<io::Result<()>> {
    let folder = folder_to_make(path, state)?;
    let is_there = |folder: &&Path| folder.as_os_str().is_empty() || folder.exists();
    Some(takes_files(folder.ancestors().find(is_there)?))
}

/// Whether files and folders can be made in a folder.
fn takes_files(folder: &Path) -> io::Result<()> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    if !folder.metadata()?.is_dir() {
        return Err(Errno::NOTDIR.into());
    }
    Ok(accessat(CWD, folder, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)?)
}

impl Files {
    /// `path` is a folder that exists, and then `name` and the time become the file names, or a pattern whose
    /// file name contains [`TIME`].
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
        let sink = name.to_owned();
        Ok(Self { folder, sink, prefix, suffix, disk_bytes, number: 0, deleted: 0, current: None })
    }

    /// Starts a file that may become `room` octets long; deletes the oldest files as far as the limit demands
    /// it.
    pub(super) fn create(&mut self, room: u64) -> Result<(), CreateError> {
        self.create_at(room, SystemTime::now())
    }

    fn create_at(&mut self, room: u64, now: SystemTime) -> Result<(), CreateError> {
        self.current = None;
        self.make_room(room)?;
        self.number = NUMBER_MAX.min(self.number + 1);
        let now_ms = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        for attempt in 0.. {
            let name = format!("{}{}-{:06}{}", self.prefix, time_text(now_ms), self.number, self.suffix);
            let path = self.folder.join(name);
            match OpenOptions::new().write(true).create_new(true).mode(MODE).open(&path) {
                Ok(file) => {
                    // A file system without modes refuses this; the file is as good.
                    let _ = file.set_permissions(fs::Permissions::from_mode(MODE));
                    self.current = Some(Current { file, path, bytes: 0 });
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < NAMES_TRIED => {
                    self.number = NUMBER_MAX.min(self.number + 1);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Checks that a file that may become `room` octets long can be started, and changes nothing.
    pub(super) fn check(&self, room: u64) -> Result<(), CreateError> {
        let mut files = self.existing()?;
        files.sort();
        let Err(refused) = takes_files(&self.folder) else { return Ok(()) };
        let sum: u64 = files.iter().map(|file| file.bytes).sum();
        match files.into_iter().next() {
            // The first step is to delete it.
            Some(oldest) if sum.saturating_add(room) > self.disk_bytes => {
                Err(CreateError::Delete { path: oldest.path, source: refused })
            }
            _ => Err(CreateError::Io(refused)),
        }
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

    /// How many files were deleted to make room.
    pub(super) fn deleted(&self) -> u64 {
        self.deleted
    }

    /// Deletes the oldest files until the others and one of `room` octets are within the limit. Numbers of
    /// new files follow those of all that were there.
    fn make_room(&mut self, room: u64) -> Result<(), CreateError> {
        let mut files = self.existing()?;
        files.sort();
        self.number = self.number.max(files.last().map_or(0, |newest| newest.number));
        let mut sum: u64 = files.iter().map(|file| file.bytes).sum();
        let mut deleted = Vec::new();
        let mut refused = None;
        for CaptureFile { path, bytes, .. } in files {
            if sum.saturating_add(room) <= self.disk_bytes {
                break;
            }
            match fs::remove_file(&path) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    refused = Some(CreateError::Delete { path, source });
                    break;
                }
                result => {
                    sum -= bytes;
                    deleted.extend(result.is_ok().then_some(path));
                }
            }
        }
        self.report(&deleted);
        refused.map_or(Ok(()), Err)
    }

    /// Counts deleted files, and logs them in one line.
    fn report(&mut self, deleted: &[PathBuf]) {
        self.deleted += deleted.len() as u64;
        let (sink, limit) = (&self.sink, self.disk_bytes);
        match deleted {
            [] => {}
            [one] => tracing::info!("sink `{sink}`: deleted {} to stay within {limit} bytes", one.display()),
            [first, .., last] => tracing::info!(
                "sink `{sink}`: deleted {} files, {} to {}, to stay within {limit} bytes",
                deleted.len(),
                first.display(),
                last.display()
            ),
        }
    }

    /// The files whose names this capture could have given.
    fn existing(&self) -> io::Result<Vec<CaptureFile>> {
        let mut files = Vec::new();
        let folder = if self.folder.as_os_str().is_empty() { Path::new(".") } else { &self.folder };
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name();
            if let Some(number) = name.to_str().and_then(|name| self.number_of(name))
                && let Ok(metadata) = entry.metadata()
                && metadata.is_file()
            {
                files.push(CaptureFile { number, path: entry.path(), bytes: metadata.len() });
            }
        }
        Ok(files)
    }

    /// The number in a name that this capture could have given; 0 in one of an earlier version.
    fn number_of(&self, name: &str) -> Option<u64> {
        let middle = name.strip_prefix(&self.prefix)?.strip_suffix(&self.suffix)?;
        let (time, number) = middle.split_at_checked(TIME_BYTES)?;
        if !is_time(time) {
            return None;
        }
        match number.strip_prefix('-') {
            None => number.is_empty().then_some(0),
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                NUMBER_DIGITS.contains(&digits.len()).then(|| digits.parse().ok())?
            }
            Some(_) => None,
        }
    }
}

/// The limit of the size of files (RLIMIT_FSIZE), at which writes fail with EFBIG.
pub(super) fn size_limit() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Fsize).current.unwrap_or(u64::MAX)
}

fn is_time(text: &str) -> bool {
    text.bytes().enumerate().all(|(at, byte)| match at {
        8 => byte == b'T',
        15 => byte == b'.',
        19 => byte == b'Z',
        _ => byte.is_ascii_digit(),
    })
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
        assert!(names[0].starts_with("dns_20") && names[0].ends_with("Z-000001.pcapng"), "{names:?}");
        assert!(names[1].starts_with("x-20") && names[1].ends_with("Z-000001.cap"), "{names:?}");
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
        let foreign = [
            "dns_notes.pcapng",
            "dns_20260102T030405.678Z.txt",
            "ssh_20260102T030405.678Z.pcapng",
            "dns_20260102T030405.678Z-999999999999999999.pcapng",
        ];
        for name in foreign {
            fs::write(folder.path().join(name), [0; 1000]).unwrap();
        }
        // The last of an earlier version, which has no number, is the oldest, although its clock was ahead.
        fs::write(folder.path().join("dns_20990102T030405.678Z.pcapng"), [0; 60]).unwrap();
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
        assert_eq!(files.deleted(), 3);
    }

    /// Files are deleted in the order in which they were written, over a restart and whatever the clock was.
    #[test]
    fn a_clock_that_is_set_does_not_change_which_file_is_the_oldest() {
        let folder = tempfile::tempdir().unwrap();
        let (future, past) = (4_102_444_800, 951_782_400);
        let mut created = Vec::new();
        for (run, clocks) in [[past, future, future], [past, past, future]].into_iter().enumerate() {
            let mut files = Files::new(folder.path(), "dns", 300).unwrap();
            for seconds in clocks {
                files.create_at(100, UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
                files.write(&mut [IoSlice::new(&[run as u8; 100])]).unwrap();
                created.push(files.path().unwrap().to_owned());
                let first = created.len().saturating_sub(3);
                let is_there = created.iter().map(|path| path.exists());
                assert!(
                    is_there.eq((0..created.len()).map(|file| file >= first)),
                    "{:?}",
                    names(folder.path())
                );
            }
        }
    }

    #[test]
    fn files_after_the_highest_number_are_counted_and_deleted() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(format!("dns_20200102T030405.678Z-{NUMBER_MAX}.pcapng")), [0; 100])
            .unwrap();
        let mut files = Files::new(folder.path(), "dns", 300).unwrap();
        for second in 1_800_000_000..1_800_000_005 {
            files.create_at(100, UNIX_EPOCH + Duration::from_secs(second)).unwrap();
            files.write(&mut [IoSlice::new(&[0; 100])]).unwrap();
        }
        assert_eq!((names(folder.path()).len(), files.deleted()), (3, 3));
    }

    #[test]
    fn a_file_that_cannot_be_deleted_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let old = folder.path().join("dns_20200102T030405.678Z-000001.pcapng");
        fs::write(&old, [0; 60]).unwrap();
        let immutable = |flag: &str| std::process::Command::new("chattr").arg(flag).arg(&old).output();
        if !immutable("+i").is_ok_and(|output| output.status.success()) {
            return test_support::not_run("a capture that cannot be deleted", "chattr +i needs root");
        }
        let mut files = Files::new(folder.path(), "dns", 100).unwrap();
        let result = files.create(100);
        immutable("-i").unwrap();
        let text = result.expect_err("there is no room").to_string();
        assert!(text.contains(old.to_str().unwrap()) && text.contains("cannot be deleted"), "{text}");
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

//! Opens and reads regular files that a user names.
//!
//! Directories, devices, FIFOs and sockets are refused: reading a device may never end, and opening a FIFO
//! waits for its other end. A file is read up to a bound, which holds while it is read, because it may grow.
//! Symbolic links are followed.
//!
//! ```
//! let folder = tempfile::tempdir()?;
//! let file = folder.path().join("rules.toml");
//! std::fs::write(&file, "[[rules]]")?;
//! assert_eq!(regular_file::read(&file, 1024)?, b"[[rules]]");
//! assert!(matches!(regular_file::read(&file, 8), Err(regular_file::FileError::TooLarge(8))));
//! assert!(matches!(regular_file::read(folder.path(), 8), Err(regular_file::FileError::NotRegular("a directory"))));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

use std::fs::{File, FileType};
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, accessat};
use rustix::io::Errno;

/// Why a file was not opened or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The system reports an error.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file is something else, which is named with its article.
    #[error("this is {0}, not a regular file")]
    NotRegular(&'static str),
    /// The file has more bytes than this.
    #[error("more than {0} bytes")]
    TooLarge(u64),
}

impl From<FileError> for io::Error {
    fn from(error: FileError) -> Self {
        let kind = match error {
            FileError::Io(error) => return error,
            FileError::NotRegular(_) => io::ErrorKind::InvalidInput,
            FileError::TooLarge(_) => io::ErrorKind::FileTooLarge,
        };
        Self::new(kind, error)
    }
}

/// Opens a file for reading.
///
/// # Errors
/// [`FileError::Io`] and [`FileError::NotRegular`].
pub fn open(path: &Path) -> Result<File, FileError> {
    open_with(path, OFlags::RDONLY)
}

/// Opens a file for writing, without its old contents; it is created if it does not exist, with mode 0666
/// less the umask.
///
/// # Errors
/// As [`open`].
pub fn create(path: &Path) -> Result<File, FileError> {
    let file = open_with(path, OFlags::WRONLY | OFlags::CREATE)?;
    file.set_len(0)?;
    Ok(file)
}

/// Checks that [`create`] would succeed, and changes nothing: a file that exists can be written, or its
/// folder takes a file.
///
/// # Errors
/// The errors of [`create`].
pub fn check_create(path: &Path) -> Result<(), FileError> {
    match open_with(path, OFlags::WRONLY) {
        Err(FileError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
            Ok(check_folder(path.parent().unwrap_or(Path::new("")))?)
        }
        opened => opened.map(drop),
    }
}

/// Checks that files can be made in a folder, with the rights of this thread.
///
/// # Errors
/// The answer that making a file there would get.
pub fn check_folder(folder: &Path) -> io::Result<()> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    if !folder.metadata()?.is_dir() {
        return Err(Errno::NOTDIR.into());
    }
    Ok(accessat(CWD, folder, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)?)
}

/// The bytes of a file, at most `most`.
///
/// # Errors
/// [`FileError`].
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>, FileError> {
    read_bounded(open(path)?, most)
}

/// The bytes of a reader, such as standard input, at most `most`.
///
/// # Errors
/// [`FileError::Io`] and [`FileError::TooLarge`].
pub fn read_bounded(reader: impl Read, most: u64) -> Result<Vec<u8>, FileError> {
    let mut bytes = Vec::new();
    reader.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(FileError::TooLarge(most)) } else { Ok(bytes) }
}

fn open_with(path: &Path, flags: OFlags) -> Result<File, FileError> {
    match path.metadata() {
        // Checked before opening, because opening a device may have an effect.
        Ok(found) => check(found.file_type())?,
        Err(error) if error.kind() == io::ErrorKind::NotFound && flags.contains(OFlags::CREATE) => {}
        Err(error) => return Err(error.into()),
    }
    // The file may have been replaced since, and without NONBLOCK opening a FIFO waits for its other end
    // (open(2)).
    let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let file = rustix::fs::open(path, flags, Mode::from_raw_mode(0o666)).map_err(io::Error::from)?;
    let file = File::from(file);
    check(file.metadata()?.file_type())?;
    Ok(file)
}

fn check(kind: FileType) -> Result<(), FileError> {
    let others = [
        (kind.is_dir(), "a directory"),
        (kind.is_fifo(), "a FIFO"),
        (kind.is_socket(), "a socket"),
        (kind.is_char_device() || kind.is_block_device(), "a device"),
        (!kind.is_file(), "something else"),
    ];
    match others.into_iter().find(|(is_it, _)| *is_it) {
        Some((_, name)) => Err(FileError::NotRegular(name)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn what_could_be_made_is_found_without_making_it() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("new.pcap");
        check_create(&path).expect("the folder takes it");
        assert!(!path.exists());
        std::fs::write(&path, "content").expect("written");
        check_create(&path).expect("it can be written");
        assert_eq!(std::fs::read(&path).expect("read"), b"content");
        assert!(matches!(check_create(folder.path()), Err(FileError::NotRegular("a directory"))));
        let inside = path.join("x");
        for missing in [folder.path().join("none").join("x"), inside] {
            let error = check_create(&missing).expect_err("no folder");
            let made = create(&missing).expect_err("no folder");
            assert_eq!(error.to_string(), made.to_string());
        }
    }

    /// Nobody opens the other end of the FIFO, and the device has no end: a test that hangs is a failed one.
    #[test]
    fn only_regular_files_are_opened() {
        let folder = tempfile::tempdir().expect("folder");
        let (fifo, socket) = (folder.path().join("fifo"), folder.path().join("socket"));
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, mode).expect("a FIFO");
        let _listener = UnixListener::bind(&socket).expect("a socket");
        for (path, name) in [
            (folder.path(), "a directory"),
            (&fifo, "a FIFO"),
            (&socket, "a socket"),
            (Path::new("/dev/zero"), "a device"),
        ] {
            for opened in [open(path), create(path)] {
                assert!(
                    matches!(opened, Err(FileError::NotRegular(found)) if found == name),
                    "{name}: {opened:?}"
                );
            }
        }
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&fifo, &link).expect("a link");
        assert!(matches!(open(&link), Err(FileError::NotRegular("a FIFO"))), "what a link names counts");
        let missing = open(&folder.path().join("missing"));
        assert!(matches!(missing, Err(FileError::Io(error)) if error.kind() == io::ErrorKind::NotFound));
    }

    #[test]
    fn a_file_is_read_up_to_its_bound() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("file");
        std::fs::write(&path, [7; 100]).expect("written");
        assert_eq!(read(&path, 100).expect("read"), [7; 100]);
        assert!(matches!(read(&path, 99), Err(FileError::TooLarge(99))));
        // Its length is 0, as far as the file system tells.
        assert!(!read(Path::new("/proc/self/status"), 1 << 20).expect("read").is_empty());
        assert!(matches!(read_bounded(io::repeat(0), 9), Err(FileError::TooLarge(9))));
    }

    #[test]
    fn a_created_file_is_empty() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("file");
        for _ in 0..2 {
            create(&path).expect("created");
            assert_eq!(read(&path, 10).expect("read"), b"");
            std::fs::write(&path, "old").expect("written");
        }
    }
}

//! Opens and reads regular files that a user names.
//!
//! Directories, devices, FIFOs and sockets are refused: reading a device may never end, and opening a FIFO
//! waits for its other end. A file is read up to a bound, which holds while it is read, because it may grow.
//! Symbolic links are followed. On systems other than Unix, such as WASI, files are only read.
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

#[cfg(unix)]
mod unix;

use std::fs::{File, FileType};
use std::io::{self, Read};
use std::path::Path;

#[cfg(unix)]
pub use unix::{check_create, check_folder, create};

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
    #[cfg(unix)]
    return unix::open_with(path, rustix::fs::OFlags::RDONLY);
    #[cfg(not(unix))]
    {
        check(path.metadata()?.file_type())?;
        Ok(File::open(path)?)
    }
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

fn check(kind: FileType) -> Result<(), FileError> {
    #[cfg(unix)]
    let special = unix::special_file(kind);
    #[cfg(not(unix))]
    let special = None;
    let directory = kind.is_dir().then_some("a directory");
    match directory.or(special).or((!kind.is_file()).then_some("something else")) {
        Some(name) => Err(FileError::NotRegular(name)),
        None => Ok(()),
    }
}

#[cfg(all(test, unix))]
mod tests;

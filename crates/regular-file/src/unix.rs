//! Files of Unix: FIFOs, sockets and devices are told apart, and files are written.

use std::fs::{File, FileType};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, accessat};
use rustix::io::Errno;

use super::{FileError, check};

/// Opens a file for writing, without its old contents; it is created if it does not exist, with mode 0666
/// less the umask.
///
/// # Errors
/// The errors of [`open`](crate::open).
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

pub(super) fn open_with(path: &Path, flags: OFlags) -> Result<File, FileError> {
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

/// The name of a file that is neither a regular file nor a directory, with its article.
pub(super) fn special_file(kind: FileType) -> Option<&'static str> {
    let kinds = [
        (kind.is_fifo(), "a FIFO"),
        (kind.is_socket(), "a socket"),
        (kind.is_char_device() || kind.is_block_device(), "a device"),
    ];
    kinds.into_iter().find_map(|(is_it, name)| is_it.then_some(name))
}

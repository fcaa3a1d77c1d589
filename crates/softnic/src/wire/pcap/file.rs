//! Opens the files of captures, regular files only: opening a FIFO waits for its other end and reading a device may never
//! end, and while either lasts nothing ends the program that waits.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// Opens a capture for reading.
///
/// # Errors
/// It is no regular file, or the system refuses.
pub fn open_capture(path: &Path) -> io::Result<File> {
    open(path, OFlags::RDONLY)
}

/// Makes a file for sent packets, over one that may be there.
pub(super) fn create_capture(path: &Path) -> io::Result<File> {
    let file = open(path, OFlags::WRONLY | OFlags::CREATE)?;
    file.set_len(0)?;
    Ok(file)
}

fn open(path: &Path, flags: OFlags) -> io::Result<File> {
    match path.metadata() {
        // Before it is opened: opening a device may have an effect.
        Ok(found) => only_regular(found.file_type())?,
        Err(error) if error.kind() == io::ErrorKind::NotFound && flags.contains(OFlags::CREATE) => {}
        Err(error) => return Err(error),
    }
    // NONBLOCK: a FIFO may have taken its place meanwhile (open(2)).
    let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::from_raw_mode(0o666))?);
    only_regular(file.metadata()?.file_type())?;
    Ok(file)
}

fn only_regular(kind: std::fs::FileType) -> io::Result<()> {
    if kind.is_file() {
        return Ok(());
    }
    let problem =
        "it is not a regular file (hint: pipes and devices are not read or written; save the capture first)";
    Err(io::Error::new(io::ErrorKind::InvalidInput, problem))
}

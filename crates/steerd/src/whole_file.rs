//! A file that is at its place as a whole or not at all: it is written beside it, and renamed. Only its owner
//! may read it.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A file that is being written. Dropping it removes what is written.
#[derive(Debug)]
pub(crate) struct WholeFile {
    writer: BufWriter<File>,
    /// `None`: it is written in place, as a device or a pipe cannot be replaced.
    renamed: Option<Renamed>,
}

#[derive(Debug)]
struct Renamed {
    partial: PathBuf,
    place: PathBuf,
}

impl WholeFile {
    /// Begins a file that replaces the one at `place`.
    pub(crate) fn create(place: &Path) -> io::Result<Self> {
        if fs::symlink_metadata(place).is_ok_and(|found| !found.is_file()) {
            return Ok(Self { writer: BufWriter::new(File::create(place)?), renamed: None });
        }
        let mut partial = OsString::from(place);
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        // A file that is there keeps its mode.
        match fs::remove_file(&partial) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&partial)?;
        let renamed = Some(Renamed { partial, place: place.to_owned() });
        Ok(Self { writer: BufWriter::new(file), renamed })
    }

    /// Puts it in its place.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.writer.flush()?;
        if let Some(Renamed { partial, place }) = &self.renamed {
            fs::rename(partial, place)?;
        }
        self.renamed = None;
        Ok(())
    }
}

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

impl Drop for WholeFile {
    fn drop(&mut self) {
        if let Some(Renamed { partial, .. }) = &self.renamed {
            let _ = fs::remove_file(partial);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_file_appears_only_when_finished() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = folder.path().join("x.pcapng");
        fs::write(&place, "old").expect("written");
        let mut file = WholeFile::create(&place).expect("created");
        file.write_all(b"ne").expect("written");
        drop(file);
        assert_eq!(fs::read(&place).expect("there"), b"old");
        let mut file = WholeFile::create(&place).expect("created");
        file.write_all(b"new").expect("written");
        assert_eq!(fs::read(&place).expect("there"), b"old");
        file.finish().expect("renamed");
        assert_eq!(fs::read(&place).expect("there"), b"new");
        assert_eq!(fs::metadata(&place).expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }

    #[test]
    fn a_link_is_written_through() {
        let folder = tempfile::tempdir().expect("a folder");
        let (place, link) = (folder.path().join("x"), folder.path().join("link"));
        symlink(&place, &link).expect("a link");
        let mut file = WholeFile::create(&link).expect("created");
        file.write_all(b"new").expect("written");
        file.finish().expect("written");
        assert_eq!(fs::read(&place).expect("there"), b"new");
        assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
    }
}

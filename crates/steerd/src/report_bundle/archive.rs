//! The file of a bundle: tar in gzip, for its owner alone, which appears whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use tar::{Builder, Header};

use super::{BundleError, ReportBundle};

/// The permissions of the file, and of those in it.
const MODE: u32 = 0o600;
/// The folder in the archive.
const FOLDER: &str = "steerd-report";

/// Writes a bundle to a file. `force`: whether a file of this name is replaced.
///
/// # Errors
/// The file exists, or cannot be written. Nothing is left behind then.
pub(crate) fn write(bundle: &ReportBundle, path: &Path, force: bool) -> Result<(), BundleError> {
    let failed = |source| BundleError::Write { path: path.to_owned(), source };
    if !force && path.symlink_metadata().is_ok() {
        return Err(BundleError::Exists(path.to_owned()));
    }
    let packed = packed(bundle).map_err(failed)?;
    let unfinished = beside(path)?;
    // A file of this name is not that of this process.
    let file = create_new(&unfinished).map_err(failed)?;
    let named = match written(file, &packed) {
        Ok(()) => take_place(&unfinished, path, force).map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists if !force => BundleError::Exists(path.to_owned()),
            _ => failed(source),
        }),
        Err(source) => Err(failed(source)),
    };
    if named.is_err() {
        // The file has its name already if only the second name of a link could not be removed.
        let _ = fs::remove_file(&unfinished);
    }
    named
}

/// A name in the same folder, so that the file can be renamed.
fn beside(path: &Path) -> Result<PathBuf, BundleError> {
    let name = path.file_name().ok_or_else(|| BundleError::NoName(path.to_owned()))?;
    Ok(path.with_file_name(format!(".{}.{}", name.to_string_lossy(), std::process::id())))
}

fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(MODE).open(path)
}

fn written(mut file: File, bytes: &[u8]) -> io::Result<()> {
    file.write_all(bytes)?;
    file.sync_all()
}

/// Gives a file its name. Without `force` the kernel refuses a name that was taken meanwhile.
fn take_place(unfinished: &Path, path: &Path, force: bool) -> io::Result<()> {
    if force {
        return fs::rename(unfinished, path);
    }
    match renameat_with(CWD, unfinished, CWD, path, RenameFlags::NOREPLACE) {
        // A file system without this flag: link(2) never replaces a file either.
        Err(Errno::INVAL | Errno::NOSYS) => {
            fs::hard_link(unfinished, path)?;
            fs::remove_file(unfinished)
        }
        renamed => Ok(renamed?),
    }
}

/// The bytes of the archive.
fn packed(bundle: &ReportBundle) -> io::Result<Vec<u8>> {
    let mut archive = Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    for (name, text) in bundle.files() {
        let mut header = Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(MODE);
        header.set_cksum();
        archive.append_data(&mut header, format!("{FOLDER}/{name}"), text.as_bytes())?;
    }
    archive.into_inner()?.finish()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::report_bundle::address_map::AddressMap;
    use crate::report_bundle::redactor::Redactor;
    use crate::report_bundle::{RawBundle, RawPart};

    fn bundle(text: &str) -> ReportBundle {
        let parts = vec![("a.txt".to_owned(), RawPart::Text(text.to_owned()))];
        ReportBundle::of(RawBundle { parts, redactor: Redactor::new(AddressMap::with_key(1)) })
    }

    /// The files of an archive by their names.
    fn unpacked(path: &Path) -> Vec<(String, String)> {
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(File::open(path).expect("opened")));
        let entries = archive.entries().expect("an archive");
        let file = |entry: io::Result<tar::Entry<'_, _>>| {
            let mut entry = entry.expect("an entry");
            let name = entry.path().expect("a path").display().to_string();
            let mut text = String::new();
            entry.read_to_string(&mut text).expect("a text");
            (name, text)
        };
        entries.map(file).collect()
    }

    #[test]
    fn the_file_is_for_its_owner_and_whole() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("report.tar.gz");
        write(&bundle("at 10.1.2.3\n"), &path, false).expect("written");
        let mode = path.metadata().expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let files = unpacked(&path);
        let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["steerd-report/manifest.txt", "steerd-report/a.txt"]);
        assert!(files[1].1.starts_with("at ") && !files[1].1.contains("10.1.2.3"), "{files:?}");
        assert_eq!(fs::read_dir(folder.path()).expect("folder").count(), 1, "no unfinished file");
    }

    #[test]
    fn a_file_is_replaced_by_force_alone() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("report.tar.gz");
        fs::write(&path, "mine").expect("written");
        let refused = write(&bundle("x"), &path, false).expect_err("it exists");
        assert!(refused.to_string().contains("--force"), "{refused}");
        assert_eq!(fs::read_to_string(&path).expect("read"), "mine");
        // A name that was taken after it was looked at.
        let late = folder.path().join("late");
        fs::write(&late, "new").expect("written");
        assert_eq!(take_place(&late, &path, false).expect_err("taken").kind(), io::ErrorKind::AlreadyExists);
        write(&bundle("x"), &path, true).expect("replaced");
        assert_eq!(unpacked(&path).len(), 2);
        let lost = folder.path().join("no-such-folder/report.tar.gz");
        assert!(matches!(write(&bundle("x"), &lost, false), Err(BundleError::Write { .. })));
        assert!(matches!(write(&bundle("x"), Path::new("/"), true), Err(BundleError::NoName(_))));
    }
}

//! The files of a host below one root: `/`, or the folder of a test. Reading tells apart a file that is not
//! there, one that cannot be read, and one whose text is not as expected.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use crate::daemon::placement::CoreSet;

/// The most bytes of a file that are read.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The most entries of a folder that are listed: a process has one in /proc.
const ENTRIES_MAX: usize = 1 << 20;
/// The most characters of an unexpected text that are shown.
const SHOWN_CHARS: usize = 40;

/// The files of a host.
#[derive(Clone, Debug)]
pub(crate) struct SystemFiles {
    root: PathBuf,
}

/// A file that is there and was not understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnreadFile {
    /// The path on the host.
    pub(crate) path: String,
    pub(crate) why: String,
    /// The right, or the change, with which it can be read.
    pub(crate) remedy: String,
}

impl SystemFiles {
    /// The files of this host.
    pub(crate) fn of_host() -> Self {
        Self::below("/")
    }

    /// The files below a folder that stands for the root of a host.
    pub(crate) fn below(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The root.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The place of a path of the host.
    pub(crate) fn place(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Returns whether there is such a file or folder.
    ///
    /// # Errors
    /// A folder above it cannot be searched.
    pub(crate) fn exists(&self, path: &str) -> Result<bool, UnreadFile> {
        self.place(path).try_exists().map_err(|error| unread(path, &error))
    }

    /// The bytes of a file; `None`: it is not there.
    ///
    /// # Errors
    /// The file cannot be read, or is too long.
    pub(crate) fn bytes(&self, path: &str) -> Result<Option<Vec<u8>>, UnreadFile> {
        let mut bytes = Vec::new();
        let read = File::open(self.place(path)).and_then(|file| {
            let read = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
            if read as u64 > FILE_BYTES_MAX { Err(ErrorKind::FileTooLarge.into()) } else { Ok(()) }
        });
        match read {
            Ok(()) => Ok(Some(bytes)),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(unread(path, &error)),
        }
    }

    /// The text of a file without blanks around it; `None`: it is not there.
    ///
    /// # Errors
    /// The file cannot be read, or is no text.
    pub(crate) fn text(&self, path: &str) -> Result<Option<String>, UnreadFile> {
        let Some(bytes) = self.bytes(path)? else { return Ok(None) };
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Some(text.trim().to_owned())),
            Err(_) => Err(malformed(path, "its bytes", "UTF-8")),
        }
    }

    /// The value in a file; `None`: the file is not there. `expected`: the form of the text, for the message.
    ///
    /// # Errors
    /// The file cannot be read, or `parse` does not accept its text.
    pub(crate) fn parsed<T>(
        &self,
        path: &str,
        expected: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, UnreadFile> {
        let Some(text) = self.text(path)? else { return Ok(None) };
        match parse(&text) {
            Some(value) => Ok(Some(value)),
            None => Err(malformed(path, &format!("`{}`", shortened(&text)), expected)),
        }
    }

    /// The number in a file.
    ///
    /// # Errors
    /// The number in a file; errors are those of [`Self::parsed`].
    pub(crate) fn number(&self, path: &str) -> Result<Option<u64>, UnreadFile> {
        self.parsed(path, "a number", |text| text.parse().ok())
    }

    /// The list of cores in a file; `(null)` and an empty text are none of them.
    ///
    /// # Errors
    /// The list of cores in a file; errors are those of [`Self::parsed`].
    pub(crate) fn cores(&self, path: &str) -> Result<Option<CoreSet>, UnreadFile> {
        self.parsed(path, "a list of cores", |text| match text {
            // nohz_full without such cores (drivers/base/cpu.c, `print_cpus_nohz_full`).
            "(null)" => CoreSet::of_list(""),
            list => CoreSet::of_list(list),
        })
    }

    /// The names in a folder, in order; `None`: it is not there.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub(crate) fn names(&self, path: &str) -> Result<Option<Vec<String>>, UnreadFile> {
        let entries = match fs::read_dir(self.place(path)) {
            Ok(entries) => entries,
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) => return Err(unread(path, &error)),
        };
        let mut names = Vec::new();
        for entry in entries.take(ENTRIES_MAX) {
            let entry = entry.map_err(|error| unread(path, &error))?;
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(Some(names))
    }

    /// The last part of the target of a link; `None`: there is no link.
    ///
    /// # Errors
    /// The link cannot be read.
    pub(crate) fn link_name(&self, path: &str) -> Result<Option<String>, UnreadFile> {
        match fs::read_link(self.place(path)) {
            Ok(target) => Ok(target.file_name().map(|name| name.to_string_lossy().into_owned())),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(unread(path, &error)),
        }
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

fn unread(path: &str, error: &io::Error) -> UnreadFile {
    UnreadFile { path: path.to_owned(), why: error.to_string(), remedy: remedy(error) }
}

fn malformed(path: &str, found: &str, expected: &str) -> UnreadFile {
    UnreadFile {
        path: path.to_owned(),
        why: format!("{found} is not {expected}"),
        remedy: "report it with `steerd report`: this kernel writes another format".to_owned(),
    }
}

/// The right with which something can be read that was refused with this error.
pub(super) fn remedy(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::PermissionDenied => "run `steerd doctor` as root".to_owned(),
        ErrorKind::Unsupported => {
            "the kernel or the driver does not answer this; look there by hand".to_owned()
        }
        _ => "see the error; in a container /sys and /proc must be those of the host".to_owned(),
    }
}

fn shortened(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    line.chars().take(SHOWN_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_unreadable_and_malformed_differ() {
        let folder = tempfile::tempdir().expect("folder");
        let files = SystemFiles::below(folder.path());
        fs::create_dir_all(folder.path().join("sys/folder")).expect("made");
        fs::write(folder.path().join("sys/number"), "12\n").expect("written");
        fs::write(folder.path().join("sys/list"), "0-3,8\n").expect("written");
        fs::write(folder.path().join("sys/null"), "(null)\n").expect("written");
        fs::write(folder.path().join("sys/bytes"), [0xff, 0xfe]).expect("written");
        assert_eq!(files.number("/sys/number"), Ok(Some(12)));
        assert_eq!(files.number("/sys/absent"), Ok(None));
        assert_eq!(files.number("/sys/number/below"), Ok(None), "no folder");
        let refused = files.number("/sys/list").expect_err("a list");
        assert_eq!((refused.path.as_str(), refused.why.as_str()), ("/sys/list", "`0-3,8` is not a number"));
        assert!(files.text("/sys/folder").expect_err("a folder").why.contains("directory"));
        assert!(files.text("/sys/bytes").expect_err("no text").why.contains("UTF-8"));
        let cores = files.cores("/sys/list").expect("read").expect("there");
        assert_eq!(cores.to_string(), "0-3,8");
        assert_eq!(files.cores("/sys/null"), Ok(Some(CoreSet::default())));
        assert_eq!(files.names("/sys").expect("read").map(|names| names.len()), Some(5));
        assert_eq!(files.names("/proc"), Ok(None));
    }

    #[test]
    fn long_files_are_not_read() {
        let folder = tempfile::tempdir().expect("folder");
        fs::write(folder.path().join("long"), vec![b'1'; FILE_BYTES_MAX as usize + 1]).expect("written");
        assert!(SystemFiles::below(folder.path()).bytes("/long").is_err());
    }

    #[test]
    fn a_denied_file_needs_root() {
        let denied = io::Error::from(ErrorKind::PermissionDenied);
        assert_eq!(unread("/proc/x", &denied).remedy, "run `steerd doctor` as root");
    }
}

//! The texts of policies and the loaders that read them. The parser reads files only through a [`SetLoader`].

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The largest policy or set file that is read, in bytes.
pub const MAX_FILE_BYTES: u64 = 64 << 20;
/// The highest column that is reported; counting further takes time, and nobody reads such a line.
const MAX_COLUMN: usize = 1 << 16;

/// A named text.
#[derive(Clone, Debug)]
pub struct Source {
    /// The name in diagnostics, usually the path.
    pub name: String,
    /// The whole text.
    pub text: String,
    /// The offsets of the lines, computed on first use.
    lines: OnceLock<Vec<usize>>,
    /// Set if diagnostics may show its text.
    may_be_quoted: OnceLock<()>,
    /// Whether a place in it has a line and a column.
    has_lines: bool,
}

impl Source {
    /// A text and its name in diagnostics.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Self {
        let may_be_quoted = OnceLock::from(());
        Self { name: name.into(), text: text.into(), lines: OnceLock::new(), may_be_quoted, has_lines: true }
    }

    /// A text without lines, such as an environment variable or an option of the command line: its
    /// diagnostics have its name as their place.
    #[must_use]
    pub fn value(name: impl Into<String>, text: impl Into<String>) -> Self {
        Self { has_lines: false, ..Self::new(name, text) }
    }

    pub(crate) fn has_lines(&self) -> bool {
        self.has_lines
    }

    /// Returns the text as one that diagnostics do not quote until [`quote`](Self::quote) is called.
    ///
    /// A policy may name any file as a set or an include, and the daemon that reads it may be root. Messages
    /// go to logs that other users read, so they give the place in such a file and not its content. The same
    /// goes for any other file that need not be what it is taken for.
    #[must_use]
    pub fn unquoted(self) -> Self {
        Self { may_be_quoted: OnceLock::new(), ..self }
    }

    /// Allows diagnostics to show the text, also those that exist already.
    pub fn quote(&self) {
        // An error means that it is set already.
        let _ = self.may_be_quoted.set(());
    }

    pub(crate) fn may_be_quoted(&self) -> bool {
        self.may_be_quoted.get().is_some()
    }

    /// The line, from 1, of a byte offset.
    #[must_use]
    pub fn line(&self, offset: usize) -> u32 {
        let before = self.line_starts().partition_point(|start| *start <= offset);
        u32::try_from(before).unwrap_or(u32::MAX)
    }

    /// Line and column (characters), both from 1, of a byte offset.
    #[must_use]
    pub fn position(&self, offset: usize) -> (u32, u32) {
        let mut offset = offset.min(self.text.len());
        while !self.text.is_char_boundary(offset) {
            offset -= 1;
        }
        let line = self.line(offset);
        let start = self.line_starts().get(line.saturating_sub(1) as usize).copied().unwrap_or(0);
        let column =
            self.text.get(start..offset).map_or(0, |before| before.chars().take(MAX_COLUMN).count()) + 1;
        (line, u32::try_from(column).unwrap_or(u32::MAX))
    }

    fn line_starts(&self) -> &[usize] {
        self.lines.get_or_init(|| {
            let newlines = self.text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
            std::iter::once(0).chain(newlines.map(|(at, _)| at + 1)).collect()
        })
    }
}

impl PartialEq for Source {
    fn eq(&self, other: &Self) -> bool {
        (&self.name, &self.text) == (&other.name, &other.text)
    }
}

impl Eq for Source {}

/// Loads the files that a policy includes and that its sets name.
pub trait SetLoader {
    /// The text of `file`, as written in the policy.
    ///
    /// # Errors
    /// The error becomes a diagnostic at the place that names the file.
    fn load(&self, file: &str) -> io::Result<Source>;
}

/// Refuses every file, for policies that must not read any.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFiles;

impl SetLoader for NoFiles {
    fn load(&self, _file: &str) -> io::Result<Source> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "this policy may not read files"))
    }
}

/// Loads files from the file system.
#[derive(Clone, Debug)]
pub struct Folder(
    /// The directory of relative names.
    pub PathBuf,
);

impl SetLoader for Folder {
    fn load(&self, file: &str) -> io::Result<Source> {
        read(&self.0.join(file))
    }
}

impl SetLoader for BTreeMap<String, String> {
    fn load(&self, file: &str) -> io::Result<Source> {
        let text = self.get(file).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no such file"))?;
        Ok(Source::new(file, text.clone()))
    }
}

/// The reason why a text cannot be read.
#[derive(Debug)]
pub(crate) enum Unreadable {
    /// The file cannot be read, or is too large.
    File(regular_file::FileError),
    /// The file is not UTF-8.
    NotUtf8 {
        /// The text before the first invalid byte, followed by U+FFFD.
        text: String,
        /// The offset of the first invalid byte.
        at: usize,
        /// Whether it begins with the byte order mark of UTF-16.
        is_utf16: bool,
    },
}

/// The remedy for a text in another encoding.
pub(crate) const SAVE_AS_UTF8: &str =
    "save it as UTF-8; `iconv -f latin1 -t utf-8 FILE` converts a Latin-1 file";

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(regular_file::FileError::TooLarge(most)) => {
                write!(f, "more than the {most} bytes that a policy file may have")
            }
            Self::File(error) => error.fmt(f),
            Self::NotUtf8 { is_utf16: true, .. } => f.write_str("this is UTF-16: save it as UTF-8"),
            Self::NotUtf8 { text, at, .. } => {
                let (line, column) = Source::new("", text.as_str()).position(*at);
                write!(f, "line {line}, column {column}: this byte is not UTF-8: {SAVE_AS_UTF8}")
            }
        }
    }
}

impl std::error::Error for Unreadable {}

impl From<regular_file::FileError> for Unreadable {
    fn from(error: regular_file::FileError) -> Self {
        Self::File(error)
    }
}

/// Reads a file for a loader; errors name the path.
fn read(path: &Path) -> io::Result<Source> {
    let name = path.display().to_string();
    let text = read_text(path).map_err(|error| {
        let problem = format!("{name}: {error}");
        let kind = match error {
            Unreadable::File(error) => io::Error::from(error).kind(),
            Unreadable::NotUtf8 { .. } => io::ErrorKind::InvalidData,
        };
        io::Error::new(kind, problem)
    })?;
    Ok(Source::new(name, text))
}

fn read_text(path: &Path) -> Result<String, Unreadable> {
    text_of(regular_file::read(path, MAX_FILE_BYTES)?)
}

/// The bytes as text.
pub(crate) fn text_of(bytes: Vec<u8>) -> Result<String, Unreadable> {
    let is_utf16 = bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]);
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let mut bytes = error.into_bytes();
        bytes.truncate(at);
        let mut text = String::from_utf8(bytes).unwrap_or_default();
        text.push(char::REPLACEMENT_CHARACTER);
        Unreadable::NotUtf8 { text, at, is_utf16 }
    })
}

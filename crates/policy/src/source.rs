//! Where policy text comes from. The compiler itself does no I/O: `load` reads files through these,
//! tests hand in text.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The largest policy or set file that is read, in bytes.
pub const MAX_FILE_BYTES: u64 = 64 << 20;
/// Columns are not counted further: a line this long is not read by people.
const MAX_COLUMN: usize = 1 << 16;

/// A named text.
#[derive(Clone, Debug)]
pub struct Source {
    /// What diagnostics call it, usually the path.
    pub name: String,
    /// The whole text.
    pub text: String,
    /// Where each line begins; found when first asked for, since a policy has a place for every rule.
    lines: OnceLock<Vec<usize>>,
}

impl Source {
    /// A text with the name that diagnostics are to give it.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Self {
        Self { name: name.into(), text: text.into(), lines: OnceLock::new() }
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

/// Gives the text of the files that a policy's sets name.
pub trait SetLoader {
    /// The text of `file`, as written in the policy.
    ///
    /// # Errors
    /// Whatever keeps it from being read; becomes a diagnostic at the place that names the file.
    fn load(&self, file: &str) -> io::Result<Source>;
}

/// Refuses every file: for policies that must stand alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFiles;

impl SetLoader for NoFiles {
    fn load(&self, _file: &str) -> io::Result<Source> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "this policy may not read files"))
    }
}

/// Files beside the policy.
#[derive(Clone, Debug)]
pub struct Folder(
    /// What relative names are relative to.
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

/// Reads one file, refusing what is no file or too large to be a policy; errors name the path.
pub(crate) fn read(path: &Path) -> io::Result<Source> {
    let name = path.display().to_string();
    let text =
        read_bounded(path).map_err(|error| io::Error::new(error.kind(), format!("{name}: {error}")))?;
    Ok(Source::new(name, text))
}

/// Whatever the metadata say: a file may grow while it is read, and devices have no length.
fn read_bounded(path: &Path) -> io::Result<String> {
    // Before it is opened, since opening a FIFO waits for a writer.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "this is not a regular file"));
    }
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let problem = format!("more than the {MAX_FILE_BYTES} bytes that a policy file may have");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, problem));
    }
    String::from_utf8(bytes).map_err(|error| {
        let (good, bytes) = (error.utf8_error().valid_up_to(), error.as_bytes());
        io::Error::new(io::ErrorKind::InvalidData, not_utf8(bytes, good))
    })
}

/// Where a text stops being one; `good` bytes of it are.
fn not_utf8(bytes: &[u8], good: usize) -> String {
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return "this is UTF-16: save it as UTF-8".to_owned();
    }
    let line = bytes[..good].iter().filter(|byte| **byte == b'\n').count() + 1;
    let byte = bytes.get(good).copied().unwrap_or_default();
    format!("byte {byte:#04x} on line {line} is not UTF-8: save it as UTF-8")
}

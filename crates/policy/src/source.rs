//! Where policy text comes from. The compiler itself does no I/O: `load` reads files through these,
//! tests hand in text.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// The largest policy or set file that is read, in bytes.
pub const MAX_FILE_BYTES: u64 = 64 << 20;

/// A named text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// What diagnostics call it, usually the path.
    pub name: String,
    /// The whole text.
    pub text: String,
}

impl Source {
    /// A text with the name that diagnostics are to give it.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Self {
        Self { name: name.into(), text: text.into() }
    }

    /// Line and column (characters), both from 1, of a byte offset.
    #[must_use]
    pub fn position(&self, offset: usize) -> (u32, u32) {
        let mut offset = offset.min(self.text.len());
        while !self.text.is_char_boundary(offset) {
            offset -= 1;
        }
        let before = &self.text[..offset];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
        let column = before[line_start..].chars().count() + 1;
        (u32::try_from(line).unwrap_or(u32::MAX), u32::try_from(column).unwrap_or(u32::MAX))
    }
}

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

/// Reads one file, refusing what is too large to be a policy.
pub(crate) fn read(path: &Path) -> io::Result<Source> {
    let bytes = std::fs::metadata(path)?.len();
    if bytes > MAX_FILE_BYTES {
        let problem = format!("{bytes} bytes are more than the {MAX_FILE_BYTES} that a policy file may have");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, problem));
    }
    Ok(Source::new(path.display().to_string(), std::fs::read_to_string(path)?))
}

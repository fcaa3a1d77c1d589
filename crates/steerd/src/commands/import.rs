//! `steerd import`: converts rules of other tools to a policy. Unsupported lines are reported on stderr and stay in the
//! policy as comments. Reads files and standard input; no device is used.

use std::fs;
use std::path::Path;

use policy::import::{Imported, NftOptions, classbench, ethtool, nft};
use serde::Serialize;

use crate::cli::{Format, Import, ImportArgs};
use crate::error::Error;
use crate::policy_file::STANDARD_INPUT;
use crate::terminal::output;

/// The most input, as much as a policy may have.
const MAX_INPUT_BYTES: u64 = policy::MAX_FILE_BYTES;

/// Described in docs/reference/commands.md.
#[derive(Serialize)]
struct Answer<'a> {
    policy: &'a str,
    notes: Vec<Unsupported>,
}

/// A line that is not supported.
#[derive(Serialize)]
struct Unsupported {
    file: String,
    line: u32,
    message: String,
}

pub(crate) fn run(args: &ImportArgs) -> Result<(), Error> {
    let mut input = Input::default();
    args.files.iter().try_for_each(|path| input.add(path))?;
    let imported = match args.kind {
        Import::Classbench => classbench(&input.text),
        Import::Ethtool => ethtool(&input.text),
        Import::Nft => nft(&input.text, &NftOptions::default()),
    };
    let Imported { policy_toml, notes } = imported.map_err(|wrong| {
        let (file, line) = input.place(wrong.line);
        Error::Import { path: file.into(), message: format!("line {line}: {}", wrong.message) }
    })?;
    if args.format == Format::Json {
        let place = |note: &policy::import::Note| {
            let (file, line) = input.place(note.line);
            Unsupported { file: file.to_owned(), line, message: note.message.clone() }
        };
        let answer = Answer { policy: &policy_toml, notes: notes.iter().map(place).collect() };
        return output::print_json(&answer);
    }
    match &args.output {
        None => output::print(&policy_toml)?,
        Some(path) => fs::write(path, &policy_toml).map_err(|error| Error::Import {
            path: path.clone(),
            message: format!("cannot write: {error}"),
        })?,
    }
    for note in &notes {
        let (file, line) = input.place(note.line);
        output::print_error(&format!("{file}:{line}: {}", note.message));
    }
    Ok(())
}

/// The input files as one text, and the line at which each begins.
#[derive(Default)]
struct Input {
    text: String,
    /// Names and first lines, counted from 1.
    files: Vec<(String, u32)>,
}

impl Input {
    fn add(&mut self, path: &Path) -> Result<(), Error> {
        let refused = |message: String| Error::Import { path: path.to_owned(), message };
        let is_stdin = path == Path::new("-");
        let left = MAX_INPUT_BYTES.saturating_sub(self.text.len() as u64);
        let read = match is_stdin {
            true => regular_file::read_bounded(std::io::stdin(), left),
            false => regular_file::read(path, left),
        };
        let bytes = read.map_err(|error| match error {
            regular_file::Error::TooLarge(_) => refused(format!("more than {MAX_INPUT_BYTES} bytes in all")),
            regular_file::Error::NotRegular(_) => {
                refused(format!("cannot read: {error} (hint: - is standard input)"))
            }
            error => refused(format!("cannot read: {error}")),
        })?;
        if !self.text.is_empty() && !self.text.ends_with('\n') {
            self.text.push('\n');
        }
        let line = u32::try_from(self.text.lines().count()).unwrap_or(u32::MAX).saturating_add(1);
        let name = if is_stdin { STANDARD_INPUT.to_owned() } else { path.display().to_string() };
        self.files.push((name, line));
        // Bytes that are not UTF-8 are in comments, or make the line unsupported.
        self.text.push_str(&String::from_utf8_lossy(&bytes));
        Ok(())
    }

    /// The file of a line, and the line number in it.
    fn place(&self, line: u32) -> (&str, u32) {
        let file = self.files.iter().rev().find(|(_, first)| *first <= line);
        file.map_or(("", line), |(name, first)| (name, line - first + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_located_in_its_own_file() {
        let folder = tempfile::tempdir().expect("folder");
        let (a, b) = (folder.path().join("a"), folder.path().join("b"));
        fs::write(&a, "one\ntwo").expect("written");
        fs::write(&b, "three\n").expect("written");
        let mut input = Input::default();
        input.add(&a).expect("read");
        input.add(&b).expect("read");
        assert_eq!(input.text, "one\ntwo\nthree\n");
        assert_eq!(input.place(2), (a.display().to_string().as_str(), 2));
        assert_eq!(input.place(3), (b.display().to_string().as_str(), 1));
    }
}

//! `includes`: finding the files of a policy. Each is read once, those that a file includes before itself;
//! names are relative to the file that says them. Reads only through the loader.

use std::collections::BTreeSet;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, OnceLock};

use toml::Spanned;
use toml::de::DeTable;

use crate::source::{MAX_FILE_BYTES, SetLoader, Source};

use super::not_toml::{self, Found};
use super::reader::{Reader, Value};
use super::variables::Variables;

/// The most files of one policy, sets not counted.
pub const MAX_INCLUDED_FILES: usize = 256;
/// How deep files may include one another.
pub const MAX_INCLUDE_DEPTH: usize = 8;
/// The most bytes that the files of a policy have together, its set files counted.
pub const MAX_TOTAL_BYTES: u64 = 4 * MAX_FILE_BYTES;

/// Room for the texts, so that the trees may borrow from them.
pub(super) struct Shelf(Vec<OnceLock<Arc<Source>>>);

impl Shelf {
    pub(super) fn new() -> Self {
        Self((0..MAX_INCLUDED_FILES).map(|_| OnceLock::new()).collect())
    }
}

/// One file of a policy.
pub(super) struct File<'t> {
    pub(super) source: Arc<Source>,
    /// What names in it are relative to; empty for the main file's folder.
    pub(super) folder: PathBuf,
    pub(super) document: DeTable<'t>,
}

/// Loads for one folder, within the bytes that are left.
pub(super) struct Files<'l> {
    pub(super) loader: &'l dyn SetLoader,
    pub(super) folder: PathBuf,
    bytes_left: u64,
}

impl<'l> Files<'l> {
    pub(super) fn new(loader: &'l dyn SetLoader) -> Self {
        Self { loader, folder: PathBuf::new(), bytes_left: MAX_TOTAL_BYTES }
    }

    /// The text of a file, named as in a file of `self.folder`.
    pub(super) fn load(&mut self, name: &str) -> io::Result<Source> {
        if name.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "its name is empty"));
        }
        // Loaders that are no file system know a name by one spelling.
        let path: PathBuf =
            self.folder.join(name).components().filter(|part| *part != Component::CurDir).collect();
        let source = self.loader.load(&path.to_string_lossy())?;
        match self.bytes_left.checked_sub(source.text.len() as u64) {
            Some(left) => {
                self.bytes_left = left;
                Ok(source)
            }
            None => {
                let problem =
                    format!("{name}: the policy's files have more than {MAX_TOTAL_BYTES} bytes together");
                Err(io::Error::new(io::ErrorKind::FileTooLarge, problem))
            }
        }
    }
}

/// The walk through the files.
pub(super) struct Walk<'t, 'r, 'l> {
    shelf: &'t Shelf,
    reader: &'r mut Reader,
    files: &'r mut Files<'l>,
    variables: &'r mut Variables<'t>,
    found: Vec<File<'t>>,
    /// From the main file down to the one that is being read.
    path: Vec<Arc<Source>>,
    /// How each file is told from others.
    seen: BTreeSet<PathBuf>,
    taken: usize,
}

impl<'t, 'r, 'l> Walk<'t, 'r, 'l> {
    pub(super) fn new(
        shelf: &'t Shelf,
        reader: &'r mut Reader,
        files: &'r mut Files<'l>,
        variables: &'r mut Variables<'t>,
    ) -> Self {
        let (found, path, seen) = (Vec::new(), Vec::new(), BTreeSet::new());
        Self { shelf, reader, files, variables, found, path, seen, taken: 0 }
    }

    /// All files that can be read, in the order in which their rules are; what cannot is reported, and the
    /// reader knows of it.
    pub(super) fn all(mut self, main: Arc<Source>) -> Vec<File<'t>> {
        self.visit(main, PathBuf::new());
        self.found
    }

    fn visit(&mut self, source: Arc<Source>, folder: PathBuf) {
        let Some(slot) = self.shelf.0.get(self.taken) else { return };
        self.taken += 1;
        let source = slot.get_or_init(|| source);
        self.reader.source = Arc::clone(source);
        self.seen.insert(identity(source));
        let Some(document) = self.document(&source.text) else {
            self.reader.is_whole = false;
            return;
        };
        let mut document = document.into_inner();
        if let Some(value) = document.get("variables") {
            self.variables.define(self.reader, value);
        }
        let includes = document.get_mut("includes").map(|includes| {
            // Only what is known so far: the files themselves may depend on it.
            self.variables.substitute(self.reader, includes);
            includes.clone()
        });
        self.path.push(Arc::clone(source));
        if let Some(includes) = includes {
            self.include(&includes, source, &folder);
        }
        self.path.pop();
        self.found.push(File { source: Arc::clone(source), folder, document });
    }

    fn document(&mut self, text: &'t str) -> Option<Spanned<DeTable<'t>>> {
        let (document, errors) = DeTable::parse_recoverable(text);
        let found =
            errors.iter().map(|error| Found { message: error.message(), span: error.span().unwrap_or(0..0) });
        not_toml::report(self.reader, text, &found.collect::<Vec<_>>());
        errors.is_empty().then_some(document)
    }

    fn include(&mut self, includes: &Value<'t>, source: &Arc<Source>, folder: &Path) {
        let Some(list) = self.reader.array(includes, "`includes`") else {
            self.reader.is_whole = false;
            return;
        };
        for value in list {
            self.reader.source = Arc::clone(source);
            let Some(name) = self.reader.string(value, "an included file") else {
                self.reader.is_whole = false;
                continue;
            };
            if self.path.len() > MAX_INCLUDE_DEPTH {
                let message = format!("files include one another more than {MAX_INCLUDE_DEPTH} deep");
                self.reader.error_with(value.span(), message, "too deep", "include it further up");
                self.reader.is_whole = false;
                return;
            }
            if self.taken >= MAX_INCLUDED_FILES {
                let message = format!("a policy has at most {MAX_INCLUDED_FILES} files");
                self.reader.error(value.span(), message, "too many");
                self.reader.is_whole = false;
                return;
            }
            self.files.folder = folder.to_owned();
            match self.files.load(name) {
                Ok(included) => self.included(included, value, &folder.join(name)),
                Err(error) => {
                    let message = format!("cannot read the included file: {error}");
                    let hint = "the name is relative to the file that says it";
                    self.reader.error_with(value.span(), message, "named here", hint);
                    self.reader.is_whole = false;
                }
            }
        }
        self.reader.source = Arc::clone(source);
    }

    /// Reads a file that was just loaded, unless it was read before.
    fn included(&mut self, included: Source, value: &Value<'_>, path: &Path) {
        let name = identity(&included);
        if let Some(first) = self.path.iter().position(|source| identity(source) == name) {
            let chain = self.path[first..].iter().map(|source| format!("`{}`", source.name));
            let chain: Vec<String> = chain.chain([format!("`{}`", included.name)]).collect();
            let message = format!("files include one another: {}", chain.join(" includes "));
            self.reader.error_with(value.span(), message, "closes the circle", "remove one of the includes");
        } else if !self.seen.contains(&name) {
            let folder = path.parent().unwrap_or(Path::new("")).to_owned();
            self.visit(Arc::new(included), folder);
        }
    }
}

/// A file's name without `.` and `..`, so that two ways to it are seen to be one.
fn identity(source: &Source) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in Path::new(&source.name).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if matches!(plain.components().next_back(), Some(Component::Normal(_))) => {
                plain.pop();
            }
            other => plain.push(other),
        }
    }
    plain
}

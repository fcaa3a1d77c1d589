//! `includes`: finding the files of a policy. Each is read once, and the files that a file includes come
//! before it. Names are relative to the file that contains them.

use std::collections::BTreeSet;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, OnceLock};

use toml::Spanned;
use toml::de::DeTable;

use crate::keys;
use crate::policy::VERSION;
use crate::source::{MAX_FILE_BYTES, SetLoader, Source};

use super::reader::{Reader, Value, entries, integer_of};
use super::toml_errors;
use super::variables::Variables;

/// The most files of one policy, set files not counted.
pub const MAX_INCLUDED_FILES: usize = 256;
/// How deep includes may be nested.
pub const MAX_INCLUDE_DEPTH: usize = 8;
/// The most bytes that the files of a policy have in total, set files included.
pub const MAX_TOTAL_BYTES: u64 = 4 * MAX_FILE_BYTES;

/// Owns the texts, so that the trees can borrow from them.
pub(super) struct Texts(Vec<OnceLock<Arc<Source>>>);

impl Texts {
    pub(super) fn new() -> Self {
        Self((0..MAX_INCLUDED_FILES).map(|_| OnceLock::new()).collect())
    }
}

/// One file of a policy.
pub(super) struct File<'t> {
    pub(super) source: Arc<Source>,
    /// The directory of names in it; empty for that of the main file.
    pub(super) folder: PathBuf,
    pub(super) document: DeTable<'t>,
}

/// Loads files relative to one directory, within the limit of bytes.
pub(super) struct Files<'l> {
    pub(super) loader: &'l dyn SetLoader,
    pub(super) folder: PathBuf,
    bytes_left: u64,
}

impl<'l> Files<'l> {
    pub(super) fn new(loader: &'l dyn SetLoader) -> Self {
        Self { loader, folder: PathBuf::new(), bytes_left: MAX_TOTAL_BYTES }
    }

    /// The text of a file whose name is relative to `self.folder`.
    pub(super) fn load(&mut self, name: &str) -> io::Result<Source> {
        if name.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "its name is empty"));
        }
        if name.contains(char::is_control) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "its name has a control character"));
        }
        // Loaders other than the file system know a name by one spelling only.
        let mut path: PathBuf =
            self.folder.join(name).components().filter(|part| *part != Component::CurDir).collect();
        if path.as_os_str().is_empty() {
            path.push(".");
        }
        let source = self.loader.load(&path.to_string_lossy())?.unquoted();
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
    texts: &'t Texts,
    reader: &'r mut Reader,
    files: &'r mut Files<'l>,
    variables: &'r mut Variables<'t>,
    found: Vec<File<'t>>,
    /// From the main file down to the one that is being read.
    path: Vec<Arc<Source>>,
    /// The identities of the files seen.
    seen: BTreeSet<PathBuf>,
    taken: usize,
}

impl<'t, 'r, 'l> Walk<'t, 'r, 'l> {
    pub(super) fn new(
        texts: &'t Texts,
        reader: &'r mut Reader,
        files: &'r mut Files<'l>,
        variables: &'r mut Variables<'t>,
    ) -> Self {
        let (found, path, seen) = (Vec::new(), Vec::new(), BTreeSet::new());
        Self { texts, reader, files, variables, found, path, seen, taken: 0 }
    }

    /// All files that can be read, in the order of their rules. Those that cannot are reported, and
    /// `Reader::is_whole` is then false.
    pub(super) fn all(mut self, main: Arc<Source>) -> Vec<File<'t>> {
        self.visit(main, PathBuf::new());
        self.found
    }

    fn visit(&mut self, source: Arc<Source>, folder: PathBuf) {
        let Some(slot) = self.texts.0.get(self.taken) else { return };
        self.taken += 1;
        let source = slot.get_or_init(|| source);
        self.reader.source = Arc::clone(source);
        self.seen.insert(identity(source));
        let Some(document) = self.document(&source.text) else {
            self.reader.is_whole = false;
            return;
        };
        let mut document = document.into_inner();
        if !source.may_be_quoted() {
            if !self.is_policy(&document) {
                self.reader.is_whole = false;
                return;
            }
            source.quote();
            if document.iter().all(|(key, value)| key.get_ref() == "version" || is_empty(value)) {
                let warning =
                    self.reader.place(0..0).warning("the included file defines nothing", "this file");
                self.reader.push(warning.hint("remove the include, or restore the file if it was cut off"));
            }
        }
        if let Some(value) = document.get("variables") {
            self.variables.define(self.reader, value);
        }
        let includes = document.get_mut("includes").map(|includes| {
            // Only variables known so far can name files, because the files may define others.
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
        toml_errors::document(self.reader, text, &toml_errors::POLICY)
    }

    /// Whether the top level of an included file is that of a policy of this version. Another file may be any
    /// file of the host: it is not read further, and messages do not quote it.
    fn is_policy(&mut self, document: &DeTable<'t>) -> bool {
        const HINT: &str = "an included file is a complete policy and begins with version = 1";
        let unknown = entries(document)
            .into_iter()
            .find(|(key, _)| !keys::POLICY.iter().any(|known| known.name == key.get_ref().as_ref()));
        let version = document.get("version");
        match (version, unknown) {
            (Some(version), None) if integer_of(version) == Some(i64::from(VERSION)) => return true,
            (Some(version), _) if integer_of(version) != Some(i64::from(VERSION)) => {
                let message = "this version of the language is not supported";
                self.reader.error_with(version.span(), message, "not known", HINT);
            }
            (Some(_), Some((key, _))) => {
                let names: Vec<&str> = keys::POLICY.iter().map(|key| key.name).collect();
                let hint = format!("the keys of a policy are {}", names.join(", "));
                self.reader.error_with(key.span(), "unknown key", "not a key of the language", hint);
            }
            _ => {
                let message = "the included file has no `version`: it is not a policy";
                self.reader.error_with(0..0, message, "this file", HINT);
            }
        }
        false
    }

    fn include(&mut self, includes: &Value<'t>, source: &Arc<Source>, folder: &Path) {
        let Some(list) = self.reader.array(includes, "`includes`") else {
            self.reader.is_whole = false;
            return;
        };
        if list.is_empty() {
            let warning =
                self.reader.place(includes.span()).warning("`includes` is an empty list", "no files");
            self.reader.push(warning.hint("leave it out, or name the files"));
        }
        for value in list {
            self.reader.source = Arc::clone(source);
            let Some(name) = self.reader.string(value, "an included file") else {
                self.reader.is_whole = false;
                continue;
            };
            if self.path.len() > MAX_INCLUDE_DEPTH {
                let message = format!("includes are nested more than {MAX_INCLUDE_DEPTH} deep");
                self.reader.error_with(
                    value.span(),
                    message,
                    "too deep",
                    "include it from a file further up",
                );
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
                    let hint = "the name is relative to the file that contains it";
                    self.reader.unreadable(value.span(), "cannot read the included file", hint, &error);
                    self.reader.is_whole = false;
                }
            }
        }
        self.reader.source = Arc::clone(source);
    }

    /// Reads a file that was just loaded, unless it was read already.
    fn included(&mut self, included: Source, value: &Value<'_>, path: &Path) {
        let name = identity(&included);
        if let Some(first) = self.path.iter().position(|source| identity(source) == name) {
            let chain = self.path[first..].iter().map(|source| format!("`{}`", source.name));
            let chain: Vec<String> = chain.chain([format!("`{}`", included.name)]).collect();
            let message = format!("files include one another: {}", chain.join(" includes "));
            self.reader.error_with(value.span(), message, "closes the cycle", "remove one of the includes");
        } else if !self.seen.contains(&name) {
            let folder = path.parent().unwrap_or(Path::new("")).to_owned();
            self.visit(Arc::new(included), folder);
        }
    }
}

/// Whether a table or a list is empty.
fn is_empty(value: &Value<'_>) -> bool {
    let value = value.get_ref();
    value.as_table().is_some_and(DeTable::is_empty) || value.as_array().is_some_and(|list| list.is_empty())
}

/// A file's name without `.` and `..`, so that different paths to one file compare equal.
fn identity(source: &Source) -> PathBuf {
    plain_path(Path::new(&source.name))
}

/// A path without `.` and `..`, so that different names of one file are equal. Symbolic links are not looked
/// at.
#[must_use]
pub fn plain_path(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
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

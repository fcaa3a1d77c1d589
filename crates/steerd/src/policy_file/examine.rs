//! A policy read to find out whether it has changed: with the names of its files, and a hash that also tells
//! policies apart that cannot be used.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;

use policy::{Diagnostics, Folder, SetLoader, Source};

use super::inputs::sha256;
use super::{Read, parse};
use crate::settings::{PolicySource, PolicyText};

/// A policy that was read, whether or not it can be used.
#[derive(Debug)]
pub(crate) struct ExaminedPolicy {
    pub(crate) read: Result<Read, Diagnostics>,
    /// The policy file, and the set files and included files that it names, also those that cannot be read.
    /// Empty for a policy that is not read from a file.
    pub(crate) files: Vec<PathBuf>,
    /// In hexadecimal, of the texts of all files and of the errors of those that cannot be read.
    pub(crate) sha256: String,
}

/// Notes which files a policy asks for, and what was read of them.
struct Witness {
    folder: Folder,
    /// The hash of the text, or the error, of each file.
    found: RefCell<BTreeMap<String, String>>,
}

impl SetLoader for Witness {
    fn load(&self, file: &str) -> io::Result<Source> {
        let loaded = self.folder.load(file);
        let found = match &loaded {
            Ok(source) => sha256(source.text.as_bytes()),
            Err(error) => format!("unreadable: {error}"),
        };
        self.found.borrow_mut().insert(file.to_owned(), found);
        loaded
    }
}

/// Reads and parses a policy.
pub(crate) fn examine(source: &PolicySource) -> ExaminedPolicy {
    let witness = Witness { folder: Folder(source.folder()), found: RefCell::default() };
    let mut manifest = String::new();
    let mut files = Vec::new();
    let read = match &source.text {
        PolicyText::File(path) => {
            files.push(path.clone());
            let text = policy::read_policy(path);
            let _ = match &text {
                Ok(text) => writeln!(manifest, "policy {}", sha256(text.text.as_bytes())),
                Err(diagnostics) => writeln!(manifest, "unreadable: {diagnostics}"),
            };
            text.and_then(|text| parse(&text, &witness, &source.variables))
        }
        PolicyText::BuiltIn { .. } | PolicyText::Read(_) => super::load(source),
    };
    for (name, found) in witness.found.into_inner() {
        let _ = writeln!(manifest, "file {name:?} {found}");
        files.push(source.folder().join(name));
    }
    ExaminedPolicy { read, files, sha256: sha256(manifest.as_bytes()) }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const POLICY: &str = "version = 1\n[sets]\nbad = { file = \"bad.txt\" }\n[[rules]]\nname = \"bad\"\n\
         match = { src = \"bad\" }\naction = \"drop\"\n";

    #[test]
    fn files_are_named_whether_or_not_they_exist() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("policy.toml");
        let source = PolicySource::file(path.clone(), BTreeMap::new());
        let look = |policy: &str, set: Option<&str>| {
            fs::write(&path, policy).expect("written");
            let bad = folder.path().join("bad.txt");
            match set {
                Some(set) => fs::write(bad, set).expect("written"),
                None => fs::remove_file(bad).unwrap_or_default(),
            }
            examine(&source)
        };
        let missing = look(POLICY, None);
        assert!(missing.read.is_err());
        assert_eq!(missing.files, [path.clone(), folder.path().join("bad.txt")]);
        let whole = look(POLICY, Some("192.0.2.1\n"));
        assert!(whole.read.is_ok(), "{:?}", whole.read.err());
        assert_eq!(whole.files, missing.files);
        let contents = [
            missing.sha256,
            whole.sha256,
            look(POLICY, Some("192.0.2.2\n")).sha256,
            look(POLICY, Some("no address\n")).sha256,
            look("version = 1\n", None).sha256,
            look("version = \n", None).sha256,
            look("version = = \n", None).sha256,
        ];
        for (place, content) in contents.iter().enumerate() {
            assert!(!contents[..place].contains(content), "{place}");
        }
        assert_eq!(look(POLICY, Some("192.0.2.1\n")).sha256, contents[1]);
    }
}

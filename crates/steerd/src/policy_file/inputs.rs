//! Everything that a policy was read from: its text, the files that it names and the given values of its
//! variables, with a hash that is equal if and only if all of them are.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;

use compiler::Weights;
use policy::{SetLoader, Source};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The most bytes of text that are kept of one policy, for `steerd diff --running`; the hash covers all of
/// it.
pub(crate) const KEPT_BYTES_MAX: usize = 16 << 20;

/// The inputs of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Inputs {
    /// The name of the policy in diagnostics.
    pub(crate) name: String,
    /// `None`: the texts have more than [`KEPT_BYTES_MAX`] bytes together. The texts of files are left out,
    /// too.
    pub(crate) text: Option<String>,
    /// The files by name, relative to the policy's folder, as the parser asks for them.
    pub(crate) files: BTreeMap<String, InputFile>,
    pub(crate) variables: BTreeMap<String, String>,
    /// In hexadecimal, of the text that `manifest` makes.
    pub(crate) sha256: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InputFile {
    pub(crate) sha256: String,
    pub(crate) text: Option<String>,
}

/// Loads files and records them.
pub(crate) struct Recorder<'l> {
    loader: &'l dyn SetLoader,
    files: RefCell<BTreeMap<String, InputFile>>,
}

impl Inputs {
    /// Whether both were read from the same texts with the same variables, for whichever packets they were
    /// compiled. Texts that are not kept are compared by the hash.
    pub(crate) fn have_texts_of(&self, other: &Self) -> bool {
        let is_same = || {
            self.have_main_text_of(other) && self.files == other.files && self.variables == other.variables
        };
        self.sha256 == other.sha256 || is_same()
    }

    /// Returns whether both have the same text of the policy itself, whatever its files have. A text that is
    /// not kept is the same as no other.
    pub(crate) fn have_main_text_of(&self, other: &Self) -> bool {
        self.text.is_some() && self.text == other.text
    }

    /// The inputs without their texts.
    pub(crate) fn without_texts(&self) -> Self {
        let without = |(name, file): (&String, &InputFile)| {
            (name.clone(), InputFile { sha256: file.sha256.clone(), text: None })
        };
        Self {
            name: self.name.clone(),
            text: None,
            files: self.files.iter().map(without).collect(),
            variables: self.variables.clone(),
            sha256: self.sha256.clone(),
        }
    }
}

impl<'l> Recorder<'l> {
    pub(crate) fn new(loader: &'l dyn SetLoader) -> Self {
        Self { loader, files: RefCell::default() }
    }

    /// The inputs of a policy of which `main` is the text, after it was parsed.
    pub(crate) fn into_inputs(self, main: &Source, variables: &BTreeMap<String, String>) -> Inputs {
        let mut files = self.files.into_inner();
        let main_sha256 = sha256(main.text.as_bytes());
        let sha256 = sha256(manifest(&main_sha256, &files, variables).as_bytes());
        let bytes = files.values().filter_map(|file| file.text.as_ref()).map(String::len).sum::<usize>();
        let is_kept =
            bytes + main.text.len() <= KEPT_BYTES_MAX && files.values().all(|file| file.text.is_some());
        if !is_kept {
            files.values_mut().for_each(|file| file.text = None);
        }
        Inputs {
            name: main.name.clone(),
            text: is_kept.then(|| main.text.clone()),
            files,
            variables: variables.clone(),
            sha256,
        }
    }
}

impl Inputs {
    /// Has the hash cover the packets of the rules, on which the program depends.
    pub(crate) fn add_weights(&mut self, weights: &Weights) {
        self.sha256 = sha256(format!("inputs {}\npackets {:?}\n", self.sha256, weights.packets()).as_bytes());
    }
}

impl SetLoader for Recorder<'_> {
    fn load(&self, file: &str) -> io::Result<Source> {
        let source = self.loader.load(file)?;
        let text = (source.text.len() <= KEPT_BYTES_MAX).then(|| source.text.clone());
        let sha256 = sha256(source.text.as_bytes());
        self.files.borrow_mut().insert(file.to_owned(), InputFile { sha256, text });
        Ok(source)
    }
}

/// The text that is hashed: a line each for the policy, the files and the variables, sorted by name. Names
/// have no control characters; values are quoted.
fn manifest(main: &str, files: &BTreeMap<String, InputFile>, variables: &BTreeMap<String, String>) -> String {
    let mut text = format!("policy {main}\n");
    for (name, file) in files {
        let _ = writeln!(text, "file {} {name}", file.sha256);
    }
    for (name, value) in variables {
        let _ = writeln!(text, "variable {name:?} {value:?}");
    }
    text
}

/// In hexadecimal.
pub(super) fn sha256(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(64);
    for byte in Sha256::digest(bytes) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(text: &str, files: &[(&str, &str)], variables: &[(&str, &str)]) -> String {
        let files: BTreeMap<String, String> =
            files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        let recorder = Recorder::new(&files);
        for name in files.keys() {
            recorder.load(name).expect("it is there");
        }
        let variables =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        recorder.into_inputs(&Source::new("p.toml", text), &variables).sha256
    }

    #[test]
    fn the_hash_covers_text_files_and_variables() {
        let hashes = [
            hash("a", &[], &[]),
            hash("b", &[], &[]),
            hash("a", &[("f", "1")], &[]),
            hash("a", &[("f", "2")], &[]),
            hash("a", &[("g", "1")], &[]),
            hash("a", &[], &[("v", "1")]),
            hash("a", &[], &[("v", "2")]),
            hash("a", &[], &[("v", "1\nvariable w \"2\"")]),
            hash("a", &[], &[("v", "1"), ("w", "2")]),
        ];
        for (index, hash) in hashes.iter().enumerate() {
            assert!(!hashes[..index].contains(hash), "{index}");
        }
        assert_eq!(hash("a", &[("f", "1")], &[("v", "1")]), hash("a", &[("f", "1")], &[("v", "1")]));
    }

    #[test]
    fn texts_are_the_same_for_any_packets() {
        let one = Inputs { sha256: "a".to_owned(), text: Some("x".to_owned()), ..Inputs::default() };
        let weighted = Inputs { sha256: "b".to_owned(), ..one.clone() };
        let other_set = InputFile { sha256: "s".to_owned(), text: Some("192.0.2.1".to_owned()) };
        let with_set = BTreeMap::from([("set".to_owned(), other_set)]);
        assert!(one.have_texts_of(&weighted));
        let with_set = Inputs { files: with_set, ..weighted.clone() };
        assert!(!one.have_texts_of(&with_set));
        assert!(one.have_main_text_of(&with_set));
        assert!(!one.without_texts().have_main_text_of(&one.without_texts()));
        assert!(!one.without_texts().have_texts_of(&weighted.without_texts()), "the texts are not known");
        assert!(one.without_texts().have_texts_of(&one));
    }

    #[test]
    fn the_hash_is_sha_256() {
        // FIPS 180-2, B.1.
        assert_eq!(sha256(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn large_texts_are_hashed_and_not_kept() {
        let files = BTreeMap::from([("big".to_owned(), "x".repeat(KEPT_BYTES_MAX))]);
        let recorder = Recorder::new(&files);
        recorder.load("big").expect("it is there");
        let inputs = recorder.into_inputs(&Source::new("p.toml", "12"), &BTreeMap::new());
        assert_eq!((inputs.text, &inputs.files["big"].text), (None, &None));
        assert_eq!(inputs.files["big"].sha256.len(), 64);
    }
}

//! The policy language: TOML text to a [`Policy`], or to [`Diagnostics`] for people. It does not depend on a
//! device and compiles nothing; only [`load`] reads files.
//!
//! [`parse`](parse()) reads text, included files and sets, and gives a policy whose names are resolved and
//! whose values are checked. Every problem is a [`Diagnostic`] with place, label and hint. [`schema()`]
//! describes the language to editors, [`import`] converts the rules of other tools.
//!
//! ```
//! use policy::{NoFiles, Source};
//!
//! let text = "version = 1\n[groups.rx]\nworkers = 'all'\n\
//!     [[rules]]\nname = 'dns'\nmatch = { dst_port = 53 }\naction = { steer = 'rz' }\n";
//! let problems = policy::parse(&Source::new("dns.toml", text), &NoFiles).unwrap_err();
//! let first = &problems.list[0];
//! assert_eq!((first.line, first.message.as_str()), (7, "unknown group `rz`"));
//! ```
#![forbid(unsafe_code)]

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

mod diagnostics;
mod hint;
pub mod import;
mod keys;
mod packet_text;
mod parse;
pub mod policy;
pub mod policy_test;
pub mod protect;
mod schema;
mod source;
pub mod spread;
mod vocabulary;
mod witness;

pub use diagnostics::{Diagnostic, Diagnostics, MAX_DIAGNOSTICS, Place, Severity};
pub use hint::{ProblemHint, TextReplacement};
pub use packet_text::{frame_of_hex, key_of_text, short_packet};
pub use parse::{
    DocumentKind, HASH_FIELDS, LoadOptions, MAX_INCLUDE_DEPTH, MAX_INCLUDED_FILES, MAX_SUBSTITUTED_BYTES,
    MAX_TOTAL_BYTES, is_reserved, nearest, parse, parse_match, parse_with, plain_path, read_document,
    type_hint,
};
pub use policy::Policy;
pub use schema::schema;
use source::Unreadable;
pub use source::{Folder, MAX_FILE_BYTES, NoFiles, SetLoader, Source};
pub use vocabulary::value_words;
pub use witness::Witness;

/// Reads a policy file; the files that it names are relative to it.
///
/// # Errors
/// All problems at once, unreadable files included.
pub fn load(path: impl AsRef<Path>) -> Result<(Policy, Vec<Diagnostic>), Diagnostics> {
    load_with(path, &LoadOptions::default())
}

/// Loads a policy as [`load`] does, with options.
///
/// # Errors
/// As [`load`].
pub fn load_with(
    path: impl AsRef<Path>,
    options: &LoadOptions,
) -> Result<(Policy, Vec<Diagnostic>), Diagnostics> {
    let path = path.as_ref();
    let folder = path.parent().unwrap_or(Path::new("")).to_owned();
    parse_with(&read_policy(path)?, &Folder(folder), options)
}

/// Reads a policy's text from a regular file, for [`parse_with`]; the files that it names are not read.
///
/// # Errors
/// As [`load`], if the text cannot be read.
pub fn read_policy(path: &Path) -> Result<Source, Diagnostics> {
    source_of(path.display().to_string(), regular_file::read(path, MAX_FILE_BYTES))
}

/// Reads a policy's text from a reader, such as standard input, for [`parse_with`]; diagnostics call it
/// `name`. The files that it names are relative to the current directory.
///
/// # Errors
/// As [`load`], if the text cannot be read.
pub fn read_source(name: impl Into<String>, reader: impl Read) -> Result<Source, Diagnostics> {
    source_of(name.into(), regular_file::read_bounded(reader, MAX_FILE_BYTES))
}

fn source_of(name: String, read: Result<Vec<u8>, regular_file::FileError>) -> Result<Source, Diagnostics> {
    let unreadable = match read.map_err(Unreadable::from).and_then(source::text_of) {
        Ok(text) => return Ok(Source::new(name, text)),
        Err(unreadable) => unreadable,
    };
    let problem = match unreadable {
        Unreadable::NotUtf8 { text, at, is_utf16: false } => {
            let end = text.len();
            let place = Place::new(&Arc::new(Source::new(name, text)), at..end);
            place.error("this byte is not UTF-8", "here").hint(source::SAVE_AS_UTF8)
        }
        other => {
            let nowhere = Place::new(&Arc::new(Source::new(name, "")), 0..0);
            let problem = nowhere.error(format!("cannot read the policy: {other}"), "");
            match other {
                Unreadable::File(regular_file::FileError::NotRegular(_)) => {
                    problem.hint("name a regular file, or - for standard input")
                }
                Unreadable::File(error) => problem.caused_by(&error.into()),
                Unreadable::NotUtf8 { .. } => problem,
            }
        }
    };
    Err(vec![problem].into())
}

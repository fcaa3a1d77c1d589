//! The policy language: TOML text to a [`Policy`] and back to messages for people. It knows no device and compiles
//! nothing; only [`load`] reads files.
//!
//! The way through: `parse` (text, sets, spans) -> `policy` (checked values). Every problem is a [`Diagnostic`] with
//! place, label and hint. Beside it: [`schema()`] for editors, [`import`] for the rules of other tools.
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

use std::path::Path;
use std::sync::Arc;

mod diagnostics;
pub mod import;
mod parse;
pub mod policy;
mod schema;
mod source;
mod witness;

pub use diagnostics::{Diagnostic, Diagnostics, MAX_DIAGNOSTICS, Place, Severity};
pub use parse::{
    LoadOptions, MAX_INCLUDE_DEPTH, MAX_INCLUDED_FILES, MAX_SUBSTITUTED_BYTES, MAX_TOTAL_BYTES, parse,
    parse_with,
};
pub use policy::Policy;
pub use schema::schema;
pub use source::{Folder, MAX_FILE_BYTES, NoFiles, SetLoader, Source};
pub use witness::Witness;

/// Reads a policy file; the set files that it names are relative to it.
///
/// # Errors
/// All problems at once; a file that cannot be read is one too.
pub fn load(path: impl AsRef<Path>) -> Result<(Policy, Vec<Diagnostic>), Diagnostics> {
    load_with(path, &LoadOptions::default())
}

/// The same with options.
///
/// # Errors
/// As [`load`].
pub fn load_with(
    path: impl AsRef<Path>,
    options: &LoadOptions,
) -> Result<(Policy, Vec<Diagnostic>), Diagnostics> {
    let path = path.as_ref();
    let folder = path.parent().unwrap_or(Path::new("")).to_owned();
    match source::read(path) {
        Ok(source) => parse_with(&source, &Folder(folder), options),
        Err(error) => {
            let nowhere = Arc::new(Source::new(path.display().to_string(), ""));
            let problem = Place::new(&nowhere, 0..0).error(format!("cannot read the policy: {error}"), "");
            Err(vec![problem].into())
        }
    }
}

//! The policy compiler: TOML text to a [`Policy`], a [`Policy`] to the [`Program`] that a device and its
//! workers run. Pure: it opens no device, starts no thread and prints nothing; only [`load`] reads files.
//!
//! The way through: `parse` (text, sets, spans) -> `policy` (checked values) -> `compile` (cubes of header
//! bits, priorities, classes) -> `program` (plain data), with `explain` and `check` looking at the result.
#![forbid(unsafe_code)]

use std::path::Path;
use std::sync::Arc;

mod capacity;
mod check;
mod compile;
mod diagnostics;
pub mod import;
mod parse;
pub mod policy;
mod report;
mod schema;
mod source;
pub mod space;
mod together;
mod witness;

pub use capacity::{Capacity, CapacityRow, PriorityUse};
pub use check::{Check, RuleCheck, check, check_for};
pub use compile::{Obstacle, compile, compile_with};
pub use diagnostics::{Diagnostic, Diagnostics, MAX_DIAGNOSTICS, Place, Severity};
pub use parse::{
    LoadOptions, MAX_INCLUDE_DEPTH, MAX_INCLUDED_FILES, MAX_SUBSTITUTED_BYTES, MAX_TOTAL_BYTES, parse,
    parse_with,
};
pub use policy::Policy;
pub use report::{Decided, Report, RuleReport, report};
pub use schema::schema;
pub use source::{Folder, MAX_FILE_BYTES, NoFiles, SetLoader, Source};
pub use together::together;
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

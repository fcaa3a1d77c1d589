//! `tc -batch`, for the kernel's own classifiers.

use std::path::Path;
use std::process::Command;

use super::run;
use crate::namespace;

/// Carries out a file of commands in the namespace of this process, which must have one of its own.
///
/// # Errors
/// The message of `tc`, or that this is the machine's namespace.
pub fn tc_batch(file: &Path) -> Result<(), String> {
    namespace::entered()?;
    run(Command::new("tc").arg("-batch").arg(file)).map(|_| ())
}

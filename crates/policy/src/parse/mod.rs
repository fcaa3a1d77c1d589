//! TOML text to a checked [`Policy`].

use crate::diagnostics::{Diagnostic, Diagnostics};
use crate::policy::Policy;
use crate::source::{SetLoader, Source};

/// Reads a policy.
///
/// # Errors
/// All problems of the text and of its set files at once.
pub fn parse(source: &Source, loader: &dyn SetLoader) -> Result<(Policy, Vec<Diagnostic>), Diagnostics> {
    let _ = (source, loader);
    todo!()
}

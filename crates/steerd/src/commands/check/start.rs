//! What `run` would be refused for, or warn of, with the settings of `check --config`: the findings of
//! `daemon::preflight`.

use serde::Serialize;

use crate::commands::Error;
use crate::daemon::preflight::Findings;
use crate::terminal::output::{self, Priority};

/// Described in docs/reference/commands/check.md.
#[derive(Serialize)]
pub(super) struct StartAnswer<'f> {
    errors: Vec<String>,
    warnings: &'f [String],
    notes: &'f [String],
}

impl<'f> StartAnswer<'f> {
    pub(super) fn of(found: &'f Findings) -> Self {
        let errors = found.errors.iter().map(ToString::to_string).collect();
        Self { errors, warnings: &found.warnings, notes: &found.notes }
    }
}

/// Prints warnings and notes.
pub(super) fn print_notes(found: &Findings) {
    for warning in &found.warnings {
        output::print_message(Priority::Warning, &format!("warning: {warning}"));
    }
    for note in &found.notes {
        output::print_message(Priority::Info, &format!("note: {note}"));
    }
}

/// Ends a check: prints all errors but the first, with which `run` would end, and returns that one.
/// `of_check`: the error of the check, which may be one of the start, too.
pub(super) fn ended(found: Findings, of_check: Option<Error>) -> Result<(), Error> {
    let Findings { errors, before_policy, .. } = found;
    let mut errors: Vec<Error> = errors.into_iter().map(Error::Daemon).collect();
    let is_known = |error: &Error| errors.iter().any(|known| known.to_string() == error.to_string());
    if let Some(error) = of_check.filter(|error| !is_known(error)) {
        // The start reads the policy once the device is open, and then opens the sinks.
        let place = if matches!(error, Error::Denied { .. }) { errors.len() } else { before_policy };
        errors.insert(place, error);
    }
    let mut errors = errors.into_iter();
    let Some(first) = errors.next() else { return Ok(()) };
    errors.for_each(|error| output::print_error(&format!("error: {error}")));
    Err(first)
}

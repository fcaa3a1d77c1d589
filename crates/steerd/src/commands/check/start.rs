//! What `run` would be refused for, or warn of, with the settings of `check --config`: the findings of
//! `daemon::preflight`.

use serde::Serialize;

use crate::commands::Error;
use crate::daemon::preflight::Findings;
use crate::policy_file;
use crate::settings::PolicySource;
use crate::terminal::output::{self, Priority};

/// Described in docs/reference/commands/check.md.
#[derive(Serialize)]
pub(super) struct StartAnswer<'f> {
    errors: Vec<String>,
    warnings: &'f [String],
    held: &'f [String],
}

impl<'f> StartAnswer<'f> {
    pub(super) fn of(found: &'f Findings) -> Self {
        let errors = found.errors.iter().map(ToString::to_string).collect();
        Self { errors, warnings: &found.warnings, held: &found.held }
    }
}

/// Prints warnings and what a running daemon holds.
pub(super) fn print_notes(found: &Findings) {
    for warning in &found.warnings {
        output::print_message(Priority::Warning, &format!("warning: {warning}"));
    }
    for held in &found.held {
        output::print_message(Priority::Info, &format!("note: {held}"));
    }
}

/// Ends a check: prints all errors of the start but the first, and then the error of the check, unless it is
/// one of them. Returns the first one, with which `run` would end.
pub(super) fn ended(found: Findings, of_check: Option<Error>) -> Result<(), Error> {
    let texts: Vec<String> = found.errors.iter().map(ToString::to_string).collect();
    let Some(first) = found.errors.into_iter().next() else { return of_check.map_or(Ok(()), Err) };
    for text in &texts[1..] {
        output::print_error(&format!("error: {text}"));
    }
    if let Some(text) = of_check.map(|error| error.to_string()).filter(|text| !texts.contains(text)) {
        output::print_error(&format!("error: {text}"));
    }
    Err(Error::Daemon(first))
}

/// Ends a check without a device to compile for: the problems of the policy's text are printed, too.
pub(super) fn without_device(
    found: Option<Findings>,
    policy: Option<&PolicySource>,
    is_quiet: bool,
    error: Error,
) -> Result<(), Error> {
    let Some(found) = found else { return Err(error) };
    if let Some(Err(diagnostics)) = policy.map(policy_file::load) {
        output::print_diagnostics(&diagnostics);
    }
    if !is_quiet {
        print_notes(&found);
    }
    ended(found, Some(error))
}

//! What commands print on stdout: text as it is, JSON indented or a line each; and complaints on stderr, with
//! excerpts of the policy for a person.
//!
//! A reader that went away (`| head`) is no failure, and hides none: the command comes to its own end.

use std::io::{self, IsTerminal, Write};

use policy::Diagnostics;
use serde::Serialize;

use crate::error::Error;

/// The version of all JSON that is printed or served (docs/commands.md). It grows when a key goes or changes its
/// meaning; new keys leave it as it is.
pub(crate) const FORMAT: u32 = 1;

/// An object with the version of its format before its own keys.
#[derive(Serialize)]
pub(crate) struct Versioned<'v, T> {
    format: u32,
    #[serde(flatten)]
    value: &'v T,
}

impl<'v, T> Versioned<'v, T> {
    pub(crate) fn new(value: &'v T) -> Self {
        Self { format: FORMAT, value }
    }
}

/// Whether anybody still reads what is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    There,
    Gone,
}

pub(crate) fn print(text: &str) -> Result<(), Error> {
    print_line_by_line(text).map(|_| ())
}

/// For those who have much more to say, and stop when nobody listens.
pub(crate) fn print_line_by_line(text: &str) -> Result<Reader, Error> {
    let mut stdout = io::stdout().lock();
    reader_of(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()))
}

/// An object with its version.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Error> {
    print_plain_json(&Versioned::new(value))
}

/// As it is: for a JSON of somebody else's format.
pub(crate) fn print_plain_json(value: &impl Serialize) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Error::Output(error.into()))?;
    print(&format!("{text}\n"))
}

pub(crate) fn print_json_line(value: &impl Serialize) -> Result<Reader, Error> {
    let text = serde_json::to_string(&Versioned::new(value)).map_err(|error| Error::Output(error.into()))?;
    print_line_by_line(&format!("{text}\n"))
}

/// A line on stderr. Where that cannot be written to there is nobody to tell so, and no reason to panic.
pub(crate) fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// With excerpts for a person, in plain lines for a program. Colours are miette's matter, which heeds NO_COLOR.
pub(crate) fn print_diagnostics(diagnostics: &Diagnostics) {
    if diagnostics.is_empty() {
        return;
    }
    if !io::stderr().is_terminal() {
        return complain(&diagnostics.to_string());
    }
    for report in diagnostics.report() {
        complain(&format!("{report:?}"));
    }
    if diagnostics.omitted > 0 {
        complain(&format!("and {} more", diagnostics.omitted));
    }
}

fn reader_of(written: io::Result<()>) -> Result<Reader, Error> {
    match written {
        Ok(()) => Ok(Reader::There),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => Err(Error::Output(error)),
    }
}

//! What commands print on stdout: text as it is, JSON indented or a line each. A reader that went away
//! (`| head`) ends the command without a complaint.

use std::io::{self, Write};

use serde::Serialize;

use crate::error::Error;

pub(crate) fn print(text: &str) -> Result<(), Error> {
    let mut stdout = io::stdout().lock();
    done(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()))
}

pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Error::Output(error.into()))?;
    print(&format!("{text}\n"))
}

pub(crate) fn print_json_line(value: &impl Serialize) -> Result<(), Error> {
    let text = serde_json::to_string(value).map_err(|error| Error::Output(error.into()))?;
    print(&format!("{text}\n"))
}

fn done(written: io::Result<()>) -> Result<(), Error> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        written => written.map_err(Error::Output),
    }
}

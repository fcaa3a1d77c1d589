//! `steerd devices --report` and `--validate-report`: the report goes to stdout, all else to stderr.

use std::io;
use std::path::PathBuf;

use crate::cli::DevicesArgs;
use crate::commands::Error;
use crate::commands::ending::Ending;
use crate::hardware_report::{self, ReportOptions};
use crate::settings::Settings;
use crate::terminal::output::{self, OutputError, Priority, Stdout};

/// The most bytes of a report that are read.
const REPORT_BYTES_MAX: u64 = 1 << 20;
/// The most problems of a report that are shown.
const SHOWN_PROBLEMS: usize = 20;
/// Where reports are sent to.
const RECIPIENT: &str = "docs/hardware.md, `Sending a report`";

/// Prints the report of a device.
pub(super) fn run(settings: &Settings, name: &str, args: &DevicesArgs) -> Result<(), Error> {
    let ending = Ending::after(None)?;
    let options = ReportOptions { name, peer: args.peer.as_deref(), is_quick: args.quick };
    let report = hardware_report::collect(settings, options, &|| ending.is_over()).map_err(Error::Report)?;
    // It is seen also if the file cannot be written.
    output::print_message(Priority::Info, &format!("report: {}", report.verdict));
    if output::print_line_by_line(&report.text())? == Stdout::Closed {
        return Err(OutputError(io::ErrorKind::BrokenPipe.into()).into());
    }
    output::print_message(Priority::Info, &format!("report: how to send it: {RECIPIENT}"));
    if ending.is_over() {
        return Err(Error::ReportInterrupted);
    }
    Ok(())
}

/// Prints a line for each report that can be taken, and one for each problem of the others.
pub(super) fn validate(files: &[PathBuf]) -> Result<(), Error> {
    let mut invalid = 0;
    for path in files {
        let file = path.display();
        let problems: Vec<String> = match regular_file::read(path, REPORT_BYTES_MAX) {
            Ok(bytes) => match String::from_utf8(bytes) {
                Ok(text) => hardware_report::validate(&text).iter().map(ToString::to_string).collect(),
                Err(error) => vec![format!("is not UTF-8: {error}")],
            },
            Err(error) => vec![error.to_string()],
        };
        if problems.is_empty() {
            output::print(&format!("{file}: valid\n"))?;
        }
        for problem in problems.iter().take(SHOWN_PROBLEMS) {
            output::print_error(&output::plain(&format!("{file}: {problem}")));
        }
        if problems.len() > SHOWN_PROBLEMS {
            output::print_error(&format!("{file}: and {} more", problems.len() - SHOWN_PROBLEMS));
        }
        invalid += usize::from(!problems.is_empty());
    }
    match invalid {
        0 => Ok(()),
        count => Err(Error::InvalidReport(format!("{count} of {} reports have problems", files.len()))),
    }
}

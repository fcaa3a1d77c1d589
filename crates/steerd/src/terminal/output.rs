//! Output of the commands: text and JSON on stdout, messages and diagnostics on stderr.
//!
//! A closed stdout (`| head`) is not an error: the command goes on to its own result.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use policy::{Diagnostics, Severity};
use serde::Serialize;
use steerd_client::api::FORMAT;

/// An object preceded by the version of its format.
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

/// The output of a command cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the output: {0}")]
pub(crate) struct OutputError(pub(crate) io::Error);

/// Whether stdout is still open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stdout {
    Open,
    Closed,
}

pub(crate) fn print(text: &str) -> Result<(), OutputError> {
    print_line_by_line(text).map(|_| ())
}

/// Prints, and reports whether stdout is still open, for commands with much output.
pub(crate) fn print_line_by_line(text: &str) -> Result<Stdout, OutputError> {
    let mut stdout = io::stdout().lock();
    status_of(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()))
}

/// Prints an object with the version of its format.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), OutputError> {
    print_plain_json(&Versioned::new(value))
}

/// Prints JSON of another format, without a version.
pub(crate) fn print_plain_json(value: &impl Serialize) -> Result<(), OutputError> {
    let text = serde_json::to_string_pretty(value).map_err(|error| OutputError(error.into()))?;
    print(&format!("{text}\n"))
}

pub(crate) fn print_json_line(value: &impl Serialize) -> Result<Stdout, OutputError> {
    let text = serde_json::to_string(&Versioned::new(value)).map_err(|error| OutputError(error.into()))?;
    print_line_by_line(&format!("{text}\n"))
}

/// A text that another user or process gave, with escapes for characters that a terminal would obey, or by
/// which it would show the line in another order.
pub(crate) fn plain(text: &str) -> Cow<'_, str> {
    let is_obeyed = |c: char| {
        let is_format =
            matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}');
        is_format || c.is_control() || c == '\u{feff}'
    };
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if is_obeyed(c) { escaped.extend(c.escape_default()) } else { escaped.push(c) }
    }
    Cow::Owned(escaped)
}

/// The priority of a message in the journal, as of syslog(3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Priority {
    Error = 3,
    Warning = 4,
    Info = 6,
}

impl From<Severity> for Priority {
    fn from(severity: Severity) -> Self {
        match severity {
            Severity::Error => Self::Error,
            Severity::Warning => Self::Warning,
        }
    }
}

/// Prints an error on stderr.
pub(crate) fn print_error(text: &str) {
    print_message(Priority::Error, text);
}

/// Prints a message on stderr. If that fails there is nowhere to report it.
pub(crate) fn print_message(priority: Priority, text: &str) {
    let _ = match stderr_is_journal() {
        // Each line is an entry of its own, and the prefix its priority (sd-daemon(3)).
        true => text.lines().try_for_each(|line| writeln!(io::stderr(), "<{}>{line}", priority as u8)),
        false => writeln!(io::stderr(), "{text}"),
    };
}

/// Whether stderr is a stream to the journal: systemd names the device and the inode of that stream in
/// `$JOURNAL_STREAM` (systemd.exec(5)).
pub(crate) fn stderr_is_journal() -> bool {
    let Some(stream) = std::env::var_os("JOURNAL_STREAM") else { return false };
    let status = rustix::fs::fstat(io::stderr());
    status.is_ok_and(|status| *stream == *format!("{}:{}", status.st_dev, status.st_ino))
}

/// Prints diagnostics: with excerpts on a terminal, else one line each. miette decides about colours and
/// respects NO_COLOR.
pub(crate) fn print_diagnostics(diagnostics: &Diagnostics) {
    if io::stderr().is_terminal() {
        diagnostics.report().iter().for_each(|report| print_error(&format!("{report:?}")));
    } else {
        for diagnostic in &diagnostics.list {
            print_message(diagnostic.severity.into(), &diagnostic.to_string());
        }
    }
    if diagnostics.omitted > 0 {
        let priority = if diagnostics.has_errors() { Priority::Error } else { Priority::Warning };
        print_message(priority, &format!("and {} more", diagnostics.omitted));
    }
}

fn status_of(written: io::Result<()>) -> Result<Stdout, OutputError> {
    match written {
        Ok(()) => Ok(Stdout::Open),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Stdout::Closed),
        Err(error) => Err(OutputError(error)),
    }
}

/// Shorter analyses show no progress.
const DELAY: Duration = Duration::from_secs(1);
/// How often the line is redrawn.
const INTERVAL: Duration = Duration::from_millis(100);

/// The progress of an analysis, or of a change, in one line on stderr: only on a terminal, only after
/// [`DELAY`], and removed at the end.
pub(crate) struct Progress {
    is_terminal: bool,
    begun: Instant,
    drawn: Option<Instant>,
}

/// Whether stderr is the log of a daemon.
static IS_LOG: AtomicBool = AtomicBool::new(false);

impl Progress {
    /// Shows no progress from now on: stderr becomes the log of a daemon.
    pub(crate) fn forbid() {
        IS_LOG.store(true, Ordering::Relaxed);
    }

    pub(crate) fn new() -> Self {
        let is_terminal = io::stderr().is_terminal() && !IS_LOG.load(Ordering::Relaxed);
        Self { is_terminal, begun: Instant::now(), drawn: None }
    }

    /// Whether it is shown at all.
    pub(crate) fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    pub(crate) fn show(&mut self, at: analysis::Progress) {
        let is_due =
            self.drawn.map_or_else(|| self.begun.elapsed() >= DELAY, |drawn| drawn.elapsed() >= INTERVAL);
        if !self.is_terminal || !is_due {
            return;
        }
        self.drawn = Some(Instant::now());
        let seconds = self.begun.elapsed().as_secs();
        let _ = write!(io::stderr(), "\r\x1b[K{}", line(at, seconds)).and_then(|()| io::stderr().flush());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.drawn.is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K").and_then(|()| io::stderr().flush());
        }
    }
}

fn line(at: analysis::Progress, seconds: u64) -> String {
    let percent = (at.done * 100).checked_div(at.total).unwrap_or(100);
    format!("{} {} of {} ({percent}%), {seconds} s", at.stage, at.done, at.total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_others_do_not_reach_the_terminal_as_commands() {
        assert_eq!(plain("a scan, 3%: \u{e4}"), "a scan, 3%: \u{e4}");
        assert_eq!(plain("\u{1b}]0;x\u{7}\nroot: ok"), "\\u{1b}]0;x\\u{7}\\nroot: ok");
        assert_eq!(plain("\u{9b}2J\u{202e}x"), "\\u{9b}2J\\u{202e}x");
    }

    #[test]
    fn the_line_shows_the_progress() {
        let at = |done, total| analysis::Progress { stage: "rules", done, total };
        assert_eq!(line(at(250, 1000), 3), "rules 250 of 1000 (25%), 3 s");
        assert_eq!(line(at(0, 0), 1), "rules 0 of 0 (100%), 1 s");
    }
}

//! The terminal as a place for a table that is redrawn below the log lines.
//!
//! The daemon draws, `logging` writes through it, so that neither spoils the other. On anything that
//! is no terminal it draws nothing. Only the control sequences of ECMA-48 that every terminal knows.

use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a terminal that does not tell its size is taken for.
const DEFAULT_COLUMNS: usize = 80;
const DEFAULT_ROWS: usize = 24;

#[derive(Clone, Debug)]
pub(crate) struct Screen {
    drawn: Arc<Mutex<Drawn>>,
    terminal: bool,
}

/// The lines that stand on the terminal now, the cursor below them.
#[derive(Debug, Default)]
struct Drawn(Vec<String>);

impl Screen {
    pub(crate) fn new() -> Self {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        Self { drawn: Arc::default(), terminal: io::stdout().is_terminal() && !dumb }
    }

    pub(crate) fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Replaces the table; lines that do not fit are cut, never wrapped.
    pub(crate) fn draw(&self, text: &str) {
        if !self.terminal {
            return;
        }
        let (columns, rows) = size();
        let lines: Vec<String> =
            text.lines().take(rows.saturating_sub(1)).map(|line| cut(line, columns)).collect();
        let mut drawn = self.drawn();
        let output = format!("{}{}", drawn.erase(), joined(&lines));
        drawn.0 = lines;
        // A terminal that has gone away takes the table with it; the daemon goes on.
        let _ = write_out(&output);
    }

    /// Takes the table away for good, before the summary is printed.
    pub(crate) fn clear(&self) {
        let mut drawn = self.drawn();
        let erase = drawn.erase();
        drawn.0.clear();
        let _ = write_out(&erase);
    }

    /// Writes a log line to stderr, above the table.
    pub(crate) fn log(&self, line: &[u8]) -> io::Result<()> {
        let drawn = self.drawn();
        if !drawn.0.is_empty() {
            write_out(&drawn.erase())?;
        }
        io::stderr().lock().write_all(line)?;
        if !drawn.0.is_empty() {
            write_out(&joined(&drawn.0))?;
        }
        Ok(())
    }

    fn drawn(&self) -> MutexGuard<'_, Drawn> {
        self.drawn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drawn {
    /// Cursor up to the first line (CUU), erase to the end of the screen (ED).
    fn erase(&self) -> String {
        if self.0.is_empty() { String::new() } else { format!("\x1b[{}A\x1b[J", self.0.len()) }
    }
}

fn joined(lines: &[String]) -> String {
    lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect()
}

fn write_out(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

fn cut(line: &str, columns: usize) -> String {
    line.chars().take(columns).collect()
}

fn size() -> (usize, usize) {
    let told = rustix::termios::tcgetwinsize(io::stdout()).ok();
    let or = |value: u16, default| if value == 0 { default } else { usize::from(value) };
    told.map_or((DEFAULT_COLUMNS, DEFAULT_ROWS), |size| {
        (or(size.ws_col, DEFAULT_COLUMNS), or(size.ws_row, DEFAULT_ROWS))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erasing_goes_up_as_many_lines_as_stand_there() {
        assert_eq!(Drawn::default().erase(), "");
        assert_eq!(Drawn(vec!["a".into(), "b".into()]).erase(), "\x1b[2A\x1b[J");
    }

    #[test]
    fn long_lines_are_cut_by_characters() {
        assert_eq!(cut("äöü€", 3), "äöü");
    }
}

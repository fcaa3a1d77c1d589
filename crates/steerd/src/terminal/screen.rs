//! A table that is redrawn on the terminal's alternate screen, where a resize leaves no copies behind.
//!
//! Log lines for the same terminal are held: the last of them are shown below the table, and all are written
//! when the table is removed. Without a terminal nothing is drawn. The control sequences are those of
//! ECMA-48, and xterm's private mode 1049.

use std::collections::VecDeque;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The assumed size of a terminal that does not report one.
const DEFAULT_COLUMNS: usize = 80;
const DEFAULT_ROWS: usize = 24;
/// The most log lines below the table, on a terminal of [`DEFAULT_ROWS`] and more.
const SHOWN_LOG_LINES: usize = 4;
/// The most log lines that are held; older ones are discarded.
const HELD_LOG_LINES: usize = 1000;

/// Switches to the alternate screen and hides the cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// Whether the alternate screen is on; a process has one terminal.
static ENTERED: AtomicBool = AtomicBool::new(false);

#[derive(Clone, Debug)]
pub(crate) struct Screen {
    held: Arc<Mutex<Held>>,
    is_terminal: bool,
    /// Whether stderr is the terminal, too.
    logs_here: bool,
}

/// Log lines that are held while the table is shown.
#[derive(Debug, Default)]
struct Held {
    lines: VecDeque<Vec<u8>>,
    left_out: u64,
}

impl Screen {
    /// `wanted`: whether a table may be drawn at all.
    pub(crate) fn new(wanted: bool) -> Self {
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        Self {
            held: Arc::default(),
            is_terminal: wanted && io::stdout().is_terminal() && !is_dumb,
            logs_here: io::stderr().is_terminal(),
        }
    }

    pub(crate) fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Replaces the table by the text that `table` makes for this many rows; longer lines are cut, not
    /// wrapped.
    pub(crate) fn draw(&self, table: impl FnOnce(usize) -> String) {
        if !self.is_terminal {
            return;
        }
        let (columns, rows) = size();
        let logged = self.held().last(SHOWN_LOG_LINES.min(rows * SHOWN_LOG_LINES / DEFAULT_ROWS));
        let mut text = table(rows - logged.len());
        text.extend(logged.iter().flat_map(|line| [line.as_str(), "\n"]));
        let enter = if ENTERED.swap(true, Ordering::AcqRel) { "" } else { ENTER };
        // A terminal that has gone away is not an error: the daemon goes on.
        let _ = write_out(&format!("{enter}{}", drawing(&text, columns, rows)));
    }

    /// Removes the table for good, before the summary is printed, and writes the held log lines.
    pub(crate) fn clear(&self) {
        let mut held = self.held();
        if !ENTERED.swap(false, Ordering::AcqRel) {
            return;
        }
        let _ = write_out(LEAVE);
        let mut stderr = io::stderr().lock();
        if held.left_out > 0 {
            let _ = writeln!(stderr, "({} earlier log lines were discarded)", held.left_out);
        }
        for line in std::mem::take(&mut *held).lines {
            let _ = stderr.write_all(&line);
        }
    }

    /// Writes a log line to stderr, or holds it while the table is shown.
    pub(crate) fn log(&self, line: &[u8]) -> io::Result<()> {
        // Locked for the whole call, so that `clear` cannot run in between.
        let mut held = self.held();
        if self.logs_here && ENTERED.load(Ordering::Acquire) {
            held.push(line);
            return Ok(());
        }
        io::stderr().lock().write_all(line)
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Leaves the alternate screen if it is on, before the process exits. Does not wait for a terminal that
/// accepts no output.
pub(crate) fn leave_at_once() {
    if ENTERED.swap(false, Ordering::AcqRel) {
        write_leave_at_once();
    }
}

/// Leaves the alternate screen, which another library has switched on. Does not wait for a terminal that
/// accepts no output.
pub(crate) fn write_leave_at_once() {
    let stdout = io::stdout();
    let mut ready = [PollFd::new(&stdout, PollFlags::OUT)];
    if poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0) {
        let _ = rustix::io::write(&stdout, LEAVE.as_bytes());
    }
}

impl Held {
    fn push(&mut self, line: &[u8]) {
        if self.lines.len() == HELD_LOG_LINES {
            self.lines.pop_front();
            self.left_out += 1;
        }
        self.lines.push_back(line.to_owned());
    }

    /// The last lines without colours, which cutting a line could leave switched on.
    fn last(&self, most: usize) -> Vec<String> {
        let first = self.lines.len().saturating_sub(most);
        self.lines.iter().skip(first).map(|line| plain(&String::from_utf8_lossy(line))).collect()
    }
}

/// Rewrites each row and blanks the rest of the screen. If rows are missing, the first lines are dropped.
fn drawing(text: &str, columns: usize, rows: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let shown = &lines[lines.len().saturating_sub(rows)..];
    let shown: Vec<String> = shown.iter().map(|line| format!("{}\x1b[K", cut(line, columns))).collect();
    // CUP to the first row, EL after each line, ED below; no newline in the last row, which would scroll.
    format!("\x1b[H{}\x1b[J", shown.join("\r\n"))
}

fn write_out(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

fn cut(line: &str, columns: usize) -> String {
    line.chars().take(columns).collect()
}

/// Removes control sequences and other control characters.
fn plain(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut chars = line.chars();
    while let Some(char) = chars.next() {
        if char == '\x1b' {
            // CSI: up to its final byte.
            let _ = chars.by_ref().skip_while(|c| *c == '[').find(|c| ('\x40'..='\x7e').contains(c));
        } else if !char.is_control() {
            out.push(char);
        }
    }
    out
}

fn size() -> (usize, usize) {
    let reported = rustix::termios::tcgetwinsize(io::stdout()).ok();
    let or = |value: u16, default| if value == 0 { default } else { usize::from(value) };
    reported.map_or((DEFAULT_COLUMNS, DEFAULT_ROWS), |size| {
        (or(size.ws_col, DEFAULT_COLUMNS), or(size.ws_row, DEFAULT_ROWS))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_do_not_fit_are_dropped_from_the_top() {
        assert_eq!(drawing("a\nb\nc\n", 80, 2), "\x1b[Hb\x1b[K\r\nc\x1b[K\x1b[J");
        assert_eq!(drawing("a\n", 80, 24), "\x1b[Ha\x1b[K\x1b[J");
    }

    #[test]
    fn long_lines_are_cut_by_characters() {
        assert_eq!(cut("äöü€", 3), "äöü");
    }

    #[test]
    fn held_log_lines_are_bounded_and_shown_without_colours() {
        let mut held = Held::default();
        (0..HELD_LOG_LINES + 2).for_each(|n| held.push(format!("\x1b[31mline\x1b[0m {n}\n").as_bytes()));
        assert_eq!((held.lines.len(), held.left_out), (HELD_LOG_LINES, 2));
        assert_eq!(held.last(2), ["line 1000", "line 1001"]);
    }
}

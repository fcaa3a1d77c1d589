//! How far a long question has come, on stderr: only on a terminal, and only once it has taken a second.
//! `check` and `diff` use it; it leaves no trace when it is done.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// Who waits less long need not be told anything.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often the line is drawn again.
const INTERVAL: Duration = Duration::from_millis(100);

pub(crate) struct Progress {
    is_terminal: bool,
    begun: Instant,
    drawn: Option<Instant>,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self { is_terminal: io::stderr().is_terminal(), begun: Instant::now(), drawn: None }
    }

    pub(crate) fn show(&mut self, at: analysis::Progress) {
        let is_due =
            self.drawn.map_or_else(|| self.begun.elapsed() >= PATIENCE, |drawn| drawn.elapsed() >= INTERVAL);
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
    format!("{} {} of {} ({percent} %), {seconds} s", at.stage, at.done, at.total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_how_far_it_is() {
        let at = |done, total| analysis::Progress { stage: "rules", done, total };
        assert_eq!(line(at(250, 1000), 3), "rules 250 of 1000 (25 %), 3 s");
        assert_eq!(line(at(0, 0), 1), "rules 0 of 0 (100 %), 1 s");
    }
}

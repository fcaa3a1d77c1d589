//! The end of a terminal: its window was closed, or its connection was lost.
//!
//! SIGHUP alone does not report it: the process may not be in the terminal's session, or was started by
//! nohup(1).

use std::io::{self, IsTerminal};

/// The standard streams that were a terminal at the start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terminals {
    stdin: bool,
    stdout: bool,
}

impl Terminals {
    /// The streams that are a terminal now.
    pub(crate) fn open() -> Self {
        Self { stdin: io::stdin().is_terminal(), stdout: io::stdout().is_terminal() }
    }

    /// Whether one of them has hung up. Such a terminal answers every request with EIO (tty_io.c,
    /// hung_up_tty_ioctl), so it is no terminal any more.
    pub(crate) fn hung_up(self) -> bool {
        let now = Self::open();
        (self.stdin && !now.stdin) || (self.stdout && !now.stdout)
    }
}

//! The end of commands that follow the running daemon: a signal, or a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::message::NoSignals;

/// When the command ends.
pub(super) struct Ending {
    is_asked: Arc<AtomicBool>,
    deadline: Option<Instant>,
}

impl Ending {
    /// Catches the signals from here on. The end comes after this time, if it is given.
    pub(super) fn after(time: Option<Duration>) -> Result<Self, NoSignals> {
        let is_asked = Arc::new(AtomicBool::new(false));
        let is_caught = |signal: &i32| *signal != SIGHUP || !is_hangup_ignored(&own_status());
        for signal in [SIGHUP, SIGINT, SIGTERM].into_iter().filter(is_caught) {
            // A reader of the output that does not read delays the regular end: a second signal ends at once.
            flag::register_conditional_default(signal, Arc::clone(&is_asked)).map_err(NoSignals)?;
            flag::register(signal, Arc::clone(&is_asked)).map_err(NoSignals)?;
        }
        let deadline = time.map(|time| Instant::now() + time);
        Ok(Self { is_asked, deadline })
    }

    pub(super) fn is_over(&self) -> bool {
        let is_late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        is_late || self.is_asked.load(Ordering::Relaxed)
    }
}

fn own_status() -> String {
    std::fs::read_to_string("/proc/self/status").unwrap_or_default()
}

/// Returns whether SIGHUP is ignored, as below nohup(1), by the text of /proc/self/status
/// (proc_pid_status(5)).
fn is_hangup_ignored(status: &str) -> bool {
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & 1 << (SIGHUP - 1) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_hangup_is_recognised() {
        assert!(is_hangup_ignored("Name:\tx\nSigIgn:\t0000000000001001\n"));
        assert!(!is_hangup_ignored("Name:\tx\nSigIgn:\t0000000000001000\n"));
        assert!(!is_hangup_ignored(""));
        assert!(own_status().contains("\nSigIgn:"));
    }
}

//! The end of commands that follow the running daemon: a signal, or a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::message::NoSignals;

/// When the command ends.
pub(super) struct Ending {
    is_asked: Arc<AtomicBool>,
    deadline: Option<Instant>,
}

impl Ending {
    /// Catches the signals from here on. The end comes after so many seconds, if they are given.
    pub(super) fn after(seconds: Option<u64>) -> Result<Self, NoSignals> {
        let is_asked = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // A reader of the output that does not read delays the regular end: a second signal ends at once.
            flag::register_conditional_default(signal, Arc::clone(&is_asked)).map_err(NoSignals)?;
            flag::register(signal, Arc::clone(&is_asked)).map_err(NoSignals)?;
        }
        let deadline = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
        Ok(Self { is_asked, deadline })
    }

    pub(super) fn is_over(&self) -> bool {
        let is_late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        is_late || self.is_asked.load(Ordering::Relaxed)
    }
}

//! What the thread of a worker does, as the kernel accounts for it: whoever waits for a worker does not take
//! one for hung that gets no core.

use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

/// The thread that runs a worker, once it has begun.
#[derive(Debug, Default)]
pub(crate) struct WorkerThread(AtomicI32);

/// A thread at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThreadActivity {
    /// Whether it is on a core or waits for one; otherwise it sleeps.
    pub(crate) is_runnable: bool,
    /// The time for which it was on a core.
    pub(crate) cpu: Duration,
}

impl WorkerThread {
    /// To be called on the thread.
    pub(crate) fn begin(&self) {
        self.0.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Relaxed);
    }

    /// `None` before [`WorkerThread::begin`], after the end of the thread, or where /proc does not show it.
    pub(crate) fn activity(&self) -> Option<ThreadActivity> {
        let thread = match self.0.load(Ordering::Relaxed) {
            0 => return None,
            thread => thread,
        };
        let read = |file: &str| std::fs::read_to_string(format!("/proc/self/task/{thread}/{file}")).ok();
        // The time on a core, the time of waiting for one, which is counted only when the wait is over, and
        // the number of slices (Documentation/scheduler/sched-stats.rst).
        let times = read("schedstat")?;
        let cpu = Duration::from_nanos(times.split_whitespace().next()?.parse().ok()?);
        // The state follows the name, which is in parentheses and may contain some itself (proc_pid_stat(5)).
        let status = read("stat")?;
        let (_, state) = status.rsplit_once(") ")?;
        Some(ThreadActivity { is_runnable: state.starts_with('R'), cpu })
    }
}

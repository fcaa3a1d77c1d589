//! The activity of a worker's thread, by the kernel's account: whoever waits for a worker does not take one
//! for hung that gets no core, and the time for which it waits for a core is shown.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use rustix::thread::{CpuSet, Pid, sched_setaffinity};

/// The thread that runs a worker, once it has begun.
#[derive(Debug, Default)]
pub(crate) struct WorkerThread {
    /// The kernel's number of the thread while it runs, else 0.
    id: AtomicI32,
    /// The activity at the end: the number may be that of another thread then.
    last: OnceLock<ThreadActivity>,
}

/// A thread at one moment. No time ever decreases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadActivity {
    /// Whether it is on a core or waits for one; otherwise it sleeps, or has ended.
    pub is_runnable: bool,
    /// The time for which it was on a core.
    pub cpu: Duration,
    /// The time for which it was ready to run and waited for a core. The kernel counts a wait when it is
    /// over.
    pub cpu_wait: Duration,
}

impl WorkerThread {
    /// To be called on the thread.
    pub(crate) fn begin(&self) {
        self.id.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Release);
    }

    /// To be called on the thread when it ends. Its times stay known.
    pub(crate) fn end(&self) {
        let activity = self.activity();
        // Before the last activity is there: who sees it must not see a later one by the number.
        self.id.store(0, Ordering::Release);
        if let Some(activity) = activity {
            // The thread ends once.
            let _ = self.last.set(ThreadActivity { is_runnable: false, ..activity });
        }
    }

    /// Lets the thread run on these cores only.
    ///
    /// # Errors
    /// It has not begun or has ended, or the kernel allows it none of them.
    pub(crate) fn pin(&self, cores: &[usize]) -> std::io::Result<()> {
        let mut set = CpuSet::new();
        cores.iter().filter(|core| **core < CpuSet::MAX_CPU).for_each(|core| set.set(*core));
        let thread = Pid::from_raw(self.id.load(Ordering::Acquire)).ok_or(std::io::ErrorKind::NotFound)?;
        Ok(sched_setaffinity(Some(thread), &set)?)
    }

    /// `None` before [`WorkerThread::begin`], for a moment while the thread ends, or where the kernel or
    /// /proc does not show it.
    pub(crate) fn activity(&self) -> Option<ThreadActivity> {
        let thread = match self.id.load(Ordering::Acquire) {
            0 => return self.last.get().copied(),
            thread => thread,
        };
        let read = |file: &str| std::fs::read_to_string(format!("/proc/self/task/{thread}/{file}")).ok();
        let times = read("schedstat").and_then(|text| parse_schedstat(&text));
        // The state follows the name, which is in parentheses and may contain some itself (proc_pid_stat(5)).
        let status = read("stat");
        if self.id.load(Ordering::Acquire) != thread {
            // It ended meanwhile, and the files may be those of another thread.
            return self.last.get().copied();
        }
        let status = status?;
        let (_, state) = status.rsplit_once(") ")?;
        let ThreadTimes { cpu, cpu_wait } = times?;
        Some(ThreadActivity { is_runnable: state.starts_with('R'), cpu, cpu_wait })
    }
}

/// The times of a line of /proc/PID/schedstat.
#[derive(Debug, PartialEq, Eq)]
struct ThreadTimes {
    cpu: Duration,
    cpu_wait: Duration,
}

/// Reads the time on a core, the time of waiting for one, and the number of slices
/// (Documentation/scheduler/sched-stats.rst). `None`: a kernel that does not count them writes zeros
/// (fs/proc/base.c, `proc_pid_schedstat`), but a thread that has begun has had a slice.
fn parse_schedstat(text: &str) -> Option<ThreadTimes> {
    let mut fields = text.split_whitespace().map(|field| field.parse::<u64>().ok());
    let mut next = || fields.next().flatten();
    let (cpu, cpu_wait, slices) = (next()?, next()?, next()?);
    let times = ThreadTimes { cpu: Duration::from_nanos(cpu), cpu_wait: Duration::from_nanos(cpu_wait) };
    (slices > 0).then_some(times)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Instant;

    use super::*;

    /// A thread that is not seen to do what is expected within this time never does.
    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn times_that_are_not_counted_are_unknown() {
        let times =
            |cpu, wait| ThreadTimes { cpu: Duration::from_nanos(cpu), cpu_wait: Duration::from_nanos(wait) };
        assert_eq!(parse_schedstat("1500 2500 7\n"), Some(times(1500, 2500)));
        assert_eq!(parse_schedstat("0 0 0\n"), None, "no CONFIG_SCHED_INFO");
        assert_eq!(parse_schedstat("0 90 1\n"), Some(times(0, 90)));
        for bad in ["", "1 2", "1 x 3", "-1 2 3"] {
            assert_eq!(parse_schedstat(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_thread_is_pinned_by_others() {
        let (thread, cores) = (WorkerThread::default(), core_affinity::get_core_ids().expect("cores"));
        assert!(thread.pin(&[cores[0].id]).is_err(), "it has not begun");
        let (begun, has_begun) = std::sync::mpsc::channel();
        let (pinned, is_pinned) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let thread = &thread;
            let running = scope.spawn(move || {
                thread.begin();
                begun.send(()).expect("the test waits");
                is_pinned.recv_timeout(PATIENCE).expect("the test pins it");
                core_affinity::get_core_ids().expect("cores")
            });
            has_begun.recv().expect("it begins");
            thread.pin(&[cores[0].id]).expect("a core of this process");
            let refused = thread.pin(&[CpuSet::MAX_CPU - 1]);
            pinned.send(()).expect("it waits");
            assert_eq!(running.join().expect("no panic"), cores[..1]);
            assert!(refused.is_err(), "a core that does not exist");
        });
    }

    /// Spins on this core until `stop`.
    fn spin(core: core_affinity::CoreId, stop: &AtomicBool) {
        assert!(core_affinity::set_for_current(core), "pinned to a core of this process");
        while !stop.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    }

    /// Two threads that never sleep share a core, so each waits while the other runs.
    #[test]
    fn a_thread_without_a_core_waits() {
        let core = core_affinity::get_core_ids().expect("cores")[0];
        let (thread, stop) = (WorkerThread::default(), AtomicBool::new(false));
        assert_eq!(thread.activity(), None, "it has not begun");
        let seen = std::thread::scope(|scope| {
            scope.spawn(|| spin(core, &stop));
            scope.spawn(|| {
                thread.begin();
                spin(core, &stop);
                thread.end();
            });
            let begun = Instant::now();
            let seen = loop {
                let seen = thread.activity().filter(|seen| seen.cpu_wait > Duration::from_millis(50));
                match seen {
                    Some(seen) => break seen,
                    None if begun.elapsed() > PATIENCE => break thread.activity().expect("its times"),
                    None => std::thread::sleep(Duration::from_millis(1)),
                }
            };
            stop.store(true, Ordering::Relaxed);
            seen
        });
        assert!(seen.cpu_wait > Duration::from_millis(50) && seen.is_runnable, "{seen:?}");
        let last = thread.activity().expect("its times after the end");
        assert!(last.cpu >= seen.cpu && last.cpu_wait >= seen.cpu_wait, "{last:?} after {seen:?}");
        assert!(!last.is_runnable);
    }
}

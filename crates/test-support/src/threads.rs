//! What threads of this process take and how often they sleep, by the files of the kernel.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// How long a test waits for a thread at most.
const PATIENCE: Duration = Duration::from_secs(30);
/// Events in a row of which [`assert_wakes`] takes the time.
const EVENTS: u32 = 8;

/// The folders of the threads of this process with this name.
fn named(name: &str) -> impl Iterator<Item = PathBuf> {
    let threads = std::fs::read_dir("/proc/self/task").expect("a folder of threads").flatten();
    threads.map(|thread| thread.path()).filter(move |thread| {
        // A thread that has ended meanwhile has no files.
        std::fs::read_to_string(thread.join("comm")).is_ok_and(|comm| comm.trim_end() == name)
    })
}

/// The time that threads of this process with this name have run on a core (proc_pid_schedstat(5)).
///
/// # Panics
/// If there is no such thread, or the kernel does not count the time of threads.
#[must_use]
pub fn thread_cpu_time(name: &str) -> Duration {
    let mut times = named(name).filter_map(|thread| {
        let times = std::fs::read_to_string(thread.join("schedstat")).ok()?;
        Some(Duration::from_nanos(times.split_whitespace().next()?.parse().ok()?))
    });
    let first = times.next().unwrap_or_else(|| panic!("no thread `{name}` with a time"));
    times.fold(first, |sum, time| sum + time)
}

/// A moment in the CPU time of the calling thread. For limits of the time that a computation may take: other
/// programs on a busy machine do not use it up. It does not count what other threads do for the caller.
#[derive(Clone, Copy, Debug)]
pub struct CpuTime(Duration);

impl CpuTime {
    /// Now.
    ///
    /// # Panics
    /// Never: the clock begins with 0.
    #[must_use]
    pub fn now() -> Self {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Self(Duration::try_from(time).expect("a time that has passed"))
    }

    /// The CPU time of the calling thread since then, which must be the one that called [`CpuTime::now`].
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        Self::now().0.saturating_sub(self.0)
    }
}

/// The part of a core that threads with this name use, in percent: the least of three measurements that
/// together take `time`. On a busy virtual machine the kernel charges threads for time that others had. The
/// thread that calls sleeps.
///
/// # Panics
/// As [`thread_cpu_time`].
#[must_use]
pub fn thread_cpu_percent(name: &str, time: Duration) -> f64 {
    let measure = || {
        let (before, begun) = (thread_cpu_time(name), Instant::now());
        std::thread::sleep(time / 3);
        let used = thread_cpu_time(name).saturating_sub(before);
        100.0 * used.as_secs_f64() / begun.elapsed().as_secs_f64()
    };
    (0..3).map(|_| measure()).fold(f64::INFINITY, f64::min)
}

/// How often threads of this process with this name have gone to sleep: their voluntary context switches
/// (proc_pid_status(5)). sched_yield(2) is none, nor is the end of a thread's turn on a busy core.
///
/// # Panics
/// If there is no such thread.
#[must_use]
pub fn thread_sleeps(name: &str) -> u64 {
    let mut sleeps = named(name).filter_map(|thread| {
        let status = std::fs::read_to_string(thread.join("status")).ok()?;
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        count.trim().parse::<u64>().ok()
    });
    let first = sleeps.next().unwrap_or_else(|| panic!("no thread `{name}` with a status"));
    sleeps.fold(first, |sum, count| sum + count)
}

/// How often a loop was run and slept in some time. Both counts have limits that do not depend on how busy
/// the machine is: a sleep never ends before its time, and a loop that sleeps in each iteration has at least
/// as many sleeps.
#[derive(Clone, Copy, Debug)]
pub struct Sleeps {
    /// Iterations of the loop.
    pub iterations: u64,
    /// See [`thread_sleeps`].
    pub sleeps: u64,
    /// The time.
    pub time: Duration,
}

impl Sleeps {
    /// Counts while `meanwhile` runs, and then until there are `least` iterations.
    ///
    /// # Panics
    /// If the loop makes no progress.
    #[must_use]
    pub fn count(name: &str, least: u64, iterations: impl Fn() -> u64, meanwhile: impl FnOnce()) -> Self {
        let (first, sleeps, begun) = (iterations(), thread_sleeps(name), Instant::now());
        meanwhile();
        loop {
            let counted = Self {
                iterations: iterations() - first,
                sleeps: thread_sleeps(name) - sleeps,
                time: begun.elapsed(),
            };
            if counted.iterations >= least {
                return counted;
            }
            assert!(counted.time < PATIENCE, "{name} makes no progress: {counted:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Sleeps of this length that fit into the time, and one that began before it.
    #[must_use]
    pub fn fitting(&self, sleep: Duration) -> u64 {
        let fitting = self.time.as_nanos() / sleep.as_nanos();
        u64::try_from(fitting).expect("a short time") + 1
    }
}

/// Checks that `event`, which causes an event and returns when the thread with this name has handled it,
/// wakes that thread. It sleeps for at least `asleep` unless it is woken.
///
/// After each event the thread is seen to sleep again. So without being woken it handles one event in each
/// `asleep`, however fast or busy the machine is. Only the opposite needs a machine that is fast enough,
/// once: that a number of events takes half of that time. It is tried again until it does.
///
/// # Panics
/// If events do not wake the thread, or it does not sleep.
pub fn assert_wakes(name: &str, asleep: Duration, mut event: impl FnMut()) {
    let started = Instant::now();
    loop {
        let begun = Instant::now();
        for _ in 0..EVENTS {
            let sleeps = thread_sleeps(name);
            event();
            while thread_sleeps(name) == sleeps {
                assert!(begun.elapsed() < PATIENCE, "{name} never sleeps");
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        let time = begun.elapsed();
        println!("{name}: {EVENTS} events in {time:?}");
        if time < asleep * EVENTS / 2 {
            return;
        }
        assert!(started.elapsed() < PATIENCE, "{name}: events do not wake it, {EVENTS} take {time:?}");
    }
}

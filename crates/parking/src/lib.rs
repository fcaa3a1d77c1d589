//! How threads of the packet path sleep, are woken, and end: an eventfd that is written to only if the thread
//! sleeps, naps that become longer, and a join with a limit.
//!
//! ```
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicBool, Ordering};
//! use std::time::Duration;
//!
//! let wakeup = Arc::new(parking::Wakeup::new()?);
//! let has_work = Arc::new(AtomicBool::new(false));
//! let (sleeper, work) = (Arc::clone(&wakeup), Arc::clone(&has_work));
//! let thread = std::thread::spawn(move || {
//!     while !work.load(Ordering::Relaxed) {
//!         sleeper.wait(|| work.load(Ordering::Relaxed), Duration::from_secs(20));
//!     }
//! });
//! has_work.store(true, Ordering::Relaxed);
//! wakeup.notify();
//! assert!(matches!(parking::join_within(thread, Duration::from_secs(20)), Some(Ok(()))));
//! # Ok::<(), std::io::Error>(())
//! ```

#![forbid(unsafe_code)]

mod flag;
mod wakeup;

use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub use wakeup::Wakeup;

/// The longest sleep of a thread, so that its count of passes shows that it is alive.
pub const HEARTBEAT: Duration = Duration::from_millis(20);
/// The shortest nap of a thread that nothing wakes. With 64 frames per burst this still keeps up with about a
/// million frames a second.
pub const SHORTEST_NAP: Duration = Duration::from_micros(50);
/// The longest nap: how late a thread that has to poll may be after a pause.
pub const LONGEST_NAP: Duration = Duration::from_millis(4);
/// Naps of one length; each next length is twice the one before.
const NAPS_PER_LENGTH: u32 = 16;
/// The time between two looks at a thread that is to end.
const JOIN_STEP: Duration = Duration::from_millis(1);

/// The length of a nap after so many others without work between them.
#[must_use]
pub fn nap(naps: u32) -> Duration {
    let doublings = (naps / NAPS_PER_LENGTH).min(u32::BITS - 1);
    SHORTEST_NAP.saturating_mul(1 << doublings).min(LONGEST_NAP)
}

/// Waits for the end of a thread, but not longer than `patience`: a thread that hangs must not hang its
/// owner. Returns the result of the thread; `None` if it has not ended, and is left running.
pub fn join_within<T>(thread: JoinHandle<T>, patience: Duration) -> Option<thread::Result<T>> {
    let begun = Instant::now();
    while !thread.is_finished() {
        if begun.elapsed() >= patience {
            return None;
        }
        thread::sleep(JOIN_STEP);
    }
    Some(thread.join())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn naps_become_longer_up_to_a_limit() {
        assert_eq!(nap(0), SHORTEST_NAP);
        assert_eq!(nap(NAPS_PER_LENGTH), SHORTEST_NAP * 2);
        assert_eq!(nap(u32::MAX), LONGEST_NAP);
        assert!((0..1000).map(nap).collect::<Vec<_>>().is_sorted());
    }

    #[test]
    fn a_thread_that_hangs_is_not_waited_for() {
        let (release, hang) = std::sync::mpsc::channel::<()>();
        let hangs = thread::spawn(move || assert!(hang.recv().is_err()));
        let begun = Instant::now();
        assert!(join_within(hangs, Duration::from_millis(20)).is_none());
        assert!(begun.elapsed() < Duration::from_secs(10));
        drop(release);
    }

    #[test]
    fn results_of_ended_threads_are_returned() {
        let patience = Duration::from_secs(20);
        assert!(matches!(join_within(thread::spawn(|| 7), patience), Some(Ok(7))));
        let panics = thread::spawn(|| panic!("a test of panics"));
        assert!(matches!(join_within(panics, patience), Some(Err(_))));
    }
}

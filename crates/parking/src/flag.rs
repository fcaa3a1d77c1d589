//! The flag of a thread that sleeps.
//!
//! No wake-up is lost. The sleeper stores the flag and then looks for work; who has work for it publishes the
//! work and then looks at the flag. Between the store and the load of each side stands a sequentially
//! consistent fence. Of two such fences one is first in their total order, and what was stored before it is
//! visible to loads after the other (store buffering, Boehm and Adve, PLDI 2008; the C++ memory model's rule
//! for two fences). So either the sleeper sees the work and does not sleep, or the other side sees the flag.
//! `model` checks this with loom.

use sync::{AtomicBool, Ordering, fence};

/// Whether a thread sleeps. It shares no cache line, nor a pair that is fetched together: others look at it
/// for each batch of packets.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct SleepFlag(AtomicBool);

impl SleepFlag {
    pub(crate) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Announces a sleep. The sleeper looks for work after this, and sleeps only if there is none.
    pub(crate) fn announce(&self) {
        self.0.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Ends a sleep, whatever woke the thread.
    pub(crate) fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Returns whether the thread has to be woken for work that was published before; of several callers one
    /// gets `true` for each sleep.
    #[inline]
    pub(crate) fn take(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::SeqCst)
    }
}

#[cfg(not(all(test, loom)))]
mod sync {
    pub(super) use std::sync::atomic::{AtomicBool, Ordering, fence};
}

/// The types of loom, which runs the threads of `model` in every order.
#[cfg(all(test, loom))]
mod sync {
    pub(super) use loom::sync::atomic::{AtomicBool, Ordering, fence};
}

#[cfg(all(test, loom))]
mod model {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, Ordering};
    use loom::thread;

    use super::*;

    #[test]
    fn a_sleeper_sees_the_work_or_is_woken() {
        loom::model(|| {
            let shared = Arc::new((SleepFlag::new(), AtomicBool::new(false)));
            let other = Arc::clone(&shared);
            let sender = thread::spawn(move || {
                let (flag, work) = &*other;
                work.store(true, Ordering::Relaxed);
                flag.take()
            });
            let (flag, work) = &*shared;
            flag.announce();
            let has_seen = work.load(Ordering::Relaxed);
            let is_woken = sender.join().unwrap();
            assert!(has_seen || is_woken);
        });
    }

    #[test]
    fn one_of_two_senders_wakes_the_sleeper() {
        loom::model(|| {
            let flag = Arc::new(SleepFlag::new());
            flag.announce();
            let other = Arc::clone(&flag);
            let sender = thread::spawn(move || other.take());
            let own = flag.take();
            assert!(own != sender.join().unwrap());
        });
    }
}

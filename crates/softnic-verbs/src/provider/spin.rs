//! The lock around a queue's application side. libibverbs promises that posting and polling are thread-safe,
//! unless the application asked for a single-threaded queue: then there is no lock at all.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often a waiter looks again before it sleeps, and for how long: the holder may wait for this core.
const SPINS: u32 = 128;
const NAP: Duration = Duration::from_micros(1);

/// A value behind a spin lock, or without one where the application promised not to need it.
pub(crate) struct Spin<T> {
    locked: Option<AtomicBool>,
    value: UnsafeCell<T>,
}

// SAFETY: with a lock the value is used by one thread at a time; without, the application promised the same
// when it asked for a single-threaded queue (IBV_CREATE_CQ_ATTR_SINGLE_THREADED, or a thread domain).
unsafe impl<T: Send> Sync for Spin<T> {}

impl<T> Spin<T> {
    pub(crate) fn new(value: T, single_threaded: bool) -> Self {
        let locked = (!single_threaded).then(AtomicBool::default);
        Self { locked, value: UnsafeCell::new(value) }
    }

    /// Waits for the value and keeps it until [`Spin::unlock`].
    #[inline]
    pub(crate) fn lock(&self) -> *mut T {
        if let Some(locked) = &self.locked {
            let mut spins = 0u32;
            while locked.swap(true, Ordering::Acquire) {
                spins = spins.wrapping_add(1);
                if spins.is_multiple_of(SPINS) {
                    std::thread::sleep(NAP);
                }
                std::hint::spin_loop();
            }
        }
        self.value.get()
    }

    /// Lets others at the value.
    #[inline]
    pub(crate) fn unlock(&self) {
        if let Some(locked) = &self.locked {
            locked.store(false, Ordering::Release);
        }
    }

    /// The value, for the thread that already holds the lock (between `start_poll` and `end_poll`).
    #[inline]
    pub(crate) fn held(&self) -> *mut T {
        self.value.get()
    }

    /// Runs `body` on the value. Bodies do not panic: they only move numbers.
    #[inline]
    pub(crate) fn with<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        let value = self.lock();
        // SAFETY: locked, or single-threaded by promise.
        let answer = body(unsafe { &mut *value });
        self.unlock();
        answer
    }
}

//! A value in two copies, so that readers never wait for writers ("left-right", Ramalhete and Correia, 2015).
//!
//! Readers use the current copy. A change is made in the other one, which then becomes the current one, and
//! is repeated in the first when its last reader has left. Why it is right: a copy is written to by the
//! holder of `writer` alone, and only with its lock, which no reader can get meanwhile; when a change
//! returns, both copies have it. A reader that comes late to a copy finds it locked, or finds with its lock
//! that the other one is current, and takes that. So nobody sees a change before the other copy is current,
//! and who has seen it never sees the value before it again.

use sync::{AtomicUsize, Mutex, MutexGuard, Ordering, RwLock, RwLockReadGuard, RwLockWriteGuard};
use sync::{PoisonError, TryLockError, pause, rest};

/// How often a writer yields to a reader before it sleeps between attempts: a reader whose thread does not
/// run, or that has a lower priority, may need the core of the writer.
const YIELDS: usize = 100;

/// Both copies.
pub struct LeftRight<T> {
    copies: [RwLock<T>; 2],
    /// The index of the copy that readers use.
    current: AtomicUsize,
    writer: Mutex<()>,
}

/// The right to change the value. Waits for readers, and so must not be used by who holds something that a
/// reader may wait for.
pub struct LeftRightWriter<'v, T> {
    value: &'v LeftRight<T>,
    _alone: MutexGuard<'v, ()>,
}

impl<T> LeftRight<T> {
    /// Both copies have to be equal.
    pub fn new(copies: [T; 2]) -> Self {
        Self { copies: copies.map(RwLock::new), current: AtomicUsize::new(0), writer: Mutex::new(()) }
    }

    /// The value, as the last change that has ended left it, or a later one. Never waits.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        loop {
            let current = self.current.load(Ordering::Acquire);
            let copy = match self.copies[current].try_read() {
                Ok(copy) => copy,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                // A writer has it, so it is not the current one any more.
                Err(TryLockError::WouldBlock) => {
                    pause();
                    continue;
                }
            };
            if self.current.load(Ordering::Acquire) == current {
                return copy;
            }
        }
    }

    /// Waits for other writers.
    pub fn writer(&self) -> LeftRightWriter<'_, T> {
        LeftRightWriter { value: self, _alone: self.writer.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    /// A copy when its last reader has left. By trying: a reader that leaves a lock which a thread sleeps on
    /// has to wake the sleeper with a system call.
    fn vacated(&self, copy: usize) -> RwLockWriteGuard<'_, T> {
        let mut attempts = 0;
        loop {
            match self.copies[copy].try_write() {
                Ok(copy) => return copy,
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) if attempts == YIELDS => rest(),
                Err(TryLockError::WouldBlock) => {
                    attempts += 1;
                    pause();
                }
            }
        }
    }
}

impl<T> LeftRightWriter<'_, T> {
    /// Changes both copies, and returns what the first change returned. When this returns no reader uses the
    /// value as it was.
    pub fn change<R>(&mut self, mut change: impl FnMut(&mut T) -> R) -> R {
        let before = self.value.current.load(Ordering::Relaxed);
        let result = change(&mut *self.value.vacated(1 - before));
        self.value.current.store(1 - before, Ordering::Release);
        change(&mut *self.value.vacated(before));
        result
    }
}

#[cfg(not(all(test, loom)))]
mod sync {
    pub(super) use std::sync::atomic::{AtomicUsize, Ordering};
    pub(super) use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
    pub(super) use std::sync::{PoisonError, TryLockError};
    pub(super) use std::thread::yield_now as pause;

    /// Between two attempts of a writer that has waited for some time.
    pub(super) fn rest() {
        std::thread::sleep(std::time::Duration::from_micros(50));
    }
}

/// The types of loom, which runs the threads of `model` in every order.
#[cfg(all(test, loom))]
mod sync {
    pub(super) use loom::sync::atomic::{AtomicUsize, Ordering};
    pub(super) use loom::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
    pub(super) use loom::thread::yield_now as pause;
    pub(super) use loom::thread::yield_now as rest;
    pub(super) use std::sync::{PoisonError, TryLockError};
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_reader_in_the_old_copy_stops_the_writer_and_no_reader() {
        let value = LeftRight::new([0, 0]);
        let old = value.read();
        let changed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(value.writer().change(|value| std::mem::replace(value, 1)), 0);
                changed.store(true, Ordering::Release);
            });
            // Others see the change although its writer waits for this thread.
            while *value.read() == 0 {
                std::thread::yield_now();
            }
            assert_eq!((*old, *value.read()), (0, 1));
            assert!(!changed.load(Ordering::Acquire), "the old copy has a reader");
            drop(old);
        });
        assert!(changed.into_inner());
    }

    #[test]
    fn readers_see_whole_values_that_never_go_back() {
        const CHANGES: u64 = if cfg!(miri) { 50 } else { 20_000 };
        let value = LeftRight::new([[0u64; 8]; 2]);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let (mut last, started) = (0, Instant::now());
                    while last < CHANGES && started.elapsed().as_secs() < 60 {
                        let seen = *value.read();
                        assert!(seen.iter().all(|part| *part == seen[0]), "{seen:?}");
                        assert!(seen[0] >= last, "{} after {last}", seen[0]);
                        last = seen[0];
                    }
                    assert_eq!(last, CHANGES);
                });
            }
            for _ in 0..CHANGES {
                value.writer().change(|value| value.iter_mut().for_each(|part| *part += 1));
            }
        });
    }
}

#[cfg(all(test, loom))]
mod model {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    #[test]
    fn readers_see_whole_values_that_never_go_back() {
        loom::model(|| {
            let value = Arc::new(LeftRight::new([[0u8; 2]; 2]));
            let shared = Arc::clone(&value);
            let reader = thread::spawn(move || {
                let first = *shared.read();
                let second = *shared.read();
                assert!(first[0] == first[1] && second[0] == second[1]);
                assert!(first[0] <= second[0]);
            });
            for change in 1..=2 {
                value.writer().change(|value| *value = [change; 2]);
                assert_eq!(*value.read(), [change; 2]);
            }
            reader.join().unwrap();
        });
    }
}

//! Exclusive use of what a provider leaves unlocked: one user at a time, and none while a queue is destroyed.
//!
//! Three kinds of threads use a completion queue: its poller; those that post to a queue that completes into
//! it, as a provider checks there whether the queue is full (providers/mlx5/qp.c, `mlx5_wq_overflow`); and
//! those that destroy such a queue or move it to RDY, as a provider then takes its completions out of the
//! ring (providers/mlx5/cq.c, `__mlx5_cq_clean`). The library's lock between them is absent from a
//! SINGLE_THREADED queue and from everything under a thread domain, and where it is present it would wait for
//! ever for a batch that is open on the same thread. So this crate has a gate of its own: one per completion
//! queue, or one per thread domain for all that is made under it. It costs one uncontended exchange per poll,
//! post or send, nothing per completion. Users never wait for each other: entering fails.

use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a destroyer waits for an open batch before it gives up: far longer than any batch lasts.
const PAUSE_LIMIT: Duration = Duration::from_secs(1);

/// Invariant: at most one user is inside, and none while the gate is paused. Users and destroyers each raise
/// their own flag before they look at the other's, with sequential consistency, so they cannot both miss; a
/// user that leaves releases what it did to the next one that enters.
#[derive(Default)]
pub(crate) struct Gate {
    entered: AtomicBool,
    wanted: AtomicBool,
    /// Destroyers take turns.
    turn: Mutex<()>,
}

impl Gate {
    /// The user's side. False: paused, or another user is inside, perhaps of this thread; try again later.
    #[inline]
    pub(crate) fn enter(&self) -> bool {
        if self.entered.swap(true, Ordering::SeqCst) {
            return false;
        }
        if self.wanted.load(Ordering::SeqCst) {
            self.leave();
            return false;
        }
        true
    }

    #[inline]
    pub(crate) fn leave(&self) {
        self.entered.store(false, Ordering::Release);
    }

    /// The destroyer's side. `None`: a user did not leave in time.
    #[cold]
    pub(crate) fn pause(&self) -> Option<Paused<'_>> {
        self.pause_for(PAUSE_LIMIT)
    }

    fn pause_for(&self, limit: Duration) -> Option<Paused<'_>> {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let paused = Paused { gate: self, _turn: turn };
        self.wanted.store(true, Ordering::SeqCst);
        let start = Instant::now();
        while self.entered.load(Ordering::SeqCst) {
            if start.elapsed() > limit {
                return None;
            }
            std::thread::sleep(Duration::from_micros(1));
        }
        Some(paused)
    }
}

/// Pauses two gates, which may be one and the same. `None`: a user did not leave in time.
#[cold]
pub(crate) fn pause_both<'g>(a: &'g Gate, b: &'g Gate) -> Option<(Paused<'g>, Option<Paused<'g>>)> {
    if ptr::eq(a, b) {
        return Some((a.pause()?, None));
    }
    // In order of address, so that two of these never wait for each other.
    let (first, second) = if ptr::from_ref(a) < ptr::from_ref(b) { (a, b) } else { (b, a) };
    Some((first.pause()?, Some(second.pause()?)))
}

/// While this exists, no user is inside.
pub(crate) struct Paused<'g> {
    gate: &'g Gate,
    _turn: MutexGuard<'g, ()>,
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        self.gate.wanted.store(false, Ordering::SeqCst);
    }
}

/// The gates that a poster passes: its completion queue's, and its thread domain's if that is another one.
pub(crate) struct Gates {
    completions: Arc<Gate>,
    thread: Option<Arc<Gate>>,
}

impl Gates {
    pub(crate) fn new(completions: &Arc<Gate>, thread: Option<&Arc<Gate>>) -> Self {
        let thread = thread.filter(|thread| !Arc::ptr_eq(thread, completions));
        Self { completions: Arc::clone(completions), thread: thread.cloned() }
    }

    /// Enters all of them or none; leaves when the answer is dropped.
    #[inline]
    pub(crate) fn enter(&self) -> Option<Entered<'_>> {
        if !self.completions.enter() {
            return None;
        }
        if self.thread.as_ref().is_some_and(|thread| !thread.enter()) {
            self.completions.leave();
            return None;
        }
        Some(Entered(self))
    }

    /// Does what dropping an [`Entered`] does, for one that was forgotten.
    #[inline]
    pub(crate) fn leave(&self) {
        if let Some(thread) = &self.thread {
            thread.leave();
        }
        self.completions.leave();
    }
}

/// While this exists, its holder is the only user.
pub(crate) struct Entered<'g>(&'g Gates);

impl Drop for Entered<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.leave();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    /// Under Miri threads take turns, and spin through them.
    const TURNS: u32 = if cfg!(miri) { 3 } else { 200 };

    #[test]
    fn a_paused_gate_is_not_entered_and_an_entered_one_not_paused() {
        let gate = Gate::default();
        assert!(gate.enter());
        assert!(gate.pause_for(Duration::from_millis(5)).is_none());
        gate.leave();
        let paused = gate.pause_for(Duration::ZERO).expect("no user is inside");
        assert!(!gate.enter());
        drop(paused);
        assert!(gate.enter());
    }

    #[test]
    fn two_gates_are_paused_together_and_one_only_once() {
        let (a, b) = (Gate::default(), Gate::default());
        let both = pause_both(&a, &b).expect("no user is inside");
        assert!(!a.enter() && !b.enter());
        drop(both);
        let one = pause_both(&a, &a).expect("it does not wait for itself");
        assert!(!a.enter() && b.enter());
        drop(one);
        assert!(a.enter());
    }

    #[test]
    fn those_who_pause_two_gates_in_either_order_never_wait_for_each_other() {
        let (a, b) = (Gate::default(), Gate::default());
        std::thread::scope(|scope| {
            for (first, second) in [(&a, &b), (&b, &a)] {
                scope.spawn(move || {
                    for _ in 0..TURNS {
                        drop(pause_both(first, second).expect("no user is inside"));
                    }
                });
            }
        });
    }

    #[test]
    fn a_poster_enters_all_of_its_gates_or_none() {
        let (ring, thread) = (Arc::new(Gate::default()), Arc::new(Gate::default()));
        let shared = Gates::new(&ring, Some(&ring));
        drop(shared.enter().expect("one gate is entered once"));
        let both = Gates::new(&ring, Some(&thread));
        assert!(thread.enter());
        assert!(both.enter().is_none());
        thread.leave();
        let entered = both.enter().expect("the first gate was left again");
        assert!(!ring.enter() && !thread.enter() && shared.enter().is_none());
        drop(entered);
        assert!(ring.enter() && thread.enter());
    }

    #[test]
    fn users_and_destroyers_never_overlap() {
        let gate = Gate::default();
        let (inside, done) = (AtomicU32::new(0), AtomicBool::new(false));
        let use_it = || {
            while !done.load(Ordering::SeqCst) {
                if gate.enter() {
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    gate.leave();
                }
            }
        };
        let destroy_it = || {
            for _ in 0..TURNS {
                let paused = gate.pause().expect("users leave soon");
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                inside.fetch_sub(1, Ordering::SeqCst);
                drop(paused);
            }
        };
        std::thread::scope(|scope| {
            let destroyers = [scope.spawn(destroy_it), scope.spawn(destroy_it)];
            scope.spawn(use_it);
            scope.spawn(use_it);
            // However they ended: users would go on for ever.
            let ended = destroyers.map(std::thread::ScopedJoinHandle::join);
            done.store(true, Ordering::SeqCst);
            assert!(ended.iter().all(Result::is_ok), "a destroyer met a user, or waited too long");
        });
    }
}

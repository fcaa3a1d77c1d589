//! An eventfd(2) that wakes a thread, written to only if the thread sleeps ([`crate::flag`]). It stays
//! readable until the thread has read it, so a write may come before poll(2) begins.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use arrayvec::ArrayVec;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::flag::SleepFlag;

/// Wakes one sleeping thread. Everybody who has work for the thread has a reference.
#[derive(Debug)]
pub struct Wakeup {
    flag: SleepFlag,
    event: OwnedFd,
}

impl Wakeup {
    /// The most descriptors that [`Wakeup::sleep`] can wait for besides.
    pub const MAX_OTHERS: usize = 8;

    /// Opens the eventfd.
    ///
    /// # Errors
    /// The process or the system has no file descriptor left.
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { flag: SleepFlag::new(), event })
    }

    /// Wakes the thread if it sleeps, and otherwise makes no system call; to be called after new work is
    /// visible.
    #[inline]
    pub fn notify(&self) {
        if self.flag.take() {
            self.wake();
        }
    }

    /// Wakes the thread, also if it is only about to sleep: for the control side.
    #[cold]
    pub fn wake(&self) {
        // The only other error of this descriptor is a full counter, and then the thread is awake.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    /// Sleeps until [`Wakeup::notify`], [`Wakeup::wake`] or the end of `longest`, unless `ready` finds
    /// something to do. Only one thread may call this.
    pub fn wait(&self, ready: impl FnOnce() -> bool, longest: Duration) {
        self.announce_sleep();
        if !ready() {
            self.sleep([], longest);
        }
        self.end_sleep();
    }

    /// Announces a sleep. The thread looks for work after this, calls [`Wakeup::sleep`] if there is none, and
    /// [`Wakeup::end_sleep`] in any case.
    pub fn announce_sleep(&self) {
        self.flag.announce();
    }

    /// Sleeps until this object wakes the thread, one of the other descriptors has an event, or the time is
    /// over. Returns the events of the others, in their order. May return early.
    ///
    /// # Panics
    /// There are more than [`Wakeup::MAX_OTHERS`] others: [`Wakeup::sleep_among`] takes any number.
    pub fn sleep<'f>(
        &'f self,
        others: impl IntoIterator<Item = PollFd<'f>>,
        longest: Duration,
    ) -> ArrayVec<PollFlags, { Self::MAX_OTHERS }> {
        let mut entries: ArrayVec<_, { Self::MAX_OTHERS + 1 }> =
            std::iter::once(self.entry()).chain(others).collect();
        self.sleep_among(&mut entries, longest);
        entries.iter().skip(1).map(PollFd::revents).collect()
    }

    /// The entry of this object for [`Wakeup::sleep_among`].
    #[must_use]
    pub fn entry(&self) -> PollFd<'_> {
        PollFd::new(&self.event, PollFlags::IN)
    }

    /// Sleeps until one of the entries has an event, or the time is over. The first one must be
    /// [`Wakeup::entry`]. May return early.
    pub fn sleep_among(&self, entries: &mut [PollFd<'_>], longest: Duration) {
        let longest = Timespec::try_from(longest).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
        // An interrupted call is an early return, after which the thread looks at everything anyway.
        let _ = poll(entries, Some(&longest));
        if entries.first().is_some_and(|own| !own.revents().is_empty()) {
            let _ = rustix::io::read(&self.event, &mut [0; 8]);
        }
    }

    /// Ends a sleep that was announced, whatever woke the thread. A thread that has seen it asleep may write
    /// only now: then the next sleep ends early.
    pub fn end_sleep(&self) {
        self.flag.clear();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::Relaxed;
    use std::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    fn was_written(wakeup: &Wakeup) -> bool {
        rustix::io::read(&wakeup.event, &mut [0; 8]).is_ok()
    }

    #[test]
    fn nobody_who_is_awake_is_woken() {
        let wakeup = Wakeup::new().unwrap();
        wakeup.notify();
        assert!(!was_written(&wakeup));
        let begun = Instant::now();
        wakeup.wait(
            || {
                wakeup.notify();
                wakeup.notify();
                false
            },
            LONG,
        );
        assert!(begun.elapsed() < LONG / 2);
        assert!(!was_written(&wakeup), "the event was read");
    }

    #[test]
    fn a_wake_up_ends_one_sleep() {
        let wakeup = Wakeup::new().unwrap();
        wakeup.wake();
        let begun = Instant::now();
        wakeup.wait(|| false, LONG);
        assert!(begun.elapsed() < LONG / 2);
        let begun = Instant::now();
        wakeup.wait(|| false, Duration::from_millis(20));
        assert!(begun.elapsed() >= Duration::from_millis(20), "the event was read");
    }

    #[test]
    fn another_descriptor_ends_a_sleep() {
        let (wakeup, other) = (Wakeup::new().unwrap(), Wakeup::new().unwrap());
        other.wake();
        wakeup.announce_sleep();
        let begun = Instant::now();
        let events = wakeup.sleep([PollFd::new(&other.event, PollFlags::IN)], LONG);
        assert_eq!(events.as_slice(), [PollFlags::IN]);
        wakeup.end_sleep();
        assert!(begun.elapsed() < LONG / 2);
    }

    #[test]
    #[should_panic(expected = "capacity")]
    fn more_descriptors_than_fit_are_not_ignored() {
        let wakeup = Wakeup::new().unwrap();
        wakeup.sleep((0..=Wakeup::MAX_OTHERS).map(|_| wakeup.entry()), Duration::ZERO);
    }

    #[test]
    fn a_sleep_among_many_descriptors_reads_the_own_event() {
        let wakeup = Wakeup::new().unwrap();
        let others: Vec<Wakeup> = (0..20).map(|_| Wakeup::new().unwrap()).collect();
        others[19].wake();
        let mut entries: Vec<PollFd<'_>> =
            std::iter::once(&wakeup).chain(&others).map(Wakeup::entry).collect();
        wakeup.sleep_among(&mut entries, LONG);
        assert_eq!(entries[20].revents(), PollFlags::IN);
        wakeup.wake();
        wakeup.sleep_among(&mut entries, LONG);
        assert!(!was_written(&wakeup));
    }

    #[test]
    fn a_sleep_without_work_ends_with_its_time() {
        let wakeup = Wakeup::new().unwrap();
        let begun = Instant::now();
        wakeup.wait(|| false, Duration::from_millis(5));
        assert!(begun.elapsed() >= Duration::from_millis(5));
    }

    /// Two threads that wake each other by turns: a missed wake-up would take the whole time.
    #[test]
    fn no_wake_up_is_missed() {
        const TURNS: u64 = 5_000;
        let wakeups = Arc::new([Wakeup::new().unwrap(), Wakeup::new().unwrap()]);
        let turn = Arc::new(AtomicU64::new(0));
        let begun = Instant::now();
        let player = |me: u64| {
            let (wakeups, turn) = (Arc::clone(&wakeups), Arc::clone(&turn));
            std::thread::spawn(move || {
                let (own, other) = (&wakeups[me as usize], &wakeups[1 - me as usize]);
                while turn.load(Relaxed) < TURNS {
                    if turn.load(Relaxed) % 2 == me {
                        turn.fetch_add(1, Relaxed);
                        other.notify();
                        continue;
                    }
                    let is_over = |now: u64| now >= TURNS || now % 2 == me;
                    own.wait(|| is_over(turn.load(Relaxed)), LONG);
                }
                other.wake();
            })
        };
        let players = [player(0), player(1)];
        players.into_iter().for_each(|player| player.join().unwrap());
        assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
    }
}

//! How an idle engine sleeps, and how an application that posts a send wakes it: an eventfd(2), written to
//! only if the engine sleeps. Each engine has one; a send wakes the engine of its port, a control call all of
//! them. Sends to queues in mlx5's format wake none: the engine polls these ([`crate::engine`]'s `rest`).
//!
//! No send is missed. The engine stores `sleeping` and then looks at the send rings; the application
//! publishes its requests and then looks at `sleeping`. Between the store and the load of each side stands a
//! sequentially consistent fence. Of two such fences one is first in their total order, and what was stored
//! before it is visible to loads after the other. So either the engine sees the request and does not sleep,
//! or the application sees that the engine sleeps and writes to the eventfd, which stays readable until the
//! engine has read it: the write may come before poll(2) begins.
//!
//! Control calls look at `sleeping` while they hold the device's mutex, and the engine looks at the state
//! under the same mutex after it has stored `sleeping`: the later one of the two sees what the earlier one
//! did.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize, fence};
use std::time::Duration;

use arrayvec::ArrayVec;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::limits::MAX_PORTS;

/// Descriptors of wires that the engine waits for: one for each port.
pub(crate) type Descriptors = ArrayVec<RawFd, MAX_PORTS>;

/// Wakes one engine.
#[derive(Debug)]
pub(crate) struct Doorbell {
    sleeping: AtomicBool,
    event: OwnedFd,
}

impl Doorbell {
    /// Opens the eventfd.
    pub(crate) fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { sleeping: AtomicBool::new(false), event })
    }

    /// After requests were published: wakes the engine if it sleeps, otherwise makes no system call.
    #[inline]
    pub(crate) fn ring(&self) {
        fence(SeqCst);
        if self.sleeping.load(Relaxed) && self.sleeping.swap(false, SeqCst) {
            self.wake();
        }
    }

    /// Wakes the engine, also if it is only about to sleep.
    #[cold]
    pub(crate) fn wake(&self) {
        // The only other error of this descriptor is a full counter, and then the engine is awake.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    /// The engine is about to sleep: what it looks at from now on decides whether it does.
    pub(crate) fn announce_sleep(&self) {
        self.sleeping.store(true, SeqCst);
        fence(SeqCst);
    }

    /// Sleeps until the doorbell is rung, one of `wires` is readable, or the time is over.
    pub(crate) fn wait(&self, wires: &[RawFd], longest: Duration) {
        let mut entries: ArrayVec<PollFd<'_>, { MAX_PORTS + 1 }> = ArrayVec::new();
        entries.push(PollFd::from_borrowed_fd(self.event.as_fd(), PollFlags::IN));
        for wire in wires.iter().take(MAX_PORTS) {
            // SAFETY: a wire keeps the descriptor of its hint open until its next call, and only the engine,
            // which is here, calls wires that receive. A wrong descriptor would make this return early or
            // late, nothing else.
            let wire = unsafe { BorrowedFd::borrow_raw(*wire) };
            entries.push(PollFd::from_borrowed_fd(wire, PollFlags::IN));
        }
        let timeout = Timespec {
            tv_sec: i64::try_from(longest.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: longest.subsec_nanos().into(),
        };
        // An interrupted call is an early return, after which the engine looks at everything anyway.
        let readable = poll(&mut entries, Some(&timeout));
        if readable.is_ok() && !entries[0].revents().is_empty() {
            let _ = rustix::io::read(&self.event, &mut [0; 8]);
        }
    }

    /// The engine is awake, whatever woke it. An application that has seen it asleep may write only now: then
    /// the next sleep ends early.
    pub(crate) fn end_sleep(&self) {
        self.sleeping.store(false, Relaxed);
    }
}

/// Wakes the engine that sends what is posted to one queue pair. Shared by both sides of its send queue.
#[derive(Debug)]
pub(crate) struct SendBell {
    doorbells: Arc<[Doorbell]>,
    /// The engine of its port. An application posts nothing before the call that sets the port has returned.
    engine: AtomicUsize,
}

impl SendBell {
    /// Makes the doorbell of a queue pair without a port.
    pub(crate) fn new(doorbells: &Arc<[Doorbell]>) -> Arc<Self> {
        Arc::new(Self { doorbells: Arc::clone(doorbells), engine: AtomicUsize::new(0) })
    }

    /// The queue pair has a port of this engine.
    pub(crate) fn set_engine(&self, engine: usize) {
        self.engine.store(engine, Relaxed);
    }

    /// After requests were published: see [`Doorbell::ring`].
    #[inline]
    pub(crate) fn ring(&self) {
        if let Some(doorbell) = self.doorbells.get(self.engine.load(Relaxed)) {
            doorbell.ring();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn nobody_who_is_awake_is_woken() {
        let doorbell = Doorbell::new().unwrap();
        doorbell.ring();
        assert!(rustix::io::read(&doorbell.event, &mut [0; 8]).is_err(), "nothing was written");
        doorbell.announce_sleep();
        doorbell.ring();
        doorbell.ring();
        let begun = Instant::now();
        doorbell.wait(&[], LONG);
        doorbell.end_sleep();
        assert!(begun.elapsed() < LONG / 2);
        assert!(rustix::io::read(&doorbell.event, &mut [0; 8]).is_err(), "the event was read");
    }

    #[test]
    fn a_send_wakes_the_engine_of_its_port_only() {
        let doorbells: Arc<[Doorbell]> = (0..2).map(|_| Doorbell::new().unwrap()).collect();
        let bell = SendBell::new(&doorbells);
        doorbells.iter().for_each(Doorbell::announce_sleep);
        bell.set_engine(1);
        bell.ring();
        let sleeping = |doorbell: &Doorbell| doorbell.sleeping.load(Relaxed);
        assert_eq!((sleeping(&doorbells[0]), sleeping(&doorbells[1])), (true, false));
        bell.set_engine(0);
        bell.ring();
        assert!(!sleeping(&doorbells[0]));
    }

    /// Two threads that wake each other by turns: a missed wake-up would take the whole time.
    #[test]
    fn no_wake_up_is_missed() {
        const TURNS: u64 = 5_000;
        let bells: Arc<[Doorbell; 2]> = Arc::new([Doorbell::new().unwrap(), Doorbell::new().unwrap()]);
        let turn = Arc::new(AtomicU64::new(0));
        let begun = Instant::now();
        let player = |me: u64| {
            let (bells, turn) = (Arc::clone(&bells), Arc::clone(&turn));
            std::thread::spawn(move || {
                let (own, other) = (&bells[me as usize], &bells[1 - me as usize]);
                while turn.load(Relaxed) < TURNS {
                    if turn.load(Relaxed) % 2 == me {
                        turn.fetch_add(1, Relaxed);
                        other.ring();
                        continue;
                    }
                    own.announce_sleep();
                    let now = turn.load(Relaxed);
                    if now < TURNS && now % 2 != me {
                        own.wait(&[], LONG);
                    }
                    own.end_sleep();
                }
                other.wake();
            })
        };
        let players = [player(0), player(1)];
        players.into_iter().for_each(|player| player.join().unwrap());
        assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
    }
}

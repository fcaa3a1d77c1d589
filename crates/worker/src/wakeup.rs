//! How a worker wakes the thread of a sink: an eventfd(2), written to only if the thread sleeps.
//!
//! No wake-up is lost: the thread stores `sleeping` and then looks into its rings; the worker stores its
//! records and then looks at `sleeping`. Between the store and the load of each side stands a sequentially
//! consistent fence, so at least one of the two sees what the other stored (store buffering, Boehm and Adve,
//! PLDI 2008; the C++ memory model's rule for two fences).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, fence};
use std::time::Duration;

use crossbeam::utils::CachePadded;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// Wakes one sleeping thread. Each worker that hands packets to the thread has a reference.
#[derive(Debug)]
pub struct Wakeup {
    sleeping: CachePadded<AtomicBool>,
    event: OwnedFd,
}

impl Wakeup {
    /// Opens the eventfd.
    ///
    /// # Errors
    /// The process or the system has no file descriptor left.
    pub fn new() -> io::Result<Arc<Self>> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Self { sleeping: CachePadded::new(AtomicBool::new(false)), event }))
    }

    /// After new records are visible: wakes the thread if it sleeps, otherwise makes no system call.
    #[inline]
    pub fn notify(&self) {
        fence(SeqCst);
        if self.sleeping.load(Relaxed) && self.sleeping.swap(false, SeqCst) {
            self.wake();
        }
    }

    /// Wakes the thread whether it sleeps or not, which is then about to sleep: for the control side.
    #[cold]
    pub fn wake(&self) {
        // The only other error of this descriptor is a full counter, and then the thread is awake.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    /// Sleeps until [`Wakeup::notify`], [`Wakeup::wake`] or the timeout, unless `ready` finds something to
    /// do. Only one thread may call this.
    pub fn wait(&self, ready: impl FnOnce() -> bool, timeout: Duration) {
        self.announce_sleep();
        if !ready() {
            let timeout = Timespec {
                tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: timeout.subsec_nanos().into(),
            };
            // An interrupted call is an early return, which the caller has to expect anyway.
            let _ = poll(&mut [PollFd::new(&self.event, PollFlags::IN)], Some(&timeout));
        }
        self.end_sleep();
    }

    /// For a thread that sleeps in a call of its own, on this object's descriptor and others: before it looks
    /// into its rings for the last time. [`Wakeup::end_sleep`] follows after the call.
    pub fn announce_sleep(&self) {
        self.sleeping.store(true, SeqCst);
        fence(SeqCst);
    }

    /// After a sleep that [`Wakeup::announce_sleep`] began, whatever ended it.
    pub fn end_sleep(&self) {
        self.sleeping.store(false, SeqCst);
        // Nothing to read after a timeout. A worker that cleared the flag and writes only now ends the next
        // sleep early.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }
}

impl AsFd for Wakeup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

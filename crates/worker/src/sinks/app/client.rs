//! A connected client: its rings, as workers and the server's thread share them, and its counters.
//!
//! A ring has one user at a time: a worker that finds it locked by another tries a bounded number of times
//! and then counts its packets as contended. Nobody waits for a lock. Only the server's thread drops a
//! client, and with it the mapping of its memory ([`super::roster`]).

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use crossbeam::utils::CachePadded;
use parking::Wakeup;
use rustix::event::PollFd;
use shm::memif::ring::{ServerReceiver, ServerSender, Violation};
use shm::memif::server::{Connection, RINGS_MAX};
use shm::{ForeignFile, Peer};

/// How often a worker tries to lock a ring: some microseconds, about as long as another worker needs for a
/// batch.
const LOCK_ATTEMPTS: u32 = 128;

const _: () = assert!(RINGS_MAX as u32 <= u64::BITS && RINGS_MAX == program::APP_RINGS_MAX);

/// The totals of a client's packets. Workers add to them once per batch.
#[derive(Debug, Default)]
pub(super) struct ClientCounters {
    pub(super) delivered: AtomicU64,
    pub(super) delivered_bytes: AtomicU64,
    pub(super) ring_full: AtomicU64,
    pub(super) contended: AtomicU64,
    pub(super) too_long: AtomicU64,
    /// Frames that it sent, and their bytes. They are received, checked and counted.
    pub(super) returned: AtomicU64,
    pub(super) returned_bytes: AtomicU64,
    /// Frames that it sent and that are longer than a worker's buffer.
    pub(super) returned_too_long: AtomicU64,
}

/// Adds to a counter that other workers add to, unless there is nothing to add.
#[inline]
pub(super) fn add(counter: &AtomicU64, count: u64) {
    if count > 0 {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}

/// A connected client.
#[derive(Debug)]
pub(super) struct Client {
    /// Counts the clients of a sink, from 1.
    pub(super) id: u64,
    /// Application and interface, as it named them.
    pub(super) name: String,
    pub(super) peer: Peer,
    pub(super) bytes: u64,
    /// Descriptors in its first ring.
    pub(super) ring_size: u16,
    senders: Box<[CachePadded<Mutex<ServerSender>>]>,
    receivers: Box<[CachePadded<Mutex<ServerReceiver>>]>,
    /// The eventfds of `senders`.
    pub(super) interrupts: Box<[ForeignFile]>,
    /// A bit for each ring of `senders`: the client waits for an interrupt.
    wanted: AtomicU64,
    /// 0 while it is connected; else 1 and the index of the violation in [`Violation::ALL`].
    broken: AtomicU8,
    pub(super) counters: CachePadded<ClientCounters>,
}

impl Client {
    pub(super) fn new(id: u64, peer: Peer, connection: Connection) -> Self {
        let Connection { name, interface, senders, interrupts, receivers, bytes, .. } = connection;
        let each = |sender| CachePadded::new(Mutex::new(sender));
        Self {
            id,
            name: format!("{name}/{interface}"),
            peer,
            bytes,
            ring_size: senders.first().map_or(0, ServerSender::size),
            senders: senders.into_iter().map(each).collect(),
            receivers: receivers.into_iter().map(|receiver| CachePadded::new(Mutex::new(receiver))).collect(),
            interrupts: interrupts.into(),
            wanted: AtomicU64::new(0),
            broken: AtomicU8::new(0),
            counters: CachePadded::default(),
        }
    }

    /// Rings to the client.
    pub(super) fn rings(&self) -> usize {
        self.senders.len()
    }

    /// The ring to the client that this worker uses, with its number.
    #[inline]
    pub(super) fn sender(&self, worker: usize) -> Option<(usize, MutexGuard<'_, ServerSender>)> {
        let number = worker % self.senders.len();
        let ring = self.senders.get(number)?;
        for _ in 0..LOCK_ATTEMPTS {
            if let Some(guard) = try_lock(ring) {
                return Some((number, guard));
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Rings from the client.
    pub(super) fn rings_back(&self) -> usize {
        self.receivers.len()
    }

    /// A ring from the client, unless another worker reads it.
    #[inline]
    pub(super) fn receiver(&self, ring: usize) -> Option<MutexGuard<'_, ServerReceiver>> {
        self.receivers.get(ring).and_then(|ring| try_lock(ring))
    }

    /// Notes that the client waits for an interrupt of a ring. Returns whether that was not known yet.
    #[inline]
    pub(super) fn want_interrupt(&self, ring: usize) -> bool {
        let bit = 1 << ring;
        self.wanted.load(Ordering::Relaxed) & bit == 0
            && self.wanted.fetch_or(bit, Ordering::SeqCst) & bit == 0
    }

    /// The rings with an interrupt to be sent, as bits.
    pub(super) fn take_wanted(&self) -> u64 {
        if self.wanted.load(Ordering::SeqCst) == 0 { 0 } else { self.wanted.swap(0, Ordering::SeqCst) }
    }

    /// Whether workers still use it.
    #[inline]
    pub(super) fn is_sound(&self) -> bool {
        self.broken.load(Ordering::Relaxed) == 0
    }

    /// The client broke a rule: no worker uses it any more, and the server disconnects it.
    #[cold]
    pub(super) fn note_violation(&self, violation: Violation) {
        let index = Violation::ALL.iter().position(|known| *known == violation).unwrap_or_default();
        let _ = self.broken.compare_exchange(0, 1 + index as u8, Ordering::SeqCst, Ordering::Relaxed);
    }

    pub(super) fn violation(&self) -> Option<Violation> {
        let index = self.broken.load(Ordering::SeqCst).checked_sub(1)?;
        Violation::ALL.get(usize::from(index)).copied()
    }
}

/// The lock, if nobody holds it. A worker that panicked with it leaves the ring usable: its state is two
/// indices.
#[inline]
fn try_lock<T>(ring: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match ring.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Wakes the server's thread, which looks at all clients then.
#[derive(Debug)]
pub(super) struct ThreadWakeup {
    wakeup: Wakeup,
    attention: CachePadded<AtomicBool>,
}

impl ThreadWakeup {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { wakeup: Wakeup::new()?, attention: CachePadded::default() })
    }

    #[inline]
    pub(super) fn wake(&self) {
        // Read and written at once, so that the thread sees what every worker wrote before, not only the
        // last.
        self.attention.swap(true, Ordering::AcqRel);
        self.wakeup.notify();
    }

    /// The entry of this object for [`ThreadWakeup::wait`].
    pub(super) fn entry(&self) -> PollFd<'_> {
        self.wakeup.entry()
    }

    /// Called by the thread alone: waits until it is woken, one of the entries has an event, or the time is
    /// over. The first entry must be [`ThreadWakeup::entry`].
    pub(super) fn wait(&self, entries: &mut [PollFd<'_>], longest: impl FnOnce() -> Duration) {
        self.wakeup.announce_sleep();
        let is_wanted = self.attention.load(Ordering::Acquire);
        self.wakeup.sleep_among(entries, if is_wanted { Duration::ZERO } else { longest() });
        self.wakeup.end_sleep();
        // Read and written at once: what a worker wrote before it set it is seen by the round that follows.
        self.attention.swap(false, Ordering::AcqRel);
    }
}

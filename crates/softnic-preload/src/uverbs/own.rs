//! Which descriptors and streams of a process are the device's, to be found without a lock.
//!
//! `close`, `openat` and `readdir` are called in children of fork(2) and vfork(2) before exec(3). There a
//! lock may be held by a thread that does not exist in the child, and after vfork(2) the memory is the
//! parent's. So a child finds nothing here and changes nothing, until it adds something itself.

use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};

/// Entries of a list.
const MAX: usize = 64;
/// No descriptor and no address.
const FREE: usize = usize::MAX;

/// A list of descriptors, or of streams by their addresses.
pub(super) struct Own {
    entries: [AtomicUsize; MAX],
    /// How many entries there are: most processes have none.
    count: AtomicU32,
    /// The process whose they are; 0 for none yet.
    process: AtomicI32,
}

/// The number of this process.
pub(super) fn process() -> c_int {
    // SAFETY: asks for a number.
    unsafe { libc::getpid() }
}

impl Own {
    pub(super) const fn new() -> Self {
        let entries = [const { AtomicUsize::new(FREE) }; MAX];
        Self { entries, count: AtomicU32::new(0), process: AtomicI32::new(0) }
    }

    /// Adds an entry, unless it is there; false if there are too many.
    pub(super) fn add(&self, entry: usize) -> bool {
        if self.has(entry) {
            return true;
        }
        let process = process();
        let before = self.process.swap(process, Ordering::Relaxed);
        if before != 0 && before != process {
            // The entries of the process that this one is a copy of.
            self.entries.iter().for_each(|place| place.store(FREE, Ordering::Relaxed));
            self.count.store(0, Ordering::Relaxed);
        }
        let added = self.replace(FREE, entry);
        if added {
            self.count.fetch_add(1, Ordering::Release);
        }
        added
    }

    /// Whether it is an entry of this process.
    pub(super) fn has(&self, entry: usize) -> bool {
        self.count.load(Ordering::Acquire) != 0
            && entry != FREE
            && self.entries.iter().any(|place| place.load(Ordering::Relaxed) == entry)
            && self.process.load(Ordering::Relaxed) == process()
    }

    /// Removes an entry of this process.
    pub(super) fn remove(&self, entry: usize) {
        if self.has(entry) && self.replace(entry, FREE) {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn replace(&self, from: usize, to: usize) -> bool {
        let relaxed = Ordering::Relaxed;
        self.entries.iter().any(|place| place.compare_exchange(from, to, relaxed, relaxed).is_ok())
    }
}

/// A descriptor as an entry; a negative one is none.
pub(super) fn entry(descriptor: c_int) -> usize {
    usize::try_from(descriptor).unwrap_or(FREE)
}

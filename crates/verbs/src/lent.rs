//! Memory lent to a device: a queue keeps every region it was given frames of until it is destroyed.
//!
//! The device may write to a posted frame, and read one being sent, as long as the queue is there, whatever becomes of
//! the pool. [`Lent`] belongs to what is destroyed, [`Lender`] to the one who posts; nothing here is ever given back
//! early, so a queue takes frames of a limited number of pools in its life.

use std::ffi::c_int;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

use crate::{Domain, FramePool, MemoryRegion};

/// Most pools that one queue takes frames of.
pub const MAX_POOLS: usize = 64;

/// The regions a device may reach through a queue.
pub(crate) struct Lent(Mutex<Vec<Arc<MemoryRegion>>>);

impl Lent {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Vec::with_capacity(MAX_POOLS)))
    }

    /// All of them, for a queue that could not be destroyed.
    pub(crate) fn take(&self) -> Vec<Arc<MemoryRegion>> {
        mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The pools whose regions are in a queue's [`Lent`].
pub(crate) struct Lender {
    /// Ids, which are never used twice.
    pools: Vec<u32>,
}

impl Lender {
    pub(crate) fn new() -> Self {
        Self { pools: Vec::with_capacity(MAX_POOLS) }
    }

    /// Sees to it that the queue keeps the memory of `pool`, before the first frame of it is posted.
    ///
    /// # Errors
    /// An errno: EINVAL for memory that is not registered in the queue's protection domain, so that the device could
    /// not reach it; ENOSPC for one pool too many.
    #[inline]
    pub(crate) fn lend(&mut self, pool: &FramePool, lent: &Lent, domain: &Domain) -> Result<(), c_int> {
        if self.pools.contains(&pool.id()) { Ok(()) } else { self.lend_first(pool, lent, domain) }
    }

    #[cold]
    fn lend_first(&mut self, pool: &FramePool, lent: &Lent, domain: &Domain) -> Result<(), c_int> {
        let region = pool.region();
        if region.domain().protection() != domain.protection() {
            return Err(libc::EINVAL);
        }
        if self.pools.len() == MAX_POOLS {
            return Err(libc::ENOSPC);
        }
        lent.0.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(region));
        self.pools.push(pool.id());
        Ok(())
    }
}

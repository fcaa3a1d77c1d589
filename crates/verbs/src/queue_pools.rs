//! The memory that a device may reach through a queue.
//!
//! The device may write to a posted frame, and read one being sent, as long as the queue exists, whatever
//! happens to the pool. A queue keeps every region of which it was given frames, so it takes frames of a
//! limited number of pools.

use std::ffi::c_int;
use std::mem;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};

use crate::frame::QueueKey;
use crate::{Domain, FramePool, MemoryRegion, RegisteredFrames};

/// Most pools that one queue takes frames of.
pub const MAX_POOLS: usize = 64;

/// The regions a device may reach through a queue.
pub(crate) struct QueueRegions(Mutex<Vec<Arc<MemoryRegion>>>);

impl QueueRegions {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Vec::with_capacity(MAX_POOLS)))
    }

    /// All of them, for a queue that could not be destroyed.
    pub(crate) fn take(&self) -> Vec<Arc<MemoryRegion>> {
        mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A pool whose region is in a queue's [`QueueRegions`].
struct QueuePool {
    /// Never used twice.
    id: NonZeroU32,
    /// The key of the pool's memory in the queue's domain.
    lkey: u32,
    /// The device may write to the memory by that key.
    is_writable: bool,
    /// The pool knows that its frames are posted to this queue.
    is_receiving: bool,
}

/// The pools whose regions are in a queue's [`QueueRegions`].
pub(crate) struct QueuePools {
    pools: Vec<QueuePool>,
    key: QueueKey,
}

impl QueuePools {
    pub(crate) fn new() -> Self {
        Self { pools: Vec::with_capacity(MAX_POOLS), key: QueueKey::new() }
    }

    /// Returns the key by which pools know the queue.
    pub(crate) fn key(&self) -> QueueKey {
        self.key
    }

    /// Whether the queue was given no frames yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.pools.is_empty()
    }

    /// Sees to it that the queue keeps the memory of `pool`, before the first frame of it is sent. Returns
    /// the key of that memory.
    ///
    /// # Errors
    /// An errno: EINVAL for memory that is not registered in the queue's protection domain, so that the
    /// device could not reach it; ENOSPC for one pool too many.
    #[inline]
    pub(crate) fn keep(
        &mut self,
        pool: &FramePool,
        regions: &QueueRegions,
        domain: &Domain,
    ) -> Result<u32, c_int> {
        match self.find(pool.id()) {
            Some(known) => Ok(known.lkey),
            None => self.admit(&pool.registered(), regions, domain),
        }
    }

    /// Keeps a pool as [`QueuePools::keep`] does, before frames are posted to receive into. A device that is
    /// not allowed to write to one would put the queue into the error state when a packet arrives.
    ///
    /// # Errors
    /// Besides, EINVAL for memory that the queue knows by a registration for sends only, or that is
    /// registered without [`Access::LOCAL_WRITE`](crate::Access::LOCAL_WRITE).
    #[inline]
    pub(crate) fn keep_writable(
        &mut self,
        pool: &mut FramePool,
        regions: &QueueRegions,
        domain: &Domain,
    ) -> Result<u32, c_int> {
        match self.find(pool.id()) {
            Some(QueuePool { lkey, is_writable: true, is_receiving: true, .. }) => Ok(*lkey),
            _ => self.begin_receiving(pool, regions, domain),
        }
    }

    /// Does what [`QueuePools::keep_writable`] does for the first frames.
    #[cold]
    fn begin_receiving(
        &mut self,
        pool: &mut FramePool,
        regions: &QueueRegions,
        domain: &Domain,
    ) -> Result<u32, c_int> {
        let frames = pool.registered();
        if self.find(pool.id()).is_none() && frames.region().is_writable() {
            self.admit(&frames, regions, domain)?;
        }
        let known = self.pools.iter_mut().find(|known| known.id == pool.id() && known.is_writable);
        let known = known.ok_or(libc::EINVAL)?;
        known.is_receiving = true;
        pool.note_receiver(self.key);
        Ok(known.lkey)
    }

    #[inline]
    fn find(&self, id: NonZeroU32) -> Option<&QueuePool> {
        self.pools.iter().find(|pool| pool.id == id)
    }

    /// Keeps a pool as [`QueuePools::keep`] does, by this registration of its memory, for all its frames from
    /// now on.
    #[cold]
    pub(crate) fn admit(
        &mut self,
        frames: &RegisteredFrames,
        regions: &QueueRegions,
        domain: &Domain,
    ) -> Result<u32, c_int> {
        if let Some(known) = self.find(frames.pool()) {
            return Ok(known.lkey);
        }
        let region = frames.region();
        if region.domain().protection() != domain.protection() {
            return Err(libc::EINVAL);
        }
        if self.pools.len() == MAX_POOLS {
            return Err(libc::ENOSPC);
        }
        regions.0.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(region));
        let (lkey, is_writable) = (region.lkey(), region.is_writable());
        self.pools.push(QueuePool { id: frames.pool(), lkey, is_writable, is_receiving: false });
        Ok(lkey)
    }
}

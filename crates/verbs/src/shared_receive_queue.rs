//! Shared receive queues, as far as raw packets have to do with them: a field of `ibv_create_qp_ex` that a device may
//! refuse for such queue pairs.
//!
//! A shared receive queue can be made, named when a queue pair is made, and destroyed. Nothing can be posted to it:
//! queues that share receives are work queues here ([`IndirectionTable`](crate::IndirectionTable)).

use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys::{self as sys, ibv_srq, ibv_srq_attr, ibv_srq_init_attr};

use crate::error::{created, from_code};
use crate::{Domain, Error, MAX_RECEIVES, Result, leak};

/// A receive queue for several queue pairs.
pub struct SharedReceiveQueue {
    raw: NonNull<ibv_srq>,
    domain: Domain,
    max_receives: u32,
}

// SAFETY: it has a ring that nobody here touches; its verbs may be called from any thread.
unsafe impl Send for SharedReceiveQueue {}
// SAFETY: as above.
unsafe impl Sync for SharedReceiveQueue {}

impl SharedReceiveQueue {
    /// `ibv_create_srq`, for at least `max_receives` receives of `max_parts` pieces of memory each.
    ///
    /// # Errors
    /// EOPNOTSUPP or ENOSYS where a device has none, EINVAL beyond its limits, ENOMEM.
    pub fn new(domain: &Domain, max_receives: u32, max_parts: u32) -> Result<Arc<Self>> {
        let failed =
            |source| Error::CreateSharedReceiveQueue { device: domain.context().name().into(), source };
        if !(1..=MAX_RECEIVES).contains(&max_receives) {
            return Err(failed(from_code(libc::EINVAL)));
        }
        let attr = ibv_srq_attr { max_wr: max_receives, max_sge: max_parts, srq_limit: 0 };
        let mut attr = ibv_srq_init_attr { srq_context: std::ptr::null_mut(), attr };
        // SAFETY: the domain is live and, being kept below, outlives the queue.
        let create = || unsafe { sys::ibv_create_srq(domain.raw(), &raw mut attr) };
        let raw = created(create).map_err(failed)?;
        Ok(Arc::new(Self { raw, domain: domain.clone(), max_receives: attr.attr.max_wr }))
    }

    /// How many receives the device gave it.
    pub fn max_receives(&self) -> u32 {
        self.max_receives
    }

    pub(crate) fn domain(&self) -> &Domain {
        &self.domain
    }

    pub(crate) fn raw(&self) -> *mut ibv_srq {
        self.raw.as_ptr()
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        // SAFETY: `raw` came from `ibv_create_srq`; queue pairs on it held an `Arc` of this and are gone.
        let code = unsafe { sys::ibv_destroy_srq(self.raw()) };
        leak::keep("ibv_destroy_srq", self.domain.context().name(), code, || self.domain.clone());
    }
}

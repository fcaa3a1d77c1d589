//! The part of a raw queue pair that others share: what flows name and keep alive, and what can be asked of it.
//!
//! Never on the packet path.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys::{self as sys, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask};

use crate::error::from_code;
use crate::lent::Lent;
use crate::{
    CompletionQueueHandle, Context, Domain, Error, QueueNumber, QueuePairAttributes, QueuePairCaps, Result,
    SharedReceiveQueue, leak, queue_pair,
};

/// A raw packet queue pair, as flows to it see it.
pub struct RawQueuePairHandle {
    pub(super) raw: NonNull<ibv_qp>,
    pub(super) number: QueueNumber,
    pub(super) domain: Domain,
    pub(super) send_completions: Arc<CompletionQueueHandle>,
    pub(super) receive_completions: Arc<CompletionQueueHandle>,
    pub(super) shared_receives: Option<Arc<SharedReceiveQueue>>,
    /// As the device gave them.
    pub(super) caps: QueuePairCaps,
    /// What the device may read and write.
    pub(super) lent: Lent,
}

// SAFETY: the rings are touched only through the one `RawQueuePair`; other verbs may be called from any thread.
unsafe impl Send for RawQueuePairHandle {}
// SAFETY: as above.
unsafe impl Sync for RawQueuePairHandle {}

impl RawQueuePairHandle {
    /// The device's number for it.
    pub fn number(&self) -> QueueNumber {
        self.number
    }

    /// How much the device gave it.
    pub fn caps(&self) -> QueuePairCaps {
        self.caps
    }

    /// What it says about itself now. Asks the device each time.
    pub fn query(&self) -> Result<QueuePairAttributes> {
        // SAFETY: the queue pair is live and of this context.
        unsafe { queue_pair::query(self.context(), self.raw()) }
    }

    pub(crate) fn raw(&self) -> *mut ibv_qp {
        self.raw.as_ptr()
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        self.domain.context()
    }

    /// Does something with nobody polling where the queue pair completes, or posting to what completes there.
    fn alone(&self, act: impl FnOnce() -> c_int) -> c_int {
        let Some(_paused) = self.send_completions.pause_with(&self.receive_completions) else {
            return libc::EBUSY;
        };
        act()
    }

    /// Moves it to a state, by the fields that `mask` names besides.
    pub(super) fn modify(
        &self,
        name: &'static str,
        mut attr: ibv_qp_attr,
        mask: ibv_qp_attr_mask,
    ) -> Result<()> {
        let mask = (mask | ibv_qp_attr_mask::IBV_QP_STATE).0.cast_signed();
        // SAFETY: the queue pair is live; the attributes are only read.
        let mut act = || unsafe { sys::ibv_modify_qp(self.raw(), &raw mut attr, mask) };
        // On the way down a provider takes the queue pair's completions out of the ring (providers/mlx5/verbs.c,
        // `mlx5_modify_qp`).
        let code = if matches!(name, "RESET" | "ERR") { self.alone(act) } else { act() };
        if code == 0 {
            return Ok(());
        }
        let (device, number) = (self.context().name().into(), self.number);
        Err(Error::ModifyQueuePair { device, number, state: name, source: from_code(code) })
    }
}

impl Drop for RawQueuePairHandle {
    fn drop(&mut self) {
        // SAFETY: `raw` came from the creating verb, and flows to it and its owner held an `Arc` of this and are gone.
        let code = self.alone(|| unsafe { sys::ibv_destroy_qp(self.raw()) });
        leak::keep("ibv_destroy_qp", self.context().name(), code, || {
            let completions = (Arc::clone(&self.send_completions), Arc::clone(&self.receive_completions));
            (self.domain.clone(), completions, self.shared_receives.clone(), self.lent.take())
        });
    }
}

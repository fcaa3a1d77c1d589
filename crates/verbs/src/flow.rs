//! Flows (`ibv_flow`): what a device does with packets that match. Control code installs and removes them,
//! never the packet path. [`attr`] describes a flow to the library.

mod action;
mod attr;
mod priorities;
#[cfg(test)]
mod tests;

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys::{ibv_flow, ibv_qp};

pub use self::action::{EspAction, EspFlags, FlowAction};
pub use self::attr::{ActionSpec, FlowAttr, FlowKind};
pub use self::priorities::accepted_priorities;
use crate::error::{created, from_code};
use crate::{Context, RawQueuePairHandle, Result, RssQueuePair, VerbsError, inline, leak};

/// Where a flow's packets go. One that drops them needs a target as well, to name the device.
#[derive(Clone)]
pub enum FlowTarget {
    /// Spread over work queues.
    Rss(Arc<RssQueuePair>),
    /// Into one queue pair's own receive queue.
    Raw(Arc<RawQueuePairHandle>),
}

impl FlowTarget {
    fn raw(&self) -> *mut ibv_qp {
        match self {
            Self::Rss(pair) => pair.raw(),
            Self::Raw(pair) => pair.raw(),
        }
    }

    fn context(&self) -> &Arc<Context> {
        match self {
            Self::Rss(pair) => pair.context(),
            Self::Raw(pair) => pair.context(),
        }
    }
}

impl From<Arc<RssQueuePair>> for FlowTarget {
    fn from(pair: Arc<RssQueuePair>) -> Self {
        Self::Rss(pair)
    }
}

impl From<Arc<RawQueuePairHandle>> for FlowTarget {
    fn from(pair: Arc<RawQueuePairHandle>) -> Self {
        Self::Raw(pair)
    }
}

/// An installed flow; removed when dropped.
#[must_use = "a flow is removed from the device when it is dropped"]
pub struct FlowHandle {
    /// `None` once destroyed.
    raw: Option<NonNull<ibv_flow>>,
    target: FlowTarget,
    /// Keeps counters and action handles alive.
    actions: Vec<ActionSpec>,
}

// SAFETY: never written after it was made; its verb may be called from any thread.
unsafe impl Send for FlowHandle {}
// SAFETY: nothing can be done with a shared reference.
unsafe impl Sync for FlowHandle {}

impl FlowHandle {
    /// `ibv_create_flow`. The flow keeps its target, its counters and its actions alive.
    ///
    /// # Errors
    /// By ibv_create_flow(3) and uverbs_cmd.c: EINVAL for specs, masks or flags that make no sense together,
    /// EOPNOTSUPP for what the device cannot match or do, ENOMEM for a full table (and, on mlx5, for a
    /// priority above its highest), EEXIST for a match that is there already, EPERM without CAP_NET_RAW,
    /// ENXIO for a port that is not there.
    pub fn create(target: &FlowTarget, attr: &FlowAttr) -> Result<Self> {
        let context = target.context();
        let failed = |source| VerbsError::CreateFlow {
            device: context.name().into(),
            port: attr.port,
            priority: attr.priority,
            source,
        };
        attr.actions.iter().try_for_each(|action| match action {
            ActionSpec::Count(counters) => context.same_as(counters.context()),
            ActionSpec::Handle(action) => context.same_as(action.context()),
            ActionSpec::Tag(_) | ActionSpec::Drop => Ok(()),
        })?;
        let mut block = attr.block()?;
        // SAFETY: context and queue pair are live, the block is well formed, and the counters and actions in
        // it are kept below.
        let create = || unsafe { inline::create_flow(context.raw(), target.raw(), block.as_mut_ptr()) };
        let raw = created(create).map_err(failed)?;
        Ok(Self { raw: Some(raw), target: target.clone(), actions: attr.actions.clone() })
    }

    /// `ibv_destroy_flow`, for callers that want to know: after a refusal the flow is still installed and
    /// comes back. Dropping a flow does the same but can only log.
    pub fn destroy(mut self) -> std::result::Result<(), (Self, VerbsError)> {
        match self.remove() {
            0 => Ok(()),
            code => {
                let device = self.target.context().name().into();
                Err((self, VerbsError::DestroyFlow { device, source: from_code(code) }))
            }
        }
    }

    fn remove(&mut self) -> c_int {
        let Some(raw) = self.raw else { return 0 };
        // SAFETY: `raw` came from `create_flow` and is destroyed once: it is forgotten when that has
        // succeeded.
        let code = unsafe { inline::destroy_flow(self.target.context().raw(), raw.as_ptr()) };
        if code == 0 {
            self.raw = None;
        }
        code
    }
}

impl Drop for FlowHandle {
    fn drop(&mut self) {
        let code = self.remove();
        let device = self.target.context().name();
        leak::keep("ibv_destroy_flow", device, code, || (self.target.clone(), self.actions.clone()));
    }
}

//! Receive work queues: where RSS queue pairs deliver, and where frames are posted.
//!
//! [`WorkQueue`] is the part that indirection tables share; [`ReceiveQueue`] is the owner's, on the packet path.

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ibverbs_sys::{self as sys, ibv_wq, ibv_wq_attr, ibv_wq_init_attr};

use crate::chain::ReceiveChain;
use crate::error::{from_code, last};
use crate::lent::{Lender, Lent};
use crate::pause::Gates;
use crate::{CompletionQueueHandle, Domain, Error, Frame, FramePool, QueueNumber, Result, inline, leak};

/// Most receives of one queue: no known device offers more.
pub const MAX_RECEIVES: u32 = 1 << 20;

/// A receive work queue, as what delivers into it sees it.
pub struct WorkQueue {
    raw: NonNull<ibv_wq>,
    number: QueueNumber,
    domain: Domain,
    completions: Arc<CompletionQueueHandle>,
    /// What the device may write to.
    lent: Lent,
    /// In RDY, for good. Set once, after which the owner may post.
    ready: AtomicBool,
    /// One move to RDY at a time.
    changing: Mutex<()>,
}

// SAFETY: the ring is touched by `ready` before and by the one `ReceiveQueue` after the flag is set; the verbs on the
// queue itself may be called from any thread.
unsafe impl Send for WorkQueue {}
// SAFETY: as above.
unsafe impl Sync for WorkQueue {}

impl WorkQueue {
    /// A queue in `domain` that completes into `completions`.
    pub fn builder(domain: &Domain, completions: &Arc<CompletionQueueHandle>) -> WorkQueueBuilder {
        WorkQueueBuilder {
            domain: domain.clone(),
            completions: Arc::clone(completions),
            max_receives: 1,
            cvlan_stripping: false,
        }
    }

    /// Moves the queue to RDY, once; from then on, not before, frames can be posted. A provider empties the queue on
    /// the way (providers/mlx5/verbs.c, `mlx5_modify_wq`), so frames posted earlier would be lost.
    pub fn ready(&self) -> Result<()> {
        let _one = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_ready() {
            return Ok(());
        }
        let mut attr = ibv_wq_attr {
            attr_mask: sys::IBV_WQ_ATTR_STATE,
            wq_state: sys::IBV_WQS_RDY,
            ..ibv_wq_attr::default()
        };
        let context = self.domain.context();
        let code = match self.completions.pause() {
            // SAFETY: the queue is live; nobody posts before the flag is set, and nobody polls while paused.
            Some(_paused) => unsafe { inline::modify_wq(context.raw(), self.raw(), &mut attr) },
            None => libc::EBUSY,
        };
        if code != 0 {
            let (device, number) = (context.name().into(), self.number);
            return Err(Error::ReadyWorkQueue { device, number, source: from_code(code) });
        }
        self.ready.store(true, Ordering::Release);
        Ok(())
    }

    /// Whether [`WorkQueue::ready`] has succeeded.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// The device's number for it.
    pub fn number(&self) -> QueueNumber {
        self.number
    }

    /// The domain it was made in.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    pub(crate) fn raw(&self) -> *mut ibv_wq {
        self.raw.as_ptr()
    }
}

impl Drop for WorkQueue {
    fn drop(&mut self) {
        let context = self.domain.context();
        let code = match self.completions.pause() {
            // SAFETY: `raw` came from `create_wq`; tables over it and its owner held an `Arc` of this and are gone, and
            // nobody polls while its completions are removed.
            Some(_paused) => unsafe { inline::destroy_wq(context.raw(), self.raw()) },
            None => libc::EBUSY,
        };
        leak::keep("ibv_destroy_wq", context.name(), code, || {
            (self.domain.clone(), Arc::clone(&self.completions), self.lent.take())
        });
    }
}

/// What a work queue is to be like.
#[must_use]
pub struct WorkQueueBuilder {
    domain: Domain,
    completions: Arc<CompletionQueueHandle>,
    max_receives: u32,
    cvlan_stripping: bool,
}

impl WorkQueueBuilder {
    /// How many frames can be posted at once; the device may give more.
    pub fn max_receives(mut self, max_receives: u32) -> Self {
        self.max_receives = max_receives;
        self
    }

    /// The device takes an outer 802.1Q tag off and reports it as the completion's `cvlan`.
    pub fn cvlan_stripping(mut self, on: bool) -> Self {
        self.cvlan_stripping = on;
        self
    }

    /// `ibv_create_wq`, in RESET.
    pub fn build(self) -> Result<(Arc<WorkQueue>, ReceiveQueue)> {
        let Self { domain, completions, max_receives, cvlan_stripping } = self;
        let context = domain.context();
        let failed = |source| Error::CreateWorkQueue { device: context.name().into(), max_receives, source };
        context.same_as(completions.context())?;
        if !(1..=MAX_RECEIVES).contains(&max_receives) {
            return Err(failed(from_code(libc::EINVAL)));
        }
        let mut attr = ibv_wq_init_attr {
            wq_type: sys::IBV_WQT_RQ,
            max_wr: max_receives,
            max_sge: 1,
            pd: domain.raw(),
            cq: completions.raw_cq(),
            ..ibv_wq_init_attr::default()
        };
        if cvlan_stripping {
            attr.comp_mask = sys::IBV_WQ_INIT_ATTR_FLAGS;
            attr.create_flags = sys::IBV_WQ_FLAGS_CVLAN_STRIPPING;
        }
        // SAFETY: context, domain and completion queue are live and, being `Arc`s below, outlive the queue.
        let raw = unsafe { inline::create_wq(context.raw(), &mut attr) };
        let raw = NonNull::new(raw).ok_or_else(|| failed(last()))?;
        // SAFETY: just made; the number does not change.
        let number = QueueNumber(unsafe { (*raw.as_ptr()).wq_num });
        let queue = Arc::new(WorkQueue {
            raw,
            number,
            domain,
            completions,
            lent: Lent::new(),
            ready: AtomicBool::new(false),
            changing: Mutex::new(()),
        });
        let receives = ReceiveQueue {
            gates: queue.completions.gates(&queue.domain),
            queue: Arc::clone(&queue),
            chain: ReceiveChain::new(),
            lender: Lender::new(),
            max_receives: attr.max_wr.max(max_receives),
            _not_sync: PhantomData,
        };
        Ok((queue, receives))
    }
}

/// The posting side of a work queue: one owner.
pub struct ReceiveQueue {
    queue: Arc<WorkQueue>,
    gates: Gates,
    chain: ReceiveChain,
    lender: Lender,
    max_receives: u32,
    _not_sync: PhantomData<Cell<()>>,
}

impl ReceiveQueue {
    /// Posts frames of `pool` from the end of `frames`, as many as the queue takes. Returns how many; the others stay
    /// in the vector, in order: the queue is full or not in RDY ([`ReceiveQueue::last_refusal`]), or they are of another
    /// pool. If a provider refuses without saying what, the frames in doubt count as posted. Nothing is taken from a pool
    /// that is not registered in the queue's protection domain, or is one more than [`MAX_POOLS`](crate::MAX_POOLS).
    /// Nor while somebody else uses the completion queue or the thread domain; above all, not while a
    /// [`Batch`](crate::Batch) of that completion queue is open, on this thread or another.
    /// The queue keeps the pool's memory registered until it is destroyed itself.
    #[inline]
    pub fn post(&mut self, pool: &mut FramePool, frames: &mut Vec<Frame>) -> usize {
        if !self.queue.is_ready() {
            self.chain.refuse(libc::EINVAL);
            return 0;
        }
        if let Err(errno) = self.lender.lend(pool, &self.queue.lent, &self.queue.domain) {
            self.chain.refuse(errno);
            return 0;
        }
        let Some(_entered) = self.gates.enter() else {
            self.chain.refuse(libc::EBUSY);
            return 0;
        };
        let wq = self.queue.raw();
        self.chain.post(pool, frames, |head, bad| {
            // SAFETY: the queue is live and in RDY, this is its only poster, alone behind the gates, and the chain's frames
            // were held: they are registered, which `lent` keeps them, and marked as posted before anyone can touch
            // them again.
            unsafe { inline::post_wq_recv(wq, head, bad) }
        })
    }

    /// Why frames stayed in the vector last: ENOMEM usually says that the queue is full, EBUSY that somebody was at it,
    /// EINVAL that it is not in RDY or that the frames or their pool are not for it, ENOSPC that there were too many
    /// pools.
    pub fn last_refusal(&self) -> Option<io::Error> {
        self.chain.last_refusal()
    }

    /// The queue it posts to.
    pub fn work_queue(&self) -> &Arc<WorkQueue> {
        &self.queue
    }

    /// How many frames can be posted at once.
    pub fn max_receives(&self) -> u32 {
        self.max_receives
    }
}

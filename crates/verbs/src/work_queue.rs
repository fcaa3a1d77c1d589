//! Receive queues. [`WorkQueue`] is the part of a receive work queue that indirection tables share;
//! [`ReceiveQueue`] belongs to the packet path and posts frames. [`SharedReceiveQueue`] exists only as a
//! field of `ibv_create_qp_ex`, which a device may refuse for raw packets: it can be made, named by a queue
//! pair, and destroyed.

use std::cell::Cell;
use std::ffi::c_int;
use std::io;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ibverbs_sys::{
    self as sys, ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_wq, ibv_wq_attr, ibv_wq_init_attr,
};

use crate::chain::ReceiveChain;
use crate::error::{created, from_code};
use crate::pause::Gates;
use crate::queue_pools::{QueuePools, QueueRegions};
use crate::{
    Completion, CompletionQueue, CompletionQueueHandle, Domain, Frame, FramePool, QueueNumber, Result,
    VerbsError, inline, leak,
};

/// Most receives of one queue: no known device offers more.
pub const MAX_RECEIVES: u32 = 1 << 20;

bitflags::bitflags! {
    /// `ibv_wq_flags`. What a device lacks it refuses, with EINVAL or EOPNOTSUPP (ibv_create_wq(3)).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct WorkQueueFlags: u32 {
        /// An outer 802.1Q tag is taken off and reported as the completion's `cvlan`.
        const CVLAN_STRIPPING = sys::IBV_WQ_FLAGS_CVLAN_STRIPPING;
        /// Received packets end with their frame check sequence.
        const SCATTER_FCS = sys::IBV_WQ_FLAGS_SCATTER_FCS;
        /// Without a buffer, packets wait for one for a while instead of being dropped.
        const DELAY_DROP = sys::IBV_WQ_FLAGS_DELAY_DROP;
        /// Writes to memory are padded to whole cache lines.
        const PCI_WRITE_END_PADDING = sys::IBV_WQ_FLAGS_PCI_WRITE_END_PADDING;
        const _ = !0;
    }
}

/// The state of a work queue (`ibv_wq_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WorkQueueState {
    /// Nothing can be posted.
    Reset,
    /// RDY: frames can be posted, and packets arrive.
    Ready,
    /// Posted receives are flushed, and no more can be posted.
    Error,
    /// A state this crate has no name for.
    Unknown(u32),
}

impl From<sys::ibv_wq_state> for WorkQueueState {
    fn from(raw: sys::ibv_wq_state) -> Self {
        match raw {
            sys::IBV_WQS_RESET => Self::Reset,
            sys::IBV_WQS_RDY => Self::Ready,
            sys::IBV_WQS_ERR => Self::Error,
            other => Self::Unknown(other),
        }
    }
}

/// A receive work queue, as what delivers into it sees it.
pub struct WorkQueue {
    raw: NonNull<ibv_wq>,
    number: QueueNumber,
    domain: Domain,
    completions: Arc<CompletionQueueHandle>,
    /// The memory that the device may write to.
    regions: QueueRegions,
    /// An `ibv_wq_state`, changed only while the completion queue is paused; in RDY the owner may post.
    state: AtomicU32,
    /// How often it has moved to RDY.
    times_ready: AtomicU32,
    /// One change at a time.
    changing: Mutex<()>,
}

// SAFETY: the ring is touched by a change of state, with everybody else kept out, and by the one
// `ReceiveQueue`; the verbs on the queue itself may be called from any thread.
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
            max_parts: 1,
            flags: WorkQueueFlags::empty(),
            token: 0,
        }
    }

    /// Moves the queue to RDY; from then on, not before, frames can be posted. A provider empties the queue
    /// on the way (providers/mlx5/verbs.c, `mlx5_modify_wq`), so frames posted earlier would be lost. Does
    /// nothing in RDY.
    ///
    /// # Errors
    /// EBUSY if another thread used the completion queue for the whole time limit; the device's errno, as
    /// EINVAL out of ERR, which leads to RESET only.
    pub fn ready(&self) -> Result<()> {
        let attr = ibv_wq_attr {
            attr_mask: sys::IBV_WQ_ATTR_STATE,
            wq_state: sys::IBV_WQS_RDY,
            ..ibv_wq_attr::default()
        };
        self.modify(attr, "RDY", || {
            self.times_ready.fetch_add(1, Ordering::Release);
            self.state.store(sys::IBV_WQS_RDY, Ordering::Release);
        })
    }

    /// Moves the queue to ERR: what is posted completes as flushed, and nothing more can be posted.
    ///
    /// # Errors
    /// As for [`WorkQueue::ready`].
    pub fn to_error(&self) -> Result<()> {
        self.change(sys::IBV_WQS_ERR, "ERR")
    }

    /// Moves the queue to RESET. What is posted is forgotten without a completion. Its frames come back by
    /// [`ReceiveQueue::restart`]; otherwise they are lost to their pools.
    ///
    /// # Errors
    /// As for [`WorkQueue::ready`].
    pub fn reset(&self) -> Result<()> {
        self.change(sys::IBV_WQS_RESET, "RESET")
    }

    /// Moves a queue to RESET that the device has put into its error state, of which the kernel does not
    /// know: it keeps the state of the last verb (core/uverbs_cmd.c, `ib_uverbs_ex_modify_wq`), and the
    /// device may compare the state that a command names with its own. So the first attempt names ERR, as
    /// DPDK's `mlx5_devx_modify_rq` does, and the second one the kernel's state, as DPDK's
    /// `mlx5_rxq_ibv_modify` does and as a queue needs that is not in its error state.
    fn leave_error(&self) -> Result<()> {
        let attr = ibv_wq_attr {
            attr_mask: sys::IBV_WQ_ATTR_STATE | sys::IBV_WQ_ATTR_CURR_STATE,
            wq_state: sys::IBV_WQS_RESET,
            curr_wq_state: sys::IBV_WQS_ERR,
            ..ibv_wq_attr::default()
        };
        match self.modify(attr, "RESET", || self.state.store(sys::IBV_WQS_RESET, Ordering::Release)) {
            Err(error) if error.errno() == Some(libc::EINVAL) => self.reset(),
            moved => moved,
        }
    }

    /// Changes the flags that `mask` names (`IBV_WQ_ATTR_FLAGS`), as far as the device can do that in the
    /// queue's life: mlx5 only [`WorkQueueFlags::CVLAN_STRIPPING`].
    ///
    /// # Errors
    /// EINVAL or EOPNOTSUPP for another flag.
    pub fn change_flags(&self, flags: WorkQueueFlags, mask: WorkQueueFlags) -> Result<()> {
        let attr = ibv_wq_attr {
            attr_mask: sys::IBV_WQ_ATTR_FLAGS,
            flags: flags.bits(),
            flags_mask: mask.bits(),
            ..ibv_wq_attr::default()
        };
        self.modify(attr, "other flags", || ())
    }

    fn change(&self, state: sys::ibv_wq_state, name: &'static str) -> Result<()> {
        let attr =
            ibv_wq_attr { attr_mask: sys::IBV_WQ_ATTR_STATE, wq_state: state, ..ibv_wq_attr::default() };
        self.modify(attr, name, || self.state.store(state, Ordering::Release))
    }

    /// Calls the verb and, if it succeeds, `done`, while no thread polls or posts.
    fn modify(&self, mut attr: ibv_wq_attr, to: &'static str, done: impl FnOnce()) -> Result<()> {
        let _one = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        // A second move to RDY would empty the queue once more.
        if attr.wq_state == sys::IBV_WQS_RDY && self.is_ready() {
            return Ok(());
        }
        let context = self.domain.context();
        let paused = self.completions.pause();
        let code = match &paused {
            // SAFETY: the queue is live, and no thread posts to it or polls while paused.
            Some(_) => unsafe { inline::modify_wq(context.raw(), self.raw(), &raw mut attr) },
            None => libc::EBUSY,
        };
        if code != 0 {
            return Err(self.refused(to, code));
        }
        done();
        Ok(())
    }

    fn refused(&self, to: &'static str, code: c_int) -> VerbsError {
        let (device, number) = (self.domain.context().name().into(), self.number);
        VerbsError::ModifyWorkQueue { device, number, to, source: from_code(code) }
    }

    /// The state it was moved to last. An error that the device detects is reported by an event
    /// ([`EventKind`](crate::EventKind)), not here; out of it leads [`ReceiveQueue::restart`].
    pub fn state(&self) -> WorkQueueState {
        WorkQueueState::from(self.state.load(Ordering::Acquire))
    }

    /// How often it has moved to RDY, each time with an empty ring.
    pub(crate) fn times_ready(&self) -> u32 {
        self.times_ready.load(Ordering::Acquire)
    }

    /// Whether frames can be posted.
    #[inline]
    fn is_ready(&self) -> bool {
        self.state.load(Ordering::Acquire) == sys::IBV_WQS_RDY
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
            // SAFETY: `raw` came from `create_wq`; tables over it and its owner held an `Arc` of this and are
            // gone, and no thread polls while its completions are removed.
            Some(_paused) => unsafe { inline::destroy_wq(context.raw(), self.raw()) },
            None => libc::EBUSY,
        };
        leak::keep("ibv_destroy_wq", context.name(), code, || {
            (self.domain.clone(), Arc::clone(&self.completions), self.regions.take())
        });
    }
}

/// The attributes of a work queue to be made.
#[must_use]
pub struct WorkQueueBuilder {
    domain: Domain,
    completions: Arc<CompletionQueueHandle>,
    max_receives: u32,
    max_parts: u32,
    flags: WorkQueueFlags,
    token: usize,
}

impl WorkQueueBuilder {
    /// How many frames can be posted at once; the device may give more.
    pub fn max_receives(mut self, max_receives: u32) -> Self {
        self.max_receives = max_receives;
        self
    }

    /// How many pieces of memory a receive scatters to; 1 unless set. [`ReceiveQueue::post`] uses one.
    pub fn max_parts(mut self, max_parts: u32) -> Self {
        self.max_parts = max_parts;
        self
    }

    /// The queue's flags.
    pub fn flags(mut self, flags: WorkQueueFlags) -> Self {
        self.flags = flags;
        self
    }

    /// A number that the queue keeps (`wq_context`), for C code that sees it; nothing here needs it.
    pub fn token(mut self, token: usize) -> Self {
        self.token = token;
        self
    }

    /// `ibv_create_wq`, in RESET.
    ///
    /// # Errors
    /// EINVAL for more than the device allows or a flag it does not have (EOPNOTSUPP on some), ENOMEM.
    pub fn build(self) -> Result<(Arc<WorkQueue>, ReceiveQueue)> {
        let Self { domain, completions, max_receives, max_parts, flags, token } = self;
        let context = domain.context();
        let failed =
            |source| VerbsError::CreateWorkQueue { device: context.name().into(), max_receives, source };
        context.same_as(completions.context())?;
        if !(1..=MAX_RECEIVES).contains(&max_receives) {
            return Err(failed(from_code(libc::EINVAL)));
        }
        completions.admits().map_err(failed)?;
        let mut attr = ibv_wq_init_attr {
            wq_context: ptr::without_provenance_mut(token),
            wq_type: sys::IBV_WQT_RQ,
            max_wr: max_receives,
            max_sge: max_parts,
            pd: domain.raw(),
            cq: completions.raw_cq(),
            ..ibv_wq_init_attr::default()
        };
        if !flags.is_empty() {
            attr.comp_mask = sys::IBV_WQ_INIT_ATTR_FLAGS;
            attr.create_flags = flags.bits();
        }
        // SAFETY: context, domain and completion queue are live and, being `Arc`s below, outlive the queue.
        let raw = created(|| unsafe { inline::create_wq(context.raw(), &mut attr) }).map_err(failed)?;
        // SAFETY: just made; the number does not change.
        let number = QueueNumber(unsafe { (*raw.as_ptr()).wq_num });
        let queue = Arc::new(WorkQueue {
            raw,
            number,
            domain,
            completions,
            regions: QueueRegions::new(),
            state: AtomicU32::new(sys::IBV_WQS_RESET),
            times_ready: AtomicU32::new(0),
            changing: Mutex::new(()),
        });
        let receives = ReceiveQueue {
            gates: queue.completions.gates(&queue.domain),
            queue: Arc::clone(&queue),
            chain: ReceiveChain::new(),
            pools: QueuePools::new(),
            max_receives: attr.max_wr.max(max_receives),
            _not_sync: PhantomData,
        };
        Ok((queue, receives))
    }
}

/// A time at which one user may post to a queue.
pub(crate) struct PostTurn<'q> {
    pub(crate) chain: &'q mut ReceiveChain,
    /// The key of the pool's memory.
    pub(crate) lkey: u32,
    /// See [`WorkQueue::times_ready`].
    pub(crate) times_ready: u32,
}

/// The posting side of a work queue: one owner.
pub struct ReceiveQueue {
    queue: Arc<WorkQueue>,
    gates: Gates,
    chain: ReceiveChain,
    pools: QueuePools,
    max_receives: u32,
    _not_sync: PhantomData<Cell<()>>,
}

impl ReceiveQueue {
    /// Posts frames of `pool` from the end of `frames`, as many as the queue takes. Returns how many; the
    /// others stay in the vector, in order: the queue is full or not in RDY ([`ReceiveQueue::last_refusal`]),
    /// or they are of another pool. If a provider refuses without saying what, the frames in doubt count as
    /// posted. Nothing is taken from a pool that is not registered in the queue's protection domain with
    /// [`Access::LOCAL_WRITE`](crate::Access::LOCAL_WRITE), or is one more than
    /// [`MAX_POOLS`](crate::MAX_POOLS). Nor while another thread uses the completion queue or the thread
    /// domain; above all, not while a [`CompletionBatch`](crate::CompletionBatch) of that completion queue is
    /// open, on this thread or another. The queue keeps the pool's memory registered until it is destroyed
    /// itself.
    #[inline]
    pub fn post(&mut self, pool: &mut FramePool, frames: &mut Vec<Frame>) -> usize {
        let wq = self.queue.raw();
        self.post_with(pool, |turn, pool| {
            turn.chain.post(pool, turn.lkey, frames, |head, bad| {
                // SAFETY: the queue is live and in RDY, this is its only poster, alone behind the gates, and
                // the chain's frames were held: they are registered, which `regions` keeps them, and marked
                // as posted before anyone can touch them again.
                unsafe { inline::post_wq_recv(wq, head, bad) }
            })
        })
    }

    /// Calls `post`, unless nothing can be posted to the queue now: it is in RDY, keeps the memory of `pool`,
    /// and has no other user until `post` returns.
    #[inline]
    pub(crate) fn post_with(
        &mut self,
        pool: &mut FramePool,
        post: impl FnOnce(PostTurn<'_>, &mut FramePool) -> usize,
    ) -> usize {
        let lkey = match self.pools.keep_writable(pool, &self.queue.regions, &self.queue.domain) {
            Ok(lkey) => lkey,
            Err(errno) => {
                self.chain.refuse(errno);
                return 0;
            }
        };
        let Some(_entered) = self.gates.enter() else {
            self.chain.refuse(libc::EBUSY);
            return 0;
        };
        // Behind the gates: until they are left, it stays that way.
        if !self.queue.is_ready() {
            self.chain.refuse(libc::EINVAL);
            return 0;
        }
        let times_ready = self.queue.times_ready();
        post(PostTurn { chain: &mut self.chain, lkey, times_ready }, pool)
    }

    /// Stops the queue, whatever state it is in: from RESET on no packet arrives, and no completion is added.
    /// Those that are waiting stay. Indirection tables and flows keep referring to the queue.
    ///
    /// # Errors
    /// As for [`WorkQueue::ready`].
    pub fn stop(&mut self) -> Result<()> {
        if self.queue.state() == WorkQueueState::Reset { Ok(()) } else { self.queue.leave_error() }
    }

    /// Makes a queue ready anew that has failed, while the indirection tables and flows that refer to it
    /// stay: the kernel counts no user of a queue when it changes its state (hw/mlx5/qp.c,
    /// `mlx5_ib_modify_wq`), and DPDK recovers queues in the same way (drivers/net/mlx5/mlx5_rx.c,
    /// `mlx5_rx_err_handle`). Afterwards nothing is posted. The frames that the queue had are in `frames`,
    /// except those of completions, which `each` gets; returns how many there were. `completions` is the
    /// queue's own, and `pool` the only one whose frames were posted to the queue, and to no other queue;
    /// frames of other pools stay lost.
    ///
    /// No frame gets two owners, by the order of the steps. In RESET the device has given the frames up and
    /// adds no completion. When the completion queue is empty after that, nothing names a frame of the queue
    /// any more. Only then are the frames that are still posted taken back, and only then can they be posted
    /// again. The move to RDY makes the provider clear the doorbell record.
    ///
    /// # Errors
    /// The errors of [`WorkQueue::ready`], and EBUSY if somebody else used the completion queue: it can be
    /// called again. Frames may be in `frames`, and completions with `each`, all the same. EINVAL for a
    /// completion queue that is not the queue's.
    pub fn restart(
        &mut self,
        completions: &mut CompletionQueue,
        pool: &mut FramePool,
        frames: &mut Vec<Frame>,
        mut each: impl FnMut(Completion<'_>, &mut FramePool),
    ) -> Result<usize> {
        if !Arc::ptr_eq(&completions.handle(), &self.queue.completions) {
            return Err(self.queue.refused("RDY", libc::EINVAL));
        }
        self.restart_with(pool, frames, |pool| completions.drain(|completion| each(completion, pool)))
    }

    /// Does what [`ReceiveQueue::restart`] does; `drain` takes all completions, or returns an errno.
    #[cold]
    pub(crate) fn restart_with(
        &mut self,
        pool: &mut FramePool,
        frames: &mut Vec<Frame>,
        drain: impl FnOnce(&mut FramePool) -> std::result::Result<(), c_int>,
    ) -> Result<usize> {
        self.stop()?;
        drain(pool).map_err(|code| self.queue.refused("RDY", code))?;
        let taken = pool.take_back_posted(self.pools.key(), frames);
        self.queue.ready()?;
        Ok(taken)
    }

    /// Whether nothing was posted to the queue, and its receives complete into `completions`.
    pub(crate) fn is_unused_with(&self, completions: &Arc<CompletionQueueHandle>) -> bool {
        self.pools.is_empty() && Arc::ptr_eq(&self.queue.completions, completions)
    }

    /// Why frames stayed in the vector last: ENOMEM usually means that the queue is full, EBUSY that another
    /// thread used it, EINVAL that it is not in RDY or that the frames or their pool are not for it, ENOSPC
    /// that there were too many pools.
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

/// A receive queue for several queue pairs.
pub struct SharedReceiveQueue {
    raw: NonNull<ibv_srq>,
    domain: Domain,
    max_receives: u32,
}

// SAFETY: it has a ring that nothing here touches; its verbs may be called from any thread.
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
            |source| VerbsError::CreateSharedReceiveQueue { device: domain.context().name().into(), source };
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

//! Raw packet queue pairs with rings of their own: they send frames, and are flow targets without RSS.
//!
//! [`RawQueuePair`] belongs to the packet path; [`RawQueuePairHandle`] is the part that flows keep alive. The
//! frame of a signalled send comes back through [`FramePool::reclaim`] or [`RawQueuePair::reclaim`], that of
//! any other send of a batch through the latter.

use std::cell::Cell;
use std::ffi::c_int;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::{io, ptr};

use ibverbs_sys::{self as sys, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_send_wr, ibv_sge, ibv_wr_opcode};

use self::in_flight::InFlight;
use self::post::SendChain;
use self::send::{Parts, Segments};
use crate::chain::{ReceiveChain, taken_before};
use crate::completion::wr_id_of;
use crate::error::{errno_of, from_code};
use crate::inline::SendFunctions;
use crate::pause::Gates;
use crate::queue_pools::{QueuePools, QueueRegions};
use crate::{
    Completion, CompletionQueueHandle, CompletionStatus, Context, Domain, Frame, FramePool, PortNumber,
    QueueNumber, QueuePairAttributes, QueuePairCaps, RegisteredFrames, Result, SharedReceiveQueue,
    VerbsError, inline, leak, queue_pair,
};

mod builder;
mod in_flight;
mod post;
mod send;

pub use self::builder::RawQueuePairBuilder;
pub use self::post::{Pieces, QueuedSend, SENDS_PER_COMPLETION};
pub use self::send::{MAX_SEND_PARTS, SendBatch, SendFlags, SendRequest};

/// Most sends of one queue pair at once: no known device offers more.
pub(crate) const MAX_SENDS: u32 = 1 << 20;

/// A raw queue pair in RESET: nothing can be posted yet.
pub struct IdleRawQueuePair {
    handle: Arc<RawQueuePairHandle>,
    pools: QueuePools,
    functions: Option<SendFunctions>,
}

impl IdleRawQueuePair {
    /// The handle on which flows are made.
    pub fn handle(&self) -> Arc<RawQueuePairHandle> {
        Arc::clone(&self.handle)
    }

    /// Binds the queue pair to `port` and moves it to RTS, through INIT and RTR.
    ///
    /// # Errors
    /// EINVAL for a port that is not there, or for a kind that needs more than a port; EPERM without
    /// CAP_NET_RAW. After any of them the queue pair is destroyed.
    pub fn to_rts(self, port: PortNumber) -> Result<RawQueuePair> {
        use sys::ibv_qp_state::{IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS};
        let handle = self.handle;
        for (name, qp_state, mask) in [
            ("INIT", IBV_QPS_INIT, ibv_qp_attr_mask::IBV_QP_PORT),
            ("RTR", IBV_QPS_RTR, ibv_qp_attr_mask(0)),
            ("RTS", IBV_QPS_RTS, ibv_qp_attr_mask(0)),
        ] {
            let attr = ibv_qp_attr { qp_state, port_num: port.0, ..ibv_qp_attr::default() };
            handle.modify(name, attr, mask)?;
        }
        Ok(RawQueuePair {
            in_flight: InFlight::new(handle.caps.max_sends),
            send_gates: handle.send_completions.gates(&handle.domain),
            receive_gates: handle.receive_completions.gates(&handle.domain),
            handle,
            chain: ReceiveChain::new(),
            sends: SendChain::new(),
            pools: self.pools,
            functions: self.functions,
            errno: 0,
            _not_sync: PhantomData,
        })
    }
}

/// A raw packet queue pair in RTS: one owner.
pub struct RawQueuePair {
    handle: Arc<RawQueuePairHandle>,
    send_gates: Gates,
    receive_gates: Gates,
    chain: ReceiveChain,
    /// For [`RawQueuePair::send_each`].
    sends: SendChain,
    pools: QueuePools,
    /// The sending interface, if it was asked for.
    functions: Option<SendFunctions>,
    /// The sends of frames, those of an open batch at its end. As long as the send queue.
    in_flight: InFlight,
    /// The errno of the last send that was refused.
    errno: c_int,
    _not_sync: PhantomData<Cell<()>>,
}

impl RawQueuePair {
    /// A queue pair in `domain` that completes into these queues, which may be one.
    pub fn builder(
        domain: &Domain,
        send_completions: &Arc<CompletionQueueHandle>,
        receive_completions: &Arc<CompletionQueueHandle>,
    ) -> RawQueuePairBuilder {
        RawQueuePairBuilder::new(domain, send_completions, receive_completions)
    }

    /// The handle on which flows are made.
    pub fn handle(&self) -> Arc<RawQueuePairHandle> {
        Arc::clone(&self.handle)
    }

    /// The device's number for it.
    pub fn number(&self) -> QueueNumber {
        self.handle.number
    }

    /// How much the device gave it.
    pub fn caps(&self) -> QueuePairCaps {
        self.handle.caps
    }

    /// Sends the first `bytes` bytes of a frame of `pool`, Ethernet header first. The frame comes back when
    /// the send completes; or right away, if the queue is full or refuses ([`RawQueuePair::last_refusal`]),
    /// if it has not so many bytes, or if it is of another pool. A refusal that names no request leaves the
    /// frame in doubt: it counts as sent, and is lost to its pool unless a completion gives it back. Which
    /// pools there may be, and that a batch of the completion queue must not be open meanwhile, is as for
    /// [`ReceiveQueue::post`](crate::ReceiveQueue::post).
    #[inline]
    pub fn send(
        &mut self,
        pool: &mut FramePool,
        frame: Frame,
        bytes: usize,
        flags: SendFlags,
    ) -> std::result::Result<(), Frame> {
        match self.key(pool).and_then(|lkey| Parts::whole(pool, lkey, &frame, bytes)) {
            Ok(parts) => self.send_parts(pool, frame, parts, flags, None),
            Err(errno) => self.refuse(errno, frame),
        }
    }

    /// Sends pieces of a frame one after the other as one packet, at most [`MAX_SEND_PARTS`] and as many as
    /// [`QueuePairCaps::max_send_parts`] allows. Otherwise as [`RawQueuePair::send`].
    pub fn send_gathered(
        &mut self,
        pool: &mut FramePool,
        frame: Frame,
        parts: &[Range<usize>],
        flags: SendFlags,
    ) -> std::result::Result<(), Frame> {
        match self.key(pool).and_then(|lkey| Parts::<MAX_SEND_PARTS>::of(pool, lkey, &frame, parts)) {
            Ok(parts) => self.send_parts(pool, frame, parts, flags, None),
            Err(errno) => self.refuse(errno, frame),
        }
    }

    /// Sends the TCP stream behind the first `header_bytes` bytes of a frame in segments of `mss` bytes, each
    /// behind these headers, which the device completes (`IBV_WR_TSO`). `bytes` is where the stream ends. The
    /// queue pair needs [`RawQueuePairBuilder::max_tso_header`]. Otherwise as [`RawQueuePair::send`].
    pub fn send_tso(
        &mut self,
        pool: &mut FramePool,
        frame: Frame,
        header_bytes: u16,
        bytes: usize,
        mss: u16,
        flags: SendFlags,
    ) -> std::result::Result<(), Frame> {
        let segments = |lkey| Segments::of(pool, lkey, &frame, header_bytes, bytes, mss);
        match self.key(pool).and_then(segments) {
            Ok((segments, parts)) => self.send_parts(pool, frame, parts, flags, Some(segments)),
            Err(errno) => self.refuse(errno, frame),
        }
    }

    /// Sends a copy of `data`, which the queue takes along (`IBV_SEND_INLINE`), at most
    /// [`QueuePairCaps::max_inline_bytes`]. Its completion has `token`
    /// ([`Completion::token`](crate::Completion::token)), and there is none with [`SendFlags::UNSIGNALLED`].
    /// False: refused.
    #[inline]
    pub fn send_inline(&mut self, token: u32, data: &[u8], flags: SendFlags) -> bool {
        let Ok(length) = u32::try_from(data.len()) else {
            self.errno = libc::EINVAL;
            return false;
        };
        let mut entry = ibv_sge { addr: data.as_ptr().expose_provenance() as u64, length, lkey: 0 };
        let mut request = ibv_send_wr {
            wr_id: wr_id_of(token),
            sg_list: &raw mut entry,
            num_sge: 1,
            opcode: ibv_wr_opcode::IBV_WR_SEND,
            send_flags: flags.for_batch() | sys::ibv_send_flags::IBV_SEND_INLINE.0,
            ..ibv_send_wr::default()
        };
        // SAFETY: the data is read during the call only, because of the inline flag (ibv_post_send(3)).
        unsafe { self.post(&mut request) }
    }

    /// Opens a batch of sends of frames of `pool`. `None`: the queue pair was made without
    /// [`RawQueuePairBuilder::send_operations`], the pool is not for it, sends of frames of another pool are
    /// in flight that are not signalled, or another thread uses its completion queue or thread domain
    /// ([`RawQueuePair::last_refusal`]).
    #[inline]
    pub fn start_send<'q>(&'q mut self, pool: &'q mut FramePool) -> Option<SendBatch<'q>> {
        let Some(functions) = self.functions else {
            self.errno = libc::EOPNOTSUPP;
            return None;
        };
        let lkey = match self.key(pool) {
            Ok(lkey) => lkey,
            Err(errno) => {
                self.errno = errno;
                return None;
            }
        };
        if !self.in_flight.use_pool(&pool.ledger) {
            self.errno = libc::EBUSY;
            return None;
        }
        let Some(entered) = self.send_gates.enter() else {
            self.errno = libc::EBUSY;
            return None;
        };
        // The batch leaves when it ends.
        std::mem::forget(entered);
        Some(SendBatch::open(self, pool, lkey, functions))
    }

    /// The frames that a completion gives back: that of its own send, which comes last, and those of the
    /// sends before it that are not signalled ([`SendFlags::UNSIGNALLED`]), which have succeeded. The
    /// completion comes back if it names no frame of `pool` that this queue pair sends. So it does for
    /// signalled frames that were sent before those of another pool: these come back by
    /// [`FramePool::reclaim`] only.
    ///
    /// ```
    /// fn sent(pair: &mut verbs::RawQueuePair, pool: &mut verbs::FramePool, completion: verbs::Completion<'_>) {
    ///     let mut frames = Vec::new();
    ///     if let Err(other) = pair.reclaim(pool, completion, |send| frames.push(send.frame)) {
    ///         frames.extend(pool.reclaim(other));
    ///     }
    ///     frames.into_iter().for_each(|frame| pool.release(frame));
    /// }
    /// ```
    #[inline]
    pub fn reclaim<'c>(
        &mut self,
        pool: &mut FramePool,
        completion: Completion<'c>,
        mut each: impl FnMut(CompletedSend),
    ) -> std::result::Result<(), Completion<'c>> {
        let Some(older) = self.in_flight.find(&pool.ledger, completion.wr_id()) else {
            return Err(completion);
        };
        self.in_flight.take_unnamed(&mut pool.ledger, older, |frame, bytes| {
            each(CompletedSend { frame, bytes, status: CompletionStatus::Success });
        });
        if let Some((frame, bytes)) = self.in_flight.take_named(&mut pool.ledger) {
            each(CompletedSend { frame, bytes, status: completion.status() });
        }
        Ok(())
    }

    /// How many sends of frames [`RawQueuePair::reclaim`] has not given back, of the pool whose frames were
    /// sent last.
    #[inline]
    pub fn in_flight(&self) -> usize {
        self.in_flight.len() as usize
    }

    /// Moves the queue pair to ERR: everything that is posted completes as flushed, and so does what is
    /// posted later.
    ///
    /// # Errors
    /// EBUSY if another thread used its completion queues for the whole time limit; the device's errno.
    pub fn to_error(&mut self) -> Result<()> {
        self.handle.to_error()
    }

    /// Moves the queue pair to RESET. What is posted is forgotten without a completion, and its frames are
    /// lost to their pools; to have them back, go to ERR first and collect what is flushed.
    ///
    /// # Errors
    /// As for [`RawQueuePair::to_error`]; the queue pair comes back as it was.
    pub fn reset(self) -> std::result::Result<IdleRawQueuePair, Box<(Self, VerbsError)>> {
        let attr = ibv_qp_attr { qp_state: sys::ibv_qp_state::IBV_QPS_RESET, ..ibv_qp_attr::default() };
        match self.handle.modify("RESET", attr, ibv_qp_attr_mask(0)) {
            Ok(()) => {
                Ok(IdleRawQueuePair { handle: self.handle, pools: self.pools, functions: self.functions })
            }
            Err(error) => Err(Box::new((self, error))),
        }
    }

    /// Lets the queue pair send frames of a pool by this registration of their memory, which is in its
    /// protection domain. A pool that is registered there itself needs none. The queue pair keeps the memory
    /// registered until it is destroyed.
    ///
    /// # Errors
    /// EINVAL for another protection domain; ENOSPC for more than [`MAX_POOLS`](crate::MAX_POOLS).
    pub fn admit(&mut self, frames: &RegisteredFrames) -> io::Result<()> {
        let admitted = self.pools.admit(frames, &self.handle.regions, &self.handle.domain);
        admitted.map(|_| ()).map_err(io::Error::from_raw_os_error)
    }

    /// The key for sends of the memory of `pool` for this queue pair, which keeps the memory from now on.
    #[inline]
    fn key(&mut self, pool: &FramePool) -> std::result::Result<u32, c_int> {
        self.pools.keep(pool, &self.handle.regions, &self.handle.domain)
    }

    #[cold]
    fn refuse(&mut self, errno: c_int, frame: Frame) -> std::result::Result<(), Frame> {
        self.errno = errno;
        Err(frame)
    }

    #[inline]
    fn send_parts<const N: usize>(
        &mut self,
        pool: &mut FramePool,
        frame: Frame,
        mut parts: Parts<N>,
        flags: SendFlags,
        segments: Option<Segments>,
    ) -> std::result::Result<(), Frame> {
        let mut request = ibv_send_wr {
            wr_id: parts.wr_id(),
            send_flags: flags.for_frame(),
            opcode: ibv_wr_opcode::IBV_WR_SEND,
            ..ibv_send_wr::default()
        };
        (request.sg_list, request.num_sge) = parts.list();
        if let Some(segments) = segments {
            request.opcode = ibv_wr_opcode::IBV_WR_TSO;
            request.__bindgen_anon_2 = segments.into();
        }
        // SAFETY: the frame was held and is registered, which `regions` keeps it, and it is marked as posted
        // before anyone can touch it again.
        if unsafe { self.post(&mut request) } {
            self.remember(pool, &frame, parts.bytes());
            return Ok(());
        }
        Err(frame)
    }

    /// Notes a signalled send. Where there is no room for it, its frame comes back by [`FramePool::reclaim`]
    /// only.
    #[inline]
    fn remember(&mut self, pool: &mut FramePool, frame: &Frame, bytes: u32) {
        let no_batch = self.in_flight.position();
        if self.in_flight.use_pool(&pool.ledger) && self.in_flight.has_room(no_batch) {
            self.in_flight.push(&mut pool.ledger, frame, bytes, true);
        } else {
            pool.posted(frame);
        }
    }

    /// Posts one request. False: the provider does not have it.
    ///
    /// # Safety
    /// The memory it names is registered, and stays so and unchanged until the send completes; or the request
    /// has the flag that it is copied.
    #[inline]
    unsafe fn post(&mut self, request: &mut ibv_send_wr) -> bool {
        let Some(_entered) = self.send_gates.enter() else {
            self.errno = libc::EBUSY;
            return false;
        };
        let (request, mut bad) = (&raw mut *request, ptr::null_mut());
        // SAFETY: the queue pair is live and in RTS or ERR and this is its only poster, alone behind the
        // gates; the memory meets the contract of this function. The request is read during the call only.
        let code = unsafe { inline::post_send(self.handle.raw(), request, &mut bad) };
        if code == 0 {
            return true;
        }
        self.errno = errno_of(code);
        taken_before(request.cast_const(), 1, bad) != 0
    }

    /// Why the last refused send was refused.
    pub fn last_refusal(&self) -> Option<io::Error> {
        (self.errno != 0).then(|| io::Error::from_raw_os_error(self.errno))
    }

    /// Why receives were refused last, as [`ReceiveQueue::last_refusal`](crate::ReceiveQueue::last_refusal).
    pub fn last_receive_refusal(&self) -> Option<io::Error> {
        self.chain.last_refusal()
    }

    /// Posts receives, as [`ReceiveQueue::post`](crate::ReceiveQueue::post) does. Nothing is taken from a
    /// pool that is known by a registration for sends ([`RawQueuePair::admit`]) either.
    #[inline]
    pub fn post_receives(&mut self, pool: &mut FramePool, frames: &mut Vec<Frame>) -> usize {
        let lkey = match self.pools.keep_writable(pool, &self.handle.regions, &self.handle.domain) {
            Ok(lkey) => lkey,
            Err(errno) => {
                self.chain.refuse(errno);
                return 0;
            }
        };
        let Some(_entered) = self.receive_gates.enter() else {
            self.chain.refuse(libc::EBUSY);
            return 0;
        };
        let qp = self.handle.raw();
        self.chain.post(pool, lkey, frames, |head, bad| {
            // SAFETY: as for `send`, with the frames of a whole chain.
            unsafe { inline::post_recv(qp, head, bad) }
        })
    }
}

/// A send that has completed.
#[derive(Debug)]
pub struct CompletedSend {
    /// The frame of the send.
    pub frame: Frame,
    /// The bytes that were to be sent.
    pub bytes: u32,
    /// How it ended.
    pub status: CompletionStatus,
}

/// A raw packet queue pair, as flows to it see it.
pub struct RawQueuePairHandle {
    pub(super) raw: NonNull<ibv_qp>,
    pub(super) number: QueueNumber,
    pub(super) domain: Domain,
    pub(super) send_completions: Arc<CompletionQueueHandle>,
    pub(super) receive_completions: Arc<CompletionQueueHandle>,
    pub(super) shared_receives: Option<Arc<SharedReceiveQueue>>,
    /// The capabilities as the device gave them.
    pub(super) caps: QueuePairCaps,
    /// The memory that the device may read and write.
    pub(super) regions: QueueRegions,
}

// SAFETY: the rings are touched only through the one `RawQueuePair`; other verbs may be called from any
// thread.
unsafe impl Send for RawQueuePairHandle {}
// SAFETY: as above.
unsafe impl Sync for RawQueuePairHandle {}

impl RawQueuePairHandle {
    /// How much the device gave it.
    pub fn caps(&self) -> QueuePairCaps {
        self.caps
    }

    /// Returns the current attributes. Queries the device each time.
    pub fn query(&self) -> Result<QueuePairAttributes> {
        // SAFETY: the queue pair is live and of this context.
        unsafe { queue_pair::query(self.context(), self.raw()) }
    }

    /// Moves the queue pair to the error state as [`RawQueuePair::to_error`] does, from any thread: the owner
    /// finds the flushed completions at its next poll.
    ///
    /// # Errors
    /// As there.
    pub fn to_error(&self) -> Result<()> {
        let attr = ibv_qp_attr { qp_state: sys::ibv_qp_state::IBV_QPS_ERR, ..ibv_qp_attr::default() };
        self.modify("ERR", attr, ibv_qp_attr_mask(0))
    }

    pub(crate) fn raw(&self) -> *mut ibv_qp {
        self.raw.as_ptr()
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        self.domain.context()
    }

    /// Runs `act` while no thread polls where the queue pair completes, or posts to queues that complete
    /// there.
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
        // On the way down a provider takes the queue pair's completions out of the ring
        // (providers/mlx5/verbs.c, `mlx5_modify_qp`).
        let code = if matches!(name, "RESET" | "ERR") { self.alone(act) } else { act() };
        if code == 0 {
            return Ok(());
        }
        let (device, number) = (self.context().name().into(), self.number);
        Err(VerbsError::ModifyQueuePair { device, number, state: name, source: from_code(code) })
    }
}

impl Drop for RawQueuePairHandle {
    fn drop(&mut self) {
        // SAFETY: `raw` came from the creating verb, and flows to it and its owner held an `Arc` of this and
        // are gone.
        let code = self.alone(|| unsafe { sys::ibv_destroy_qp(self.raw()) });
        leak::keep("ibv_destroy_qp", self.context().name(), code, || {
            let completions = (Arc::clone(&self.send_completions), Arc::clone(&self.receive_completions));
            (self.domain.clone(), completions, self.shared_receives.clone(), self.regions.take())
        });
    }
}

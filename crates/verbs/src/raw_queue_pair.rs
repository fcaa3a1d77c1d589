//! Raw packet queue pairs with rings of their own: how frames are sent, and a flow target without RSS.
//!
//! [`RawQueuePair`] is the owner's, on the packet path; [`RawQueuePairHandle`] is what flows keep alive. Every send is
//! signalled, so that every frame comes back through [`FramePool::reclaim`].

use std::cell::Cell;
use std::ffi::c_int;
use std::io;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use ibverbs_sys::{
    self as sys, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap, ibv_qp_init_attr, ibv_send_flags,
    ibv_send_wr, ibv_sge,
};

use crate::chain::{ReceiveChain, taken_before};
use crate::error::{errno_of, from_code, last};
use crate::lent::{Lender, Lent};
use crate::pause::Gates;
use crate::{
    CompletionQueueHandle, Context, Domain, Error, Frame, FramePool, MAX_RECEIVES, PortNumber, QueueNumber,
    Result, inline, leak,
};

/// Most sends of one queue pair at once: no known device offers more.
pub const MAX_SENDS: u32 = 1 << 20;

bitflags::bitflags! {
    /// `ibv_send_flags`, besides the signal that every send has.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SendFlags: u32 {
        /// The device computes the IPv4 header and L4 checksums.
        const IP_CSUM = ibv_send_flags::IBV_SEND_IP_CSUM.0;
    }
}

/// A raw packet queue pair, as flows to it see it.
pub struct RawQueuePairHandle {
    raw: NonNull<ibv_qp>,
    number: QueueNumber,
    domain: Domain,
    send_completions: Arc<CompletionQueueHandle>,
    receive_completions: Arc<CompletionQueueHandle>,
    /// What the device may read and write.
    lent: Lent,
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

    pub(crate) fn raw(&self) -> *mut ibv_qp {
        self.raw.as_ptr()
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        self.domain.context()
    }

    /// Destroys the queue pair with nobody polling where it completes.
    fn destroy(&self) -> c_int {
        // In order of address, so that two of these never wait for each other.
        let (a, b) = (&self.send_completions, &self.receive_completions);
        let (first, second) = if Arc::as_ptr(a) <= Arc::as_ptr(b) { (a, b) } else { (b, a) };
        let Some(_first) = first.pause() else { return libc::EBUSY };
        let _second = if Arc::ptr_eq(first, second) {
            None
        } else {
            let Some(paused) = second.pause() else { return libc::EBUSY };
            Some(paused)
        };
        // SAFETY: called from `drop` only: `raw` came from `ibv_create_qp`, and flows to it and its owner held an
        // `Arc` of this and are gone.
        unsafe { sys::ibv_destroy_qp(self.raw()) }
    }
}

impl Drop for RawQueuePairHandle {
    fn drop(&mut self) {
        let code = self.destroy();
        leak::keep("ibv_destroy_qp", self.context().name(), code, || {
            let completions = (Arc::clone(&self.send_completions), Arc::clone(&self.receive_completions));
            (self.domain.clone(), completions, self.lent.take())
        });
    }
}

/// What a raw queue pair is to be like.
#[must_use]
pub struct RawQueuePairBuilder {
    domain: Domain,
    send_completions: Arc<CompletionQueueHandle>,
    receive_completions: Arc<CompletionQueueHandle>,
    max_sends: u32,
    max_receives: u32,
}

impl RawQueuePairBuilder {
    /// How many sends can be under way; the device may allow more.
    pub fn max_sends(mut self, max_sends: u32) -> Self {
        self.max_sends = max_sends;
        self
    }

    /// How many receives can be posted; 0 for a queue pair that only sends.
    pub fn max_receives(mut self, max_receives: u32) -> Self {
        self.max_receives = max_receives;
        self
    }

    /// `ibv_create_qp`, in RESET.
    pub fn build(self) -> Result<IdleRawQueuePair> {
        let Self { domain, send_completions, receive_completions, max_sends, max_receives } = self;
        let context = domain.context();
        let failed = |source| Error::CreateRawQueuePair { device: context.name().into(), source };
        context.same_as(send_completions.context())?;
        context.same_as(receive_completions.context())?;
        if max_sends > MAX_SENDS || max_receives > MAX_RECEIVES || max_sends + max_receives == 0 {
            return Err(failed(from_code(libc::EINVAL)));
        }
        let mut attr = ibv_qp_init_attr {
            send_cq: send_completions.raw_cq(),
            recv_cq: receive_completions.raw_cq(),
            qp_type: sys::ibv_qp_type::IBV_QPT_RAW_PACKET,
            cap: ibv_qp_cap {
                max_send_wr: max_sends,
                max_recv_wr: max_receives,
                max_send_sge: u32::from(max_sends > 0),
                max_recv_sge: u32::from(max_receives > 0),
                max_inline_data: 0,
            },
            ..ibv_qp_init_attr::default()
        };
        // SAFETY: domain and completion queues are live and, being `Arc`s below, outlive the queue pair.
        let raw = unsafe { sys::ibv_create_qp(domain.raw(), &mut attr) };
        let raw = NonNull::new(raw).ok_or_else(|| failed(last()))?;
        // SAFETY: just made; the number does not change.
        let number = QueueNumber(unsafe { (*raw.as_ptr()).qp_num });
        let lent = Lent::new();
        let handle = RawQueuePairHandle { raw, number, domain, send_completions, receive_completions, lent };
        Ok(IdleRawQueuePair { handle: Arc::new(handle) })
    }
}

/// A raw queue pair in RESET: nothing can be posted yet.
pub struct IdleRawQueuePair {
    handle: Arc<RawQueuePairHandle>,
}

impl IdleRawQueuePair {
    /// Binds the queue pair to `port` and moves it to RTS, through INIT and RTR.
    pub fn to_rts(self, port: PortNumber) -> Result<RawQueuePair> {
        use sys::ibv_qp_state::{IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS};
        let state = ibv_qp_attr_mask::IBV_QP_STATE;
        let steps = [
            ("INIT", IBV_QPS_INIT, state | ibv_qp_attr_mask::IBV_QP_PORT),
            ("RTR", IBV_QPS_RTR, state),
            ("RTS", IBV_QPS_RTS, state),
        ];
        for (name, qp_state, mask) in steps {
            let mut attr = ibv_qp_attr { qp_state, port_num: port.0, ..ibv_qp_attr::default() };
            // SAFETY: the queue pair is live; the mask names the two fields set above.
            let code = unsafe { sys::ibv_modify_qp(self.handle.raw(), &mut attr, mask.0.cast_signed()) };
            if code != 0 {
                return Err(Error::ModifyQueuePair {
                    device: self.handle.context().name().into(),
                    number: self.handle.number,
                    state: name,
                    source: from_code(code),
                });
            }
        }
        let handle = self.handle;
        Ok(RawQueuePair {
            send_gates: handle.send_completions.gates(&handle.domain),
            receive_gates: handle.receive_completions.gates(&handle.domain),
            handle,
            chain: ReceiveChain::new(),
            lender: Lender::new(),
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
    lender: Lender,
    /// Of the last send that was refused.
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
        RawQueuePairBuilder {
            domain: domain.clone(),
            send_completions: Arc::clone(send_completions),
            receive_completions: Arc::clone(receive_completions),
            max_sends: 1,
            max_receives: 0,
        }
    }

    /// What flows to it are made on.
    pub fn handle(&self) -> Arc<RawQueuePairHandle> {
        Arc::clone(&self.handle)
    }

    /// The device's number for it.
    pub fn number(&self) -> QueueNumber {
        self.handle.number
    }

    /// Sends the first `bytes` bytes of a frame of `pool`, Ethernet header first. The frame comes back when the send
    /// completes; or right away, if the queue is full or refuses ([`RawQueuePair::last_refusal`]), if it has not so
    /// many bytes, or if it is of another pool. A refusal that names no request leaves the frame in doubt: it counts as sent,
    /// and is lost to its pool unless a completion gives it back. Which pools there may be, and that a batch of the completion queue must not
    /// be open meanwhile, is as for [`ReceiveQueue::post`](crate::ReceiveQueue::post).
    #[inline]
    pub fn send(
        &mut self,
        pool: &mut FramePool,
        frame: Frame,
        bytes: usize,
        flags: SendFlags,
    ) -> std::result::Result<(), Frame> {
        let (slot, length) = match (pool.slot(&frame), u32::try_from(bytes)) {
            (Some(slot), Ok(length)) if length <= pool.frame_bytes() => (slot, length),
            _ => {
                self.errno = libc::EINVAL;
                return Err(frame);
            }
        };
        if let Err(errno) = self.lender.lend(pool, &self.handle.lent, &self.handle.domain) {
            self.errno = errno;
            return Err(frame);
        }
        let Some(_entered) = self.send_gates.enter() else {
            self.errno = libc::EBUSY;
            return Err(frame);
        };
        let mut entry = ibv_sge { addr: slot.address, length, lkey: pool.lkey() };
        let mut request = ibv_send_wr {
            wr_id: slot.wr_id,
            sg_list: &raw mut entry,
            num_sge: 1,
            opcode: sys::ibv_wr_opcode::IBV_WR_SEND,
            // Others would make the library read the request or the frame in ways not meant here.
            send_flags: ibv_send_flags::IBV_SEND_SIGNALED.0 | (flags & SendFlags::all()).bits(),
            ..ibv_send_wr::default()
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is live and in RTS and this is its only poster, alone behind the gates; the frame was
        // held and is registered, which `lent` keeps it, and marked as posted before anyone can touch it again. The
        // request is read during the call only.
        let code = unsafe { inline::post_send(self.handle.raw(), &raw mut request, &mut bad) };
        if code != 0 {
            self.errno = errno_of(code);
            if taken_before(&raw const request, 1, bad) == 0 {
                return Err(frame);
            }
        }
        pool.posted(&frame);
        Ok(())
    }

    /// Why the last refused send was refused.
    pub fn last_refusal(&self) -> Option<io::Error> {
        (self.errno != 0).then(|| io::Error::from_raw_os_error(self.errno))
    }

    /// Why receives were refused last, as [`ReceiveQueue::last_refusal`](crate::ReceiveQueue::last_refusal).
    pub fn last_receive_refusal(&self) -> Option<io::Error> {
        self.chain.last_refusal()
    }

    /// Posts receives, as [`ReceiveQueue::post`](crate::ReceiveQueue::post) does.
    #[inline]
    pub fn post_receives(&mut self, pool: &mut FramePool, frames: &mut Vec<Frame>) -> usize {
        if let Err(errno) = self.lender.lend(pool, &self.handle.lent, &self.handle.domain) {
            self.chain.refuse(errno);
            return 0;
        }
        let Some(_entered) = self.receive_gates.enter() else {
            self.chain.refuse(libc::EBUSY);
            return 0;
        };
        let qp = self.handle.raw();
        self.chain.post(pool, frames, |head, bad| {
            // SAFETY: as for `send`, with the frames of a whole chain.
            unsafe { inline::post_recv(qp, head, bad) }
        })
    }
}

//! The configuration of a raw queue pair: every field of `ibv_create_qp_ex` except those of receive side
//! scaling.
//!
//! Used at start-up. It checks nothing: a device that cannot make such a queue pair refuses it.

use std::ptr;
use std::sync::Arc;

use ibverbs_sys::{self as sys, ibv_qp_init_attr_ex};

use super::{IdleRawQueuePair, MAX_SENDS, RawQueuePairHandle};
use crate::error::{created, from_code};
use crate::inline::SendFunctions;
use crate::queue_pools::{QueuePools, QueueRegions};
use crate::{
    CompletionQueueHandle, Domain, MAX_RECEIVES, QueueNumber, QueuePairCaps, QueuePairFlags, QueuePairKind,
    Result, SendOperations, SharedReceiveQueue, VerbsError, inline,
};

/// The configuration of a raw queue pair.
#[must_use]
pub struct RawQueuePairBuilder {
    domain: Domain,
    send_completions: Arc<CompletionQueueHandle>,
    receive_completions: Arc<CompletionQueueHandle>,
    shared_receives: Option<Arc<SharedReceiveQueue>>,
    kind: QueuePairKind,
    /// The numbers of parts count only where there are sends or receives.
    caps: QueuePairCaps,
    signal_all: bool,
    token: usize,
    flags: QueuePairFlags,
    source_number: Option<QueueNumber>,
    max_tso_header: Option<u16>,
    operations: SendOperations,
}

impl RawQueuePairBuilder {
    pub(super) fn new(
        domain: &Domain,
        send_completions: &Arc<CompletionQueueHandle>,
        receive_completions: &Arc<CompletionQueueHandle>,
    ) -> Self {
        let caps =
            QueuePairCaps { max_sends: 1, max_send_parts: 1, max_receive_parts: 1, ..Default::default() };
        Self {
            domain: domain.clone(),
            send_completions: Arc::clone(send_completions),
            receive_completions: Arc::clone(receive_completions),
            shared_receives: None,
            kind: QueuePairKind::RawPacket,
            caps,
            signal_all: false,
            token: 0,
            flags: QueuePairFlags::empty(),
            source_number: None,
            max_tso_header: None,
            operations: SendOperations::empty(),
        }
    }

    /// How many sends can be under way; the device may allow more.
    pub fn max_sends(mut self, max_sends: u32) -> Self {
        self.caps.max_sends = max_sends;
        self
    }

    /// How many receives can be posted; 0 for a queue pair that only sends.
    pub fn max_receives(mut self, max_receives: u32) -> Self {
        self.caps.max_receives = max_receives;
        self
    }

    /// How many pieces of memory a send gathers; 1 unless set.
    pub fn max_send_parts(mut self, max_send_parts: u32) -> Self {
        self.caps.max_send_parts = max_send_parts;
        self
    }

    /// How many pieces of memory a receive scatters to; 1 unless set. [`RawQueuePair::post_receives`] uses
    /// one.
    ///
    /// [`RawQueuePair::post_receives`]: super::RawQueuePair::post_receives
    pub fn max_receive_parts(mut self, max_receive_parts: u32) -> Self {
        self.caps.max_receive_parts = max_receive_parts;
        self
    }

    /// How many bytes a send can bring along instead of naming memory; 0 unless set.
    pub fn max_inline_bytes(mut self, max_inline_bytes: u32) -> Self {
        self.caps.max_inline_bytes = max_inline_bytes;
        self
    }

    /// Sets the service type of the queue pair; raw packets unless set.
    pub fn kind(mut self, kind: QueuePairKind) -> Self {
        self.kind = kind;
        self
    }

    /// Every send generates a completion, whatever its flags (`sq_sig_all`).
    pub fn signal_all(mut self, on: bool) -> Self {
        self.signal_all = on;
        self
    }

    /// A number that the queue pair keeps (`qp_context`) and [`query`](RawQueuePairHandle::query) returns.
    pub fn token(mut self, token: usize) -> Self {
        self.token = token;
        self
    }

    /// Receives come from there instead of a ring of its own. A device that has this only for other
    /// transports refuses, with EINVAL or EOPNOTSUPP.
    pub fn shared_receive_queue(mut self, queue: &Arc<SharedReceiveQueue>) -> Self {
        self.shared_receives = Some(Arc::clone(queue));
        self
    }

    /// Sets further features.
    pub fn flags(mut self, flags: QueuePairFlags) -> Self {
        self.flags = flags;
        self
    }

    /// Sent packets name this queue pair as their source; adds [`QueuePairFlags::SOURCE_QPN`].
    pub fn source_number(mut self, number: QueueNumber) -> Self {
        self.source_number = Some(number);
        self
    }

    /// Bytes of headers in front of a stream that the device cuts into segments, at most. Without it, it cuts
    /// none.
    pub fn max_tso_header(mut self, bytes: u16) -> Self {
        self.max_tso_header = Some(bytes);
        self
    }

    /// Operations for [`RawQueuePair::start_send`](super::RawQueuePair::start_send), which has none
    /// otherwise.
    pub fn send_operations(mut self, operations: SendOperations) -> Self {
        self.operations = operations;
        self
    }

    /// `ibv_create_qp_ex`, or `ibv_create_qp` if that has all the fields; in RESET.
    ///
    /// # Errors
    /// EPERM without CAP_NET_RAW; EINVAL beyond the device's limits or for a flag or operation it does not
    /// have (EOPNOTSUPP on some); ENOMEM; EOPNOTSUPP for a provider that leaves out a function of an
    /// operation.
    pub fn build(self) -> Result<IdleRawQueuePair> {
        let context = Arc::clone(self.domain.context());
        let failed = |source| VerbsError::CreateRawQueuePair { device: context.name().into(), source };
        context.same_as(self.send_completions.context())?;
        context.same_as(self.receive_completions.context())?;
        if let Some(shared) = &self.shared_receives {
            context.same_as(shared.domain().context())?;
        }
        self.send_completions.admits().map_err(failed)?;
        self.receive_completions.admits().map_err(failed)?;
        let QueuePairCaps { max_sends, max_receives, .. } = self.caps;
        if max_sends > MAX_SENDS || max_receives > MAX_RECEIVES {
            return Err(failed(from_code(libc::EINVAL)));
        }
        if max_sends + max_receives == 0 && self.shared_receives.is_none() {
            return Err(failed(from_code(libc::EINVAL)));
        }
        let mut attr = self.attr();
        // SAFETY: domain, completion queues and shared receives are live and, being `Arc`s below, outlive the
        // queue pair.
        let create = || unsafe { inline::create_qp_ex(context.raw(), &raw mut attr) };
        let raw = created(create).map_err(failed)?;
        // SAFETY: just made; the number does not change.
        let number = QueueNumber(unsafe { (*raw.as_ptr()).qp_num });
        let handle = RawQueuePairHandle {
            raw,
            number,
            domain: self.domain,
            send_completions: self.send_completions,
            receive_completions: self.receive_completions,
            shared_receives: self.shared_receives,
            caps: QueuePairCaps::from(&attr.cap),
            regions: QueueRegions::new(),
        };
        let functions = if self.operations.is_empty() {
            None
        } else {
            // SAFETY: live, and made with the mask that an extended queue pair has.
            match unsafe { SendFunctions::of(raw.as_ptr(), self.operations) } {
                Some(functions) => Some(functions),
                None => return Err(failed(from_code(libc::EOPNOTSUPP))),
            }
        };
        Ok(IdleRawQueuePair { handle: Arc::new(handle), pools: QueuePools::new(), functions })
    }

    fn attr(&self) -> ibv_qp_init_attr_ex {
        let mut caps = self.caps;
        caps.max_send_parts = if caps.max_sends > 0 { caps.max_send_parts } else { 0 };
        caps.max_receive_parts = if caps.max_receives > 0 { caps.max_receive_parts } else { 0 };
        let mut attr = ibv_qp_init_attr_ex {
            qp_context: ptr::without_provenance_mut(self.token),
            send_cq: self.send_completions.raw_cq(),
            recv_cq: self.receive_completions.raw_cq(),
            srq: self.shared_receives.as_ref().map_or(ptr::null_mut(), |shared| shared.raw()),
            cap: caps.into(),
            qp_type: self.kind.raw(),
            sq_sig_all: i32::from(self.signal_all),
            comp_mask: sys::IBV_QP_INIT_ATTR_PD,
            pd: self.domain.raw(),
            create_flags: self.flags.bits(),
            ..ibv_qp_init_attr_ex::default()
        };
        if let Some(number) = self.source_number {
            attr.create_flags |= sys::IBV_QP_CREATE_SOURCE_QPN;
            attr.source_qpn = number.0;
        }
        if attr.create_flags != 0 {
            attr.comp_mask |= sys::IBV_QP_INIT_ATTR_CREATE_FLAGS;
        }
        if let Some(bytes) = self.max_tso_header {
            attr.comp_mask |= sys::IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
            attr.max_tso_header = bytes;
        }
        if !self.operations.is_empty() {
            attr.comp_mask |= sys::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
            attr.send_ops_flags = self.operations.bits();
        }
        attr
    }
}

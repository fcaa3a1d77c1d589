//! What a completion queue is to be like: every field of `ibv_create_cq_ex`.
//!
//! Used at start-up. Nothing here judges what a device can do; it says so when the queue is made.

use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;

use ibverbs_sys::{self as sys, ibv_cq_init_attr_ex};

use super::{CompletionQueue, CompletionQueueHandle, MAX_COMPLETIONS};
use crate::completion::CompletionFields;
use crate::error::{created, from_code};
use crate::inline::PollFunctions;
use crate::{CompletionChannel, Context, Domain, Error, ParentDomain, RawPacketCaps, Result, inline, leak};

/// What a completion queue is to be like.
#[must_use]
pub struct CompletionQueueBuilder {
    context: Arc<Context>,
    entries: u32,
    fields: CompletionFields,
    flags: sys::ibv_create_cq_attr_flags,
    domain: Option<Domain>,
    channel: Option<Arc<CompletionChannel>>,
    token: usize,
    completion_vector: u32,
}

impl CompletionQueueBuilder {
    pub(super) fn new(context: &Arc<Context>, entries: u32) -> Self {
        Self {
            context: Arc::clone(context),
            entries,
            fields: CompletionFields::empty(),
            flags: 0,
            domain: None,
            channel: None,
            token: 0,
            completion_vector: 0,
        }
    }

    /// What completions can be asked for; each may cost the device and the poller something.
    pub fn fields(mut self, fields: CompletionFields) -> Self {
        self.fields = fields;
        self
    }

    /// The library may leave out its lock. The queue can still be moved between threads and posted to from others: this
    /// crate's own gate, which is there in any case, lets one at a time do something.
    pub fn single_threaded(self, on: bool) -> Self {
        self.flag(sys::IBV_CREATE_CQ_ATTR_SINGLE_THREADED, on)
    }

    /// The device does not check for overruns. The owner makes the queue large enough for all that can complete.
    pub fn ignore_overrun(self, on: bool) -> Self {
        self.flag(sys::IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN, on)
    }

    /// The queue's memory comes from this domain's allocator, if it has one, and it belongs to its thread domain. A
    /// protection domain alone would have no say in a completion queue.
    pub fn domain(mut self, domain: &Arc<ParentDomain>) -> Self {
        self.domain = Some(Domain::from(domain));
        self
    }

    /// Where the queue reports that it has something, and the token by which its events name it (`cq_context`).
    pub fn channel(mut self, channel: &Arc<CompletionChannel>, token: usize) -> Self {
        self.channel = Some(Arc::clone(channel));
        self.token = token;
        self
    }

    /// Which of the device's interrupts its events come by, below
    /// [`Context::completion_vectors`](crate::Context::completion_vectors); 0 unless set.
    pub fn completion_vector(mut self, completion_vector: u32) -> Self {
        self.completion_vector = completion_vector;
        self
    }

    fn flag(mut self, flag: sys::ibv_create_cq_attr_flags, on: bool) -> Self {
        self.flags = if on { self.flags | flag } else { self.flags & !flag };
        self
    }

    /// `ibv_create_cq_ex`.
    ///
    /// # Errors
    /// EINVAL for more entries, a field, a flag or a completion vector that the device does not have (EOPNOTSUPP on some),
    /// ENOMEM, and EOPNOTSUPP for a provider that leaves out a function that was asked for.
    pub fn build(self) -> Result<CompletionQueue> {
        let Self { context, entries, fields, flags, domain, channel, token, completion_vector } = self;
        let failed = |source| Error::CreateCompletionQueue { device: context.name().into(), entries, source };
        if let Some(domain) = &domain {
            context.same_as(domain.context())?;
        }
        if let Some(channel) = &channel {
            context.same_as(channel.context())?;
        }
        if !(1..=MAX_COMPLETIONS).contains(&entries) {
            return Err(failed(from_code(libc::EINVAL)));
        }
        let mut attr = ibv_cq_init_attr_ex {
            cqe: entries,
            cq_context: ptr::without_provenance_mut(token),
            channel: channel.as_ref().map_or(ptr::null_mut(), |channel| channel.raw()),
            comp_vector: completion_vector,
            wc_flags: fields.bits(),
            flags,
            ..ibv_cq_init_attr_ex::default()
        };
        if flags != 0 {
            attr.comp_mask |= sys::IBV_CQ_INIT_ATTR_MASK_FLAGS;
        }
        if let Some(domain) = &domain {
            attr.comp_mask |= sys::IBV_CQ_INIT_ATTR_MASK_PD;
            attr.parent_domain = domain.raw();
        }
        let checksums = context
            .attributes()
            .is_ok_and(|attributes| attributes.raw_packet_caps.contains(RawPacketCaps::IP_CSUM));
        // SAFETY: the context is open, domain and channel live; the context word is only handed back.
        let create = || unsafe { inline::create_cq_ex(context.raw(), ptr::from_mut(&mut attr)) };
        let raw = created(create).map_err(failed)?;
        // SAFETY: just made, and nobody else's yet.
        let Some(functions) = PollFunctions::of(unsafe { raw.as_ref() }, fields) else {
            // SAFETY: as above; nothing completes into it.
            let code = unsafe { sys::ibv_destroy_cq(raw.as_ptr().cast()) };
            leak::keep("ibv_destroy_cq", context.name(), code, || {
                (Arc::clone(&context), domain.clone(), channel.clone())
            });
            return Err(failed(from_code(libc::EOPNOTSUPP)));
        };
        let gate = domain.as_ref().and_then(Domain::gate).cloned().unwrap_or_default();
        let handle = CompletionQueueHandle { raw, context, domain, gate, functions, channel, checksums };
        Ok(CompletionQueue { handle: Arc::new(handle), poll_errors: 0, _not_sync: PhantomData })
    }
}

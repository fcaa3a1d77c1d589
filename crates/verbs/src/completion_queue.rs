//! Completion queues: polled by one owner, a batch at a time.
//!
//! [`CompletionQueue`] belongs to the polling loop; [`CompletionQueueHandle`] is the part that work queues
//! and queue pairs keep alive; [`CompletionQueueBuilder`] has every field of `ibv_create_cq_ex`. It checks
//! nothing: a device that cannot make such a queue refuses it. Polling neither returns a `Result` nor
//! allocates nor waits for a completion.

use std::cell::Cell;
use std::ffi::c_int;
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ibverbs_sys::{self as sys, ibv_cq_init_attr_ex};

use crate::completion::{Completion, RawCompletion, WorkCompletion};
use crate::error::{created, from_code};
use crate::inline::PollFunctions;
use crate::{
    CompletionChannel, CompletionFields, CompletionQueueHandle, Context, Domain, ParentDomain, RawPacketCaps,
    Result, VerbsError, inline, leak,
};

/// Most entries of a completion queue: what the largest known device offers (mlx5, 4 Mi).
pub const MAX_COMPLETIONS: u32 = 1 << 22;

/// How many completions one call of `ibv_poll_cq` is asked for.
const CLASSIC_CHUNK: usize = 32;

/// A completion queue, to be polled by its owner.
pub struct CompletionQueue {
    handle: Arc<CompletionQueueHandle>,
    poll_errors: u64,
    /// One poller: the structure holds the current completion.
    _not_sync: PhantomData<Cell<()>>,
}

impl CompletionQueue {
    /// A queue of at least `entries` entries. Without [`CompletionQueueBuilder::ignore_overrun`], one
    /// completion more than it holds is fatal to the queue.
    pub fn builder(context: &Arc<Context>, entries: u32) -> CompletionQueueBuilder {
        CompletionQueueBuilder::new(context, entries)
    }

    /// The handle on which work queues and queue pairs are made.
    pub fn handle(&self) -> Arc<CompletionQueueHandle> {
        Arc::clone(&self.handle)
    }

    /// How many entries the device gave it.
    pub fn entries(&self) -> u32 {
        // SAFETY: the queue is live; `cqe` is set when it is made.
        u32::try_from(unsafe { (*self.handle.raw()).cqe }).unwrap_or(0)
    }

    /// How often the device could not be polled or could not go on with a batch; never reset.
    pub fn poll_errors(&self) -> u64 {
        self.poll_errors
    }

    /// The waiting completions. `None`: none, or another thread uses the queue at this moment: posting to a
    /// queue that completes into this one, destroying one, or using anything of the same
    /// [`ThreadDomain`](crate::ThreadDomain).
    ///
    /// As long as the batch is open, nothing can be posted to queues that complete here: their `post` takes
    /// no frames.
    #[inline]
    pub fn poll(&mut self) -> Option<CompletionBatch<'_>> {
        self.try_poll().ok()
    }

    /// Polls as [`CompletionQueue::poll`] does.
    ///
    /// # Errors
    /// An errno: ENOENT if there is no completion, EBUSY if somebody else uses the queue, or the provider's.
    #[inline]
    pub(crate) fn try_poll(&mut self) -> std::result::Result<CompletionBatch<'_>, c_int> {
        if !self.handle.gate.enter() {
            return Err(libc::EBUSY);
        }
        // SAFETY: the queue is live; `&mut self` makes this the only poller, the gate keeps posters and
        // destroyers out, and a batch borrows `self`, so none is open.
        let code = unsafe { self.handle.functions.start_poll(self.handle.raw()) };
        if code == 0 {
            return Ok(CompletionBatch { queue: self, next: Next::First, _not_send: PhantomData });
        }
        self.handle.gate.leave();
        if code != libc::ENOENT {
            self.poll_errors += 1;
        }
        Err(code)
    }

    /// Passes completions to `each` until there is none.
    ///
    /// # Errors
    /// An errno: EBUSY if somebody else uses the queue, or if completions of other queues keep coming; the
    /// provider's if it cannot be polled. Some completions may be waiting then.
    #[cold]
    pub(crate) fn drain(&mut self, mut each: impl FnMut(Completion<'_>)) -> std::result::Result<(), c_int> {
        let most = u64::from(self.entries()) * 2;
        let mut taken = 0;
        loop {
            let mut batch = match self.try_poll() {
                Ok(batch) => batch,
                Err(libc::ENOENT) => return Ok(()),
                Err(code) => return Err(code),
            };
            while let Some(completion) = batch.next() {
                each(completion);
                taken += 1;
                if taken > most {
                    return Err(libc::EBUSY);
                }
            }
        }
    }
}

impl CompletionQueue {
    /// Calls `poll` as the only user of the queue and of what completes here; `None` where
    /// [`CompletionQueue::poll`] finds another one.
    #[inline]
    pub(crate) fn enter<T>(&mut self, poll: impl FnOnce() -> T) -> Option<T> {
        if !self.handle.gate.enter() {
            return None;
        }
        let polled = poll();
        self.handle.gate.leave();
        Some(polled)
    }

    /// Counts a poll that found what it cannot read.
    #[cold]
    pub(crate) fn count_poll_error(&mut self) {
        self.poll_errors += 1;
    }

    /// Completions by value (`ibv_poll_cq`), appended to `into`, at most `most` of them. Returns how many; 0
    /// as well where [`CompletionQueue::poll`] gives `None`. Allocates only if `into` is full.
    pub fn poll_classic(&mut self, into: &mut Vec<WorkCompletion>, most: usize) -> usize {
        let handle = &*self.handle;
        if !handle.gate.enter() {
            return 0;
        }
        let mut total = 0;
        while total < most {
            let mut chunk: [RawCompletion; CLASSIC_CHUNK] = std::array::from_fn(|_| RawCompletion::default());
            let wanted = CLASSIC_CHUNK.min(most - total);
            // SAFETY: the queue is live, the gate and `&mut self` keep everybody else out and no batch is
            // open; the array is large enough for the request, in the layout of the header.
            let got = unsafe { inline::poll_cq(handle.raw_cq(), wanted as c_int, chunk.as_mut_ptr().cast()) };
            let Ok(got) = usize::try_from(got) else {
                self.poll_errors += 1;
                break;
            };
            into.extend(chunk.into_iter().take(got.min(wanted)).map(WorkCompletion::new));
            total += got.min(wanted);
            if got < wanted {
                break;
            }
        }
        handle.gate.leave();
        total
    }

    /// Asks for one event on the queue's channel: when the next completion comes, or, with `solicited_only`,
    /// the next that failed or whose sender asked for it (`ibv_req_notify_cq`). What came before the request
    /// gives no event, so poll once more before going to sleep.
    ///
    /// # Errors
    /// EBUSY if another thread used the queue or its thread domain for the whole time limit; EINVAL from some
    /// providers without a channel.
    pub fn request_notification(&mut self, solicited_only: bool) -> Result<()> {
        let handle = &*self.handle;
        let code = match handle.pause() {
            // SAFETY: the queue is live, and no thread polls it or posts to queues that complete there while
            // paused.
            Some(_paused) => unsafe { inline::req_notify_cq(handle.raw_cq(), c_int::from(solicited_only)) },
            None => libc::EBUSY,
        };
        handle.answer(code, |device, source| VerbsError::RequestNotification { device, source })
    }

    /// Events only after `count` completions or `period_us` microseconds, whichever is first
    /// (`ibv_modify_cq`); 0 and 0 for each at once. The limits are in
    /// [`DeviceAttributes::cq_moderation`](crate::DeviceAttributes::cq_moderation).
    ///
    /// # Errors
    /// EOPNOTSUPP where the device cannot, EINVAL beyond its limits.
    pub fn moderate(&self, count: u16, period_us: u16) -> Result<()> {
        let handle = &*self.handle;
        let mut attr = sys::ibv_modify_cq_attr {
            attr_mask: sys::IBV_CQ_ATTR_MODERATE,
            moderate: sys::ibv_moderate_cq { cq_count: count, cq_period: period_us },
        };
        // SAFETY: the queue is live and of this context.
        let code = unsafe { inline::modify_cq(handle.context.raw(), handle.raw_cq(), &raw mut attr) };
        handle.answer(code, |device, source| VerbsError::ModerateCompletionQueue { device, source })
    }

    /// Resizes to at least `entries` completions (`ibv_resize_cq`); those in the queue stay.
    ///
    /// # Errors
    /// EINVAL beyond the device's limit or below what the queue holds, ENOMEM, EOPNOTSUPP; EBUSY if somebody
    /// used the queue or its thread domain all the while. After any of them the queue is as before.
    pub fn resize(&mut self, entries: u32) -> Result<()> {
        let handle = &*self.handle;
        let code = match (c_int::try_from(entries), handle.pause()) {
            (Ok(wanted), Some(_paused)) if (1..=MAX_COMPLETIONS).contains(&entries) => {
                // SAFETY: the queue is live, and no thread polls it or posts to queues that complete there
                // while paused.
                unsafe { sys::ibv_resize_cq(handle.raw_cq(), wanted) }
            }
            (_, None) => libc::EBUSY,
            _ => libc::EINVAL,
        };
        handle.answer(code, |device, source| VerbsError::ResizeCompletionQueue { device, entries, source })
    }
}

/// The state of a batch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    /// `start_poll` has made the first completion current.
    First,
    More,
    End,
}

/// An open poll: completions in order. Ends the poll when dropped, on the thread that opened it: the library
/// may hold a spin lock meanwhile.
pub struct CompletionBatch<'cq> {
    queue: &'cq mut CompletionQueue,
    next: Next,
    _not_send: PhantomData<*const ()>,
}

impl CompletionBatch<'_> {
    /// The next completion; the one before is over. Not an iterator, as each borrows the batch.
    #[inline]
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<Completion<'_>> {
        let handle = &*self.queue.handle;
        match self.next {
            Next::First => self.next = Next::More,
            Next::More => {
                // SAFETY: the poll is open until `drop`; this thread opened it, as a batch is not `Send`.
                let code = unsafe { handle.functions.next_poll(handle.raw()) };
                if code != 0 {
                    self.next = Next::End;
                    if code != libc::ENOENT {
                        self.queue.poll_errors += 1;
                    }
                    return None;
                }
            }
            Next::End => return None,
        }
        // SAFETY: `start_poll` or `next_poll` has just made one current; the next call and `drop` need the
        // batch that the completion borrows.
        Some(unsafe { Completion::current(&self.queue.handle) })
    }
}

impl Drop for CompletionBatch<'_> {
    #[inline]
    fn drop(&mut self) {
        let handle = &*self.queue.handle;
        // SAFETY: opened by `start_poll` in `poll`, ended once, here.
        unsafe { handle.functions.end_poll(handle.raw()) };
        handle.gate.leave();
    }
}

/// The attributes of a completion queue to be made.
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

    /// Sets the fields that completions can be asked for; each may cost the device and the poller something.
    pub fn fields(mut self, fields: CompletionFields) -> Self {
        self.fields = fields;
        self
    }

    /// The library may leave out its lock. The queue can still be moved between threads and posted to from
    /// others: this crate's own gate, which is there in any case, lets one at a time do something.
    pub fn single_threaded(self, on: bool) -> Self {
        self.flag(sys::IBV_CREATE_CQ_ATTR_SINGLE_THREADED, on)
    }

    /// The device does not check for overruns. The owner makes the queue large enough for all that can
    /// complete.
    pub fn ignore_overrun(self, on: bool) -> Self {
        self.flag(sys::IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN, on)
    }

    /// The queue's memory comes from this domain's allocator, if it has one, and it belongs to its thread
    /// domain. A protection domain alone has no effect on a completion queue.
    pub fn domain(mut self, domain: &Arc<ParentDomain>) -> Self {
        self.domain = Some(Domain::from(domain));
        self
    }

    /// Where the queue reports that it has something, and the token by which its events name it
    /// (`cq_context`).
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
    /// EINVAL for more entries, a field, a flag or a completion vector that the device does not have
    /// (EOPNOTSUPP on some), ENOMEM, and EOPNOTSUPP for a provider that leaves out a function that was asked
    /// for.
    pub fn build(self) -> Result<CompletionQueue> {
        let Self { context, entries, fields, flags, domain, channel, token, completion_vector } = self;
        let failed =
            |source| VerbsError::CreateCompletionQueue { device: context.name().into(), entries, source };
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
        // SAFETY: just made, and not shared yet.
        let Some(functions) = PollFunctions::of(unsafe { raw.as_ref() }, fields) else {
            // SAFETY: as above; nothing completes into it.
            let code = unsafe { sys::ibv_destroy_cq(raw.as_ptr().cast()) };
            leak::keep("ibv_destroy_cq", context.name(), code, || {
                (Arc::clone(&context), domain.clone(), channel.clone())
            });
            return Err(failed(from_code(libc::EOPNOTSUPP)));
        };
        let gate = domain.as_ref().and_then(Domain::gate).cloned().unwrap_or_default();
        let handle = CompletionQueueHandle {
            raw,
            context,
            domain,
            gate,
            functions,
            channel,
            fields,
            is_claimed: AtomicBool::new(false),
            checksums,
        };
        Ok(CompletionQueue { handle: Arc::new(handle), poll_errors: 0, _not_sync: PhantomData })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::assert_not_send;

    assert_not_send!(CompletionBatch<'static>);
    assert_not_send!(Completion<'static>);
}

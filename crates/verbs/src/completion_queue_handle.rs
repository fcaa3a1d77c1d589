//! The part of a completion queue that work queues and queue pairs keep alive.

use std::ffi::c_int;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ibverbs_sys::{self as sys, ibv_cq_ex};

use crate::error::from_code;
use crate::inline::PollFunctions;
use crate::pause::{Gate, Gates, Paused, pause_both};
use crate::{CompletionChannel, CompletionFields, Context, Domain, Result, VerbsError, leak};

/// A completion queue for everything but its poller: an object that must outlive what completes into it.
pub struct CompletionQueueHandle {
    pub(crate) raw: NonNull<ibv_cq_ex>,
    pub(crate) context: Arc<Context>,
    /// The domain whose allocator holds the queue's memory.
    pub(crate) domain: Option<Domain>,
    /// Entered by the poller while a batch is open, and by threads that post to queues that complete here.
    /// The thread domain's, if there is one.
    pub(crate) gate: Arc<Gate>,
    /// The functions that the provider set when the queue was made.
    pub(crate) functions: PollFunctions,
    /// Where it reports that it has something.
    pub(crate) channel: Option<Arc<CompletionChannel>>,
    /// The fields that completions were asked for.
    pub(crate) fields: CompletionFields,
    /// The completions are read by the rings of one queue ([`CompletionQueueHandle::claim`]).
    pub(crate) is_claimed: AtomicBool,
    /// The device checks checksums, so that the flag in completions means something.
    pub(crate) checksums: bool,
}

// SAFETY: the structure is polled only through the one `CompletionQueue`, which is not `Sync`; everyone else
// only keeps it alive or passes it to verbs that may be called from any thread. Where those touch the ring,
// and where the library left its locks out, the gate admits one at a time.
unsafe impl Send for CompletionQueueHandle {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueueHandle {}

impl CompletionQueueHandle {
    pub(crate) fn raw(&self) -> *mut ibv_cq_ex {
        self.raw.as_ptr()
    }

    /// `ibv_cq_ex_to_cq`: the structures begin alike (verbs.h).
    pub(crate) fn raw_cq(&self) -> *mut sys::ibv_cq {
        self.raw.as_ptr().cast()
    }

    #[inline]
    pub(crate) fn functions(&self) -> &PollFunctions {
        &self.functions
    }

    #[inline]
    pub(crate) fn checksums(&self) -> bool {
        self.checksums
    }

    /// Reserves the queue for the one queue that completes here already; false if there are others, which
    /// hold handles of it. No other queue can be made that completes here.
    pub(crate) fn claim(self: &Arc<Self>) -> bool {
        /// The handles of the poller, of the queue, and of the caller.
        const HOLDERS: usize = 3;
        self.is_claimed.store(true, Ordering::SeqCst);
        Arc::strong_count(self) == HOLDERS
    }

    /// # Errors
    /// EINVAL if the queue is reserved for another one.
    pub(crate) fn admits(&self) -> std::result::Result<(), io::Error> {
        if self.is_claimed.load(Ordering::SeqCst) { Err(from_code(libc::EINVAL)) } else { Ok(()) }
    }

    /// Keeps the poller and posters out, for verbs that remove a queue's completions from the ring. `None`: a
    /// batch stayed open.
    pub(crate) fn pause(&self) -> Option<Paused<'_>> {
        self.gate.pause()
    }

    /// Pauses two queues as [`CompletionQueueHandle::pause`] does: those of one thread domain have one gate.
    pub(crate) fn pause_with<'q>(&'q self, other: &'q Self) -> Option<(Paused<'q>, Option<Paused<'q>>)> {
        pause_both(&self.gate, &other.gate)
    }

    /// The gates that a poster in `domain` passes whose requests complete here.
    pub(crate) fn gates(&self, domain: &Domain) -> Gates {
        Gates::new(&self.gate, domain.gate())
    }

    /// The device it belongs to.
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn answer(
        &self,
        code: c_int,
        error: impl FnOnce(String, io::Error) -> VerbsError,
    ) -> Result<()> {
        if code == 0 { Ok(()) } else { Err(error(self.context.name().into(), from_code(code))) }
    }
}

impl Drop for CompletionQueueHandle {
    fn drop(&mut self) {
        let reading = self.channel.as_ref().map(|channel| channel.hold());
        // SAFETY: `raw` came from `create_cq_ex`; every object that completes into it held an `Arc` of this
        // and is dropped, and so is the poller. All events of it are acknowledged.
        let code = unsafe { sys::ibv_destroy_cq(self.raw_cq()) };
        drop(reading);
        leak::keep("ibv_destroy_cq", self.context.name(), code, || {
            (Arc::clone(&self.context), self.domain.clone(), self.channel.clone())
        });
    }
}

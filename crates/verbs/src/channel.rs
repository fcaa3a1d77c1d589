//! Completion channels: how a thread sleeps until a queue has something.
//!
//! Made before the queues that report to it. A queue reports nothing until it is asked to
//! ([`CompletionQueue::request_notification`](crate::CompletionQueue::request_notification)), once per event.
//! Events are acknowledged before they are returned, so destroying a queue never waits for one. The polling
//! loop has no use for this.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ibverbs_sys::{self as sys, ibv_comp_channel};

use crate::context::never_wait;
use crate::error::{created, forget_last, last};
use crate::{Context, Result, VerbsError, leak};

/// A channel for the events of one or more completion queues of a device.
pub struct CompletionChannel {
    raw: NonNull<ibv_comp_channel>,
    context: Arc<Context>,
    /// Held while an event is read and acknowledged, and while a queue is destroyed that reports here: in
    /// between, an event that was read points to its queue.
    reading: Mutex<()>,
}

// SAFETY: the verbs on a channel may be called from any thread; its count of queues is kept under the
// library's lock.
unsafe impl Send for CompletionChannel {}
// SAFETY: as above.
unsafe impl Sync for CompletionChannel {}

/// A queue has completions, or had some since notification was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CompletionEvent {
    /// The token that the queue was given with its channel
    /// ([`CompletionQueueBuilder::channel`](crate::CompletionQueueBuilder::channel)).
    pub token: usize,
}

impl CompletionChannel {
    /// `ibv_create_comp_channel`, or the provider's own way
    /// ([`Provider::channel_maker`](crate::Provider::channel_maker)).
    ///
    /// # Errors
    /// EMFILE without a descriptor left; EOPNOTSUPP, ENOSPC or ENOTTY where a provider has no channels.
    pub fn new(context: &Arc<Context>) -> Result<Arc<Self>> {
        let failed = |source| VerbsError::CreateChannel { device: context.name().into(), source };
        // SAFETY: the context is open, and of the provider whose function this is.
        let raw = created(|| unsafe { context.create_channel() }).map_err(failed)?;
        let channel = Self { raw, context: Arc::clone(context), reading: Mutex::new(()) };
        never_wait(channel.fd()).map_err(failed)?;
        Ok(Arc::new(channel))
    }

    /// The next event, acknowledged; `None` when there is none now. Never waits (ibv_get_cq_event(3)).
    pub fn event(&self) -> Result<Option<CompletionEvent>> {
        let _reading = self.hold();
        loop {
            let (mut cq, mut word) = (ptr::null_mut(), ptr::null_mut());
            // The library fails without errno at the end of the file (libibverbs/verbs.c).
            forget_last();
            // SAFETY: the channel is live; the lock keeps the queues that report here from being destroyed.
            if unsafe { sys::ibv_get_cq_event(self.raw(), &raw mut cq, &raw mut word) } == 0 {
                // SAFETY: the event has just been read, and its queue waits for the lock before it is
                // destroyed.
                unsafe { sys::ibv_ack_cq_events(cq, 1) };
                return Ok(Some(CompletionEvent { token: word.addr() }));
            }
            let source = last();
            match source.kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock => return Ok(None),
                _ => return Err(self.unreadable(source)),
            }
        }
    }

    /// The next event, acknowledged, as soon as there is one; `None` after `timeout`, or, without a limit,
    /// never. When several threads wait, one of them gets an event.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<CompletionEvent>> {
        let start = Instant::now();
        loop {
            if let Some(event) = self.event()? {
                return Ok(Some(event));
            }
            let left = match timeout.map(|timeout| timeout.saturating_sub(start.elapsed())) {
                Some(Duration::ZERO) => return Ok(None),
                left => left,
            };
            readable(self.fd(), left).map_err(|source| self.unreadable(source))?;
        }
    }

    /// The device it belongs to.
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn raw(&self) -> *mut ibv_comp_channel {
        self.raw.as_ptr()
    }

    /// Keeps events from being read, for a queue that is destroyed.
    pub(crate) fn hold(&self) -> MutexGuard<'_, ()> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fd(&self) -> c_int {
        // SAFETY: `raw` is live until `drop`; the descriptor is set once, when the channel is made.
        unsafe { (*self.raw()).fd }
    }

    fn unreadable(&self, source: io::Error) -> VerbsError {
        VerbsError::ReadChannel { device: self.context.name().into(), source }
    }
}

/// Waits until a descriptor can be read, at most for `timeout`; a signal may end it early.
fn readable(fd: c_int, timeout: Option<Duration>) -> io::Result<()> {
    // Rounded up, so that the rest of a millisecond is waited for and not spun away.
    let ms = timeout.map_or(-1, |timeout| c_int::try_from(timeout.as_millis() + 1).unwrap_or(c_int::MAX));
    let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, writable.
    match unsafe { libc::poll(&raw mut entry, 1, ms) } {
        -1 => match last() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            error => Err(error),
        },
        _ => Ok(()),
    }
}

impl AsFd for CompletionChannel {
    /// Readable when [`CompletionChannel::event`] has something. It does not block; leave it that way.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: `new` found the descriptor open; it stays so until the channel is destroyed, in `drop`.
        unsafe { BorrowedFd::borrow_raw(self.fd()) }
    }
}

impl AsRawFd for CompletionChannel {
    fn as_raw_fd(&self) -> c_int {
        self.fd()
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: `raw` came from `create_channel`; queues that report here held an `Arc` of this and are
        // gone.
        let code = unsafe { sys::ibv_destroy_comp_channel(self.raw()) };
        leak::keep("ibv_destroy_comp_channel", self.context.name(), code, || Arc::clone(&self.context));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no poll(2)")]
    fn waiting_ends_with_the_time_or_with_data() {
        let (reader, mut writer) = io::pipe().expect("a pipe");
        let start = Instant::now();
        readable(reader.as_raw_fd(), Some(Duration::from_millis(5))).expect("a timeout is no error");
        assert!(start.elapsed() >= Duration::from_millis(5));
        io::Write::write_all(&mut writer, &[1]).expect("room");
        readable(reader.as_raw_fd(), None).expect("readable");
    }
}

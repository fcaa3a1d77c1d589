//! Receiving from the queues of an mlx5 device without its provider's functions.
//!
//! The objects are made by verbs and stay theirs: their states, flows, tables and memory. Only the packet
//! path, which takes completions and posts frames, reads and writes the rings itself. The functions of
//! libmlx5 cost three indirect calls and a fence for each completion, and wait for each completion's cache
//! line; here a group of completions is read while the next one is fetched.
//!
//! `provider` asks libmlx5 for the addresses, `rings` knows the formats, `memory` the order of accesses.
//! Other providers, and queues of other formats, are refused ([`DirectRefusal`]); they are used by
//! [`VerbsReceive`](crate::VerbsReceive).

mod memory;
mod provider;
mod rings;
#[cfg(test)]
mod simulated;

use std::ffi::CStr;
use std::io;
use std::sync::Arc;

use thiserror::Error;

use self::memory::{MappedMemory, MappedRing};
use self::provider::{CompletionQueueLayout, DirectVerbs, WorkQueueLayout};
use self::rings::{CQE_BYTES, DirectRings, EntryShape, QueueMemory, QueueSizes, REQUEST_BYTES};
use crate::{
    CompletionFields, CompletionQueue, Context, Frame, FramePool, Polled, Receive, ReceiveQueue, Result,
    TakeReceives, VerbsError,
};

/// The reason why queues cannot be used directly.
#[derive(Debug, Error)]
pub enum DirectRefusal {
    /// The process uses no mlx5 device.
    #[error("libmlx5 is not loaded: no device of this machine is an mlx5 device")]
    NoLibrary,
    /// The library lacks a function.
    #[error("libmlx5 has no function {}", .0.to_string_lossy())]
    NoFunction(&'static CStr),
    /// Another provider made the queues.
    #[error("the device `{0}` is not of libmlx5")]
    OtherProvider(String),
    /// The queues are of another context than the provider.
    #[error("the queues are of {0}, not of the context that was asked")]
    OtherContext(String),
    /// The receive queue completes elsewhere, has been used, or something else completes there.
    #[error("the receive queue is not new, or not alone with its completion queue")]
    NotAlone,
    /// The completion queue was asked for more than lengths, flow tags and times.
    #[error("completions were asked for {0:?}, not for BYTE_LEN, FLOW_TAG and at most COMPLETION_TIMESTAMP")]
    Fields(CompletionFields),
    /// The library refused to give the addresses.
    #[error("mlx5dv_init_obj: {0}")]
    Layouts(#[source] io::Error),
    /// The queues have a format that is not known here.
    #[error("{what} of {bytes} bytes, not {expected}")]
    Format {
        /// Entries of which queue.
        what: &'static str,
        /// Their size.
        bytes: u32,
        /// The size that is known.
        expected: usize,
    },
    /// An address or a number of entries that no queue has.
    #[error("the layout of the {0} is not valid")]
    Layout(&'static str),
}

/// Receives by reading and writing the rings of an mlx5 device.
pub struct DirectReceive {
    rings: DirectRings<MappedMemory>,
    /// For its pools, regions and gates; nothing is posted by it.
    queue: ReceiveQueue,
    /// For its gate; nothing is polled by it.
    completions: CompletionQueue,
    /// The number of the queue's moves to RDY when its first frame was posted. After another one the device
    /// begins at the start of the ring again, and the rings do not know.
    begun: u32,
}

/// The provider of an mlx5 device, which gives the addresses of its queues.
pub struct DirectProvider {
    functions: DirectVerbs,
    context: Arc<Context>,
}

impl DirectProvider {
    /// The provider of the device of `context`, if it is libmlx5.
    ///
    /// # Errors
    /// The device is another provider's, or the library lacks a function.
    pub fn of(context: &Arc<Context>) -> std::result::Result<Self, DirectRefusal> {
        let functions = DirectVerbs::find()?;
        // SAFETY: open as long as `context`; libibverbs' devices are all parts of a `verbs_device`, and so
        // are those of softnic.
        if !unsafe { functions.is_device_of(context.raw()) } {
            return Err(DirectRefusal::OtherProvider(context.name().to_owned()));
        }
        Ok(Self { functions, context: Arc::clone(context) })
    }
}

impl DirectReceive {
    /// Completions have these fields.
    const NEEDED: CompletionFields = CompletionFields::BYTE_LEN.union(CompletionFields::FLOW_TAG);
    /// Completions can have these fields.
    const KNOWN: CompletionFields = Self::NEEDED.union(CompletionFields::COMPLETION_TIMESTAMP);

    /// Takes over a receive queue and the completion queue into which only its receives complete. Both are
    /// new: nothing was posted. They are made anew after a refusal, because the library may have given up its
    /// part already.
    ///
    /// # Errors
    /// The reason why they cannot be used in this way.
    pub fn new(
        provider: &DirectProvider,
        completions: CompletionQueue,
        queue: ReceiveQueue,
    ) -> std::result::Result<Self, DirectRefusal> {
        let handle = completions.handle();
        let fields = handle.fields;
        if !fields.contains(Self::NEEDED) || !Self::KNOWN.contains(fields) {
            return Err(DirectRefusal::Fields(fields));
        }
        for context in [handle.context(), queue.work_queue().domain().context()] {
            if provider.context.same_as(context).is_err() {
                return Err(DirectRefusal::OtherContext(context.name().to_owned()));
            }
        }
        if !queue.is_unused_with(&handle) || !handle.claim() {
            return Err(DirectRefusal::NotAlone);
        }
        // SAFETY: both are live, and of a device of libmlx5, as that of `provider` is.
        let (of_completions, of_queue) =
            unsafe { provider.functions.layouts(handle.raw_cq(), queue.work_queue().raw()) }?;
        let timestamps = fields.contains(CompletionFields::COMPLETION_TIMESTAMP);
        // SAFETY: `completions` and `queue` keep the memory until they are dropped, after the rings. The
        // library leaves it alone from now on: this owns the only objects that poll or post, and calls none
        // of their functions; nothing else completes here (`claim`). A change of state writes the doorbell
        // record of the receives, with all users paused.
        let rings = unsafe { rings(&of_completions, &of_queue, timestamps) }?;
        Ok(Self { rings, queue, completions, begun: 0 })
    }

    /// The completion queue.
    pub fn completions(&self) -> &CompletionQueue {
        &self.completions
    }
}

/// The rings of two queues.
///
/// # Safety
/// The layouts are those of live queues, whose memory stays as long as the rings, and which nobody else in
/// this process uses.
#[allow(clippy::multiple_unsafe_ops_per_block, reason = "all five rings have one contract")]
unsafe fn rings(
    of_completions: &CompletionQueueLayout,
    of_queue: &WorkQueueLayout,
    timestamps: bool,
) -> std::result::Result<DirectRings<MappedMemory>, DirectRefusal> {
    let format = |what, bytes, expected: usize| {
        let is_known = usize::try_from(bytes).is_ok_and(|bytes| bytes == expected);
        if is_known { Ok(()) } else { Err(DirectRefusal::Format { what, bytes, expected }) }
    };
    format("completions", of_completions.entry_bytes, CQE_BYTES)?;
    format("receive requests", of_queue.entry_bytes, REQUEST_BYTES)?;
    let (completions, requests) = (of_completions.entries, of_queue.entries);
    let invalid = |what| move || DirectRefusal::Layout(what);
    let (queue, receives) = ("completion queue", "receive queue");
    // SAFETY: forwarded contract, for this and the four below; a doorbell record has two words, and the
    // registers are the first of a page.
    let memory = unsafe {
        QueueMemory {
            completions: MappedRing::new(of_completions.buffer, completions).ok_or_else(invalid(queue))?,
            completion_record: MappedRing::new(of_completions.record, 1).ok_or_else(invalid(queue))?,
            doorbell: MappedRing::new(of_completions.doorbells, 1).ok_or_else(invalid(queue))?,
            requests: MappedRing::new(of_queue.buffer, requests).ok_or_else(invalid(receives))?,
            request_record: MappedRing::new(of_queue.record, 1).ok_or_else(invalid(receives))?,
        }
    };
    let sizes = QueueSizes { completions, requests, completion_queue: of_completions.number, timestamps };
    Ok(DirectRings::new(memory, sizes))
}

impl Receive for DirectReceive {
    #[inline]
    fn poll(&mut self, pool: &mut FramePool, limit: usize, taker: &mut impl TakeReceives) -> Polled {
        let polled = self.completions.enter(|| self.rings.poll(pool, limit, taker)).unwrap_or_default();
        if self.rings.is_ended() {
            self.completions.count_poll_error();
        }
        polled
    }

    #[inline]
    fn post(&mut self, pool: &mut FramePool, frames: &mut Vec<Frame>) -> usize {
        let Self { rings, queue, begun, .. } = self;
        queue.post_with(pool, |turn, pool| {
            if rings.is_unused() {
                *begun = turn.times_ready;
            } else if *begun != turn.times_ready {
                turn.chain.refuse(libc::EINVAL);
                return 0;
            }
            let shape = EntryShape { bytes: pool.frame_bytes(), lkey: turn.lkey };
            rings.post(pool, shape, frames)
        })
    }

    fn request_notification(&mut self) -> Result<()> {
        self.completions.enter(|| self.rings.arm()).ok_or_else(|| {
            let device = self.completions.handle().context().name().to_owned();
            VerbsError::RequestNotification { device, source: io::Error::from_raw_os_error(libc::EBUSY) }
        })
    }

    fn stop(&mut self) -> Result<()> {
        self.queue.stop()
    }

    /// The library leaves the completions of the queue where they are
    /// (`MLX5_CQ_FLAGS_DV_OWNED`), so all of them are taken here.
    fn restart(
        &mut self,
        pool: &mut FramePool,
        frames: &mut Vec<Frame>,
        taker: &mut impl TakeReceives,
    ) -> Result<usize> {
        let Self { rings, queue, completions, .. } = self;
        let drain = |pool: &mut FramePool| {
            let most = 2 * rings.completion_entries();
            let polled = completions.enter(|| rings.poll(pool, most, taker)).unwrap_or_default();
            match polled.is_empty {
                // Behind an unreadable completion there may be more.
                true if rings.is_ended() => Err(libc::EIO),
                true => Ok(()),
                false => Err(libc::EBUSY),
            }
        };
        let taken = queue.restart_with(pool, frames, drain)?;
        rings.restart();
        Ok(taken)
    }
}

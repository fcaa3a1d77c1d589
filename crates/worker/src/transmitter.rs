//! Sends frames by a raw packet queue pair with a completion queue of its own: [`Transmitter`].
//!
//! Used on one thread: a worker's, with the worker's frames and domain, or that of a sink, with frames and a
//! domain of its own. Packets are queued, posted together, and their frames come back when their sends have
//! completed. What the device refuses comes back at once, with the reason.
//!
//! Sends before one that the device refuses in the middle of a chain have no completion of their own: their
//! frames come back, and are counted, with the next send that has one.
//!
//! A send that completes with [`CompletionStatus::General`] was no fault of the queue pair: the software
//! NIC's wire has refused that frame, and the next ones are sent. Any other failure ends sending until
//! [`Transmitter::recover`]. A device that means more by that status flushes the sends behind it.
//!
//! Invariant: every frame that was passed to [`Transmitter::queue`] is queued, in flight, or has been given
//! back once.

use std::io;
use std::sync::Arc;

use verbs::{
    CompletedSend, CompletionQueue, CompletionStatus, Context, Domain, Frame, FramePool, Pieces, PortNumber,
    QueuedSend, RawQueuePair, RawQueuePairHandle, RegisteredFrames, VerbsErrno,
};

use crate::sink::SinkDrop;

/// The most sends of one transmitter that can be in flight.
pub const SENDS_MAX: u32 = 1024;
/// The most pieces of one packet ([`Pieces`]).
const PIECES_MAX: u32 = 2;

/// The device refuses to send the frames of a pool, or to replace a queue pair.
#[derive(Debug, thiserror::Error)]
pub enum TransmitterError {
    /// It refuses the memory of the frames or the queue pair.
    #[error(transparent)]
    Verb(#[from] verbs::VerbsError),
    /// The queue pair does not take the pool of frames.
    #[error(transparent)]
    Admission(#[from] io::Error),
}

/// A queue pair for sending by one port.
pub struct Transmitter {
    /// Released before the completion queue that it reports to.
    pair: RawQueuePair,
    completions: CompletionQueue,
    domain: Domain,
    /// The frames that it sends, if their pool is not registered in its domain.
    frames: Option<RegisteredFrames>,
    port: PortNumber,
    /// Packets that are not posted yet. Its capacity is `limit`.
    queued: Vec<QueuedSend>,
    limit: usize,
    failed: bool,
}

impl Transmitter {
    /// A queue pair in `domain` that sends by `port`, with at most `limit` packets queued or in flight (at
    /// least 1, at most [`SENDS_MAX`]).
    ///
    /// # Errors
    /// The device refuses the completion queue or the queue pair, or has no such port.
    pub fn open(
        context: &Arc<Context>,
        domain: &Domain,
        port: PortNumber,
        limit: u32,
    ) -> Result<Self, verbs::VerbsError> {
        let limit = limit.clamp(1, SENDS_MAX);
        let builder = CompletionQueue::builder(context, limit).single_threaded(true);
        let builder = match domain {
            Domain::Parent(parent) => builder.domain(parent),
            Domain::Protection(_) => builder,
        };
        let completions = builder.build()?;
        let pair = queue_pair(domain, &completions, port, limit)?;
        let limit = limit as usize;
        Ok(Self {
            pair,
            completions,
            domain: domain.clone(),
            frames: None,
            port,
            queued: Vec::with_capacity(limit),
            limit,
            failed: false,
        })
    }

    /// Lets it send the frames of a pool that is registered in another domain, also of another device.
    ///
    /// # Errors
    /// The device of this transmitter refuses the memory.
    pub fn with_frames(mut self, frames: &RegisteredFrames) -> Result<Self, TransmitterError> {
        let frames = frames.register(&self.domain)?;
        self.pair.admit(&frames)?;
        self.frames = Some(frames);
        Ok(self)
    }

    /// The number of packets that can be queued now.
    #[must_use]
    #[inline]
    pub fn room(&self) -> usize {
        self.limit - self.held()
    }

    /// The number of frames that are queued or in flight.
    #[must_use]
    #[inline]
    pub fn held(&self) -> usize {
        self.queued.len() + self.pair.in_flight()
    }

    /// Whether packets wait for [`Transmitter::flush`].
    #[must_use]
    #[inline]
    pub fn has_queued(&self) -> bool {
        !self.queued.is_empty()
    }

    /// Whether a send has failed: the queue pair then sends nothing more until [`Transmitter::recover`].
    #[must_use]
    #[inline]
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// The handle by which other threads may end all sends ([`RawQueuePairHandle::to_error`]).
    #[must_use]
    pub fn handle(&self) -> Arc<RawQueuePairHandle> {
        self.pair.handle()
    }

    /// Queues a packet for the next [`Transmitter::flush`].
    ///
    /// # Errors
    /// The frame comes back because there is no room, or because a send has failed.
    #[inline]
    pub fn queue(&mut self, frame: Frame, pieces: Pieces) -> Result<(), (Frame, SinkDrop)> {
        if self.failed {
            return Err((frame, SinkDrop::TxFailed));
        }
        if self.room() == 0 {
            return Err((frame, SinkDrop::TxFull));
        }
        self.push(frame, pieces);
        Ok(())
    }

    /// Queues a packet as [`Transmitter::queue`] does, after a look at [`Transmitter::room`] and
    /// [`Transmitter::has_failed`] for several packets.
    #[inline]
    pub(crate) fn push(&mut self, frame: Frame, pieces: Pieces) {
        debug_assert!(self.room() > 0 && !self.failed, "the caller has looked");
        // Never grows: its capacity is the limit.
        self.queued.push(QueuedSend { frame, pieces });
    }

    /// Posts what is queued, in order. `pool` is that of the frames. Frames that the device does not take go
    /// to `refused`. While another thread makes or destroys a queue in the same thread domain, the packets
    /// stay queued.
    #[inline]
    pub fn flush(&mut self, pool: &mut FramePool, mut refused: impl FnMut(Frame, SinkDrop)) {
        while !self.queued.is_empty() {
            self.pair.send_each(pool, &mut self.queued);
            if !self.queued.is_empty() && !self.refuse(&mut refused) {
                break;
            }
        }
    }

    /// After a refusal: drops what the device does not take. False: all stay queued, because another thread
    /// uses the queue pair.
    #[cold]
    fn refuse(&mut self, refused: &mut impl FnMut(Frame, SinkDrop)) -> bool {
        let (count, reason) = match self.pair.last_refusal().and_then(|error| error.raw_os_error()) {
            Some(errno) if errno == VerbsErrno::EBUSY.0 => return false,
            Some(errno) if errno == VerbsErrno::ENOMEM.0 => (self.queued.len(), SinkDrop::TxFull),
            // The others are tried without it.
            _ => (1, SinkDrop::TxFailed),
        };
        self.queued.drain(..count).for_each(|queued| refused(queued.frame, reason));
        true
    }

    /// Takes back the frames of the sends that have completed. The first failure of the queue pair ends
    /// sending until [`Transmitter::recover`].
    #[inline]
    pub fn reap(&mut self, pool: &mut FramePool, mut back: impl FnMut(CompletedSend)) {
        if self.pair.in_flight() == 0 {
            return;
        }
        let Some(mut open) = self.completions.poll() else { return };
        while let Some(completion) = open.next() {
            let failed =
                !matches!(completion.status(), CompletionStatus::Success | CompletionStatus::General);
            let reclaimed = self.pair.reclaim(pool, completion, &mut back);
            // A completion that names no frame in flight completes nothing.
            self.failed |= failed && reclaimed.is_ok();
            if self.pair.in_flight() == 0 {
                break;
            }
        }
    }

    /// Replaces the queue pair after a failure; to be called when no frame is held. Calls the device's
    /// control path.
    ///
    /// # Errors
    /// The device refuses the new queue pair; the failed one stays.
    pub fn recover(&mut self) -> Result<(), TransmitterError> {
        if self.failed && self.held() == 0 {
            let limit = self.limit as u32;
            let mut pair = queue_pair(&self.domain, &self.completions, self.port, limit)?;
            if let Some(frames) = &self.frames {
                pair.admit(frames)?;
            }
            self.pair = pair;
            self.failed = false;
        }
        Ok(())
    }
}

fn queue_pair(
    domain: &Domain,
    completions: &CompletionQueue,
    port: PortNumber,
    limit: u32,
) -> Result<RawQueuePair, verbs::VerbsError> {
    let handle = completions.handle();
    let builder = RawQueuePair::builder(domain, &handle, &handle).max_sends(limit).max_send_parts(PIECES_MAX);
    builder.build()?.to_rts(port)
}

#[cfg(test)]
mod tests;

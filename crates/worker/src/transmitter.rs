//! Sends frames by a raw packet queue pair with a completion queue of its own: [`Transmitter`].
//!
//! Used on one thread: a worker's, with the worker's frames and domain, or that of a sink, with frames and a domain of
//! its own. Packets are queued, posted together, and their frames come back when their sends have completed. What the
//! device refuses comes back at once, with the reason.
//!
//! Invariant: every frame that was passed to [`Transmitter::queue`] is queued, in flight, or has been given back once.

use std::ops::Range;
use std::sync::Arc;

use verbs::{
    CompletedSend, CompletionQueue, Context, Domain, Errno, Frame, FramePool, PortNumber, RawQueuePair,
    RawQueuePairHandle, RegisteredFrames, SendFlags, SendOperations, Status,
};

use crate::SinkDrop;
use crate::sinks::Failure;

/// The most sends of one transmitter that can be in flight.
pub const SENDS_MAX: u32 = 1024;
/// The most pieces of one packet: a new header and the rest.
const PIECES_MAX: usize = 2;

/// How many sends have one completion; their frames come back together. The last send of a batch has one in any case.
const SENDS_PER_COMPLETION: usize = 32;

/// The bytes of a frame that are sent, in at most two pieces. Lengths are those of frames, which fit 32 bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pieces {
    first: Range<u32>,
    /// Empty for a packet in one piece.
    second: Range<u32>,
}

impl Pieces {
    /// One piece.
    #[must_use]
    #[inline]
    pub fn one(piece: Range<usize>) -> Self {
        Self { first: short(piece), second: 0..0 }
    }

    /// The first bytes.
    #[must_use]
    #[inline]
    pub fn start(bytes: u32) -> Self {
        Self { first: 0..bytes, second: 0..0 }
    }

    /// Two pieces, sent one after the other.
    #[must_use]
    #[inline]
    pub fn two(first: Range<usize>, second: Range<usize>) -> Self {
        Self { first: short(first), second: short(second) }
    }

    /// The length of the packet.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> usize {
        self.first.len() + self.second.len()
    }

    /// The pieces as a list, and how many of them have bytes.
    #[inline]
    pub(crate) fn list(&self) -> ([Range<usize>; PIECES_MAX], usize) {
        let count = if self.second.is_empty() { 1 } else { PIECES_MAX };
        ([long(&self.first), long(&self.second)], count)
    }
}

/// What does not fit becomes a range that no frame has.
#[inline]
fn short(range: Range<usize>) -> Range<u32> {
    let end = |place: usize| u32::try_from(place).unwrap_or(u32::MAX);
    end(range.start)..end(range.end)
}

#[inline]
fn long(range: &Range<u32>) -> Range<usize> {
    range.start as usize..range.end as usize
}

struct Queued {
    frame: Frame,
    pieces: Pieces,
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
    queued: Vec<Queued>,
    limit: usize,
    failed: bool,
}

impl Transmitter {
    /// A queue pair in `domain` that sends by `port`, with at most `limit` packets queued or in flight (at least 1, at
    /// most [`SENDS_MAX`]).
    ///
    /// # Errors
    /// The device refuses the completion queue or the queue pair, or has no such port.
    pub fn open(
        context: &Arc<Context>,
        domain: &Domain,
        port: PortNumber,
        limit: u32,
    ) -> Result<Self, verbs::Error> {
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
    pub fn with_frames(mut self, frames: &RegisteredFrames) -> Result<Self, Failure> {
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

    /// What other threads may use to end all sends ([`RawQueuePairHandle::to_error`]).
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

    /// As [`Transmitter::queue`], after a look at [`Transmitter::room`] and [`Transmitter::has_failed`] for several packets.
    #[inline]
    pub(crate) fn push(&mut self, frame: Frame, pieces: Pieces) {
        debug_assert!(self.room() > 0 && !self.failed, "the caller has looked");
        self.queued.push(Queued { frame, pieces });
    }

    /// Posts what is queued, in order. `pool` is that of the frames. Frames that the device does not take go to
    /// `refused`. While another thread makes or destroys a queue in the same thread domain, the packets stay queued.
    #[inline]
    pub fn flush(&mut self, pool: &mut FramePool, mut refused: impl FnMut(Frame, SinkDrop)) {
        let Some(last) = self.queued.len().checked_sub(1) else { return };
        let Some(mut batch) = self.pair.start_send(pool) else {
            self.flush_without_batch(pool, refused);
            return;
        };
        // The last request has a completion, or there is none.
        let mut last_is_signalled = true;
        for (index, Queued { frame, pieces }) in self.queued.drain(..).enumerate() {
            let is_signalled = index == last || index % SENDS_PER_COMPLETION == SENDS_PER_COMPLETION - 1;
            let flags = if is_signalled { SendFlags::empty() } else { SendFlags::UNSIGNALLED };
            let added = if pieces.second.is_empty() {
                batch.send_piece(flags, frame, long(&pieces.first))
            } else {
                batch.send(flags).gather(frame, &pieces.list().0)
            };
            match added {
                Ok(()) => last_is_signalled = is_signalled,
                Err(frame) => refused(frame, SinkDrop::TxFailed),
            }
        }
        let sends = batch.len();
        let reason = if !last_is_signalled {
            // The last one was refused, so nothing would report those before it.
            batch.abort();
            SinkDrop::TxFailed
        } else if let Err(error) = batch.complete() {
            let full = error.raw_os_error() == Some(Errno::ENOMEM.0);
            if full { SinkDrop::TxFull } else { SinkDrop::TxFailed }
        } else {
            return;
        };
        // The batch has released its frames to the pool; nothing else was released meanwhile.
        let frames = (0..sends).map_while(|_| pool.take());
        frames.for_each(|frame| refused(frame, reason));
    }

    /// For a device without `ibv_wr_start` (mlx4), or when the queue pair is in use by another thread.
    #[cold]
    fn flush_without_batch(&mut self, pool: &mut FramePool, mut refused: impl FnMut(Frame, SinkDrop)) {
        let busy = |pair: &RawQueuePair| errno_of(pair) == Some(Errno::EBUSY.0);
        if busy(&self.pair) {
            return;
        }
        for Queued { frame, pieces } in self.queued.drain(..) {
            let (list, count) = pieces.list();
            if let Err(frame) = self.pair.send_gathered(pool, frame, &list[..count], SendFlags::empty()) {
                let full = errno_of(&self.pair) == Some(Errno::ENOMEM.0) || busy(&self.pair);
                refused(frame, if full { SinkDrop::TxFull } else { SinkDrop::TxFailed });
            }
        }
    }

    /// Takes back the frames of the sends that have completed. The first failure ends sending until
    /// [`Transmitter::recover`].
    #[inline]
    pub fn reap(&mut self, pool: &mut FramePool, mut back: impl FnMut(CompletedSend)) {
        if self.pair.in_flight() == 0 {
            return;
        }
        let Some(mut open) = self.completions.poll() else { return };
        while let Some(completion) = open.next() {
            let failed = completion.status() != Status::Success;
            let reclaimed = self.pair.reclaim(pool, completion, &mut back);
            // A completion that names no frame in flight completes nothing.
            self.failed |= failed && reclaimed.is_ok();
            if self.pair.in_flight() == 0 {
                break;
            }
        }
    }

    /// Replaces the queue pair after a failure; to be called when no frame is held. Calls the device's control path.
    ///
    /// # Errors
    /// The device refuses the new queue pair; the failed one stays.
    pub fn recover(&mut self) -> Result<(), Failure> {
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

fn errno_of(pair: &RawQueuePair) -> Option<i32> {
    pair.last_refusal().and_then(|error| error.raw_os_error())
}

fn queue_pair(
    domain: &Domain,
    completions: &CompletionQueue,
    port: PortNumber,
    limit: u32,
) -> Result<RawQueuePair, verbs::Error> {
    let handle = completions.handle();
    let build = |operations| {
        RawQueuePair::builder(domain, &handle, &handle)
            .max_sends(limit)
            .max_send_parts(PIECES_MAX as u32)
            .send_operations(operations)
            .build()
    };
    let idle = match build(SendOperations::SEND) {
        // mlx4 knows no send operations (rdma-core, providers/mlx4/verbs.c, MLX4_CREATE_QP_SUP_COMP_MASK).
        Err(error) if error.errno() == Some(Errno::EOPNOTSUPP.0) => build(SendOperations::empty()),
        made => made,
    };
    idle?.to_rts(port)
}

#[cfg(test)]
mod tests;

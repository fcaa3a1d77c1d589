//! The receiving side of a worker: its completion queue, its receive queue and its frames. Called
//! by the worker's loop only; takes completions a batch at a time and posts their frames again.
//! Never looks into a packet.

use std::sync::Arc;

use verbs::{
    Completion, CompletionQueue, CompletionStatus, FlowTag, Frame, FramePool, ReceiveQueue, WorkQueue,
};

use crate::batch::Batch;
use crate::counter::Traffic;
use crate::idle::Events;
use crate::stats::{DropReason, Stats};

/// Fields are in the order of their release. The work queue is destroyed with the last indirection table over
/// it, so flows, queue pairs and tables must be released before the worker; otherwise the queue stays, no
/// thread takes its completions, and `verbs` keeps its memory.
pub(crate) struct Receiver {
    pub(crate) queue: ReceiveQueue,
    pub(crate) work_queue: Arc<WorkQueue>,
    pub(crate) completions: CompletionQueue,
    /// Only for the receive queue: the frame that a completion names shows whether it is of a receive,
    /// because the opcode of a failed completion is undefined (ibv_poll_cq(3)).
    pub(crate) pool: FramePool,
    /// Completions per iteration.
    pub(crate) limit: usize,
    /// Number of frames from which they are posted.
    pub(crate) refill_at: usize,
    /// How the device wakes the worker.
    pub(crate) events: Option<Events>,
}

/// Empty iterations after which frames are posted however few they are.
const QUIET_ITERATIONS: u32 = 2;

/// Half a batch, but at most a quarter of the frames, because the device lacks frames that are not posted.
pub(crate) fn refill_at(frames: usize, limit: usize) -> usize {
    (limit / 2).min(frames / 4).max(1)
}

/// The fields of a successful receive, read before its frame is taken back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// Not more than a frame holds.
    pub(crate) bytes: u32,
    pub(crate) tag: Option<FlowTag>,
    pub(crate) timestamp: Option<u64>,
}

impl Receiver {
    /// Takes the waiting completions, at most one batch. A successful one is counted as received, and either
    /// becomes a packet of the batch or is counted as dropped with a reason.
    // By itself it has enough registers for all that the loop uses.
    #[inline(never)]
    pub(crate) fn poll(&mut self, batch: &mut Batch, stats: &Stats) {
        batch.clear();
        // Also `None` while a queue that completes into this one is destroyed, but those are the worker's
        // own.
        let Some(mut open) = self.completions.poll() else {
            batch.found_nothing();
            return;
        };
        batch.empty_iterations = 0;
        let (frame_bytes, pool) = (self.pool.frame_bytes(), &mut self.pool);
        let (mut completions, mut received) = (0, Traffic::default());
        let mut next = open.next();
        loop {
            let Some(completion) = next else {
                batch.drained = true;
                break;
            };
            completions += 1;
            let bytes = if completion.succeeded() { completion.byte_len() } else { None };
            if let Some(bytes) = bytes
                && bytes <= frame_bytes
            {
                let arrival =
                    Arrival { bytes, tag: completion.flow_tag(), timestamp: completion.timestamp() };
                if !accept(arrival, pool.reclaim(completion).ok(), batch, stats) {
                    received += Traffic { packets: 1, bytes: u64::from(bytes) };
                }
            } else if accept_other(completion, pool, batch, stats) {
                received.packets += 1;
            }
            if completions >= self.limit {
                break;
            }
            next = open.next();
        }
        batch.completions = completions;
        received += batch.received();
        stats.received.add(received.packets, received.bytes);
    }

    /// Posts the batch's frames; those that the queue does not take are posted in a later iteration. A failed
    /// queue gets none, because it would flush them at once, again and again.
    ///
    /// A few frames alone are not posted until there are more or the queue was empty twice: each post writes
    /// the ring's index, whose cache line the device (softnic's engine on its core) polls.
    pub(crate) fn refill(&mut self, batch: &mut Batch, stats: &Stats) {
        let enough = batch.frames.len() >= self.refill_at || batch.empty_iterations >= QUIET_ITERATIONS;
        if enough && !batch.frames.is_empty() && !stats.queue_failed() {
            let posted = self.queue.post(&mut self.pool, &mut batch.frames);
            stats.posted.add(posted as u64);
        }
    }
}

/// Adds a packet to the batch, or counts that the completion named no frame; returns whether it is in the
/// batch.
#[inline]
pub(crate) fn accept(arrival: Arrival, frame: Option<Frame>, batch: &mut Batch, stats: &Stats) -> bool {
    let Some(frame) = frame else {
        stats.dropped(DropReason::BadFrame);
        return false;
    };
    batch.receive(frame, arrival.bytes, arrival.tag.map_or(0, |tag| tag.0));
    if let Some(timestamp) = arrival.timestamp {
        batch.timestamps.push(timestamp);
    }
    true
}

/// Takes a completion that failed, or whose length is missing or exceeds the frame. Returns whether a packet
/// is to be counted as received: not for a failed receive, which the port does not count as delivered.
#[cold]
fn accept_other(completion: Completion<'_>, pool: &mut FramePool, batch: &mut Batch, stats: &Stats) -> bool {
    let status = completion.status();
    reject(status, pool.reclaim(completion).ok(), batch, stats)
}

/// Counts why a completion is no packet.
pub(crate) fn reject(
    status: CompletionStatus,
    frame: Option<Frame>,
    batch: &mut Batch,
    stats: &Stats,
) -> bool {
    match (status, &frame) {
        (CompletionStatus::Success, Some(_)) => stats.dropped(DropReason::BadLength),
        (CompletionStatus::Success, None) => stats.dropped(DropReason::BadFrame),
        (status, _) => stats.failed(status),
    }
    batch.frames.extend(frame);
    status == CompletionStatus::Success
}

#[cfg(test)]
pub(crate) mod tests;

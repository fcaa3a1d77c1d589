//! The receiving side of a worker: its completion queue, its receive queue and its frames. Called
//! by the worker's loop only; takes completions a batch at a time and posts their frames again.
//! Never looks into a packet.

use std::sync::Arc;

use verbs::{Completion, CompletionQueue, FlowTag, Frame, FramePool, ReceiveQueue, Status, WorkQueue};

use crate::batch::{Batch, Packet};
use crate::idle::Events;
use crate::stats::{DropReason, Stats};

/// Fields are in the order of their release. The work queue is destroyed with the last indirection table over it, so
/// flows, queue pairs and tables must be released before the worker; otherwise the queue stays, no thread takes its
/// completions, and `verbs` keeps its memory.
pub(crate) struct Receiver {
    pub(crate) queue: ReceiveQueue,
    pub(crate) work_queue: Arc<WorkQueue>,
    pub(crate) completions: CompletionQueue,
    /// Only for the receive queue: the frame that a completion names shows whether it is of a receive, because the
    /// opcode of a failed completion is undefined (ibv_poll_cq(3)).
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

/// The fields of a receive's completion, read before its frame is taken back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completed {
    pub(crate) status: Status,
    /// This and the following are `None` unless the status is success.
    pub(crate) bytes: Option<u32>,
    pub(crate) tag: Option<FlowTag>,
    pub(crate) timestamp: Option<u64>,
}

impl Completed {
    #[inline]
    fn read(completion: &Completion<'_>) -> Self {
        let status = completion.status();
        if status != Status::Success {
            return Self { status, bytes: None, tag: None, timestamp: None };
        }
        Self {
            status,
            bytes: completion.byte_len(),
            tag: completion.flow_tag(),
            timestamp: completion.timestamp(),
        }
    }
}

impl Receiver {
    /// Takes the waiting completions, at most one batch. A successful one is counted as received, and either becomes a
    /// packet of the batch or is counted as dropped with a reason.
    pub(crate) fn poll(&mut self, batch: &mut Batch, stats: &Stats) {
        batch.clear();
        // Also `None` while a queue that completes into this one is destroyed, but those are the worker's own.
        let Some(mut open) = self.completions.poll() else {
            batch.found_nothing();
            return;
        };
        batch.empty_iterations = 0;
        let (mut packets, mut bytes) = (0, 0);
        while batch.completions < self.limit {
            let Some(completion) = open.next() else {
                batch.drained = true;
                break;
            };
            batch.completions += 1;
            let completed = Completed::read(&completion);
            let frame = self.pool.reclaim(completion).ok();
            if let Some(received) = accept_completion(completed, frame, self.pool.frame_bytes(), batch, stats)
            {
                packets += 1;
                bytes += u64::from(received);
            }
        }
        stats.received.add(packets, bytes);
    }

    /// Posts the batch's frames; those that the queue does not take are posted in a later iteration. A failed queue
    /// gets none, because it would flush them at once, again and again.
    ///
    /// A few frames alone are not posted until there are more or the queue was empty twice: each post writes the ring's
    /// index, whose cache line the device (softnic's engine on its core) polls.
    pub(crate) fn refill(&mut self, batch: &mut Batch, stats: &Stats) {
        let enough = batch.frames.len() >= self.refill_at || batch.empty_iterations >= QUIET_ITERATIONS;
        if enough && !batch.frames.is_empty() && !stats.queue_failed() {
            let posted = self.queue.post(&mut self.pool, &mut batch.frames);
            stats.posted.add(posted as u64);
        }
    }
}

/// Adds a completion to the batch or counts why not. Returns the bytes to be counted as received, `None` for a failed
/// receive, which the port does not count as delivered.
#[inline]
pub(crate) fn accept_completion(
    completed: Completed,
    frame: Option<Frame>,
    frame_bytes: u32,
    batch: &mut Batch,
    stats: &Stats,
) -> Option<u32> {
    let Completed { status, bytes, tag, timestamp } = completed;
    if status != Status::Success {
        batch.frames.extend(frame);
        stats.failed(status);
        return None;
    }
    let counted = bytes.filter(|&bytes| bytes <= frame_bytes);
    match (counted, frame) {
        (_, None) => stats.dropped(DropReason::BadFrame),
        (None, Some(frame)) => {
            batch.frames.push(frame);
            stats.dropped(DropReason::BadLength);
        }
        (Some(bytes), frame @ Some(_)) => {
            let undecided = Packet { frame, bytes, tag, timestamp, outcome: None, sinks: 0, generation: 0 };
            batch.packets.push(undecided);
        }
    }
    Some(counted.unwrap_or_default())
}

#[cfg(test)]
pub(crate) mod tests;

//! The receiving side of a worker: its completion queue, its receive queue and its frames. Called
//! by the worker's loop only; takes completions a batch at a time and posts their frames again.
//! Never looks into a packet.

use std::sync::Arc;

use verbs::{Completion, CompletionQueue, FlowTag, Frame, FramePool, ReceiveQueue, Status, WorkQueue};

use crate::batch::{Batch, Packet};
use crate::stats::{DropReason, Stats};

/// Fields in the order they are released. The work queue itself is destroyed with the last indirection
/// table over it, so whoever made tables lets go of flows, queue pairs and tables before the worker
/// goes; if not, the queue stays, with nobody to take what it is given, and verbs keeps its memory.
pub(crate) struct Receiver {
    pub(crate) queue: ReceiveQueue,
    pub(crate) work_queue: Arc<WorkQueue>,
    pub(crate) completions: CompletionQueue,
    /// The receive queue's alone: what a completion was for is told by whose frame it names, because
    /// in one that reports an error the opcode means nothing (ibv_create_cq_ex(3)).
    pub(crate) pool: FramePool,
    /// Completions per turn.
    pub(crate) limit: usize,
    /// Frames in hand that are worth a post.
    pub(crate) refill_at: usize,
}

/// Empty turns after which no more frames are waited for.
const QUIET_TURNS: u32 = 2;

/// Half a batch; but never more than a quarter of the frames, which the device would lack.
pub(crate) fn refill_at(frames: usize, limit: usize) -> usize {
    (limit / 2).min(frames / 4).max(1)
}

/// What a completion says of a receive, read before its frame is taken back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completed {
    pub(crate) status: Status,
    /// This and what follows only where the status is success.
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
    /// Takes the completions that are waiting, at most one batch. A success is counted as received
    /// here, and either becomes a packet of the batch or is counted with its reason.
    pub(crate) fn poll(&mut self, batch: &mut Batch, stats: &Stats) {
        batch.clear();
        // Also `None` while a queue that completes into this one is destroyed, but those are the worker's own.
        let Some(mut open) = self.completions.poll() else {
            batch.found_nothing();
            return;
        };
        batch.empty_turns = 0;
        let (mut packets, mut bytes) = (0, 0);
        while batch.completions < self.limit {
            let Some(completion) = open.next() else {
                batch.drained = true;
                break;
            };
            batch.completions += 1;
            let completed = Completed::read(&completion);
            let frame = self.pool.reclaim(completion).ok();
            if let Some(received) = sort(completed, frame, self.pool.frame_bytes(), batch, stats) {
                packets += 1;
                bytes += u64::from(received);
            }
        }
        stats.received.add(packets, bytes);
    }

    /// Posts the batch's frames; what the queue does not take waits for the next turn. A failed queue
    /// gets none: it would flush them at once, and so on without end.
    ///
    /// A few frames wait for more, or for the queue to have been empty twice: every post moves the
    /// ring's index, whose cache line the device (softnic's engine on its core) reads all the time.
    pub(crate) fn refill(&mut self, batch: &mut Batch, stats: &Stats) {
        let enough = batch.frames.len() >= self.refill_at || batch.empty_turns >= QUIET_TURNS;
        if enough && !batch.frames.is_empty() && !stats.queue_failed() {
            let posted = self.queue.post(&mut self.pool, &mut batch.frames);
            stats.posted.add(posted as u64);
        }
    }
}

/// Puts one completion where it belongs. Answers the bytes to be counted as received: only what the
/// device calls a success did its port call delivered.
#[inline]
pub(crate) fn sort(
    completed: Completed,
    frame: Option<Frame>,
    frame_bytes: u32,
    batch: &mut Batch,
    stats: &Stats,
) -> Option<u32> {
    let Completed { status, bytes, tag, timestamp } = completed;
    let owned = frame.is_some();
    batch.frames.extend(frame);
    if status != Status::Success {
        stats.failed(status);
        return None;
    }
    let counted = bytes.filter(|&bytes| bytes <= frame_bytes);
    match counted {
        _ if !owned => stats.dropped(DropReason::BadFrame),
        None => stats.dropped(DropReason::BadLength),
        Some(bytes) => {
            let frame = batch.frames.len() - 1;
            batch.packets.push(Packet { frame, bytes, tag, timestamp, outcome: None });
        }
    }
    Some(counted.unwrap_or_default())
}

#[cfg(test)]
pub(crate) mod tests;

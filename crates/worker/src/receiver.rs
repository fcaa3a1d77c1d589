//! The receiving side of a worker: its completion queue, its receive queue and its frames. Called
//! by the worker's loop only; takes completions a batch at a time and posts their frames again.
//! Never looks into a packet.

use std::sync::Arc;

use verbs::{CompletionQueue, FramePool, Opcode, ReceiveQueue, WorkQueue};

use crate::batch::{Batch, Packet};
use crate::stats::{DropReason, Stats};

/// Fields in the order they are released: queues before the memory that they write to.
pub(crate) struct Receiver {
    pub(crate) queue: ReceiveQueue,
    pub(crate) work_queue: Arc<WorkQueue>,
    pub(crate) completions: CompletionQueue,
    pub(crate) pool: FramePool,
    /// Completions per turn.
    pub(crate) limit: usize,
}

impl Receiver {
    /// Takes the completions that are waiting, at most one batch. Each receive is counted as
    /// received here, and either becomes a packet of the batch or is counted with its reason.
    pub(crate) fn poll(&mut self, batch: &mut Batch, stats: &Stats) {
        batch.clear();
        // Also `None` while a queue that completes into this one is destroyed, but those are the worker's own.
        let Some(mut open) = self.completions.poll() else {
            batch.drained = true;
            return;
        };
        let (mut packets, mut bytes) = (0, 0);
        while batch.completions < self.limit {
            let Some(completion) = open.next() else {
                batch.drained = true;
                break;
            };
            batch.completions += 1;
            // Only wr_id and status are valid in an error completion (ibv_create_cq_ex(3)).
            let success = completion.is_success();
            if success && completion.opcode() == Opcode::Send {
                stats.sends_completed.add(1);
                batch.frames.extend(self.pool.reclaim(completion));
                continue;
            }
            packets += 1;
            let (length, tag, timestamp) = if success {
                (completion.byte_len(), completion.flow_tag(), completion.timestamp())
            } else {
                (None, None, None)
            };
            let Ok(frame) = self.pool.reclaim(completion) else {
                stats.dropped(DropReason::BadFrame);
                continue;
            };
            batch.frames.push(frame);
            if !success {
                stats.dropped(DropReason::ErrorCompletion);
                continue;
            }
            let Some(length) = length.filter(|&length| length <= self.pool.frame_bytes()) else {
                stats.dropped(DropReason::BadLength);
                continue;
            };
            bytes += u64::from(length);
            batch.packets.push(Packet {
                frame: batch.frames.len() - 1,
                bytes: length,
                tag,
                timestamp,
                outcome: None,
            });
        }
        stats.received.add(packets, bytes);
    }

    /// Posts the batch's frames; what the queue does not take waits for the next turn.
    pub(crate) fn refill(&mut self, batch: &mut Batch, stats: &Stats) {
        if !batch.frames.is_empty() {
            let posted = self.queue.post(&mut self.pool, &mut batch.frames);
            stats.posted.add(posted as u64);
        }
    }
}

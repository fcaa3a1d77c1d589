//! The receiving side of a worker: its completion queue, its receive queue and its frames. Called
//! by the worker's loop only; takes completions a batch at a time and posts their frames again.
//! Never looks into a packet.

use std::sync::Arc;

use verbs::{
    Arrival, CompletionStatus, Frame, FramePool, Polled, Receive, ReceivePath, TakeReceives, WorkQueue,
};

use crate::batch::Batch;
use crate::counter::Traffic;
use crate::idle::Events;
use crate::stats::{DropReason, Stats};

/// Fields are in the order of their release. The work queue is destroyed with the last indirection table over
/// it, so flows, queue pairs and tables must be released before the worker; otherwise the queue stays, no
/// thread takes its completions, and `verbs` keeps its memory.
pub(crate) struct Receiver {
    pub(crate) path: ReceivePath,
    pub(crate) work_queue: Arc<WorkQueue>,
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

impl Receiver {
    /// Takes the waiting completions, at most one batch. A successful one is counted as received, and either
    /// becomes a packet of the batch or is counted as dropped with a reason.
    pub(crate) fn poll(&mut self, batch: &mut Batch, stats: &Stats) {
        batch.clear();
        let mut taker = BatchTaker { batch, stats, not_in_batch: Traffic::default() };
        let Polled { completions, is_empty } = self.path.poll(&mut self.pool, self.limit, &mut taker);
        let mut received = taker.not_in_batch;
        if completions == 0 {
            batch.found_nothing();
            batch.drained = is_empty;
            return;
        }
        batch.empty_iterations = 0;
        (batch.completions, batch.drained) = (completions, is_empty);
        received += batch.received();
        stats.received.add(received.packets, received.bytes);
    }

    /// Makes the queue ready anew and posts its frames; called after a poll has found the completion queue
    /// empty.
    ///
    /// # Errors
    /// The device refuses, or somebody else uses the queue's domain.
    #[cold]
    pub(crate) fn restart(&mut self, batch: &mut Batch, stats: &Stats) -> Result<(), verbs::VerbsError> {
        let mut late = LateTaker { stats, received: Traffic::default(), frames: Vec::new() };
        let restarted = self.path.restart(&mut self.pool, &mut batch.frames, &mut late);
        stats.received.add(late.received.packets, late.received.bytes);
        batch.frames.append(&mut late.frames);
        restarted?;
        let posted = self.path.post(&mut self.pool, &mut batch.frames);
        stats.posted.add(posted as u64);
        Ok(())
    }

    /// Posts the batch's frames; those that the queue does not take are posted in a later iteration. A failed
    /// queue gets none before it is recovered, because it would flush them at once, again and again.
    ///
    /// A few frames alone are not posted until there are more or the queue was empty twice: each post writes
    /// the ring's index, whose cache line the device (softnic's engine on its core) polls.
    pub(crate) fn refill(&mut self, batch: &mut Batch, stats: &Stats) {
        let enough = batch.frames.len() >= self.refill_at || batch.empty_iterations >= QUIET_ITERATIONS;
        if enough && !batch.frames.is_empty() && !stats.queue_failed() {
            let posted = self.path.post(&mut self.pool, &mut batch.frames);
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

/// Puts the completions of a poll into a batch.
struct BatchTaker<'p> {
    batch: &'p mut Batch,
    stats: &'p Stats,
    /// Received packets that are not in the batch. A failed receive is none: the port does not count it as
    /// delivered.
    not_in_batch: Traffic,
}

impl TakeReceives for BatchTaker<'_> {
    #[inline]
    fn packet(&mut self, arrival: Arrival, frame: Option<Frame>) {
        if !accept(arrival, frame, self.batch, self.stats) {
            self.not_in_batch += Traffic { packets: 1, bytes: u64::from(arrival.bytes) };
        }
    }

    #[cold]
    fn rejected(&mut self, status: CompletionStatus, frame: Option<Frame>) {
        if reject(status, frame, self.batch, self.stats) {
            self.not_in_batch.packets += 1;
        }
    }
}

/// Counts completions of a queue that is restarted. There are none, as the queue was stopped before the last
/// poll found it empty. The packet of one that came all the same can be in no batch any more.
struct LateTaker<'s> {
    stats: &'s Stats,
    received: Traffic,
    frames: Vec<Frame>,
}

impl TakeReceives for LateTaker<'_> {
    fn packet(&mut self, arrival: Arrival, frame: Option<Frame>) {
        self.received += Traffic { packets: 1, bytes: u64::from(arrival.bytes) };
        self.stats.dropped(DropReason::BadFrame);
        self.frames.extend(frame);
    }

    fn rejected(&mut self, status: CompletionStatus, frame: Option<Frame>) {
        if status == CompletionStatus::Success {
            self.received += Traffic { packets: 1, bytes: 0 };
            self.stats.dropped(DropReason::BadFrame);
        } else {
            self.stats.count_failure(status);
        }
        self.frames.extend(frame);
    }
}

/// Counts why a completion is no packet. Returns whether one is to be counted as received.
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

//! What most cases send and receive with: a raw queue pair in RTS, a work queue in RDY, and pools of frames.

use std::sync::Arc;

use verbs::{
    CompletionFields, CompletionQueue, CompletionStatus, Domain, FlowAttr, FlowHandle, FlowTarget, Frame,
    FramePool, HashConfig, HashFields, IndirectionTable, Opcode, RawQueuePair, RawQueuePairBuilder,
    ReceiveQueue, RssQueuePair, SendFlags, SendOperations, WorkCompletion, WorkQueue, WorkQueueFlags,
};

use crate::bench::unprepared;
use crate::{Bench, Failure};

/// Frames of a sender.
pub(crate) const SEND_FRAMES: usize = 32;
/// Polls until a completion counts as missing, on a device that runs on its own.
const PATIENCE_POLLS: usize = 1_000;

/// A sender.
pub(crate) struct Sender {
    pub(crate) pair: RawQueuePair,
    pub(crate) cq: CompletionQueue,
    pub(crate) pool: FramePool,
}

impl Sender {
    /// Only a failure of the settings in `set` is the outcome of a case; other failures are those of a step
    /// before.
    pub(crate) fn new(
        bench: &Bench<'_>,
        set: impl FnOnce(RawQueuePairBuilder) -> RawQueuePairBuilder,
    ) -> Result<Self, Failure> {
        let fields = CompletionFields::BYTE_LEN | CompletionFields::QP_NUM;
        let cq = CompletionQueue::builder(&bench.context, 128).fields(fields).build().map_err(unprepared)?;
        let builder = RawQueuePair::builder(&bench.domain(), &cq.handle(), &cq.handle()).max_sends(16);
        let pair = set(builder).build()?.to_rts(bench.port).map_err(unprepared)?;
        Ok(Self { pair, cq, pool: bench.pool(&bench.domain(), SEND_FRAMES)? })
    }

    /// A sender with batches and inline data.
    pub(crate) fn batched(bench: &Bench<'_>) -> Result<Self, Failure> {
        let set = |pair: RawQueuePairBuilder| {
            pair.send_operations(SendOperations::SEND).max_inline_bytes(128).max_send_parts(4)
        };
        Self::new(bench, set)
    }

    /// A frame with these bytes.
    pub(crate) fn frame(&mut self, bytes: &[u8]) -> Result<Frame, Failure> {
        let Some(mut frame) = self.pool.take() else {
            return Err(Failure::Differs("no frame came back".into()));
        };
        match self.pool.bytes_mut(&mut frame).get_mut(..bytes.len()) {
            Some(place) => place.copy_from_slice(bytes),
            None => return Err(Failure::Differs("longer than a frame of the pool".into())),
        }
        Ok(frame)
    }

    /// Sends these bytes.
    pub(crate) fn send(&mut self, bytes: &[u8], flags: SendFlags) -> Result<(), Failure> {
        let frame = self.frame(bytes)?;
        match self.pair.send(&mut self.pool, frame, bytes.len(), flags) {
            Ok(()) => Ok(()),
            Err(frame) => {
                self.pool.release(frame);
                Err(self.refusal())
            }
        }
    }

    /// The refusal of the last send.
    pub(crate) fn refusal(&self) -> Failure {
        let errno = self.pair.last_refusal().and_then(|error| error.raw_os_error());
        Failure::Refused(errno.unwrap_or(libc::EIO))
    }

    /// `count` completions, waited for; the frames are back in the pool.
    pub(crate) fn completions(
        &mut self,
        bench: &Bench<'_>,
        count: usize,
    ) -> Result<Vec<(CompletionStatus, Opcode, Option<u32>)>, Failure> {
        let mut list: Vec<WorkCompletion> = Vec::new();
        for _ in 0..PATIENCE_POLLS {
            bench.deliver([]);
            self.cq.poll_classic(&mut list, SEND_FRAMES);
            if list.len() >= count {
                break;
            }
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
        let mut seen = Vec::new();
        for completion in list {
            seen.push((completion.status(), completion.opcode(), completion.token()));
            if let Ok(frame) = self.pool.reclaim_classic(completion) {
                self.pool.release(frame);
            }
        }
        ensure!(seen.len() == count, "{} completions instead of {count}", seen.len());
        Ok(seen)
    }
}

impl Sender {
    /// The lengths and statuses of the sends that each completion reports, after the first one was waited
    /// for; the frames are back in the pool.
    pub(crate) fn reports(
        &mut self,
        bench: &Bench<'_>,
    ) -> Result<Vec<Vec<(usize, CompletionStatus)>>, Failure> {
        let mut reports = Vec::new();
        for _ in 0..PATIENCE_POLLS {
            bench.deliver([]);
            while let Some(mut batch) = self.cq.poll() {
                while let Some(completion) = batch.next() {
                    let (mut report, mut frames) = (Vec::new(), Vec::new());
                    let each = |send: verbs::CompletedSend| {
                        report.push((send.bytes as usize, send.status));
                        frames.push(send.frame);
                    };
                    if self.pair.reclaim(&mut self.pool, completion, each).is_err() {
                        return Err(Failure::Differs("a completion names no sent frame".into()));
                    }
                    frames.into_iter().for_each(|frame| self.pool.release(frame));
                    reports.push(report);
                }
            }
            if !reports.is_empty() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
        Ok(reports)
    }
}

/// Frames of a receiver.
pub(crate) const FRAMES: u32 = 32;
/// The key of the published test vectors.
pub(crate) const KEY: [u8; 40] = packet::RssKey::MICROSOFT.0;

/// A received packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) bytes: Vec<u8>,
    /// `None` if the completion queue does not report it.
    pub(crate) tag: Option<u32>,
    pub(crate) cvlan: Option<u16>,
    pub(crate) timestamp: Option<u64>,
    pub(crate) wallclock_ns: Option<u64>,
    pub(crate) qp_num: Option<u32>,
    pub(crate) checksum_ok: Option<bool>,
}

/// A receiver.
pub(crate) struct Receiver {
    pub(crate) cq: CompletionQueue,
    pub(crate) queue: Arc<WorkQueue>,
    pub(crate) receives: ReceiveQueue,
    pub(crate) pool: FramePool,
    pub(crate) spare: Vec<Frame>,
}

impl Receiver {
    /// With flow tags, where the device has them.
    pub(crate) fn new(bench: &Bench<'_>) -> Result<Self, Failure> {
        let cq = |fields| CompletionQueue::builder(&bench.context, 4 * FRAMES).fields(fields).build();
        let most = CompletionFields::BYTE_LEN | CompletionFields::FLOW_TAG;
        let cq = cq(most).or_else(|_| cq(CompletionFields::BYTE_LEN)).map_err(unprepared)?;
        Self::with(bench, &bench.domain(), cq, WorkQueueFlags::empty())
    }

    /// With these fields in completions.
    pub(crate) fn with_fields(bench: &Bench<'_>, fields: CompletionFields) -> Result<Self, Failure> {
        let fields = fields | CompletionFields::BYTE_LEN;
        let cq = CompletionQueue::builder(&bench.context, 4 * FRAMES).fields(fields).build()?;
        Self::with(bench, &bench.domain(), cq, WorkQueueFlags::empty())
    }

    /// With a completion queue of the caller's. The work queue's flags are tried if there are any; the rest
    /// is preparation.
    pub(crate) fn with(
        bench: &Bench<'_>,
        domain: &Domain,
        cq: CompletionQueue,
        flags: WorkQueueFlags,
    ) -> Result<Self, Failure> {
        let queue = WorkQueue::builder(domain, &cq.handle()).max_receives(FRAMES).flags(flags).build();
        let (queue, receives) = if flags.is_empty() { queue.map_err(unprepared)? } else { queue? };
        queue.ready().map_err(unprepared)?;
        let pool = bench.pool(domain, FRAMES as usize)?;
        let mut receiver = Self { cq, queue, receives, pool, spare: Vec::new() };
        receiver.fill();
        Ok(receiver)
    }

    /// Posts every frame that is free.
    pub(crate) fn fill(&mut self) {
        while let Some(frame) = self.pool.take() {
            self.spare.push(frame);
        }
        self.receives.post(&mut self.pool, &mut self.spare);
    }

    /// Everything received since the last call; the frames are posted again.
    pub(crate) fn drain(&mut self) -> Result<Vec<Packet>, Failure> {
        let mut packets = Vec::new();
        while let Some(mut batch) = self.cq.poll() {
            while let Some(completion) = batch.next() {
                let (status, opcode) = (completion.status(), completion.opcode());
                ensure!(status == CompletionStatus::Success, "a completion with status {status}");
                ensure!(opcode == Opcode::Receive, "a completion is of {opcode:?}");
                let length = completion.byte_len().map_or(0, |bytes| bytes as usize);
                let mut packet = Packet {
                    bytes: Vec::new(),
                    tag: completion.flow_tag().map(|tag| tag.0),
                    cvlan: completion.cvlan(),
                    timestamp: completion.timestamp(),
                    wallclock_ns: completion.wallclock_ns(),
                    qp_num: completion.qp_num().map(|number| number.0),
                    checksum_ok: completion.checksum_ok(),
                };
                let Ok(frame) = self.pool.reclaim(completion) else {
                    return Err(Failure::Differs("a completion names no posted frame".into()));
                };
                packet.bytes = self.pool.bytes(&frame).get(..length).unwrap_or_default().to_vec();
                packets.push(packet);
                self.pool.release(frame);
            }
        }
        self.fill();
        Ok(packets)
    }

    /// The bytes of what was received.
    pub(crate) fn frames(&mut self) -> Result<Vec<Vec<u8>>, Failure> {
        Ok(self.drain()?.into_iter().map(|packet| packet.bytes).collect())
    }

    /// A queue pair that gives everything to this receiver.
    pub(crate) fn target(&self) -> Result<FlowTarget, Failure> {
        let domain = self.queue.domain();
        let table =
            IndirectionTable::new(domain.context(), &[Arc::clone(&self.queue)]).map_err(unprepared)?;
        let hash = HashConfig { key: KEY, fields: HashFields::empty() };
        Ok(FlowTarget::Rss(RssQueuePair::new(domain, &table, &hash).map_err(unprepared)?))
    }

    /// A flow to this receiver.
    pub(crate) fn flow(&self, attr: &FlowAttr) -> Result<FlowHandle, Failure> {
        Ok(FlowHandle::create(&self.target()?, attr)?)
    }
}

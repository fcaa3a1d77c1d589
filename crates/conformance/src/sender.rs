//! A raw queue pair in RTS, what it completes into and a pool: what cases send with.

use verbs::{
    CompletionFields, CompletionQueue, Frame, FramePool, Opcode, RawQueuePair, RawQueuePairBuilder,
    SendFlags, SendOperations, Status, WorkCompletion,
};

use crate::bench::unprepared;
use crate::{Bench, Failure};

/// Frames of a sender.
pub(crate) const FRAMES: usize = 32;
/// How long a completion may take on a device that works on its own.
const PATIENCE_POLLS: usize = 1_000;

/// What sends.
pub(crate) struct Sender {
    pub(crate) pair: RawQueuePair,
    pub(crate) cq: CompletionQueue,
    pub(crate) pool: FramePool,
}

impl Sender {
    /// What `set` asks for is tried, the rest is preparation.
    pub(crate) fn new(
        bench: &Bench<'_>,
        set: impl FnOnce(RawQueuePairBuilder) -> RawQueuePairBuilder,
    ) -> Result<Self, Failure> {
        let fields = CompletionFields::BYTE_LEN | CompletionFields::QP_NUM;
        let cq = CompletionQueue::builder(&bench.context, 128).fields(fields).build().map_err(unprepared)?;
        let builder = RawQueuePair::builder(&bench.domain(), &cq.handle(), &cq.handle()).max_sends(16);
        let pair = set(builder).build()?.to_rts(bench.port).map_err(unprepared)?;
        Ok(Self { pair, cq, pool: bench.pool(&bench.domain(), FRAMES)? })
    }

    /// One whose batches send, and take data along.
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

    /// Why the last send was refused.
    pub(crate) fn refusal(&self) -> Failure {
        let errno = self.pair.last_refusal().and_then(|error| error.raw_os_error());
        Failure::Refused(errno.unwrap_or(libc::EIO))
    }

    /// `count` completions, waited for; the frames are back in the pool.
    pub(crate) fn completions(
        &mut self,
        bench: &Bench<'_>,
        count: usize,
    ) -> Result<Vec<(Status, Opcode, Option<u32>)>, Failure> {
        let mut list: Vec<WorkCompletion> = Vec::new();
        for _ in 0..PATIENCE_POLLS {
            bench.deliver([]);
            self.cq.poll_classic(&mut list, FRAMES);
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

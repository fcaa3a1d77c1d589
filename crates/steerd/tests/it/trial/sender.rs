//! A raw packet queue pair that sends single frames, as a program on the host would. Used by the rig.

use control::Device;
use verbs::{
    Access, CompletionQueue, CompletionStatus, Domain, FramePool, MemoryRegion, PortNumber, ProtectionDomain,
    RawQueuePair, SendFlags,
};

/// At most one frame is posted at a time.
const FRAMES: u32 = 2;
const FRAME_BYTES: u32 = 16_384;

/// The fields are declared in the order in which they must be dropped.
pub(crate) struct Sender {
    pair: RawQueuePair,
    completions: CompletionQueue,
    frames: FramePool,
}

impl Sender {
    /// On the first port of the device.
    pub(crate) fn new(device: &Device) -> Self {
        let context = device.context();
        let domain = Domain::from(&ProtectionDomain::new(context).expect("a protection domain"));
        let completions = CompletionQueue::builder(context, FRAMES).build().expect("a completion queue");
        let handle = completions.handle();
        let pair = RawQueuePair::builder(&domain, &handle, &handle).max_sends(FRAMES).build();
        let pair = pair.expect("a raw queue pair").to_rts(PortNumber(1)).expect("it can send");
        let memory = vec![0u8; (FRAMES * FRAME_BYTES) as usize];
        let memory = MemoryRegion::register(&domain, memory, Access::LOCAL_WRITE).expect("registered");
        Self { pair, completions, frames: FramePool::new(memory, FRAME_BYTES).expect("a pool") }
    }

    /// Posts one frame; the device sends it when it runs.
    pub(crate) fn post(&mut self, bytes: &[u8]) {
        let mut frame = self.frames.take().expect("free");
        self.frames.bytes_mut(&mut frame)[..bytes.len()].copy_from_slice(bytes);
        let posted = self.pair.send(&mut self.frames, frame, bytes.len(), SendFlags::empty());
        assert!(posted.is_ok(), "the queue has room");
    }

    /// Polls the completion of the posted frame.
    pub(crate) fn complete(&mut self) {
        let mut completed = 0;
        while let Some(mut batch) = self.completions.poll() {
            while let Some(completion) = batch.next() {
                assert_eq!(completion.status(), CompletionStatus::Success, "the device did its part");
                let frame = self.frames.reclaim(completion).expect("what was sent");
                self.frames.release(frame);
                completed += 1;
            }
        }
        assert_eq!(completed, 1, "one frame was posted");
    }
}

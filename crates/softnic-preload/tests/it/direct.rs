//! Receiving from the rings themselves, beside libmlx5 on the same model of a ConnectX.
//!
//! Each test runs itself again as a client, see [`support`](crate::support).
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use verbs::{
    Access, Allocation, AllocationRequest, Arrival, CompletionChannel, CompletionFields, CompletionQueue,
    CompletionStatus, DirectProvider, DirectReceive, DirectRefusal, Domain, DomainAllocator, FlowAttr,
    FlowHandle, FlowKind, Frame, FramePool, HashFields, MemoryRegion, ParentDomain, ProtectionDomain,
    Receive, ReceivePath, TakeReceives, VerbsReceive, WorkQueue,
};

use crate::mlx5::{FRAME_BYTES, PATIENCE, PORT, Rig, WIRE, dst_port, target, udp_flow};
use crate::support::{is_client, is_client_with};

/// Completions of a queue, as libmlx5 rounds them, and frames for it.
const ENTRIES: u32 = 127;
const FRAMES: u32 = 128;

/// The completions of a poll.
#[derive(Default)]
struct TakenReceives {
    outcomes: Vec<Result<Arrival, CompletionStatus>>,
    frames: Vec<Option<Frame>>,
}

impl TakeReceives for TakenReceives {
    fn packet(&mut self, arrival: Arrival, frame: Option<Frame>) {
        self.outcomes.push(Ok(arrival));
        self.frames.push(frame);
    }

    fn rejected(&mut self, status: CompletionStatus, frame: Option<Frame>) {
        self.outcomes.push(Err(status));
        self.frames.push(frame);
    }
}

/// Gives zeroed pages and remembers those of completion queues.
#[derive(Clone, Default)]
struct KnownMemory(Arc<Mutex<Vec<usize>>>);

impl DomainAllocator for KnownMemory {
    fn allocate(&self, request: &AllocationRequest) -> Allocation {
        /// `MLX5DV_RES_TYPE_CQ`, mlx5dv.h.
        const COMPLETION_QUEUE: u32 = 5;
        if request.vendor_code() != COMPLETION_QUEUE {
            return Allocation::UseDefault;
        }
        // The process is a client that ends with its test.
        let memory = vec![0_u8; request.bytes + request.align].leak();
        let skipped = memory.as_ptr().align_offset(request.align);
        let memory = &mut memory[skipped..][..request.bytes];
        self.0.lock().unwrap().push(memory.as_mut_ptr().expose_provenance());
        Allocation::Memory(Box::new(memory))
    }
}

/// A receive path, and frames that are posted to it.
struct ReceivingEnd {
    path: ReceivePath,
    queue: Arc<WorkQueue>,
    pool: FramePool,
    /// Frames to post.
    held: Vec<Frame>,
    taken: TakenReceives,
    posted: u32,
    completed: u32,
}

impl ReceivingEnd {
    fn new(
        domain: &Domain,
        completions: CompletionQueue,
        provider: Option<&DirectProvider>,
    ) -> Result<Self, DirectRefusal> {
        let builder = WorkQueue::builder(domain, &completions.handle()).max_receives(FRAMES);
        let (queue, receives) = builder.build().unwrap();
        let path = match provider {
            None => ReceivePath::Verbs(VerbsReceive::new(completions, receives)),
            Some(provider) => {
                ReceivePath::Direct(Box::new(DirectReceive::new(provider, completions, receives)?))
            }
        };
        queue.ready().unwrap();
        let memory = vec![0_u8; (FRAMES * FRAME_BYTES) as usize];
        let region = MemoryRegion::register(domain, memory, Access::LOCAL_WRITE).unwrap();
        let mut pool = FramePool::new(region, FRAME_BYTES).unwrap();
        let held = std::iter::from_fn(|| pool.take()).collect();
        let taken = TakenReceives::default();
        let mut end = Self { path, queue, pool, held, taken, posted: 0, completed: 0 };
        end.post();
        Ok(end)
    }

    /// Posts all frames one by one, each with its number in it.
    fn post(&mut self) {
        while let Some(mut frame) = self.held.pop() {
            self.pool.bytes_mut(&mut frame)[..4].copy_from_slice(&self.posted.to_ne_bytes());
            self.posted += 1;
            assert_eq!(self.path.post(&mut self.pool, &mut vec![frame]), 1);
        }
    }

    /// At most `limit` completions of no packets; their frames, in the order in which they were posted, are
    /// kept.
    fn poll(&mut self, limit: usize) -> Vec<Result<Arrival, CompletionStatus>> {
        let polled = self.path.poll(&mut self.pool, limit, &mut self.taken);
        let TakenReceives { outcomes, frames } = std::mem::take(&mut self.taken);
        assert_eq!(polled.completions, outcomes.len());
        assert!(polled.is_empty || polled.completions == limit);
        for frame in frames {
            let frame = frame.unwrap();
            let number = self.pool.bytes(&frame)[..4].try_into().unwrap();
            assert_eq!(u32::from_ne_bytes(number), self.completed);
            self.completed += 1;
            self.held.push(frame);
        }
        outcomes
    }

    /// At least `count` packets, and all that wait, each with its bytes.
    fn receive(&mut self, count: usize) -> Vec<(Arrival, Vec<u8>)> {
        let (mut packets, begun) = (Vec::new(), Instant::now());
        loop {
            assert!(begun.elapsed() < PATIENCE, "{} of {count} packets", packets.len());
            let polled = self.path.poll(&mut self.pool, 64, &mut self.taken);
            if polled.completions == 0 && packets.len() >= count {
                break;
            }
            let TakenReceives { outcomes, frames } = std::mem::take(&mut self.taken);
            for (outcome, frame) in outcomes.into_iter().zip(frames) {
                let (arrival, frame) = (outcome.unwrap(), frame.unwrap());
                packets.push((arrival, self.pool.bytes(&frame)[..arrival.bytes as usize].to_vec()));
                self.held.push(frame);
                self.completed += 1;
            }
            self.post();
        }
        packets
    }
}

fn fields() -> CompletionFields {
    CompletionFields::BYTE_LEN | CompletionFields::FLOW_TAG | CompletionFields::COMPLETION_TIMESTAMP
}

/// A completion as the device writes it.
#[derive(Clone, Copy, Debug)]
struct WrittenCompletion {
    tag: u32,
    byte_count: u32,
    ticks: u64,
    /// The reason if the receive failed.
    syndrome: Option<u8>,
}

/// Mostly packets; lengths beyond a frame and syndromes without a status among them.
fn any_completion() -> impl Strategy<Value = WrittenCompletion> {
    let syndrome = prop_oneof![8 => Just(None), 1 => any::<u8>().prop_map(Some)];
    let byte_count = prop_oneof![4 => 60..=FRAME_BYTES, 1 => any::<u32>()];
    (0..1_u32 << 24, byte_count, any::<u64>(), syndrome)
        .prop_map(|(tag, byte_count, ticks, syndrome)| WrittenCompletion { tag, byte_count, ticks, syndrome })
}

/// A completion queue's memory, written in the device's place.
struct CompletionWriter {
    address: usize,
    /// `srqn_uidx`: how libmlx5 finds the receive queue.
    user_index: u32,
    next: u32,
}

impl CompletionWriter {
    fn word(&self, index: u32, at: usize) -> &AtomicU64 {
        let entry = (index % (ENTRIES + 1)) as usize * 64;
        let place = std::ptr::with_exposed_provenance_mut::<u64>(self.address + entry + at);
        // SAFETY: memory of the test that is never freed, within the queue's entries and aligned; all uses
        // are atomic.
        unsafe { AtomicU64::from_ptr(place) }
    }

    /// Continues behind the completions that the model has written.
    fn continue_at(&mut self, next: u32) {
        self.user_index = (self.word(next - 1, 32).load(Ordering::Acquire).to_be() >> 32) as u32;
        self.next = next;
    }

    fn write(&mut self, completion: &WrittenCompletion) {
        const PLAIN: u8 = 2 << 4;
        const FAILED: u8 = 14 << 4;
        let WrittenCompletion { tag, byte_count, ticks, syndrome } = *completion;
        let put = |at, value: u64| self.word(self.next, at).store(value.to_be(), Ordering::Relaxed);
        (0..8).for_each(|word| {
            if word != 7 {
                put(word * 8, 0);
            }
        });
        put(32, u64::from(self.user_index) << 32);
        put(40, u64::from(byte_count));
        put(48, syndrome.map_or(ticks, u64::from));
        let turn = u8::from(self.next & (ENTRIES + 1) != 0);
        let op_own = if syndrome.is_some() { FAILED } else { PLAIN } | turn;
        // Requests complete in order, so both rings count alike.
        let request = u64::from(self.next as u16);
        let last = u64::from(tag) << 32 | request << 16 | u64::from(op_own);
        self.word(self.next, 56).store(last.to_be(), Ordering::Release);
        self.next += 1;
    }
}

/// Two equal queues, the first used by libmlx5's functions, and how to write their completions.
fn twins(rig: &Rig) -> [(ReceivingEnd, CompletionWriter); 2] {
    let provider = DirectProvider::of(&rig.context).unwrap();
    [None, Some(&provider)].map(|provider| {
        let memory = KnownMemory::default();
        let protection = ProtectionDomain::new(&rig.context).unwrap();
        let parent = ParentDomain::new(&protection, None, Some(Box::new(memory.clone()))).unwrap();
        let builder = CompletionQueue::builder(&rig.context, ENTRIES).fields(fields()).domain(&parent);
        let domain = Domain::from(&parent);
        let mut end = ReceivingEnd::new(&domain, builder.build().unwrap(), provider).unwrap();
        let target = target(&domain, &[&end.queue], HashFields::empty());
        let flow = FlowHandle::create(&target, &udp_flow(53, 1)).unwrap();
        end.receive(10);
        drop(flow);
        // None is underway any more, and at most some are waiting.
        std::thread::sleep(Duration::from_millis(20));
        end.receive(0);
        let address = memory.0.lock().unwrap()[0];
        let mut writer = CompletionWriter { address, user_index: 0, next: 0 };
        writer.continue_at(end.completed);
        (end, writer)
    })
}

/// Streams of completions, each of several bursts, with frames posted between them.
#[test]
fn equal_completions_are_read_alike() {
    const STREAMS: u32 = 3_000;
    if !is_client("equal_completions_are_read_alike", WIRE) {
        return;
    }
    let rig = Rig::new();
    let twins = RefCell::new(twins(&rig));
    let completions = RefCell::new(0);
    let bursts = prop::collection::vec((prop::collection::vec(any_completion(), 0..40), 1..70_usize), 1..4);
    let config = Config { cases: STREAMS, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&bursts, |bursts| {
            let mut twins = twins.borrow_mut();
            for (burst, limit) in &bursts {
                let read = twins.each_mut().map(|(end, writer)| {
                    burst.iter().for_each(|completion| writer.write(completion));
                    let mut read = end.poll(*limit);
                    while read.len() < burst.len() {
                        let more = end.poll(*limit);
                        assert!(!more.is_empty(), "{} of {} completions", read.len(), burst.len());
                        read.extend(more);
                    }
                    end.post();
                    read
                });
                let [by_libmlx5, by_rings] = read;
                prop_assert_eq!(&by_libmlx5, &by_rings);
                prop_assert_eq!(by_rings.len(), burst.len());
                *completions.borrow_mut() += burst.len();
            }
            Ok(())
        })
        .unwrap();
    println!("{STREAMS} streams, {} completions", completions.into_inner());
}

#[test]
fn frames_arrive_by_the_rings() {
    if !is_client("frames_arrive_by_the_rings", WIRE) {
        return;
    }
    let rig = Rig::new();
    let provider = DirectProvider::of(&rig.context).unwrap();
    let completions = CompletionQueue::builder(&rig.context, ENTRIES).fields(fields()).build().unwrap();
    let mut end = ReceivingEnd::new(&rig.domain, completions, Some(&provider)).unwrap();
    let target = target(&rig.domain, &[&end.queue], HashFields::empty());
    let _flows = [(53, 7), (80, 0x00ab_cdef)]
        .map(|(port, tag)| FlowHandle::create(&target, &udp_flow(port, tag)).unwrap());
    // More than the 16-bit counter of requests, and many turns of the completion queue.
    let packets = end.receive(70_000);
    for (arrival, bytes) in &packets {
        let expected = match dst_port(bytes) {
            53 => (7, 100),
            80 => (0x00ab_cdef, 300),
            other => panic!("a packet to port {other}"),
        };
        assert_eq!((arrival.tag.unwrap().0, arrival.bytes), expected);
    }
    assert!(packets.windows(2).all(|pair| pair[0].0.timestamp <= pair[1].0.timestamp));
}

/// Both ways; the counter of requests is in the middle of the ring when the queue fails.
#[test]
fn a_restarted_queue_receives_again() {
    if !is_client("a_restarted_queue_receives_again", WIRE) {
        return;
    }
    let rig = Rig::new();
    let provider = DirectProvider::of(&rig.context).unwrap();
    for provider in [None, Some(&provider)] {
        let completions = CompletionQueue::builder(&rig.context, ENTRIES).fields(fields()).build().unwrap();
        let mut end = ReceivingEnd::new(&rig.domain, completions, provider).unwrap();
        let target = target(&rig.domain, &[&end.queue], HashFields::empty());
        let _flow = FlowHandle::create(&target, &udp_flow(53, 7)).unwrap();
        // None in a round in which packets have taken all buffers before the queue fails.
        let mut flushed = 0;
        for _ in 0..20 {
            end.receive(1_001);
            end.queue.to_error().unwrap();
            let ReceivingEnd { path, pool, held, taken, .. } = &mut end;
            path.restart(pool, held, taken).unwrap();
            let TakenReceives { outcomes, frames } = std::mem::take(taken);
            flushed += outcomes.iter().filter(|outcome| **outcome == Err(CompletionStatus::Flushed)).count();
            held.extend(frames.into_iter().flatten());
            assert_eq!(held.len(), FRAMES as usize, "no frame is lost");
            end.post();
        }
        assert!(flushed > 0);
        assert!(end.receive(1_000).iter().all(|(arrival, _)| arrival.tag.unwrap().0 == 7));
    }
}

#[test]
fn a_queue_that_others_use_is_refused() {
    if !is_client("a_queue_that_others_use_is_refused", WIRE) {
        return;
    }
    let rig = Rig::new();
    let provider = DirectProvider::of(&rig.context).unwrap();
    let make = || CompletionQueue::builder(&rig.context, ENTRIES).fields(fields()).build().unwrap();
    let queue = |completions: &CompletionQueue| {
        WorkQueue::builder(&rig.domain, &completions.handle()).max_receives(FRAMES).build()
    };
    let [alone, shared] = [make(), make()];
    let (_, elsewhere) = queue(&alone).unwrap();
    let refusal = DirectReceive::new(&provider, make(), elsewhere).err().unwrap();
    assert!(matches!(refusal, DirectRefusal::NotAlone), "{refusal}");
    let [(_, first), (_second, _)] = [queue(&shared).unwrap(), queue(&shared).unwrap()];
    let refusal = DirectReceive::new(&provider, shared, first).err().unwrap();
    assert!(matches!(refusal, DirectRefusal::NotAlone), "{refusal}");
    // And none is added later.
    let (_, receives) = queue(&alone).unwrap();
    let direct = DirectReceive::new(&provider, alone, receives).unwrap();
    assert!(queue(direct.completions()).is_err());
}

#[test]
fn frames_are_refused_after_a_reset_by_others() {
    if !is_client("frames_are_refused_after_a_reset_by_others", WIRE) {
        return;
    }
    let rig = Rig::new();
    let provider = DirectProvider::of(&rig.context).unwrap();
    let completions = CompletionQueue::builder(&rig.context, ENTRIES).fields(fields()).build().unwrap();
    let mut end = ReceivingEnd::new(&rig.domain, completions, Some(&provider)).unwrap();
    let target = target(&rig.domain, &[&end.queue], HashFields::empty());
    let flow = FlowHandle::create(&target, &udp_flow(53, 7)).unwrap();
    end.receive(100);
    drop(flow);
    end.queue.reset().unwrap();
    end.queue.ready().unwrap();
    end.path.poll(&mut end.pool, FRAMES as usize, &mut end.taken);
    end.held.extend(std::mem::take(&mut end.taken.frames).into_iter().flatten());
    assert_eq!(end.path.post(&mut end.pool, &mut end.held), 0);
    // A restart makes the rings and the device begin anew.
    end.path.restart(&mut end.pool, &mut end.held, &mut end.taken).unwrap();
    end.post();
    let _flow = FlowHandle::create(&target, &udp_flow(53, 7)).unwrap();
    end.receive(1_000);
}

#[test]
fn an_armed_queue_wakes_its_user() {
    if !is_client("an_armed_queue_wakes_its_user", "generator:2000") {
        return;
    }
    let rig = Rig::new();
    let provider = DirectProvider::of(&rig.context).unwrap();
    let channel = CompletionChannel::new(&rig.context).unwrap();
    let builder = CompletionQueue::builder(&rig.context, ENTRIES).fields(fields()).channel(&channel, 0);
    let mut end = ReceivingEnd::new(&rig.domain, builder.build().unwrap(), Some(&provider)).unwrap();
    let target = target(&rig.domain, &[&end.queue], HashFields::empty());
    let _flow = FlowHandle::create(&target, &FlowAttr::new(FlowKind::AllDefault, PORT)).unwrap();
    for _ in 0..100 {
        end.path.request_notification().unwrap();
        assert!(channel.wait(Some(PATIENCE)).unwrap().is_some());
        assert!(!end.receive(1).is_empty());
    }
}

#[test]
fn long_completions_are_left_to_libmlx5() {
    if !is_client_with("long_completions_are_left_to_libmlx5", WIRE, &[("MLX5_CQE_SIZE", "128")]) {
        return;
    }
    let rig = Rig::new();
    let provider = DirectProvider::of(&rig.context).unwrap();
    let make = |fields| {
        let completions = CompletionQueue::builder(&rig.context, ENTRIES).fields(fields).build().unwrap();
        ReceivingEnd::new(&rig.domain, completions, Some(&provider)).err().unwrap()
    };
    assert!(matches!(make(fields()), DirectRefusal::Format { bytes: 128, .. }));
    assert!(matches!(make(fields() | CompletionFields::CVLAN), DirectRefusal::Fields(_)));
}

//! The rings over simulated memory, against a device that fills buffers and writes completions.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use proptest::prelude::*;
use softnic::{Drive, Personality, PortConfig, SoftNicConfig};
use softnic_verbs::SoftNic;
use wire::NullWire;

use super::super::simulated::{MissingBarriers, SharedLog, SimulatedMemory, SimulatedRing};
use super::*;
use crate::{Access, DeviceList, Domain, MemoryRegion, ProtectionDomain};

const FRAME_BYTES: u32 = 2048;
const LKEY: u32 = 77;
const TURNS: u32 = 400;
/// The syndrome of a flushed receive, and one that no status is for.
const FLUSHED: u32 = 5;
const STRANGE: u32 = 0x7f;

/// Frames of a soft NIC; only their addresses and ids are used.
fn frames(count: u32) -> (SoftNic, FramePool) {
    let nic = SoftNic::create(SoftNicConfig {
        name: "rings0".to_owned(),
        personality: Personality::Ideal,
        ports: vec![PortConfig { wire: Box::new(NullWire), mtu_bytes: 1500 }],
        drive: Drive::Manual,
    })
    .expect("a soft NIC");
    let context =
        DeviceList::of(&nic).expect("a list").find("rings0").expect("listed").open().expect("opens");
    let domain = Domain::from(&ProtectionDomain::new(&context).expect("a domain"));
    let memory = vec![0_u8; (count * FRAME_BYTES) as usize];
    let region = MemoryRegion::register(&domain, memory, Access::LOCAL_WRITE).expect("registered");
    (nic, FramePool::new(region, FRAME_BYTES).expect("frames"))
}

/// A receive as the device completed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Completed {
    Packet { serial: u32 },
    Failed { syndrome: u32 },
    TooLong,
}

/// The device's side: completes receives in order.
struct SimulatedDevice {
    memory: QueueMemory<SimulatedMemory>,
    sizes: QueueSizes,
    /// The first word of each frame, by the address of the frame.
    payloads: SimulatedRing<8>,
    first_address: u64,
    received: u32,
    written: u32,
    log: Rc<RefCell<SharedLog>>,
    completed: Vec<Completed>,
}

impl SimulatedDevice {
    /// Completes a receive if one is posted and there is room for the completion. Returns whether it did.
    fn step(&mut self) -> bool {
        let posted = self.memory.request_record.load_u32::<POSTED>(0);
        let consumed = self.memory.completion_record.load_u32::<CONSUMED>(0);
        self.memory.requests.acquire_from_device();
        let room = self.sizes.completions - (self.written.wrapping_sub(consumed) & LOW_24);
        if posted as u16 == self.received as u16 || room == 0 {
            return false;
        }
        let serial = self.written;
        let counts = self.memory.requests.load_u64::<0>(self.received);
        let address = self.memory.requests.load_u64::<8>(self.received);
        self.received = self.received.wrapping_add(1);
        // A real device would stop the queue.
        let is_known = counts == u64::from(FRAME_BYTES) << 32 | u64::from(LKEY);
        let kind = self.log.borrow_mut().below(16);
        let completed = match kind {
            _ if !is_known => Completed::Failed { syndrome: 4 },
            0 => Completed::Failed { syndrome: FLUSHED },
            1 => Completed::Failed { syndrome: STRANGE },
            2 => Completed::TooLong,
            _ => Completed::Packet { serial },
        };
        if is_known {
            let frame = address.wrapping_sub(self.first_address) / u64::from(FRAME_BYTES);
            self.payloads.store_u64::<0>(frame as u32, u64::from(serial));
        }
        self.complete(completed);
        self.completed.push(completed);
        true
    }

    /// Writes the words of a completion in some order, and the last one at the end.
    fn complete(&mut self, completed: Completed) {
        let (index, completions) = (self.written, &self.memory.completions);
        let (bytes, opcode, syndrome) = match completed {
            Completed::Packet { serial } => (60 + serial % 1000, RESPONDER_SEND, 0),
            Completed::TooLong => (FRAME_BYTES + 1, RESPONDER_SEND, 0),
            Completed::Failed { syndrome } => (0, RESPONDER_ERROR, syndrome),
        };
        let time = if opcode == RESPONDER_ERROR { u64::from(syndrome) } else { u64::from(index) * 3 };
        completions.store_u64::<TIMESTAMP>(index, time);
        completions.store_u32::<BYTE_COUNT>(index, bytes);
        let turn = u8::from(index & self.sizes.completions != 0);
        let request = self.received.wrapping_sub(1) as u16;
        let last = u64::from(index & LOW_24) << 32 | u64::from(request) << 16 | u64::from(opcode << 4 | turn);
        completions.store_u64::<TAG_AND_OWNER>(index, last);
        self.written = self.written.wrapping_add(1);
    }
}

/// The processor's side: checks each completion when it is passed on, and keeps the frames.
struct CheckingTaker {
    payloads: SimulatedRing<8>,
    /// The receives that the device has completed, in order; filled by the test.
    expected: Vec<Completed>,
    taken: usize,
    frames: Vec<Frame>,
    mistakes: Vec<String>,
}

impl CheckingTaker {
    fn check(&mut self, arrival: Result<Arrival, CompletionStatus>, frame: Option<&Frame>) {
        let serial = self.taken as u32;
        let Some(expected) = self.expected.get(self.taken) else {
            return self.mistakes.push(format!("{arrival:?} that nobody wrote"));
        };
        self.taken += 1;
        let payload = frame.map(|frame| self.payloads.load_u64::<0>(frame.wr_id() as u32));
        let expected = match *expected {
            Completed::Packet { serial } => Ok(Arrival {
                bytes: 60 + serial % 1000,
                tag: Some(FlowTag(serial & LOW_24)),
                timestamp: Some(u64::from(serial) * 3),
            }),
            Completed::TooLong => Err(CompletionStatus::Success),
            Completed::Failed { syndrome: FLUSHED } => Err(CompletionStatus::Flushed),
            Completed::Failed { syndrome: 4 } => Err(CompletionStatus::LocalProtection),
            Completed::Failed { .. } => Err(CompletionStatus::General),
        };
        if arrival != expected || payload != Some(u64::from(serial)) {
            self.mistakes.push(format!("{arrival:?} with {payload:?}, not {expected:?} with {serial}"));
        }
        if arrival == Err(CompletionStatus::LocalProtection) {
            self.mistakes.push(format!("the device read request {serial} before it was written"));
        }
    }
}

impl TakeReceives for CheckingTaker {
    fn packet(&mut self, arrival: Arrival, frame: Option<Frame>) {
        self.check(Ok(arrival), frame.as_ref());
        self.frames.extend(frame);
    }

    fn rejected(&mut self, status: CompletionStatus, frame: Option<Frame>) {
        self.check(Err(status), frame.as_ref());
        self.frames.extend(frame);
    }
}

/// Both ends of queues in simulated memory.
fn queues(log: &Rc<RefCell<SharedLog>>, sizes: QueueSizes) -> [QueueMemory<SimulatedMemory>; 2] {
    let processor = QueueMemory::<SimulatedMemory> {
        completions: SimulatedRing::new(log, sizes.completions),
        completion_record: SimulatedRing::new(log, 1),
        requests: SimulatedRing::new(log, sizes.requests),
        request_record: SimulatedRing::new(log, 1),
        doorbell: SimulatedRing::new(log, 1),
    };
    let device = QueueMemory {
        completions: processor.completions.of_device(),
        completion_record: processor.completion_record.of_device(),
        requests: processor.requests.of_device(),
        request_record: processor.request_record.of_device(),
        doorbell: processor.doorbell.of_device(),
    };
    // As libmlx5 leaves a new queue.
    (0..sizes.completions).for_each(|index| processor.completions.store_u64::<TAG_AND_OWNER>(index, 0xf0));
    [processor, device]
}

/// Device and processor take turns by chance. Returns how many completions were taken, and what was wrong.
fn run(pool: &mut FramePool, seed: u64, sizes: QueueSizes, missing: MissingBarriers) -> (usize, Vec<String>) {
    let log = SharedLog::new(seed, missing);
    let [memory, of_device] = queues(&log, sizes);
    let payloads = SimulatedRing::new(&log, 64);
    let first = pool.take().expect("a frame");
    let first_address = pool.slot(&first).expect("its own").address
        - u64::from(first.wr_id() as u32) * u64::from(FRAME_BYTES);
    let mut device = SimulatedDevice {
        memory: of_device,
        sizes,
        payloads: payloads.of_device(),
        first_address,
        received: 0,
        written: 0,
        log: Rc::clone(&log),
        completed: Vec::new(),
    };
    let mut rings = DirectRings::new(memory, sizes);
    let mut taker =
        CheckingTaker { payloads, expected: Vec::new(), taken: 0, frames: vec![first], mistakes: Vec::new() };
    taker.frames.extend(std::iter::from_fn(|| pool.take()));
    let count = taker.frames.len();
    for _ in 0..TURNS {
        let choice = log.borrow_mut().below(3);
        let amount = log.borrow_mut().below(9) as usize;
        match choice {
            0 => {
                let _written = (0..amount).filter(|_| device.step()).count();
                taker.expected.clone_from(&device.completed);
            }
            1 => {
                let before = taker.taken;
                let polled = rings.poll(pool, amount + 1, &mut taker);
                assert_eq!(polled.completions, taker.taken - before);
                assert!(polled.is_empty || polled.completions == amount + 1);
            }
            _ => {
                // Some frames, of the end.
                let mut offered = taker.frames.split_off(taker.frames.len().saturating_sub(amount));
                rings.post(pool, EntryShape { bytes: FRAME_BYTES, lkey: LKEY }, &mut offered);
                taker.frames.append(&mut offered);
            }
        }
        if !taker.mistakes.is_empty() {
            break;
        }
    }
    let posted = rings.posted.wrapping_sub(rings.completed) as usize;
    if posted + taker.frames.len() != count {
        taker.mistakes.push(format!("{posted} posted and {} held of {count}", taker.frames.len()));
    }
    // The pool has all of them again.
    let slots = std::mem::take(&mut rings.wr_ids);
    for nth in 0..posted as u32 {
        let slot = rings.completed.wrapping_add(nth) & (sizes.requests - 1);
        taker.frames.extend(pool.reclaim_id(slots[slot as usize]));
    }
    taker.frames.into_iter().for_each(|frame| pool.release(frame));
    (taker.taken, taker.mistakes)
}

fn sizes(completions: u32, requests: u32) -> QueueSizes {
    QueueSizes { completions, requests, completion_queue: 9, timestamps: true }
}

#[test]
#[cfg_attr(miri, ignore = "frames need libibverbs")]
fn weakly_ordered_completions_are_read_whole() {
    let (_nic, pool) = frames(24);
    let (pool, taken) = (RefCell::new(pool), Cell::new(0));
    proptest!(|(seed: u64, log_completions in 0_u32..6, log_requests in 0_u32..6)| {
        let sizes = sizes(1 << log_completions, 1 << log_requests);
        let (completions, mistakes) = run(&mut pool.borrow_mut(), seed, sizes, MissingBarriers::default());
        prop_assert!(mistakes.is_empty(), "{mistakes:?}");
        taken.set(taken.get() + completions);
    });
    assert!(taken.get() > 1000, "{taken:?} completions");
}

#[test]
#[cfg_attr(miri, ignore = "frames need libibverbs")]
fn each_missing_barrier_is_noticed() {
    let (_nic, mut pool) = frames(24);
    for missing in [
        MissingBarriers { from_device: true, to_device: false },
        MissingBarriers { from_device: false, to_device: true },
    ] {
        let wrong =
            (0..50).filter(|seed| !run(&mut pool, *seed, sizes(16, 16), missing).1.is_empty()).count();
        assert!(wrong > 25, "{wrong} of 50 runs");
    }
}

#[test]
#[cfg_attr(miri, ignore = "frames need libibverbs")]
fn an_unknown_completion_ends_the_queue() {
    let (_nic, mut pool) = frames(4);
    // Data within the completion, a compressed one, a resized queue, a failed send, and others' requests.
    for word in [0x24_u64, 0x2c, 0x50, 0xd0, 0x1_0020, 0x1_00e0] {
        let log = SharedLog::new(1, MissingBarriers::default());
        let [memory, device] = queues(&log, sizes(4, 4));
        let mut rings = DirectRings::new(memory, sizes(4, 4));
        let mut frames = vec![pool.take().expect("a frame")];
        rings.post(&mut pool, EntryShape { bytes: FRAME_BYTES, lkey: LKEY }, &mut frames);
        device.completions.store_u64::<TAG_AND_OWNER>(0, word);
        let mut taker = CheckingTaker {
            payloads: SimulatedRing::new(&log, 1),
            expected: Vec::new(),
            taken: 0,
            frames,
            mistakes: Vec::new(),
        };
        while !rings.is_ended() {
            assert_eq!(rings.poll(&mut pool, 4, &mut taker).completions, 0);
        }
        assert_eq!((rings.unreadable, rings.completed, taker.mistakes.len()), (Some(word), 0, 0));
        let posted = pool.reclaim_id(rings.wr_ids[0]).expect("posted");
        pool.release(posted);
    }
}

#[test]
#[cfg_attr(miri, ignore = "frames need libibverbs")]
fn a_completion_of_nothing_has_no_frame() {
    let (_nic, mut pool) = frames(4);
    let log = SharedLog::new(1, MissingBarriers::default());
    let [memory, device] = queues(&log, sizes(4, 4));
    let mut rings = DirectRings::new(memory, sizes(4, 4));
    device.completions.store_u64::<TAG_AND_OWNER>(0, u64::from(RESPONDER_SEND << 4));
    let mut taker = CheckingTaker {
        payloads: SimulatedRing::new(&log, 1),
        expected: vec![Completed::Packet { serial: 0 }],
        taken: 0,
        frames: Vec::new(),
        mistakes: Vec::new(),
    };
    while rings.poll(&mut pool, 4, &mut taker).completions == 0 {}
    assert!(taker.frames.is_empty() && taker.mistakes.len() == 1);
}

#[test]
#[cfg_attr(miri, ignore = "frames need libibverbs")]
fn frames_of_other_pools_are_left() {
    let (_nic, mut pool) = frames(4);
    let (_other_nic, mut other) = frames(2);
    let log = SharedLog::new(1, MissingBarriers::default());
    let [memory, device] = queues(&log, sizes(4, 4));
    let mut rings = DirectRings::new(memory, sizes(4, 4));
    let mut frames = vec![pool.take(), other.take(), pool.take()].into_iter().flatten().collect();
    assert_eq!(rings.post(&mut pool, EntryShape { bytes: FRAME_BYTES, lkey: LKEY }, &mut frames), 2);
    assert!(frames.len() == 1 && other.owns(&frames[0]));
    let mut seen = [0; 2];
    while seen[1] == 0 {
        seen = [seen[1], device.request_record.load_u32::<POSTED>(0)];
    }
    assert_eq!(seen[1], 2);
}

#[test]
fn arming_counts_and_names_the_queue() {
    let log = SharedLog::new(1, MissingBarriers::default());
    let [memory, device] = queues(&log, sizes(4, 4));
    let mut rings = DirectRings::new(memory, sizes(4, 4));
    rings.consumed = 0x0100_0002;
    (0..6).for_each(|_| rings.arm());
    let last = 1 << 28 | 2;
    let mut bell = 0;
    for _ in 0..100 {
        bell = device.doorbell.load_u64::<ARM_DOORBELL>(0);
        device.doorbell.acquire_from_device();
        if bell == u64::from(last) << 32 | 9 {
            break;
        }
    }
    assert_eq!(bell, u64::from(last) << 32 | 9);
    assert_eq!(device.completion_record.load_u32::<ARMED>(0), last, "the record is there before the bell");
}

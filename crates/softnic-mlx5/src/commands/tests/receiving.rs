//! A well-behaved client: frames, completions, events, resizing and counters.

use softnic::errno::{EBUSY, EEXIST, EINVAL};
use softnic::objects::counters::CounterPoint;

use super::*;

const GOOD: u8 = 2;
const ERROR: u8 = 14;
const RESIZED: u8 = 5;
const FLUSHED: u8 = 5;

/// A rig that receives UDP to port 53 with tag 7.
struct Receiving {
    rig: Rig,
    domain: u32,
    key: u32,
    frames: u64,
    cq: Completions,
    wq: WorkQueue,
    qp: u32,
}

const FRAME_BYTES: u64 = 2_048;

impl Receiving {
    fn new(entries: u32, requests: u32) -> Self {
        Self::with_channel(entries, requests, -1)
    }

    fn with_channel(entries: u32, requests: u32, channel: i32) -> Self {
        Self::on(Rig::new(), entries, requests, channel)
    }

    fn on(mut rig: Rig, entries: u32, requests: u32, channel: i32) -> Self {
        let domain = rig.domain();
        let frames = rig.arena.take(64 * FRAME_BYTES as usize);
        let key = rig.register(domain, frames, 64 * FRAME_BYTES);
        let cq = rig.completion_queue(entries, channel);
        let wq = rig.work_queue(domain, cq.handle, requests);
        let qp = rig.queue_pair(domain, wq.handle);
        rig.flow(qp, 53, 7).unwrap();
        Self { rig, domain, key, frames, cq, wq, qp }
    }

    fn post(&mut self, count: u32) {
        for _ in 0..count {
            let address = self.frames + u64::from(self.wq.next % 64) * FRAME_BYTES;
            self.wq.post(&[(self.key, address, FRAME_BYTES as u32)]);
        }
    }
}

#[test]
fn a_frame_is_completed_as_a_device_would() {
    let mut it = Receiving::new(15, 16);
    it.post(2);
    let frame = udp(53, 40);
    it.rig.deliver([frame.clone(), udp(80, 40)]);
    let completed = it.cq.poll_all();
    let bytes = u32::try_from(frame.len()).unwrap();
    let expected = Completed {
        opcode: GOOD,
        user_index: USER_INDEX,
        counter: 0,
        bytes,
        tag: 7,
        syndrome: 0,
        checksums: 7,
        vlan: 0,
    };
    assert_eq!(completed, [expected]);
    assert_eq!(long(it.frames).to_be_bytes()[..6], frame[..6]);
}

#[test]
fn counters_and_owner_bits_turn_without_end() {
    let mut it = Receiving::new(7, 4);
    for turn in 0..20_000_u32 {
        it.post(4);
        it.rig.deliver((0..4).map(|_| udp(53, 10)));
        let counters: Vec<_> = it.cq.poll_all().iter().map(|one| u32::from(one.counter)).collect();
        let expected: Vec<_> = (0..4).map(|nth| (turn * 4 + nth) & 0xffff).collect();
        assert_eq!(counters, expected);
    }
}

#[test]
fn a_frame_fills_several_entries() {
    let mut it = Receiving::new(15, 16);
    let frame = udp(53, 200);
    it.wq.post(&[(it.key, it.frames, 64), (it.key, it.frames + 4_096, 1_000)]);
    it.rig.deliver([frame.clone()]);
    assert_eq!(it.cq.poll_all().len(), 1);
    assert_eq!(long(it.frames + 4_096).to_be_bytes(), frame[64..72]);
}

#[test]
fn without_a_buffer_a_frame_is_lost_and_without_room_the_queue_fails() {
    let mut it = Receiving::new(3, 16);
    it.rig.deliver([udp(53, 10)]);
    assert_eq!(it.rig.nic.port_stats(1).out_of_buffer, 1);
    it.post(8);
    it.rig.deliver((0..4).map(|_| udp(53, 10)));
    assert_eq!(it.rig.event(), None);
    it.rig.deliver([udp(53, 10)]);
    assert_eq!(it.rig.event(), Some((ibverbs_sys::IBV_EVENT_CQ_ERR, CQ_TOKEN)));
    assert_eq!(it.rig.event(), Some((ibverbs_sys::IBV_EVENT_WQ_FATAL, WQ_TOKEN)));
    assert_eq!(it.cq.poll_all().len(), 4);
}

#[test]
fn a_queue_in_the_error_state_flushes_and_starts_anew_after_reset() {
    let mut it = Receiving::new(31, 16);
    it.post(3);
    it.rig.modify(it.wq.handle, ibverbs_sys::IBV_WQS_ERR).unwrap();
    let flushed = |completed: &[Completed]| {
        assert!(completed.iter().all(|one| (one.opcode, one.syndrome) == (ERROR, FLUSHED)), "{completed:?}");
        completed.iter().map(|one| one.counter).collect::<Vec<_>>()
    };
    assert_eq!(flushed(&it.cq.poll_all()), [0, 1, 2]);
    it.post(1);
    it.rig.deliver([udp(53, 10)]);
    assert_eq!(flushed(&it.cq.poll_all()), [3]);
    it.rig.modify(it.wq.handle, ibverbs_sys::IBV_WQS_RESET).unwrap();
    it.wq.next = 0;
    it.wq.ring();
    it.rig.modify(it.wq.handle, IBV_WQS_RDY).unwrap();
    it.post(1);
    it.rig.deliver([udp(53, 10)]);
    let completed = it.cq.poll_all();
    assert_eq!((completed.len(), completed[0].opcode, completed[0].counter), (1, GOOD, 0));
}

/// libmlx5 sets the doorbell record to 0 just before the queue becomes ready. What arrives until then meets
/// the old value, which may be more than the queue has.
#[test]
fn a_frame_for_a_queue_in_reset_does_not_spoil_it() {
    let mut it = Receiving::new(31, 4);
    for _ in 0..3 {
        it.post(4);
        it.rig.deliver((0..4).map(|_| udp(53, 10)));
        assert_eq!(it.cq.poll_all().len(), 4);
    }
    for state in [ibverbs_sys::IBV_WQS_ERR, ibverbs_sys::IBV_WQS_RESET] {
        it.rig.modify(it.wq.handle, state).unwrap();
    }
    it.rig.deliver([udp(53, 10)]);
    it.wq.next = 0;
    // A request that is posted in RESET is forgotten when the queue becomes ready.
    it.post(1);
    it.rig.deliver([udp(53, 10)]);
    it.wq.next = 0;
    it.wq.ring();
    it.rig.modify(it.wq.handle, IBV_WQS_RDY).unwrap();
    it.rig.deliver([udp(53, 10)]);
    assert_eq!((it.rig.event(), it.cq.poll_all()), (None, vec![]));
    it.post(1);
    it.rig.deliver([udp(53, 10)]);
    let completed = it.cq.poll_all();
    assert_eq!(completed.iter().map(|one| (one.opcode, one.counter)).collect::<Vec<_>>(), [(GOOD, 0)]);
    assert_eq!(it.rig.event(), None);
}

#[test]
fn a_resized_queue_goes_on_behind_the_completion_that_says_so() {
    let mut it = Receiving::new(3, 16);
    it.post(8);
    it.rig.deliver((0..3).map(|_| udp(53, 10)));
    let larger = Completions { buffer: it.rig.arena.take(16 * 64), size: 16, ..it.cq };
    larger.clear();
    let resize = |buffer, entries| {
        let core = bytes().u64(0).u32(it.cq.handle).u32(entries);
        it.rig.call(19, &core, &bytes().u64(buffer).u16(64).u16(0).u32(0), (8, 0))
    };
    assert_eq!(resize(larger.buffer + 8, 15).map(|_| ()), Err(EINVAL), "misaligned");
    assert_eq!(resize(larger.buffer, 1).map(|_| ()), Err(EINVAL), "too small for what is in it");
    assert_eq!(resize(larger.buffer, 15).unwrap().u32(0), 15);
    let opcodes: Vec<_> = std::iter::from_fn(|| it.cq.poll()).map(|one| one.opcode).collect();
    assert_eq!(opcodes, [GOOD, GOOD, GOOD, RESIZED]);
    // libmlx5 copies what it has not polled to the new buffer; here it was polled.
    it.cq = Completions { next: it.cq.next, ..larger };
    it.rig.deliver((0..5).map(|_| udp(53, 10)));
    assert_eq!(it.cq.poll_all().iter().map(|one| one.counter).collect::<Vec<_>>(), [3, 4, 5, 6, 7]);
}

#[test]
fn an_armed_queue_raises_one_event() {
    let rig = Rig::new();
    let (channel, descriptor) = channel(&rig);
    let mut it = Receiving::on(rig, 31, 16, descriptor);
    it.post(16);
    it.rig.deliver([udp(53, 10)]);
    assert_eq!(events(&channel), 0, "not armed");
    it.cq.poll_all();
    it.cq.arm(false);
    it.rig.deliver([udp(53, 10), udp(53, 10)]);
    assert_eq!(events(&channel), 1);
    it.rig.deliver([udp(53, 10)]);
    assert_eq!(events(&channel), 0, "not armed again");
    // What the client has not seen when it arms the queue counts.
    it.cq.arm(false);
    it.rig.deliver([]);
    assert_eq!(events(&channel), 1);
    it.cq.poll_all();
    it.cq.arm(true);
    it.rig.deliver([udp(53, 10)]);
    assert_eq!(events(&channel), 0, "solicited completions only");
    // That frame was not polled, so whoever then waits for any completion waits for it.
    it.cq.arm(false);
    it.rig.deliver([]);
    assert_eq!(events(&channel), 1);
    it.cq.poll_all();
    it.cq.arm(true);
    it.rig.deliver([udp(53, 10)]);
    assert_eq!(events(&channel), 0, "solicited completions only");
    it.rig.modify(it.wq.handle, ibverbs_sys::IBV_WQS_ERR).unwrap();
    it.rig.deliver([]);
    assert_eq!(events(&channel), 1, "errors are");
}

#[test]
fn a_destroyed_queue_takes_its_unread_events_with_it() {
    let mut rig = Rig::new();
    let (channel, descriptor) = channel(&rig);
    let idle = rig.named_queue(7, descriptor, CQ_TOKEN + 1);
    let mut it = Receiving::on(rig, 31, 16, descriptor);
    it.post(16);
    it.cq.arm(false);
    it.rig.deliver([udp(53, 10)]);
    let destroy = |handle| it.rig.call(20, &bytes().u64(0).u32(handle).u32(0), &bytes(), (8, 0));
    assert_eq!(destroy(it.cq.handle).map(|_| ()), Err(EBUSY), "a work queue completes to it");
    assert_eq!(destroy(idle.handle).unwrap().u32(0), 0, "it had none");
    assert_eq!(events(&channel), 1, "that of the other queue stays");
    it.cq.arm(false);
    it.rig.deliver([udp(53, 10)]);
    release(&it);
    assert_eq!(destroy(it.cq.handle).unwrap().u32(0), 1, "of two events one was read");
    assert_eq!(events(&channel), 0);
}

/// Destroys what completes to the queue, with what uses that.
fn release(it: &Receiving) {
    let destroy = |number, core: &Bytes| it.rig.call(number, core, &bytes(), (16, 0)).unwrap();
    // Each is the only one of its kind.
    destroy(EXTENDED | 51, &bytes().u32(0).u32(0));
    destroy(27, &bytes().u64(0).u32(it.qp).u32(0));
    destroy(EXTENDED | 56, &bytes().u32(0).u32(0));
    assert_eq!(destroy(EXTENDED | 54, &bytes().u32(0).u32(it.wq.handle)).u32(8), 0, "it had no event");
}

#[test]
fn counters_count_what_their_flow_takes() {
    let it = Receiving::new(15, 16);
    let set = crate::counters::create(&it.rig.context).unwrap();
    let points = [[0_u32, 1], [1, 0]];
    let address = points.as_ptr().expose_provenance() as u64;
    let specs = [spec_ipv4(), spec_udp(99), bytes().u32(0x1001).u16(8).u16(0), spec_number(0x1003, set)];
    let driver = bytes().u32(1).u32(0).u64(address).u32(2).u32(0);
    let flow = it.rig.call(EXTENDED | 50, &flow(it.qp, &specs), &driver, (8, 0)).unwrap().u32(4);
    let frame = udp(99, 20);
    it.rig.deliver([frame.clone(), frame.clone(), udp(98, 20)]);
    let read = || {
        let mut values = Reply::of(16);
        crate::counters::read(&it.rig.context, set.into(), 0, &mut values).unwrap();
        (Block(&values.0).u64(0), Block(&values.0).u64(8))
    };
    assert_eq!(read(), (2 * frame.len() as u64, 2), "bytes at 0, packets at 1");
    let destroy = || crate::counters::destroy(&it.rig.context, set.into());
    assert_eq!(destroy(), Err(EBUSY));
    it.rig.call(EXTENDED | 51, &bytes().u32(0).u32(flow), &bytes(), (0, 0)).unwrap();
    assert_eq!(destroy(), Ok(()));
}

#[test]
fn a_refused_flow_leaves_the_points_of_its_counters() {
    let it = Receiving::new(15, 16);
    let set = crate::counters::create(&it.rig.context).unwrap();
    let count = |port, tag, points: &[[u32; 2]]| {
        let address = points.as_ptr().expose_provenance() as u64;
        let specs = [spec_ipv4(), spec_udp(port), spec_number(0x1000, tag), spec_number(0x1003, set)];
        let driver = bytes().u32(1).u32(0).u64(address).u32(points.len() as u32).u32(0);
        it.rig.call(EXTENDED | 50, &flow(it.qp, &specs), &driver, (8, 0)).map(|reply| reply.u32(4))
    };
    let points = || softnic::objects::counters::points(&it.rig.nic.nic().control(), set).unwrap().to_vec();
    let tagged = [spec_ipv4(), spec_udp(99), spec_number(0x1000, 1)];
    it.rig.call(EXTENDED | 50, &flow(it.qp, &tagged), &bytes(), (8, 0)).unwrap();
    assert_eq!(count(99, 2, &[[0, 1]]), Err(EEXIST), "the same match has another tag");
    assert_eq!(points(), []);
    assert!(count(98, 2, &[[1, 2]]).is_ok());
    assert_eq!(points(), [(2, CounterPoint::Bytes)]);
}

#[test]
fn contexts_share_nothing_but_the_port() {
    let it = Receiving::new(15, 16);
    let other = Context::new(Arc::clone(it.rig.nic.nic()));
    let _events = open(&other);
    let destroy = |number, handle| {
        let core = if number == 4 { bytes().u32(handle) } else { bytes().u32(0).u32(handle) };
        call(&other, number, &core, &bytes(), (16, 0)).map(|_| ())
    };
    assert_eq!(destroy(4, it.domain), Err(ENOENT));
    assert_eq!(destroy(EXTENDED | 54, it.wq.handle), Err(ENOENT));
    assert_eq!(it.rig.call(4, &bytes().u32(it.domain), &bytes(), (0, 0)).map(|_| ()), Err(EBUSY));
    other.remove();
    it.rig.context.remove();
    it.rig.deliver([udp(53, 10)]);
    assert_eq!(it.rig.nic.port_stats(1).unmatched, 1, "the flow went with its context");
}

/// `struct ib_uverbs_modify_qp` of a change of state.
pub(super) fn change(qp: u32, mask: u32, state: u8) -> Bytes {
    let mut core = bytes();
    core.0.resize(64, 0);
    core = core.u32(qp).u32(mask);
    core.0.resize(96, 0);
    core = core.u8(state).u8(0);
    core.0.resize(104, 0);
    core = core.u8(1);
    core.0.resize(112, 0);
    core
}

/// The states of a queue pair.
const RESET: u8 = 0;
const INIT: u8 = 1;
const RTR: u8 = 2;
/// `IBV_QP_STATE` and `IBV_QP_PORT`.
const STATE: u32 = 1;
const PORT: u32 = 1 << 5;

/// A raw queue pair with 8 requests that receives UDP to port 53 with tag 7.
struct RawPair {
    rig: Rig,
    key: u32,
    frames: u64,
    cq: Completions,
    queue: WorkQueue,
    qp: u32,
}

impl RawPair {
    fn new() -> Self {
        let mut rig = Rig::new();
        let domain = rig.domain();
        let frames = rig.arena.take(FRAME_BYTES as usize);
        let key = rig.register(domain, frames, FRAME_BYTES);
        let cq = rig.completion_queue(15, -1);
        let (buffer, doorbell) = (rig.arena.take(4_096), rig.arena.take(8));
        let queue = WorkQueue { buffer, doorbell, requests: 8, next: 0, handle: 0 };
        let head = bytes().u64(0).u64(WQ_TOKEN).u32(domain).u32(cq.handle).u32(cq.handle).u32(0);
        let core = head.u32(0).u32(8).u32(0).u32(2).u32(0).u8(0).u8(8).u8(0).u8(0);
        let driver =
            bytes().u64(queue.buffer).u64(queue.doorbell).u32(0).u32(8).u32(5).u32(0).u32(USER_INDEX);
        let qp = rig.call(24, &core, &driver, (32, 0)).unwrap().u32(0);
        rig.flow(qp, 53, 7).unwrap();
        Self { rig, key, frames, cq, queue, qp }
    }

    fn modify(&self, mask: u32, state: u8) -> Verb<()> {
        self.rig.call(26, &change(self.qp, mask, state), &bytes(), (0, 0)).map(|_| ())
    }

    fn post(&mut self) {
        self.queue.post(&[(self.key, self.frames, FRAME_BYTES as u32)]);
    }

    /// The opcodes, tags and counters of what was completed.
    fn completed(&mut self) -> Vec<(u8, u32, u16)> {
        self.cq.poll_all().iter().map(|one| (one.opcode, one.tag, one.counter)).collect()
    }
}

/// libmlx5 sets the doorbell record to 0 after the command that enters RESET.
#[test]
fn a_frame_for_a_queue_pair_in_reset_does_not_spoil_it() {
    let mut it = RawPair::new();
    let ready = |it: &RawPair| {
        it.modify(STATE | PORT, INIT).unwrap();
        it.modify(STATE, RTR).unwrap();
    };
    ready(&it);
    for counter in 0..9 {
        it.post();
        it.rig.deliver([udp(53, 10)]);
        assert_eq!(it.completed(), [(GOOD, 7, counter)]);
    }
    it.modify(STATE, RESET).unwrap();
    it.rig.deliver([udp(53, 10)]);
    it.queue.next = 0;
    it.queue.ring();
    ready(&it);
    it.post();
    it.rig.deliver([udp(53, 10)]);
    assert_eq!((it.rig.event(), it.completed()), (None, vec![(GOOD, 7, 0)]));
}

#[test]
fn a_raw_queue_pair_receives_once_it_is_ready() {
    let mut it = RawPair::new();
    assert_eq!(it.modify(STATE, RTR), Err(EINVAL), "INIT comes first");
    assert_eq!(it.modify(STATE | PORT, INIT), Ok(()));
    it.post();
    it.rig.deliver([udp(53, 10)]);
    assert_eq!(it.completed(), []);
    assert_eq!(it.modify(STATE, RTR), Ok(()));
    it.rig.deliver([udp(53, 10)]);
    assert_eq!(it.completed(), [(GOOD, 7, 0)]);
    let RawPair { rig, cq, qp, .. } = it;
    let query = rig.call(25, &bytes().u64(0).u32(qp).u32(1), &bytes(), (128, 0)).unwrap();
    assert_eq!((query.u32(68), query.u32(76), query.0[108], query.0[116]), (8, 2, RTR, 1));
    let destroy = |number, core: &Bytes| rig.call(number, core, &bytes(), (8, 0)).map(|_| ());
    assert_eq!(destroy(27, &bytes().u64(0).u32(qp).u32(0)), Err(EBUSY), "a flow points to it");
    assert_eq!(destroy(EXTENDED | 51, &bytes().u32(0).u32(0)), Ok(()));
    assert_eq!(destroy(27, &bytes().u64(0).u32(qp).u32(0)), Ok(()));
    assert_eq!(destroy(20, &bytes().u64(0).u32(cq.handle).u32(0)), Ok(()));
}

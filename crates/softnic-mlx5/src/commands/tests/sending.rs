//! Send queues: what libmlx5 posts, and what no libmlx5 would.

use packet::checksum::{ChecksumStatus, verify_ip, verify_l4};
use softnic::errno::EINVAL;

use super::*;

const GOOD: u8 = 0;
const ERROR: u8 = 13;
const SEND: u8 = 0x0a;
const SEGMENTS: u8 = 0x0e;
const BLOCKS: u32 = 16;
const MEMORY_BYTES: u64 = 8_192;

const RESET: u8 = 0;
const INIT: u8 = 1;
const RTR: u8 = 2;
const RTS: u8 = 3;

type Unit = [u8; 16];

/// The Ethernet segment: checksum flags, bytes per segment and headers.
fn ethernet(checksums: u8, segment_bytes: u16, headers: &[u8]) -> Vec<u8> {
    let mut segment = vec![0, 0, 0, 0, checksums, 0];
    segment.extend(segment_bytes.to_be_bytes());
    segment.extend([0; 4]);
    segment.extend(u16::try_from(headers.len()).unwrap().to_be_bytes());
    segment.extend(headers);
    padded(segment)
}

fn data(key: u32, address: u64, bytes: u32) -> Vec<u8> {
    [&bytes.to_be_bytes()[..], &key.to_be_bytes(), &address.to_be_bytes()].concat()
}

fn inline(bytes: &[u8]) -> Vec<u8> {
    let count = 1 << 31 | u32::try_from(bytes.len()).unwrap();
    padded([&count.to_be_bytes()[..], bytes].concat())
}

fn padded(mut segment: Vec<u8>) -> Vec<u8> {
    segment.resize(segment.len().next_multiple_of(16), 0);
    segment
}

/// A queue pair in RTS that only sends.
struct Sender {
    rig: Rig,
    key: u32,
    memory: u64,
    cq: Completions,
    buffer: u64,
    doorbell: u64,
    next: u32,
    qp: u32,
    number: u32,
}

impl Sender {
    fn new() -> Self {
        let mut rig = Rig::new();
        let domain = rig.domain();
        let memory = rig.arena.take(MEMORY_BYTES as usize);
        let key = rig.register(domain, memory, MEMORY_BYTES);
        let cq = rig.completion_queue(15, -1);
        let (buffer, doorbell) = (rig.arena.take(BLOCKS as usize * 64), rig.arena.take(8));
        let create = |sends: u32, blocks: u32| {
            let head = bytes().u64(0).u64(WQ_TOKEN).u32(domain).u32(cq.handle).u32(cq.handle).u32(0);
            let core = head.u32(sends).u32(0).u32(2).u32(0).u32(0).u8(1).u8(8).u8(0).u8(0);
            let driver = bytes().u64(0).u64(doorbell).u32(blocks).u32(0).u32(0).u32(0).u32(USER_INDEX);
            rig.call(24, &core, &driver.u32(0).u64(buffer), (32, 0))
        };
        for (sends, blocks) in [(0, 0), (1, 0), (1, 3), (1, 1 << 16)] {
            assert_eq!(create(sends, blocks).map(|_| ()), Err(EINVAL), "{sends} of {blocks}");
        }
        let created = create(4, BLOCKS).unwrap();
        let (qp, number) = (created.u32(0), created.u32(4));
        let sender = Self { rig, key, memory, cq, buffer, doorbell, next: 0, qp, number };
        sender.start();
        sender
    }

    fn modify(&self, mask: u32, state: u8) {
        let core = receiving::change(self.qp, mask, state);
        self.rig.call(26, &core, &bytes(), (0, 0)).unwrap();
    }

    fn start(&self) {
        self.modify(1 | 1 << 5, INIT);
        self.modify(1, RTR);
        self.modify(1, RTS);
    }

    fn unit(&self, at: u32, unit: &[u8]) {
        let place = self.buffer + u64::from(at % (BLOCKS * 4)) * 16;
        let half = |at: usize| u64::from_be_bytes(unit[at..at + 8].try_into().unwrap());
        put_long(place, half(0));
        put_long(place + 8, half(8));
    }

    /// Writes a request whose control segment names `units`, and rings for `blocks`.
    fn write(&mut self, operation: u8, flags: u8, (units, blocks): (usize, u32), segments: &[Vec<u8>]) {
        let mut control = Unit::default();
        control[1..3].copy_from_slice(&(self.next as u16).to_be_bytes());
        (control[3], control[7], control[11]) = (operation, u8::try_from(units).unwrap(), flags);
        self.unit(self.next * 4, &control);
        for (at, unit) in (self.next * 4 + 1..).zip(segments.concat().chunks(16)) {
            self.unit(at, unit);
        }
        self.next += blocks;
        self.ring(self.next);
    }

    fn ring(&self, index: u32) {
        word(self.doorbell + 4).store((index & 0xffff).to_be(), Ordering::Release);
    }

    fn post(&mut self, operation: u8, is_signaled: bool, segments: &[Vec<u8>]) {
        let units = 1 + segments.concat().len() / 16;
        let size = (units, units.div_ceil(4) as u32);
        self.write(operation, if is_signaled { 8 } else { 0 }, size, segments);
    }

    /// Posts a frame with 18 bytes in the Ethernet segment and the others in memory.
    fn post_frame(&mut self, frame: &[u8], is_signaled: bool) {
        let (headers, rest) = frame.split_at(18);
        self.fill(rest);
        let rest = data(self.key, self.memory, u32::try_from(rest.len()).unwrap());
        self.post(SEND, is_signaled, &[ethernet(0, 0, headers), rest]);
    }

    /// Puts bytes at the beginning of the registered memory.
    fn fill(&self, bytes: &[u8]) {
        for (word, place) in bytes.chunks(8).zip((self.memory..).step_by(8)) {
            let mut whole = [0; 8];
            whole[..word.len()].copy_from_slice(word);
            put_long(place, u64::from_be_bytes(whole));
        }
    }

    fn sent(&self) -> Vec<Vec<u8>> {
        self.rig.deliver([]);
        std::mem::take(&mut *self.rig.outbox.lock().unwrap())
    }

    /// Opcode, counter and syndrome of what was completed.
    fn completed(&mut self) -> Vec<(u8, u16, u8)> {
        self.rig.deliver([]);
        let all = self.cq.poll_all();
        assert!(all.iter().all(|one| one.user_index == USER_INDEX), "{all:?}");
        all.iter().map(|one| (one.opcode, one.counter, one.syndrome)).collect()
    }

    /// After a failure, as libmlx5 does it.
    fn restart(&mut self) {
        self.modify(1, RESET);
        self.next = 0;
        self.ring(0);
        self.start();
    }
}

#[test]
fn a_frame_is_put_together_from_its_segments_and_completed() {
    let mut it = Sender::new();
    let frame = udp(53, 100);
    it.fill(&frame[18..50]);
    let memory = data(it.key, it.memory, 32);
    it.post(SEND, true, &[ethernet(0, 0, &frame[..18]), memory, inline(&frame[50..])]);
    assert_eq!(it.sent(), std::slice::from_ref(&frame));
    let done = it.cq.poll_all();
    assert_eq!((done[0].opcode, done[0].counter, done[0].user_index), (GOOD, 0, USER_INDEX));
    assert_eq!((done.len(), done[0].tag), (1, u32::from(SEND) << 24 | it.number));
    it.post(SEND, false, &[ethernet(0, 0, &[]), inline(&frame)]);
    assert_eq!((it.sent(), it.completed()), (vec![frame], vec![]));
    let query = it.rig.call(25, &bytes().u64(0).u32(it.qp).u32(1), &bytes(), (128, 0)).unwrap();
    assert_eq!((query.u32(68), query.0[108], query.0[122]), (0, RTS, 1));
}

#[test]
fn requests_wrap_around_the_queue_and_counters_turn() {
    let mut it = Sender::new();
    let frame = udp(53, 90);
    let blocks = 3;
    for turn in 0..30_000_u32 {
        it.post(SEND, turn % 2 == 0, &[ethernet(0, 0, &frame[..18]), inline(&frame[18..])]);
        assert_eq!(it.next, (turn + 1) * blocks);
        assert_eq!(it.sent(), std::slice::from_ref(&frame));
        let expected = (turn % 2 == 0).then_some((GOOD, (turn * blocks) as u16, 0));
        assert_eq!(it.completed(), Vec::from_iter(expected));
    }
}

#[test]
fn checksums_are_filled_in_and_streams_cut() {
    let mut it = Sender::new();
    let mut frame = udp(53, 64);
    let expected = frame.clone();
    frame[24..26].fill(0);
    frame[40..42].fill(0);
    it.fill(&frame[18..]);
    let rest = data(it.key, it.memory, u32::try_from(frame.len() - 18).unwrap());
    it.post(SEND, false, &[ethernet(3 << 6, 0, &frame[..18]), rest]);
    let sent = it.sent();
    let is_good = |frame: &Vec<u8>| {
        let parsed = packet::parse(frame);
        (verify_ip(frame, &parsed), verify_l4(frame, &parsed)) == (ChecksumStatus::Good, ChecksumStatus::Good)
    };
    assert!(sent.len() == 1 && is_good(&sent[0]) && sent[0].len() == expected.len());

    let headers = FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [192, 0, 2, 1].into());
    let headers = headers.tcp(1, 2, 0x10).build()[..54].to_vec();
    it.fill(&[7; 1_000]);
    let stream = data(it.key, it.memory, 1_000);
    it.post(SEGMENTS, true, &[ethernet(3 << 6, 400, &headers), stream, inline(&[8; 20])]);
    let sent = it.sent();
    assert!(sent.iter().all(is_good), "{sent:?}");
    assert_eq!(sent.iter().map(Vec::len).collect::<Vec<_>>(), [454, 454, 54 + 220]);
    assert_eq!((sent[2][54], sent[2][54 + 219]), (7, 8));
    let done = it.cq.poll_all();
    assert_eq!(done[0].tag, u32::from(SEGMENTS) << 24 | it.number);
}

#[test]
fn an_error_flushes_what_follows_and_reset_begins_anew() {
    let mut it = Sender::new();
    let frame = udp(53, 20);
    it.post_frame(&frame, false);
    let stranger = data(it.key ^ 0x100, it.memory, 64);
    it.post(SEND, false, &[ethernet(0, 0, &frame[..18]), stranger]);
    it.post_frame(&frame, false);
    assert_eq!(it.sent(), std::slice::from_ref(&frame));
    assert_eq!(it.completed(), [(ERROR, 1, 4), (ERROR, 2, 5)]);
    it.post_frame(&frame, true);
    assert_eq!((it.sent().len(), it.completed()), (0, vec![(ERROR, 3, 5)]));
    it.restart();
    it.post_frame(&frame, true);
    assert_eq!((it.sent(), it.completed()), (vec![frame], vec![(GOOD, 0, 0)]));
}

/// libmlx5 fills the 1024 bytes that the device states (`max_sq_desc_sz`).
#[test]
fn a_request_of_the_greatest_length_is_sent() {
    let mut it = Sender::new();
    let frame = udp(53, 948);
    let segments = [ethernet(0, 0, &frame[..18]), inline(&frame[18..])];
    assert_eq!(segments.concat().len(), 63 * 16);
    it.post(SEND, true, &segments);
    assert_eq!((it.sent(), it.completed()), (vec![frame], vec![(GOOD, 0, 0)]));
}

/// An operation, its size in units and blocks, its segments, and the syndrome.
type Nonsense = (u8, (usize, u32), Vec<Vec<u8>>, u8);

#[test]
fn requests_that_make_no_sense_fail_their_queue_and_send_nothing() {
    const LENGTH: u8 = 1;
    const OPERATION: u8 = 2;
    const PROTECTION: u8 = 4;
    let mut it = Sender::new();
    let (key, memory) = (it.key, it.memory);
    let headers = ethernet(0, 0, &udp(53, 20)[..18]);
    let rest = |bytes| data(key, memory, bytes);
    let control_only = (1, 1);
    let cases: Vec<Nonsense> = vec![
        (SEND, control_only, vec![], OPERATION),
        (SEND, (0, 1), vec![], OPERATION),
        (SEND, (63, 1), vec![headers.clone(), rest(64)], OPERATION),
        (0x10, (4, 1), vec![headers.clone(), rest(64)], OPERATION),
        (SEND, (2, 1), vec![ethernet(0, 0, &[])], LENGTH),
        (SEND, (2, 1), vec![ethernet(0, 0, &[0; 60])], OPERATION),
        (SEND, (2, 1), vec![[&[0_u8; 12][..], &[0xff; 4]].concat()], LENGTH),
        (SEND, (4, 1), vec![headers.clone(), rest(1_600)], LENGTH),
        (SEND, (4, 1), vec![headers.clone(), rest(MEMORY_BYTES as u32 + 1)], PROTECTION),
        (SEND, (4, 1), vec![headers.clone(), rest(0)], PROTECTION),
        (SEND, (4, 1), vec![headers.clone(), data(key, u64::MAX, 64)], PROTECTION),
        (SEND, (4, 1), vec![headers.clone(), vec![0xff; 16]], LENGTH),
        (SEND, (4, 1), vec![headers.clone(), inline(&[0; 200])[..16].to_vec()], OPERATION),
        (SEGMENTS, (2, 1), vec![ethernet(0, 0, &[0; 2])], LENGTH),
        (SEGMENTS, (4, 1), vec![ethernet(0, 100, &[0; 18]), rest(300)], OPERATION),
        (SEGMENTS, (4, 1), vec![ethernet(0, 1, &[0; 18]), rest(8_000)], LENGTH),
        (SEGMENTS, (4, 1), vec![headers.clone(), vec![0xff; 16]], OPERATION),
        (SEGMENTS, (2, 1), vec![[&[0_u8; 12][..], &[0xff; 4]].concat()], OPERATION),
    ];
    for (nth, (operation, size, segments, syndrome)) in cases.iter().enumerate() {
        it.write(*operation, 8, *size, segments);
        assert_eq!((it.sent().len(), it.completed()), (0, vec![(ERROR, 0, *syndrome)]), "case {nth}");
        it.restart();
    }
    it.ring(BLOCKS + 1);
    assert_eq!((it.sent().len(), it.completed()), (0, vec![(ERROR, 0, OPERATION)]));
    it.restart();
    it.post_frame(&udp(53, 20), true);
    assert_eq!((it.sent().len(), it.completed()), (1, vec![(GOOD, 0, 0)]));
}

/// `IBV_QP_RATE_LIMIT`.
const RATE_LIMIT: u32 = 1 << 25;

#[test]
fn a_rate_limits_what_is_sent() {
    let mut sender = Sender::new();
    let limit = |sender: &Sender, rate_kbps: u32, driver: &Bytes| {
        let core = receiving::change(sender.qp, RATE_LIMIT, RTS).u32(rate_kbps).u32(0);
        sender.rig.call(EXTENDED | 26, &core, driver, (8, 0)).map(|answer| answer.u32(4))
    };
    let burst =
        |bytes_of_burst: u32, packet: u16| bytes().u32(0).u32(bytes_of_burst).u16(packet).u16(0).u32(0);
    assert_eq!(limit(&sender, 0, &burst(1, 0)), Err(EINVAL), "a burst without a rate");
    assert_eq!(limit(&sender, 8, &burst(0, 1)).map(|_| ()), Ok(()));
    assert_eq!(limit(&sender, 8, &bytes().u32(1)), Err(EINVAL), "shorter than any release has it");
    assert_eq!(limit(&sender, 8, &bytes().u32(1).u64(0).u32(0)), Err(EOPNOTSUPP));
    assert_eq!(limit(&sender, u32::MAX, &bytes()), Err(EINVAL), "faster than the device");
    let plain = receiving::change(sender.qp, RATE_LIMIT, RTS);
    let refused = sender.rig.call(26, &plain, &bytes(), (0, 0)).map(|_| ());
    assert_eq!(refused, Err(EOPNOTSUPP), "the older command has no rate");

    // A kilobit a second: after the first frame the next one is due in half a second.
    assert_eq!(limit(&sender, 1, &burst(1, 0)), Ok(8));
    let frame = FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).udp(1, 2).build();
    sender.post_frame(&frame, true);
    assert_eq!(sender.sent().len(), 1);
    sender.post_frame(&frame, true);
    assert_eq!(sender.sent().len(), 0, "not due yet");
    assert_eq!(limit(&sender, 0, &bytes()), Ok(8), "no limit any more");
    assert_eq!(sender.sent().len(), 1);
}

//! Commands as a client's bytes, and queues as its memory: what libmlx5 does, and what no libmlx5 would.

mod hostile;
mod receiving;
mod sending;

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::VecDeque;
use std::os::fd::{AsFd as _, FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ibverbs_sys::{IBV_WQS_RDY, ibv_qp_type};
use packet::MacAddr;
use packet::build::FrameBuilder;
use rustix::net::{RecvFlags, recv};
use softnic::{Drive, OwnedNic, Personality, PortConfig, SoftNicConfig};
use wire::{Burst, RxFrame, TransmitError, Wire};

use super::*;

const LOCAL_WRITE: u32 = 1;
const MTU_BYTES: u32 = 1_500;

/// A wire whose other end is the test.
struct TestWire {
    inbox: Arc<Mutex<VecDeque<Vec<u8>>>>,
    current: Vec<Vec<u8>>,
    outbox: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Wire for TestWire {
    fn receive<'w>(&'w mut self, burst: &mut Burst<'w>) {
        let mut inbox = self.inbox.lock().unwrap();
        let count = inbox.len().min(burst.capacity_left());
        self.current = inbox.drain(..count).collect();
        for frame in &self.current {
            assert!(burst.push(RxFrame::new(frame)));
        }
    }

    fn transmit(&mut self, frame: &[u8]) -> Result<(), TransmitError> {
        self.outbox.lock().unwrap().push(frame.to_vec());
        Ok(())
    }

    fn describe(&self) -> String {
        "test".into()
    }

    fn mac(&self) -> MacAddr {
        MacAddr([2, 0, 0, 0, 0, 1])
    }

    fn mtu_bytes(&self) -> u32 {
        MTU_BYTES
    }
}

/// Zeroed memory of a client, in whole pages.
struct Arena {
    start: *mut u8,
    next: usize,
}

impl Arena {
    const LAYOUT: Layout = match Layout::from_size_align(1 << 20, 4_096) {
        Ok(layout) => layout,
        Err(_) => panic!("a power of two"),
    };

    fn new() -> Self {
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(Self::LAYOUT) };
        assert!(!start.is_null());
        Self { start, next: 0 }
    }

    /// The address of so many bytes that are used for nothing else.
    fn take(&mut self, bytes: usize) -> u64 {
        let at = self.next;
        self.next += bytes.next_multiple_of(4_096);
        assert!(self.next <= Self::LAYOUT.size());
        self.start.expose_provenance() as u64 + at as u64
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout; queues in it are gone, since the rig is dropped with
        // its NIC first.
        unsafe { dealloc(self.start, Self::LAYOUT) };
    }
}

fn word(address: u64) -> &'static AtomicU32 {
    let place = std::ptr::with_exposed_provenance_mut::<u32>(usize::try_from(address).unwrap());
    // SAFETY: tests name aligned words of their arena, which both sides use as atomics.
    unsafe { AtomicU32::from_ptr(place) }
}

fn long(address: u64) -> u64 {
    let place = std::ptr::with_exposed_provenance_mut::<u64>(usize::try_from(address).unwrap());
    // SAFETY: as in `word`.
    u64::from_be(unsafe { AtomicU64::from_ptr(place) }.load(Ordering::Acquire))
}

fn put_long(address: u64, value: u64) {
    let place = std::ptr::with_exposed_provenance_mut::<u64>(usize::try_from(address).unwrap());
    // SAFETY: as in `word`.
    unsafe { AtomicU64::from_ptr(place) }.store(value.to_be(), Ordering::Release);
}

/// Fields of a structure, to be laid out one after the other.
#[derive(Clone, Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }
}

fn bytes() -> Bytes {
    Bytes::default()
}

/// The answer to a command: the core's response and the driver's.
struct Answer(Vec<u8>, Vec<u8>);

impl Answer {
    fn u32(&self, at: usize) -> u32 {
        Block(&self.0).u32(at)
    }
}

/// A NIC, a context of it and the client's memory.
struct Rig {
    nic: OwnedNic,
    context: Context,
    asynchronous: OwnedFd,
    inbox: Arc<Mutex<VecDeque<Vec<u8>>>>,
    outbox: Arc<Mutex<Vec<Vec<u8>>>>,
    arena: Arena,
}

impl Rig {
    fn new() -> Self {
        let (inbox, outbox) = (Arc::default(), Arc::default());
        let wire = TestWire { inbox: Arc::clone(&inbox), current: Vec::new(), outbox: Arc::clone(&outbox) };
        let nic = OwnedNic::create(SoftNicConfig {
            name: "mlx5_0".into(),
            personality: Personality::Mlx5,
            ports: vec![PortConfig { wire: Box::new(wire), mtu_bytes: MTU_BYTES }],
            drive: Drive::Manual,
        })
        .unwrap();
        let context = Context::new(Arc::clone(nic.nic()));
        let asynchronous = open(&context);
        Self { nic, context, asynchronous, inbox, outbox, arena: Arena::new() }
    }

    fn call(&self, number: u32, core: &Bytes, driver: &Bytes, room: (usize, usize)) -> Verb<Answer> {
        call(&self.context, number, core, driver, room)
    }

    fn deliver(&self, frames: impl IntoIterator<Item = Vec<u8>>) {
        self.inbox.lock().unwrap().extend(frames);
        while self.nic.pump(64) > 0 {}
    }

    fn domain(&self) -> u32 {
        self.call(3, &bytes().u64(0), &bytes(), (4, 4)).unwrap().u32(0)
    }

    fn register(&self, domain: u32, start: u64, length: u64) -> u32 {
        let core = bytes().u64(0).u64(start).u64(length).u64(start).u32(domain).u32(LOCAL_WRITE);
        self.call(9, &core, &bytes(), (12, 0)).unwrap().u32(4)
    }

    fn completion_queue(&mut self, entries: u32, channel: i32) -> Completions {
        self.named_queue(entries, channel, CQ_TOKEN)
    }

    /// A completion queue that events name by `token`.
    fn named_queue(&mut self, entries: u32, channel: i32, token: u64) -> Completions {
        let size = (entries + 1).next_power_of_two();
        let queue = Completions {
            buffer: self.arena.take(size as usize * 64),
            doorbell: self.arena.take(8),
            size,
            next: 0,
            handle: 0,
        };
        queue.clear();
        let core = bytes().u64(0).u64(token).u32(entries).u32(0).u32(channel.cast_unsigned()).u32(0);
        let answer = self.call(18, &core, &queue.driver(), (8, 8)).unwrap();
        assert_eq!(answer.u32(4), size - 1);
        Completions { handle: answer.u32(0), ..queue }
    }

    fn work_queue(&mut self, domain: u32, cq: u32, requests: u32) -> WorkQueue {
        let mut queue = WorkQueue {
            buffer: self.arena.take(requests as usize * 32),
            doorbell: self.arena.take(8),
            requests,
            next: 0,
            handle: 0,
        };
        queue.handle = self.create_work_queue(&queue, domain, cq).unwrap();
        self.modify(queue.handle, IBV_WQS_RDY).unwrap();
        queue
    }

    fn create_work_queue(&self, queue: &WorkQueue, domain: u32, cq: u32) -> Verb<u32> {
        let core = bytes().u32(0).u32(0).u64(WQ_TOKEN).u32(domain).u32(cq).u32(queue.requests).u32(2).u64(0);
        self.call(EXTENDED | 52, &core, &queue.driver(), (24, 8)).map(|answer| answer.u32(8))
    }

    fn modify(&self, queue: u32, state: u32) -> Verb<()> {
        let core = bytes().u32(1).u32(queue).u32(state).u32(0).u32(0).u32(0);
        self.call(EXTENDED | 53, &core, &bytes().u64(0), (0, 0)).map(|_| ())
    }

    /// A queue pair over one queue.
    fn queue_pair(&self, domain: u32, queue: u32) -> u32 {
        let core = bytes().u32(0).u32(0).u32(queue).u32(0);
        let table = self.call(EXTENDED | 55, &core, &bytes(), (16, 8)).unwrap().u32(8);
        self.call(EXTENDED | 24, &rss_core(domain, table), &rss_driver(0), (40, 40)).unwrap().u32(0)
    }

    /// A flow for UDP to a port over IPv4, with a tag.
    fn flow(&self, qp: u32, dst_port: u16, tag: u32) -> Verb<u32> {
        let specs = [spec_ipv4(), spec_udp(dst_port), spec_number(0x1000, tag)];
        let core = flow(qp, &specs);
        self.call(EXTENDED | 50, &core, &bytes().u64(0), (8, 0)).map(|answer| answer.u32(4))
    }

    /// The type and the element of the next asynchronous event.
    fn event(&self) -> Option<(u32, u64)> {
        let mut record = [0; 16];
        let (read, _) = recv(self.asynchronous.as_fd(), &mut record, RecvFlags::DONTWAIT).ok()?;
        (read == 16).then(|| (Block(&record).u32(8), Block(&record).u64(0)))
    }
}

/// The token by which events name the queues.
const CQ_TOKEN: u64 = 0xc0;
const WQ_TOKEN: u64 = 0x30;
/// The number by which completions name a work queue.
const USER_INDEX: u32 = 0x1234;

fn open(context: &Context) -> OwnedFd {
    let driver = bytes().u32(16).u32(4).u32(0).u32(0).u8(1).u8(0).u16(0).u32(0).u64(3);
    let answer = call(context, 0, &bytes().u64(0), &driver, (8, 72)).unwrap();
    assert_eq!(Block(&answer.1).u32(8), 0, "doorbell pages on demand");
    // SAFETY: the descriptor that the command made for its caller.
    unsafe { OwnedFd::from_raw_fd(answer.u32(0).cast_signed()) }
}

fn call(context: &Context, number: u32, core: &Bytes, driver: &Bytes, room: (usize, usize)) -> Verb<Answer> {
    let mut call = Call {
        core: Block(&core.0),
        driver: Block(&driver.0),
        reply: Reply::of(room.0),
        driver_reply: Reply::of(room.1),
    };
    carry_out(context, number, &mut call)?;
    Ok(Answer(call.reply.0, call.driver_reply.0))
}

/// The completion events of a channel, as the tokens of their queues.
fn events(channel: &OwnedFd) -> usize {
    let mut count = 0;
    let mut record = [0; 8];
    while matches!(recv(channel.as_fd(), &mut record, RecvFlags::DONTWAIT), Ok((8, _))) {
        assert_eq!(record, CQ_TOKEN.to_ne_bytes());
        count += 1;
    }
    count
}

fn channel(rig: &Rig) -> (OwnedFd, i32) {
    let descriptor = rig.call(17, &bytes().u64(0), &bytes(), (4, 0)).unwrap().u32(0).cast_signed();
    // SAFETY: the descriptor that the command made for its caller.
    (unsafe { OwnedFd::from_raw_fd(descriptor) }, descriptor)
}

fn rss_core(domain: u32, table: u32) -> Bytes {
    let raw = u8::try_from(ibv_qp_type::IBV_QPT_RAW_PACKET).unwrap();
    let mut core = bytes().u64(0).u32(domain);
    core.0.resize(44, 0);
    core = core.u8(0).u8(raw).u8(0).u8(0).u32(1).u32(0).u32(table).u32(0);
    assert_eq!(core.0.len(), 64);
    core
}

fn rss_driver(fields: u64) -> Bytes {
    let mut driver = bytes().u64(fields).u8(1).u8(40);
    driver.0.resize(16, 0);
    driver.0.extend(packet::RssKey::MICROSOFT.0);
    driver.0.resize(152, 0);
    driver
}

fn flow(qp: u32, specs: &[Bytes]) -> Bytes {
    let size: usize = specs.iter().map(|spec| spec.0.len()).sum();
    let (size, count) = (u16::try_from(size).unwrap(), u8::try_from(specs.len()).unwrap());
    let mut core = bytes().u32(0).u32(qp).u32(0).u16(size).u16(0).u8(count).u16(0).u8(1).u32(0);
    specs.iter().for_each(|spec| core.0.extend(&spec.0));
    core
}

fn spec_ipv4() -> Bytes {
    let mut spec = bytes().u32(0x30).u16(32).u16(0);
    spec.0.resize(32, 0);
    spec
}

fn spec_udp(dst_port: u16) -> Bytes {
    bytes().u32(0x41).u16(16).u16(0).u16(dst_port.to_be()).u16(0).u16(u16::MAX).u16(0)
}

fn spec_number(kind: u32, number: u32) -> Bytes {
    bytes().u32(kind).u16(16).u16(0).u32(number).u32(0)
}

fn udp(dst_port: u16, payload: usize) -> Vec<u8> {
    let (from, to) = ([10, 0, 0, 1].into(), [192, 0, 2, 1].into());
    FrameBuilder::new().ipv4(from, to).udp(1_024, dst_port).payload(&vec![0x5a; payload]).build()
}

/// A completion queue of 64-byte completions as its client has it.
#[derive(Clone, Copy)]
struct Completions {
    buffer: u64,
    doorbell: u64,
    size: u32,
    next: u32,
    handle: u32,
}

/// A completion, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Completed {
    opcode: u8,
    user_index: u32,
    counter: u16,
    bytes: u32,
    tag: u32,
    syndrome: u8,
    checksums: u8,
    vlan: u16,
}

impl Completions {
    /// Clears the queue as libmlx5 does: no completion is valid.
    fn clear(&self) {
        (0..u64::from(self.size)).for_each(|index| put_long(self.buffer + index * 64 + 56, 0xf0));
    }

    fn driver(&self) -> Bytes {
        bytes().u64(self.buffer).u64(self.doorbell).u32(64).u32(0).u16(0).u16(0).u32(0)
    }

    /// The next completion that belongs to the client, as libmlx5 finds it.
    fn poll(&mut self) -> Option<Completed> {
        let at = self.buffer + u64::from(self.next & (self.size - 1)) * 64;
        let last = long(at + 56);
        let (opcode, owner) = ((last as u8) >> 4, last as u8 & 1);
        if opcode == 0xf || owner != u8::from(self.next & self.size != 0) {
            return None;
        }
        self.next += 1;
        Some(Completed {
            opcode,
            user_index: (long(at + 32) >> 32) as u32,
            counter: (last >> 16) as u16,
            bytes: long(at + 40) as u32,
            tag: (last >> 32) as u32,
            syndrome: if matches!(opcode, 13 | 14) { long(at + 48) as u8 } else { 0 },
            checksums: (long(at + 24) >> 24) as u8,
            vlan: long(at + 24) as u16,
        })
    }

    fn poll_all(&mut self) -> Vec<Completed> {
        let all = std::iter::from_fn(|| self.poll()).collect();
        word(self.doorbell).store((self.next & 0x00ff_ffff).to_be(), Ordering::Release);
        all
    }

    fn arm(&self, solicited_only: bool) {
        let command = if solicited_only { 1 << 24 } else { 0 };
        word(self.doorbell + 4).store((command | self.next & 0x00ff_ffff).to_be(), Ordering::Release);
    }
}

/// A work queue of requests with two entries as its client has it.
#[derive(Clone, Copy)]
struct WorkQueue {
    buffer: u64,
    doorbell: u64,
    requests: u32,
    next: u32,
    handle: u32,
}

impl WorkQueue {
    fn driver(&self) -> Bytes {
        let places = bytes().u64(self.buffer).u64(self.doorbell);
        places.u32(self.requests).u32(5).u32(USER_INDEX).u32(0).u32(0).u32(0).u32(0).u32(0)
    }

    /// Posts a request with these entries: key, address and length.
    fn post(&mut self, entries: &[(u32, u64, u32)]) {
        let at = self.buffer + u64::from(self.next & (self.requests - 1)) * 32;
        let end = [(0x100, 0, 0)];
        for (index, (key, address, bytes)) in entries.iter().chain(&end).take(2).enumerate() {
            put_long(at + index as u64 * 16, u64::from(*bytes) << 32 | u64::from(*key));
            put_long(at + index as u64 * 16 + 8, *address);
        }
        self.next += 1;
        self.ring();
    }

    fn ring(&self) {
        word(self.doorbell).store((self.next & 0xffff).to_be(), Ordering::Release);
    }
}

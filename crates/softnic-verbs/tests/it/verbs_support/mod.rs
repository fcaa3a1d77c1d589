//! What the verbs conformance tests share: a soft NIC on wires that a test writes to and reads from, and a
//! receiver with a pool, a completion queue and a work queue of its own.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod arena;

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex};

pub(crate) use arena::ArenaDomain;
use packet::MacAddr;
use packet::build::FrameBuilder;
use softnic::{Drive, Personality, PortConfig, PortStats, SoftNicConfig};
use softnic_verbs::SoftNic;
use verbs::{
    Access, ActionSpec, CompletionFields, CompletionQueue, CompletionStatus, Context, DeviceList, Domain,
    FlowAttr, FlowKind, FlowSpec, FlowTag, FlowTarget, Frame, FramePool, HashConfig, HashFields,
    IndirectionTable, Ipv4ExtMatch, MemoryRegion, Opcode, PortMatch, PortNumber, ProtectionDomain,
    ReceiveQueue, RssQueuePair, WorkQueue,
};
use wire::{Burst, RxFrame, TransmitError, Wire};

pub(crate) const PORT: PortNumber = PortNumber(1);
pub(crate) const FRAME_BYTES: u32 = 2048;
pub(crate) const KEY: [u8; 40] = packet::RssKey::MICROSOFT.0;

type Frames<F> = Arc<Mutex<F>>;

/// A wire whose other end is the test.
struct TestWire {
    inbox: Frames<VecDeque<Vec<u8>>>,
    current: Vec<Vec<u8>>,
    sent: Frames<Vec<Vec<u8>>>,
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
        self.sent.lock().unwrap().push(frame.to_vec());
        Ok(())
    }

    fn describe(&self) -> String {
        "test".into()
    }

    fn mac(&self) -> MacAddr {
        MacAddr([2, 0, 0, 0, 0, 1])
    }

    fn mtu_bytes(&self) -> u32 {
        1500
    }
}

/// A soft NIC with one port, opened.
pub(crate) struct Rig {
    pub(crate) nic: SoftNic,
    pub(crate) context: Arc<Context>,
    pub(crate) pd: Arc<ProtectionDomain>,
    inbox: Frames<VecDeque<Vec<u8>>>,
    sent: Frames<Vec<Vec<u8>>>,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with_personality(Personality::Ideal)
    }

    pub(crate) fn with_personality(personality: Personality) -> Self {
        let (inbox, sent) = (Frames::default(), Frames::default());
        let wire = TestWire { inbox: Arc::clone(&inbox), current: Vec::new(), sent: Arc::clone(&sent) };
        let nic = SoftNic::create(SoftNicConfig {
            name: "softnic0".into(),
            personality,
            ports: vec![PortConfig { wire: Box::new(wire), mtu_bytes: 1500 }],
            drive: Drive::Manual,
        })
        .unwrap();
        let list = DeviceList::of(&nic).unwrap();
        let context = list.find("softnic0").unwrap().open().unwrap();
        let pd = ProtectionDomain::new(&context).unwrap();
        Self { nic, context, pd, inbox, sent }
    }

    pub(crate) fn domain(&self) -> Domain {
        Domain::from(&self.pd)
    }

    /// Puts a frame on the wire, towards the device.
    pub(crate) fn inject(&self, frame: Vec<u8>) {
        self.inbox.lock().unwrap().push_back(frame);
    }

    /// Runs the engine until nothing moves.
    pub(crate) fn pump(&self) {
        while self.nic.pump(64) > 0 {}
    }

    /// Injects and pumps.
    pub(crate) fn deliver(&self, frames: impl IntoIterator<Item = Vec<u8>>) {
        frames.into_iter().for_each(|frame| self.inject(frame));
        self.pump();
    }

    /// The frames that the device has sent since the last call.
    pub(crate) fn sent(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.sent.lock().unwrap())
    }

    pub(crate) fn stats(&self) -> PortStats {
        let stats = self.nic.port_stats(PORT.0);
        assert_eq!(stats.rx_frames, stats.dispositions(), "every frame has one fate: {stats:?}");
        stats
    }

    pub(crate) fn pool(&self, frames: usize) -> FramePool {
        pool(&self.domain(), frames, FRAME_BYTES)
    }
}

pub(crate) fn pool(domain: &Domain, frames: usize, frame_bytes: u32) -> FramePool {
    let memory = vec![0u8; frames * frame_bytes as usize];
    FramePool::new(MemoryRegion::register(domain, memory, Access::LOCAL_WRITE).unwrap(), frame_bytes).unwrap()
}

pub(crate) fn all_fields() -> CompletionFields {
    CompletionFields::RAW_PACKET
}

/// A packet as a receiver saw it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) bytes: Vec<u8>,
    pub(crate) tag: u32,
}

/// A completion queue, a work queue in RDY and a pool whose frames are all posted, as far as they fit.
pub(crate) struct Receiver {
    pub(crate) cq: CompletionQueue,
    pub(crate) queue: Arc<WorkQueue>,
    pub(crate) receives: ReceiveQueue,
    pub(crate) pool: FramePool,
    pub(crate) spare: Vec<Frame>,
}

impl Receiver {
    pub(crate) fn new(domain: &Domain, frames: u32) -> Self {
        let fields = CompletionFields::BYTE_LEN | CompletionFields::FLOW_TAG;
        let cq = CompletionQueue::builder(domain.context(), 256).fields(fields);
        let cq = match domain {
            Domain::Parent(parent) => cq.domain(parent),
            Domain::Protection(_) => cq,
        };
        Self::with_cq(domain, cq.build().unwrap(), frames)
    }

    pub(crate) fn with_cq(domain: &Domain, cq: CompletionQueue, frames: u32) -> Self {
        let (queue, receives) =
            WorkQueue::builder(domain, &cq.handle()).max_receives(frames).build().unwrap();
        queue.ready().unwrap();
        let pool = pool(domain, frames as usize, FRAME_BYTES);
        let mut receiver = Self { cq, queue, receives, pool, spare: Vec::new() };
        receiver.fill();
        receiver
    }

    /// Posts every frame that is free.
    pub(crate) fn fill(&mut self) {
        while let Some(frame) = self.pool.take() {
            self.spare.push(frame);
        }
        self.receives.post(&mut self.pool, &mut self.spare);
    }

    /// Everything received since the last call; the frames are posted again.
    pub(crate) fn drain(&mut self) -> Vec<Received> {
        let mut packets = Vec::new();
        while let Some(mut batch) = self.cq.poll() {
            while let Some(completion) = batch.next() {
                assert_eq!(
                    (completion.status(), completion.opcode()),
                    (CompletionStatus::Success, Opcode::Receive)
                );
                let len = completion.byte_len().expect("asked for") as usize;
                let tag = completion.flow_tag().expect("asked for").0;
                let frame = self.pool.reclaim(completion).expect("a posted frame");
                packets.push(Received { bytes: self.pool.bytes(&frame)[..len].to_vec(), tag });
                self.pool.release(frame);
            }
        }
        self.fill();
        packets
    }
}

pub(crate) fn table(receivers: &[&Arc<WorkQueue>]) -> Arc<IndirectionTable> {
    let context = Arc::clone(receivers[0].domain().context());
    let queues: Vec<_> = receivers.iter().map(|queue| Arc::clone(queue)).collect();
    IndirectionTable::new(&context, &queues).unwrap()
}

/// An RSS queue pair without a hash: everything to the table's only entry.
pub(crate) fn single(domain: &Domain, queue: &Arc<WorkQueue>) -> FlowTarget {
    let hash = HashConfig { key: KEY, fields: HashFields::empty() };
    FlowTarget::Rss(RssQueuePair::new(domain, &table(&[queue]), &hash).unwrap())
}

/// Whether the context's descriptor announces an event.
pub(crate) fn readable(context: &Context) -> bool {
    let mut poll = libc::pollfd { fd: context.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, and no waiting.
    let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
    assert!(ready >= 0 && poll.revents & libc::POLLNVAL == 0, "a descriptor that can be asked");
    ready == 1
}

pub(crate) fn v4(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, last)
}

pub(crate) fn udp(src_port: u16, dst_port: u16) -> Vec<u8> {
    FrameBuilder::new()
        .ipv4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(192, 0, 2, 1))
        .udp(src_port, dst_port)
        .payload(&[0x5a; 40])
        .build()
}

/// A flow that takes every IPv4 packet.
pub(crate) fn ipv4_flow() -> FlowAttr {
    let none = Ipv4ExtMatch::default();
    FlowAttr::new(FlowKind::Normal, PORT).spec(FlowSpec::Ipv4Ext { value: none, mask: none })
}

/// A flow that takes UDP to one port and tags it.
pub(crate) fn udp_flow(dst_port: u16, tag: u32) -> FlowAttr {
    ipv4_flow()
        .spec(FlowSpec::Udp {
            value: PortMatch { src_port: 0, dst_port },
            mask: PortMatch { src_port: 0, dst_port: u16::MAX },
        })
        .action(ActionSpec::Tag(FlowTag(tag)))
}

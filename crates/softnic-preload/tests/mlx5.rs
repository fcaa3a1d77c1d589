//! The unmodified libibverbs and libmlx5 over the model of a ConnectX: a client that receives the generator's frames.
//!
//! Each test runs itself again as the command of `softnic exec --method mlx5`, and what follows [`is_client`] is that
//! command.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use verbs::{
    Access, ActionSpec, CompletionFields, CompletionQueue, Context, DeviceList, Domain, Flow, FlowAttr,
    FlowKind, FlowSpec, FlowTag, FlowTarget, FramePool, HashConfig, HashFields, IndirectionTable,
    Ipv4ExtMatch, MemoryRegion, Opcode, PortMatch, PortNumber, ProtectionDomain, ReceiveQueue, RssQueuePair,
    Status, WorkQueue,
};

const PORT: PortNumber = PortNumber(1);
const FRAME_BYTES: u32 = 2048;
const PATIENCE: Duration = Duration::from_secs(30);
/// The method's variable, which the launcher sets.
const METHOD: &str = softnic::preload::variable::METHOD;

/// Two kinds of packets, in equal parts, with lengths of their own.
const WIRE: &str = r#"{ kind = "generator", seed = 1, rate = 50000, flows = [
  { name = "dns", share = 1, protocol = "udp", dst_ports = "53", frame_bytes = 100, count = 16 },
  { name = "web", share = 1, protocol = "udp", dst_ports = "80", frame_bytes = 300, count = 16 }] }"#;

/// Whether this process is the client of a test; if not, it runs the client and expects it to succeed.
fn is_client(test: &str, wire: &str) -> bool {
    if std::env::var_os(METHOD).is_some_and(|method| method == "mlx5") {
        return true;
    }
    let output = Command::new(env!("CARGO_BIN_EXE_softnic"))
        .args(["exec", "--method", "mlx5", "--mtu", "1500", "--wire", wire, "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{:?}\n{out}\n{err}", output.status);
    assert!(out.contains("1 passed"), "the client ran\n{out}\n{err}");
    false
}

/// The device, opened, with a domain.
struct Rig {
    context: Arc<Context>,
    domain: Domain,
}

impl Rig {
    fn new() -> Self {
        let list = DeviceList::system().unwrap();
        let context = list.find("mlx5_0").unwrap().open().unwrap();
        let domain = Domain::from(&ProtectionDomain::new(&context).unwrap());
        Self { context, domain }
    }

    fn queue(&self, entries: u32, requests: u32) -> Receiver {
        let fields = CompletionFields::BYTE_LEN
            | CompletionFields::FLOW_TAG
            | CompletionFields::COMPLETION_TIMESTAMP
            | CompletionFields::CVLAN;
        let cq = CompletionQueue::builder(&self.context, entries).fields(fields).build().unwrap();
        Receiver::new(&self.domain, cq, requests)
    }
}

/// A completion queue, a work queue and frames that are posted to it.
struct Receiver {
    cq: CompletionQueue,
    queue: Arc<WorkQueue>,
    receives: ReceiveQueue,
    pool: FramePool,
}

/// What was received.
#[derive(Debug, PartialEq, Eq)]
struct Packet {
    tag: u32,
    bytes: Vec<u8>,
    ticks: u64,
}

impl Receiver {
    fn new(domain: &Domain, cq: CompletionQueue, requests: u32) -> Self {
        let (queue, receives) =
            WorkQueue::builder(domain, &cq.handle()).max_receives(requests).build().unwrap();
        queue.ready().unwrap();
        let memory = vec![0u8; requests as usize * FRAME_BYTES as usize];
        let region = MemoryRegion::register(domain, memory, Access::LOCAL_WRITE).unwrap();
        let pool = FramePool::new(region, FRAME_BYTES).unwrap();
        let mut receiver = Self { cq, queue, receives, pool };
        receiver.fill();
        receiver
    }

    fn fill(&mut self) {
        let mut spare = Vec::new();
        while let Some(frame) = self.pool.take() {
            spare.push(frame);
        }
        self.receives.post(&mut self.pool, &mut spare);
        for frame in spare {
            self.pool.release(frame);
        }
    }

    /// At least `count` packets.
    fn receive(&mut self, count: usize) -> Vec<Packet> {
        let (mut packets, begun) = (Vec::new(), Instant::now());
        while packets.len() < count {
            assert!(begun.elapsed() < PATIENCE, "{} of {count} packets", packets.len());
            while let Some(mut batch) = self.cq.poll() {
                while let Some(completion) = batch.next() {
                    assert_eq!(
                        (completion.status(), completion.opcode()),
                        (Status::Success, Opcode::Receive)
                    );
                    let bytes = completion.byte_len().unwrap() as usize;
                    let tag = completion.flow_tag().unwrap().0;
                    let ticks = completion.timestamp().unwrap();
                    let frame = self.pool.reclaim(completion).unwrap();
                    packets.push(Packet { tag, bytes: self.pool.bytes(&frame)[..bytes].to_vec(), ticks });
                    self.pool.release(frame);
                }
            }
            self.fill();
        }
        packets
    }
}

fn target(domain: &Domain, queues: &[&Arc<WorkQueue>], fields: HashFields) -> FlowTarget {
    let queues: Vec<_> = queues.iter().map(|queue| Arc::clone(queue)).collect();
    let table = IndirectionTable::new(domain.context(), &queues).unwrap();
    let hash = HashConfig { key: packet::RssKey::MICROSOFT.0, fields };
    FlowTarget::Rss(RssQueuePair::new(domain, &table, &hash).unwrap())
}

/// Takes UDP packets to a port and tags them.
fn udp_flow(dst_port: u16, tag: u32) -> FlowAttr {
    let any = Ipv4ExtMatch::default();
    FlowAttr::new(FlowKind::Normal, PORT)
        .spec(FlowSpec::Ipv4Ext { value: any, mask: any })
        .spec(FlowSpec::Udp {
            value: PortMatch { src_port: 0, dst_port },
            mask: PortMatch { src_port: 0, dst_port: u16::MAX },
        })
        .action(ActionSpec::Tag(FlowTag(tag)))
}

/// The destination port of an untagged IPv4 packet without options.
fn dst_port(bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[36], bytes[37]])
}

#[test]
fn frames_arrive_with_their_tags_and_lengths() {
    if !is_client("frames_arrive_with_their_tags_and_lengths", WIRE) {
        return;
    }
    let rig = Rig::new();
    let mut receiver = rig.queue(255, 256);
    let target = target(&rig.domain, &[&receiver.queue], HashFields::empty());
    let flows =
        [(53, 7), (80, 0x00ab_cdef)].map(|(port, tag)| Flow::create(&target, &udp_flow(port, tag)).unwrap());
    // More than the 16-bit counter of requests, and many turns of the completion queue.
    let packets = receiver.receive(70_000);
    for packet in &packets {
        let expected = match dst_port(&packet.bytes) {
            53 => (7, 100),
            80 => (0x00ab_cdef, 300),
            other => panic!("a packet to port {other}"),
        };
        assert_eq!((packet.tag, packet.bytes.len()), expected);
    }
    assert!(packets.windows(2).all(|pair| pair[0].ticks <= pair[1].ticks), "the clock goes forwards");
    assert!(packets.iter().any(|packet| packet.tag == 7) && packets.iter().any(|packet| packet.tag != 7));
    drop(flows);
}

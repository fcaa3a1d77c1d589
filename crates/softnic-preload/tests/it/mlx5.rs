//! The unmodified libibverbs and libmlx5 over the model of a ConnectX: a client that receives the generator's
//! frames.
//!
//! Each test runs itself again as a client, see [`support`].
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::{self, is_client, is_client_with, is_installed};
use verbs::{
    Access, ActionSpec, Allocation, AllocationRequest, CompletionChannel, CompletionFields, CompletionQueue,
    CompletionStatus, Context, CounterPoint, Counters, DeviceList, Domain, DomainAllocator, FlowAttr,
    FlowHandle, FlowKind, FlowSpec, FlowTag, FlowTarget, FramePool, HashConfig, HashFields, IndirectionTable,
    Ipv4ExtMatch, MemoryRegion, Opcode, ParentDomain, PortMatch, PortNumber, ProtectionDomain, RawQueuePair,
    ReceiveQueue, RssQueuePair, SendFlags, SendOperations, WorkQueue,
};

pub(crate) const PORT: PortNumber = PortNumber(1);
pub(crate) const FRAME_BYTES: u32 = 2048;
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Two kinds of packets, in equal parts, with lengths of their own.
pub(crate) const WIRE: &str = r#"{ kind = "generator", seed = 1, rate = 50000, flows = [
  { name = "dns", share = 1, protocol = "udp", dst_ports = "53", frame_bytes = 100, count = 16 },
  { name = "web", share = 1, protocol = "udp", dst_ports = "80", frame_bytes = 300, count = 16 }] }"#;

/// The device, opened, with a domain.
pub(crate) struct Rig {
    pub(crate) context: Arc<Context>,
    pub(crate) domain: Domain,
}

impl Rig {
    pub(crate) fn new() -> Self {
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

/// A received packet.
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
                        (CompletionStatus::Success, Opcode::Receive)
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

pub(crate) fn target(domain: &Domain, queues: &[&Arc<WorkQueue>], fields: HashFields) -> FlowTarget {
    let queues: Vec<_> = queues.iter().map(|queue| Arc::clone(queue)).collect();
    let table = IndirectionTable::new(domain.context(), &queues).unwrap();
    let hash = HashConfig { key: packet::RssKey::MICROSOFT.0, fields };
    FlowTarget::Rss(RssQueuePair::new(domain, &table, &hash).unwrap())
}

/// Takes UDP packets to a port and tags them.
pub(crate) fn udp_flow(dst_port: u16, tag: u32) -> FlowAttr {
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
pub(crate) fn dst_port(bytes: &[u8]) -> u16 {
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
    let flows = [(53, 7), (80, 0x00ab_cdef)]
        .map(|(port, tag)| FlowHandle::create(&target, &udp_flow(port, tag)).unwrap());
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

#[test]
fn stock_tools_find_the_device_and_nothing_is_left_behind() {
    if !is_installed("stock tools find the device") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let softnic = |tool: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_softnic"));
        command.args(["exec", "--method", "mlx5", "--name", "mlx5_7", "--"]).args(tool);
        let output = command.env("TMPDIR", scratch.path()).output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{tool:?}: {out}{err}");
        out.into_owned()
    };
    let devices = softnic(&["ibv_devices"]);
    assert!(devices.lines().any(|line| line.trim().starts_with("mlx5_7 ")), "{devices}");
    let info = softnic(&["ibv_devinfo", "-v"]);
    for line in [
        "vendor_id:\t\t\t0x02c9",
        "vendor_part_id:\t\t\t4119",
        "PORT_ACTIVE (4)",
        "fe80::",
        "link_layer:\t\tEthernet",
    ] {
        assert!(info.contains(line), "{line} is missing in\n{info}");
    }
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0, "temporary files");
    let namespace = std::fs::read_link("/proc/self/ns/mnt").unwrap();
    let inside = softnic(&["readlink", "/proc/self/ns/mnt"]);
    assert_eq!(inside.trim_end(), namespace.to_str().unwrap(), "mounts of its own");
}

/// The file of this process's libibverbs (proc(5)).
fn library_file() -> std::path::PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let file = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    file.filter(|file| file.contains("/libibverbs.so.")).map(Into::into).next().unwrap()
}

/// The release is in the name of the library's file. This provider needs the library's private layout,
/// libmlx5 does not.
#[test]
fn releases_of_an_unknown_layout_serve_this_method_alone() {
    if !is_installed("releases of an unknown layout serve this method alone") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("libibverbs.so.1.99.999.0");
    std::fs::copy(library_file(), &file).unwrap();
    std::os::unix::fs::symlink(&file, folder.path().join("libibverbs.so.1")).unwrap();
    let devices = |method: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_softnic"));
        command.args(["exec", "--method", method, "--", "ibv_devinfo"]);
        let output = command.env("LD_LIBRARY_PATH", folder.path()).output().unwrap();
        (output.status.success(), format!("{output:?}"))
    };
    let (refused, said) = devices("preload");
    assert!(!refused && said.contains("libibverbs.so.1.99.999.0 is not known"), "{said}");
    let (works, said) = devices("mlx5");
    assert!(works && said.contains("PORT_ACTIVE") && !said.contains("not known"), "{said}");
}

#[test]
fn settings_of_other_devices_are_refused() {
    if !is_installed("settings of other devices are refused") {
        return;
    }
    let exec = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_softnic"));
        let output = command.args(["exec", "--method", "mlx5"]).args(arguments).args(["--", "true"]).output();
        let output = output.unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (ran, message) = exec(&["--personality", "mlx4"]);
    assert!(!ran && message.contains("personality mlx5, not mlx4"), "{message}");
    assert!(exec(&["--personality", "mlx5"]).0);
}

#[test]
fn rss_spreads_and_every_queue_has_its_own_tags() {
    if !is_client("rss_spreads_and_every_queue_has_its_own_tags", WIRE) {
        return;
    }
    let rig = Rig::new();
    let mut receivers = [rig.queue(511, 256), rig.queue(511, 256)];
    let fields =
        HashFields::SRC_IPV4 | HashFields::DST_IPV4 | HashFields::SRC_PORT_UDP | HashFields::DST_PORT_UDP;
    let target = target(&rig.domain, &[&receivers[0].queue, &receivers[1].queue], fields);
    let _flow = FlowHandle::create(&target, &udp_flow(53, 5)).unwrap();
    for receiver in &mut receivers {
        for packet in receiver.receive(1_000) {
            assert_eq!((packet.tag, packet.bytes.len(), dst_port(&packet.bytes)), (5, 100, 53));
        }
    }
}

#[test]
fn a_raw_queue_pair_receives_with_verified_checksums() {
    if !is_client("a_raw_queue_pair_receives_with_verified_checksums", WIRE) {
        return;
    }
    let rig = Rig::new();
    let fields = CompletionFields::BYTE_LEN | CompletionFields::FLOW_TAG;
    let mut cq = CompletionQueue::builder(&rig.context, 255).fields(fields).build().unwrap();
    let completions = cq.handle();
    let builder = RawQueuePair::builder(&rig.domain, &completions, &completions);
    let mut pair = builder.max_sends(0).max_receives(64).build().unwrap().to_rts(PORT).unwrap();
    let region = MemoryRegion::register(&rig.domain, vec![0u8; 64 * 2048], Access::LOCAL_WRITE).unwrap();
    let mut pool = FramePool::new(region, FRAME_BYTES).unwrap();
    let _flow = FlowHandle::create(&FlowTarget::Raw(pair.handle()), &udp_flow(53, 9)).unwrap();
    let (mut received, begun) = (0, Instant::now());
    while received < 1_000 {
        assert!(begun.elapsed() < PATIENCE, "{received} packets");
        let mut spare: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        pair.post_receives(&mut pool, &mut spare);
        spare.into_iter().for_each(|frame| pool.release(frame));
        while let Some(mut batch) = cq.poll() {
            while let Some(completion) = batch.next() {
                assert_eq!(completion.status(), CompletionStatus::Success);
                assert_eq!((completion.flow_tag().unwrap().0, completion.byte_len()), (9, Some(100)));
                assert_eq!(completion.checksum_ok(), Some(true));
                received += 1;
                let frame = pool.reclaim(completion).unwrap();
                pool.release(frame);
            }
        }
    }
}

/// More than the queue's 16-bit counter of blocks: each request takes two.
#[test]
fn batches_are_sent_and_completed_in_order() {
    const BATCHES: u32 = 5_000;
    const REQUESTS: u32 = 8;
    if !is_client("batches_are_sent_and_completed_in_order", WIRE) {
        return;
    }
    let rig = Rig::new();
    let cq = CompletionQueue::builder(&rig.context, 63).fields(CompletionFields::BYTE_LEN).build();
    let mut cq = cq.unwrap();
    let completions = cq.handle();
    let builder = RawQueuePair::builder(&rig.domain, &completions, &completions).max_sends(32);
    let builder = builder.send_operations(SendOperations::SEND).max_inline_bytes(64);
    let mut pair = builder.build().unwrap().to_rts(PORT).unwrap();
    let region = MemoryRegion::register(&rig.domain, vec![0u8; 2048], Access::LOCAL_WRITE).unwrap();
    let mut pool = FramePool::new(region, FRAME_BYTES).unwrap();
    let frame = [0x5a; 60];
    for batch in 0..BATCHES {
        let mut requests = pair.start_send(&mut pool).unwrap();
        for token in 0..REQUESTS {
            assert!(requests.send(SendFlags::empty()).inline(batch * REQUESTS + token, &frame));
        }
        assert_eq!(requests.complete().unwrap(), REQUESTS as usize);
        let (mut tokens, begun) = (Vec::new(), Instant::now());
        while tokens.len() < REQUESTS as usize {
            assert!(begun.elapsed() < PATIENCE, "batch {batch}: {tokens:?}");
            while let Some(mut batch) = cq.poll() {
                while let Some(completion) = batch.next() {
                    assert_eq!(
                        (completion.status(), completion.opcode()),
                        (CompletionStatus::Success, Opcode::Send)
                    );
                    tokens.push(completion.token().unwrap());
                }
            }
        }
        assert!(tokens.into_iter().eq(batch * REQUESTS..(batch + 1) * REQUESTS));
    }
}

/// Notes what is asked of it, and leaves it to the provider.
struct Sizes(Arc<Mutex<Vec<usize>>>);

impl DomainAllocator for Sizes {
    fn allocate(&self, request: &AllocationRequest) -> Allocation {
        self.0.lock().unwrap().push(request.bytes);
        Allocation::UseDefault
    }
}

#[test]
fn completions_may_have_128_bytes() {
    if !is_client_with("completions_may_have_128_bytes", WIRE, &[("MLX5_CQE_SIZE", "128")]) {
        return;
    }
    let rig = Rig::new();
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let protection = ProtectionDomain::new(&rig.context).unwrap();
    let parent = ParentDomain::new(&protection, None, Some(Box::new(Sizes(Arc::clone(&sizes))))).unwrap();
    let fields = CompletionFields::BYTE_LEN | CompletionFields::FLOW_TAG;
    let fields = fields | CompletionFields::COMPLETION_TIMESTAMP;
    let cq = CompletionQueue::builder(&rig.context, 63).domain(&parent).fields(fields).build().unwrap();
    assert_eq!(std::mem::take(&mut *sizes.lock().unwrap())[0], 64 * 128, "the buffer");
    // Fewer buffers than completions: a full completion queue cannot be resized.
    let mut receiver = Receiver::new(&rig.domain, cq, 48);
    let target = target(&rig.domain, &[&receiver.queue], HashFields::empty());
    let _flow = FlowHandle::create(&target, &udp_flow(80, 6)).unwrap();
    assert!(receiver.receive(2_000).iter().all(|packet| (packet.tag, packet.bytes.len()) == (6, 300)));
    receiver.cq.resize(255).unwrap();
    receiver.receive(2_000);
}

#[test]
fn a_channel_wakes_who_waits() {
    if !is_client("a_channel_wakes_who_waits", "generator:2000") {
        return;
    }
    let rig = Rig::new();
    let channel = CompletionChannel::new(&rig.context).unwrap();
    let fields =
        CompletionFields::BYTE_LEN | CompletionFields::FLOW_TAG | CompletionFields::COMPLETION_TIMESTAMP;
    let cq = CompletionQueue::builder(&rig.context, 255).fields(fields).channel(&channel, 0).build().unwrap();
    let mut receiver = Receiver::new(&rig.domain, cq, 128);
    let target = target(&rig.domain, &[&receiver.queue], HashFields::empty());
    let _flow = FlowHandle::create(&target, &FlowAttr::new(FlowKind::AllDefault, PORT)).unwrap();
    for _ in 0..100 {
        receiver.cq.request_notification(false).unwrap();
        let event = channel.wait(Some(PATIENCE)).unwrap();
        assert!(event.is_some(), "an event comes, also for what came before the queue was armed");
        assert!(!receiver.receive(1).is_empty());
    }
}

#[test]
fn a_queue_is_resized_under_traffic() {
    if !is_client("a_queue_is_resized_under_traffic", WIRE) {
        return;
    }
    let rig = Rig::new();
    let mut receiver = rig.queue(255, 128);
    let target = target(&rig.domain, &[&receiver.queue], HashFields::empty());
    let _flow = FlowHandle::create(&target, &udp_flow(80, 3)).unwrap();
    for entries in [511, 2047, 255, 1023, 255, 511] {
        let packets = receiver.receive(500);
        assert!(packets.iter().all(|packet| (packet.tag, packet.bytes.len()) == (3, 300)));
        receiver.cq.resize(entries).unwrap();
        assert_eq!(receiver.cq.entries(), entries);
    }
    receiver.receive(5_000);
}

#[test]
fn counters_count_and_a_failed_queue_flushes() {
    if !is_client("counters_count_and_a_failed_queue_flushes", WIRE) {
        return;
    }
    let rig = Rig::new();
    let mut receiver = rig.queue(511, 128);
    let target = target(&rig.domain, &[&receiver.queue], HashFields::empty());
    let counters =
        Counters::with_points(&rig.context, &[CounterPoint::Packets, CounterPoint::Bytes]).unwrap();
    let flow = FlowHandle::create(&target, &udp_flow(53, 1).action(ActionSpec::Count(Arc::clone(&counters))))
        .unwrap();
    receiver.receive(1_000);
    assert!(flow.destroy().is_ok());
    let values = counters.read();
    // As with mlx5, a set that no flow has cannot be read.
    assert!(values.is_err(), "{values:?}");
    let flow = FlowHandle::create(&target, &udp_flow(53, 1).action(ActionSpec::Count(Arc::clone(&counters))))
        .unwrap();
    let values = counters.read().unwrap();
    assert!(values.packets >= 1_000 && values.bytes == values.packets * 100, "{values:?}");
    drop(flow);
    // What was received and not yet polled comes first, then every request that is posted.
    receiver.queue.to_error().unwrap();
    let (mut flushed, begun) = (0, Instant::now());
    while flushed == 0 || receiver.pool.free_count() < receiver.pool.frame_count() {
        assert!(begun.elapsed() < PATIENCE, "{flushed} flushed");
        while let Some(mut batch) = receiver.cq.poll() {
            while let Some(completion) = batch.next() {
                flushed += usize::from(completion.status() == CompletionStatus::Flushed);
                let frame = receiver.pool.reclaim(completion).unwrap();
                receiver.pool.release(frame);
            }
        }
    }
    receiver.queue.reset().unwrap();
    receiver.queue.ready().unwrap();
    receiver.fill();
    let _flow = FlowHandle::create(&target, &udp_flow(80, 2)).unwrap();
    assert!(receiver.receive(500).iter().all(|packet| packet.tag == 2));
}

#[test]
fn contexts_and_their_objects_are_apart() {
    if !is_client("contexts_and_their_objects_are_apart", WIRE) {
        return;
    }
    for _ in 0..3 {
        let rigs = [Rig::new(), Rig::new()];
        let mut receivers = rigs.each_ref().map(|rig| rig.queue(255, 64));
        let targets =
            [0, 1].map(|at: usize| target(&rigs[at].domain, &[&receivers[at].queue], HashFields::empty()));
        let _flows = [(0, 53), (1, 80)]
            .map(|(at, port)| FlowHandle::create(&targets[at], &udp_flow(port, 4)).unwrap());
        for (receiver, bytes) in receivers.iter_mut().zip([100, 300]) {
            assert!(receiver.receive(300).iter().all(|packet| packet.bytes.len() == bytes));
        }
    }
}

/// Closes all descriptors, as programs do between fork(2) and exec(3).
extern "C" fn close_all(_: *mut libc::c_void) -> libc::c_int {
    for descriptor in 3..200 {
        // SAFETY: takes any number, and may be called between fork(2) and exec(3).
        unsafe { libc::close(descriptor) };
    }
    // SAFETY: as above.
    unsafe { libc::_exit(0) }
}

fn ends_well(child: libc::pid_t) {
    let mut status = -1;
    // SAFETY: a child of this process, and room for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}

/// The call must end neither the device nor the child. A child of vfork(2) has its parent's memory.
#[test]
fn a_child_leaves_the_device_alone() {
    if !is_client("a_child_leaves_the_device_alone", WIRE) {
        return;
    }
    let rig = Rig::new();
    let mut receiver = rig.queue(255, 64);
    let target = target(&rig.domain, &[&receiver.queue], HashFields::empty());
    let flow = FlowHandle::create(&target, &udp_flow(53, 4)).unwrap();
    let folder = support::open(c"/sys/softnic-mlx5/class", libc::O_DIRECTORY);
    // SAFETY: the child does nothing but `close_all`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        close_all(std::ptr::null_mut());
    }
    ends_well(child);
    receiver.receive(300);
    let mut stack = vec![0_u64; 8_192];
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: `stack` is the child's alone until it has ended, for which this thread waits in the call
    // (CLONE_VFORK).
    let child =
        unsafe { libc::clone(close_all, stack.as_mut_ptr_range().end.cast(), flags, std::ptr::null_mut()) };
    ends_well(child);
    receiver.receive(300);
    // Also for control calls, and for what was found in sysfs.
    drop(flow);
    let _flow = FlowHandle::create(&target, &udp_flow(80, 5)).unwrap();
    receiver.receive(300);
    let file = support::open_at(folder, c"infiniband/mlx5_0/node_type");
    assert_eq!(support::read(file), "1: CA\n");
    support::close(folder);
}

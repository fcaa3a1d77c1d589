//! The thread of a capture, fed through its rings: what pcap-file, tshark and capinfos read back, rotation,
//! and errors.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::blocks::interface_statistics::InterfaceStatisticsOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use proptest::prelude::*;

use super::*;
use crate::sink::SinkTraffic;

mod processes;

/// A capture with rules 0 `dns`, 1 `ssh`, and 2 `other`, which the sink does not get.
struct Rig {
    producers: Vec<Producer>,
    hub: CaptureHub,
    counters: Vec<Arc<SinkCounters>>,
}

fn names(generation: u64) -> Names {
    let rules = [("dns", true), ("ssh", true), ("other", false)];
    let rules = rules.map(|(name, captured)| (name.to_owned(), captured)).to_vec();
    Names { generation, policy: "abc".to_owned(), rules }
}

fn options(path: &Path) -> CaptureSink {
    CaptureSink { path: path.to_owned(), ..CaptureSink::default() }
}

fn soft0() -> Origin {
    Origin { hardware: "RDMA device soft0".to_owned(), clock: ClockHub::none() }
}

impl Rig {
    fn files(options: &CaptureSink, workers: usize) -> Self {
        let mut files = Files::new(&options.path, "tap", options.disk_bytes).expect("a folder");
        files.create(options.file_bytes).expect("the folder is writable");
        Self::new(options, workers, Output::Files(files))
    }

    fn new(options: &CaptureSink, workers: usize, output: Output) -> Self {
        let counters: Vec<Arc<SinkCounters>> = (0..workers).map(|_| Arc::default()).collect();
        let rules = Rules::OfSink("tap".to_owned());
        let (producers, hub) = spawn("tap", options, soft0(), output, rules, &counters).expect("a thread");
        hub.shared.announce(names(1));
        hub.wakeup.wake();
        Self { producers, hub, counters }
    }

    /// Pushes packets as the endpoint does: a rule, a time and the bytes of each.
    fn push(&mut self, worker: usize, generation: u64, packets: &[(u32, u64, Vec<u8>)]) {
        let room = packets.iter().map(|(_, _, bytes)| packet_block_bytes(bytes.len())).sum();
        let mut batch = self.producers[worker].batch(packets.len(), room);
        for (rule, time, bytes) in packets {
            let original_bytes = bytes.len() as u32;
            batch.push(&Captured { generation, rule: *rule, timestamp_ns: *time, original_bytes }, bytes);
        }
        let full = batch.finish();
        let counters = &self.counters[worker];
        counters.offered(packets.len() as u64, packets.iter().map(|packet| packet.2.len() as u64).sum());
        counters.worker.dropped(SinkDrop::RingFull, full);
    }

    fn traffic(&self) -> SinkTraffic {
        let mut sum = self.counters[0].read();
        self.counters[1..].iter().for_each(|counters| sum += &counters.read());
        sum
    }

    fn wait_until(&self, what: &str, mut condition: impl FnMut(&SinkTraffic) -> bool) {
        let begun = Instant::now();
        while !condition(&self.traffic()) {
            assert!(begun.elapsed() < Duration::from_secs(20), "not {what}: {:?}", self.traffic());
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn wait_until_settled(&self) {
        self.wait_until("all packets are accounted for", |traffic| traffic.in_flight() == 0);
    }

    /// Ends the thread; everything is written.
    fn end(self) -> SinkTraffic {
        let Self { producers, hub, counters } = self;
        drop(producers);
        drop(hub);
        let mut sum = counters[0].read();
        counters[1..].iter().for_each(|counters| sum += &counters.read());
        assert_eq!(sum.in_flight(), 0);
        sum
    }
}

fn dropped(traffic: &SinkTraffic, reason: SinkDrop) -> u64 {
    traffic.dropped.iter().find(|(other, _)| *other == reason).map_or(0, |(_, count)| *count)
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// The content that pcap-file reads from one section.
#[derive(Debug, Default, PartialEq)]
struct Content {
    interfaces: Vec<String>,
    /// Interface, time, length on the wire, lost before, bytes.
    packets: Vec<(String, u64, u32, u64, Vec<u8>)>,
    /// Received, accepted, dropped by interface.
    statistics: Vec<(String, [u64; 3])>,
}

fn content(file: &[u8]) -> Content {
    let mut reader = PcapNgReader::new(file).expect("a section header");
    let mut content = Content::default();
    while let Some(block) = reader.next_block() {
        match block.expect("a whole block").into_owned() {
            Block::InterfaceDescription(description) => {
                let name = description.options.iter().find_map(|option| match option {
                    InterfaceDescriptionOption::IfName(name) => Some(name.to_string()),
                    _ => None,
                });
                content.interfaces.push(name.expect("if_name"));
            }
            Block::EnhancedPacket(packet) => {
                let lost = packet.options.iter().find_map(|option| match option {
                    EnhancedPacketOption::DropCount(count) => Some(*count),
                    _ => None,
                });
                let name = content.interfaces[packet.interface_id as usize].clone();
                let time = packet.timestamp.as_nanos() as u64;
                let bytes = packet.data.to_vec();
                content.packets.push((name, time, packet.original_len, lost.unwrap_or(0), bytes));
            }
            Block::InterfaceStatistics(statistics) => {
                let mut counts = [0; 3];
                for option in &statistics.options {
                    match option {
                        InterfaceStatisticsOption::IsbIfRecv(count) => counts[0] = *count,
                        InterfaceStatisticsOption::IsbFilterAccept(count) => counts[1] = *count,
                        InterfaceStatisticsOption::IsbIfDrop(count) => counts[2] = *count,
                        _ => {}
                    }
                }
                let name = content.interfaces[statistics.interface_id as usize].clone();
                content.statistics.push((name, counts));
            }
            other => panic!("{other:?}"),
        }
    }
    content
}

fn only_file(folder: &Path) -> Vec<u8> {
    let files = files_in(folder);
    assert_eq!(files.len(), 1, "{files:?}");
    fs::read(&files[0]).unwrap()
}

fn tshark(file: &Path, arguments: &[&str]) -> Option<String> {
    let output = match Command::new("tshark").arg("-r").arg(file).args(arguments).output() {
        Ok(output) => output,
        Err(error) => {
            test_support::not_run("reading captures by tshark", &error.to_string());
            return None;
        }
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn a_file_has_an_interface_for_each_rule_and_its_statistics() {
    let folder = tempfile::tempdir().unwrap();
    let mut rig = Rig::files(&CaptureSink { snap_bytes: 4, ..options(folder.path()) }, 1);
    rig.producers[0].skip(1, 1);
    rig.push(0, 1, &[(0, 5, vec![1, 2, 3]), (1, 1 << 40, vec![4; 9]), (0, 1 << 41, vec![])]);
    let traffic = rig.end();
    assert_eq!((traffic.delivered.packets, traffic.delivered.bytes), (3, 12));
    let content = content(&only_file(folder.path()));
    let name = |name: &str| name.to_owned();
    let expected = Content {
        interfaces: vec![name("dns"), name("ssh")],
        packets: vec![
            (name("dns"), 5, 3, 0, vec![1, 2, 3]),
            (name("ssh"), 1 << 40, 9, 0, vec![4; 4]),
            (name("dns"), 1 << 41, 0, 0, vec![]),
        ],
        statistics: vec![(name("dns"), [2, 2, 0]), (name("ssh"), [2, 1, 0])],
    };
    assert_eq!(content, expected);
}

#[test]
fn tshark_and_capinfos_read_the_same_packets() {
    let folder = tempfile::tempdir().unwrap();
    let mut rig = Rig::files(&options(folder.path()), 2);
    let frame = packet::build::FrameBuilder::new()
        .ipv4([192, 0, 2, 1].into(), [192, 0, 2, 2].into())
        .udp(9, 53)
        .build();
    let second = 1_700_000_000_000_000_000;
    rig.push(0, 1, &[(0, second + 123_456_789, frame.clone())]);
    rig.push(1, 1, &[(1, second + 5, frame.clone()), (0, second + 987_654_321, frame.clone())]);
    assert_eq!(rig.end().delivered.packets, 3);
    let file = &files_in(folder.path())[0];
    let fields =
        ["-T", "fields", "-e", "frame.interface_name", "-e", "frame.time_epoch", "-e", "udp.dstport"];
    let Some(text) = tshark(file, &fields) else { return };
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    let expected =
        ["dns\t1700000000.123456789\t53", "dns\t1700000000.987654321\t53", "ssh\t1700000000.000000005\t53"];
    assert_eq!(lines, expected);
    let dns = tshark(file, &["-Y", "frame.interface_name == \"dns\""]).expect("it ran before");
    assert_eq!(dns.lines().count(), 2);

    let output = Command::new("capinfos").arg(file).output().expect("it comes with tshark");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    let has = |wanted: &str| text.lines().any(|line| line.contains(wanted));
    assert!(has("Number of packets:   3"), "{text}");
    assert!(has("nanoseconds (9)"), "{text}");
    assert!(has("Number of interfaces in file: 2"), "{text}");
    assert!(has(concat!("steerd ", env!("CARGO_PKG_VERSION"))), "{text}");
    assert!(has("policy generation 1, SHA-256 of the policy abc"), "{text}");
    assert!(has("RDMA device soft0"), "{text}");
}

#[test]
fn packets_of_several_workers_are_in_the_order_of_their_times() {
    let folder = tempfile::tempdir().unwrap();
    let mut rig = Rig::files(&options(folder.path()), 3);
    // One pass of the thread sees all of them: it is asleep, and is woken by the first worker at most.
    thread::sleep(Duration::from_millis(50));
    for worker in 0..3 {
        let times = (0..500_u64).map(|number| (0, 1000 + 3 * number + worker, vec![0; 60]));
        rig.push(worker as usize, 1, &times.collect::<Vec<_>>());
    }
    rig.end();
    let times: Vec<u64> = content(&only_file(folder.path())).packets.iter().map(|packet| packet.1).collect();
    assert_eq!(times.len(), 1500);
    let descents = times.windows(2).filter(|pair| pair[0] > pair[1]).count();
    assert!(descents < 10, "{descents} packets are older than the one before");
}

#[test]
fn packets_are_in_the_file_after_200_ms_without_an_end() {
    let folder = tempfile::tempdir().unwrap();
    let mut rig = Rig::files(&options(folder.path()), 1);
    rig.push(0, 1, &[(0, 5, vec![7; 60])]);
    let begun = Instant::now();
    rig.wait_until_settled();
    // Ten times the promise, for a busy machine.
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert_eq!(content(&only_file(folder.path())).packets.len(), 1);
}

#[test]
fn files_rotate_by_size_and_the_oldest_are_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let limits = CaptureSink { file_bytes: 100_000, disk_bytes: 350_000, ..options(folder.path()) };
    let mut rig = Rig::files(&limits, 1);
    for number in 0..1000 {
        rig.push(0, 1, &[(0, number, vec![1; 1000])]);
        if number % 100 == 99 {
            rig.wait_until_settled();
        }
    }
    assert_eq!(rig.end().delivered.packets, 1000);
    let files = files_in(folder.path());
    assert_eq!(files.len(), 3, "{files:?}");
    let mut last = 0;
    for file in files {
        let bytes = fs::read(&file).unwrap();
        assert!(bytes.len() <= 100_000, "{}", bytes.len());
        let content = content(&bytes);
        assert!(last == 0 || content.packets[0].1 == last + 1, "no packet is missing between files");
        last = content.packets.last().unwrap().1;
        let count = content.packets.len() as u64;
        assert_eq!(
            content.statistics,
            [("dns".to_owned(), [count; 2].map(|c| c)), ("ssh".to_owned(), [0; 2])]
                .map(|(name, [received, accepted])| (name, [received, accepted, 0]))
        );
    }
    assert_eq!(last, 999);
}

#[test]
fn files_rotate_by_time_if_they_have_packets() {
    let folder = tempfile::tempdir().unwrap();
    let mut rig = Rig::files(&CaptureSink { file_seconds: 1, ..options(folder.path()) }, 1);
    thread::sleep(Duration::from_millis(1500));
    assert_eq!(files_in(folder.path()).len(), 1, "no packets, no next file");
    rig.push(0, 1, &[(0, 1, vec![1; 60])]);
    rig.wait_until("rotated", |_| files_in(folder.path()).len() == 2);
    rig.push(0, 1, &[(0, 2, vec![1; 60])]);
    rig.end();
    let counts: Vec<_> =
        files_in(folder.path()).iter().map(|file| content(&fs::read(file).unwrap()).packets.len()).collect();
    assert_eq!(counts, [1, 1]);
}

#[test]
fn a_new_program_begins_a_file_and_packets_of_the_old_one_stay_with_their_rule() {
    let folder = tempfile::tempdir().unwrap();
    let mut rig = Rig::files(&options(folder.path()), 1);
    rig.push(0, 1, &[(1, 1, vec![1; 60])]);
    rig.wait_until_settled();
    let rules = vec![("ssh".to_owned(), true), ("web".to_owned(), true)];
    rig.hub.shared.announce(Names { generation: 2, policy: String::new(), rules });
    rig.push(0, 2, &[(0, 2, vec![1; 60]), (1, 3, vec![1; 60])]);
    rig.push(0, 1, &[(0, 4, vec![1; 60])]);
    rig.end();
    let files = files_in(folder.path());
    let names = |file: &PathBuf| -> Vec<String> {
        content(&fs::read(file).unwrap()).packets.into_iter().map(|packet| packet.0).collect()
    };
    assert_eq!(files.iter().map(names).collect::<Vec<_>>(), [vec!["ssh"], vec!["ssh", "web", "dns"]]);
}

#[test]
fn a_deleted_folder_is_counted_and_capturing_goes_on_when_it_is_back() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("captures");
    fs::create_dir(&folder).unwrap();
    let mut rig = Rig::files(&options(&folder), 1);
    rig.push(0, 1, &[(0, 1, vec![1; 60])]);
    rig.wait_until_settled();
    fs::remove_dir_all(&folder).unwrap();
    rig.wait_until("noticed", |_| rig.hub.shared.status().error.is_some());
    rig.push(0, 1, &[(0, 2, vec![1; 60]), (1, 3, vec![1; 60])]);
    rig.wait_until_settled();
    assert_eq!(dropped(&rig.traffic(), SinkDrop::WriteFailed), 2);
    assert_eq!(rig.hub.status().text("state"), Some("failed"));

    fs::create_dir(&folder).unwrap();
    rig.wait_until("back", |_| rig.hub.shared.status().error.is_none());
    rig.push(0, 1, &[(0, 4, vec![1; 60])]);
    assert_eq!(rig.end().delivered.packets, 2);
    let content = content(&only_file(&folder));
    let lost: Vec<_> = content.packets.iter().map(|packet| (packet.1, packet.3)).collect();
    assert_eq!(lost, [(4, 1)], "the packet mentions the one that was lost before it");
    assert_eq!(content.statistics[1], ("ssh".to_owned(), [1, 1, 1]));
}

#[test]
fn a_folder_below_the_state_of_the_daemon_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let (state, elsewhere) = (folder.path().join("state"), folder.path().join("elsewhere"));
    fs::create_dir(&state).unwrap();
    for path in [state.join("captures/dns"), state.join("patterns/dns-{time}.pcapng")] {
        check("tap", &options(&path), Some(&state)).expect("its folder would be made");
        assert!(check("tap", &options(&path), None).is_err(), "nobody would make it");
        make_folder("tap", &options(&path), &state).expect("its folder is made");
        drop(open("tap", &options(&path), soft0(), 1).expect("its folder is there"));
    }
    assert!(state.join("captures/dns").is_dir() && state.join("patterns").is_dir());
    for path in [elsewhere.clone(), state.join("../elsewhere")] {
        make_folder("tap", &options(&path), &state).expect("nothing is to be made");
    }
    make_folder("tap", &options(&elsewhere.join("captures")), &elsewhere).expect("nothing is to be made");
    assert!(!elsewhere.exists(), "the folder of the state is made by others");
    fs::write(state.join("file"), "").unwrap();
    let below_file = options(&state.join("file/captures"));
    let refused = make_folder("tap", &below_file, &state).unwrap_err().to_string();
    assert!(refused.contains("sink `tap`") && refused.contains("file/captures"), "{refused}");
    assert_eq!(check("tap", &below_file, Some(&state)).unwrap_err().to_string(), refused);
}

#[test]
fn a_mistyped_pattern_and_the_name_of_a_file_are_made_no_folder() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path();
    for name in ["dns-{tme}.pcapng", "dns-{tme}", "dns.pcap", "{tme}/dns-{time}.pcapng", "history.json"] {
        let options = options(&state.join(name));
        make_folder("tap", &options, state).expect("nothing is to be made");
        let refused = open("tap", &options, soft0(), 1).err().expect("no folder").to_string();
        assert!(refused.contains(name), "{refused}");
    }
    assert_eq!(fs::read_dir(state).unwrap().count(), 0);
}

#[test]
fn a_folder_that_is_made_has_mode_0750_whatever_the_umask_is() {
    if !test_support::is_alone(
        "sinks::capture::tests::a_folder_that_is_made_has_mode_0750_whatever_the_umask_is",
    ) {
        return;
    }
    let state = tempfile::tempdir().unwrap();
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let path = state.path().join("captures/dns");
    make_folder("tap", &options(&path), state.path()).unwrap();
    for made in [path.parent().unwrap(), &path] {
        assert_eq!(fs::metadata(made).unwrap().permissions().mode() & 0o777, 0o750);
    }
}

#[test]
fn a_folder_that_cannot_be_used_is_refused_at_start() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing/x_{time}.pcapng");
    let refused = open("tap", &options(&missing), soft0(), 1).err().expect("no folder").to_string();
    assert!(
        refused.contains("sink `tap`") && refused.contains("missing") && refused.contains("hint"),
        "{refused}"
    );
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(open("tap", &options(&file), soft0(), 1).is_err());
}

/// A stream into memory, which fails once it is told to.
#[derive(Clone, Default)]
struct Memory {
    bytes: Arc<Mutex<Vec<u8>>>,
    closed: Arc<AtomicBool>,
}

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.closed.load(SeqCst) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.bytes.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_stream_gets_one_section_over_reloads() {
    let memory = Memory::default();
    let output = Output::Stream(Box::new(memory.clone()));
    let mut rig = Rig::new(&CaptureSink { file_bytes: 2000, ..CaptureSink::default() }, 1, output);
    for generation in 1..4 {
        rig.hub.shared.announce(names(generation));
        rig.push(0, generation, &[(2, generation, vec![1; 1000])]);
    }
    assert_eq!(rig.end().delivered.packets, 3);
    let content = content(&memory.bytes.lock().unwrap());
    assert_eq!(content.interfaces, ["dns", "ssh", "other"]);
    assert_eq!(content.packets.len(), 3);
}

#[test]
fn a_closed_stream_ends_the_capture_and_every_packet_is_accounted_for() {
    let memory = Memory::default();
    let mut rig = Rig::new(&CaptureSink::default(), 1, Output::Stream(Box::new(memory.clone())));
    rig.push(0, 1, &[(0, 1, vec![1; 60])]);
    rig.wait_until_settled();
    memory.closed.store(true, SeqCst);
    rig.push(0, 1, &[(0, 2, vec![1; 60])]);
    rig.wait_until_settled();
    rig.push(0, 1, &[(0, 3, vec![1; 60])]);
    assert_eq!(rig.hub.status().text("state"), Some("ended"));
    let traffic = rig.end();
    assert_eq!((traffic.delivered.packets, dropped(&traffic, SinkDrop::Closed)), (1, 2));
}

/// A stream whose reader never reads.
struct Stuck(std::sync::mpsc::Receiver<()>);

impl Write for Stuck {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.0.recv();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_stream_that_blocks_fills_the_ring_and_does_not_hold_up_the_end() {
    let (release, stuck) = std::sync::mpsc::channel();
    let small = CaptureSink { ring_bytes: 1 << 16, snap_bytes: 1500, ..CaptureSink::default() };
    let mut rig = Rig::new(&small, 1, Output::Stream(Box::new(Stuck(stuck))));
    for number in 0..200 {
        rig.push(0, 1, &[(0, number, vec![1; 1000])]);
    }
    assert!(dropped(&rig.traffic(), SinkDrop::RingFull) > 100);
    let begun = Instant::now();
    drop(rig.hub);
    assert!(begun.elapsed() < 3 * END_TIMEOUT);
    drop(release);
}

#[test]
fn a_capture_that_no_program_used_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let opened = open("tap", &options(folder.path()), soft0(), 2).expect("the folder is writable");
    assert_eq!(files_in(folder.path()).len(), 1);
    drop(opened);
    assert_eq!(files_in(folder.path()), [] as [PathBuf; 0]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// Any packets of any rules, in any batches over two workers, are read back equal.
    #[test]
    fn what_is_pushed_is_read_back(
        batches in prop::collection::vec(
            (0..2_usize, prop::collection::vec((0..4_u32, any::<u64>(), prop::collection::vec(any::<u8>(), 0..200)), 0..20)),
            0..20,
        ),
    ) {
        let memory = Memory::default();
        let mut rig = Rig::new(&CaptureSink::default(), 2, Output::Stream(Box::new(memory.clone())));
        let mut expected = Vec::new();
        for (worker, packets) in &batches {
            rig.push(*worker, 1, packets);
            expected.extend(packets.iter().map(|(rule, time, bytes)| {
                let names = ["dns", "ssh", "other", "rule 3 of generation 1"];
                (names[*rule as usize].to_owned(), *time, bytes.len() as u32, 0, bytes.clone())
            }));
        }
        prop_assert_eq!(rig.end().delivered.packets, expected.len() as u64);
        let mut found = content(&memory.bytes.lock().unwrap()).packets;
        found.sort();
        expected.sort();
        prop_assert_eq!(found, expected);
    }
}

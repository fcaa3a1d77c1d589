//! What is replayed of good captures, and what is said of bad ones.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;

use super::*;

/// Writes numbers in one byte order.
#[derive(Clone, Copy)]
struct Order {
    big: bool,
}

impl Order {
    fn u16(self, out: &mut Vec<u8>, value: u16) {
        out.extend(if self.big { value.to_be_bytes() } else { value.to_le_bytes() });
    }

    fn u32(self, out: &mut Vec<u8>, value: u32) {
        out.extend(if self.big { value.to_be_bytes() } else { value.to_le_bytes() });
    }
}

/// A capture: seconds, fraction, bytes and original length of each packet.
type Packets<'a> = &'a [(u32, u32, &'a [u8], u32)];

fn pcap(order: Order, magic: u32, link: u32, packets: Packets<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    order.u32(&mut out, magic);
    order.u16(&mut out, 2);
    order.u16(&mut out, 4);
    // Snapshot length 0, as some writers leave it.
    for field in [0, 0, 0, link] {
        order.u32(&mut out, field);
    }
    for (seconds, fraction, bytes, original) in packets {
        for field in [*seconds, *fraction, bytes.len() as u32, *original] {
            order.u32(&mut out, field);
        }
        out.extend(*bytes);
    }
    out
}

fn block(order: Order, out: &mut Vec<u8>, kind: u32, body: &[u8]) {
    let len = (12 + body.len().next_multiple_of(4)) as u32;
    order.u32(out, kind);
    order.u32(out, len);
    out.extend(body);
    out.resize(out.len().next_multiple_of(4), 0);
    order.u32(out, len);
}

/// A section with an Ethernet interface that counts nanoseconds, each packet as an enhanced packet block, and
/// the last one again as a simple packet block.
fn pcapng(order: Order, link: u16, packets: Packets<'_>) -> Vec<u8> {
    pcapng_with_fcs(order, link, 0, packets)
}

/// A pcapng file with an `if_fcslen` option.
fn pcapng_with_fcs(order: Order, link: u16, fcs_bits: u8, packets: Packets<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    let mut section = Vec::new();
    order.u32(&mut section, 0x1a2b_3c4d);
    order.u16(&mut section, 1);
    order.u16(&mut section, 0);
    section.extend([0xff; 8]);
    block(order, &mut out, 0x0a0d_0d0a, &section);
    let mut interface = Vec::new();
    order.u16(&mut interface, link);
    order.u16(&mut interface, 0);
    order.u32(&mut interface, 262_144);
    order.u16(&mut interface, 9);
    order.u16(&mut interface, 1);
    interface.extend([9, 0, 0, 0]);
    order.u16(&mut interface, 13);
    order.u16(&mut interface, 1);
    interface.extend([fcs_bits, 0, 0, 0, 0, 0, 0, 0]);
    block(order, &mut out, 1, &interface);
    for (seconds, fraction, bytes, original) in packets {
        let ns = u64::from(*seconds) * 1_000_000_000 + u64::from(*fraction);
        let mut body = Vec::new();
        for field in [0, (ns >> 32) as u32, ns as u32, bytes.len() as u32, *original] {
            order.u32(&mut body, field);
        }
        body.extend(*bytes);
        block(order, &mut out, 6, &body);
    }
    if let Some((_, _, bytes, original)) = packets.last() {
        let mut body = Vec::new();
        order.u32(&mut body, *original);
        body.extend(*bytes);
        block(order, &mut out, 3, &body);
    }
    out
}

fn config(path: &Path, mode: PcapMode) -> PcapConfig {
    PcapConfig { path: path.to_owned(), mode, speed: 1.0, output: None }
}

fn write(folder: &tempfile::TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    path
}

fn receive(wire: &mut PcapWire) -> Vec<(Vec<u8>, u32)> {
    let mut burst = Burst::new();
    wire.receive(&mut burst);
    burst.iter().map(|frame| (frame.bytes.to_vec(), frame.wire_len)).collect()
}

const A: &[u8] = &[0xaa; 60];
const B: &[u8] = &[0xbb; 61];
const MICROSECONDS: u32 = 0xa1b2_c3d4;
const NANOSECONDS: u32 = 0xa1b2_3c4d;

#[test]
fn both_byte_orders_and_resolutions_are_read_and_cut_packets_are_frames() {
    let folder = tempfile::tempdir().unwrap();
    for big in [false, true] {
        for (magic, fraction) in [(MICROSECONDS, 500_000), (NANOSECONDS, 500_000_000)] {
            let file = pcap(Order { big }, magic, 1, &[(7, 0, A, 60), (7, fraction, B, 1500)]);
            let mut wire = PcapWire::open(&config(&write(&folder, "x", &file), PcapMode::Once)).unwrap();
            assert_eq!(wire.recording.due_ns(1), 500_000_000, "big {big}, magic {magic:x}");
            assert_eq!(wire.state(), WireState::Live);
            assert_eq!(receive(&mut wire), [(A.to_vec(), 60), (B.to_vec(), 61)]);
            assert_eq!(wire.state(), WireState::Finished);
            assert_eq!(receive(&mut wire), []);
        }
        let file = pcapng(Order { big }, 1, &[(7, 0, A, 60), (7, 250, B, 1500)]);
        let mut wire = PcapWire::open(&config(&write(&folder, "ng", &file), PcapMode::Once)).unwrap();
        assert_eq!((wire.recording.due_ns(1), wire.recording.due_ns(2)), (250, 250));
        assert_eq!(receive(&mut wire)[..2], [(A.to_vec(), 60), (B.to_vec(), 61)]);
    }
}

#[test]
fn long_blocks_of_other_types_are_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let order = Order { big: false };
    let mut file = pcapng(order, 1, &[(7, 0, A, 60)]);
    let frames = |file: &[u8]| {
        let wire = PcapWire::open(&config(&write(&folder, "ng", file), PcapMode::Once));
        wire.map(|mut wire| receive(&mut wire).len()).map_err(|error| error.to_string())
    };
    let before = frames(&file).unwrap();
    block(order, &mut file, 0x0bad, &vec![0; 17 << 20]);
    let cut = frames(&file[..file.len() - 8]).unwrap_err();
    assert!(cut.contains("the file ends in it"), "{cut}");
    file.extend(pcapng(order, 1, &[(7, 0, B, 61)]));
    assert_eq!(frames(&file), Ok(2 * before));
}

/// The upper bits of the link-type word (pcap-savefile(5)) and the options of pcapng. A check sequence is no
/// part of a frame; of a packet that was cut it is gone already.
#[test]
fn captures_may_say_how_long_their_check_sequences_are() {
    let folder = tempfile::tempdir().unwrap();
    let packets: Packets<'_> = &[(7, 0, A, 60), (7, 1, B, 1500)];
    for big in [false, true] {
        let order = Order { big };
        for (link, fcs_bytes) in [(0x4000_0001, 0), (0x2400_0001, 4), (0x1400_0001, 2), (0x2bff_0001, 0)] {
            let file = pcap(order, MICROSECONDS, link, packets);
            let mut wire = PcapWire::open(&config(&write(&folder, "x", &file), PcapMode::Once)).unwrap();
            let frames = receive(&mut wire);
            assert_eq!(frames[0].0, A[fcs_bytes..], "link type word {link:#010x}");
            assert_eq!(frames[1].0, B, "link type word {link:#010x}");
        }
        let file = pcapng_with_fcs(order, 1, 32, &[(7, 0, B, 1500), (7, 1, A, 60)]);
        let mut wire = PcapWire::open(&config(&write(&folder, "ng", &file), PcapMode::Once)).unwrap();
        let frames: Vec<Vec<u8>> = receive(&mut wire).into_iter().map(|(bytes, _)| bytes).collect();
        // The last one once more, as a simple packet block.
        assert_eq!(frames, [B, &A[4..], &A[4..]]);
    }
    let file = pcap(Order { big: false }, MICROSECONDS, 0x2400_0071, packets);
    let error = PcapWire::open(&config(&write(&folder, "x", &file), PcapMode::Once)).unwrap_err();
    assert!(error.to_string().contains("link type 113 (LINUX_SLL)"), "{error}");
}

/// An option of a pcapng block, padded.
fn option(order: Order, code: u16, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    order.u16(&mut out, code);
    order.u16(&mut out, value.len() as u16);
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
    out
}

/// A section, an interface, a packet and statistics, each with these options.
fn pcapng_with_options(order: Order, [section, interface, packet, statistics]: [&[u8]; 4]) -> Vec<u8> {
    let (mut out, mut body) = (Vec::new(), Vec::new());
    order.u32(&mut body, 0x1a2b_3c4d);
    order.u16(&mut body, 1);
    order.u16(&mut body, 0);
    body.extend([0xff; 8]);
    block(order, &mut out, 0x0a0d_0d0a, &[&*body, section].concat());
    body.clear();
    order.u16(&mut body, 1);
    order.u16(&mut body, 0);
    order.u32(&mut body, 65_535);
    block(order, &mut out, 1, &[&*body, interface].concat());
    body.clear();
    for field in [0, 0, 0, A.len() as u32, A.len() as u32] {
        order.u32(&mut body, field);
    }
    block(order, &mut out, 6, &[&*body, A, packet].concat());
    block(order, &mut out, 5, &[&[0; 12], statistics].concat());
    out
}

/// Options may end with their block (draft-ietf-opsawg-pcapng, 3.5), and what is in one that no replay needs
/// is not its concern: tcpdump and tshark read all of these.
#[test]
fn options_need_no_end_and_may_hold_anything() {
    let folder = tempfile::tempdir().unwrap();
    for big in [false, true] {
        let order = Order { big };
        let option = |code: u16, value: &[u8]| option(order, code, value);
        let end = option(0, b"");
        for (name, options) in [
            ("a name", [vec![], option(2, b"eth0"), vec![], vec![]]),
            ("a name of six bytes", [vec![], option(2, b"lspgen"), vec![], vec![]]),
            ("an application", [option(4, b"rtbrick-lspgen"), vec![], vec![], vec![]]),
            ("flags", [vec![], vec![], option(2, &[0; 4]), vec![]]),
            ("statistics", [vec![], vec![], vec![], option(4, &[3; 8])]),
            ("a name in Latin-1", [vec![], [option(2, b"caf\xe9"), end.clone()].concat(), vec![], vec![]]),
            ("a comment that is not UTF-8", [vec![], vec![], option(1, b"\xff\xfe"), vec![]]),
            ("a short custom option", [vec![], option(2988, &[1, 2, 3]), vec![], vec![]]),
            ("an address of another length", [vec![], option(4, &[1, 2, 3]), vec![], vec![]]),
        ] {
            let file = pcapng_with_options(order, options.each_ref().map(Vec::as_slice));
            let path = write(&folder, "x.pcapng", &file);
            let mut wire = PcapWire::open(&config(&path, PcapMode::Once))
                .unwrap_or_else(|error| panic!("{name}, big {big}: {error}"));
            assert_eq!(receive(&mut wire), [(A.to_vec(), 60)], "{name}, big {big}");
        }
        let beyond = [&[], &[2, 0, 2, 0, 1, 2, 3, 4, 0, 9, 0, 9][..], &[], &[]];
        let path = write(&folder, "x.pcapng", &pcapng_with_options(order, beyond));
        let error = PcapWire::open(&config(&path, PcapMode::Once)).unwrap_err().to_string();
        assert!(error.contains("its block is too short"), "{error}");
    }
}

/// The options that a replay needs are found behind others, and without an end.
#[test]
fn resolution_and_check_sequence_are_read_without_an_end_of_the_options() {
    let folder = tempfile::tempdir().unwrap();
    let order = Order { big: false };
    let interface = [option(order, 2, b"\xe9"), option(order, 9, &[9]), option(order, 13, &[32])].concat();
    let file = pcapng_with_options(order, [&[], &interface, &[], &[]]);
    let mut wire = PcapWire::open(&config(&write(&folder, "x", &file), PcapMode::Once)).unwrap();
    assert_eq!(receive(&mut wire), [(A[4..].to_vec(), 56)]);
    let two_bytes = option(order, 2, &(2u32 << 5).to_le_bytes());
    let file = pcapng_with_options(order, [&[], &interface, &two_bytes, &[]]);
    let mut wire = PcapWire::open(&config(&write(&folder, "x", &file), PcapMode::Once)).unwrap();
    assert_eq!(receive(&mut wire), [(A[2..].to_vec(), 58)]);
}

#[test]
fn a_broken_file_of_a_folder_is_named_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let good = pcap(Order { big: false }, MICROSECONDS, 1, &[(1, 0, A, 60), (2, 0, B, 61)]);
    write(&folder, "1.pcap", &good);
    let broken = write(&folder, "2.pcap", &good[..good.len() - 1]);
    let error = PcapWire::open(&config(folder.path(), PcapMode::Once)).unwrap_err().to_string();
    assert!(error.starts_with(&broken.display().to_string()), "{error}");
    assert!(error.contains("damaged at packet 2") && error.contains("move it out of the folder"), "{error}");
    fs::remove_file(broken).unwrap();
    assert!(PcapWire::open(&config(folder.path(), PcapMode::Once)).is_ok());
}

#[test]
fn a_folder_is_replayed_in_the_order_of_names_and_loops() {
    let folder = tempfile::tempdir().unwrap();
    let order = Order { big: false };
    // The second file is older than the first; it follows on all the same.
    write(&folder, "2.pcap", &pcapng(order, 1, &[(5, 0, B, 61)]));
    write(&folder, "1.PCAP", &pcap(order, NANOSECONDS, 1, &[(1_000_000, 0, A, 60), (1_000_000, 9, A, 60)]));
    write(&folder, "0.txt", b"not a capture");
    let mut wire = PcapWire::open(&config(folder.path(), PcapMode::Loop)).unwrap();
    assert_eq!([0, 1, 2, 3].map(|place| wire.recording.due_ns(place)), [0, 9, 9, 9]);
    let frames = receive(&mut wire);
    assert_eq!(frames.len(), super::super::BURST_FRAMES);
    assert!(frames.iter().enumerate().all(|(n, (bytes, _))| bytes == if n % 4 < 2 { A } else { B }));
    assert_eq!(wire.state(), WireState::Live);
}

#[test]
fn paced_keeps_the_gaps_and_speed_shortens_them() {
    let folder = tempfile::tempdir().unwrap();
    // A gap of two seconds at forty times the speed, and a packet from the past, which does not wait.
    let packets: Packets<'_> = &[(5, 0, A, 60), (7, 0, B, 61), (1, 0, A, 60)];
    let path = write(&folder, "x", &pcap(Order { big: false }, MICROSECONDS, 1, packets));
    let mut wire = PcapWire::open(&PcapConfig { speed: 40.0, ..config(&path, PcapMode::Paced) }).unwrap();
    let start = Instant::now();
    assert_eq!(receive(&mut wire).len(), 1);
    assert_eq!(wire.state(), WireState::Live);
    let rest = loop {
        let frames = receive(&mut wire);
        if !frames.is_empty() {
            break frames;
        }
        assert!(start.elapsed() < Duration::from_secs(10));
    };
    assert!(start.elapsed() >= Duration::from_millis(50));
    assert_eq!(rest.len(), 2);
    assert_eq!(wire.state(), WireState::Finished);
}

#[test]
fn a_check_makes_no_file_and_finds_what_opening_finds() {
    let folder = tempfile::tempdir().unwrap();
    let input = write(&folder, "in.pcap", &pcap(Order { big: false }, MICROSECONDS, 1, &[]));
    let with =
        |output: &Path| PcapConfig { output: Some(output.to_owned()), ..config(&input, PcapMode::Once) };
    let output = folder.path().join("out.pcap");
    PcapWire::check(&with(&output)).unwrap();
    assert!(!output.exists());
    for wrong in [
        with(&input),
        with(&folder.path().join("none/out.pcap")),
        with(folder.path()),
        config(&input, PcapMode::Loop),
    ] {
        let opened = PcapWire::open(&wrong).unwrap_err().to_string();
        assert_eq!(PcapWire::check(&wrong).unwrap_err().to_string(), opened);
    }
}

#[test]
fn sent_frames_can_be_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(&folder, "in", &pcap(Order { big: true }, MICROSECONDS, 1, &[]));
    let output = folder.path().join("out");
    let mut wire =
        PcapWire::open(&PcapConfig { output: Some(output.clone()), ..config(&path, PcapMode::Once) })
            .unwrap();
    wire.transmit(A).unwrap();
    wire.transmit(B).unwrap();
    assert_eq!(wire.transmit(&[0; 13]), Err(TransmitError::TooShort));
    assert_eq!(wire.transmit(&[0; MAX_FRAME_BYTES + 1]), Err(TransmitError::TooLong));
    wire.flush();
    assert_eq!(wire.transmit_losses(), 0);
    let mut back = PcapWire::open(&config(&output, PcapMode::Once)).unwrap();
    assert_eq!(receive(&mut back), [(A.to_vec(), 60), (B.to_vec(), 61)]);
    assert!(back.recording.due_ns(1) < 60_000_000_000);

    // Every write to /dev/full fails for want of room; already opening it does.
    let full = PcapConfig { output: Some("/dev/full".into()), ..config(&path, PcapMode::Once) };
    assert!(matches!(PcapWire::open(&full).unwrap_err(), WireError::WriteCapture { .. }));

    let onto_itself = PcapConfig { output: Some(path.clone()), ..config(&path, PcapMode::Once) };
    assert!(PcapWire::open(&onto_itself).unwrap_err().to_string().contains("same file"));
}

#[test]
fn errors_name_the_packet_that_cannot_be_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let order = Order { big: false };
    let good = pcap(order, MICROSECONDS, 1, &[(1, 0, A, 60), (2, 0, B, 61)]);
    let mut swollen = good.clone();
    swollen[24 + 8..][..4].copy_from_slice(&300_000u32.to_le_bytes());
    swollen.resize(400_000, 0);
    let unknown_interface = {
        let mut file = pcapng(order, 1, &[(1, 0, A, 60)]);
        let at = file.windows(4).position(|w| w == 6u32.to_le_bytes()).unwrap();
        file[at + 8] = 3;
        file
    };
    for (name, bytes, expected) in [
        ("raw", pcap(order, MICROSECONDS, 101, &[]), "link type 101 (RAW)"),
        ("cooked", pcapng(order, 113, &[(1, 0, A, 60)]), "link type 113 (LINUX_SLL)"),
        ("cut", good[..good.len() - 1].to_vec(), "damaged at packet 2: the file ends in it; keep what"),
        ("cut-ng", pcapng(order, 1, &[(1, 0, A, 60)])[..168].to_vec(), "damaged at packet 2"),
        ("header", good[..30].to_vec(), "damaged at packet 1: the file ends in it; nothing before it"),
        ("swollen", swollen, "damaged at packet 1: its length of 300000"),
        ("interface", unknown_interface, "damaged at packet 1: it belongs to interface 3"),
        ("text", b"this is not a capture at all".to_vec(), "is not a pcap or pcapng file"),
        ("empty", Vec::new(), "is not a pcap or pcapng file"),
    ] {
        let path = write(&folder, name, &bytes);
        let error = PcapWire::open(&config(&path, PcapMode::Once)).unwrap_err().to_string();
        assert!(error.starts_with(&path.display().to_string()) && error.contains(expected), "{error}");
    }
    for (path, expected) in [("nowhere.pcap", "No such file"), ("void", "holds no capture")] {
        fs::create_dir_all(folder.path().join("void")).unwrap();
        let error =
            PcapWire::open(&config(&folder.path().join(path), PcapMode::Once)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let path = write(&folder, "good", &good);
    for speed in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(PcapWire::open(&PcapConfig { speed, ..config(&path, PcapMode::Paced) }).is_err());
    }
    let nothing = write(&folder, "nothing", &pcap(order, MICROSECONDS, 1, &[]));
    assert!(PcapWire::open(&config(&nothing, PcapMode::Loop)).is_err());
    assert_eq!(PcapWire::open(&config(&nothing, PcapMode::Once)).unwrap().state(), WireState::Finished);
}

/// The captures of the corpora, if `STEERD_CORPORA` says where they are.
#[test]
fn the_corpora_replay_in_full() {
    let Some(folder) = test_support::corpora("pcaps") else { return };
    let mut wire = PcapWire::open(&config(&folder, PcapMode::Once)).unwrap();
    let manifest = fs::read_to_string(folder.join("MANIFEST.tsv")).unwrap();
    let packets = |line: &str| line.split('\t').nth(3).unwrap().parse::<usize>().unwrap();
    let expected: usize = manifest.lines().skip(1).map(packets).sum();
    let mut frames = 0;
    while wire.state() == WireState::Live {
        frames += receive(&mut wire).len();
    }
    assert_eq!(frames, expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Opening either fails with an error or gives a wire that replays to its end.
    #[test]
    fn damaged_captures_never_panic(
        ng in any::<bool>(),
        big in any::<bool>(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        keep in any::<prop::sample::Index>(),
        cut in any::<bool>(),
    ) {
        let packets: Packets<'_> = &[(1, 0, A, 60), (2, 5, B, 1500), (3, 0, A, 60)];
        let order = Order { big };
        let mut file = if ng { pcapng(order, 1, packets) } else { pcap(order, MICROSECONDS, 1, packets) };
        for (place, value) in damage {
            let place = place.index(file.len());
            file[place] = value;
        }
        if cut {
            file.truncate(keep.index(file.len()));
        }
        let folder = tempfile::tempdir().unwrap();
        match PcapWire::open(&config(&write(&folder, "x.pcap", &file), PcapMode::Once)) {
            Err(error) => prop_assert!(error.to_string().contains("x.pcap")),
            Ok(mut wire) => {
                let mut rounds = 0;
                while wire.state() == WireState::Live {
                    prop_assert!(receive(&mut wire).iter().all(|(bytes, len)| bytes.len() <= *len as usize));
                    rounds += 1;
                    prop_assert!(rounds < 10);
                }
            }
        }
    }
}

/// Opening a FIFO waits for its other end, and a device never ends.
#[test]
fn only_regular_files_are_captures() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo.pcap");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    let capture = folder.path().join("c.pcap");
    fs::write(&capture, pcap(Order { big: false }, 0xa1b2_c3d4, 1, &[])).unwrap();
    for strange in [fifo.as_path(), Path::new("/dev/zero"), Path::new("/dev/null")] {
        let config = |path: &Path, output: Option<&Path>| PcapConfig {
            path: path.to_owned(),
            mode: PcapMode::Once,
            speed: 1.0,
            output: output.map(Path::to_owned),
        };
        for config in [config(strange, None), config(&capture, Some(strange))] {
            let problem = PcapWire::open(&config).unwrap_err().to_string();
            assert!(problem.contains("not a regular file"), "{problem}");
            assert!(problem.contains(&strange.display().to_string()), "{problem}");
        }
    }
    // What a FIFO's folder holds beside it is replayed.
    assert!(open_capture(&capture).is_ok());
}

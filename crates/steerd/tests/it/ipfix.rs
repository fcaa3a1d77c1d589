//! The flows that the running daemon exports, as two collectors read them that others wrote: the dissector of
//! tshark, and nfcapd.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use packet::build::FrameBuilder;
use pcap_file::pcap::{PcapPacket, PcapWriter};
use rustix::process::{Pid, Signal};

use crate::support::{Daemon, PATIENCE, not_run, run, stderr, stdout};

/// The flows of UDP to port 53, each of so many packets, and those of segments that a worker drops.
const STEERED: u16 = 20;
const PACKETS: u16 = 15;
const DROPPED: u16 = 3;

fn write_packets<'f>(file: &Path, frames: impl IntoIterator<Item = &'f Vec<u8>>) {
    let mut writer = PcapWriter::new(fs::File::create(file).expect("created")).expect("header");
    for frame in frames {
        let length = u32::try_from(frame.len()).expect("length");
        writer.write_packet(&PcapPacket::new(Duration::ZERO, length, frame)).expect("packet");
    }
}

/// The traffic that is replayed once.
fn frames() -> Vec<Vec<u8>> {
    let v4 = || FrameBuilder::new().ipv4([192, 0, 2, 1].into(), [198, 51, 100, 7].into());
    let v6 = FrameBuilder::new()
        .ipv6("2001:db8::1".parse().expect("address"), "2001:db8::2".parse().expect("address"))
        .udp(4000, 53)
        .frame_bytes(162)
        .build();
    let mut frames = vec![v6];
    for _ in 0..PACKETS {
        frames.extend((0..STEERED).map(|flow| v4().udp(1000 + flow, 53).frame_bytes(114).build()));
        frames.push(v4().udp(53, 1000).build());
    }
    frames.extend((0..DROPPED).map(|flow| v4().tcp(1000 + flow, 80, 2).build()));
    frames
}

/// A socket that collects, and the URL of it.
fn collector() -> (UdpSocket, String) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("bound");
    let url = format!("ipfix://{}", socket.local_addr().expect("address"));
    (socket, url)
}

/// A running nfcapd; ended when dropped.
struct Nfcapd {
    child: Child,
    port: u16,
}

impl Nfcapd {
    /// `None`, reported, if it is not there.
    fn start(folder: &Path) -> Option<Self> {
        let port = collector().0.local_addr().expect("address").port();
        let mut command = Command::new("nfcapd");
        command.args(["-b", "127.0.0.1", "-p", &port.to_string(), "-w"]).arg(folder);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let Ok(child) = child else {
            not_run("collecting flows by nfcapd", "nfdump is missing (.ci/deps nfdump)");
            return None;
        };
        let mut started = Self { child, port };
        let deadline = Instant::now() + PATIENCE;
        while UdpSocket::bind(("127.0.0.1", port)).is_ok() {
            assert!(Instant::now() < deadline, "nfcapd does not listen");
            assert!(started.child.try_wait().expect("asked").is_none(), "nfcapd has ended");
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(started)
    }

    /// Has it write its file.
    fn end(mut self) {
        let process = Pid::from_raw(self.child.id().cast_signed()).expect("a process");
        rustix::process::kill_process(process, Signal::TERM).expect("signalled");
        self.child.wait().expect("ended");
    }
}

impl Drop for Nfcapd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Replays the traffic through a policy that exports it to these collectors, until all flows are exported.
fn export(folder: &Path, collectors: &[String]) {
    write_packets(&folder.join("c.pcap"), &frames());
    let settings = "[workers]\ncores = 2\nframes = 8192\npages = [\"plain\"]\n\
                    [[softnic.ports]]\nwire = { kind = \"pcap\", path = \"c.pcap\" }\n";
    let mut policy = "version = 1\ndefault = \"kernel\"\n".to_owned();
    let mut names = Vec::new();
    for (number, url) in collectors.iter().enumerate() {
        // A replay that pauses for less than this has one record for each flow.
        policy +=
            &format!("[sinks.flows{number}]\nkind = \"count\"\nexport = \"{url}\"\nidle_seconds = 10\n");
        names.push(format!("\"flows{number}\""));
    }
    policy += &format!(
        "[groups.every]\nworkers = \"all\"\nsinks = [{}]\n[[rules]]\nname = \"dns\"\n\
         match = {{ protocol = \"udp\", dst_port = 53 }}\naction = {{ steer = \"every\" }}\n[[rules]]\nname = \"syn\"\n\
         match = {{ protocol = \"tcp\", dst_port = 80, tcp_flags = \"syn,!ack\" }}\naction = \"drop\"\n[[rules]]\nname = \"web\"\n\
         match = {{ protocol = \"tcp\", dst_port = 80 }}\naction = {{ steer = \"every\" }}\n",
        names.join(", ")
    );
    fs::write(folder.join("s.toml"), settings).expect("written");
    fs::write(folder.join("p.toml"), policy).expect("written");
    let path = |name: &str| folder.join(name).to_str().expect("path").to_owned();
    let daemon = Daemon::start(&["--config", &path("s.toml"), "--policy", &path("p.toml"), "--keep-running"]);
    let flows = f64::from(STEERED + DROPPED + 1);
    for number in 0..collectors.len() {
        let sink = format!("sink=\"flows{number}\"");
        let sent = |daemon: &Daemon| daemon.metric("steerd_sink_export_flows_total", &[&sink]);
        daemon.until("all flows are exported", |daemon| sent(daemon) >= flows);
        assert!(sent(&daemon) <= flows, "{:#}", daemon.state()["sinks"]);
        // The dropped ones are in no other count.
        let delivered = daemon.metric("steerd_sink_delivered_packets_total", &[&sink]);
        assert_eq!(delivered, f64::from(STEERED * PACKETS + 1));
    }
    let state = daemon.state();
    let (export, status) = (&state["sinks"][0]["export"], &state["sinks"][0]["status"]);
    assert_eq!((&export["connected"], &export["lost_flows"]), (&true.into(), &0.into()), "{state:#}");
    assert_eq!((&status["collector"], &status["state"]), (&collectors[0].clone().into(), &"sending".into()));
    let (status, summary, log) = daemon.terminate();
    assert!(status.success() && summary.contains("\npacket accounting matches\n"), "{summary}\n{log}");
}

/// The messages that have come to a socket.
fn received(socket: &UdpSocket) -> Vec<Vec<u8>> {
    socket.set_nonblocking(true).expect("set");
    let mut messages = Vec::new();
    let mut buffer = vec![0; 65_536];
    loop {
        match socket.recv(&mut buffer) {
            Ok(length) => messages.push(buffer[..length].to_vec()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return messages,
            Err(error) => panic!("{error}"),
        }
    }
}

/// The values of a field in all records, each with its number.
fn counted(output: &str, column: usize) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    let cells = output.lines().filter_map(|line| line.split('\t').nth(column));
    cells.flat_map(|cell| cell.split(';')).filter(|value| !value.is_empty()).for_each(|value| {
        *counts.entry(value).or_default() += 1;
    });
    counts
}

#[test]
fn tshark_reads_the_exported_flows() {
    let folder = tempfile::tempdir().expect("folder");
    let (socket, url) = collector();
    export(folder.path(), &[url]);
    let messages = received(&socket);
    assert!(
        messages.len() >= 2 && messages.iter().all(|message| message.len() <= 1472),
        "{}",
        messages.len()
    );
    // Behind the headers of Ethernet, IPv4 and UDP, for tshark.
    let wrap = |message: &Vec<u8>| {
        let address = [127, 0, 0, 1].into();
        FrameBuilder::new().ipv4(address, address).udp(5000, 4739).payload(message).build()
    };
    let file = folder.path().join("messages.pcap");
    write_packets(&file, &messages.iter().map(wrap).collect::<Vec<_>>());
    let mut command = Command::new("tshark");
    command.args(["-d", "udp.port==4739,cflow", "-T", "fields", "-E", "aggregator=;"]);
    let fields = [
        "cflow.selector_name",
        "cflow.forwarding_status_drop_code",
        "cflow.forwarding_status_consume_code",
        "cflow.packets",
        "cflow.octets",
        "cflow.flow_end_reason",
        "cflow.dstport",
        "cflow.srcaddrv6",
        "cflow.notsent_flows",
        "_ws.expert.message",
        "_ws.malformed",
    ];
    fields.iter().for_each(|field| _ = command.args(["-e", field]));
    let Ok(output) = command.arg("-r").arg(&file).output() else {
        return not_run("reading exported flows", "tshark is not installed");
    };
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    let column = |name: &str| {
        let number = fields.iter().position(|field| *field == name).expect("a column");
        counted(&text, number)
    };
    let (steered, dropped) = (usize::from(STEERED), usize::from(DROPPED));
    assert_eq!(
        column("cflow.selector_name"),
        BTreeMap::from([("dns", steered + 1), ("syn", dropped)]),
        "{text}"
    );
    assert_eq!(column("cflow.packets"), BTreeMap::from([("15", steered), ("1", dropped + 1)]), "{text}");
    // 100 bytes of IP in each of 15 packets, 148 of IPv6 in one; segments of TCP without data.
    assert_eq!(
        column("cflow.octets"),
        BTreeMap::from([("1500", steered), ("148", 1), ("40", dropped)]),
        "{text}"
    );
    assert_eq!(column("cflow.dstport"), BTreeMap::from([("53", steered + 1), ("80", dropped)]), "{text}");
    assert_eq!(column("cflow.flow_end_reason"), BTreeMap::from([("1", steered + dropped + 1)]), "{text}");
    assert_eq!(column("cflow.srcaddrv6"), BTreeMap::from([("2001:db8::1", 1)]), "{text}");
    // ACL drop, and consumed.
    assert_eq!(column("cflow.forwarding_status_drop_code"), BTreeMap::from([("2", dropped)]), "{text}");
    assert_eq!(
        column("cflow.forwarding_status_consume_code"),
        BTreeMap::from([("0", steered + 1)]),
        "{text}"
    );
    assert_eq!(column("cflow.notsent_flows").keys().copied().collect::<Vec<_>>(), ["0"], "{text}");
    assert_eq!(column("_ws.expert.message"), BTreeMap::new(), "{text}");
    assert_eq!(column("_ws.malformed"), BTreeMap::new(), "{text}");
}

#[test]
fn nfcapd_collects_the_exported_flows() {
    let folder = tempfile::tempdir().expect("folder");
    let files = folder.path().join("nfcapd");
    fs::create_dir(&files).expect("created");
    let Some(nfcapd) = Nfcapd::start(&files) else { return };
    export(folder.path(), &[format!("ipfix://127.0.0.1:{}", nfcapd.port)]);
    nfcapd.end();
    let mut command = Command::new("nfdump");
    command.args(["-q", "-N", "-6", "-o", "fmt:%pr %sa %sp %da %dp %pkt %byt %flg", "-R"]).arg(&files);
    let output = command.output().expect("it comes with nfcapd");
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    let mut flows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    flows.retain(|flow| !flow.is_empty());
    flows.sort();
    let mut expected = vec![vec!["17", "2001:db8::1", "4000", "2001:db8::2", "53", "1", "148", "........"]];
    let ports: Vec<String> = (0..STEERED).map(|flow| (1000 + flow).to_string()).collect();
    let flow = |protocol, port, to, packets, octets, flags| {
        vec![protocol, "192.0.2.1", port, "198.51.100.7", to, packets, octets, flags]
    };
    expected.extend(ports.iter().map(|port| flow("17", port, "53", "15", "1500", "........")));
    expected.extend(
        ports.iter().take(usize::from(DROPPED)).map(|port| flow("6", port, "80", "1", "40", "......S.")),
    );
    expected.sort();
    assert_eq!(flows, expected, "{text}");
}

/// A policy whose sink has these lines beside its kind.
fn write_policy(folder: &Path, name: &str, lines: &str) -> String {
    let text = format!(
        "version = 1\n[sinks.flows]\nkind = \"count\"\n{lines}[groups.g]\nworkers = \"all\"\nsinks = \"flows\"\n\
         [[rules]]\nname = \"dns\"\nmatch = {{ protocol = \"udp\", dst_port = 53 }}\naction = {{ steer = \"g\" }}\n"
    );
    fs::write(folder.join(name), text).expect("written");
    folder.join(name).to_str().expect("path").to_owned()
}

#[test]
fn a_diff_shows_the_options_of_the_export() {
    let folder = tempfile::tempdir().expect("folder");
    let before = write_policy(folder.path(), "old.toml", "");
    let after =
        write_policy(folder.path(), "new.toml", "export = \"ipfix+tcp://[2001:db8::7]\"\nidle_seconds = 5\n");
    let text = stdout(&run(&["diff", &before, &after]));
    for line in [
        "sink `flows`: export: none => ipfix+tcp://[2001:db8::7]:4739\n",
        "sink `flows`: idle_seconds: none => 5\n",
    ] {
        assert!(text.contains(line), "no {line} in\n{text}");
    }
}

#[test]
fn wrong_options_of_the_export_are_refused() {
    let folder = tempfile::tempdir().expect("folder");
    for (lines, message) in [
        ("idle_seconds = 5\n", "`idle_seconds` without `export`"),
        ("export = \"192.0.2.7:4739\"\n", "it begins with neither ipfix:// nor ipfix+tcp://"),
        ("export = \"ipfix://2001:db8::7\"\n", "`export` is not a collector: its port"),
        ("export = \"ipfix://192.0.2.7\"\nflows = 8\n", "`flows`"),
    ] {
        let policy = write_policy(folder.path(), "p.toml", lines);
        let output = run(&["check", &policy]);
        assert!(
            !output.status.success() && stderr(&output).contains(message),
            "{lines}: {}",
            stderr(&output)
        );
    }
}

//! Sinks of kind `app` in the running daemon: the example policy with its clients, restarts, and clients that
//! are killed.

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::support::{Daemon, PATIENCE, config, not_run};
use packet::build::FrameBuilder;
use packet::{FlowKey, MacAddr};
use rustix::process::Signal;
use serde_json::Value;
use steerd_client::{Options, PacketBatch, SinkClient};

/// The example policy with its sockets in a folder of the test.
fn example(folder: &Path) -> PathBuf {
    let text = std::fs::read_to_string(config().join("examples/app-sharing.toml")).expect("the example");
    let policy = folder.join("policy.toml");
    std::fs::write(&policy, text.replace("/run/steerd", &folder.display().to_string())).expect("written");
    policy
}

fn start(policy: &Path) -> Daemon {
    Daemon::start(&["--demo", "--policy", policy.to_str().expect("path")])
}

fn connect(socket: &Path) -> SinkClient {
    let options = Options { rings: 2, ring_size: 4096, ..Options::default() };
    SinkClient::new(socket, options).expect("a connection")
}

/// Receives until the client has had `count` packets; returns the flows among them, without direction.
fn receive(client: &mut SinkClient, count: u64) -> HashSet<String> {
    let deadline = Instant::now() + PATIENCE;
    let mut batch = PacketBatch::new(64);
    let mut flows = HashSet::new();
    let wanted = client.counts().received + count;
    while client.counts().received < wanted {
        assert!(Instant::now() < deadline, "{:?} {:?}", client.counts(), client.last_error());
        client.receive(&mut batch, Duration::from_millis(50));
        for packet in batch.iter() {
            let key = FlowKey::of(packet);
            let mut ends = [
                format!("{:?} {}", key.src_addr(), key.src_port),
                format!("{:?} {}", key.dst_addr(), key.dst_port),
            ];
            ends.sort();
            flows.insert(ends.join(" "));
        }
    }
    flows
}

/// The status of a sink.
fn status(daemon: &Daemon, sink: &str) -> Value {
    let state = daemon.state();
    let sinks = state["sinks"].as_array().expect("sinks");
    sinks.iter().find(|entry| entry["name"] == sink).expect("the sink")["status"].clone()
}

/// A number of the status of a sink.
fn number(daemon: &Daemon, sink: &str, name: &str) -> u64 {
    status(daemon, sink)[name].as_u64().expect("a number")
}

#[test]
fn the_example_serves_its_clients() {
    let folder = tempfile::tempdir().expect("folder");
    let mut daemon = start(&example(folder.path()));
    let (resolver, analyser) = (folder.path().join("resolver.sock"), folder.path().join("analyser.sock"));
    let (mut first, mut second) = (connect(&resolver), connect(&resolver));
    let mut all = connect(&analyser);
    // More than the rings hold: the packets that arrived before the second came.
    receive(&mut first, 10_000);
    let (flows, others) = (receive(&mut first, 500), receive(&mut second, 500));
    assert!(flows.is_disjoint(&others), "whole flows: {flows:?} {others:?}");
    assert!(receive(&mut all, 500).iter().any(|flow| flow.contains(" 80") || flow.contains(" 443")));
    let resolver_status = status(&daemon, "resolver");
    let client = &resolver_status["connected_clients"][0];
    assert_eq!((&client["id"], &client["process"]), (&1.into(), &std::process::id().into()), "{client:#}");
    assert!(client["name"].as_str().is_some_and(|name| name.contains("steerd-client")), "{client:#}");
    assert!(daemon.metric("steerd_sink_delivered_packets_total", &["sink=\"analyser\""]) >= 500.0);
    // A reload that changes options of a sink closes it, and its clients connect again.
    let policy = folder.path().join("policy.toml");
    let text = std::fs::read_to_string(&policy).expect("the policy");
    std::fs::write(&policy, text.replace("clients = 4", "clients = 5")).expect("written");
    daemon.signal(Signal::HUP);
    daemon.wait_for("is in force after", 1);
    let deadline = Instant::now() + PATIENCE;
    while first.counts().connections < 2 {
        assert!(Instant::now() < deadline, "{:?}\n{}", first.last_error(), daemon.log());
        receive(&mut first, 1);
    }
    receive(&mut all, 500);
    assert_eq!(all.counts().connections, 1, "its sink has not changed");
    let (status, summary, log) = daemon.terminate();
    assert!(status.success() && summary.contains("\npacket accounting matches\n"), "{summary}\n{log}");
    assert!(!resolver.exists() && !analyser.exists(), "the sockets are removed");
}

#[test]
fn a_sink_without_client_degrades_the_daemon_until_it_has_one() {
    let folder = tempfile::tempdir().expect("folder");
    let daemon = start(&example(folder.path()));
    let losing = |sink: &str| format!("sink `{sink}` loses all its packets (no_client)");
    let both = format!("ready, degraded: {}, {}\n", losing("analyser"), losing("resolver"));
    daemon.until_page("/readyz", &(200, both));
    assert_eq!(daemon.page("/healthz"), (200, "ok\n".to_owned()));
    let mut client = connect(&folder.path().join("analyser.sock"));
    receive(&mut client, 100);
    let degraded = format!("degraded: {}", losing("resolver"));
    let deadline = Instant::now() + PATIENCE;
    while daemon.page("/readyz") != (200, format!("ready, {degraded}\n")) {
        assert!(Instant::now() < deadline, "{:?}\n{}", daemon.page("/readyz"), daemon.log());
        receive(&mut client, 100);
    }
    let analyser = |daemon: &Daemon| daemon.metric("steerd_sink_losing", &["sink=\"analyser\""]);
    daemon.until("the metric", |daemon| analyser(daemon) < 0.5);
    let state = daemon.state();
    assert_eq!((&state["ready"], state["degraded"].as_str()), (&true.into(), Some(&*degraded)), "{state:#}");
    let (status, summary, log) = daemon.terminate();
    assert!(status.success(), "{log}");
    assert!(summary.contains("\nlost: ") && summary.contains("sink resolver: no_client "), "{summary}");
    let row = summary.lines().find(|line| line.starts_with("resolver (loses all)")).expect("its row");
    assert!(row.contains(" app ") && row.contains("no_client "), "{summary}");
    assert!(summary.contains(&format!("\n{degraded}\n")), "{summary}");
}

#[test]
fn clients_connect_again_when_the_daemon_restarts() {
    let folder = tempfile::tempdir().expect("folder");
    let policy = example(folder.path());
    let daemon = start(&policy);
    let mut client = connect(&folder.path().join("analyser.sock"));
    receive(&mut client, 100);
    daemon.signal(Signal::KILL);
    daemon.end();
    let _daemon = start(&policy);
    let deadline = Instant::now() + PATIENCE;
    while client.counts().connections < 2 {
        assert!(Instant::now() < deadline, "{:?}", client.last_error());
        client.receive(&mut PacketBatch::new(64), Duration::from_millis(50));
    }
    receive(&mut client, 100);
}

/// The client of the test below, in a process of its own: connects, says so, and receives until it is killed.
#[test]
#[ignore = "a process of another test"]
fn client_process() {
    let Some(socket) = std::env::var_os("TEST_SOCKET") else { return };
    let mut client = connect(Path::new(&socket));
    let mut batch = PacketBatch::new(64);
    println!("connected");
    loop {
        client.receive(&mut batch, Duration::from_secs(1));
        batch.iter().for_each(|packet| {
            client.send(packet);
        });
        client.flush();
    }
}

#[test]
fn a_hundred_killed_clients_disturb_nobody() {
    let folder = tempfile::tempdir().expect("folder");
    let daemon = start(&example(folder.path()));
    let socket = folder.path().join("analyser.sock");
    let mut steady = connect(&socket);
    for _ in 0..100 {
        let mut child = Command::new(std::env::current_exe().expect("this binary"))
            .args(["--exact", "apps::client_process", "--ignored", "--nocapture"])
            .env("TEST_SOCKET", &socket)
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let connected = output.lines().map_while(Result::ok).any(|line| line.contains("connected"));
        child.kill().expect("killed");
        child.wait().expect("ended");
        assert!(connected, "{}", daemon.log());
        receive(&mut steady, 20);
    }
    daemon.until("all have left", |daemon| number(daemon, "analyser", "left") == 100);
    assert_eq!(number(&daemon, "analyser", "violations"), 0, "{:#}", daemon.state()["sinks"]);
    assert_eq!(steady.counts().connections, 1);
    let (status, summary, log) = daemon.terminate();
    assert!(status.success() && summary.contains("\npacket accounting matches\n"), "{summary}\n{log}");
}

/// Starts testpmd as a client that sends every packet back with its addresses exchanged; `None`, after
/// `not_run`, where it is not installed.
fn testpmd(socket: &Path) -> Option<std::process::Child> {
    let device = format!("net_memif0,role=client,socket={},socket-abstract=no", socket.display());
    static STARTED: AtomicU32 = AtomicU32::new(0);
    let number = STARTED.fetch_add(1, Ordering::Relaxed);
    let prefix = format!("steerd-apps-{}-{number}", std::process::id());
    let child = Command::new("dpdk-testpmd")
        .args(["--no-huge", "-m", "128", "--no-pci", "--no-telemetry", "--file-prefix", &prefix])
        .args(["--lcores", "0@(0-1),1@(0-1)", "--vdev", &device, "--", "--auto-start", "--no-mlockall"])
        .args(["--total-num-mbufs=4096", "--forward-mode=macswap", "--stats-period=1"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    if child.is_err() {
        not_run("memif with testpmd", "install dpdk-dev");
    }
    child.ok()
}

#[test]
fn testpmd_receives_from_the_daemon() {
    let folder = tempfile::tempdir().expect("folder");
    let daemon = start(&example(folder.path()));
    let socket = folder.path().join("analyser.sock");
    let mut other = connect(&socket);
    let Some(mut child) = testpmd(&socket) else { return };
    let returned = |daemon: &Daemon| -> u64 {
        status(daemon, "analyser")["connected_clients"][1]["returned"].as_u64().unwrap_or(0)
    };
    let begun = Instant::now();
    while returned(&daemon) < 1000 {
        assert!(begun.elapsed() < PATIENCE, "{:#}", daemon.state()["sinks"]);
        receive(&mut other, 10);
    }
    child.kill().expect("killed");
    child.wait().expect("ended");
    daemon.until("it is noticed", |daemon| number(daemon, "analyser", "clients") == 1);
    receive(&mut other, 100);
    let (status, summary, log) = daemon.terminate();
    assert!(status.success() && summary.contains("\npacket accounting matches\n"), "{summary}\n{log}");
}

/// A classic capture file of these frames, a millisecond apart.
fn capture(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 1].map(u32::to_ne_bytes).concat();
    for (number, frame) in (0u32..).zip(frames) {
        let bytes = u32::try_from(frame.len()).expect("short");
        file.extend([number / 1000, number % 1000 * 1000, bytes, bytes].map(u32::to_ne_bytes).concat());
        file.extend(frame);
    }
    file
}

const SENDING: &str = r#"
version = 1
[sinks.answers]
kind = "app"
socket = "SOCKET"
transmit = true
[groups.main]
workers = "all"
sinks = "answers"
[[rules]]
name = "queries"
match = { protocol = "udp", dst_port = 53 }
action = { steer = "main" }
"#;

/// The frames that testpmd sends leave by the port, and every frame is counted once.
#[test]
fn frames_of_testpmd_leave_on_the_wire() {
    let folder = tempfile::tempdir().expect("folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let stations = [MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2])];
    let frame = |flow: u16| {
        FrameBuilder::new()
            .ethernet(stations[0], stations[1])
            .ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into())
            .udp(1024 + flow, 53)
            .frame_bytes(60 + usize::from(flow))
            .build()
    };
    let frames: Vec<_> = (0..200).map(frame).collect();
    std::fs::write(path("received.pcap"), capture(&frames)).expect("written");
    std::fs::write(path("policy.toml"), SENDING.replace("SOCKET", &path("app.sock"))).expect("written");
    let wire = format!(
        r#"wire = {{ kind = "pcap", path = "{}", mode = "loop", output = "{}" }}"#,
        path("received.pcap"),
        path("sent.pcap")
    );
    let settings = format!(
        "[device]\nname = \"softnic0\"\n[workers]\ncores = 2\npages = [\"plain\"]\n[[softnic.ports]]\n{wire}\n"
    );
    std::fs::write(path("steerd.toml"), settings).expect("written");
    let daemon = Daemon::start(&["--config", &path("steerd.toml"), "--policy", &path("policy.toml")]);
    let Some(mut child) = testpmd(&folder.path().join("app.sock")) else { return };
    let sent = |daemon: &Daemon| daemon.metric("steerd_sink_transmit_sent_packets_total", &["kind=\"app\""]);
    daemon.until("frames leave", |daemon| sent(daemon) >= 1000.0);
    child.kill().expect("killed");
    child.wait().expect("ended");
    daemon.until("it is noticed", |daemon| number(daemon, "answers", "clients") == 0);
    daemon.until("nothing is in flight", |daemon| {
        let state = daemon.state();
        let workers = state["sinks"][0]["transmit"].as_array().expect("workers").clone();
        workers.iter().all(|worker| worker["in_flight_packets"] == 0)
    });
    let state = daemon.state();
    let of_sink: u64 = state["sinks"][0]["transmit"]
        .as_array()
        .expect("workers")
        .iter()
        .map(|worker| {
            assert_eq!(worker["dropped_packets"], serde_json::json!({}), "{worker:#}");
            assert_eq!(worker["offered_packets"], worker["delivered_packets"], "{worker:#}");
            worker["delivered_packets"].as_u64().expect("a number")
        })
        .sum();
    assert_eq!(state["ports"][0]["sent_packets"], of_sink, "{:#}", state["ports"]);
    let (status, summary, log) = daemon.terminate();
    assert!(status.success() && summary.contains("\npacket accounting matches\n"), "{summary}\n{log}");
    let file = std::fs::read(path("sent.pcap")).expect("the frames that were sent");
    let seen = test_support::frames(&file);
    assert_eq!(seen.len() as u64, of_sink);
    for frame in seen {
        let key = FlowKey::of(frame);
        assert_eq!((key.src_mac, key.dst_mac, key.dst_port), (stations[0], stations[1], 53));
        let flow = key.src_port - 1024;
        assert_eq!(frame[12..], frames[usize::from(flow)][12..], "the rest is as it was received");
    }
}

//! DPDK's testpmd as client (`net_memif`, Debian's package `dpdk-dev`).

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use super::*;

/// A running testpmd with a prompt. Killed when it is dropped.
pub(super) struct Testpmd {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Testpmd {
    /// Starts testpmd with these forward mode and number of queues, and rings of 512 descriptors; `None`,
    /// after `not_run`, where it is not installed.
    pub(super) fn start(socket: &Path, mode: &str, queues: u16) -> Option<Self> {
        static STARTED: AtomicU64 = AtomicU64::new(0);
        if Command::new("dpdk-testpmd").arg("--version").output().is_err() {
            test_support::not_run("memif with testpmd", "install dpdk-dev");
            return None;
        }
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("steerd-test-{}-{number}", std::process::id());
        let socket = format!("socket={},socket-abstract=no", socket.display());
        let device = format!("net_memif0,role=client,id=0,{socket},rsize=9");
        // Without stdbuf, the output waits in a buffer of testpmd.
        let child = Command::new("stdbuf")
            .args(["--output=L", "dpdk-testpmd"])
            // Two threads on any core; the names of files in /var/run/dpdk contain the prefix.
            .args(["--no-huge", "-m", "128", "--no-pci", "--no-telemetry", "--file-prefix", &prefix])
            .args(["--lcores", "0@(0-1),1@(0-1)", "--vdev", &device, "--", "--interactive", "--no-mlockall"])
            .args(["--total-num-mbufs=4096", "--no-flush-rx", "--forward-mode", mode])
            .args([format!("--rxq={queues}"), format!("--txq={queues}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut child = child.expect("coreutils has stdbuf");
        let output = BufReader::new(child.stdout.take().unwrap());
        let (send, lines) = channel();
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        let input = child.stdin.take().unwrap();
        Some(Self { child, input, lines })
    }

    pub(super) fn command(&mut self, line: &str) {
        let _ = writeln!(self.input, "{line}");
    }

    /// The next line that contains `text`.
    fn find(&mut self, text: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        let mut seen = String::new();
        while let Ok(line) = self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            if line.contains(text) {
                return line;
            }
            seen += &line;
            seen.push('\n');
        }
        panic!("testpmd did not write `{text}`: {seen}");
    }

    /// Received and sent packets since the port was started.
    pub(super) fn traffic(&mut self) -> (u64, u64) {
        self.command("show port stats 0");
        let number = |line: &str| {
            let text = line.split(':').nth(1).and_then(|rest| rest.split_whitespace().next());
            text.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{line}"))
        };
        (number(&self.find("RX-packets:")), number(&self.find("TX-packets:")))
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Fixture {
    /// Starts forwarding and waits until it works: testpmd posts its first buffers some time after it has
    /// connected. Returns how many packets it has had until then.
    fn forward(&mut self, testpmd: &mut Testpmd, clients: u64) -> u64 {
        testpmd.command("start");
        eventually("testpmd connects", || self.number("clients") == clients);
        let begun = self.number("returned");
        let mut delivered = 0;
        for worker in 0..self.endpoints.len() {
            eventually("testpmd posts buffers", || {
                let before = self.traffic().delivered.packets;
                self.endpoints[worker].deliver_all(&flows(1));
                delivered += self.traffic().delivered.packets - before;
                delivered > worker as u64
            });
        }
        eventually("they come back", || {
            for endpoint in &mut self.endpoints {
                endpoint.take();
            }
            self.number("returned") == begun + delivered
        });
        delivered
    }
}

/// Delivers `rounds` batches of 16 packets, each when the previous one was sent back, and returns what was
/// delivered.
fn echo(fixture: &mut Fixture, rounds: u64) -> u64 {
    let sent = flows(16);
    let (delivered, returned) = (fixture.traffic().delivered.packets, fixture.number("returned"));
    for round in 1..=rounds {
        fixture.endpoints.iter_mut().for_each(|endpoint| endpoint.deliver_all(&sent));
        let expected = returned + fixture.traffic().delivered.packets - delivered;
        eventually(&format!("round {round}: the packets come back: {:?}", fixture.app.status()), || {
            for endpoint in &mut fixture.endpoints {
                endpoint.take();
            }
            fixture.number("returned") == expected
        });
    }
    fixture.traffic().delivered.packets - delivered
}

#[test]
fn testpmd_receives_every_packet_and_sends_it_back() {
    let mut fixture = fixture(2, |_| {});
    for (mode, queues) in [("io", 1), ("macswap", 2)] {
        let before = fixture.number("left");
        let Some(mut testpmd) = Testpmd::start(&fixture.path(), mode, queues) else { return };
        let first = fixture.forward(&mut testpmd, 1);
        let client = fixture.clients().remove(0);
        assert!(client.text("name").is_some_and(|name| name.contains("DPDK 2")), "{client:?}");
        let rings = (client.number("rings"), client.number("ring_size"));
        assert_eq!(rings, (Some(u64::from(queues)), Some(512)));
        assert_eq!(echo(&mut fixture, 50), 2 * 50 * 16, "none is lost");
        let expected = first + 2 * 50 * 16;
        assert_eq!(testpmd.traffic(), (expected, expected), "{mode}");
        testpmd.command("stop");
        testpmd.command("quit");
        eventually("testpmd leaves", || fixture.number("left") == before + 1);
    }
    assert_eq!(fixture.number("violations"), 0, "{:?}", fixture.app.status());
}

#[test]
fn testpmd_and_another_client_both_get_everything() {
    let mut fixture = fixture(1, |_| {});
    let Some(mut testpmd) = Testpmd::start(&fixture.path(), "io", 1) else { return };
    let first = fixture.forward(&mut testpmd, 1);
    let mut client = fixture.connect(1);
    for _ in 0..20 {
        assert_eq!(echo(&mut fixture, 1), 16);
        assert_eq!(drain(&mut client), flows(16));
    }
    assert_eq!(testpmd.traffic(), (first + 20 * 16, first + 20 * 16));
    testpmd.kill();
    eventually("it is noticed", || fixture.number("left") == 1);
    fixture.endpoints[0].deliver_all(&flows(16));
    assert_eq!(drain(&mut client), flows(16), "the other client goes on");
}

#[test]
fn each_side_can_restart() {
    let mut first = fixture(1, |_| {});
    let Some(mut testpmd) = Testpmd::start(&first.path(), "io", 1) else { return };
    first.forward(&mut testpmd, 1);
    assert_eq!(echo(&mut first, 3), 48);
    // The server goes and comes. net_memif frees its rings then, also those that testpmd forwards by at that
    // moment, which can crash it.
    testpmd.command("stop");
    let _ = testpmd.find("Telling cores to stop");
    let _ = testpmd.find("Done.");
    let Fixture { folder, app, endpoints } = first;
    drop((app, endpoints));
    let (app, endpoints) = start("apps", &options(folder.path()), None, vec![None]).unwrap();
    let mut second = Fixture { folder, app, endpoints };
    // net_memif connects when its port is started, and not if it has not noticed yet that the server has
    // gone.
    let begun = Instant::now();
    let mut tried: Option<Instant> = None;
    while second.number("clients") == 0 {
        if tried.is_none_or(|tried| tried.elapsed() > Duration::from_secs(5)) {
            tried = Some(Instant::now());
            for command in ["port stop 0", "port start 0"] {
                testpmd.command(command);
            }
        }
        assert!(
            begun.elapsed() < PATIENCE,
            "testpmd does not connect again: {:?}\n{}",
            second.app.status(),
            testpmd.lines.try_iter().collect::<Vec<_>>().join("\n")
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    second.forward(&mut testpmd, 1);
    assert_eq!(echo(&mut second, 3), 48);
    // The client goes and comes.
    testpmd.kill();
    eventually("it is noticed", || second.number("clients") == 0);
    let Some(mut testpmd) = Testpmd::start(&second.path(), "io", 1) else { return };
    second.forward(&mut testpmd, 1);
    assert_eq!(echo(&mut second, 3), 48);
}

/// A client that is stopped (SIGSTOP) has full rings, and nothing else happens.
#[test]
fn a_client_that_stalls_harms_nobody() {
    let mut fixture = fixture(1, |_| {});
    let Some(mut testpmd) = Testpmd::start(&fixture.path(), "io", 1) else { return };
    fixture.forward(&mut testpmd, 1);
    let mut client = fixture.connect(1);
    assert_eq!(echo(&mut fixture, 1), 16);
    let _ = drain(&mut client);
    let process = rustix::process::Pid::from_raw(testpmd.child.id().cast_signed()).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::STOP).unwrap();
    let before = fixture.dropped(SinkDrop::RingFull);
    for _ in 0..200 {
        fixture.endpoints[0].deliver_all(&flows(16));
        fixture.endpoints[0].take();
        assert_eq!(drain(&mut client).len(), 16);
    }
    assert!(fixture.of_client(0, "ring_full") > 0, "{:?}", fixture.clients());
    assert_eq!((fixture.number("clients"), fixture.dropped(SinkDrop::RingFull)), (2, before));
    rustix::process::kill_process(process, rustix::process::Signal::CONT).unwrap();
    let (returned, before) = (fixture.number("returned"), fixture.traffic().delivered.packets);
    fixture.endpoints[0].deliver_all(&flows(1));
    eventually("it goes on", || {
        fixture.endpoints[0].take();
        fixture.number("returned") > returned
    });
    assert_eq!(fixture.traffic().delivered.packets, before + 1);
}

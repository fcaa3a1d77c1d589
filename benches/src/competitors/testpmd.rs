//! DPDK's testpmd on virtual devices (Debian's package `dpdk-dev`), without huge pages, with one forwarding core.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// The longest time for an answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// What is started.
#[derive(Clone, Debug)]
pub struct TestpmdOptions<'o> {
    /// The devices: `net_null0,size=64`.
    pub devices: &'o [String],
    /// `macswap`, `io`, `rxonly`, `txonly`.
    pub mode: &'o str,
    /// The core that forwards.
    pub core: usize,
    /// The core of the prompt, which sleeps.
    pub prompt_core: usize,
    /// The length of packets that it makes.
    pub packet_bytes: u32,
}

/// A running testpmd with a prompt. Killed when it is dropped.
pub struct Testpmd {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Testpmd {
    /// Starts it; packets are forwarded from [`Testpmd::command`] `start` on.
    ///
    /// # Errors
    /// Why it cannot be started, or its last line.
    pub fn start(options: &TestpmdOptions<'_>) -> Result<Self, String> {
        static STARTED: AtomicU64 = AtomicU64::new(0);
        let TestpmdOptions { devices, mode, core, prompt_core, packet_bytes } = options;
        // Without stdbuf, the output waits in a buffer of testpmd.
        super::run(Command::new("sh").args(["-c", "command -v stdbuf && command -v dpdk-testpmd"]))
            .map_err(|_| "there is no dpdk-testpmd (package dpdk-dev)".to_owned())?;
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("steerd-bench-{}-{number}", std::process::id());
        let child = Command::new("stdbuf")
            .args(["--output=L", "dpdk-testpmd"])
            .args(["--no-huge", "-m", "128", "--no-pci", "--no-telemetry", "--file-prefix", &prefix])
            .args(["--lcores", &format!("0@{prompt_core},1@{core}")])
            .args(devices.iter().map(|device| format!("--vdev={device}")))
            .args(["--", "--interactive", "--no-mlockall", "--total-num-mbufs=4096", "--no-flush-rx"])
            .args([format!("--forward-mode={mode}"), format!("--txpkts={packet_bytes}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut child = child.map_err(|error| format!("dpdk-testpmd: {error}"))?;
        let output = BufReader::new(child.stdout.take().ok_or("dpdk-testpmd has no output")?);
        let input = child.stdin.take().ok_or("dpdk-testpmd has no input")?;
        let (send, lines) = channel();
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        let mut testpmd = Self { child, input, lines };
        testpmd.received()?;
        Ok(testpmd)
    }

    /// Sends a line to the prompt.
    pub fn command(&mut self, line: &str) {
        // If it has ended, the next question finds out.
        let _ = writeln!(self.input, "{line}");
    }

    /// The next line that contains `text`.
    fn find(&mut self, text: &str) -> Result<String, String> {
        let deadline = Instant::now() + PATIENCE;
        let mut last = String::new();
        while let Ok(line) = self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            if line.contains(text) {
                return Ok(line);
            }
            last = line;
        }
        Err(format!("dpdk-testpmd did not write `{text}`; its last line: {last}"))
    }

    /// The packets that port 0 has received.
    ///
    /// # Errors
    /// It has ended or does not answer.
    pub fn received(&mut self) -> Result<u64, String> {
        self.command("show port stats 0");
        // `stop` prints other statistics with the same names.
        self.find("NIC statistics for port 0")?;
        let line = self.find("RX-packets:")?;
        let number = line.split(':').nth(1).and_then(|rest| rest.split_whitespace().next());
        number.and_then(|number| number.parse().ok()).ok_or(line)
    }

    /// The packets per second that port 0 receives, over `time`. It must be forwarding.
    ///
    /// # Errors
    /// As [`Testpmd::received`].
    pub fn rate(&mut self, time: Duration) -> Result<f64, String> {
        let (before, begun) = (self.received()?, Instant::now());
        std::thread::sleep(time);
        let after = self.received()?;
        Ok((after - before) as f64 / begun.elapsed().as_secs_f64())
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

//! DPDK's testpmd on virtual devices (Debian's package `dpdk-dev`) with one forwarding core, on reserved huge
//! pages where there are enough of them.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::machine;

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
    /// The packets that its devices keep, beyond those that it moves.
    pub stored_packets: u32,
    /// The queues of a device, in each direction.
    pub queues: u32,
}

impl<'o> TestpmdOptions<'o> {
    /// One that receives packets of this length on a core and drops them, with one queue.
    #[must_use]
    pub fn receiver(devices: &'o [String], (core, prompt_core): (usize, usize), packet_bytes: u32) -> Self {
        Self { devices, mode: "rxonly", core, prompt_core, packet_bytes, stored_packets: 0, queues: 1 }
    }

    fn buffers(&self) -> u32 {
        4096 + self.stored_packets
    }

    /// A buffer has 2 KiB of data, headroom and header.
    fn memory_mib(&self) -> u32 {
        self.buffers() * 5 / 2048 + 32
    }

    /// Reserved huge pages, if there are enough.
    fn memory(&self) -> &'static str {
        let is_enough = machine::free_huge_mib() >= u64::from(self.memory_mib());
        if is_enough { "--in-memory" } else { "--no-huge" }
    }

    /// As a line for a shell, whose prompt takes `start`.
    #[must_use]
    pub fn command(&self) -> String {
        format!("dpdk-testpmd {}", self.arguments("bench").join(" "))
    }

    fn arguments(&self, prefix: &str) -> Vec<String> {
        let Self { devices, mode, core, prompt_core, packet_bytes, queues, .. } = self;
        let mut words: Vec<String> = vec![self.memory().to_owned(), format!("-m {}", self.memory_mib())];
        words.extend(["--no-pci", "--no-telemetry"].map(str::to_owned));
        words.push(format!("--file-prefix={prefix}"));
        words.push(format!("--lcores=0@{prompt_core},1@{core}"));
        words.extend(devices.iter().map(|device| format!("--vdev={device}")));
        words.extend(["--", "--interactive", "--no-mlockall", "--no-flush-rx"].map(str::to_owned));
        words.push(format!("--total-num-mbufs={}", self.buffers()));
        words.push(format!("--forward-mode={mode}"));
        words.push(format!("--txpkts={packet_bytes}"));
        if *queues > 1 {
            words.extend(["rxq", "txq"].map(|kind| format!("--{kind}={queues}")));
        }
        words
    }
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
        // Without stdbuf, the output waits in a buffer of testpmd.
        super::run(Command::new("sh").args(["-c", "command -v stdbuf && command -v dpdk-testpmd"]))
            .map_err(|_| "there is no dpdk-testpmd (package dpdk-dev)".to_owned())?;
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("steerd-bench-{}-{number}", std::process::id());
        let child = Command::new("stdbuf")
            .args(["--output=L", "dpdk-testpmd"])
            .args(options.arguments(&prefix).iter().flat_map(|word| word.split(' ')))
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

//! Programs that capture an interface to a file, in the network namespace of this process: dumpcap, tcpdump
//! and netsniff-ng.

use std::io::{self, BufRead as _, BufReader, Read, Seek as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// The longest time until a program captures, and until it has ended.
const PATIENCE: Duration = Duration::from_secs(5);

/// A capture program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureTool {
    /// Wireshark's (package tshark).
    Dumpcap,
    /// Of the package of the same name.
    Tcpdump,
    /// Of the package of the same name.
    NetsniffNg,
}

impl CaptureTool {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Dumpcap, Self::Tcpdump, Self::NetsniffNg];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Dumpcap => "dumpcap",
            Self::Tcpdump => "tcpdump",
            Self::NetsniffNg => "netsniff-ng",
        }
    }

    /// What it writes once it captures.
    fn ready(self) -> &'static str {
        match self {
            Self::Dumpcap => "File:",
            Self::Tcpdump => "listening on",
            Self::NetsniffNg => "Running!",
        }
    }

    /// How long after the last packet it has read all: libpcap's block of packets is full, or that old.
    /// tcpdump waits for 1 s, dumpcap for 250 ms.
    #[must_use]
    pub fn settles(self) -> Duration {
        Duration::from_millis(if self == Self::Tcpdump { 1200 } else { 400 })
    }

    fn arguments(self, interface: &str, file: &str, snap_bytes: u32, buffer_mib: u32) -> Vec<String> {
        let text = match self {
            Self::Dumpcap => format!("-i {interface} -w {file} -s {snap_bytes} -B {buffer_mib}"),
            Self::Tcpdump => {
                format!("-i {interface} -w {file} -s {snap_bytes} -B {} -n -Z root", buffer_mib * 1024)
            }
            Self::NetsniffNg => {
                format!("--in {interface} --out {file} --ring-size {buffer_mib}MiB --silent --no-sock-mem")
            }
        };
        text.split(' ').map(str::to_owned).collect()
    }

    /// Starts it on a core, and waits until it captures.
    ///
    /// # Errors
    /// It is not installed, or does not capture.
    pub fn start(
        self,
        core: usize,
        interface: &str,
        file: &Path,
        (snap_bytes, buffer_mib): (u32, u32),
    ) -> Result<Capture, String> {
        super::run(Command::new("sh").args(["-c", &format!("command -v {}", self.name())]))
            .map_err(|_| format!("there is no {}", self.name()))?;
        let core = core.to_string();
        let mut child = Command::new("taskset")
            .args(["-c", &core, "stdbuf", "--output=L", self.name()])
            .args(self.arguments(interface, &file.display().to_string(), snap_bytes, buffer_mib))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("taskset: {error}"))?;
        let (send, lines) = channel();
        let outputs: [Option<Box<dyn Read + Send>>; 2] = [
            child.stdout.take().map(|output| Box::new(output) as _),
            child.stderr.take().map(|output| Box::new(output) as _),
        ];
        for output in outputs.into_iter().flatten() {
            let send = send.clone();
            std::thread::spawn(move || {
                // Read to its end even if nobody wants it, so that the program does not block.
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    let _ = send.send(line);
                }
            });
        }
        drop(send);
        let capture = Capture { child, lines };
        let (deadline, mut seen) = (Instant::now() + PATIENCE, Vec::new());
        loop {
            match capture.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line.contains(self.ready()) => return Ok(capture),
                Ok(line) => seen.push(line),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    return Err(format!("{} does not capture: {}", self.name(), seen.join(" / ")));
                }
            }
        }
    }
}

/// A running program. Killed when it is dropped.
pub struct Capture {
    child: Child,
    lines: Receiver<String>,
}

impl Capture {
    /// The time that its main thread has had a core.
    #[must_use]
    pub fn processor_time(&self) -> Option<Duration> {
        processor_time(Path::new(&format!("/proc/{}", self.child.id())))
    }

    /// Ends it as Ctrl-C does, so that it writes what it has. Returns its last messages.
    ///
    /// # Errors
    /// It does not end.
    pub fn stop(mut self) -> Result<Vec<String>, String> {
        kill_process(Pid::from_child(&self.child), Signal::INT).map_err(|error| error.to_string())?;
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if self.child.try_wait().map_err(|error| error.to_string())?.is_some() {
                return Ok(self.lines.iter().collect());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Err("it does not end".to_owned())
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The time that a thread, or the main thread of a process, has had a core, by its folder in /proc.
#[must_use]
pub fn processor_time(proc: &Path) -> Option<Duration> {
    let text = std::fs::read_to_string(proc.join("schedstat")).ok()?;
    text.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}

/// The type of an enhanced packet block (draft-ietf-opsawg-pcapng).
const ENHANCED_PACKET: u32 = 6;
const PCAPNG: u32 = 0x0a0d_0d0a;

/// The packets of this length that were captured whole in a pcap or pcapng file of this machine's byte order.
///
/// # Errors
/// The file cannot be read.
pub fn packets_in(file: &Path, packet_bytes: u32) -> io::Result<u64> {
    let mut reader = BufReader::with_capacity(1 << 20, std::fs::File::open(file)?);
    let first = word(&mut reader)?.unwrap_or_default();
    let mut found = 0;
    if first == PCAPNG {
        reader.rewind()?;
        while let (Some(kind), Some(length)) = (word(&mut reader)?, word(&mut reader)?) {
            let mut rest = i64::from(length) - 8;
            if kind == ENHANCED_PACKET {
                reader.seek_relative(12)?;
                let lengths = (word(&mut reader)?, word(&mut reader)?);
                found += u64::from(lengths == (Some(packet_bytes), Some(packet_bytes)));
                rest -= 20;
            }
            reader.seek_relative(rest)?;
        }
    } else {
        reader.seek_relative(20)?;
        while let Some(_seconds) = word(&mut reader)? {
            reader.seek_relative(4)?;
            let lengths = (word(&mut reader)?, word(&mut reader)?);
            found += u64::from(lengths == (Some(packet_bytes), Some(packet_bytes)));
            reader.seek_relative(i64::from(lengths.0.unwrap_or_default()))?;
        }
    }
    Ok(found)
}

/// The next four octets; `None` at the end.
fn word(reader: &mut impl Read) -> io::Result<Option<u32>> {
    let mut octets = [0; 4];
    match reader.read_exact(&mut octets) {
        Ok(()) => Ok(Some(u32::from_ne_bytes(octets))),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn only_whole_packets_of_the_length_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("capture");
        let header = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1];
        let packets = [[1, 0, 4, 4, 7], [2, 0, 4, 8, 7], [3, 0, 4, 4, 7]].concat();
        std::fs::write(&file, words(&[&header[..], &packets].concat())).unwrap();
        assert_eq!(packets_in(&file, 4).unwrap(), 2);
        let section = [PCAPNG, 28, 0x1a2b_3c4d, 1, u32::MAX, u32::MAX, 28];
        let interface = [1, 20, 1, 0, 20];
        let packet = |whole| [ENHANCED_PACKET, 36, 0, 0, 0, 4, whole, 7, 36];
        let blocks = [&section[..], &interface, &packet(4), &packet(8), &packet(4)].concat();
        std::fs::write(&file, words(&blocks)).unwrap();
        assert_eq!(packets_in(&file, 4).unwrap(), 2);
    }
}

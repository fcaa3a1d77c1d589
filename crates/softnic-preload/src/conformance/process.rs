//! Commands with a time limit, and what they print.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const STEP: Duration = Duration::from_millis(10);

/// A running command. Ended, by its id, when dropped.
pub(crate) struct Running {
    child: Child,
    /// Where it prints: a file without a name, because a pipe would have to be emptied meanwhile.
    output: File,
    name: String,
}

/// How a command ended.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) text: String,
    name: String,
}

impl Running {
    pub(crate) fn start(command: &mut Command, name: &str) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("{name}: {error}");
        let output = tempfile::tempfile().map_err(failed)?;
        let copy = || output.try_clone().map_err(failed);
        let child = command.stdin(Stdio::null()).stdout(copy()?).stderr(copy()?).spawn().map_err(failed)?;
        Ok(Self { child, output, name: name.to_owned() })
    }

    /// The text that the process has printed so far.
    pub(crate) fn text(&self) -> String {
        let mut bytes = Vec::new();
        let mut chunk = [0; 4096];
        // Not by the file's own offset, which is where the child writes next.
        while let Ok(read @ 1..) = self.output.read_at(&mut chunk, bytes.len() as u64) {
            bytes.extend_from_slice(&chunk[..read]);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits until it has printed `line`, or has ended.
    pub(crate) fn wait_for(&mut self, line: &str, limit: Duration) -> Result<(), String> {
        let until = Instant::now() + limit;
        loop {
            if self.text().contains(line) {
                return Ok(());
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!(
                    "{} ended before it was ready ({status})\n{}",
                    self.name,
                    tail(&self.text())
                ));
            }
            if Instant::now() > until {
                return Err(format!("{} was not ready within {limit:?}\n{}", self.name, tail(&self.text())));
            }
            std::thread::sleep(STEP);
        }
    }

    /// Waits until it ends.
    pub(crate) fn finish(mut self, limit: Duration) -> Result<Ended, String> {
        let until = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait().map_err(|error| error.to_string())? {
                return Ok(Ended { status, text: self.text(), name: self.name.clone() });
            }
            if Instant::now() > until {
                return Err(format!("{} did not end within {limit:?}\n{}", self.name, tail(&self.text())));
            }
            std::thread::sleep(STEP);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    /// The text of a command that succeeded.
    pub(crate) fn success(self) -> Result<String, String> {
        if self.status.success() {
            return Ok(self.text);
        }
        Err(format!("{}: {}\n{}", self.name, self.status, tail(&self.text)))
    }
}

/// Runs a command to its end.
pub(crate) fn run(command: &mut Command, name: &str, limit: Duration) -> Result<String, String> {
    Running::start(command, name)?.finish(limit)?.success()
}

/// The last lines of what a command printed.
pub(crate) fn tail(text: &str) -> String {
    const LINES: usize = 12;
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

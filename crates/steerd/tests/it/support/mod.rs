//! Runs the real binary: commands, and a daemon with its pages and signals. Every daemon listens on a free
//! port that its log names, so that tests can run in parallel.
#![allow(unreachable_pub, reason = "a module of tests")]

pub(crate) mod image;
pub(crate) mod notebook;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
pub use test_support::{Patience, corpora, not_run};

/// Long enough for a loaded machine; a test that waits so long has failed.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The binary, without `STEERD_` variables of the environment.
pub fn steerd() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_steerd"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("STEERD_") {
            command.env_remove(name);
        }
    }
    command.env("STEERD_HTTP__LISTEN", "127.0.0.1:0").env_remove("NOTIFY_SOCKET").env_remove("WATCHDOG_USEC");
    // The default socket is one for all daemons of a user; tests of the API name their own.
    command.env("STEERD_API__ENABLED", "false");
    command
}

/// The binary, started by another program, such as `prlimit`: the name and the arguments of that.
pub fn steerd_by(starter: &[&str]) -> Command {
    let steerd = steerd();
    let mut command = Command::new(starter[0]);
    command.args(&starter[1..]).arg(steerd.get_program());
    for (name, value) in steerd.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

pub fn run(args: &[&str]) -> Output {
    steerd().args(args).stdin(Stdio::null()).output().expect("the binary runs")
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The repository's config folder.
pub fn config() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config").canonicalize().expect("config/")
}

#[derive(Default)]
struct Log {
    lines: Mutex<Vec<String>>,
    grown: Condvar,
}

/// A running `steerd run`; killed when dropped.
pub struct Daemon {
    child: Child,
    log: Arc<Log>,
    /// Reads stdout, unless that is the caller's: a daemon that ends waits until its whole summary is read.
    stdout: Option<JoinHandle<String>>,
    address: Option<SocketAddr>,
}

impl Daemon {
    /// Starts it and waits until packets are steered.
    pub fn start(args: &[&str]) -> Self {
        Self::start_command(steerd().arg("run").args(args))
    }

    pub fn start_command(command: &mut Command) -> Self {
        Self::start_with_stdout(command.stdout(Stdio::piped()))
    }

    /// Leaves stdout to the caller.
    pub fn start_with_stdout(command: &mut Command) -> Self {
        let mut child =
            command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the binary starts");
        let log = Arc::new(Log::default());
        let stderr = BufReader::new(child.stderr.take().expect("piped"));
        let writer = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                writer.lines.lock().expect("log").push(line);
                writer.grown.notify_all();
            }
        });
        let stdout = child.stdout.take().map(|mut stdout| {
            std::thread::spawn(move || {
                let mut out = String::new();
                stdout.read_to_string(&mut out).expect("stdout");
                out
            })
        });
        let mut daemon = Self { child, log, stdout, address: None };
        daemon.wait_for("steering on", 1);
        daemon.address = daemon.log().lines().find_map(|line| {
            let (_, rest) = line.split_once("http://")?;
            rest.split_once("/metrics")?.0.parse().ok()
        });
        daemon
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn address(&self) -> SocketAddr {
        self.address.expect("the log names the address")
    }

    pub fn log(&self) -> String {
        self.log.lines.lock().expect("log").join("\n")
    }

    /// Waits until `times` lines of the log contain `text`.
    pub fn wait_for(&mut self, text: &str, times: usize) {
        let mut patience = Patience::new(PATIENCE);
        let mut lines = self.log.lines.lock().expect("log");
        while lines.iter().filter(|line| line.contains(text)).count() < times {
            assert!(!patience.is_over(), "no {text:?} in the log:\n{}", lines.join("\n"));
            (lines, _) = self.log.grown.wait_timeout(lines, Duration::from_millis(100)).expect("log");
            if let Some(status) = self.child.try_wait().expect("child") {
                assert!(
                    lines.iter().any(|line| line.contains(text)),
                    "ended with {status} before {text:?}:\n{}",
                    lines.join("\n")
                );
            }
        }
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("pid")).expect("pid");
        kill_process(pid, signal).expect("signal");
    }

    /// Status and body of a page.
    pub fn page(&self, path: &str) -> (u16, String) {
        self.page_as(path, "*/*")
    }

    /// A page in a media type.
    pub fn page_as(&self, path: &str, accept: &str) -> (u16, String) {
        let address = self.address();
        let mut stream = TcpStream::connect(address).expect("connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: {accept}\r\nConnection: close\r\n\r\n"
        )
        .expect("request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        let status = head.split_whitespace().nth(1).and_then(|code| code.parse().ok()).expect("status");
        (status, body.to_owned())
    }

    pub fn metrics(&self) -> String {
        let (status, body) = self.page("/metrics");
        assert_eq!(status, 200);
        body
    }

    /// The sum of all series of `name` whose labels contain all of `labels`.
    pub fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let metrics = self.metrics();
        let series: Vec<&str> = metrics
            .lines()
            .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])))
            .filter(|line| labels.iter().all(|label| line.contains(label)))
            .collect();
        assert!(!series.is_empty(), "no {name} {labels:?} in:\n{metrics}");
        series
            .iter()
            .map(|line| line.rsplit(' ').next().and_then(|v| v.parse::<f64>().ok()).expect("value"))
            .sum()
    }

    pub fn state(&self) -> serde_json::Value {
        let (status, body) = self.page("/api/v1/state");
        assert_eq!(status, 200);
        serde_json::from_str(&body).expect("JSON")
    }

    /// Waits until `done` returns true.
    pub fn until(&self, what: &str, done: impl Fn(&Self) -> bool) {
        let mut patience = Patience::new(PATIENCE);
        while !done(self) {
            assert!(!patience.is_over(), "never: {what}\n{}\n{}", self.log(), self.metrics());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until a page has this status and body.
    pub fn until_page(&self, path: &str, answer: &(u16, String)) {
        let mut patience = Patience::new(PATIENCE);
        loop {
            let now = self.page(path);
            if now == *answer {
                return;
            }
            assert!(!patience.is_over(), "{path} is {now:?}, not {answer:?}:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("child").is_none()
    }

    /// Waits until the HTTP server has stopped, which is just before the summary.
    pub fn until_unreachable(&self) {
        let address = self.address();
        let mut patience = Patience::new(PATIENCE);
        while TcpStream::connect(address).is_ok() {
            assert!(!patience.is_over(), "still served:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for the exit; returns the exit status, stdout and the log.
    pub fn end(mut self) -> (ExitStatus, String, String) {
        let out = self.stdout.take().map_or_else(String::new, |reader| reader.join().expect("stdout"));
        let status = self.child.wait().expect("end");
        let log = self.log();
        (status, out, log)
    }

    pub fn terminate(self) -> (ExitStatus, String, String) {
        self.signal(Signal::TERM);
        self.end()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Fails if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Receives the messages for systemd (sd_notify(3)).
pub struct ServiceManager {
    socket: std::os::unix::net::UnixDatagram,
    path: PathBuf,
}

impl ServiceManager {
    pub fn new(folder: &Path) -> Self {
        let path = folder.join("notify");
        let socket = std::os::unix::net::UnixDatagram::bind(&path).expect("socket");
        socket.set_read_timeout(Some(Duration::from_secs(30))).expect("timeout");
        Self { socket, path }
    }

    pub fn watch<'c>(&self, command: &'c mut Command, watchdog_us: &str) -> &'c mut Command {
        command.env("NOTIFY_SOCKET", &self.path).env("WATCHDOG_USEC", watchdog_us)
    }

    /// All messages up to one with a line that begins with `text`.
    pub fn until(&self, text: &str) -> Vec<String> {
        let (mut messages, mut buffer) = (Vec::new(), [0; 4096]);
        loop {
            let bytes = self
                .socket
                .recv(&mut buffer)
                .unwrap_or_else(|error| panic!("no {text}: {error}\n{messages:?}"));
            let message = String::from_utf8_lossy(&buffer[..bytes]).into_owned();
            let found = message.lines().any(|line| line.starts_with(text));
            messages.push(message);
            if found {
                return messages;
            }
        }
    }

    /// All messages that were not returned yet.
    pub fn drain(&self) -> Vec<String> {
        let (mut messages, mut buffer) = (Vec::new(), [0; 4096]);
        self.socket.set_nonblocking(true).expect("non-blocking");
        while let Ok(bytes) = self.socket.recv(&mut buffer) {
            messages.push(String::from_utf8_lossy(&buffer[..bytes]).into_owned());
        }
        self.socket.set_nonblocking(false).expect("blocking");
        messages
    }
}

/// Writes to a pipe until it takes no more.
pub fn fill(writer: &std::io::PipeWriter) {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    let flags = fcntl_getfl(writer).expect("flags");
    fcntl_setfl(writer, flags | OFlags::NONBLOCK).expect("non-blocking");
    while rustix::io::write(writer, &[0; 512]).is_ok() {}
    fcntl_setfl(writer, flags).expect("blocking again");
}

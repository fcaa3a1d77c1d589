//! A real `steerd run` process, observed through its API and /proc.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The longest time until packets flow, for an answer, and until it has ended.
const PATIENCE: Duration = Duration::from_secs(60);
/// The daemon takes its counters once a second at most; an answer costs it some milliseconds with thousands of rules.
const STATE_LIFE: Duration = Duration::from_millis(1020);
/// The path of the program, if it is not where cargo puts it.
const PROGRAM: &str = "STEERD_BENCH_DAEMON";

/// Where packets come from, and how the daemon runs.
pub struct DaemonOptions<'o> {
    /// The wire of its only port, as in its settings.
    pub wire: String,
    /// The policy.
    pub policy: &'o str,
    /// The model of the soft NIC.
    pub personality: &'o str,
    /// The core of the soft NIC's engine.
    pub engine_core: usize,
    /// The core of the worker.
    pub worker_core: usize,
}

/// A running daemon. Killed when it is dropped.
pub struct Daemon {
    child: Child,
    folder: PathBuf,
}

/// The processor time of its threads, by what they do.
#[derive(Clone, Copy, Debug, Default)]
pub struct ThreadTimes {
    /// The soft NIC's engine.
    pub engine: Duration,
    /// The worker.
    pub worker: Duration,
}

/// The program: built by `make bench` beside the benches.
///
/// # Errors
/// It was not built.
pub fn program() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os(PROGRAM) {
        return Ok(PathBuf::from(path));
    }
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    // target/release/deps/neighbours-HASH
    let path = own.ancestors().nth(2).unwrap_or(&own).join("steerd");
    path.exists().then_some(path).ok_or_else(|| "steerd is not built: `make bench` does it".to_owned())
}

impl Daemon {
    /// Starts one with its files in `folder`, and waits until it is ready.
    ///
    /// # Errors
    /// It is not built, or ends.
    pub fn start(folder: &Path, options: &DaemonOptions<'_>) -> Result<Self, String> {
        let DaemonOptions { wire, policy, personality, engine_core, worker_core } = options;
        let settings = format!(
            "[device]\nname = 'softnic0'\n[policy]\nfile = 'policy.toml'\n[workers]\ncores = [{worker_core}]\n[softnic]\npersonality = '{personality}'\ncore = {engine_core}\n\
             ports = [{{ mtu_bytes = 1500, wire = {wire} }}]\n[http]\nlisten = 'off'\n[api]\nsocket = 'api.sock'\n"
        );
        let write = |name: &str, text: &str| {
            std::fs::write(folder.join(name), text).map_err(|error| error.to_string())
        };
        write("policy.toml", policy)?;
        write("steerd.toml", &settings)?;
        let log = std::fs::File::create(folder.join("log")).map_err(|error| error.to_string())?;
        let program = program()?;
        // This thread is pinned, and a process inherits that.
        let child = Command::new("taskset")
            .args(["-c", &format!("{engine_core},{worker_core}")])
            .arg(program)
            .args(["run", "--keep-running", "--config"])
            .arg(folder.join("steerd.toml"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(|error| format!("taskset: {error}"))?;
        let mut daemon = Self { child, folder: folder.to_owned() };
        let deadline = Instant::now() + PATIENCE;
        loop {
            if daemon.request("GET", "/v1/status").is_ok_and(|status| status["health"]["ready"] == true) {
                return Ok(daemon);
            }
            let ended = daemon.child.try_wait().map_err(|error| error.to_string())?;
            if ended.is_some() || Instant::now() > deadline {
                let log = std::fs::read_to_string(daemon.folder.join("log")).unwrap_or_default();
                let line = log.lines().find(|line| line.contains("rror")).or(log.lines().last());
                return Err(format!("steerd is not ready: {}", line.unwrap_or_default()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Packets per second that the worker receives over `time` and up to a second more, by its own counter and the daemon's
    /// clock.
    ///
    /// # Errors
    /// It does not answer.
    pub fn rate(&self, time: Duration) -> Result<f64, String> {
        // The first one may have been taken some time ago.
        let first = self.sample(f64::NEG_INFINITY)?;
        std::thread::sleep(STATE_LIFE);
        let before = self.sample(first.0)?;
        std::thread::sleep(time.max(STATE_LIFE));
        let after = self.sample(before.0)?;
        Ok((after.1 - before.1) / (after.0 - before.0))
    }

    /// When counters were taken, in seconds, which is later than `previous`, and the packets that the worker had received.
    fn sample(&self, previous: f64) -> Result<(f64, f64), String> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            let state = self.request("GET", "/v1/state")?;
            let received = state["workers"][0]["received_packets"].as_f64();
            let sample = state["uptime_seconds"].as_f64().zip(received);
            let sample = sample.ok_or_else(|| format!("no counter in {state}"))?;
            if sample.0 > previous {
                return Ok(sample);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Err("steerd does not take its counters again".to_owned())
    }

    /// Replaces the policy.
    ///
    /// # Errors
    /// It is refused.
    pub fn reload(&self, policy: &str) -> Result<(), String> {
        std::fs::write(self.folder.join("policy.toml"), policy).map_err(|error| error.to_string())?;
        let answer = self.request("POST", "/v1/reload")?;
        (answer["accepted"] == true).then_some(()).ok_or_else(|| answer.to_string())
    }

    /// The memory that it occupies (VmRSS), in MB.
    ///
    /// # Errors
    /// It has ended.
    pub fn resident_megabytes(&self) -> Result<f64, String> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.map_err(|error| error.to_string())?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
        kilobytes.map(|kilobytes| kilobytes * 1024.0 / 1e6).ok_or_else(|| "no VmRSS".to_owned())
    }

    /// What its threads have used of their cores.
    ///
    /// # Errors
    /// It has ended.
    pub fn thread_times(&self) -> Result<ThreadTimes, String> {
        let mut times = ThreadTimes::default();
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id()))
            .map_err(|error| error.to_string())?;
        for task in tasks.filter_map(Result::ok) {
            let read = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
            let (name, schedule) = (read("comm"), read("schedstat"));
            let first = schedule.split(' ').next().and_then(|word| word.parse().ok());
            let time = Duration::from_nanos(first.unwrap_or(0));
            if name.starts_with("softnic") {
                times.engine += time;
            } else if name.starts_with("worker") {
                times.worker += time;
            }
        }
        Ok(times)
    }

    fn request(&self, method: &str, path: &str) -> Result<Value, String> {
        let failed = |error: std::io::Error| format!("steerd's API: {error}");
        let mut stream = UnixStream::connect(self.folder.join("api.sock")).map_err(failed)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).map_err(failed)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map_err(failed)?;
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        serde_json::from_str(body).map_err(|error| format!("steerd's API: {error}: {answer}"))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let deadline = Instant::now() + Duration::from_secs(5);
        while Instant::now() < deadline {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

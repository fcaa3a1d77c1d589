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
/// The daemon takes its counters once a second at most; an answer costs it some milliseconds with thousands
/// of rules.
const STATE_LIFE: Duration = Duration::from_millis(1020);
/// The MTU of the port.
const MTU_BYTES: u32 = 1500;
/// The path of the program, if it is not where cargo puts it.
const PROGRAM: &str = "STEERD_BENCH_DAEMON";

/// Where packets come from, and how the daemon runs.
pub struct DaemonOptions<'o> {
    /// The wire of its only port, as in its settings.
    pub wire: String,
    /// The wire of a second port.
    pub second_wire: Option<String>,
    /// The policy.
    pub policy: &'o str,
    /// The model of the soft NIC.
    pub personality: &'o str,
    /// Whose code its worker polls with.
    pub provider: Provider,
    /// The core of the soft NIC's engine.
    pub engine_core: usize,
    /// The core of the worker.
    pub worker_core: usize,
}

/// The provider of libibverbs below a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    /// The soft NIC's own, in the daemon's process.
    SoftNic,
    /// rdma-core's for an mlx5, over a model of the device: `softnic exec --method mlx5`.
    Mlx5,
    /// The same, with a worker that reads and writes the queues itself.
    Mlx5Direct,
}

impl Provider {
    /// The name of its device.
    #[must_use]
    pub fn device(self) -> &'static str {
        match self {
            Self::SoftNic => "softnic0",
            Self::Mlx5 | Self::Mlx5Direct => "mlx5_0",
        }
    }

    /// Settings of the device beside its name.
    fn device_settings(self) -> &'static str {
        match self {
            Self::SoftNic | Self::Mlx5 => "",
            Self::Mlx5Direct => "receive = 'direct'\n",
        }
    }

    /// The words before the command of a process with the device: none if the process has its own. A model of
    /// an mlx5 gets its packets from `wire`, and works on a core.
    ///
    /// # Errors
    /// The program that starts it is not built.
    pub fn launcher(self, wire: &str, engine_core: usize) -> Result<Vec<String>, String> {
        if self == Self::SoftNic {
            return Ok(Vec::new());
        }
        let softnic = built("softnic")?.display().to_string();
        let words = format!("exec --method mlx5 --mtu {MTU_BYTES} --core {engine_core} --wire");
        let words = words.split(' ').map(str::to_owned);
        Ok([softnic].into_iter().chain(words).chain([wire.to_owned(), "--".to_owned()]).collect())
    }
}

/// What a worker had done at some time.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// The time by the daemon's clock.
    seconds: f64,
    received_packets: f64,
    /// Its time, but for polls that found nothing.
    busy_ns: f64,
}

impl Sample {
    fn of(state: &Value) -> Option<Self> {
        let worker = &state["workers"][0];
        let regimes = worker["regimes_ns"].as_object()?.iter();
        Some(Self {
            seconds: state["uptime_seconds"].as_f64()?,
            received_packets: worker["received_packets"].as_f64()?,
            busy_ns: regimes.filter(|(name, _)| *name != "idle").filter_map(|(_, ns)| ns.as_f64()).sum(),
        })
    }
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
    built("steerd")
}

/// A program that was built with the benches.
fn built(name: &str) -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    // target/release/deps/neighbours-HASH
    let path = own.ancestors().nth(2).unwrap_or(&own).join(name);
    path.exists().then_some(path).ok_or_else(|| format!("{name} is not built: `make bench` does it"))
}

/// The settings file.
fn settings(options: &DaemonOptions<'_>) -> String {
    let DaemonOptions { wire, second_wire, personality, provider, engine_core, worker_core, .. } = options;
    let mut text = format!(
        "[device]\nname = '{}'\nports = {}\n{}[policy]\nfile = 'policy.toml'\n[workers]\ncores = [{worker_core}]\n[http]\nlisten = 'off'\n\
         [api]\nsocket = 'api.sock'\n",
        provider.device(),
        if second_wire.is_some() { "[1, 2]" } else { "[1]" },
        provider.device_settings(),
    );
    let second = |wire| format!(", {{ mtu_bytes = {MTU_BYTES}, wire = {wire} }}");
    let second = second_wire.as_ref().map(second).unwrap_or_default();
    if *provider == Provider::SoftNic {
        text.push_str(&format!(
            "[softnic]\npersonality = '{personality}'\ncore = {engine_core}\n\
             ports = [{{ mtu_bytes = {MTU_BYTES}, wire = {wire} }}{second}]\n"
        ));
    }
    text
}

/// The runs of an XDP program.
#[derive(Clone, Copy, Debug)]
pub struct ProgramRuns {
    /// The number of runs, one for each packet.
    pub runs: u64,
    /// Nanoseconds for all of them, with what the kernel needs to measure them.
    pub ns: u64,
}

impl Daemon {
    /// Starts one with its files in `folder`, and waits until it is ready.
    ///
    /// # Errors
    /// It is not built, or ends.
    pub fn start(folder: &Path, options: &DaemonOptions<'_>) -> Result<Self, String> {
        let DaemonOptions { policy, provider, engine_core, worker_core, .. } = options;
        let settings = settings(options);
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
            .args(provider.launcher(&options.wire, *engine_core)?)
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

    /// Packets per second that the worker receives over `time` and up to a second more, by its own counter
    /// and the daemon's clock.
    ///
    /// # Errors
    /// It does not answer.
    pub fn rate(&self, time: Duration) -> Result<f64, String> {
        let [before, after] = self.samples(time)?;
        Ok((after.received_packets - before.received_packets) / (after.seconds - before.seconds))
    }

    /// Nanoseconds that the worker spends on a packet, by its own clock; polls that find nothing do not
    /// count.
    ///
    /// # Errors
    /// It does not answer, or receives nothing.
    pub fn worker_ns(&self, time: Duration) -> Result<f64, String> {
        let [before, after] = self.samples(time)?;
        let packets = after.received_packets - before.received_packets;
        let each = (after.busy_ns - before.busy_ns) / packets;
        (packets > 0.0).then_some(each).ok_or_else(|| "the worker received no packet".to_owned())
    }

    /// What the worker had done before and after `time` and up to a second more.
    fn samples(&self, time: Duration) -> Result<[Sample; 2], String> {
        // The first one may have been taken some time ago.
        let first = self.sample(f64::NEG_INFINITY)?;
        std::thread::sleep(STATE_LIFE);
        let before = self.sample(first.seconds)?;
        std::thread::sleep(time.max(STATE_LIFE));
        Ok([before, self.sample(before.seconds)?])
    }

    /// A sample that was taken later than `previous`, in seconds.
    fn sample(&self, previous: f64) -> Result<Sample, String> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            let state = self.request("GET", "/v1/state")?;
            let sample = Sample::of(&state).ok_or_else(|| format!("no counter in {state}"))?;
            if sample.seconds > previous {
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

    /// Changes rules at run time by the body of a call (`POST /v1/rules/changes`).
    ///
    /// # Errors
    /// It refuses them.
    pub fn change_rules(&self, body: &str) -> Result<(), String> {
        let answer = self.request_with("POST", "/v1/rules/changes", body)?;
        if answer["error"].is_null() { Ok(()) } else { Err(answer.to_string()) }
    }

    /// The packets that the XDP programs of its ports have dropped.
    ///
    /// # Errors
    /// It does not answer.
    pub fn dropped_by_program(&self) -> Result<f64, String> {
        // The answer may be up to this old.
        std::thread::sleep(STATE_LIFE);
        let state = self.request("GET", "/v1/state")?;
        let ports = state["ports"].as_array().ok_or_else(|| format!("no ports in {state}"))?;
        let dropped = ports.iter().map(|port| port["xdp_dropped_packets"].as_f64());
        dropped.sum::<Option<f64>>().ok_or_else(|| format!("no counter in {state}"))
    }

    /// The runs of its XDP program and the nanoseconds that they took, which the kernel counts while
    /// `kernel.bpf_stats_enabled` is set (proc_pid_fdinfo(5), `run_cnt` and `run_time_ns`).
    ///
    /// # Errors
    /// The daemon has no XDP program.
    pub fn program_runs(&self) -> Result<ProgramRuns, String> {
        const XDP: &str = "prog_type:\t6\n";
        let folder = format!("/proc/{}/fdinfo", self.child.id());
        let entries = std::fs::read_dir(&folder).map_err(|error| format!("{folder}: {error}"))?;
        let texts = entries.flatten().filter_map(|entry| std::fs::read_to_string(entry.path()).ok());
        let runs = texts.filter(|text| text.contains(XDP)).map(|text| {
            let number = |name: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
                line.and_then(|number| number.parse().ok()).unwrap_or(0)
            };
            ProgramRuns { runs: number("run_cnt"), ns: number("run_time_ns") }
        });
        // The other one gives frames back to the host.
        runs.max_by_key(|runs| runs.runs).ok_or_else(|| "no XDP program of the daemon".to_owned())
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
        self.request_with(method, path, "")
    }

    fn request_with(&self, method: &str, path: &str, body: &str) -> Result<Value, String> {
        let failed = |error: std::io::Error| format!("steerd's API: {error}");
        let mut stream = UnixStream::connect(self.folder.join("api.sock")).map_err(failed)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
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

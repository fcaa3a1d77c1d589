//! A stalled worker or engine, with the real binary: one of its threads is stopped as a debugger stops it.
//! Pages, log, metrics and watchdog report the stall and the recovery, and the shutdown takes bounded time.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{self, Daemon, ServiceManager, steerd};
use rustix::process::Signal;

/// PTRACE_SEIZE and PTRACE_INTERRUPT stop one thread of another process (ptrace(2)); it goes on when the
/// tracer ends. Called through perl, which every Debian has, because this crate has no unsafe code.
const STOP_THREAD: &str = r#"
    my $ptrace = {x86_64 => 101, aarch64 => 117}->{(POSIX::uname())[4]} or die "an unknown machine\n";
    foreach my $request (0x4206, 0x4207) {
        syscall($ptrace, $request, $ARGV[0] + 0, 0, 0) == 0 or die "ptrace: $!\n";
    }
    waitpid($ARGV[0], 0x40000000);
    $| = 1;
    print "stopped\n";
    <STDIN>;
"#;

/// A thread that is stopped until this is dropped.
struct Stopped(Child);

impl Stopped {
    /// Stops the thread of this name; `Err`: why that is not possible here.
    fn thread(daemon: &Daemon, name: &str) -> Result<Self, String> {
        let tasks = format!("/proc/{}/task", daemon.pid());
        let is_named = |entry: &std::fs::DirEntry| {
            let comm = std::fs::read_to_string(entry.path().join("comm"));
            comm.is_ok_and(|comm| comm.trim_end() == name)
        };
        let mut tasks = std::fs::read_dir(tasks).expect("tasks").map(|entry| entry.expect("a task"));
        let thread = tasks.find(is_named).unwrap_or_else(|| panic!("no thread {name}")).file_name();
        let mut tracer = Command::new("perl")
            .args(["-MPOSIX", "-e", STOP_THREAD])
            .arg(thread)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("perl: {error}"))?;
        let mut answer = String::new();
        let mut stdout = BufReader::new(tracer.stdout.take().expect("piped"));
        stdout.read_line(&mut answer).expect("read");
        if answer == "stopped\n" {
            return Ok(Self(tracer));
        }
        let output = tracer.wait_with_output().expect("the end");
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

const OTHER: &str = "[{ name = \"softnic1\", ports = [{ wire = { kind = \"null\" } }] }]";

/// A generator, and a port with an engine thread of its own.
const TWO_PORTS: &str =
    "[{ wire = { kind = \"generator\", rate = 1000, flows = [{}] } }, { wire = { kind = \"null\" } }]";

/// `run --demo` with a short stall limit, and a second soft NIC.
fn demonstration() -> Command {
    let mut command = steerd();
    command.args(["run", "--demo"]).env("STEERD_HEALTH__STALL_MS", "1500");
    command.env("STEERD_SOFTNIC__OTHERS", OTHER);
    command
}

/// The command with two engine threads.
fn with_two_threads() -> Command {
    let mut command = demonstration();
    command.env("STEERD_SOFTNIC__PORTS", TWO_PORTS).env("STEERD_SOFTNIC__THREADS", "2");
    command
}

/// Stops a thread and checks that the stall is reported everywhere, then continues it and checks the
/// recovery.
fn a_stall_is_reported(mut command: Command, thread: &str, part: &str, metric: (&str, &[&str])) {
    let mut daemon = Daemon::start_command(&mut command);
    daemon.until("ready", |daemon| daemon.page("/readyz") == (200, "ready\n".into()));
    assert_eq!(daemon.page("/healthz"), (200, "ok\n".into()));
    assert!(daemon.metric(metric.0, metric.1) < 0.5);

    let stopped = match Stopped::thread(&daemon, thread) {
        Ok(stopped) => stopped,
        Err(obstacle) => return support::not_run("the stall of a thread", &obstacle),
    };
    daemon.until_page("/healthz", &(503, format!("{part} is stalled\n")));
    assert_eq!(daemon.page("/readyz"), (503, format!("not ready: {part} is stalled\n")));
    daemon.wait_for(&format!("{part} has made no progress"), 1);
    daemon.until("the metric", |daemon| daemon.metric(metric.0, metric.1) > 0.5);
    assert!(daemon.metric("steerd_ready", &[]) < 0.5);

    drop(stopped);
    daemon.wait_for(&format!("{part} makes progress again"), 1);
    daemon.until_page("/healthz", &(200, "ok\n".into()));
    daemon.until_page("/readyz", &(200, "ready\n".into()));
    daemon.until("the metric", |daemon| daemon.metric(metric.0, metric.1) < 0.5);
    let (status, summary, log) = daemon.terminate();
    assert!(status.success(), "{log}");
    assert!(summary.contains("\npacket accounting matches\n"), "{summary}");
}

#[test]
fn a_stalled_worker_and_its_recovery_are_reported() {
    a_stall_is_reported(
        demonstration(),
        "worker-1",
        "worker 1",
        ("steerd_worker_stalled", &["worker=\"1\""]),
    );
}

/// A stalled worker leaves the tables of its groups, does not hold up reloads meanwhile, and comes back.
#[test]
fn groups_do_without_a_stalled_worker() {
    let mut daemon = Daemon::start_command(&mut demonstration());
    let received = |daemon: &Daemon, worker: usize| {
        daemon.state()["workers"][worker]["received_packets"].as_u64().expect("a number")
    };
    daemon.until("both receive", |daemon| (0..2).all(|worker| received(daemon, worker) > 0));
    let stopped = match Stopped::thread(&daemon, "worker-0") {
        Ok(stopped) => stopped,
        Err(obstacle) => return support::not_run("the groups of a stalled worker", &obstacle),
    };
    daemon.wait_for("groups do without stalled workers, now 0: ", 1);
    daemon.signal(Signal::HUP);
    daemon.wait_for("is in force after", 1);
    let before = received(&daemon, 1);
    daemon.until("the other one receives", |daemon| received(daemon, 1) > before);
    drop(stopped);
    daemon.wait_for("groups do without stalled workers, now none: ", 1);
    let before = received(&daemon, 0);
    daemon.until("it receives again", |daemon| received(daemon, 0) > before + 1000);
    let (status, summary, log) = daemon.terminate();
    assert!(status.success() && summary.contains("\npacket accounting matches\n"), "{summary}{log}");
}

#[test]
fn a_stalled_engine_and_its_recovery_are_reported() {
    let metric: (&str, &[&str]) = ("steerd_engine_stalled", &["device=\"softnic0\""]);
    a_stall_is_reported(demonstration(), "softnic0", "the engine of softnic0", metric);
}

#[test]
fn a_stall_of_one_of_several_engine_threads_is_reported() {
    let metric: (&str, &[&str]) = ("steerd_engine_stalled", &["device=\"softnic0\""]);
    a_stall_is_reported(with_two_threads(), "softnic0/2", "engine thread 2 of softnic0", metric);
}

#[test]
fn a_stalled_engine_of_a_soft_nic_that_only_sends_is_reported() {
    let metric: (&str, &[&str]) = ("steerd_engine_stalled", &["device=\"softnic1\""]);
    a_stall_is_reported(demonstration(), "softnic1", "the engine of softnic1", metric);
}

/// No wait of the shutdown is unlimited; parts that did not end are named.
#[test]
fn stalled_parts_do_not_block_the_shutdown() {
    for (thread, part) in [
        ("worker-0", "worker 0"),
        ("softnic0", "the engine of softnic0"),
        ("softnic1", "the engine of softnic1"),
    ] {
        let mut daemon = Daemon::start_command(&mut demonstration());
        let stopped = match Stopped::thread(&daemon, thread) {
            Ok(stopped) => stopped,
            Err(obstacle) => return support::not_run("the end of a stalled daemon", &obstacle),
        };
        daemon.wait_for("it is stalled", 1);
        let begun = Instant::now();
        daemon.signal(Signal::TERM);
        // The process exists until its last thread has ended.
        daemon.wait_for("did not end in time", 1);
        assert!(begun.elapsed() < Duration::from_secs(29), "{:?}", begun.elapsed());
        drop(stopped);
        let (status, _, log) = daemon.end();
        assert_eq!(status.code(), Some(70), "{log}");
        let verdict = log.lines().find(|line| line.contains("did not end in time")).expect("the verdict");
        // An engine that hangs does not keep others from being ended.
        assert!(verdict.contains(part) && verdict.matches("the engine of").count() <= 1, "{verdict}");
    }
}

#[test]
fn the_watchdog_is_not_fed_while_the_engine_is_stalled() {
    let folder = tempfile::tempdir().expect("folder");
    let manager = ServiceManager::new(folder.path());
    let mut daemon = Daemon::start_command(manager.watch(&mut demonstration(), "2000000"));
    manager.until("WATCHDOG=1");
    let stopped = match Stopped::thread(&daemon, "softnic0") {
        Ok(stopped) => stopped,
        Err(obstacle) => return support::not_run("the watchdog of a stalled daemon", &obstacle),
    };
    daemon.wait_for("the watchdog is not fed", 1);
    // Messages from before the stop.
    manager.drain();
    std::thread::sleep(Duration::from_secs(3));
    let messages = manager.drain();
    assert!(!messages.iter().any(|message| message.contains("WATCHDOG=1")), "{messages:?}");
    drop(stopped);
    manager.until("WATCHDOG=1");
    assert!(daemon.terminate().0.success());
}

/// A SIGHUP that arrives while the settings are read causes a reload after the start.
#[test]
fn sighup_during_the_start_is_remembered() {
    use rustix::fs::inotify;
    let folder = tempfile::tempdir().expect("folder");
    let settings = folder.path().join("s.toml");
    let config = support::config();
    // Long enough that reading takes a moment.
    let padding = "# padding\n".repeat(40_000);
    let demo = std::fs::read_to_string(config.join("demo.toml")).expect("the demonstration's settings");
    std::fs::write(&settings, format!("{padding}{demo}")).expect("written");
    for _ in 0..20 {
        let events = inotify::init(inotify::CreateFlags::CLOEXEC).expect("inotify");
        inotify::add_watch(&events, &settings, inotify::WatchFlags::OPEN).expect("watched");
        let mut command = steerd();
        command.args(["run", "--for", "2s", "--config"]).arg(&settings);
        command.args(["--policy"]).arg(config.join("examples/demo.toml"));
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        // Blocks until the settings are opened.
        let mut buffer = [std::mem::MaybeUninit::uninit(); 512];
        inotify::Reader::new(&events, &mut buffer).next().expect("an event");
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::HUP).expect("alive");
        let output = child.wait_with_output().expect("the end");
        let log = support::stderr(&output);
        assert!(output.status.success(), "{}: {log}", output.status);
        assert!(log.contains("is in force"), "{log}");
    }
}

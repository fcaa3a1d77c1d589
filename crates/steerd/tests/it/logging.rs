//! The log of the running daemon: it never blocks, follows the settings, and reports a mistyped filter.

use std::io::Read;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::{self, ServiceManager, run, stderr, stdout, steerd};
use rustix::process::{Pid, Signal, kill_process};

/// With a full stderr pipe the daemon starts, feeds the watchdog, reloads and ends.
#[test]
fn a_full_stderr_pipe_blocks_nothing() {
    let folder = tempfile::tempdir().expect("folder");
    let manager = ServiceManager::new(folder.path());
    let (reader, writer) = std::io::pipe().expect("pipe");
    support::fill(&writer);
    let mut command = steerd();
    command.args(["run", "--demo"]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(writer);
    let child = manager.watch(&mut command, "4000000").spawn().expect("it starts");
    let pid = Pid::from_child(&child);
    drop(command);
    manager.until("READY=1");
    for _ in 0..2 {
        manager.until("WATCHDOG=1");
    }
    kill_process(pid, Signal::HUP).expect("signal");
    manager.until("RELOADING=1");
    manager.until("READY=1");
    let begun = Instant::now();
    kill_process(pid, Signal::TERM).expect("signal");
    let output = child.wait_with_output().expect("the end");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert!(output.status.success(), "{}", output.status);
    assert!(stdout(&output).contains("\npacket accounting matches\n"), "{}", stdout(&output));
    drop(reader);
}

/// Nor does the error message at the end.
#[test]
fn an_error_with_a_full_stderr_pipe_ends_the_daemon() {
    let (reader, writer) = std::io::pipe().expect("pipe");
    support::fill(&writer);
    let mut command = steerd();
    command.args(["run", "--config", "/nonexistent.toml"]).stdin(Stdio::null()).stderr(writer);
    let output = command.output().expect("it ends");
    assert_eq!(output.status.code(), Some(78));
    drop(reader);
}

#[test]
fn a_mistyped_level_is_an_error_that_names_the_setting() {
    let output = run(&["run", "--demo", "--log", "debgu"]);
    assert_eq!(output.status.code(), Some(78), "{}", stderr(&output));
    let error = stderr(&output);
    for part in ["--log", "log.filter", "`debgu`", "off, error, warn, info, debug, trace"] {
        assert!(error.contains(part), "no {part} in {error}");
    }
    let mut command = steerd();
    command.args(["run", "--demo"]).env("STEERD_LOG__FILTER", "steerd=verbose");
    let output = command.output().expect("it ends");
    assert_eq!(output.status.code(), Some(78));
    assert!(stderr(&output).contains("STEERD_LOG__FILTER"), "{}", stderr(&output));
}

#[test]
fn a_json_log_is_an_object_per_line() {
    let mut command = steerd();
    command.args(["run", "--demo", "--for", "300ms"]).env("STEERD_LOG__FORMAT", "json");
    let output = command.output().expect("it runs");
    let log = stderr(&output);
    assert!(output.status.success(), "{log}");
    let lines: Vec<serde_json::Value> =
        log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect();
    let is_start = |line: &serde_json::Value| {
        line["level"] == "INFO"
            && line["message"].as_str().is_some_and(|text| text.starts_with("steering on"))
    };
    assert!(lines.iter().any(is_start), "{log}");
    assert!(lines.iter().all(|line| line["timestamp"].is_string()), "{log}");
}

/// The stderr of `run` on a terminal in this environment.
fn on_a_terminal(environment: &[(&str, &str)]) -> String {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
    grantpt(&master).and_then(|()| unlockpt(&master)).expect("unlocked");
    let name = ptsname(&master, Vec::new()).expect("its name").into_string().expect("UTF-8");
    let terminal = std::fs::OpenOptions::new().read(true).write(true).open(name).expect("its other end");
    let mut command = steerd();
    command.args(["run", "--demo", "--for", "300ms"]).env_remove("NO_COLOR").env("TERM", "xterm");
    command.envs(environment.iter().copied()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(terminal);
    let mut child = command.spawn().expect("it starts");
    drop(command);
    let mut text = Vec::new();
    // EIO after the last other end was closed (tty_io.c).
    let _ = std::fs::File::from(master).read_to_end(&mut text);
    assert!(child.wait().expect("the end").success());
    String::from_utf8_lossy(&text).into_owned()
}

#[test]
fn colours_follow_terminal_and_environment() {
    assert!(on_a_terminal(&[]).contains("\x1b["), "a terminal has colours");
    for environment in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let text = on_a_terminal(&[environment]);
        assert!(text.contains("steering on") && !text.contains("\x1b["), "{environment:?}: {text:?}");
    }
}

/// The stderr of a start that fails, where the environment names this stream of the journal.
fn failed_start(stream_of: impl Fn(&std::io::PipeWriter) -> String) -> String {
    let (mut reader, writer) = std::io::pipe().expect("pipe");
    let mut command = steerd();
    command.args(["run", "--config", "/nonexistent.toml"]).env("JOURNAL_STREAM", stream_of(&writer));
    let status = command.stderr(writer).status().expect("it ends");
    assert_eq!(status.code(), Some(78));
    drop(command);
    let mut text = String::new();
    reader.read_to_string(&mut text).expect("UTF-8");
    text
}

#[test]
fn errors_in_the_journal_have_a_priority() {
    let stream = |writer: &std::io::PipeWriter| {
        let status = rustix::fs::fstat(writer).expect("its status");
        (status.st_dev, status.st_ino)
    };
    let journal = failed_start(|writer| {
        let (device, inode) = stream(writer);
        format!("{device}:{inode}")
    });
    let lines: Vec<&str> = journal.lines().collect();
    assert!(lines.iter().all(|line| line.starts_with("<3>")), "{journal}");
    assert!(lines.last().is_some_and(|line| line.starts_with("<3>steerd: ")), "{journal}");
    // Inherited from a service whose stderr is another.
    let other = failed_start(|writer| {
        let (device, inode) = stream(writer);
        format!("{device}:{}", inode + 1)
    });
    assert!(!other.contains("<3>") && other.contains("\nsteerd: "), "{other}");
}

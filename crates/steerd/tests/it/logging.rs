//! The log of the running daemon: it never blocks, follows the settings, and reports a mistyped filter.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::api::Place;
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

/// The exit status and the stderr of a command whose environment names its stderr as a stream of the journal,
/// or, if `is_other`, another stream.
fn in_journal(mut command: Command, is_other: bool) -> (Option<i32>, String) {
    let (mut reader, writer) = std::io::pipe().expect("pipe");
    let stream = rustix::fs::fstat(&writer).expect("its status");
    let inode = stream.st_ino + u64::from(is_other);
    command.env("JOURNAL_STREAM", format!("{}:{inode}", stream.st_dev));
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(writer).status();
    drop(command);
    let mut text = String::new();
    reader.read_to_string(&mut text).expect("UTF-8");
    (status.expect("it ends").code(), text)
}

/// Checks the exit status of a command, and that all its lines have this priority.
fn assert_printed(command: Command, status: i32, priority: &str, message: &str) {
    let (code, text) = in_journal(command, false);
    assert_eq!(code, Some(status), "{text}");
    assert!(text.contains(message) && text.lines().all(|line| line.starts_with(priority)), "{text}");
}

#[test]
fn messages_in_the_journal_have_the_priority_of_their_severity() {
    let folder = tempfile::tempdir().expect("folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.into_os_string().into_string().expect("UTF-8")
    };
    let empty = file("empty.toml", "version = 1\n");
    let wrong = file("wrong.toml", "version = 1\n[rulez]\n");
    let listing = file("listing", "Filter: 3\n\tRule Type: SCTP over IPv9\n");
    let command = |args: &[&str]| {
        let mut command = steerd();
        command.args(args);
        command
    };
    for (args, status, priority, message) in [
        (&["run", "--config", "/nonexistent.toml"][..], 78, "<3>", "steerd: "),
        (&["run", "--nonsense"], 2, "<3>", "'--nonsense'"),
        (&["check", &wrong, "--model", "ideal"], 1, "<3>", "`rulez`"),
        (&["check", &empty, "--model", "ideal"], 0, "<4>", "the policy has no rules"),
        (&["import", "ethtool", &listing], 0, "<4>", "listing:"),
    ] {
        assert_printed(command(args), status, priority, message);
    }
    // Inherited from a service whose stderr is another.
    let (_, other) = in_journal(command(&["run", "--config", "/nonexistent.toml"]), true);
    assert!(other.lines().count() > 0 && other.lines().all(|line| !line.starts_with('<')), "{other}");
}

#[test]
fn the_problems_of_a_reload_have_their_priority_in_the_journal() {
    let rule = "[[rules]]\nname = \"r\"\nmatch = { protocol = \"udp\" }\naction = \"drop\"\n";
    let place = Place::new(&format!("version = 1\n{rule}"));
    let daemon = support::Daemon::start_command(&mut place.quiet_daemon());
    place.write("p.toml", "version = 1\n");
    assert_printed(place.command(&["reload"]), 0, "<4>", "the policy has no rules");
    place.write("p.toml", "version = 1\n[rulez]\n");
    assert_printed(place.command(&["reload"]), 1, "<3>", "`rulez`");
    drop(daemon);
}

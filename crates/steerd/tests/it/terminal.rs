//! The live table on a pseudo terminal (pty(7)) with a terminal emulator.

use std::fmt::Write as _;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::support::{self, steerd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Action, Winsize, tcflow, tcsetwinsize};
use test_support::Patience;

const PATIENCE: Duration = Duration::from_secs(60);

struct Terminal {
    master: OwnedFd,
    emulator: Arc<Mutex<vt100::Parser>>,
    child: Program,
    /// The path of the end that programs open.
    name: String,
    is_open: Arc<AtomicBool>,
    reader: JoinHandle<()>,
}

impl Terminal {
    /// `steerd run` with all its streams on a terminal of that size.
    fn start(rows: u16, columns: u16, args: &[&str]) -> Self {
        let mut command = steerd();
        command.arg("run").args(args);
        Self::start_command(rows, columns, &mut command)
    }

    fn start_command(rows: u16, columns: u16, command: &mut Command) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).expect("a terminal");
        grantpt(&master).and_then(|()| unlockpt(&master)).expect("unlocked");
        let name = ptsname(&master, Vec::new()).expect("its name").into_string().expect("UTF-8");
        let open = || std::fs::OpenOptions::new().read(true).write(true).open(&name).expect("its other end");
        let emulator = Arc::new(Mutex::new(vt100::Parser::new(rows, columns, 1000)));
        command.env("TERM", "xterm");
        let child = {
            let terminal = Self::size_of(rows, columns);
            tcsetwinsize(&master, terminal).expect("its size");
            command
                .stdin(open())
                .stdout(Stdio::from(open()))
                .stderr(Stdio::from(open()))
                .spawn()
                .expect("steerd")
        };
        let child = Program(child);
        let mut output = std::fs::File::from(master.try_clone().expect("cloned"));
        let screen = Arc::clone(&emulator);
        let is_open = Arc::new(AtomicBool::new(true));
        let goes_on = Arc::clone(&is_open);
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while goes_on.load(Ordering::Relaxed) {
                let tick = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
                match poll(&mut [PollFd::new(&output, PollFlags::IN)], Some(&tick)) {
                    Ok(1..) => {}
                    Ok(0) | Err(Errno::INTR) => continue,
                    Err(error) => panic!("{error}"),
                }
                // EIO after the last other end was closed.
                let Ok(bytes @ 1..) = output.read(&mut buffer) else { return };
                screen.lock().expect("screen").process(&buffer[..bytes]);
            }
        });
        Self { master, emulator, child, name, is_open, reader }
    }

    fn size_of(rows: u16, columns: u16) -> Winsize {
        Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
    }

    fn resize(&self, rows: u16, columns: u16) {
        let mut emulator = self.emulator.lock().expect("screen");
        tcsetwinsize(&self.master, Self::size_of(rows, columns)).expect("its size");
        emulator.screen_mut().set_size(rows, columns);
    }

    fn text(&self) -> String {
        self.emulator.lock().expect("screen").screen().contents()
    }

    /// Waits for what satisfies `done`.
    fn until(&self, what: &str, done: impl Fn(&str) -> bool) -> String {
        let mut patience = Patience::new(PATIENCE);
        loop {
            let text = self.text();
            if done(&text) {
                return text;
            }
            assert!(!patience.is_over(), "never {what}:\n{text}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Presses keys.
    fn press(&self, keys: &[u8]) {
        rustix::io::write(&self.master, keys).expect("written");
    }

    fn signal(&self, signal: Signal) {
        self.child.signal(signal);
    }

    /// Closes the terminal as a window is closed. No SIGHUP follows: the program is not in a session of the
    /// terminal.
    fn hang_up(self) -> Program {
        let Self { master, child, is_open, reader, .. } = self;
        is_open.store(false, Ordering::Relaxed);
        reader.join().expect("read");
        drop(master);
        child
    }
}

/// A program that is killed when the test fails.
struct Program(Child);

impl Program {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("signal");
    }

    fn ended(&mut self, after: &str) -> ExitStatus {
        let mut patience = Patience::new(PATIENCE);
        loop {
            if let Some(status) = self.0.try_wait().expect("its status") {
                return status;
            }
            assert!(!patience.is_over(), "still running after {after}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Already ended is what tests leave behind.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The demonstration with 40 rules and more: far more than 24 rows hold.
fn forty_rules(folder: &tempfile::TempDir) -> String {
    policy_of(folder, 40)
}

/// A policy with so many rules, each for a port from 20 on.
fn policy_of(folder: &tempfile::TempDir, rules: u32) -> String {
    let mut policy = "version = 1\n[groups.everyone]\nworkers = \"all\"\n".to_owned();
    for n in 0..rules {
        let _ = writeln!(
            policy,
            "[[rules]]\nname = \"rule-{n}\"\nmatch = {{ protocol = \"udp\", dst_port = {} }}",
            20 + n
        );
        let _ = writeln!(policy, "action = {{ steer = \"everyone\" }}");
    }
    let path = folder.path().join("p.toml");
    std::fs::write(&path, policy).expect("written");
    path.display().to_string()
}

/// Whether each line that must always be shown is there exactly once.
fn is_whole(text: &str) -> bool {
    ["steerd 0", "rule ", "worker  ", "port ", "lost: ", "packet accounting "]
        .iter()
        .all(|head| text.lines().filter(|line| line.starts_with(head)).count() == 1)
}

#[test]
fn workers_ports_and_losses_are_always_shown_and_resizing_leaves_no_copies() {
    let folder = tempfile::tempdir().expect("folder");
    let policy = forty_rules(&folder);
    let terminal = Terminal::start(24, 80, &["--demo", "--policy", &policy]);
    // The screen may be read while it is drawn, and before packets were counted.
    terminal.until("a whole table with the busiest rule, DNS", |text| {
        let has_busiest = text.lines().any(|line| line.starts_with("rule-33 "));
        text.contains("more rules") && is_whole(text) && has_busiest
    });
    // Narrower, lower, larger, and back: the screen has one table of the terminal's size.
    for (rows, columns) in [(24, 40), (18, 70), (60, 120), (24, 80)] {
        terminal.resize(rows, columns);
        let fits = |text: &str| {
            let rules = |line: &&str| line.starts_with("rule-") || line.starts_with("default ");
            let shown = text.lines().filter(rules).count();
            let others = text.split_once("\nand ").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
            let lines = text.lines().count();
            is_whole(text)
                && shown + others.unwrap_or(0) == 41
                && (lines == usize::from(rows) || others.is_none())
        };
        terminal.until(&format!("a table of {rows} rows"), fits);
    }
    terminal.signal(Signal::TERM);
    let ended =
        |text: &str| !text.contains("generation 1  up") && text.ends_with("packet accounting matches");
    terminal.until("a summary", ended);
    assert!(!terminal.emulator.lock().expect("screen").screen().alternate_screen());
}

/// Log lines are shown below the table and written after it has ended.
#[test]
fn log_lines_are_not_lost_behind_the_table() {
    let folder = tempfile::tempdir().expect("folder");
    let policy = forty_rules(&folder);
    let terminal = Terminal::start(40, 100, &["--demo", "--policy", &policy]);
    terminal.until("a table", |text| text.contains("more rules"));
    terminal.signal(Signal::HUP);
    terminal.until("the line of the reload", |text| text.contains("is in force") && is_whole(text));
    terminal.signal(Signal::TERM);
    let ended =
        |text: &str| !text.contains("generation 2  up") && text.ends_with("packet accounting matches");
    let text = terminal.until("a summary", ended);
    // The summary may have scrolled it out of sight.
    let mut emulator = terminal.emulator.lock().expect("screen");
    emulator.screen_mut().set_scrollback(1000);
    let above = emulator.screen().contents();
    assert!(above.contains("is in force") || text.contains("is in force"), "{above}");
}

/// A daemon with the demonstration, and the path of its API.
fn demo(folder: &tempfile::TempDir) -> (support::Daemon, std::path::PathBuf) {
    demo_of(folder, 40)
}

/// A daemon with the traffic of the demonstration and so many rules, and the path of its API.
fn demo_of(folder: &tempfile::TempDir, rules: u32) -> (support::Daemon, std::path::PathBuf) {
    let (policy, socket) = (policy_of(folder, rules), folder.path().join("api.sock"));
    let mut daemon = steerd();
    daemon.env("STEERD_API__ENABLED", "true").args(["run", "--demo", "--policy", &policy]);
    (support::Daemon::start_command(daemon.arg("--api-socket").arg(&socket)), socket)
}

fn top(socket: &std::path::Path) -> Terminal {
    let top = Terminal::start_command(24, 80, steerd().arg("top").arg("--api-socket").arg(socket));
    top.until("the rules", |text| text.contains("rule-0 "));
    top
}

/// A window that is closed, a connection that is lost.
#[test]
fn what_owns_a_terminal_ends_when_it_hangs_up() {
    let folder = tempfile::tempdir().expect("folder");
    let (_daemon, socket) = demo(&folder);
    let status = top(&socket).hang_up().ended("the end of top's terminal");
    assert!(status.success(), "{status}");
}

/// Also while the terminal accepts no output, as after Ctrl-S.
#[test]
fn top_ends_by_every_signal_and_leaves_the_screen_as_it_was() {
    let folder = tempfile::tempdir().expect("folder");
    let (_daemon, socket) = demo(&folder);
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut top = top(&socket);
        top.signal(signal);
        let status = top.child.ended("a signal");
        assert!(status.success(), "{signal:?}: {status}");
        top.until("the screen from before", |text| !text.contains("sort: "));
        assert!(!top.emulator.lock().expect("screen").screen().alternate_screen(), "{signal:?}");
    }
    let mut top = top(&socket);
    let other_end = std::fs::OpenOptions::new().read(true).write(true).open(&top.name).expect("opened");
    tcflow(&other_end, Action::OOff).expect("stopped");
    // Enough for a few drawings, which nobody takes.
    std::thread::sleep(Duration::from_millis(2500));
    top.signal(Signal::TERM);
    let status = top.child.ended("a signal while the terminal is stopped");
    assert!(status.success(), "{status}");
}

/// `steerd top` on 80x24: pages, order and scrolling by keys; it follows the size and leaves the screen as it
/// was.
#[test]
fn top_fits_the_screen_and_obeys_keys() {
    let folder = tempfile::tempdir().expect("folder");
    let (daemon, socket) = demo(&folder);
    let mut top = Terminal::start_command(24, 80, steerd().arg("top").arg("--api-socket").arg(&socket));
    // Losses can take a second line, so rows are counted from the line of the pages, which is 2.
    let has = |text: &str, row: usize, part: &str| {
        let pages = text.lines().position(|line| line.starts_with(" 1 rules "));
        let row = pages.and_then(|pages| text.lines().nth(pages + row - 2));
        row.is_some_and(|line| line.contains(part))
    };
    let ends_with = |text: &str, part: &str| text.lines().last().is_some_and(|line| line.contains(part));
    let text = top.until("the rules", |text| {
        let has_head = text.contains("softnic0") && text.contains("\npacket accounting");
        has_head && has(text, 3, "bits/s") && has(text, 4, "rule-0 ") && ends_with(text, "t=bits/s")
    });
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    // The busiest first: the demonstration has DNS, port 53, and more that no rule matches.
    top.press(b"r");
    top.until("the busiest rule", |text| has(text, 3, "packets/s v") && has(text, 5, "rule-33 "));
    top.press(b"n");
    top.press(b"\x1b[6~");
    top.until("the second page", |text| has(text, 3, "rule ^") && has(text, 4, "rule-24 "));
    top.press(b"\t");
    top.until("the workers", |text| has(text, 3, "worker") && has(text, 4, "0") && has(text, 5, "1"));
    top.resize(10, 60);
    top.until("a smaller screen", |text| text.lines().count() == 10 && ends_with(text, "sort: "));
    assert!(daemon.terminate().0.success());
    top.until("that the daemon has gone", |text| text.contains("no answer: "));
    top.press(b"q");
    let status = top.child.ended("q");
    assert!(status.success(), "{status}");
    top.until("the screen from before", |text| !text.contains("sort: "));
}

/// A large policy on 80x24: pages of rows, a filter, the help, and another page by its number.
#[test]
fn top_pages_through_a_thousand_rules() {
    let folder = tempfile::tempdir().expect("folder");
    let (_daemon, socket) = demo_of(&folder, 1000);
    let mut top = top(&socket);
    let fits = |text: &str| text.lines().all(|line| line.chars().count() <= 80);
    // Losses can take a second line, and a row from the table.
    let shown = |text: &str, begin: &str, end: &str| {
        fits(text) && text.lines().any(|line| line.starts_with(begin) && line.contains(end))
    };
    top.until("the first rows", |text| shown(text, "rows 1-1", " of 1001 "));
    top.press(b"\x1b[6~");
    top.until("the second page", |text| shown(text, "rows 1", " of 1001 ") && text.contains("\nrule-20 "));
    top.press(b"\x1b[F");
    top.until("the last row", |text| shown(text, "rows 98", "-1001 of 1001 ") && text.contains("\ndefault "));
    top.press(b"/RULE-33");
    top.until("the filter", |text| shown(text, "/RULE-33_", " 11 rows"));
    top.press(b"\rr");
    top.until("the busiest of them, DNS", |text| {
        let rows: Vec<&str> = text.lines().skip_while(|line| !line.contains("packets/s v")).collect();
        shown(text, "rows 1-11 of 11 ", "with \"RULE-33\"")
            && rows.get(1).is_some_and(|row| row.starts_with("rule-33 "))
    });
    top.press(b"?");
    top.until("the help", |text| fits(text) && text.contains("Any key goes back."));
    top.press(b"x6");
    top.until("the drops", |text| {
        shown(text, " 1 rules ", " 6 drops ") && (text.contains("\nplace ") || text.contains("none of "))
            || text.contains("no packet was lost")
    });
    top.press(b"q");
    // The filter of all pages is no reason to stay.
    assert!(top.child.ended("q").success());
}

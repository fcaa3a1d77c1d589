//! Fixtures that the tests of several crates share. It uses no other crate of the workspace, so that the unit
//! tests of all of them can depend on it.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Write as _;
use std::path::{Path, PathBuf};

mod capture_rules;
pub mod namespaces;
mod patience;
mod threads;

pub use capture_rules::CAPTURE_RULES;
pub use patience::Patience;
pub use threads::{CpuTime, Sleeps, assert_wakes, thread_cpu_percent, thread_cpu_time, thread_sleeps};

/// The text of the pages about the policy language, one page after the other.
pub const POLICY_PAGES: &str = concat!(
    include_str!("../../../docs/reference/policy.md"),
    include_str!("../../../docs/reference/policy/values.md"),
    include_str!("../../../docs/reference/policy/rules.md"),
    include_str!("../../../docs/reference/policy/rate-limits.md"),
    include_str!("../../../docs/reference/policy/counters.md"),
    include_str!("../../../docs/reference/policy/groups.md"),
    include_str!("../../../docs/reference/policy/queues.md"),
    include_str!("../../../docs/reference/policy/sinks.md"),
    include_str!("../../../docs/reference/policy/sink-count.md"),
    include_str!("../../../docs/reference/policy/sink-app.md"),
    include_str!("../../../docs/reference/policy/sink-forward.md"),
    include_str!("../../../docs/reference/policy/sink-capture.md"),
    include_str!("../../../docs/reference/policy/sink-kernel.md"),
    include_str!("../../../docs/reference/policy/matches.md"),
    include_str!("../../../docs/reference/policy/ipv6-extensions.md"),
    include_str!("../../../docs/reference/policy/files.md"),
    include_str!("../../../docs/reference/policy/kernel.md"),
    include_str!("../../../docs/reference/policy/hybrid-rules.md"),
    include_str!("../../../docs/reference/policy/lost-exceptions.md"),
    include_str!("../../../docs/reference/policy/protect.md"),
    include_str!("../../../docs/reference/policy/tests.md"),
    include_str!("../../../docs/reference/policy/editors.md"),
    include_str!("../../../docs/reference/policy/limits.md"),
    include_str!("../../../docs/reference/policy/runtime.md"),
    include_str!("../../../docs/reference/policy/recorder.md"),
);

/// Reports on stderr that `what` is not tested on this machine, and why. If the environment variable
/// `NOT_RUN_LIST` names a file, the report is appended to it (`.ci/test` shows all of them after the last
/// test).
///
/// # Panics
/// If the environment variable `CI` is set: there every test has to run. Also if `NOT_RUN_LIST` cannot be
/// written.
#[track_caller]
pub fn not_run(what: &str, why: &str) {
    assert!(std::env::var_os("CI").is_none(), "{what} must run where CI is set: {why}");
    // Not `eprintln!`, whose output the test harness discards if the test passes.
    let _ = std::io::stderr().write_all(format!("NOT RUN: {what}: {why}\n").as_bytes());
    if let Some(list) = std::env::var_os("NOT_RUN_LIST") {
        // One write, because tests of several threads append.
        let line = format!("{what}: {why}\n");
        let file = std::fs::OpenOptions::new().append(true).create(true).open(&list);
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("NOT_RUN_LIST can be written");
    }
}

/// Whether this process runs only the test of this name (with the path of its modules). If not, a process of
/// its own has run it when this returns. For tests of the limits or the files of a process: a child process
/// that another test starts has copies of all descriptors for a moment.
///
/// # Panics
/// If the test fails there.
#[must_use]
pub fn is_alone(test: &str) -> bool {
    is_own_process(test, |binary| Some(std::process::Command::new(binary)))
}

/// Whether this process runs only that test. If not, a process has run it when this returns: the command that
/// runs the test's binary in it, if there is one.
fn is_own_process(test: &str, command: impl FnOnce(&Path) -> Option<std::process::Command>) -> bool {
    const VARIABLE: &str = "STEERD_TEST_ALONE";
    if std::env::var_os(VARIABLE).is_some() {
        return true;
    }
    let binary = std::env::current_exe().expect("the test's own binary");
    let Some(mut command) = command(&binary) else { return false };
    let run = command.args(["--exact", test, "--nocapture"]).env(VARIABLE, "1").output();
    let output = run.expect("the binary runs");
    let _ = std::io::stderr().write_all(&output.stderr);
    assert!(output.status.success(), "{test} has failed in a process of its own");
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "there is no test {test}");
    false
}

/// A folder of the corpora: real captures (`pcaps`), rule sets (`rules`) and hash values (`rss`). The
/// environment variable `STEERD_CORPORA` names the folder that contains them; the repository does not contain
/// them. `None`, after [`not_run`], if it is not set.
#[track_caller]
#[must_use]
pub fn corpora(folder: &str) -> Option<PathBuf> {
    let found = std::env::var_os("STEERD_CORPORA").map(|corpora| Path::new(&corpora).join(folder));
    if found.is_none() {
        let thread = std::thread::current();
        not_run(thread.name().unwrap_or(folder), "STEERD_CORPORA is not set");
    }
    found
}

/// The capture files of a folder with their names, sorted.
///
/// # Panics
/// If the folder cannot be read or contains none.
#[must_use]
pub fn captures(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let captures: BTreeMap<_, _> = std::fs::read_dir(folder)
        .expect("the folder of captures is readable")
        .map(|entry| entry.expect("the entry is readable").path())
        .filter(|path| path.extension() == Some(OsStr::new("pcap")))
        .map(|path| {
            let name = path.file_name().expect("an entry of a folder has a name").to_string_lossy();
            (name.into_owned(), std::fs::read(&path).expect("the capture is readable"))
        })
        .collect();
    assert!(!captures.is_empty(), "no captures in {}", folder.display());
    captures
}

/// The Ethernet frames of a classic capture file of either byte order (draft-ietf-opsawg-pcap), as captured.
///
/// ```
/// let mut file = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0];
/// file.extend([0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 60, 0, 0, 0]); // 3 of 60 octets were captured
/// file.extend([7, 8, 9]);
/// assert_eq!(test_support::frames(&file), [[7, 8, 9]]);
/// ```
///
/// # Panics
/// If the file is not a capture of Ethernet frames.
#[must_use]
pub fn frames(file: &[u8]) -> Vec<&[u8]> {
    let big_endian = match file[..4] {
        [0xd4, 0xc3, 0xb2, 0xa1] | [0x4d, 0x3c, 0xb2, 0xa1] => false,
        [0xa1, 0xb2, 0xc3, 0xd4] | [0xa1, 0xb2, 0x3c, 0x4d] => true,
        _ => panic!("not a pcap file"),
    };
    let word = |at: usize| {
        let octets = file[at..at + 4].try_into().expect("four octets");
        if big_endian { u32::from_be_bytes(octets) } else { u32::from_le_bytes(octets) }
    };
    assert_eq!(word(20) & 0xffff, 1, "not Ethernet");
    let mut frames = Vec::new();
    let mut at = 24;
    while at < file.len() {
        let bytes = word(at + 8) as usize;
        frames.push(&file[at + 16..at + 16 + bytes]);
        at += 16 + bytes;
    }
    frames
}

/// A capture file of these frames, from which [`frames`] reads them again (pcap-savefile(5)).
#[must_use]
pub fn capture(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file: Vec<u8> = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1] {
        file.extend(word.to_le_bytes());
    }
    for frame in frames {
        let length = frame.len() as u32;
        for word in [0, 0, length, length] {
            file.extend(word.to_le_bytes());
        }
        file.extend(frame);
    }
    file
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_not_run_is_listed() {
        let binary = std::env::current_exe().expect("this binary");
        let folder = tempfile::tempdir().expect("a folder");
        let list = folder.path().join("list");
        let run = || {
            let mut command = std::process::Command::new(&binary);
            command.args(["--exact", "tests::child", "--ignored"]).env("NOT_RUN_LIST", &list);
            command
        };
        for _ in 0..2 {
            assert!(run().env_remove("CI").output().expect("it runs").status.success());
        }
        assert!(!run().env("CI", "true").output().expect("it runs").status.success());
        let listed = std::fs::read_to_string(list).expect("a list");
        assert_eq!(listed, "a tool: it is missing\n".repeat(2));
    }

    #[test]
    #[ignore = "a process of the other test"]
    fn child() {
        super::not_run("a tool", "it is missing");
    }
}

//! Scripts that run in network and mount namespaces of their own.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::not_run;

/// A command in fresh network and mount namespaces; for ordinary users inside a user namespace of their own.
#[must_use]
pub fn isolated() -> Command {
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--net", "--mount"]);
    command
}

/// The reason why a shell command fails in such namespaces, if it does.
#[must_use]
pub fn obstacle(needs: &str) -> Option<String> {
    match isolated().args(["sh", "-c", needs]).output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Some(format!("unshare: {error}")),
    }
}

/// Like [`is_alone`](crate::is_alone), with the process in such namespaces. `false`, after [`not_run`], if a
/// shell command with what the test needs fails there.
///
/// # Panics
/// If the test fails there.
#[track_caller]
#[must_use]
pub fn is_isolated(test: &str, needs: &str) -> bool {
    crate::is_own_process(test, |binary| {
        if let Some(obstacle) = obstacle(needs) {
            not_run(test, &obstacle);
            return None;
        }
        let mut command = isolated();
        command.arg(binary);
        Some(command)
    })
}

/// The requirements of the scripts: links, TAP interfaces and nft(8).
const NEEDS: &str =
    "ip link add t0 type veth peer name t1 && ip tuntap add dev t2 mode tap multi_queue && nft list tables";

/// The files that a script has left in its folder.
#[derive(Debug)]
pub struct Outcome(TempDir);

impl Outcome {
    /// Runs `script PROGRAM FOLDER ARGUMENTS`, with a new folder. `None`, after [`not_run`], if it cannot run
    /// here.
    ///
    /// # Panics
    /// If the script fails; the message has its stderr and the file steerd.log.
    #[track_caller]
    #[must_use]
    pub fn of(script: &Path, program: &str, arguments: &[&str]) -> Option<Self> {
        if let Some(obstacle) = obstacle(NEEDS) {
            not_run(&script.display().to_string(), &obstacle);
            return None;
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut command = isolated();
        command.arg(script).arg(program).arg(folder.path()).args(arguments);
        let run = command.output().expect("unshare runs");
        let outcome = Self(folder);
        let (errors, log) = (String::from_utf8_lossy(&run.stderr), outcome.read("steerd.log"));
        assert!(run.status.success(), "{errors}\n{log}");
        Some(outcome)
    }

    /// A file of the folder; empty if there is none.
    #[must_use]
    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.path().join(name)).unwrap_or_default()
    }

    /// The lines `NAME=NUMBER` of a file of the folder.
    #[must_use]
    pub fn numbers(&self, name: &str) -> std::collections::HashMap<String, u64> {
        let pair = |line: &str| {
            let (name, value) = line.split_once('=')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        self.read(name).lines().filter_map(pair).collect()
    }
}

//! A network namespace for a bench, which starts itself again in it: interfaces that it makes end with it.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

/// Set in the process that is in the namespace.
const INSIDE: &str = "STEERD_BENCH_INSIDE";

/// Replaces this process by one in a new network namespace, if that is permitted.
pub fn enter() {
    if std::env::var_os(INSIDE).is_some() {
        return;
    }
    let ways: [&[&str]; 2] = [&["--net"], &["--user", "--map-root-user", "--net"]];
    for way in ways {
        let tried = Command::new("unshare").args(way).arg("true").stderr(Stdio::null()).status();
        if tried.is_ok_and(|status| status.success()) {
            let program = std::env::current_exe().expect("this program");
            let mut inside = Command::new("unshare");
            inside.args(way).arg(program).args(std::env::args_os().skip(1)).env(INSIDE, "1");
            let error = inside.exec();
            eprintln!("unshare: {error}");
        }
    }
}

/// # Errors
/// This is no namespace in which interfaces may be made.
pub fn entered() -> Result<(), String> {
    let inside = std::env::var_os(INSIDE).is_some();
    inside.then_some(()).ok_or_else(|| "no permission to create a network namespace".to_owned())
}

/// Makes a pair of interfaces that are up.
///
/// # Errors
/// The message of `ip`.
pub fn make_veth(one: &str, other: &str) -> Result<(), String> {
    entered()?;
    ip(&format!("link add name {one} type veth peer name {other}"))?;
    ip(&format!("link set {one} up"))?;
    ip(&format!("link set {other} up"))
}

/// The packets that an interface of this namespace has received.
///
/// # Errors
/// There is no such interface.
pub fn received_packets(interface: &str) -> Result<u64, String> {
    // Not from /sys, which shows the namespace that mounted it.
    let text = std::fs::read_to_string("/proc/thread-self/net/dev").map_err(|error| error.to_string())?;
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(&format!("{interface}:")));
    let packets = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    packets.ok_or_else(|| format!("/proc/net/dev has no {interface}"))
}

fn ip(command: &str) -> Result<(), String> {
    let output = Command::new("ip").args(command.split(' ')).output();
    let output = output.map_err(|error| format!("ip: {error}"))?;
    let message = String::from_utf8_lossy(&output.stderr);
    output.status.success().then_some(()).ok_or_else(|| format!("ip {command}: {}", message.trim()))
}

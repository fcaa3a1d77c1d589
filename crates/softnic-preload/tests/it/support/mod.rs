//! Tests that run themselves again as the command of `softnic exec --method mlx5`: what follows [`is_client`]
//! in a test is that command.
#![allow(unreachable_pub, reason = "a module of tests")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::ffi::{CStr, c_int};
use std::io::Read as _;
use std::os::fd::FromRawFd as _;
use std::panic::Location;
use std::path::Path;
use std::process::Command;

/// The method's variable, which the launcher sets.
const METHOD: &str = softnic::lazy_nic::variable::METHOD;

/// Whether rdma-core's mlx5 provider is there; if not, a message is printed, and a CI run fails.
pub fn is_installed(test: &str) -> bool {
    let output = Command::new(env!("CARGO_BIN_EXE_softnic")).arg("list").output().unwrap();
    let list = String::from_utf8_lossy(&output.stdout).into_owned();
    let method = list.lines().find(|line| line.trim().starts_with("mlx5 ")).unwrap_or("").trim();
    let works = method.ends_with("works");
    if !works {
        test_support::not_run(test, method);
    }
    works
}

/// Whether this process is the client of a test of the calling module; if not, it runs the client and expects
/// it to succeed.
#[track_caller]
pub fn is_client(test: &str, wire: &str) -> bool {
    is_client_with(test, wire, &[])
}

/// Runs the test as a client, with variables that libmlx5 reads.
#[track_caller]
pub fn is_client_with(test: &str, wire: &str, variables: &[(&str, &str)]) -> bool {
    if std::env::var_os(METHOD).is_some_and(|method| method == "mlx5") {
        return true;
    }
    if !is_installed(test) {
        return false;
    }
    let file = Path::new(Location::caller().file());
    let test = format!("{}::{test}", file.file_stem().unwrap().display());
    let output = Command::new(env!("CARGO_BIN_EXE_softnic"))
        .args(["exec", "--method", "mlx5", "--mtu", "1500", "--wire", wire, "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &test, "--nocapture", "--test-threads=1"])
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{:?}\n{out}\n{err}", output.status);
    assert!(out.contains("1 passed"), "the client ran\n{out}\n{err}");
    false
}

/// open(2), which must succeed.
pub fn open(path: &CStr, flags: c_int) -> c_int {
    let descriptor = try_open(path, flags);
    assert!(descriptor >= 0, "{path:?}: {}", std::io::Error::last_os_error());
    descriptor
}

/// open(2).
pub fn try_open(path: &CStr, flags: c_int) -> c_int {
    // SAFETY: a string, and flags that need no mode.
    unsafe { libc::open(path.as_ptr(), flags) }
}

/// openat(2) for reading, which must succeed.
pub fn open_at(folder: c_int, path: &CStr) -> c_int {
    // SAFETY: a string, and flags that need no mode.
    let descriptor = unsafe { libc::openat(folder, path.as_ptr(), libc::O_RDONLY) };
    assert!(descriptor >= 0, "{path:?}: {}", std::io::Error::last_os_error());
    descriptor
}

/// All of a file, which is closed then.
pub fn read(descriptor: c_int) -> String {
    // SAFETY: callers pass a descriptor of their own.
    let mut file = unsafe { std::fs::File::from_raw_fd(descriptor) };
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    text
}

/// close(2).
pub fn close(descriptor: c_int) {
    // SAFETY: callers pass a descriptor of their own.
    assert_eq!(unsafe { libc::close(descriptor) }, 0);
}

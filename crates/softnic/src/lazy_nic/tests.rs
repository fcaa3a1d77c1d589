//! Settings out of an environment, and the addresses that follow from them.

use std::time::{Duration, Instant};

use packet::MacAddr;
use wire::WireConfig;

use super::*;
use crate::{Personality, SoftNicError};

fn read(variables: &[(&str, &str)]) -> Result<Settings, SoftNicError> {
    Settings::read(|name| {
        variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    })
}

#[test]
fn an_empty_environment_gives_a_nic_without_a_peer() {
    let settings = read(&[]).unwrap();
    assert_eq!(settings.name, "softnic0");
    assert_eq!(settings.wire, WireConfig::Null {});
    assert_eq!(settings.personality, Personality::Ideal);
    assert_eq!((settings.mtu_bytes, settings.core), (None, None));
}

#[test]
fn every_variable_is_read() {
    let settings = read(&[
        (variable::NAME, "left"),
        (variable::WIRE, "link:x:a"),
        (variable::PERSONALITY, "mlx5"),
        (variable::MTU, "9000"),
        (variable::CORE, "0"),
        (variable::WAIT, "0"),
        (variable::WIRES, "closed"),
    ])
    .unwrap();
    assert_eq!(settings.name, "left");
    assert!(matches!(settings.wire, WireConfig::Link(_)));
    assert_eq!(settings.personality, Personality::Mlx5);
    assert_eq!((settings.mtu_bytes, settings.core), (Some(9000), Some(0)));
    assert_eq!((settings.wait, settings.wires_closed), (Duration::ZERO, true));
}

#[test]
fn every_variable_is_checked_and_named() {
    for (name, value) in [
        (variable::WIRE, "carrier-pigeon"),
        (variable::PERSONALITY, "mlx6"),
        (variable::MTU, "67"),
        (variable::MTU, "many"),
        (variable::CORE, "-1"),
        (variable::CORE, "1000000"),
        (variable::WAIT, "3601"),
        (variable::WIRES, "half-open"),
    ] {
        let error = read(&[(name, value)]).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(value), "{error}");
    }
    assert!(read(&[(variable::NAME, "a/b")]).unwrap_err().to_string().contains("a/b"));
}

#[test]
fn the_guid_is_the_address_with_the_universal_bit_turned() {
    assert_eq!(eui64(MacAddr([0x02, 0x73, 0x6f, 0x66, 0x74, 0x00])), 0x0073_6fff_fe66_7400);
}

/// The blocked signals of a thread of this process: its `SigBlk` in /proc/self/task/TID/status (proc(5)).
fn blocked_signals(task: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{task}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
    u64::from_str_radix(line.trim(), 16).unwrap()
}

#[test]
fn the_engine_takes_no_signal_of_the_program() {
    let before = blocked_signals("thread-self");
    let nic = LazyNic::new(read(&[(variable::NAME, "deaf")]).unwrap());
    assert!(nic.nic().is_some());
    assert_eq!(blocked_signals("thread-self"), before, "the program's own mask");
    let is_engine = |task: &str| {
        std::fs::read_to_string(format!("/proc/self/task/{task}/comm")).is_ok_and(|name| name == "deaf\n")
    };
    let until = Instant::now() + Duration::from_secs(10);
    let engine = loop {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names = tasks.map(|task| task.unwrap().file_name().into_string().unwrap());
        // A thread names itself, a little after it has started.
        match names.into_iter().find(|task| is_engine(task)) {
            Some(engine) => break engine,
            None => assert!(Instant::now() < until, "there is no engine"),
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let blocked = blocked_signals(&format!("self/task/{engine}"));
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGALRM, libc::SIGCHLD] {
        assert_ne!(blocked & 1 << (signal - 1), 0, "signal {signal}");
    }
}

#[test]
fn no_nic_is_made_before_the_device_is_opened() {
    let nic = LazyNic::new(read(&[(variable::WIRE, "af_packet:no-such-interface")]).unwrap());
    assert!(nic.made().is_none());
    assert!(nic.nic().is_none(), "and none at all without its wire");
}

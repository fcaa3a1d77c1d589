//! Errors at the start of `steerd run`: the last line on stderr, the documented exit code, nothing left
//! behind.

use std::os::unix::fs::PermissionsExt;
use std::process::Output;

use crate::support::{self, config, stderr, steerd, steerd_by};

/// A soft NIC with nothing on its wire, a policy, and `more`.
fn run_with(more: &str, environment: &[(&str, &str)]) -> Output {
    let folder = tempfile::tempdir().expect("folder");
    let policy = config().join("examples/demo.toml");
    let settings = folder.path().join("s.toml");
    let text = format!("[policy]\nfile = {:?}\n{more}\n", policy.display().to_string());
    std::fs::write(&settings, text).expect("written");
    let mut command = steerd();
    command.args(["run", "--for", "200ms", "--config"]).arg(&settings);
    command.envs(environment.iter().copied());
    command.output().expect("the binary runs")
}

const SOFT: &str = "[[softnic.ports]]\nwire = { kind = \"null\" }\n[workers]\nframes = 64\ncores = 2\n";

fn refused(output: &Output, code: i32, parts: &[&str]) {
    let errors = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{errors}");
    let last = errors.lines().last().unwrap_or_default();
    assert!(last.starts_with("steerd: "), "{errors}");
    for part in parts {
        assert!(last.contains(part), "{part} in: {errors}");
    }
    assert!(!errors.contains("panicked"), "{errors}");
    assert!(output.stdout.is_empty(), "no summary of what never ran");
}

/// The problem is in the line before the last one.
fn refused_settings(output: &Output, parts: &[&str]) {
    refused(output, 78, &["1 error in the settings"]);
    let errors = stderr(output);
    let problem = errors.lines().rev().nth(1).unwrap_or_default();
    assert!(parts.iter().all(|part| problem.contains(part)), "{parts:?} in: {errors}");
}

#[test]
fn the_unchanged_settings_run() {
    let output = run_with(SOFT, &[]);
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn unknown_keys_and_bad_values_of_the_settings() {
    let parts = ["s.toml:4:1", "workers.frame", "did you mean `frames`"];
    refused_settings(&run_with("[workers]\nframe = 5\n", &[]), &parts);
    let parts = ["s.toml:4:10", "workers.frames", "64 to 1048576"];
    refused_settings(&run_with("[workers]\nframes = 5\n", &[]), &parts);
    let variable = [("STEERD_WORKERS__IDLE", "lazy")];
    refused_settings(&run_with(SOFT, &variable), &["STEERD_WORKERS__IDLE", "workers.idle", "adaptive"]);
}

/// The soft NIC as a device without flows.
#[test]
fn a_device_that_cannot_steer() {
    let output = run_with(SOFT, &[("STEERD_SOFTNIC__PERSONALITY", "mana")]);
    let errors = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("cannot steer: it has no flows that match packets"), "{errors}");
    assert!(errors.contains("EOPNOTSUPP") && !errors.contains("panicked"), "{errors}");
}

#[test]
fn a_model_file_as_personality() {
    let folder = tempfile::tempdir().expect("folder");
    let file = folder.path().join("nic.toml");
    let model = "name = \"nic\"\npersonality = \"mlx5\"\npriorities = 8\nmax_specs = 6\nmax_table = 64\ntag_bits = 24\n\
                 emulation = { needs_net_raw = false }\n";
    std::fs::write(&file, model).expect("written");
    let name = file.to_str().expect("path");
    let output = run_with(SOFT, &[("STEERD_SOFTNIC__PERSONALITY", name)]);
    assert!(output.status.success(), "{}", stderr(&output));
    std::fs::write(&file, model.replace("= 8", "= 99999999999")).expect("written");
    let broken = [("STEERD_SOFTNIC__PERSONALITY", name)];
    let parts = ["softnic.personality", "nic.toml:3: priorities: invalid value"];
    refused_settings(&run_with(SOFT, &broken), &parts);
}

#[test]
fn a_missing_settings_file() {
    let output = steerd().args(["run", "--config", "/nonexistent.toml"]).output().expect("runs");
    refused_settings(&output, &["/nonexistent.toml", "cannot read"]);
}

/// The unit restarts the daemon after this exit code, not after that of wrong policies and settings.
#[test]
fn files_that_cannot_be_read_now() {
    let folder = tempfile::tempdir().expect("folder");
    let policy = folder.path().join("p.toml");
    let path = policy.to_str().expect("path");
    let run = || run_with(SOFT, &[("STEERD_POLICY__FILE", path)]);
    refused(&run(), 9, &["p.toml", "cannot be read now"]);
    let set = "version = 1\ndefault = \"kernel\"\n[sets.bad]\nkind = \"address\"\nfile = \"no.txt\"\n";
    std::fs::write(&policy, set).expect("written");
    refused(&run(), 9, &["p.toml", "cannot be read now"]);
    std::fs::write(&policy, "version = 1\ndefault = \"kernel\"\nincludes = [\"no.toml\"]\n")
        .expect("written");
    refused(&run(), 9, &["p.toml", "cannot be read now"]);
    std::fs::write(&policy, "version = 1\ndefault = \"kernle\"\n").expect("written");
    refused(&run(), 1, &["p.toml", "1 error"]);
    let unit = config().join("../systemd/steerd.service");
    let unit = std::fs::read_to_string(unit).expect("the unit");
    assert!(unit.contains("\nRestartPreventExitStatus=1 2 78\n"), "{unit}");
}

/// A process may be allowed no further thread, or few descriptors: it says so, and is never ready before.
#[test]
fn a_process_at_its_limits_says_so() {
    let settings = tempfile::tempdir().expect("folder");
    let file = settings.path().join("s.toml");
    let policy = config().join("examples/demo.toml");
    let text = format!("[policy]\nfile = {:?}\n{SOFT}", policy.display().to_string());
    std::fs::write(&file, text).expect("written");
    let run = |limit: &str| {
        let mut command = steerd_by(&["prlimit", limit]);
        command.args(["run", "--for", "200ms", "--config"]).arg(&file);
        command.output().expect("it runs")
    };
    for descriptors in [6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28] {
        let output = run(&format!("--nofile={descriptors}"));
        let errors = stderr(&output);
        if !output.status.success() {
            assert!(
                matches!(output.status.code(), Some(69..=73 | 9)),
                "{descriptors}: {:?} {errors}",
                output.status
            );
            assert!(errors.lines().last().is_some_and(|line| line.starts_with("steerd: ")), "{errors}");
            assert!(!errors.contains("steering on"), "{descriptors}: ready before: {errors}");
        }
    }
    // Threads of root are not limited, so another user's are. That user may not read the folder of the build.
    let binary = settings.path().join("steerd");
    std::fs::copy(steerd().get_program(), &binary).expect("copied");
    for path in [settings.path(), &binary] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("permitted");
    }
    let mut command = std::process::Command::new("setpriv");
    command.args(["--reuid=65534", "--clear-groups", "prlimit", "--nproc=1"]).arg(&binary);
    command.env("STEERD_API__ENABLED", "false").env("STEERD_HTTP__LISTEN", "off");
    let output = command.args(["run", "--demo", "--for", "200ms"]).output().expect("util-linux is there");
    let errors = stderr(&output);
    if errors.contains("setpriv:") {
        return support::not_run("a process without a free thread", "it needs root");
    }
    refused(&output, 70, &["Resource temporarily unavailable", "TasksMax="]);
}

#[test]
fn a_missing_device() {
    refused(&run_with("[device]\nname = \"mlx5_99\"\n", &[]), 69, &["device"]);
    refused(&run_with("[device]\nname = \"softnic0\"\n", &[]), 69, &["softnic0", "softnic.ports"]);
}

#[test]
fn a_missing_interface() {
    let more = "[[softnic.ports]]\nwire = { kind = \"af_packet\", interface = \"nosuchif0\" }\n";
    refused(&run_with(more, &[]), 69, &["nosuchif0"]);
}

#[test]
fn a_missing_capture() {
    let more = "[[softnic.ports]]\nwire = { kind = \"pcap\", path = \"no.pcap\" }\n";
    refused(&run_with(more, &[]), 69, &["no.pcap"]);
}

#[test]
fn a_missing_core() {
    refused(&run_with(SOFT, &[("STEERD_WORKERS__CORES", "[4095]")]), 71, &["workers.cores", "4095"]);
}

/// Reported before memory is allocated, and by `check` without the device.
#[test]
fn more_frames_than_a_receive_queue_holds() {
    let begun = std::time::Instant::now();
    let parts = ["workers.frames", "1048576", "softnic0", "65536 or less"];
    refused(&run_with(SOFT, &[("STEERD_WORKERS__FRAMES", "1048576")]), 78, &parts);
    assert!(begun.elapsed() < std::time::Duration::from_secs(5), "{:?}", begun.elapsed());
    assert!(run_with(SOFT, &[("STEERD_WORKERS__FRAMES", "65536")]).status.success());
    let folder = tempfile::tempdir().expect("folder");
    let settings = folder.path().join("s.toml");
    for (frames, profile, limit) in
        [(65_537, None, "65536"), (40_000, Some("mlx5"), "32768"), (16_352, Some("mlx4"), "16351")]
    {
        let policy = config().join("examples/demo.toml").display().to_string();
        let text = format!(
            "[policy]\nfile = {policy:?}\n{}",
            SOFT.replace("frames = 64", &format!("frames = {frames}"))
        );
        std::fs::write(&settings, text).expect("written");
        let mut command = steerd();
        command.args(["check", "--config"]).arg(&settings);
        profile.iter().for_each(|profile| _ = command.args(["--model", profile]));
        eprintln!("{frames} frames with {profile:?}");
        refused(&command.output().expect("runs"), 3, &["workers.frames", limit]);
    }
}

#[test]
fn an_address_in_use() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("address").to_string();
    refused(&run_with(SOFT, &[("STEERD_HTTP__LISTEN", &address)]), 73, &[&address, "in use", "--listen"]);
}

#[test]
fn a_policy_with_errors() {
    let folder = tempfile::tempdir().expect("folder");
    let policy = folder.path().join("p.toml");
    std::fs::write(&policy, "version = 1\nrulez = []\n").expect("written");
    let policy = policy.to_str().expect("path");
    let output = run_with(SOFT, &[("STEERD_POLICY__FILE", policy)]);
    refused(&output, 1, &["p.toml", "1 error"]);
    assert!(stderr(&output).contains("p.toml:2:1"), "{}", stderr(&output));
}

#[test]
fn a_policy_for_more_workers_than_there_are() {
    let one_worker = [("STEERD_WORKERS__CORES", "1")];
    let output = run_with(SOFT, &one_worker);
    refused(&output, 1, &["demo.toml", "error"]);
    assert!(stderr(&output).contains("worker"), "{}", stderr(&output));
}

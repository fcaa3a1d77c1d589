//! `steerd report`: the file, and what is in it.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::support::{Daemon, stderr, stdout, steerd};

use super::rig::{policies, run_in};

const SETTINGS: &str = "# of Alice\n[policy]\nfile = \"p.toml\"\n[http]\ntoken_file = \"token\"\n[workers]\ncores = 1\n\
                        pages = [\"plain\"]\n[[softnic.ports]]\nwire = { kind = \"null\" }\n";
const POLICY: &str = "version = 1 # of Alice\n[groups.g]\nworkers = \"all\"\n[[rules]]\nname = \"scan\"\n\
                      match = { src = \"10.77.66.0/24\", dst_mac = \"9c:63:c0:aa:01:02\" }\naction = \"drop\"\n";
const TOKEN: &str = "correct-horse-battery-staple";

/// The text of a file of an archive; empty if it is not there.
fn file_in(archive: &Path, name: &str) -> String {
    let mut command = Command::new("tar");
    command.arg("-xzOf").arg(archive).arg(format!("steerd-report/{name}"));
    String::from_utf8(command.output().expect("tar").stdout).expect("UTF-8")
}

#[test]
fn a_report_of_a_running_daemon_has_its_answers() {
    let folder = policies(&[("s.toml", SETTINGS), ("p.toml", POLICY), ("token", TOKEN)]);
    let socket = folder.path().join("api.sock");
    let prepared = |args: &[&str]| {
        let mut command = steerd();
        command.current_dir(folder.path()).args(args);
        command.env("STEERD_API__ENABLED", "true").env("STEERD_API__SOCKET", &socket);
        command
    };
    let daemon = Daemon::start_command(&mut prepared(&["run", "--config", "s.toml", "--keep-running"]));
    let output =
        prepared(&["report", "--config", "s.toml", "-o", "r.tar.gz", "--json"]).output().expect("it runs");
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("read the report before you send it"), "{}", stderr(&output));
    let archive = folder.path().join("r.tar.gz");
    assert_eq!(archive.metadata().expect("it is there").permissions().mode() & 0o777, 0o600);
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&answer["file"], &answer["is_redacted"]), (&"r.tar.gz".into(), &true.into()));
    let mut all = String::new();
    for part in answer["parts"].as_array().expect("parts") {
        let text = file_in(&archive, part["name"].as_str().expect("a name"));
        assert_eq!(part["bytes"], text.len(), "{part:#}");
        all += &text;
    }
    for private in ["10.77.66", "9c:63:c0", "Alice", TOKEN] {
        assert!(!all.contains(private), "{private}");
    }
    let status: serde_json::Value =
        serde_json::from_str(&file_in(&archive, "daemon/status.json")).expect("JSON");
    assert_eq!(status["policy"]["rules"], 1);
    let metrics = file_in(&archive, "daemon/metrics.txt");
    assert!(metrics.contains("steerd_") && metrics.contains("rule=\"scan\""), "{metrics}");
    assert!(file_in(&archive, "doctor.json").contains("\"findings\""));
    assert!(file_in(&archive, "manifest.txt").contains("policy/policy.toml"));
    std::fs::write(folder.path().join("redacted.toml"), file_in(&archive, "policy/policy.toml"))
        .expect("written");
    let checked = run_in(&folder, &["check", "redacted.toml", "--model", "mlx5"]);
    assert!(checked.status.success(), "{}", stderr(&checked));
    daemon.terminate();
}

#[test]
fn settings_with_problems_are_reported() {
    let folder = policies(&[("s.toml", "[worker]\ncores = 1\n")]);
    let output = run_in(&folder, &["report", "--config", "s.toml", "-o", "r.tar.gz"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let archive = folder.path().join("r.tar.gz");
    assert!(file_in(&archive, "settings-problems.txt").contains("unknown"), "{}", stdout(&output));
    assert!(
        stdout(&output).contains("absent  doctor.json  (the settings have problems)"),
        "{}",
        stdout(&output)
    );
}

#[test]
fn a_file_is_not_replaced_unless_forced() {
    let folder = policies(&[("s.toml", SETTINGS), ("p.toml", POLICY), ("r.tar.gz", "mine")]);
    let report = |more: &[&str]| {
        run_in(&folder, &[&["report", "--config", "s.toml", "-o", "r.tar.gz"], more].concat())
    };
    let refused = report(&[]);
    assert_eq!(refused.status.code(), Some(7));
    assert!(stderr(&refused).contains("--force"), "{}", stderr(&refused));
    let plain = report(&["--force", "--no-redact"]);
    assert!(plain.status.success() && stderr(&plain).contains("NOT redacted"), "{}", stderr(&plain));
    assert!(file_in(&folder.path().join("r.tar.gz"), "policy/policy.toml").contains("10.77.66.0/24"));
}

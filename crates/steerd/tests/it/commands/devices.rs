//! `steerd devices`: the list, and the call of the program that probes a device.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use super::rig::json;

/// Writes settings with a soft NIC called `mysoft`; returns their path.
fn settings_in(folder: &Path) -> String {
    let path = folder.join("s.toml");
    let text = "[softnic]\nname = \"mysoft\"\n[[softnic.ports]]\nwire = { kind = \"null\" }\n";
    std::fs::write(&path, text).expect("written");
    path.to_str().expect("path").to_owned()
}

#[test]
fn devices_lists_the_soft_nic_of_the_settings() {
    let folder = tempfile::tempdir().expect("folder");
    let path = settings_in(folder.path());
    let devices = json(&["devices", "--config", &path, "--format", "json"]);
    let found = devices["devices"].as_array().expect("list").iter().find(|device| device["name"] == "mysoft");
    assert_eq!(found.expect("mysoft")["ports"], 1);
}

/// The binary under another path, without and with a program beside it that prints its arguments. Links,
/// because a file that was just written may still be open for writing in a child of another test, and cannot
/// be run then (ETXTBSY).
#[test]
fn probe_runs_the_program_beside_steerd() {
    // On the file system of the binary: a hard link cannot cross file systems.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("folder");
    let path = settings_in(folder.path());
    let steerd = folder.path().join("steerd");
    std::fs::hard_link(env!("CARGO_BIN_EXE_steerd"), &steerd).expect("linked");
    let probe = |args: &[&str]| {
        let output =
            Command::new(&steerd).args(["devices", "--config", &path, "--probe"]).args(args).output();
        output.expect("the binary runs")
    };
    let missing = probe(&["mysoft"]);
    assert_eq!(missing.status.code(), Some(4), "{missing:?}");
    let complaint = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(complaint.contains("steerd-probe") && complaint.contains("hint"), "{complaint}");

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/commands/print-arguments");
    symlink(script, folder.path().join("steerd-probe")).expect("linked");
    let soft = probe(&["mysoft", "--format", "json"]);
    assert_eq!(
        String::from_utf8_lossy(&soft.stdout),
        "--format json --default-output mysoft.toml --soft ideal\n"
    );
    assert_eq!(soft.status.code(), Some(9), "its exit code");
    let named = probe(&["mysoft", "--output", "-"]);
    assert_eq!(String::from_utf8_lossy(&named.stdout), "--output - --soft ideal\n");
    assert_eq!(
        String::from_utf8_lossy(&probe(&["mlx5_0"]).stdout),
        "--default-output mlx5_0.toml --port 1 -- mlx5_0\n"
    );
}

/// The reports of the command on soft NICs and on rdma-core's own mlx5 provider.
mod report {
    use std::path::{Path, PathBuf};
    use std::process::{Command, Output};
    use std::time::{Duration, Instant};

    use rustix::process::{Pid, Signal, kill_process};

    use crate::support::image::Image;
    use crate::support::{PATIENCE, not_run, stderr, stdout, steerd};

    /// `steerd-probe` is beside the binary, and this process may create flows.
    fn can_report() -> bool {
        let probe = Path::new(env!("CARGO_BIN_EXE_steerd")).with_file_name("steerd-probe");
        if !probe.exists() {
            not_run("reports", "steerd-probe is not built: cargo build -p conformance");
            return false;
        }
        if !rustix::process::geteuid().is_root() {
            not_run("reports", "flows need CAP_NET_RAW");
            return false;
        }
        true
    }

    fn validate(text: &str) -> Output {
        let folder = tempfile::tempdir().expect("folder");
        let file = folder.path().join("report.toml");
        std::fs::write(&file, text).expect("written");
        steerd().args(["devices", "--validate-report"]).arg(&file).output().expect("the binary runs")
    }

    fn parsed(output: &Output) -> toml::Table {
        let text = stdout(output);
        assert!(output.status.success(), "{}", stderr(output));
        let valid = validate(&text);
        assert!(valid.status.success(), "{}\n{text}", stderr(&valid));
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        assert!(host.trim().len() < 3 || !text.contains(host.trim()), "{text}");
        text.parse().expect("TOML")
    }

    /// The measured parts are there, and consistent with a NIC that works.
    fn check(report: &toml::Table, source: &str) {
        assert_eq!(report["completeness"].as_str(), Some("quick"));
        assert!(
            !report.contains_key("missing") || report["missing"].as_array().is_some_and(Vec::is_empty),
            "{report}"
        );
        let patterns = report["flows"]["patterns"].as_array().expect("patterns");
        let names: Vec<_> =
            patterns.iter().map(|pattern| pattern["name"].as_str().unwrap_or_default()).collect();
        assert_eq!(names, ["one_mask", "sixteen_of_each_mask", "one_of_each_mask", "until_refused"]);
        assert_eq!(patterns[0]["installed"], patterns[0]["wanted"]);
        assert_eq!(report["flows"]["left_behind"].as_integer(), Some(0));
        assert_eq!(report["suite"]["rows"].as_integer(), Some(338));
        assert_eq!(report["receive"]["source"].as_str(), Some(source));
        let points = report["receive"]["points"].as_array().expect("points");
        assert_eq!(points.len(), 12);
        assert!(points.iter().all(|point| point["received"].as_integer() > Some(0)), "{points:?}");
    }

    #[test]
    fn reports_of_soft_nics_are_valid() {
        if !can_report() {
            return;
        }
        for personality in ["ideal", "mlx5"] {
            let mut command = steerd();
            command.env("STEERD_SOFTNIC__PERSONALITY", personality);
            let output =
                command.args(["devices", "--quick", "--report", "softnic0"]).output().expect("it runs");
            let report = parsed(&output);
            check(&report, "generator");
            assert_eq!(report["identity"]["function"].as_str(), Some("software"));
            assert_eq!(report["suite"]["mismatches"].as_integer(), Some(0), "{personality}");
            let progress = stderr(&output);
            assert!(progress.contains("report: flows: one_mask"), "{progress}");
            assert!(progress.contains("report: quick: "), "the verdict: {progress}");
        }
    }

    /// The launcher, if it and rdma-core's mlx5 provider are there.
    fn softnic() -> Option<PathBuf> {
        let launcher = Path::new(env!("CARGO_BIN_EXE_steerd")).with_file_name("softnic");
        let listed = Command::new(&launcher).arg("list").output();
        let list = listed.map(|output| stdout(&output)).unwrap_or_default();
        let works =
            list.lines().any(|line| line.trim().starts_with("mlx5 ") && line.trim().ends_with("works"));
        if !works {
            not_run("the report of rdma-core's mlx5 provider", "the launcher softnic or libmlx5 is missing");
        }
        works.then_some(launcher)
    }

    #[test]
    fn the_mlx5_model_below_libmlx5_is_reported() {
        let Some(softnic) = softnic().filter(|_| can_report()) else { return };
        let link = format!("report-{}", std::process::id());
        let steerd = steerd();
        let mut command = Command::new(softnic);
        command.args([
            "exec",
            "--method",
            "mlx5",
            "--mtu",
            "1500",
            "--wire",
            &format!("link:{link}:a"),
            "--",
        ]);
        command.arg(steerd.get_program()).args(["devices", "--quick", "--report", "mlx5_0"]);
        command.args(["--peer", &format!("link:{link}")]);
        for (name, value) in steerd.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let report = parsed(&command.output().expect("it runs"));
        check(&report, "link");
        assert_eq!(report["identity"]["driver"].as_str(), Some("mlx5_core"));
    }

    #[test]
    fn an_interrupted_report_ends_and_says_so() {
        if !can_report() {
            return;
        }
        let mut command = steerd();
        let child = command.args(["devices", "--report", "softnic0"]).stdout(std::process::Stdio::piped());
        let mut child = child.stderr(std::process::Stdio::piped()).spawn().expect("it runs");
        // The flows come after the probe and the suite.
        let mut progress = std::io::BufReader::new(child.stderr.take().expect("piped"));
        let begun = Instant::now();
        let mut line = String::new();
        while !line.contains("receive rate") {
            line.clear();
            let read = std::io::BufRead::read_line(&mut progress, &mut line).expect("read");
            assert!(read > 0 && begun.elapsed() < PATIENCE * 4, "no such step");
        }
        kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
        let asked = Instant::now();
        let rest = std::thread::spawn(move || {
            let mut text = String::new();
            std::io::Read::read_to_string(&mut progress, &mut text).expect("read");
            text
        });
        let output = child.wait_with_output().expect("it ends");
        assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
        assert_eq!(output.status.code(), Some(7));
        let text = stdout(&output);
        assert!(text.contains("completeness = \"interrupted\""), "{text}");
        assert!(validate(&text).status.success(), "{text}");
        assert!(rest.join().expect("read").contains("interrupted"));
    }

    /// The progress of the child goes to the same pipe, which ends when the last process that has it is gone.
    #[test]
    fn a_killed_report_leaves_no_child() {
        if !can_report() {
            return;
        }
        let mut command = steerd();
        let child = command.args(["devices", "--report", "softnic0"]).stdout(std::process::Stdio::null());
        let mut child = child.stderr(std::process::Stdio::piped()).spawn().expect("it runs");
        let mut progress = std::io::BufReader::new(child.stderr.take().expect("piped"));
        let mut line = String::new();
        while !line.contains("trying 1/") {
            line.clear();
            let read = std::io::BufRead::read_line(&mut progress, &mut line).expect("read");
            assert!(read > 0, "no such step");
        }
        kill_process(Pid::from_child(&child), Signal::KILL).expect("it runs");
        let killed = Instant::now();
        child.wait().expect("it ends");
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut progress, &mut rest).expect("read");
        assert!(!rest.contains("trying 12/12"), "it has run to its regular end: {rest}");
        assert!(killed.elapsed() < Duration::from_secs(5), "{:?}", killed.elapsed());
    }

    #[test]
    fn reports_of_the_documentation_are_valid() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/hardware");
        let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
            .expect("a folder")
            .map(|entry| entry.expect("an entry").path())
            .collect();
        files.sort();
        // Of each model of the software NIC, and of the model below libmlx5.
        for name in ["softnic0-ideal", "softnic0-mlx5", "softnic0-mlx4", "mlx5-model"] {
            let is_it = |file: &&PathBuf| file.file_stem().is_some_and(|stem| stem == name);
            assert_eq!(files.iter().filter(is_it).count(), 1, "{name}");
        }
        let output = steerd().args(["devices", "--validate-report"]).args(&files).output().expect("it runs");
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(stdout(&output).lines().filter(|line| line.ends_with(": valid")).count(), files.len());
    }

    #[test]
    fn the_report_kit_and_its_image_run() {
        if !can_report() {
            return;
        }
        let folder = tempfile::tempdir().expect("folder");
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let built = Path::new(env!("CARGO_BIN_EXE_steerd")).parent().expect("a folder");
        let scripts = root.join("deploy/report-kit");
        let mut build = Command::new(scripts.join("build"));
        let output = build.arg(built).arg(folder.path()).output().expect("the script runs");
        if stderr(&output).contains("no provider of") {
            return not_run("the report kit", stderr(&output).trim());
        }
        assert!(output.status.success(), "{}", stderr(&output));
        let kit =
            folder.path().join(format!("steerd-report-{}", std::env::consts::ARCH)).join("steerd-report");
        let output = Command::new(&kit).args(["softnic0", "--quick"]).output().expect("it runs");
        assert!(output.status.success(), "{}", stderr(&output));
        let file = folder.path().join("report.toml");
        std::fs::write(&file, &output.stdout).expect("written");
        let output = Command::new(&kit).arg("--validate").arg(&file).output().expect("it runs");
        assert!(stdout(&output).ends_with(": valid\n"), "{}", stderr(&output));
        check_image(&scripts.join("image"), kit.parent().expect("a folder"));
    }

    /// Makes the image of a kit, and a report by it.
    fn check_image(script: &Path, kit: &Path) {
        let folder = tempfile::tempdir().expect("folder");
        let output = Command::new(script).arg(kit).arg(folder.path()).output();
        let output = output.expect("the script runs");
        assert!(output.status.success(), "{}", stderr(&output));
        let image = Image::unpack(Path::new(stdout(&output).trim()), folder.path());
        let Some(output) = image.run(&["--report", "softnic0", "--quick"]) else { return };
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(stdout(&output).contains("device = \"softnic0\""), "{}", stdout(&output));
    }

    #[test]
    fn a_soft_nic_takes_no_peer() {
        let report = |arguments: &[&str]| {
            let output = steerd().args(["devices", "--report", "softnic0"]).args(arguments).output();
            output.expect("the binary runs")
        };
        let refused = report(&["--peer", "nosuch"]);
        assert_eq!(refused.status.code(), Some(4));
        assert!(stderr(&refused).contains("leave out --peer"), "{}", stderr(&refused));
        assert!(stdout(&refused).is_empty());
        assert_eq!(report(&["--format", "json"]).status.code(), Some(2));
    }

    #[test]
    fn a_report_without_reader_fails() {
        if !can_report() {
            return;
        }
        let mut command = steerd();
        command.args(["devices", "--quick", "--report", "softnic0"]).stdout(std::process::Stdio::piped());
        let mut child = command.stderr(std::process::Stdio::piped()).spawn().expect("it runs");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
        let progress = stderr(&output);
        assert!(progress.contains("report: quick: ") && progress.contains("broken pipe"), "{progress}");
    }

    #[test]
    fn texts_of_reports_reach_no_terminal() {
        let refused = validate("version = 1\n\"\\u001b[2J\" = \"a\\u001bb\"\n");
        assert_eq!(refused.status.code(), Some(1));
        assert!(!stderr(&refused).contains('\u{1b}'), "{:?}", stderr(&refused));
        let many: String = (1..=30).map(|number| format!("x{number} = \"10.1.2.{number}\"\n")).collect();
        let refused = stderr(&validate(&format!("version = 1\n{many}")));
        assert!(refused.contains(": and 11 more"), "{refused}");
    }

    #[test]
    fn invalid_reports_are_refused() {
        let refused = validate("version = 1\nsteerd = \"0.1.0\"\n");
        assert_eq!(refused.status.code(), Some(1));
        assert!(stderr(&refused).contains("missing field `date`"), "{}", stderr(&refused));
        let missing = steerd().args(["devices", "--validate-report", "/nonexistent/report.toml"]).output();
        let missing = missing.expect("the binary runs");
        assert_eq!(missing.status.code(), Some(1));
        assert!(stderr(&missing).contains("/nonexistent/report.toml"), "{}", stderr(&missing));
    }
}

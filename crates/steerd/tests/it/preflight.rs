//! `check --config` and the start of `run` agree: settings that the check accepts start and reload, and those
//! with which a start is refused are refused by the check with the same message. The check changes nothing.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use rustix::process::Signal;

use crate::support::{Daemon, PATIENCE, Patience, not_run, stderr, steerd};

/// The values of one setting, or of one part of the policy. `{folder}` and `{port}` are replaced.
struct Dimension {
    /// The key with its section; without a dot, a part of the policy.
    key: &'static str,
    /// The first ones are right, so that most cases start.
    values: &'static [&'static str],
    right: usize,
}

const fn dimension(key: &'static str, right: usize, values: &'static [&'static str]) -> Dimension {
    Dimension { key, values, right }
}

const DIMENSIONS: [Dimension; 14] = [
    dimension("http.listen", 2, &["'127.0.0.1:0'", "'off'", "'127.0.0.1:{port}'", "'203.0.113.77:0'"]),
    dimension("http.token_file", 2, &["''", "'token'", "'short'", "'missing'", "'full'"]),
    dimension(
        "api.socket",
        2,
        &["'api.sock'", "'stale.sock'", "'none/api.sock'", "'token'", "'taken.sock'", "'{long}.sock'"],
    ),
    dimension("workers.cores", 2, &["1", "2", "[4000]"]),
    dimension("workers.frames", 2, &["64", "1000", "70000"]),
    dimension("workers.pages", 2, &["['plain']", "['huge_1g', 'plain']", "['huge_1g']"]),
    dimension("workers.frame_bytes", 2, &["'auto'", "2048", "1000"]),
    dimension("softnic.personality", 3, &["'ideal'", "'mlx5'", "'./small.toml'", "'./none.toml'"]),
    dimension(
        "softnic.ports",
        5,
        &[
            "[{ wire = { kind = 'null' } }]",
            "[{ wire = { kind = 'loopback' } }]",
            "[{ wire = { kind = 'pcap', path = 'in.pcap', mode = 'loop', output = 'out.pcap' } }]",
            "[{ wire = { kind = 'generator', rate = 1000, flows = [{}] } }]",
            "[{ wire = { kind = 'link', name = 'preflight-{id}', end = 'a' } }]",
            "[{ wire = { kind = 'pcap', path = 'none.pcap', mode = 'loop' } }]",
            "[{ wire = { kind = 'pcap', path = 'token', mode = 'once' } }]",
            "[{ wire = { kind = 'pcap', path = 'in.pcap', mode = 'loop', output = 'none/out.pcap' } }]",
            "[{ wire = { kind = 'af_packet', interface = 'no-such-if' } }]",
            "[{ wire = { kind = 'af_xdp', interface = 'no-such-if' } }]",
            "[{ wire = { kind = 'generator', rate = 1000, flows = [{ dst_ports = '7-3' }] } }]",
        ],
    ),
    dimension("state.folder", 3, &["''", "'state'", "'none'"]),
    dimension("policy.require_tests", 1, &["false", "true"]),
    dimension(
        "sink",
        5,
        &[
            "",
            "kind = 'count'\ntop_flows = 3",
            "kind = 'capture'\npath = '{folder}/full'",
            "kind = 'app'\nsocket = '{folder}/app.sock'",
            "kind = 'forward'",
            "kind = 'capture'\npath = '{folder}/none/x.pcapng'",
            "kind = 'capture'\npath = '{folder}/none/{time}.pcapng'",
            "kind = 'app'\nsocket = '{folder}/none/app.sock'",
            "kind = 'app'\nsocket = '{folder}/token'",
            "kind = 'app'\nsocket = '{folder}/taken-app.sock'",
            "kind = 'app'\nsocket = '{folder}/api.sock'",
            "kind = 'forward'\nport = 7",
            "kind = 'forward'\ndevice = 'no-such-device'",
            "kind = 'kernel'\ninterface = 'lo'",
        ],
    ),
    dimension("rules", 3, &["2", "9", "20", "300"]),
    dimension("policy.watch", 2, &["false", "true"]),
];

/// The device has room for 30 flows of a policy.
const SMALL: &str =
    "name = \"small\"\npriorities = 64\nmax_flows = 60\nmax_specs = 10\nmax_table = 128\ntag_bits = 24\n";

/// What the settings name, some of it wrong.
struct Host {
    folder: tempfile::TempDir,
    taken: TcpListener,
    _sockets: [UnixListener; 2],
}

impl Host {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("folder");
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("token"), "0123456789abcdef0123456789abcdef\n").expect("written");
        std::fs::write(at("short"), "secret\n").expect("written");
        std::fs::write(at("small.toml"), SMALL).expect("written");
        std::fs::create_dir(at("full")).expect("made");
        let frame = packet::build::FrameBuilder::new()
            .ipv4([10, 0, 0, 1].into(), [192, 0, 2, 1].into())
            .udp(9, 53)
            .build();
        crate::commands::rig::write_pcap(&at("in.pcap"), &[frame]);
        drop(UnixListener::bind(at("stale.sock")).expect("bound"));
        let sockets =
            ["taken.sock", "taken-app.sock"].map(|name| UnixListener::bind(at(name)).expect("bound"));
        let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
        Self { folder, taken, _sockets: sockets }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes settings and a policy of these values.
    fn write(&self, values: &[&str]) {
        let port = self.taken.local_addr().expect("bound").port().to_string();
        let filled = |value: &str| {
            value
                .replace("{folder}", &self.folder.path().display().to_string())
                .replace("{port}", &port)
                .replace("{id}", &std::process::id().to_string())
                .replace("{long}", &"x".repeat(120))
        };
        let mut sections: BTreeMap<&str, String> = BTreeMap::new();
        let (mut sink, mut rules) = ("", 0);
        for (dimension, value) in DIMENSIONS.iter().zip(values) {
            match dimension.key.split_once('.') {
                Some((section, key)) => {
                    let line = format!("{key} = {}\n", filled(value));
                    sections.entry(section).or_default().push_str(&line);
                }
                None if dimension.key == "sink" => sink = value,
                None => rules = value.parse().expect("a number"),
            }
        }
        sections.entry("api").or_default().push_str("enabled = true\n");
        let text: String = sections.iter().map(|(section, lines)| format!("[{section}]\n{lines}")).collect();
        std::fs::write(self.at("steerd.toml"), text).expect("written");
        // The policies of other cases must not come back.
        let state = self.at("state");
        let _ = std::fs::remove_dir_all(&state);
        std::fs::create_dir(state).expect("made");
        std::fs::write(self.at("policy.toml"), policy(&filled(sink), rules, "steer = 'g'")).expect("written");
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = steerd();
        // The settings are all in the file.
        command.env_remove("STEERD_HTTP__LISTEN").env_remove("STEERD_API__ENABLED");
        command.current_dir(self.folder.path()).args(args).stdin(Stdio::null());
        command
    }

    fn check(&self) -> Output {
        let args = ["check", "--config", "steerd.toml", "--no-analysis"];
        self.command(&args).output().expect("the binary runs")
    }

    /// The names and contents of all files.
    fn files(&self) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
        fn walk(folder: &Path, found: &mut BTreeMap<PathBuf, Option<Vec<u8>>>) {
            for entry in std::fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    walk(&path, found);
                }
                found.insert(path.clone(), path.is_file().then(|| std::fs::read(&path).expect("read")));
            }
        }
        let mut found = BTreeMap::new();
        walk(self.folder.path(), &mut found);
        found
    }
}

/// A policy with so many rules of this action, whose packets a sink gets.
fn policy(sink: &str, rules: usize, action: &str) -> String {
    let mut text = "version = 1\n[groups.g]\nworkers = 'all'\n".to_owned();
    if !sink.is_empty() {
        text.push_str(&format!("sinks = 's'\n[sinks.s]\n{sink}\n"));
    }
    for rule in 0..rules {
        let action = if rule % 3 == 0 { "'drop'".to_owned() } else { format!("{{ {action} }}") };
        text.push_str(&format!(
            "[[rules]]\nname = 'r{rule}'\nmatch = {{ dst = '192.0.2.1', protocol = 'udp', dst_port = {} }}\naction = {action}\n",
            rule + 1
        ));
    }
    text
}

/// Of four dimensions about three have a right value.
fn cases() -> impl Strategy<Value = Vec<&'static str>> {
    let value = |dimension: &'static Dimension| {
        let right = (0..dimension.right).boxed();
        let any = (0..dimension.values.len()).boxed();
        prop_oneof![11 => right, 1 => any].prop_map(|index| dimension.values[index])
    };
    DIMENSIONS.iter().map(value).collect::<Vec<_>>()
}

/// The messages by which a start was refused: diagnostics, and else the last line.
fn refusals(output: &Output) -> Vec<String> {
    let text = stderr(output);
    let diagnostics: Vec<String> =
        text.lines().filter(|line| line.starts_with("policy.toml:")).map(str::to_owned).collect();
    let last = || text.lines().rfind(|line| line.starts_with("steerd: ")).unwrap_or_default();
    if diagnostics.is_empty() { vec![last().trim_start_matches("steerd: ").to_owned()] } else { diagnostics }
}

/// Runs a daemon until it steers, lets it read the policy again, and then another one; or returns how it was
/// refused.
fn start_and_reload(host: &Host, sink: &str, rules: usize) -> Result<(), Output> {
    let mut command = host.command(&["run", "--config", "steerd.toml", "--keep-running"]);
    let mut probe = host.command(&["run", "--config", "steerd.toml", "--keep-running", "--for", "50ms"]);
    let tried = probe.output().expect("the binary runs");
    if !tried.status.success() {
        return Err(tried);
    }
    let mut daemon = Daemon::start_command(&mut command);
    daemon.signal(Signal::HUP);
    daemon.wait_for("is in force after", 1);
    // All actions of the first policy change.
    std::fs::write(host.at("policy.toml"), policy(sink, rules, "copy = 'g'")).expect("written");
    let is_accepted = host.check().status.success();
    daemon.signal(Signal::HUP);
    match is_accepted {
        true => daemon.wait_for("is in force after", 2),
        false => daemon.wait_for("policy.toml is refused, the previous policy stays in force", 1),
    }
    let (status, _, log) = daemon.terminate();
    assert!(status.success(), "{log}");
    Ok(())
}

fn holds(host: &Host, values: &[&str]) -> Result<(), TestCaseError> {
    host.write(values);
    let before = host.files();
    let checked = host.check();
    prop_assert_eq!(host.files(), before, "the check changes files");
    let of = |key: &str| {
        DIMENSIONS.iter().zip(values).find(|(one, _)| one.key == key).map_or("", |(_, value)| value)
    };
    let sink = of("sink").replace("{folder}", &host.folder.path().display().to_string());
    let started = start_and_reload(host, &sink, of("rules").parse().expect("a number"));
    let text = stderr(&checked);
    match started {
        Ok(()) => prop_assert!(checked.status.success(), "it starts, and check refuses it:\n{text}"),
        Err(refused) => {
            prop_assert!(!checked.status.success(), "check accepts:\n{}", stderr(&refused));
            prop_assert_eq!(checked.status.code(), refused.status.code().map(of_command), "{}", text);
            for message in refusals(&refused) {
                prop_assert!(!message.is_empty(), "no reason in:\n{}", stderr(&refused));
                prop_assert!(text.contains(&message), "no {message:?} in:\n{text}");
            }
        }
    }
    Ok(())
}

/// The exit code of a command that has the reason of this exit code of `run`.
fn of_command(code: i32) -> i32 {
    const OF_COMMANDS: [(i32, i32); 5] = [(78, 3), (69, 4), (71, 5), (73, 6), (70, 7)];
    OF_COMMANDS.iter().find(|(of_run, _)| *of_run == code).map_or(code, |(_, of_command)| *of_command)
}

/// Every wrong value alone, so that none is hidden by another.
#[test]
fn each_wrong_value_is_refused_by_the_check_as_by_the_start() {
    let host = Host::new();
    let right: Vec<&str> = DIMENSIONS.iter().map(|dimension| dimension.values[0]).collect();
    for (index, dimension) in DIMENSIONS.iter().enumerate() {
        for value in &dimension.values[dimension.right..] {
            let mut values = right.clone();
            values[index] = value;
            if dimension.key == "rules" {
                values[7] = "'./small.toml'";
            }
            holds(&host, &values).unwrap_or_else(|error| panic!("{} = {value}: {error}", dimension.key));
        }
    }
}

#[test]
fn what_the_check_accepts_starts_and_reloads() {
    let config = Config { cases: 16, max_shrink_iters: 8, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let host = Host::new();
    runner.run(&cases(), |values| holds(&host, &values)).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn all_problems_of_a_start_are_reported_at_once() {
    let host = Host::new();
    let mut values: Vec<&str> = DIMENSIONS.iter().map(|dimension| dimension.values[0]).collect();
    (values[0], values[1], values[2], values[6]) = ("'127.0.0.1:{port}'", "'short'", "'token'", "1000");
    values[11] = "kind = 'app'\nsocket = '{folder}/token'";
    host.write(&values);
    let checked = host.check();
    assert_eq!(checked.status.code(), Some(6), "{}", stderr(&checked));
    let text = stderr(&checked);
    for part in ["http.token_file: ", "http.listen: 127.0.0.1:", "api.socket: ", "workers.frame_bytes = 1000"]
    {
        assert_eq!(text.matches(part).count(), 1, "{part:?} in:\n{text}");
    }
    assert!(text.lines().last().is_some_and(|line| line.starts_with("steerd: http.token_file: ")), "{text}");
    let offline = host.command(&["check", "--config", "steerd.toml", "--offline", "--no-analysis"]).output();
    let offline = offline.expect("the binary runs");
    assert!(!stderr(&offline).contains("http."), "{}", stderr(&offline));
}

#[test]
fn warnings_of_a_start_can_be_denied() {
    let host = Host::new();
    let mut values: Vec<&str> = DIMENSIONS.iter().map(|dimension| dimension.values[0]).collect();
    (values[0], values[5], values[9]) = ("'0.0.0.0:0'", "['huge_1g', 'plain']", "'none'");
    // Without a sink the policy has a warning of its own.
    values[11] = DIMENSIONS[11].values[1];
    host.write(&values);
    let checked = host.check();
    let text = stderr(&checked);
    assert!(checked.status.success(), "{text}");
    let mut parts =
        vec!["warning: http.listen: 0.0.0.0:0 is not a loopback address", "warning: state.folder: "];
    let free = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages");
    match free.is_ok_and(|free| free.trim() != "0") {
        true => not_run("the warning about huge_1g pages", "this host has some that are free"),
        false => parts.push("warning: arena worker 0: no huge_1g pages"),
    }
    for part in &parts {
        assert_eq!(text.matches(part).count(), 1, "{part:?} in:\n{text}");
    }
    let denied =
        ["check", "--config", "steerd.toml", "--no-analysis", "--deny", "warnings", "--format", "json"];
    let denied = host.command(&denied).output().expect("the binary runs");
    assert_eq!(denied.status.code(), Some(1), "{}", stderr(&denied));
    let report: serde_json::Value = serde_json::from_slice(&denied.stdout).expect("JSON");
    // The host may give reason for others.
    let count = report["start"]["warnings"].as_array().map_or(0, Vec::len);
    assert!(count >= parts.len(), "{report:#}");
    assert_eq!(
        (&report["ok"], &report["denied"][0]),
        (&true.into(), &format!("warnings: {count} (denied)").into()),
        "{report:#}"
    );
    assert_eq!(report["start"]["errors"], serde_json::json!([]));
}

#[test]
fn a_check_without_an_answer_is_one_object_with_what_was_found() {
    let host = Host::new();
    let mut values: Vec<&str> = DIMENSIONS.iter().map(|dimension| dimension.values[0]).collect();
    let json = |host: &Host| {
        let args = ["check", "--config", "steerd.toml", "--no-analysis", "--format", "json"];
        let output = host.command(&args).output().expect("the binary runs");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one object");
        assert_eq!(report["ok"], false, "{report:#}");
        (output.status.code(), report)
    };
    // Wrong settings.
    values[4] = "'many'";
    host.write(&values);
    let (code, report) = json(&host);
    assert_eq!((code, &report["start"]), (Some(3), &serde_json::Value::Null), "{report:#}");
    assert_eq!(report["diagnostics"].as_array().map(Vec::len), Some(1), "{report:#}");
    // A policy that is none.
    (values[0], values[4]) = ("'0.0.0.0:0'", "64");
    host.write(&values);
    std::fs::write(host.at("policy.toml"), "version = 1\nrule = 7\n").expect("written");
    let (code, report) = json(&host);
    assert_eq!(code, Some(1), "{report:#}");
    assert!(report["diagnostics"].to_string().contains("rule"), "{report:#}");
    assert!(report["start"]["warnings"].to_string().contains("not a loopback address"), "{report:#}");
    let text = stderr(&host.check());
    assert!(text.contains("warning: http.listen: 0.0.0.0:0 is not a loopback address"), "{text}");
}

/// A start reads the policy before it opens the sinks.
#[test]
fn the_error_of_a_policy_comes_before_those_of_its_sinks() {
    let host = Host::new();
    let mut values: Vec<&str> = DIMENSIONS.iter().map(|dimension| dimension.values[0]).collect();
    (values[10], values[11]) = ("true", "kind = 'app'\nsocket = '{folder}/none/app.sock'");
    host.write(&values);
    let (checked, started) = (host.check(), host.command(&["run", "--config", "steerd.toml"]).output());
    let text = stderr(&checked);
    let codes = (checked.status.code(), started.expect("the binary runs").status.code());
    assert_eq!(codes, (Some(1), Some(1)), "{text}");
    assert!(text.contains("error: sink `s`: "), "{text}");
    assert!(text.lines().last().is_some_and(|line| line.starts_with("steerd: policy.toml: ")), "{text}");
}

#[test]
fn settings_of_another_host_are_checked_without_its_device_and_cores() {
    let host = Host::new();
    let values: Vec<&str> = DIMENSIONS.iter().map(|dimension| dimension.values[0]).collect();
    host.write(&values);
    let settings = "[device]\nname = 'rdma-elsewhere'\n[workers]\ncores = [4000, 4001]\n";
    std::fs::write(host.at("steerd.toml"), settings).expect("written");
    let check = |more: &[&str]| {
        let args = [&["check", "--config", "steerd.toml", "--no-analysis", "--offline"][..], more].concat();
        host.command(&args).output().expect("the binary runs")
    };
    let unknown = check(&[]);
    assert_eq!(unknown.status.code(), Some(4), "{}", stderr(&unknown));
    assert!(stderr(&unknown).contains("--model"), "{}", stderr(&unknown));
    let known = check(&["--model", "mlx5"]);
    assert!(known.status.success(), "{}", stderr(&known));
    assert!(String::from_utf8_lossy(&known.stdout).contains("mlx5 with 2 workers"));
}

/// The check asks a running daemon, and neither takes its place nor counts as a client of its sinks.
#[test]
fn what_a_running_daemon_holds_is_no_error() {
    let host = Host::new();
    let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    let listen: &'static str = format!("'{free}'").leak();
    let mut values: Vec<&str> = DIMENSIONS.iter().map(|dimension| dimension.values[0]).collect();
    (values[0], values[8]) = (listen, DIMENSIONS[8].values[4]);
    values[11] = "kind = 'app'\nsocket = '{folder}/app.sock'";
    host.write(&values);
    let mut daemon =
        Daemon::start_command(&mut host.command(&["run", "--config", "steerd.toml", "--keep-running"]));
    let checked = host.check();
    let text = stderr(&checked);
    assert!(checked.status.success(), "{text}");
    let steerd = format!("the running steerd (process {})", daemon.id());
    for part in [
        format!("note: http.listen: {free} is held by {steerd}"),
        format!("note: api.socket: api.sock is that of {steerd}"),
        format!("note: link `preflight-{}`: end `a` is held by {steerd}", std::process::id()),
        format!("app.sock is a socket of {steerd}"),
    ] {
        assert_eq!(text.matches(&part).count(), 1, "{part:?} in:\n{text}");
    }
    assert!(daemon.is_running());
    let sinks = daemon.state()["sinks"].to_string();
    assert!(!sinks.contains("\"failed_handshakes\",\"1\""), "{sinks}");
    drop(daemon);
    // The socket of a daemon that was killed is nobody's.
    let mut patience = Patience::new(PATIENCE);
    while !host.check().status.success() {
        assert!(!patience.is_over(), "{}", stderr(&host.check()));
        std::thread::sleep(Duration::from_millis(50));
    }
}

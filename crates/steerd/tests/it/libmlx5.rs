//! The daemon on rdma-core's own mlx5 provider, over the model of the kernel and of the device: with
//! `softnic.provider = "mlx5"`, and below the launcher, `softnic exec --method mlx5 -- steerd run`. Workers
//! receive by libmlx5's functions, and directly.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::captures::{corpus, expressions};
use crate::support::{self, Daemon, PATIENCE, ServiceManager, not_run, stderr, stdout, steerd};
use packet::build::FrameBuilder;
use rustix::process::Signal;
use test_support::namespaces::Outcome;
use wire::{LinkConfig, LinkEnd, LinkWire, Wire as _, WireState};

/// The settings of how workers receive on an mlx5 device.
const RECEIVE: [&str; 2] = ["verbs", "direct"];

/// The providers below the daemon, each with how workers receive.
pub(crate) const PROVIDERS: [(&str, &str); 3] = [("softnic", "verbs"), ("mlx5", "verbs"), ("mlx5", "direct")];

/// Every worker receives in this way, by the state or summary of a daemon.
#[track_caller]
fn assert_receives(state: &serde_json::Value, receive: &str) {
    let workers = state["workers"].as_array().expect("workers");
    assert!(!workers.is_empty());
    assert!(workers.iter().all(|worker| worker["receive"] == receive), "{receive}: {state:#}");
}

/// The launcher, if it and rdma-core's mlx5 provider are there.
pub(crate) fn softnic() -> Option<PathBuf> {
    let launcher = Path::new(env!("CARGO_BIN_EXE_steerd")).with_file_name("softnic");
    let listed = Command::new(&launcher).arg("list").output();
    let why = match &listed {
        Err(_) => "softnic is not built: cargo build -p softnic-preload".to_owned(),
        Ok(output) => {
            let list = String::from_utf8_lossy(&output.stdout);
            let method = list.lines().find(|line| line.trim().starts_with("mlx5 ")).unwrap_or("").trim();
            if method.ends_with("works") {
                return Some(launcher);
            }
            method.to_owned()
        }
    };
    not_run("the daemon on rdma-core's mlx5 provider", &why);
    None
}

/// The other end of the device's wire.
struct Peer(LinkWire);

impl Peer {
    fn meet(link: &str) -> Self {
        let config = LinkConfig { name: link.parse().expect("a name"), end: LinkEnd::B };
        let mut wire = LinkWire::open(&config).expect("the end is free");
        let until = Instant::now() + PATIENCE;
        while wire.state() != WireState::Live {
            assert!(Instant::now() < until, "no peer");
            wire.tend();
            std::thread::sleep(Duration::from_millis(1));
        }
        Self(wire)
    }

    /// Sends so many packets to port 80, half as many to port 53, and as many of TCP, slowly enough for the
    /// workers.
    fn send(&mut self, web: u16) {
        let frame = || FrameBuilder::new().ipv4([192, 0, 2, 1].into(), [198, 51, 100, 7].into());
        for number in 0..web {
            self.0.transmit(&frame().udp(number, 80).build()).expect("room");
            self.0.transmit(&frame().tcp(number, 22, 2).build()).expect("room");
            if number % 2 == 0 {
                self.0.transmit(&frame().udp(number, 53).build()).expect("room");
            }
            if number % 32 == 0 {
                self.settle();
            }
        }
        self.settle();
    }

    fn settle(&mut self) {
        self.0.flush();
        let until = Instant::now() + PATIENCE;
        while !self.0.is_taken() {
            assert!(Instant::now() < until, "the device receives nothing");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

const SINK: &str = "version = 1\n[sinks.files]\nkind = \"capture\"\npath = \"PATH\"\n\
                    [groups.g]\nworkers = \"all\"\nsinks = \"files\"\n";
const WEB: &str =
    "[[rules]]\nname = \"web\"\nmatch = { protocol = \"udp\", dst_port = 80 }\naction = { steer = \"g\" }\n";
const DNS: &str =
    "[[rules]]\nname = \"dns\"\nmatch = { protocol = \"udp\", dst_port = 53 }\naction = { steer = \"g\" }\n";

/// The packets of each interface, which is a rule, in all captures of a folder; `None`, reported, without
/// tshark.
fn captured(folder: &Path) -> Option<BTreeMap<String, u64>> {
    let mut counts = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("the folder is readable") {
        let mut command = Command::new("tshark");
        let command = command.args(["-T", "fields", "-e", "frame.interface_name", "-r"]);
        let Ok(output) = command.arg(entry.expect("an entry").path()).output() else {
            not_run("reading the files of a capture", "tshark is not installed");
            return None;
        };
        assert!(output.status.success(), "{}", support::stderr(&output));
        for line in support::stdout(&output).lines() {
            *counts.entry(line.to_owned()).or_default() += 1;
        }
    }
    Some(counts)
}

/// Packets to port 80 that are sent before the reload, and after it.
const SENT: u16 = 2_000;

/// A capture over a reload that adds a rule: each packet that was sent is in a file, under the rule that
/// delivered it.
#[test]
fn a_capture_survives_a_reload_and_every_packet_is_accounted_for() {
    if let Some(softnic) = softnic() {
        RECEIVE.iter().for_each(|receive| capture_over_a_reload(&softnic, receive));
    }
}

fn capture_over_a_reload(softnic: &Path, receive: &str) {
    let folder = tempfile::tempdir().expect("folder");
    let captures = folder.path().join("captures");
    std::fs::create_dir(&captures).expect("created");
    let policy = folder.path().join("p.toml");
    let write = |rules: &[&str]| {
        let text = [&[SINK], rules].concat().concat();
        std::fs::write(&policy, text.replace("PATH", captures.to_str().expect("path"))).expect("written");
    };
    write(&[WEB]);
    let settings = folder.path().join("s.toml");
    let device = format!("[device]\nname = \"mlx5_0\"\nreceive = \"{receive}\"\n");
    let text = device
        + "[policy]\nfile = \"p.toml\"\n\
                [workers]\ncores = 2\nframes = 8192\npages = [\"plain\"]\n";
    std::fs::write(&settings, text).expect("written");
    let link = format!("libmlx5-{}-{receive}", std::process::id());
    let steerd = support::steerd();
    let mut command = Command::new(softnic);
    command.args(["exec", "--method", "mlx5", "--mtu", "1500", "--wire", &format!("link:{link}:a"), "--"]);
    command.arg(steerd.get_program()).args(["run", "--format", "json", "--config"]).arg(&settings);
    for (name, value) in steerd.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let mut daemon = Daemon::start_command(&mut command);
    let delivered = |daemon: &Daemon, rule: &str| {
        daemon.metric("steerd_rule_packets_total", &[&format!("rule=\"{rule}\""), "action=\"deliver\""])
    };
    let mut peer = Peer::meet(&link);
    peer.send(SENT);
    daemon.until("all packets of the first rule", |daemon| delivered(daemon, "web") >= f64::from(SENT));
    write(&[WEB, DNS]);
    daemon.signal(Signal::HUP);
    daemon.wait_for("is in force", 1);
    peer.send(SENT);
    daemon.until("all packets of both rules", |daemon| {
        delivered(daemon, "web") >= f64::from(2 * SENT) && delivered(daemon, "dns") >= f64::from(SENT / 2)
    });
    let (status, summary, log) = daemon.terminate();
    assert!(status.success(), "{log}");
    let summary: serde_json::Value = serde_json::from_str(&summary).expect("JSON");
    assert_eq!(summary["accounting"]["matches"], true, "{summary:#}");
    assert_eq!(summary["device"]["name"], "mlx5_0", "{summary:#}");
    assert_receives(&summary, receive);
    let rules = summary["rules"].as_array().expect("rules").iter();
    let delivered: BTreeMap<String, u64> = rules
        .filter_map(|rule| {
            Some((
                rule["name"].as_str()?.to_owned(),
                rule["delivered_packets"].as_u64().filter(|count| *count > 0)?,
            ))
        })
        .collect();
    let expected = BTreeMap::from([("web".into(), u64::from(2 * SENT)), ("dns".into(), u64::from(SENT / 2))]);
    assert_eq!(delivered, expected);
    if let Some(captured) = captured(&captures) {
        assert_eq!(captured, delivered);
    }
}

/// The settings of a daemon in its folder, whose soft NIC has the personality mlx5 below either provider.
struct Setup {
    folder: tempfile::TempDir,
}

impl Setup {
    fn new(provider: &str, receive: &str, wire: &str, policy: &str) -> Self {
        let folder = tempfile::tempdir().expect("folder");
        let text = format!(
            "[device]\nreceive = \"{receive}\"\n\
             [policy]\nfile = \"p.toml\"\n[workers]\ncores = 2\nframes = 4096\npages = [\"plain\"]\n\
             [softnic]\nprovider = \"{provider}\"\npersonality = \"mlx5\"\n\
             [[softnic.ports]]\nmtu_bytes = 9000\nwire = {wire}\n"
        );
        let setup = Self { folder };
        setup.write("s.toml", text.as_bytes());
        setup.write("p.toml", policy.as_bytes());
        setup
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.folder.path().join(name), bytes).expect("written");
    }

    fn command(&self) -> Command {
        let mut command = steerd();
        command.args(["run", "--format", "json", "--config"]).arg(self.folder.path().join("s.toml"));
        command
    }

    /// Runs it until the capture ends; returns the summary.
    fn run(&self) -> serde_json::Value {
        summary(&mut self.command())
    }
}

/// The summary of a daemon that ends with its capture.
fn summary(command: &mut Command) -> serde_json::Value {
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{}", stderr(&output));
    let summary: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!(summary["accounting"]["matches"], true, "{summary:#}");
    summary
}

/// Packets of each rule that workers took or the device dropped.
fn counts(summary: &serde_json::Value) -> BTreeMap<String, u64> {
    let rules = summary["rules"].as_array().expect("rules").iter();
    let count = |rule: &serde_json::Value, field: &str| rule[field].as_u64().unwrap_or(0);
    rules
        .map(|rule| {
            let packets = count(rule, "delivered_packets") + count(rule, "dropped_packets");
            (rule["name"].as_str().expect("a name").to_owned(), packets)
        })
        .collect()
}

/// Rules that no packet matches two of.
const EXCLUSIVE: [&str; 10] = [
    "et_arp",
    "et_pppoes",
    "v4_tcp",
    "v4_udp",
    "v4_icmp",
    "v4_igmp",
    "v4_sctp",
    "v6_nh_tcp",
    "v6_nh_udp",
    "vlan_ipv4",
];

/// All captures of the corpus in one run.
#[test]
fn both_providers_count_what_independent_tools_counted() {
    let (Some(folder), Some(_)) = (corpus::folder(), softnic()) else { return };
    let mut policy = "version = 1\ndefault = \"drop\"\n[groups.g]\nworkers = \"all\"\n".to_owned();
    let mut expected = BTreeMap::new();
    let known = corpus::expected(&folder);
    for (index, rule) in EXCLUSIVE.into_iter().enumerate() {
        let matches = expressions::expression(rule).expect("it can be expressed");
        let action = if index % 3 == 2 { "\"drop\"" } else { "{ steer = \"g\" }" };
        let _ = write!(policy, "[[rules]]\nname = \"{rule}\"\nmatch = {{ {matches} }}\naction = {action}\n");
        let packets = known.iter().filter(|((_, name), _)| name == rule).map(|(_, (tshark, _))| tshark);
        expected.insert(rule.to_owned(), packets.sum::<u64>());
    }
    assert!(expected.values().all(|packets| *packets > 0), "each rule is tested: {expected:?}");
    let captures = tempfile::tempdir().expect("folder");
    for capture in corpus::captures(&folder) {
        let target = captures.path().join(corpus::name(&capture));
        std::os::unix::fs::symlink(&capture, target).expect("a link");
    }
    let wire = format!("{{ kind = \"pcap\", path = \"{}\", mode = \"once\" }}", captures.path().display());
    for (provider, receive) in PROVIDERS {
        let setup = Setup::new(provider, receive, &wire, &policy);
        let mut command = setup.command();
        // The longest packets of the captures.
        command.env("STEERD_WORKERS__FRAME_BYTES", "16384");
        let summary = summary(&mut command);
        assert_receives(&summary, receive);
        let mut counted = counts(&summary);
        counted.retain(|rule, _| expected.contains_key(rule));
        assert_eq!(counted, expected, "with the provider {provider} and {receive}");
    }
}

/// A policy that forwards packets by the port that received them.
const FORWARD: &str = "version = 1\n[sinks.out]\nkind = \"forward\"\nport = 1\n\
                       [groups.g]\nworkers = \"all\"\nsinks = \"out\"\n\
                       [[rules]]\nname = \"udp\"\nmatch = { protocol = \"udp\" }\naction = { steer = \"g\" }\n";

#[test]
fn forwarded_packets_leave_unchanged() {
    const COUNT: u16 = 800;
    if softnic().is_none() {
        return;
    }
    let wire = "{ kind = \"pcap\", path = \"in.pcap\", mode = \"once\", output = \"out.pcap\" }";
    let frame = |port: u16| {
        let payload = vec![port as u8; usize::from(port) % 1_400];
        FrameBuilder::new()
            .ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into())
            .udp(port, 7)
            .payload(&payload)
            .build()
    };
    let frames: Vec<_> = (1..=COUNT).map(frame).collect();
    let sorted = |mut frames: Vec<Vec<u8>>| {
        frames.sort_unstable();
        frames
    };
    let arrived = sorted(frames.clone());
    for receive in RECEIVE {
        let setup = Setup::new("mlx5", receive, wire, FORWARD);
        setup.write("in.pcap", &test_support::capture(&frames));
        let summary = setup.run();
        assert_eq!(counts(&summary)["udp"], u64::from(COUNT), "{summary:#}");
        let sent = corpus::packets(&setup.folder.path().join("out.pcap"));
        assert!(sorted(sent) == arrived, "{receive}: the frames that left differ from those that arrived");
    }
}

/// With the limits of an mlx5 the device would refuse the program.
#[test]
fn a_policy_is_compiled_for_the_model_file_that_the_device_imitates() {
    if softnic().is_none() {
        return;
    }
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../device-model/models/mlx5.toml");
    let model = std::fs::read_to_string(model).expect("the model");
    let narrow = model.replace("\npriorities = 16", "\npriorities = 4");
    assert_ne!(model, narrow);
    // Each matches some packets of all others.
    let matches = [
        "dst_port = 7",
        "src_port = 1",
        "src = \"10.0.0.1/32\"",
        "dst = \"10.0.0.2/32\"",
        "src = \"10.0.0.0/8\"",
        "dst = \"10.0.0.0/8\"",
    ];
    let mut policy = "version = 1\ndefault = \"drop\"\n[groups.g]\nworkers = \"all\"\n".to_owned();
    for (index, matches) in matches.into_iter().enumerate() {
        let action = if index % 2 == 0 { "{ steer = \"g\" }" } else { "\"drop\"" };
        let udp = format!("match = {{ protocol = \"udp\", {matches} }}");
        let _ = write!(policy, "[[rules]]\nname = \"r{index}\"\n{udp}\naction = {action}\n");
    }
    let wire = "{ kind = \"pcap\", path = \"in.pcap\", mode = \"once\" }";
    let setup = Setup::new("mlx5", "verbs", wire, &policy);
    let udp = |src: [u8; 4], dst: [u8; 4], src_port, dst_port| {
        FrameBuilder::new().ipv4(src.into(), dst.into()).udp(src_port, dst_port).build()
    };
    let frames = [
        udp([10, 0, 0, 1], [10, 0, 0, 2], 1, 7),
        udp([10, 0, 0, 1], [10, 0, 0, 2], 1, 8),
        udp([10, 0, 0, 1], [10, 0, 0, 2], 2, 8),
        udp([10, 0, 0, 9], [10, 0, 0, 2], 2, 8),
        udp([10, 0, 0, 9], [10, 0, 0, 9], 2, 8),
        udp([11, 0, 0, 9], [10, 0, 0, 9], 2, 8),
    ];
    setup.write("in.pcap", &test_support::capture(&frames));
    setup.write("narrow.toml", narrow.as_bytes());
    let narrow = setup.folder.path().join("narrow.toml");
    let counted = counts(&summary(setup.command().env("STEERD_SOFTNIC__PERSONALITY", narrow)));
    for index in 0..matches.len() {
        assert_eq!(counted[&format!("r{index}")], 1, "r{index} of {counted:?}");
    }
}

/// The service manager watches the process that it started, also after that has started itself again.
#[test]
fn the_process_stays_the_same_over_its_start_and_reloads_under_traffic() {
    if softnic().is_some() {
        RECEIVE.into_iter().for_each(reload_under_traffic);
    }
}

fn reload_under_traffic(receive: &str) {
    let policy = |name: &str| {
        format!(
            "version = 1\ndefault = \"kernel\"\n[groups.g]\nworkers = \"all\"\n\
             [[rules]]\nname = \"{name}\"\nmatch = {{ protocol = \"udp\", dst_port = 53 }}\n\
             action = {{ steer = \"g\" }}\n\
             [[rules]]\nname = \"web\"\nmatch = {{ protocol = \"udp\", dst_port = 80 }}\naction = \"drop\"\n"
        )
    };
    let wire =
        "{ kind = \"generator\", rate = 50000, flows = [{ dst_ports = \"53\" }, { dst_ports = \"80\" }] }";
    let setup = Setup::new("mlx5", receive, wire, &policy("before"));
    let manager = ServiceManager::new(setup.folder.path());
    let mut command = setup.command();
    command.env("STEERD_WORKERS__TIMESTAMPS", "true");
    let mut daemon = Daemon::start_command(manager.watch(&mut command, "4000000"));
    manager.until("READY=1");
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", daemon.pid())).expect("it runs");
    assert!(maps.contains("libmlx5"), "the provider is rdma-core's:\n{maps}");
    let of_rule = |daemon: &Daemon, rule: &str| {
        daemon.metric("steerd_rule_packets_total", &[&format!("rule=\"{rule}\""), "action=\"deliver\""])
    };
    daemon.until("packets of the first rule", |daemon| of_rule(daemon, "before") > 1_000.0);
    for (times, name) in [(1, "after"), (2, "before"), (3, "after")] {
        setup.write("p.toml", policy(name).as_bytes());
        daemon.signal(Signal::HUP);
        daemon.wait_for("is in force", times);
    }
    daemon.until("packets of the second rule", |daemon| of_rule(daemon, "after") > 1_000.0);
    let (status, summary, log) = daemon.terminate();
    assert!(status.success(), "{log}");
    let summary: serde_json::Value = serde_json::from_str(&summary).expect("JSON");
    assert_eq!(summary["accounting"]["matches"], true, "{summary:#}");
    assert_receives(&summary, receive);
    // The device's clock is read from memory, and converted to that of the workers.
    for worker in summary["workers"].as_array().expect("workers") {
        let latency = &worker["latency"];
        assert!(latency["ns"]["count"].as_u64().is_some_and(|packets| packets > 0), "{worker:#}");
        assert!(latency["p50_ns"].as_u64().is_some_and(|nanos| nanos < 1_000_000_000), "{latency}");
    }
}

/// Each reload removes a drop rule under traffic: for another name, for a group, or for the kernel.
#[test]
fn reloads_that_remove_drop_rules_lose_no_count() {
    const RELOADS: usize = 42;
    if softnic().is_none() {
        return;
    }
    let policy = |times: usize| {
        let rule = |name: &str, action: &str| {
            format!("[[rules]]\nname = \"{name}\"\nmatch = {{ protocol = \"udp\" }}\naction = {action}\n")
        };
        let rules = match times % 3 {
            0 => rule(&format!("bad-{times}"), "\"drop\""),
            1 => rule(&format!("bad-{times}"), "\"drop\"") + &rule("good", "{ steer = \"g\" }"),
            _ => String::new(),
        };
        format!("version = 1\ndefault = \"kernel\"\n[groups.g]\nworkers = \"all\"\n{rules}")
    };
    let wire =
        "{ kind = \"generator\", rate = 100000, flows = [{ dst_ports = \"53\" }, { dst_ports = \"80\" }] }";
    for (provider, receive) in PROVIDERS {
        let setup = Setup::new(provider, receive, wire, &policy(0));
        let mut daemon = Daemon::start_command(&mut setup.command());
        for times in 1..=RELOADS {
            setup.write("p.toml", policy(times).as_bytes());
            daemon.signal(Signal::HUP);
            daemon.wait_for("is in force", times);
            let accounting = RefCell::new(serde_json::Value::Null);
            // It is not known while the counts of drops are older than those of packets.
            daemon.until("fresh counts of drops", |daemon| {
                *accounting.borrow_mut() = daemon.state()["accounting"].clone();
                !accounting.borrow()["matches"].is_null()
            });
            let accounting = accounting.into_inner();
            assert_eq!(
                accounting["matches"], true,
                "{provider} and {receive}, {times} reloads: {accounting:#}"
            );
        }
        let (status, summary, log) = daemon.terminate();
        assert!(status.success(), "{provider} and {receive}: {log}");
        let summary: serde_json::Value = serde_json::from_str(&summary).expect("JSON");
        assert_eq!(summary["accounting"]["matches"], true, "{provider} and {receive}: {summary:#}");
        assert!(summary["accounting"]["rule_dropped"].as_u64() > Some(1_000), "{summary:#}");
    }
}

#[test]
fn a_missing_library_is_an_error_with_a_remedy() {
    if softnic().is_none() {
        return;
    }
    let setup = Setup::new("mlx5", "verbs", "{ kind = \"null\" }", FORWARD);
    let output = setup.command().env("SOFTNIC_LIBRARY", "/nonexistent.so").output().expect("it runs");
    assert_eq!(output.status.code(), Some(69), "{}", stderr(&output));
    for part in ["softnic.provider", "SOFTNIC_LIBRARY=/nonexistent.so", "No such file"] {
        assert!(stderr(&output).contains(part), "{part} in {}", stderr(&output));
    }
    // As where the dynamic linker preloads nothing.
    let second_start =
        [("SOFTNIC_METHOD", "mlx5"), ("SOFTNIC_NAME", "softnic0"), ("SOFTNIC_WIRES", "closed")];
    let output = setup.command().envs(second_start).output().expect("it runs");
    assert_eq!(output.status.code(), Some(69), "{}", stderr(&output));
    assert!(stderr(&output).contains("setcap -r"), "{}", stderr(&output));
}

/// Bytes of the process that are in memory (proc(5)).
fn resident_kib(daemon: &Daemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    line.split_whitespace().next().and_then(|number| number.parse().ok()).expect("a number")
}

#[test]
fn reloads_do_not_grow_memory() {
    if softnic().is_some() {
        RECEIVE.into_iter().for_each(reload_many_rules);
    }
}

fn reload_many_rules(receive: &str) {
    const RULES: usize = 2_000;
    let policy = |first: &str| {
        let mut text = "version = 1\ndefault = \"kernel\"\n[groups.g]\nworkers = \"all\"\n".to_owned();
        for rule in 0..RULES {
            let name = if rule == 0 { first.to_owned() } else { format!("r-{rule}") };
            let _ = write!(
                text,
                "[[rules]]\nname = \"{name}\"\naction = {{ steer = \"g\" }}\n\
                 match = {{ dst = \"10.0.{}.{}/32\", protocol = \"udp\", dst_port = 53 }}\n",
                rule >> 8,
                rule & 0xff
            );
        }
        text
    };
    let setup = Setup::new("mlx5", receive, "{ kind = \"null\" }", &policy("r-0"));
    let mut daemon = Daemon::start_command(&mut setup.command());
    let before = resident_kib(&daemon);
    for times in 1..=4 {
        setup.write("p.toml", policy(&format!("new-{times}")).as_bytes());
        daemon.signal(Signal::HUP);
        daemon.wait_for("is in force", times);
    }
    // What workers keep of the last policy is freed a second after the reload.
    let most = before * 13 / 10;
    daemon.until("the memory of before", |daemon| resident_kib(daemon) <= most);
    eprintln!("{before} KiB at start, {} KiB after reloads", resident_kib(&daemon));
}

/// Packets of ordinary programs in another namespace, through a veth pair.
#[test]
fn packets_of_another_kernel_are_received_and_the_kernel_still_answers() {
    if softnic().is_none() {
        return;
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/namespaces/libmlx5.sh");
    for receive in RECEIVE {
        let Some(outcome) = Outcome::of(&path, env!("CARGO_BIN_EXE_steerd"), &[receive]) else { return };
        let summary: serde_json::Value = serde_json::from_str(&outcome.read("summary.json")).expect("JSON");
        assert_eq!(summary["accounting"]["matches"], true, "{summary:#}");
        assert_receives(&summary, receive);
        let counts = counts(&summary);
        assert_eq!((counts["ping"], counts["dns"]), (10, 20), "{summary:#}");
        assert_eq!(outcome.numbers("sent.env")["pings"], 10, "the kernel still answers: af_packet copies");
    }
}

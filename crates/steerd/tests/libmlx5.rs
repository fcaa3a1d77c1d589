//! The daemon on rdma-core's own mlx5 provider, over the model of the kernel and of the device: `softnic exec --method mlx5
//! -- steerd run`.

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use packet::build::FrameBuilder;
use rustix::process::Signal;
use softnic::wire::{LinkConfig, LinkEnd, LinkWire, Wire as _, WireState};
use support::{Daemon, PATIENCE, not_run};

/// The launcher, if it and rdma-core's mlx5 provider are there.
fn softnic() -> Option<PathBuf> {
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

    /// Sends so many packets to port 80, half as many to port 53, and as many of TCP, slowly enough for the workers.
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

/// The packets of each interface, which is a rule, in all captures of a folder; `None`, reported, without tshark.
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

/// A capture over a reload that adds a rule: each packet that was sent is in a file, under the rule that delivered it.
#[test]
fn a_capture_survives_a_reload_and_every_packet_is_accounted_for() {
    let Some(softnic) = softnic() else { return };
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
    let text = "[device]\nname = \"mlx5_0\"\n[policy]\nfile = \"p.toml\"\n\
                [workers]\ncores = 2\nframes = 8192\npages = [\"plain\"]\n";
    std::fs::write(&settings, text).expect("written");
    let link = format!("libmlx5-{}", std::process::id());
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

//! The sink kind `capture` of the running daemon: its files as tshark and capinfos read them, next to the
//! metrics.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::support::{self, Daemon, config, not_run, run, stderr, stdout, steerd_by};
use packet::build::FrameBuilder;
use rustix::process::Signal;

/// The files of a folder in the order of their names.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("the folder is readable");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files
}

/// The number of packets of each interface; `None`, reported, without tshark.
fn packets_by_interface(file: &Path) -> Option<BTreeMap<String, u64>> {
    let mut command = Command::new("tshark");
    let output = command.args(["-T", "fields", "-e", "frame.interface_name", "-r"]).arg(file).output();
    let Ok(output) = output else {
        not_run("reading the files of a capture", "tshark is not installed");
        return None;
    };
    assert!(output.status.success(), "{}", stderr(&output));
    let mut counts = BTreeMap::new();
    for line in String::from_utf8(output.stdout).expect("text").lines() {
        *counts.entry(line.to_owned()).or_default() += 1;
    }
    Some(counts)
}

fn comment(file: &Path) -> String {
    let output = Command::new("capinfos").arg("-k").arg(file).output().expect("it comes with tshark");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A folder with a capture of 20 UDP flows of 15 packets to port 53, 3 TCP flows of 5, and other packets, and
/// settings that play it once.
fn recorded(folder: &Path) -> PathBuf {
    let file = fs::File::create(folder.join("c.pcap")).expect("created");
    let mut writer = pcap_file::pcap::PcapWriter::new(file).expect("header");
    let frame = || FrameBuilder::new().ipv4([192, 0, 2, 1].into(), [198, 51, 100, 7].into());
    let mut write = |frame: Vec<u8>| {
        let length = u32::try_from(frame.len()).expect("length");
        let packet = pcap_file::pcap::PcapPacket::new(Duration::ZERO, length, &frame);
        writer.write_packet(&packet).expect("packet");
    };
    for number in 0..15 {
        for flow in 0..20 {
            write(frame().udp(1000 + flow, 53).build());
        }
        for flow in 0..3 * u16::from(number < 5) {
            write(frame().tcp(1000 + flow, 53, 2).build());
        }
        write(frame().udp(53, 1000).build());
    }
    let settings = folder.join("s.toml");
    let text = "[workers]\ncores = 2\nframes = 8192\npages = [\"plain\"]\n\
                [[softnic.ports]]\nwire = { kind = \"pcap\", path = \"c.pcap\" }\n";
    fs::write(&settings, text).expect("written");
    settings
}

#[test]
fn the_example_writes_the_first_packets_of_each_flow() {
    let folder = tempfile::tempdir().expect("folder");
    let captures = folder.path().join("captures");
    fs::create_dir(&captures).expect("created");
    let policy = config().join("examples/capture-dns.toml");
    let arguments = [
        "--config",
        recorded(folder.path()).to_str().expect("path"),
        "--policy",
        policy.to_str().expect("path"),
        "--set",
        &format!("captures={}", captures.display()),
        "--keep-running",
    ]
    .map(str::to_owned);
    let daemon = Daemon::start(&arguments.each_ref().map(String::as_str));
    let sum = |daemon: &Daemon, pointer: &str| -> u64 {
        let state = daemon.state();
        let workers = state["sinks"][0]["workers"].as_array().expect("workers");
        workers
            .iter()
            .map(|worker| worker.pointer(pointer).and_then(serde_json::Value::as_u64).unwrap_or(0))
            .sum()
    };
    daemon.until("every packet is written or dropped", |daemon| {
        sum(daemon, "/delivered_packets") + sum(daemon, "/dropped_packets/limit") == 315
    });
    assert_eq!(sum(&daemon, "/offered_packets"), 315);
    assert_eq!(sum(&daemon, "/dropped_packets/limit"), 20 * 5);
    let delivered =
        daemon.metric("steerd_sink_delivered_packets_total", &["sink=\"dns\"", "kind=\"capture\""]);
    assert_eq!(delivered as u64, 215);
    let state = daemon.state();
    let file = files(&captures)[0].clone();
    assert_eq!(state["sinks"][0]["status"]["file"], file.to_str().expect("path"), "{state:#}");
    let digest = state["policy"]["sha256"].as_str().expect("a digest").to_owned();
    let (status, summary, log) = daemon.terminate();
    assert!(status.success(), "{log}");
    assert!(summary.contains("\npacket accounting matches\n"), "{summary}");

    let Some(counts) = packets_by_interface(&file) else { return };
    assert_eq!(counts, BTreeMap::from([("dns-tcp".to_owned(), 15), ("dns-udp".to_owned(), 200)]));
    let output = Command::new("capinfos").arg(&file).output().expect("it comes with tshark");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("Number of packets:   215"), "{text}");
    assert!(text.contains(&format!("policy generation 1, SHA-256 of the policy {digest}")), "{text}");
}

#[test]
fn a_folder_that_does_not_exist_refuses_the_policy() {
    let folder = tempfile::tempdir().expect("folder");
    let settings = recorded(folder.path());
    let policy = config().join("examples/capture-dns.toml");
    let missing = folder.path().join("missing");
    let set = format!("captures={}", missing.display());
    let policy = policy.to_str().expect("path");
    let output =
        run(&["run", "--config", settings.to_str().expect("path"), "--policy", policy, "--set", &set]);
    let log = stderr(&output);
    assert!(!output.status.success());
    assert!(
        log.contains("sink `dns`: cannot write captures to") && log.contains("create the folder"),
        "{log}"
    );
}

/// A rule more in the second program; `web` keeps its name, but not its number.
const POLICIES: [&str; 2] = [
    "version = 1\n[sinks.files]\nkind = \"capture\"\npath = \"PATH\"\n[groups.g]\nworkers = \"all\"\nsinks = \"files\"\n\
     [[rules]]\nname = \"web\"\nmatch = { protocol = \"udp\", dst_port = 80 }\naction = { steer = \"g\" }\n",
    "version = 1\n[sinks.files]\nkind = \"capture\"\npath = \"PATH\"\n[groups.g]\nworkers = \"all\"\nsinks = \"files\"\n\
     [[rules]]\nname = \"low\"\nmatch = { protocol = \"udp\", dst_port = 80, src_port = \"0-32767\" }\n\
     action = { steer = \"g\" }\n\
     [[rules]]\nname = \"web\"\nmatch = { protocol = \"udp\", dst_port = 80 }\naction = { steer = \"g\" }\n",
];

#[test]
fn a_reload_begins_a_file_and_every_packet_is_in_one_under_its_rule() {
    let folder = tempfile::tempdir().expect("folder");
    let captures = folder.path().join("captures");
    fs::create_dir(&captures).expect("created");
    let policy = folder.path().join("p.toml");
    let write = |text: &str| {
        let text = text.replace("PATH", captures.to_str().expect("path"));
        fs::write(&policy, text).expect("written");
    };
    write(POLICIES[0]);
    let settings = folder.path().join("s.toml");
    let text = "[policy]\nfile = \"p.toml\"\n[workers]\ncores = 2\nframes = 8192\npages = [\"plain\"]\n\
                [[softnic.ports]]\nwire = { kind = \"generator\", rate = 5000, \
                flows = [{ protocol = \"udp\", dst_ports = \"80\", src_ports = \"1-65535\" }] }\n";
    fs::write(&settings, text).expect("written");
    let arguments = ["--config", settings.to_str().expect("path"), "--for", "6s", "--format", "json"];
    let mut daemon = Daemon::start_command(support::steerd().arg("run").args(arguments));
    daemon.until("packets are written", |daemon| {
        daemon.metric("steerd_sink_delivered_packets_total", &["sink=\"files\""]) > 1000.0
    });
    write(POLICIES[1]);
    daemon.signal(Signal::HUP);
    daemon.wait_for("is in force", 1);
    let (status, summary, log) = daemon.end();
    assert!(status.success(), "{log}");
    let summary: serde_json::Value = serde_json::from_str(&summary).expect("JSON");
    assert_eq!(summary["accounting"]["matches"], true, "{summary:#}");

    let files = files(&captures);
    assert_eq!(files.len(), 2, "{files:?}");
    let mut sum: BTreeMap<String, u64> = BTreeMap::new();
    for (file, generation) in files.iter().zip(1..) {
        let Some(counts) = packets_by_interface(file) else { return };
        assert!(generation == 2 || counts.keys().eq(["web"]), "{counts:?}");
        assert!(comment(file).contains(&format!("policy generation {generation}")), "{}", comment(file));
        counts.into_iter().for_each(|(name, count)| *sum.entry(name).or_default() += count);
    }
    let rules = summary["rules"].as_array().expect("rules").iter();
    let delivered = rules.filter_map(|rule| {
        Some((
            rule["name"].as_str()?.to_owned(),
            rule["delivered_packets"].as_u64().filter(|count| *count > 0)?,
        ))
    });
    assert_eq!(sum, delivered.collect());
}

#[test]
fn a_limit_of_file_sizes_costs_no_packets_and_ends_no_process() {
    let folder = tempfile::tempdir().expect("folder");
    let captures = folder.path().join("captures");
    fs::create_dir(&captures).expect("created");
    let policy = folder.path().join("p.toml");
    let text = format!(
        "version = 1\ndefault = \"kernel\"\n[sinks.all]\nkind = \"capture\"\npath = {captures:?}\n\
         [groups.tap]\nworkers = \"all\"\nsinks = \"all\"\n\
         [[rules]]\nname = \"all\"\nmatch = {{ protocol = \"udp\" }}\naction = {{ steer = \"tap\" }}\n"
    );
    fs::write(&policy, text).expect("written");
    let settings = recorded(folder.path());
    let paths = [&settings, &policy].map(|path| path.to_str().expect("path"));
    let mut command = steerd_by(&["prlimit", "--fsize=10000"]);
    let output =
        command.args(["run", "--format", "json", "--config", paths[0], "--policy", paths[1]]).output();
    let output = output.expect("it runs");
    assert!(output.status.success(), "{}: {}", output.status, stderr(&output));
    assert!(stderr(&output).contains("sink `all`: its files end at 10000 bytes"), "{}", stderr(&output));
    let state: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    let workers = state["sinks"][0]["workers"].as_array().expect("workers");
    let sum = |key: &str| workers.iter().map(|worker| worker[key].as_u64().expect("a number")).sum::<u64>();
    assert_eq!((sum("offered_packets"), sum("delivered_packets")), (315, 315), "{state:#}");
    let lengths: Vec<u64> =
        files(&captures).iter().map(|file| fs::metadata(file).expect("it is there").len()).collect();
    assert!(lengths.len() > 2 && lengths.iter().all(|bytes| *bytes <= 10_000), "{lengths:?}");

    // A file that grows beyond the limit otherwise is an error with a message.
    let report = fs::File::create(folder.path().join("report")).expect("created");
    let mut command = steerd_by(&["prlimit", "--fsize=10"]);
    let output =
        command.args(["check", "--format", "json", paths[1]]).stdout(report).output().expect("it runs");
    assert_eq!(output.status.code(), Some(7), "{}", output.status);
    assert!(stderr(&output).contains("cannot write the output: File too large"), "{}", stderr(&output));
}

//! The page for browsers: the data that it asks the real daemon for.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Daemon, PATIENCE, run, stdout};

const POLICY: &str = "version = 1\ndefault = \"kernel\"\n[groups.everyone]\nworkers = \"all\"\n\
     [[rules]]\nname = \"dns\"\nmatch = { protocol = \"udp\", dst_port = 53 }\naction = { steer = \"everyone\" }\n";
const SCANS: &str = "[[rules]]\nname = \"scan\"\nmatch = { src = \"198.51.100.0/24\" }\naction = \"drop\"\n";

/// A daemon with a policy file.
struct Running {
    folder: tempfile::TempDir,
    daemon: Daemon,
}

impl Running {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("folder");
        let policy = folder.path().join("p.toml");
        std::fs::write(&policy, POLICY).expect("written");
        let daemon = Daemon::start(&["--demo", "--policy", policy.to_str().expect("path")]);
        Self { folder, daemon }
    }

    fn write(&self, text: &str) {
        std::fs::write(self.folder.path().join("p.toml"), text).expect("written");
    }

    fn json(&self, path: &str) -> Value {
        let (status, body) = self.daemon.page(path);
        assert_eq!(status, 200, "{path}: {body}");
        let value: Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!(value["format"], 3, "{path}");
        value
    }

    /// The data of the policy once the facts about its rules are computed.
    fn policy(&self) -> Value {
        let begun = Instant::now();
        loop {
            let policy = self.json("/api/v1/policy");
            if policy["is_complete"] == true {
                return policy;
            }
            assert!(begun.elapsed() < PATIENCE, "no examples: {policy}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn stream(&self) -> Events {
        let address = self.daemon.address();
        let mut stream = TcpStream::connect(address).expect("connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        write!(stream, "GET /api/v1/events HTTP/1.1\r\nHost: {address}\r\n\r\n").expect("request");
        Events(BufReader::new(stream))
    }
}

/// A stream of events.
struct Events(BufReader<TcpStream>);

impl Events {
    /// `None`: the stream has ended.
    fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        loop {
            line.clear();
            if self.0.read_line(&mut line).expect("a line") == 0 {
                return None;
            }
            if let Some(data) = line.strip_prefix("data: ") {
                return Some(serde_json::from_str(data).expect("JSON"));
            }
        }
    }

    fn until(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let event = self.next().expect("the stream goes on");
            if wanted(&event) {
                return event;
            }
            assert!(begun.elapsed() < PATIENCE, "never: {what}: {event}");
        }
    }
}

fn rule<'v>(policy: &'v Value, name: &str) -> &'v Value {
    let rules = policy["rules"].as_array().expect("a list");
    rules.iter().find(|rule| rule["name"] == name).unwrap_or_else(|| panic!("no {name}: {policy}"))
}

#[test]
fn the_page_and_its_data_are_served_by_the_daemon() {
    let running = Running::start();
    let (status, html) = running.daemon.page("/");
    assert_eq!(status, 200);
    assert!(html.starts_with("<!doctype html>") && html.contains("/api/v1/events"));
    let policy = running.policy();
    let texts = running.json("/api/v1/policy/texts");
    let file = &texts["files"][0];
    assert_eq!((&file["text"], &texts["sha256"]), (&Value::from(POLICY), &policy["sha256"]));
    let dns = rule(&policy, "dns");
    assert_eq!((&dns["file"], &dns["placement"]), (&file["name"], &Value::from("hardware")));
    let line = usize::try_from(dns["line"].as_u64().expect("a line")).expect("small");
    assert_eq!(POLICY.lines().nth(line - 1), Some("name = \"dns\""));
    assert_eq!(dns["hardware_share"], 1.0);
    let history = running.json("/api/v1/history");
    assert_eq!(history["policies"][0]["by"], "start");
    assert!(history["policies"][0]["text_difference"].is_null(), "there is no policy before: {history}");
}

/// The daemon explains by its own program what the command compiles anew.
#[test]
fn explanations_are_those_of_the_command() {
    let running = Running::start();
    let policy = running.policy();
    let example = rule(&policy, "dns")["example"]["packet"].as_str().expect("an example").to_owned();
    let file = running.folder.path().join("p.toml");
    let file = file.to_str().expect("path");
    for packet in
        [example.as_str(), "src=192.0.2.1,dst=198.51.100.7,protocol=tcp,dst_port=80", "ethertype=arp"]
    {
        let output = run(&["explain", file, "--workers", "2", "--packet", packet, "--format", "json"]);
        let command: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
        let encoded: String = packet.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let page = running.json(&format!("/api/v1/explain?packet={encoded}"));
        for (key, value) in command.as_object().expect("an object").iter().filter(|(key, _)| *key != "model")
        {
            assert_eq!(page[key], *value, "{packet}: {key}");
        }
        let rule = command["rule"].as_str().expect("a rule");
        assert!(page["text"].as_str().is_some_and(|text| text.contains(rule)), "{page}");
    }
    let (status, why) = running.daemon.page("/api/v1/explain?packet=colour=red");
    assert_eq!(status, 400);
    assert!(why.contains("there is no field \"colour\""), "{why}");
    let sent = running.json("/api/v1/explain?packet=protocol=udp,dst_port=53&direction=egress");
    assert_eq!((&sent["direction"], &sent["leaves"]), (&Value::from("egress"), &Value::from(true)));
}

#[test]
fn events_follow_traffic_and_reloads() {
    let mut running = Running::start();
    let mut events = running.stream();
    let packets = |event: &Value| event["ports"][0]["received_packets"].as_u64().expect("counted");
    let first = events.next().expect("an event");
    let later = events.until("more packets", |event| packets(event) > packets(&first));
    assert_eq!(later["rules"][0][0], "dns");
    assert!(later["rules"].as_array().is_some_and(|rules| rules.len() == 2), "the default, too: {later}");

    running.write(&format!("{POLICY}{SCANS}"));
    running.daemon.signal(Signal::HUP);
    let reloaded = events.until("the reload", |event| event["policy"]["generation"] == 2);
    assert_eq!(reloaded["rules"][1][0], "scan");
    let history = running.json("/api/v1/history");
    let last = &history["policies"][0];
    assert_eq!((&last["number"], &last["by"]), (&Value::from(2), &Value::from("signal")));
    let lines = last["text_difference"]["lines"].as_array().expect("texts");
    assert!(lines.iter().any(|line| line == "+name = \"scan\""), "{history}");

    running.write("version = 1\nno_such_key = 1\n");
    running.daemon.signal(Signal::HUP);
    running.daemon.wait_for("stays in force", 1);
    let refused = events.until("the refusal", |event| event["policy"]["last_reload_successful"] == false);
    assert!(refused["policy"]["last_error"].as_str().is_some_and(|why| why.contains("p.toml")), "{refused}");
    assert_eq!(refused["policy"]["generation"], 2, "the policy before stays in force");
}

#[test]
fn open_streams_do_not_delay_the_end() {
    let running = Running::start();
    let mut open: Vec<Events> = (0..8).map(|_| running.stream()).collect();
    for events in &mut open {
        assert!(events.next().is_some());
    }
    let (status, summary, log) = running.daemon.terminate();
    // A server that does not end in its time (`SERVER_TIMEOUT`, 2 s) is an error.
    assert!(status.success(), "{log}");
    assert!(summary.contains("\npacket accounting matches\n"), "{summary}");
    // What was sent before the end may still be read.
    for events in &mut open {
        while events.next().is_some() {}
    }
}

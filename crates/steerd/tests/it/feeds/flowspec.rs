//! BGP flowspec: GoBGP announces routes to ExaBGP, which runs deploy/bgp/steerd-flowspec, which changes the
//! rules of the real daemon. And what that program makes of lines that no BGP speaker writes.

use std::io::Write as _;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::{deploy, ids, tools, until};
use crate::api::Place;
use crate::support::{not_run, stderr, stdout};

const POLICY: &str = "version = 1\n[groups.every]\nworkers = \"all\"\n[runtime]\nbefore = \"ip\"\nrules = 20000\n\
     matches = [\"src\", \"src/24\", \"dst protocol dst_port\", \"dst src_port\", \"dst dst_port\"]\n\
     actions = [\"drop\"]\n\
     [[rules]]\nname = \"ip\"\nmatch = { family = [\"ipv4\", \"ipv6\"] }\naction = { steer = \"every\" }\n";

/// A process that is ended with its test.
struct Running(Child);

impl Running {
    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.0.id()).expect("pid")).expect("pid");
        kill_process(pid, signal).expect("signal");
    }

    fn end(mut self, signal: Signal) {
        self.signal(signal);
        self.0.wait().expect("its end");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A free port of an address.
fn port(address: &str) -> u16 {
    TcpListener::bind((address, 0)).and_then(|listener| listener.local_addr()).expect("a port").port()
}

/// Two BGP speakers with a session over loopback.
struct Speakers {
    place: Place,
    tools: PathBuf,
    api_port: u16,
}

impl Speakers {
    /// `None`, after `not_run`, if they are not there.
    fn new(test: &str) -> Option<Self> {
        let tools = tools(test, "usr/bin/gobgpd")?;
        let place = Place::new(POLICY);
        let (bgp_port, api_port) = (port("127.0.0.1"), port("127.0.0.1"));
        let family = |name: &str| {
            format!("[[neighbors.afi-safis]]\n[neighbors.afi-safis.config]\nafi-safi-name = \"{name}\"\n")
        };
        let gobgpd = format!(
            "[global.config]\nas = 65001\nrouter-id = \"127.0.0.1\"\nport = {bgp_port}\n\
             local-address-list = [\"127.0.0.1\"]\n\
             [[neighbors]]\n[neighbors.config]\nneighbor-address = \"127.0.0.2\"\npeer-as = 65002\n\
             [neighbors.transport.config]\npassive-mode = true\nlocal-address = \"127.0.0.1\"\n{}{}",
            family("ipv4-flowspec"),
            family("ipv6-flowspec"),
        );
        place.write("gobgpd.toml", &gobgpd);
        let exabgp = format!(
            "process steerd {{\n run {} --api-socket {} --lease 20;\n encoder json;\n}}\n\
             neighbor 127.0.0.1 {{\n router-id 127.0.0.2;\n local-address 127.0.0.2;\n local-as 65002;\n \
             peer-as 65001;\n connect {bgp_port};\n family {{ ipv4 flow; ipv6 flow; }}\n \
             api {{ processes [ steerd ]; neighbor-changes; receive {{ parsed; update; }} }}\n}}\n",
            deploy("bgp/steerd-flowspec").canonicalize().expect("the program").display(),
            place.socket().display(),
        );
        place.write("exabgp.conf", &exabgp);
        Some(Self { place, tools, api_port })
    }

    fn log(&self, name: &str) -> Stdio {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(self.place.path(name));
        file.expect("a log").into()
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.place.path(name)).unwrap_or_default()
    }

    fn gobgpd(&self) -> Running {
        let mut command = Command::new(self.tools.join("usr/bin/gobgpd"));
        command.arg("-f").arg(self.place.path("gobgpd.toml")).arg("--pprof-disable");
        command.arg("--api-hosts").arg(format!("127.0.0.1:{}", self.api_port));
        command.stdin(Stdio::null()).stdout(self.log("gobgpd.log")).stderr(self.log("gobgpd.log"));
        let running = Running(command.spawn().expect("gobgpd starts"));
        until(|| self.gobgp(&["global"]).status.success(), || self.text("gobgpd.log"));
        running
    }

    fn exabgp(&self) -> Running {
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-m", "exabgp"]).arg(self.place.path("exabgp.conf"));
        command.env("PYTHONPATH", self.tools.join("usr/lib/python3/dist-packages"));
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        // As root it would become the user `nobody`, who may not use the socket of the test.
        for (name, value) in [("daemon.user", "root"), ("api.cli", "false"), ("tcp.bind", "")] {
            command.env(format!("exabgp.{name}"), value);
        }
        command.stdin(Stdio::null()).stdout(self.log("exabgp.log")).stderr(self.log("exabgp.log"));
        Running(command.spawn().expect("exabgp starts"))
    }

    fn gobgp(&self, args: &[&str]) -> std::process::Output {
        let mut command = Command::new(self.tools.join("usr/bin/gobgp"));
        command.arg("-p").arg(self.api_port.to_string()).args(args).output().expect("gobgp runs")
    }

    /// Adds or removes a route: "match ... then ...".
    fn route(&self, change: &str, family: &str, route: &str) {
        let mut args = vec!["global", "rib", change, "-a", family];
        args.extend(route.split(' '));
        let output = self.gobgp(&args);
        assert!(output.status.success(), "{route}: {}{}", stdout(&output), stderr(&output));
    }

    fn until_rules(&self, wanted: &[&str]) {
        let wanted: Vec<String> = wanted.iter().map(|id| format!("flowspec:{id}")).collect();
        until(
            || ids(&self.place) == wanted,
            || {
                format!(
                    "{:?}, not {wanted:?}\n{}\n{}",
                    ids(&self.place),
                    self.text("exabgp.log"),
                    self.text("gobgpd.log")
                )
            },
        );
    }

    fn until_logged(&self, text: &str) {
        until(
            || self.text("exabgp.log").contains(text),
            || format!("no {text:?}:\n{}", self.text("exabgp.log")),
        );
    }
}

/// The last ones cannot be expressed by rules at run time, or not by the policy's.
const ANNOUNCED: [(&str, &str); 8] = [
    ("ipv4-flowspec", "match source 198.51.100.7/32 then discard"),
    ("ipv4-flowspec", "match destination 192.0.2.1/32 protocol tcp destination-port ==80 then rate-limit 0"),
    ("ipv6-flowspec", "match source 2001:db8::7/128 then discard"),
    // Two rules for each port.
    ("ipv4-flowspec", "match destination 192.0.2.2/32 port ==53 ==123 then discard"),
    ("ipv4-flowspec", "match source 198.51.100.8/32 tcp-flags ==S then discard"),
    ("ipv4-flowspec", "match source 198.51.100.9/32 then rate-limit 9600"),
    ("ipv4-flowspec", "match source 203.0.113.0/25 then discard"),
    ("ipv4-flowspec", "match protocol udp then discard"),
];

#[test]
fn announced_discards_are_dropped_while_the_session_is_up() {
    let Some(speakers) = Speakers::new("BGP flowspec: discards are dropped") else { return };
    let daemon = speakers.place.start();
    let gobgpd = speakers.gobgpd();
    let exabgp = speakers.exabgp();
    speakers.until_logged("127.0.0.1: session up");
    ANNOUNCED.iter().for_each(|(family, route)| speakers.route("add", family, route));
    let v4 = "ipv4-flowspec";
    let first = [
        "198.51.100.7-any:any:any-any",
        "2001:db8::7-any:any:any-any",
        "any-192.0.2.1:6:any-80",
        "any-192.0.2.2:any:123-any",
        "any-192.0.2.2:any:53-any",
        "any-192.0.2.2:any:any-123",
        "any-192.0.2.2:any:any-53",
    ];
    speakers.until_rules(&first);
    for reason in [
        "source-ipv4 198.51.100.8/32 tcp-flags =syn: rules at run time do not compare tcp-flags",
        "source-ipv4 198.51.100.9/32: its action is rate-limit:9600, not only a rate limit of 0",
        "203.0.113.0/25-any:any:any-any: refused by steerd: the policy does not allow rules that compare src/25",
        "protocol =udp: a rule without addresses would drop packets of both IP versions, not only IPv4",
    ] {
        speakers.until_logged(reason);
    }
    let rule = speakers.place.get("/v1/rules?id=flowspec:any-192.0.2.1:6:any-80")["rules"][0].clone();
    assert_eq!(
        (&rule["comment"], &rule["action"]),
        (&json!("BGP flowspec of 127.0.0.1 AS65001"), &json!("drop"))
    );
    assert!(rule["ends_in_seconds"].as_f64().is_some_and(|ends| ends <= 20.0), "{rule}");

    // A more specific route that accepts packets takes them out of a discard, so the whole discard.
    speakers.route("add", v4, "match source 192.0.2.0/24 then discard");
    speakers.until_logged("1 rules added, 0 removed: 8 rules");
    speakers.route("add", v4, "match source 192.0.2.64/26 then accept");
    speakers.until_rules(&first);
    speakers.until_logged("source-ipv4 192.0.2.0/24: a route with another action may come before it");
    speakers.route("del", v4, "match source 192.0.2.64/26");
    speakers.route("del", v4, "match destination 192.0.2.2/32 port ==53 ==123");
    let second = [
        "192.0.2.0/24-any:any:any-any",
        "198.51.100.7-any:any:any-any",
        "2001:db8::7-any:any:any-any",
        "any-192.0.2.1:6:any-80",
    ];
    speakers.until_rules(&second);

    // steerd forgets them in a restart.
    drop(daemon);
    let _daemon = speakers.place.start();
    speakers.until_rules(&second);

    // The session ends; a new one has no routes, because GoBGP has forgotten them.
    gobgpd.end(Signal::KILL);
    speakers.until_rules(&[]);
    speakers.until_logged("127.0.0.1: session down");
    let _gobgpd = speakers.gobgpd();
    speakers.route("add", v4, "match source 198.51.100.7/32 then discard");
    speakers.until_rules(&["198.51.100.7-any:any:any-any"]);
    // The program is killed: ExaBGP starts it again, and it asks for a new session to get the routes.
    let children = format!("/proc/{0}/task/{0}/children", exabgp.0.id());
    let children = std::fs::read_to_string(children).expect("the processes of ExaBGP");
    for child in children.split_whitespace() {
        kill_process(Pid::from_raw(child.parse().expect("a number")).expect("pid"), Signal::KILL)
            .expect("signal");
    }
    speakers.until_logged("an earlier process has left rules: a new session is asked for");
    until(
        || speakers.text("exabgp.log").matches("127.0.0.1: session up").count() == 3,
        || speakers.text("exabgp.log"),
    );
    speakers.route("add", v4, "match source 198.51.100.8/32 then discard");
    speakers.until_rules(&["198.51.100.7-any:any:any-any", "198.51.100.8-any:any:any-any"]);
    speakers.route("del", v4, "match source 198.51.100.8/32");
    speakers.until_rules(&["198.51.100.7-any:any:any-any"]);
    // ExaBGP ends, and starts again.
    exabgp.end(Signal::TERM);
    speakers.until_rules(&[]);
    let exabgp = speakers.exabgp();
    speakers.until_rules(&["198.51.100.7-any:any:any-any"]);
    // Killed, it leaves the end to its process, which has no more input.
    exabgp.end(Signal::KILL);
    speakers.until_rules(&[]);
}

/// The program alone, with lines as ExaBGP writes them, and others.
struct Program {
    place: Place,
    process: Running,
    input: Option<ChildStdin>,
}

impl Program {
    fn start(test: &str, place: Place, args: &[&str]) -> Option<Self> {
        if Command::new("python3").arg("--version").output().is_err() {
            not_run(test, "python3 is missing");
            return None;
        }
        let log = |name: &str| Stdio::from(std::fs::File::create(place.path(name)).expect("a log"));
        let mut command = Command::new("python3");
        command.arg(deploy("bgp/steerd-flowspec")).arg("--api-socket").arg(place.socket()).args(args);
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command.stdin(Stdio::piped()).stdout(log("commands")).stderr(log("log"));
        let mut process = command.spawn().expect("python3");
        let input = process.stdin.take();
        Some(Self { place, process: Running(process), input })
    }

    fn line(&mut self, line: &str) {
        let input = self.input.as_mut().expect("it runs");
        input.write_all(line.as_bytes()).and_then(|()| input.write_all(b"\n")).expect("it reads");
    }

    fn state(&mut self, peer: &str, state: &str) {
        let neighbor = json!({ "address": { "local": "127.0.0.2", "peer": peer }, "asn": { "peer": 1 }, "state": state });
        self.line(&json!({ "type": "state", "neighbor": neighbor }).to_string());
    }

    fn update(&mut self, peer: &str, update: &Value) {
        let neighbor =
            json!({ "address": { "local": "127.0.0.2", "peer": peer }, "message": { "update": update } });
        self.line(&json!({ "type": "update", "neighbor": neighbor }).to_string());
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.place.path(name)).unwrap_or_default()
    }

    fn until_count(&self, count: usize) {
        until(
            || self.place.get("/v1/rules")["count"] == count,
            || format!("not {count} rules: {:.2000}\n{}", self.place.get("/v1/rules"), self.text("log")),
        );
    }

    fn until_logged(&self, text: &str) {
        until(|| self.text("log").contains(text), || format!("no {text:?}:\n{}", self.text("log")));
    }
}

/// A route for packets from an address.
fn nlri(source: &str) -> Value {
    json!({ "source-ipv4": [source], "string": format!("flow source-ipv4 {source}") })
}

/// An update that announces discards.
fn announced(nlris: &[Value]) -> Value {
    json!({
        "attribute": { "extended-community": [{ "value": 0x8006_0000_0000_0000_u64, "string": "rate-limit:0" }] },
        "announce": { "ipv4 flow": { "no-nexthop": nlris } },
    })
}

fn withdrawn(nlris: &[Value]) -> Value {
    json!({ "withdraw": { "ipv4 flow": nlris } })
}

#[test]
fn thousands_of_routes_come_and_go() {
    let place = Place::new(POLICY);
    let daemon = place.start();
    let Some(mut program) = Program::start("BGP flowspec: thousands of routes", place, &[]) else { return };
    program.state("192.0.2.9", "up");
    program.state("192.0.2.10", "up");
    let sources: Vec<Value> =
        (0..3000).map(|number| nlri(&format!("10.0.{}.{}/32", number / 250, number % 250))).collect();
    for some in sources.chunks(100) {
        program.update("192.0.2.9", &announced(some));
        // Duplicates, and the same routes of another peer.
        program.update("192.0.2.9", &announced(&some[..1]));
        program.update("192.0.2.10", &announced(&some[..10]));
    }
    program.until_count(3000);
    // Not there, and there.
    program.update("192.0.2.9", &withdrawn(&[nlri("10.9.9.9/32")]));
    program.update("192.0.2.9", &withdrawn(&sources[..1000]));
    program.until_count(2000 + 100);
    // Meanwhile steerd is down.
    drop(daemon);
    program.update("192.0.2.9", &withdrawn(&sources[1000..2000]));
    program.until_logged("tried again every 1 s");
    let _daemon = program.place.start();
    program.until_count(1000 + 200);
    program.state("192.0.2.9", "down");
    program.until_count(300);
    // The end of the input is the end of ExaBGP.
    drop(program.input.take());
    program.until_count(0);
    assert!(program.process.0.wait().expect("its end").success(), "{}", program.text("log"));
}

#[test]
fn hostile_lines_end_the_routes_of_their_peer_only() {
    let place = Place::new(POLICY);
    let _daemon = place.start();
    let test = "BGP flowspec: hostile lines";
    let Some(mut program) = Program::start(test, place, &["--routes", "50"]) else { return };
    // Before its session is known, a peer is asked for a new one.
    program.update("192.0.2.9", &announced(&[nlri("10.0.0.1/32")]));
    until(|| program.text("commands").contains("neighbor 192.0.2.9 teardown 6\n"), || program.text("log"));
    program.state("192.0.2.9", "up");
    program.state("192.0.2.10", "up");
    program.update("192.0.2.10", &announced(&[nlri("10.0.0.10/32")]));
    let broken = [
        "not JSON at all".to_owned(),
        "\u{0}\u{1b}[2J\"peer\": \"zz\"".to_owned(),
        "[".repeat(100_000),
        "{\"type\": \"update\"}".to_owned(),
        "[1, 2]".to_owned(),
        "{\"type\": \"update\", \"neighbor\": {\"address\": {\"peer\": \"192.0.2.300\"}}}".to_owned(),
    ];
    broken.iter().for_each(|line| program.line(line));
    program.until_count(1);
    // Each of them might have been a withdrawal.
    let hostile = [
        json!({ "announce": [] }),
        json!({ "announce": { "ipv4 flow": { "no-nexthop": [{ "source-ipv4": ["10.0.0.2/32"] }] } } }),
        json!({ "announce": { "ipv4 flow": { "no-nexthop": [7] } } }),
        json!({ "attribute": { "extended-community": [{ "value": "x" }] }, "announce": { "ipv4 flow": {} } }),
        json!({ "withdraw": { "ipv4 flow": [{}] } }),
    ];
    for update in &hostile {
        program.state("192.0.2.9", "up");
        program.update("192.0.2.9", &announced(&[nlri("10.0.0.1/32")]));
        program.until_count(2);
        program.update("192.0.2.9", update);
        program.until_count(1);
    }
    // Values that are none, and components that are not known, widen nothing.
    program.state("192.0.2.9", "up");
    let strange = |key: &str, value: Value| {
        let mut route = nlri("10.0.0.3/32");
        route[key] = value;
        route["string"] = json!(format!("{key} {}", route[key]));
        route
    };
    let routes = [
        strange("destination-port", json!(["=80000"])),
        strange("destination-port", json!(["&true80"])),
        strange("destination-port", json!(["=99999999999999999999"])),
        strange("destination-port", json!([])),
        strange("protocol", json!(["=nonsense"])),
        strange("source-ipv4", json!(["10.0.0.3/32", "10.0.0.4/32"])),
        strange("source-ipv4", json!([7])),
        strange("rd", json!("1:1")),
        strange("flow-label", json!(["=1"])),
    ];
    program.update("192.0.2.9", &announced(&routes));
    program.update("192.0.2.9", &announced(&[nlri("10.0.0.1/32")]));
    program.until_count(2);
    // More routes than a peer may have.
    let many: Vec<Value> = (0..60).map(|number| nlri(&format!("10.1.0.{number}/32"))).collect();
    program.update("192.0.2.9", &announced(&many));
    program.until_count(1);
    program.until_logged("192.0.2.9: ignored until its next session: it announced more than 50 routes");
    program.update("192.0.2.9", &announced(&many[..1]));
    program.state("192.0.2.10", "down");
    program.until_count(0);
    program.process.signal(Signal::TERM);
    assert!(program.process.0.wait().expect("its end").success(), "{}", program.text("log"));
    let log = program.text("log");
    assert!(log.chars().all(|c| c == '\n' || !c.is_control()), "{log:?}");
}

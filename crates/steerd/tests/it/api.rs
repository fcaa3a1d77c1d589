//! The local API and its commands, with the real binary.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Daemon, PATIENCE, ServiceManager, config, not_run, stderr, stdout, steerd};
use rustix::process::Signal;
use serde_json::{Value, json};

const STEER_DNS: &str = "version = 1\n[groups.everyone]\nworkers = \"all\"\n[[rules]]\nname = \"dns\"\n\
     match = { protocol = \"udp\", dst_port = 53 }\naction = { steer = \"everyone\" }\n";
const DROP_SCANS: &str =
    "[[rules]]\nname = \"scan\"\nmatch = { src = \"198.51.100.0/24\" }\naction = \"drop\"\n";

/// A folder with a policy and the socket of a daemon.
pub(crate) struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new(policy: &str) -> Self {
        let place = Self { folder: tempfile::tempdir().expect("folder") };
        place.write("p.toml", policy);
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("written");
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path("api.sock")
    }

    /// `steerd run` on generated traffic.
    pub(crate) fn daemon(&self) -> Command {
        self.daemon_with(&["--demo".as_ref()])
    }

    /// `steerd run` with these arguments.
    pub(crate) fn daemon_with(&self, settings: &[&OsStr]) -> Command {
        let mut command = steerd();
        command.env("STEERD_API__ENABLED", "true").arg("run").args(settings);
        command.arg("--policy").arg(self.path("p.toml")).arg("--api-socket").arg(self.socket());
        command
    }

    /// `steerd run` on a thousand generated packets a second: for tests in which other programs do the work.
    pub(crate) fn quiet_daemon(&self) -> Command {
        let demo = std::fs::read_to_string(config().join("demo.toml")).expect("the demonstration's settings");
        let quiet = demo.replace("rate = 200_000", "rate = 1_000");
        assert_ne!(quiet, demo, "the demonstration has another rate");
        self.write("quiet.toml", &quiet);
        self.daemon_with(&["--config".as_ref(), self.path("quiet.toml").as_ref()])
    }

    pub(crate) fn start(&self) -> Daemon {
        Daemon::start_command(&mut self.daemon())
    }

    /// A command for the daemon of this place.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = steerd();
        command.current_dir(self.folder.path()).args(args).arg("--api-socket").arg(self.socket());
        command.stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("the binary runs")
    }

    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}{}", stdout(&output), stderr(&output));
        stdout(&output)
    }

    pub(crate) fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.ok(&[args, &["--json"]].concat())).expect("JSON")
    }

    pub(crate) fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.socket()).expect("connected");
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        stream
    }

    /// The status and the body of the answer.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let mut stream = self.connect();
        let length = body.len();
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{body}")
            .expect("request");
        answer(stream)
    }

    pub(crate) fn get(&self, path: &str) -> Value {
        let (status, body) = self.ask("GET", path, "");
        assert_eq!(status, 200, "{path}: {body}");
        assert_eq!(body["format"], 3, "{path}: {body}");
        body
    }
}

fn answer(mut stream: UnixStream) -> (u16, Value) {
    let mut bytes = Vec::new();
    // A server that closes before it has read a whole body resets the connection behind its answer.
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8(bytes).expect("text");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {text:?}"));
    let status = head.split_whitespace().nth(1).and_then(|code| code.parse().ok()).expect("a status");
    (status, serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body:?}")))
}

pub(crate) fn error(answer: &Value) -> &str {
    answer["error"].as_str().expect("a text")
}

#[test]
fn status_names_device_policy_hash_and_health() {
    let place = Place::new(STEER_DNS);
    let daemon = place.start();
    let status = place.json(&["status"]);
    assert_eq!(status["pid"], daemon.pid());
    assert_eq!(status["device"]["name"], "softnic0");
    assert_eq!(status["policy"]["generation"], 1);
    assert_eq!(status["health"]["ready"], true);
    let text = place.ok(&["status"]);
    for part in ["softnic0 (soft NIC)", "generation 1", "sha256 ", "health   ready"] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
}

#[test]
fn the_hash_is_the_one_of_check() {
    let place =
        Place::new(&format!("includes = [\"more.toml\"]\n{}", STEER_DNS.replace("53", "\"${port}\"")));
    place.write("more.toml", "version = 1\n[variables]\nport = 1\n");
    let mut command = place.daemon();
    let daemon = Daemon::start_command(command.args(["--set", "port=53"]));
    let check = |port: &str| {
        let mut command = steerd();
        command.arg("check").arg(place.path("p.toml")).args(["--format", "json", "--set", port]);
        let output = command.output().expect("it runs");
        let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        answer["sha256"].clone()
    };
    let running = place.json(&["status"])["policy"]["sha256"].clone();
    assert_eq!(running.as_str().map(str::len), Some(64));
    assert_eq!(
        (check("port=53"), daemon.state()["policy"]["sha256"].clone()),
        (running.clone(), running.clone())
    );
    assert_ne!(check("port=54"), running);
    // A comment in an included file changes nothing but the text.
    place.write("more.toml", "version = 1\n[variables]\nport = 1\n# changed\n");
    assert_ne!(check("port=53"), running);
    assert_eq!(place.json(&["status"])["policy"]["sha256"], running, "until the reload");
    place.ok(&["reload"]);
    assert_eq!(place.json(&["status"])["policy"]["sha256"], check("port=53"));
}

#[test]
fn reload_returns_the_daemons_verdict() {
    let place = Place::new(STEER_DNS);
    let daemon = place.start();
    place.write("p.toml", &format!("{STEER_DNS}{DROP_SCANS}"));
    let text = place.ok(&["reload"]);
    assert!(text.contains("p.toml: in force") && text.contains("generation 2"), "{text}");
    daemon.until("the new rule drops", |daemon| {
        daemon.metric("steerd_rule_packets_total", &["rule=\"scan\"", "action=\"drop\""]) > 10.0
    });

    // Refused: all diagnostics, as `check` prints them, and an exit code of its own.
    let broken = format!("{STEER_DNS}{}rulez = []\n", DROP_SCANS.replace("src", "scr"));
    place.write("p.toml", &broken);
    let output = place.run(&["reload"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let check = steerd().arg("check").arg(place.path("p.toml")).output().expect("it runs");
    let diagnostics = stderr(&check);
    let of_policy: Vec<&str> = diagnostics.lines().filter(|line| line.contains(": error: ")).collect();
    assert_eq!(of_policy.len(), 2, "{diagnostics}");
    let message = stderr(&output);
    for line in &of_policy {
        assert!(message.contains(line), "{line} is not in\n{message}");
    }
    assert!(message.contains("refused, the previous policy stays in force"), "{message}");

    // The same as JSON; `text` and `diagnostics` agree.
    let output = place.run(&["reload", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let verdict: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&verdict["accepted"], &verdict["generation"]), (&json!(false), &json!(2)));
    assert_eq!(verdict["diagnostics"].as_array().map(Vec::len), Some(of_policy.len()), "{verdict:#}");
    assert!(verdict["text"].as_str().is_some_and(|text| text.contains(of_policy[0])), "{verdict:#}");
    assert!(daemon.state()["policy"]["last_error"].is_string());

    place.write("p.toml", STEER_DNS);
    place.ok(&["reload"]);
    assert_eq!(place.json(&["status"])["policy"]["reloads_failed"], 2);
    let (status, summary, log) = daemon.terminate();
    assert!(status.success(), "{log}");
    assert!(summary.contains("\npacket accounting matches\n"), "{summary}");
}

#[test]
fn reloads_at_once_all_get_a_verdict() {
    let place = Place::new(STEER_DNS);
    let mut daemon = place.start();
    // One that goes away before its verdict.
    let mut gone = place.connect();
    gone.write_all(b"POST /v1/reload HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n").expect("request");
    drop(gone);
    let verdicts: Vec<Value> = std::thread::scope(|scope| {
        let clients: Vec<_> =
            (0..20).map(|_| scope.spawn(|| place.ask("POST", "/v1/reload", "{}"))).collect();
        daemon.signal(Signal::HUP);
        let answers = clients.into_iter().map(|client| client.join().expect("no panic"));
        answers.map(|(status, verdict)| if status == 200 { verdict } else { panic!("{verdict}") }).collect()
    });
    assert!(verdicts.iter().all(|verdict| verdict["accepted"] == true), "{verdicts:?}");
    daemon.wait_for("is in force", 1);
    let reloads = place.json(&["status"])["policy"]["reloads_succeeded"].as_u64().expect("a number");
    assert!((1..=22).contains(&reloads), "{reloads}");
    let log = daemon.log();
    assert!(!log.contains("ERROR"), "{log}");
}

#[test]
fn the_service_manager_learns_of_a_reload_by_the_api() {
    let place = Place::new(STEER_DNS);
    let manager = ServiceManager::new(place.folder.path());
    let mut command = place.daemon();
    let _daemon = Daemon::start_command(manager.watch(&mut command, "60000000"));
    manager.until("READY=1");
    place.ok(&["reload"]);
    // All was sent before the verdict.
    let message = manager.drain().join("\n");
    let place_of = |text: &str| message.find(text).unwrap_or_else(|| panic!("no {text} in {message}"));
    assert!(place_of("RELOADING=1") < place_of("READY=1"), "{message}");
}

#[test]
fn the_policy_is_returned_with_everything_that_it_was_read_from() {
    let place = Place::new(&format!(
        "includes = [\"sub/more.toml\"]\n{STEER_DNS}[[rules]]\nname = \"bad\"\nmatch = {{ src = \"bad\" }}\naction = \"drop\"\n"
    ));
    std::fs::create_dir(place.path("sub")).expect("created");
    place.write("sub/more.toml", "version = 1\n[sets]\nbad = { file = \"bad.txt\" }\n");
    place.write("sub/bad.txt", "198.51.100.0/24\n");
    let _daemon = place.start();
    let policy = place.get("/v1/policy");
    assert_eq!(policy["text"], std::fs::read_to_string(place.path("p.toml")).expect("read"));
    assert_eq!(policy["files"]["sub/bad.txt"]["text"], "198.51.100.0/24\n");
    assert!(policy["files"]["sub/more.toml"]["sha256"].is_string(), "{policy:#}");
    assert_eq!(policy["sha256"], place.get("/v1/status")["policy"]["sha256"]);

    // What is not in force yet is not shown, and `diff --running` finds it.
    assert!(place.ok(&["diff", "--running", "p.toml"]).contains("treat every packet alike"));
    place.write("sub/bad.txt", "198.51.100.0/25\n");
    assert_eq!(place.get("/v1/policy")["files"]["sub/bad.txt"]["text"], "198.51.100.0/24\n");
    let output = place.run(&["diff", "--running", "p.toml", "--format", "json"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let by_command: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(
        by_command["old"].as_str().is_some_and(|name| name.contains("running, generation 1")),
        "{by_command:#}"
    );

    // The same by the API, whose caller sends the files.
    let read = |name: &str| std::fs::read_to_string(place.path(name)).expect("read");
    let files = json!({ "sub/more.toml": read("sub/more.toml"), "sub/bad.txt": read("sub/bad.txt") });
    let body = json!({ "name": "new", "text": read("p.toml"), "files": files });
    let (status, by_api) = place.ask("POST", "/v1/diff", &body.to_string());
    assert_eq!(status, 200, "{by_api:#}");
    for key in ["format", "equal", "pairs", "regions", "not_decided"] {
        assert_eq!(by_api[key], by_command[key], "{key}");
    }
    assert_eq!((&by_api["new"], &by_api["equal"]), (&json!("new"), &json!(false)));

    // A file of the daemon's host is not read for a caller.
    let text = "includes = [\"/etc/hostname\"]\nversion = 1\n";
    let (status, refused) = place.ask("POST", "/v1/diff", &json!({ "text": text }).to_string());
    assert_eq!(status, 422);
    assert!(refused["text"].as_str().is_some_and(|text| text.contains("no such file")), "{refused:#}");
    assert!(refused["diagnostics"].is_array(), "{refused:#}");
}

/// Descriptions are in the answers, and a reload that changes them alone touches no flow.
#[test]
fn a_reload_of_descriptions_touches_no_flow() {
    let described = |text: &str| STEER_DNS.to_owned() + &format!("description = \"{text}\"\n");
    let place = Place::new(&described("Queries."));
    let _daemon = place.start();
    let expected = json!([{ "of": "rule", "name": "dns", "description": "Queries." }]);
    assert_eq!(place.json(&["status"])["descriptions"], expected);
    let flows = place.json(&["flows"]);
    assert_eq!(flows["flows"][0]["description"], "Queries.", "{flows:#}");
    assert_eq!(place.get("/v1/state")["rules"][0]["description"], "Queries.");

    place.write("p.toml", &described("Queries of clients."));
    let verdict = place.json(&["reload"]);
    let changed = &verdict["flows"];
    assert_eq!((&changed["installed"], &changed["removed"]), (&json!(0), &json!(0)), "{verdict:#}");
    assert_eq!(verdict["difference"], "no rule changed; 1 description changed (dns)");
    assert_eq!(place.json(&["status"])["descriptions"][0]["description"], "Queries of clients.");
}

#[test]
fn a_comparison_uses_the_daemons_variables() {
    let place = Place::new(&STEER_DNS.replace("53", "\"${port}\""));
    let _daemon = Daemon::start_command(place.daemon().args(["--set", "port=53"]));
    assert!(place.ok(&["diff", "--running", "p.toml"]).contains("alike"));
    let output = place.run(&["diff", "--running", "p.toml", "--set", "port=54"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let body = json!({ "text": STEER_DNS.replace("53", "\"${port}\"") });
    assert_eq!(place.ask("POST", "/v1/diff", &body.to_string()).1["equal"], true);
}

#[test]
fn flows_are_listed_with_rule_queue_and_packets() {
    let place = Place::new(&format!("{STEER_DNS}{DROP_SCANS}"));
    let daemon = place.start();
    daemon.until("packets", |daemon| daemon.metric("steerd_rule_packets_total", &["rule=\"scan\""]) > 100.0);
    let all = place.json(&["flows"]);
    let rules = |answer: &Value| -> Vec<String> {
        let flows = answer["flows"].as_array().expect("a list");
        flows.iter().map(|flow| flow["rule"].as_str().expect("a name").to_owned()).collect()
    };
    assert!(rules(&all).contains(&"dns".to_owned()) && rules(&all).contains(&"scan".to_owned()), "{all:#}");
    assert_eq!(all["count"], daemon.state()["policy"]["flows"]);
    let scan = place.json(&["flows", "--rule", "scan"]);
    assert_eq!(rules(&scan), ["scan"]);
    let flow = &scan["flows"][0];
    assert_eq!(
        (&flow["action"], &flow["counted"], &flow["queue"]),
        (&json!("drop"), &json!("flow"), &Value::Null)
    );
    assert!(
        flow["packets"].as_u64() > Some(100)
            && flow["specs"].as_str().expect("text").contains("198.51.100.0/24")
    );
    let text = place.ok(&["flows"]);
    assert!(text.contains("steer to everyone") && text.contains("of all flows of the rule"), "{text}");
    let output = place.run(&["flows", "--rule", "none"]);
    assert_eq!(output.status.code(), Some(8));
    assert!(stderr(&output).contains("no rule `none`"), "{}", stderr(&output));
}

#[test]
fn top_prints_one_table_of_each_kind_without_a_terminal() {
    let place = Place::new(STEER_DNS);
    let daemon = place.start();
    daemon.until("packets", |daemon| daemon.metric("steerd_rule_packets_total", &["rule=\"dns\""]) > 100.0);
    let text = place.ok(&["top"]);
    for part in ["rule ", "packets/s", "dns ", "worker ", "port ", "lost: ", "packet accounting matches"] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    let top = place.json(&["top"]);
    let interval = top["interval_seconds"].as_f64().expect("seconds");
    assert!((0.5..30.0).contains(&interval), "the average of the last samples: {top:#}");
    let rule = &top["rules"][0];
    assert!(rule["name"] == "dns" && rule["packets_per_second"].as_f64() > Some(100.0), "{top:#}");
}

#[test]
fn without_a_daemon_commands_name_the_socket_and_the_remedy() {
    let place = Place::new(STEER_DNS);
    let comparisons = [&["diff", "--running", "p.toml"][..], &["diff", "--live", "p.toml"]];
    for args in [&["status"][..], &["reload"], &["flows"], &["top"]].into_iter().chain(comparisons) {
        let output = place.run(args);
        assert_eq!(output.status.code(), Some(8), "{args:?}");
        let message = stderr(&output);
        assert!(message.contains("api.sock") && message.contains("steerd run"), "{args:?}: {message}");
    }
    drop(std::os::unix::net::UnixListener::bind(place.socket()).expect("bound"));
    let message = stderr(&place.run(&["status"]));
    assert!(message.contains("has died"), "{message}");
}

#[test]
fn two_daemons_do_not_share_a_socket() {
    let place = Place::new(STEER_DNS);
    let mut first = place.start();
    let address = place.json(&["status"])["http"].as_str().expect("an address").to_owned();
    let mut second = place.daemon();
    let output = second.env("STEERD_HTTP__LISTEN", address).args(["--for", "1s"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(73), "{}", stderr(&output));
    let message = stderr(&output);
    let message = message.lines().last().unwrap_or_default();
    assert!(
        message.contains(&format!("process {}", first.pid())) && message.contains("--api-socket"),
        "{message}"
    );
    assert!(first.is_running());
    assert_eq!(place.json(&["status"])["pid"], first.pid(), "it still has its socket");
    // Killed, it leaves its files behind; the next one replaces them and removes its own.
    first.signal(Signal::KILL);
    first.end();
    assert!(place.socket().exists());
    let second = place.start();
    assert_eq!(place.json(&["status"])["pid"], second.pid());
    assert!(second.terminate().0.success());
    let left = std::fs::read_dir(place.folder.path()).expect("folder").count();
    assert_eq!(left, 1, "only the policy");
}

#[test]
fn the_default_socket_is_in_the_services_folder() {
    let place = Place::new(STEER_DNS);
    let run = |folder: &Path| {
        let mut command = steerd();
        command.env("STEERD_API__ENABLED", "true").env("RUNTIME_DIRECTORY", folder);
        command.args(["run", "--demo", "--policy"]).arg(place.path("p.toml"));
        Daemon::start_command(&mut command)
    };
    let daemon = run(place.folder.path());
    let status =
        steerd().arg("status").env("RUNTIME_DIRECTORY", place.folder.path()).output().expect("it runs");
    assert!(stdout(&status).contains(&format!("process {}", daemon.pid())), "{}", stderr(&status));
    drop(daemon);
    // A default that cannot be used is no reason not to steer.
    let daemon = run(Path::new("/proc/nonexistent/folder"));
    assert!(daemon.log().contains("the local API is off"), "{}", daemon.log());
}

/// curl(1) as another user.
fn as_nobody(place: &Place, method: &str, path: &str) -> Option<Output> {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "curl", "-sS", "-X", method]);
    command.arg("--unix-socket").arg(place.socket()).arg(format!("http://localhost{path}"));
    match command.output() {
        Ok(output) => Some(output),
        Err(error) => {
            not_run("a client of another user", &format!("setpriv: {error}"));
            None
        }
    }
}

#[test]
fn other_users_read_if_they_can_connect_and_change_only_if_listed() {
    use std::os::unix::fs::PermissionsExt;
    if !rustix::process::geteuid().is_root() {
        return not_run("a client of another user", "only root can become another user");
    }
    let start = |mode: &str, admins: &str| {
        let place = Place::new(STEER_DNS);
        std::fs::set_permissions(place.folder.path(), std::fs::Permissions::from_mode(0o755))
            .expect("opened");
        let mut command = place.daemon();
        command.env("STEERD_API__MODE", mode).env("STEERD_API__ADMINS", admins);
        let daemon = Daemon::start_command(&mut command);
        (place, daemon)
    };
    let (place, daemon) = start("\"0666\"", "[]");
    let Some(read) = as_nobody(&place, "GET", "/v1/status") else { return };
    assert!(stdout(&read).contains("\"generation\":1"), "{}{}", stdout(&read), stderr(&read));
    let Some(change) = as_nobody(&place, "POST", "/v1/reload") else { return };
    let message = stdout(&change);
    assert!(
        message.contains("user id 65534 may read but not change") && message.contains("api.admins"),
        "{message}"
    );
    assert_eq!(daemon.state()["policy"]["generation"], 1);

    let (place, daemon) = start("\"0666\"", "[65534]");
    let Some(change) = as_nobody(&place, "POST", "/v1/reload") else { return };
    assert!(stdout(&change).contains("\"accepted\":true"), "{}", stdout(&change));
    assert_eq!(daemon.state()["policy"]["generation"], 2);

    let (place, _daemon) = start("\"0660\"", "[]");
    let Some(read) = as_nobody(&place, "GET", "/v1/status") else { return };
    assert!(!read.status.success() && stdout(&read).is_empty(), "{}", stdout(&read));
}

#[test]
fn bad_requests_are_refused_with_the_reason() {
    let place = Place::new(STEER_DNS);
    let _daemon = place.start();
    let refused = |method: &str, path: &str, body: &str| {
        let (status, answer) = place.ask(method, path, body);
        (status, error(&answer).to_owned())
    };
    assert!(refused("GET", "/v2/status", "").1.contains("serves version v1"));
    assert_eq!(refused("GET", "/status", ""), (404, "no such path (hint: /v1/status)".into()));
    assert_eq!(refused("POST", "/v1/status", "").0, 405);
    assert_eq!(refused("GET", "/v1/reload", "").0, 405, "reading changes nothing");
    assert_eq!(refused("GET", "/v1/status?x=1", "").0, 400);
    for body in ["", "{", "[1]", "{\"txet\": \"\"}", &"[".repeat(10_000)] {
        let (status, why) = refused("POST", "/v1/diff", body);
        assert!(status == 400 && why.contains("not valid"), "{status} {why}");
    }
    assert_eq!(refused("POST", "/v1/reload", &"x".repeat(100_000)).0, 413);
    assert_eq!(refused("POST", "/v1/reload", "{\"policy\": \"other.toml\"}").0, 400, "it has no options");
    // A body that is announced and never sent is refused at once.
    let mut stream = place.connect();
    write!(stream, "POST /v1/diff HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", 1_u64 << 40)
        .expect("sent");
    assert_eq!(answer(stream).0, 413);
    // A body without a length is cut at the limit.
    let mut stream = place.connect();
    write!(stream, "POST /v1/reload HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        .expect("sent");
    let chunk = format!("8000\r\n{}\r\n", "x".repeat(0x8000));
    while stream.write_all(chunk.as_bytes()).is_ok() {}
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text);
    assert!(text.contains(" 413 "), "{text}");
    // What is no HTTP.
    let mut stream = place.connect();
    stream.write_all(&[0xff; 100]).expect("sent");
    // The server may have closed the connection already.
    let _ = stream.write_all(b"\r\n\r\n");
    let mut text = Vec::new();
    let _ = stream.read_to_end(&mut text);
    assert!(!String::from_utf8_lossy(&text).contains("200 OK"));
    assert_eq!(place.get("/v1/status")["policy"]["generation"], 1);
}

/// Clients that do nothing, that send slowly and that do not read: none delays others, and all are closed.
#[test]
fn idle_and_slow_clients_delay_nobody() {
    let place = Place::new(STEER_DNS);
    let daemon = place.start();
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).expect("its fds").count();
    let before = descriptors();
    let begun = Instant::now();
    let begin = || {
        let mut slow = place.connect();
        write!(slow, "POST /v1/diff HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{").expect("sent");
        slow
    };
    let mut slow = begin();
    // Until its header has been read; then it is no idle client, and no other comparison runs.
    let body = json!({ "text": STEER_DNS }).to_string();
    let busy = loop {
        let (status, answer) = place.ask("POST", "/v1/diff", &body);
        if status == 503 {
            break answer;
        }
        assert!(status == 200 && begun.elapsed() < PATIENCE, "{status} {answer}");
        // The other comparison may have been the first, and then this one was refused.
        let flags = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
        if rustix::net::recv(&slow, &mut [0; 1], flags).is_ok() {
            slow = begin();
        }
    };
    assert!(error(&busy).contains("another comparison"), "{busy}");
    let idle: Vec<UnixStream> = (0..1000).map(|_| place.connect()).collect();
    for _ in 0..20 {
        let asked = Instant::now();
        place.get("/v1/status");
        assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    }
    // Once the threads of closed connections have run.
    daemon.until("few descriptors", |_| descriptors() < before + 100);
    assert_eq!(answer(slow).0, 408, "its body never comes");
    assert!(begun.elapsed() < PATIENCE);
    assert_eq!(place.ask("POST", "/v1/diff", &body).0, 200);
    for mut stream in idle {
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let (status, _, log) = daemon.terminate();
    assert!(status.success(), "{log}");
}

/// The TCP listener changes nothing, and the socket needs no Host header of its own.
#[test]
fn the_metrics_listener_stays_read_only() {
    let place = Place::new(STEER_DNS);
    let daemon = place.start();
    for path in ["/v1/status", "/v1/reload", "/v1/policy"] {
        assert_eq!(daemon.page(path).0, 404, "{path}");
    }
    let mut stream = std::net::TcpStream::connect(daemon.address()).expect("connected");
    write!(stream, "POST /v1/reload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n").expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    assert!(text.contains("405"), "{text}");
    assert_eq!(place.get("/v1/state")["policy"]["generation"], 1);
    assert_eq!(place.get("/")["paths"][0], json!(["GET", "/v1/status"]));
}

/// The packets of a capture, by interface; every one must be UDP to port 53.
fn dns_packets(bytes: &[u8]) -> usize {
    use pcap_file::pcapng::{Block, PcapNgReader};
    let mut reader = PcapNgReader::new(bytes).expect("a section header");
    let mut packets = 0;
    while let Some(block) = reader.next_block() {
        if let Block::EnhancedPacket(packet) = block.expect("a block") {
            let key = packet::parse(&packet.data).key;
            assert_eq!(key.dst_port, 53);
            packets += 1;
        }
    }
    packets
}

#[test]
fn a_capture_is_started_and_stopped_on_the_running_daemon() {
    let place = Place::new(&format!("{STEER_DNS}{DROP_SCANS}"));
    let daemon = place.start();
    let count = place.run(&["capture", "dns", "-w", "dns.pcapng", "--count", "50"]);
    assert!(count.status.success() && stderr(&count).contains("50 packets captured"), "{}", stderr(&count));
    assert_eq!(dns_packets(&std::fs::read(place.path("dns.pcapng")).expect("written")), 50);
    // To a pipe, for a time.
    let piped = place.run(&["capture", "dns", "-w", "-", "--seconds", "1", "--snap", "96", "--one-in", "10"]);
    assert!(piped.status.success() && dns_packets(&piped.stdout) > 0, "{}", stderr(&piped));
    // Ctrl-C ends it with all that was captured, and the sink goes.
    let mut child = place
        .command(&["capture", "dns", "-w", "more.pcapng"])
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    daemon.until("packets in the file", |_| {
        std::fs::metadata(place.path("more.pcapng")).is_ok_and(|file| file.len() > 10_000)
    });
    let sinks = || place.get("/v1/status")["sinks"].as_array().map_or(0, Vec::len);
    assert_eq!(sinks(), 1);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, Signal::INT).expect("signal");
    assert!(child.wait().expect("ended").success());
    assert!(dns_packets(&std::fs::read(place.path("more.pcapng")).expect("written")) > 0);
    daemon.until("no sink is left", |_| sinks() == 0);
    // A client that is killed leaves nothing behind, whether it reads or not.
    let mut killed = place.command(&["capture", "dns", "-w", "x.pcapng"]).spawn().expect("it starts");
    let mut silent = place.connect();
    let body = "{\"rule\":\"dns\"}";
    write!(silent, "POST /v1/captures HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len())
        .expect("sent");
    daemon.until("both captures run", |_| sinks() == 2);
    killed.kill().expect("killed");
    killed.wait().expect("ended");
    drop(silent);
    daemon.until("no sink is left", |_| sinks() == 0);
    let (status, summary, log) = daemon.terminate();
    assert!(status.success(), "{log}");
    assert!(summary.contains("\npacket accounting matches\n"), "{summary}");
}

#[test]
fn a_capture_that_would_get_nothing_is_refused() {
    let place = Place::new(&format!("{STEER_DNS}{DROP_SCANS}"));
    let _daemon = place.start();
    for (rule, why) in [("none", "no rule `none`"), ("scan", "`steerd capture --dropped MATCH`")] {
        let output = place.run(&["capture", rule, "-n", "5", "-w", "x.pcapng"]);
        assert_eq!(output.status.code(), Some(8));
        assert!(stderr(&output).contains(why), "{}", stderr(&output));
        assert!(!place.path("x.pcapng").exists());
    }
    assert_eq!(place.ask("DELETE", "/v1/captures/1", "").0, 404);
    assert_eq!(place.ask("POST", "/v1/captures", "{}").0, 400);
}

/// How long a close(2) blocks: longer than any request may take.
const BLOCKS_FOR: Duration = Duration::from_secs(15);

/// A socket whose close(2) blocks while the second one is open and does not read (SO_LINGER in socket(7)).
fn lingering() -> (std::net::TcpStream, std::net::TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let mut sender =
        std::net::TcpStream::connect(listener.local_addr().expect("address")).expect("connected");
    let (receiver, _) = listener.accept().expect("accepted");
    rustix::net::sockopt::set_socket_linger(&sender, Some(BLOCKS_FOR)).expect("option");
    sender.set_nonblocking(true).expect("option");
    while sender.write(&[0; 1 << 16]).is_ok() {}
    // It applies to close(2), too.
    sender.set_nonblocking(false).expect("option");
    (sender, receiver)
}

/// Sends bytes with a descriptor (SCM_RIGHTS in unix(7)) of which the caller keeps no copy.
fn send_with(stream: &UnixStream, bytes: &[u8], descriptor: std::os::fd::OwnedFd) {
    use std::os::fd::AsFd;
    let descriptors = [descriptor.as_fd()];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
    assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&descriptors)));
    let slices = [std::io::IoSlice::new(bytes)];
    let sent = rustix::net::sendmsg(stream, &slices, &mut control, rustix::net::SendFlags::empty());
    assert_eq!(sent.expect("sent"), bytes.len());
    drop(descriptor);
}

#[test]
fn descriptors_that_block_when_closed_delay_only_their_client() {
    // Processes that other tests start would close copies of the sockets, and wait for that in exec.
    if !test_support::is_alone("api::descriptors_that_block_when_closed_delay_only_their_client") {
        return;
    }
    let place = Place::new(STEER_DNS);
    let daemon = place.start();
    let mut peers = Vec::new();
    let mut clients = Vec::new();
    for _ in 0..4 {
        let (sender, peer) = lingering();
        let client = place.connect();
        send_with(&client, b"GET /v1/status HTTP/1.1\r\n", sender.into());
        peers.push(peer);
        clients.push(client);
    }
    std::thread::sleep(Duration::from_millis(200));
    let asked = Instant::now();
    place.get("/v1/status");
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    // More connections than are served at once, so that these are closed.
    let idle: Vec<UnixStream> = (0..200).map(|_| place.connect()).collect();
    place.get("/v1/status");
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    // Once they can be closed, nothing is left of it.
    drop((idle, clients, peers));
    let (status, _, log) = daemon.terminate();
    assert!(status.success() && !log.contains("panicked"), "{log}");
}

/// Runs `act` on a thread of another user; the kernel takes the credentials of the thread (unix(7),
/// SO_PEERCRED). `None`, after `not_run`, without privilege.
fn as_user<T: Send>(user: u32, act: impl FnOnce() -> T + Send) -> Option<T> {
    let act = || {
        let (uid, gid) = (rustix::process::Uid::from_raw(user), rustix::process::Gid::from_raw(user));
        rustix::thread::set_thread_groups(&[]).ok()?;
        rustix::thread::set_thread_res_gid(gid, gid, gid).ok()?;
        rustix::thread::set_thread_res_uid(uid, uid, uid).ok()?;
        Some(act())
    };
    let result = std::thread::scope(|scope| scope.spawn(act).join().expect("no panic"));
    if result.is_none() {
        not_run("users of the API that attack it", "it needs root");
    }
    result
}

/// A user opens more connections than are served, again and again, and asks nothing; some have descriptors
/// whose close blocks. Root and another user are served meanwhile. Then connections whose close blocks take
/// all places and wait in the queue of the socket; the daemon ends in time.
#[test]
fn a_user_with_idle_connections_keeps_nobody_else_from_the_api() {
    use std::os::unix::fs::PermissionsExt;
    if !test_support::is_alone("api::a_user_with_idle_connections_keeps_nobody_else_from_the_api") {
        return;
    }
    let place = Place::new(STEER_DNS);
    std::fs::set_permissions(place.folder.path(), PermissionsExt::from_mode(0o755)).expect("mode");
    let mut command = place.daemon();
    let mut daemon = Daemon::start_command(command.env("STEERD_API__MODE", "0666"));
    let attack = |connections: usize| {
        let blocking: Vec<_> = (0..connections).map(|_| lingering()).collect();
        let sent = || {
            let sent = blocking.into_iter().map(|(sender, peer)| {
                let client = place.connect();
                send_with(&client, b"GET /v1/status HTTP/1.1\r\n", sender.into());
                (client, peer)
            });
            sent.collect::<Vec<_>>()
        };
        as_user(65_534, sent)
    };
    let Some(held) = attack(30) else { return };
    std::thread::sleep(Duration::from_millis(300));
    let mut idle = Vec::new();
    for _ in 0..20 {
        idle.push(as_user(65_534, || (0..100).map(|_| place.connect()).collect::<Vec<_>>()));
        let asked = Instant::now();
        place.get("/v1/status");
        as_user(65_533, || place.get("/v1/status"));
        assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    }
    let more = attack(120);
    daemon.wait_for("no HTTP connection can be accepted: 64 are being answered or closed", 1);
    let (status, _, log) = daemon.terminate();
    assert!(status.success() && !log.contains("did not end in time"), "{log}");
    drop((held, idle, more));
}

/// A comparison goes on when its client leaves, and counts until its end.
#[test]
fn clients_that_leave_start_no_more_comparisons_than_are_allowed() {
    let place = Place::new(STEER_DNS);
    let _daemon = place.start();
    let rule = |n: u32| {
        format!(
            "[[rules]]\nname = \"r{n}\"\nmatch = {{ src = \"10.{}.{}.0/24\" }}\naction = \"drop\"\n",
            n >> 8,
            n & 255
        )
    };
    let many: String = (0..40_000).map(rule).collect();
    let long = json!({ "text": format!("{STEER_DNS}{many}") }).to_string();
    let mut leaves = place.connect();
    write!(leaves, "POST /v1/diff HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{long}", long.len())
        .expect("sent");
    std::thread::sleep(Duration::from_millis(200));
    drop(leaves);
    std::thread::sleep(Duration::from_millis(200));
    let short = json!({ "text": STEER_DNS }).to_string();
    let left = Instant::now();
    let (status, why) = place.ask("POST", "/v1/diff", &short);
    assert!(status == 503 && error(&why).contains("another comparison"), "{status} {why}");
    place.get("/v1/status");
    assert!(left.elapsed() < Duration::from_secs(5), "{:?}", left.elapsed());
    while place.ask("POST", "/v1/diff", &short).0 == 503 {
        assert!(left.elapsed() < 2 * PATIENCE, "it never ends");
        std::thread::sleep(Duration::from_millis(50));
    }
    println!("the comparison took {:?}", left.elapsed());
}

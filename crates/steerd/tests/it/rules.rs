//! Rules at run time with the real daemon: they act in workers or in the device, survive reloads and
//! restarts, end by themselves, and take nothing that the policy protects.

use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::api::{Place, error};
use crate::support::Daemon;

/// The traffic of the demonstration has DNS over UDP, HTTPS and SSH over TCP, and pings.
fn policy(default: &str, runtime: &str) -> String {
    format!(
        "version = 1\ndefault = \"{default}\"\n\
         [protect]\nports = \"22/tcp\"\nprotocols = []\n\
         [groups.every]\nworkers = \"all\"\n\
         [runtime]\n{runtime}\n\
         [[rules]]\nname = \"ssh\"\nmatch = {{ protocol = \"tcp\", dst_port = 22 }}\naction = \"kernel\"\n\
         [[rules]]\nname = \"ping\"\nmatch = {{ protocol = \"icmp\" }}\naction = \"kernel\"\n\
         [[rules]]\nname = \"ip\"\nmatch = {{ family = [\"ipv4\", \"ipv6\"] }}\naction = {{ steer = \"every\" }}\n"
    )
}

const BEFORE_IP: &str = "before = \"ip\"\nmatches = [\"src dst protocol src_port dst_port\", \"protocol dst_port\", \"src\"]\n\
     actions = [\"drop\", \"steer every\"]\n";

fn changes(place: &Place, changes: &Value) -> Value {
    let (status, answer) = place.ask("POST", "/v1/rules/changes", &changes.to_string());
    assert_eq!(status, 200, "{answer}");
    answer
}

fn refused(place: &Place, changes: &Value) -> String {
    let (status, answer) = place.ask("POST", "/v1/rules/changes", &changes.to_string());
    assert!((400..500).contains(&status), "{answer}");
    error(&answer).to_owned()
}

fn rule(place: &Place, id: &str) -> Option<Value> {
    let list = place.get("/v1/rules");
    list["rules"].as_array().expect("a list").iter().find(|rule| rule["id"] == id).cloned()
}

fn packets(place: &Place, id: &str) -> u64 {
    rule(place, id).and_then(|rule| rule["packets"].as_u64()).expect("a rule with a counter")
}

/// The packets of a rule of the policy.
fn counted(daemon: &Daemon, name: &str) -> u64 {
    let state = daemon.state();
    let rules = state["rules"].as_array().expect("rules").clone();
    let rule = rules.into_iter().find(|rule| rule["name"] == name).expect(name);
    ["delivered_packets", "dropped_packets"].iter().filter_map(|key| rule[key].as_u64()).sum()
}

fn until(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(30), "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn https() -> Value {
    json!({ "id": "https", "match": { "protocol": "tcp", "dst_port": 443 }, "action": "drop" })
}

#[test]
fn a_rule_acts_when_the_call_returns_and_ends_with_its_removal() {
    // Nothing moves into the device, so workers count all packets.
    let place = Place::new(&policy("kernel", &format!("{BEFORE_IP}device_rules = 0")));
    let daemon = place.start();
    until("HTTPS is delivered", || counted(&daemon, "ip") > 1000);
    let text =
        place.ok(&["rule", "add", "--id", "https", "--action", "drop", "protocol=tcp", "dst_port=443"]);
    assert!(text.starts_with("1 added, 0 removed: 1 rules, 0 of them in the device"), "{text}");
    assert!(
        place
            .ok(&["rule", "add", "--id", "https", "--action", "drop", "protocol=tcp", "dst_port=443"])
            .contains("1 unchanged")
    );
    until("HTTPS is dropped", || packets(&place, "https") > 1000);
    let rule = rule(&place, "https").expect("listed");
    assert_eq!((&rule["acts_in"], &rule["owner"]), (&json!("workers"), &json!(0)));
    let dropped = || {
        let state = daemon.state();
        let rules = state["rules"].as_array().expect("rules").clone();
        let all = rules.into_iter().find(|rule| rule["name"] == "(rules at run time)");
        all.expect("a row")["dropped_packets"].as_u64().expect("a number")
    };
    until("the row of all of them counts", || dropped() > 1000);
    let text = place.ok(&["rule", "list", "https"]);
    assert!(text.starts_with("https: protocol tcp dst_port 443 -> drop, in workers, "), "{text}");
    place.ok(&["rule", "del", "https", "gone"]);
    assert_eq!(place.run(&["rule", "del", "https"]).status.code(), Some(1), "there is none any more");
    // A state is shown for a second.
    std::thread::sleep(Duration::from_millis(1200));
    let after = dropped();
    let delivered = counted(&daemon, "ip");
    until("HTTPS is delivered again", || counted(&daemon, "ip") > delivered + 20_000);
    assert_eq!(dropped(), after, "the rule acted until the call returned, and not later");
    ends_well(daemon);
}

/// Ends the daemon, whose summary says that every packet is accounted for.
fn ends_well(daemon: Daemon) {
    daemon.signal(Signal::TERM);
    let (status, output, log) = daemon.end();
    assert!(status.success() && output.contains("packet accounting matches"), "{output}{log}");
}

#[test]
fn what_only_the_device_can_enforce_goes_there_at_once() {
    // Pings stay with the kernel: no worker sees them.
    let runtime = "before = \"ping\"\nmatches = [\"protocol\", \"src\"]\nactions = [\"drop\"]\n";
    let place = Place::new(&policy("kernel", runtime));
    let daemon = place.start();
    let ping = json!({ "id": "ping", "match": { "protocol": "icmp" }, "action": "drop" });
    let answer = changes(&place, &json!({ "add": [ping] }));
    assert_eq!((&answer["added"], &answer["in_device"]), (&json!(1), &json!(1)));
    until("the device counts pings", || packets(&place, "ping") > 100);
    assert_eq!(rule(&place, "ping").expect("listed")["acts_in"], "device");
    // A reload keeps it.
    place.write("p.toml", &policy("kernel", &format!("{runtime}rules = 77")));
    place.ok(&["reload"]);
    assert_eq!(rule(&place, "ping").expect("it is still there")["acts_in"], "device");
    changes(&place, &json!({ "remove": ["ping"] }));
    let kernel = || daemon.metric("steerd_rule_packets_total", &["rule=\"default\"", "action=\"kernel\""]);
    let before = kernel();
    until("pings reach the host again", || kernel() > before + 1000.0);
    // It comes and goes again without a reload between; then another rule has its name, and pings are free.
    for last in [
        json!({ "remove": ["ping"] }),
        json!({ "add": [{ "id": "ping", "match": { "src": "10.9.0.1" }, "action": "drop" }] }),
    ] {
        changes(&place, &json!({ "add": [ping] }));
        until("the device counts pings again", || packets(&place, "ping") > 100);
        changes(&place, &last);
        let before = kernel();
        until("pings reach the host once more", || kernel() > before + 1000.0);
    }
    assert_eq!(rule(&place, "ping").expect("listed")["match"]["src"], "10.9.0.1");
    changes(&place, &json!({ "remove": ["ping"] }));
    // Beyond the room that the policy gives.
    place.write("p.toml", &policy("kernel", &format!("{runtime}device_rules = 1")));
    place.ok(&["reload"]);
    let of = |host: u8| json!({ "match": { "src": format!("10.9.0.{host}") }, "action": "drop" });
    let why = refused(&place, &json!({ "add": [of(1), of(2)] }));
    assert!(why.contains("only the device can enforce these rules, and [runtime] allows 1"), "{why}");
    assert_eq!(place.get("/v1/rules")["count"], 0, "all or nothing");
    changes(&place, &json!({ "add": [of(1)] }));
    // A smaller limit: the rules that are there stay, and can be removed.
    place.write("p.toml", &policy("kernel", &format!("{runtime}device_rules = 4")));
    place.ok(&["reload"]);
    changes(&place, &json!({ "add": [of(2), of(3), of(4)] }));
    place.write("p.toml", &policy("kernel", &format!("{runtime}device_rules = 1")));
    place.ok(&["reload"]);
    assert_eq!(rule(&place, "src:10.9.0.4").expect("it stays")["acts_in"], "device");
    assert_eq!(changes(&place, &json!({ "remove": ["src:10.9.0.2"] }))["in_device"], 3);
    let why = refused(&place, &json!({ "add": [of(5)] }));
    assert!(why.contains("[runtime] allows 1"), "{why}");
    assert_eq!(place.get("/v1/rules")["count"], 3);
    ends_well(daemon);
}

/// The policy without `[protect]`.
fn unprotected(runtime: &str) -> String {
    policy("kernel", runtime).replace("[protect]\nports = \"22/tcp\"\nprotocols = []\n", "")
}

const BEFORE_SSH: &str =
    "before = \"ssh\"\nmatches = [\"protocol dst_port\", \"src\"]\nactions = [\"drop\"]\n";

#[test]
fn rules_that_a_reload_protects_packets_from_are_removed() {
    let place = Place::new(&unprotected(BEFORE_SSH));
    let daemon = place.start();
    changes(
        &place,
        &json!({ "add": [
        { "id": "host", "match": { "src": "10.3.0.1" }, "action": "drop" },
        { "id": "udp", "match": { "protocol": "udp", "dst_port": 22 }, "action": "drop" },
    ] }),
    );
    place.write("p.toml", &policy("kernel", BEFORE_SSH));
    place.ok(&["reload"]);
    assert!(rule(&place, "host").is_none() && rule(&place, "udp").is_some(), "{}", place.get("/v1/rules"));
    let removed =
        "1 rules at run time are removed, as the policy has precedence: host (takes packets that [protect]";
    assert!(daemon.log().contains(removed), "{}", daemon.log());
    ends_well(daemon);
}

#[test]
fn a_rule_at_run_time_does_not_hold_up_the_way_back() {
    let place = Place::new(&policy("kernel", BEFORE_SSH));
    let daemon = place.start();
    let protected = |place: &Place| place.json(&["status"])["policy"]["sha256"].clone();
    let first = protected(&place);
    place.write("p.toml", &unprotected(BEFORE_SSH));
    place.ok(&["reload", "--confirm", "2s"]);
    changes(
        &place,
        &json!({ "add": [{ "id": "locks-out", "match": { "src": "10.3.0.1" }, "action": "drop" }] }),
    );
    until("the first policy is back", || protected(&place) == first);
    assert!(rule(&place, "locks-out").is_none());
    assert!(daemon.log().contains("locks-out (takes packets"), "{}", daemon.log());
    ends_well(daemon);
}

#[test]
fn rules_that_a_trial_does_not_allow_come_back_with_the_policy_before() {
    let place = Place::new(&policy("kernel", &format!("{BEFORE_IP}device_rules = 0")));
    std::fs::create_dir(place.path("state")).expect("made");
    let daemon = Daemon::start_command(&mut with_state(&place));
    let short =
        json!({ "id": "short", "match": { "src": "203.0.113.9" }, "action": "drop", "ttl_seconds": 1 });
    changes(&place, &json!({ "add": [https(), short] }));
    let [_, runtime] = [0, 1].map(|_| format!("[runtime]\n{BEFORE_IP}device_rules = 0\n"));
    let without = policy("kernel", &format!("{BEFORE_IP}device_rules = 0")).replace(&runtime, "");
    assert!(!without.contains("runtime"));
    place.write("p.toml", &without);
    place.ok(&["reload", "--confirm", "8s"]);
    assert!(rule(&place, "https").is_none());
    let saved = || std::fs::read_to_string(place.path("state/rules.json"));
    until("the file keeps it", || saved().is_ok_and(|saved| saved.contains("https")));
    assert!(rule(&place, "https").is_none(), "the trial goes on");
    until("it is back", || rule(&place, "https").is_some());
    until("it acts", || packets(&place, "https") > 1000);
    assert!(rule(&place, "short").is_none(), "its time was over meanwhile");
    // Confirmed: they are gone.
    place.ok(&["reload", "--confirm", "30s"]);
    place.ok(&["confirm"]);
    until("the file follows", || saved().is_ok_and(|saved| !saved.contains("https")));
    ends_well(daemon);
}

#[test]
fn rules_that_the_device_does_not_take_at_a_start_are_shown() {
    let runtime = "before = \"ping\"\nmatches = [\"src\"]\nactions = [\"drop\"]\n";
    let place = Place::new(&policy("kernel", runtime));
    std::fs::create_dir(place.path("state")).expect("made");
    let daemon = Daemon::start_command(&mut with_state(&place));
    let of = |host: u8| json!({ "match": { "src": format!("10.9.0.{host}") }, "action": "drop" });
    changes(&place, &json!({ "add": [of(1), of(2)] }));
    ends_well(daemon);
    place.write("p.toml", &policy("kernel", &format!("{runtime}device_rules = 1")));
    let daemon = Daemon::start_command(&mut with_state(&place));
    let acts_in = |host: u8| rule(&place, &format!("src:10.9.0.{host}")).expect("listed")["acts_in"].clone();
    assert_eq!((acts_in(1), acts_in(2)), (json!("device"), json!("nowhere")));
    let degraded = || place.json(&["status"])["health"]["degraded"].clone();
    let why = degraded();
    let text = why.as_str().expect("a fault");
    assert!(text.contains("1 rules at run time that only the device can enforce are not in force"), "{text}");
    changes(&place, &json!({ "remove": ["src:10.9.0.1"] }));
    assert_eq!(acts_in(2), "device", "it has room now");
    until("the fault is over", || degraded().is_null());
    ends_well(daemon);
}

#[test]
fn hot_rules_move_into_the_device() {
    let place = Place::new(&policy("kernel", BEFORE_IP));
    let daemon = place.start();
    changes(
        &place,
        &json!({ "add": [
        https(),
        { "id": "cold", "match": { "src": "203.0.113.7" }, "action": "drop" },
    ] }),
    );
    until("the hot rule is in the device", || rule(&place, "https").expect("listed")["acts_in"] == "both");
    assert_eq!(rule(&place, "cold").expect("listed")["acts_in"], "workers");
    let before = packets(&place, "https");
    until("its packets are still counted", || packets(&place, "https") > before + 1000);
    changes(&place, &json!({ "flush": true }));
    let delivered = counted(&daemon, "ip");
    until("HTTPS is delivered again", || counted(&daemon, "ip") > delivered + 20_000);
    let is_installed = |rule: &Value| rule["name"] == "(https)" && rule["current"] == true;
    until("it is gone from the device", || {
        !daemon.state()["rules"].as_array().expect("rules").iter().any(is_installed)
    });
    ends_well(daemon);
}

#[test]
fn a_rule_keeps_its_count_when_it_leaves_the_device_and_when_it_is_replaced() {
    let place = Place::new(&policy("kernel", BEFORE_IP));
    let daemon = place.start();
    changes(&place, &json!({ "add": [https()] }));
    until("the hot rule is in the device", || rule(&place, "https").expect("listed")["acts_in"] == "both");
    let counted_by_workers = packets(&place, "https");
    until("the device counts", || packets(&place, "https") > counted_by_workers + 20_000);
    let before = packets(&place, "https");
    place.write("p.toml", &policy("kernel", &format!("{BEFORE_IP}device_rules = 0")));
    place.ok(&["reload"]);
    let left = rule(&place, "https").expect("listed");
    assert_eq!(left["acts_in"], "workers");
    assert!(left["packets"].as_u64() >= Some(before), "{before} before, {left}");
    let mut other = https();
    other["comment"] = json!("another one");
    changes(&place, &json!({ "add": [other] }));
    let replaced = packets(&place, "https");
    assert!(replaced >= before, "{before} before, {replaced} when it was replaced");
    changes(&place, &json!({ "remove": ["https"] }));
    changes(&place, &json!({ "add": [https()] }));
    assert!(packets(&place, "https") < before, "a new rule begins at 0");
    ends_well(daemon);
}

#[test]
fn a_hot_rule_does_not_overtake_rules_of_earlier_forms() {
    let runtime = "before = \"ip\"\nmatches = [\"src protocol dst_port\", \"protocol dst_port\"]\n\
         actions = [\"drop\", \"steer every\"]\n";
    let place = Place::new(&policy("kernel", runtime));
    let daemon = place.start();
    let steered = |host: u8, port: u16| {
        json!({ "id": format!("{host}:{port}"), "action": "steer every",
            "match": { "src": format!("203.0.113.{host}"), "protocol": "tcp", "dst_port": port } })
    };
    changes(&place, &json!({ "add": [https(), steered(1, 443), steered(1, 80)] }));
    until("the hot rule is in the device", || rule(&place, "https").expect("listed")["acts_in"] == "both");
    let acts_in = |id: &str| rule(&place, id).expect("listed")["acts_in"].as_str().map(str::to_owned);
    assert_eq!(acts_in("1:443").as_deref(), Some("both"), "it has no packets, and precedes the hot one");
    assert_eq!(acts_in("1:80").as_deref(), Some("workers"));
    changes(&place, &json!({ "add": [steered(2, 443), steered(2, 80)] }));
    assert_eq!(acts_in("2:443").as_deref(), Some("both"), "when the call returns");
    assert_eq!(acts_in("2:80").as_deref(), Some("workers"));
    ends_well(daemon);
}

#[test]
fn protected_packets_and_those_of_earlier_rules_are_safe() {
    // Before the rule that leaves SSH to the host.
    let runtime = "before = \"ssh\"\nmatches = [\"protocol dst_port\", \"src\"]\nactions = [\"drop\"]\n";
    let place = Place::new(&policy("kernel", runtime));
    let daemon = place.start();
    let ssh =
        json!({ "add": [{ "id": "s", "match": { "protocol": "tcp", "dst_port": 22 }, "action": "drop" }] });
    let why = refused(&place, &ssh);
    assert!(why.contains("rule `s` takes packets that [protect] leaves to the host by `ports`"), "{why}");
    assert!(why.contains(":22 tcp"), "it has an example: {why}");
    let why = refused(&place, &json!({ "add": [{ "match": { "src": "10.0.0.1" }, "action": "drop" }] }));
    assert!(why.contains("for example 10.0.0.1:"), "{why}");
    changes(
        &place,
        &json!({ "add": [{ "match": { "protocol": "udp", "dst_port": 22 }, "action": "drop" }] }),
    );
    // Behind it the same rule takes nothing that is protected.
    place.write("p.toml", &policy("kernel", BEFORE_IP));
    place.ok(&["reload"]);
    changes(&place, &ssh);
    ends_well(daemon);
}

#[test]
fn refusals_name_the_change_and_the_remedy() {
    let place = Place::new(&policy("kernel", &format!("{BEFORE_IP}rules = 3")));
    let daemon = place.start();
    let of = |text: &str| json!({ "add": [serde_json::from_str::<Value>(text).expect(text)] });
    for (text, part) in [
        (
            r#"{"match": {"src": "10.0.0.1"}, "action": "kernel"}"#,
            "does not allow the action `kernel` (it allows drop, steer every)",
        ),
        (
            r#"{"match": {"dst": "10.0.0.1"}, "action": "drop"}"#,
            "change 0: the policy does not allow rules that compare dst (IPv4)",
        ),
        (r#"{"match": {"src": "10.0.0.1/24"}, "action": "drop"}"#, "is no address or prefix"),
        (r#"{"match": {}, "action": "drop"}"#, "the match has no field"),
        (
            r#"{"match": {"src": "10.0.0.1"}, "action": "drop", "ttl_seconds": -1}"#,
            "a positive number of seconds",
        ),
        (r#"{"match": {"src": "10.0.0.1"}, "action": "drop", "id": "a b"}"#, "an id has from 1 to 128"),
        (
            r#"{"match": {"src": "10.0.0.1"}, "action": "drop", "tll_seconds": 1}"#,
            "unknown field `tll_seconds`",
        ),
    ] {
        let why = refused(&place, &of(text));
        assert!(why.contains(part), "{text}: {why}");
    }
    let many = |count: u8| {
        (0..count)
            .map(|host| json!({ "match": { "src": format!("10.0.1.{host}") }, "action": "drop" }))
            .collect::<Vec<_>>()
    };
    let why = refused(&place, &json!({ "add": many(4) }));
    assert!(why.contains("change 3: [runtime] allows 3 rules"), "{why}");
    let why =
        refused(&place, &of(r#"{"match": {"src": "10.0.0.1"}, "action": "drop", "comment": "\u001b[2J"}"#));
    assert!(why.contains("no control characters"), "{why}");
    let long = json!({ "remove": vec![""; 65_537] }).to_string();
    let (status, answer) = place.ask("POST", "/v1/rules/changes", &long);
    assert_eq!(status, 413, "{answer}");
    assert!(error(&answer).contains("`remove` may have at most 65536 entries"), "{answer}");
    assert_eq!(changes(&place, &json!({ "add": many(3) }))["rules"], 3);
    drop(daemon);
    let place = Place::new("version = 1\n[groups.every]\nworkers = \"all\"\n");
    let _daemon = place.start();
    let why = refused(&place, &of(r#"{"match": {"src": "10.0.0.1"}, "action": "drop"}"#));
    assert!(why.contains("allows no rules at run time (hint: add [runtime] to it)"), "{why}");
}

#[test]
fn rules_end_by_time_and_by_silence() {
    let place = Place::new(&policy("kernel", &format!("{BEFORE_IP}device_rules = 0")));
    let daemon = place.start();
    changes(
        &place,
        &json!({ "add": [
        { "id": "ttl", "match": { "src": "203.0.113.1" }, "action": "drop", "ttl_seconds": 2 },
        { "id": "idle", "match": { "src": "203.0.113.2" }, "action": "drop", "idle_seconds": 2 },
        { "id": "busy", "match": { "protocol": "tcp", "dst_port": 443 }, "action": "drop", "idle_seconds": 2 },
        { "id": "stays", "match": { "src": "203.0.113.3" }, "action": "drop" },
    ] }),
    );
    let ids = || {
        let list = place.get("/v1/rules");
        let rules = list["rules"].as_array().expect("a list").clone();
        rules.iter().map(|rule| rule["id"].as_str().expect("an id").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ids(), ["busy", "idle", "stays", "ttl"]);
    until("two rules have ended", || ids() == ["busy", "stays"]);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(ids(), ["busy", "stays"], "one has packets, the other no time");
    ends_well(daemon);
}

fn with_state(place: &Place) -> Command {
    let mut command = place.daemon();
    command.env("STEERD_STATE__FOLDER", place.path("state"));
    command
}

#[test]
fn rules_survive_reloads_and_restarts_as_far_as_the_policy_allows() {
    let place = Place::new(&policy("kernel", &format!("{BEFORE_IP}device_rules = 0")));
    std::fs::create_dir(place.path("state")).expect("made");
    let daemon = Daemon::start_command(&mut with_state(&place));
    changes(
        &place,
        &json!({ "add": [
        https(),
        { "id": "src", "match": { "src": "203.0.113.1" }, "action": "drop", "ttl_seconds": 3600, "comment": "x" },
        { "id": "steer", "match": { "src": "203.0.113.2" }, "action": "steer every" },
        { "id": "short", "match": { "src": "203.0.113.4" }, "action": "drop", "ttl_seconds": 5 },
    ] }),
    );
    until("packets are counted", || packets(&place, "https") > 1000);
    let before = packets(&place, "https");
    // Other actions and forms, in another order.
    let runtime = "before = \"ip\"\nmatches = [\"src\", \"protocol dst_port\"]\nactions = [\"drop\"]\ndevice_rules = 0\n";
    place.write("p.toml", &policy("kernel", runtime));
    place.ok(&["reload"]);
    assert!(
        daemon.log().contains("1 rules at run time are removed, as the policy does not allow them: steer")
    );
    assert!(packets(&place, "https") >= before, "its counter goes on");
    let before = packets(&place, "https");
    until("it still acts", || packets(&place, "https") > before + 1000);
    ends_well(daemon);
    std::thread::sleep(Duration::from_secs(5));
    let daemon = Daemon::start_command(&mut with_state(&place));
    assert!(daemon.log().contains("2 rules at run time are in force again"), "{}", daemon.log());
    let src = rule(&place, "src").expect("it is back");
    assert!(src["ends_in_seconds"].as_f64() < Some(3596.0), "its time goes on without the daemon: {src}");
    assert!(src["ttl_seconds"] == 3600.0 && src["comment"] == "x", "{src}");
    until("it acts", || packets(&place, "https") > 1000);
    drop(daemon);
    place.write("p.toml", &policy("kernel", "matches = [\"protocol dst_port\"]\nactions = [\"drop\"]\n"));
    let daemon = Daemon::start_command(&mut with_state(&place));
    assert!(daemon.log().contains("1 rules at run time are left out"), "{}", daemon.log());
    std::fs::write(place.path("state/rules.json"), "{").expect("written");
    drop(daemon);
    let daemon = Daemon::start_command(&mut with_state(&place));
    assert!(daemon.log().contains("rules.json is lost"), "{}", daemon.log());
    assert_eq!(std::fs::read_to_string(place.path("state/rules.bad")).expect("kept"), "{");
}

#[test]
fn a_hundred_thousand_rules_are_added_and_found() {
    let place = Place::new(&policy("kernel", &format!("{BEFORE_IP}rules = 200_000\ndevice_rules = 0")));
    let daemon = place.start();
    let lines = (0..100_000u32).map(|number| {
        let [_, a, b, c] = number.to_be_bytes();
        let source = format!("100.{a}.{b}.{c}");
        json!({ "match": { "src": source }, "action": "drop" }).to_string()
    });
    place.write("rules.jsonl", &lines.chain([https().to_string()]).collect::<Vec<_>>().join("\n"));
    let text = place.ok(&["rule", "load", "rules.jsonl"]);
    assert!(text.starts_with("100001 added, 0 removed: 100001 rules"), "{text}");
    println!("{text}");
    until("the last one acts", || packets_of(&place, "https") > 1000);
    assert!(place.ok(&["rule", "load", "rules.jsonl"]).starts_with("0 added, 0 removed, 100001 unchanged"));
    assert!(place.ok(&["rule", "flush"]).starts_with("0 added, 100001 removed: 0 rules"));
    ends_well(daemon);
}

/// The time of a call that adds one rule or many which only the device can enforce, at the speed of a
/// firmware. It prints the times; those of a build without optimisation are some ten times longer.
#[test]
fn rules_come_into_the_device_beside_ten_thousand_others() {
    let rule = |number: u32| {
        format!(
            "[[rules]]\nname = \"r{number}\"\nmatch = {{ src = \"10.0.{}.{}\", protocol = \"udp\" }}\naction = \"drop\"\n",
            number / 250,
            number % 250
        )
    };
    let head = "version = 1\n[groups.every]\nworkers = \"all\"\n[runtime]\nbefore = \"r0\"\nmatches = [\"src\"]\n\
         actions = [\"drop\"]\ndevice_rules = 2000\n";
    let place = Place::new(&(0..10_000).fold(head.to_owned(), |text, number| text + &rule(number)));
    let mut command = place.daemon();
    let daemon = Daemon::start_command(
        command.env("STEERD_SOFTNIC__FLOW_RATE", "5000").env("STEERD_LOG__FILTER", "info,steerd=debug"),
    );
    let add = |host: u8| {
        let added = json!({ "match": { "src": format!("203.0.113.{host}") }, "action": "drop" });
        let answer = changes(&place, &json!({ "add": [added] }));
        assert_eq!(answer["in_device"], u64::from(host), "{answer}");
        answer["microseconds"].as_u64().expect("a number")
    };
    let first = add(1);
    let mut times: Vec<u64> = (2..=20).map(add).collect();
    times.sort_unstable();
    println!(
        "the first took {first} us, the others {} to {} us, half of them {} us",
        times[0], times[18], times[9]
    );
    let removed = changes(&place, &json!({ "remove": ["src:203.0.113.1"] }));
    println!("a removal took {} us", removed["microseconds"]);
    let many: Vec<Value> = (0..1000)
        .map(|host| json!({ "match": { "src": format!("198.18.{}.{}", host / 250, host % 250) }, "action": "drop" }))
        .collect();
    let answer = changes(&place, &json!({ "add": many }));
    assert_eq!((&answer["added"], &answer["in_device"]), (&json!(1000), &json!(1019)), "{answer}");
    println!("1,000 at once took {} us", answer["microseconds"]);
    let answer = changes(&place, &json!({ "flush": true }));
    assert_eq!((&answer["removed"], &answer["in_device"]), (&json!(1019), &json!(0)), "{answer}");
    println!("their removal took {} us", answer["microseconds"]);
    assert!(!daemon.log().contains("the whole policy is compiled"), "{}", daemon.log());
    ends_well(daemon);
}

/// Reads a rule by its id: a list has the first rules only.
fn packets_of(place: &Place, id: &str) -> u64 {
    place.get(&format!("/v1/rules?id={id}"))["rules"][0]["packets"].as_u64().expect("a number")
}

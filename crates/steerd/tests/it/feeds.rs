//! Programs that feed rules at run time, as in deploy/, and the Rust client: against the real daemon.

#[allow(dead_code, reason = "its main is for the command line")]
#[path = "../../../steerd-client/examples/blocklist.rs"]
mod blocklist;
mod fail2ban;
mod flowspec;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use steerd_client::api::{ApiClient, ApiError, ReloadOptions, RuleBody, RuleChanges, RuleMatch};

use crate::api::Place;
use crate::support::{PATIENCE, Patience, not_run, stderr, stdout};

const POLICY: &str = "version = 1\n[groups.every]\nworkers = \"all\"\n[runtime]\nbefore = \"ip\"\n\
     matches = [\"src dst protocol src_port dst_port\", \"src\"]\nactions = [\"drop\"]\n\
     [[rules]]\nname = \"ip\"\nmatch = { family = [\"ipv4\", \"ipv6\"] }\naction = { steer = \"every\" }\n";

/// With addresses that rules at run time must not take.
const PROTECTED: &str = "version = 1\n[protect]\nsources = [\"192.0.2.0/28\"]\nprotocols = []\n\
     [groups.every]\nworkers = \"all\"\n\
     [runtime]\nbefore = \"host\"\nmatches = [\"src\", \"dst\"]\nactions = [\"drop\"]\n\
     [[rules]]\nname = \"host\"\nmatch = { src = \"192.0.2.0/28\" }\naction = \"kernel\"\n\
     [[rules]]\nname = \"ip\"\nmatch = { family = [\"ipv4\", \"ipv6\"] }\naction = { steer = \"every\" }\n";

fn deploy(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(path)
}

fn ids(place: &Place) -> Vec<String> {
    let list = place.get("/v1/rules");
    let rules = list["rules"].as_array().expect("a list").clone();
    rules.iter().map(|rule| rule["id"].as_str().expect("an id").to_owned()).collect()
}

/// The folder into which `.ci/deps feeds` unpacks third-party programs; `None`, after `not_run`, if it lacks
/// a file.
fn tools(test: &str, file: &str) -> Option<PathBuf> {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/feeds");
    if tools.join(file).exists() {
        return Some(tools.canonicalize().expect("a path"));
    }
    not_run(test, "run `.ci/deps feeds` (apt)");
    None
}

/// Waits until `done` returns true.
#[track_caller]
fn until(done: impl Fn() -> bool, failure: impl Fn() -> String) {
    let mut patience = Patience::new(2 * PATIENCE);
    while !done() {
        assert!(!patience.is_over(), "{}", failure());
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

/// An event as Suricata 7 writes it (doc/userguide/output/eve/eve-json-format.rst), shortened.
fn alert(flow: u64, port: u16, metadata: &Value) -> String {
    json!({
        "timestamp": "2026-11-27T10:00:00.000000+0000", "flow_id": flow, "event_type": "alert", "proto": "TCP",
        "src_ip": "10.2.0.1", "src_port": port, "dest_ip": "192.0.2.80", "dest_port": 443,
        "alert": {
            "action": "allowed", "signature_id": 1, "metadata": metadata,
            "signature": format!("\u{1b}[2J{}", "\u{e4}".repeat(200)),
        },
    })
    .to_string()
}

#[test]
fn flows_that_suricata_bypasses_are_dropped() {
    if Command::new("python3").arg("--version").output().is_err() {
        return not_run("flows_that_suricata_bypasses_are_dropped", "python3 is missing");
    }
    let place = Place::new(POLICY);
    let daemon = place.start();
    let bypass = json!({ "steerd": ["bypass"] });
    let log = [
        alert(1, 1024, &bypass),
        alert(2, 1025, &json!({ "steerd": ["keep"] })),
        alert(1, 1024, &bypass),
        "not JSON".to_owned(),
        json!({ "event_type": "stats" }).to_string(),
        // The same packets as flow 1: refused alone.
        alert(3, 1024, &bypass),
        alert(4, 1026, &bypass),
    ];
    place.write("eve.json", &(log.join("\n") + "\n"));
    let output = Command::new("python3")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .arg(deploy("suricata/steerd-eve"))
        .arg("--once")
        .arg("--api-socket")
        .arg(place.socket())
        .arg(place.path("eve.json"))
        .output()
        .expect("python3");
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output), "2 flows bypassed\n", "{}", stderr(&output));
    assert!(stderr(&output).contains("suricata-3: the rule `suricata-1` has the same packets"));
    assert!(stderr(&output).contains("a line of the log is not understood"));
    assert_eq!(ids(&place), ["suricata-1", "suricata-4"]);
    let rule = place.get("/v1/rules")["rules"][0].clone();
    assert_eq!((&rule["both"], &rule["idle_seconds"]), (&json!(true), &json!(60.0)));
    let comment = rule["comment"].as_str().expect("text");
    assert!(comment.starts_with(" [2J\u{e4}") && (250..=256).contains(&comment.len()), "{comment}");
    // Without the daemon nothing is lost silently.
    drop(daemon);
    let output = Command::new("python3")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .arg(deploy("suricata/steerd-eve"))
        .arg("--once")
        .arg("--api-socket")
        .arg(place.socket())
        .arg(place.path("eve.json"))
        .output()
        .expect("python3");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("3 flows are not bypassed: "), "{}", stderr(&output));
}

/// The example of the Rust client: a list of addresses, of which one is protected.
#[test]
fn the_blocklist_of_the_rust_client_is_followed() {
    let place = Place::new(PROTECTED);
    let _daemon = place.start();
    let follow = |list: &str| {
        let steerd = ApiClient::new(place.socket()).expect("a client");
        blocklist::follow(&steerd, list)
    };
    let (changed, refused) =
        follow("198.51.100.7\n# a comment\n\n2001:db8::7\n192.0.2.3\nnonsense\n").expect("done");
    assert_eq!((changed.added, changed.removed), (2, 0));
    assert_eq!(refused[0], "nonsense: no address");
    assert!(
        refused[1]
            .starts_with("blocklist-192.0.2.3: rule `blocklist-192.0.2.3` takes packets that [protect]")
    );
    assert_eq!(ids(&place), ["blocklist-198.51.100.7", "blocklist-2001:db8::7"]);
    let (changed, refused) = follow("2001:db8::7\n203.0.113.1\n").expect("done");
    assert_eq!((changed.added, changed.unchanged, changed.removed, refused.len()), (1, 1, 1, 0));
    assert_eq!(ids(&place), ["blocklist-2001:db8::7", "blocklist-203.0.113.1"]);
}

/// The types of the Rust client against the answers of the daemon.
#[test]
fn the_rust_client_gets_refusals_with_witnesses() {
    let place = Place::new(PROTECTED);
    let _daemon = place.start();
    let steerd = ApiClient::new(place.socket()).expect("a client");
    let of = |source: [u8; 4]| RuleBody::new(RuleMatch::default().src(source), "drop");
    let refused = |changes: RuleChanges| match steerd.change(&changes) {
        Err(ApiError::Refused { status, failure, .. }) => (status, failure.refused),
        other => panic!("{other:?}"),
    };
    let good = of([198, 51, 100, 7]).id("good").ttl(Duration::from_secs(60)).comment("text");
    let (status, rules) = refused(
        RuleChanges::default()
            .add_rule(good.clone())
            .add_rule(of([192, 0, 2, 1]).id("a"))
            .add_rule(of([192, 0, 2, 2]).id("b")),
    );
    let found: Vec<_> = rules.iter().map(|rule| (rule.add, rule.id.as_str())).collect();
    assert_eq!((status, found), (409, vec![(Some(1), "a"), (Some(2), "b")]));
    let witness = rules[0].witness.as_deref().expect("a packet");
    assert!(witness.contains("192.0.2.1"), "{witness}");
    // Refused by the store, behind a removal.
    let (_, rules) = refused(
        RuleChanges::default()
            .remove_rule("none")
            .add_rule(good.clone())
            .add_rule(of([198, 51, 100, 7]).id("same"))
            .add_rule(RuleBody::new(RuleMatch::default().vlan(7), "drop").id("form")),
    );
    let found: Vec<_> = rules.iter().map(|rule| (rule.add, rule.remove, rule.id.as_str())).collect();
    assert_eq!(found, [(Some(1), None, "same"), (Some(2), None, "form")]);
    let (status, rules) =
        refused(RuleChanges::default().add_rule(RuleBody::new(RuleMatch::default(), "steer x").id("x")));
    assert_eq!((status, rules[0].add, rules.len()), (409, Some(0), 1));
    assert_eq!(steerd.rules().expect("a list").count, 0);

    let changed = steerd.change(&RuleChanges::default().add_rule(good)).expect("added");
    assert_eq!((changed.added, changed.rules), (1, 1));
    let row = steerd.rule("good").expect("an answer").expect("a rule");
    assert_eq!(
        (row.rule.comment.as_str(), row.rule.matches),
        ("text", RuleMatch::default().src([198, 51, 100, 7]))
    );
    assert!(steerd.rule("none").expect("an answer").is_none());
    let before = steerd.reload(&ReloadOptions::default()).expect("a verdict");
    assert!(before.accepted && before.generation > 1, "{before:?}");
    place.write("p.toml", "version = 1\nnonsense = 1\n");
    let verdict = steerd.reload(&ReloadOptions::default()).expect("a verdict");
    assert!(!verdict.accepted && verdict.text.contains("nonsense"), "{verdict:?}");
    assert_eq!(verdict.sha256, before.sha256);
    assert_eq!(steerd.flush(None).expect("flushed").removed, 1);
    let nobody = ApiClient::new(place.path("none.sock")).expect("a client");
    assert!(matches!(nobody.rules(), Err(ApiError::Unreachable { .. })));
}

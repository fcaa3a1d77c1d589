//! Programs that feed rules at run time, as in deploy/: their commands and calls against the real daemon.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::api::Place;
use crate::support::{not_run, stderr, stdout, steerd};

const POLICY: &str = "version = 1\n[groups.every]\nworkers = \"all\"\n[runtime]\nbefore = \"ip\"\n\
     matches = [\"src dst protocol src_port dst_port\", \"src\"]\nactions = [\"drop\"]\n\
     [[rules]]\nname = \"ip\"\nmatch = { family = [\"ipv4\", \"ipv6\"] }\naction = { steer = \"every\" }\n";

fn deploy(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(path)
}

fn ids(place: &Place) -> Vec<String> {
    let list = place.get("/v1/rules");
    let rules = list["rules"].as_array().expect("a list").clone();
    rules.iter().map(|rule| rule["id"].as_str().expect("an id").to_owned()).collect()
}

/// The commands of the action as fail2ban runs them, by a shell with its tags replaced.
#[test]
fn fail2ban_bans_and_unbans_an_address() {
    let place = Place::new(POLICY);
    let _daemon = place.start();
    let action = std::fs::read_to_string(deploy("fail2ban/steerd.conf")).expect("the action");
    let run = |key: &str| {
        let line = action.lines().find_map(|line| line.strip_prefix(&format!("{key} = "))).expect(key);
        let binary = steerd().get_program().to_string_lossy().into_owned();
        let socket = place.socket().display().to_string();
        let program = format!("env STEERD_API__SOCKET={socket} {binary}");
        let tags = [
            ("<steerd>", program.as_str()),
            ("<name>", "sshd"),
            ("<ip>", "2001:db8::7"),
            ("<bantime>", "-1"),
        ];
        let command = tags.iter().fold(line.to_owned(), |line, (tag, value)| line.replace(tag, value));
        let output = Command::new("sh").args(["-c", &command]).output().expect("a shell");
        assert!(output.status.success(), "{command}: {}", stderr(&output));
    };
    run("actionban");
    let rule = place.get("/v1/rules")["rules"][0].clone();
    assert_eq!((&rule["id"], &rule["match"]["src"]), (&json!("f2b-sshd-2001:db8::7"), &json!("2001:db8::7")));
    assert!(rule["ends_in_seconds"].is_null(), "fail2ban ends it, or never does: {rule}");
    run("actionunban");
    assert_eq!(ids(&place), [""; 0]);
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

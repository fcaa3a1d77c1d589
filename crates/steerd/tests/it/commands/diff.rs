//! `steerd diff`: regions, groups, placement and exit codes.

use super::rig::{POLICY, piped, policies, run_in};
use crate::support::{stderr, stdout};

#[test]
fn diff_shows_which_packets_change_their_rule() {
    let wider = POLICY.replace("192.0.2.0/24", "192.0.2.0/23");
    // Equal: two halves of the same set, and an order that makes no difference.
    let halves = format!(
        "{}{}",
        POLICY.replace("192.0.2.0/24", "192.0.2.128/25"),
        "[[rules]]\nname = \"lower\"\nmatch = { dst = \"192.0.2.0/25\", protocol = \"tcp\", dst_port = 80 }\n\
         action = { steer = \"one\" }\n"
    );
    let folder =
        policies(&[("a", POLICY), ("wider", &wider), ("halves", &halves), ("broken", "version = 2\n")]);
    let equal = run_in(&folder, &["diff", "a", "halves"]);
    assert_eq!(equal.status.code(), Some(0), "{}{}", stdout(&equal), stderr(&equal));
    assert!(stdout(&equal).contains("treat every packet alike"));
    let different = run_in(&folder, &["diff", "a", "wider"]);
    assert_eq!(different.status.code(), Some(1));
    insta::assert_snapshot!("diff_wider", stdout(&different));
    assert!(stderr(&different).is_empty(), "that they differ is no failure: {}", stderr(&different));
    let report = run_in(&folder, &["diff", "a", "wider", "--format", "json"]);
    assert_eq!(report.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).expect("JSON");
    assert_eq!(report["equal"], false);
    assert_eq!(report["pairs"][0]["after"]["name"], "web", "{report:#}");
    assert!(report["regions"][0]["witness"]["frame"].is_string(), "{report:#}");
    for args in [["diff", "a", "broken"], ["diff", "a", "nowhere"]] {
        let output = run_in(&folder, &args);
        assert_eq!(output.status.code(), Some(2), "as diff(1): {}", stderr(&output));
        assert!(!stderr(&output).is_empty());
    }
}

/// `explain` treats the witness packet differently under the two policies.
#[test]
fn explain_confirms_the_witness_of_a_difference() {
    let wider = POLICY.replace("192.0.2.0/24", "192.0.2.0/23");
    let folder = policies(&[("a", POLICY), ("b", &wider)]);
    let report = run_in(&folder, &["diff", "a", "b", "--format", "json"]);
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).expect("JSON");
    let frame = report["regions"][0]["witness"]["frame"].as_str().expect("hexadecimal");
    let explained = |policy| {
        let output = run_in(&folder, &["explain", policy, "--hex", frame, "--format", "json"]);
        serde_json::from_slice::<serde_json::Value>(&output.stdout).expect("JSON")["rule"].clone()
    };
    assert_eq!((explained("a"), explained("b")), ("default".into(), "web".into()));
}

/// A group changes with its workers, weights or hash; the shares of the workers are shown.
#[test]
fn diff_shows_changes_inside_a_group() {
    let with = |group: &str| POLICY.replace("workers = [0]\n", group);
    let folder = policies(&[
        ("even", &with("workers = [0, 1]\n")),
        ("heavy", &with("weights = { 0 = 3, 1 = 1 }\n")),
        ("addresses", &with("workers = [0, 1]\nhash = \"l3\"\nkey = \"microsoft\"\n")),
        ("all", &with("workers = \"all\"\n")),
    ]);
    let output = run_in(&folder, &["diff", "even", "heavy"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    insta::assert_snapshot!("diff_weights", stdout(&output));
    let report = |args: &[&str]| {
        let output = run_in(&folder, &[&["diff", "--format", "json"], args].concat());
        serde_json::from_slice::<serde_json::Value>(&output.stdout).expect("JSON")
    };
    let heavy = report(&["even", "heavy"]);
    let group = &heavy["groups"][0];
    assert_eq!(group["name"], "one", "{heavy:#}");
    let workers = serde_json::json!([{ "key": "workers", "before": "[0, 1]", "after": "{ 0 = 3, 1 = 1 }" }]);
    assert_eq!(group["changes"], workers);
    let shares = serde_json::json!([
        { "worker": 0, "before": 0.5, "after": 0.75 },
        { "worker": 1, "before": 0.5, "after": 0.25 },
    ]);
    assert_eq!(group["shares"], shares);
    // Of each four entries in a row, 0 1 0 1 became 0 0 1 0.
    assert!(group["moved"].as_f64().expect("a part") >= 0.25, "{group:#}");
    assert!(heavy["placement"].is_null());
    let addresses = report(&["even", "addresses"]);
    let keys: Vec<&str> = addresses["groups"][0]["changes"]
        .as_array()
        .expect("changes")
        .iter()
        .filter_map(|change| change["key"].as_str())
        .collect();
    assert_eq!(keys, ["hash", "key", "symmetric"]);
    assert!(addresses["groups"][0]["moved"].is_null(), "any connection may move");
    // --workers sets the number of all workers.
    let all = report(&["even", "all", "--workers", "4"]);
    assert_eq!(all["groups"][0]["shares"][3]["after"], 0.25, "{all:#}");
    assert_eq!(report(&["even", "even"])["groups"], serde_json::json!([]));
}

/// With --model a changed placement is a difference.
#[test]
fn diff_for_a_device_lists_rules_that_are_decided_elsewhere() {
    let rule = |name: &str, matches: &str| {
        format!("[[rules]]\nname = \"{name}\"\nmatch = {{ {matches} }}\naction = {{ steer = \"one\" }}\n")
    };
    let head = "version = 1\n[groups.one]\nworkers = [0]\n";
    let plain = format!("{head}{}", rule("web", "protocol = \"tcp\", dst = \"192.0.2.1\""));
    let hybrid = format!("{head}{}", rule("web", "tcp_flags = \"syn\", dst = \"192.0.2.1\""));
    let sent = "[[rules]]\nname = \"sent\"\nmatch = { tcp_flags = \"syn\" }\ndirection = \"egress\"\naction = \"drop\"\n";
    let folder = policies(&[("plain", &plain), ("hybrid", &hybrid), ("sent", &format!("{hybrid}{sent}"))]);
    let same = run_in(&folder, &["diff", "hybrid", "hybrid", "--model", "mlx5"]);
    assert_eq!(same.status.code(), Some(0), "{}", stderr(&same));
    let text = stdout(&same);
    assert!(text.contains("on mlx5 with 1 worker: every rule is decided where it was"), "{text}");
    let text = stdout(&run_in(&folder, &["diff", "plain", "hybrid", "--model", "mlx5"]));
    let row = text.lines().find(|line| line.starts_with("web   hardware  hybrid"));
    assert!(row.is_some_and(|row| row.contains("tcp_flags")), "{text}");
    let output = run_in(&folder, &["diff", "hybrid", "sent", "--workers", "2", "--format", "json"]);
    assert_eq!(output.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let placement = &report["placement"];
    assert_eq!((&placement["profile"], &placement["workers"]), (&"ideal".into(), &2.into()), "{report:#}");
    assert_eq!((&placement["before"]["ok"], &placement["after"]["ok"]), (&true.into(), &false.into()));
    let moved = placement["rules"].as_array().expect("rules");
    assert_eq!(moved.len(), 1, "the others stay where they are: {placement:#}");
    assert_eq!(moved[0]["rule"], "sent");
    assert!(moved[0]["before"].is_null());
    assert_eq!(moved[0]["after"]["decided"], "impossible");
    let text = stdout(&run_in(&folder, &["diff", "hybrid", "sent", "--model", "mlx5"]));
    assert!(text.contains("on mlx5 with 1 worker:\nafter: impossible"), "{text}");
}

#[test]
fn one_policy_can_come_from_standard_input() {
    let wider = POLICY.replace("192.0.2.0/24", "192.0.2.0/23");
    let folder = policies(&[("a", POLICY), ("s.txt", "192.0.2.0/24\n")]);
    let output = piped(&folder, &["diff", "a", "-"], &wider);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stdout(&output).contains("--- a\n+++ (standard input)"), "{}", stdout(&output));
    assert_eq!(piped(&folder, &["diff", "-", "a"], POLICY).status.code(), Some(0));
    let both = piped(&folder, &["diff", "-", "-"], POLICY);
    assert_eq!(both.status.code(), Some(2));
    assert!(stderr(&both).contains("only one of the two policies"), "{}", stderr(&both));
    let broken = piped(&folder, &["diff", "a", "-"], "version = 2\n");
    assert_eq!(broken.status.code(), Some(2), "{}", stderr(&broken));
    assert!(stderr(&broken).contains("(standard input):1:11: error:"), "{}", stderr(&broken));
    // So do check and explain; relative file names refer to the current directory.
    let with_set = POLICY
        .replace("[groups.one]", "[sets]\ns = { file = \"s.txt\" }\n[groups.one]")
        .replace("\"192.0.2.0/24\"", "\"s\"");
    let checked = piped(&folder, &["check", "-"], &with_set);
    assert!(checked.status.success(), "{}", stderr(&checked));
    assert!(stdout(&checked).contains("(standard input): ok on ideal"), "{}", stdout(&checked));
    let packet = "src=10.0.0.1,dst=192.0.2.1,protocol=tcp,dst_port=80";
    let explained = piped(&folder, &["explain", "-", "--packet", packet], &with_set);
    assert!(stdout(&explained).contains("web"), "{}{}", stdout(&explained), stderr(&explained));
}

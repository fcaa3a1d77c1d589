//! `steerd diff`: who loses which packets to whom.

use crate::rig::{POLICY, policies, run_in};
use crate::support::{stderr, stdout};

#[test]
fn diff_tells_who_loses_which_packets() {
    let wider = POLICY.replace("192.0.2.0/24", "192.0.2.0/23");
    // The same otherwise: two halves, an order that makes no difference.
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

/// What `diff` shows is a packet that the two policies treat differently, by `explain`.
#[test]
fn the_witness_of_a_difference_is_explained_differently() {
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

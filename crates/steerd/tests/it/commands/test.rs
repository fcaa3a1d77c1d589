//! `steerd test`: its output, its exit codes and its JUnit file.

use packet::build::FrameBuilder;

use super::rig::{json, ok, policies, run_in, write_pcap};
use crate::examples::examples;
use crate::support::{config, not_run, stderr, stdout};

/// A policy with a rule of each kind.
pub(crate) const RULES: &str = r#"version = 1
default = "kernel"
[groups.dns]
workers = [0, 1]
[groups.one]
workers = [1]
[[rules]]
name = "bogons"
match = { src = "10.0.0.0/8" }
action = "drop"
[[rules]]
name = "dns"
match = { dst = "192.0.2.53", protocol = "udp", dst_port = 53 }
action = { steer = "dns" }
[[rules]]
name = "web"
match = { dst = "192.0.2.80", protocol = "tcp", dst_port = [80, 443] }
action = { steer = "one" }
"#;

const GOOD: &str = r#"[[tests]]
name = "queries reach the workers"
packet = "src=198.51.100.1,dst=192.0.2.53,protocol=udp,dst_port=53"
rule = "dns"
group = "dns"
expect = "steer"
host = false
[[tests]]
every = { src = "10.0.0.0/8" }
expect = "drop"
rule = "bogons"
[[tests]]
name = "web has a worker of its own"
every = { src = { not = "10.0.0.0/8" }, dst = "192.0.2.80", protocol = "tcp", dst_port = 80 }
worker = 1
[[tests]]
frame = "ffffffffffff0200000000010806000100"
host = true
rule = "default"
"#;

/// Each test of these fails.
const BAD: &str = r#"[[tests]]
name = "another rule"
packet = "src=10.0.0.1,dst=192.0.2.53,protocol=udp,dst_port=53"
rule = "dns"
group = "dns"
host = true
[[tests]]
name = "DNS is dropped by nobody"
every = { protocol = "udp", dst_port = 53 }
rule = "dns"
[[tests]]
name = "worker"
every = { dst = "192.0.2.53", protocol = "udp", dst_port = 53, src = "198.51.100.0/24" }
worker = 1
[[tests]]
capture = "none.pcap"
expect = "drop"
"#;

#[test]
fn each_test_is_a_line_and_each_failure_has_its_place() {
    let folder =
        policies(&[("good.toml", &format!("{RULES}{GOOD}")), ("bad.toml", &format!("{RULES}{BAD}"))]);
    let output = run_in(&folder, &["test", "good.toml"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    insta::assert_snapshot!("test_good", stdout(&output));
    let output = run_in(&folder, &["test", "good.toml", "bad.toml"]);
    assert_eq!(output.status.code(), Some(10), "{}", stderr(&output));
    insta::assert_snapshot!("test_bad", format!("{}\n{}", stdout(&output), stderr(&output)));
}

#[test]
fn a_broken_policy_is_told_apart_from_a_failed_test() {
    let broken =
        format!("{RULES}[[tests]]\npacket = \"dst=192.0.2.53,prot=udp\"\nrule = \"dnss\"\nworker = 5000\n");
    let folder =
        policies(&[("bad.toml", &format!("{RULES}{BAD}")), ("broken.toml", &broken), ("none.toml", RULES)]);
    let output = run_in(&folder, &["test", "bad.toml", "broken.toml"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let errors = stderr(&output);
    for found in [
        "broken.toml:20:10: ",
        "there is no field \"prot\"",
        "unknown rule `dnss`",
        "`worker` is out of range",
    ] {
        assert!(errors.contains(found), "{found}: {errors}");
    }
    let output = run_in(&folder, &["test", "none.toml"]);
    assert_eq!((output.status.code(), &*stdout(&output)), (Some(0), "none.toml: 0 tests passed\n"));
}

#[test]
fn a_capture_is_counted_by_rule() {
    let from = |last: u8| FrameBuilder::new().ip([last, 0, 0, 1].into(), [192, 0, 2, 53].into());
    let frames = [from(10).udp(1, 53), from(11).udp(1, 53), from(12).udp(1, 53), from(12).udp(1, 54)];
    let test = |expected: &str| {
        format!("{RULES}[[tests]]\nname = \"capture\"\ncapture = \"captures/dns.pcap\"\n{expected}")
    };
    let right = "counts = { packets = 4, drop = 1, kernel = 1, steer = 2, host = 1, rules.dns = 2, groups.dns = 2 }\n";
    let wrong = "counts = { drop = 2, rules = { dns = 3, default = 1 } }\nexpect = \"steer\"\n";
    // A capture is relative to the file that names it.
    let main = "version = 1\nincludes = [\"parts/right.toml\"]\n";
    let folder = policies(&[("main.toml", main)]);
    std::fs::create_dir_all(folder.path().join("parts/captures")).expect("created");
    std::fs::write(folder.path().join("parts/right.toml"), test(right)).expect("written");
    std::fs::write(folder.path().join("parts/wrong.toml"), test(wrong)).expect("written");
    let frames: Vec<Vec<u8>> = frames.iter().map(FrameBuilder::build).collect();
    write_pcap(&folder.path().join("parts/captures/dns.pcap"), &frames);
    let output = run_in(&folder, &["test", "main.toml"]);
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
    let output = run_in(&folder, &["test", "parts/wrong.toml"]);
    assert_eq!(output.status.code(), Some(10));
    insta::assert_snapshot!("test_capture", stderr(&output));
}

#[test]
fn check_counts_tests_and_fails_with_them() {
    let folder =
        policies(&[("good.toml", &format!("{RULES}{GOOD}")), ("bad.toml", &format!("{RULES}{BAD}"))]);
    let output = run_in(&folder, &["check", "good.toml"]);
    assert!(stdout(&output).trim_end().ends_with(", 4 tests passed"), "{}", stdout(&output));
    assert_eq!(output.status.code(), Some(0));
    let output = run_in(&folder, &["check", "bad.toml", "-q"]);
    assert_eq!((output.status.code(), &*stdout(&output)), (Some(1), ""));
    assert!(
        stderr(&output).contains("bad.toml:28:8: error: the test \"DNS is dropped by nobody\" fails"),
        "{}",
        stderr(&output)
    );
    let output = run_in(&folder, &["check", "bad.toml", "--format", "json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        (&report["ok"], &report["tests"]),
        (&false.into(), &serde_json::json!({ "passed": 0, "failed": 4 }))
    );
}

#[test]
fn a_set_without_packets_fails() {
    let text = format!(
        "{RULES}[sets]\nnobody = {{ items = [], allow_empty = true }}\n\
         [[tests]]\nevery = {{ src = \"nobody\" }}\nexpect = \"drop\"\n"
    );
    let folder = policies(&[("empty.toml", &text)]);
    let output = run_in(&folder, &["test", "empty.toml"]);
    assert_eq!(output.status.code(), Some(10), "{}", stderr(&output));
    assert!(stderr(&output).contains("the test is about no packet"), "{}", stderr(&output));
}

/// No device can exclude tagged frames from a default that matches everything.
const LOST: &str = r#"version = 1
default = "main"
allow_lost_exceptions = true
[groups.main]
workers = "all"
[[rules]]
name = "tagged"
match = { vlan = 42 }
action = "kernel"
"#;

/// A worker receives the packet and cannot give it back, so neither answer about the host holds.
#[test]
fn a_lost_exception_meets_no_expectation_of_the_host() {
    for host in [true, false] {
        let text = format!(
            "{LOST}[[tests]]\npacket = \"dst=192.0.2.1,protocol=udp,dst_port=9,vlan=42\"\nhost = {host}\n"
        );
        let folder = policies(&[("lost.toml", &text)]);
        let output = run_in(&folder, &["test", "lost.toml", "--model", "mlx5"]);
        assert_eq!(output.status.code(), Some(10), "{host}: {}{}", stdout(&output), stderr(&output));
    }
}

#[test]
fn reports_are_written_when_a_capture_cannot_be_read() {
    let folder = policies(&[("good.toml", &format!("{RULES}{GOOD}"))]);
    let args = ["test", "good.toml", "--coverage", "--traffic", "none.pcap", "--junit", "out.xml"];
    let output = run_in(&folder, &[&args[..], &["--format", "json"]].concat());
    assert!(!output.status.success());
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let policy = &report["policies"][0];
    assert_eq!((&policy["policy"], &policy["passed"]), (&"good.toml".into(), &4.into()));
    assert!(policy["error"].as_str().is_some_and(|error| error.contains("none.pcap")), "{policy:#}");
    let junit = std::fs::read_to_string(folder.path().join("out.xml")).expect("written");
    assert!(junit.contains("tests=\"5\" failures=\"0\" errors=\"1\""), "{junit}");
}

#[test]
fn a_broken_policy_of_the_settings_has_a_name() {
    let folder = policies(&[("broken.toml", "version = 1\nrules = 1\n")]);
    let policy = folder.path().join("broken.toml");
    let demo = std::fs::read_to_string(config().join("demo.toml")).expect("read");
    let settings = format!("{demo}\n[policy]\nfile = \"{}\"\n", policy.display());
    std::fs::write(folder.path().join("steerd.toml"), settings).expect("written");
    let output = run_in(&folder, &["test", "--config", "steerd.toml", "--format", "json"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["policies"][0]["policy"], policy.display().to_string());
}

/// The program is the same with and without tests.
#[test]
fn tests_change_no_program() {
    let tested = format!("{RULES}{GOOD}");
    let program = |text: &str| {
        let folder = policies(&[("p.toml", text)]);
        let output = run_in(&folder, &["check", "p.toml", "--format", "json"]);
        let mut report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        for key in ["policy", "sha256", "tests"] {
            report[key] = serde_json::Value::Null;
        }
        report
    };
    assert_eq!(program(RULES), program(&tested));
    let folder = policies(&[("a.toml", RULES), ("b.toml", &tested)]);
    assert_eq!(run_in(&folder, &["diff", "a.toml", "b.toml"]).status.code(), Some(0));
}

#[test]
fn a_junit_file_is_xml_with_every_test() {
    let broken = format!("{RULES}[[tests]]\nrule = \"<&>\"\n");
    let folder = policies(&[
        ("good.toml", &format!("{RULES}{GOOD}")),
        ("bad.toml", &format!("{RULES}{}", BAD.replace("another rule", "<another> & 'rule'"))),
        ("broken.toml", &broken),
    ]);
    let output = run_in(&folder, &["test", "good.toml", "bad.toml", "broken.toml", "--junit", "out.xml"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let printed = run_in(&folder, &["test", "good.toml", "--junit", "-"]);
    assert!(printed.status.success() && stdout(&printed).starts_with("<?xml"), "{}", stdout(&printed));
    assert!(!folder.path().join("-").exists());
    let script = "import sys, xml.etree.ElementTree as e\n\
        root = e.parse(sys.argv[1]).getroot()\n\
        print([(s.get('name'), s.get('tests'), s.get('failures'), s.get('errors')) for s in root])\n\
        print([c.get('name') for c in root.iter('testcase') if c.find('failure') is not None][0])\n\
        print(root.get('tests'), root.get('failures'), len(root.findall('.//failure')), len(root.findall('.//error')))\n";
    let read = std::process::Command::new("python3")
        .args(["-c", script])
        .arg(folder.path().join("out.xml"))
        .output();
    let read = match read {
        Ok(read) => read,
        Err(error) => return not_run("the JUnit file", &format!("python3 is missing ({error})")),
    };
    assert!(read.status.success(), "{}", stderr(&read));
    let expected = "[('good.toml', '4', '0', '0'), ('bad.toml', '4', '4', '0'), ('broken.toml', '1', '0', '1')]\n\
        <another> & 'rule'\n9 4 4 1\n";
    assert_eq!(stdout(&read), expected);
}

#[test]
fn results_in_json_have_every_failure() {
    let folder = policies(&[("bad.toml", &format!("{RULES}{BAD}"))]);
    let output = run_in(&folder, &["test", "bad.toml", "--format", "json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["format"], 3);
    let policy = &report["policies"][0];
    assert_eq!((&policy["passed"], &policy["failed"]), (&0.into(), &4.into()));
    let first = &policy["tests"][0];
    assert_eq!(
        (&first["name"], &first["line"], &first["passed"]),
        (&"another rule".into(), &21.into(), &false.into())
    );
    assert_eq!(first["failures"].as_array().map(Vec::len), Some(3), "{first:#}");
}

/// Every example with tests passes them, on every device that runs it.
#[test]
fn the_tests_of_the_examples_pass() {
    let mut with_tests = 0;
    for example in examples() {
        let text = std::fs::read_to_string(config().join("examples").join(&example)).expect("read");
        if text.contains("[[tests]]") {
            with_tests += 1;
            for model in ["ideal", "mlx5"] {
                let out = ok(&["test", &example, "--model", model]);
                assert!(!out.contains("FAILED"), "{out}");
            }
        }
    }
    assert!(with_tests >= 2, "{with_tests}");
    let report = json(&["test", "dns-farm.toml", "--format", "json"]);
    assert_eq!(report["policies"][0]["failed"], 0);
}

#[test]
fn a_policy_from_standard_input_is_tested() {
    let folder = policies(&[]);
    let output = super::rig::piped(&folder, &["test", "-"], &format!("{RULES}{GOOD}"));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).ends_with("(standard input): 4 tests passed\n"), "{}", stdout(&output));
}

/// The proposals are tests that pass, and with them every rule is reached.
#[test]
fn proposals_cover_the_rules_that_no_test_reaches() {
    let sent = "[[rules]]\nname = \"leak\"\ndirection = \"egress\"\nmatch = { protocol = \"tcp\", dst_port = 25 }\naction = \"drop\"\n";
    let text = format!("{RULES}{sent}[[tests]]\nevery = {{ src = \"10.0.0.0/8\" }}\nexpect = \"drop\"\n");
    let folder = policies(&[("p.toml", &text)]);
    let coverage = |name: &str| {
        let output = run_in(&folder, &["test", name, "--coverage", "--format", "json"]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let rules = report["policies"][0]["coverage"]["rules"].as_array().expect("rules").clone();
        rules
            .into_iter()
            .map(|rule| {
                let text = |key: &str| rule[key].as_str().unwrap_or_default().to_owned();
                (text("rule"), rule["tests"].as_u64().expect("a number"), text("packets"), text("proposal"))
            })
            .collect::<Vec<_>>()
    };
    let before = coverage("p.toml");
    let names: Vec<&str> = before.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(names, ["bogons", "dns", "web", "leak", "default"]);
    assert_eq!((before[0].1, &*before[0].2, &*before[0].3), (1, "all", ""));
    let proposals: String = before.iter().map(|(.., proposal)| proposal.as_str()).collect();
    assert_eq!(proposals.matches("[[tests]]").count(), 4, "{proposals}");
    std::fs::write(folder.path().join("more.toml"), format!("{text}{proposals}")).expect("written");
    let after = coverage("more.toml");
    assert!(after.iter().all(|(_, tests, _, proposal)| *tests == 1 && proposal.is_empty()), "{after:?}");
    assert_eq!(after[1].2, "some");
    insta::assert_snapshot!("test_coverage", stdout(&run_in(&folder, &["test", "p.toml", "--coverage"])));
}

#[test]
fn the_packets_of_a_capture_that_tests_are_about_are_counted() {
    let folder = policies(&[(
        "p.toml",
        &format!("{RULES}[[tests]]\nevery = {{ src = \"10.0.0.0/8\" }}\nexpect = \"drop\"\n"),
    )]);
    let from = |first: u8| {
        FrameBuilder::new().ip([first, 0, 0, 1].into(), [192, 0, 2, 53].into()).udp(1, 53).build()
    };
    write_pcap(&folder.path().join("t.pcap"), &[from(10), from(11), from(10), from(12)]);
    let args = ["test", "p.toml", "--coverage", "--traffic", "t.pcap", "--format", "json"];
    let report: serde_json::Value = serde_json::from_slice(&run_in(&folder, &args).stdout).expect("JSON");
    let traffic = &report["policies"][0]["coverage"]["traffic"];
    assert_eq!(*traffic, serde_json::json!({ "packets": 4, "tested": 2 }));
}

/// Tests of all packets of each rule, and of the packets around it.
const WHOLE: &str = r#"[[tests]]
every = { src = "10.0.0.0/8" }
rule = "bogons"
expect = "drop"
[[tests]]
every = { src = { not = "10.0.0.0/8" }, dst = "192.0.2.53", protocol = "udp", dst_port = 53 }
rule = "dns"
[[tests]]
every = { src = { not = "10.0.0.0/8" }, dst = "192.0.2.80", protocol = "tcp", dst_port = [80, 443] }
rule = "web"
[[tests]]
every = { src = { not = "10.0.0.0/8" }, dst = "192.0.2.53", protocol = "udp", dst_port = { not = 53 } }
rule = "default"
[[tests]]
every = { src = { not = "10.0.0.0/8" }, dst = "192.0.2.80", protocol = "tcp", dst_port = { not = [80, 443] } }
rule = "default"
[[tests]]
every = { src = { not = "10.0.0.0/8" }, dst = ["192.0.2.53", "192.0.2.80"], protocol = { not = ["tcp", "udp"] } }
rule = "default"
[[tests]]
every = { src = { not = "10.0.0.0/8" }, dst = "192.0.2.53", protocol = "tcp" }
rule = "default"
[[tests]]
every = { src = { not = "10.0.0.0/8" }, dst = "192.0.2.80", protocol = "udp" }
rule = "default"
[[tests]]
every = { src = { not = "10.0.0.0/8" }, dst = { not = ["192.0.2.53", "192.0.2.80"] } }
rule = "default"
"#;

fn changes(folder: &tempfile::TempDir, name: &str) -> serde_json::Value {
    let output = run_in(folder, &["test", name, "--mutate", "--format", "json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    report["policies"][0]["changes"].clone()
}

#[test]
fn every_change_of_a_policy_with_whole_tests_is_noticed() {
    let folder = policies(&[("p.toml", &format!("{RULES}{WHOLE}"))]);
    let changes = changes(&folder, "p.toml");
    assert_eq!(changes["not_noticed"], serde_json::json!([]), "{changes:#}");
    assert!(changes["noticed"].as_u64().is_some_and(|noticed| noticed >= 10), "{changes:#}");
    assert_eq!((&changes["not_decided"], &changes["not_tried"]), (&0.into(), &0.into()));
}

#[test]
fn a_change_of_a_rule_without_a_test_is_found() {
    let folder = policies(&[("p.toml", &format!("{RULES}{GOOD}")), ("bad.toml", &format!("{RULES}{BAD}"))]);
    let found = changes(&folder, "p.toml");
    let not_noticed: Vec<&str> = found["not_noticed"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| one["change"].as_str().expect("text"))
        .collect();
    // Only port 80 of the rule `web` is in a test, and nothing around the rule `dns`.
    for change in
        ["drop `dst_port` from the match of the rule `dns`", "drop `dst` from the match of the rule `web`"]
    {
        assert!(not_noticed.contains(&change), "{not_noticed:?}");
    }
    assert!(!not_noticed.contains(&"remove the rule `dns`"), "{not_noticed:?}");
    assert_eq!(changes(&folder, "bad.toml")["skipped"], "tests fail without any change");
    let output = run_in(&folder, &["test", "p.toml", "--mutate", "--mutate-time", "1ms"]);
    assert!(stdout(&output).contains(" were not tried for lack of time"), "{}", stdout(&output));
}

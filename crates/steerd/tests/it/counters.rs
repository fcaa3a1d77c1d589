//! Policies compiled for the packets that the rules of a running daemon have counted, with the real binary.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use crate::support::{Daemon, PATIENCE, stderr, stdout, steerd};
use serde_json::Value;

/// Rules on sources, of which the last one has the packets of the generator.
const WIDE: usize = 20;

/// On an mlx5, the rules on sources come after those on ports, which come after a chain that takes all other
/// priorities. Each of them would need a flow more for each port to be decided in hardware, and a program has
/// no room for so many flows: by the order of the policy the last ones get none.
fn policy() -> String {
    let rule = |name: &str, keys: &str| {
        format!(
            "[[rules]]\nname = '{name}'\nmatch = {{ protocol = 'udp', {keys} }}\naction = {{ steer = 'g' }}\n"
        )
    };
    let mut text = "version = 1\n[groups.g]\nworkers = 'all'\nhash = 'none'\n".to_owned();
    for length in (18..32).rev() {
        text += &rule(&format!("chain{length}"), &format!("src = '198.18.0.0/{length}'"));
    }
    for port in 0..300 {
        text += &rule(&format!("port{port}"), &format!("dst_port = {}", 10_000 + 2 * port));
    }
    for source in (1..=WIDE).rev() {
        text += &rule(&format!("source{source}"), &format!("src = '10.{source}.0.0/16'"));
    }
    text
}

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { folder: tempfile::tempdir().expect("folder") };
        std::fs::write(place.path("p.toml"), policy()).expect("written");
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The demonstration's traffic, in which 10.1.0.0/16 sends UDP.
    fn start(&self, traffic: &str) -> Daemon {
        Daemon::start_command(&mut self.daemon(traffic))
    }

    fn daemon(&self, traffic: &str) -> Command {
        let mut command = steerd();
        let settings = [
            ("STEERD_API__ENABLED", "true"),
            ("STEERD_SOFTNIC__PERSONALITY", "mlx5"),
            ("STEERD_POLICY__TRAFFIC", traffic),
        ];
        command.envs(settings).args(["run", "--demo", "--policy"]).arg(self.path("p.toml"));
        command.arg("--api-socket").arg(self.path("api.sock"));
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command: Command = steerd();
        command.current_dir(&self.folder).args(args).arg("--api-socket").arg(Path::new("api.sock"));
        command.stdin(Stdio::null()).output().expect("the binary runs")
    }

    fn json(&self, args: &[&str]) -> Value {
        let output = self.run(args);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", stderr(&output)))
    }

    /// Where the daemon has a rule decided, and how many packets it has counted of it.
    fn rule(&self, name: &str) -> (String, u64) {
        let top = self.json(&["top", "--json"]);
        let rule = top["rules"].as_array().expect("rules").iter().find(|rule| rule["name"] == name);
        let rule = rule.expect("the rule");
        (rule["placement"].as_str().expect("text").to_owned(), rule["packets"].as_u64().expect("a number"))
    }

    fn wait_for_packets(&self, rule: &str) {
        let begun = Instant::now();
        while self.rule(rule).1 < 1000 {
            assert!(begun.elapsed() < PATIENCE, "no packets of {rule}");
        }
    }

    fn reload(&self) {
        let output = self.run(&["reload"]);
        assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    }
}

#[test]
fn a_reload_decides_the_rules_with_most_packets_in_hardware() {
    let place = Place::new();
    let daemon = place.start("counters");
    place.wait_for_packets("source1");
    assert_eq!((place.rule("source1").0, place.rule("source20").0), ("hybrid".into(), "hardware".into()));
    place.reload();
    assert_eq!(place.rule("source1").0, "hardware");
    // The next one changes nothing.
    let flows = place.json(&["flows", "--json"]);
    place.reload();
    let again = place.json(&["flows", "--json"]);
    assert_eq!(
        (&again["count"], &again["flows"][0]["specs"]),
        (&flows["count"], &flows["flows"][0]["specs"])
    );
    assert_eq!(place.rule("source1").0, "hardware");
    drop(daemon);
}

#[test]
fn the_flows_of_a_hybrid_rule_are_those_whose_packets_workers_compare_with_it() {
    let place = Place::new();
    let daemon = place.start("");
    place.wait_for_packets("source1");
    let flows = place.json(&["flows", "--rule", "source1", "--json"]);
    let flow = &flows["flows"][0];
    let rules = flow["rules"].as_array().expect("rules");
    assert!(rules.len() > 1 && flow["rule_count"].as_u64() >= Some(rules.len() as u64), "{flow:#}");
    assert_eq!(flow["counted"], "rules", "{flow:#}");
    assert!(flow["packets"].as_u64() >= Some(1000), "{flow:#}");
    let one = place.json(&["flows", "--rule", "port7", "--json"]);
    let exact = one["flows"].as_array().expect("flows").iter().filter(|flow| flow["rule_count"] == 1);
    exact.for_each(|flow| assert_eq!((&flow["rule"], &flow["rules"][0]), (&"port7".into(), &"port7".into())));
    let shown = stdout(&place.run(&["flows", "--rule", "source1"]));
    assert!(
        shown.contains(" more ") && shown.contains("* of all flows of the rule, or of the rules"),
        "{shown}"
    );
    drop(daemon);
}

#[test]
fn without_the_setting_a_reload_does_not_depend_on_counters() {
    let place = Place::new();
    let daemon = place.start("");
    place.wait_for_packets("source1");
    place.reload();
    assert_eq!(place.rule("source1").0, "hybrid");
    drop(daemon);
}

#[test]
fn check_compiles_for_the_counters_of_a_running_daemon() {
    let place = Place::new();
    let daemon = place.start("");
    place.wait_for_packets("source1");
    let text = std::fs::read_to_string(place.path("p.toml")).expect("read");
    std::fs::write(place.path("new.toml"), text.replace("'source2'", "'other'")).expect("written");
    let check = |more: &[&str]| {
        place.json(&[&["check", "new.toml", "--format", "json", "--model", "mlx5"], more].concat())
    };
    let decided = |report: &Value| {
        let rules = report["rules"].as_array().expect("rules");
        let rule = rules.iter().find(|rule| rule["name"] == "source1").expect("the rule");
        rule["decided"].as_str().expect("text").to_owned()
    };
    let (plain, running) = (check(&[]), check(&["--traffic", "running"]));
    assert_eq!((decided(&plain), decided(&running)), ("hybrid".into(), "hardware".into()));
    assert_eq!(plain["counted"], Value::Null);
    let counted = &running["counted"];
    assert!(counted["packets"].as_u64().is_some_and(|packets| packets >= 1000), "{counted}");
    // The renamed one.
    assert_eq!(counted["rules_without_counter"], 1, "{counted}");
    assert!(counted["in_hardware_percent"].as_f64().is_some_and(|percent| percent > 99.0), "{counted}");
    assert_eq!(running["sha256"], plain["sha256"], "counters are no part of the policy");
    let output =
        place.run(&["check", "new.toml", "--model", "mlx5", "--traffic", "running", "--deny", "hybrid=1%"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let shown = stdout(&output);
    assert!(
        shown.contains("that the daemon has counted\n")
            && shown.contains("1 rule has no counter and is not part of"),
        "{shown}"
    );
    drop(daemon);
}

#[test]
fn without_packets_the_share_of_the_rules_can_be_denied() {
    let place = Place::new();
    let wire = "[{ wire = { kind = 'null' } }]";
    let daemon = Daemon::start_command(place.daemon("").env("STEERD_SOFTNIC__PORTS", wire));
    let denied = ["--traffic", "running", "--deny", "hybrid=0%"];
    let output = place.run(&[&["check", "p.toml", "--model", "mlx5"], denied.as_slice()].concat());
    let (shown, errors) = (stdout(&output), stderr(&output));
    assert!(!output.status.success() && errors.contains("packets that workers decide"), "{errors}");
    assert!(shown.contains("without packets the order of the policy decides"), "{shown}");
    drop(daemon);
}

#[test]
fn without_a_daemon_there_are_no_counters() {
    let place = Place::new();
    let output = place.run(&["check", "p.toml", "--traffic", "running"]);
    assert_eq!(output.status.code(), Some(8));
    assert!(stderr(&output).contains("no daemon runs with this socket"), "{}", stderr(&output));
}

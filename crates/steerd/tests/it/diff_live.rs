//! `steerd diff --live`: what a new policy would do with the packets that a daemon receives.

use std::process::{Child, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::api::Place;
use crate::support::{Daemon, PATIENCE, config, stderr, stdout};

/// Two kinds of queries and web traffic go to workers; port scans are dropped, all else stays in the kernel.
const OLD: &str = r#"
version = 1
default = "kernel"
[groups.every]
workers = "all"
[groups.one]
workers = [1]
hash = "none"
[[rules]]
name = "scan"
match = { src = "198.51.100.0/24" }
action = "drop"
[[rules]]
name = "dns"
match = { protocol = "udp", dst_port = 53 }
action = "steer every"
[[rules]]
name = "web"
match = { protocol = "tcp", dst_port = 443 }
action = "steer every"
"#;

/// Queries are dropped, pings taken from the kernel, and packets that nobody sends to another group.
fn new_policy() -> String {
    let dropped = OLD.replacen("action = \"steer every\"", "action = \"drop\"", 1);
    let ping = "[[rules]]\nname = \"ping\"\nmatch = { protocol = \"icmp\" }\naction = \"steer one\"\n";
    let rare = "[[rules]]\nname = \"rare\"\nmatch = { protocol = \"tcp\", src = \"203.0.113.7\" }\naction = \"steer one\"\n";
    dropped + ping + rare
}

fn place() -> (Place, Daemon) {
    let place = Place::new(OLD);
    place.write("new.toml", &new_policy());
    let daemon = Daemon::start_command(&mut place.quiet_daemon());
    (place, daemon)
}

/// The object `live` of an answer, after a difference was found.
fn live(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(1), "{}{}", stdout(output), stderr(output));
    let mut report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    report["live"].take()
}

/// The change between two rules.
fn change<'r>(live: &'r Value, before: &str, after: &str) -> &'r Value {
    let all = live["changes"].as_array().expect("a list");
    let is_it = |row: &&Value| row["before"]["name"] == before && row["after"]["name"] == after;
    all.iter().find(is_it).unwrap_or_else(|| panic!("no {before} => {after}: {live:#}"))
}

fn figure(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no number: {value}"))
}

/// The state that a comparison must leave as it is.
fn installed(place: &Place) -> Value {
    let status = place.json(&["status"]);
    let flows = place.json(&["flows"]);
    let specs: Vec<&Value> =
        flows["flows"].as_array().expect("a list").iter().map(|flow| &flow["specs"]).collect();
    let policy = &status["policy"];
    json!([policy["generation"], policy["sha256"], policy["reloads_succeeded"], flows["count"], specs])
}

#[test]
fn counts_agree_with_the_rules_counters() {
    let (place, daemon) = place();
    let before = installed(&place);
    let counted = || {
        let of = |rule: &str| daemon.metric("steerd_rule_packets_total", &[&format!("rule=\"{rule}\"")]);
        [of("dns"), ["scan", "dns", "web", "default"].into_iter().map(of).sum::<f64>()]
    };
    let [dns_before, all_before] = counted();
    let args = ["diff", "--live", "new.toml", "--for", "4s", "--one-in", "2", "--json"];
    let live = live(&place.run(&args));
    let [dns, all] = counted();
    assert_eq!(installed(&place), before, "nothing is installed");

    let moved = change(&live, "dns", "dns");
    assert_eq!(
        (&moved["before"]["action"], &moved["after"]["action"]),
        (&json!("steer to every"), &json!("drop"))
    );
    let share = &moved["share"];
    let (value, low, high) = (figure(&share["value"]), figure(&share["low"]), figure(&share["high"]));
    let by_counters = (dns - dns_before) / (all - all_before);
    // One in two packets is taken: their share has at most 0.71 of the error that is stated, and twice that
    // is exceeded once in 10^7 times.
    assert!((value - by_counters).abs() < 2.0 * (high - low) / 2.0, "{by_counters}: {moved:#}");
    assert!(figure(&live["packets"]) > 200.0, "{live:#}");
    assert_eq!(live["not_compared"]["differing"], 0, "{live:#}");
    assert!(moved["example"].as_str().is_some_and(|packet| packet.contains(":53 udp")), "{moved:#}");

    let rate = &moved["packets_per_second"];
    let per_packet = 2.0 / figure(&live["seconds"]);
    assert!(figure(&rate["value"]) >= 0.99 * per_packet * figure(&moved["packets"]), "{rate}");
    let ping = change(&live, "default", "ping");
    assert!(
        figure(&ping["packets"]) > 0.0 && ping["not_seen"].is_null(),
        "the engine sees the kernel's: {ping:#}"
    );
    let rare = change(&live, "default", "rare");
    assert_eq!((&rare["packets"], &rare["share"]["value"]), (&json!(0), &json!(0.0)), "{rare:#}");
    assert!(figure(&rare["fewer_than"]) >= 6.0, "three packets, each of two: {rare:#}");
    let sum = |side: &str| -> f64 {
        live["workers"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|worker| figure(&worker[side]["packets"]))
            .sum()
    };
    let (received, left) = (sum("before"), sum("after"));
    let expected = received - figure(&moved["packets"]) + figure(&ping["packets"]);
    assert!((left - expected).abs() < 0.5, "queries leave the workers, pings come: {live:#}");
    assert!(figure(&live["workers"][0]["before"]["load"]) > figure(&live["workers"][0]["after"]["load"]));
}

#[test]
fn the_text_shows_each_change_with_its_packets() {
    let (place, _daemon) = place();
    let output = place.run(&["diff", "--live", "new.toml", "--for", "2s", "--one-in", "1"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let text = stdout(&output);
    for part in [
        "dns: steer to every => dns: drop",
        "live traffic: ",
        "all under generation 1",
        "share (95%)",
        "fewer than ",
        "load before",
        "nothing was installed",
    ] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    place.write("same.toml", OLD);
    let same = place.ok(&["diff", "--live", "same.toml"]);
    assert!(same.contains("no received packet would move: no live traffic was sampled"), "{same}");
}

#[test]
fn bad_input_ends_before_a_sample() {
    let (place, _daemon) = place();
    place.write("broken.toml", "version = 2\n");
    let broken = place.run(&["diff", "--live", "broken.toml"]);
    assert_eq!(broken.status.code(), Some(2), "{}", stderr(&broken));
    assert!(stderr(&broken).contains("broken.toml"), "{}", stderr(&broken));
    for args in [
        &["diff", "--live", "new.toml", "--for", "2h"][..],
        &["diff", "--live", "new.toml", "new.toml"],
        &["diff", "--running", "new.toml", "--for", "2s"],
        &["diff", "--live", "new.toml", "--one-in", "0"],
    ] {
        assert_eq!(place.run(args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn without_packets_the_rule_of_three_holds() {
    let place = Place::new(OLD);
    place.write("new.toml", &new_policy());
    let demo = std::fs::read_to_string(config().join("demo.toml")).expect("the demonstration's settings");
    let (head, _) = demo.split_once("[softnic.ports.wire]").expect("a wire");
    place.write("idle.toml", &format!("{head}[softnic.ports.wire]\nkind = \"null\"\n"));
    let settings = place.path("idle.toml");
    let mut command = place.daemon_with(&["--config".as_ref(), settings.as_ref(), "--keep-running".as_ref()]);
    let _daemon = Daemon::start_command(&mut command);
    let args = ["diff", "--live", "new.toml", "--for", "1s", "--one-in", "5"];
    let live = live(&place.run(&[&args[..], &["--json"]].concat()));
    let dns = change(&live, "dns", "dns");
    assert_eq!((&live["packets"], &dns["share"], &dns["fewer_than"]), (&json!(0), &json!(null), &json!(15)));
    let text = stdout(&place.run(&args));
    assert!(text.contains("fewer than 15 in ") && text.contains("no packet was compared"), "{text}");
}

/// A sample that goes on until it is ended.
fn begun(place: &Place, daemon: &Daemon) -> Child {
    let mut command =
        place.command(&["diff", "--live", "new.toml", "--for", "1h", "--one-in", "1", "--json"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    daemon.until("a sample", |daemon| daemon.metric("steerd_traced_packets_total", &[]) > 100.0);
    child
}

fn interrupted(child: Child) -> Output {
    let pid = Pid::from_raw(child.id().cast_signed()).expect("not 0");
    kill_process(pid, Signal::INT).expect("it still runs");
    child.wait_with_output().expect("its output")
}

#[test]
fn a_reload_ends_what_is_compared() {
    let (place, daemon) = place();
    let child = begun(&place, &daemon);
    let refused = place.run(&["diff", "--live", "new.toml", "--for", "1s"]);
    assert_eq!(refused.status.code(), Some(8));
    assert!(stderr(&refused).contains("another trace is running"), "{}", stderr(&refused));
    place.write("p.toml", &OLD.replace("dst_port = 443", "dst_port = 444"));
    place.ok(&["reload"]);
    let traced = daemon.metric("steerd_traced_packets_total", &[]);
    daemon.until("packets of the new policy", |daemon| {
        daemon.metric("steerd_traced_packets_total", &[]) > traced + 2000.0
    });
    let output = interrupted(child);
    let live = live(&output);
    let others = figure(&live["not_compared"]["other_generations"]);
    assert!(figure(&live["packets"]) > 0.0 && others > 500.0, "{live:#}");
    assert_eq!((&live["generation"], &live["ended_early"]), (&json!(1), &json!(false)), "a signal ends it");
    assert!(figure(&live["seconds"]) < PATIENCE.as_secs_f64() * 10.0, "not the hour: {live:#}");
}

#[test]
fn rules_at_run_time_are_counted_apart() {
    let runtime = "[runtime]\nmatches = [\"protocol dst_port\"]\nactions = [\"drop\"]\nbefore = \"dns\"\n";
    let text = OLD.replacen("[[rules]]", &format!("{runtime}[[rules]]"), 1);
    let place = Place::new(&text);
    place.write("new.toml", &text.replacen("action = \"steer every\"", "action = \"drop\"", 1));
    let daemon = Daemon::start_command(&mut place.quiet_daemon());
    let child = begun(&place, &daemon);
    place.ok(&["rule", "add", "--action", "drop", "protocol=tcp", "dst_port=443"]);
    let traced = daemon.metric("steerd_traced_packets_total", &[]);
    daemon.until("packets of the rule", |daemon| {
        daemon.metric("steerd_traced_packets_total", &[]) > traced + 2000.0
    });
    let live = live(&interrupted(child));
    let aside = &live["not_compared"];
    assert!(figure(&aside["at_run_time"]) > 100.0 && figure(&live["packets"]) > 500.0, "{live:#}");
    assert_eq!(
        (&aside["differing"], &aside["other_generations"]),
        (&json!(0), &json!(0)),
        "the same policy: {live:#}"
    );
}

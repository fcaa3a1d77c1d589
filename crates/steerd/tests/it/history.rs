//! The way back: reloads on trial, rollback, history, dry runs, plans, and a start whose policy is broken.

use std::process::Command;
use std::time::{Duration, Instant};

use packet::build::FrameBuilder;
use serde_json::{Value, json};

use crate::api::Place;
use crate::support::{self, Daemon, run, stderr, stdout};

const FIRST: &str = "version = 1\n[groups.every]\nworkers = \"all\"\n[[rules]]\nname = \"dns\"\n\
     match = { protocol = \"udp\", dst_port = 53 }\naction = { steer = \"every\" }\n";
const SCANS: &str = "[[rules]]\nname = \"scan\"\nmatch = { src = \"198.51.100.0/24\" }\naction = \"drop\"\n";

fn second() -> String {
    format!("{FIRST}{SCANS}")
}

fn sha256(place: &Place) -> String {
    place.json(&["status"])["policy"]["sha256"].as_str().expect("a hash").to_owned()
}

fn until(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(30), "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn an_unconfirmed_policy_goes_away_by_itself() {
    let place = Place::new(FIRST);
    let daemon = place.start();
    let first = sha256(&place);
    place.write("p.toml", &second());
    let text = place.ok(&["reload", "--confirm", "5s"]);
    assert!(text.contains("1 rule added (scan)") && text.contains("comes back in 5 s unless"), "{text}");
    assert_ne!(sha256(&place), first);
    // No other reload meanwhile: it would be unclear what is confirmed.
    let refused = place.run(&["reload"]);
    assert!(stderr(&refused).contains("waits for its confirmation"), "{}", stderr(&refused));
    until("the first policy is back", || sha256(&place) == first);
    let status = place.json(&["status"]);
    assert_eq!((&status["policy"]["past"], &status["policy"]["reloads_failed"]), (&json!(1), &json!(0)));
    assert!(place.ok(&["status"]).contains("policy 1 of the history, not what the file says now"));
    let history = place.json(&["history"]);
    let by: Vec<&str> = history["policies"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| one["by"].as_str().expect("text"))
        .collect();
    assert_eq!(by, ["not confirmed within 5 s", "user 0", "start"]);
    assert!(daemon.log().contains("not confirmed within 5 s: the one before comes back"), "{}", daemon.log());
}

#[test]
fn the_way_back_is_tried_until_it_works() {
    // The first policy needs a folder that is not there when it is to come back.
    let place = Place::new("");
    let captures = place.path("captures");
    std::fs::create_dir(&captures).expect("made");
    let first = FIRST.replace("workers = \"all\"\n", "workers = \"all\"\nsinks = \"all\"\n")
        + &format!("[sinks.all]\nkind = \"capture\"\npath = {captures:?}\n");
    place.write("p.toml", &first);
    let daemon = place.start();
    let sha = sha256(&place);
    place.write("p.toml", &second());
    // Before the trial, which may be over when the command has ended.
    std::fs::remove_dir_all(&captures).expect("removed");
    place.write("captures", "no folder");
    place.ok(&["reload", "--confirm", "5s"]);
    until("the first attempt fails", || daemon.log().contains("it is tried again in 5 s"));
    assert!(stderr(&place.run(&["reload"])).contains("waits for its confirmation"), "the trial is not over");
    std::fs::remove_file(&captures).expect("removed");
    std::fs::create_dir(&captures).expect("made");
    until("the first policy is back", || sha256(&place) == sha);
}

/// Many rules, whose compilation takes seconds.
fn large() -> String {
    let rule = |number: u32| {
        format!(
            "[[rules]]\nname = \"r{number}\"\nmatch = {{ src = \"10.{}.{}.0/24\", dst_port = \"{}-{}\" }}\naction = \"drop\"\n",
            number / 250,
            number % 250,
            1 + number % 7,
            9000 + number % 1000
        )
    };
    (0..2000).fold(FIRST.to_owned(), |text, number| text + &rule(number))
}

#[test]
fn a_dry_run_does_not_delay_the_way_back() {
    let place = Place::new(FIRST);
    let daemon = place.start();
    let first = sha256(&place);
    place.write("p.toml", &second());
    // Shorter than the dry run takes.
    place.ok(&["reload", "--confirm", "300ms"]);
    place.write("p.toml", &large());
    let mut dry_run = place.command(&["reload", "--dry-run"]);
    let mut dry_run = dry_run.stdout(std::process::Stdio::null()).spawn().expect("it runs");
    until("the first policy is back", || sha256(&place) == first);
    assert!(dry_run.try_wait().expect("a child").is_none(), "the dry run goes on");
    assert!(dry_run.wait().expect("a child").success(), "{}", daemon.log());
    assert_eq!(sha256(&place), first);
}

#[test]
fn the_way_back_does_not_need_the_capture() {
    let place = Place::new(FIRST);
    let capture = place.path("traffic.pcap");
    let frame = FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).udp(9, 53).build();
    std::fs::write(&capture, test_support::capture(&[frame])).expect("written");
    let mut command = place.daemon();
    let daemon = Daemon::start_command(command.env("STEERD_POLICY__TRAFFIC", &capture));
    let first = sha256(&place);
    place.write("p.toml", &second());
    place.ok(&["reload", "--confirm", "5s"]);
    std::fs::remove_file(&capture).expect("removed");
    until("the first policy is back", || sha256(&place) == first);
    assert!(!daemon.log().contains("it is tried again"), "{}", daemon.log());
}

#[test]
fn a_rollback_means_the_policies_that_were_seen() {
    let place = Place::new(FIRST);
    let _daemon = place.start();
    let first = sha256(&place);
    place.write("p.toml", &second());
    place.ok(&["reload", "--confirm", "5s"]);
    let seen = place.json(&["history"])["policies"][0]["number"].clone();
    until("the first policy is back", || sha256(&place) == first);
    // The operator has asked for it a moment too late: the policy that was rejected must not come back.
    let late = json!({ "back": 1, "in_force": seen }).to_string();
    let (_, verdict) = place.ask("POST", "/v1/rollback", &late);
    assert_eq!(verdict["accepted"], false, "{verdict}");
    assert!(verdict["error"].as_str().expect("why").contains("another policy is in force"), "{verdict}");
    let refused = stderr(&place.run(&["rollback"]));
    assert!(refused.contains("policy 2 of the history was not confirmed"), "{refused}");
    assert_eq!(sha256(&place), first);
    assert!(place.ok(&["history"]).contains("not confirmed\n"));
    place.ok(&["rollback", "1"]);
    assert_ne!(sha256(&place), first, "asked for by its place");
}

#[test]
fn a_confirmed_policy_stays_and_rollback_brings_the_other_back() {
    let place = Place::new(FIRST);
    let _daemon = place.start();
    let first = sha256(&place);
    place.write("p.toml", &second());
    place.ok(&["reload", "--confirm", "8s"]);
    place.ok(&["confirm"]);
    let second = sha256(&place);
    std::thread::sleep(Duration::from_millis(8500));
    assert_eq!(sha256(&place), second, "it stays");
    let again = place.run(&["confirm"]);
    let words = "steerd: confirm: no reload waits for its confirmation";
    assert!(again.status.code() == Some(1) && stderr(&again).trim() == words, "{}", stderr(&again));
    let text = place.ok(&["rollback"]);
    assert!(
        text.contains("1 rule removed (scan)") && text.contains("the file still has the later policy"),
        "{text}"
    );
    assert_eq!(sha256(&place), first);
    place.ok(&["rollback", "1"]);
    assert_eq!(sha256(&place), second);
    assert!(stderr(&place.run(&["rollback", "99"])).contains("the history has no policy 99"));
    assert!(stderr(&place.run(&["rollback", "0"])).contains("is the one in force"));
    // Rollback ends a trial.
    place.ok(&["reload", "--confirm", "30s"]);
    place.ok(&["rollback"]);
    place.ok(&["reload"]);
    assert_eq!(place.json(&["status"])["policy"]["past"], Value::Null, "read from the file");
    for body in [r#"{"confirm_seconds": 0}"#, r#"{"confirm_seconds": 1e9}"#, r#"{"confirm": 1}"#] {
        assert_eq!(place.ask("POST", "/v1/reload", body).0, 400, "{body}");
    }
}

#[test]
fn a_dry_run_and_a_plan_tell_the_cost_and_do_nothing() {
    let place = Place::new(FIRST);
    let daemon = place.start();
    daemon.until("DNS is counted", |daemon| {
        daemon.metric("steerd_rule_packets_total", &["rule=\"dns\""]) > 1000.0
    });
    let before = sha256(&place);
    let changed = second().replace("53 }", "[53, 54] }");
    place.write("p.toml", &changed);
    let text = place.ok(&["reload", "--dry-run"]);
    assert!(
        text.contains("nothing was done") && text.contains("1 rule added (scan); 1 changed (dns)"),
        "{text}"
    );
    assert!(text.contains("% of those counted so far"), "{text}");
    let plan = place.json(&["plan", "p.toml"]);
    assert_eq!(plan["flows"]["removed"], 0, "{plan}");
    assert!(plan["touched_share"].as_f64() > Some(0.2), "{plan}");
    place.write("q.toml", "version = 1\nrules = 3\n");
    let refused = place.run(&["plan", "q.toml"]);
    assert_eq!(refused.status.code(), Some(1), "{}", stderr(&refused));
    let status = place.json(&["status"]);
    assert_eq!((&status["policy"]["sha256"], &status["policy"]["generation"]), (&json!(before), &json!(1)));
    assert_eq!(place.json(&["history"])["policies"].as_array().map(Vec::len), Some(1));
    // Without a daemon, for the model of a device with a rate.
    place.write("old.toml", FIRST);
    let old = place.path("old.toml").display().to_string();
    let new = place.path("p.toml").display().to_string();
    let output = run(&["plan", &new, "--from", &old, "--model", "mlx5"]);
    let text = stdout(&output);
    assert!(
        output.status.success() && text.contains("ms by the device's model"),
        "{text}{}",
        stderr(&output)
    );
}

const LISTED: &str = "version = 1\n[groups.every]\nworkers = \"all\"\n[sets]\n\
     bad = { file = \"bad.txt\", max_change = 50 }\n[[rules]]\nname = \"bad\"\nmatch = { src = \"bad\" }\naction = \"drop\"\n";

fn hosts(count: u8) -> String {
    (0..count).map(|host| format!("10.0.0.{host}\n")).collect()
}

#[test]
fn a_set_that_changes_too_much_needs_force() {
    let place = Place::new(LISTED);
    place.write("bad.txt", &hosts(10));
    let _daemon = place.start();
    place.write("bad.txt", &hosts(15));
    place.ok(&["reload"]);
    place.write("bad.txt", &hosts(7));
    let refused = place.run(&["reload"]);
    let why = stderr(&refused);
    assert!(
        why.contains("`bad` has 7 values instead of 15") && why.contains("steerd reload --force"),
        "{why}"
    );
    assert_eq!(place.run(&["reload", "--dry-run"]).status.code(), Some(1));
    place.ok(&["reload", "--force"]);
    // Who goes back wants the set as it was.
    place.ok(&["rollback"]);
}

fn with_state(place: &Place) -> Command {
    let mut command = place.daemon();
    command.env("STEERD_STATE__FOLDER", place.path("state"));
    command
}

#[test]
fn the_last_policy_is_used_at_a_start_whose_file_is_broken() {
    let place = Place::new(FIRST);
    std::fs::create_dir(place.path("state")).expect("made");
    let daemon = Daemon::start_command(&mut with_state(&place));
    let first = sha256(&place);
    drop(daemon);
    place.write("p.toml", "version = 1\nrules = 3\n");
    let daemon = Daemon::start_command(&mut with_state(&place));
    assert!(daemon.log().contains("policy 1 of the history, which was in force before, is used instead"));
    let status = place.json(&["status"]);
    assert_eq!(status["policy"]["sha256"], first);
    assert_eq!(status["policy"]["last_reload_successful"], false, "loudly");
    // The file is mended.
    place.write("p.toml", &second());
    place.ok(&["reload"]);
    assert_eq!(place.json(&["status"])["policy"]["last_reload_successful"], true);
    drop(daemon);
    // Without a history a broken file is an error, as before.
    place.write("p.toml", "version = 1\nrules = 3\n");
    let output = place.daemon().output().expect("it runs");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
}

#[test]
fn a_set_that_changes_too_much_is_not_used_at_a_start() {
    let place = Place::new(LISTED);
    std::fs::create_dir(place.path("state")).expect("made");
    place.write("bad.txt", &hosts(15));
    let daemon = Daemon::start_command(&mut with_state(&place));
    let first = sha256(&place);
    drop(daemon);
    place.write("bad.txt", &hosts(7));
    let daemon = Daemon::start_command(&mut with_state(&place));
    let words = "a change of more than max_change = 50 percent: policy 1 of the history";
    assert!(daemon.log().contains(words), "{}", daemon.log());
    assert_eq!(sha256(&place), first);
    place.ok(&["reload", "--force"]);
    let forced = sha256(&place);
    drop(daemon);
    let _daemon = Daemon::start_command(&mut with_state(&place));
    assert_eq!(sha256(&place), forced);
}

#[test]
fn a_trial_that_the_daemon_does_not_survive_is_not_confirmed() {
    let place = Place::new(FIRST);
    std::fs::create_dir(place.path("state")).expect("made");
    let daemon = Daemon::start_command(&mut with_state(&place));
    let first = sha256(&place);
    place.write("p.toml", &second());
    place.ok(&["reload", "--confirm", "300s"]);
    let on_trial = sha256(&place);
    drop(daemon);
    for start in ["after a crash", "and once more"] {
        let daemon = Daemon::start_command(&mut with_state(&place));
        assert!(daemon.log().contains("was on trial and nobody confirmed it: policy "), "{}", daemon.log());
        let status = place.json(&["status"]);
        assert_eq!(status["policy"]["sha256"], first, "{start}");
        assert_eq!(status["policy"]["last_reload_successful"], false, "loudly");
    }
    let daemon = Daemon::start_command(&mut with_state(&place));
    place.ok(&["reload"]);
    assert_eq!(sha256(&place), on_trial, "who asks for it gets it");
    drop(daemon);
    let daemon = Daemon::start_command(&mut with_state(&place));
    assert_eq!(sha256(&place), on_trial, "for good");
    place.write("p.toml", FIRST);
    place.ok(&["reload", "--confirm", "300s"]);
    place.ok(&["confirm"]);
    drop(daemon);
    let _daemon = Daemon::start_command(&mut with_state(&place));
    assert_eq!(sha256(&place), first, "confirmed");
}

/// The first policy, and a rule of 2,000 flows.
fn with_many_sources() -> String {
    let sources: Vec<String> =
        (0..2000).map(|host| format!("\"10.{}.{}.7\"", host / 250, host % 250)).collect();
    let sources = sources.join(", ");
    format!("{FIRST}[[rules]]\nname = \"many\"\nmatch = {{ src = [{sources}] }}\naction = \"drop\"\n")
}

#[test]
fn changes_at_the_speed_of_a_firmware_are_in_force_soon() {
    let place = Place::new(FIRST);
    let mut command = place.daemon();
    command.env("STEERD_SOFTNIC__FLOW_RATE", "5000").env("STEERD_SOFTNIC__PERSONALITY", "mlx5");
    let daemon = Daemon::start_command(&mut command);
    let many = |port: u16| {
        format!(
            "{}[[rules]]\nname = \"one\"\nmatch = {{ protocol = \"udp\", dst_port = {port} }}\naction = {{ steer = \"every\" }}\n",
            with_many_sources()
        )
    };
    place.write("p.toml", &many(99));
    let plan = place.json(&["plan", "p.toml"]);
    assert!((0.3..3.0).contains(&plan["seconds"].as_f64().expect("a rate")), "{plan}");
    let begun = Instant::now();
    place.ok(&["reload"]);
    assert!(begun.elapsed() > Duration::from_millis(390), "2000 flows: {:?}", begun.elapsed());
    place.write("p.toml", &many(98));
    let verdict = place.json(&["reload"]);
    println!("one of 2,003 rules changed: {} ms, {}", verdict["milliseconds"], verdict["flows"]);
    assert!(verdict["flows"]["installed"].as_u64() <= Some(6), "{verdict}");
    drop(daemon);
}

#[test]
fn a_change_that_takes_seconds_shows_how_far_it_is() {
    let place = Place::new(FIRST);
    let mut command = place.daemon();
    let daemon = Daemon::start_command(command.env("STEERD_SOFTNIC__FLOW_RATE", "500"));
    assert_eq!(place.get("/v1/status")["change"], json!(null));
    place.write("p.toml", &with_many_sources());
    let mut reload = place.command(&["reload"]);
    let mut reload = reload.stdout(std::process::Stdio::null()).spawn().expect("it runs");
    until("some flows are there", || {
        let change = &place.get("/v1/status")["change"];
        assert!(change.is_null() || change["flows"] == 2000, "{change}");
        change["done_flows"].as_u64() > Some(0)
    });
    assert!(reload.wait().expect("a child").success(), "{}", daemon.log());
    assert_eq!(place.get("/v1/status")["change"], json!(null));
    let log = daemon.log();
    let line = log.lines().find(|line| line.contains("the device is being changed: "));
    assert!(line.is_some_and(|line| line.contains(" of 2000 flows")), "{log}");
}

/// Every rule of a set whose rules overlap in long chains changes, so that the flows find no priorities
/// beside those that are there.
#[test]
fn a_policy_that_finds_no_priorities_comes_in_two_steps() {
    let Some(folder) = support::corpora("rules") else { return };
    let place = Place::new("");
    let set = folder.join("fw1_1k");
    let imported = stdout(&run(&["import", "classbench", set.to_str().expect("text")]));
    let steered = "action = { steer = \"workers\" }";
    assert!(imported.contains(steered), "{}", &imported[..600]);
    place.write("p.toml", &imported);
    let mut command = place.daemon();
    let daemon = Daemon::start_command(command.env("STEERD_SOFTNIC__PERSONALITY", "mlx5"));
    place.write("p.toml", &imported.replace(steered, "action = \"drop\""));
    let dry = place.ok(&["reload", "--dry-run"]);
    assert!(dry.contains("nothing was done"), "{dry}");
    let before = sha256(&place);
    let mut reload = place.command(&["reload"]);
    let mut reload = reload.stdout(std::process::Stdio::null()).spawn().expect("it runs");
    until("the first step is over", || place.get("/v1/status")["policy"]["generation"] == 2);
    // Between the steps nobody waits to change rules at run time; this policy allows none.
    let begun = Instant::now();
    let (status, answer) = place.ask("POST", "/v1/rules/changes", r#"{"remove": ["none"]}"#);
    let took = begun.elapsed();
    assert_eq!(status, 409, "{answer}");
    assert_eq!(place.get("/v1/status")["policy"]["generation"], 2, "the second step has not begun");
    assert!(took < Duration::from_millis(500), "{took:?}");
    assert!(reload.wait().expect("a child").success(), "{}", daemon.log());
    assert!(daemon.log().contains("gets half of the priorities first"), "{}", daemon.log());
    assert_ne!(sha256(&place), before);
    place.write("p.toml", &imported);
    place.ok(&["reload"]);
    assert_eq!(sha256(&place), before);
}

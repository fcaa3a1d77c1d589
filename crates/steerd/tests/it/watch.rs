//! The setting `policy.watch`: reloads by changes of the policy's files.

use std::io::Write;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::Place;
use crate::support::{Daemon, not_run, stderr, steerd_by};

const RULES: &str = "version = 1\n[groups.every]\nworkers = \"all\"\n[[rules]]\nname = \"dns\"\n\
     match = { protocol = \"udp\", dst_port = 53 }\naction = { steer = \"every\" }\n";
const SCANS: &str = "[[rules]]\nname = \"scan\"\nmatch = { src = \"198.51.100.0/24\" }\naction = \"drop\"\n";

fn second() -> String {
    format!("{RULES}{SCANS}")
}

fn watching(place: &Place) -> Daemon {
    Daemon::start_command(place.daemon().env("STEERD_POLICY__WATCH", "true"))
}

/// Replaces the policy by a rename.
fn replace(place: &Place, text: &str) {
    place.write("p.new", text);
    std::fs::rename(place.path("p.new"), place.path("p.toml")).expect("renamed");
}

fn policy(place: &Place) -> Value {
    place.json(&["status"])["policy"].clone()
}

/// The causes of the policies of the history, the last one first.
fn causes(place: &Place) -> Vec<String> {
    let history = place.json(&["history"]);
    let policies = history["policies"].as_array().expect("a list");
    policies.iter().map(|policy| policy["by"].as_str().expect("text").to_owned()).collect()
}

#[test]
fn a_changed_policy_is_in_force_without_a_command() {
    let place = Place::new(RULES);
    let daemon = watching(&place);
    replace(&place, &second());
    daemon.until("the second policy is in force", |_| causes(&place) == ["watch", "start"]);
    assert_eq!(policy(&place)["reloads_failed"], 0);
    // Somebody was faster: nothing is left to do.
    replace(&place, RULES);
    place.ok(&["reload"]);
    replace(&place, &second());
    daemon.until("the change after it is in force", |_| causes(&place).len() == 4);
    assert_eq!(causes(&place)[..2], ["watch", "user 0"].map(|by| by.replace("user 0", &user())));
}

/// The caller of a command, as the history names it.
fn user() -> String {
    format!("user {}", rustix::process::getuid().as_raw())
}

#[test]
fn a_rollback_stays_until_the_content_changes() {
    let place = Place::new(RULES);
    let mut daemon = watching(&place);
    let first = policy(&place)["sha256"].clone();
    replace(&place, &second());
    daemon.until("the second policy is in force", |_| causes(&place) == ["watch", "start"]);
    place.ok(&["rollback"]);
    replace(&place, &second());
    daemon.wait_for("the policy is the one that a rollback has replaced: the one in force stays", 1);
    assert_eq!(policy(&place)["sha256"], first);
    replace(&place, &format!("{}# once more\n", second()));
    daemon.until("the third policy is in force", |_| causes(&place)[0] == "watch");
}

#[test]
fn a_rolled_back_policy_stays_away_when_its_set_changes() {
    let place = Place::new(RULES);
    place.write("scans.txt", "198.51.100.0/24\n");
    let mut daemon = watching(&place);
    let first = policy(&place)["sha256"].clone();
    let scans = SCANS.replace("198.51.100.0/24", "scans");
    replace(&place, &format!("{RULES}{scans}[sets]\nscans = {{ file = \"scans.txt\" }}\n"));
    daemon.until("the second policy is in force", |_| causes(&place) == ["watch", "start"]);
    place.ok(&["rollback"]);
    place.write("scans.txt", "203.0.113.0/24\n");
    daemon.wait_for("the policy is the one that a rollback has replaced: the one in force stays", 1);
    assert_eq!(policy(&place)["sha256"], first);
}

#[test]
fn a_refused_policy_is_reported_once() {
    let place = Place::new(RULES);
    let mut daemon = watching(&place);
    let before = policy(&place)["sha256"].clone();
    replace(&place, "version = 1\n[[rules]]\n");
    daemon.wait_for("is refused, the previous policy stays in force", 1);
    // Whatever touches the file, its content is known. A broken policy is read 2 s after its last change.
    replace(&place, "version = 1\n[[rules]]\n");
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(policy(&place)["sha256"], before);
    assert_eq!(daemon.metric("steerd_last_reload_successful", &[]), 0.0);
    replace(&place, RULES);
    daemon.until("the error is over", |daemon| daemon.metric("steerd_last_reload_successful", &[]) == 1.0);
    assert_eq!(policy(&place)["reloads_failed"], 1, "{}", daemon.log());
    assert_eq!(policy(&place)["sha256"], before);
}

#[test]
fn a_change_with_a_failing_test_is_refused() {
    let test =
        "[[tests]]\nname = \"queries\"\nevery = { protocol = \"udp\", dst_port = 53 }\nexpect = \"steer\"\n";
    let place = Place::new(&format!("{RULES}{test}"));
    let mut command = place.daemon();
    command.env("STEERD_POLICY__REQUIRE_TESTS", "true").env("STEERD_POLICY__WATCH", "true");
    let mut daemon = Daemon::start_command(&mut command);
    replace(&place, &format!("{RULES}{}", test.replace("steer", "drop")));
    daemon.wait_for("the test \"queries\" fails", 1);
    replace(&place, &second());
    daemon.wait_for("the policy has no tests, and the setting policy.require_tests asks for them", 1);
    assert_eq!(causes(&place), ["start"]);
}

#[test]
fn a_policy_nobody_confirmed_stays_away() {
    let place = Place::new(RULES);
    let mut daemon = watching(&place);
    let before = policy(&place)["sha256"].clone();
    // A file that is open for writing is not quiet, so the reload on trial is the first to read it.
    let mut file = std::fs::File::create(place.path("p.toml")).expect("opened");
    file.write_all(second().as_bytes()).expect("written");
    place.ok(&["reload", "--confirm", "4s"]);
    drop(file);
    daemon.wait_for("not confirmed within 4 s", 1);
    daemon.until("the first policy is back", |_| policy(&place)["sha256"] == before);
    daemon.wait_for("the policy was on trial and nobody confirmed it: the one in force stays", 1);
    assert_eq!(policy(&place)["sha256"], before);
    assert_eq!(policy(&place)["reloads_failed"], 0, "{}", daemon.log());
    replace(&place, &format!("{}# mended\n", second()));
    daemon.until("another policy is in force", |_| causes(&place)[0] == "watch");
}

/// A shell in a user namespace whose processes get no reports of changes.
const WITHOUT_REPORTS: [&str; 5] =
    ["unshare", "-Ur", "sh", "-c", "echo 0 > /proc/sys/user/max_inotify_instances && exec \"$0\" \"$@\""];

#[test]
fn files_are_compared_where_the_kernel_reports_nothing() {
    let probe = Command::new(WITHOUT_REPORTS[0]).args(&WITHOUT_REPORTS[1..]).arg("true").status();
    if !probe.is_ok_and(|status| status.success()) {
        return not_run("policy.watch without inotify", "user namespaces cannot be made");
    }
    let place = Place::new(RULES);
    let found = "policy.watch: the kernel reports no changes of files: Too many open files (os error 24)";
    let mut command = steerd_by(&WITHOUT_REPORTS);
    command.env("STEERD_API__ENABLED", "true").env("STEERD_POLICY__WATCH", "true");
    command.args(["run", "--demo", "--policy"]).arg(place.path("p.toml"));
    let mut daemon = Daemon::start_command(command.arg("--api-socket").arg(place.socket()));
    daemon.wait_for(found, 1);
    assert!(
        daemon.log().contains("the files of the policy are compared every 10 s instead"),
        "{}",
        daemon.log()
    );
    replace(&place, &second());
    daemon.wait_for("is in force after", 1);
    // What the start warns of, `check` does, too.
    place.write(
        "steerd.toml",
        "[policy]\nfile = \"p.toml\"\nwatch = true\n[softnic]\nname = \"softnic0\"\n\
         [[softnic.ports]]\nwire = { kind = \"null\" }\n[http]\nlisten = \"off\"\n[api]\nenabled = false\n",
    );
    let mut command = steerd_by(&WITHOUT_REPORTS);
    let check =
        command.arg("check").arg("--config").arg(place.path("steerd.toml")).output().expect("it runs");
    assert!(stderr(&check).contains(&format!("warning: {found}")), "{}", stderr(&check));
}

#[test]
fn the_demonstration_has_no_file_to_watch() {
    let mut command = crate::support::steerd();
    let daemon = Daemon::start_command(command.env("STEERD_POLICY__WATCH", "true").args(["run", "--demo"]));
    let found = "policy.watch: config/examples/demo.toml (built in) has no file that could change";
    assert!(daemon.log().contains(found), "{}", daemon.log());
    let (_, body) = daemon.page("/api/v1/state");
    assert_eq!(serde_json::from_str::<Value>(&body).expect("JSON")["policy"]["reloads_failed"], json!(0));
}

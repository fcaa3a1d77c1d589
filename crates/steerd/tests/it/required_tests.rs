//! The setting `policy.require_tests`: a start and a reload of policies with and without tests.

use crate::api::Place;
use crate::support::{Daemon, stderr, stdout};

const RULES: &str = "version = 1\n[groups.every]\nworkers = \"all\"\n[[rules]]\nname = \"dns\"\n\
     match = { protocol = \"udp\", dst_port = 53 }\naction = { steer = \"every\" }\n";

fn with_test(expected: &str) -> String {
    format!(
        "{RULES}[[tests]]\nname = \"queries\"\nevery = {{ protocol = \"udp\", dst_port = 53 }}\nexpect = \"{expected}\"\n"
    )
}

fn sha256(place: &Place) -> String {
    place.json(&["status"])["policy"]["sha256"].as_str().expect("a hash").to_owned()
}

#[test]
fn a_reload_with_a_failing_test_is_refused() {
    let place = Place::new(&with_test("steer"));
    let daemon = Daemon::start_command(place.daemon().env("STEERD_POLICY__REQUIRE_TESTS", "true"));
    let first = sha256(&place);
    let wrong = with_test("drop");
    for (text, found) in [
        (
            wrong.as_str(),
            "p.toml:11:10: error: the test \"queries\" fails: the rule `dns` (line 5, deliver to every)",
        ),
        (RULES, "the policy has no tests, and the setting policy.require_tests asks for them"),
    ] {
        place.write("p.toml", text);
        for args in [&["reload"][..], &["reload", "--dry-run"]] {
            let output = place.run(args);
            assert_eq!(output.status.code(), Some(1), "{}{}", stdout(&output), stderr(&output));
            assert!(stderr(&output).contains(found), "{found}: {}", stderr(&output));
        }
        assert_eq!(sha256(&place), first);
    }
    assert!(daemon.log().contains("the test \"queries\" fails"), "{}", daemon.log());
    place.write("p.toml", &format!("{}# once more\n", with_test("steer")));
    place.ok(&["reload"]);
    assert_ne!(sha256(&place), first);
}

/// Both workers exist, and a packet has one of them: the test that names the other one fails. It runs on the
/// program that a reload would install.
#[test]
fn tests_of_workers_run_on_the_program_of_the_daemon() {
    let test = |worker: u32| {
        format!(
            "{RULES}[[tests]]\nname = \"worker\"\n\
             packet = \"src=198.51.100.1,dst=192.0.2.53,protocol=udp,dst_port=53\"\nworker = {worker}\n"
        )
    };
    let place = Place::new(&with_test("steer"));
    let _daemon = Daemon::start_command(place.daemon().env("STEERD_POLICY__REQUIRE_TESTS", "true"));
    let first = sha256(&place);
    let mut accepted = 0;
    for worker in 0..2 {
        place.write("p.toml", &test(worker));
        let output = place.run(&["reload", "--dry-run"]);
        match output.status.code() {
            Some(0) => accepted += 1,
            _ => assert!(stderr(&output).contains("the test \"worker\" fails"), "{}", stderr(&output)),
        }
        assert_eq!(sha256(&place), first);
    }
    assert_eq!(accepted, 1);
    // The tests that fail on the program are reported by a reload as by its dry run.
    place.write("p.toml", &test(9));
    let output = place.run(&["reload"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("and worker 9 is expected"), "{}", stderr(&output));
    assert_eq!(sha256(&place), first);
}

#[test]
fn a_dry_run_of_passing_tests_changes_nothing() {
    let place = Place::new(&with_test("steer"));
    let _daemon = Daemon::start_command(place.daemon().env("STEERD_POLICY__REQUIRE_TESTS", "true"));
    let first = sha256(&place);
    place.write("p.toml", &format!("{}# once more\n", with_test("steer")));
    place.ok(&["reload", "--dry-run"]);
    assert_eq!(sha256(&place), first);
}

#[test]
fn a_start_without_tests_is_refused() {
    let place = Place::new(RULES);
    let mut command = place.daemon();
    let output =
        command.args(["--for", "10s"]).env("STEERD_POLICY__REQUIRE_TESTS", "true").output().expect("it runs");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let found = "the policy has no tests, and the setting policy.require_tests asks for them";
    assert!(stderr(&output).contains(found), "{}", stderr(&output));
}

#[test]
fn a_start_with_a_failing_test_is_refused() {
    let place = Place::new(&with_test("kernel"));
    let mut command = place.daemon();
    let output =
        command.args(["--for", "10s"]).env("STEERD_POLICY__REQUIRE_TESTS", "true").output().expect("it runs");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("the test \"queries\" fails"), "{}", stderr(&output));
    // Without the setting the test has no effect on the daemon.
    let daemon = place.start();
    assert!(!daemon.log().contains("queries"), "{}", daemon.log());
}

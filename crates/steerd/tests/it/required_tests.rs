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

//! Conversion of rule sets of nftables: `listings/filter.nft` as `nft -j list ruleset` prints it is the fixture, and the
//! nft of this machine must print the same meaning.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::IpAddr;
use std::process::Stdio;

use packet::build::FrameBuilder;
use packet::{DeepKey, IpProtocol};
use policy::import::{self, Imported};
use policy::policy::{Action, Policy};
use policy::{NoFiles, Source};
use program::Predicate;
use proptest::prelude::*;

const LISTING: &str = include_str!("listings/filter.json");

fn parsed(imported: &Imported) -> Policy {
    let source = Source::new("imported.toml", imported.policy_toml.clone());
    match policy::parse(&source, &NoFiles) {
        Ok((policy, _)) => policy,
        Err(problems) => panic!("{problems}\n{}", imported.policy_toml),
    }
}

#[test]
fn the_rules_of_a_firewall() {
    let imported = import::nft(LISTING);
    parsed(&imported);
    let notes = imported.notes.iter().fold(String::new(), |mut text, note| {
        writeln!(text, "{note}").expect("strings take text");
        text
    });
    insta::assert_snapshot!(format!("{}---\n{notes}", imported.policy_toml));
}

/// What the policy does with a frame, and by which rule.
fn decided(policy: &Policy, frame: &[u8]) -> (String, Action) {
    let key = DeepKey::of(frame);
    let first = policy.rules.iter().find(|rule| Predicate::of(&rule.matches).matches_deep(&key));
    first.map_or(("default".to_owned(), policy.default), |rule| (rule.name.clone(), rule.action))
}

fn ipv4(src: [u8; 4], dst: [u8; 4]) -> FrameBuilder {
    FrameBuilder::new().ip(IpAddr::from(src), IpAddr::from(dst))
}

#[test]
fn packets_get_the_verdict_of_the_chain() {
    let policy = parsed(&import::nft(LISTING));
    let (host, other) = ([192, 0, 2, 80], [198, 18, 0, 1]);
    let inside = [10, 1, 2, 3];
    for (frame, wanted) in [
        (ipv4([192, 0, 2, 15], host).udp(1, 443), ("input-11", Action::Drop)),
        (ipv4([203, 0, 113, 9], host).tcp(1, 443, 2), ("input-11", Action::Drop)),
        (ipv4(other, host).tcp(1, 22, 2), ("input-14", Action::Drop)),
        (ipv4(inside, other).tcp(1, 80, 3), ("input-15", Action::Drop)),
        (ipv4(inside, other).tcp(1, 80, 2), ("input-16", Action::Drop)),
        (ipv4(inside, other).udp(1, 5050), ("input-20", Action::Kernel)),
        (ipv4(inside, other).protocol(IpProtocol::GRE), ("input-23", Action::Drop)),
        // Only for this destination the chain `web` is called.
        (ipv4(inside, host).tcp(1, 8005, 0x10), ("web-7", Action::Kernel)),
        (ipv4(inside, host).udp(1, 443), ("web-8", Action::Kernel)),
        (ipv4(inside, other).tcp(1, 8005, 0x10), ("input-31", Action::Drop)),
        // A rule without an exact form is left out, and so is not a reason for another verdict.
        (ipv4(inside, other).udp(1, 53), ("input-31", Action::Drop)),
    ] {
        let (name, action) = decided(&policy, &frame.build());
        assert_eq!((name.as_str(), action), wanted);
    }
    let v6 = |port| {
        let address = |last| IpAddr::from([0x2001, 0xdb8, 2, 0, 0, 0, 0, last]);
        FrameBuilder::new().ip(address(5), address(9)).udp(1, port).build()
    };
    assert_eq!(decided(&policy, &v6(53)), ("input-27".to_owned(), Action::Kernel));
    assert_eq!(decided(&policy, &v6(123)), ("input-27.2".to_owned(), Action::Drop));
    let arp = FrameBuilder::new().ether_type(packet::EtherType::ARP).build();
    assert_eq!(
        decided(&policy, &arp),
        ("default".to_owned(), Action::Kernel),
        "the table is of the family inet"
    );
}

/// A rule set with one chain of these rules.
fn ruleset(family: &str, policy: &str, rules: &[&str]) -> String {
    let table = format!("\"family\": \"{family}\", \"table\": \"t\"");
    let rule = |(number, expr): (usize, &&str)| {
        format!(", {{\"rule\": {{{table}, \"chain\": \"c\", \"handle\": {number}, \"expr\": [{expr}]}}}}")
    };
    format!(
        "{{\"nftables\": [{{\"chain\": {{{table}, \"name\": \"c\", \"type\": \"filter\", \"hook\": \"prerouting\", \
         \"prio\": 0, \"policy\": \"{policy}\"}}}}{}]}}",
        rules.iter().enumerate().map(rule).collect::<String>()
    )
}

fn tests(left: &str, op: &str, right: &str) -> String {
    format!("{{\"match\": {{\"op\": \"{op}\", \"left\": {left}, \"right\": {right}}}}}, {{\"drop\": null}}")
}

#[test]
fn a_policy_of_drop_applies_only_if_no_rule_is_missing() {
    let port = tests("{\"payload\": {\"protocol\": \"tcp\", \"field\": \"dport\"}}", ">=", "1024");
    let whole = parsed(&import::nft(&ruleset("ip", "drop", &[&port])));
    let last = whole.rules.last().expect("a rule");
    assert_eq!((last.name.as_str(), last.action), ("policy", Action::Drop));
    assert_eq!(whole.default, Action::Kernel, "other families than that of the table");
    let state = tests("{\"ct\": {\"key\": \"state\"}}", "in", "\"established\"");
    let imported = import::nft(&ruleset("ip", "drop", &[&port, &state]));
    let partial = parsed(&imported);
    assert_eq!(partial.rules.len(), 1, "{}", imported.policy_toml);
    let messages: Vec<&str> = imported.notes.iter().map(|note| note.message.as_str()).collect();
    assert!(messages[0].starts_with("rule 1 of ip t c is left out: `ct` cannot"), "{messages:?}");
    assert!(messages[1].starts_with("the policy of the chain, drop, is left out"), "{messages:?}");
}

#[test]
fn what_the_language_cannot_express_is_left_out() {
    let payload = |protocol: &str, field: &str| {
        format!("{{\"payload\": {{\"protocol\": \"{protocol}\", \"field\": \"{field}\"}}}}")
    };
    for (rule, reason) in [
        (tests("{\"meta\": {\"key\": \"iifname\"}}", "==", "\"eth0\""), "one port"),
        (tests(&payload("ip", "id"), "==", "7"), "`ip id` cannot be matched"),
        (tests(&payload("ip", "saddr"), "==", "\"@none\""), "there is no set none"),
        (tests(&payload("ip", "saddr"), "==", "\"2001:db8::1\""), "IPv6 addresses only"),
        (tests(&payload("tcp", "dport"), "<", "0"), "it matches nothing"),
        (tests(&payload("tcp", "dport"), "==", "\"x\\\"\\n[rules]\""), "not supported"),
        ("{\"reject\": null}".to_owned(), "answers packets"),
        ("{\"limit\": {\"rate\": 1}}, {\"accept\": null}".to_owned(), "`limit` is not supported"),
        ("{\"jump\": {\"target\": \"c\"}}".to_owned(), "chains call each other too deep"),
    ] {
        let imported = import::nft(&ruleset("ip", "accept", &[&rule]));
        assert!(parsed(&imported).rules.is_empty(), "{}", imported.policy_toml);
        assert!(
            imported.notes.iter().any(|note| note.message.contains(reason)),
            "{reason}: {:?}",
            imported.notes
        );
    }
}

#[test]
fn chains_that_call_each_other_have_an_end() {
    let jump = "{\"jump\": {\"target\": \"c\"}}";
    let started = std::time::Instant::now();
    let imported = import::nft(&ruleset("ip", "accept", &[jump, jump, "{\"drop\": null}", jump]));
    parsed(&imported);
    assert!(started.elapsed() < std::time::Duration::from_secs(20), "{:?}", started.elapsed());
}

/// nft prints the fixture's rule set so that it is converted to the same policy.
#[test]
fn the_installed_nft_prints_what_is_read() {
    let mut command = test_support::namespaces::isolated();
    command.args(["sh", "-c", "nft -f - && nft -j list ruleset"]);
    let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let Ok(mut child) = started else { return test_support::not_run("nft", "unshare cannot be started") };
    let written = child.stdin.take().map(|mut input| input.write_all(include_bytes!("listings/filter.nft")));
    let output = child.wait_with_output().expect("it ends");
    if !output.status.success() || !matches!(written, Some(Ok(()))) {
        return test_support::not_run("nft", &String::from_utf8_lossy(&output.stderr));
    }
    let listed = import::nft(&String::from_utf8_lossy(&output.stdout));
    assert_eq!(listed, import::nft(LISTING));
}

proptest! {
    #[test]
    fn any_text_imports_to_a_policy(
        text in "\\PC{0,100}",
        changes in prop::collection::vec((0..LISTING.len(), prop::sample::select(vec![
            "0", "9", "@", "x", "null", "[", "]", "{", "}", ",", "\"", "drop", "tcp", "ip6", "goto", "range", "in", "!=",
        ])), 0..6),
    ) {
        parsed(&import::nft(&text));
        let mut listing = LISTING.to_owned();
        for (at, change) in changes {
            let at = at.min(listing.len());
            let to = (at + change.len()).min(listing.len());
            listing.replace_range(at..to, change);
        }
        parsed(&import::nft(&listing));
    }
}

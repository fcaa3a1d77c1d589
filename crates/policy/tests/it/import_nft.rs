//! Conversion of rule sets of nftables: `listings/filter.nft` as `nft -j list ruleset` prints it is the
//! fixture, and the nft of this machine must print the same meaning.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::IpAddr;
use std::process::Stdio;

use packet::build::FrameBuilder;
use packet::{DeepKey, IpProtocol};
use policy::import::{self, Imported, NftOptions};
use policy::policy::{Action, Policy};
use policy::{NoFiles, Source};
use program::Predicate;
use proptest::prelude::*;

/// A rule set without choices.
fn nft(text: &str) -> Imported {
    import::nft(text, &NftOptions::default()).expect("the format")
}

const LISTING: &str = include_str!("../listings/filter.json");

fn parsed(imported: &Imported) -> Policy {
    let source = Source::new("imported.toml", imported.policy_toml.clone());
    match policy::parse(&source, &NoFiles) {
        Ok((policy, _)) => policy,
        Err(problems) => panic!("{problems}\n{}", imported.policy_toml),
    }
}

#[test]
fn the_rules_of_a_firewall() {
    let imported = nft(LISTING);
    parsed(&imported);
    let notes = imported.notes.iter().fold(String::new(), |mut text, note| {
        writeln!(text, "{note}").expect("strings take text");
        text
    });
    insta::assert_snapshot!(format!("{}---\n{notes}", imported.policy_toml));
}

/// The action of the policy for a frame, and the rule.
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
    let policy = parsed(&nft(LISTING));
    let (host, other) = ([192, 0, 2, 80], [198, 18, 0, 1]);
    let inside = [10, 1, 2, 3];
    for (frame, wanted) in [
        (ipv4([192, 0, 2, 15], host).udp(1, 443), ("input-9", Action::Drop)),
        (ipv4([203, 0, 113, 9], host).tcp(1, 443, 2), ("input-9", Action::Drop)),
        (ipv4(other, host).tcp(1, 22, 2), ("input-12", Action::Drop)),
        (ipv4(inside, other).tcp(1, 80, 3), ("input-13", Action::Drop)),
        (ipv4(inside, other).tcp(1, 80, 2), ("input-14", Action::Drop)),
        (ipv4(inside, other).udp(1, 5050), ("input-25", Action::Kernel)),
        (ipv4(inside, other).protocol(IpProtocol::GRE), ("input-28", Action::Drop)),
        // Only for this destination the chain `web` is called.
        (ipv4(inside, host).tcp(1, 8005, 0x10), ("web-7", Action::Kernel)),
        (ipv4(inside, host).udp(1, 443), ("web-8", Action::Kernel)),
        (ipv4(inside, other).protocol(IpProtocol::OSPF), ("input-38", Action::Drop)),
        // The last rule drops these, behind a rule that may accept them and is left out.
        (ipv4(inside, other).tcp(1, 8005, 0x10), ("default", Action::Kernel)),
        // Of the ports of any protocol, those of TCP and UDP.
        (ipv4(inside, other).udp(1, 53), ("input-39", Action::Drop)),
    ] {
        let (name, action) = decided(&policy, &frame.build());
        assert_eq!((name.as_str(), action), wanted);
    }
    assert_eq!(decided(&policy, &ipv6().udp(1, 53).build()), ("input-32".to_owned(), Action::Kernel));
    assert_eq!(decided(&policy, &ipv6().udp(1, 123).build()), ("input-32.2".to_owned(), Action::Drop));
    assert_eq!(decided(&policy, &ipv6().tcp(1, 25, 0x10).build()), ("input-34".to_owned(), Action::Drop));
    let arp = FrameBuilder::new().ether_type(packet::EtherType::ARP).build();
    assert_eq!(
        decided(&policy, &arp),
        ("default".to_owned(), Action::Kernel),
        "the table is of the family inet"
    );
}

/// All values of the flags against the meaning that nft(8) gives.
#[test]
fn sets_of_tcp_flags_are_choices_and_lists_are_flags() {
    type Meaning = fn(u8) -> bool;
    const FIN: u8 = 1;
    const SYN: u8 = 2;
    const RST: u8 = 4;
    const PSH: u8 = 8;
    const ACK: u8 = 16;
    const URG: u8 = 32;
    let policy = parsed(&nft(LISTING));
    let ofs: [(&str, Meaning); 6] = [
        ("input-13", |flags| flags & (FIN | SYN) == FIN | SYN),
        ("input-14", |flags| flags & (SYN | ACK) == SYN),
        ("input-16", |flags| [FIN | PSH | URG, URG, RST | PSH].contains(&flags)),
        ("input-18", |flags| [RST, SYN | RST].contains(&(flags & (SYN | RST | ACK)))),
        ("input-19", |flags| flags & (FIN | SYN | RST | ACK) == 0),
        ("input-20", |flags| flags & 0xc0 != 0),
    ];
    for flags in 0..=u8::MAX {
        let frame = ipv4([10, 1, 2, 3], [198, 18, 0, 1]).tcp(1, 8005, flags).build();
        let wanted = ofs.iter().find(|(_, of)| of(flags)).map_or("default", |(name, _)| name);
        assert_eq!(decided(&policy, &frame).0, wanted, "{flags:#x}");
    }
}

fn ipv6() -> FrameBuilder {
    let address = |last| IpAddr::from([0x2001, 0xdb8, 2, 0, 0, 0, 0, last]);
    FrameBuilder::new().ip(address(5), address(9))
}

/// nft looks behind extension headers, and chains of hook input get reassembled packets.
#[test]
fn packets_whose_transport_header_the_policy_misses_stay_with_the_kernel() {
    let left = |protocol: &str, field: &str| {
        format!("{{\"payload\": {{\"protocol\": \"{protocol}\", \"field\": \"{field}\"}}}}")
    };
    let accept = |left: &str, right: &str| tests(left, "==", right).replace("drop", "accept");
    let mld = ipv6().protocol(IpProtocol::HOP_BY_HOP).build();
    let rest = ipv4([10, 1, 2, 3], [10, 1, 2, 4]).protocol(IpProtocol::ICMP).fragment(100, false).build();
    let of = |rules: &[&str]| {
        let imported = nft(&ruleset("inet", "drop", rules));
        let policy = parsed(&imported);
        let names = [&mld, &rest].map(|frame| decided(&policy, frame).0);
        (names, imported.notes.iter().map(|note| note.message.clone()).collect::<Vec<_>>().join("\n"))
    };
    let nd = accept(&left("icmpv6", "type"), "\"mld-listener-query\"");
    let (names, notes) = of(&[&nd]);
    assert_eq!(names, ["extension-headers", "policy"]);
    assert!(notes.contains("rule `extension-headers` leaves"), "{notes}");
    let (names, notes) = of(&[&accept(&left("icmp", "type"), "\"echo-request\"")]);
    assert_eq!(names, ["policy", "later-fragments"]);
    assert!(notes.contains("later fragments of IPv4"), "{notes}");
    // A drop is exact for the packets that it matches, unless it is negated.
    let port = tests(&left("tcp", "dport"), "==", "22");
    assert_eq!(of(&[&port]).0, ["policy", "policy"]);
    let other = tests("{\"meta\": {\"key\": \"l4proto\"}}", "!=", "\"tcp\"");
    assert_eq!(of(&[&other]).0, ["extension-headers", "c-0"]);
    // The first next header as such is no reason.
    let (names, notes) = of(&[&accept(&left("ip6", "nexthdr"), "\"tcp\"")]);
    assert_eq!((names, notes.as_str()), (["policy", "policy"].map(str::to_owned), ""));
    // Ports of any protocol: SCTP has them, too.
    let (names, notes) = of(&[&accept(&left("th", "dport"), "53")]);
    assert_eq!(names, ["default", "default"]);
    assert!(notes.contains("tests ports of every protocol"), "{notes}");
}

#[test]
fn sctp_ports_have_keys_of_their_own() {
    let port = |protocol: &str| {
        let left = format!("{{\"payload\": {{\"protocol\": \"{protocol}\", \"field\": \"dport\"}}}}");
        tests(&left, "==", "36412")
    };
    let of_sctp =
        "{\"match\": {\"op\": \"==\", \"left\": {\"meta\": {\"key\": \"l4proto\"}}, \"right\": \"sctp\"}}, ";
    let any = format!("{of_sctp}{}", port("th"));
    let (sctp, udp) = (ipv4([10, 1, 2, 3], [10, 1, 2, 4]), ipv6());
    let frames =
        [sctp.clone().sctp(7, 36412), sctp.sctp(36412, 7), udp.udp(7, 36412)].map(|frame| frame.build());
    for rule in [port("sctp"), any] {
        let imported = nft(&ruleset("inet", "accept", &[&rule]));
        let policy = parsed(&imported);
        assert!(imported.policy_toml.contains("sctp_dst_port = 36412"), "{}", imported.policy_toml);
        let actions: Vec<Action> = frames.iter().map(|frame| decided(&policy, frame).1).collect();
        assert_eq!(actions, [Action::Drop, Action::Kernel, Action::Kernel], "{}", imported.policy_toml);
    }
}

/// A rule set with one chain of these rules.
fn ruleset(family: &str, policy: &str, rules: &[&str]) -> String {
    let table = format!("\"family\": \"{family}\", \"table\": \"t\"");
    let rule = |(number, expr): (usize, &&str)| {
        format!(", {{\"rule\": {{{table}, \"chain\": \"c\", \"handle\": {number}, \"expr\": [{expr}]}}}}")
    };
    format!(
        "{{\"nftables\": [{{\"table\": {{\"family\": \"{family}\", \"name\": \"t\"}}}}, {{\"chain\": {{{table}, \"name\": \"c\", \"type\": \"filter\", \"hook\": \"prerouting\", \
         \"prio\": 0, \"policy\": \"{policy}\"}}}}{}]}}",
        rules.iter().enumerate().map(rule).collect::<String>()
    )
}

fn tests(left: &str, op: &str, right: &str) -> String {
    format!("{{\"match\": {{\"op\": \"{op}\", \"left\": {left}, \"right\": {right}}}}}, {{\"drop\": null}}")
}

#[test]
fn no_rule_drops_behind_a_missing_one_that_may_accept() {
    let port = tests("{\"payload\": {\"protocol\": \"tcp\", \"field\": \"dport\"}}", ">=", "1024");
    let whole = parsed(&nft(&ruleset("ip", "drop", &[&port])));
    let last = whole.rules.last().expect("a rule");
    assert_eq!((last.name.as_str(), last.action), ("policy", Action::Drop));
    assert_eq!(whole.default, Action::Kernel, "other families than that of the table");
    let state = tests("{\"ct\": {\"key\": \"state\"}}", "in", "\"established\"");
    let drops = "{\"drop\": null}";
    let expired = tests("{\"payload\": {\"protocol\": \"ip\", \"field\": \"ttl\"}}", "==", "1");
    let names = |missing: &str| {
        let imported = nft(&ruleset("ip", "drop", &[&port, missing, &expired]));
        let policy = parsed(&imported);
        let names: Vec<String> = policy.rules.iter().map(|rule| rule.name.clone()).collect();
        (names.join(" "), imported.notes.into_iter().map(|note| note.message).collect::<Vec<_>>())
    };
    let (rules, notes) = names(&state.replace("drop", "accept"));
    assert_eq!(rules, "c-0");
    assert!(notes[0].starts_with("a policy does not know the state of connections"), "{notes:?}");
    assert!(notes[0].ends_with("(rule 1 of ip t c (`ct state established accept`))"), "{notes:?}");
    let wanted = "2 of the rules that drop, policies of chains included, are comments (`c-2`, `policy`), because rule 1 of ip t c (";
    assert!(notes[1].starts_with(wanted), "{notes:?}");
    // Of many, the first are named.
    let accepts = state.replace("drop", "accept");
    let many: Vec<&str> = std::iter::once(&*accepts).chain(std::iter::repeat_n(&*expired, 40)).collect();
    let notes = nft(&ruleset("ip", "drop", &many)).notes;
    assert!(
        notes[1].message.starts_with("41 of the rules")
            && notes[1].message.contains(" and 25 more), because "),
        "{notes:?}"
    );
    for verdict in ["{\"jump\": {\"target\": \"d\"}}", "{\"queue\": {\"num\": 1}}"] {
        assert_eq!(names(&state.replace(drops, verdict)).0, "c-0", "{verdict}");
    }
    // What is missing here accepts nothing.
    for verdict in [
        "{\"return\": null}",
        drops,
        "{\"limit\": {\"rate\": 1}}, {\"drop\": null}",
        "{\"reject\": null}",
        "{\"counter\": null}",
    ] {
        assert_eq!(names(&state.replace(drops, verdict)).0, "c-0 c-2 policy", "{verdict}");
    }
}

fn vmap(protocol: &str, field: &str, pairs: &str) -> String {
    let key = format!("{{\"payload\": {{\"protocol\": \"{protocol}\", \"field\": \"{field}\"}}}}");
    format!("{{\"vmap\": {{\"key\": {key}, \"data\": {{\"set\": [{pairs}]}}}}}}")
}

#[test]
fn a_pair_without_a_counterpart_is_left_out_alone() {
    let pairs = "[\"syn\", {\"drop\": null}], [\"x\", {\"accept\": null}], [\"rst\", {\"drop\": null}]";
    let map = vmap("tcp", "flags", pairs);
    let imported = nft(&ruleset("ip", "accept", &[&map]));
    let actions: Vec<Action> = parsed(&imported).rules.iter().map(|rule| rule.action).collect();
    // The second pair may accept any TCP packet that the first one does not match.
    assert_eq!(actions[..2], [Action::Drop, Action::Kernel], "{}", imported.policy_toml);
    let notes: Vec<&str> = imported.notes.iter().map(|note| note.message.as_str()).collect();
    assert!(notes[0].starts_with("rule 0 of ip t c (`tcp flags vmap { syn : drop, x : accept"), "{notes:?}");
    assert!(notes[0].ends_with("not TCP flags: \"x\""), "{notes:?}");
    let imported = nft(&ruleset("ip", "accept", &[&map.replace("accept", "drop")]));
    assert_eq!(parsed(&imported).rules.len(), 2, "{}", imported.policy_toml);
}

#[test]
fn more_pairs_than_a_policy_has_rules_are_left_out() {
    let pair = |port: u32| format!("[{}, {{\"accept\": null}}]", port % 65_536);
    let pairs = (0..70_000).map(pair).collect::<Vec<_>>().join(", ");
    let imported = nft(&ruleset("ip", "drop", &[&vmap("udp", "dport", &pairs), "{\"drop\": null}"]));
    let policy = parsed(&imported);
    assert!(policy.rules.len() <= program::MAX_RULES, "{}", policy.rules.len());
    assert!(policy.rules.len() + 4 > program::MAX_RULES, "{}", policy.rules.len());
    assert!(policy.rules.iter().all(|rule| rule.action == Action::Kernel), "the rest may be accepted");
    let notes: Vec<&str> = imported.notes.iter().map(|note| note.message.as_str()).collect();
    assert!(notes[0].starts_with("from here on rules are left out"), "{notes:?}");
}

#[test]
fn what_the_language_cannot_express_is_left_out() {
    let payload = |protocol: &str, field: &str| {
        format!("{{\"payload\": {{\"protocol\": \"{protocol}\", \"field\": \"{field}\"}}}}")
    };
    for (rule, reason) in [
        (
            tests("{\"meta\": {\"key\": \"iifname\"}}", "==", "\"eth0\""),
            "the interface of the port is not known",
        ),
        (tests(&payload("ip", "id"), "==", "7"), "`ip id` cannot be matched"),
        (tests(&payload("ip", "saddr"), "==", "\"@none\""), "there is no set none"),
        (tests(&payload("ip", "saddr"), "==", "\"2001:db8::1\""), "a value that is not supported"),
        (tests(&payload("tcp", "dport"), "<", "0"), "it matches nothing"),
        (tests(&payload("tcp", "dport"), "==", "\"x\\\"\\n[rules]\""), "not supported"),
        ("{\"reject\": null}".to_owned(), "answers packets"),
        (
            "{\"limit\": {\"rate\": 1}}, {\"accept\": null}".to_owned(),
            "beyond the `limit` meet the next rule",
        ),
        ("{\"jump\": {\"target\": \"c\"}}".to_owned(), "chains call each other too deep"),
    ] {
        let imported = nft(&ruleset("ip", "accept", &[&rule]));
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
    let started = test_support::CpuTime::now();
    let imported = nft(&ruleset("ip", "accept", &[jump, jump, "{\"drop\": null}", jump]));
    parsed(&imported);
    assert!(started.elapsed() < std::time::Duration::from_secs(2), "{:?}", started.elapsed());
}

/// nft prints the fixture's rule set so that it is converted to the same policy.
#[test]
fn the_installed_nft_prints_what_is_read() {
    let mut command = test_support::namespaces::isolated();
    command.args(["sh", "-c", "nft -f - && nft -j list ruleset"]);
    let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let Ok(mut child) = started else { return test_support::not_run("nft", "unshare cannot be started") };
    let written =
        child.stdin.take().map(|mut input| input.write_all(include_bytes!("../listings/filter.nft")));
    let output = child.wait_with_output().expect("it ends");
    if !output.status.success() || !matches!(written, Some(Ok(()))) {
        return test_support::not_run("nft", &String::from_utf8_lossy(&output.stderr));
    }
    let listed = nft(&String::from_utf8_lossy(&output.stdout));
    assert_eq!(listed, nft(LISTING));
}

proptest! {
    #[test]
    fn any_text_imports_to_a_policy(
        text in "\\PC{0,100}",
        changes in prop::collection::vec((0..LISTING.len(), prop::sample::select(vec![
            "0", "9", "@", "x", "null", "[", "]", "{", "}", ",", "\"", "drop", "tcp", "ip6", "goto", "range", "in", "!=",
        ])), 0..6),
    ) {
        if let Ok(imported) = import::nft(&text, &NftOptions::default()) {
            parsed(&imported);
        }
        let mut listing = LISTING.to_owned();
        for (at, change) in changes {
            let at = at.min(listing.len());
            let to = (at + change.len()).min(listing.len());
            listing.replace_range(at..to, change);
        }
        let own = vec![IpAddr::from([192, 0, 2, 80])];
        let choices = NftOptions { addresses: own, is_syn_new: true, ..NftOptions::default() };
        for options in [NftOptions::default(), choices] {
            if let Ok(imported) = import::nft(&listing, &options) {
                parsed(&imported);
            }
        }
    }
}

/// The rules and the notes of rules in a chain of hook input, with other objects of its table.
fn of_input(policy: &str, objects: &str, rules: &[&str]) -> (Policy, String) {
    let listing = ruleset("inet", policy, rules).replace("prerouting", "input");
    let imported = nft(&listing.replacen("{\"chain\"", &format!("{objects}{{\"chain\""), 1));
    let notes = imported.notes.iter().map(|note| note.message.clone()).collect::<Vec<_>>().join("\n");
    (parsed(&imported), notes)
}

fn dropped(policy: &Policy) -> usize {
    policy.rules.iter().filter(|rule| rule.action == Action::Drop).count()
}

#[test]
fn what_a_listing_does_not_show_may_accept_packets() {
    let of = "\"family\": \"inet\", \"table\": \"t\"";
    let jump = "{\"jump\": {\"target\": \"services\"}}";
    let (policy, notes) = of_input("drop", "", &[jump]);
    assert_eq!(dropped(&policy), 0);
    assert!(
        notes.contains("rule 0 of inet t c (`jump services`) leaves its packets to the kernel"),
        "{notes}"
    );
    let listed = format!("{{\"chain\": {{{of}, \"name\": \"services\"}}}}, ");
    assert_eq!(dropped(&of_input("drop", &listed, &[jump]).0), 1, "a chain that is listed and empty");
    // Chains of a table that is not listed, as `nft list chain` prints them.
    let chain =
        ruleset("inet", "drop", &[]).replace("{\"table\": {\"family\": \"inet\", \"name\": \"t\"}}, ", "");
    let imported = nft(&chain);
    assert!(imported.notes[0].message.starts_with("table inet t is not listed"), "{:?}", imported.notes);
}

#[test]
fn chains_of_dormant_tables_are_left_out() {
    for flags in ["\"dormant\"", "[\"dormant\"]", "\"unheard\""] {
        let listing = ruleset("inet", "drop", &[])
            .replace("\"name\": \"t\"", &format!("\"name\": \"t\", \"flags\": {flags}"));
        let imported = nft(&listing);
        assert!(parsed(&imported).rules.is_empty(), "{}", imported.policy_toml);
        assert!(imported.notes[0].message.contains("is left out: its table is"), "{:?}", imported.notes);
    }
    let listing =
        ruleset("inet", "drop", &[]).replace("\"name\": \"t\"", "\"name\": \"t\", \"flags\": \"owner\"");
    assert_eq!(dropped(&parsed(&nft(&listing))), 1);
}

#[test]
fn elements_that_expire_are_noted_at_their_rule() {
    let of = "\"family\": \"inet\", \"table\": \"t\"";
    let set = |flags: &str| {
        format!(
            "{{\"set\": {{{of}, \"name\": \"s\", \"type\": \"ipv4_addr\", \"flags\": [{flags}], \"elem\": [{{\"elem\": {{\"val\": \"192.0.2.1\", \"timeout\": 60}}}}]}}}}, "
        )
    };
    let saddr = "{\"payload\": {\"protocol\": \"ip\", \"field\": \"saddr\"}}";
    let drops = tests(saddr, "==", "\"@s\"");
    let (policy, notes) = of_input("accept", &set("\"timeout\""), &[&drops]);
    assert_eq!(dropped(&policy), 1);
    assert!(
        notes.contains("rule 0 of inet t c (`ip saddr @s drop`) drops the elements that s has now"),
        "{notes}"
    );
    // Others may be accepted later, so neither a negation nor the policy of the chain drops them.
    let (policy, _) = of_input("accept", &set("\"timeout\""), &[&tests(saddr, "!=", "\"@s\"")]);
    assert_eq!(dropped(&policy), 0);
    let accepts = drops.replace("drop", "accept");
    let frame = ipv4([198, 51, 100, 1], [10, 0, 0, 1]).udp(1, 9).build();
    let (policy, _) = of_input("drop", &set("\"dynamic\""), &[&accepts]);
    assert_eq!(decided(&policy, &frame).1, Action::Kernel);
    let (policy, notes) = of_input("drop", &set("\"interval\""), &[&accepts]);
    assert_eq!(decided(&policy, &frame).1, Action::Drop, "{notes}");
}

#[test]
fn chains_are_read_in_the_order_of_the_kernel() {
    let chain = |name: &str, hook: &str, prio: i32, drops: &str| {
        let of = "\"family\": \"inet\", \"table\": \"t\"";
        format!(
            "{{\"chain\": {{{of}, \"name\": \"{name}\", \"type\": \"filter\", \"hook\": \"{hook}\", \"prio\": {prio}, \"policy\": \"accept\"}}}}, \
             {{\"rule\": {{{of}, \"chain\": \"{name}\", \"handle\": 1, \"expr\": [{drops}]}}}}"
        )
    };
    let port = |port: u16| {
        tests("{\"payload\": {\"protocol\": \"udp\", \"field\": \"dport\"}}", "==", &port.to_string())
    };
    let listing = format!(
        "{{\"nftables\": [{{\"table\": {{\"family\": \"inet\", \"name\": \"t\"}}}}, {}, {}, {}]}}",
        chain("last", "input", 0, &port(1)),
        chain("second", "prerouting", -150, &port(2)),
        chain("first", "prerouting", -300, &port(3)),
    );
    let names = |options: &NftOptions| -> Vec<String> {
        let imported = import::nft(&listing, options).expect("the format");
        parsed(&imported).rules.iter().map(|rule| rule.name.clone()).collect()
    };
    assert_eq!(names(&NftOptions::default()), ["first-1", "second-1", "last-1"]);
    let one = NftOptions { chain: Some("t/second".to_owned()), ..NftOptions::default() };
    assert_eq!(names(&one), ["second-1"]);
}

#[test]
fn documents_of_commands_are_read() {
    let listing: serde_json::Value = serde_json::from_str(LISTING).expect("JSON");
    let objects = listing["nftables"].as_array().expect("a list");
    let added: Vec<_> = objects.iter().map(|object| serde_json::json!({ "add": object })).collect();
    let flush = serde_json::json!({ "flush": { "ruleset": null } });
    let all = [&[flush][..], &added].concat();
    let commands = serde_json::json!({ "nftables": all });
    assert_eq!(nft(&commands.to_string()), nft(LISTING));
    for wrong in [
        "{\"nftables\": [{\"delete\": {\"table\": {}}}]}",
        "{\"nftables\": [7]}",
        "{\"a\": 1}",
        "",
        "[]",
        &LISTING[..LISTING.len() / 2],
    ] {
        import::nft(wrong, &NftOptions::default()).expect_err(wrong);
    }
}

/// A rule set from objects of JSON.
fn of_objects(objects: &[serde_json::Value], options: &NftOptions) -> (Policy, String) {
    let listing = serde_json::json!({ "nftables": objects }).to_string();
    let imported = import::nft(&listing, options).expect("the format");
    let notes = imported.notes.iter().map(|note| note.message.clone()).collect::<Vec<_>>().join("\n");
    (parsed(&imported), notes)
}

fn base_chain(name: &str, kind: &str, hook: &str, prio: i64, policy: &str) -> serde_json::Value {
    serde_json::json!({"chain": {
        "family": "inet", "table": "t", "name": name, "type": kind, "hook": hook, "prio": prio, "policy": policy,
    }})
}

fn rule_of(chain: &str, handle: usize, expr: &serde_json::Value) -> serde_json::Value {
    serde_json::json!({"rule": {"family": "inet", "table": "t", "chain": chain, "handle": handle, "expr": expr}})
}

fn equal(protocol: &str, field: &str, right: &serde_json::Value) -> serde_json::Value {
    let left = serde_json::json!({"payload": {"protocol": protocol, "field": field}});
    serde_json::json!({"match": {"op": "==", "left": left, "right": right}})
}

fn table_of(flags: &serde_json::Value) -> serde_json::Value {
    serde_json::json!({"table": {"family": "inet", "name": "t", "flags": flags}})
}

#[test]
fn sets_that_rules_fill_change_without_flags() {
    let saddr = serde_json::json!({"payload": {"protocol": "ip", "field": "saddr"}});
    let fill = serde_json::json!({"set": {"op": "add", "elem": saddr, "set": "@ok"}});
    let port = equal("udp", "dport", &7000.into());
    let accept = serde_json::json!({"accept": null});
    let set = serde_json::json!({"set": {"family": "inet", "table": "t", "name": "ok", "type": "ipv4_addr"}});
    let member = equal("ip", "saddr", &"@ok".into());
    let objects = |filling: serde_json::Value| {
        [
            table_of(&serde_json::json!([])),
            set.clone(),
            base_chain("c", "filter", "input", 0, "drop"),
            rule_of("c", 1, &filling),
            rule_of("c", 2, &serde_json::json!([member, accept])),
        ]
    };
    let frame = ipv4([198, 51, 100, 1], [10, 0, 0, 1]).udp(1, 9).build();
    let options = NftOptions::default();
    let (policy, notes) = of_objects(&objects(serde_json::json!([port, fill, accept])), &options);
    assert_eq!(decided(&policy, &frame).1, Action::Kernel, "{notes}");
    let (policy, notes) = of_objects(&objects(serde_json::json!([port, accept])), &options);
    assert_eq!(decided(&policy, &frame).1, Action::Drop, "{notes}");
}

#[test]
fn a_chosen_chain_drops_nothing_that_other_chains_let_pass() {
    let options = NftOptions { chain: Some("t/c".to_owned()), ..NftOptions::default() };
    let of = |flags: serde_json::Value, others: &[serde_json::Value]| {
        let own = [table_of(&flags), base_chain("c", "filter", "input", 0, "drop")];
        of_objects(&[&own[..], others].concat(), &options)
    };
    let (policy, notes) = of(serde_json::json!([]), &[]);
    assert_eq!(dropped(&policy), 1, "{notes}");
    let to = serde_json::json!([equal("tcp", "dport", &8022.into()), {"redirect": {"port": 2222}}]);
    let nat = [base_chain("n", "nat", "prerouting", -100, "accept"), rule_of("n", 1, &to)];
    let (policy, notes) = of(serde_json::json!([]), &nat);
    assert_eq!(dropped(&policy), 0, "{notes}");
    assert!(notes.contains("chain inet t n comes first and may translate addresses and ports"), "{notes}");
    let accept = serde_json::json!([{"accept": null}]);
    let forward = [base_chain("f", "filter", "forward", 0, "accept"), rule_of("f", 1, &accept)];
    assert_eq!(dropped(&of(serde_json::json!([]), &forward).0), 0, "a router");
    let (policy, notes) = of(serde_json::json!(["dormant"]), &[]);
    assert_eq!(dropped(&policy), 0, "{notes}");
    assert!(notes.contains("chain inet t c is left out: its table is dormant"), "{notes}");
}

#[test]
fn many_rules_that_skip_others_end() {
    let options = NftOptions::default();
    let drop = serde_json::json!([equal("udp", "dport", &9.into()), {"drop": null}]);
    // Each matches a part of the packets of the one before, so that the walk goes deeper with each.
    let port = |number: usize| {
        let left = serde_json::json!({"payload": {"protocol": "tcp", "field": "dport"}});
        serde_json::json!({"match": {"op": "<", "left": left, "right": 60_000 - number}})
    };
    let mut returns = vec![table_of(&serde_json::json!([])), base_chain("c", "filter", "input", 0, "drop")];
    for number in 0..12_000 {
        let name = format!("c{number}");
        returns.push(serde_json::json!({"chain": {"family": "inet", "table": "t", "name": name}}));
        returns.push(rule_of(&name, 1, &serde_json::json!([port(number), {"return": null}])));
        returns.push(rule_of("c", number, &serde_json::json!([{"jump": {"target": name}}])));
    }
    returns.push(rule_of("c", 12_000, &drop));
    let (_, notes) = of_objects(&returns, &options);
    assert!(notes.contains("too many rules skip others"), "{notes}");
    let mut accepts = vec![table_of(&serde_json::json!([]))];
    for number in 0..4000 {
        let name = format!("c{number}");
        accepts.push(base_chain(&name, "filter", "input", i64::try_from(number).expect("small"), "drop"));
        accepts.push(rule_of(&name, 1, &serde_json::json!([port(number), {"accept": null}])));
    }
    accepts.push(rule_of("c3999", 2, &drop));
    let (policy, notes) = of_objects(&accepts, &options);
    assert!(!policy.rules.is_empty(), "{notes}");
}

#[test]
fn mapped_addresses_are_left_out_of_sets() {
    let of = |elements: serde_json::Value, verdict: &str| {
        let set = serde_json::json!({"set": {
            "family": "inet", "table": "t", "name": "s", "type": "ipv6_addr", "elem": elements,
        }});
        let policy = if verdict == "accept" { "drop" } else { "accept" };
        let rule = serde_json::json!([equal("ip6", "saddr", &"@s".into()), {verdict: null}]);
        let base = base_chain("c", "filter", "input", 0, policy);
        of_objects(
            &[table_of(&serde_json::json!([])), set, base, rule_of("c", 1, &rule)],
            &NftOptions::default(),
        )
    };
    let frame = ipv6().udp(1, 9).build();
    let all = serde_json::json!({"prefix": {"addr": "::ffff:0:0", "len": 96}});
    let own = serde_json::json!({"prefix": {"addr": "2001:db8:2::", "len": 48}});
    let (policy, notes) = of(serde_json::json!([all, own]), "drop");
    assert_eq!(decided(&policy, &frame).1, Action::Drop, "{notes}");
    let (policy, notes) = of(serde_json::json!(["::ffff:192.0.2.1", "2001:db8:9::1"]), "accept");
    assert_eq!(decided(&policy, &frame).1, Action::Drop, "{notes}");
    let (policy, notes) = of(serde_json::json!(["::ffff:192.0.2.1", "2001:db8:2::5"]), "accept");
    assert_eq!(decided(&policy, &frame).1, Action::Kernel, "{notes}");
}

const SERVER: &str = include_str!("../listings/nft/server.json");
const ROUTER: &str = include_str!("../listings/nft/home-router.json");

fn imported(text: &str, options: &NftOptions) -> (Policy, String) {
    let imported = import::nft(text, options).expect("the format");
    let notes = imported.notes.iter().map(|note| note.message.clone()).collect::<Vec<_>>().join("\n");
    (parsed(&imported), notes)
}

#[test]
fn packets_of_no_connection_are_dropped_behind_replies() {
    let (policy, notes) = imported(SERVER, &NftOptions::default());
    let (from, to) = ([203, 0, 113, 9], [198, 18, 0, 1]);
    let of = |frame: FrameBuilder| decided(&policy, &frame.build()).1;
    for flags in [0x03, 0x00, 0x29] {
        let wanted = if flags == 0x29 { Action::Kernel } else { Action::Drop };
        assert_eq!(of(ipv4(from, to).tcp(1, 80, flags)), wanted, "flags {flags:#x}\n{notes}");
    }
    assert_eq!(of(ipv6().protocol(IpProtocol::ICMPV6).icmp(134, 0)), Action::Drop, "{notes}");
    // These may belong to a connection.
    assert_eq!(of(ipv4(from, to).tcp(1, 23, 2)), Action::Kernel, "{notes}");
    assert_eq!(of(ipv4(from, to).udp(53, 137)), Action::Kernel, "{notes}");
    assert_eq!(notes.matches("(hint: --syn-is-new)").count(), 1, "{notes}");
}

#[test]
fn connection_requests_are_dropped_on_demand() {
    let syn_is_new = NftOptions { is_syn_new: true, ..NftOptions::default() };
    let (policy, notes) = imported(SERVER, &syn_is_new);
    let (from, to) = ([203, 0, 113, 9], [198, 18, 0, 1]);
    let of = |frame: FrameBuilder| decided(&policy, &frame.build()).1;
    for (port, flags, wanted) in [
        (23, 0x02, Action::Drop),
        (23, 0xc2, Action::Drop),
        (23, 0x12, Action::Kernel),
        (23, 0x10, Action::Kernel),
        (23, 0x04, Action::Kernel),
        (80, 0x02, Action::Kernel),
        (22, 0x02, Action::Drop),
        (9999, 0x02, Action::Drop),
        (9999, 0x18, Action::Kernel),
    ] {
        let frame = ipv4(from, to).tcp(40_000, port, flags);
        assert_eq!(of(frame), wanted, "port {port}, flags {flags:#x}\n{notes}");
    }
    assert_eq!(of(ipv4([192, 0, 2, 5], to).tcp(40_000, 22, 2)), Action::Kernel, "an administrator");
    assert_eq!(of(ipv4(from, to).udp(53, 137)), Action::Kernel, "{notes}");
    // The rest of a request that the host would reassemble, and one behind an extension header.
    let rest = ipv4(from, to).protocol(IpProtocol::TCP).fragment(100, false);
    assert_eq!(of(rest), Action::Kernel, "{notes}");
    assert_eq!(of(ipv6().extension(IpProtocol::HOP_BY_HOP).tcp(1, 23, 2)), Action::Kernel, "{notes}");
    assert!(notes.contains("drop TCP connection requests alone (rule "), "{notes}");
    assert!(!notes.contains("hint: --syn-is-new"), "{notes}");
}

#[test]
fn helpers_and_untracked_packets_keep_requests() {
    let request = ipv4([203, 0, 113, 9], [198, 18, 0, 1]).tcp(40_000, 23, 2).build();
    let syn_is_new = NftOptions { is_syn_new: true, ..NftOptions::default() };
    let state = |states: serde_json::Value| {
        let left = serde_json::json!({"ct": {"key": "state"}});
        serde_json::json!({"match": {"op": "in", "left": left, "right": states}})
    };
    let of = |states: serde_json::Value, statement: serde_json::Value| {
        let objects = [
            table_of(&serde_json::json!([])),
            base_chain("c", "filter", "input", 0, "drop"),
            rule_of("c", 1, &serde_json::json!([state(states), {"accept": null}])),
            base_chain("raw", "filter", "output", -300, "accept"),
            rule_of("raw", 1, &serde_json::json!([statement])),
        ];
        decided(&of_objects(&objects, &syn_is_new).0, &request).1
    };
    let replies = || serde_json::json!(["established", "related"]);
    let other = || serde_json::json!({"counter": null});
    let helper = || serde_json::json!({"ct helper": "ftp"});
    assert_eq!(of(replies(), other()), Action::Drop);
    // A helper expects connections, whose requests are related.
    assert_eq!(of(replies(), helper()), Action::Kernel);
    assert_eq!(of("established".into(), helper()), Action::Drop);
    let untracked = || serde_json::json!(["established", "untracked"]);
    assert_eq!(of(untracked(), other()), Action::Drop);
    assert_eq!(of(untracked(), serde_json::json!({"notrack": null})), Action::Kernel);
    assert_eq!(of(serde_json::json!(["established", "new"]), other()), Action::Kernel);
    // The address of an expected connection may be translated without a rule.
    let status = |statement: serde_json::Value| {
        let left = serde_json::json!({"ct": {"key": "status"}});
        let dnat = serde_json::json!({"match": {"op": "in", "left": left, "right": "dnat"}});
        let objects = [
            table_of(&serde_json::json!([])),
            base_chain("c", "filter", "input", 0, "drop"),
            rule_of("c", 1, &serde_json::json!([dnat, {"accept": null}])),
            base_chain("raw", "filter", "output", -300, "accept"),
            rule_of("raw", 1, &serde_json::json!([statement])),
        ];
        decided(&of_objects(&objects, &syn_is_new).0, &request).1
    };
    assert_eq!(status(other()), Action::Drop);
    assert_eq!(status(helper()), Action::Kernel);
    // A target of iptables that may do both.
    assert_eq!(status(serde_json::json!({"xt": {"type": "target", "name": "CT"}})), Action::Kernel);
}

#[test]
fn a_zone_makes_packets_new() {
    let zone = serde_json::json!({"mangle": {"key": {"ct": {"key": "zone"}}, "value": 1}});
    let left = serde_json::json!({"ct": {"key": "state"}});
    let new = serde_json::json!({"match": {"op": "in", "left": left, "right": "new"}});
    let flags = serde_json::json!({"|": ["fin", "syn"]});
    let scan = ipv4([203, 0, 113, 9], [198, 18, 0, 1]).tcp(40_000, 23, 3).build();
    let of = |statement: serde_json::Value| {
        let objects = [
            table_of(&serde_json::json!([])),
            base_chain("raw", "filter", "prerouting", -300, "accept"),
            rule_of("raw", 1, &serde_json::json!([statement])),
            rule_of("raw", 2, &serde_json::json!([new, {"accept": null}])),
            rule_of("raw", 3, &serde_json::json!([equal("tcp", "flags", &flags), {"drop": null}])),
        ];
        decided(&of_objects(&objects, &NftOptions::default()).0, &scan).1
    };
    assert_eq!(of(serde_json::json!({"counter": null})), Action::Drop);
    assert_eq!(of(zone), Action::Kernel);
}

#[test]
fn a_router_drops_requests_to_its_own_addresses() {
    let own = [198, 51, 100, 1];
    let interface = Some("wan0".to_owned());
    let syn_is_new = NftOptions { interface, is_syn_new: true, ..NftOptions::default() };
    let (policy, notes) = imported(ROUTER, &syn_is_new);
    assert_eq!(dropped(&policy), 0, "packets to any address may be forwarded\n{notes}");
    assert!(notes.contains("(hint: --address ADDRESS)"), "{notes}");
    let (policy, notes) = imported(ROUTER, &NftOptions { addresses: vec![own.into()], ..syn_is_new });
    let from = [203, 0, 113, 9];
    let of = |frame: FrameBuilder| decided(&policy, &frame.build()).1;
    assert_eq!(of(ipv4(from, own).tcp(40_000, 7547, 2)), Action::Drop, "{notes}");
    assert_eq!(of(ipv4(from, own).tcp(40_000, 81, 2)), Action::Drop, "{notes}");
    for kept in [
        // Replies to connections whose addresses are translated.
        ipv4(from, own).tcp(443, 40_000, 0x12),
        ipv4(from, own).udp(53, 40_000),
        ipv4(from, own).tcp(40_000, 22, 2),
        ipv4(from, own).tcp(40_000, 8080, 2),
        ipv4(from, [10, 0, 0, 80]).tcp(40_000, 81, 2),
        ipv6().tcp(40_000, 81, 2),
    ] {
        assert_eq!(of(kept), Action::Kernel, "{notes}");
    }
}

#[test]
fn translations_keep_all_packets_of_connections() {
    let flags = serde_json::json!({"payload": {"protocol": "tcp", "field": "flags"}});
    let syn = serde_json::json!({"match": {"op": "==", "left": flags, "right": "syn"}});
    let to = serde_json::json!([equal("tcp", "dport", &8022.into()), syn, {"redirect": {"port": 2222}}]);
    let objects = [
        table_of(&serde_json::json!([])),
        base_chain("n", "nat", "prerouting", -100, "accept"),
        rule_of("n", 1, &to),
        base_chain("c", "filter", "input", 0, "drop"),
    ];
    let (policy, notes) = of_objects(&objects, &NftOptions::default());
    for flags in [0x02, 0x10] {
        let frame = ipv4([203, 0, 113, 9], [198, 18, 0, 1]).tcp(40_000, 8022, flags).build();
        assert_eq!(decided(&policy, &frame).1, Action::Kernel, "{flags:#x}: {notes}");
    }
}

#[test]
fn translations_do_not_depend_on_the_mac_address() {
    let mac = equal("ether", "saddr", &"02:00:00:00:00:66".into());
    let to = serde_json::json!([equal("tcp", "dport", &8022.into()), mac, {"redirect": {"port": 2222}}]);
    let objects = [
        table_of(&serde_json::json!([])),
        base_chain("n", "nat", "prerouting", -100, "accept"),
        rule_of("n", 1, &to),
        base_chain("c", "filter", "input", 0, "accept"),
        rule_of("c", 2, &serde_json::json!([equal("tcp", "flags", &"syn".into()), {"drop": null}])),
    ];
    let options = NftOptions { is_syn_new: true, ..NftOptions::default() };
    let (policy, notes) = of_objects(&objects, &options);
    // Another router sends this packet of the connection.
    let frame = ipv4([203, 0, 113, 9], [198, 18, 0, 1]).tcp(40_000, 8022, 2).build();
    assert_eq!(decided(&policy, &frame).1, Action::Kernel, "{notes}");
}

#[test]
fn forwarded_packets_are_translated_at_all_priorities() {
    let masquerade = serde_json::json!([{"masquerade": null}]);
    let to = equal("ip", "daddr", &"198.18.0.1".into());
    let of = |priority: i64| {
        let objects = [
            table_of(&serde_json::json!([])),
            base_chain("n", "nat", "postrouting", 100, "accept"),
            rule_of("n", 1, &masquerade),
            base_chain("f", "filter", "forward", priority, "accept"),
            rule_of("f", 2, &serde_json::json!([to, {"drop": null}])),
        ];
        let options = NftOptions { chain: Some("t/f".to_owned()), ..NftOptions::default() };
        dropped(&of_objects(&objects, &options).0)
    };
    assert_eq!([0, -150].map(of), [0, 0]);
}

#[test]
fn mapped_addresses_of_the_host_are_ipv4() {
    let objects = [table_of(&serde_json::json!([])), base_chain("c", "filter", "input", 0, "drop")];
    let frame = ipv4([203, 0, 113, 9], [198, 18, 0, 1]).udp(1, 9).build();
    for own in ["198.18.0.1", "::ffff:198.18.0.1"] {
        let addresses = vec![own.parse().expect("an address")];
        let options = NftOptions { addresses, ..NftOptions::default() };
        let (policy, notes) = of_objects(&objects, &options);
        assert_eq!(decided(&policy, &frame).1, Action::Drop, "{own}: {notes}");
    }
}

#[test]
fn a_rule_for_two_families_is_noted_once() {
    let addresses = ["198.18.0.1", "2001:db8::7"].map(|own| own.parse().expect("an address"));
    let options = NftOptions { is_syn_new: true, addresses: addresses.to_vec(), ..NftOptions::default() };
    let (_, notes) = imported(SERVER, &options);
    assert_eq!(notes.matches("the policy of chain").count(), 1, "{notes}");
}

#[test]
fn an_error_is_in_the_line_of_its_document() {
    let text = format!("{}\n\n{{\"a\": 1}}", ruleset("ip", "drop", &[]));
    let wrong = import::nft(&text, &NftOptions::default()).expect_err("no rule set");
    assert_eq!(wrong.line, 3, "{wrong}");
    let wrong = import::nft("{\"a\": 1}", &NftOptions::default()).expect_err("no rule set");
    assert_eq!(wrong.line, 0, "{wrong}");
}

#[test]
fn addresses_of_the_host_are_local() {
    let fib = serde_json::json!({"fib": {"result": "type", "flags": "daddr"}});
    let local = serde_json::json!({"match": {"op": "==", "left": fib, "right": "local"}});
    let objects = [
        table_of(&serde_json::json!([])),
        base_chain("c", "filter", "input", 0, "drop"),
        rule_of("c", 1, &serde_json::json!([{"jump": {"target": "others"}}])),
        serde_json::json!({"chain": {"family": "inet", "table": "t", "name": "others"}}),
        rule_of("others", 2, &serde_json::json!([local, {"return": null}])),
        rule_of("others", 3, &serde_json::json!([{"accept": null}])),
    ];
    let own = vec![IpAddr::from([198, 18, 0, 1])];
    let options = NftOptions { addresses: own, ..NftOptions::default() };
    let frame = ipv4([203, 0, 113, 9], [198, 18, 0, 1]).udp(1, 9).build();
    let (policy, notes) = of_objects(&objects, &options);
    assert_eq!(decided(&policy, &frame).1, Action::Drop, "{notes}");
    let (policy, notes) = of_objects(&objects, &NftOptions::default());
    assert_eq!(decided(&policy, &frame).1, Action::Kernel, "{notes}");
}

#[test]
fn a_wrong_name_of_a_chain_is_in_no_line() {
    let options = NftOptions { chain: Some("t/none".to_owned()), ..NftOptions::default() };
    let wrong = import::nft(&ruleset("ip", "drop", &[]), &options).expect_err("no such chain");
    assert!(wrong.to_string().starts_with("--chain t/none: not the name of one base chain"), "{wrong}");
}

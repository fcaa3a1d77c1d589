//! `[[tests]]` as the language defines them: names, packets, files and their places.

use std::collections::BTreeMap;
use std::path::Path;

use policy::policy_test::{CountedPackets, TestedPackets};
use policy::{LoadOptions, Policy, Source};

fn parsed(text: &str, files: &[(&str, &str)]) -> Policy {
    let files: BTreeMap<String, String> =
        files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    let source = Source::new("main.toml", format!("version = 1\n{text}"));
    let parsed = policy::parse_with(&source, &files, &LoadOptions::default());
    let (policy, warnings) = parsed.unwrap_or_else(|problems| panic!("{problems}\n{text}"));
    assert!(warnings.is_empty(), "{warnings:?}");
    policy
}

const RULES: &str = "[groups.g]\nworkers = [0]\n[[rules]]\nname = 'dns'\n\
     match = { protocol = 'udp', dst_port = 53 }\naction = 'steer g'\n";

#[test]
fn tests_of_included_files_come_first_and_their_captures_are_relative_to_them() {
    let part = "version = 1\n[[tests]]\nname = 'part'\ncapture = 'x.pcap'\ncounts = { rules = { dns = 2 }, drop = 0 }\n";
    let text = format!(
        "includes = ['parts/a.toml']\n{RULES}[[tests]]\npacket = 'protocol=udp,dst_port=53'\nrule = 'dns'\n"
    );
    let policy = parsed(&text, &[("parts/a.toml", part)]);
    let [first, second] = &policy.tests[..] else { panic!("{:?}", policy.tests) };
    assert_eq!(
        (first.name.as_deref(), first.place.file(), first.place.line()),
        (Some("part"), "parts/a.toml", 4)
    );
    assert!(matches!(&first.packets, TestedPackets::Capture(file) if file == Path::new("parts/x.pcap")));
    let [of_rule, dropped] = &first.counts[..] else { panic!("{:?}", first.counts) };
    assert!(
        matches!(&of_rule.counted, CountedPackets::Rule(rule) if rule.name == "dns") && of_rule.packets == 2
    );
    assert_eq!(dropped.packets, 0);
    assert!(matches!(&second.packets, TestedPackets::Packet(key) if key.outer.dst_port == 53));
    assert!(second.name.is_none() && !second.expected.is_empty());
}

/// A set that only a test names is used.
#[test]
fn sets_and_variables_are_those_of_the_policy() {
    let text = format!(
        "variables = {{ port = 53 }}\n[sets]\nservers = ['192.0.2.0/24']\n{RULES}[[tests]]\nevery = {{ dst = 'servers', protocol = 'udp', dst_port = '${{port}}' }}\nrule = 'dns'\n"
    );
    let policy = parsed(&text, &[]);
    let TestedPackets::Every(matches) = &policy.tests[0].packets else { panic!("a set") };
    assert!(matches.dst.is_some());
}

/// A rule that becomes several is one rule for tests.
#[test]
fn a_rule_behind_extension_headers_has_one_name() {
    let text = format!(
        "ipv6_extensions = 'skip'\n{RULES}[[tests]]\npacket = 'protocol=udp,dst_port=53'\nrule = 'dns'\n"
    );
    let policy = parsed(&text, &[]);
    let rule = policy.tests[0].expected.rule.as_ref().expect("a rule");
    assert_eq!(rule.value.name, "dns");
    assert_eq!(rule.value.rules, policy.rules.iter().map(|rule| rule.name.clone()).collect::<Vec<_>>());
    assert!(rule.value.rules.len() > 1);
}

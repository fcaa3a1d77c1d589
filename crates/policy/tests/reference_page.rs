//! The language's reference page is true: every TOML block of it compiles, every key of the language is in
//! one of them, and it says which rules are hybrid.

use std::collections::{BTreeMap, BTreeSet};

use policy::{DeviceProfile, Placement, Program, Source};

const PAGE: &str = include_str!("../../../docs/policy.md");

const KEYS: [&str; 36] = [
    "version",
    "default",
    "sets",
    "groups",
    "rules",
    "file",
    "workers",
    "weights",
    "hash",
    "symmetric",
    "key",
    "table_size",
    "name",
    "match",
    "action",
    "count",
    "steer",
    "any",
    "src_mac",
    "dst_mac",
    "ethertype",
    "vlan",
    "vlan_priority",
    "vlan_tpid",
    "inner_vlan",
    "inner_vlan_tpid",
    "family",
    "src",
    "dst",
    "protocol",
    "tos",
    "dscp",
    "src_port",
    "dst_port",
    "fragment",
    "tcp_flags",
];

fn blocks() -> Vec<&'static str> {
    PAGE.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default()).collect()
}

fn compiled(block: &str) -> Program {
    let files = BTreeMap::from([("bogons.txt".to_owned(), "240.0.0.0/4 # reserved\n".to_owned())]);
    let (policy, warnings) = policy::parse(&Source::new("docs/policy.md", block), &files)
        .unwrap_or_else(|problems| panic!("{problems}\n{block}"));
    assert!(warnings.is_empty(), "{warnings:?}");
    policy::compile(&policy, &DeviceProfile::ideal(), 2).unwrap_or_else(|problems| panic!("{problems}"))
}

#[test]
fn every_block_compiles() {
    assert_eq!(blocks().len(), 3);
    for block in blocks() {
        assert!(!compiled(block).flows.is_empty());
    }
}

#[test]
fn every_key_has_an_example() {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words: BTreeSet<&str> = blocks().iter().flat_map(|block| block.split(|c| !is_word(c))).collect();
    let missing: Vec<_> = KEYS.iter().chain(&["ip_options"]).filter(|key| !words.contains(*key)).collect();
    assert!(missing.is_empty(), "no example of {missing:?}");
}

#[test]
fn hybrid_rules_are_those_that_the_page_says() {
    let program = compiled(blocks()[2]);
    let first = program.rules.iter().position(|rule| rule.name == "stacked").expect("the page has it");
    let own_keys = |placement: &Placement| match placement {
        Placement::Hardware => false,
        Placement::Hybrid { reason } => !reason.starts_with("earlier"),
    };
    let hybrid: Vec<&str> = program
        .rules
        .iter()
        .filter(|rule| own_keys(&rule.placement))
        .map(|rule| rule.name.as_str())
        .collect();
    assert_eq!(hybrid, ["stacked", "untagged", "pieces", "connections"]);
    assert!(program.rules[..first].iter().all(|rule| rule.placement == Placement::Hardware));
}

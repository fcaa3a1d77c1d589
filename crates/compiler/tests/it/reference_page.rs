//! The reference pages of the language are correct: every TOML block of them compiles, every key of the
//! language has a row in a table and is in an example, and the limits are those of the code.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use device_model::DeviceModel;
use policy::{LoadOptions, Source};
use program::{Placement, Program};
use serde_json::Value;

const PAGE: &str = test_support::POLICY_PAGES;

const COMMON: &str =
    "version = 1\n[sets]\nshared_servers = [\"192.0.2.0/24\"]\n[groups.common]\nworkers = \"all\"\n";

fn blocks() -> Vec<&'static str> {
    PAGE.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default()).collect()
}

fn compiled(block: &str) -> Program {
    let files = BTreeMap::from([
        ("bogons.txt".to_owned(), "240.0.0.0/4 # reserved\n".to_owned()),
        ("common.toml".to_owned(), COMMON.to_owned()),
    ]);
    let source = Source::new("docs/reference/policy.md", block);
    let (policy, warnings) = policy::parse_with(&source, &files, &LoadOptions::default())
        .unwrap_or_else(|problems| panic!("{problems}\n{block}"));
    assert!(warnings.is_empty(), "{warnings:?}\n{block}");
    let workers = if policy.carves_queues() { 8 } else { 2 };
    compiler::compile(&policy, &DeviceModel::ideal(), workers)
        .unwrap_or_else(|problems| panic!("{problems}\n{block}"))
}

#[test]
fn every_page_is_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/policy");
    for page in std::fs::read_dir(folder).expect("the pages are there") {
        let path = page.expect("the folder can be read").path();
        let text = std::fs::read_to_string(&path).expect("a page is text");
        assert!(PAGE.contains(&text), "POLICY_PAGES lacks {}", path.display());
    }
}

#[test]
fn every_block_compiles() {
    assert!(blocks().len() >= 10);
    for block in blocks() {
        assert!(!compiled(block).flows.is_empty(), "{block}");
    }
}

/// Every key of every table of the schema.
fn keys() -> BTreeSet<String> {
    let schema = policy::schema();
    let mut keys = BTreeSet::new();
    collect(&schema, &mut keys);
    assert!(keys.len() > 50, "{keys:?}");
    keys
}

fn collect(value: &Value, keys: &mut BTreeSet<String>) {
    match value {
        Value::Object(words) => {
            if let Some(Value::Object(properties)) = words.get("properties") {
                keys.extend(properties.keys().cloned());
            }
            words.values().for_each(|value| collect(value, keys));
        }
        Value::Array(items) => items.iter().for_each(|value| collect(value, keys)),
        _ => {}
    }
}

#[test]
fn every_key_has_an_example() {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words: BTreeSet<&str> = blocks().iter().flat_map(|block| block.split(|c| !is_word(c))).collect();
    let missing: Vec<_> = keys().into_iter().filter(|key| !words.contains(key.as_str())).collect();
    assert!(missing.is_empty(), "no example of {missing:?}");
}

/// The keys in the first column of the tables headed `| Key |`.
fn rows() -> BTreeSet<String> {
    let mut rows = BTreeSet::new();
    let mut in_table = false;
    for line in PAGE.lines() {
        in_table = line.starts_with("| Key |") || in_table && line.starts_with('|');
        if in_table && let Some(first) = line.split('|').nth(1) {
            rows.extend(first.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    rows
}

#[test]
fn every_key_has_a_row_and_every_row_a_key() {
    // Told in the table of actions, which has no column of keys.
    let actions = ["steer", "copy", "sniff"].map(str::to_owned);
    assert!(actions.iter().all(|action| PAGE.contains(&format!("`{{ {action} = \"GROUP\" }}`"))));
    let mut rows = rows();
    rows.extend(actions);
    assert_eq!(rows, keys());
}

#[test]
fn the_limits_are_the_programs() {
    use policy::policy::{MAX_GROUPS, MAX_PROTECTED_MATCHES, MAX_SET_VALUES, MAX_TESTS, MAX_TOTAL_VALUES};
    use program::MAX_RULES;
    let limits = [
        ("rules", MAX_RULES as u64),
        ("groups", MAX_GROUPS as u64),
        ("tests", MAX_TESTS as u64),
        ("`matches` of one `[protect]`", MAX_PROTECTED_MATCHES as u64),
        ("values of one key, or of one set", MAX_SET_VALUES as u64),
        ("values of all rules, sets counted wherever they are named", MAX_TOTAL_VALUES as u64),
        ("bytes of one file", policy::MAX_FILE_BYTES),
        ("bytes of all files of a policy, sets included", policy::MAX_TOTAL_BYTES),
        ("files of a policy, sets not counted", policy::MAX_INCLUDED_FILES as u64),
        ("depth of includes", policy::MAX_INCLUDE_DEPTH as u64),
        ("bytes that variables put in place", policy::MAX_SUBSTITUTED_BYTES as u64),
        ("problems listed", policy::MAX_DIAGNOSTICS as u64),
    ];
    for (what, limit) in limits {
        let digits = limit.to_string();
        let groups: Vec<&str> = digits
            .as_bytes()
            .rchunks(3)
            .rev()
            .map(|group| std::str::from_utf8(group).expect("digits"))
            .collect();
        let row = format!("| {what} | {} |", groups.join(","));
        assert!(PAGE.contains(&row), "the page does not say `{row}`");
    }
}

#[test]
fn rules_that_no_device_decides_are_hybrid() {
    let placement = |name: &str| {
        let programs = blocks().into_iter().map(compiled);
        let rule = programs.flat_map(|program| program.rules).find(|rule| rule.name == name);
        rule.unwrap_or_else(|| panic!("the page has no rule `{name}`")).placement
    };
    for name in ["untagged", "stacked", "pieces", "connections"] {
        assert!(matches!(placement(name), Placement::Hybrid { .. }), "{name}: {:?}", placement(name));
    }
    for name in ["dns", "guests", "link", "tag", "network", "transport", "uplink"] {
        assert_eq!(placement(name), Placement::Hardware, "{name}");
    }
}

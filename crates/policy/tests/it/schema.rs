//! The JSON Schema and the parser agree: they have the same keys, and the schema accepts what the parser
//! accepts.

mod json_schema;

use std::collections::{BTreeMap, BTreeSet};

use json_schema::violations;
use policy::{Diagnostics, Source};
use serde_json::{Value, json};

fn properties(of: &Value) -> BTreeSet<String> {
    of["properties"].as_object().expect("a table has properties").keys().cloned().collect()
}

fn definition(name: &str) -> BTreeSet<String> {
    properties(&policy::schema()["$defs"][name])
}

fn parse(text: &str) -> Result<(), Diagnostics> {
    let files = BTreeMap::from([("x.txt".to_owned(), "1\n".to_owned())]);
    policy::parse(&Source::new("schema.toml", text), &files).map(|_| ())
}

/// No key accepts a date, so every key that is read reports an error.
const WRONG: &str = "1979-05-27";

/// The message that a key brings about where it has a wrong value.
fn error_of(text: &str) -> String {
    parse(text).expect_err(text).to_string()
}

#[test]
fn every_key_of_the_schema_is_read() {
    let rule = |matches: &str| {
        format!("version = 1\n[[rules]]\nname = \"x\"\nmatch = {{ {matches} }}\naction = \"drop\"\n")
    };
    for key in definition("match") {
        let message = error_of(&rule(&format!("{key} = {WRONG}")));
        assert!(
            !message.contains("unknown key") && message.contains(&format!("`{key}`")),
            "{key}: {message}"
        );
    }
    for key in definition("inner_match") {
        let message = error_of(&rule(&format!("inner = {{ {key} = {WRONG} }}")));
        assert!(message.contains(&format!("`{key}`")) && !message.contains("outer"), "{key}: {message}");
    }
    for key in definition("mpls_entry") {
        let message = error_of(&rule(&format!("mpls = {{ {key} = {WRONG} }}")));
        assert!(message.contains(&format!("`{key}`")) && !message.contains("unknown"), "{key}: {message}");
    }
    for key in definition("rule") {
        let message = error_of(&format!("version = 1\n[[rules]]\n{key} = {WRONG}\n"));
        assert!(!message.contains("unknown key"), "{key}: {message}");
        assert!(message.contains(&format!("3:{}: ", key.len() + 4)), "{key} is not looked at: {message}");
    }
    for key in definition("test") {
        let message = error_of(&format!("version = 1\n[[tests]]\n{key} = {WRONG}\n"));
        let is_read = !message.contains("unknown key") && message.contains(&format!("3:{}: ", key.len() + 4));
        assert!(is_read, "{key} is not looked at: {message}");
    }
    for key in definition("counts") {
        let message = error_of(&format!("version = 1\n[[tests]]\ncapture = \"x\"\ncounts.{key} = {WRONG}\n"));
        let is_read = !message.contains("unknown key") && message.contains("4:");
        assert!(is_read, "{key} is not looked at: {message}");
    }
    for key in definition("group") {
        let message = error_of(
            &format!("version = 1\n[groups.g]\nworkers = [0]\n{key} = {WRONG}\n")
                .replace(if key == "workers" { "workers = [0]\n" } else { "\0" }, ""),
        );
        assert!(
            !message.contains("unknown key") && message.contains(&format!("`{key}`")),
            "{key}: {message}"
        );
    }
    for (kind, keys) in sink_kinds() {
        for key in keys.iter().filter(|key| *key != "kind") {
            let others: String = keys
                .iter()
                .filter(|other| *other != "kind" && *other != key)
                .map(|other| some(&kind, other))
                .collect();
            let message =
                error_of(&format!("version = 1\n[sinks.s]\nkind = \"{kind}\"\n{others}{key} = {WRONG}\n"));
            let is_read = !message.contains("unknown key") && message.contains(&format!("`{key}`"));
            assert!(is_read, "{kind}.{key}: {message}");
        }
    }
    for key in properties(&policy::schema()) {
        let version = if key == "version" { "" } else { "version = 1\n" };
        let message = error_of(&format!("{version}{key} = {WRONG}\n"));
        assert!(!message.contains("unknown key") && message.contains("error"), "{key}: {message}");
    }
}

/// The kinds of sinks with their keys.
fn sink_kinds() -> Vec<(String, BTreeSet<String>)> {
    let schema = policy::schema();
    let kinds = schema["$defs"]["sink"]["anyOf"].as_array().expect("a table for each kind");
    let kind = |of: &Value| of["properties"]["kind"]["const"].as_str().expect("a word").to_owned();
    kinds.iter().map(|of| (kind(of), properties(of))).collect()
}

/// A value that a key of a sink accepts.
fn some(kind: &str, key: &str) -> String {
    let value = match key {
        "port" | "top_flows" | "clients" | "rings" | "client_mib" => "1",
        "ring_size" => "1024",
        "export" => "\"ipfix://192.0.2.7:4739\"",
        "flows" => "64",
        "active_seconds" | "idle_seconds" | "template_seconds" | "observation_domain" => "1",
        "uids" | "gids" => "[1000]",
        "mode" if kind == "forward" => "\"forward\"",
        "mode" => "\"share\"",
        "mac" if kind == "forward" => "\"swap\"",
        "vlan" => "{ pop = true }",
        "socket" => "\"/run/x.sock\"",
        "socket_mode" => "\"0660\"",
        "snap_bytes" | "one_in" | "first_of_flow" | "file_mb" | "file_seconds" => "1",
        "disk_mb" => "2",
        "ring_bytes" => "131072",
        "mtu" => "1500",
        "transmit" => "true",
        "mac" | "src_mac" | "dst_mac" => "\"02:00:00:00:00:01\"",
        _ => "\"x\"",
    };
    format!("{key} = {value}\n")
}

#[test]
fn the_schema_and_the_parser_have_the_same_keys_in_tunnels() {
    let inner = definition("inner_match");
    for key in definition("match").difference(&inner) {
        let text = format!(
            "version = 1\n[[rules]]\nname = \"x\"\nmatch = {{ inner = {{ {key} = 1 }} }}\naction = \"drop\"\n"
        );
        let message = error_of(&text);
        assert!(message.contains(&format!("`{key}` is a field of the outer packet")), "{key}: {message}");
    }
}

#[test]
fn every_key_of_the_parser_is_in_the_schema() {
    // For an unknown key the parser lists the known ones.
    let listed = |text: &str, of: &str| -> BTreeSet<String> {
        let message = error_of(text);
        let marker = format!("(the keys of {of} are ");
        let start = message.find(&marker).unwrap_or_else(|| panic!("{message}")) + marker.len();
        let end = start + message[start..].find(')').expect("the list ends");
        message[start..end].split(", ").map(str::to_owned).collect()
    };
    let unknown = "zzzzzzzzzzzzzzzzzzzzzzzz = 1";
    assert_eq!(listed(&format!("{unknown}\n"), "a policy"), properties(&policy::schema()));
    assert_eq!(listed(&format!("[[rules]]\n{unknown}\n"), "a rule"), definition("rule"));
    assert_eq!(listed(&format!("[groups.g]\n{unknown}\n"), "a group"), definition("group"));
    assert_eq!(listed(&format!("[[tests]]\n{unknown}\n"), "a test"), definition("test"));
    assert_eq!(listed(&format!("[[tests]]\ncounts = {{ {unknown} }}\n"), "`counts`"), definition("counts"));
    for (kind, mut keys) in sink_kinds() {
        let text = format!("[sinks.s]\nkind = \"{kind}\"\n{unknown}\n");
        keys.insert("kind".to_owned());
        assert_eq!(listed(&text, &format!("a sink of kind `{kind}`")), keys);
    }
    let matches = format!("[[rules]]\nmatch = {{ {unknown} }}\n");
    assert_eq!(listed(&matches, "a match"), definition("match"));
    let label = format!("[[rules]]\nmatch = {{ mpls = {{ {unknown} }} }}\n");
    assert_eq!(listed(&label, "a label"), definition("mpls_entry"));
}

fn json_of(text: &str) -> Value {
    let table: toml::Table = toml::from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    serde_json::to_value(table).expect("TOML without dates is JSON")
}

#[test]
fn the_schema_accepts_what_the_parser_accepts() {
    let schema = policy::schema();
    let pages = test_support::POLICY_PAGES;
    let blocks = pages.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default());
    let files = [
        include_str!("../policies/service.toml"),
        include_str!("../policies/hybrid.toml"),
        include_str!("../policies/link.toml"),
    ];
    for text in blocks.chain(files) {
        assert_eq!(violations(&schema, &json_of(text)), [""; 0], "{text}");
    }
}

#[test]
fn the_schema_accepts_variables() {
    let text = "version = 1\n[variables]\ncount = 1\nusers = [1000]\nyes = true\n\
        [groups.g]\nworkers = [0]\nweights = { 0 = '${count}' }\n\
        [groups.h]\nworkers = ['${count}']\n\
        [sinks.s]\nkind = 'app'\nsocket = '/run/x.sock'\nuids = '${users}'\n\
        [[rules]]\nname = 'x'\nmatch = { any = '${yes}' }\naction = 'drop'\n";
    assert_eq!(violations(&policy::schema(), &json_of(text)), [""; 0]);
    parse(text).expect("the parser accepts it, too");
}

#[test]
fn the_parser_refuses_what_the_schema_refuses() {
    let schema = policy::schema();
    for text in [
        "version = 2",
        "rules = []",
        "version = 1\ndeafult = \"drop\"",
        "version = 1\n[sets]\ns = []",
        "version = 1\n[sets]\ns = { min_items = 1 }",
        "version = 1\n[sets]\ns = { file = \"x.txt\", items = [1] }",
        "version = 1\n[sets]\ns = { file = \"x.txt\", min_items = 0 }",
        "version = 1\n[groups.g]\nworkers = []",
        "version = 1\n[groups.g]\ntable_size = 0",
        "version = 1\n[[rules]]\nname = \"x\"\nmatch = {}\naction = \"drop\"",
        "version = 1\n[[rules]]\nname = \"x\"\nmatch = { dst_port = 65536 }\naction = \"drop\"",
        "version = 1\n[[rules]]\nname = \"x\"\nmatch = { dst_port = [] }\naction = \"drop\"",
        "version = 1\n[[rules]]\nname = \"x\"\nmatch = { any = true }\naction = { steer = \"g\", copy = \"g\" }",
        "version = 1\n[[rules]]\nname = \"x\"\nmatch = { any = true }\naction = \"drop\"\npriority = 99999",
        "version = 1\n[[rules]]\nname = \"x\"\nmatch = { inner = { esp_spi = 1 } }\naction = \"drop\"",
    ] {
        assert!(!violations(&schema, &json_of(text)).is_empty(), "the schema takes {text}");
        assert!(parse(text).is_err(), "the parser takes {text}");
    }
}

/// The judge of the tests above is right about the words that the schema uses.
#[test]
fn the_validator_implements_the_keywords_of_the_schema() {
    let schema = json!({
        "type": "object", "required": ["a"], "additionalProperties": false, "minProperties": 1,
        "properties": { "a": { "anyOf": [{ "enum": [1, "x"] }, { "$ref": "#/$defs/list" }] }, "b": { "const": true } },
        "$defs": { "list": { "type": "array", "minItems": 1, "items": { "type": "integer", "minimum": 2, "maximum": 3 } } },
    });
    for (value, is_right) in [
        (json!({ "a": 1 }), true),
        (json!({ "a": "x", "b": true }), true),
        (json!({ "a": [2, 3] }), true),
        (json!({ "a": [] }), false),
        (json!({ "a": [4] }), false),
        (json!({ "a": 2 }), false),
        (json!({ "b": true }), false),
        (json!({ "a": 1, "b": false }), false),
        (json!({ "a": 1, "c": 1 }), false),
        (json!([]), false),
    ] {
        assert_eq!(violations(&schema, &value).is_empty(), is_right, "{value}");
    }
}

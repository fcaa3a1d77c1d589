//! The language as a JSON Schema, for editors and for programs that write policies, generated from the
//! parser's table of keys. It describes keys and types; the contents of strings (addresses, names of sets)
//! are checked by the parser only.

use program::{LimitUnit, RUNTIME_RULES_MAX};
use serde_json::{Map, Value, json};

use crate::keys::{self, Key, Values};
use crate::policy::{MAX_LABEL, MAX_WEIGHT, MAX_WORKER};

/// The schema of a policy file, JSON Schema draft 2020-12.
///
/// TOML and JSON have the same tables, lists, strings, numbers and booleans, so editors can apply it to TOML
/// directly.
#[must_use]
pub fn schema() -> Value {
    let mut schema = object(keys::POLICY);
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("A steerd policy, version 1");
    schema["$defs"] = definitions();
    for (name, keys) in TABLES {
        schema["$defs"][name] = object(keys);
    }
    schema
}

/// The tables of fixed keys that keys refer to by name.
const TABLES: [(&str, &[Key]); 9] = [
    ("group", keys::GROUP),
    ("not", keys::NOT),
    ("protect", keys::PROTECT),
    ("recorder", keys::RECORDER),
    ("rule", keys::RULE),
    ("runtime", keys::RUNTIME),
    ("set_file", keys::SET_FILE),
    ("set_table", keys::SET_ITEMS),
    ("test", keys::TEST),
];

/// The other values that keys refer to by name ([`Values::Shape`], [`Values::TableOf`], [`Values::ListOf`]).
fn definitions() -> Value {
    let scalar = json!({ "type": ["string", "integer"] });
    let packets = LimitUnit::Packets.bursts();
    let stack_entry = json!({ "anyOf": [
        { "type": "integer", "minimum": 0, "maximum": MAX_LABEL },
        { "type": "string" },
        { "type": "array", "minItems": 1, "items": { "anyOf": [scalar, reference("not")] } },
        reference("not"),
        reference("mpls_entry"),
    ] });
    json!({
        "action": { "anyOf": [
            { "enum": ["drop", "kernel", "pass"] },
            { "type": "string", "pattern": "^(steer|copy|sniff) .+$" },
            one_of(keys::ACTION),
        ] },
        "burst": { "anyOf": [
            integer(*packets.start(), *packets.end()),
            { "type": "string", "pattern": "^[0-9]+[kMGT]?B$" },
        ] },
        "counts": object_of(keys::COUNTS.iter(), 1),
        "default": { "anyOf": [{ "type": "string" }, one_of(&[keys::STEER])] },
        "file_name": { "type": "string" },
        "form": { "type": "string" },
        "hash": { "anyOf": [
            { "type": "string" },
            { "type": "array", "minItems": 1, "items": { "type": "string" } },
        ] },
        "ids": or_variable(json!({ "type": "array", "items": integer(0, u32::MAX.into()) })),
        "inner_match": object_of(keys::inner_match(), 1),
        "match": object_of(keys::MATCH.iter(), 1),
        "mpls": { "anyOf": [stack_entry, { "type": "array", "minItems": 1, "items": stack_entry }] },
        "mpls_entry": object_of(keys::MPLS.iter(), 1),
        "packet_count": integer(0, i64::MAX as u64),
        "per": { "anyOf": [
            { "const": "source" },
            { "type": "string", "pattern": VARIABLE },
            object(keys::PER),
        ] },
        "protocols": { "anyOf": [scalar, { "type": "array", "items": scalar }] },
        "rule_count": integer(0, RUNTIME_RULES_MAX.into()),
        "rule_name": { "type": "string" },
        "set": { "anyOf": [
            { "type": "array", "minItems": 1, "items": scalar },
            { "type": "string", "pattern": VARIABLE },
            reference("set_file"),
            reference("set_table"),
        ] },
        "set_items": { "anyOf": [
            { "type": "array", "items": scalar },
            { "type": "string", "pattern": VARIABLE },
        ] },
        "sink": { "anyOf": keys::SINKS.iter().map(|(kind, keys)| sink(kind, keys)).collect::<Vec<_>>() },
        "sink_names": { "anyOf": [
            { "type": "string" },
            { "type": "array", "items": { "type": "string" } },
        ] },
        "trigger": object_of(keys::TRIGGER.iter(), 1),
        "values": { "anyOf": [scalar, { "type": "array", "minItems": 1, "items": scalar }] },
        "vlan_change": one_of(keys::VLAN_CHANGE),
        "variable": { "type": ["string", "integer", "boolean", "array"] },
        "weight": integer(0, MAX_WEIGHT.into()),
        "queue": integer(0, MAX_WORKER.into()),
        "workers": { "anyOf": [
            { "const": "all" },
            integer(1, u64::from(MAX_WORKER) + 1),
            { "type": "array", "minItems": 1, "items": integer(0, MAX_WORKER.into()) },
        ] },
    })
}

/// The string of a variable. The parser replaces it by any value; here it stands for numbers, booleans, words
/// and lists, where other strings are errors.
const VARIABLE: &str = "^\\$\\{[^}]+\\}$";

fn or_variable(value: Value) -> Value {
    json!({ "anyOf": vec![value, json!({ "type": "string", "pattern": VARIABLE })] })
}

/// An integer of this range, or a variable.
fn integer(least: u64, most: u64) -> Value {
    or_variable(json!({ "type": "integer", "minimum": least, "maximum": most }))
}

fn object(keys: &[Key]) -> Value {
    object_of(keys.iter(), 0)
}

/// A table of these keys and no others, with at least `min_keys` of them.
fn object_of<'k>(keys: impl Iterator<Item = &'k Key>, min_keys: u64) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for key in keys {
        let mut value = schema_of(key.values);
        value["description"] = json!(key.doc);
        properties.insert(key.name.to_owned(), value);
        if key.required {
            required.push(key.name);
        }
    }
    let mut object = json!({ "type": "object", "properties": properties, "additionalProperties": false });
    if !required.is_empty() {
        object["required"] = json!(required);
    }
    if min_keys > 0 {
        object["minProperties"] = json!(min_keys);
    }
    object
}

/// The table of a sink of one kind.
fn sink(kind: &str, keys: &[Key]) -> Value {
    let mut object = object_of([&keys::SINK_KIND].into_iter().chain(keys), 0);
    object["properties"]["kind"]["const"] = json!(kind);
    object
}

/// A table of exactly one of these keys.
fn one_of(keys: &[Key]) -> Value {
    let mut object = object_of(keys.iter(), 1);
    object["maxProperties"] = json!(1);
    object
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/$defs/{name}") })
}

/// The values that a key takes.
fn schema_of(values: Values) -> Value {
    match values {
        Values::True => or_variable(json!({ "const": true })),
        Values::Boolean => or_variable(json!({ "type": "boolean" })),
        Values::Integer(least, most) => {
            or_variable(json!({ "type": "integer", "minimum": least, "maximum": most }))
        }
        Values::Text => json!({ "type": "string" }),
        Values::Word(words) => or_variable(json!({ "enum": words })),
        Values::Words(words) => {
            one_or_list(&[json!({ "enum": words }), json!({ "type": "string", "pattern": VARIABLE })])
        }
        Values::Numbers(most) => one_or_list(&[
            json!({ "type": "integer", "minimum": 0, "maximum": most }),
            json!({ "type": "string" }),
            reference("not"),
        ]),
        Values::Strings => one_or_list(&[json!({ "type": "string" }), reference("not")]),
        // Around the reference, because a description is added beside it.
        Values::Shape(name) => json!({ "allOf": [reference(name)] }),
        Values::TableOf(name) => json!({ "type": "object", "additionalProperties": reference(name) }),
        Values::ListOf(name) => json!({ "type": "array", "items": reference(name) }),
    }
}

/// One of these, or a list of them.
fn one_or_list(items: &[Value]) -> Value {
    let mut shapes = items.to_vec();
    shapes.push(json!({ "type": "array", "minItems": 1, "items": { "anyOf": items } }));
    json!({ "anyOf": shapes })
}

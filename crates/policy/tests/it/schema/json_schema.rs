//! As much of JSON Schema as the language's schema uses; a word that it does not know is a failure.

use serde_json::Value;

/// The violations of the schema in `value`, by path; empty if there are none.
pub(crate) fn violations(schema: &Value, value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    check(schema, schema, value, "$", &mut found);
    found
}

fn check(root: &Value, schema: &Value, value: &Value, path: &str, found: &mut Vec<String>) {
    let words = schema.as_object().expect("a schema is a table");
    for (word, wanted) in words {
        let is_right = match word.as_str() {
            "$schema" | "$defs" | "title" | "description" | "properties" => true,
            "type" => is_of_type(wanted, value),
            "const" => value == wanted,
            "enum" => list(wanted).contains(value),
            "minimum" => value.as_i64().is_none_or(|number| number >= wanted.as_i64().expect("a number")),
            "maximum" => value.as_i64().is_none_or(|number| number <= wanted.as_i64().expect("a number")),
            "minItems" => {
                value.as_array().is_none_or(|items| items.len() as u64 >= wanted.as_u64().expect("a number"))
            }
            "minProperties" => {
                value.as_object().is_none_or(|keys| keys.len() as u64 >= wanted.as_u64().expect("a number"))
            }
            "maxProperties" => {
                value.as_object().is_none_or(|keys| keys.len() as u64 <= wanted.as_u64().expect("a number"))
            }
            "pattern" => value.as_str().is_none_or(|text| fits(wanted.as_str().expect("a string"), text)),
            "required" => value.as_object().is_none_or(|keys| {
                list(wanted).iter().all(|key| keys.contains_key(key.as_str().expect("a string")))
            }),
            "$ref" => {
                is_valid(root, target(root, wanted.as_str().expect("a string")), value, path, found, true)
            }
            "allOf" => list(wanted).iter().all(|one| is_valid(root, one, value, path, found, true)),
            "anyOf" => list(wanted).iter().any(|one| is_valid(root, one, value, path, found, false)),
            "items" => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(root, wanted, item, &format!("{path}[{index}]"), found);
                }
                true
            }
            "additionalProperties" => {
                for (key, value) in value.as_object().into_iter().flatten() {
                    let path = format!("{path}.{key}");
                    match (schema["properties"].get(key), wanted) {
                        (Some(property), _) => check(root, property, value, &path, found),
                        (None, Value::Bool(false)) => found.push(format!("{path}: unknown")),
                        (None, other) => check(root, other, value, &path, found),
                    }
                }
                true
            }
            other => panic!("the schema says `{other}`, which nobody here knows"),
        };
        if !is_right {
            found.push(format!("{path}: {word}"));
        }
    }
}

fn is_valid(
    root: &Value,
    schema: &Value,
    value: &Value,
    path: &str,
    found: &mut Vec<String>,
    tell: bool,
) -> bool {
    let mut own = Vec::new();
    check(root, schema, value, path, &mut own);
    let is_valid = own.is_empty();
    if tell {
        found.extend(own);
    }
    is_valid
}

fn target<'s>(root: &'s Value, reference: &str) -> &'s Value {
    root.pointer(reference.strip_prefix('#').expect("a reference within")).expect("a reference to something")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn is_of_type(wanted: &Value, value: &Value) -> bool {
    let is = |name: &str| match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "boolean" => value.is_boolean(),
        other => panic!("unknown type {other}"),
    };
    match wanted {
        Value::String(name) => is(name),
        names => list(names).iter().any(|name| is(name.as_str().expect("a string"))),
    }
}

/// The two patterns that there are.
fn fits(pattern: &str, text: &str) -> bool {
    match pattern {
        "^\\$\\{[^}]+\\}$" => {
            text.len() > 3 && text.starts_with("${") && text.find('}') == Some(text.len() - 1)
        }
        "^(steer|copy|sniff) .+$" => text
            .split_once(' ')
            .is_some_and(|(word, rest)| matches!(word, "steer" | "copy" | "sniff") && !rest.is_empty()),
        "^[0-9]+[kMGT]?B$" => text.strip_suffix('B').is_some_and(|number| {
            let digits = number.strip_suffix(['k', 'M', 'G', 'T']).unwrap_or(number);
            !digits.is_empty() && digits.bytes().all(|c| c.is_ascii_digit())
        }),
        other => panic!("unknown pattern {other}"),
    }
}

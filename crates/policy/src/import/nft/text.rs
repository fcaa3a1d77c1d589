//! Rules of nft in its own syntax again, for messages and comments.

use serde_json::Value;

use super::super::quoted;
use super::ruleset::{Rule, statements};

/// The elements of a set that are shown.
const MAX_ITEMS: usize = 16;

/// The rule as `nft list` prints it, shortened.
pub(super) fn rule_text(rule: Rule<'_>) -> String {
    let statements: Vec<String> = statements(rule).map(|(kind, body)| statement(kind, body)).collect();
    quoted(&statements.join(" "))
}

fn statement(kind: &str, body: &Value) -> String {
    match kind {
        "match" => {
            let (left, right) = (expression(&body["left"]), expression(&body["right"]));
            match body["op"].as_str().unwrap_or("==") {
                "==" | "in" => format!("{left} {right}"),
                op => format!("{left} {op} {right}"),
            }
        }
        "vmap" => format!("{} vmap {}", expression(&body["key"]), expression(&body["data"])),
        "jump" | "goto" => format!("{kind} {}", body["target"].as_str().unwrap_or_default()),
        "mangle" => format!("{} set {}", expression(&body["key"]), expression(&body["value"])),
        "limit" => {
            let over = if body["inv"] == true { "over " } else { "" };
            format!("limit rate {over}{}/{}", expression(&body["rate"]), expression(&body["per"]))
        }
        "log" => match body["prefix"].as_str() {
            Some(prefix) => format!("log prefix \"{prefix}\""),
            None => kind.to_owned(),
        },
        "dnat" | "snat" => format!("{kind} to {}:{}", expression(&body["addr"]), expression(&body["port"])),
        "redirect" => format!("redirect to :{}", expression(&body["port"])),
        "ct helper" | "ct timeout" => format!("{kind} set {}", expression(body)),
        _ => kind.to_owned(),
    }
}

fn expression(value: &Value) -> String {
    let list = |items: &Value, between: &str| {
        let items = items.as_array().map_or(&[][..], Vec::as_slice);
        items.iter().map(expression).collect::<Vec<_>>().join(between)
    };
    let object = match value {
        Value::Null => return String::new(),
        Value::String(text) => return text.clone(),
        Value::Array(_) => return list(value, ","),
        Value::Object(object) => object,
        other => return other.to_string(),
    };
    let Some((kind, body)) = object.iter().next() else { return String::new() };
    let word = |key: &str| body[key].as_str().unwrap_or_default();
    match kind.as_str() {
        "payload" => format!("{} {}", word("protocol"), word("field")),
        "meta" | "ct" | "rt" => format!("{kind} {}", word("key")),
        "fib" => format!("fib {} {}", list(&body["flags"], " . "), word("result")),
        "prefix" => format!("{}/{}", word("addr"), expression(&body["len"])),
        "range" => list(body, "-"),
        "concat" => list(body, " . "),
        "set" => match body.as_array() {
            Some(items) => {
                let shown: Vec<String> = items.iter().take(MAX_ITEMS).map(member).collect();
                let more = if items.len() > MAX_ITEMS { ", ..." } else { "" };
                format!("{{ {}{more} }}", shown.join(", "))
            }
            None => expression(body),
        },
        "elem" => expression(&body["val"]),
        "&" | "|" | "^" => list(body, &format!(" {kind} ")),
        _ => statement(kind, body),
    }
}

/// An element of a set, or a pair of a map.
fn member(item: &Value) -> String {
    match item.as_array().map(Vec::as_slice) {
        Some([key, verdict]) => format!("{} : {}", expression(key), expression(verdict)),
        _ => expression(item),
    }
}

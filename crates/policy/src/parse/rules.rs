//! `[[rules]]`: names, actions and matches. What the keys of a match mean together is checked in
//! `conflicts`; here each is read on its own.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Range;

use toml::Spanned;

use crate::byte_set::ByteSet;
use crate::policy::{
    Action, Addresses, Direction, Family, Fragments, GroupDefinition, MAX_RULES, Macs, Match, RuleDefinition,
    VlanMatch,
};
use crate::program::DEFAULT_RULE;
use crate::ranges::{RangeSet, Word};

use super::conflicts;
use super::groups;
use super::reader::{Names, Reader, Table, Value, entries, nearest};
use super::sets::Sets;
use super::values::{self, Kind, Refused};

const RULE_KEYS: [&str; 4] = ["name", "match", "action", "count"];

const MATCH_KEYS: [&str; 20] = [
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
    "ip_options",
];

/// Where each key of a match stands.
pub(super) type Spans = BTreeMap<&'static str, Range<usize>>;

/// Reads `[[rules]]`.
pub(super) fn read(
    reader: &mut Reader,
    value: &Value<'_>,
    groups: &[GroupDefinition],
    sets: &mut Sets,
) -> Vec<RuleDefinition> {
    let mut rules = Vec::new();
    let mut names = Names::default();
    let Some(array) = reader.array(value, "`rules`") else { return rules };
    if array.len() > MAX_RULES {
        let message = format!("there are {} rules, a policy has at most {MAX_RULES}", array.len());
        reader.error(value.span(), message, "too many");
        return rules;
    }
    for value in array {
        rules.extend(rule(reader, value, groups, sets, &mut names));
    }
    rules
}

fn rule(
    reader: &mut Reader,
    value: &Value<'_>,
    groups: &[GroupDefinition],
    sets: &mut Sets,
    names: &mut Names,
) -> Option<RuleDefinition> {
    let table = reader.table(value, "a rule")?;
    reader.refuse_unknown_keys(table, &RULE_KEYS, "a rule");
    let name = name(reader, value, table, names);
    let matches =
        required(reader, value, table, "match", "write match = { any = true } to match every packet")
            .and_then(|value| read_match(reader, value, sets));
    let action = required(reader, value, table, "action", "write \"drop\" or { steer = \"GROUP\" }")
        .and_then(|value| action(reader, value, groups, false));
    let count = table.get("count").map_or(Some(true), |value| reader.boolean(value, "`count`"));
    let span_of = |key: &str| table.get(key).map_or(value.span(), Spanned::span);
    Some(RuleDefinition {
        place: reader.place(span_of("match")),
        name_place: reader.place(span_of("name")),
        name: name?,
        matches: matches?,
        action: action?,
        direction: Direction::Ingress,
        priority: 0,
        count: count?,
        multicast_default: false,
    })
}

fn required<'v, 't>(
    reader: &mut Reader,
    rule: &Value<'_>,
    table: &'v Table<'t>,
    key: &str,
    hint: &str,
) -> Option<&'v Value<'t>> {
    let value = table.get(key);
    if value.is_none() {
        reader.error_with(rule.span(), format!("the rule has no `{key}`"), "this rule", hint);
    }
    value
}

fn name(reader: &mut Reader, rule: &Value<'_>, table: &Table<'_>, names: &mut Names) -> Option<String> {
    let value = required(reader, rule, table, "name", "counters and logs are named after it")?;
    let name = reader.string(value, "`name`")?;
    if !reader.name_is_good(name, value.span(), "the rule") {
        return None;
    }
    if name == DEFAULT_RULE {
        let label = "stands for what no rule claims";
        let hint = "choose another name";
        reader.error_with(value.span(), "a rule cannot be called `default`", label, hint);
        return None;
    }
    let line = reader.place(value.span()).line();
    if let Some(first) = names.seen(name, line) {
        let hint = format!("the first is on line {first}");
        reader.error_with(value.span(), format!("a second rule is called `{name}`"), "not unique", hint);
        return None;
    }
    Some(name.to_owned())
}

/// An action of a rule, or of `default`, which may also be the bare name of a group or the kernel.
pub(super) fn action(
    reader: &mut Reader,
    value: &Value<'_>,
    groups: &[GroupDefinition],
    is_default: bool,
) -> Option<Action> {
    if let Some(table) = value.get_ref().as_table() {
        if let (None, Some(word)) =
            (table.get("steer"), ["drop", "kernel"].iter().find(|word| table.contains_key(**word)))
        {
            let hint = format!("write \"{word}\", without braces");
            reader.error_with(value.span(), "an action in braces can only be `steer`", "not an action", hint);
            return None;
        }
        reader.refuse_unknown_keys(table, &["steer"], "an action");
        let steer = required(reader, value, table, "steer", "write { steer = \"GROUP\" }")?;
        let name = reader.string(steer, "`steer`")?;
        return groups::find(reader, groups, name, steer).map(Action::Steer);
    }
    match (value.get_ref().as_str(), is_default) {
        (Some("drop"), _) => Some(Action::Drop),
        (Some("kernel"), true) => Some(Action::Kernel),
        (Some("kernel"), false) => {
            let label = "not an action of a rule";
            let hint = "what no rule claims stays with the kernel under default = \"kernel\"";
            reader.error_with(value.span(), "a rule cannot give packets to the kernel", label, hint);
            None
        }
        (Some(text), _) => match text.split_once(' ') {
            Some(("steer", name)) => groups::find(reader, groups, name.trim(), value).map(Action::Steer),
            _ if is_default => default_group(reader, groups, text, value),
            _ => {
                let known = groups.iter().any(|group| group.name == text);
                let hint = match known {
                    true => format!("write {{ steer = \"{text}\" }}"),
                    false => "write \"drop\" or { steer = \"GROUP\" }".to_owned(),
                };
                reader.error_with(value.span(), "unknown action", "not an action", hint);
                None
            }
        },
        (None, _) => {
            reader.mistyped(value, "an action", "a string or { steer = \"GROUP\" }");
            None
        }
    }
}

/// The group that `default` names; what is none may be a misspelt word.
fn default_group(
    reader: &mut Reader,
    groups: &[GroupDefinition],
    text: &str,
    value: &Value<'_>,
) -> Option<Action> {
    let is_group = groups.iter().any(|group| group.name == text);
    match nearest(text, ["kernel", "drop"].into_iter()).filter(|_| !is_group) {
        Some(word) => {
            let message = format!("`{text}` is neither a group nor `kernel` or `drop`");
            reader.error_with(value.span(), message, "not known", format!("did you mean `{word}`?"));
            None
        }
        None => groups::find(reader, groups, text, value).map(Action::Steer),
    }
}

fn read_match(reader: &mut Reader, value: &Value<'_>, sets: &mut Sets) -> Option<Match> {
    let table = reader.table(value, "`match`")?;
    reader.refuse_unknown_keys(table, &MATCH_KEYS, "a match");
    if table.is_empty() {
        let hint = "write match = { any = true } to match every packet";
        reader.error_with(value.span(), "the match is empty", "matches what?", hint);
        return None;
    }
    let before = reader.diagnostics.error_count();
    let mut matches = Match::default();
    let mut spans = Spans::new();
    for (key, value) in entries(table) {
        if let Some(known) = MATCH_KEYS.iter().find(|known| **known == key.get_ref().as_ref()) {
            spans.insert(known, value.span());
            field(reader, known, value, sets, &mut matches);
        }
    }
    if let (Some(any), true) = (spans.get("any"), spans.len() > 1) {
        let hint = "leave `any` out, or everything else";
        reader.error_with(any.clone(), "`any` stands alone", "beside other keys", hint);
    }
    if let (Some(tos), true) = (spans.get("tos"), spans.contains_key("dscp")) {
        let hint = "the DSCP is the upper six bits of the type of service";
        reader.error_with(tos.clone(), "`tos` and `dscp` say the same", "give one of them", hint);
    }
    if reader.diagnostics.error_count() == before {
        conflicts::check(reader, &matches, &spans);
    }
    (reader.diagnostics.error_count() == before).then_some(matches)
}

/// Reads one key of a match; what is wrong with it is reported, and then the field stays as it is.
fn field(reader: &mut Reader, key: &'static str, value: &Value<'_>, sets: &mut Sets, matches: &mut Match) {
    match key {
        "any" => {
            let any = reader.boolean(value, "`any`");
            if any == Some(false) {
                let hint = "leave the rule out";
                reader.error_with(value.span(), "`any` can only be true", "matches no packet", hint);
            }
        }
        "src_mac" => matches.src_mac = sets.values(reader, value, key, &values::MAC).map(Macs::of),
        "dst_mac" => matches.dst_mac = sets.values(reader, value, key, &values::MAC).map(Macs::of),
        "ethertype" => matches.ethertype = ranges(reader, value, key, &values::ETHER_TYPE, sets),
        "vlan" => matches.vlan = vlan(reader, value, key, sets),
        "vlan_priority" => matches.vlan_priority = ranges(reader, value, key, &values::VLAN_PRIORITY, sets),
        "vlan_tpid" => matches.vlan_tpid = ranges(reader, value, key, &values::ETHER_TYPE, sets),
        "inner_vlan" => matches.inner_vlan = vlan(reader, value, key, sets),
        "inner_vlan_tpid" => matches.inner_vlan_tpid = ranges(reader, value, key, &values::ETHER_TYPE, sets),
        "family" => {
            let words = [("ipv4", Family::V4), ("ipv6", Family::V6)];
            matches.family = word(reader, value, key, &words);
        }
        "src" => matches.src = sets.values(reader, value, key, &values::ADDRESS).map(addresses),
        "dst" => matches.dst = sets.values(reader, value, key, &values::ADDRESS).map(addresses),
        "protocol" => matches.protocol = ranges(reader, value, key, &values::PROTOCOL, sets),
        "tos" => matches.tos = bytes(reader, value, key, &values::TOS, sets),
        "dscp" => matches.tos = bytes(reader, value, key, &values::DSCP, sets),
        "src_port" => matches.src_port = ranges(reader, value, key, &values::PORT, sets),
        "dst_port" => matches.dst_port = ranges(reader, value, key, &values::PORT, sets),
        "fragment" => {
            let words = [
                ("any", Fragments::PIECES),
                ("none", Fragments::WHOLE),
                ("first", Fragments::FIRST),
                ("later", Fragments::LATER),
            ];
            matches.fragment = word(reader, value, key, &words);
        }
        "tcp_flags" => matches.tcp_flags = tcp_flags(reader, value),
        "ip_options" => matches.ip_options = reader.boolean(value, "`ip_options`"),
        _ => {}
    }
}

fn ranges<T: Word>(
    reader: &mut Reader,
    value: &Value<'_>,
    key: &str,
    kind: &Kind<(T, T)>,
    sets: &mut Sets,
) -> Option<RangeSet<T>> {
    sets.values(reader, value, key, kind).map(RangeSet::of)
}

fn bytes(
    reader: &mut Reader,
    value: &Value<'_>,
    key: &str,
    kind: &Kind<(u8, u8)>,
    sets: &mut Sets,
) -> Option<ByteSet> {
    let ranges = sets.values(reader, value, key, kind)?;
    Some(ranges.into_iter().flat_map(|(low, high)| low..=high).collect())
}

fn addresses(values: Vec<(IpAddr, IpAddr)>) -> Addresses {
    let mut v4 = Vec::new();
    let mut v6 = Vec::new();
    for range in values {
        match range {
            (IpAddr::V4(low), IpAddr::V4(high)) => v4.push((u32::from(low), u32::from(high))),
            (IpAddr::V6(low), IpAddr::V6(high)) => v6.push((u128::from(low), u128::from(high))),
            // `values::ADDRESS` gives both ends of one family.
            _ => {}
        }
    }
    Addresses { v4: RangeSet::of(v4), v6: RangeSet::of(v6) }
}

fn vlan(reader: &mut Reader, value: &Value<'_>, key: &str, sets: &mut Sets) -> Option<VlanMatch> {
    match value.get_ref().as_str() {
        Some("none") => Some(VlanMatch::None),
        Some("any") => Some(VlanMatch::Any),
        // In a list these words are not ids, and the hint of ids would say to write them.
        _ if listed_word(reader, value, key) => None,
        _ => ranges(reader, value, key, &values::VLAN_ID, sets).map(VlanMatch::Ids),
    }
}

/// Reports `none` or `any` in a list of VLAN ids.
fn listed_word(reader: &mut Reader, value: &Value<'_>, key: &str) -> bool {
    let Some(array) = value.get_ref().as_array() else { return false };
    let is_word = |item: &&Value<'_>| matches!(item.get_ref().as_str(), Some("none" | "any"));
    let Some(item) = array.iter().find(is_word) else { return false };
    let word = item.get_ref().as_str().unwrap_or_default();
    let hint = format!("write a rule of its own with {key} = \"{word}\"");
    reader.error_with(item.span(), format!("`{word}` stands alone, not in a list"), "beside ids", hint);
    true
}

fn word<T: Copy>(reader: &mut Reader, value: &Value<'_>, key: &str, words: &[(&str, T)]) -> Option<T> {
    let text = reader.string(value, &format!("`{key}`"))?;
    let found = words.iter().find(|(word, _)| *word == text).map(|(_, meaning)| *meaning);
    if found.is_none() {
        let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let hint = format!("write {}", known.join(", "));
        reader.error_with(value.span(), format!("`{key}` has a bad value"), "not known", hint);
    }
    found
}

fn tcp_flags(reader: &mut Reader, value: &Value<'_>) -> Option<ByteSet> {
    let text = reader.string(value, "`tcp_flags`")?;
    match values::tcp_flags(text) {
        Ok(flags) => Some(flags),
        Err(Refused(better)) => {
            let usual =
                || "write fin, syn, rst, psh, ack, urg, ece, cwr, with ! for \"not set\": \"syn,!ack\"";
            let hint = better.unwrap_or_else(|| usual().to_owned());
            reader.error_with(value.span(), "these are not TCP flags", "not TCP flags", hint);
            None
        }
    }
}

//! `[runtime]`: the rules that may be added while the policy is in force, and where they stand.

use std::collections::BTreeMap;

use program::{RUNTIME_ACTIONS_MAX, RUNTIME_FORMS_MAX, RUNTIME_RULES_MAX, RuntimeFields};

use crate::hint::ProblemHint;
use crate::keys;
use crate::policy::{Action, RuleDefinition, RuntimeDefinition};

use super::actions;
use super::groups::Groups;
use super::reader::{Key, Names, Reader, Table, Value, entries, nearest};
use super::sets::shortened;

/// The rules of a policy that does not say how many.
const USUAL_RULES: u32 = 65_536;
/// The rules in the device of a policy that does not say how many.
const USUAL_DEVICE_RULES: u32 = 1024;
/// The fields that a form can have.
const FIELDS: [&str; 6] = ["src", "dst", "protocol", "src_port", "dst_port", "vlan"];
const FORM_HINT: &str =
    "write fields with blanks between them: \"src\", \"src dst protocol src_port dst_port\", \"dst/24\"";

/// Reads the table. `rules` are all rules in their final order, `written` the names of all that the text has,
/// those with errors among them.
pub(super) fn read(
    reader: &mut Reader,
    key: &Key<'_>,
    value: &Value<'_>,
    groups: &Groups,
    rules: &[RuleDefinition],
    written: &Names,
) -> Option<RuntimeDefinition> {
    let table = reader.table(value, "`runtime`")?;
    reader.refuse_unknown_keys(table, keys::RUNTIME, "`runtime`");
    let before = before(reader, table, rules, written);
    let forms = forms(reader, key, table);
    let actions = allowed(reader, key, table, groups);
    let mut most = |key: &str, usual: u32| match table.get(key) {
        Some(value) => reader.integer(value, &format!("`{key}`"), 0, RUNTIME_RULES_MAX),
        None => Some(usual),
    };
    let (rules_max, device_rules_max) =
        (most("rules", USUAL_RULES), most("device_rules", USUAL_DEVICE_RULES));
    let owners = owners(reader, table);
    Some(RuntimeDefinition {
        before: before?,
        forms: forms?,
        actions: actions?,
        rules_max: rules_max?,
        device_rules_max: device_rules_max?.min(rules_max?),
        device_rules_given: table.get("device_rules").is_some(),
        owners: owners?,
        place: reader.place(key.span()),
    })
}

/// The index of the rule that they stand before.
fn before(
    reader: &mut Reader,
    table: &Table<'_>,
    rules: &[RuleDefinition],
    written: &Names,
) -> Option<usize> {
    let Some(value) = table.get("before") else { return Some(rules.len()) };
    let name = reader.string(value, "`before`")?;
    if name == program::DEFAULT_RULE {
        return Some(rules.len());
    }
    let found = rules.iter().position(|rule| rule.name == name);
    let is_unknown = found.is_none() && !written.has(name);
    if is_unknown && reader.reports_unknown(name, rules.iter().map(|rule| rule.name.as_str())) {
        reader.error_lazy(value.span(), || {
            let near = nearest(name, rules.iter().map(|rule| rule.name.as_str()));
            let hint = match near {
                Some(near) => ProblemHint::meant(name, near),
                None => "write the name of a rule, or \"default\"".into(),
            };
            (format!("unknown rule `{}`", shortened(name)), "no such rule".to_owned(), hint)
        });
    }
    found
}

/// The forms of `matches`, in order.
fn forms(reader: &mut Reader, key: &Key<'_>, table: &Table<'_>) -> Option<Vec<RuntimeFields>> {
    let Some(value) = table.get("matches") else {
        reader.error_with(key.span(), "`runtime` has no `matches`", "no match is allowed", FORM_HINT);
        return None;
    };
    let list = reader.array(value, "`matches`")?;
    let mut forms = Vec::new();
    for value in list {
        let text = reader.string(value, "a match")?;
        let read = match versions(text) {
            Ok(read) => read,
            Err((message, hint)) => {
                reader.error_with(value.span(), message, "not a list of fields", hint);
                return None;
            }
        };
        if read.iter().any(|fields| forms.contains(fields)) {
            reader.error_with(value.span(), "the same fields are listed before", "again", "leave it out");
            return None;
        }
        forms.extend(read);
    }
    if forms.is_empty() || forms.len() > RUNTIME_FORMS_MAX {
        let message = format!("`matches` has {} forms, of each IP version one", forms.len());
        let hint = format!("write from 1 to {RUNTIME_FORMS_MAX}: each costs a packet a lookup");
        reader.error_with(value.span(), message, "this list", hint);
        return None;
    }
    Some(forms)
}

/// The forms of one text: of an address without a length, one for each IP version.
fn versions(text: &str) -> Result<Vec<RuntimeFields>, (String, String)> {
    let mut fields = RuntimeFields::default();
    let mut lengths: [Option<Option<u8>>; 2] = [None; 2];
    for word in text.split_whitespace() {
        let (name, length) = word.split_once('/').map_or((word, None), |(name, length)| (name, Some(length)));
        let is_given = match name {
            "src" | "dst" => {
                let length = length.map(|length| prefix_length(word, length)).transpose()?;
                lengths[usize::from(name == "dst")].replace(length).is_some()
            }
            "protocol" => std::mem::replace(&mut fields.protocol, true),
            "src_port" => std::mem::replace(&mut fields.src_port, true),
            "dst_port" => std::mem::replace(&mut fields.dst_port, true),
            "vlan" => std::mem::replace(&mut fields.vlan, true),
            _ => {
                let near = nearest(name, FIELDS.into_iter()).map(|near| format!("did you mean `{near}`?"));
                let hint = near.unwrap_or_else(|| format!("the fields are {}", FIELDS.join(", ")));
                return Err((format!("unknown field `{}`", shortened(name)), hint));
            }
        };
        if is_given || (length.is_some() && !matches!(name, "src" | "dst")) {
            return Err((format!("`{}` is not possible here", shortened(word)), FORM_HINT.to_owned()));
        }
    }
    let [src, dst] = lengths;
    if src.is_none() && dst.is_none() {
        let is_empty = fields == RuntimeFields::default();
        return if is_empty {
            Err(("no field is listed".to_owned(), FORM_HINT.to_owned()))
        } else {
            Ok(vec![fields])
        };
    }
    let of_version = |is_v6: bool, whole: u8| {
        let fits = |length: u8| if is_v6 { length > 32 } else { length <= 32 };
        let length = |given: Option<Option<u8>>| match given {
            None => Some(0),
            Some(None) => Some(whole),
            Some(Some(length)) => fits(length).then_some(length),
        };
        Some(RuntimeFields { src: length(src)?, dst: length(dst)?, is_v6: Some(is_v6), ..fields })
    };
    let forms: Vec<RuntimeFields> =
        [of_version(false, 32), of_version(true, 128)].into_iter().flatten().collect();
    if forms.is_empty() {
        let hint = "lengths up to 32 are of IPv4, longer ones of IPv6";
        return Err(("the lengths are of different IP versions".to_owned(), hint.to_owned()));
    }
    Ok(forms)
}

fn prefix_length(word: &str, length: &str) -> Result<u8, (String, String)> {
    let length = length.parse().ok().filter(|length| (1..=128).contains(length));
    let refused = || (format!("`{}` has no prefix length", shortened(word)), FORM_HINT.to_owned());
    length.ok_or_else(refused)
}

/// The actions, each with its text.
fn allowed(
    reader: &mut Reader,
    key: &Key<'_>,
    table: &Table<'_>,
    groups: &Groups,
) -> Option<Vec<(String, Action)>> {
    const HINT: &str = "write actions = [\"drop\"], or also \"kernel\" and \"steer GROUP\"";
    let Some(value) = table.get("actions") else {
        reader.error_with(key.span(), "`runtime` has no `actions`", "no action is allowed", HINT);
        return None;
    };
    let mut allowed: Vec<(String, Action)> = Vec::new();
    for value in reader.array(value, "`actions`")? {
        let action = actions::of_rule(reader, value, groups)?;
        let text = match action {
            Action::Drop => "drop".to_owned(),
            Action::Kernel => "kernel".to_owned(),
            Action::Steer(group) => format!("steer {}", groups.list[group.index()].name),
            Action::Copy(_) | Action::Sniff(_) | Action::Pass => {
                let message = "a rule at run time cannot copy, sniff or pass packets";
                reader.error_with(value.span(), message, "not possible", HINT);
                return None;
            }
        };
        if allowed.iter().all(|(known, _)| *known != text) {
            allowed.push((text, action));
        }
    }
    if allowed.is_empty() || allowed.len() > RUNTIME_ACTIONS_MAX / 2 {
        let message = format!("`actions` has {} actions", allowed.len());
        reader.error_with(value.span(), message, "this list", HINT);
        return None;
    }
    Some(allowed)
}

/// The most rules by user id.
fn owners(reader: &mut Reader, table: &Table<'_>) -> Option<BTreeMap<u32, u32>> {
    let Some(value) = table.get("owners") else { return Some(BTreeMap::new()) };
    let mut owners = BTreeMap::new();
    for (key, value) in entries(reader.table(value, "`owners`")?) {
        let Ok(uid) = key.get_ref().parse::<u32>() else {
            let message = format!("`{}` is no user id", shortened(key.get_ref()));
            reader.error_with(key.span(), message, "not a number", "write e.g. owners = { 1000 = 500 }");
            return None;
        };
        owners.insert(uid, reader.integer(value, "the number of rules", 0, RUNTIME_RULES_MAX)?);
    }
    Some(owners)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_without_a_length_are_of_both_versions() {
        let read = |text: &str| {
            let forms = versions(text).expect(text);
            forms.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(read("src"), ["src (IPv4)", "src (IPv6)"]);
        assert_eq!(read("dst/24 protocol"), ["dst/24 protocol (IPv4)"]);
        assert_eq!(read("src/64"), ["src/64 (IPv6)"]);
        assert_eq!(read("protocol dst_port"), ["protocol dst_port"]);
        assert_eq!(read("src dst/48"), ["src dst/48 (IPv6)"]);
        for text in ["", "src src", "src/0", "src/129", "src/24 dst/48", "port", "protocol/8", "src/x"] {
            assert!(versions(text).is_err(), "{text}");
        }
    }
}

//! What differs between two policies in where delivered packets go: options of sinks, and of rules the sinks and what part
//! of the packets these get.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use policy::Policy;
use policy::policy::Action;
use program::{DEFAULT_RULE, Policing, SinkId};
use serde::Serialize;
use serde_json::Value;

/// One difference. Described in docs/reference/commands.md.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct SinkChange {
    /// "sink": an option of it; "rule": the sinks that get its packets, or what part of them these get.
    of: &'static str,
    name: String,
    /// The option; for a rule `limit`, `burst`, `sample`, or `null` for its sinks.
    key: Option<String>,
    /// `null`: not there.
    before: Option<String>,
    after: Option<String>,
}

/// The changes of sinks by name and option, then of the rules that both policies have.
pub(super) fn changes(old: &Policy, new: &Policy) -> Vec<SinkChange> {
    let mut changes = Vec::new();
    let (before, after) = (options(old), options(new));
    for place in before.keys().chain(after.keys()).collect::<BTreeSet<_>>() {
        let (name, key) = place;
        let (before, after) = (before.get(place).cloned(), after.get(place).cloned());
        if before != after {
            changes.push(SinkChange {
                of: "sink",
                name: name.clone(),
                key: Some(key.clone()),
                before,
                after,
            });
        }
    }
    let (before, after) = (by_rule(old), by_rule(new));
    for (name, before) in before {
        let Some(after) = after.get(name).filter(|after| **after != before) else { continue };
        let (before, after) = (Some(before.join(", ")), Some(after.join(", ")));
        changes.push(SinkChange { of: "rule", name: name.to_owned(), key: None, before, after });
    }
    let after: BTreeMap<&str, Policing> =
        new.rules.iter().map(|rule| (rule.name.as_str(), rule.policing)).collect();
    for rule in &old.rules {
        let Some(after) = after.get(rule.name.as_str()) else { continue };
        for ((key, before), (_, after)) in policing(&rule.policing).into_iter().zip(policing(after)) {
            if before != after {
                let (name, key) = (rule.name.clone(), Some(key.to_owned()));
                changes.push(SinkChange { of: "rule", name, key, before, after });
            }
        }
    }
    changes
}

/// The keys of a rule that say what part of its packets sinks get.
fn policing(policing: &Policing) -> [(&'static str, Option<String>); 3] {
    let limit = policing.limit.as_ref();
    [
        ("limit", limit.map(ToString::to_string)),
        ("burst", limit.map(|limit| limit.burst_packets.to_string())),
        ("sample", (policing.sample > 1).then(|| policing.sample.to_string())),
    ]
}

/// The values of all options, by sink and option.
fn options(policy: &Policy) -> BTreeMap<(String, String), String> {
    let mut options = BTreeMap::new();
    for definition in &policy.sinks {
        // Serialising plain data cannot fail.
        let Ok(Value::Object(fields)) = serde_json::to_value(&definition.sink.kind) else { continue };
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let rows = fields.iter().filter(|(_, value)| !value.is_null());
        options.extend(rows.map(|(key, value)| ((definition.sink.name.clone(), key.clone()), text(value))));
    }
    options
}

/// The names of the sinks that get the packets of each rule that delivers packets.
fn by_rule(policy: &Policy) -> BTreeMap<&str, Vec<&str>> {
    let names = |ids: &[SinkId]| -> Vec<&str> {
        let definitions = ids.iter().filter_map(|id| policy.sinks.get(id.index()));
        definitions.map(|definition| definition.sink.name.as_str()).collect()
    };
    let of = |action: Action, own: Option<&[SinkId]>| match action {
        Action::Steer(group) | Action::Copy(group) | Action::Sniff(group) => {
            Some(names(own.or_else(|| Some(&policy.groups.get(group.index())?.sinks)).unwrap_or_default()))
        }
        Action::Drop | Action::Kernel | Action::Pass => None,
    };
    let rules = policy.rules.iter().map(|rule| (rule.name.as_str(), rule.action, rule.sinks.as_deref()));
    let all = rules.chain([(DEFAULT_RULE, policy.default, None)]);
    all.filter_map(|(name, action, own)| Some((name, of(action, own)?))).collect()
}

/// A line for each change.
pub(super) fn text(changes: &[SinkChange]) -> String {
    let mut out = String::new();
    for change in changes {
        let value = |value: &Option<String>| match value.as_deref() {
            None | Some("") => "none".to_owned(),
            Some(value) => value.to_owned(),
        };
        let SinkChange { of, name, key, before, after } = change;
        let key = key.as_deref().unwrap_or("sinks");
        let _ = writeln!(out, "{of} `{name}`: {key}: {} => {}", value(before), value(after));
    }
    out
}

#[cfg(test)]
mod tests {
    use policy::{NoFiles, Source};

    use super::*;

    fn read(text: &str) -> Policy {
        let text = format!(
            "version = 1\n{text}\n[[rules]]\nname = \"r\"\nmatch = {{ any = true }}\naction = \"steer g\"\n"
        );
        policy::parse(&Source::new("p.toml", text), &NoFiles).expect("a policy").0
    }

    #[test]
    fn options_and_the_sinks_of_rules_are_compared() {
        let old =
            read("[sinks.a]\nkind = \"app\"\nsocket = \"/x\"\n[groups.g]\nworkers = \"all\"\nsinks = \"a\"");
        let new = read(
            "[sinks.a]\nkind = \"app\"\nsocket = \"/y\"\n[sinks.b]\nkind = \"count\"\n[groups.g]\nworkers = \"all\"\nsinks = [\"a\", \"b\"]",
        );
        let lines = text(&changes(&old, &new));
        assert!(lines.contains("sink `a`: socket: /x => /y\n"), "{lines}");
        assert!(lines.contains("sink `b`: kind: none => count\n"), "{lines}");
        assert!(lines.contains("rule `r`: sinks: a => a, b\n"), "{lines}");
        assert_eq!(changes(&old, &old), []);
    }

    #[test]
    fn a_changed_limit_is_a_change_of_the_rule() {
        let rule = |keys: &str| {
            let text = format!(
                "version = 1\n[groups.g]\nworkers = \"all\"\n[[rules]]\nname = \"r\"\nmatch = {{ any = true }}\naction = \"steer g\"\n{keys}\n"
            );
            policy::parse(&Source::new("p.toml", text), &NoFiles).expect("a policy").0
        };
        let (old, new) = (rule("limit = \"10k/s\""), rule("limit = \"20k/s\"\nburst = 1000\nsample = 7"));
        let lines = text(&changes(&old, &new));
        assert_eq!(lines, "rule `r`: limit: 10k/s => 20k/s\nrule `r`: sample: none => 7\n");
        let found = analysis::diff(&old, &new, &mut |_| {});
        assert!(found.is_empty(), "no packet moves");
    }
}

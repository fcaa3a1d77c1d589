//! What differs between two policies in where delivered packets go: options of sinks, and of rules the sinks
//! and what part of the packets these get.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;

use policy::Policy;
use policy::policy::{Action, SinkDefinition};
use program::{
    AppSink, CaptureSink, CountSink, DEFAULT_RULE, FlowCollector, FlowExport, ForwardSink, KernelSink,
    Policing, RateLimit, SinkId, SinkKind,
};
use serde::Serialize;
use serde_json::Value;

/// One difference. Described in docs/reference/commands/diff.md.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct SinkChange {
    /// "sink": an option of it; "rule": the sinks that get its packets, or what part of them these get.
    of: &'static str,
    name: String,
    /// The option; for a rule `limit`, `burst`, `per`, `sample`, or `null` for its sinks.
    key: Option<String>,
    /// `null`: not there.
    before: Option<String>,
    after: Option<String>,
}

/// The changes of sinks by name and option, then of the rules that both policies have.
pub(crate) fn changes(old: &Policy, new: &Policy) -> Vec<SinkChange> {
    let mut changes = Vec::new();
    let (before, after) = (options(old, new), options(new, old));
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
fn policing(policing: &Policing) -> [(&'static str, Option<String>); 4] {
    let limit = policing.limit;
    [
        ("limit", limit.map(RateLimit::rate_text)),
        ("burst", limit.map(RateLimit::burst_text)),
        ("per", policing.per_source().map(|sources| sources.to_string())),
        ("sample", (policing.sample > 1).then(|| policing.sample.to_string())),
    ]
}

/// The values of the options by sink and option. Of a sink that `other` does not have, the kind and what is
/// not by default.
fn options(policy: &Policy, other: &Policy) -> BTreeMap<(String, String), String> {
    let mut options = BTreeMap::new();
    for SinkDefinition { sink, .. } in &policy.sinks {
        let is_known = other.sinks.iter().any(|other| other.sink.name == sink.name);
        let defaults = if is_known { BTreeMap::new() } else { written(&defaults_of(&sink.kind)) };
        let rows = written(&sink.kind).into_iter();
        let rows = rows.filter(|(key, value)| key == "kind" || defaults.get(key) != Some(value));
        options.extend(rows.map(|(key, value)| ((sink.name.clone(), key), value)));
    }
    options
}

/// A sink of this kind with its required options alone.
fn defaults_of(kind: &SinkKind) -> SinkKind {
    match kind {
        SinkKind::Count(CountSink { export, .. }) => {
            // Another collector, so that the one of the sink is shown.
            let export = export.as_ref().map(|_| FlowExport::new(FlowCollector::default()));
            SinkKind::Count(CountSink { export, ..CountSink::default() })
        }
        SinkKind::Kernel(_) => SinkKind::Kernel(KernelSink::new("")),
        SinkKind::Capture(_) => {
            SinkKind::Capture(CaptureSink { path: PathBuf::new(), ..CaptureSink::default() })
        }
        SinkKind::App(_) => SinkKind::App(AppSink::new(PathBuf::new())),
        SinkKind::Forward(_) => SinkKind::Forward(ForwardSink::default()),
    }
}

/// The options as a policy has them: their keys, and their values without quotation marks.
fn written(kind: &SinkKind) -> BTreeMap<String, String> {
    // Serialising plain data cannot fail.
    let Ok(Value::Object(fields)) = serde_json::to_value(kind) else { return BTreeMap::new() };
    let megabytes = |value: &Value| (value.as_u64().unwrap_or(0) / CaptureSink::MB).to_string();
    let option = |(key, value): (String, Value)| match (&*key, &value) {
        (_, Value::Null) | ("swap_macs", Value::Bool(false)) => None,
        ("swap_macs", _) => Some(("mac".to_owned(), "swap".to_owned())),
        ("file_bytes", _) => Some(("file_mb".to_owned(), megabytes(&value))),
        ("disk_bytes", _) => Some(("disk_mb".to_owned(), megabytes(&value))),
        ("socket_mode", _) => Some((key, format!("{:04o}", value.as_u64().unwrap_or(0)))),
        ("vlan", Value::String(change)) => Some((key, format!("{{ {change} = true }}"))),
        (_, Value::String(text)) => Some((key, text.clone())),
        (_, Value::Array(list)) => {
            let list: Vec<String> = list.iter().map(Value::to_string).collect();
            Some((key, format!("[{}]", list.join(", "))))
        }
        (_, Value::Object(table)) => {
            let list: Vec<String> = table.iter().map(|(key, value)| format!("{key} = {value}")).collect();
            Some((key, format!("{{ {} }}", list.join(", "))))
        }
        _ => Some((key, value.to_string())),
    };
    fields.into_iter().filter_map(option).collect()
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
pub(crate) fn text(changes: &[SinkChange]) -> String {
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

    /// A sink that only one policy has is its kind and what is not by default, with keys and values of the
    /// language.
    #[test]
    fn options_are_shown_as_a_policy_has_them() {
        let sinks = |sinks: &str| read(&format!("{sinks}\n[groups.g]\nworkers = \"all\"\n"));
        let none = sinks("");
        let all = sinks(
            "[sinks.a]\nkind = \"app\"\nsocket = \"/run/x\"\nsocket_mode = \"0660\"\nuids = [1, 2]\n\
             [sinks.c]\nkind = \"capture\"\npath = \"/tmp\"\nfile_mb = 7\n\
             [sinks.f]\nkind = \"forward\"\nport = 2\nmac = \"swap\"\nvlan = { set = 100 }\n\
             [sinks.g]\nkind = \"forward\"\nport = 2\nvlan = { pop = true }\n\
             [sinks.k]\nkind = \"kernel\"\ninterface = \"host0\"\n",
        );
        let expected = "\
sink `a`: kind: none => app
sink `a`: socket: none => /run/x
sink `a`: socket_mode: none => 0660
sink `a`: uids: none => [1, 2]
sink `c`: file_mb: none => 7
sink `c`: kind: none => capture
sink `c`: path: none => /tmp
sink `f`: kind: none => forward
sink `f`: mac: none => swap
sink `f`: port: none => 2
sink `f`: vlan: none => { set = 100 }
sink `g`: kind: none => forward
sink `g`: port: none => 2
sink `g`: vlan: none => { pop = true }
sink `k`: interface: none => host0
sink `k`: kind: none => kernel
";
        assert_eq!(text(&changes(&none, &all)), expected);
        let mode = sinks("[sinks.a]\nkind = \"app\"\nsocket = \"/run/x\"");
        let changed = sinks("[sinks.a]\nkind = \"app\"\nsocket = \"/run/x\"\nsocket_mode = \"0640\"");
        assert_eq!(text(&changes(&mode, &changed)), "sink `a`: socket_mode: 0600 => 0640\n");
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
        let bits = rule("limit = \"10Mbit/s\"\nper = { source_ipv4 = 24 }");
        let lines = text(&changes(&old, &bits));
        let expected = "rule `r`: limit: 10k/s => 10Mbit/s\nrule `r`: burst: 1000 => 125kB\n\
            rule `r`: per: none => { source_ipv4 = 24 }\n";
        assert_eq!(lines, expected);
    }
}

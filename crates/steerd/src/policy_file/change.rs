//! How two policies differ by their rules, in words and in packets.

use std::collections::{HashMap, HashSet};

use policy::Policy;
use policy::policy::{Action, GroupDefinition, RuleDefinition};

use super::{Counters, descriptions};

/// The most names of one kind in a text.
const SHOWN: usize = 5;

/// The rules that differ between two policies, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PolicyChange {
    pub(crate) added: Vec<String>,
    pub(crate) removed: Vec<String>,
    /// Rules with another match, action, sink, limit or order among those that both have.
    pub(crate) changed: Vec<String>,
    /// Rules and groups with another description among those that both have; nothing follows from it.
    pub(crate) described: Vec<String>,
    /// Groups, sinks, protected packets, rules at run time, the recorder or the default differ.
    pub(crate) has_other: bool,
    /// Rules, and the default, whose packets meet something else although they are not in `changed`: the
    /// default has another action, or the group of the rule is another one.
    affected: Vec<String>,
}

impl PolicyChange {
    pub(crate) fn between(old: &Policy, new: &Policy) -> Self {
        let by_name = |policy: &Policy| -> HashMap<String, usize> {
            policy.rules.iter().enumerate().map(|(index, rule)| (rule.name.clone(), index)).collect()
        };
        let (olds, news) = (by_name(old), by_name(new));
        let missing = |rules: &[RuleDefinition], others: &HashMap<String, usize>| {
            rules
                .iter()
                .filter(|rule| !others.contains_key(&rule.name))
                .map(|rule| rule.name.clone())
                .collect()
        };
        let mut changed = Vec::new();
        let mut last = None;
        for rule in &new.rules {
            let Some(&place) = olds.get(&rule.name) else { continue };
            let is_in_order = last.is_none_or(|last| place > last);
            if is_in_order {
                last = Some(place);
            }
            if !is_in_order || !is_same(old, &old.rules[place], new, rule) {
                changed.push(rule.name.clone());
            }
        }
        Self {
            added: missing(&new.rules, &olds),
            removed: missing(&old.rules, &news),
            changed,
            described: descriptions::changes(old, new).into_iter().map(|change| change.name).collect(),
            has_other: has_other(old, new),
            affected: affected(old, new),
        }
    }

    /// The share of the packets counted so far whose rule is removed or changed, or has another group, or
    /// which the default decides if that differs, from 0 to 1; packets of rules that are added later count
    /// for the rule that has them now. `None`: nothing was counted.
    pub(crate) fn touched(&self, old: &Policy, counters: &Counters) -> Option<f64> {
        let mut sums = [0u64; 2];
        let touched = self.removed.iter().chain(&self.changed).chain(&self.affected);
        let touched: HashSet<&str> = touched.map(String::as_str).collect();
        let names = old.rules.iter().map(|rule| rule.name.as_str()).chain([program::DEFAULT_RULE]);
        for (name, packets) in names.zip(counters.by_rule(old)) {
            sums[0] += packets.unwrap_or(0);
            sums[1] += if touched.contains(name) { packets.unwrap_or(0) } else { 0 };
        }
        (sums[0] > 0).then(|| sums[1] as f64 / sums[0] as f64)
    }

    /// The difference in words: `1 rule added (web); 2 changed (dns, ntp)`.
    pub(crate) fn words(&self) -> String {
        let listed = |names: &[String]| {
            let more = if names.len() > SHOWN { ", ..." } else { "" };
            format!("{}{more}", names[..names.len().min(SHOWN)].join(", "))
        };
        let kinds = [("added", &self.added), ("removed", &self.removed), ("changed", &self.changed)];
        let mut parts: Vec<String> = Vec::new();
        for (kind, names) in kinds.into_iter().filter(|(_, names)| !names.is_empty()) {
            let rules = match (parts.is_empty(), names.len()) {
                (true, 1) => " rule",
                (true, _) => " rules",
                (false, _) => "",
            };
            parts.push(format!("{}{rules} {kind} ({})", names.len(), listed(names)));
        }
        if self.has_other {
            parts.push("groups, sinks, the default or other settings changed".to_owned());
        }
        if parts.is_empty() {
            parts.push("no rule changed".to_owned());
        }
        if !self.described.is_empty() {
            let kind = if self.described.len() == 1 { "description" } else { "descriptions" };
            parts.push(format!("{} {kind} changed ({})", self.described.len(), listed(&self.described)));
        }
        parts.join("; ")
    }
}

fn is_same(old: &Policy, a: &RuleDefinition, new: &Policy, b: &RuleDefinition) -> bool {
    let sinks = |policy: &Policy, rule: &RuleDefinition| {
        let sinks = policy.sinks_of(rule.action, rule.sinks.as_deref());
        sinks.iter().map(|id| policy.sinks[id.index()].sink.clone()).collect::<Vec<_>>()
    };
    a.matches == b.matches
        && action(old, a.action) == action(new, b.action)
        && a.direction == b.direction
        && a.policing == b.policing
        && sinks(old, a) == sinks(new, b)
}

/// The action with the name of its group.
fn action(policy: &Policy, action: Action) -> (std::mem::Discriminant<Action>, Option<&str>) {
    let group = match action {
        Action::Steer(group) | Action::Copy(group) | Action::Sniff(group) => {
            policy.groups.get(group.index()).map(|group| group.name.as_str())
        }
        Action::Drop | Action::Kernel | Action::Pass => None,
    };
    (std::mem::discriminant(&action), group)
}

/// Whether two groups of one name are the same.
fn is_same_group(a: &GroupDefinition, b: &GroupDefinition) -> bool {
    let GroupDefinition { name, workers, has_queues, fields, key, symmetric, table_size, sinks, .. } = a;
    (name, workers, has_queues, fields) == (&b.name, &b.workers, &b.has_queues, &b.fields)
        && (key, symmetric, table_size, sinks) == (&b.key, &b.symmetric, &b.table_size, &b.sinks)
}

/// The old rules whose group differs, and the default if that does.
fn affected(old: &Policy, new: &Policy) -> Vec<String> {
    let is_regrouped = |steered: Action| {
        let (Action::Steer(id) | Action::Copy(id) | Action::Sniff(id)) = steered else { return false };
        let Some(group) = old.groups.get(id.index()) else { return false };
        let other = new.groups.iter().find(|other| other.name == group.name);
        other.is_none_or(|other| !is_same_group(group, other))
    };
    let rules = old.rules.iter().filter(|rule| is_regrouped(rule.action)).map(|rule| rule.name.clone());
    let is_default = action(old, old.default) != action(new, new.default) || is_regrouped(old.default);
    rules.chain(is_default.then(|| program::DEFAULT_RULE.to_owned())).collect()
}

fn has_other(old: &Policy, new: &Policy) -> bool {
    let has_same_groups = old.groups.len() == new.groups.len()
        && old.groups.iter().zip(&new.groups).all(|(a, b)| is_same_group(a, b));
    let protected = |policy: &Policy| {
        let list = policy.protect.as_ref();
        list.map(|list| list.iter().map(|one| one.matches.clone()).collect::<Vec<_>>())
    };
    let runtime = |policy: &Policy| {
        policy.runtime.as_ref().map(|runtime| {
            let before = policy.rules.get(runtime.before).map(|rule| rule.name.clone());
            let actions: Vec<String> = runtime.actions.iter().map(|(text, _)| text.clone()).collect();
            let most = (runtime.rules_max, runtime.device_rules_max, runtime.owners.clone());
            (before, runtime.forms.clone(), actions, most)
        })
    };
    let recorder = |policy: &Policy| policy.recorder.as_ref().map(|definition| definition.recorder.clone());
    action(old, old.default) != action(new, new.default)
        || !has_same_groups
        || old.sinks.iter().map(|sink| &sink.sink).ne(new.sinks.iter().map(|sink| &sink.sink))
        || protected(old) != protected(new)
        || runtime(old) != runtime(new)
        || recorder(old) != recorder(new)
        || old.allow_lost_exceptions != new.allow_lost_exceptions
}

#[cfg(test)]
mod tests {
    use policy::{NoFiles, Source};

    use super::*;

    fn policy(rules: &[(&str, u16, &str)], rest: &str) -> Policy {
        let mut text = format!("version = 1\n{rest}\n[groups.a]\nworkers = 'all'\n");
        for (name, port, action) in rules {
            text += &format!(
                "[[rules]]\nname = '{name}'\nmatch = {{ protocol = 'udp', dst_port = {port} }}\naction = '{action}'\n"
            );
        }
        policy::parse(&Source::new("p.toml", text), &NoFiles).expect("a policy").0
    }

    #[test]
    fn rules_are_compared_by_name() {
        let old = policy(&[("a", 1, "drop"), ("b", 2, "steer a"), ("c", 3, "drop")], "");
        let words = |new: &Policy| PolicyChange::between(&old, new).words();
        assert_eq!(words(&old), "no rule changed");
        let new = policy(&[("a", 1, "drop"), ("b", 2, "drop"), ("d", 4, "drop")], "");
        assert_eq!(words(&new), "1 rule added (d); 1 removed (c); 1 changed (b)");
        let swapped = policy(&[("b", 2, "steer a"), ("a", 1, "drop"), ("c", 3, "drop")], "");
        assert_eq!(words(&swapped), "1 rule changed (a)");
        let other = policy(&[("a", 1, "drop"), ("b", 2, "steer a"), ("c", 3, "drop")], "default = 'drop'");
        assert_eq!(words(&other), "groups, sinks, the default or other settings changed");
    }

    #[test]
    fn packets_of_changed_rules_are_weighed() {
        let old = policy(&[("a", 1, "drop"), ("b", 2, "steer a")], "");
        let new = policy(&[("a", 1, "drop"), ("b", 2, "drop")], "");
        let counted = [("a".to_owned(), 60), ("b".to_owned(), 30), ("default".to_owned(), 10)];
        let counters = Counters::of_weights(counted.into());
        assert_eq!(PolicyChange::between(&old, &new).touched(&old, &counters), Some(0.3));
        let dropped = policy(&[("a", 1, "drop"), ("b", 2, "steer a")], "default = 'drop'");
        assert_eq!(PolicyChange::between(&old, &dropped).touched(&old, &counters), Some(0.1), "the default");
        let mut regrouped = policy(&[("a", 1, "drop"), ("b", 2, "steer a")], "");
        regrouped.groups[0].symmetric = !regrouped.groups[0].symmetric;
        assert_eq!(PolicyChange::between(&old, &regrouped).touched(&old, &counters), Some(0.3), "the group");
        let none = Counters::of_weights(std::collections::HashMap::new());
        assert_eq!(PolicyChange::between(&old, &new).touched(&old, &none), None);
    }
}

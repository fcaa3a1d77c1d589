//! The descriptions that differ between two policies. No packet depends on them, and a reload that changes
//! them alone touches no flow.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use policy::Policy;
use program::DescriptionText;
use serde::Serialize;

/// One difference. Described in docs/reference/commands/diff.md.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct DescriptionChange {
    /// "rule" or "group".
    of: &'static str,
    pub(crate) name: String,
    /// `null`: there is none.
    before: Option<DescriptionText>,
    after: Option<DescriptionText>,
}

/// The changes of the rules and groups that both policies have, in the order of the new policy.
pub(crate) fn changes(old: &Policy, new: &Policy) -> Vec<DescriptionChange> {
    let before: BTreeMap<_, _> = described(old).map(|(of, name, text)| ((of, name), text)).collect();
    let change = |(of, name, after): (&'static str, &str, &Option<DescriptionText>)| {
        let before = before.get(&(of, name)).filter(|before| **before != after)?;
        let (before, after) = ((*before).clone(), after.clone());
        Some(DescriptionChange { of, name: name.to_owned(), before, after })
    };
    described(new).filter_map(change).collect()
}

/// Rules, then groups, with their descriptions.
fn described(policy: &Policy) -> impl Iterator<Item = (&'static str, &str, &Option<DescriptionText>)> {
    let rules = policy.rules.iter().map(|rule| ("rule", rule.name.as_str(), &rule.description));
    let groups = policy.groups.iter().map(|group| ("group", group.name.as_str(), &group.description));
    rules.chain(groups)
}

/// A line for each change, and one that says that nothing else follows from them.
pub(crate) fn text(changes: &[DescriptionChange]) -> String {
    let mut out = String::new();
    for DescriptionChange { of, name, before, after } in changes {
        let text = |text: &Option<DescriptionText>| match text {
            None => "none".to_owned(),
            Some(text) => format!("\"{}\"", text.lines().collect::<Vec<_>>().join(" / ")),
        };
        let _ = writeln!(out, "{of} `{name}`: description: {} => {}", text(before), text(after));
    }
    if !changes.is_empty() {
        out.push_str("descriptions change no flow and no packet\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use policy::{NoFiles, Source};

    use super::*;
    use crate::policy_file::PolicyChange;

    fn read(group: &str, rule: &str) -> Policy {
        let text = format!(
            "version = 1\n[groups.g]\nworkers = 'all'\n{group}\n[[rules]]\nname = 'r'\nmatch = {{ any = true }}\n\
             action = 'steer g'\n{rule}\n"
        );
        policy::parse(&Source::new("p.toml", text), &NoFiles).expect("a policy").0
    }

    #[test]
    fn a_changed_description_moves_no_packet() {
        let old = read("", "description = 'one'");
        let new = read("description = 'all of them'", "description = \"two\\nlines\"");
        let found = changes(&old, &new);
        assert_eq!(
            text(&found),
            "rule `r`: description: \"one\" => \"two / lines\"\n\
             group `g`: description: none => \"all of them\"\n\
             descriptions change no flow and no packet\n"
        );
        let json = serde_json::to_value(&found[1]).expect("plain data");
        let expected =
            serde_json::json!({ "of": "group", "name": "g", "before": null, "after": "all of them" });
        assert_eq!(json, expected);
        assert!(analysis::diff(&old, &new, &mut |_| {}).is_empty());
        assert_eq!((changes(&old, &old), text(&[])), (vec![], String::new()));
        let change = PolicyChange::between(&old, &new);
        assert_eq!(change.words(), "no rule changed; 2 descriptions changed (r, g)");
        assert!(change.changed.is_empty() && !change.has_other);
    }
}

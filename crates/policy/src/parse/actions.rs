//! Reading the actions of rules and of the defaults.

use std::ops::Range;

use program::GroupId;

use crate::hint::ProblemHint;
use crate::keys;
use crate::policy::{Action, Direction};

use super::groups::Groups;
use super::reader::{Reader, Value, nearest};
use super::sets::shortened;
use super::synonyms;

/// The usual actions, for hints.
const USUAL: &str = "write \"drop\", \"kernel\", { steer = \"GROUP\" } or { copy = \"GROUP\" }";

/// Makes the action of a group.
type OfGroup = fn(GroupId) -> Action;

/// The actions that name a group.
const WITH_GROUP: [(&str, OfGroup); 3] =
    [("steer", Action::Steer), ("copy", Action::Copy), ("sniff", Action::Sniff)];

/// The actions without a group.
const WORDS: [(&str, Action); 3] =
    [("drop", Action::Drop), ("kernel", Action::Kernel), ("pass", Action::Pass)];

/// Reads the action of a rule.
pub(super) fn of_rule(reader: &mut Reader, value: &Value<'_>, groups: &Groups) -> Option<Action> {
    if value.get_ref().is_table() {
        return in_braces(reader, value, groups);
    }
    let Some(text) = value.get_ref().as_str() else {
        reader.wrong_type(value, "an action", "a string or { steer = \"GROUP\" }");
        return None;
    };
    if let Some((_, action)) = WORDS.iter().find(|(word, _)| *word == text) {
        return Some(*action);
    }
    if let Some((word, name)) = text.split_once(' ')
        && let Some((_, action)) = WITH_GROUP.iter().find(|(known, _)| *known == word)
    {
        return groups.find(reader, name.trim(), value).map(action);
    }
    reader.error_lazy(value.span(), || {
        let lower = text.to_ascii_lowercase();
        let hint = match (synonyms::of_action(text), nearest(&lower, WORDS.iter().map(|(word, _)| *word))) {
            _ if groups.has(text) => {
                let action = format!("{{ steer = \"{text}\" }}");
                ProblemHint::whole(format!("write {action}"), action)
            }
            (Some(hint), _) => hint.into(),
            (None, Some(word)) => ProblemHint::meant(text, word),
            (None, None) => USUAL.into(),
        };
        (format!("unknown action `{}`", shortened(text)), "not an action".to_owned(), hint)
    });
    None
}

/// Reads `default` or `default_multicast`, which may also be the name of a group, but not a copy.
pub(super) fn of_default(
    reader: &mut Reader,
    value: &Value<'_>,
    groups: &Groups,
    key: &str,
) -> Option<Action> {
    if let Some(text) = value.get_ref().as_str()
        && !text.contains(' ')
    {
        return match text {
            "drop" => Some(Action::Drop),
            "kernel" => Some(Action::Kernel),
            name => default_group(reader, groups, name, value).map(Action::Steer),
        };
    }
    match of_rule(reader, value, groups)? {
        action @ (Action::Steer(_) | Action::Drop | Action::Kernel) => Some(action),
        Action::Copy(_) | Action::Sniff(_) | Action::Pass => {
            let hint = "write \"kernel\", \"drop\" or the name of a group";
            let message = format!("`{key}` cannot copy, sniff or pass packets");
            reader.error_with(value.span(), message, "not a final action", hint);
            None
        }
    }
}

/// `{ steer = "GROUP" }` and the like.
fn in_braces(reader: &mut Reader, value: &Value<'_>, groups: &Groups) -> Option<Action> {
    let table = value.get_ref().as_table()?;
    let given: Vec<_> = WITH_GROUP.iter().filter(|(key, _)| table.contains_key(*key)).collect();
    if let (true, Some((word, _))) =
        (given.is_empty(), WORDS.iter().find(|(word, _)| table.contains_key(*word)))
    {
        let message = "an action that is a table must name a group";
        let hint = format!("write \"{word}\", without braces");
        reader.error_with(value.span(), message, "not an action", hint);
        return None;
    }
    reader.refuse_unknown_keys(table, keys::ACTION, "an action");
    match *given {
        [(key, action)] => {
            let group = table.get(*key)?;
            let name = reader.string(group, &format!("`{key}`"))?;
            groups.find(reader, name, group).map(action)
        }
        [] => {
            if table.is_empty() {
                reader.error_with(value.span(), "the action is empty", "no action", USUAL);
            }
            None
        }
        [.., (first, _), (second, _)] => {
            let words = "write a rule for each: after a copy the packet goes on to the next rule";
            let hint = match given.len() {
                // The rule that copies or sniffs comes first.
                2 if *first == "steer" => ProblemHint::rule_for_each(words, second, first),
                2 => ProblemHint::rule_for_each(words, first, second),
                _ => words.into(),
            };
            reader.error_with(value.span(), "a rule has one action", "several", hint);
            None
        }
    }
}

/// The group that a default names; an unknown name may be a misspelt action or that of another tool.
fn default_group(reader: &mut Reader, groups: &Groups, text: &str, value: &Value<'_>) -> Option<GroupId> {
    let near = nearest(text, ["kernel", "drop"].into_iter()).map(|word| ProblemHint::meant(text, word));
    let word = synonyms::of_action(text).filter(|hint| hint.starts_with("write \""));
    match near.or(word.map(ProblemHint::from)).filter(|_| !groups.has(text)) {
        Some(hint) => {
            let message = format!("`{text}` is neither a group nor `kernel` or `drop`");
            reader.error_with(value.span(), message, "not known", hint);
            None
        }
        None => groups.find(reader, text, value),
    }
}

/// Checks that rules of this direction can have the action.
pub(super) fn fit_direction(
    reader: &mut Reader,
    action: Action,
    direction: Direction,
    span: Range<usize>,
) -> Option<()> {
    let (message, hint) = match (direction, action) {
        (Direction::Egress, Action::Drop | Action::Pass) => return Some(()),
        (Direction::Egress, _) => {
            ("an egress rule can only drop or pass packets", "write \"drop\" or \"pass\"; both are counted")
        }
        (Direction::Ingress, Action::Pass) => (
            "`pass` is an action of egress rules",
            "write \"kernel\" to leave packets to the host, or add direction = \"egress\"",
        ),
        (Direction::Ingress, _) => return Some(()),
    };
    reader.error_with(span, message, "not possible in this direction", hint);
    None
}

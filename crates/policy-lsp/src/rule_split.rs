//! The text edit that makes two rules of one, each with one of two keys that a rule cannot have together.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::outline::{NameKind, NameUse, Outline, extent, joined};

/// The bytes of the rule at an offset, and the text of the two rules in their place. `None`: no rule there
/// has both keys in one table.
pub(crate) fn rule_for_each(
    text: &str,
    outline: &Outline,
    at: usize,
    keys: &[String; 2],
) -> Option<TwoRules> {
    let contains = |rule: &&NameUse| rule.defines.as_ref().is_some_and(|block| block.contains(&at));
    let rule = outline.definitions(NameKind::Rule).find(contains)?;
    let block = rule.defines.clone()?;
    let (document, _) = DeTable::parse_recoverable(text);
    let rules = document.get_ref().get("rules")?;
    let [first, second] = entries(text, rules, &block, keys)?;
    let written = |part: Range<usize>| text.get(part);
    let both = |first, second| Some(written(first)?.to_owned() + written(second)?);
    let head = both(block.start..second.start, second.end..block.end)?;
    let mut names = (2..).map(|number| format!("{}-{number}", rule.name));
    let is_free = |name: &String| outline.definitions(NameKind::Rule).all(|other| other.name != *name);
    let name = names.find(is_free)?;
    // The copy has another name, before or behind the key that it lacks.
    let copy = match rule.span.end <= first.start {
        true => [
            written(block.start..rule.span.start)?.to_owned(),
            name,
            both(rule.span.end..first.start, first.end..block.end)?,
        ],
        false => [
            both(block.start..first.start, first.end..rule.span.start)?,
            name,
            written(rule.span.end..block.end)?.to_owned(),
        ],
    };
    let between = if head.starts_with('{') { ", " } else { "\n\n" };
    Some(TwoRules { span: block, text: head + between + &copy.concat() })
}

/// Two rules that take the place of one.
pub(crate) struct TwoRules {
    /// The bytes of the one.
    pub(crate) span: Range<usize>,
    /// The text of the two.
    pub(crate) text: String,
}

/// The bytes to remove so that a table within `block` loses one of the keys, for each of them.
fn entries(
    text: &str,
    value: &Spanned<DeValue<'_>>,
    block: &Range<usize>,
    keys: &[String; 2],
) -> Option<[Range<usize>; 2]> {
    match value.get_ref() {
        DeValue::Array(list) => list.iter().find_map(|item| entries(text, item, block, keys)),
        DeValue::Table(table) => {
            let is_inline = text.get(value.span())?.starts_with('{');
            let entry = |wanted: &String| {
                let (key, value) = table.get_key_value(wanted.as_str())?;
                let entry = joined(&key.span(), &extent(value));
                if entry.start < block.start || block.end < entry.end {
                    return None;
                }
                if is_inline { Some(inline_entry(text, entry)) } else { lines(text, block, entry) }
            };
            match (entry(&keys[0]), entry(&keys[1])) {
                (Some(first), Some(second)) => Some([first, second]),
                _ => table.iter().find_map(|(_, value)| entries(text, value, block, keys)),
            }
        }
        _ => None,
    }
}

/// An entry of an inline table with the comma behind it, or else with the one before it.
fn inline_entry(text: &str, entry: Range<usize>) -> Range<usize> {
    let (before, behind) = (&text[..entry.start], &text[entry.end..]);
    let rest = behind.trim_start();
    match rest.strip_prefix(',') {
        Some(rest) => entry.start..text.len() - rest.trim_start().len(),
        None => before.trim_end().trim_end_matches(',').len()..entry.end,
    }
}

/// The lines of an entry, with the line break before them. `None`: the entry is a dotted key in an inline
/// table, whose lines have other entries as well.
fn lines(text: &str, block: &Range<usize>, entry: Range<usize>) -> Option<Range<usize>> {
    let start = text[..entry.start].rfind('\n').unwrap_or(entry.start);
    let end = text[entry.end..].find('\n').map_or(text.len(), |length| entry.end + length);
    let has_others = text[start..entry.start].contains(['{', ',']);
    (!has_others).then(|| start.max(block.start)..end.min(block.end))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text after the rule with the marked key became two.
    fn split(text: &str, keys: [&str; 2]) -> Option<String> {
        let at = text.rfind(keys[0])?;
        let found = rule_for_each(text, &Outline::of(text), at, &keys.map(str::to_owned))?;
        Some(format!("{}{}{}", &text[..found.span.start], found.text, &text[found.span.end..]))
    }

    #[test]
    fn each_rule_has_one_key() {
        let inline = "[[rules]]\nname = \"a\"\nmatch = { ttl = 1, dst_port = [1, 2], hop_limit = 2 }\naction = 'drop'\n# end\n";
        let expected = "[[rules]]\nname = \"a\"\nmatch = { ttl = 1, dst_port = [1, 2] }\naction = 'drop'\n\n\
            [[rules]]\nname = \"a-2\"\nmatch = { dst_port = [1, 2], hop_limit = 2 }\naction = 'drop'\n# end\n";
        assert_eq!(split(inline, ["ttl", "hop_limit"]).as_deref(), Some(expected));
        let tables = "[[rules]]\naction = 'drop'\n[rules.match]\nttl = 1 # one\nhop_limit = 2\n\n[[rules]]\nname = 'b'\n";
        assert_eq!(split(tables, ["ttl", "hop_limit"]), None, "it has no name");
        let named = tables.replacen("action", "name = 'b-2'\naction", 1);
        let expected = "[[rules]]\nname = 'b-2'\naction = 'drop'\n[rules.match]\nttl = 1 # one\n\n\
            [[rules]]\nname = 'b-2-2'\naction = 'drop'\n[rules.match]\nhop_limit = 2\n\n[[rules]]\nname = 'b'\n";
        assert_eq!(split(&named, ["ttl", "hop_limit"]).as_deref(), Some(expected));
    }

    #[test]
    fn other_entries_of_a_line_stay() {
        let text = "[[rules]]\nname = 'a'\nmatch = { vlan = 5, inner.ttl = 1, inner.hop_limit = 2 }\n";
        assert_eq!(split(text, ["ttl", "hop_limit"]), None);
    }

    #[test]
    fn a_rule_in_a_list_stays_there() {
        let text = "rules = [{ action = { steer = 'x', copy = 'y' }, name = 'a' }]\n";
        let expected =
            "rules = [{ action = { copy = 'y' }, name = 'a' }, { action = { steer = 'x' }, name = 'a-2' }]\n";
        assert_eq!(split(text, ["copy", "steer"]).as_deref(), Some(expected));
    }

    #[test]
    fn no_text_panics() {
        let text = "[[rules]]\nname = 'ä'\nmatch = { ttl = [1,\n 2], hop_limit = 2 }\naction.copy = 'ü'\n";
        for end in (0..text.len()).filter(|end| text.is_char_boundary(*end)) {
            for keys in [["ttl", "hop_limit"], ["copy", "steer"]] {
                split(&text[..end], keys);
            }
        }
    }
}

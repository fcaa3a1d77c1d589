//! What is wrong with a text that is not TOML, in an operator's words: the parser's own say what a grammar expects.
//! Called for each file; reports, and mends nothing.

use std::ops::Range;

use super::reader::Reader;
use super::sets::shortened;

/// What the parser found.
pub(super) struct Found<'e> {
    pub(super) message: &'e str,
    pub(super) span: Range<usize>,
}

/// Reports what is wrong with the text that the reader is at.
pub(super) fn report(reader: &mut Reader, text: &str, found: &[Found<'_>]) {
    if found.is_empty() {
        return;
    }
    if let Some((format, span)) = other_format(text) {
        let message = format!("this looks like {format}, and a policy is TOML");
        reader.error_with(
            span,
            message,
            "here",
            "begin with version = 1; tables are [groups.NAME] and [[rules]]",
        );
        return;
    }
    let mut last: Option<(&str, u32)> = None;
    for Found { message, span } in found {
        // Behind the first problem of a line the parser only guesses; the same once more is no guess.
        let line = reader.source.line(span.start);
        if last.is_some_and(|(first, last_line)| last_line == line && first != *message) {
            continue;
        }
        last = Some((message, line));
        let (message, hint) = words(message, text, span);
        match hint {
            Some(hint) => reader.error_with(span.clone(), message, "here", hint),
            None => reader.error(span.clone(), message, "here"),
        }
    }
}

/// Another language that the text seems to be written in, and where that shows.
fn other_format(text: &str) -> Option<(&'static str, Range<usize>)> {
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let content = line.trim();
        let span = start..start + line.trim_end().len();
        start += line.len();
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        let is_yaml = content == "---"
            || content.split_once(':').is_some_and(|(key, value)| {
                let is_key = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
                key.chars().all(is_key) && (value.is_empty() || value.starts_with(' '))
            });
        return match content.starts_with('{') {
            true => Some(("JSON", span)),
            false => is_yaml.then_some(("YAML", span)),
        };
    }
    None
}

/// Message and hint for one problem.
fn words(message: &str, text: &str, span: &Range<usize>) -> (String, Option<String>) {
    let (problem, expected) = message.split_once(", expected ").unwrap_or((message, ""));
    if problem == "duplicate key" {
        let name = shortened(text.get(span.clone()).unwrap_or("?"));
        return (
            format!("`{name}` is defined twice"),
            Some("remove one of the two, or join them".to_owned()),
        );
    }
    let told = match expected {
        "" | "nothing" | "literal string" => format!("not TOML: {problem}"),
        _ => format!("not TOML: {problem}, expected {expected}"),
    };
    let hint = match problem {
        "string values must be quoted" => Some(unquoted(value_at(text, span.start))),
        "invalid boolean" => Some("write true or false, in small letters".to_owned()),
        "key with no value" | "invalid unquoted key" | "invalid key-value pair" => Some(key_hint(text, span)),
        "unclosed array table" | "unclosed table" => {
            Some("write [[rules]] for a rule, [groups.NAME] for a group".to_owned())
        }
        "too few unicode value digits" | "missing escaped value" => {
            Some("in \"...\" a backslash begins an escape; write '...' to have it as it is".to_owned())
        }
        _ if problem.starts_with("invalid ") || problem == "unexpected leading zero" => {
            let value = value_at(text, span.start);
            value.contains(['.', ':', '/', '-']).then(|| unquoted(value))
        }
        _ => None,
    };
    (told, hint)
}

/// What to do about a value that wants quotes, or about what stands behind one that does not.
fn unquoted(value: &str) -> String {
    match value {
        "True" | "yes" | "on" => "write true".to_owned(),
        "False" | "no" | "off" => "write false".to_owned(),
        _ if value.parse::<i64>().is_ok() => {
            format!("write a comma or a new line behind {value}")
        }
        _ => format!("write it in quotes: \"{}\"", shortened(value)),
    }
}

/// What to do about something that is no key, or a key without a value.
fn key_hint(text: &str, span: &Range<usize>) -> String {
    let start = text.get(..span.start).and_then(|before| before.rfind('\n')).map_or(0, |newline| newline + 1);
    let line = text.get(start..).unwrap_or_default().trim_start();
    match line.starts_with([';', '/', '%']) || line.starts_with("--") {
        true => "a comment begins with #".to_owned(),
        false => "write KEY = VALUE".to_owned(),
    }
}

/// The value around a place: what a person takes for one, whatever the grammar says.
fn value_at(text: &str, at: usize) -> &str {
    let ends = |c: char| {
        c.is_whitespace() || matches!(c, ',' | '[' | ']' | '{' | '}' | '=' | '"' | '\'' | '#' | ';')
    };
    let (Some(before), Some(behind)) = (text.get(..at), text.get(at..)) else { return "" };
    let start =
        before.rfind(ends).map_or(0, |end| end + before[end..].chars().next().map_or(1, char::len_utf8));
    let end = at + behind.find(ends).unwrap_or(behind.len());
    &text[start..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_around_a_place() {
        let text = "a = [10.0.0.0/8, \"x\"]";
        assert_eq!(value_at(text, 5), "10.0.0.0/8");
        assert_eq!(value_at(text, 9), "10.0.0.0/8");
        assert_eq!(value_at("a = 5", 5), "5");
        assert_eq!(value_at("a = é5", 6), "é5");
        assert_eq!(value_at("a", 9), "");
    }

    #[test]
    fn other_languages_are_recognised() {
        assert_eq!(other_format("# x\n\n{ \"version\": 1 }").map(|(name, _)| name), Some("JSON"));
        assert_eq!(other_format("version: 1\nrules:\n").map(|(name, _)| name), Some("YAML"));
        assert_eq!(other_format("---\nversion: 1").map(|(name, _)| name), Some("YAML"));
        for text in ["", "# only\n", "version = 1\n", "[groups.a]\n", "a::b", "x = \"a: b\""] {
            assert_eq!(other_format(text), None, "{text}");
        }
    }
}

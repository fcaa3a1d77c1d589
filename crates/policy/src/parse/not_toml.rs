//! What is wrong with a text that is not TOML, in an operator's words: the parser's own say what a grammar expects.
//! Called for each file; reports, and mends nothing.

mod structure;

use std::ops::Range;

use super::reader::Reader;
use super::sets::shortened;
use structure::Fault;

/// Quotes that word processors write.
const TYPOGRAPHIC: [char; 6] = ['\u{2018}', '\u{2019}', '\u{201c}', '\u{201d}', '\u{201e}', '\u{201a}'];

/// What the parser found.
pub(super) struct Found<'e> {
    pub(super) message: &'e str,
    pub(super) span: Range<usize>,
}

/// Reports what is wrong with the text that the reader is at. Of a text that must not be quoted that is one
/// problem with its place: it may be no policy at all.
pub(super) fn report(reader: &mut Reader, text: &str, found: &[Found<'_>]) {
    let Some(first) = found.first() else { return };
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
    if unprintable(reader, text) {
        return;
    }
    if !reader.source.may_be_quoted() {
        let told = match first.message {
            "duplicate key" => "a key is defined twice".to_owned(),
            message => told(message),
        };
        let hint = "an included file is a policy of its own, in TOML";
        return reader.error_with(first.span.clone(), told, "here", hint);
    }
    // What the parser finds behind something that does not close are guesses.
    let mut guesses: Vec<Range<u32>> = Vec::new();
    for fault in structure::faults(text) {
        let begin = reader.source.line(fault.begins_at());
        let is_one_line = matches!(fault, Fault::String { quote: "\"" | "'", .. });
        let is_its = |found: &Found<'_>| {
            let line = reader.source.line(found.span.start);
            let is_near = if is_one_line { line == begin } else { line >= begin };
            is_near
                && match fault {
                    Fault::String { .. } => found.message.contains("string"),
                    Fault::Open { .. } | Fault::Mismatch { .. } => is_of_brackets(found.message),
                }
        };
        if found.iter().any(is_its) {
            open(reader, &fault);
            guesses.push(begin..if is_one_line { begin + 1 } else { u32::MAX });
        }
    }
    let mut last: Option<(&str, u32)> = None;
    for Found { message, span } in found {
        // Behind the first problem of a line the parser only guesses; the same once more is no guess.
        let line = reader.source.line(span.start);
        if last.is_some_and(|(first, last_line)| last_line == line && first != *message)
            || guesses.iter().any(|lines| lines.contains(&line))
        {
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

/// Whether a problem may come from a bracket that does not close.
fn is_of_brackets(message: &str) -> bool {
    ["comma", "unclosed", "inline table", "array", "`]`", "`}`"].iter().any(|word| message.contains(word))
}

/// Reports a bracket or a string that does not close.
fn open(reader: &mut Reader, fault: &Fault) {
    match *fault {
        Fault::Open { bracket, at } => {
            let hint = format!("write `{}` where it ends", structure::closing(bracket));
            reader.error_with(
                at..at + 1,
                format!("not TOML: this `{bracket}` is never closed"),
                "opened here",
                hint,
            );
        }
        Fault::Mismatch { open, open_at, close, at } => {
            let (line, column) = reader.source.position(open_at);
            let message = format!("not TOML: `{close}` closes the `{open}` of line {line}, column {column}");
            let hint = format!("write `{}`", structure::closing(open));
            reader.error_with(at..at + 1, message, "does not fit", hint);
        }
        Fault::String { quote, at } => {
            let message = "not TOML: this string is never closed";
            reader.error_with(
                at..at + quote.len(),
                message,
                "begins here",
                format!("write {quote} at its end"),
            );
        }
    }
}

/// Reports characters that no TOML file may have, one of each line; `false` if there are none.
fn unprintable(reader: &mut Reader, text: &str) -> bool {
    let before = reader.diagnostics.error_count();
    if let Some(at) = text.find('\0') {
        let hint = "a policy is text in UTF-8; an editor saves UTF-16 as UTF-8";
        reader.error_with(at..at + 1, "there is a NUL byte: this is no text file", "here", hint);
        return true;
    }
    if let Some((at, _)) = text.match_indices('\r').find(|(at, _)| !text[at + 1..].starts_with('\n')) {
        let hint = "save the file with line ends of Unix (LF) or Windows (CRLF)";
        reader.error_with(at..at + 1, "a carriage return without a newline", "here", hint);
        return true;
    }
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let is_wrong = |c: char| c.is_ascii_control() && !matches!(c, '\t' | '\r' | '\n');
        if let Some(at) = line.find(is_wrong).map(|at| start + at) {
            let message = match text[at..].chars().next().filter(|_| reader.source.may_be_quoted()) {
                Some(c) => format!("control character U+{:04X} in the text", u32::from(c)),
                None => "control character in the text".to_owned(),
            };
            reader.error_with(at..at + 1, message, "here", "remove it; within \"...\" it is written \\uXXXX");
        }
        start += line.len();
    }
    reader.diagnostics.error_count() > before
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
    let problem = message.split_once(", expected ").map_or(message, |(problem, _)| problem);
    if problem == "duplicate key" {
        let name = shortened(text.get(span.clone()).unwrap_or("?"));
        return (
            format!("`{name}` is defined twice"),
            Some("remove one of the two, or join them".to_owned()),
        );
    }
    let told = told(message);
    let at = text.get(span.start..).and_then(|rest| rest.chars().next());
    if let Some(odd) = at.filter(|c| !c.is_ascii() && (c.is_whitespace() || is_invisible(*c))) {
        let message = format!("U+{:04X} is no blank in TOML", u32::from(odd));
        return (message, Some("replace it by an ordinary blank, or remove it".to_owned()));
    }
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

/// The parser's message.
fn told(message: &str) -> String {
    match message.split_once(", expected ") {
        Some((problem, "nothing" | "literal string")) => format!("not TOML: {problem}"),
        _ => format!("not TOML: {message}"),
    }
}

/// Zero-width characters, which editors do not show and other programs put into copied text.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2060}' | '\u{feff}')
}

/// What to do about a value that wants quotes, or about what stands behind one that does not.
fn unquoted(value: &str) -> String {
    match value {
        "True" | "yes" | "on" => "write true".to_owned(),
        "False" | "no" | "off" => "write false".to_owned(),
        _ if value.starts_with(TYPOGRAPHIC) => {
            let value = value.trim_matches(TYPOGRAPHIC);
            format!("write it in straight quotes: \"{}\"", shortened(value))
        }
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

//! Messages for texts that are not TOML. Those of the TOML parser name what the grammar expects; these name
//! the mistake: another format, an unclosed bracket or string, an unquoted value.

use std::ops::Range;
use std::sync::Arc;

use toml::Spanned;
use toml::de::DeTable;

use crate::diagnostics::Diagnostics;
use crate::source::Source;

use super::reader::Reader;
use super::sets::shortened;

/// Quotation marks that word processors write.
const TYPOGRAPHIC: [char; 6] = ['\u{2018}', '\u{2019}', '\u{201c}', '\u{201d}', '\u{201e}', '\u{201a}'];

/// The parser's message for a key that is there already.
const DUPLICATE: &str = "duplicate key";

/// The kind of document that a text is to be, in messages about its syntax.
#[derive(Clone, Copy, Debug)]
pub struct DocumentKind {
    /// With its article: "a policy".
    pub name: &'static str,
    /// The remedy for a text in another format.
    pub form: &'static str,
    /// The remedy for a table whose header is not closed.
    pub tables: &'static str,
    /// The names of the lists of tables, of which each table has two brackets.
    pub lists: &'static [&'static str],
    /// The remedy for a text that is not TOML and must not be quoted ([`Source::unquoted`]).
    pub whole: &'static str,
}

/// A policy and the files that it includes.
pub(super) const POLICY: DocumentKind = DocumentKind {
    name: "a policy",
    form: "begin with version = 1; tables are [groups.NAME] and [[rules]]",
    tables: "write [[rules]] for a rule, [groups.NAME] for a group",
    lists: &["rules", "tests"],
    whole: "an included file must be a complete policy in TOML",
};

/// A problem that the TOML parser found.
struct Found<'e> {
    message: &'e str,
    span: Range<usize>,
}

/// Reads a text of TOML that is not a policy, such as settings, with the diagnostics that a policy has.
///
/// ```
/// use std::sync::Arc;
/// use policy::{DocumentKind, Source};
///
/// let (form, whole) = ("begin with [table]", "it has tables in TOML");
/// let kind = DocumentKind { name: "the file", form, tables: "write [table]", lists: &[], whole };
/// let source = Arc::new(Source::new("s.toml", "[table]\nlisten = \"off\n"));
/// let problems = policy::read_document(&source, &kind).unwrap_err();
/// assert_eq!(problems.to_string(), "s.toml:2:10: error: not TOML: this string is never closed (write \" at its end)");
/// ```
///
/// # Errors
/// All problems of the syntax.
pub fn read_document<'s>(
    source: &'s Arc<Source>,
    kind: &DocumentKind,
) -> Result<Spanned<DeTable<'s>>, Diagnostics> {
    let mut reader = Reader::new(source);
    document(&mut reader, &source.text, kind).ok_or(reader.diagnostics)
}

/// The tree of the reader's current text, or its problems in the reader.
pub(super) fn document<'t>(
    reader: &mut Reader,
    text: &'t str,
    kind: &DocumentKind,
) -> Option<Spanned<DeTable<'t>>> {
    let (document, errors) = DeTable::parse_recoverable(text);
    let found =
        errors.iter().map(|error| Found { message: error.message(), span: error.span().unwrap_or(0..0) });
    report(reader, text, &found.collect::<Vec<_>>(), kind);
    errors.is_empty().then_some(document)
}

/// Reports the problems of the reader's current text. For a text that must not be quoted, which may not be a
/// policy at all, that is one problem with its place.
fn report(reader: &mut Reader, text: &str, found: &[Found<'_>], kind: &DocumentKind) {
    let Some(first) = found.first() else { return };
    if let Some((format, span)) = other_format(text) {
        let message = format!("this looks like {format}, but {} is TOML", kind.name);
        reader.error_with(span, message, "here", kind.form);
        return;
    }
    if unprintable(reader, text) {
        return;
    }
    if !reader.source.may_be_quoted() {
        let (message, hint) = match first.message {
            DUPLICATE => ("a key is defined twice".to_owned(), TWICE),
            message if is_boolean_word(value_at(text, first.span.start)) => {
                (parser_message(message), "write true or false")
            }
            message => (parser_message(message), kind.whole),
        };
        return reader.error_with(first.span.clone(), message, "here", hint);
    }
    // Lines after an unclosed string or bracket, where the parser's findings are guesses.
    let mut guesses: Vec<Range<u32>> = Vec::new();
    for fault in faults(text) {
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
    let mut duplicates = found.iter().filter(|found| found.message == DUPLICATE);
    let single = duplicates.find_map(|found| Some((found, list_header(text, &found.span, kind)?)));
    if let Some((Found { span, .. }, name)) = single {
        let hint = format!("write [[{name}]] before each of them, with two brackets on each side");
        reader.error_with(span.clone(), format!("`{name}` is a list of tables"), "one bracket", hint);
    }
    let mut last: Option<(&str, u32)> = None;
    for Found { message, span } in found {
        // The keys of a second table are not duplicates once it has two brackets.
        if single.is_some() && *message == DUPLICATE {
            continue;
        }
        // After the first problem of a line the parser guesses, unless it finds the same problem again.
        let line = reader.source.line(span.start);
        if last.is_some_and(|(first, last_line)| last_line == line && first != *message)
            || guesses.iter().any(|lines| lines.contains(&line))
        {
            continue;
        }
        last = Some((message, line));
        let (message, hint) = explain(message, text, span, kind);
        match hint {
            Some(hint) => reader.error_with(span.clone(), message, "here", hint),
            None => reader.error(span.clone(), message, "here"),
        }
    }
}

/// The name of a list whose header has one bracket, `[rules]`, in the line of a place.
fn list_header(text: &str, span: &Range<usize>, kind: &DocumentKind) -> Option<&'static str> {
    let start = text.get(..span.start)?.rfind('\n').map_or(0, |newline| newline + 1);
    let name = text.get(start..)?.lines().next()?.trim_start().strip_prefix('[')?.split_once(']')?.0.trim();
    kind.lists.iter().copied().find(|list| *list == name)
}

/// Whether a message of the parser may be due to an unclosed bracket.
fn is_of_brackets(message: &str) -> bool {
    ["comma", "unclosed", "inline table", "array", "`]`", "`}`"].iter().any(|word| message.contains(word))
}

/// Reports an unclosed bracket or string.
fn open(reader: &mut Reader, fault: &Fault) {
    match *fault {
        Fault::Open { bracket, at } => {
            let hint = format!("write `{}` where it ends", closing(bracket));
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
            let hint = format!("write `{}`", closing(open));
            reader.error_with(at..at + 1, message, "does not match", hint);
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

/// Reports characters that TOML does not allow, one per line; `false` if there are none.
fn unprintable(reader: &mut Reader, text: &str) -> bool {
    let before = reader.diagnostics.error_count();
    if let Some(at) = text.find('\0') {
        let hint = "save the file as UTF-8; it may be UTF-16";
        reader.error_with(at..at + 1, "the file contains a NUL byte: this is not text", "here", hint);
        return true;
    }
    if let Some((at, _)) = text.match_indices('\r').find(|(at, _)| !text[at + 1..].starts_with('\n')) {
        let hint = "save the file with Unix (LF) or Windows (CRLF) line endings";
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

/// The format that the text seems to be in if it is not TOML, and the place that shows it.
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
fn explain(message: &str, text: &str, span: &Range<usize>, kind: &DocumentKind) -> (String, Option<String>) {
    let problem = message.split_once(", expected ").map_or(message, |(problem, _)| problem);
    if problem == DUPLICATE {
        let name = shortened(text.get(span.clone()).unwrap_or("?"));
        return (
            format!("`{name}` is defined twice"),
            Some("remove one of the two, or merge them".to_owned()),
        );
    }
    let plain = parser_message(message);
    let at = text.get(span.start..).and_then(|rest| rest.chars().next());
    if let Some(odd) = at.filter(|c| !c.is_ascii() && (c.is_whitespace() || is_invisible(*c))) {
        let message = format!("U+{:04X} is not whitespace in TOML", u32::from(odd));
        return (message, Some("replace it with a space, or remove it".to_owned()));
    }
    let hint = match problem {
        "string values must be quoted" => Some(unquoted(value_at(text, span.start))),
        "invalid boolean" => Some("write true or false, in lower case".to_owned()),
        "key with no value" | "invalid unquoted key" | "invalid key-value pair" => Some(key_hint(text, span)),
        "unclosed array table" | "unclosed table" => Some(kind.tables.to_owned()),
        "too few unicode value digits" | "missing escaped value" => {
            Some("in \"...\" a backslash starts an escape sequence; use '...' for literal text".to_owned())
        }
        _ if problem.starts_with("invalid ") || problem == "unexpected leading zero" => {
            let value = value_at(text, span.start);
            value.contains(['.', ':', '/', '-']).then(|| unquoted(value))
        }
        _ => None,
    };
    (plain, hint)
}

/// The parser's message.
fn parser_message(message: &str) -> String {
    match message.split_once(", expected ") {
        Some((problem, "nothing" | "literal string")) => format!("not TOML: {problem}"),
        _ => format!("not TOML: {message}"),
    }
}

/// Whether it is a zero-width character, which editors do not show and some programs add to copied text.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2060}' | '\u{feff}')
}

/// The hint for a key that is defined twice in a text that is not quoted.
const TWICE: &str = "remove one of the two: an earlier line has it, as `KEY = VALUE` in its section, or as [SECTION.KEY] or \
                     [[SECTION.KEY]]";

/// Whether it is a boolean of other languages, which no secret is.
fn is_boolean_word(value: &str) -> bool {
    matches!(value, "True" | "yes" | "on" | "False" | "no" | "off")
}

/// A hint for a value that needs quotes, or for text after a value that does not.
fn unquoted(value: &str) -> String {
    match value {
        "True" | "yes" | "on" => "write true".to_owned(),
        "False" | "no" | "off" => "write false".to_owned(),
        _ if value.starts_with(TYPOGRAPHIC) => {
            let value = value.trim_matches(TYPOGRAPHIC);
            format!("write it in straight quotes: \"{}\"", shortened(value))
        }
        _ if value.parse::<i64>().is_ok() => {
            format!("write a comma or a new line after {value}")
        }
        _ => format!("write it in quotes: \"{}\"", shortened(value)),
    }
}

/// A hint for something that is not a key, or for a key without a value.
fn key_hint(text: &str, span: &Range<usize>) -> String {
    let start = text.get(..span.start).and_then(|before| before.rfind('\n')).map_or(0, |newline| newline + 1);
    let line = text.get(start..).unwrap_or_default().trim_start();
    match line.starts_with([';', '/', '%']) || line.starts_with("--") {
        true => "a comment begins with #".to_owned(),
        false => "write KEY = VALUE".to_owned(),
    }
}

/// The characters around an offset up to the next separators: what a person would take for a value.
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

/// The most unclosed strings that are found.
const MAX_STRINGS: usize = 64;

/// An unclosed bracket or string, by byte offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A bracket without a closing one.
    Open { bracket: char, at: usize },
    /// A bracket that another kind of bracket closes.
    Mismatch { open: char, open_at: usize, close: char, at: usize },
    /// A string without closing quotes in its line, or in the text.
    String { quote: &'static str, at: usize },
}

impl Fault {
    /// The offset of the opening bracket or quotes.
    fn begins_at(&self) -> usize {
        match *self {
            Self::Open { at, .. } | Self::String { at, .. } => at,
            Self::Mismatch { open_at, .. } => open_at,
        }
    }
}

/// The bracket that closes another.
fn closing(open: char) -> char {
    if open == '{' { '}' } else { ']' }
}

/// The first unclosed strings and the first unclosed bracket. The parser notices a missing bracket only where
/// the text no longer makes sense, which may be many lines later; this keeps a stack of open brackets.
///
/// Headers (`[x]`, `[[x]]`) are skipped, since the parser reports their problems well. A line within a list
/// may look like one, so they are recognised outside of brackets only.
fn faults(text: &str) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut open: Vec<(char, usize)> = Vec::new();
    // Whether there is only white space before `at` on its line.
    let mut is_line_start = true;
    let mut at = 0;
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        let first = rest.chars().next().unwrap_or_default();
        let line = || rest.find('\n').unwrap_or(rest.len());
        at += match first {
            '#' => line(),
            '[' if open.is_empty() && is_line_start => line(),
            '"' | '\'' => match string(rest) {
                Ok(length) => length,
                Err((quote, length)) => {
                    if faults.len() < MAX_STRINGS {
                        faults.push(Fault::String { quote, at });
                    }
                    length
                }
            },
            '[' | '{' => {
                open.push((first, at));
                1
            }
            ']' | '}' => {
                match open.pop() {
                    Some((bracket, open_at)) if closing(bracket) != first => {
                        faults.push(Fault::Mismatch { open: bracket, open_at, close: first, at });
                        return faults;
                    }
                    // The parser reports a closing bracket without an opening one at its place.
                    Some(_) | None => {}
                }
                1
            }
            other => other.len_utf8(),
        };
        is_line_start = first == '\n' || (is_line_start && first.is_whitespace());
    }
    faults.extend(open.last().map(|(bracket, at)| Fault::Open { bracket: *bracket, at: *at }));
    faults
}

/// The length of the string that a text begins with; if it is not closed, its quotes and how much of the text
/// to skip.
fn string(text: &str) -> Result<usize, (&'static str, usize)> {
    let quote =
        ["\"\"\"", "'''", "\"", "'"].into_iter().find(|quote| text.starts_with(quote)).unwrap_or("\"");
    let has_escapes = quote.starts_with('"');
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(quote.len()) {
        match c {
            '\n' if quote.len() == 1 => return Err((quote, at)),
            _ if is_escaped => is_escaped = false,
            '\\' if has_escapes => is_escaped = true,
            _ if text[at..].starts_with(quote) => return Ok(at + quote.len()),
            _ => {}
        }
    }
    Err((quote, text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_around_an_offset() {
        let text = "a = [10.0.0.0/8, \"x\"]";
        assert_eq!(value_at(text, 5), "10.0.0.0/8");
        assert_eq!(value_at(text, 9), "10.0.0.0/8");
        assert_eq!(value_at("a = 5", 5), "5");
        assert_eq!(value_at("a = é5", 6), "é5");
        assert_eq!(value_at("a", 9), "");
    }

    #[test]
    fn other_formats_are_recognised() {
        assert_eq!(other_format("# x\n\n{ \"version\": 1 }").map(|(name, _)| name), Some("JSON"));
        assert_eq!(other_format("version: 1\nrules:\n").map(|(name, _)| name), Some("YAML"));
        assert_eq!(other_format("---\nversion: 1").map(|(name, _)| name), Some("YAML"));
        for text in ["", "# only\n", "version = 1\n", "[groups.a]\n", "a::b", "x = \"a: b\""] {
            assert_eq!(other_format(text), None, "{text}");
        }
    }

    #[test]
    fn valid_texts_have_no_faults() {
        for text in [
            "",
            "a = [1, { b = \"]\" }] # {\n[x]\n[[y]]\n",
            "a = 'C:\\'\nb = \"\\\"{\"\nc = \"\"\"\n[ \" {\n\"\"\"\nd = '''\n'{\n'''\n",
            "a = [\n  [1],\n]\n",
            "a = { b = [\n\"x\", # it's\n] }\n",
        ] {
            assert_eq!(faults(text), [], "{text}");
        }
    }

    #[test]
    fn unclosed_brackets_and_strings_are_found_at_their_beginning() {
        assert_eq!(faults("a = {\n[x]\nb = 1\n"), [Fault::Open { bracket: '{', at: 4 }]);
        assert_eq!(faults("a = [{ b = 1 }\n"), [Fault::Open { bracket: '[', at: 4 }]);
        let mismatch = Fault::Mismatch { open: '[', open_at: 4, close: '}', at: 6 };
        assert_eq!(faults("a = [1}\n"), [mismatch]);
        assert_eq!(faults("a = \"x\nb = {}\n"), [Fault::String { quote: "\"", at: 4 }]);
        assert_eq!(faults("a = '''x\nb = {\n"), [Fault::String { quote: "'''", at: 4 }]);
    }
}

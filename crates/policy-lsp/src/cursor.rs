//! The place of the cursor in a text that is being typed: the keys that lead to it. Such a text is rarely
//! TOML, so it is scanned up to the cursor, and a line that is the header of a table ends whatever was open.

use std::ops::Range;

/// The place of the cursor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CursorPlace {
    /// The keys from the top of the document to the table or the value; lists have no part in it.
    pub(crate) path: Vec<String>,
    pub(crate) kind: CursorKind,
    /// The bytes of the word at the cursor, from its beginning to its end behind the cursor.
    pub(crate) word: Range<usize>,
}

/// The kind of text at the cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CursorKind {
    /// A key of the table.
    Key,
    /// A value of the key, outside of quotes.
    Value,
    /// A value within these quotes.
    Text(u8),
    /// The header of a table.
    Header,
    Comment,
}

/// An open bracket.
enum Open {
    /// `{`, with the number of keys that led to it.
    Table(usize),
    /// `[`.
    List,
}

/// The state of the scan.
struct Scanner<'t> {
    text: &'t [u8],
    at: usize,
    /// The keys of the header.
    header: Vec<String>,
    /// The keys behind the header.
    keys: Vec<String>,
    open: Vec<Open>,
    /// Whether a value is expected or was read, not a key.
    is_value: bool,
    /// The key that is being read, as it is written.
    key: Range<usize>,
}

impl CursorPlace {
    pub(crate) fn of(text: &str, offset: usize) -> Self {
        let mut offset = offset.min(text.len());
        while !text.is_char_boundary(offset) {
            offset -= 1;
        }
        let mut scanner = Scanner {
            text: text.as_bytes(),
            at: 0,
            header: Vec::new(),
            keys: Vec::new(),
            open: Vec::new(),
            is_value: false,
            key: 0..0,
        };
        let kind = scanner.run(offset);
        let path = match kind {
            CursorKind::Header => Vec::new(),
            _ => scanner.header.iter().chain(&scanner.keys).cloned().collect(),
        };
        Self { path, kind, word: word(text, offset, kind) }
    }
}

impl Scanner<'_> {
    /// Scans up to the offset.
    fn run(&mut self, offset: usize) -> CursorKind {
        let mut is_line_start = true;
        while self.at < offset {
            if is_line_start && let Some(end) = self.header_end() {
                if end > offset {
                    return CursorKind::Header;
                }
                self.read_header(end);
                is_line_start = false;
                continue;
            }
            is_line_start = false;
            match self.text[self.at] {
                b'\n' => {
                    is_line_start = true;
                    self.at += 1;
                    if self.open.is_empty() {
                        self.end_value();
                    }
                }
                b'#' => {
                    let end = self.line_end();
                    if end >= offset {
                        return CursorKind::Comment;
                    }
                    self.at = end;
                }
                quote @ (b'"' | b'\'') => {
                    let (end, is_closed) = self.string_end();
                    // The cursor at the end of a string without its quotes is within it.
                    if offset < end || (offset == end && !is_closed) {
                        return if self.is_value { CursorKind::Text(quote) } else { CursorKind::Key };
                    }
                    self.key.end = end;
                    self.at = end;
                }
                other => self.step(other),
            }
        }
        match self.is_value {
            true => CursorKind::Value,
            // The beginning of a header, whose end is not written yet.
            false if self.open.is_empty() && self.is_header_begun(offset) => CursorKind::Header,
            false => CursorKind::Key,
        }
    }

    /// One character outside of strings, comments and headers.
    fn step(&mut self, character: u8) {
        let at = self.at;
        self.at += 1;
        match character {
            b'=' if !self.is_value => {
                let key = String::from_utf8_lossy(self.text.get(self.key.start..at).unwrap_or_default());
                self.keys.extend(parts(&key));
                self.is_value = true;
            }
            b'{' if self.is_value => {
                self.open.push(Open::Table(self.keys.len()));
                self.begin_key();
            }
            b'[' if self.is_value => self.open.push(Open::List),
            b'}' | b']' => {
                if let Some(Open::Table(keys)) = self.open.pop() {
                    self.keys.truncate(keys);
                }
                self.is_value = true;
            }
            b',' => match self.open.last() {
                Some(Open::Table(keys)) => {
                    self.keys.truncate(*keys);
                    self.begin_key();
                }
                Some(Open::List) | None => {}
            },
            _ => {}
        }
    }

    fn begin_key(&mut self) {
        self.is_value = false;
        self.key = self.at..self.at;
    }

    /// Ends a value at the end of its line.
    fn end_value(&mut self) {
        self.keys.clear();
        self.begin_key();
    }

    fn line_end(&self) -> usize {
        let rest = self.text.get(self.at..).unwrap_or_default();
        rest.iter().position(|byte| *byte == b'\n').map_or(self.text.len(), |length| self.at + length)
    }

    /// The end of the line if it is the header of a table. Within a list `[1]` may begin a line, but not
    /// `[name]`: a list of names has quotes.
    fn header_end(&self) -> Option<usize> {
        let end = self.line_end();
        let line = std::str::from_utf8(self.text.get(self.at..end)?).ok()?;
        let line = line.split('#').next().unwrap_or_default().trim();
        let inner = match line.strip_prefix("[[") {
            Some(rest) => rest.strip_suffix("]]"),
            None => line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')),
        }?;
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '"' | '\'' | ' ');
        let begins_well = inner.trim_start().starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        (begins_well && inner.chars().all(is_name)).then_some(end)
    }

    fn read_header(&mut self, end: usize) {
        let line = String::from_utf8_lossy(self.text.get(self.at..end).unwrap_or_default());
        let line = line.split('#').next().unwrap_or_default();
        self.header = parts(line.trim().trim_matches(['[', ']']));
        self.open.clear();
        self.keys.clear();
        self.at = end;
        self.begin_key();
    }

    /// Whether the line of the offset begins with a bracket.
    fn is_header_begun(&self, offset: usize) -> bool {
        let before = self.text.get(..offset).unwrap_or_default();
        let start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
        before.get(start..).unwrap_or_default().trim_ascii_start().starts_with(b"[")
    }

    /// The end of the string that begins here, and whether it is closed; one without its quotes ends with its
    /// line.
    fn string_end(&self) -> (usize, bool) {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let quote = rest.first().copied().unwrap_or_default();
        let is_long = rest.get(1) == Some(&quote) && rest.get(2) == Some(&quote);
        let width = if is_long { 3 } else { 1 };
        let mut at = width;
        while let Some(byte) = rest.get(at) {
            match byte {
                b'\\' if quote == b'"' => at += 1,
                b'\n' if !is_long => break,
                _ if rest.get(at..at + width).is_some_and(|end| end.iter().all(|byte| *byte == quote)) => {
                    return (self.at + at + width, true);
                }
                _ => {}
            }
            at += 1;
        }
        (self.at + at.min(rest.len()), false)
    }
}

/// The parts of a dotted key.
fn parts(key: &str) -> Vec<String> {
    let (mut parts, mut part, mut quote) = (Vec::new(), String::new(), None);
    for character in key.trim().chars() {
        match (quote, character) {
            (None, '.') => parts.push(std::mem::take(&mut part)),
            (None, '"' | '\'') => quote = Some(character),
            (Some(open), _) if open == character => quote = None,
            (None, _) if character.is_whitespace() => {}
            _ => part.push(character),
        }
    }
    parts.push(part);
    parts
}

/// The bytes of the word around an offset.
fn word(text: &str, offset: usize, kind: CursorKind) -> Range<usize> {
    let is_part = |c: char| match kind {
        CursorKind::Text(quote) => c != char::from(quote) && !c.is_control(),
        CursorKind::Header => !matches!(c, '\n' | '\r'),
        _ => c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '"' | '\''),
    };
    let before = text.get(..offset).unwrap_or_default();
    let behind = text.get(offset..).unwrap_or_default();
    let start = before
        .rfind(|c| !is_part(c))
        .map_or(0, |at| at + before.get(at..).and_then(|rest| rest.chars().next()).map_or(1, char::len_utf8));
    let end = behind.find(|c| !is_part(c)).map_or(text.len(), |at| offset + at);
    start..end
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The path, the kind and the word at `|`.
    fn at(text: &str) -> (String, CursorKind, String) {
        let offset = text.find('|').expect("a cursor");
        let text = text.replacen('|', "", 1);
        let CursorPlace { path, kind, word } = CursorPlace::of(&text, offset);
        (path.join("/"), kind, text[word].to_owned())
    }

    fn expect(text: &str, path: &str, kind: CursorKind, word: &str) {
        assert_eq!(at(text), (path.to_owned(), kind, word.to_owned()), "{text}");
    }

    #[test]
    fn keys_and_values_have_paths() {
        use CursorKind::{Comment, Header, Key, Text, Value};
        expect("vers|", "", Key, "vers");
        expect("default = |", "default", Value, "");
        expect("default = \"ke|\"", "default", Text(b'"'), "ke");
        expect("[[rules]]\nna|me = 1", "rules", Key, "name");
        expect("[[rules]]\nmatch = { dst_|", "rules/match", Key, "dst_");
        expect("[[rules]]\nmatch = { dst_port = [53, |", "rules/match/dst_port", Value, "");
        expect("[[rules]]\nmatch = { a = [{ not = 'x|' }]", "rules/match/a/not", Text(b'\''), "x");
        expect("[[rules]]\nmatch = { a = 1, b|", "rules/match", Key, "b");
        expect("[[rules]]\nmatch.src = \"|\"", "rules/match/src", Text(b'"'), "");
        expect("[groups.\"a.b\"]\nha|", "groups/a.b", Key, "ha");
        expect("[gro|", "", Header, "[gro");
        expect("[gro|ups.x]\na = 1", "", Header, "[groups.x]");
        expect("a = 1 # no|te", "a", Comment, "note");
    }

    #[test]
    fn headers_end_what_is_open() {
        use CursorKind::{Key, Value};
        expect("[[rules]]\nmatch = { a = [1\n[[rules]]\nna|", "rules", Key, "na");
        expect("[[rules]]\nname = \"open\n[groups.x]\nwo|", "groups/x", Key, "wo");
        expect("[sets]\na = [\n[1],\n|", "sets/a", Value, "");
        expect("[[rules]] # with a note\nna|", "rules", Key, "na");
    }

    #[test]
    fn no_offset_panics() {
        let text = "[[rules]]\nname = \"ü\"\nmatch = { a = '''x\n''', \"b\" = [1, {c = \"\\\"\"}] } # ü\n";
        for end in 0..=text.len() {
            for offset in 0..=end {
                if let Some(text) = text.get(..end) {
                    CursorPlace::of(text, offset);
                }
            }
        }
    }
}

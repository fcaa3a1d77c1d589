//! Where brackets and strings of a text that is not TOML do not close. The parser notices a missing bracket only
//! where the text makes no sense any more, which may be lines below; this looks for what was opened.

/// Further strings that do not end are left to the parser.
const MAX_STRINGS: usize = 64;

/// What does not close, by byte offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A bracket that is open to the end of the text.
    Open { bracket: char, at: usize },
    /// A bracket that another kind of bracket closes.
    Mismatch { open: char, open_at: usize, close: char, at: usize },
    /// A string that its line, or the text, does not end.
    String { quote: &'static str, at: usize },
}

impl Fault {
    /// Where what does not close begins.
    pub(super) fn begins_at(&self) -> usize {
        match *self {
            Self::Open { at, .. } | Self::String { at, .. } => at,
            Self::Mismatch { open_at, .. } => open_at,
        }
    }
}

/// The bracket that closes another.
pub(super) fn closing(open: char) -> char {
    if open == '{' { '}' } else { ']' }
}

/// The first strings that do not end, and the first bracket that does not close: behind it nothing is known.
///
/// Headers (`[x]`, `[[x]]`) are left to the parser, which sees what is wrong with them; a line within a list may
/// look like one, so they are only looked for outside of all brackets.
pub(super) fn faults(text: &str) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut open: Vec<(char, usize)> = Vec::new();
    // Whether there are only blanks before `at` on its line.
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
                    // One too many is seen by the parser where it stands.
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

/// The length of the string that a text begins with; if it does not end, its quotes and what is skipped of it.
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
    fn sound_texts_have_no_faults() {
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
    fn what_is_open_is_found_where_it_begins() {
        assert_eq!(faults("a = {\n[x]\nb = 1\n"), [Fault::Open { bracket: '{', at: 4 }]);
        assert_eq!(faults("a = [{ b = 1 }\n"), [Fault::Open { bracket: '[', at: 4 }]);
        let mismatch = Fault::Mismatch { open: '[', open_at: 4, close: '}', at: 6 };
        assert_eq!(faults("a = [1}\n"), [mismatch]);
        assert_eq!(faults("a = \"x\nb = {}\n"), [Fault::String { quote: "\"", at: 4 }]);
        assert_eq!(faults("a = '''x\nb = {\n"), [Fault::String { quote: "'''", at: 4 }]);
    }
}

//! The text of a document that is open in the editor, and its changes.

use std::sync::{Arc, OnceLock};

use lsp_types::{Position, Range, TextDocumentContentChangeEvent, Uri};

use crate::outline::Outline;
use crate::position::{CodeUnits, LineIndex};

/// An open document.
pub(crate) struct TextBuffer {
    /// The name as the client writes it.
    pub(crate) uri: Uri,
    pub(crate) version: i32,
    text: Arc<str>,
    lines: LineIndex,
    outline: OnceLock<Arc<Outline>>,
}

impl TextBuffer {
    pub(crate) fn new(uri: Uri, version: i32, text: String) -> Self {
        let lines = LineIndex::of(&text);
        Self { uri, version, text: text.into(), lines, outline: OnceLock::new() }
    }

    pub(crate) fn text(&self) -> &Arc<str> {
        &self.text
    }

    /// The names in the text.
    pub(crate) fn outline(&self) -> &Arc<Outline> {
        self.outline.get_or_init(|| Arc::new(Outline::of(&self.text)))
    }

    /// Applies changes one after the other.
    pub(crate) fn apply(
        &mut self,
        version: i32,
        changes: Vec<TextDocumentContentChangeEvent>,
        units: CodeUnits,
    ) {
        self.version = version;
        let mut text = String::from(&*self.text);
        for change in changes {
            match change.range {
                None => text = change.text,
                Some(range) => {
                    let (start, end) = [range.start, range.end]
                        .map(|position| self.lines.offset(&text, position, units))
                        .into();
                    // A reversed range means the same text.
                    text.replace_range(start.min(end)..start.max(end), &change.text);
                }
            }
            self.lines = LineIndex::of(&text);
        }
        self.text = text.into();
        self.outline = OnceLock::new();
    }

    pub(crate) fn offset(&self, position: Position, units: CodeUnits) -> usize {
        self.lines.offset(&self.text, position, units)
    }

    pub(crate) fn range(&self, span: &std::ops::Range<usize>, units: CodeUnits) -> Range {
        self.lines.range(&self.text, span, units)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn buffer(text: &str) -> TextBuffer {
        TextBuffer::new("file:///p.toml".parse().expect("a URI"), 0, text.to_owned())
    }

    fn change(range: Option<Range>, text: &str) -> TextDocumentContentChangeEvent {
        TextDocumentContentChangeEvent { range, range_length: None, text: text.to_owned() }
    }

    /// The unit of UTF-16 that a position names, found line by line in the units themselves.
    fn unit(units: &[u16], position: Position) -> usize {
        let mut at = 0;
        for _ in 0..position.line {
            loop {
                match units.get(at) {
                    None => return units.len(),
                    Some(0x0d) if units.get(at + 1) == Some(&0x0a) => at += 2,
                    Some(0x0a | 0x0d) => at += 1,
                    Some(_) => {
                        at += 1;
                        continue;
                    }
                }
                break;
            }
        }
        let rest = units.get(at..).unwrap_or_default();
        let length = rest.iter().position(|unit| matches!(unit, 0x0a | 0x0d)).unwrap_or(rest.len());
        let end = at + length.min(position.character as usize);
        let splits = end > at && end < at + length && (0xdc00..0xe000).contains(&units[end]);
        if splits { end - 1 } else { end }
    }

    fn positions() -> impl Strategy<Value = Position> {
        (0u32..6, 0u32..8).prop_map(|(line, character)| Position { line, character })
    }

    proptest! {
        #[test]
        fn edits_equal_those_of_the_whole_text(
            begin in "[a-c\u{fc}\u{1d11e}\r\n]{0,20}",
            edits in proptest::collection::vec((positions(), positions(), "[x\u{fc}\u{1d11e}\r\n]{0,4}"), 1..8),
        ) {
            let mut edited = buffer(&begin);
            let mut expected: Vec<u16> = begin.encode_utf16().collect();
            for (version, (one, other, text)) in (1..).zip(edits) {
                let (start, end) = (unit(&expected, one), unit(&expected, other));
                expected.splice(start.min(end)..start.max(end), text.encode_utf16());
                edited.apply(version, vec![change(Some(Range { start: one, end: other }), &text)], CodeUnits::Utf16);
                let whole = String::from_utf16(&expected).expect("no character is split");
                prop_assert_eq!(&**edited.text(), &*whole);
                prop_assert_eq!(&edited.lines, &LineIndex::of(&whole));
            }
        }
    }

    #[test]
    fn several_changes_follow_each_other() {
        let mut edited = buffer("ab\ncd");
        let at = |line, character| Position { line, character };
        let insert = |position, text| change(Some(Range { start: position, end: position }), text);
        edited.apply(7, vec![insert(at(0, 2), "\nx"), insert(at(1, 1), "y")], CodeUnits::Utf16);
        assert_eq!((&**edited.text(), edited.version), ("ab\nxy\ncd", 7));
        edited.apply(8, vec![change(None, "new"), insert(at(0, 3), "!")], CodeUnits::Utf16);
        assert_eq!(&**edited.text(), "new!");
    }
}

//! Positions of the protocol, which are a line and code units in it, and offsets of bytes in a text.

use std::ops::Range as Span;

use lsp_types::{Position, PositionEncodingKind, Range};

/// The code units that a position counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CodeUnits {
    Utf8,
    /// The code units of UTF-16, which every client knows.
    #[default]
    Utf16,
    Utf32,
}

/// The beginnings of the lines of a text. A line ends with LF, CR LF or CR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LineIndex {
    starts: Vec<usize>,
}

impl CodeUnits {
    /// The first encoding of the client that is known here.
    pub(crate) fn chosen(offered: &[PositionEncodingKind]) -> Self {
        let known = |kind: &PositionEncodingKind| match kind.as_str() {
            "utf-8" => Some(Self::Utf8),
            "utf-16" => Some(Self::Utf16),
            "utf-32" => Some(Self::Utf32),
            _ => None,
        };
        offered.iter().find_map(known).unwrap_or_default()
    }

    pub(crate) fn kind(self) -> PositionEncodingKind {
        match self {
            Self::Utf8 => PositionEncodingKind::UTF8,
            Self::Utf16 => PositionEncodingKind::UTF16,
            Self::Utf32 => PositionEncodingKind::UTF32,
        }
    }

    /// The code units of a character.
    fn of(self, character: char) -> usize {
        match self {
            Self::Utf8 => character.len_utf8(),
            Self::Utf16 => character.len_utf16(),
            Self::Utf32 => 1,
        }
    }
}

impl LineIndex {
    pub(crate) fn of(text: &str) -> Self {
        let bytes = text.as_bytes();
        let ends = |(at, byte): (usize, &u8)| match byte {
            b'\n' => Some(at + 1),
            b'\r' if bytes.get(at + 1) != Some(&b'\n') => Some(at + 1),
            _ => None,
        };
        Self { starts: std::iter::once(0).chain(bytes.iter().enumerate().filter_map(ends)).collect() }
    }

    /// The bytes of a line without its end; an empty span at the end of the text for a line behind the last.
    fn line(&self, text: &str, line: usize) -> Span<usize> {
        let Some(start) = self.starts.get(line).copied() else { return text.len()..text.len() };
        let end = self.starts.get(line + 1).copied().unwrap_or(text.len());
        let content = text.get(start..end).unwrap_or_default();
        start..start + content.trim_end_matches(['\r', '\n']).len()
    }

    /// The offset of a position. A position behind the end of its line is that end, and one within a
    /// character is its beginning.
    pub(crate) fn offset(&self, text: &str, position: Position, units: CodeUnits) -> usize {
        let line = self.line(text, position.line as usize);
        let mut left = position.character as usize;
        let content = text.get(line.clone()).unwrap_or_default();
        for (at, character) in content.char_indices() {
            let width = units.of(character);
            if left < width {
                return line.start + at;
            }
            left -= width;
        }
        line.end
    }

    pub(crate) fn position(&self, text: &str, offset: usize, units: CodeUnits) -> Position {
        let mut offset = offset.min(text.len());
        while !text.is_char_boundary(offset) {
            offset -= 1;
        }
        let line = self.starts.partition_point(|start| *start <= offset).saturating_sub(1);
        let start = self.starts.get(line).copied().unwrap_or(0);
        let before = text.get(start..offset).unwrap_or_default();
        let character: usize = before.chars().map(|character| units.of(character)).sum();
        let narrow = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        Position { line: narrow(line), character: narrow(character) }
    }

    pub(crate) fn range(&self, text: &str, span: &Span<usize>, units: CodeUnits) -> Range {
        Range { start: self.position(text, span.start, units), end: self.position(text, span.end, units) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_the_agreed_units() {
        // ü has two bytes, 𝄞 four bytes and two units of UTF-16.
        let text = "a\n# ü𝄞x\r\nb";
        let lines = LineIndex::of(text);
        let at = text.find('x').expect("it is there");
        for (units, character) in [(CodeUnits::Utf8, 8), (CodeUnits::Utf16, 5), (CodeUnits::Utf32, 4)] {
            let position = lines.position(text, at, units);
            assert_eq!(position, Position { line: 1, character });
            assert_eq!(lines.offset(text, position, units), at);
        }
        let inside = Position { line: 1, character: 4 };
        assert_eq!(lines.offset(text, inside, CodeUnits::Utf16), text.find('𝄞').expect("it is there"));
    }

    #[test]
    fn positions_beyond_the_text_are_ends() {
        let text = "ab\r\nc\rd";
        let lines = LineIndex::of(text);
        let offset = |line, character| lines.offset(text, Position { line, character }, CodeUnits::Utf16);
        assert_eq!([offset(0, 99), offset(1, 99), offset(2, 99), offset(9, 0)], [2, 5, 7, 7]);
        assert_eq!(lines.position(text, 99, CodeUnits::Utf16), Position { line: 2, character: 1 });
    }

    #[test]
    fn the_first_known_encoding_is_chosen() {
        let kinds = |names: &[&'static str]| -> Vec<PositionEncodingKind> {
            names.iter().map(|name| PositionEncodingKind::new(name)).collect()
        };
        assert_eq!(CodeUnits::chosen(&kinds(&["utf-7", "utf-8", "utf-16"])), CodeUnits::Utf8);
        assert_eq!(CodeUnits::chosen(&[]), CodeUnits::Utf16);
    }
}

//! The items of one set as text with places: written in the policy, or a line each in a file. Called by `sets`;
//! knows nothing of what the items mean.

use std::ops::Range;
use std::sync::Arc;

use crate::diagnostics::Place;
use crate::policy::MAX_SET_VALUES;
use crate::schema::keys;
use crate::source::Source;

use super::super::files::Files;
use super::super::reader::{Reader, Table, Value};
use super::scalar;

const BYTE_ORDER_MARK: char = '\u{feff}';

/// The items of a set as text; a large one is not copied out of its file.
pub(super) enum Items {
    Inline(Arc<Source>, Vec<(String, Range<usize>)>),
    File(Arc<Source>, Vec<Range<usize>>),
}

impl Items {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Inline(_, items) => items.len(),
            Self::File(_, spans) => spans.len(),
        }
    }

    pub(super) fn text(&self, index: usize) -> &str {
        match self {
            Self::Inline(_, items) => items.get(index).map_or("", |(text, _)| text),
            Self::File(source, spans) => {
                spans.get(index).and_then(|span| source.text.get(span.clone())).unwrap_or("")
            }
        }
    }

    pub(super) fn place(&self, index: usize) -> Place {
        match self {
            Self::Inline(source, items) => {
                Place::new(source, items.get(index).map_or(0..0, |(_, span)| span.clone()))
            }
            Self::File(source, spans) => Place::new(source, spans.get(index).cloned().unwrap_or(0..0)),
        }
    }
}

/// `[...]`.
pub(super) fn inline(reader: &mut Reader, value: &Value<'_>) -> Items {
    let mut items = Vec::new();
    let array = reader.array(value, "a set").unwrap_or(&[]);
    if array.len() > MAX_SET_VALUES {
        reader.error(value.span(), format!("a set has at most {MAX_SET_VALUES} values"), "too many");
        return Items::Inline(Arc::clone(&reader.source), items);
    }
    for value in array {
        match scalar(value) {
            Some(text) => items.push((text.trim().to_owned(), value.span())),
            None => reader.mistyped(value, "an item of a set", "a string or a number"),
        }
    }
    Items::Inline(Arc::clone(&reader.source), items)
}

/// `{ file = "x.txt" }`: one value per line, `#` begins a comment.
pub(super) fn from_file(
    reader: &mut Reader,
    value: &Value<'_>,
    table: &Table<'_>,
    files: &mut Files<'_>,
) -> Items {
    let nothing = Items::Inline(Arc::clone(&reader.source), Vec::new());
    reader.refuse_unknown_keys(table, keys::SET_FILE, "a set from a file");
    let Some(file) = table.get("file") else {
        let hint = "write { file = \"name.txt\" }";
        reader.error_with(value.span(), "the set names no file", "no `file` here", hint);
        return nothing;
    };
    let Some(name) = reader.string(file, "`file`") else { return nothing };
    let source = match files.load(name) {
        Ok(source) => Arc::new(source),
        Err(error) => {
            let hint = "the name is relative to the policy file";
            reader.error_with(file.span(), format!("cannot read the set: {error}"), "named here", hint);
            return nothing;
        }
    };
    let mut spans = Vec::new();
    // Editors of some systems begin a file with it.
    let mut line_start =
        if source.text.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len_utf8() } else { 0 };
    for line in source.text[line_start..].split_inclusive('\n') {
        let content = line.split('#').next().unwrap_or_default();
        let text = content.trim();
        if !text.is_empty() {
            let start = line_start + (content.len() - content.trim_start().len());
            spans.push(start..start + text.len());
        }
        line_start += line.len();
    }
    if spans.len() > MAX_SET_VALUES {
        let message = format!("{name} has {} values, a set at most {MAX_SET_VALUES}", spans.len());
        reader.error(file.span(), message, "too many");
        return nothing;
    }
    Items::File(source, spans)
}

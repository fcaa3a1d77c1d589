//! The items of one set as text with places: inline in the policy, or one per line in a file. They are not
//! parsed here.

use std::ops::Range;
use std::sync::Arc;

use crate::diagnostics::Place;
use crate::keys;
use crate::policy::{MAX_CHANGE, MAX_SET_VALUES};
use crate::source::Source;

use super::super::files::Files;
use super::super::reader::{Reader, Table, Value};
use super::{scalar, shortened};

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

/// A set as read from the text.
pub(super) struct Written {
    pub(super) items: Items,
    pub(super) limits: Limits,
}

/// How many items a set must have.
pub(super) struct Limits {
    /// The message for an empty set.
    pub(super) what: String,
    /// The place of the list or file name.
    pub(super) place: Place,
    pub(super) allow_empty: bool,
    /// `min_items` and its place.
    pub(super) least: Option<(usize, Place)>,
    /// `max_change` in percent.
    pub(super) max_change: Option<u32>,
}

/// `[...]`, `{ items = [...] }` or `{ file = "x.txt" }`, the last two with limits. `None`: it cannot be read,
/// which was reported.
pub(super) fn read(reader: &mut Reader, value: &Value<'_>, files: &mut Files<'_>) -> Option<Written> {
    let Some(table) = value.get_ref().as_table() else {
        let limits = Limits {
            what: "is an empty list".to_owned(),
            place: reader.place(value.span()),
            allow_empty: false,
            least: None,
            max_change: None,
        };
        return Some(Written { items: inline(reader, value)?, limits });
    };
    reader.refuse_unknown_keys(table, keys::SET, "a set");
    let (content, is_file) = match (table.get("file"), table.get("items")) {
        (Some(file), None) => (file, true),
        (None, Some(items)) => (items, false),
        (given, _) => {
            let what = if given.is_some() { "both `file` and `items`" } else { "neither `file` nor `items`" };
            let hint = "write { file = \"name.txt\" } or { items = [...] }";
            reader.error_with(value.span(), format!("the set has {what}"), "one of them is required", hint);
            return None;
        }
    };
    let what = match content.get_ref().as_str() {
        Some(name) if is_file => format!("is empty: the file `{}` has no values", shortened(name)),
        _ => "is an empty list".to_owned(),
    };
    let place = reader.place(content.span());
    let limits = limits(reader, table, what, place);
    let items = if is_file { from_file(reader, content, files) } else { inline(reader, content) };
    Some(Written { items: items?, limits })
}

/// `allow_empty`, `min_items` and `max_change`.
fn limits(reader: &mut Reader, table: &Table<'_>, what: String, place: Place) -> Limits {
    let allow_empty = table.get("allow_empty").and_then(|value| reader.boolean(value, "`allow_empty`"));
    let most = u32::try_from(MAX_SET_VALUES).unwrap_or(u32::MAX);
    let least = table.get("min_items").and_then(|value| {
        let least = reader.integer(value, "`min_items`", 1, most)?;
        Some((least as usize, reader.place(value.span())))
    });
    if let (Some(true), Some((_, least))) = (allow_empty, &least) {
        let error = least.error("a set with `min_items` cannot be empty", "next to allow_empty = true");
        reader.push(error.hint("remove one of the two"));
    }
    let max_change = table.get("max_change");
    let max_change = max_change.and_then(|value| reader.integer(value, "`max_change`", 1, MAX_CHANGE));
    Limits { what, place, allow_empty: allow_empty == Some(true), least, max_change }
}

/// `[...]`.
fn inline(reader: &mut Reader, value: &Value<'_>) -> Option<Items> {
    let array = reader.array(value, "a set")?;
    if array.len() > MAX_SET_VALUES {
        reader.error(value.span(), format!("a set has at most {MAX_SET_VALUES} values"), "too many");
        return None;
    }
    let mut items = Vec::new();
    for value in array {
        match scalar(value) {
            Some(text) => items.push((text.trim().to_owned(), value.span())),
            None => reader.wrong_type(value, "an item of a set", "a string or a number"),
        }
    }
    // A list whose items were all refused is not reported as empty.
    (array.is_empty() || !items.is_empty()).then(|| Items::Inline(Arc::clone(&reader.source), items))
}

/// One value per line, `#` begins a comment.
fn from_file(reader: &mut Reader, file: &Value<'_>, files: &mut Files<'_>) -> Option<Items> {
    let name = reader.string(file, "`file`")?;
    let source = match files.load(name) {
        Ok(source) => Arc::new(source),
        Err(error) => {
            let hint = "the name is relative to the policy file";
            reader.unreadable(file.span(), "cannot read the set", hint, &error);
            return None;
        }
    };
    let mut spans = Vec::new();
    // Some editors write a byte order mark.
    let mut line_start =
        if source.text.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len_utf8() } else { 0 };
    let mut last_line = 0..0;
    for line in source.text[line_start..].split_inclusive('\n') {
        let content = line.split('#').next().unwrap_or_default();
        let text = content.trim();
        if !text.is_empty() {
            let start = line_start + (content.len() - content.trim_start().len());
            spans.push(start..start + text.len());
        }
        last_line = line_start..line_start + line.len();
        line_start += line.len();
    }
    if spans.len() > MAX_SET_VALUES {
        let message =
            format!("`{}` has {} values, a set at most {MAX_SET_VALUES}", shortened(name), spans.len());
        reader.error(file.span(), message, "too many");
        return None;
    }
    // A text file ends with a newline (POSIX, "Text File"). A truncated one may end within a value, and a
    // truncated 192.0.2.17 may be a valid address.
    if !spans.is_empty() && !source.text.ends_with('\n') {
        let place = Place::new(&source, last_line);
        let warning =
            place.warning("the last line has no newline: the file may have been cut off", "last line");
        reader.push(warning.hint("write the complete file, with a newline at its end"));
    }
    Some(Items::File(source, spans))
}

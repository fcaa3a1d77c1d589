//! `[sets]`: named lists, inline or from files, and the lists of matches that may name them. A set has no
//! type of its own; its items are read as what the key that names the set wants.

use std::ops::Range;
use std::sync::Arc;

use crate::diagnostics::{Diagnostic, Place, Severity};
use crate::policy::MAX_SET_VALUES;
use crate::source::{SetLoader, Source};

use super::reader::{Reader, Value, entries, integer_of, nearest};
use super::values::{Kind, Refused, is_keyword};

/// All sets of a policy.
#[derive(Default)]
pub(super) struct Sets {
    list: Vec<Set>,
}

struct Set {
    name: String,
    place: Place,
    items: Vec<Item>,
    used: bool,
    /// Kinds of values that this set's items were already found not to be: reported once, not per use.
    reported: Vec<&'static str>,
}

struct Item {
    text: String,
    source: Arc<Source>,
    span: Range<usize>,
}

impl Sets {
    /// Reads `[sets]`.
    pub(super) fn read(reader: &mut Reader, value: &Value<'_>, loader: &dyn SetLoader) -> Self {
        let mut sets = Self::default();
        let Some(table) = reader.table(value, "`sets`") else { return sets };
        for (key, value) in entries(table) {
            let name: &str = key.get_ref();
            let place = reader.place(key.span());
            if !reader.name_is_good(name, key.span(), "the set") {
                continue;
            }
            if is_keyword(name) {
                let message = format!("a set cannot be called `{name}`");
                reader.error_with(key.span(), message, "this word is a value already", "choose another name");
                continue;
            }
            let items = match value.get_ref().as_table() {
                Some(_) => file_items(reader, value, loader),
                None => inline_items(reader, value),
            };
            sets.list.push(Set { name: name.to_owned(), place, items, used: false, reported: Vec::new() });
        }
        sets
    }

    fn index(&self, name: &str) -> Option<usize> {
        self.list.iter().position(|set| set.name == name)
    }

    /// Warns of sets that nothing names, and of empty ones that something does.
    pub(super) fn warn(&self, reader: &mut Reader) {
        for set in &self.list {
            let name = &set.name;
            if !set.used {
                let warning = set.place.warning(format!("the set `{name}` is never used"), "defined here");
                reader.push(warning.hint("remove it, or name it in a match"));
            } else if set.items.is_empty() {
                let message = format!("the set `{name}` is empty, so no packet matches it");
                reader.push(set.place.warning(message, "defined here"));
            }
        }
    }

    /// The values of a match key: one, a list, the name of a set, or a list with names of sets in it.
    ///
    /// `None` if nothing at all could be read; then something was reported.
    pub(super) fn values<T>(
        &mut self,
        reader: &mut Reader,
        value: &Value<'_>,
        key: &str,
        kind: &Kind<T>,
    ) -> Option<Vec<T>> {
        let mut values = Vec::new();
        // Refused ones count as well: they cost no less.
        let mut tried = 0;
        let items = match value.get_ref().as_array() {
            Some(array) if array.is_empty() => {
                reader.error_with(
                    value.span(),
                    format!("`{key}` is an empty list"),
                    "matches no packet",
                    "leave the key out to match every packet",
                );
                return None;
            }
            Some(array) => &**array,
            None => std::slice::from_ref(value),
        };
        for item in items {
            tried += self.item(reader, item, key, kind, &mut values);
            if tried > MAX_SET_VALUES {
                let message = format!("`{key}` has more than {MAX_SET_VALUES} values");
                reader.error(item.span(), message, "too many");
                return None;
            }
        }
        Some(values)
    }

    /// One literal or one set; gives the number of values tried. Reports what is neither.
    fn item<T>(
        &mut self,
        reader: &mut Reader,
        value: &Value<'_>,
        key: &str,
        kind: &Kind<T>,
        values: &mut Vec<T>,
    ) -> usize {
        let Some(text) = scalar(value) else {
            reader.mistyped(value, &format!("`{key}`"), "a string, a number or a list of them");
            return 1;
        };
        match (kind.parse)(text.trim()) {
            Ok(literal) => values.push(literal),
            Err(refused) => match self.index(text.trim()) {
                Some(set) => return self.expand(reader, value, set, kind, values),
                None => reader
                    .diagnostics
                    .push_with(Severity::Error, || self.refused(&reader.source, value, &text, kind, refused)),
            },
        }
        1
    }

    fn refused<T>(
        &self,
        source: &Arc<Source>,
        value: &Value<'_>,
        text: &str,
        kind: &Kind<T>,
        refused: Refused,
    ) -> Diagnostic {
        let looks_like_a_name = text.starts_with(|first: char| first.is_ascii_alphabetic())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
        let near = nearest(text, self.list.iter().map(|set| set.name.as_str())).filter(|_| looks_like_a_name);
        let message = match looks_like_a_name && refused.0.is_none() {
            true => format!("`{}` is neither {} nor a set", shortened(text), kind.name),
            false => format!("`{}` is not {}", shortened(text), kind.name),
        };
        let hint = match (refused.0, near) {
            (Some(better), _) => better,
            (None, Some(near)) => format!("did you mean the set `{near}`?"),
            (None, None) => kind.hint.to_owned(),
        };
        Place::new(source, value.span()).error(message, format!("not {}", kind.name)).hint(hint)
    }

    /// The items of a set; gives their number.
    fn expand<T>(
        &mut self,
        reader: &mut Reader,
        value: &Value<'_>,
        index: usize,
        kind: &Kind<T>,
        values: &mut Vec<T>,
    ) -> usize {
        let Some(set) = self.list.get_mut(index) else { return 0 };
        set.used = true;
        let is_news = !set.reported.contains(&kind.name);
        // A set of something else was named by mistake: its items are right where they stand.
        let refused = |item: &Item| (kind.parse)(&item.text).is_err();
        if is_news && set.items.len() > 1 && set.items.iter().all(refused) {
            set.reported.push(kind.name);
            let message = format!("nothing in the set `{}` is {}", set.name, kind.name);
            let first = set.items.first().map_or("", |item| &item.text);
            let hint = format!("the set begins with `{}`; {}", shortened(first), kind.hint);
            reader.error_with(value.span(), message, format!("wants {} or more", kind.name), hint);
            return set.items.len();
        }
        for item in &set.items {
            match (kind.parse)(&item.text) {
                Ok(value) => values.push(value),
                Err(Refused(better)) if is_news => {
                    reader.diagnostics.push_with(Severity::Error, || {
                        let text = shortened(&item.text);
                        let message = format!("`{text}` in the set `{}` is not {}", set.name, kind.name);
                        Place::new(&item.source, item.span.clone())
                            .error(message, format!("not {}", kind.name))
                            .hint(better.unwrap_or_else(|| kind.hint.to_owned()))
                    });
                    if set.reported.last() != Some(&kind.name) {
                        set.reported.push(kind.name);
                    }
                }
                Err(_) => {}
            }
        }
        set.items.len().max(1)
    }
}

/// Strings as they are, numbers in decimal: both are then read by their kind.
fn scalar(value: &Value<'_>) -> Option<String> {
    match value.get_ref().as_str() {
        Some(text) => Some(text.to_owned()),
        None => integer_of(value).map(|number| number.to_string()),
    }
}

/// What a message shows of an item, however long or odd it is.
fn shortened(text: &str) -> String {
    const SHOWN: usize = 48;
    let printable = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    match text.char_indices().nth(SHOWN) {
        Some((cut, _)) => text[..cut].chars().map(printable).chain("...".chars()).collect(),
        None => text.chars().map(printable).collect(),
    }
}

fn inline_items(reader: &mut Reader, value: &Value<'_>) -> Vec<Item> {
    let Some(array) = reader.array(value, "a set") else { return Vec::new() };
    let mut items = Vec::new();
    if array.len() > MAX_SET_VALUES {
        reader.error(value.span(), format!("a set has at most {MAX_SET_VALUES} values"), "too many");
        return items;
    }
    for value in array {
        match scalar(value) {
            Some(text) => {
                let text = text.trim().to_owned();
                items.push(Item { text, source: Arc::clone(&reader.source), span: value.span() });
            }
            None => reader.mistyped(value, "an item of a set", "a string or a number"),
        }
    }
    items
}

/// `{ file = "x.txt" }`: one value per line, `#` begins a comment.
fn file_items(reader: &mut Reader, value: &Value<'_>, loader: &dyn SetLoader) -> Vec<Item> {
    let Some(table) = reader.table(value, "a set") else { return Vec::new() };
    reader.refuse_unknown_keys(table, &["file"], "a set from a file");
    let Some(file) = table.get("file") else {
        reader.error_with(
            value.span(),
            "the set names no file",
            "no `file` here",
            "write { file = \"name.txt\" }",
        );
        return Vec::new();
    };
    let Some(name) = reader.string(file, "`file`") else { return Vec::new() };
    let source = match loader.load(name) {
        Ok(source) => Arc::new(source),
        Err(error) => {
            let hint = "the name is relative to the policy file";
            reader.error_with(file.span(), format!("cannot read the set: {error}"), "named here", hint);
            return Vec::new();
        }
    };
    let mut items = Vec::new();
    let mut line_start = 0;
    for line in source.text.split_inclusive('\n') {
        let content = line.split('#').next().unwrap_or_default();
        let text = content.trim();
        if !text.is_empty() {
            let start = line_start + (content.len() - content.trim_start().len());
            let span = start..start + text.len();
            items.push(Item { text: text.to_owned(), source: Arc::clone(&source), span });
        }
        line_start += line.len();
    }
    if items.len() > MAX_SET_VALUES {
        let message = format!("{name} has {} values, a set at most {MAX_SET_VALUES}", items.len());
        reader.error(file.span(), message, "too many");
        items.clear();
    }
    items
}

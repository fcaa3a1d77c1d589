//! `mpls`: a label stack from the top. A list is the stack, not a choice: alternatives of one label are a list
//! within it.

use packet::MAX_MPLS_LABELS;
use program::MplsEntry;

use crate::schema::keys;

use super::matches::numbers;
use super::reader::{Reader, Value};
use super::sets::Sets;
use super::values;

/// Reads the stack; `is_inner` for the one behind an inner Ethernet header, of which only the top is known.
pub(super) fn read(
    reader: &mut Reader,
    value: &Value<'_>,
    sets: &mut Sets,
    is_inner: bool,
) -> Option<Vec<MplsEntry>> {
    if value.get_ref().as_str() == Some("any") {
        return Some(Vec::new());
    }
    let items = match value.get_ref().as_array() {
        Some(array) => &**array,
        None => std::slice::from_ref(value),
    };
    let most = if is_inner { 1 } else { MAX_MPLS_LABELS };
    if items.is_empty() {
        reader.error_with(value.span(), "`mpls` is an empty list", "which labels?", "write mpls = \"any\"");
        return None;
    }
    if items.len() > most {
        let message = match is_inner {
            true => "only the top label is known inside a tunnel".to_owned(),
            false => format!("at most {most} labels are known, from the top"),
        };
        let hint = "a list is the stack from the top; write [[100, 101]] for a choice of one label";
        reader.error_with(value.span(), message, format!("{} labels", items.len()), hint);
        return None;
    }
    // Each is read, also behind a wrong one, so that all problems are told at once.
    let stack: Vec<Option<MplsEntry>> = items.iter().map(|item| entry(reader, item, sets)).collect();
    let mut above = items.iter().zip(&stack).take(items.len() - 1);
    let is_bottom =
        |entry: &Option<MplsEntry>| entry.as_ref().is_some_and(|entry| entry.bottom == Some(true));
    if let Some((item, _)) = above.find(|(_, entry)| is_bottom(entry)) {
        let hint = "leave out the labels below it";
        reader.error_with(item.span(), "nothing is below the bottom of the stack", "not the last", hint);
        return None;
    }
    stack.into_iter().collect()
}

fn entry(reader: &mut Reader, value: &Value<'_>, sets: &mut Sets) -> Option<MplsEntry> {
    let mut entry = MplsEntry::default();
    let table = value.get_ref().as_table().filter(|table| !table.contains_key("not"));
    let Some(table) = table else {
        if value.get_ref().as_str() != Some("any") {
            entry.label = Some(numbers(reader, value, "mpls", &values::LABEL, sets)?);
        }
        return Some(entry);
    };
    reader.refuse_unknown_keys(table, keys::MPLS, "a label");
    if table.is_empty() {
        let hint = "write \"any\", or { label = 100 }";
        reader.error_with(value.span(), "the label is empty", "which label?", hint);
        return None;
    }
    let before = reader.diagnostics.error_count();
    if let Some(value) = table.get("label") {
        entry.label = numbers(reader, value, "label", &values::LABEL, sets);
    }
    if let Some(value) = table.get("tc") {
        entry.tc = numbers(reader, value, "tc", &values::TRAFFIC_CLASS, sets);
    }
    if let Some(value) = table.get("bottom") {
        entry.bottom = reader.boolean(value, "`bottom`");
    }
    if let Some(value) = table.get("ttl") {
        entry.ttl = numbers(reader, value, "ttl", &values::TTL, sets);
    }
    (reader.diagnostics.error_count() == before).then_some(entry)
}

//! TOML text to a checked [`Policy`]: every problem of the text and of its set files at once, each with
//! its place. Called by whoever has a policy's text; it reads files only through the loader it is given.

mod conflicts;
mod groups;
mod reader;
mod rules;
mod sets;
mod values;

use std::sync::Arc;

use toml::Spanned;
use toml::de::DeTable;

use crate::diagnostics::{Diagnostic, Diagnostics};
use crate::policy::{Action, Policy};
use crate::source::{MAX_FILE_BYTES, SetLoader, Source};

use reader::{Reader, Table};
use sets::Sets;

/// The version of the language.
const VERSION: u32 = 1;
const KEYS: [&str; 5] = ["version", "default", "sets", "groups", "rules"];

/// Reads a policy; what is returned beside it are warnings.
///
/// # Errors
/// All problems of the text and of its set files at once. After errors of TOML itself the rest is not
/// looked at: what the parser guessed would only raise more of them.
pub fn parse(source: &Source, loader: &dyn SetLoader) -> Result<(Policy, Vec<Diagnostic>), Diagnostics> {
    let source = Arc::new(source.clone());
    let mut reader = Reader { source: Arc::clone(&source), diagnostics: Diagnostics::default() };
    if source.text.len() as u64 > MAX_FILE_BYTES {
        reader.error(0..0, format!("a policy has at most {MAX_FILE_BYTES} bytes"), "too long");
        return Err(reader.diagnostics);
    }
    let policy = match document(&mut reader, &source.text) {
        Some(document) => policy(&mut reader, document.get_ref(), loader),
        None => None,
    };
    reader.diagnostics.sort();
    match policy {
        Some(policy) if !reader.diagnostics.has_errors() => Ok((policy, reader.diagnostics.list)),
        _ => Err(reader.diagnostics),
    }
}

fn document<'t>(reader: &mut Reader, text: &'t str) -> Option<Spanned<DeTable<'t>>> {
    let (document, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let span = error.span().unwrap_or(0..0);
        reader.error(span, format!("not TOML: {}", error.message()), "here");
    }
    errors.is_empty().then_some(document)
}

fn policy(reader: &mut Reader, table: &Table<'_>, loader: &dyn SetLoader) -> Option<Policy> {
    reader.refuse_unknown_keys(table, &KEYS, "a policy");
    version(reader, table);
    let mut sets = match table.get("sets") {
        Some(value) => Sets::read(reader, value, loader),
        None => Sets::default(),
    };
    let groups = table.get("groups").map(|value| groups::read(reader, value)).unwrap_or_default();
    let rules = match table.get("rules") {
        Some(value) => rules::read(reader, value, &groups, &mut sets),
        None => Vec::new(),
    };
    if rules.is_empty() && !reader.diagnostics.has_errors() {
        let hint = "everything goes to `default`";
        let warning = reader.place(0..0).warning("the policy has no rules", "this policy").hint(hint);
        reader.push(warning);
    }
    if !reader.diagnostics.has_errors() {
        sets.warn(reader);
    }
    let default = table.get("default");
    Some(Policy {
        source: Arc::clone(&reader.source),
        default_place: reader.place(default.map_or(0..0, Spanned::span)),
        default_given: default.is_some(),
        default: match default {
            Some(value) => rules::action(reader, value, &groups, true)?,
            None => Action::Kernel,
        },
        groups,
        rules,
    })
}

fn version(reader: &mut Reader, table: &Table<'_>) {
    const HINT: &str = "write version = 1";
    match table.get("version") {
        None => reader.error_with(0..0, "the policy has no `version`", "at the top of the file", HINT),
        Some(value) => match reader::integer_of(value) {
            Some(number) if number == i64::from(VERSION) => {}
            _ => reader.error_with(value.span(), "unknown version of the language", "not known here", HINT),
        },
    }
}

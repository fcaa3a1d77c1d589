//! Names in the files of a policy: what is under the cursor, its definition, its uses, and their renaming.

use std::path::Path;

use lsp_types::{
    DocumentChanges, Hover, HoverContents, Location, MarkupContent, MarkupKind, OneOf,
    OptionalVersionedTextDocumentIdentifier, Position, PrepareRenameResponse, SymbolKind, TextDocumentEdit,
    TextEdit, WorkspaceEdit,
};
use serde_json::{Value, json};

use crate::checker::OpenFiles;
use crate::completion::sink_kind;
use crate::cursor::{CursorKind, CursorPlace};
use crate::markdown::code_span;
use crate::outline::{NameKind, NameUse};
use crate::vocabulary::{field_details, is_match_key, key};
use crate::workspace::{PolicyFile, Workspace, definitions};

/// The name under the cursor: one that is defined, and the files that may have it.
struct FoundName {
    name: NameUse,
    files: Vec<PolicyFile>,
}

impl FoundName {
    fn at(workspace: &Workspace, path: &Path, position: Position) -> Option<Self> {
        let buffer = workspace.buffer(path)?;
        let offset = buffer.offset(position, workspace.units);
        let files = workspace.files_of(path);
        let is_defined =
            |name: &&NameUse| definitions(&files, name.kind).any(|one| one.name.name == name.name);
        let name = buffer.outline().at(offset).find(is_defined)?.clone();
        Some(Self { name, files })
    }

    /// Every place of the name, with its file.
    fn places(&self) -> impl Iterator<Item = (&PolicyFile, &NameUse)> {
        let is_it = |name: &&NameUse| name.kind == self.name.kind && name.name == self.name.name;
        self.files
            .iter()
            .flat_map(move |file| file.outline.names.iter().filter(is_it).map(move |name| (file, name)))
    }

    fn location(workspace: &Workspace, file: &PolicyFile, name: &NameUse) -> Option<Location> {
        let range = file.range(&name.span, workspace.units);
        Some(Location { uri: workspace.uri(&file.path)?, range })
    }
}

pub(crate) fn definition(workspace: &Workspace, path: &Path, position: Position) -> Vec<Location> {
    let Some(found) = FoundName::at(workspace, path, position) else { return Vec::new() };
    let defined = found.places().filter(|(_, name)| name.defines.is_some());
    defined.filter_map(|(file, name)| FoundName::location(workspace, file, name)).collect()
}

pub(crate) fn references(
    workspace: &Workspace,
    path: &Path,
    position: Position,
    with_definition: bool,
) -> Vec<Location> {
    let Some(found) = FoundName::at(workspace, path, position) else { return Vec::new() };
    let places = found.places().filter(|(_, name)| with_definition || name.defines.is_none());
    places.filter_map(|(file, name)| FoundName::location(workspace, file, name)).collect()
}

/// The name that would be renamed.
pub(crate) fn rename_target(
    workspace: &Workspace,
    path: &Path,
    position: Position,
) -> Option<PrepareRenameResponse> {
    let found = FoundName::at(workspace, path, position)?;
    let range = workspace.buffer(path)?.range(&found.name.span, workspace.units);
    Some(PrepareRenameResponse::RangeWithPlaceholder { range, placeholder: found.name.name })
}

/// Renames a name in all files of the policy.
///
/// # Errors
/// Nothing there can be renamed, or the new name is none, a reserved word, or taken.
pub(crate) fn rename(
    workspace: &Workspace,
    path: &Path,
    position: Position,
    new: &str,
) -> Result<WorkspaceEdit, String> {
    let Some(found) = FoundName::at(workspace, path, position) else {
        return Err("here is no name of a set, a group, a sink, a rule, a test or a variable".to_owned());
    };
    let kind = found.name.kind;
    if !is_name(kind, new) {
        return Err(format!("`{new}` is not a name: {}", name_hint(kind)));
    }
    if policy::is_reserved(kind.table(), new) {
        return Err(format!("a {} cannot be called `{new}`: this word is reserved", kind.word()));
    }
    if definitions(&found.files, kind).any(|one| one.name.name == new) && new != found.name.name {
        return Err(format!("another {} is called `{new}`", kind.word()));
    }
    let mut edits = Vec::new();
    for file in &found.files {
        let names = found.places().filter(|(of, _)| of.path == file.path);
        let edit = |(_, name): (&PolicyFile, &NameUse)| {
            let text = if name.is_bare && new.contains('.') { format!("\"{new}\"") } else { new.to_owned() };
            OneOf::Left(TextEdit { range: file.range(&name.span, workspace.units), new_text: text })
        };
        let edits_of_file: Vec<_> = names.map(edit).collect();
        let Some(uri) = workspace.uri(&file.path).filter(|_| !edits_of_file.is_empty()) else { continue };
        edits.push(edit_of(workspace, &file.path, uri, edits_of_file));
    }
    Ok(WorkspaceEdit { document_changes: Some(DocumentChanges::Edits(edits)), ..WorkspaceEdit::default() })
}

/// Edits of one document, for the version that the client has.
pub(crate) fn edit_of(
    workspace: &Workspace,
    path: &Path,
    uri: lsp_types::Uri,
    edits: Vec<OneOf<TextEdit, lsp_types::AnnotatedTextEdit>>,
) -> TextDocumentEdit {
    let version = workspace.buffer(path).map(|buffer| buffer.version);
    let text_document = OptionalVersionedTextDocumentIdentifier { uri, version };
    TextDocumentEdit { text_document, edits }
}

/// Whether a text is a name of this kind.
fn is_name(kind: NameKind, name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let begins_well = name.starts_with(|c: char| c.is_ascii_alphabetic());
    match kind {
        // Tests have titles.
        NameKind::Test => {
            !name.is_empty() && !name.contains(|c: char| matches!(c, '"' | '\'' | '\\') || c.is_control())
        }
        _ => begins_well && name.len() <= MAX_NAME_BYTES && name.chars().all(is_part),
    }
}

/// The longest name.
const MAX_NAME_BYTES: usize = 64;

fn name_hint(kind: NameKind) -> &'static str {
    match kind {
        NameKind::Test => "write any text without quotes and backslashes",
        _ => {
            "it starts with a letter, continues with letters, digits, `-`, `_` or `.`, and has at most 64 characters"
        }
    }
}

/// The text about what is under the cursor.
pub(crate) fn hover(workspace: &Workspace, path: &Path, position: Position) -> Option<Hover> {
    let buffer = workspace.buffer(path)?;
    if let Some(found) = FoundName::at(workspace, path, position) {
        let range = buffer.range(&found.name.span, workspace.units);
        return Some(markdown(about_name(workspace, path, &found), Some(range)));
    }
    let place = CursorPlace::of(buffer.text(), buffer.offset(position, workspace.units));
    if !matches!(place.kind, CursorKind::Key | CursorKind::Value) {
        return None;
    }
    let files = workspace.files_of(path);
    let mut keys = place.path.clone();
    if place.kind == CursorKind::Key {
        let word = buffer.text().get(place.word.clone()).unwrap_or_default();
        keys.extend(word.split('.').map(|part| part.trim_matches(['"', '\'']).to_owned()));
    }
    let key = key(&keys, sink_kind(&keys, &files))?;
    let mut text = format!("**`{}`**: {}", key.name, key.doc);
    if !key.values.is_empty() {
        text.push_str(&format!("\n\nValues: {}.", key.values));
    }
    if let Some(details) = is_match_key(&keys).then(|| field_details(&key.name)).flatten() {
        text.push_str(&format!("\n\n{details}"));
    }
    let range = (place.kind == CursorKind::Key).then(|| buffer.range(&place.word, workspace.units));
    Some(markdown(text, range))
}

fn markdown(value: String, range: Option<lsp_types::Range>) -> Hover {
    Hover { contents: HoverContents::Markup(MarkupContent { kind: MarkupKind::Markdown, value }), range }
}

fn about_name(workspace: &Workspace, path: &Path, found: &FoundName) -> String {
    let NameUse { kind, name, .. } = &found.name;
    let mut text = format!("{} **{}**", kind.word(), code_span(name));
    let defined = definitions(&found.files, *kind).find(|one| one.name.name == *name);
    let summary = defined.as_ref().map(|one| one.name.summary.clone()).unwrap_or_default();
    if !summary.is_empty() {
        text.push_str(&format!(": {}", code_span(&summary)));
    }
    if let Some(values) = defined.and_then(|one| set_size(workspace, one.file, one.name)) {
        text.push_str(&format!(" ({values})"));
    }
    if let Some(note) = (*kind == NameKind::Rule).then(|| workspace.notes(path).remove(&**name)).flatten() {
        text.push_str(&format!(": {}\n\n{}", note.label, note.details));
    }
    let uses = found.places().filter(|(_, name)| name.defines.is_none()).count();
    match (kind, uses) {
        (NameKind::Rule | NameKind::Test, _) => {}
        (_, 1) => text.push_str("\n\nused once"),
        (_, uses) => text.push_str(&format!("\n\nused {uses} times")),
    }
    text
}

/// The number of values of a set that is read from a file.
fn set_size(workspace: &Workspace, file: &PolicyFile, set: &NameUse) -> Option<String> {
    let name = file.outline.set_files.get(&set.name).filter(|_| set.kind == NameKind::Set)?;
    let folder = file.path.parent().unwrap_or(Path::new("")).to_owned();
    let texts = workspace.texts();
    let path = OpenFiles::new(folder, std::sync::Arc::clone(&texts)).path(name);
    let text = workspace.set_text(&path, &texts)?;
    let values = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    match values.filter(|line| !line.is_empty()).count() {
        1 => Some("1 value".to_owned()),
        values => Some(format!("{values} values")),
    }
}

/// The definitions of a document. The types of the protocol have a deprecated field that must be named.
pub(crate) fn symbols(workspace: &Workspace, path: &Path) -> Vec<Value> {
    let Some(buffer) = workspace.buffer(path) else { return Vec::new() };
    let notes = workspace.notes(path);
    let symbol = |name: &NameUse| {
        let block = name.defines.clone()?;
        let detail = notes.get(&*name.name).filter(|_| name.kind == NameKind::Rule);
        Some(json!({
            "name": name.name,
            "detail": detail.map_or_else(|| name.summary.clone(), |note| note.label.clone()),
            "kind": symbol_kind(name.kind),
            "range": buffer.range(&block, workspace.units),
            "selectionRange": buffer.range(&name.span, workspace.units),
        }))
    };
    buffer.outline().names.iter().filter_map(symbol).collect()
}

fn symbol_kind(kind: NameKind) -> SymbolKind {
    match kind {
        NameKind::Set => SymbolKind::ARRAY,
        NameKind::Group => SymbolKind::CLASS,
        NameKind::Sink => SymbolKind::INTERFACE,
        NameKind::Rule => SymbolKind::FUNCTION,
        NameKind::Test => SymbolKind::EVENT,
        NameKind::Variable => SymbolKind::VARIABLE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workspace(text: &str) -> Workspace {
        let mut workspace = Workspace::default();
        workspace.open("file:///p.toml".parse().expect("a URI"), 3, text.to_owned());
        workspace
    }

    #[test]
    fn new_names_are_checked() {
        let text = "[groups.rx]\nworkers = 1\n[groups.ry]\nworkers = 1\n";
        let workspace = workspace(text);
        let at = |line, character| Position { line, character };
        let rename = |position, new| rename(&workspace, Path::new("/p.toml"), position, new);
        assert_eq!(rename(at(0, 8), "ry"), Err("another group is called `ry`".to_owned()));
        assert!(rename(at(0, 8), "1x").is_err_and(|why| why.contains("is not a name")));
        let reserved = "a group cannot be called `all`: this word is reserved";
        assert_eq!(rename(at(0, 8), "all"), Err(reserved.to_owned()));
        assert!(rename(at(1, 1), "x").is_err_and(|why| why.contains("here is no name")));
        let edit = rename(at(0, 8), "a.b").expect("a name");
        let Some(DocumentChanges::Edits(edits)) = edit.document_changes else { panic!("no edits") };
        assert_eq!((edits.len(), edits[0].text_document.version), (1, Some(3)));
        assert!(matches!(&edits[0].edits[..], [OneOf::Left(edit)] if edit.new_text == "\"a.b\""));
    }

    #[test]
    fn keys_are_explained_where_they_stand() {
        let workspace = workspace("[[rules]]\nmatch = { inner = { dst_port = 53 } }\n");
        let hover = |character| {
            let found = hover(&workspace, Path::new("/p.toml"), Position { line: 1, character })?;
            match found.contents {
                HoverContents::Markup(text) => Some(text.value),
                _ => None,
            }
        };
        let text = hover(22).expect("a key");
        assert!(text.starts_with("**`dst_port`**: ") && text.contains("of 16 bits, 0 to 65535"), "{text}");
        assert!(hover(11).is_some_and(|text| text.starts_with("**`inner`**: ")));
    }
}

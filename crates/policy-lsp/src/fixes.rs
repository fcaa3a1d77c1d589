//! Quick fixes: the replacements that findings carry, and rules that become two. One is offered only while
//! the document has the text of the check.

use std::path::Path;

use lsp_types::{
    CodeAction, CodeActionKind, CodeActionOrCommand, DocumentChanges, InlayHint, InlayHintKind,
    InlayHintLabel, OneOf, Range, TextEdit, WorkspaceEdit,
};
use policy::{Diagnostic, Place, TextReplacement};

use crate::navigation::edit_of;
use crate::outline::{NameKind, Outline};
use crate::publish::by_file;
use crate::rule_split::{TwoRules, rule_for_each};
use crate::workspace::Workspace;

/// The quick fixes for findings that touch a range.
pub(crate) fn fixes(workspace: &Workspace, path: &Path, range: Range) -> Vec<CodeActionOrCommand> {
    let Some(buffer) = workspace.buffer(path) else { return Vec::new() };
    let mut found = Vec::new();
    for placed in by_file(workspace).remove(path).unwrap_or_default() {
        let at = placed.diagnostic.range;
        let touches = at.start <= range.end && range.start <= at.end;
        let Some(finding) = placed.finding.filter(|_| touches) else { continue };
        let Some(TextFix { place, text, title }) = fix_of(&finding.diagnostic, buffer.outline()) else {
            continue;
        };
        // The document may have changed since the check.
        let is_there =
            place.source().text == **buffer.text() && policy::plain_path(Path::new(place.file())) == path;
        let Some(uri) = workspace.uri(path).filter(|_| is_there) else { continue };
        let edit = TextEdit { range: buffer.range(&place.span(), workspace.units), new_text: text };
        let edits = vec![edit_of(workspace, path, uri, vec![OneOf::Left(edit)])];
        found.push(CodeActionOrCommand::CodeAction(CodeAction {
            title,
            kind: Some(CodeActionKind::QUICKFIX),
            diagnostics: Some(vec![placed.diagnostic]),
            edit: Some(WorkspaceEdit {
                document_changes: Some(DocumentChanges::Edits(edits)),
                ..WorkspaceEdit::default()
            }),
            is_preferred: Some(true),
            ..CodeAction::default()
        }));
    }
    found
}

/// A change of text that carries a remedy out.
struct TextFix {
    place: Place,
    text: String,
    title: String,
}

/// The fix of a problem of a document with this outline.
fn fix_of(problem: &Diagnostic, outline: &Outline) -> Option<TextFix> {
    if let Some(TextReplacement { place, text }) = problem.replacement.clone() {
        let title = title(place.text().unwrap_or_default(), &text);
        return Some(TextFix { place, text, title });
    }
    let keys = problem.separate_keys.as_ref()?;
    let place = problem.place();
    let TwoRules { span, text } = rule_for_each(&place.source().text, outline, place.span().start, keys)?;
    let title = format!("write a rule with `{}` and one with `{}`", keys[0], keys[1]);
    Some(TextFix { place: Place::new(place.source(), span), text, title })
}

/// `replace "a" by "b"`, without what does not fit a menu.
fn title(old: &str, new: &str) -> String {
    let short = |text: &str| text.trim_end().chars().take(60).collect::<String>();
    match old.is_empty() {
        true => format!("insert `{}`", short(new)),
        false => format!("replace `{}` by `{}`", short(old), short(new)),
    }
}

/// Where each rule of a range is decided, behind its name.
pub(crate) fn hints(workspace: &Workspace, path: &Path, range: Range) -> Vec<InlayHint> {
    let Some(buffer) = workspace.buffer(path) else { return Vec::new() };
    let notes = workspace.notes(path);
    let hint = |name: &crate::outline::NameUse| {
        let note = notes.get(&*name.name)?;
        let text = buffer.text();
        // Behind the line, quotes and comments included.
        let line = text.get(name.span.end..).and_then(|rest| rest.find(['\r', '\n']));
        let end = line.map_or(text.len(), |length| name.span.end + length);
        let position = buffer.range(&(end..end), workspace.units).start;
        let is_wanted = range.start.line <= position.line && position.line <= range.end.line;
        is_wanted.then(|| InlayHint {
            position,
            label: InlayHintLabel::String(note.label.clone()),
            kind: None::<InlayHintKind>,
            text_edits: None,
            tooltip: None,
            padding_left: Some(true),
            padding_right: None,
            data: None,
        })
    };
    buffer.outline().definitions(NameKind::Rule).filter_map(hint).collect()
}

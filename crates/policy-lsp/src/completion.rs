//! Proposals for the text at the cursor: keys of the table, words of the key, and names.

use std::path::Path;

use lsp_types::{
    CompletionItem, CompletionItemKind, CompletionTextEdit, Documentation, MarkupContent, MarkupKind,
    Position, TextEdit,
};

use crate::cursor::{CursorKind, CursorPlace};
use crate::markdown::code_span;
use crate::outline::NameKind;
use crate::vocabulary::{KnownKey, Shapes, field_details, is_match_key};
use crate::workspace::{PolicyFile, Workspace, definitions};

/// A proposal before it is one of the protocol.
struct Proposal {
    label: String,
    text: String,
    kind: CompletionItemKind,
    detail: String,
    doc: String,
}

/// The proposals at a position of an open document.
pub(crate) fn complete(workspace: &Workspace, path: &Path, position: Position) -> Vec<CompletionItem> {
    let Some(buffer) = workspace.buffer(path) else { return Vec::new() };
    let offset = buffer.offset(position, workspace.units);
    let place = CursorPlace::of(buffer.text(), offset);
    let files = workspace.files_of(path);
    let proposals = match place.kind {
        CursorKind::Comment => Vec::new(),
        CursorKind::Header => headers(),
        CursorKind::Key => {
            let rest = buffer.text().get(place.word.end..).unwrap_or_default();
            keys(&place.path, &files, rest.trim_start_matches(' ').starts_with('='))
        }
        CursorKind::Value => values(&place.path, &files),
        CursorKind::Text(_) => {
            let all = values(&place.path, &files).into_iter();
            let strings = all.filter_map(|proposal| {
                let text = proposal.text.strip_prefix('"')?.strip_suffix('"')?.to_owned();
                Some(Proposal { text, ..proposal })
            });
            strings.collect()
        }
    };
    let range = buffer.range(&place.word, workspace.units);
    proposals.into_iter().map(|proposal| proposal.item(range)).collect()
}

impl Proposal {
    fn item(self, range: lsp_types::Range) -> CompletionItem {
        let markdown = MarkupContent { kind: MarkupKind::Markdown, value: self.doc };
        CompletionItem {
            filter_text: Some(self.text.clone()),
            label: self.label,
            kind: Some(self.kind),
            detail: Some(self.detail).filter(|detail| !detail.is_empty()),
            documentation: (!markdown.value.is_empty()).then_some(Documentation::MarkupContent(markdown)),
            text_edit: Some(CompletionTextEdit::Edit(TextEdit { range, new_text: self.text })),
            ..CompletionItem::default()
        }
    }

    /// A value as it is written, with quotes if it is a string.
    fn value(text: String, detail: &str) -> Self {
        let label = text.trim_matches('"').to_owned();
        Self { label, text, kind: CompletionItemKind::VALUE, detail: detail.to_owned(), doc: String::new() }
    }
}

/// The headers of tables.
fn headers() -> Vec<Proposal> {
    let header = |key: KnownKey| {
        let shapes = Shapes::of([&*key.name], None);
        let text = match (shapes.is_list_of_tables(), shapes.is_map(), shapes.is_table()) {
            (true, ..) => format!("[[{}]]", key.name),
            // The tables of a map have names of their own, unless they are values.
            (_, true, _) if Shapes::of([&*key.name, "NAME"], None).is_table() && key.name != "sets" => {
                format!("[{}.NAME]", key.name)
            }
            (_, true, _) | (_, _, true) if key.name != "default" && key.name != "default_multicast" => {
                format!("[{}]", key.name)
            }
            _ => return None,
        };
        let kind = CompletionItemKind::STRUCT;
        Some(Proposal { label: text.clone(), text, kind, detail: String::new(), doc: key.doc })
    };
    Shapes::of([], None).keys().into_iter().filter_map(header).collect()
}

/// The keys of a table. `has_value`: whether a value follows the cursor.
fn keys(path: &[String], files: &[PolicyFile], has_value: bool) -> Vec<Proposal> {
    let written = |name: &str| if has_value { name.to_owned() } else { format!("{name} = ") };
    let names = match path {
        [tests, counts, of] if tests == "tests" && counts == "counts" => match &**of {
            "rules" => Some(NameKind::Rule),
            "groups" => Some(NameKind::Group),
            _ => None,
        },
        _ => None,
    };
    let shapes = Shapes::of(path.iter().map(String::as_str), sink_kind(path, files));
    let is_match = is_match_key(path);
    let key = |key: KnownKey| {
        let details = is_match.then(|| field_details(&key.name)).flatten();
        let doc = details.map_or_else(|| key.doc.clone(), |details| format!("{}\n\n{details}", key.doc));
        let required = if key.is_required { "required, " } else { "" };
        Proposal {
            text: written(&key.name),
            kind: CompletionItemKind::FIELD,
            detail: format!("{required}{}", key.values),
            doc,
            label: key.name,
        }
    };
    let named = names
        .into_iter()
        .flat_map(|kind| named(files, kind))
        .map(|proposal| Proposal { text: written(&proposal.text), ..proposal });
    shapes.keys().into_iter().map(key).chain(named).collect()
}

/// The values of a key.
fn values(path: &[String], files: &[PolicyFile]) -> Vec<Proposal> {
    let shapes = Shapes::of(path.iter().map(String::as_str), sink_kind(path, files));
    let mut found: Vec<Proposal> =
        shapes.constants().into_iter().map(|word| Proposal::value(word, "")).collect();
    let last = path.last().map(String::as_str).unwrap_or_default();
    if is_match_key(path) {
        let key = path.iter().rev().find(|key| *key != "not").map(String::as_str).unwrap_or_default();
        let words = policy::value_words(key).into_iter();
        found.extend(words.map(|word| Proposal::value(format!("\"{word}\""), key)));
    }
    let strings = |kind| {
        named(files, kind).into_iter().map(|proposal| {
            let text = format!("\"{}\"", proposal.text);
            Proposal { text, ..proposal }
        })
    };
    let kinds = name_kinds(path);
    found.extend(kinds.into_iter().flat_map(strings));
    if matches!(
        (path.first().map(String::as_str), last),
        (Some("tests"), "rule") | (Some("runtime"), "before") | (Some("recorder"), "rule" | "rules")
    ) {
        found.push(Proposal::value("\"default\"".to_owned(), "packets that match no rule"));
    }
    if last == "action" {
        let steer = |proposal: Proposal| {
            let text = format!("{{ steer = \"{}\" }}", proposal.text);
            Proposal { label: format!("steer {}", proposal.label), text, ..proposal }
        };
        found.extend(named(files, NameKind::Group).into_iter().map(steer));
    }
    found
}

/// The kinds of names that the value of a key may be.
fn name_kinds(path: &[String]) -> Vec<NameKind> {
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    match &*path {
        ["default" | "default_multicast"] | [.., "steer" | "copy" | "sniff"] => vec![NameKind::Group],
        ["groups", _, "sinks"] | ["rules", "sinks"] | ["recorder", "triggers", "sink"] => {
            vec![NameKind::Sink]
        }
        ["rules", "match", ..] | ["tests", "every", ..] | ["protect", ..] | ["sets", ..] => {
            vec![NameKind::Set]
        }
        ["tests", "rule"]
        | ["runtime", "before"]
        | ["recorder", "rules"]
        | ["recorder", "triggers", "rule"] => vec![NameKind::Rule],
        ["tests", "group"] => vec![NameKind::Group],
        _ => Vec::new(),
    }
}

/// The names of a kind.
fn named(files: &[PolicyFile], kind: NameKind) -> Vec<Proposal> {
    let proposal = |name: &crate::outline::NameUse| Proposal {
        label: name.name.clone(),
        text: name.name.clone(),
        kind: CompletionItemKind::REFERENCE,
        detail: kind.word().to_owned(),
        doc: if name.summary.is_empty() { String::new() } else { code_span(&name.summary) },
    };
    definitions(files, kind).map(|definition| proposal(definition.name)).collect()
}

/// The kind of the sink that a path leads into, if it is written.
pub(crate) fn sink_kind<'f>(path: &[String], files: &'f [PolicyFile]) -> Option<&'f str> {
    let [sinks, name, ..] = path else { return None };
    let kinds = files.iter().filter_map(|file| file.outline.sink_kinds.get(name));
    (sinks == "sinks").then(|| kinds.map(String::as_str).next()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFINITIONS: &str = "version = 1\n[sets]\nweb = [80]\n[sinks.out]\nkind = \"count\"\n[groups.rx]\n\
        workers = \"all\"\n[[rules]]\nname = \"first\"\nmatch = { any = true }\naction = \"drop\"\n";

    /// The texts that are proposed at `|`, behind the definitions.
    fn texts(typed: &str) -> Vec<String> {
        let text = format!("{DEFINITIONS}{typed}");
        let at = text.find('|').expect("a cursor");
        let line = text[..at].matches('\n').count();
        let column = at - text[..at].rfind('\n').map_or(0, |newline| newline + 1);
        let position = Position { line: line as u32, character: column as u32 };
        let mut workspace = Workspace::default();
        let uri: lsp_types::Uri = "file:///p.toml".parse().expect("a URI");
        workspace.open(uri, 1, text.replacen('|', "", 1));
        let items = complete(&workspace, Path::new("/p.toml"), position).into_iter();
        items
            .filter_map(|item| match item.text_edit? {
                CompletionTextEdit::Edit(edit) => Some(edit.new_text),
                CompletionTextEdit::InsertAndReplace(_) => None,
            })
            .collect()
    }

    fn assert_has(typed: &str, wanted: &[&str]) {
        let found = texts(typed);
        assert!(wanted.iter().all(|text| found.iter().any(|one| one == text)), "{typed}: {found:?}");
    }

    #[test]
    fn keys_are_those_of_the_table() {
        assert_has("[[rules]]\nna|", &["name = ", "action = ", "match = "]);
        assert_has("[[rules]]\nna| = 1", &["name"]);
        assert_has("[[rules]]\nmatch = { dst|", &["dst_port = ", "dst = ", "inner = "]);
        assert_has("[sinks.out2]\n|", &["kind = ", "interface = "]);
        assert_has("[tests.counts.rules]\n|", &["first = "]);
        assert!(!texts("[sinks.out]\ntop|").contains(&"interface = ".to_owned()), "it is of kind count");
        assert_has("[g|", &["[groups.NAME]", "[[rules]]", "[sets]", "[protect]"]);
        assert!(texts("# na|").is_empty());
    }

    #[test]
    fn values_are_those_of_the_key() {
        assert_has("[[rules]]\naction = |", &["\"drop\"", "{ steer = \"rx\" }"]);
        assert_has("[[rules]]\naction = { steer = \"|\" }", &["rx"]);
        assert_has("[[rules]]\nsinks = [\"|\"]", &["out"]);
        assert_has("[[rules]]\nmatch = { dst_port = |", &["\"web\""]);
        assert_has("[[rules]]\nmatch = { protocol = { not = '|' } }", &["udp", "web"]);
        assert_has("[[tests]]\nrule = \"|", &["first", "default"]);
        assert_has("[[rules]]\ndirection = \"e|\"", &["egress"]);
        assert_has("[[rules]]\ncount = |", &["true", "false"]);
    }
}

//! The names in one file: where sets, groups, sinks, rules, tests and variables are defined, and where they
//! are used. It is made of the syntax alone, also of a file with errors, as far as it is TOML.

use std::collections::BTreeMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

type Value<'t> = Spanned<DeValue<'t>>;

/// The kind of thing that a name is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NameKind {
    Set,
    Group,
    Sink,
    Rule,
    Test,
    Variable,
}

/// A name in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NameUse {
    pub(crate) kind: NameKind,
    pub(crate) name: String,
    /// The bytes of the name, without quotes.
    pub(crate) span: Range<usize>,
    /// Whether it is a key without quotes.
    pub(crate) is_bare: bool,
    /// The bytes of what it defines; `None`: the name is used here.
    pub(crate) defines: Option<Range<usize>>,
    /// A few words about what it defines.
    pub(crate) summary: String,
}

/// The names in one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outline {
    /// In the order of the text. A string of a match or of a set may be a value or the name of a set: it is a
    /// use of a set, which counts if there is one of that name.
    pub(crate) names: Vec<NameUse>,
    /// The included files, as they are written.
    pub(crate) includes: Vec<String>,
    /// The kinds of sinks by name.
    pub(crate) sink_kinds: BTreeMap<String, String>,
    /// The files of sets by the name of the set, as they are written.
    pub(crate) set_files: BTreeMap<String, String>,
}

impl NameKind {
    /// The word for one, without an article.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Set => "set",
            Self::Group => "group",
            Self::Sink => "sink",
            Self::Rule => "rule",
            Self::Test => "test",
            Self::Variable => "variable",
        }
    }

    /// The table of a policy that defines such names.
    pub(crate) fn table(self) -> &'static str {
        match self {
            Self::Set => "sets",
            Self::Group => "groups",
            Self::Sink => "sinks",
            Self::Rule => "rules",
            Self::Test => "tests",
            Self::Variable => "variables",
        }
    }
}

impl Outline {
    pub(crate) fn of(text: &str) -> Self {
        let (document, _) = DeTable::parse_recoverable(text);
        let mut collector = Collector { text, outline: Self::default() };
        collector.document(document.get_ref());
        let mut outline = collector.outline;
        outline.names.sort_by_key(|name| name.span.start);
        outline
    }

    /// The names at an offset, in the order of the text.
    pub(crate) fn at(&self, offset: usize) -> impl Iterator<Item = &NameUse> {
        let is_there = move |name: &&NameUse| name.span.start <= offset && offset <= name.span.end;
        self.names.iter().filter(is_there)
    }

    /// The definitions of a kind.
    pub(crate) fn definitions(&self, kind: NameKind) -> impl Iterator<Item = &NameUse> {
        self.names.iter().filter(move |name| name.kind == kind && name.defines.is_some())
    }
}

struct Collector<'t> {
    text: &'t str,
    outline: Outline,
}

impl Collector<'_> {
    fn document(&mut self, table: &DeTable<'_>) {
        for (key, value) in table {
            self.variables_in(value);
            match &**key.get_ref() {
                "sets" => self.tables(NameKind::Set, value),
                "groups" => self.tables(NameKind::Group, value),
                "sinks" => self.tables(NameKind::Sink, value),
                "variables" => self.tables(NameKind::Variable, value),
                "rules" => self.each(value, Self::rule),
                "tests" => self.each(value, Self::test),
                "default" | "default_multicast" => self.action(value, true),
                "runtime" => self.runtime(value),
                "recorder" => self.recorder(value),
                "protect" => self.strings(NameKind::Set, value),
                "includes" => {
                    let list = value.get_ref().as_array().into_iter().flat_map(|list| list.iter());
                    let names = list.filter_map(|value| value.get_ref().as_str()).map(str::to_owned);
                    self.outline.includes.extend(names);
                }
                _ => {}
            }
        }
    }

    /// The tables of `[sets]` and the like, by name.
    fn tables(&mut self, kind: NameKind, value: &Value<'_>) {
        for (key, value) in value.get_ref().as_table().into_iter().flatten() {
            let block = joined(&key.span(), &extent(value));
            self.define(kind, key.get_ref(), &key.span(), Defined { block, summary: summary(kind, value) });
            let table = value.get_ref().as_table();
            match kind {
                NameKind::Set => {
                    let items = table.and_then(|table| table.get("items")).unwrap_or(value);
                    if items.get_ref().is_array() {
                        self.strings(NameKind::Set, items);
                    }
                    let file = table.and_then(|table| table.get("file")?.get_ref().as_str());
                    let file = file.map(|file| (key.get_ref().to_string(), file.to_owned()));
                    self.outline.set_files.extend(file);
                }
                NameKind::Group => {
                    let sinks = table.and_then(|table| table.get("sinks"));
                    sinks.into_iter().for_each(|sinks| self.strings(NameKind::Sink, sinks));
                }
                NameKind::Sink => {
                    let kind = table.and_then(|table| table.get("kind")?.get_ref().as_str());
                    let kind = kind.map(|kind| (key.get_ref().to_string(), kind.to_owned()));
                    self.outline.sink_kinds.extend(kind);
                }
                NameKind::Rule | NameKind::Test | NameKind::Variable => {}
            }
        }
    }

    fn each(&mut self, value: &Value<'_>, read: fn(&mut Self, &Value<'_>, &DeTable<'_>)) {
        for item in value.get_ref().as_array().into_iter().flat_map(|list| list.iter()) {
            if let Some(table) = item.get_ref().as_table() {
                read(self, item, table);
            }
        }
    }

    fn rule(&mut self, value: &Value<'_>, table: &DeTable<'_>) {
        self.named(NameKind::Rule, value, table);
        for (key, value) in table {
            match &**key.get_ref() {
                "action" => self.action(value, false),
                "sinks" => self.strings(NameKind::Sink, value),
                "match" => self.strings(NameKind::Set, value),
                _ => {}
            }
        }
    }

    fn test(&mut self, value: &Value<'_>, table: &DeTable<'_>) {
        self.named(NameKind::Test, value, table);
        for (key, value) in table {
            match &**key.get_ref() {
                "rule" => self.strings(NameKind::Rule, value),
                "group" => self.strings(NameKind::Group, value),
                "every" => self.strings(NameKind::Set, value),
                "counts" => {
                    for (key, kind) in [("rules", NameKind::Rule), ("groups", NameKind::Group)] {
                        let counts = value.get_ref().as_table().and_then(|counts| counts.get(key));
                        let counts = counts.and_then(|counts| counts.get_ref().as_table());
                        for (key, _) in counts.into_iter().flatten() {
                            self.use_name(kind, key.get_ref(), &key.span());
                        }
                    }
                }
                _ => {}
            }
        }
    }

    fn runtime(&mut self, value: &Value<'_>) {
        let Some(table) = value.get_ref().as_table() else { return };
        if let Some(before) = table.get("before") {
            self.strings(NameKind::Rule, before);
        }
        let actions = table.get("actions").and_then(|actions| actions.get_ref().as_array());
        for action in actions.into_iter().flat_map(|actions| actions.iter()) {
            self.action(action, false);
        }
    }

    fn recorder(&mut self, value: &Value<'_>) {
        let Some(table) = value.get_ref().as_table() else { return };
        if let Some(rules) = table.get("rules") {
            self.strings(NameKind::Rule, rules);
        }
        let triggers = table.get("triggers").and_then(|triggers| triggers.get_ref().as_array());
        let triggers = triggers.into_iter().flat_map(|triggers| triggers.iter());
        for trigger in triggers.filter_map(|trigger| trigger.get_ref().as_table()) {
            trigger.get("rule").into_iter().for_each(|rule| self.strings(NameKind::Rule, rule));
            trigger.get("sink").into_iter().for_each(|sink| self.strings(NameKind::Sink, sink));
        }
    }

    /// The definition of a rule or a test by its key `name`.
    fn named(&mut self, kind: NameKind, value: &Value<'_>, table: &DeTable<'_>) {
        let Some(name) = table.get("name") else { return };
        if let Some(text) = name.get_ref().as_str() {
            let block = joined(&extent(value), &name.span());
            self.define(kind, text, &name.span(), Defined { block, summary: String::new() });
        }
    }

    /// The group of an action: `"steer rx"`, `{ steer = "rx" }`, or a default that is its name.
    fn action(&mut self, value: &Value<'_>, may_be_a_name: bool) {
        match value.get_ref() {
            DeValue::String(text) => {
                let group = text.split_once(' ').map(|(_, group)| group.trim());
                let is_word = matches!(&**text, "drop" | "kernel" | "pass");
                if let Some(group) = group.or((may_be_a_name && !is_word).then_some(&**text)) {
                    self.use_name(NameKind::Group, group, &value.span());
                }
            }
            DeValue::Table(table) => {
                for (_, group) in table {
                    self.strings(NameKind::Group, group);
                }
            }
            _ => {}
        }
    }

    /// All strings of a value are names of this kind.
    fn strings(&mut self, kind: NameKind, value: &Value<'_>) {
        match value.get_ref() {
            DeValue::String(text) => self.use_name(kind, text, &value.span()),
            DeValue::Array(list) => list.iter().for_each(|value| self.strings(kind, value)),
            DeValue::Table(table) => table.iter().for_each(|(_, value)| self.strings(kind, value)),
            _ => {}
        }
    }

    /// The variables in all strings of a value.
    fn variables_in(&mut self, value: &Value<'_>) {
        match value.get_ref() {
            DeValue::String(text) if text.contains("${") => {
                let span = value.span();
                let source = self.text.get(span.clone()).unwrap_or_default();
                for (at, _) in source.match_indices("${") {
                    let start = at + "${".len();
                    let Some(length) = source.get(start..).and_then(|rest| rest.find('}')) else { continue };
                    let name = source.get(start..start + length).unwrap_or_default().to_owned();
                    let span = span.start + start..span.start + start + length;
                    self.push(NameKind::Variable, &name, NamePlace { span, is_bare: false }, None);
                }
            }
            DeValue::Array(list) => list.iter().for_each(|value| self.variables_in(value)),
            DeValue::Table(table) => table.iter().for_each(|(_, value)| self.variables_in(value)),
            _ => {}
        }
    }

    fn use_name(&mut self, kind: NameKind, name: &str, within: &Range<usize>) {
        if let Some(place) = self.inside(name, within) {
            self.push(kind, name, place, None);
        }
    }

    fn define(&mut self, kind: NameKind, name: &str, within: &Range<usize>, defined: Defined) {
        if let Some(place) = self.inside(name, within) {
            self.push(kind, name, place, Some(defined));
        }
    }

    fn push(&mut self, kind: NameKind, name: &str, place: NamePlace, defined: Option<Defined>) {
        let NamePlace { span, is_bare } = place;
        let name = name.to_owned();
        let (defines, summary) = match defined {
            Some(Defined { block, summary }) => (Some(block), summary),
            None => (None, String::new()),
        };
        self.outline.names.push(NameUse { kind, name, span, is_bare, defines, summary });
    }

    /// The place of a name at the end of a key or string, without quotes; `None`: the text has escapes.
    fn inside(&self, name: &str, within: &Range<usize>) -> Option<NamePlace> {
        let written = self.text.get(within.clone())?;
        let at = written.rfind(name).filter(|_| !name.is_empty())?;
        let start = within.start + at;
        let is_bare = !written.starts_with(['"', '\'']);
        Some(NamePlace { span: start..start + name.len(), is_bare })
    }
}

/// The bytes of a name, and whether it is a key without quotes.
struct NamePlace {
    span: Range<usize>,
    is_bare: bool,
}

/// The definition that belongs to a name.
struct Defined {
    /// The bytes of the definition.
    block: Range<usize>,
    /// A few words about it.
    summary: String,
}

/// The bytes of a value: those of its keys and values, because the span of a table is that of its header.
pub(crate) fn extent(value: &Value<'_>) -> Range<usize> {
    match value.get_ref() {
        DeValue::Table(table) => table
            .iter()
            .fold(value.span(), |all, (key, value)| joined(&all, &joined(&key.span(), &extent(value)))),
        _ => value.span(),
    }
}

pub(crate) fn joined(one: &Range<usize>, other: &Range<usize>) -> Range<usize> {
    one.start.min(other.start)..one.end.max(other.end)
}

/// A few words about what a name defines.
fn summary(kind: NameKind, value: &Value<'_>) -> String {
    let table = value.get_ref().as_table();
    let get = |key: &str| table.and_then(|table| table.get(key)).map(Spanned::get_ref);
    let values = |list: &DeValue<'_>| {
        let list = list.as_array()?;
        let shown: Vec<String> = list.iter().take(SHOWN_VALUES).map(|value| plain(value.get_ref())).collect();
        let more = list.len().saturating_sub(SHOWN_VALUES);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        Some(format!("{}{more}", shown.join(", ")))
    };
    match kind {
        NameKind::Set => match get("file") {
            Some(file) => format!("the lines of {}", plain(file)),
            None => values(get("items").unwrap_or(value.get_ref())).unwrap_or_else(|| plain(value.get_ref())),
        },
        NameKind::Group => {
            let parts = ["workers", "queues", "hash", "sinks"].into_iter().filter_map(|key| {
                let value = get(key)?;
                Some(format!("{key}: {}", values(value).unwrap_or_else(|| plain(value))))
            });
            parts.collect::<Vec<_>>().join("; ")
        }
        NameKind::Sink => {
            let parts = table.into_iter().flatten().filter_map(|(key, value)| {
                let is_shown = !value.get_ref().is_table() && !value.get_ref().is_array();
                is_shown.then(|| format!("{}: {}", key.get_ref(), plain(value.get_ref())))
            });
            parts.collect::<Vec<_>>().join("; ")
        }
        NameKind::Variable => values(value.get_ref()).unwrap_or_else(|| plain(value.get_ref())),
        NameKind::Rule | NameKind::Test => String::new(),
    }
}

/// The most values that a summary lists.
const SHOWN_VALUES: usize = 8;

/// A value without quotes, and a table or a list by its kind.
fn plain(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => text.chars().take(80).collect(),
        DeValue::Integer(number) => number.as_str().to_owned(),
        DeValue::Boolean(value) => value.to_string(),
        other => other.type_str().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"version = 1
default = "rx"
[variables]
port = 53
[sets]
web = [80, "more"]
more = { file = "more.txt" }
[sinks.out]
kind = "count"
[groups.rx]
workers = "all"
sinks = ["out"]
[[rules]]
name = "dns"
match = { dst_port = ["${port}", "web"], inner = { src = { not = "more" } } }
action = { steer = "rx" }
[[rules]]
name = 'short'
match = { any = true }
action = "steer rx"
[[tests]]
packet = "dst=192.0.2.1"
rule = "dns"
"#;

    fn uses(outline: &Outline, kind: NameKind, name: &str) -> Vec<bool> {
        let names = outline.names.iter().filter(|one| one.kind == kind && one.name == name);
        names.map(|one| one.defines.is_some()).collect()
    }

    #[test]
    fn definitions_and_uses_are_found() {
        let outline = Outline::of(TEXT);
        assert_eq!(uses(&outline, NameKind::Group, "rx"), [false, true, false, false]);
        assert_eq!(uses(&outline, NameKind::Set, "web"), [true, false]);
        assert_eq!(uses(&outline, NameKind::Set, "more"), [false, true, false]);
        assert_eq!(uses(&outline, NameKind::Sink, "out"), [true, false]);
        assert_eq!(uses(&outline, NameKind::Rule, "dns"), [true, false]);
        assert_eq!(uses(&outline, NameKind::Variable, "port"), [true, false]);
        for name in &outline.names {
            assert_eq!(TEXT.get(name.span.clone()), Some(&*name.name));
        }
    }

    #[test]
    fn summaries_show_what_is_defined() {
        let outline = Outline::of(TEXT);
        let summary = |kind| outline.definitions(kind).map(|one| &*one.summary).collect::<Vec<_>>();
        assert_eq!(summary(NameKind::Set), ["80, more", "the lines of more.txt"]);
        assert_eq!(summary(NameKind::Group), ["workers: all; sinks: out"]);
        assert_eq!(summary(NameKind::Sink), ["kind: count"]);
    }

    #[test]
    fn names_with_escapes_leave_other_summaries_alone() {
        let outline = Outline::of("[sets]\na = [1]\n\"\\u0062\" = [2]\n");
        let summaries: Vec<_> = outline.definitions(NameKind::Set).map(|one| &*one.summary).collect();
        assert_eq!(summaries, ["1"]);
    }

    #[test]
    fn texts_with_errors_have_outlines() {
        let outline = Outline::of(&format!("{TEXT}[[rules]]\nname = \"open\nmatch = {{ dst_po"));
        assert_eq!(uses(&outline, NameKind::Rule, "dns"), [true, false]);
        // No text may panic.
        for end in 0..TEXT.len() {
            Outline::of(&TEXT[..end]);
        }
    }
}

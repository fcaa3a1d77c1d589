//! TOML text to a checked [`Policy`], or to all problems of the text, its included files and its set files,
//! each with its place. Files are read only through the given loader.

mod actions;
mod carving;
mod cautions;
mod conflicts;
mod description;
mod extensions;
mod files;
mod groups;
mod matches;
mod policing;
mod policy_tests;
mod protect;
mod reader;
mod recorder;
mod rules;
mod runtime;
mod sets;
mod sinks;
mod synonyms;
mod toml_errors;
mod unused;
mod values;
mod variables;

use std::collections::BTreeMap;
use std::sync::Arc;

use program::Match;

use crate::diagnostics::{Diagnostic, Diagnostics, Place};
use crate::hint::ProblemHint;
use crate::keys;
use crate::policy::{Action, Policy, RecorderDefinition, RuleDefinition, RuntimeDefinition, VERSION};
use crate::policy_test::PolicyTest;
use crate::protect::ProtectedMatch;
use crate::source::{MAX_FILE_BYTES, NoFiles, SetLoader, Source};

pub use files::{MAX_INCLUDE_DEPTH, MAX_INCLUDED_FILES, MAX_TOTAL_BYTES, plain_path};
pub use groups::FIELDS as HASH_FIELDS;
pub use reader::{nearest, type_hint};
pub(crate) use synonyms::meant_field;
pub use toml_errors::{DocumentKind, read_document};
pub(crate) use values::hints as value_names;
pub(crate) use values::mapped_range;
pub use variables::MAX_SUBSTITUTED_BYTES;

use files::{File, Files, Texts, Walk};
use groups::Groups;
use policy_tests::TestNames;
use reader::{Names, Reader, Table};
use recorder::RecorderNames;
use rules::{RulePlaces, Rules};
use sets::Sets;
use sinks::Sinks;
use variables::Variables;

/// Options for reading a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// Values of variables by name, which override those of `[variables]`. A text that is a number, `true`,
    /// `false` or a list in TOML has that type; any other is a string.
    pub variables: BTreeMap<String, String>,
}

/// Returns whether a name is a reserved word in `sets`, `groups` or `rules`; the parser refuses such names.
///
/// ```
/// assert!(policy::is_reserved("groups", "kernel"));
/// assert!(!policy::is_reserved("sinks", "kernel"));
/// ```
#[must_use]
pub fn is_reserved(table: &str, name: &str) -> bool {
    match table {
        "sets" => values::is_keyword(name),
        "groups" => groups::is_reserved(name),
        "rules" => rules::is_reserved(name),
        _ => false,
    }
}

/// Reads a policy; returns it with its warnings.
///
/// # Errors
/// All problems of the text, its included files and its set files. If a file cannot be read or is not TOML,
/// names that it may define are not reported as unknown elsewhere.
pub fn parse(source: &Source, loader: &dyn SetLoader) -> Result<(Policy, Vec<Diagnostic>), Diagnostics> {
    parse_with(source, loader, &LoadOptions::default())
}

/// Parses a policy as [`parse`] does, with options.
///
/// # Errors
/// As [`parse`].
pub fn parse_with(
    source: &Source,
    loader: &dyn SetLoader,
    options: &LoadOptions,
) -> Result<(Policy, Vec<Diagnostic>), Diagnostics> {
    let source = Arc::new(source.clone());
    let mut reader = Reader::new(&source);
    if source.text.len() as u64 > MAX_FILE_BYTES {
        reader.error(0..0, format!("a policy has at most {MAX_FILE_BYTES} bytes"), "too long");
        return Err(reader.diagnostics);
    }
    let texts = Texts::new();
    let mut variables = Variables::given(&options.variables);
    let mut files = Files::new(loader);
    let mut found = Walk::new(&texts, &mut reader, &mut files, &mut variables).all(Arc::clone(&source));
    for file in &mut found {
        reader.source = Arc::clone(&file.source);
        variables.substitute_all(&mut reader, &mut file.document, &["variables", "includes"]);
    }
    let policy = assemble(&mut reader, &source, &found, &mut files);
    reader.source = Arc::clone(&source);
    if !reader.diagnostics.has_errors() {
        variables.warn(&mut reader);
    }
    reader.diagnostics.sort();
    match reader.diagnostics.has_errors() {
        false => Ok((policy, reader.diagnostics.list)),
        true => Err(reader.diagnostics),
    }
}

/// Reads the conditions of one match, as they stand between the braces of `match = { ... }`; `name` is that
/// of the text in diagnostics. There are no sets and no variables.
///
/// ```
/// let matches = policy::parse_match("MATCH", r#"protocol = "udp", dst_port = 53"#)?;
/// assert!(!program::Predicate::of(&matches).matches(&packet::FlowKey::of(&[0; 60])));
/// let problems = policy::parse_match("MATCH", "dst_prot = 53").unwrap_err();
/// assert!(problems.list[0].message.starts_with("unknown key `dst_prot`"));
/// # Ok::<(), policy::Diagnostics>(())
/// ```
///
/// # Errors
/// All problems of the conditions.
pub fn parse_match(name: &str, conditions: &str) -> Result<Match, Diagnostics> {
    let text = format!(
        "version = 1\nrules = [{{ name = \"match\", action = \"drop\", match = {{ {conditions} }} }}]\n"
    );
    let source = Source::new(name, text);
    let (mut policy, _) = parse(&source, &NoFiles)?;
    match policy.rules.pop() {
        Some(rule) if policy.rules.is_empty() => Ok(rule.matches),
        _ => {
            let place = Place::new(&Arc::new(source), 0..0);
            let problem = place.error("these are not the conditions of one match", "");
            Err(vec![problem.hint("close no brace or bracket that was not opened")].into())
        }
    }
}

/// The sets, groups and sinks of all files.
fn definitions(reader: &mut Reader, found: &[File<'_>], files: &mut Files<'_>) -> (Sets, Groups, Sinks) {
    let mut sets = Sets::new();
    let (mut groups, mut sinks) = (Groups::default(), Sinks::default());
    for file in found {
        reader.source = Arc::clone(&file.source);
        if let Some(value) = file.document.get("sinks") {
            sinks.read(reader, value);
        }
    }
    for file in found {
        reader.source = Arc::clone(&file.source);
        files.folder.clone_from(&file.folder);
        let table = &file.document;
        reader.refuse_unknown_keys(table, keys::POLICY, "a policy");
        version(reader, table);
        if let Some(value) = table.get("sets") {
            sets.read(reader, value, files);
        }
        if let Some(value) = table.get("groups") {
            groups.read(reader, value, &sinks);
        }
    }
    sets.refuse_cycles(reader);
    sets.refuse_too_small(reader);
    (sets, groups, sinks)
}

/// The policy of all files. Files share names, so the sets and groups of all files are read before any rule.
fn assemble(reader: &mut Reader, main: &Arc<Source>, found: &[File<'_>], files: &mut Files<'_>) -> Policy {
    let (mut sets, groups, sinks) = definitions(reader, found, files);
    let mut rules = Rules::default();
    let mut seen = 0;
    let mut defaults = [("default", None), ("default_multicast", None)];
    let (mut allow_lost_exceptions, mut skips_extensions) = (None, None);
    for file in found {
        reader.source = Arc::clone(&file.source);
        key_of_one_file(reader, &file.document, extensions::KEY, &mut skips_extensions, extensions::read);
    }
    let skips_extensions = skips_extensions.is_some_and(|(skips, _)| skips);
    let mut protected: Option<Vec<ProtectedMatch>> = None;
    for file in found {
        reader.source = Arc::clone(&file.source);
        if let Some(value) = file.document.get("rules") {
            let places = RulePlaces { groups: &groups, sinks: &sinks };
            rules.read(reader, value, places, &mut sets, &mut seen, skips_extensions);
        }
        for (key, given) in &mut defaults {
            default(reader, &file.document, &groups, key, given);
        }
        key_of_one_file(
            reader,
            &file.document,
            "allow_lost_exceptions",
            &mut allow_lost_exceptions,
            |reader, value| reader.boolean(value, "`allow_lost_exceptions`"),
        );
        if let Some((key, value)) = file.document.get_key_value("protect") {
            protect::read(reader, key, value, &mut sets, protected.get_or_insert_default());
        }
    }
    rules.refuse_many_sources(reader);
    let [(_, default), (_, multicast)] = defaults;
    let names = TestNames { groups: &groups, rules: &rules, has_multicast_default: multicast.is_some() };
    let tests = tests(reader, found, &names, &mut sets);
    reader.source = Arc::clone(main);
    if seen == 0 && !reader.diagnostics.has_errors() {
        let hint = "all packets go to `default`";
        let warning = reader.place(0..0).warning("the policy has no rules", "this policy").hint(hint);
        reader.push(warning);
    }
    if !reader.diagnostics.has_errors() {
        sets.warn(reader);
    }
    let default_given = default.is_some();
    let start = || Place::new(main, 0..0);
    let (default, default_place) =
        default.map_or_else(|| (Action::Kernel, start()), |default| (default.action, default.place));
    let written = std::mem::take(&mut rules.names);
    let rules = rules.finish(multicast.map(|multicast| (multicast.action, multicast.place)));
    let runtime = runtime_rules(reader, found, &groups, &rules, &written);
    let recorder = recorder(reader, found, RecorderNames { rules: &rules, written: &written, sinks: &sinks });
    reader.source = Arc::clone(main);
    let policy = Policy {
        source: Arc::clone(main),
        default,
        default_place,
        default_given,
        allow_lost_exceptions: allow_lost_exceptions.is_some_and(|(allows, _)| allows),
        protect: protected,
        groups: groups.list,
        sinks: sinks.list,
        rules,
        set_sizes: sets.sizes(),
        runtime,
        recorder,
        tests,
    };
    if !reader.diagnostics.has_errors() && policy.carves_queues() {
        carving::refuse(reader, &policy);
        unused::warn_of_queues(reader, &policy);
    } else if !reader.diagnostics.has_errors() {
        cautions::warn(reader, &policy, &groups.symmetry_asked);
        unused::warn_of_sinks(reader, &policy);
    }
    policy
}

/// Reads `[runtime]`.
fn runtime_rules(
    reader: &mut Reader,
    found: &[File<'_>],
    groups: &Groups,
    rules: &[RuleDefinition],
    written: &Names,
) -> Option<RuntimeDefinition> {
    table_of_one_file(reader, found, "runtime", |reader, key, value| {
        runtime::read(reader, key, value, groups, rules, written)
    })
}

/// Reads `[recorder]`.
fn recorder(reader: &mut Reader, found: &[File<'_>], names: RecorderNames<'_>) -> Option<RecorderDefinition> {
    table_of_one_file(reader, found, "recorder", |reader, key, value| {
        recorder::read(reader, key, value, names)
    })
}

/// Reads a table that only one file may have.
fn table_of_one_file<T>(
    reader: &mut Reader,
    found: &[File<'_>],
    name: &str,
    read: impl Fn(&mut Reader, &reader::Key<'_>, &reader::Value<'_>) -> Option<T>,
) -> Option<T> {
    let mut given: Option<(Option<T>, Place)> = None;
    for file in found {
        reader.source = Arc::clone(&file.source);
        let Some((key, value)) = file.document.get_key_value(name) else { continue };
        if let Some((_, first)) = &given {
            given_twice(reader, value, name, first);
            continue;
        }
        given = Some((read(reader, key, value), reader.place(key.span())));
    }
    given.and_then(|(table, _)| table)
}

/// Reads `[[tests]]` of all files.
fn tests(reader: &mut Reader, found: &[File<'_>], names: &TestNames<'_>, sets: &mut Sets) -> Vec<PolicyTest> {
    let mut tests = Vec::new();
    for file in found {
        reader.source = Arc::clone(&file.source);
        if let Some(value) = file.document.get("tests") {
            policy_tests::read(reader, value, names, sets, &file.folder, &mut tests);
        }
    }
    tests
}

/// A default and its place.
struct Default {
    action: Action,
    place: Place,
}

/// Reads `default` or `default_multicast` of one file; only one file may have it.
fn default(reader: &mut Reader, table: &Table<'_>, groups: &Groups, key: &str, given: &mut Option<Default>) {
    let Some(value) = table.get(key) else { return };
    if let Some(first) = given {
        given_twice(reader, value, key, &first.place);
        return;
    }
    let place = reader.place(value.span());
    *given = actions::of_default(reader, value, groups, key).map(|action| Default { action, place });
}

/// Reads a key that only one file may have, and whose value becomes true or false.
fn key_of_one_file(
    reader: &mut Reader,
    table: &Table<'_>,
    key: &str,
    given: &mut Option<(bool, Place)>,
    read: fn(&mut Reader, &reader::Value<'_>) -> Option<bool>,
) {
    let Some(value) = table.get(key) else { return };
    if let Some((_, first)) = given {
        given_twice(reader, value, key, first);
        return;
    }
    let place = reader.place(value.span());
    *given = read(reader, value).map(|value| (value, place));
}

fn given_twice(reader: &mut Reader, value: &reader::Value<'_>, key: &str, first: &Place) {
    let hint = format!("the first is on line {} of {}", first.line(), first.file());
    reader.report(value.span(), |place| {
        place.error(format!("`{key}` is given twice"), "again").hint(hint).related(first, "the first")
    });
}

fn version(reader: &mut Reader, table: &Table<'_>) {
    const HINT: &str = "write version = 1";
    let right = || ProblemHint::whole(HINT, VERSION.to_string());
    let Some(value) = table.get("version") else {
        let hint = ProblemHint::whole(HINT, format!("version = {VERSION}\n"));
        return reader.error_with(0..0, "the policy has no `version`", "at the top of the file", hint);
    };
    match reader::integer_of(value) {
        Some(number) if number == i64::from(VERSION) => {}
        Some(number) => {
            let message = format!("version {number} of the language is not supported");
            reader.error_with(value.span(), message, "not known", right());
        }
        None => reader.wrong_type(value, "`version`", "a number"),
    }
}

//! Access to a TOML tree with spans that collects problems. All other modules of `parse` use it, and none
//! stops at the first problem.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::Arc;

use strsim::osa_distance;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::diagnostics::{Diagnostic, Diagnostics, Place, Severity};
use crate::hint::ProblemHint;
use crate::keys;
use crate::policy::MAX_NAME_BYTES;
use crate::source::Source;

use super::sets::shortened;
use super::synonyms;

pub(super) type Value<'t> = Spanned<DeValue<'t>>;
pub(super) type Table<'t> = DeTable<'t>;
pub(super) type Key<'t> = Spanned<Cow<'t, str>>;

/// The most unknown names that are compared with known ones while files are missing; each comparison takes
/// long.
const MAX_GUESSES: usize = 1000;

/// The file being read and the problems found so far.
pub(super) struct Reader {
    /// The file that spans refer to at present.
    pub(super) source: Arc<Source>,
    pub(super) diagnostics: Diagnostics,
    /// Whether every file was read.
    pub(super) is_whole: bool,
    /// File and offset of strings whose variables are unknown. That was reported, and their value is not
    /// known, so nothing else is reported about them.
    unresolved: BTreeSet<(usize, usize)>,
    /// How many more unknown names may be compared with known ones.
    guesses_left: usize,
}

impl Reader {
    pub(super) fn new(source: &Arc<Source>) -> Self {
        let (source, diagnostics) = (Arc::clone(source), Diagnostics::default());
        Self { source, diagnostics, is_whole: true, unresolved: BTreeSet::new(), guesses_left: MAX_GUESSES }
    }

    pub(super) fn place(&self, span: Range<usize>) -> Place {
        Place::new(&self.source, span)
    }

    /// Reports an error.
    pub(super) fn error(&mut self, span: Range<usize>, message: impl Into<String>, label: impl Into<String>) {
        self.report(span, |place| place.error(message, label));
    }

    /// Reports an error with a hint.
    pub(super) fn error_with(
        &mut self,
        span: Range<usize>,
        message: impl Into<String>,
        label: impl Into<String>,
        hint: impl Into<ProblemHint>,
    ) {
        self.report(span, |place| place.error(message, label).hint(hint));
    }

    /// Reports that a file cannot be read.
    pub(super) fn unreadable(&mut self, span: Range<usize>, message: &str, hint: &str, error: &io::Error) {
        if !self.is_unresolved(&span) {
            let message = format!("{message}: {error}");
            let problem = self.place(span).error(message, "named here").hint(hint).caused_by(error);
            self.diagnostics.push(problem);
        }
    }

    /// Reports an error whose message, label and hint take long to find: they are made only if the error is
    /// listed.
    pub(super) fn error_lazy<H: Into<ProblemHint>>(
        &mut self,
        span: Range<usize>,
        describe: impl FnOnce() -> (String, String, H),
    ) {
        self.report(span, |place| {
            let (message, label, hint) = describe();
            place.error(message, label).hint(hint)
        });
    }

    /// Reports a problem that is made only if it is listed.
    pub(super) fn report(&mut self, span: Range<usize>, make: impl FnOnce(&Place) -> Diagnostic) {
        if self.is_unresolved(&span) {
            return;
        }
        let place = self.place(span);
        self.diagnostics.push_with(Severity::Error, || make(&place));
    }

    /// Marks the string at this place as one with unknown variables.
    pub(super) fn mark_unresolved(&mut self, span: &Range<usize>) {
        self.unresolved.insert((self.file(), span.start));
    }

    pub(super) fn is_unresolved(&self, span: &Range<usize>) -> bool {
        self.unresolved.contains(&(self.file(), span.start))
    }

    /// An identity for the current file.
    fn file(&self) -> usize {
        Arc::as_ptr(&self.source) as usize
    }

    pub(super) fn push(&mut self, diagnostic: Diagnostic) {
        self.diagnostics.push(diagnostic);
    }

    /// Reports every key that is not among `known`; `of` names the kind of table.
    pub(super) fn refuse_unknown_keys(&mut self, table: &Table<'_>, known: &[keys::Key], of: &str) {
        if table.keys().all(|key| known.iter().any(|known| known.name == key.get_ref().as_ref())) {
            return;
        }
        for (key, _) in entries(table) {
            let name: &str = key.get_ref();
            if !known.iter().any(|known| known.name == name) {
                self.error_lazy(key.span(), || {
                    let names = || known.iter().map(|known| known.name);
                    let hint = match (synonyms::of_key(of, name), nearest(name, names())) {
                        (Some(hint), _) => hint,
                        (None, Some(near)) => ProblemHint::meant(name, near),
                        (None, None) => {
                            format!("the keys of {of} are {}", names().collect::<Vec<_>>().join(", ")).into()
                        }
                    };
                    (
                        format!("unknown key `{}`", shortened(name)),
                        "not a key of the language".to_owned(),
                        hint,
                    )
                });
            }
        }
    }

    /// Whether an unknown name is to be reported. If a file could not be read, that file may define it; then
    /// only names that are nearly a known one are reported.
    pub(super) fn reports_unknown<'k>(&mut self, name: &str, known: impl Iterator<Item = &'k str>) -> bool {
        if self.is_whole {
            return true;
        }
        let may_guess = self.guesses_left > 0;
        self.guesses_left = self.guesses_left.saturating_sub(1);
        may_guess && nearest(name, known).is_some()
    }

    /// The table that a value must be.
    pub(super) fn table<'v, 't>(&mut self, value: &'v Value<'t>, what: &str) -> Option<&'v Table<'t>> {
        let table = value.get_ref().as_table();
        if table.is_none() {
            self.wrong_type(value, what, "a table");
        }
        table
    }

    pub(super) fn array<'v, 't>(&mut self, value: &'v Value<'t>, what: &str) -> Option<&'v [Value<'t>]> {
        let array = value.get_ref().as_array();
        if array.is_none() {
            self.wrong_type(value, what, "a list");
        }
        array.map(|array| &**array)
    }

    pub(super) fn string<'v>(&mut self, value: &'v Value<'_>, what: &str) -> Option<&'v str> {
        let string = value.get_ref().as_str();
        if string.is_none() {
            self.wrong_type(value, what, "a string");
        }
        string
    }

    pub(super) fn boolean(&mut self, value: &Value<'_>, what: &str) -> Option<bool> {
        let boolean = value.get_ref().as_bool();
        if boolean.is_none() {
            self.wrong_type(value, what, "true or false");
        }
        boolean
    }

    /// The number, from `least` to `most`, that a value must be.
    pub(super) fn integer(&mut self, value: &Value<'_>, what: &str, least: u32, most: u32) -> Option<u32> {
        let Some(number) = integer_of(value) else {
            if value.get_ref().is_integer() {
                self.out_of_range(value, what, least, most);
            } else {
                self.wrong_type(value, what, "a number");
            }
            return None;
        };
        let fitting = u32::try_from(number).ok().filter(|number| (least..=most).contains(number));
        if fitting.is_none() {
            self.out_of_range(value, what, least, most);
        }
        fitting
    }

    fn out_of_range(&mut self, value: &Value<'_>, what: &str, least: u32, most: u32) {
        let hint = format!("write a number from {least} to {most}");
        self.error_with(value.span(), format!("{what} is out of range"), "this number", hint);
    }

    pub(super) fn wrong_type(&mut self, value: &Value<'_>, what: &str, wanted: &str) {
        let found = value.get_ref().type_str();
        let (message, label) = (format!("{what} must be {wanted}"), format!("this is of type {found}"));
        match type_hint(value.get_ref(), wanted) {
            Some(hint) => self.error_with(value.span(), message, label, hint),
            None => self.error(value.span(), message, label),
        }
    }

    /// Checks the form of a name of a rule, group or set; the caller checks that it is unique.
    pub(super) fn is_valid_name(&mut self, name: &str, span: Range<usize>, of: &str) -> bool {
        let good_start = name.starts_with(|first: char| first.is_ascii_alphabetic());
        let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let is_good = good_start && name.chars().all(good) && name.len() <= MAX_NAME_BYTES;
        if !is_good {
            let hint = format!(
                "a name starts with a letter, continues with letters, digits, `-`, `_` or `.`, and has at most {MAX_NAME_BYTES} characters"
            );
            self.error_with(span, format!("{of} has an invalid name"), "invalid name", hint);
        }
        is_good
    }
}

/// A hint for a value whose content is right and whose type is wrong. `wanted`: the type, as "a number",
/// "true or false", "a list" or "a string".
#[must_use]
pub fn type_hint(value: &DeValue<'_>, wanted: &str) -> Option<ProblemHint> {
    let text = value.as_str().map(str::trim);
    match (wanted, text) {
        ("a number", Some(text)) if text.parse::<i64>().is_ok() => {
            let words = format!("write {text}, without quotes");
            // TOML allows no leading zeros.
            let is_toml = text.parse::<i64>().is_ok_and(|number| number.to_string() == text);
            Some(if is_toml { ProblemHint::whole(words, text) } else { words.into() })
        }
        ("true or false", Some("true" | "yes" | "on" | "1")) => {
            Some(ProblemHint::whole("write true, without quotes", "true"))
        }
        ("true or false", Some("false" | "no" | "off" | "0")) => {
            Some(ProblemHint::whole("write false, without quotes", "false"))
        }
        ("a list", Some(text)) => Some(format!("write [\"{}\"]", shortened(text)).into()),
        ("a list", None) if value.is_integer() => Some("write it in brackets: [...]".into()),
        ("a list of tables", None) if value.is_table() => {
            Some("write [[rules]], with two brackets on each side".into())
        }
        ("a string", None) if value.is_array() => Some("write one value, without brackets".into()),
        _ => None,
    }
}

/// The entries of a table in the order of the text.
pub(super) fn entries<'v, 't>(table: &'v Table<'t>) -> Vec<(&'v Key<'t>, &'v Value<'t>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

pub(super) fn integer_of(value: &Value<'_>) -> Option<i64> {
    let integer = value.get_ref().as_integer()?;
    i64::from_str_radix(integer.as_str(), integer.radix()).ok()
}

/// Finds names that are defined twice, over all files.
#[derive(Default)]
pub(super) struct Names(BTreeMap<String, Place>);

impl Names {
    /// Whether a definition has this name, even if the definition has errors.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Adds a name; reports it and returns `false` if it is there already.
    pub(super) fn is_new(&mut self, reader: &mut Reader, name: &str, span: Range<usize>, of: &str) -> bool {
        let Some(first) = self.0.get(name) else {
            self.0.insert(name.to_owned(), reader.place(span));
            return true;
        };
        let hint = match first.is_in(&reader.source) {
            true => format!("the first is on line {}", first.line()),
            false => format!("the first is on line {} of {}", first.line(), first.file()),
        };
        reader.report(span, |place| {
            let error = place.error(format!("another {of} is called `{name}`"), "not unique");
            error.hint(hint).related(first, "the first")
        });
        false
    }
}

/// The known word that a misspelt one probably means: the nearest by insertions, deletions, replacements and
/// swaps of neighbours.
#[must_use]
pub fn nearest<'k>(word: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    /// Longer words are not compared, because it would take long.
    const MAX_WORD_BYTES: usize = 2 * MAX_NAME_BYTES;
    /// The most names that a word is compared with.
    const MAX_CANDIDATES: usize = 256;
    let length = word.chars().count();
    // A word of one letter has nothing in common with another.
    if word.len() > MAX_WORD_BYTES || length < 2 {
        return None;
    }
    let allowed = (length / 3).clamp(1, 3);
    known
        .take(MAX_CANDIDATES)
        .filter(|candidate| candidate.len() <= MAX_WORD_BYTES)
        .map(|candidate| (osa_distance(word, candidate), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_typos_are_recognised() {
        let known = ["dst_port", "src_port", "dst", "src"];
        let near = |word| nearest(word, known.into_iter());
        assert_eq!(near("dst_prot"), Some("dst_port"));
        assert_eq!(near("dstport"), Some("dst_port"));
        assert_eq!(near("scr"), Some("src"));
        assert_eq!(near("frobnicate"), None);
        assert_eq!(near(""), None);
    }

    #[test]
    fn a_swap_is_one_edit() {
        assert_eq!(osa_distance("prot", "port"), 1);
        assert_eq!(osa_distance("", "abc"), 3);
        assert_eq!(osa_distance("kitten", "sitting"), 3);
    }
}

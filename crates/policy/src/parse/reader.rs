//! Walking a spanned TOML tree while collecting what is wrong with it. Every other part of `parse` goes
//! through this; it never gives up at the first problem.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::diagnostics::{Diagnostic, Diagnostics, Place, Severity};
use crate::policy::MAX_NAME_BYTES;
use crate::schema::keys;
use crate::source::Source;

use super::sets::shortened;
use super::synonyms;

pub(super) type Value<'t> = Spanned<DeValue<'t>>;
pub(super) type Table<'t> = DeTable<'t>;
pub(super) type Key<'t> = Spanned<Cow<'t, str>>;

/// Where files are missing, so many names are told apart from those that the missing may define: a guess takes long.
const MAX_GUESSES: usize = 1000;

/// The text being read and what was found wrong so far.
pub(super) struct Reader {
    /// The file that spans are of just now.
    pub(super) source: Arc<Source>,
    pub(super) diagnostics: Diagnostics,
    /// Whether every file was read.
    pub(super) is_whole: bool,
    /// File and place of strings whose variables could not be put in place, which was reported: what they would
    /// have been is not known, and nothing more is said of them.
    unresolved: BTreeSet<(usize, usize)>,
    /// So many more names that are not known may be compared with those that are.
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

    /// Notes an error.
    pub(super) fn error(&mut self, span: Range<usize>, message: impl Into<String>, label: impl Into<String>) {
        self.note(span, |place| place.error(message, label));
    }

    /// Notes an error that says what to do about it.
    pub(super) fn error_with(
        &mut self,
        span: Range<usize>,
        message: impl Into<String>,
        label: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.note(span, |place| place.error(message, label).hint(hint));
    }

    /// The same where finding the words takes long: they are sought only if the error is listed.
    pub(super) fn error_late(
        &mut self,
        span: Range<usize>,
        words: impl FnOnce() -> (String, String, String),
    ) {
        self.note(span, |place| {
            let (message, label, hint) = words();
            place.error(message, label).hint(hint)
        });
    }

    fn note(&mut self, span: Range<usize>, make: impl FnOnce(&Place) -> Diagnostic) {
        if self.is_unresolved(&span) {
            return;
        }
        let place = self.place(span);
        self.diagnostics.push_with(Severity::Error, || make(&place));
    }

    /// The string at this place has variables that are not known.
    pub(super) fn leave_unresolved(&mut self, span: &Range<usize>) {
        self.unresolved.insert((self.file(), span.start));
    }

    pub(super) fn is_unresolved(&self, span: &Range<usize>) -> bool {
        self.unresolved.contains(&(self.file(), span.start))
    }

    /// Tells the files of one policy apart.
    fn file(&self) -> usize {
        Arc::as_ptr(&self.source) as usize
    }

    pub(super) fn push(&mut self, diagnostic: Diagnostic) {
        self.diagnostics.push(diagnostic);
    }

    /// Reports every key that is not among `known`; `of` is what the table is.
    pub(super) fn refuse_unknown_keys(&mut self, table: &Table<'_>, known: &[keys::Key], of: &str) {
        if table.keys().all(|key| known.iter().any(|known| known.name == key.get_ref().as_ref())) {
            return;
        }
        for (key, _) in entries(table) {
            let name: &str = key.get_ref();
            if !known.iter().any(|known| known.name == name) {
                self.error_late(key.span(), || {
                    let names = || known.iter().map(|known| known.name);
                    let hint = match (synonyms::of_key(of, name), nearest(name, names())) {
                        (Some(hint), _) => hint.to_owned(),
                        (None, Some(near)) => format!("did you mean `{near}`?"),
                        (None, None) => format!("{of} has {}", names().collect::<Vec<_>>().join(", ")),
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

    /// Whether a name that is not known is a problem: it may be of a file that could not be read, unless it is
    /// nearly one that is known.
    pub(super) fn is_to_be_known<'k>(&mut self, name: &str, known: impl Iterator<Item = &'k str>) -> bool {
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
            self.mistyped(value, what, "a table");
        }
        table
    }

    pub(super) fn array<'v, 't>(&mut self, value: &'v Value<'t>, what: &str) -> Option<&'v [Value<'t>]> {
        let array = value.get_ref().as_array();
        if array.is_none() {
            self.mistyped(value, what, "a list");
        }
        array.map(|array| &**array)
    }

    pub(super) fn string<'v>(&mut self, value: &'v Value<'_>, what: &str) -> Option<&'v str> {
        let string = value.get_ref().as_str();
        if string.is_none() {
            self.mistyped(value, what, "a string");
        }
        string
    }

    pub(super) fn boolean(&mut self, value: &Value<'_>, what: &str) -> Option<bool> {
        let boolean = value.get_ref().as_bool();
        if boolean.is_none() {
            self.mistyped(value, what, "true or false");
        }
        boolean
    }

    /// A number from `least` to `most`.
    pub(super) fn integer(&mut self, value: &Value<'_>, what: &str, least: u32, most: u32) -> Option<u32> {
        let Some(number) = integer_of(value) else {
            if value.get_ref().is_integer() {
                self.out_of_range(value, what, least, most);
            } else {
                self.mistyped(value, what, "a number");
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

    pub(super) fn mistyped(&mut self, value: &Value<'_>, what: &str, wanted: &str) {
        let found = value.get_ref().type_str();
        let (message, label) = (format!("{what} must be {wanted}"), format!("this is of type {found}"));
        match of_another_type(value, wanted) {
            Some(hint) => self.error_with(value.span(), message, label, hint),
            None => self.error(value.span(), message, label),
        }
    }

    /// Checks a name of a rule, group or set; the caller checks that it is the only one.
    pub(super) fn name_is_good(&mut self, name: &str, span: Range<usize>, of: &str) -> bool {
        let good_start = name.starts_with(|first: char| first.is_ascii_alphabetic());
        let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let is_good = good_start && name.chars().all(good) && name.len() <= MAX_NAME_BYTES;
        if !is_good {
            let hint = format!(
                "a name begins with a letter, goes on with letters, digits, `-`, `_` or `.`, and has at most {MAX_NAME_BYTES} characters"
            );
            self.error_with(span, format!("{of} has a bad name"), "not a name", hint);
        }
        is_good
    }
}

/// What to write instead of a value that is right but for its type.
fn of_another_type(value: &Value<'_>, wanted: &str) -> Option<String> {
    let text = value.get_ref().as_str().map(str::trim);
    match (wanted, text) {
        ("a number", Some(text)) if text.parse::<i64>().is_ok() => {
            Some(format!("write {text}, without quotes"))
        }
        ("true or false", Some("true" | "yes" | "on" | "1")) => Some("write true, without quotes".to_owned()),
        ("true or false", Some("false" | "no" | "off" | "0")) => {
            Some("write false, without quotes".to_owned())
        }
        ("a list", Some(text)) => Some(format!("write [\"{}\"]", shortened(text))),
        ("a list", None) if value.get_ref().is_integer() => Some("write it in brackets: [...]".to_owned()),
        ("a list of tables", None) if value.get_ref().is_table() => {
            Some("write [[rules]], with two brackets on each side".to_owned())
        }
        ("a string", None) if value.get_ref().is_array() => {
            Some("write one value, without brackets".to_owned())
        }
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

/// Finds names that were given twice, in whatever files.
#[derive(Default)]
pub(super) struct Names(BTreeMap<String, Place>);

impl Names {
    /// Notes a name; reports it and answers `false` if it was there before.
    pub(super) fn is_new(&mut self, reader: &mut Reader, name: &str, span: Range<usize>, of: &str) -> bool {
        let Some(first) = self.0.get(name) else {
            self.0.insert(name.to_owned(), reader.place(span));
            return true;
        };
        let hint = match first.is_in(&reader.source) {
            true => format!("the first is on line {}", first.line()),
            false => format!("the first is on line {} of {}", first.line(), first.file()),
        };
        reader.error_with(span, format!("a second {of} is called `{name}`"), "not unique", hint);
        false
    }
}

/// The known word that a misspelt one probably means.
pub(super) fn nearest<'k>(word: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    /// Longer words are not compared: nobody misspells those by a letter or two, and it would take long.
    const MAX_WORD_BYTES: usize = 2 * MAX_NAME_BYTES;
    /// With more names than this the first ones must do.
    const MAX_CANDIDATES: usize = 256;
    let length = word.chars().count();
    // Of a word of one letter nothing is left when that is wrong.
    if word.len() > MAX_WORD_BYTES || length < 2 {
        return None;
    }
    let allowed = (length / 3).clamp(1, 3);
    known
        .take(MAX_CANDIDATES)
        .filter(|candidate| candidate.len() <= MAX_WORD_BYTES)
        .map(|candidate| (edits(word, candidate), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Insertions, deletions, replacements and swaps of neighbours between two words (optimal string alignment).
fn edits(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let from: Vec<char> = from.chars().collect();
    let mut two_above: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in to.iter().enumerate() {
            let mut best = (above[j] + usize::from(a != b)).min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == to[j - 1] && from[i - 1] == *b {
                best = best.min(two_above[j - 1] + 1);
            }
            row.push(best);
        }
        two_above = std::mem::replace(&mut above, row);
    }
    above[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_slips_are_recognised() {
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
        assert_eq!(edits("prot", "port"), 1);
        assert_eq!(edits("", "abc"), 3);
        assert_eq!(edits("kitten", "sitting"), 3);
    }
}

//! `[variables]` and `${name}`, for values that differ from host to host. They are substituted in the tree of
//! each file before it is read further, so no other module of `parse` deals with them. The place of a
//! substituted value is that of its use.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use toml::Spanned;
use toml::de::DeValue;

use crate::diagnostics::Place;
use crate::hint::ProblemHint;

use super::reader::{Reader, Table, Value, entries, nearest};
use super::sets::shortened;

/// The most bytes that all substitutions may produce; a large list that is used often would fill the memory.
pub const MAX_SUBSTITUTED_BYTES: usize = 1 << 24;
/// The bytes that a value takes in addition to its text.
const VALUE_BYTES: usize = 32;

/// The variables of a policy by name.
pub(super) struct Variables<'t> {
    known: BTreeMap<String, Variable<'t>>,
    /// How many more bytes may be substituted.
    left: usize,
}

struct Variable<'t> {
    /// `None` if its definition has an error, which was reported.
    value: Option<DeValue<'t>>,
    /// The place of its definition; `None` if only the caller gives it.
    place: Option<Place>,
    is_given: bool,
    used: bool,
}

impl<'t> Variables<'t> {
    /// The variables that the caller gives; a text that is a number, a boolean or a list in TOML has that
    /// type.
    pub(super) fn given(texts: &'t BTreeMap<String, String>) -> Self {
        let known = texts.iter().map(|(name, text)| {
            let parsed = DeValue::parse(text).map(Spanned::into_inner);
            let value = match parsed {
                Ok(value) if value.is_integer() || value.is_bool() || value.is_array() => value,
                _ => DeValue::String(text.as_str().into()),
            };
            (name.clone(), Variable { value: Some(value), place: None, is_given: true, used: false })
        });
        Self { known: known.collect(), left: MAX_SUBSTITUTED_BYTES }
    }

    /// Reads the `[variables]` of one file; variables that are known already keep their values.
    pub(super) fn define(&mut self, reader: &mut Reader, value: &Value<'t>) {
        let Some(table) = reader.table(value, "`variables`") else { return };
        for (key, value) in entries(table) {
            let name: &str = key.get_ref();
            if !reader.is_valid_name(name, key.span(), "the variable") {
                continue;
            }
            let value = is_plain(reader, value).then(|| value.get_ref().clone());
            let place = Some(reader.place(key.span()));
            match self.known.get_mut(name) {
                Some(known) => known.place = known.place.take().or(place),
                None => {
                    self.known
                        .insert(name.to_owned(), Variable { value, place, is_given: false, used: false });
                }
            }
        }
    }

    /// Substitutes every `${name}` in a value.
    pub(super) fn substitute(&mut self, reader: &mut Reader, value: &mut Value<'t>) {
        let span = value.span();
        let replaced = match value.get_mut() {
            DeValue::String(text) if text.contains("${") => {
                let text = text.clone();
                self.replacement(reader, &text, &span)
            }
            DeValue::Array(array) => {
                array.iter_mut().for_each(|item| self.substitute(reader, item));
                None
            }
            DeValue::Table(table) => {
                self.substitute_all(reader, table, &[]);
                None
            }
            _ => None,
        };
        if let Some(replaced) = replaced {
            *value.get_mut() = replaced;
        }
    }

    /// Substitutes in every entry of a table except `but`.
    pub(super) fn substitute_all(&mut self, reader: &mut Reader, table: &mut Table<'t>, but: &[&str]) {
        for (key, value) in table.iter_mut() {
            if !but.contains(&key.get_ref().as_ref()) {
                self.substitute(reader, value);
            }
        }
    }

    /// The value of a string with variables; `None` if there is an error, which was reported.
    fn replacement(&mut self, reader: &mut Reader, text: &str, span: &Range<usize>) -> Option<DeValue<'t>> {
        let replaced = match only_variable(text) {
            Some(name) => {
                let value = self.find(reader, name, span).cloned();
                value.filter(|value| self.reserve(reader, cost(value), span)).map(|value| moved(value, span))
            }
            None => self.text(reader, text, span).map(|text| DeValue::String(text.into())),
        };
        if replaced.is_none() {
            reader.mark_unresolved(span);
        }
        replaced
    }

    /// Substitutes the variables within a text; reports every unknown one.
    fn text(&mut self, reader: &mut Reader, text: &str, span: &Range<usize>) -> Option<String> {
        let mut whole = Some(String::new());
        let mut missing = BTreeSet::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${") {
            let Some((name, behind)) = after.split_once('}') else {
                let message = format!("the variable in `{}` is not closed", shortened(text));
                reader.error_with(span.clone(), message, "no `}`", "write ${name}");
                return None;
            };
            rest = behind;
            if missing.contains(name) {
                continue;
            }
            let part = self.part(reader, name, span).filter(|part| self.reserve(reader, part.len(), span));
            if part.is_none() {
                missing.insert(name);
            }
            whole = whole.zip(part).map(|(whole, part)| whole + before + &part);
        }
        whole.map(|whole| whole + rest)
    }

    /// The value of a variable as part of a text.
    fn part(&mut self, reader: &mut Reader, name: &str, span: &Range<usize>) -> Option<String> {
        match self.find(reader, name, span)? {
            DeValue::String(text) => Some(text.to_string()),
            value @ (DeValue::Integer(_) | DeValue::Boolean(_)) => Some(plain_text(value)),
            _ => {
                let message = format!("the list `{name}` cannot be part of a string");
                let hint = format!("write \"${{{name}}}\" alone");
                reader.error_with(span.clone(), message, "a list inside a string", hint);
                None
            }
        }
    }

    fn find(&mut self, reader: &mut Reader, name: &str, span: &Range<usize>) -> Option<&DeValue<'t>> {
        if self.known.contains_key(name) {
            let variable = self.known.get_mut(name)?;
            variable.used = true;
            return variable.value.as_ref();
        }
        if reader.reports_unknown(name, self.known.keys().map(String::as_str)) {
            reader.error_lazy(span.clone(), || self.unknown(name));
        }
        None
    }

    /// Message, label and hint for an unknown variable.
    fn unknown(&self, name: &str) -> (String, String, ProblemHint) {
        let trimmed = name.trim();
        let label = "no such variable".to_owned();
        if trimmed.is_empty() {
            return ("the variable has no name".to_owned(), label, "write ${name}".into());
        }
        let hint = match nearest(name, self.known.keys().map(String::as_str)) {
            _ if trimmed != name => format!("write ${{{}}}, without spaces", shortened(trimmed)).into(),
            Some(near) => ProblemHint::meant(name, near),
            None => {
                let name = shortened(name);
                format!("write {name} = ... in [variables], or pass --set {name}=...").into()
            }
        };
        (format!("unknown variable `{}`", shortened(name)), label, hint)
    }

    /// Whether `bytes` more may be substituted; reports the first time that they may not.
    fn reserve(&mut self, reader: &mut Reader, bytes: usize, span: &Range<usize>) -> bool {
        match self.left.checked_sub(bytes) {
            Some(left) => {
                self.left = left;
                true
            }
            None => {
                if self.left > 0 {
                    let message =
                        format!("the substituted variables take more than {MAX_SUBSTITUTED_BYTES} bytes");
                    reader.error_with(
                        span.clone(),
                        message,
                        "limit exceeded here",
                        "use a set instead of a variable",
                    );
                }
                self.left = 0;
                false
            }
        }
    }

    /// Warns of unused variables.
    pub(super) fn warn(&self, reader: &mut Reader) {
        for (name, variable) in self.known.iter().filter(|(_, variable)| !variable.used) {
            let place = variable.place.clone();
            let (place, label) = match place {
                Some(place) => (place, "defined here"),
                None => (reader.place(0..0), "in this policy"),
            };
            let what = if variable.is_given { "is given a value but" } else { "is" };
            let verb = if variable.is_given { "is never used" } else { "never used" };
            let warning = place.warning(format!("the variable `{name}` {what} {verb}"), label);
            reader.push(warning.hint(format!("use it as ${{{name}}}, or remove it")));
        }
    }
}

/// The name, if the text is one variable and nothing else.
fn only_variable(text: &str) -> Option<&str> {
    let name = text.trim().strip_prefix("${")?.strip_suffix('}')?;
    (!name.contains(['$', '{', '}'])).then_some(name)
}

/// Whether a variable may have this value: not a table, and no variable within it.
fn is_plain(reader: &mut Reader, value: &Value<'_>) -> bool {
    match value.get_ref() {
        DeValue::String(text) if text.contains("${") => {
            let hint = "write the value itself";
            reader.error_with(value.span(), "a variable cannot refer to another", "in a variable", hint);
            false
        }
        DeValue::String(_) | DeValue::Integer(_) | DeValue::Boolean(_) => true,
        DeValue::Array(array) => array.iter().all(|item| is_plain(reader, item)),
        _ => {
            reader.wrong_type(value, "a variable", "a string, a number, true, false or a list");
            false
        }
    }
}

fn cost(value: &DeValue<'_>) -> usize {
    let content = match value {
        DeValue::String(text) => text.len(),
        DeValue::Array(array) => array.iter().map(|item| cost(item.get_ref())).sum(),
        _ => 0,
    };
    content + VALUE_BYTES
}

/// The value with all spans set to `span`.
fn moved<'t>(value: DeValue<'t>, span: &Range<usize>) -> DeValue<'t> {
    match value {
        DeValue::Array(array) => {
            let items =
                array.into_iter().map(|item| Spanned::new(span.clone(), moved(item.into_inner(), span)));
            DeValue::Array(items.collect())
        }
        other => other,
    }
}

fn plain_text(value: &DeValue<'_>) -> String {
    match value {
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map_or_else(|_| number.as_str().to_owned(), |number| number.to_string()),
        DeValue::Boolean(truth) => truth.to_string(),
        _ => String::new(),
    }
}

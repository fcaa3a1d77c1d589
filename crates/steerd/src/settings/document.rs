//! A text of TOML as values, with all of its problems at once, each at its place.
//!
//! A type that derives `Deserialize` ends at the first error. So [`read`] leaves out the entry that the error
//! is about, and reads again, until there is no error: each turn leaves out one more entry, or ends. Errors
//! are values ([`FaultKind`]), not texts of serde, and become [`Diagnostic`]s in the words of the policy
//! language.
//!
//! An enum that is a table has its variant in the key `kind`. The derived code of such an enum is that of
//! serde's default form, which keeps the places of what is in the table.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

use policy::{Diagnostic, MAX_DIAGNOSTICS, Place};
use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Expected, MapAccess, SeqAccess,
    Unexpected, VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::limits;

/// The key with the variant of an enum that is a table.
const KIND: &str = "kind";

type Key<'t> = Spanned<DeString<'t>>;
type Node<'t> = Spanned<DeValue<'t>>;

/// The values of a text, without the entries that have problems.
pub(super) struct Document<T> {
    pub(super) values: T,
    /// The document as a table of TOML.
    pub(super) table: toml::Table,
    pub(super) problems: Vec<Diagnostic>,
    /// The top keys of the entries that were left out.
    pub(super) incomplete: BTreeSet<String>,
    /// Whether there are more problems, and no values: each takes another turn.
    pub(super) is_cut_off: bool,
}

/// Reads a tree. `place`: the place of a span of its text.
pub(super) fn read<T: DeserializeOwned + Default>(
    tree: &DeTable<'_>,
    place: &dyn Fn(Range<usize>) -> Place,
) -> Document<T> {
    let mut left_out = BTreeSet::new();
    let mut document = Document {
        values: T::default(),
        table: toml::Table::new(),
        problems: Vec::new(),
        incomplete: BTreeSet::new(),
        is_cut_off: false,
    };
    loop {
        let fault = match T::deserialize(TableReader::new(tree, &left_out, None)) {
            Ok(values) => {
                document.values = values;
                break;
            }
            Err(fault) => fault,
        };
        if document.problems.len() >= MAX_DIAGNOSTICS {
            document.is_cut_off = true;
            return document;
        }
        let entry = fault.entry.filter(|entry| left_out.insert(*entry));
        document.incomplete.extend(fault.path.last().cloned());
        // A key that was left out has been reported.
        if !matches!(*fault.kind, FaultKind::MissingKey { is_left_out: true, .. }) {
            document.problems.push(fault.diagnostic(place));
        }
        if entry.is_none() {
            return document;
        }
    }
    // A table takes any value.
    document.table = <toml::Table as de::Deserialize>::deserialize(TableReader::new(tree, &left_out, None))
        .unwrap_or_default();
    document
}

/// The value at a dotted key. A part that is a number is a place in a list, from 0.
pub(super) fn span_of(tree: &DeTable<'_>, key: &str) -> Option<Range<usize>> {
    let mut parts = key.split('.');
    let (name, first) = tree.get_key_value(parts.next()?)?;
    let mut found = (name.span(), first);
    for part in parts {
        found = match (found.1.get_ref(), part.parse::<usize>()) {
            (DeValue::Array(list), Ok(number)) => {
                let item = list.get(number)?;
                (item.span(), item)
            }
            (DeValue::Table(table), _) => {
                let (name, value) = table.get_key_value(part)?;
                (name.span(), value)
            }
            _ => return None,
        };
    }
    // A table with a header has no span of its own.
    Some(if found.1.span().is_empty() { found.0 } else { found.1.span() })
}

/// Why a value cannot be read.
#[derive(Debug)]
enum FaultKind {
    /// A value of another type.
    Type {
        wanted: String,
        /// The type of the value, and the remedy; known where the value is.
        found: Option<&'static str>,
        hint: Option<String>,
    },
    /// A number that is out of the range of its type.
    Range {
        found: String,
        wanted: String,
    },
    /// A text that is not one of those that are possible.
    Value {
        found: String,
        wanted: String,
    },
    Variant {
        found: String,
        known: &'static [&'static str],
    },
    UnknownKey {
        known: &'static [&'static str],
    },
    MissingKey {
        name: &'static str,
        /// It is there, perhaps with a misspelt name, and was left out.
        is_left_out: bool,
    },
    Other(String),
}

/// An error with its place.
#[derive(Debug)]
struct Fault {
    kind: Box<FaultKind>,
    span: Option<Range<usize>>,
    /// The keys down to the value, the innermost first.
    path: Vec<String>,
    /// The start of the entry to leave out.
    entry: Option<usize>,
}

impl Fault {
    fn new(kind: FaultKind) -> Self {
        Self { kind: Box::new(kind), span: None, path: Vec::new(), entry: None }
    }

    /// Adds what is known of the value that it is about, unless an inner value is.
    fn at(mut self, value: &DeValue<'_>, span: &Range<usize>, left_out: &BTreeSet<usize>) -> Self {
        if self.span.is_some() {
            return self;
        }
        self.span = Some(span.clone());
        match &mut *self.kind {
            FaultKind::Type { wanted, found, hint } => {
                *found = Some(value.type_str());
                *hint = policy::type_hint(value, wanted).map(String::from);
            }
            FaultKind::MissingKey { name, is_left_out } => {
                let is_name =
                    |key: &str| key == *name || policy::nearest(key, std::iter::once(*name)).is_some();
                let is_it = |key: &Key<'_>| left_out.contains(&key.span().start) && is_name(key.get_ref());
                *is_left_out = value.as_table().is_some_and(|table| table.keys().any(is_it));
            }
            _ => {}
        }
        self
    }

    /// In an entry of a table or a list.
    fn inside(mut self, key: Option<&str>, start: usize) -> Self {
        self.entry.get_or_insert(start);
        self.path.extend(key.map(str::to_owned));
        self
    }

    /// In the words of the policy language.
    fn diagnostic(&self, place: &dyn Fn(Range<usize>) -> Place) -> Diagnostic {
        let keys: Vec<&str> = self.path.iter().rev().map(String::as_str).collect();
        let key = keys.join(".");
        let place = place(self.span.clone().unwrap_or(0..0));
        let report = |message: String, label: String, hint: Option<String>| {
            let message = if key.is_empty() { message } else { format!("{key}: {message}") };
            hint.into_iter().fold(place.error(message, label), Diagnostic::hint)
        };
        match &*self.kind {
            FaultKind::Type { wanted, found, hint } => {
                let label = found.map_or_else(String::new, |found| format!("this is of type {found}"));
                report(format!("must be {wanted}"), label, hint.clone())
            }
            FaultKind::Range { found, wanted } => {
                let (least, most) = limits::range_of(&key).unwrap_or_else(|| range_of_type(wanted));
                let hint = format!("write a number from {least} to {most}");
                report(format!("{found} is out of range"), "this number".to_owned(), Some(hint))
            }
            FaultKind::Value { found, wanted } => report(
                format!("{found} is not possible"),
                "this value".to_owned(),
                Some(format!("write {wanted}")),
            ),
            FaultKind::Variant { found, known } => {
                let hint = match policy::nearest(found, known.iter().copied()) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("write {}", alternatives(known)),
                };
                report(format!("unknown value `{found}`"), "not known".to_owned(), Some(hint))
            }
            FaultKind::UnknownKey { known } => {
                let name = keys.last().copied().unwrap_or_default();
                let hint = match policy::nearest(name, known.iter().copied()) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None if known.is_empty() => "leave it out".to_owned(),
                    None => format!("the settings here are {}", known.join(", ")),
                };
                report("unknown setting".to_owned(), "not a setting".to_owned(), Some(hint))
            }
            FaultKind::MissingKey { name, .. } => {
                let hint = format!("add {name} = ...");
                report(format!("the key `{name}` is missing"), "in this table".to_owned(), Some(hint))
            }
            FaultKind::Other(text) => {
                let (message, hint) = match text.split_once(": write ") {
                    Some((message, remedy)) => (message, Some(format!("write {remedy}"))),
                    None => (text.as_str(), None),
                };
                report(message.to_owned(), "this value".to_owned(), hint)
            }
        }
    }
}

/// The limits of a type of numbers, by its name.
fn range_of_type(name: &str) -> (i64, i64) {
    let most = match name {
        "u8" => i64::from(u8::MAX),
        "u16" => i64::from(u16::MAX),
        "u32" => i64::from(u32::MAX),
        _ => i64::MAX,
    };
    (0, most)
}

/// "a, b or c".
fn alternatives(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

/// The type that serde expects, in the words of the policy language.
fn wanted(expected: &dyn Expected) -> String {
    let text = expected.to_string();
    let word = match text.as_str() {
        "i8" | "i16" | "i32" | "i64" | "isize" | "u8" | "u16" | "u32" | "u64" | "usize" | "f32" | "f64" => {
            "a number"
        }
        "a string" | "path string" | "a character" => "a string",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" | "newtype variant" | "struct variant" => "a table",
        text if text.starts_with("struct ") => "a table",
        _ => return text,
    };
    word.to_owned()
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.kind)
    }
}

impl std::error::Error for Fault {}

impl de::Error for Fault {
    fn custom<T: fmt::Display>(text: T) -> Self {
        Self::new(FaultKind::Other(text.to_string()))
    }

    fn invalid_type(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::new(FaultKind::Type { wanted: wanted(expected), found: None, hint: None })
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let wanted = expected.to_string();
        let kind = match found {
            Unexpected::Signed(number) => FaultKind::Range { found: number.to_string(), wanted },
            Unexpected::Unsigned(number) => FaultKind::Range { found: number.to_string(), wanted },
            Unexpected::Str(text) => FaultKind::Value { found: format!("\"{text}\""), wanted },
            other => FaultKind::Value { found: other.to_string(), wanted },
        };
        Self::new(kind)
    }

    fn invalid_length(length: usize, expected: &dyn Expected) -> Self {
        Self::new(FaultKind::Value { found: format!("a list of {length}"), wanted: expected.to_string() })
    }

    fn unknown_variant(found: &str, known: &'static [&'static str]) -> Self {
        Self::new(FaultKind::Variant { found: found.to_owned(), known })
    }

    /// The key has its name in its path.
    fn unknown_field(_: &str, known: &'static [&'static str]) -> Self {
        Self::new(FaultKind::UnknownKey { known })
    }

    fn missing_field(name: &'static str) -> Self {
        Self::new(FaultKind::MissingKey { name, is_left_out: false })
    }
}

/// A value with its place. `left_out`: the starts of entries that are read as if they were not there.
struct ValueReader<'d, 't> {
    value: &'d DeValue<'t>,
    span: Range<usize>,
    left_out: &'d BTreeSet<usize>,
}

impl<'d, 't> ValueReader<'d, 't> {
    fn new(node: &'d Node<'t>, left_out: &'d BTreeSet<usize>) -> Self {
        Self { value: node.get_ref(), span: node.span(), left_out }
    }

    fn visit<'de, V: Visitor<'de>>(&self, visitor: V) -> Result<V::Value, Fault> {
        match self.value {
            DeValue::String(text) => visitor.visit_str(text),
            DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
                Ok(number) => visitor.visit_i64(number),
                Err(_) => {
                    let (found, wanted) = (number.as_str().to_owned(), "i64".to_owned());
                    Err(Fault::new(FaultKind::Range { found, wanted }))
                }
            },
            DeValue::Float(number) => match number.as_str().parse() {
                Ok(number) => visitor.visit_f64(number),
                Err(_) => Err(de::Error::custom("not a number")),
            },
            DeValue::Boolean(value) => visitor.visit_bool(*value),
            DeValue::Datetime(time) => visitor.visit_string(time.to_string()),
            DeValue::Array(list) => {
                let mut items = Items { list: list.iter(), left_out: self.left_out };
                let value = visitor.visit_seq(&mut items)?;
                match items.list.next() {
                    None => Ok(value),
                    Some(_) => Err(de::Error::invalid_length(list.len(), &"fewer values")),
                }
            }
            DeValue::Table(table) => visitor.visit_map(TableReader::new(table, self.left_out, None)),
        }
    }

    /// An enum: a text, or a table with its variant in [`KIND`].
    fn visit_variant<'de, V: Visitor<'de>>(&self, visitor: V) -> Result<V::Value, Fault> {
        match self.value {
            DeValue::String(text) => visitor.visit_enum(StrDeserializer::new(text)),
            DeValue::Table(table) => {
                let Some((key, kind)) = table.get_key_value(KIND) else {
                    return Err(de::Error::missing_field(KIND));
                };
                visitor.visit_enum(Tagged { table, key, kind, left_out: self.left_out })
            }
            _ => Err(de::Error::invalid_type(Unexpected::Other(self.value.type_str()), &"a string")),
        }
    }
}

impl<'de> Deserializer<'de> for ValueReader<'_, '_> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.visit(visitor).map_err(|fault| fault.at(self.value, &self.span, self.left_out))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.visit_variant(visitor).map_err(|fault| fault.at(self.value, &self.span, self.left_out))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        seq tuple tuple_struct map struct identifier ignored_any
    }
}

/// The items of a list.
struct Items<'d, 't> {
    list: std::slice::Iter<'d, Node<'t>>,
    left_out: &'d BTreeSet<usize>,
}

impl<'de> SeqAccess<'de> for Items<'_, '_> {
    type Error = Fault;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Fault> {
        let left_out = self.left_out;
        let Some(item) = self.list.find(|item| !left_out.contains(&item.span().start)) else {
            return Ok(None);
        };
        let read = seed.deserialize(ValueReader::new(item, left_out));
        read.map(Some)
            .map_err(|fault| fault.at(item.get_ref(), &item.span(), left_out).inside(None, item.span().start))
    }
}

/// The entries of a table, in the order of the text.
struct TableReader<'d, 't> {
    entries: std::vec::IntoIter<(&'d Key<'t>, &'d Node<'t>)>,
    /// The entry whose key was read last.
    current: Option<(&'d Key<'t>, &'d Node<'t>)>,
    left_out: &'d BTreeSet<usize>,
}

impl<'d, 't> TableReader<'d, 't> {
    /// The entries of a table but one.
    fn new(table: &'d DeTable<'t>, left_out: &'d BTreeSet<usize>, without: Option<&str>) -> Self {
        let is_read =
            |key: &Key<'_>| !left_out.contains(&key.span().start) && without != Some(key.get_ref().as_ref());
        let mut entries: Vec<_> = table.iter().filter(|(key, _)| is_read(key)).collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        Self { entries: entries.into_iter(), current: None, left_out }
    }
}

impl<'de> MapAccess<'de> for TableReader<'_, '_> {
    type Error = Fault;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Fault> {
        let Some((key, value)) = self.entries.next() else { return Ok(None) };
        self.current = Some((key, value));
        let name: &str = key.get_ref();
        let read = seed.deserialize(StrDeserializer::new(name));
        read.map(Some).map_err(|fault: Fault| {
            fault.at(value.get_ref(), &key.span(), self.left_out).inside(Some(name), key.span().start)
        })
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Fault> {
        let Some((key, value)) = self.current.take() else {
            return Err(de::Error::custom("a value without a key"));
        };
        let read = seed.deserialize(ValueReader::new(value, self.left_out));
        // A text that its type refuses has no place yet.
        read.map_err(|fault| {
            let fault = fault.at(value.get_ref(), &value.span(), self.left_out);
            fault.inside(Some(key.get_ref()), key.span().start)
        })
    }
}

impl<'de> Deserializer<'de> for TableReader<'_, '_> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_map(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

/// A table with its variant in [`KIND`].
struct Tagged<'d, 't> {
    table: &'d DeTable<'t>,
    key: &'d Key<'t>,
    kind: &'d Node<'t>,
    left_out: &'d BTreeSet<usize>,
}

impl<'de> EnumAccess<'de> for Tagged<'_, '_> {
    type Error = Fault;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), Fault> {
        let name = ValueReader::new(self.kind, self.left_out);
        let read = seed.deserialize(name);
        // The other keys mean nothing without it, so the whole table is left out.
        let variant = read.map_err(|mut fault| {
            fault.path.push(self.key.get_ref().to_string());
            fault
        })?;
        Ok((variant, self))
    }
}

impl<'d, 't> Tagged<'d, 't> {
    fn content(&self) -> TableReader<'d, 't> {
        TableReader::new(self.table, self.left_out, Some(KIND))
    }
}

impl<'de> VariantAccess<'de> for Tagged<'_, '_> {
    type Error = Fault;

    fn unit_variant(self) -> Result<(), Fault> {
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Fault> {
        seed.deserialize(self.content())
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_map(self.content())
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        visitor.visit_map(self.content())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_a_key_is_that_of_its_value() {
        let text = "[a]\nb = 17\n[[a.c]]\nd = 1\n[[a.c]]\nd = 23\n";
        let tree = DeTable::parse(text).expect("TOML");
        let at = |key| span_of(tree.get_ref(), key).map(|span| &text[span]);
        assert_eq!((at("a.b"), at("a.c.1.d"), at("a.x")), (Some("17"), Some("23"), None));
        assert!(at("a.c").is_some() && at("a.c.1").is_some_and(|text| text.contains("a.c")));
    }
}

//! The keys of the language with their texts, and the values that they may have, from the JSON Schema that
//! the parser's table of keys makes.

use std::sync::LazyLock;

use packet::{FIELDS, Field};
use serde_json::Value;

/// The schema of a policy.
static SCHEMA: LazyLock<Value> = LazyLock::new(policy::schema);

/// A key of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KnownKey {
    pub(crate) name: String,
    pub(crate) doc: String,
    /// The type of its values, in a few words.
    pub(crate) values: String,
    pub(crate) is_required: bool,
}

/// The descriptions of a value: one for each form that it may have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shapes(Vec<&'static Value>);

impl Shapes {
    /// The shapes of the value that keys lead to. `sink_kind`: the kind of the sink on the way, if it is
    /// known.
    pub(crate) fn of<'k>(path: impl IntoIterator<Item = &'k str>, sink_kind: Option<&str>) -> Self {
        let mut shapes = Self(expanded(&SCHEMA));
        for key in path {
            shapes = shapes.below(key);
            let kind = |shape: &Value| shape.pointer("/properties/kind/const").cloned();
            let is_other =
                |shape: &Value| kind(shape).zip(sink_kind).is_some_and(|(kind, wanted)| kind != wanted);
            shapes.0.retain(|shape| !is_other(shape));
        }
        shapes
    }

    /// The shapes of the value of a key.
    fn below(&self, key: &str) -> Self {
        let of_object = |shape: &&'static Value| {
            let own = shape.get("properties").and_then(|keys| keys.get(key));
            let any = shape.get("additionalProperties").filter(|any| any.is_object());
            own.or(any).map(expanded).unwrap_or_default()
        };
        Self(self.0.iter().flat_map(of_object).collect())
    }

    /// The keys of the table that the value may be.
    pub(crate) fn keys(&self) -> Vec<KnownKey> {
        let mut found: Vec<KnownKey> = Vec::new();
        for shape in &self.0 {
            let required = shape.get("required").and_then(Value::as_array);
            let is_required = |name: &str| required.is_some_and(|names| names.iter().any(|one| one == name));
            for (name, value) in shape.get("properties").and_then(Value::as_object).into_iter().flatten() {
                if found.iter().all(|known| known.name != *name) {
                    found.push(KnownKey {
                        name: name.clone(),
                        doc: value["description"].as_str().unwrap_or_default().to_owned(),
                        values: Self(expanded(value)).words(),
                        is_required: is_required(name),
                    });
                }
            }
        }
        found
    }

    /// The words that the value may be, with quotes where they are strings.
    pub(crate) fn constants(&self) -> Vec<String> {
        let mut found: Vec<String> = Vec::new();
        for shape in &self.0 {
            let words = shape.get("enum").and_then(Value::as_array).into_iter().flatten();
            let constant = shape.get("const").into_iter();
            let boolean = shape.get("type").filter(|one| *one == "boolean");
            let booleans = boolean.into_iter().flat_map(|_| ["true", "false"]).map(str::to_owned);
            let all = words.chain(constant).map(Value::to_string).chain(booleans);
            all.for_each(|word| {
                if !found.contains(&word) {
                    found.push(word);
                }
            });
        }
        found
    }

    /// Whether the value may be a table of any names.
    pub(crate) fn is_map(&self) -> bool {
        self.0.iter().any(|shape| shape.get("additionalProperties").is_some_and(Value::is_object))
    }

    /// Whether the value may be a list of tables, as `[[rules]]` is.
    pub(crate) fn is_list_of_tables(&self) -> bool {
        let is_list = |shape: &Value| shape.get("items").is_some();
        let is_way = |shape: &Value| ["$ref", "allOf", "anyOf"].iter().any(|key| shape.get(key).is_some());
        let mut items = self.0.iter().filter(|shape| !is_list(shape) && !is_way(shape));
        self.0.iter().any(|shape| is_list(shape)) && items.all(|shape| shape.get("properties").is_some())
    }

    /// Whether the value may be a table with keys of its own.
    pub(crate) fn is_table(&self) -> bool {
        self.0.iter().any(|shape| shape.get("properties").is_some())
    }

    /// The type of the values, in a few words.
    fn words(&self) -> String {
        let mut words: Vec<String> = Vec::new();
        for shape in &self.0 {
            let word = match (shape.get("type").and_then(Value::as_str), shape.get("const")) {
                (_, Some(constant)) => constant.to_string(),
                // A variable may stand for every value.
                _ if shape.get("pattern").is_some() => continue,
                (Some("integer"), _) => match (shape.get("minimum"), shape.get("maximum")) {
                    (Some(least), Some(most)) => format!("number from {least} to {most}"),
                    _ => "number".to_owned(),
                },
                (Some("boolean"), _) => "true or false".to_owned(),
                (Some("object"), _) => "table".to_owned(),
                (Some("array"), _) => "list".to_owned(),
                (Some(other), _) => other.to_owned(),
                (None, _) => match shape.get("enum").and_then(Value::as_array) {
                    Some(list) => list.iter().map(Value::to_string).collect::<Vec<_>>().join(", "),
                    None => continue,
                },
            };
            if !words.contains(&word) {
                words.push(word);
            }
        }
        words.join(", ")
    }
}

/// The forms of a value: references are followed, and lists are followed by their items, because a path has
/// no parts for these.
fn expanded(value: &'static Value) -> Vec<&'static Value> {
    /// No chain of references of the schema is longer.
    const MAX_DEPTH: u32 = 16;
    fn expand(value: &'static Value, depth: u32, found: &mut Vec<&'static Value>) {
        if depth == 0 || found.iter().any(|known| std::ptr::eq(*known, value)) {
            return;
        }
        found.push(value);
        let target = value.get("$ref").and_then(Value::as_str).and_then(|target| target.strip_prefix('#'));
        let parts = ["allOf", "anyOf"].into_iter().filter_map(|key| value.get(key)?.as_array()).flatten();
        let all = target.and_then(|target| SCHEMA.pointer(target)).into_iter().chain(parts);
        all.chain(value.get("items")).for_each(|part| expand(part, depth - 1, found));
    }
    let mut found = Vec::new();
    expand(value, MAX_DEPTH, &mut found);
    found
}

/// The key at the end of a path.
pub(crate) fn key(path: &[String], sink_kind: Option<&str>) -> Option<KnownKey> {
    let (last, table) = path.split_last()?;
    let keys = Shapes::of(table.iter().map(String::as_str), sink_kind).keys();
    keys.into_iter().find(|key| key.name == *last)
}

/// Whether a path leads to a key of a match.
pub(crate) fn is_match_key(path: &[String]) -> bool {
    match path {
        [table, key, ..] if table == "rules" => key == "match",
        [table, key, ..] if table == "tests" => key == "every",
        [table, key, ..] if table == "protect" => key == "matches",
        _ => false,
    }
}

/// The description of a header field: its width, its header, how values are written, and whether devices can
/// match it.
pub(crate) fn field_details(name: &str) -> Option<String> {
    // A field behind extension headers has the key of the one right behind the IP header.
    let row = FIELDS.iter().find(|row| row.name == name)?;
    let matched = match row.slots.is_empty() {
        true => "Only workers can match it.",
        false => "Devices can match it, unless their model refuses it.",
    };
    let most: u128 = Field::max(row.field);
    let range = match row.bits {
        ..=32 => format!(", 0 to {most}"),
        _ => String::new(),
    };
    Some(format!(
        "{} of {} bits{range}, of the header {}. To give one, {}. {matched}",
        row.noun,
        row.bits,
        row.header.name(),
        row.hint
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(path: &[&str], kind: Option<&str>) -> Vec<String> {
        Shapes::of(path.iter().copied(), kind).keys().into_iter().map(|key| key.name).collect()
    }

    #[test]
    fn keys_follow_the_path() {
        assert!(names(&[], None).contains(&"groups".to_owned()));
        assert!(names(&["rules"], None).contains(&"action".to_owned()));
        assert!(names(&["rules", "match"], None).contains(&"dst_port".to_owned()));
        assert!(names(&["rules", "match", "inner"], None).contains(&"dst_port".to_owned()));
        assert!(names(&["groups", "rx"], None).contains(&"workers".to_owned()));
        assert!(names(&["sinks", "out"], Some("count")).contains(&"kind".to_owned()));
        assert!(names(&["rules", "nothing"], None).is_empty());
        let match_keys = Shapes::of(["rules", "match"], None).keys();
        assert!(match_keys.iter().all(|key| !key.doc.is_empty()), "{match_keys:?}");
    }

    #[test]
    fn values_are_listed_as_they_are_written() {
        let of = |path: &[&str]| Shapes::of(path.iter().copied(), None).constants();
        assert_eq!(of(&["rules", "direction"]), ["\"ingress\"", "\"egress\""]);
        assert_eq!(of(&["rules", "count"]), ["true", "false"]);
        assert!(of(&["rules", "action"]).contains(&"\"drop\"".to_owned()));
        let key = key(&["rules".to_owned(), "priority".to_owned()], None).expect("a key");
        assert_eq!(key.values, "number from -32768 to 32767");
    }

    #[test]
    fn tables_and_lists_are_told_apart() {
        let of = |name| Shapes::of([name], None);
        assert!(of("rules").is_list_of_tables() && of("tests").is_list_of_tables());
        assert!(!of("groups").is_list_of_tables() && of("groups").is_map());
        assert!(of("protect").is_table() && !of("protect").is_map());
        assert!(!of("includes").is_table());
    }

    #[test]
    fn every_field_has_details() {
        for row in &FIELDS {
            let details = field_details(row.name).expect("a field");
            assert!(details.contains(" bits"), "{details}");
        }
        assert_eq!(field_details("any"), None);
    }
}

//! The state that a sink reports to operators: named values in a fixed order, in one shape for all kinds. In
//! JSON it is an object whose numbers are numbers.

use std::borrow::Cow;
use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A value of a [`SinkStatus`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum StatusValue {
    /// A count, a size or an identifier.
    Number(u64),
    /// A word or a sentence.
    Text(String),
    /// An entry for each of several things of one type, such as clients.
    List(Vec<SinkStatus>),
}

impl From<u64> for StatusValue {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<u32> for StatusValue {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<u8> for StatusValue {
    fn from(number: u8) -> Self {
        Self::Number(number.into())
    }
}

impl From<usize> for StatusValue {
    fn from(number: usize) -> Self {
        Self::Number(number as u64)
    }
}

impl From<String> for StatusValue {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for StatusValue {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<Vec<SinkStatus>> for StatusValue {
    fn from(list: Vec<SinkStatus>) -> Self {
        Self::List(list)
    }
}

/// The state of a sink, or of one of its parts: each name once, in the order in which they are shown.
///
/// ```
/// use worker::sinks::SinkStatus;
///
/// let client = SinkStatus::default().with("id", 1_u64).with("name", "analyser");
/// let status = SinkStatus::default().with("clients", 1_usize).with("connected_clients", vec![client]);
/// assert_eq!(status.number("clients"), Some(1));
/// assert_eq!(status.list("connected_clients")[0].text("name"), Some("analyser"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SinkStatus(Vec<(Cow<'static, str>, StatusValue)>);

impl SinkStatus {
    /// The status with one more value.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<StatusValue>) -> Self {
        self.push(name, value);
        self
    }

    /// The status with one more value, if there is one.
    #[must_use]
    pub fn with_some(self, name: &'static str, value: Option<impl Into<StatusValue>>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// Adds a value, whose name is a new one.
    pub fn push(&mut self, name: &'static str, value: impl Into<StatusValue>) {
        self.0.push((Cow::Borrowed(name), value.into()));
    }

    /// Adds the values of another status, whose names are new ones.
    pub fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    /// The names and values in their order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &StatusValue)> {
        self.0.iter().map(|(name, value)| (&**name, value))
    }

    /// The value of a name.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&StatusValue> {
        self.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// The number of a name; `None` if it has none.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<u64> {
        match self.value(name) {
            Some(StatusValue::Number(number)) => Some(*number),
            _ => None,
        }
    }

    /// The text of a name; `None` if it has none.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.value(name) {
            Some(StatusValue::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// The list of a name; empty if it has none.
    #[must_use]
    pub fn list(&self, name: &str) -> &[Self] {
        match self.value(name) {
            Some(StatusValue::List(list)) => list,
            _ => &[],
        }
    }
}

impl Serialize for SinkStatus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for SinkStatus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(StatusVisitor)
    }
}

/// Reads a status with its values in the order of the text.
struct StatusVisitor;

impl<'de> Visitor<'de> for StatusVisitor {
    type Value = SinkStatus;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of numbers, texts and lists")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<SinkStatus, A::Error> {
        let mut values = Vec::new();
        while let Some((name, value)) = map.next_entry::<String, StatusValue>()? {
            values.push((Cow::Owned(name), value));
        }
        Ok(SinkStatus(values))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_numbers_in_json() {
        let client = SinkStatus::default().with("id", 7_u64).with("name", "a \"b\"");
        let status = SinkStatus::default()
            .with("socket", "/run/x.sock")
            .with("clients", 1_usize)
            .with_some("error", None::<String>)
            .with("connected_clients", vec![client])
            .with("gone_clients", Vec::new());
        let text = serde_json::to_string(&status).expect("JSON");
        assert_eq!(
            text,
            r#"{"socket":"/run/x.sock","clients":1,"connected_clients":[{"id":7,"name":"a \"b\""}],"gone_clients":[]}"#
        );
        assert_eq!(serde_json::from_str::<SinkStatus>(&text).expect("a status"), status);
    }

    #[test]
    fn other_json_is_no_status() {
        for text in ["[]", "3", r#"{"a":-1}"#, r#"{"a":true}"#, r#"{"a":[1]}"#] {
            assert!(serde_json::from_str::<SinkStatus>(text).is_err(), "{text}");
        }
    }
}

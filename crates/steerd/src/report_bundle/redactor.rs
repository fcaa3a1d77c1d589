//! Replaces what identifies a network or a host in texts, JSON and TOML: addresses by an [`AddressMap`],
//! known words (names of hosts) by others, secrets by [`REMOVED`].
//!
//! `address_text` finds the addresses.

use std::net::IpAddr;

use super::address_map::AddressMap;
use crate::address_text;

/// In place of a secret.
pub(super) const REMOVED: &str = "removed";
/// The shortest secret that is looked for within texts. A shorter name of a host is not replaced beside `_`.
const WORD_BYTES_MIN: usize = 4;
/// Parts of the names of keys whose values are secrets.
const SECRET_KEYS: [&str; 6] = ["token", "secret", "password", "passwd", "credential", "authorization"];
/// Keys with such a part that have the path of a file.
const PATH_KEYS: [&str; 1] = ["token_file"];

/// The replacements in texts.
pub(super) struct Redactor {
    /// `None`: only secrets are removed.
    map: Option<AddressMap>,
    /// Words and what is in their place; the longest first.
    words: Vec<(String, String)>,
}

impl Redactor {
    /// A redactor that replaces addresses by this map.
    pub(super) fn new(map: AddressMap) -> Self {
        Self { map: Some(map), words: Vec::new() }
    }

    /// A redactor that removes secrets alone.
    pub(super) fn of_secrets() -> Self {
        Self { map: None, words: Vec::new() }
    }

    /// Whether addresses and names are replaced.
    pub(super) fn replaces_addresses(&self) -> bool {
        self.map.is_some()
    }

    /// Removes this secret wherever it is.
    pub(super) fn add_secret(&mut self, secret: &str) {
        if secret.len() >= WORD_BYTES_MIN {
            self.add(secret, REMOVED.to_owned());
        }
    }

    /// Replaces this name of a host wherever it is.
    pub(super) fn add_name(&mut self, name: &str, replacement: &str) {
        // An address is replaced as one.
        if self.map.is_some() && name.parse::<IpAddr>().is_err() && name != "localhost" {
            self.add(name, replacement.to_owned());
        }
    }

    fn add(&mut self, word: &str, replacement: String) {
        if !word.is_empty() && self.words.iter().all(|(known, _)| known != word) {
            self.words.push((word.to_owned(), replacement));
            self.words.sort_by_key(|(word, _)| std::cmp::Reverse(word.len()));
        }
    }

    /// The text with everything replaced, line by line: values behind the names of secrets, then known words,
    /// then addresses.
    pub(super) fn text(&self, text: &str) -> String {
        let mut redacted = String::with_capacity(text.len());
        for line in text.split_inclusive('\n') {
            let mut line = without_secrets(line);
            for (word, replacement) in &self.words {
                line = replaced_word(&line, word, replacement);
            }
            redacted += &match &self.map {
                Some(map) => address_text::rewritten(&line, map),
                None => line,
            };
        }
        redacted
    }

    /// Redacts the strings and the keys of a JSON value.
    pub(super) fn json(&self, value: serde_json::Value) -> serde_json::Value {
        use serde_json::Value;
        match value {
            Value::String(text) => Value::String(self.text(&text)),
            Value::Array(values) => Value::Array(values.into_iter().map(|value| self.json(value)).collect()),
            Value::Object(entries) => {
                let is_kept = |(key, _): &(String, Value)| self.map.is_none() || !is_description(key);
                let entry = |(key, value): (String, Value)| match is_secret(&key) && !has_objects(&value) {
                    true => (key, Value::String(REMOVED.to_owned())),
                    false => (self.text(&key), self.json(value)),
                };
                Value::Object(entries.into_iter().filter(is_kept).map(entry).collect())
            }
            number => number,
        }
    }

    /// Redacts the strings and the keys of settings.
    pub(super) fn settings(&self, value: toml::Value) -> toml::Value {
        self.toml(value, true)
    }

    /// Redacts the strings and the keys of a policy, and removes its descriptions. A policy has no key for a
    /// secret: a key such as `token` is a name of its author.
    pub(super) fn policy(&self, value: toml::Value) -> toml::Value {
        self.toml(value, false)
    }

    fn toml(&self, value: toml::Value, has_secrets: bool) -> toml::Value {
        use toml::Value;
        let redacted = |value: Value| self.toml(value, has_secrets);
        match value {
            Value::String(text) => Value::String(self.text(&text)),
            Value::Array(values) => Value::Array(values.into_iter().map(redacted).collect()),
            Value::Table(entries) => {
                let is_kept =
                    |(key, value): &(String, Value)| has_secrets || !is_description(key) || !value.is_str();
                let entry = |(key, value): (String, Value)| match has_secrets
                    && is_secret(&key)
                    && !has_tables(&value)
                {
                    true => (key, Value::String(REMOVED.to_owned())),
                    false => (self.text(&key), redacted(value)),
                };
                Value::Table(entries.into_iter().filter(is_kept).map(entry).collect())
            }
            other => other,
        }
    }
}

/// Returns whether the value of a key is a free text about rules or groups.
fn is_description(key: &str) -> bool {
    matches!(key, "description" | "descriptions")
}

/// Returns whether a value has further keys, and so is no secret.
fn has_objects(value: &serde_json::Value) -> bool {
    use serde_json::Value;
    match value {
        Value::Object(_) => true,
        Value::Array(values) => values.iter().any(has_objects),
        _ => false,
    }
}

/// Returns whether a value has further keys, and so is no secret.
fn has_tables(value: &toml::Value) -> bool {
    use toml::Value;
    match value {
        Value::Table(_) => true,
        Value::Array(values) => values.iter().any(has_tables),
        _ => false,
    }
}

/// Returns whether the value of a key is a secret, by the key's name.
pub(super) fn is_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    SECRET_KEYS.iter().any(|part| key.contains(part)) && !PATH_KEYS.iter().any(|path| key.ends_with(path))
}

/// The line without what follows the name of a secret and `=` or `:`, and without bearer tokens.
fn without_secrets(line: &str) -> String {
    let lower = line.to_ascii_lowercase();
    let names = SECRET_KEYS.iter().chain(&["bearer"]);
    // The end of the first name with a value behind it.
    let found = names.filter_map(|name| {
        lower.match_indices(name).find_map(|(start, _)| {
            let rest = &line[start + name.len()..];
            let separator = if *name == "bearer" { " " } else { "" };
            let value = rest.trim_start_matches(['"', '\'']).trim_start();
            let value = match separator {
                " " => rest.strip_prefix(' ')?,
                _ => value.strip_prefix(['=', ':'])?,
            };
            let value = value.trim_start_matches([' ', '"', '\'']);
            (!value.trim().is_empty()).then(|| line.len() - value.len())
        })
    });
    let Some(start) = found.min() else { return line.to_owned() };
    let end = if line.ends_with('\n') { "\n" } else { "" };
    // The rest of the line goes: where a secret ends is not known.
    format!("{}{REMOVED}{end}", &line[..start])
}

/// The text with a word replaced that is no part of a longer one.
fn replaced_word(text: &str, word: &str, replacement: &str) -> String {
    let is_short = word.len() < WORD_BYTES_MIN;
    let is_part = |c: char| c.is_ascii_alphanumeric() || is_short && c == '_';
    let (mut done, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find(word) {
        let (before, behind) = (&rest[..at], &rest[at + word.len()..]);
        let is_longer = before.chars().next_back().or(done.chars().next_back()).is_some_and(is_part)
            || behind.chars().next().is_some_and(is_part);
        done += before;
        done += if is_longer && replacement != REMOVED { word } else { replacement };
        rest = behind;
    }
    done + rest
}

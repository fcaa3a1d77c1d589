//! The layers of the settings: each is read and checked alone, then the `config` crate merges them.
//!
//! `settings::load_with` pushes them lowest first. A layer keeps its origin, so that an error can name
//! "steerd.toml:12:5" or "STEERD_HTTP__LISTEN". Values are checked for their types only.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use device_model::DeviceModel;
use rustix::io::Errno;
use toml::{Table, Value};

use super::types::{AUTO_SOCKET, AUTO_STATE, COUNTERS};
use super::{Problem, Settings};
use crate::cli::NicFilterUse;

const PREFIX: &str = "STEERD_";
const SEPARATOR: &str = "__";
/// The largest settings file.
const MAX_FILE_BYTES: u64 = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    BuiltIn(&'static str),
    File(PathBuf),
    Variable(String),
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn(name) => write!(f, "{name} (built in)"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Variable(name) => write!(f, "environment variable {name}"),
            Self::Flag(flag) => write!(f, "{flag}"),
        }
    }
}

#[derive(Debug)]
pub(super) struct Layer {
    origin: Origin,
    table: Table,
}

impl Layer {
    pub(super) fn built_in(name: &'static str, text: &str) -> Result<Self, Vec<Problem>> {
        Self::parse(Origin::BuiltIn(name), text)
    }

    pub(super) fn file(path: &Path) -> Result<Self, Vec<Problem>> {
        let text = read(path).map_err(|error| {
            vec![Problem {
                origin: path.display().to_string(),
                key: String::new(),
                message: format!("cannot read the settings file: {}", error.message),
                hint: None,
                is_unreadable: error.is_unreadable,
            }]
        })?;
        let mut layer = Self::parse(Origin::File(path.to_owned()), &text)?;
        rebase(&mut layer.table, path.parent().unwrap_or(Path::new("")));
        Ok(layer)
    }

    /// `None` for a variable that is not a setting: Kubernetes sets STEERD_SERVICE_HOST and others for a
    /// service called steerd. Without a double underscore, only a bare section, or a name that becomes a
    /// setting by doubling an underscore, is reported as a mistake.
    pub(super) fn variable(name: &str, value: &str) -> Option<Result<Self, Vec<Problem>>> {
        let rest = name.strip_prefix(PREFIX)?;
        if !rest.contains(SEPARATOR) {
            let hint = whole_section(rest).or_else(|| {
                let meant = misspelt(rest)?;
                Some(format!("section and key are separated by two underscores: {PREFIX}{meant}"))
            });
            return hint.map(|hint| {
                Err(vec![Problem {
                    origin: format!("environment variable {name}"),
                    key: String::new(),
                    message: "no such setting".into(),
                    hint: Some(hint),
                    is_unreadable: false,
                }])
            });
        }
        let key = rest.to_ascii_lowercase().replace(SEPARATOR, ".");
        let origin = Origin::Variable(name.to_owned());
        if key.split('.').any(|part| part.is_empty() || !is_bare_key(part)) {
            return Some(Err(vec![Problem {
                origin: origin.to_string(),
                key: String::new(),
                message: "no such setting".into(),
                hint: Some("the form is STEERD_SECTION__KEY, e.g. STEERD_HTTP__LISTEN".into()),
                is_unreadable: false,
            }]));
        }
        // A TOML value (a number, a list, true) is taken as such, all else as a string.
        let as_string = format!("{key} = {}", Value::String(value.to_owned()));
        let table = format!("value = {value}").parse::<Table>().unwrap_or_default();
        if let (Some(typed), 1) = (table.get("value"), table.len()) {
            let typed = Self::parse(origin.clone(), &format!("{key} = {typed}"));
            if typed.is_ok() || value.starts_with(['"', '[', '{']) {
                return Some(typed);
            }
        }
        Some(Self::parse(origin, &as_string))
    }

    pub(super) fn flag(flag: &'static str, key: &str, value: &str) -> Result<Self, Vec<Problem>> {
        Self::parse(Origin::Flag(flag), &format!("{key} = {}", Value::String(value.to_owned())))
    }

    /// A soft NIC whose one port is a network interface.
    pub(super) fn of_interface(name: &str, filters: Option<NicFilterUse>) -> Result<Self, Vec<Problem>> {
        let name = Value::String(name.to_owned());
        let wire = format!("{{ kind = \"af_xdp\", interface = {name}, mode = \"auto\" }}");
        let filters = match filters.unwrap_or_default() {
            NicFilterUse::Off => "",
            NicFilterUse::Drop => ", nic_filters = \"drop\"",
        };
        let text = format!(
            "device.name = \"softnic0\"\nsoftnic.name = \"softnic0\"\nsoftnic.ports = [{{ wire = {wire}{filters} }}]\n"
        );
        Self::parse(Origin::Flag("--interface"), &text)
    }

    fn parse(origin: Origin, text: &str) -> Result<Self, Vec<Problem>> {
        let problem = |error: &toml::de::Error| vec![describe(&origin, text, error)];
        toml::from_str::<Settings>(text).map_err(|error| problem(&error))?;
        let table = text.parse::<Table>().map_err(|error| problem(&error))?;
        Ok(Self { origin, table })
    }
}

/// All layers, lowest first.
#[derive(Debug, Default)]
pub(crate) struct Layers(Vec<Layer>);

impl Layers {
    pub(super) fn push(&mut self, layer: Result<Layer, Vec<Problem>>, problems: &mut Vec<Problem>) {
        match layer {
            Ok(layer) => self.0.push(layer),
            Err(found) => problems.extend(found),
        }
    }

    pub(super) fn merge(&self) -> Result<Settings, Problem> {
        let merged = self.0.iter().fold(config::Config::builder(), |builder, layer| {
            let text = layer.table.to_string();
            builder.add_source(config::File::from_str(&text, config::FileFormat::Toml))
        });
        merged.build().and_then(config::Config::try_deserialize).map_err(|error| Problem {
            origin: "settings".into(),
            key: String::new(),
            message: error.to_string(),
            hint: None,
            is_unreadable: false,
        })
    }

    /// The wires of the soft NIC's ports, as TOML. Lists are not merged: the topmost layer that has one
    /// counts.
    pub(super) fn wires(&self) -> Vec<String> {
        let ports = |layer: &Layer| layer.table.get("softnic")?.get("ports")?.as_array().cloned();
        let ports = self.0.iter().rev().find_map(ports).unwrap_or_default();
        ports.iter().filter_map(|port| port.get("wire").map(Value::to_string)).collect()
    }

    /// The topmost layer that sets `key` ("http.listen").
    pub(super) fn origin(&self, key: &str) -> Option<&Origin> {
        let sets = |layer: &&Layer| {
            let mut parts = key.split('.');
            let first = parts.next().and_then(|part| layer.table.get(part));
            parts.try_fold(first, |value, part| value.map(|value| value.get(part))).flatten().is_some()
        };
        self.0.iter().rev().find(sets).map(|layer| &layer.origin)
    }
}

/// The reason why a settings file is not read.
struct Unreadable {
    message: String,
    is_unreadable: bool,
}

impl From<String> for Unreadable {
    fn from(message: String) -> Self {
        Self { message, is_unreadable: false }
    }
}

/// The text of a settings file.
fn read(path: &Path) -> Result<String, Unreadable> {
    let bytes = regular_file::read(path, MAX_FILE_BYTES).map_err(|error| match error {
        regular_file::FileError::TooLarge(most) => {
            format!("it has more than {most} bytes; settings have a few thousand").into()
        }
        regular_file::FileError::Io(error) => {
            // Others are as wrong the next time.
            let may_pass = matches!(
                Errno::from_io_error(&error),
                Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::IO | Errno::STALE)
            );
            Unreadable { message: error.to_string(), is_unreadable: may_pass }
        }
        error => error.to_string().into(),
    })?;
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + valid.iter().filter(|byte| **byte == b'\n').count();
        format!("line {line} has a byte that is not UTF-8").into()
    })
}

/// Paths in a file are relative to that file, wherever the daemon is started.
fn rebase(table: &mut Table, folder: &Path) {
    let rebase_one = |value: Option<&mut Value>| {
        if let Some(Value::String(path)) = value
            && !path.is_empty()
        {
            *path = folder.join(&*path).to_string_lossy().into_owned();
        }
    };
    // The last column: a value that is no path.
    for (section, key, word) in [
        ("policy", "file", None),
        ("policy", "traffic", Some(COUNTERS)),
        ("http", "token_file", None),
        ("api", "socket", Some(AUTO_SOCKET)),
        ("state", "folder", Some(AUTO_STATE)),
    ] {
        let value = table.get_mut(section).and_then(|section| section.get_mut(key));
        rebase_one(value.filter(|value| value.as_str() != word));
    }
    for (section, key) in [("device", "model"), ("softnic", "personality")] {
        let value = table.get_mut(section).and_then(|section| section.get_mut(key));
        rebase_one(value.filter(|value| value.as_str().is_some_and(DeviceModel::is_path)));
    }
    let Some(nic) = table.get_mut("softnic") else { return };
    let rebase_ports = |nic: &mut Value| {
        let ports = nic.get_mut("ports").and_then(Value::as_array_mut);
        for port in ports.into_iter().flatten() {
            for key in ["path", "output"] {
                rebase_one(port.get_mut("wire").and_then(|wire| wire.get_mut(key)));
            }
            let model = port.get_mut("filter_model");
            rebase_one(model.filter(|model| model.as_str().is_some_and(DeviceModel::is_path)));
        }
    };
    rebase_ports(nic);
    let others = nic.get_mut("others").and_then(Value::as_array_mut);
    others.into_iter().flatten().for_each(rebase_ports);
}

fn describe(origin: &Origin, text: &str, error: &toml::de::Error) -> Problem {
    let message = error.message().lines().next().unwrap_or_default().to_owned();
    let span = error.span().unwrap_or(0..0);
    let origin_text = match origin {
        Origin::BuiltIn(_) | Origin::File(_) => {
            let (line, column) = line_and_column(text, span.start);
            format!("{origin}:{line}:{column}")
        }
        Origin::Variable(_) | Origin::Flag(_) => origin.to_string(),
    };
    let hint = nearest(&message).map(|name| format!("did you mean `{name}`?"));
    Problem { origin: origin_text, key: key_at(text, &span), message, hint, is_unreadable: false }
}

fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

/// The dotted key whose line, or whose multi-line value, holds the span.
fn key_at(text: &str, span: &Range<usize>) -> String {
    let (mut table, mut key) = (String::new(), String::new());
    let mut offset = 0;
    for line in text.split_inclusive('\n') {
        if offset > span.start {
            break;
        }
        let trimmed = line.trim();
        if trimmed.starts_with('[') && trimmed.ends_with(']') && !trimmed.contains('=') {
            table = trimmed.trim_matches(['[', ']']).trim().to_owned();
            key.clear();
        } else if let Some((name, _)) = trimmed.split_once('=')
            && name.trim().split('.').all(is_bare_key)
        {
            name.trim().clone_into(&mut key);
        }
        offset += line.len();
    }
    match (table.is_empty(), key.is_empty()) {
        (true, _) => key,
        (false, true) => table,
        (false, false) => format!("{table}.{key}"),
    }
}

fn is_bare_key(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
}

/// From serde's "unknown field `x`, expected one of `a`, `b`": the name that is most similar to `x`, if any
/// is.
fn nearest(message: &str) -> Option<&str> {
    let mut quoted = message.split('`').skip(1).step_by(2);
    let wrong = quoted.next().filter(|_| message.starts_with("unknown"))?;
    quoted
        .map(|name| (strsim::levenshtein(wrong, name), name))
        .filter(|(distance, name)| *distance <= name.len().max(4) / 2)
        .min()
        .map(|(_, name)| name)
}

/// If `rest` ("LOG") names a section without a key: the names of its variables.
fn whole_section(rest: &str) -> Option<String> {
    let defaults = super::DEFAULTS.parse::<Table>().ok()?;
    let section = defaults.get(&rest.to_ascii_lowercase())?.as_table()?;
    let names: Vec<String> =
        section.keys().map(|key| format!("{PREFIX}{rest}{SEPARATOR}{}", key.to_ascii_uppercase())).collect();
    Some(format!("that is a section; its settings are {}", names.join(", ")))
}

/// The setting that `rest` ("HTTP_LISTEN") names if one underscore is doubled.
fn misspelt(rest: &str) -> Option<String> {
    let defaults = super::DEFAULTS.parse::<Table>().ok()?;
    rest.match_indices('_').find_map(|(at, _)| {
        let (section, key) = (&rest[..at], &rest[at + 1..]);
        let known = defaults.get(&section.to_ascii_lowercase())?.get(key.to_ascii_lowercase());
        known.map(|_| format!("{section}{SEPARATOR}{key}"))
    })
}

//! The layers of the settings: each is read and checked alone, then the `config` crate merges them.
//!
//! `settings::load_with` pushes them lowest first. A layer keeps its text, so that a problem has the place
//! "steerd.toml:12:5", or the variable or option that gives the value. Values are checked for their types
//! only.
//!
//! Diagnostics show the text of a file once it is known for a settings file, as any file may be named, and
//! never that of a variable, which may be the value of a variable of the policy.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use device_model::DeviceModel;
use policy::{Diagnostic, DocumentKind, Place, Source};
use rustix::io::Errno;
use toml::de::DeTable;
use toml::{Table, Value};

use super::document::{self, Document};
use super::types::{AUTO_SOCKET, AUTO_STATE, COUNTERS};
use super::{Problems, Settings};
use crate::cli::NicFilterUse;

const PREFIX: &str = "STEERD_";
const SEPARATOR: &str = "__";
/// The largest settings file.
const MAX_FILE_BYTES: u64 = 1 << 20;

const SETTINGS: DocumentKind = DocumentKind {
    name: "a settings file",
    form: "begin with a section, such as [device]; config/steerd.toml has all of them",
    tables: "write [SECTION], or [[softnic.ports]] for a port",
    lists: &["softnic.ports", "softnic.others"],
    whole: "settings are TOML, as in config/steerd.toml",
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    BuiltIn(&'static str),
    File(PathBuf),
    Variable(String),
    Flag(&'static str),
}

impl Origin {
    /// The name of the text in diagnostics.
    fn name(&self) -> String {
        match self {
            Self::BuiltIn(name) => format!("{name} (built in)"),
            Self::File(path) => path.display().to_string(),
            Self::Variable(name) => format!("environment variable {name}"),
            Self::Flag(flag) => (*flag).to_owned(),
        }
    }
}

#[derive(Debug)]
pub(super) struct Layer {
    origin: Origin,
    /// The text with its name in diagnostics: that of a file, or the value of a variable or an option.
    source: Arc<Source>,
    /// The text that was read; that of a value has its key before it.
    text: String,
    table: Table,
    problems: Vec<Diagnostic>,
    /// The sections of which entries are left out, because they have problems.
    incomplete: BTreeSet<String>,
    /// Whether it has more problems than are listed, and no values.
    is_cut_off: bool,
}

impl Layer {
    pub(super) fn built_in(name: &'static str, text: &str) -> Result<Self, Problems> {
        Self::of_file(Origin::BuiltIn(name), text.to_owned())
    }

    pub(super) fn file(path: &Path) -> Result<Self, Problems> {
        let mut layer = Self::of_file(Origin::File(path.to_owned()), read(path)?)?;
        rebase(&mut layer.table, path.parent().unwrap_or(Path::new("")));
        Ok(layer)
    }

    /// `None` for a variable that is not a setting: Kubernetes sets STEERD_SERVICE_HOST and others for a
    /// service called steerd. Without a double underscore, only a bare section, or a name that becomes a
    /// setting by doubling an underscore, is reported as a mistake.
    pub(super) fn variable(name: &str, value: &str) -> Option<Result<Self, Problems>> {
        let rest = name.strip_prefix(PREFIX)?;
        let origin = Origin::Variable(name.to_owned());
        let unknown = |hint: String| {
            let mut layer = Self::of_value(origin.clone(), value, String::new());
            if let Ok(layer) = &mut layer {
                let place = Place::new(&layer.source, 0..value.len());
                layer.problems.push(place.error("no such setting", "this variable").hint(hint));
            }
            layer
        };
        if !rest.contains(SEPARATOR) {
            let hint = whole_section(rest).or_else(|| {
                let meant = misspelt(rest)?;
                Some(format!("section and key are separated by two underscores: {PREFIX}{meant}"))
            });
            return hint.map(unknown);
        }
        let key = rest.to_ascii_lowercase().replace(SEPARATOR, ".");
        if key.split('.').any(|part| part.is_empty() || !is_bare_key(part)) {
            return Some(unknown("the form is STEERD_SECTION__KEY, e.g. STEERD_HTTP__LISTEN".to_owned()));
        }
        // A TOML value (a number, a list, true) is taken as such, all else as a string.
        let table = format!("value = {value}").parse::<Table>().unwrap_or_default();
        if let (Some(typed), 1) = (table.get("value"), table.len()) {
            let typed = Self::of_value(origin.clone(), value, format!("{key} = {typed}"));
            let is_right = typed.as_ref().is_ok_and(|typed| typed.problems.is_empty());
            if is_right || value.starts_with(['"', '[', '{']) {
                return Some(typed);
            }
        }
        Some(Self::of_value(origin, value, format!("{key} = {}", Value::String(value.to_owned()))))
    }

    pub(super) fn flag(flag: &'static str, key: &str, value: &str) -> Result<Self, Problems> {
        let text = format!("{key} = {}", Value::String(value.to_owned()));
        Self::of_value(Origin::Flag(flag), value, text)
    }

    /// A soft NIC whose one port is a network interface.
    pub(super) fn of_interface(name: &str, filters: Option<NicFilterUse>) -> Result<Self, Problems> {
        let quoted = Value::String(name.to_owned());
        let wire = format!("{{ kind = \"af_xdp\", interface = {quoted}, mode = \"auto\" }}");
        let filters = match filters.unwrap_or_default() {
            NicFilterUse::Off => "",
            NicFilterUse::Drop => ", nic_filters = \"drop\"",
        };
        let text = format!(
            "device.name = \"softnic0\"\nsoftnic.name = \"softnic0\"\nsoftnic.ports = [{{ wire = {wire}{filters} }}]\n"
        );
        Self::of_value(Origin::Flag("--interface"), name, text)
    }

    fn of_file(origin: Origin, text: String) -> Result<Self, Problems> {
        let source = Arc::new(Source::new(origin.name(), text.as_str()).unquoted());
        Self::parse(origin, source, text)
    }

    fn of_value(origin: Origin, value: &str, text: String) -> Result<Self, Problems> {
        let source = Source::value(origin.name(), value);
        let is_variable = matches!(origin, Origin::Variable(_));
        let source = Arc::new(if is_variable { source.unquoted() } else { source });
        Self::parse(origin, source, text)
    }

    /// # Errors
    /// The text is not TOML. Other problems are in the layer.
    fn parse(origin: Origin, source: Arc<Source>, text: String) -> Result<Self, Problems> {
        let parsed = Arc::new(Source::new(source.name.as_str(), text.as_str()).unquoted());
        let tree = policy::read_document(&parsed, &SETTINGS)?;
        let at = |span| place_of(&origin, &source, span);
        let document = document::read::<Settings>(tree.get_ref(), &at);
        let Document { table, problems, incomplete, is_cut_off, .. } = document;
        let is_file = matches!(origin, Origin::BuiltIn(_) | Origin::File(_));
        // A section of it is one of the settings.
        if is_file && !table.is_empty() {
            source.quote();
        }
        Ok(Self { origin, source, text, table, problems, incomplete, is_cut_off })
    }

    /// The place of the value at a dotted key.
    fn place(&self, key: &str) -> Place {
        let tree = DeTable::parse(&self.text).ok();
        let span = tree.and_then(|tree| document::span_of(tree.get_ref(), key));
        place_of(&self.origin, &self.source, span.unwrap_or(0..0))
    }
}

/// The place of a span of the text that was read. A variable or an option is one place.
fn place_of(origin: &Origin, source: &Arc<Source>, span: Range<usize>) -> Place {
    match origin {
        Origin::BuiltIn(_) | Origin::File(_) => Place::new(source, span),
        Origin::Variable(_) | Origin::Flag(_) => Place::new(source, 0..source.text.len()),
    }
}

/// All layers, lowest first.
#[derive(Debug, Default)]
pub(crate) struct Layers(Vec<Layer>);

impl Layers {
    /// Adds a layer; its problems go to the others.
    pub(super) fn push(&mut self, layer: Result<Layer, Problems>, problems: &mut Problems) {
        match layer {
            Ok(mut layer) => {
                layer.problems.drain(..).for_each(|problem| problems.push(problem));
                problems.are_cut_off |= layer.is_cut_off;
                self.0.push(layer);
            }
            Err(found) => problems.extend(found),
        }
    }

    /// The values of the topmost layers that have them.
    ///
    /// # Errors
    /// The values of several layers do not fit together.
    pub(super) fn merge(&self) -> Result<Settings, Problems> {
        let merged = self.0.iter().fold(config::Config::builder(), |builder, layer| {
            let text = layer.table.to_string();
            builder.add_source(config::File::from_str(&text, config::FileFormat::Toml))
        });
        let merged = merged.build().and_then(config::Config::try_deserialize::<Table>);
        let text = merged.map(|table| table.to_string()).map_err(|error| {
            let nowhere = Arc::new(Source::value("settings", ""));
            Problems::from(Place::new(&nowhere, 0..0).error(error.to_string(), ""))
        })?;
        let source = Arc::new(Source::value("settings", text).unquoted());
        let tree = policy::read_document(&source, &SETTINGS)?;
        let read = document::read::<Settings>(tree.get_ref(), &|span| Place::new(&source, span));
        if read.problems.is_empty() { Ok(read.values) } else { Err(read.problems.into()) }
    }

    /// Whether no entry of these sections was left out.
    pub(super) fn are_complete(&self, sections: &[&str]) -> bool {
        let is_incomplete =
            |layer: &Layer| sections.iter().any(|section| layer.incomplete.contains(*section));
        !self.0.iter().any(is_incomplete)
    }

    /// The wires of the soft NIC's ports, as TOML. Lists are not merged: the topmost layer that has one
    /// counts.
    pub(super) fn wires(&self) -> Vec<String> {
        let ports = |layer: &Layer| layer.table.get("softnic")?.get("ports")?.as_array().cloned();
        let ports = self.0.iter().rev().find_map(ports).unwrap_or_default();
        ports.iter().filter_map(|port| port.get("wire").map(Value::to_string)).collect()
    }

    /// The origin of the value at a key ("http.listen").
    pub(super) fn origin(&self, key: &str) -> Option<&Origin> {
        self.topmost(key).map(|layer| &layer.origin)
    }

    /// The place of the value at a key, of which a part can be a place in a list, from 0; that of the section
    /// if no layer has the key.
    pub(super) fn place(&self, key: &str) -> Place {
        let nowhere = || Place::new(&Arc::new(Source::value("settings", "")), 0..0);
        let layer = self.topmost(key).or_else(|| self.topmost(key.split('.').next()?));
        layer.map_or_else(nowhere, |layer| layer.place(key))
    }

    /// The topmost layer that sets `key`.
    fn topmost(&self, key: &str) -> Option<&Layer> {
        fn inner<'v>(value: &'v Value, part: &str) -> Option<&'v Value> {
            part.parse::<usize>().map_or_else(|_| value.get(part), |number| value.get(number))
        }
        let sets = |layer: &&Layer| {
            let mut parts = key.split('.');
            let first = parts.next().and_then(|part| layer.table.get(part));
            first.and_then(|first| parts.try_fold(first, inner)).is_some()
        };
        self.0.iter().rev().find(sets)
    }
}

/// The text of a settings file.
fn read(path: &Path) -> Result<String, Problems> {
    let name = path.display().to_string();
    let unreadable = |why: &dyn fmt::Display| {
        let place = Place::new(&Arc::new(Source::value(name.as_str(), "")), 0..0);
        place.error(format!("cannot read the settings file: {why}"), "")
    };
    let bytes = regular_file::read(path, MAX_FILE_BYTES).map_err(|error| -> Problems {
        match error {
            regular_file::FileError::TooLarge(most) => {
                unreadable(&format!("it has more than {most} bytes; settings have a few thousand")).into()
            }
            regular_file::FileError::Io(error) => {
                // Others are as wrong the next time.
                let may_pass = matches!(
                    Errno::from_io_error(&error),
                    Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::IO | Errno::STALE)
                );
                Problems { are_unreadable: may_pass, ..unreadable(&error).into() }
            }
            error => unreadable(&error).into(),
        }
    })?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let text = String::from_utf8_lossy(&error.as_bytes()[..at]).into_owned();
        let place = Place::new(&Arc::new(Source::new(name.as_str(), text).unquoted()), at..at);
        place.error("this byte is not UTF-8", "here").hint("save the file as UTF-8").into()
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

fn is_bare_key(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
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

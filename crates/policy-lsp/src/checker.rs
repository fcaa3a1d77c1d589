//! The interface to whoever checks policies. This crate knows documents and names; a checker knows what a
//! device makes of a policy. It runs on a thread of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use policy::{Diagnostic, Folder, SetLoader, Source};
use serde::Deserialize;

/// The settings of the server: `initializationOptions`, or the section `steerd` of the client's settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct ServerSettings {
    /// The device model: its name, or its file.
    pub model: Option<String>,
    /// The number of workers; `None`: as many as the policy names.
    pub workers: Option<u32>,
    /// Values of variables of policies.
    pub variables: BTreeMap<String, String>,
    /// The file of the settings of a daemon, for the workers, the device and the variables.
    pub config: Option<String>,
    /// Whether the editor shows behind each rule where it is decided; yes if left out.
    pub inlay_hints: Option<bool>,
}

/// The names of the settings, as clients write them.
pub(crate) const SETTING_NAMES: [&str; 5] = ["model", "workers", "variables", "config", "inlayHints"];

/// A policy to check: the text of the editor, not of the file.
#[derive(Clone, Debug)]
pub struct OpenPolicy {
    /// The path of the file, or a name that is no absolute path.
    pub path: PathBuf,
    /// The text.
    pub text: Arc<str>,
    /// The documents that are open in the editor, by path.
    pub open: Arc<BTreeMap<PathBuf, Arc<str>>>,
}

/// The texts of files: those that are open in the editor, else those of the file system.
#[derive(Clone, Debug)]
pub struct OpenFiles {
    folder: PathBuf,
    open: Arc<BTreeMap<PathBuf, Arc<str>>>,
}

/// The severity of a finding; a policy with an error cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindingLevel {
    /// `check` fails.
    Error,
    /// `check` warns.
    Warning,
    /// `check` lists it in a table.
    Information,
    /// A rule that could be left out; editors show its name dimmed.
    Unnecessary,
}

/// A finding about a policy.
#[derive(Clone, Debug)]
pub struct PolicyFinding {
    /// The severity.
    pub level: FindingLevel,
    /// The kind of finding, in one word with dashes.
    pub code: &'static str,
    /// The text, the place and the remedy.
    pub diagnostic: Diagnostic,
}

/// The facts about a rule, for hovers and hints.
#[derive(Clone, Debug)]
pub struct RuleNote {
    /// The name of the rule.
    pub name: String,
    /// Where it is decided, in a few words.
    pub label: String,
    /// The details, in Markdown.
    pub details: String,
}

/// The result of a check.
#[derive(Clone, Debug, Default)]
pub struct CheckedPolicy {
    /// The findings, in the order of importance.
    pub findings: Vec<PolicyFinding>,
    /// The number of findings that are counted but not listed.
    pub omitted: usize,
    /// The rules of the policy, if it has no errors in its text.
    pub rules: Vec<RuleNote>,
    /// The files that the policy was read from beside its own, whether they could be read or not.
    pub files: BTreeSet<PathBuf>,
}

/// Checks policies for the server.
pub trait PolicyChecker: Send + 'static {
    /// Uses these settings from now on; relative names in them are relative to `folder`.
    ///
    /// # Errors
    /// A text for the user. The former settings then stay in force.
    fn configure(&mut self, settings: &ServerSettings, folder: Option<&Path>) -> Result<(), String>;

    /// Checks a policy; `None`: `is_current` has become false, and nobody waits for the result. `publish`
    /// takes what is known before a step that takes long.
    fn check(
        &mut self,
        policy: &OpenPolicy,
        is_current: &dyn Fn() -> bool,
        publish: &mut dyn FnMut(CheckedPolicy),
    ) -> Option<CheckedPolicy>;
}

impl OpenPolicy {
    /// The directory of the files that the policy names.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        match self.path.is_absolute() {
            true => self.path.parent().unwrap_or(Path::new("/")).to_owned(),
            false => PathBuf::new(),
        }
    }

    /// The texts of the files that the policy names.
    #[must_use]
    pub fn files(&self) -> OpenFiles {
        OpenFiles::new(self.folder(), Arc::clone(&self.open))
    }

    /// The text as a source for the parser.
    #[must_use]
    pub fn source(&self) -> Source {
        Source::new(self.path.display().to_string(), &*self.text)
    }
}

impl OpenFiles {
    /// The texts of files whose names are relative to `folder`.
    #[must_use]
    pub fn new(folder: PathBuf, open: Arc<BTreeMap<PathBuf, Arc<str>>>) -> Self {
        Self { folder, open }
    }

    /// The path of a file that a policy names.
    #[must_use]
    pub fn path(&self, file: &str) -> PathBuf {
        policy::plain_path(&self.folder.join(file))
    }
}

impl SetLoader for OpenFiles {
    fn load(&self, file: &str) -> io::Result<Source> {
        match self.open.get(&self.path(file)) {
            Some(text) => Ok(Source::new(self.folder.join(file).display().to_string(), &**text)),
            None => Folder(self.folder.clone()).load(file),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_texts_precede_files() {
        let folder = tempfile::tempdir().expect("folder");
        std::fs::write(folder.path().join("a.txt"), "file").expect("written");
        std::fs::write(folder.path().join("b.txt"), "file").expect("written");
        let open = BTreeMap::from([(folder.path().join("a.txt"), Arc::from("editor"))]);
        let files = OpenFiles::new(folder.path().join("below"), Arc::new(open));
        let text = |name: &str| files.load(name).map(|source| source.text).unwrap_or_default();
        assert_eq!([text("../a.txt"), text("../b.txt"), text("../c.txt")], ["editor", "", ""]);
        std::fs::create_dir(folder.path().join("below")).expect("created");
        assert_eq!(text("../b.txt"), "file");
    }

    #[test]
    fn unknown_settings_are_refused() {
        let read =
            |text: &str| serde_json::from_str::<ServerSettings>(text).map_err(|error| error.to_string());
        let settings = read(r#"{ "model": "mlx5", "inlayHints": false }"#).expect("they are right");
        assert_eq!((settings.model.as_deref(), settings.inlay_hints), (Some("mlx5"), Some(false)));
        for name in SETTING_NAMES {
            let text = format!("{{ \"{name}\": null }}");
            assert!(read(&text).err().is_none_or(|error| !error.contains("unknown field")), "{name}");
        }
        assert!(read(r#"{ "modell": "mlx5" }"#).is_err_and(|error| error.contains("unknown field `modell`")));
    }
}

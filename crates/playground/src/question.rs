//! The questions, as JSON.

use std::collections::BTreeMap;
use std::path::Path;

use device_model::DeviceModel;
use policy::{Diagnostic, Diagnostics, Policy, Source};
use serde::Deserialize;

/// The most workers of a question.
const MAX_WORKERS: usize = 256;

/// A question: `{"ask": "check", "policy": {"text": "..."}, "model": "mlx5"}`.
#[derive(Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub(crate) enum Question {
    /// The device models that have a name.
    Models,
    /// Whether a device can run a policy, and how.
    Check(PolicyOnDevice),
    /// The treatment of a packet, in any notation that `steerd explain --packet` reads.
    Explain {
        #[serde(flatten)]
        device: PolicyOnDevice,
        packet: String,
    },
    /// The packets that two policies treat differently.
    Diff { old: PolicyFiles, new: PolicyFiles },
}

/// A policy with the files that it names.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PolicyFiles {
    /// The name of its file in messages.
    #[serde(default = "default_name")]
    name: String,
    text: String,
    /// The texts of included files and of sets, by name.
    #[serde(default)]
    files: BTreeMap<String, String>,
}

/// A policy and the device that it is for.
#[derive(Deserialize)]
pub(crate) struct PolicyOnDevice {
    policy: PolicyFiles,
    /// The name of a model.
    #[serde(default)]
    model: Option<String>,
    /// The text of a model, in place of a name.
    #[serde(default)]
    model_text: Option<String>,
    /// How many workers there are, 1 to 256; without it as many as the policy names.
    #[serde(default)]
    workers: Option<usize>,
}

fn default_name() -> String {
    "policy.toml".to_owned()
}

/// A policy that was parsed, with its warnings.
pub(crate) type Parsed = Result<(Policy, Vec<Diagnostic>), Diagnostics>;

impl PolicyFiles {
    pub(crate) fn parse(&self) -> Parsed {
        policy::parse(&Source::new(self.name.as_str(), self.text.as_str()), &self.files)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl PolicyOnDevice {
    pub(crate) fn parse(&self) -> Parsed {
        self.policy.parse()
    }

    /// The device.
    ///
    /// # Errors
    /// There is no such model, or its text is not one.
    pub(crate) fn model(&self) -> Result<DeviceModel, String> {
        let model = match (&self.model, &self.model_text) {
            (Some(_), Some(_)) => return Err("give `model` or `model_text`, not both".to_owned()),
            (_, Some(text)) => DeviceModel::parse(Path::new("model.toml"), text),
            // A name that is a path would be read as a file.
            (Some(name), None) if DeviceModel::is_path(name) => {
                return Err(format!("{name:?} is a path: give the text of the model as `model_text`"));
            }
            (Some(name), None) => DeviceModel::named_or_file(name),
            (None, None) => Ok(DeviceModel::default()),
        };
        model.map_err(|error| error.to_string())
    }

    /// The number of workers for a policy.
    ///
    /// # Errors
    /// The number is out of range.
    pub(crate) fn workers(&self, policy: &Policy) -> Result<usize, String> {
        match self.workers {
            None => Ok(reports::workers_named(policy)),
            Some(workers @ 1..=MAX_WORKERS) => Ok(workers),
            Some(workers) => Err(format!("{workers} workers: give 1 to {MAX_WORKERS}")),
        }
    }
}

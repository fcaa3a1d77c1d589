//! The settings: how this host runs steerd. The policy, what happens to packets, is another file.
//!
//! Layers, later ones win: the built-in defaults (config/steerd.toml itself), the settings file, STEERD_
//! variables, flags. Every layer is checked on its own first, so that a problem has a place in its file, or
//! the variable that it is in. All problems are reported at once. Nothing is opened or started here.

mod document;
mod layers;
mod lengths;
mod limits;
mod log_filter;
mod types;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::cli::{NicFilterUse, RunArgs};
use layers::{Layer, Layers, Origin};
pub(crate) use lengths::{LengthError, PortMtu};
use policy::{Diagnostic, Diagnostics};
pub(crate) use types::{
    AUTO_DEVICE, AUTO_SOCKET, Api, COUNTERS, Cores, Http, IdleMode, Listen, Log, LogFormat, LogTarget,
    OtherSoftNic, Provider, ReceiveSetting, RelaxedOrdering, Settings, SoftNic, SoftNicMode, SoftNicPort,
    StateSettings, TooManyFrames, Workers, XdpPort,
};
use verbs::SYSFS_CLASSES;

/// config/steerd.toml is both the documented example and the defaults, so they cannot differ.
pub(crate) const DEFAULTS: &str = include_str!("../../../config/steerd.toml");
const DEMO: &str = include_str!("../../../config/demo.toml");
const DEMO_POLICY: &str = include_str!("../../../config/examples/demo.toml");

/// The policy's text, the values of its variables, and the traffic to compile it for; read again at every
/// reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PolicySource {
    pub(crate) text: PolicyText,
    pub(crate) variables: BTreeMap<String, String>,
    /// `None`: without a preference for some rules.
    pub(crate) traffic: Option<Traffic>,
    /// Whether the daemon puts it in force only if it has tests and all of them pass.
    pub(crate) requires_tests: bool,
}

/// The packets that a policy is compiled for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Traffic {
    /// The counts of a capture.
    Capture(PathBuf),
    /// The counts of the rules of the running daemon.
    Counters,
}

/// Where the text comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PolicyText {
    File(PathBuf),
    BuiltIn {
        name: &'static str,
        text: &'static str,
    },
    /// Standard input, already read; files that it names are relative to the current directory.
    Read(policy::Source),
}

impl PolicySource {
    pub(crate) fn file(path: PathBuf, variables: BTreeMap<String, String>) -> Self {
        Self { text: PolicyText::File(path), variables, traffic: None, requires_tests: false }
    }

    /// The directory of the files that the policy names.
    pub(crate) fn folder(&self) -> PathBuf {
        match &self.text {
            PolicyText::File(path) => path.parent().unwrap_or(Path::new("")).to_owned(),
            PolicyText::BuiltIn { .. } | PolicyText::Read(_) => PathBuf::new(),
        }
    }
}

impl fmt::Display for PolicySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.text {
            PolicyText::File(path) => write!(f, "{}", path.display()),
            PolicyText::BuiltIn { name, .. } => write!(f, "{name} (built in)"),
            PolicyText::Read(source) => f.write_str(&source.name),
        }
    }
}

/// The merged settings and the source of the policy.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) settings: Settings,
    pub(crate) policy: PolicySource,
}

/// The arguments of `load`.
#[derive(Debug, Default)]
pub(crate) struct Request {
    pub(crate) file: Option<PathBuf>,
    pub(crate) demo: bool,
    /// The network interface that the port of the soft NIC is.
    pub(crate) interface: Option<String>,
    /// The use of the filters of that interface; `None`: the default.
    pub(crate) nic_filters: Option<NicFilterUse>,
    pub(crate) policy: Option<PathBuf>,
    pub(crate) device: Option<String>,
    pub(crate) listen: Option<String>,
    pub(crate) log: Option<String>,
    pub(crate) api_socket: Option<PathBuf>,
    /// Variables of the policy.
    pub(crate) variables: Vec<(String, String)>,
}

impl From<&RunArgs> for Request {
    fn from(args: &RunArgs) -> Self {
        Self {
            file: args.config.clone(),
            demo: args.demo,
            interface: args.interface.clone(),
            nic_filters: args.nic_filters,
            policy: args.policy.clone().or_else(|| args.policy_flag.clone()),
            device: args.device.clone(),
            listen: args.listen.clone(),
            log: args.log.clone(),
            api_socket: args.api_socket.clone(),
            variables: args.variables.set.clone(),
        }
    }
}

/// All problems of the settings. Its text is their number: the program prints the diagnostics before it.
#[derive(Clone, Debug, Default, thiserror::Error)]
#[error("{}{} in the settings", counted(.diagnostics), if *.are_cut_off { " and more" } else { "" })]
pub(crate) struct Problems {
    pub(crate) diagnostics: Diagnostics,
    /// Whether the system has refused to read a file that exists, for lack of descriptors or memory, or by an
    /// error of the disk: the settings may be right, and readable later.
    pub(crate) are_unreadable: bool,
    /// Whether there are more, which were not looked for.
    pub(crate) are_cut_off: bool,
}

fn counted(diagnostics: &Diagnostics) -> String {
    match diagnostics.error_count() {
        1 => "1 error".to_owned(),
        errors => format!("{errors} errors"),
    }
}

impl Problems {
    fn is_empty(&self) -> bool {
        self.diagnostics.is_empty()
    }

    fn sorted(mut self) -> Self {
        self.diagnostics.sort();
        self
    }

    fn push(&mut self, problem: Diagnostic) {
        self.diagnostics.push(problem);
    }

    fn extend(&mut self, other: Self) {
        self.are_unreadable |= other.are_unreadable;
        self.are_cut_off |= other.are_cut_off;
        other.diagnostics.list.into_iter().for_each(|problem| self.push(problem));
    }
}

impl From<Diagnostic> for Problems {
    fn from(problem: Diagnostic) -> Self {
        vec![problem].into()
    }
}

impl From<Vec<Diagnostic>> for Problems {
    fn from(problems: Vec<Diagnostic>) -> Self {
        Diagnostics::from(problems).into()
    }
}

impl From<Diagnostics> for Problems {
    fn from(diagnostics: Diagnostics) -> Self {
        Self { diagnostics, ..Self::default() }
    }
}

/// Reads and merges all layers, with the process' own environment.
pub(crate) fn load(request: &Request) -> Result<Loaded, Problems> {
    let environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect::<Vec<_>>();
    let mut loaded = load_with(request, &environment)?;
    loaded.settings.resolve_interface(Path::new(SYSFS_CLASSES)).map_err(|problem| *problem)?;
    Ok(loaded)
}

fn load_with(request: &Request, environment: &[(String, String)]) -> Result<Loaded, Problems> {
    let mut problems = Problems::default();
    let mut layers = Layers::default();
    let mut is_whole = true;
    let mut add = |layer: Result<Layer, Problems>| {
        is_whole &= layer.is_ok();
        layers.push(layer, &mut problems);
    };
    add(Layer::built_in("config/steerd.toml", DEFAULTS));
    if request.demo {
        add(Layer::built_in("config/demo.toml", DEMO));
    }
    if let Some(path) = &request.file {
        add(Layer::file(path));
    }
    for (name, value) in environment {
        Layer::variable(name, value).into_iter().for_each(&mut add);
    }
    if let Some(interface) = &request.interface {
        add(Layer::of_interface(interface, request.nic_filters));
    }
    flags(request).into_iter().for_each(&mut add);
    let mut settings = match layers.merge() {
        Ok(settings) => settings,
        Err(found) if problems.is_empty() => return Err(found),
        Err(_) => return Err(problems.sorted()),
    };
    settings.softnic.wires = layers.wires();
    settings.device.ports_place = layers
        .origin("device.ports")
        .filter(|origin| !matches!(origin, Origin::BuiltIn(_)))
        .map(|_| layers.place("device.ports"));
    // Without a layer the values are others than those that were meant.
    if is_whole && !problems.are_cut_off {
        limits::check(&settings, &layers, &mut problems);
    }
    let policy = policy_source(request, &settings, &layers);
    if problems.is_empty() { Ok(Loaded { settings, policy }) } else { Err(problems.sorted()) }
}

fn flags(request: &Request) -> Vec<Result<Layer, Problems>> {
    let text = |path: &PathBuf| path.to_string_lossy().into_owned();
    [
        ("--policy", "policy.file", request.policy.as_ref().map(text)),
        ("--device", "device.name", request.device.clone()),
        ("--listen", "http.listen", request.listen.clone()),
        ("--log", "log.filter", request.log.clone()),
        ("--api-socket", "api.socket", request.api_socket.as_ref().map(text)),
    ]
    .into_iter()
    .filter_map(|(flag, key, value)| Some(Layer::flag(flag, key, &value?)))
    .collect()
}

/// The policy of the demonstration, unless a variable or a flag names another.
fn policy_source(request: &Request, settings: &Settings, layers: &Layers) -> PolicySource {
    let overridden = matches!(layers.origin("policy.file"), Some(Origin::Variable(_) | Origin::Flag(_)));
    let mut variables = settings.policy.variables.clone();
    variables.extend(request.variables.iter().cloned());
    let text = if request.demo && !overridden {
        PolicyText::BuiltIn { name: "config/examples/demo.toml", text: DEMO_POLICY }
    } else {
        PolicyText::File(settings.policy.file.clone())
    };
    let traffic = &settings.policy.traffic;
    let traffic = match traffic.to_str() {
        Some("") => None,
        Some(COUNTERS) => Some(Traffic::Counters),
        _ => Some(Traffic::Capture(traffic.clone())),
    };
    PolicySource { text, variables, traffic, requires_tests: settings.policy.require_tests }
}

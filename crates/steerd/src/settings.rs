//! The settings: how this host runs steerd. The policy, what happens to packets, is another file.
//!
//! Layers, later ones win: the built-in defaults (config/steerd.toml itself), the settings file, STEERD_
//! variables, flags. Every layer is checked on its own first, so that an error names the file or variable
//! that it is in. Nothing is opened or started here.

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
pub(crate) use layers::Origin;
use layers::{Layer, Layers};
pub(crate) use lengths::{LengthError, PortMtu};
use types::OtherPort;
pub(crate) use types::{
    AUTO_DEVICE, AUTO_SOCKET, Api, COUNTERS, Cores, Http, IdleMode, Listen, Log, LogFormat, LogTarget,
    OtherSoftNic, Provider, ReceiveSetting, RelaxedOrdering, Settings, SoftNic, SoftNicMode, SoftNicPort,
    TooManyFrames, XdpPort,
};
use verbs::SYSFS_CLASSES;

/// config/steerd.toml is both the documented example and the defaults, so they cannot differ.
const DEFAULTS: &str = include_str!("../../../config/steerd.toml");
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

/// One problem of the settings, in one line: where, which key, what, and a remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) origin: String,
    pub(crate) key: String,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
    /// Whether the system has refused to read a file that exists, for lack of descriptors or memory, or by an
    /// error of the disk.
    pub(crate) is_unreadable: bool,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.origin)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        write!(f, "{}", self.message)?;
        match &self.hint {
            Some(hint) => write!(f, " (hint: {hint})"),
            None => Ok(()),
        }
    }
}

/// All problems, one per line.
#[derive(Debug, thiserror::Error)]
pub(crate) struct Problems(pub(crate) Vec<Problem>);

impl Problems {
    /// Whether the settings may be right, and readable later.
    pub(crate) fn are_unreadable(&self) -> bool {
        self.0.iter().any(|problem| problem.is_unreadable)
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.0.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl From<OtherPort> for Problem {
    fn from(OtherPort { origin, interface, device, port, named }: OtherPort) -> Self {
        Self {
            origin,
            key: "device.ports".into(),
            message: format!(
                "the interface {interface}, which device.name names, is port {port} of {device}, and device.ports is {named:?}"
            ),
            hint: Some(format!(
                "leave device.ports out, or set device.name = \"{device}\" for other ports than that of {interface}"
            )),
            is_unreadable: false,
        }
    }
}

/// Reads and merges all layers, with the process' own environment.
pub(crate) fn load(request: &Request) -> Result<Loaded, Problems> {
    let environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect::<Vec<_>>();
    let mut loaded = load_with(request, &environment)?;
    let resolved = loaded.settings.resolve_interface(Path::new(SYSFS_CLASSES));
    resolved.map_err(|other| Problems(vec![other.into()]))?;
    Ok(loaded)
}

fn load_with(request: &Request, environment: &[(String, String)]) -> Result<Loaded, Problems> {
    let mut problems = Vec::new();
    let mut layers = Layers::default();
    layers.push(Layer::built_in("config/steerd.toml", DEFAULTS), &mut problems);
    if request.demo {
        layers.push(Layer::built_in("config/demo.toml", DEMO), &mut problems);
    }
    if let Some(path) = &request.file {
        layers.push(Layer::file(path), &mut problems);
    }
    for (name, value) in environment {
        if let Some(layer) = Layer::variable(name, value) {
            layers.push(layer, &mut problems);
        }
    }
    if let Some(interface) = &request.interface {
        layers.push(Layer::of_interface(interface, request.nic_filters), &mut problems);
    }
    for layer in flags(request) {
        layers.push(layer, &mut problems);
    }
    if !problems.is_empty() {
        return Err(Problems(problems));
    }
    let mut settings = layers.merge().map_err(|problem| Problems(vec![problem]))?;
    settings.softnic.wires = layers.wires();
    settings.device.ports_origin = layers
        .origin("device.ports")
        .filter(|origin| !matches!(origin, Origin::BuiltIn(_)))
        .map(ToString::to_string);
    limits::check(&settings, &layers, &mut problems);
    let policy = policy_source(request, &settings, &layers);
    if problems.is_empty() { Ok(Loaded { settings, policy }) } else { Err(Problems(problems)) }
}

fn flags(request: &Request) -> Vec<Result<Layer, Vec<Problem>>> {
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

//! The settings as Rust types, field for field as config/steerd.toml names them.
//!
//! `#[serde(default)]` lets one layer be checked alone; the real defaults are in
//! config/steerd.toml, which is always the lowest layer. Limits on numbers are in `limits`.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use device_model::DeviceModel;
use hugemem::PageKind;
use nic_filters::{FilterModel, ModelError};
use policy::{Diagnostic, Place};
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use softnic::{Personality, UnknownPersonality};
use verbs::DevicePort;
use wire::{AfPacketConfig, AfXdpConfig, GeneratorConfig, LinkConfig, PcapConfig, WireConfig};

use crate::cli::NicFilterUse;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Settings {
    pub(crate) device: Device,
    pub(crate) policy: Policy,
    pub(crate) workers: Workers,
    pub(crate) softnic: SoftNic,
    pub(crate) http: Http,
    pub(crate) api: Api,
    pub(crate) log: Log,
    pub(crate) health: Health,
    pub(crate) state: StateSettings,
}

impl Settings {
    /// Whether the workers' device is the soft NIC.
    pub(crate) fn chooses_soft(&self) -> bool {
        let name = self.device.name.as_str();
        !self.softnic.ports.is_empty() && (name == AUTO_DEVICE || name == self.softnic.name)
    }

    /// Replaces the name of a network interface by its RDMA device and port. `classes`: the kernel's device
    /// classes in sysfs.
    ///
    /// # Errors
    /// The settings name other ports.
    pub(super) fn resolve_interface(&mut self, classes: &Path) -> Result<(), Box<Diagnostic>> {
        if self.chooses_soft() {
            return Ok(());
        }
        let device = &mut self.device;
        let Some(found) = DevicePort::of_interface(classes, &device.name) else { return Ok(()) };
        let ports = vec![found.port.0];
        // The installed settings name the default.
        let is_contradicted = device.ports != ports && device.ports != DEFAULT_PORTS;
        if let Some(place) = device.ports_place.as_ref().filter(|_| is_contradicted) {
            let (interface, ports, device, port) = (&device.name, &device.ports, found.device, found.port.0);
            let message = format!(
                "device.ports: the interface {interface}, which device.name names, is port {port} of {device}, and \
                 device.ports is {ports:?}"
            );
            let hint = format!(
                "leave device.ports out, or set device.name = \"{device}\" for other ports than that of {interface}"
            );
            return Err(Box::new(place.error(message, "other ports").hint(hint)));
        }
        let interface = std::mem::replace(&mut device.name, found.device);
        (device.interface, device.ports) = (Some(interface), ports);
        Ok(())
    }

    /// The ports in use on which an XDP program enforces the policy.
    pub(crate) fn xdp_ports(&self) -> Vec<XdpPort> {
        let of_port = |port: &u8| {
            let of_port = self.softnic.ports.get(usize::from(*port).checked_sub(1)?)?;
            let WireConfig::AfXdp(AfXdpConfig { interface, .. }) = &of_port.wire else { return None };
            Some(XdpPort {
                port: *port,
                interface: interface.clone(),
                nic_filters: of_port.nic_filters,
                filter_model: of_port.filter_model.clone(),
            })
        };
        let ports = self.device.ports.iter().filter(|_| self.chooses_soft());
        ports.filter_map(of_port).collect()
    }
}

/// The ports of a device whose settings name none.
const DEFAULT_PORTS: [u8; 1] = [1];

/// A port that is a network interface with the XDP program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct XdpPort {
    pub(crate) port: u8,
    /// The name of the interface.
    pub(crate) interface: String,
    pub(crate) nic_filters: NicFilterUse,
    /// The filter model that the settings name; `None`: that of the driver.
    pub(crate) filter_model: Option<String>,
}

impl XdpPort {
    /// The model of the NIC's filters: the one of the command line, of the settings, or of the driver.
    ///
    /// # Errors
    /// The file that the settings name cannot be read any more.
    pub(crate) fn filter_model(
        &self,
        given: Option<&FilterModel>,
        driver: &str,
    ) -> Result<FilterModel, ModelError> {
        match (given, &self.filter_model) {
            (Some(model), _) => Ok(model.clone()),
            (None, Some(name)) => FilterModel::named_or_file(name),
            (None, None) => Ok(FilterModel::by_driver(driver)),
        }
    }
}

/// The name that stands for the only device there is.
pub(crate) const AUTO_DEVICE: &str = "auto";

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Device {
    /// A name in libibverbs' list, the soft NIC's name, or [`AUTO_DEVICE`]. In the file also the name of a
    /// network interface, see [`Settings::resolve_interface`].
    pub(crate) name: String,
    /// The network interface that the settings name in place of a device.
    #[serde(skip)]
    pub(crate) interface: Option<String>,
    /// A name of [`DeviceModel::NAMES`], a file, or "auto": by the device's driver.
    pub(crate) model: String,
    /// Whether the interfaces of a real device's ports are kept promiscuous.
    pub(crate) promiscuous: bool,
    pub(crate) relaxed_ordering: RelaxedOrdering,
    pub(crate) receive: ReceiveSetting,
    pub(crate) ports: Vec<u8>,
    /// Where the settings name the ports; `None`: they are the default.
    #[serde(skip)]
    pub(crate) ports_place: Option<Place>,
}

/// How workers take completions and post frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ReceiveSetting {
    /// Workers call the functions of the device's provider.
    #[default]
    Verbs,
    /// Workers on an mlx5 read and write the queues' memory.
    Direct,
}

/// Whether the device's writes to frames may overtake each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RelaxedOrdering {
    /// Unless the processor gains nothing by it.
    #[default]
    Auto,
    On,
    Off,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Policy {
    pub(crate) file: PathBuf,
    /// Values of the policy's variables, as text.
    #[serde(deserialize_with = "variables")]
    pub(crate) variables: BTreeMap<String, String>,
    /// A capture of typical traffic, or [`COUNTERS`]; empty: none.
    pub(crate) traffic: PathBuf,
    /// Whether a policy is put in force only if it has tests and all of them pass.
    pub(crate) require_tests: bool,
    /// Whether the daemon reloads the policy when its files change.
    pub(crate) watch: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Workers {
    pub(crate) cores: Cores,
    /// Workers beyond those of `cores`, which wait until they are added.
    pub(crate) spare: usize,
    pub(crate) frames: u32,
    pub(crate) frame_bytes: FrameBytes,
    pub(crate) batch: usize,
    #[serde(deserialize_with = "pages")]
    pub(crate) pages: Vec<PageKind>,
    pub(crate) idle: IdleMode,
    /// With [`IdleMode::Adaptive`]: how long a worker without work polls before it sleeps.
    pub(crate) idle_us: u32,
    pub(crate) timestamps: bool,
}

/// A receive queue of the device cannot hold all frames of a worker.
#[derive(Debug, thiserror::Error)]
#[error(
    "workers.frames: {frames} are more than a receive queue of {device} holds: {limit} (hint: set workers.frames \
     to {limit} or less; each further worker has a queue of its own)"
)]
pub(crate) struct TooManyFrames {
    device: String,
    frames: u32,
    limit: u32,
}

impl Workers {
    /// Checks that a receive queue of the device holds all frames of a worker, before memory is allocated.
    pub(crate) fn check_frames(&self, device: &DeviceModel) -> Result<(), TooManyFrames> {
        match device.max_receives {
            Some(limit) if self.frames > limit => {
                Err(TooManyFrames { device: device.name.clone(), frames: self.frames, limit })
            }
            _ => Ok(()),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum IdleMode {
    #[default]
    Adaptive,
    Relaxed,
    Spin,
}

/// The bytes of a worker's frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FrameBytes {
    /// The length follows from the MTUs of the ports.
    #[default]
    Auto,
    Bytes(u32),
}

/// Which cores run workers, one each.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) enum Cores {
    #[default]
    Auto,
    /// This many workers, on the first cores; unpinned if there are too few cores.
    Count(usize),
    List(Vec<usize>),
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct SoftNic {
    pub(crate) name: String,
    /// Which one the workers' device is used through.
    pub(crate) provider: Provider,
    /// A name of [`Personality`], or the file of a device model.
    #[serde(deserialize_with = "personality")]
    pub(crate) personality: String,
    pub(crate) mode: SoftNicMode,
    /// Flows created or destroyed a second; 0: as many as it can.
    pub(crate) flow_rate: u32,
    /// Faults to be made on purpose, as [`softnic::FaultPlan`] reads them.
    pub(crate) faults: String,
    /// One thread for each of these cores; `core` is one.
    pub(crate) cores: Option<Vec<usize>>,
    pub(crate) core: Option<usize>,
    /// The number of threads, which the scheduler places.
    pub(crate) threads: Option<usize>,
    pub(crate) ports: Vec<SoftNicPort>,
    /// The wires of the ports as TOML, for another process.
    #[serde(skip)]
    pub(crate) wires: Vec<String>,
    /// Further ones, which only send.
    pub(crate) others: Vec<OtherSoftNic>,
}

/// Whose functions libibverbs calls for the soft NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Provider {
    /// The soft NIC's own.
    #[default]
    Softnic,
    /// rdma-core's mlx5 provider, above a model of the kernel and of the device.
    Mlx5,
}

impl SoftNic {
    /// The personality, read anew if it is a file.
    ///
    /// # Errors
    /// The file cannot be read, or is no device model.
    pub(crate) fn personality(&self) -> Result<Personality, UnknownPersonality> {
        self.personality.parse()
    }

    /// The core of each engine thread, with [`SoftNicMode::Dedicated`]; none is pinned without `cores` or
    /// `core`.
    pub(crate) fn engine_threads(&self) -> Vec<Option<usize>> {
        match (&self.cores, self.threads) {
            (Some(cores), _) => cores.iter().copied().map(Some).collect(),
            (None, Some(threads)) => vec![None; threads],
            (None, None) => vec![self.core],
        }
    }
}

/// A soft NIC for sinks of kind `forward` that name it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OtherSoftNic {
    pub(crate) name: String,
    pub(crate) ports: Vec<SoftNicPort>,
}

/// Which thread runs the soft NIC's engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SoftNicMode {
    /// One or several of its own.
    #[default]
    Dedicated,
    /// The workers, when they poll.
    Inline,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SoftNicPort {
    #[serde(with = "WireByKind")]
    pub(crate) wire: WireConfig,
    /// `None`: that of the live interface, see [`SoftNicPort::mtu_bytes`].
    pub(crate) mtu_bytes: Option<u32>,
    #[serde(default)]
    pub(crate) nic_filters: NicFilterUse,
    /// With [`NicFilterUse::Drop`]: a name of [`FilterModel::names`] or a file; `None`: by the driver.
    pub(crate) filter_model: Option<String>,
}

/// The variants of [`WireConfig`], each with its keys.
#[derive(Deserialize)]
#[serde(remote = "WireConfig", rename_all = "snake_case", deny_unknown_fields)]
enum WireByKind {
    Generator(GeneratorConfig),
    Pcap(PcapConfig),
    AfPacket(AfPacketConfig),
    AfXdp(AfXdpConfig),
    Link(LinkConfig),
    Loopback {},
    Null {},
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Http {
    pub(crate) listen: Listen,
    /// Names allowed in the Host header of requests, besides addresses and localhost.
    pub(crate) hosts: Vec<String>,
    /// The file with the bearer token; empty: no token is required.
    pub(crate) token_file: PathBuf,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Api {
    pub(crate) enabled: bool,
    /// The path of the unix socket, or [`AUTO_SOCKET`].
    pub(crate) socket: PathBuf,
    #[serde(deserialize_with = "mode")]
    pub(crate) mode: u32,
    /// The user ids, besides root's and the daemon's, that may change what runs.
    pub(crate) admins: Vec<u32>,
}

/// Where the daemon keeps what survives a restart.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct StateSettings {
    /// A folder, or [`AUTO_STATE`].
    pub(crate) folder: PathBuf,
}

/// The folder that systemd gives the service (StateDirectory= in systemd.exec(5)); without one nothing is
/// kept.
pub(crate) const AUTO_STATE: &str = "auto";

impl StateSettings {
    /// Whether it is the folder that systemd gives the service.
    pub(crate) fn is_of_service(&self) -> bool {
        self.folder.as_os_str() == AUTO_STATE
    }

    /// The folder; `None`: nothing is kept.
    pub(crate) fn folder(&self) -> Option<PathBuf> {
        if !self.is_of_service() {
            return Some(self.folder.clone()).filter(|folder| !folder.as_os_str().is_empty());
        }
        let folders = std::env::var("STATE_DIRECTORY").ok()?;
        folders.split(':').next().map(PathBuf::from).filter(|folder| folder.is_absolute())
    }
}

/// The socket is at the default place for the user.
pub(crate) const AUTO_SOCKET: &str = "auto";

/// In place of the path of a capture: the packets that the rules have counted.
pub(crate) const COUNTERS: &str = "counters";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Listen {
    #[default]
    Off,
    On(SocketAddr),
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Log {
    pub(crate) target: LogTarget,
    pub(crate) format: LogFormat,
    pub(crate) filter: String,
}

/// The format of lines on stderr; journald has its own fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LogFormat {
    #[default]
    Text,
    Json,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Health {
    /// A worker or engine that makes no progress for this long is stalled.
    pub(crate) stall_ms: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LogTarget {
    #[default]
    Stderr,
    Journald,
}

/// Strings as they are, other values as TOML text.
fn variables<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    let text = |value: toml::Value| match value {
        toml::Value::String(text) => text,
        other => other.to_string(),
    };
    let values = BTreeMap::<String, toml::Value>::deserialize(deserializer)?;
    Ok(values.into_iter().map(|(name, value)| (name, text(value))).collect())
}

/// Permissions in octal, as chmod(1) takes them.
fn mode<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let text = String::deserialize(deserializer)?;
    let mode = u32::from_str_radix(&text, 8).ok().filter(|mode| *mode <= 0o777 && text.len() <= 4);
    mode.ok_or_else(|| de::Error::custom(format!("\"{text}\" is no mode: write e.g. \"0660\" or \"0600\"")))
}

/// The files that layers name are read when the layers are merged: their paths are relative to the layer.
fn personality<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    if DeviceModel::is_path(&text) || DeviceModel::NAMES.contains(&text.as_str()) {
        return Ok(text);
    }
    Err(de::Error::unknown_variant(&text, &DeviceModel::NAMES))
}

fn pages<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PageKind>, D::Error> {
    let pages = Vec::<PageName>::deserialize(deserializer)?;
    Ok(pages.into_iter().map(|PageName(kind)| kind).collect())
}

/// A kind of page by its name.
struct PageName(PageKind);

impl<'de> Deserialize<'de> for PageName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const NAMES: [&str; PageKind::ALL.len()] = {
            let mut names = [""; PageKind::ALL.len()];
            let mut index = 0;
            while index < names.len() {
                names[index] = PageKind::ALL[index].name();
                index += 1;
            }
            names
        };
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(|_| de::Error::unknown_variant(&text, &NAMES))
    }
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == "off" {
            return Ok(Self::Off);
        }
        text.parse().map(Self::On).map_err(|_| {
            de::Error::custom(format!(
                "\"{text}\" is no address and port: write \"127.0.0.1:9464\", \"[::1]:9464\" or \"off\""
            ))
        })
    }
}

impl<'de> Deserialize<'de> for FrameBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FrameBytesVisitor)
    }
}

struct FrameBytesVisitor;

impl Visitor<'_> for FrameBytesVisitor {
    type Value = FrameBytes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"auto\" or a number of bytes")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<FrameBytes, E> {
        if text == "auto" {
            return Ok(FrameBytes::Auto);
        }
        text.parse().map(FrameBytes::Bytes).map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self))
    }

    fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<FrameBytes, E> {
        u32::try_from(bytes)
            .map(FrameBytes::Bytes)
            .map_err(|_| E::invalid_value(de::Unexpected::Signed(bytes), &self))
    }

    fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<FrameBytes, E> {
        u32::try_from(bytes)
            .map(FrameBytes::Bytes)
            .map_err(|_| E::invalid_value(de::Unexpected::Unsigned(bytes), &self))
    }
}

impl<'de> Deserialize<'de> for Cores {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CoresVisitor)
    }
}

struct CoresVisitor;

impl<'de> Visitor<'de> for CoresVisitor {
    type Value = Cores;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"auto\", a number of workers, or a list of cores such as [2, 3]")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Cores, E> {
        let text = text.trim();
        if text == "auto" {
            return Ok(Cores::Auto);
        }
        // The form without TOML's brackets, for variables: "2,3".
        let list: Result<Vec<usize>, _> = text.split(',').map(|part| part.trim().parse()).collect();
        list.map(Cores::List).map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self))
    }

    fn visit_i64<E: de::Error>(self, count: i64) -> Result<Cores, E> {
        usize::try_from(count)
            .map(Cores::Count)
            .map_err(|_| E::invalid_value(de::Unexpected::Signed(count), &self))
    }

    fn visit_u64<E: de::Error>(self, count: u64) -> Result<Cores, E> {
        usize::try_from(count)
            .map(Cores::Count)
            .map_err(|_| E::invalid_value(de::Unexpected::Unsigned(count), &self))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Cores, A::Error> {
        let mut cores = Vec::new();
        while let Some(core) = sequence.next_element()? {
            cores.push(core);
        }
        Ok(Cores::List(cores))
    }
}

//! The part of the settings that the checks need: threads and their cores, memory, device and interfaces.

use std::path::PathBuf;

use hugemem::{ArenaForecast, PageKind};
use program::WorkerId;
use verbs::{DevicePort, PortNumber};
use wire::WireConfig;
use worker::WorkerConfig;

use super::{SystemFiles, UnreadFile};
use crate::daemon::cores::{self, HostCores};
use crate::daemon::{device, worker_config};
use crate::service_unit::ServiceUnit;
use crate::settings::{AUTO_DEVICE, IdleMode, Settings};

/// The RDMA devices of a host, and their classes in sysfs.
const RDMA_DEVICES: &str = "/sys/class/infiniband";
const CLASSES: &str = "/sys/class";

/// The setup that a host is examined for.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExaminedSetup {
    pub(crate) device: ExaminedDevice,
    pub(crate) interfaces: Vec<ExaminedInterface>,
    /// The core of each worker; `None`: it is not pinned.
    pub(crate) workers: Vec<Option<usize>>,
    /// The core of each engine thread of the soft NIC.
    pub(crate) engines: Vec<Option<usize>>,
    /// Why the workers have no cores.
    pub(crate) core_error: Option<String>,
    pub(crate) idle: IdleMode,
    pub(crate) memory: Vec<WorkerMemory>,
    /// The page kinds in the order in which they are tried.
    pub(crate) pages: Vec<PageKind>,
    /// Why the frames of the workers do not fit the MTUs of the ports.
    pub(crate) length_error: Option<String>,
    /// The device model of the settings: a name, a path or "auto".
    pub(crate) model: String,
    /// The unit of the service whose settings these are.
    pub(crate) service: Option<ServiceUnit>,
    /// The process of the daemon that runs with these settings.
    pub(crate) daemon: Option<u32>,
    /// The reason why it is not known whether a daemon runs; `None`: it is known.
    pub(crate) daemon_error: Option<UnreadFile>,
}

/// The workers' device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ExaminedDevice {
    /// A software NIC.
    #[default]
    Soft,
    /// An RDMA device of this name, which may not exist. `by_interface`: the settings name its interface.
    Rdma { name: String, by_interface: bool },
    /// The settings name no device, and there is not exactly one. The RDMA devices of the host.
    Ambiguous(Vec<String>),
}

/// A network interface that packets come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExaminedInterface {
    pub(crate) name: String,
    pub(crate) usage: InterfaceUse,
    /// Whether steerd makes it promiscuous.
    pub(crate) becomes_promiscuous: bool,
}

/// The way in which packets of an interface are received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InterfaceUse {
    /// Flows of the RDMA device that the interface belongs to.
    Rdma,
    /// An XDP program (`af_xdp`).
    Xdp,
    /// A packet socket (`af_packet`).
    Packet,
}

/// The memory of a worker, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkerMemory {
    /// The NUMA node that it is bound to.
    pub(crate) numa_node: Option<u32>,
    pub(crate) bytes: u64,
}

impl ExaminedSetup {
    /// The setup of these settings on a host. `daemon`: the process that runs with them, if there is one, or
    /// why that is not known.
    pub(crate) fn of(
        settings: &Settings,
        files: &SystemFiles,
        daemon: Result<Option<u32>, UnreadFile>,
    ) -> Self {
        let (daemon, daemon_error) = match daemon {
            Ok(daemon) => (daemon, None),
            Err(unread) => (None, Some(unread)),
        };
        let (workers, core_error) = match cores::with_spare(settings, &HostCores::of(settings)) {
            Ok(workers) => (workers, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        let device = device_of(settings, files);
        let lengths =
            settings.check_mtus().and_then(|()| settings.frame_bytes(&device::known_mtus(settings)));
        let memory = lengths.as_ref().map(|bytes| memory_of(settings, &workers, *bytes));
        let memory = memory.unwrap_or_default();
        Self {
            interfaces: interfaces_of(settings, &device, files),
            device,
            memory,
            engines: if settings.chooses_soft() { settings.softnic.engine_threads() } else { Vec::new() },
            workers,
            core_error,
            idle: settings.workers.idle,
            pages: settings.workers.pages.clone(),
            length_error: lengths.err().map(|error| error.to_string()),
            model: settings.device.model.clone(),
            service: None,
            daemon,
            daemon_error,
        }
    }

    /// The cores that workers are pinned to.
    pub(crate) fn worker_cores(&self) -> Vec<usize> {
        let mut cores: Vec<usize> = self.workers.iter().flatten().copied().collect();
        cores.sort_unstable();
        cores.dedup();
        cores
    }

    /// Whether the memory of the workers is pinned: by an RDMA device, or by AF_XDP.
    pub(crate) fn pins_memory(&self) -> bool {
        self.is_rdma() || self.uses(InterfaceUse::Xdp)
    }

    /// Whether the device is an RDMA device.
    pub(crate) fn is_rdma(&self) -> bool {
        !matches!(self.device, ExaminedDevice::Soft)
    }

    /// Whether packets of an interface are received in this way.
    pub(crate) fn uses(&self, usage: InterfaceUse) -> bool {
        self.interfaces.iter().any(|interface| interface.usage == usage)
    }

    /// The folder of a process in /proc: that of the running daemon, or of this process.
    pub(crate) fn process_folder(&self) -> String {
        self.daemon.map_or_else(|| "/proc/self".to_owned(), |process| format!("/proc/{process}"))
    }

    /// A name of that process for messages.
    pub(crate) fn process_name(&self) -> String {
        self.daemon
            .map_or_else(|| "this process".to_owned(), |process| format!("the daemon (process {process})"))
    }
}

fn device_of(settings: &Settings, files: &SystemFiles) -> ExaminedDevice {
    if settings.chooses_soft() {
        return ExaminedDevice::Soft;
    }
    let by_interface = settings.device.interface.is_some();
    if settings.device.name != AUTO_DEVICE {
        return ExaminedDevice::Rdma { name: settings.device.name.clone(), by_interface };
    }
    // What cannot be listed is reported by the check.
    let mut names = files.names(RDMA_DEVICES).ok().flatten().unwrap_or_default();
    match names.len() {
        1 => ExaminedDevice::Rdma { name: names.remove(0), by_interface },
        _ => ExaminedDevice::Ambiguous(names),
    }
}

fn interfaces_of(
    settings: &Settings,
    device: &ExaminedDevice,
    files: &SystemFiles,
) -> Vec<ExaminedInterface> {
    match device {
        ExaminedDevice::Ambiguous(_) => Vec::new(),
        ExaminedDevice::Rdma { name, .. } => {
            let classes: PathBuf = files.place(CLASSES);
            let becomes_promiscuous = settings.device.promiscuous;
            let of_port = |port: &u8| {
                let port = DevicePort { device: name.clone(), port: PortNumber(*port) };
                let name = port.interface(&classes)?;
                Some(ExaminedInterface { name, usage: InterfaceUse::Rdma, becomes_promiscuous })
            };
            settings.device.ports.iter().filter_map(of_port).collect()
        }
        ExaminedDevice::Soft => {
            let of_port = |port: &u8| {
                let port = settings.softnic.ports.get(usize::from(*port).checked_sub(1)?)?;
                let (name, usage, becomes_promiscuous) = match &port.wire {
                    WireConfig::AfXdp(wire) => (&wire.interface, InterfaceUse::Xdp, wire.promiscuous),
                    WireConfig::AfPacket(wire) => (&wire.interface, InterfaceUse::Packet, wire.promiscuous),
                    _ => return None,
                };
                Some(ExaminedInterface { name: name.clone(), usage, becomes_promiscuous })
            };
            settings.device.ports.iter().filter_map(of_port).collect()
        }
    }
}

/// The memory of each worker with frames of this length.
fn memory_of(settings: &Settings, workers: &[Option<usize>], frame_bytes: u32) -> Vec<WorkerMemory> {
    let of_worker = |(index, core): (usize, &Option<usize>)| {
        let config = worker_config(settings, WorkerId::of(index), *core);
        let config = WorkerConfig { frame_bytes, ..config };
        let mut forecast = ArenaForecast::default();
        // A refusal is a finding of the checks of memory, which need the size.
        let _ = worker::forecast_memory(&config, &mut forecast);
        WorkerMemory { numa_node: config.memory_node(), bytes: forecast.asked_bytes() as u64 }
    };
    workers.iter().enumerate().map(of_worker).collect()
}

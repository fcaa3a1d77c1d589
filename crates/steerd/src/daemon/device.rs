//! Opens the device that the settings name: the soft NIC, which is made here, or one of libibverbs' list.
//! Used at start-up and by the commands. Only the start creates anything on a real device: flows that try
//! priorities, which are gone at once.

mod devlink;
mod eswitch;
mod facts;
mod loopback;
mod sysfs;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::daemon::Error;
use crate::daemon::cores::{self, HostCores};
use crate::daemon::health::{Part, Progress};
use crate::daemon::libmlx5::{self, PreloadedNic};
use crate::settings::{AUTO_DEVICE, OtherSoftNic, PortMtu, Settings, SoftNicMode, SoftNicPort};
use control::{Device, DeviceSelector, DeviceSummary, Model};
use device_model::DeviceModel;
use packet::MacAddr;
use program::Program;
use rustix::io::Errno;
use softnic::{Drive, Personality, PortConfig, SoftNicConfig};
use softnic_verbs::SoftNic;
use verbs::{DevicePort, PortNumber, PortState, SYSFS_CLASSES};
use wire::{GatedWire, LinkConfig, NullWire, Promiscuous, WireConfig};
use worker::sinks::{Failure, OtherDevice, OtherPorts, Station};

pub(crate) use eswitch::EswitchMode;
use eswitch::{DevlinkHandle, EswitchAdvice};
pub(crate) use facts::{DeviceFacts, LinkFacts};
use sysfs::Netdev;
pub(super) use sysfs::OutOfBuffer;

const NO_RDMA: &str = "this kernel has no RDMA support loaded (hint: modprobe ib_uverbs and the NIC's driver; \
                       without an RDMA NIC `steerd run --interface NAME` enforces on an Ethernet interface, and `steerd \
                       run --demo` is a trial)";

/// How long the start waits for the peer of a port on a link, and how often it checks.
const PEER_TIMEOUT: Duration = Duration::from_secs(10);
const PEER_STEP: Duration = Duration::from_millis(5);

/// An open device and, for a soft one, its soft NIC.
pub(crate) struct OpenDevice {
    pub(crate) device: Device,
    pub(crate) ports: Vec<u8>,
    /// After the device, so that it outlives it.
    pub(super) soft: Option<Soft>,
    /// The library below the device, where that is a soft NIC with rdma-core's mlx5 provider.
    pub(super) preloaded: Option<PreloadedNic>,
    /// The devices that sinks can send by.
    pub(super) others: Vec<OtherSoft>,
    /// The wires of a soft NIC's ports, in order; empty for a real device.
    soft_wires: Vec<WireConfig>,
    /// Keeps the ports' interfaces promiscuous.
    promiscuous: Vec<Promiscuous>,
}

pub(super) struct Soft {
    pub(super) name: Arc<str>,
    pub(super) nic: SoftNic,
    /// The description of each port's wire.
    pub(super) wires: Vec<String>,
    wires_open: Arc<AtomicBool>,
}

impl Soft {
    /// All of its engine.
    pub(super) fn engine(&self) -> Part {
        Part::Engine(Arc::clone(&self.name), None)
    }

    /// The progress that health watches: the passes of each engine thread.
    pub(super) fn progress(&self) -> impl Iterator<Item = Progress> {
        let passes = self.nic.engine_passes();
        let is_one = passes.len() == 1;
        (1..).zip(passes).map(move |(thread, passes)| {
            (Part::Engine(Arc::clone(&self.name), (!is_one).then_some(thread)), passes)
        })
    }

    /// Whether one of its engine threads is among these.
    pub(super) fn is_among(&self, stalled: &[Part]) -> bool {
        stalled.iter().any(|part| matches!(part, Part::Engine(nic, _) if *nic == self.name))
    }
}

/// A further soft NIC, which nobody receives from.
pub(super) struct OtherSoft {
    /// Before the soft NIC, so that it is closed before.
    pub(super) device: Device,
    pub(super) soft: Soft,
}

impl OpenDevice {
    /// All soft NICs, the one of the workers first.
    pub(super) fn soft_nics(&self) -> impl Iterator<Item = &Soft> {
        self.soft.iter().chain(self.others.iter().map(|other| &other.soft))
    }

    /// Whether the workers' device is a soft NIC.
    pub(super) fn is_soft(&self) -> bool {
        self.soft.is_some() || self.preloaded.is_some()
    }

    /// Whether the engine of the workers' soft NIC is among these; `None` for a real device.
    pub(super) fn engine_stalled(&self, stalled: &[Part]) -> Option<bool> {
        let soft = self.soft.as_ref().map(|soft| soft.is_among(stalled));
        soft.or_else(|| self.preloaded.as_ref().map(|preloaded| preloaded.is_among(stalled)))
    }

    /// Whether an XDP program enforces the policy on a port in use.
    pub(crate) fn has_xdp_program(&self) -> bool {
        let wires = self.ports.iter().map(|port| self.soft_wires.get(usize::from(*port).wrapping_sub(1)));
        wires.flatten().any(|wire| matches!(wire, WireConfig::AfXdp(_)))
    }

    /// The descriptions of the soft NIC's wires; empty for a real device.
    pub(crate) fn wires(&self) -> &[String] {
        match (&self.soft, &self.preloaded) {
            (Some(soft), _) => &soft.wires,
            (None, Some(preloaded)) => preloaded.wires(),
            (None, None) => &[],
        }
    }

    /// The name of a soft port's wire, without the details in brackets.
    pub(super) fn wire_name(&self, port: u8) -> String {
        let wire = self.wires().get(usize::from(port).saturating_sub(1));
        wire.and_then(|wire| wire.split(" (").next()).unwrap_or_default().to_owned()
    }

    /// Waits until every port on a link has met its peer, if the peer exists: until then the port is down.
    ///
    /// # Errors
    /// The peer does not answer, or `is_stopping` returns true.
    pub(super) fn wait_for_peers(
        &self,
        settings: &Settings,
        is_stopping: &dyn Fn() -> bool,
    ) -> Result<(), Error> {
        if !settings.chooses_soft() {
            return Ok(());
        }
        let deadline = Instant::now() + PEER_TIMEOUT;
        for port in &self.ports {
            let wire = settings.softnic.ports.get(usize::from(*port).saturating_sub(1));
            let Some(WireConfig::Link(link)) = wire.map(|port| &port.wire) else { continue };
            let is_down =
                || matches!(self.device.check_port(*port), Err(control::ControlError::PortDown { .. }));
            if is_down() {
                let seconds = PEER_TIMEOUT.as_secs();
                tracing::info!(
                    "port {port}: link `{}`: waiting up to {seconds} s for the peer to answer",
                    link.name
                );
            }
            while is_down() {
                if is_stopping() {
                    return Err(Error::Stopping);
                }
                if Instant::now() >= deadline {
                    return Err(silent_peer(*port, link));
                }
                // No worker polls yet, so an engine without a thread needs this. The gate lets no frame in.
                if let Some(soft) = &self.soft {
                    soft.nic.pump(1);
                }
                std::thread::sleep(PEER_STEP);
            }
        }
        Ok(())
    }

    /// Warnings before this program is put on the device; none for a soft NIC.
    pub(crate) fn warnings(&self, program: &Program) -> Vec<String> {
        if self.is_soft() {
            return Vec::new();
        }
        let ports = if self.promiscuous.is_empty() { self.ports.as_slice() } else { &[] };
        warnings(self.device.name(), self.device.model(), ports, program)
    }

    /// The limits of the workers' device for the compiler, beside so many workers.
    pub(crate) fn profile(&self, workers: usize) -> DeviceModel {
        self.device.profile(workers).on_ports(self.ports.len())
    }

    /// The ports in use as stations on their links, as they are now. Asks the kernel for live interfaces.
    pub(crate) fn stations(&self) -> Vec<Station> {
        let station = |port: &u8| {
            let live = self.soft_wires.get(usize::from(*port).wrapping_sub(1));
            let live = live.and_then(WireConfig::live_interface);
            // A port carries no more than it was made for.
            let as_now = |(mac, mtu_bytes): (Option<MacAddr>, Option<u32>)| {
                let mtu_now = live.map(|live| live.mtu_bytes.min(mtu_bytes.unwrap_or(live.mtu_bytes)));
                (live.map(|live| live.mac).or(mac), mtu_now.or(mtu_bytes))
            };
            let (mac, mtu_bytes) = match (&self.soft, &self.preloaded) {
                (Some(soft), _) => as_now((soft.nic.port_mac(*port), soft.nic.port_mtu_bytes(*port))),
                (None, Some(preloaded)) => as_now((preloaded.mac(), preloaded.mtu_bytes())),
                (None, None) => return real_station(self.device.name(), *port),
            };
            Station { port: *port, mac, mtu_bytes, interface_index: live.map(|live| live.index) }
        };
        self.ports.iter().map(station).collect()
    }

    /// The MTUs of the ports in use, as far as they are known.
    pub(super) fn mtus(&self) -> Vec<PortMtu> {
        let known = |station: Station| Some(PortMtu { port: station.port, mtu_bytes: station.mtu_bytes? });
        self.stations().into_iter().filter_map(known).collect()
    }

    /// Opens a device for sinks that send by it: another soft NIC of the settings, one of libibverbs' list,
    /// or the one of a network interface.
    ///
    /// # Errors
    /// There is no such device, or it cannot be used.
    pub(crate) fn open_other(&self, name: &str) -> Result<OtherDevice, Failure> {
        let softs = || self.others.iter().map(|other| &other.soft);
        let Some(soft) = softs().find(|soft| &*soft.name == name) else {
            return open_listed(name, &mut softs().map(|soft| &*soft.name));
        };
        let device = Device::open(&DeviceSelector::named(name), Some(&soft.nic))?;
        Ok(OtherDevice { context: Arc::clone(device.context()), port: None })
    }

    pub(super) fn open_wires(&self) {
        self.set_wires(true);
    }

    fn set_wires(&self, open: bool) {
        if let Some(soft) = &self.soft {
            soft.wires_open.store(open, Ordering::Release);
            soft.nic.allow_drops(open);
        }
        if let Some(preloaded) = &self.preloaded {
            preloaded.set_wires(open);
        }
    }

    /// Before flows are removed for good: an mlx5 forgets what a flow has counted with the flow, so packets
    /// that arrive between the last reading and the removal would be missing from the accounting.
    pub(super) fn close_wires(&self) {
        self.set_wires(false);
    }
}

/// Opens a device of libibverbs' list, or the one of a network interface, for sinks that send by it. `softs`:
/// the names of the further soft NICs, none of which it is.
fn open_listed(name: &str, softs: &mut dyn Iterator<Item = &str>) -> Result<OtherDevice, Failure> {
    let of_interface = DevicePort::of_interface(Path::new(SYSFS_CLASSES), name);
    let device = of_interface.as_ref().map_or(name, |port| port.device.as_str());
    let warnings = check_eswitch(device, of_interface.as_ref().map(|_| name))?;
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    match Device::open(&DeviceSelector::named(device), None) {
        Ok(device) => {
            let port = of_interface.map(|DevicePort { port: PortNumber(port), .. }| port);
            Ok(OtherDevice { context: Arc::clone(device.context()), port })
        }
        Err(error) if no_rdma_in_kernel(&error) => {
            let names: Vec<_> = softs.collect();
            Err(format!("the further soft NICs are [{}], and {NO_RDMA}", names.join(", ")).into())
        }
        Err(error) => Err(error.into()),
    }
}

/// The ports of another device.
///
/// # Errors
/// There is no such device, or it cannot be used.
pub(super) fn check_other(settings: &Settings, name: &str) -> Result<OtherPorts, Failure> {
    let others = &settings.softnic.others;
    if let Some(soft) = others.iter().find(|soft| soft.name == name) {
        return Ok(OtherPorts { count: u8::try_from(soft.ports.len()).unwrap_or(u8::MAX), named: None });
    }
    let OtherDevice { context, port } =
        open_listed(name, &mut others.iter().map(|other| other.name.as_str()))?;
    let ports = context.attributes()?.physical_ports;
    Ok(OtherPorts { count: u8::try_from(ports).unwrap_or(u8::MAX), named: port })
}

fn silent_peer(port: u8, link: &LinkConfig) -> Error {
    let holder = link.peer().map_or_else(|| "no process now".to_owned(), |peer| peer.to_string());
    Error::SilentPeer {
        port,
        link: link.name.to_string(),
        end: link.end.other().letter(),
        holder,
        seconds: PEER_TIMEOUT.as_secs(),
    }
}

pub(crate) fn open(settings: &Settings) -> Result<OpenDevice, Error> {
    let ports = settings.device.ports.clone();
    let others = settings.softnic.others.iter().map(|other| open_other(settings, other));
    let others = others.collect::<Result<Vec<_>, Error>>()?;
    let soft_wires = settings.softnic.ports.iter().map(|port| port.wire.clone()).collect();
    if libmlx5::is_wanted(settings) {
        let preloaded = PreloadedNic::find(&settings.softnic).map_err(Error::LibMlx5)?;
        let device = Device::open(&DeviceSelector::named(&settings.softnic.name), None);
        // A personality can be a file, and the driver is that of an mlx5 in any case.
        let model = Model::named(preloaded_model(settings)?);
        let device = device.map_err(Error::Device)?.with_model(model);
        return Ok(OpenDevice {
            device,
            ports,
            soft: None,
            preloaded: Some(preloaded),
            others,
            soft_wires,
            promiscuous: Vec::new(),
        });
    }
    if settings.chooses_soft() {
        let drive = match settings.softnic.mode {
            SoftNicMode::Dedicated => Drive::Threads { cores: settings.softnic.engine_threads() },
            SoftNicMode::Inline => Drive::Inline,
        };
        let nic = &settings.softnic;
        let (device, soft) = open_soft(&nic.name, nic.personality()?, &nic.ports, drive, nic.flow_rate)?;
        // The settings were checked.
        nic.faults.parse().into_iter().for_each(|plan| soft.nic.plan_faults(plan));
        return Ok(OpenDevice {
            device,
            ports,
            soft: Some(soft),
            preloaded: None,
            others,
            soft_wires,
            promiscuous: Vec::new(),
        });
    }
    let RealDevice { mut device, warnings } = open_real(settings)?;
    let driver = control::kernel_driver(device.name()).unwrap_or_default();
    let priorities = priority_warning(&mut device, &driver, &ports);
    let loopback = loopback_warning(device.name(), &driver);
    let warnings = warnings.into_iter().chain(priorities).chain(loopback);
    warnings.for_each(|warning| tracing::warn!("{warning}"));
    let promiscuous =
        if settings.device.promiscuous { promiscuous(device.name(), &ports)? } else { Vec::new() };
    Ok(OpenDevice { device, ports, soft: None, preloaded: None, others, soft_wires: Vec::new(), promiscuous })
}

/// Makes the interfaces of these ports promiscuous.
fn promiscuous(device: &str, ports: &[u8]) -> Result<Vec<Promiscuous>, Error> {
    ports.iter().map(|port| of_port(device, *port, Promiscuous::hold)).collect()
}

/// Makes the interface of a port promiscuous, or checks that it can be.
fn of_port<T>(
    device: &str,
    port: u8,
    make: impl FnOnce(&str) -> Result<T, wire::WireError>,
) -> Result<T, Error> {
    let netdev = Netdev::of_port(Path::new(SYSFS_CLASSES), device, port).ok_or_else(|| {
        let hint = "leave device.promiscuous false, and make the interface promiscuous by hand";
        Error::NoDevice(format!("port {port} of {device} has no network interface (hint: {hint})"))
    })?;
    let failed = |source| Error::Promiscuous { interface: netdev.name.clone(), source };
    make(&netdev.name).map_err(failed)
}

fn open_real(settings: &Settings) -> Result<RealDevice, Error> {
    if settings.device.name == settings.softnic.name {
        let hint = "add [[softnic.ports]] to the settings, or use --demo";
        return Err(Error::NoDevice(format!(
            "the soft NIC {} has no ports (hint: {hint})",
            settings.softnic.name
        )));
    }
    let device = Device::open(&selector(settings), None).map_err(|error| match error {
        error if no_rdma_in_kernel(&error) => Error::NoDevice(NO_RDMA.into()),
        error => Error::Device(error),
    })?;
    let warnings = check_eswitch(device.name(), settings.device.interface.as_deref())?;
    let device = match settings.device.model.as_str() {
        AUTO_DEVICE => device,
        name => device.with_model(Model::named(DeviceModel::named_or_file(name).map_err(Error::Model)?)),
    };
    Ok(RealDevice { device, warnings })
}

/// Tries the priorities of a device that policies are installed on. Commands that only read settings create
/// nothing on a device, which may be in use.
fn priority_warning(device: &mut Device, driver: &str, ports: &[u8]) -> Option<String> {
    if !control::can_try_priorities(driver) {
        return None;
    }
    match device.try_priorities(ports.first().copied().unwrap_or(1)) {
        Ok(fewer) => fewer.map(|fewer| fewer.to_string()),
        Err(untried) => Some(untried.to_string()),
    }
}

/// Returns warnings if the eswitch has consequences for this device, or refuses the device. `interface`: the
/// network interface by which the settings name it.
fn check_eswitch(device: &str, interface: Option<&str>) -> Result<Vec<String>, Error> {
    let classes = Path::new(SYSFS_CLASSES);
    let of_interface = interface.and_then(|name| eswitch::representor_warning(classes, name));
    let mut warnings: Vec<String> = of_interface.into_iter().collect();
    let Some(handle) = DevlinkHandle::of_rdma(classes, device) else { return Ok(warnings) };
    match eswitch::judge(EswitchMode::of(Some(&handle)), device, &handle, interface) {
        EswitchAdvice::Fine => {}
        EswitchAdvice::Warning(warning) => warnings.push(warning),
        EswitchAdvice::Refusal(reason) => return Err(Error::NoDevice(reason)),
    }
    Ok(warnings)
}

/// The warning about programs that share the device, as far as the kernel shows them.
fn loopback_warning(device: &str, driver: &str) -> Option<String> {
    let contexts = verbs::open_contexts(device).ok().flatten()?;
    loopback::warning(device, driver, contexts)
}

/// Warnings for a real device: an unknown model, and packets that do not reach the flows through these ports.
fn warnings(device: &str, model: &Model, ports: &[u8], program: &Program) -> Vec<String> {
    let netdevs = ports.iter().filter_map(|port| Netdev::of_port(Path::new(SYSFS_CLASSES), device, *port));
    model
        .warning(device)
        .into_iter()
        .chain(netdevs.filter_map(|netdev| netdev.reception_warning(program)))
        .collect()
}

/// Makes a soft NIC and opens it. Its wires are closed.
fn open_soft(
    name: &str,
    personality: Personality,
    ports: &[SoftNicPort],
    drive: Drive,
    flow_rate: u32,
) -> Result<(Device, Soft), Error> {
    let wires_open = Arc::new(AtomicBool::new(false));
    let (mut wires, mut configs) = (Vec::new(), Vec::new());
    for (index, port) in ports.iter().enumerate() {
        let wire = port.wire.open().map_err(|source| Error::Wire {
            nic: name.to_owned(),
            port: index + 1,
            source,
        })?;
        wires.push(wire.describe());
        let wire = Box::new(GatedWire::new(wire, &wires_open));
        configs.push(PortConfig { wire, mtu_bytes: port.mtu_bytes() });
    }
    let config = SoftNicConfig { name: name.to_owned(), personality, ports: configs, drive };
    let nic = SoftNic::create(config).map_err(|source| Error::SoftNic { nic: name.to_owned(), source })?;
    let device = Device::open(&DeviceSelector::named(name), Some(&nic)).map_err(Error::Device)?;
    let mut model = Model::imitated(personality.model());
    if flow_rate > 0 {
        nic.set_flow_rate(flow_rate);
        model.profile.flows_per_second = Some(flow_rate);
    }
    let device = device.with_model(model);
    Ok((device, Soft { name: name.into(), nic, wires, wires_open }))
}

/// A soft NIC that only sends. Its wires are open from the start: frames that arrive there are left to the
/// kernel.
fn open_other(settings: &Settings, other: &OtherSoftNic) -> Result<OtherSoft, Error> {
    // No worker polls it while nothing is sent.
    let drive = Drive::Thread { core: None };
    let (device, soft) = open_soft(&other.name, settings.softnic.personality()?, &other.ports, drive, 0)?;
    soft.wires_open.store(true, Ordering::Release);
    Ok(OtherSoft { device, soft })
}

/// Checks the wires of all soft NICs, and opens none.
pub(super) fn check_wires(settings: &Settings) -> Vec<Error> {
    let own = settings.chooses_soft().then_some((&settings.softnic.name, &settings.softnic.ports));
    let others = settings.softnic.others.iter().map(|other| (&other.name, &other.ports));
    let mut errors = Vec::new();
    for (nic, ports) in others.chain(own) {
        for (port, of_port) in (1..).zip(ports) {
            let checked = of_port.wire.check();
            errors.extend(checked.err().map(|source| Error::Wire { nic: nic.clone(), port, source }));
        }
    }
    errors
}

/// Checks that the device can be used, with all of its ports in use and its limits. Creates nothing on a real
/// device. `is_running`: a daemon has a context of it.
pub(super) fn check(settings: &Settings, is_running: bool) -> Vec<Error> {
    let mut errors = check_soft(settings);
    // They are checked on their own.
    let Ok(cores) = cores::with_spare(settings, &HostCores::of(settings)) else { return errors };
    let TargetDevice { profile, real, mtus } = match profile(settings) {
        Ok(target) => target,
        Err(error) => {
            errors.push(error);
            return errors;
        }
    };
    if let Some(RealTarget { device: RealDevice { device, .. }, .. }) = &real {
        errors.extend(check_real(device, settings, cores.len()));
        let loopback =
            loopback_warning(device.name(), &control::kernel_driver(device.name()).unwrap_or_default());
        loopback.filter(|_| !is_running).iter().for_each(|warning| tracing::warn!("{warning}"));
        if let Some(warning) = HostCores::of(settings).remote_warning(device.name(), &cores) {
            tracing::warn!("{warning}");
        }
    }
    errors.extend(settings.workers.check_frames(&profile).err().map(Error::from));
    errors.extend(settings.frame_bytes(&mtus).err().map(Error::from));
    errors
}

/// Checks that soft NICs of the settings can be made, and that frames can pass their ports in use.
fn check_soft(settings: &Settings) -> Vec<Error> {
    let nic = &settings.softnic;
    let mut errors = Vec::new();
    let own = settings.chooses_soft().then_some((&nic.name, &nic.ports));
    let others = nic.others.iter().map(|other| (&other.name, &other.ports));
    for (name, ports) in others.chain(own) {
        let personality = match nic.personality() {
            Ok(personality) => personality,
            Err(error) => return vec![error.into()],
        };
        let port = |port: &SoftNicPort| PortConfig { wire: Box::new(NullWire), mtu_bytes: port.mtu_bytes() };
        let (ports, drive) = (ports.iter().map(port).collect(), Drive::Inline);
        let config = SoftNicConfig { name: name.clone(), personality, ports, drive };
        let checked = SoftNic::check(&config);
        errors.extend(checked.err().map(|source| Error::SoftNic { nic: name.clone(), source }));
    }
    let in_use = settings.device.ports.iter().filter(|_| settings.chooses_soft());
    let is_down = |port: &&u8| {
        let port = nic.ports.get(usize::from(**port).wrapping_sub(1));
        port.is_some_and(|port| !port.wire.has_carrier())
    };
    errors.extend(in_use.filter(is_down).map(|port| {
        let (device, state) = (nic.name.clone(), PortState::Down.to_string());
        Error::Device(control::ControlError::PortDown { device, port: *port, state })
    }));
    errors
}

/// Checks the ports of a real device, and the queues for so many workers.
fn check_real(device: &Device, settings: &Settings, workers: usize) -> Vec<Error> {
    let ports = &settings.device.ports;
    let mut errors: Vec<Error> =
        ports.iter().filter_map(|port| device.check_port(*port).err()).map(Error::Device).collect();
    errors.extend(check_queues(device, workers).err());
    if settings.device.promiscuous {
        let held = ports.iter().map(|port| of_port(device.name(), *port, Promiscuous::check));
        errors.extend(held.filter_map(Result::err));
    }
    errors
}

/// Checks that the device has a receive queue for each worker.
pub(super) fn check_queues(device: &Device, workers: usize) -> Result<(), Error> {
    let queues = device.attributes().max_wq_type_rq;
    if queues > 0 && (queues as usize) < workers {
        return Err(Error::TooFewQueues { device: device.name().to_owned(), queues, workers });
    }
    Ok(())
}

/// The ports in use as stations on their links, as far as they are known before the device is opened.
pub(super) fn known_stations(settings: &Settings) -> Vec<Station> {
    let station = |port: &u8| {
        if !settings.chooses_soft() {
            return real_station(&known_name(settings), *port);
        }
        let soft = settings.softnic.ports.get(usize::from(*port).wrapping_sub(1));
        let (mac, mtu_bytes) = (soft.map(|soft| soft.wire.station()), soft.map(SoftNicPort::mtu_bytes));
        Station { port: *port, mac, mtu_bytes, interface_index: None }
    };
    settings.device.ports.iter().map(station).collect()
}

/// The MTUs of the ports in use, as [`known_stations`] knows them.
pub(crate) fn known_mtus(settings: &Settings) -> Vec<PortMtu> {
    let known = |station: Station| Some(PortMtu { port: station.port, mtu_bytes: station.mtu_bytes? });
    known_stations(settings).into_iter().filter_map(known).collect()
}

/// The name of the workers' device.
pub(super) fn known_name(settings: &Settings) -> String {
    match settings.device.name.as_str() {
        _ if settings.chooses_soft() => settings.softnic.name.clone(),
        AUTO_DEVICE => {
            list().ok().and_then(|mut listed| listed.pop()).map(|only| only.name).unwrap_or_default()
        }
        name => name.to_owned(),
    }
}

fn real_station(device: &str, port: u8) -> Station {
    match Netdev::of_port(Path::new(SYSFS_CLASSES), device, port) {
        Some(Netdev { mac, mtu_bytes, index: interface_index, .. }) => {
            Station { port, mac, mtu_bytes, interface_index }
        }
        None => Station { port, mac: None, mtu_bytes: None, interface_index: None },
    }
}

/// A device of the kernel that the settings choose.
struct RealDevice {
    device: Device,
    /// The consequences of its eswitch's mode.
    warnings: Vec<String>,
}

struct RealTarget {
    device: RealDevice,
    /// The ports whose interfaces `steerd run` would not make promiscuous.
    ports: Vec<u8>,
}

/// The device that a policy is compiled for without being installed.
pub(crate) struct TargetDevice {
    pub(crate) profile: DeviceModel,
    real: Option<RealTarget>,
    /// The MTUs of the ports in use, as far as they are known.
    pub(crate) mtus: Vec<PortMtu>,
}

impl TargetDevice {
    /// A device of this kind, which need not exist.
    pub(crate) fn of(profile: DeviceModel) -> Self {
        Self { profile, real: None, mtus: Vec::new() }
    }

    /// Warnings before this program is put on the device; none for a soft NIC.
    pub(crate) fn warnings(&self, program: &Program) -> Vec<String> {
        let Some(RealTarget { device: RealDevice { device, warnings: of_device }, ports }) = &self.real
        else {
            return Vec::new();
        };
        let of_program = warnings(device.name(), device.model(), ports, program);
        of_device.iter().cloned().chain(of_program).collect()
    }
}

/// The limits of the device in the settings, which must exist.
pub(crate) fn profile(settings: &Settings) -> Result<TargetDevice, Error> {
    if settings.chooses_soft() {
        let profile = match libmlx5::is_wanted(settings) {
            true => preloaded_model(settings)?,
            false => settings.softnic.personality()?.model().in_software(),
        };
        // As an open device is called.
        let name = format!("{} ({})", settings.softnic.name, profile.name);
        let profile = DeviceModel { name, ..profile }.on_ports(settings.device.ports.len());
        return Ok(TargetDevice { mtus: settings.soft_mtus(), ..TargetDevice::of(profile) });
    }
    let cores = cores::with_spare(settings, &HostCores::of(settings));
    let workers = cores.map_err(Error::Cores)?.len();
    let real = open_real(settings)?;
    let device = &real.device;
    let ports = if settings.device.promiscuous { Vec::new() } else { settings.device.ports.clone() };
    let mtu_of = |port: &u8| {
        let netdev = Netdev::of_port(Path::new(SYSFS_CLASSES), device.name(), *port)?;
        Some(PortMtu { port: *port, mtu_bytes: netdev.mtu_bytes? })
    };
    let mtus = settings.device.ports.iter().filter_map(mtu_of).collect();
    let profile = device.profile(workers).on_ports(settings.device.ports.len());
    Ok(TargetDevice { profile, mtus, real: Some(RealTarget { device: real, ports }) })
}

/// The limits of the device in the settings of another host.
///
/// # Errors
/// The device is not here, and the settings name no model of it.
pub(crate) fn profile_elsewhere(settings: &Settings) -> Result<TargetDevice, Error> {
    if settings.chooses_soft() {
        return Ok(TargetDevice { mtus: Vec::new(), ..profile(settings)? });
    }
    match settings.device.model.as_str() {
        AUTO_DEVICE => Err(Error::NoDevice(format!(
            "device.name = \"{}\" is a device of another host (hint: name its model by --model, or by device.model)",
            settings.device.name
        ))),
        name => {
            let profile = DeviceModel::named_or_file(name).map_err(Error::Model)?;
            Ok(TargetDevice::of(profile.on_ports(settings.device.ports.len())))
        }
    }
}

/// The model of a soft NIC below rdma-core's provider, whose receive queues are as large as the model's.
fn preloaded_model(settings: &Settings) -> Result<DeviceModel, Error> {
    let model = settings.softnic.personality()?.model();
    let max_receives = model.max_receives;
    Ok(DeviceModel { max_receives, ..model.in_software() })
}

fn selector(settings: &Settings) -> DeviceSelector {
    match settings.device.name.as_str() {
        AUTO_DEVICE => DeviceSelector::default(),
        name => DeviceSelector::named(name),
    }
}

/// The devices of libibverbs; none if the kernel has no RDMA support.
pub(crate) fn list() -> Result<Vec<DeviceSummary>, Error> {
    match Device::list(None) {
        Err(error) if no_rdma_in_kernel(&error) => Ok(Vec::new()),
        list => list.map_err(Error::Device),
    }
}

/// Reads the facts that the kernel shows of an RDMA device.
pub(crate) fn facts(device: &str) -> DeviceFacts {
    DeviceFacts::read(Path::new(SYSFS_CLASSES), device, EswitchMode::of)
}

/// The mode of the eswitch of an RDMA device.
///
/// # Errors
/// The device is on no bus, or devlink's answer is none.
pub(crate) fn eswitch_mode(device: &str) -> io::Result<EswitchMode> {
    match DevlinkHandle::of_rdma(Path::new(SYSFS_CLASSES), device) {
        Some(handle) => EswitchMode::asked(&handle),
        None => Err(io::Error::new(io::ErrorKind::NotFound, format!("{device} is on no bus"))),
    }
}

/// ibv_get_device_list(3): ENOSYS without kernel support.
fn no_rdma_in_kernel(error: &control::ControlError) -> bool {
    matches!(error, control::ControlError::List { source } if source.errno == Some(Errno::NOSYS.raw_os_error()))
}

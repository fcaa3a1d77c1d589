//! Makes a report: one part after the other. A part that fails is missing from the report, with the reason,
//! but for the probe, without which the others mean nothing.
//!
//! The parts of `steerd-probe` come before this process opens the device: below the launcher `softnic` each
//! process has the device for itself.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use device_model::DeviceModel;
use rustix::thread::{CapabilitySet, capabilities};
use verbs::{DevicePort, PortNumber, SYSFS_CLASSES};

use super::suite::ProbedDevice;
use super::target::{OpenTarget, SOFT_MTU_BYTES};
use super::{
    Completeness, FlowEvidence, HardwareReport, MissingPart, ReceiveEvidence, ReportPart, VERSION, flow_rate,
    identity, private, receive_rate, suite,
};
use crate::message::chain;
use crate::settings::Settings;

/// The port of a device that is named without an interface, and without `device.ports`.
pub(crate) const FIRST_PORT: u8 = 1;

/// The device of a report and how much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReportOptions<'o> {
    /// A device, or the network interface of one.
    pub(crate) name: &'o str,
    /// The interface, or `link:NAME`, that reaches the device's port.
    pub(crate) peer: Option<&'o str>,
    pub(crate) is_quick: bool,
}

/// Why there is no report, or a part of it is missing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReportError {
    #[error(
        "cannot run {}: {source} (hint: `cargo build --release --package conformance --bin steerd-probe`, and install it \
         beside steerd)",
        program.display()
    )]
    Probe { program: PathBuf, source: io::Error },
    #[error("steerd-probe: {0}")]
    ProbeFailed(String),
    #[error("flows need the capability CAP_NET_RAW (hint: run this as root)")]
    NotPermitted,
    #[error("{0} is a software NIC, which has a generator in place of a peer (hint: leave out --peer)")]
    NeedlessPeer(String),
    #[error(
        "no frame from the peer {peer} arrives at port {port} (hint: --peer names the interface at the other end of \
         the port's cable, or another function of the NIC)"
    )]
    UnreachedPort { peer: String, port: u8 },
    #[error("steerd-probe is of another version: {0} (hint: install both programs of one release)")]
    ProbeAnswer(String),
    #[error("the device model of steerd-probe cannot be read: {0}")]
    Model(#[source] device_model::LoadError),
    #[error("interrupted before anything was found, so there is no report")]
    Interrupted,
    #[error("there is no device {0} (hint: `steerd devices` lists what there is)")]
    NoDevice(String),
    #[error("the personality of the soft NIC: {0}")]
    Personality(String),
    #[error("the soft NIC cannot be made")]
    SoftNic(#[source] softnic_verbs::ProviderError),
    #[error("the device refuses")]
    Verbs(#[source] verbs::VerbsError),
    #[error("the peer cannot be used")]
    Peer(#[source] wire::WireError),
    #[error("the peer: {0}")]
    LinkName(String),
    #[error("no device is at the other end of the peer {0}")]
    SilentPeer(String),
    #[error("the worker cannot be made")]
    Worker(#[source] worker::Error),
    #[error("the worker does not take its program")]
    SilentWorker,
    #[error("the program of the worker cannot be compiled for this device: {0}")]
    Program(String),
}

/// The device of a report.
enum ReportSubject {
    Soft { name: String, personality: softnic::Personality, text: String },
    Real(DevicePort),
}

impl ReportSubject {
    fn of(settings: &Settings, name: &str) -> Result<Self, ReportError> {
        if name == settings.softnic.name {
            let personality = settings.softnic.personality();
            let personality = personality.map_err(|error| ReportError::Personality(chain(&error)))?;
            let text = settings.softnic.personality.clone();
            return Ok(Self::Soft { name: name.to_owned(), personality, text });
        }
        let port = settings.device.ports.first().copied().unwrap_or(FIRST_PORT);
        Ok(Self::Real(DevicePort::named(Path::new(SYSFS_CLASSES), name, PortNumber(port))))
    }

    fn probed(&self) -> ProbedDevice {
        match self {
            Self::Soft { text, .. } => ProbedDevice::Soft(text.clone()),
            Self::Real(device) => ProbedDevice::Real { name: device.device.clone(), port: device.port.0 },
        }
    }

    fn open(&self) -> Result<OpenTarget, ReportError> {
        match self {
            Self::Soft { name, personality, .. } => OpenTarget::soft(name, *personality),
            Self::Real(device) => OpenTarget::real(device),
        }
    }

    /// Checks the privilege and the peer before anything is measured.
    fn check(&self, options: ReportOptions<'_>, is_stopped: &dyn Fn() -> bool) -> Result<(), ReportError> {
        match (self, options.peer) {
            (Self::Soft { name, .. }, Some(_)) => return Err(ReportError::NeedlessPeer(name.clone())),
            // `ib_uverbs_ex_create_flow` of the kernel asks for it; a software NIC has rules of its own.
            (Self::Real(_), _) if !has_net_raw() => return Err(ReportError::NotPermitted),
            (Self::Real(_), None) => return Ok(()),
            (Self::Soft { .. }, None) | (Self::Real(_), Some(_)) => {}
        }
        progress("check of the peer");
        suite::reach(&self.probed(), options.peer, is_stopped)
    }

    fn has_peer(&self, options: ReportOptions<'_>) -> bool {
        matches!(self, Self::Soft { .. }) || options.peer.is_some()
    }
}

fn has_net_raw() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_RAW))
}

/// Makes the report of a device. Progress is shown on stderr. `is_stopped` is asked often; the report then
/// ends early, with what was found.
///
/// # Errors
/// The device cannot be probed, or its port cannot be reached.
pub(crate) fn collect(
    settings: &Settings,
    options: ReportOptions<'_>,
    is_stopped: &dyn Fn() -> bool,
) -> Result<HardwareReport, ReportError> {
    let subject = ReportSubject::of(settings, options.name)?;
    subject.check(options, is_stopped)?;
    progress("model and answers");
    let probe = suite::probe(&subject.probed(), options.is_quick, is_stopped)?;
    let model = DeviceModel::parse(Path::new("report"), &probe.model).map_err(ReportError::Model)?;
    let identity = match &subject {
        ReportSubject::Soft { name, .. } => identity::of_soft_nic(name, &model.device, SOFT_MTU_BYTES),
        ReportSubject::Real(device) => identity::of_device(device, &model.device),
    };
    let mut parts = ReportParts { missing: Vec::new(), is_stopped };
    let mut suite = None;
    if subject.has_peer(options) {
        let is_live = options.peer.is_some();
        let warning = if is_live { "; some cases take all packets of the port for a moment" } else { "" };
        progress(&format!("conformance suite{warning}"));
        let run = || suite::suite(&subject.probed(), options.peer, is_stopped).map(Some);
        suite = parts.take(ReportPart::Suite, run);
    }
    let (flows, receive) = measured(&subject, options, &model, &mut parts);
    let mut report = HardwareReport {
        version: VERSION,
        steerd: env!("CARGO_PKG_VERSION").to_owned(),
        date: model.device.date.clone(),
        completeness: match () {
            () if is_stopped() => Completeness::Interrupted,
            () if options.is_quick => Completeness::Quick,
            () => Completeness::Full,
        },
        verdict: String::new(),
        missing: parts.missing,
        identity,
        probe,
        flows,
        suite,
        receive,
    };
    redact(&mut report);
    report.verdict = report.summary();
    Ok(report)
}

/// Opens the device and measures flows and the receive rate.
fn measured(
    subject: &ReportSubject,
    options: ReportOptions<'_>,
    model: &DeviceModel,
    parts: &mut ReportParts<'_>,
) -> (Option<FlowEvidence>, Option<ReceiveEvidence>) {
    let is_stopped = parts.is_stopped;
    if is_stopped() {
        return (None, None);
    }
    if !model.can_steer() {
        parts.miss(ReportPart::Flows, "the device has no flows".to_owned());
        return (None, None);
    }
    let mut opened = None;
    let flows = parts.take(ReportPart::Flows, || {
        let target = opened.insert(subject.open()?);
        let (context, port) = (&target.context, target.port);
        let steps = &mut |step: &str| progress(&format!("flows: {step}"));
        flow_rate::measure(context, port, model.priorities, options.is_quick, steps, is_stopped).map(Some)
    });
    let Some(mut target) = opened else { return (flows, None) };
    if is_stopped() {
        return (flows, None);
    }
    let receive = parts.take(ReportPart::Receive, || {
        target.connect(options.peer)?;
        receive_rate::measure(&mut target, model, options.is_quick, &mut progress, is_stopped)
    });
    (flows, receive)
}

/// The parts that are missing so far.
struct ReportParts<'p> {
    missing: Vec<MissingPart>,
    is_stopped: &'p dyn Fn() -> bool,
}

impl ReportParts<'_> {
    fn miss(&mut self, part: ReportPart, reason: String) {
        self.missing.push(MissingPart { part, reason });
    }

    /// Runs what finds a part; a failure is noted, unless it is the end of the report.
    fn take<T>(
        &mut self,
        part: ReportPart,
        find: impl FnOnce() -> Result<Option<T>, ReportError>,
    ) -> Option<T> {
        match find() {
            Ok(found) => found,
            Err(_) if (self.is_stopped)() => None,
            Err(error) => {
                let reason = chain(&error);
                progress(&format!("not measured: {reason}"));
                self.miss(part, reason);
                None
            }
        }
    }
}

fn progress(step: &str) {
    let _ = writeln!(io::stderr(), "report: {step}");
}

/// Replaces what identifies the host or its network in the free texts: the name of the device, the reasons,
/// and the answers, which have the messages of the kernel. All other texts are of fixed vocabularies.
fn redact(report: &mut HardwareReport) {
    let host = private::host_name();
    let reasons = report.missing.iter_mut().map(|missing| &mut missing.reason);
    let answers = report.probe.answers.iter_mut();
    let differences = report.suite.iter_mut().flat_map(|suite| &mut suite.differences);
    let seen = answers.chain(differences).map(|row| &mut row.seen);
    for text in reasons.chain(seen).chain([&mut report.identity.device]) {
        *text = private::redact(text, &host);
    }
}

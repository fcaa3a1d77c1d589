//! Errors of the daemon and of the devices that it opens.
//!
//! Every message is one line with a remedy. The library crates word their own errors.

use std::io;

use super::device_events::final_failure;
use super::{libmlx5, sinks};
use control::ControlError;
use worker::ReceiveQueueHealth;

use crate::message::{NoSignals, NoThread, chain, lacking};
use crate::policy_file::PolicyErrors;
use crate::settings::{LengthError, Problems, TooManyFrames};
use crate::terminal::output::OutputError;
use crate::{api, telemetry};

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Settings(#[from] Problems),
    #[error(transparent)]
    Policy(#[from] PolicyErrors),
    /// The policy was not read, but the text may be right: the system has refused to read a file.
    #[error("{file}: a file of the policy cannot be read now")]
    PolicyUnreadable { file: String },
    #[error("{}", chain(.0))]
    Carving(#[from] super::carving::CarvingError),
    #[error(
        "--filter-model is for a policy with groups of queues, or for nic_filters = \"drop\" (hint: give the groups \
         `queues`, add --nic-filters drop, or leave the option out)"
    )]
    NoQueues,
    #[error(
        "--nic-filters is for a policy with workers, and this one carves queues: all of its rules are filters of the NIC \
         (hint: leave the option out)"
    )]
    QueuesAndDrops,
    #[error("port {port}: nic_filters = \"drop\": {}", chain(source))]
    NicDrops { port: u8, source: super::carving::CarvingError },
    #[error(
        "port {port}: nic_filters = \"drop\": the filters of {interface} (driver {driver}, filter model `{model}`) do not \
         drop (hint: `steerd devices --probe-filters {interface}` finds what they do, for filter_model; else nic_filters = \
         \"off\")"
    )]
    NoNicDrops { port: u8, interface: String, driver: String, model: String },
    #[error("port {port}: filter_model: {}", chain(source))]
    FilterModel { port: u8, source: nic_filters::ModelError },
    #[error("no device: {0}")]
    NoDevice(String),
    #[error("device.model: {}", chain(.0))]
    Model(device_model::LoadError),
    #[error("softnic.personality: {0}")]
    Personality(#[from] softnic::UnknownPersonality),
    #[error("soft NIC {nic}: port {port}: {}", chain(source))]
    Wire { nic: String, port: usize, source: wire::WireError },
    #[error(
        "port {port}: link `{link}`: end `{end}` is held by {holder}, which has not answered within {seconds} s \
         (hint: it hangs or has another version: end it, or use another link)"
    )]
    SilentPeer { port: u8, link: String, end: char, holder: String, seconds: u64 },
    #[error("device.promiscuous: {interface}: {}", chain(source))]
    Promiscuous { interface: String, source: wire::WireError },
    #[error("soft NIC {nic}: {}", chain(source))]
    SoftNic { nic: String, source: softnic_verbs::ProviderError },
    #[error("softnic.provider = \"mlx5\": {0}")]
    LibMlx5(libmlx5::Error),
    #[error("{}", chain(.0))]
    Device(control::ControlError),
    #[error(
        "device {device} has {queues} receive queues, {workers} workers need one each (hint: set workers.cores)"
    )]
    TooFewQueues { device: String, queues: u32, workers: usize },
    #[error(transparent)]
    Frames(#[from] TooManyFrames),
    #[error(transparent)]
    Lengths(#[from] LengthError),
    #[error("the policy cannot be installed on the device: {}", chain(.0))]
    Install(ControlError),
    #[error("{}", chain(.0))]
    Sink(sinks::Error),
    #[error("{}", chain(.0))]
    Worker(worker::Error),
    /// The message begins with the setting.
    #[error("{0}")]
    Cores(String),
    #[error(transparent)]
    Http(#[from] telemetry::http::Error),
    #[error(transparent)]
    Api(#[from] api::Error),
    #[error("worker {0} exited unexpectedly")]
    WorkerDied(u32),
    #[error("the thread of the dataplane exited unexpectedly")]
    DataplaneDied,
    #[error("{0}")]
    AccountingMismatch(String),
    #[error(
        "the device {0} has failed for good (hint: the kernel log has the reason: journalctl -k; a new start succeeds once the \
         driver has reset it)"
    )]
    DeviceFailed(String),
    #[error(
        "the device {0} is gone: it was removed, or its driver was reset or unloaded (hint: see the kernel log: journalctl -k; \
         a new start succeeds once it is back)"
    )]
    DeviceGone(String),
    /// The event.
    #[error(
        "a completion queue has lost completions and cannot be used any more: {0} (hint: it has room for all that can \
         complete: please report this with the kernel log, journalctl -k)"
    )]
    CompletionQueue(String),
    #[error(
        "{} (hint: the kernel log may have the cause: journalctl -k; a cause that stays is in the NIC or its firmware)",
        final_failure(*worker, *health)
    )]
    ReceiveQueue { worker: u32, health: ReceiveQueueHealth },
    #[error("the engine of {0} exited unexpectedly")]
    EngineDied(String),
    #[error("a server exited unexpectedly: the daemon could no longer be monitored")]
    HttpEnded,
    #[error("worker {0} can no longer poll its completion queue")]
    PollFails(u32),
    #[error("steerd is ending")]
    Stopping,
    /// The parts that still run.
    #[error("did not end in time: {0} (the process ends without waiting any longer)")]
    StillRunning(String),
    #[error("policy.watch: the files of the policy cannot be watched: {}{}", .0, lacking(.0))]
    Watch(io::Error),
    #[error("the log cannot be started: {}{}", .0, lacking(.0))]
    Log(io::Error),
    #[error(transparent)]
    Thread(#[from] NoThread),
    #[error(transparent)]
    Signals(#[from] NoSignals),
    #[error(transparent)]
    Output(#[from] OutputError),
}

impl Error {
    /// Whether a program finds no free priorities, or no room at them, beside the one that is installed.
    pub(crate) fn is_for_room(&self) -> bool {
        matches!(self, Self::Install(ControlError::NoRoom { .. }))
    }

    /// Whether there is no plan to a program, so that another one with the same rules may be installed.
    pub(crate) fn is_of_plan(&self) -> bool {
        self.is_for_room() || matches!(self, Self::Install(ControlError::Inconsistent { .. }))
    }
}

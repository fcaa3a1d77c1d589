//! Errors of commands and of the daemon, and their exit codes (listed in `steerd --help`).
//!
//! Every message is one line with a remedy. The library crates word their own errors.

use std::io;
use std::path::PathBuf;

use crate::message::{Hinted, chain, lacking};
use crate::policy_file::TRAFFIC_HINT;
use crate::settings::{LengthError, Problems, TooManyFrames};
use crate::terminal::output::OutputError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{0}")]
    Settings(Problems),
    /// The diagnostics have been printed already.
    #[error("{file}: {errors} in the policy")]
    Policy { file: String, errors: String },
    /// The policy was not read, but the text may be right: the system has refused to read a file.
    #[error("{file}: a file of the policy cannot be read now")]
    PolicyUnreadable { file: String },
    /// A problem that `--deny` names was found, or the device cannot run the policy.
    #[error("{file}: {found}")]
    Denied { file: String, found: String },
    /// The policies cannot be compared; the exit code is diff(1)'s.
    #[error("{0}")]
    Compare(Box<Error>),
    #[error("{0}")]
    NotDecided(String),
    #[error("import: {}: {message}", path.display())]
    Import { path: PathBuf, message: String },
    #[error("explain: {0}")]
    Packet(String),
    #[error("{}: {message}", path.display())]
    Capture { path: PathBuf, message: String },
    /// The capture that the settings name.
    #[error("setting policy.traffic: {}", Hinted::of(&chain(.0)).or(TRAFFIC_HINT))]
    Traffic(Box<Error>),
    #[error("no device: {0}")]
    NoDevice(String),
    /// The probe is a program of its own.
    #[error(
        "cannot run {}: {source} (hint: `cargo build --release --package conformance --bin steerd-probe`, and install it \
         beside steerd)",
        program.display()
    )]
    Probe { program: PathBuf, source: io::Error },
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
    SoftNic { nic: String, source: softnic::Error },
    #[error("softnic.provider = \"mlx5\": {0}")]
    LibMlx5(crate::daemon::libmlx5::Error),
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
    Install(control::ControlError),
    #[error("{}", chain(.0))]
    Sink(crate::daemon::sinks::Error),
    #[error("{}", chain(.0))]
    Worker(worker::Error),
    /// The message begins with the setting.
    #[error("{0}")]
    Cores(String),
    #[error(transparent)]
    Http(#[from] crate::telemetry::http::Error),
    #[error(transparent)]
    Api(#[from] crate::api::Error),
    #[error(transparent)]
    Client(#[from] crate::api::client::Error),
    /// The diagnostics have been printed already.
    #[error("{policy} is refused, the previous policy stays in force: {why}")]
    ReloadRefused { policy: String, why: String },
    #[error("worker {0} exited unexpectedly")]
    WorkerDied(u32),
    #[error("{0}")]
    AccountingMismatch(String),
    #[error("the device failed: {0} (hint: see the kernel log: journalctl -k)")]
    DeviceFailed(String),
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
    #[error("the log cannot be started: {}{}", .0, lacking(.0))]
    Log(io::Error),
    #[error("no thread can be started: {}{}", .0, lacking(.0))]
    Thread(io::Error),
    #[error("signals cannot be received: {}{}", .0, lacking(.0))]
    Signals(io::Error),
    #[error("not healthy: {0}")]
    Unhealthy(String),
    #[error(transparent)]
    Output(#[from] OutputError),
}

impl Error {
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Policy { .. }
            | Self::Denied { .. }
            | Self::Import { .. }
            | Self::Unhealthy(_)
            | Self::ReloadRefused { .. }
            | Self::Packet(_)
            | Self::Capture { .. }
            | Self::Traffic(_) => 1,
            Self::Compare(_) | Self::NotDecided(_) => 2,
            // The text of the file may be right.
            Self::Settings(problems) if problems.are_unreadable() => 9,
            Self::Settings(_) | Self::Model(_) | Self::Personality(_) | Self::Frames(_) => 3,
            // The MTUs are those of the host now: before the network is configured they may be others.
            Self::Lengths(_)
            | Self::NoDevice(_)
            | Self::Probe { .. }
            | Self::Wire { .. }
            | Self::Promiscuous { .. }
            | Self::SoftNic { .. }
            | Self::LibMlx5(_)
            | Self::SilentPeer { .. }
            | Self::Device(_)
            | Self::TooFewQueues { .. }
            | Self::Sink(_)
            | Self::Install(_) => 4,
            Self::Worker(_) | Self::Cores(_) => 5,
            Self::Http(_) | Self::Api(_) => 6,
            Self::Client(_) => 8,
            Self::PolicyUnreadable { .. } => 9,
            Self::WorkerDied(_)
            | Self::AccountingMismatch(_)
            | Self::DeviceFailed(_)
            | Self::EngineDied(_)
            | Self::HttpEnded
            | Self::PollFails(_)
            | Self::Stopping
            | Self::StillRunning(_)
            | Self::Log(_)
            | Self::Thread(_)
            | Self::Signals(_)
            | Self::Output(_) => 7,
        }
    }
}

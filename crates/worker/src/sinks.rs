//! The kinds of sinks, a module each, all of one shape: options come from the program, [`open`] makes one
//! endpoint for each worker, with its counters, and a [`Hub`] that owns what they share: threads, files,
//! sockets, interfaces.
//!
//! Opening allocates all memory. An endpoint runs on its worker's thread under the rules of [`Sink`]; a hub
//! never runs there.

mod app;
pub mod capture;
mod clock;
mod count;
mod forward;
pub mod handoff;
mod kernel;
mod outgoing;
mod port;
pub mod recorder;
mod status;
pub mod trace;

use std::path::Path;
use std::sync::Arc;

use packet::MacAddr;
use program::{Program, SinkKind};
use verbs::{Context, Domain, RegisteredFrames};

pub(crate) use self::count::cache_bytes;
pub use self::count::{ExportStatistics, PacketSizes, TopFlow};
pub use self::kernel::TapError;
pub use self::recorder::RecorderReader;
pub use self::status::{SinkStatus, StatusValue};
use crate::sink::{FrameBudget, Sink, SinkCounters, SinkMap};
use recorder::RecorderError;

/// The device and the workers that sinks are opened for.
pub struct Environment<'e> {
    /// The device.
    pub context: &'e Arc<Context>,
    /// The domain of each worker, for queues that only its thread uses.
    pub domains: &'e [Domain],
    /// The budget of each worker, for sinks that take frames.
    pub budgets: &'e [Arc<FrameBudget>],
    /// The device's ports that the daemon uses, from 1.
    pub ports: &'e [u8],
    /// The addresses and MTUs of these ports, as far as they are known.
    pub stations: &'e [Station],
    /// For sinks that send by another device; `None`: none can.
    pub others: Option<Others<'e>>,
}

/// Devices other than the one that the workers receive from.
#[derive(Clone, Copy)]
pub struct Others<'e> {
    /// The memory of each worker's frames.
    pub frames: &'e [RegisteredFrames],
    /// Opens a device by its name, or by that of a network interface.
    pub open: &'e dyn Fn(&str) -> Result<OtherDevice, Failure>,
}

/// A device that a sink sends by.
pub struct OtherDevice {
    /// The open device.
    pub context: Arc<Context>,
    /// The port that the name stands for; `None`: it is the name of a device.
    pub port: Option<u8>,
}

/// Why something that a sink needs cannot be had.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A port as a station on its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Station {
    /// The port.
    pub port: u8,
    /// The address of the port, if it is known.
    pub mac: Option<MacAddr>,
    /// The MTU of the port in bytes, if it is known.
    pub mtu_bytes: Option<u32>,
    /// The index of the network interface of the port, if it has one.
    pub interface_index: Option<u32>,
}

/// The ports that the daemon uses, at some moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ports<'p> {
    /// The ports whose link is down.
    pub down: &'p [u8],
    /// The addresses and MTUs of the ports, as far as they are known.
    pub stations: &'p [Station],
}

impl Environment<'_> {
    /// The number of workers.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.domains.len()
    }
}

/// The part of a sink that is not on the workers' threads. Dropping it ends its threads and closes its files,
/// after everything that endpoints have passed to it is written or counted.
pub trait Hub: Send + Sync {
    /// Called before packets that a program delivers, with sinks in the places of this map, arrive at the
    /// endpoints.
    fn announce(&self, _map: &Arc<SinkMap>, _program: &Arc<Program>) {}

    /// Called when packets of programs other than this one can no longer arrive at the endpoints.
    fn release_others(&self, _map: &Arc<SinkMap>) {}

    /// The SHA-256 of the text of the policy that a program of this generation is of, in hexadecimal; called
    /// before [`Hub::announce`], if the daemon knows it.
    fn digest(&self, _generation: u64, _sha256: &str) {}

    /// Called about once a second, with the ports as they are.
    fn tick(&self, _ports: &Ports<'_>) {}

    /// The state of the sink for operators: files, clients, errors.
    fn status(&self) -> SinkStatus {
        SinkStatus::default()
    }

    /// How many of its files were deleted to make room for others, if it writes files.
    fn deleted_files(&self) -> Option<u64> {
        None
    }

    /// The packets that it keeps, if it is the recorder.
    fn recorder(&self) -> Option<RecorderReader> {
        None
    }

    /// The export of its flows so far, if it exports them.
    fn export(&self) -> Option<ExportStatistics> {
        None
    }

    /// The packets by size, if the sink counts them.
    fn packet_sizes(&self) -> Option<PacketSizes> {
        None
    }

    /// The flows with most packets since it was opened, those with most first, if it counts them. May take
    /// milliseconds for thousands of flows, and does not stop workers.
    fn top_flows(&self) -> Option<Vec<TopFlow>> {
        None
    }
}

/// An open sink.
pub struct Opened {
    /// The part that the endpoints share.
    pub hub: Box<dyn Hub>,
    /// One for each worker, in order.
    pub endpoints: Vec<Box<dyn Sink>>,
    /// The counters of each endpoint.
    pub counters: Vec<Arc<SinkCounters>>,
    /// The counters of each thread that sends by a port for others, the host or clients. Empty if no thread
    /// does.
    pub transmit: Vec<Arc<SinkCounters>>,
}

/// Why a sink cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SinkError {
    /// The socket of a sink of kind `app` cannot be had.
    #[error(
        "sink `{sink}`: its socket cannot be used (hint: choose another `socket`, or a folder that exists)"
    )]
    Listen {
        /// The name of the sink.
        sink: String,
        /// The path and the reason.
        #[source]
        source: shm::ListenError,
    },
    /// A sink of kind `app` lacks a resource of the system.
    #[error("sink `{sink}`: {operation} failed")]
    App {
        /// The name of the sink.
        sink: String,
        /// The operation that failed.
        operation: &'static str,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
    /// Flows of a sink of kind `count` cannot be exported, for lack of a resource of the system.
    #[error("sink `{sink}`: the export of flows cannot be started")]
    Export {
        /// The name of the sink.
        sink: String,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
    /// The recorder cannot be had.
    #[error(transparent)]
    Recorder(#[from] RecorderError),
    /// A capture cannot be written.
    #[error(
        "sink `{sink}`: cannot write captures to {}: {source} (hint: create the folder and let the user of the \
         daemon write to it)",
        path.display()
    )]
    Capture {
        /// The name of the sink.
        sink: String,
        /// The folder or pattern of its options.
        path: std::path::PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A capture of an earlier time is in the way of the next one.
    #[error(
        "sink `{sink}`: {} cannot be deleted to keep within `disk_mb`: {source} (hint: delete it, or let the user of the \
         daemon delete files there)",
        path.display()
    )]
    CaptureRoom {
        /// The name of the sink.
        sink: String,
        /// The file.
        path: std::path::PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The daemon does not use the port that packets are to leave by.
    #[error(
        "sink `{sink}`: port {port} is not one of the device's ports in use, {ports} (hint: set `port` to one of them, \
         or add it to `ports` in [device] of the settings; for a port of another device set `device`)"
    )]
    UnknownPort {
        /// The name of the sink.
        sink: String,
        /// The port.
        port: u8,
        /// The ports in use.
        ports: String,
    },
    /// The other device that packets are to leave by cannot be used.
    #[error("sink `{sink}`: packets cannot leave by the device `{device}`")]
    OtherDevice {
        /// The name of the sink.
        sink: String,
        /// The device.
        device: String,
        /// The failure.
        #[source]
        source: Failure,
    },
    /// There are several ports and the sink names none.
    #[error(
        "sink `{sink}`: the device has the ports {ports} (hint: set `port` to the one that packets leave by)"
    )]
    NoPort {
        /// The name of the sink.
        sink: String,
        /// The ports in use.
        ports: String,
    },
    /// The device refuses to send.
    #[error("sink `{sink}`: packets cannot be sent by port {port}: {source}")]
    Send {
        /// The name of the sink.
        sink: String,
        /// The port.
        port: u8,
        /// The refusal.
        #[source]
        source: Box<verbs::VerbsError>,
    },
    /// The packets of clients of a sink of kind `app` cannot be sent.
    #[error("sink `{sink}`: what its clients send cannot be sent by port {port}")]
    Transmit {
        /// The name of the sink.
        sink: String,
        /// The port.
        port: u8,
        /// The failure.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The interface of a sink of kind `kernel` cannot be used.
    #[error("sink `{sink}`")]
    Kernel {
        /// The name of the sink.
        sink: String,
        /// Why.
        #[source]
        source: TapError,
    },
}

/// The place of sinks that are checked and not opened.
#[derive(Clone, Copy)]
pub struct CheckedPlace<'e> {
    /// The name of the workers' device.
    pub device: &'e str,
    /// The device's ports that the daemon would use, from 1.
    pub ports: &'e [u8],
    /// The addresses and MTUs of these ports, as far as they are known.
    pub stations: &'e [Station],
    /// The folder of the daemon's state, in which it makes the folders of captures.
    pub state: Option<&'e Path>,
    /// The ports of another device, by its name or by that of a network interface.
    pub other: &'e dyn Fn(&str) -> Result<OtherPorts, Failure>,
}

/// The ports of a device that a sink sends by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherPorts {
    /// The number of its ports, which count from 1.
    pub count: u8,
    /// The port that the name stands for; `None`: it is the name of a device.
    pub named: Option<u8>,
}

/// Checks that a sink can be opened, and changes nothing. What is to be known is logged as a warning, as when
/// it is opened. What only a device or the kernel answers to the opening itself is not found.
///
/// # Errors
/// The errors of [`open`].
pub fn check(sink: &program::SinkSpec, place: &CheckedPlace<'_>) -> Result<(), SinkError> {
    let name = &sink.name;
    match &sink.kind {
        SinkKind::Count(options) => {
            count::check(name, options);
            Ok(())
        }
        SinkKind::App(options) => app::check(name, options, place),
        SinkKind::Capture(options) => capture::check(name, options, place.state),
        SinkKind::Forward(options) => forward::check_port(name, options, place),
        SinkKind::Kernel(options) => {
            kernel::check(options, place).map_err(|source| SinkError::Kernel { sink: name.clone(), source })
        }
    }
}

/// Opens a sink.
///
/// # Errors
/// What it needs cannot be had; the message names the sink and the remedy. Nothing stays open.
pub fn open(sink: &program::SinkSpec, environment: &Environment<'_>) -> Result<Opened, SinkError> {
    match &sink.kind {
        SinkKind::Count(options) => count::open(&sink.name, options, environment),
        SinkKind::App(options) => app::open(&sink.name, options, environment),
        SinkKind::Capture(options) => capture::open(
            &sink.name,
            options,
            capture::Origin::new(environment.context),
            environment.workers(),
        ),
        SinkKind::Forward(options) => forward::open(&sink.name, options, environment),
        SinkKind::Kernel(options) => kernel::open(&sink.name, options, environment)
            .map_err(|source| SinkError::Kernel { sink: sink.name.clone(), source }),
    }
}

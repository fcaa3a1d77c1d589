//! Where delivered packets go: the sinks of a policy with their options, as plain data. `policy` reads them, `worker`
//! opens them.

use std::path::PathBuf;

use packet::MacAddr;
use serde::{Serialize, Serializer};

/// The most sinks of one policy. A worker has a place for those of the old and of the new program.
pub const MAX_SINKS: usize = 32;

/// The most flows that a sink of kind `count` can count one by one, on each worker.
pub const MAX_TOP_FLOWS: u32 = 1 << 16;

/// A sink: a place where packets go that a worker delivers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sink {
    /// The name in the policy.
    pub name: String,
    /// Its kind and options.
    #[serde(flatten)]
    pub kind: SinkKind,
}

/// The kinds of sinks with their options.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum SinkKind {
    /// Packets are counted only.
    Count(CountSink),
    /// Packets go to the host's network stack through a TAP interface.
    Kernel(KernelSink),
    /// Packets are written to pcapng files.
    Capture(CaptureSink),
    /// Packets go to local processes through shared memory.
    App(AppSink),
    /// Packets leave by a port of the device.
    Forward(ForwardSink),
}

impl SinkKind {
    /// The word in policies and metrics.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Count(_) => "count",
            Self::Kernel(_) => "kernel",
            Self::Capture(_) => "capture",
            Self::App(_) => "app",
            Self::Forward(_) => "forward",
        }
    }
}

/// Options of the kind `count`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CountSink {
    /// The number of flows that each worker counts one by one, at most [`MAX_TOP_FLOWS`]; 0: none.
    pub top_flows: u32,
}

/// Options of the kind `kernel`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KernelSink {
    /// The name of the TAP interface.
    pub interface: String,
}

/// Options of the kind `capture`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CaptureSink {
    /// The folder of the files.
    pub folder: PathBuf,
}

/// Options of the kind `app`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AppSink {
    /// The unix socket that clients connect to.
    pub socket: PathBuf,
}

/// Options of the kind `forward`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ForwardSink {
    /// The port of the device, from 1.
    pub port: u8,
    /// The new source address.
    #[serde(serialize_with = "as_text", skip_serializing_if = "Option::is_none")]
    pub src_mac: Option<MacAddr>,
    /// The new destination address.
    #[serde(serialize_with = "as_text", skip_serializing_if = "Option::is_none")]
    pub dst_mac: Option<MacAddr>,
}

#[allow(clippy::ref_option)] // the form that serde calls
fn as_text<S: Serializer>(address: &Option<MacAddr>, serializer: S) -> Result<S::Ok, S::Error> {
    match address {
        Some(address) => serializer.collect_str(address),
        None => serializer.serialize_none(),
    }
}

//! Where delivered packets go: the sinks of a policy with their options, as plain data. `policy` reads them,
//! `worker` opens them.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use packet::MacAddr;
use serde::{Serialize, Serializer};

use crate::flow_export::FlowExport;

/// The most sinks of one policy. A worker has a place for those of the old and of the new program.
pub const MAX_SINKS: usize = 32;

/// The most flows that a sink of kind `count` can count one by one, on each worker.
pub const MAX_TOP_FLOWS: u32 = 1 << 16;

/// A sink: a place where packets go that a worker delivers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SinkSpec {
    /// The name in the policy.
    pub name: String,
    /// The kind and the options of the sink.
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
    /// Packets leave by a port of the device, or of another one.
    Forward(ForwardSink),
}

impl SinkKind {
    /// The words of all kinds.
    pub const NAMES: [&'static str; 5] = ["count", "kernel", "capture", "app", "forward"];

    /// The word in policies and metrics, one of [`SinkKind::NAMES`].
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
    /// The export of all flows; `None`: they are not exported.
    #[serde(flatten)]
    pub export: Option<FlowExport>,
}

/// Options of the kind `kernel`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KernelSink {
    /// The name of the TAP interface.
    pub interface: String,
    /// The address that it gets.
    pub mac: TapMac,
    /// The MTU in bytes; `None`: that of the port.
    pub mtu: Option<u16>,
    /// Whether what the host sends by the interface is sent by the port.
    pub transmit: bool,
    /// The port whose address and MTU it gets and by which it sends; `None`: the first in use.
    pub port: Option<u8>,
    /// The ring from each worker to the sink's thread.
    pub ring_bytes: u32,
}

impl KernelSink {
    /// The length of an interface's name is less than this (`IFNAMSIZ`, linux/if.h).
    pub const NAME_BYTES: usize = 16;
    /// The MTUs of TAP interfaces (drivers/net/tun.c: `MIN_MTU`, and `MAX_MTU` without an Ethernet header).
    pub const MTU: RangeInclusive<u16> = 68..=65521;
    /// Sizes of the ring from a worker.
    pub const RING_BYTES: RangeInclusive<u32> = 1 << 17..=1 << 30;

    /// The options of a policy that names only the interface.
    #[must_use]
    pub fn new(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            mac: TapMac::Port,
            mtu: None,
            transmit: true,
            port: None,
            ring_bytes: 1 << 20,
        }
    }
}

/// The address of a TAP interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub enum TapMac {
    /// The address of the port, so that packets to the port are the host's.
    Port,
    /// The one that it has.
    Keep,
    /// This one.
    Address(MacAddr),
}

impl From<TapMac> for String {
    fn from(mac: TapMac) -> Self {
        match mac {
            TapMac::Port => "port".to_owned(),
            TapMac::Keep => "keep".to_owned(),
            TapMac::Address(address) => address.to_string(),
        }
    }
}

/// Options of the kind `capture`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CaptureSink {
    /// A folder that exists, or a file name pattern that contains `{time}`.
    pub path: PathBuf,
    /// The most octets of a packet that are written.
    pub snap_bytes: u32,
    /// One of this many packets is written.
    pub one_in: u32,
    /// The number of packets of each flow that are written; 0: all.
    pub first_of_flow: u32,
    /// The length at which the next file is begun.
    pub file_bytes: u64,
    /// The age in seconds at which the next file is begun; 0: none.
    pub file_seconds: u32,
    /// The most octets of all files together; at least twice `file_bytes`. The oldest file is deleted for a
    /// new one.
    pub disk_bytes: u64,
    /// The size of each worker's ring.
    pub ring_bytes: u32,
}

impl Default for CaptureSink {
    /// The current folder, whole packets, and 10 files of 100 MB.
    fn default() -> Self {
        Self {
            path: PathBuf::from("."),
            snap_bytes: Self::SNAP_BYTES_MAX,
            one_in: 1,
            first_of_flow: 0,
            file_bytes: 100_000_000,
            file_seconds: 0,
            disk_bytes: 1_000_000_000,
            ring_bytes: 4 << 20,
        }
    }
}

impl CaptureSink {
    /// The largest snap length: more than the longest frame.
    pub const SNAP_BYTES_MAX: u32 = 1 << 17;
    /// The unit of the limits of files in policies.
    pub const MB: u64 = 1_000_000;
    /// The length of a file, in MB.
    pub const FILE_MB: RangeInclusive<u32> = 1..=1_000_000;
    /// The room of all files, in MB: two of the smallest to all of the largest disks.
    pub const DISK_MB: RangeInclusive<u32> = 2..=1_000_000_000;
    /// The size of a worker's ring.
    pub const RING_BYTES: RangeInclusive<u32> = 1 << 16..=1 << 30;
}

/// The most clients of a sink of kind `app`.
pub const APP_CLIENTS_MAX: u16 = 64;
/// The most rings of one client in each direction.
pub const APP_RINGS_MAX: u16 = 64;
/// The sizes that a ring may have.
pub const APP_RING_SIZES: std::ops::RangeInclusive<u32> = 2..=16_384;
/// The least and the most shared memory that a client may have, in MiB.
pub const APP_CLIENT_MIB: std::ops::RangeInclusive<u32> = 1..=4096;

/// Options of the kind `app`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AppSink {
    /// The unix socket that clients connect to.
    pub socket: PathBuf,
    /// The permissions of its file.
    pub socket_mode: u32,
    /// Which packets a client gets.
    pub mode: AppMode,
    /// The most clients.
    pub clients: u16,
    /// Users that may connect, beside root and the user of the daemon.
    pub uids: Vec<u32>,
    /// Groups whose members may connect.
    pub gids: Vec<u32>,
    /// The most rings of a client in each direction.
    pub rings: u16,
    /// The most descriptors in a ring, a power of two.
    pub ring_size: u32,
    /// The most shared memory of one client, in MiB.
    pub client_mib: u32,
    /// Whether what clients send is sent by the port.
    pub transmit: bool,
    /// The port that it is sent by, from 1; `None` for the only port of a device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u8>,
}

/// How the clients of a sink of kind `app` divide its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AppMode {
    /// Each client gets every packet.
    Copy,
    /// Each client gets whole flows.
    Share,
}

impl AppSink {
    /// A sink with this socket and the defaults of the other options.
    #[must_use]
    pub fn new(socket: PathBuf) -> Self {
        Self {
            socket,
            socket_mode: 0o600,
            mode: AppMode::Copy,
            clients: 8,
            uids: Vec::new(),
            gids: Vec::new(),
            rings: 16,
            ring_size: 4096,
            client_mib: 256,
            transmit: false,
            port: None,
        }
    }
}

/// Options of the kind `forward`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ForwardSink {
    /// The device that packets leave by; `None` for the one that they are received by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The port of the device, from 1; `None` for the only port of a device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u8>,
    /// The treatment of the headers apart from the following.
    pub mode: ForwardMode,
    /// Source and destination address are exchanged, before the following are set.
    pub swap_macs: bool,
    /// The new source address.
    #[serde(serialize_with = "as_text", skip_serializing_if = "Option::is_none")]
    pub src_mac: Option<MacAddr>,
    /// The new destination address.
    #[serde(serialize_with = "as_text", skip_serializing_if = "Option::is_none")]
    pub dst_mac: Option<MacAddr>,
    /// The treatment of the VLAN tags.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<VlanChange>,
}

/// The treatment of packets by a sink of kind `forward`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ForwardMode {
    /// Sends them as they are.
    #[default]
    Forward,
    /// Sends them back: the addresses of Ethernet and IP and the ports of TCP and UDP are exchanged, and echo
    /// requests become replies.
    Reflect,
}

/// A change of a packet's VLAN tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum VlanChange {
    /// The outer tag gets this identifier; a packet without a tag gets one.
    Set(u16),
    /// A tag with this identifier becomes the outer one.
    Push(u16),
    /// The outer tag is removed.
    Pop,
}

#[allow(clippy::ref_option)] // the form that serde calls
fn as_text<S: Serializer>(address: &Option<MacAddr>, serializer: S) -> Result<S::Ok, S::Error> {
    match address {
        Some(address) => serializer.collect_str(address),
        None => serializer.serialize_none(),
    }
}

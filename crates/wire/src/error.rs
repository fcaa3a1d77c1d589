//! What can go wrong with a wire: opening one (for the operator), sending a frame (for the engine's
//! counters).
//!
//! Every [`WireError`] names the file or the interface, the place in it, and what to do. Receiving has no
//! error: a wire that can no longer receive shows it through its state and its losses.

use std::io;
use std::path::PathBuf;

use crate::ETHERNET_BYTES;
use crate::link_peer::LinkPeer;

/// Why a wire could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// A traffic description that cannot be turned into frames.
    #[error("generator: flow `{flow}`: {problem}")]
    Traffic {
        /// The name of the flow in the settings, or its position.
        flow: String,
        /// The problem, and what is accepted.
        problem: String,
    },
    /// The described traffic as a whole is beyond a limit.
    #[error("generator: {problem}")]
    Generator {
        /// The problem and the remedy.
        problem: String,
    },
    /// A capture could not be read.
    #[error("cannot read {}: {source}", path.display())]
    ReadCapture {
        /// The file or folder.
        path: PathBuf,
        /// The operating system's answer.
        #[source]
        source: io::Error,
    },
    /// A folder without a capture in it.
    #[error("{} holds no capture: put *.pcap or *.pcapng files there", path.display())]
    NoCapture {
        /// The folder.
        path: PathBuf,
    },
    /// A file that is not a capture.
    #[error("{} is not a pcap or pcapng file: {problem}", path.display())]
    NotACapture {
        /// The file.
        path: PathBuf,
        /// The problem that the reader found.
        problem: String,
    },
    /// A capture that breaks off or is damaged. Nothing of it is used.
    #[error("{} is damaged at packet {packet}: {problem}; {}", path.display(), salvage(*packet))]
    DamagedCapture {
        /// The file.
        path: PathBuf,
        /// The number of the packet that could not be read, counted from 1.
        packet: u64,
        /// The problem that the reader found.
        problem: String,
    },
    /// A capture of something else than Ethernet.
    #[error("{} holds link type {link_type}; only Ethernet (1) can be replayed", path.display())]
    LinkType {
        /// The file.
        path: PathBuf,
        /// Number and name.
        link_type: String,
    },
    /// A folder of captures with one that cannot be replayed.
    #[error(
        "{problem}; nothing of the folder {} is replayed: repair this file, or move it out of the folder",
        folder.display()
    )]
    InFolder {
        /// The folder.
        folder: PathBuf,
        /// The file and its problem.
        problem: Box<WireError>,
    },
    /// The captures together are beyond a limit.
    #[error("{}: {problem}", path.display())]
    CaptureLimit {
        /// The file that went over the limit.
        path: PathBuf,
        /// Which limit, and what to do.
        problem: String,
    },
    /// A setting of a capture wire that makes no sense.
    #[error("capture {}: {problem}", path.display())]
    CaptureSetting {
        /// The capture.
        path: PathBuf,
        /// The problem, and what is accepted.
        problem: String,
    },
    /// The file for sent packets could not be made.
    #[error("cannot write sent packets to {}: {source}", path.display())]
    WriteCapture {
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        #[source]
        source: io::Error,
    },
    /// There is no such interface.
    #[error("there is no interface `{interface}` in this network namespace; `ip link` lists them")]
    UnknownInterface {
        /// The name of the interface in the settings.
        interface: String,
    },
    /// The interface is set down.
    #[error("interface `{interface}` is down; bring it up with `ip link set {interface} up`")]
    InterfaceDown {
        /// The name of the interface.
        interface: String,
    },
    /// The interface does not carry Ethernet frames.
    #[error("interface `{interface}` is not Ethernet (ARPHRD type {hardware_type})")]
    NotEthernet {
        /// The name of the interface.
        interface: String,
        /// The ARPHRD_* value.
        hardware_type: u16,
    },
    /// Packet sockets are not permitted to this process.
    #[error(
        "not permitted to open a packet socket on `{interface}`: the process needs CAP_NET_RAW \
         (systemd: AmbientCapabilities=CAP_NET_RAW; by hand: setcap cap_net_raw+ep)"
    )]
    NotPermitted {
        /// The interface.
        interface: String,
    },
    /// AF_XDP sockets are not permitted to this process.
    #[error("not permitted to open an AF_XDP socket on `{interface}`: {}", xdp::privileges())]
    XdpNotPermitted {
        /// The interface.
        interface: String,
    },
    /// The kernel has no AF_XDP sockets.
    #[error(
        "`{interface}`: the kernel has no AF_XDP sockets (CONFIG_XDP_SOCKETS; /proc/net/protocols does not list XDP): use the wire af_packet"
    )]
    NoXdpSockets {
        /// The interface.
        interface: String,
    },
    /// Another process has an AF_XDP socket for the queue.
    #[error(
        "interface `{interface}`: queue {queue} has an AF_XDP socket of another process: end that process"
    )]
    QueueTaken {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
    },
    /// The driver cannot receive into the memory of the port.
    #[error("the driver of interface `{interface}` has no zero-copy mode: set zero_copy = \"auto\"")]
    NoZeroCopy {
        /// The interface.
        interface: String,
    },
    /// The process may not lock so much memory.
    #[error(
        "interface `{interface}`: the process may not lock {bytes} bytes of memory for a queue: lower ring_frames, or \
         allow more (systemd: LimitMEMLOCK=infinity; by hand: ulimit -l unlimited)"
    )]
    LockedMemory {
        /// The interface.
        interface: String,
        /// The memory of one queue.
        bytes: usize,
    },
    /// There is no memory for the frames of a queue.
    #[error("interface `{interface}`: no memory for the frames of a queue")]
    XdpMemory {
        /// The interface.
        interface: String,
        /// The reason and the remedy.
        #[source]
        source: hugemem::HugememError,
    },
    /// The XDP program could not be loaded or attached.
    #[error(transparent)]
    Xdp {
        /// The reason and the remedy.
        #[from]
        source: xdp::XdpError,
    },
    /// A system call on a socket of the interface failed.
    #[error("interface `{interface}`: {operation}: {source}")]
    Interface {
        /// The interface.
        interface: String,
        /// The operation, with its option where there is one.
        operation: &'static str,
        /// The operating system's answer.
        #[source]
        source: io::Error,
    },
    /// A setting of a live interface that makes no sense.
    #[error("interface `{interface}`: {problem}")]
    InterfaceSetting {
        /// The interface.
        interface: String,
        /// The problem, and what is accepted.
        problem: String,
    },
    /// Another process has this end of the link.
    #[error("link `{link}`: end `{end}` is taken by {holder}: end that process, or take the other end")]
    LinkTaken {
        /// The link's name.
        link: String,
        /// `a` or `b`.
        end: char,
        /// The process that has it.
        holder: String,
    },
    /// Another user's process has the name of an end, which anybody can take.
    #[error(
        "link `{link}`: the name of end `{end}` is held by {holder}, and only processes of user {user} and of root \
         are trusted: end that process, or give the link another name at both ends"
    )]
    LinkForeign {
        /// The link's name.
        link: String,
        /// `a` or `b`.
        end: char,
        /// The process that has it.
        holder: LinkPeer,
        /// The user that trusts no others: that of this process, or the one that is checked for.
        user: u32,
    },
    /// A system call for a link failed.
    #[error("link `{link}`: {operation}: {source}")]
    Link {
        /// The link's name.
        link: String,
        /// The operation.
        operation: &'static str,
        /// The operating system's answer.
        #[source]
        source: io::Error,
    },
}

/// The remedy for a capture that is damaged at a packet.
fn salvage(packet: u64) -> String {
    match packet {
        0 | 1 => "nothing before it can be saved".to_owned(),
        _ => format!("keep what is before it with `editcap -r FILE OUT 1-{}`", packet - 1),
    }
}

/// Why one frame was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransmitError {
    /// Longer than the medium takes.
    #[error("longer than the medium takes")]
    TooLong,
    /// Shorter than an Ethernet header.
    #[error("shorter than an Ethernet header")]
    TooShort,
    /// The queue to the medium is full.
    #[error("the queue to the medium is full")]
    QueueFull,
    /// The medium is down.
    #[error("the medium is down")]
    Down,
}

impl TransmitError {
    /// Refuses what cannot be an Ethernet frame of at most `limit_bytes`.
    pub(super) fn check_length(frame: &[u8], limit_bytes: usize) -> Result<(), Self> {
        match frame.len() {
            0..ETHERNET_BYTES => Err(Self::TooShort),
            len if len > limit_bytes => Err(Self::TooLong),
            _ => Ok(()),
        }
    }
}

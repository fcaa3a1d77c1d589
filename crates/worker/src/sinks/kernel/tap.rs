//! The TAP interface (Documentation/networking/tuntap.rst): it is attached to by its name, and created if there is no
//! interface of that name. The kernel removes a created one when its last queue is closed; one that the administrator
//! made stays, and attaching to it needs no privilege if it belongs to the user of the daemon.
//!
//! Where the kernel offers it, the queues have offloads (IFF_VNET_HDR, TUNSETOFFLOAD): the host leaves checksums and the
//! cutting of streams to the reader, who finds in a header before each frame what is left to do. Frames for the host have
//! that header, too, which asks for nothing. The offloads are those of the interface, so all queues have them or none.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, OnceLock, PoisonError};

use packet::MacAddr;
use packet::offload::{OFFLOAD_HEADER_BYTES, Offload};
use rustix::io::{Errno, readv, writev};
use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};
use tun_rs::{DeviceBuilder, Layer, SyncDevice};

/// An Ethernet header and a VLAN tag.
pub(super) const HEADER_BYTES: usize = 14;
pub(super) const TAG_BYTES: usize = 4;
/// The most tags that a frame has beyond the MTU.
pub(super) const TAGS_MAX: usize = 2;
const TPIDS: [[u8; 2]; 2] = [[0x81, 0x00], [0x88, 0xa8]];
/// The MTU of an interface for which none is known.
pub(super) const MTU_DEFAULT: u16 = 1500;

/// Why the TAP interface cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TapError {
    /// There is no driver.
    #[error("/dev/net/tun cannot be opened (hint: modprobe tun; in a container, pass the device in)")]
    NoDriver(#[source] io::Error),
    /// The process may not create or attach to it.
    #[error(
        "{} the TAP interface `{interface}` is not permitted (hint: as root, \
         `ip tuntap add dev {interface} mode tap multi_queue user USER` with the user of the daemon, or give the \
         daemon CAP_NET_ADMIN)",
        if *.exists { "attaching to" } else { "creating" }
    )]
    NotPermitted {
        /// Its name.
        interface: String,
        /// Whether it exists.
        exists: bool,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// An interface of another kind has the name.
    #[error("`{interface}` exists and is not a TAP interface (hint: choose another name)")]
    NotTap {
        /// Its name.
        interface: String,
    },
    /// Its only queue is in use.
    #[error(
        "the TAP interface `{interface}` has one queue, which is in use by another process or by the policy in force \
         (hint: make it with `ip tuntap add dev {interface} mode tap multi_queue`)"
    )]
    InUse {
        /// Its name.
        interface: String,
    },
    /// The kernel refuses another queue.
    #[error("the TAP interface `{interface}` cannot be attached to")]
    Attach {
        /// Its name.
        interface: String,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// An attribute cannot be set.
    #[error(
        "{what} of the TAP interface `{interface}` cannot be set (hint: as root, `ip link set dev {interface} {remedy}`)"
    )]
    Configure {
        /// Its name.
        interface: String,
        /// The attribute.
        what: &'static str,
        /// Arguments of ip-link(8).
        remedy: String,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The port has no address that is known.
    #[error(
        "the address of port {port} is not known (hint: write `mac = \"02:00:00:00:00:01\"` or `mac = \"keep\"`)"
    )]
    NoStation {
        /// The port.
        port: u8,
    },
    /// The port is not in use.
    #[error("port {port} is not a port that the daemon uses (hint: device.ports in the settings)")]
    NoPort {
        /// The port.
        port: u8,
    },
    /// The way back cannot be made.
    #[error("port {port} cannot send what the host sends (hint: write `transmit = false`)")]
    Transmit {
        /// The port.
        port: u8,
        /// The refusal.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No thread or descriptor is left.
    #[error("a thread for the TAP interface `{interface}` cannot be made")]
    Thread {
        /// Its name.
        interface: String,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
}

/// The interface as the policy wants it.
#[derive(Debug)]
pub(super) struct Interface {
    pub(super) name: String,
    /// `None`: it keeps its address.
    pub(super) mac: Option<MacAddr>,
    /// As configured.
    pub(super) mtu: Option<u16>,
    /// The MTU of one that is created, unless configured.
    pub(super) mtu_of_port: u16,
    /// The index of the interface that this object has created. Locked while a queue is attached, so that only one
    /// thread creates it.
    pub(super) made: Mutex<Option<u32>>,
    /// Whether its queues have offloads; decided by the first one.
    pub(super) offloads: OnceLock<bool>,
}

impl Interface {
    /// Attaches `wanted` queues; one if the interface has only one.
    pub(super) fn attach_all(&self, wanted: usize) -> Result<Vec<Queue>, TapError> {
        let first = match self.attach(true) {
            Err(TapError::NotTap { .. }) => return Ok(vec![self.attach(false)?]),
            first => first?,
        };
        let others = (1..wanted).map(|_| self.attach(true));
        std::iter::once(Ok(first)).chain(others).collect()
    }

    /// Attaches one queue and gives the interface its attributes.
    pub(super) fn attach(&self, multi_queue: bool) -> Result<Queue, TapError> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let existing = index_of(&self.name);
        let build = |offloads| {
            DeviceBuilder::new()
                .name(self.name.clone())
                .layer(Layer::L2)
                .with(|options| {
                    options.multi_queue(multi_queue).offload(offloads);
                })
                .inherit_enable_state()
                .build_sync()
        };
        let device = match self.offloads.get() {
            Some(offloads) => build(*offloads),
            // A kernel that refuses them may have queues without.
            None => build(true).or_else(|_| build(false)),
        };
        let device = device.map_err(|source| self.refused(existing.is_some(), multi_queue, source))?;
        let offloads = *self.offloads.get_or_init(|| device.tcp_gso());
        device.set_nonblocking(true).map_err(|source| self.not_attached(source))?;
        if existing.is_none() {
            *made = index_of(&self.name);
        }
        let is_made = made.is_some() && (existing.is_none() || *made == existing);
        self.configure(&device, is_made)?;
        let mtu = device.mtu().map_err(|source| self.not_attached(source))?;
        Ok(Queue { device, mtu, multi_queue, offloads })
    }

    /// The errors of TUNSETIFF (drivers/net/tun.c, `tun_set_iff`): EINVAL for an interface of another kind or with
    /// another `multi_queue`.
    fn refused(&self, exists: bool, multi_queue: bool, source: io::Error) -> TapError {
        let interface = self.name.clone();
        match errno(&source) {
            Some(Errno::NOENT | Errno::NXIO | Errno::NODEV) => TapError::NoDriver(source),
            Some(Errno::PERM | Errno::ACCESS) => TapError::NotPermitted { interface, exists, source },
            Some(Errno::INVAL) if exists => TapError::NotTap { interface },
            Some(Errno::BUSY) if !multi_queue => TapError::InUse { interface },
            _ => TapError::Attach { interface, source },
        }
    }

    fn not_attached(&self, source: io::Error) -> TapError {
        TapError::Attach { interface: self.name.clone(), source }
    }

    /// What an existing interface has already is not set, so that no privilege is needed.
    fn configure(&self, device: &SyncDevice, is_made: bool) -> Result<(), TapError> {
        let failed = |what, remedy: String| {
            move |source| TapError::Configure { interface: self.name.clone(), what, remedy, source }
        };
        if let Some(mac) = self.mac
            && device.mac_address().ok() != Some(mac.0)
        {
            device.set_mac_address(mac.0).map_err(failed("the address", format!("address {mac}")))?;
        }
        let wanted = self.mtu.or_else(|| is_made.then_some(self.mtu_of_port));
        if let Some(mtu) = wanted
            && device.mtu().ok() != Some(mtu)
        {
            device.set_mtu(mtu).map_err(failed("the MTU", format!("mtu {mtu}")))?;
        }
        if is_made {
            device.enabled(true).map_err(failed("the state", "up".to_owned()))?;
        }
        Ok(())
    }
}

/// One queue of the interface.
pub(super) struct Queue {
    device: SyncDevice,
    mtu: u16,
    /// Whether the interface has several.
    pub(super) multi_queue: bool,
    /// Whether each frame has a header in front.
    pub(super) offloads: bool,
}

/// What became of a frame that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    Yes,
    TooLong,
    /// The interface is down.
    Down,
    /// The interface no longer exists, and this queue is of no use.
    Gone,
    Failed,
}

impl Queue {
    /// Gives a frame to the host.
    pub(super) fn write(&self, frame: &[u8]) -> Written {
        if frame.len() > self.longest(frame) {
            return Written::TooLong;
        }
        let header = if self.offloads { &[0; OFFLOAD_HEADER_BYTES][..] } else { &[] };
        match writev(&self.device, &[IoSlice::new(header), IoSlice::new(frame)]) {
            Ok(_) => Written::Yes,
            // The answers of `tun_get_user` and `tun_chr_write_iter`.
            Err(Errno::IO) => Written::Down,
            Err(Errno::BADFD) => Written::Gone,
            Err(_) => Written::Failed,
        }
    }

    /// Takes a frame from the host; `None`: there is none. What does not fit into `room` is put into `rest`. Returns what is
    /// left to do on it, and its length.
    pub(super) fn read(&self, room: &mut [u8], rest: &mut [u8]) -> Option<(Offload, usize)> {
        let mut header = [0; OFFLOAD_HEADER_BYTES];
        let header_bytes = if self.offloads { OFFLOAD_HEADER_BYTES } else { 0 };
        let mut parts =
            [IoSliceMut::new(&mut header[..header_bytes]), IoSliceMut::new(room), IoSliceMut::new(rest)];
        let bytes = readv(&self.device, &mut parts).ok()?.checked_sub(header_bytes)?;
        Some((Offload::read(&header), bytes))
    }

    /// Asks for the MTU anew, which others can change. `None`: the interface no longer exists.
    pub(super) fn refresh(&mut self) -> Option<()> {
        self.mtu = self.device.mtu().ok()?;
        Some(())
    }

    pub(super) fn is_up(&self) -> bool {
        self.device.is_running().unwrap_or(false)
    }

    pub(super) fn mtu(&self) -> u16 {
        self.mtu
    }

    /// The MTU does not count the header and tags.
    fn longest(&self, frame: &[u8]) -> usize {
        let is_tag =
            |at: usize| frame.get(at..at + 2).is_some_and(|tpid| TPIDS.iter().any(|known| tpid == known));
        let tags = (0..TAGS_MAX).take_while(|tag| is_tag(HEADER_BYTES - 2 + tag * TAG_BYTES)).count();
        usize::from(self.mtu) + HEADER_BYTES + tags * TAG_BYTES
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

fn errno(error: &io::Error) -> Option<Errno> {
    Errno::from_io_error(error)
}

/// The index of an interface; `None`: there is none of that name.
fn index_of(name: &str) -> Option<u32> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok()?;
    netdevice::name_to_index(&socket, name).ok()
}

//! The TAP interface (Documentation/networking/tuntap.rst): it is attached to by its name, and created if
//! there is no interface of that name. The kernel removes a created one when its last queue is closed; one
//! that the administrator made stays, and attaching to it needs no privilege if it belongs to the user of the
//! daemon.
//!
//! Where the kernel offers it, the queues have offloads (IFF_VNET_HDR, TUNSETOFFLOAD): the host leaves
//! checksums and the cutting of streams to the reader, who finds in a header before each frame what is left
//! to do. Frames for the host have that header, too, which asks for nothing. The offloads are those of the
//! interface, so all queues have them or none.
//!
//! Nothing is assumed about an interface that others have used: what it keeps from them is set when a queue
//! is attached ([`tap::adopt`]), and looked at again while the sink runs. Another process that holds a queue
//! would take a part of what the host sends, so such an interface is refused.

use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use packet::MacAddr;
use packet::offload::{OFFLOAD_HEADER_BYTES, Offload};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, readv, writev};
use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};
use rustix::process::{getegid, geteuid, getgroups};
use rustix::thread::{CapabilitySet, capabilities};
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
        /// The name of the interface.
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
        /// The name of the interface.
        interface: String,
    },
    /// The only queue of the interface is in use.
    #[error(
        "the TAP interface `{interface}` has one queue, which is in use by another process or by the policy in force \
         (hint: make it with `ip tuntap add dev {interface} mode tap multi_queue`)"
    )]
    InUse {
        /// The name of the interface.
        interface: String,
    },
    /// Another process has queues of it.
    #[error(
        "the TAP interface `{interface}` is in use by {holder}: each would get a part of what the host sends (hint: end \
         it, or give each daemon an interface of its own)"
    )]
    Shared {
        /// The name of the interface.
        interface: String,
        /// Who has them.
        holder: String,
    },
    /// The kernel refuses another queue.
    #[error("the TAP interface `{interface}` cannot be attached to")]
    Attach {
        /// The name of the interface.
        interface: String,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// An attribute of a queue cannot be set.
    #[error(
        "the TAP interface `{interface}` keeps what its last user has set (hint: as root, \
         `ip link delete dev {interface}`, and make it again; a sandbox of the daemon has to permit ioctl(2))"
    )]
    Adopt {
        /// The name of the interface.
        interface: String,
        /// The attribute, and the kernel's answer.
        #[source]
        source: io::Error,
    },
    /// An attribute of the interface cannot be set.
    #[error(
        "{what} of the TAP interface `{interface}` cannot be set (hint: as root, `ip link set dev {interface} {remedy}`)"
    )]
    Configure {
        /// The name of the interface.
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
        /// The name of the interface.
        interface: String,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
}

/// How often, and how long apart, the queues of others are counted before the interface is refused: a queue
/// that is being closed is counted for a moment.
const CLAIM_LOOKS: u32 = 10;
const CLAIM_STEP: Duration = Duration::from_millis(20);

/// The address and the MTU that the interface is to have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    /// `None`: it keeps its address.
    pub(super) mac: Option<MacAddr>,
    /// `None`: it keeps its MTU, because that of the port is not known.
    pub(super) mtu: Option<u16>,
}

/// The interface as the policy wants it.
#[derive(Debug)]
pub(super) struct Interface {
    pub(super) name: String,
    /// The attributes by the policy and the port, which may change.
    pub(super) wanted: Mutex<Wanted>,
    /// The index of the interface that this object has created. Locked while a queue is attached, so that
    /// only one thread creates it.
    pub(super) made: Mutex<Option<u32>>,
    /// Whether its queues have offloads; decided by the first one.
    pub(super) offloads: OnceLock<bool>,
}

/// linux/if_tun.h: the bits of `tun_flags` in sysfs.
const IFF_TAP: u32 = 0x0002;
const IFF_MULTI_QUEUE: u32 = 0x0100;

impl Interface {
    /// Checks that queues can be attached and the interface can get its attributes, and changes nothing.
    pub(super) fn check(&self) -> Result<(), TapError> {
        let exists = index_of(&self.name).is_some();
        // Opening it has no effect before TUNSETIFF.
        let opened = rustix::fs::open("/dev/net/tun", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        opened.map_err(|errno| self.refused(exists, true, errno.into()))?;
        let is_admin = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_ADMIN));
        let not_permitted = || io::Error::from(Errno::PERM);
        if !exists {
            return if is_admin { Ok(()) } else { Err(self.refused(false, true, not_permitted())) };
        }
        let file = |file: &str| {
            let text = fs::read_to_string(Path::new("/sys/class/net").join(&self.name).join(file)).ok();
            text.map(|text| text.trim().to_owned())
        };
        let flags =
            file("tun_flags").and_then(|text| u32::from_str_radix(text.trim_start_matches("0x"), 16).ok());
        let Some(flags) = flags.filter(|flags| flags & IFF_TAP != 0) else {
            return Err(TapError::NotTap { interface: self.name.clone() });
        };
        // -1 stands for none (drivers/net/tun.c, `tun_not_capable`).
        let id = |file_name: &str| file(file_name).and_then(|text| text.parse::<u32>().ok());
        let is_other_user = id("owner").is_some_and(|owner| owner != geteuid().as_raw());
        let groups = || getgroups().unwrap_or_default().into_iter().chain([getegid()]);
        let is_other_group = id("group").is_some_and(|group| groups().all(|own| own.as_raw() != group));
        if (is_other_user || is_other_group) && !is_admin {
            return Err(self.refused(true, true, not_permitted()));
        }
        self.claim()?;
        if flags & IFF_MULTI_QUEUE == 0 {
            let name = &self.name;
            tracing::warn!(
                "the TAP interface `{name}` has one queue: a reload that changes its sink is refused while the sink \
                 is open (hint: make it with `ip tuntap add dev {name} mode tap multi_queue`)"
            );
        }
        let Wanted { mac, mtu } = self.wanted();
        if let Some(mac) =
            mac.filter(|mac| !is_admin && file("address").is_none_or(|now| now != mac.to_string()))
        {
            return Err(self.cannot("the address", format!("address {mac}"))(not_permitted()));
        }
        if let Some(mtu) = mtu.filter(|mtu| !is_admin && file("mtu").is_none_or(|now| now != mtu.to_string()))
        {
            return Err(self.cannot("the MTU", format!("mtu {mtu}"))(not_permitted()));
        }
        Ok(())
    }

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
        if existing.is_some() {
            self.claim()?;
        }
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
        // Again, for a process that has attached at the same time.
        self.claim()?;
        let offloads = *self.offloads.get_or_init(|| device.tcp_gso());
        device.set_nonblocking(true).map_err(|source| self.not_attached(source))?;
        let header_bytes = if offloads { OFFLOAD_HEADER_BYTES } else { 0 };
        tap::adopt(device.as_fd(), header_bytes)
            .map_err(|source| TapError::Adopt { interface: self.name.clone(), source })?;
        if existing.is_none() {
            *made = index_of(&self.name);
        }
        let is_made = made.is_some() && (existing.is_none() || *made == existing);
        self.configure(&device, self.wanted())?;
        if is_made {
            device.enabled(true).map_err(self.cannot("the state", "up".to_owned()))?;
        }
        let mtu = device.mtu().map_err(|source| self.not_attached(source))?;
        Ok(Queue { device, mtu, multi_queue, offloads })
    }

    /// Refuses an interface that another process holds queues of. The kernel refuses a second queue of one
    /// that has only one.
    fn claim(&self) -> Result<(), TapError> {
        for _ in 0..CLAIM_LOOKS {
            if self.queues_of_others(&mut None) == 0 {
                return Ok(());
            }
            thread::sleep(CLAIM_STEP);
        }
        let holder = tap::other_holder(&self.name).unwrap_or_else(|| "another process".to_owned());
        Err(TapError::Shared { interface: self.name.clone(), holder })
    }

    /// How many queues of the interface other processes hold; 0 if that cannot be found out. `all_own` is
    /// the number of queues when all were found to be this process's: while there are as many, /proc, which
    /// takes long with many descriptors, is not read.
    pub(super) fn queues_of_others(&self, all_own: &mut Option<usize>) -> usize {
        let attached = || tap::queues(&self.name).ok().flatten().unwrap_or_default();
        let before = attached();
        if before == 0 || *all_own == Some(before) {
            return 0;
        }
        let own = tap::own_queues(&self.name).unwrap_or(before);
        *all_own = (own == before).then_some(before);
        // Asked twice: another thread of this process may attach or close a queue meanwhile.
        before.min(attached()).saturating_sub(own)
    }

    pub(super) fn wanted(&self) -> Wanted {
        *self.locked_wanted()
    }

    /// Notes what the interface is to have from now on.
    pub(super) fn follow(&self, wanted: Wanted) {
        *self.locked_wanted() = wanted;
    }

    fn locked_wanted(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The errors of TUNSETIFF (drivers/net/tun.c, `tun_set_iff`): EINVAL for an interface of another kind or
    /// with another `multi_queue`.
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

    fn cannot(&self, what: &'static str, remedy: String) -> impl FnOnce(io::Error) -> TapError {
        let interface = self.name.clone();
        move |source| TapError::Configure { interface, what, remedy, source }
    }

    /// Gives the interface its address and MTU. What it has already is not set, so that no privilege is
    /// needed.
    fn configure(&self, device: &SyncDevice, wanted: Wanted) -> Result<(), TapError> {
        let other = || io::Error::other("the interface has another value afterwards");
        if let Some(mac) = wanted.mac
            && device.mac_address().ok() != Some(mac.0)
        {
            let set = device.set_mac_address(mac.0).and_then(|()| device.mac_address());
            let set = set.and_then(|found| if found == mac.0 { Ok(()) } else { Err(other()) });
            set.map_err(self.cannot("the address", format!("address {mac}")))?;
        }
        if let Some(mtu) = wanted.mtu
            && device.mtu().ok() != Some(mtu)
        {
            let set = device.set_mtu(mtu).and_then(|()| device.mtu());
            let set = set.and_then(|found| if found == mtu { Ok(()) } else { Err(other()) });
            set.map_err(self.cannot("the MTU", format!("mtu {mtu}")))?;
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

/// The result of writing a frame.
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

/// The result of a look at the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refreshed {
    Same,
    /// Another process has changed the header before each frame.
    OtherHeader,
    /// The interface no longer exists.
    Gone,
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

    /// Takes a frame from the host; `None`: there is none. What does not fit into `room` is put into `rest`.
    /// Returns what is left to do on it, and its length.
    pub(super) fn read(&self, room: &mut [u8], rest: &mut [u8]) -> Option<(Offload, usize)> {
        let mut header = [0; OFFLOAD_HEADER_BYTES];
        let header_bytes = if self.offloads { OFFLOAD_HEADER_BYTES } else { 0 };
        let mut parts =
            [IoSliceMut::new(&mut header[..header_bytes]), IoSliceMut::new(room), IoSliceMut::new(rest)];
        let bytes = readv(&self.device, &mut parts).ok()?.checked_sub(header_bytes)?;
        Some((Offload::read(&header), bytes))
    }

    /// Asks for the MTU anew, which others can change.
    pub(super) fn refresh(&mut self) -> Refreshed {
        let wanted = if self.offloads { OFFLOAD_HEADER_BYTES } else { 0 };
        match (self.device.mtu(), tap::header_bytes(self.device.as_fd())) {
            (Ok(mtu), Ok(header_bytes)) if header_bytes == wanted => {
                self.mtu = mtu;
                Refreshed::Same
            }
            (Ok(_), Ok(_)) => Refreshed::OtherHeader,
            _ => Refreshed::Gone,
        }
    }

    /// Gives the interface another address or MTU.
    pub(super) fn configure(&mut self, interface: &Interface, wanted: Wanted) -> Result<(), TapError> {
        interface.configure(&self.device, wanted)
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

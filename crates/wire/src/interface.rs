//! Network interfaces: found by name, asked for their addresses, MTU and state; see netdevice(7).

pub(crate) mod offloads;
mod rss;
mod rx_filters;

use std::io;
use std::mem::zeroed;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use packet::MacAddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};

use crate::WireError;

pub use rss::rss_table;
pub use rx_filters::{RXNFC_BYTES, RssSizes, RuleCommand, RuleLocations, RxFilterSocket};

/// An interface, as its name resolves in this network namespace.
#[derive(Clone, Debug)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) index: i32,
    pub(crate) mac: MacAddr,
    pub(crate) mtu_bytes: u32,
}

impl Interface {
    /// Looks an interface up and checks that it is an Ethernet interface that is up.
    pub(crate) fn find(name: &str) -> Result<Self, WireError> {
        let interface = || name.to_owned();
        let socket = question_socket(name)?;
        if name.is_empty()
            || name.len() >= libc::IFNAMSIZ
            || name.bytes().any(|byte| byte == 0 || byte == b'/')
        {
            return Err(WireError::UnknownInterface { interface: interface() });
        }
        let index = netdevice::name_to_index(&socket, name).map_err(|error| match error {
            rustix::io::Errno::NODEV => WireError::UnknownInterface { interface: interface() },
            error => failed(name, "SIOCGIFINDEX", error.into()),
        })?;
        let (hardware_type, mac) =
            address_of(socket.as_fd(), name).map_err(|error| failed(name, "SIOCGIFHWADDR", error))?;
        if ![libc::ARPHRD_ETHER, libc::ARPHRD_LOOPBACK].contains(&hardware_type) {
            return Err(WireError::NotEthernet { interface: interface(), hardware_type });
        }

        let answer = request(socket.as_fd(), name, libc::SIOCGIFMTU)
            .map_err(|error| failed(name, "SIOCGIFMTU", error))?;
        // SAFETY: SIOCGIFMTU succeeded, so the kernel filled this member of the union.
        let mtu = unsafe { answer.ifr_ifru.ifru_mtu };
        let flags = flags(socket.as_fd(), name).map_err(|error| failed(name, "SIOCGIFFLAGS", error))?;
        if flags & libc::IFF_UP == 0 {
            return Err(WireError::InterfaceDown { interface: interface() });
        }
        Ok(Self {
            name: interface(),
            index: index.cast_signed(),
            mac,
            mtu_bytes: u32::try_from(mtu).unwrap_or(0),
        })
    }
}

/// The hardware type (`ARPHRD_*`) and address of an interface.
fn address_of(socket: BorrowedFd<'_>, name: &str) -> io::Result<(libc::sa_family_t, MacAddr)> {
    let answer = request(socket, name, libc::SIOCGIFHWADDR)?;
    // SAFETY: SIOCGIFHWADDR succeeded, so the kernel filled this member of the union.
    let address = unsafe { answer.ifr_ifru.ifru_hwaddr };
    let mut mac = [0; 6];
    for (octet, byte) in mac.iter_mut().zip(address.sa_data) {
        *octet = byte as u8;
    }
    Ok((address.sa_family, MacAddr(mac)))
}

/// The MAC address of an interface.
fn mac_of(socket: BorrowedFd<'_>, name: &str) -> io::Result<MacAddr> {
    address_of(socket, name).map(|(_, mac)| mac)
}

/// How an interface is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// Frames can pass.
    Up,
    /// Set down, or without a carrier.
    Down,
    /// Removed, or moved to another network namespace: sockets that were bound to it never receive again.
    Gone,
}

/// A socket that answers questions about interfaces: most do, and this one needs no capability
/// (netdevice(7)).
pub(crate) fn question_socket(interface: &str) -> Result<OwnedFd, WireError> {
    socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .map_err(|error| failed(interface, "socket", error.into()))
}

/// How the interface of this index is, and its name now.
pub(crate) fn link_of(socket: BorrowedFd<'_>, index: i32) -> (Link, Option<String>) {
    let Ok(name) = netdevice::index_to_name(socket, index.cast_unsigned()) else { return (Link::Gone, None) };
    let flags = flags(socket, &name).unwrap_or(0);
    // IFF_RUNNING: there is a carrier, and nothing else keeps frames from passing (RFC 2863, operational
    // status).
    let wanted = libc::IFF_UP | libc::IFF_RUNNING;
    (if flags & wanted == wanted { Link::Up } else { Link::Down }, Some(name))
}

/// An error of a system call.
pub(crate) fn failed(interface: &str, operation: &'static str, source: io::Error) -> WireError {
    WireError::Interface { interface: interface.to_owned(), operation, source }
}

/// The `IFF_*` flags of the interface.
fn flags(socket: BorrowedFd<'_>, name: &str) -> io::Result<libc::c_int> {
    let answer = request(socket, name, libc::SIOCGIFFLAGS)?;
    // SAFETY: SIOCGIFFLAGS succeeded, so the kernel filled this member of the union.
    Ok(unsafe { answer.ifr_ifru.ifru_flags }.into())
}

/// A question about an interface.
fn interface_request(name: &str) -> libc::ifreq {
    // SAFETY: all bits zero is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { zeroed() };
    // The last byte stays 0: `Interface::find` refused longer names.
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes().take(libc::IFNAMSIZ - 1)) {
        *place = byte as libc::c_char;
    }
    request
}

/// One of the `SIOCGIF*` questions about an interface.
fn request(socket: BorrowedFd<'_>, name: &str, what: libc::Ioctl) -> io::Result<libc::ifreq> {
    let mut request = interface_request(name);
    // SAFETY: the `SIOCGIF*` questions take a pointer to an `ifreq`, which lives through the call.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), what, &raw mut request) };
    if rc == 0 { Ok(request) } else { Err(io::Error::last_os_error()) }
}

//! The attributes that a TAP interface keeps from its last user, and the processes that hold queues of it.
//!
//! A persistent interface keeps the size and byte order of the header before each frame, filters and programs
//! of queues, and the send buffer (drivers/net/tun.c, `struct tun_struct`): whoever attaches to it sets them,
//! and reads back what decides over the bytes of a frame ([`adopt`]). Queues of a multi-queue interface share
//! what the host sends, so a second process that attaches takes a part of it. The kernel allows that;
//! [`queues`] and [`own_queues`] find it out.
//!
//! ```
//! // An interface that does not exist has no queues.
//! assert_eq!(tap::queues("no-such-tap").expect("the kernel answers"), None);
//! assert_eq!(tap::own_queues("no-such-tap"), Some(0));
//! assert_eq!(tap::other_holder("no-such-tap"), None);
//! ```

mod holders;
mod netlink;

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

pub use self::holders::{other_holder, own_queues};
pub use self::netlink::queues;

/// "No program", for the ioctls that take the descriptor of one.
const NO_PROGRAM: c_int = -1;

/// Gives the interface of an attached queue the attributes of a new one, whatever its last user has set, with
/// `header_bytes` of offload header before each frame (0: the queue was attached without IFF_VNET_HDR), in
/// the byte order of the machine.
///
/// # Errors
/// The kernel refuses an attribute, which the error names, or still has another header afterwards.
pub fn adopt(queue: BorrowedFd<'_>, header_bytes: usize) -> io::Result<()> {
    if header_bytes > 0 {
        let bytes = c_int::try_from(header_bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
        set(queue, libc::TUNSETVNETHDRSZ, bytes).map_err(refused("TUNSETVNETHDRSZ"))?;
        set(queue, libc::TUNSETVNETLE, 0).map_err(refused("TUNSETVNETLE"))?;
        // Kernels without CONFIG_TUN_VNET_CROSS_LE have no other order.
        set_if_known(queue, libc::TUNSETVNETBE, 0).map_err(refused("TUNSETVNETBE"))?;
    }
    set(queue, libc::TUNSETSNDBUF, c_int::MAX).map_err(refused("TUNSETSNDBUF"))?;
    // A `struct tun_filter` without addresses: every frame of the host.
    set(queue, libc::TUNSETTXFILTER, 0).map_err(refused("TUNSETTXFILTER"))?;
    set(queue, libc::TUNDETACHFILTER, 0).map_err(refused("TUNDETACHFILTER"))?;
    set_if_known(queue, libc::TUNSETSTEERINGEBPF, NO_PROGRAM).map_err(refused("TUNSETSTEERINGEBPF"))?;
    set_if_known(queue, libc::TUNSETFILTEREBPF, NO_PROGRAM).map_err(refused("TUNSETFILTEREBPF"))?;
    match self::header_bytes(queue)? {
        found if found == header_bytes => Ok(()),
        found => Err(io::Error::other(format!(
            "its frames have a header of {found} bytes, and {header_bytes} were asked for"
        ))),
    }
}

/// The bytes of the offload header before each frame of an attached queue; 0: there is none.
///
/// # Errors
/// The interface of the queue is gone.
pub fn header_bytes(queue: BorrowedFd<'_>) -> io::Result<usize> {
    // SAFETY: all bits zero is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // SAFETY: TUNGETIFF writes an `ifreq`, which lives through the call.
    let rc = unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNGETIFF, &raw mut request) };
    if rc != 0 {
        return Err(refused("TUNGETIFF")(io::Error::last_os_error()));
    }
    // SAFETY: TUNGETIFF succeeded, so the kernel filled this member of the union.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    if c_int::from(flags) & libc::IFF_VNET_HDR == 0 {
        return Ok(0);
    }
    let mut bytes: c_int = 0;
    // SAFETY: TUNGETVNETHDRSZ writes an `int`, which lives through the call.
    let rc = unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNGETVNETHDRSZ, &raw mut bytes) };
    if rc != 0 {
        return Err(refused("TUNGETVNETHDRSZ")(io::Error::last_os_error()));
    }
    usize::try_from(bytes).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Names the ioctl(2) request that the kernel has refused.
fn refused(request: &'static str) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{request} is refused: {error}"))
}

/// One of the `TUNSET*` requests that read an `int`, or as many bytes.
fn set(queue: BorrowedFd<'_>, request: libc::Ioctl, value: c_int) -> io::Result<()> {
    // SAFETY: the requests of this file read at most an `int` at the pointer (TUNSETTXFILTER: a `tun_filter`
    // whose count of addresses is 0, four bytes; TUNDETACHFILTER nothing), and `value` lives through the
    // call.
    let rc = unsafe { libc::ioctl(queue.as_raw_fd(), request, &raw const value) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sets an attribute as [`set`] does, for requests that older or smaller kernels do not have: there the
/// attribute does not exist either.
fn set_if_known(queue: BorrowedFd<'_>, request: libc::Ioctl, value: c_int) -> io::Result<()> {
    match set(queue, request, value) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOTTY)) => Ok(()),
        result => result,
    }
}

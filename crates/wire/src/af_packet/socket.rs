//! The packet socket of one interface: opened, bound, asked for its state and its losses.
//!
//! All system calls of the AF_PACKET wire but the mapping of its ring and the sending of frames are here; see
//! packet(7) and netdevice(7). The socket receives nothing before [`PacketSocket::bind`].

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use packet::offload::OFFLOAD_HEADER_BYTES;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use super::ring::Layout;
use crate::interface::{Interface, Link, failed, link_of};
use crate::{BURST_FRAMES, TransmitError, WireError};

/// A packet socket for whole frames of one interface.
#[derive(Debug)]
pub(super) struct PacketSocket {
    fd: OwnedFd,
    interface: String,
    index: i32,
}

/// The frames that a socket takes, by their length without a stripped VLAN tag.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lengths {
    UpTo(u32),
    Beyond(u32),
}

impl Lengths {
    /// The filter as a program of the classic packet filter (socket(7), SO_ATTACH_FILTER; linux/filter.h):
    /// loads the length, compares, returns how many bytes are taken, 0 for none. Its length is that of the
    /// frame with its Ethernet header, because the socket is of type SOCK_RAW (`tpacket_rcv`).
    fn filter(self) -> [libc::sock_filter; 4] {
        let instruction = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
        let (limit, longer, others) = match self {
            Self::UpTo(limit) => (limit, 0, u32::MAX),
            Self::Beyond(limit) => (limit, u32::MAX, 0),
        };
        [
            instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_LEN, 0, 0, 0),
            instruction(libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K, 0, 1, limit),
            instruction(libc::BPF_RET | libc::BPF_K, 0, 0, longer),
            instruction(libc::BPF_RET | libc::BPF_K, 0, 0, others),
        ]
    }
}

impl PacketSocket {
    /// Opens the socket with a receive ring, for frames of some lengths if they are given.
    pub(super) fn open(
        interface: &Interface,
        ring: &Layout,
        lengths: Option<Lengths>,
    ) -> Result<Self, WireError> {
        let socket = Self::unbound(interface)?;
        if let Some(lengths) = lengths {
            socket.attach_filter(&mut lengths.filter())?;
        }
        let version = match ring {
            Layout::Slots(_) => libc::tpacket_versions::TPACKET_V2,
            Layout::Blocks(_) => libc::tpacket_versions::TPACKET_V3,
        };
        socket.set(libc::PACKET_VERSION, &(version as libc::c_int), "PACKET_VERSION")?;
        // Room before each frame to put a stripped VLAN tag back, as libpcap does.
        let reserve: libc::c_uint = super::ring::TAG_ROOM_BYTES as libc::c_uint;
        socket.set(libc::PACKET_RESERVE, &reserve, "PACKET_RESERVE")?;
        // Before each frame, what offload left to do: unfinished checksums, merged segments. Sent frames
        // carry it too.
        let on: libc::c_int = 1;
        socket.set(libc::PACKET_VNET_HDR, &on, "PACKET_VNET_HDR")?;
        let operation = "PACKET_RX_RING (lower ring_frames?)";
        match ring {
            Layout::Slots(request) => socket.set(libc::PACKET_RX_RING, request, operation)?,
            Layout::Blocks(request) => socket.set(libc::PACKET_RX_RING, request, operation)?,
        }
        // Only saves work: without it (before Linux 4.20) sent frames are recognised by their packet type.
        // Sent frames pass the queueing discipline (no PACKET_QDISC_BYPASS): past it they would be lost
        // whenever the interface's ring is busy, and no packet tap would see them.
        let _ = socket.set_raw(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &on);
        Ok(socket)
    }

    fn attach_filter(&self, filter: &mut [libc::sock_filter]) -> Result<(), WireError> {
        let len = u16::try_from(filter.len()).unwrap_or(u16::MAX);
        // The kernel copies the program, so it need not outlive the call.
        let program = libc::sock_fprog { len, filter: filter.as_mut_ptr() };
        self.set_raw(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
            .map_err(|error| failed(&self.interface, "SO_ATTACH_FILTER", error))
    }

    /// Opens a socket that receives nothing: with protocol 0, no frame comes before `bind` names another.
    pub(super) fn unbound(interface: &Interface) -> Result<Self, WireError> {
        let name = &interface.name;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None).map_err(
            |error| match error {
                rustix::io::Errno::PERM | rustix::io::Errno::ACCESS => {
                    WireError::NotPermitted { interface: name.clone() }
                }
                error => failed(name, "socket(AF_PACKET)", error.into()),
            },
        )?;
        Ok(Self { fd, interface: name.clone(), index: interface.index })
    }

    /// Makes the interface promiscuous for as long as the socket is open (packet(7), PACKET_ADD_MEMBERSHIP).
    pub(super) fn make_promiscuous(&self) -> Result<(), WireError> {
        let request = libc::packet_mreq {
            mr_ifindex: self.index,
            mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        self.set(libc::PACKET_ADD_MEMBERSHIP, &request, "PACKET_MR_PROMISC")
    }

    /// Starts receiving.
    pub(super) fn bind(&self) -> Result<(), WireError> {
        // SAFETY: all bits zero is a valid `sockaddr_ll`.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        address.sll_family = libc::AF_PACKET as libc::c_ushort;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = self.index;
        let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: `address` is a `sockaddr_ll` of `len` bytes that lives through the call.
        let rc = unsafe { libc::bind(self.fd.as_raw_fd(), (&raw const address).cast(), len) };
        if rc == 0 { Ok(()) } else { Err(failed(&self.interface, "bind", io::Error::last_os_error())) }
    }

    /// Frames that found the ring full since the last call (the kernel starts again from 0).
    pub(super) fn take_drops(&self) -> u64 {
        let mut stats = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let mut len = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        let (level, option) = (libc::SOL_PACKET, libc::PACKET_STATISTICS);
        // SAFETY: `stats` has room for `len` bytes, and any bytes are a valid `tpacket_stats`.
        let rc = unsafe {
            libc::getsockopt(self.fd.as_raw_fd(), level, option, (&raw mut stats).cast(), &raw mut len)
        };
        if rc == 0 { u64::from(stats.tp_drops) } else { 0 }
    }

    /// How the interface is now, whatever it is called by now. Clears the error that its going down left on
    /// the socket, which would keep waking threads that poll the descriptor.
    pub(super) fn link(&self) -> Link {
        let _ = sockopt::socket_error(&self.fd);
        if self.bound_index() != Some(self.index) {
            return Link::Gone;
        }
        if link_of(self.fd.as_fd(), self.index).0 == Link::Up { Link::Up } else { Link::Down }
    }

    /// The interface that the socket receives from. The kernel unbinds the socket when the interface goes
    /// away, for good: one that comes back under its name is another one (`packet_notifier`).
    fn bound_index(&self) -> Option<i32> {
        // SAFETY: all bits zero is a valid `sockaddr_ll`.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        let mut len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: `address` has room for `len` bytes, and any bytes are a valid `sockaddr_ll`.
        let rc = unsafe { libc::getsockname(self.fd.as_raw_fd(), (&raw mut address).cast(), &raw mut len) };
        (rc == 0).then_some(address.sll_ifindex)
    }

    fn set<T: Copy>(&self, option: libc::c_int, value: &T, operation: &'static str) -> Result<(), WireError> {
        self.set_raw(libc::SOL_PACKET, option, value)
            .map_err(|error| failed(&self.interface, operation, error))
    }

    fn set_raw<T: Copy>(&self, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
        let len = size_of::<T>() as libc::socklen_t;
        // SAFETY: `value` is readable for `len` bytes; the callers pass the plain C type of the option, and
        // what that points to lives through the call.
        let rc = unsafe {
            libc::setsockopt(self.fd.as_raw_fd(), level, option, std::ptr::from_ref(value).cast(), len)
        };
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

// Frames on their way to a packet socket: copied into a queue, handed over by one `sendmmsg` per flush.
//
// The socket expects an offload header before each frame (PACKET_VNET_HDR): nothing, so that is zero. The
// queue's memory is allocated once. What the socket cannot take for the moment stays queued; what it refuses
// is dropped and counted.

/// Frames that can wait for a flush.
const QUEUE_FRAMES: usize = BURST_FRAMES;

/// The result of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flushed {
    /// All queued frames are gone.
    All,
    /// The socket's buffer is full; the rest is still queued.
    Waiting,
    /// The interface is down; the queue was emptied.
    Down,
}

/// The send queue.
#[derive(Debug)]
pub(super) struct Sender {
    /// `QUEUE_FRAMES` places of `place_bytes`. Each begins with a zeroed `virtio_net_hdr`, then comes the
    /// frame.
    store: Box<[u8]>,
    place_bytes: usize,
    /// Bytes of each place in use.
    lens: [usize; QUEUE_FRAMES],
    /// The place of the oldest frame.
    first: usize,
    queued: usize,
    losses: u64,
}

impl Sender {
    /// A queue for frames of up to `frame_bytes`.
    pub(super) fn new(frame_bytes: usize) -> Self {
        let place_bytes = OFFLOAD_HEADER_BYTES + frame_bytes;
        let store = vec![0; QUEUE_FRAMES * place_bytes].into_boxed_slice();
        Self { store, place_bytes, lens: [0; QUEUE_FRAMES], first: 0, queued: 0, losses: 0 }
    }

    /// Makes it a queue for frames of up to `frame_bytes`. What is queued is lost; what was lost stays
    /// counted.
    pub(super) fn resize(&mut self, frame_bytes: usize) {
        self.abandon();
        *self = Self { losses: self.losses, ..Self::new(frame_bytes) };
    }

    pub(super) fn is_full(&self) -> bool {
        self.queued == QUEUE_FRAMES
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queued == 0
    }

    /// Frames that were queued and refused by the socket.
    pub(super) fn losses(&self) -> u64 {
        self.losses
    }

    pub(super) fn push(&mut self, frame: &[u8]) -> Result<(), TransmitError> {
        if self.is_full() {
            return Err(TransmitError::QueueFull);
        }
        TransmitError::check_length(frame, self.place_bytes - OFFLOAD_HEADER_BYTES)?;
        let place = (self.first + self.queued) % QUEUE_FRAMES;
        self.store[place * self.place_bytes + OFFLOAD_HEADER_BYTES..][..frame.len()].copy_from_slice(frame);
        self.lens[place] = OFFLOAD_HEADER_BYTES + frame.len();
        self.queued += 1;
        Ok(())
    }

    /// Hands the queue to the socket. Without a queue it does nothing.
    pub(super) fn flush(&mut self, socket: &impl AsFd) -> Flushed {
        while self.queued > 0 {
            match self.send(socket) {
                Ok(sent) => self.drop_oldest(sent),
                Err(libc::EAGAIN) => return Flushed::Waiting,
                Err(libc::EINTR) => {}
                Err(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => {
                    self.abandon();
                    return Flushed::Down;
                }
                // Too long for the device, no buffer in the driver: this frame is lost, the others have their
                // turn.
                Err(_) => {
                    self.losses += 1;
                    self.drop_oldest(1);
                }
            }
        }
        Flushed::All
    }

    /// Gives up what is queued, and counts it; returns how many frames that were.
    pub(super) fn abandon(&mut self) -> usize {
        let frames = self.queued;
        self.losses += frames as u64;
        self.drop_oldest(frames);
        frames
    }

    fn drop_oldest(&mut self, frames: usize) {
        let frames = frames.min(self.queued);
        self.first = (self.first + frames) % QUEUE_FRAMES;
        self.queued -= frames;
    }

    /// One `sendmmsg`; the number of frames sent, or the errno that met the oldest one.
    fn send(&mut self, socket: &impl AsFd) -> Result<usize, i32> {
        // SAFETY: all bits zero is a valid array of `iovec`.
        let mut pieces: [libc::iovec; QUEUE_FRAMES] = unsafe { zeroed() };
        // SAFETY: all bits zero is a valid array of `mmsghdr`.
        let mut messages: [libc::mmsghdr; QUEUE_FRAMES] = unsafe { zeroed() };
        for (number, (piece, message)) in pieces.iter_mut().zip(&mut messages).take(self.queued).enumerate() {
            let place = (self.first + number) % QUEUE_FRAMES;
            let frame = &mut self.store[place * self.place_bytes..][..self.lens[place]];
            piece.iov_base = frame.as_mut_ptr().cast();
            piece.iov_len = frame.len();
            message.msg_hdr.msg_iov = piece;
            message.msg_hdr.msg_iovlen = 1;
        }
        let fd = socket.as_fd().as_raw_fd();
        let count = self.queued as libc::c_uint;
        // SAFETY: the first `count` messages point to pieces, and those to frames of the store, all of which
        // outlive the call; the kernel only reads the frames.
        let sent = unsafe { libc::sendmmsg(fd, messages.as_mut_ptr(), count, libc::MSG_DONTWAIT as _) };
        match usize::try_from(sent) {
            Ok(sent) => Ok(sent),
            Err(_) => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)),
        }
    }
}

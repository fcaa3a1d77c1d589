//! An AF_XDP socket for one queue of an interface, with its memory and rings.
//!
//! See Documentation/networking/af_xdp.rst. The socket that also sends has frames for that of its own.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use arrayvec::ArrayVec;
use rustix::io::Errno;
use rustix::net::sockopt::{
    set_xdp_rx_ring_size, set_xdp_tx_ring_size, set_xdp_umem_completion_ring_size,
    set_xdp_umem_fill_ring_size, set_xdp_umem_reg, xdp_mmap_offsets, xdp_options, xdp_statistics,
};
use rustix::net::xdp::{SocketAddrXdp, SocketAddrXdpFlags, XdpOptionsFlags, XdpUmemReg, XdpUmemRegFlags};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};

use super::rings::{CompletionRing, FillRing, ReceiveRing, SendRing};
use super::umem::{PacketPlace, Umem, UmemFrame};
use crate::interface::{Interface, failed};
use crate::{AfXdpConfig, BURST_FRAMES, TransmitError, WireError, ZeroCopy};

/// Frames that can be on their way out.
const SEND_FRAMES: u32 = 1024;
/// Calls for one flush at most: in copy mode each sends some 32 frames.
const MAX_SENDS: usize = 8;

/// The socket of a queue.
#[derive(Debug)]
pub(super) struct QueueSocket {
    // Closed first: the kernel uses no ring and no frame then.
    fd: OwnedFd,
    fill: FillRing,
    receive: ReceiveRing,
    send: SendRing,
    completion: CompletionRing,
    /// Frames to send from that are not on their way out.
    spare: Vec<UmemFrame>,
    /// The packets of the last burst.
    held: ArrayVec<PacketPlace, BURST_FRAMES>,
    umem: Umem,
    is_zero_copy: bool,
    /// Packets that were written and not yet published.
    queued: usize,
    sends: SendCounts,
    invalid: u64,
    kernel_losses: LastAnswer<QueueLosses>,
}

/// The packets that a socket was given to send, by what the kernel reported of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SendCounts {
    /// Packets that were written to the send ring.
    written: u64,
    /// Packets in the completion ring: the kernel is done with them.
    completed: u64,
    /// Completed packets that the interface dropped instead of sending them (EBUSY).
    dropped: u64,
}

impl SendCounts {
    /// Packets that left through the interface, as far as the kernel reported it.
    fn sent(&self) -> u64 {
        self.completed.saturating_sub(self.dropped)
    }
}

/// The result of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlushOutcome {
    /// The kernel has taken all packets, or will without another call.
    Done,
    /// The next flush has to send the rest.
    Waiting,
    /// The interface is down.
    Down,
}

/// Why a queue has no socket.
#[derive(Debug)]
pub(super) enum NoQueueSocket {
    /// The interface has no such queue.
    NoSuchQueue,
    Failed(WireError),
}

impl From<WireError> for NoQueueSocket {
    fn from(error: WireError) -> Self {
        Self::Failed(error)
    }
}

/// A socket that is not bound to a queue.
fn unbound(interface: &str) -> Result<OwnedFd, WireError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::XDP, SocketType::RAW, flags, None).map_err(|error| match error {
        Errno::PERM | Errno::ACCESS => WireError::XdpNotPermitted { interface: interface.to_owned() },
        Errno::AFNOSUPPORT => {
            no_family(interface, &std::fs::read_to_string("/proc/net/protocols").unwrap_or_default())
        }
        error => failed(interface, "socket(AF_XDP)", error.into()),
    })
}

/// The reason why the address family is refused. `protocols`: those of the kernel (/proc/net/protocols). A
/// filter of system calls answers like a kernel without the family (systemd.exec(5),
/// RestrictAddressFamilies=).
fn no_family(interface: &str, protocols: &str) -> WireError {
    let interface = interface.to_owned();
    match protocols.lines().any(|line| line.split_whitespace().next() == Some("XDP")) {
        true => WireError::XdpNotPermitted { interface },
        false => WireError::NoXdpSockets { interface },
    }
}

impl QueueSocket {
    /// Checks that the process may have such sockets.
    pub(super) fn check(interface: &str) -> Result<(), WireError> {
        unbound(interface).map(drop)
    }

    /// Opens the socket, with all its frames given to the kernel, and binds it to a queue. Sends only if
    /// `sends`.
    pub(super) fn open(
        interface: &Interface,
        queue: u32,
        config: &AfXdpConfig,
        frame_bytes: usize,
        sends: bool,
    ) -> Result<Self, NoQueueSocket> {
        let name = &interface.name;
        let failed_at = |operation| move |error: Errno| failed(name, operation, error.into());
        let fd = unbound(name)?;
        let receive_frames = config.ring_frames;
        let send_frames = if sends { SEND_FRAMES } else { 0 };
        let label = format!("{name} queue {queue}");
        let (umem, mut frames) = Umem::map(&label, frame_bytes, receive_frames + send_frames)
            .map_err(|source| WireError::XdpMemory { interface: name.clone(), source })?;
        let registration = XdpUmemReg {
            addr: umem.address(),
            len: umem.bytes() as u64,
            chunk_size: frame_bytes as u32,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        set_xdp_umem_reg(&fd, registration).map_err(|error| match error {
            Errno::NOBUFS => WireError::LockedMemory { interface: name.clone(), bytes: umem.bytes() },
            error => failed(name, "XDP_UMEM_REG", error.into()),
        })?;
        set_xdp_umem_fill_ring_size(&fd, receive_frames).map_err(failed_at("XDP_UMEM_FILL_RING"))?;
        set_xdp_umem_completion_ring_size(&fd, SEND_FRAMES).map_err(failed_at("XDP_UMEM_COMPLETION_RING"))?;
        set_xdp_rx_ring_size(&fd, receive_frames).map_err(failed_at("XDP_RX_RING"))?;
        set_xdp_tx_ring_size(&fd, SEND_FRAMES).map_err(failed_at("XDP_TX_RING"))?;
        let offsets = xdp_mmap_offsets(&fd).map_err(failed_at("XDP_MMAP_OFFSETS"))?;
        let at_map = failed_at("mmap of a ring");
        let mut fill = FillRing::map(&fd, offsets.fr, receive_frames).map_err(at_map)?;
        let completion = CompletionRing::map(&fd, offsets.cr, SEND_FRAMES).map_err(at_map)?;
        let receive = ReceiveRing::map(&fd, offsets.rx, receive_frames).map_err(at_map)?;
        let send = SendRing::map(&fd, offsets.tx, SEND_FRAMES).map_err(at_map)?;

        let spare = frames.split_off(receive_frames as usize);
        for frame in frames {
            fill.put(&umem, frame);
        }
        fill.publish();
        bind_to(&fd, interface, queue, config)?;
        let is_zero_copy =
            xdp_options(&fd).is_ok_and(|options| options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY));
        let held = ArrayVec::new();
        Ok(Self {
            fd,
            fill,
            receive,
            send,
            completion,
            spare,
            held,
            umem,
            is_zero_copy,
            queued: 0,
            sends: SendCounts::default(),
            invalid: 0,
            kernel_losses: LastAnswer::default(),
        })
    }

    pub(super) fn is_zero_copy(&self) -> bool {
        self.is_zero_copy
    }

    /// Gives the frames of the last burst back to the kernel.
    pub(super) fn release(&mut self) {
        if self.held.is_empty() {
            return;
        }
        for place in self.held.drain(..) {
            self.fill.put(&self.umem, place.frame);
        }
        self.fill.publish();
    }

    /// Takes up to `room` packets, which [`packets`](Self::packets) then has.
    pub(super) fn take(&mut self, room: usize) {
        let room = room.min(self.held.remaining_capacity());
        while self.held.len() < room {
            match self.receive.take(&self.umem) {
                Some(Ok(place)) => self.held.push(place),
                // Its frame is lost: which one it was is not known.
                Some(Err(_)) => self.invalid += 1,
                None => break,
            }
        }
        self.receive.publish();
        if self.held.is_empty() && self.fill.needs_wakeup() {
            // An answer is of no use: an error shows in the state of the interface.
            let _ = recv(&self.fd, &mut [0u8; 0], RecvFlags::DONTWAIT);
        }
    }

    /// The packets of the last burst.
    pub(super) fn packets(&self) -> impl Iterator<Item = &[u8]> {
        self.held.iter().map(|place| self.umem.packet(place))
    }

    /// Copies a packet into a frame and queues it for [`flush`](Self::flush).
    pub(super) fn push(&mut self, packet: &[u8]) -> Result<(), TransmitError> {
        if packet.len() > self.umem.frame_bytes() {
            return Err(TransmitError::TooLong);
        }
        if !self.has_room() {
            return Err(TransmitError::QueueFull);
        }
        let Some(mut frame) = self.spare.pop() else { return Err(TransmitError::QueueFull) };
        self.umem.write(&mut frame, packet);
        match self.send.put(&self.umem, frame, packet.len() as u32) {
            Ok(()) => {
                self.queued += 1;
                self.sends.written += 1;
            }
            Err(frame) => {
                self.spare.push(frame);
                return Err(TransmitError::QueueFull);
            }
        }
        Ok(())
    }

    /// Whether there is a frame to send from, and a place in the ring.
    pub(super) fn has_room(&mut self) -> bool {
        if self.spare.is_empty() {
            self.complete();
        }
        !self.spare.is_empty() && self.send.has_room()
    }

    /// Takes back the frames that were sent.
    fn complete(&mut self) {
        while let Some(frame) = self.completion.take(&self.umem) {
            self.spare.push(frame);
            self.sends.completed += 1;
        }
        self.completion.publish();
    }

    /// Whether packets wait for a flush.
    pub(super) fn has_queued(&self) -> bool {
        self.queued > 0 || !self.send.is_drained()
    }

    /// Shows the queued packets to the kernel, and wakes it if it has to be.
    pub(super) fn flush(&mut self) -> FlushOutcome {
        if self.queued > 0 {
            self.send.publish();
            self.queued = 0;
        }
        for _ in 0..MAX_SENDS {
            if self.send.is_drained() || !self.send.needs_wakeup() {
                return FlushOutcome::Done;
            }
            match send(&self.fd, &[], SendFlags::DONTWAIT) {
                // In copy mode a call sends a batch. EAGAIN: there are more, or the interface's queue or the
                // completion ring is full; ENOBUFS: there is no memory. The rest stays in the ring.
                Ok(_) | Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => {}
                // In copy mode the call ended with a packet that was dropped (`__xsk_generic_xmit`). The
                // kernel completes it as if it had been sent. In zero-copy mode the driver could not be
                // woken.
                Err(Errno::BUSY) if self.is_zero_copy => {}
                Err(Errno::BUSY) => self.sends.dropped += 1,
                Err(_) => return FlushOutcome::Down,
            }
            self.complete();
        }
        if self.send.is_drained() { FlushOutcome::Done } else { FlushOutcome::Waiting }
    }

    /// Received packets that the kernel or this socket lost, and packets that were not sent.
    pub(super) fn losses(&self) -> QueueLosses {
        let answer = xdp_statistics(&self.fd).map(|statistics| QueueLosses {
            // An empty fill ring is among the dropped.
            received: statistics.rx_dropped + statistics.rx_ring_full.unwrap_or(0),
            sent: statistics.tx_invalid_descs,
        });
        let by_kernel = self.kernel_losses.after(answer, "XDP_STATISTICS");
        QueueLosses { received: by_kernel.received + self.invalid, sent: by_kernel.sent + self.sends.dropped }
    }

    /// Packets that left through the interface, by the completion ring.
    pub(super) fn sent(&mut self) -> u64 {
        self.complete();
        self.sends.sent()
    }

    /// Packets that were to be sent and are neither sent nor lost. If the socket ends now they are lost.
    pub(super) fn unsent(&mut self) -> u64 {
        let losses = self.losses().sent;
        self.sends.written.saturating_sub(self.sent() + losses)
    }
}

impl AsFd for QueueSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Counters as the kernel last reported them. They stay while it does not answer: counters that go back to
/// zero would be counted again later.
#[derive(Debug, Default)]
pub(super) struct LastAnswer<T: Copy> {
    last: Cell<T>,
    has_noted_failure: Cell<bool>,
}

impl<T: Copy> LastAnswer<T> {
    /// The counters of this answer, or if it is an error those of the last one. Logs the first error.
    pub(super) fn after<E: std::fmt::Display>(&self, answer: Result<T, E>, operation: &'static str) -> T {
        match answer {
            Ok(counters) => self.last.set(counters),
            Err(error) if !self.has_noted_failure.replace(true) => {
                tracing::error!(%error, "{operation}: losses are not counted while the kernel does not answer");
            }
            Err(_) => {}
        }
        self.last.get()
    }
}

/// Packets that a socket lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct QueueLosses {
    pub(super) received: u64,
    pub(super) sent: u64,
}

/// Binds a socket to a queue, as the settings want it.
fn bind_to(
    fd: &OwnedFd,
    interface: &Interface,
    queue: u32,
    config: &AfXdpConfig,
) -> Result<(), NoQueueSocket> {
    let mode = match config.zero_copy {
        ZeroCopy::Auto => SocketAddrXdpFlags::empty(),
        ZeroCopy::Always => SocketAddrXdpFlags::XDP_ZEROCOPY,
        ZeroCopy::Never => SocketAddrXdpFlags::XDP_COPY,
    };
    let flags = mode | SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
    let address = SocketAddrXdp::new(flags, interface.index.cast_unsigned(), queue);
    let name = || interface.name.clone();
    bind(fd, &address).map_err(|error| match error {
        Errno::INVAL => NoQueueSocket::NoSuchQueue,
        Errno::BUSY => WireError::QueueTaken { interface: name(), queue }.into(),
        Errno::OPNOTSUPP | Errno::PROTONOSUPPORT if config.zero_copy == ZeroCopy::Always => {
            WireError::NoZeroCopy { interface: name() }.into()
        }
        Errno::NETDOWN => WireError::InterfaceDown { interface: name() }.into(),
        error => failed(&interface.name, "bind(AF_XDP)", io::Error::from(error)).into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filtered_family_needs_privileges() {
        let with = "protocol  size sockets\nPACKET    1600      0\nXDP       1152      0\n";
        let filtered = no_family("eth0", with).to_string();
        assert!(filtered.contains("RestrictAddressFamilies=AF_XDP"), "{filtered}");
        let without = no_family("eth0", "protocol  size sockets\nPACKET    1600      0\n").to_string();
        assert!(without.contains("the kernel has no AF_XDP sockets"), "{without}");
    }

    #[test]
    fn counters_stay_while_the_kernel_does_not_answer() {
        let losses = LastAnswer::default();
        assert_eq!(losses.after(Err::<u64, _>(Errno::NOBUFS), "a call"), 0);
        assert_eq!(losses.after(Ok::<_, Errno>(7), "a call"), 7);
        assert_eq!(losses.after(Err(Errno::NOBUFS), "a call"), 7);
        assert_eq!(losses.after(Ok::<_, Errno>(9), "a call"), 9);
    }
}

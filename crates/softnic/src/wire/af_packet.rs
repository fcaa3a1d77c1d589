//! A live interface through an AF_PACKET socket.
//!
//! The kernel sees every frame too: what rules claim is *also* delivered here, and the kernel answers as it always does.
//! Received frames stay in the ring that is shared with the kernel until the next burst; sent frames are copied once.
//! VLAN tags that the kernel or the interface stripped are put back, and checksums that a local sender left to offload
//! are completed, so that frames are as a wire would carry them. The wire never blocks.
//!
//! An interface that is removed takes its packet socket with it. The wire is then down until there is an interface of
//! that name again, and attaches to it with a new socket and ring; what it has counted stays.

mod ring;
mod socket;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use packet::MacAddr;

use self::ring::{Arrival, Ring, Taken};
use self::socket::{Flushed, Sender};
use self::socket::{Interface, Link, PacketSocket, failed};
use super::{
    AfPacketConfig, BURST_FRAMES, Burst, MAX_FRAME_BYTES, RxFrame, TransmitError, Wire, WireError, WireState,
};

/// An Ethernet header.
const HEADER_BYTES: usize = 14;
/// A VLAN tag, which the kernel lets a frame have beyond the MTU if it is a C-VLAN tag (`packet_snd`).
const TAG_BYTES: usize = 4;
const C_VLAN_TPID: [u8; 2] = [0x81, 0x00];
/// How the interface is, is asked after this many bursts without a frame.
const EMPTY_BURSTS_PER_CHECK: u32 = 1024;
/// How long after a look for an interface that was removed the next one comes, at the earliest.
const ATTACH_INTERVAL: Duration = Duration::from_millis(250);

impl AfPacketConfig {
    /// The address of the interface, if it is one that could be opened now; asks the kernel, and opens no packet socket.
    pub(super) fn station(&self) -> Option<MacAddr> {
        Interface::find(&self.interface).ok().map(|interface| interface.mac)
    }
}

/// Keeps an interface promiscuous, regardless of other processes, until this is dropped or the process ends.
#[derive(Debug)]
pub struct Promiscuous {
    _socket: PacketSocket,
}

impl Promiscuous {
    /// Starts it.
    ///
    /// # Errors
    /// Which interface, and why: unknown, down, not Ethernet, or CAP_NET_RAW is missing.
    pub fn hold(interface: &str) -> Result<Self, WireError> {
        let socket = PacketSocket::unbound(&Interface::find(interface)?)?;
        socket.make_promiscuous()?;
        Ok(Self { _socket: socket })
    }
}

/// A port that is a live interface.
#[derive(Debug)]
pub struct AfPacketWire {
    config: AfPacketConfig,
    ring: Ring,
    socket: PacketSocket,
    interface: Interface,
    sender: Sender,
    state: WireState,
    /// The interface was removed, and is looked for.
    gone: Option<Gone>,
    empty_bursts: u32,
    /// Frames whose slot could not be used.
    malformed: u64,
    /// Frames that found the ring full, as far as the kernel was asked; asking resets its count.
    drops: Cell<u64>,
    /// Whether merged frames, and frames beyond the MTU, were met; each is logged once.
    met_merged: bool,
    met_long: bool,
}

/// The search for an interface that was removed.
#[derive(Debug)]
struct Gone {
    /// When it is looked for again.
    next: Instant,
    /// What was in the way last, if not that it is not there or not up; each obstacle is said once.
    obstacle: String,
}

/// The length of the longest frame of an interface.
fn frame_bytes(interface: &Interface) -> usize {
    (interface.mtu_bytes as usize + HEADER_BYTES + TAG_BYTES).min(MAX_FRAME_BYTES)
}

/// Opens the packet socket of an interface, with its ring, and starts receiving.
fn attach(config: &AfPacketConfig) -> Result<(Interface, PacketSocket, Ring), WireError> {
    let interface = Interface::find(&config.interface)?;
    let layout = ring::layout(config, interface.mtu_bytes)?;
    let socket = PacketSocket::open(&interface, &layout, config.promiscuous)?;
    let ring = Ring::map(&socket, &layout).map_err(|error| failed(&interface.name, "mmap", error.into()))?;
    socket.bind()?;
    Ok((interface, socket, ring))
}

impl AfPacketWire {
    /// Opens the packet socket with its ring and starts receiving.
    ///
    /// # Errors
    /// Which interface, and why: unknown, down, not Ethernet, not permitted, or a ring that is too large.
    pub fn open(config: &AfPacketConfig) -> Result<Self, WireError> {
        let (interface, socket, ring) = attach(config)?;
        let mut wire = Self {
            config: config.clone(),
            ring,
            socket,
            sender: Sender::new(frame_bytes(&interface)),
            interface,
            state: WireState::Live,
            gone: None,
            empty_bursts: 0,
            malformed: 0,
            drops: Cell::new(0),
            met_merged: false,
            met_long: false,
        };
        wire.check_link();
        Ok(wire)
    }

    /// Takes up to `room` received frames out of the ring.
    fn take(&mut self, room: usize) -> ArrayVec<Arrival, BURST_FRAMES> {
        let mut arrivals = ArrayVec::new();
        // Bounded by the ring as well: frames on their way out may fill it all.
        while arrivals.len() < room.min(BURST_FRAMES) {
            match self.ring.take() {
                Some(Taken::Frame(arrival)) => arrivals.push(arrival),
                Some(Taken::Outgoing) => {}
                Some(Taken::Malformed) => self.malformed += 1,
                None => break,
            }
        }
        arrivals
    }

    fn count_empty_burst(&mut self) {
        self.empty_bursts += 1;
        if self.empty_bursts >= EMPTY_BURSTS_PER_CHECK {
            self.empty_bursts = 0;
            self.check_link();
        }
    }

    fn check_link(&mut self) {
        let link = self.socket.link();
        self.state = if link == Link::Up { WireState::Live } else { WireState::Down };
        if link == Link::Gone {
            self.look_for_interface();
        }
    }

    /// The kernel has unbound the socket for good: an interface of the same name is another one to it.
    fn look_for_interface(&mut self) {
        let now = Instant::now();
        let interface = self.config.interface.as_str();
        let gone = self.gone.get_or_insert_with(|| {
            tracing::error!(
                interface,
                "the interface was removed or moved away: nothing is received until there is one of this name again"
            );
            self.sender.abandon();
            Gone { next: now, obstacle: String::new() }
        });
        if now < gone.next {
            return;
        }
        gone.next = now + ATTACH_INTERVAL;
        match attach(&self.config) {
            Ok(attached) => self.attached(attached),
            Err(WireError::UnknownInterface { .. } | WireError::InterfaceDown { .. }) => {}
            Err(error) => {
                let obstacle = error.to_string();
                if obstacle != gone.obstacle {
                    tracing::error!(interface, "the interface is back and cannot be attached to: {obstacle}");
                    gone.obstacle = obstacle;
                }
            }
        }
    }

    /// Goes on with another interface of the same name. What was counted on the one before is kept.
    fn attached(&mut self, (interface, socket, ring): (Interface, PacketSocket, Ring)) {
        self.drops.set(self.drops.get() + self.socket.take_drops());
        (self.interface, self.socket, self.ring) = (interface, socket, ring);
        self.sender.resize(frame_bytes(&self.interface));
        (self.met_merged, self.met_long, self.gone) = (false, false, None);
        self.state = if self.socket.link() == Link::Up { WireState::Live } else { WireState::Down };
        let Interface { name, mac, mtu_bytes, .. } = &self.interface;
        tracing::warn!(interface = %name, %mac, mtu_bytes, "attached to the interface again");
    }

    /// Frames that no medium carries like this count as oversize; the operator has to end it.
    fn note_oversize(&mut self, arrivals: &[Arrival]) {
        let longest = self.interface.mtu_bytes as usize + HEADER_BYTES + 2 * TAG_BYTES;
        let name = &self.interface.name;
        if !self.met_merged && arrivals.iter().any(|arrival| arrival.merged) {
            self.met_merged = true;
            tracing::warn!(
                interface = %name,
                "frames arrive merged into larger ones and count as oversize: `ethtool -K {name} gro off lro off`, and \
                 where the sender is a veth or tap on this machine, `ethtool -K SENDER tso off gso off`"
            );
        }
        let is_long = |arrival: &Arrival| !arrival.merged && arrival.wire_len as usize > longest;
        if !self.met_long && arrivals.iter().any(is_long) {
            self.met_long = true;
            tracing::warn!(
                interface = %name,
                mtu_bytes = self.interface.mtu_bytes,
                "frames longer than the MTU arrive and count as oversize: raise the MTU of {name} to that of its \
                 neighbours and start again"
            );
        }
    }

    fn longest(&self, frame: &[u8]) -> usize {
        let tagged = frame.get(12..14).is_some_and(|tpid| tpid == C_VLAN_TPID);
        self.interface.mtu_bytes as usize + HEADER_BYTES + if tagged { TAG_BYTES } else { 0 }
    }
}

impl Wire for AfPacketWire {
    fn receive<'w>(&'w mut self, burst: &mut Burst<'w>) {
        self.ring.release();
        let arrivals = self.take(burst.capacity_left());
        if arrivals.is_empty() {
            return self.count_empty_burst();
        }
        self.empty_bursts = 0;
        self.state = WireState::Live;
        self.note_oversize(&arrivals);
        for arrival in &arrivals {
            let bytes = self.ring.frame(arrival);
            burst.push(RxFrame {
                // However short, a merged frame is none: cut to its header it cannot be delivered as one.
                bytes: if arrival.merged { &bytes[..bytes.len().min(HEADER_BYTES)] } else { bytes },
                wire_len: arrival.wire_len,
                timestamp_ns: arrival.timestamp_ns,
                checksum: arrival.checksum,
            });
        }
    }

    fn transmit(&mut self, frame: &[u8]) -> Result<(), TransmitError> {
        TransmitError::check_length(frame, self.longest(frame))?;
        if self.state == WireState::Down {
            return Err(TransmitError::Down);
        }
        if self.sender.is_full() {
            self.flush();
        }
        self.sender.push(frame)
    }

    fn flush(&mut self) {
        if self.sender.flush(&self.socket) == Flushed::Down {
            // `receive` finds out whether it is down or gone.
            self.state = WireState::Down;
        }
    }

    fn state(&self) -> WireState {
        self.state
    }

    fn sleep_hint(&self) -> Option<RawFd> {
        Some(self.socket.as_fd().as_raw_fd())
    }

    fn describe(&self) -> String {
        let name = &self.interface.name;
        if self.gone.is_some() {
            return format!("{name} (af_packet; the interface is gone, to be attached to when it is back)");
        }
        format!("{name} (af_packet; the kernel sees every frame too)")
    }

    fn mac(&self) -> MacAddr {
        self.interface.mac
    }

    fn mtu_bytes(&self) -> u32 {
        self.interface.mtu_bytes
    }

    fn losses(&self) -> u64 {
        self.drops.set(self.drops.get() + self.socket.take_drops());
        self.drops.get() + self.malformed
    }

    fn transmit_losses(&self) -> u64 {
        self.sender.losses()
    }
}

impl Drop for AfPacketWire {
    /// What waits is sent or at least counted.
    fn drop(&mut self) {
        self.flush();
        let frames = self.sender.abandon();
        let losses = self.sender.losses();
        if frames > 0 {
            let interface = &self.interface.name;
            tracing::warn!(%interface, frames, losses, "sent frames were still queued when the interface was closed");
        }
    }
}

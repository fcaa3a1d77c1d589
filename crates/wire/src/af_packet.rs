//! A live interface through AF_PACKET sockets.
//!
//! The kernel receives every frame too, and answers as it always does. Received frames stay in rings that are
//! shared with the kernel until the next burst; sent frames are copied once. VLAN tags that the kernel or the
//! interface stripped are put back, and checksums that a local sender left to offload are completed, so that
//! frames are as a wire would carry them. The wire never blocks.
//!
//! Merged frames of up to 64 KiB would need slots of that size for every frame. So there are two sockets,
//! each with a ring of slots, and a filter that sends each frame to one of them by its length. Frames are
//! taken in the order of their time stamps, which is that of their arrival for the frames of a stream (see
//! [`AfPacketWire::earliest`]). A ring of blocks ([`HandOver::Blocks`]) has room for frames of any length,
//! and is the only one then. `split` cuts merged frames into those that they were merged from; a frame whose
//! segments do not all fit a burst stays in its slot until the next one.
//!
//! An interface that is removed takes its packet sockets with it. The wire is then down until there is an
//! interface of that name again, and attaches to it with new sockets and rings; what it has counted stays.

mod ring;
mod socket;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use packet::MacAddr;
use packet::offload::{Split, Unsplittable};
use rustix::event::epoll;

use self::ring::{Arrival, Layout, Ring, Taken};
use self::socket::{Flushed, Lengths, PacketSocket, Sender};
use crate::interface::{Interface, Link, failed};
use crate::{
    AfPacketConfig, BURST_FRAMES, Burst, Checksum, ETHERNET_BYTES, HandOver, LiveInterface, MAX_FRAME_BYTES,
    MAX_MTU_BYTES, MergedFrames, ReceiveCounters, RxFrame, SleepHint, Splits, TAG_BYTES, TransmitError,
    VLAN_TAGS_BYTES, Wire, WireError, WireState,
};

/// The type of the VLAN tag that the kernel lets a frame have beyond the MTU (`packet_snd`).
const C_VLAN_TPID: [u8; 2] = [0x81, 0x00];
/// How the interface is, is asked after this many bursts without a frame.
const EMPTY_BURSTS_PER_CHECK: u32 = 1024;
/// An engine that sleeps asks how the interface is after this time.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// For how long frames gather in the ring while the engine sleeps ([`SleepHint::Readable`]). A ring of the
/// default size then holds 8 million frames a second.
const GATHER: Duration = Duration::from_micros(500);
/// When the engine is to come back for frames that the socket could not take.
const FLUSH_INTERVAL: Duration = Duration::from_micros(50);
/// How long after a look for an interface that was removed the next one comes, at the earliest.
const ATTACH_INTERVAL: Duration = Duration::from_millis(250);

impl AfPacketConfig {
    /// The interface, if it is one that could be opened now; asks the kernel, and opens no packet socket.
    pub(super) fn live_interface(&self) -> Option<LiveInterface> {
        let Interface { mac, mtu_bytes, index, .. } = Interface::find(&self.interface).ok()?;
        Some(LiveInterface { mac, mtu_bytes, index: index.cast_unsigned() })
    }
}

/// Keeps an interface promiscuous, regardless of other processes, until this is dropped or the process ends.
#[derive(Debug)]
pub struct Promiscuous {
    _socket: PacketSocket,
}

impl Promiscuous {
    /// Checks that the interface can be made promiscuous, as far as that is known without doing it.
    ///
    /// # Errors
    /// The errors of [`Promiscuous::hold`].
    pub fn check(interface: &str) -> Result<(), WireError> {
        PacketSocket::unbound(&Interface::find(interface)?).map(drop)
    }

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
    attached: Attached,
    sender: Sender,
    /// The merged frame of which segments are still to be handed over.
    splitting: Option<Splitting>,
    /// The segments of this burst, in places for the longest frame of the interface.
    segments: Box<[u8]>,
    segment_bytes: usize,
    state: WireState,
    /// The interface was removed, and is looked for.
    gone: Option<Gone>,
    empty_bursts: u32,
    /// When an engine that sleeps asks next how the interface is.
    next_check: Instant,
    splits: Splits,
    /// Frames whose slot could not be used.
    malformed: u64,
    /// Frames that found a ring full, as far as the kernel was asked; asking resets its count.
    drops: Cell<u64>,
    /// Whether merged frames that cannot be split, and frames beyond the MTU, were met; each is logged once.
    met_unsplittable: bool,
    met_long: bool,
}

/// The kernel's side of an interface that was found.
#[derive(Debug)]
struct Attached {
    interface: Interface,
    /// For frames of the length that the interface carries and for those that are longer, or one for all.
    receivers: ArrayVec<Receiver, 2>,
    /// Readable when one of the sockets is.
    readable: OwnedFd,
}

/// A packet socket and its ring.
#[derive(Debug)]
struct Receiver {
    ring: Ring,
    socket: PacketSocket,
}

/// The receiver for frames of the length that the interface carries. It sends, too.
const FRAMES: usize = 0;
/// The one for longer frames.
const MERGED: usize = 1;

/// A merged frame that is being split. It is the last one that was taken from its ring.
#[derive(Debug)]
struct Splitting {
    /// The receiver that it came from.
    source: usize,
    arrival: Arrival,
    split: Split,
    /// The segment that is next.
    next: usize,
}

/// A part of a burst.
#[derive(Debug)]
enum Piece {
    /// With the receiver that it came from.
    Frame(usize, Arrival),
    /// This many bytes in the place of `segments` that has the piece's number.
    Segment { bytes: usize, timestamp_ns: u64 },
}

/// The search for an interface that was removed.
#[derive(Debug)]
struct Gone {
    /// When it is looked for again.
    next: Instant,
    /// The last obstacle, apart from an interface that is missing or down; each obstacle is logged once.
    obstacle: String,
}

/// The length of the longest frame of an interface.
fn frame_bytes(interface: &Interface) -> usize {
    (interface.mtu_bytes as usize + ETHERNET_BYTES + TAG_BYTES).min(MAX_FRAME_BYTES)
}

/// The length of the longest frame that merged ones are split into.
fn segment_bytes(interface: &Interface) -> usize {
    (interface.mtu_bytes as usize + ETHERNET_BYTES + VLAN_TAGS_BYTES).min(MAX_FRAME_BYTES)
}

impl Attached {
    /// Opens the packet sockets of an interface, with their rings, and starts receiving.
    fn to(config: &AfPacketConfig) -> Result<Self, WireError> {
        let interface = Interface::find(&config.interface)?;
        let layout = Layout::of(config, interface.mtu_bytes)?;
        let mut receivers = ArrayVec::new();
        receivers.push(Receiver::open(&interface, &layout, layout.longest().map(Lengths::UpTo))?);
        if let Some(longest) = layout.longest() {
            receivers.push(Receiver::open(&interface, &Layout::merged(), Some(Lengths::Beyond(longest)))?);
        }
        let readable =
            readable(&receivers).map_err(|error| failed(&interface.name, "epoll", error.into()))?;
        if config.promiscuous {
            receivers[FRAMES].socket.make_promiscuous()?;
        }
        for receiver in receivers.iter().rev() {
            receiver.socket.bind()?;
        }
        Ok(Self { interface, receivers, readable })
    }

    fn bytes(&self, source: usize, arrival: &Arrival) -> &[u8] {
        self.receivers[source].ring.frame(arrival)
    }

    fn take_drops(&self) -> u64 {
        self.receivers.iter().map(|receiver| receiver.socket.take_drops()).sum()
    }

    /// How the interface is. Clears the errors of the sockets.
    fn link(&self) -> Link {
        if let Some(merged) = self.receivers.get(MERGED) {
            let _ = merged.socket.link();
        }
        self.receivers[FRAMES].socket.link()
    }
}

impl Receiver {
    fn open(interface: &Interface, layout: &Layout, lengths: Option<Lengths>) -> Result<Self, WireError> {
        let socket = PacketSocket::open(interface, layout, lengths)?;
        let ring =
            Ring::map(&socket, layout).map_err(|error| failed(&interface.name, "mmap", error.into()))?;
        Ok(Self { ring, socket })
    }
}

/// A descriptor that is readable when the socket of one of these is.
fn readable(receivers: &[Receiver]) -> rustix::io::Result<OwnedFd> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for receiver in receivers {
        epoll::add(&epoll, &receiver.socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    }
    Ok(epoll)
}

impl AfPacketWire {
    /// Checks what [`AfPacketWire::open`] needs, and receives nothing.
    pub(crate) fn check(config: &AfPacketConfig) -> Result<(), WireError> {
        let interface = Interface::find(&config.interface)?;
        Layout::of(config, interface.mtu_bytes)?;
        PacketSocket::unbound(&interface).map(drop)
    }

    /// Opens the packet sockets with their rings and starts receiving.
    ///
    /// # Errors
    /// Which interface, and why: unknown, down, not Ethernet, not permitted, or a ring that is too large.
    pub fn open(config: &AfPacketConfig) -> Result<Self, WireError> {
        let attached = Attached::to(config)?;
        let segment_bytes = segment_bytes(&attached.interface);
        let mut wire = Self {
            config: config.clone(),
            sender: Sender::new(frame_bytes(&attached.interface)),
            splitting: None,
            segments: vec![0; BURST_FRAMES * segment_bytes].into_boxed_slice(),
            segment_bytes,
            attached,
            state: WireState::Live,
            gone: None,
            empty_bursts: 0,
            next_check: Instant::now() + CHECK_INTERVAL,
            splits: Splits::default(),
            malformed: 0,
            drops: Cell::new(0),
            met_unsplittable: false,
            met_long: false,
        };
        wire.check_link();
        Ok(wire)
    }

    /// Gives the slots of the last burst back, but the one of a frame that is still being split.
    fn release(&mut self) {
        for (number, receiver) in self.attached.receivers.iter_mut().enumerate() {
            match &mut self.splitting {
                Some(Splitting { source, arrival, .. }) if *source == number => {
                    receiver.ring.release_before(arrival);
                }
                _ => receiver.ring.release(),
            }
        }
    }

    /// Takes up to `room` frames out of the rings, merged ones in segments.
    fn take(&mut self, room: usize) -> ArrayVec<Piece, BURST_FRAMES> {
        let kept = self.config.merged == MergedFrames::Whole;
        let mut pieces = ArrayVec::new();
        // Bounded by the rings as well: frames on their way out may fill them all.
        while pieces.len() < room.min(BURST_FRAMES) {
            if let Some(segment) = self.next_segment(pieces.len()) {
                pieces.push(segment);
                continue;
            }
            let Some(source) = self.earliest() else { break };
            match self.attached.receivers[source].ring.take(kept) {
                Some(Taken::Frame(arrival)) if self.begins_split(source, &arrival) => {}
                Some(Taken::Frame(arrival)) => pieces.push(Piece::Frame(source, arrival)),
                Some(Taken::Outgoing) => {}
                Some(Taken::Malformed) => self.malformed += 1,
                None => break,
            }
        }
        pieces
    }

    /// The ring whose next frame arrived first. The kernel puts the frames of a stream into the rings one
    /// after the other, and stamps them in that order. So a ring that is still empty when a frame of the
    /// other one has been seen has none that is earlier.
    fn earliest(&mut self) -> Option<usize> {
        let mut rings = self.attached.receivers.iter_mut().map(|receiver| &mut receiver.ring);
        let frames = rings.next()?;
        let frame = frames.next_timestamp_ns();
        let merged = rings.next().and_then(Ring::next_timestamp_ns);
        let Some(merged) = merged else { return frame.map(|_| FRAMES) };
        // If there was none, one may have come before the merged frame did.
        let frame = frame.or_else(|| frames.next_timestamp_ns());
        Some(if frame.is_some_and(|frame| frame <= merged) { FRAMES } else { MERGED })
    }

    /// Begins to split a frame that was just taken, if it is a merged one and can be split.
    fn begins_split(&mut self, source: usize, arrival: &Arrival) -> bool {
        let merged = match &arrival.merged {
            Some(merged) if self.config.merged == MergedFrames::Split => merged,
            _ => return false,
        };
        let split = if arrival.is_whole() {
            Split::of(self.attached.bytes(source, arrival), merged, self.segment_bytes)
                .map_err(NotSplit::Unsplittable)
        } else {
            Err(NotSplit::Cut)
        };
        match split {
            Ok(split) => {
                self.splits.frames += 1;
                self.splitting = Some(Splitting { source, arrival: *arrival, split, next: 0 });
                true
            }
            Err(reason) => {
                self.note_unsplittable(reason);
                false
            }
        }
    }

    /// Writes the next segment of a frame that is being split to a place of `segments`.
    fn next_segment(&mut self, place: usize) -> Option<Piece> {
        let Splitting { source, arrival, split, next } = self.splitting.as_mut()?;
        let frame = self.attached.bytes(*source, arrival);
        let to = &mut self.segments[place * self.segment_bytes..][..self.segment_bytes];
        let segment =
            Piece::Segment { bytes: split.write(frame, *next, to), timestamp_ns: arrival.timestamp_ns };
        self.splits.segments += 1;
        *next += 1;
        if *next == split.segments() {
            self.splitting = None;
        }
        Some(segment)
    }

    fn count_empty_burst(&mut self) {
        self.empty_bursts += 1;
        if self.empty_bursts >= EMPTY_BURSTS_PER_CHECK {
            self.empty_bursts = 0;
            self.check_link();
        }
    }

    fn check_link(&mut self) {
        let link = self.attached.link();
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
        match Attached::to(&self.config) {
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
    fn attached(&mut self, attached: Attached) {
        self.drops.set(self.drops.get() + self.attached.take_drops());
        self.attached = attached;
        let interface = &self.attached.interface;
        self.sender.resize(frame_bytes(interface));
        self.splitting = None;
        self.segment_bytes = segment_bytes(interface);
        self.segments = vec![0; BURST_FRAMES * self.segment_bytes].into_boxed_slice();
        (self.met_unsplittable, self.met_long, self.gone) = (false, false, None);
        self.state = if self.attached.link() == Link::Up { WireState::Live } else { WireState::Down };
        let Interface { name, mac, mtu_bytes, .. } = &self.attached.interface;
        tracing::warn!(interface = %name, %mac, mtu_bytes, "attached to the interface again");
    }

    /// Merged frames that are not split count as oversize; the operator has to end it.
    fn note_unsplittable(&mut self, reason: NotSplit) {
        if !self.met_unsplittable {
            self.met_unsplittable = true;
            let Interface { name, mtu_bytes, .. } = &self.attached.interface;
            let advice = advice(reason, name, *mtu_bytes);
            tracing::warn!(interface = %name, "a merged frame cannot be split and counts as oversize: {advice}");
        }
    }

    /// Notes frames that are longer than the interface's own, unless those are taken too.
    fn note_long(&mut self, pieces: &[Piece]) {
        if self.takes_merged() {
            return;
        }
        let Interface { name, mtu_bytes, .. } = &self.attached.interface;
        let longest = segment_bytes(&self.attached.interface);
        let is_long = |piece: &Piece| matches!(piece, Piece::Frame(_, arrival) if arrival.merged.is_none() && arrival.wire_len as usize > longest);
        if !self.met_long && pieces.iter().any(is_long) {
            self.met_long = true;
            tracing::warn!(
                interface = %name,
                mtu_bytes,
                "frames arrive that are too long and count as oversize: {}",
                mtu_advice(name, *mtu_bytes)
            );
        }
    }

    fn longest(&self, frame: &[u8]) -> usize {
        let tagged = frame.get(12..14).is_some_and(|tpid| tpid == C_VLAN_TPID);
        self.attached.interface.mtu_bytes as usize + ETHERNET_BYTES + if tagged { TAG_BYTES } else { 0 }
    }
}

impl Wire for AfPacketWire {
    fn receive<'w>(&'w mut self, burst: &mut Burst<'w>) {
        self.release();
        let pieces = self.take(burst.capacity_left());
        if pieces.is_empty() {
            return self.count_empty_burst();
        }
        self.empty_bursts = 0;
        self.state = WireState::Live;
        self.note_long(&pieces);
        let kept = self.config.merged == MergedFrames::Whole;
        for (place, piece) in pieces.iter().enumerate() {
            burst.push(match piece {
                Piece::Frame(source, arrival) => {
                    let bytes = self.attached.bytes(*source, arrival);
                    let kept = kept || arrival.merged.is_none();
                    RxFrame {
                        // However short, a merged frame is none: cut to its header it cannot be delivered as
                        // one.
                        bytes: if kept { bytes } else { &bytes[..bytes.len().min(ETHERNET_BYTES)] },
                        wire_len: arrival.wire_len,
                        timestamp_ns: arrival.timestamp_ns,
                        checksum: arrival.checksum,
                    }
                }
                Piece::Segment { bytes, timestamp_ns } => RxFrame {
                    timestamp_ns: *timestamp_ns,
                    checksum: Checksum::Unknown,
                    ..RxFrame::new(&self.segments[place * self.segment_bytes..][..*bytes])
                },
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

    fn has_room(&mut self) -> bool {
        if self.sender.is_full() {
            self.flush();
        }
        !self.sender.is_full()
    }

    fn flush(&mut self) {
        if self.sender.flush(&self.attached.receivers[FRAMES].socket) == Flushed::Down {
            // `receive` finds out whether it is down or gone.
            self.state = WireState::Down;
        }
    }

    fn state(&self) -> WireState {
        self.state
    }

    fn sleep_hint(&mut self) -> SleepHint {
        let now = Instant::now();
        if now >= self.next_check {
            self.next_check = now + CHECK_INTERVAL;
            self.check_link();
        }
        SleepHint::Readable {
            descriptor: self.attached.readable.as_raw_fd(),
            within: if self.sender.is_empty() { CHECK_INTERVAL } else { FLUSH_INTERVAL },
            gather: match self.config {
                AfPacketConfig { busy_poll: true, .. } => None,
                // Frames gather in the kernel.
                AfPacketConfig { hand_over: HandOver::Blocks, .. } => Some(Duration::ZERO),
                _ => Some(GATHER),
            },
        }
    }

    fn describe(&self) -> String {
        let name = &self.attached.interface.name;
        if self.gone.is_some() {
            return format!("{name} (af_packet; the interface is gone, to be attached to when it is back)");
        }
        format!("{name} (af_packet; the kernel sees every frame too)")
    }

    fn mac(&self) -> MacAddr {
        self.attached.interface.mac
    }

    fn mtu_bytes(&self) -> u32 {
        self.attached.interface.mtu_bytes
    }

    fn receive_counters(&self) -> ReceiveCounters {
        self.drops.set(self.drops.get() + self.attached.take_drops());
        ReceiveCounters { lost: self.drops.get() + self.malformed, ..ReceiveCounters::default() }
    }

    fn takes_merged(&self) -> bool {
        self.config.merged == MergedFrames::Whole
    }

    fn splits(&self) -> Splits {
        self.splits
    }

    fn transmit_losses(&self) -> u64 {
        self.sender.losses()
    }
}

impl Drop for AfPacketWire {
    /// Sends what waits, or at least counts it.
    fn drop(&mut self) {
        self.flush();
        let frames = self.sender.abandon();
        let losses = self.sender.losses();
        if frames > 0 {
            let interface = &self.attached.interface.name;
            tracing::warn!(%interface, frames, losses, "sent frames were still queued when the interface was closed");
        }
    }
}

/// Why a merged frame counts as oversize.
#[derive(Clone, Copy)]
enum NotSplit {
    /// The frame is longer than a slot of the ring for merged frames: more than an IP header can count (BIG
    /// TCP).
    Cut,
    Unsplittable(Unsplittable),
}

/// The reason and the remedy, for the log.
fn advice(reason: NotSplit, name: &str, mtu_bytes: u32) -> String {
    match reason {
        NotSplit::Cut => format!(
            "it is longer than 65,535 bytes: `ip link set dev {name} gro_max_size 65536 gro_ipv4_max_size 65536`, and \
             where the sender is on this machine `gso_max_size 65536 gso_ipv4_max_size 65536` there"
        ),
        NotSplit::Unsplittable(Unsplittable::Kind) => {
            "it is neither TCP nor UDP: switch segmentation offload off at the sender".to_owned()
        }
        NotSplit::Unsplittable(Unsplittable::Headers) => format!(
            "its headers are not those of one stream in tunnels that can be found: `ethtool -K {name} gro off`, and \
             where the sender is a veth or tap on this machine, `ethtool -K SENDER tso off gso off`"
        ),
        NotSplit::Unsplittable(Unsplittable::SegmentTooLong) => {
            format!("its packets are too long: {}", mtu_advice(name, mtu_bytes))
        }
    }
}

/// The remedy for frames that are longer than those of the interface, or than a port takes.
fn mtu_advice(name: &str, mtu_bytes: u32) -> String {
    if mtu_bytes > MAX_MTU_BYTES {
        return format!(
            "the MTU of {name} is {mtu_bytes}, and a port takes {MAX_MTU_BYTES} at most: `ip link set dev {name} mtu \
             {MAX_MTU_BYTES}`, and start again"
        );
    }
    format!(
        "they are longer than the MTU of {name}: raise it to that of its neighbours, {MAX_MTU_BYTES} at most, and start \
         again"
    )
}

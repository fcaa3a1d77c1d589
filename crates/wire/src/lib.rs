//! Where the frames of a software port come from, and where its sent frames go.
//!
//! The engine of `softnic` owns one [`Wire`] per port and calls it from its own thread, a [`Burst`] at a
//! time. The wires are a traffic generator, recorded captures, a live interface through AF_PACKET or AF_XDP
//! sockets, a link to a soft NIC of another process, a loopback plug, and nothing at all. A wire never
//! blocks, never looks into a frame to decide anything about it, and allocates only while it is being opened.
//!
//! ```
//! use wire::{Burst, WireConfig};
//!
//! let mut wire = WireConfig::Loopback {}.open()?;
//! wire.transmit(&[0; 60])?;
//! wire.flush();
//! let mut burst = Burst::new();
//! wire.receive(&mut burst);
//! assert_eq!(burst.as_slice()[0].bytes, [0; 60]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod af_packet;
mod af_xdp;
mod config;
mod error;
mod gated;
mod generator;
mod interface;
mod link;
mod link_peer;
mod loopback;
mod pcap;
mod store;
#[cfg(test)]
mod tests;

use std::os::fd::RawFd;
use std::time::Duration;

use arrayvec::ArrayVec;
use hugemem::prefetch_read;
use packet::MacAddr;

pub use af_packet::{AfPacketWire, Promiscuous};
pub use af_xdp::{AfXdpWire, MAX_QUEUES as AF_XDP_MAX_QUEUES};
pub use config::SHORT_FORMS;
pub use config::{
    AddressRange, AfPacketConfig, AfXdpConfig, FrameSizes, GeneratorConfig, HandOver, LiveInterface,
    MergedFrames, PcapConfig, PcapMode, PortRange, Rate, TrafficConfig, TrafficProtocol, WireConfig, XdpMode,
    ZeroCopy,
};
pub use error::{TransmitError, WireError};
pub use gated::GatedWire;
pub use generator::GeneratorWire;
pub use interface::{RXNFC_BYTES, RssSizes, RuleCommand, RuleLocations, RxFilterSocket, rss_table};
pub use link::{LinkConfig, LinkEnd, LinkName, LinkWire};
pub use link_peer::LinkPeer;
pub use loopback::{LoopbackWire, NullWire};
pub use pcap::{CaptureError, CaptureReader, CapturedPacket, PcapWire, open_capture};

/// The largest MTU a port can have.
pub const MAX_MTU_BYTES: u32 = 9_216;
/// Bytes of an Ethernet header.
pub const ETHERNET_BYTES: usize = 14;
/// Bytes of a VLAN tag.
pub(crate) const TAG_BYTES: usize = 4;
/// Bytes of the two VLAN tags that may come on top of the MTU.
pub const VLAN_TAGS_BYTES: usize = 2 * TAG_BYTES;

/// The most frames that one [`Burst`] holds.
pub const BURST_FRAMES: usize = 64;

// `Transmitted::refused` and `Wire::leave_to_host` have a bit for each frame.
const _: () = assert!(BURST_FRAMES <= u64::BITS as usize);

/// The largest frame any wire sends, or hands over as one of its medium, in bytes without FCS: a jumbo frame
/// with two VLAN tags. Longer ones are merged or count as oversize.
pub const MAX_FRAME_BYTES: usize = MAX_MTU_BYTES as usize + ETHERNET_BYTES + VLAN_TAGS_BYTES;

/// The longest frame that a wire hands over whole although it was merged from several: an IP packet of 65,535
/// bytes with an Ethernet header and two VLAN tags.
pub const MAX_MERGED_BYTES: usize = u16::MAX as usize + ETHERNET_BYTES + VLAN_TAGS_BYTES;

/// The address of a wire that has no interface behind it: locally administered.
pub const SOFT_MAC: MacAddr = MacAddr([0x02, 0x73, 0x6f, 0x66, 0x74, 0x00]);

/// The frames that arrived at a wire and that it did not hand over, or not for certain; none of the numbers
/// decreases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveCounters {
    /// The wire itself lost them before the engine could see them.
    pub lost: u64,
    /// It is not known whether a claim matches them, because the trees of the claims have no room for them
    /// all ([`xdp::ForwardingCounters::beyond_bounds`]). They were handed over or lost.
    pub beyond_claims: u64,
    /// The wire left them to the host without taking them.
    pub passed: u64,
}

/// A source and sink of Ethernet frames, the lowest layer of a port.
pub trait Wire: Send {
    /// Appends up to `burst.capacity_left()` frames; never blocks. The frames borrow from the wire until its
    /// next call.
    fn receive<'w>(&'w mut self, burst: &mut Burst<'w>);

    /// Does what is due besides frames, while no frames are received: to be called as often as
    /// [`receive`](Wire::receive) would be.
    fn tend(&mut self) {}

    /// Hands out the claims of the wire, to whoever knows the flows: only frames that a claim matches are
    /// received, or dropped before that ([`xdp::ClaimAction`]). Once; `None` if the wire receives all frames,
    /// which is the default.
    fn claims(&mut self) -> Option<xdp::ClaimTable> {
        None
    }

    /// Returns whether the host does not receive the frames that this wire does, so that those which nobody
    /// wants have to be left to it.
    fn takes_away(&self) -> bool {
        false
    }

    /// Leaves frames of the last burst to the host, in order: those whose places among them are set. Returns
    /// what became of them. By default the host has received them already, and none is given back.
    fn leave_to_host(&mut self, _frames: u64) -> GivenBack {
        GivenBack::default()
    }

    /// Sends one frame, or queues it until [`flush`](Wire::flush).
    ///
    /// # Errors
    /// The reason why this frame will not be sent.
    fn transmit(&mut self, frame: &[u8]) -> Result<(), TransmitError>;

    /// Returns whether the longest frame would find room in the queue to the medium. By default there is no
    /// such queue.
    fn has_room(&mut self) -> bool {
        true
    }

    /// Sends at most [`BURST_FRAMES`] frames in order, each as [`transmit`](Wire::transmit) does, up to the
    /// first one that finds no room. Returns what became of them.
    fn transmit_burst(&mut self, frames: &[&[u8]]) -> Transmitted {
        let mut taken = Transmitted::default();
        for (nth, frame) in frames.iter().take(BURST_FRAMES).enumerate() {
            match self.transmit(frame) {
                Ok(()) => {
                    taken.frames += 1;
                    taken.bytes += frame.len() as u64;
                }
                Err(TransmitError::QueueFull) => break,
                Err(_) => taken.refused |= 1 << nth,
            }
        }
        taken
    }

    /// Hands every queued frame to the medium. Frames that the medium cannot take now stay queued until the
    /// next call, so the engine keeps calling this after the last frame. By default there is no queue.
    fn flush(&mut self) {}

    /// Returns whether more frames can be expected; by default always.
    fn state(&self) -> WireState {
        WireState::Live
    }

    /// Returns how an idle engine learns that a frame has arrived. Called when
    /// [`receive`](Wire::receive) had none, before the engine sleeps.
    fn sleep_hint(&mut self) -> SleepHint {
        SleepHint::Poll
    }

    /// The description of this wire for a log line: `generator (3 flows, 200000/s)`, `eth0 (af_packet)`.
    fn describe(&self) -> String;

    /// The station address of the port.
    fn mac(&self) -> MacAddr {
        SOFT_MAC
    }

    /// The largest payload after the Ethernet header, in bytes.
    fn mtu_bytes(&self) -> u32 {
        MAX_MTU_BYTES
    }

    /// The frames that it did not hand over. May make a system call.
    fn receive_counters(&self) -> ReceiveCounters {
        ReceiveCounters::default()
    }

    /// Returns whether it hands over frames of up to [`MAX_MERGED_BYTES`], regardless of the MTU.
    fn takes_merged(&self) -> bool {
        false
    }

    /// The frames that it has split so far.
    fn splits(&self) -> Splits {
        Splits::default()
    }

    /// Frames that [`transmit`](Wire::transmit) accepted and [`flush`](Wire::flush) could not send.
    fn transmit_losses(&self) -> u64 {
        0
    }
}

/// The outcome of frames that a wire had taken from the host and was asked to leave to it
/// ([`Wire::leave_to_host`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GivenBack {
    /// Frames that the host received after all.
    pub frames: u64,
    /// Lost: XDP is in generic mode, and the kernel does not pass on what is given back.
    pub lost_generic: u64,
    /// Lost: longer than the kernel accepts back.
    pub lost_long: u64,
    /// Lost: refused by the kernel for another reason, such as an interface that is gone.
    pub lost_refused: u64,
}

impl GivenBack {
    /// The frames that are lost, for whatever reason.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost_generic + self.lost_long + self.lost_refused
    }
}

/// The way in which an idle engine learns that a frame has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SleepHint {
    /// The engine asks again: it sleeps for 50 microseconds at first, and up to four milliseconds after a
    /// long pause.
    Poll,
    /// No frame arrives before this time has passed.
    Within(Duration),
    /// The engine waits for a descriptor.
    Readable {
        /// The descriptor, which is readable when a frame has arrived. It stays open until the wire is called
        /// again.
        descriptor: RawFd,
        /// The wire wants to be asked again after this time in any case.
        within: Duration,
        /// For how long frames may gather before they are taken. With it the engine does not poll the wire
        /// after it has taken frames: it sleeps for this time, takes what has gathered, and waits for the
        /// descriptor if that was nothing; with zero, because frames gather below the wire, at once. `None`:
        /// the engine polls for some time before it sleeps.
        gather: Option<Duration>,
    },
}

impl SleepHint {
    /// No frame ever arrives by itself.
    pub const NEVER: Self = Self::Within(Duration::MAX);
}

/// The number of merged frames that a wire has split, and of the frames made of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Splits {
    /// Merged frames.
    pub frames: u64,
    /// The frames that were made of them, and handed over in their place.
    pub segments: u64,
}

/// The part of a burst to be sent that a wire has taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transmitted {
    /// Frames.
    pub frames: u64,
    /// Bytes of those frames.
    pub bytes: u64,
    /// A bit for each frame that will not be sent, by its place among them. The frames behind the last one
    /// that was taken or refused are to be offered again.
    pub refused: u64,
}

impl Transmitted {
    /// The frames that need not be offered again.
    #[must_use]
    pub fn settled(&self) -> usize {
        self.frames as usize + self.refused.count_ones() as usize
    }
}

/// The prospect of more frames from a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireState {
    /// Frames may arrive at any time.
    Live,
    /// A finite wire has handed over its last frame.
    Finished,
    /// The medium is gone for now: an interface that was set down.
    Down,
}

/// The state of the layer 4 checksum of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Checksum {
    /// Not checked.
    #[default]
    Unknown,
    /// Verified by the interface or the kernel.
    Valid,
    /// Left unfinished by a local sender that counted on offload, and not of a kind that the wire could
    /// complete.
    Partial,
}

/// One received frame, borrowed from its wire.
#[derive(Clone, Copy, Debug)]
pub struct RxFrame<'w> {
    /// The frame from the destination address on, VLAN tags in place, without FCS.
    pub bytes: &'w [u8],
    /// The length on the medium; more than `bytes.len()` when the wire could only keep the beginning.
    pub wire_len: u32,
    /// Arrival in nanoseconds of `CLOCK_REALTIME`; 0 asks the engine to stamp it.
    pub timestamp_ns: u64,
    /// The state of the layer 4 checksum.
    pub checksum: Checksum,
}

impl<'w> RxFrame<'w> {
    /// A complete frame that the engine is to stamp.
    #[must_use]
    #[inline]
    pub fn new(bytes: &'w [u8]) -> Self {
        let wire_len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        Self { bytes, wire_len, timestamp_ns: 0, checksum: Checksum::Unknown }
    }

    /// Returns whether the wire kept only the beginning of the frame.
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        self.wire_len as usize > self.bytes.len()
    }
}

/// The frames of one [`Wire::receive`], at most [`BURST_FRAMES`].
#[derive(Debug)]
pub struct Burst<'w> {
    frames: ArrayVec<RxFrame<'w>, BURST_FRAMES>,
    /// At most [`BURST_FRAMES`].
    limit: usize,
}

impl Default for Burst<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'w> Burst<'w> {
    /// An empty burst.
    #[must_use]
    pub fn new() -> Self {
        Self::with_limit(BURST_FRAMES)
    }

    /// An empty burst of at most `limit` frames.
    #[must_use]
    pub fn with_limit(limit: usize) -> Self {
        Self { frames: ArrayVec::new(), limit: limit.min(BURST_FRAMES) }
    }

    /// The number of frames that still fit.
    #[must_use]
    pub fn capacity_left(&self) -> usize {
        self.limit - self.frames.len()
    }

    /// Appends a frame; a full burst does not take it and returns `false`.
    pub fn push(&mut self, frame: RxFrame<'w>) -> bool {
        prefetch_read(frame.bytes.as_ptr());
        self.capacity_left() > 0 && self.frames.try_push(frame).is_ok()
    }

    /// Appends the complete frames at `places`, which the engine is to stamp, as many as there are and fit.
    /// Their headers are on the way into the cache then.
    #[inline]
    pub(crate) fn fill<P>(&mut self, places: &[P], frame: impl Fn(&P) -> &'w [u8]) {
        let count = self.frames.len();
        let places = &places[..places.len().min(self.capacity_left())];
        let mut next = self.frames.as_mut_ptr().wrapping_add(count);
        for place in places {
            let frame = RxFrame::new(frame(place));
            prefetch_read(frame.bytes.as_ptr());
            // SAFETY: there is room for as many frames as there are places.
            unsafe { next.write(frame) };
            next = next.wrapping_add(1);
        }
        // SAFETY: as above, and they were written.
        unsafe { self.frames.set_len(count + places.len()) };
    }

    /// The number of frames.
    #[must_use]
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Returns whether there is no frame.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// The frames in order of arrival.
    #[must_use]
    pub fn as_slice(&self) -> &[RxFrame<'w>] {
        &self.frames
    }

    /// The frames in order of arrival.
    pub fn iter(&self) -> std::slice::Iter<'_, RxFrame<'w>> {
        self.frames.iter()
    }
}

impl<'b, 'w> IntoIterator for &'b Burst<'w> {
    type Item = &'b RxFrame<'w>;
    type IntoIter = std::slice::Iter<'b, RxFrame<'w>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl WireConfig {
    /// Opens the wire that these settings describe.
    ///
    /// # Errors
    /// A [`WireError`] that names the file or interface, the place in it, and a remedy.
    pub fn open(&self) -> Result<Box<dyn Wire>, WireError> {
        Ok(match self {
            Self::Generator(config) => Box::new(GeneratorWire::open(config)?),
            Self::Pcap(config) => Box::new(PcapWire::open(config)?),
            Self::AfPacket(config) => Box::new(AfPacketWire::open(config)?),
            Self::AfXdp(config) => Box::new(AfXdpWire::open(config)?),
            Self::Link(config) => Box::new(LinkWire::open(config)?),
            Self::Loopback {} => Box::new(LoopbackWire::open()?),
            Self::Null {} => Box::new(NullWire),
        })
    }

    /// Checks that the wire can be opened, and changes nothing: no frame is taken, no file is made, no
    /// program is attached. What the system answers only to the opening itself, such as a queue that another
    /// socket has, is not found.
    ///
    /// # Errors
    /// The errors of [`WireConfig::open`].
    pub fn check(&self) -> Result<(), WireError> {
        match self {
            Self::Generator(config) => GeneratorWire::open(config).map(drop),
            Self::Pcap(config) => PcapWire::check(config),
            Self::AfPacket(config) => AfPacketWire::check(config),
            Self::AfXdp(config) => AfXdpWire::check(config),
            Self::Link(config) => LinkWire::check(config),
            Self::Loopback {} | Self::Null {} => Ok(()),
        }
    }
}

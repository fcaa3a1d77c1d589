//! The receive ring of a packet socket, in memory that is shared with the kernel. `slots` has a slot for each
//! frame (TPACKET_V2), `blocks` has blocks of frames (TPACKET_V3); both give out frames in order, until they
//! are released.
//!
//! See Documentation/networking/packet_mmap.rst and `tpacket_rcv` in net/packet/af_packet.c.

mod blocks;
mod slots;

use std::ffi::c_void;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use packet::offload::{Merged, OFFLOAD_HEADER_BYTES, Offload};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use self::blocks::BlockRing;
use self::slots::SlotRing;
use crate::{AfPacketConfig, Checksum, ETHERNET_BYTES, HandOver, TAG_BYTES, VLAN_TAGS_BYTES, WireError};

/// The most memory, which the kernel pins.
const MAX_RING_BYTES: usize = 512 << 20;
/// An Ethernet header with two tags, beyond the MTU.
const LINK_HEADER_BYTES: u32 = (ETHERNET_BYTES + VLAN_TAGS_BYTES) as u32;
/// PACKET_RESERVE: where a stripped tag goes back.
pub(super) const TAG_ROOM_BYTES: usize = TAG_BYTES;
/// The addresses that are before a tag.
const ADDRESSES_BYTES: usize = 12;
/// The TPID of a tag if the kernel does not provide it.
const C_VLAN_TPID: u16 = 0x8100;
const NS_PER_S: u64 = 1_000_000_000;

/// The request of PACKET_RX_RING.
pub(super) enum Layout {
    Slots(libc::tpacket_req),
    Blocks(libc::tpacket_req3),
}

impl Layout {
    /// The layout of the ring for the frames of an interface, or why there can be none.
    pub(super) fn of(config: &AfPacketConfig, mtu_bytes: u32) -> Result<Self, WireError> {
        let slots = slots::layout(config, mtu_bytes)?;
        Ok(match config.hand_over {
            HandOver::Frames => Self::Slots(slots),
            HandOver::Blocks => Self::Blocks(blocks::layout(&slots)),
        })
    }

    /// The layout of a ring for frames that are too long for the slots of the other one: merged ones.
    pub(super) fn merged() -> Self {
        Self::Slots(slots::MERGED_LAYOUT)
    }

    /// The longest frame, without a stripped tag, that is surely kept whole, if there are longer ones.
    pub(super) fn longest(&self) -> Option<u32> {
        match self {
            Self::Slots(layout) => Some(slots::slot_frame_bytes(layout)),
            Self::Blocks(_) => None,
        }
    }
}

/// A frame that was taken, its tag in place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// Among the taken slots, or where its header is in the ring of blocks.
    place: usize,
    /// Where its bytes begin, from there.
    start: usize,
    len: usize,
    pub(super) wire_len: u32,
    pub(super) timestamp_ns: u64,
    pub(super) checksum: Checksum,
    /// Whether it represents several frames of the medium: merged on arrival, or not yet cut by a sender.
    pub(super) merged: Option<Merged>,
}

impl Arrival {
    /// Whether the ring holds all of it.
    pub(super) fn is_whole(&self) -> bool {
        self.wire_len as usize <= self.len
    }
}

/// The result of [`Ring::take`].
#[derive(Clone, Copy, Debug)]
pub(super) enum Taken {
    /// A received frame.
    Frame(Arrival),
    /// A frame on its way out, to be passed over.
    Outgoing,
    /// A header that makes no sense; the frame is lost.
    Malformed,
}

/// A ring of either kind.
#[derive(Debug)]
pub(super) enum Ring {
    Slots(SlotRing),
    Blocks(BlockRing),
}

impl Ring {
    /// Maps the ring that was set up on `socket` with this layout.
    pub(super) fn map(socket: &impl AsFd, layout: &Layout) -> rustix::io::Result<Self> {
        Ok(match layout {
            Layout::Slots(layout) => Self::Slots(SlotRing::map(socket, layout)?),
            Layout::Blocks(layout) => Self::Blocks(BlockRing::map(socket, layout)?),
        })
    }

    /// When the next frame arrived, if the kernel has handed it over.
    pub(super) fn next_timestamp_ns(&mut self) -> Option<u64> {
        match self {
            Self::Slots(ring) => ring.next_timestamp_ns(),
            Self::Blocks(ring) => ring.next_timestamp_ns(),
        }
    }

    /// Takes the next frame if the kernel has handed it over. Unless merged frames are `kept` whole their
    /// checksums stay unfinished, because each segment gets its own.
    pub(super) fn take(&mut self, kept: bool) -> Option<Taken> {
        match self {
            Self::Slots(ring) => ring.take(kept),
            Self::Blocks(ring) => ring.take(kept),
        }
    }

    /// The bytes of a frame that was taken and not released.
    pub(super) fn frame(&self, arrival: &Arrival) -> &[u8] {
        match self {
            Self::Slots(ring) => ring.frame(arrival),
            Self::Blocks(ring) => ring.frame(arrival),
        }
    }

    /// Gives all taken frames back to the kernel.
    pub(super) fn release(&mut self) {
        match self {
            Self::Slots(ring) => ring.release(),
            Self::Blocks(ring) => ring.release(),
        }
    }

    /// Gives all taken frames but the last one back to the kernel; `arrival` is that.
    pub(super) fn release_before(&mut self, arrival: &mut Arrival) {
        match self {
            Self::Slots(ring) => ring.release_before(arrival),
            Self::Blocks(ring) => ring.release_before(arrival),
        }
    }
}

/// The memory of a ring.
#[derive(Debug)]
struct Mapping {
    area: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone; nothing in it is tied to a thread.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(socket: &impl AsFd, bytes: usize) -> rustix::io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing of ours.
        let area = unsafe { mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, socket, 0) }?;
        Ok(Self { area: NonNull::new(area.cast()).ok_or(rustix::io::Errno::NOMEM)?, bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` made the mapping with this length, and all references into it borrowed the ring that
        // owns `self`.
        let unmapped = unsafe { munmap(self.area.as_ptr().cast::<c_void>(), self.bytes) };
        if let Err(error) = unmapped {
            tracing::error!(%error, "a packet ring could not be unmapped");
        }
    }
}

/// The kernel's description of a frame.
#[derive(Clone, Copy)]
struct Header {
    /// Where the frame's bytes may begin at the earliest.
    end: usize,
    start: usize,
    len: usize,
    wire_len: u32,
    timestamp_ns: u64,
    tag: Option<(u16, u16)>,
    checksum: Checksum,
    packet_type: libc::c_uchar,
}

/// Where `tpacket2_hdr` or `tpacket3_hdr` has its members (linux/if_packet.h); a `sockaddr_ll` follows, with
/// the type of the packet after 10 bytes.
struct Members {
    status: usize,
    wire_len: usize,
    len: usize,
    start: usize,
    seconds: usize,
    tag_control: usize,
    tag_protocol: usize,
    address: usize,
}

impl Members {
    const OF_SLOT: Self = Self {
        status: 0,
        wire_len: 4,
        len: 8,
        start: 12,
        seconds: 16,
        tag_control: 24,
        tag_protocol: 26,
        address: 32,
    };
    const OF_BLOCK: Self = Self {
        status: 20,
        wire_len: 16,
        len: 12,
        start: 24,
        seconds: 4,
        // The low half of a word.
        tag_control: if cfg!(target_endian = "little") { 32 } else { 34 },
        tag_protocol: 36,
        address: 48,
    };
    /// The type of the packet within a `sockaddr_ll`.
    const TYPE: usize = 10;
    /// The length of a `sockaddr_ll`.
    const ADDRESS_BYTES: usize = 20;

    /// The end of header and address.
    const fn end(&self) -> usize {
        self.address + Self::ADDRESS_BYTES
    }
}

impl Header {
    /// Reads it from the start of `bytes`, which are more than header and address.
    #[inline]
    fn read(bytes: &[u8], at: &Members) -> Self {
        let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let status = word(at.status);
        let tag = (status & libc::TP_STATUS_VLAN_VALID != 0).then(|| {
            let says_tpid = status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
            (if says_tpid { half(at.tag_protocol) } else { C_VLAN_TPID }, half(at.tag_control))
        });
        let checksum = if status & libc::TP_STATUS_CSUMNOTREADY != 0 {
            Checksum::Partial
        } else if status & libc::TP_STATUS_CSUM_VALID != 0 {
            Checksum::Valid
        } else {
            Checksum::Unknown
        };
        Self {
            end: at.end(),
            wire_len: word(at.wire_len),
            len: word(at.len) as usize,
            start: half(at.start).into(),
            timestamp_ns: u64::from(word(at.seconds)) * NS_PER_S + u64::from(word(at.seconds + 4)),
            tag,
            checksum,
            packet_type: bytes[at.address + Members::TYPE],
        }
    }
}

/// Does what offload left to do to a frame that was taken, and puts a stripped tag back. `room` begins with
/// the frame's header, and has the frame in it.
fn examine(room: &mut [u8], header: &Header, place: usize, kept: bool) -> Taken {
    if header.packet_type == libc::PACKET_OUTGOING {
        return Taken::Outgoing;
    }
    let Header { mut start, mut len, mut wire_len, mut checksum, timestamp_ns, .. } = *header;
    if start < header.end + OFFLOAD_HEADER_BYTES || start + len > room.len() {
        return Taken::Malformed;
    }
    // Read first: the tag goes where it is.
    let mut offload = room[..start].last_chunk().map_or_else(Offload::default, Offload::read);
    let whole = wire_len as usize <= len;
    let completes = whole && (offload.merged.is_none() || kept);
    if completes && offload.complete_checksum(&mut room[start..][..len]) {
        checksum = Checksum::Unknown;
    }
    if let Some((tpid, tci)) = header.tag
        && len >= ADDRESSES_BYTES
    {
        room.copy_within(start..start + ADDRESSES_BYTES, start - TAG_BYTES);
        start -= TAG_BYTES;
        len += TAG_BYTES;
        wire_len += TAG_BYTES as u32;
        if let Some(at) = offload.merged.as_mut().and_then(|merged| merged.stream_at.as_mut()) {
            *at += TAG_BYTES;
        }
        let tag = &mut room[start + ADDRESSES_BYTES..][..TAG_BYTES];
        tag[..2].copy_from_slice(&tpid.to_be_bytes());
        tag[2..].copy_from_slice(&tci.to_be_bytes());
    }
    Taken::Frame(Arrival { place, start, len, wire_len, timestamp_ns, checksum, merged: offload.merged })
}

//! The receive ring of a packet socket: TPACKET_V2, one slot per frame.
//!
//! One ring has slots for frames of the medium, another those of 64 KiB for merged frames, see the wire's own page.
//! V2 and not V3, because V3 hands over blocks of frames: a lone frame waits there for a timer of at least a
//! millisecond, while a slot of V2 is readable at once. The ring keeps the slots it took until they are released, and
//! gives out bytes of those only; so nothing ever refers to memory that the kernel may be writing.
//! See Documentation/networking/packet_mmap.rst and `tpacket_rcv` in net/packet/af_packet.c.

use std::ffi::c_void;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::prefetch::{prefetch_read, prefetch_write};
use crate::wire::{AfPacketConfig, BURST_FRAMES, Checksum, MAX_FRAME_BYTES, MAX_MERGED_BYTES, WireError};
use packet::offload::{Merged, OFFLOAD_HEADER_BYTES, Offload};

/// The fewest slots: those of a burst stay taken until the next one.
const MIN_SLOTS: u32 = 2 * BURST_FRAMES as u32;
/// The most slots.
const MAX_SLOTS: u32 = 1 << 16;
/// The most memory, which the kernel pins.
const MAX_RING_BYTES: usize = 512 << 20;
/// Slots are laid out in blocks of this size or, if larger, of one slot.
const BLOCK_BYTES: u32 = 1 << 16;
/// The smallest slot: a standard Ethernet frame with headers.
const MIN_SLOT_BYTES: u32 = 1 << 11;
/// The ring for merged frames: blocks, and slots for the longest one. That makes 240 slots in 16 MiB.
const MERGED_BLOCKS: u32 = 16;
const MERGED_BLOCK_BYTES: u32 = 1 << 20;
const MERGED_SLOT_BYTES: u32 = (MAX_MERGED_BYTES as u32 + SLOT_HEADER_BYTES).next_multiple_of(16);
/// The bytes before a frame in its slot: header and address (52), the longest link header that shifts it (48 at
/// most, being aligned), the room for a tag, and what offload left to do.
const SLOT_HEADER_BYTES: u32 = 52 + 48 + (TAG_ROOM_BYTES + OFFLOAD_HEADER_BYTES) as u32;
/// An Ethernet header with two tags, beyond the MTU.
const LINK_HEADER_BYTES: u32 = 14 + 2 * TAG_BYTES as u32;
/// A VLAN tag.
const TAG_BYTES: usize = 4;
/// PACKET_RESERVE: where a stripped tag goes back.
pub(super) const TAG_ROOM_BYTES: usize = TAG_BYTES;
/// The addresses that are before a tag.
const ADDRESSES_BYTES: usize = 12;
/// End of `tpacket2_hdr` and `sockaddr_ll`; the frame starts behind.
const HEADERS_END: usize = 52;
/// `sll_pkttype` within the slot: `sockaddr_ll` is at 32.
const PACKET_TYPE_AT: usize = 32 + 10;
/// How many slots ahead of the one that is taken their first lines are fetched: the header, whose status is written back,
/// and the headers of the frame. Another processor has filled them, and they are too far apart for this one to expect the
/// next.
const LOOKAHEAD: usize = 8;
const LINE_BYTES: usize = 64;
/// What a tag is if the kernel does not provide it.
const C_VLAN_TPID: u16 = 0x8100;
const NS_PER_S: u64 = 1_000_000_000;

/// The layout of a ring, for PACKET_RX_RING.
pub(super) fn layout(config: &AfPacketConfig, mtu_bytes: u32) -> Result<libc::tpacket_req, WireError> {
    let setting =
        |problem: String| WireError::InterfaceSetting { interface: config.interface.clone(), problem };
    if !(MIN_SLOTS..=MAX_SLOTS).contains(&config.ring_frames) {
        return Err(setting(format!(
            "`ring_frames` = {} is not in {MIN_SLOTS}..={MAX_SLOTS}",
            config.ring_frames
        )));
    }
    // Longer frames (the loopback's 64 KiB) go to the ring for merged frames.
    let frame_bytes = (mtu_bytes.saturating_add(LINK_HEADER_BYTES)).min(MAX_FRAME_BYTES as u32);
    let slot_bytes = (frame_bytes + SLOT_HEADER_BYTES).next_power_of_two().max(MIN_SLOT_BYTES);
    let block_bytes = slot_bytes.max(BLOCK_BYTES);
    let slots_per_block = block_bytes / slot_bytes;
    let blocks = config.ring_frames.div_ceil(slots_per_block);
    let bytes = blocks as usize * block_bytes as usize;
    if bytes > MAX_RING_BYTES {
        return Err(setting(format!(
            "`ring_frames` = {} needs {} MiB at this MTU, more than {}: lower it",
            config.ring_frames,
            bytes >> 20,
            MAX_RING_BYTES >> 20
        )));
    }
    Ok(libc::tpacket_req {
        tp_block_size: block_bytes,
        tp_block_nr: blocks,
        tp_frame_size: slot_bytes,
        tp_frame_nr: blocks * slots_per_block,
    })
}

/// The layout of a ring for frames that are too long for the slots of the other ring: merged ones.
pub(super) const MERGED_LAYOUT: libc::tpacket_req = libc::tpacket_req {
    tp_block_size: MERGED_BLOCK_BYTES,
    tp_block_nr: MERGED_BLOCKS,
    tp_frame_size: MERGED_SLOT_BYTES,
    tp_frame_nr: MERGED_BLOCKS * (MERGED_BLOCK_BYTES / MERGED_SLOT_BYTES),
};

/// The longest frame, without a stripped tag, that is surely kept whole in a slot of this layout.
pub(super) fn slot_frame_bytes(layout: &libc::tpacket_req) -> u32 {
    layout.tp_frame_size - SLOT_HEADER_BYTES
}

/// A frame in a taken slot, its tag in place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// Among the taken slots.
    taken: usize,
    start: usize,
    len: usize,
    pub(super) wire_len: u32,
    pub(super) timestamp_ns: u64,
    pub(super) checksum: Checksum,
    /// Whether it represents several frames of the medium: merged on arrival, or not yet cut by a sender.
    pub(super) merged: Option<Merged>,
}

impl Arrival {
    /// Whether the slot holds all of it.
    pub(super) fn is_whole(&self) -> bool {
        self.wire_len as usize <= self.len
    }
}

/// What [`Ring::take`] found.
#[derive(Clone, Copy, Debug)]
pub(super) enum Taken {
    /// A received frame.
    Frame(Arrival),
    /// A frame on its way out, to be passed over.
    Outgoing,
    /// A slot whose header makes no sense; the frame is lost.
    Malformed,
}

/// The mapped ring.
#[derive(Debug)]
pub(super) struct Ring {
    area: NonNull<u8>,
    bytes: usize,
    slot_bytes: usize,
    slots: usize,
    slots_per_block: usize,
    /// Bytes at the end of each block that are in no slot.
    unused_bytes: usize,
    /// The oldest slot that is taken or, if none is, the next one to take.
    first: usize,
    /// Slots from `first` on that belong to this side: the kernel handed them over and they are not released yet.
    taken: usize,
}

// SAFETY: the mapping belongs to this value alone; nothing in it is tied to a thread.
unsafe impl Send for Ring {}

impl Ring {
    /// Maps the ring that was set up on `socket` with this layout.
    pub(super) fn map(socket: &impl AsFd, layout: &libc::tpacket_req) -> rustix::io::Result<Self> {
        let bytes = layout.tp_block_size as usize * layout.tp_block_nr as usize;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing of ours.
        let area = unsafe { mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, socket, 0) }?;
        let slots_per_block = layout.tp_block_size / layout.tp_frame_size;
        Ok(Self {
            area: NonNull::new(area.cast()).ok_or(rustix::io::Errno::NOMEM)?,
            bytes,
            slot_bytes: layout.tp_frame_size as usize,
            slots: layout.tp_frame_nr as usize,
            slots_per_block: slots_per_block as usize,
            unused_bytes: (layout.tp_block_size - slots_per_block * layout.tp_frame_size) as usize,
            first: 0,
            taken: 0,
        })
    }

    /// The next slot, if the kernel has filled it. It stays so until it is taken and released.
    fn filled(&self) -> Option<&[u8]> {
        let slot = (self.first + self.taken) % self.slots;
        if self.taken == self.slots || self.status(slot).load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: the remainder is below `self.slots`, so the slot is within the mapping.
        let place = unsafe { self.area.add(self.offset(slot)) };
        // SAFETY: its status was seen to be the process's: the kernel does not write the slot until `release`, which
        // needs `&mut self`.
        Some(unsafe { std::slice::from_raw_parts(place.as_ptr(), self.slot_bytes) })
    }

    /// When the frame in the next slot arrived, if the kernel has filled that.
    pub(super) fn next_timestamp_ns(&self) -> Option<u64> {
        self.filled().map(|slot| Header::read(slot).timestamp_ns)
    }

    /// Takes the next slot if the kernel has filled it. Unless merged frames are `kept` whole their checksums stay
    /// unfinished, because each segment gets its own.
    pub(super) fn take(&mut self, kept: bool) -> Option<Taken> {
        self.filled()?;
        self.fetch_ahead();
        self.taken += 1;
        Some(self.examine(self.taken - 1, kept))
    }

    fn fetch_ahead(&self) {
        let ahead = self.offset((self.first + self.taken + LOOKAHEAD) % self.slots);
        // An address that is only fetched, within the mapping: slots are longer than two lines.
        let line = |nth: usize| self.area.as_ptr().wrapping_add(ahead + nth * LINE_BYTES);
        prefetch_write(line(0));
        prefetch_read(line(1));
    }

    /// The bytes of a frame that was taken and not released.
    pub(super) fn frame(&self, arrival: &Arrival) -> &[u8] {
        &self.slot(arrival.taken)[arrival.start..][..arrival.len]
    }

    /// Gives all taken slots back to the kernel.
    pub(super) fn release(&mut self) {
        self.release_but(0);
    }

    /// Gives all taken slots but the last one back to the kernel; `arrival` is in that.
    pub(super) fn release_before(&mut self, arrival: &mut Arrival) {
        debug_assert!(arrival.taken + 1 == self.taken);
        self.release_but(1);
        arrival.taken = 0;
    }

    fn release_but(&mut self, kept: usize) {
        while self.taken > kept {
            self.status(self.first).store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.first = (self.first + 1) % self.slots;
            self.taken -= 1;
        }
    }

    /// Reads the header of a taken slot, does what offload left to do, and puts a stripped tag back.
    fn examine(&mut self, taken: usize, kept: bool) -> Taken {
        let header = Header::read(self.slot(taken));
        if header.packet_type == libc::PACKET_OUTGOING {
            return Taken::Outgoing;
        }
        let (mut start, mut len) = (header.start, header.len);
        if start < HEADERS_END + OFFLOAD_HEADER_BYTES || start + len > self.slot_bytes {
            return Taken::Malformed;
        }
        // Read first: the tag goes where it is.
        let mut offload = self.slot(taken)[..start].last_chunk().map_or_else(Offload::default, Offload::read);
        let mut wire_len = header.wire_len;
        let mut checksum = header.checksum;
        let whole = wire_len as usize <= len;
        let completes = whole && (offload.merged.is_none() || kept);
        if completes && offload.complete_checksum(&mut self.slot_mut(taken)[start..][..len]) {
            checksum = Checksum::Unknown;
        }
        if let Some((tpid, tci)) = header.tag
            && len >= ADDRESSES_BYTES
        {
            let slot = self.slot_mut(taken);
            slot.copy_within(start..start + ADDRESSES_BYTES, start - TAG_BYTES);
            start -= TAG_BYTES;
            len += TAG_BYTES;
            wire_len += TAG_BYTES as u32;
            if let Some(at) = offload.merged.as_mut().and_then(|merged| merged.stream_at.as_mut()) {
                *at += TAG_BYTES;
            }
            let tag = &mut slot[start + ADDRESSES_BYTES..][..TAG_BYTES];
            tag[..2].copy_from_slice(&tpid.to_be_bytes());
            tag[2..].copy_from_slice(&tci.to_be_bytes());
        }
        let Header { timestamp_ns, .. } = header;
        Taken::Frame(Arrival { taken, start, len, wire_len, timestamp_ns, checksum, merged: offload.merged })
    }

    /// Where a slot is: within the mapping for each below `self.slots`, of which every block has `slots_per_block`.
    fn offset(&self, slot: usize) -> usize {
        let slots = slot * self.slot_bytes;
        // Blocks of small slots have no unused bytes, and their division is spared.
        if self.unused_bytes == 0 { slots } else { slots + slot / self.slots_per_block * self.unused_bytes }
    }

    /// The status word at the start of a slot, by which kernel and process hand it to each other.
    fn status(&self, slot: usize) -> &AtomicU32 {
        debug_assert!(slot < self.slots);
        // SAFETY: `slot < self.slots`, so the offset is within the mapping.
        let word = unsafe { self.area.add(self.offset(slot)) };
        // SAFETY: blocks are pages and slots multiples of 16 bytes, so the word is aligned; it lives as long as the
        // mapping, which `self` owns; both sides access it as one 32-bit word.
        unsafe { AtomicU32::from_ptr(word.cast().as_ptr()) }
    }

    fn place(&self, taken: usize) -> NonNull<u8> {
        assert!(taken < self.taken, "only taken slots are looked into");
        let slot = (self.first + taken) % self.slots;
        // SAFETY: the remainder is below `self.slots`, so the offset is within the mapping.
        unsafe { self.area.add(self.offset(slot)) }
    }

    fn slot(&self, taken: usize) -> &[u8] {
        let place = self.place(taken);
        // SAFETY: the slot is within the mapping, and taken: the kernel does not write it until `release`, which needs
        // `&mut self`.
        unsafe { std::slice::from_raw_parts(place.as_ptr(), self.slot_bytes) }
    }

    fn slot_mut(&mut self, taken: usize) -> &mut [u8] {
        let place = self.place(taken);
        // SAFETY: as in `slot`; `&mut self` makes this the only reference into the ring.
        unsafe { std::slice::from_raw_parts_mut(place.as_ptr(), self.slot_bytes) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: `map` made the mapping with this length, and all references into it borrowed `self`.
        let unmapped = unsafe { munmap(self.area.as_ptr().cast::<c_void>(), self.bytes) };
        if let Err(error) = unmapped {
            tracing::error!(%error, "a packet ring could not be unmapped");
        }
    }
}

/// The kernel's description of a frame: `tpacket2_hdr` and the packet type of `sockaddr_ll`.
struct Header {
    start: usize,
    len: usize,
    wire_len: u32,
    timestamp_ns: u64,
    tag: Option<(u16, u16)>,
    checksum: Checksum,
    packet_type: libc::c_uchar,
}

impl Header {
    /// Reads it from the start of a slot, which is longer than [`HEADERS_END`].
    fn read(slot: &[u8]) -> Self {
        let half = |at: usize| u16::from_ne_bytes([slot[at], slot[at + 1]]);
        let word = |at: usize| u32::from_ne_bytes([slot[at], slot[at + 1], slot[at + 2], slot[at + 3]]);
        let status = word(0);
        let tag = (status & libc::TP_STATUS_VLAN_VALID != 0).then(|| {
            let says_tpid = status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
            (if says_tpid { half(26) } else { C_VLAN_TPID }, half(24))
        });
        let checksum = if status & libc::TP_STATUS_CSUMNOTREADY != 0 {
            Checksum::Partial
        } else if status & libc::TP_STATUS_CSUM_VALID != 0 {
            Checksum::Valid
        } else {
            Checksum::Unknown
        };
        Self {
            wire_len: word(4),
            len: word(8) as usize,
            start: half(12).into(),
            timestamp_ns: u64::from(word(16)) * NS_PER_S + u64::from(word(20)),
            tag,
            checksum,
            packet_type: slot[PACKET_TYPE_AT],
        }
    }
}

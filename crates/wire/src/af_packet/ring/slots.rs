//! A receive ring of TPACKET_V2: one slot for each frame, readable as soon as the frame is there.
//!
//! One ring has slots for frames of the medium, another those of 64 KiB for merged frames, see the wire's own
//! page. The ring keeps the slots it took until they are released, and gives out bytes of those only; so
//! nothing ever refers to memory that the kernel may be writing.

use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use hugemem::{prefetch_read, prefetch_write};
use packet::offload::OFFLOAD_HEADER_BYTES;

use super::{
    Arrival, Header, LINK_HEADER_BYTES, MAX_RING_BYTES, Mapping, Members, TAG_ROOM_BYTES, Taken, examine,
};
use crate::{AfPacketConfig, BURST_FRAMES, MAX_FRAME_BYTES, MAX_MERGED_BYTES, WireError};

/// The fewest slots: those of a burst stay taken until the next one.
const MIN_SLOTS: u32 = 2 * BURST_FRAMES as u32;
/// The most slots.
const MAX_SLOTS: u32 = 1 << 16;
/// Slots are laid out in blocks of this size or, if larger, of one slot.
const BLOCK_BYTES: u32 = 1 << 16;
/// The smallest slot: a standard Ethernet frame with headers.
const MIN_SLOT_BYTES: u32 = 1 << 11;
/// The ring for merged frames: blocks, and slots for the longest one. That makes 240 slots in 16 MiB.
const MERGED_BLOCKS: u32 = 16;
const MERGED_BLOCK_BYTES: u32 = 1 << 20;
const MERGED_SLOT_BYTES: u32 = (MAX_MERGED_BYTES as u32 + SLOT_HEADER_BYTES).next_multiple_of(16);
/// The bytes before a frame in its slot: header and address (52), the longest link header that shifts it (48
/// at most, being aligned), the room for a tag, and what offload left to do.
const SLOT_HEADER_BYTES: u32 = 52 + 48 + (TAG_ROOM_BYTES + OFFLOAD_HEADER_BYTES) as u32;
/// How many slots ahead of the one that is taken their first lines are fetched: the header, whose status is
/// written back, and the headers of the frame. Another processor has filled them, and they are too far apart
/// for this one to expect the next.
const LOOKAHEAD: usize = 8;
const LINE_BYTES: usize = 64;

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

/// The mapped ring.
#[derive(Debug)]
pub(in crate::af_packet) struct SlotRing {
    mapping: Mapping,
    slot_bytes: usize,
    slots: usize,
    slots_per_block: usize,
    /// Bytes at the end of each block that are in no slot.
    unused_bytes: usize,
    /// The oldest slot that is taken or, if none is, the next one to take.
    first: usize,
    /// Slots from `first` on that belong to this side: the kernel handed them over and they are not released
    /// yet.
    taken: usize,
}

impl SlotRing {
    /// Maps the ring that was set up on `socket` with this layout.
    pub(super) fn map(socket: &impl AsFd, layout: &libc::tpacket_req) -> rustix::io::Result<Self> {
        let slots_per_block = layout.tp_block_size / layout.tp_frame_size;
        Ok(Self {
            mapping: Mapping::new(socket, layout.tp_block_size as usize * layout.tp_block_nr as usize)?,
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
        let place = unsafe { self.mapping.area.add(self.offset(slot)) };
        // SAFETY: its status was seen to be the process's: the kernel does not write the slot until
        // `release`, which needs `&mut self`.
        Some(unsafe { std::slice::from_raw_parts(place.as_ptr(), self.slot_bytes) })
    }

    /// When the frame in the next slot arrived, if the kernel has filled that.
    pub(super) fn next_timestamp_ns(&self) -> Option<u64> {
        self.filled().map(|slot| Header::read(slot, &Members::OF_SLOT).timestamp_ns)
    }

    /// Takes the next slot if the kernel has filled it. Unless merged frames are `kept` whole their checksums
    /// stay unfinished, because each segment gets its own.
    pub(super) fn take(&mut self, kept: bool) -> Option<Taken> {
        self.filled()?;
        self.fetch_ahead();
        self.taken += 1;
        let taken = self.taken - 1;
        let slot = self.slot_mut(taken);
        let header = Header::read(slot, &Members::OF_SLOT);
        Some(examine(slot, &header, taken, kept))
    }

    fn fetch_ahead(&self) {
        let ahead = self.offset((self.first + self.taken + LOOKAHEAD) % self.slots);
        // An address that is only fetched, within the mapping: slots are longer than two lines.
        let line = |nth: usize| self.mapping.area.as_ptr().wrapping_add(ahead + nth * LINE_BYTES);
        prefetch_write(line(0));
        prefetch_read(line(1));
    }

    /// The bytes of a frame that was taken and not released.
    pub(super) fn frame(&self, arrival: &Arrival) -> &[u8] {
        &self.slot(arrival.place)[arrival.start..][..arrival.len]
    }

    /// Gives all taken slots back to the kernel.
    pub(super) fn release(&mut self) {
        self.release_but(0);
    }

    /// Gives all taken slots but the last one back to the kernel; `arrival` is in that.
    pub(super) fn release_before(&mut self, arrival: &mut Arrival) {
        debug_assert!(arrival.place + 1 == self.taken);
        self.release_but(1);
        arrival.place = 0;
    }

    fn release_but(&mut self, kept: usize) {
        while self.taken > kept {
            self.status(self.first).store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.first = (self.first + 1) % self.slots;
            self.taken -= 1;
        }
    }

    /// Where a slot is: within the mapping for each below `self.slots`, of which every block has
    /// `slots_per_block`.
    fn offset(&self, slot: usize) -> usize {
        let slots = slot * self.slot_bytes;
        // Blocks of small slots have no unused bytes, and their division is spared.
        if self.unused_bytes == 0 { slots } else { slots + slot / self.slots_per_block * self.unused_bytes }
    }

    /// The status word at the start of a slot, by which kernel and process hand it to each other.
    fn status(&self, slot: usize) -> &AtomicU32 {
        debug_assert!(slot < self.slots);
        // SAFETY: `slot < self.slots`, so the offset is within the mapping.
        let word = unsafe { self.mapping.area.add(self.offset(slot)) };
        // SAFETY: blocks are pages and slots multiples of 16 bytes, so the word is aligned; it lives as long
        // as the mapping, which `self` owns; both sides access it as one 32-bit word.
        unsafe { AtomicU32::from_ptr(word.cast().as_ptr()) }
    }

    fn place(&self, taken: usize) -> NonNull<u8> {
        assert!(taken < self.taken, "only taken slots are looked into");
        let slot = (self.first + taken) % self.slots;
        // SAFETY: the remainder is below `self.slots`, so the offset is within the mapping.
        unsafe { self.mapping.area.add(self.offset(slot)) }
    }

    fn slot(&self, taken: usize) -> &[u8] {
        let place = self.place(taken);
        // SAFETY: the slot is within the mapping, and taken: the kernel does not write it until `release`,
        // which needs `&mut self`.
        unsafe { std::slice::from_raw_parts(place.as_ptr(), self.slot_bytes) }
    }

    fn slot_mut(&mut self, taken: usize) -> &mut [u8] {
        let place = self.place(taken);
        // SAFETY: as in `slot`; `&mut self` makes this the only reference into the ring.
        unsafe { std::slice::from_raw_parts_mut(place.as_ptr(), self.slot_bytes) }
    }
}

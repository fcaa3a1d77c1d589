//! A receive ring of TPACKET_V3: blocks of frames, each handed over when it is full or its time is up: after
//! a millisecond, or after a tick of the kernel's clock if that is longer.
//!
//! Frames of any length follow each other in a block, so one ring is enough, and reading them one after the
//! other costs a fraction of what a slot for each costs: their lines are neighbours, and a block has one
//! status word. The price is time: a lone frame waits for the timer. The ring holds the blocks that it reads
//! from until all their frames are released, and gives out bytes of held blocks only; so nothing ever refers
//! to memory that the kernel may be writing.

use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Arrival, Header, Mapping, Members, Taken, examine};

/// The length of a block: the longest frame, or some hundred short ones.
const BLOCK_BYTES: u32 = 1 << 17;
/// The fewest blocks. With little traffic each has the frames of a millisecond, so that is for how many the
/// engine may be away.
const MIN_BLOCKS: u32 = 64;
/// The kernel checks that this divides a block, and does not use it with TPACKET_V3 (`packet_set_ring`).
const FRAME_BYTES: u32 = 1 << 11;
/// When a block is handed over that is not full: the shortest time that can be asked for.
const RETIRE_MS: u32 = 1;
/// Members of `tpacket_block_desc`.
const STATUS_AT: usize = 8;
const FRAMES_AT: usize = 12;
const FIRST_FRAME_AT: usize = 16;
/// The length of a block's descriptor: the first frame comes behind it.
const DESCRIPTOR_BYTES: usize = 48;

/// The layout of a ring that takes as much memory as a ring of these slots, and 8 MiB at least.
pub(super) fn layout(slots: &libc::tpacket_req) -> libc::tpacket_req3 {
    // At most MAX_RING_BYTES, checked for the slots.
    let bytes = slots.tp_block_size * slots.tp_block_nr;
    request(bytes.div_ceil(BLOCK_BYTES).max(MIN_BLOCKS))
}

/// The request to the kernel for this many blocks.
fn request(blocks: u32) -> libc::tpacket_req3 {
    libc::tpacket_req3 {
        tp_block_size: BLOCK_BYTES,
        tp_block_nr: blocks,
        tp_frame_size: FRAME_BYTES,
        tp_frame_nr: blocks * (BLOCK_BYTES / FRAME_BYTES),
        tp_retire_blk_tov: RETIRE_MS,
        tp_sizeof_priv: 0,
        tp_feature_req_word: 0,
    }
}

/// The mapped ring.
#[derive(Debug)]
pub(in crate::af_packet) struct BlockRing {
    mapping: Mapping,
    block_bytes: usize,
    blocks: usize,
    /// The oldest block that is held or, if none is, the next one to open.
    first: usize,
    /// Blocks from `first` on that belong to this side: the kernel handed them over and they are not released
    /// yet.
    held: usize,
    /// Frames of the last held block that are not taken yet.
    left: u32,
    /// Where the header of the next of them is, in the mapping.
    next: usize,
    /// A block said that it has frames, and not where they are.
    is_broken: bool,
}

impl BlockRing {
    /// Maps the ring that was set up on `socket` with this layout.
    pub(super) fn map(socket: &impl AsFd, layout: &libc::tpacket_req3) -> rustix::io::Result<Self> {
        let (block_bytes, blocks) = (layout.tp_block_size as usize, layout.tp_block_nr as usize);
        let mapping = Mapping::new(socket, block_bytes * blocks)?;
        Ok(Self { mapping, block_bytes, blocks, first: 0, held: 0, left: 0, next: 0, is_broken: false })
    }

    /// When the next frame arrived, if the kernel has handed it over.
    pub(super) fn next_timestamp_ns(&mut self) -> Option<u64> {
        if self.open() {
            return Some(Header::read(self.rest(self.next), &Members::OF_BLOCK).timestamp_ns);
        }
        // What is next is to be taken as malformed.
        self.is_broken.then_some(0)
    }

    /// Takes the next frame, if the kernel has handed it over.
    pub(super) fn take(&mut self, kept: bool) -> Option<Taken> {
        if !self.open() {
            return std::mem::take(&mut self.is_broken).then_some(Taken::Malformed);
        }
        let place = self.next;
        let room = self.rest_mut(place);
        let header = Header::read(room, &Members::OF_BLOCK);
        let step = word(room, 0) as usize;
        let bytes = room.len();
        let taken = examine(room, &header, place, kept);
        self.left -= 1;
        self.move_on(step, bytes);
        Some(taken)
    }

    /// Goes to the next frame of the block, if it has one: `step` bytes on, of `bytes` that are left of it. A
    /// step that makes no sense ends the block.
    fn move_on(&mut self, step: usize, bytes: usize) {
        if self.left > 0 && (step < Members::OF_BLOCK.end() || step + Members::OF_BLOCK.end() >= bytes) {
            (self.left, self.is_broken) = (0, true);
        }
        self.next += step;
    }

    /// Whether there is a frame to take; opens the next block that has one. Not beyond a block that makes no
    /// sense.
    fn open(&mut self) -> bool {
        while self.left == 0 && !self.is_broken {
            let block = (self.first + self.held) % self.blocks;
            if self.held == self.blocks
                || self.status(block).load(Ordering::Acquire) & libc::TP_STATUS_USER == 0
            {
                return false;
            }
            self.held += 1;
            let start = block * self.block_bytes;
            let descriptor = self.rest(start);
            let (frames, first) = (word(descriptor, FRAMES_AT), word(descriptor, FIRST_FRAME_AT) as usize);
            if first >= DESCRIPTOR_BYTES && first + Members::OF_BLOCK.end() < self.block_bytes {
                (self.left, self.next) = (frames, start + first);
            } else {
                self.is_broken = frames > 0;
            }
        }
        self.left > 0
    }

    /// The bytes of a frame that was taken and not released.
    pub(super) fn frame(&self, arrival: &Arrival) -> &[u8] {
        &self.rest(arrival.place)[arrival.start..][..arrival.len]
    }

    /// Gives the blocks of which all frames were taken back to the kernel.
    pub(super) fn release(&mut self) {
        self.release_but(usize::from(self.left > 0));
    }

    /// Gives all blocks but that of the last frame back; `arrival` is that frame.
    pub(super) fn release_before(&mut self, arrival: &mut Arrival) {
        debug_assert!(
            self.held > 0 && arrival.place / self.block_bytes == (self.first + self.held - 1) % self.blocks
        );
        self.release_but(1);
    }

    fn release_but(&mut self, kept: usize) {
        while self.held > kept {
            self.status(self.first).store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.first = (self.first + 1) % self.blocks;
            self.held -= 1;
        }
    }

    /// The status word of a block, by which kernel and process hand it to each other.
    fn status(&self, block: usize) -> &AtomicU32 {
        debug_assert!(block < self.blocks);
        // SAFETY: `block < self.blocks`, so the offset is within the mapping.
        let word = unsafe { self.mapping.area.add(block * self.block_bytes + STATUS_AT) };
        // SAFETY: blocks are pages, so the word is aligned; it lives as long as the mapping, which `self`
        // owns; both sides access it as one 32-bit word.
        unsafe { AtomicU32::from_ptr(word.cast().as_ptr()) }
    }

    /// A place within a held block, and how many bytes the block has from there on.
    fn place(&self, at: usize) -> (NonNull<u8>, usize) {
        let block = at / self.block_bytes;
        assert!(
            block < self.blocks && (block + self.blocks - self.first) % self.blocks < self.held,
            "only held blocks are looked into"
        );
        // SAFETY: `block < self.blocks`, so `at` is within the mapping.
        let place = unsafe { self.mapping.area.add(at) };
        (place, (block + 1) * self.block_bytes - at)
    }

    /// A held block from a place in the mapping on.
    fn rest(&self, at: usize) -> &[u8] {
        let (place, bytes) = self.place(at);
        // SAFETY: within the mapping, in a block that is held: the kernel does not write it until
        // `release_but`, which needs `&mut self`.
        unsafe { std::slice::from_raw_parts(place.as_ptr(), bytes) }
    }

    fn rest_mut(&mut self, at: usize) -> &mut [u8] {
        let (place, bytes) = self.place(at);
        // SAFETY: as in `rest`; `&mut self` makes this the only reference into the ring.
        unsafe { std::slice::from_raw_parts_mut(place.as_ptr(), bytes) }
    }
}

/// A word of `bytes` in the order of the processor.
fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;
    use packet::offload::OFFLOAD_HEADER_BYTES;

    const BLOCKS: usize = 4;
    const FRAME_AT: usize = Members::OF_BLOCK.end() + OFFLOAD_HEADER_BYTES;

    /// A ring in memory that a test fills in place of the kernel.
    fn ring() -> (OwnedFd, BlockRing) {
        let memory = memfd_create("blocks", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memory, (BLOCKS * BLOCK_BYTES as usize) as u64).unwrap();
        let ring = BlockRing::map(&memory, &request(BLOCKS as u32)).unwrap();
        (memory, ring)
    }

    fn write(memory: &OwnedFd, at: usize, bytes: &[u8]) {
        assert_eq!(rustix::io::pwrite(memory, bytes, at as u64), Ok(bytes.len()));
    }

    /// Hands over a block with frames of one byte, each `step` bytes after the one before.
    fn hand_over(memory: &OwnedFd, block: usize, frames: &[u8], (claimed, step): (u32, u32)) {
        let start = block * BLOCK_BYTES as usize;
        for (number, byte) in frames.iter().enumerate() {
            let at = start + DESCRIPTOR_BYTES + number * step as usize;
            write(memory, at, &step.to_ne_bytes());
            write(memory, at + Members::OF_BLOCK.len, &1u32.to_ne_bytes());
            write(memory, at + Members::OF_BLOCK.wire_len, &1u32.to_ne_bytes());
            write(memory, at + Members::OF_BLOCK.start, &(FRAME_AT as u16).to_ne_bytes());
            write(memory, at + FRAME_AT, &[*byte]);
        }
        write(memory, start + FRAMES_AT, &claimed.to_ne_bytes());
        write(memory, start + FIRST_FRAME_AT, &(DESCRIPTOR_BYTES as u32).to_ne_bytes());
        write(memory, start + STATUS_AT, &libc::TP_STATUS_USER.to_ne_bytes());
    }

    fn is_kernels(ring: &BlockRing, block: usize) -> bool {
        ring.status(block).load(Ordering::Relaxed) == libc::TP_STATUS_KERNEL
    }

    /// The bytes of the frames that can be taken, none of which is released.
    fn take_all(ring: &mut BlockRing) -> Vec<u8> {
        let mut frames = Vec::new();
        while let Some(taken) = ring.take(false) {
            let Taken::Frame(arrival) = taken else { panic!("{taken:?}") };
            frames.extend(ring.frame(&arrival));
        }
        frames
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memfd_create(2)")]
    fn blocks_are_read_in_order_and_given_back_when_their_frames_are_released() {
        let (memory, mut ring) = ring();
        assert!(take_all(&mut ring).is_empty());
        for round in 0..3 {
            let first = round * 3;
            let block = |number: usize| (first + number) % BLOCKS;
            hand_over(&memory, block(0), b"abc", (3, 128));
            // Without frames.
            hand_over(&memory, block(1), b"", (0, 0));
            hand_over(&memory, block(2), b"de", (2, 96));
            assert_eq!(ring.next_timestamp_ns(), Some(0));
            let Some(Taken::Frame(mut arrival)) = ring.take(false) else { panic!() };
            ring.release();
            assert!(!is_kernels(&ring, block(0)), "frames of it are left");
            ring.release_before(&mut arrival);
            assert_eq!(ring.frame(&arrival), b"a");
            assert_eq!(take_all(&mut ring), b"bcde");
            assert!([0, 1, 2].iter().all(|number| !is_kernels(&ring, block(*number))));
            ring.release();
            assert!([0, 1, 2].iter().all(|number| is_kernels(&ring, block(*number))));
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memfd_create(2)")]
    fn a_block_that_makes_no_sense_ends_early() {
        // More frames than there are, a next frame at this one or beyond the block.
        for (claimed, step) in [(u32::MAX, 1 << 17), (2, 0), (2, 8), (2, BLOCK_BYTES), (2, u32::MAX)] {
            let (memory, mut ring) = ring();
            hand_over(&memory, 0, b"a", (claimed, step));
            hand_over(&memory, 1, b"z", (1, 128));
            let first = ring.take(false);
            assert!(matches!(first, Some(Taken::Frame(_))), "{first:?}");
            // The lost frames count as one.
            assert!(ring.next_timestamp_ns().is_some(), "there is something to take");
            let lost = ring.take(false);
            assert!(matches!(lost, Some(Taken::Malformed)), "{claimed} frames, {step} bytes apart: {lost:?}");
            let mut next = ring.take(false);
            if matches!(next, Some(Taken::Malformed)) {
                // There was room for a header.
                next = ring.take(false);
            }
            assert!(matches!(next, Some(Taken::Frame(_))), "{next:?}");
            ring.release();
            assert!(is_kernels(&ring, 0) && is_kernels(&ring, 1));
        }
    }
}
